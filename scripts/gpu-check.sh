#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What only a machine with a GPU can say of this tree, as one table and as JSON: sh scripts/gpu-check.sh [-o DIR]
# Builds for the machine's GPU, which it never sets up or resets, and installs nothing.  DIR (build/gpu-check) gets report.json, gpu.json (the GPU's properties,
# cuDNN's own among them), the log of each piece, and the JSON of each measurement.  A piece that fails does not stop the others; exit status
# 1: one failed, or the time did not suffice for it.  Not reaching an aim is no failure: the table tells it.
#
#   CHECKPOINT=DIR     a FLUX.2-klein folder with weights (16 GB or so): how fast it is loaded is measured
#   DEADLINE=480       seconds for everything; pieces have budgets of their own, the most valuable come first
#   PIECES="..."       only these, build, and those whose results they need
#   MODELS="klein-4b dev", CONFIGS=tests/models/configs, SIDES="512 1024"    configurations, and sides of pictures, that are timed
#   NOMINAL=790        TFLOP/s of bf16 products that the GPU is said to do (H200)
#   CUDA_ARCHS=native  as for make
#   COMPUTE_SANITIZER=compute-sanitizer    if it is there
#   EMULATE=yes        for the test of this script: the emulated build, which needs no GPU; its figures are none, and are marked so
#   GOLDEN=''          part of the names of the golden cases that are run (all)
#   COPY_MB=1024, COLD_MB=512, STEPS=8, LENGTH=512, OPTIONS=""    sizes of what is measured, to make them smaller; options for difftp bench
#   BUDGETS=1          what the pieces' budgets are multiplied by, on a slow machine
# shellcheck disable=SC2317 # pieces are called by name
here=$PWD
cd "$(dirname "$0")/.." || exit 1
from_here() { # PATH: as it is meant where the script was started
	case $1 in /* | '') printf '%s' "$1" ;; *) printf '%s/%s' "$here" "$1" ;; esac
}
CHECKPOINT=$(from_here "${CHECKPOINT:-}") CONFIGS=$(from_here "${CONFIGS:-}")

: "${DEADLINE:=480}" "${MODELS:=klein-4b dev}" "${CONFIGS:=tests/models/configs}" "${SIDES:=512 1024}" "${NOMINAL:=790}"
: "${COMPUTE_SANITIZER:=compute-sanitizer}" "${COPY_MB:=1024}" "${COLD_MB:=512}" "${STEPS:=8}" "${LENGTH:=512}"
: "${CUDA_ARCHS:=native}" "${BUDGETS:=1}" "${EMULATE=}" "${CHECKPOINT=}" "${GOLDEN=}" "${OPTIONS=}" "${PIECES=}"
export DEADLINE MODELS CONFIGS SIDES NOMINAL COMPUTE_SANITIZER COPY_MB COLD_MB STEPS LENGTH CUDA_ARCHS EMULATE CHECKPOINT GOLDEN OPTIONS

tab=$(printf '\t')
if [ -n "$EMULATE" ]; then
	build=build/emulated oversubscribe=''
else
	build=build/release oversubscribe='oversubscribe = yes'
fi
tests=$build/tests

# ---- what pieces use.  A piece is a process of its own: what it prints is its log, its last words are the table's.
say() { # WORDS: what the table says of this piece
	printf '%s\n' "$*" >"$out/$piece.says"
	printf '%s\n' "$*"
}
absent() { # WHY
	say "$@"
	exit 77
}
figure() { # NAME VALUE [least|most|within AIM]
	[ -n "$2" ] || { say "no value of $1" && exit 1; }
	printf '%s\t%s\t%s\t%s\n' "$1" "$2" "${3:-}" "${4:-}" >>"$out/figures"
	printf '%s: %s %s %s\n' "$1" "$2" "${3:-}" "${4:-}"
}
needs() { # PIECE FILE: that it makes
	[ -s "$out/$2" ] || { say "needs the piece $1, of which there is no $2" && exit 1; }
}
json() { # FILE PATH
	"$tests/tool_json" "$@"
}
compute() { # EXPRESSION
	awk "BEGIN { printf \"%.4g\", $1 }"
}
cmocka() { # PROGRAM [PATTERN]: at least one case must run
	"$@" >"$out/$piece.run" 2>&1
	rc=$?
	grep -v -e 'RUN  ' -e 'OK \]' "$out/$piece.run"
	n=$(grep -c '^\[       OK \]' "$out/$piece.run")
	cases=$((cases + n))
	[ "$rc" -eq 0 ] && [ "$n" -gt 0 ]
}
golden() { # TEST KIND DEGREE: cases of tests/test_golden.c on the GPU
	cmocka env DIFFTP="$PWD/$build/difftp" "$tests/test_golden" "golden_$1_*$GOLDEN*$2_tp$3"
}
bench() { # NAME OPTION...
	name=$1
	shift
	# shellcheck disable=SC2086 # several words
	"$build/difftp" bench --device cuda --dtype bf16 --json "$@" $OPTIONS >"$out/$name.json"
}

# ---- the pieces
missing() {
	for tool in gcc g++ make pkg-config; do
		command -v "$tool" >/dev/null || echo "$tool"
	done
	for package in libcjson libpcre2-8 libutf8proc libpng libjpeg libwebp libwebpdemux nettle; do
		pkg-config --exists "$package" 2>/dev/null || echo "$package"
	done
	nvcc=$(make -s which-nvcc 2>/dev/null)
	[ -n "$nvcc" ] || echo "nvcc of CUDA 12 or 13"
	for header in dnnl.h gloo/context.h cmocka.h cudnn.h nccl.h cublasLt.h; do
		printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <%s>\n' "$header" |
			g++ -x c++ -std=c++17 -fsyntax-only ${nvcc:+-I"$(dirname "$(dirname "$(realpath "$nvcc")")")/include"} - 2>/dev/null || echo "$header"
	done
	[ -n "$EMULATE" ] || nvidia-smi -L >/dev/null 2>&1 || echo "a GPU that nvidia-smi lists"
}
piece_build() {
	lacks=$(missing | tr '\n' ' ')
	if [ -n "$lacks" ]; then
		echo "what Debian has of these is installed by: sh scripts/install-deps.sh build test; the others are NVIDIA's"
		say "missing: $lacks"
		exit 1
	fi
	if [ -n "$EMULATE" ]; then
		make -j "$(nproc)" EMULATE=1 gpu-tests || exit 1
	else
		make -j "$(nproc)" CUDA_ARCHS="$CUDA_ARCHS" gpu-tests || exit 1
	fi
	say "$("$build/difftp" --version)"
}
piece_gpu() {
	"$tests/emu/tool_gpu" "$COPY_MB" >"$out/gpu.json" || exit 1
	figure copy_gb_per_second "$(compute "$(json "$out/gpu.json" copy_bytes_per_second) / 1e9")"
	say "$(json "$out/gpu.json" name), cuDNN $(json "$out/gpu.json" cudnn), CUDA $(json "$out/gpu.json" runtime_cuda)"
}
piece_kernels() {
	cmocka "$tests/emu/test_kernels" || exit 1
	say "$cases cases against the CPU"
}
piece_libraries() {
	failed=
	for t in test_cublaslt test_cudnn test_dnn; do
		cmocka "$tests/emu/$t" || failed="$failed $t"
	done
	[ -z "$failed" ] || { say "failed:$failed" && exit 1; }
	say "$cases cases of cuBLASLt and cuDNN"
}
piece_golden_fp32() {
	golden stages '' 1 || exit 1
	say "$cases cases, every stage"
}
piece_golden_bf16() {
	golden error '_bf16*' 1 || exit 1
	say "$cases cases"
}
# Ranks that share a GPU; and, where there are two, each with its own.
piece_golden_tp2() {
	needs gpu gpu.json
	gpus=$(json "$out/gpu.json" gpus) || exit 1
	echo "$oversubscribe" >>"$XDG_CONFIG_HOME/difftp/config"
	golden stages '' 2 && golden error '_bf16' 2 || exit 1
	if [ "$gpus" -gt 1 ] && [ -n "$oversubscribe" ]; then
		echo "device = cuda" >"$XDG_CONFIG_HOME/difftp/config"
		golden stages '' 2 || exit 1
	fi
	say "$cases cases, $gpus GPUs"
}
# A model that is computed from its configuration, at one side: a step's time, its share of what the GPU is said to do, memory.
synthetic() { # MODEL SIDE NAME OPTION...
	model=$1 side=$2 name=$3
	shift 3
	bench "$name" --synthetic --model "$CONFIGS/$model" --height "$side" --width "$side" --steps "$STEPS" --max-sequence-length "$LENGTH" "$@"
}
piece_synthetic() {
	steps=
	for model in $MODELS; do
		for side in $SIDES; do
			synthetic "$model" "$side" "bench_${model}_$side" || { say "$model at $side pixels" && exit 1; }
			at=${model}_$side report=$out/bench_${model}_$side.json
			step=$(json "$report" 'phases.name=step.seconds_median') || exit 1
			share=$(compute "$(json "$report" 'phases.name=step.gflops') / $NOMINAL / 1000")
			figure "${at}_step_seconds" "$(compute "$step")"
			figure "${at}_share_of_peak" "$(compute "$(json "$report" 'phases.name=step.peak_fraction')")"
			[ "$at" = dev_1024 ] && aim='least 0.75' || aim=
			# shellcheck disable=SC2086 # two words
			figure "${at}_share_of_nominal" "$share" $aim
			for phase in text_encoder transformer vae; do
				figure "${at}_${phase}_memory" "$(compute "$(json "$report" "memory.name=$phase.ranks.0.peak_of_predicted")")" within 0.05
			done
			steps="$steps $at $(compute "$step") s,"
		done
	done
	say "a step:${steps%,}"
}
# The same without the graph.
piece_graph() {
	gains=
	for model in $MODELS; do
		for side in $SIDES; do
			at=${model}_$side
			report=$out/bench_$at.json
			needs synthetic "bench_$at.json"
			[ "$(json "$report" step_graph)" = true ] || { say "$at: no graph: $(json "$report" step_graph_refused)" && exit 1; }
			synthetic "$model" "$side" "plain_$at" --graph off || exit 1
			gain=$(compute "$(json "$out/plain_$at.json" 'phases.name=step.seconds_median') / $(json "$report" 'phases.name=step.seconds_median')")
			figure "${at}_graph_gain" "$gain" least 1
			gains="$gains $at $gain,"
		done
	done
	say "plain launches take so many times as long:${gains%,}"
}
# Each operation that a model asks for, at the largest side, beside the roofline.
piece_operations() {
	below=
	needs gpu gpu.json
	copy=$(compute "$(json "$out/gpu.json" copy_bytes_per_second) / 1e9")
	for model in $MODELS; do
		at=${model}_${SIDES##* }
		"$tests/bench_ops" --model "$CONFIGS/$model" --device cuda --side "${SIDES##* }" --copy-rate "$copy" --nominal "$NOMINAL" --cold "$COLD_MB" \
			--json "$out/operations_$at.json" >"$out/operations_$at.txt" || exit 1
		cat "$out/operations_$at.txt"
		n=$(json "$out/operations_$at.json" below_aim)
		figure "${at}_operations_below_085_of_memory" "$n" most 0
		below="$below $at $n of $(json "$out/operations_$at.json" judged),"
	done
	say "below 0.85 of the memory's rate:${below%,}"
}
piece_load() {
	[ -n "$CHECKPOINT" ] || absent "no CHECKPOINT=DIR"
	bench load --model "$CHECKPOINT" --prompt fox --height 64 --width 64 --steps 1 --max-sequence-length 16 || exit 1
	rate=$(compute "$(json "$out/load.json" 'phases.name=load transformer.bytes_per_second') / 1e9")
	figure load_gb_per_second "$rate"
	say "the transformer at $rate GB/s"
}
piece_sanitizer() {
	command -v "$COMPUTE_SANITIZER" >/dev/null || absent "no $COMPUTE_SANITIZER"
	cmocka "$COMPUTE_SANITIZER" --error-exitcode 9 "$tests/emu/test_kernels" || exit 1
	say "$cases cases"
}

# ---- one piece: sh scripts/gpu-check.sh --piece NAME DIR
if [ "${1:-}" = --piece ]; then
	piece=$2 out=$3 cases=0
	export XDG_CONFIG_HOME="$out/config" XDG_CACHE_HOME="$out/cache" DTP_TESTS="$PWD/tests"
	unset DIFFTP_MODEL DIFFTP_TP_DEGREE
	mkdir -p "$XDG_CONFIG_HOME/difftp"
	echo "device = cuda" >"$XDG_CONFIG_HOME/difftp/config"
	"piece_$piece"
	exit
fi

# ---- all of them
out=build/gpu-check
case ${1:-} in
'') ;;
-o) out=$(from_here "${2:?gpu-check: -o wants a folder}") ;;
*)
	echo "usage: sh scripts/gpu-check.sh [-o DIR]" >&2
	exit 2
	;;
esac
# The most valuable first, each with its budget in seconds.
order='build:240 gpu:60 kernels:90 golden_fp32:90 synthetic:150 operations:100 golden_bf16:60 golden_tp2:60 graph:100 libraries:60 load:60 sanitizer:60'
for piece in $PIECES; do
	case " $order " in *" $piece:"*) ;; *)
		echo "gpu-check: there is no piece '$piece'; there are$(echo " $order" | sed 's/:[0-9]*//g')" >&2
		exit 2
		;;
	esac
done
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
if [ -n "$(ls -A "$out")" ] && [ ! -e "$out/pieces" ]; then
	echo "gpu-check: '$out' holds other files: -o wants a folder of its own, or a new one" >&2
	exit 2
fi
for piece in $order; do
	rm -f "$out/${piece%:*}.log" "$out/${piece%:*}.says" "$out/${piece%:*}.run"
done
rm -f "$out"/gpu.json "$out"/bench_*.json "$out"/plain_*.json "$out"/operations_*.json "$out"/operations_*.txt "$out"/load.json "$out"/report.json
case " $PIECES " in *' graph '*) PIECES="$PIECES synthetic" ;; esac
case " $PIECES " in *' operations '* | *' golden_tp2 '*) PIECES="$PIECES gpu" ;; esac
: >"$out/figures"
: >"$out/pieces"
began=$(date +%s)
failed=0
mark=
[ -z "$EMULATE" ] || mark=' (emulated)'

run() { # NAME SECONDS
	case " $PIECES " in *" $1 "* | '  ') ;; *) [ "$1" = build ] || return ;; esac
	left=$((began + DEADLINE - $(date +%s)))
	limit=$(($2 * BUDGETS < left ? $2 * BUDGETS : left))
	start=$(date +%s)
	if [ $limit -lt 1 ]; then
		result='no time' rc=1
	else
		timeout -k 5 $limit sh scripts/gpu-check.sh --piece "$1" "$out" >"$out/$1.log" 2>&1 </dev/null
		rc=$?
		case $rc in
		0) result=ok ;;
		77) result=absent ;;
		124 | 137) result='too long' ;;
		*) result=failed ;;
		esac
	fi
	says=$(cat "$out/$1.says" 2>/dev/null) || says=$(tail -n 1 "$out/$1.log" 2>/dev/null)
	[ "$result" = ok ] || [ "$result" = absent ] || failed=1
	printf '%s\t%s\t%s\t%s\n' "$1" "$result" $(($(date +%s) - start)) "$says" >>"$out/pieces"
	printf '%-12s %-9s %4s s  %s\n' "$1" "$result" $(($(date +%s) - start)) "$says"
}

printf '%-12s %-9s %6s  %s\n' piece result time "says$mark"
for piece in $order; do
	run "${piece%:*}" "${piece#*:}"
	case $piece in build:*) [ $failed -eq 0 ] || break ;; esac # without it nothing runs
done

# ---- the figures, and all of it as JSON
met() { # VALUE KIND AIM: yes or no; nothing where there is no aim
	awk -v v="$1" -v kind="$2" -v aim="$3" 'BEGIN {
		if (kind == "least") yes = v >= aim
		if (kind == "most") yes = v <= aim
		if (kind == "within") yes = v >= 1 - aim && v <= 1 + aim
		if (kind != "") print yes ? "yes" : "no"
	}'
}
print_figures() {
	[ -s "$out/figures" ] || return
	printf '\n%-44s %12s  %s\n' figure value "aim$mark"
	while IFS="$tab" read -r name value kind aim; do
		printf '%-44s %12s  %s\n' "$name" "$value" "${kind:+$kind $aim: $(met "$value" "$kind" "$aim")}"
	done <"$out/figures"
}
string() { # TEXT: as JSON
	printf '"%s"' "$(printf '%s' "$1" | tr '\000-\037' ' ' | sed 's/[\\"]/\\&/g')"
}
truth() { # yes|no|'': as JSON
	case $1 in yes) printf true ;; no) printf false ;; *) printf null ;; esac
}
pieces_json() {
	comma=
	while IFS="$tab" read -r name result seconds says; do
		printf '%s\n  {"name": %s, "result": %s, "seconds": %d, "says": %s}' "$comma" "$(string "$name")" "$(string "$result")" \
			"$seconds" "$(string "$says")"
		comma=,
	done <"$out/pieces"
}
figures_json() {
	comma=
	while IFS="$tab" read -r name value kind aim; do
		printf '%s\n  {"name": %s, "value": %s, "aim": %s, "met": %s}' "$comma" "$(string "$name")" "$value" \
			"$([ -n "$kind" ] && string "$kind $aim" || echo null)" "$(truth "$(met "$value" "$kind" "$aim")")"
		comma=,
	done <"$out/figures"
}
report_json() {
	printf '{"commit": %s, "date": "%s", "emulated": %s, "ok": %s, "seconds": %d,\n "pieces": [%s],\n "figures": [%s]' \
		"$(string "$(git rev-parse --short HEAD 2>/dev/null || cat VERSION)")" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
		"$(truth "$([ -n "$EMULATE" ] && echo yes || echo no)")" "$(truth "$([ $failed -eq 0 ] && echo yes || echo no)")" \
		$(($(date +%s) - began)) "$(pieces_json)" "$(figures_json)"
	for f in "$out"/gpu.json "$out"/operations_*.json "$out"/bench_*.json "$out"/plain_*.json "$out"/load.json; do
		[ -s "$f" ] && printf ',\n %s: ' "$(string "$(basename "$f" .json)")" && cat "$f"
	done
	printf '}\n'
}
print_figures
report_json >"$out/report.tmp"
mv "$out/report.tmp" "$out/report.json"
printf '\n%s\n' "$out/report.json"
exit $failed
