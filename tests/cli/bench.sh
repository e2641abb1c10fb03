#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp bench: its table, and every documented key of its JSON.
. tests/lib.sh
: "${TESTBIN:?the folder of the test programs}"
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

# ---- without weights: a folder that has nothing but configurations
rm -r "$dir/out"
configurations() { # NAME: those of a model, as $dir/NAME
	mkdir -p "$dir/$1"
	(cd "tests/models/$1" && cp --parents model_index.json ./*/config.json scheduler/scheduler_config.json "$dir/$1")
}
synthetic() { # NAME OPTION...
	folder=$dir/$1
	shift
	"$DIFFTP" bench --synthetic --config "$folder" --height 64 --width 64 --max-sequence-length 32 --seed 1 "$@" \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}
for m in klein-tiny dev-tiny; do configurations $m; done

case_ synthetic_from_configurations_alone
[ -z "$(find "$dir/klein-tiny" -name '*.safetensors' -o -name '*token*')" ] || fail "there is more than configurations"
for m in klein-tiny dev-tiny; do
	for tp in 1 2; do
		synthetic $m --tp-degree $tp --steps 2 --json -q
		[ $rc -eq 0 ] || fail "$m at $tp: exit code $rc: $(cat "$dir/stderr")"
		[ "$("$TESTBIN/tool_json" "$dir/stdout" synthetic)" = true ] || fail "$m at $tp: $(cat "$dir/stdout")"
		[ "$("$TESTBIN/tool_json" "$dir/stdout" phases.0.name)" = "load text_encoder" ] || fail "$m at $tp: $(cat "$dir/stdout")"
		[ "$("$TESTBIN/tool_json" "$dir/stdout" phases.0.bytes_read)" = 0 ] || fail "$m at $tp: something was read: $(cat "$dir/stdout")"
	done
done
synthetic klein-tiny --steps 1 --image tests/reference/klein-edit-tiny/input_ref_a.png
[ $rc -eq 0 ] || fail "with a reference: exit code $rc: $(cat "$dir/stderr")"
grep -Eq '^Flux2KleinPipeline \(synthetic\) 64x64, 1 steps, ' "$dir/stdout" || fail "$(cat "$dir/stdout")"
done_

case_ synthetic_is_always_the_same
synthetic klein-tiny --steps 1 -q -o "$dir/one.png"
synthetic klein-tiny --steps 1 -q --threads 1 -o "$dir/two.png"
cmp "$dir/one.png" "$dir/two.png" || fail "the pictures differ"
# The weight files that a folder has beside its configurations are not looked at.
"$DIFFTP" bench --synthetic --model tests/models/klein-tiny --height 64 --width 64 --max-sequence-length 32 --seed 1 --steps 1 -q -o "$dir/three.png" \
	>"$dir/stdout" || fail "exit code $?"
cmp "$dir/one.png" "$dir/three.png" || fail "the picture depends on weight files"
"$DIFFTP" inspect "$dir/one.png" >"$dir/stdout" 2>&1
grep -q 'what it was drawn of' "$dir/stdout" && fail "a record of a model that is nowhere: $(cat "$dir/stdout")"
done_

for o in prompt negative-prompt system-message prompt-embeds transformer variant lora; do
	refuse synthetic_and_$o "option '--synthetic' computes weights and tokens from the configurations: --$o does not go with it" \
		bench --synthetic --config "$dir/klein-tiny" --$o x
done
refuse synthetic_plan_and_lora "option '--synthetic' computes weights .*: --lora does not go with it" plan --synthetic --config "$dir/klein-tiny" --lora x

case_ synthetic_beside_defaults
mkdir -p "$dir/config/difftp"
echo 'lora = no/such/file' >"$dir/config/difftp/config"
XDG_CONFIG_HOME=$dir/config synthetic klein-tiny --steps 1 -q
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
done_

refuse synthetic_without_folder "option '--model' is missing: the folder of the pipeline" bench --synthetic
refuse synthetic_nowhere "model folder '$dir/nowhere' does not exist" bench --synthetic --config "$dir/nowhere"
mkdir "$dir/empty"
refuse synthetic_without_index "'$dir/empty' has no model_index.json" bench --synthetic --config "$dir/empty"
for part in transformer text_encoder vae; do
	mv "$dir/klein-tiny/$part/config.json" "$dir/kept"
	refuse synthetic_without_$part "cannot open '$dir/klein-tiny/$part/config.json': No such file or directory" \
		bench --synthetic --config "$dir/klein-tiny"
	mv "$dir/kept" "$dir/klein-tiny/$part/config.json"
done
mv "$dir/klein-tiny/scheduler" "$dir/kept"
refuse synthetic_without_scheduler "cannot open '$dir/klein-tiny/scheduler/scheduler_config.json': No such file or directory" \
	bench --synthetic --config "$dir/klein-tiny"
mv "$dir/kept" "$dir/klein-tiny/scheduler"
refuse synthetic_is_of_bench_and_plan "option '--synthetic' is not one of this command's" generate --synthetic --model "$dir/klein-tiny" --prompt x

case_ synthetic_plan_names_no_files
for tp in 1 2; do
	"$DIFFTP" plan --synthetic --config "$dir/klein-tiny" --tp-degree $tp >"$dir/stdout" 2>"$dir/stderr" || fail "exit code $?: $(cat "$dir/stderr")"
	grep -Eq '^transformer: .* of weights.*; they are computed, no file is read$' "$dir/stdout" || fail "$(cat "$dir/stdout")"
	grep -Eq ' (\? |reads? |are read$)' "$dir/stdout" && fail "$(cat "$dir/stdout")"
done
done_

# ---- the configurations of real models
case_ configurations_of_real_models
plan() { # NAME BYTES...: of text encoder, transformer and VAE
	"$DIFFTP" plan --synthetic --config "tests/models/configs/$1" --json --devices 1x100TB >"$dir/stdout" 2>"$dir/stderr" ||
		fail "$1: exit code $?: $(cat "$dir/stderr")"
	i=0
	for bytes in $2 $3 $4; do
		got=$("$TESTBIN/tool_json" "$dir/stdout" components.$i.weight_bytes)
		[ "$got" = "$bytes" ] || fail "$1: component $i has $got bytes, not $bytes"
		i=$((i + 1))
	done
}
# On a GPU matrices take 2 bytes a value, norms 4 and 2: dev's transformer 65536 more than its files, whose size plan.sh knows.
plan klein-4b 6228756992 7751119872 99393238
plan klein-9b 11664679424 18157203456 99393238
plan dev 34688737280 64446627840 99393238
done_

case_ who_never_decodes_has_no_room_for_it
workspace() { # RANK PHASE
	"$TESTBIN/tool_json" "$dir/stdout" "ranks.$1.phases.$2.workspace"
}
"$DIFFTP" plan --synthetic --config tests/models/configs/klein-4b --tp-degree 2 -n 2 --devices 2x80GB --json >"$dir/stdout" 2>"$dir/stderr" ||
	fail "exit code $?: $(cat "$dir/stderr")"
# The VAE's attention is the largest operation; its room is there from the first step on, since both stay.
[ "$(workspace 0 1)" = "$(workspace 0 2)" ] || fail "rank 0 makes room anew: $(workspace 0 1), then $(workspace 0 2)"
[ "$(workspace 1 1)" -lt "$(workspace 0 1)" ] || fail "rank 1 has $(workspace 1 1), rank 0 $(workspace 0 1)"
done_
finish
