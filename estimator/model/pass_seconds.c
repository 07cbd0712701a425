/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_seconds.c - times a model's passes by new tokens and prefix.
 *
 * The prefix is zeros: what a layer computes takes as long for any values. One pass before each
 * place warms it and is not counted.
 *
 * Thread rule: as pass_seconds.h.
 */
#include "estimator/model/pass_seconds.h"

#include "base/clock.h"
#include "base/order.h"

#include <assert.h>
#include <stdlib.h>

#define PASS_REPETITIONS_MAX 64u
#define PASS_LEAST           1e-9 /* seconds of a layer that a clock did not see */

/* The model, the session and the memory that passes run on. */
typedef struct pass_bench {
    const model_config *config;
    model_session *session;
    uint32_t *tokens; /* of the longest input */
    float *prefix;    /* zeros: K and V of any layer of the longest prefix */
    const void **layers;
} pass_bench;

static uint32_t pass_most(const uint32_t *values, uint32_t count)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++)
        if (values[i] > most) most = values[i];
    return most;
}

static kvt_status pass_bench_open(pass_bench *bench, const model *m, const pass_grid *grid)
{
    *bench = (pass_bench){.config = model_config_of(m)};
    const model_config *config = bench->config;
    const size_t longest = pass_most(grid->new_tokens, grid->new_count);
    const size_t behind = pass_most(grid->prefix_tokens, grid->prefix_count);
    bench->tokens = calloc(longest + 1, sizeof *bench->tokens);
    bench->prefix = calloc(behind * config->kv_heads * config->head_dim + 1, sizeof *bench->prefix);
    bench->layers = calloc(config->layers, sizeof *bench->layers);
    if (bench->tokens == NULL || bench->prefix == NULL || bench->layers == NULL)
        return KVT_E_MEMORY;
    for (size_t i = 0; i < longest; i++)
        bench->tokens[i] = (uint32_t)(i % config->vocab);
    for (uint32_t i = 0; i < config->layers; i++)
        bench->layers[i] = bench->prefix;
    return model_session_open(m, &bench->session);
}

static void pass_bench_close(pass_bench *bench)
{
    model_session_close(bench->session);
    free(bench->tokens);
    free(bench->prefix);
    free(bench->layers);
}

/* The median seconds of a layer at one place. */
static kvt_status pass_time(pass_bench *bench, uint32_t repetitions, kvt_pass_row *row)
{
    double seconds[PASS_REPETITIONS_MAX];
    const model_past past = {.tokens = row->prefix_tokens,
                             .dtype = KVT_DTYPE_FP32,
                             .k = bench->layers,
                             .v = bench->layers};
    const model_request request = {.tokens = bench->tokens,
                                   .token_count = row->new_tokens,
                                   .first_position = row->prefix_tokens,
                                   .past = row->prefix_tokens != 0 ? &past : NULL};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i <= repetitions && status == KVT_OK; i++) {
        const uint64_t began_ns = base_clock_ns();
        status = model_forward(bench->session, &request);
        if (i > 0) seconds[i - 1] = (double)(base_clock_ns() - began_ns) * 1e-9;
    }
    if (status != KVT_OK) return status;
    qsort(seconds, repetitions, sizeof seconds[0], base_order_doubles);
    row->layer_seconds = seconds[repetitions / 2] / bench->config->layers;
    if (!(row->layer_seconds > PASS_LEAST)) row->layer_seconds = PASS_LEAST;
    return KVT_OK;
}

kvt_status pass_seconds_measure(const model *m, const pass_grid *grid, kvt_pass_row *rows,
                                size_t *count_out)
{
    pass_bench bench;
    *count_out = 0;
    if (grid->repetitions == 0 || grid->repetitions > PASS_REPETITIONS_MAX) return KVT_E_ARGUMENT;
    kvt_status status = pass_bench_open(&bench, m, grid);
    const uint32_t places = grid->new_count * grid->prefix_count;
    for (uint32_t i = 0; i < places && status == KVT_OK; i++) {
        kvt_pass_row *row = &rows[*count_out];
        *row = (kvt_pass_row){.new_tokens = grid->new_tokens[i / grid->prefix_count],
                              .prefix_tokens = grid->prefix_tokens[i % grid->prefix_count]};
        if (grid->proceed != NULL && !grid->proceed(grid->context, (double)i / places))
            status = KVT_E_CANCELLED;
        if (row->prefix_tokens != 0 && model_is_elsewhere(m)) continue;
        if (status == KVT_OK) status = pass_time(&bench, grid->repetitions, row);
        *count_out += status == KVT_OK;
    }
    pass_bench_close(&bench);
    return status;
}
