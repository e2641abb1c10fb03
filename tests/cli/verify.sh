#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp verify: its table, its verdict, every documented key of its JSON.  What it finds is tested in test_verify.c.
. tests/lib.sh
model=tests/models/klein-tiny

verify() {
	"$DIFFTP" verify --model $model --height 64 --width 64 --max-sequence-length 32 --tp-degree 2 "$@" \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}

case_ table
verify
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
for row in 'text_encoder  embed_tokens' 'text_encoder  layers\.26' 'transformer   x_embedder' \
	'transformer   transformer_blocks\.1' 'transformer   single_transformer_blocks\.2' 'transformer   proj_out'; do
	grep -Eq "^$row +[0-9]+ +[0-9]+ +[0-9.e-]+ +[0-9.e-]+ +0\.016  ok$" "$dir/stdout" || fail "no row '$row': $(cat "$dir/stdout")"
done
[ "$(tail -n 1 "$dir/stdout")" = 'All agree.' ] || fail "$(cat "$dir/stdout")"
done_

case_ sums_in_bf16
verify --reduce-dtype bf16 -q
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stdout" "$dir/stderr")"
mv "$dir/stdout" "$dir/rounded"
verify -q
cmp -s "$dir/stdout" "$dir/rounded" && fail "the sums were the same in fp32"
done_

case_ every_layer_is_compared
# 27 layers of the text encoder with 11 modules each; 9 modules of the transformer outside its blocks.
awk '/^(text_encoder|transformer) / { n += $3 } END { exit n != 1 + 27 * 11 + 9 + 2 * 16 + 3 * 4 }' "$dir/stdout" ||
	fail "$(cat "$dir/stdout")"
done_

case_ beyond_the_tolerance
verify --dtype fp32 --tolerance 1e-12 -q
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
grep -Eq "^diverges first: text_encoder: 'layers\.[0-9]+\.[a-z_.]+', on .*rank.* \(rel\. RMS .*, max .*, tolerance 1e-12\)$" "$dir/stdout" ||
	fail "$(cat "$dir/stdout")"
grep -Eq "^difftp: .*the first that diverges is text_encoder: 'layers\." "$dir/stderr" || fail "$(cat "$dir/stderr")"
done_

case_ free_run
verify --free-run --steps 2 --dtype fp32
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
for row in 'text_encoder  text\.prompt_embeds' 'transformer   step\.1\.noise_pred' 'transformer   step\.1\.latents'; do
	grep -Eq "^$row +1 .* ok$" "$dir/stdout" || fail "no row '$row': $(cat "$dir/stdout")"
done
done_

case_ json
verify --json --tolerance 1e-12
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
keys=$(awk -F '|' '/^## Is it right/ { on = 1 } /^## Inspecting/ { on = 0 } on && /^[|] `/ { print $2 }' docs/running.md |
	tr -d '`,' | tr ' ' '\n' | grep . | sort -u)
[ "$(echo "$keys" | wc -w)" -ge 25 ] || fail "the documentation lists too few keys: $keys"
for key in $keys; do
	grep -q "\"$key\":" "$dir/stdout" || fail "no key '$key'"
done
for key in $(grep -o '"[a-z_]*":' "$dir/stdout" | tr -d '":' | sort -u); do
	echo "$keys" | grep -qx "$key" || fail "key '$key' is not documented"
done
done_

# ---- recorded stages

golden=tests/reference/klein-tiny/golden_64x64.safetensors
against_golden() { # what the file does not say
	"$DIFFTP" verify --model $model --against $golden --seed 42 --height 64 --width 64 --max-sequence-length 64 --dtype fp32 \
		--tp-degree 2 -q "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}

case_ against_diffusers
against_golden --prompt 'A cat holding a sign that says hello world'
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stdout" "$dir/stderr")"
[ "$(grep -Ec '^(start|text_encoder|transformer|vae) .* ok$' "$dir/stdout")" = 81 ] || fail "not 81 stages: $(cat "$dir/stdout")"
grep -qx "Not in the recording (2): 'step0.double.0.attn.add_k_proj', 'step0.double.0.attn.add_v_proj'" "$dir/stdout" ||
	fail "$(tail -n 3 "$dir/stdout")"
[ "$(tail -n 1 "$dir/stdout")" = 'All agree.' ] || fail "$(tail -n 3 "$dir/stdout")"
done_

case_ against_another_prompt
against_golden --prompt 'A dog holding a sign that says hello world'
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
grep -Eq "^diverges first: text_encoder: 'text\.input_ids', which is computed after 'nothing' \(rel\. RMS .*, tolerance 0\)$" "$dir/stdout" ||
	fail "$(cat "$dir/stdout")"
done_

case_ against_another_size
against_golden --prompt x --height 96
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
grep -q "stage 'step0.rope.img.cos' has the shape \[16, 16\] (F32), this run's has \[24, 16\] (F32): another model, size or prompt length" \
	"$dir/stderr" || fail "$(cat "$dir/stderr")"
done_

# A dump tells what was run: its prompt has quotes and another script, as users' do.
"$DIFFTP" generate --model $model --prompt "a \"red\" fox, 日落" --seed 9 --height 80 --width 64 --steps 3 --max-sequence-length 40 \
	--dtype fp32 --guidance-scale 2.5 -q -o "$dir/x.png" --dump-stages "$dir/dump.safetensors" || exit 1
expect against_a_dump 0 '^All agree\.$' '^$' verify --model $model --against "$dir/dump.safetensors" --tp-degree 4 --seed 9 -q --threads 4
expect against_in_bf16 0 '^All agree\.$' '^$' verify --model $model --against "$dir/dump.safetensors" --tp-degree 2 --dtype bf16 \
	--exact-timesteps -q
expect against_a_dump_json 0 '"mode":.*"against"' '^$' verify --model $model --against "$dir/dump.safetensors" -q --json
refuse another_seed_is_given "'.*/dump\.safetensors' was recorded with --seed '9', another is given; leave it out$" \
	verify --model $model --against "$dir/dump.safetensors" --seed 8
refuse another_prompt_is_given "'.*/dump\.safetensors' was recorded with --prompt 'a \"red\" fox, 日落', another is given" \
	verify --model $model --against "$dir/dump.safetensors" --prompt x
refuse no_recording "'?.*/none\.safetensors'?.*" verify --model $model --against "$dir/none.safetensors"
refuse two_modes '--against compares a whole run with a recording, --free-run with one rank; leave one out' \
	verify --model $model --against "$dir/dump.safetensors" --free-run
expect no_stage_in_common 1 '^$' "failed in 'compare': '.*/diffusion_pytorch_model\.safetensors' holds no stage of this run, as 'text\.input_ids' is one$" \
	verify --model $model --against $model/vae/diffusion_pytorch_model.safetensors --height 64 --width 64 -q --max-sequence-length 16

refuse memory_of_both_counts 'not enough memory: rank 0 needs [0-9.]+ MB at the peak, --max-memory allows 150 MB' \
	verify --model $model --height 64 --width 64 --tp-degree 2 --max-memory 150MB
refuse no_pictures "option '--output' is not one of this command's" verify --model $model --output x.png
finish
