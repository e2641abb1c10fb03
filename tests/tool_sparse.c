/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of any size and shape: tool_sparse DIR [SEED [PREFIX]]
 * DIR is a pipeline folder with its configurations.  Writes the safetensors files of its transformer, text encoder and VAE, in
 * shards of up to 10 GB with an index: right headers (BF16, every declared tensor), and behind them a hole, which takes no room, or
 * with a seed random weights of a size that keeps activations near 1.  PREFIX: which of the family's prefixes the text
 * encoder's tensors have (0). */
#include "text_encoder.h"
#include "transformer.h"
#include "vae.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHARD_BYTES UINT64_C(10000000000)

static void die(const char *what)
{
	fprintf(stderr, "tool_sparse: %s\n", what);
	exit(1);
}

static void check(enum dtp_code code, const struct dtp_err *err)
{
	if (code)
		die(err->message);
}

#define MAX_TENSORS 4096
static uint64_t state; /* of the random numbers; 0: none are wanted */

struct content {
	uint64_t n;
	float mean, spread; /* uniform within mean - spread .. mean + spread */
};

struct shard {
	char *header;
	size_t len;
	FILE *text;
	uint64_t bytes;
	int n;
	struct content content[MAX_TENSORS];
};

static void begin(struct shard *s)
{
	s->header = NULL;
	s->bytes = 0;
	s->n = 0;
	s->text = open_memstream(&s->header, &s->len);
	if (!s->text)
		die("out of memory");
	fputs("{\"__metadata__\":{\"format\":\"pt\"}", s->text);
}

static uint64_t param_bytes(const struct dtp_param *p)
{
	uint64_t n = 2;

	for (int d = 0; d < p->ndim; d++)
		n *= (uint64_t)p->shape[d];
	return n;
}

/* Matrices keep the variance of what they multiply; norms multiply by nearly 1. */
static struct content content_of(const struct dtp_param *p, uint64_t bytes)
{
	const char *suffix = strrchr(p->name, '.');
	double fan_in = 1;

	for (int d = 1; d < p->ndim; d++)
		fan_in *= (double)p->shape[d];
	if (p->ndim == 1)
		return (struct content){bytes / 2, !strcmp(suffix, ".bias") || !strcmp(suffix, ".running_mean") ? 0.0f : 1.0f, 0.1f};
	return (struct content){bytes / 2, 0.0f, (float)sqrt(3 / fan_in)};
}

static void write_random(FILE *f, const struct content *c)
{
	static uint16_t block[65536];
	uint64_t left = c->n;

	while (left) {
		size_t n = left < 65536 ? (size_t)left : 65536;
		for (size_t i = 0; i < n; i++) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			block[i] = dtp_f32_to_bf16(c->mean + c->spread * ((float)(state >> 40) * 0x1p-23f - 1));
		}
		if (fwrite(block, 2, n, f) != n)
			die("cannot write a shard");
		left -= n;
	}
}

static void add(struct shard *s, const char *prefix, const struct dtp_param *p)
{
	uint64_t n = param_bytes(p);

	if (s->n == MAX_TENSORS)
		die("too many tensors in a shard");
	s->content[s->n++] = content_of(p, n);
	fprintf(s->text, ",\"%s%s\":{\"dtype\":\"BF16\",\"shape\":[", prefix, p->name);
	for (int d = 0; d < p->ndim; d++)
		fprintf(s->text, "%s%" PRId64, d ? "," : "", p->shape[d]);
	fprintf(s->text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", s->bytes, s->bytes + n);
	s->bytes += n;
}

static void end(struct shard *s, const char *path)
{
	fputc('}', s->text);
	if (fclose(s->text))
		die("out of memory");
	unsigned char length[8];
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)((uint64_t)s->len >> (8 * i));
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(length, 1, 8, f) != 8 || fwrite(s->header, 1, s->len, f) != s->len)
		die("cannot write a shard");
	for (int i = 0; state && i < s->n; i++)
		write_random(f, &s->content[i]);
	if (fflush(f) || ftruncate(fileno(f), (off_t)(8 + s->len + s->bytes)) || fclose(f))
		die("cannot write a shard");
	free(s->header);
}

static void write_tree(const struct dtp_tree *t, const char *prefix, const char *dir, const char *base)
{
	static struct shard s;
	struct dtp_param p;
	char path[4200], name[200];
	int number = 1;

	snprintf(path, sizeof path, "%s/%s.safetensors.index.json", dir, base);
	FILE *index = fopen(path, "w");
	if (!index)
		die("cannot write an index");
	fputs("{\"metadata\":{},\"weight_map\":{", index);
	begin(&s);
	for (int i = 0, first = 1; i < t->n; i++)
		for (int which = 0; dtp_module_param(&t->modules[i], which, &p); which++, first = 0) {
			if (s.bytes && s.bytes + param_bytes(&p) > SHARD_BYTES) {
				snprintf(path, sizeof path, "%s/%s-%05d.safetensors", dir, base, number++);
				end(&s, path);
				begin(&s);
			}
			add(&s, prefix, &p);
			snprintf(name, sizeof name, "%s-%05d.safetensors", base, number);
			fprintf(index, "%s\"%s%s\":\"%s\"", first ? "" : ",", prefix, p.name, name);
		}
	snprintf(path, sizeof path, "%s/%s-%05d.safetensors", dir, base, number);
	end(&s, path);
	fputs("}}", index);
	if (fclose(index))
		die("cannot write an index");
}

int main(int argc, char **argv)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_transformer transformer;
	struct dtp_text_encoder text;
	struct dtp_vae vae;
	char dir[4096];

	if (argc < 2 || argc > 4)
		die("usage: tool_sparse DIR [SEED [PREFIX]]");
	state = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	int prefix = argc > 3 ? atoi(argv[3]) : 0;
	snprintf(dir, sizeof dir, "%s/transformer", argv[1]);
	check(dtp_transformer_open(dir, &transformer, &err), &err);
	write_tree(&transformer.tree, "", dir, "diffusion_pytorch_model");
	snprintf(dir, sizeof dir, "%s/text_encoder", argv[1]);
	bool encodes = !access(dir, F_OK); /* where prompts come from a file the folder is not needed */
	if (encodes) {
		check(dtp_text_open(dir, &text, &err), &err);
		write_tree(&text.tree, text.family->prefix[prefix], dir, "model");
		dtp_text_close(&text);
	}
	snprintf(dir, sizeof dir, "%s/vae", argv[1]);
	check(dtp_vae_open(dir, true, &vae, &err), &err);
	write_tree(&vae.tree, "", dir, "diffusion_pytorch_model");
	dtp_transformer_close(&transformer);
	dtp_vae_close(&vae);
	return 0;
}
