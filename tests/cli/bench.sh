#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp bench: its table, and every documented key of its JSON.
. tests/lib.sh
model=tests/models/klein-tiny

bench() {
	"$DIFFTP" bench --model $model --height 64 --width 64 --max-sequence-length 32 --tp-degree 2 "$@" \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}

case_ table
bench --repeat 2
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
for phase in 'load text_encoder' encode 'load transformer' step 'load vae' decode; do
	grep -Eq "^$phase +[0-9]+ +[0-9.]+ +[0-9.]+ " "$dir/stdout" || fail "no row '$phase': $(cat "$dir/stdout")"
done
grep -Eq '^step +8 ' "$dir/stdout" || fail "8 steps were not counted: $(cat "$dir/stdout")"
done_

case_ loads_are_those_of_the_choice
# of text encoder, transformer, VAE: two images of one prompt, twice
for choice in none:1:1:1 stage:2:4:4 auto:2:2:2; do
	bench --repeat 2 --steps 1 -n 2 --offload "${choice%%:*}"
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	loads=$(sed -n 's/^load [a-z_]* *\([0-9]*\) .*/\1/p' "$dir/stdout" | paste -s -d:)
	[ "$loads" = "${choice#*:}" ] || fail "$choice: loads $loads"
done
done_

case_ json
bench --json --seed 3 --dtype fp32
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
keys=$(awk -F '|' '/^## Measuring/ { on = 1 } on && /^[|] `/ { print $2 }' docs/running.md | tr -d '`,' | tr ' ' '\n' | grep . | sort -u)
[ "$(echo "$keys" | wc -w)" -ge 25 ] || fail "the documentation lists too few keys: $keys"
for key in $keys; do
	grep -q "\"$key\":" "$dir/stdout" || fail "no key '$key'"
done
for key in $(grep -o '"[a-z_]*":' "$dir/stdout" | tr -d '":' | sort -u); do
	echo "$keys" | grep -qx "$key" || fail "key '$key' is not documented"
done
grep -q '"seed":.*"3"' "$dir/stdout" || fail "the seed is not there: $(cat "$dir/stdout")"
done_

case_ full_stdout_is_an_error
if [ -e /dev/full ]; then
	"$DIFFTP" bench --model $model --height 64 --width 64 --steps 1 --max-sequence-length 16 -q --prompt "" >/dev/full 2>"$dir/stderr"
	[ $? -eq 1 ] || fail "exit code is not 1"
	grep -q 'cannot write to standard output: No space left on device' "$dir/stderr" || fail "$(cat "$dir/stderr")"
fi
done_

case_ writes_nothing_unless_asked
program=$(realpath "$DIFFTP") folder=$(realpath $model)
mkdir "$dir/out"
(cd "$dir/out" && "$program" bench --model "$folder" --height 64 --width 64 --steps 1 --max-sequence-length 16 -q >"$dir/stdout")
[ -z "$(ls -A "$dir/out")" ] || fail "left behind: $(ls -A "$dir/out")"
bench --steps 1 -q -o "$dir/out/x.png"
[ "$(ls -A "$dir/out")" = x.png ] || fail "the folder holds: $(ls -A "$dir/out")"
done_
finish
