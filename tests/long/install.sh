#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A build from a copy that has nothing but the sources, its installation, and its removal.
. tests/lib.sh
copy=$dir/copy

case_ builds_from_the_sources_alone
mkdir "$copy"
tar -c --exclude=./build --exclude=./difftp --exclude=./.git . | tar -x -C "$copy" || fail "copying"
MAKEFLAGS='' make -C "$copy" -j "$(nproc)" >"$dir/log" 2>&1 || fail "$(tail -n 20 "$dir/log")"
[ -x "$copy/difftp" ] || fail "there is no ./difftp"
done_

case_ installs_and_runs_from_elsewhere
MAKEFLAGS='' make -C "$copy" install DESTDIR="$dir/root" PREFIX=/opt/x >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
(cd "$dir/root" && find . -type f | sort) >"$dir/list"
printf './opt/x/bin/difftp\n./opt/x/share/man/man1/difftp.1\n' | diff - "$dir/list" || fail "another list of files"
mv "$copy" "$copy.gone" # the built-in plans must not be read from the sources
model=$(realpath tests/models/klein-tiny)
(cd "$dir" && root/opt/x/bin/difftp --model "$model" --prompt x --height 64 --width 64 --steps 1 --tp-degree 2 -q -o x.png) ||
	fail "the installed program does not draw"
mv "$copy.gone" "$copy"
done_

case_ uninstalls_all
MAKEFLAGS='' make -C "$copy" uninstall DESTDIR="$dir/root" PREFIX=/opt/x >"$dir/log" 2>&1
[ -z "$(find "$dir/root" -type f)" ] || fail "left: $(find "$dir/root" -type f)"
done_
finish
