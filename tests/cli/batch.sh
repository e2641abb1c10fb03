#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp --prompts: lines, names, seeds, what is loaded when, stdin as it comes, --resume, failures, interruptions.
. tests/lib.sh
model=tests/models/klein-tiny
small='--height 64 --width 64 --steps 2 --max-sequence-length 32 --timeout 3'
into=$dir/b # folders of images; the rest of $dir is this script's own
mkdir "$into" "$into/empty"

# batch FOLDER ARGUMENT...: what it prints is in $dir/stdout and $dir/stderr.
batch() {
	folder=$into/$1
	shift
	# shellcheck disable=SC2086 # words
	"$DIFFTP" --model $model $small -o "$folder" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ ! -s "$dir/stdout" ] || fail "stdout is not empty"
}
# single FILE ARGUMENT...: a picture of a run of its own.
single() {
	file=$1
	shift
	# shellcheck disable=SC2086 # words
	"$DIFFTP" --model $model $small -q --force -o "$file" "$@" 2>"$dir/single" </dev/null || fail "$(cat "$dir/single")"
}
exits() { # CODE
	[ $rc -eq "$1" ] || fail "exit code $rc, not $1: $(cat "$dir/stderr")"
}
says() { # EXPRESSION: a line of stderr
	grep -Eq -- "$1" "$dir/stderr" || fail "no line of stderr matches '$1': $(cat "$dir/stderr")"
}
holds() { # FOLDER NAME...: all files in it
	found=$(cd "$into/$1" && find . -type f | sed 's|^\./||' | LC_ALL=C sort)
	shift
	[ "$found" = "$(printf '%s\n' difftp-batch.jsonl "$@" | LC_ALL=C sort)" ] || fail "the folder holds: $found"
}
same() { # FILE FILE
	cmp -s "$1" "$2" || fail "$1 and $2 differ"
}
drawn() { # the numbers of what this run has drawn, in order
	grep -Eo '^wrote .*/[^ ]+' "$dir/stderr" | sed 's|.*/||' | LC_ALL=C sort | tr '\n' ' '
}

# ---- lines
cat >"$dir/lines" <<'END'
a red fox

{"prompt": "a cat", "height": 32, "output": "sub/cat.png", "num_images": 2}
{"prompt": "a house", "seed": "18446744073709551615", "steps": 3, "max_sequence_length": 32}
# not a comment
END
printf '{"prompt": "the last", "guidance": 2.5, "num_inference_steps": 1, "seed": 7}\r\n no line break' >>"$dir/lines"

case_ every_image_is_that_of_a_run_of_its_own
batch out --prompts "$dir/lines" --seed 100
exits 0
holds out 0000.png sub/cat_0.png sub/cat_1.png 0003.png 0004.png 0005.png 0006.png
single "$dir/x.png" --prompt "a red fox" --seed 100
same "$dir/x.png" "$into/out/0000.png"
single "$dir/x.png" --prompt "a cat" --height 32 --seed 102
same "$dir/x.png" "$into/out/sub/cat_1.png"
single "$dir/x.png" --prompt "a house" --seed 18446744073709551615 --steps 3 --max-sequence-length 32
same "$dir/x.png" "$into/out/0003.png"
single "$dir/x.png" --prompt "# not a comment" --seed 104
same "$dir/x.png" "$into/out/0004.png"
single "$dir/x.png" --prompt "the last" --steps 1 --seed 7 --guidance-scale 2.5
same "$dir/x.png" "$into/out/0005.png"
single "$dir/x.png" --prompt " no line break" --seed 106
same "$dir/x.png" "$into/out/0006.png"
says "^Flux2KleinPipeline: prompts of $dir/lines, where they say nothing else 64x64, 2 steps, guidance 4 .*, 1 image a line, bf16, tp 1 "
says "^$dir/lines: 7 images$"
says '^image 2/7 step 1/2'
says "^wrote $into/out/sub/cat_1.png \(64x32, seed 102\)$"
says '^drew 7 images in .*; rank 0 loaded the text encoder 1, the transformer 1, the VAE 1 time: [0-9.]+ MB$'
done_

case_ same_files_at_every_degree
batch two --prompts "$dir/lines" --seed 100 --tp-degree 2
exits 0
for degrees in '2 1' '3 1' '2 2' '3 2'; do
	batch some --prompts "$dir/lines" --seed 100 --dp-degree "${degrees% *}" --tp-degree "${degrees#* }"
	exits 0
	[ "${degrees#* }" = 1 ] && whole=out || whole=two
	diff -r -x '*.jsonl' "$into/$whole" "$into/some" >"$dir/diff" || fail "dp x tp = $degrees: $(cat "$dir/diff")"
	[ "$(LC_ALL=C sort "$into/$whole/difftp-batch.jsonl")" = "$(LC_ALL=C sort "$into/some/difftp-batch.jsonl")" ] ||
		fail "dp x tp = $degrees: another record"
	rm -r "$into/some"
done
done_

case_ guidance_and_references_of_lines
cp -r $model "$dir/base"
sed -i 's/"is_distilled": true/"is_distilled": false/' "$dir/base/model_index.json"
printf 'one\n{"prompt": "two", "negative_prompt": "bad", "guidance_scale": 3}\n{"prompt": "three", "guidance": 1}\n' >"$dir/guided"
set -- --image tests/reference/klein-edit-tiny/input_ref_a.png
batch guided --prompts "$dir/guided" --model "$dir/base" --seed 3 "$@" --tp-degree 2
exits 0
single "$dir/x.png" --prompt two --negative-prompt bad --guidance-scale 3 --model "$dir/base" --seed 4 "$@" --tp-degree 2
same "$dir/x.png" "$into/guided/0001.png"
single "$dir/x.png" --prompt three --guidance-scale 1 --model "$dir/base" --seed 5 "$@" --tp-degree 2
same "$dir/x.png" "$into/guided/0002.png"
batch guided --prompts "$dir/guided" --model "$dir/base" --seed 3 --image tests/reference/klein-edit-tiny/input_ref_b.png --tp-degree 2 \
	--resume
[ "$(drawn)" = '0000.png 0001.png 0002.png ' ] || fail "with another reference: drew $(drawn)"
done_

case_ patterns_of_names
printf 'A red fox, in snow!\n{"prompt": "Ein Füchslein", "num_images": 2, "seed": 7}\n{"prompt": "x", "output": "{prompt}/of-{index}.png"}\n' >"$dir/named"
printf '{"prompt": "y", "output": "{promt}.png"}\n' >>"$dir/named"
batch 'by/{prompt}-{seed}.png' --prompts "$dir/named" --seed 100
exits 1
holds by a-red-fox-in-snow-100.png ein-füchslein-7.png ein-füchslein-8.png x/of-0003.png
says "^warning: $dir/named:4: output '\{promt\}.png': '\{promt\}' stands for nothing: did you mean 'prompt'\?$"
batch 'by/{prompt}-{seed}.png' --prompts "$dir/named" --seed 100 --resume
[ "$(drawn)" = '' ] || fail "drew $(drawn)"
done_

case_ latents
batch latents --prompts "$dir/lines" --output-type latent -n 2
exits 1
says '^warning: .*lines:3: .sub/cat.png. names a picture, but latents are written as .\.safetensors.$'
says '^difftp: 2 of 12 images failed: the warnings above say why$'
holds latents 0000.safetensors 0001.safetensors 0004.safetensors 0005.safetensors 0006.safetensors 0007.safetensors 0008.safetensors \
	0009.safetensors 0010.safetensors 0011.safetensors
done_

case_ lines_that_fail
printf '\357\273\277good\n{"prompt":"x","heigth":3}\n{"prompt":"x","height":50}\n{"prompt":3}\n{"height":64}\n{x}\n' >"$dir/bad"
printf '{"prompt":"x","seed":20000000000000000}\n{"prompt":"x","steps":"4"}\n{"prompt":"x","steps":1.5}\nbad \377 byte\n' >>"$dir/bad"
printf '{"prompt":"x","output":"../x.png"}\n{"prompt":"x","output":"0000.png"}\n{"prompt":"x","output":"x.jpg"}\n' >>"$dir/bad"
printf '{"prompt":"x","num_images":3,"tp_degree":2}\n{"prompt":"x","steps":1,"num_steps":2}\nalso good\n' >>"$dir/bad"
batch bad --prompts "$dir/bad" --seed 5
exits 1
holds bad 0000.png 0017.png
sed -n "s|^warning: $dir/bad:||p" "$dir/stderr" >"$dir/warnings"
cat >"$dir/expected" <<'END'
2: 'heigth' is no key of a line: did you mean 'height'?
3: height 50 is not a multiple of 16; the nearest that are: 48 and 64
4: 'prompt' is a number, expected a string
5: the key 'prompt' is missing
6: column 2 of an object (the line begins with '{'): malformed JSON: expected a key in double quotes, found 'x'
7: 'seed' is too large for a JSON number to be exact: write it as a string
8: 'steps' is a string, expected a number
9: option '--steps': '1.5' is not a whole number (1 to 1000)
10: byte 0xff at offset 4 is not valid UTF-8
11: output '../x.png' would leave its folder or names none: give a relative name without '.', '..' and '//'
12: line 1 writes '0000.png' already
13: 'x.jpg': only PNG files are written, not '.jpg'; name it '.png'
14: 'tp_degree' is no key of a line
15: 'num_steps' says again what another key says
END
diff "$dir/expected" "$dir/warnings" >"$dir/diff" || fail "$(cat "$dir/diff")"
says '^difftp: 16 of 18 images failed: the warnings above say why$'
says "^wrote .*/0017.png \(64x64, seed 22\)$"
done_

case_ images_of_a_line_that_fail_for_others_reasons_leave_the_rest
(
	trap '' XFSZ
	ulimit -f 160 # the picture of the second line has some 190 KB
	# shellcheck disable=SC2086 # words
	printf 'a\n{"prompt":"b","height":256,"width":256}\nc\n' | "$DIFFTP" --model $model $small --prompts - -o "$into/full" 2>&1
	echo "exit $?"
) | cat >"$dir/stderr"
says '^exit 1$'
says "^warning: stdin:2: cannot write '$into/full/0001\.png': File too large$"
says '^difftp: 1 of 3 images failed: the warnings above say why$'
holds full 0000.png 0002.png
done_

# All ranks meet for it, whatever has become of the images.
case_ memory_is_compared_where_an_image_fails
(
	trap '' XFSZ
	ulimit -f 160
	# shellcheck disable=SC2086 # words
	printf 'a\n{"prompt":"b","height":256,"width":256}\n' | "$DIFFTP" --model $model $small --tp-degree 2 --progress json --prompts - -o "$into/unwritten" 2>&1
	echo "exit $?"
) | cat >"$dir/stderr"
says '^exit 1$'
says '"1 of 2 images failed'
[ "$(grep -c '^{"event":"memory"' "$dir/stderr")" -eq 3 ] || fail "no memory is told: $(cat "$dir/stderr")"
! grep -q 'peer' "$dir/stderr" || fail "a rank has lost another: $(cat "$dir/stderr")"
done_

# ---- what stays loaded
printf 'a\nb\nc\nd\n' >"$dir/four"
case_ what_does_not_fit_beside_each_other_goes_in_turn
batch all --prompts "$dir/four" --seed 1
for limit in 1GB:1:1 141MB:1:1 140MB:1:1 139MB:4:4; do
	loads=${limit#*:}
	batch level --prompts "$dir/four" --seed 1 --force --max-memory "${limit%%:*}"
	exits 0
	says "loaded the text encoder ${loads%:*}, the transformer ${loads#*:}, "
	diff -r -x '*.jsonl' "$into/all" "$into/level" >"$dir/diff" || fail "$limit: $(cat "$dir/diff")"
done
says "^text encoder: rank 0 \(CPU\), phase 'text_encoder'; freed before the transformer: all three would need 142 MB of 139 MB$"
says "^transformer: rank 0 \(CPU\), phase 'transformer'; freed before the VAE: it and the other would need 140 MB of 139 MB$"
batch level --prompts "$dir/four" --seed 1 --force --max-memory 141MB
says "^text encoder: .*, phase 'text_encoder'; freed before .* would need .*; up to 32 prompts are encoded at a time$"
says "^VAE: rank 0 \(CPU\), phases 'transformer' to 'vae'; kept: [0-9.]+ [Mk]B of 141 MB stay free$"
for choice in none:1:1:1 stage:4:4:4 auto:1:1:1; do
	for tp in 1 2; do
		batch offload --prompts "$dir/four" --seed 1 --force --offload "${choice%%:*}" --tp-degree $tp
		exits 0
		says "^drew 4 images in .* rank 0 loaded the text encoder $(echo "$choice" | sed 's/.*:\(.\):\(.\):\(.\)/\1, the transformer \2, the VAE \3/') "
		[ $tp = 1 ] && first=$into/all || first=$into/two-ranks
		[ $tp = 1 ] || [ -d "$first" ] || cp -r "$into/offload" "$first"
		diff -r -x '*.jsonl' "$first" "$into/offload" >"$dir/diff" || fail "$choice, tp $tp: $(cat "$dir/diff")"
	done
done
batch none --prompts "$dir/four" --seed 1 --offload none --max-memory 141MB
exits 2
says '^warning: .*four:1: not enough memory for --offload none: rank 0 needs 142 MB at the peak, --max-memory allows 141 MB$'
says '^--offload stage needs 138 MB and fits$'
# All three fit beside each other for the first line, not for the second: its prompt is encoded when the other two are gone.
printf 'a\n{"prompt":"b","height":96,"width":96}\n' >"$dir/larger"
batch less --prompts "$dir/larger" --seed 1 --max-memory 142300kB
exits 0
says 'freed before the transformer: all three would need 143 MB of 142 MB'
says 'rank 0 loaded the text encoder 1, the transformer 2, the VAE 2 times'
printf 'a\n{"prompt":"b","height":1024,"width":1024}\n{"prompt":"c","height":1024,"width":1024}\n' >"$dir/large"
batch large --prompts "$dir/large" --seed 1 --max-memory 160MB
exits 1
says '^warning: .*large:2: not enough memory: rank 0 needs [0-9.]+ [MG]B at the peak, --max-memory allows 160 MB$'
says '^warning: .*large:3: as line 2$'
holds large 0000.png
done_

# ---- stdin
# feeding FOLDER ARGUMENT...: a batch in the background that reads from descriptor 3.
feeding() {
	folder=$into/$1
	shift
	rm -f "$dir/pipe"
	mkfifo "$dir/pipe"
	# shellcheck disable=SC2086 # words
	"$DIFFTP" --model $model $small --prompts - -o "$folder" --timeout 0.5 "$@" <"$dir/pipe" >"$dir/stdout" 2>"$dir/stderr" &
	pid=$!
	exec 3>"$dir/pipe"
}
comes() { # FILE within 20 s
	for _ in $(seq 400); do
		[ -s "$1" ] && return
		sleep 0.05
	done
	fail "$1 does not come: $(cat "$dir/stderr")"
}
ended() {
	exec 3>&-
	wait "$pid"
	rc=$?
}
for degrees in '1 1' '1 2' '2 1'; do
	case_ "stdin_is_drawn_as_it_comes_$(echo "$degrees" | tr ' ' _)"
	rm -rf "$into/in"
	feeding in --dp-degree "${degrees% *}" --tp-degree "${degrees#* }" --seed 3
	echo "a red fox" >&3
	comes "$into/in/0000.png"
	sleep 2 # more than the timeout: waiting for a person has none
	kill -0 "$pid" || fail "it has not waited: $(cat "$dir/stderr")"
	[ ! -e "$into/in/0001.png" ] || fail "what is 0001.png?"
	printf '{"prompt": "a dog"' >&3
	sleep 0.3
	printf ', "seed": 4}\n{"prompt":\nthe end' >&3
	comes "$into/in/0001.png"
	ended
	exits 1
	says "^warning: stdin:3: column 11 of an object"
	says '^wait for a prompt$'
	[ "${degrees% *}" = 2 ] || says '^image 2 step 2/2'
	holds in 0000.png 0001.png 0003.png
	done_
done

case_ stdin_that_does_not_fit_is_grouped_by_what_has_arrived
feeding groups --seed 1 --max-memory 141MB
cat "$dir/four" >&3
comes "$into/groups/0003.png"
cat "$dir/four" >&3
comes "$into/groups/0007.png"
ended
exits 0
says '^drew 8 images in .*; rank 0 loaded the text encoder [2-5], the transformer [2-5], '
for i in 0 1 2 3; do
	same "$into/all/000$i.png" "$into/groups/000$i.png"
done
done_

case_ empty_stdin_is_no_error
batch nothing --prompts -
exits 0
says '^drew 0 images in '
holds nothing
done_

case_ blank_lines_of_stdin_cost_nothing_and_count
rm -rf "$into/blank"
# The launcher, which keeps the deadlines, has one thread: were they its work, this would take it minutes of processor time.
# shellcheck disable=SC2086 # words
{
	printf '\357\273\277 \t\r\n'
	head -c 199999 /dev/zero | tr '\0' '\n'
	printf '{\n \na fox\n'
} | (
	# shellcheck disable=SC3045 # every sh has it
	ulimit -t 20
	exec "$DIFFTP" --model $model $small --prompts - -o "$into/blank" --dp-degree 2
) >"$dir/stdout" 2>"$dir/stderr"
rc=$?
exits 1
says '^warning: stdin:200001: column 2 of an object'
says '^1 of 2 images failed|: 1 of 2 images failed'
holds blank 0001.png
done_

# ---- interruptions
batch whole --prompts "$dir/four" --seed 1 --steps 150
case_ first_interrupt_finishes_the_image
# shellcheck disable=SC2086 # words
"$DIFFTP" --model $model $small --prompts "$dir/four" --seed 1 --steps 150 -o "$into/int" 2>"$dir/stderr" </dev/null &
pid=$!
comes "$into/int/0000.png"
until grep -q '^image 2/4' "$dir/stderr"; do sleep 0.02; done
kill -INT $pid
wait $pid
rc=$?
exits 130
says '^interrupted: finishing the image at hand; interrupt again to end now$'
says '^difftp: interrupted: 2 images are left; --resume goes on with what is left$'
holds int 0000.png 0001.png
same "$into/int/0001.png" "$into/whole/0001.png"
batch int --prompts "$dir/four" --seed 1 --steps 150 --resume
exits 0
[ "$(drawn)" = '0002.png 0003.png ' ] || fail "drew $(drawn)"
says '^drew 2 images \(2 were there already\) in '
diff -r -x '*.jsonl' "$into/whole" "$into/int" >"$dir/diff" || fail "$(cat "$dir/diff")"
done_

case_ second_interrupt_ends_now
# shellcheck disable=SC2086 # words
"$DIFFTP" --model $model $small --prompts "$dir/four" --seed 1 --steps 1000 -o "$into/twice" --tp-degree 2 2>"$dir/stderr" </dev/null &
pid=$!
until grep -q '^image 1/4' "$dir/stderr"; do sleep 0.02; done
kill -INT $pid
until grep -q '^interrupted: finishing' "$dir/stderr"; do sleep 0.02; done
kill -INT $pid
wait $pid
rc=$?
exits 130
says '^difftp: interrupted$'
holds twice
done_

case_ interrupt_while_waiting
feeding waits --seed 1 --tp-degree 2
echo one >&3
comes "$into/waits/0000.png"
kill -INT "$pid"
wait "$pid"
rc=$?
exec 3>&-
exits 130
says '^difftp: interrupted: 0 images are left$'
done_

# ---- faults, and --resume
${CC:-cc} -shared -fPIC -D_GNU_SOURCE -Icore -Icli -o "$dir/fault.so" tests/fault_preload.c -ldl || exit 1
# threadless NAME NUMBER MESSAGE: the thread of this number cannot be started, and the message says why.
threadless() {
	case_ "no_thread_$1"
	(
		ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0 LD_PRELOAD=$dir/fault.so FAULT_RANK=0 FAULT_THREAD=$2
		export ASAN_OPTIONS LD_PRELOAD FAULT_RANK FAULT_THREAD
		# shellcheck disable=SC2086 # words
		exec "$DIFFTP" --model $model $small --prompts - --threads 1 -o "$into/threadless" 2>"$dir/stderr" </dev/null
	)
	rc=$?
	exits 1
	says "^difftp: .*$3: Resource temporarily unavailable$"
	done_
}
threadless that_reports 1 'rank 0 cannot report to its launcher'
threadless that_reads_stdin 2 'cannot start reading stdin'

if [ -z "$SANITIZED" ]; then # they take several times the memory
	case_ file_of_a_gibibyte_is_read_and_no_more
	truncate -s 1073741824 "$dir/huge"
	batch huge --prompts "$dir/huge" --timeout 100
	exits 2
	says "^warning: $dir/huge:1: the line has 1073741824 bytes, at most 1048576 are taken$"
	says "^difftp: no line of '$dir/huge' can be drawn"
	(
		# shellcheck disable=SC3045 # every sh has it
		ulimit -v 1000000
		# shellcheck disable=SC2086 # words
		exec "$DIFFTP" --model $model $small --timeout 100 --prompts "$dir/huge" --threads 1 -o "$into/no_memory" 2>"$dir/stderr" </dev/null
	)
	rc=$?
	exits 1
	says "^difftp: .*: out of memory for the lines of '$dir/huge'$"
	truncate -s 1073741825 "$dir/huge"
	batch larger --prompts "$dir/huge" --timeout 100
	exits 2
	says "^difftp: '$dir/huge' is too large: at most 1073741824 bytes are read$"
	rm "$dir/huge"
	done_
fi

case_ resume_after_a_kill
(
	ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0 LD_PRELOAD=$dir/fault.so FAULT_RANK=1 FAULT_DO=kill
	FAULT_STAGE='image 3/4 step 2' FAULT_MARK=$dir/mark
	export ASAN_OPTIONS LD_PRELOAD FAULT_RANK FAULT_DO FAULT_STAGE FAULT_MARK
	# shellcheck disable=SC2086 # words
	exec "$DIFFTP" --model $model $small --prompts "$dir/four" --seed 1 --tp-degree 2 -o "$into/killed" 2>"$dir/stderr" </dev/null
)
rc=$?
exits 1
says "^difftp: rank 1 on .* was killed by SIGKILL .* in 'image 3/4 step 2/2'"
holds killed 0000.png 0001.png
printf '{"file":"0002.png","bytes":3,' >>"$into/killed/difftp-batch.jsonl" # as if it had been killed while it wrote
batch killed --prompts "$dir/four" --seed 1 --tp-degree 2 --resume
exits 0
says '^warning: .*difftp-batch.jsonl: 1 line cannot be read'
[ "$(drawn)" = '0002.png 0003.png ' ] || fail "drew $(drawn)"
batch killed --prompts "$dir/four" --seed 1 --tp-degree 2 --resume --dp-degree 2
exits 0
[ "$(drawn)" = '' ] || fail "drew $(drawn)"
says '^drew 0 images \(4 were there already\) in .*; rank 0 loaded the text encoder 0,'
done_

case_ resume_draws_what_has_changed
batch again --prompts "$dir/four" --seed 1
sed 's/^b$/B/' "$dir/four" >"$dir/changed"
rm "$into/again/0002.png"
echo more >>"$into/again/0003.png"
batch again --prompts "$dir/changed" --seed 1 --resume
[ "$(drawn)" = '0001.png 0002.png 0003.png ' ] || fail "drew $(drawn)"
for change in '--seed 2' '--steps 3' '--height 32' '--dtype fp32' '--max-sequence-length 33' '--exact-timesteps' '--tp-degree 2' \
	'--guidance-scale 3'; do
	# shellcheck disable=SC2086 # words
	batch again --prompts "$dir/changed" --seed 1 $change --resume
	[ "$(drawn)" = '0000.png 0001.png 0002.png 0003.png ' ] || fail "$change: drew $(drawn)"
done
batch again --prompts "$dir/changed" --seed 1 --force
cp -r $model "$dir/copy"
batch again --prompts "$dir/changed" --seed 1 --model "$dir/copy" --resume
[ "$(drawn)" = '' ] || fail "drew $(drawn) with the same model elsewhere"
printf ' ' >>"$dir/copy/scheduler/scheduler_config.json"
batch again --prompts "$dir/changed" --seed 1 --model "$dir/copy" --resume
[ "$(drawn)" = '0000.png 0001.png 0002.png 0003.png ' ] || fail "another model: drew $(drawn)"
done_

case_ resume_goes_on_with_the_seed_of_the_record
batch seed --prompts "$dir/four"
exits 0
seed=$(sed -n 's/^seed \([0-9]*\)$/\1/p' "$dir/stderr")
rm "$into/seed/0002.png"
batch seed --prompts "$dir/four" --resume
says "^seed ${seed:-none} \(the record's\)$"
[ "$(drawn)" = '0002.png ' ] || fail "drew $(drawn)"
done_

case_ force_draws_all_again
batch again --prompts "$dir/four" --seed 1 --force
[ "$(drawn)" = '0000.png 0001.png 0002.png 0003.png ' ] || fail "drew $(drawn)"
done_

case_ earlier_images_are_not_replaced
batch again --prompts "$dir/four" --seed 1
exits 2
says "^difftp: '$into/again' holds an earlier batch: --resume goes on with it, --force draws all of it anew; or give another folder$"
mkdir "$into/kept"
echo mine >"$into/kept/0001.png"
batch kept --prompts "$dir/four" --seed 1 --dp-degree 2
exits 1
says "^rank 1: warning: $dir/four:2: '$into/kept/0001.png' exists: --force replaces it"
[ "$(grep -c 'warning: ' "$dir/stderr")" -eq 1 ] || fail "other warnings: $(cat "$dir/stderr")"
[ "$(drawn)" = '0000.png 0002.png 0003.png ' ] || fail "drew $(drawn)"
[ "$(cat "$into/kept/0001.png")" = mine ] || fail "it was replaced"
batch kept --prompts "$dir/four" --seed 1 --resume
exits 0
[ "$(drawn)" = '0001.png ' ] || fail "drew $(drawn)"
done_

case_ one_run_in_a_folder
feeding busy --seed 1
echo one >&3
comes "$into/busy/0000.png"
cp "$dir/stderr" "$dir/first"
# shellcheck disable=SC2086 # words
"$DIFFTP" --model $model $small --prompts "$dir/four" -o "$into/busy" 2>"$dir/second" </dev/null
[ $? -eq 2 ] || fail "the second run was not refused"
grep -q "^difftp: another run of difftp is drawing into '$into/busy': wait for its end, or name another folder$" "$dir/second" ||
	fail "$(cat "$dir/second")"
ended
exits 0
holds busy 0000.png
done_

# ---- refused before any rank is started
set -- --model $model --height 64 --width 64 --steps 1 --max-sequence-length 16 -q
refuse both_kinds_of_prompts '--prompt and --prompts: give one of them' "$@" --prompt x --prompts "$dir/four"
refuse stages_of_many '--dump-stages records one prompt: it cannot be given with --prompts' "$@" --prompts "$dir/four" --dump-stages x
refuse resume_and_force '--resume and --force: give one of them' "$@" --prompts "$dir/four" --resume --force
refuse grid_of_a_batch "--grid is a sheet of one prompt's images: it cannot be given with --prompts" "$@" --prompts "$dir/four" --grid "$dir/never.png"
refuse pattern_of_another_format "'\{seed\}.jpg': only PNG files are written, not '.jpg'" "$@" --prompts "$dir/four" -o "$dir/never/{seed}.jpg"
refuse resume_of_nothing '--resume goes on with a batch: it needs --prompts' "$@" --prompt x --resume
refuse missing_file "cannot read '$dir/none': No such file or directory" "$@" --prompts "$dir/none" -o "$dir/never"
refuse folder_of_prompts "'$dir' is a folder, --prompts takes a file of lines" "$@" --prompts "$dir" -o "$dir/never"
[ ! -e "$dir/never" ] || echo "not ok nothing_is_made_for_what_is_refused"
refuse output_is_a_file "'$dir/four' is no folder: with --prompts, --output names one" "$@" --prompts "$dir/four" -o "$dir/four"
refuse folder_in_no_folder "cannot make the folder '$dir/none/x': No such file or directory" "$@" --prompts "$dir/four" -o "$dir/none/x"
printf ' \n\t\n' >"$dir/blank"
refuse no_lines "'$dir/blank' has no prompt" "$@" --prompts "$dir/blank" -o "$dir/empty"
printf '{}\n{"prompt":"x","height":7}\n' >"$dir/allbad"
expect no_line_is_good 2 '^$' "^difftp: no line of '$dir/allbad' can be drawn: what is wrong with each stands above" "$@" \
	--prompts "$dir/allbad" -o "$into/empty"
finish
