/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-128 digests, canonical (big-endian) and in hexadecimal. A digest of fields writes each
 * field's length before its bytes, so that no two lists of fields share their bytes.
 * Guards against accidents, not against attackers.
 */
#ifndef FFA_BASE_DIGEST_H
#define FFA_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { DIGEST_TEXT = 33 }; /* 32 digits and the terminator */

struct digest {
    XXH3_state_t state;
};

void digest_init(struct digest *digest);
void digest_field(struct digest *digest, const void *bytes, size_t count);
void digest_text(struct digest *digest, const char *text);
void digest_number(struct digest *digest, int64_t number);
void digest_final(struct digest *digest, char out[DIGEST_TEXT]);

/* Of plain bytes, without a length: what `xxhsum -H2` prints. */
void digest_bytes(const void *bytes, size_t count, char out[DIGEST_TEXT]);
uint64_t digest_short(const void *bytes, size_t count); /* for hash tables */

#endif
