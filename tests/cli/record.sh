#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The record in a PNG: what it holds, what --from makes of it, what inspect prints, what is refused.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
model=tests/models/klein-tiny
small='--height 64 --width 64 --steps 2 --max-sequence-length 32'
mkdir "$dir/o"

run() { # ARGUMENT...
	"$DIFFTP" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 0 ] || fail "difftp $*: exit code $rc: $(cat "$dir/stderr")"
}
says() { # EXPRESSION: a line of stderr
	grep -Eq -- "$1" "$dir/stderr" || fail "no line of stderr matches '$1': $(cat "$dir/stderr")"
}
silent() { # EXPRESSION: no line of stderr
	grep -E -- "$1" "$dir/stderr" >"$dir/found" && fail "stderr: $(cat "$dir/found")"
}
same() { # FILE FILE
	cmp "$1" "$2" >"$dir/diff" 2>&1 || fail "other bytes: $(cat "$dir/diff")"
}
again() { # PNG ARGUMENT...: drawn again, to the byte, without a word of warning
	png=$1
	shift
	rm -f "$dir/o/again.png"
	run --from "$png" -o "$dir/o/again.png" "$@"
	silent '^warning: '
	same "$png" "$dir/o/again.png"
}

# ---- the same bytes
case_ from_draws_the_same_bytes
# shellcheck disable=SC2086 # words
{
	run --model $model --prompt 'ein Füchslein, "rot" 🦊
zweite Zeile' $small --max-sequence-length 64 --tp-degree 2 -o "$dir/a.png" --guidance-scale 3
	again "$dir/a.png"
	run --model $model --prompt '' $small --dtype fp32 --exact-timesteps --seed 18446744073709551615 -o "$dir/b.png"
	again "$dir/b.png"
	run --model tests/models/klein-base-tiny --prompt x --negative-prompt y --guidance-scale 2.7 --guidance-passes in-turn $small \
		--seed 5 -o "$dir/c.png"
	again "$dir/c.png"
	run --model tests/models/dev-tiny --prompt x --system-message Draw. $small --seed 5 -o "$dir/d.png"
	again "$dir/d.png"
}
done_

case_ what_has_no_effect_is_not_recorded
# shellcheck disable=SC2086 # words
{
	run --model $model --prompt x $small --seed 1 --tp-degree 2 -o "$dir/auto.png"
	run --model $model --prompt x $small --seed 1 --tp-degree 2 --overlap on -o "$dir/on.png"
}
same "$dir/auto.png" "$dir/on.png"
done_

case_ from_finds_all_that_was_read
echo '{"transformer_blocks.*.ff.linear_in": "packed_colwise", "transformer_blocks.*.ff.linear_out": "rowwise"}' >"$dir/plan.json"
# shellcheck disable=SC2086 # words
{
	run --model $model --prompt x $small --seed 1 --tp-degree 2 --tp-plan "$dir/plan.json" --lora tests/models/loras/peft.safetensors:0.7 \
		--lora tests/models/loras/kohya.safetensors --transformer $model/transformer \
		--image tests/reference/klein-edit-tiny/input_ref_b.png --image tests/reference/klein-edit-tiny/input_ref_a.png -o "$dir/e.png"
	again "$dir/e.png"
	run --model $model --prompt x $small --seed 1 --save-prompt-embeds "$dir/x.safetensors"
	run --model $model --prompt-embeds "$dir/x.safetensors" --height 64 --width 64 --steps 1 --seed 1 -o "$dir/f.png"
	again "$dir/f.png"
	run --model $model --prompt x --height 96 --width 64 --steps 1 --seed 7 --output-type latent --max-sequence-length 32 -o "$dir/n.safetensors"
	"$TESTBIN/tool_damage" tensor "$dir/n.safetensors" latents shape "[1, 128, 6, 4]" || fail "tool_damage"
	run --model $model --prompt x --steps 1 --max-sequence-length 32 --latents "$dir/n.safetensors" -o "$dir/g.png"
	again "$dir/g.png"
}
done_

case_ from_an_image_of_several_and_of_a_batch
# shellcheck disable=SC2086 # words
{
	run --model $model --prompt x $small --seed 5 -n 3 --dp-degree 2 -o "$dir/many.png"
	again "$dir/many_2.png"
	printf 'a\n{"prompt": "b", "steps": 1, "width": 96, "output": "b.png"}\n' >"$dir/lines"
	run --model $model --prompts "$dir/lines" $small --seed 9 -o "$dir/batch"
	again "$dir/batch/0000.png"
	again "$dir/batch/b.png"
}
done_

case_ defaults_do_not_change_a_recorded_picture
mkdir -p "$dir/config/difftp"
printf 'steps = 7\nguidance-scale = 2\nlora = tests/models/loras/peft.safetensors\nexact-timesteps = yes\nheight = 96\nthreads = 3\n' >"$dir/config/difftp/config"
export XDG_CONFIG_HOME="$dir/config"
again "$dir/a.png"
says ', 3 threads$'
unset XDG_CONFIG_HOME
done_

# ---- what the command line says instead
case_ options_beside_from_replace_the_recorded
run --from "$dir/a.png" --steps 1 --tp-degree 2 -o "$dir/o/x.png"
says "^$dir/a.png: --steps is '1' instead of the recorded '2'$"
silent 'tp-degree is|^warning: '
run --from "$dir/a.png" --seed 3 --prompt 'a cat' -n 2 -o "$dir/o/y.png"
says "^$dir/a.png: --prompt is 'a cat' instead of the recorded 'ein F"
says "^$dir/a.png: --seed is '3' instead of the recorded '[0-9]+'$"
says "^wrote $dir/o/y_1.png \(64x64, seed 4\)$"
run --from "$dir/e.png" --lora tests/models/loras/peft.safetensors --image tests/reference/klein-edit-tiny/input_ref_a.png -o "$dir/o/z.png"
says "^$dir/e.png: --lora is 'tests/models/loras/peft.safetensors' instead of the recorded 'tests/models/loras/peft.safetensors:0.7, test"
silent '^warning: '
run --from "$dir/f.png" --prompt y -o "$dir/o/p.png"
silent '^warning: '
run --from "$dir/g.png" --seed 1 -o "$dir/o/q.png"
says '^wrote .*/q.png \(64x96, seed 1\)$'
done_

# ---- what has changed
case_ from_warns_of_what_has_changed
cp -r $model "$dir/m"
# shellcheck disable=SC2086 # words
run --model "$dir/m" --prompt x $small --seed 1 -o "$dir/old.png"
again "$dir/old.png" --model "$dir/m"
sed -i 's/"rope_theta": 2000/"rope_theta": 2001/' "$dir/m/transformer/config.json"
vae=vae/diffusion_pytorch_model.safetensors
head=$("$DIFFTP" inspect $model/$vae --json | sed -n 's/.*"header_bytes":[^0-9]*\([0-9]*\).*/\1/p')
{
	head -c "$head" $model/$vae
	tail -c "+$((head + 1))" $model/$vae | LC_ALL=C tr '\000-\376\377' '\001-\377\000'
} >"$dir/m/$vae"
run --from "$dir/old.png" -o "$dir/o/changed.png"
what='not what it was drawn with \(another checksum\): the picture may differ$'
says "^warning: $dir/old.png: the model's configuration or tokenizer is $what"
says "^warning: $dir/old.png: the VAE is $what"
[ "$(grep -c '^warning: ' "$dir/stderr")" -eq 2 ] || fail "other warnings: $(cat "$dir/stderr")"
sed 's/linear_in": "packed_colwise"/linear_in": {"style": "packed_colwise"}/; s/}$/, "norm_out.linear": "rowwise_split_input"}/' "$dir/plan.json" \
	>"$dir/other.json" && mv "$dir/other.json" "$dir/plan.json"
run --from "$dir/e.png" -o "$dir/o/plan.png"
says "^warning: $dir/e.png: the plan is $what"
mv "$dir/m" "$dir/moved"
run --from "$dir/old.png" --model $model -o "$dir/o/back.png"
says "^$dir/old.png: --model is '$model' instead of the recorded '$dir/m'$"
silent '^warning: '
done_

case_ a_file_that_is_not_there_is_not_an_empty_one
cp -r $model "$dir/lacking"
rm -r "$dir/lacking/tokenizer"
# shellcheck disable=SC2086 # words
run --model $model --prompt x $small --seed 1 --save-prompt-embeds "$dir/lacking.safetensors" -o "$dir/o/whole.png"
run --model "$dir/lacking" --prompt-embeds "$dir/lacking.safetensors" --height 64 --width 64 --steps 1 --seed 1 -o "$dir/lacking.png"
again "$dir/lacking.png"
mkdir "$dir/lacking/tokenizer"
: >"$dir/lacking/tokenizer/tokenizer.json"
run --from "$dir/lacking.png" -o "$dir/o/lacking.png"
says "^warning: $dir/lacking.png: the model's configuration or tokenizer is $what"
done_

expect from_a_model_that_is_gone 2 '^$' "^difftp: model folder '$dir/m' does not exist" --from "$dir/old.png" -o "$dir/o/gone.png"
# ---- inspect
case_ inspect_prints_the_record
run inspect "$dir/e.png"
for line in 'difftp = [0-9.]+' 'class = Flux2KleinPipeline' "model = $model" 'prompt = x' 'seed = 1' 'tp_degree = 2' 'device = cpu' \
	'lora = tests/models/loras/peft.safetensors:0.7' 'sha256.transformer = [0-9a-f]{64}' 'sha256.image = [0-9a-f]{64}' \
	"tp_plan = $dir/plan.json" 'exact_timesteps = false'; do
	grep -Eqx "  $line" "$dir/stdout" || fail "no line '$line': $(cat "$dir/stdout")"
done
run inspect "$dir/a.png" --json
[ "$("$TESTBIN/tool_json" "$dir/stdout" record.prompt)" = 'ein Füchslein, "rot" 🦊
zweite Zeile' ] || fail "the prompt is $("$TESTBIN/tool_json" "$dir/stdout" record.prompt)"
[ "$("$TESTBIN/tool_json" "$dir/stdout" record.height)" = 64 ] || fail "no height: $(cat "$dir/stdout")"
done_

case_ parameters_for_other_programs
grep -aq 'tEXtparameters' "$dir/c.png" || fail "no tEXt"
grep -aq '^Negative prompt: y$' "$dir/c.png" || fail "no negative prompt"
grep -aq '^Steps: 2, Sampler: Euler, CFG scale: 2.7, Seed: 5, Size: 64x64, Model: klein-base-tiny, Version: difftp [0-9.]*' "$dir/c.png" ||
	fail "$(strings "$dir/c.png" | head -n 5)"
grep -aq 'iTXtparameters' "$dir/a.png" || fail "no iTXt where the prompt is not ASCII"
grep -aq ', CFG scale: 1, Distilled CFG Scale: 4, ' "$dir/d.png" || fail "$(strings "$dir/d.png" | head -n 5)"
done_

case_ no_metadata
run --from "$dir/c.png" --no-metadata -o "$dir/o/bare.png"
grep -aEq 'tEXt|iTXt|zTXt' "$dir/o/bare.png" && fail "there is a text"
run --model $model --prompts "$dir/lines" --height 64 --steps 1 --no-metadata --max-sequence-length 32 -o "$dir/bare"
grep -aEq 'tEXt|iTXt|zTXt' "$dir/bare/0000.png" && fail "there is a text in a batch's image"
done_

# ---- mistakes
none="holds no record of difftp"
refuse from_without_a_record "'$dir/o/bare.png' $none: it was drawn by another program, with --no-metadata, or an editor has dropped it$" \
	--from "$dir/o/bare.png" -o "$dir/o/no.png"
sed 's/iTXtdifftp/iTXtnobody/' "$dir/c.png" >"$dir/foreign.png"
refuse from_with_a_wrong_checksum "'$dir/foreign.png' " --from "$dir/foreign.png" -o "$dir/o/no.png"
refuse from_into_no_folder "cannot write '$dir/none/x.png': the folder '$dir/none' does not exist$" --from "$dir/a.png" -o "$dir/none/x.png"
refuse from_over_itself "'$dir/c.png' exists: --force replaces it" --from "$dir/c.png" -o "$dir/c.png"
case_ from_over_itself_by_force
cp "$dir/c.png" "$dir/before.png"
run --from "$dir/c.png" --force -o "$dir/c.png"
same "$dir/before.png" "$dir/c.png"
done_
refuse from_a_file_that_is_not_there "cannot open '$dir/none.png': No such file or directory$" --from "$dir/none.png"
refuse from_a_jpeg "'tests/images/420.jpg' is no PNG file$" --from tests/images/420.jpg
refuse from_a_folder "'tests' is a folder, expected a PNG file$" --from tests
head -c 300 "$dir/a.png" >"$dir/cut.png"
refuse from_a_truncated_file "'$dir/cut.png' is a damaged PNG file: " --from "$dir/cut.png"
refuse from_with_a_batch '--from draws what one picture was drawn of: it cannot be given with --prompts$' --from "$dir/a.png" --prompts "$dir/lines"
refuse from_with_a_degree_that_does_not_fit ".*degree 5 does not divide" --from "$dir/a.png" --tp-degree 5 -o "$dir/o/no.png"
refuse inspect_without_a_record "'$dir/o/bare.png' $none" inspect "$dir/o/bare.png"
refuse inspect_checks_no_picture "'$dir/a.png' is a picture: --check is about tensors$" inspect "$dir/a.png" --check
[ ! -e "$dir/o/no.png" ] || echo "not ok nothing_is_drawn_of_what_is_refused"
finish
