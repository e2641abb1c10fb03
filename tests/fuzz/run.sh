#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs fuzz targets from their corpora, two at a time: sh tests/fuzz/run.sh SECONDS TARGET...   Prints "ok NAME" or "not ok NAME"
# with the end of the log for each; an input that breaks a target stays in build/fuzz/found.  The corpora are not changed:
# to add to one, merge into it by hand ("fuzz_X -merge=1 tests/fuzz/corpus/X DIR").
seconds=$1
shift
found=build/fuzz/found
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p $found
export DTP_TESTS="$PWD/tests"
failed=0

# The first finding is the last: the sanitizers end the program.  The largest picture that is read takes 0.7 GB in one piece (WebP without
# loss: 4 bytes for each of 179 million pixels), 1.7 GB in all (progressive JPEG); the sanitizer keeps 0.3 GB more.
start() { # TARGET
	x=$(basename "$1")
	mkdir -p "$work/$x"
	words=tests/fuzz/${x#fuzz_}.dict
	[ -e "$words" ] && words=-dict=$words || words=
	# shellcheck disable=SC2086 # one word or none
	"$1" $words -max_total_time="$seconds" -timeout=30 -malloc_limit_mb=1024 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$found/$x-" \
		"$work/$x" "tests/fuzz/corpus/${x#fuzz_}" >"$work/$x.log" 2>&1
	echo $? >"$work/$x.rc"
}
report() { # TARGET
	x=$(basename "$1")
	if [ "$(cat "$work/$x.rc")" -eq 0 ]; then
		echo "ok $x: $(sed -n 's/^Done \([0-9]* runs in [0-9]* second\).*/\1s/p' "$work/$x.log")"
	else
		echo "not ok $x"
		tail -n 40 "$work/$x.log" | sed 's/^/    /'
		failed=1
	fi
}
while [ $# -gt 0 ]; do
	start "$1" &
	[ $# -gt 1 ] && start "$2" &
	wait
	report "$1"
	shift
	[ $# -gt 0 ] && report "$1" && shift
done
exit $failed
