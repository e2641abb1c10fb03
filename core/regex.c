/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.h"

#include "regex_unicode.h"
#include "utf8.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PATTERN 65536
/* Steps that every place of a text may take; and what the places that need more may take together, besides 64 for each byte of it.
 * The patterns of the models that we know take one or two per byte; only one that backtracks exponentially gets there. */
#define QUICK_STEPS 256
#define MATCH_STEPS 10000000
#define JIT_STACK (1 << 20)
#define KEY_STEPS 100000 /* that a module's name may take: a name has some fifty bytes */

struct dtp_regex {
	pcre2_code *code;
};

struct dtp_matcher {
	const struct dtp_regex *re;
	pcre2_match_data *data;
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
	const char *text;
	size_t len, at;
	size_t last_end; /* SIZE_MAX before the first match */
	uint64_t steps;  /* left of the text's */
};

/* ---- Translation */

struct translation {
	const char *in;
	size_t len, at;
	char *out; /* open_memstream */
	FILE *f;
	bool in_class;
	int depth, fold_depth; /* parentheses that are open; of these, how many when (?i: opened, or 0 */
	char last_folded;      /* the literal before, in (?i:...) */
	struct dtp_err *err;
};

static enum dtp_code refuse(struct translation *t, size_t from, const char *why)
{
	size_t n = t->at - from;
	if (n > 32)
		n = 32;
	char *what = dtp_utf8_repair(t->in + from, n);
	enum dtp_code rc = dtp_fail(t->err, DTP_REFUSED, "'%s' at offset %zu of the pattern %s", what ? what : "?", from, why);
	free(what);
	return rc;
}

static void put(struct translation *t, const char *text)
{
	fwrite(text, 1, strlen(text), t->f);
}

static bool is_category(const char *name, size_t n)
{
	static const char *const known[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
					    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
					    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i]) == n && !memcmp(known[i], name, n))
			return true;
	return false;
}

/* A general category, in the Unicode version of the reference. */
static void put_category(struct translation *t, const char *name, size_t n, bool negated)
{
	if (!t->in_class)
		put(t, negated ? "[^" : "[");
	fprintf(t->f, "\\p{%.*s}", (int)n, name);
	for (size_t i = 0; i < sizeof dtp_newer_unicode / sizeof *dtp_newer_unicode; i++)
		if (!memcmp(dtp_newer_unicode[i].category, name, n))
			fprintf(t->f, "\\x{%x}-\\x{%x}", (unsigned)dtp_newer_unicode[i].first,
				(unsigned)dtp_newer_unicode[i].last);
	if (!t->in_class)
		fputc(']', t->f);
}

/* \p{...} or \P{...}; at stands behind the letter. */
static enum dtp_code property(struct translation *t, size_t from, bool negated)
{
	const char *name = t->in + t->at, *end = memchr(name, '}', t->len - t->at);
	if (t->at >= t->len || *name != '{' || !end)
		return refuse(t, from, "is not a property: \\p{NAME} is expected");
	name++;
	t->at = (size_t)(end - t->in) + 1;
	if (*name == '^') {
		negated = !negated;
		name++;
	}
	if (!is_category(name, (size_t)(end - name)))
		return refuse(t, from, "is not implemented: of properties only general categories (L, Lu, N, ...) are");
	if (negated && t->in_class)
		return refuse(t, from, "is not implemented: a negated property inside of [...]");
	if (t->fold_depth)
		return refuse(t, from, "is not implemented: a property inside of (?i:...)");
	put_category(t, name, (size_t)(end - name), negated);
	return DTP_OK;
}

/* \x{H...} or \uHHHH; at stands behind the letter. */
static enum dtp_code code_point(struct translation *t, size_t from, char letter)
{
	size_t i = t->at, max = letter == 'u' ? 4 : 6, digits = 0;
	uint32_t cp = 0;
	if (letter == 'x') {
		if (i >= t->len || t->in[i] != '{')
			return refuse(t, from, "is not implemented: write a code point as \\x{...}");
		i++;
	}
	for (; i < t->len && digits < max && isxdigit((unsigned char)t->in[i]); i++, digits++) {
		char hex[2] = {t->in[i], '\0'};
		cp = cp << 4 | (uint32_t)strtoul(hex, NULL, 16);
	}
	bool closed = letter == 'u' ? digits == 4 : digits && i < t->len && t->in[i] == '}';
	t->at = i + (letter == 'x' && closed);
	if (!closed || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
		return refuse(t, from, "is not a code point");
	if (t->fold_depth)
		return refuse(t, from, "is not implemented: an escaped character inside of (?i:...)");
	fprintf(t->f, "\\x{%x}", (unsigned)cp);
	return DTP_OK;
}

static enum dtp_code escape(struct translation *t)
{
	size_t from = t->at++;
	if (t->at >= t->len)
		return refuse(t, from, "escapes nothing");
	char c = t->in[t->at++];
	switch (c) {
	case 's':
		put(t, "\\p{White_Space}");
		return DTP_OK;
	case 'S':
		put(t, "\\P{White_Space}");
		return DTP_OK;
	case 'D':
		if (t->in_class)
			return refuse(t, from, "is not implemented: a negated property inside of [...]");
		/* fall through */
	case 'd':
		put_category(t, "Nd", 2, c == 'D');
		return DTP_OK;
	case 'p':
	case 'P':
		return property(t, from, c == 'P');
	case 'x':
	case 'u':
		return code_point(t, from, c);
	case 'n':
	case 'r':
	case 't':
	case 'f':
		fprintf(t->f, "\\%c", c);
		return DTP_OK;
	default:
		if (!ispunct((unsigned char)c) && c != ' ')
			return refuse(t, from, "is not implemented: this escape means different things to different engines");
		fprintf(t->f, "\\%c", c);
		return DTP_OK;
	}
}

static enum dtp_code group(struct translation *t)
{
	static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
	size_t from = t->at, n = 1;
	if (from + 1 < t->len && t->in[from + 1] == '?') {
		n = 0;
		for (size_t i = 0; i < sizeof known / sizeof *known; i++)
			if (t->len - from >= strlen(known[i]) && !memcmp(t->in + from, known[i], strlen(known[i])))
				n = strlen(known[i]);
		if (!n) {
			t->at = from + 3 < t->len ? from + 3 : t->len;
			return refuse(t, from, "is not implemented: of groups (...), (?:...), (?i:...), (?=...), (?!...), "
					       "(?<=...), (?<!...), (?>...) are");
		}
	}
	fwrite(t->in + from, 1, n, t->f);
	t->at += n;
	t->depth++;
	if (n == 4 && t->in[from + 2] == 'i' && !t->fold_depth)
		t->fold_depth = t->depth;
	return DTP_OK;
}

static size_t digits(const struct translation *t, size_t at)
{
	size_t n = 0;
	while (at + n < t->len && isdigit((unsigned char)t->in[at + n]))
		n++;
	return n;
}

/* {n}, {n,} or {n,m}, greedy.  The engines disagree about {,m}, {n}? and {n,m}+. */
static enum dtp_code interval(struct translation *t)
{
	size_t from = t->at, i = from + 1, n = digits(t, i);
	i += n;
	if (n && i < t->len && t->in[i] == ',')
		i += 1 + digits(t, i + 1);
	bool ok = n && i < t->len && t->in[i] == '}';
	t->at = i < t->len ? i + 1 : t->len;
	if (!ok || (t->at < t->len && (t->in[t->at] == '?' || t->in[t->at] == '+')))
		return refuse(t, from, "is not implemented: of intervals {n}, {n,} and {n,m} are");
	fwrite(t->in + from, 1, t->at - from, t->f);
	return DTP_OK;
}

static enum dtp_code open_class(struct translation *t)
{
	size_t from = t->at++;
	fputc('[', t->f);
	if (t->at < t->len && t->in[t->at] == '^') {
		fputc('^', t->f);
		t->at++;
	}
	if (t->at < t->len && t->in[t->at] == ']')
		return refuse(t, from, "is not implemented: write a bracket in [...] as \\]");
	t->in_class = true;
	return DTP_OK;
}

static enum dtp_code class_item(struct translation *t)
{
	char c = t->in[t->at];
	if (c == '\\')
		return escape(t);
	size_t from = t->at++;
	if (c == '[')
		return refuse(t, from, "is not implemented: a class inside of a class");
	if (c == '&' && t->at < t->len && t->in[t->at] == '&')
		return refuse(t, from, "is not implemented: an intersection of classes");
	if (t->fold_depth && (unsigned char)c >= 0x80)
		return refuse(t, from, "is not implemented: a character beyond ASCII inside of (?i:...)");
	if (c == ']')
		t->in_class = false;
	fputc(c, t->f);
	return DTP_OK;
}

/* A character that stands for itself.  In (?i:...) Oniguruma also lets one character match several ("ss" and the sharp s,
 * "st" and its ligature), PCRE2 does not. */
static enum dtp_code literal_char(struct translation *t)
{
	size_t from = t->at++;
	char c = t->in[from];
	if (t->fold_depth) {
		char low = (char)tolower((unsigned char)c);
		if ((unsigned char)c >= 0x80)
			return refuse(t, from, "is not implemented: a character beyond ASCII inside of (?i:...)");
		if ((t->last_folded == 's' && (low == 's' || low == 't')) ||
		    (t->last_folded == 'f' && (low == 'f' || low == 'i' || low == 'l')))
			return refuse(t, from - 1, "is not implemented: letters with a common ligature inside of (?i:...)");
		t->last_folded = low;
	}
	fputc(c, t->f);
	return DTP_OK;
}

static enum dtp_code item(struct translation *t)
{
	if (t->in_class)
		return class_item(t);
	char c = t->in[t->at];
	if (!strchr("\\([{)^$|*+?.", c))
		return literal_char(t);
	t->last_folded = '\0';
	switch (c) {
	case '\\':
		return escape(t);
	case '(':
		return group(t);
	case '[':
		return open_class(t);
	case '{':
		return interval(t);
	case '^':
	case '$':
		t->at++;
		return refuse(t, t->at - 1, "is not implemented: it means lines to one engine and the text to the other");
	case ')':
		if (t->depth-- == t->fold_depth)
			t->fold_depth = 0;
		break;
	default:
		break;
	}
	fputc(c, t->f);
	t->at++;
	return DTP_OK;
}

static enum dtp_code translate(const char *pattern, char **out, struct dtp_err *err)
{
	struct translation t = {.in = pattern, .len = strlen(pattern), .err = err};
	size_t size;
	enum dtp_code rc = DTP_OK;
	t.f = open_memstream(&t.out, &size);
	if (!t.f)
		return dtp_fail(err, DTP_FAILED, "out of memory: compiling a pattern");
	while (rc == DTP_OK && t.at < t.len)
		rc = item(&t);
	bool ok = !ferror(t.f);
	ok &= !fclose(t.f);
	if (rc == DTP_OK && !ok)
		rc = dtp_fail(err, DTP_FAILED, "out of memory: compiling a pattern");
	if (rc != DTP_OK)
		free(t.out);
	else
		*out = t.out;
	return rc;
}

/* ---- Compilation */

static enum dtp_code compile(const char *pattern, uint32_t options, struct dtp_regex *re, struct dtp_err *err)
{
	int code;
	PCRE2_SIZE offset;
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	if (!context)
		return dtp_fail(err, DTP_FAILED, "out of memory: compiling a pattern");
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	re->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &offset, context);
	pcre2_compile_context_free(context);
	if (!re->code) {
		PCRE2_UCHAR why[256];
		pcre2_get_error_message(code, why, sizeof why);
		return dtp_fail(err, DTP_REFUSED, "the pattern is not valid: %s", (char *)why);
	}
	/* Without a JIT (not built for this machine, or writable code is forbidden) pcre2_match interprets. */
	pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
	return DTP_OK;
}

static enum dtp_code check_length(const char *pattern, struct dtp_err *err)
{
	size_t len = strlen(pattern);

	return len <= MAX_PATTERN ? DTP_OK
		: dtp_fail(err, DTP_REFUSED, "the pattern has %zu bytes, at most %d are allowed", len, MAX_PATTERN);
}

enum dtp_code dtp_regex_new(const char *pattern, bool literal, struct dtp_regex **out, struct dtp_err *err)
{
	char *translated = NULL;
	enum dtp_code rc;
	if (check_length(pattern, err))
		return err->code;
	if (!literal && (rc = translate(pattern, &translated, err)) != DTP_OK)
		return rc;
	struct dtp_regex *re = calloc(1, sizeof *re);
	if (!re)
		rc = dtp_fail(err, DTP_FAILED, "out of memory: compiling a pattern");
	else if (literal)
		rc = compile(pattern, PCRE2_UTF | PCRE2_LITERAL | PCRE2_ANCHORED, re, err);
	else
		rc = compile(translated, PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, re, err);
	free(translated);
	if (rc != DTP_OK)
		free(re);
	else
		*out = re;
	return rc;
}

enum dtp_code dtp_regex_new_key(const char *key, struct dtp_regex **out, struct dtp_err *err)
{
	char *pattern = NULL;

	if (check_length(key, err))
		return err->code;
	struct dtp_regex *re = calloc(1, sizeof *re);
	enum dtp_code rc = !re || asprintf(&pattern, "(.*\\.)?(%s)$", key) < 0 ? dtp_fail(err, DTP_FAILED, "out of memory: compiling a pattern")
		: compile(pattern, PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, re, err);
	free(pattern);
	if (rc)
		free(re);
	else
		*out = re;
	return rc;
}

enum dtp_code dtp_regex_key_fits(const struct dtp_regex *re, const char *name, bool *fits, struct dtp_err *err)
{
	pcre2_match_data *data = pcre2_match_data_create(1, NULL);
	pcre2_match_context *context = pcre2_match_context_create(NULL);
	PCRE2_UCHAR why[256];

	if (context)
		pcre2_set_match_limit(context, KEY_STEPS);
	int r = data && context ? pcre2_match(re->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, context) : PCRE2_ERROR_NOMEMORY;
	pcre2_match_data_free(data);
	pcre2_match_context_free(context);
	*fits = r >= 0;
	if (r >= 0 || r == PCRE2_ERROR_NOMATCH)
		return DTP_OK;
	pcre2_get_error_message(r, why, sizeof why);
	return dtp_fail(err, DTP_REFUSED, "the pattern fails on '%s': %s", name, (char *)why);
}

void dtp_regex_free(struct dtp_regex *re)
{
	if (re)
		pcre2_code_free(re->code);
	free(re);
}

/* ---- Matching */

enum dtp_code dtp_matcher_new(const struct dtp_regex *re, struct dtp_matcher **out, struct dtp_err *err)
{
	struct dtp_matcher *m = calloc(1, sizeof *m);
	if (m) {
		m->re = re;
		m->data = pcre2_match_data_create_from_pattern(re->code, NULL);
		m->context = pcre2_match_context_create(NULL);
	}
	if (!m || !m->data || !m->context) {
		dtp_matcher_free(m);
		return dtp_fail(err, DTP_FAILED, "out of memory: matching a pattern");
	}
	m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK, NULL);
	if (m->stack) /* NULL: no JIT; else the JIT would use 32 KiB of ours */
		pcre2_jit_stack_assign(m->context, NULL, m->stack);
	*out = m;
	return DTP_OK;
}

void dtp_matcher_free(struct dtp_matcher *m)
{
	if (!m)
		return;
	pcre2_match_data_free(m->data);
	pcre2_match_context_free(m->context);
	pcre2_jit_stack_free(m->stack);
	free(m);
}

void dtp_matcher_start(struct dtp_matcher *m, const char *text, size_t len)
{
	m->text = text;
	m->len = len;
	m->at = 0;
	m->last_end = SIZE_MAX;
	m->steps = MATCH_STEPS + 64 * (uint64_t)len;
}

static int match_within(struct dtp_matcher *m, uint32_t steps)
{
	PCRE2_SPTR text = (PCRE2_SPTR)m->text;
	uint32_t options = PCRE2_NO_UTF_CHECK; /* the text was checked once: PCRE2 would do so again for each match */

	pcre2_set_match_limit(m->context, steps);
	int r = pcre2_match(m->re->code, text, m->len, m->at, options, m->data, m->context);
	if (r == PCRE2_ERROR_JIT_STACKLIMIT)
		r = pcre2_match(m->re->code, text, m->len, m->at, options | PCRE2_NO_JIT, m->data, m->context);
	return r;
}

/* At this place.  PCRE2 does not say how many steps it took: each try may take twice what the one before did, and all are counted. */
static int match_here(struct dtp_matcher *m)
{
	uint64_t steps = QUICK_STEPS;
	int r = match_within(m, QUICK_STEPS);

	while (r == PCRE2_ERROR_MATCHLIMIT && m->steps && steps < UINT32_MAX / 2) {
		steps = 2 * steps < m->steps ? 2 * steps : m->steps;
		m->steps -= steps;
		r = match_within(m, (uint32_t)steps);
	}
	return r;
}

static void step(struct dtp_matcher *m)
{
	size_t n = 1;

	if (m->at < m->len)
		dtp_utf8_next(m->text, m->at, &n);
	m->at += n;
}

enum dtp_code dtp_matcher_next(struct dtp_matcher *m, bool *found, size_t *begin, size_t *end, struct dtp_err *err)
{
	*found = false;
	while (m->at <= m->len) {
		int r = match_here(m);
		if (r == PCRE2_ERROR_NOMATCH) {
			step(m);
			continue;
		}
		if (r < 0) {
			PCRE2_UCHAR why[256];
			pcre2_get_error_message(r, why, sizeof why);
			return dtp_fail(err, DTP_REFUSED, "the split pattern fails on a text of %zu bytes behind byte %zu: %s",
					m->len, m->at, (char *)why);
		}
		const PCRE2_SIZE *match = pcre2_get_ovector_pointer(m->data);
		if (match[0] == match[1] && match[1] == m->last_end) {
			step(m);
			continue;
		}
		*found = true;
		*begin = match[0];
		*end = m->at = m->last_end = match[1];
		return DTP_OK;
	}
	return DTP_OK;
}
