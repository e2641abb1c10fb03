#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernels as plain C++ with every access watched, and then with a fault put into a copy of a source: each must be caught, by what is
# named here.
. tests/lib.sh
if [ -z "$(make -s which-nvcc)" ]; then
	echo "skip kernels: there is no nvcc, and none of CUDA's headers"
	exit 0
fi
build=build/emulated-shadow
jobs=$(nproc)

case_ kernels_shadow_build
MAKEFLAGS='' make EMULATE=shadow -j "$jobs" "$build/tests/emu/test_kernels" >"$dir/log" 2>&1 || fail "$(tail -n 30 "$dir/log")"
done_
[ $failures -eq 0 ] || exit 1

case_ kernels_shadow
"$build/tests/emu/test_kernels" >"$dir/log" 2>&1 || fail "$(grep -v -e 'OK \]' -e 'RUN  ' "$dir/log" | tail -n 30)"
grep -q '^\[       OK \] kernel_attention_shapes' "$dir/log" || fail "no case ran"
done_

# A tree that is this one, but for sources and objects of kernels: those it has for itself.
tree=$dir/tree
mkdir -p "$tree/build"
for f in *; do
	case $f in build | cuda | difftp) ;; *) ln -s "$PWD/$f" "$tree/$f" ;; esac
done
cp -a cuda "$tree/cuda"
cp -a build/release build/emulated-shadow "$tree/build"

# seeded NAME SOURCE KERNEL LINE CHANGED TESTS CAUGHT: in cuda/SOURCE, which is KERNEL or included by it, the one line that holds LINE gets
# CHANGED in its place; the cases TESTS must then end as the expression CAUGHT says.
seeded() {
	case_ "kernels_seeded_$1"
	n=$(grep -cF -- "$4" "cuda/$2")
	[ "$n" -eq 1 ] || fail "cuda/$2: $n lines hold '$4', 1 is wanted"
	old=$4 new=$5 awk '{ i = index($0, ENVIRON["old"])
		if (i) $0 = substr($0, 1, i - 1) ENVIRON["new"] substr($0, i + length(ENVIRON["old"]))
		print }' "cuda/$2" >"$tree/cuda/$2"
	touch -r "cuda/$2" "$tree/cuda/$2" # other kernels that include it need not be compiled
	touch "$tree/cuda/$3"
	MAKEFLAGS='' make -C "$tree" EMULATE=shadow -j "$jobs" "$build/tests/emu/test_kernels" >"$dir/log" 2>&1 ||
		fail "$(tail -n 30 "$dir/log")"
	"$tree/$build/tests/emu/test_kernels" "$6" >"$dir/log" 2>&1 && fail "nothing was caught"
	grep -Eq -- "$7" "$dir/log" || fail "no line matches '$7': $(grep -v -e 'OK \]' -e 'RUN  ' "$dir/log" | head -n 5)"
	[ -n "$why" ] || name="$name: $(grep -E -- "$7" "$dir/log" | head -n 1 | cut -c 1-200)"
	done_
	cp -p "cuda/$2" "$tree/cuda/$2"
	touch "$tree/cuda/$3"
}

race='a race with (a|another) (read|write)' unwritten='shared memory that no thread of the block has written'
outside='outside of the allocation|not in device memory'
seeded no_barrier device.cuh k_rms_norm.cu '	__syncthreads();' '' '*rms_norm*' "$race|$unwritten"
seeded unwritten_shared device.cuh k_rms_norm.cu 'threadIdx.x % WARP == 0' 'threadIdx.x == 0' '*rms_norm*' "$unwritten"
seeded lanes_apart device.cuh k_rms_norm.cu '		x += __shfl_xor_sync' '		if (threadIdx.x % 2) x += __shfl_xor_sync' \
	'*rms_norm*' 'wait for lanes that do not come'
seeded wide_moves_anywhere device.cuh k_swiglu.cu 'wide = wide && multiple(t, 16);' '' '*swiglu*' 'no multiple of its size'
seeded no_tail_guard k_swiglu.cu k_swiglu.cu 'if (row >= m)' 'if (row > m)' '*swiglu*' "$outside"
seeded broken_stride k_swiglu.cu k_swiglu.cu 'load(u, up + row * up_stride + col)' 'load(u, up + row * (up_stride - 1) + col)' '*swiglu*' 'swiglu: element [0-9]+ is'
seeded rows_of_two_blocks k_modulated_norm.cu k_modulated_norm.cu 'store(out + blockIdx.x * out_stride + c, y)' \
	'store(out + blockIdx.x / 2 * out_stride + c, y)' '*modulated_norm*' "$race"
seeded strip_reused_early k_attention.cu k_attention.cu '__syncthreads(); /* the strip was read */' '' '*attention_shapes*' "$race"
seeded keys_past_the_end k_attention.cu k_attention.cu 'r < rows && col + c < d ? to_float(x[r * stride + col + c]) : 0' \
	'r <= rows && col + c < d ? to_float(x[r * stride + col + c]) : 0' '*attention_shapes*' "$outside"
seeded no_running_maximum k_attention.cu k_attention.cu 'acc[i][t][c] *= shrink' 'acc[i][t][c] *= 1' '*attention*' 'attention .*: element [0-9]+ is'
seeded sums_of_one_slice k_group_norm.cu k_group_norm.cu 'sums[(slices + slice) * channels' 'sums[slices * channels' '*group_norm*' "$race|group_norm: element"
finish
