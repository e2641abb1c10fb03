#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The quick suite again, under the address and undefined-behaviour sanitizers.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

# The jobs of the calling make are not passed on: this one may run alone.
MAKEFLAGS='' make SANITIZE=address,undefined -j "$(nproc)" tests >"$log" 2>&1 || {
	echo "not ok sanitizers_build"
	tail -n 30 "$log"
	exit 1
}
echo "ok sanitizers_build"
if MAKEFLAGS='' make SANITIZE=address,undefined test >"$log" 2>&1; then
	echo "ok sanitizers_quick_suite: $(tail -n 1 "$log")"
else
	echo "not ok sanitizers_quick_suite: $(grep -E '^[0-9]+ passed' "$log")"
	grep -A 40 '^FAIL' "$log"
	exit 1
fi
