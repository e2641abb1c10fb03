/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: models--ORGANISATION--NAME/refs/REVISION holds a commit, snapshots/COMMIT/ the files, as links into blobs/. */
#include "hub.h"

#include "suggest.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_NAME 200    /* of a model; the hub allows 96 for each half */
#define MAX_REVISION 200
#define PREFIX "models--"
#define WORD "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

struct wanted {
	char name[MAX_NAME + 1];   /* "black-forest-labs/FLUX.2-klein-4B" */
	char revision[MAX_REVISION + 1];
	bool revised;              /* it was given */
};

/* A variable that is set, with "~/" in front for the home folder as Python's tools take it; false: not set. */
static bool from_environment(const char *name, const char *below, char *buf, size_t size)
{
	const char *value = getenv(name), *home = getenv("HOME");

	if (!value || !*value)
		return false;
	if (value[0] == '~' && (value[1] == '/' || !value[1]) && home)
		snprintf(buf, size, "%s%s%s", home, value + 1, below);
	else
		snprintf(buf, size, "%s%s", value, below);
	return true;
}

void dtp_hub_cache(char *buf, size_t size)
{
	buf[0] = '\0';
	if (!from_environment("HF_HUB_CACHE", "", buf, size) && !from_environment("HUGGINGFACE_HUB_CACHE", "", buf, size) &&
	    !from_environment("HF_HOME", "/hub", buf, size) &&
	    !from_environment("XDG_CACHE_HOME", "/huggingface/hub", buf, size))
		from_environment("HOME", "/.cache/huggingface/hub", buf, size);
}

/* ORGANISATION/NAME[@REVISION], as the hub allows them. */
static bool parse(const char *model, struct wanted *w)
{
	const char *at = strchr(model, '@');
	size_t n = at ? (size_t)(at - model) : strlen(model), organisation = strcspn(model, "/@");

	*w = (struct wanted){.revision = "main", .revised = at};
	if (n > MAX_NAME || !organisation || model[organisation] != '/' || n == organisation + 1 ||
	    strspn(model, WORD) != organisation || strspn(model + organisation + 1, WORD) != n - organisation - 1 ||
	    model[0] == '.' || model[organisation + 1] == '.')
		return false;
	snprintf(w->name, sizeof w->name, "%.*s", (int)n, model);
	if (!at)
		return true;
	if (!at[1] || strlen(at + 1) > MAX_REVISION || at[1] == '/' || at[1] == '.' || strstr(at, ".."))
		return false;
	snprintf(w->revision, sizeof w->revision, "%s", at + 1);
	return true;
}

static bool is_folder(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* Calls fn with every visible name of a folder; false: it cannot be opened. */
static bool each_name(const char *path, void (*fn)(void *arg, const char *name), void *arg)
{
	DIR *d = opendir(path);

	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.')
			fn(arg, e->d_name);
	if (d)
		closedir(d);
	return d;
}

/* ---- what is there, for messages */

static int same_place(const char *a, const char *b)
{
	return strcmp(a + strcspn(a, "/"), b + strcspn(b, "/"));
}

struct near {
	struct dtp_suggest suggest;
	char best[256];
};

/* "models--a--b" is "a/b".  A model of the same name and another organisation is meant before one that is spelt alike. */
static void try_model(void *arg, const char *folder)
{
	struct near *near = arg;
	char name[256];

	if (strncmp(folder, PREFIX, strlen(PREFIX)))
		return;
	snprintf(name, sizeof name, "%s", folder + strlen(PREFIX));
	char *gap = strstr(name, "--");
	if (!gap)
		return;
	*gap = '/';
	memmove(gap + 1, gap + 2, strlen(gap + 2) + 1);
	const char *slash = strchr(near->suggest.name, '/'), *last = slash ? slash : near->suggest.name;
	if (!near->best[0] && (slash ? !same_place(name, near->suggest.name) : !strcmp(gap + 1, last)))
		snprintf(near->best, sizeof near->best, "%s", name);
	dtp_suggest_try(&near->suggest, name);
}

/* ": did you mean 'x', which is there?", or nothing. */
static void suggest(const char *cache, const char *name, char *buf, size_t size)
{
	struct near near = {.suggest = dtp_suggest_begin(name)};

	buf[0] = '\0';
	if (!*cache || !each_name(cache, try_model, &near))
		return;
	const char *best = near.best[0] ? near.best : near.suggest.best;
	if (*best)
		snprintf(buf, size, "; did you mean '%s', which is in the cache?", best);
}

struct words {
	char text[512];
};

static void add_word(void *arg, const char *name)
{
	struct words *w = arg;
	size_t used = strlen(w->text);

	snprintf(w->text + used, sizeof w->text - used, "%s'%s'", used ? ", " : "", name);
}

/* ---- finding */

/* The commit that a branch or tag stands for; false: there is no such reference. */
static bool read_reference(const char *repository, const char *revision, char *commit, size_t size)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/refs/%s", repository, revision) >= (int)sizeof path)
		return false;
	FILE *f = fopen(path, "re");
	bool got = f && fgets(commit, (int)size, f);
	if (f)
		fclose(f);
	if (!got)
		return false;
	commit[strcspn(commit, " \r\n")] = '\0';
	return commit[0] && commit[0] != '.' && !strchr(commit, '/');
}

static enum dtp_code absent(const char *cache, const struct wanted *w, struct dtp_err *err)
{
	char near[320];

	suggest(cache, w->name, near, sizeof near);
	return dtp_fail(err, DTP_REFUSED,
			"model '%s' is no folder, and not in the cache of Hugging Face ('%s'); difftp downloads nothing: 'hf download "
			"%s%s%s' would fetch it%s",
			w->name, cache, w->name, w->revised ? " --revision " : "", w->revised ? w->revision : "", near);
}

static enum dtp_code no_revision(const char *repository, const struct wanted *w, struct dtp_err *err)
{
	struct words refs = {""}, commits = {""};
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%.*s/refs", PATH_MAX - 16, repository);
	each_name(path, add_word, &refs);
	snprintf(path, sizeof path, "%.*s/snapshots", PATH_MAX - 16, repository);
	each_name(path, add_word, &commits);
	if (!commits.text[0])
		return dtp_fail(err, DTP_REFUSED,
				"'%s' has no files of model '%s': its download did not get far; 'hf download %s' goes on with it", repository,
				w->name, w->name);
	return dtp_fail(err, DTP_REFUSED,
			"'%s' has no revision '%s' of model '%s', but %s%s%s; name one as '%s@REVISION', or 'hf download %s --revision %s' "
			"fetches it",
			repository, w->revision, w->name, refs.text, refs.text[0] ? " and " : "", commits.text, w->name, w->name,
			w->revision);
}

static enum dtp_code find(const char *cache, const struct wanted *w, char buf[PATH_MAX], struct dtp_err *err)
{
	char repository[PATH_MAX], commit[MAX_REVISION + 1];
	const char *slash = strchr(w->name, '/');

	if (snprintf(repository, sizeof repository, "%s/" PREFIX "%.*s--%s", cache, (int)(slash - w->name), w->name, slash + 1) >=
	    (int)sizeof repository)
		return dtp_fail(err, DTP_REFUSED, "the name of the cache of Hugging Face is too long: '%s'", cache);
	if (!*cache || !is_folder(repository))
		return absent(cache, w, err);
	if (!read_reference(repository, w->revision, commit, sizeof commit))
		snprintf(commit, sizeof commit, "%s", w->revision);
	if (strchr(commit, '/') || snprintf(buf, PATH_MAX, "%s/snapshots/%s", repository, commit) >= PATH_MAX || !is_folder(buf))
		return no_revision(repository, w, err);
	return DTP_OK;
}

enum dtp_code dtp_hub_find(const char *model, char buf[PATH_MAX], struct dtp_err *err)
{
	struct wanted w;
	struct stat st;
	char cache[PATH_MAX], near[320];
	bool there = !lstat(model, &st);

	if (strlen(model) >= PATH_MAX)
		return dtp_fail(err, DTP_REFUSED, "option '--model': the path is too long");
	snprintf(buf, PATH_MAX, "%s", model);
	dtp_hub_cache(cache, sizeof cache);
	if (!there && parse(model, &w))
		return find(cache, &w, buf, err);
	if (!there && !strchr(model, '/')) {
		suggest(cache, model, near, sizeof near);
		if (near[0])
			return dtp_fail(err, DTP_REFUSED, "model folder '%s' does not exist%s", model, near);
	}
	return DTP_OK;
}
