/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_sizes.c - records that come out larger than planned cost no entry, their sizes are
 * learned, and what the policy evicts from DRAM stays on SSD where there is free room.
 */
#include "store_site.h"

#include "codecs/codecs.h"
#include "estimator/predict/predict.h"
#include "store/core/store_offer.h"

#define MANY 24u

static const kvt_variant raw = {.codec = KVT_CODEC_RAW};
static const kvt_variant lossless = {.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};

static uint64_t planned_bytes; /* of the last put */

static void observe(void *context, const kvt_move *move, kvt_status outcome)
{
    (void)context, (void)outcome;
    if (move->kind == KVT_MOVE_PUT) planned_bytes = store_bytes_of(move->to_bytes);
}

static site *site_make(uint64_t disk_bytes, uint64_t dram_bytes)
{
    site *s = site_prepare((site_shape){.disks = disk_bytes != 0,
                                        .disk_bytes = disk_bytes,
                                        .unit_bytes = 4096,
                                        .dram_bytes = dram_bytes});
    s->options.durability.persist_bytes_per_s = 0;
    s->options.observer.call = observe;
    return s;
}

/* Large enough that what a record holds beside the elements is little. */
static const kvt_layout large_layout = {
    .layers = 4, .kv_heads = 8, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64};
static char data[512 * 1024];

static kvt_status put_large(site *s, uint32_t number)
{
    kvt_entry entry = support_entry(support_key(number), large_layout, 1);
    return kvt_store_put(s->store, &entry, KVT_PACKED(data, sizeof data));
}

/* Bytes that no codec makes smaller. */
static kvt_status put_noise(site *s, uint32_t number)
{
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15) * (number + 1);
    for (size_t i = 0; i < sizeof data; i += sizeof state) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(data + i, &state, sizeof state);
    }
    return put_large(s, number);
}

static kvt_status put_sample(site *s, uint32_t number)
{
    codecs_kv_sample_fill(&large_layout, number, data);
    return put_large(s, number);
}

/* The bytes that a lossless record of noise is planned with and comes out with. */
static void measure(uint64_t *planned_out, uint64_t *real_out)
{
    site *s = site_make(0, 8 << 20);
    s->options.variant = lossless;
    site_open(s);
    assert_ok(put_noise(s, 0));
    *planned_out = planned_bytes;
    *real_out = support_stats(s->store).tiers[KVT_TIER_DRAM].used_bytes;
    assert_true(*planned_out < *real_out);
}

/* DRAM has room for some records and one that is as small as planned. */
TEST(a_size_is_learned)
{
    uint64_t planned, real;
    measure(&planned, &real);
    site *s = site_make(0, 8 * real + planned);
    s->options.variant = lossless;
    site_open(s);
    for (uint32_t i = 0; i < 8 + 4; i++)
        assert_ok(put_noise(s, i));
    uint64_t aborted = support_stats(s->store).moves.aborted;
    for (uint32_t i = 12; i < 12 + MANY; i++)
        assert_ok(put_noise(s, i));
    assert_int_equal(support_stats(s->store).moves.aborted, aborted);
    assert_true(planned_bytes >= real);
    /* Records that are smaller again are planned so. */
    for (uint32_t i = 0; i < 100; i++)
        assert_ok(put_sample(s, 1000 + i));
    assert_true(planned_bytes < real);
}

/* Where only raw records are made, the measured ratio stands again after a while. */
TEST(a_size_is_forgotten)
{
    site *s = site_make(0, 8 << 20);
    s->options.policy = "utility";
    site_open(s);
    const entry_kind kind = {.layout = support_layout, .source_bytes = SUPPORT_ENTRY_BYTES};
    store_entry entry = {.kind = &kind};
    double shares[KVT_VARIANTS_MAX];
    uint32_t at = 0;
    while (s->store->costs.variants[at].variant.codec != KVT_CODEC_LOSSLESS)
        assert_true(++at < s->store->costs.variant_count);
    kvt_variant form = s->store->costs.variants[at].variant;
    uint64_t head, raw_bytes;
    assert_ok(codecs_raw_record_bytes(&kind.layout, &head, &raw_bytes));
    uint64_t large = SUPPORT_ENTRY_BYTES + head;
    learn_size_shares(s->store, &entry, shares);
    assert_true(shares[at] != shares[at]);
    learn_note_size(s->store, &entry, form, large);
    learn_size_shares(s->store, &entry, shares);
    assert_true(shares[at] == 1.0);
    for (int i = 0; i < 64; i++) {
        learn_size_shares(s->store, &entry, shares);
        assert_true(shares[at] == 1.0);
        learn_note_size(s->store, &entry, raw, large);
    }
    learn_size_shares(s->store, &entry, shares);
    assert_true(shares[at] != shares[at]);
    /* Entries of another class are another kind; of two sizes in turn the larger one is planned. */
    entry.class_id = 1;
    for (int i = 0; i < 64; i++)
        learn_note_size(s->store, &entry, form, i % 2 == 0 ? large : large / 2);
    learn_size_shares(s->store, &entry, shares);
    assert_true(shares[at] == 1.0);
}

/*
 * Raw entries on SSD, and room for one lossless record as it is planned: what makes room for a put
 * is to code an entry anew, which comes out too large.
 */
TEST(a_larger_record_costs_no_entry)
{
    uint64_t planned, real;
    measure(&planned, &real);
    site *s = site_make(32 << 20, 0);
    s->options.variant = raw;
    site_open(s);
    for (uint32_t i = 0; i < MANY; i++)
        assert_ok(put_noise(s, i));
    site_close(s);
    s->options.policy = "utility";
    site_open(s);
    assert_int_equal(site_stored(s, MANY), MANY);
    kvt_policy_stats policy;
    kvt_policy_stats_get(s->store->policy, &policy);
    assert_ok(kvt_policy_capacity_set(s->store->policy, KVT_TIER_SSD,
                                      policy.used_bytes[KVT_TIER_SSD] + planned));
    kvt_status status = put_noise(s, MANY);
    assert_true(status == KVT_OK || status == KVT_REFUSED);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.given_up, 0);
    assert_true(stats.moves.failed_larger > 0);
    assert_true(stats.moves.failed_larger <= MANY + 1);
    assert_int_equal(stats.moves.failed_space, 0);
    assert_int_equal(stats.backing_off, 0);
    uint64_t stored = site_stored(s, MANY + 1);
    assert_int_equal(stored + stats.evictions, MANY + (status == KVT_OK));
    /* Once more: no entry is coded for nothing a second time. */
    for (uint32_t i = MANY + 1; i < 2 * MANY; i++)
        (void)put_noise(s, i);
    stats = support_stats(s->store);
    assert_int_equal(stats.given_up, 0);
    assert_true(stats.moves.failed_larger <= MANY + 1);
}

/* The policy sees a stored entry at these seconds from recomputing, SSD and DRAM. */
static void see(site *s, uint32_t number, double none, double ssd, double dram)
{
    kvt_key key = support_key(number);
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_policy_entry offer = {.struct_size = sizeof offer};
    pthread_mutex_lock(&s->store->lock);
    store_entry *entry = entry_find_key(&s->store->table, &key);
    assert_non_null(entry);
    assert_ok(store_offer(s->store, entry, options, &offer));
    options[KVT_OPTION_NONE].load_seconds = none;
    for (uint32_t i = 1; i < offer.option_count; i++) {
        options[i].load_seconds = options[i].bytes[KVT_TIER_SSD] != 0 ? ssd : dram;
        options[i].decode_seconds = options[i].encode_seconds = 0;
    }
    assert_ok(kvt_policy_recost(s->store->policy, entry->handle, options, offer.option_count));
    pthread_mutex_unlock(&s->store->lock);
}

TEST(an_eviction_from_above_leaves_the_record_on_ssd)
{
    enum { ENTRIES = 8 };
    site *s = site_make(8 << 20, 0);
    site_open(s);
    support_puts(s->store, 0, ENTRIES);
    site_close(s);
    kvt_store_options disk_only = s->options;
    site_add_dram(s, 1 << 20);
    s->options.policy = "utility";
    site_open(s);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        see(s, i, 1000, 500, 0);
        assert_ok(support_get(s->store, i, NULL));
        assert_ok(kvt_store_maintain(s->store, NULL));
    }
    assert_int_equal(support_stats(s->store).copies.count, ENTRIES);
    /* Loading them is worth nothing now, and DRAM gets smaller and smaller. */
    for (int round = 0; round < 2 * ENTRIES; round++) {
        for (uint32_t i = 0; i < ENTRIES; i++)
            see(s, i, 0, 500, 500);
        assert_ok(kvt_policy_capacity_set(s->store->policy, KVT_TIER_DRAM, 4096));
        assert_ok(kvt_store_maintain(s->store, NULL));
    }
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.copies.evictions, ENTRIES);
    assert_int_equal(stats.evictions, 0);
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].entries, 0);
    assert_int_equal(stats.tiers[KVT_TIER_SSD].entries, ENTRIES);
    assert_int_equal(stats.copies.count, 0);
    support_gets(s->store, 0, ENTRIES);
    site_close(s);
    s->options = disk_only;
    site_open(s);
    assert_int_equal(site_stored(s, ENTRIES), ENTRIES);
}
