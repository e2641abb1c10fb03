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

# batch NAME MODEL OPTION...: $dir/NAME/ gets the pictures of the lines in $dir/lines, NAME.calls as above.
batch() {
	name_=$1 model=$2
	shift 2
	rm -rf "$dir/$name_" "$dir/$name_.calls"
	DIFFTP_EMU_CALLS="$dir/$name_.calls" "$emulated/difftp" --model "tests/models/$model" --prompts "$dir/lines" --height 64 --width 64 \
		--max-sequence-length 16 --steps 3 --no-metadata -o "$dir/$name_/" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null ||
		fail "exit code $?: $(cat "$dir/stderr")"
}
line() { # NAME MEMBER...: a line whose picture is NAME.png
	name_=$1
	shift
	echo "{\"prompt\":\"a $name_\",\"output\":\"$name_.png\",\"seed\":${#name_}$*}"
}
lines() { # TEXT...
	printf '%s\n' "$@" >"$dir/lines"
}
# drawn_by_kernels NAME MODEL OPTION...: the pictures in $dir/NAME are those of no graph, whose transformer was loaded for each of them.
drawn_by_kernels() {
	together=$1
	shift
	batch plain "$@" --graph off --offload stage
	calls_are plain cudaGraphLaunch ''
	diff -r -x '*.jsonl' "$dir/$together" "$dir/plain" >"$dir/log" 2>&1 || fail "$*: $(cat "$dir/log")"
}

# Guided by a second pass, at once or in turn, or with a reference.
case_ prompts_of_a_shape_share_a_graph
lines "$(line fox)" "$(line cat)" "$(line horse)"
for of in "klein-tiny --image tests/reference/klein-edit-tiny/input_ref_a.png" klein-base-tiny \
	"klein-base-tiny --guidance-passes in-turn" dev-tiny; do
	# shellcheck disable=SC2086 # words
	batch together $of --tp-degree 2
	calls_are together cudaGraphInstantiate '1 1 '
	calls_are together cudaGraphLaunch '8 8 '
	# shellcheck disable=SC2086
	drawn_by_kernels together $of --tp-degree 2
done
for prompt in cat horse; do
	lines "$(line $prompt)"
	batch alone dev-tiny --tp-degree 2
	calls_are alone cudaGraphLaunch '2 2 '
	same alone/$prompt.png together/$prompt.png
done
done_

# As many tokens in another order of sides are the same work; another number of them, of passes or of the prompt's is not.
case_ another_shape_takes_the_place_of_the_graph
lines "$(line fox ',"width":96')" "$(line cat ',"height":96')" "$(line horse)" "$(line monkey ',"guidance_scale":1')" \
	"$(line vulture ',"guidance_scale":1,"max_sequence_length":24')" "$(line mouse ',"width":96')"
batch turns klein-base-tiny --tp-degree 2
calls_are turns cudaGraphInstantiate '5 5 '
calls_are turns cudaGraphLaunch '13 13 '
drawn_by_kernels turns klein-base-tiny --tp-degree 2
done_

case_ a_transformer_that_goes_takes_its_graph_along
lines "$(line fox)" "$(line cat)"
batch stage klein-tiny --offload stage --tp-degree 2
calls_are stage cudaGraphInstantiate '2 2 '
calls_are stage cudaGraphLaunch '4 4 '
drawn_by_kernels stage klein-tiny --tp-degree 2
draw stage klein-tiny --steps 4 --num-images-per-prompt 2 --offload stage
calls_are stage cudaGraphInstantiate '2 '
calls_are stage cudaGraphLaunch '6 '
done_

# The same pictures.
case_ what_cannot_be_recorded_is_tried_once
export DIFFTP_EMU_FAIL=cudaGraphInstantiate:1
batch faulty klein-tiny --tp-degree 2
unset DIFFTP_EMU_FAIL
calls_are faulty cudaGraphLaunch ''
calls_are faulty cudaStreamBeginCapture '1 1 '
grep -q 'no CUDA graph of a step, each kernel is launched by itself: cudaGraphInstantiate: out of memory' "$dir/stderr" ||
	fail "nothing is told: $(cat "$dir/stderr")"
diff -r -x '*.jsonl' "$dir/faulty" "$dir/stage" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
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
