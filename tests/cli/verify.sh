#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# difftp verify: its table, its verdict, every documented key of its JSON.  What it finds is tested in test_verify.c.
. tests/lib.sh
model=tests/models/klein-tiny

verify() {
	"$DIFFTP" verify --model $model --height 64 --width 64 --max-sequence-length 32 --tp-degree 2 "$@" \
		>"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
}

case_ table
verify
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
for row in 'text_encoder  embed_tokens' 'text_encoder  layers\.26' 'transformer   x_embedder' \
	'transformer   transformer_blocks\.1' 'transformer   single_transformer_blocks\.2' 'transformer   proj_out'; do
	grep -Eq "^$row +[0-9]+ +[0-9]+ +[0-9.e-]+ +[0-9.e-]+ +0\.016  ok$" "$dir/stdout" || fail "no row '$row': $(cat "$dir/stdout")"
done
[ "$(tail -n 1 "$dir/stdout")" = 'All agree.' ] || fail "$(cat "$dir/stdout")"
done_

case_ every_layer_is_compared
# 27 layers of the text encoder with 11 modules each; 9 modules of the transformer outside its blocks.
awk '/^(text_encoder|transformer) / { n += $3 } END { exit n != 1 + 27 * 11 + 9 + 2 * 16 + 3 * 4 }' "$dir/stdout" ||
	fail "$(cat "$dir/stdout")"
done_

case_ beyond_the_tolerance
verify --dtype fp32 --tolerance 1e-12 -q
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
grep -Eq "^diverges first: text_encoder: 'layers\.[0-9]+\.[a-z_.]+', on .*rank.* \(rel\. RMS .*, max .*, tolerance 1e-12\)$" "$dir/stdout" ||
	fail "$(cat "$dir/stdout")"
grep -Eq "^difftp: .*the first that diverges is text_encoder: 'layers\." "$dir/stderr" || fail "$(cat "$dir/stderr")"
done_

case_ free_run
verify --free-run --steps 2 --dtype fp32
[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
for row in 'text_encoder  text\.prompt_embeds' 'transformer   step\.1\.noise_pred' 'transformer   step\.1\.latents'; do
	grep -Eq "^$row +1 .* ok$" "$dir/stdout" || fail "no row '$row': $(cat "$dir/stdout")"
done
done_

case_ json
verify --json --tolerance 1e-12
[ $rc -eq 1 ] || fail "exit code $rc: $(cat "$dir/stderr")"
keys=$(awk -F '|' '/^## Is it right/ { on = 1 } /^## Inspecting/ { on = 0 } on && /^[|] `/ { print $2 }' docs/running.md |
	tr -d '`,' | tr ' ' '\n' | grep . | sort -u)
[ "$(echo "$keys" | wc -w)" -ge 25 ] || fail "the documentation lists too few keys: $keys"
for key in $keys; do
	grep -q "\"$key\":" "$dir/stdout" || fail "no key '$key'"
done
for key in $(grep -o '"[a-z_]*":' "$dir/stdout" | tr -d '":' | sort -u); do
	echo "$keys" | grep -qx "$key" || fail "key '$key' is not documented"
done
done_

refuse memory_of_both_counts 'not enough memory: rank 0 needs [0-9.]+ MB at the peak, --max-memory allows 150 MB' \
	verify --model $model --height 64 --width 64 --tp-degree 2 --max-memory 150MB
refuse no_pictures "option '--output' is not one of this command's" verify --model $model --output x.png
finish
