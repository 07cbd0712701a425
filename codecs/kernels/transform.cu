/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform.cu - matrices of codec transform from codes, which codes.cu has put into a room: the
 * product with the inverse of the basis, the cosine transform back, steps and means, and the keys'
 * turn. docs/codecs/transform.md has the arithmetic.
 *
 * A warp makes 16 tokens, a group, of 64 elements of a head: a thread has two of these, which turn
 * together where they turn, in all 16 frequencies, so that all behind the product needs its own
 * registers alone. 32 components at a time: a lane reads the group's codes of one, and components
 * whose codes are all 0 are left out, which changes no sum.
 *
 * A product of an element of the basis and a code is exact in fp32, so that it may be fused with
 * its sum; sums go in the order of components.
 */
#include "cosine_tables.h"
#include "kernel_words.h"

enum {
    TRANSFORM_GROUP = 16, /* tokens, and their frequencies */
    TRANSFORM_STRIDE = 20 /* floats from component to component in shared memory */
};

KERNEL_TABLE float transform_quarter[17] = {COSINE_QUARTER};

/* The weight of a frequency for a token below 8. */
KERNEL_INLINE float transform_weight(uint32_t frequency, uint32_t token)
{
    const uint32_t angle = (2 * token + 1) * frequency % 64; /* of pi / 32; 64 is a whole turn */
    const uint32_t half = angle > 32 ? 64 - angle : angle;
    if (frequency == 0) return 0.25f;
    return half > 16 ? -transform_quarter[32 - half] : transform_quarter[half];
}

/* What a warp does: a group of tokens, and of each lane two elements of a head. */
typedef struct transform_item {
    uint32_t head;
    uint32_t group; /* of the room */
    uint32_t token; /* of the matrix, the group's first one */
    uint32_t pair;  /* of the head */
    uint32_t elements[2];
    uint64_t room;
    bool turns;
} transform_item;

KERNEL_INLINE transform_item transform_find(const kernel_transform_job *job)
{
    transform_item item;
    const uint32_t block = kernel_block() - job->head.first_block;
    const uint32_t items = job->room_groups * job->chunks;
    const uint32_t each = (items + KERNEL_TRANSFORM_ITEMS - 1) / KERNEL_TRANSFORM_ITEMS;
    const uint32_t number = block % each * KERNEL_TRANSFORM_ITEMS + kernel_warp();
    const uint32_t token_block = block / each / job->heads, half = job->rotary / 2;
    const uint32_t chunk = number / job->room_groups;
    item.head = block / each % job->heads;
    item.group = number % job->room_groups;
    item.token = token_block * KERNEL_CODES_TOKENS + item.group * TRANSFORM_GROUP;
    /* Behind the last item there is no token. */
    if (chunk >= job->chunks) item.token = job->tokens;
    item.pair = chunk * KERNEL_WARP + kernel_lane();
    item.turns = item.pair < half;
    item.room = job->room + token_block * job->room_bytes;
    const bool apart = item.turns && job->apart != 0;
    item.elements[0] = apart ? item.pair : 2 * item.pair;
    item.elements[1] = apart ? item.pair + half : 2 * item.pair + 1;
    return item;
}

/* An element of the basis, bf16, at [component][element]. */
KERNEL_INLINE float transform_factor(uint64_t row, uint32_t element, bool there)
{
    return there ? kernel_bits_float((uint32_t)kernel_load2(row + 2 * (uint64_t)element) << 16)
                 : 0.0f;
}

/* The sums of both elements in all frequencies. All lanes of the warp; codes: shared, its own. */
KERNEL_INLINE void transform_sum(const kernel_transform_job *job, const transform_item *item,
                                 float *codes, float sums[2][TRANSFORM_GROUP])
{
    const bool there = item->token < job->tokens;
    const uint64_t spans = job->own_spans ? item->head : 0;
    const uint32_t column = job->column + (job->own_spans ? 0 : item->head * job->head_dim);
    const uint64_t matrix = job->inverse + 2 * (spans * job->width * job->width + column);
    const uint64_t stride = 2 * (uint64_t)TRANSFORM_GROUP * job->room_groups;
    const uint64_t from =
        item->room + spans * job->width * stride + 2 * TRANSFORM_GROUP * (uint64_t)item->group;
    const bool has[2] = {item->elements[0] < job->head_dim, item->elements[1] < job->head_dim};
    KERNEL_UNROLL
    for (uint32_t f = 0; f < TRANSFORM_GROUP; f++)
        sums[0][f] = sums[1][f] = 0.0f;
    for (uint32_t first = 0; first < job->width; first += KERNEL_WARP) {
        const uint32_t component = first + kernel_lane();
        uint32_t words[8] = {0, 0, 0, 0, 0, 0, 0, 0}, any = 0;
        if (there && component < job->width) {
            kernel_load16(from + component * stride, words);
            kernel_load16(from + component * stride + 16, words + 4);
        }
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            any |= words[i];
        uint32_t left = kernel_ballot(any != 0);
        float *own = codes + kernel_lane() * TRANSFORM_STRIDE;
        KERNEL_UNROLL
        for (uint32_t f = 0; f < TRANSFORM_GROUP; f++)
            own[f] = (float)(int16_t)(uint16_t)(words[f / 2] >> 16 * (f % 2));
        kernel_meet_warp();
        /* The next component's factors are asked for before this one's are used. */
        uint32_t next = left != 0 ? kernel_lowest_bit(left) : 0;
        uint64_t row = matrix + 2 * (uint64_t)(first + next) * job->width;
        float ahead[2] = {transform_factor(row, item->elements[0], left != 0 && has[0]),
                          transform_factor(row, item->elements[1], left != 0 && has[1])};
        while (left != 0) {
            const float factors[2] = {ahead[0], ahead[1]};
            const float *terms = codes + next * TRANSFORM_STRIDE;
            left &= left - 1;
            next = left != 0 ? kernel_lowest_bit(left) : 0;
            row = matrix + 2 * (uint64_t)(first + next) * job->width;
            ahead[0] = transform_factor(row, item->elements[0], left != 0 && has[0]);
            ahead[1] = transform_factor(row, item->elements[1], left != 0 && has[1]);
            KERNEL_UNROLL
            for (uint32_t f = 0; f < TRANSFORM_GROUP; f += 4) {
                float four[4];
                kernel_take_four(terms + f, four);
                KERNEL_UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    sums[0][f + i] = kernel_multiply_add(factors[0], four[i], sums[0][f + i]);
                    sums[1][f + i] = kernel_multiply_add(factors[1], four[i], sums[1][f + i]);
                }
            }
        }
        kernel_meet_warp();
    }
}

/* Frequencies of an element become its tokens. */
KERNEL_INLINE void transform_back(float values[TRANSFORM_GROUP])
{
    float tokens[TRANSFORM_GROUP];
    KERNEL_UNROLL
    for (uint32_t t = 0; t < TRANSFORM_GROUP / 2; t++) {
        float even = kernel_multiply(transform_weight(0, t), values[0]);
        float odd = kernel_multiply(transform_weight(1, t), values[1]);
        KERNEL_UNROLL
        for (uint32_t f = 2; f < TRANSFORM_GROUP; f += 2) {
            even = kernel_add(even, kernel_multiply(transform_weight(f, t), values[f]));
            odd = kernel_add(odd, kernel_multiply(transform_weight(f + 1, t), values[f + 1]));
        }
        tokens[t] = kernel_add(even, odd);
        tokens[TRANSFORM_GROUP - 1 - t] = kernel_add(even, -odd);
    }
    KERNEL_UNROLL
    for (uint32_t t = 0; t < TRANSFORM_GROUP; t++)
        values[t] = tokens[t];
}

/* ---- to their places ---- */

KERNEL_INLINE uint32_t transform_narrow(uint32_t dtype, float value)
{
    if (dtype == KERNEL_FP32) return kernel_float_bits(value);
    if (dtype == KERNEL_FP16)
        return kernel_to_half(kernel_larger(kernel_smaller(value, 65504.0f), -65504.0f));
    const uint32_t half = kernel_to_bf16s(value, 0.0f) & 0xffff;
    return dtype == KERNEL_FP8 ? kernel_bf16_to_fp8(half << 16) : half;
}

/* A token's two elements, from the first one of its head on. */
KERNEL_INLINE void transform_store(const kernel_transform_job *job, const transform_item *item,
                                   uint64_t head, const float values[2])
{
    const uint32_t element_bytes = job->dtype == KERNEL_FP32 ? 4 : job->dtype == KERNEL_FP8 ? 1 : 2;
    const uint64_t first = head + (uint64_t)item->elements[0] * element_bytes;
    const uint32_t low = transform_narrow(job->dtype, values[0]);
    const uint32_t high = transform_narrow(job->dtype, values[1]);
    if (element_bytes == 2 && job->transfer_bytes >= 4 &&
        item->elements[1] == item->elements[0] + 1 && item->elements[1] < job->head_dim &&
        first % 4 == 0) {
        kernel_store4(first, high << 16 | low);
        return;
    }
    if (item->elements[0] < job->head_dim) kernel_store_one(first, element_bytes, low);
    if (item->elements[1] < job->head_dim)
        kernel_store_one(head + (uint64_t)item->elements[1] * element_bytes, element_bytes, high);
}

/* Steps and means of the sums, the turn, and the way to the target. */
KERNEL_INLINE void transform_finish(const kernel_transform_job *job, uint64_t at,
                                    const transform_item *item, float values[2][TRANSFORM_GROUP])
{
    const float step = kernel_multiply((float)job->step, 1.0f / 64.0f);
    const uint64_t means = job->means + 4 * (uint64_t)item->head * job->head_dim;
    const uint64_t target = at + offsetof(kernel_transform_job, target);
    const uint32_t element_bytes = job->dtype == KERNEL_FP32 ? 4 : job->dtype == KERNEL_FP8 ? 1 : 2;
    const uint64_t stride =
        job->target.heads == 1 ? (uint64_t)job->head_dim * element_bytes : job->target.head_stride;
    const uint32_t left = job->tokens - item->token;
    float mean[2] = {0.0f, 0.0f};
    KERNEL_UNROLL
    for (uint32_t e = 0; e < 2; e++)
        if (item->elements[e] < job->head_dim)
            mean[e] = kernel_bits_float(kernel_load4(means + 4 * (uint64_t)item->elements[e]));
    kernel_row row = kernel_row_of(&job->target, target, item->token);
    const uint64_t angles =
        item->room + job->angles_at +
        8 * ((uint64_t)item->group * TRANSFORM_GROUP * (job->rotary / 2) + item->pair);
    KERNEL_UNROLL
    for (uint32_t t = 0; t < TRANSFORM_GROUP; t++) {
        if (t >= left) break;
        float x = kernel_add(kernel_multiply(values[0][t], step), mean[0]);
        float y = kernel_add(kernel_multiply(values[1][t], step), mean[1]);
        if (item->turns) {
            const uint64_t angle = kernel_load8(angles + 8 * (uint64_t)t * (job->rotary / 2));
            const float c = kernel_bits_float((uint32_t)angle);
            const float s = kernel_bits_float((uint32_t)(angle >> 32));
            const float turned = kernel_add(kernel_multiply(x, c), -kernel_multiply(y, s));
            y = kernel_add(kernel_multiply(y, c), kernel_multiply(x, s));
            x = turned;
        }
        const float both[2] = {x, y};
        if (t != 0) kernel_row_next(&job->target, target, &row);
        transform_store(job, item, row.address + item->head * stride, both);
    }
}

KERNEL_ENTRY(2) kvt_transform(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    KERNEL_SHARED KERNEL_FOURS float codes[KERNEL_TRANSFORM_ITEMS][KERNEL_WARP * TRANSFORM_STRIDE];
    const uint64_t at = kernel_job(jobs, sizeof(kernel_transform_job), job_count);
    float sums[2][TRANSFORM_GROUP];
    kernel_transform_job job;
    KERNEL_TAKE(&job, at);
    const transform_item item = transform_find(&job);
    (void)verdicts;
    transform_sum(&job, &item, codes[kernel_warp()], sums);
    if (item.token >= job.tokens) return;
    transform_back(sums[0]);
    transform_back(sums[1]);
    transform_finish(&job, at, &item, sums);
}
