/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_engine.h - an engine whose pages are in a GPU's memory, over the stand-in for the driver
 * (fake_cuda.c), and a store beside it: a host that touched that memory would die, and work is done
 * late. The driver refuses kernels, unless a case gives it the host's build of them
 * (kernel_lanes.h). TEST_ALL(open_all, NULL) and TEST_EACH(begin_case, end_case) make and end it.
 */
#ifndef TESTS_GPU_ENGINE_H
#define TESTS_GPU_ENGINE_H

#include "fake_kernels.h"

#include "codecs/codec_table.h"
#include "codecs/record.h"
#include "codecs/view_rows.h"
#include "ladder_support.h"
#include "queue_site.h"

#include <errno.h>
#include <kvterrace/gpu.h>
#include <kvterrace/lookup.h>

enum { ENTRIES = 5, LAYERS = 2, TOKENS = 64, BLOCK = 16, LOST = 719, REFUSED = 2, PASSING = 3 };
enum { TABLE = TOKENS / BLOCK + 1, BLOCKS = ENTRIES * TABLE };

static kvt_layout layout = {
    .layers = LAYERS, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = TOKENS};

#define ENTRY_BYTES (UINT64_C(2) * LAYERS * TOKENS * 2 * 64 * 2)
#define POOL_BYTES  (UINT64_C(2) * LAYERS * BLOCKS * BLOCK * 2 * 64 * 2)

/* The driver's calls that an engine makes. */
static struct {
    int (*allocate)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*stream)(void **, unsigned);
    int (*end_stream)(void *);
    int (*finish)(void *);
    int (*event)(void **, unsigned);
    int (*end_event)(void *);
    int (*record)(void *, void *);
    int (*copy)(uint64_t, const void *, size_t, void *);
} driver;

static inline void find(const char *name, void *pointer)
{
    void *symbol = fake_cuda_symbol(name);
    assert_non_null(symbol);
    memcpy(pointer, &symbol, sizeof symbol);
}

static inline int open_all(void **state)
{
    if (fake_cuda_load(state) != 0) return -1;
    find("cuMemAlloc_v2", &driver.allocate);
    find("cuMemFree_v2", &driver.free);
    find("cuStreamCreate", &driver.stream);
    find("cuStreamDestroy_v2", &driver.end_stream);
    find("cuStreamSynchronize", &driver.finish);
    find("cuEventCreate", &driver.event);
    find("cuEventDestroy_v2", &driver.end_event);
    find("cuEventRecord", &driver.record);
    find("cuMemcpyHtoDAsync_v2", &driver.copy);
    return 0;
}

/* An engine: a paged pool in a GPU's memory and a stream; its context is current on this thread. */
typedef struct engine {
    int gpu;
    void *context;
    uint64_t pool;
    void *stream;
    void *event;
    uint32_t tables[ENTRIES][TABLE];
    kvt_view views[ENTRIES];
    const kvt_view *pointers[ENTRIES];
    kvt_key keys[ENTRIES];
} engine;

static engine own;
static const kvt_gpu_options *gpu_options;     /* of the store; NULL: as they are */
static const kvt_tier_options *hbm_tier;       /* of the store; NULL: it has none */
static const test_rung *further_rung;          /* of the profile beside the form's own; or NULL */
static void (*profile_rows)(const char *path); /* adds rows to that profile; or NULL */

static inline void give_kernels(void)
{
    fake_kernels_give(fake, NULL, 0);
}

static inline void engine_open(int gpu, const char *axes)
{
    own = (engine){.gpu = gpu, .context = fake_cuda_turn(gpu, 1)};
    assert_int_equal(driver.allocate(&own.pool, POOL_BYTES), 0);
    fake_kernel_targets[0] = (lanes_memory){(void *)(uintptr_t)own.pool, POOL_BYTES, true};
    fake_kernel_targets[1] = (lanes_memory){.bytes = 0};
    assert_int_equal(driver.stream(&own.stream, 1), 0);
    assert_int_equal(driver.event(&own.event, 2), 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_view *view = &own.views[i];
        assert_ok(kvt_view_make(&layout, axes, BLOCK, BLOCKS, view));
        for (uint32_t k = 0; k < TABLE; k++)
            own.tables[i][k] = (k * ENTRIES + i) * 7 % BLOCKS;
        view->memory = KVT_MEMORY_GPU;
        view->gpu = (uint64_t)gpu;
        view->base[0] = (void *)(uintptr_t)own.pool;
        view->blocks = own.tables[i];
        view->block_count = TABLE;
        view->first_slot = 3;
        own.pointers[i] = view;
        own.keys[i] = support_key(i);
    }
}

static inline void engine_close(void)
{
    if (own.pool == 0) return;
    assert_ptr_equal(fake_cuda_turn(0, 0), own.context); /* as it was, whatever was called */
    assert_int_equal(driver.end_event(own.event), 0);
    assert_int_equal(driver.end_stream(own.stream), 0);
    assert_int_equal(driver.free(own.pool), 0);
    (void)fake_cuda_turn(own.gpu, -1);
    own = (engine){0};
}

static inline int begin_case(void **state)
{
    (void)state;
    *fake = (fake_cuda_state){.gpu_count = 2, .queries_until_done = 2};
    return 0;
}

static inline int end_case(void **state)
{
    fake->fail_call = 0;
    fake->fail_for_good = 0;
    fake_kernel_lies = false;
    gpu_options = NULL;
    hbm_tier = NULL;
    further_rung = NULL;
    profile_rows = NULL;
    const int closed = queue_site_close(state);
    engine_close();
    if (fake_kernel_failures != 0) return -1;
    return fake_cuda_is_empty(state) != 0 ? -1 : closed;
}

static inline void fill(uint32_t number, void *data)
{
    codecs_kv_sample_fill(&layout, 70 + number, data);
}

/* The bytes of an entry in a form, by the codec alone. */
static inline void decode_form(uint32_t number, const char *form, char *target)
{
    static char source[ENTRY_BYTES];
    kvt_record_spec spec = {.generation = 1, .layout = layout};
    uint64_t bound, scratch_bytes, bytes;
    assert_ok(kvt_variant_parse(form, &spec.variant));
    assert_ok(kvt_record_bound(&spec, &bound, &scratch_bytes));
    char *record = test_aligned(4096, bound), *scratch = test_aligned(4096, scratch_bytes + 1);
    fill(number, source);
    assert_ok(kvt_record_encode(&spec, source, ENTRY_BYTES, record, bound, scratch, scratch_bytes,
                                &bytes));
    assert_ok(kvt_record_decode(record, bytes, &spec, target, ENTRY_BYTES, scratch, scratch_bytes));
}

/* Whether the pool has what an entry was put with, or what the CPU decodes of it. */
static inline bool pool_is(uint32_t number, bool decoded)
{
    static char pool[POOL_BYTES], found[ENTRY_BYTES], wanted[ENTRY_BYTES];
    kvt_view view = own.views[number];
    fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
    view.base[0] = pool;
    view_gather_entry(&view, &layout, found);
    fill(number, wanted);
    if (decoded)
        assert_ok(kvt_store_get(store, &own.keys[number], KVT_PACKED(wanted, ENTRY_BYTES),
                                KVT_NO_DEADLINE, NULL));
    return memcmp(found, wanted, ENTRY_BYTES) == 0;
}

/* Writes packed bytes into an entry's pages. */
static inline void pool_write(uint32_t number, const void *packed)
{
    static char pool[POOL_BYTES];
    kvt_view view = own.views[number];
    fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
    view.base[0] = pool;
    view_scatter_entry(&view, &layout, 0, 0, packed);
    fake_cuda_move(pool, own.pool, POOL_BYTES, 1);
}

static inline bool pool_has(uint32_t number)
{
    return pool_is(number, false);
}

/* A store with the entries, put from memory of the host in a form, which a ladder offers where it
 * loses something; NULL: raw. */
static inline void site_open_form(bool device, bool staged, const char *form)
{
    static char profile_path[64]; /* of its own program, beside which others run */
    (void)snprintf(profile_path, sizeof profile_path, "%s.db", program_invocation_short_name);
    kvt_store_options options = queue_site_options(device);
    if (!staged) options.limits.put_staging_bytes = 0;
    if (gpu_options != NULL) options.gpu = *gpu_options;
    if (hbm_tier != NULL) options.tiers[KVT_TIER_HBM] = *hbm_tier;
    if (form != NULL) assert_ok(kvt_variant_parse(form, &options.variant));
    if (form != NULL && !kvt_codec_is_exact(options.variant)) {
        test_rung rungs[2] = {{form, 5, 0.001, 0.002, true}};
        if (further_rung != NULL) rungs[1] = *further_rung;
        (void)unlink(profile_path);
        ladder_make_profile(profile_path, rungs, further_rung != NULL ? 2 : 1);
        if (profile_rows != NULL) profile_rows(profile_path);
        options.learning.profile_path = profile_path;
        options.loss.ladder = true;
        options.loss.ladder_layout = layout;
        options.loss.alpha_seconds = 1;
    }
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    queue = queue_site_queue(2, 0);
    static char data[ENTRY_BYTES];
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_entry entry = support_entry(support_key(i), layout, 1);
        fill(i, data);
        assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, ENTRY_BYTES)));
    }
}

static inline void site_open(bool device, bool staged)
{
    site_open_form(device, staged, NULL);
}

static inline kvt_gpu_stats stats_of(uint32_t gpu)
{
    kvt_gpu_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_gpu_stats_get(store, gpu, &stats));
    return stats;
}

/* Loads all entries as an engine does, into statuses. The engine's stream has waited for every
 * layer when this returns KVT_OK. */
static inline kvt_status load_all(kvt_status *statuses)
{
    kvt_load *load = NULL;
    kvt_status status = kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, NULL, &load);
    if (status != KVT_OK) return status;
    for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++) {
        status = kvt_load_wait_layer(load, layer, own.stream);
        kvt_load_release(load, layer + 1);
    }
    const kvt_status ended = kvt_load_end(load, statuses, NULL);
    return status != KVT_OK ? status : ended;
}

static inline void load_well(void)
{
    kvt_status statuses[ENTRIES];
    assert_ok(load_all(statuses));
    assert_int_equal(driver.finish(own.stream), 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(statuses[i]);
        assert_true(pool_has(i));
    }
}

/* Gets an entry by the queue, layers of it or, with a count of 0, all. */
static inline void get_by_queue(uint32_t number, uint32_t first_layer, uint32_t layer_count)
{
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = own.keys[number],
                                 .view = &own.views[number],
                                 .first_layer = first_layer,
                                 .layer_count = layer_count,
                                 .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_ok(done.status);
}

/* Layers of heads apart, of tokens side by side, K and V in a head, sides outermost. */
static const char *const axes_of_pools[] = {"lsbth", "lsbht", "lbths", "slbth"};

/* Whether two entries give the same bytes, and take as many. */
static inline bool same_stored(const kvt_key *one, const kvt_key *other)
{
    static char data[2][ENTRY_BYTES];
    kvt_get_info infos[2] = {{.struct_size = sizeof infos[0]}, {.struct_size = sizeof infos[0]}};
    for (int i = 0; i < 2; i++)
        assert_ok(kvt_store_get(store, i == 0 ? one : other, KVT_PACKED(data[i], ENTRY_BYTES),
                                KVT_NO_DEADLINE, &infos[i]));
    return memcmp(data[0], data[1], ENTRY_BYTES) == 0 &&
           infos[0].stored_bytes == infos[1].stored_bytes &&
           memcmp(&infos[0].variant, &infos[1].variant, sizeof infos[0].variant) == 0;
}

/* Each call of the driver fails in turn, once or for good: no status says OK over wrong bytes, and
 * nothing is left. */
static inline void fail_in_turn_form(bool device, int result, bool for_good, const char *form)
{
    bool reached = true;
    for (uint32_t n = 1; reached; n += 1 + n / 8) {
        engine_open(0, "lsbth");
        site_open_form(device, false, form);
        fake->calls = fake->failed = 0;
        fake->fail_call = n;
        fake->fail_result = result;
        fake->fail_for_good = for_good ? 1 : 0;
        kvt_status statuses[ENTRIES], status = KVT_OK, got = KVT_OK;
        if (form == NULL) { /* with one, all is about the put */
            status = load_all(statuses);
            got = kvt_store_get(store, &own.keys[0], &own.views[0], KVT_NO_DEADLINE, NULL);
            if (got == KVT_OK) assert_true(pool_has(0));
        }
        kvt_entry entry = support_entry(support_key(300), layout, 1);
        char wanted[ENTRY_BYTES], host[ENTRY_BYTES];
        fill(0, wanted);
        pool_write(0, wanted);
        const kvt_status put = kvt_store_put(store, &entry, &own.views[0]);
        reached = fake->failed > 0;
        fake->fail_call = 0;
        fake->fail_for_good = 0;
        (void)driver.finish(own.stream);
        if (put == KVT_OK) assert_true(same_stored(&own.keys[0], &entry.key));
        for (uint32_t i = 1; i < ENTRIES && form == NULL && status == KVT_OK; i++)
            assert_true(statuses[i] != KVT_OK || pool_has(i));
        if (!reached) assert_true(status == KVT_OK && got == KVT_OK && put == KVT_OK);
        for (uint32_t i = 0; i < ENTRIES; i++) { /* the host's views go on */
            assert_ok(kvt_store_get(store, &own.keys[i], KVT_PACKED(host, ENTRY_BYTES),
                                    KVT_NO_DEADLINE, NULL));
            fill(i, wanted);
            if (form == NULL) assert_memory_equal(host, wanted, ENTRY_BYTES);
        }
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
        assert_true(n < 4000);
    }
}

#endif
