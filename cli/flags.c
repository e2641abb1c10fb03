/* SPDX-License-Identifier: Apache-2.0 */
#include "flags.h"

#include "suggest.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_LONG 128     /* spellings of all options of one command */
#define FIRST_LONG 256   /* getopt's values of long options lie above those of letters */

void dtp_each_word(const char *list, bool (*fn)(void *arg, const char *word, size_t len), void *arg)
{
	while (list && *list) {
		size_t n = strcspn(list, " ");
		if (n && !fn(arg, list, n))
			return;
		list += n + (list[n] == ' ');
	}
}

const struct dtp_option *dtp_option_at(size_t offset)
{
	for (int i = 0; i < dtp_noptions; i++)
		if (dtp_options[i].offset == offset)
			return &dtp_options[i];
	return NULL;
}

static bool has_bit(dtp_option_set set, size_t offset)
{
	const struct dtp_option *o = dtp_option_at(offset);

	return o && set & dtp_option_bit(o);
}

bool dtp_args_given(const struct dtp_args *args, size_t offset)
{
	return has_bit(args->given, offset);
}

bool dtp_args_typed(const struct dtp_args *args, size_t offset)
{
	return has_bit(args->given & ~args->recalled, offset);
}

bool dtp_args_has(const struct dtp_args *args, size_t offset)
{
	return has_bit(args->given | args->preset, offset);
}

void dtp_args_give(struct dtp_args *args, size_t offset)
{
	const struct dtp_option *o = dtp_option_at(offset);

	if (o)
		args->given |= dtp_option_bit(o);
}

/* ---- values */

static enum dtp_code parse_int(const struct dtp_option *o, const char *s, int64_t *out, struct dtp_err *err)
{
	const char *digits = s + (*s == '-' || *s == '+');
	int64_t min = (int64_t)o->min, max = (int64_t)o->max;

	if (!*digits || digits[strspn(digits, "0123456789")])
		return dtp_fail(err, DTP_REFUSED, "option '--%s': '%s' is not a whole number (%lld to %lld)", o->name, s,
				(long long)min, (long long)max);
	errno = 0;
	long long v = strtoll(s, NULL, 10);
	if (errno || v < min || v > max)
		return dtp_fail(err, DTP_REFUSED, "option '--%s': %s is out of range (%lld to %lld)", o->name, s,
				(long long)min, (long long)max);
	*out = v;
	return DTP_OK;
}

static enum dtp_code parse_seed(const struct dtp_option *o, const char *s, uint64_t *out, struct dtp_err *err)
{
	if (!*s || s[strspn(s, "0123456789")])
		return dtp_fail(err, DTP_REFUSED, "option '--%s': '%s' is not a whole number (0 to 18446744073709551615)",
				o->name, s);
	errno = 0;
	*out = strtoull(s, NULL, 10);
	if (errno)
		return dtp_fail(err, DTP_REFUSED, "option '--%s': %s is out of range (0 to 18446744073709551615)", o->name,
				s);
	return DTP_OK;
}

static enum dtp_code parse_float(const struct dtp_option *o, const char *s, double *out, struct dtp_err *err)
{
	char *end;
	double v = strtod(s, &end);

	/* strtod also takes blanks, hexadecimals, "inf" and "nan". */
	if (!*s || *end || s[strspn(s, "0123456789.eE+-")])
		return dtp_fail(err, DTP_REFUSED, "option '--%s': '%s' is not a number (%g to %g)", o->name, s, o->min,
				o->max);
	if (!isfinite(v) || v < o->min || v > o->max)
		return dtp_fail(err, DTP_REFUSED, "option '--%s': %s is out of range (%g to %g)", o->name, s, o->min, o->max);
	*out = v;
	return DTP_OK;
}

struct choice {
	const char *given;
	int index, found;
	struct dtp_suggest near;
	char all[256];
};

static bool match_choice(void *arg, const char *word, size_t len)
{
	struct choice *c = arg;
	const char *alias = memchr(word, '=', len);
	size_t main_len = alias ? (size_t)(alias - word) : len, given = strlen(c->given);
	char name[64];

	if ((given == main_len && !memcmp(word, c->given, given)) ||
	    (alias && given == len - main_len - 1 && !memcmp(alias + 1, c->given, given)))
		c->found = c->index;
	snprintf(name, sizeof name, "%.*s", (int)main_len, word);
	dtp_suggest_try(&c->near, name);
	size_t used = strlen(c->all);
	snprintf(c->all + used, sizeof c->all - used, "%s%s", used ? ", " : "", name);
	c->index++;
	return true;
}

static enum dtp_code parse_choice(const struct dtp_option *o, const char *s, int *out, struct dtp_err *err)
{
	struct choice c = {.given = s, .found = -1, .near = dtp_suggest_begin(s)};

	dtp_each_word(o->choices, match_choice, &c);
	if (c.found < 0 && c.near.best[0])
		return dtp_fail(err, DTP_REFUSED, "option '--%s': '%s' is unknown; did you mean '%s'? (one of %s)", o->name, s,
				c.near.best, c.all);
	if (c.found < 0)
		return dtp_fail(err, DTP_REFUSED, "option '--%s': '%s' is unknown; it is one of %s", o->name, s, c.all);
	*out = c.found;
	return DTP_OK;
}

static enum dtp_code add_item(const struct dtp_option *o, const char *s, struct dtp_list *list, struct dtp_err *err)
{
	if (!*s)
		return dtp_fail(err, DTP_REFUSED, "option '--%s': the value is empty", o->name);
	if (list->n == (int)o->max)
		return dtp_fail(err, DTP_REFUSED, "option '--%s' is given more than %d times", o->name, (int)o->max);
	list->item[list->n++] = s;
	return DTP_OK;
}

/* Without a value it is on. */
static enum dtp_code parse_switch(const struct dtp_option *o, const char *s, bool *out, struct dtp_err *err)
{
	static const char *const on[] = {"yes", "true", "on", "1"}, *const off[] = {"no", "false", "off", "0"};

	if (!s)
		return *out = true, DTP_OK;
	for (size_t i = 0; i < sizeof on / sizeof on[0]; i++)
		if (!strcasecmp(s, on[i]) || !strcasecmp(s, off[i]))
			return *out = !strcasecmp(s, on[i]), DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "option '--%s': '%s' is neither yes nor no", o->name, s);
}

static enum dtp_code put_value(const struct dtp_option *o, const char *s, struct dtp_args *args, struct dtp_err *err)
{
	void *to = (char *)args + o->offset;

	switch (o->kind) {
	case DTP_OPT_SWITCH:
		return parse_switch(o, s, to, err);
	case DTP_OPT_INT:
		return parse_int(o, s, to, err);
	case DTP_OPT_SEED:
		return parse_seed(o, s, to, err);
	case DTP_OPT_FLOAT:
		return parse_float(o, s, to, err);
	case DTP_OPT_CHOICE:
		return parse_choice(o, s, to, err);
	case DTP_OPT_PATH:
		if (!*s)
			return dtp_fail(err, DTP_REFUSED, "option '--%s': the path is empty", o->name);
		break;
	case DTP_OPT_LIST:
		return add_item(o, s, to, err);
	case DTP_OPT_STRING:
		break;
	}
	*(const char **)to = s;
	return DTP_OK;
}

enum dtp_code dtp_args_set(struct dtp_args *args, const struct dtp_option *o, const char *value, struct dtp_err *err)
{
	enum dtp_code code = put_value(o, value, args, err);

	if (!code)
		args->given |= dtp_option_bit(o);
	return code;
}

enum dtp_code dtp_args_preset(struct dtp_args *args, const struct dtp_option *o, const char *value, struct dtp_err *err)
{
	enum dtp_code code = put_value(o, value, args, err);

	if (!code)
		args->preset |= dtp_option_bit(o);
	return code;
}

static bool same_value(const struct dtp_option *o, const struct dtp_args *a, const struct dtp_args *b)
{
	const void *x = (const char *)a + o->offset, *y = (const char *)b + o->offset;

	switch (o->kind) {
	case DTP_OPT_SWITCH:
		return *(const bool *)x == *(const bool *)y;
	case DTP_OPT_CHOICE:
		return *(const int *)x == *(const int *)y;
	case DTP_OPT_STRING:
	case DTP_OPT_PATH:
		return !strcmp(*(const char *const *)x, *(const char *const *)y);
	case DTP_OPT_FLOAT:
		return *(const double *)x == *(const double *)y;
	default: /* both have 64 bits */
		return *(const uint64_t *)x == *(const uint64_t *)y;
	}
}

enum dtp_code dtp_args_take(struct dtp_args *args, const char *name, const char *value, const char *from,
			    struct dtp_err *err)
{
	const struct dtp_option *o = dtp_options;
	struct dtp_args other = {0};

	while (strcmp(o->name, name))
		o++;
	if (put_value(o, value, &other, err))
		return dtp_err_prefix(err, "'%s': ", from);
	if (!dtp_args_given(args, o->offset))
		return put_value(o, value, args, err);
	if (same_value(o, args, &other))
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "'%s' was recorded with --%s '%s', another is given; leave it out", from, name, value);
}

/* ---- names */

struct wanted {
	char name[64];
	bool found;
	struct dtp_suggest *near;
};

static bool match_name(void *arg, const char *word, size_t len)
{
	struct wanted *w = arg;
	char name[64];

	snprintf(name, sizeof name, "%.*s", (int)len, word);
	dtp_suggest_try(w->near, name);
	w->found = !strcmp(name, w->name);
	return !w->found;
}

const struct dtp_option *dtp_option_find(unsigned commands, const char *name, struct dtp_suggest *near)
{
	struct wanted w = {.near = near};

	snprintf(w.name, sizeof w.name, "%s", name);
	for (char *p = w.name; *p; p++)
		*p = *p == '_' ? '-' : *p;
	*near = dtp_suggest_begin(name);
	for (int i = 0; i < dtp_noptions; i++) {
		const struct dtp_option *o = &dtp_options[i];
		if (!(o->commands & commands))
			continue;
		dtp_each_word(o->name, match_name, &w);
		if (!w.found)
			dtp_each_word(o->aliases, match_name, &w);
		if (w.found)
			return o;
	}
	return NULL;
}

/* The spellings of one command's options as getopt_long wants them. */
struct spellings {
	struct option longs[MAX_LONG + 1];
	char names[MAX_LONG][40];
	char letters[2 * 64 + 3];
	int n, option;
};

static bool add_spelling(void *arg, const char *word, size_t len)
{
	struct spellings *s = arg;

	if (s->n == MAX_LONG || len >= sizeof s->names[0])
		return false; /* dtp_options_check refuses such a table */
	snprintf(s->names[s->n], sizeof s->names[0], "%.*s", (int)len, word);
	s->longs[s->n] = (struct option){
		.name = s->names[s->n],
		.has_arg = dtp_options[s->option].kind == DTP_OPT_SWITCH ? optional_argument : required_argument,
		.val = FIRST_LONG + s->option,
	};
	s->n++;
	return true;
}

static void make_spellings(unsigned command, struct spellings *s)
{
	char *l = s->letters;

	memset(s, 0, sizeof *s);
	/* Options end at the first word that is none, or words are handed over in their place. */
	*l++ = dtp_command_words((enum dtp_command_bit)command) ? '-' : '+';
	*l++ = ':'; /* a missing value is told apart from an unknown option */
	for (s->option = 0; s->option < dtp_noptions; s->option++) {
		const struct dtp_option *o = &dtp_options[s->option];
		if (!(o->commands & command))
			continue;
		dtp_each_word(o->name, add_spelling, s);
		dtp_each_word(o->aliases, add_spelling, s);
		if (o->letter) {
			*l++ = o->letter;
			if (o->kind != DTP_OPT_SWITCH)
				*l++ = ':';
		}
	}
}

/* The row that getopt's value means; NULL for none. */
static const struct dtp_option *row_of(int value)
{
	if (value >= FIRST_LONG)
		return &dtp_options[value - FIRST_LONG];
	for (int i = 0; value && i < dtp_noptions; i++)
		if (dtp_options[i].letter == value)
			return &dtp_options[i];
	return NULL;
}

/* Underscores of an option's name become dashes, up to the '='.  typed keeps the word for messages. */
static void normalise(char *word, char *typed, size_t size)
{
	size_t n = strcspn(word, "=");

	n = n < size ? n : size - 1;
	memcpy(typed, word, n);
	typed[n] = '\0';
	if (strncmp(word, "--", 2))
		return;
	for (char *p = word + 2; *p && *p != '='; p++)
		if (*p == '_')
			*p = '-';
}

static enum dtp_code unknown_long(const struct spellings *s, const char *word, const char *typed, struct dtp_err *err)
{
	char name[64], list[256] = "";

	snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
	for (int i = 0; i < dtp_noptions; i++)
		if (!strcmp(dtp_options[i].name, name))
			return dtp_fail(err, DTP_REFUSED, "option '%s' is not one of this command's", typed);
	struct dtp_suggest near = dtp_suggest_begin(name);
	for (int i = 0; i < s->n; i++) {
		if (*name && !strncmp(s->names[i], name, strlen(name))) {
			size_t used = strlen(list);
			snprintf(list + used, sizeof list - used, "%s'--%s'", used ? ", " : "", s->names[i]);
		}
		dtp_suggest_try(&near, s->names[i]);
	}
	if (list[0])
		return dtp_fail(err, DTP_REFUSED, "option '%s' could be any of %s", typed, list);
	if (near.best[0])
		return dtp_fail(err, DTP_REFUSED, "unknown option '%s'; did you mean '--%s'?", typed, near.best);
	return dtp_fail(err, DTP_REFUSED, "unknown option '%s'", typed);
}

static enum dtp_code wrong_option(const struct spellings *s, int got, const char *word, const char *typed,
				  struct dtp_err *err)
{
	if (got == ':')
		return dtp_fail(err, DTP_REFUSED, "option '%s' needs a value", typed);
	if (optopt)
		return dtp_fail(err, DTP_REFUSED, "unknown option '-%c'", optopt);
	return unknown_long(s, word, typed, err);
}

/* A value that is another word and itself an option: the real value was forgotten. */
static bool is_option(const struct spellings *s, const char *word)
{
	if (strncmp(word, "--", 2))
		return false;
	for (int i = 0; i < s->n; i++) {
		size_t n = strlen(s->names[i]);
		if (!strncmp(word + 2, s->names[i], n) && (!word[2 + n] || word[2 + n] == '='))
			return true;
	}
	return false;
}

int dtp_command_words(enum dtp_command_bit command)
{
	return command == DTP_CMD_PLAN ? 2
		: command == DTP_CMD_INSPECT || command == DTP_CMD_UNSHARD || command == DTP_CMD_DECODE || command == DTP_CMD_COMPLETION ? 1 : 0;
}

static enum dtp_code add_word(enum dtp_command_bit command, const char *word, struct dtp_args *args, struct dtp_err *err)
{
	int most = dtp_command_words(command);

	if (!most)
		return dtp_fail(err, DTP_REFUSED,
				"unexpected argument '%s' (a prompt of several words needs quotes; a command comes first)", word);
	if (args->nwords == most)
		return dtp_fail(err, DTP_REFUSED, "unexpected argument '%s': at most %d %s taken here", word, most,
				most == 1 ? "is" : "are");
	args->word[args->nwords++] = word;
	return DTP_OK;
}

enum dtp_code dtp_args_parse(enum dtp_command_bit command, int argc, char **argv, struct dtp_args *args,
			     struct dtp_err *err)
{
	struct spellings s;
	char typed[64] = "";
	int got;

	*args = (struct dtp_args){.command = command, .tp_degree = 1, .dp_degree = 1, .ring_degree = 1, .ulysses_degree = 1,
		.repeat = 1, .guidance_scale = -1};
	make_spellings(command, &s);
	opterr = 0;
	optind = 0; /* glibc: begin anew, whatever a former call left */
	for (int at = 1;; at = optind) {
		if (at < argc)
			normalise(argv[at], typed, sizeof typed);
		got = getopt_long(argc, argv, s.letters, s.longs, NULL);
		if (got == -1)
			break;
		if (got == 1) { /* a word in its place */
			if (add_word(command, optarg, args, err))
				return err->code;
			continue;
		}
		if (got == '?' || got == ':')
			return wrong_option(&s, got, at < argc ? argv[at] : "", typed, err);
		const struct dtp_option *o = row_of(got);
		if (o->kind != DTP_OPT_SWITCH && optarg == argv[optind - 1] && is_option(&s, optarg))
			return dtp_fail(err, DTP_REFUSED, "option '%s' needs a value, but the option '%s' follows", typed,
					optarg);
		if (dtp_args_set(args, o, optarg, err))
			return err->code;
	}
	for (; optind < argc; optind++)
		if (add_word(command, argv[optind], args, err))
			return err->code;
	return DTP_OK;
}

/* ---- the table's own check */

struct seen {
	char names[4 * MAX_LONG][40];
	int n;
	struct dtp_err *err;
};

static bool unique_name(void *arg, const char *word, size_t len)
{
	struct seen *s = arg;

	for (int i = 0; i < s->n; i++)
		if (strlen(s->names[i]) == len && !memcmp(s->names[i], word, len)) {
			dtp_fail(s->err, DTP_FAILED, "option '--%.*s' stands twice in the table", (int)len, word);
			return false;
		}
	if (len >= sizeof s->names[0] || s->n == MAX_LONG || memchr(word, '_', len)) {
		dtp_fail(s->err, DTP_FAILED, "option '--%.*s': too long, one too many, or with '_'", (int)len, word);
		return false;
	}
	snprintf(s->names[s->n++], sizeof s->names[0], "%.*s", (int)len, word);
	return true;
}

static enum dtp_code check_row(const struct dtp_option *o, struct dtp_err *err)
{
	size_t text = o->text ? strlen(o->text) : 0;
	bool number = o->kind == DTP_OPT_INT || o->kind == DTP_OPT_FLOAT || o->kind == DTP_OPT_LIST;
	bool valued = o->kind != DTP_OPT_SWITCH && o->kind != DTP_OPT_CHOICE;

	if (!text || o->text[text - 1] == '.')
		return dtp_fail(err, DTP_FAILED, "option '--%s': help is missing, or ends with a full stop", o->name);
	if (!o->commands || o->offset >= sizeof(struct dtp_args) || o->group >= DTP_NGROUPS)
		return dtp_fail(err, DTP_FAILED, "option '--%s': no command, place or group", o->name);
	if (valued != (o->value != NULL) || (o->kind == DTP_OPT_CHOICE) != (o->choices != NULL) ||
	    number != (o->min < o->max) || (o->kind == DTP_OPT_LIST && o->max > DTP_MAX_LIST))
		return dtp_fail(err, DTP_FAILED, "option '--%s': value, choices or range do not fit its kind", o->name);
	for (const struct dtp_option *p = dtp_options; p < o; p++)
		if (p->offset == o->offset || (o->letter && p->letter == o->letter))
			return dtp_fail(err, DTP_FAILED, "options '--%s' and '--%s' share a place or a letter", p->name,
					o->name);
	return DTP_OK;
}

enum dtp_code dtp_options_check(struct dtp_err *err)
{
	struct seen s = {.err = err};

	if (dtp_noptions > DTP_MAX_OPTIONS)
		return dtp_fail(err, DTP_FAILED, "%d options in the table, at most %d fit", dtp_noptions, (int)DTP_MAX_OPTIONS);
	err->code = DTP_OK;
	for (int i = 0; i < dtp_noptions && !err->code; i++) {
		if (check_row(&dtp_options[i], err))
			return err->code;
		dtp_each_word(dtp_options[i].name, unique_name, &s);
		if (!err->code)
			dtp_each_word(dtp_options[i].aliases, unique_name, &s);
	}
	return err->code;
}
