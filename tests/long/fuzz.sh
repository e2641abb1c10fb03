#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each parser of foreign bytes under libFuzzer with the address and undefined-behaviour sanitizers, a minute each.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

if MAKEFLAGS='' make -j "$(nproc)" fuzz >"$log" 2>&1; then
	echo "ok fuzz_build"
else
	echo "not ok fuzz_build"
	tail -n 30 "$log"
	exit 1
fi
targets=
for f in tests/fuzz/fuzz_*.c; do
	targets="$targets build/fuzz/$(basename "$f" .c)"
done
# shellcheck disable=SC2086 # a list of words
exec sh tests/fuzz/run.sh "${FUZZ_SECONDS:-60}" $targets
