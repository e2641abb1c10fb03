#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Replicas on emulated GPUs of one host read each weight once, and draw what one draws.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
. tests/emulated.sh
model=tests/models/klein-tiny
export DIFFTP_EMU_STREAMS=deferred

says() {
	grep -q -- "$1" "$dir/stderr" || fail "'$1' is not said: $(cat "$dir/stderr")"
}
run() { # NAME DP TP OPTION...: the pictures are $dir/NAME/*, and what bench says $dir/NAME.json
	out=$dir/$1 json=$dir/$1.json replicas=$2 ranks=$3
	shift 3
	mkdir -p "$out"
	"$emulated/difftp" bench --model $model --height 32 --width 32 --steps 1 --seed 1 --max-sequence-length 16 --device cuda --dtype fp32 \
		--no-metadata --dp-degree "$replicas" --tp-degree "$ranks" --json -o "$out/x.png" --force "$@" >"$json" 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 0 ] || fail "dp $replicas, tp $ranks: exit code $rc: $(cat "$dir/stderr")"
	grep -q '"bytes_read":[[:space:]]*[1-9]' "$json" || case $* in *--synthetic*) ;; *) fail "nothing is read: $(cat "$json")" ;; esac
}
# read_bytes NAME: of all ranks, a line for each component that is loaded: its name and its bytes.
read_bytes() {
	i=0
	while phase=$("$TESTBIN/tool_json" "$dir/$1.json" phases.$i.name 2>/dev/null); do
		bytes=$("$TESTBIN/tool_json" "$dir/$1.json" phases.$i.bytes_read)
		[ "$bytes" = 0 ] || echo "$phase $bytes"
		i=$((i + 1))
	done
}
same_pictures() { # NAME NAME
	diff -r "$dir/$1" "$dir/$2" >"$dir/diff" || fail "$(cat "$dir/diff")"
}
# once NAME DP OPTION...: so many replicas read together what one reads, whichever rank, and draw the same.
once() {
	case_ "$1"
	dp=$2
	shift 2
	for tp in 1 2; do
		run one 1 $tp -n 3 --offload none "$@"
		[ "$(read_bytes one | wc -l)" -ge 3 ] || fail "tp $tp reads nothing: $(cat "$dir/one.json")"
		run some "$dp" $tp -n 3 --offload none "$@"
		[ "$(read_bytes some)" = "$(read_bytes one)" ] || fail "dp $dp, tp $tp reads $(read_bytes some), one replica $(read_bytes one)"
		same_pictures one some
	done
	done_
}
once two_replicas_read_what_one_reads 2
once three_replicas_read_what_one_reads 3
once a_lora_and_a_reference_image 2 --lora tests/models/loras/peft.safetensors:0.7 --image tests/reference/klein-edit-tiny/input_ref_a.png

case_ each_repetition
run one 1 1 -n 2 --repeat 2 --offload stage
run some 2 1 -n 2 --repeat 2
[ "$(read_bytes some | grep text)" = "$(read_bytes one | grep text)" ] || fail "$(read_bytes some), one replica $(read_bytes one)"
same_pictures one some
done_

case_ files_of_ranks
"$DIFFTP" shard --model $model --tp-degree 2 -o "$dir/shards" >"$dir/stdout" 2>"$dir/stderr" </dev/null || fail "$(cat "$dir/stderr")"
model=$dir/shards
run one 1 2 -n 2
run some 2 2 -n 2
[ "$(read_bytes some)" = "$(read_bytes one)" ] || fail "$(read_bytes some), one replica $(read_bytes one)"
same_pictures one some
model=tests/models/klein-tiny
done_

# Of three images a replica has two and the other one: what the second needs again it reads by itself.
case_ what_is_loaded_again
run once 1 1 -n 1
run one 1 1 -n 3 --offload stage
run some 2 1 -n 3 --offload stage
same_pictures one some
bytes=$(read_bytes once | sed -n 's/^load transformer //p')
[ "$(read_bytes one | sed -n 's/^load transformer //p')" = $((3 * bytes)) ] || fail "one replica: $(read_bytes one)"
[ "$(read_bytes some | sed -n 's/^load transformer //p')" = $((2 * bytes)) ] || fail "two replicas: $(read_bytes some)"
done_

case_ a_replica_without_an_image
run one 1 1 -n 2
run some 3 1 -n 2
[ "$(read_bytes some)" = "$(read_bytes one)" ] || fail "$(read_bytes some), one replica $(read_bytes one)"
same_pictures one some
done_

twice() { # what one replica reads, twice
	read_bytes one | awk '{ $NF *= 2; print }'
}
case_ without_nccl_each_reads_for_itself
DIFFTP_EMU_MISSING=nccl run some 2 1 -n 2
says "^each replica reads all of its weights by itself: 'ncclGetVersion' is missing"
[ "$(grep -c 'by itself' "$dir/stderr")" -eq 1 ] || fail "said more than once"
[ "$(read_bytes some)" = "$(twice)" ] || fail "$(read_bytes some), one replica $(read_bytes one)"
same_pictures one some
done_

# NCCL's buffers are not foreseen where a model has one rank: 960 MB are room for the job, not for them.
case_ without_room_each_reads_for_itself
rm -f "$dir/calls"
DIFFTP_EMU_MEMORY=960000000 DIFFTP_EMU_CALLS="$dir/calls" run some 2 1 -n 2
[ "$(read_bytes some)" = "$(twice)" ] || fail "$(read_bytes some), one replica $(read_bytes one)"
! grep -q '^nccl' "$dir/calls" || fail "NCCL was called: $(cat "$dir/calls")"
same_pictures one some
done_

case_ weights_that_are_computed
rm -f "$dir/calls"
DIFFTP_EMU_CALLS="$dir/calls" "$emulated/difftp" bench --synthetic --config $model --height 32 --width 32 --steps 1 --seed 1 \
	--max-sequence-length 16 --device cuda --dp-degree 2 -n 2 -q --json >"$dir/computed.json" 2>"$dir/stderr" || fail "$(cat "$dir/stderr")"
[ -z "$(read_bytes computed)" ] || fail "something was read: $(read_bytes computed)"
! grep -q '^nccl' "$dir/calls" || fail "NCCL was called: $(cat "$dir/calls")"
done_

# Lines come to replicas one by one: the second of three has none left to draw.
case_ lines_of_a_batch
draw() { # FOLDER DP OPTION...
	out=$dir/$1 dp=$2
	shift 2
	"$emulated/difftp" --model $model --height 32 --width 32 --steps 1 --seed 1 --max-sequence-length 16 --device cuda --dtype fp32 \
		--no-metadata --prompts "$dir/lines" -o "$out" --dp-degree "$dp" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null ||
		fail "dp $dp: $(cat "$dir/stderr")"
}
printf 'fox\nowl\ncat\n' >"$dir/lines"
draw all 1
for dp in 2 4; do
	draw lines$dp $dp
	for i in "$dir"/all/*.png; do
		cmp "$i" "$dir/lines$dp/${i##*/}" || fail "dp $dp: another picture"
	done
done
done_

# fault NAME RANK STAGE: a rank that is killed when it begins to load ends the others, which wait for what it has read.
${CC:-cc} -shared -fPIC -D_GNU_SOURCE -Icore -Icli -o "$dir/fault.so" tests/fault_preload.c -ldl || exit 1
fault() {
	case_ "$1"
	rm -f "$dir/x_0.png" "$dir/x_1.png" "$dir/mark"
	begin=$(date +%s)
	ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0 LD_PRELOAD="$dir/fault.so" FAULT_RANK=$2 FAULT_STAGE=$3 FAULT_DO=kill \
		FAULT_MARK="$dir/mark" "$emulated/difftp" --model $model -p fox --height 32 --width 32 --steps 1 --seed 1 --max-sequence-length 16 \
		--device cuda --dp-degree 2 --tp-degree 2 -n 2 -o "$dir/x.png" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ -e "$dir/mark" ] || fail "it did not happen"
	[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	[ $(($(date +%s) - begin)) -lt 40 ] || fail "it took $(($(date +%s) - begin)) s"
	[ "$(grep -c '^difftp: ' "$dir/stderr")" -eq 1 ] || fail "not one message: $(cat "$dir/stderr")"
	says "^difftp: rank $2 on .*SIGKILL.*'$3"
	[ ! -e "$dir/x_1.png" ] || fail "a picture is there"
	done_
}
fault a_rank_that_dies_while_it_loads 3 'load transformer'
fault the_first_rank_dies_while_it_loads 0 'load text_encoder'
fault a_replica_dies_before_its_vae 2 'load vae'

case_ a_broadcast_that_fails
DIFFTP_EMU_FAIL=ncclBroadcast:3@1 "$emulated/difftp" --model $model -p fox --height 32 --width 32 --steps 1 --seed 1 --max-sequence-length 16 \
	--device cuda --dp-degree 2 -n 2 -o "$dir/y.png" >"$dir/stdout" 2>"$dir/stderr" </dev/null
rc=$?
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
says "rank 1 .*'load text_encoder'.*ncclBroadcast failed: unhandled system error (2), cuda/comm_nccl.c:[0-9]"
done_

# Another name of the host is another host.
if unshare --uts true 2>/dev/null; then
	case_ hosts_read_for_themselves
	run one 1 1 -n 4
	printf 'hostname beta\nexec "$@"\n' >"$dir/beta"
	member() { # RANK: of four replicas, two on a host
		host=''
		[ "$1" -lt 2 ] || host="unshare --uts sh $dir/beta"
		# shellcheck disable=SC2086 # several words
		RANK=$1 LOCAL_RANK=$(($1 % 2)) WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 $host "$emulated/difftp" bench --model $model --height 32 --width 32 \
			--steps 1 --seed 1 --max-sequence-length 16 --device cuda --dtype fp32 --no-metadata --dp-degree 4 -n 4 --json \
			-o "$dir/hosts/x.png" --launcher torchrun --rendezvous "file:$dir/meet" >"$dir/hosts.$1" 2>"$dir/err.$1" </dev/null
	}
	mkdir "$dir/hosts"
	for rank in 3 2 1; do
		(
			[ $rank -eq 1 ] || export CUDA_VISIBLE_DEVICES=2,3
			member $rank
		) &
	done
	member 0
	rc=$?
	cp "$dir/err.0" "$dir/stderr"
	wait
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir"/err.*)"
	mv "$dir/hosts.0" "$dir/hosts.json"
	[ "$(read_bytes hosts)" = "$(twice)" ] || fail "$(read_bytes hosts), one replica $(read_bytes one)"
	same_pictures one hosts
	done_
else
	echo "skip hosts_read_for_themselves: no namespace of a host's name can be made"
fi
finish
