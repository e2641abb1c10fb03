/* SPDX-License-Identifier: Apache-2.0 */
#include "grid.h"

#include "output.h"
#include "recipe.h"
#include "request.h"
#include "sheet.h"

struct drawing {
	struct dtp_rank *rank;
	struct dtp_sheet sheet;
};

static enum dtp_code write_and_put(void *arg, const struct dtp_image *image, struct dtp_err *err)
{
	struct drawing *d = arg;
	enum dtp_code code = dtp_output_write(d->rank, image, err);

	return code ? code : dtp_sheet_put(&d->sheet, image->index, image->rgb, image->height, image->width, err);
}

/* Its record is that of the first image, with the number of images. */
static enum dtp_code write_sheet(struct drawing *d, struct dtp_err *err)
{
	struct dtp_rank *r = d->rank;
	const char *path = r->args->grid;
	struct dtp_outkeep keep, *k = dtp_output_keep(r->args, path, 0, &keep);
	struct dtp_recipe_texts texts;
	struct dtp_picture picture;
	char text[4352];

	if (dtp_recipe_texts_make(r, r->args, &r->request, r->request.seed, r->request.num_images, &texts, err))
		return err->code;
	enum dtp_code code = dtp_sheet_picture(&d->sheet, &picture, err);
	if (!code)
		code = dtp_png_write(path, k, picture.rgb, picture.height, picture.width, texts.text, texts.n, err);
	if (!code) {
		dtp_outkeep_tell(k, path, r->mon);
		snprintf(text, sizeof text, "wrote %s (%lldx%lld, a sheet of %d)", dtp_outkeep_name(k, path),
			 (long long)picture.width, (long long)picture.height, d->sheet.count);
		r->mon->note(r->mon->arg, text);
	}
	dtp_outkeep_free(&keep);
	dtp_picture_free(&picture);
	dtp_recipe_texts_free(&texts);
	return code;
}

/* The first rank of each replica has cells, rank 0 writes. */
enum dtp_code dtp_grid_draw(struct dtp_rank *r, struct dtp_err *err)
{
	struct drawing d = {.rank = r};
	bool first = r->mesh.dim[DTP_MESH_TP]->rank == 0;
	enum dtp_code code = first ? dtp_sheet_open(&d.sheet, r->request.num_images, r->request.height, r->request.width, err) : DTP_OK;

	if (!code)
		code = dtp_pipeline_run(r->pipeline, &r->request, r->backend, &r->mesh, r->mon, r->node_threads, write_and_put, &d, err);
	if (!code && first)
		code = dtp_sheet_share(&d.sheet, r->mesh.dim[DTP_MESH_DP], err);
	if (!code && r->rank == 0)
		code = write_sheet(&d, err);
	dtp_sheet_close(&d.sheet);
	return code;
}
