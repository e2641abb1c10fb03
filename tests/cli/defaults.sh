#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Defaults of options from the environment and from the user's file: which counts, and what is said of slips.
. tests/lib.sh
model=tests/models/klein-tiny
XDG_CONFIG_HOME="$dir/config"
export XDG_CONFIG_HOME
file="$XDG_CONFIG_HOME/difftp/config"
mkdir -p "$XDG_CONFIG_HOME/difftp"
config() { # LINE...
	printf '%s\n' "$@" >"$file"
}
says() { # NAME EXPRESSION ARGUMENT...: what a plan says of the run
	what=$1 wanted=$2
	shift 2
	expect "$what" 0 "$wanted" '^$' plan "$@"
}
planned() { # EXPRESSION ARGUMENT...
	wanted=$1
	shift
	"$DIFFTP" plan "$@" >"$dir/out" 2>&1 || fail "exit code $?: $(cat "$dir/out")"
	grep -Eq -- "$wanted" "$dir/out" || fail "no line '$wanted' for $*: $(head -n 5 "$dir/out")"
}

# ---- who counts
case_ defaults_precedence
rm -f "$file"
planned 'tp 1' --model $model
config "model = $model" 'tp-degree = 2'
planned 'tp 2'
export DIFFTP_TP_DEGREE=4
planned 'tp 4'
planned 'tp 1' --tp-degree 1
config "model = nowhere" 'tp-degree = 2'
DIFFTP_MODEL=$model planned 'tp 4'
DIFFTP_MODEL=nowhere planned 'tp 4' --model $model
DIFFTP_MODEL= DIFFTP_TP_DEGREE= planned 'tp 2' --model $model
unset DIFFTP_TP_DEGREE
done_

case_ defaults_of_every_kind
config "# a comment" "" "	model=$model " 'steps =  7' 'guidance_scale = 2.5' '--height = 96' 'max-memory = 900GB' 'dtype = float32' \
	'keep-text-encoder = yes' 'quiet=No'
planned '96'
"$DIFFTP" --prompt x --max-sequence-length 32 --seed 1 --width 64 --force -o "$dir/x.png" >/dev/null 2>"$dir/err" || fail "$(cat "$dir/err")"
grep -q '64x96, 7 steps, guidance 2.5.* fp32' "$dir/err" || fail "$(cat "$dir/err")"
"$DIFFTP" --prompt x --max-sequence-length 32 --seed 1 --width 64 --steps 1 -q --force -o "$dir/x.png" 2>"$dir/err" || fail "$(cat "$dir/err")"
[ ! -s "$dir/err" ] || fail "not quiet: $(cat "$dir/err")"
config "quiet = yes"
"$DIFFTP" --model $model --prompt x --max-sequence-length 32 --height 64 --width 64 --steps 1 --seed 1 --quiet=no --force -o "$dir/x.png" 2>"$dir/err" ||
	fail "$(cat "$dir/err")"
grep -q '^wrote ' "$dir/err" || fail "quiet though --quiet=no: $(cat "$dir/err")"
done_

case_ defaults_of_the_home_folder
config "model = ~/m" # in a file no shell has replaced it
ln -s "$PWD/$model" "$dir/m"
HOME=$dir planned 'tp 1'
rm "$file"
mkdir -p "$dir/.config/difftp"
echo "model = $model" >"$dir/.config/difftp/config"
(unset XDG_CONFIG_HOME; HOME=$dir; planned 'tp 1'; [ -z "$why" ] || echo "$why" >"$dir/why")
HOME=$dir XDG_CONFIG_HOME=relative planned 'tp 1' # which the specification says to ignore
[ ! -e "$dir/why" ] || fail "$(cat "$dir/why")"
done_

case_ defaults_lists_are_replaced
config 'lora = a.safetensors' 'lora = b.safetensors:0.5'
"$DIFFTP" plan --model $model 2>"$dir/err" && fail "two LoRAs that are not there were taken"
grep -q "a.safetensors" "$dir/err" || fail "$(cat "$dir/err")"
"$DIFFTP" plan --model $model --lora c.safetensors 2>"$dir/err" && fail "a LoRA that is not there was taken"
grep -q "c.safetensors" "$dir/err" || fail "$(cat "$dir/err")"
done_

case_ defaults_yield_to_what_the_run_says
config 'height = 32' 'width = 32' 'steps = 9' 'max-sequence-length = 32' "model = $model"
"$DIFFTP" --prompt x --steps 1 --seed 1 --height 64 --output-type latent -q -o "$dir/l.safetensors" || fail "latents"
"$DIFFTP" decode "$dir/l.safetensors" -q -o "$dir/d.png" 2>"$dir/err" || fail "decode: $(cat "$dir/err")"
"$DIFFTP" --prompt x -q --save-prompt-embeds "$dir/e.safetensors" || fail "embeddings"
config 'max-sequence-length = 48' 'negative-prompt = blur' "model = $model"
"$DIFFTP" --prompt-embeds "$dir/e.safetensors" --height 64 --width 64 --steps 1 --seed 1 -q -o "$dir/e.png" 2>"$dir/err" || fail "$(cat "$dir/err")"
config 'tp-degree = 2' # the sharded folder's own is 1 less
"$DIFFTP" shard --model $model --tp-degree 4 -q -o "$dir/sharded" || fail "shard"
planned 'tp 4' --model "$dir/sharded"
DIFFTP_MODEL=nowhere "$DIFFTP" plan --diff flux2 flux2 >"$dir/out" 2>&1 || fail "plan --diff: $(cat "$dir/out")"
done_

case_ defaults_are_the_same_on_all_ranks
config 'steps = 2' 'tp-degree = 2' 'seed = 5' "model = $model" 'max-sequence-length = 32' 'height = 64' 'width = 64'
"$DIFFTP" --prompt x -o "$dir/a.png" 2>"$dir/err" || fail "$(cat "$dir/err")"
grep -q 'step 2/2' "$dir/err" && grep -q 'seed 5' "$dir/err" || fail "$(cat "$dir/err")"
XDG_CONFIG_HOME=$dir/none "$DIFFTP" --model $model --prompt x -q --steps 2 --tp-degree 2 --seed 5 --max-sequence-length 32 --height 64 \
	--width 64 -o "$dir/b.png" || fail "without defaults"
cmp -s "$dir/a.png" "$dir/b.png" || fail "not the same picture"
done_

# ---- what is wrong
wrong() { # NAME MESSAGE LINE...
	what=$1 message=$2
	shift 2
	config "# first" "$@"
	refuse "defaults_$what" "$message" plan --model $model
}
wrong no_equals "$file:2: 'quiet' has no '=': a line is 'option = value'" quiet
wrong unknown "$file:3: 'hieght' is no option: did you mean 'height'\?" 'steps = 4' 'hieght = 64'
wrong number "$file:2: option '--height': '64px' is not a whole number \(1 to 16384\)" 'height = 64px'
wrong range "$file:2: option '--steps': 0 is out of range" 'steps = 0'
wrong choice "$file:2: option '--dtype': 'fp23' is unknown; did you mean 'fp32'\?" 'dtype = fp23'
wrong switch "$file:2: option '--quiet': 'maybe' is neither yes nor no" 'quiet = maybe'
wrong twice "$file:3: 'steps' has a value already, in a line above" 'steps = 4' 'num-inference-steps = 5'
wrong too_many "$file:10: option '--lora' is given more than 8 times" 'lora = a' 'lora = a' 'lora = a' 'lora = a' 'lora = a' 'lora = a' 'lora = a' 'lora = a' \
	'lora = a'
wrong of_a_run "$file:2: 'prompt' says what a single run is about: " 'prompt = a fox'
wrong of_another_command "$file:2: option '--repeat'|$file:2: 'repeat' says what" 'repeat = 5'
printf 'steps = 4\n\0' >"$file"
refuse defaults_no_text "'$file' is no text: it has a byte 0" plan --model $model
rm "$file" && mkdir "$file"
refuse defaults_folder "'$file' is a folder, expected a file of defaults" plan --model $model
rmdir "$file"
DIFFTP_TP_DEGREE=two refuse defaults_environment "environment variable 'DIFFTP_TP_DEGREE': option '--tp-degree': 'two' is not a whole number" plan --model $model
DIFFTP_TP_DEGREE=two expect defaults_said_otherwise 2 '^$' "variable 'DIFFTP_TP_DEGREE'" plan --model $model --tp-degree 1

case_ defaults_help_is_there_whatever_the_file_says
config 'nonsense'
for command in --help 'plan --help' --version man; do
	# shellcheck disable=SC2086 # words
	"$DIFFTP" $command >/dev/null 2>"$dir/err" || fail "$command: $(cat "$dir/err")"
done
done_
finish
