/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_attention.c - attention over an entry, exact and from its variants. Thread rule:
 * quality_round_trip.h.
 *
 * Queries of the query heads that share a KV head are one block of rows, so each (layer, KV head)
 * is two products. A variant that drops tokens is attended to as it is stored, in fewer rows.
 */
#include "estimator/model/model_internal.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct quality_attention {
    kvt_layout layout;
    uint32_t query_heads, query_rows;
    uint32_t rows;     /* that share a KV head: query_heads / kv_heads * query_rows */
    size_t row_floats; /* of one token's K or V of a layer */
    uint64_t source_bytes, matrix_bytes;
    kvt_record_bases bases; /* that variants may need */
    kvt_variant variant;    /* at work */
    kvt_record_info info;

    uint8_t *source, *decoded, *record, *scratch;
    uint64_t record_capacity, scratch_capacity;
    float *keys, *values; /* [tokens][kv_heads][head_dim] of one layer */
    float *weights;       /* [rows][tokens] */
    float *out, *peaks;   /* [rows][head_dim]; [rows] */
    float *queries;       /* [layers][kv_heads][rows][head_dim] */
    float *exact_weights; /* [layers][kv_heads][rows][tokens] */
    float *exact_out;     /* [layers][kv_heads][rows][head_dim] */
    uint32_t *exact_top;  /* [layers][kv_heads][rows]: the token with the largest weight */
    double *errors;       /* [layers][query_heads] */
    uint32_t *kept;       /* [tokens] */
    uint32_t *kept_index; /* [tokens]: where a token stands among the kept; UINT32_MAX: dropped */
};

/* Sums over the queries of one entry. */
typedef struct attention_sums {
    uint64_t queries, flips;
    double mass;
} attention_sums;

/* A row with nothing measured. */
static quality_row quality_row_none(void)
{
    const double nan = (double)NAN;
    return (quality_row){.bits_per_element = nan,
                         .physical_bits_per_element = nan,
                         .loss = nan,
                         .kl = nan,
                         .kl_first = nan,
                         .kl_second = nan,
                         .top1 = nan,
                         .nll_delta = nan,
                         .rouge_l = nan,
                         .f1 = nan,
                         .answers = nan,
                         .attention_error = nan,
                         .attention_error_high = nan,
                         .retained_mass = nan,
                         .flip_rate = nan,
                         .nmse = {nan, nan}};
}

/* ---- memory ---- */

/* Heads of all layers times what there is per head. */
static size_t attention_all(const quality_attention *a, size_t each)
{
    return (size_t)a->layout.layers * a->layout.kv_heads * each;
}

static void *attention_room(size_t bytes, bool *fine)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes) != 0) memory = NULL;
    if (memory == NULL) *fine = false;
    return memory;
}

static kvt_status attention_make(quality_attention *a)
{
    const size_t tokens = a->layout.tokens, width = a->layout.head_dim, rows = a->rows;
    bool fine = true;
    a->source = attention_room(a->source_bytes, &fine);
    a->decoded = attention_room(a->matrix_bytes, &fine);
    a->keys = attention_room(tokens * a->row_floats * sizeof(float), &fine);
    a->values = attention_room(tokens * a->row_floats * sizeof(float), &fine);
    a->weights = attention_room(rows * tokens * sizeof(float), &fine);
    a->out = attention_room(rows * width * sizeof(float), &fine);
    a->peaks = attention_room(rows * sizeof(float), &fine);
    a->queries = attention_room(attention_all(a, rows * width) * sizeof(float), &fine);
    a->exact_weights = attention_room(attention_all(a, rows * tokens) * sizeof(float), &fine);
    a->exact_out = attention_room(attention_all(a, rows * width) * sizeof(float), &fine);
    a->exact_top = attention_room(attention_all(a, rows) * sizeof(uint32_t), &fine);
    a->errors = attention_room((size_t)a->layout.layers * a->query_heads * sizeof(double), &fine);
    a->kept = attention_room(tokens * sizeof(uint32_t), &fine);
    a->kept_index = attention_room(tokens * sizeof(uint32_t), &fine);
    return fine ? KVT_OK : KVT_E_MEMORY;
}

kvt_status quality_attention_open(const kvt_layout *layout, uint32_t query_heads,
                                  uint32_t query_rows, quality_attention **out)
{
    uint64_t bytes;
    *out = NULL;
    kvt_status status = kvt_layout_bytes(layout, &bytes);
    const bool numbers = model_is_float(layout->dtype) || layout->dtype == KVT_DTYPE_FP8;
    if (status != KVT_OK || !numbers || query_rows == 0 || query_rows > 1u << 16 ||
        layout->tokens > MODEL_TOKENS_MAX || query_heads == 0 || query_heads > UINT16_MAX ||
        query_heads % layout->kv_heads != 0) {
        return KVT_E_ARGUMENT;
    }
    quality_attention *a = calloc(1, sizeof *a);
    if (a == NULL) return KVT_E_MEMORY;
    a->layout = *layout;
    a->query_heads = query_heads;
    a->query_rows = query_rows;
    a->rows = query_heads / layout->kv_heads * query_rows;
    a->row_floats = (size_t)layout->kv_heads * layout->head_dim;
    a->source_bytes = bytes;
    a->matrix_bytes = kvt_layout_matrix_bytes(layout);
    status = attention_make(a);
    if (status != KVT_OK) {
        quality_attention_close(a);
        return status;
    }
    *out = a;
    return KVT_OK;
}

void quality_attention_close(quality_attention *a)
{
    if (a == NULL) return;
    void *const all[] = {a->source,    a->decoded, a->record,    a->scratch,
                         a->keys,      a->values,  a->weights,   a->out,
                         a->peaks,     a->queries, a->exact_out, a->exact_weights,
                         a->exact_top, a->errors,  a->kept,      a->kept_index};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(a);
}

void *quality_attention_source(quality_attention *a)
{
    return a->source;
}

float *quality_attention_queries(quality_attention *a)
{
    return a->queries;
}

void quality_attention_set_bases(quality_attention *a, kvt_record_bases bases)
{
    a->bases = bases;
}

/* ---- attending ---- */

/* One KV head of a layer over `tokens` rows of keys and values. */
static void attention_head(quality_attention *a, size_t head, uint32_t tokens, float *weights,
                           float *out)
{
    const size_t width = a->layout.head_dim, place = head % a->layout.kv_heads * width;
    const model_attend attend = {.queries = a->queries + head * a->rows * width,
                                 .keys = a->keys + place,
                                 .values = a->values + place,
                                 .out = out,
                                 .weights = weights,
                                 .rows = a->rows,
                                 .tokens = tokens,
                                 .head_dim = a->layout.head_dim,
                                 .query_stride = width,
                                 .kv_stride = a->row_floats,
                                 .visible = tokens,
                                 .peaks = a->peaks};
    model_attend_block(&attend);
}

static uint32_t attention_top(const float *weights, uint32_t tokens)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < tokens; i++)
        if (weights[i] > weights[top]) top = i;
    return top;
}

void quality_attention_exact(quality_attention *a)
{
    const kvt_layout *layout = &a->layout;
    const uint32_t tokens = layout->tokens;
    const size_t count = tokens * a->row_floats, heads = layout->kv_heads;
    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        model_convert(layout->dtype,
                      a->source + kvt_layout_matrix_offset(layout, layer, KVT_SIDE_K), count,
                      a->keys);
        model_convert(layout->dtype,
                      a->source + kvt_layout_matrix_offset(layout, layer, KVT_SIDE_V), count,
                      a->values);
        for (size_t head = layer * heads; head < (layer + 1) * heads; head++) {
            float *weights = a->exact_weights + head * a->rows * tokens;
            attention_head(a, head, tokens, weights,
                           a->exact_out + head * a->rows * layout->head_dim);
            for (size_t r = 0; r < a->rows; r++)
                a->exact_top[head * a->rows + r] = attention_top(weights + r * tokens, tokens);
        }
    }
}

/* ---- one variant ---- */

static kvt_status attention_encode(quality_attention *a, bool merged)
{
    kvt_record_spec spec = {
        .generation = 1, .layout = a->layout, .variant = a->variant, .bases = a->bases};
    uint64_t bound, scratch, record_bytes;
    spec.layout.tokens_may_drop = quality_variant_drops(a->variant);
    if (merged && a->row_floats > UINT16_MAX) return KVT_E_UNSUPPORTED;
    if (merged) spec.layout.head_dim = (uint16_t)a->row_floats;
    if (merged) spec.layout.kv_heads = 1;
    kvt_status status = kvt_record_bound(&spec, &bound, &scratch);
    if (status == KVT_OK) status = quality_round_trip_room(&a->record, &a->record_capacity, bound);
    if (status == KVT_OK)
        status = quality_round_trip_room(&a->scratch, &a->scratch_capacity, scratch);
    if (status != KVT_OK) return status;
    status = kvt_record_encode(&spec, a->source, a->source_bytes, a->record, a->record_capacity,
                               a->scratch, a->scratch_capacity, &record_bytes);
    if (status < 0) return status;
    return kvt_record_parse(a->record, record_bytes, &a->info);
}

/* Decodes one matrix; its fp32 form is made by attention_convert. */
static kvt_status attention_decode(quality_attention *a, uint32_t layer, kvt_side side)
{
    uint64_t bytes = a->matrix_bytes / a->layout.tokens * a->info.stored_tokens;
    return kvt_record_decode_matrix(a->record, a->info.record_bytes, &a->bases, layer, side,
                                    a->decoded, bytes, a->scratch, a->scratch_capacity);
}

static void attention_convert(const quality_attention *a, float *target)
{
    model_convert(a->layout.dtype, a->decoded, a->info.stored_tokens * a->row_floats, target);
}

/* Which tokens of a layer there are. */
static kvt_status attention_list_kept(quality_attention *a, uint32_t layer)
{
    const uint32_t tokens = a->layout.tokens, count = a->info.stored_tokens;
    if (count == tokens) return KVT_OK;
    kvt_status status =
        kvt_record_kept_tokens(a->record, a->info.record_bytes, layer, a->kept, tokens);
    memset(a->kept_index, 0xff, tokens * sizeof *a->kept_index);
    for (uint32_t i = 0; status == KVT_OK && i < count; i++)
        a->kept_index[a->kept[i]] = i;
    return status;
}

/* Flips and mass of one KV head's rows, whose weights have just been made. */
static void attention_compare_weights(const quality_attention *a, size_t head, attention_sums *sums)
{
    const uint32_t tokens = a->layout.tokens, stored = a->info.stored_tokens;
    for (size_t r = 0; r < a->rows; r++) {
        uint32_t top = a->exact_top[head * a->rows + r];
        if (stored < tokens) top = a->kept_index[top];
        bool same = top < stored && a->weights[r * stored + top] >= a->peaks[r];
        sums->flips += !same;
        if (stored == tokens) continue;
        const float *exact = a->exact_weights + (head * a->rows + r) * tokens;
        for (uint32_t i = 0; i < stored; i++)
            sums->mass += (double)exact[a->kept[i]];
    }
    sums->queries += a->rows;
}

/* Relative error of each query head of one KV head. */
static void attention_compare_out(quality_attention *a, size_t head)
{
    const size_t width = a->layout.head_dim, each = a->query_rows * width;
    const size_t group = a->rows / a->query_rows;
    const float *exact = a->exact_out + head * a->rows * width;
    for (size_t g = 0; g < group; g++) {
        double difference = 0.0, norm = 0.0;
        for (size_t i = g * each; i < (g + 1) * each; i++) {
            double delta = (double)exact[i] - (double)a->out[i];
            difference += delta * delta;
            norm += (double)exact[i] * (double)exact[i];
        }
        /* Of an output of zero all is lost; NaN stays NaN. */
        if (difference != 0.0) difference = norm != 0.0 ? sqrt(difference / norm) : 1.0;
        a->errors[head * group + g] = difference;
    }
}

static kvt_status attention_layer(quality_attention *a, uint32_t layer, attention_sums *sums)
{
    const uint32_t stored = a->info.stored_tokens;
    const size_t heads = a->layout.kv_heads;
    kvt_status status = attention_decode(a, layer, KVT_SIDE_K);
    if (status != KVT_OK) return status;
    attention_convert(a, a->keys);
    status = attention_decode(a, layer, KVT_SIDE_V);
    if (status == KVT_OK) status = attention_list_kept(a, layer);
    if (status != KVT_OK) return status;
    attention_convert(a, a->values);
    for (size_t head = layer * heads; head < (layer + 1) * heads; head++) {
        attention_head(a, head, stored, a->weights, a->out);
        attention_compare_weights(a, head, sums);
        attention_compare_out(a, head);
    }
    return KVT_OK;
}

/* Mean and high quantile of the heads' errors, which are sorted. */
static void attention_aggregate(quality_attention *a, quality_row *row)
{
    const uint32_t count = (uint32_t)a->layout.layers * a->query_heads;
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += a->errors[i];
    row->attention_error = sum / count;
    row->attention_error_high = quality_quantile(a->errors, count, QUALITY_ATTENTION_HIGH);
}

kvt_status quality_attention_run(quality_attention *a, kvt_variant variant, bool merged,
                                 quality_row *row_out)
{
    attention_sums sums = {0, 0, 0.0};
    *row_out = quality_row_none();
    a->variant = variant;
    kvt_status status = attention_encode(a, merged);
    if (status == KVT_E_UNSUPPORTED) return KVT_OK;
    for (uint32_t layer = 0; status == KVT_OK && layer < a->layout.layers; layer++)
        status = attention_layer(a, layer, &sums);
    if (status != KVT_OK) return status;
    row_out->present = true;
    row_out->bits_per_element = quality_coded_bits(&a->info);
    row_out->physical_bits_per_element = a->info.physical_bits_per_element;
    bool all = a->info.stored_tokens == a->layout.tokens;
    row_out->retained_mass = all ? 1.0 : fmin(sums.mass / (double)sums.queries, 1.0);
    row_out->flip_rate = (double)sums.flips / (double)sums.queries;
    attention_aggregate(a, row_out);
    return KVT_OK;
}

void quality_attention_disturb(quality_attention *a, uint32_t layer, kvt_side side,
                               const float *noise, double *error_out)
{
    const kvt_layout *layout = &a->layout;
    const size_t count = layout->tokens * a->row_floats, heads = layout->kv_heads;
    const size_t group = a->rows / a->query_rows;
    float *changed = side == KVT_SIDE_K ? a->keys : a->values;
    double sum = 0.0;
    model_convert(layout->dtype, a->source + kvt_layout_matrix_offset(layout, layer, KVT_SIDE_K),
                  count, a->keys);
    model_convert(layout->dtype, a->source + kvt_layout_matrix_offset(layout, layer, KVT_SIDE_V),
                  count, a->values);
    for (size_t i = 0; i < count; i++)
        changed[i] += noise[i];
    for (size_t head = layer * heads; head < (layer + 1) * heads; head++) {
        attention_head(a, head, layout->tokens, a->weights, a->out);
        attention_compare_out(a, head);
        for (size_t i = head * group; i < (head + 1) * group; i++)
            sum += a->errors[i] * a->errors[i];
    }
    *error_out = sum / (double)(heads * group);
}
