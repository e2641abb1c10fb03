#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp inspect: its table, its JSON, and every fault that --check has to find.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
model=tests/models/klein-tiny
transformer=$model/transformer/diffusion_pytorch_model.safetensors
m=$dir/m

inspect() {
	"$DIFFTP" inspect "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
json() { # PATH VALUE
	got=$("$TESTBIN/tool_json" "$dir/stdout" "$1" 2>&1)
	[ "$got" = "$2" ] || fail "$1 is $got, not $2"
}
says() {
	grep -Eq -- "$1" "$dir/stdout" || fail "no line matches: $1
$(tail -n 25 "$dir/stdout")"
}
copy() {
	rm -rf "$m"
	cp -r "tests/models/${1:-klein-tiny}" "$m"
}

# ---- tables
case_ table_of_one_file
inspect $transformer --filter 'transformer_blocks.0.*linear_*'
[ $rc -eq 0 ] || fail "exit code $rc"
[ ! -s "$dir/stderr" ] || fail "stderr: $(cat "$dir/stderr")"
diff - "$dir/stdout" >"$dir/diff" <<END || fail "$(cat "$dir/diff")"
$transformer: 4 tensors, 589824 bytes (590 kB)
  name                                               dtype    shape                bytes          offset
  transformer_blocks.0.ff.linear_in.weight           BF16     [768, 128]          196608         2265200
  transformer_blocks.0.ff.linear_out.weight          BF16     [128, 384]           98304         2461808
  transformer_blocks.0.ff_context.linear_in.weight   BF16     [768, 128]          196608         2560112
  transformer_blocks.0.ff_context.linear_out.weight  BF16     [128, 384]           98304         2756720
  BF16: 4 tensors, 589824 bytes
END
done_

case_ table_of_the_whole_file
inspect $transformer
[ "$(grep -c '^  .* BF16 ' "$dir/stdout")" -eq 53 ] || fail "$(grep -c '^  .* BF16 ' "$dir/stdout") tensors"
says '^  format = pt$'
done_

case_ table_of_shards_names_the_files
inspect tests/models/klein-tiny-sharded/transformer
says '^tests/models/klein-tiny-sharded/transformer/diffusion_pytorch_model\.safetensors\.index\.json: .* in 5 files$'
says '^  x_embedder\.weight .* diffusion_pytorch_model-0000[1-5]-of-00005\.safetensors$'
inspect tests/models/klein-tiny-sharded/transformer/diffusion_pytorch_model.safetensors.index.json --json
json files.# 5
done_

case_ table_of_a_pipeline_folder
inspect $model/
says '^tests/models/klein-tiny/text_encoder/model\.safetensors: '
says '^tests/models/klein-tiny/vae/diffusion_pytorch_model\.safetensors: '
bytes=$(sed -n 's/^tests.*: .* tensors*, \([0-9]*\) bytes.*/\1/p' "$dir/stdout" | awk '{ n += $1 } END { print n }')
says "^together: [0-9]+ tensors, $bytes bytes "
done_

case_ offsets_are_those_of_the_file
inspect $transformer --filter x_embedder.weight --json
offset=$("$TESTBIN/tool_json" "$dir/stdout" tensors.0.offset) bytes=$("$TESTBIN/tool_json" "$dir/stdout" tensors.0.bytes)
inspect $transformer --json
next=$("$TESTBIN/tool_json" "$dir/stdout" files.0.size)
[ $((offset + bytes)) -le "$next" ] || fail "$offset + $bytes of $next"
json tensors.# 53
json files.0.metadata.format pt
json sums.tensors 53
json sums.bytes $((next - $("$TESTBIN/tool_json" "$dir/stdout" files.0.header_bytes)))
json sums.dtypes.BF16.tensors 53
done_

# ---- checks
case_ check_of_what_is_whole
for f in klein-tiny klein-tiny-sharded; do
	inspect tests/models/$f --check
	[ $rc -eq 0 ] || fail "exit code $rc"
	says "^ok    tests/models/$f/transformer/.*: (53|37) tensors, [0-9]+ bytes, (1 file|5 files)$"
	says "^ok    tests/models/$f: all that Flux2KleinPipeline needs is there$"
	grep -q '^FAULT' "$dir/stdout" && fail "$(cat "$dir/stdout")"
done
inspect $transformer --check --json
json ok true
json checks.# 1
done_

# faulty NAME MESSAGE [PATH]: --check finds it, and listing refuses it.
faulty() {
	case_ "$1"
	inspect "${3:-$m}" --check
	[ $rc -eq 2 ] || fail "exit code $rc, not 2"
	sed "s|$dir|DIR|g" "$dir/stdout" | grep -Eq "^FAULT $2" || fail "no such fault: $2
$(cat "$dir/stdout")"
	grep -Eq '^difftp: [0-9]+ of [0-9]+ checks failed$' "$dir/stderr" || fail "stderr: $(cat "$dir/stderr")"
	inspect "${3:-$m}" --check --json
	[ $rc -eq 2 ] || fail "exit code $rc, not 2, with --json"
	json ok false
	done_
}
file=transformer/diffusion_pytorch_model.safetensors
damage=$TESTBIN/tool_damage
copy
truncate -s -1 "$m/$file"
faulty check_truncated "'DIR/m/$file' is truncated: it has [0-9]+ bytes, tensor '.*' needs [0-9]+$"
case_ listing_refuses_what_is_damaged
inspect "$m/$file"
[ $rc -eq 2 ] || fail "exit code $rc, not 2"
grep -q "^difftp: .* is truncated: " "$dir/stderr" || fail "stderr: $(cat "$dir/stderr")"
done_
copy
echo >>"$m/$file"
faulty check_too_long "'DIR/m/$file' has [0-9]+ bytes, its tensors end at byte [0-9]+$"
copy
"$damage" length "$m/$file" 99999999
faulty check_header_longer_than_the_file "'DIR/m/$file' is truncated: it has [0-9]+ bytes, its header needs 100000007$"
copy
"$damage" tensor "$m/$file" x_embedder.weight shape '[128, 127]'
faulty check_bytes_and_shape "'DIR/m/$file': tensor 'x_embedder\.weight' has 32768 bytes of data, its shape and dtype BF16 need 32512$"
copy
"$damage" tensor "$m/$file" x_embedder.weight dtype '"BF17"'
faulty check_dtype "'DIR/m/$file': tensor 'x_embedder\.weight' has the unknown dtype 'BF17'"
copy
"$damage" tensor "$m/$file" x_embedder.weight data_offsets '[0, 32768]'
faulty check_overlap "'DIR/m/$file': the data of tensors '.*' overlap at byte [0-9]+$"
copy
"$damage" rename "$m/$file" x_embedder.weight y_embedder.weight
faulty check_missing_tensor "'DIR/m/$file' lacks tensor 'x_embedder\.weight' of shape \[128, 128\]$"
copy
"$damage" json "$m/transformer/config.json" num_attention_heads 4
faulty check_against_the_configuration "'DIR/m': the text encoder gives|'DIR/m/transformer/.*': tensor '.*' has the shape "
copy
printf '{' >"$m/vae/config.json"
faulty check_configuration "DIR/m/vae/config\.json:1:2: malformed JSON"
copy klein-tiny-sharded
rm "$m/transformer/diffusion_pytorch_model-00003-of-00005.safetensors"
faulty check_missing_shard "'DIR/m/transformer/diffusion_pytorch_model\.safetensors\.index\.json' names the shard 'diffusion_pytorch_model-00003-of-00005\.safetensors' "
copy klein-tiny-sharded
printf '{"weight_map": {' >"$m/transformer/diffusion_pytorch_model.safetensors.index.json"
faulty check_index "DIR/m/transformer/diffusion_pytorch_model\.safetensors\.index\.json:1:17: malformed JSON"
copy
ln -sf nowhere "$m/$file"
faulty check_dangling_link "cannot open 'DIR/m/$file': it is a link to 'nowhere', which is not there "

case_ check_goes_on_behind_a_fault
copy
truncate -s -1 "$m/$file"
inspect "$m" --check
says '^ok    .*/vae/'
grep -q '^difftp: 2 of 4 checks failed$' "$dir/stderr" || fail "stderr: $(cat "$dir/stderr")"
done_

case_ check_of_a_class_that_is_not_supported
copy
"$damage" json "$m/model_index.json" _class_name '"FluxPipeline"'
inspect "$m" --check
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stdout")"
says '^ok    .*/m: its pipeline class is not supported, so the tensors are not compared with the configuration$'
done_

case_ names_cannot_steer_the_terminal
copy
"$damage" rename "$m/$file" x_embedder.weight "$(printf 'x\033[2Jy')"
inspect "$m/$file"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '^  x\?\[2Jy  '
"$damage" rename "$m/$file" time_guidance_embed.timestep_embedder.linear_1.weight "$(printf 'x\302\2332J\303\244y')"
inspect "$m/$file"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '^  x\?2Jäy  '
done_
rm -rf "$m"

# ---- refusals
refuse no_path 'nothing to inspect: name a safetensors file, a folder, or a PNG file of difftp' inspect
refuse missing_path "cannot open '$dir/none': No such file or directory" inspect "$dir/none"
refuse folder_without_files "'tests/cli' holds no safetensors files, and neither do the folders in it" inspect tests/cli
refuse no_safetensors_file "'$model/model_index.json' is no safetensors file: " inspect $model/model_index.json
refuse filter_matches_nothing "no tensor's name matches 'x_embeder\*'" inspect $model --filter 'x_embeder*'
refuse filter_and_check "option '--check' looks at every tensor: --filter does not go with it" inspect $model --check --filter x
refuse two_paths "unexpected argument 'b': at most 1 is taken here" inspect a b
finish
