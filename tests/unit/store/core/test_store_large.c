/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_large.c - what an entry beyond the bounds of staging takes of memory beside the
 * caller's own buffer, call by call, as docs/STORE.md has it; that it keeps its form where another
 * one would take several times its bytes; and that the depth of a queue takes nothing.
 */
#include "codecs/view_rows.h"
#include "store_support.h"

#include "codecs/record.h"

#include <fcntl.h>
#include <kvterrace/load.h>

enum { MIB = 1 << 20, ENTRY_MIB = 64, LAYERS = 16, SLACK_MIB = 12 };

#define ENTRY_BYTES ((uint64_t)ENTRY_MIB * MIB)

/* 64 MiB: 16 layers x 2 sides x 1024 tokens x 8 heads x 128 x bf16. */
static const kvt_layout layout = {
    .layers = LAYERS, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 1024};

/* A line of /proc/self/status, in MiB. */
static long memory_mib(const char *line)
{
    char text[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (kib < 0 && fgets(text, sizeof text, file) != NULL)
        if (strncmp(text, line, strlen(line)) == 0) kib = strtol(text + strlen(line) + 1, NULL, 10);
    fclose(file);
    return kib / 1024;
}

/* Begins to measure; false where the system does not let the peak be begun anew, and under
 * sanitizers, whose own memory grows beside. */
static bool measure(long *before)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)before;
    return false;
#else
    const int file = open("/proc/self/clear_refs", O_WRONLY);
    const bool began = file >= 0 && write(file, "5", 1) == 1;
    if (file >= 0) close(file);
    *before = memory_mib("VmRSS");
    return began;
#endif
}

/* The peak since `before` is within a share of the entry, and slack for the rest of the process. */
static void expect_within(const char *call, long before, double share)
{
    const long peak = memory_mib("VmHWM") - before;
    print_message("%s: %ld MiB of %d\n", call, peak, ENTRY_MIB);
    if ((double)peak > share * ENTRY_MIB + SLACK_MIB)
        fail_msg("%s took %ld MiB beside the entry's own %d", call, peak, ENTRY_MIB);
}

typedef struct site {
    char folder[64], path[96], catalog[96];
    kvt_device_config device;
    kvt_store_options options;
    kvt_store *store;
    kvt_entry entry;
    char *data;
} site;

static void site_open(site *s)
{
    char message[256];
    if (kvt_store_open(&s->options, &s->store, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
}

static void site_make(site *s, uint64_t put_staging_bytes)
{
    memset(s, 0, sizeof *s);
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->path, sizeof s->path, "%s/m0", s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    s->device = support_file_config("m0", s->path, 4 * ENTRY_BYTES);
    s->device.sparse = true;
    kvt_store_options_init(&s->options);
    s->options.policy = "lru";
    s->options.limits.tick_seconds = 0;
    s->options.limits.staging_bytes = 4 * MIB;
    s->options.limits.put_staging_bytes = put_staging_bytes;
    s->options.durability.catalog_path = s->catalog;
    support_tier(&s->options, KVT_TIER_SSD, &s->device, 1);
    site_open(s);
    s->entry = support_entry(support_key(1), layout, 100);
    s->data = test_alloc(ENTRY_BYTES);
    codecs_kv_sample_fill(&layout, 7, s->data);
}

static void site_end(site *s)
{
    kvt_store_close(s->store);
}

/* All that reads the entry, each into the caller's one buffer. */
static void check_reads(site *s)
{
    long before;
    const kvt_key *key = &s->entry.key;
    kvt_view view = codecs_packed_view(&layout, s->data);
    const kvt_view *pointer = &view;
    kvt_queue *queue;
    kvt_load *load;
    assert_ok(kvt_queue_open(s->store, NULL, &queue));
    bool measured = measure(&before);
    assert_ok(
        kvt_store_get(s->store, key, KVT_PACKED(s->data, ENTRY_BYTES), KVT_STORE_DEADLINE, NULL));
    if (measured) expect_within("get", before, 1.07);
    measured = measure(&before);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = *key,
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_ok(done.status);
    if (measured) expect_within("a queue's get", before, 1.07);
    measured = measure(&before);
    assert_ok(kvt_load_begin(queue, key, &pointer, 1, NULL, &load));
    for (uint32_t layer = 1; layer <= LAYERS; layer++) {
        assert_ok(kvt_load_wait(load, layer, KVT_NO_DEADLINE));
        kvt_load_release(load, layer);
    }
    assert_ok(kvt_load_end(load, NULL, NULL));
    if (measured) expect_within("load", before, 3.0 / LAYERS);
    kvt_queue_close(queue);
    char *expected = test_alloc(ENTRY_BYTES);
    codecs_kv_sample_fill(&layout, 7, expected);
    assert_memory_equal(s->data, expected, ENTRY_BYTES);
}

TEST(a_put_that_hands_over_takes_a_copy_and_a_record)
{
    site s;
    long before;
    site_make(&s, 4 * MIB);
    const bool measured = measure(&before);
    assert_ok(kvt_store_put(s.store, &s.entry, KVT_PACKED(s.data, ENTRY_BYTES)));
    assert_ok(kvt_store_flush(s.store));
    if (measured) expect_within("put and flush", before, 2.07);
    if (measured) assert_true(memory_mib("VmRSS") - before < SLACK_MIB);
    check_reads(&s);
    site_end(&s);
}

TEST(a_put_that_stores_takes_a_record)
{
    site s;
    long before;
    site_make(&s, 0);
    const bool measured = measure(&before);
    assert_ok(kvt_store_put(s.store, &s.entry, KVT_PACKED(s.data, ENTRY_BYTES)));
    if (measured) expect_within("put", before, 1.07);
    check_reads(&s);
    site_end(&s);
}

/* Another form would take the record, the bytes and the new record at once. */
TEST(a_move_keeps_the_form_of_an_entry_beyond_staging)
{
    site s;
    long before;
    site_make(&s, 0);
    assert_ok(kvt_store_put(s.store, &s.entry, KVT_PACKED(s.data, ENTRY_BYTES)));
    kvt_store_close(s.store);
    s.options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    s.options.lossless = true;
    s.options.tiers[KVT_TIER_DRAM].capacity_bytes = 2 * ENTRY_BYTES;
    site_open(&s);
    const bool measured = measure(&before);
    for (int i = 0; i < 4; i++) {
        kvt_get_info info = {.struct_size = sizeof info};
        uint32_t moves;
        assert_ok(kvt_store_get(s.store, &s.entry.key, KVT_PACKED(s.data, ENTRY_BYTES),
                                KVT_STORE_DEADLINE, &info));
        assert_int_equal(info.variant.codec, KVT_CODEC_RAW);
        assert_ok(kvt_store_maintain(s.store, &moves));
    }
    if (measured) expect_within("gets and moves", before, 1.07);
    assert_true(support_stats(s.store).moves.aborted > 0);
    site_end(&s);
}

/* A deep queue takes memory for what it is given, not for what it may be given. */
TEST(the_depth_of_a_queue_takes_no_memory)
{
    enum { DEPTH = 1 << 20, FEW = 100 };
    kvt_store *store = support_open_memory("lru", 1 << 20, 0);
    const kvt_queue_options options = {.struct_size = sizeof options, .depth = DEPTH};
    long before;
    const bool measured = measure(&before);
    kvt_queue *queue;
    assert_ok(kvt_queue_open(store, &options, &queue));
    kvt_request requests[FEW];
    kvt_completion done[FEW];
    for (uint32_t i = 0; i < FEW; i++)
        requests[i] = (kvt_request){
            .struct_size = sizeof requests[i], .kind = KVT_REQUEST_EXISTS, .key = support_key(i)};
    for (int round = 0; round < 100; round++) {
        assert_ok(kvt_queue_submit(queue, requests, FEW, NULL));
        for (size_t drained = 0; drained < FEW;) {
            assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
            done[0].struct_size = sizeof done[0];
            drained += kvt_queue_drain(queue, done, FEW);
        }
        assert_int_equal(kvt_queue_wait(queue, KVT_NO_DEADLINE), KVT_END);
    }
    if (measured) expect_within("a queue of 2^20", before, 0.1);
    kvt_queue_close(queue);
    kvt_store_close(store);
}
