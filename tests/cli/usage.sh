#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command line as a person meets it: exit codes, what goes to which stream, what is said about slips.
. tests/lib.sh

# ---- answers without work
expect version 0 '^difftp [0-9]+\.[0-9]+\.[0-9]+$' '^$' --version
expect version_of_a_command 0 '^difftp [0-9]' '^$' bench --version
expect help 0 '^Usage: difftp --model DIR --prompt TEXT' '^$' --help
expect help_lists_the_commands 0 '^  bench ' '^$' -h
expect help_of_bench 0 '^      --repeat N' '^$' bench --help
expect man 0 '^\.TH DIFFTP 1 ' '^$' man
case_ begins_fast
for what in --version --help 'plan --model tests/models/klein-tiny --device cpu'; do
	# 20 ms are promised; a program under a sanitizer is exempt.
	took=$(least_time $what) || exit
	[ "$took" -lt 20000 ] || [ -n "$SANITIZED" ] || fail "$what takes $took us"
done
done_

# ---- refusals: exit 2, nothing on stdout, one message on stderr
refuse no_arguments 'nothing to do: --model and --prompt are needed; .difftp --help. lists the options'
refuse unknown_command "unknown command 'benhc'; did you mean 'bench'\?" benhc --model x
refuse unknown_command_far_off "unknown command 'quux'; see 'difftp --help'" quux
refuse unknown_option "unknown option '--hieght'; did you mean '--height'\?" --hieght 64
refuse unknown_option_as_typed "unknown option '--tp_dergee'; did you mean '--tp-degree'\?" --tp_dergee=2
refuse option_of_another_command "option '--json' is not one of this command's" --json
refuse ambiguous_option "option '--num' could be any of '--num-inference-steps', '--num-steps', '--num-images', " --num 1
refuse malformed_number "option '--height': '64px' is not a whole number \(1 to 16384\)" --height 64px
refuse number_out_of_range "option '--steps': 0 is out of range \(1 to 1000\)" --num_inference_steps 0
refuse seed_too_large "option '--seed': 18446744073709551616 is out of range \(0 to 18446744073709551615\)" --seed 18446744073709551616
refuse unknown_dtype "option '--dtype': 'fp23' is unknown; did you mean 'fp32'\? \(one of bf16, fp32\)" --dtype fp23
refuse missing_value "option '--height' needs a value" --height
refuse stray_word "unexpected argument 'red' \(a prompt of several words needs quotes; " --prompt a red fox
refuse missing_model "option '--model' is missing: the folder of the pipeline" --prompt x
refuse missing_prompt "option '--prompt' is missing: what to draw" --model tests/models/klein-tiny
refuse empty_path "option '--model': the path is empty" --model '' --prompt x

case_ full_stdout_is_an_error
if [ -e /dev/full ]; then
	"$DIFFTP" --help >/dev/full 2>"$dir/err"
	[ $? -eq 1 ] || fail "exit code is not 1"
	grep -q 'standard output' "$dir/err" || fail "$(cat "$dir/err")"
fi
done_
finish
