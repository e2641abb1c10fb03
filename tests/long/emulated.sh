#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CUDA backend without a GPU: the other golden cases once, and the failure of every call of the runtime and of NVIDIA's libraries
# in turn.  What fails must be named, with the rank; nothing may hang, leak or go on wrongly.
. tests/lib.sh
. tests/emulated.sh

for what in klein-tiny_96x64 klein-tiny_default512 klein-tiny-sharded_64x64 klein-base-tiny_64x64 dev-tiny_64x64 klein-edit-tiny_one \
	klein-edit-tiny_two klein-heads12-tiny_64x64; do
	golden deferred "golden_stages_${what}_tp2"
done

# draw DEGREE FAULT COUNTS: a picture of each replica in so many steps, with that fault; how often each function was called goes to COUNTS.
steps=1 replicas=1
draw() {
	rm -f "$dir"/fox_*.png
	DIFFTP_EMU_FAIL=$2 DIFFTP_EMU_CALLS=$3 timeout 180 "$emulated/difftp" --model tests/models/klein-tiny --prompt "a red fox" \
		--height 64 --width 64 --steps "$steps" --seed 1 --dtype fp32 --tp-degree "$1" --dp-degree "$replicas" -n "$replicas" \
		--timeout 60 -o "$dir/fox_{index}.png" >"$dir/out" 2>"$dir/err" </dev/null
}

# one_fault DEGREE CALL FAULT RANK: the run fails and names the call and the rank; or it does without, and draws the right picture.
one_fault() {
	case_ "fault_$3_dp$replicas"
	draw "$1" "$3" ""
	rc=$?
	call=$2
	[ "$call" != cudaLaunchKernelExC ] || call=dtp_k_ # the kernel's own name says more
	[ "$call" != cudaMalloc ] || call='out of GPU memory\|cudaMalloc'
	[ "$call" != work ] || call="illegal memory access"
	if grep -q 'emulator (' "$dir/err"; then
		fail "the runtime is used wrongly, or something is left"
	fi
	case $rc in
	0) cmp -s "$dir/fox_0000.png" "$dir/right$1.png" || fail "another picture" ;;
	1 | 2)
		grep -q "$call" "$dir/err" || fail "the call is not named"
		grep -q 'cuda/[a-z_]*\.cu*:[0-9]' "$dir/err" || fail "no file is named"
		grep -q -e "rank $4 " -e '^difftp: --device' -e '^difftp: the GPUs cannot be used' "$dir/err" || fail "neither a rank nor the start is named"
		[ ! -e "$dir/fox_0000.png" ] || fail "a picture is there"
		;;
	*) fail "exit code $rc" ;;
	esac
	[ -z "$why" ] || fail "$(cat "$dir/err")"
	done_
}

# each_call DEGREE DEVICE RANK NAMES: the first and the last of the calls that a process makes to each function of these names.
each_call() {
	case_ "faults_none_tp$1_dp$replicas"
	rm -f "$dir/calls"
	draw "$1" "" "$dir/calls" || fail "exit code $?: $(cat "$dir/err")"
	mv "$dir/fox_0000.png" "$dir/right$1.png"
	sort -k1,1 -k2,2nr "$dir/calls" | awk -v names="$4" '$1 != last && $1 ~ names { print } { last = $1 }' >"$dir/most"
	[ -s "$dir/most" ] || fail "no calls"
	done_
	while read -r call n; do
		one_fault "$1" "$call" "$call:1$2" "$3"
		[ "$n" -lt 2 ] || one_fault "$1" "$call" "$call:$n$2" "$3"
	done <"$dir/most"
}
each_call 1 "" 0 '^(cu|work)'
each_call 2 @1 1 '^(nccl|work|cudaStreamWaitEvent|cudaStreamCreateWithPriority|cudaEventRecord|cudaDeviceGetStream)'
# Replicas have a communicator beside those of their ranks.
replicas=2
each_call 2 @1 1 '^nccl'
replicas=1
# The second step becomes a graph, the third is launched as one.
steps=3
each_call 1 "" 0 '^cuda(Graph|StreamBegin|StreamEnd)'
each_call 2 @1 1 '^cuda(Graph|StreamBegin|StreamEnd|Event|StreamWait)'
finish
