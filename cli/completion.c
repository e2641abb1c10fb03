/* SPDX-License-Identifier: Apache-2.0 */
#include "completion.h"

#include "commands.h"

#include <string.h>

/* ---- what a value may be */

enum value { NONE, CHOICES, FILES, FOLDERS, OTHER };

static enum value value_of(const struct dtp_option *o)
{
	switch (o->kind) {
	case DTP_OPT_SWITCH:
		return NONE;
	case DTP_OPT_CHOICE:
		return CHOICES;
	case DTP_OPT_PATH:
	case DTP_OPT_LIST:
		return !strcmp(o->value, "NAME") ? OTHER : !strncmp(o->value, "DIR", 3) && !strstr(o->value, "FILE") ? FOLDERS : FILES;
	default:
		return OTHER;
	}
}

static bool is_of(const struct dtp_option *o, const struct dtp_command *c)
{
	return o->commands & (unsigned)c->bit;
}

/* The words "a" of "a=b c": spellings of choices that are not the first are understood, not offered. */
static bool put_choice(void *arg, const char *word, size_t len)
{
	fprintf(arg, " %.*s", (int)(strcspn(word, "= ") < len ? strcspn(word, "= ") : len), word);
	return true;
}

/* Help up to its first '(' or ';', within single quotes of the shell: what ends these is written as `quote`, and the characters of
 * `special` with a backslash. */
static void put_text(FILE *f, const char *text, const char *quote, const char *special)
{
	size_t n = strcspn(text, ";(");

	while (n && text[n - 1] == ' ')
		n--;
	for (const char *s = text; s < text + n; s++) {
		if (*s == '\'')
			fputs(quote, f);
		else if (strchr(special, *s))
			fprintf(f, "\\%c", *s);
		else
			fputc(*s, f);
	}
}

/* ---- bash */

static bool put_long(void *arg, const char *word, size_t len)
{
	fprintf(arg, " --%.*s", (int)len, word);
	return true;
}

static bool put_pattern(void *arg, const char *word, size_t len)
{
	fprintf(arg, "|--%.*s", (int)len, word);
	return true;
}

static void bash_commands(FILE *f)
{
	fputs("\tlocal commands='", f);
	for (int i = 0; i < dtp_ncommands; i++)
		fprintf(f, "%s%s", i ? " " : "", dtp_commands[i].name);
	fputs("' options=\n\tcase $command in\n", f);
	for (int i = 0; i < dtp_ncommands; i++) {
		fprintf(f, "\t%s) options='", dtp_commands[i].name);
		for (int k = 0; k < dtp_noptions; k++)
			if (is_of(&dtp_options[k], &dtp_commands[i]))
				dtp_each_word(dtp_options[k].name, put_long, f);
		fputs("' ;;\n", f);
	}
	fputs("\tesac\n", f);
}

static void bash_values(FILE *f)
{
	static const char *const reply[] = {
		[FILES] = "compopt -o default; COMPREPLY=()",
		[FOLDERS] = "compopt -o dirnames; COMPREPLY=()",
		[OTHER] = "COMPREPLY=()",
	};

	fputs("\tcase $option in\n", f);
	for (int i = 0; i < dtp_noptions; i++) {
		const struct dtp_option *o = &dtp_options[i];
		enum value v = value_of(o);
		if (v == NONE)
			continue;
		fprintf(f, "\t--%s", o->name);
		dtp_each_word(o->aliases, put_pattern, f);
		if (o->letter)
			fprintf(f, "|-%c", o->letter);
		fputs(")\n\t\t", f);
		if (v == CHOICES) {
			fputs("COMPREPLY=($(compgen -W '", f);
			dtp_each_word(o->choices, put_choice, f);
			fputs("' -- \"$word\"))", f);
		} else {
			fputs(reply[v], f);
		}
		fputs("\n\t\treturn\n\t\t;;\n", f);
	}
	fputs("\tesac\n", f);
}

static void bash_words(FILE *f)
{
	fputs("\tcase $command in\n\tcompletion) COMPREPLY=($(compgen -W '" DTP_SHELLS "' -- \"$word\")) ;;\n\t", f);
	for (int i = 0, n = 0; i < dtp_ncommands; i++)
		if (dtp_command_words(dtp_commands[i].bit) && dtp_commands[i].bit != DTP_CMD_COMPLETION)
			fprintf(f, "%s%s", n++ ? "|" : "", dtp_commands[i].name);
	fputs(") compopt -o default ;;\n\tesac\n", f);
}

static void bash(FILE *f)
{
	fputs("# bash completion of difftp, made by 'difftp completion bash'\n"
	      "_difftp() {\n"
	      "\tlocal word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} command=generate\n"
	      "\tCOMPREPLY=()\n"
	      "\t[[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}\n"
	      "\tif [[ $word == '=' ]]; then\n\t\tword=\n"
	      "\telif [[ $option == '=' ]]; then\n\t\toption=${COMP_WORDS[COMP_CWORD - 2]}\n\tfi\n"
	      "\toption=${option//_/-}\n", f);
	bash_commands(f);
	bash_values(f);
	fputs("\tif [[ $word == -* ]]; then\n"
	      "\t\tCOMPREPLY=($(compgen -W \"$options\" -- \"${word//_/-}\"))\n\t\treturn\n\tfi\n"
	      "\tif [[ $COMP_CWORD -eq 1 ]]; then\n\t\tCOMPREPLY=($(compgen -W \"$commands\" -- \"$word\"))\n\t\treturn\n\tfi\n", f);
	bash_words(f);
	fputs("}\ncomplete -F _difftp difftp\n", f);
}

/* ---- zsh */

static void zsh_option(FILE *f, const struct dtp_option *o)
{
	static const char *const action[] = {[FILES] = "_files", [FOLDERS] = "_files -/", [OTHER] = ""};
	enum value v = value_of(o);

	fputs("\t\t\t", f);
	if (o->letter) /* one of the two is enough */
		fprintf(f, "'(-%c --%s)'{-%c%s,--%s%s}'[", o->letter, o->name, o->letter, v == NONE ? "" : "+", o->name, v == NONE ? "" : "=");
	else
		fprintf(f, "'%s--%s%s[", o->kind == DTP_OPT_LIST ? "*" : "", o->name, v == NONE ? "" : "=");
	put_text(f, o->text, "'\\''", "[]:\\");
	fputc(']', f);
	if (v == CHOICES) {
		fputs(":value:(", f);
		dtp_each_word(o->choices, put_choice, f);
		fputc(')', f);
	} else if (v != NONE) {
		fputc(':', f);
		put_text(f, o->value, "'\\''", "[]:\\");
		fprintf(f, ":%s", action[v]);
	}
	fputs("' \\\n", f);
}

static void zsh_command(FILE *f, const struct dtp_command *c)
{
	fprintf(f, "\t%s)\n\t\t_arguments -s -S \\\n", c->name);
	for (int i = 0; i < dtp_noptions; i++)
		if (is_of(&dtp_options[i], c))
			zsh_option(f, &dtp_options[i]);
	if (c->bit == DTP_CMD_COMPLETION)
		fputs("\t\t\t'1:shell:(" DTP_SHELLS ")'\n", f);
	else if (dtp_command_words(c->bit))
		fputs("\t\t\t'*:file:_files'\n", f);
	else
		fputs("\t\t\t'*: :'\n", f);
	fputs("\t\t;;\n", f);
}

static void zsh(FILE *f)
{
	fputs("#compdef difftp\n# zsh completion of difftp, made by 'difftp completion zsh'\n"
	      "_difftp() {\n\tlocal command=generate\n\tlocal -a commands\n\tcommands=(\n", f);
	for (int i = 0; i < dtp_ncommands; i++) {
		fprintf(f, "\t\t'%s:", dtp_commands[i].name);
		put_text(f, dtp_commands[i].summary, "'\\''", "\\:");
		fputs("'\n", f);
	}
	fputs("\t)\n"
	      "\tif (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n\t\t_describe command commands\n\t\treturn\n\tfi\n"
	      "\tif [[ $words[2] != -* ]]; then\n\t\tcommand=$words[2]\n\t\tshift words\n\t\t(( CURRENT-- ))\n\tfi\n"
	      "\tcase $command in\n", f);
	for (int i = 0; i < dtp_ncommands; i++)
		zsh_command(f, &dtp_commands[i]);
	fputs("\tesac\n}\n"
	      "# As a file of fpath it is the function's body; sourced, it is to be registered.\n"
	      "if [[ $funcstack[1] == _difftp ]]; then\n\t_difftp \"$@\"\nelse\n\tcompdef _difftp difftp\nfi\n", f);
}

/* ---- fish */

static void fish_option(FILE *f, const struct dtp_option *o)
{
	enum value v = value_of(o);

	fputs("complete -c difftp -n '__difftp_command", f);
	for (int i = 0; i < dtp_ncommands; i++)
		if (is_of(o, &dtp_commands[i]))
			fprintf(f, " %s", dtp_commands[i].name);
	fprintf(f, "' -l %s", o->name);
	if (o->letter)
		fprintf(f, " -s %c", o->letter);
	if (v == CHOICES) {
		fputs(" -x -a '", f);
		dtp_each_word(o->choices, put_choice, f);
		fputc('\'', f);
	} else if (v != NONE) {
		fputs(v == FILES ? " -r -F" : v == FOLDERS ? " -x -a '(__fish_complete_directories)'" : " -x", f);
	}
	fputs(" -d '", f);
	put_text(f, o->text, "\\'", "\\");
	fputs("'\n", f);
}

static void fish(FILE *f)
{
	fputs("# fish completion of difftp, made by 'difftp completion fish'\n"
	      "function __difftp_command -d 'whether the command is one of the arguments'\n"
	      "\tset -l words (commandline -opc)\n\tset -l command generate\n"
	      "\tif test (count $words) -gt 1; and not string match -q -- '-*' $words[2]\n\t\tset command $words[2]\n\tend\n"
	      "\tcontains -- $command $argv\nend\n"
	      "function __difftp_first -d 'whether the word is the first'\n\ttest (count (commandline -opc)) -eq 1\nend\n"
	      "complete -c difftp -f\n", f);
	for (int i = 0; i < dtp_ncommands; i++) {
		const struct dtp_command *c = &dtp_commands[i];
		fprintf(f, "complete -c difftp -n __difftp_first -a %s -d '", c->name);
		put_text(f, c->summary, "\\'", "\\");
		fputs("'\n", f);
		if (c->bit == DTP_CMD_COMPLETION)
			fprintf(f, "complete -c difftp -n '__difftp_command %s; and not __difftp_first' -a '" DTP_SHELLS "'\n", c->name);
		else if (dtp_command_words(c->bit))
			fprintf(f, "complete -c difftp -n '__difftp_command %s' -F\n", c->name);
	}
	for (int i = 0; i < dtp_noptions; i++)
		fish_option(f, &dtp_options[i]);
}

/* ---- */

enum dtp_code dtp_completion_write(FILE *f, const char *shell, struct dtp_err *err)
{
	static const struct {
		const char *name;
		void (*write)(FILE *f);
	} shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};

	for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++)
		if (!strcmp(shells[i].name, shell)) {
			shells[i].write(f);
			return DTP_OK;
		}
	return dtp_fail(err, DTP_REFUSED, "there are no completions for '%s'; there are for bash, zsh and fish", shell);
}

enum dtp_code dtp_cmd_completion(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	(void)argv;
	if (!args->nwords)
		return dtp_fail(err, DTP_REFUSED, "which shell is missing: difftp completion bash, zsh or fish");
	return dtp_completion_write(stdout, args->word[0], err);
}
