/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planes.c - codec 4: the nested quantizer. Every element is coded once, to 8 bits: 4 that are its
 * KIVI-4 code and 4 that cut the cell of that code (kivi_group.h). The bits lie in five planes,
 * most significant first, of which any prefix decodes:
 *
 *   planes kept   1      2      3      4      5
 *   bits          2      3      4      6      8
 *   plane holds   7..6   5      4      3..2   1..0   of the fine code
 *   level         table  table  KIVI-4 middle of what is left of the cell
 *
 * With 2 and 3 bits a code stands for the mean of the elements that have it: the metadata part
 * holds both tables, whatever is kept, so that dropping planes changes nothing else.
 *
 * Parts: metadata = 4 and 8 centroids (fp16, in steps of the scale), 8 zero bytes, all minima, all
 * scales (fp16); then one data part per plane. Re-entrant.
 */
#include "base/half.h"
#include "codecs/kernels/kivi_group.h"

enum {
    PLANES_TABLE_BYTES = 32, /* 4 + 8 centroids, then zeros */
    PLANES_TABLE_USED = 24
};

#define PLANES_BIAS_FROM (1.0f / 6.0f)

static const uint8_t planes_bits[KVT_PLANES_MAX] = {2, 1, 1, 2, 2};
static const uint8_t planes_shift[KVT_PLANES_MAX] = {6, 5, 4, 2, 0};
static const uint8_t planes_total[KVT_PLANES_MAX] = {2, 3, 4, 6, 8};

static uint32_t planes_rate_planes(kvt_variant variant, kvt_side side)
{
    return codecs_rate_field(variant, side == KVT_SIDE_K ? 0 : 3, 3);
}

static kvt_status planes_check(kvt_variant variant, const kvt_layout *layout)
{
    const uint32_t k = planes_rate_planes(variant, KVT_SIDE_K);
    const uint32_t v = planes_rate_planes(variant, KVT_SIDE_V);
    const uint32_t log_group = codecs_rate_field(variant, 6, 4);
    const uint32_t both = CODECS_PLANES_V_CHANNEL | CODECS_PLANES_V_HEAD;
    if (variant.mode != 1 || variant.rate >> 13 != 0) return KVT_E_UNSUPPORTED;
    if (k < 1 || k > KVT_PLANES_MAX || v < 1 || v > KVT_PLANES_MAX) return KVT_E_UNSUPPORTED;
    if (layout->dtype == KVT_DTYPE_FP8 && (k > CODECS_FP8_PLANES_MAX || v > CODECS_FP8_PLANES_MAX))
        return KVT_E_UNSUPPORTED;
    if (log_group < 5 || log_group > 7) return KVT_E_UNSUPPORTED;
    if ((variant.rate & both) == both) return KVT_E_UNSUPPORTED;
    return group_layout_fits(layout) ? KVT_OK : KVT_E_UNSUPPORTED;
}

static uint32_t planes_planes(kvt_variant variant, kvt_side side, int level)
{
    int planes = (int)planes_rate_planes(variant, side) + level;
    if (planes < 1) return 1;
    return planes > KVT_PLANES_MAX ? KVT_PLANES_MAX : (uint32_t)planes;
}

static kvt_side planes_first_side(kvt_variant variant)
{
    return variant.rate & CODECS_PLANES_V_FIRST ? KVT_SIDE_V : KVT_SIDE_K;
}

static bool planes_drops_to(kvt_variant present, kvt_variant fewer)
{
    const uint32_t kept = (1u << 6) - 1u;
    return (present.rate & ~kept) == (fewer.rate & ~kept) &&
           planes_rate_planes(fewer, KVT_SIDE_K) <= planes_rate_planes(present, KVT_SIDE_K) &&
           planes_rate_planes(fewer, KVT_SIDE_V) <= planes_rate_planes(present, KVT_SIDE_V);
}

static group_shape planes_shape(kvt_variant variant, const kvt_matrix *matrix)
{
    const uint64_t width = (uint64_t)matrix->kv_heads * matrix->head_dim;
    const bool v_channel = (variant.rate & CODECS_PLANES_V_CHANNEL) != 0;
    const bool v_head = (variant.rate & CODECS_PLANES_V_HEAD) != 0;
    const bool columns = matrix->side == KVT_SIDE_K || v_channel;
    const uint64_t unit = v_head ? matrix->head_dim : width;
    const uint32_t group = 1u << codecs_rate_field(variant, 6, 4);
    group_shape shape = {.tokens = matrix->tokens,
                         .width = width,
                         .unit = unit,
                         .group = columns ? group : group_in_unit(unit, group),
                         .dtype = matrix->dtype,
                         .columns = columns};
    return shape;
}

static uint64_t planes_metadata_bytes(const group_shape *shape)
{
    return PLANES_TABLE_BYTES + 4 * group_count(shape);
}

static uint32_t planes_parts(kvt_variant variant, const kvt_matrix *matrix,
                             kvt_part parts[KVT_PARTS_MAX])
{
    const group_shape shape = planes_shape(variant, matrix);
    parts[0] = (kvt_part){.kind = KVT_PART_METADATA, .bytes = planes_metadata_bytes(&shape)};
    for (uint32_t p = 0; p < matrix->planes; p++) {
        parts[1 + p] = (kvt_part){.kind = KVT_PART_DATA,
                                  .plane = (uint16_t)p,
                                  .bytes = group_plane_bytes(&shape, planes_bits[p])};
    }
    return 1 + matrix->planes;
}

static uint64_t planes_scratch(kvt_variant variant, const kvt_matrix *matrix)
{
    const group_shape shape = planes_shape(variant, matrix);
    return group_scratch(&shape);
}

/* Elements whose fine codes are in [first, end). */
static uint64_t planes_count(const uint32_t histogram[256], uint32_t first, uint32_t end)
{
    uint64_t count = 0;
    for (uint32_t code = first; code < end; code++) {
        count += histogram[code];
    }
    return count;
}

/* How far the outermost level moves from the mean of its cell to the end of the range, as a share
 * of the way: what the outer quarter of the codes holds beyond a sixth of the elements. Channels
 * that turn with the position keep to the ends of their range; the mean would shrink all of them
 * alike, which attention notices more than it notices the error of single elements. */
static float planes_outward_bias(uint64_t outer, uint64_t all)
{
    const float share = all == 0 ? 0.0f : (float)outer / (float)all;
    return share > PLANES_BIAS_FROM ? share - PLANES_BIAS_FROM : 0.0f;
}

/* The mean level of every `1 << shift` fine codes, the outermost ones pulled outwards, in fp16; the
 * middle where there are none. */
static void planes_centroids(const uint32_t histogram[256], uint32_t shift, uint8_t *target)
{
    const uint32_t cells = 256u >> shift;
    const uint64_t all = planes_count(histogram, 0, 256);
    for (uint32_t cell = 0; cell < cells; cell++) {
        uint64_t count = planes_count(histogram, cell << shift, (cell + 1) << shift);
        uint64_t sum = 0; /* in 1/64 */
        for (uint32_t code = cell << shift; code < (cell + 1) << shift; code++) {
            sum += (uint64_t)histogram[code] * (uint64_t)group_fine_level((int32_t)code);
        }
        if (count == 0) {
            /* Of the KIVI-4 codes in the cell. */
            count = 1;
            sum = (cell << shift) * 4 + (1u << shift) * 2 - 32;
        }
        float level = (float)sum / (float)(count * 64);
        if (cell == 0) level -= level * planes_outward_bias(planes_count(histogram, 0, 64), all);
        if (cell == cells - 1) {
            level += (15.0f - level) * planes_outward_bias(planes_count(histogram, 192, 256), all);
        }
        uint16_t centroid = half_from_float(level);
        memcpy(target + cell * sizeof centroid, &centroid, sizeof centroid);
    }
}

/* The table at the front of the metadata. */
static void planes_write_table(const uint32_t histogram[256], uint8_t *table)
{
    memset(table, 0, PLANES_TABLE_BYTES);
    planes_centroids(histogram, 6, table);
    planes_centroids(histogram, 5, table + 4 * sizeof(uint16_t));
}

/* Whether all planes together are smaller than the elements, so that fewer planes are never coded
 * where more would not be. */
static bool planes_shrink(const group_shape *shape)
{
    const uint64_t elements = shape->tokens * shape->width;
    return planes_metadata_bytes(shape) + elements < elements * kvt_dtype_bytes(shape->dtype);
}

static kvt_status planes_encode(kvt_variant variant, const kvt_matrix *matrix, const void *source,
                                kvt_part *parts, void *scratch, uint64_t scratch_bytes)
{
    const group_shape shape = planes_shape(variant, matrix);
    const group_coding coding = {.max_code = 15.0f, .fine = matrix->planes > 3};
    const uint64_t groups = group_count(&shape);
    uint32_t histogram[256];
    group_plane planes[KVT_PLANES_MAX];
    if (scratch_bytes < group_scratch(&shape)) return KVT_E_ARGUMENT;
    if (!planes_shrink(&shape)) return KVT_RAW;
    if (parts == NULL) {
        return group_encode(&shape, &coding, source, NULL, NULL, NULL, 0, NULL, scratch);
    }
    for (uint32_t p = 0; p < matrix->planes; p++) {
        uint32_t shift = coding.fine ? planes_shift[p] : planes_shift[p] - 4u;
        planes[p] = (group_plane){planes_bits[p], (uint8_t)shift, parts[1 + p].data};
    }
    uint8_t *table = parts[0].data;
    uint16_t *minima = (uint16_t *)(void *)(table + PLANES_TABLE_BYTES);
    kvt_status status = group_encode(&shape, &coding, source, minima, minima + groups, planes,
                                     matrix->planes, histogram, scratch);
    if (status != KVT_OK) return status;
    planes_write_table(histogram, table);
    return KVT_OK;
}

/* Reads the levels of the planes that are there. False when a centroid is no level. */
static bool planes_levels(const uint8_t *table, uint32_t planes, group_levels *levels)
{
    memset(levels, 0, sizeof *levels);
    for (uint32_t i = 0; i < PLANES_TABLE_USED / 2; i++) {
        uint16_t half;
        memcpy(&half, table + i * sizeof half, sizeof half);
        if (half > 0x4b80u) return false; /* 15; also what is negative or not finite */
        if (planes == 1 && i < 4) levels->table[i] = half_to_float(half);
        if (planes == 2 && i >= 4) levels->table[i - 4] = half_to_float(half);
    }
    for (uint32_t i = 0; planes == 3 && i < 16; i++) {
        levels->table[i] = (float)i;
    }
    levels->kind = planes == 5   ? GROUP_LEVEL_FINE8
                   : planes == 4 ? GROUP_LEVEL_FINE6
                   : planes == 3 ? GROUP_LEVEL_CODE16
                                 : GROUP_LEVEL_TABLE;
    for (uint32_t i = PLANES_TABLE_USED; i < PLANES_TABLE_BYTES; i++) {
        if (table[i] != 0) return false;
    }
    return true;
}

static kvt_status planes_decode(kvt_variant variant, const kvt_matrix *matrix,
                                const kvt_part *parts, const view_rows *target, void *scratch,
                                uint64_t scratch_bytes)
{
    const group_shape shape = planes_shape(variant, matrix);
    const uint32_t count = matrix->planes;
    group_levels levels;
    group_plane planes[KVT_PLANES_MAX];
    if (scratch_bytes < group_scratch(&shape)) return KVT_E_ARGUMENT;
    if (!planes_levels(parts[0].data, count, &levels)) return KVT_E_CORRUPT;
    for (uint32_t p = 0; p < count; p++) {
        uint32_t shift = planes_shift[p] + planes_total[count - 1] - 8u;
        planes[p] = (group_plane){planes_bits[p], (uint8_t)shift, parts[1 + p].data};
    }
    const uint16_t *minima = (const uint16_t *)(const void *)(parts[0].data + PLANES_TABLE_BYTES);
    return group_decode(&shape, &levels, minima, minima + group_count(&shape), planes, count,
                        target, scratch);
}

static kvt_status planes_plan_job(kvt_variant variant, const kvt_matrix *matrix,
                                  const kvt_part *parts, const kernel_target *target,
                                  uint32_t transfer_bytes, uint8_t dtype, kernel_work *work)
{
    const group_shape shape = planes_shape(variant, matrix);
    const uint64_t table = (uint64_t)(uintptr_t)parts[0].data;
    const kvt_status status = group_plan_job(&shape, table + PLANES_TABLE_BYTES, parts,
                                             matrix->planes, target, transfer_bytes, dtype, work);
    work->kernel = KERNEL_PLANES;
    work->job.group.table = table;
    return status;
}

static kvt_status planes_plan_code(kvt_variant variant, const kvt_matrix *matrix,
                                   const kvt_part *parts, const kernel_target *source,
                                   uint32_t transfer_bytes, uint8_t dtype, uint64_t histogram,
                                   kernel_work works[2])
{
    const group_shape shape = planes_shape(variant, matrix);
    const uint64_t minima = (uint64_t)(uintptr_t)parts[0].data + PLANES_TABLE_BYTES;
    if (!planes_shrink(&shape)) return KVT_E_UNSUPPORTED;
    const kvt_status status = group_plan_code(&shape, 4, minima, parts, matrix->planes, source,
                                              transfer_bytes, dtype, works);
    works[1].kernel = KERNEL_CODE_PLANES;
    works[1].job.code.histogram = histogram;
    return status;
}

const kvt_codec codecs_planes = {
    .id = KVT_CODEC_PLANES,
    .flags = KVT_CODEC_FLAG_NEEDS_SHAPE | KVT_CODEC_FLAG_PARTS | KVT_CODEC_FLAG_FIXED |
             KVT_CODEC_FLAG_NESTED,
    .name = "planes",
    .check = planes_check,
    .matrix_planes = planes_planes,
    .first_side = planes_first_side,
    .matrix_recent = codecs_none_recent,
    .matrix_parts = planes_parts,
    .matrix_scratch = planes_scratch,
    .encode_matrix = planes_encode,
    .decode_matrix = planes_decode,
    .plan_job = planes_plan_job,
    .plan_code = planes_plan_code,
    .finish_code = planes_write_table,
    .drops_to = planes_drops_to,
};
