#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs on Debian or Ubuntu what a use of the sources needs: sh scripts/install-deps.sh [--list] [build] [test] [long].
# build: make; test: make test; long: make test-long and make deb.  Without a word all of it.  Does nothing when all is there;
# --list prints the packages instead, one a line.
set -eu

# compiler and make; the libraries of the program, of which libchafa is opened when a picture is to be shown
build="gcc g++ make pkg-config libdnnl-dev libgloo-dev libcjson-dev libpcre2-dev libutf8proc-dev libpng-dev
libjpeg-dev libwebp-dev nettle-dev libchafa0"
# the tests' framework, pgrep, mpirun, ip for two hosts in one, the validator of plans/schema.json, shells to complete in
test="libcmocka-dev procps openmpi-bin iproute2 python3-jsonschema bash zsh fish"
# libFuzzer, memcheck; a bare root, and a clone in it; a .deb and its check
long="clang libclang-rt-dev valgrind debootstrap git ca-certificates dpkg-dev lintian"

list=''
packages=''
for word in "$@"; do
	case $word in
	build) packages="$packages $build" ;;
	test) packages="$packages $test" ;;
	long) packages="$packages $long" ;;
	--list) list=yes ;;
	*)
		echo "install-deps: '$word' is none of build, test, long, --list" >&2
		exit 2
		;;
	esac
done
[ -n "$packages" ] || packages="$build $test $long"
if [ -n "$list" ]; then
	# shellcheck disable=SC2086 # lists of words
	printf '%s\n' $packages
	exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	echo "install-deps: this is no Debian or Ubuntu; install what these packages hold: $packages" >&2
	exit 1
fi
missing=
for p in $packages; do
	state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) || state=
	# pkgconf takes pkg-config's place in newer releases.
	[ "$p" = pkg-config ] && command -v pkg-config >/dev/null && continue
	# So do libraries of the same name with 64 bits of time.
	[ "$(dpkg-query -W -f '${db:Status-Status}' "${p}t64" 2>/dev/null)" != installed ] || continue
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
