#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The loader's tests under the thread sanitizer.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
failed=0
B=build/san-thread/tests
export TSAN_OPTIONS="${TSAN_OPTIONS:-} halt_on_error=0 exitcode=66"

if MAKEFLAGS='' make SANITIZE=thread -j "$(nproc)" $B/test_stream $B/test_weights >"$log" 2>&1; then
	echo "ok threads_build"
else
	echo "not ok threads_build"
	tail -n 30 "$log"
	exit 1
fi
for t in test_stream test_weights; do
	if $B/$t >"$log" 2>&1; then
		echo "ok threads_$t: $(grep -c '^\[       OK' "$log") cases"
	else
		echo "not ok threads_$t"
		grep -A 40 -E 'WARNING: ThreadSanitizer|FAILED|ERROR' "$log" | head -n 100 | sed 's/^/    /'
		failed=1
	fi
done
exit $failed
