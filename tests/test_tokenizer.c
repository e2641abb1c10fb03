/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "tokenizer.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>

static struct dtp_tokenizer *open_fixture(const char *model)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *t;
	if (dtp_tokenizer_open(fixture("models/%s/tokenizer", model), &t, &err))
		fail_msg("%s", err.message);
	return t;
}

static void assert_ids(const cJSON *expected, const int32_t *ids, size_t n, const char *text)
{
	size_t i = 0;
	const cJSON *v;
	cJSON_ArrayForEach(v, expected) {
		if (i >= n || ids[i] != v->valueint)
			fail_msg("'%s': id %zu is %d, expected %d", text, i, i < n ? ids[i] : -1, v->valueint);
		i++;
	}
	if (i != n)
		fail_msg("'%s': %zu ids, expected %zu", text, n, i);
}

/* cJSON cuts a string at its first NUL: U+E123, which no vector holds, stands for it while the line is parsed. */
static void hide_nul(char *line)
{
	for (char *p = line; (p = strstr(p, "\\u0000"));)
		memcpy(p, "\\ue123", 6);
}

static size_t show_nul(char *text)
{
	size_t n = 0;
	for (size_t i = 0; text[i]; n++) {
		bool hidden = !memcmp(text + i, "\xee\x84\xa3", 3);
		text[n] = hidden ? '\0' : text[i];
		i += hidden ? 3 : 1;
	}
	return n;
}

/* Each line holds a text, its ids, and maybe the ids of the template around it (a prompt with NUL in it is none). */
static void check_vectors(const char *model, const char *file, enum dtp_template tpl, const char *key, int64_t max_length,
			  bool padded, int expected_templates)
{
	struct dtp_tokenizer *t = open_fixture(model);
	char *all = read_file(fixture("reference/%s", file), NULL), *save, *line;
	int lines = 0, templates = 0;

	for (line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_prompt p;
		int32_t *ids;
		size_t n;
		hide_nul(line);
		cJSON *v = cJSON_Parse(line);
		char *text = cJSON_GetStringValue(cJSON_GetObjectItem(v, "text"));
		assert_non_null(text);
		size_t len = show_nul(text);
		bool nul = memchr(text, '\0', len) != NULL;
		if (!nul)
			text[len] = '\0';
		if (dtp_tokenizer_encode(t, text, len, &ids, &n, &err))
			fail_msg("'%s': %s", text, err.message);
		assert_ids(cJSON_GetObjectItem(v, "ids"), ids, n, text);
		free(ids);
		const cJSON *wrapped = cJSON_GetObjectItem(v, key);
		if (wrapped && !nul) {
			if (dtp_prompt_make(t, tpl, NULL, text, max_length, &p, &err))
				fail_msg("'%s': %s", text, err.message);
			if (padded)
				assert_ids(wrapped, p.ids, (size_t)p.length, text);
			else
				assert_ids(wrapped, p.ids + p.begin, (size_t)(p.end - p.begin), text);
			dtp_prompt_free(&p);
			templates++;
		}
		cJSON_Delete(v);
	}
	assert_int_equal(lines, 418);
	assert_int_equal(templates, expected_templates);
	free(all);
	dtp_tokenizer_free(t);
}

static void tokenizer_vectors_qwen(void **state)
{
	(void)state;
	check_vectors("klein-tiny", "tokenizer_vectors.jsonl", DTP_TEMPLATE_QWEN3, "template_ids", 8192, false, 416);
}

static void tokenizer_vectors_merges_as_pairs(void **state)
{
	(void)state;
	check_vectors("klein-tiny-sharded", "tokenizer_vectors.jsonl", DTP_TEMPLATE_QWEN3, "template_ids", 8192, false, 416);
}

static void tokenizer_vectors_tekken(void **state)
{
	(void)state;
	check_vectors("dev-tiny", "tokenizer_vectors_dev.jsonl", DTP_TEMPLATE_MISTRAL, "template_ids_max256", 256, true, 104);
}

static void tokenizer_decode_inverts(void **state)
{
	(void)state;
	static const char text[] = "caf\xc3\xa9 <|im_end|> \xf0\x9f\xa6\x8a\n";
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *t = open_fixture("klein-tiny");
	int32_t *ids;
	size_t n;
	assert_int_equal(dtp_tokenizer_encode(t, text, sizeof text - 1, &ids, &n, &err), DTP_OK);
	char *back = dtp_tokenizer_decode(t, ids, n);
	assert_string_equal(back, text);
	free(back);
	free(ids);
	assert_int_equal(dtp_tokenizer_id(t, "<|im_end|>"), 1794);
	assert_int_equal(dtp_tokenizer_id(t, "no such token"), -1);
	assert_int_equal(dtp_tokenizer_pad_id(t), 1792);
	assert_int_equal(dtp_tokenizer_vocab(t), 1818);
	dtp_tokenizer_free(t);
}

static void tokenizer_refuses_bad_utf8(void **state)
{
	(void)state;
	static const struct {
		const char *text, *offset;
	} cases[] = {{"abc\xff", "0xff at offset 3"}, {"\xc3", "offset 0"}, {"x\xed\xa0\x80", "offset 1"}, {"\xc0\x80", "offset 0"},
		     {"ab\xf4\x90\x80\x80", "offset 2"}};
	struct dtp_tokenizer *t = open_fixture("klein-tiny");
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_prompt p;
		assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_QWEN3, NULL, cases[i].text, 64, &p, &err), DTP_REFUSED);
		assert_message(&err, DTP_REFUSED, "not valid UTF-8", cases[i].offset, NULL);
	}
	dtp_tokenizer_free(t);
}

static void prompt_pads_and_cuts(void **state)
{
	(void)state;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *t = open_fixture("klein-tiny");
	struct dtp_prompt p;

	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_QWEN3, NULL, "", 64, &p, &err), DTP_OK);
	assert_int_equal(p.begin, 0);
	assert_int_equal(p.end, 20);
	assert_null(p.cut);
	for (int64_t i = p.end; i < 64; i++)
		assert_int_equal(p.ids[i], 1792);
	dtp_prompt_free(&p);

	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_QWEN3, NULL, "a cat", 5, &p, &err), DTP_OK);
	assert_int_equal(p.end, 5);
	assert_non_null(p.cut);
	assert_non_null(strstr(p.cut, "<|im_end|>\n<|im_start|>assistant"));
	dtp_prompt_free(&p);
	dtp_tokenizer_free(t);
}

/* Words without end must not take quadratic time: each of these is a million bytes. */
static void tokenizer_long_words(void **state)
{
	(void)state;
	static const char *const units[] = {"a", " ", "\n", "\xf0\x9f\xa6\x8a", "e\xcc\x81", "<|im_start|>", "\xcc\x81"};
	struct dtp_tokenizer *t = open_fixture("klein-tiny");
	for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
		struct dtp_err err = DTP_ERR_INIT;
		size_t len = strlen(units[u]), total = 1000000 / len * len, n;
		char *text = malloc(total);
		int32_t *ids;
		for (size_t i = 0; i < total; i += len)
			memcpy(text + i, units[u], len);
		if (dtp_tokenizer_encode(t, text, total, &ids, &n, &err))
			fail_msg("%s", err.message);
		assert_in_range(n, 1, total);
		free(ids);
		free(text);
	}
	dtp_tokenizer_free(t);
}

static void tokenizer_nul_is_a_byte(void **state)
{
	(void)state;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *t = open_fixture("klein-tiny");
	int32_t *ids;
	size_t n;
	assert_int_equal(dtp_tokenizer_encode(t, "a\0b", 3, &ids, &n, &err), DTP_OK);
	assert_int_equal(n, 3);
	free(ids);
	dtp_tokenizer_free(t);
}

#define PRE "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"behavior\":" \
	    "\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"
#define MODEL(vocab, merges) "\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}"

static const struct {
	const char *json, *message;
} malformed[] = {
	{"{" PRE "," MODEL("\"a\":0,\"b\":1", "\"a b\"") "}", "merge 0 needs token 'ab', which the vocabulary lacks"},
	{"{" PRE "," MODEL("\"a\":0,\"ab\":1", "\"a b\"") "}", "merge 0 needs token 'b'"},
	{"{" PRE "," MODEL("\"a\":0", "\"ab\"") "}", "merge 0 is neither"},
	{"{" PRE "," MODEL("\"a\":0", "[\"a\"]") "}", "merge 0 is neither"},
	{"{" PRE "," MODEL("\"a\":0", "7") "}", "merge 0 is neither"},
	{"{" PRE "," MODEL("\"a\":0,\"b\":0", "") "}", "id 0 stands for two tokens, 'a' and 'b'"},
	{"{" PRE "," MODEL("\"a\":-1", "") "}", "token 'a' has id -1"},
	{"{" PRE "," MODEL("\"a\":0.5", "") "}", "token 'a' has id 0.5"},
	{"{" PRE "," MODEL("\"a\":99999999", "") "}", "token 'a' has id 1e+08"},
	{"{" PRE "," MODEL("\"a\":\"x\"", "") "}", "token 'a' has id"},
	{"{" PRE ",\"model\":{\"type\":\"WordPiece\"}}", "model 'WordPiece' is not supported, supported: BPE"},
	{"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"byte_fallback\":true}}", "byte_fallback 'true' is not supported"},
	{"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"unk_token\":\"u\"}}", "model option 'unk_token' is set"},
	{"{" PRE ",\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "model has no vocab"},
	{"{" PRE ",\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "model has no merges"},
	{"{\"normalizer\":{\"type\":\"Lowercase\"}," PRE "," MODEL("", "") "}", "normalizer 'Lowercase' is not supported"},
	{"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," MODEL("", "") "}", "pre_tokenizer 'Whitespace' is not supported"},
	{"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[]}," MODEL("", "") "}", "pre_tokenizer lacks ByteLevel"},
	{"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":"
	 "\"Isolated\"}]}}", "the pattern is not valid"},
	{"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
	 "\"Removed\"}]}}", "behavior 'Removed' is not supported"},
	{"{" PRE "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":0,\"content\":\"<x>\"}]}", "id 0 stands for two tokens"},
	{"{" PRE "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]}", "token 'a' has two ids, 0 and 1"},
	{"{" PRE "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":1}]}", "an added token has no content"},
	{"{", "malformed JSON"},
};

static void tokenizer_malformed(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_tokenizer *t;
		char path[600];
		snprintf(path, sizeof path, "%s/tokenizer.json", temp_dir());
		write_file(path, malformed[i].json, strlen(malformed[i].json));
		if (!dtp_tokenizer_open(temp_dir(), &t, &err))
			fail_msg("accepted: %s", malformed[i].json);
		assert_null(t);
		assert_message(&err, DTP_REFUSED, malformed[i].message, NULL);
	}
}

/* lstrip, rstrip, single_word and normalized, as the reference library treats them. */
static void tokenizer_added_flags(void **state)
{
	(void)state;
	static const char json[] =
		"{\"normalizer\":{\"type\":\"NFC\"}," PRE ","
		MODEL("\"a\":0,\"b\":1,\"\\u0120\":2,\"\\u00c3\":3,\"\\u00a9\":4", "")
		",\"added_tokens\":[{\"id\":10,\"content\":\"<l>\",\"lstrip\":true},{\"id\":11,\"content\":\"<r>\",\"rstrip\":true},"
		"{\"id\":12,\"content\":\"ba\",\"single_word\":true},{\"id\":13,\"content\":\"\\u00e9\",\"normalized\":true}]}";
	static const struct {
		const char *text;
		int n, ids[8];
	} cases[] = {
		{"a <l> b", 4, {0, 10, 2, 1}},
		{"a <r> b", 4, {0, 2, 11, 1}},
		{"a ba b", 5, {0, 2, 12, 2, 1}},
		{"aba", 3, {0, 1, 0}},
		{"e\xcc\x81", 1, {13}},
		{"\xc3\xa9", 1, {13}},
	};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *t;
	char path[600];
	snprintf(path, sizeof path, "%s/tokenizer.json", temp_dir());
	write_file(path, json, sizeof json - 1);
	if (dtp_tokenizer_open(temp_dir(), &t, &err))
		fail_msg("%s", err.message);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int32_t *ids;
		size_t n;
		if (dtp_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), &ids, &n, &err))
			fail_msg("'%s': %s", cases[i].text, err.message);
		assert_int_equal(n, cases[i].n);
		for (size_t k = 0; k < n; k++)
			assert_int_equal(ids[k], cases[i].ids[k]);
		free(ids);
	}
	dtp_tokenizer_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokenizer_vectors_qwen),
		cmocka_unit_test(tokenizer_vectors_merges_as_pairs),
		cmocka_unit_test(tokenizer_vectors_tekken),
		cmocka_unit_test(tokenizer_decode_inverts),
		cmocka_unit_test(tokenizer_refuses_bad_utf8),
		cmocka_unit_test(tokenizer_long_words),
		cmocka_unit_test(tokenizer_nul_is_a_byte),
		cmocka_unit_test(tokenizer_malformed),
		cmocka_unit_test(tokenizer_added_flags),
		cmocka_unit_test(prompt_pads_and_cuts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
