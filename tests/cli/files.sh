#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a run leaves behind and says: files, names, streams, seeds.
. tests/lib.sh
model=tests/models/klein-tiny
mkdir "$dir/out"

# draw ARGUMENT...: a small picture of one step; what it printed is in $dir/stdout and $dir/stderr.
draw() {
	"$DIFFTP" --model $model --prompt "a red fox" --height 64 --width 64 --steps 1 --max-sequence-length 32 "$@" \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
says() { # EXPRESSION: a line of stderr
	grep -Eq -- "$1" "$dir/stderr" || fail "no line of stderr matches '$1': $(cat "$dir/stderr")"
}
holds() { # NAME...: the output folder, all of it
	want=$(printf '%s\n' "$@")
	# shellcheck disable=SC2012 # the names are ours
	[ "$(ls -A "$dir/out")" = "$want" ] || fail "the folder holds: $(ls -A "$dir/out" | tr '\n' ' ')"
	rm -rf "$dir/out"
	mkdir "$dir/out"
}

case_ one_image
draw -o "$dir/out/fox.png" --seed 5 --tp-degree 2
[ $rc -eq 0 ] || fail "exit code $rc"
[ ! -s "$dir/stdout" ] || fail "stdout is not empty"
says '^Flux2KleinPipeline: 64x64, 1 step, guidance 4 \(no effect: the model is distilled\), 1 image, bf16, tp 2 \(built-in plan .flux2.\), [0-9]+ threads?$'
says "^wrote $dir/out/fox\.png \(64x64, seed 5\)$"
holds fox.png
done_

case_ several_images
draw -o "$dir/out/a.b.png" -n 3 --seed 18446744073709551615
says 'a\.b_0\.png \(64x64, seed 18446744073709551615\)$'
says 'a\.b_1\.png \(64x64, seed 0\)$'
holds a.b_0.png a.b_1.png a.b_2.png
done_

case_ seed_is_drawn_printed_and_draws_the_same
draw -o "$dir/out/x.png" --tp-degree 2
seed=$(sed -n 's/^seed \([0-9]*\)$/\1/p' "$dir/stderr")
[ -n "$seed" ] || fail "no seed was printed: $(cat "$dir/stderr")"
draw -o "$dir/out/y.png" --tp-degree 2 --seed "${seed:-0}"
cmp "$dir/out/x.png" "$dir/out/y.png" || fail "the pictures differ"
draw -o "$dir/out/z.png" --tp-degree 2
grep -q "^seed ${seed:-0}$" "$dir/stderr" && fail "the seed is always the same"
holds x.png y.png z.png
done_

case_ quiet
draw -o "$dir/out/x.png" -q
[ $rc -eq 0 ] || fail "exit code $rc"
[ ! -s "$dir/stderr" ] || fail "stderr: $(cat "$dir/stderr")"
holds x.png
done_

case_ default_name_in_this_folder
program=$(realpath "$DIFFTP") folder=$(realpath $model)
(cd "$dir/out" && "$program" --model "$folder" --prompt '' --height 64 --width 64 --steps 1 --max_sequence_length 64 -q)
(cd "$dir/out" && "$program" --model "$folder" --prompt '' --height 64 --width 64 --steps 1 --max_sequence_length 64 -q \
	--output_type latent)
holds out.png out.safetensors
done_

case_ existing_file_is_replaced
echo old >"$dir/out/x.png"
draw -o "$dir/out/x.png"
grep -q old "$dir/out/x.png" && fail "it is the old one"
holds x.png
done_

case_ nothing_is_left_when_writing_fails
(
	trap '' XFSZ
	ulimit -f 160 # the check beforehand writes 64 KB, the picture has some 190
	"$DIFFTP" --model $model --prompt x --height 256 --width 256 --steps 1 --max-sequence-length 32 -q -o "$dir/out/x.png" 2>&1
	echo "exit $?"
) | cat >"$dir/stderr"
says '^exit 1$'
says 'x\.png'
holds ''
done_

case_ prompt_that_is_cut_is_warned_of
draw -o "$dir/out/x.png" --max-sequence-length 16 --prompt "one two three four five six seven eight nine ten eleven twelve thirteen"
[ $rc -eq 0 ] || fail "exit code $rc"
says '^warning: .*thirteen'
[ "$(grep -c '^warning: ' "$dir/stderr")" -eq 1 ] || fail "more than one warning: $(cat "$dir/stderr")"
rm "$dir/out/x.png"
done_

case_ threads_are_respected
draw -o "$dir/out/x.png" --threads 1 --tp-degree 2
says 'tp 2 .*, 1 thread$'
says '^warning: 2 ranks share 1 thread'
rm "$dir/out/x.png"
done_
finish
