#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh scripts/package/smoke.sh DIFFTP MODEL [FOLDER]: does this program, on this machine, draw with this model?  For a CI pipeline or
# after an update; seconds with a small model.  Prints a line for each check, leaves pictures in FOLDER (smoke), and returns
# 0 only if all is well.
set -eu
difftp=$1 model=$2 folder=${3:-smoke}
mkdir -p "$folder"
failed=0
check() { # WHAT COMMAND...: a command that must succeed
	what=$1
	shift
	if "$@" >"$folder/log" 2>&1; then
		echo "ok   $what"
	else
		echo "FAIL $what"
		sed 's/^/     /' "$folder/log"
		failed=1
	fi
}
# shellcheck disable=SC2317 # check calls it
refuses() { # a run that can't be: exit code 2 and no file
	rc=0
	"$difftp" --model "$folder/nowhere" --prompt x -o "$folder/none.png" || rc=$?
	[ "$rc" -eq 2 ] && [ ! -e "$folder/none.png" ]
}
# shellcheck disable=SC2317 # check calls it
draws() { # DEGREE
	rm -f "$folder/tp$1.png"
	"$difftp" --model "$model" --prompt "a red circle left of a blue square" --height 128 --width 128 --seed 1 --tp-degree "$1" \
		-o "$folder/tp$1.png" &&
		[ "$(od -An -tx1 -N8 "$folder/tp$1.png" | tr -d ' \n')" = 89504e470d0a1a0a ]
}

check 'the machine has what a run needs' "$difftp" doctor -o "$folder/x.png"
check 'the model is whole' "$difftp" inspect "$model" --check
check 'one rank draws' draws 1
check 'two ranks draw' draws 2
check 'two ranks compute what one does' "$difftp" verify --model "$model" --tp-degree 2
check 'what cannot be is refused' refuses
rm -f "$folder/log"
exit $failed
