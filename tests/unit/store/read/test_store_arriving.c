/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_arriving.c - gets of large records, which are decoded while they are read: the same
 * bytes, and the same ends when a device hangs or fails, when the record is damaged, at a deadline
 * and for those who join. Whether something was decoded is counted, never timed.
 */
#include "store_support.h"

#include "base/clock.h"

#include <kvterrace/lookup.h>
#include <kvterrace/queue.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { MS = 1000000, CAPACITY = 32 << 20, ENTRY_BYTES = 4 << 20, LAYERS = 8 };

static const kvt_layout layout = {
    .layers = LAYERS, .kv_heads = 4, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 512};

/* A record comes in about 16 reads: the last ones hang. */
static const tiers_fault_rule hang_behind = {
    .action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS, .skip = 10};

/* A store of one device that can fail, and an entry on it. Loops of the codec are counted. */
typedef struct site {
    kvt_codec_workers workers;
    atomic_uint tasks; /* that were run */
    support_fault fault;
    kvt_store *store;
    kvt_key key;
    char *source;
} site;

static void site_run(void *context, uint32_t tasks, kvt_codec_task task, void *argument)
{
    site *s = context;
    for (uint32_t i = 0; i < tasks; i++)
        task(argument, i, i % s->workers.count);
    atomic_fetch_add(&s->tasks, tasks);
}

static site *site_open(const char *variant, const kvt_layout *of)
{
    site *s = test_zeros(sizeof *s);
    kvt_store_options options = support_options(16 << 20, "lru");
    s->fault.capacity_bytes = CAPACITY;
    s->workers = (kvt_codec_workers){
        .struct_size = sizeof s->workers, .count = 2, .run = site_run, .context = s};
    const kvt_device_config device = support_fault_config(&s->fault, "drive");
    options.codec_workers = &s->workers;
    assert_ok(kvt_variant_parse(variant, &options.variant));
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    s->store = support_open(&options);
    s->key = support_key(5);
    s->source = test_alloc(ENTRY_BYTES);
    codecs_kv_sample_fill(of, 3, s->source);
    const kvt_entry entry = support_entry(s->key, *of, 1);
    assert_ok(kvt_store_put(s->store, &entry, KVT_PACKED(s->source, ENTRY_BYTES)));
    atomic_store(&s->tasks, 0);
    return s;
}

static void site_break(site *s, const tiers_fault_rule *rule)
{
    assert_ok(tiers_fault_add(s->fault.device, rule));
}

static uint64_t site_hung(site *s)
{
    tiers_fault_counts counts;
    tiers_fault_counts_get(s->fault.device, &counts);
    return counts.hung;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
}

/* A get on a thread of its own. */
typedef struct getter {
    site *site;
    pthread_t thread;
    uint64_t deadline_ns;
    kvt_status status;
    kvt_get_info info;
    char *data;
} getter;

static void *getter_main(void *argument)
{
    getter *g = argument;
    g->info = (kvt_get_info){.struct_size = sizeof g->info};
    g->status = kvt_store_get(g->site->store, &g->site->key, KVT_PACKED(g->data, ENTRY_BYTES),
                              g->deadline_ns, &g->info);
    return NULL;
}

static void getter_start(getter *g, site *s, uint64_t deadline_ns)
{
    g->site = s;
    g->deadline_ns = deadline_ns;
    g->data = test_alloc(ENTRY_BYTES);
    assert_int_equal(pthread_create(&g->thread, NULL, getter_main, g), 0);
}

static void getter_end(getter *g, kvt_status expected)
{
    assert_int_equal(pthread_join(g->thread, NULL), 0);
    assert_int_equal(g->status, expected);
    if (expected == KVT_OK) assert_memory_equal(g->data, g->site->source, ENTRY_BYTES);
}

static getter get_now(site *s, uint64_t deadline_ns, kvt_status expected)
{
    getter g;
    getter_start(&g, s, deadline_ns);
    getter_end(&g, expected);
    return g;
}

/* ---- a queue ---- */

/* A get of a queue, which is not waited for. */
static void queue_get(kvt_queue *queue, site *s, uint64_t deadline_ns, char *data, kvt_view *view,
                      uint64_t *batch_out)
{
    *view = *KVT_PACKED(data, ENTRY_BYTES);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .urgency = KVT_CLASS_WAITED,
                                 .key = s->key,
                                 .view = view,
                                 .deadline_ns = deadline_ns};
    assert_ok(kvt_queue_submit(queue, &request, 1, batch_out));
}

static kvt_status queue_end(kvt_queue *queue)
{
    kvt_completion done = {.struct_size = sizeof done};
    while (kvt_queue_drain(queue, &done, 1) == 0)
        nap();
    return done.status;
}

static void site_await_staging(site *s)
{
    while (support_stats(s->store).staging_bytes != 0)
        nap();
}

TEST(large_records_come_back)
{
    static const char *const variants[] = {"raw", "lossless"};
    for (uint32_t order = KVT_ORDER_LAYER_SIDE; order <= KVT_ORDER_SIDE_LAYER; order++) {
        for (uint32_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
            kvt_layout of = layout;
            of.order = (uint8_t)order;
            site *s = site_open(variants[i], &of);
            getter g = get_now(s, KVT_NO_DEADLINE, KVT_OK);
            assert_false(g.info.shared);
            assert_true(g.info.read_ns > 0 && g.info.decode_ns > 0);
            assert_true(g.info.elapsed_ns >= g.info.read_ns);
            assert_int_equal(atomic_load(&s->tasks), 2 * LAYERS);
            assert_int_equal(support_stats(s->store).staging_bytes, 0);
            kvt_store_close(s->store);
        }
    }
}

/* Layers of an entry, into a view that keeps gaps between tokens. */
TEST(a_view_gets_its_layers_as_they_come)
{
    enum { GAP = 64, ROW = 4 * 64 * 2, STRIDE = ROW + GAP };
    site *s = site_open("lossless", &layout);
    const uint64_t matrix = (uint64_t)layout.tokens * STRIDE;
    char *data = test_alloc(2 * LAYERS * matrix);
    memset(data, 0xee, 2 * LAYERS * matrix);
    const kvt_view view = {.struct_size = sizeof view,
                           .dtype = layout.dtype,
                           .base = {data},
                           .base_bytes = {2 * LAYERS * matrix},
                           .layer_stride = (int64_t)(2 * matrix),
                           .side_stride = (int64_t)matrix,
                           .token_stride = STRIDE,
                           .head_stride = ROW / 4};
    assert_ok(kvt_store_get(s->store, &s->key, &view, KVT_NO_DEADLINE, NULL));
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        for (uint32_t t = 0; t < layout.tokens; t++) {
            const char *row = data + i * matrix + (uint64_t)t * STRIDE;
            assert_memory_equal(row, s->source + ((uint64_t)i * layout.tokens + t) * ROW, ROW);
            for (uint32_t k = ROW; k < STRIDE; k++)
                assert_int_equal((unsigned char)row[k], 0xee);
        }
    kvt_store_close(s->store);
}

/* Opaque bytes come in pieces of 8 MiB, so of these none is early. */
TEST(opaque_bytes_come_back)
{
    const kvt_layout opaque = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = ENTRY_BYTES};
    site *s = site_open("raw", &opaque);
    (void)get_now(s, KVT_NO_DEADLINE, KVT_OK);
    kvt_store_close(s->store);
}

/* The first layers are decoded while the last bytes hang. */
TEST(layers_are_decoded_before_the_read_has_ended)
{
    getter g;
    site *s = site_open("raw", &layout);
    site_break(s, &hang_behind);
    getter_start(&g, s, KVT_NO_DEADLINE);
    while (site_hung(s) == 0 || atomic_load(&s->tasks) == 0)
        nap();
    assert_in_range(atomic_load(&s->tasks), 1, 2 * LAYERS - 1);
    tiers_fault_clear(s->fault.device);
    getter_end(&g, KVT_OK);
    assert_int_equal(atomic_load(&s->tasks), 2 * LAYERS);
    kvt_store_close(s->store);
}

/* A deadline ends a get whose first layers are decoded as any other, and the device keeps the
 * staging until it answers. */
TEST(a_deadline_ends_a_get_that_has_begun_to_decode)
{
    site *s = site_open("lossless", &layout);
    const uint64_t before = support_stats(s->store).timeouts;
    for (uint32_t i = 0; i < 4; i++) {
        site_break(s, &hang_behind);
        const uint64_t deadline_ns = base_clock_ns() + 20 * MS;
        getter g = get_now(s, deadline_ns, KVT_MISS);
        assert_true(g.info.timed_out && base_clock_ns() >= deadline_ns);
        assert_ok(kvt_store_exists(s->store, &s->key));
        tiers_fault_clear(s->fault.device);
        site_await_staging(s);
    }
    assert_int_equal(support_stats(s->store).timeouts, before + 4);
    assert_int_equal(support_stats(s->store).load_failures, 0);
    (void)get_now(s, KVT_NO_DEADLINE, KVT_OK);
    kvt_store_close(s->store);
}

/* A read error at any request is a miss, and the entry stays. */
TEST(a_read_that_fails_late_is_a_miss)
{
    site *s = site_open("lossless", &layout);
    for (uint64_t skip = 0; skip < 14; skip += 4) {
        const tiers_fault_rule fail = {.action = TIERS_FAULT_FAIL,
                                       .kinds = TIERS_FAULT_READS,
                                       .skip = skip,
                                       .hits = 1,
                                       .status = KVT_E_IO,
                                       .os_error = 5};
        site_break(s, &fail);
        getter g = get_now(s, KVT_NO_DEADLINE, KVT_MISS);
        assert_false(g.info.timed_out);
        tiers_fault_clear(s->fault.device);
        site_await_staging(s);
        (void)get_now(s, KVT_NO_DEADLINE, KVT_OK);
    }
    assert_int_equal(support_stats(s->store).load_failures, 4);
    kvt_store_close(s->store);
}

/* Damage in any request is found, whether or not the read is under way, and the entry is dropped.
 */
TEST(damage_is_found_wherever_it_is)
{
    for (uint64_t skip = 0; skip < 14; skip += 4) {
        site *s = site_open("lossless", &layout);
        const tiers_fault_rule flip = {.action = TIERS_FAULT_FLIP,
                                       .kinds = TIERS_FAULT_READS,
                                       .skip = skip,
                                       .hits = 1,
                                       .flip_bit = 8 * 20000};
        site_break(s, &flip);
        (void)get_now(s, KVT_NO_DEADLINE, KVT_MISS);
        assert_int_equal(kvt_store_exists(s->store, &s->key), KVT_MISS);
        assert_int_equal(support_stats(s->store).load_failures, 1);
        assert_int_equal(support_stats(s->store).staging_bytes, 0);
        kvt_store_close(s->store);
    }
}

/* A get that joins has the bytes when the read ends; when its owner gives up, it reads itself. */
TEST(gets_join_a_read_that_is_decoded_as_it_comes)
{
    for (uint32_t late = 0; late < 2; late++) {
        getter owner, other;
        site *s = site_open("lossless", &layout);
        site_break(s, &hang_behind);
        getter_start(&owner, s, late ? base_clock_ns() + 300 * MS : KVT_NO_DEADLINE);
        while (site_hung(s) == 0)
            nap();
        getter_start(&other, s, KVT_NO_DEADLINE);
        while (!late && support_stats(s->store).shared_reads == 0)
            nap();
        if (late) getter_end(&owner, KVT_MISS);
        tiers_fault_clear(s->fault.device);
        if (!late) getter_end(&owner, KVT_OK);
        getter_end(&other, KVT_OK);
        assert_true(late || other.info.shared);
        site_await_staging(s);
        kvt_store_close(s->store);
    }
}

/* ---- gets of a queue ---- */

/* The same without a thread that waits: what has come is decoded while the rest hangs, and a
 * deadline or a cancel ends the get as any other. */
TEST(a_queue_decodes_what_has_come)
{
    enum { ENDS = 0, LATE = 1, CANCELLED = 2, FAILS = 3, DAMAGED = 4, CASES = 5 };
    static const kvt_status ends[CASES] = {KVT_OK, KVT_MISS, KVT_E_CANCELLED, KVT_MISS, KVT_MISS};
    for (int how = 0; how < CASES; how++) {
        kvt_queue *queue;
        kvt_view view;
        uint64_t batch;
        site *s = site_open("lossless", &layout);
        char *data = test_alloc(ENTRY_BYTES);
        const kvt_queue_options options = {.struct_size = sizeof options, .threads = 2};
        const tiers_fault_rule worse = {.action =
                                            how == FAILS ? TIERS_FAULT_FAIL : TIERS_FAULT_FLIP,
                                        .kinds = TIERS_FAULT_READS,
                                        .skip = 5,
                                        .hits = 1,
                                        .status = KVT_E_IO,
                                        .os_error = 5,
                                        .flip_bit = 8 * 20000};
        assert_ok(kvt_queue_open(s->store, &options, &queue));
        if (how == FAILS || how == DAMAGED) site_break(s, &worse);
        site_break(s, &hang_behind);
        queue_get(queue, s, how == LATE ? base_clock_ns() + 50 * MS : KVT_NO_DEADLINE, data, &view,
                  &batch);
        while (how != LATE && how != FAILS && (site_hung(s) == 0 || atomic_load(&s->tasks) == 0))
            nap();
        if (how == CANCELLED) assert_ok(kvt_queue_cancel(queue, batch));
        /* A read that has failed issues no more, so nothing of it hangs. */
        if (how == ENDS || how == DAMAGED) tiers_fault_clear(s->fault.device);
        assert_int_equal(queue_end(queue), ends[how]);
        tiers_fault_clear(s->fault.device);
        if (how == ENDS) assert_memory_equal(data, s->source, ENTRY_BYTES);
        if (how == ENDS) assert_int_equal(atomic_load(&s->tasks), 2 * LAYERS);
        assert_int_equal(kvt_store_exists(s->store, &s->key), how == DAMAGED ? KVT_MISS : KVT_OK);
        site_await_staging(s);
        if (how != DAMAGED) (void)get_now(s, KVT_NO_DEADLINE, KVT_OK);
        kvt_queue_close(queue);
        kvt_store_close(s->store);
    }
}

/* Many at once on few threads, from devices that answer in no order; and prefixes, whose queue has
 * no thread of its own. */
TEST(many_gets_of_large_records)
{
    enum { GETS = 24 };
    kvt_queue *queue;
    kvt_view views[GETS];
    uint64_t batch;
    char *data[GETS];
    site *s = site_open("lossless", &layout);
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = 3};
    const tiers_fault_rule slow = {
        .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .skip = 5, .delay_ns = MS / 5};
    site_break(s, &slow);
    assert_ok(kvt_queue_open(s->store, &options, &queue));
    for (uint32_t i = 0; i < GETS; i++) {
        data[i] = test_alloc(ENTRY_BYTES);
        queue_get(queue, s, KVT_NO_DEADLINE, data[i], &views[i], &batch);
        if (i % 3 == 2) nap();
    }
    for (uint32_t i = 0; i < GETS; i++)
        assert_ok(queue_end(queue));
    for (uint32_t i = 0; i < GETS; i++)
        assert_memory_equal(data[i], s->source, ENTRY_BYTES);
    kvt_queue_close(queue);
    size_t loaded;
    const kvt_view *const one = &views[0];
    memset(data[0], 0, ENTRY_BYTES);
    assert_ok(kvt_prefix_get(s->store, &s->key, &one, 1, KVT_NO_DEADLINE, &loaded));
    assert_int_equal(loaded, 1);
    assert_memory_equal(data[0], s->source, ENTRY_BYTES);
    kvt_store_close(s->store);
}
