#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Under another launcher and on two hosts, every fault in every stage; tests/cli/launcher_faults.sh and hosts.sh try some.
export FAULTS=all
sh tests/cli/launcher_faults.sh
rc=$?
sh tests/cli/hosts.sh && [ $rc -eq 0 ]
