#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing needs on Debian or Ubuntu.  Does nothing when all of it is there.
set -eu

# compiler and make; the libraries of the program; for the tests their framework, pgrep, mpirun, and ip for two hosts in one
packages="gcc g++ make pkg-config libdnnl-dev libgloo-dev libcjson-dev libpcre2-dev libutf8proc-dev libpng-dev
libjpeg-dev libwebp-dev zlib1g-dev nettle-dev libcmocka-dev procps openmpi-bin iproute2"
# what the long tests check with: libFuzzer, memcheck
packages="$packages clang libclang-rt-dev valgrind"
# the validator of plans/schema.json
packages="$packages python3-jsonschema"

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	echo "install-deps: this is no Debian or Ubuntu; install what these packages hold: $packages" >&2
	exit 1
fi
missing=
for p in $packages; do
	state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) || state=
	# pkgconf takes pkg-config's place in newer releases.
	[ "$p" = pkg-config ] && command -v pkg-config >/dev/null && continue
	[ "$state" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
	as_root=
elif command -v sudo >/dev/null; then
	as_root=sudo
else
	echo "install-deps: these packages are missing and need root or sudo:$missing" >&2
	exit 1
fi
echo "install-deps: installing$missing"
$as_root apt-get update -qq
# shellcheck disable=SC2086 # lists of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
