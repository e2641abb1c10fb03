#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every attention and every convolution of every model, as its own code asks for them on one and on several ranks, has a plan of
# cuDNN's on every architecture that the program is built for.  Without a GPU: the plans are real, the GPUs are described.  And the real NCCL,
# which a stand-in takes the place of in every other test, has the functions that are called.
. tests/lib.sh

if [ -z "$(make -s which-nvcc)" ]; then
	echo "skip graphs: there is no nvcc, and none of CUDA's headers"
	exit 0
fi
tool=build/emulated/tests/emu/tool_graphs
MAKEFLAGS='' make EMULATE=1 -j "$(nproc)" $tool >"$dir/log" 2>&1 || {
	echo "not ok graphs_build"
	tail -n 30 "$dir/log"
	exit 1
}

plans() { # MODEL SIDE REFERENCES DEGREES ARCHITECTURES
	$tool "$@" >"$dir/out" 2>&1 || fail "$2 pixels, $3 references, $4 ranks: $(cat "$dir/out")"
	sed 's/^/    /' "$dir/out"
}
for model in tests/models/configs/klein-4b tests/models/configs/klein-9b tests/models/configs/dev; do
	case_ "graphs_$(basename "$model")"
	for arch in 80 86 89 90 100 120; do
		plans "$model" 1024 0 1,2,4,8 $arch
		plans "$model" 1024 1 1 $arch
		plans "$model" 512 0 1 $arch
	done
	done_
done

case_ nccl_has_every_function
nccl=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk '$1 == "libnccl.so.2" { print $NF; exit }')
nm -D --defined-only "$nccl" >"$dir/has" 2>"$dir/err" || fail "libnccl.so.2 '$nccl': $(cat "$dir/err")"
sed -n '/^#define \(BUFFER_\)*FUNCTIONS(F)/,/[^\\]$/p' cuda/comm_nccl.c | grep -o 'F([A-Z][A-Za-z]*)' | sed 's/F(\(.*\))/nccl\1/' >"$dir/wanted"
[ "$(wc -l <"$dir/wanted")" -gt 15 ] || fail "few names: $(cat "$dir/wanted")"
while read -r f; do
	grep -q " [TW] $f\$" "$dir/has" || fail "$nccl has no $f"
done <"$dir/wanted"
done_

case_ nccl_lets_every_function_fail_in_a_test
while read -r f; do
	case $f in ncclGetErrorString | ncclGetLastError) continue ;; esac # they tell of what failed
	grep -q "\"$f:[0-9]" tests/emu/test_nccl.c || fail "$f does not"
done <"$dir/wanted"
done_
finish
