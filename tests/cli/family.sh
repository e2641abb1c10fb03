#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the members of the family do differently: guidance, negative prompts, system messages.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
small="--height 64 --width 64 --max-sequence-length 192 --steps 2 --seed 1 --dtype fp32 --no-metadata --force" # the pictures alone are compared

# draw MODEL PICTURE OPTION...
draw() {
	model=tests/models/$1 picture=$dir/$2.png
	shift 2
	# shellcheck disable=SC2086 # a list of options
	"$DIFFTP" --model "$model" --prompt "a red cube" $small "$@" -o "$picture" >"$dir/stdout" 2>"$dir/stderr" </dev/null ||
		fail "exit code $?: $(cat "$dir/stderr")"
}
same() {
	cmp -s "$dir/$1.png" "$dir/$2.png" || fail "$1 and $2 differ"
}
differ() {
	cmp -s "$dir/$1.png" "$dir/$2.png" && fail "$1 and $2 are the same"
}
warns() { # MESSAGE, or nothing
	grep '^warning: ' "$dir/stderr" >"$dir/warnings"
	printf '%s' "${1:+warning: $1
}" | cmp -s - "$dir/warnings" || fail "stderr: $(cat "$dir/stderr")"
}

case_ guidance_of_a_base_model
draw klein-base-tiny base
warns
draw klein-base-tiny four --guidance-scale 4 --negative-prompt ''
same base four
draw klein-base-tiny away --negative-prompt "a blue ball"
warns
differ base away
draw klein-base-tiny two --guidance-scale 2
differ base two
draw klein-base-tiny one --guidance-scale 1 --negative-prompt "a blue ball"
warns "--negative-prompt has no effect: Flux2KleinPipeline takes one pass a step at guidance 1"
draw klein-base-tiny half --guidance-scale 0.5
same one half
done_

case_ a_negative_prompt_that_is_cut
draw klein-base-tiny cut --max-sequence-length 16 --negative-prompt "a blue ball in the sea below a cloud"
grep -q "^warning: the prompt is longer than 16 tokens; this part was cut off: '" "$dir/stderr" &&
	grep -q "^warning: the negative prompt is longer than 16 tokens; this part was cut off: 'low a cloud<" "$dir/stderr" ||
	fail "stderr: $(cat "$dir/stderr")"
done_

case_ guidance_of_a_distilled_model
draw klein-tiny distilled
warns
draw klein-tiny guided --guidance-scale 7
warns "--guidance-scale has no effect: the model is distilled"
same distilled guided
draw klein-tiny away --negative-prompt x -q
warns "--negative-prompt has no effect: Flux2KleinPipeline takes one pass a step at guidance 4, the model is distilled"
same distilled away
done_

case_ guidance_of_dev
draw dev-tiny dev
draw dev-tiny four --guidance-scale 4
same dev four
warns
draw dev-tiny seven --guidance-scale 7
differ dev seven
draw dev-tiny away --negative-prompt x
warns "--negative-prompt has no effect: Flux2Pipeline takes one pass a step at guidance 4"
same dev away
done_

case_ system_message
draw dev-tiny given --system-message "You are an AI that reasons about image descriptions. You give structured responses focusing on object relationships, object
attribution and actions without speculation."
warns
same dev given
draw dev-tiny other --system-message "Draw."
differ dev other
draw klein-tiny none --system-message "Draw."
warns "--system-message has no effect: the prompts of Flux2KleinPipeline have none"
same distilled none
done_

finish
