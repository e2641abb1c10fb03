#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is told while a run goes on: on a terminal (made by script of bsdutils), in a pipe, to programs.
. tests/lib.sh
draw="--model tests/models/klein-tiny --prompt fox --tp-degree 2 --height 64 --width 64 --steps 2 --seed 1 --max-sequence-length 32"
escape=$(printf '\033')
terminal() { # VARIABLE=VALUE... -- ARGUMENT...: what appears on it is in $dir/screen
	settings=
	while [ "$1" != -- ]; do
		settings="$settings $1"
		shift
	done
	shift
	env -u COLUMNS -u NO_COLOR TERM=xterm script -qec "env $settings '$DIFFTP' $draw --force -o '$dir/x.png' $*" /dev/null >"$dir/screen" 2>&1 </dev/null ||
		fail "exit code $?: $(cat "$dir/screen")"
}
shown() { # EXPRESSION
	grep -Eq -- "$1" "$dir/screen" || fail "nothing matches '$1': $(cat -v "$dir/screen")"
}
absent() {
	! grep -Eq -- "$1" "$dir/screen" || fail "something matches '$1': $(cat -v "$dir/screen")"
}

case_ progress_one_line_on_a_terminal
terminal --
shown "step 2/2: .* per step, .* left$escape\\[K"
shown 'wrote '
[ "$(tr '\r' '\n' <"$dir/screen" | grep -c 'step 2/2')" -ge 1 ] || fail "no step"
grep -a 'load transformer' "$dir/screen" | grep -aq 'encode the prompt' || fail "stages stand in several lines: $(cat -v "$dir/screen")"
done_
case_ progress_narrow_terminal
terminal COLUMNS=20 --
tr '\r' '\n' <"$dir/screen" | sed -n "s/$escape\\[K$//p" | awk 'length > 19' >"$dir/long"
[ ! -s "$dir/long" ] || fail "longer than 19 columns: $(cat "$dir/long")"
shown "$escape\\[K"
done_
case_ progress_dumb_terminal
terminal TERM=dumb --
absent "$escape"
shown '^step 2/2'
done_
case_ progress_colours
terminal -- --guidance-scale 3
shown "$escape\\[33mwarning:$escape\\[0m"
terminal NO_COLOR=1 -- --guidance-scale 3
absent "$escape\\[33m"
shown 'warning: --guidance-scale'
done_
case_ progress_plain_and_none_on_a_terminal
terminal -- --progress plain
absent "$escape\\[K"
shown '^step 2/2'
terminal -- --progress none
absent 'step 2/2'
shown '^wrote '
done_

case_ progress_json
# shellcheck disable=SC2086 # words
"$DIFFTP" $draw --force --progress json -o "$dir/j.png" 2>"$dir/err" || fail "exit code $?"
grep -qv '^{"event":"' "$dir/err" && fail "a line is no event: $(cat "$dir/err")"
for what in '"event":"stage","phase":"load","stage":"load transformer"' '"step":2,"steps":2,"seconds_per_step":' \
	"{\"event\":\"image\",\"path\":\"$dir/j.png\",\"width\":64,\"height\":64,\"seed\":1}" '"event":"note","text":"wrote '; do
	grep -qF -- "$what" "$dir/err" || fail "no '$what': $(cat "$dir/err")"
done
[ "$(tail -n 1 "$dir/err")" = '{"event":"end","code":0}' ] || fail "the end: $(tail -n 1 "$dir/err")"
[ "$(sed -n 's/^{"event":"memory","name":"\([a-z_]*\)","rank":0,.*"predicted_bytes":\([0-9]*\),"peak_bytes":\2,"peak_of_predicted":1,"device_used_bytes":null}$/\1/p' \
	"$dir/err" | tr '\n' ' ')" = 'text_encoder transformer vae ' ] || fail "memory: $(grep memory "$dir/err")"
# shellcheck disable=SC2086 # words
"$DIFFTP" $draw --force --progress json -q -o "$dir/j.png" 2>"$dir/err" || fail "exit code $?"
[ "$(cat "$dir/err")" = '{"event":"end","code":0}' ] || fail "with --quiet: $(cat "$dir/err")"
# shellcheck disable=SC2086 # words
"$DIFFTP" $draw --tp-degree 5 --progress json -o "$dir/j.png" 2>"$dir/err"
[ $? -eq 2 ] || fail "degree 5 is no refusal"
grep -q '^{"event":"end","code":2,"message":".*degree 5 does not divide' "$dir/err" || fail "$(cat "$dir/err")"
[ "$(wc -l <"$dir/err")" -eq 1 ] || fail "more than the end: $(cat "$dir/err")"
"$DIFFTP" decode none --model tests/models/klein-tiny --progress json 2>"$dir/err"
grep -q '^{"event":"end","code":2,"message":"cannot open ' "$dir/err" || fail "decode: $(cat "$dir/err")"
done_
finish
