#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Golden runs under valgrind's memcheck: one rank, and both of two; then the launcher.  No error, no leak, and the stages and
# the picture of the recording.  valgrind has no AVX-512 and says so to who asks: what is chosen by the CPU's features keeps off
# it by itself.  tests/valgrind.supp has what is suppressed, and why.
. tests/lib.sh
${CC:-cc} -shared -fPIC -D_GNU_SOURCE -o "$dir/exec.so" tests/exec_preload.c -ldl || exit 1
valgrind="valgrind -q --leak-check=full --errors-for-leak-kinds=definite,indirect,possible --error-exitcode=99 --num-callers=30
	--suppressions=$PWD/tests/valgrind.supp --log-file=$dir/log.%p"
export RUN_SECONDS=1800 # some fifty times slower

# A program that starts its ranks as the words given, and the ranks' own arguments.
launches() { # WORD...
	printf '#!/bin/sh\nunset LD_PRELOAD RANK_PROGRAM\nexec %s "$@"\n' "$*" >"$dir/rank"
	printf '#!/bin/sh\nLD_PRELOAD="%s" RANK_PROGRAM="%s" exec "%s" "$@" --threads 1\n' "$dir/exec.so" "$dir/rank" "$DIFFTP" >"$dir/difftp"
	chmod +x "$dir/rank" "$dir/difftp"
}
logs() { # PROCESSES: that many have run under valgrind, and none had anything to report
	set -- "$1" "$dir"/log.*
	{ [ $(($# - 1)) -eq "$1" ] && [ -e "$2" ]; } || fail "$(($# - 1)) logs, not $1"
	shift
	# What begins with "--" is of valgrind itself: version 3.19 does not know pidfd_open, without which ranks sum over sockets.
	grep -hEv '^--[0-9]+-- |Warning: client switching stacks|to suppress, use: --max-stackframe|further instances of this message' "$@" \
		>"$dir/findings" && fail "$(head -c 8000 "$dir/findings")"
	rm -f "$@"
}

# shellcheck disable=SC2086 # a list of words
launches $valgrind "$DIFFTP"
for degree in 1 2; do
	case_ "valgrind_golden_tp$degree"
	DIFFTP="$dir/difftp" "$TESTBIN/test_golden" "golden_stages_klein-tiny_64x64_tp$degree" >"$dir/out" 2>&1 ||
		fail "$(tail -n 30 "$dir/out")"
	grep -q '1 test(s) run' "$dir/out" || fail "not one test has run: $(cat "$dir/out")"
	logs $degree
	done_
done

# Its ranks are not looked at again.
case_ valgrind_launcher
launches "$DIFFTP"
# shellcheck disable=SC2086 # a list of words
LD_PRELOAD="$dir/exec.so" RANK_PROGRAM="$dir/rank" $valgrind "$DIFFTP" --model tests/models/klein-tiny --prompt x --height 64 \
	--width 64 --steps 1 --tp-degree 2 -q -o "$dir/x.png" >"$dir/out" 2>&1 || fail "exit code $?: $(cat "$dir/out")"
[ -s "$dir/x.png" ] || fail "no picture"
# The two ranks until they begin their programs, too, and the child that asks for GPUs where the program is built for them.
asks=1
"$DIFFTP" --model tests/models/klein-tiny --prompt x --device cuda -q -o "$dir/y.png" 2>&1 | grep -q 'built without CUDA' && asks=0
logs $((3 + asks))
done_
finish
