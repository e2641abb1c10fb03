#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a picture: sh scripts/quickstart.sh [PROMPT].  Installs what the build needs (root or sudo, if anything
# is missing), builds, and draws on two tensor-parallel ranks from the small trained model in tests/models/demo.
set -eu
cd "$(dirname "$0")/.."
model=tests/models/demo

if [ ! -e $model/model_index.json ]; then
	echo "quickstart: $model, the trained model, is not in $PWD: this is no complete clone of the repository" >&2
	exit 1
fi

sh scripts/install-deps.sh build
make -j "$(nproc)"
show=no
[ ! -t 2 ] || show=yes
./difftp --model $model --prompt "${1:-a red circle left of a blue square}" --tp-degree 2 --height 128 --width 128 \
	--show=$show --force -o out.png
echo "The picture is in $PWD/out.png"
