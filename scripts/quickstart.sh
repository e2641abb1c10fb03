#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a picture: installs the build dependencies (root or sudo), builds, and draws on two tensor-parallel
# ranks from the small model in tests/models.
set -eu
cd "$(dirname "$0")/.."

sh scripts/install-deps.sh
make -j "$(nproc)"
./difftp --model tests/models/klein-tiny --prompt "${1:-a red circle left of a blue square}" --tp-degree 2 \
	--height 256 --width 256 -o out.png
echo "The picture is in $PWD/out.png"
