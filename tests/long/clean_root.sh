#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a newcomer meets: a bare Debian (debootstrap), a clone, the README's two commands to the letter, with a clock; whether
# the packages that are installed are those that the build uses; the Debian package in a bare system.
# SUITES: the releases, "bookworm trixie".  The second command passes all the quick tests in the first of them, and two programs of
# them in the others, or all there too with CLEAN_ROOT=all.  MIRROR: Debian's.
# Ubuntu, by hand: SUITES=noble MIRROR=http://archive.ubuntu.com/ubuntu SCRIPT=gutsy OPTIONS='--components=main,universe --no-check-gpg'
# (Debian has no key of Ubuntu's archive).
# All of it happens in memory, in namespaces of its own, so that nothing is left.
if [ -z "${CLEAN_ROOT_INSIDE:-}" ]; then
	if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null || ! git rev-parse -q --verify HEAD >/dev/null 2>&1; then
		echo "skip clean_root: needs root, debootstrap and a clone"
		exit 0
	fi
	CLEAN_ROOT_INSIDE=1 exec unshare --mount --pid --fork --kill-child --mount-proc sh "$0"
fi
. tests/lib.sh
memory=$dir/memory
mkdir "$memory"
mount -t tmpfs -o mode=755 difftp-clean-root "$memory" || exit 1
trap 'umount -R "$memory"; rm -rf --one-file-system "$dir"' EXIT
mirror=${MIRROR:-http://deb.debian.org/debian}

inside() { # COMMAND...: in the root, with nothing of the caller's environment
	chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ${http_proxy:+http_proxy="$http_proxy"} "$@" </dev/null
}
ticks() { # 1/100 s of processor time: of the whole machine, and of what this script has waited for
	echo "$(awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 + $9 }' /proc/stat)" "$(awk '{ print $16 + $17 }' /proc/$$/stat)"
}
# timed NAME LIMIT COMMAND...: the command in the clone; more than LIMIT seconds are a failure where the machine did nothing else.
timed() {
	what=$1 limit=$2
	shift 2
	begin=$(date +%s) before=$(ticks)
	inside sh -c 'cd /root/difftp && exec "$@"' sh "$@" >"$dir/log" 2>&1 || 
		fail "'$*': exit code $?: $(grep -A 8 '^ *not ok' "$dir/log" | head -n 40) $(tail -n 15 "$dir/log")"
	took=$(($(date +%s) - begin))
	others=$(echo "$before $(ticks)" | awk -v s=$took -v n="$(nproc)" '{ print int(($3 - $1 - ($4 - $2)) / (s * n + 0.01)) }')
	echo "note clean_root_${suite}_$what: $took s of $limit; other programs had $others % of the processors"
	[ $took -le "$limit" ] || [ "$others" -gt 25 ] || fail "took $took s, more than $limit"
}
owners() { # packages of the root that own the files whose names come in
	sort -u | while read -r f; do
		f=$(inside realpath --no-symlinks "$f")
		# Where /lib is a link to /usr/lib, the package may know the file by its old name.
		inside dpkg-query -S "$f" 2>/dev/null || inside dpkg-query -S "${f#/usr}" 2>/dev/null || echo "nobody's-$f:"
	done | sed 's/:.*//' | sort -u
}
closure() { # PACKAGE...: these, and all that they depend on
	inside apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
		--no-enhances "$@" | grep '^[a-z0-9]' | sed 's/:.*//' | sort -u
}
lines() { # what the README has its reader type, under a heading
	awk -v h="## $1" '$0 == h { on = 1; next } /^## / { on = 0 } on && sub(/^    /, "")' "$root/root/difftp/README.md"
}

with_headers() { # PACKAGE: itself if it has a header, else those of the packages for development that it stands for
	if inside dpkg-query -L "$1" | grep -q '^/usr/include/.*\.h$'; then
		echo "$1"
		return
	fi
	# shellcheck disable=SC2016 # dpkg-query expands it
	inside dpkg-query -W -f '${Depends}\n' "$1" | sed 's/ ([^)]*)//g; s/, /\n/g' | grep -e '-dev$' | while read -r p; do with_headers "$p"; done
}

try() { # SUITE
	suite=$1 root=$memory/$1
	case_ "clean_root_${suite}_is_made"
	# shellcheck disable=SC2086 # words, and a name if there is one
	if ! debootstrap --variant=minbase ${OPTIONS:-} "$suite" "$root" "$mirror" ${SCRIPT:+/usr/share/debootstrap/scripts/$SCRIPT} >"$dir/log" 2>&1; then
		if [ "$suite" != bookworm ] && grep -Eq 'Failed getting release file|No such script' "$dir/log"; then
			echo "note clean_root_$suite: its packages are not to be had here"
			return
		fi
		fail "$(tail -n 5 "$dir/log")"
	fi
	rm -f "$root"/var/cache/apt/archives/*.deb
	echo '127.0.0.1 localhost' >"$root/etc/hosts" # as an installer writes, and everything that runs containers
	cp -a "$root" "$root.bare"
	git clone -q --no-hardlinks "file://$PWD" "$root/root/difftp" || fail "cloning"
	mount -t proc proc "$root/proc"
	mount -t sysfs -o ro sysfs "$root/sys" # mpirun looks there for processors
	mkdir -p "$root/dev/pts"
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts" && ln -sf pts/ptmx "$root/dev/ptmx" # for tests of terminals
	done_
	[ -z "$why" ] || return

	case_ "clean_root_${suite}_readme_draws"
	draw=$(lines 'Two commands' | sed -n 1p) check=$(lines 'Two commands' | sed -n 2p)
	[ -n "$draw$check" ] || fail "the README's commands are not found"
	# shellcheck disable=SC2086 # words, as a shell has them
	timed draw 240 $draw
	inside test -s /root/difftp/out.png || fail "there is no out.png"
	grep -q "picture is in /root/difftp/out.png" "$dir/log" || fail "its path is not said: $(tail -n 3 "$dir/log")"
	done_

	packages_are_those_that_are_used

	case_ "clean_root_${suite}_readme_tests"
	# shellcheck disable=SC2086 # words, as a shell has them
	if [ "${CLEAN_ROOT:-}" = all ] || [ "$suite" = "${suites%% *}" ]; then
		timed tests 600 $check
	else
		timed golden_tests 600 $check test_golden
		timed launcher_tests 600 $check cli/launchers
	fi
	# What needs NVIDIA's toolkit is skipped by name, in a root that has none.
	grep -Eq '^[1-9][0-9]* passed, 0 failed, [0-9]+ skipped$' "$dir/log" || fail "not all tests passed"
	done_
}

# Every package that is installed for the build gives a header or a library to it; all that it uses is listed, or belongs to the
# compilers.
packages_are_those_that_are_used() {
	case_ "clean_root_${suite}_package_list_matches_the_build"
	listed=$(inside sh /root/difftp/scripts/install-deps.sh --list build)
	# shellcheck disable=SC2016 # make and the inner shell expand it
	inside sh -c 'cd /root/difftp && flags=$(make -s --eval="show: ; @echo \$(CPPFLAGS)" show) &&
		gcc -M $flags cli/*.c core/*.c core/cpu/*.c && g++ -M $flags core/*.cc &&
		touch core/err.c && make V=1 LDFLAGS="-fopenmp -pthread -Wl,--as-needed,--trace"' >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
	tr ' ' '\n' <"$dir/log" | grep -E '^/usr/include/.*\.h(pp)?$' >"$dir/files"
	grep -E '^/[^ ]*\.(so|a)$' "$dir/log" >>"$dir/files"
	owners <"$dir/files" >"$dir/used"
	closure gcc g++ >"$dir/compilers"
	: >"$dir/granted"
	for p in $listed; do
		echo "$p" >>"$dir/granted"
		case $p in *-dev) ;; *) continue ;; esac
		with_headers "$p" >"$dir/instead"
		grep -qxFf "$dir/instead" "$dir/used" || fail "the build uses nothing of the package '$p'"
		cat "$dir/instead" >>"$dir/granted"
		rm "$dir/instead"
	done
	unlisted=$(grep -vxFf "$dir/compilers" "$dir/used" | grep -vxFf "$dir/granted")
	[ -z "$unlisted" ] || fail "the build uses these packages, which scripts/install-deps.sh does not list: $unlisted"
	[ "$(wc -l <"$dir/used")" -gt 10 ] || fail "few packages are found to be used: $(cat "$dir/used")"
	done_
}

# The package that make deb makes, in a system that has nothing else.
debian_package() {
	case_ "clean_root_${suite}_debian_package"
	inside apt-get install -y -qq --no-install-recommends dpkg-dev >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
	inside make -C /root/difftp deb >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
	cp "$root"/root/difftp/build/difftp_*.deb "$root.bare/tmp/"
	cp -r tests/models/klein-tiny "$root.bare/tmp/model"
	root=$root.bare
	mount -t proc proc "$root/proc"
	# What the image for CUDA installs, the example's own line.
	sed -n '/^FROM .*RUNTIME/,$ s/^RUN //p' scripts/package/Dockerfile >"$dir/runtime.sh"
	grep -q 'install .*/tmp/difftp_' "$dir/runtime.sh" || fail "the Dockerfile installs no package"
	inside sh -c "$(cat "$dir/runtime.sh")" >"$dir/log" 2>&1 || fail "$(tail -n 5 "$dir/log")"
	inside difftp --model /tmp/model --prompt "a red fox" --height 64 --width 64 --tp-degree 2 -q -o /tmp/x.png >"$dir/log" 2>&1 ||
		fail "the installed program does not draw: $(cat "$dir/log")"
	inside test -s /tmp/x.png || fail "there is no picture"
	done_
}

suites=${SUITES:-bookworm trixie}
for s in $suites; do
	try "$s"
	if [ "$s" = bookworm ] && [ -x "$root/root/difftp/difftp" ]; then debian_package; fi
	umount "$memory/$s/dev/pts" "$memory/$s/sys" "$memory/$s/proc" "$memory/$s.bare/proc" 2>/dev/null
	rm -rf --one-file-system "${memory:?}/$s" "$memory/$s.bare"
done
finish
