#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks on emulated GPUs: which rank has which, what is refused, how they sum.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
. tests/emulated.sh
model=tests/models/klein-tiny
export DIFFTP_EMU_STREAMS=deferred

run() { # OPTION...: two ranks draw a small picture
	"$emulated/difftp" --model $model -p fox --height 32 --width 32 --steps 1 --seed 1 --max-sequence-length 16 --device cuda \
		--tp-degree 2 "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
says() {
	grep -q -- "$1" "$dir/stderr" || fail "'$1' is not said: $(cat "$dir/stderr")"
}

case_ fewer_gpus_than_ranks_are_refused
CUDA_VISIBLE_DEVICES=3 run -o "$dir/x.png"
[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '2 ranks need a GPU each, this machine has 1 that can be used'
says '--oversubscribe'
done_

case_ ranks_on_gpus_of_their_own_sum_through_nccl
run --dtype fp32 --overlap auto -o "$dir/nccl.png" || fail "exit code $rc: $(cat "$dir/stderr")"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
done_

case_ ranks_that_share_a_gpu_draw_the_same
CUDA_VISIBLE_DEVICES=3 run --dtype fp32 --oversubscribe -o "$dir/shared.png"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
# The stand-in for NCCL adds in the order of the ranks, as ranks on CPUs do.
cmp -s "$dir/nccl.png" "$dir/shared.png" || fail "the pictures differ"
done_

case_ gpus_of_several_kinds_are_named
DIFFTP_EMU_OTHER=1 run -o "$dir/mixed.png"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says "warning: the ranks' GPUs differ (rank 0: Emulated GPU, rank 1: Other GPU): all wait for the slowest, and rank 1's has the least memory, 8.6 GB"
[ "$(grep -c 'GPUs differ' "$dir/stderr")" -eq 1 ] || fail "said more than once"
DIFFTP_EMU_OTHER=2 run -o "$dir/equal.png"
! grep -q 'GPUs differ' "$dir/stderr" || fail "$(cat "$dir/stderr")"
done_

# Each kind of attention once, with what does it and why.
case_ attention_is_told
run -o "$dir/told.png"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '^attention, heads of 16, by cuDNN 9[0-9.]*: it has a plan for them$'
says '^causal attention, heads of 16, by the plain kernel: attention that is causal is not in the versions'
run --dtype fp32 -o "$dir/told.png" --force
says '^attention, heads of 16, by the plain kernel: its configurations round F32 to TF32$'
run --attention plain -o "$dir/told.png" --force
says '^attention, heads of 16, by the plain kernel: --attention plain$'
done_

# fault NAME CALL:N MESSAGE: a call that fails ends the run, which says what, where and of which rank.
fault() {
	case_ "$1"
	DIFFTP_EMU_FAIL=$2 run -o "$dir/x.png"
	[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	says "rank [01] .*$3:[0-9]"
	done_
}
fault a_fault_of_cudnn_is_told_with_its_rank cudnnBackendExecute:1 'cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED (5000), cuda/dnn.c'
fault a_fault_of_nccl_is_told_with_its_rank ncclAllReduce:3 'ncclAllReduce failed: unhandled system error (2), cuda/comm_nccl.c'

# --overlap on, which the file of defaults says, is in the record of a picture whose ranks it was for; above, the ranks shared a GPU.
case_ overlap_is_recorded_where_it_has_an_effect
run --dtype fp32 -o "$dir/parts.png"
"$emulated/difftp" inspect "$dir/parts.png" >"$dir/stdout" || fail "exit code $?"
grep -q '^ *overlap = on$' "$dir/stdout" || fail "$(cat "$dir/stdout")"
done_

# The ranks' numbers among those that can be used are not CUDA's.
case_ gpus_that_are_too_old_are_passed_over
export DIFFTP_EMU_ARCH=75 DIFFTP_EMU_OTHER_ARCH=90
DIFFTP_EMU_OTHER=1 run --dtype fp32 -o "$dir/newer.png"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
cmp -s "$dir/parts.png" "$dir/newer.png" || fail "the pictures differ"
DIFFTP_EMU_OTHER=7 run -o "$dir/x.png"
[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '2 ranks need a GPU each, this machine has 1 that can be used (Other GPU)'
unset DIFFTP_EMU_ARCH DIFFTP_EMU_OTHER_ARCH
done_

# refused WHAT SETTING OPTION...: by the first process, before any rank is started.
refused() {
	what=$1 setting=$2
	shift 2
	rm -f "$dir/calls"
	eval "export $setting"
	DIFFTP_EMU_CALLS="$dir/calls" run "$@" -o "$dir/x.png"
	unset "${setting%%=*}"
	[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	says "^difftp: $what"
	! grep -q 'rank [01]' "$dir/stderr" || fail "a rank was started: $(cat "$dir/stderr")"
	[ ! -e "$dir/calls" ] || fail "a rank was started: $(cat "$dir/calls")"
}
case_ gpus_that_are_too_old
refused '--device cuda: no GPU can be used: GPU [0-7] (Emulated GPU) has compute capability 7.5, at least 8.0 (Ampere) is needed$' DIFFTP_EMU_ARCH=75
done_

case_ a_driver_that_is_too_old
refused '--device cuda: the NVIDIA driver runs programs of CUDA 12.4, this one was built with CUDA 1[3-9]\.[0-9]*: update the driver$' \
	DIFFTP_EMU_DRIVER=12040
done_

# lacks NAME WHAT SETTING OPTION...
lacks() {
	case_ "$1"
	shift
	refused "$@"
	says '--device cpu computes without it'
	done_
}
lacks no_cublaslt "'cublasLtCreate' is missing" DIFFTP_EMU_MISSING=cublasLt
lacks no_nccl "'ncclGetVersion' is missing" DIFFTP_EMU_MISSING=nccl
lacks no_cudnn 'pictures need cuDNN, .*is missing' DIFFTP_EMU_MISSING=cudnn
lacks old_cudnn 'pictures need cuDNN, .*cuDNN 9.7.1 is too old: expected 9.8' DIFFTP_EMU_CUDNN=90701
lacks no_cudnn_for_attention '--attention cudnn: .*is missing' DIFFTP_EMU_MISSING=cudnn --output-type latent --attention cudnn

case_ no_cudnn_no_nccl_and_no_need_of_them
DIFFTP_EMU_MISSING=cudnn run --output-type latent -o "$dir/a.safetensors"
[ $rc -eq 0 ] || fail "latents: exit code $rc: $(cat "$dir/stderr")"
CUDA_VISIBLE_DEVICES=3 DIFFTP_EMU_MISSING=nccl run --oversubscribe -o "$dir/a.png"
[ $rc -eq 0 ] || fail "a shared GPU: exit code $rc: $(cat "$dir/stderr")"
done_

# Each rank looks for itself, before it loads: another launcher may have put it on another machine.
case_ a_rank_without_nccl_says_so_before_it_loads
member() { # RANK
	# shellcheck disable=SC2086 # several words
	RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 ${host:-} "$emulated/difftp" --model $model -p fox --height 32 --width 32 --steps 1 --seed 1 \
		--max-sequence-length 16 --device cuda --tp-degree 2 --launcher torchrun --rendezvous "file:$dir/meet" -o "$dir/x.png" \
		>"$dir/out.$1" 2>"$dir/err.$1" </dev/null
}
(DIFFTP_EMU_MISSING=nccl member 1) &
other=$!
member 0
rc=$?
cp "$dir/err.0" "$dir/stderr"
wait $other
[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says "'ncclGetVersion' is missing"
! grep -q '^load ' "$dir/stderr" || fail "weights were read: $(cat "$dir/stderr")"
done_

# Another name of the host is another host.
if unshare --uts true 2>/dev/null; then
	case_ a_host_that_decodes_nothing_needs_no_cudnn
	printf 'hostname beta\nexec "$@"\n' >"$dir/beta"
	for lacking in 1 0; do
		rm -f "$dir/meet" "$dir/x.png"
		(
			host="unshare --uts sh $dir/beta"
			export CUDA_VISIBLE_DEVICES=1
			[ $lacking -eq 0 ] || export DIFFTP_EMU_MISSING=cudnn
			member 1
		) &
		other=$!
		export CUDA_VISIBLE_DEVICES=0
		[ $lacking -eq 1 ] || export DIFFTP_EMU_MISSING=cudnn
		member 0
		rc=$?
		unset CUDA_VISIBLE_DEVICES DIFFTP_EMU_MISSING
		cp "$dir/err.0" "$dir/stderr"
		wait $other
		[ $lacking -eq 0 ] || [ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr" "$dir/err.1")"
	done
	[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	says 'pictures need cuDNN'
	done_
else
	echo "skip a_host_that_decodes_nothing_needs_no_cudnn: no namespace of a host's name can be made"
fi

# The stand-in for NCCL sums an element in the same order whatever the parts; half a layer is as good a product as the whole.
case_ sums_beside_products_are_the_same
for split in 2:fp32 2:bf16 4:fp32; do
	tp=${split%:*}
	for overlap in on off auto; do
		DIFFTP_EMU_CALLS="$dir/calls.$overlap" run --tp-degree $tp --height 64 --width 64 --dtype ${split#*:} --overlap $overlap --no-metadata \
			--force --dump-stages "$dir/$overlap.safetensors" -o "$dir/$overlap.png"
		[ $rc -eq 0 ] || fail "tp $split, $overlap: exit code $rc: $(cat "$dir/stderr")"
	done
	cmp -s "$dir/on.safetensors" "$dir/off.safetensors" || fail "tp $split: the stages differ"
	cmp -s "$dir/on.png" "$dir/off.png" || fail "tp $split: the pictures differ"
done
sums() { # how many parts were summed
	awk '$1 == "ncclAllReduce" { n += $2 } END { print n }' "$dir/calls.$1"
}
[ "$(sums on)" -gt "$(sums off)" ] || fail "nothing was summed in parts: $(sums on) sums, off $(sums off)"
[ "$(sums auto)" -eq "$(sums off)" ] || fail "so few tokens were summed in parts: $(sums auto) sums, off $(sums off)"
done_

# The pictures are the same, whatever stays on the GPUs; what is loaded again for the second is.
case_ components_stay_or_make_room
for choice in none:1 stage:2; do
	run -n 2 --offload "${choice%:*}" -o "$dir/${choice%:*}.png"
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	loads=$(grep -c '^load transformer' "$dir/stderr")
	[ "$loads" = "${choice#*:}" ] || fail "${choice%:*} loads the transformer $loads times"
done
says "^text encoder: ranks 0 and 1 (GPU), phase 'text_encoder'; freed before the transformer as --offload stage says$"
for i in 0 1; do
	cmp -s "$dir/none_$i.png" "$dir/stage_$i.png" || fail "picture $i differs"
done
done_

case_ sums_in_parts_count_as_planned
size="--model $model --height 32 --width 32 --max-sequence-length 16 --device cuda --tp-degree 2 --dtype fp32 --json"
# shellcheck disable=SC2086 # several words
"$emulated/difftp" bench $size --steps 1 --seed 1 --overlap on >"$dir/bench" 2>"$dir/stderr" || fail "bench: $(cat "$dir/stderr")"
# shellcheck disable=SC2086
"$emulated/difftp" plan $size >"$dir/plan" 2>"$dir/stderr" || fail "plan: $(cat "$dir/stderr")"
made=$("$TESTBIN/tool_json" "$dir/bench" phases.3.name phases.3.reductions phases.3.reduce_bytes)
planned=$("$TESTBIN/tool_json" "$dir/plan" phases.1.name phases.1.reductions phases.1.reduce_bytes)
[ "$made" = "$planned" ] || fail "made: $made; planned: $planned"
done_

case_ a_fault_of_the_memory_is_told_with_its_rank
for n in 40 700; do # work while weights are loaded, and later
	DIFFTP_EMU_FAIL=work:$n:214@1 run -o "$dir/x.png"
	[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	says 'rank 1 .*cuda[A-Z][A-Za-z]*: uncorrectable ECC error encountered (214), cuda/[a-z_]*\.c[cu]*:[0-9]'
	says "^the GPU's memory had an error that it could not correct: reset or replace it (nvidia-smi -q -d ECC)$"
	[ ! -e "$dir/x.png" ] || fail "a picture is left"
done
done_

# ---- weights that are computed
case_ synthetic_weights_on_gpus
"$emulated/difftp" bench --synthetic --config tests/models/klein-tiny --height 32 --width 32 --steps 1 --seed 1 --max-sequence-length 16 \
	--device cuda --tp-degree 2 -q --json >"$dir/stdout" 2>"$dir/stderr"
rc=$?
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
for fact in device=cuda synthetic=true phases.0.bytes_read=0; do
	got=$("$TESTBIN/tool_json" "$dir/stdout" "${fact%=*}")
	[ "$got" = "${fact#*=}" ] || fail "${fact%=*} is $got"
done
done_
# The same on GPUs as on one rank of CPUs, which the tests ask for by name.
program synthetic_runs_on_gpus env DIFFTP="$emulated/difftp" "$TESTBIN/test_synthetic" synthetic_runs_klein
finish
