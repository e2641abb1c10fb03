/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "text.h"

int main(int argc, char **argv)
{
	struct dtp_err err = DTP_ERR_INIT;
	enum dtp_code code = dtp_commands_main(argc, argv, &err);

	if (err.code != DTP_OK) {
		fputs("difftp: ", stderr);
		dtp_write_text(stderr, err.message);
		fputc('\n', stderr);
	}
	if ((fflush(stdout) || ferror(stdout)) && code == DTP_OK) {
		perror("difftp: standard output");
		code = DTP_FAILED;
	}
	return code;
}
