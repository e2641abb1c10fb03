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

# Bytes of weights that all ranks read together, without those between slices.
read_by() { # DEGREE
	"$emulated/difftp" bench --model tests/models/klein-tiny --prompt x --height 64 --width 64 --steps 1 --tp-degree "$1" --json -q \
		2>"$dir/err" | awk '/"bytes_read":/ { gsub(/[^0-9]/, ""); n += $0 } /"bytes_gaps":/ { gsub(/[^0-9]/, ""); n -= $0 } END { print n + 0 }'
}
case_ every_weight_is_read_once
one=$(read_by 1) two=$(read_by 2)
[ "$one" -gt 0 ] && [ "$one" -eq "$two" ] || fail "1 rank reads $one bytes, 2 ranks $two: $(cat "$dir/err")"
done_
finish
