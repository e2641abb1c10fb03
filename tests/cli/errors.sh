#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Bad input, one fault each: exit code 2, the whole message, nothing written, nothing started.
. tests/lib.sh
damage=${TESTBIN:?the folder of the test programs}/tool_damage
m=$dir/m

# A fresh copy of a fixture in $m.
model() {
	rm -rf "$m"
	cp -r "tests/models/${1:-klein-tiny}" "$m"
}
set_key() { # FILE KEY VALUE
	"$damage" json "$m/$1" "$2" "$3"
}
plan() { # TEXT: a plan file
	printf '%s' "$1" >"$dir/plan.json"
}

# bad NAME MESSAGE ARGUMENT...: the message is the whole of stderr, with DIR for the temporary folder.
bad() {
	case_ "$1"
	printf 'difftp: %s\n' "$2" >"$dir/want"
	shift 2
	mkdir -p "$dir/out"
	"$DIFFTP" --model "$m" --prompt x --height 64 --width 64 -o "$dir/out/x.png" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 2 ] || fail "exit code $rc, not 2"
	[ ! -s "$dir/stdout" ] || fail "stdout is not empty"
	[ -z "$(ls -A "$dir/out")" ] || fail "left behind: $(ls -A "$dir/out")"
	sed "s|$dir|DIR|g" "$dir/stderr" | diff - "$dir/want" >"$dir/diff" || fail "got (<) and wanted (>):
$(cat "$dir/diff")"
	rm -rf "$dir/out"
	done_
}

# ---- folders and files
model
bad folder_missing '' --model "$dir/none"
bad folder_is_a_file '' --model "$m/model_index.json"
bad folder_without_index '' --model "$m/vae"
rm -r "$m/scheduler"
bad component_missing ''
model
rm "$m/tokenizer/tokenizer.json"
bad tokenizer_missing ''

# ---- what is not supported
model
set_key model_index.json _class_name '"FluxPipeline"'
bad class_unsupported ''
model
set_key model_index.json transformer '["diffusers", "FluxTransformer2DModel"]'
bad class_of_a_component ''
for kind in bin pt ckpt gguf; do
	model
	rm "$m"/transformer/*.safetensors
	: >"$m/transformer/diffusion_pytorch_model.$kind"
	bad "weights_only_$kind" ''
done
model
set_key transformer/config.json quantization_config '{"quant_method": "bitsandbytes", "load_in_4bit": true}'
bad quantised_transformer ''
model
set_key text_encoder/config.json quantization_config '{"quant_method": "fp8"}'
bad quantised_text_encoder ''

# ---- JSON
model
printf '{\n  "num_layers": 2,\n  "eps" 1e-6\n}\n' >"$m/transformer/config.json"
bad json_malformed ''
printf '{"num_layers": 2' >"$m/transformer/config.json"
bad json_cut ''
: >"$m/transformer/config.json"
bad json_empty ''
printf '[1]' >"$m/transformer/config.json"
bad json_is_no_object ''

# ---- numbers
number() { # NAME FILE KEY VALUE MESSAGE
	model
	set_key "$2" "$3" "$4"
	bad "number_$1" "$5"
}
number heads_negative transformer/config.json num_attention_heads -8 ''
number heads_zero transformer/config.json num_attention_heads 0 ''
number heads_fraction transformer/config.json num_attention_heads 8.5 ''
number heads_text transformer/config.json num_attention_heads '"8"' ''
number heads_absurd transformer/config.json num_attention_heads 1000000000000 ''
number heads_huge transformer/config.json num_attention_heads 1e400 ''
number layers_absurd transformer/config.json num_layers 1000000000 ''
number single_layers_negative transformer/config.json num_single_layers -1 ''
number mlp_ratio_huge transformer/config.json mlp_ratio 1e300 ''
number rope_axes_do_not_add_up transformer/config.json axes_dims_rope '[4, 4, 4, 2]' ''
number hidden_missing text_encoder/config.json hidden_size - ''
number hidden_negative text_encoder/config.json hidden_size -40 ''
number kv_heads_do_not_divide text_encoder/config.json num_key_value_heads 3 ''
number vocabulary_huge text_encoder/config.json vocab_size 9223372036854775807 ''
number too_few_text_layers text_encoder/config.json num_hidden_layers 20 ''
number vae_groups_zero vae/config.json norm_num_groups 0 ''
number vae_groups_do_not_divide vae/config.json norm_num_groups 7 ''
number vae_channels_empty vae/config.json block_out_channels '[]' ''
number timesteps_negative scheduler/scheduler_config.json num_train_timesteps -1000 ''

# ---- plans and degrees
model
plan '{"transformer_blocks.*.attn.to_q": "colwize"}'
bad plan_unknown_style '' --tp-plan "$dir/plan.json" --tp-degree 2
plan '{"transformer_blocks.*.attn.to_queue": "colwise"}'
bad plan_matches_nothing '' --tp-plan "$dir/plan.json" --tp-degree 2
plan '{"transformer_blocks.*.attn.*": "colwise"}'
bad plan_two_stars '' --tp-plan "$dir/plan.json" --tp-degree 2
plan '{"a": }'
bad plan_malformed '' --tp-plan "$dir/plan.json"
bad plan_missing '' --tp-plan "$dir/none.json"
bad degree_does_not_divide '' --tp-degree 3
bad degree_too_large '' --tp-degree 16

# ---- sizes and lengths
bad size_not_a_multiple '' --height 100
bad size_too_small '' --width 8
bad length_without_room '' --max-sequence-length 100000

# ---- checkpoints
w=transformer/diffusion_pytorch_model.safetensors
model
truncate -s -1 "$m/$w"
bad weights_truncated ''
truncate -s 100 "$m/$w"
bad weights_header_longer_than_file ''
truncate -s 3 "$m/$w"
bad weights_without_header ''
model
"$damage" length "$m/$w" 18446744073709551615
bad weights_header_length_absurd ''
model
"$damage" tensor "$m/$w" x_embedder.weight data_offsets '[0, 32768]'
bad weights_overlap ''
model
"$damage" tensor "$m/$w" x_embedder.weight data_offsets '[0, 18446744073709551615]'
bad weights_out_of_range ''
model
"$damage" rename "$m/$w" x_embedder.weight x_embedder.wait
bad tensor_missing ''
model
"$damage" tensor "$m/$w" proj_out.weight shape '[64, 256]'
bad tensor_of_wrong_shape ''
model
"$damage" tensor "$m/$w" proj_out.weight dtype '"I16"'
bad tensor_of_wrong_dtype ''
model
"$damage" tensor "$m/$w" proj_out.weight dtype '"F8_E4M3"'
"$damage" tensor "$m/$w" proj_out.weight shape '[128, 256]'
bad tensor_of_8_bits ''
model klein-tiny-sharded
rm "$m/transformer/diffusion_pytorch_model-00003-of-00005.safetensors"
bad shard_missing ''
model klein-tiny-sharded
printf '{"weight_map": {"x": 3}}' >"$m/transformer/diffusion_pytorch_model.safetensors.index.json"
bad index_of_wrong_type ''

# ---- prompts and outputs
model
bad prompt_is_no_utf8 '' --prompt "$(printf 'a\377b')"
bad output_folder_missing '' -o "$dir/none/x.png"
bad output_is_a_folder '' -o "$m"
bad output_below_a_file '' -o "$m/model_index.json/x.png"
bad dump_folder_missing '' --dump-stages "$dir/none/d.safetensors"
bad output_is_no_png '' -o "$dir/out/x.jpg"
bad output_of_latents_is_a_picture '' --output-type latent
bad output_twice '' --dump-stages "$dir/out/x.png"
case_ output_folder_not_writable
mkdir "$dir/sealed"
chmod 555 "$dir/sealed"
if [ "$(id -u)" -eq 0 ]; then
	: # root may write anywhere
else
	"$DIFFTP" --model "$m" --prompt x -o "$dir/sealed/x.png" 2>"$dir/stderr"
	[ $? -eq 2 ] || fail "exit code is not 2"
	grep -q "sealed" "$dir/stderr" || fail "$(cat "$dir/stderr")"
fi
done_
