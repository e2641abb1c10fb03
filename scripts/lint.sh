#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The rules of docs/architecture.md that a text search can check.  Prints "ok RULE" or "not ok RULE" with the lines that
# break it.  $DIFFTP, if set, must print the committed manual page.
cd "$(dirname "$0")/.." || exit 1
failed=0

verdict() { # RULE FINDINGS: no findings is what is wanted
	if [ -z "$2" ]; then
		echo "ok lint_$1"
	else
		echo "not ok lint_$1"
		printf '%s\n' "$2" | sed 's/^/    /'
		failed=1
	fi
}

# Lines of files that match, without those that say where the rule does not hold.
find_in() { # EXPRESSION FILE...
	expression=$1
	shift
	grep -nE "$expression" /dev/null "$@"
}

core=$(find core -name '*.c' -o -name '*.h' -o -name '*.cc')
cli=$(find cli -name '*.c' -o -name '*.h')
sources=$(find core cli cuda tests scripts -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' \
	-o -name '*.py' -o -name '*.mk' -o -path 'scripts/package/*' -type f)
# shellcheck disable=SC2046,SC2086 # lists of names without blanks
{
	verdict licence_in_every_file "$(for f in $sources Makefile .ci/run; do
		head -n 2 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$f"
	done)"

	# ---- the arrows between the folders
	verdict core_includes_core_only "$(for f in $core; do
		grep -oE '^ *# *include "[^"]*"' "$f" | sed 's/.*"\(.*\)"/\1/' | while read -r h; do
			[ -e "core/$h" ] || [ -e "$(dirname "$f")/$h" ] || echo "$f: $h"
		done
	done)"
	verdict nothing_includes_tests "$(find_in 'include "(\.\./)?tests/|include "support\.h"' $core $cli)"
	verdict core_has_no_gpu_header "$(find_in 'include [<"](cuda|nccl|cublas|cudnn)' $core $cli)"
	verdict onednn_in_the_cpu_backend_only "$(find_in 'include [<"](dnnl|oneapi)' $(find core cli -name '*.[ch]' ! -path 'core/cpu/*'))"
	verdict gloo_in_one_file "$(find_in 'include [<"]gloo/' $(find core cli -name '*.[ch]' -o -name '*.cc' ! -name comm_gloo.cc))"
	verdict nettle_in_one_place "$(find_in 'include <nettle' $(find core cli -name '*.[ch]' ! -name 'hash.h'))"
	verdict image_libraries_in_their_files "$(find_in 'include <(png|jpeglib|jerror|webp/)' $(find core cli -name '*.[ch]' \
		! -name image.c ! -name image_png.c ! -name png_bytes.c ! -name image_jpeg.c ! -name image_webp.c))"
	verdict json_is_parsed_in_one_place "$(find_in 'cJSON_Parse' $(find core cli -name '*.c' ! -name json.c))"

	# ---- what core leaves to cli
	verdict core_prints_nothing "$(find_in '(^|[^a-z_])(printf|puts|putchar|perror|vprintf) *\(|[(,] *std(out|err) *[,)]' $core)"
	verdict core_neither_exits_nor_forks "$(find_in '(^|[^a-z_])(exit|_exit|fork|vfork|execv[pe]*|posix_spawn|getenv|setenv|signal|sigaction) *\(' $core)"
	verdict calls_that_are_banned "$(find_in '(^|[^a-z_])(sprintf|strcat|gets|strtok|atoi|atol|atof|alloca|system|popen|tmpnam|mktemp) *\(' $core $cli)"

	# ---- the forward passes: no rank, no type, no device
	models=$(ls core/transformer.c core/text_encoder.c core/vae.c 2>/dev/null)
	# In what is compiled: messages and comments may speak of them.
	verdict models_know_no_rank_type_or_device "$(for f in $models; do
		sed 's/"[^"]*"//g; s|/\*.*||; s|^[[:space:]]*\*.*||' "$f" |
			grep -nE '(^|[^a-zA-Z])(rank|ranks|world|bf16|BF16|fp32|F16|cuda|CUDA|nccl|NCCL|gloo|dnnl)([^a-zA-Z]|$)|# *if' |
			sed "s|^|$f:|"
	done)"
	verdict models_call_no_backend "$(find_in '(->|\.)ops->|include "(comm|backend)\.h"' $models)"

	# ---- the tests that docs/faults.md names: a column of faults by rank, and names in backquotes
	names=$({
		NAMES=1 FAULTS=all DIFFTP=none sh tests/cli/faults.sh
		NAMES=1 FAULTS=all DIFFTP=none sh tests/cli/launcher_faults.sh
		sed -n 's/^[[:space:]]*case_ \([a-z_0-9A-Z]*\).*/\1/p' tests/cli/*.sh tests/long/*.sh
		sed -n 's/^wrong \([a-z_0-9]*\) .*/launcher_refuses_\1/p' tests/cli/launchers.sh
		sed -n 's/^.*fails \([a-z_]*\) [0-9] .*/hosts_fault_\1/p' tests/cli/hosts.sh
	})
	verdict fault_table_names_tests "$(awk -F ' *[|] *' '
		/^[|] stage [|]/ { matrix = 1; for (i = 3; i < NF; i++) fault[i] = $i; next }
		!/^[|]/ { matrix = 0 }
		matrix && $2 != "---" {
			for (i = 3; i < NF; i++) {
				n = split($i, rank, ", ")
				for (k = 1; k <= n; k++) print "fault_" fault[i] "_rank_" rank[k] "_" $2
			}
		}
		!matrix && /^[|]/ { n = split($4, part, "`"); for (k = 2; k <= n; k += 2) print part[k] }' docs/faults.md |
		while read -r n; do
			printf '%s\n' "$names" | grep -qx "$n" || echo "docs/faults.md: no test is named '$n'"
		done)"

	# ---- sizes
	verdict main_is_short "$(awk 'END { if (NR > 40) print FILENAME ": " NR " lines, at most 40" }' cli/main.c)"
	verdict makefile_is_short "$(awk 'END { if (NR > 120) print FILENAME ": " NR " lines, at most 120" }' Makefile)"
	verdict the_map_is_short "$(awk 'END { if (NR > 150) print FILENAME ": " NR " lines, at most 150" }' docs/architecture.md)"
	verdict files_have_one_purpose "$(for f in $core $cli; do
		n=$(wc -l <"$f")
		[ "$n" -le 700 ] || echo "$f: $n lines, at most 700"
	done)"
	verdict no_unfinished_work "$(find_in '(^|[^A-Za-z])(TODO|FIXME|XXX)([^A-Za-z]|$)' $core $cli $(ls docs/*.md README.md))"
}
if [ -n "${DIFFTP:-}" ]; then
	verdict manual_page_is_not_stale "$("$DIFFTP" man | diff - docs/difftp.1 | head -n 5)"
fi
exit $failed
