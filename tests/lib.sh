# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# What the scripts of tests/cli and tests/long share; they are run from the top of the tree with $DIFFTP set.  Not a test itself.
set -u
: "${DIFFTP:?the program under test}"
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
failures=0
SANITIZED=
# shellcheck disable=SC2034 # read by the scripts
case $DIFFTP in */san-*) SANITIZED=yes ;; esac

# case_ NAME; ... fail WHY ...; done_
# With NAMES set, cases that are functions ("case_ NAME || return") print their names only.
case_() {
	name=$1 why=
	[ -z "${NAMES:-}" ] || { echo "$1" && return 1; }
}
fail() {
	why="$why
    $*"
}
done_() {
	if [ -z "$why" ]; then
		echo "ok $name"
	else
		echo "not ok $name$why"
		failures=$((failures + 1))
	fi
}
finish() { # the script's last command
	[ $failures -eq 0 ]
}

# expect NAME CODE STDOUT STDERR ARGUMENT...: an exit code, and extended expressions that a line of each stream matches.
expect() {
	case_ "$1"
	code=$2 out=$3 err=$4
	shift 4
	"$DIFFTP" "$@" >"$dir/out" 2>"$dir/err" </dev/null
	rc=$?
	[ $rc -eq "$code" ] || fail "exit code $rc, not $code"
	for stream in out err; do
		[ $stream = out ] && want=$out || want=$err
		if [ "$want" = '^$' ]; then
			[ ! -s "$dir/$stream" ] || fail "std$stream is not empty"
		else
			grep -Eq -- "$want" "$dir/$stream" || fail "no line of std$stream matches: $want"
		fi
	done
	[ -z "$why" ] || fail "stdout: $(head -n 5 "$dir/out")
    stderr: $(head -n 20 "$dir/err")"
	done_
}

# own_tree NAME...: $tree is made, a tree that is this one, but for these files and folders, of which it has copies, and for what is built.
own_tree() {
	tree=$dir/tree
	mkdir -p "$tree/build"
	for f in *; do
		case " build difftp $* " in *" $f "*) ;; *) ln -s "$PWD/$f" "$tree/$f" ;; esac
	done
	cp -a "$@" "$tree"
}

# least_time ARGUMENT...: microseconds of processor time that the program takes, the least of five runs: what a clock shows where the
# machine does nothing else, and a test can hold where it does.  In $(...), which is to be followed by || exit.
least_time() {
	if [ ! -x "${TESTBIN:?the folder of the test programs}/tool_rusage" ]; then
		echo "there is no $TESTBIN/tool_rusage: make tests builds it" >&2
		exit 1
	fi
	for _ in 1 2 3 4 5; do
		"$TESTBIN/tool_rusage" "$dir/used" "$DIFFTP" "$@" >/dev/null 2>&1
		cat "$dir/used"
	done | sort -n | head -n 1
}

# refuse NAME MESSAGE ARGUMENT...: exit code 2, nothing on stdout, a message that begins as the expression says.
refuse() {
	name=$1 message=$2
	shift 2
	expect "$name" 2 '^$' "^difftp: $message" "$@"
}
