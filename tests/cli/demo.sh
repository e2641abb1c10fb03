#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The trained model of tests/models/demo obeys its prompts: colours, places and ground of what two ranks draw, at the pipeline's own
# padding and at a short one.  (Shapes are judged by scripts/train_demo_model.py --stage judge; docs/demo has the scores.)
. tests/lib.sh
model=tests/models/demo

# shows NAME WORDS: the picture of that name in $dir
shows() {
	got=$("$TESTBIN/tool_cells" "$dir/$1.png" 2>&1)
	[ "$got" = "$2" ] || fail "$1 shows '$got', not '$2'"
}

cat >"$dir/prompts" <<'LINES'
{"prompt": "a red circle left of a blue square", "output": "beside.png"}
{"prompt": "a large green star under a small pink diamond", "output": "under.png"}
{"prompt": "a black cross to the right of an orange triangle on a yellow background", "output": "right.png"}
{"prompt": "a red square in the top left corner on a gray background", "output": "corner.png"}
{"prompt": "A large yellow circle in the middle on a blue background.", "output": "middle.png"}
LINES
for how in "512 2" "32 2" "512 1" "512 3"; do
	# shellcheck disable=SC2086 # two words
	set -- $how
	case_ "demo_obeys_padded_to_$1_by_$2_ranks"
	"$DIFFTP" --model $model --prompts "$dir/prompts" --height 128 --width 128 --seed 1 --max-sequence-length "$1" --tp-degree "$2" \
		-o "$dir" -q 2>"$dir/err" </dev/null || fail "exit code $?: $(cat "$dir/err")"
	shows beside "white: white white white red white blue white white white"
	shows under "white: white pink white white white white white green white"
	shows right "yellow: yellow yellow yellow orange yellow black yellow yellow yellow"
	shows corner "gray: red gray gray gray gray gray gray gray gray"
	shows middle "blue: blue blue blue blue yellow blue blue blue blue"
	rm -f "$dir"/*.png "$dir"/*.jsonl
	done_
done

case_ demo_in_fp32
"$DIFFTP" --model $model --prompt "a red circle left of a blue square" --height 128 --width 128 --seed 2 --dtype fp32 --tp-degree 2 \
	-o "$dir/fp32.png" -q 2>"$dir/err" </dev/null || fail "exit code $?: $(cat "$dir/err")"
shows fp32 "white: white white white red white blue white white white"
done_
