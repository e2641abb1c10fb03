/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution by Winograd's algorithm; conv.c decides. */
#ifndef DTP_CPU_CONV_H
#define DTP_CPU_CONV_H

#include "cpu.h"

bool dtp_winograd_fits(const struct dtp_cpu *cpu, const struct dtp_cpu_weight *w, int stride);
/* pad: rows and columns of zeros above and left; what is read past the other sides is zero too.  bias may be NULL. */
enum dtp_code dtp_winograd(struct dtp_cpu *cpu, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_cpu_weight *w,
			   const float *bias, int pad, struct dtp_err *err);
#endif
