/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A file of this header and so many bytes of data (0, 1, 2, ...); the path is one of 4 static buffers. */
static const char *make_file(const char *name, const char *header, size_t data)
{
	static char paths[4][700];
	static int turn;
	char *path = paths[turn++ % 4];
	size_t n = strlen(header);
	unsigned char *b = malloc(8 + n + data);

	for (int i = 0; i < 8; i++)
		b[i] = (unsigned char)((uint64_t)n >> 8 * i);
	memcpy(b + 8, header, n);
	for (size_t i = 0; i < data; i++)
		b[8 + n + i] = (unsigned char)i;
	snprintf(path, sizeof paths[0], "%s/%s", temp_dir(), name);
	write_file(path, b, 8 + n + data);
	free(b);
	return path;
}

static const char *fresh_folder(void)
{
	static char dir[600];
	static int n;
	snprintf(dir, sizeof dir, "%s/d%d", temp_dir(), n++);
	assert_int_equal(mkdir(dir, 0777), 0);
	return dir + strlen(temp_dir()) + 1;
}

static void st_header_refused(void **state)
{
#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
	static const struct {
		const char *header;
		size_t data;
		const char *message;
	} cases[] = {
		{"", 0, "no safetensors file"},
		{" {}", 0, "no safetensors file"},
		{"[]", 0, "no safetensors file"},
		{"{\"a\":", 0, "bad.safetensors:1:6: malformed JSON"},
		{"{\"a\":1}", 0, "tensor 'a': expected an object"},
		{"{\"a\":" T("F32", "[2]", "[0,8]") ",\"a\":" T("F32", "[2]", "[8,16]") "}", 16, "'a' occurs twice"},
		{"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor 'a': no 'dtype'"},
		{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "tensor 'a': no 'shape'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "tensor 'a': no 'data_offsets'"},
		{"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor 'a': no 'dtype'"},
		{"{\"a\":" T("Q4_K", "[2]", "[0,8]") "}", 8, "tensor 'a' has the unknown dtype 'Q4_K'"},
		{"{\"a\":" T("f32", "[2]", "[0,8]") "}", 8, "unknown dtype 'f32'"},
		{"{\"a\":" T("F32", "[3]", "[0,8]") "}", 8, "has 8 bytes of data, its shape and dtype F32 need 12"},
		{"{\"a\":" T("F32", "[]", "[0,8]") "}", 8, "has 8 bytes of data, its shape and dtype F32 need 4"},
		{"{\"a\":" T("F8_E4M3", "[3]", "[0,8]") "}", 8, "dtype F8_E4M3 need 3"},
		{"{\"a\":" T("F4", "[3]", "[0,2]") "}", 2, "whole bytes"},
		{"{\"a\":" T("F32", "[-2]", "[0,8]") "}", 8, "dimension 0 of its shape"},
		{"{\"a\":" T("F32", "[1,1.5]", "[0,8]") "}", 8, "dimension 1 of its shape"},
		{"{\"a\":" T("F32", "[1e300]", "[0,8]") "}", 8, "dimension 0 of its shape"},
		{"{\"a\":" T("F32", "[1e999]", "[0,8]") "}", 8, "dimension 0 of its shape"},
		{"{\"a\":" T("F32", "[\"2\"]", "[0,8]") "}", 8, "dimension 0 of its shape"},
		{"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,8]") "}", 8, "product of its shape is too large"},
		{"{\"a\":" T("F32", "[4294967296,536870912]", "[0,0]") "}", 0, "product of its shape is too large"},
		{"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "has 9 dimensions, at most 8"},
		{"{\"a\":" T("F32", "[2]", "[8,0]") "}", 8, "begins at 8 and ends before, at 0"},
		{"{\"a\":" T("F32", "[2]", "[0]") "}", 8, "no 'data_offsets'"},
		{"{\"a\":" T("F32", "[2]", "[0,8,8]") "}", 8, "no 'data_offsets'"},
		{"{\"a\":" T("F32", "[2]", "[0.5,8.5]") "}", 9, "data_offsets are no whole numbers"},
		{"{\"a\":" T("F32", "[2]", "[-8,0]") "}", 9, "data_offsets are no whole numbers"},
		{"{\"a\":" T("F32", "[2]", "[1e999,1e999]") "}", 9, "data_offsets are no whole numbers"},
		{"{\"a\":" T("U8", "[8]", "[18446744073709551608,18446744073709551616]") "}", 8, "no whole numbers"},
		{"{\"a\":" T("U8", "[8]", "[9007199254740985,9007199254740993]") "}", 8, "no whole numbers below 2^53"},
		{"{\"a\":" T("U8", "[8]", "[9007199254740983,9007199254740991]") "}", 8, "is truncated: it has 99 bytes, tensor "
		 "'a' needs 9007199254741082"},
		{"{\"a\":" T("F32", "[2]", "[0,8]") "}", 7, "is truncated: it has 69 bytes, tensor 'a' needs 70"},
		{"{\"a\":" T("F32", "[2]", "[0,8]") "}", 9, "has 71 bytes, its tensors end at byte 70"},
		{"{\"a\":" T("F32", "[2]", "[1,9]") "}", 9, "1 bytes before tensor 'a'"},
		{"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[8,12]") "}", 12, "4 bytes before tensor 'b'"},
		{"{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[1]", "[4,8]") "}", 8, "tensors 'a' and 'b' overlap"},
		{"{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[2]", "[0,8]") "}", 8, "overlap"},
		{"{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[0]", "[4,4]") "}", 8, "overlap"},
		{"{\"__metadata__\":7}", 0, "'__metadata__' is no object"},
		{"{\"__metadata__\":{\"k\":7}}", 0, "the value of 'k' in '__metadata__' is no string"},
	};
#undef T
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_st st;
		const char *path = make_file("bad.safetensors", cases[i].header, cases[i].data);
		if (dtp_st_open_file(path, &st, &err) == DTP_OK)
			fail_msg("accepted: %s", cases[i].header);
		assert_message(&err, DTP_REFUSED, "bad.safetensors", cases[i].message, NULL);
		assert_null(st.files);
		assert_null(st.entries);
	}
}

static void st_length_refused(void **state)
{
	static const struct {
		unsigned char b[10];
		size_t n;
		const char *message;
	} cases[] = {
		{{0}, 0, "it has 0 bytes, the length of the header alone needs 8"},
		{{2}, 7, "it has 7 bytes, the length of the header alone needs 8"},
		{{2, 0, 0, 0, 0, 0, 0, 0}, 8, "is truncated: it has 8 bytes, its header needs 10"},
		{{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "is truncated: it has 10 bytes, its header needs 11"},
		{{1, 0xe1, 0xf5, 5}, 10, "a header of 100000001 bytes, at most 100000000"},
		{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 10, "a header of 18446744073709551615 bytes"},
		{{'P', 'K', 3, 4, 0, 0, 8, 8}, 10, "is no safetensors file"},
	};
	char path[600];
	(void)state;
	snprintf(path, sizeof path, "%s/len.safetensors", temp_dir());
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_st st;
		write_file(path, cases[i].b, cases[i].n);
		assert_int_equal(dtp_st_open_file(path, &st, &err), DTP_REFUSED);
		assert_message(&err, DTP_REFUSED, path, cases[i].message, NULL);
	}
}

static void st_open_no_file(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st st;
	(void)state;
	assert_int_equal(dtp_st_open_file(temp_dir(), &st, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, temp_dir(), "is a folder", NULL);
	assert_int_equal(dtp_st_open_file("/dev/null", &st, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "/dev/null", "no regular file", NULL);
	assert_int_equal(dtp_st_open_file("/absent/x", &st, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "'/absent/x'", "No such file", NULL);
}

static void st_open_wellformed(void **state)
{
	static const char header[] =
		"{\"__metadata__\":{\"format\":\"pt\",\"class\":\"é\"},"
		"\"z\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20],\"extra\":1},"
		"\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
		"\"e\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[20,20]},"
		"\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[20,23]},"
		"\"p\":{\"dtype\":\"F4\",\"shape\":[2,1],\"data_offsets\":[23,24]}}   ";
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st st;
	(void)state;
	const char *path = make_file("good.safetensors", header, 24);
	if (dtp_st_open_file(path, &st, &err))
		fail_msg("%s", err.message);
	assert_int_equal(st.nentries, 5);
	assert_int_equal(st.files[0].header_bytes, 8 + strlen(header));
	const struct dtp_st_entry *z = dtp_st_find(&st, "z"), *s = dtp_st_find(&st, "s"), *q = dtp_st_find(&st, "q");
	assert_non_null(z);
	assert_non_null(dtp_st_find(&st, "e"));
	assert_null(dtp_st_find(&st, "a"));
	assert_null(dtp_st_find(&st, "zz"));
	assert_int_equal(z->dtype, DTP_BF16);
	assert_int_equal(z->ndim, 2);
	assert_int_equal(z->shape[1], 3);
	assert_int_equal(z->nbytes, 12);
	assert_int_equal(z->offset, 8 + strlen(header) + 8);
	assert_int_equal(s->ndim, 0);
	assert_int_equal(s->dtype, DTP_I64);
	assert_int_equal(q->dtype, DTP_NO_DTYPE);
	assert_string_equal(q->dtype_name, "F8_E4M3");
	for (int i = 1; i < st.nentries; i++)
		assert_true(strcmp(st.entries[i - 1].name, st.entries[i].name) < 0);
	char *m = dtp_st_metadata(&st, "class");
	assert_string_equal(m, "é");
	free(m);
	assert_null(dtp_st_metadata(&st, "absent"));
	dtp_st_close(&st);
	path = make_file("empty.safetensors", "{}", 0);
	assert_int_equal(dtp_st_open_file(path, &st, &err), DTP_OK);
	assert_int_equal(st.nentries, 0);
	assert_null(dtp_st_find(&st, "a"));
	assert_null(dtp_st_metadata(&st, "a"));
	dtp_st_close(&st);
}

static void st_read_ranges(void **state)
{
	static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]},"
				     "\"b\":{\"dtype\":\"U8\",\"shape\":[50],\"data_offsets\":[100,150]}}";
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st st;
	unsigned char b[100];
	(void)state;
	const char *path = make_file("read.safetensors", header, 150);
	assert_int_equal(dtp_st_open_file(path, &st, &err), DTP_OK);
	const struct dtp_st_entry *e = dtp_st_find(&st, "b");
	assert_int_equal(dtp_st_read(&st, e, 7, 40, b, &err), DTP_OK);
	for (int i = 0; i < 40; i++)
		assert_int_equal(b[i], 107 + i);
	assert_int_equal(dtp_st_read(&st, e, 50, 0, b, &err), DTP_OK);
	assert_int_equal(dtp_st_read(&st, e, 10, 41, b, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, path, "'b'", NULL);
	assert_int_equal(dtp_st_read(&st, e, 51, 0, b, &err), DTP_FAILED);
	assert_int_equal(dtp_st_read(&st, e, UINT64_MAX, 2, b, &err), DTP_FAILED);

	/* The file shrinks, then has its size again but other bytes. */
	off_t size = (off_t)st.files[0].size;
	assert_int_equal(truncate(path, size - 20), 0);
	assert_int_equal(dtp_st_read(&st, e, 40, 10, b, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, path, "'b'", "bytes when it was opened", NULL);
	assert_int_equal(dtp_st_read(&st, e, 0, 10, b, &err), DTP_FAILED);
	assert_int_equal(truncate(path, size), 0);
	struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
	assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
	assert_int_equal(dtp_st_read(&st, e, 0, 10, b, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, path, "'b'", "modified", NULL);
	dtp_st_close(&st);
}

/* Two times that are the same in nanoseconds of 64 bits; a file in memory can have both. */
static void st_times_of_any_year(void **state)
{
	struct timespec first[2] = {{.tv_nsec = UTIME_OMIT}, {0}}, second[2] = {{.tv_nsec = UTIME_OMIT}, {18446744073, 709551616}};
	size_t len;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st st;
	char path[40], b[4];

	(void)state;
	char *file = read_file(make_file("times.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4), &len);
	int fd = memfd_create("times", MFD_CLOEXEC);
	assert_true(fd >= 0 && write(fd, file, len) == (ssize_t)len && !futimens(fd, first));
	free(file);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	assert_int_equal(dtp_st_open_file(path, &st, &err), DTP_OK);
	assert_int_equal(dtp_st_read(&st, &st.entries[0], 0, 4, b, &err), DTP_OK);
	assert_int_equal(futimens(fd, second), 0);
	assert_int_equal(dtp_st_read(&st, &st.entries[0], 0, 4, b, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "modified", NULL);
	dtp_st_close(&st);
	close(fd);
}

#define A4 "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"

/* A folder with the shards 1 (a, b) and 2 (c), and this index. */
static enum dtp_code open_shards(const char *index, struct dtp_st *st, struct dtp_err *err, const char *second)
{
	char name[900], dir[700];
	const char *d = fresh_folder();
	snprintf(name, sizeof name, "%s/m-1.safetensors", d);
	make_file(name, "{\"b\":" A4 ",\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}", 6);
	snprintf(name, sizeof name, "%s/m-2.safetensors", d);
	make_file(name, second, 4);
	snprintf(dir, sizeof dir, "%s/%s", temp_dir(), d);
	snprintf(name, sizeof name, "%s/m.safetensors.index.json", dir);
	write_file(name, index, strlen(index));
	*err = (struct dtp_err)DTP_ERR_INIT;
	return dtp_st_open(dir, "m", st, err);
}

static void st_index_refused(void **state)
{
#define MAP(s) "{\"metadata\":{\"total_size\":10},\"weight_map\":{" s "}}"
#define A "\"a\":\"m-1.safetensors\""
#define B "\"b\":\"m-1.safetensors\""
#define C "\"c\":\"m-2.safetensors\""
	static const struct {
		const char *index, *message[4];
	} cases[] = {
		{"{", {"m.safetensors.index.json:1:2: malformed JSON"}},
		{"{}", {"m.safetensors.index.json", "no 'weight_map'"}},
		{MAP(""), {"no 'weight_map'"}},
		{MAP(A "," B "," "\"c\":5"), {"gives no file name for tensor 'c'"}},
		{MAP(A "," B "," "\"c\":\"m-3.safetensors\""), {"names the shard 'm-3.safetensors'", "'c'", "missing"}},
		{MAP(A "," B "," "\"c\":\"../m-2.safetensors\""), {"'../m-2.safetensors'", "'c'", "same folder"}},
		{MAP(A "," B "," "\"c\":\"/etc/passwd\""), {"'/etc/passwd'", "'c'"}},
		{MAP(A "," B "," "\"c\":\"..\""), {"'..'"}},
		{MAP(A "," B "," "\"c\":\"\""), {"''", "'c'"}},
		{MAP(A "," C), {"m-1.safetensors' holds tensor 'b'", "index.json' does not list"}},
		{MAP(A "," B "," C ",\"d\":\"m-2.safetensors\""), {"'m-2.safetensors' for tensor 'd'", "lacks"}},
		{MAP("\"a\":\"m-2.safetensors\"," B "," C), {"names 'm-2.safetensors' for tensor 'a'", "is in '", "m-1"}},
		{MAP(A "," A "," B "," C), {"'a' occurs twice"}},
	};
	struct dtp_err err;
	struct dtp_st st;
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (open_shards(cases[i].index, &st, &err, "{\"c\":" A4 "}") == DTP_OK)
			fail_msg("accepted: %s", cases[i].index);
		for (int j = 0; j < 4 && cases[i].message[j]; j++)
			assert_message(&err, DTP_REFUSED, cases[i].message[j], NULL);
		assert_null(st.files);
	}
	assert_int_equal(open_shards(MAP(A "," B "," C), &st, &err, "{\"a\":" A4 "}"), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "tensor 'a' is in two shards", "m-1.safetensors", "m-2.safetensors", NULL);
	assert_int_equal(open_shards(MAP(A "," B "," C), &st, &err, "{\"c\":" A4), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "m-2.safetensors", "malformed JSON", NULL);

	assert_int_equal(open_shards(MAP(A "," B "," C), &st, &err, "{\"c\":" A4 "}"), DTP_OK);
	assert_int_equal(st.nfiles, 2);
	assert_int_equal(st.nentries, 3);
	unsigned char b[2];
	assert_int_equal(dtp_st_read(&st, dtp_st_find(&st, "a"), 0, 2, b, &err), DTP_OK);
	assert_int_equal(b[1], 5);
	dtp_st_close(&st);
}

static void st_open_folder(void **state)
{
	char dir[700], name[900];
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st st;
	(void)state;
	const char *d = fresh_folder();
	snprintf(dir, sizeof dir, "%s/%s", temp_dir(), d);
	assert_int_equal(dtp_st_open(dir, "model", &st, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, dir, "'model.safetensors'", "'model.safetensors.index.json'", NULL);
	assert_null(strstr(err.message, "it has"));
	snprintf(name, sizeof name, "%s/pytorch_model.bin", dir);
	write_file(name, "x", 1);
	snprintf(name, sizeof name, "%s/flux.gguf", dir);
	write_file(name, "x", 1);
	assert_int_equal(dtp_st_open(dir, "model", &st, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, dir, "'pytorch_model.bin'", "'flux.gguf'", "safetensors", NULL);
	snprintf(name, sizeof name, "%s/model.safetensors", dir);
	assert_int_equal(symlink("/absent/blob", name), 0);
	assert_int_equal(dtp_st_open(dir, "model", &st, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "model.safetensors': it is a link to '/absent/blob', which is not there", NULL);
	snprintf(dir, sizeof dir, "%s/absent", temp_dir());
	assert_int_equal(dtp_st_open(dir, "model", &st, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "folder", dir, "No such file", NULL);
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The fixtures open, and every byte of a file belongs to its header or to a tensor. */
static void st_open_fixtures(void **state)
{
	static const char *const parts[][3] = {
		{"klein-tiny", "transformer", "diffusion_pytorch_model"},
		{"klein-tiny", "text_encoder", "model"},
		{"klein-tiny", "vae", "diffusion_pytorch_model"},
		{"klein-tiny-sharded", "transformer", "diffusion_pytorch_model"},
		{"klein-tiny-sharded", "text_encoder", "model"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_st st;
		uint64_t bytes = 0, size = 0;
		if (dtp_st_open(fixture("models/%s/%s", parts[i][0], parts[i][1]), parts[i][2], &st, &err))
			fail_msg("%s", err.message);
		for (int j = 0; j < st.nentries; j++)
			bytes += st.entries[j].nbytes;
		for (int j = 0; j < st.nfiles; j++)
			size += st.files[j].size - st.files[j].header_bytes;
		assert_true(st.nentries > 10);
		assert_true(bytes == size);
		assert_true((st.nfiles > 1) == (strstr(parts[i][0], "sharded") != NULL));
		for (int j = 0; j < st.nentries; j++)
			assert_ptr_equal(dtp_st_find(&st, st.entries[j].name), &st.entries[j]);
		dtp_st_close(&st);
	}
}

/* Time grows with the header, not with its square: 20,000 tensors, ten times what a real model has. */
static void st_open_large_header(void **state)
{
	enum { N = 20000 };
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st st;
	char *h = malloc(N * 128), *p = h;
	(void)state;
	*p++ = '{';
	for (int i = 0; i < N; i++)
		p += sprintf(p, "%s\"transformer_blocks.%d.attn.to_q.weight\":{\"dtype\":\"BF16\",\"shape\":[1,2],"
			     "\"data_offsets\":[%d,%d]}", i ? "," : "", (i * 7919) % N, 4 * i, 4 * i + 4);
	strcpy(p, "}");
	const char *path = make_file("large.safetensors", h, 4 * N);
	double t = seconds();
	assert_int_equal(dtp_st_open_file(path, &st, &err), DTP_OK);
	t = seconds() - t;
	assert_int_equal(st.nentries, N);
	assert_true(t < 2);
	dtp_st_close(&st);
	free(h);
}

/* What is written is read again, in the reference's order and alignment. */
static void st_write_round_trip(void **state)
{
	static float f[6] = {1, -2, 3.5f, 0, 5, 6};
	static uint16_t h[3] = {0x3f80, 1, 0xffff};
	static uint8_t u[5] = {1, 2, 3, 4, 5};
	static int64_t scalar = 1234567890123456789;
	static const char *const meta[][2] = {{"class", "A\"b\\é\n"}, {"seed", "42"}};
	const struct dtp_st_out out[] = {
		{"u", dtp_tensor_make(u, DTP_U8, 1, (const int64_t[]){5})},
		{"z", dtp_tensor_make(f, DTP_F32, 2, (const int64_t[]){2, 3})},
		{"h", dtp_tensor_make(h, DTP_BF16, 3, (const int64_t[]){1, 3, 1})},
		{"a\"ä", dtp_tensor_make(f, DTP_F32, 4, (const int64_t[]){1, 1, 1, 2})},
		{"s", dtp_tensor_make(&scalar, DTP_I64, 0, NULL)},
		{"e", dtp_tensor_make(NULL, DTP_F32, 2, (const int64_t[]){0, 7})},
	};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st st;
	char path[600];
	(void)state;
	snprintf(path, sizeof path, "%s/out.safetensors", temp_dir());
	if (dtp_st_write(path, NULL, out, 6, meta, 2, &err) || dtp_st_open_file(path, &st, &err))
		fail_msg("%s", err.message);
	assert_int_equal(st.nentries, 6);
	assert_int_equal(st.files[0].header_bytes % 8, 0);
	for (int i = 0; i < 6; i++) {
		const struct dtp_st_entry *e = dtp_st_find(&st, out[i].name);
		const struct dtp_tensor *t = &out[i].tensor;
		unsigned char b[64];
		assert_non_null(e);
		assert_int_equal(e->dtype, t->dtype);
		assert_int_equal(e->ndim, t->ndim);
		for (int d = 0; d < t->ndim; d++)
			assert_int_equal(e->shape[d], t->shape[d]);
		assert_int_equal(e->nbytes, (uint64_t)dtp_numel(t) * dtp_dtype_size(t->dtype));
		assert_int_equal(e->offset % dtp_dtype_size(t->dtype), 0);
		assert_int_equal(dtp_st_read(&st, e, 0, e->nbytes, b, &err), DTP_OK);
		if (e->nbytes)
			assert_memory_equal(b, t->data, e->nbytes);
	}
	char *c = dtp_st_metadata(&st, "class"), *seed = dtp_st_metadata(&st, "seed");
	assert_string_equal(c, meta[0][1]);
	assert_string_equal(seed, "42");
	free(c);
	free(seed);
	dtp_st_close(&st);

	assert_int_equal(dtp_st_write(path, NULL, NULL, 0, NULL, 0, &err), DTP_OK);
	assert_int_equal(dtp_st_open_file(path, &st, &err), DTP_OK);
	assert_int_equal(st.nentries, 0);
	dtp_st_close(&st);
}

static void st_write_refused(void **state)
{
	static float f[4];
	const int64_t shape[] = {2, 2};
	struct dtp_tensor t = dtp_tensor_make(f, DTP_F32, 2, shape), gap = dtp_narrow(t, 1, 0, 1), none = t;
	none.dtype = DTP_NO_DTYPE;
	const struct dtp_st_out twice[] = {{"a", t}, {"a", t}}, strided[] = {{"a", gap}}, untyped[] = {{"a", none}},
				reserved[] = {{"__metadata__", t}}, latin1[] = {{"\xe4", t}}, good[] = {{"a", t}};
	const struct {
		const struct dtp_st_out *t;
		int n;
		const char *message;
	} cases[] = {
		{twice, 2, "twice"}, {strided, 1, "not dense"}, {untyped, 1, "no dtype"}, {reserved, 1, "__metadata__"},
		{latin1, 1, "UTF-8"},
	};
	struct dtp_err err = DTP_ERR_INIT;
	char path[600];
	(void)state;
	snprintf(path, sizeof path, "%s/refused.safetensors", temp_dir());
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(dtp_st_write(path, NULL, cases[i].t, cases[i].n, NULL, 0, &err), DTP_FAILED);
		assert_message(&err, DTP_FAILED, path, cases[i].message, NULL);
		assert_int_equal(access(path, F_OK), -1);
	}
	assert_int_equal(dtp_st_write("/absent/a.safetensors", NULL, good, 1, NULL, 0, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "'/absent'", NULL);
	assert_int_equal(dtp_st_write("/dev/full", NULL, good, 1, NULL, 0, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "'/dev/full'", "No space left", NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(st_header_refused),  cmocka_unit_test(st_length_refused),
		cmocka_unit_test(st_open_no_file),    cmocka_unit_test(st_open_wellformed),
		cmocka_unit_test(st_read_ranges), cmocka_unit_test(st_times_of_any_year),     cmocka_unit_test(st_index_refused),
		cmocka_unit_test(st_open_folder),     cmocka_unit_test(st_open_fixtures),
		cmocka_unit_test(st_open_large_header), cmocka_unit_test(st_write_round_trip),
		cmocka_unit_test(st_write_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
