/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that split a checkpoint into a file per rank, and put it together again. */
#include "shard.h"

#include "clock.h"
#include "commands.h"
#include "progress.h"
#include "request.h"
#include "shards.h"
#include "units.h"

#include <signal.h>

/* The one thing that a signal's handler may touch. */
static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

static void catch_signals(void)
{
	struct sigaction act = {.sa_handler = on_signal}, old;

	sigemptyset(&act.sa_mask);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	if (!sigaction(SIGHUP, NULL, &old) && old.sa_handler != SIG_IGN) /* else nohup, as in signals.c */
		sigaction(SIGHUP, &act, NULL);
}

/* ---- what a person sees */

static void on_stage(void *arg, enum dtp_phase phase, const char *text)
{
	dtp_progress_event(arg, &(struct dtp_event){.kind = DTP_EVENT_STAGE, .phase = phase, .text = text});
}

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	dtp_progress_event(arg, &(struct dtp_event){.kind = DTP_EVENT_PROGRESS, .phase = DTP_PHASE_LOAD, .done = done, .total = total});
}

static void on_warn(void *arg, const char *text)
{
	dtp_progress_warn(arg, text);
}

static bool on_stopped(void *arg)
{
	(void)arg;
	return interrupted;
}

/* ---- the commands */

typedef enum dtp_code (*convert_fn)(struct dtp_pipeline *p, const char *out, const struct dtp_monitor *mon, struct dtp_err *err);

static enum dtp_code convert(const struct dtp_args *args, const char *model, convert_fn fn, struct dtp_err *err)
{
	struct dtp_progress progress;
	struct dtp_monitor mon = dtp_monitor_none;
	struct dtp_options options;
	struct dtp_request request;
	struct dtp_pipeline *p;
	char text[4200];

	dtp_progress_init(&progress, stderr, args->progress, args->quiet);
	mon.arg = &progress;
	mon.stage = on_stage;
	mon.progress = on_progress;
	mon.warn = on_warn;
	mon.stopped = on_stopped;
	dtp_request_make(args, &options, &request);
	options.model = model;
	options.no_tokenizer = true;
	if (dtp_pipeline_open(&options, &mon, &p, err))
		return dtp_progress_close(&progress, err->code, err);
	catch_signals();
	double start = dtp_seconds();
	enum dtp_code code = fn(p, args->output, &mon, err);
	if (!code) {
		snprintf(text, sizeof text, "wrote %s (%s)", args->output, dtp_seconds_text(dtp_seconds() - start).s);
		dtp_progress_note(&progress, text);
	}
	dtp_pipeline_close(p);
	return dtp_progress_close(&progress, code, err);
}

enum dtp_code dtp_cmd_shard(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	(void)argv;
	if (!args->model)
		return dtp_fail(err, DTP_REFUSED, "option '--model' is missing: the folder of the pipeline");
	if (!DTP_HAS(args, tp_degree))
		return dtp_fail(err, DTP_REFUSED, "option '--tp-degree' is missing: how many ranks the weights are split for");
	if (!args->output)
		return dtp_fail(err, DTP_REFUSED, "option '--output' is missing: the folder to be written");
	return convert(args, args->model, dtp_shard, err);
}

enum dtp_code dtp_cmd_unshard(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	struct dtp_args own = *args;
	int degree = 0;

	(void)argv;
	if (!args->nwords)
		return dtp_fail(err, DTP_REFUSED, "nothing to restore: name a folder that 'difftp shard' wrote");
	if (!args->output)
		return dtp_fail(err, DTP_REFUSED, "option '--output' is missing: the folder to be written");
	if (dtp_shards_degree(args->word[0], &degree, err))
		return err->code;
	if (!degree)
		return dtp_fail(err, DTP_REFUSED, "'%s' is not sharded: it has no '" DTP_SHARDS_MANIFEST "'", args->word[0]);
	own.tp_degree = degree;
	return convert(&own, args->word[0], dtp_unshard, err);
}
