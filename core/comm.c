/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of one rank, the checked wrappers, and the mesh. */
#include "comm.h"

#include <stdlib.h>
#include <string.h>

static enum dtp_code single_all_reduce(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	(void)c, (void)buf, (void)count, (void)t, (void)err;
	return DTP_OK;
}

static enum dtp_code single_copy(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				 struct dtp_err *err)
{
	(void)c, (void)err;
	if (dst != src && count > 0)
		memcpy(dst, src, (size_t)count * dtp_dtype_size(t));
	return DTP_OK;
}

static enum dtp_code single_broadcast(struct dtp_comm *c, void *buf, int64_t nbytes, int root, struct dtp_err *err)
{
	(void)c, (void)buf, (void)nbytes, (void)root, (void)err;
	return DTP_OK;
}

static enum dtp_code single_barrier(struct dtp_comm *c, struct dtp_err *err)
{
	(void)c, (void)err;
	return DTP_OK;
}

static enum dtp_code single_split(struct dtp_comm *c, int color, int key, struct dtp_comm **out, struct dtp_err *err)
{
	(void)color, (void)key;
	return dtp_comm_single(c->mon, out, err);
}

static void single_abort(struct dtp_comm *c)
{
	(void)c; /* nothing ever waits */
}

static void single_destroy(struct dtp_comm *c)
{
	free(c);
}

static const struct dtp_comm_ops single_ops = {
	.name = "none",
	.all_reduce = single_all_reduce,
	.all_gather = single_copy,
	.all_to_all = single_copy,
	.ring_shift = single_copy,
	.broadcast = single_broadcast,
	.barrier = single_barrier,
	.split = single_split,
	.abort = single_abort,
	.destroy = single_destroy,
};

enum dtp_code dtp_comm_single(const struct dtp_monitor *mon, struct dtp_comm **out, struct dtp_err *err)
{
	struct dtp_comm *c = malloc(sizeof *c);

	if (!c)
		return dtp_fail(err, DTP_FAILED, "out of memory for a communicator (%zu bytes)", sizeof *c);
	*c = (struct dtp_comm){.rank = 0, .size = 1, .ops = &single_ops, .mon = mon};
	*out = c;
	return DTP_OK;
}

static enum dtp_code check_count(int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	int64_t bytes;

	if (count < 0 || t <= DTP_NO_DTYPE || t >= DTP_NDTYPES ||
	    __builtin_mul_overflow(count, (int64_t)dtp_dtype_size(t), &bytes))
		return dtp_fail(err, DTP_FAILED, "collective of %lld elements of dtype %d: not a possible buffer",
				(long long)count, (int)t);
	return DTP_OK;
}

static enum dtp_code check_sum(int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	enum dtp_code code = check_count(count, t, err);

	if (code)
		return code;
	if (t != DTP_F32 && t != DTP_BF16 && t != DTP_I64 && t != DTP_I32)
		return dtp_fail(err, DTP_FAILED, "all-reduce of dtype '%s': only F32, BF16, I64 and I32 are summed",
				dtp_dtype_name(t));
	return DTP_OK;
}

enum dtp_code dtp_all_reduce(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	if (check_sum(count, t, err))
		return err->code;
	return c->size == 1 ? DTP_OK : c->ops->all_reduce(c, buf, count, t, err);
}

enum dtp_code dtp_start_all_reduce(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	return check_sum(count, t, err) ? err->code : c->ops->start_all_reduce(c, buf, count, t, err);
}

enum dtp_code dtp_all_gather(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
			     struct dtp_err *err)
{
	enum dtp_code code = check_count(count, t, err);

	if (code)
		return code;
	if (c->size == 1)
		return single_copy(c, dst, src, count, t, err);
	return c->ops->all_gather(c, dst, src, count, t, err);
}

enum dtp_code dtp_broadcast(struct dtp_comm *c, void *buf, int64_t nbytes, int root, struct dtp_err *err)
{
	enum dtp_code code = check_count(nbytes, DTP_U8, err);

	if (code)
		return code;
	if (root < 0 || root >= c->size)
		return dtp_fail(err, DTP_FAILED, "broadcast from rank %d of %d: no such rank", root, c->size);
	return c->size == 1 ? DTP_OK : c->ops->broadcast(c, buf, nbytes, root, err);
}

enum dtp_code dtp_barrier(struct dtp_comm *c, struct dtp_err *err)
{
	return c->size == 1 ? DTP_OK : c->ops->barrier(c, err);
}

void dtp_comm_destroy(struct dtp_comm *c)
{
	if (c)
		c->ops->destroy(c);
}

static enum dtp_code check_mesh(int world, const int sizes[DTP_MESH_DIMS], struct dtp_err *err)
{
	long long product = 1;
	bool ok = true;

	for (int d = 0; d < DTP_MESH_DIMS; d++)
		if (sizes[d] < 1 || __builtin_mul_overflow(product, (long long)sizes[d], &product))
			ok = false;
	if (ok && product == world)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED,
			"%d rank%s do not make a mesh of dp %d x ring %d x ulysses %d x tp %d: the product of the degrees "
			"must be the number of ranks",
			world, world == 1 ? "" : "s", sizes[DTP_MESH_DP], sizes[DTP_MESH_RING], sizes[DTP_MESH_ULYSSES],
			sizes[DTP_MESH_TP]);
}

enum dtp_code dtp_mesh_make(struct dtp_comm *world, const int sizes[DTP_MESH_DIMS], struct dtp_mesh *mesh,
			    struct dtp_err *err)
{
	enum dtp_code code = check_mesh(world->size, sizes, err);
	int stride = 1; /* between neighbours along dimension d */

	*mesh = (struct dtp_mesh){.world = world};
	for (int d = DTP_MESH_DIMS - 1; d >= 0 && !code; d--) {
		int coord = world->rank / stride % sizes[d];
		if (sizes[d] == 1)
			code = dtp_comm_single(world->mon, &mesh->dim[d], err);
		else if (sizes[d] == world->size)
			mesh->dim[d] = world;
		else /* ranks that differ only in this coordinate share the color */
			code = world->ops->split(world, world->rank - coord * stride, coord, &mesh->dim[d], err);
		stride *= sizes[d];
	}
	if (code)
		dtp_mesh_free(mesh);
	return code;
}

void dtp_mesh_free(struct dtp_mesh *mesh)
{
	for (int d = 0; d < DTP_MESH_DIMS; d++) {
		if (mesh->dim[d] != mesh->world)
			dtp_comm_destroy(mesh->dim[d]);
		mesh->dim[d] = NULL;
	}
}
