/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_learn.c - a learner's life: entries in, sums, spreads and tables, the object out. Thread
 * rule: basis_learn.h.
 */
#include "estimator/quality/basis_learner.h"

#include "base/half.h"
#include "codecs/record.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEARN_STEP = TRANSFORM_STEP_ONE, /* of segments whose step does not matter */
    LEARN_SPREAD_LIMIT = 60 * TRANSFORM_SPREAD_STEPS,
    LEARN_PRIOR = 256, /* codes that a table has before any was counted */
    LEARN_ESCAPE_BITS = 16
};

/* Steps at which codes are counted: classes depend on spread over step alone, so that all of them
 * are met. */
static const uint16_t learn_steps[] = {4, 11, 32, 91, 256, 724};
enum { LEARN_STEPS = sizeof learn_steps / sizeof learn_steps[0] };

void basis_learner_close(basis_learner *learner)
{
    if (learner == NULL) return;
    free(learner->frequencies);
    free(learner->means);
    free(learner->forward);
    free(learner->inverse);
    free(learner->spreads);
    free(learner->scratch);
    free(learner->metric);
    free(learner->rows);
    free(learner->weights);
    free(learner->moments);
    free(learner->sums);
    free(learner->squares);
    free(learner->counts);
    free(learner);
}

static bool learner_allocate(basis_learner *l)
{
    const transform_shape *shape = &l->shape;
    const uint64_t matrices = transform_matrix_at(shape, l->spans);
    const uint64_t scratch = (transform_scratch_bytes(shape) + 63) / 64 * 64;
    l->frequencies = calloc(shape->rotary_dim / 2 + 1, sizeof *l->frequencies);
    l->means = calloc(l->elements, sizeof *l->means);
    l->forward = calloc(matrices, sizeof *l->forward);
    l->inverse = calloc(matrices, sizeof *l->inverse);
    l->spreads = calloc(l->elements * TRANSFORM_BANDS, sizeof *l->spreads);
    l->scratch = aligned_alloc(64, scratch);
    l->metric = calloc(l->elements * shape->head_dim, sizeof *l->metric);
    l->rows = calloc(shape->layers, sizeof *l->rows);
    l->weights = calloc((size_t)shape->layers * shape->sides, sizeof *l->weights);
    l->moments = calloc(matrices, sizeof *l->moments);
    l->sums = calloc(l->elements, sizeof *l->sums);
    l->squares = calloc(l->elements * TRANSFORM_BANDS, sizeof *l->squares);
    l->counts = calloc(TRANSFORM_CLASSES, sizeof *l->counts);
    return l->frequencies != NULL && l->means != NULL && l->forward != NULL && l->inverse != NULL &&
           l->spreads != NULL && l->scratch != NULL && l->metric != NULL && l->rows != NULL &&
           l->weights != NULL && l->moments != NULL && l->sums != NULL && l->squares != NULL &&
           l->counts != NULL;
}

kvt_status basis_learner_open(const transform_shape *shape, const double *frequencies,
                              basis_learner **learner_out)
{
    uint64_t bytes;
    transform_shape checked = *shape;
    *learner_out = NULL;
    checked.metric = TRANSFORM_METRIC_PLAIN;
    if (basis_bytes(&checked, &bytes) != KVT_OK) return KVT_E_ARGUMENT;
    basis_learner *learner = calloc(1, sizeof *learner);
    if (learner == NULL) return KVT_E_MEMORY;
    learner->shape = checked;
    learner->spans = transform_span_count(&checked);
    learner->width = transform_width_of(&checked, 0); /* a single span may be the last one */
    learner->elements = transform_elements(&checked);
    if (!learner_allocate(learner)) {
        basis_learner_close(learner);
        return KVT_E_MEMORY;
    }
    if (checked.rotary_dim > 0)
        memcpy(learner->frequencies, frequencies, checked.rotary_dim / 2 * sizeof *frequencies);
    learner->basis = (transform_basis){.shape = checked,
                                       .frequencies = learner->frequencies,
                                       .means = learner->means,
                                       .forward = learner->forward,
                                       .inverse = learner->inverse,
                                       .spreads = learner->spreads};
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++)
        learner->basis.tables[class].low_bits = learner_table_start(class, learner->counts[class]);
    *learner_out = learner;
    return KVT_OK;
}

/* ---- entries ---- */

/* A segment of an entry, without its sinks. */
typedef struct learn_part {
    transform_segment segment;
    const void *matrices[TRANSFORM_MATRICES_MAX];
    uint32_t spans; /* of the segment */
} learn_part;

static learn_part learn_part_of(const basis_learner *learner, uint32_t index,
                                const kvt_layout *layout, const void *source)
{
    const transform_shape *shape = &learner->shape;
    const uint64_t row = kvt_layout_matrix_bytes(layout) / layout->tokens;
    uint32_t layer;
    const uint32_t count = transform_segment_matrices(shape, index, &layer);
    const bool heads = shape->span == TRANSFORM_SPAN_HEAD;
    const uint32_t first = heads ? index : layer * shape->sides;
    learn_part part = {.segment = {.basis = &learner->basis,
                                   .index = index,
                                   .first_position = KVT_SINK_TOKENS,
                                   .tokens = layout->tokens - KVT_SINK_TOKENS,
                                   .step = LEARN_STEP,
                                   .dtype = layout->dtype},
                       .spans = heads ? shape->kv_heads : 1};
    for (uint32_t m = 0; m < count; m++) {
        const uint32_t all = first + m;
        part.matrices[m] =
            (const uint8_t *)source +
            kvt_layout_matrix_offset(layout, all / shape->sides, (kvt_side)(all % shape->sides)) +
            KVT_SINK_TOKENS * row;
    }
    return part;
}

static uint32_t learn_block_tokens(const transform_segment *segment, uint32_t block)
{
    const uint32_t left = segment->tokens - block * TRANSFORM_BLOCK_TOKENS;
    return left < TRANSFORM_BLOCK_TOKENS ? left : TRANSFORM_BLOCK_TOKENS;
}

/* The first span of a segment. */
static uint32_t learn_first_span(const basis_learner *learner, const transform_segment *segment)
{
    return learner->shape.span == TRANSFORM_SPAN_HEAD ? segment->index * learner->shape.kv_heads
                                                      : segment->index;
}

/* Adds a block of one span to the moments. room: [width][256]. */
static void learn_moments(basis_learner *learner, uint32_t span, const float *columns,
                          uint32_t tokens, double *room)
{
    const uint32_t width = transform_width_of(&learner->shape, span);
    double *sums = learner->sums + (uint64_t)span * learner->width;
    for (uint32_t e = 0; e < width; e++) {
        for (uint32_t t = 0; t < tokens; t++) {
            const double value = (double)columns[e * TRANSFORM_BLOCK_TOKENS + t];
            room[e * TRANSFORM_BLOCK_TOKENS + t] = value;
            sums[e] += value;
        }
    }
    cblas_dsyrk(CblasColMajor, CblasLower, CblasTrans, (int)width, (int)tokens, 1.0, room,
                TRANSFORM_BLOCK_TOKENS, 1.0,
                learner->moments + transform_matrix_at(&learner->shape, span), (int)width);
}

/* Adds the squares of a block's components. room: [width][256] and [width][width] floats. */
static void learn_squares(basis_learner *learner, uint32_t span, const float *columns,
                          uint32_t groups, float *room)
{
    const uint32_t lanes = groups * TRANSFORM_ALONG;
    const uint32_t width = transform_width_of(&learner->shape, span);
    const uint16_t *forward = learner->forward + transform_matrix_at(&learner->shape, span);
    double *squares = learner->squares + (uint64_t)span * learner->width * TRANSFORM_BANDS;
    float *components = room;
    float *wide = room + (size_t)width * TRANSFORM_BLOCK_TOKENS;
    for (size_t i = 0; i < (size_t)width * width; i++)
        wide[i] = half_bf16_to_float(forward[i]);
    cblas_sgemm(CblasColMajor, CblasNoTrans, CblasTrans, (int)lanes, (int)width, (int)width, 1.0f,
                columns, TRANSFORM_BLOCK_TOKENS, wide, (int)width, 0.0f, components,
                TRANSFORM_BLOCK_TOKENS);
    for (uint32_t i = 0; i < width * TRANSFORM_BANDS; i++) {
        const uint32_t band = i % TRANSFORM_BANDS;
        const float *row = components + i / TRANSFORM_BANDS * TRANSFORM_BLOCK_TOKENS;
        for (uint32_t k = transform_band_start(band) * groups;
             k < transform_band_start(band + 1) * groups; k++)
            squares[i] += (double)row[k] * (double)row[k];
    }
}

/* Covariances or squares of one segment. */
static kvt_status learn_columns(basis_learner *learner, basis_purpose purpose,
                                const learn_part *part, void *room)
{
    const uint32_t first = learn_first_span(learner, &part->segment);
    const uint32_t blocks =
        (part->segment.tokens + TRANSFORM_BLOCK_TOKENS - 1) / TRANSFORM_BLOCK_TOKENS;
    for (uint32_t block = 0; block < blocks; block++) {
        const uint32_t tokens = learn_block_tokens(&part->segment, block);
        for (uint32_t span = 0; span < part->spans; span++) {
            const float *columns;
            if (transform_span_columns(&part->segment, part->matrices, span, block,
                                       purpose == BASIS_LEARN, learner->scratch,
                                       &columns) != KVT_OK)
                return KVT_E_UNSUPPORTED;
            if (purpose == BASIS_LEARN)
                learn_moments(learner, first + span, columns, tokens, room);
            else
                learn_squares(learner, first + span, columns, transform_groups(tokens), room);
        }
    }
    return KVT_OK;
}

/* Counts a component's codes of one band, whose spread is given by its place. */
static void learn_count_unit(basis_learner *learner, uint64_t unit, uint32_t step,
                             const int16_t *codes, uint32_t groups)
{
    const uint32_t class = transform_class(learner->spreads[unit], step);
    const uint32_t band = (uint32_t)(unit % TRANSFORM_BANDS);
    for (uint32_t k = transform_band_start(band) * groups;
         k < transform_band_start(band + 1) * groups; k++) {
        const int high = codes[k] >> learner->basis.tables[class].low_bits;
        learner->counts[class][high >= -127 && high <= 127 ? high + 128 : 0]++;
    }
}

/* Counts the codes of one segment at each step that all of them fit. */
static void learn_count(basis_learner *learner, learn_part *part)
{
    const uint64_t first = (uint64_t)learn_first_span(learner, &part->segment) * learner->width;
    const uint32_t elements =
        transform_segment_matrices(&learner->shape, part->segment.index, NULL) *
        transform_row(&learner->shape);
    for (uint32_t i = 0; i < LEARN_STEPS; i++) {
        part->segment.step = learn_steps[i];
        for (uint32_t start = 0; start < part->segment.tokens; start += TRANSFORM_BLOCK_TOKENS) {
            const uint32_t block = start / TRANSFORM_BLOCK_TOKENS;
            const uint32_t tokens = learn_block_tokens(&part->segment, block);
            const int16_t *codes;
            if (transform_block_codes(&part->segment, part->matrices, block, learner->scratch,
                                      &codes) != KVT_OK)
                continue;
            for (uint32_t c = 0; c < elements * TRANSFORM_BANDS; c++)
                learn_count_unit(learner, first * TRANSFORM_BANDS + c, learn_steps[i],
                                 codes + (uint64_t)(c / TRANSFORM_BANDS) * TRANSFORM_BLOCK_TOKENS,
                                 transform_groups(tokens));
        }
    }
}

uint32_t learner_table_start(uint32_t class, uint64_t counts[256])
{
    /* The middle of a class, as transform_class cuts them. */
    const double deviation = exp2(((double)class - 8.5) / 2.0);
    uint32_t low_bits = 0;
    while (ldexp(deviation, -(int)low_bits) > 16.0)
        low_bits++;
    /* A two-sided geometric distribution has sqrt(2) / -ln(fall) as deviation. */
    const double fall = exp(-sqrt(2.0) / ldexp(deviation, -(int)low_bits));
    for (int code = -127; code <= 127; code++)
        counts[code + 128] =
            (uint64_t)(LEARN_PRIOR * (1.0 - fall) / (1.0 + fall) * pow(fall, abs(code)) + 0.5);
    counts[128]++;
    return low_bits;
}

/* Spreads of the squares, once. */
static void learn_spreads(basis_learner *learner)
{
    if (learner->spreads_made) return;
    for (uint64_t i = 0; i < learner->elements * TRANSFORM_BANDS; i++) {
        const uint32_t band = (uint32_t)(i % TRANSFORM_BANDS);
        const double count =
            (double)learner->spread * (transform_band_start(band + 1) - transform_band_start(band));
        const double variance = learner->squares[i] / count;
        double spread = variance > 0.0 ? 0.5 * TRANSFORM_SPREAD_STEPS * log2(variance)
                                       : (double)-LEARN_SPREAD_LIMIT;
        spread = fmin(fmax(spread, (double)-LEARN_SPREAD_LIMIT), (double)LEARN_SPREAD_LIMIT);
        learner->spreads[i] = (int16_t)lround(spread);
    }
    learner->spreads_made = true;
}

static bool learn_layout_fits(const basis_learner *learner, const kvt_layout *layout)
{
    uint64_t bytes;
    return kvt_layout_bytes(layout, &bytes) == KVT_OK && layout->layers == learner->shape.layers &&
           layout->kv_heads == learner->shape.kv_heads &&
           layout->head_dim == learner->shape.head_dim &&
           kvt_layout_sides(layout) == learner->shape.sides && layout->tokens > KVT_SINK_TOKENS &&
           (layout->dtype == KVT_DTYPE_FP16 || layout->dtype == KVT_DTYPE_BF16 ||
            layout->dtype == KVT_DTYPE_FP32);
}

static bool learn_in_time(const basis_learner *learner, basis_purpose purpose)
{
    if (purpose == BASIS_LEARN) return !learner->solved;
    if (purpose == BASIS_SPREAD) return learner->solved && !learner->spreads_made;
    return learner->spread > 0;
}

kvt_status basis_learner_entry(basis_learner *learner, basis_purpose purpose,
                               const kvt_layout *layout, const void *source)
{
    const size_t width = learner->width;
    if (!learn_layout_fits(learner, layout) || !learn_in_time(learner, purpose))
        return KVT_E_ARGUMENT;
    void *room =
        malloc(width * TRANSFORM_BLOCK_TOKENS * sizeof(double) + width * width * sizeof(float));
    if (room == NULL) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    if (purpose == BASIS_COUNT) learn_spreads(learner);
    for (uint32_t i = 0; status == KVT_OK && i < transform_segment_count(&learner->shape); i++) {
        learn_part part = learn_part_of(learner, i, layout, source);
        if (purpose == BASIS_COUNT)
            learn_count(learner, &part);
        else
            status = learn_columns(learner, purpose, &part, room);
    }
    free(room);
    if (purpose == BASIS_LEARN) learner->learnt += layout->tokens - KVT_SINK_TOKENS;
    if (purpose == BASIS_SPREAD)
        learner->spread += transform_groups(layout->tokens - KVT_SINK_TOKENS);
    if (purpose == BASIS_COUNT) learner->counted = true;
    return status;
}

/* Tables of the counts; shares matter, not sizes. */
static void learn_tables(basis_learner *learner)
{
    for (uint32_t class = 1; class < TRANSFORM_CLASSES; class ++) {
        uint32_t counts[256];
        uint64_t sum = 0;
        unsigned shift = 0;
        for (unsigned s = 0; s < 256; s++)
            sum += learner->counts[class][s];
        while (sum >> shift >= UINT32_MAX)
            shift++;
        for (unsigned s = 0; s < 256; s++)
            counts[s] = (uint32_t)(learner->counts[class][s] >> shift);
        rans_make_table(counts, LEARN_ESCAPE_BITS, &learner->basis.tables[class].symbols);
    }
}

kvt_status basis_learner_finish(basis_learner *learner, basis_origin *origin, uint8_t **object_out,
                                uint64_t *bytes_out)
{
    *object_out = NULL;
    if (!learner->counted) return KVT_E_ARGUMENT;
    origin->tokens = learner->learnt;
    learn_tables(learner);
    kvt_status status = basis_bytes(&learner->shape, bytes_out);
    if (status != KVT_OK) return status;
    uint8_t *object = aligned_alloc(64, *bytes_out);
    if (object == NULL) return KVT_E_MEMORY;
    status = basis_write(&learner->basis, origin, object, *bytes_out);
    if (status == KVT_OK)
        *object_out = object;
    else
        free(object);
    return status;
}
