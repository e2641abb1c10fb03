# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# For the scripts that test the CUDA backend without a GPU: the same sources with tests/emu in place of NVIDIA's runtime and what of its
# libraries needs a GPU.  Builds $emulated/difftp and its tests.  Not a test itself.
if [ -z "$(make -s which-nvcc)" ]; then
	echo "skip emulated: there is no nvcc, and none of CUDA's headers"
	exit 0
fi
plain=$(basename "$(dirname "$DIFFTP")") # release, or san-...
sanitize='' emulated=$PWD/build/emulated golden_seconds=300
if [ -n "$SANITIZED" ]; then
	sanitize=$(echo "${plain#san-}" | tr - ,) emulated=$PWD/build/emulated-$plain
	export RUN_SECONDS=600
	golden_seconds=3000
fi

case_ emulated_build
MAKEFLAGS='' make EMULATE=1 SANITIZE="$sanitize" -j "$(nproc)" emulated-tests >"$dir/log" 2>&1 || fail "$(tail -n 30 "$dir/log")"
done_
[ $failures -eq 0 ] || exit 1
# The user's file of defaults: what is run says nothing of the device, and is too small for sums in parts to be chosen for it.
mkdir -p "$dir/config/difftp"
printf 'device = cuda\noverlap = on\n' >"$dir/config/difftp/config"
export XDG_CONFIG_HOME="$dir/config" XDG_CACHE_HOME="$dir/cache" DTP_TESTS="$PWD/tests"

# program NAME COMMAND...: a program of cmocka's, of which at least one case must run.
program() {
	case_ "emulated_$1"
	shift
	"$@" >"$dir/log" 2>&1
	case $? in
	0) ;;
	124) fail "it took too long and was ended: $(tail -n 5 "$dir/log")" ;;
	*) fail "$(grep -v -e 'OK \]' -e 'RUN  ' "$dir/log" | tail -n 60)" ;;
	esac
	grep -q '^\[       OK \]' "$dir/log" || fail "no case ran"
	done_
}

# golden MODE CASE: a case of tests/test_golden.c with streams in that mode.  Those of tests/cli and of tests/long have half of ten minutes each,
# of which they need a tenth: who takes longer is ended, and what comes after it.
golden() {
	: "${golden_ends:=$(($(date +%s) + golden_seconds))}"
	left=$((golden_ends - $(date +%s)))
	if [ $left -le 0 ]; then
		case_ "emulated_golden_$1_${2#golden_}"
		fail "no time is left of the $golden_seconds seconds that the golden cases may take"
		done_
		return
	fi
	program "golden_$1_${2#golden_}" timeout "$left" env DIFFTP="$emulated/difftp" DIFFTP_EMU_STREAMS="$1" "$emulated/tests/test_golden" "$2"
}
