/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "json.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static enum dtp_code parse(const char *text, struct dtp_json *doc, struct dtp_err *err)
{
	return dtp_json_parse("f.json", text, strlen(text), doc, err);
}

static void json_parse_malformed(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
		{"", "f.json:1:1: malformed JSON: expected an object in braces, found the end"},
		{"  \n ", "f.json:2:2: malformed JSON: expected an object"},
		{"[1]", "f.json:1:1: malformed JSON: expected an object in braces, found '['"},
		{"{\"a\": 1", "f.json:1:8: malformed JSON: expected ',' or '}', found the end"},
		{"{\"a\":1,}", "f.json:1:8: malformed JSON: expected a key in double quotes, found '}'"},
		{"{\"a\":1 \"b\":2}", "f.json:1:8: malformed JSON: expected ',' or '}', found '\"'"},
		{"{\n  \"a\": 1,\n  \"b\" 2\n}", "f.json:3:7: malformed JSON: expected ':', found '2'"},
		{"{\"é\": tru}", "f.json:1:7: malformed JSON: expected a value, found 't'"},
		{"{'a':1}", "f.json:1:2: malformed JSON: expected a key"},
		{"{a:1}", "f.json:1:2: malformed JSON: expected a key"},
		{"{\"a\":[1 2]}", "f.json:1:9: malformed JSON: expected ',' or ']', found '2'"},
		{"{\"a\":[1,]}", "f.json:1:9: malformed JSON: expected a value, found ']'"},
		{"{\"a\":}", "f.json:1:6: malformed JSON: expected a value, found '}'"},
		{"{} x", "f.json:1:4: malformed JSON: expected the end, found 'x'"},
		{"{}{}", "f.json:1:3: malformed JSON: expected the end, found '{'"},
		{"{\"a\":NaN}", "f.json:1:6: malformed JSON: expected a value"},
		{"{\"a\":Infinity}", "f.json:1:6: malformed JSON"},
		{"{\"a\":-Infinity}", "f.json:1:7: malformed JSON: expected a digit"},
		{"{\"a\":01}", "f.json:1:6: malformed JSON: a number with a leading zero"},
		{"{\"a\":-01}", "leading zero"},
		{"{\"a\":+1}", "f.json:1:6: malformed JSON: expected a value"},
		{"{\"a\":.5}", "expected a value"},
		{"{\"a\":1.}", "f.json:1:8: malformed JSON: expected a digit, found '}'"},
		{"{\"a\":1e}", "expected a digit"},
		{"{\"a\":1e+}", "expected a digit"},
		{"{\"a\":0x10}", "expected ',' or '}', found 'x'"},
		{"{\"a\":1-2}", "expected ',' or '}', found '-'"},
		{"{\"a\":1234567890123456789012345678901234567890123456789012345678901234567890}", "more than 60"},
		{"{\"a\":\"b", "f.json:1:6: malformed JSON: a string that is not closed"},
		{"{\"a\":\"b\\", "unknown escape"},
		{"{\"a\":\"b\n\"}", "f.json:1:8: malformed JSON: a line break in a string"},
		{"{\"a\":\"b\t\"}", "a control character in a string"},
		{"{\"a\":\"\\x41\"}", "f.json:1:7: malformed JSON: unknown escape"},
		{"{\"a\":\"\\u12\"}", "hexadecimal"},
		{"{\"a\":\"\\u00", "hexadecimal"},
		{"{\"a\":\"x\\u0000y\"}", "\\u0000"},
		{"{\"a\":\"\\ud800\"}", "surrogate"},
		{"{\"a\":\"\\ud800\\u0041\"}", "surrogate"},
		{"{\"a\":\"\\udc00\"}", "surrogate"},
		{"{\"a\":\"\xff\"}", "f.json:1:7: malformed JSON: invalid UTF-8"},
		{"{\"a\":\"\xc0\xaf\"}", "invalid UTF-8"},
		{"{\"a\":\"\xed\xa0\x80\"}", "invalid UTF-8"},
		{"{\"a\":\"\xe2\x82\"}", "invalid UTF-8"},
		{"{\"a\":1\f}", "expected ',' or '}', found the byte 0x0c"},
		{"{\"a\":1,\"b\":2,\"a\":3}", "f.json: the key 'a' occurs twice"},
		{"{\"x\":[{\"k\":[0,{\"a\":1,\"\\u0061\":2}]}]}", "the key 'a' occurs twice"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_json doc;
		if (parse(cases[i].text, &doc, &err) == DTP_OK)
			fail_msg("accepted: %s", cases[i].text);
		assert_message(&err, DTP_REFUSED, cases[i].message, NULL);
		assert_null(doc.root);
	}
}

static void json_parse_embedded_nul(void **state)
{
	static const char text[] = "{\"a\":\"x\0y\"}", after[] = "{}\0";
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	(void)state;
	assert_int_equal(dtp_json_parse("f", text, sizeof text - 1, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "f:1:8: malformed JSON: a control character", NULL);
	assert_int_equal(dtp_json_parse("f", after, 3, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "f:1:3: malformed JSON: expected the end, found the byte 0x00", NULL);
}

static void json_parse_wellformed(void **state)
{
	static const char *const texts[] = {
		"{}", " \r\n\t{ } \n", "\xef\xbb\xbf{\"a\":1}", "{\"\":0}", "{\"a\":[],\"A\":{}}",
		"{\"a\":-0.5e-3,\"b\":[true,false,null,\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\"],\"c\":{\"a\":0}}",
	};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	const char *s;
	(void)state;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		if (parse(texts[i], &doc, &err))
			fail_msg("refused: %s: %s", texts[i], err.message);
		dtp_json_free(&doc);
	}
	assert_int_equal(parse("{\"b\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\"}", &doc, &err), DTP_OK);
	assert_int_equal(dtp_json_string(&doc, NULL, "b", &s, &err), DTP_OK);
	assert_string_equal(s, "\"\\/\b\f\n\r\té😀");
	dtp_json_free(&doc);
}

/* n arrays, one in the other. */
static char *nested(int n)
{
	char *t = calloc(1, (size_t)n * 2 + 16), *p = t;
	p += sprintf(p, "{\"a\":");
	memset(p, '[', (size_t)n);
	memset(p + n, ']', (size_t)n);
	p[2 * n] = '}';
	return t;
}

static void json_parse_nesting(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	char *deep = nested(999), *deeper = nested(1000), *open = nested(100000);
	(void)state;
	assert_int_equal(parse(deep, &doc, &err), DTP_OK);
	dtp_json_free(&doc);
	assert_int_equal(parse(deeper, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "nested too deeply", NULL);
	open[60000] = '\0';
	assert_int_equal(parse(open, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "f.json:1:1005: malformed JSON: nested too deeply", NULL);
	free(deep);
	free(deeper);
	free(open);
}

/* What is cut anywhere is refused, never misread. */
static void json_parse_truncated(void **state)
{
	static const char text[] = "{\"a\": [1, -2.5e3, \"x\\u00e9\\\"é\", {\"b\": null, \"c\": true}]}";
	(void)state;
	for (size_t n = 0; n < sizeof text - 1; n++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_json doc;
		char *exact = malloc(n ? n : 1); /* so that a sanitizer sees a read beyond */
		memcpy(exact, text, n);
		assert_int_equal(dtp_json_parse("f", exact, n, &doc, &err), DTP_REFUSED);
		free(exact);
	}
}

/* {"a":[0,0,...]} of so many values, malloc'd. */
static char *many_values(int n)
{
	size_t zeros = (size_t)n - 2; /* without the object and the array */
	char *text = malloc(2 * zeros + 10), *p = text;

	p += sprintf(p, "{\"a\":[0");
	for (size_t i = 1; i < zeros; i++, p += 2)
		memcpy(p, ",0", 2);
	strcpy(p, "]}");
	return text;
}

static void json_values_are_counted(void **state)
{
	char *fits = many_values(DTP_JSON_MAX_VALUES), *more = many_values(DTP_JSON_MAX_VALUES + 1);
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;

	(void)state;
	assert_int_equal(dtp_json_check("f", fits, strlen(fits), &err), DTP_OK);
	assert_int_equal(dtp_json_parse("f", more, strlen(more), &doc, &err), DTP_REFUSED);
	assert_string_equal(err.message, "f: JSON of more than 2000000 values: that is none that is read here");
	free(fits);
	free(more);
}

static void json_load_files(void **state)
{
	char path[600], big[128], *large = malloc(DTP_JSON_SMALL + 1);
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	int64_t v = 0;
	(void)state;

	snprintf(path, sizeof path, "%s/absent.json", temp_dir());
	assert_int_equal(dtp_json_load(path, 0, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "absent.json'", "No such file", NULL);
	assert_int_equal(dtp_json_load(temp_dir(), 0, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, temp_dir(), "is a folder", NULL);
	snprintf(path, sizeof path, "%s/a.json", temp_dir());
	write_file(path, "{\"a\":\n7}", 8);
	assert_int_equal(dtp_json_load(path, 0, &doc, &err), DTP_OK);
	assert_string_equal(doc.path, path);
	assert_int_equal(dtp_json_int(&doc, NULL, "a", 0, 9, &v, &err), DTP_OK);
	assert_int_equal(v, 7);
	dtp_json_free(&doc);
	assert_int_equal(dtp_json_load(path, 8, &doc, &err), DTP_OK);
	dtp_json_free(&doc);
	assert_int_equal(dtp_json_load(path, 7, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, path, "8 bytes", "at most 7", NULL);
	write_file(path, "", 0);
	assert_int_equal(dtp_json_load(path, 0, &doc, &err), DTP_REFUSED);
	snprintf(big, sizeof big, "%s:1:1: ", "a.json");
	assert_message(&err, DTP_REFUSED, big, NULL);
	memset(large, ' ', DTP_JSON_SMALL + 1);
	memcpy(large, "{}", 2);
	write_file(path, large, DTP_JSON_SMALL);
	assert_int_equal(dtp_json_load(path, 0, &doc, &err), DTP_OK);
	dtp_json_free(&doc);
	write_file(path, large, DTP_JSON_SMALL + 1);
	assert_int_equal(dtp_json_load(path, 0, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, path, "at most 4194304", NULL);
	free(large);
	assert_int_equal(dtp_json_load("/dev/zero", 5000, &doc, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "/dev/zero", "5000", NULL);
}

/* A plan may come through a pipe: <(...) in a shell. */
static void json_load_pipe(void **state)
{
	int fd[2];
	char path[64];
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	(void)state;
	assert_int_equal(pipe(fd), 0);
	snprintf(path, sizeof path, "/dev/fd/%d", fd[0]);
	assert_int_equal(write(fd[1], "{\"a\": 1}", 8), 8);
	close(fd[1]);
	assert_int_equal(dtp_json_load(path, 0, &doc, &err), DTP_OK);
	dtp_json_free(&doc);
	close(fd[0]);
}

static void json_get_int(void **state)
{
	static const struct {
		const char *key, *is;
	} bad[] = {
		{"frac", "1.5"}, {"neg", "-3"}, {"huge", "1e+300"}, {"inf", "a number beyond every limit"},
		{"str", "\"12\""}, {"null", "null"}, {"obj", "an object"}, {"arr", "an array of 2"}, {"true", "true"},
		{"eleven", "11"}, {"2to60", "1.15292150460685e+18"}, {"none", "missing"}, {"ELEVEN", "missing"},
	};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	int64_t v = 5;
	(void)state;
	assert_int_equal(parse("{\"frac\":1.5,\"neg\":-3,\"huge\":1e300,\"inf\":1e999,\"str\":\"12\",\"null\":null,\"obj\":{\"k\":4},"
			       "\"arr\":[1,2],\"true\":true,\"eleven\":11,\"2to60\":1152921504606846976,\"ten\":10.0}",
			       &doc, &err), DTP_OK);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char head[96];
		snprintf(head, sizeof head, "f.json: '%s' is %s, expected a whole number from 0 to 10", bad[i].key, bad[i].is);
		err.code = DTP_OK;
		assert_int_equal(dtp_json_int(&doc, NULL, bad[i].key, 0, 10, &v, &err), DTP_REFUSED);
		assert_message(&err, DTP_REFUSED, head, NULL);
		assert_int_equal(v, 5);
	}
	assert_int_equal(dtp_json_int(&doc, NULL, "2to60", 0, INT64_MAX, &v, &err), DTP_REFUSED);
	assert_int_equal(dtp_json_int_or(&doc, NULL, "none", 0, 10, &v, &err), DTP_OK);
	assert_int_equal(dtp_json_int_or(&doc, NULL, "null", 0, 10, &v, &err), DTP_OK);
	assert_int_equal(v, 5);
	assert_int_equal(dtp_json_int_or(&doc, NULL, "neg", 0, 10, &v, &err), DTP_REFUSED);
	assert_int_equal(dtp_json_int(&doc, NULL, "ten", 0, 10, &v, &err), DTP_OK);
	assert_int_equal(v, 10);
	assert_int_equal(dtp_json_int(&doc, cJSON_GetObjectItem(doc.root, "obj"), "k", 0, 10, &v, &err), DTP_OK);
	assert_int_equal(v, 4);
	dtp_json_free(&doc);
}

static void json_get_others(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	double d = 3;
	bool b = true;
	const char *s = NULL;
	(void)state;
	assert_int_equal(parse("{\"d\":0.25,\"inf\":-1e999,\"b\":false,\"one\":1,\"s\":\"x\",\"n\":null,\"long\":"
			       "\"äääääääääääääääääääääääääääääääääääääääää\"}", &doc, &err), DTP_OK);
	assert_int_equal(dtp_json_double(&doc, NULL, "inf", -INFINITY, INFINITY, &d, &err), DTP_REFUSED);
	assert_int_equal(dtp_json_double(&doc, NULL, "d", 0.5, 1, &d, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "f.json: 'd' is 0.25, expected a number from 0.5 to 1", NULL);
	assert_int_equal(dtp_json_double_or(&doc, NULL, "n", 0, 1, &d, &err), DTP_OK);
	assert_true(d == 3);
	assert_int_equal(dtp_json_double(&doc, NULL, "d", 0, 1, &d, &err), DTP_OK);
	assert_true(d == 0.25);
	assert_int_equal(dtp_json_bool_or(&doc, NULL, "n", &b, &err), DTP_OK);
	assert_true(b);
	assert_int_equal(dtp_json_bool_or(&doc, NULL, "one", &b, &err), DTP_REFUSED);
	assert_int_equal(dtp_json_bool_or(&doc, NULL, "b", &b, &err), DTP_OK);
	assert_false(b);
	assert_int_equal(dtp_json_string(&doc, NULL, "one", &s, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "'one' is 1, expected a string", NULL);
	assert_int_equal(dtp_json_string(&doc, NULL, "s", &s, &err), DTP_OK);
	assert_string_equal(s, "x");
	assert_int_equal(dtp_json_bool_or(&doc, NULL, "long", &b, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "is \"ääääääääääääääääääääääääääääää...\", expected", NULL);
	dtp_json_free(&doc);
}

static void json_get_ints(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	int64_t v[3];
	int n = 0;
	(void)state;
	assert_int_equal(parse("{\"a\":[1,2,3],\"e\":[],\"four\":[1,2,3,4],\"bad\":[1,-1],\"n\":4}", &doc, &err), DTP_OK);
	assert_int_equal(dtp_json_ints(&doc, NULL, "a", 0, 3, v, 3, &n, &err), DTP_OK);
	assert_int_equal(n, 3);
	assert_int_equal(v[2], 3);
	assert_int_equal(dtp_json_ints(&doc, NULL, "e", 0, 3, v, 3, &n, &err), DTP_REFUSED);
	assert_int_equal(dtp_json_ints(&doc, NULL, "four", 0, 9, v, 3, &n, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "'four' is an array of 4, expected an array of 1 to 3", NULL);
	assert_int_equal(dtp_json_ints(&doc, NULL, "bad", 0, 9, v, 3, &n, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "'bad[1]' is -1, expected a whole number from 0 to 9", NULL);
	assert_int_equal(dtp_json_ints(&doc, NULL, "n", 0, 9, v, 3, &n, &err), DTP_REFUSED);
	assert_int_equal(n, 3);
	dtp_json_free(&doc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(json_parse_malformed),  cmocka_unit_test(json_parse_embedded_nul),
		cmocka_unit_test(json_parse_wellformed), cmocka_unit_test(json_parse_nesting),
		cmocka_unit_test(json_parse_truncated),  cmocka_unit_test(json_values_are_counted), cmocka_unit_test(json_load_files),
		cmocka_unit_test(json_load_pipe),        cmocka_unit_test(json_get_int),
		cmocka_unit_test(json_get_others),       cmocka_unit_test(json_get_ints),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
