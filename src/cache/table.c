/* SPDX-License-Identifier: Apache-2.0
 *
 * Open addressing over atomic pointers. Entries are immutable once published; a slot goes from
 * NULL to an entry and never back, so a reader needs one acquire load a probe. Growing publishes a
 * new array of slots; old ones are kept (half the size each) because readers may still be in them.
 */
#include "cache/table.h"

#include "base/digest.h"
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

struct table_entry {
    uint64_t hash;
    struct table_key key;
    struct jit_kernel kernel; /* constant once published */
    /* under lock, while in flight: */
    struct table_entry *next; /* of the flights */
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
    pthread_cond_t settled;
    struct table_entry *flights; /* under lock, as is all below */
    uint64_t reserved;           /* published entries and flights */
    struct fork_guard guard;
};

void table_key_init(struct table_key *key, const struct jit_spec *spec, const char *arch)
{
    memset(key, 0, sizeof *key);
    key->template_index = spec->template_index;
    memcpy(key->values, spec->values, sizeof key->values);
    memcpy(key->arch, arch, strnlen(arch, sizeof key->arch - 1)); /* on the way of every hit */
}

static struct slots *slots_create(uint64_t count, struct slots *older)
{
    struct slots *slots = mem_array(1, sizeof *slots + count * sizeof slots->at[0]);

    if (slots) {
        slots->mask = count - 1;
        slots->older = older;
    }
    return slots;
}

/* Who claimed what is in flight is not in this process: nobody would ever settle it. The entries
 * are left to themselves, in case it is the very thread that forked. */
static void table_in_child(void *object)
{
    struct table *table = object;

    (void)pthread_cond_init(&table->settled, NULL);
    for (; table->flights; table->flights = table->flights->next)
        table->reserved--;
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
    (void)pthread_cond_init(&table->settled, NULL);
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
    assert(!table->flights);
    fork_guard_remove(&table->guard);
    slots = atomic_load(&table->slots);
    for (uint64_t i = 0; i <= slots->mask; i++)
        entry_free(atomic_load(&slots->at[i]));
    for (; slots; slots = older) {
        older = slots->older;
        mem_free(slots);
    }
    (void)pthread_cond_destroy(&table->settled);
    (void)pthread_mutex_destroy(&table->lock);
    mem_free(table);
}

static struct table_entry *find(struct slots *slots, uint64_t hash, const struct table_key *key)
{
    for (uint64_t i = hash;; i++) {
        struct table_entry *entry =
            atomic_load_explicit(&slots->at[i & slots->mask], memory_order_acquire);

        if (!entry || (entry->hash == hash && memcmp(&entry->key, key, sizeof *key) == 0))
            return entry;
    }
}

static void insert(struct slots *slots, struct table_entry *entry)
{
    uint64_t i = entry->hash;

    while (atomic_load_explicit(&slots->at[i & slots->mask], memory_order_relaxed))
        i++;
    atomic_store_explicit(&slots->at[i & slots->mask], entry, memory_order_release);
}

const struct jit_kernel *table_find(struct table *table, const struct table_key *key)
{
    struct slots *slots = atomic_load_explicit(&table->slots, memory_order_acquire);
    struct table_entry *entry = find(slots, digest_short(key, sizeof *key), key);

    return entry ? &entry->kernel : NULL;
}

/* Make room for one more, under lock. At most half of the slots are ever used. */
static bool reserve(struct table *table)
{
    struct slots *slots = atomic_load_explicit(&table->slots, memory_order_relaxed);
    struct slots *grown;

    if (2 * (table->reserved + 1) > slots->mask) {
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
    table->reserved++;
    return true;
}

/* Under lock. */
static ffa_status wait_for(struct table *table, struct table_entry *entry,
                           const struct jit_kernel **found, ffa_error *err)
{
    ffa_status rc;

    entry->waiters++;
    while (!entry->is_done)
        (void)pthread_cond_wait(&table->settled, &table->lock);
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
static ffa_status claim_new(struct table *table, const struct table_key *key, uint64_t hash,
                            struct table_entry **claim, ffa_error *err)
{
    struct table_entry *entry = mem_array(1, sizeof *entry);

    if (!entry || !reserve(table)) {
        mem_free(entry);
        return error_nomem(err, "an entry of the kernel table");
    }
    entry->hash = hash;
    entry->key = *key;
    entry->next = table->flights;
    table->flights = entry;
    *claim = entry;
    return FFA_OK;
}

ffa_status table_claim(struct table *table, const struct table_key *key,
                       const struct jit_kernel **found, struct table_entry **claim, ffa_error *err)
{
    uint64_t hash = digest_short(key, sizeof *key);
    struct table_entry *entry;
    ffa_status rc;

    *found = NULL;
    *claim = NULL;
    (void)pthread_mutex_lock(&table->lock);
    entry = find(atomic_load_explicit(&table->slots, memory_order_relaxed), hash, key);
    if (entry) {
        *found = &entry->kernel;
        rc = FFA_OK;
        goto out;
    }
    for (entry = table->flights; entry; entry = entry->next)
        if (entry->hash == hash && memcmp(&entry->key, key, sizeof *key) == 0)
            break;
    rc = entry ? wait_for(table, entry, found, err) : claim_new(table, key, hash, claim, err);
out:
    (void)pthread_mutex_unlock(&table->lock);
    return rc;
}

/* Under lock: no longer in flight; whoever waits may look. */
static void land(struct table *table, struct table_entry *claim)
{
    struct table_entry **at = &table->flights;

    while (*at && *at != claim)
        at = &(*at)->next;
    if (*at)
        *at = claim->next;
    claim->is_done = true;
    (void)pthread_cond_broadcast(&table->settled);
}

const struct jit_kernel *table_settle(struct table *table, struct table_entry *claim,
                                      struct jit_kernel *kernel)
{
    claim->kernel = *kernel;
    *kernel = (struct jit_kernel){ 0 };
    (void)pthread_mutex_lock(&table->lock);
    insert(atomic_load_explicit(&table->slots, memory_order_relaxed), claim);
    land(table, claim);
    (void)pthread_mutex_unlock(&table->lock);
    return &claim->kernel;
}

void table_fail(struct table *table, struct table_entry *claim, const ffa_error *why)
{
    assert(why->status != FFA_OK);
    (void)pthread_mutex_lock(&table->lock);
    claim->why = *why;
    table->reserved--;
    land(table, claim);
    if (claim->waiters == 0)
        entry_free(claim);
    (void)pthread_mutex_unlock(&table->lock);
}
