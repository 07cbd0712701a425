/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_offers.c - one trace goes through a store, through live replay and through the
 * simulator; what the engine is offered is the same in all three, byte for byte.
 *
 * The linker sends kvt_policy_admit and kvt_policy_ladder_add here first (cmake/tests.cmake), so
 * that a stream is what the engine was really called with. Handles are numbered as they come. All
 * is large enough to be kept: when an entry is offered then depends on the trace alone. What a
 * store measures and learns of this machine is held at the figures that the simulator is given.
 */
#include "cases.h"

#include "replay/live.h"
#include "store/learn/costs.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OFFERS_SEED    5u
#define OFFERS_LADDERS 4u

static const kvt_affine speeds[KVT_TIER_COUNT] = {
    [KVT_TIER_DRAM] = {2e-5, 25e9, 0.0}, [KVT_TIER_SSD] = {1e-4, 7e9, 0.0}};

/* ---- the streams ---- */

typedef struct stream {
    uint8_t *bytes;
    size_t size, room;
    uint64_t handles[4096];
    uint32_t handle_count;
    uint32_t offers;
} stream;

static stream *recorded; /* NULL: nothing is recorded */
static struct {
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count;
} ladders[OFFERS_LADDERS + 1];

static void put_bytes(const void *data, size_t size)
{
    if (recorded->size + size > recorded->room) {
        recorded->room = 2 * recorded->room + size + 4096;
        recorded->bytes = realloc(recorded->bytes, recorded->room);
        assert_non_null(recorded->bytes);
    }
    memcpy(recorded->bytes + recorded->size, data, size);
    recorded->size += size;
}

/* Handles are a store's secret: their order of appearance names them. */
static void put_handle(uint64_t handle)
{
    uint32_t at = 0;
    while (handle != 0 && at < recorded->handle_count && recorded->handles[at] != handle)
        at++;
    if (handle != 0 && at == recorded->handle_count) {
        assert_true(at < 4096);
        recorded->handles[recorded->handle_count++] = handle;
    }
    at = handle != 0 ? at + 1 : 0;
    put_bytes(&at, sizeof at);
}

kvt_status __real_kvt_policy_ladder_add(kvt_policy *policy, const kvt_option *options,
                                        uint32_t count, uint32_t *ladder_out);
kvt_status __wrap_kvt_policy_ladder_add(kvt_policy *policy, const kvt_option *options,
                                        uint32_t count, uint32_t *ladder_out);
kvt_status __real_kvt_policy_admit(kvt_policy *policy, uint64_t now_ns,
                                   const kvt_policy_entry *entry, kvt_plan *plan);
kvt_status __wrap_kvt_policy_admit(kvt_policy *policy, uint64_t now_ns,
                                   const kvt_policy_entry *entry, kvt_plan *plan);

kvt_status __wrap_kvt_policy_ladder_add(kvt_policy *policy, const kvt_option *options,
                                        uint32_t count, uint32_t *ladder_out)
{
    kvt_status status = __real_kvt_policy_ladder_add(policy, options, count, ladder_out);
    if (status != KVT_OK || *ladder_out > OFFERS_LADDERS) return status;
    memcpy(ladders[*ladder_out].options, options, count * sizeof *options);
    ladders[*ladder_out].count = count;
    return status;
}

/* A ladder's options count as the entry's own, with its seconds of NONE. */
static void record(const kvt_policy_entry *entry)
{
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count = entry->option_count;
    if (entry->ladder != 0) {
        assert_true(entry->ladder <= OFFERS_LADDERS);
        count = ladders[entry->ladder].count;
        memcpy(options, ladders[entry->ladder].options, sizeof options);
        options[KVT_OPTION_NONE].load_seconds = entry->recompute_seconds;
    } else {
        memcpy(options, entry->options, count * sizeof *options);
    }
    put_handle(entry->handle);
    put_handle(entry->parent);
    put_bytes(&entry->tokens, sizeof entry->tokens);
    put_bytes(&entry->request_tokens, sizeof entry->request_tokens);
    put_bytes(&entry->recompute_seconds, sizeof entry->recompute_seconds);
    put_bytes(&entry->sensitivity, sizeof entry->sensitivity);
    put_bytes(&entry->class_id, sizeof entry->class_id);
    put_bytes(&entry->tenant, sizeof entry->tenant);
    put_bytes(&count, sizeof count);
    put_bytes(options, count * sizeof *options);
    recorded->offers++;
}

kvt_status __wrap_kvt_policy_admit(kvt_policy *policy, uint64_t now_ns,
                                   const kvt_policy_entry *entry, kvt_plan *plan)
{
    if (recorded != NULL) record(entry);
    return __real_kvt_policy_admit(policy, now_ns, entry, plan);
}

/* ---- the machine, held still ---- */

kvt_status __wrap_costs_profiled_device(const cost_profile *profile, const kvt_device *device,
                                        cost_device *out);
kvt_status __wrap_costs_measure_variant(const cost_profile *profile, kvt_variant variant,
                                        kvt_codec_curve *out);
void __wrap_learn_size_shares(const kvt_store *store, const store_entry *entry,
                              double shares[KVT_VARIANTS_MAX]);

kvt_status __wrap_costs_profiled_device(const cost_profile *profile, const kvt_device *device,
                                        cost_device *out)
{
    (void)profile;
    kvt_affine speed = speeds[strncmp(device->name, "ssd", 3) == 0 ? KVT_TIER_SSD : KVT_TIER_DRAM];
    *out = (cost_device){.read = speed, .write = speed};
    return KVT_OK;
}

kvt_status __wrap_costs_measure_variant(const cost_profile *profile, kvt_variant variant,
                                        kvt_codec_curve *out)
{
    (void)profile;
    bool raw = variant.codec == KVT_CODEC_RAW;
    *out = (kvt_codec_curve){.variant = variant,
                             .stored_share = raw ? 1.0 : 0.72,
                             .encode_bytes_per_s = raw ? 1e11 : 2e9,
                             .decode_bytes_per_s = raw ? 1e11 : 4e9};
    return KVT_OK;
}

void __wrap_learn_size_shares(const kvt_store *store, const store_entry *entry,
                              double shares[KVT_VARIANTS_MAX])
{
    (void)store;
    (void)entry;
    for (uint32_t i = 0; i < KVT_VARIANTS_MAX; i++)
        shares[i] = (double)NAN;
}

/* ---- the three ways ---- */

typedef struct site {
    char path[64];
    kvt_device_config disk;
    kvt_store_options store;
    replay_options options;
    replay_workload workload;
} site;

static void site_open(site *s, uint64_t bytes_per_token, kvt_hole_mode holes)
{
    char message[256];
    memset(s, 0, sizeof *s);
    (void)snprintf(s->path, sizeof s->path, "replay_offers_%ld.tmp", (long)getpid());
    s->disk = (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                                  .name = "ssd0",
                                  .backend = "file",
                                  .path = s->path,
                                  .capacity_bytes = 96u << 20,
                                  .timeout_ns = UINT64_MAX};
    const replay_generator generator = {.requests_per_s = 400.0,
                                        .requests = 150,
                                        .contexts = 12,
                                        .zipf = 0.8,
                                        .tokens_median = 500.0,
                                        .tokens_sigma = 0.5,
                                        .tokens_max = 2000,
                                        .turns_mean = 2.0,
                                        .turn_tokens = 90.0,
                                        .think_seconds = 0.05,
                                        .block_tokens = 64,
                                        .seed = OFFERS_SEED};
    assert_ok(replay_workload_generate(&generator, &s->workload, message, sizeof message));
    replay_options_init(&s->options);
    s->options.bytes_per_token = bytes_per_token;
    s->options.servers = 1;
    s->options.seed = OFFERS_SEED;
    s->options.scale = 1.0;
    s->options.load_all = true;
    s->options.holes = holes;
    s->options.tick_seconds = 0.0;
    kvt_cost_model *model = &s->options.model;
    model->prefill =
        (kvt_prefill){.linear_seconds_per_token = 2e-6, .square_seconds_per_token2 = 1e-9};
    model->variant_count = 2;
    (void)__wrap_costs_measure_variant(NULL, (kvt_variant){.codec = KVT_CODEC_RAW},
                                       &model->variants[0]);
    (void)__wrap_costs_measure_variant(
        NULL, (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE},
        &model->variants[1]);
    kvt_store_options_init(&s->store);
    s->store.holes = holes;
    s->store.policy = "utility";
    s->store.prefill = model->prefill;
    s->store.limits.tick_seconds = 0;
    s->store.limits.put_staging_bytes = 0; /* a put has ended when it returns */
    s->store.lossless = true;
    s->store.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(512) << 20;
    s->store.tiers[KVT_TIER_SSD].capacity_bytes = UINT64_C(64) << 20;
    s->store.tiers[KVT_TIER_SSD].devices = &s->disk;
    s->store.tiers[KVT_TIER_SSD].device_count = 1;
    for (int tier = KVT_TIER_DRAM; tier < KVT_TIER_COUNT; tier++) {
        s->options.tiers[tier] =
            (replay_tier){.capacity_bytes = s->store.tiers[tier].capacity_bytes,
                          .read = speeds[tier],
                          .write = speeds[tier]};
    }
    s->options.tiers[KVT_TIER_HBM].capacity_bytes = 0;
    if (replay_options_check(&s->options, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
}

static void site_close(site *s)
{
    replay_workload_free(&s->workload);
    unlink(s->path);
}

static void put_block(const site *s, kvt_store *store, const replay_request *request, uint32_t i,
                      void *data)
{
    uint32_t unit = s->workload.block_tokens;
    const uint32_t *path = &s->workload.blocks[request->first_block];
    kvt_key parent = i > 0 ? live_key(OFFERS_SEED, path[i - 1]) : (kvt_key){{0}};
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = live_key(OFFERS_SEED, path[i]),
                       .parent = i > 0 ? &parent : NULL,
                       .layout = live_layout(s->options.bytes_per_token, unit),
                       .first_position = i * unit,
                       .request_tokens = request->input_tokens};
    uint64_t bytes = s->options.bytes_per_token * unit;
    if (entry.layout.dtype == KVT_DTYPE_OPAQUE)
        entry.recompute_seconds = kvt_offer_recompute_seconds(
            &s->options.model.prefill, s->options.holes, i * unit, unit, request->input_tokens);
    if (kvt_store_exists(store, &entry.key) == KVT_OK) {
        assert_ok(
            kvt_store_get(store, &entry.key, KVT_PACKED(data, bytes), KVT_STORE_DEADLINE, NULL));
        return;
    }
    live_fill(OFFERS_SEED, path[i], data, bytes);
    assert_true(kvt_store_put(store, &entry, KVT_PACKED(data, bytes)) >= 0);
}

static void run_store(const site *s)
{
    kvt_store *store = NULL;
    char message[256];
    void *data = test_alloc(s->options.bytes_per_token * s->workload.block_tokens);
    if (kvt_store_open(&s->store, &store, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
    for (uint64_t i = 0; i < s->workload.request_count; i++) {
        const replay_request *request = &s->workload.requests[i];
        for (uint32_t j = 0; j < request->block_count; j++)
            put_block(s, store, request, j, data);
    }
    kvt_store_close(store);
}

static void run_live(const site *s)
{
    char message[256];
    replay_result result;
    const replay_live live = {.store = &s->store};
    kvt_status status = replay_run_live(&s->options, &s->workload, &live, "utility", &result,
                                        message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    assert_int_equal(result.wrong_bytes, 0);
}

static void run_simulator(const site *s)
{
    char message[256];
    replay_result result;
    kvt_status status =
        replay_run_sim(&s->options, &s->workload, "utility", &result, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
}

static void expect_equal(const stream *a, const stream *b, const char *what)
{
    if (a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0) return;
    size_t at = 0;
    while (at < a->size && at < b->size && a->bytes[at] == b->bytes[at])
        at++;
    fail_msg("%s: %u and %u offers, which part at byte %zu of %zu and %zu", what, a->offers,
             b->offers, at, a->size, b->size);
}

static void compare_three(uint64_t bytes_per_token, kvt_hole_mode holes)
{
    static stream streams[3];
    static void (*const ways[3])(const site *) = {run_store, run_live, run_simulator};
    site s;
    memset(streams, 0, sizeof streams);
    site_open(&s, bytes_per_token, holes);
    for (int i = 0; i < 3; i++) {
        recorded = &streams[i];
        ways[i](&s);
        recorded = NULL;
        unlink(s.path);
    }
    assert_true(streams[0].offers >= s.workload.distinct_blocks);
    assert_int_equal(streams[0].handle_count, s.workload.distinct_blocks);
    expect_equal(&streams[0], &streams[1], "a store and live replay");
    expect_equal(&streams[0], &streams[2], "a store and the simulator");
    for (int i = 0; i < 3; i++)
        free(streams[i].bytes);
    site_close(&s);
}

TEST(where_holes_end_a_prefix)
{
    compare_three(1024, KVT_HOLES_CONTIGUOUS);
}

TEST(where_holes_are_recomputed)
{
    compare_three(1024, KVT_HOLES_MIXED);
}

TEST(of_records_that_end_inside_a_grain)
{
    compare_three(580, KVT_HOLES_CONTIGUOUS);
}

TEST(of_opaque_blocks)
{
    compare_three(777, KVT_HOLES_CONTIGUOUS);
}
