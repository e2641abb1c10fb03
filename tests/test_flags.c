/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "commands.h"
#include "flags.h"
#include "help.h"
#include "launch.h"

static struct dtp_args args;
static struct dtp_err err;

/* Parses a command line given as its words; the parser may change the words, so they are copied. */
static enum dtp_code parse(enum dtp_command_bit command, ...)
{
	static char words[32][4096];
	char *argv[33] = {words[0]};
	int argc = 1;
	va_list ap;

	strcpy(words[0], "difftp");
	va_start(ap, command);
	for (const char *w; (w = va_arg(ap, const char *)); argc++) {
		snprintf(words[argc], sizeof words[argc], "%s", w);
		argv[argc] = words[argc];
	}
	va_end(ap);
	err = (struct dtp_err)DTP_ERR_INIT;
	return dtp_args_parse(command, argc, argv, &args, &err);
}

#define generate(...) parse(DTP_CMD_GENERATE, __VA_ARGS__, NULL)
#define assert_parses(...) do { if (generate(__VA_ARGS__)) fail_msg("refused: %s", err.message); } while (0)

static void flags_table_is_sound(void **state)
{
	(void)state;
	err = (struct dtp_err)DTP_ERR_INIT;
	if (dtp_options_check(&err))
		fail_msg("%s", err.message);
}

static void flags_defaults_ask_the_core(void **state)
{
	(void)state;
	assert_int_equal(parse(DTP_CMD_GENERATE, NULL), DTP_OK);
	assert_null(args.model);
	assert_null(args.prompt);
	assert_true(args.height == 0 && args.width == 0 && args.steps == 0 && args.num_images == 0);
	assert_true(args.guidance_scale == -1 && args.tp_degree == 1 && args.threads == 0 && args.timeout == 0);
	assert_int_equal(args.dtype, DTP_ARG_BF16);
	assert_false(DTP_GIVEN(&args, seed));
	assert_true(args.given == 0);
}

static void flags_every_spelling(void **state)
{
	(void)state;
	assert_parses("--tp_degree", "4", "--num_inference_steps=7", "--guidance_scale", "2.5", "-o", "a.png", "-n3",
		      "--max_sequence-length=64", "--torch_dtype", "float32", "--exact_timesteps", "-q");
	assert_int_equal(args.tp_degree, 4);
	assert_int_equal(args.steps, 7);
	assert_true(args.guidance_scale == 2.5);
	assert_string_equal(args.output, "a.png");
	assert_int_equal(args.num_images, 3);
	assert_int_equal(args.max_sequence_length, 64);
	assert_int_equal(args.dtype, DTP_ARG_FP32);
	assert_true(args.exact_timesteps && args.quiet);
	assert_true(DTP_GIVEN(&args, tp_degree) && !DTP_GIVEN(&args, height));
}

static void flags_equals_and_next_word(void **state)
{
	(void)state;
	assert_parses("--prompt", "a_b --tp_degree", "--height=96");
	assert_string_equal(args.prompt, "a_b --tp_degree");
	assert_int_equal(args.height, 96);
	assert_parses("--prompt=--seed", "--model=x_y=z_w");
	assert_string_equal(args.prompt, "--seed");
	assert_string_equal(args.model, "x_y=z_w");
	assert_parses("--prompt", "--_--");
	assert_string_equal(args.prompt, "--_--");
	assert_parses("--prompt=", "-p", "");
	assert_string_equal(args.prompt, "");
}

static void flags_shortened_names(void **state)
{
	(void)state;
	assert_parses("--heig", "64", "--max_seq=9");
	assert_int_equal(args.height, 64);
	assert_int_equal(args.max_sequence_length, 9);
	generate("--num", "3");
	assert_message(&err, DTP_REFUSED, "'--num' could be any of", "'--num-images'", "'--num-inference-steps'", NULL);
}

static void flags_last_one_wins(void **state)
{
	(void)state;
	assert_parses("--seed", "1", "--seed", "2");
	assert_true(args.seed == 2);
}

static void flags_lists_keep_their_order(void **state)
{
	(void)state;
	assert_parses("--image", "a.png", "--height", "64", "--image=b.jpg");
	assert_int_equal(args.images.n, 2);
	assert_string_equal(args.images.item[0], "a.png");
	assert_string_equal(args.images.item[1], "b.jpg");
	generate("--image", "");
	assert_message(&err, DTP_REFUSED, "option '--image': the value is empty", NULL);
	generate("--image=0", "--image=1", "--image=2", "--image=3", "--image=4", "--image=5", "--image=6", "--image=7", "--image=8",
		 "--image=9", "--image=10");
	assert_message(&err, DTP_REFUSED, "option '--image' is given more than 10 times", NULL);
}

static void flags_switches_can_be_undone(void **state)
{
	(void)state;
	assert_parses("--quiet", "--exact_timesteps=YES", "--resume=0");
	assert_true(args.quiet && args.exact_timesteps && !args.resume && DTP_GIVEN(&args, resume));
	assert_parses("-q", "--quiet=no");
	assert_true(!args.quiet && DTP_GIVEN(&args, quiet));
	assert_parses("--quiet=off", "-q");
	assert_true(args.quiet);
}

static void flags_seed_has_64_bits(void **state)
{
	(void)state;
	assert_parses("--seed", "18446744073709551615");
	assert_true(args.seed == UINT64_MAX);
	assert_parses("--seed=0");
	assert_true(args.seed == 0 && DTP_GIVEN(&args, seed));
	generate("--seed", "18446744073709551616");
	assert_message(&err, DTP_REFUSED, "'--seed'", "18446744073709551616 is out of range", NULL);
	static const char *const bad[] = {"-1", "+1", "", " 1", "1 ", "0x10", "1e3", "1.0", "one"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		generate("--seed", bad[i]);
		assert_message(&err, DTP_REFUSED, "'--seed'", "is not a whole number", NULL);
	}
}

static void flags_whole_numbers_are_strict(void **state)
{
	(void)state;
	static const char *const words[] = {"", " 64", "64 ", "64px", "6.4", "1e2", "0x40", "--", "-", "+", "nan"};
	static const char *const range[] = {"0", "-64", "16385", "99999999999999999999999", "-99999999999999999999999"};

	assert_parses("--height", "+64");
	assert_parses("--height", "0064");
	assert_int_equal(args.height, 64);
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		generate("--height", words[i]);
		assert_message(&err, DTP_REFUSED, "option '--height'", "is not a whole number (1 to 16384)", NULL);
	}
	for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
		generate("--height", range[i]);
		assert_message(&err, DTP_REFUSED, "option '--height'", range[i], "is out of range (1 to 16384)", NULL);
	}
	generate("--num_inference_steps", "1001");
	assert_message(&err, DTP_REFUSED, "option '--steps': 1001 is out of range (1 to 1000)", NULL);
}

static void flags_decimals_are_strict(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "x", "1,5", "1.5x", "inf", "nan", "0x1p3", " 1", "1 ", "e", "."};

	assert_parses("--guidance-scale", "1e0");
	assert_true(args.guidance_scale == 1);
	assert_parses("--guidance-scale", ".5");
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		generate("--guidance-scale", bad[i]);
		assert_message(&err, DTP_REFUSED, "option '--guidance-scale'", "is not a number (0 to 1000)", NULL);
	}
	generate("--guidance-scale", "-1");
	assert_message(&err, DTP_REFUSED, "-1 is out of range", NULL);
	generate("--guidance-scale", "1e999");
	assert_message(&err, DTP_REFUSED, "1e999 is out of range", NULL);
}

static void flags_choices(void **state)
{
	(void)state;
	assert_parses("--dtype", "fp32", "--output-type=latent", "--device", "cpu");
	assert_int_equal(args.dtype, DTP_ARG_FP32);
	assert_int_equal(args.output_type, DTP_ARG_LATENT);
	assert_int_equal(args.device, DTP_ARG_CPU);
	generate("--dtype", "fp23");
	assert_message(&err, DTP_REFUSED, "'fp23' is unknown; did you mean 'fp32'? (one of bf16, fp32)", NULL);
	generate("--dtype", "int8");
	assert_message(&err, DTP_REFUSED, "'int8' is unknown; it is one of bf16, fp32", NULL);
	generate("--dtype", "");
	assert_message(&err, DTP_REFUSED, "'' is unknown", NULL);
	generate("--output-type", "latents");
	assert_message(&err, DTP_REFUSED, "did you mean 'latent'?", NULL);
	generate("--device", "cuda:0");
	assert_message(&err, DTP_REFUSED, "'cuda:0' is unknown; did you mean 'cuda'? (one of auto, cpu, cuda)", NULL);
}

static void flags_unknown_names(void **state)
{
	(void)state;
	generate("--hieght", "64");
	assert_message(&err, DTP_REFUSED, "unknown option '--hieght'; did you mean '--height'?", NULL);
	generate("--tp_dergee=2");
	assert_message(&err, DTP_REFUSED, "unknown option '--tp_dergee'; did you mean '--tp-degree'?", NULL);
	generate("--zzz");
	assert_string_equal(err.message, "unknown option '--zzz'");
	generate("-x");
	assert_string_equal(err.message, "unknown option '-x'");
	generate("-qx");
	assert_string_equal(err.message, "unknown option '-x'");
	generate("--json");
	assert_message(&err, DTP_REFUSED, "option '--json' is not one of this command's", NULL);
	assert_int_equal(parse(DTP_CMD_BENCH, "--json", "--repeat", "3", NULL), DTP_OK);
	assert_true(args.json && args.repeat == 3);
	char longest[3000];
	memset(longest, 'x', sizeof longest - 1);
	longest[sizeof longest - 1] = '\0';
	memcpy(longest, "--", 2);
	assert_int_equal(generate(longest), DTP_REFUSED);
}

static void flags_missing_and_unwanted_values(void **state)
{
	(void)state;
	generate("--height");
	assert_string_equal(err.message, "option '--height' needs a value");
	generate("-o");
	assert_string_equal(err.message, "option '-o' needs a value");
	generate("--tp_degree");
	assert_string_equal(err.message, "option '--tp_degree' needs a value");
	generate("--exact-timesteps=maybe");
	assert_string_equal(err.message, "option '--exact-timesteps': 'maybe' is neither yes nor no");
	generate("--output", "--seed=3");
	assert_message(&err, DTP_REFUSED, "option '--output' needs a value, but the option '--seed=3' follows", NULL);
	generate("--output", "");
	assert_message(&err, DTP_REFUSED, "option '--output': the path is empty", NULL);
}

static void flags_words_of_commands(void **state)
{
	(void)state;
	if (parse(DTP_CMD_PLAN, "--diff", "a.json", "--json", "-b", NULL) != DTP_REFUSED)
		fail_msg("an unknown letter after a word");
	assert_int_equal(parse(DTP_CMD_PLAN, "a.json", "--diff", "b.json", "--tp_degree=2", NULL), DTP_OK);
	assert_int_equal(args.nwords, 2);
	assert_string_equal(args.word[0], "a.json");
	assert_string_equal(args.word[1], "b.json");
	assert_true(args.diff && args.tp_degree == 2);
	assert_int_equal(parse(DTP_CMD_INSPECT, "--json", "--", "--odd", NULL), DTP_OK);
	assert_int_equal(args.nwords, 1);
	assert_string_equal(args.word[0], "--odd");
	parse(DTP_CMD_INSPECT, "a", "b", NULL);
	assert_message(&err, DTP_REFUSED, "unexpected argument 'b': at most 1 is taken here", NULL);
	parse(DTP_CMD_PLAN, "a", "b", "--json", "c", NULL);
	assert_message(&err, DTP_REFUSED, "unexpected argument 'c': at most 2 are taken here", NULL);
}

static void flags_stray_words(void **state)
{
	(void)state;
	generate("--prompt", "a", "red", "fox");
	assert_message(&err, DTP_REFUSED, "unexpected argument 'red'", "quotes", NULL);
	generate("--", "x");
	assert_message(&err, DTP_REFUSED, "unexpected argument 'x'", NULL);
}

static void flags_timeout_default_is_the_launchers(void **state)
{
	(void)state;
	for (int i = 0; i < dtp_noptions; i++)
		if (!strcmp(dtp_options[i].name, "timeout"))
			assert_int_equal(atoi(dtp_options[i].def), DTP_TIMEOUT_DEFAULT);
}

static char *written(void (*write)(FILE *, void *), void *arg)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);
	assert_non_null(f);
	write(f, arg);
	fclose(f);
	return text;
}

static void write_help(FILE *f, void *command)
{
	dtp_help_write(f, command, command == &dtp_commands[0]);
}

static void write_man(FILE *f, void *arg)
{
	(void)arg;
	dtp_man_write(f);
}

/* Whether a line of the help begins with the option. */
static int lists(const char *text, const char *option)
{
	char name[64];

	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		const char *at = line + strspn(line, " ");
		if (at - line > 8) /* an explanation that goes on */
			continue;
		at += *at == '-' && at[2] == ',' ? 4 : 0; /* "-h, " */
		snprintf(name, sizeof name, "--%s", option);
		if (!strncmp(at, name, strlen(name)) && strchr(" \n", at[strlen(name)]))
			return 1;
	}
	return 0;
}

static void help_fits_80_columns_and_names_all(void **state)
{
	(void)state;
	for (int c = 0; c < dtp_ncommands; c++) {
		char *text = written(write_help, (void *)&dtp_commands[c]);
		for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
			if (strcspn(line, "\n") > 80)
				fail_msg("longer than 80: %.*s", (int)strcspn(line, "\n"), line);
		for (int i = 0; i < dtp_noptions; i++) {
			assert_int_equal(dtp_options[i].commands & dtp_commands[c].bit ? 1 : 0, lists(text, dtp_options[i].name));
		}
		free(text);
	}
}

static void man_page_is_not_stale(void **state)
{
	(void)state;
	char *text = written(write_man, NULL), *file = read_file(fixture("../docs/difftp.1"), NULL);
	if (strcmp(text, file))
		fail_msg("docs/difftp.1 is stale: run 'make man'");
	free(text);
	free(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(flags_table_is_sound),
		cmocka_unit_test(flags_defaults_ask_the_core),
		cmocka_unit_test(flags_every_spelling),
		cmocka_unit_test(flags_equals_and_next_word),
		cmocka_unit_test(flags_shortened_names),
		cmocka_unit_test(flags_last_one_wins),
		cmocka_unit_test(flags_lists_keep_their_order),
		cmocka_unit_test(flags_switches_can_be_undone),
		cmocka_unit_test(flags_seed_has_64_bits),
		cmocka_unit_test(flags_whole_numbers_are_strict),
		cmocka_unit_test(flags_decimals_are_strict),
		cmocka_unit_test(flags_choices),
		cmocka_unit_test(flags_unknown_names),
		cmocka_unit_test(flags_missing_and_unwanted_values),
		cmocka_unit_test(flags_words_of_commands),
		cmocka_unit_test(flags_stray_words),
		cmocka_unit_test(flags_timeout_default_is_the_launchers),
		cmocka_unit_test(help_fits_80_columns_and_names_all),
		cmocka_unit_test(man_page_is_not_stale),
	};
	return cmocka_run_group_tests_name("flags", tests, NULL, NULL);
}
