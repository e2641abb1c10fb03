/* SPDX-License-Identifier: Apache-2.0 */
/* The command that turns a file of latents into a picture. */
#include "commands.h"
#include "decode.h"
#include "device.h"
#include "fit.h"
#include "host.h"
#include "image.h"
#include "naming.h"
#include "progress.h"
#include "request.h"
#include "units.h"

#include <stdlib.h>

static void show_stage(void *arg, enum dtp_phase phase, const char *text)
{
	struct dtp_event event = {.kind = DTP_EVENT_STAGE, .phase = phase, .text = text};
	dtp_progress_event(arg, &event);
}

static void note(void *arg, const char *text)
{
	dtp_progress_note(arg, text);
}

static void warn(void *arg, const char *text)
{
	dtp_progress_warn(arg, text);
}

/* That of the file, so that the picture is the one that the run itself would have drawn. */
static enum dtp_dtype dtype_of(const struct dtp_args *args, const struct dtp_latents *l)
{
	if (DTP_GIVEN(args, dtype))
		return args->dtype == DTP_ARG_FP32 ? DTP_F32 : DTP_BF16;
	return l->dtype == DTP_BF16 ? DTP_BF16 : DTP_F32;
}

static enum dtp_device device_of(const struct dtp_seated *seated)
{
	return seated->memory.n ? DTP_DEVICE_CUDA : DTP_DEVICE_CPU;
}

/* Before anything is loaded; of a GPU, with the backend open, what is free of it. */
static enum dtp_code check_memory(const struct dtp_decoder *d, const struct dtp_seated *seated, struct dtp_err *err)
{
	bool gpu = seated->memory.n;
	uint64_t available = gpu ? dtp_limit(&seated->memory, 0) : dtp_host_memory("").available;
	uint64_t needed = dtp_decoder_memory(d) + dtp_rank_base_bytes(device_of(seated), 1);

	if (needed <= available)
		return DTP_OK;
	struct dtp_text_pair sizes = dtp_bytes_apart(needed, available);
	if (gpu)
		return dtp_fail(err, DTP_REFUSED, "not enough memory: decoding needs %s at the peak, %s allows %s", sizes.a.s,
				seated->memory.option, sizes.b.s);
	return dtp_fail(err, DTP_REFUSED, "not enough memory: decoding needs %s at the peak, %s are available", sizes.a.s, sizes.b.s);
}

static enum dtp_code draw(const struct dtp_args *args, const char *path, struct dtp_outkeep *keep, struct dtp_decoder *d, struct dtp_seated *seated,
			  enum dtp_dtype compute, const struct dtp_monitor *mon, struct dtp_err *err)
{
	static const struct dtp_png_text software[] = {{"Software", "difftp " DTP_VERSION, true}};
	int threads = args->threads ? (int)args->threads : dtp_host_threads("");
	struct dtp_image image = {0};
	struct dtp_backend *be;
	char text[4352];

	dtp_decoder_size(d, &image.height, &image.width);
	uint8_t *rgb = malloc((size_t)(3 * image.height * image.width));
	if (!rgb)
		return dtp_fail(err, DTP_FAILED, "out of memory for a picture of %lldx%lld", (long long)image.width, (long long)image.height);
	enum dtp_code code = dtp_device_open(seated, compute, threads, args, mon, &be, err);
	if (code == DTP_OK) {
		dtp_device_room_alone(seated, be);
		code = check_memory(d, seated, err);
		if (code == DTP_OK)
			code = dtp_decoder_run(d, be, mon, rgb, err);
		be->ops->destroy(be);
	}
	if (code == DTP_OK)
		code = dtp_png_write(path, keep, rgb, image.height, image.width, software, !args->no_metadata, err);
	if (code == DTP_OK) {
		const char *name = dtp_outkeep_name(keep, path);
		if (args->output)
			dtp_outkeep_tell(keep, path, mon);
		snprintf(text, sizeof text, "wrote %s (%lldx%lld)", name, (long long)image.width, (long long)image.height);
		dtp_progress_event(mon->arg, &(struct dtp_event){.kind = DTP_EVENT_IMAGE, .text = name,
								 .width = (int)image.width, .height = (int)image.height});
		dtp_progress_note(mon->arg, text);
	}
	free(rgb);
	return code;
}

static enum dtp_code find_device(const struct dtp_args *args, struct dtp_progress *progress, struct dtp_seated *seated, struct dtp_err *err)
{
	struct dtp_gpus gpus;

	if (dtp_device_find(args, &gpus, warn, progress, err) || (gpus.n && dtp_device_libraries(args, true, false, err)))
		return err->code;
	dtp_device_alone(&gpus, seated);
	return DTP_OK;
}

static enum dtp_code decode(const struct dtp_args *args, struct dtp_progress *progress, struct dtp_err *err)
{
	struct dtp_monitor mon = dtp_monitor_none;
	struct dtp_decoder *d = NULL;
	struct dtp_seated seated;
	struct dtp_latents l;

	if (!args->nwords)
		return dtp_fail(err, DTP_REFUSED, "the file of the latents is missing: difftp decode FILE --model DIR");
	if (!args->model)
		return dtp_fail(err, DTP_REFUSED, "option '--model' is missing: the folder of the pipeline, of which the VAE is needed");
	mon.arg = progress;
	mon.stage = show_stage;
	mon.note = note;
	mon.warn = warn;
	if (args->output && dtp_name_is_pattern(args->output))
		return dtp_fail(err, DTP_REFUSED, "output '%s': decode writes one picture, of which a pattern knows nothing", args->output);
	if (dtp_outputs_check(args, 1, err) || dtp_latents_read(args->word[0], &l, err))
		return err->code;
	int number = dtp_output_free(args, 1);
	char *path = dtp_output_name(args, 0, 0, 1, number);
	struct dtp_outkeep keep = {0};
	enum dtp_dtype compute = dtype_of(args, &l);
	enum dtp_code code = path ? find_device(args, progress, &seated, err) : dtp_fail(err, DTP_FAILED, "out of memory");
	if (code == DTP_OK)
		code = dtp_decoder_open(args->model, compute, device_of(&seated), &l, args->height, args->width, &mon, &d, err);
	if (code == DTP_OK)
		code = draw(args, path, dtp_output_keep(args, path, number, &keep), d, &seated, compute, &mon, err);
	dtp_outkeep_free(&keep);
	free(path);
	dtp_decoder_close(d);
	dtp_latents_free(&l);
	return code;
}

enum dtp_code dtp_cmd_decode(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	struct dtp_progress progress;

	(void)argv;
	dtp_progress_init(&progress, stderr, args->progress, args->quiet);
	dtp_progress_pictures(&progress, args);
	return dtp_progress_close(&progress, decode(args, &progress, err), err);
}
