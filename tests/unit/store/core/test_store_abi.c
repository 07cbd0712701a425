/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_abi.c - structs of callers that were built with another 0.2: older and smaller, newer
 * and larger, and sizes that are none (types.h has the rule).
 */
#include "base/struct_size.h"
#include "tests/support/store_support.h"

#include <kvterrace/basis.h>
#include <kvterrace/coding.h>
#include <kvterrace/gpu.h>
#include <kvterrace/key.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/recover.h>
#include <kvterrace/remote.h>
#include <kvterrace/rope.h>

/* struct_size comes first, and no member can be added inside: the last one of 0.2.0 ends where the
 * struct does, so that a later one is beyond the size of an older caller. */
#define BEGINS(type, last)                                                                         \
    _Static_assert(offsetof(type, struct_size) == 0 && sizeof((type *)NULL)->struct_size == 4,     \
                   #type " begins with struct_size");                                              \
    _Static_assert(STRUCT_SIZE_THROUGH(type, last) == sizeof(type), #type " ends with " #last)

BEGINS(kvt_store_options, scrub);
BEGINS(kvt_device_config, key_command);
BEGINS(kvt_recover_options, context);
BEGINS(kvt_codec_workers, context);
BEGINS(kvt_policy_config, entries_reserved);
BEGINS(kvt_policy_entry, copy_seconds);
BEGINS(kvt_entry, groups);
BEGINS(kvt_tenant, share_bytes);
BEGINS(kvt_recover_report, too_large);
BEGINS(kvt_store_stats, hints_skipped);
BEGINS(kvt_basis_info, model);
BEGINS(kvt_get_info, kept);
BEGINS(kvt_kept_tokens, reserved);
BEGINS(kvt_rope, frequencies);
BEGINS(kvt_persist_info, left_bytes);
BEGINS(kvt_class_stats, reuse);
BEGINS(kvt_explanation, reuse_share);
BEGINS(kvt_device_stats, tag_faults);
BEGINS(kvt_health_item, text);
BEGINS(kvt_policy_worth, per_byte);
BEGINS(kvt_space, extra);
BEGINS(kvt_clear_filter, space);
BEGINS(kvt_description, groups);
BEGINS(kvt_space_stats, copy_bytes);
BEGINS(kvt_list_item, flags);
BEGINS(kvt_view, base_count);
BEGINS(kvt_match, load_seconds);
BEGINS(kvt_queue_options, reserved);
BEGINS(kvt_coding, reserved);
BEGINS(kvt_coding_sizes, scratch_bytes);
BEGINS(kvt_coding_info, reserved);
BEGINS(kvt_coding_basis_info, model);
BEGINS(kvt_decoding, reserved2);
BEGINS(kvt_remote_options, write_bytes_per_s);
BEGINS(kvt_remote_stats, repeated_clears);
BEGINS(kvt_remote_node, eviction);
BEGINS(kvt_gpu_stats, gets_share);

/* A struct that has grown since its first version, as the library will see those of today. */
typedef struct grown {
    uint32_t struct_size;
    uint32_t first;
    uint64_t later;
} grown;
#define LEAST STRUCT_SIZE_THROUGH(grown, first)

typedef struct newest {
    grown known;
    uint64_t unknown;
} newest;

TEST(a_struct_is_taken_in)
{
    grown same = {.struct_size = sizeof same, .first = 1, .later = 2};
    grown whole = {.later = 9};
    assert_ptr_equal(struct_size_in(&same, &whole, sizeof whole, LEAST), &same);

    newest older = {.known = {.struct_size = LEAST, .first = 3, .later = 4}};
    assert_ptr_equal(struct_size_in(&older, &whole, sizeof whole, LEAST), &whole);
    assert_int_equal(whole.struct_size, sizeof whole);
    assert_int_equal(whole.first, 3);
    assert_int_equal(whole.later, 9); /* the default */

    newest larger = {.known = {.struct_size = sizeof larger, .first = 5, .later = 6}};
    assert_ptr_equal(struct_size_in(&larger, &whole, sizeof whole, LEAST), &whole);
    assert_int_equal(whole.later, 6);
    larger.unknown = UINT64_C(1) << 63;
    assert_null(struct_size_in(&larger, &whole, sizeof whole, LEAST));

    const uint32_t unsound[] = {0, LEAST - 1, STRUCT_SIZE_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof unsound / sizeof unsound[0]; i++) {
        older.known.struct_size = unsound[i];
        assert_null(struct_size_in(&older, &whole, sizeof whole, LEAST));
    }
}

TEST(a_struct_is_given_out)
{
    const grown whole = {.struct_size = sizeof whole, .first = 1, .later = 2};
    grown older = {.struct_size = LEAST, .later = 77};
    assert_true(struct_size_is_sound(&older, LEAST));
    struct_size_out(&older, &whole, sizeof whole);
    assert_int_equal(older.struct_size, LEAST);
    assert_int_equal(older.first, 1);
    assert_int_equal(older.later, 77); /* beyond its size */

    newest larger = {.known.struct_size = sizeof larger, .unknown = 88};
    struct_size_out(&larger, &whole, sizeof whole);
    assert_int_equal(larger.known.struct_size, sizeof larger);
    assert_int_equal(larger.known.later, 2);
    assert_int_equal(larger.unknown, 0);
    larger.known.struct_size = 0;
    assert_false(struct_size_is_sound(&larger, LEAST));
}

/* ---- the public calls ---- */

static int set_up(void **state)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 16 << 20;
    options.limits.tick_seconds = 0;
    char message[256];
    kvt_store *store;
    if (kvt_store_open(&options, &store, message, sizeof message) != KVT_OK) return 1;
    *state = store;
    return support_put(store, 1) == KVT_OK ? 0 : 1;
}

static int tear_down(void **state)
{
    kvt_store_close(*state);
    return 0;
}

/* A kvt_entry is read, with its tail. */
TEST_WITH(set_up, tear_down, puts_take_entries_of_other_sizes)
{
    kvt_store *store = *state;
    static char data[SUPPORT_ENTRY_BYTES];
    support_fill(2, data);
    struct {
        kvt_entry known;
        uint64_t unknown;
    } larger = {.known = {.struct_size = sizeof larger,
                          .key = support_key(2),
                          .layout = support_layout,
                          .recompute_seconds = 1}};
    kvt_entry *entry = &larger.known;
    larger.unknown = 1;
    assert_int_equal(kvt_store_put(store, entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    larger.unknown = 0;
    assert_ok(kvt_store_put(store, entry, KVT_PACKED(data, sizeof data)));
    assert_ok(support_get(store, 2, NULL));
    entry->struct_size = sizeof *entry - 1;
    assert_int_equal(kvt_store_put(store, entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    entry->struct_size = 0;
    assert_int_equal(kvt_store_put(store, entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    entry->struct_size = sizeof *entry;
    assert_int_equal(kvt_store_put(store, entry, KVT_PACKED(data, sizeof data)), KVT_EXISTS);
    /* Scores of an entry that may not lose tokens. */
    const float scores[32] = {1};
    entry->token_scores = scores;
    entry->token_score_count = 32;
    assert_int_equal(kvt_store_put(store, entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_put(store, NULL, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
}

/* A kvt_get_info is filled, its tail is zeroed, and what the caller set stays. */
TEST_WITH(set_up, tear_down, gets_fill_infos_of_other_sizes)
{
    kvt_store *store = *state;
    uint32_t position = 55;
    kvt_kept_tokens kept = {.struct_size = sizeof kept, .positions = &position, .capacity = 1};
    struct {
        kvt_get_info known;
        uint64_t unknown;
    } larger = {.known = {.struct_size = sizeof larger, .kept = &kept}, .unknown = 7};
    assert_ok(support_get(store, 1, &larger.known));
    assert_int_equal(larger.unknown, 0);
    assert_int_equal(larger.known.struct_size, sizeof larger);
    assert_int_equal(larger.known.tier, KVT_TIER_DRAM);
    assert_ptr_equal(larger.known.kept, &kept);
    assert_int_equal(kept.count, support_layout.tokens);
    assert_ptr_equal(kept.positions, &position);
    assert_int_equal(kept.capacity, 1);
    assert_int_equal(position, 55);
    kept.struct_size = sizeof kept - 1;
    assert_int_equal(support_get(store, 1, &larger.known), KVT_E_ARGUMENT);
    kept.struct_size = sizeof kept;
    larger.known.struct_size = 0;
    assert_int_equal(support_get(store, 1, &larger.known), KVT_E_ARGUMENT);
    larger.known.struct_size = sizeof larger.known - 1;
    assert_int_equal(support_get(store, 1, &larger.known), KVT_E_ARGUMENT);
}

/* Every other struct that is filled is refused without a size, and filled with its own. */
TEST_WITH(set_up, tear_down, statistics_want_a_size)
{
    kvt_store *store = *state;
    kvt_key key = support_key(1);
    kvt_store_stats stats = {.struct_size = 0};
    static kvt_explanation why;
    kvt_device_stats device = {.struct_size = 0};
    kvt_class_stats of_class = {.struct_size = 0};
    kvt_persist_info persisted = {.struct_size = 0};
    kvt_tenant tenant = {.alpha_seconds = 1, .loss_limit = 1};
    kvt_health_item items[2] = {{.struct_size = 0}};
    size_t count;
    assert_int_equal(kvt_store_stats_get(store, &stats), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_explain(store, &key, &why), KVT_E_ARGUMENT);
    assert_int_equal(kvt_device_stats_get(store, 0, &device), KVT_E_ARGUMENT);
    assert_int_equal(kvt_class_stats_get(store, 0, &of_class), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_persist(store, KVT_NO_DEADLINE, &persisted), KVT_E_ARGUMENT);
    assert_int_equal(kvt_tenant_set(store, 1, &tenant), KVT_E_ARGUMENT);
    assert_int_equal(kvt_health_get(store, items, 2, &count, NULL), KVT_E_ARGUMENT);
    stats.struct_size = sizeof stats;
    why.struct_size = sizeof why;
    device.struct_size = sizeof device;
    of_class.struct_size = sizeof of_class;
    persisted.struct_size = sizeof persisted;
    tenant.struct_size = sizeof tenant;
    items[0].struct_size = sizeof items[0];
    assert_ok(kvt_store_stats_get(store, &stats));
    assert_int_equal(stats.puts, 1);
    assert_ok(kvt_store_explain(store, &key, &why));
    assert_ok(kvt_device_stats_get(store, 0, &device));
    assert_ok(kvt_class_stats_get(store, 0, &of_class));
    assert_int_equal(kvt_store_persist(store, KVT_NO_DEADLINE, &persisted), KVT_E_UNSUPPORTED);
    assert_ok(kvt_tenant_set(store, 1, &tenant));
    tenant.share_bytes[KVT_TIER_REMOTE] = 1;
    assert_int_equal(kvt_tenant_set(store, 1, &tenant), KVT_E_UNSUPPORTED);
    assert_ok(kvt_health_get(store, items, 2, &count, NULL));
}

/* A caller with a smaller struct is not written past its end. */
TEST(options_of_other_sizes_are_filled)
{
    kvt_remote_options remote = {.queue = 7, .write_bytes_per_s = 7};
    kvt_remote_options_init_sized(&remote, offsetof(kvt_remote_options, queue));
    assert_true(remote.chunk_bytes > 0 && remote.queue == 7 && remote.write_bytes_per_s == 7);
    assert_int_equal(remote.struct_size, offsetof(kvt_remote_options, queue));
    kvt_remote_options_init(&remote);
    assert_true(remote.queue == 4096 && remote.struct_size == sizeof remote);
}

/* Devices lie at the distance that the first one's struct_size says. */
TEST(devices_of_other_sizes_are_opened)
{
    struct larger {
        kvt_device_config known;
        uint64_t unknown;
    } devices[2] = {{.known = {.name = "m0"}}, {.known = {.name = "m1"}}};
    for (int i = 0; i < 2; i++) {
        devices[i].known.struct_size = sizeof devices[i];
        devices[i].known.backend = "memory";
        devices[i].known.capacity_bytes = 8 << 20;
    }
    struct {
        kvt_store_options known;
        uint64_t unknown;
    } options = {.unknown = 0};
    kvt_store_options_init_sized(&options.known, sizeof options);
    assert_int_equal(options.known.struct_size, sizeof options);
    options.known.tiers[KVT_TIER_DRAM].devices = &devices[0].known;
    options.known.tiers[KVT_TIER_DRAM].device_count = 2;
    char message[256];
    kvt_store *store = support_open(&options.known);
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_device_stats_get(store, 1, &stats));
    assert_string_equal(stats.name, "m1");
    kvt_store_close(store);

    devices[1].unknown = 1;
    assert_int_equal(kvt_store_open(&options.known, &store, message, sizeof message),
                     KVT_E_ARGUMENT);
    devices[1].unknown = 0;
    devices[1].known.struct_size = sizeof devices[1].known;
    assert_int_equal(kvt_store_open(&options.known, &store, message, sizeof message),
                     KVT_E_ARGUMENT);
    options.known.tiers[KVT_TIER_DRAM].device_count = 1;
    options.unknown = 1;
    assert_int_equal(kvt_store_open(&options.known, &store, message, sizeof message),
                     KVT_E_ARGUMENT);
    options.unknown = 0;
    options.known.tiers[KVT_TIER_REMOTE].capacity_bytes = 1 << 20;
    assert_int_equal(kvt_store_open(&options.known, &store, message, sizeof message),
                     KVT_E_UNSUPPORTED);
}
