#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh scripts/test.sh [PATTERN]: installs what the quick tests need (root or sudo, if anything is missing), builds, and runs them by
# make test; with a PATTERN, those that have it in their name.
set -eu
cd "$(dirname "$0")/.."

sh scripts/install-deps.sh build test
make -j "$(nproc)" difftp tests
make test ${1:+ONLY="$1"}
