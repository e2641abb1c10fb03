#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a suite: sh tests/run.sh quick|long [name-pattern].  quick: the cmocka programs tests/test_*.c and the scripts
# tests/cli/*.sh; long: tests/long/*.sh.  A script prints "ok NAME", "not ok NAME" or "skip NAME: why" per case.
# Prints the output of what failed; the last line counts the cases.
cd "$(dirname "$0")/.." || exit 1
suite=$1 only=${2:-}
export DTP_TESTS="$PWD/tests"
# The defaults, models and cached plans of whoever runs this are not what is tested.  A path that is nowhere
# would not do: fish makes the folder.
own=$(mktemp -d) || exit 1
export XDG_CONFIG_HOME="$own/config" HF_HUB_CACHE="$own/hub" XDG_CACHE_HOME="$own/cache"
mkdir "$XDG_CONFIG_HOME" "$HF_HUB_CACHE" "$XDG_CACHE_HOME" || exit 1
unset DIFFTP_MODEL DIFFTP_TP_DEGREE
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -rf "$log" "$own"' EXIT
run() {
	name=$1
	shift
	case $name in *"$only"*) ;; *) return ;; esac
	start=$(date +%s)
	# Whoever started this suite may ignore signals (nohup, a daemon): the tests count on their effects.
	env --default-signal=HUP,PIPE "$@" >"$log" 2>&1 </dev/null
	rc=$?
	p=$(grep -cE '^(\[       OK \]|ok )' "$log")
	f=$(grep -cE '^(\[  FAILED  \] [^0-9]|not ok )' "$log")
	s=$(grep -cE '^(\[  SKIPPED \] [^0-9]|skip )' "$log")
	[ $rc -ne 0 ] && [ "$f" -eq 0 ] && f=1
	[ "$CI" = true ] && [ "$s" -ne 0 ] && f=$((f + s)) && rc=1 # nothing is skipped where it counts
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	if [ $rc -ne 0 ] || [ "$f" -ne 0 ]; then
		echo "FAIL $name (exit $rc, $(($(date +%s) - start)) s)"
		sed 's/^/    /' "$log"
	else
		echo "pass $name: $p cases, $(($(date +%s) - start)) s"
		grep -E '^(skip|note) ' "$log"
	fi
}
if [ "$suite" = quick ]; then
	for t in tests/test_*.c; do
		n=$(basename "$t" .c)
		run "$n" "$TESTBIN/$n"
	done
	for t in tests/cli/*.sh; do [ -e "$t" ] && run "$t" sh "$t"; done
else
	for t in tests/long/*.sh; do [ -e "$t" ] && run "$t" sh "$t"; done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
