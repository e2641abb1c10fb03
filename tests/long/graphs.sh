#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every attention and every convolution of every model, as its own code asks for them on one and on several ranks, has a plan of
# cuDNN's on every architecture that the program is built for.  Without a GPU: the plans are real, the GPUs are described.
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
finish
