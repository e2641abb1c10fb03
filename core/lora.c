/* SPDX-License-Identifier: Apache-2.0 */
/* Opening LoRA files: which pair of tensors belongs to which module. */
#include "lora.h"

#include "json.h"
#include "names.h"
#include "regex.h"
#include "st_hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct file {
	struct dtp_st st;
	char *path;
	double scale;      /* the user's */
	struct dtp_json about; /* PEFT's metadata; root NULL: there is none */
	struct dtp_regex **keys; /* of its alpha_pattern, in its order */
	int nkeys;
	bool *used;        /* per entry */
};

struct dtp_lora {
	struct file file[DTP_MAX_LORAS];
	int nfiles;
	struct dtp_lora_part *parts; /* those of a module follow each other */
};

/* What may stand before a module's name, and whether its dots are written '_'. */
static const struct prefix {
	const char *text;
	bool underscores;
} prefixes[] = {
	{"transformer.", false}, {"base_model.model.", false}, {"diffusion_model.", false}, {"model.diffusion_model.", false},
	{"transformer.base_model.model.", false}, {"", false}, {"lora_unet_", true}, {"lora_transformer_", true},
};
#define NPREFIXES (sizeof prefixes / sizeof *prefixes)

/* What stands behind it: the factor that is applied first, then the other. */
static const char *const suffixes[][2] = {
	{".lora_A.weight", ".lora_B.weight"},	{".lora_A.default.weight", ".lora_B.default.weight"},
	{".lora_down.weight", ".lora_up.weight"}, {".lora.down.weight", ".lora.up.weight"},
};
#define NSUFFIXES (sizeof suffixes / sizeof *suffixes)

/* Parts of names that tell of additions that are not B A; what begins with a dot is the name's end. */
static const char *const others[][2] = {
	{"dora_scale", "DoRA"},	     {"lora_magnitude_vector", "DoRA"}, {"lokr_", "LoKr"},	  {"hada_", "LoHa"},
	{"lora_B.bias", "a bias"}, {"lora_mid", "a third factor"},    {"oft_", "OFT"},	  {".diff", "a full difference"},
	{".diff_b", "a full difference"},
};

/* ---- files */

/* "FILE:scale", unless there is a file of the whole name; no scale has a slash, but a folder's name may have a colon. */
static enum dtp_code parse(const char *given, struct file *f, struct dtp_err *err)
{
	const char *colon = strrchr(given, ':');
	struct stat st;
	char *end;

	f->scale = 1;
	if (colon && colon > given && colon[1] && !strchr(colon, '/') && stat(given, &st)) {
		f->scale = strtod(colon + 1, &end);
		if (*end || !isfinite(f->scale))
			return dtp_fail(err, DTP_REFUSED, "'%s': '%s' is no scale; a LoRA is given as FILE or FILE:scale, such as x.safetensors:0.8",
					given, colon + 1);
		f->path = strndup(given, (size_t)(colon - given));
	} else {
		f->path = strdup(given);
	}
	return f->path ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory");
}

static bool tells(const char *name, const char *part)
{
	size_t n = strlen(name), m = strlen(part);

	return part[0] == '.' ? n >= m && !strcmp(name + n - m, part) : strstr(name, part) != NULL;
}

static enum dtp_code check_kind(const struct file *f, struct dtp_err *err)
{
	for (int i = 0; i < f->st.nentries; i++)
		for (size_t k = 0; k < sizeof others / sizeof *others; k++)
			if (tells(f->st.entries[i].name, others[k][0]))
				return dtp_fail(err, DTP_REFUSED,
						"'%s' holds more than low-rank factors: tensor '%s' (%s); only LoRA itself is merged", f->path,
						f->st.entries[i].name, others[k][1]);
	return DTP_OK;
}

static const cJSON *alpha_pattern(const struct file *f)
{
	return cJSON_GetObjectItemCaseSensitive(f->about.root, "transformer.alpha_pattern");
}

static enum dtp_code bad_key(const struct file *f, const char *key, struct dtp_err *err)
{
	struct dtp_err why = *err;

	return dtp_fail(err, why.code, "'%s': the key '%.200s' of 'transformer.alpha_pattern': %s", f->path, key, why.message);
}

static enum dtp_code read_keys(struct file *f, struct dtp_err *err)
{
	const cJSON *each = alpha_pattern(f), *c;

	if (!cJSON_IsObject(each))
		return DTP_OK;
	f->keys = calloc((size_t)cJSON_GetArraySize(each) + 1, sizeof(struct dtp_regex *));
	if (!f->keys)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	cJSON_ArrayForEach(c, each) {
		if (dtp_regex_new_key(c->string, &f->keys[f->nkeys], err))
			return bad_key(f, c->string, err);
		f->nkeys++;
	}
	return DTP_OK;
}

static enum dtp_code open_file(const char *given, struct file *f, struct dtp_err *err)
{
	if (parse(given, f, err) || dtp_st_open_file(f->path, &f->st, err) || check_kind(f, err))
		return err->code;
	f->used = calloc((size_t)f->st.nentries + 1, sizeof *f->used);
	if (!f->used)
		return dtp_fail(err, DTP_FAILED, "out of memory for %d tensors", f->st.nentries);
	char *text = dtp_st_metadata(&f->st, "lora_adapter_metadata");
	enum dtp_code rc = text ? dtp_json_parse(f->path, text, strlen(text), &f->about, err) : DTP_OK;
	free(text);
	return rc ? rc : read_keys(f, err);
}

/* ---- pairs */

struct pair {
	const struct dtp_st_entry *a, *b, *alpha;
};

static const struct dtp_st_entry *look(struct file *f, const char *stem, const char *suffix)
{
	char name[768];

	snprintf(name, sizeof name, "%s%s", stem, suffix);
	return dtp_st_find(&f->st, name);
}

/* The pair of a module's name in one of its spellings; false: there is none.  One factor alone is a pair with a NULL. */
static bool find_pair(struct file *f, const char *module, struct pair *out)
{
	char stem[640];

	for (size_t i = 0; i < NPREFIXES; i++) {
		int head = snprintf(stem, sizeof stem, "%s", prefixes[i].text);
		snprintf(stem + head, sizeof stem - (size_t)head, "%s", module);
		for (char *c = stem + head; prefixes[i].underscores && *c; c++)
			*c = *c == '.' ? '_' : *c;
		for (size_t k = 0; k < NSUFFIXES; k++) {
			*out = (struct pair){look(f, stem, suffixes[k][0]), look(f, stem, suffixes[k][1]), look(f, stem, ".alpha")};
			if (out->a || out->b)
				return true;
		}
	}
	return false;
}

static bool is_float(enum dtp_dtype t)
{
	return t == DTP_F32 || t == DTP_BF16 || t == DTP_F16;
}

/* rows: of the tensor that b adds to. */
static enum dtp_code check_pair(const struct file *f, const struct pair *p, const struct dtp_module *m, int64_t rows, struct dtp_err *err)
{
	const struct dtp_st_entry *one = p->a ? p->a : p->b;
	char have[96], have_b[96];

	if (!p->a || !p->b)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has no partner: a LoRA has two factors for a module", f->path, one->name);
	if (!is_float(p->a->dtype) || !is_float(p->b->dtype))
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the dtype '%s'; F32, BF16 and F16 are read", f->path,
				is_float(p->a->dtype) ? p->b->name : p->a->name,
				is_float(p->a->dtype) ? p->b->dtype_name : p->a->dtype_name);
	if (p->a->ndim != 2 || p->b->ndim != 2 || p->a->shape[0] != p->b->shape[1] || p->a->shape[0] < 1 ||
	    p->a->shape[1] != m->shape[1] || p->b->shape[0] != rows)
		return dtp_fail(err, DTP_REFUSED,
				"'%s': tensors '%s' %s and '%s' %s do not fit module '%s', to whose weight [%" PRId64 ", %" PRId64
				"] factors [r, %" PRId64 "] and [%" PRId64 ", r] add", f->path, p->a->name,
				dtp_shape_text(have, sizeof have, p->a->ndim, p->a->shape), p->b->name,
				dtp_shape_text(have_b, sizeof have_b, p->b->ndim, p->b->shape), m->name, m->shape[0], m->shape[1],
				m->shape[1], rows);
	return DTP_OK;
}

/* The first key of PEFT's alpha_pattern that fits the module's name; NULL: none does. */
static enum dtp_code pattern_key(const struct file *f, const char *module, const char **key, struct dtp_err *err)
{
	const cJSON *c = f->nkeys ? alpha_pattern(f)->child : NULL;
	bool fits = false;

	for (int i = 0; i < f->nkeys && !fits; i++, c = c->next) {
		if (dtp_regex_key_fits(f->keys[i], module, &fits, err))
			return bad_key(f, c->string, err);
		if (fits)
			*key = c->string;
	}
	return DTP_OK;
}

/* alpha / r, as the file says it: for each module, or in PEFT's metadata for all.  r is what the factors have: PEFT's r and rank_pattern
 * say it again. */
static enum dtp_code find_scale(const struct file *f, const struct pair *p, const struct dtp_module *m, float *scale, struct dtp_err *err)
{
	double rank = (double)p->a->shape[0], alpha = rank;
	bool root = false;
	float value;
	char bytes[4];

	if (p->alpha) {
		size_t size = dtp_dtype_size(p->alpha->dtype);
		if (!is_float(p->alpha->dtype) || p->alpha->nbytes != size)
			return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' is no single floating-point number", f->path, p->alpha->name);
		if (dtp_st_read(&f->st, p->alpha, 0, size, bytes, err))
			return err->code;
		dtp_to_f32(&value, bytes, p->alpha->dtype, 1);
		alpha = (double)value;
	} else if (f->about.root) {
		const char *key = NULL;
		if (pattern_key(f, m->name, &key, err) || dtp_json_double_or(&f->about, NULL, "transformer.lora_alpha", -1e9, 1e9, &alpha, err) ||
		    dtp_json_bool_or(&f->about, NULL, "transformer.use_rslora", &root, err) ||
		    (key && dtp_json_double_or(&f->about, alpha_pattern(f), key, -1e9, 1e9, &alpha, err)))
			return err->code;
	}
	*scale = (float)(alpha / (root ? sqrt(rank) : rank) * f->scale);
	if (!isfinite(*scale))
		return dtp_fail(err, DTP_REFUSED, "'%s': the scale of module '%s' is not finite", f->path, m->name);
	return DTP_OK;
}

static void mark(struct file *f, const struct dtp_st_entry *e)
{
	if (e)
		f->used[e - f->st.entries] = true;
}

/* A file's part of a module, under the module's own name or the other scheme's. */
static enum dtp_code add_part(struct file *f, const struct dtp_module *m, struct dtp_lora_part *part, bool *found, struct dtp_err *err)
{
	struct dtp_foreign foreign;
	int64_t rows = m->shape[0], row0 = 0, first_row = 0;
	struct pair p;

	*found = find_pair(f, m->name, &p);
	if (!*found && dtp_names_foreign(m->name, &foreign)) {
		*found = find_pair(f, foreign.name, &p);
		rows *= foreign.blocks ? foreign.blocks : 1;
		row0 = foreign.block * m->shape[0];
		first_row = foreign.halves ? m->shape[0] / 2 : 0;
	}
	if (!*found)
		return DTP_OK;
	*part = (struct dtp_lora_part){&f->st, p.a, p.b, row0, first_row, 0};
	if (check_pair(f, &p, m, rows, err) || find_scale(f, &p, m, &part->scale, err))
		return err->code;
	mark(f, p.a);
	mark(f, p.b);
	mark(f, p.alpha);
	return DTP_OK;
}

/* ---- what is left over */

static enum dtp_code tell_unused(const struct file *f, const struct dtp_monitor *mon, struct dtp_err *err)
{
	char text[1024];
	int n = 0, shown = 0;
	size_t len;

	for (int i = 0; i < f->st.nentries; i++)
		n += !f->used[i];
	if (!n && f->st.nentries)
		return DTP_OK;
	if (n == f->st.nentries)
		len = (size_t)snprintf(text, sizeof text, "'%.200s' changes nothing here: none of its %d tensors names a module of the transformer"
				       " (it is for another model, or no LoRA)", f->path, n);
	else
		len = (size_t)snprintf(text, sizeof text, "'%.200s': %d of %d tensors name no module of the transformer and are not applied",
				       f->path, n, f->st.nentries);
	for (int i = 0; i < f->st.nentries && shown < 4; i++)
		if (!f->used[i])
			len += (size_t)snprintf(text + len, sizeof text - len, "%s'%.100s'", shown++ ? ", " : ": ", f->st.entries[i].name);
	snprintf(text + len, sizeof text - len, "%s", n > shown ? ", ..." : "");
	if (n == f->st.nentries)
		return dtp_fail(err, DTP_REFUSED, "%s", text);
	mon->warn(mon->arg, text);
	return DTP_OK;
}

/* ---- */

static enum dtp_code attach(struct dtp_lora *l, struct dtp_tree *tree, struct dtp_err *err)
{
	int n = 0;

	for (int i = 0; i < tree->n; i++) {
		struct dtp_module *m = &tree->modules[i];
		struct dtp_lora_part *first = &l->parts[n];
		if (m->kind != DTP_MODULE_LINEAR)
			continue;
		for (int f = 0; f < l->nfiles; f++) {
			bool found;
			if (add_part(&l->file[f], m, &l->parts[n], &found, err))
				return err->code;
			n += found;
		}
		m->lora = first;
		m->nlora = (int)(&l->parts[n] - first);
	}
	return DTP_OK;
}

enum dtp_code dtp_lora_open(const char *const *given, int n, struct dtp_tree *tree, const struct dtp_monitor *mon,
			    struct dtp_lora **out, struct dtp_err *err)
{
	struct dtp_lora *l = calloc(1, sizeof *l);
	enum dtp_code rc = DTP_OK;

	*out = NULL;
	if (l)
		l->parts = calloc((size_t)tree->n * (size_t)(n + 1) + 1, sizeof *l->parts);
	if (!l || !l->parts)
		rc = dtp_fail(err, DTP_FAILED, "out of memory for %d LoRAs", n);
	for (int i = 0; i < n && !rc; i++)
		rc = open_file(given[i], &l->file[l->nfiles++], err);
	rc = rc ? rc : attach(l, tree, err);
	for (int i = 0; i < n && !rc; i++)
		rc = tell_unused(&l->file[i], mon, err);
	if (rc) {
		dtp_lora_close(l);
		for (int i = 0; i < tree->n; i++)
			tree->modules[i].nlora = 0;
		return rc;
	}
	*out = l;
	return DTP_OK;
}

void dtp_lora_close(struct dtp_lora *l)
{
	if (!l)
		return;
	for (int i = 0; i < l->nfiles; i++) {
		dtp_st_close(&l->file[i].st);
		for (int k = 0; k < l->file[i].nkeys; k++)
			dtp_regex_free(l->file[i].keys[k]);
		free(l->file[i].keys);
		dtp_json_free(&l->file[i].about);
		free(l->file[i].path);
		free(l->file[i].used);
	}
	free(l->parts);
	free(l);
}

enum dtp_code dtp_lora_hash(const struct dtp_lora *l, struct dtp_hash *h, struct dtp_err *err)
{
	for (int i = 0; i < l->nfiles; i++) {
		dtp_hash_add(h, &l->file[i].scale, sizeof l->file[i].scale);
		if (dtp_st_hash(&l->file[i].st, h, err))
			return err->code;
	}
	return DTP_OK;
}
