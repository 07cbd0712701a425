/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse.c - decoding over a KV cache that is larger than memory (kvterrace/sparse.h), as a whole
 * program: a context of 4,096 tokens lies on a drive, each step of a layer reads at most 64 KiB of
 * it, and a budget without a bound gives what full attention gives.
 */
#include <kvterrace/kvterrace.h>
#include <kvterrace/sparse.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 4096, HEADS = 2, GROUP = 2, DIM = 64, QUERY = HEADS * GROUP * DIM };

static int fail(const char *message)
{
    fprintf(stderr, "sparse: %s\n", message);
    return 1;
}

/* A number in [-1, 1) that seems drawn. */
static float noise(uint32_t number)
{
    number = (number ^ number >> 16) * 0x7feb352dU;
    number = (number ^ number >> 15) * 0x846ca68bU;
    return (float)(int32_t)(number ^ number >> 16) * 0x1p-31f;
}

/* What a topic is, in one channel. */
static float topic_of(int topic, int channel)
{
    return 2 * noise((uint32_t)(topic * DIM + channel % DIM));
}

/* The engine's prefill: fifty topics, each in runs of 16 tokens. */
static void fill(float *k, float *v)
{
    for (int i = 0; i < TOKENS * HEADS * DIM; i++) {
        const int token = i / (HEADS * DIM);
        k[i] = topic_of(token / 16 % 50, i) + 0.3f * noise((uint32_t)i + 1000000);
        v[i] = noise((uint32_t)i + 9000000);
    }
}

/* The engine's queries of one step, about a topic. */
static void ask(int topic, float *queries)
{
    for (int i = 0; i < QUERY; i++)
        queries[i] = topic_of(topic, i);
}

static int decode(kvt_store *store, uint64_t budget_bytes, const float *k, const float *v,
                  float *output)
{
    /* README: from here */
    const kvt_layout layout = {
        .layers = 1, .kv_heads = HEADS, .head_dim = DIM, .dtype = KVT_DTYPE_FP32, .tokens = TOKENS};
    kvt_sparse_options options;
    kvt_sparse_options_init(&options, &layout);
    options.query_heads = HEADS * GROUP;
    options.budget_bytes = budget_bytes; /* that a step of one layer may read */
    kvt_sparse *sequence;
    char message[256] = "";
    if (kvt_sparse_open_live(store, &options, &sequence, message, sizeof message) != KVT_OK)
        return fail(message);
    kvt_status status = kvt_sparse_give(sequence, 0, k, v); /* for each layer, in order */
    for (int token = 0; token < 5 && status == KVT_OK; token++) {
        float queries[QUERY];
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        ask(token, queries); /* the engine's queries of layer 0 */
        status = kvt_sparse_select(sequence, 0, queries, &step); /* starts the reads, returns */
        if (status != KVT_OK) break;
        status = kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages);
        if (status == KVT_OK) status = kvt_sparse_attend(pages, queries, output, NULL);
        kvt_sparse_done(sequence, step);
    }
    kvt_sparse_close(sequence);
    /* README: to here */
    return status == KVT_OK ? 0 : fail(kvt_status_text(status));
}

int main(void)
{
    const kvt_device_config drive = {.struct_size = sizeof drive,
                                     .name = "drive",
                                     .backend = "memory", /* "file", with a path */
                                     .capacity_bytes = 64 << 20};
    kvt_store_options options;
    kvt_store *store;
    char message[256] = "";
    kvt_store_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = &drive, .device_count = 1};
    if (kvt_store_open(&options, &store, message, sizeof message) != KVT_OK) return fail(message);
    float *k = malloc(sizeof *k * TOKENS * HEADS * DIM),
          *v = malloc(sizeof *v * TOKENS * HEADS * DIM);
    if (k == NULL || v == NULL) return fail("memory");
    fill(k, v);
    float all[QUERY], some[QUERY];
    int code = decode(store, KVT_SPARSE_ALL, k, v, all);
    if (code == 0) code = decode(store, 64 << 10, k, v, some);
    double difference = 0, norm = 0;
    for (int i = 0; i < QUERY && code == 0; i++) {
        difference += (double)(some[i] - all[i]) * (double)(some[i] - all[i]);
        norm += (double)all[i] * (double)all[i];
    }
    free(k);
    free(v);
    kvt_store_close(store);
    if (code != 0) return code;
    const double error = sqrt(difference / norm);
    printf("error of 64 KiB a step: %.4f\n", error);
    return error < 0.5 ? 0 : fail("the error is too large");
}
