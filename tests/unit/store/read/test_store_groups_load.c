/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_groups_load.c - entries of several groups of layers through layered loads and queues,
 * in every variant: bit for bit what kvt_store_get gives, layer by layer and range by range; what
 * is refused, faults, deadlines, cancels and closes in the middle.
 */
#include "codecs/view_rows.h"
#include "ladder_support.h"

#include "base/clock.h"

#include <kvterrace/load.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/ring.h>

enum { ENTRIES = 8, KINDS = 4, GROUPS = 7, LAYERS = 4 };

#define SECOND_NS UINT64_C(1000000000)

/* Two layers of the ladder's shape among others and opaque groups in all places; one layout with as
 * many layers, as a group and as it is; groups of one layer each. */
static const kvt_layout kinds[KINDS][GROUPS] = {
    {{.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 700},
     {.layers = 1, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 192},
     {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 9000},
     {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 513},
     {.layers = 1, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 80},
     {.layers = 2,
      .kv_heads = 1,
      .head_dim = 32,
      .dtype = KVT_DTYPE_FP16,
      .sides = 1,
      .tokens = 64},
     {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 5003}},
    {{.layers = 4, .kv_heads = 1, .head_dim = 48, .dtype = KVT_DTYPE_FP8, .tokens = 64}},
    {{.layers = 4, .kv_heads = 2, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 96}},
    {{.layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64},
     {.layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_FP32, .tokens = 32},
     {.layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_FP32, .tokens = 16}}};
static const uint32_t counts[KINDS] = {GROUPS, 1, 0, 3}; /* 0: an entry without groups */

static const test_rung rungs[] = {
    {"planes:k8v8,g64", 8.5, 0.0005, 0.001, true},
    {"planes:k4v4,g64", 4.5, 0.005, 0.009, true},
    {"kivi:k4v4,g64,r0", 4.5, 0.0055, 0.0095, true},
    {"entropy:k0.25v0.5,vchan", 3.5, 0.006, 0.010, true},
};
static const char *const variants[] = {"raw", "lossless", "planes:k8v8,g64", "planes:k4v4,g64",
                                       "entropy:k0.25v0.5,vchan"};

/* Memory of its own for each group: every second token slot of [token][layer][side][head]. */
typedef struct place {
    kvt_view views[GROUPS];
    const kvt_view *pointers[GROUPS];
    char *memory[GROUPS];
    uint64_t bytes[GROUPS];
} place;

typedef struct site {
    char folder[64];
    char profile[96];
    support_fault fault;
    kvt_device_config device;
    kvt_store_options options;
    kvt_store *store;
    kvt_queue *queue;
    kvt_key keys[ENTRIES];
    bool stored[ENTRIES];
    place wanted[ENTRIES];
    place got[ENTRIES];
    kvt_view grouped[ENTRIES]; /* of requests */
} site;

static const kvt_layout *layouts_of(uint32_t number)
{
    return kinds[number % KINDS];
}

static uint32_t views_of(uint32_t number)
{
    return counts[number % KINDS] != 0 ? counts[number % KINDS] : 1;
}

static void place_wipe(place *p, uint32_t number)
{
    for (uint32_t i = 0; i < views_of(number); i++)
        memset(p->memory[i], 0xee, p->bytes[i]);
}

static void place_make(place *p, uint32_t number)
{
    for (uint32_t i = 0; i < views_of(number); i++) {
        const kvt_layout *layout = &layouts_of(number)[i];
        uint64_t bytes;
        assert_ok(kvt_layout_bytes(layout, &bytes));
        p->bytes[i] = 2 * bytes;
        p->memory[i] = test_alloc(p->bytes[i]);
        if (layout->dtype == KVT_DTYPE_OPAQUE) {
            p->views[i] = codecs_packed_view(layout, p->memory[i]);
        } else {
            assert_ok(kvt_view_make(layout, "tlsh", 0, 2 * layout->tokens, &p->views[i]));
            p->views[i].token_stride *= 2;
            p->views[i].base[0] = p->memory[i];
            p->views[i].base_bytes[0] = p->bytes[i];
        }
        p->pointers[i] = &p->views[i];
    }
    place_wipe(p, number);
}

/* Copies one layer of a group from place to place. */
static void copy_layer(const kvt_layout *layout, const kvt_view *view, uint32_t layer, char *to,
                       const char *from)
{
    const uint64_t head = (uint64_t)layout->head_dim * kvt_dtype_bytes(layout->dtype);
    for (uint32_t s = 0; s < kvt_layout_sides(layout); s++)
        for (uint32_t t = 0; t < layout->tokens; t++)
            for (uint32_t h = 0; h < layout->kv_heads; h++) {
                const int64_t at = layer * view->layer_stride + s * view->side_stride +
                                   t * view->token_stride + h * view->head_stride;
                memcpy(to + at, from + at, head);
            }
}

/* Whether a place has exactly these layers of what is wanted, and of the opaque groups those that
 * come with them, or none. */
static void assert_has(const site *s, uint32_t number, uint32_t first, uint32_t end, bool opaque)
{
    const place *wanted = &s->wanted[number], *got = &s->got[number];
    uint32_t before = 0;
    for (uint32_t i = 0; i < views_of(number); i++) {
        const kvt_layout *layout = &layouts_of(number)[i];
        char *expected = test_alloc(wanted->bytes[i]);
        memset(expected, 0xee, wanted->bytes[i]);
        if (layout->layers == 0 && opaque && (before == 0 ? first == 0 && end > 0 : before <= end))
            memcpy(expected, wanted->memory[i], layout->opaque_bytes);
        for (uint32_t l = 0; l < layout->layers; l++)
            if (before + l >= first && before + l < end)
                copy_layer(layout, &wanted->views[i], l, expected, wanted->memory[i]);
        assert_memory_equal(got->memory[i], expected, wanted->bytes[i]);
        before += layout->layers;
    }
}

static kvt_status put_one(site *s, uint32_t number)
{
    static char data[1 << 20];
    uint64_t bytes = 0, own;
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .first_position = 512 * number,
                       .recompute_seconds = 1};
    for (uint32_t i = 0; i < views_of(number); i++) {
        const kvt_layout *layout = &layouts_of(number)[i];
        assert_ok(kvt_layout_bytes(layout, &own));
        codecs_kv_sample_fill(layout, 100 * number + i, data + bytes);
        bytes += own;
    }
    entry.group_count = counts[number % KINDS];
    if (entry.group_count != 0)
        entry.groups = layouts_of(number);
    else
        entry.layout = layouts_of(number)[0];
    return kvt_store_put(s->store, &entry, KVT_PACKED(data, bytes));
}

TEST_BEFORE_EACH
{
    site *s = test_zeros(sizeof *s);
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->profile, sizeof s->profile, "%s/profile.db", s->folder);
    ladder_make_profile(s->profile, rungs, sizeof rungs / sizeof rungs[0]);
    s->fault = (support_fault){.capacity_bytes = 64 << 20};
    s->device = support_fault_config(&s->fault, "mem");
    s->options = support_options(16 << 20, "lru");
    s->options.learning.profile_path = s->profile;
    s->options.loss.ladder = true;
    s->options.loss.loss_limit = 1;
    s->options.loss.ladder_layout = (kvt_layout){
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 512};
    for (uint32_t i = 0; i < ENTRIES; i++) {
        s->keys[i] = support_key(i);
        place_make(&s->wanted[i], i);
        place_make(&s->got[i], i);
    }
    *state = s;
}

/* Opens the store on a device whose faults the test controls or on plain memory, with all entries,
 * and takes down what kvt_store_get gives. A fixed policy refuses entries that a lossy variant is
 * not for: those are missing then. */
static void site_open(site *s, const char *variant, bool device, bool staged)
{
    char message[256] = "";
    assert_ok(kvt_variant_parse(variant, &s->options.variant));
    s->options.limits.put_staging_bytes = staged ? KVT_PUT_STAGING_AUTO : 0;
    s->options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){.capacity_bytes = device ? 0 : 64 << 20,
                                                         .devices = device ? &s->device : NULL,
                                                         .device_count = device};
    kvt_status status = kvt_store_open(&s->options, &s->store, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s: %s", variant, kvt_status_name(status), message);
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = 2};
    assert_ok(kvt_queue_open(s->store, &options, &s->queue));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        s->stored[i] =
            s->options.variant.codec <= KVT_CODEC_LOSSLESS || i % KINDS == 0 || i % KINDS == 3;
        assert_int_equal(put_one(s, i), s->stored[i] ? KVT_OK : KVT_REFUSED);
        place_wipe(&s->wanted[i], i);
        place_wipe(&s->got[i], i);
        assert_int_equal(kvt_store_get(s->store, &s->keys[i],
                                       KVT_GROUPED(s->wanted[i].pointers, views_of(i)),
                                       KVT_NO_DEADLINE, NULL),
                         s->stored[i] ? KVT_OK : KVT_MISS);
    }
}

static void site_close(site *s)
{
    kvt_queue_close(s->queue);
    s->queue = NULL;
    kvt_store_close(s->store);
    s->store = NULL;
}

/* All layers of all entries by one block of a ring: rows of tokens that lie apart in the places. */
static void ring_all(site *s)
{
    uint64_t objects[ENTRIES];
    kvt_ring *ring = NULL;
    kvt_ring_iocb iocb;
    kvt_ring_result result;
    signed char statuses[KVT_RING_CONTEXTS_MAX];
    uint32_t count = 0;
    assert_ok(kvt_ring_open(s->store, 2, NULL, &ring));
    assert_ok(kvt_ring_object_open(ring, s->keys, ENTRIES, objects));
    assert_ok(kvt_ring_get_iocb(ring, 1, &iocb));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint32_t before = 0;
        assert_int_equal(objects[i] != 0, s->stored[i]);
        for (uint32_t k = 0; k < views_of(i) && s->stored[i]; k++) {
            const kvt_layout *layout = &layouts_of(i)[k];
            const kvt_view *view = &s->got[i].views[k];
            uint32_t region;
            assert_ok(kvt_ring_region_add(ring, s->got[i].memory[k], s->got[i].bytes[k], &region));
            for (uint32_t m = 0; m < layout->layers * kvt_layout_sides(layout); m++) {
                const uint32_t layer = m / kvt_layout_sides(layout),
                               side = m - layer * kvt_layout_sides(layout);
                iocb.contexts[count++] =
                    (kvt_ring_context){.object = objects[i],
                                       .layer = before + layer,
                                       .side = side,
                                       .bytes = kvt_layout_matrix_bytes(layout),
                                       .region = region,
                                       .target = layer * (uint64_t)view->layer_stride +
                                                 side * (uint64_t)view->side_stride,
                                       .stride = (uint64_t)view->token_stride};
            }
            before += layout->layers;
        }
    }
    iocb.block.count = count;
    iocb.block.deadline_ns = KVT_NO_DEADLINE;
    assert_ok(kvt_ring_submit(ring, &iocb, 1));
    assert_ok(kvt_ring_wait(ring, iocb.index, 1, KVT_NO_DEADLINE, &result, statuses));
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(statuses[i], KVT_OK);
    assert_int_equal(result.status, KVT_OK);
    kvt_ring_close(ring);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_has(s, i, 0, s->stored[i] ? LAYERS : 0, false);
        place_wipe(&s->got[i], i);
    }
}

/* What a ring brings is what a get gives, in every variant, from devices, memory and staging. */
TEST(rings_in_every_variant)
{
    site *s = *state;
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        /* Bytes that a put has handed over are exact until their record is there. */
        for (int where = 0; where < (v < 2 ? 3 : 2); where++) {
            site_open(s, variants[v], where == 0, where == 2);
            ring_all(s);
            ring_all(s);
            site_close(s);
        }
    }
}

/* What kvt_load_begin is given. */
typedef struct given {
    kvt_view grouped[ENTRIES];
    const kvt_view *views[ENTRIES];
    kvt_load_options options;
} given;

static void give(const site *s, given *g, uint32_t layers_ahead)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        g->grouped[i] = kvt_view_grouped(s->got[i].pointers, views_of(i));
        g->views[i] = views_of(i) > 1 ? &g->grouped[i] : s->got[i].pointers[0];
    }
    g->options = (kvt_load_options){.struct_size = sizeof g->options,
                                    .layers_ahead = layers_ahead,
                                    .deadline_ns = KVT_NO_DEADLINE};
}

static kvt_load *begin(site *s, const given *g)
{
    kvt_load *load = NULL;
    assert_ok(kvt_load_begin(s->queue, s->keys, g->views, ENTRIES, &g->options, &load));
    return load;
}

static void end_all(const site *s, kvt_load *load, kvt_status expected)
{
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    uint32_t leading = 0;
    assert_ok(kvt_load_end(load, statuses, &result));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(statuses[i], s->stored[i] ? expected : KVT_MISS);
    while (leading < ENTRIES && s->stored[leading])
        leading++;
    assert_int_equal(result.entries, expected == KVT_OK ? leading : 0);
}

/* Layer by layer, one ahead: exactly what the window lets come is there when the load is ended. */
static void load_all(site *s)
{
    given g;
    give(s, &g, 1);
    for (uint32_t stop = 0; stop <= LAYERS; stop++) {
        kvt_load *load = begin(s, &g);
        for (uint32_t layer = 0; layer < stop; layer++) {
            assert_ok(kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE));
            kvt_load_release(load, layer + 1);
        }
        const uint32_t there = stop + 2 < LAYERS ? stop + 2 : LAYERS;
        assert_ok(kvt_load_wait(load, there, KVT_NO_DEADLINE));
        end_all(s, load, there == LAYERS ? KVT_OK : KVT_E_TIMEOUT);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_has(s, i, 0, s->stored[i] ? there : 0, true);
            place_wipe(&s->got[i], i);
        }
    }
}

/* Into the views of an entry, whose view is made new at each call. */
static kvt_request request_of(site *s, uint32_t number, uint32_t first, uint32_t count)
{
    s->grouped[number] = kvt_view_grouped(s->got[number].pointers, views_of(number));
    return (kvt_request){.struct_size = sizeof(kvt_request),
                         .kind = KVT_REQUEST_GET,
                         .key = s->keys[number],
                         .view = &s->grouped[number],
                         .first_layer = first,
                         .layer_count = count,
                         .user = number,
                         .deadline_ns = KVT_NO_DEADLINE};
}

/* Submits, and takes what became of each by its user word. */
static void run(site *s, const kvt_request *requests, uint32_t count, kvt_status *statuses)
{
    assert_ok(kvt_queue_submit(s->queue, requests, count, NULL));
    for (uint32_t seen = 0; seen < count; seen++) {
        kvt_completion done = {.struct_size = sizeof done};
        assert_ok(kvt_queue_wait(s->queue, KVT_NO_DEADLINE));
        assert_int_equal(kvt_queue_drain(s->queue, &done, 1), 1);
        statuses[done.user] = done.status;
    }
}

/* Every range of layers, of all entries in one batch. */
static void get_ranges(site *s)
{
    for (uint32_t first = 0; first < LAYERS; first++)
        for (uint32_t count = 0; first + count <= LAYERS; count++) {
            kvt_request requests[ENTRIES];
            kvt_status statuses[ENTRIES];
            for (uint32_t i = 0; i < ENTRIES; i++)
                requests[i] = request_of(s, i, first, count);
            run(s, requests, ENTRIES, statuses);
            const uint32_t end = count == 0 ? LAYERS : first + count;
            for (uint32_t i = 0; i < ENTRIES; i++) {
                assert_int_equal(statuses[i], s->stored[i] ? KVT_OK : KVT_MISS);
                assert_has(s, i, first, s->stored[i] ? end : first, first == 0 && end == LAYERS);
                place_wipe(&s->got[i], i);
            }
        }
}

TEST(every_variant_comes_as_get_views_gives_it)
{
    site *s = *state;
    for (uint32_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        /* Memory, a device, the staging of the puts; that has exact bytes. */
        for (int where = 0; where < (i < 2 ? 3 : 2); where++) {
            site_open(s, variants[i], where == 1, where == 2);
            load_all(s);
            get_ranges(s);
            const kvt_store_stats stats = support_stats(s->store);
            assert_int_equal(stats.load_failures, 0);
            if (s->options.variant.codec <= KVT_CODEC_LOSSLESS) /* two loads end before their end */
                assert_int_equal(stats.misses, 2 * ENTRIES);
            kvt_description found = {.struct_size = sizeof found};
            assert_ok(kvt_store_flush(s->store));
            assert_ok(kvt_store_describe(s->store, &s->keys[0], &found));
            assert_int_equal(found.variant.codec, s->options.variant.codec);
            site_close(s);
        }
}

/* Puts by a queue, with views of each group. */
TEST(puts_take_views)
{
    site *s = *state;
    site_open(s, "raw", false, false);
    kvt_entry entries[ENTRIES];
    kvt_request requests[ENTRIES];
    kvt_status statuses[ENTRIES];
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_ok(kvt_store_delete(s->store, &s->keys[i]));
            entries[i] = (kvt_entry){.struct_size = sizeof entries[i],
                                     .key = s->keys[i],
                                     .recompute_seconds = 1,
                                     .group_count = counts[i % KINDS]};
            if (entries[i].group_count != 0)
                entries[i].groups = layouts_of(i);
            else
                entries[i].layout = layouts_of(i)[0];
            requests[i] = request_of(s, i, 0, 0);
            requests[i].kind = KVT_REQUEST_PUT;
            requests[i].entry = &entries[i];
            s->grouped[i].groups = s->wanted[i].pointers;
            if (round == 0) continue;
            uint32_t count = views_of(i) + 1 < 4 ? views_of(i) + 1 : 2; /* not its own */
            s->grouped[i].group_count = count == views_of(i) ? count - 1 : count;
        }
        run(s, requests, ENTRIES, statuses);
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_int_equal(statuses[i], round == 0 ? KVT_OK : KVT_E_ARGUMENT);
        if (round == 0) load_all(s);
        if (round == 0) get_ranges(s);
    }
    site_close(s);
}

/* Numbers of views that are not the entry's, and views that lie one on the other: that entry fails,
 * nothing of it is written, and the others are whole. */
TEST(bad_views_fail_their_entry)
{
    site *s = *state;
    site_open(s, "lossless", false, false);
    for (int what = 0; what < 4; what++) {
        given g;
        kvt_request requests[ENTRIES];
        kvt_status statuses[ENTRIES], queued[ENTRIES];
        kvt_load *load = NULL;
        const kvt_view kept = s->got[4].views[4], other = s->got[4].views[2];
        const kvt_view *first = s->got[4].pointers[0];
        /* Entry 4 has seven groups, of which the fifth is the window's. */
        if (what == 1) s->got[4].views[4].base_bytes[0] = 64;
        if (what == 2) s->got[4].views[2].base[0] = s->got[0].views[2].base[0]; /* another entry */
        if (what == 3) s->got[4].views[2].base[0] = s->got[4].views[6].base[0]; /* its own */
        give(s, &g, 0);
        for (uint32_t i = 0; i < ENTRIES; i++)
            requests[i] = request_of(s, i, 0, 0);
        if (what == 0) { /* its last two views are one too few, and are skipped */
            s->grouped[4].group_count = 6;
            s->grouped[5] = kvt_view_grouped(s->got[0].pointers, 2);
            g.views[4] = &s->grouped[4];
            g.views[5] = &s->grouped[5];
        }
        assert_ok(kvt_load_begin(s->queue, s->keys, g.views, ENTRIES, &g.options, &load));
        assert_int_equal(kvt_load_status(load, 4), KVT_E_ARGUMENT);
        for (uint32_t layer = 1; layer <= LAYERS; layer++) {
            assert_ok(kvt_load_wait(load, layer, KVT_NO_DEADLINE));
            kvt_load_release(load, layer);
        }
        assert_ok(kvt_load_end(load, statuses, NULL));
        run(s, requests, ENTRIES, queued);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            const bool bad = i == 4 || (i == 5 && what == 0);
            assert_int_equal(statuses[i], bad ? KVT_E_ARGUMENT : KVT_OK);
            assert_int_equal(queued[i], bad ? KVT_E_ARGUMENT : KVT_OK);
            s->got[4].views[4] = kept;
            s->got[4].views[2] = other;
            assert_has(s, i, 0, bad ? 0 : LAYERS, true);
            place_wipe(&s->got[i], i);
        }
        assert_ptr_equal(first, s->got[4].pointers[0]);
    }
    site_close(s);
}

/* What is wrong before anything is looked up. */
TEST(bad_calls_are_refused)
{
    site *s = *state;
    site_open(s, "raw", false, false);
    given g;
    kvt_load *load = NULL;
    kvt_status status;
    give(s, &g, 0);
    g.views[0] = s->got[0].pointers[0]; /* one of several */
    assert_int_equal(kvt_load_begin(s->queue, s->keys, g.views, 1, &g.options, &load), KVT_MISS);
    static const uint32_t wrong[] = {0, KVT_GROUPS_MAX + 1, UINT32_MAX};
    for (uint32_t i = 0; i < 3; i++) {
        give(s, &g, 0);
        g.grouped[1].group_count = wrong[i];
        g.views[1] = &g.grouped[1];
        assert_ok(kvt_load_begin(s->queue, s->keys, g.views, 2, &g.options, &load));
        assert_int_equal(kvt_load_status(load, 1), KVT_E_ARGUMENT);
        assert_ok(kvt_load_end(load, NULL, NULL));
        place_wipe(&s->got[0], 0);
        kvt_request request = request_of(s, 0, 0, 0);
        s->grouped[0].group_count = wrong[i];
        run(s, &request, 1, &status);
        assert_int_equal(status, KVT_E_ARGUMENT);
    }
    const kvt_view *some[GROUPS];
    memcpy(some, s->got[0].pointers, sizeof some);
    some[6] = NULL;
    give(s, &g, 0);
    g.grouped[0].groups = some;
    assert_int_equal(kvt_load_begin(s->queue, s->keys, g.views, 1, &g.options, &load), KVT_MISS);
    kvt_request request = request_of(s, 0, 0, 0);
    s->grouped[0].groups = some;
    run(s, &request, 1, &status);
    assert_int_equal(status, KVT_E_ARGUMENT);
    some[6] = &g.grouped[0]; /* groups of groups */
    run(s, &request, 1, &status);
    assert_int_equal(status, KVT_E_ARGUMENT);
    request = request_of(s, 0, 0, 0);
    request.view = NULL;
    run(s, &request, 1, &status);
    assert_int_equal(status, KVT_E_ARGUMENT);
    request = request_of(s, 0, LAYERS, 0); /* layers that it does not have */
    run(s, &request, 1, &status);
    assert_int_equal(status, KVT_E_ARGUMENT);
    request = request_of(s, 0, 2, LAYERS - 1);
    run(s, &request, 1, &status);
    assert_int_equal(status, KVT_E_ARGUMENT);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_has(s, i, 0, 0, true);
    site_close(s);
}

/* Loads all with one read that fails, or brings a wrong bit. How many entries are misses for it. */
static uint32_t load_with_fault(site *s, uint32_t skip, uint32_t *reads_out)
{
    tiers_fault_counts before, after;
    given g;
    kvt_status statuses[ENTRIES];
    uint32_t misses = 0;
    const tiers_fault_rule rule = {.action = skip % 3 == 0 ? TIERS_FAULT_FAIL : TIERS_FAULT_FLIP,
                                   .kinds = TIERS_FAULT_READS,
                                   .skip = skip,
                                   .hits = 1,
                                   .status = KVT_E_IO,
                                   .flip_bit = 300 + 77 * skip};
    tiers_fault_counts_get(s->fault.device, &before);
    assert_ok(tiers_fault_add(s->fault.device, &rule));
    give(s, &g, LAYERS);
    kvt_load *load = begin(s, &g);
    assert_ok(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE));
    tiers_fault_counts_get(s->fault.device, &after);
    assert_ok(kvt_load_end(load, statuses, NULL));
    *reads_out = (uint32_t)(after.reads - before.reads);
    tiers_fault_clear(s->fault.device);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_true(statuses[i] == KVT_OK || statuses[i] == KVT_MISS);
        misses += statuses[i] == KVT_MISS && s->stored[i];
        if (statuses[i] == KVT_OK) assert_has(s, i, 0, LAYERS, true);
        place_wipe(&s->got[i], i);
    }
    return misses;
}

/* Whichever read brings wrong bytes, or none: one entry is a miss, all others are whole. */
TEST(any_read_may_fail)
{
    site *s = *state;
    static const char *const some[] = {"lossless", "planes:k4v4,g64"};
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t failed = 0, reads = 1, stored = 0;
        site_open(s, some[i], true, false);
        for (uint32_t k = 0; k < ENTRIES; k++)
            stored += s->stored[k];
        for (uint32_t skip = 0; skip < reads; skip++) {
            uint32_t now, misses = load_with_fault(s, skip, &now);
            if (now > reads) reads = now;
            assert_true(misses <= 1);
            failed += misses;
            for (uint32_t k = 0; k < ENTRIES; k++) /* what was dropped comes back */
                if (s->stored[k]) assert_true(put_one(s, k) >= KVT_OK);
        }
        assert_true(reads >= 5 * stored); /* heads and four layers */
        assert_true(failed >= reads / 2); /* a flipped bit may be in padding that nobody reads */
        site_close(s);
    }
}

/* Reads that hang from any phase on: heads of tables, heads of groups, layers. */
TEST(deadlines_and_ends_in_the_middle)
{
    site *s = *state;
    static const uint32_t skips[] = {0, 3, ENTRIES + 2, 2 * ENTRIES, 3 * ENTRIES};
    for (uint32_t i = 0; i < 2 * sizeof skips / sizeof skips[0]; i++) {
        given g;
        site_open(s, "lossless", true, false);
        const tiers_fault_rule hang = {
            .action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS, .skip = skips[i / 2]};
        assert_ok(tiers_fault_add(s->fault.device, &hang));
        give(s, &g, 0);
        if (i % 2 == 0) g.options.deadline_ns = base_clock_ns() + SECOND_NS / 20;
        kvt_load *load = begin(s, &g);
        if (i % 2 == 0) {
            assert_int_equal(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE), KVT_E_TIMEOUT);
        } else {
            kvt_queue_close(s->queue);
            s->queue = NULL;
            assert_int_equal(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE), KVT_E_STATE);
        }
        end_all(s, load, KVT_E_TIMEOUT);
        for (uint32_t k = 0; k < ENTRIES; k++)
            place_wipe(&s->got[k], k);
        tiers_fault_clear(s->fault.device);
        if (s->queue != NULL) load_all(s); /* nothing was lost, and nothing is written late */
        site_close(s);
    }
}

/* Gets whose reads hang are called off, or their queue is closed. */
TEST(gets_are_called_off)
{
    site *s = *state;
    for (int closes = 0; closes < 2; closes++) {
        kvt_request requests[ENTRIES];
        uint64_t batch;
        site_open(s, "raw", true, false);
        const tiers_fault_rule hang = {
            .action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS, .skip = 2};
        assert_ok(tiers_fault_add(s->fault.device, &hang));
        for (uint32_t i = 0; i < ENTRIES; i++)
            requests[i] = request_of(s, i, 0, 0);
        assert_ok(kvt_queue_submit(s->queue, requests, ENTRIES, &batch));
        assert_ok(kvt_queue_wait(s->queue, KVT_NO_DEADLINE)); /* two are read */
        if (closes) {
            kvt_queue_close(s->queue);
            s->queue = NULL;
        } else {
            assert_ok(kvt_queue_cancel(s->queue, batch));
        }
        uint32_t whole = 0;
        for (uint32_t seen = 0; s->queue != NULL && seen < ENTRIES; seen++) {
            kvt_completion done = {.struct_size = sizeof done};
            assert_ok(kvt_queue_wait(s->queue, KVT_NO_DEADLINE));
            assert_int_equal(kvt_queue_drain(s->queue, &done, 1), 1);
            assert_true(done.status == KVT_OK || done.status == KVT_E_CANCELLED);
            if (done.status == KVT_OK) assert_has(s, (uint32_t)done.user, 0, LAYERS, true);
            whole += done.status == KVT_OK;
        }
        assert_true(whole <= 2);
        for (uint32_t i = 0; i < ENTRIES; i++)
            place_wipe(&s->got[i], i);
        tiers_fault_clear(s->fault.device);
        if (s->queue != NULL) get_ranges(s);
        site_close(s);
    }
}

/* One entry is missing, and one is deleted while it is loaded: the load reads what it found, and
 * the missing one stops no other. */
TEST(parts_of_a_context_are_missing)
{
    site *s = *state;
    given g;
    site_open(s, "lossless", true, false);
    assert_ok(kvt_store_delete(s->store, &s->keys[1]));
    give(s, &g, 0);
    kvt_load *load = begin(s, &g);
    assert_int_equal(kvt_load_status(load, 1), KVT_MISS);
    assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
    assert_ok(kvt_store_delete(s->store, &s->keys[4])); /* its room is held */
    assert_int_equal(kvt_load_status(load, 4), KVT_QUEUED);
    for (uint32_t layer = 1; layer <= LAYERS; layer++) {
        kvt_load_release(load, layer);
        assert_ok(kvt_load_wait(load, layer, KVT_NO_DEADLINE));
    }
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(load, statuses, &result));
    assert_int_equal(result.entries, 1);
    assert_int_equal(result.layers, LAYERS);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_int_equal(statuses[i], i == 1 ? KVT_MISS : KVT_OK);
        assert_has(s, i, 0, i == 1 ? 0 : LAYERS, true);
    }
    site_close(s);
}

/* Staging for a few layers at a time: all comes in the end. */
TEST(little_staging_is_enough)
{
    site *s = *state;
    s->options.limits.staging_bytes = 1 << 20;
    site_open(s, "raw", true, false);
    load_all(s);
    get_ranges(s);
    site_close(s);
}
