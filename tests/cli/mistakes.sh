#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a newcomer gets wrong, and every word that is printed then: exit code 2, nothing on stdout, no file.
. tests/lib.sh
here=$dir/here
mkdir -p "$here/pictures" "$here/sd" "$dir/home"
ln -s "$PWD/tests" "$here/tests"
cp tests/images/mode_RGB.png "$here/holiday.png"
echo '{"_class_name": "StableDiffusionPipeline"}' >"$here/sd/model_index.json"
demo=tests/models/demo

# mistake NAME CODE ARGUMENT...: what is printed stands on standard input.
mistake() {
	case_ "mistake_$1"
	code=$2
	shift 2
	cat >"$dir/expected"
	(cd "$here" && find . ! -type l | sort) >"$dir/before"
	(cd "$here" && HOME=$dir/home ${wrap:-} env -u HF_HUB_CACHE -u HUGGINGFACE_HUB_CACHE -u HF_HOME -u XDG_CACHE_HOME "$DIFFTP" "$@") >"$dir/out" 2>"$dir/err" </dev/null
	rc=$?
	[ $rc -eq "$code" ] || fail "exit code $rc, not $code"
	diff "$dir/expected" "$dir/err" >"$dir/diff" || fail "it prints (>) another text: $(cat "$dir/diff")"
	[ ! -s "$dir/out" ] || fail "stdout: $(cat "$dir/out")"
	(cd "$here" && find . ! -type l | sort) | diff "$dir/before" - || fail "files came or went"
	done_
}

mistake path_with_a_slip 2 --model tests/models/demmo --prompt "a red circle" <<'END'
difftp: model folder 'tests/models/demmo' does not exist; did you mean 'tests/models/demo'?
END
mistake a_part_for_the_whole 2 --model $demo/transformer --prompt "a red circle" <<'END'
difftp: 'tests/models/demo/transformer' is a part of a pipeline folder; did you mean the whole, 'tests/models/demo'?
END
mistake a_name_for_a_download 2 --model black-forest-labs/FLUX.2-klein-4B --prompt "a red fox" <<END
difftp: model 'black-forest-labs/FLUX.2-klein-4B' is no folder, and not in the cache of Hugging Face ('$dir/home/.cache/huggingface/hub'); difftp downloads nothing: 'hf download black-forest-labs/FLUX.2-klein-4B' would fetch it
END
mistake degree_5 2 --model $demo --prompt "a red circle" --tp-degree 5 <<'END'
difftp: built-in plan 'flux2': key 'transformer_blocks.*.attn.to_q': degree 5 does not divide the 12 heads of the transformer ('transformer_blocks.0.attn.to_q')
degrees that work: 1, 2, 3, 4, 6, 12
END
mistake output_in_no_folder 2 --model $demo --prompt "a red circle" --height 128 --width 128 -o picture/a.png <<'END'
difftp: cannot write 'picture/a.png': the folder 'picture' does not exist
END
mistake output_is_a_folder 2 --model $demo --prompt "a red circle" --height 128 --width 128 -o pictures <<'END'
difftp: cannot write 'pictures': it names a folder, give the name of a file
END
mistake output_of_another_format 2 --model $demo --prompt "a red circle" -o circle.jpg <<'END'
difftp: 'circle.jpg': only PNG files are written, not '.jpg'; name it '.png'
END
mistake no_prompt 2 --model $demo <<'END'
difftp: option '--prompt' is missing: what to draw (it may be empty: --prompt '')
END
mistake no_model 2 --prompt "a red circle" <<'END'
difftp: option '--model' is missing: the folder of the pipeline
END
mistake prompt_without_quotes 2 --model $demo --prompt a red circle <<'END'
difftp: unexpected argument 'red' (a prompt of several words needs quotes; a command comes first)
END
mistake odd_size 2 --model $demo --prompt "a red circle" --height 130 --width 128 <<'END'
difftp: height 130 is not a multiple of 16; the nearest that are: 128 and 144
END
mistake misspelt_flag 2 --model $demo --promt "a red circle" <<'END'
difftp: unknown option '--promt'; did you mean '--prompt'?
END
mistake misspelt_command 2 insepct $demo <<'END'
difftp: unknown command 'insepct'; did you mean 'inspect'?
END
mistake picture_without_a_record 2 --from holiday.png <<'END'
difftp: 'holiday.png' holds no record of difftp: it was drawn by another program, with --no-metadata, or an editor has dropped it
END
mistake model_of_another_class 2 --model sd --prompt "a red circle" <<'END'
difftp: sd/model_index.json: pipeline class 'StableDiffusionPipeline' is not supported; supported: 'Flux2KleinPipeline', 'Flux2Pipeline' (not their KV and inpainting pipelines)
END

# A disk without room: a file system of 4 KB, in a mount namespace of its own.  tests/cli/faults.sh has disks that fill up later.
small_disk() { # COMMAND...
	# shellcheck disable=SC2016 # the inner shell expands it
	unshare "$unshared" sh -c 'mount -t tmpfs -o size=4k none pictures && "$@"; rc=$?; [ -z "$(ls -A pictures)" ] || echo "left: $(ls -A pictures)"; exit $rc' sh "$@"
}
unshare -m true 2>/dev/null && unshared=-m || unshared=-rm
if unshare "$unshared" sh -c 'mount -t tmpfs none /mnt' 2>/dev/null; then
	wrap=small_disk
	mistake no_room_on_the_disk 2 --model $demo --prompt "a red circle" --height 128 --width 128 -q -o pictures/a.png <<'END'
difftp: cannot write 'pictures/a.png': No space left on device
END
	wrap=
else
	echo "skip mistake_no_room_on_the_disk: mount namespaces are not allowed here"
fi

wrap='env DIFFTP_CONTROL_FD=9'
mistake a_variable_of_the_ranks 2 --model $demo --prompt "a red circle" <<'END'
difftp: the variables 'DIFFTP_RANK', 'DIFFTP_WORLD_SIZE', 'DIFFTP_LOCAL_RANK' and 'DIFFTP_CONTROL_FD' do not fit together: difftp sets them for its own ranks; unset them to start a run
END
wrap='env DIFFTP_CONTROL_FD=0 DIFFTP_WORLD_SIZE=1 DIFFTP_RANK=0 DIFFTP_LOCAL_RANK=0'
mistake all_variables_of_the_ranks 1 --model $demo --prompt "a red circle" <<'END'
difftp: rank 0 cannot report to its launcher: Socket operation on non-socket
END
wrap=

# No terminal: nothing is redrawn, coloured or shown.
case_ mistake_no_terminal
(cd "$here" && env -u TERM "$DIFFTP" --model $demo --prompt "a red circle" --height 128 --width 128 --seed 1 --preview -o a.png) \
	>"$dir/out" 2>"$dir/err" </dev/null || fail "exit code $?: $(cat "$dir/err")"
[ "$(head -n 1 "$dir/err")" = "warning: --preview has no effect: stderr is no terminal that can draw (TERM is '')" ] ||
	fail "the first line: $(head -n 1 "$dir/err")"
LC_ALL=C grep -q "$(printf '[\033\r]')" "$dir/err" && fail "there are control characters"
[ "$(tail -n 1 "$dir/err")" = 'wrote a.png (128x128, seed 1)' ] || fail "the last line: $(tail -n 1 "$dir/err")"
[ ! -s "$dir/out" ] || fail "stdout: $(cat "$dir/out")"
done_
finish
