#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plans/schema.json against the parser: every plan of the tree is valid, every broken plan of test_plan.c is valid if and only if
# the parser takes it (what else is wrong with it takes the model to see).
. tests/lib.sh
model=tests/models/klein-tiny
python=
for p in python3 /usr/bin/python3; do # the first may be one without the distribution's packages
	[ -z "$python" ] && $p -c 'import jsonschema' 2>/dev/null && python=$p
done
if [ -z "$python" ]; then
	echo "skip schema: no python3 has jsonschema (python3-jsonschema)"
	exit 0
fi
# validate FILE...: into $dir/verdicts
validate() {
	$python tests/check_schema.py plans/schema.json "$@" >"$dir/verdicts" 2>&1 || fail "$(tail -n 3 "$dir/verdicts")"
	[ "$(wc -l <"$dir/verdicts")" -eq $# ] || fail "$(wc -l <"$dir/verdicts") verdicts of $#"
}

case_ schema_takes_the_plans
"$DIFFTP" plan --model $model --tp-degree 2 --emit "$dir/emitted.json" >"$dir/out" 2>&1 || fail "$(cat "$dir/out")"
sed -n '/^```json$/,/^```$/p' docs/plans.md | grep -v '^```' >"$dir/docs.json"
[ -s "$dir/docs.json" ] || fail "no plan in docs/plans.md"
printf '{"$schema": "schema.json", "x_embedder": "rowwise_split_input"}' >"$dir/editor.json"
set --
for f in plans/*.json; do
	[ "$f" = plans/schema.json ] || set -- "$@" "$f"
done
[ $# -ge 2 ] || fail "only $# plans"
validate "$@" "$dir/emitted.json" "$dir/docs.json" "$dir/editor.json"
grep -v '^valid ' "$dir/verdicts" >"$dir/wrong" && fail "$(cat "$dir/wrong")"
done_

case_ schema_agrees_with_the_parser
mkdir "$dir/plans"
"$TESTBIN/test_plan" "$dir/plans" || fail "test_plan wrote no plans"
validate "$dir"/plans/*.json
[ "$(grep -c '^invalid .*/refused_' "$dir/verdicts")" -ge 20 ] || fail "too few refused plans: $(cat "$dir/verdicts")"
[ "$(grep -c '^valid .*/parsed_' "$dir/verdicts")" -ge 30 ] || fail "too few parsed plans: $(cat "$dir/verdicts")"
grep -E '^valid .*/refused_|^invalid .*/parsed_' "$dir/verdicts" >"$dir/wrong" && fail "$(cat "$dir/wrong")"
done_
finish
