/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_load_coarse.c - progressive loads: every layer in its coarse form, then refined, into
 * memory of the host and of a GPU (the stand-in): bytes of both forms, faults and deadlines between
 * them, and what is said of each.
 */
#include "store/core/store.h"

#include "gpu_engine.h"

#include "codecs/codecs.h"

#include <math.h>

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

#define FORM   "planes:k6v4,g64"
#define COARSE "planes:k2v2,g64"
#define SOON   (base_clock_ns() + SECOND_NS / 20)

enum { STEPS = 2 * LAYERS };

static char *data[ENTRIES];
static kvt_view views[ENTRIES];
static const kvt_view *pointers[ENTRIES];
static char coarse[ENTRIES][ENTRY_BYTES], refined[ENTRIES][ENTRY_BYTES];

/* A store whose entries are read from a device, or lie in memory, and host memory for them. */
static void open_site(bool device, const char *form)
{
    site_open_form(device, false, form);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        own.keys[i] = support_key(i);
        data[i] = queue_site_memory(ENTRY_BYTES);
        memset(data[i], 0xee, ENTRY_BYTES);
        views[i] = codecs_packed_view(&layout, data[i]);
        pointers[i] = &views[i];
        if (form == NULL || strcmp(form, FORM) != 0) continue;
        decode_form(i, COARSE, coarse[i]);
        decode_form(i, FORM, refined[i]);
        assert_memory_not_equal(coarse[i], refined[i], ENTRY_BYTES);
    }
}

static kvt_load_options options_of(uint32_t planes)
{
    return (kvt_load_options){.struct_size = sizeof(kvt_load_options),
                              .deadline_ns = KVT_NO_DEADLINE,
                              .coarse_planes = planes};
}

static kvt_load *begin(const kvt_load_options *options)
{
    kvt_load *load = NULL;
    assert_ok(kvt_load_begin(queue, own.keys, pointers, ENTRIES, options, &load));
    return load;
}

/* The coarse pass: every layer is computed with. */
static void pass(kvt_load *load)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kvt_load_wait(load, layer + 1, base_clock_ns() + 60 * SECOND_NS));
        if (layer + 1 < LAYERS) kvt_load_release(load, layer + 1);
    }
}

static void all_are(char (*wanted)[ENTRY_BYTES])
{
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_memory_equal(data[i], wanted[i], ENTRY_BYTES);
}

/* Ends a load of which all entries have one status. */
static kvt_load_result end(kvt_load *load, kvt_status wanted)
{
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(load, statuses, &result));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(statuses[i], wanted);
    return result;
}

TEST(coarse_then_refined)
{
    open_site(true, FORM);
    const kvt_load_options plain = options_of(0), first = options_of(1);
    kvt_load *load = begin(&plain);
    pass(load);
    const uint64_t bytes = end(load, KVT_OK).bytes_read;
    all_are(refined);
    load = begin(&first);
    assert_ok(kvt_load_wait(load, LAYERS, base_clock_ns() + 60 * SECOND_NS));
    assert_int_equal(kvt_load_total(load, NULL), STEPS);
    all_are(coarse);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(kvt_load_status(load, i), KVT_COARSE);
    kvt_load_release(load, 1);
    /* The first layer alone was released: the caller computes with the second one. */
    assert_ok(kvt_load_wait(load, LAYERS + 1, base_clock_ns() + 60 * SECOND_NS));
    assert_int_equal(kvt_load_wait(load, STEPS, SOON), KVT_E_TIMEOUT);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_memory_equal(data[i], refined[i], ENTRY_BYTES / LAYERS);
        assert_memory_equal(data[i] + ENTRY_BYTES / LAYERS, coarse[i] + ENTRY_BYTES / LAYERS,
                            ENTRY_BYTES / LAYERS);
        assert_int_equal(kvt_load_status(load, i), KVT_COARSE);
    }
    kvt_load_release(load, STEPS);
    assert_ok(kvt_load_wait(load, STEPS, base_clock_ns() + 60 * SECOND_NS));
    assert_int_equal(kvt_load_wait(load, STEPS + 1, KVT_NO_DEADLINE), KVT_E_ARGUMENT);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(kvt_load_status(load, i));
    const kvt_load_result result = end(load, KVT_OK);
    assert_int_equal(result.layers, STEPS);
    assert_int_equal(result.entries, ENTRIES);
    assert_int_equal(result.coarse, ENTRIES);
    assert_int_equal(result.bytes_read, bytes); /* no byte twice */
    all_are(refined);
    assert_int_equal(atomic_load(&store->coarse_bytes), 0);
    assert_int_equal(support_stats(store).misses, 0);
}

/* All may be released at once: no layer is refined before all are there. */
TEST(released_at_once)
{
    open_site(true, FORM);
    for (uint32_t planes = 1; planes < 4; planes++) {
        const kvt_load_options options = options_of(planes);
        for (uint32_t i = 0; i < ENTRIES; i++)
            memset(data[i], 0xee, ENTRY_BYTES);
        kvt_load *load = begin(&options);
        kvt_load_release(load, UINT32_MAX);
        assert_ok(kvt_load_wait(load, STEPS, base_clock_ns() + 60 * SECOND_NS));
        assert_int_equal(end(load, KVT_OK).coarse, ENTRIES);
        all_are(refined);
    }
}

/* Entries that have no coarse form, or lie in memory of the host, are whole at once. */
TEST(one_form)
{
    static const char *const forms[] = {NULL, "kivi:k4v4", "planes:k4v4,g64", FORM};
    for (uint32_t i = 0; i < 4; i++) {
        open_site(i < 3, forms[i]);
        const kvt_load_options options = options_of(i == 2 ? 3 : 1);
        kvt_load_quality said = {.struct_size = sizeof said};
        kvt_load *load = begin(&options);
        kvt_load_release(load, LAYERS);
        assert_ok(kvt_load_wait(load, LAYERS, base_clock_ns() + 60 * SECOND_NS));
        assert_ok(kvt_load_wait(load, STEPS, base_clock_ns() + 60 * SECOND_NS));
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_ok(kvt_load_status(load, k));
        assert_ok(kvt_load_quality_of(load, 1, &said));
        assert_false(said.coarse);
        assert_true(said.loss == (i == 0 ? 0 : 0.001) && said.coarse_loss == said.loss);
        assert_int_equal(end(load, KVT_OK).coarse, 0);
        assert_int_equal(queue_site_close(NULL), 0);
    }
}

/* Reads that fail, bring other bytes, or never end after the coarse form has come leave it as it
 * is. Without a fault that lasts the entries stay in the store. */
TEST(faults_of_the_refinement)
{
    static const tiers_fault_action actions[] = {TIERS_FAULT_FLIP, TIERS_FAULT_FAIL,
                                                 TIERS_FAULT_HANG};
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        open_site(true, FORM);
        const kvt_load_options options = options_of(1);
        const bool hangs = actions[i] == TIERS_FAULT_HANG;
        kvt_load *load = begin(&options);
        assert_ok(kvt_load_wait(load, LAYERS, base_clock_ns() + 60 * SECOND_NS));
        queue_site_fault((tiers_fault_rule){.action = actions[i],
                                            .kinds = TIERS_FAULT_READS,
                                            .status = KVT_E_IO,
                                            .flip_bit = 8 * 700 + 3});
        kvt_load_release(load, STEPS);
        const kvt_status waited =
            kvt_load_wait(load, STEPS, hangs ? SOON : base_clock_ns() + 60 * SECOND_NS);
        assert_int_equal(waited, hangs ? KVT_E_TIMEOUT : KVT_OK);
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_int_equal(kvt_load_status(load, k), KVT_COARSE);
        if (!hangs) tiers_fault_clear(fault.device);
        (void)end(load, KVT_COARSE);
        tiers_fault_clear(fault.device);
        /* The bit is one of the first layer's. */
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_memory_equal(data[k], coarse[k], ENTRY_BYTES / LAYERS);
        if (actions[i] != TIERS_FAULT_FLIP) all_are(coarse);
        /* A device that failed is out of service. */
        for (uint32_t k = 0; k < ENTRIES && actions[i] != TIERS_FAULT_FAIL; k++) {
            assert_ok(kvt_store_get(store, &own.keys[k], &views[k], KVT_NO_DEADLINE, NULL));
            assert_memory_equal(data[k], refined[k], ENTRY_BYTES);
        }
        assert_int_equal(atomic_load(&store->coarse_bytes), 0);
        assert_int_equal(queue_site_close(NULL), 0);
    }
}

/* A record that stays damaged in a further plane is found, and leaves the store at the end. */
TEST(a_damaged_refinement_leaves_the_store)
{
    open_site(true, FORM);
    const kvt_load_options options = options_of(1);
    kvt_load *load = begin(&options);
    assert_ok(kvt_load_wait(load, LAYERS, base_clock_ns() + 60 * SECOND_NS));
    queue_site_fault((tiers_fault_rule){
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 8 * 9000 + 3});
    kvt_load_release(load, STEPS);
    assert_ok(kvt_load_wait(load, STEPS, base_clock_ns() + 60 * SECOND_NS));
    kvt_status statuses[ENTRIES];
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const bool lost = statuses[i] == KVT_COARSE;
        assert_true(lost || statuses[i] == KVT_OK);
        assert_int_equal(kvt_store_exists(store, &own.keys[i]), lost ? KVT_MISS : KVT_OK);
    }
}

/* A deadline that passes between the forms, and ends in each state. */
TEST(deadlines_and_ends)
{
    open_site(true, FORM);
    kvt_load_options options = options_of(1);
    kvt_load *load = NULL;
    kvt_status status = KVT_E_TIMEOUT;
    for (uint64_t seconds = 1; status != KVT_OK; seconds *= 2) { /* as slow as it may be */
        if (load != NULL) assert_ok(kvt_load_end(load, NULL, NULL));
        options.deadline_ns = base_clock_ns() + seconds * SECOND_NS;
        load = begin(&options);
        status = kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE);
    }
    base_sleep_until(options.deadline_ns);
    kvt_load_release(load, STEPS);
    assert_int_equal(kvt_load_wait(load, STEPS, KVT_NO_DEADLINE), KVT_E_TIMEOUT);
    assert_int_equal(end(load, KVT_COARSE).layers, LAYERS);
    all_are(coarse);
    options.deadline_ns = KVT_NO_DEADLINE;
    load = begin(&options);
    assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
    (void)end(load, KVT_COARSE); /* before any release */
    all_are(coarse);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    load = begin(&options);
    assert_int_equal(kvt_load_wait(load, 1, SOON), KVT_E_TIMEOUT);
    (void)end(load, KVT_E_TIMEOUT);
    tiers_fault_clear(fault.device);
    load = begin(&options);
    kvt_queue_close(queue); /* the load ends with it */
    queue = NULL;
    assert_int_equal(kvt_load_wait(load, STEPS, KVT_NO_DEADLINE), KVT_E_STATE);
    kvt_status statuses[ENTRIES];
    assert_ok(kvt_load_end(load, statuses, NULL));
    assert_int_equal(atomic_load(&store->coarse_bytes), 0);
}

/* Without room for coarse bytes an entry has one form, and that is said. */
TEST(no_room)
{
    open_site(true, FORM);
    atomic_store(&store->coarse_bytes, store->staging->limit_bytes - 4096);
    const kvt_load_options options = options_of(1);
    kvt_load_quality said = {.struct_size = sizeof said};
    kvt_load *load = begin(&options);
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait(load, LAYERS, base_clock_ns() + 60 * SECOND_NS));
    all_are(refined);
    assert_ok(kvt_load_quality_of(load, 0, &said));
    assert_false(said.coarse);
    assert_int_equal(end(load, KVT_OK).coarse, 0);
    assert_int_equal(atomic_load(&store->coarse_bytes), store->staging->limit_bytes - 4096);
    atomic_store(&store->coarse_bytes, 0);
}

TEST(losses)
{
    static const test_rung rung = {COARSE, 2.5, 0.2, 0.3, false}; /* no rung of the ladder */
    static const double most[] = {0, 0.5, 0.25, -1};
    for (uint32_t i = 0; i < 6; i++) {
        further_rung = i < 4 ? &rung : NULL;
        open_site(true, FORM);
        kvt_load_options options = options_of(1);
        options.loss_max = most[i % 4];
        kvt_load_quality said = {.struct_size = sizeof said};
        kvt_load *load = NULL;
        const kvt_status begun =
            kvt_load_begin(queue, own.keys, pointers, ENTRIES, &options, &load);
        assert_int_equal(begun, i % 4 == 3 ? KVT_MISS : KVT_OK); /* the whole form loses, too */
        if (begun == KVT_OK) {
            assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
            assert_ok(kvt_load_quality_of(load, 2, &said));
            const bool has = i == 0 || i == 1 || i == 4;
            assert_int_equal(said.coarse, has);
            assert_true(said.loss == 0.001 && said.loss_upper == 0.002);
            if (has && i < 4) assert_true(said.coarse_loss == 0.2 && said.coarse_loss_upper == 0.3);
            if (has && i >= 4) assert_true(isnan(said.coarse_loss));
            kvt_variant form;
            assert_ok(kvt_variant_parse(has ? COARSE : FORM, &form));
            assert_memory_equal(&said.coarse_variant, &form, sizeof form);
            assert_int_equal(kvt_load_quality_of(load, ENTRIES, &said), KVT_E_ARGUMENT);
            said.struct_size = 8;
            assert_int_equal(kvt_load_quality_of(load, 0, &said), KVT_E_ARGUMENT);
            assert_ok(kvt_load_end(load, NULL, NULL));
        }
        assert_int_equal(queue_site_close(NULL), 0);
    }
}

TEST(wrong_arguments)
{
    open_site(true, FORM);
    kvt_load_options options = options_of(5);
    kvt_load *load = NULL;
    kvt_load_quality said = {.struct_size = sizeof said};
    assert_int_equal(kvt_load_begin(queue, own.keys, pointers, ENTRIES, &options, &load),
                     KVT_E_ARGUMENT);
    options = options_of(1);
    options.as_stored = 1; /* which is not progressive */
    assert_int_equal(kvt_load_begin(queue, own.keys, pointers, ENTRIES, &options, &load),
                     KVT_E_ARGUMENT);
    options = options_of(0);
    load = begin(&options);
    assert_int_equal(kvt_load_quality_of(load, 0, &said), KVT_E_STATE);
    assert_int_equal(kvt_load_quality_of(load, 0, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_quality_of(NULL, 0, &said), KVT_E_ARGUMENT);
    pass(load);
    (void)end(load, KVT_OK);
}

/* Progressive loads beside a plain one of the same entries: heads are shared, forms are not. */
TEST(beside_other_loads)
{
    static char other[ENTRIES][ENTRY_BYTES];
    open_site(true, FORM);
    for (uint32_t turn = 0; turn < 4; turn++) {
        const kvt_load_options plain = options_of(0), first = options_of(1 + turn % 2);
        kvt_view aside[ENTRIES];
        const kvt_view *to[ENTRIES];
        kvt_load *loads[2];
        for (uint32_t i = 0; i < ENTRIES; i++) {
            aside[i] = codecs_packed_view(&layout, other[i]);
            to[i] = &aside[i];
        }
        memset(other, 0xee, sizeof other);
        for (uint32_t i = 0; i < 2; i++) {
            const bool ours = i == turn / 2;
            assert_ok(kvt_load_begin(queue, own.keys, ours ? pointers : to, ENTRIES,
                                     ours ? &first : &plain, &loads[i]));
        }
        for (uint32_t i = 0; i < 2; i++)
            kvt_load_release(loads[i], STEPS);
        for (uint32_t i = 0; i < 2; i++) {
            assert_ok(kvt_load_wait(loads[i], kvt_load_total(loads[i], NULL), KVT_NO_DEADLINE));
            (void)end(loads[i], KVT_OK);
        }
        all_are(refined);
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_memory_equal(other[i], refined[i], ENTRY_BYTES);
    }
}

/* ---- pages of a GPU ---- */

/* Whether an entry's pages have the bytes of a form; NULL: of each element one of both. */
static bool pages_are(uint32_t number, const char *wanted)
{
    static char pool[POOL_BYTES];
    static uint16_t found[ENTRY_BYTES / 2], one[ENTRY_BYTES / 2], two[ENTRY_BYTES / 2];
    kvt_view view = own.views[number];
    fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
    view.base[0] = pool;
    view_gather_entry(&view, &layout, found);
    memcpy(one, wanted != NULL ? wanted : coarse[number], sizeof one);
    memcpy(two, wanted != NULL ? wanted : refined[number], sizeof two);
    for (size_t i = 0; i < ENTRY_BYTES / 2; i++)
        if (found[i] != one[i] && found[i] != two[i]) return false;
    return true;
}

/* The coarse pass of an engine, whose stream has waited for all of it. */
static kvt_status pass_of_engine(kvt_load *load)
{
    kvt_status status = KVT_OK;
    for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++)
        status = kvt_load_wait_layer(load, layer, own.stream);
    if (status == KVT_OK) assert_int_equal(driver.finish(own.stream), 0);
    return status;
}

TEST(pages_of_a_gpu)
{
    for (uint32_t i = 0; i < 12; i++) {
        const bool kernels = i >= 4, device = i % 2 != 0;
        if (i == 4) give_kernels();
        engine_open(0, axes_of_pools[i % 4]);
        open_site(device, FORM);
        const kvt_load_options options = options_of(i < 8 ? 1 : 2);
        kvt_load *load = NULL;
        assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, &options, &load));
        assert_ok(pass_of_engine(load));
        for (uint32_t k = 0; k < ENTRIES; k++) {
            assert_int_equal(kvt_load_status(load, k), KVT_COARSE);
            if (i < 8) assert_true(pages_are(k, coarse[k]));
        }
        kvt_load_release(load, STEPS);
        for (uint32_t layer = LAYERS; layer < STEPS; layer++)
            assert_ok(kvt_load_wait_layer(load, layer, own.stream));
        assert_int_equal(end(load, KVT_OK).coarse, ENTRIES);
        assert_int_equal(driver.finish(own.stream), 0);
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_true(pages_are(k, refined[k]));
        const kvt_gpu_stats stats = stats_of(0);
        assert_int_equal(stats.decoded_by_gpu, kernels ? ENTRIES * STEPS : 0);
        assert_int_equal(stats.decoded_by_cpu, kernels ? 0 : ENTRIES * STEPS);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
    }
}

/* Damaged planes never reach the pages; a GPU that errs leaves nothing that counts. */
TEST(refinements_of_pages_that_fail)
{
    give_kernels();
    for (uint32_t way = 0; way < 3; way++) {
        engine_open(0, "lsbth");
        open_site(true, FORM);
        const kvt_load_options options = options_of(1);
        kvt_load *load = NULL;
        fake_kernel_lies = way == 2;
        assert_ok(kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, &options, &load));
        assert_ok(pass_of_engine(load));
        uint32_t refused = 0; /* a check lies of one entry, whichever comes first in a launch */
        for (uint32_t k = 0; k < ENTRIES; k++)
            refused += kvt_load_status(load, k) == KVT_MISS;
        assert_int_equal(refused > 0, way == 2);
        fake_kernel_lies = way == 1;
        if (way == 0)
            queue_site_fault((tiers_fault_rule){
                .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 8 * 700 + 3});
        kvt_load_release(load, STEPS);
        assert_ok(kvt_load_wait(load, STEPS, base_clock_ns() + 60 * SECOND_NS));
        tiers_fault_clear(fault.device);
        kvt_status statuses[ENTRIES];
        assert_ok(kvt_load_end(load, statuses, NULL));
        uint32_t missed = 0;
        for (uint32_t k = 0; k < ENTRIES; k++) {
            missed += statuses[k] == KVT_MISS;
            if (way == 0) assert_int_equal(statuses[k], KVT_COARSE);
            if (way == 0) assert_true(pages_are(k, NULL));
        }
        if (way != 0) assert_true(missed > 0);
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
    }
}

/* Each call of the driver fails in turn: no status counts over other bytes, and nothing is left. */
TEST(every_call_of_the_driver_fails)
{
    give_kernels();
    bool reached = true;
    for (uint32_t n = 1; reached; n += 1 + n / 6) {
        engine_open(0, "lsbth");
        open_site(n % 8 == 5, FORM); /* a device takes long to open */
        fake->calls = fake->failed = 0;
        fake->fail_call = n;
        fake->fail_result = REFUSED;
        const kvt_load_options options = options_of(1);
        kvt_load *load = NULL;
        kvt_status status = kvt_load_begin(queue, own.keys, own.pointers, ENTRIES, &options, &load);
        if (status == KVT_OK) {
            for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++)
                status = kvt_load_wait_layer(load, layer, own.stream);
            (void)driver.finish(own.stream);
            for (uint32_t k = 0; k < ENTRIES && status == KVT_OK; k++)
                if (kvt_load_status(load, k) == KVT_COARSE) assert_true(pages_are(k, NULL));
            kvt_load_release(load, STEPS);
            (void)!kvt_load_wait(load, STEPS, base_clock_ns() + 60 * SECOND_NS);
            kvt_status statuses[ENTRIES];
            assert_ok(kvt_load_end(load, statuses, NULL));
            for (uint32_t k = 0; k < ENTRIES; k++) {
                if (statuses[k] == KVT_OK) assert_true(pages_are(k, refined[k]));
                if (statuses[k] == KVT_COARSE) assert_true(pages_are(k, NULL));
            }
        }
        reached = fake->failed > 0;
        fake->fail_call = 0;
        assert_int_equal(queue_site_close(NULL), 0);
        engine_close();
        assert_int_equal(fake->live, 0);
        assert_true(n < 4000);
    }
}
