/* SPDX-License-Identifier: Apache-2.0
 * No template includes this file, so no key depends on it. */
