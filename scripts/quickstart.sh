#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a picture: sh scripts/quickstart.sh [PROMPT].  Installs what the build needs (root or sudo, if anything
# is missing), builds, and draws on two tensor-parallel ranks from the small trained model in tests/models/demo.
set -eu
cd "$(dirname "$0")/.."
model=tests/models/demo size=128

sh scripts/install-deps.sh build
make -j "$(nproc)"
if [ ! -e $model/model_index.json ]; then
	model=tests/models/klein-tiny size=256
	echo "quickstart: tests/models/demo, the trained model, is not in this tree; $model has random weights and draws texture only" >&2
fi
show=no
[ ! -t 2 ] || show=yes
./difftp --model $model --prompt "${1:-a red circle left of a blue square}" --tp-degree 2 --height $size --width $size --show=$show -o out.png
echo "The picture is in $PWD/out.png"
