/* SPDX-License-Identifier: Apache-2.0 */
/*
 * csv_curves.c - measured GPU kernel times per layer, summed into a table of prefill seconds.
 *
 *     chunk i = layers * (dense layers + attention of a chunk on i * chunk cached tokens)
 *               + embedding + final norm + lm_head of one sequence
 *
 * The chunk is the largest that the attention file has and every dense layer covers (2,048 tokens
 * in vLLM's usual set-up). Attention is interpolated linearly between measured cache lengths and
 * goes on with its last slope: for a fixed chunk it is linear in the cache length. Any thread.
 */
#include "estimator/profile/csv.h"
#include "profile.h"

#include <kvterrace/codec.h>
#include <kvterrace/prefill.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFILL_TABLE_TOKENS 131072u
#define PREFILL_TIME_MAX_US  1e12
#define PREFILL_LAYERS_MAX   65535u

enum { PREFILL_LM_HEAD = 9, PREFILL_ATTENTION = 10, PREFILL_SERIES = 11 };

/* Dense layers and how often a decoder layer, or the whole pass, runs them. */
static const struct prefill_dense {
    const char *name;
    double per_layer;
    double per_pass;
} prefill_dense[PREFILL_LM_HEAD] = {
    {"qkv_proj", 1, 0},  {"rotary_emb", 1, 0}, {"o_proj", 1, 0},
    {"layernorm", 2, 0}, {"act_fn", 1, 0},     {"gate_up_proj", 1, 0},
    {"down_proj", 1, 0}, {"embedding", 0, 1},  {"final_layernorm", 0, 1},
};

/* One measured time. group is the chunk for attention and 0 elsewhere. */
typedef struct prefill_sample {
    uint32_t group;
    uint32_t x;
    uint32_t line;
    double seconds;
} prefill_sample;

typedef struct prefill_series {
    prefill_sample *samples;
    size_t count;
    size_t capacity;
} prefill_series;

typedef struct prefill_files {
    csv_input input; /* the file being read; its path is kept for messages */
    prefill_series series[PREFILL_SERIES];
} prefill_files;

static kvt_status prefill_append(prefill_files *files, size_t which, prefill_sample sample)
{
    prefill_series *series = &files->series[which];
    if (series->count == series->capacity) {
        size_t capacity = series->capacity == 0 ? 64 : 2 * series->capacity;
        prefill_sample *grown = realloc(series->samples, capacity * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        series->samples = grown;
        series->capacity = capacity;
    }
    series->samples[series->count++] = sample;
    return KVT_OK;
}

static int prefill_compare(const void *a, const void *b)
{
    const prefill_sample *left = a, *right = b;
    if (left->group != right->group) return left->group < right->group ? -1 : 1;
    return (left->x > right->x) - (left->x < right->x);
}

/* Sorts a series and refuses a point measured twice: which one holds would be a guess. */
static kvt_status prefill_sort(prefill_files *files, size_t which)
{
    prefill_series *series = &files->series[which];
    if (series->count == 0) return KVT_OK;
    qsort(series->samples, series->count, sizeof *series->samples, prefill_compare);
    for (size_t i = 1; i < series->count; i++) {
        const prefill_sample *a = &series->samples[i - 1], *b = &series->samples[i];
        if (a->group != b->group || a->x != b->x) continue;
        files->input.line = a->line > b->line ? a->line : b->line;
        return csv_fail(&files->input, "the same point for the second time");
    }
    return KVT_OK;
}

static kvt_status prefill_read_header(csv_input *input, const char *const *names, size_t count)
{
    const kvt_status status = csv_next_header(input, names, count);
    if (status != KVT_END) return status;
    input->line = 1;
    return csv_fail(input, "an empty file");
}

static kvt_status prefill_read_time(csv_input *input, size_t field, double *seconds)
{
    double microseconds = 0.0;
    kvt_status status = csv_number(input, field, PREFILL_TIME_MAX_US, &microseconds);
    *seconds = 1e-6 * microseconds;
    return status;
}

static kvt_status prefill_read_attention_row(prefill_files *files)
{
    csv_input *input = &files->input;
    uint32_t decoding = 0, decoding_cached = 0;
    prefill_sample sample = {.line = input->line};
    kvt_status status = csv_u32(input, 0, &sample.group);
    if (status == KVT_OK) status = csv_u32(input, 1, &sample.x);
    if (status == KVT_OK) status = csv_u32(input, 2, &decoding);
    if (status == KVT_OK) status = csv_u32(input, 3, &decoding_cached);
    if (status == KVT_OK) status = prefill_read_time(input, 4, &sample.seconds);
    if (status != KVT_OK || decoding != 0 || sample.group == 0) return status;
    return prefill_append(files, PREFILL_ATTENTION, sample);
}

/* Dense rows, and per-sequence rows of which lm_head counts: sampling is no part of prefill. */
static kvt_status prefill_read_layer_row(prefill_files *files, bool dense)
{
    csv_input *input = &files->input;
    prefill_sample sample = {.line = input->line};
    kvt_status status = csv_u32(input, 1, &sample.x);
    if (status == KVT_OK) status = prefill_read_time(input, 2, &sample.seconds);
    if (status != KVT_OK) return status;
    if (!dense) {
        if (csv_is(input, 0, "lm_head")) return prefill_append(files, PREFILL_LM_HEAD, sample);
        return csv_is(input, 0, "sampler") ? KVT_OK : csv_fail(input, "an unknown layer");
    }
    for (size_t i = 0; i < PREFILL_LM_HEAD; i++) {
        if (csv_is(input, 0, prefill_dense[i].name)) return prefill_append(files, i, sample);
    }
    return csv_fail(input, "an unknown layer");
}

typedef struct prefill_kind {
    const char *suffix;
    const char *headings[5];
    size_t fields;
    size_t first_series, last_series;
} prefill_kind;

static const prefill_kind prefill_kinds[] = {
    {"_attention.csv",
     {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"},
     5,
     PREFILL_ATTENTION,
     PREFILL_ATTENTION},
    {"_dense.csv", {"layer", "tokens", "time_us"}, 3, 0, PREFILL_LM_HEAD - 1},
    {"_per_sequence.csv", {"layer", "sequences", "time_us"}, 3, PREFILL_LM_HEAD, PREFILL_LM_HEAD},
};

static kvt_status prefill_read_file(prefill_files *files, const prefill_kind *kind,
                                    const char *prefix, char *message, size_t message_size)
{
    char path[4096];
    csv_input *input = &files->input;
    int length = snprintf(path, sizeof path, "%s%s", prefix, kind->suffix);
    if (length < 0 || (size_t)length >= sizeof path) {
        if (message_size > 0) snprintf(message, message_size, "the path is too long");
        return KVT_E_GONE;
    }
    kvt_status status = csv_open(input, path, message, message_size);
    if (status != KVT_OK) return status;
    status = prefill_read_header(input, kind->headings, kind->fields);
    while (status == KVT_OK) {
        status = csv_next(input, kind->headings, kind->fields);
        if (status != KVT_OK) break;
        status = kind->fields == 5
                     ? prefill_read_attention_row(files)
                     : prefill_read_layer_row(files, kind->last_series < PREFILL_LM_HEAD);
    }
    if (status == KVT_END) status = KVT_OK;
    for (size_t i = kind->first_series; status == KVT_OK && i <= kind->last_series; i++) {
        if (files->series[i].count == 0) {
            status = csv_fail(input, "ends without every layer that is needed");
        } else {
            status = prefill_sort(files, i);
        }
    }
    csv_close(input);
    return status;
}

/* Time at x over sorted samples: linear between them, the first one below them, and past the last
 * one its slope, which is never taken to fall. */
static double prefill_interpolate(const prefill_sample *samples, size_t count, double x)
{
    size_t right = 1;
    if (count == 1 || x <= (double)samples[0].x) return samples[0].seconds;
    while (right + 1 < count && (double)samples[right].x < x)
        right++;
    const prefill_sample *a = &samples[right - 1], *b = &samples[right];
    double slope = (b->seconds - a->seconds) / ((double)b->x - (double)a->x);
    if (x > (double)b->x && slope < 0.0) return b->seconds;
    return a->seconds + slope * (x - (double)a->x);
}

/* The samples of the largest usable chunk. */
static const prefill_sample *prefill_pick_chunk(const prefill_files *files, size_t *count_out)
{
    const prefill_series *attention = &files->series[PREFILL_ATTENTION];
    uint32_t limit = PREFILL_TABLE_TOKENS;
    for (size_t i = 0; i < PREFILL_LM_HEAD; i++) {
        uint32_t last = files->series[i].samples[files->series[i].count - 1].x;
        if (last < limit) limit = last;
    }
    size_t end = attention->count;
    while (end > 0 && attention->samples[end - 1].group > limit)
        end--;
    size_t start = end;
    while (start > 0 && attention->samples[start - 1].group == attention->samples[end - 1].group) {
        start--;
    }
    *count_out = end - start;
    return attention->samples + start;
}

static kvt_status prefill_make_table(const prefill_files *files, uint32_t layers, kvt_prefill *out,
                                     char *message, size_t message_size)
{
    size_t count = 0;
    const prefill_sample *attention = prefill_pick_chunk(files, &count);
    if (count < 2) {
        if (message_size > 0) {
            snprintf(message, message_size,
                     "no prefill chunk is measured at two cache lengths and by every dense layer");
        }
        return KVT_E_PARSE;
    }
    uint32_t chunk = attention[0].group;
    double per_layer = 0.0, per_pass = 0.0;
    for (size_t i = 0; i < PREFILL_LM_HEAD; i++) {
        const prefill_series *series = &files->series[i];
        double seconds = prefill_interpolate(series->samples, series->count, chunk);
        per_layer += prefill_dense[i].per_layer * seconds;
        per_pass += prefill_dense[i].per_pass * seconds;
    }
    const prefill_series *lm_head = &files->series[PREFILL_LM_HEAD];
    per_pass += prefill_interpolate(lm_head->samples, lm_head->count, 1.0);

    uint32_t rows = PREFILL_TABLE_TOKENS / chunk + 1u;
    double *table = calloc(rows < 2 ? 2 : rows, sizeof *table);
    if (table == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 1; i < rows; i++) {
        double cached = (double)(i - 1u) * chunk;
        double attended = prefill_interpolate(attention, count, cached);
        table[i] = table[i - 1] + layers * (per_layer + attended) + per_pass;
    }
    out->table_seconds = table;
    out->table_count = rows;
    out->table_step = chunk;
    return KVT_OK;
}

kvt_status kvt_prefill_read_csv(const char *prefix, uint32_t layers, kvt_prefill *out,
                                char *message, size_t message_size)
{
    assert(prefix != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    if (message == NULL) message_size = 0;
    if (message_size > 0) message[0] = '\0';
    if (layers == 0 || layers > PREFILL_LAYERS_MAX) {
        if (message_size > 0) snprintf(message, message_size, "a model has 1 to 65535 layers");
        return KVT_E_ARGUMENT;
    }
    prefill_files *files = calloc(1, sizeof *files);
    if (files == NULL) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && i < sizeof prefill_kinds / sizeof prefill_kinds[0];
         i++) {
        status = prefill_read_file(files, &prefill_kinds[i], prefix, message, message_size);
    }
    if (status == KVT_OK) status = prefill_make_table(files, layers, out, message, message_size);
    for (size_t i = 0; i < PREFILL_SERIES; i++)
        free(files->series[i].samples);
    free(files);
    return status;
}

void kvt_prefill_free(kvt_prefill *prefill)
{
    if (prefill == NULL) return;
    free((void *)(uintptr_t)prefill->table_seconds);
    memset(prefill, 0, sizeof *prefill);
}

/* ---- a ladder of variants ---- */

/*
 * Sizes and losses are as published or measured elsewhere, each row with its source. A ladder from
 * a file is used until a calibration of the own model exists.
 */

enum {
    LADDER_VARIANT,
    LADDER_BITS,
    LADDER_LOSS,
    LADDER_UPPER,
    LADDER_ENCODE,
    LADDER_DECODE,
    LADDER_SOURCE,
    LADDER_FIELDS
};

static const char *const ladder_columns[LADDER_FIELDS] = {
    "variant", "bits", "loss", "loss_upper", "encode_bytes_per_s", "decode_bytes_per_s", "source"};

#define LADDER_BITS_MAX 17.0 /* raw elements have 16, and a record has a head */

/* A CSV field cannot hold commas, so blanks stand for them. */
static kvt_status ladder_variant(csv_input *input, kvt_variant *variant)
{
    const csv_field *field = &input->fields[LADDER_VARIANT];
    char name[128];
    if (field->length >= sizeof name) return csv_fail(input, "no variant has so long a name");
    memcpy(name, field->text, field->length);
    name[field->length] = '\0';
    for (char *c = name; *c != '\0'; c++)
        if (*c == ' ') *c = ',';
    if (kvt_variant_parse(name, variant) != KVT_OK) return csv_fail(input, "no such variant");
    return KVT_OK;
}

static kvt_status ladder_row(csv_input *input, kvt_codec_curve *curve)
{
    double bits;
    memset(curve, 0, sizeof *curve);
    kvt_status status = ladder_variant(input, &curve->variant);
    if (status == KVT_OK) status = csv_number(input, LADDER_BITS, LADDER_BITS_MAX, &bits);
    if (status == KVT_OK) status = csv_number(input, LADDER_LOSS, 1.0, &curve->loss);
    if (status == KVT_OK) status = csv_number(input, LADDER_UPPER, 1.0, &curve->loss_upper);
    if (status == KVT_OK)
        status = csv_number(input, LADDER_ENCODE, 1e18, &curve->encode_bytes_per_s);
    if (status == KVT_OK)
        status = csv_number(input, LADDER_DECODE, 1e18, &curve->decode_bytes_per_s);
    if (status != KVT_OK) return status;
    if (bits <= 0.0) return csv_fail(input, "bits must be above 0");
    if (curve->encode_bytes_per_s < 1.0 || curve->decode_bytes_per_s < 1.0) {
        return csv_fail(input, "encode and decode are at least 1 byte/s");
    }
    if (curve->loss_upper < curve->loss) return csv_fail(input, "loss_upper is below loss");
    if (input->fields[LADDER_SOURCE].length == 0) return csv_fail(input, "a row without a source");
    curve->stored_share = bits / 16.0;
    return KVT_OK;
}

static kvt_status ladder_header(csv_input *input)
{
    const kvt_status status = csv_next_header(input, ladder_columns, LADDER_FIELDS);
    return status == KVT_END ? csv_fail(input, "no header line") : status;
}

kvt_status kvt_ladder_read_csv(const char *path, kvt_codec_curve *curves, uint32_t capacity,
                               uint32_t *count_out, char *message, size_t message_size)
{
    assert(path != NULL && curves != NULL && count_out != NULL);
    csv_input input;
    uint32_t count = 0;
    *count_out = 0;
    kvt_status status = csv_open(&input, path, message, message_size);
    if (status != KVT_OK) return status;
    status = ladder_header(&input);
    while (status == KVT_OK) {
        status = csv_next(&input, ladder_columns, LADDER_FIELDS);
        if (status != KVT_OK) break;
        if (count == capacity) {
            status = csv_fail(&input, "more forms than a ladder can have");
            break;
        }
        status = ladder_row(&input, &curves[count]);
        if (status == KVT_OK && count > 0 &&
            curves[count].stored_share >= curves[count - 1].stored_share) {
            status = csv_fail(&input, "sizes must fall from row to row");
        }
        count += status == KVT_OK;
    }
    if (status == KVT_END) status = count > 0 ? KVT_OK : csv_fail(&input, "no form");
    csv_close(&input);
    if (status == KVT_OK) *count_out = count;
    return status;
}
