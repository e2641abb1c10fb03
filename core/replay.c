/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include <string.h>

struct call {
	struct dtp_ctx *c;
	void (*work)(void *arg);
	void *arg;
	struct dtp_opstat before[DTP_NOPS];
	bool asked;
};

/* For the backend, which may ask twice: what was counted the first time does not count. */
static enum dtp_code ask(void *p, struct dtp_err *err)
{
	struct call *k = p;
	struct dtp_ctx *c = k->c;

	memcpy(c->stat, k->before, sizeof c->stat);
	k->asked = true;
	k->work(k->arg);
	if (dtp_ok(c))
		return DTP_OK;
	*err = c->err;
	c->err = (struct dtp_err)DTP_ERR_INIT;
	return err->code;
}

/* to += sign * from, but for the seconds. */
static void count(struct dtp_opstat *to, const struct dtp_opstat *from, int sign)
{
	for (int op = 0; op < DTP_NOPS; op++) {
		to[op].calls += (uint64_t)(int64_t)sign * from[op].calls;
		to[op].flops += sign * from[op].flops;
		to[op].bytes += sign * from[op].bytes;
	}
}

static const char *plain(const struct dtp_ctx *c)
{
	if (!c->be->ops->replay)
		return "this device does each operation when it is asked for it";
	return c->dump ? "stages are recorded" : c->observer ? "layers are compared" : NULL;
}

void dtp_replay(struct dtp_ctx *c, struct dtp_replay *r, void (*work)(void *arg), void *arg)
{
	struct call k = {.c = c, .work = work, .arg = arg};
	struct dtp_err err = DTP_ERR_INIT;

	if (dtp_ok(c) && c->mon->stopped(c->mon->arg))
		dtp_fail(&c->err, DTP_INTERRUPTED, "stopped");
	if (!dtp_ok(c) || plain(c)) {
		work(arg);
		return;
	}
	memcpy(k.before, c->stat, sizeof k.before);
	if (c->be->ops->replay(c->be, &r->recording, ask, &k, &err))
		c->err = err;
	if (k.asked) {
		memcpy(r->cost, c->stat, sizeof r->cost);
		count(r->cost, k.before, -1);
	} else {
		count(c->stat, r->cost, 1);
	}
	c->mon->beat(c->mon->arg);
}

const char *dtp_replay_refused(const struct dtp_ctx *c, const struct dtp_replay *r)
{
	const char *why = plain(c);

	if (!why && !r->recording)
		return "nothing was done";
	return why ? why : c->be->ops->replay_refused(c->be, r->recording);
}

enum dtp_code dtp_replay_agree(struct dtp_ctx *c, struct dtp_replay *r, struct dtp_err *err)
{
	int32_t lost = dtp_replay_refused(c, r) != NULL;

	if (!r->recording)
		return DTP_OK;
	if (dtp_all_reduce(c->tp, &lost, 1, DTP_I32, err))
		return err->code;
	if (lost && lost < c->tp->size)
		dtp_replay_free(c->be, r);
	return DTP_OK;
}

void dtp_replay_free(struct dtp_backend *be, struct dtp_replay *r)
{
	if (r->recording)
		be->ops->replay_free(be, r->recording);
	*r = (struct dtp_replay){0};
}
