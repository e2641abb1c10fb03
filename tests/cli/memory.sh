#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks on CPUs take the memory that was foreseen.
. tests/lib.sh
. tests/footprint.sh

# shellcheck disable=SC2034 # bench reads them
program=$DIFFTP always='--max-sequence-length 40 --steps 2 --device cpu'

for dtype in fp32 bf16; do
	for degree in 1 2; do
		case_ "klein_tiny_${dtype}_tp$degree"
		bench tests/models/klein-tiny $degree $dtype --height 64 --width 96
		within $degree text_encoder transformer vae
		[ "$(number device_used_bytes)" = null ] || [ $degree -gt 1 ] || fail "a CPU is a device: $(number device_used_bytes)"
		done_
	done
done

case_ uneven_model
uneven_model
bench "$m" 3 fp32 --height 144 --width 176
within 3 text_encoder transformer vae
bench "$m" 1 bf16 --height 144 --width 176
within 1 text_encoder transformer vae
done_

case_ several_images_and_a_reference
bench tests/models/klein-tiny 2 bf16 --height 64 --width 64 --num-images 3 --image tests/reference/klein-edit-tiny/input_ref_a.png
within 2 text_encoder transformer vae references
done_

case_ all_components_beside_each_other
bench tests/models/klein-tiny 2 bf16 --height 64 --width 64 --offload none --repeat 2
within 2 text_encoder transformer vae
done_
finish
