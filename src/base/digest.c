/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-128 as text: canonical (big-endian) digests, so that a key reads the same on every host.
 * Fields are length-prefixed: no two lists of fields hash the same bytes.
 */
#include "base/digest.h"

#include <string.h>

static void to_text(XXH128_hash_t hash, char out[DIGEST_TEXT])
{
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, hash);
    for (size_t i = 0; i < sizeof canonical.digest; i++) {
        out[2 * i] = "0123456789abcdef"[canonical.digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[canonical.digest[i] & 15];
    }
    out[DIGEST_TEXT - 1] = '\0';
}

void digest_init(struct digest *digest)
{
    XXH3_INITSTATE(&digest->state);
    (void)XXH3_128bits_reset(&digest->state);
}

/* Little-endian whatever the host, since stores travel between machines. */
static void add_u64(struct digest *digest, uint64_t value)
{
    unsigned char bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    (void)XXH3_128bits_update(&digest->state, bytes, sizeof bytes);
}

void digest_field(struct digest *digest, const void *bytes, size_t count)
{
    add_u64(digest, count);
    if (count)
        (void)XXH3_128bits_update(&digest->state, bytes, count);
}

void digest_text(struct digest *digest, const char *text)
{
    digest_field(digest, text, strlen(text));
}

void digest_number(struct digest *digest, int64_t number)
{
    add_u64(digest, 8);
    add_u64(digest, (uint64_t)number);
}

void digest_final(struct digest *digest, char out[DIGEST_TEXT])
{
    to_text(XXH3_128bits_digest(&digest->state), out);
}

void digest_bytes(const void *bytes, size_t count, char out[DIGEST_TEXT])
{
    to_text(XXH3_128bits(bytes, count), out);
}

uint64_t digest_short(const void *bytes, size_t count)
{
    return XXH3_64bits(bytes, count);
}
