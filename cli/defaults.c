/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever they come from, defaults become one text of lines "name = value"; it is applied here, and in the ranks. */
#include "defaults.h"

#include "control.h"
#include "exclude.h"
#include "infile.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FILE (1u << 20)
#define BLANK " \t\r\v\f"

void dtp_defaults_path(char *buf, size_t size)
{
	const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");

	buf[0] = '\0';
	if (config && config[0] == '/') /* others are to be ignored, says the XDG specification */
		snprintf(buf, size, "%s/difftp/config", config);
	else if (home && *home)
		snprintf(buf, size, "%s/.config/difftp/config", home);
}

/* ---- gathering */

struct gathering {
	const struct dtp_args *args;
	FILE *out;
	dtp_option_set environment, file; /* the options that have a value there */
	struct dtp_args tried;            /* all values so far, whether they count or not */
};

/* The size that a file of this run has. */
static bool has_its_size(const struct dtp_args *args)
{
	return args->images.n || args->latents || args->nwords;
}

/* Whether a default counts for what the command line asks for: a default never stands in the way of what was said there. */
static bool applies(const struct dtp_args *args, const struct dtp_option *o)
{
	bool size = o->offset == offsetof(struct dtp_args, height) || o->offset == offsetof(struct dtp_args, width);

	if (!(o->commands & (unsigned)args->command) || args->given & dtp_option_bit(o))
		return false;
	if (args->command == DTP_CMD_VERIFY && o->group == DTP_GROUP_PICTURE) /* its own are small, for a reason */
		return false;
	if (args->recall && o->commands & DTP_CMD_RECIPE) /* the picture is to be that of the record */
		return false;
	if (args->diff && o->offset == offsetof(struct dtp_args, model)) /* plans are compared by their keys */
		return false;
	if (args->prompt_embeds && dtp_embeds_exclude(o->offset))
		return false;
	if (args->synthetic && dtp_synthetic_excludes(o->offset))
		return false;
	if (o->offset == offsetof(struct dtp_args, reduce_dtype) && args->dtype == DTP_ARG_FP32) /* sums are no coarser than what is summed */
		return false;
	return !(size && has_its_size(args));
}

/* A value is checked whether it counts or not. */
static enum dtp_code offer(struct gathering *g, const struct dtp_option *o, const char *value, struct dtp_err *err)
{
	const char *home = getenv("HOME");
	bool path = o->kind == DTP_OPT_PATH || o->kind == DTP_OPT_LIST;

	if (dtp_args_preset(&g->tried, o, value, err))
		return err->code;
	if (g->environment & dtp_option_bit(o) || !applies(g->args, o))
		return DTP_OK;
	if (path && value[0] == '~' && value[1] == '/' && home) /* no shell has done it */
		fprintf(g->out, "%s=%s%s\n", o->name, home, value + 1);
	else
		fprintf(g->out, "%s=%s\n", o->name, value);
	return DTP_OK;
}

static enum dtp_code gather_environment(struct gathering *g, struct dtp_err *err)
{
	for (int i = 0; i < dtp_noptions; i++) {
		const struct dtp_option *o = &dtp_options[i];
		const char *value = o->env ? getenv(o->env) : NULL;
		if (!value || !*value)
			continue;
		if (strchr(value, '\n'))
			return dtp_fail(err, DTP_REFUSED, "environment variable '%s': the value has a line break", o->env);
		if (offer(g, o, value, err))
			return dtp_err_prefix(err, "environment variable '%s': ", o->env);
		g->environment |= dtp_option_bit(o);
	}
	return DTP_OK;
}

static char *trim(char *s)
{
	s += strspn(s, BLANK);
	for (size_t n = strlen(s); n && strchr(BLANK, s[n - 1]); n--)
		s[n - 1] = '\0';
	return s;
}

static enum dtp_code take_line(struct gathering *g, char *line, struct dtp_err *err)
{
	char *equals = strchr(line, '='), *name, *value, hint[300];
	struct dtp_suggest near;

	if (!equals)
		return dtp_fail(err, DTP_REFUSED, "'%.64s' has no '=': a line is 'option = value' (of a switch: yes or no)", line);
	*equals = '\0';
	name = trim(line);
	value = trim(equals + 1);
	if (!strncmp(name, "--", 2))
		name += 2;
	const struct dtp_option *o = dtp_option_find(~0u, name, &near);
	if (!o)
		return dtp_fail(err, DTP_REFUSED, "'%.64s' is no option%s", name, dtp_suggest_text(&near, hint, sizeof hint));
	if (o->run_only)
		return dtp_fail(err, DTP_REFUSED, "'%s' says what a single run is about: it has no default but belongs on the command line",
				o->name);
	if (g->file & dtp_option_bit(o) && o->kind != DTP_OPT_LIST)
		return dtp_fail(err, DTP_REFUSED, "'%s' has a value already, in a line above", o->name);
	g->file |= dtp_option_bit(o);
	return offer(g, o, value, err);
}

static enum dtp_code gather_file(struct gathering *g, struct dtp_err *err)
{
	char path[4096], *text, *next;
	size_t len;
	int number = 1;
	enum dtp_code code = DTP_OK;

	dtp_defaults_path(path, sizeof path);
	if (!*path || !dtp_path_exists(path))
		return DTP_OK;
	if (dtp_infile_read(path, "a file of defaults", MAX_FILE, &text, &len, err))
		return err->code;
	if (strlen(text) < len)
		code = dtp_fail(err, DTP_REFUSED, "'%s' is no text: it has a byte 0", path);
	for (char *line = text; !code && line; line = next, number++) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		line = trim(line);
		if (*line && *line != '#' && take_line(g, line, err))
			code = dtp_err_prefix(err, "%s:%d: ", path, number);
	}
	free(text);
	return code;
}

static enum dtp_code gather(const struct dtp_args *args, char **text, struct dtp_err *err)
{
	struct gathering g = {.args = args};
	size_t len;

	g.out = open_memstream(text, &len);
	if (!g.out)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	enum dtp_code code = gather_environment(&g, err);
	if (!code)
		code = gather_file(&g, err);
	if ((fclose(g.out) || setenv(DTP_ENV_DEFAULTS, *text, 1)) && !code)
		code = dtp_fail(err, DTP_FAILED, "out of memory");
	return code;
}

/* ---- applying */

static enum dtp_code apply(struct dtp_args *args, char *text, struct dtp_err *err)
{
	struct dtp_suggest near;

	for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
		char *equals = strchr(line, '=');
		*end = '\0';
		if (!equals || equals > end)
			return dtp_fail(err, DTP_REFUSED, "the variable '" DTP_ENV_DEFAULTS "' is not difftp's own");
		*equals = '\0';
		const struct dtp_option *o = dtp_option_find((unsigned)args->command, line, &near);
		if (o && dtp_args_preset(args, o, equals + 1, err))
			return err->code;
	}
	return DTP_OK;
}

/* Of help and the manual page there is nothing to have a default; they are there for whoever has broken the file. */
static bool takes_defaults(const struct dtp_args *args)
{
	for (int i = 0; i < dtp_noptions; i++)
		if (dtp_options[i].commands & (unsigned)args->command && !dtp_options[i].run_only)
			return !args->help && !args->version;
	return false;
}

enum dtp_code dtp_defaults_read(struct dtp_args *args, char **text, struct dtp_err *err)
{
	const char *decided = getenv(DTP_ENV_DEFAULTS);

	*text = NULL;
	if (!takes_defaults(args))
		return DTP_OK;
	if (!dtp_worker_is_rank()) {
		if (gather(args, text, err))
			return err->code;
	} else if (decided && !(*text = strdup(decided))) {
		return dtp_fail(err, DTP_FAILED, "out of memory");
	}
	return *text ? apply(args, *text, err) : DTP_OK;
}
