#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --show and --preview: what is drawn in which terminal (as script of bsdutils makes them), and where nothing is.
. tests/lib.sh
draw="--model tests/models/klein-tiny --prompt fox --tp-degree 2 --height 64 --width 64 --steps 2 --seed 1 --max-sequence-length 32"
escape=$(printf '\033')
screen() { # "VARIABLE=VALUE ..." ARGUMENT...: what appears is in $dir/screen
	settings=$1
	shift
	env -u COLORTERM -u NO_COLOR -u TERM_PROGRAM -u LC_TERMINAL script -qec \
		"env COLUMNS=60 TERM=xterm-256color $settings '$DIFFTP' $draw --force -o '$dir/x.png' $*" /dev/null >"$dir/screen" 2>&1 </dev/null ||
		fail "$settings $*: exit code $?: $(cat -v "$dir/screen" | head -n 20)"
}
shown() { # EXPRESSION
	LC_ALL=C grep -aEq -- "$1" "$dir/screen" || fail "nothing matches '$1': $(cat -v "$dir/screen" | cut -c1-200 | head -n 20)"
}
absent() {
	! LC_ALL=C grep -aEq -- "$1" "$dir/screen" || fail "something matches '$1'"
}
count() { # TEXT: how often
	LC_ALL=C grep -aoF -- "$1" "$dir/screen" | wc -l
}

case_ show_draws_half_blocks
screen COLORTERM=truecolor --show
shown "$escape\\[38;2;[0-9]+;[0-9]+;[0-9]+;48;2;"
shown '▄|▀|▌|▐'
[ "$(count "${escape}7")" -eq 1 ] || fail "$(count "${escape}7") pictures, not 1"
shown 'wrote '
done_
case_ show_takes_the_terminals_graphics
screen TERM=xterm-kitty --show
shown "${escape}_Ga=T"
screen TERM=foot --show
shown "${escape}P[0-9;]*q"
screen "TERM_PROGRAM=iTerm.app LC_TERMINAL=iTerm2" --show
shown "$escape\\]1337;File="
done_
case_ show_without_colours
screen NO_COLOR=1 --show
absent "$escape\\[[34]8;"
[ "$(count "${escape}7")" -eq 1 ] || fail "no picture"
done_
case_ show_in_few_columns
screen "COLUMNS=12 TERM=xterm-kitty" --show
shown "${escape}_Ga=T,.*,c=1?[0-9],r="
done_

case_ preview_after_each_step
cp "$dir/x.png" "$dir/plain.png"
screen TERM=xterm-kitty --preview
[ "$(count "${escape}_Ga=T")" -eq 2 ] || fail "$(count "${escape}_Ga=T") pictures for 2 steps"
[ "$(LC_ALL=C grep -aoE "$escape\\[[0-9]+A$escape\\[J" "$dir/screen" | wc -l)" -eq 1 ] || fail "the second is not in the place of the first"
cmp -s "$dir/x.png" "$dir/plain.png" || fail "with a preview it is another picture"
screen TERM=xterm-kitty --preview --show
[ "$(count "${escape}_Ga=T")" -eq 3 ] || fail "$(count "${escape}_Ga=T") pictures for 2 steps and the result"
done_

# ---- where nothing can be drawn
case_ pictures_need_a_terminal
# shellcheck disable=SC2086 # words
"$DIFFTP" $draw --show --preview -o "$dir/p.png" 2>"$dir/err" || fail "exit code $?"
grep -q '^warning: --preview has no effect: stderr is no terminal that can draw' "$dir/err" || fail "$(cat "$dir/err")"
! grep -q "$escape" "$dir/err" || fail "something was drawn"
! grep -q 'fit the preview' "$dir/err" || fail "a preview was made for nobody"
cmp -s "$dir/p.png" "$dir/plain.png" || fail "another picture"
screen TERM=dumb --show
shown "--show has no effect: .*TERM is 'dumb'"
absent "$escape"
mkdir -p "$dir/config/difftp"
printf 'show = yes\npreview = yes\n' >"$dir/config/difftp/config"
# shellcheck disable=SC2086 # words
XDG_CONFIG_HOME=$dir/config "$DIFFTP" $draw -q --force -o "$dir/p.png" 2>"$dir/err" || fail "exit code $?"
[ ! -s "$dir/err" ] || fail "a default warns: $(cat "$dir/err")"
done_
case_ pictures_need_the_library
mkdir "$dir/lib"
echo none >"$dir/lib/libchafa.so.0"
screen "LD_LIBRARY_PATH=$dir/lib" --show
shown '--show has no effect: libchafa is not there \(Debian: apt-get install libchafa0\)'
cmp -s "$dir/x.png" "$dir/plain.png" || fail "another picture"
! ldd "$DIFFTP" | grep -q 'chafa\|glib' || fail "every start loads it"
done_

case_ show_of_decode
"$DIFFTP" --model tests/models/klein-tiny --prompt fox --height 64 --width 64 --steps 1 --seed 1 --max-sequence-length 32 -q \
	--output-type latent -o "$dir/l.safetensors" || fail "latents: exit code $?"
script -qec "env TERM=xterm-kitty '$DIFFTP' decode '$dir/l.safetensors' --model tests/models/klein-tiny -q --show --force -o '$dir/d.png'" /dev/null \
	>"$dir/screen" 2>&1 </dev/null || fail "exit code $?"
[ "$(count "${escape}_Ga=T")" -eq 1 ] || fail "no picture: $(cat -v "$dir/screen" | head -c 500)"
done_
finish
