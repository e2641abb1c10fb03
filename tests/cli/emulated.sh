#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The emulator's own tests, and the golden case klein-tiny/64x64 through the CUDA backend in every stream mode and at every degree.
. tests/lib.sh
. tests/emulated.sh

for t in "$emulated"/tests/emu/test_*; do
	case $t in *.o | *.d) continue ;; esac
	program "$(basename "$t")" "$t"
done
degrees="1 2 4"
[ -z "$SANITIZED" ] || degrees="1 2"
for mode in eager deferred random; do
	program "loading_$mode" env DIFFTP_EMU_STREAMS=$mode "$emulated/tests/emu/test_loading"
	for tp in $degrees; do
		golden $mode "golden_stages_klein-tiny_64x64_tp$tp"
	done
done
golden deferred golden_error_klein-tiny_64x64_bf16_tp2
finish
