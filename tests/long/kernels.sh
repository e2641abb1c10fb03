#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernels as plain C++ with every access watched, and then with a fault put into a copy of a source: each must be caught, by what is
# named here, under each way to run them without a GPU.
. tests/lib.sh
if [ -z "$(make -s which-nvcc)" ]; then
	echo "skip kernels: there is no nvcc, and none of CUDA's headers"
	exit 0
fi
test=tests/emu/test_kernels

own_tree cuda

make_test() { # FOLDER
	# shellcheck disable=SC2086 # several words
	MAKEFLAGS='' make -C "$1" $options -j "$(nproc)" "$build/$test" >"$dir/log" 2>&1 || fail "$(tail -n 30 "$dir/log")"
}

# leg NAME PLAIN OBJECTS OPTION...: what follows is built with these options of make; PLAIN and OBJECTS are the folders that it uses.
leg() {
	leg=$1 build=build/$3 plain=build/$2
	shift 3
	options=$*
	case_ "kernels_${leg}_build"
	make_test .
	done_
	[ $failures -eq 0 ] || exit 1
	[ -e "$tree/$plain" ] || cp -a "$plain" "$tree/build"
	cp -a "$build" "$tree/build"
}

# seeded NAME SOURCE KERNEL LINE CHANGED TESTS CAUGHT [MISSED]: in cuda/SOURCE, which is KERNEL or included by it, the one line that holds LINE gets
# CHANGED in its place; the cases TESTS must then end as the expression CAUGHT says.  MISSED: orders in which they must not show it.
seeded() {
	case_ "kernels_${leg}_$1"
	n=$(grep -cF -- "$4" "cuda/$2")
	[ "$n" -eq 1 ] || fail "cuda/$2: $n lines hold '$4', 1 is wanted"
	old=$4 new=$5 awk '{ i = index($0, ENVIRON["old"])
		if (i) $0 = substr($0, 1, i - 1) ENVIRON["new"] substr($0, i + length(ENVIRON["old"]))
		print }' "cuda/$2" >"$tree/cuda/$2"
	touch -r "cuda/$2" "$tree/cuda/$2" # other kernels that include it need not be compiled
	touch "$tree/cuda/$3"
	make_test "$tree"
	timeout 120 "$tree/$build/$test" "$6" >"$dir/log" 2>&1 && fail "nothing was caught"
	grep -Eq -- "$7" "$dir/log" || fail "no line matches '$7': $(grep -v -e 'OK \]' -e 'RUN  ' "$dir/log" | head -n 5)"
	for order in ${8:-}; do
		DIFFTP_EMU_ORDER=$order timeout 120 "$tree/$build/$test" "$6" >"$dir/log.$order" 2>&1 || fail "$order shows it too"
	done
	[ -n "$why" ] || name="$name: $(grep -E -- "$7" "$dir/log" | head -n 1 | cut -c 1-200)"
	done_
	cp -p "cuda/$2" "$tree/cuda/$2"
	touch "$tree/cuda/$3"
}

leg shadow release emulated-shadow EMULATE=shadow
case_ kernels_shadow
"$build/$test" >"$dir/log" 2>&1 || fail "$(grep -v -e 'OK \]' -e 'RUN  ' "$dir/log" | tail -n 30)"
grep -q '^\[       OK \] kernel_attention_shapes' "$dir/log" || fail "no case ran"
done_

# A picture whose kernels are watched from the first to the last, in orders that must not matter.
case_ kernels_shadow_picture
MAKEFLAGS='' make EMULATE=shadow -j "$(nproc)" "$build/difftp" >"$dir/log" 2>&1 || fail "$(tail -n 30 "$dir/log")"
for order in forward reverse rotated; do
	DIFFTP_EMU_ORDER=$order "$build/difftp" --model tests/models/klein-tiny --prompt 'a red fox' --device cuda --dtype fp32 --height 64 \
		--width 64 --max-sequence-length 32 --steps 1 --seed 1 -o "$dir/$order.png" >"$dir/log" 2>&1 || fail "$order: $(tail -n 5 "$dir/log")"
	cmp "$dir/forward.png" "$dir/$order.png" || fail "$order: not the picture of forward"
done
done_

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
seeded no_maximum k_softmax.cu k_softmax.cu 'most = block_max(most, shared);' 'most = 0;' '*softmax' 'softmax: element [0-9]+ is'
seeded maximum_of_a_warp k_softmax.cu k_softmax.cu 'x = fmaxf(x, shared[i]);' ';' '*softmax' 'softmax: element [0-9]+ is'
seeded sums_over_the_maximum k_softmax.cu k_softmax.cu 'block_sum(sum, shared + MAX_WARPS)' 'block_sum(sum, shared)' '*softmax' "$race"
seeded values_read_early k_group_norm.cu k_group_norm.cu '__syncthreads(); /* all have given theirs */' '' '*group_norm*' "$race|$unwritten"
seeded values_lost_early k_group_norm.cu k_group_norm.cu '__syncthreads(); /* all were taken */' '' '*group_norm*' "$race"
seeded sums_of_one_slice k_group_norm.cu k_group_norm.cu 'sums[(slices + slice) * channels' 'sums[slices * channels' '*group_norm*' "$race|group_norm: element"
seeded quads_read_early k_patchify.cu k_patchify.cu '__syncthreads(); /* every value is in its row */' '' '*patchify*' "$race|$unwritten"
seeded packs_read_early k_patchify.cu k_patchify.cu '__syncthreads(); /* every pack is in its row */' '' '*patchify*' "$race|$unwritten"
seeded one_channel_of_a_pack k_patchify.cu k_patchify.cu 'at = i % 4 * PACKS * N + i / 4;' 'at = i % 4 * PACKS * N + i / 4 / N * N;' '*patchify*' \
	"$race|$unwritten"
seeded pixels_turned k_patchify.cu k_patchify.cu 'token / p.width * 2 + q / 2' 'token / p.width * 2 + q % 2' '*patchify*' "$race|patchify: element"
seeded filters_read_early k_filters.cu k_filters.cu '__syncthreads(); /* every tap has its channels */' '' '*filters*' "$race|$unwritten"
seeded one_filter_of_a_pack k_filters.cu k_filters.cu '.v[channel % N]' '.v[0]' '*filters*' "$race|$unwritten"
seeded channels_past_the_end k_filters.cu k_filters.cu 'int packs = left < s.pitch ? static_cast<int>(left) : s.pitch;' 'int packs = left > 0 ? s.pitch : 0;' \
	'*filters*' "$outside|$race"
seeded halves_anywhere k_qk_norm_rope.cu k_qk_norm_rope.cu 'by_width<T>(d / 2,' 'by_width<T>(d,' '*qk_norm_rope*' 'no multiple of its size'
seeded half_a_half k_qk_norm_rope.cu k_qk_norm_rope.cu 'store(head + (apart ? j + d / 2' 'store(head + (apart ? j + d / 2 - P / 8' '*qk_norm_rope*' \
	'no multiple of its size|qk_norm_rope, [qk]: element'
seeded keys_after_queries k_qk_norm_rope.cu k_qk_norm_rope.cu '(h - q.n) * k.head_stride' 'h * k.head_stride' '*qk_norm_rope*' \
	"$outside|$race|qk_norm_rope, k: element"
seeded weight_of_the_queries k_qk_norm_rope.cu k_qk_norm_rope.cu 'of_q ? q.w : k.w' 'q.w' '*qk_norm_rope*' 'qk_norm_rope, k: element'

# The quick suite runs the whole test so.
leg plain release emulated EMULATE=1
seeded no_barrier device.cuh k_rms_norm.cu '	__syncthreads();' '' '*rms_norm*' 'rms_norm: element [0-9]+ is -?nan'
seeded no_tail_guard k_swiglu.cu k_swiglu.cu 'if (row >= m)' 'if (row > m)' '*swiglu*' 'touches byte [0-9]+ of device memory'
seeded values_read_early k_group_norm.cu k_group_norm.cu '__syncthreads(); /* all have given theirs */' '' '*group_norm*' 'group_norm: element'

seeded broken_stride k_swiglu.cu k_swiglu.cu 'load(u, up + row * up_stride + col)' \
	'load(u, up + row * (up_stride - 1) + col)' '*swiglu*' 'swiglu: element [0-9]+ is'
seeded unwritten_shared device.cuh k_rms_norm.cu 'threadIdx.x % WARP == 0' 'threadIdx.x == 0' '*rms_norm*' 'rms_norm: element [0-9]+ is -?nan'

# shown_by ORDER WRITES READS MISSED: what a thread reads that no barrier lets it read is there but in this order of the threads' turns.  Who comes
# last to a shuffle or a barrier goes on at once: after the five shuffles of a maximum the last lanes of the order are ahead, none of which counts.
shown_by() {
	export DIFFTP_EMU_ORDER="$1"
	seeded "only_$1_shows" k_softmax.cu k_softmax.cu 'most = block_max(most, shared);' "most = block_max(most, shared); SHARED_ARRAY(float, early, 1); \
if ($2) early[0] = most; if ($3) most = early[0];" '*softmax' 'softmax: element [0-9]+ is -?nan' "$4"
	unset DIFFTP_EMU_ORDER
}
shown_by forward 'threadIdx.x == blockDim.x / 2 + 8' 'threadIdx.x == 8' 'reverse rotated'
shown_by reverse 'threadIdx.x == 8' 'threadIdx.x == 9' 'forward rotated'
shown_by rotated 'threadIdx.x == 8 || threadIdx.x == blockDim.x - 9' 'threadIdx.x == blockDim.x / 2' 'forward reverse'

# Not a kernel's, but found in the same way: a buffer that is filled again before the device has read it.
test=tests/emu/test_loading
make_test .
cp -a "$build/$test" "$build/$test.c.o" "$build/$test.c.d" "$tree/$build/tests/emu"
export DIFFTP_EMU_STREAMS=deferred
seeded buffer_reused_early weight.c weight.c 'rc = DTP_CUDA(cudaEventSynchronize(read), err);' '(void)0;' '*' \
	"still waits to use|the host changed the [0-9]+ bytes"
unset DIFFTP_EMU_STREAMS
test=tests/emu/test_kernels

# And under the sanitizers, so.
leg sanitized san-address-undefined emulated-san-address-undefined EMULATE=1 SANITIZE=address,undefined
seeded wide_moves_anywhere device.cuh k_swiglu.cu 'wide = wide && multiple(t, 16);' '' '*swiglu*' 'runtime error: .* misaligned address'
seeded mean_anywhere k_patchify.cu k_patchify.cu '{flat(out), flat(tokens), vector(mean, 1),' '{flat(out), flat(tokens),' '*patchify*' \
	'runtime error: .* misaligned address'
seeded shared_too_small k_group_norm.cu k_group_norm.cu 'SHARED_ARRAY(double, shared, 2 * THREADS)' 'SHARED_ARRAY(double, shared, THREADS)' \
	'*group_norm*' 'AddressSanitizer: use-after-poison'
finish
