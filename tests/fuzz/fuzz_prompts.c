/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a line of --prompts: refused with a message, or a prompt that is UTF-8 with options within their ranges and
 * an output that stays in its folder. */
#include "line.h"
#include "ranges.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_output(const char *output)
{
	char padded[4096];

	if (!*output || *output == '/')
		abort();
	if (snprintf(padded, sizeof padded, "/%s/", output) < (int)sizeof padded && strstr(padded, "/../"))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct dtp_args defaults = {.tp_degree = 1, .guidance_scale = -1, .output = "folder"};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_line line;
	enum dtp_code code;

	if (memchr(data, '\n', size))
		return 0;
	code = dtp_line_parse((const char *)data, size, &defaults, &line, &err);
	if (code ? code != DTP_REFUSED || err.code != code || !err.message[0] : !line.args.prompt)
		abort();
	if (!code) {
		if (dtp_utf8_valid(line.args.prompt, strlen(line.args.prompt)) != strlen(line.args.prompt))
			abort();
		if (line.has_output != (line.args.output != NULL))
			abort();
		if (line.has_output)
			check_output(line.args.output);
	}
	check_ranges(&line.args, DTP_CMD_LINE);
	dtp_line_free(&line);
	return 0;
}
