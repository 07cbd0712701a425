/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy.c - codec 5 from matrix to bytes and back: see entropy.h, and entropy_span.h for the
 * format. Re-entrant.
 */
#include "entropy.h"

#include "codecs.h"
#include "entropy_span.h"

#include <assert.h>
#include <string.h>

enum {
    ENTROPY_SCRATCH_ALIGN = 64,
    ENTROPY_STREAM_MIN =
        1 << 18,          /* bytes of a matrix from which on it is written past the caches */
    ENTROPY_PIECE = 4096, /* symbols decoded before they become values */
    /* More than 127.5 / 16 deviations from the mean: at most one element in 56, rounding counted.
     */
    ENTROPY_DISTANT_SHARE = 32
};

static uint64_t entropy_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool entropy_shape_sound(const entropy_shape *shape)
{
    bool known = shape->dtype == KVT_DTYPE_FP16 || shape->dtype == KVT_DTYPE_BF16 ||
                 shape->dtype == KVT_DTYPE_FP32;
    return known && shape->tokens > 0 && shape->row > 0 && shape->row <= ENTROPY_ROW_MAX;
}

static uint64_t entropy_row_bytes(const entropy_shape *shape)
{
    return (uint64_t)shape->row * kvt_dtype_bytes(shape->dtype);
}

/* Tokens of every span but the last. */
uint64_t entropy_span_tokens(const entropy_shape *shape)
{
    uint64_t groups = ENTROPY_SPAN_ELEMENTS / ((uint64_t)ENTROPY_GROUP_TOKENS * shape->row);
    return (groups > 0 ? groups : 1) * ENTROPY_GROUP_TOKENS;
}

uint64_t entropy_bound(const entropy_shape *shape)
{
    return shape->tokens * entropy_row_bytes(shape);
}

static void *entropy_place(uint8_t *scratch, uint64_t *at, uint64_t bytes)
{
    void *place = scratch == NULL ? NULL : scratch + *at;
    *at += codecs_align(bytes, ENTROPY_SCRATCH_ALIGN);
    return place;
}

/* Cuts the scratch, which may be NULL; returns the bytes needed. */
static uint64_t entropy_cut(const entropy_shape *shape, uint8_t *scratch, entropy_scratch *parts)
{
    const uint64_t span = entropy_min(shape->tokens, entropy_span_tokens(shape)) * shape->row;
    const uint64_t entries = shape->row > ENTROPY_GROUP_TOKENS ? shape->row : ENTROPY_GROUP_TOKENS;
    uint64_t at = 0;
    parts->distant_max = span / ENTROPY_DISTANT_SHARE + ENTROPY_RUN;
    parts->symbols = entropy_place(scratch, &at, span + RANS_STATES_MAX);
    parts->distant = entropy_place(scratch, &at, parts->distant_max * sizeof(int16_t));
    parts->meta = entropy_place(scratch, &at, ENTROPY_GROUP_HEAD_BYTES + 3 * entries);
    parts->entries.pilots = entropy_place(scratch, &at, entries * sizeof(float));
    parts->entries.sums = entropy_place(scratch, &at, entries * sizeof(float));
    parts->entries.squares = entropy_place(scratch, &at, entries * sizeof(float));
    parts->entries.means = entropy_place(scratch, &at, entries * sizeof(float));
    parts->entries.deviations = entropy_place(scratch, &at, entries * sizeof(float));
    parts->factors = entropy_place(scratch, &at, entries * sizeof(float));
    parts->offsets = entropy_place(scratch, &at, entries * sizeof(float));
    parts->encode_table = entropy_place(scratch, &at, sizeof *parts->encode_table);
    parts->decode_table = entropy_place(scratch, &at, sizeof *parts->decode_table);
    return at;
}

uint64_t entropy_scratch_bytes(const entropy_shape *shape)
{
    entropy_scratch parts;
    return entropy_cut(shape, NULL, &parts);
}

/* A step as a power of three times what is left. */
static uint32_t entropy_inner_step(uint32_t step, entropy_rounding *rounding)
{
    uint32_t divisor = 1;
    for (; step % 3 == 0; step /= 3) {
        divisor *= 3;
    }
    rounding->third = divisor > 1 ? 1.0f / (float)divisor : 0.0f;
    return step;
}

typedef struct entropy_quantiser {
    const entropy_kernels *kernels;
    const entropy_scratch *scratch;
    entropy_rounding rounding;
    uint32_t inner_step;
    uint64_t distant; /* codes outside the symbols so far */
} entropy_quantiser;

/* Turns a run of a row into symbols; false when there are too many distant codes. */
static bool entropy_quantise_run(entropy_quantiser *quantiser, const float *values,
                                 const float *means, const float *inverses, uint32_t count,
                                 uint8_t *symbols)
{
    int16_t codes[ENTROPY_RUN];
    if (!quantiser->kernels->quantise(values, means, inverses, count, &quantiser->rounding, codes,
                                      symbols)) {
        return true;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (symbols[i] != 0) continue;
        if (quantiser->distant == quantiser->scratch->distant_max) return false;
        quantiser->scratch->distant[quantiser->distant++] = codes[i];
    }
    return true;
}

/* The group's elements as symbols. Its deviations and means are in the entries. */
static bool entropy_quantise_group(entropy_quantiser *quantiser, const entropy_group *group,
                                   const uint8_t *source, uint8_t *symbols)
{
    float values[ENTROPY_RUN];
    float means[ENTROPY_RUN];
    float inverses[ENTROPY_RUN];
    const entropy_entries *entries = &quantiser->scratch->entries;
    float *factors = quantiser->scratch->factors;
    const uint32_t row = group->shape->row;
    const uint32_t element = kvt_dtype_bytes(group->shape->dtype);
    const float units = (float)ENTROPY_STEP_ONE / (float)quantiser->inner_step;
    for (uint32_t i = 0; i < entropy_group_entries(group); i++) {
        factors[i] = entries->deviations[i] > 0.0f ? units / entries->deviations[i] : 0.0f;
    }
    for (uint32_t token = 0; token < group->tokens; token++) {
        if (group->axis == ENTROPY_AXIS_TOKEN) {
            quantiser->kernels->spread(entries->means[token], means);
            quantiser->kernels->spread(factors[token], inverses);
        }
        for (uint32_t first = 0; first < row; first += ENTROPY_RUN) {
            const bool channels = group->axis == ENTROPY_AXIS_CHANNEL;
            uint32_t count = (uint32_t)entropy_min(row - first, ENTROPY_RUN);
            quantiser->kernels->load(group->shape->dtype, source, count, values);
            if (!entropy_quantise_run(quantiser, values, channels ? entries->means + first : means,
                                      channels ? factors + first : inverses, count, symbols)) {
                return false;
            }
            source += (uint64_t)count * element;
            symbols += count;
        }
    }
    return true;
}

/* Measures and quantises the groups of a span; target may be NULL. KVT_OK, KVT_RAW, KVT_E_SPACE. */
static kvt_status entropy_quantise_span(entropy_quantiser *quantiser, const entropy_shape *shape,
                                        entropy_axis axis, uint32_t tokens, const uint8_t *source,
                                        rans_target *target)
{
    const entropy_scratch *scratch = quantiser->scratch;
    uint8_t *symbols = scratch->symbols;
    quantiser->distant = 0;
    while (tokens > 0) {
        const uint32_t part = (uint32_t)entropy_min(tokens, ENTROPY_GROUP_TOKENS);
        const entropy_group group = {shape, axis, part};
        uint64_t bytes = entropy_group_measure(&group, quantiser->kernels, source,
                                               &scratch->entries, scratch->meta);
        if (bytes == 0) return KVT_RAW;
        if (target != NULL && !rans_append(target, scratch->meta, bytes)) return KVT_E_SPACE;
        if (!entropy_group_read(&group, scratch->meta, &scratch->entries)) return KVT_RAW;
        if (!entropy_quantise_group(quantiser, &group, source, symbols)) return KVT_RAW;
        symbols += (uint64_t)part * shape->row;
        source += part * entropy_row_bytes(shape);
        tokens -= part;
    }
    return KVT_OK;
}

static void entropy_quantiser_start(entropy_quantiser *quantiser, const entropy_settings *settings,
                                    const entropy_scratch *scratch)
{
    assert(settings->step >= ENTROPY_STEP_MIN && settings->step <= ENTROPY_STEP_MAX);
    assert(settings->axis <= ENTROPY_AXIS_TOKEN);
    quantiser->kernels = entropy_kernels_choose();
    quantiser->scratch = scratch;
    quantiser->inner_step = entropy_inner_step(settings->step, &quantiser->rounding);
    quantiser->distant = 0;
}

static bool entropy_append_head(rans_target *target, uint32_t flags, uint32_t step)
{
    const uint8_t head[ENTROPY_HEAD_BYTES] = {ENTROPY_VERSION, (uint8_t)flags, (uint8_t)step,
                                              (uint8_t)(step >> 8)};
    return rans_append(target, head, sizeof head);
}

/* Room for what is smaller than the matrix, and what to say when it is too little. */
static rans_target entropy_target_start(const entropy_shape *shape, void *target, uint64_t capacity)
{
    rans_target out = {target, entropy_min(capacity, entropy_bound(shape) - 1), 0};
    return out;
}

static kvt_status entropy_target_finish(const entropy_shape *shape, const rans_target *target,
                                        uint64_t capacity, kvt_status status, uint64_t *written_out)
{
    if (status == KVT_E_SPACE && capacity >= entropy_bound(shape) - 1) return KVT_RAW;
    if (status == KVT_OK) *written_out = target->used;
    return status;
}

/* Leaves room for a span's head. */
static bool entropy_span_start(rans_target *target, uint64_t *head_at)
{
    const uint8_t head[ENTROPY_SPAN_HEAD_BYTES] = {0};
    *head_at = target->used;
    return rans_append(target, head, sizeof head);
}

uint8_t entropy_flags(const entropy_settings *settings)
{
    return (uint8_t)((settings->axis == ENTROPY_AXIS_TOKEN ? ENTROPY_FLAG_TOKEN_AXIS : 0) |
                     (settings->centroids ? ENTROPY_FLAG_CENTROIDS : 0));
}

kvt_status entropy_encode(const entropy_settings *settings, const entropy_shape *shape,
                          const void *source, void *target, uint64_t capacity, void *scratch,
                          uint64_t *written_out)
{
    entropy_scratch parts;
    entropy_quantiser quantiser;
    *written_out = 0;
    if (!entropy_shape_sound(shape)) return KVT_RAW;
    entropy_cut(shape, scratch, &parts);
    entropy_quantiser_start(&quantiser, settings, &parts);
    rans_target out = entropy_target_start(shape, target, capacity);
    const uint8_t flags = entropy_flags(settings);
    kvt_status status = entropy_append_head(&out, flags, settings->step) ? KVT_OK : KVT_E_SPACE;
    for (uint64_t token = 0; status == KVT_OK && token < shape->tokens;) {
        const uint32_t part =
            (uint32_t)entropy_min(shape->tokens - token, entropy_span_tokens(shape));
        const uint8_t *rows = (const uint8_t *)source + token * entropy_row_bytes(shape);
        uint64_t head_at;
        status = entropy_span_start(&out, &head_at) ? KVT_OK : KVT_E_SPACE;
        if (status != KVT_OK) break;
        status = entropy_quantise_span(&quantiser, shape, (entropy_axis)settings->axis, part, rows,
                                       &out);
        if (status != KVT_OK) break;
        if (!entropy_span_code(&out, head_at, settings->table, &parts, (uint64_t)part * shape->row,
                               quantiser.distant)) {
            status = KVT_E_SPACE;
        }
        token += part;
    }
    return entropy_target_finish(shape, &out, capacity, status, written_out);
}

kvt_status entropy_count(const entropy_settings *settings, const entropy_shape *shape,
                         const void *source, void *scratch, uint32_t counts[256])
{
    entropy_scratch parts;
    entropy_quantiser quantiser;
    if (!entropy_shape_sound(shape)) return KVT_RAW;
    entropy_cut(shape, scratch, &parts);
    entropy_quantiser_start(&quantiser, settings, &parts);
    for (uint64_t token = 0; token < shape->tokens;) {
        const uint32_t part =
            (uint32_t)entropy_min(shape->tokens - token, entropy_span_tokens(shape));
        const uint8_t *rows = (const uint8_t *)source + token * entropy_row_bytes(shape);
        kvt_status status = entropy_quantise_span(&quantiser, shape, (entropy_axis)settings->axis,
                                                  part, rows, NULL);
        if (status != KVT_OK) return status;
        for (uint64_t i = 0; i < (uint64_t)part * shape->row; i++) {
            if (counts[parts.symbols[i]] < UINT32_MAX) counts[parts.symbols[i]]++;
        }
        token += part;
    }
    return KVT_OK;
}

/* The head of an encoding. */
typedef struct entropy_head {
    uint32_t flags;
    uint32_t step;
    entropy_axis axis;
} entropy_head;

/* Takes the head off the source. */
static bool entropy_take_head(rans_source *source, entropy_head *head)
{
    const uint8_t *stored = rans_take(source, ENTROPY_HEAD_BYTES);
    if (stored == NULL || stored[0] != ENTROPY_VERSION) return false;
    head->flags = stored[1];
    head->step = stored[2] | (uint32_t)stored[3] << 8;
    head->axis = head->flags & ENTROPY_FLAG_TOKEN_AXIS ? ENTROPY_AXIS_TOKEN : ENTROPY_AXIS_CHANNEL;
    if (head->flags >= 2 * ENTROPY_FLAG_CENTROIDS) return false;
    return head->step >= ENTROPY_STEP_MIN && head->step <= ENTROPY_STEP_MAX;
}

bool entropy_agrees(const entropy_settings *settings, const void *source, uint64_t bytes)
{
    entropy_head head;
    rans_source from = {source, bytes};
    return entropy_take_head(&from, &head) && head.step == settings->step &&
           head.axis == (entropy_axis)settings->axis &&
           settings->centroids == ((head.flags & ENTROPY_FLAG_CENTROIDS) != 0);
}

/* Both sides of a code, at least 1. */
static float entropy_pair(const rans_table *frequencies, unsigned code)
{
    uint32_t pair = (uint32_t)frequencies->of[128 + code] + frequencies->of[128 - code];
    return (float)(pair > 0 ? pair : 1);
}

/* Natural logarithm of a number of at least 1, within 0.007. */
static float entropy_logarithm(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    float whole = (float)(bits >> 23) - 127.0f;
    bits = (bits & 0x7fffffu) | 0x3f800000u;
    float part;
    memcpy(&part, &bits, sizeof part);
    float curve = 2.0f - part * (1.0f / 3.0f);
    curve = curve * part;
    curve = curve - 5.0f / 3.0f;
    float sum = whole + curve;
    return sum * 0.69314718f;
}

/*
 * Where the elements of a cell lie in the mean, from the frequencies of its neighbours: with a
 * density that falls by exp(-a) over a cell the centre of mass is coth(a / 2) / 2 - 1 / a inside
 * of the middle, which a / 12 / (1 + a^2 / 60) is within 2 % up to a = 4.
 */
static float entropy_shrink(const rans_table *frequencies, unsigned code)
{
    float inner = entropy_logarithm(entropy_pair(frequencies, code - 1));
    float outer = entropy_logarithm(entropy_pair(frequencies, code + 1));
    float fall = inner - outer;
    fall = fall * 0.5f;
    fall = fall > 0.0f ? fall : 0.0f;
    fall = fall < 4.0f ? fall : 4.0f;
    float below = fall * fall;
    below = below * 0.2f;
    below = below + 12.0f;
    return fall / below;
}

static void entropy_recon_start(const entropy_head *head, const entropy_shape *shape,
                                const rans_table *frequencies, entropy_recon *recon)
{
    recon->limit = 65504.0f;
    if (shape->dtype == KVT_DTYPE_BF16) recon->limit = 3.38953139e38f;
    if (shape->dtype == KVT_DTYPE_FP32) recon->limit = 3.40282347e38f;
    recon->shifted = (head->flags & ENTROPY_FLAG_CENTROIDS) != 0;
    recon->clamp = true;
    for (int code = -4; code < 4; code++) {
        unsigned size = (unsigned)(code < 0 ? -code : code);
        float shrink = 0.0f;
        if (recon->shifted && size > 0) shrink = entropy_shrink(frequencies, size < 3 ? size : 3);
        recon->centres[code & (ENTROPY_CENTRES - 1)] = code < 0 ? -shrink : shrink;
    }
}

typedef struct entropy_reader {
    const entropy_kernels *kernels;
    const entropy_scratch *scratch;
    entropy_stored_span span;
    entropy_recon recon;
    uint64_t held; /* symbols decoded ahead, at the start of scratch's symbols */
    uint64_t next_distant;
    const view_rows *target;
    bool large; /* the target is written past the caches where it is in place */
} entropy_reader;

/* Makes count symbols lie at the start of scratch's symbols. */
static bool entropy_read_symbols(entropy_reader *reader, uint64_t count)
{
    if (count <= reader->held) return true;
    uint64_t more = rans_stream_read(&reader->span.stream, count - reader->held,
                                     reader->scratch->symbols + reader->held);
    reader->held += more;
    return more != 0;
}

/* Gives the distant codes of a run their values. False when they run out. */
static bool entropy_patch_run(entropy_reader *reader, uint8_t dtype, const uint8_t *symbols,
                              const float *offsets, const float *scales, uint32_t count,
                              uint8_t *target)
{
    for (uint32_t i = 0; i < count; i++, target += kvt_dtype_bytes(dtype)) {
        if (symbols[i] != 0) continue;
        if (reader->next_distant == reader->span.distant_count) return false;
        float value = (float)(entropy_distant_at(&reader->span, reader->next_distant++) + 128);
        value = value * scales[i];
        value = value + offsets[i];
        value = value < reader->recon.limit ? value : reader->recon.limit;
        value = value > -reader->recon.limit ? value : -reader->recon.limit;
        entropy_store_element(dtype, value, target);
    }
    return true;
}

/* A part of a row: symbols to elements. stride 0: one offset and one scale for all of it. */
static bool entropy_restore_part(entropy_reader *reader, uint8_t dtype, const uint8_t *symbols,
                                 const float *offsets, const float *scales, uint32_t stride,
                                 uint64_t elements, uint8_t *target)
{
    for (uint64_t first = 0; first < elements; first += ENTROPY_RUN) {
        uint32_t count = (uint32_t)entropy_min(elements - first, ENTROPY_RUN);
        const float *run_offsets = offsets + first * stride;
        const float *run_scales = scales + first * stride;
        bool escapes = reader->kernels->restore(dtype, symbols + first, run_offsets, run_scales,
                                                count, &reader->recon, target);
        if (escapes && !entropy_patch_run(reader, dtype, symbols + first, run_offsets, run_scales,
                                          count, target)) {
            return false;
        }
        target += (uint64_t)count * kvt_dtype_bytes(dtype);
    }
    return true;
}

/* One row, which begins at byte `at` of the matrix. offsets and scales: the row's, or a run for all
 * of it. */
static bool entropy_restore_row(entropy_reader *reader, const entropy_shape *shape,
                                const uint8_t *symbols, const float *offsets, const float *scales,
                                uint32_t stride, uint64_t at)
{
    _Alignas(64) uint8_t tile[VIEW_TILE_BYTES];
    const uint32_t element = kvt_dtype_bytes(shape->dtype);
    const uint64_t piece = view_rows_piece(reader->target, sizeof tile / element);
    for (uint64_t first = 0; first < shape->row;) {
        const uint64_t count = entropy_min(shape->row - first, piece);
        uint8_t *room = view_rows_room(reader->target, at, count * element, tile);
        /* Past the caches a line that two rows share would be written in parts. */
        reader->recon.stream = reader->large && room != tile && shape->row * element % 64 == 0;
        if (!entropy_restore_part(reader, shape->dtype, symbols + first, offsets + first * stride,
                                  scales + first * stride, stride, count, room)) {
            return false;
        }
        view_rows_keep(reader->target, at, count * element, room, tile);
        at += count * element;
        first += count;
    }
    return true;
}

/* Scales and offsets of a group's entries. */
static void entropy_restore_start(entropy_reader *reader, const entropy_group *group, float step)
{
    const entropy_entries *entries = &reader->scratch->entries;
    float *scales = reader->scratch->factors;
    float reach = 0.0f;
    for (uint32_t i = 0; i < entropy_group_entries(group); i++) {
        float mean = entries->means[i];
        scales[i] = entries->deviations[i] * step;
        float middle = scales[i] * 128.0f;
        reader->scratch->offsets[i] = mean - middle;
        float far = scales[i] * 130.0f;
        far = far + (mean < 0.0f ? -mean : mean);
        reach = far > reach ? far : reach;
    }
    reader->recon.clamp = reach >= reader->recon.limit;
}

/* A group's rows, from byte `at` of the matrix on; its deviations and means are in the entries. */
static bool entropy_restore_group(entropy_reader *reader, const entropy_group *group, float step,
                                  uint64_t at)
{
    float run_offsets[ENTROPY_RUN];
    float run_scales[ENTROPY_RUN];
    const float *offsets = reader->scratch->offsets;
    const float *scales = reader->scratch->factors;
    const uint32_t row = group->shape->row;
    const uint64_t piece_tokens = row < ENTROPY_PIECE ? ENTROPY_PIECE / row : 1;
    entropy_restore_start(reader, group, step);
    for (uint64_t token = 0; token < group->tokens;) {
        const uint64_t piece = entropy_min(group->tokens - token, piece_tokens);
        const uint8_t *symbols = reader->scratch->symbols;
        if (!entropy_read_symbols(reader, piece * row)) return false;
        for (uint64_t i = 0; i < piece; i++, token++) {
            const bool channels = group->axis == ENTROPY_AXIS_CHANNEL;
            if (!channels) {
                reader->kernels->spread(offsets[token], run_offsets);
                reader->kernels->spread(scales[token], run_scales);
            }
            if (!entropy_restore_row(reader, group->shape, symbols + i * row,
                                     channels ? offsets : run_offsets,
                                     channels ? scales : run_scales, channels ? 1 : 0, at)) {
                return false;
            }
            at += entropy_row_bytes(group->shape);
        }
        reader->held -= piece * row;
        memmove(reader->scratch->symbols, reader->scratch->symbols + piece * row, reader->held);
    }
    return true;
}

static kvt_status entropy_restore_span(entropy_reader *reader, const entropy_head *head,
                                       const entropy_shape *shape, uint32_t tokens, uint64_t at)
{
    const float step = (float)head->step / (float)ENTROPY_STEP_ONE;
    const uint8_t *stored = reader->span.groups;
    const uint8_t *end = stored + reader->span.group_bytes;
    reader->held = 0;
    reader->next_distant = 0;
    entropy_recon_start(head, shape, &reader->span.stream.table, &reader->recon);
    while (tokens > 0) {
        const uint32_t part = (uint32_t)entropy_min(tokens, ENTROPY_GROUP_TOKENS);
        const entropy_group group = {shape, head->axis, part};
        if (!entropy_group_read(&group, stored, &reader->scratch->entries)) return KVT_E_CORRUPT;
        stored += entropy_group_bytes(&group, stored, (uint64_t)(end - stored));
        if (!entropy_restore_group(reader, &group, step, at)) return KVT_E_CORRUPT;
        at += part * entropy_row_bytes(shape);
        tokens -= part;
    }
    bool sound = rans_stream_finish(&reader->span.stream) &&
                 reader->next_distant == reader->span.distant_count;
    return sound ? KVT_OK : KVT_E_CORRUPT;
}

static kvt_status entropy_restore_spans(entropy_reader *reader, const entropy_head *head,
                                        const entropy_shape *shape, rans_source *source)
{
    for (uint64_t token = 0; token < shape->tokens;) {
        const uint32_t part =
            (uint32_t)entropy_min(shape->tokens - token, entropy_span_tokens(shape));
        kvt_status status =
            entropy_span_open(shape, head->axis, part, source, reader->scratch, &reader->span);
        if (status != KVT_OK) return status;
        status = entropy_restore_span(reader, head, shape, part, token * entropy_row_bytes(shape));
        if (status != KVT_OK) return status;
        token += part;
    }
    return source->left == 0 ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status entropy_decode(const entropy_shape *shape, const void *source, uint64_t bytes,
                          const view_rows *target, void *scratch)
{
    entropy_scratch parts;
    entropy_reader reader;
    entropy_head head;
    rans_source from = {source, bytes};
    if (!entropy_shape_sound(shape)) return KVT_E_CORRUPT;
    if (!entropy_take_head(&from, &head)) return KVT_E_CORRUPT;
    entropy_cut(shape, scratch, &parts);
    reader.kernels = entropy_kernels_choose();
    reader.scratch = &parts;
    reader.target = target;
    reader.large = entropy_bound(shape) >= ENTROPY_STREAM_MIN;
    kvt_status status = entropy_restore_spans(&reader, &head, shape, &from);
    entropy_fence();
    return status;
}

static int32_t entropy_third(int32_t code)
{
    return code < 0 ? -((1 - code) / 3) : (code + 1) / 3;
}

/* Turns the span's symbols, all decoded, into those of three times the step. */
static kvt_status entropy_third_symbols(const entropy_stored_span *span,
                                        const entropy_scratch *scratch, uint64_t count,
                                        uint64_t *distant_out)
{
    uint8_t third[256];
    uint64_t from = 0;
    uint64_t distant = 0;
    for (int32_t s = 0; s < 256; s++) {
        third[s] = (uint8_t)(entropy_third(s - 128) + 128);
    }
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *symbol = &scratch->symbols[i];
        if (*symbol != 0) {
            *symbol = third[*symbol];
            continue;
        }
        if (from == span->distant_count) return KVT_E_CORRUPT;
        int32_t code = entropy_third(entropy_distant_at(span, from++));
        if (code >= -127 && code <= 127) {
            *symbol = (uint8_t)(code + 128);
            continue;
        }
        if (distant == scratch->distant_max) return KVT_E_CORRUPT;
        scratch->distant[distant++] = (int16_t)code;
    }
    *distant_out = distant;
    return from == span->distant_count ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status entropy_derive_step3(const entropy_shape *shape, const void *source, uint64_t bytes,
                                void *target, uint64_t capacity, void *scratch,
                                uint64_t *written_out)
{
    entropy_scratch parts;
    entropy_stored_span span;
    entropy_head head;
    rans_source from = {source, bytes};
    *written_out = 0;
    if (!entropy_shape_sound(shape)) return KVT_E_CORRUPT;
    if (!entropy_take_head(&from, &head)) return KVT_E_CORRUPT;
    if (3 * head.step > ENTROPY_STEP_MAX) return KVT_E_CORRUPT;
    entropy_cut(shape, scratch, &parts);
    rans_target out = entropy_target_start(shape, target, capacity);
    kvt_status status = entropy_append_head(&out, head.flags, 3 * head.step) ? KVT_OK : KVT_E_SPACE;
    for (uint64_t token = 0; status == KVT_OK && token < shape->tokens;) {
        const uint32_t part =
            (uint32_t)entropy_min(shape->tokens - token, entropy_span_tokens(shape));
        const uint64_t count = (uint64_t)part * shape->row;
        uint64_t head_at;
        uint64_t distant = 0;
        status = entropy_span_open(shape, head.axis, part, &from, &parts, &span);
        if (status != KVT_OK) break;
        bool sound = rans_stream_read(&span.stream, count, parts.symbols) != 0 &&
                     rans_stream_finish(&span.stream);
        status = sound ? entropy_third_symbols(&span, &parts, count, &distant) : KVT_E_CORRUPT;
        if (status != KVT_OK) break;
        bool fits = entropy_span_start(&out, &head_at) &&
                    rans_append(&out, span.groups, span.group_bytes) &&
                    entropy_span_code(&out, head_at, NULL, &parts, count, distant);
        status = fits ? KVT_OK : KVT_E_SPACE;
        token += part;
    }
    if (status == KVT_OK && from.left != 0) return KVT_E_CORRUPT;
    return entropy_target_finish(shape, &out, capacity, status, written_out);
}
