/* SPDX-License-Identifier: Apache-2.0 */
#include "comm_cuda.h"

enum dtp_code dtp_comm_cuda(struct dtp_comm *control, struct dtp_backend *backend, bool shared, bool in_step, double timeout_s,
			    struct dtp_comm **out, struct dtp_err *err)
{
	struct dtp_cuda *cuda = dtp_cuda_of(backend);

	return shared ? dtp_comm_staged(control, cuda, out, err) : dtp_comm_nccl(control, cuda, in_step, timeout_s, out, err);
}
