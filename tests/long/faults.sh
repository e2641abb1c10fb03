#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every fault in every stage; tests/cli/faults.sh tries one in each.
FAULTS=all exec sh tests/cli/faults.sh
