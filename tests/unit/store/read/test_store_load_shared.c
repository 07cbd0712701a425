/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_load_shared.c - layered loads of the same entries, and gets beside them, share reads:
 * the device counts them. Loads and gets that end in the middle, devices that fail, and many of all
 * at once.
 */
#include "codecs/view_rows.h"
#include "queue_site.h"

#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <pthread.h>

enum { ENTRIES = 6, LAYERS = 8, GROUPS = 4, SIDES = 2 };

/* 8 layers of 32 KiB; or the same bytes as groups of 3 and 5 layers, with opaque ones around. */
static const kvt_layout plain = {
    .layers = LAYERS, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64};
static const kvt_layout groups[GROUPS] = {
    {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 776},
    {.layers = 3, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64},
    {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 6000},
    {.layers = 5, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64}};

#define ENTRY_BYTES   (UINT64_C(2) * LAYERS * 64 * 2 * 64 * 2)
#define LAYER_BYTES   (ENTRY_BYTES / LAYERS)
#define GROUPED_BYTES (ENTRY_BYTES + 776 + 6000)

/* One of those who load: a queue, and memory. */
typedef struct side {
    kvt_queue *queue;
    kvt_view views[ENTRIES][GROUPS];
    const kvt_view *pointers[ENTRIES][GROUPS];
    kvt_view grouped[ENTRIES];
    const kvt_view *given[ENTRIES];
    char *data[ENTRIES];
    kvt_load *load;
} side;

typedef struct site {
    bool grouped;
    kvt_key keys[ENTRIES];
    char *expected[ENTRIES];
    side sides[SIDES];
} site;

static uint64_t bytes_of(const site *s)
{
    return s->grouped ? GROUPED_BYTES : ENTRY_BYTES;
}

static void side_make(const site *s, side *one)
{
    one->queue = queue_site_queue(1, 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        one->data[i] = test_alloc(bytes_of(s));
        memset(one->data[i], 0xee, bytes_of(s));
        char *to = one->data[i];
        one->grouped[i] = kvt_view_grouped(one->pointers[i], GROUPS);
        one->given[i] = s->grouped ? &one->grouped[i] : &one->views[i][0];
        for (uint32_t k = 0; k < (s->grouped ? GROUPS : 1); k++) {
            const kvt_layout *layout = s->grouped ? &groups[k] : &plain;
            uint64_t bytes;
            assert_ok(kvt_layout_bytes(layout, &bytes));
            one->views[i][k] = codecs_packed_view(layout, to);
            one->pointers[i][k] = &one->views[i][k];
            to += bytes;
        }
    }
}

static void side_free(side *one)
{
    kvt_queue_close(one->queue);
}

static kvt_status put_one(const site *s, uint32_t number)
{
    kvt_entry entry = {.struct_size = sizeof entry, .key = s->keys[number], .recompute_seconds = 1};
    entry.groups = s->grouped ? groups : NULL;
    entry.group_count = s->grouped ? GROUPS : 0;
    if (!s->grouped) entry.layout = plain;
    return kvt_store_put(store, &entry, KVT_PACKED(s->expected[number], bytes_of(s)));
}

static site *site_make(bool grouped)
{
    site *s = test_zeros(sizeof *s);
    s->grouped = grouped;
    queue_site_open(true, 0, 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_layout all = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes_of(s)};
        s->keys[i] = support_key(i);
        s->expected[i] = test_alloc(bytes_of(s));
        codecs_kv_sample_fill(&all, 70 + i, s->expected[i]);
        assert_ok(put_one(s, i));
    }
    for (uint32_t i = 0; i < SIDES; i++)
        side_make(s, &s->sides[i]);
    return s;
}

static void site_free(site *s)
{
    for (uint32_t i = 0; i < SIDES; i++)
        side_free(&s->sides[i]);
    queue_site_close(NULL);
}

static uint64_t reads(void)
{
    tiers_fault_counts counts;
    tiers_fault_counts_get(fault.device, &counts);
    return counts.reads;
}

/* The same when the device has done what it was given: none was added for a tenth of a second. */
static uint64_t settled_reads(void)
{
    for (uint64_t before = UINT64_MAX, now = reads();; now = reads()) {
        if (now == before) return now;
        before = now;
        base_sleep_until(base_clock_ns() + 100000000u);
    }
}

/* Waits until an operation hangs. The device takes one at a time: all others wait behind it. */
static void await_hung(void)
{
    tiers_fault_counts counts;
    do {
        base_sleep(100000);
        tiers_fault_counts_get(fault.device, &counts);
    } while (counts.hung == 0);
}

static void fail_reads(tiers_fault_action action, uint64_t hits)
{
    queue_site_fault((tiers_fault_rule){.action = action,
                                        .kinds = TIERS_FAULT_READS,
                                        .hits = hits,
                                        .status = KVT_E_IO,
                                        .flip_bit = 8 * 4096 + 3});
}

/* Begins to load all entries, one layer ahead. */
static void begin(const site *s, side *one)
{
    const kvt_load_options options = {
        .struct_size = sizeof options, .layers_ahead = 1, .deadline_ns = KVT_NO_DEADLINE};
    assert_ok(kvt_load_begin(one->queue, s->keys, one->given, ENTRIES, &options, &one->load));
}

static void await(side *one, uint32_t layers)
{
    assert_ok(kvt_load_wait(one->load, layers, KVT_NO_DEADLINE));
}

/* Lets a queue of one thread run all tasks that it has: these go before requests. */
static void settle(const site *s, side *one)
{
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_EXISTS,
                                 .key = s->keys[0],
                                 .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    assert_ok(kvt_queue_submit(one->queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(one->queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(one->queue, &done, 1), 1);
}

static void run_to_end(side *one)
{
    for (uint32_t layer = 1; layer <= LAYERS; layer++) {
        await(one, layer);
        kvt_load_release(one->load, layer);
    }
}

/* Ends a load of which every entry has the same status, and gives what it read and was brought. */
static kvt_load_result end(const site *s, side *one, kvt_status expected)
{
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(one->load, statuses, &result));
    one->load = NULL;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_int_equal(statuses[i], expected);
        if (expected == KVT_OK) assert_memory_equal(one->data[i], s->expected[i], bytes_of(s));
        memset(one->data[i], 0xee, bytes_of(s));
    }
    return result;
}

/* Both loads wait for layer 2, whose reads hang; one of them has started those. */
static void stand_at_layer_two(const site *s, side *first, side *second)
{
    begin(s, first);
    await(first, 2);
    begin(s, second);
    await(second, 2);
    fail_reads(TIERS_FAULT_HANG, 0);
    kvt_load_release(first->load, 1);
    await_hung();
    kvt_load_release(second->load, 1);
}

/* Two loads: heads are read once, reads under way are joined, and what one has read is offered to
 * the other, also beyond its window. */
TEST(loads_share_reads)
{
    site *s = site_make(false);
    side *first = &s->sides[0], *second = &s->sides[1];
    const uint64_t start = reads();
    begin(s, first);
    await(first, 2);
    assert_int_equal(reads() - start, 3 * ENTRIES); /* heads and two layers */
    begin(s, second);
    await(second, 2);
    assert_int_equal(reads() - start, 5 * ENTRIES); /* no heads */
    fail_reads(TIERS_FAULT_HANG, 0);
    kvt_load_release(first->load, 1);
    await_hung();
    kvt_load_release(second->load, 1); /* joins the reads of layer 2 */
    tiers_fault_clear(fault.device);
    await(second, 3);
    await(first, 3);
    run_to_end(first);
    settle(s, second);
    assert_int_equal(kvt_load_layers(second->load), 3); /* announced in its turn */
    run_to_end(second);
    assert_int_equal(reads() - start, 11 * ENTRIES); /* six more layers, once */
    const kvt_load_result a = end(s, first, KVT_OK), b = end(s, second, KVT_OK);
    assert_int_equal(a.bytes_shared, 0);
    assert_int_equal(b.bytes_read, 2 * ENTRIES * LAYER_BYTES);
    assert_int_equal(b.bytes_shared, 6 * ENTRIES * LAYER_BYTES);
    site_free(s);
}

/* Two loads that begin while no read ends: the second one reads nothing for its heads. */
TEST(heads_under_way_are_joined)
{
    for (int grouped = 0; grouped < 2; grouped++) {
        site *s = site_make(grouped);
        side *first = &s->sides[0], *second = &s->sides[1];
        fail_reads(TIERS_FAULT_HANG, 0);
        begin(s, first);
        begin(s, second);
        await_hung();
        tiers_fault_clear(fault.device);
        run_to_end(second);
        run_to_end(first);
        const kvt_load_result a = end(s, first, KVT_OK), b = end(s, second, KVT_OK);
        assert_true(b.bytes_shared > 0);
        /* Layers are of one size, and heads of another. */
        if (!grouped) assert_int_equal(b.bytes_read % LAYER_BYTES, 0);
        if (!grouped) assert_true(a.bytes_read % LAYER_BYTES != 0);
        site_free(s);
    }
}

/* The load that reads ends: the other one reads for itself. The load that waits ends: the other one
 * goes on. */
TEST(one_of_two_ends)
{
    for (int reader = 0; reader < 2; reader++) {
        site *s = site_make(false);
        side *ends = &s->sides[!reader], *stays = &s->sides[reader];
        const uint64_t start = reads();
        stand_at_layer_two(s, &s->sides[0], &s->sides[1]);
        (void)end(s, ends, KVT_E_TIMEOUT);
        tiers_fault_clear(fault.device);
        run_to_end(stays);
        (void)end(s, stays, KVT_OK);
        /* What hung cannot be called off; what waited behind it is. */
        assert_int_equal(reads() - start, 11 * ENTRIES + (reader ? 1 : 0));
        begin(s, ends); /* nothing of the first one is left */
        run_to_end(ends);
        (void)end(s, ends, KVT_OK);
        site_free(s);
    }
}

/* The same by closing the queue of one. */
TEST(one_of_two_loses_its_queue)
{
    for (int reader = 0; reader < 2; reader++) {
        site *s = site_make(false);
        stand_at_layer_two(s, &s->sides[0], &s->sides[1]);
        side *ends = &s->sides[!reader], *stays = &s->sides[reader];
        kvt_queue_close(ends->queue);
        ends->queue = NULL;
        tiers_fault_clear(fault.device);
        run_to_end(stays);
        (void)end(s, stays, KVT_OK);
        (void)end(s, ends, KVT_E_TIMEOUT);
        site_free(s);
    }
}

/* What fails fails the load that has read: the other one fails by its own reads alone. */
TEST(reads_fail_in_the_middle)
{
    static const tiers_fault_action actions[] = {TIERS_FAULT_FAIL, TIERS_FAULT_FLIP};
    for (uint32_t what = 0; what < 2; what++) {
        site *s = site_make(false);
        side *first = &s->sides[0], *second = &s->sides[1];
        stand_at_layer_two(s, first, second);
        tiers_fault_clear(fault.device);
        await(second, 3);
        await(first, 3);
        fail_reads(actions[what], ENTRIES); /* those of the first one, which come first */
        kvt_load_release(first->load, 2);
        kvt_load_release(second->load, 2);
        run_to_end(first); /* all its entries have failed: nothing is waited for */
        run_to_end(second);
        (void)end(s, second, KVT_OK);
        (void)end(s, first, KVT_MISS);
        site_free(s);
    }
}

/* The device goes while one load reads and the other one waits: both say so. */
TEST(a_device_goes_in_the_middle)
{
    site *s = site_make(false);
    stand_at_layer_two(s, &s->sides[0], &s->sides[1]);
    tiers_fault_set_gone(fault.device, true);
    tiers_fault_clear(fault.device);
    run_to_end(&s->sides[1]);
    run_to_end(&s->sides[0]);
    (void)end(s, &s->sides[0], KVT_MISS);
    (void)end(s, &s->sides[1], KVT_MISS);
    site_free(s);
}

static void *get_all(void *context)
{
    site *s = context;
    char *data = test_alloc(bytes_of(s));
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (kvt_store_get(store, &s->keys[i], KVT_PACKED(data, bytes_of(s)), KVT_STORE_DEADLINE,
                          NULL) != KVT_OK ||
            memcmp(data, s->expected[i], bytes_of(s)) != 0)
            abort();
    return NULL;
}

/* A load beside gets of whole records: it reads nothing that they bring. */
TEST(loads_take_what_gets_read)
{
    for (int grouped = 0; grouped < 2; grouped++) {
        site *s = site_make(grouped);
        side *one = &s->sides[0];
        pthread_t thread;
        uint64_t start = reads();
        begin(s, one);
        await(one, 2);
        const uint64_t begun = reads() - start;
        assert_null(get_all(s)); /* offers all layers that have not come */
        settle(s, one);
        const uint64_t got = settled_reads() - start;
        assert_true(got >= begun);
        run_to_end(one);
        assert_int_equal(settled_reads() - start, got);
        assert_true(end(s, one, KVT_OK).bytes_shared >= 6 * ENTRIES * LAYER_BYTES);
        /* The other way round: the first get's read is under way when the load begins. */
        start = reads();
        fail_reads(TIERS_FAULT_HANG, 1);
        assert_int_equal(pthread_create(&thread, NULL, get_all, s), 0);
        await_hung();
        begin(s, one);
        tiers_fault_clear(fault.device);
        run_to_end(one);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(end(s, one, KVT_OK).bytes_shared >= LAYERS * LAYER_BYTES);
        site_free(s);
    }
}

/* A get that is called off takes no layer from a load that waits for its read. */
TEST(a_get_is_called_off)
{
    site *s = site_make(false);
    side *one = &s->sides[0], *other = &s->sides[1];
    kvt_request request = {.struct_size = sizeof request,
                           .kind = KVT_REQUEST_GET,
                           .key = s->keys[0],
                           .view = other->given[0],
                           .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    uint64_t batch;
    fail_reads(TIERS_FAULT_HANG, 1);
    assert_ok(kvt_queue_submit(other->queue, &request, 1, &batch));
    await_hung();
    begin(s, one);
    assert_ok(kvt_queue_cancel(other->queue, batch));
    assert_ok(kvt_queue_wait(other->queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(other->queue, &done, 1), 1);
    assert_int_equal(done.status, KVT_E_CANCELLED);
    tiers_fault_clear(fault.device);
    run_to_end(one);
    (void)end(s, one, KVT_OK);
    site_free(s);
}

/* ---- many at once ---- */

typedef struct worker {
    site *s;
    uint32_t number;
    uint32_t rounds;
    uint32_t wrong;
    uint64_t read;
} worker;

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

/* Loads, each with memory and a queue of its own, that end anywhere; gets and deletes between. */
static void *work(void *context)
{
    worker *w = context;
    side own;
    uint32_t random = w->number + 1;
    side_make(w->s, &own);
    for (uint32_t round = 0; round < w->rounds; round++) {
        const kvt_load_options options = {.struct_size = sizeof options,
                                          .layers_ahead = 1 + draw(&random, 3),
                                          .deadline_ns = KVT_NO_DEADLINE};
        kvt_load_result result = {.struct_size = sizeof result};
        kvt_status statuses[ENTRIES];
        const uint32_t stop = draw(&random, 3) == 0 ? draw(&random, LAYERS) : LAYERS;
        const uint32_t number = draw(&random, ENTRIES);
        if (draw(&random, 4) == 0) {
            (void)!kvt_store_get(store, &w->s->keys[number],
                                 KVT_PACKED(own.data[number], bytes_of(w->s)), KVT_STORE_DEADLINE,
                                 NULL);
            continue;
        }
        if (draw(&random, 8) == 0) {
            (void)!kvt_store_delete(store, &w->s->keys[number]);
            (void)!put_one(w->s, number);
            continue;
        }
        if (kvt_load_begin(own.queue, w->s->keys, own.given, ENTRIES, &options, &own.load) !=
            KVT_OK)
            continue;
        for (uint32_t layer = 1; layer <= stop; layer++) {
            w->wrong += kvt_load_wait(own.load, layer, KVT_NO_DEADLINE) != KVT_OK;
            kvt_load_release(own.load, layer);
        }
        (void)kvt_load_end(own.load, statuses, &result);
        w->read += result.bytes_read;
        for (uint32_t i = 0; i < ENTRIES; i++) {
            if (stop == LAYERS) w->wrong += statuses[i] != KVT_OK && statuses[i] != KVT_MISS;
            if (statuses[i] != KVT_OK) continue;
            w->wrong += memcmp(own.data[i], w->s->expected[i], bytes_of(w->s)) != 0;
            memset(own.data[i], 0xee, bytes_of(w->s));
        }
    }
    side_free(&own);
    return NULL;
}

TEST(many_at_once)
{
    enum { WORKERS = 4, ROUNDS = 60 };
    for (int grouped = 0; grouped < 2; grouped++) {
        site *s = site_make(grouped);
        worker workers[WORKERS];
        pthread_t threads[WORKERS];
        uint64_t read = 0;
        for (uint32_t i = 0; i < WORKERS; i++) {
            workers[i] = (worker){.s = s, .number = i, .rounds = ROUNDS};
            assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(workers[i].wrong, 0);
            read += workers[i].read;
        }
        assert_int_equal(support_stats(store).staging_bytes, 0);
        assert_true(read != 0); /* how much of it was shared is the scheduler's */
        site_free(s);
    }
}
