#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks on emulated GPUs take the memory that was foreseen.
. tests/lib.sh
. tests/emulated.sh
. tests/footprint.sh

bench() { # MODEL DEGREE DTYPE OPTION...
	model=$1 degree=$2 dtype=$3
	shift 3
	"$emulated/difftp" bench --model "$model" --tp-degree "$degree" --dtype "$dtype" --max-sequence-length 24 --steps 1 --device cuda --json -q "$@" \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null || fail "tp $degree: $(cat "$dir/stderr")"
}

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
finish
