#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a run leaves behind and says: files, names, streams, seeds.
. tests/lib.sh
model=tests/models/klein-tiny
mkdir "$dir/o"

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
	[ "$(ls -A "$dir/o")" = "$want" ] || fail "the folder holds: $(ls -A "$dir/o" | tr '\n' ' ')"
	rm -rf "$dir/o"
	mkdir "$dir/o"
}

case_ one_image
draw -o "$dir/o/fox.png" --seed 5 --tp-degree 2
[ $rc -eq 0 ] || fail "exit code $rc"
[ ! -s "$dir/stdout" ] || fail "stdout is not empty"
says '^Flux2KleinPipeline: 64x64, 1 step, guidance 4 \(no effect: the model is distilled\), 1 image, bf16, tp 2 \(built-in plan .flux2.\), [0-9]+ threads?$'
says "^wrote $dir/o/fox\.png \(64x64, seed 5\)$"
holds fox.png
done_

case_ several_images
draw -o "$dir/o/a.b.png" -n 3 --seed 18446744073709551615
says 'a\.b_0\.png \(64x64, seed 18446744073709551615\)$'
says 'a\.b_1\.png \(64x64, seed 0\)$'
holds a.b_0.png a.b_1.png a.b_2.png
done_

case_ seed_is_drawn_printed_and_draws_the_same
draw -o "$dir/o/x.png" --tp-degree 2
seed=$(sed -n 's/^seed \([0-9]*\)$/\1/p' "$dir/stderr")
[ -n "$seed" ] || fail "no seed was printed: $(cat "$dir/stderr")"
draw -o "$dir/o/y.png" --tp-degree 2 --seed "${seed:-0}"
cmp "$dir/o/x.png" "$dir/o/y.png" || fail "the pictures differ"
draw -o "$dir/o/z.png" --tp-degree 2
grep -q "^seed ${seed:-0}$" "$dir/stderr" && fail "the seed is always the same"
holds x.png y.png z.png
done_

case_ quiet
draw -o "$dir/o/x.png" -q
[ $rc -eq 0 ] || fail "exit code $rc"
[ ! -s "$dir/stderr" ] || fail "stderr: $(cat "$dir/stderr")"
holds x.png
done_

case_ default_name_in_this_folder
program=$(realpath "$DIFFTP") folder=$(realpath $model)
(cd "$dir/o" && "$program" --model "$folder" --prompt '' --height 64 --width 64 --steps 1 --max_sequence_length 64 -q)
(cd "$dir/o" && "$program" --model "$folder" --prompt '' --height 64 --width 64 --steps 1 --max_sequence_length 64 -q \
	--output_type latent)
holds out.png out.safetensors
done_

case_ existing_file_is_not_replaced
echo old >"$dir/o/x.png"
draw -o "$dir/o/x.png"
[ $rc -eq 2 ] || fail "exit code $rc"
says "^difftp: '$dir/o/x.png' exists: --force replaces it; or give another name, perhaps a pattern such as --output 'fox-\{seed\}.png'$"
[ "$(cat "$dir/o/x.png")" = old ] || fail "it was replaced"
echo old >"$dir/o/y_1.png"
draw -o "$dir/o/y.png" -n 2
[ $rc -eq 2 ] || fail "exit code $rc where the second of two exists"
ln -s x.png "$dir/o/link.png"
draw -o "$dir/o/link.png"
[ $rc -eq 2 ] || fail "exit code $rc for a link"
draw -o "$dir/o/x.png" --force
[ $rc -eq 0 ] || fail "exit code $rc"
grep -q old "$dir/o/x.png" && fail "it is the old one"
draw -o /dev/null
[ $rc -eq 0 ] || fail "exit code $rc for a device"
holds link.png x.png y_1.png
done_

case_ default_name_is_numbered
for n in '' '' '-n 2' '-n 2' '--force'; do
	# shellcheck disable=SC2086 # words
	(cd "$dir/o" && "$program" --model "$folder" --prompt '' --height 64 --width 64 --steps 1 --max_sequence_length 64 --tp-degree 2 \
		--dp-degree 2 $n) 2>"$dir/stderr" || fail "exit code $?: $(cat "$dir/stderr")"
done
says '^wrote out.png '
holds out-2.png out-2_0.png out-2_1.png out.png out_0.png out_1.png
done_

# appear NAME... -- ARGUMENT...: a run in o during which these files appear there: once it writes to $dir/pipe, which it is given.
appear() {
	names=
	while [ "$1" != -- ]; do
		names="$names $1"
		shift
	done
	shift
	mkfifo "$dir/pipe"
	(cd "$dir/o" && exec "$program" --model "$folder" --prompt x --height 64 --width 64 --steps 1 --tp-degree 2 \
		"$@") 2>"$dir/stderr" &
	run=$!
	exec 3<"$dir/pipe" # the run has opened it
	for n in $names; do
		echo theirs >"$dir/o/$n"
	done
	cat <&3 >/dev/null
	exec 3<&-
	wait $run
	rc=$?
	rm "$dir/pipe"
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
}

case_ what_appears_during_a_run_is_not_replaced
appear x.png g.png d.st -- --save-prompt-embeds "$dir/pipe" -o x.png --grid g.png --dump-stages d.st
for n in x.png g.png d.st; do
	[ "$(cat "$dir/o/$n")" = theirs ] || fail "$n was replaced"
	says "^warning: '$n' exists by now, .* this one is kept as '${n%.*}-2.${n##*.}'$"
done
says '^wrote x-2.png '
says '^wrote g-2.png '
holds d-2.st d.st g-2.png g.png x-2.png x.png
done_

case_ default_name_that_appears_during_a_run
appear out_1.png -- -n 2 --dump-stages "$dir/pipe"
says '^wrote out-2_1.png '
grep -q '^warning' "$dir/stderr" && fail "a warning: $(cat "$dir/stderr")"
rm "$dir/o/out-2_1.png"
appear out-2_1.png -- -n 2 --dump-stages "$dir/pipe"
says '^wrote out-3_1.png '
holds out-2_0.png out-2_1.png out-3_1.png out_0.png out_1.png
done_

case_ patterns
draw -o "$dir/o/new/{prompt}/{seed}.png" -n 2 --seed 7 --dp-degree 2
says "^wrote $dir/o/new/a-red-fox/8.png \(64x64, seed 8\)$"
draw -o "$dir/o/{index}.png" -n 2 --seed 7
draw -o "$dir/o/{{{prompt}}}.png" -n 2 --seed 7 --prompt "../../Ein Füchslein, x_1!"
draw -o "$dir/o/{seed}.png"
seed=$(sed -n 's/^seed \([0-9]*\)$/\1/p' "$dir/stderr")
[ -e "$dir/o/$seed.png" ] || fail "no $seed.png: $(ls "$dir/o")"
rm -f "$dir/o/$seed.png"
draw -o "$dir/o/new/{prompt}/{seed}.png" --seed 8
[ $rc -eq 2 ] || fail "exit code $rc where it exists"
[ "$(ls "$dir/o/new/a-red-fox")" = '7.png
8.png' ] || fail "$(ls "$dir/o/new")"
holds 0000.png 0001.png new "$(printf '{ein-füchslein-x_1}_0.png\n{ein-füchslein-x_1}_1.png')"
done_

# ---- sheets
case_ grid
for dp in 1 2; do
	draw -o "$dir/o/a.png" -n 5 --seed 3 --dp-degree $dp --grid "$dir/o/sheet$dp.png" --force
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	says "^wrote $dir/o/sheet$dp.png \(192x128, a sheet of 5\)$"
done
cmp "$dir/o/sheet1.png" "$dir/o/sheet2.png" || fail "two replicas make another sheet"
draw -o "$dir/o/a.png" -n 5 --seed 3 --grid "$dir/o/sheet1.png" --force --no-metadata
"$DIFFTP" --from "$dir/o/sheet2.png" -o "$dir/o/b.png" --grid "$dir/o/sheet3.png" -q 2>"$dir/stderr" || fail "$(cat "$dir/stderr")"
cmp "$dir/o/sheet2.png" "$dir/o/sheet3.png" || fail "--from draws another sheet"
holds a_0.png a_1.png a_2.png a_3.png a_4.png b_0.png b_1.png b_2.png b_3.png b_4.png sheet1.png sheet2.png sheet3.png
done_

# ---- refused
set -- --model $model --prompt x --height 64 --width 64 --steps 1 --max-sequence-length 32
refuse unknown_field "output '.*\{sed\}.png': '\{sed\}' stands for nothing: did you mean 'seed'\?$" "$@" -o "$dir/o/{sed}.png"
refuse field_that_is_nothing "output '\{\}.png': '\{\}' stands for nothing; there are \{seed\}, \{index\} and \{prompt\}, and '\{\{' is a brace$" "$@" -o '{}.png'
refuse brace_without_a_partner "output 'a\{seed.png': a brace has no partner; '\{\{' and '\}\}' stand for one$" "$@" -o 'a{seed.png'
refuse grid_in_no_folder "cannot write '$dir/none/s.png': the folder '$dir/none' does not exist$" "$@" -o "$dir/o/x.png" --grid "$dir/none/s.png"
refuse grid_as_jpeg "'s.jpg': only PNG files are written, not '.jpg'; name it '.png'$" "$@" --grid s.jpg
refuse grid_over_the_stages "--grid and --dump-stages would both write '$dir/o/s.st'$" "$@" -o "$dir/o/x.png" --grid "$dir/o/s.st" --dump-stages "$dir/o/s.st"
refuse grid_of_nothing "option '--grid' is about a picture, but with --save-prompt-embeds nothing is drawn unless --output is given$" "$@" \
	--save-prompt-embeds "$dir/o/e.safetensors" --grid "$dir/o/none.png"
refuse grid_of_latents "--grid is a sheet of pictures: it cannot be given with --output-type latent$" "$@" --output-type latent --grid s.png
refuse grid_over_an_image "--output and --grid would both write '$dir/o/x_1.png'$" "$@" -n 2 -o "$dir/o/x.png" --grid "$dir/o/x_1.png"
ln -s . "$dir/o/here"
ln -s x.png "$dir/o/link.png"
refuse grid_over_an_image_spelled_otherwise "--output and --grid would both write '$dir/o/\./x_1.png'$" "$@" -n 2 -o "$dir/o/x.png" --grid "$dir/o/./x_1.png"
refuse grid_over_an_image_through_a_folder "--output and --grid would both write '$dir/o/here/x.png'$" "$@" -o "$dir/o/x.png" --grid "$dir/o/here/x.png"
refuse grid_over_an_image_through_a_link "--output and --grid would both write '$dir/o/link.png'$" "$@" -f -o "$dir/o/x.png" --grid "$dir/o/link.png"
refuse grid_over_the_stages_spelled_otherwise "--grid and --dump-stages would both write '$dir/o//s.st'$" "$@" -o "$dir/o/x.png" --grid "$dir/o/s.st" \
	--dump-stages "$dir/o//s.st"
refuse embeds_over_the_stages_spelled_otherwise "--save-prompt-embeds and --dump-stages would both write '$dir/o/../o/s.st'$" "$@" -o "$dir/o/x.png" \
	--save-prompt-embeds "$dir/o/s.st" --dump-stages "$dir/o/../o/s.st"
rm "$dir/o/here" "$dir/o/link.png"
echo mine >"$dir/o/s.png"
refuse grid_that_exists "'$dir/o/s.png' exists: --force replaces it" "$@" -o "$dir/o/x.png" --grid "$dir/o/s.png"
rm "$dir/o/s.png"

case_ nothing_is_left_when_writing_fails
(
	trap '' XFSZ
	ulimit -f 160 # the check beforehand writes 64 KB, the picture has some 190
	"$DIFFTP" --model $model --prompt x --height 256 --width 256 --steps 1 --max-sequence-length 32 -q -o "$dir/o/x.png" 2>&1
	echo "exit $?"
) | cat >"$dir/stderr"
says '^exit 1$'
says 'x\.png'
holds ''
done_

case_ prompt_that_is_cut_is_warned_of
draw -o "$dir/o/x.png" --max-sequence-length 16 --prompt "one two three four five six seven eight nine ten eleven twelve thirteen"
[ $rc -eq 0 ] || fail "exit code $rc"
says '^warning: .*thirteen'
[ "$(grep -c '^warning: ' "$dir/stderr")" -eq 1 ] || fail "more than one warning: $(cat "$dir/stderr")"
rm "$dir/o/x.png"
done_

case_ threads_are_respected
draw -o "$dir/o/x.png" --threads 1 --tp-degree 2
says 'tp 2 .*, 1 thread$'
says '^warning: 2 ranks share 1 thread'
rm "$dir/o/x.png"
done_
finish
