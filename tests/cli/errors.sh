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
bad folder_missing \
	"model folder 'DIR/none' does not exist" --model "$dir/none"
bad folder_is_a_file \
	"'DIR/m/model_index.json' is no folder; --model takes a pipeline folder in the diffusers layout" --model "$m/model_index.json"
bad folder_of_a_part \
	"'DIR/m/vae' is a part of a pipeline folder; did you mean the whole, 'DIR/m'?" --model "$m/vae"
mkdir "$dir/bare"
bad folder_without_index \
	"'DIR/bare' has no model_index.json: a pipeline folder in the diffusers layout is needed (model_index.json, transformer/, text_encoder/, tokenizer/, vae/, scheduler/)" --model "$dir/bare"
rm -r "$m/scheduler"
bad component_missing \
	"cannot open 'DIR/m/scheduler/scheduler_config.json': No such file or directory"
model
rm "$m/tokenizer/tokenizer.json"
bad tokenizer_missing \
	"cannot open 'DIR/m/tokenizer/tokenizer.json': No such file or directory"

# ---- what is not supported
model
set_key model_index.json _class_name '"FluxPipeline"'
bad class_unsupported \
	"DIR/m/model_index.json: pipeline class 'FluxPipeline' is not supported; supported: 'Flux2KleinPipeline', 'Flux2Pipeline' (not their KV and inpainting pipelines)"
for other in StableDiffusionXLPipeline QwenImagePipeline Flux2KleinKVPipeline Flux2KleinInpaintPipeline; do
	model
	set_key model_index.json _class_name "\"$other\""
	bad "class_unsupported_$other" \
		"DIR/m/model_index.json: pipeline class '$other' is not supported; supported: 'Flux2KleinPipeline', 'Flux2Pipeline' (not their KV and inpainting pipelines)"
done
model
set_key model_index.json text_encoder '["transformers", "T5EncoderModel"]'
bad class_of_a_part_in_the_index \
	"DIR/m/model_index.json: 'text_encoder' is of the class 'T5EncoderModel', but its folder holds 'Qwen3ForCausalLM'"
model
set_key transformer/config.json _class_name '"FluxTransformer2DModel"'
bad class_of_the_transformer \
	"DIR/m/transformer/config.json: '_class_name' is 'FluxTransformer2DModel', supported is 'Flux2Transformer2DModel'"
model
set_key text_encoder/config.json architectures '["T5EncoderModel"]'
bad class_of_the_text_encoder \
	"DIR/m/text_encoder/config.json: 'architectures' is 'T5EncoderModel', supported is 'Qwen3ForCausalLM', 'Mistral3ForConditionalGeneration'"
model dev-tiny
set_key text_encoder/config.json text_config -
bad text_config_missing \
	"DIR/m/text_encoder/config.json: 'text_config' is missing"
model dev-tiny
sed -i 's/"sliding_window": null/"sliding_window": 128/' "$m/text_encoder/config.json"
bad longer_than_the_sliding_window \
	"max sequence length 129 is out of range: 1 to 128, the text encoder's sliding window" --max-sequence-length 129
model
set_key scheduler/scheduler_config.json _class_name '"DDIMScheduler"'
bad class_of_the_scheduler \
	"DIR/m/scheduler/scheduler_config.json: the scheduler 'DDIMScheduler' is not supported, only 'FlowMatchEulerDiscreteScheduler' is"
for kind in bin pt ckpt gguf; do
	model
	rm "$m"/transformer/*.safetensors
	: >"$m/transformer/diffusion_pytorch_model.$kind"
	bad "weights_only_$kind" "'DIR/m/transformer' has neither 'diffusion_pytorch_model.safetensors' nor 'diffusion_pytorch_model.safetensors.index.json'; it has 'diffusion_pytorch_model.$kind'; weights are read from safetensors files of these names only (--variant names others)"
done
model
set_key transformer/config.json quantization_config '{"quant_method": "bitsandbytes", "load_in_4bit": true}'
bad quantised_transformer \
	"DIR/m/transformer/config.json: 'quantization_config': quantised weights are not supported; use BF16, F16 or F32 safetensors"
model
set_key text_encoder/config.json quantization_config '{"quant_method": "fp8"}'
bad quantised_text_encoder \
	"DIR/m/text_encoder/config.json: 'quantization_config': quantised weights are not supported; use BF16, F16 or F32 safetensors"

# ---- JSON
model
printf '{\n  "num_layers": 2,\n  "eps" 1e-6\n}\n' >"$m/transformer/config.json"
bad json_malformed \
	"DIR/m/transformer/config.json:3:9: malformed JSON: expected ':', found '1'"
printf '{"num_layers": 2' >"$m/transformer/config.json"
bad json_cut \
	"DIR/m/transformer/config.json:1:17: malformed JSON: expected ',' or '}', found the end of the text"
: >"$m/transformer/config.json"
bad json_empty \
	"DIR/m/transformer/config.json:1:1: malformed JSON: expected an object in braces, found the end of the text"
printf '[1]' >"$m/transformer/config.json"
bad json_is_no_object \
	"DIR/m/transformer/config.json:1:1: malformed JSON: expected an object in braces, found '['"

# ---- numbers
number() { # NAME FILE KEY VALUE MESSAGE
	model
	set_key "$2" "$3" "$4"
	bad "number_$1" "$5"
}
number heads_negative transformer/config.json num_attention_heads -8 \
	"DIR/m/transformer/config.json: 'num_attention_heads' is -8, expected a whole number from 1 to 4096"
number heads_zero transformer/config.json num_attention_heads 0 \
	"DIR/m/transformer/config.json: 'num_attention_heads' is 0, expected a whole number from 1 to 4096"
number heads_fraction transformer/config.json num_attention_heads 8.5 \
	"DIR/m/transformer/config.json: 'num_attention_heads' is 8.5, expected a whole number from 1 to 4096"
number heads_text transformer/config.json num_attention_heads '"8"' \
	"DIR/m/transformer/config.json: 'num_attention_heads' is \"8\", expected a whole number from 1 to 4096"
number heads_absurd transformer/config.json num_attention_heads 1000000000000 \
	"DIR/m/transformer/config.json: 'num_attention_heads' is 1000000000000, expected a whole number from 1 to 4096"
number heads_huge transformer/config.json num_attention_heads 1e400 \
	"DIR/m/transformer/config.json: 'num_attention_heads' is a number beyond every limit, expected a whole number from 1 to 4096"
number layers_absurd transformer/config.json num_layers 1000000000 \
	"DIR/m/transformer/config.json: 'num_layers' is 1000000000, expected a whole number from 0 to 1024"
number text_layers_absurd text_encoder/config.json num_hidden_layers 1025 \
	"DIR/m/text_encoder/config.json: 'num_hidden_layers' is 1025, expected a whole number from 1 to 1024"
number single_layers_negative transformer/config.json num_single_layers -1 \
	"DIR/m/transformer/config.json: 'num_single_layers' is -1, expected a whole number from 0 to 1024"
number mlp_ratio_huge transformer/config.json mlp_ratio 1e300 \
	"DIR/m/transformer/config.json: 'mlp_ratio' is 1e+300, expected a number from 0.001 to 64"
number rope_axes_do_not_add_up transformer/config.json axes_dims_rope '[4, 4, 4, 2]' \
	"DIR/m/transformer/config.json: 'axes_dims_rope' has 4 axes that sum to 14, expected 4 that sum to attention_head_dim 16"
number hidden_missing text_encoder/config.json hidden_size - \
	"DIR/m/text_encoder/config.json: 'hidden_size' is missing, expected a whole number from 1 to 1048576"
number hidden_negative text_encoder/config.json hidden_size -40 \
	"DIR/m/text_encoder/config.json: 'hidden_size' is -40, expected a whole number from 1 to 1048576"
number kv_heads_do_not_divide text_encoder/config.json num_key_value_heads 3 \
	"DIR/m/text_encoder/config.json: 4 heads of 16 with 3 key-value heads: no such model"
number vocabulary_huge text_encoder/config.json vocab_size 9223372036854775807 \
	"DIR/m/text_encoder/config.json: 'vocab_size' is 9.22337203685478e+18, expected a whole number from 1 to 16777216"
number too_few_text_layers text_encoder/config.json num_hidden_layers 20 \
	"DIR/m/text_encoder/config.json: 'num_hidden_layers' is 20, hidden state 27 is needed"
number vae_groups_zero vae/config.json norm_num_groups 0 \
	"DIR/m/vae/config.json: 'norm_num_groups' is 0, expected a whole number from 1 to 65536"
number vae_groups_do_not_divide vae/config.json norm_num_groups 7 \
	"DIR/m/vae/config.json: 'norm_num_groups' 7 does not divide the channels of level 0"
number vae_activation vae/config.json act_fn '"gelu"' \
	"DIR/m/vae/config.json: 'act_fn' is 'gelu', supported is 'silu'"
number vae_encoder_blocks vae/config.json down_block_types '["DownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D", null]' \
	"DIR/m/vae/config.json: 'down_block_types' holds 'AttnDownEncoderBlock2D', supported is 'DownEncoderBlock2D'"
number vae_decoder_blocks vae/config.json up_block_types '["UpDecoderBlock2D", 3]' \
	"DIR/m/vae/config.json: 'up_block_types' holds 'no string', supported is 'UpDecoderBlock2D'"
number vae_fewer_blocks vae/config.json up_block_types '["UpDecoderBlock2D", "UpDecoderBlock2D"]' \
	"DIR/m/vae/config.json: 'block_out_channels' has 4 levels, 'up_block_types' 2"
number vae_channels_empty vae/config.json block_out_channels '[]' \
	"DIR/m/vae/config.json: 'block_out_channels' is an array of 0, expected an array of 1 to 8 whole numbers from 1 to 65536"
number timesteps_negative scheduler/scheduler_config.json num_train_timesteps -1000 \
	"DIR/m/scheduler/scheduler_config.json: 'num_train_timesteps' is -1000, expected a whole number from 1 to 1000000"

# ---- plans and degrees
model
plan '{"transformer_blocks.*.attn.to_q": "colwize"}'
bad plan_unknown_style \
	"DIR/plan.json: key 'transformer_blocks.*.attn.to_q': unknown style 'colwize': did you mean 'colwise'?
styles: colwise, rowwise, rowwise_split_input, packed_colwise, packed_rowwise" --tp-plan "$dir/plan.json" --tp-degree 2
plan '{"transformer_blocks.*.attn.to_queue": "colwise"}'
bad plan_matches_nothing \
	"DIR/plan.json: key 'transformer_blocks.*.attn.to_queue' matches no module of the transformer: did you mean 'transformer_blocks.*.attn.to_q'?" --tp-plan "$dir/plan.json" --tp-degree 2
plan '{"transformer_blocks.*.attn.*": "colwise"}'
bad plan_two_stars \
	"DIR/plan.json: key 'transformer_blocks.*.attn.*': more than one '*': a key has at most one, which stands for every index of a module list" --tp-plan "$dir/plan.json" --tp-degree 2
plan '{"a": }'
bad plan_malformed \
	"DIR/plan.json:1:7: malformed JSON: expected a value, found '}'" --tp-plan "$dir/plan.json"
mkfifo "$dir/plan.fifo"
bad plan_in_a_pipe \
	"--tp-plan 'DIR/plan.fifo' is no regular file: each rank reads it again, so put it into a file" --tp-plan "$dir/plan.fifo"
bad plan_missing \
	"cannot open 'DIR/none.json': No such file or directory" --tp-plan "$dir/none.json"
bad degree_does_not_divide \
	"built-in plan 'flux2': key 'transformer_blocks.*.attn.to_q': degree 3 does not divide the 8 heads of the transformer ('transformer_blocks.0.attn.to_q')
degrees that work: 1, 2, 4, 8" --tp-degree 3
bad degree_too_large \
	"built-in plan 'flux2': key 'transformer_blocks.*.attn.to_q': degree 16 does not divide the 8 heads of the transformer ('transformer_blocks.0.attn.to_q')
degrees that work: 1, 2, 4, 8" --tp-degree 16

# ---- sizes and lengths
bad size_not_a_multiple \
	"height 100 is not a multiple of 16; the nearest that are: 96 and 112" --height 100
bad size_too_small \
	"width 8 is out of range: 16 to 16384" --width 8
bad length_without_room \
	"option '--max-sequence-length': 100000 is out of range (1 to 32768)" --max-sequence-length 100000

# ---- checkpoints
w=transformer/diffusion_pytorch_model.safetensors
model
truncate -s -1 "$m/$w"
bad weights_truncated \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors' is truncated: it has 3739887 bytes, tensor 'x_embedder.weight' needs 3739888"
truncate -s 100 "$m/$w"
bad weights_header_longer_than_file \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors' is truncated: it has 100 bytes, its header needs 5936"
truncate -s 3 "$m/$w"
bad weights_without_header \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors' is no safetensors file or is truncated: it has 3 bytes, the length of the header alone needs 8"
model
"$damage" length "$m/$w" 18446744073709551615
bad weights_header_length_absurd \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors' is no safetensors file: it claims a header of 18446744073709551615 bytes, at most 100000000 are allowed"
model
"$damage" tensor "$m/$w" x_embedder.weight data_offsets '[0, 32768]'
bad weights_overlap \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors': the data of tensors 'context_embedder.weight' and 'x_embedder.weight' overlap at byte 5927"
model
"$damage" tensor "$m/$w" x_embedder.weight data_offsets '[0, 18446744073709551615]'
bad weights_out_of_range \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors': tensor 'x_embedder.weight': its data_offsets are no whole numbers below 2^53"
model
"$damage" rename "$m/$w" x_embedder.weight x_embedder.wait
bad tensor_missing \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors' lacks tensor 'x_embedder.weight' of shape [128, 128]"
model
"$damage" tensor "$m/$w" proj_out.weight shape '[64, 256]'
bad tensor_of_wrong_shape \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors': tensor 'proj_out.weight' has the shape [64, 256], expected [128, 128]"
model
"$damage" tensor "$m/$w" proj_out.weight dtype '"I16"'
bad tensor_of_wrong_dtype \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors': tensor 'proj_out.weight' has the dtype I16; supported are BF16, F16 and F32"
model
"$damage" tensor "$m/$w" proj_out.weight dtype '"F8_E4M3"'
"$damage" tensor "$m/$w" proj_out.weight shape '[128, 256]'
bad tensor_of_8_bits \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors': tensor 'proj_out.weight' has the dtype F8_E4M3: quantised checkpoints are not supported; supported are BF16, F16 and F32"
model klein-tiny-sharded
rm "$m/transformer/diffusion_pytorch_model-00003-of-00005.safetensors"
bad shard_missing \
	"'DIR/m/transformer/diffusion_pytorch_model.safetensors.index.json' names the shard 'diffusion_pytorch_model-00003-of-00005.safetensors' (for tensor 'single_transformer_blocks.0.attn.norm_k.weight'), which is missing"
model klein-tiny-sharded
printf '{"weight_map": {"x": 3}}' >"$m/transformer/diffusion_pytorch_model.safetensors.index.json"
bad index_of_wrong_type \
	"DIR/m/transformer/diffusion_pytorch_model.safetensors.index.json: 'weight_map' gives no file name for tensor 'x'"

# ---- prompts and outputs
model
bad prompt_is_no_utf8 \
	"the prompt is not valid UTF-8: byte 0xff at offset 1" --prompt "$(printf 'a\377b')"
bad output_folder_missing \
	"cannot write 'DIR/none/x.png': the folder 'DIR/none' does not exist" -o "$dir/none/x.png"
bad output_is_a_folder \
	"cannot write 'DIR/m': it names a folder, give the name of a file" -o "$m"
bad output_below_a_file \
	"cannot write 'DIR/m/model_index.json/x.png': 'DIR/m/model_index.json' is no folder" -o "$m/model_index.json/x.png"
bad dump_folder_missing \
	"cannot write 'DIR/none/d.safetensors': the folder 'DIR/none' does not exist" --dump-stages "$dir/none/d.safetensors"
bad output_is_no_png \
	"'DIR/out/x.jpg': only PNG files are written, not '.jpg'; name it '.png'" -o "$dir/out/x.jpg"
bad output_of_latents_is_a_picture \
	"'DIR/out/x.png' names a picture, but latents are written as '.safetensors'" --output-type latent
bad output_twice \
	"--output and --dump-stages would both write 'DIR/out/x.png'" --dump-stages "$dir/out/x.png"
case_ output_folder_not_writable
# Not even root can create a file in the first.
mkdir "$dir/sealed"
chmod 555 "$dir/sealed"
for folder in /proc "$dir/sealed"; do
	[ "$folder$(id -u)" = "$dir/sealed0" ] && continue
	"$DIFFTP" --model "$m" --prompt x -o "$folder/x.png" >"$dir/stdout" 2>"$dir/stderr"
	[ $? -eq 2 ] || fail "exit code is not 2"
	grep -q "^difftp: cannot write '$folder/x.png': " "$dir/stderr" || fail "$(cat "$dir/stderr")"
done
done_

# ---- memory
model
case_ all_components_together_do_not_fit
small="--height 64 --width 64 --steps 1 --max-sequence-length 32"
# shellcheck disable=SC2086 # words
"$DIFFTP" --model "$m" --prompt x $small --offload none --max-memory 140MB -o "$dir/x.png" >"$dir/stdout" 2>"$dir/stderr"
[ $? -eq 2 ] || fail "exit code is not 2"
cat >"$dir/expected" <<'END'
difftp: not enough memory for --offload none: rank 0 needs 142 MB at the peak, --max-memory allows 140 MB
in phase 'vae' weights 7.0 MB, scratch N kB, staging 67 MB, and 67 MB for the program
--offload stage needs 138 MB and fits
END
head -n 3 "$dir/stderr" | sed 's/scratch [0-9]* kB/scratch N kB/' | diff "$dir/expected" - >"$dir/diff" || fail "$(cat "$dir/diff")"
# shellcheck disable=SC2086
"$DIFFTP" --model "$m" --prompt x $small --offload stage --max-memory 140MB -o "$dir/x.png" 2>"$dir/stderr" || fail "$(cat "$dir/stderr")"
rm "$dir/x.png"
done_

case_ latents_fit_where_the_vae_does_not
"$DIFFTP" --model "$m" --prompt x --height 2048 --width 2048 --steps 1 --max-memory 350MB -o "$dir/x.png" >"$dir/stdout" 2>"$dir/stderr"
[ $? -eq 2 ] || fail "exit code is not 2"
grep -q "^in phase 'vae' weights " "$dir/stderr" || fail "$(cat "$dir/stderr")"
grep -Eq '^--output-type latent, for difftp decode elsewhere, needs [0-9]+ MB and fits$' "$dir/stderr" || fail "$(cat "$dir/stderr")"
done_

# ---- the largest picture by a VAE whose last layers are so wide that they take 9 TB, whatever memory the machine has; they are few,
# so that their weights (2 GB) leave a size that fits.
model
set_key vae/config.json layers_per_block 1
set_key vae/config.json decoder_block_out_channels '[4096, 16, 32, 32]'
case_ not_enough_memory
timeout 60 "$DIFFTP" bench --synthetic --config "$m" --height 16384 --width 16384 --dtype fp32 --device cpu -o "$dir/x.png" >"$dir/stdout" 2>"$dir/stderr"
[ $? -eq 2 ] || fail "exit code is not 2"
grep -Eq '^difftp: not enough memory: 1 rank needs [0-9.]+ TB at the peak, [0-9.]+ [TGM]B are available \((MemAvailable|control group.s limit)\)$' \
	"$dir/stderr" || fail "$(cat "$dir/stderr")"
grep -Eq "^the largest rank needs [0-9.]+ TB: in phase 'vae' weights .*, scratch .*, staging .*, and .* for the program$" \
	"$dir/stderr" || fail "$(cat "$dir/stderr")"
grep -Eq '^--height [0-9]+ --width [0-9]+ needs [0-9.]+ [TGM]B and fits$' "$dir/stderr" || fail "$(cat "$dir/stderr")"
[ ! -e "$dir/x.png" ] || fail "a file was written"
done_
finish
