#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Under another launcher and on two hosts, every fault in every stage; tests/cli/launchers.sh and hosts.sh try some.
export FAULTS=all
sh tests/cli/launchers.sh
rc=$?
sh tests/cli/hosts.sh && [ $rc -eq 0 ]
