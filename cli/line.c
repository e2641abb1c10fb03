/* SPDX-License-Identifier: Apache-2.0 */
#include "line.h"

#include "naming.h"
#include "record.h"
#include "suggest.h"
#include "utf8.h"
#include "values.h"

#include <stdlib.h>
#include <string.h>

bool dtp_line_is_blank(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!strchr(" \t\r\v\f", text[i]) || !text[i])
			return false;
	return true;
}

/* ---- JSON */

/* The parser's "FILE:1:COLUMN: what", in a line of its own. */
static enum dtp_code shorten(struct dtp_err *err)
{
	char *m = err->message;
	long column;
	int n = 0;

	if (sscanf(m, ":1:%ld: %n", &column, &n) == 1 && n) {
		memmove(m, m + n, strlen(m + n) + 1);
		return dtp_err_prefix(err, "column %ld of an object (the line begins with '{'): ", column);
	}
	if (!strncmp(m, ": ", 2))
		memmove(m, m + 2, strlen(m + 2) + 1);
	return err->code;
}

static enum dtp_code unknown(const char *key, const struct dtp_suggest *near, struct dtp_err *err)
{
	char hint[300];

	return dtp_fail(err, DTP_REFUSED, "'%.64s' is no key of a line%s", key, dtp_suggest_text(near, hint, sizeof hint));
}

static enum dtp_code take_key(struct dtp_line *line, const cJSON *v, struct dtp_err *err)
{
	struct dtp_suggest near;
	const struct dtp_option *o = dtp_option_find(DTP_CMD_LINE, v->string, &near);

	return o ? dtp_value_take(o, v, &line->args, err) : unknown(v->string, &near, err);
}

/* Two spellings of one option would be one key twice. */
static enum dtp_code take_keys(struct dtp_line *line, struct dtp_err *err)
{
	enum dtp_code first = DTP_OK;
	struct dtp_err ignored;
	const cJSON *v;

	line->args.given = 0;
	cJSON_ArrayForEach(v, line->doc.root) {
		struct dtp_suggest near;
		const struct dtp_option *o = dtp_option_find(DTP_CMD_LINE, v->string, &near);
		/* The rest is read behind an error too: it may say how many images the line stands for. */
		struct dtp_err *to = first ? &ignored : err;
		enum dtp_code code = o && dtp_args_given(&line->args, o->offset)
			? dtp_fail(to, DTP_REFUSED, "'%.64s' says again what another key says", v->string)
			: take_key(line, v, to);
		first = first ? first : code;
	}
	return first;
}

static enum dtp_code parse_object(const char *text, size_t len, struct dtp_line *line, struct dtp_err *err)
{
	dtp_option_set given = line->args.given;

	if (dtp_json_parse("", text, len, &line->doc, err))
		return shorten(err);
	enum dtp_code code = take_keys(line, err);
	line->has_seed = DTP_GIVEN(&line->args, seed);
	line->has_output = DTP_GIVEN(&line->args, output);
	if (!code && !DTP_GIVEN(&line->args, prompt))
		code = dtp_fail(err, DTP_REFUSED, "the key 'prompt' is missing");
	line->args.given |= given;
	if (!code && line->has_output)
		code = dtp_line_check_output(line->args.output, err);
	if (!code && line->has_output)
		code = dtp_name_check(line->args.output, err);
	return code;
}

/* ---- */

enum dtp_code dtp_line_parse(const char *text, size_t len, const struct dtp_args *defaults, struct dtp_line *line,
			     struct dtp_err *err)
{
	size_t blanks = 0, bad;

	*line = (struct dtp_line){.args = *defaults};
	line->args.output = NULL; /* the command line's is the folder */
	while (len && text[len - 1] == '\r')
		len--;
	if (len > DTP_LINE_MAX)
		return dtp_fail(err, DTP_REFUSED, "the line has %zu bytes, at most %u are taken", len, DTP_LINE_MAX);
	if ((bad = dtp_utf8_valid(text, len)) < len)
		return dtp_fail(err, DTP_REFUSED, "byte 0x%02x at offset %zu is not valid UTF-8", (unsigned char)text[bad], bad);
	if (memchr(text, '\0', len))
		return dtp_fail(err, DTP_REFUSED, "the byte 0 at offset %zu cannot be in a prompt",
				(size_t)((const char *)memchr(text, '\0', len) - text));
	while (blanks < len && (text[blanks] == ' ' || text[blanks] == '\t'))
		blanks++;
	if (blanks < len && text[blanks] == '{')
		return parse_object(text, len, line, err);
	line->text = strndup(text, len);
	if (!line->text)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	line->args.prompt = line->text;
	return DTP_OK;
}

void dtp_line_free(struct dtp_line *line)
{
	free(line->text);
	dtp_json_free(&line->doc);
	*line = (struct dtp_line){0};
}

enum dtp_code dtp_line_check_output(const char *output, struct dtp_err *err)
{
	for (const char *part = output; ; part++) {
		size_t n = strcspn(part, "/");
		if (!n || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
			return dtp_fail(err, DTP_REFUSED,
					"output '%s' would leave its folder or names none: give a relative name without '.', '..' and '//'",
					output);
		part += n;
		if (!*part)
			break;
	}
	if (!strcmp(output, DTP_RECORD_NAME))
		return dtp_fail(err, DTP_REFUSED, "output '%s' is the name of the record", output);
	return DTP_OK;
}
