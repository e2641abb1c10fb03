/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <ftw.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *fixture(const char *fmt, ...)
{
	static char buf[8][1024];
	static int turn;
	char *p = buf[turn++ % 8];
	const char *root = getenv("DTP_TESTS");
	int n = snprintf(p, sizeof buf[0], "%s/", root ? root : "tests");
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p + n, sizeof buf[0] - (size_t)n, fmt, ap);
	va_end(ap);
	return p;
}

static char temp[512];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

static void remove_temp(void)
{
	nftw(temp, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *temp_dir(void)
{
	if (!temp[0]) {
		const char *base = getenv("TMPDIR");
		snprintf(temp, sizeof temp, "%s/difftp-test-XXXXXX", base ? base : "/tmp");
		if (!mkdtemp(temp)) {
			perror(temp);
			exit(1);
		}
		atexit(remove_temp);
	}
	return temp;
}

void write_file(const char *path, const void *data, size_t len)
{
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(data, 1, len, f) != len || fclose(f)) {
		perror(path);
		exit(1);
	}
}

char *read_file(const char *path, size_t *len)
{
	FILE *f = fopen(path, "rb");
	if (!f) {
		perror(path);
		exit(1);
	}
	fseek(f, 0, SEEK_END);
	long n = ftell(f);
	rewind(f);
	char *p = malloc((size_t)n + 1);
	if (!p || fread(p, 1, (size_t)n, f) != (size_t)n)
		exit(1);
	fclose(f);
	p[n] = '\0';
	if (len)
		*len = (size_t)n;
	return p;
}

uint64_t test_random(void)
{
	static uint64_t s;
	if (!s) {
		const char *e = getenv("DTP_TEST_SEED");
		uint64_t seed = e ? strtoull(e, NULL, 0) : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
		fprintf(stderr, "seed: DTP_TEST_SEED=%llu\n", (unsigned long long)seed);
		s = seed * 0x9e3779b97f4a7c15u + 1;
		if (!s)
			s = 1;
	}
	s ^= s << 13;
	s ^= s >> 7;
	s ^= s << 17;
	return s * 0x2545f4914f6cdd1du;
}

float test_uniform(float lo, float hi)
{
	return lo + (hi - lo) * (float)(test_random() >> 40) * 0x1p-24f;
}

float test_normal(void)
{
	double u = ((double)(test_random() >> 11) + 0.5) * 0x1p-53, v = (double)(test_random() >> 11) * 0x1p-53;
	return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

double tolerance(enum dtp_dtype t, int64_t n)
{
	/* Rounding errors of a sum grow as sqrt(n); 8 standard deviations cover the maximum of some 10^9 values.  The
	 * result's own rounding comes on top: half an ulp of a value that may be 8 times the RMS. */
	double unit = t == DTP_BF16 ? 0x1p-9 : 0x1p-24;
	return 8 * 0x1p-24 * sqrt((double)(n > 0 ? n : 1)) + 8 * unit;
}

void compare(const float *a, const float *b, size_t n, double *max_rel, double *rms_rel)
{
	double ss = 0, dd = 0, max = 0;
	for (size_t i = 0; i < n; i++) {
		double d = fabs((double)a[i] - b[i]);
		if (!(d <= max)) /* NaN counts as the largest */
			max = d;
		dd += d * d;
		ss += (double)b[i] * b[i];
	}
	double rms = n ? sqrt(ss / (double)n) : 1;
	if (rms == 0)
		rms = 1;
	*max_rel = max / rms;
	if (rms_rel)
		*rms_rel = n ? sqrt(dd / (double)n) / rms : 0;
}

void assert_message(const struct dtp_err *err, enum dtp_code code, ...)
{
	va_list ap;

	if (err->code != code)
		fail_msg("expected code %d, got %d: %s", code, err->code, err->message);
	va_start(ap, code);
	for (const char *s; (s = va_arg(ap, const char *));)
		if (!strstr(err->message, s))
			fail_msg("'%s' is not in the message: %s", s, err->message);
	va_end(ap);
}
