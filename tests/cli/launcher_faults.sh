#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Under somebody else's launcher, a rank or the process that was started for it (its keeper) that fails in a stage: one message, all
# ranks end, nothing is left.  FAULTS=all tries every fault in every stage (tests/long/launchers.sh); NAMES=1 prints the names only.
. tests/lib.sh
[ -n "${NAMES:-}" ] || . tests/jobs.sh

# ---- a rank, or the process that the launcher started for it, that fails in a stage
# dies LAUNCHER WHAT RANK STAGE RETURNS MESSAGE
dies() {
	case_ "launcher_fault_$(printf '%s_%s_rank_%s_%s' "$1" "$2" "$3" "$4" | tr -c 'a-z0-9_' _)"
	[ -z "${NAMES:-}" ] || { echo "$name" && return; }
	launcher=$1 what=$2 rank=$3 stage=$4
	fresh
	FAULT_RANK=$rank FAULT_STAGE=$stage FAULT_DO=$what FAULT_MARK=$dir/mark LD_PRELOAD=$dir/fault.so
	export FAULT_RANK FAULT_STAGE FAULT_DO FAULT_MARK LD_PRELOAD
	begin=$(date +%s%N)
	$launcher 2 --tp-degree 2 --timeout 1
	took=$((($(date +%s%N) - begin) / 1000000))
	unset LD_PRELOAD
	[ -e "$dir/mark" ] || fail "it did not happen"
	[ $took -lt 10000 ] || fail "took $took ms"
	returned="$(cat "$dir/rc.0") $(cat "$dir/rc.1")"
	# mpirun kills what is left when its first process has ended, or passes on that one's code: whichever comes first.
	[ "$launcher $5 $returned" = 'mpirun 137 137 1 1' ] || [ "$returned" = "$5" ] || fail "the ranks returned $returned, not $5"
	one_message "$6"
	nothing_left
	done_
}
# try LAUNCHER WHAT RANK STAGE: with what must be said of it
try() {
	place=$4 all='1 1'
	[ "$place" = naming ] && place='write'
	who="rank $3 on ${h:-}"
	if [ "$1" = torchrun ]; then # the stand-in ends nobody and returns what each of them returns
		case "$2$3" in *keeper0) all='137 1' ;; *keeper1) all='1 137' ;; esac
	else
		case "$2$3" in *keeper1 | kill_keeper0) all='137 137' ;; esac # a stopped one it wakes to end it
	fi
	case $2 in
	kill) says="$who was killed by SIGKILL \(signal 9\) in '$place" ;;
	stop) says="$who made no progress for [1-4] seconds in '$place.*stopped .SIGSTOP" ;;
	exit) says="$who exited with code 1, without saying why, in '$place" ;;
	abort) [ -n "$SANITIZED" ] && says="$who .*'$place" || says="$who was killed by SIGABRT .* in '$place" ;;
	segv) [ -n "$SANITIZED" ] && says="$who .*'$place" || says="$who was killed by SIGSEGV .* in '$place" ;;
	memory) says="$who " ;; # felt when memory is asked for next
	kill_keeper) says="$who ended without saying why in '$place" ;;
	stop_keeper) says="$who made no progress for .*'$place" ;;
	esac
	dies "$1" "$2" "$3" "$4" "$all" "$says"
}
shared='rendezvous load_text load_trans encode step_3' alone='load_vae decode write naming'
# Steps after the first take no memory, nor does giving a file its name; sanitizers have their own.
memory_shared='rendezvous load_text load_trans encode step_1' memory_alone='load_vae decode write'
if [ "${FAULTS:-}" = all ]; then
	for what in kill stop exit abort segv kill_keeper stop_keeper memory; do
		if [ $what = memory ]; then
			[ -z "$SANITIZED" ] || continue
			shared=$memory_shared alone=$memory_alone
		fi
		for stage in $shared; do
			try torchrun $what 0 "$(echo $stage | tr _ ' ')"
			try torchrun $what 1 "$(echo $stage | tr _ ' ')"
		done
		for stage in $alone; do
			try torchrun $what 0 "$(echo $stage | tr _ ' ')"
		done
		[ $what = memory ] && continue
		try mpirun $what 0 'step 2'
		try mpirun $what 1 'load trans'
	done
else
	rank=0
	for stage in $shared; do
		try torchrun kill $rank "$(echo $stage | tr _ ' ')"
		rank=$((1 - rank))
	done
	try torchrun stop 0 'load trans'
	try torchrun stop 1 'step 2'
	try torchrun kill_keeper 0 'step 2'
	try torchrun kill_keeper 1 encode
	try torchrun stop_keeper 0 write
	try torchrun stop_keeper 1 'step 2'
	if command -v mpirun >/dev/null; then
		try mpirun kill 0 'step 2'
		try mpirun kill_keeper 1 'step 2'
	fi
fi

[ -z "${NAMES:-}" ] || exit 0
if command -v mpirun >/dev/null; then
	case_ launcher_fault_mpirun_killed
	fresh
	FAULT_RANK=1 FAULT_STAGE='step 2' FAULT_DO=hang FAULT_MARK=$dir/mark LD_PRELOAD=$dir/fault.so
	export FAULT_RANK FAULT_STAGE FAULT_DO FAULT_MARK LD_PRELOAD
	mpirun 2 --tp-degree 2 --timeout 60 &
	jobs=$!
	unset LD_PRELOAD
	until [ -e "$dir/mark" ]; do sleep 0.05; done
	pkill -KILL -P "$jobs" mpirun
	wait_for_jobs
	for _ in $(seq 60); do
		[ -n "$(processes)" ] || break
		sleep 0.05
	done
	nothing_left
	done_
fi

case_ launcher_fault_signal_to_all
fresh
FAULT_RANK=1 FAULT_STAGE='step 2' FAULT_DO=hang FAULT_MARK=$dir/mark LD_PRELOAD=$dir/fault.so
export FAULT_RANK FAULT_STAGE FAULT_DO FAULT_MARK LD_PRELOAD
torchrun_one 0 --tp-degree 2 --timeout 60
torchrun_one 1 --tp-degree 2 --timeout 60
unset LD_PRELOAD
until [ -e "$dir/mark" ]; do sleep 0.05; done
for p in $(processes); do
	grep -qz '^DIFFTP_RANK=' "/proc/$p/environ" || kill -TERM "$p"
done
wait_for_jobs
all_return 130
one_message 'interrupted$'
nothing_left
done_
finish
