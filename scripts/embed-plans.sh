#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints a C file with each plan file of the command line as a string: dtp_builtin_plans[] = {{"flux2", "..."}, ...}.
set -eu
echo '#include "plan.h"'
echo 'const struct dtp_builtin_plan dtp_builtin_plans[] = {'
for f in "$@"; do
	name=$(basename "$f" .json)
	[ "$name" = schema ] && continue
	printf '{"%s",\n' "$name"
	sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$/\\n"/' "$f"
	echo '},'
done
echo '{0, 0}};'
