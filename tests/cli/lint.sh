#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The project's own rules, as cases.
exec sh scripts/lint.sh
