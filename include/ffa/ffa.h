/* SPDX-License-Identifier: Apache-2.0
 *
 * libffa in one include.
 */
#ifndef FFA_FFA_H
#define FFA_FFA_H

#include <ffa/attention.h>
#include <ffa/bundle.h>
#include <ffa/cache.h>
#include <ffa/calibration.h>
#include <ffa/choice.h>
#include <ffa/comm.h>
#include <ffa/context.h>
#include <ffa/device.h>
#include <ffa/dlpack.h>
#include <ffa/explain.h>
#include <ffa/group.h>
#include <ffa/kernel.h>
#include <ffa/log.h>
#include <ffa/mask.h>
#include <ffa/parallel_dispatch.h>
#include <ffa/parallel_pass.h>
#include <ffa/parallel_plan.h>
#include <ffa/parallel_rows.h>
#include <ffa/row_kernels.h>
#include <ffa/simulate.h>
#include <ffa/status.h>
#include <ffa/tensor.h>
#include <ffa/tune.h>

#endif
