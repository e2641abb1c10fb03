#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp plan: its text, its JSON, plans that it writes, derives and compares, and what it says of memory.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
model=tests/models/klein-tiny
small="--height 64 --width 64 --max-sequence-length 32"

plan() {
	"$DIFFTP" plan "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
json() { # PATH VALUE: in what was printed last
	got=$("$TESTBIN/tool_json" "$dir/stdout" "$1" 2>&1)
	[ "$got" = "$2" ] || fail "$1 is $got, not $2"
}
says() {
	grep -Eq -- "$1" "$dir/stdout" || fail "no line matches: $1
$(tail -n 25 "$dir/stdout")"
}

# ---- the report
case_ text_of_klein_tiny_at_2
# shellcheck disable=SC2086 # a list of options
plan --model $model --tp-degree 2 --tflops 1 --devices 2x1GB --device cpu $small
[ $rc -eq 0 ] || fail "exit code $rc"
[ ! -s "$dir/stderr" ] || fail "stderr: $(cat "$dir/stderr")"
# Activations are the program's own affair: of the memory only the weights are compared.
sed 's/^\(  \(text_encoder\|transformer\|vae\)  *[0-9]*  *[0-9.]* [kM]B\).*/\1/; s/takes [0-9.]* MB/takes N MB/; s/([0-9]* MB/(N MB/; s/[0-9.]* MB.s for every rank/N MB\/s for every rank/; s/well over [0-9.]* [kMG]B/well over N B/' \
	"$dir/stdout" | diff tests/expected/plan_klein-tiny_tp2.txt - >"$dir/diff" || fail "$(cat "$dir/diff")"
done_

case_ uneven_ranks_of_the_text_encoder
plan --model $model --tp-degree 8 --devices 8x4GB
says '^      q_proj  .* \[0-16, 40\] .* rows none, 0-15, none, 16-31, none, 32-47, none, 48-63$'
says '^      k_proj  .* rows none, 0-15, none, 0-15, none, 16-31, none, 16-31$'
says '^      o_proj  .* columns none, 0-15, '
says '^  embed_tokens  .* \[228, 40\] '
done_

case_ one_rank_sums_nothing
plan --model $model
[ $rc -eq 0 ] || fail "exit code $rc"
says '^  none$'
says '^  fits: 1 rank takes .* at the peak, .* are available \((MemAvailable|control group.s limit)\)$'
grep -q warning "$dir/stdout" && fail "a warning at degree 1: $(grep warning "$dir/stdout")"
done_

case_ one_block_with_a_style_of_its_own
printf '{"transformer_blocks.1.ff.linear_in": "packed_colwise", "transformer_blocks.1.ff.linear_out": "rowwise"}' >"$dir/p.json"
plan --model $model --tp-degree 2 --tp-plan "$dir/p.json"
says '^  transformer_blocks\.0 '
says '^  transformer_blocks\.1 '
says "^transformer: $dir/p\.json, "
says "^    single_transformer_blocks\.\*\.attn\.to_qkv_mlp_proj: 885 kB \(3 modules\); see 'difftp plan --suggest'$"
done_

case_ json
# shellcheck disable=SC2086
plan --model $model --tp-degree 2 --devices 2x4GB --json $small
[ $rc -eq 0 ] || fail "exit code $rc"
json tp_degree 2
json components.# 3
json components.1.name transformer
json components.1.plan "built-in plan 'flux2'"
json components.1.modules.# 53
json components.1.modules.0.name x_embedder
json components.1.modules.0.style replicated
json components.1.modules.0.ranks.1.shape '[128,128]'
json components.1.modules.7.name transformer_blocks.0.attn.to_q
json components.1.modules.7.key 'transformer_blocks.*.attn.to_q'
json components.1.modules.7.ranks.1.runs '[[64,128]]'
json components.1.modules.7.ranks.1.bytes 16384
json components.2.plan null
json phases.1.name step
json phases.1.reductions 11
json phases.1.ring_bytes "$("$TESTBIN/tool_json" "$dir/stdout" phases.1.reduce_bytes)" # 2 (N - 1) / N is 1 at 2
json ranks.# 2
json device cuda
json ranks.1.allowed 4000000000
json fits true
json smallest_degree 1
# shellcheck disable=SC2016 # the backquotes are the documentation's
keys=$(awk '/^### The keys/ { on = 1 } /^## Inspecting/ { on = 0 } on && /^[|] `/' docs/running.md | grep -o '`[a-z_]*`' | tr -d '`' | sort -u)
[ "$(echo "$keys" | wc -w)" -ge 40 ] || fail "the documentation lists too few keys: $keys"
for key in $(grep -o '"[a-z_]*":' "$dir/stdout" | tr -d '":' | sort -u); do
	echo "$keys" | grep -qx "$key" || fail "key '$key' is not documented"
done
done_

# ---- what stays where
case_ components_that_stay_and_why
# shellcheck disable=SC2086
offload() { # ARGUMENT...
	plan --model $model $small "$@"
}
offload --max-memory 1GB --tp-degree 2
says "^  text encoder: ranks 0 and 1 \(CPU\), phase 'text_encoder'; freed before the transformer: one prompt needs it once$"
says "^  transformer: ranks 0 and 1 \(CPU\), phase 'transformer'; freed before the VAE: one image needs it once$"
says "^  VAE: rank 0 \(CPU\), phase 'vae'; loaded last: one image needs it once$"
offload --max-memory 1GB -n 2
says "^  transformer: rank 0 \(CPU\), resident; kept: 860 MB of 1\.0 GB stay free$"
says "^  text encoder: .*, phase 'text_encoder'; freed before the transformer: one prompt needs it once$"
offload --max-memory 139MB -n 2
[ $rc -eq 0 ] || fail "exit code $rc"
says "^  VAE: rank 0 \(CPU\), phase 'vae'; freed after each image: it and the other would need 140 MB of 139 MB$"
offload --offload none --devices 4x1GB --device cpu --tp-degree 4 --json
json offload.asked none
json offload.components.# 3
json offload.components.0.name text_encoder
json offload.components.0.held_by 4
json offload.components.0.resident true
json offload.components.0.from text_encoder
json offload.components.0.to vae
json offload.components.2.held_by 1
json offload.components.1.why 'kept as --offload none says: 861 MB of 1.0 GB stay free'
# Each phase has what stays of those before it.
w() { "$TESTBIN/tool_json" "$dir/stdout" ranks.0.phases.$1.weights; }
kept="$(w 0) $(w 1) $(w 2)"
offload --offload stage --devices 4x1GB --device cpu --tp-degree 4 --json
[ "$kept" = "$(w 0) $(($(w 0) + $(w 1))) $(($(w 0) + $(w 1) + $(w 2)))" ] || fail "weights: $kept; in turn $(w 0) $(w 1) $(w 2)"
json offload.components.1.from transformer
json offload.components.1.to transformer
json offload.components.1.resident false
offload --keep-text-encoder --max-memory 140MB
[ $rc -eq 2 ] || fail "exit code $rc"
says '^  does not fit: the rank takes 142 MB at the peak, it may have 140 MB$'
says '^  transformer: .* resident; kept as --offload none says: 142 MB of 140 MB are needed$'
offload --keep-text-encoder --offload stage --max-memory 140MB
[ $rc -eq 0 ] || fail "--offload does not count: exit code $rc"
# Of the two names the one that was typed counts, else --offload.
mkdir -p "$dir/config/difftp"
defaulted() { # DEFAULTS TYPED WHY
	printf '%b' "$1" >"$dir/config/difftp/config"
	# shellcheck disable=SC2086
	XDG_CONFIG_HOME=$dir/config offload --max-memory 1GB $2
	says "^  VAE: .* as --offload $3 says"
}
defaulted 'offload = stage\n' --keep-text-encoder none
defaulted 'offload = stage\nkeep-text-encoder = yes\n' --keep-text-encoder none
defaulted 'keep-text-encoder = yes\n' '--offload stage' stage
defaulted 'offload = stage\nkeep-text-encoder = yes\n' '' stage
defaulted 'keep-text-encoder = yes\n' '' none
done_

# ---- the dtype of the sums
case_ sums_in_bf16_move_half_the_bytes
plan --model $model --tp-degree 2 --devices 2x1GB --json --reduce-dtype fp32 $small
whole=$("$TESTBIN/tool_json" "$dir/stdout" phases.1.reduce_bytes)
plan --model $model --tp-degree 2 --devices 2x1GB --json --reduce-dtype bf16 $small
json phases.1.reduce_bytes $((whole / 2))
json phases.1.reductions 11
plan --model $model --tp-degree 2 --dtype fp32 --reduce-dtype bf16
[ $rc -eq 2 ] || fail "exit code $rc"
grep -q -- '--reduce-dtype bf16 goes with --dtype bf16 only' "$dir/stderr" || fail "$(cat "$dir/stderr")"
done_

# ---- needs no tokenizer, reads no weights
case_ answers_for_a_model_of_100_gigabytes
m=$dir/dev
mkdir -p "$m"
cp -r tests/models/dev-tiny/* "$m"
rm "$m"/*/*.safetensors
cp -r tests/models/configs/dev/. "$m"
"$TESTBIN/tool_sparse" "$m" || fail "no sparse files"
plan --model "$m" --tp-degree 8 --devices 8x24GB
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
# 100 ms are promised of a machine that does nothing else; a program under a sanitizer is exempt.
took=$(least_time plan --model "$m" --tp-degree 8 --devices 8x24GB) || exit
[ "$took" -lt 100000 ] || [ -n "$SANITIZED" ] || fail "it takes $took us"
says '^transformer: .*, 64\.4 GB of weights, '
says '^  transformer_blocks\.0-7 \(8 alike\) '
says '^    double_stream_modulation_img\.linear: 453 MB; '
says '^  each step: +80 sums, 3\.6 GB together \(in 16 bits\)'
says '^  smallest degree that fits: 4 \(1[0-9.]+ GB a rank\)$'
says '^    and the smallest degree that fits: --tp-degree 4 '
says '^  - For many prompts: --dp-degree 2, groups of 4 devices '
plan --model "$m" --tp-degree 4 --devices 4x24GB
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '^text_encoder: .*, 34\.7 GB of weights, 8\.7 GB a rank, of which [0-9.]+ .B are replicated; a rank reads up to 8\.7 GB$'
says '^transformer: .*, 64\.4 GB of weights, 17\.3 GB a rank, '
says '^  fits: the rank with least room, 0, takes 1[0-9.]+ GB at the peak, it may have 24\.0 GB$'
says '^  vae +0 +99 MB +8[0-9][0-9] MB ' # two maps of the largest level, 805 MB, and strips
done_

case_ inspecting_100_gigabytes
"$DIFFTP" inspect --check "$m" >"$dir/stdout" || fail "$(cat "$dir/stdout")"
took=$(least_time inspect --check "$m")
[ "$took" -lt 100000 ] || [ -n "$SANITIZED" ] || fail "it takes $took us"
says '^ok    .*/transformer/.*: 331 tensors, 64446562304 bytes, 7 files$'
done_
rm -rf "$m"

# ---- fits or not
case_ device_too_small
# shellcheck disable=SC2086
plan --model $model --tp-degree 2 --devices 2x130MB --device cpu $small
[ $rc -eq 2 ] || fail "exit code $rc, not 2"
says '^  does not fit: the rank with least room, 0, takes 1[0-9]+ MB at the peak, it may have 130 MB$'
says '^  smallest degree that fits: none up to 64$'
says '^  - Whatever the model, a rank takes 134 MB for the program and its staging buffer\.$'
# shellcheck disable=SC2086
plan --model $model --tp-degree 2 --devices 2x130MB --device cuda $small
says '^  - Whatever the model, a rank takes [0-9.]+ [MG]B for its context and workspace on the GPU\.$'
grep -Eq '^difftp: does not fit: the rank with least room, 0, takes' "$dir/stderr" || fail "stderr: $(cat "$dir/stderr")"
[ "$(wc -l <"$dir/stderr")" -eq 1 ] || fail "stderr has more than one line: $(cat "$dir/stderr")"
done_

case_ too_few_devices
plan --model $model --tp-degree 4 --devices 2x4GB
[ $rc -eq 2 ] || fail "exit code $rc, not 2"
says '^  does not fit: 4 ranks need as many devices, 2 are given$'
done_

case_ weights_are_split_where_one_device_is_too_small
# At 1 the transformer alone takes 4 MB more than a rank has beside its weights.
# shellcheck disable=SC2086
plan --model $model $small --devices 8x137900kB --device cpu --json
[ $rc -eq 2 ] || fail "exit code $rc, not 2"
json fits false
[ "$("$TESTBIN/tool_json" "$dir/stdout" smallest_degree)" -gt 1 ] || fail "$("$TESTBIN/tool_json" "$dir/stdout" smallest_degree)"
json advice.0.kind tensor_parallel
json advice.1.kind data_parallel
json advice.2.kind staged_loading
plan --model $model $small --max-memory 137900kB
says '^  - The weights do not fit the limit\. Where the link between the ranks is fast, tensor parallel'
done_

case_ activations_too_large
plan --model $model --tp-degree 2 --height 8192 --width 8192 --devices 2x1GB --device cpu --json
[ $rc -eq 2 ] || fail "exit code $rc, not 2"
"$TESTBIN/tool_json" "$dir/stdout" advice.0.text | grep -q '^The activations are too large: ' || fail "$(cat "$dir/stdout")"
done_

case_ everything_on_one_device
plan --model $model --devices 4x4GB --json
[ $rc -eq 0 ] || fail "exit code $rc"
json advice.0.kind data_parallel
json advice.1.kind tensor_parallel
done_

case_ max_memory_of_a_plan
plan --model $model --tp-degree 2 --max-memory 1GB,100MB
[ $rc -eq 2 ] || fail "exit code $rc, not 2"
says '^  does not fit: the rank with least room, 1, takes 1[0-9]+ MB at the peak, it may have 100 MB$'
done_

case_ max_memory_of_a_run
# shellcheck disable=SC2086
"$DIFFTP" --model $model --prompt x --tp-degree 2 --max-memory 100MB -o "$dir/x.png" $small >"$dir/stdout" 2>"$dir/stderr"
rc=$?
[ $rc -eq 2 ] || fail "exit code $rc, not 2"
[ ! -e "$dir/x.png" ] || fail "there is a picture"
grep -Eq '^difftp: not enough memory: rank 0 needs 1[0-9]+ MB at the peak, --max-memory allows 100 MB$' "$dir/stderr" ||
	fail "stderr: $(cat "$dir/stderr")"
# shellcheck disable=SC2086
"$DIFFTP" --model $model --prompt x --tp-degree 2 --max-memory 1GB -q -o "$dir/x.png" --steps 1 $small || fail "refused what fits"
done_

# ---- plans as files
case_ emitted_plan_round_trip
plan --model $model --tp-degree 2 --emit "$dir/emitted.json"
[ $rc -eq 0 ] || fail "exit code $rc"
grep -q '"single_transformer_blocks.\*.attn.to_out": {"style": "packed_rowwise", "blocks": \[1, 3\]}$' "$dir/emitted.json" ||
	fail "$(cat "$dir/emitted.json")"
plan --diff flux2 "$dir/emitted.json" --model $model
[ $rc -eq 0 ] || fail "they differ: $(cat "$dir/stdout" "$dir/stderr")"
says '^no difference in effect$'
plan --model $model --tp-degree 2 --tp-plan "$dir/emitted.json" --emit "$dir/again.json"
cmp "$dir/emitted.json" "$dir/again.json" || fail "written again it differs"
for p in '' "--tp-plan $dir/emitted.json"; do
	# shellcheck disable=SC2086
	"$DIFFTP" --model $model --prompt x --seed 1 --tp-degree 2 -q --no-metadata -o "$dir/p${p:+q}.png" --steps 1 $small $p || fail "$p is refused"
done
cmp "$dir/p.png" "$dir/pq.png" || fail "the pictures differ"
done_

case_ emitted_plan_of_single_blocks
plan --model $model --tp-degree 2 --tp-plan "$dir/p.json" --emit "$dir/emitted.json" --force
plan --diff "$dir/p.json" "$dir/emitted.json" --model $model
[ $rc -eq 0 ] || fail "they differ: $(cat "$dir/stdout")"
grep -q '"transformer_blocks.1.ff.linear_in": {"style": "packed_colwise", "blocks": \[1, 1\]},$' "$dir/emitted.json" ||
	fail "$(cat "$dir/emitted.json")"
done_

case_ suggestion_equals_the_builtin_plan
plan --model $model --suggest --emit "$dir/suggested.json"
[ $rc -eq 0 ] || fail "exit code $rc"
says "^the same in effect as built-in plan 'flux2'$"
says '^degrees that work: 1, 2, 4, 8$'
says '^  transformer_blocks\.\*\.ff\.linear_in: packed_colwise \[1, 1\]$'
says "^      768 rows in blocks of 384 \+ 384, read by 'ff\.linear_out' only, which can take a part each$"
plan --diff plans/flux2.json "$dir/suggested.json" --model $model --tp-degree 4
[ $rc -eq 0 ] || fail "they differ: $(cat "$dir/stdout")"
plan --model $model --suggest --json
json plan.# 14
json same_as_builtin true
json reasons.0.key x_embedder
done_

case_ diff_by_keys
plan --diff flux2 "$dir/p.json"
[ $rc -eq 1 ] || fail "exit code $rc, not 1"
[ ! -s "$dir/stderr" ] || fail "stderr: $(cat "$dir/stderr")"
says '^transformer_blocks\.\*\.attn\.to_q: colwise -> replicated$'
says '^transformer_blocks\.1\.ff\.linear_in: replicated -> packed_colwise$'
[ "$(wc -l <"$dir/stdout")" -eq 16 ] || fail "$(cat "$dir/stdout")"
plan --diff plans/text.json text
[ $rc -eq 0 ] || fail "exit code $rc, not 0"
says '^no difference$'
done_

case_ diff_in_effect
plan --diff flux2 "$dir/p.json" --model $model --json
[ $rc -eq 1 ] || fail "exit code $rc, not 1"
json in_effect true
json differences.# 14
json differences.8.key transformer_blocks.0.ff.linear_in
json differences.8.a.blocks '[384,384]'
json differences.8.b.style replicated
plan --diff text plans/text.json --model $model
[ $rc -eq 0 ] || fail "the text encoder's plans: $(cat "$dir/stdout" "$dir/stderr")"
done_

# ---- refusals
refuse model_missing "option '--model' is missing: the folder of the pipeline" plan
refuse word_without_diff "unexpected argument 'a.json': two plans are compared with --diff" plan a.json --model $model
refuse diff_of_one "option '--diff' needs two plans, files or built-in ones: difftp plan --diff A B" plan --diff flux2
refuse diff_of_unknown "'flux3' is neither a file nor a built-in plan: no built-in plan 'flux3': did you mean 'flux2'\?" plan --diff flux2 flux3
refuse diff_of_missing_file "cannot open 'none.json': No such file or directory" plan --diff flux2 none.json
refuse diff_and_suggest "option '--diff' compares the two plans that follow: " plan --diff flux2 flux2 --suggest
refuse suggest_and_plan "option '--suggest' derives a plan: --tp-plan does not go with it" plan --model $model --suggest --tp-plan "$dir/p.json"
refuse devices_malformed "option '--devices': '24' is no size: a number and a unit, as in 24GB, 1.5TB, 512MiB" plan --model $model --devices 4x24
refuse devices_none "option '--devices': '0x24GB': the number before 'x' must be 1 to 1024, as in 4x24GB" plan --model $model --devices 0x24GB
refuse max_memory_count "option '--max-memory' lists 3 sizes for 2 ranks: give one for all, or one for each" plan --model $model --tp-degree 2 --max-memory 1GB,1GB,1GB
echo mine >"$dir/mine.json"
for how in '' --suggest; do
	# shellcheck disable=SC2086 # nothing, or a word
	refuse "emit_over_a_file$how" "'$dir/mine.json' exists: --force replaces it; or give another name$" plan --model $model --emit "$dir/mine.json" $how
done
case_ what_was_refused_is_left
[ "$(cat "$dir/mine.json")" = mine ] || fail "it was replaced"
plan --model $model --emit "$dir/mine.json" --force
cmp -s "$dir/mine.json" "$dir/again.json" || fail "--force does not replace it"
done_
refuse emit_into_no_folder "cannot write '$dir/none/p.json': the folder '$dir/none' does not exist" plan --model $model --emit "$dir/none/p.json"
refuse degree_that_does_not_divide "built-in plan 'flux2': key 'transformer_blocks\.\*\.attn\.to_q': degree 3 does not divide the 8 heads of the transformer" plan --model $model --tp-degree 3
printf '{"transformer_blocks.*.attn.to_q": "colwise"}' >"$dir/bad.json"
refuse plan_is_checked "$dir/bad.json: no key for 'transformer_blocks\.0\.attn\.to_k'" plan --model $model --tp-degree 2 --tp-plan "$dir/bad.json"

case_ full_stdout_is_an_error
if [ -e /dev/full ]; then
	"$DIFFTP" plan --model $model >/dev/full 2>"$dir/stderr"
	[ $? -eq 1 ] || fail "exit code is not 1"
fi
done_
finish
