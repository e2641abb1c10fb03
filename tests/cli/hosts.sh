#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two hosts: namespaces for network, processes and names, joined by a pair of interfaces, with two ranks each.  The same picture as
# on one host, over that network; a rank or a host's share of the job that fails is named with its host.
. tests/lib.sh
model=tests/models/klein-tiny
port=$((20000 + $$ % 9000))

# ---- inside: two_hosts SCRIPT runs it with $alpha and $beta as the two hosts' prefixes
if [ "${1:-}" = inside ]; then
	dir=$2
	trap - EXIT
	mount -t tmpfs none /run || exit 77
	ip netns add alpha && ip netns add beta || exit 77
	ip link add va type veth peer name vb && ip link set va netns alpha && ip link set vb netns beta || exit 77
	ip -n alpha addr add 10.77.0.1/24 dev va && ip -n beta addr add 10.77.0.2/24 dev vb || exit 77
	for i in 'alpha lo' 'alpha va' 'beta lo' 'beta vb'; do ip -n "${i% *}" link set "${i#* }" up || exit 77; done
	# host NAME LOCAL_RANKS... : the ranks with these numbers, on that host
	host() {
		name=$1
		shift
		# shellcheck disable=SC2016 # for the inner shell
		ip netns exec "$name" unshare --uts --pid --fork --mount-proc sh -c '
			hostname "$1"
			shift
			local=0
			for r in $RANKS; do
				(
					RANK=$r LOCAL_RANK=$local
					export RANK LOCAL_RANK
					"$@" >"$OUT/out.$r" 2>"$OUT/err.$r" </dev/null
					echo $? >"$OUT/rc.$r"
				) &
				local=$((local + 1))
			done
			wait' sh "$name" "$@"
	}
	OUT=$dir WORLD_SIZE=4 LOCAL_WORLD_SIZE=2
	export OUT WORLD_SIZE LOCAL_WORLD_SIZE
	shift 2
	RANKS='0 1' host alpha "$@" &
	jobs=$!
	# shellcheck disable=SC2086 # a list of words
	RANKS='2 3' host beta "$@" ${BETA:-} &
	jobs="$jobs $!"
	if [ -n "${CUT:-}" ]; then
		until [ -e "$dir/mark" ]; do sleep 0.05; done
		sleep 1
		ip -n alpha link set va down
	fi
	for p in $jobs; do wait "$p"; done
	ip -n beta -s link show vb | awk '/RX:/ { getline; print $1 }' >"$dir/bytes"
	exit 0
fi

# As root, or as root of a user namespace.
if unshare --net --mount true 2>/dev/null; then
	enter='unshare --net --mount'
elif unshare --user --map-root-user --net --mount true 2>/dev/null; then
	enter='unshare --user --map-root-user --net --mount'
else
	echo "skip hosts: network namespaces are not allowed here"
	exit 0
fi

one='--prompt fox --height 64 --width 64 --steps 4 --seed 1 --max-sequence-length 32 --tp-degree 4 --timeout 3 --no-metadata' # the pictures alone are compared
# job ARGUMENT...
job() {
	rm -rf "$dir"/out.* "$dir"/err.* "$dir"/rc.* "$dir/bytes" "$dir/mark" "$dir/out"
	mkdir "$dir/out"
	begin=$(date +%s%N)
	# shellcheck disable=SC2086 # lists of words
	$enter sh "$0" inside "$dir" "$DIFFTP" --model $model $one -o "$dir/out/x.png" "$@" >"$dir/log" 2>&1
	took=$((($(date +%s%N) - begin) / 1000000))
	[ -e "$dir/bytes" ] || fail "the hosts could not be made: $(cat "$dir/log")"
}
all_return() {
	for r in 0 1 2 3; do
		[ "$(cat "$dir/rc.$r")" = "$1" ] || fail "rank $r returned $(cat "$dir/rc.$r"), not $1"
	done
}
one_message() {
	[ "$(cat "$dir"/err.* | grep -c '^difftp: ')" -eq 1 ] || fail "not one message: $(cat "$dir"/err.*)"
	cat "$dir"/err.* | grep -Eq -- "^difftp: $1" || fail "the message is not '$1': $(cat "$dir"/err.* | grep '^difftp: ')"
}
nothing_left() {
	[ -z "$(pgrep -f -- "-o $dir/out/x.png")" ] || fail "processes are left"
	[ -z "$(ls -A "$dir/out")" ] || fail "files are left: $(ls -A "$dir/out")"
}

# shellcheck disable=SC2086 # a list of words
"$DIFFTP" --model $model $one -q -o "$dir/own.png" 2>"$dir/log" || exit 1
draws() { # NAME ARGUMENT...
	case_ "hosts_draw_$1"
	shift
	job "$@"
	all_return 0
	cmp -s "$dir/own.png" "$dir/out/x.png" || fail "another picture, or none: $(cat "$dir"/err.*)"
	grep -Eq 'threads? here, 2 hosts$' "$dir/err.0" || fail "it does not see two hosts: $(cat "$dir/err.0")"
	# Of each of some 60 sums a host takes in at least its part from the other.
	[ "$(cat "$dir/bytes")" -gt 500000 ] || fail "only $(cat "$dir/bytes") bytes went from host to host"
	rm -f "$dir/out/x.png"
	nothing_left
	done_
}
draws by_file --rendezvous "file:$dir/out/meet"
[ "${FAULTS:-}" != all ] || draws by_tcp --rendezvous "tcp:10.77.0.1:$port"
MASTER_ADDR=10.77.0.1 MASTER_PORT=$port
export MASTER_ADDR MASTER_PORT
draws by_master

# Each host with the files of its own ranks only.
"$DIFFTP" shard --model $model --tp-degree 4 -q -o "$dir/alpha" && cp -r "$dir/alpha" "$dir/beta" || exit 1
rm "$dir"/alpha/*/*.tp0[23]-of-04.safetensors "$dir"/beta/*/*.tp0[01]-of-04.safetensors
BETA="--model $dir/beta"
export BETA
draws from_shards_of_their_own --model "$dir/alpha"
unset BETA

${CC:-cc} -shared -fPIC -D_GNU_SOURCE -Icore -Icli -o "$dir/fault.so" tests/fault_preload.c -ldl || exit 1
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS
fails() { # NAME RANK STAGE WHAT RETURNS MESSAGE
	case_ "hosts_fault_$1"
	FAULT_RANK=$2 FAULT_STAGE=$3 FAULT_DO=$4 FAULT_MARK=$dir/mark LD_PRELOAD=$dir/fault.so
	export FAULT_RANK FAULT_STAGE FAULT_DO FAULT_MARK LD_PRELOAD
	job
	unset LD_PRELOAD
	[ -e "$dir/mark" ] || fail "it did not happen"
	echo "$5" >"$dir/want"
	echo "$(cat "$dir/rc.0") $(cat "$dir/rc.1") $(cat "$dir/rc.2") $(cat "$dir/rc.3")" | diff - "$dir/want" >"$dir/diff" ||
		fail "the ranks returned, and were to return: $(cat "$dir/diff")"
	one_message "$6"
	[ $took -lt 15000 ] || fail "took $took ms" # 10 s, and what it takes to make two hosts
	nothing_left
	done_
}
fails rank_killed 3 'step 2' kill '1 1 1 1' "rank 3 on beta was killed by SIGKILL \(signal 9\) in 'step 2/4'"
fails first_keeper_killed 0 'step 2' kill_keeper '137 1 1 1' "rank 0 on alpha ended without saying why in 'step 2/4'"
if [ "${FAULTS:-}" = all ]; then
	fails rank_stopped 2 'step 2' stop '1 1 1 1' "rank 2 on beta made no progress for [34] seconds in 'step 2/4': its process is stopped \(SIGSTOP\)"
	fails keeper_stopped 2 'step 2' stop_keeper '1 1 137 1' "rank 2 on beta made no progress for [34] seconds in 'step 2/4': its process does not answer"
	fails first_keeper_stopped 0 'step 2' stop_keeper '137 1 1 1' "rank 0 on alpha made no progress for [45] seconds \(its process is stopped"

	# Each side says what it sees.
	case_ hosts_network_cut
	FAULT_RANK=3 FAULT_STAGE='step 2' FAULT_DO=hang FAULT_MARK=$dir/mark LD_PRELOAD=$dir/fault.so CUT=yes
	export FAULT_RANK FAULT_STAGE FAULT_DO FAULT_MARK LD_PRELOAD CUT
	job
	unset LD_PRELOAD CUT
	all_return 1
	[ "$(cat "$dir"/err.* | grep -c '^difftp: ')" -eq 2 ] || fail "not two messages: $(cat "$dir"/err.*)"
	grep -Eq "^difftp: rank [23] on beta made no progress for [345] seconds in 'step 2/4'" "$dir/err.0" || fail "$(cat "$dir/err.0")"
	grep -Eq "^difftp: rank 0 on alpha made no progress for [345] seconds \(its host cannot be reached\) in 'step 2/4'" "$dir/err.2" ||
		fail "$(cat "$dir/err.2")"
	[ $took -lt 15000 ] || fail "took $took ms"
	nothing_left
	done_
fi

# What only one host lacks.
case_ hosts_model_missing_on_one
mkdir "$dir/m"
job --model "$dir/m"
all_return 2
one_message "'$dir/m' has no model_index.json"
nothing_left
done_
# Rank 0's host has it, and waits for its ranks meanwhile.
case_ hosts_model_missing_on_the_other
BETA="--model $dir/m"
export BETA
job
unset BETA
all_return 2
one_message "rank 2 on beta failed in 'start': '$dir/m' has no model_index.json"
nothing_left
done_
finish
