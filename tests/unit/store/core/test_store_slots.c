/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_slots.c - slots and placements of a store: sizes that are refused, entries in slots,
 * a full tier, restarts with the same classes and with others.
 */
#include "estimator/exchange/exchange.h"
#include "pool_scratch.h"
#include "rows_text.h"
#include "store/core/store.h"
#include "store/learn/slot_sizes.h"
#include "store_site.h"

enum { DISK = 2 << 20, MANY = 200 };

static site *slots_site(const char *slots, kvt_placement placement)
{
    site *s = site_prepare(
        (site_shape){.disks = 2, .disk_bytes = DISK, .unit_bytes = 8192, .plain = true});
    s->options.tiers[KVT_TIER_SSD].slots = slots;
    s->options.tiers[KVT_TIER_SSD].placement = (uint32_t)placement;
    s->options.loss.ladder_layout = support_layout;
    return s;
}

static tiers_slot_stats slots_of(const site *s, uint32_t index)
{
    tiers_slot_stats stats;
    assert_ok(tiers_pool_slot_class(s->store->pools[KVT_TIER_SSD], index, &stats));
    return stats;
}

static uint64_t pool_used(const site *s)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(s->store->pools[KVT_TIER_SSD], &facts);
    return facts.used_bytes;
}

TEST(sizes_are_read_in_order)
{
    tiers_slot_size sizes[TIERS_SLOT_CLASSES_MAX];
    uint32_t count;
    char message[256] = "";
    assert_ok(learn_slot_sizes(NULL, &support_layout, sizes, &count, message, sizeof message));
    assert_int_equal(count, 0);
    assert_ok(learn_slot_sizes(" raw@32, planes:k4v4,g64@32 ,1MiB,raw@32", &support_layout, sizes,
                               &count, message, sizeof message));
    assert_int_equal(count, 3);
    assert_true(sizes[0].bytes < sizes[1].bytes);
    assert_int_equal(sizes[1].bytes, 12288 + SUPPORT_ENTRY_BYTES);
    assert_int_equal(sizes[1].unit_bytes, SUPPORT_ENTRY_BYTES / 4); /* K or V of a layer */
    assert_true(sizes[1].odd_first);
    assert_int_equal(sizes[2].bytes, 1 << 20);
    assert_int_equal(sizes[2].unit_bytes, 0);
}

TEST(sizes_that_no_entry_has_are_refused)
{
    const char *const bad[] = {"raw@0",   "raw@",        "raw@x",      "raw@32x",
                               "none@32", "lossless@32", "entropy@32", "5000",
                               "4096",    "0",           "",           "raw@32,",
                               ",raw@32", "raw",         "12KiB@32",   "raw@99999999999"};
    tiers_slot_size sizes[TIERS_SLOT_CLASSES_MAX];
    uint32_t count;
    char message[256], many[512] = "";
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        message[0] = '\0';
        assert_int_equal(
            learn_slot_sizes(bad[i], &support_layout, sizes, &count, message, sizeof message),
            KVT_E_CONFIG);
        assert_non_null(strstr(message, "slots: "));
    }
    const kvt_layout none = {.layers = 0};
    assert_int_equal(learn_slot_sizes("raw@32", &none, sizes, &count, message, sizeof message),
                     KVT_E_CONFIG);
    assert_non_null(strstr(message, "store.ladder_layout"));
    for (uint32_t i = 0; i <= TIERS_SLOT_CLASSES_MAX; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s%uKiB", i > 0 ? "," : "",
                 4 * (i + 4));
    assert_int_equal(learn_slot_sizes(many, &none, sizes, &count, message, sizeof message),
                     KVT_E_CONFIG);
}

TEST(a_slot_larger_than_the_tier_is_refused)
{
    site *s = slots_site("1GiB", KVT_PLACE_PROPORTIONAL);
    assert_int_equal(site_try_open(s), KVT_E_SPACE);
    assert_non_null(strstr(s->message, "slots of"));
    s->options.tiers[KVT_TIER_SSD].slots = NULL;
    s->options.tiers[KVT_TIER_SSD].placement = 5;
    assert_int_equal(site_try_open(s), KVT_E_ARGUMENT);
}

/* Reserves records of a mix of sizes, deletes some, and goes on until one finds no room. Returns
 * the bytes that lie there. */
static uint64_t fill_tier(const tiers_slot_size *sizes, uint32_t count, bool slots, uint64_t align)
{
    enum { MEMBERS = 4, OBJECTS = 4096 };
    static tiers_location *held[OBJECTS];
    tiers_member_options members[MEMBERS];
    const tiers_pool_options options = {
        .striping = TIERS_STRIPE_TENSOR, .slots = sizes, .slot_count = slots ? count : 0};
    tiers_pool *pool = NULL;
    uint64_t bytes = 0, dice = 1, refused = 0;
    memset(held, 0, sizeof held);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        members[i] = pool_scratch_member(pool_scratch_memory(64 << 20), 1e9);
        members[i].align_bytes = align;
    }
    assert_ok(tiers_pool_open(members, MEMBERS, &options, &pool, NULL, 0));
    for (uint32_t round = 0; refused < 200; round++) {
        const uint64_t draw = pool_scratch_random(&dice);
        const tiers_slot_size *size = &sizes[draw / OBJECTS % count];
        tiers_location **at = &held[draw % OBJECTS];
        if (round % 16 == 0) (void)tiers_pool_lay_slots(pool, 64);
        if (*at != NULL) {
            if (refused > 0 || draw / 65536 % 2 != 0) continue; /* only room that is short counts */
            bytes -= (*at)->bytes;
            tiers_pool_release(pool, *at);
            *at = NULL;
        } else if (tiers_pool_reserve_tensors(pool, size->bytes, size->unit_bytes, at) == KVT_OK) {
            bytes += size->bytes;
        } else {
            *at = NULL;
            refused++;
        }
    }
    for (uint32_t i = 0; i < OBJECTS; i++)
        tiers_pool_release(pool, held[i]);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
    return bytes;
}

/* Slots lose at most a twentieth of a tier at the mix of a ladder's records, at any alignment. */
TEST(slots_cost_little_room)
{
    static const char ladder[] = "raw@256, planes:k8v8,g64@256, planes:k6v6,g64@256, "
                                 "planes:k4v4,g64@256, kivi:k4v4,g64@256, kivi:k2v2,g64@256";
    const kvt_layout layout = {
        .layers = 4, .kv_heads = 4, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 256};
    tiers_slot_size sizes[TIERS_SLOT_CLASSES_MAX];
    uint32_t count;
    char message[256] = "";
    assert_ok(learn_slot_sizes(ladder, &layout, sizes, &count, message, sizeof message));
    assert_in_range(count, 4, 6);
    const uint64_t extents = fill_tier(sizes, count, false, 0);
    for (uint64_t align = 4096; align <= 131072; align *= 2) {
        const uint64_t bytes = fill_tier(sizes, count, true, align);
        assert_true(20 * bytes >= 19 * extents);
    }
}

/* A profile of the site's disk: reads gain a tenth where they begin at multiples of 16 KiB, or
 * nothing. */
static void put_profile(site *s, char path[128], bool gains)
{
    char text[512], message[256] = "";
    kvt_profile *profile = NULL;
    snprintf(path, 128, "%s/profile-%d.db", s->folder, gains);
    snprintf(text, sizeof text,
             "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
             "disk0,ssd,read,1e9,1e-5\ndisk0,ssd,write,1e9,1e-5\n"
             "[device_start]\ndevice,request_bytes,begins_at,depth,bytes_per_s\n"
             "disk0,65536,4096,8,1e9\ndisk0,65536,16384,8,%s\n",
             gains ? "1.1e9" : "1e9");
    json_t *tables = rows_text_tables(text);
    assert_ok(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0));
    assert_ok(exchange_import_tables(profile, tables, "a sheet", message, sizeof message));
    kvt_profile_close(profile);
    json_decref(tables);
}

/* Slots begin where the profile says that reads gain by it; a profile of another machine says so
 * only where it is asked. */
TEST(slots_begin_where_the_profile_says)
{
    const struct {
        bool gains, foreign;
        uint64_t held;
    } cases[] = {{true, true, 1040 << 10}, {false, true, 1028 << 10}, {true, false, 1028 << 10}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[128];
        site *s = site_prepare(
            (site_shape){.disks = 1, .disk_bytes = 8 << 20, .unit_bytes = 2 << 20, .plain = true});
        put_profile(s, path, cases[i].gains);
        s->options.tiers[KVT_TIER_SSD].slots = "1028KiB";
        s->options.learning.profile_path = path;
        s->options.learning.profile_foreign = cases[i].foreign;
        site_open(s);
        assert_int_equal(slots_of(s, 0).held_bytes, cases[i].held);
        assert_int_equal(unlink(path), 0);
    }
}

/* Entries lie in slots, come back after a restart in the same slots, and free them. */
static void check_restart(const char *slots, const char *later, kvt_placement placement)
{
    site *s = slots_site(slots, placement);
    site_open(s);
    site_put(s, 0, 20);
    assert_int_equal(slots_of(s, 0).taken, 20);
    assert_int_equal(slots_of(s, 0).missed, 0);
    assert_int_equal(site_hits(s, 20), 20);
    s->options.tiers[KVT_TIER_SSD].slots = later;
    site_reopen(s);
    assert_int_equal(site_hits(s, 20), 20);
    /* Measured weights may differ from open to open. */
    const bool weighed = placement == KVT_PLACE_PROPORTIONAL || placement == KVT_PLACE_TENSOR;
    if (later != NULL && !weighed)
        assert_int_equal(slots_of(s, 0).taken, strcmp(later, slots) == 0 ? 20 : 0);
    for (uint32_t i = 0; i < 20; i++) {
        const kvt_key key = support_key(i);
        assert_ok(kvt_store_delete(s->store, &key));
    }
    assert_ok(kvt_store_flush(s->store));
    assert_int_equal(pool_used(s), 0);
    if (later != NULL) assert_int_equal(slots_of(s, 0).taken, 0);
    site_put(s, 0, 20);
    assert_int_equal(site_hits(s, 20), 20);
}

TEST(entries_keep_their_slots_over_a_restart)
{
    check_restart("raw@32", "raw@32", KVT_PLACE_PROPORTIONAL);
    check_restart("raw@32", "raw@32", KVT_PLACE_TENSOR);
    check_restart("raw@32", "raw@32", KVT_PLACE_ENTRY);
    check_restart("raw@32", "raw@32", KVT_PLACE_ROUND_ROBIN);
}

TEST(classes_may_change_between_two_opens)
{
    check_restart("raw@32", "raw@16", KVT_PLACE_EQUAL);
    check_restart("raw@32", "40KiB, 48KiB", KVT_PLACE_ENTRY);
    check_restart("raw@32", NULL, KVT_PLACE_TENSOR);
}

/* A tier that is full keeps about as many entries with slots as without, whatever their classes. */
TEST(a_full_tier_loses_little_to_slots)
{
    const char *const slots[] = {NULL, "raw@32", "raw@16, 128KiB", "48KiB, 1MiB"};
    uint32_t stored[4];
    for (uint32_t i = 0; i < 4; i++) {
        site *s = slots_site(slots[i], KVT_PLACE_PROPORTIONAL);
        site_open(s);
        for (uint32_t entry = 0; entry < MANY; entry++) {
            assert_true(support_put(s->store, entry) >= 0);
            if (entry % 16 == 0) assert_ok(kvt_store_maintain(s->store, NULL));
        }
        assert_ok(kvt_store_flush(s->store));
        stored[i] = site_stored(s, MANY);
        site_end(s);
    }
    for (uint32_t i = 1; i < 4; i++)
        assert_true(stored[i] * 20 >= stored[0] * 19);
}
