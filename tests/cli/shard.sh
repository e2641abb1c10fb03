#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp shard and unshard: the folder, what it draws, what is refused, what is restored.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
model=tests/models/klein-tiny
damage=$TESTBIN/tool_damage
d=$dir/d
picture="--prompt fox --height 64 --width 64 --steps 2 --seed 1 --max-sequence-length 32 --no-metadata --force" # the pictures alone are compared

difftp() { # everything is looked at afterwards
	"$DIFFTP" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
works() { # ARGUMENT...
	difftp "$@"
	[ $rc -eq 0 ] || fail "difftp $*: exit code $rc: $(cat "$dir/stderr")"
}
nothing_but() { # NAME...: what may lie in $dir/out
	[ "$(ls -A "$dir/out")" = "$*" ] || fail "in the folder: $(ls -A "$dir/out" | tr '\n' ' ')"
}
mkdir "$dir/out"

# ---- there and back
for source in klein-tiny:1 klein-tiny:2 klein-tiny-sharded:4 klein-tiny:8; do
	degree=${source#*:} source=${source%:*}
	case_ "shard_${source}_$degree"
	rm -rf "$d" "$dir/out/back"
	works shard --model "tests/models/$source" --tp-degree "$degree" -o "$d"
	[ "$(find "$d/transformer" -name '*.tp[0-9][0-9]-of-*' | wc -l)" -eq "$degree" ] || fail "files: $(ls "$d/transformer")"
	works unshard "$d" -o "$dir/out/back"
	diff -r "tests/models/$source" "$dir/out/back" >"$dir/diff" || fail "$(cat "$dir/diff")"
	nothing_but back
	# shellcheck disable=SC2086 # a list of options
	works --model "tests/models/$source" --tp-degree $degree $picture -o "$dir/a.png"
	# shellcheck disable=SC2086
	works --model "$d" $picture -o "$dir/b.png"
	grep -q ", tp $degree (plan of '$d/difftp-shards.json')" "$dir/stderr" || fail "stderr: $(cat "$dir/stderr")"
	cmp "$dir/a.png" "$dir/b.png" >"$dir/diff" 2>&1 || fail "another picture: $(cat "$dir/diff")"
	done_
done

case_ shard_without_tokenizer
cp -r $model "$dir/without" && rm -r "$dir/without/tokenizer"
rm -rf "$d" "$dir/out/back"
works shard --model "$dir/without" --tp-degree 2 -o "$d"
works unshard "$d" -o "$dir/out/back"
diff -r "$dir/without" "$dir/out/back" >"$dir/diff" || fail "$(cat "$dir/diff")"
rm -rf "$dir/without"
done_

rm -rf "$d" "$dir/out/back"
case_ same_folder_from_the_same_model
works shard --model $model --tp-degree 4 -o "$d"
works shard --model $model/ --tp-degree=4 --tp-plan plans/flux2.json -o "$dir/e/"
diff -r "$d" "$dir/e" >"$dir/diff" || fail "$(cat "$dir/diff")"
rm -rf "$dir/e"
done_

case_ rank_reads_its_file_front_to_back
# shellcheck disable=SC2086
works bench --model "$d" $picture --json
for i in 0 1 2 3 4 5 6; do
	name=$("$TESTBIN/tool_json" "$dir/stdout" phases.$i.name 2>/dev/null)
	gaps=$("$TESTBIN/tool_json" "$dir/stdout" phases.$i.bytes_gaps 2>/dev/null)
	case $name in 'load t'*) [ "$gaps" -eq 0 ] || fail "$name reads $gaps bytes that it does not need" ;; esac
done
read=$("$TESTBIN/tool_json" "$dir/stdout" phases.0.bytes_read)
data=0
for f in "$d"/text_encoder/*.tp0*; do
	head=$("$DIFFTP" inspect "$f" --json | sed -n 's/.*"header_bytes":[^0-9]*\([0-9]*\).*/\1/p')
	data=$((data + $(wc -c <"$f") - head))
done
[ "$read" -eq $data ] || fail "$read bytes are read of the text encoder's $data"
done_

case_ inspect_and_plan
works inspect "$d" --check
grep -q "^ok    $d: all that Flux2KleinPipeline needs is there$" "$dir/stdout" || fail "$(cat "$dir/stdout")"
works inspect "$d/transformer/diffusion_pytorch_model.tp01-of-04.safetensors"
grep -q '^  difftp_rank = transformer, rank 1 of 4$' "$dir/stdout" || fail "$(head -n 5 "$dir/stdout")"
works plan --model "$d" --json
cp "$dir/stdout" "$dir/plan.json"
works plan --model $model --tp-degree 4 --json
for key in tp_degree components.1.read_bytes components.1.replicated_bytes components.0.rank_bytes.3 fits; do
	a=$("$TESTBIN/tool_json" "$dir/plan.json" $key) b=$("$TESTBIN/tool_json" "$dir/stdout" $key)
	[ "$a" = "$b" ] || fail "$key is $a, not $b"
done
works plan --diff --model "$d" flux2 plans/flux2.json
works plan --model "$d" --suggest
done_

# ---- refusals
# refused NAME MESSAGE ARGUMENT...: as `refuse`, with the path of the temporary folder as DIR
refused() {
	case_ "$1"
	message=$2
	shift 2
	difftp "$@"
	[ $rc -eq 2 ] || fail "exit code $rc, not 2"
	sed "s|$dir|DIR|g" "$dir/stderr" | grep -Eq -- "^difftp: $message" || fail "no such message: $message
$(cat "$dir/stderr")"
	done_
}
refused other_degree "'DIR/d' is sharded for --tp-degree 4 \('DIR/d/difftp-shards\.json'\), not for 2: use 4, or the folder that it was made from" \
	--model "$d" --prompt x --tp-degree 2
printf '{"transformer_blocks.*.ff.linear_in": "packed_colwise", "transformer_blocks.*.ff.linear_out": "rowwise"}' >"$dir/p.json"
refused other_plan "'DIR/d' is sharded by another plan than 'DIR/p\.json': 'transformer_blocks\.\*\.attn\.to_q' is colwise there, replicated here \(12 keys differ\); leave --tp-plan out" \
	--model "$d" --prompt x --tp-plan "$dir/p.json"
case_ same_plan_is_welcome
# shellcheck disable=SC2086
works --model "$d" --tp-plan plans/flux2.json $picture -o "$dir/b.png"
done_
refused sharded_twice "'DIR/d' is sharded already \('DIR/d/difftp-shards\.json'\): 'difftp unshard' restores" shard --model "$d" --tp-degree 4 -o "$dir/e"
refused degree_that_does_not_divide "built-in plan 'flux2': key '.*': degree 3 does not divide the 8 heads" shard --model $model --tp-degree 3 -o "$dir/e"
refused shard_without_degree "option '--tp-degree' is missing: how many ranks" shard --model $model -o "$dir/e"
refused shard_without_output "option '--output' is missing: the folder to be written" shard --model $model --tp-degree 2
refused unshard_of_what_is_whole "'$model' is not sharded: it has no 'difftp-shards\.json'" unshard $model -o "$dir/e"
refused unshard_of_nothing "nothing to restore: name a folder" unshard -o "$dir/e"
refused verify_of_shards "'DIR/d' is sharded, and one rank must read the whole model: verify the folder that it was made from" verify --model "$d"
refused output_exists "'DIR/d' exists already: name a new folder" shard --model $model --tp-degree 2 -o "$d"
refused parent_is_missing "cannot write the folder 'DIR/none/e': 'DIR/none': No such file or directory" shard --model $model --tp-degree 2 -o "$dir/none/e"
[ -e "$dir/e" ] && echo "not ok refused_leaves_nothing" && failures=$((failures + 1))

# broken NAME MESSAGE: a copy of the folder, $m, that has been damaged, is refused by a run and by inspect --check.
m=$dir/m t=$dir/m/transformer/diffusion_pytorch_model
copy() {
	rm -rf "$m"
	cp -r "$d" "$m"
}
broken() {
	refused "$1" "$2" --model "$m" --prompt x
	case_ "$1_is_found_by_inspect"
	difftp inspect "$m" --check
	[ $rc -eq 2 ] || fail "exit code $rc, not 2"
	sed "s|$dir|DIR|g" "$dir/stdout" | grep -Eq "^FAULT $2" || fail "$(grep FAULT "$dir/stdout")"
	done_
}
copy
rm "$t.tp02-of-04.safetensors"
broken missing_file "'DIR/m/difftp-shards\.json' names the file 'DIR/m/transformer/diffusion_pytorch_model\.tp02-of-04\.safetensors' of transformer, which is missing"
copy
truncate -s -2 "$t.tp03-of-04.safetensors"
broken truncated_file "'DIR/m/transformer/diffusion_pytorch_model\.tp03-of-04\.safetensors' is truncated: "
copy
mv "$t.tp00-of-04.safetensors" "$dir/x"
mv "$t.tp01-of-04.safetensors" "$t.tp00-of-04.safetensors"
mv "$dir/x" "$t.tp01-of-04.safetensors"
broken swapped_files "'DIR/m/transformer/diffusion_pytorch_model\.tp01-of-04\.safetensors' is for 'transformer, rank 0 of 4', expected 'transformer, rank 1 of 4': the file has been renamed"
copy
works shard --model $model --tp-degree 4 --tp-plan "$dir/p.json" -o "$dir/e"
rm -rf "$m/transformer"
cp -r "$dir/e/transformer" "$m"
broken files_of_another_run "'DIR/m/transformer/.*' (belongs to other shards|has [0-9]+ bytes, 'DIR/m/difftp-shards\.json' says [0-9]+)"
copy
for key in transformer text_encoder; do
	cp "$m/vae/diffusion_pytorch_model.safetensors" "$m/$key/$(cd "$m/$key" && echo *.tp01-of-04.safetensors)"
done
broken not_a_shard "'DIR/m/.*tp01-of-04\.safetensors' has 794206 bytes, 'DIR/m/difftp-shards\.json' says [0-9]+"
copy
"$damage" tensor "$t.tp01-of-04.safetensors" x_embedder.weight shape '[64, 256]'
sed -i "/diffusion_pytorch_model\.tp01/{n;s/[0-9][0-9]*/$(wc -c <"$t.tp01-of-04.safetensors")/;}" "$m/difftp-shards.json"
broken wrong_shape "'DIR/m/.*tp01-of-04\.safetensors': tensor 'x_embedder\.weight' has the shape \[64, 256\], expected \[128, 128\], the part of rank 1"
copy
"$damage" json "$m/difftp-shards.json" version 2
broken other_version "DIR/m/difftp-shards\.json: 'version' is 2, supported is 1: made by another difftp"
copy
"$damage" json "$m/difftp-shards.json" id '"../x"'
broken bad_id "DIR/m/difftp-shards\.json: 'id' is '\.\./x', expected 64 hexadecimal digits"
copy
"$damage" json "$m/difftp-shards.json" components '[{"name": "transformer", "plan": {}, "sources": [{"file": "../x", "size": 9, "sha256": "0"}]}]'
broken name_that_leaves_the_folder "DIR/m/difftp-shards\.json: 'file' is '\.\./x', expected the name of a file"
copy
"$damage" json "$m/difftp-shards.json" tp_degree 1000
broken other_number_of_files "DIR/m/difftp-shards\.json: 'text_encoder' has 4 files of ranks, expected 1000, the degree"
copy
printf '{' >"$m/difftp-shards.json"
broken malformed_manifest "DIR/m/difftp-shards\.json:1:2: malformed JSON"

# ---- what cannot be restored
# spoilt NAME MESSAGE
spoilt() {
	case_ "$1"
	difftp unshard "$m" -o "$dir/out/back"
	[ $rc -eq 1 ] || fail "exit code $rc, not 1"
	sed "s|$dir|DIR|g" "$dir/stderr" | grep -Eq "^difftp: $2" || fail "$(cat "$dir/stderr")"
	nothing_but ''
	done_
}
offset() { # FILE TENSOR
	"$DIFFTP" inspect "$1" --filter "$2" --json >"$dir/stdout"
	"$TESTBIN/tool_json" "$dir/stdout" tensors.0.offset
}
copy
"$damage" flip "$t.tp02-of-04.safetensors" "$(offset "$t.tp02-of-04.safetensors" transformer_blocks.0.attn.to_q.weight)"
spoilt split_weight_differs "'DIR/m/transformer/diffusion_pytorch_model\.tp02-of-04\.safetensors' is damaged: its SHA-256 is [0-9a-f]{64}, the manifest says [0-9a-f]{64}$"
copy
"$damage" flip "$t.tp02-of-04.safetensors" "$(offset "$t.tp02-of-04.safetensors" x_embedder.weight)"
spoilt replicated_weight_differs "tensor 'x_embedder\.weight' of 'DIR/m/transformer/diffusion_pytorch_model\.tp02-of-04\.safetensors' is not what other ranks' files have in the same rows$"
copy
"$damage" tensor "$m/sources/transformer/diffusion_pytorch_model.safetensors.header" x_embedder.weight shape '[256,   64]' # as long as before, with the padding
spoilt head_of_another_shape "tensor 'x_embedder\.weight' has the shape \[256, 64\] in the original's head, expected \[128, 128\]$"
copy
rm "$m/text_encoder/model.rest.safetensors"
refused rest_is_missing "'DIR/m/difftp-shards\.json' names the file 'DIR/m/text_encoder/model\.rest\.safetensors' of text_encoder, which is missing" \
	unshard "$m" -o "$dir/out/back"
case_ rest_is_for_unshard_alone
# shellcheck disable=SC2086
works --model "$m" $picture -o "$dir/b.png"
nothing_but ''
done_

# ---- a copy of shards that was changed on one machine
case_ rank_of_another_run_is_named
copy
works shard --model $model --tp-degree 4 -o "$dir/f"
id=$(sed -n 's/.*"id":[^"]*"\(.*\)".*/\1/p' "$d/difftp-shards.json")
find "$dir/f" -name 'difftp-shards.json' -o -name '*.tp0*' | while read -r f; do
	sed -i "s/$id/0000000000000000000000000000000000000000000000000000000000000000/" "$f"
done
works inspect "$dir/f" --check
cp "$dir/f/transformer/diffusion_pytorch_model.tp01-of-04.safetensors" "$m/transformer"
difftp --model "$m" --prompt x
sed "s|$dir|DIR|g" "$dir/stderr" | grep -Eq "^difftp: 'DIR/m/transformer/.*tp01-of-04\.safetensors' belongs to other shards \(0000000000000000\) than 'DIR/m/difftp-shards\.json' \(${id%????????????????????????????????????????????????}\)" ||
	fail "$(cat "$dir/stderr")"
done_

# ---- ends in the middle
# A model that takes a while: many layers, holes for weights.
big=$dir/big
cp -r $model "$big"
"$damage" json "$big/transformer/config.json" num_single_layers 1000
rm "$big"/*/*.safetensors
"$TESTBIN/tool_sparse" "$big"
for signal in INT TERM; do
	case_ "shard_interrupted_by_$signal"
	"$DIFFTP" shard --model "$big" --tp-degree 4 -o "$dir/out/x" 2>"$dir/stderr" >"$dir/stdout" &
	pid=$!
	for _ in $(seq 500); do
		[ -n "$(ls -A "$dir/out")" ] && break
		sleep 0.01
	done
	kill -$signal $pid
	wait $pid
	rc=$?
	[ $rc -eq 130 ] || fail "exit code $rc, not 130"
	grep -q '^difftp: interrupted$' "$dir/stderr" || fail "stderr: $(cat "$dir/stderr")"
	nothing_but ''
	done_
done
case_ shard_that_cannot_be_written
(
	trap '' XFSZ
	ulimit -f 2000 # blocks of 512 bytes
	exec "$DIFFTP" shard --model $model --tp-degree 2 -o "$dir/out/x" 2>"$dir/stderr"
)
[ $? -eq 1 ] || fail "exit code is not 1"
sed "s|$dir|DIR|g" "$dir/stderr" | grep -Eq "^difftp: cannot write 'DIR/out/x\.tmp-[0-9]+/transformer/.*\.tp0[01]-of-02\.safetensors': File too large$" ||
	fail "stderr: $(cat "$dir/stderr")"
nothing_but ''
done_
finish
