#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prompts that are encoded once: --save-prompt-embeds, --prompt-embeds.
. tests/lib.sh
damage=${TESTBIN:?the folder of the test programs}/tool_damage
m=$dir/m
small="--height 64 --width 64 --steps 2 --seed 1 --no-metadata --force" # the pictures alone are compared

run() { # OPTION...
	"$DIFFTP" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null || fail "exit code $?: $(cat "$dir/stderr")"
}
same() {
	cmp -s "$dir/$1.png" "$dir/$2.png" || fail "$1 and $2 differ"
}

# shellcheck disable=SC2086 # lists of options
for dtype in fp32 bf16; do
	case_ encoded_apart_from_drawing_$dtype
	for part in dev klein-base; do
		rm -rf "$m"
		cp -r tests/models/$part-tiny "$m"
		run --model "$m" --prompt "a red cube" $small --dtype $dtype --tp-degree 2 --max-sequence-length 192 -o "$dir/whole.png"
		rm "$m/transformer/"*.safetensors "$m/vae/"*.safetensors
		run --model "$m" --prompt "a red cube" --dtype $dtype --tp-degree 2 --max-sequence-length 192 \
			--save-prompt-embeds "$dir/$part-$dtype.safetensors"
		grep -q "^wrote $dir/$part-$dtype.safetensors (embeddings of the prompt" "$dir/stderr" || fail "$(cat "$dir/stderr")"
		[ "$(grep -c '^wrote' "$dir/stderr")" = 1 ] || fail "more was written: $(cat "$dir/stderr")"
		rm -r "$m"
		cp -r tests/models/$part-tiny "$m"
		rm -r "$m/text_encoder" "$m/tokenizer"
		run --model "$m" --prompt-embeds "$dir/$part-$dtype.safetensors" $small --dtype $dtype --tp-degree 2 -o "$dir/apart.png"
		same whole apart
	done
	done_
done

case_ encoded_and_drawn
# shellcheck disable=SC2086
run --model tests/models/klein-tiny --prompt "a red cube" $small --save-prompt-embeds "$dir/klein.safetensors" -o "$dir/both.png"
# shellcheck disable=SC2086
run --model tests/models/klein-tiny --prompt-embeds "$dir/klein.safetensors" $small -o "$dir/again.png"
same both again
done_

case_ plan_without_a_text_encoder
run plan --model "$m" --prompt-embeds "$dir/klein-base-bf16.safetensors" --height 64 --width 64
grep -q '^text_encoder: not needed, the prompt is encoded already$' "$dir/stdout" || fail "$(head -n 5 "$dir/stdout")"
grep -q ', 192 text tokens, 2 passes a step together$' "$dir/stdout" || fail "$(head -n 1 "$dir/stdout")"
run plan --model "$m" --prompt-embeds "$dir/klein-base-bf16.safetensors" --height 64 --width 64 --json
[ "$("$TESTBIN/tool_json" "$dir/stdout" components.0.weight_bytes)" = 0 ] || fail "the text encoder weighs something"
# What there is of the model stays by either name.
for option in "--offload none" --keep-text-encoder; do
	# shellcheck disable=SC2086
	run plan --model "$m" --prompt-embeds "$dir/klein-base-bf16.safetensors" --height 64 --width 64 $option
	grep -q '^  transformer: .* resident; kept as --offload none says' "$dir/stdout" || fail "$option: $(cat "$dir/stdout")"
done
done_

# ---- refusals: the whole message, with DIR for the temporary folder
bad() { # NAME MESSAGE OPTION...
	case_ "$1"
	printf 'difftp: %s\n' "$2" >"$dir/want"
	shift 2
	"$DIFFTP" --model "$m" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 2 ] || fail "exit code $rc, not 2"
	sed "s|$dir|DIR|g" "$dir/stderr" | cmp -s - "$dir/want" || fail "$(cat "$dir/stderr")"
	done_
}
e=$dir/klein-base-fp32.safetensors
# damaged NAME MESSAGE TOOL_ARGUMENT...
damaged() {
	name=$1 message=$2
	shift 2
	rm -f "$dir/e.safetensors"
	cp "$e" "$dir/e.safetensors"
	what=$1
	shift
	"$damage" "$what" "$dir/e.safetensors" "$@"
	bad "$name" "$message" --prompt-embeds "$dir/e.safetensors"
}
bad embeds_missing "cannot open 'DIR/none.safetensors': No such file or directory" --prompt-embeds "$dir/none.safetensors"
damaged embeds_without_the_tensor "'DIR/e.safetensors' lacks tensor 'prompt_embeds' of shape [1, tokens, 120]" rename prompt_embeds embeds
damaged embeds_without_the_negative "'DIR/e.safetensors' has no 'negative_prompt_embeds', and at guidance 4 there are two passes a step; --guidance-scale 1 needs none" rename negative_prompt_embeds negative
damaged embeds_of_several_prompts "'DIR/e.safetensors': tensor 'prompt_embeds' has the shape [2, 96, 120], expected [1, tokens, 120]" tensor prompt_embeds shape '[2, 96, 120]'
damaged embeds_of_integers "'DIR/e.safetensors': tensor 'prompt_embeds' has the dtype I32; supported are BF16, F16 and F32" tensor prompt_embeds dtype '"I32"'
damaged embeds_of_another_width "'DIR/e.safetensors': tensor 'prompt_embeds' has the width 240, the transformer takes 120: it was encoded for another model" tensor prompt_embeds shape '[1, 96, 240]'
for option in "--prompt x" "--prompts x" "--negative-prompt x" "--system-message x" "--max-sequence-length 64" "--save-prompt-embeds f"; do
	# shellcheck disable=SC2086
	bad "embeds_and${option%% *}" "option '--prompt-embeds' stands for the encoded prompt: ${option%% *} does not go with it" \
		--prompt-embeds "$e" $option
done
bad dump_of_nothing "option '--dump-stages' is about a picture, but with --save-prompt-embeds nothing is drawn unless --output is given" \
	--prompt x --save-prompt-embeds "$dir/f" --dump-stages "$dir/g"
m=tests/models/klein-tiny
bad save_over_the_output "--output and --save-prompt-embeds would both write 'DIR/f.png'" \
	--prompt x --height 64 --width 64 --save-prompt-embeds "$dir/f.png" -o "$dir/f.png"
echo mine >"$dir/mine"
for where in "--save-prompt-embeds $dir/mine" "--save-prompt-embeds $dir/mine -o $dir/f.png" "--dump-stages $dir/mine -o $dir/f.png"; do
	# shellcheck disable=SC2086
	bad "over_a_file_that_is_there: ${where%% *}" "'DIR/mine' exists: --force replaces it; or give another name" --prompt x $where
done
case_ what_was_refused_is_left
[ "$(cat "$dir/mine")" = mine ] || fail "it was replaced"
[ ! -e "$dir/f.png" ] || fail "there is a picture"
"$DIFFTP" --model "$m" --prompt x --save-prompt-embeds "$dir/mine" --force -q || fail "exit code $? with --force"
[ "$(cat "$dir/mine")" != mine ] || fail "--force does not replace it"
done_
bad save_into_no_folder "cannot write 'DIR/none/f': the folder 'DIR/none' does not exist" --prompt x --save-prompt-embeds "$dir/none/f"

finish
