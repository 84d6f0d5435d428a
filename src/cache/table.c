/* SPDX-License-Identifier: Apache-2.0
 *
 * Open addressing over atomic pointers. Invariant: an entry is immutable once published, and a slot
 * goes from NULL to an entry and never back, so a reader needs one acquire load a probe. Growing
 * publishes a new array of slots; old ones, half the size each, are kept until the end, because
 * readers may still be in them. Reserved entries are in a list of their own, under the lock. A
 * refused entry keeps its slot, and readers step over it.
 */
#include "cache/table.h"

#include "base/digest.h"
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* The first bytes of a request: resolved spec and architecture, without padding. */
enum { NAME_BYTES = offsetof(struct jit_request, arch) + sizeof((struct jit_request){ 0 }.arch) };
_Static_assert(NAME_BYTES == sizeof(int32_t) * (2 + JIT_SPEC_MAX) + 16, "compared as bytes");

struct table_entry {
    uint64_t hash;
    unsigned char name[NAME_BYTES];
    struct jit_kernel kernel; /* constant once published */
    atomic_bool is_refused;
    /* under lock, while reserved: */
    struct table_entry *next;
    int waiters;
    bool is_done;
    ffa_error why; /* status FFA_OK: published */
};

struct slots {
    struct slots *older;
    uint64_t mask;
    _Atomic(struct table_entry *) at[];
};

struct table {
    _Atomic(struct slots *) slots;
    pthread_mutex_t lock;
    pthread_cond_t decided;       /* a reserved entry was published or failed */
    struct table_entry *reserved; /* under lock, as is all below */
    uint64_t entry_count;         /* published and reserved */
    struct fork_guard guard;
};

static struct slots *slots_create(uint64_t count, struct slots *older)
{
    struct slots *slots = mem_array(1, sizeof *slots + count * sizeof slots->at[0]);

    if (slots) {
        slots->mask = count - 1;
        slots->older = older;
    }
    return slots;
}

/* The threads that reserved entries do not exist in this process, so the entries would never be
 * published. They are not freed, since one may belong to the thread that forked. */
static void table_in_child(void *object)
{
    struct table *table = object;

    (void)pthread_cond_init(&table->decided, NULL);
    for (; table->reserved; table->reserved = table->reserved->next)
        table->entry_count--;
}

ffa_status table_create(struct table **out, ffa_error *err)
{
    struct table *table = mem_array(1, sizeof *table);
    struct slots *slots = slots_create(64, NULL);

    *out = NULL;
    if (!table || !slots) {
        mem_free(table);
        mem_free(slots);
        return error_nomem(err, "the kernel table");
    }
    atomic_init(&table->slots, slots);
    (void)pthread_mutex_init(&table->lock, NULL);
    (void)pthread_cond_init(&table->decided, NULL);
    fork_guard_add(&table->guard, &table->lock, table_in_child, table);
    *out = table;
    return FFA_OK;
}

static void entry_free(struct table_entry *entry)
{
    if (entry)
        jit_kernel_finish(&entry->kernel);
    mem_free(entry);
}

void table_destroy(struct table *table)
{
    struct slots *slots, *older;

    if (!table)
        return;
    assert(!table->reserved);
    fork_guard_remove(&table->guard);
    slots = atomic_load(&table->slots);
    for (uint64_t i = 0; i <= slots->mask; i++)
        entry_free(atomic_load(&slots->at[i]));
    for (; slots; slots = older) {
        older = slots->older;
        mem_free(slots);
    }
    (void)pthread_cond_destroy(&table->decided);
    (void)pthread_mutex_destroy(&table->lock);
    mem_free(table);
}

/* The entry in a slot from *at on that has the request's name, and *at past it; NULL: no more. */
static struct table_entry *next_named(struct slots *slots, uint64_t *at, uint64_t hash,
                                      const struct jit_request *request)
{
    for (;;) {
        struct table_entry *entry =
            atomic_load_explicit(&slots->at[(*at)++ & slots->mask], memory_order_acquire);

        if (!entry || (entry->hash == hash && memcmp(entry->name, request, NAME_BYTES) == 0))
            return entry;
    }
}

static struct table_entry *find(struct slots *slots, uint64_t hash,
                                const struct jit_request *request)
{
    struct table_entry *entry;
    uint64_t at = hash;

    do
        entry = next_named(slots, &at, hash, request);
    while (entry && atomic_load_explicit(&entry->is_refused, memory_order_relaxed));
    return entry;
}

static void insert(struct slots *slots, struct table_entry *entry)
{
    uint64_t i = entry->hash;

    while (atomic_load_explicit(&slots->at[i & slots->mask], memory_order_relaxed))
        i++;
    atomic_store_explicit(&slots->at[i & slots->mask], entry, memory_order_release);
}

const struct jit_kernel *table_find(struct table *table, const struct jit_request *request)
{
    struct slots *slots = atomic_load_explicit(&table->slots, memory_order_acquire);
    struct table_entry *entry = find(slots, digest_short(request, NAME_BYTES), request);

    return entry ? &entry->kernel : NULL;
}

/* Make room for one more, under lock. At most half of the slots are ever used. */
static bool make_room(struct table *table)
{
    struct slots *slots = atomic_load_explicit(&table->slots, memory_order_relaxed);
    struct slots *grown;

    if (2 * (table->entry_count + 1) > slots->mask) {
        grown = slots_create(2 * (slots->mask + 1), slots);
        if (!grown)
            return false;
        for (uint64_t i = 0; i <= slots->mask; i++) {
            struct table_entry *entry = atomic_load_explicit(&slots->at[i], memory_order_relaxed);

            if (entry)
                insert(grown, entry);
        }
        atomic_store_explicit(&table->slots, grown, memory_order_release);
    }
    table->entry_count++;
    return true;
}

/* Under lock. */
static ffa_status wait_for(struct table *table, struct table_entry *entry,
                           const struct jit_kernel **found, ffa_error *err)
{
    ffa_status rc;

    entry->waiters++;
    while (!entry->is_done)
        (void)pthread_cond_wait(&table->decided, &table->lock);
    entry->waiters--;
    rc = entry->why.status;
    if (rc == FFA_OK) {
        *found = &entry->kernel;
        return FFA_OK;
    }
    (void)error_fail(err, rc, entry->why.native, "%s", entry->why.message);
    if (entry->waiters == 0)
        entry_free(entry);
    return rc;
}

/* Under lock. */
static ffa_status reserve_new(struct table *table, const struct jit_request *request, uint64_t hash,
                              struct table_entry **reserved, ffa_error *err)
{
    struct table_entry *entry = mem_array(1, sizeof *entry);

    if (!entry || !make_room(table)) {
        mem_free(entry);
        return error_nomem(err, "an entry of the kernel table");
    }
    entry->hash = hash;
    memcpy(entry->name, request, NAME_BYTES);
    entry->next = table->reserved;
    table->reserved = entry;
    *reserved = entry;
    return FFA_OK;
}

ffa_status table_reserve(struct table *table, const struct jit_request *request,
                         const struct jit_kernel **found, struct table_entry **reserved,
                         ffa_error *err)
{
    uint64_t hash = digest_short(request, NAME_BYTES);
    struct table_entry *entry;
    ffa_status rc;

    *found = NULL;
    *reserved = NULL;
    (void)pthread_mutex_lock(&table->lock);
    entry = find(atomic_load_explicit(&table->slots, memory_order_relaxed), hash, request);
    if (entry) {
        *found = &entry->kernel;
        rc = FFA_OK;
        goto out;
    }
    for (entry = table->reserved; entry; entry = entry->next)
        if (entry->hash == hash && memcmp(entry->name, request, NAME_BYTES) == 0)
            break;
    rc = entry ? wait_for(table, entry, found, err)
               : reserve_new(table, request, hash, reserved, err);
out:
    (void)pthread_mutex_unlock(&table->lock);
    return rc;
}

/* Under lock: no longer reserved; the threads that wait may look. */
static void decide(struct table *table, struct table_entry *entry)
{
    struct table_entry **at = &table->reserved;

    while (*at && *at != entry)
        at = &(*at)->next;
    if (*at)
        *at = entry->next;
    entry->is_done = true;
    (void)pthread_cond_broadcast(&table->decided);
}

const struct jit_kernel *table_publish(struct table *table, struct table_entry *reserved,
                                       struct jit_kernel *kernel)
{
    reserved->kernel = *kernel;
    *kernel = (struct jit_kernel){ 0 };
    (void)pthread_mutex_lock(&table->lock);
    insert(atomic_load_explicit(&table->slots, memory_order_relaxed), reserved);
    decide(table, reserved);
    (void)pthread_mutex_unlock(&table->lock);
    return &reserved->kernel;
}

void table_fail(struct table *table, struct table_entry *reserved, const ffa_error *why)
{
    assert(why->status != FFA_OK);
    (void)pthread_mutex_lock(&table->lock);
    reserved->why = *why;
    table->entry_count--;
    decide(table, reserved);
    if (reserved->waiters == 0)
        entry_free(reserved);
    (void)pthread_mutex_unlock(&table->lock);
}

void table_refuse(struct table *table, const struct jit_kernel *kernel)
{
    struct table_entry *entry =
        (struct table_entry *)((uintptr_t)kernel - offsetof(struct table_entry, kernel));

    (void)table;
    atomic_store(&entry->is_refused, true);
}

int table_refused(struct table *table, const struct jit_request *request,
                  const struct jit_kernel *out[TABLE_REFUSED_MAX])
{
    const uint64_t hash = digest_short(request, NAME_BYTES);
    struct slots *slots = atomic_load_explicit(&table->slots, memory_order_acquire);
    struct table_entry *entry;
    uint64_t at = hash;
    int count = 0;

    while (count < TABLE_REFUSED_MAX && (entry = next_named(slots, &at, hash, request)))
        if (atomic_load(&entry->is_refused))
            out[count++] = &entry->kernel;
    return count;
}
