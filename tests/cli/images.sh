#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Reference images on the command line: sizes, what is said of them, what is refused.
. tests/lib.sh
model=tests/models/klein-tiny
a=tests/reference/klein-edit-tiny/input_ref_a.png b=tests/reference/klein-edit-tiny/input_ref_b.png
draw="--model $model --prompt fox --steps 1 --max-sequence-length 32 --seed 1"

# shellcheck disable=SC2086 # lists of words
{
	expect first_image_gives_the_size 0 '^$' 'wrote .* \(96x80, seed 1\)$' $draw --image $a --image $b --tp-degree 2 -o "$dir/a.png"
	expect references_are_announced 0 '^$' '^Flux2KleinPipeline: 96x80, 1 step, .*, 1 image, 2 references, bf16,' \
		$draw --image $a --image $b -o "$dir/b.png"
	expect one_side_given 0 '^$' 'wrote .* \(96x64, seed 1\)$' $draw --image $a --height 64 -o "$dir/c.png"
	expect bench_runs_with_references 0 '"reference_images":[[:space:]]*1' '.' bench $draw --image $a --json --repeat 2

	# The plan counts the tokens in each step, and the encoder's phase; a run without images has neither.
	case_ plan_counts_references
	for n in 0 1 2; do
		set --
		[ $n -ge 1 ] && set -- "$@" --image $a
		[ $n -ge 2 ] && set -- "$@" --image $b
		"$DIFFTP" plan --model $model --height 80 --width 96 --dtype fp32 --json "$@" >"$dir/plan$n" 2>"$dir/err" ||
			fail "exit code $?: $(cat "$dir/err")"
		"$TESTBIN/tool_json" "$dir/plan$n" reference_images >"$dir/value" 2>&1
		[ "$(cat "$dir/value")" = $n ] || fail "reference_images is $(cat "$dir/value"), not $n"
	done
	flops() { # N PHASE
		"$TESTBIN/tool_json" "$dir/plan$1" "phases.$2.flops"
	}
	[ "$(flops 0 1)" != "$(flops 1 1)" ] && [ "$(flops 1 1)" != "$(flops 2 1)" ] || fail "a step costs the same with images"
	[ "$("$TESTBIN/tool_json" "$dir/plan2" phases.3.name)" = references ] || fail "no phase of the references"
	"$TESTBIN/tool_json" "$dir/plan0" phases.3.name >/dev/null 2>&1 && fail "a phase of references where there are none"
	"$DIFFTP" plan --model $model --image $a >"$dir/text" 2>&1
	grep -Eq '^  references +0 +[0-9.]+ kB +[0-9.]+ MB ' "$dir/text" || fail "no line of the references' memory: $(cat "$dir/text")"
	grep -q '96x80, 4 steps, 512 text tokens, 1 reference image$' "$dir/text" || fail "the first line: $(head -n 1 "$dir/text")"
	done_

	case_ order_matters
	"$DIFFTP" $draw --height 64 --width 64 --image $a --image $b -o "$dir/ab.png" -q --no-metadata
	"$DIFFTP" $draw --height 64 --width 64 --image $b --image $a -o "$dir/ba.png" -q --no-metadata
	cmp -s "$dir/ab.png" "$dir/ba.png" && fail "the pictures are equal"
	done_

	refuse absent_image "cannot open '$dir/none.png': No such file or directory$" $draw --image "$dir/none.png"
	refuse folder_as_image "'tests' is a folder, expected an image file$" $draw --image tests
	refuse other_format "'tests/lib.sh' is no image file of a known format; PNG, JPEG and WebP files are read$" $draw --image tests/lib.sh
	refuse cmyk "'tests/images/bad_cmyk.jpg' is a CMYK picture \(4 colour components\); an RGB or grey one is needed$" \
		$draw --image tests/images/bad_cmyk.jpg
	refuse small_image "'tests/images/420.jpg' has 43x29 pixels; a reference image needs at least 64 on each side$" \
		$draw --image $a --image tests/images/420.jpg
	refuse eleven_images "option '--image' is given more than 10 times$" $draw --image $a --image $a --image $a --image $a --image $a \
		--image $a --image $a --image $a --image $a --image $a --image $a

	head -c 5000 $a >"$dir/cut.png"
	refuse truncated_image "'$dir/cut.png' is a damaged PNG file: the file is truncated$" $draw --image "$dir/cut.png"

	# The encoder's weights are looked for only where they are needed.
	cp -r $model "$dir/model"
	"$TESTBIN/tool_damage" rename "$dir/model/vae/diffusion_pytorch_model.safetensors" encoder.conv_in.weight encoder.conv_xx.weight \
		>"$dir/tool" 2>&1 || echo "tool_damage: $(cat "$dir/tool")"
	expect encoder_not_needed 0 '^$' 'wrote' --model "$dir/model" --prompt fox --steps 1 --max-sequence-length 32 --height 64 --width 64 \
		-o "$dir/d.png"
	refuse encoder_lacks_a_tensor ".*'encoder\.conv_in\.weight'" --model "$dir/model" --prompt fox --image $a
}
finish
