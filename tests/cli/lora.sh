#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --lora against diffusers' own merging (tests/reference/loras: the noise predictions of two steps in fp32), and what it refuses.
. tests/lib.sh
model=tests/models/klein-tiny loras=tests/models/loras

# agrees RECORDING TP LORA...
agrees() {
	recording=tests/reference/loras/$1.safetensors tp=$2
	case_ "$1_tp$2"
	shift 2
	for lora; do
		set -- "$@" --lora "$lora"
		shift
	done
	"$DIFFTP" verify --model $model --dtype fp32 --tp-degree "$tp" --against "$recording" -q "$@" >"$dir/out" 2>"$dir/err" </dev/null
	rc=$?
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/err")"
	awk '/step\.[01]\.noise_pred / { n++; if ($4 + 0 > 1e-5) bad = 1 } END { exit n != 2 || bad }' "$dir/out" ||
		fail "noise predictions differ by more than 1e-5 of their RMS: $(cat "$dir/out")"
	done_
}
for tp in 1 2 4; do
	agrees peft $tp $loras/peft.safetensors:0.7
	agrees kohya $tp $loras/kohya.safetensors
	agrees both $tp $loras/kohya.safetensors:-0.5 $loras/peft.safetensors
done

case_ without_it_the_recording_differs
"$DIFFTP" verify --model $model --dtype fp32 --against tests/reference/loras/peft.safetensors -q >"$dir/out" 2>&1 </dev/null
[ $? -eq 1 ] || fail "$(cat "$dir/out")"
done_

# Of the whole model, computed a layer at a time, the same sums are merged.
case_ verify_merges_on_both_sides
"$DIFFTP" verify --model $model --tp-degree 2 --height 64 --width 64 --max-sequence-length 32 --lora $loras/kohya.safetensors -q \
	>"$dir/out" 2>&1 </dev/null || fail "$(cat "$dir/out")"
done_

# What stages of the weights take together, in bytes.
staging() {
	"$DIFFTP" plan --model $model --json "$@" 2>"$dir/err" | awk '/"staging":/ { gsub(/[^0-9]/, ""); n += $0 } END { print n + 0 }'
}
# Factors (and panels as floats) of as many weights as there may be threads that pack: not of all.
case_ the_fit_report_counts_the_factors
without=$(staging) with=$(staging --lora $loras/peft.safetensors) both=$(staging --lora $loras/peft.safetensors --lora $loras/kohya.safetensors)
[ "$without" -gt 0 ] && [ "$without" -lt "$with" ] && [ "$with" -lt "$both" ] || fail "$without, $with, $both bytes: $(cat "$dir/err")"
done_

refuse() { # NAME MESSAGE LORA
	expect "$1" 2 '^$' "$2" --model $model --prompt x --lora "$3" -o "$dir/x.png"
	[ ! -e "$dir/x.png" ] || echo "not ok $1: a picture was written"
}
refuse missing "^difftp: cannot open '$dir/none.safetensors': No such file or directory$" "$dir/none.safetensors"
refuse missing_behind_a_colon "^difftp: cannot open '$dir/no:dir/missing.safetensors': No such file or directory$" "$dir/no:dir/missing.safetensors"
refuse no_scale "^difftp: '.*peft.safetensors:strong': 'strong' is no scale; a LoRA is given as FILE or FILE:scale, such as x.safetensors:0.8$" \
	$loras/peft.safetensors:strong
refuse no_lora "^difftp: '.*' changes nothing here: none of its 53 tensors names a module of the transformer \(it is for another model, or no LoRA\): " \
	$model/transformer/diffusion_pytorch_model.safetensors
expect another_model 2 '^$' "^difftp: '$loras/peft.safetensors': tensors '.*lora_A.weight' \[3, 128\] and '.*lora_B.weight' \[.*, 3\] do not fit module" \
	--model tests/models/klein-heads12-tiny --prompt x --lora $loras/peft.safetensors -o "$dir/x.png"
finish
