/* SPDX-License-Identifier: Apache-2.0 */
#include "err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum dtp_code dtp_fail(struct dtp_err *err, enum dtp_code code, const char *fmt, ...)
{
	if (err) {
		va_list ap;
		err->code = code;
		va_start(ap, fmt);
		vsnprintf(err->message, sizeof err->message, fmt, ap);
		va_end(ap);
	}
	return code;
}

enum dtp_code dtp_err_prefix(struct dtp_err *err, const char *fmt, ...)
{
	char head[sizeof err->message], tail[sizeof err->message];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(head, sizeof head, fmt, ap);
	va_end(ap);
	memcpy(tail, err->message, sizeof tail);
	/* Either part may be cut: a message has one fixed size. */
	size_t n = strlen(head);
	if (n > sizeof err->message - 1)
		n = sizeof err->message - 1;
	memcpy(err->message, head, n);
	size_t m = strnlen(tail, sizeof tail - 1);
	if (m > sizeof err->message - 1 - n)
		m = sizeof err->message - 1 - n;
	memcpy(err->message + n, tail, m);
	err->message[n + m] = '\0';
	return err->code;
}
