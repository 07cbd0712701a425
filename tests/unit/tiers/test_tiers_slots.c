/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_slots.c - slots against the extent allocator: laid out, taken, given back and given
 * up; whole members, tensors, restarts, members that leave.
 */
#include <string.h>

#include "cases.h"
#include "pool_scratch.h"
#include "tiers/pool/location.h"
#include "tiers/pool/stripe.h"

enum { UNIT = 16384, GRAIN = TIERS_GRAIN_BYTES, CHUNK = 64 };

static tiers_pool *open_pool(const uint64_t *sizes, const double *speeds, uint32_t count,
                             const tiers_pool_options *options, uint64_t align)
{
    tiers_member_options members[TIERS_MEMBERS_MAX];
    tiers_pool *pool = NULL;
    for (uint32_t i = 0; i < count; i++) {
        members[i] = pool_scratch_member(pool_scratch_memory(sizes[i]), speeds[i]);
        members[i].align_bytes = align;
    }
    assert_ok(tiers_pool_open(members, count, options, &pool, NULL, 0));
    return pool;
}

static void lay(tiers_pool *pool)
{
    while (tiers_pool_lay_slots(pool, CHUNK))
        ;
}

static tiers_slot_stats class_at(tiers_pool *pool, uint32_t index)
{
    tiers_slot_stats stats;
    assert_ok(tiers_pool_slot_class(pool, index, &stats));
    return stats;
}

static const uint64_t two_sizes[2] = {512 * UNIT, 1024 * UNIT};
static const double two_speeds[2] = {1e9, 2e9};

TEST(options_that_make_no_slots_are_refused)
{
    tiers_slot_size sizes[TIERS_SLOT_CLASSES_MAX + 1];
    tiers_member_options member = pool_scratch_member(pool_scratch_memory(1 << 20), 1e9);
    tiers_pool_options options = {.unit_bytes = UNIT, .slots = sizes, .slot_count = 1};
    tiers_pool *pool = NULL;
    char message[160] = "";
    const struct {
        tiers_slot_size first, second;
        uint32_t count;
        kvt_status status;
    } cases[] = {
        {{.bytes = 0}, {.bytes = 0}, 1, KVT_E_ARGUMENT},
        {{.bytes = 5000}, {.bytes = 0}, 1, KVT_E_ARGUMENT},
        {{.bytes = 8192, .unit_bytes = 100}, {.bytes = 0}, 1, KVT_E_ARGUMENT},
        {{.bytes = 8192}, {.bytes = 8192}, 2, KVT_E_ARGUMENT},
        {{.bytes = 8192}, {.bytes = 4096}, 2, KVT_E_ARGUMENT},
        {{.bytes = 4096}, {.bytes = 2 << 20}, 2, KVT_E_SPACE}, /* larger than the tier */
        {{.bytes = 4096}, {.bytes = 8192}, TIERS_SLOT_CLASSES_MAX + 1, KVT_E_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sizes[0] = cases[i].first;
        sizes[1] = cases[i].second;
        options.slot_count = cases[i].count;
        for (uint32_t k = 2; k < options.slot_count; k++)
            sizes[k].bytes = 8192 * (uint64_t)k;
        message[0] = '\0';
        assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, message, sizeof message),
                         cases[i].status);
        assert_true(message[0] != '\0');
    }
    kvt_device_close(member.device);
}

TEST(a_slot_is_taken_and_given_back_without_the_allocator)
{
    const tiers_slot_size sizes[] = {{.bytes = 9 * UNIT}, {.bytes = 30 * UNIT}};
    const tiers_pool_options options = {.unit_bytes = UNIT, .slots = sizes, .slot_count = 2};
    tiers_pool *pool = open_pool(two_sizes, two_speeds, 2, &options, 0);
    tiers_member_stats before, during;
    tiers_location *location;
    lay(pool);
    assert_int_equal(pool_scratch_used(pool), 0); /* free slots are free room */
    assert_true(class_at(pool, 0).free > 40 && class_at(pool, 1).free > 15);
    const uint32_t free = class_at(pool, 0).free;
    assert_ok(tiers_pool_member(pool, 0, &before));
    assert_ok(tiers_pool_reserve(pool, 9 * UNIT, &location));
    assert_ok(tiers_pool_member(pool, 0, &during));
    assert_int_equal(before.free_ranges, during.free_ranges);
    assert_int_equal(before.free_bytes_largest, during.free_bytes_largest);
    assert_int_equal(location->extent_count, 2); /* one a member: never in pieces */
    assert_int_equal(share_of(location, 0), 3);
    assert_int_equal(share_of(location, 1), 6);
    assert_int_equal(class_at(pool, 0).free, free - 1);
    assert_int_equal(class_at(pool, 0).taken, 1);
    assert_int_equal(pool_scratch_used(pool), 9 * UNIT);
    tiers_pool_release(pool, location);
    assert_int_equal(class_at(pool, 0).free, free);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
}

TEST(an_object_takes_the_smallest_class_that_fits_or_extents)
{
    const tiers_slot_size sizes[] = {{.bytes = 40 * UNIT}, {.bytes = 41 * UNIT}};
    const tiers_pool_options options = {.unit_bytes = UNIT, .slots = sizes, .slot_count = 2};
    tiers_pool *pool = open_pool(two_sizes, two_speeds, 2, &options, 0);
    tiers_location *a, *b, *c, *d;
    tiers_pool_facts facts;
    lay(pool);
    assert_ok(tiers_pool_reserve(pool, 40 * UNIT - 2 * GRAIN, &a)); /* as many units */
    assert_int_equal(a->bytes, 40 * UNIT - 2 * GRAIN);
    assert_int_equal(class_at(pool, 0).taken, 1);
    tiers_pool_facts_get(pool, &facts);
    assert_int_equal(facts.padding_bytes, 2 * GRAIN);
    assert_int_equal(facts.used_bytes, 40 * UNIT);
    assert_ok(tiers_pool_reserve(pool, 40 * UNIT + GRAIN, &b));
    assert_int_equal(class_at(pool, 1).taken, 1);
    assert_ok(tiers_pool_reserve(pool, 36 * UNIT, &c)); /* would leave a tenth */
    assert_ok(tiers_pool_reserve(pool, 50 * UNIT, &d));
    assert_int_equal(class_at(pool, 0).taken + class_at(pool, 1).taken, 2);
    tiers_pool_release(pool, a);
    tiers_pool_release(pool, b);
    tiers_pool_release(pool, c);
    tiers_pool_release(pool, d);
    tiers_pool_facts_get(pool, &facts);
    assert_int_equal(facts.used_bytes + facts.padding_bytes, 0);
    assert_ok(tiers_pool_reserve(pool, 40 * UNIT, &a)); /* the slot has its whole size again */
    assert_int_equal(class_at(pool, 0).taken, 1);
    tiers_pool_release(pool, a);
    tiers_pool_close(pool);
}

TEST(a_class_that_ran_out_uses_extents_and_gets_more_in_the_background)
{
    const tiers_slot_size sizes[] = {{.bytes = 8 * UNIT}, {.bytes = 64 * UNIT}};
    const tiers_pool_options options = {.unit_bytes = UNIT, .slots = sizes, .slot_count = 2};
    tiers_pool *pool = open_pool(two_sizes, two_speeds, 2, &options, 0);
    tiers_location *held[256];
    uint32_t count = 0;
    lay(pool);
    const uint32_t laid = class_at(pool, 0).free;
    assert_true(laid > 0 && laid < 128);
    while (class_at(pool, 0).free > 0)
        assert_ok(tiers_pool_reserve(pool, 8 * UNIT, &held[count++]));
    assert_int_equal(count, laid);
    assert_ok(tiers_pool_reserve(pool, 8 * UNIT, &held[count++]));
    assert_int_equal(class_at(pool, 0).missed, 1);
    assert_int_equal(class_at(pool, 0).taken, laid);
    const uint32_t other = class_at(pool, 1).free;
    lay(pool); /* the other class has too much */
    assert_true(class_at(pool, 0).free > 0);
    assert_true(class_at(pool, 1).free < other);
    for (uint32_t i = 0; i < count; i++)
        tiers_pool_release(pool, held[i]);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
}

TEST(free_slots_make_way_for_extents)
{
    const tiers_slot_size sizes[] = {{.bytes = 6 * UNIT}};
    const tiers_pool_options options = {.unit_bytes = UNIT, .slots = sizes, .slot_count = 1};
    const uint64_t all = two_sizes[0] + two_sizes[1];
    tiers_pool *pool = open_pool(two_sizes, two_speeds, 2, &options, 0);
    tiers_location *location, *none;
    lay(pool);
    assert_int_equal(tiers_pool_reserve(pool, all + GRAIN, &none), KVT_E_SPACE);
    assert_true(class_at(pool, 0).free > 0); /* nothing was given up for it */
    assert_ok(tiers_pool_reserve(pool, all, &location));
    assert_int_equal(class_at(pool, 0).free, 0);
    assert_int_equal(tiers_pool_reserve(pool, 6 * UNIT, &none), KVT_E_SPACE);
    tiers_pool_release(pool, location);
    lay(pool);
    assert_true(class_at(pool, 0).free > 0);
    tiers_pool_close(pool);
}

/* A member that is fast for its size is laid out first, and has its due of extents all the same. */
TEST(extents_lie_by_weight_while_slots_hold_the_room_of_a_fast_member)
{
    const tiers_slot_size sizes[] = {{.bytes = 6 * UNIT}};
    const uint64_t sizes_of[2] = {512 * UNIT, 512 * UNIT};
    for (int whole = 0; whole < 2; whole++) {
        const tiers_pool_options options = {.unit_bytes = UNIT,
                                            .slots = sizes,
                                            .slot_count = 1,
                                            .striping = whole ? TIERS_STRIPE_ENTRY
                                                              : TIERS_STRIPE_PROPORTIONAL};
        tiers_pool *pool = open_pool(sizes_of, two_speeds, 2, &options, 0);
        tiers_location *held[40];
        uint64_t bytes[2] = {0};
        lay(pool);
        for (uint32_t i = 0; i < 40; i++) {
            assert_ok(tiers_pool_reserve(pool, 15 * UNIT, &held[i]));
            for (uint32_t k = 0; k < held[i]->extent_count; k++)
                bytes[held[i]->extents[k].member] += held[i]->extents[k].bytes;
        }
        assert_true(bytes[1] <= 2 * bytes[0] + 30 * UNIT && bytes[1] + 30 * UNIT >= 2 * bytes[0]);
        assert_true(class_at(pool, 0).free > 0); /* no more than is needed */
        for (uint32_t i = 0; i < 40; i++)
            tiers_pool_release(pool, held[i]);
        assert_int_equal(pool_scratch_used(pool), 0);
        tiers_pool_close(pool);
    }
}

TEST(slots_begin_where_the_drive_likes_it)
{
    const uint64_t sizes_of[1] = {64 << 20};
    const double speeds[1] = {1e9};
    const tiers_slot_size sizes[] = {{.bytes = 20 * GRAIN}, {.bytes = (1 << 20) + 3 * GRAIN}};
    const tiers_pool_options options = {.unit_bytes = 1 << 21, .slots = sizes, .slot_count = 2};
    tiers_pool *pool = open_pool(sizes_of, speeds, 1, &options, 128 << 10);
    tiers_location *location;
    lay(pool);
    /* 4 KiB in 80 are a twentieth: too much; 20 KiB in a MiB are not. */
    assert_int_equal(class_at(pool, 0).held_bytes, 20 * GRAIN);
    assert_int_equal(class_at(pool, 1).held_bytes, (1 << 20) + 8 * GRAIN);
    for (int i = 0; i < 10; i++) {
        assert_ok(tiers_pool_reserve(pool, (1 << 20) + 3 * GRAIN, &location));
        assert_int_equal(location->extents[0].offset % (32 << 10), 0);
        tiers_pool_release(pool, location);
    }
    tiers_pool_close(pool);
}

/* Where a location's units begin behind a head: at multiples of align. */
static void assert_units_begin(const tiers_location *location, uint64_t head, uint64_t align)
{
    uint32_t heads = 0;
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const tiers_extent *extent = &location->extents[i];
        const bool first = extent->bytes % location->unit_bytes != 0;
        assert_int_equal((extent->offset + (first ? head : 0)) % align, 0);
        heads += first;
    }
    assert_int_equal(heads, 1);
}

/* The head of an object of whole tensors shifts its tensors, so the head's extent begins where they
 * lie right, in a new slot and in one that comes back. */
TEST(tensors_begin_where_the_drive_likes_it)
{
    enum { TENSOR = 32 << 10, HEAD = 3 * GRAIN, BYTES = HEAD + 48 * TENSOR };
    const tiers_slot_size sizes[] = {{.bytes = BYTES, .unit_bytes = TENSOR, .odd_first = true}};
    const tiers_pool_options options = {
        .unit_bytes = UNIT, .striping = TIERS_STRIPE_TENSOR, .slots = sizes, .slot_count = 1};
    for (uint32_t members = 1; members <= 2; members++) {
        unsigned char flat[512];
        tiers_location *locations[5], *back;
        const uint64_t sizes_of[2] = {32 << 20, 32 << 20};
        tiers_pool *pool = open_pool(sizes_of, two_speeds, members, &options, 16 << 10);
        lay(pool);
        const uint32_t free = class_at(pool, 0).free;
        assert_true(class_at(pool, 0).held_bytes >= BYTES + GRAIN);
        for (int i = 0; i < 5; i++) {
            assert_ok(tiers_pool_reserve_tensors(pool, BYTES, TENSOR, &locations[i]));
            assert_units_begin(locations[i], HEAD, 16 << 10);
        }
        assert_int_equal(class_at(pool, 0).taken, 5);
        const size_t bytes = tiers_location_pack(locations[3], flat, sizeof flat);
        for (int i = 0; i < 5; i++)
            tiers_pool_release(pool, locations[i]);
        assert_int_equal(class_at(pool, 0).free, free);
        assert_int_equal(pool_scratch_used(pool), 0);
        tiers_pool_close(pool);
        /* Another alignment makes extents of it; the same one the slot. */
        for (int same = 0; same < 2; same++) {
            pool = open_pool(sizes_of, two_speeds, members, &options, same ? 16 << 10 : 32 << 10);
            assert_ok(tiers_location_unpack(flat, bytes, &back));
            assert_ok(tiers_pool_adopt(pool, back));
            if (same) assert_int_equal(class_at(pool, 0).taken, 1);
            lay(pool);
            tiers_pool_release(pool, back);
            assert_int_equal(pool_scratch_used(pool), 0);
            if (same) assert_int_equal(class_at(pool, 0).free, free);
            tiers_pool_close(pool);
        }
    }
}

/* After 1e5 random puts and deletes entries still lie in one piece on each member, and no member
 * has more to write than its speed allows: a share of the drives' sum is reached. */
static void check_churn(tiers_striping striping, double share)
{
    enum { TENSOR = 32 << 10, BYTES = 3 * GRAIN + 32 * TENSOR, HELD = 4096, WRITES = 64 };
    static const uint64_t sizes_of[4] = {256 << 20, 256 << 20, 256 << 20, 256 << 20};
    static const double speeds[4] = {1e8, 1e8, 2e8, 4e8};
    static tiers_location *held[HELD];
    const tiers_slot_size sizes[] = {{.bytes = BYTES, .unit_bytes = TENSOR, .odd_first = true}};
    const tiers_pool_options options = {.striping = striping, .slots = sizes, .slot_count = 1};
    tiers_pool *pool = open_pool(sizes_of, speeds, 4, &options, 0);
    tiers_location *written[WRITES];
    uint64_t random = 1;
    double bytes[4] = {0}, slowest = 0;
    lay(pool);
    for (uint32_t i = 0; i < 100000; i++) {
        const uint64_t draw = pool_scratch_random(&random);
        tiers_location **at = &held[draw % HELD];
        if (*at != NULL) {
            tiers_pool_release(pool, *at);
            *at = NULL;
            continue;
        }
        if (pool_scratch_used(pool) > (uint64_t)4 * (256 << 20) / 10 * 3) continue;
        const kvt_status status =
            draw / HELD % 4 == 0 ? tiers_pool_reserve(pool, (120 + draw / 65536 % 160) * GRAIN, at)
                                 : tiers_pool_reserve_tensors(pool, BYTES, TENSOR, at);
        if (status != KVT_OK) *at = NULL;
        if (i % 64 == 0) (void)tiers_pool_lay_slots(pool, 16);
    }
    for (uint32_t i = 0; i < WRITES; i++) {
        assert_ok(tiers_pool_reserve_tensors(pool, BYTES, TENSOR, &written[i]));
        assert_int_equal(written[i]->extent_count, written[i]->share_count);
        for (uint32_t k = 0; k < written[i]->extent_count; k++)
            bytes[written[i]->extents[k].member] += (double)written[i]->extents[k].bytes;
    }
    for (uint32_t i = 0; i < 4; i++)
        if (bytes[i] / speeds[i] > slowest) slowest = bytes[i] / speeds[i];
    assert_true((double)WRITES * BYTES / 8e8 >= share * slowest);
    for (uint32_t i = 0; i < WRITES; i++)
        tiers_pool_release(pool, written[i]);
    for (uint32_t i = 0; i < HELD; i++)
        tiers_pool_release(pool, held[i]);
    memset(held, 0, sizeof held);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
}

/* Five stripe units on four members leave remainders, which fall as slots come back. */
TEST(churn_leaves_the_members_balanced)
{
    check_churn(TIERS_STRIPE_TENSOR, 0.99);
    check_churn(TIERS_STRIPE_ENTRY, 0.99);
    check_churn(TIERS_STRIPE_PROPORTIONAL, 0.85);
}

/* ---- against a model ---- */

enum { MODEL_MEMBERS = 3, MODEL_GRAINS = 4096, MODEL_OBJECTS = 200, MODEL_ROUNDS = 6000 };

typedef struct model {
    tiers_pool *pool;
    uint8_t *held[MODEL_MEMBERS]; /* by grain */
    tiers_location *objects[MODEL_OBJECTS];
    uint64_t random;
} model;

static void model_mark(model *m, const tiers_location *location, uint8_t from, uint8_t to)
{
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const tiers_extent *extent = &location->extents[i];
        for (uint64_t at = 0; at < extent->bytes; at += GRAIN) {
            uint8_t *grain = &m->held[extent->member][(extent->offset + at) / GRAIN];
            assert_int_equal(*grain, from);
            *grain = to;
        }
    }
}

/* Reserves an object of a class, nearly of a class, or of any size. */
static void model_reserve(model *m, const tiers_slot_size *sizes, uint32_t count, uint32_t at)
{
    const uint64_t draw = pool_scratch_random(&m->random);
    uint64_t bytes = sizes[draw % count].bytes;
    if (draw / 8 % 4 == 0) bytes -= draw / 64 % 3 * GRAIN;
    if (draw / 8 % 4 == 1) bytes = (1 + draw / 64 % 300) * GRAIN;
    if (tiers_pool_reserve(m->pool, bytes, &m->objects[at]) != KVT_OK) {
        m->objects[at] = NULL;
        return;
    }
    assert_int_equal(m->objects[at]->bytes, bytes);
    assert_ok(tiers_location_check(m->objects[at]));
    model_mark(m, m->objects[at], 0, 1);
}

static void model_check(model *m)
{
    uint64_t bytes = 0;
    tiers_pool_facts facts;
    for (uint32_t i = 0; i < MODEL_OBJECTS; i++)
        if (m->objects[i] != NULL) bytes += m->objects[i]->bytes;
    tiers_pool_facts_get(m->pool, &facts);
    assert_int_equal(facts.used_bytes, bytes + facts.padding_bytes);
    assert_true(facts.padding_bytes * 20 <= facts.used_bytes);
}

static void model_run(tiers_striping striping, uint64_t seed)
{
    const uint64_t sizes_of[MODEL_MEMBERS] = {MODEL_GRAINS * GRAIN, MODEL_GRAINS / 2 * GRAIN,
                                              MODEL_GRAINS * GRAIN};
    const double speeds[MODEL_MEMBERS] = {1e9, 1e9, 3e9};
    const tiers_slot_size sizes[] = {{.bytes = 3 * GRAIN},
                                     {.bytes = 25 * GRAIN},
                                     {.bytes = 120 * GRAIN},
                                     {.bytes = 121 * GRAIN}};
    const tiers_pool_options options = {
        .unit_bytes = UNIT, .striping = striping, .slots = sizes, .slot_count = 4};
    model m = {.random = seed};
    m.pool = open_pool(sizes_of, speeds, MODEL_MEMBERS, &options, 4 * GRAIN);
    for (uint32_t i = 0; i < MODEL_MEMBERS; i++)
        m.held[i] = test_zeros(MODEL_GRAINS);
    lay(m.pool);
    for (uint32_t round = 0; round < MODEL_ROUNDS; round++) {
        const uint32_t at = (uint32_t)(pool_scratch_random(&m.random) % MODEL_OBJECTS);
        if (m.objects[at] != NULL) {
            model_mark(&m, m.objects[at], 1, 0);
            tiers_pool_release(m.pool, m.objects[at]);
            m.objects[at] = NULL;
        } else {
            model_reserve(&m, sizes, 4, at);
        }
        if (round % 97 == 0) (void)tiers_pool_lay_slots(m.pool, 8);
        if (round % 31 == 0) model_check(&m);
        if (round == MODEL_ROUNDS / 2) tiers_pool_set_striping(m.pool, striping);
    }
    for (uint32_t i = 0; i < 4; i++)
        assert_true(class_at(m.pool, i).taken_ever > 0);
    for (uint32_t i = 0; i < MODEL_OBJECTS; i++) {
        if (m.objects[i] != NULL) model_mark(&m, m.objects[i], 1, 0);
        tiers_pool_release(m.pool, m.objects[i]);
    }
    /* No slot is leaked: all of the space is there for one object after another. */
    uint64_t left = sizes_of[0] + sizes_of[1] + sizes_of[2];
    tiers_location *location;
    assert_int_equal(pool_scratch_used(m.pool), 0);
    while (left > 0) {
        assert_ok(tiers_pool_reserve(m.pool, GRAIN, &location));
        model_mark(&m, location, 0, 2);
        left -= GRAIN;
        tiers_pool_forget(m.pool, location);
    }
    assert_int_equal(tiers_pool_reserve(m.pool, GRAIN, &location), KVT_E_SPACE);
    tiers_pool_close(m.pool);
}

TEST(objects_never_overlap_and_nothing_leaks)
{
    const tiers_striping stripings[] = {TIERS_STRIPE_PROPORTIONAL, TIERS_STRIPE_EQUAL,
                                        TIERS_STRIPE_ROUND_ROBIN, TIERS_STRIPE_TENSOR,
                                        TIERS_STRIPE_ENTRY};
    for (uint32_t i = 0; i < sizeof stripings / sizeof stripings[0]; i++)
        model_run(stripings[i], 0x9e37 + i);
}

/* ---- restarts ---- */

TEST(adopted_slots_are_slots_again_where_the_class_is_the_same)
{
    tiers_slot_size sizes[] = {{.bytes = 9 * UNIT}};
    const tiers_pool_options options = {.unit_bytes = UNIT, .slots = sizes, .slot_count = 1};
    unsigned char flats[3][512];
    size_t bytes[3];
    const uint64_t of[3] = {9 * UNIT, 9 * UNIT - GRAIN, 20 * UNIT};
    tiers_pool *pool = open_pool(two_sizes, two_speeds, 2, &options, 64 << 10);
    tiers_location *location;
    lay(pool);
    for (int i = 0; i < 3; i++) {
        assert_ok(tiers_pool_reserve(pool, of[i], &location));
        bytes[i] = tiers_location_pack(location, flats[i], sizeof flats[i]);
        assert_true(bytes[i] <= sizeof flats[i]);
        tiers_pool_forget(pool, location);
    }
    tiers_pool_close(pool);
    for (int changed = 0; changed < 2; changed++) {
        tiers_location *back[3];
        sizes[0].bytes = changed ? 10 * UNIT : 9 * UNIT;
        pool = open_pool(two_sizes, two_speeds, 2, &options, 64 << 10);
        for (int i = 0; i < 3; i++) {
            unsigned char again[512];
            assert_ok(tiers_location_unpack(flats[i], bytes[i], &back[i]));
            assert_ok(tiers_pool_adopt(pool, back[i]));
            assert_int_equal(tiers_location_pack(back[i], again, sizeof again), bytes[i]);
            assert_memory_equal(again, flats[i], bytes[i]); /* where it was */
        }
        assert_int_equal(class_at(pool, 0).taken, changed ? 0 : 1);
        lay(pool);
        const uint32_t free = class_at(pool, 0).free;
        tiers_pool_release(pool, back[0]);
        assert_int_equal(class_at(pool, 0).free, changed ? free : free + 1);
        tiers_pool_release(pool, back[1]);
        tiers_pool_release(pool, back[2]);
        assert_int_equal(pool_scratch_used(pool), 0);
        tiers_pool_close(pool);
    }
}

/* ---- members ---- */

TEST(slots_of_a_member_that_leaves_are_taken_no_more)
{
    const tiers_slot_size sizes[] = {{.bytes = 9 * UNIT}};
    const tiers_pool_options options = {.unit_bytes = UNIT, .slots = sizes, .slot_count = 1};
    tiers_pool *pool = open_pool(two_sizes, two_speeds, 2, &options, 0);
    tiers_location *held, *location;
    kvt_device *device;
    lay(pool);
    assert_ok(tiers_pool_reserve(pool, 9 * UNIT, &held));
    assert_ok(tiers_pool_drain(pool, 0, true));
    for (int i = 0; i < 20; i++) {
        assert_ok(tiers_pool_reserve(pool, 9 * UNIT, &location));
        assert_int_equal(share_of(location, 0), 0);
        tiers_pool_release(pool, location);
    }
    lay(pool); /* planned anew on the other member */
    assert_true(class_at(pool, 0).free > 0);
    assert_ok(tiers_pool_reserve(pool, 9 * UNIT, &location));
    assert_int_equal(share_of(location, 1), 9);
    assert_int_equal(tiers_pool_eject(pool, 0, &device), KVT_BUSY); /* it is not empty */
    tiers_pool_release(pool, held);
    assert_ok(tiers_pool_eject(pool, 0, &device));
    tiers_member_options again = pool_scratch_member(device, 1e9);
    assert_ok(tiers_pool_insert(pool, 0, &again));
    tiers_pool_release(pool, location);
    lay(pool);
    assert_ok(tiers_pool_reserve(pool, 9 * UNIT, &location));
    tiers_pool_release(pool, location);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
}

/* ---- placement ---- */

TEST(entries_lie_whole_on_members_in_turn_by_weight)
{
    const uint64_t sizes_of[4] = {64 << 20, 64 << 20, 64 << 20, 64 << 20};
    const double speeds[4] = {1e8, 1e8, 2e8, 4e8};
    const tiers_slot_size sizes[] = {{.bytes = 32 * UNIT}};
    for (uint32_t slots = 0; slots < 2; slots++) {
        const tiers_pool_options options = {.unit_bytes = UNIT,
                                            .striping = TIERS_STRIPE_ENTRY,
                                            .slots = sizes,
                                            .slot_count = slots};
        uint32_t counts[4] = {0};
        tiers_location *held[64];
        tiers_pool *pool = open_pool(sizes_of, speeds, 4, &options, 0);
        lay(pool);
        for (int i = 0; i < 64; i++) {
            assert_ok(tiers_pool_reserve(pool, 32 * UNIT, &held[i]));
            assert_int_equal(held[i]->share_count, 1);
            counts[held[i]->shares[0].member]++;
            assert_true(tiers_pool_layout_gain(pool, held[i]) == 1);
        }
        for (int i = 0; i < 4; i++)
            assert_in_range(counts[i], 8 * speeds[i] / 1e8 - 1, 8 * speeds[i] / 1e8 + 1);
        for (int i = 0; i < 64; i++)
            tiers_pool_release(pool, held[i]);
        tiers_pool_close(pool);
    }
}

TEST(tensors_lie_whole_on_members)
{
    enum { HEAD = 3 * GRAIN, TENSOR = 5 * GRAIN, TENSORS = 24 };
    const uint64_t bytes = HEAD + TENSORS * TENSOR;
    const tiers_slot_size sizes[] = {{.bytes = bytes, .unit_bytes = TENSOR, .odd_first = true}};
    for (uint32_t slots = 0; slots < 2; slots++) {
        const tiers_pool_options options = {.unit_bytes = UNIT,
                                            .striping = TIERS_STRIPE_TENSOR,
                                            .slots = sizes,
                                            .slot_count = slots};
        tiers_pool *pool = open_pool(two_sizes, two_speeds, 2, &options, 0);
        tiers_location *location, *copy;
        unsigned char flat[2048];
        char *written = pool_scratch_buffer(bytes), *read = pool_scratch_buffer(bytes);
        lay(pool);
        for (int i = 0; i < 9; i++) { /* at several turns */
            assert_ok(tiers_pool_reserve_tensors(pool, bytes, TENSOR, &location));
            assert_int_equal(share_of(location, 0), 8);
            for (uint32_t share = 0; share < location->share_count; share++) {
                tiers_walk walk;
                tiers_piece piece;
                tiers_walk_init(&walk, location, share, 0, bytes);
                while (tiers_walk_next(&walk, 1 << 20, &piece)) {
                    const uint64_t end = piece.object_offset + piece.bytes;
                    assert_true(piece.object_offset == 0 ||
                                (piece.object_offset - HEAD) % TENSOR == 0);
                    assert_true((end - HEAD) % TENSOR == 0);
                }
            }
            pool_scratch_fill(written, bytes, (uint64_t)i);
            assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, written, bytes));
            const size_t flat_bytes = tiers_location_pack(location, flat, sizeof flat);
            assert_ok(tiers_location_unpack(flat, flat_bytes, &copy));
            assert_true(copy->odd_first);
            assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, copy, read, bytes));
            assert_true(pool_scratch_holds(read, bytes, (uint64_t)i));
            tiers_location_free(copy);
            tiers_pool_forget(pool, location);
        }
        tiers_pool_close(pool);
    }
}
