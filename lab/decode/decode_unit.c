/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_unit.c - one unit made ready: its index, the values and logits of every variant by place,
 * attention over what is always resident, and exact attention to judge by.
 */
#include "decode.h"
#include "lab/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static kvt_status unit_allocate(decode_unit *u, bool raw_alone)
{
    const size_t all = (size_t)u->source->all * u->dim, steps = (size_t)u->rows * u->group;
    u->keys = malloc(all * sizeof *u->keys);
    u->values = malloc(all * sizeof *u->values);
    u->queries = malloc(steps * u->dim * sizeof *u->queries);
    u->place_of = malloc(u->zone * sizeof *u->place_of);
    u->resident = malloc(steps * u->dim * sizeof *u->resident);
    u->resident_lse = malloc(steps * sizeof *u->resident_lse);
    u->zone_lse = malloc(steps * sizeof *u->zone_lse);
    u->exact = malloc(steps * u->dim * sizeof *u->exact);
    bool fine = u->keys && u->values && u->queries && u->place_of && u->resident &&
                u->resident_lse && u->zone_lse && u->exact;
    for (uint32_t v = raw_alone ? PAGES_RAW : PAGES_BITS_2; v < PAGES_VARIANTS; v++) {
        u->rows_of[v] = malloc((size_t)u->zone * u->dim * sizeof *u->rows_of[v]);
        u->logits[v] = malloc(steps * u->zone * sizeof *u->logits[v]);
        fine = fine && u->rows_of[v] != NULL && u->logits[v] != NULL;
    }
    return fine ? KVT_OK : KVT_E_MEMORY;
}

void decode_unit_close(decode_unit *u)
{
    free(u->keys);
    free(u->values);
    free(u->queries);
    free(u->place_of);
    free(u->resident);
    free(u->resident_lse);
    free(u->zone_lse);
    free(u->exact);
    for (uint32_t v = 0; v < PAGES_VARIANTS; v++) {
        free(u->rows_of[v]);
        free(u->logits[v]);
    }
    sparse_index_free(&u->index);
    sparse_work_close(&u->work);
}

/* Logits of all steps against rows of one variant by place. */
static void unit_logits(decode_unit *u, const uint16_t *keys, pages_variant variant)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    for (size_t q = 0; q < (size_t)u->rows * u->group; q++)
        kernels->dots(keys, u->dim * 2, u->zone, KVT_DTYPE_FP16, u->queries + q * u->dim, u->dim,
                      u->scale, u->logits[variant] + q * u->zone);
}

/* Encodes all segments, and decodes every page at every precision. keys: raw, by place. */
static kvt_status unit_code(decode_unit *u, const uint16_t *keys, uint16_t *decoded)
{
    const uint32_t segments = sparse_segment_count(u->zone, u->paging.segment_tokens);
    sparse_code code;
    kvt_status status = sparse_code_open(&u->paging, &code);
    uint8_t *coded = malloc(2 * (size_t)u->zone * u->dim);
    void *scratch = aligned_alloc(64, (sparse_code_scratch(&u->paging) + 63) / 64 * 64);
    if (coded == NULL || scratch == NULL) status = KVT_E_MEMORY;
    u->code_bytes = code.bytes;
    for (uint32_t s = 0; status == KVT_OK && s < segments; s++) {
        const size_t at =
            (size_t)sparse_segment_first(u->zone, u->paging.segment_tokens, s) * u->dim;
        status = sparse_code_segment(&u->paging, &code, s, keys + at, u->rows_of[PAGES_RAW] + at,
                                     coded + 2 * at, scratch);
    }
    for (uint32_t v = PAGES_BITS_2; status == KVT_OK && v <= PAGES_BITS_8; v++) {
        for (uint32_t p = 0; status == KVT_OK && p < u->paging.pages; p++) {
            const size_t at = (size_t)sparse_page_first(&u->paging, p) * u->dim;
            status = sparse_code_page(&u->paging, &code, p, (pages_variant)v, coded + 2 * at,
                                      decoded + at, u->rows_of[v] + at, scratch);
        }
        unit_logits(u, decoded, (pages_variant)v);
    }
    free(coded);
    free(scratch);
    sparse_code_close(&code);
    return status;
}

/* Rows in packed order. */
static kvt_status unit_pack(decode_unit *u, bool raw_alone)
{
    const size_t bytes = (size_t)u->zone * u->dim * sizeof(uint16_t);
    uint16_t *keys = malloc(bytes), *decoded = malloc(bytes);
    kvt_status status = keys != NULL && decoded != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t p = 0; status == KVT_OK && p < u->zone; p++) {
        const uint32_t token = sparse_index_token(&u->index, p);
        const size_t from = (size_t)(DECODE_SINKS + token) * u->dim;
        u->place_of[token] = p;
        memcpy(keys + (size_t)p * u->dim, u->keys + from, u->dim * 2);
        memcpy(u->rows_of[PAGES_RAW] + (size_t)p * u->dim, u->values + from, u->dim * 2);
    }
    if (status == KVT_OK) {
        unit_logits(u, keys, PAGES_RAW);
        if (!raw_alone) status = unit_code(u, keys, decoded);
    }
    free(keys);
    free(decoded);
    return status;
}

/* Sinks and the tokens behind the zone, as step `row` sees them. */
static void unit_resident(decode_unit *u, uint32_t row)
{
    const uint32_t after = DECODE_SINKS + u->zone;
    const uint32_t seen = u->source->tokens + (u->source->grows ? row + 1 : 0);
    const sparse_run runs[2] = {{u->keys, u->values, u->dim * 2, DECODE_SINKS, KVT_DTYPE_FP16},
                                {u->keys + (size_t)after * u->dim,
                                 u->values + (size_t)after * u->dim, u->dim * 2, seen - after,
                                 KVT_DTYPE_FP16}};
    for (uint32_t g = 0; g < u->group; g++) {
        const size_t at = (size_t)row * u->group + g;
        double sums[SPARSE_HEAD_DIM_MAX];
        sparse_partial partial;
        sparse_attend_start(sums, &partial, 1, u->dim);
        for (int i = 0; i < 2; i++)
            sparse_attend_run(&runs[i], u->queries + at * u->dim, 1, u->dim, u->scale, sums,
                              &partial);
        sparse_attend_end(sums, &partial, 1, u->dim, u->resident + at * u->dim,
                          u->resident_lse + at);
    }
}

/* The whole zone in raw, merged with what is resident, in double. */
static void unit_exact(decode_unit *u, size_t at)
{
    const float *logits = u->logits[PAGES_RAW] + at * u->zone;
    double largest = -INFINITY, sum = 0.0, sums[SPARSE_HEAD_DIM_MAX] = {0.0};
    for (uint32_t p = 0; p < u->zone; p++)
        largest = fmax(largest, (double)logits[p]);
    for (uint32_t p = 0; p < u->zone; p++) {
        const double weight = exp((double)logits[p] - largest);
        const uint16_t *row = u->rows_of[PAGES_RAW] + (size_t)p * u->dim;
        sum += weight;
        if (weight < 1e-12) continue;
        for (uint32_t d = 0; d < u->dim; d++)
            sums[d] += weight * (double)half_to_float(row[d]);
    }
    u->zone_lse[at] = largest + log(sum);
    const double whole = fmax(u->zone_lse[at], (double)u->resident_lse[at]);
    const double zone = exp(u->zone_lse[at] - whole), rest = exp(u->resident_lse[at] - whole);
    for (uint32_t d = 0; d < u->dim; d++) {
        const double o =
            (zone * sums[d] / sum + rest * (double)u->resident[at * u->dim + d]) / (zone + rest);
        u->exact[at * u->dim + d] = (float)o;
        u->exact_energy += o * o;
    }
}

kvt_status decode_unit_open(const decode_source *source, const decode_options *options,
                            uint32_t layer, uint32_t head, decode_unit *u)
{
    *u = (decode_unit){.source = source,
                       .dim = source->head_dim,
                       .group = source->group,
                       .rows = source->rows,
                       .zone = source->tokens - DECODE_SINKS - DECODE_LOCAL,
                       .scale = 1.0f / sqrtf((float)source->head_dim)};
    const sparse_index_options index = {.head_dim = u->dim,
                                        .dtype = KVT_DTYPE_FP16,
                                        .one_pass = options->one_pass,
                                        .seed = options->seed + layer * 131 + head};
    kvt_status status = unit_allocate(u, options->raw_alone);
    if (status != KVT_OK) return status;
    decode_source_unit(source, layer, head, u->keys, u->values, u->queries);
    const sparse_rows keys = {u->keys + DECODE_SINKS * u->dim, u->dim * 2};
    const sparse_rows values = {u->values + DECODE_SINKS * u->dim, u->dim * 2};
    const double start = base_cpu_seconds();
    status = sparse_index_build(&index, &keys, &values, u->zone, &u->index);
    u->build_seconds = base_cpu_seconds() - start;
    if (status == KVT_OK)
        status = sparse_paging_init(&u->paging, u->dim, KVT_DTYPE_FP16, u->zone,
                                    u->index.segment_tokens, options->page_tokens);
    if (status == KVT_OK) {
        sparse_work_room room = {.pages = 0};
        sparse_work_room_add(&room, &u->index, u->paging.pages);
        status = sparse_work_open(&room, u->group, u->dim, &u->work);
    }
    if (status == KVT_OK) status = unit_pack(u, options->raw_alone);
    for (uint32_t r = 0; status == KVT_OK && r < u->rows; r++) {
        unit_resident(u, r);
        for (uint32_t g = 0; g < u->group; g++)
            unit_exact(u, (size_t)r * u->group + g);
    }
    return status;
}

/* Output of one query over the places that were read; the state is relative to `largest`. */
static double judge_read(const decode_unit *u, size_t at, const uint8_t *variant, double largest,
                         double *recall, double *sums)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    float part[SPARSE_HEAD_DIM_MAX] = {0.0f};
    double sum = 0.0;
    for (uint32_t p = 0; p < u->zone; p++) {
        if (variant[p] == PAGES_ABSENT) continue;
        const float weight = (float)exp((double)u->logits[variant[p]][at * u->zone + p] - largest);
        *recall += exp((double)u->logits[PAGES_RAW][at * u->zone + p] - u->zone_lse[at]) / u->group;
        sum += (double)weight;
        kernels->combine(u->rows_of[variant[p]] + (size_t)p * u->dim, u->dim * 2, 1, KVT_DTYPE_FP16,
                         &weight, u->dim, part);
    }
    for (uint32_t d = 0; d < u->dim; d++)
        sums[d] = (double)part[d];
    return sum;
}

void decode_unit_judge(const decode_unit *u, uint32_t row, const uint8_t *variant_of_place,
                       const float *estimate, const float *estimate_lse, double *error,
                       double *recall)
{
    for (uint32_t g = 0; g < u->group; g++) {
        const size_t at = (size_t)row * u->group + g;
        const double largest = fmax(u->zone_lse[at], (double)u->resident_lse[at]);
        double sums[SPARSE_HEAD_DIM_MAX];
        double sum = judge_read(u, at, variant_of_place, largest, recall, sums);
        const double rest = exp((double)u->resident_lse[at] - largest);
        const double guess = estimate != NULL ? exp((double)estimate_lse[g] - largest) : 0.0;
        sum += rest + guess;
        for (uint32_t d = 0; d < u->dim; d++) {
            double o = sums[d] + rest * (double)u->resident[at * u->dim + d];
            if (estimate != NULL) o += guess * (double)estimate[g * u->dim + d];
            const double off = o / sum - (double)u->exact[at * u->dim + d];
            *error += off * off;
        }
    }
}
