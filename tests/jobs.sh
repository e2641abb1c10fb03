# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# For the scripts that start ranks as another launcher would: mpirun, and stand-ins for torchrun and srun.  Not a test itself.
model=tests/models/klein-tiny
mkdir "$dir/out"
[ -n "$SANITIZED" ] || memory=tests/fault_memory.c
# shellcheck disable=SC2086 # one file or none
${CC:-cc} -shared -fPIC -D_GNU_SOURCE -Icore -Icli -Itests -o "$dir/fault.so" tests/fault_preload.c ${memory:-} -ldl || exit 1
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS
shm=$(ls -A /dev/shm 2>/dev/null)
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID
port=$((20000 + $$ % 9000)) # nobody's, it is hoped

# one ARGUMENT...: one rank, with the environment as it stands
one() {
	"$DIFFTP" --model $model --prompt "a red fox" --height 64 --width 64 --steps 4 --seed 1 --max-sequence-length 32 \
		--force -o "$dir/out/x.png" --timeout 2 "$@"
}
# torchrun N ARGUMENT...: what each rank prints and returns is in $dir/{out,err,rc}.RANK
torchrun() {
	n=$1
	shift
	for r in $(seq 0 $((n - 1))); do
		(
			RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
			export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
			one "$@" >"$dir/out.$r" 2>"$dir/err.$r" </dev/null
			echo $? >"$dir/rc.$r"
		) &
		jobs="$jobs $!"
	done
	wait_for_jobs
}
srun() {
	n=$1
	shift
	for r in $(seq 0 $((n - 1))); do
		(
			SLURM_PROCID=$r SLURM_NTASKS=$n SLURM_LOCALID=$r SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_JOB_NODELIST=localhost
			export SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_JOB_ID SLURM_STEP_ID SLURM_JOB_NODELIST
			one "$@" >"$dir/out.$r" 2>"$dir/err.$r" </dev/null
			echo $? >"$dir/rc.$r"
		) &
		jobs="$jobs $!"
	done
	wait_for_jobs
}
mpirun() {
	n=$1
	shift
	as_root=
	[ "$(id -u)" -eq 0 ] && as_root=--allow-run-as-root
	: >"$dir/out.1"
	# shellcheck disable=SC2086 # none or one
	command mpirun $as_root --oversubscribe -n "$n" "$DIFFTP" --model $model --prompt "a red fox" --height 64 --width 64 \
		--steps 4 --seed 1 --max-sequence-length 32 --force -o "$dir/out/x.png" --timeout 2 "$@" >"$dir/out.0" 2>"$dir/err.0" </dev/null
	rc=$?
	for r in $(seq 0 $((n - 1))); do echo $rc >"$dir/rc.$r"; done
}
jobs=
wait_for_jobs() {
	for p in $jobs; do wait "$p"; done
	jobs=
}
fresh() {
	rm -f "$dir"/out.* "$dir"/err.* "$dir"/rc.* "$dir/mark" "$dir"/out/*
}
processes() { # ids of the processes that were started for this picture
	pgrep -f -- "-o $dir/out/x.png"
}
all_return() { # CODE
	for f in "$dir"/rc.*; do
		[ "$(cat "$f")" -eq "$1" ] || fail "rank ${f##*.} returned $(cat "$f"), not $1"
	done
}
nothing_left() {
	[ -z "$(processes)" ] || fail "processes are left: $(processes | tr '\n' ' ')"
	[ -z "$(ls -A "$dir/out")" ] || fail "files are left: $(ls -A "$dir/out")"
	[ "$(ls -A /dev/shm 2>/dev/null)" = "$shm" ] || fail "shared memory is left"
	! grep "@difftp srun job '$$" /proc/net/unix || fail "sockets are left"
}
one_message() { # EXPRESSION: the only one, of all ranks together
	[ "$(cat "$dir"/err.* | grep -c '^difftp: ')" -eq 1 ] || fail "not one message: $(cat "$dir"/err.*)"
	cat "$dir"/err.* | grep -Eq -- "^difftp: $1" || fail "the message is not '$1': $(cat "$dir"/err.* | grep '^difftp: ')"
}
torchrun_one() {
	(
		r=$1
		shift
		RANK=$r WORLD_SIZE=${of:-2} LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
		export RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
		file=$dir/$(sh -c 'echo $PPID')
		one "$@" >"$file.out" 2>"$file.err" </dev/null
		echo $? >"$dir/rc.${file##*/}"
		mv "$file.err" "$dir/err.${file##*/}"
	) &
	jobs="$jobs $!"
}
h=$(uname -n)
