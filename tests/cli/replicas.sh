#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Images divided over replicas: files, names, seeds and pictures are those of one process.
. tests/lib.sh
model=tests/models/klein-tiny

# draw NAME DP TP COUNT [ARGUMENT...]
draw() {
	mkdir -p "$dir/$1"
	out=$dir/$1/x.png dp=$2 tp=$3 count=$4
	shift 4
	"$DIFFTP" --model $model --prompt "a red fox" --height 64 --width 96 --steps 2 --max-sequence-length 32 --seed 5 -n "$count" \
		--dp-degree "$dp" --tp-degree "$tp" -o "$out" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 0 ] || fail "dp $dp, tp $tp: exit code $rc: $(cat "$dir/stderr")"
}

case_ same_files_at_every_degree
draw one 1 1 4
draw one_of_2 1 2 4 # in bf16 a sum over two ranks may round otherwise than that of one
for degrees in '2 1' '3 1' '2 2' '3 2'; do
	# shellcheck disable=SC2086 # two words
	draw some $degrees 4
	[ "${degrees#* }" = 1 ] && whole=one || whole=one_of_2
	diff -r "$dir/$whole" "$dir/some" >"$dir/diff" || fail "dp x tp = $degrees: $(cat "$dir/diff")"
	[ "$(grep '^wrote ' "$dir/stderr" | sort)" = "$(for i in 0 1 2 3; do
		echo "wrote $dir/some/x_$i.png (96x64, seed $((5 + i)))"
	done)" ] || fail "dp x tp = $degrees says: $(grep '^wrote ' "$dir/stderr")"
	rm -r "$dir/some"
done
done_

case_ more_replicas_than_images
draw idle 3 1 2
cmp "$dir/one/x_0.png" "$dir/idle/x_0.png" || fail "another picture"
cmp "$dir/one/x_1.png" "$dir/idle/x_1.png" || fail "another picture"
[ "$(ls "$dir/idle")" = "$(printf 'x_0.png\nx_1.png')" ] || fail "the folder holds: $(ls "$dir/idle")"
done_

case_ stages_of_the_first_image
draw dump 2 1 2 --dump-stages "$dir/dump/stages.safetensors"
draw dumped 1 1 1 --dump-stages "$dir/dumped/stages.safetensors"
cmp "$dir/dump/stages.safetensors" "$dir/dumped/stages.safetensors" || fail "other stages"
done_

case_ each_replica_loads_once
"$DIFFTP" bench --json --model $model --height 64 --width 64 --steps 2 --max-sequence-length 16 -n 4 --dp-degree 2 -q \
	>"$dir/stdout" 2>"$dir/stderr"
[ $? -eq 0 ] || fail "$(cat "$dir/stderr")"
grep -q '"dp_degree":.*2' "$dir/stdout" || fail "no dp_degree: $(cat "$dir/stdout")"
count=$(grep -A 1 '"name":.*"step"' "$dir/stdout" | sed -n 's/.*"calls":[^0-9]*\([0-9]*\).*/\1/p')
[ "$count" = 4 ] || fail "$count steps in the first replica, not 4"
count=$(grep -A 1 '"name":.*"load transformer"' "$dir/stdout" | sed -n 's/.*"calls":[^0-9]*\([0-9]*\).*/\1/p')
[ "$count" = 1 ] || fail "$count loads of the transformer, not 1"
done_

set -- --model $model --prompt x --height 64 --width 64 --max-sequence-length 16 --dp-degree 2
refuse list_of_limits 'option .--max-memory. lists 2 sizes for 4 ranks' "$@" --tp-degree 2 --max-memory 1GB,1GB
refuse limit_of_the_second_replica 'not enough memory: rank 1 needs [0-9.]+ MB at the peak, --max-memory allows 10' "$@" \
	--max-memory 1GB,10MB
refuse too_many 'option .--dp-degree.: 0 is out of range' --model $model --prompt x --dp-degree 0
refuse more_ranks_than_can_be '--dp-degree 1024 x --tp-degree 2 are 2048 ranks, at most 1024 can be started' --model $model \
	--prompt x --dp-degree 1024 --tp-degree 2
finish
