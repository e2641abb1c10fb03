/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "added.h"
#include "tokenizer.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>
#include <time.h>

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

/* dtp_prompt_make takes no text with a NUL in it: here the template is put around such a text by hand. */
static void check_nul_template(const struct dtp_tokenizer *t, const char *text, size_t len, const cJSON *expected, bool padded)
{
	static const char qwen_head[] = "<|im_start|>user\n";
	static const char qwen_tail[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
	static const char tekken_head[] =
		"<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on object "
		"relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]";
	const char *head = padded ? tekken_head : qwen_head, *tail = padded ? "[/INST]" : qwen_tail;
	struct dtp_err err = DTP_ERR_INIT;
	char whole[1024];
	int32_t *ids;
	size_t n, at = strlen(head);

	assert_true(at + len + strlen(tail) <= sizeof whole);
	memcpy(whole, head, at);
	memcpy(whole + at, text, len);
	memcpy(whole + at + len, tail, strlen(tail));
	if (dtp_tokenizer_encode(t, whole, at + len + strlen(tail), &ids, &n, &err))
		fail_msg("%s", err.message);
	while (padded && expected && expected->valueint == dtp_tokenizer_pad_id(t))
		expected = expected->next;
	for (size_t i = 0; i < n; i++, expected = expected->next)
		if (!expected || ids[i] != expected->valueint)
			fail_msg("id %zu of a text with NUL is %d, expected %d", i, ids[i], expected ? expected->valueint : -1);
	assert_null(expected);
	free(ids);
}

struct vectors {
	const char *model, *file;
	int lines;
	const char *key; /* of the template's ids; NULL: the texts go without one */
	enum dtp_template tpl;
	int64_t max_length;
	bool padded;
	int templates;
};

/* Each line holds a text, its ids, and maybe the ids of the template around it. */
static void check_vectors(const struct vectors *w)
{
	struct dtp_tokenizer *t = open_fixture(w->model);
	char *all = read_file(fixture("reference/%s", w->file), NULL), *save, *line;
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
		const cJSON *wrapped = w->key ? cJSON_GetObjectItem(v, w->key) : NULL;
		if (wrapped && !nul) {
			if (dtp_prompt_make(t, w->tpl, NULL, text, w->max_length, &p, &err))
				fail_msg("'%s': %s", text, err.message);
			if (w->padded)
				assert_ids(wrapped, p.ids, (size_t)p.length, text);
			else
				assert_ids(wrapped, p.ids + p.begin, (size_t)(p.end - p.begin), text);
			dtp_prompt_free(&p);
		} else if (wrapped) {
			check_nul_template(t, text, len, wrapped->child, w->padded);
		}
		templates += wrapped != NULL;
		cJSON_Delete(v);
	}
	assert_int_equal(lines, w->lines);
	assert_int_equal(templates, w->templates);
	free(all);
	dtp_tokenizer_free(t);
}

static const struct vectors qwen_vectors = {.model = "klein-tiny", .file = "tokenizer_vectors.jsonl", .lines = 418, .key = "template_ids",
					    .tpl = DTP_TEMPLATE_QWEN3, .max_length = 8192, .templates = 418};

static void tokenizer_vectors_qwen(void **state)
{
	(void)state;
	check_vectors(&qwen_vectors);
}

static void tokenizer_vectors_merges_as_pairs(void **state)
{
	(void)state;
	struct vectors pairs = qwen_vectors;
	pairs.model = "klein-tiny-sharded";
	check_vectors(&pairs);
}

static void tokenizer_vectors_tekken(void **state)
{
	(void)state;
	check_vectors(&(struct vectors){.model = "dev-tiny", .file = "tokenizer_vectors_dev.jsonl", .lines = 418, .key = "template_ids_max256",
					.tpl = DTP_TEMPLATE_MISTRAL, .max_length = 256, .padded = true, .templates = 105});
}

/* Strings of scripts/check_tokenizers.py, which wrote the ids that the Python libraries agree on: docs/tokenizers.md. */
static void tokenizer_random_qwen(void **state)
{
	(void)state;
	check_vectors(&(struct vectors){.model = "klein-tiny", .file = "tokenizer_random.jsonl", .lines = 200});
}

static void tokenizer_random_tekken(void **state)
{
	(void)state;
	check_vectors(&(struct vectors){.model = "dev-tiny", .file = "tokenizer_random_dev.jsonl", .lines = 200});
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

/* Words without end must not take quadratic time: each of these is a million bytes, and would take an hour.  The last one is
 * marks in the wrong order, which normalisation has to sort. */
static void tokenizer_long_words(void **state)
{
	(void)state;
	static const char *const units[] = {"a", " ", "\n", "\xf0\x9f\xa6\x8a", "e\xcc\x81", "<|im_start|>", "\xcc\x81", "<",
					   "\xcc\x81\xcc\xa3"};
	struct dtp_tokenizer *t = open_fixture("klein-tiny");
	for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
		struct dtp_err err = DTP_ERR_INIT;
		size_t len = strlen(units[u]), total = 1000000 / len * len, n;
		char *text = malloc(total);
		int32_t *ids;
		for (size_t i = 0; i < total; i += len)
			memcpy(text + i, units[u], len);
		clock_t start = clock();
		if (dtp_tokenizer_encode(t, text, total, &ids, &n, &err))
			fail_msg("%s", err.message);
		double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
		if (seconds > 20) /* 0.1 to 0.4 as a rule; under sanitizers more */
			fail_msg("'%s' a million times takes %.1f s", units[u], seconds);
		assert_in_range(n, 1, total);
		free(ids);
		free(text);
	}
	dtp_tokenizer_free(t);
}

/* Nor may blanks that each take the white space behind them. */
static void tokenizer_many_blanks(void **state)
{
	struct dtp_added_token blank = {.content = strdup(" "), .len = 1, .id = 7, .rstrip = true};
	struct dtp_added added = {0};
	struct dtp_err err;
	size_t len = 1000000, begin, end, n = 0;
	char *text = malloc(len);
	int32_t id;

	(void)state;
	memset(text, ' ', len);
	assert_int_equal(dtp_added_push(&added, blank, &err), DTP_OK);
	clock_t start = clock();
	for (struct dtp_added_walk w = {.text = text, .len = len}; dtp_added_next(&added, &w, &id, &begin, &end); n++)
		assert_true(begin == n && end == len);
	double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
	assert_int_equal(n, len);
	if (seconds > 20)
		fail_msg("%zu blanks take %.1f s", len, seconds);
	dtp_added_free(&added);
	free(text);
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
	{"{" PRE "," MODEL("\"a\":0,\"a\":1", "") "}", "the key 'a' occurs twice"},
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
	{"{" PRE "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":-1,\"content\":\"<x>\"}]}", "token '<x>' has id -1"},
	{"{" PRE "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":7,\"content\":\"<x>\"}]}",
	 "the added token '<x>' has id 7, expected 1, the next after those before it"},
	{"{" PRE "," MODEL("\"a\":0", "") ",\"added_tokens\":[{\"id\":0,\"content\":\"a\"},{\"id\":0,\"content\":\"a\"}]}",
	 "the added token 'a' is listed twice"},
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

static struct dtp_tokenizer *open_text(const char *json)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *t;
	char path[600];
	snprintf(path, sizeof path, "%s/tokenizer.json", temp_dir());
	write_file(path, json, strlen(json));
	if (dtp_tokenizer_open(temp_dir(), &t, &err))
		fail_msg("%s", err.message);
	return t;
}

struct expectation {
	const char *text;
	size_t n;
	int32_t ids[10];
};

static void assert_encodings(const struct dtp_tokenizer *t, const struct expectation *cases, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		int32_t *ids;
		size_t count;
		if (dtp_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), &ids, &count, &err))
			fail_msg("'%s': %s", cases[i].text, err.message);
		for (size_t k = 0; k < count && k < cases[i].n; k++)
			if (ids[k] != cases[i].ids[k])
				fail_msg("'%s': id %zu is %d, expected %d", cases[i].text, k, ids[k], cases[i].ids[k]);
		if (count != cases[i].n)
			fail_msg("'%s': %zu ids, expected %zu", cases[i].text, count, cases[i].n);
		free(ids);
	}
}

/* lstrip, rstrip, single_word and normalized: ids by the reference library. */
static void tokenizer_added_flags(void **state)
{
	(void)state;
	static const char json[] =
		"{\"normalizer\":{\"type\":\"NFC\"}," PRE ","
		MODEL("\"a\":0,\"b\":1,\"\\u0120\":2,\"\\u00c3\":3,\"\\u00a9\":4,\"\\u00cc\":5,\"\\u0123\":6,\"_\":7", "")
		",\"added_tokens\":[{\"id\":8,\"content\":\"<l>\",\"lstrip\":true},{\"id\":9,\"content\":\"<r>\",\"rstrip\":true},"
		"{\"id\":10,\"content\":\"ba\",\"single_word\":true},{\"id\":11,\"content\":\"\\u00e9\",\"normalized\":true},"
		"{\"id\":12,\"content\":\"<r>b\"},{\"id\":13,\"content\":\"  \",\"lstrip\":true}]}";
	static const struct expectation cases[] = {
		{"a <l> b", 4, {0, 8, 2, 1}},
		{"a \xe3\x80\x80<l>b", 3, {0, 8, 1}}, /* U+3000 is white space too */
		{"a <r> b", 4, {0, 2, 9, 1}},
		{"a<r> <l>b", 4, {0, 9, 8, 1}},
		{"a<r>ba", 3, {0, 12, 0}}, /* of two at one place the longer one */
		{"a<r>  b", 3, {0, 9, 1}}, /* a match to which the one before left nothing */
		{"a   b", 4, {0, 13, 2, 1}},
		{"a ba b", 5, {0, 2, 10, 2, 1}},
		{"aba", 3, {0, 1, 0}},
		{"ba_", 3, {1, 0, 7}},
		{"ba", 1, {10}},
		{"e\xcc\x81", 1, {11}}, /* found in the composed text */
		{"<r> \xc3\xa9", 2, {9, 11}},
	};
	struct dtp_tokenizer *t = open_text(json);
	assert_encodings(t, cases, sizeof cases / sizeof *cases);
	dtp_tokenizer_free(t);
}

/* A normalized token is looked for in what the others leave, even where nothing is normalised. */
static void tokenizer_added_normalized_goes_last(void **state)
{
	(void)state;
	static const struct expectation cases[] = {{"aab", 2, {0, 3}}, {"b", 1, {1}}};
	struct dtp_tokenizer *t = open_text("{" PRE "," MODEL("\"a\":0,\"b\":1", "") ",\"added_tokens\":[{\"id\":2,\"content\":\"aab\","
					    "\"normalized\":true},{\"id\":3,\"content\":\"ab\"}]}");
	assert_encodings(t, cases, sizeof cases / sizeof *cases);
	dtp_tokenizer_free(t);
}

static void bpe_merges_by_rank(void **state)
{
	(void)state;
	static const struct expectation cases[] = {
		{"abc", 1, {5}}, /* b c, then a bc: not a b, which would leave c */
		{"abcab", 2, {5, 3}},
		{"aaaaa", 2, {7, 0}}, /* of one rank the leftmost first */
		{"aaab", 2, {6, 3}},
		{"", 0, {0}},
	};
	struct dtp_tokenizer *t = open_text(
		"{" PRE "," MODEL("\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"aa\":6,\"aaaa\":7",
				  "\"b c\",[\"a\",\"bc\"],\"a b\",\"a a\",\"aa aa\"") "}");
	assert_encodings(t, cases, sizeof cases / sizeof *cases);
	dtp_tokenizer_free(t);
}

/* Of two merges of one pair the later one counts, as in the reference. */
static void bpe_merge_twice_last_counts(void **state)
{
	(void)state;
	static const struct expectation cases[] = {{"abab", 3, {0, 3, 1}}, {"aba", 2, {0, 3}}};
	struct dtp_tokenizer *t = open_text("{" PRE "," MODEL("\"a\":0,\"b\":1,\"ab\":2,\"ba\":3,\"aba\":4",
							     "\"a b\",\"b a\",\"ab a\",\"a b\"") "}");
	assert_encodings(t, cases, sizeof cases / sizeof *cases);
	dtp_tokenizer_free(t);
}

/* A word that is a token as a whole, though no merge leads to it. */
static void bpe_ignore_merges(void **state)
{
	(void)state;
	static const struct expectation cases[] = {{"abc", 1, {4}}, {"abcab", 3, {3, 2, 3}}, {"<x>", 1, {5}}};
	struct dtp_tokenizer *t = open_text("{" PRE ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,"
					    "\"c\":2,\"ab\":3,\"abc\":4},\"merges\":[\"a b\"]},\"added_tokens\":[{\"id\":5,"
					    "\"content\":\"<x>\"}]}");
	struct dtp_err err = DTP_ERR_INIT;
	int32_t *ids;
	size_t n;
	assert_encodings(t, cases, sizeof cases / sizeof *cases);
	assert_int_equal(dtp_tokenizer_encode(t, "xa", 2, &ids, &n, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "no token for byte 0x78", NULL);
	dtp_tokenizer_free(t);
}

static void prompt_mistral_pads_left(void **state)
{
	(void)state;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *t = open_fixture("dev-tiny");
	struct dtp_prompt p, q;

	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_MISTRAL, "be brief", "a [IMG]cat[IMG]", 64, &p, &err), DTP_OK);
	assert_int_equal(p.end, 64);
	for (int64_t i = 0; i < p.begin; i++)
		assert_int_equal(p.ids[i], dtp_tokenizer_pad_id(t));
	assert_int_equal(p.ids[p.begin], dtp_tokenizer_id(t, "<s>"));
	assert_int_equal(p.ids[63], dtp_tokenizer_id(t, "[/INST]"));
	char *text = dtp_tokenizer_decode(t, p.ids + p.begin, (size_t)(p.end - p.begin));
	assert_string_equal(text, "<s>[SYSTEM_PROMPT]be brief[/SYSTEM_PROMPT][INST]a cat[/INST]");
	free(text);

	/* The marks are taken out once, from left to right. */
	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_MISTRAL, "be brief", "a [IM[IMG]G]cat", 64, &q, &err), DTP_OK);
	text = dtp_tokenizer_decode(t, q.ids + q.begin, (size_t)(q.end - q.begin));
	assert_non_null(strstr(text, "[INST]a [IMG]cat[/INST]"));
	free(text);
	dtp_prompt_free(&p);
	dtp_prompt_free(&q);

	/* Cut on the right all the same. */
	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_MISTRAL, NULL, "a cat", 74, &p, &err), DTP_OK);
	assert_int_equal(p.begin, 0);
	assert_int_equal(p.ids[0], dtp_tokenizer_id(t, "<s>"));
	assert_non_null(p.cut);
	assert_non_null(strstr(p.cut, "cat[/INST]"));
	dtp_prompt_free(&p);
	dtp_tokenizer_free(t);
}

static void prompt_needs_a_pad_token_to_pad(void **state)
{
	(void)state;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_prompt p;
	size_t len;
	char path[600], *json = read_file(fixture("models/klein-tiny/tokenizer/tokenizer.json"), &len);
	struct dtp_tokenizer *t = open_text(json); /* a folder without tokenizer_config.json */
	free(json);
	assert_int_equal(dtp_tokenizer_pad_id(t), -1);
	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_QWEN3, NULL, "", 20, &p, &err), DTP_OK);
	dtp_prompt_free(&p);
	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_QWEN3, NULL, "", 21, &p, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "no pad_token", "20", "21", NULL);
	assert_int_equal(dtp_prompt_make(t, DTP_TEMPLATE_QWEN3, NULL, "", 0, &p, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "a prompt of 0 tokens", NULL);
	dtp_tokenizer_free(t);

	static const char *const configs[][2] = {
		{"{\"pad_token\":\"<|endoftext|>\"}", NULL},
		{"{\"pad_token\":{\"content\":\"<|endoftext|>\"}}", NULL},
		{"{\"pad_token\":\"<nothing>\"}", "pad_token '<nothing>' is no token"},
	};
	snprintf(path, sizeof path, "%s/tokenizer_config.json", temp_dir());
	for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
		write_file(path, configs[i][0], strlen(configs[i][0]));
		enum dtp_code rc = dtp_tokenizer_open(temp_dir(), &t, &err);
		if (configs[i][1])
			assert_message(&err, rc, configs[i][1], NULL);
		else
			assert_int_equal(dtp_tokenizer_pad_id(t), 1792);
		dtp_tokenizer_free(t);
	}
	remove(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokenizer_vectors_qwen),
		cmocka_unit_test(tokenizer_vectors_merges_as_pairs),
		cmocka_unit_test(tokenizer_vectors_tekken),
		cmocka_unit_test(tokenizer_random_qwen),
		cmocka_unit_test(tokenizer_random_tekken),
		cmocka_unit_test(tokenizer_decode_inverts),
		cmocka_unit_test(tokenizer_refuses_bad_utf8),
		cmocka_unit_test(tokenizer_long_words), cmocka_unit_test(tokenizer_many_blanks),
		cmocka_unit_test(tokenizer_nul_is_a_byte),
		cmocka_unit_test(tokenizer_malformed),
		cmocka_unit_test(tokenizer_added_flags),
		cmocka_unit_test(tokenizer_added_normalized_goes_last),
		cmocka_unit_test(bpe_merges_by_rank),
		cmocka_unit_test(bpe_merge_twice_last_counts),
		cmocka_unit_test(bpe_ignore_merges),
		cmocka_unit_test(prompt_pads_and_cuts),
		cmocka_unit_test(prompt_mistral_pads_left),
		cmocka_unit_test(prompt_needs_a_pad_token_to_pad),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
