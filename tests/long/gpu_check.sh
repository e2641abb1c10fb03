#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/gpu-check.sh, which is for machines with a GPU, from its first piece to its last on the emulator, at sizes that take seconds:
# all is well there, and a kernel with a fault is told.
. tests/lib.sh
if [ -z "$(make -s which-nvcc)" ]; then
	echo "skip gpu_check: there is no nvcc, and none of CUDA's headers"
	exit 0
fi
out=$dir/out report=$dir/out/report.json
# Whatever it is asked to look at, it finds nothing; but it runs it.
cat >"$dir/sanitizer" <<'END'
#!/bin/sh
[ "$1" = --error-exitcode ] && shift 2
exec "$@"
END
chmod +x "$dir/sanitizer"
export MAKEFLAGS='' EMULATE=yes MODELS=klein-tiny CONFIGS=tests/models SIDES=64 COPY_MB=8 COLD_MB=0.1 STEPS=4 LENGTH=16 DEADLINE=3000 \
	GOLDEN=klein-tiny_64x64 CHECKPOINT=tests/models/klein-tiny COMPUTE_SANITIZER="$dir/sanitizer" BUDGETS=10

check() { # [TREE]
	sh "${1:-.}/scripts/gpu-check.sh" -o "$out" >"$dir/table" 2>&1
	rc=$?
}
value() { # PATH: of the report
	build/emulated/tests/tool_json "$report" "$1" 2>>"$dir/json"
}
is() { # PATH VALUE
	[ "$(value "$1")" = "$2" ] || fail "$1 is not $2: $(value "$1")"
}
table() {
	cat "$dir/table"
	tail -n 5 "$out"/*.log
}

case_ gpu_check_knows_its_pieces
PIECES="gpu kernls" sh scripts/gpu-check.sh -o "$dir/none" >"$dir/table" 2>&1
rc=$?
[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/table")"
grep -q "there is no piece 'kernls'; there are build gpu kernels " "$dir/table" || fail "$(cat "$dir/table")"
[ ! -e "$dir/none" ] || fail "a folder was made"
done_

case_ gpu_check_leaves_the_files_of_others
mkdir "$dir/others"
echo mine >"$dir/others/mine.json"
sh scripts/gpu-check.sh -o "$dir/others" >"$dir/table" 2>&1
rc=$?
[ $rc -eq 2 ] || fail "exit code $rc: $(cat "$dir/table")"
grep -q "'$dir/others' holds other files" "$dir/table" || fail "$(cat "$dir/table")"
[ "$(ls -A "$dir/others")" = mine.json ] || fail "$(ls -A "$dir/others")"
done_

# Of a folder of its own it replaces what it makes, and paths are those of where it is started.
case_ gpu_check_in_another_folder
mkdir "$dir/cwd"
for run in first second; do
	(
		cd "$dir/cwd" || exit 1
		mkdir -p own
		[ $run = first ] || echo mine | tee own/mine.json >own/load.json
		DEADLINE=0 sh "$OLDPWD/scripts/gpu-check.sh" -o own >"$dir/table" 2>&1
	)
	[ -s "$dir/cwd/own/report.json" ] || fail "$run: $(cat "$dir/table")"
	[ ! -e own ] || fail "$run: 'own' is in the wrong folder"
done
[ -e "$dir/cwd/own/mine.json" ] || fail "mine.json is gone"
[ ! -e "$dir/cwd/own/load.json" ] || fail "load.json of another run is there"
done_

case_ gpu_check_runs_to_its_end
check
[ $rc -eq 0 ] || fail "exit code $rc: $(table)"
is ok true
is emulated true
pieces=$(value 'pieces.#')
[ "$pieces" -eq 12 ] || fail "$pieces pieces: $(table)"
for piece in build gpu kernels libraries golden_fp32 golden_bf16 golden_tp2 synthetic operations graph load sanitizer; do
	is "pieces.name=$piece.result" ok
done
is gpu.name 'Emulated GPU'
is gpu.cudnn_properties.deviceVer 900
is operations_klein-tiny_64.device cuda
is bench_klein-tiny_64.device cuda
for figure in copy_gb_per_second klein-tiny_64_step_seconds klein-tiny_64_share_of_nominal load_gb_per_second; do
	value "figures.name=$figure.value" | awk '{ exit !($1 > 0) }' || fail "$figure: $(value "figures.name=$figure.value")"
done
is "figures.name=klein-tiny_64_transformer_memory.met" true
# Nobody takes these figures for measurements.
grep -q '^figure .* aim (emulated)$' "$dir/table" || fail "the table does not say that its figures are emulated: $(table)"
done_

case_ gpu_check_runs_what_a_piece_needs
PIECES="graph golden_tp2" check
[ $rc -eq 0 ] || fail "exit code $rc: $(table)"
pieces=$(value 'pieces.#')
[ "$pieces" -eq 5 ] || fail "$pieces pieces: $(table)"
for piece in build gpu synthetic golden_tp2 graph; do
	is "pieces.name=$piece.result" ok
done
PIECES=graph OPTIONS=--nonsense check
[ $rc -eq 1 ] || fail "exit code $rc: $(table)"
is 'pieces.name=graph.says' 'needs the piece synthetic, of which there is no bench_klein-tiny_64.json'
done_

case_ gpu_check_tells_what_is_late
DEADLINE=0 PIECES=gpu check
[ $rc -eq 1 ] || fail "exit code $rc"
is ok false
is 'pieces.name=build.result' 'no time'
done_

case_ gpu_check_tells_what_is_missing
mkdir "$dir/bin"
printf '#!/bin/sh\nexit 1\n' >"$dir/bin/pkg-config"
chmod +x "$dir/bin/pkg-config"
PATH="$dir/bin:$PATH" check
[ $rc -eq 1 ] || fail "exit code $rc"
is 'pieces.name=build.result' failed
value 'pieces.name=build.says' | grep -q '^missing: .*libcjson' || fail "$(table)"
grep -q 'sh scripts/install-deps.sh' "$out/build.log" || fail "$(cat "$out/build.log")"
done_

# A tree that is this one, but for a kernel that adds where it is to multiply.
case_ gpu_check_tells_a_broken_kernel
own_tree scripts cuda
cp -a build/release build/emulated "$tree/build"
sed 's/silu(g\[j\]) \* u\[j\]/silu(g[j]) + u[j]/' cuda/k_swiglu.cu >"$tree/cuda/k_swiglu.cu"
cmp -s cuda/k_swiglu.cu "$tree/cuda/k_swiglu.cu" && fail "no fault was put into the kernel"
PIECES="gpu kernels golden_fp32 load" check "$tree"
[ $rc -eq 1 ] || fail "exit code $rc: $(table)"
is ok false
is 'pieces.name=kernels.result' failed
is 'pieces.name=golden_fp32.result' failed
grep -q 'swiglu: element [0-9]* is' "$out/kernels.log" || fail "$(tail -n 20 "$out/kernels.log")"
# The others do not stop for it.
is 'pieces.name=gpu.result' ok
is 'pieces.name=load.result' ok
done_
finish
