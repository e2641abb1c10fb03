#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What orders the stream of the ranks' sums and the one that computes, taken away from a copy of the sources, piece by piece: each must be
# caught in every mode of the emulated streams, by what the case then says; first where kernels tell of the beginning of what they use
# only, then where every access of theirs is seen.
. tests/lib.sh
. tests/emulated.sh
[ -z "$SANITIZED" ] || exit 0
model=$PWD/tests/models/klein-tiny source=cuda/comm_nccl.c

own_tree cuda
cp -a "build/$plain" "$tree/build"

draw() { # PROGRAM MODE PICTURE
	rm -f "$3"
	DIFFTP_EMU_STREAMS=$2 timeout 120 "$1" --model "$model" -p fox --height 32 --width 32 --steps 1 --seed 1 --max-sequence-length 16 \
		--dtype fp32 --tp-degree 2 --timeout 60 --no-metadata -o "$3" >"$dir/log" 2>&1 </dev/null
}

# leg BUILD OPTION: in that folder, by this option of make; the sources as they are.
leg() {
	build=build/$1 option=$2
	case_ "streams_$1_build"
	MAKEFLAGS='' make "$option" -j "$(nproc)" "$build/difftp" "$build/tests/emu/test_order" >"$dir/log" 2>&1 || fail "$(tail -n 30 "$dir/log")"
	done_
	cp -a "$build" "$tree/build"
	for mode in eager deferred random; do
		case_ "streams_$1_right_$mode"
		draw "$build/difftp" $mode "$dir/right.$mode.png" || fail "$(tail -n 5 "$dir/log")"
		cmp "$dir/right.$mode.png" "$dir/right.eager.png" || fail "another picture"
		done_
	done
}

# seeded NAME CALL: the one that stands in for CALL does nothing, or, with a third word, is that.
seeded() {
	case_ "streams_${build#build/}_$1_build"
	n=$(grep -cF -- "$2" $source)
	[ "$n" -eq 1 ] || fail "$source: $n lines hold '$2', 1 is wanted"
	old=$2 new=${3:-cudaSuccess} awk '{ i = index($0, ENVIRON["old"])
		if (i) $0 = substr($0, 1, i - 1) ENVIRON["new"] substr($0, i + length(ENVIRON["old"]))
		print }' $source >"$tree/$source"
	MAKEFLAGS='' make -C "$tree" "$option" -j "$(nproc)" "$build/difftp" >"$dir/log" 2>&1 || fail "$(tail -n 30 "$dir/log")"
	done_
	for mode in eager deferred random; do
		case_ "streams_${build#build/}_$1_$mode"
		if draw "$tree/$build/difftp" $mode "$dir/seeded.png"; then
			cmp -s "$dir/right.eager.png" "$dir/seeded.png" && fail "nothing was caught"
			by="another picture"
		else
			by=$(grep -m 1 'nothing orders the two' "$dir/log") || fail "$(tail -n 5 "$dir/log")"
		fi
		[ -n "$why" ] || name="$name: $(echo "$by" | cut -c 1-200)"
		done_
	done
}

leg emulated EMULATE=1
seeded no_join 'cudaStreamWaitEvent(f->cuda->stream, f->done, 0)'
seeded no_wait_for_the_addends 'cudaStreamWaitEvent(f->beside, f->ready, 0)'
seeded addends_of_the_wrong_stream 'cudaEventRecord(f->ready, f->cuda->stream)' 'cudaEventRecord(f->ready, f->beside)'
seeded addends_of_the_first_part 'cudaEventRecord(f->ready, f->cuda->stream)' '(f->started ? cudaSuccess : cudaEventRecord(f->ready, f->cuda->stream))'
seeded sums_of_the_wrong_stream 'cudaEventRecord(f->done, f->beside)' 'cudaEventRecord(f->done, f->cuda->stream)'

leg emulated-shadow EMULATE=shadow
program order $build/tests/emu/test_order
case_ streams_emulated-shadow_middle_of_a_kernel
grep -q '^\[       OK \] middle_of_a_kernel' "$dir/log" || fail "the case did not run"
done_
seeded no_join 'cudaStreamWaitEvent(f->cuda->stream, f->done, 0)'
seeded no_wait_for_the_addends 'cudaStreamWaitEvent(f->beside, f->ready, 0)'
finish
