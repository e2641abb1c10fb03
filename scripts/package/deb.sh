#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh scripts/package/deb.sh FOLDER: makes FOLDER/difftp_VERSION_ARCH.deb of the program that is built.  It depends on the packages
# whose libraries the program is linked with, at the versions that have the symbols used; NVIDIA's are opened at run time and only
# suggested.  SOURCE_DATE_EPOCH gives the times in it, else the last commit.  DEBFULLNAME and DEBEMAIL name the maintainer.
set -eu
cd "$(dirname "$0")/../.."
folder=$1
for tool in dpkg-deb dpkg-shlibdeps dpkg; do
	command -v $tool >/dev/null || {
		echo "deb: there is no $tool; sh scripts/install-deps.sh long installs it" >&2
		exit 1
	}
done
version=$(cat VERSION)
arch=$(dpkg --print-architecture)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y VERSION)}"
export SOURCE_DATE_EPOCH
maintainer="${DEBFULLNAME:-difftp maintainers} <${DEBEMAIL:-root@$(uname -n)}>"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
root=$work/root
umask 022
MAKEFLAGS='' make -s install DESTDIR="$root" PREFIX=/usr >/dev/null
strip --strip-unneeded "$root/usr/bin/difftp"
gzip -9 -n "$root/usr/share/man/man1/difftp.1"
doc=$root/usr/share/doc/difftp
gzip -9 -n -c CHANGELOG.md >"$doc/NEWS.gz"
rm "$doc/CHANGELOG.md"
printf 'difftp (%s) unstable; urgency=medium\n\n  * NEWS.gz says what changed.\n\n -- %s  %s\n' \
	"$version" "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9 -n >"$doc/changelog.gz"
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: difftp

Files: *
Copyright: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y) the difftp contributors
License: Apache-2.0
 On Debian systems the text of the license is in /usr/share/common-licenses/Apache-2.0.
END

mkdir "$work/debian" "$root/DEBIAN"
control() { # DEPENDS INSTALLED-SIZE
	cat <<END
Package: difftp
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $2
Depends: $1
Recommends: libchafa0
Suggests: libnccl2, libcudnn9-cuda-12
Section: graphics
Priority: optional
Description: draws images with FLUX.2 models on several processes at once
 difftp generates images with Flux2-family diffusion transformers by tensor
 parallelism, without Python.  It takes a model folder in the Hugging Face
 diffusers layout, starts one process for each rank, lets each read its own
 slices of the weights only, and writes the picture.
END
}
printf 'Source: difftp\n\nPackage: difftp\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/difftp | sed -n 's/^shlibs:Depends=//p')
control "$depends" "$(du -sk --apparent-size "$root/usr" | cut -f 1)" >"$root/DEBIAN/control"
(cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2) >"$root/DEBIAN/md5sums"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$folder"
file=$folder/difftp_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$root" "$file" >/dev/null
echo "$file"
