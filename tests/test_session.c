/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of one session, one after the other. */
#include "support.h"
#include "pipeline.h"

static unsigned char drawn[64 * 64 * 3];

static enum dtp_code keep(void *arg, const struct dtp_image *image, struct dtp_err *err)
{
	(void)arg, (void)err;
	memcpy(drawn, image->rgb, sizeof drawn);
	return DTP_OK;
}

/* References are told apart by their number, not by where they lie: memory is used again. */
static void session_encodes_other_references(void **state)
{
	static const int sizes[DTP_MESH_DIMS] = {1, 1, 1, 1};
	const struct dtp_options options = {.model = fixture("models/klein-tiny"), .tp_degree = 1, .compute = DTP_F32, .references = 1};
	unsigned char pixels[64 * 64 * 3], first[sizeof drawn];
	struct dtp_picture image = {.height = 64, .width = 64, .rgb = pixels};
	struct dtp_request r = {.prompt = "a red fox", .images = &image, .nimages = 1, .height = 64, .width = 64, .steps = 1,
		.guidance_scale = -1, .max_sequence_length = 16};
	struct dtp_session s = {.mon = &dtp_monitor_none, .node_threads = 1, .output = DTP_OUTPUT_PNG};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_comm *world;
	struct dtp_mesh mesh;

	(void)state;
	if (dtp_pipeline_open(&options, &dtp_monitor_none, &s.pipeline, &err) || dtp_pipeline_resolve(s.pipeline, &r, &err) ||
	    dtp_comm_single(&dtp_monitor_none, &world, &err) || dtp_mesh_make(world, sizes, &mesh, &err) ||
	    dtp_backend_cpu(DTP_F32, 1, &s.backend, &err))
		fail_msg("%s", err.message);
	s.mesh = &mesh;
	for (int round = 0; round < 3; round++) {
		memset(pixels, round ? 255 : 0, sizeof pixels);
		r.images_id = round > 1;
		if (dtp_session_run(&s, &r, keep, NULL, &err))
			fail_msg("%s", err.message);
		if (!round)
			memcpy(first, drawn, sizeof first);
		assert_int_equal(memcmp(first, drawn, sizeof first) != 0, round > 1);
	}
	dtp_session_end(&s);
	s.backend->ops->destroy(s.backend);
	dtp_mesh_free(&mesh);
	dtp_comm_destroy(world);
	dtp_pipeline_close(s.pipeline);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(session_encodes_other_references)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
