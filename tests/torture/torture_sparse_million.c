/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_sparse_million.c - one layer of 8 KV heads of 128 from open to close: rows are given,
 * clustered, coded and written; steps find what queries are about, within their budget, near exact
 * attention; the sequence is kept, opened again and gives the same outputs.
 *
 *     torture_sparse_million [--tokens N]     65,536 without it; 1,048,576 take 8 GiB and minutes
 */
#include "store_support.h"

#include "base/clock.h"
#include "base/half.h"
#include "base/number/number.h"

#include <kvterrace/sparse.h>
#include <math.h>

enum {
    HEADS = 8,
    GROUP = 4,
    DIM = 128,
    ROW = HEADS * DIM,
    QUERY = HEADS * GROUP * DIM,
    TOPICS = 512, /* that tokens come back to in runs of 24 */
    DRIVES = 4,
    STEPS = 32,
    JUDGED = 3
};

#define BUDGET ((uint64_t)4 << 20)
#define WINDOW ((uint64_t)32 << 20)

static uint32_t tokens = 65536;

typedef struct layer_site {
    support_fault drives[DRIVES];
    kvt_device_config files[DRIVES];
    kvt_store *store;
    uint16_t *k, *v;       /* fp16 [tokens][HEADS][DIM] */
    float (*centers)[DIM]; /* [HEADS][TOPICS] */
    float *queries;        /* [STEPS][QUERY] */
} layer_site;

/* Roughly normal, by its number. */
static float normal_of(uint64_t number)
{
    const uint64_t dice = number_mix(number);
    float sum = -2.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(dice >> (16 * i) & 0xffff) / 65536.0f;
    return sum * 1.732f;
}

static uint32_t topic_of(uint64_t run)
{
    return (uint32_t)(number_mix(run + 77) % TOPICS);
}

static void fill(layer_site *s)
{
    s->k = malloc((size_t)tokens * ROW * sizeof *s->k);
    s->v = malloc((size_t)tokens * ROW * sizeof *s->v);
    s->centers = malloc(sizeof(float[HEADS * TOPICS][DIM]));
    s->queries = malloc(sizeof(float[STEPS][QUERY]));
    assert_true(s->k != NULL && s->v != NULL && s->centers != NULL && s->queries != NULL);
    for (uint64_t i = 0; i < HEADS * TOPICS; i++)
        for (uint32_t d = 0; d < DIM; d++)
            s->centers[i][d] = 1.5f * normal_of(i << 8 | d);
    for (uint64_t t = 0; t < tokens; t++) {
        const uint32_t topic = topic_of(t / 24);
        for (uint64_t i = 0; i < ROW; i++) {
            const float *center = s->centers[i / DIM * TOPICS + topic];
            const uint64_t own = 1ull << 40 | t << 10 | i;
            s->k[t * ROW + i] = half_from_float(center[i % DIM] + 0.5f * normal_of(own));
            s->v[t * ROW + i] = half_from_float(center[i % DIM] + normal_of(own << 1));
        }
    }
    for (uint64_t step = 0; step < STEPS; step++) /* a topic goes on for eight steps */
        for (uint64_t i = 0; i < QUERY; i++) {
            const float *center =
                s->centers[i / DIM / GROUP * TOPICS + topic_of(tokens / 48 + step / 8)];
            s->queries[step * QUERY + i] =
                0.6f * center[i % DIM] + 0.3f * normal_of(1ull << 50 | step << 16 | i);
        }
}

static void site_open(layer_site *s)
{
    static const char *const names[DRIVES] = {"drive0", "drive1", "drive2", "drive3"};
    const uint64_t bytes = (uint64_t)tokens * ROW * 2;
    kvt_store_options options = support_options(16 << 20, "lru");
    options.tiers[KVT_TIER_DRAM].capacity_bytes = (uint64_t)64 << 20;
    for (int i = 0; i < DRIVES; i++) { /* of the pages, and of what is kept */
        s->drives[i] = (support_fault){.capacity_bytes = bytes * 3 / DRIVES + (32 << 20)};
        s->files[i] = support_fault_config(&s->drives[i], names[i]);
    }
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = s->files, .device_count = DRIVES};
    assert_ok(kvt_store_open(&options, &s->store, NULL, 0));
    fill(s);
}

static void site_close(layer_site *s)
{
    assert_int_equal(support_stats(s->store).lent_bytes[KVT_TIER_SSD], 0);
    kvt_store_close(s->store);
    free(s->k);
    free(s->v);
    free(s->centers);
    free(s->queries);
}

static kvt_sparse_options sequence_options(void)
{
    const kvt_layout layout = {
        .layers = 1, .kv_heads = HEADS, .head_dim = DIM, .dtype = KVT_DTYPE_FP16, .tokens = tokens};
    kvt_sparse_options options;
    kvt_sparse_options_init(&options, &layout);
    options.query_heads = HEADS * GROUP;
    options.budget_bytes = BUDGET;
    options.window_bytes[KVT_TIER_DRAM] = WINDOW;
    options.variants = 1u << KVT_SPARSE_BITS_4 | 1u << KVT_SPARSE_BITS_8;
    return options;
}

/* Attention of one step over all tokens, a head of queries at a time. */
static void exact_attention(const layer_site *s, const float *queries, double *output)
{
    double *weights = test_alloc(tokens * sizeof *weights);
    for (uint32_t q = 0; q < HEADS * GROUP; q++) {
        const size_t head = (size_t)q / GROUP * DIM;
        double most = -INFINITY, sum = 0, *out = output + (size_t)q * DIM;
        for (uint32_t t = 0; t < tokens; t++) {
            const uint16_t *row = s->k + (size_t)t * ROW + head;
            float score = 0;
            for (uint32_t d = 0; d < DIM; d++)
                score += queries[q * DIM + d] * half_to_float(row[d]);
            weights[t] = (double)score / sqrt(DIM);
            most = fmax(most, weights[t]);
        }
        memset(out, 0, DIM * sizeof *out);
        for (uint32_t t = 0; t < tokens; t++) {
            const double weight = exp(weights[t] - most);
            const uint16_t *row = s->v + (size_t)t * ROW + head;
            sum += weight;
            for (uint32_t d = 0; weight > 1e-12 && d < DIM; d++)
                out[d] += weight * (double)half_to_float(row[d]);
        }
        for (uint32_t d = 0; d < DIM; d++)
            out[d] /= sum;
    }
}

static void run_steps(layer_site *s, kvt_sparse *sequence, float *outputs, double *select_seconds)
{
    uint64_t slowest = 0;
    *select_seconds = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        const uint64_t begin_ns = base_clock_ns();
        assert_ok(kvt_sparse_select(sequence, 0, s->queries + (size_t)i * QUERY, &step));
        const uint64_t selected_ns = base_clock_ns() - begin_ns;
        *select_seconds += (double)selected_ns * 1e-9 / STEPS;
        slowest = selected_ns > slowest ? selected_ns : slowest;
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        assert_int_equal(pages->lost_count, 0);
        assert_true(pages->read_bytes <= BUDGET);
        assert_ok(kvt_sparse_attend(pages, s->queries + (size_t)i * QUERY,
                                    outputs + (size_t)i * QUERY, NULL));
        kvt_sparse_done(sequence, step);
    }
    kvt_sparse_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_sparse_stats_get(sequence, &stats));
    assert_true(stats.tier_window_bytes[KVT_TIER_DRAM] <= WINDOW);
    print_message("select %.2f ms mean, %.2f ms at most; %.1f MiB read a step; index %.1f %%\n",
                  *select_seconds * 1e3, (double)slowest * 1e-6,
                  (double)stats.read_bytes / (double)stats.steps / (1 << 20),
                  100.0 * (double)stats.index_bytes / ((double)tokens * ROW * 4));
}

static void check_errors(const layer_site *s, const float *outputs)
{
    double *exact = test_alloc(QUERY * sizeof *exact);
    for (uint32_t j = 0; j < JUDGED; j++) {
        const uint32_t i = j * (STEPS - 1) / (JUDGED - 1);
        double difference = 0, norm = 0;
        exact_attention(s, s->queries + (size_t)i * QUERY, exact);
        for (uint32_t q = 0; q < QUERY; q++) {
            difference += pow((double)outputs[(size_t)i * QUERY + q] - exact[q], 2);
            norm += pow(exact[q], 2);
        }
        print_message("step %u: error %.4f\n", i, sqrt(difference / norm));
        assert_true(sqrt(difference / norm) < 0.1);
    }
}

TEST(a_layer_from_open_to_close)
{
    static layer_site s;
    site_open(&s);
    const kvt_sparse_options options = sequence_options();
    const kvt_key key = support_key(1);
    float *outputs = malloc(2 * sizeof(float[STEPS][QUERY]));
    kvt_sparse *sequence;
    double select_seconds;
    assert_non_null(outputs);
    uint64_t begin_ns = base_clock_ns();
    assert_ok(kvt_sparse_open_live(s.store, &options, &sequence, NULL, 0));
    assert_ok(kvt_sparse_give(sequence, 0, s.k, s.v));
    const double open_seconds = (double)(base_clock_ns() - begin_ns) * 1e-9;
    run_steps(&s, sequence, outputs, &select_seconds);
    check_errors(&s, outputs);
    assert_ok(kvt_sparse_keep(sequence, &key));
    kvt_sparse_close(sequence);
    begin_ns = base_clock_ns();
    assert_ok(kvt_sparse_open_kept(s.store, &options, &key, &sequence, NULL, 0));
    const double again_seconds = (double)(base_clock_ns() - begin_ns) * 1e-9;
    run_steps(&s, sequence, outputs + (size_t)STEPS * QUERY, &select_seconds);
    assert_memory_equal(outputs, outputs + (size_t)STEPS * QUERY, sizeof(float[STEPS][QUERY]));
    kvt_sparse_close(sequence);
    print_message("%u tokens: open %.2f s, again %.3f s\n", tokens, open_seconds, again_seconds);
    free(outputs);
    site_close(&s);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--tokens") == 0) tokens = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    return tests_run();
}
