/* SPDX-License-Identifier: Apache-2.0
 *
 * libffa in one include.
 */
#ifndef FFA_FFA_H
#define FFA_FFA_H

#include <ffa/attention.h>
#include <ffa/bundle.h>
#include <ffa/cache.h>
#include <ffa/comm.h>
#include <ffa/context.h>
#include <ffa/device.h>
#include <ffa/dist.h>
#include <ffa/dist_plan.h>
#include <ffa/dist_rows.h>
#include <ffa/kernel.h>
#include <ffa/mask.h>
#include <ffa/pipeline.h>
#include <ffa/simulate.h>
#include <ffa/status.h>

#endif
