/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - the ring of the last operations and the counts of gets (watching.h).
 *
 * A note is one copy of 64 bytes and a few additions under the lock of one part, without a system
 * call. Reading holds a part's lock for one record at a time, so no operation waits for a reader.
 *
 * Thread rule: any thread.
 */
#include "base/clock.h"
#include "store/core/store.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(kvt_operation) == 64, "the size of a record is public");
_Static_assert((WATCH_OPERATIONS & (WATCH_OPERATIONS - 1)) == 0, "a ring's index is masked");

/* From 4 us to 17 s, and from 4 KiB to 1 GiB. */
const watch_scale watch_get_scale = {.first = 12, .step = 1, .count = 23};
const watch_scale watch_load_scale = {.first = 12, .step = 2, .count = 10};

/* ---- parts ---- */

/* The part that a thread tries first: threads take turns at their first note. */
static uint32_t watch_first_part(void)
{
    static atomic_uint threads;
    static _Thread_local uint32_t turn; /* 0: none yet */
    if (turn == 0)
        turn = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % WATCH_PARTS;
    return turn - 1;
}

/* True when the part was free, and is the caller's now. */
static bool watch_try(watch_part *part)
{
    return !atomic_flag_test_and_set_explicit(&part->held, memory_order_acquire);
}

/* Takes one part: the thread's own, or the next one that is free. */
static watch_part *watch_take_any(kvt_store *store)
{
    for (uint32_t i = watch_first_part();; i++) {
        watch_part *part = &store->watch->parts[i % WATCH_PARTS];
        if (watch_try(part)) return part;
        /* All parts are held: one of their holders may need this core. */
        if (i % WATCH_PARTS == WATCH_PARTS - 1) sched_yield();
    }
}

/* Takes a certain part. */
static void watch_take(watch_part *part)
{
    while (!watch_try(part))
        sched_yield();
}

/* Releases a part. The next thread that takes it sees all that was written into it. */
static void watch_give_back(watch_part *part)
{
    /* Pairs with the acquire of watch_try. */
    atomic_flag_clear_explicit(&part->held, memory_order_release);
}

kvt_status watch_open(kvt_store *store)
{
    assert(store->watch == NULL);
    const size_t bytes = (sizeof(store_watch) + 63) / 64 * 64;
    store_watch *watch = NULL;
    /* Rings take memory as they fill: a fresh mapping is zero without a write. */
    if (posix_memalign((void **)&watch, 64, bytes) != 0) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < WATCH_PARTS; i++) {
        watch_part *part = &watch->parts[i];
        atomic_flag_clear(&part->held);
        part->written = 0;
        memset(&part->counts, 0, sizeof part->counts);
    }
    atomic_init(&watch->readers, 0);
    watch->first = NULL;
    watch->events = 0;
    memset(&watch->writer, 0, sizeof watch->writer);
    pthread_mutex_init(&watch->readers_lock, NULL);
    pthread_mutex_init(&watch->file_lock, NULL);
    store->watch = watch;
    return KVT_OK;
}

void watch_close(kvt_store *store)
{
    if (store->watch == NULL) return;
    watch_end_readers(store);
    pthread_mutex_destroy(&store->watch->readers_lock);
    pthread_mutex_destroy(&store->watch->file_lock);
    free(store->watch);
    store->watch = NULL;
}

/* ---- notes ---- */

/* The bucket of a value: the first whose bound is not below it. */
static uint32_t watch_bucket(const watch_scale *scale, uint64_t value)
{
    const uint32_t bits = value < 2 ? 0 : 64u - (uint32_t)__builtin_clzll(value - 1);
    if (bits <= scale->first) return 0;
    const uint32_t bucket = (bits - scale->first + scale->step - 1) / scale->step;
    return bucket < scale->count ? bucket : scale->count;
}

/* Counts a value in its bucket, and in the sum. The part is the caller's. */
static void watch_observe(watch_histogram *histogram, const watch_scale *scale, uint64_t value)
{
    assert(scale->count <= WATCH_BUCKETS_MAX);
    histogram->buckets[watch_bucket(scale, value)]++;
    histogram->sum += value;
}

/* The place of a variant among the store's own. */
static uint32_t watch_form(const kvt_store *store, kvt_variant variant)
{
    uint32_t form = 0;
    assert(store->costs.variant_count < WATCH_FORMS);
    while (form < store->costs.variant_count &&
           memcmp(&store->costs.variants[form].variant, &variant, sizeof variant) != 0)
        form++;
    return form < store->costs.variant_count ? form : WATCH_FORMS - 1;
}

/* Why a get was a miss. A deadline that passed comes before what the load reported: a read that is
 * given up fails with a status of its own. */
static watch_miss watch_why(const watch_get *get)
{
    if (get->info->timed_out) return WATCH_MISS_DEADLINE;
    if (get->info->refused_tokens) return WATCH_MISS_TOKENS;
    if (get->refused_loss) return WATCH_MISS_LOSS;
    switch (get->failure) {
    case KVT_OK: return WATCH_MISS_ABSENT;
    case KVT_E_CORRUPT:
    case KVT_E_VERSION:
    case KVT_E_MISMATCH: return WATCH_MISS_CORRUPT;
    default: return WATCH_MISS_DEVICE;
    }
}

/* Nanoseconds as a record has them: a stage of more than 4.29 s is shown as just that. */
static uint32_t watch_narrow(uint64_t ns)
{
    return ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

/* Writes an operation over the oldest one of a part. The part is the caller's. */
static void watch_append(watch_part *part, const kvt_operation *operation)
{
    part->ring[part->written++ & (WATCH_OPERATIONS - 1)] = *operation;
}

/* An operation without its stages. */
static kvt_operation watch_describe(const kvt_store *store, kvt_operation_kind kind,
                                    const kvt_key *key, uint64_t began_ns, uint64_t elapsed_ns,
                                    kvt_status status)
{
    kvt_operation operation = {.instant_ns = store->zero_ns + began_ns + elapsed_ns,
                               .elapsed_ns = elapsed_ns,
                               .status = (int16_t)status,
                               .kind = (uint8_t)kind};
    memcpy(operation.key_prefix, key->bytes, sizeof operation.key_prefix);
    return operation;
}

kvt_operation watch_operation(const kvt_store *store, kvt_operation_kind kind, const kvt_key *key,
                              uint64_t began_ns, kvt_status status)
{
    const uint64_t elapsed_ns = store_now_ns(store) - began_ns;
    kvt_operation operation = watch_describe(store, kind, key, began_ns, elapsed_ns, status);
    operation.decide_ns = watch_narrow(elapsed_ns);
    return operation;
}

void watch_split(kvt_operation *operation, uint64_t transfer_ns, uint64_t code_ns)
{
    const uint64_t known = transfer_ns + code_ns;
    operation->transfer_ns = watch_narrow(transfer_ns);
    operation->code_ns = watch_narrow(code_ns);
    operation->decide_ns =
        watch_narrow(operation->elapsed_ns > known ? operation->elapsed_ns - known : 0);
}

void watch_note(kvt_store *store, const kvt_operation *operation)
{
    watch_part *part = watch_take_any(store);
    watch_append(part, operation);
    watch_give_back(part);
}

void watch_note_get(kvt_store *store, const watch_get *get)
{
    const kvt_get_info *info = get->info;
    kvt_status status = get->status;
    /* The caller sees a miss; the record of the operation says what lies behind it. */
    if (status == KVT_MISS && get->failure != KVT_OK) status = get->failure;
    if (status == KVT_MISS && info->timed_out) status = KVT_E_TIMEOUT;
    /* The clock is read for a miss alone: a hit's seconds are known. */
    uint64_t elapsed_ns = info->elapsed_ns;
    if (elapsed_ns == 0) elapsed_ns = store_now_ns(store) - get->began_ns;
    kvt_operation operation =
        watch_describe(store, KVT_OPERATION_GET, get->key, get->began_ns, elapsed_ns, status);
    operation.bytes = info->stored_bytes;
    operation.variant = info->variant;
    operation.tier = (uint8_t)info->tier;
    watch_split(&operation, info->read_ns, info->decode_ns);
    watch_part *part = watch_take_any(store);
    /* Count a get; errors of its arguments and of memory count in no metric. The part is the
     * caller's. */
    if (get->status == KVT_OK) {
        assert((unsigned)info->tier < WATCH_TIERS);
        part->counts.hits[info->tier][watch_form(store, info->variant)]++;
        part->counts.hit_tokens[info->tier] += get->tokens;
        part->counts.hit_bytes[info->tier] += get->data_bytes;
        watch_observe(&part->counts.get_ns, &watch_get_scale, operation.elapsed_ns);
        watch_observe(&part->counts.load_bytes, &watch_load_scale, info->stored_bytes);
    } else if (get->status == KVT_MISS || get->status == KVT_E_MISMATCH) {
        const watch_miss why = get->status == KVT_MISS ? watch_why(get) : WATCH_MISS_BASIS;
        part->counts.misses[why]++;
        part->counts.missed_bytes[why] += get->data_bytes;
    }
    watch_append(part, &operation);
    watch_give_back(part);
}

/* ---- reading ---- */

void watch_sum(kvt_store *store, watch_counts *out)
{
    /* All its members are of this one type, so they are added as one array. */
    _Static_assert(sizeof(watch_counts) % sizeof(uint64_t) == 0, "counts are uint64_t alone");
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < WATCH_PARTS; i++) {
        watch_part *part = &store->watch->parts[i];
        watch_take(part);
        const uint64_t *from = (const uint64_t *)&part->counts;
        for (size_t k = 0; k < sizeof *out / sizeof *from; k++)
            ((uint64_t *)out)[k] += from[k];
        watch_give_back(part);
    }
}

/* Where a reader is in one part, on its way from the newest operation to the oldest. */
typedef struct watch_cursor {
    uint64_t next; /* operations that are older than `operation` */
    bool done;     /* there is no operation */
    kvt_operation operation;
} watch_cursor;

/* Takes up the next older operation of a part, unless it has been overwritten. */
static void watch_step_back(watch_part *part, watch_cursor *cursor)
{
    watch_take(part);
    assert(cursor->next <= part->written);
    cursor->done = cursor->next == 0 || part->written - (cursor->next - 1) > WATCH_OPERATIONS;
    if (!cursor->done) cursor->operation = part->ring[--cursor->next & (WATCH_OPERATIONS - 1)];
    watch_give_back(part);
}

/* Fills `out` from its end; the operations are moved to its beginning when there are fewer. */
static size_t watch_read(kvt_store *store, kvt_operation *out, size_t capacity)
{
    watch_cursor cursors[WATCH_PARTS];
    for (uint32_t i = 0; i < WATCH_PARTS; i++) {
        watch_part *part = &store->watch->parts[i];
        watch_take(part);
        cursors[i].next = part->written;
        watch_give_back(part);
        watch_step_back(part, &cursors[i]);
    }
    size_t count = 0;
    while (count < capacity) {
        /* The cursor with the newest operation, or WATCH_PARTS. */
        uint32_t newest = WATCH_PARTS;
        for (uint32_t i = 0; i < WATCH_PARTS; i++) {
            if (cursors[i].done) continue;
            if (newest == WATCH_PARTS ||
                cursors[i].operation.instant_ns > cursors[newest].operation.instant_ns)
                newest = i;
        }
        if (newest == WATCH_PARTS) break;
        out[capacity - ++count] = cursors[newest].operation;
        watch_step_back(&store->watch->parts[newest], &cursors[newest]);
    }
    assert(count <= capacity);
    memmove(out, out + capacity - count, count * sizeof *out);
    return count;
}

kvt_status kvt_operations_get(kvt_store *store, kvt_operation *out, size_t capacity,
                              size_t *count_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, operations, store, out, capacity, count_out);
    if (store == NULL || count_out == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (out == NULL && capacity != 0) return KVT_E_ARGUMENT;
    *count_out = capacity != 0 ? watch_read(store, out, capacity) : 0;
    return KVT_OK;
}
