/* SPDX-License-Identifier: Apache-2.0 */
#define FIXTURE_COLUMNS 64
