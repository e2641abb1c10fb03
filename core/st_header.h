/* SPDX-License-Identifier: Apache-2.0 */
/* The header of one safetensors file: what core/safetensors.c is made of. */
#ifndef DTP_ST_HEADER_H
#define DTP_ST_HEADER_H

#include "json.h"
#include "safetensors.h"

#define DTP_ST_MAX_HEADER 100000000u /* as the reference implementation: 100 MB */

/* Checks the header text of a file of `size` bytes whose data begins at byte 8 + len, and returns its entries, numbered as
 * file `file`.  *entries is malloc'd, sorted by name (NULL when *n is 0); dtp_st_entries_free frees it. */
enum dtp_code dtp_st_header_parse(const char *path, const char *text, size_t len, uint64_t size, int file,
				  struct dtp_st_entry **entries, int *n, struct dtp_err *err);
/* Reads the header's text of an open file: checks its length against the limit and the file.  *text is malloc'd. */
enum dtp_code dtp_st_header_read(const struct dtp_st_file *f, char **text, size_t *len, struct dtp_err *err);
/* The head of a file that holds these entries in this order, its 8-byte length included, padded so that the data begins at a
 * multiple of 8; name, dtype_name, shape and nbytes count.  malloc'd, NULL when out of memory. */
char *dtp_st_header_make(const struct dtp_st_entry *entries, int n, const char *const (*metadata)[2], int nmeta, size_t *len);
void dtp_st_entries_free(struct dtp_st_entry *entries, int n);
#endif
