/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a request brings besides the model: reference images and given noise. */
#ifndef DTP_INPUTS_H
#define DTP_INPUTS_H

#include "comm.h"
#include "flags.h"
#include "latents.h"
#include "pipeline.h"

struct dtp_inputs {
	struct dtp_picture picture[DTP_MAX_REFERENCES];
	struct dtp_latents noise;
};

/* Reads all of them and hands them to the request, which then points into `in`.  in: zeros; freed by the caller also on failure. */
enum dtp_code dtp_inputs_read(const struct dtp_args *args, struct dtp_inputs *in, struct dtp_request *request, struct dtp_err *err);
/* The same on every rank of world: its first reads them and gives them to the others, so that all agree whatever becomes of the
 * files, which need not be on other hosts.  Pixels stay only where `encodes`. */
enum dtp_code dtp_inputs_share(const struct dtp_args *args, struct dtp_comm *world, bool encodes, struct dtp_inputs *in,
			       struct dtp_request *request, struct dtp_err *err);
void dtp_inputs_free(struct dtp_inputs *in);
#endif
