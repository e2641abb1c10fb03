#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp doctor: on this machine, on GPUs that a stand-in library plays (tests/gpu_standin.c), and where it finds something wrong.
. tests/lib.sh
model=tests/models/klein-tiny
mkdir "$dir/gpu"
${CC:-cc} -shared -fPIC -o "$dir/gpu/libnvidia-ml.so.1" tests/gpu_standin.c || exit 1
cp "$dir/gpu/libnvidia-ml.so.1" "$dir/gpu/libcuda.so.1"
cp "$dir/gpu/libnvidia-ml.so.1" "$dir/gpu/libnccl.so.2"
# What it says of itself depends on what it was built with.
if "$DIFFTP" --model $model --prompt x --device cuda 2>&1 </dev/null | grep -q 'built without CUDA'; then
	uses='computes on CPUs: the GPUs are not used' nccl='has been compiled without it' cuda=
else
	uses='computes on them, with CUDA VERSION' nccl='was compiled with VERSION' cuda=yes
fi
begun() { # processes that a doctor of this test has started
	pgrep -f -- "-o $dir/x.png"
}

# doctor CODE ARGUMENT...: a run, its exit code; it leaves no process and no file.
doctor() {
	code=$1
	shift
	"$DIFFTP" doctor -o "$dir/x.png" "$@" >"$dir/out" 2>"$dir/err" </dev/null
	rc=$?
	[ $rc -eq "$code" ] || fail "exit code $rc, not $code: $(cat "$dir/out" "$dir/err")"
	[ -z "$(begun)" ] || fail "processes are left: $(begun)"
	[ ! -e "$dir/x.png" ] || fail "a file is left"
}
found() { # VERDICT PROBE EXPRESSION: a line that begins so
	grep -aEq -- "^$(printf '%-8s %-14s' "$1" "$2") $3" "$dir/out" || fail "no line '$1 $2 $3': $(cat "$dir/out")"
}
# played STANDIN LINES: what it says of GPUs that are played, word for word.
played() {
	LD_LIBRARY_PATH="$dir/gpu" STANDIN=$1 doctor 0
	awk '/^[a-z]/ { on = /^[a-z]+ +(GPUs|GPU links|CUDA|NCCL)  / } on' "$dir/out" |
		sed -E 's/(this build (computes on them, with CUDA|was compiled with|needs) )[0-9.]+$/\1VERSION/' >"$dir/lines"
	diff - "$dir/lines" >"$dir/diff" || fail "$(cat "$dir/diff")"
}

case_ doctor_this_machine
doctor 0
for probe in processors memory 'shared memory' limits libraries disk GPUs 'GPU links' CUDA 'GPU libraries' NCCL ranks 'NCCL in ranks'; do
	grep -Eq "^(ok|warning) +$probe " "$dir/out" || fail "nothing of '$probe': $(cat "$dir/out")"
done
for way in 'shared memory' 'the loopback interface'; do
	grep -Eq "^(ok|warning) +ranks +two ranks sum 16.8 MB through $way at [0-9.]+ GB/s, and 4 bytes in [0-9]+ microseconds$" "$dir/out" ||
		fail "no sums through $way: $(cat "$dir/out")"
done
tail -n 1 "$dir/out" | grep -Eq '^[0-9]+ ok, [0-9]+ warnings?, 0 failures$' || fail "the last line: $(tail -n 1 "$dir/out")"
[ ! -s "$dir/err" ] || fail "stderr: $(cat "$dir/err")"
done_

case_ doctor_json
doctor 0 --json --model $model
grep -q . "$dir/err" && fail "stderr: $(cat "$dir/err")"
"$TESTBIN/tool_json" "$dir/out" findings.0.probe findings.0.verdict findings.0.data.usable failure >"$dir/values" 2>&1 ||
	fail "$(cat "$dir/values")"
sed 3d "$dir/values" | tr '\n' ' ' | grep -qx '"\?processors"\? "\?ok"\? 0 ' || fail "values: $(cat "$dir/values")"
grep -q '"bytes_per_second"' "$dir/out" || fail "no bandwidth"
grep -q '"weight_bytes"' "$dir/out" || fail "nothing of the model"
done_

case_ doctor_model
doctor 0 --model $model
found ok model "[0-9.]+ MB were read at [0-9.]+ [kMG]B/s: the model's 5.8 MB take [0-9.]+ s$"
doctor 1 --model "$dir/none"
found failure model ".*'$dir/none'"
done_

# ---- GPUs
case_ doctor_gpus_equal
played equal <<EOT
ok       GPUs           driver 560.35.03, for programs up to CUDA 13.0
ok       GPUs           GPU 0: NVIDIA H100 80GB HBM3, 85.0 GB of which 84.2 GB are free, compute capability 9.0, mode default, ECC on
ok       GPUs           GPU 1: NVIDIA H100 80GB HBM3, 85.0 GB of which 84.2 GB are free, compute capability 9.0, mode default, ECC on
ok       GPUs           this build $uses
ok       GPU links      every GPU reaches every other directly
ok       GPU links      NVLink: at least 18 links of each GPU are up
ok       CUDA           CUDA 13.0 starts and sees 2 GPUs
ok       NCCL           NCCL 2.19.3 can be loaded; this build $nccl
EOT
found ok 'NCCL in ranks' 'both ranks load NCCL 2.19.3$'
[ -n "$cuda" ] || found ok 'GPU libraries' 'this build computes on CPUs: it needs neither cuBLASLt nor cuDNN$'
done_

case_ doctor_gpus_mixed
played mixed <<EOT
ok       GPUs           driver 560.35.03, for programs up to CUDA 13.0
ok       GPUs           GPU 0: NVIDIA H100 80GB HBM3, 85.0 GB of which 84.2 GB are free, compute capability 9.0, mode default, ECC on
ok       GPUs           GPU 1: NVIDIA L4, 24.0 GB of which 23.8 GB are free, compute capability 9.0, mode default, ECC on
warning  GPUs           the GPUs differ (GPU 0: NVIDIA H100 80GB HBM3, GPU 1: NVIDIA L4): all wait for the slowest, and each holds what fits into GPU 1 (24.0 GB)
                        -> choose equal ones with CUDA_VISIBLE_DEVICES, or plan for these: difftp plan --devices
ok       GPUs           this build $uses
ok       GPU links      every GPU reaches every other directly
ok       GPU links      no NVLink: GPUs are connected by PCI Express
ok       CUDA           CUDA 13.0 starts and sees 2 GPUs
ok       NCCL           NCCL 2.19.3 can be loaded; this build $nccl
EOT
done_

case_ doctor_gpus_old_driver
[ -z "$cuda" ] && first="ok       GPUs           driver 450.51, for programs up to CUDA 11.0" ||
	first="warning  GPUs           driver 450.51 runs programs of CUDA 11.0 at most; this build needs VERSION
                        -> update the driver, or build difftp with an older CUDA"
played nvml:old <<EOT
$first
ok       GPUs           GPU 0: NVIDIA H100 80GB HBM3, 85.0 GB of which 84.2 GB are free, compute capability 9.0, mode default, ECC on
ok       GPUs           GPU 1: NVIDIA H100 80GB HBM3, 85.0 GB of which 84.2 GB are free, compute capability 9.0, mode default, ECC on
ok       GPUs           this build $uses
ok       GPU links      every GPU reaches every other directly
ok       GPU links      NVLink: at least 18 links of each GPU are up
ok       CUDA           CUDA 13.0 starts and sees 2 GPUs
ok       NCCL           NCCL 2.19.3 can be loaded; this build $nccl
EOT
done_

case_ doctor_gpus_sick
LD_LIBRARY_PATH="$dir/gpu" STANDIN=sick doctor 0
found warning GPUs 'GPU 1 lets nobody compute: its mode is prohibited$'
found warning GPUs 'GPU 1 had 3 memory errors that it could not correct$'
found warning GPUs 'GPU 1 will have ECC off from its next reset on$'
found warning GPUs 'GPU 1: others use 42.5 GB of its memory$'
found warning GPUs 'GPU 1 has compute capability 7.5, which computes no bf16$'
found warning 'GPU links' '1 of 1 pairs of GPUs cannot reach each other directly \(GPU 0 and GPU 1 first\)$'
found ok 'GPU links' 'NVLink is there, but not every GPU has a link that is up$'
found warning CUDA 'CUDA gives GPU 0 no access to the memory of GPU 1$'
done_

case_ doctor_gpus_refuse
played refuse <<'EOT'
warning  GPUs           NVIDIA's library does not start: error 18 (Driver/library version mismatch)
                        -> the driver was updated while its old kernel module runs: restart the machine
ok       GPU links      no GPU answers: there is nothing to connect
warning  CUDA           the CUDA driver does not start: error 999 (unknown error)
                        -> nvidia-smi should say more; in a container, start it with its GPUs
warning  NCCL           libnccl.so.2 does not say its version
                        -> reinstall NCCL
EOT
done_

# Names as nothing that steers a terminal.
case_ doctor_gpus_strange_names
LD_LIBRARY_PATH="$dir/gpu" STANDIN=nvml:silent doctor 0
found ok GPUs 'GPU 1: X\?\[31m.*\?1, 85.0 GB'
LD_LIBRARY_PATH="$dir/gpu" STANDIN=nvml:silent doctor 0 --json
"$TESTBIN/tool_json" "$dir/out" >/dev/null 2>"$dir/values" || fail "$(cat "$dir/values")"
done_

case_ doctor_gpus_one
LD_LIBRARY_PATH="$dir/gpu" STANDIN=one doctor 0
found ok 'GPU links' 'one GPU: there is nothing to connect$'
LD_LIBRARY_PATH="$dir/gpu" STANDIN=none doctor 0
found ok GPUs 'the NVIDIA driver sees no GPU: ranks compute on CPUs$'
done_

case_ doctor_library_crashes
crash='crashed: killed by signal 11 \(Segmentation fault\)$'
LD_LIBRARY_PATH="$dir/gpu" STANDIN=crash doctor 0
[ -n "$SANITIZED" ] && crash='ended with code 1$'
for probe in GPUs 'GPU links' CUDA NCCL; do
	found warning "$probe" "$crash"
done
found warning 'NCCL in ranks' "NCCL breaks the ranks: rank [01] on [^ ]+ .* in 'load NCCL'"
# The leak checker runs when a library ends the probe, and finds what the probe has from its parent.
LD_LIBRARY_PATH="$dir/gpu" STANDIN=cuda:exit ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 doctor 0
found warning CUDA 'ended with code 3$'
done_

# What hangs costs the time that a probe has, and no more.
case_ doctor_library_hangs
begin=$(date +%s)
LD_LIBRARY_PATH="$dir/gpu" STANDIN=hang "$DIFFTP" doctor --timeout 0.7 -o "$dir/x.png" >"$dir/out" 2>"$dir/err"
took=$(($(date +%s) - begin))
[ $took -le 20 ] || fail "took $took s"
for probe in GPUs 'GPU links' CUDA NCCL 'NCCL in ranks'; do
	found warning "$probe" 'took longer than 0.7 s and was ended$'
done
sleep 0.2
[ -z "$(begun)" ] || fail "processes are left: $(begun)"
done_

case_ doctor_killed_leaves_nothing
LD_LIBRARY_PATH="$dir/gpu" STANDIN=nvml:hang "$DIFFTP" doctor -o "$dir/x.png" >"$dir/out" 2>&1 &
for _ in $(seq 200); do
	grep -q ' disk ' "$dir/out" && break
	sleep 0.05
done
kill -KILL $!
wait $! 2>/dev/null
for _ in $(seq 100); do
	[ -z "$(begun)" ] && break
	sleep 0.05
done
[ -z "$(begun)" ] || fail "processes are left: $(begun)"
done_

case_ doctor_nccl_differs_between_ranks
LD_LIBRARY_PATH="$dir/gpu" STANDIN=nccl:differ doctor 0
found warning 'NCCL in ranks' 'rank 0 loads NCCL 2.19.3, rank 1 NCCL 2.8.4$'
done_

# ---- the machine
# shellcheck disable=SC3045 # every sh has these two of ulimit
limited() { # LETTER VALUE
	(ulimit "$1" "$2" && "$DIFFTP" doctor -o "$dir/x.png" >"$dir/out" 2>&1)
}
case_ doctor_few_files
limited -n 64
found warning limits 'open files: 64 \(at most 64\)$'
grep -q '> ulimit -n 1024$' "$dir/out" || fail "it does not say what to do"
done_

if [ -z "$SANITIZED" ]; then # they reserve the whole address space
	case_ doctor_address_space
	limited -v 8000000
	found warning limits 'the address space is limited to 8.2 GB'
	done_
fi

case_ doctor_plain_processor
ONEDNN_MAX_CPU_ISA=AVX2 DNNL_MAX_CPU_ISA=AVX2 doctor 0
found warning processors 'AVX-512 no, bf16 instructions no, AMX no: bf16 is multiplied widened to fp32, loops use '
done_

case_ doctor_output_refused
"$DIFFTP" doctor -o "$dir/none/x.png" >"$dir/out" 2>"$dir/err"
[ $? -eq 1 ] || fail "the exit code is not 1"
found failure disk "pictures cannot be written: .*'$dir/none'"
grep -qx 'difftp: a run would fail on this machine as it is: 1 failure above' "$dir/err" || fail "$(cat "$dir/err")"
done_

case_ doctor_ranks_break
${CC:-cc} -shared -fPIC -D_GNU_SOURCE -Icore -Icli -o "$dir/fault.so" tests/fault_preload.c -ldl || fail "compiling"
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0 LD_PRELOAD="$dir/fault.so" FAULT_RANK=1 FAULT_STAGE='sum over' \
	FAULT_DO=kill FAULT_MARK="$dir/mark" "$DIFFTP" doctor -o "$dir/x.png" >"$dir/out" 2>"$dir/err"
[ $? -eq 1 ] || fail "the exit code is not 1"
found failure ranks "two ranks cannot sum over each other: rank 1 on [^ ]+ was killed by SIGKILL .* in 'sum over the ranks'"
done_

case_ doctor_closed_stdout
"$DIFFTP" doctor -o "$dir/x.png" >/dev/full 2>"$dir/err"
[ $? -eq 1 ] || fail "the exit code is not 1"
grep -q '^difftp: cannot write to standard output: ' "$dir/err" || fail "$(cat "$dir/err")"
done_
finish
