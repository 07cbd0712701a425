/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_site.h - a store on four drives with faults, a made-up context whose queries follow
 * topics, and attention over all of it in double: what the tests of sparse sequences share.
 */
#ifndef TESTS_SEQUENCE_SITE_H
#define TESTS_SEQUENCE_SITE_H

#include "store_support.h"

#include "base/clock.h"
#include "store/core/store.h"

#include <kvterrace/sparse.h>
#include <math.h>
#include <xxhash.h>

enum {
    SITE_DRIVES = 4,
    SITE_LAYERS = 2,
    SITE_HEADS = 2,
    SITE_GROUP = 2,
    SITE_DIM = 64,
    SITE_TOKENS = 3000,
    SITE_TOPICS = 40,
    SITE_ROW = SITE_HEADS * SITE_DIM,
    SITE_QUERY = SITE_HEADS * SITE_GROUP * SITE_DIM
};

typedef struct sequence_site {
    support_fault drives[SITE_DRIVES];
    kvt_device_config files[SITE_DRIVES];
    kvt_store_options options;
    kvt_store *store;
    uint16_t *k[SITE_LAYERS], *v[SITE_LAYERS]; /* bf16 [tokens][heads][dim] */
    float (*topics)[SITE_DIM];                 /* [layer][head][topic] */
    uint64_t random;
} sequence_site;

static inline float site_uniform(sequence_site *s)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(s->random >> 40) / (float)(1 << 24);
}

/* Roughly normal. */
static inline float site_normal(sequence_site *s)
{
    float sum = -2.0f;
    for (int i = 0; i < 4; i++)
        sum += site_uniform(s);
    return sum * 1.732f;
}

static inline uint16_t site_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static inline float site_float(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline float *site_topic(sequence_site *s, uint32_t layer, uint32_t head, uint32_t topic)
{
    return s->topics[(layer * SITE_HEADS + head) * SITE_TOPICS + topic];
}

/* Tokens come in runs of one topic; their keys lie around the topic's. Every site of a program has
 * the same ones, which it only reads. */
static inline void site_fill(sequence_site *s)
{
    static uint16_t k[SITE_LAYERS][SITE_TOKENS * SITE_ROW], v[SITE_LAYERS][SITE_TOKENS * SITE_ROW];
    static float topics[SITE_LAYERS * SITE_HEADS * SITE_TOPICS][SITE_DIM];
    static uint64_t random_after;
    s->topics = topics;
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        s->k[layer] = k[layer];
        s->v[layer] = v[layer];
    }
    if (random_after != 0) {
        s->random = random_after;
        return;
    }
    for (uint32_t i = 0; i < SITE_LAYERS * SITE_HEADS * SITE_TOPICS; i++)
        for (uint32_t d = 0; d < SITE_DIM; d++)
            topics[i][d] = 1.5f * site_normal(s);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        uint32_t topic = 0;
        for (uint32_t token = 0; token < SITE_TOKENS; token++) {
            if (token % 13 == 0) topic = (uint32_t)(site_uniform(s) * SITE_TOPICS);
            for (uint32_t i = 0; i < SITE_ROW; i++) {
                const float *center = site_topic(s, layer, i / SITE_DIM, topic);
                k[layer][token * SITE_ROW + i] =
                    site_bf16(center[i % SITE_DIM] + 0.5f * site_normal(s));
                v[layer][token * SITE_ROW + i] = site_bf16(site_normal(s));
            }
        }
    }
    random_after = s->random;
}

/* Queries of one layer about a topic. */
static inline void site_query(sequence_site *s, uint32_t layer, uint32_t topic, float *queries)
{
    for (uint32_t i = 0; i < SITE_QUERY; i++) {
        const uint32_t head = i / SITE_DIM / SITE_GROUP;
        queries[i] = 0.6f * site_topic(s, layer, head, topic % SITE_TOPICS)[i % SITE_DIM] +
                     0.3f * site_normal(s);
    }
}

/* Ends with the case; a second call does nothing. */
static inline void site_stop(void *at)
{
    sequence_site *s = at;
    kvt_store_close(s->store);
    s->store = NULL;
}

/* Opens the store. Units are dealt alike, whatever the open has measured. */
static inline kvt_status site_open_store(sequence_site *s)
{
    const kvt_status status = kvt_store_open(&s->options, &s->store, NULL, 0);
    if (status == KVT_OK)
        tiers_pool_set_striping(s->store->pools[KVT_TIER_SSD], TIERS_STRIPE_EQUAL);
    return status;
}

/* Drives of memory with faults, and DRAM. */
static inline sequence_site *site_start(uint64_t drive_bytes, uint64_t dram_bytes)
{
    static const char *const names[SITE_DRIVES] = {"drive0", "drive1", "drive2", "drive3"};
    sequence_site *s = test_zeros(sizeof *s);
    s->random = 20260922;
    s->options = support_options(8 << 20, "lru");
    s->options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    for (int i = 0; i < SITE_DRIVES; i++) {
        s->drives[i] = (support_fault){.capacity_bytes = drive_bytes};
        s->files[i] = support_fault_config(&s->drives[i], names[i]);
    }
    s->options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = s->files, .device_count = SITE_DRIVES, .weights_fixed = true};
    assert_ok(site_open_store(s));
    site_fill(s);
    return test_after(site_stop, s);
}

static inline kvt_layout site_layout(void)
{
    return (kvt_layout){.layers = SITE_LAYERS,
                        .kv_heads = SITE_HEADS,
                        .head_dim = SITE_DIM,
                        .dtype = KVT_DTYPE_BF16,
                        .tokens = SITE_TOKENS};
}

static inline kvt_sparse_options site_options(void)
{
    kvt_sparse_options options;
    const kvt_layout layout = site_layout();
    kvt_sparse_options_init(&options, &layout);
    options.query_heads = SITE_HEADS * SITE_GROUP;
    options.segment_tokens = 512;
    options.budget_bytes = 128 << 10;
    options.window_bytes[KVT_TIER_DRAM] = 512 << 10;
    return options;
}

/* A sequence of the whole context. */
static inline kvt_sparse *site_sequence(sequence_site *s, const kvt_sparse_options *options)
{
    char message[256];
    kvt_sparse *sequence = NULL;
    kvt_status status = kvt_sparse_open_live(s->store, options, &sequence, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %d, %s", status, message);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++)
        assert_ok(kvt_sparse_give(sequence, layer, s->k[layer], s->v[layer]));
    return sequence;
}

/* Keeps a sequence of the whole context under a key, and ends it. */
static inline void site_keep(sequence_site *s, const kvt_sparse_options *options,
                             const kvt_key *key)
{
    kvt_sparse *sequence = site_sequence(s, options);
    assert_ok(kvt_sparse_keep(sequence, key));
    kvt_sparse_close(sequence);
}

static inline kvt_sparse *site_open_kept(sequence_site *s, const kvt_sparse_options *options,
                                         const kvt_key *key)
{
    char message[256] = "";
    kvt_sparse *sequence = NULL;
    const kvt_status status =
        kvt_sparse_open_kept(s->store, options, key, &sequence, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %d, %s", status, message);
    return sequence;
}

/* The key of a part, as sequence_keep.c makes it of what the head says. */
static inline kvt_key site_part_key(kvt_store *store, const kvt_key *key, uint32_t number)
{
    uint8_t head[128], name[40];
    kvt_key part;
    assert_ok(kvt_store_get(store, key, KVT_PACKED(head, sizeof head), KVT_STORE_DEADLINE, NULL));
    memcpy(name, key, sizeof *key);
    memcpy(name + sizeof *key, head + 104, 8);
    for (uint64_t i = 0; i < 2; i++) {
        const XXH128_hash_t hash =
            XXH3_128bits_withSeed(name, sizeof name, (uint64_t)number * 2 + i + 1);
        memcpy(part.bytes + 16 * i, &hash, sizeof hash);
    }
    return part;
}

static inline void site_check_unheld(sequence_site *s)
{
    const kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.in_place.entries, 0);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        assert_int_equal(stats.in_place.bytes[tier] + stats.lent_bytes[tier], 0);
}

static inline kvt_sparse_stats site_stats(const kvt_sparse *sequence)
{
    kvt_sparse_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_sparse_stats_get(sequence, &stats));
    return stats;
}

/* Warms all layers up with queries of 16 topics. */
static inline void site_warm(sequence_site *s, kvt_sparse *sequence)
{
    float rows[16 * SITE_QUERY];
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < 16; i++)
            site_query(s, layer, i, rows + i * SITE_QUERY);
        assert_ok(kvt_sparse_observe(sequence, layer, rows, 16));
    }
}

/* Attention over the first `tokens` tokens of a layer. */
static inline void site_exact(const sequence_site *s, uint32_t layer, uint32_t tokens,
                              const float *queries, double *output)
{
    static _Thread_local double weights[SITE_TOKENS];
    for (uint32_t q = 0; q < SITE_HEADS * SITE_GROUP; q++) {
        const uint32_t head = q / SITE_GROUP;
        double most = -INFINITY, sum = 0;
        double *out = output + (size_t)q * SITE_DIM;
        for (uint32_t token = 0; token < tokens; token++) {
            const uint16_t *row = s->k[layer] + token * SITE_ROW + head * SITE_DIM;
            double score = 0;
            for (uint32_t d = 0; d < SITE_DIM; d++)
                score += (double)queries[q * SITE_DIM + d] * (double)site_float(row[d]);
            weights[token] = score / sqrt(SITE_DIM);
            if (weights[token] > most) most = weights[token];
        }
        memset(out, 0, SITE_DIM * sizeof *out);
        for (uint32_t token = 0; token < tokens; token++) {
            const uint16_t *row = s->v[layer] + token * SITE_ROW + head * SITE_DIM;
            const double weight = exp(weights[token] - most);
            sum += weight;
            for (uint32_t d = 0; d < SITE_DIM; d++)
                out[d] += weight * (double)site_float(row[d]);
        }
        for (uint32_t d = 0; d < SITE_DIM; d++)
            out[d] /= sum;
    }
}

/* sqrt(sum |o - o'|^2 / sum |o|^2) of one layer's step. */
static inline double site_error(const float *output, const double *exact)
{
    double difference = 0, norm = 0;
    for (uint32_t i = 0; i < SITE_QUERY; i++) {
        difference += pow((double)output[i] - exact[i], 2);
        norm += pow(exact[i], 2);
    }
    return sqrt(difference / norm);
}

/* One whole step of a layer; its error against exact attention, and what it read. */
static inline double site_step(sequence_site *s, kvt_sparse *sequence, uint32_t layer,
                               const float *queries, uint64_t *read_bytes, uint32_t *lost)
{
    float output[SITE_QUERY];
    double exact[SITE_QUERY];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    assert_ok(kvt_sparse_select(sequence, layer, queries, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
    if (read_bytes != NULL) *read_bytes = pages->read_bytes;
    if (lost != NULL) *lost = pages->lost_count;
    kvt_sparse_done(sequence, step);
    site_exact(s, layer, SITE_TOKENS, queries, exact);
    return site_error(output, exact);
}

#endif
