/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group.c - see kivi_group.h: how a matrix is walked, and put together where its rows or
 * groups do not fill vectors. Re-entrant.
 */
#include "kivi_group_scalar.h"
#include "view_kernels.h"

#include <assert.h>

const group_kernels *group_kernels_in_use(void)
{
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512: return &group_kernels_avx512;
    case CODECS_CPU_AVX2: return &group_kernels_avx2;
    default: break;
    }
#endif
    return &group_kernels_scalar;
}

static uint64_t group_per_unit(const group_shape *shape)
{
    return (shape->unit + shape->group - 1) / shape->group;
}

uint64_t group_count_rows(const group_shape *shape, uint64_t rows)
{
    return rows * (shape->width / shape->unit) * group_per_unit(shape);
}

uint64_t group_count(const group_shape *shape)
{
    if (!shape->columns) return group_count_rows(shape, shape->tokens);
    return (shape->tokens + shape->group - 1) / shape->group * shape->width;
}

uint64_t group_plane_bytes(const group_shape *shape, uint32_t bits)
{
    return shape->tokens * shape->width / 8 * bits;
}

/* Rows that fill whole chunks: 1, 2, 4 or 8. */
static uint64_t group_fold(const group_shape *shape)
{
    const uint64_t filled = shape->width & (~shape->width + 1); /* the largest power of two in it */
    return filled < GROUP_CHUNK ? GROUP_CHUNK / filled : 1;
}

/* Ranges that are in scratch at a time: of groups, along columns once for each of the rows that are
 * put together. */
static uint64_t group_live(const group_shape *shape)
{
    return shape->columns ? shape->width * group_fold(shape)
                          : group_count_rows(shape, GROUP_OPEN_ROWS);
}

/* Rows whose ranges are spread over their elements together: so few that they stay in the first
 * cache, and so many that a vector is not read while its parts are being written. */
static uint64_t group_spread_rows(const group_shape *shape)
{
    if (shape->columns || group_is_flat(shape)) return 0;
    const uint64_t rows = GROUP_SPREAD / shape->width / GROUP_BATCH_ROWS * GROUP_BATCH_ROWS;
    if (rows == 0) return group_fold(shape);
    return rows < GROUP_OPEN_ROWS ? rows : (uint64_t)GROUP_OPEN_ROWS;
}

/* Codes of so many elements are in scratch at a time. */
static uint64_t group_codes(const group_shape *shape)
{
    const uint64_t rows = group_spread_rows(shape);
    return (rows < GROUP_BATCH_ROWS ? (uint64_t)GROUP_BATCH_ROWS : rows) * shape->width;
}

/* Rows of a tile: whole batches. */
static uint64_t group_tile_rows(const group_shape *shape)
{
    const uint64_t batch = GROUP_BATCH_ROWS * shape->width * kvt_dtype_bytes(shape->dtype);
    return batch < GROUP_TILE_BYTES ? GROUP_TILE_BYTES / batch * GROUP_BATCH_ROWS
                                    : (uint64_t)GROUP_BATCH_ROWS;
}

uint64_t group_scratch(const group_shape *shape)
{
    return 3 * codecs_align(group_live(shape) * sizeof(float), 64) +
           3 * codecs_align(group_spread_rows(shape) * shape->width * sizeof(float), 64) +
           codecs_align(group_codes(shape), 64) +
           codecs_align(group_tile_rows(shape) * shape->width * kvt_dtype_bytes(shape->dtype), 64);
}

typedef struct group_room {
    group_ranges ranges;
    group_ranges spread; /* of elements */
    uint8_t *codes;
    uint8_t *tile;
} group_room;

/* `count` ranges at a place that moves behind them. */
static group_ranges group_ranges_at(uint8_t **at, uint64_t count)
{
    const uint64_t floats = codecs_align(count * sizeof(float), 64);
    float *first = (float *)(void *)*at;
    *at += 3 * floats;
    return (group_ranges){first, first + floats / sizeof(float),
                          first + 2 * floats / sizeof(float)};
}

static group_room group_room_of(const group_shape *shape, void *scratch)
{
    uint8_t *at = scratch;
    group_room room;
    room.ranges = group_ranges_at(&at, group_live(shape));
    room.spread = group_ranges_at(&at, group_spread_rows(shape) * shape->width);
    room.codes = at;
    room.tile = room.codes + codecs_align(group_codes(shape), 64);
    return room;
}

/* Rows of a matrix as the kernels see them. */
typedef struct group_piece {
    group_shape shape;
    group_ranges ranges;
    uint64_t rows;  /* of this shape */
    uint64_t taken; /* of the matrix */
} group_piece;

/* Writes the range of each group along `rows` rows once for every element. */
static void group_spread(const group_shape *shape, const float *ranges, uint64_t rows,
                         float *restrict target)
{
    uint64_t left = shape->unit;
    for (const float *end = target + rows * shape->width; target < end;) {
        const uint64_t count = left < shape->group ? left : shape->group;
        const float range = *ranges++;
        for (uint64_t i = 0; i < count; i += 8) {
            for (unsigned k = 0; k < 8; k++) {
                *target++ = range;
            }
        }
        left = left == count ? shape->unit : left - count;
    }
}

/* Ranges of columns, once more for each of the rows that are put together. */
static void group_repeat(const group_shape *shape, float *ranges)
{
    const uint64_t width = shape->width;
    for (uint64_t row = 1; shape->columns && row < group_fold(shape); row++) {
        memcpy(ranges + row * width, ranges, width * sizeof *ranges);
    }
}

/*
 * The next of `rows` rows, whose first groups are those of `ranges`. Kernels that want 64 elements
 * at a time see as many rows as fill chunks as one or, where groups along the rows end inside of
 * vectors, one row of which each element is a column. Rows at the end that fill none stay as they
 * are.
 */
static group_piece group_piece_of(const group_shape *shape, const group_kernels *kernels,
                                  const group_room *room, const group_ranges *ranges, bool coding,
                                  uint64_t rows)
{
    const uint64_t fold = group_fold(shape);
    group_piece piece = {*shape, *ranges, rows, rows};
    if (!kernels->wide || rows < fold) return piece;
    piece.rows = piece.taken -= rows % fold;
    if (shape->columns || group_is_flat(shape)) {
        piece.shape.width *= fold;
        piece.rows /= fold;
        if (shape->columns) piece.shape.group /= (uint32_t)fold; /* rows that are asked for ahead */
    } else {
        const uint64_t most = group_spread_rows(shape);
        if (piece.taken > most) piece.taken = most;
        piece.shape.columns = true;
        piece.shape.width *= piece.taken;
        piece.shape.group /= GROUP_BATCH_ROWS;
        piece.ranges = room->spread;
        piece.rows = 1;
        group_spread(shape, ranges->minimum, piece.taken, piece.ranges.minimum);
        group_spread(shape, ranges->scale, piece.taken, piece.ranges.scale);
        if (coding) group_spread(shape, ranges->inverse, piece.taken, piece.ranges.inverse);
    }
    return piece;
}

/* The ranges of the groups from row `row` on. */
static group_ranges group_ranges_from(const group_shape *shape, const group_ranges *ranges,
                                      uint64_t row)
{
    const uint64_t group = shape->columns ? 0 : group_count_rows(shape, row);
    return (group_ranges){ranges->minimum + group, ranges->scale + group, ranges->inverse + group};
}

/* Where an encoder is. */
typedef struct group_encoder {
    const group_shape *shape;
    const group_coding *coding;
    const group_kernels *kernels;
    const uint8_t *source;
    uint16_t *minima; /* of the next groups */
    uint16_t *scales;
    const group_plane *planes;
    uint32_t plane_count;
    uint32_t *histogram;
    uint64_t sample_step; /* one batch in so many is sampled */
    group_room room;
} group_encoder;

/* Counts the fine codes of some chunks, and leaves the codes that were asked for. */
static void group_sample_codes(const group_encoder *encoder, uint64_t count)
{
    uint32_t counts[4][256]; /* neighbours are often equal: they are counted apart */
    uint8_t *codes = encoder->room.codes;
    const uint64_t part = GROUP_SAMPLE / GROUP_SAMPLE_BATCHES;
    const uint64_t step = (count / part > 1 ? count / part : 1) * GROUP_CHUNK;
    memset(counts, 0, sizeof counts);
    for (uint64_t chunk = 0; chunk < count; chunk += step) {
        uint64_t end = count - chunk < GROUP_CHUNK ? count : chunk + GROUP_CHUNK;
        for (uint64_t i = chunk; i < end; i += 8) {
            uint64_t eight; /* in whatever order */
            memcpy(&eight, codes + i, sizeof eight);
            for (unsigned k = 0; k < 8; k++) {
                counts[k % 4][eight >> 8 * k & 0xff]++;
            }
        }
    }
    for (unsigned i = 0; i < 256; i++) {
        encoder->histogram[i] += counts[0][i] + counts[1][i] + counts[2][i] + counts[3][i];
    }
    if (encoder->coding->fine) return;
    for (uint64_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)(codes[i] >> 4);
    }
}

static void group_encode_batch(const group_encoder *encoder, uint64_t first, uint64_t rows)
{
    const group_shape *shape = encoder->shape;
    const uint64_t count = rows * shape->width;
    const uint64_t row_bytes = shape->width * kvt_dtype_bytes(shape->dtype);
    const bool sampled =
        encoder->histogram != NULL && first / GROUP_BATCH_ROWS % encoder->sample_step == 0;
    group_coding coding = *encoder->coding;
    if (sampled) coding.fine = true;
    for (uint64_t row = 0, taken; row < rows; row += taken) {
        const group_ranges ranges = group_ranges_from(shape, &encoder->room.ranges, row);
        const group_piece piece =
            group_piece_of(shape, encoder->kernels, &encoder->room, &ranges, true, rows - row);
        encoder->kernels->code(&piece.shape, &coding, &piece.ranges,
                               encoder->source + (first + row) * row_bytes, piece.rows,
                               encoder->room.codes + row * shape->width);
        taken = piece.taken;
    }
    if (sampled) group_sample_codes(encoder, count);
    encoder->kernels->pack(encoder->room.codes, count, encoder->planes, encoder->plane_count,
                           first * shape->width);
}

/* Ranges of the groups of these rows: a run of columns, or a batch along the rows. */
static bool group_encode_ranges(group_encoder *encoder, uint64_t first, uint64_t rows)
{
    const group_shape *shape = encoder->shape;
    const group_kernels *kernels = encoder->kernels;
    const group_ranges *ranges = &encoder->room.ranges;
    const uint8_t *source = encoder->source + first * shape->width * kvt_dtype_bytes(shape->dtype);
    const uint64_t count = shape->columns ? shape->width : group_count_rows(shape, rows);
    bool finite = shape->columns
                      ? kernels->range_columns(shape, source, rows, ranges->minimum, ranges->scale)
                      : kernels->range_rows(shape, source, rows, ranges->minimum, ranges->scale);
    if (!finite) return false;
    if (encoder->planes == NULL) {
        /* The room of the codes is free, and larger than the metadata of the groups in it. */
        uint16_t *unused = (uint16_t *)(void *)encoder->room.codes;
        return kernels->finish(ranges, count, encoder->coding->max_code, unused, unused + count);
    }
    bool fits =
        kernels->finish(ranges, count, encoder->coding->max_code, encoder->minima, encoder->scales);
    encoder->minima += count;
    encoder->scales += count;
    group_repeat(shape, ranges->minimum);
    group_repeat(shape, ranges->scale);
    group_repeat(shape, ranges->inverse);
    return fits;
}

uint64_t group_sample_step(const group_shape *shape)
{
    const uint64_t batches = (shape->tokens + GROUP_BATCH_ROWS - 1) / GROUP_BATCH_ROWS;
    const uint64_t part = GROUP_SAMPLE / GROUP_SAMPLE_BATCHES; /* what a batch gives at most */
    const uint64_t batch_elements = GROUP_BATCH_ROWS * shape->width;
    const uint64_t given = batch_elements < part ? batch_elements : part;
    const uint64_t wanted = (GROUP_SAMPLE + given - 1) / given;
    return batches > wanted ? batches / wanted : 1;
}

kvt_status group_encode(const group_shape *shape, const group_coding *coding, const void *source,
                        uint16_t *minima, uint16_t *scales, const group_plane *planes,
                        uint32_t plane_count, uint32_t histogram[256], void *scratch)
{
    assert(shape->group >= 32 && shape->group <= 128 && (shape->group & (shape->group - 1)) == 0);
    assert(plane_count <= KVT_PLANES_MAX);
    group_encoder encoder = {shape,
                             coding,
                             group_kernels_in_use(),
                             source,
                             minima,
                             scales,
                             planes,
                             plane_count,
                             histogram,
                             group_sample_step(shape),
                             group_room_of(shape, scratch)};
    const uint64_t step = shape->columns ? shape->group : GROUP_BATCH_ROWS;
    if (histogram != NULL) memset(histogram, 0, 256 * sizeof histogram[0]);
    for (uint64_t run = 0; run < shape->tokens; run += step) {
        uint64_t rows = shape->tokens - run < step ? shape->tokens - run : step;
        if (!group_encode_ranges(&encoder, run, rows)) return KVT_RAW;
        for (uint64_t row = 0; planes != NULL && row < rows; row += GROUP_BATCH_ROWS) {
            uint64_t batch = rows - row < GROUP_BATCH_ROWS ? rows - row : GROUP_BATCH_ROWS;
            group_encode_batch(&encoder, run + row, batch);
        }
    }
    return KVT_OK;
}

/* Asks for the stored bytes of `count` elements, while those before are being written. An address
 * past the end does no harm. */
static void group_fetch_ahead(const group_plane *planes, uint32_t plane_count, uint64_t offset,
                              uint64_t count)
{
    for (uint32_t p = 0; p < plane_count; p++) {
        const uint8_t *at = planes[p].data + offset / 8 * planes[p].bits;
        for (uint64_t byte = 0; byte < count / 8 * planes[p].bits; byte += 64) {
            __builtin_prefetch(at + byte);
        }
    }
}

/* Where a decoder is. */
typedef struct group_decoder {
    const group_shape *shape;
    group_levels *levels;
    const group_kernels *kernels;
    const group_plane *planes;
    uint32_t plane_count;
    const view_rows *target;
    uint64_t row_bytes;
    uint64_t part; /* rows that are decoded together, at most */
    group_room room;
} group_decoder;

/* Rows as the kernels see them, from element `offset` of the matrix on. */
static void group_decode_piece(const group_decoder *decoder, const group_piece *piece,
                               uint64_t offset, uint8_t *out)
{
    const group_shape *shape = &piece->shape;
    const group_kernels *kernels = decoder->kernels;
    const uint32_t count = decoder->plane_count;
    const uint64_t row_bytes = shape->width * kvt_dtype_bytes(shape->dtype);
    const group_target target = {out, row_bytes, row_bytes, 0};
    if (kernels->decode != NULL &&
        kernels->decode(shape, decoder->levels, &piece->ranges, decoder->planes, count, offset,
                        piece->rows, &target)) {
        return;
    }
    const uint64_t step = group_codes(decoder->shape) / shape->width;
    for (uint64_t row = 0; row < piece->rows; row += step) {
        const uint64_t rows = piece->rows - row < step ? piece->rows - row : step;
        const uint64_t elements = rows * shape->width;
        const uint64_t at = offset + row * shape->width;
        const group_ranges ranges = group_ranges_from(shape, &piece->ranges, row);
        kernels->unpack(decoder->planes, count, at, elements, decoder->room.codes);
        group_fetch_ahead(decoder->planes, count, at + elements, elements);
        kernels->value(shape, decoder->levels, &ranges, decoder->room.codes, rows,
                       out + row * row_bytes);
    }
}

/* Rows from row `first` of the matrix on, whose first groups are those of the ranges. */
static void group_decode_rows(const group_decoder *decoder, const group_ranges *ranges,
                              uint64_t first, uint64_t rows, uint8_t *out)
{
    const group_shape *shape = decoder->shape;
    for (uint64_t row = 0, taken; row < rows; row += taken) {
        const group_ranges own = group_ranges_from(shape, ranges, row);
        const group_piece piece =
            group_piece_of(shape, decoder->kernels, &decoder->room, &own, false, rows - row);
        group_decode_piece(decoder, &piece, (first + row) * shape->width,
                           out + row * decoder->row_bytes);
        taken = piece.taken;
    }
}

/* Decodes rows from `first` on past the caches to where the view has them apart, up to the end of a
 * block. Returns how many; 0: they have to go by the tile, which costs a pass more. */
static uint64_t group_decode_apart(const group_decoder *decoder, const group_ranges *ranges,
                                   uint64_t first, uint64_t rows)
{
    const view_rows *view = decoder->target;
    if (view->packed || !view->stream || decoder->kernels->decode == NULL) return 0;
    const view_rows_place place = view_rows_place_of(view, first);
    const group_target target = {place.row, view->token_stride, view->head_bytes,
                                 view->heads == 1 ? 0 : view->head_stride};
    assert(view->row_bytes == decoder->row_bytes);
    if (((uintptr_t)target.start | target.row_stride | target.head_stride) % VIEW_LINE != 0)
        return 0;
    if (rows > place.left) rows = place.left;
    decoder->levels->stream = true;
    return decoder->kernels->decode(decoder->shape, decoder->levels, ranges, decoder->planes,
                                    decoder->plane_count, first * decoder->shape->width, rows,
                                    &target)
               ? rows
               : 0;
}

/* The rows of a run of columns, or of as many as are opened together. Their ranges are open. */
static void group_decode_run(const group_decoder *decoder, uint64_t run, uint64_t rows)
{
    const group_shape *shape = decoder->shape;
    const group_room *room = &decoder->room;
    const bool large =
        decoder->target->stream || shape->tokens * decoder->row_bytes >= GROUP_STREAM_BYTES;
    for (uint64_t row = 0, part; row < rows; row += part) {
        const group_ranges ranges = group_ranges_from(shape, &room->ranges, row);
        part = group_decode_apart(decoder, &ranges, run + row, rows - row);
        if (part != 0) continue;
        part = rows - row < decoder->part ? rows - row : decoder->part;
        const uint64_t at = (run + row) * decoder->row_bytes;
        const uint64_t bytes = part * decoder->row_bytes;
        uint8_t *out = view_rows_room(decoder->target, at, bytes, room->tile);
        decoder->levels->stream = large && out != room->tile;
        group_decode_rows(decoder, &ranges, run + row, part, out);
        view_rows_keep(decoder->target, at, bytes, out, room->tile);
    }
}

kvt_status group_decode(const group_shape *shape, group_levels *levels, const uint16_t *minima,
                        const uint16_t *scales, const group_plane *planes, uint32_t plane_count,
                        const view_rows *target, void *scratch)
{
    const uint64_t step = shape->columns ? shape->group : GROUP_OPEN_ROWS;
    const group_decoder decoder = {
        .shape = shape,
        .levels = levels,
        .kernels = group_kernels_in_use(),
        .planes = planes,
        .plane_count = plane_count,
        .target = target,
        .row_bytes = shape->width * kvt_dtype_bytes(shape->dtype),
        .part = view_rows_piece(target, group_tile_rows(shape)),
        .room = group_room_of(shape, scratch),
    };
    for (int i = 0; levels->kind == GROUP_LEVEL_FINE6 && i < 64; i++) {
        levels->fine6[0][i] = (uint8_t)group_fine6_level(i);
        levels->fine6[1][i] = (uint8_t)(group_fine6_level(i) >> 8);
    }
    for (uint64_t run = 0; run < shape->tokens; run += step) {
        uint64_t rows = shape->tokens - run < step ? shape->tokens - run : step;
        uint64_t count = shape->columns ? shape->width : group_count_rows(shape, rows);
        if (!decoder.kernels->open(minima, scales, count, &decoder.room.ranges)) {
            /* The runs before were streamed, and the caller gives the target to somebody else. */
            decoder.kernels->close();
            return KVT_E_CORRUPT;
        }
        minima += count;
        scales += count;
        group_repeat(shape, decoder.room.ranges.minimum);
        group_repeat(shape, decoder.room.ranges.scale);
        group_decode_run(&decoder, run, rows);
    }
    decoder.kernels->close();
    return KVT_OK;
}

/* ---- a GPU ---- */

kvt_status group_plan_job(const group_shape *shape, uint64_t minima, const kvt_part *parts,
                          uint32_t plane_count, const kernel_target *target,
                          uint32_t transfer_bytes, uint8_t dtype, kernel_work *work_out)
{
    const uint64_t tokens = (shape->tokens + KERNEL_GROUP_ROWS - 1) / KERNEL_GROUP_ROWS;
    const uint64_t pieces = tokens * (shape->width / 8);
    /* A thread counts pieces in 32 bits. */
    if (shape->width > UINT32_MAX / 8 || pieces > UINT32_MAX - KERNEL_THREADS)
        return KVT_E_UNSUPPORTED;
    kernel_group_job *job = &work_out->job.group;
    *job = (kernel_group_job){
        .tokens = (uint32_t)shape->tokens,
        .width = (uint32_t)shape->width,
        .unit = (uint32_t)shape->unit,
        .group = shape->group,
        .row_groups = (uint32_t)(shape->columns ? shape->width : group_count_rows(shape, 1)),
        .transfer_bytes = transfer_bytes,
        .columns = shape->columns,
        .dtype = dtype,
        .planes = (uint8_t)plane_count,
        .minima = minima,
        .scales = minima + group_count(shape) * sizeof(uint16_t),
        .target = *target};
    for (uint32_t p = 0; p < plane_count; p++)
        job->codes[p] = (uint64_t)(uintptr_t)parts[1 + p].data;
    work_out->blocks = (pieces + KERNEL_THREADS - 1) / KERNEL_THREADS;
    return KVT_OK;
}

kvt_status group_plan_code(const group_shape *shape, uint32_t bits, uint64_t minima,
                           const kvt_part *parts, uint32_t plane_count, const kernel_target *source,
                           uint32_t transfer_bytes, uint8_t dtype, kernel_work works_out[2])
{
    const uint64_t elements = shape->tokens * shape->width, eights = shape->width / 8;
    const uint64_t groups = group_count_rows(shape, 1);
    const uint64_t runs = (shape->tokens + shape->group - 1) / shape->group;
    const uint64_t items = shape->columns ? runs * eights : shape->tokens * groups;
    _Static_assert((int)KERNEL_SAMPLE == GROUP_SAMPLE / GROUP_SAMPLE_BATCHES, "of one batch");
    /* Threads count elements in 32 bits. */
    if (shape->width > INT32_MAX / 8 || elements > UINT32_MAX - GROUP_CHUNK)
        return KVT_E_UNSUPPORTED;
    kernel_code_job job = {.tokens = (uint32_t)shape->tokens,
                           .width = (uint32_t)shape->width,
                           .unit = (uint32_t)shape->unit,
                           .group = shape->group,
                           .row_groups = (uint32_t)(shape->columns ? shape->width : groups),
                           .transfer_bytes = transfer_bytes,
                           .columns = shape->columns,
                           .dtype = dtype,
                           .planes = (uint8_t)plane_count,
                           .bits = (uint8_t)bits,
                           .sample_step = (uint32_t)group_sample_step(shape),
                           .minima = minima,
                           .scales = minima + group_count(shape) * sizeof(uint16_t),
                           .source = *source};
    for (uint32_t p = 0; p < plane_count; p++)
        job.codes[p] = (uint64_t)(uintptr_t)parts[1 + p].data;
    const uint64_t chunks = (elements + GROUP_CHUNK - 1) / GROUP_CHUNK;
    for (uint32_t i = 0; i < 2; i++) {
        memset(&works_out[i], 0, sizeof works_out[i]);
        works_out[i].job.code = job;
        works_out[i].blocks = ((i == 0 ? items : chunks) + KERNEL_THREADS - 1) / KERNEL_THREADS;
    }
    works_out[0].kernel = KERNEL_RANGES;
    return KVT_OK;
}
