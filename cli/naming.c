/* SPDX-License-Identifier: Apache-2.0 */
#include "naming.h"

#include "file.h"
#include "suggest.h"
#include "utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_SLUG 60 /* bytes */

static const char *const fields[] = {"seed", "index", "prompt"};
#define NFIELDS (sizeof fields / sizeof *fields)

/* ---- patterns */

/* A part of a pattern: text as it stands, one brace of a pair, or a field's name. */
struct part {
	const char *text;
	size_t len;
	bool field, stray; /* stray: a brace without its partner */
};

static bool next_part(const char **at, struct part *p)
{
	const char *s = *at;
	size_t n = strcspn(s, "{}");

	*p = (struct part){.text = s, .len = n};
	if (!n && (*s == '{' || *s == '}')) {
		size_t inner = strcspn(s + 1, "{}");
		if (s[1] == s[0]) {
			p->len = 1;
			*at = s + 2;
			return true;
		}
		p->stray = *s == '}' || s[1 + inner] != '}';
		p->field = !p->stray;
		p->text = s + 1;
		p->len = inner;
		*at = p->stray ? s + strlen(s) : s + inner + 2;
		return true;
	}
	*at = s + n;
	return n > 0;
}

bool dtp_name_is_pattern(const char *output)
{
	return strpbrk(output, "{}") != NULL;
}

static bool is_field(const struct part *p, const char *name)
{
	return p->field && strlen(name) == p->len && !memcmp(name, p->text, p->len);
}

bool dtp_name_has(const char *output, const char *field)
{
	struct part p;

	while (next_part(&output, &p))
		if (is_field(&p, field))
			return true;
	return false;
}

static enum dtp_code unknown(const char *output, const struct part *p, struct dtp_err *err)
{
	char name[64], hint[300];

	snprintf(name, sizeof name, "%.*s", (int)p->len, p->text);
	struct dtp_suggest near = dtp_suggest_begin(name);
	for (size_t i = 0; i < NFIELDS; i++)
		dtp_suggest_try(&near, fields[i]);
	return dtp_fail(err, DTP_REFUSED, "output '%s': '{%s}' stands for nothing%s%s", output, name,
			dtp_suggest_text(&near, hint, sizeof hint), near.best[0] ? "" : "; there are {seed}, {index} and {prompt}, and "
			"'{{' is a brace");
}

enum dtp_code dtp_name_check(const char *output, struct dtp_err *err)
{
	const char *at = output;
	struct part p;

	while (next_part(&at, &p)) {
		bool known = !p.field;
		if (p.stray)
			return dtp_fail(err, DTP_REFUSED, "output '%s': a brace has no partner; '{{' and '}}' stand for one", output);
		for (size_t i = 0; i < NFIELDS && !known; i++)
			known = is_field(&p, fields[i]);
		if (!known)
			return unknown(output, &p, err);
	}
	return DTP_OK;
}

/* Letters, digits and what belongs to them; everything between becomes one '-'. */
static void put_slug(FILE *f, const char *prompt)
{
	char slug[MAX_SLUG + 8];
	size_t n = 0, step, len = strlen(prompt);
	bool gap = false;

	if (dtp_utf8_valid(prompt, len) < len)
		len = 0;
	for (size_t i = 0; i < len; i += step) {
		uint32_t cp = dtp_utf8_next(prompt, i, &step);
		if (!dtp_is_word(cp)) {
			gap = n > 0;
			continue;
		}
		if (n + gap + step > MAX_SLUG)
			break;
		if (gap)
			slug[n++] = '-';
		gap = false;
		for (size_t k = 0; k < step; k++) {
			char c = prompt[i + k];
			slug[n++] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
		}
	}
	fprintf(f, "%.*s", n ? (int)n : 5, n ? slug : "image");
}

static char *expand(const char *pattern, const struct dtp_name_values *v)
{
	char *buf = NULL;
	size_t len;
	struct part p;
	FILE *f = open_memstream(&buf, &len);

	if (!f)
		return NULL;
	while (next_part(&pattern, &p)) {
		if (is_field(&p, "seed"))
			fprintf(f, "%" PRIu64, v->seed);
		else if (is_field(&p, "index"))
			fprintf(f, DTP_NAME_INDEX, (long long)v->index);
		else if (is_field(&p, "prompt"))
			put_slug(f, v->prompt);
		else
			fwrite(p.text, 1, p.len, f);
	}
	if (!fclose(f))
		return buf;
	free(buf);
	return NULL;
}

/* ---- names */

char *dtp_name_number(const char *name, char mark, int number)
{
	const char *end = dtp_suffix_of(name);
	char *s;

	return asprintf(&s, "%.*s%c%d%s", (int)(end - name), name, mark, number, end) < 0 ? NULL : s;
}

char *dtp_name_make(const char *output, const struct dtp_name_values *v, int i, int count)
{
	char *name = dtp_name_is_pattern(output) ? expand(output, v) : strdup(output), *numbered;

	if (!name || count <= 1 || dtp_name_has(output, "seed") || dtp_name_has(output, "index"))
		return name;
	numbered = dtp_name_number(name, '_', i);
	free(name);
	return numbered;
}

size_t dtp_name_folder(const char *pattern)
{
	const char *end = strpbrk(pattern, "{}"), *slash;

	if (!end)
		end = pattern + strlen(pattern);
	slash = memrchr(pattern, '/', (size_t)(end - pattern));
	return slash ? (size_t)(slash - pattern) : 0;
}

/* ---- what is on the disk */

enum dtp_code dtp_make_folders(const char *path, size_t from, enum dtp_code code, struct dtp_err *err)
{
	for (const char *slash = strchr(path + from, '/'); slash; slash = strchr(slash + 1, '/')) {
		char *folder = slash > path ? strndup(path, (size_t)(slash - path)) : strdup("/");
		int failed = !folder ? ENOMEM : mkdir(folder, 0777) && errno != EEXIST ? errno : 0;
		if (failed)
			dtp_fail(err, code, "cannot make the folder '%s': %s", folder ? folder : path, strerror(failed));
		free(folder);
		if (failed)
			return code;
	}
	return DTP_OK;
}

bool dtp_name_is_taken(const char *path)
{
	struct stat st;

	return !lstat(path, &st) && (S_ISREG(st.st_mode) || S_ISLNK(st.st_mode)) && (stat(path, &st) || S_ISREG(st.st_mode));
}
