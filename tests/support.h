/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share: cmocka's includes, fixture paths, a seeded generator, tolerances. */
#ifndef TEST_SUPPORT_H
#define TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "err.h"
#include "tensor.h"

/* Path below tests/, found from the test program's environment or the current folder; static buffers, 8 in turn. */
const char *fixture(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A fresh folder below $TMPDIR, removed with all its contents at exit. */
const char *temp_dir(void);
void write_file(const char *path, const void *data, size_t len);
char *read_file(const char *path, size_t *len); /* NUL-terminated, malloc'd */

/* xorshift; the seed is printed once per program and taken from $DTP_TEST_SEED. */
uint64_t test_random(void);
float test_uniform(float lo, float hi);
float test_normal(void);

/* What an f32 or bf16 computation with reductions of length n may differ from an f64 reference, relative to the RMS of
 * the result: the one place where tolerances are made. */
double tolerance(enum dtp_dtype t, int64_t n);
/* Largest |a - b| over the RMS of b, and RMS of the difference over it. */
void compare(const float *a, const float *b, size_t n, double *max_rel, double *rms_rel);

/* Asserts that the call was refused (or failed) and that its message holds each of the NULL-terminated strings. */
void assert_message(const struct dtp_err *err, enum dtp_code code, ...) __attribute__((sentinel));
#endif
