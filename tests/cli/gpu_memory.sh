#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks on emulated GPUs take the memory that was foreseen.
. tests/lib.sh
. tests/emulated.sh
. tests/footprint.sh

# shellcheck disable=SC2034 # bench reads them
program=$emulated/difftp always='--max-sequence-length 24 --steps 1 --device cuda'

# The emulator counts what lives on a device by itself.
counted_alike() { # of ranks that have a GPU each
	at=memory.1.ranks.0
	[ "$(number device_used_bytes)" = "$(number peak_bytes)" ] || fail "$(number device_used_bytes) are in use, $(number peak_bytes) are held"
}

for dtype in fp32 bf16; do
	for degree in 1 2; do
		case_ "klein_tiny_${dtype}_tp$degree"
		bench tests/models/klein-tiny $degree $dtype --height 64 --width 96
		within $degree text_encoder transformer vae
		counted_alike
		done_
	done
done

case_ uneven_model
uneven_model
bench "$m" 3 bf16 --height 96 --width 64
within 3 text_encoder transformer vae
counted_alike
bench "$m" 1 fp32 --height 96 --width 64 --attention plain
within 1 text_encoder transformer vae
done_

case_ several_images_and_a_reference
bench tests/models/klein-tiny 2 bf16 --height 64 --width 64 --num-images 2 --image tests/reference/klein-edit-tiny/input_ref_a.png
within 2 text_encoder transformer vae references
done_

# The second prompt is encoded beside all that stays of the first.
case_ all_components_beside_each_other
bench tests/models/klein-tiny 2 bf16 --height 64 --width 64 --offload none --repeat 2
within 2 text_encoder transformer vae
for rank in 0 1; do
	at=memory.0.ranks.$rank
	[ "$(number peak_bytes)" = "$(number predicted_bytes)" ] || fail "rank $rank took $(number peak_bytes) bytes, not $(number predicted_bytes)"
done
done_

# In a run's events the largest rank of each phase has what bench prints of it.
case_ a_run_tells_what_bench_prints
bench tests/models/klein-tiny 2 bf16 --height 64 --width 96
rm -f "$dir/x.png"
# shellcheck disable=SC2086 # words
"$emulated/difftp" --model tests/models/klein-tiny --tp-degree 2 --dtype bf16 $always --height 64 --width 96 --prompt fox -o "$dir/x.png" \
	--progress json 2>"$dir/events" </dev/null || fail "exit code $?: $(cat "$dir/events")"
! grep -q foreseen "$dir/events" || fail "$(grep foreseen "$dir/events")"
for i in 0 1 2; do
	want="{\"event\":\"memory\",\"name\":$("$TESTBIN/tool_json" "$dir/stdout" memory.$i.name | sed 's/.*/"&"/'),\"rank\":0"
	for key in weights activations workspace predicted_bytes peak_bytes peak_of_predicted device_used_bytes; do
		at=memory.$i.ranks.0 want="$want,\"$key\":$(number $key)"
	done
	grep -qxF "$want}" "$dir/events" || fail "no '$want}': $(grep memory "$dir/events")"
done
[ "$(grep -c '"event":"memory"' "$dir/events")" -eq 3 ] || fail "$(grep memory "$dir/events")"
done_

# Of each phase the line that takes most, beside what stays of others.
case_ a_batch_takes_what_was_foreseen
printf 'fox\n{"prompt":"owl","height":96,"width":128}\n{"prompt":"elk","height":96,"width":128}\n{"prompt":"cat","height":32,"width":32,"num_images":2}\n' >"$dir/lines"
for offload in none stage; do
	rm -rf "$dir/batch"
	# shellcheck disable=SC2086 # words
	"$emulated/difftp" --model tests/models/klein-tiny --tp-degree 2 $always --height 64 --width 64 --seed 1 --prompts "$dir/lines" \
		--offload $offload -o "$dir/batch" --progress json 2>"$dir/events" </dev/null || fail "exit code $?: $(cat "$dir/events")"
	[ "$(grep '"event":"memory"' "$dir/events" | grep -c '"predicted_bytes":\([0-9]*\),"peak_bytes":\1,')" -eq 3 ] ||
		fail "$offload: $(grep memory "$dir/events")"
	! grep -q foreseen "$dir/events" || fail "$offload: $(grep foreseen "$dir/events")"
done
done_

draw() { # OPTION...
	rm -f "$dir/fox.png"
	"$emulated/difftp" --model tests/models/klein-tiny --prompt fox --height 64 --width 64 --steps 1 --seed 1 --max-sequence-length 16 \
		--device cuda -o "$dir/fox.png" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
says() {
	grep -q -- "$1" "$dir/stderr" || fail "'$1' is not said: $(cat "$dir/stderr")"
}

# 2 GB, of which another program has all but 67 MB, or but 500.
case_ what_others_have_taken_is_not_there
DIFFTP_EMU_MEMORY=2000000000 DIFFTP_EMU_TAKEN=1933000000 draw --tp-degree 2
[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says "not enough memory: rank 0 needs 1.0 GB at the peak, what is free of the GPU's memory allows 738 MB"
says "in phase 'transformer' weights 2.2 MB, scratch [0-9]* kB, workspace 105 MB, and 940 MB for the context"
[ ! -e "$dir/fox.png" ] || fail "a picture is there"
DIFFTP_EMU_MEMORY=2000000000 DIFFTP_EMU_TAKEN=1500000000 draw --tp-degree 2
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
done_

case_ decode_knows_what_others_have_taken
DIFFTP_EMU_MEMORY=2000000000 draw --output-type latent -o "$dir/fox.safetensors"
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
for taken in 1933000000 0; do
	DIFFTP_EMU_MEMORY=2000000000 DIFFTP_EMU_TAKEN=$taken "$emulated/difftp" decode "$dir/fox.safetensors" --model tests/models/klein-tiny \
		--device cuda -o "$dir/decoded.png" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ $taken = 0 ] && break
	[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	says "^difftp: not enough memory: decoding needs [0-9]* MB at the peak, what is free of the GPU's memory allows 738 MB$"
	[ ! -e "$dir/decoded.png" ] || fail "a picture is there"
done
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
done_

# One rank alone takes nothing for NCCL.
case_ a_smaller_degree_that_fits_is_named
DIFFTP_EMU_MEMORY=2000000000 DIFFTP_EMU_TAKEN=1850000000 draw --tp-degree 2
[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '^--tp-degree 1 needs [0-9]* MB.* and fits'
done_

case_ a_driver_that_does_not_say_what_is_free
DIFFTP_EMU_FAIL=cudaMemGetInfo:1 draw
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
done_

case_ a_full_gpu_is_told_with_all_numbers
DIFFTP_EMU_MEMORY=2000000000 DIFFTP_EMU_FAIL=cudaMalloc:9 draw
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says 'rank 0 .*out of GPU memory: [1-9][0-9]* bytes are needed, 1[0-9]* of 2000000000 are free, [1-9][0-9]* are held by this rank: cudaMalloc, cuda/memory.c:[0-9]'
says 'difftp plan --device cuda says what fits'
! grep -q 'and fits' "$dir/stderr" || fail "it should have fitted: $(cat "$dir/stderr")"
done_

# Another program takes all but 110 MB while the weights are loaded, of which 105 are workspace.
case_ what_would_have_fitted_is_told
export DIFFTP_EMU_MEMORY=2000000000 DIFFTP_EMU_TAKEN=1890000000 DIFFTP_EMU_TAKEN_AT=5
draw --tp-degree 2 --height 256 --width 256
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says "rank 0 .*'load vae'.*out of GPU memory: "
says '^--output-type latent, for difftp decode elsewhere, needs 1.0 GB a rank and fits$'
says '^--tp-degree 1 needs 785 MB a rank and fits$'
says '^--height 128 --width 128 needs 1.0 GB a rank and fits$'
draw --tp-degree 2 --height 128 --width 128
[ $rc -eq 0 ] || fail "the advice is wrong: $(cat "$dir/stderr")"
DIFFTP_EMU_TAKEN=1890500000 draw --offload none --force
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says '^--offload stage needs 7[0-9]* MB and fits$'
DIFFTP_EMU_TAKEN=1890500000 draw --offload stage --force
[ $rc -eq 0 ] || fail "the advice is wrong: $(cat "$dir/stderr")"
unset DIFFTP_EMU_MEMORY DIFFTP_EMU_TAKEN DIFFTP_EMU_TAKEN_AT
done_
finish
