/* SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <string.h>

#define WIDTH 79
#define INDENT 30

/* ---- text for people */

/* Words of s from column `column` on, wrapped before WIDTH; further lines begin at `indent`.  Ends the line. */
static void wrap(FILE *f, const char *s, int column, int indent)
{
	bool first = true;

	for (size_t n; *s; s += n + strspn(s + n, " "), first = false) {
		n = strcspn(s, " ");
		if (!first && column + 1 + (int)n > WIDTH) {
			fprintf(f, "\n%*s", indent, "");
			column = indent;
		} else if (!first) {
			fputc(' ', f);
			column++;
		}
		fprintf(f, "%.*s", (int)n, s);
		column += (int)n;
	}
	fputc('\n', f);
}

struct choices {
	char text[256];
};

static bool add_choice(void *arg, const char *word, size_t len)
{
	struct choices *c = arg;
	const char *alias = memchr(word, '=', len);
	size_t used = strlen(c->text);

	snprintf(c->text + used, sizeof c->text - used, "%s%.*s", used ? "|" : "",
		 (int)(alias ? (size_t)(alias - word) : len), word);
	return true;
}

/* "N", "bf16|fp32", or "" for a switch. */
static const char *value_name(const struct dtp_option *o, struct choices *c)
{
	c->text[0] = '\0';
	if (o->kind == DTP_OPT_CHOICE)
		dtp_each_word(o->choices, add_choice, c);
	else if (o->value)
		snprintf(c->text, sizeof c->text, "%s", o->value);
	return c->text;
}

static void help_option(FILE *f, const struct dtp_option *o)
{
	struct choices c;
	const char *value = value_name(o, &c);
	char text[512], letter[8] = "    ";

	if (o->letter)
		snprintf(letter, sizeof letter, "-%c, ", o->letter);
	int column = fprintf(f, "  %s--%s%s%s", letter, o->name, *value ? " " : "", value);
	if (column > INDENT - 2) {
		fputc('\n', f);
		column = 0;
	}
	fprintf(f, "%*s", INDENT - column, "");
	int n = snprintf(text, sizeof text, "%s", o->text);
	if (o->def || o->env)
		snprintf(text + n, sizeof text - (size_t)n, " (default: %s%s%s)", o->env ? o->env : "", o->env && o->def ? ", else " : "",
			 o->def ? o->def : "");
	wrap(f, text, INDENT, INDENT);
}

void dtp_help_write(FILE *f, const struct dtp_command *command, bool general)
{
	const char *name = general ? "" : command->name;

	fprintf(f, "Usage: difftp %s%s%s\n", name, general ? "" : " ", command->usage);
	if (general) {
		fputs("       difftp COMMAND [OPTION]...\n\n"
		      "Draws images with Flux2-family diffusion transformers on tensor-parallel ranks.\n\n"
		      "Commands ('difftp COMMAND --help' lists the options of each):\n", f);
		for (int i = 0; i < dtp_ncommands; i++)
			fprintf(f, "  %-12s%s\n", dtp_commands[i].name, dtp_commands[i].summary);
	} else {
		fputc('\n', f);
		char first = command->summary[0];
		fprintf(f, "%c%s.\n", first >= 'a' && first <= 'z' ? first - 'a' + 'A' : first, command->summary + 1);
	}
	for (int g = 0; g < DTP_NGROUPS; g++) {
		bool titled = false;
		for (int i = 0; i < dtp_noptions; i++) {
			const struct dtp_option *o = &dtp_options[i];
			if ((int)o->group != g || !(o->commands & command->bit))
				continue;
			if (!titled)
				fprintf(f, "\n%s:\n", dtp_group_titles[g]);
			titled = true;
			help_option(f, o);
		}
	}
	if (general)
		fputs("\nWhat the command line does not say comes from environment variables, then from\n"
		      "lines 'option = value' in $XDG_CONFIG_HOME/difftp/config (else in\n"
		      "~/.config/difftp/config), then from the defaults above.\n", f);
	fputs("\nExit status: 0 done; 1 the run failed; 2 refused before work (usage, input,\n"
	      "plan, checkpoint, memory); 130 interrupted.  'man difftp' tells more.\n", f);
}

/* ---- the man page */

/* Text in roff: backslashes and dashes are escaped, and a line does not begin with a dot or a quote. */
static void roff(FILE *f, const char *s)
{
	if (*s == '.' || *s == '\'')
		fputs("\\&", f);
	for (; *s; s++) {
		if (*s == '\\')
			fputs("\\e", f);
		else if (*s == '-')
			fputs("\\-", f);
		else if (*s == '\'')
			fputs("\\(aq", f);
		else
			fputc(*s, f);
	}
}

static bool man_alias(void *arg, const char *word, size_t len)
{
	char name[64];

	snprintf(name, sizeof name, "%.*s", (int)len, word);
	fputs(", \\fB\\-\\-", arg);
	roff(arg, name);
	fputs("\\fR", arg);
	return true;
}

static const char *man_range(const struct dtp_option *o, char *buf, size_t len)
{
	buf[0] = '\0';
	if (o->kind == DTP_OPT_INT || o->kind == DTP_OPT_FLOAT)
		snprintf(buf, len, " From %.7g to %.7g.", o->min, o->max);
	return buf;
}

/* Which commands take the option, unless it is those that most are of. */
static void man_commands(FILE *f, unsigned commands)
{
	int n = 0;

	if (commands == DTP_CMD_ASK || commands == DTP_CMD_ALL)
		return;
	for (int i = 0; i < dtp_ncommands; i++)
		if (commands & dtp_commands[i].bit)
			fprintf(f, "%s\\fB%s\\fR", n++ ? ", " : " Of ", dtp_commands[i].name);
	fputc('.', f);
}

static void man_option(FILE *f, const struct dtp_option *o)
{
	struct choices c;
	const char *value = value_name(o, &c);
	char range[64];

	fputs(".TP\n", f);
	if (o->letter)
		fprintf(f, "\\fB\\-%c\\fR, ", o->letter);
	fputs("\\fB\\-\\-", f);
	roff(f, o->name);
	fputs("\\fR", f);
	dtp_each_word(o->aliases, man_alias, f);
	if (*value) {
		fputs(o->kind == DTP_OPT_CHOICE ? " \\fB" : " \\fI", f);
		roff(f, value);
		fputs("\\fR", f);
	}
	fputc('\n', f);
	roff(f, o->text);
	fputc('.', f);
	roff(f, man_range(o, range, sizeof range));
	if (o->def || o->env) {
		fputs(" Default: ", f);
		if (o->env)
			fprintf(f, "\\fB%s\\fR%s", o->env, o->def ? ", else " : "");
		if (o->def)
			roff(f, o->def);
		fputc('.', f);
	}
	man_commands(f, o->commands & ~(unsigned)DTP_CMD_LINE);
	fputc('\n', f);
}

static const char man_head[] =
	".SH NAME\n"
	"difftp \\- draw images with diffusion transformers on tensor\\-parallel ranks\n"
	".SH SYNOPSIS\n"
	".nf\n";
static const char man_description[] =
	".fi\n"
	".SH DESCRIPTION\n"
	"\\fBdifftp\\fR draws images with Flux2\\-family diffusion transformers. It reads a pipeline folder in the layout of\n"
	"Hugging Face diffusers, starts one process (rank) per share of the model, lets each rank read only its own slices\n"
	"of the weights, and writes the picture that diffusers draws from the same folder, prompt and seed, whatever the\n"
	"number of ranks.\n"
	".SH COMMANDS\n";
static const char man_options[] =
	".SH OPTIONS\n"
	"Names may be shortened as long as they are unambiguous, and written with underscores instead of dashes.\n"
	"Values follow as the next word or after an equals sign; a switch may be given as \\fB\\-\\-quiet=no\\fR. Where no command is named an option is of \\fBgenerate\\fR,\n"
	"\\fBbench\\fR and \\fBplan\\fR.\n";
static const char man_tail[] =
	".SH EXIT STATUS\n"
	".TP\n0\nThe images were written.\n"
	".TP\n1\nThe run failed: a rank, a device, the disk or a standard stream; some images of a batch; \\fBplan \\-\\-diff\\fR or\n"
	"\\fBverify\\fR found differences; or \\fBdoctor\\fR found what a run would fail of.\n"
	".TP\n2\nRefused before any work: usage, input, plan, checkpoint, or it does not fit into memory.\n"
	".TP\n130\nInterrupted by SIGINT, SIGTERM or SIGHUP.\n"
	".SH ENVIRONMENT\n"
	".TP\n\\fBCOLUMNS\\fR\nWidth of the progress line, instead of the terminal's own.\n"
	".TP\n\\fBTERM\\fR\n\\fIdumb\\fR: no redrawing; progress is printed as plain lines.\n"
	".TP\n\\fBNO_COLOR\\fR\nNot empty: no colours.\n"
	".TP\n\\fBHF_HUB_CACHE\\fR, \\fBHUGGINGFACE_HUB_CACHE\\fR, \\fBHF_HOME\\fR, \\fBXDG_CACHE_HOME\\fR\n"
	"The cache in which \\fB\\-\\-model\\fR looks for names: the first or the second, or \\fIhub\\fR in the third, or\n"
	"\\fIhuggingface/hub\\fR in the fourth, or \\fI~/.cache/huggingface/hub\\fR.\n"
	".TP\n\\fBDIFFTP_...\\fR\nDefaults of the options that name such a variable. One that is empty counts as not set.\n"
	".SH FILES\n"
	".TP\n\\fI$XDG_CONFIG_HOME/difftp/config\\fR, else \\fI~/.config/difftp/config\\fR\n"
	"Defaults of options: lines \\fIoption = value\\fR, of a switch \\fByes\\fR or \\fBno\\fR, of a list one line for each value; a line\n"
	"that begins with # is a comment. Options that say what a single run is about (\\fB\\-\\-prompt\\fR, \\fB\\-\\-output\\fR, ...) are\n"
	"refused there. The command line stands above the environment, that above the file, and the file above the\n"
	"defaults; what an input file says (the size of latents or images, the degree of a sharded folder) counts as said on\n"
	"the command line. \\fBverify\\fR takes no default for the picture.\n"
	".SH EXAMPLES\n"
	".nf\n"
	"difftp \\-\\-model FLUX.2\\-klein\\-4B \\-\\-prompt \"a red fox in snow\" \\-\\-tp\\-degree 4 \\-o fox.png\n"
	"difftp plan \\-\\-model FLUX.2\\-klein\\-4B \\-\\-tp\\-degree 4 \\-\\-devices 4x24GB\n"
	"difftp inspect FLUX.2\\-klein\\-4B \\-\\-check\n"
	"difftp bench \\-\\-model FLUX.2\\-klein\\-4B \\-\\-prompt \"a red fox\" \\-\\-tp\\-degree 2 \\-\\-json\n"
	".fi\n"
	".SH SEE ALSO\n"
	"README.md and docs/running.md of the source.\n";

void dtp_man_write(FILE *f)
{
	fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made by 'make man' from the table of options; do not edit.\n", f);
	fprintf(f, ".TH DIFFTP 1 \"\" \"difftp %s\" \"User Commands\"\n", DTP_VERSION);
	fputs(man_head, f);
	for (int i = 0; i < dtp_ncommands; i++) {
		fputs("\\fBdifftp\\fR ", f);
		if (i) /* the first is the one that needs no name */
			fprintf(f, "\\fB%s\\fR ", dtp_commands[i].name);
		roff(f, dtp_commands[i].usage);
		fputc('\n', f);
	}
	fputs(man_description, f);
	for (int i = 0; i < dtp_ncommands; i++) {
		fprintf(f, ".TP\n\\fB%s\\fR\n", dtp_commands[i].name);
		roff(f, dtp_commands[i].summary);
		fputs(".\n", f);
	}
	fputs(man_options, f);
	for (int g = 0; g < DTP_NGROUPS; g++) {
		fprintf(f, ".SS %s\n", dtp_group_titles[g]);
		for (int i = 0; i < dtp_noptions; i++)
			if ((int)dtp_options[i].group == g)
				man_option(f, &dtp_options[i]);
	}
	fputs(man_tail, f);
}
