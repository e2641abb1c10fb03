#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shapes that a configuration can say: head counts and degrees that are no powers of two, text encoders that a degree does not
# divide, keys of both generations of transformers, either prefix.  The weights are random; verify compares every layer with the whole
# model's, and free runs with one another.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
m=$dir/m

transformer() { # HEADS DOUBLE SINGLE WIDTH GUIDANCE
	printf '{"_class_name": "Flux2Transformer2DModel", "num_layers": %d, "num_single_layers": %d, "attention_head_dim": 8,
 "num_attention_heads": %d, "joint_attention_dim": %d, "axes_dims_rope": [2, 2, 2, 2], "mlp_ratio": 3.0, "guidance_embeds": %s,
 "timestep_guidance_channels": 64}\n' "$2" "$3" "$1" "$4" "$5" >"$m/transformer/config.json"
}
# Its configurations; weights follow.
folder() { # FIXTURE
	rm -rf "$m"
	cp -r "tests/models/$1" "$m"
	rm "$m"/*/*.safetensors
}
verify() { # DEGREE
	"$DIFFTP" verify --model "$m" --tp-degree "$1" --height 64 --width 64 --max-sequence-length 64 --dtype fp32 --steps 2 --free-run \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null || fail "tp $1: $(cat "$dir/stdout" "$dir/stderr")"
}

# 5 query heads on one kv head, 97 columns, 1823 rows: nothing that the degrees divide.
case_ heads_24_tp_3_6_12
folder klein-tiny
transformer 24 1 1 108 false
cat >"$m/text_encoder/config.json" <<'END'
{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 1823, "hidden_size": 36, "intermediate_size": 97, "num_hidden_layers": 28,
 "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
 "tie_word_embeddings": true}
END
"$TESTBIN/tool_sparse" "$m" 1 || fail "no checkpoint"
for degree in 3 6 12; do verify $degree; done
done_

case_ heads_32_tp_8_as_klein_9b
folder klein-base-tiny
transformer 32 1 2 120 false
cat >"$m/text_encoder/config.json" <<'END'
{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 1824, "hidden_size": 40, "intermediate_size": 120, "num_hidden_layers": 36,
 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 4, "rms_norm_eps": 1e-6, "dtype": "bfloat16",
 "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "tie_word_embeddings": false}
END
"$TESTBIN/tool_sparse" "$m" 2 || fail "no checkpoint"
verify 8
done_

# transformers 5 in memory: its names for the tensors, its keys.
case_ heads_48_tp_6_as_dev
folder dev-tiny
transformer 48 1 1 108 true
cat >"$m/text_encoder/config.json" <<'END'
{"architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "text_config": {"vocab_size": 1857, "hidden_size": 36,
 "intermediate_size": 64, "num_hidden_layers": 31, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
 "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 1000000000.0, "rope_type": "default"}, "sliding_window": null}}
END
"$TESTBIN/tool_sparse" "$m" 3 1 || fail "no checkpoint"
"$DIFFTP" inspect "$m/text_encoder" | grep -q 'model\.language_model\.layers\.30\.' || fail "no such prefix"
verify 6
done_

finish
