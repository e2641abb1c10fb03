#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where weights come from: another transformer, under diffusers' names or Black Forest Labs', and files of a variant.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
model=tests/models/klein-tiny
file=$model/transformer/diffusion_pytorch_model.safetensors
damage=$TESTBIN/tool_damage
m=$dir/m

# draw OUTPUT ARGUMENT...
draw() {
	out=$1
	shift
	rm -f "$dir/$out"
	"$DIFFTP" --prompt fox --height 64 --width 64 --steps 2 --seed 1 --max-sequence-length 32 --no-metadata -o "$dir/$out" "$@" \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null || fail "difftp $*: exit code $?: $(cat "$dir/stderr")"
}
same() { # the picture that was drawn last, and that of the model itself
	cmp "$dir/$1" "$dir/b.png" >"$dir/diff" 2>&1 || fail "another picture: $(cat "$dir/diff")"
}
# refused NAME MESSAGE ARGUMENT...: the temporary folder is called DIR
refused() {
	case_ "$1"
	message=$2
	shift 2
	"$DIFFTP" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 2 ] || fail "exit code $rc, not 2"
	sed "s|$dir|DIR|g" "$dir/stderr" | grep -Eq -- "^difftp: $message" || fail "no such message: $message
$(cat "$dir/stderr")"
	done_
}

names=$TESTBIN/tool_names
"$names" $file "$dir/plain.safetensors" && "$names" $file "$dir/prefixed.safetensors" model.diffusion_model. &&
	"$names" $file "$dir/bfl.safetensors" '' bfl && "$names" $file "$dir/bfl-prefixed.safetensors" model.diffusion_model. bfl || exit 1

# ---- another transformer
for degree in 1 2 4; do
	case_ "names_at_degree_$degree"
	draw a$degree.png --model $model --tp-degree $degree
	for f in plain prefixed bfl bfl-prefixed; do
		draw b.png --model $model --tp-degree $degree --transformer "$dir/$f.safetensors"
		grep -q '^warning: .*tensor' "$dir/stderr" && fail "$f: $(grep warning "$dir/stderr")"
		same a$degree.png
	done
	done_
done
case_ halves_that_are_split_by_columns
echo '{"norm_out.linear": "rowwise_split_input"}' >"$dir/p.json"
draw c.png --model $model --tp-degree 2 --tp-plan "$dir/p.json"
draw b.png --model $model --tp-degree 2 --tp-plan "$dir/p.json" --transformer "$dir/bfl.safetensors"
same c.png
done_
case_ slices_of_a_fused_tensor_are_read_alone
for f in plain bfl; do
	"$DIFFTP" bench --model $model --transformer "$dir/$f.safetensors" --tp-degree 4 --height 64 --width 64 --steps 1 --json \
		--max-sequence-length 32 >"$dir/$f.json" 2>"$dir/stderr" || fail "$(cat "$dir/stderr")"
	for i in 0 1 2 3; do
		[ "$("$TESTBIN/tool_json" "$dir/$f.json" phases.$i.name)" = 'load transformer' ] || continue
		read=$("$TESTBIN/tool_json" "$dir/$f.json" phases.$i.bytes_read) gaps=$("$TESTBIN/tool_json" "$dir/$f.json" phases.$i.bytes_gaps)
		echo $((read - gaps)) >"$dir/$f.bytes"
	done
done
cmp "$dir/plain.bytes" "$dir/bfl.bytes" >/dev/null || fail "$(cat "$dir/bfl.bytes") bytes, not $(cat "$dir/plain.bytes")"
done_
case_ it_is_the_other_file_that_is_read
head=$("$DIFFTP" inspect "$dir/bfl.safetensors" --json | sed -n 's/.*"header_bytes":[^0-9]*\([0-9]*\).*/\1/p')
{
	head -c "$head" "$dir/bfl.safetensors"
	tail -c "+$((head + 1))" "$dir/bfl.safetensors" | LC_ALL=C tr '\000-\377' '\001-\377\000'
} >"$dir/other.safetensors"
draw b.png --model $model --transformer "$dir/other.safetensors"
cmp "$dir/a1.png" "$dir/b.png" >/dev/null 2>&1 && fail "the same picture"
done_
case_ folders
mkdir "$dir/weights"
cp $file "$dir/weights"
draw b.png --model $model --transformer "$dir/weights"
same a1.png
draw b.png --model $model --transformer $model/transformer
same a1.png
draw b.png --model $model --transformer $model
same a1.png
# Its configuration comes with it; the pipeline's may be gone.
cp -r $model "$m"
rm -rf "$m/transformer"
draw b.png --model "$m" --transformer $model/transformer/
same a1.png
cp $model/transformer/config.json "$dir/weights"
"$damage" json "$dir/weights/config.json" num_single_layers 2
draw b.png --model $model --transformer "$dir/weights"
cmp "$dir/a1.png" "$dir/b.png" >/dev/null 2>&1 && fail "its configuration is not read"
done_
case_ plan_and_the_ranks_comparison
"$DIFFTP" plan --model $model --transformer "$dir/bfl.safetensors" --tp-degree 2 >"$dir/stdout" 2>&1 || fail "$(cat "$dir/stdout")"
done_

refused missing_transformer "cannot open 'DIR/none': No such file or directory" --model $model --prompt x --transformer "$dir/none"
refused file_of_another_model "'tests/models/klein-tiny/text_encoder/model\.safetensors' lacks tensor 'x_embedder\.weight' of shape \[128, 128\]" \
	--model $model --prompt x --transformer $model/text_encoder/model.safetensors
cp "$dir/bfl.safetensors" "$dir/bad.safetensors"
"$damage" tensor "$dir/bad.safetensors" double_blocks.1.txt_attn.qkv.weight shape '[128, 384]'
refused fused_tensor_of_another_shape "'DIR/bad\.safetensors': tensor 'double_blocks\.1\.txt_attn\.qkv\.weight' has the shape \[128, 384\], expected 3 blocks of \[128, 128\]" \
	--model $model --prompt x --transformer "$dir/bad.safetensors"
cp "$dir/bfl.safetensors" "$dir/bad.safetensors"
"$damage" tensor "$dir/bad.safetensors" double_blocks.1.txt_attn.qkv.weight shape '[192, 256]'
refused block_of_another_shape "'DIR/bad\.safetensors': tensor 'transformer_blocks\.1\.attn\.add_[qkv]_proj\.weight' has the shape \[64, 256\], expected \[128, 128\]" \
	--model $model --prompt x --transformer "$dir/bad.safetensors"
cp "$dir/bfl.safetensors" "$dir/bad.safetensors"
"$damage" rename "$dir/bad.safetensors" single_blocks.2.linear1.weight single_blocks.2.linear3.weight
refused tensor_that_is_missing "'DIR/bad\.safetensors' lacks tensor 'single_transformer_blocks\.2\.attn\.to_qkv_mlp_proj\.weight'" \
	--model $model --prompt x --transformer "$dir/bad.safetensors"
rm -rf "$m"
cp -r $model "$m"
cp "$dir/bfl.safetensors" "$m/transformer/diffusion_pytorch_model.safetensors"
case_ other_names_in_the_folder_itself
draw b.png --model "$m" --tp-degree 2
same a2.png
done_
refused shard_of_other_names "'DIR/m/transformer/diffusion_pytorch_model\.safetensors' has not diffusers' names: only checkpoints that have them can be sharded" \
	shard --model "$m" --tp-degree 2 -o "$dir/d"

# ---- variants
variant() { # NAME FROM: a copy with files of the variant fp16 only
	rm -rf "$m"
	cp -r "tests/models/$1" "$m"
	find "$m" -name '*.safetensors' | while read -r f; do mv "$f" "${f%.safetensors}.fp16.safetensors"; done
	find "$m" -name '*.index.json' | while read -r f; do
		sed 's/\.safetensors"/.fp16.safetensors"/' "$f" >"${f%.json}.fp16.json"
		rm "$f"
	done
}
for source in klein-tiny klein-tiny-sharded; do
	case_ "variant_$source"
	variant $source
	draw c.png --model tests/models/$source --tp-degree 2
	draw b.png --model "$m" --tp-degree 2 --variant fp16
	grep -q '^warning: .*variant' "$dir/stderr" && fail "$(cat "$dir/stderr")"
	same c.png
	rm -rf "$dir/d" "$dir/back"
	"$DIFFTP" shard --model "$m" --variant fp16 --tp-degree 2 -o "$dir/d" 2>"$dir/stderr" || fail "$(cat "$dir/stderr")"
	draw b.png --model "$dir/d"
	same c.png
	"$DIFFTP" unshard "$dir/d" -o "$dir/back" 2>"$dir/stderr" || fail "$(cat "$dir/stderr")"
	diff -r "$m" "$dir/back" >"$dir/diff" || fail "$(cat "$dir/diff")"
	done_
done
case_ variant_of_some_components
variant klein-tiny
rm -rf "$m/vae"
cp -r $model/vae "$m"
draw b.png --model "$m" --variant fp16
same a1.png
sed "s|$dir|DIR|" "$dir/stderr" | grep -q "^warning: 'DIR/m/vae' has no files of the variant 'fp16': those without it are used$" || fail "$(cat "$dir/stderr")"
done_
refused variant_is_not_asked_for "'DIR/m/transformer' has neither 'diffusion_pytorch_model\.safetensors' nor 'diffusion_pytorch_model\.safetensors\.index\.json'; it has 'diffusion_pytorch_model\.fp16\.safetensors'; weights are read from safetensors files of these names only \(--variant names others\)|'DIR/m/text_encoder' has neither .* \(--variant names others\)" \
	--model "$m" --prompt x
case_ inspect_checks_a_variant
"$DIFFTP" inspect "$m" --check >"$dir/stdout" 2>&1 && fail "no fault: $(cat "$dir/stdout")"
"$DIFFTP" inspect "$m" --check --variant fp16 >"$dir/stdout" 2>&1 || fail "$(cat "$dir/stdout")"
grep -q "^ok    $m: all that Flux2KleinPipeline needs is there$" "$dir/stdout" || fail "$(cat "$dir/stdout")"
done_
refused inspect_variant_without_check "option '--variant' says what --check is to look for" inspect "$m" --variant fp16
refused no_such_variant "no component of '$model' has files of the variant 'fp16' \(such as 'diffusion_pytorch_model\.fp16\.safetensors'\)" \
	--model $model --prompt x --variant fp16
refused variant_of_shards "'DIR/d' is sharded \('DIR/d/difftp-shards\.json'\): --variant does not go with it" --model "$dir/d" --prompt x --variant fp16
refused transformer_of_shards "'DIR/d' is sharded \('DIR/d/difftp-shards\.json'\): --transformer does not go with it" --model "$dir/d" --prompt x \
	--transformer $file
case_ inspect_knows_the_index_of_a_variant
variant klein-tiny-sharded
"$DIFFTP" inspect "$m/transformer" >"$dir/stdout" 2>&1
grep -q '\.safetensors\.index\.fp16\.json: .* in 5 files$' "$dir/stdout" || fail "$(grep tensors "$dir/stdout")"
done_
finish
