/* SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include <string.h>

struct dtp_text dtp_bytes_text(uint64_t n)
{
	static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
	struct dtp_text t;
	double v = (double)n / 1000;
	int u = 0;

	if (n < 1000) {
		snprintf(t.s, sizeof t.s, "%d bytes", (int)n);
		return t;
	}
	for (; v >= 999.5 && u < 5; u++)
		v /= 1000;
	snprintf(t.s, sizeof t.s, v < 9.95 ? "%.1f %s" : v < 99.95 && u > 1 ? "%.1f %s" : "%.0f %s", v, units[u]);
	return t;
}

struct dtp_text_pair dtp_bytes_apart(uint64_t a, uint64_t b)
{
	struct dtp_text_pair p = {dtp_bytes_text(a), dtp_bytes_text(b)};

	if (a != b && !strcmp(p.a.s, p.b.s)) {
		snprintf(p.a.s, sizeof p.a.s, "%llu bytes", (unsigned long long)a);
		snprintf(p.b.s, sizeof p.b.s, "%llu bytes", (unsigned long long)b);
	}
	return p;
}

struct dtp_text dtp_seconds_text(double s)
{
	struct dtp_text t;

	if (s < 0.995)
		snprintf(t.s, sizeof t.s, "%.2f s", s);
	else if (s < 9.95)
		snprintf(t.s, sizeof t.s, "%.1f s", s);
	else if (s < 119.5)
		snprintf(t.s, sizeof t.s, "%.0f s", s);
	else {
		long n = s < 3.6e8 ? (long)(s + 0.5) : 360000000;
		if (n < 3600)
			snprintf(t.s, sizeof t.s, "%ld:%02ld", n / 60, n % 60);
		else
			snprintf(t.s, sizeof t.s, "%ld:%02ld:%02ld", n / 3600, n / 60 % 60, n % 60);
	}
	return t;
}
