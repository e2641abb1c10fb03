#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CUDA backend without a GPU, and the emulator's own tests.
. tests/lib.sh
. tests/emulated.sh

for t in "$emulated"/tests/emu/test_*; do
	case $t in *.o | *.d) continue ;; esac
	program "$(basename "$t")" "$t"
done
finish
