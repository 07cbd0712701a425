/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy.cu - matrices of codec entropy (entropy_span.h): a block of threads decodes a span, which
 * has one stream of symbols.
 *
 * Warp 0 walks the stream (rans_device.h). The other warps make values of the chunk of symbols
 * before.
 *
 *     chunk            0        1        2        3
 *     warp 0           decode   decode   decode   decode
 *     warps 1 to 7              restore  restore  restore ..
 *
 * A chunk of 2,048 symbols lies inside of one group of 256 tokens, as a row is a multiple of 8.
 */
#include "rans_device.h"

enum {
    ENTROPY_GROUP = 256,    /* tokens */
    ENTROPY_TOKEN_AXIS = 1, /* flags of a head */
    ENTROPY_CENTRED = 2,
    ENTROPY_DEVIATION_LEAST = (127 - 63) * 8,
    ENTROPY_DEVIATION_MOST = (127 + 64) * 8,
    ENTROPY_EIGHTHS = 1, /* modes of means */
    ENTROPY_BF16 = 2
};

#define ENTROPY_DISTANT 0x80000000u /* above the bits of a distant code in a chunk */

/* A span whose parts lie inside of the segment. */
typedef struct entropy_parts {
    uint64_t groups;
    uint64_t distant;
    uint32_t distant_count;
    chain_stream stream; /* next 0: no encoder wrote it */
} entropy_parts;

/* What the threads of a block share. */
typedef struct entropy_room {
    uint32_t chunks[2][CHAIN_CHUNK]; /* symbols, or distant codes */
    uint32_t slots[CHAIN_SLOTS];
    chain_table table;
    float centres[8];
} entropy_room;

/* Bytes of a group, or 0. */
KERNEL_INLINE uint64_t entropy_group_size(const kernel_entropy_job *job, uint32_t tokens,
                                          uint64_t at, uint64_t end)
{
    if (end - at < 4) return 0;
    const uint32_t base = chain_load2(at), mode = kernel_load1(at + 2);
    if (base < ENTROPY_DEVIATION_LEAST - 1 || base >= ENTROPY_DEVIATION_MOST) return 0;
    if (mode > ENTROPY_BF16 || kernel_load1(at + 3) != 0) return 0;
    const uint64_t entries = job->flags & ENTROPY_TOKEN_AXIS ? tokens : job->width;
    const uint64_t bytes = 4 + entries * (1 + mode);
    return bytes <= end - at ? bytes : 0;
}

KERNEL_INLINE entropy_parts entropy_open(const kernel_entropy_job *job, uint64_t at, uint64_t end,
                                         uint32_t tokens)
{
    entropy_parts parts = {0, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0}};
    if (end - at < 4) return parts;
    parts.distant_count = chain_load4(at);
    parts.groups = at + 4;
    at = parts.groups;
    for (uint32_t left = tokens; left > 0;) {
        const uint32_t part = left < ENTROPY_GROUP ? left : ENTROPY_GROUP;
        const uint64_t bytes = entropy_group_size(job, part, at, end);
        if (bytes == 0) return parts;
        at += bytes;
        left -= part;
    }
    parts.distant = at;
    if (end - at < 2 * (uint64_t)parts.distant_count) return parts;
    at += 2 * (uint64_t)parts.distant_count;
    parts.stream = chain_open(at, end, (uint64_t)tokens * job->width);
    return parts;
}

/* ---- where values lie in their cells ---- */

/* Natural logarithm of a number of at least 1, as the CPU's decoder has it. */
KERNEL_INLINE float entropy_log(float value)
{
    const uint32_t bits = kernel_float_bits(value);
    const float whole = kernel_add((float)(bits >> 23), -127.0f);
    const float part = kernel_bits_float((bits & 0x7fffffu) | 0x3f800000u);
    float curve = kernel_add(2.0f, -kernel_multiply(part, 1.0f / 3.0f));
    curve = kernel_multiply(curve, part);
    curve = kernel_add(curve, -(5.0f / 3.0f));
    return kernel_multiply(kernel_add(whole, curve), 0.69314718f);
}

KERNEL_INLINE float entropy_pair_of(const uint32_t *frequencies, uint32_t code)
{
    const uint32_t pair = frequencies[128 + code] + frequencies[128 - code];
    return (float)(pair > 0 ? pair : 1);
}

/* How far the elements of a cell lie inside of its middle. */
KERNEL_INLINE float entropy_inside(const uint32_t *frequencies, uint32_t code)
{
    float fall = kernel_add(entropy_log(entropy_pair_of(frequencies, code - 1)),
                            -entropy_log(entropy_pair_of(frequencies, code + 1)));
    fall = kernel_multiply(fall, 0.5f);
    fall = fall > 0.0f ? fall : 0.0f;
    fall = fall < 4.0f ? fall : 4.0f;
    float below = kernel_multiply(fall, fall);
    below = kernel_add(kernel_multiply(below, 0.2f), 12.0f);
    return kernel_divide(fall, below);
}

/* By one thread. */
KERNEL_INLINE void entropy_make_centres(const kernel_entropy_job *job, entropy_room *room)
{
    for (int32_t code = -4; code < 4; code++) {
        const uint32_t size = (uint32_t)(code < 0 ? -code : code);
        float inside = 0.0f;
        if ((job->flags & ENTROPY_CENTRED) && size > 0)
            inside = entropy_inside(room->table.frequencies, size < 3 ? size : 3);
        room->centres[code & 7] = code < 0 ? -inside : inside;
    }
}

/* ---- symbols: warp 0 ---- */

typedef struct entropy_chain {
    chain_walk walk;
    uint32_t escapes; /* taken */
    uint32_t distant; /* taken */
} entropy_chain;

/* One turn: a symbol of each state, of which `count` are there. */
KERNEL_INLINE void entropy_turn(const entropy_parts *parts, const uint32_t *slots,
                                entropy_chain *chain, uint32_t count, uint32_t *chunk)
{
    const uint32_t each = chain->walk.each, first = each * kernel_lane();
    uint32_t symbols[CHAIN_LANE_STATES], all;
    const uint32_t empty = chain_turn(&chain->walk, slots, count, symbols);
    if (kernel_ballot(empty != 0) != 0) {
        /* Symbols that the table lacks, in their order; of these 0 is a distant code. */
        uint32_t next = chain->escapes + chain_before(empty, each, &all);
        uint32_t distant = 0;
        chain->escapes += all;
        CHAIN_EACH(k, each)
        {
            if ((empty >> k & 1) == 0) continue;
            if (next < parts->stream.escape_count)
                symbols[k] = kernel_load1(parts->stream.escapes + next);
            else
                chain->walk.damaged = 1;
            distant |= (uint32_t)(symbols[k] == 0) << k;
            next++;
        }
        next = chain->distant + chain_before(distant, each, &all);
        chain->distant += all;
        CHAIN_EACH(k, each)
        {
            if ((distant >> k & 1) == 0) continue;
            if (next < parts->distant_count)
                symbols[k] = ENTROPY_DISTANT | chain_load2(parts->distant + 2 * (uint64_t)next);
            else
                chain->walk.damaged = 1;
            next++;
        }
    }
    CHAIN_EACH(k, each)
    if (first + k < count) chunk[first + k] = symbols[k];
}

/* ---- values: warps 1 to 7 ---- */

/* Deviation of an entry of a group. */
KERNEL_INLINE float entropy_deviation(uint64_t group, uint32_t entry, uint32_t *number_out)
{
    const uint32_t stored = kernel_load1(group + 4 + entry);
    *number_out = stored == 0 ? 0 : chain_load2(group) + stored;
    return kernel_bits_float(*number_out << 20);
}

/* Its mean; bits_out: of a stored bf16. */
KERNEL_INLINE float entropy_mean(uint64_t group, uint32_t entries, uint32_t entry, float deviation,
                                 uint32_t *bits_out)
{
    const uint32_t mode = kernel_load1(group + 2);
    const uint64_t means = group + 4 + entries;
    *bits_out = 0;
    if (mode == ENTROPY_EIGHTHS)
        return kernel_multiply((float)(int8_t)kernel_load1(means + entry),
                               kernel_multiply(deviation, 0.125f));
    if (mode == 0) return 0.0f;
    *bits_out = chain_load2(means + 2 * (uint64_t)entry) << 16;
    return kernel_bits_float(*bits_out);
}

/* Whether this thread's share of a group's entries is one that an encoder writes. */
KERNEL_INLINE bool entropy_group_sound(uint64_t group, uint32_t entries)
{
    bool sound = true;
    for (uint32_t i = kernel_thread() - KERNEL_WARP; i < entries;
         i += KERNEL_THREADS - KERNEL_WARP) {
        uint32_t number, bits;
        const float deviation = entropy_deviation(group, i, &number);
        (void)entropy_mean(group, entries, i, deviation, &bits);
        sound &= number <= ENTROPY_DEVIATION_MOST && (bits & 0x7f800000u) != 0x7f800000u;
    }
    return sound;
}

KERNEL_INLINE float entropy_value_of(uint32_t symbol, float scale, float offset, float limit,
                                     const float *centres)
{
    float y;
    if (symbol & ENTROPY_DISTANT) {
        y = (float)((int32_t)(int16_t)(uint16_t)symbol + 128);
    } else {
        int32_t code = (int32_t)symbol - 128;
        code = code > -4 ? code : -4;
        code = code < 3 ? code : 3;
        y = kernel_add((float)symbol, -centres[code & 7]);
    }
    y = kernel_add(kernel_multiply(y, scale), offset);
    y = y < limit ? y : limit;
    return y > -limit ? y : -limit;
}

/* Eight values to their place; of bf16 ties go away from zero. */
KERNEL_INLINE void entropy_store(const kernel_entropy_job *job, uint64_t place,
                                 const float values[8])
{
    uint32_t words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (job->dtype == KERNEL_FP32) {
        for (uint32_t i = 0; i < 8; i++)
            words[i] = kernel_float_bits(values[i]);
        kernel_store_words(place, words, 8, 4, job->transfer_bytes);
    } else if (job->dtype == KERNEL_FP8) {
        for (uint32_t i = 0; i < 8; i++)
            words[i / 4] |=
                kernel_bf16_to_fp8((kernel_float_bits(values[i]) + 0x8000u) & 0xffff0000u)
                << 8 * (i % 4);
        kernel_store_words(place, words, 2, 1, job->transfer_bytes);
    } else {
        for (uint32_t i = 0; i < 8; i++)
            words[i / 2] |=
                (job->dtype == KERNEL_FP16 ? kernel_to_half(values[i])
                                           : (kernel_float_bits(values[i]) + 0x8000u) >> 16)
                << 16 * (i % 2);
        kernel_store_words(place, words, 4, 2, job->transfer_bytes);
    }
}

/* Symbols of a chunk, whose first one is `first` of the span. */
KERNEL_INLINE void entropy_restore_chunk(const kernel_entropy_job *job, uint64_t at, uint64_t group,
                                         uint32_t group_tokens, uint32_t span_token, uint32_t first,
                                         uint32_t count, const uint32_t *chunk,
                                         const float *centres)
{
    const bool by_token = (job->flags & ENTROPY_TOKEN_AXIS) != 0;
    const uint32_t entries = by_token ? group_tokens : job->width;
    const float step = kernel_multiply((float)job->step, 1.0f / 64.0f);
    const float limit = job->dtype == KERNEL_FP16   ? 65504.0f
                        : job->dtype == KERNEL_FP32 ? 3.40282347e38f
                                                    : 3.38953139e38f;
    const uint32_t element_bytes = job->dtype == KERNEL_FP32 ? 4 : job->dtype == KERNEL_FP8 ? 1 : 2;
    for (uint32_t i = 8 * (kernel_thread() - KERNEL_WARP); i < count;
         i += 8 * (KERNEL_THREADS - KERNEL_WARP)) {
        const uint32_t token = (first + i) / job->width, channel = (first + i) % job->width;
        float values[8];
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t entry = by_token ? token % ENTROPY_GROUP : channel + k;
            uint32_t number, bits;
            const float deviation = entropy_deviation(group, entry, &number);
            const float mean = entropy_mean(group, entries, entry, deviation, &bits);
            const float scale = kernel_multiply(deviation, step);
            const float offset = kernel_add(mean, -kernel_multiply(scale, 128.0f));
            values[k] = entropy_value_of(chunk[i + k], scale, offset, limit, centres);
        }
        uint64_t in_row = (uint64_t)channel * element_bytes;
        if (job->target.heads != 1)
            in_row += (uint32_t)in_row / (uint32_t)job->target.head_bytes *
                      (job->target.head_stride - job->target.head_bytes);
        const uint64_t row = kernel_row_of(&job->target, at + offsetof(kernel_entropy_job, target),
                                           span_token + token)
                                 .address;
        entropy_store(job, row + in_row, values);
    }
}

/* ---- the span ---- */

/* All threads. False: no encoder wrote it. */
KERNEL_INLINE bool entropy_span_decode(const kernel_entropy_job *job, uint64_t at,
                                       const entropy_parts *parts, uint32_t span_token,
                                       uint32_t tokens, entropy_room *room)
{
    const bool walks = kernel_warp() == 0;
    const uint32_t symbols = tokens * job->width, states = parts->stream.state_count;
    const uint32_t chunks = (symbols + CHAIN_CHUNK - 1) / CHAIN_CHUNK;
    const uint32_t group_symbols = ENTROPY_GROUP * job->width;
    entropy_chain chain = {CHAIN_WALK_NONE, 0, 0};
    uint32_t damaged = 0;
    uint64_t group = parts->groups;
    if (!chain_make_slots(&parts->stream, &room->table, room->slots)) return false;
    if (kernel_thread() == 0) entropy_make_centres(job, room);
    if (walks)
        chain_start(&chain.walk, parts->stream.states, states, parts->stream.code,
                    parts->stream.next);
    for (uint32_t chunk = 0; chunk <= chunks; chunk++) {
        kernel_meet();
        if (walks && chunk < chunks) {
            const uint32_t left = symbols - chunk * CHAIN_CHUNK;
            const uint32_t count = left < CHAIN_CHUNK ? left : CHAIN_CHUNK;
            chain_ahead(&chain.walk);
            for (uint32_t turn = 0; turn < count; turn += states) {
                const uint32_t rest = count - turn;
                entropy_turn(parts, room->slots, &chain, rest < states ? rest : states,
                             room->chunks[chunk % 2] + turn);
            }
        }
        if (walks || chunk == 0) continue;
        const uint32_t first = (chunk - 1) * CHAIN_CHUNK;
        const uint32_t group_token = first / group_symbols * ENTROPY_GROUP;
        const uint32_t left = tokens - group_token;
        const uint32_t group_tokens = left < ENTROPY_GROUP ? left : ENTROPY_GROUP;
        if (first % group_symbols == 0) {
            if (first != 0) group += entropy_group_size(job, ENTROPY_GROUP, group, parts->distant);
            damaged |= !entropy_group_sound(group, job->flags & ENTROPY_TOKEN_AXIS ? group_tokens
                                                                                   : job->width);
        }
        const uint32_t count = symbols - first < CHAIN_CHUNK ? symbols - first : CHAIN_CHUNK;
        entropy_restore_chunk(job, at, group, group_tokens, span_token, first, count,
                              room->chunks[(chunk - 1) % 2], room->centres);
    }
    if (!walks) return damaged == 0;
    return chain_finish(&chain.walk) && chain.escapes == parts->stream.escape_count &&
           chain.distant == parts->distant_count;
}

KERNEL_ENTRY(2) kvt_entropy(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    KERNEL_SHARED entropy_room room;
    const uint64_t at = kernel_job(jobs, sizeof(kernel_entropy_job), job_count);
    kernel_entropy_job job;
    KERNEL_TAKE(&job, at);
    const uint32_t wanted = kernel_block() - job.head.first_block;
    const uint64_t end = job.source + job.bytes;
    entropy_parts parts = {0, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0}};
    uint32_t token = 0, tokens = 0;
    bool sound = job.bytes >= 4 && kernel_load1(job.source) == 2 &&
                 kernel_load1(job.source + 1) == job.flags &&
                 chain_load2(job.source + 2) == job.step;
    uint64_t from = job.source + 4;
    for (uint32_t span = 0; sound; span++) {
        const uint32_t left = job.tokens - token;
        tokens = left < job.span_tokens ? left : job.span_tokens;
        parts = entropy_open(&job, from, end, tokens);
        from = parts.stream.next;
        sound = from != 0;
        if (span == wanted) break;
        token += tokens;
    }
    /* The last span ends the segment. */
    if (sound && token + tokens == job.tokens && from != end) sound = false;
    if (sound) sound = entropy_span_decode(&job, at, &parts, token, tokens, &room);
    if (!sound) kernel_say(verdicts, &job.head, KERNEL_CORRUPT);
}
