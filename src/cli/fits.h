/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a command has the memory for what it is asked.
 */
#ifndef FFA_CLI_FITS_H
#define FFA_CLI_FITS_H

#include <ffa/status.h>

/* FFA_NOMEM where `bytes` more cannot be had: "<what> need about 9.00 GiB of memory, ...". */
ffa_status cli_fits(int64_t bytes, const char *what, ffa_error *err);
/* From here on, an allocation that the system could grant only by killing the process fails. Not
 * for commands that open a GPU or start many threads: what these reserve counts, used or not. */
void cli_bound_memory(void);

#endif
