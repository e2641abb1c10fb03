#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is built of the sources alone, its installation and removal, the tarball and the Debian package.
. tests/lib.sh
copy=$dir/copy
model=$(realpath tests/models/klein-tiny)

draws() { # PROGRAM: from elsewhere, with the sources out of the way: built-in plans must not be read from them
	mv "$copy" "$copy.gone"
	(cd "$dir" && "$1" --model "$model" --prompt x --height 64 --width 64 --steps 1 --tp-degree 2 -q -o x.png --force) ||
		fail "$1 does not draw"
	mv "$copy.gone" "$copy"
}

case_ builds_from_the_sources_alone
mkdir "$copy"
tar -c --exclude=./build --exclude=./difftp --exclude=./.git . | tar -x -C "$copy" || fail "copying"
MAKEFLAGS='' make -C "$copy" -j "$(nproc)" >"$dir/log" 2>&1 || fail "$(tail -n 20 "$dir/log")"
[ -x "$copy/difftp" ] || fail "there is no ./difftp"
done_

case_ installs_and_runs_from_elsewhere
MAKEFLAGS='' make -C "$copy" install DESTDIR="$dir/root" PREFIX=/opt/x >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
for f in bin/difftp share/man/man1/difftp.1 share/difftp/plans/flux2.json share/difftp/plans/schema.json \
	share/doc/difftp/README.md share/doc/difftp/docs/running.md share/bash-completion/completions/difftp \
	share/zsh/site-functions/_difftp share/fish/vendor_completions.d/difftp.fish; do
	[ -s "$dir/root/opt/x/$f" ] || fail "$f is not installed"
done
draws "$dir/root/opt/x/bin/difftp"
MANPATH=$dir/root/opt/x/share/man man -w difftp >"$dir/log" 2>&1 || command -v man >/dev/null && [ ! -s "$dir/log" ] &&
	fail "man does not find the page"
done_

case_ uninstalls_all_of_it_and_no_more
mkdir -p "$dir/root/opt/x/share/doc/other"
echo mine >"$dir/root/opt/x/share/doc/other/file"
MAKEFLAGS='' make -C "$copy" uninstall DESTDIR="$dir/root" PREFIX=/opt/x >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
left=$(cd "$dir/root" && find . -type f && find . -name '*difftp*')
[ "$left" = ./opt/x/share/doc/other/file ] || fail "left: $left"
done_

# ---- the tarball: what git has, the same bytes from another clone under another umask
if git rev-parse -q --verify HEAD >/dev/null 2>&1; then
	case_ packs_the_committed_sources_reproducibly
	(umask 077 && git clone -q --no-hardlinks "file://$PWD" "$dir/clone") || fail "cloning"
	sh scripts/package/dist.sh "$dir/one" >"$dir/log" 2>"$dir/notes" || fail "$(cat "$dir/notes")"
	sleep 1
	(umask 077 && sh "$dir/clone/scripts/package/dist.sh" "$dir/two") >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
	tarball=difftp-$(git show HEAD:VERSION).tar.gz
	cmp "$dir/one/$tarball" "$dir/two/$tarball" || fail "two clones of one commit give different bytes"
	tar -tzf "$dir/one/$tarball" | sed "s|^${tarball%.tar.gz}/||" | grep -v '/$' | sed '/^$/d' | sort >"$dir/packed"
	git ls-tree -r --name-only HEAD | sort | diff - "$dir/packed" || fail "other files than git's"
	done_
else
	echo "skip packs_the_committed_sources_reproducibly: this is no clone"
fi

# ---- the Debian package
export DEBFULLNAME='A Person' DEBEMAIL=person@debian.org SOURCE_DATE_EPOCH=1767225600
case_ makes_a_debian_package_reproducibly
for n in 1 2; do
	MAKEFLAGS='' make -C "$copy" deb >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
	mv "$copy"/build/difftp_*.deb "$dir/$n.deb" || fail "there is no package"
done
cmp "$dir/1.deb" "$dir/2.deb" || fail "twice the same package are different bytes"
dpkg-deb -x "$dir/1.deb" "$dir/unpacked" || fail "it cannot be unpacked"
draws "$dir/unpacked/usr/bin/difftp"
done_

# Every library that the program is linked with comes from a package that it depends on, and from no other.
case_ the_package_depends_on_the_libraries_that_are_used
for l in $(LC_ALL=C readelf -d "$dir/unpacked/usr/bin/difftp" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
	path=$(ldd "$dir/unpacked/usr/bin/difftp" | awk -v l="$l" '$1 == l { print $3 } $1 ~ "/" l "$" { print $1 }')
	path=$(realpath "$path")
	# Where /lib is a link to /usr/lib, the package may know the file by its old name.
	dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "${path#/usr}"
done | sed 's/:.*//' | sort -u >"$dir/used"
dpkg-deb -f "$dir/1.deb" Depends | tr ',' '\n' | sed 's/^ *//; s/ .*//' | sort -u | diff "$dir/used" - || fail "other dependencies"
grep -qx 'libgloo0' "$dir/used" || fail "libgloo0 is not among them: $(cat "$dir/used")"
done_

case_ lintian_finds_no_error_in_the_package
# Where CUDA's toolkit is found, its folder is searched for its libraries.
lintian --allow-root --fail-on error,warning --suppress-tags custom-library-search-path "$dir/1.deb" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
done_
finish
