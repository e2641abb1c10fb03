#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh scripts/package/dist.sh FOLDER: packs the sources as they are committed into FOLDER/difftp-VERSION.tar.gz.  The same commit
# gives the same bytes: git's order and times, no owner, no umask, no name or time in gzip's header.
set -eu
cd "$(dirname "$0")/../.."
folder=$1
if ! git rev-parse --verify -q HEAD >/dev/null 2>&1; then
	echo "dist: this is no clone: the tarball is made of what git has" >&2
	exit 1
fi
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "dist: changes that are not committed are left out" >&2
name=difftp-$(git show HEAD:VERSION)
mkdir -p "$folder"
git -c tar.umask=0022 archive --format=tar --prefix="$name/" -o "$folder/$name.tar.part" HEAD
gzip -9 -n <"$folder/$name.tar.part" >"$folder/$name.tar.gz.part"
rm "$folder/$name.tar.part"
mv "$folder/$name.tar.gz.part" "$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
