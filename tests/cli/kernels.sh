#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the compiler has made of the kernels.  Sanitized programs have none of nvcc's.
. tests/lib.sh
[ -z "$SANITIZED" ] || exit 0
build=$(dirname "$DIFFTP")

if [ -z "$(make -s which-nvcc)" ]; then
	echo "skip kernels: there is no nvcc"
	exit 0
fi

case_ kernels_keep_registers
sh scripts/kernel-registers.sh "$build" >"$dir/table" 2>"$dir/err" || fail "$(cat "$dir/err")"
for f in cuda/k_*.cu; do
	grep -q "^| $(basename "$f") | [1-9][0-9]* | [1-9]" "$dir/table" || fail "$f: no kernels in the compiler's reports"
done
done_

# The same reports with one that spills: the check must see it.
case_ kernels_that_spill_are_seen
mkdir -p "$dir/spilt/cuda"
sed '0,/ 0 bytes spill stores/s// 8 bytes spill stores/' "$build/cuda/k_swiglu.cu.o.ptxas" >"$dir/spilt/cuda/k_swiglu.cu.o.ptxas"
sh scripts/kernel-registers.sh "$dir/spilt" >"$dir/table" 2>"$dir/err" && fail "nothing was said"
grep -q 'k_swiglu.cu:.* 8 bytes spill stores' "$dir/err" || fail "$(cat "$dir/err")"
done_
finish
