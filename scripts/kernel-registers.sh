#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What nvcc's assembler has said of the kernels of a build, as the table of docs/performance.md: sh scripts/kernel-registers.sh
# [build/release].  Exit code 1, and the kernel on stderr, where one keeps registers in memory.
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
[ -n "$(find "$build/cuda" -name '*.cu.o.ptxas' 2>/dev/null)" ] || {
	echo "kernel-registers: '$build' has no kernels: build with nvcc first" >&2
	exit 1
}
# Architectures are compiled side by side, so that the lines of two may be mixed: only what each line says by itself counts.
awk '
	FNR == 1 { file = FILENAME; sub(/.*\//, "", file); sub(/\.o\.ptxas$/, "", file); files[++n] = file }
	/Compiling entry function/ { kernels[file]++; archs[$NF] }
	/bytes stack frame/ && !/^ *0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/ {
		printf "kernel-registers: cuda/%s:%s\n", file, $0 | "cat >&2"
		spills = 1
	}
	match($0, /Used [0-9]+ registers/) {
		used = substr($0, RSTART + 5) + 0
		if (used > registers[file]) registers[file] = used
	}
	match($0, /[0-9]+ bytes smem/) {
		used = substr($0, RSTART) + 0
		if (used > shared[file]) shared[file] = used
	}
	END {
		for (a in archs) count++
		print "| file | kernels | registers, at most | shared memory, bytes, at most |"
		print "| --- | --- | --- | --- |"
		for (i = 1; i <= n; i++)
			printf "| %s | %d | %d | %d |\n", files[i], kernels[files[i]] / count, registers[files[i]], shared[files[i]]
		exit spills
	}' "$build"/cuda/*.cu.o.ptxas
