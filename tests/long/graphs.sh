#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every attention and every convolution of every model, as its own code asks for them on one and on several ranks, has a plan of
# cuDNN's on every architecture that the program is built for.  Without a GPU: the plans are real, the GPUs are described.
. tests/lib.sh

if [ -z "$(make -s which-nvcc)" ]; then
	echo "skip graphs: there is no nvcc, and none of CUDA's headers"
	exit 0
fi
tools="build/emulated/tests/emu/tool_graphs build/emulated/tests/tool_sparse"
# shellcheck disable=SC2086 # two words
MAKEFLAGS='' make EMULATE=1 -j "$(nproc)" $tools >"$dir/log" 2>&1 || {
	echo "not ok graphs_build"
	tail -n 30 "$dir/log"
	exit 1
}
m=$dir/m

folder() { # FIXTURE HEADS DOUBLE SINGLE WIDTH GUIDANCE
	rm -rf "$m"
	cp -r "tests/models/$1" "$m"
	rm "$m"/*/*.safetensors
	printf '{"_class_name": "Flux2Transformer2DModel", "num_layers": %d, "num_single_layers": %d, "attention_head_dim": 128,
 "num_attention_heads": %d, "joint_attention_dim": %d, "axes_dims_rope": [32, 32, 32, 32], "guidance_embeds": %s}\n' \
		"$3" "$4" "$2" "$5" "$6" >"$m/transformer/config.json"
	echo '{"_class_name": "AutoencoderKLFlux2", "block_out_channels": [128, 256, 512, 512]}' >"$m/vae/config.json"
}
qwen() { # WIDTH INNER
	printf '{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": %d, "intermediate_size": %d,
 "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
 "rope_theta": 1000000, "tie_word_embeddings": true}\n' "$1" "$2" >"$m/text_encoder/config.json"
}
mistral() {
	cat >"$m/text_encoder/config.json" <<'END'
{"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"vocab_size": 131072, "hidden_size": 5120,
 "intermediate_size": 32768, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
 "rms_norm_eps": 1e-5, "rope_theta": 1e9, "sliding_window": null}}
END
}
plans() { # SIDE REFERENCES DEGREES ARCHITECTURES
	build/emulated/tests/emu/tool_graphs "$m" "$@" >"$dir/out" 2>&1 || fail "$1 pixels, $2 references, $3 ranks: $(cat "$dir/out")"
	sed 's/^/    /' "$dir/out"
}
graphs() { # NAME
	case_ "$1"
	build/emulated/tests/tool_sparse "$m" || fail "no checkpoint"
	for arch in 80 86 89 90 100 120; do
		plans 1024 0 1,2,4,8 $arch
		plans 1024 1 1 $arch
		plans 512 0 1 $arch
	done
	done_
}

folder klein-tiny 24 5 20 7680 false
qwen 2560 9728
graphs klein_4b
folder klein-tiny 32 8 24 12288 false
qwen 4096 12288
graphs klein_9b
folder dev-tiny 48 8 48 15360 true
mistral
graphs dev
finish
