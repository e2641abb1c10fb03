#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A rank that dies, stops or hangs in each stage; the end of the launcher; a rank that is slow.  In each case: one message
# that names rank, stage and cause, the exit code, within seconds; no process and no file is left.
# FAULTS=all tries every fault in every stage (tests/long/faults.sh).
. tests/lib.sh
model=tests/models/klein-tiny
mkdir "$dir/out"
${CC:-cc} -shared -fPIC -D_GNU_SOURCE -Icore -Icli -o "$dir/fault.so" tests/fault_preload.c -ldl || exit 1
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS
shm=$(ls -A /dev/shm 2>/dev/null)

# broken RANK STAGE WHAT [ARGUMENT...]: a small picture on two ranks, one of which fails.
broken() {
	rank=$1 stage=$2 what=$3
	shift 3
	rm -f "$dir/mark"
	begin=$(date +%s%N)
	LD_PRELOAD="$dir/fault.so" FAULT_RANK=$rank FAULT_STAGE=$stage FAULT_DO=$what FAULT_MARK="$dir/mark" \
		"$DIFFTP" --model $model --prompt "a red fox" --height 64 --width 64 --steps 4 --seed 1 --max-sequence-length 16 \
		--tp-degree 2 -o "$dir/out/x.png" --timeout 0.5 "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	took=$((($(date +%s%N) - begin) / 1000000))
	echo $rc >"$dir/rc"
}
processes() { # ids of the processes that were started for this picture
	pgrep -f -- "-o $dir/out/x.png"
}
nothing_left() {
	[ -z "$(processes)" ] || fail "processes are left: $(processes | tr '\n' ' ')"
	[ -z "$(ls -A "$dir/out")" ] || fail "files are left: $(ls -A "$dir/out")"
	[ "$(ls -A /dev/shm 2>/dev/null)" = "$shm" ] || fail "shared memory is left"
	rm -f "$dir"/out/* "$dir"/out/.[!.]*
}
one_message() { # EXPRESSION
	[ "$(grep -c '^difftp: ' "$dir/stderr")" -eq 1 ] || fail "not one message: $(cat "$dir/stderr")"
	grep -Eq -- "^difftp: $1" "$dir/stderr" || fail "the message is not '$1': $(grep '^difftp: ' "$dir/stderr")"
}
# dies NAME RANK STAGE WHAT CAUSE
dies() {
	case_ "fault_$1"
	broken "$2" "$3" "$4"
	[ -e "$dir/mark" ] || fail "it did not happen"
	[ $took -lt 10000 ] || fail "took $took ms"
	[ ! -s "$dir/stdout" ] || fail "stdout is not empty"
	place=$3
	[ "$place" = naming ] && place='write'
	[ "$4" = memory ] && place='' # felt when memory is asked for next, which may be in a later stage, or never
	if [ $rc -eq 0 ] && [ "$4" = memory ]; then
		rm -f "$dir/out/x.png"
	else
		[ $rc -eq 1 ] || fail "exit code $rc, not 1"
		one_message "rank $2 on [^ ]+ .*'$place[^']*'"
		[ -z "$5" ] || one_message ".*$5"
	fi
	nothing_left
	done_
}

cause() { # WHAT: what the message must say of it
	case $1 in
	kill) echo SIGKILL ;;
	stop) echo 'stopped .SIGSTOP' ;;
	abort) [ -n "$SANITIZED" ] || echo SIGABRT ;;
	segv) [ -n "$SANITIZED" ] || echo SIGSEGV ;;
	esac
}
# try WHAT RANK STAGE
try() {
	dies "$(printf '%s_rank_%s_%s' "$1" "$2" "$3" | tr -c 'a-z0-9_' _)" "$2" "$3" "$1" "$(cause "$1")"
}

# ---- ranks.  The picture is decoded and written by rank 0 alone.
shared='rendezvous load_text load_trans encode step_3' alone='load_vae decode write naming'
if [ "${FAULTS:-}" = all ]; then
	for what in kill stop exit abort segv memory; do
		for stage in $shared; do
			try $what 0 "$(echo $stage | tr _ ' ')"
			try $what 1 "$(echo $stage | tr _ ' ')"
		done
		for stage in $alone; do
			try $what 0 "$(echo $stage | tr _ ' ')"
		done
	done
else
	rank=0
	for stage in $shared; do
		try kill $rank "$(echo $stage | tr _ ' ')"
		rank=$((1 - rank))
	done
	for stage in $alone; do
		try kill 0 "$(echo $stage | tr _ ' ')"
	done
	try stop 1 'load trans'
	try stop 0 write
	try exit 1 encode
	try abort 0 'step 1'
	try memory 1 'load trans'
fi

# ---- files of the checkpoint
whole=$model
# spoilt WHAT RANK PART WHY: the file changes when a rank begins to load; any rank may be the first to notice.
spoilt() {
	case_ "fault_$1_$3"
	rm -rf "$dir/m"
	cp -r $whole "$dir/m"
	model=$dir/m
	FAULT_FILE=$(echo "$dir/m/$3"/*.safetensors)
	export FAULT_FILE
	broken "$2" "load $3" "$1"
	[ -e "$dir/mark" ] || fail "it did not happen"
	[ $took -lt 10000 ] || fail "took $took ms"
	[ $rc -eq 1 ] || fail "exit code $rc, not 1"
	one_message "rank [01] on [^ ]+ .*'load $3'.*: cannot read tensor '.*' of '$FAULT_FILE': the file $4"
	nothing_left
	done_
}
for part in text_encoder transformer; do
	spoilt truncate 0 $part 'had [0-9]+ bytes when it was opened and has [0-9]+ now$'
	spoilt modify 1 $part 'was modified since it was opened$'
done

# The same shapes, other values: a fine-tune.
rm -rf "$dir/m" "$dir/other"
cp -r $whole "$dir/m"
cp -r $whole "$dir/other"
for part in text_encoder transformer vae; do
	f=$(cd "$dir/m/$part" && echo *.safetensors)
	n=$("$DIFFTP" inspect "$dir/m/$part/$f" --json | sed -n 's/.*"header_bytes":[^0-9]*\([0-9]*\).*/\1/p')
	{
		head -c "$n" "$dir/m/$part/$f"
		tail -c "+$((n + 1))" "$dir/m/$part/$f" | LC_ALL=C tr '\000-\376\377' '\001-\377\000'
	} >"$dir/other/$part/$f"
done
# differs NAME RANK FILE WHAT WHOSE [ARGUMENT...]
differs() {
	case_ "fault_$1"
	export FAULT_OPEN="$dir/m/$3" FAULT_INSTEAD="$dir/other/$3"
	rank=$2 item=$4 whose=$5
	shift 5
	broken "$rank" none none "$@"
	[ $took -lt 10000 ] || fail "took $took ms"
	[ $rc -eq 1 ] || fail "exit code $rc, not 1"
	one_message "rank $rank on [^ ]+ .*'compare the ranks' models'.*: its $item has the checksum [0-9a-f]{16}, that of $whose is [0-9a-f]{16}: all ranks must read the same files$"
	nothing_left
	unset FAULT_OPEN FAULT_INSTEAD
	done_
}
differs other_transformer_rank_1 1 transformer/diffusion_pytorch_model.safetensors \
	"transformer \('$dir/m/transformer/diffusion_pytorch_model.safetensors'\)" 'rank 0'
differs other_text_encoder_rank_2_of_4 2 text_encoder/model.safetensors \
	"text_encoder \('$dir/m/text_encoder/model.safetensors'\)" 'rank 0 and others' --tp-degree 4
differs other_vae_rank_0_of_4 0 vae/diffusion_pytorch_model.safetensors \
	"vae \('$dir/m/vae/diffusion_pytorch_model.safetensors'\)" 'rank 1 and others' --tp-degree 4
sed 's/"rope_theta": 2000/"rope_theta": 2001/' "$dir/m/transformer/config.json" >"$dir/other/transformer/config.json"
differs other_configuration 1 transformer/config.json "configuration or tokenizer \(folder '$dir/m'\)" 'rank 0'
cp plans/flux2.json "$dir/m/plan.json"
echo '{"transformer_blocks.*.ff.linear_in": "packed_colwise", "transformer_blocks.*.ff.linear_out": "rowwise"}' >"$dir/other/plan.json"
differs other_plan 1 plan.json "plan \($dir/m/plan.json\)" 'rank 0' --tp-plan "$dir/m/plan.json"
model=$whole

# ---- a rank that is not at fault is held in a stage, so that the rest of the run can be looked at meanwhile
# held RANK STAGE [ARGUMENT...]: begins a run in the background; its launcher is $launcher.
held() {
	broken "$1" "$2" hang --timeout 60 &
	background=$!
	for _ in $(seq 200); do
		[ -e "$dir/mark" ] && break
		sleep 0.05
	done
	[ -e "$dir/mark" ] || fail "the rank did not come to '$2'"
	launcher=
	for p in $(processes); do
		grep -qz '^DIFFTP_RANK=' "/proc/$p/environ" || launcher=$p
	done
}
gone_within() { # SECONDS
	for _ in $(seq $(($1 * 20))); do
		[ -z "$(processes)" ] && return
		sleep 0.05
	done
	fail "processes are left after $1 s: $(processes | tr '\n' ' ')"
}

for signal in INT TERM HUP; do
	case_ "fault_signal_$signal"
	rm -f "$dir/mark"
	held 1 'step 2'
	kill -$signal "$launcher"
	gone_within 5
	wait $background
	[ "$(cat "$dir/rc")" -eq 130 ] || fail "exit code $(cat "$dir/rc"), not 130"
	one_message 'interrupted$'
	nothing_left
	done_
done
for stage in rendezvous 'step 2' naming; do
	case_ "fault_launcher_killed_$(echo "$stage" | tr ' ' _)"
	rm -f "$dir/mark"
	held 0 "$stage"
	kill -KILL "$launcher"
	gone_within 5
	wait $background
	nothing_left
	done_
done

case_ fault_rank_told_to_end
rm -f "$dir/mark"
held 0 'step 2'
for p in $(processes); do
	grep -qz '^DIFFTP_RANK=1$' "/proc/$p/environ" && kill -TERM "$p"
done
gone_within 5
wait $background
one_message 'rank 1 on .*SIGTERM'
nothing_left
done_

# Runs a tenth of the time, and takes several times the timeout for it.
case_ fault_slow_rank_finishes
(
	while [ ! -e "$dir/done" ]; do
		for p in $(processes); do
			grep -qz '^DIFFTP_RANK=1$' "/proc/$p/environ" 2>/dev/null || continue
			kill -STOP "$p" && sleep 0.18 && kill -CONT "$p"
		done 2>/dev/null
		sleep 0.02
	done
) &
slow=$!
broken 1 none none --steps 200
touch "$dir/done"
wait $slow
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
[ $took -gt 1000 ] || fail "it took $took ms only"
rm -f "$dir/out/x.png"
nothing_left
done_
finish
