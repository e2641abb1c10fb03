#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the source of a libcuda.so.1 for machines without a driver, with every function that the toolkit's stub has.  cuDNN compiles
# attention only where it finds that library, and loads what it compiled: that succeeds; all else says that it is not supported
# (801).  Usage: libcuda.sh STUB
[ -f "$1" ] || { echo "no stub of libcuda: '$1'" >&2; exit 1; }
echo 'static int something;'
nm -D --defined-only "$1" | awk '
	$2 != "T" { next }
	{ known++ }
	$3 == "cuLibraryLoadData" || $3 == "cuLibraryGetKernel" { print "int " $3 "(void **out) { *out = &something; return 0; }"; next }
	$3 == "cuLibraryUnload" { print "int " $3 "(void) { return 0; }"; next }
	{ print "int " $3 "(void) { return 801; }" }
	END { if (!known) { print "the stub has no functions" > "/dev/stderr"; exit 1 } }'
