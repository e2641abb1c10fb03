#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The steps of a run as one CUDA graph, on emulated GPUs: when they are, that nothing else comes of it, and what is told where they cannot be.
. tests/lib.sh
. tests/emulated.sh
: "${TESTBIN:?the folder of the test programs}"
export DIFFTP_EMU_STREAMS=deferred

# draw NAME MODEL OPTION...: $dir/NAME gets latents, NAME.calls how often each process called each function.
draw() {
	name_=$1 model=$2
	shift 2
	rm -f "$dir/$name_.calls"
	DIFFTP_EMU_CALLS="$dir/$name_.calls" "$emulated/difftp" --model "tests/models/$model" -p fox --height 64 --width 64 --seed 1 \
		--max-sequence-length 16 --output-type latent --force -o "$dir/$name_.safetensors" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null ||
		fail "exit code $?: $(cat "$dir/stderr")"
}
# calls NAME FUNCTION: of each process that called it, one number a line, ascending.
calls() {
	awk -v f="$2" '$1 == f { print $2 }' "$dir/$1.calls" | sort -n
}
# calls_are NAME FUNCTION NUMBERS
calls_are() {
	got=$(calls "$1" "$2" | tr '\n' ' ')
	[ "$got" = "$3" ] || fail "$2 was called '$got' times, not '$3', in $1"
}
same() {
	cmp "$dir/$1" "$dir/$2" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
}

case_ steps_are_one_graph
draw graph klein-tiny --dtype fp32 --steps 4
draw plain klein-tiny --dtype fp32 --steps 4 --graph off
draw stages klein-tiny --dtype fp32 --steps 4 --dump-stages "$dir/stages"
calls_are graph cudaGraphInstantiate '1 '
calls_are graph cudaGraphLaunch '3 '
calls_are plain cudaGraphLaunch ''
calls_are stages cudaStreamBeginCapture ''
same graph.safetensors plain.safetensors
same graph.safetensors stages.safetensors # whose stages are the golden tests'
done_

case_ sums_over_ranks_are_in_the_graph
draw graph klein-base-tiny --tp-degree 2 --steps 4
draw plain klein-base-tiny --tp-degree 2 --steps 4 --graph off
calls_are graph cudaGraphLaunch '3 3 '
same graph.safetensors plain.safetensors
# From the third step on, nothing else is given to the GPU: as many sums and kernels are asked for, however many steps there are.
draw more klein-base-tiny --tp-degree 2 --steps 6
calls_are more cudaGraphLaunch '5 5 '
calls_are more ncclAllReduce "$(calls graph ncclAllReduce | tr '\n' ' ')"
calls_are more cudaLaunchKernelExC "$(calls graph cudaLaunchKernelExC | tr '\n' ' ')"
done_

case_ steps_take_no_memory
draw two dev-tiny --steps 2
draw six dev-tiny --steps 6
draw six_plain dev-tiny --steps 6 --graph off
n=$(calls two cudaMalloc)
calls_are six cudaMalloc "$n "
calls_are six_plain cudaMalloc "$n "
done_

# Rank 0 decodes between two images, which needs more scratch than the steps did.
case_ images_share_a_graph
for graph in auto off; do
	"$emulated/difftp" --model tests/models/klein-tiny -p fox --height 64 --width 64 --seed 1 --max-sequence-length 16 --steps 2 --tp-degree 2 \
		--num-images-per-prompt 3 --graph $graph --no-metadata -o "$dir/$graph.png" >"$dir/stdout" 2>"$dir/stderr" </dev/null ||
		fail "exit code $?: $(cat "$dir/stderr")"
done
draw three klein-tiny --tp-degree 2 --steps 2 --num-images-per-prompt 3
calls_are three cudaGraphInstantiate '1 1 '
calls_are three cudaGraphLaunch '5 5 '
for i in 0 1 2; do
	same auto_$i.png off_$i.png
done
done_

case_ prompts_have_a_graph_each
printf 'a fox\na cat\n' >"$dir/prompts"
for graph in auto off; do
	rm -f "$dir/calls"
	DIFFTP_EMU_CALLS="$dir/calls" "$emulated/difftp" --model tests/models/klein-tiny --prompts "$dir/prompts" --height 32 --width 32 --seed 1 \
		--max-sequence-length 16 --steps 3 --graph $graph --no-metadata -o "$dir/batch-$graph/" >"$dir/stdout" 2>"$dir/stderr" </dev/null ||
		fail "exit code $?: $(cat "$dir/stderr")"
	mv "$dir/calls" "$dir/batch-$graph.calls"
done
calls_are batch-auto cudaGraphInstantiate '2 '
calls_are batch-auto cudaGraphLaunch '4 '
for png in "$dir"/batch-auto/*.png; do
	cmp "$png" "$dir/batch-off/${png##*/}" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
done
done_

case_ ranks_that_share_a_gpu_have_none
CUDA_VISIBLE_DEVICES=3 draw shared klein-tiny --dtype fp32 --steps 4 --tp-degree 2 --oversubscribe
grep -q "no CUDA graph of a step, .*: ranks that share a GPU sum through the host's memory, which waits" "$dir/stderr" ||
	fail "nothing is told: $(cat "$dir/stderr")"
calls_are shared cudaStreamBeginCapture ''
done_

# bench NAME OPTION...
bench() {
	name_=$1
	shift
	"$emulated/difftp" bench --model tests/models/klein-tiny --height 32 --width 32 --max-sequence-length 16 --steps 4 --tp-degree 2 --json \
		"$@" >"$dir/$name_.json" 2>"$dir/stderr" </dev/null || fail "exit code $?: $(cat "$dir/stderr")"
}
# says NAME MEMBER VALUE
says() {
	got=$("$TESTBIN/tool_json" "$dir/$1.json" "$2" 2>&1)
	[ "$got" = "$3" ] || fail "$2 of $1 is '$got', not '$3'"
}
case_ bench_tells_and_counts
bench graph
bench plain --graph off
says graph step_graph true
says graph step_graph_refused null
says plain step_graph false
says plain step_graph_refused '--graph off'
for i in 0 1 2 3 4 5 6; do
	[ "$("$TESTBIN/tool_json" "$dir/graph.json" phases.$i.name)" = step ] || continue
	for member in calls reductions reduce_bytes; do
		says graph phases.$i.$member "$("$TESTBIN/tool_json" "$dir/plain.json" phases.$i.$member)"
	done
	says graph phases.$i.reduce_seconds null
	says plain phases.$i.reduce_seconds null
	found=yes
done
[ "${found:-}" ] || fail "there is no phase 'step'"
done_
finish
