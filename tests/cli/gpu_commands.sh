#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The other commands on emulated GPUs.
. tests/lib.sh
. tests/emulated.sh
model=tests/models/klein-tiny
export DIFFTP_EMU_STREAMS=deferred

gpu() { # ARGUMENT...
	"$emulated/difftp" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
right() {
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
}
says() {
	grep -q -- "$1" "$dir/stderr" || fail "'$1' is not said: $(cat "$dir/stderr")"
}

for dtype in fp32 bf16; do
	case_ "decode_${dtype}_is_the_runs_picture"
	for type in png latent; do
		gpu --model $model --prompt fox --height 96 --width 64 --steps 1 --seed 7 --max-sequence-length 16 --device cuda --dtype $dtype \
			--output-type $type --no-metadata -o "$dir/$dtype.$type.$([ $type = png ] && echo png || echo safetensors)" -q
		right
	done
	gpu decode "$dir/$dtype.latent.safetensors" --model $model --device cuda --no-metadata -q -o "$dir/$dtype.decoded.png"
	right
	cmp "$dir/$dtype.png.png" "$dir/$dtype.decoded.png" || fail "another picture"
	done_
done

case_ decode_takes_the_gpu_that_there_is
DIFFTP_EMU_CALLS="$dir/calls" gpu decode "$dir/fp32.latent.safetensors" --model $model --device auto -q -o "$dir/auto.png"
right
grep -q '^cudnnBackendExecute ' "$dir/calls" || fail "no convolution ran on it: $(cat "$dir/calls")"
done_

case_ decode_on_cpu_asks_no_driver
rm "$dir/calls"
DIFFTP_EMU_CALLS="$dir/calls" gpu decode "$dir/fp32.latent.safetensors" --model $model --device cpu -q -o "$dir/cpu.png"
right
[ ! -s "$dir/calls" ] || fail "$(cat "$dir/calls")"
done_

case_ decode_without_cudnn
DIFFTP_EMU_MISSING=cudnn gpu decode "$dir/fp32.latent.safetensors" --model $model --device cuda -o "$dir/x.png"
[ $rc -eq 2 ] || fail "exit code $rc"
says '^difftp: pictures need cuDNN'
done_
# Of a run and of a plan the same answer: where it computes, and whose memory that takes.
plan() { # OPTION...
	gpu plan --model $model --tp-degree 2 --json "$@"
}
json() { # KEY VALUE
	got=$("$TESTBIN/tool_json" "$dir/stdout" "$1") || fail "no $1"
	[ "$got" = "$2" ] || fail "$1 is $got, not $2"
}
case_ plan_for_the_gpus_that_there_are
for device in auto cuda; do
	plan --device $device
	right
	json device cuda
	json available_bytes null
	json devices.# 8
	json ranks.1.allowed "$("$TESTBIN/tool_json" "$dir/stdout" devices.1)"
done
done_

case_ plan_for_the_cpus_beside_gpus
rm -f "$dir/calls"
DIFFTP_EMU_CALLS="$dir/calls" plan --device cpu
right
json device cpu
json devices null
[ ! -s "$dir/calls" ] || fail "a driver was asked: $(cat "$dir/calls")"
done_

case_ plan_for_gpus_that_are_not_here
DIFFTP_EMU_CALLS="$dir/calls" plan --devices 2x4GB
right
json device cuda
json devices '[4000000000,4000000000]'
[ ! -s "$dir/calls" ] || fail "a driver was asked: $(cat "$dir/calls")"
done_

case_ plan_with_fewer_gpus_than_ranks
CUDA_VISIBLE_DEVICES=3 plan --device cuda
[ $rc -eq 2 ] || fail "exit code $rc"
says '^difftp: does not fit: 2 ranks need as many devices, 1 is here$'
done_

case_ plan_without_a_gpu
CUDA_VISIBLE_DEVICES='' plan --device cuda
[ $rc -eq 2 ] || fail "exit code $rc"
says '^difftp: --device cuda: no GPU is visible'
says '^--devices 4x24GB plans for GPUs that are not here$'
CUDA_VISIBLE_DEVICES="" plan --device auto
right
json device cpu
done_

case_ gpus_that_are_too_old
export DIFFTP_EMU_ARCH=75
plan --device cuda
[ $rc -eq 2 ] || fail "exit code $rc"
says '^difftp: --device cuda: no GPU can be used: GPU [0-7] (Emulated GPU) has compute capability 7.5, at least 8.0 (Ampere) is needed$'
plan --device auto
right
json device cpu
for device in auto cpu; do
	gpu --model $model --prompt fox --height 32 --width 32 --steps 1 --seed 7 --max-sequence-length 16 --device $device --no-metadata \
		-o "$dir/old.$device.png" -q
	right
done
cmp "$dir/old.auto.png" "$dir/old.cpu.png" || fail "the pictures differ"
DIFFTP_EMU_OTHER=6 DIFFTP_EMU_OTHER_ARCH=80 plan --device cuda
right
json devices.# 2
DIFFTP_EMU_OTHER=6 DIFFTP_EMU_OTHER_ARCH=80 gpu decode "$dir/fp32.latent.safetensors" --model $model --device cuda -q -o "$dir/newer.png"
right
unset DIFFTP_EMU_ARCH
done_

# Beside a driver that tests/gpu_standin.c plays, which the emulator does without.
mkdir "$dir/driver"
${CC:-cc} -shared -fPIC -o "$dir/driver/libcuda.so.1" tests/gpu_standin.c || exit 1
doctor() { # LINES: what it says of the libraries
	LD_LIBRARY_PATH="$dir/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" gpu doctor -o "$dir/doctor.png"
	right
	awk '/^[a-z]/ { on = /^[a-z]+ +GPU libraries / } on' "$dir/stdout" >"$dir/lines"
	diff - "$dir/lines" >"$dir/diff" || fail "$(cat "$dir/diff")"
}
case_ doctor_finds_cublaslt_and_cudnn
doctor <<'EOT'
ok       GPU libraries  cuBLASLt can be loaded
ok       GPU libraries  cuDNN can be loaded
EOT
done_

# An empty file is no driver, and hides one.
case_ doctor_without_a_driver_asks_for_no_library
mv "$dir/driver/libcuda.so.1" "$dir/driver/standin"
: >"$dir/driver/libcuda.so.1"
DIFFTP_EMU_MISSING=cublasLt doctor <<'EOT'
ok       GPU libraries  no CUDA driver here: neither cuBLASLt nor cuDNN is needed
EOT
mv "$dir/driver/standin" "$dir/driver/libcuda.so.1"
done_

case_ doctor_misses_cublaslt_or_cudnn
DIFFTP_EMU_MISSING=cublasLt doctor <<'EOT'
warning  GPU libraries  'cublasLtCreate' is missing: the emulator hides it
                        -> it belongs to cuBLASLt, a part of the CUDA toolkit: install that, or put its folder into LD_LIBRARY_PATH
ok       GPU libraries  cuDNN can be loaded
EOT
DIFFTP_EMU_MISSING=cudnn doctor <<'EOT'
ok       GPU libraries  cuBLASLt can be loaded
warning  GPU libraries  pictures need cuDNN, latents (--output-type latent) do not: 'cudnnGetVersion' is missing: the emulator hides it
                        -> it belongs to cuDNN 9: install that, or put its folder into LD_LIBRARY_PATH
EOT
DIFFTP_EMU_CUDNN=90701 doctor <<'EOT'
ok       GPU libraries  cuBLASLt can be loaded
warning  GPU libraries  pictures need cuDNN, latents (--output-type latent) do not: cuDNN 9.7.1 is too old: expected 9.8 or newer of major version 9
                        -> install a newer one, or put its folder into LD_LIBRARY_PATH
EOT
done_

case_ verify_on_gpus
gpu verify --model $model --device cuda --tp-degree 2 --height 32 --width 32 --max-sequence-length 16
right
grep -q '^All agree\.$' "$dir/stdout" || fail "$(tail -n 3 "$dir/stdout")"
done_

# As tests/cli/lora.sh on CPUs.  Layers that each rank has whole, with a LoRA, are read by one rank and broadcast with it.
case_ loras_are_merged_as_they_are_on_cpus
for lora in peft:0.7 kohya:1; do
	gpu verify --model $model --device cuda --tp-degree 2 --dtype fp32 --against "tests/reference/loras/${lora%:*}.safetensors" \
		--lora "tests/models/loras/${lora%:*}.safetensors:${lora#*:}" -q
	right
	awk '/step\.[01]\.noise_pred / { n++; if ($4 + 0 > 1e-5) bad = 1 } END { exit n != 2 || bad }' "$dir/stdout" ||
		fail "$lora: noise predictions differ by more than 1e-5 of their RMS: $(cat "$dir/stdout")"
done
done_

# GPUs that hold their parts, and a host that has no room for the activations of all.
case_ verify_needs_the_hosts_memory_too
m=$dir/large
cp -r $model "$m"
rm "$m"/*/*.safetensors
cat >"$m/transformer/config.json" <<'END'
{"_class_name": "Flux2Transformer2DModel", "num_layers": 8, "num_single_layers": 24, "attention_head_dim": 128,
 "num_attention_heads": 32, "joint_attention_dim": 120, "axes_dims_rope": [32, 32, 32, 32], "guidance_embeds": false}
END
"$TESTBIN/tool_sparse" "$m" || fail "no sparse files"
DIFFTP_EMU_MEMORY=0x100000000000 gpu verify --model "$m" --device cuda --tp-degree 4 --height 16384 --width 16384 --max-sequence-length 16
[ $rc -eq 2 ] || fail "exit code $rc"
says '^difftp: not enough memory: rank 0 computes the whole model on the host, beside its part on the GPU, which takes [0-9.]* GB, '
done_
finish
