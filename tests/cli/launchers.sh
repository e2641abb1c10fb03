#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that somebody else's launcher has started: mpirun itself, stand-ins that set the variables of torchrun and srun.  The same
# picture as of difftp's own ranks; slips are refused by name.
. tests/lib.sh
. tests/jobs.sh

# ---- the same picture
one --tp-degree 2 -q || exit 1
mv "$dir/out/x.png" "$dir/own.png"
draws() { # NAME LAUNCHER ARGUMENT...
	case_ "launcher_draws_$1"
	launcher=$2
	shift 2
	fresh
	$launcher 2 --tp-degree 2 "$@"
	all_return 0
	cmp -s "$dir/own.png" "$dir/out/x.png" || fail "another picture, or none: $(cat "$dir"/err.*)"
	grep -q '^step 4/4' "$dir/err.0" || fail "rank 0 does not say what it does: $(cat "$dir/err.0")"
	[ ! -e "$dir/err.1" ] || [ ! -s "$dir/err.1" ] || fail "rank 1 is not quiet: $(cat "$dir/err.1")"
	[ ! -s "$dir/out.0" ] && [ ! -s "$dir/out.1" ] || fail "stdout is not empty"
	rm -f "$dir/out/x.png"
	nothing_left
	done_
}
draws torchrun torchrun
draws srun srun
draws by_file torchrun --rendezvous "file:$dir/out/meet"
draws by_tcp srun --rendezvous "tcp:localhost:$port"
if command -v mpirun >/dev/null; then
	draws mpirun mpirun
else
	echo "skip launcher_draws_mpirun: there is no mpirun (openmpi-bin)"
fi

case_ launcher_dp_and_tp_fill_the_job
fresh
torchrun 4 --tp-degree 2 --dp-degree 2 -n 2
all_return 0
cmp -s "$dir/own.png" "$dir/out/x_0.png" || fail "another picture, or none: $(cat "$dir"/err.*)"
rm -f "$dir"/out/x_?.png
nothing_left
done_

# ---- ports.  Somebody who listens: rank 0 of another job, which waits for the rest of it.
occupy() { # PORT
	(
		RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=another
		export RANK WORLD_SIZE LOCAL_RANK TORCHELASTIC_RUN_ID
		exec "$DIFFTP" --model $model --prompt occupant --tp-degree 2 --timeout 60 --rendezvous "tcp:127.0.0.1:$1" 2>"$dir/occupant"
	) &
	occupants="$occupants $!"
	hex=$(printf ':%04X' "$1")
	for _ in $(seq 100); do
		grep -q "$hex 00000000:0000 0A" /proc/net/tcp && return
		sleep 0.02
	done
	fail "port $1 could not be taken: $(cat "$dir/occupant")"
}
leave() {
	for p in $occupants; do
		kill "$p"
		wait "$p"
	done
	occupants=
}
occupants=
case_ launcher_ports_of_others_are_passed_over
fresh
occupy $port
occupy $((port + 1))
torchrun 2 --tp-degree 2
leave
all_return 0
cmp -s "$dir/own.png" "$dir/out/x.png" || fail "another picture, or none: $(cat "$dir"/err.*)"
rm -f "$dir/out/x.png"
nothing_left
done_

case_ launcher_port_in_use
fresh
occupy $port
torchrun 1 --tp-degree 1 --rendezvous "tcp:127.0.0.1:$port" # a job of one rank meets nobody
all_return 0
fresh
(
	RANK=0 WORLD_SIZE=2 LOCAL_RANK=0
	export RANK WORLD_SIZE LOCAL_RANK
	one --tp-degree 2 --rendezvous "tcp:127.0.0.1:$port" >"$dir/out.0" 2>"$dir/err.0"
	echo $? >"$dir/rc.0"
)
leave
all_return 2
one_message "cannot listen at tcp:127.0.0.1:$port: the port is in use by another program$"
nothing_left
done_

# ---- refused by name, exit code 2.  wrong NAME VARIABLES MESSAGE ARGUMENT...: one process with these variables
wrong() {
	case_ "launcher_refuses_$1"
	vars=$2 message=$3
	shift 3
	fresh
	# shellcheck disable=SC2086 # a list of words
	env $vars "$DIFFTP" --model $model --prompt x --height 64 --width 64 -o "$dir/out/x.png" --timeout 2 "$@" \
		>"$dir/out.0" 2>"$dir/err.0" </dev/null
	[ $? -eq 2 ] || fail "the exit code is not 2"
	[ "$(cat "$dir/err.0")" = "difftp: $message" ] || fail "got: $(cat "$dir/err.0")
    not: difftp: $message"
	nothing_left
	done_
}
remedy='; --launcher self ignores the variables and starts the ranks itself'
wrong no_size "RANK=0" "the variable 'WORLD_SIZE' is not set, though 'RANK' is: torchrun sets both$remedy"
wrong no_rank "WORLD_SIZE=2" "the variable 'RANK' is not set, though 'WORLD_SIZE' is: torchrun sets both$remedy"
wrong no_local_rank "RANK=0 WORLD_SIZE=2" "the variable 'LOCAL_RANK' is not set, though 'RANK' is: torchrun sets both$remedy"
wrong none_though_named "A=b" "the variable 'RANK' is not set: torchrun sets it$remedy" --launcher torchrun
wrong rendezvous_alone "A=b" "option '--rendezvous': no launcher's variables say that this process is one of its ranks (RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID and those that go with them), and ranks that difftp starts itself need no place to meet" --rendezvous tcp:a:1
wrong no_port "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=x" \
	"the variable 'MASTER_PORT' is not set, though 'MASTER_ADDR' is: the ranks meet where both say; unset it, or say with --rendezvous where they meet"
wrong rank_no_number "RANK=1x WORLD_SIZE=2 LOCAL_RANK=0" \
	"the variable 'RANK' is '1x', not a whole number from 0 to 1024$remedy"
wrong size_no_number "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=-2 OMPI_COMM_WORLD_LOCAL_RANK=0" \
	"the variable 'OMPI_COMM_WORLD_SIZE' is '-2', not a whole number from 1 to 1024$remedy"
wrong rank_beyond_size "SLURM_PROCID=4 SLURM_NTASKS=4 SLURM_LOCALID=0" \
	"the variable 'SLURM_PROCID' is 4, but 'SLURM_NTASKS' is 4: ranks are numbered from 0 to 3$remedy"
wrong local_rank_beyond "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1" \
	"the variable 'LOCAL_RANK' is 1, but 'LOCAL_WORLD_SIZE' is 1: no rank has that place on its host$remedy"
wrong world_size "RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port" \
	"torchrun has started 3 ranks, but --dp-degree 1 x --ring-degree 1 x --ulysses-degree 1 x --tp-degree 2 = 2: the product of the degrees must be the number of ranks (--launcher self starts them itself)" --tp-degree 2
wrong world_size_of_another_rank "RANK=2 WORLD_SIZE=3 LOCAL_RANK=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port" \
	"torchrun has started 3 ranks, but --dp-degree 2 x --ring-degree 1 x --ulysses-degree 1 x --tp-degree 2 = 4: the product of the degrees must be the number of ranks (--launcher self starts them itself)" --tp-degree 2 --dp-degree 2
wrong world_size_one "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port" \
	"torchrun has started 1 rank, but --dp-degree 1 x --ring-degree 1 x --ulysses-degree 1 x --tp-degree 2 = 2: the product of the degrees must be the number of ranks (--launcher self starts them itself)" --tp-degree 2
for kind in ring ulysses; do
	wrong $kind "A=b" "--$kind-degree 2: dividing the tokens of a picture over ranks is not there yet, only --$kind-degree 1 is; --tp-degree divides its layers, --dp-degree the images" --$kind-degree 2
done
wrong several_hosts "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2" \
	"the 4 ranks of this job of mpirun are on several hosts and do not know where to meet: give all of them --rendezvous file:PATH (in a folder that the hosts share) or tcp:HOST:PORT (on rank 0's host), or set 'MASTER_ADDR' and 'MASTER_PORT'" --tp-degree 4
wrong rendezvous_kind "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0" \
	"option '--rendezvous': 'meet' is neither 'file:PATH' nor 'tcp:HOST:PORT'" --tp-degree 2 --rendezvous meet
wrong rendezvous_port "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0" \
	"option '--rendezvous': 'tcp:a:70000' is not 'tcp:HOST:PORT' with a port from 1 to 65535" --tp-degree 2 --rendezvous tcp:a:70000
wrong rendezvous_folder "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0" \
	"option '--rendezvous': cannot write '$dir/none/x': the folder '$dir/none' does not exist" --tp-degree 2 --rendezvous "file:$dir/none/x"
echo precious >"$dir/precious"
wrong rendezvous_of_another_kind "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0" \
	"option '--rendezvous': '$dir/precious' exists and is no rendezvous of difftp: it is left as it is" --tp-degree 2 --rendezvous "file:$dir/precious"

# ---- ranks that do not belong together.  two NAME CODE MESSAGE: rank 0 with $first, another with the number $number and $second
two() {
	case_ "launcher_$1"
	fresh
	torchrun_one 0 --tp-degree 2 $first
	torchrun_one "$number" --tp-degree 2 $second
	wait_for_jobs
	all_return "$2"
	one_message "$3"
	nothing_left
	done_
}
number=1 first= second='--steps 5'
two ranks_with_other_options 2 "rank 0 on $h has '--steps 4', rank 1 on $h '--steps 5': all ranks of a job need the same options \(but for "
second='--tp-degree 1'
two ranks_with_other_degrees 2 "rank 0 on $h has '--tp-degree 2', rank 1 on $h '--tp-degree 1': all ranks"
first='--tp-degree 4' second=
two ranks_with_other_degrees_than_the_first 2 "rank 0 on $h has '--tp-degree 4', rank 1 on $h '--tp-degree 2': all ranks"
first= second='--exact-timesteps --quiet --threads 1'
two ranks_with_another_switch 2 "rank 0 on $h has no '--exact-timesteps', rank 1 on $h '--exact-timesteps': all ranks"
number=0 second=
two rank_0_twice 2 "rank 0 is there twice: process [0-9]+ on $h and process [0-9]+ on $h$"
case_ launcher_ranks_of_other_versions
fresh
version=$("$DIFFTP" --version | cut -d ' ' -f 2)
other=9${version#?}
torchrun_one 0 --tp-degree 2
LD_PRELOAD=$dir/fault.so FAULT_VERSION=9
export LD_PRELOAD FAULT_VERSION
torchrun_one 1 --tp-degree 2
unset LD_PRELOAD FAULT_VERSION
wait_for_jobs
all_return 2
one_message "rank 1 on $h is difftp $other, rank 0 on $h is difftp $version: all ranks of a job need the same program$"
nothing_left
done_

# The job of three lacks one of them, and has another twice.
case_ launcher_rank_twice
fresh
of=3
for r in 0 1 1; do
	torchrun_one $r --tp-degree 3
	sleep 0.1
done
of=
wait_for_jobs
all_return 2
one_message "rank 1 is there twice: process [0-9]+ on $h and process [0-9]+ on $h$"
nothing_left
done_

case_ launcher_rank_twice_of_a_running_job
fresh
LD_PRELOAD=$dir/fault.so FAULT_RANK=1 FAULT_STAGE='step 2' FAULT_DO=hang FAULT_MARK=$dir/mark
export LD_PRELOAD FAULT_RANK FAULT_STAGE FAULT_DO FAULT_MARK
torchrun_one 0 --tp-degree 2 --timeout 4
torchrun_one 1 --tp-degree 2 --timeout 4
unset LD_PRELOAD
until [ -e "$dir/mark" ]; do sleep 0.05; done
(
	RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
	export RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
	one --tp-degree 2 --timeout 4 2>"$dir/third"
	echo $? >"$dir/third.rc"
)
[ "$(cat "$dir/third.rc")" -eq 2 ] || fail "the third returned $(cat "$dir/third.rc")"
[ "$(cat "$dir/third")" = 'difftp: rank 1 of this job is there already' ] || fail "the third says: $(cat "$dir/third")"
wait_for_jobs
all_return 1
one_message "rank 1 on $h made no progress for .* in 'step 2/4'"
nothing_left
done_

# ---- ranks that do not come
case_ launcher_rank_missing
fresh
torchrun_one 0 --tp-degree 2 --timeout 1
wait_for_jobs
all_return 1
one_message "rank 1 of 2 has not come within 1 seconds \(--timeout\) to where all meet: MASTER_ADDR '127.0.0.1', ports"
nothing_left
done_
case_ launcher_ranks_missing
fresh
of=5
torchrun_one 0 --tp-degree 5 --timeout 1
torchrun_one 2 --tp-degree 5 --timeout 1
of=
wait_for_jobs
all_return 1
one_message 'ranks 1, 3, 4 of 5 have not come within 1 seconds'
nothing_left
done_
case_ launcher_rank_0_missing
fresh
torchrun_one 1 --tp-degree 2 --timeout 1
wait_for_jobs
all_return 1
one_message "rank 0 has not come within 1 seconds \(--timeout\) to where rank 1 of 2 waits for it: MASTER_ADDR '127.0.0.1', ports"
nothing_left
done_
case_ launcher_stale_file
fresh
printf "difftp-rendezvous\ntorchrun job '' 1234\n%d\n127.0.0.1\n" $port >"$dir/out/meet"
torchrun_one 1 --tp-degree 2 --rendezvous "file:$dir/out/meet"
sleep 0.3
torchrun_one 0 --tp-degree 2 --rendezvous "file:$dir/out/meet"
wait_for_jobs
all_return 0
rm -f "$dir/out/x.png"
nothing_left
done_

# ---- whose variables count
case_ launcher_variables_of_a_shell_do_not_count
fresh
(
	SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_JOB_NODELIST=a # salloc
	export SLURM_JOB_ID SLURM_NTASKS SLURM_JOB_NODELIST
	one --tp-degree 2 -q || exit
	SLURM_PROCID=0 SLURM_LOCALID=0 ENVIRONMENT=BATCH # sbatch
	export SLURM_PROCID SLURM_LOCALID ENVIRONMENT
	one --tp-degree 2 -q || exit
	ENVIRONMENT='' SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 # an interactive step
	export SLURM_STEP_ID SLURM_STEP_NUM_TASKS
	one --tp-degree 2 -q || exit
	RANK=1 WORLD_SIZE=4
	export RANK WORLD_SIZE
	one --tp-degree 2 -q --launcher self
) 2>"$dir/err.0"
echo $? >"$dir/rc.0"
all_return 0
[ ! -s "$dir/err.0" ] || fail "$(cat "$dir/err.0")"
rm -f "$dir/out/x.png"
nothing_left
done_
case_ launcher_inner_one_counts
fresh
(
	SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_STEP_ID=0
	export SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_STEP_ID
	torchrun 2 --tp-degree 2
)
all_return 0
rm -f "$dir/out/x.png"
nothing_left
done_
finish
