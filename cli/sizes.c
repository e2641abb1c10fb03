/* SPDX-License-Identifier: Apache-2.0 */
#include "sizes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
	const char *name;
	double bytes;
} units[] = {
	{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
	{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
};

enum dtp_code dtp_size_parse(const char *option, const char *text, uint64_t *bytes, struct dtp_err *err)
{
	size_t digits = strspn(text, "0123456789."), blank = strspn(text + digits, " ");
	const char *unit = text + digits + blank;
	char *end;
	double v = strtod(text, &end), scale = 0;

	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
		if (!strcasecmp(unit, units[i].name))
			scale = units[i].bytes;
	if (!digits || end != text + digits || !scale)
		return dtp_fail(err, DTP_REFUSED, "option '%s': '%s' is no size: a number and a unit, as in 24GB, 1.5TB, 512MiB",
				option, text);
	v *= scale;
	if (!(v >= 1 && v <= 0x1p60))
		return dtp_fail(err, DTP_REFUSED, "option '%s': %s is out of range (1B to 1152921TB)", option, text);
	*bytes = (uint64_t)v;
	return DTP_OK;
}

/* The count before an 'x', which moves *text on; 1 where there is none. */
static enum dtp_code parse_count(const char *option, char **text, long *count, struct dtp_err *err)
{
	size_t digits = strspn(*text, "0123456789");
	const char *all = *text;

	*count = 1;
	if ((*text)[digits] != 'x' && (*text)[digits] != 'X')
		return DTP_OK;
	errno = 0;
	*count = strtol(*text, NULL, 10);
	*text += digits + 1;
	if (!digits || errno || *count < 1 || *count > DTP_MAX_RANKS)
		return dtp_fail(err, DTP_REFUSED, "option '%s': '%s': the number before 'x' must be 1 to %d, as in 4x24GB", option, all,
				DTP_MAX_RANKS);
	return DTP_OK;
}

static enum dtp_code parse_list(const char *option, const char *text, bool counts, struct dtp_limits *out, struct dtp_err *err)
{
	char *copy = text ? strdup(text) : NULL, *rest = copy;
	uint64_t bytes = 0;
	long count = 1;

	out->option = option;
	out->n = 0;
	if (!text)
		return DTP_OK;
	if (!copy)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	err->code = DTP_OK;
	for (char *item; (item = strsep(&rest, ",")) && !err->code;) {
		if ((counts && parse_count(option, &item, &count, err)) || dtp_size_parse(option, item, &bytes, err))
			break;
		if (count > DTP_MAX_RANKS - out->n) {
			dtp_fail(err, DTP_REFUSED, "option '%s': more than %d sizes", option, DTP_MAX_RANKS);
			break;
		}
		while (count-- > 0)
			out->bytes[out->n++] = bytes;
		count = 1;
	}
	free(copy);
	return err->code;
}

enum dtp_code dtp_max_memory_parse(const char *text, struct dtp_limits *out, struct dtp_err *err)
{
	return parse_list("--max-memory", text, false, out, err);
}

enum dtp_code dtp_devices_parse(const char *text, struct dtp_limits *out, struct dtp_err *err)
{
	return parse_list("--devices", text, true, out, err);
}

enum dtp_code dtp_max_memory_check(const struct dtp_limits *l, int degree, struct dtp_err *err)
{
	if (l->n < 2 || l->n == degree)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "option '%s' lists %d sizes for %d rank%s: give one for all, or one for each", l->option, l->n,
			degree, degree == 1 ? "" : "s");
}

uint64_t dtp_limit(const struct dtp_limits *l, int rank)
{
	if (!l->n)
		return UINT64_MAX;
	return l->bytes[rank < l->n ? rank : l->n - 1];
}
