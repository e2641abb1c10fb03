# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# What was foreseen of a run's memory against what its ranks took, on any device.  Not a test itself.
: "${TESTBIN:?the folder of the test programs}"
m=$dir/m

# Heads and widths that no degree and no 16 bytes divide, in every part of a pipeline: random weights.
uneven_model() {
	rm -rf "$m"
	cp -r tests/models/klein-tiny "$m"
	rm "$m"/*/*.safetensors
	cat >"$m/transformer/config.json" <<'END_CONFIG'
{"_class_name": "Flux2Transformer2DModel", "num_layers": 2, "num_single_layers": 3, "attention_head_dim": 16, "num_attention_heads": 12,
 "joint_attention_dim": 156, "axes_dims_rope": [4, 4, 4, 4], "mlp_ratio": 3.0, "guidance_embeds": false,
 "timestep_guidance_channels": 64}
END_CONFIG
	cat >"$m/text_encoder/config.json" <<'END_CONFIG'
{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 1823, "hidden_size": 52, "intermediate_size": 97, "num_hidden_layers": 28,
 "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
 "tie_word_embeddings": true}
END_CONFIG
	cat >"$m/vae/config.json" <<'END_CONFIG'
{"_class_name": "AutoencoderKLFlux2", "block_out_channels": [24, 40, 48, 56], "norm_num_groups": 8}
END_CONFIG
	"$TESTBIN/tool_sparse" "$m" 1 || fail "no checkpoint"
}

# bench MODEL DEGREE DTYPE OPTION...: by $program, with the options $always.
bench() {
	model=$1 degree=$2 dtype=$3
	shift 3
	# shellcheck disable=SC2086,SC2154 # words; the script says what program and always are
	"$program" bench --model "$model" --tp-degree "$degree" --dtype "$dtype" $always --json -q "$@" >"$dir/stdout" 2>"$dir/stderr" \
		</dev/null || fail "tp $degree: $(cat "$dir/stderr")"
}

number() { # KEY: of the phase and rank in $at
	"$TESTBIN/tool_json" "$dir/stdout" "$at.$1"
}
# within DEGREE PHASE...: in what bench --json has printed, these phases and no others took within 5 % of weights and activations of what was
# foreseen, on every rank; of the VAE's, on rank 0.
within() {
	degree=$1 i=0
	shift
	[ "$("$TESTBIN/tool_json" "$dir/stdout" "memory.#")" = $# ] || fail "not $# phases"
	for phase; do
		[ "$("$TESTBIN/tool_json" "$dir/stdout" "memory.$i.name")" = "$phase" ] || fail "phase $i is not $phase"
		rank=0
		while [ $rank -lt "$degree" ]; do
			at=memory.$i.ranks.$rank
			case $phase-$rank in
			vae-0 | references-0 | t*) awk -v peak="$(number peak_bytes)" -v foreseen="$(number predicted_bytes)" -v weights="$(number weights)" \
				-v activations="$(number activations)" -v workspace="$(number workspace)" 'BEGIN {
					off = peak - foreseen
					exit !(peak > 0 && weights > 0 && activations > 0 && foreseen == weights + activations + workspace &&
						(off < 0 ? -off : off) <= 0.05 * (weights + activations)) }' ||
				fail "$phase of rank $rank: $(number peak_bytes) bytes, not $(number predicted_bytes)" ;;
			*) [ "$("$TESTBIN/tool_json" "$dir/stdout" "$at")" = null ] || fail "rank $rank has a part in $phase" ;;
			esac
			rank=$((rank + 1))
		done
		i=$((i + 1))
	done
}
