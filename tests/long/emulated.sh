#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CUDA backend without a GPU: the other golden cases once, and the failure of every call of the runtime and of NVIDIA's libraries
# in turn: each place in cuda/X.c that calls one, the first time it does so and the last.  What fails must be named, with the file and the
# rank; nothing may hang, leak or go on wrongly.
. tests/lib.sh
. tests/emulated.sh
. tests/footprint.sh

for what in klein-tiny_96x64 klein-tiny_default512 klein-tiny-sharded_64x64 klein-base-tiny_64x64 dev-tiny_64x64 klein-edit-tiny_one \
	klein-edit-tiny_two klein-heads12-tiny_64x64; do
	golden deferred "golden_stages_${what}_tp2"
done

# run COMMAND FOLDER FAULT SITES: the command, which is words with @ for that folder, anew; ten times as long as it may take is a hang, which
# nothing but this ends.
hang=60
[ -z "$SANITIZED" ] || hang=300
run() {
	rm -rf "$2"
	mkdir -p "$2/out"
	# shellcheck disable=SC2046 # several words
	DIFFTP_EMU_FAIL=$3 DIFFTP_EMU_SITES=$4 timeout $hang env $(echo "$1" | sed "s|@|$2|g") >"$2/stdout" 2>"$2/stderr" </dev/null
}

# set_of NAME WORD...: a command that works; where it calls what goes to $dir/NAME.sites: "CALL ADDRESS DEVICE COUNT FILE:LINE".
set_of() {
	set=$1
	shift
	case_ "faults_none_$set"
	echo "$*" >"$dir/$set.command"
	run "$*" "$dir/right.$set" "" "" # cuDNN's plans are kept from here on
	run "$*" "$dir/right.$set" "" "$dir/$set.raw" || fail "exit code $?: $(cat "$dir/right.$set/stderr")"
	sort -u -k2,2 "$dir/$set.raw" | awk '$2 != "0x0" { print $2 }' >"$dir/addresses"
	! awk '$2 == "0x0" && $1 != "work"' "$dir/$set.raw" | grep . >"$dir/log" || fail "nobody knows where: $(cat "$dir/log")"
	# shellcheck disable=SC2046 # several words
	addr2line -e "$emulated/difftp" $(cat "$dir/addresses") | sed 's|.*/cuda/|cuda/|; s/ .*//' | paste -d ' ' "$dir/addresses" - |
		awk 'NR == FNR { at[$1] = $2; next } { print $0, $2 == "0x0" ? "-" : at[$2] }' - "$dir/$set.raw" >"$dir/$set.sites"
	! grep ' ??' "$dir/$set.sites" >"$dir/log" || fail "nobody knows where: $(cat "$dir/log")"
	done_
}

# faults DEVICE RANK [CALLS]: those of the set that no set before had, and those whose names match CALLS; in processes on that device, "" for any.
: >"$dir/faults"
: >"$dir/seen"
faults() {
	awk -v set="$set" -v device="$1" -v rank="$2" -v again="${3:-^$}" 'FILENAME != ARGV[2] { seen[$1 " " $2]; next }
		(device == "" || device == "@" $3) && (!(($1 " " $2) in seen) || $1 ~ again) { k = $1 " " $2 " " $5; n[k] = $4 > n[k] ? $4 : n[k] }
		END { for (k in n) for (i = 1; i <= n[k]; i += n[k] > 1 ? n[k] - 1 : 1) print set, rank, device == "" ? "-" : device, i, k }' \
		"$dir/seen" "$dir/$set.sites" >>"$dir/faults"
}
seen() {
	cat "$dir/$set.sites" >>"$dir/seen"
}

# one_fault FOLDER SET RANK DEVICE N CALL ADDRESS FILE:LINE: the command fails and names the call, its file and the rank; or it does without,
# says so where something is missed, and draws the right picture.
one_fault() {
	at=$1 out=$1/out call=$6 file=${8%:*}
	case_ "fault_$2_rank_$3_$6:$5_$8"
	fault=$6:$5${4#-}
	[ "$7" = 0x0 ] || fault=$fault+$7
	run "$(cat "$dir/$2.command")" "$at" "$fault" "$at/sites"
	rc=$?
	case $call in
	cudaLaunchKernelExC) call=dtp_k_ ;; # the kernel's own name says more
	work) call="illegal memory access" file='cuda/[a-z_]*\.cu*' ;;
	cudnnBackend*) file="\($file\|cuda/dnn_api.c\)" ;;
	esac
	if grep -q -e 'emulator (' -e Sanitizer "$at/stderr"; then
		fail "the runtime is used wrongly, or something is left"
	fi
	case $rc in
	0)
		diff -r "$out" "$dir/right.$2/out" || fail "another picture"
		made=$(awk -v call="$6" -v at="$7" -v device="$4" \
			'$1 == call && $2 == at && (device == "-" || device == "@" $3) && $4 > n { n = $4 } END { print n + 0 }' "$at/sites")
		[ "$made" -gt 0 ] || fail "nobody called"
		if [ "$made" -lt "$5" ]; then # how often one looks is a matter of time
			name="$name: called but $made times"
		else
			name="$name: it goes on"
			case $call in
			cuda*Destroy | cublasLt*Destroy | cudnnDestroy | cudaFree* | cudaMemGetInfo | cudaStreamSynchronize) ;; # nothing is missed
			cudaStreamQuery) # what is given back is waited for by cudaFree too
				[ "$file" = cuda/wait.c ] || grep -q "$call.*$file:[0-9]" "$at/stderr" || fail "it is not told"
				;;
			cudnnBackend*) ;; # another plan does as well
			*) grep -q "$call.*$file:[0-9]" "$at/stderr" || fail "it is not told" ;;
			esac
		fi
		;;
	1 | 2)
		grep -q "$call" "$at/stderr" || fail "the call is not named"
		grep -q "$file:[0-9]" "$at/stderr" || fail "its file is not named"
		grep -q -e "rank $3 " -e '^difftp: --device' -e '^difftp: the GPUs cannot be used' "$at/stderr" || fail "neither a rank nor the start is named"
		[ -z "$(ls -A "$out")" ] || fail "files are left: $(ls -A "$out")"
		;;
	124) fail "it hangs" ;;
	*) fail "exit code $rc" ;;
	esac
	! pgrep -f -- "$out/" >"$at/left" || fail "processes are left: $(cat "$at/left")"
	[ -z "$why" ] || fail "$fault: $(cat "$at/stderr")"
	done_
}

# share OF WORKER: every so manieth of the faults.
share() {
	failures=0
	awk -v of="$1" -v n="$2" 'NR % of == n' "$dir/faults" >"$dir/share.$2"
	while read -r set rank device n call address site; do
		one_fault "$dir/fault.$2" "$set" "$rank" "$device" "$n" "$call" "$address" "$site"
	done <"$dir/share.$2"
	finish
}

picture="-p fox --height 32 --width 32 --seed 1 --max-sequence-length 16 --timeout 900 --no-metadata"
klein="$emulated/difftp --model tests/models/klein-tiny $picture -o @/out/fox.png"
# What users run: the second step becomes a graph, the third is launched as one.
set_of bf16 "$klein --steps 3"
faults "" 0
seen
# Beside the calls that only several ranks make, those that all ranks must then do without.
set_of ranks "$klein --steps 3 --tp-degree 2"
faults @0 0
faults @1 1 '^cuda(Graph|StreamBegin|StreamEnd)|^work$'
seen
# Replicas that read together have a communicator beside those of their ranks.
set_of replicas "$emulated/difftp --model tests/models/klein-tiny $picture --steps 1 --tp-degree 2 --dp-degree 2 -n 2 -o @/out/fox_{index}.png"
faults @1 1 '^nccl'
seen
# Without plans that were kept: of convolutions, then of attention.
set_of convolutions "XDG_CACHE_HOME=@/cache $klein --steps 1 --attention plain"
faults "" 0
seen
set_of attention "XDG_CACHE_HOME=@/cache $emulated/difftp --model tests/models/klein-tiny $picture --steps 1 --attention cudnn \
	--output-type latent -o @/out/fox.safetensors"
faults "" 0
seen
set_of fp32 "$klein --steps 1 --dtype fp32"
faults "" 0 '^work$'
seen
set_of reference "$klein --steps 1 --dtype fp32 --image tests/reference/klein-edit-tiny/input_ref_a.png"
faults "" 0
seen
set_of guided "$emulated/difftp --model tests/models/dev-tiny $picture --steps 1 --dtype fp32 -o @/out/fox.png"
faults "" 0
seen
set_of one_gpu "CUDA_VISIBLE_DEVICES=3 $klein --steps 1 --dtype fp32 --tp-degree 2 --oversubscribe"
faults "" '[01]'
seen
set_of peak "$emulated/difftp bench --model tests/models/klein-tiny -p fox --height 32 --width 32 --seed 1 --steps 1 --max-sequence-length 16 --json"
faults "" 0
seen
set_of synthetic "$emulated/difftp bench --synthetic --config tests/models/klein-tiny --height 32 --width 32 --seed 1 --steps 1 --tp-degree 1 \
	--max-sequence-length 16 --json"
faults "" 0
seen
# Rows of no multiple of 16 bytes.
uneven_model
# shellcheck disable=SC2154 # m: its folder
set_of uneven "$emulated/difftp bench --model $m --tp-degree 3 -p fox --height 32 --width 32 --seed 1 --steps 1 --max-sequence-length 16 --json"
faults @1 1
seen

workers=
for w in $(seq 0 $(($(nproc) - 1))); do
	share "$(nproc)" "$w" >"$dir/said.$w" 2>&1 &
	workers="$workers $!"
done
for w in $workers; do
	wait "$w" || failures=$((failures + 1))
done
cat "$dir"/said.*

# Lines with calls that no set comes to: tests/emu has the faults of some, and a call in answer to a fault would need two at once.  What only asks
# for the text or the code of an error is left out; the calls of dnn_api.c are counted where it is asked for them.
calls='\b(cuda|cublasLt|cudnn)[A-Z][A-Za-z0-9]*\(|dtp_k_[a-z0-9_]*\(|dtp_dnn_(make|set|set_part|get|get_text|finish|end)\('
calls="$calls|NCCL\\(c, [A-Z]|(nccl\\.|nccl->|f->)(Mem|Comm|Send|Recv|Group)[A-Za-z]*\\("
grep -nE "$calls" cuda/*.c | grep -vE '^cuda/dnn_api|^[^:]*:[0-9]*:(/\*| \*)|cudaGet(LastError|ErrorString)\(|cudnnGetVersion|cublasLtGetStatusString' |
	cut -d : -f 1,2 | sort -u >"$dir/all"
cut -d ' ' -f 5 "$dir/seen" | sort -u | comm -23 "$dir/all" - >"$dir/unreached"
echo "note $(wc -l <"$dir/unreached") of $(wc -l <"$dir/all") lines of cuda/X.c with calls are reached by no set:" \
	"$(sort -V "$dir/unreached" | awk -F : '{ printf "%s%s", $1 == last ? ", " : (last ? "; " : "") $1 ":", $2; last = $1 }')"
finish
