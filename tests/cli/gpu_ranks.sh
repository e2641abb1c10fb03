#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks on emulated GPUs: which rank has which, what is refused, how they sum.
. tests/lib.sh
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
says '2 ranks need a GPU each, 1 is visible'
says '--oversubscribe'
done_

case_ ranks_on_gpus_of_their_own_sum_through_nccl
run --dtype fp32 -o "$dir/nccl.png" || fail "exit code $rc: $(cat "$dir/stderr")"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
done_

case_ ranks_that_share_a_gpu_draw_the_same
CUDA_VISIBLE_DEVICES=3 run --dtype fp32 --oversubscribe -o "$dir/shared.png"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
# The stand-in for NCCL adds in the order of the ranks, as ranks on CPUs do.
cmp -s "$dir/nccl.png" "$dir/shared.png" || fail "the pictures differ"
done_

case_ a_fault_of_nccl_is_told_with_its_rank
DIFFTP_EMU_FAIL=ncclAllReduce:3 run -o "$dir/x.png"
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says 'rank [01] .*ncclAllReduce failed: unhandled system error (2), cuda/comm_nccl.c:'
done_
finish
