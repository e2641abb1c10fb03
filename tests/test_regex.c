/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns and text as Hugging Face's tokenizers see them. */
#include "support.h"

#include "regex.h"
#include "utf8.h"

/* The pieces of a text by a pattern, in [...] each if they match and bare if not. */
static void pieces(const char *pattern, bool literal, const char *text, char *out)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_regex *re;
	struct dtp_matcher *m;
	size_t done = 0, begin, end;
	bool found;

	if (dtp_regex_new(pattern, literal, &re, &err) || dtp_matcher_new(re, &m, &err))
		fail_msg("'%s': %s", pattern, err.message);
	dtp_matcher_start(m, text, strlen(text));
	for (;;) {
		if (dtp_matcher_next(m, &found, &begin, &end, &err))
			fail_msg("'%s': %s", pattern, err.message);
		if (!found)
			break;
		out += sprintf(out, "%.*s[%.*s]", (int)(begin - done), text + done, (int)(end - begin), text + begin);
		done = end;
	}
	strcpy(out, text + done);
	dtp_matcher_free(m);
	dtp_regex_free(re);
}

/* Where Oniguruma and PCRE2 read a pattern differently: pieces by the former. */
static void regex_reads_as_oniguruma(void **state)
{
	(void)state;
	static const struct {
		const char *pattern, *text, *pieces;
	} cases[] = {
		{"\\s", "a\xe1\xa0\x8e\xc2\x85""b", "a\xe1\xa0\x8e[\xc2\x85]b"},             /* U+180E is no space, U+0085 is */
		{"[^\\s]+", "a\xe1\xa0\x8e b", "[a\xe1\xa0\x8e] [b]"},
		{"\\S+", "a\xe1\xa0\x8e b", "[a\xe1\xa0\x8e] [b]"},
		{"\\p{L}+", "a\xf0\xb1\x8d\x90""1", "[a\xf0\xb1\x8d\x90]1"},                 /* U+31350, a letter since Unicode 15 */
		{"[^\\p{L}]+", "a\xf0\xb1\x8d\x90""1", "a\xf0\xb1\x8d\x90[1]"},
		{"\\P{L}+", "a\xf0\xb1\x8d\x90""1", "a\xf0\xb1\x8d\x90[1]"},
		{"\\p{^L}+", "a1", "a[1]"},
		{"\\d+", "1\xf0\x90\xb5\x80", "[1\xf0\x90\xb5\x80]"},                        /* U+10D40, a digit since Unicode 16 */
		{"(?i:'s)", "'S'\xc5\xbf's", "['S]['\xc5\xbf]['s]"},                         /* the long s */
		{"a.b", "a\nba\rb", "a\nb[a\rb]"},                                           /* only \n is a line's end */
		{"x*", "abxc", "[]a[]b[x]c[]"},                                              /* an empty match does not follow another */
		{"(?=b)", "abab", "a[]ba[]b"},
		{"(?<=a)b", "abb", "a[b]b"},
		{"\\u0041\\x{42}", "AB", "[AB]"},
		{"a{2}|b{1,2}|c{2,}", "aaabbbccc", "[aa]a[bb][b][ccc]"},
		{"\\p{N}{1,3}", "12345", "[123][45]"},
		{"a++a|b?+", "aab", "[]a[]a[b]"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char got[256];
		pieces(cases[i].pattern, false, cases[i].text, got);
		if (strcmp(got, cases[i].pieces))
			fail_msg("'%s' gives '%s', expected '%s'", cases[i].pattern, got, cases[i].pieces);
	}
	char got[256];
	pieces("a.[", true, "xa.[b", got);
	assert_string_equal(got, "x[a.[]b");
}

static void regex_refuses_what_may_differ(void **state)
{
	(void)state;
	static const struct {
		const char *pattern, *message;
	} cases[] = {
		{"a\\h", "'\\h' at offset 1"},      {"\\w", "'\\w' at offset 0"},         {"\\bx", "'\\b' at offset 0"},
		{"(a)\\1", "'\\1' at offset 3"},    {"\\x41", "write a code point as"},   {"\\u12", "is not a code point"},
		{"\\x{110000}", "is not a code"},   {"\\x{d800}", "is not a code point"}, {"a\\", "escapes nothing"},
		{"^a", "'^' at offset 0"},          {"a$", "'$' at offset 1"},            {"(?m:a)", "'(?m' at offset 0"},
		{"(?i)a", "'(?i' at offset 0"},     {"(?<n>a)", "'(?<' at offset 0"},     {"[a[b]]", "a class inside of a class"},
		{"[a&&b]", "an intersection"},      {"[]a]", "write a bracket"},          {"[\\P{L}]", "a negated property"},
		{"[\\D]", "a negated property"},    {"\\p{Han}", "'\\p{Han}' at offset"}, {"\\p{L", "is not a property"},
		{"\\pL", "is not a property"},      {"a{,2}", "of intervals"},            {"a{2}+", "of intervals"},
		{"a{2}?", "of intervals"},          {"a{x", "of intervals"},              {"(?i:\\p{L})", "inside of (?i:...)"},
		{"(?i:stop)", "common ligature"},   {"(?i:\xc3\xa9)", "beyond ASCII"},    {"(?i:[\xc3\xa9])", "beyond ASCII"},
		{"(a", "is not valid"},             {"a)", "is not valid"},               {"[a", "is not valid"},
		{"*a", "is not valid"},             {"[b-a]", "is not valid"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_regex *re;
		if (!dtp_regex_new(cases[i].pattern, false, &re, &err))
			fail_msg("accepted: %s", cases[i].pattern);
		assert_message(&err, DTP_REFUSED, cases[i].message, NULL);
	}
}

/* A pattern that backtracks without end is stopped. */
static void regex_gives_up(void **state)
{
	(void)state;
	static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_regex *re;
	struct dtp_matcher *m;
	size_t begin, end;
	bool found;
	assert_int_equal(dtp_regex_new("(?:a|aa)+(?:c|d)", false, &re, &err), DTP_OK);
	assert_int_equal(dtp_matcher_new(re, &m, &err), DTP_OK);
	dtp_matcher_start(m, text, sizeof text - 1);
	assert_int_equal(dtp_matcher_next(m, &found, &begin, &end, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "the split pattern fails on a text of 64 bytes behind byte 0: match limit exceeded", NULL);
	dtp_matcher_free(m);
	dtp_regex_free(re);
}

/* Not even if each place of the text stays far below what the text may take. */
static void regex_gives_up_on_a_text_of_many_places(void **state)
{
	static const char unit[] = "aaaaaaaaaaaaaaaaaaaaaaaab";
	static char text[2000 * (sizeof unit - 1)];
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_regex *re;
	struct dtp_matcher *m;
	size_t begin, end;
	bool found = true;

	(void)state;
	for (size_t i = 0; i < sizeof text; i += sizeof unit - 1)
		memcpy(text + i, unit, sizeof unit - 1);
	assert_int_equal(dtp_regex_new("(?:a|aa)+(?:c|d)|b", false, &re, &err), DTP_OK);
	assert_int_equal(dtp_matcher_new(re, &m, &err), DTP_OK);
	dtp_matcher_start(m, text, sizeof unit - 1);
	assert_int_equal(dtp_matcher_next(m, &found, &begin, &end, &err), DTP_OK);
	assert_true(found && begin == sizeof unit - 2);
	dtp_matcher_start(m, text, sizeof text);
	while (found && !dtp_matcher_next(m, &found, &begin, &end, &err))
		;
	assert_message(&err, DTP_REFUSED, "the split pattern fails on a text of 50000 bytes", "match limit exceeded", NULL);
	dtp_matcher_free(m);
	dtp_regex_free(re);
}

static void utf8_nfc_as_the_reference(void **state)
{
	(void)state;
	static const struct {
		const char *text, *composed; /* NULL: unchanged */
	} cases[] = {
		{"e\xcc\x81", "\xc3\xa9"},
		{"\xe2\x84\xab", "\xc3\x85"},                                                 /* the Angstrom sign is the letter */
		{"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},                                   /* the dot below goes first */
		{"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"},                     /* Hangul */
		{"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},                                 /* excluded from composition */
		{"a\xe1\xaa\xbf\xcc\x81", NULL},                                              /* U+1ABF came with Unicode 13 */
		{"\xe1\xab\x82\xe1\xaa\xb5", NULL},
		{"\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", NULL},                                   /* U+11935 U+11930 */
		{"\xe1\xaa\xbf""a\xcc\x81\xe1\xaa\xbf", "\xe1\xaa\xbf\xc3\xa1\xe1\xaa\xbf"},
		{"plain", NULL},
		{"", NULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		const char *expected = cases[i].composed ? cases[i].composed : cases[i].text;
		size_t n = 0, len = strlen(cases[i].text);
		char *out;
		assert_int_equal(dtp_utf8_nfc(cases[i].text, len, &out, &n, &err), DTP_OK);
		if (!out)
			assert_string_equal(cases[i].text, expected);
		else if (n != strlen(expected) || memcmp(out, expected, n))
			fail_msg("case %zu: '%.*s', expected '%s'", i, (int)n, out, expected);
		free(out);
	}
}

/* Unicode's own example of maximal subparts (chapter 3.9), surrogates, overlong forms, a cut sequence. */
static void utf8_repair_maximal_subparts(void **state)
{
	(void)state;
#define R "\xef\xbf\xbd"
	static const char *const cases[][2] = {
		{"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a" R R R "b" R "c" R R "d"},
		{"\xed\xa0\x80", R R R},
		{"\xc0\xaf\xe0\x80", R R R R},
		{"\xf4\x90\x80\x80", R R R R},
		{"x\xe2\x82", "x" R},
		{"\xf0\x9f\xa6\x8a", "\xf0\x9f\xa6\x8a"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char *out = dtp_utf8_repair(cases[i][0], strlen(cases[i][0]));
		assert_string_equal(out, cases[i][1]);
		free(out);
	}
#undef R
}

/* The offset of the first byte that is not UTF-8. */
static void utf8_valid_offset(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		size_t len, valid;
	} cases[] = {
		{"", 0, 0},           {"a\0b", 3, 3},         {"\xf4\x8f\xbf\xbf", 4, 4}, {"\xed\x9f\xbf\xee\x80\x80", 6, 6},
		{"ab\x80", 3, 2},     {"\xc1\xbf", 2, 0},    {"\xe0\x9f\xbf", 3, 0},     {"\xed\xa0\x80", 3, 0},
		{"\xf0\x8f\xbf\xbf", 4, 0}, {"\xf5\x80\x80\x80", 4, 0}, {"a\xe2\x82", 3, 1},  {"\xef\xbf\xbf\xff", 4, 3},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (dtp_utf8_valid(cases[i].text, cases[i].len) != cases[i].valid)
			fail_msg("case %zu: %zu, expected %zu", i, dtp_utf8_valid(cases[i].text, cases[i].len), cases[i].valid);
}

static void utf8_fit_between_characters(void **state)
{
	(void)state;
	assert_int_equal(dtp_utf8_fit("", 3), 0);
	assert_int_equal(dtp_utf8_fit("abc", 3), 3);
	assert_int_equal(dtp_utf8_fit("abcd", 3), 3);
	assert_int_equal(dtp_utf8_fit("ab\xc3\xa4", 4), 4);
	assert_int_equal(dtp_utf8_fit("ab\xc3\xa4", 3), 2);
	assert_int_equal(dtp_utf8_fit("\xf0\x9f\xa6\x8a", 3), 0);
	assert_int_equal(dtp_utf8_fit("\xf0\x9f\xa6\x8a!", 4), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(regex_reads_as_oniguruma),
		cmocka_unit_test(regex_refuses_what_may_differ),
		cmocka_unit_test(regex_gives_up),
		cmocka_unit_test(regex_gives_up_on_a_text_of_many_places),
		cmocka_unit_test(utf8_valid_offset),
		cmocka_unit_test(utf8_fit_between_characters),
		cmocka_unit_test(utf8_nfc_as_the_reference),
		cmocka_unit_test(utf8_repair_maximal_subparts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
