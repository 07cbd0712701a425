/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codes.cu - the codes of segments of codec transform (transform_block.h): a block of threads reads
 * those of 256 tokens into a room of the GPU's memory, where transform.cu finds them, with cosines
 * and sines of the tokens' positions.
 *
 *     room    codes, i16 [component][group of 16 tokens][frequency] | order | angles
 *     order   components of the units, u16, in the order in which units are stored
 *     angles  {cosine, sine} fp32 [token][pair]
 *
 * The order follows from the basis and the step. Five warps make it, one for each band, 32
 * components at a time: lane c counts class c, and ballots of a class's bits say which components
 * are of it. Then warp 0 walks the stream (rans_device.h), class by class; the other warps put the
 * codes of the chunk of symbols before into their places.
 *
 * Nothing but what this block wrote behind a meeting is read again.
 */
#include "cosine_tables.h"
#include "rans_device.h"

enum {
    CODES_BLOCK = KERNEL_CODES_TOKENS,
    CODES_ALONG = 16, /* tokens of a group, and their frequencies */
    CODES_BANDS = 5,  /* of frequencies: 0, 1, 2-3, 4-7, 8-15 */
    CODES_CLASSES = 32,
    CODES_CLASS_BITS = 5,
    CODES_CLASS_SHIFT = 2,
    CODES_HEAD = 8,
    CODES_BLOCK_HEAD = 12,
    CODES_EXCEPTION = 6,
    CODES_MOST = 32767
};

#define CODES_ESCAPE 0x80000000u /* above the bits of an escape in a chunk */

/* What the threads of a block share. */
typedef struct codes_room {
    uint32_t chunks[2][CHAIN_CHUNK]; /* symbols, or escapes */
    uint32_t slots[CHAIN_SLOTS];
    uint32_t starts[CODES_CLASSES + 1][CODES_BANDS]; /* in the order */
    uint64_t stored;                                 /* the block's bytes; 0: not sound */
    uint64_t low;
    uint64_t escapes;
    uint64_t exceptions;
    uint32_t escape_count;
    uint32_t exception_count;
    uint32_t state_count;
} codes_room;

KERNEL_INLINE uint32_t codes_band_start(uint32_t band)
{
    return band == 0 ? 0 : 1u << (band - 1);
}

/* Lanes of a unit of a band. */
KERNEL_INLINE uint32_t codes_band_lanes(uint32_t band, uint32_t groups)
{
    return (codes_band_start(band + 1) - codes_band_start(band)) * groups;
}

KERNEL_INLINE uint32_t codes_class(const kernel_codes_job *job, uint32_t component, uint32_t band)
{
    const uint64_t at = job->spreads + 2 * ((uint64_t)component * CODES_BANDS + band);
    const int32_t spread = (int16_t)kernel_load2(at);
    const int32_t number = (spread + job->class_offset) >> CODES_CLASS_SHIFT;
    return (uint32_t)(number < 0 ? 0 : number < CODES_CLASSES ? number : CODES_CLASSES - 1);
}

KERNEL_INLINE uint32_t codes_low_bits(const kernel_codes_job *job, uint32_t number)
{
    return kernel_load4(job->tables + 4 * number);
}

/* ---- the order of units ---- */

/* Which of the warp's lanes have the class; of lanes without a component the class is any. */
KERNEL_INLINE uint32_t codes_same(const uint32_t bits[CODES_CLASS_BITS], uint32_t here,
                                  uint32_t number)
{
    uint32_t same = here;
    KERNEL_UNROLL
    for (uint32_t b = 0; b < CODES_CLASS_BITS; b++)
        same &= (number >> b & 1) != 0 ? bits[b] : ~bits[b];
    return same;
}

/* Goes over the components of a band, by one warp: counts those of class `lane`, which it returns,
 * from `next` on; order: 0, or where the components go. */
KERNEL_INLINE uint32_t codes_sort(const kernel_codes_job *job, uint32_t band, uint64_t order,
                                  uint32_t next)
{
    const uint32_t lane = kernel_lane();
    for (uint32_t first = 0; first < job->components; first += KERNEL_WARP) {
        const uint32_t component = first + lane;
        const bool there = component < job->components;
        const uint32_t number = there ? codes_class(job, component, band) : 0;
        const uint32_t here = kernel_ballot(there);
        uint32_t bits[CODES_CLASS_BITS];
        KERNEL_UNROLL
        for (uint32_t b = 0; b < CODES_CLASS_BITS; b++)
            bits[b] = kernel_ballot((number >> b & 1) != 0);
        const uint32_t from = kernel_shuffle(next, number);
        if (there && order != 0) {
            const uint32_t before = codes_same(bits, here, number) & ((1u << lane) - 1);
            kernel_store2(order + 2 * (uint64_t)(from + kernel_count_bits(before)),
                          (uint16_t)component);
        }
        next += kernel_count_bits(codes_same(bits, here, lane));
    }
    return next;
}

/* All threads. */
KERNEL_INLINE void codes_make_order(const kernel_codes_job *job, uint64_t order, codes_room *room)
{
    const uint32_t band = kernel_warp(), lane = kernel_lane();
    if (band < CODES_BANDS) room->starts[lane][band] = codes_sort(job, band, 0, 0);
    kernel_meet();
    if (kernel_thread() == 0) {
        uint32_t at = 0;
        for (uint32_t number = 0; number < CODES_CLASSES; number++)
            for (uint32_t b = 0; b < CODES_BANDS; b++) {
                const uint32_t count = room->starts[number][b];
                room->starts[number][b] = at;
                at += count;
            }
        for (uint32_t b = 0; b < CODES_BANDS; b++)
            room->starts[CODES_CLASSES][b] = at;
    }
    kernel_meet();
    if (band < CODES_BANDS) (void)codes_sort(job, band, order, room->starts[lane][band]);
}

/* Units of a class and band. */
KERNEL_INLINE uint32_t codes_units(const codes_room *room, uint32_t number, uint32_t band)
{
    const uint32_t end =
        band + 1 == CODES_BANDS ? room->starts[number + 1][0] : room->starts[number][band + 1];
    return end - room->starts[number][band];
}

/* Lanes of all units of a class. */
KERNEL_INLINE uint32_t codes_lanes(const codes_room *room, uint32_t number, uint32_t groups)
{
    uint32_t lanes = 0;
    for (uint32_t band = 0; band < CODES_BANDS; band++)
        lanes += codes_units(room, number, band) * codes_band_lanes(band, groups);
    return lanes;
}

/* Bytes of the low bits of a unit. */
KERNEL_INLINE uint32_t codes_low_bytes(uint32_t low_bits, uint32_t lanes)
{
    return (low_bits * lanes + 7) / 8;
}

/* ---- the heads ---- */

/* Sizes of a block's parts that the order implies. */
typedef struct codes_sizes {
    uint32_t symbols;
    uint32_t unstored; /* lanes of class 0 */
    uint32_t low_bytes;
} codes_sizes;

KERNEL_INLINE codes_sizes codes_size(const kernel_codes_job *job, const codes_room *room,
                                     uint32_t groups)
{
    codes_sizes sizes = {0, codes_lanes(room, 0, groups), 0};
    sizes.symbols = job->components * CODES_ALONG * groups - sizes.unstored;
    for (uint32_t number = 1; number < CODES_CLASSES; number++) {
        const uint32_t low_bits = codes_low_bits(job, number);
        for (uint32_t band = 0; band < CODES_BANDS; band++)
            sizes.low_bytes += codes_units(room, number, band) *
                               codes_low_bytes(low_bits, codes_band_lanes(band, groups));
    }
    return sizes;
}

/* Bytes of a block from its head; UINT64_MAX when the head cannot be right. */
KERNEL_INLINE uint64_t codes_block_bytes(const codes_sizes *sizes, uint64_t head)
{
    const uint64_t code = chain_load4(head), escapes = chain_load4(head + 4);
    const uint64_t exceptions = chain_load4(head + 8);
    if (code > sizes->symbols || escapes > sizes->symbols || exceptions > sizes->unstored)
        return UINT64_MAX;
    return 2 * chain_state_count(sizes->symbols) + code + sizes->low_bytes + 2 * escapes +
           CODES_EXCEPTION * exceptions;
}

/* Checks the heads of all blocks, and finds the parts of one; by one thread. */
KERNEL_INLINE void codes_open(const kernel_codes_job *job, uint32_t wanted, codes_room *room)
{
    const uint32_t blocks = (job->tokens + CODES_BLOCK - 1) / CODES_BLOCK;
    const uint32_t last_tokens = job->tokens - (blocks - 1) * CODES_BLOCK;
    const codes_sizes last = codes_size(job, room, (last_tokens + CODES_ALONG - 1) / CODES_ALONG);
    codes_sizes full = last;
    uint64_t need = CODES_HEAD + CODES_BLOCK_HEAD * (uint64_t)blocks, stored = 0;
    room->stored = 0;
    if (blocks > 1) full = codes_size(job, room, CODES_BLOCK / CODES_ALONG);
    if (job->bytes < need || chain_load4(job->source) != blocks) return;
    if (chain_load2(job->source + 4) != job->step || chain_load2(job->source + 6) != job->span)
        return;
    for (uint32_t block = 0; block < blocks; block++) {
        const codes_sizes *sizes = block + 1 == blocks ? &last : &full;
        const uint64_t head = job->source + CODES_HEAD + CODES_BLOCK_HEAD * (uint64_t)block;
        const uint64_t bytes = codes_block_bytes(sizes, head);
        if (bytes > job->bytes - need) return;
        if (block == wanted) {
            stored = job->source + need;
            room->state_count = chain_state_count(sizes->symbols);
            room->low = stored + 2 * room->state_count + chain_load4(head);
            room->escapes = room->low + sizes->low_bytes;
            room->escape_count = chain_load4(head + 4);
            room->exceptions = room->escapes + 2 * (uint64_t)room->escape_count;
            room->exception_count = chain_load4(head + 8);
        }
        need += bytes;
    }
    if (need == job->bytes) room->stored = stored;
}

/* ---- angles ---- */

KERNEL_TABLE double codes_sines[] = {COSINE_SERIES_OF_SINE};
KERNEL_TABLE double codes_cosines[] = {COSINE_SERIES};

/* Cosine and sine of an angle in turns of 2^-64, as the CPU has them (drop_number.h): two numbers
 * of fp32. */
KERNEL_INLINE uint64_t codes_angle(uint64_t turns)
{
    const uint64_t quarter = (turns + (1ull << 61)) >> 62;
    const double x = kernel_multiply_double((double)(int64_t)(turns - (quarter << 62)),
                                            0x1.921fb54442d18p-62); /* 2 pi / 2^64 */
    const double square = kernel_multiply_double(x, x);
    double s = codes_sines[0], c = codes_cosines[0];
    KERNEL_UNROLL
    for (uint32_t i = 1; i < 9; i++)
        s = kernel_add_double(kernel_multiply_double(s, square), codes_sines[i]);
    KERNEL_UNROLL
    for (uint32_t i = 1; i < 10; i++)
        c = kernel_add_double(kernel_multiply_double(c, square), codes_cosines[i]);
    s = kernel_multiply_double(s, x);
    double cosine = quarter & 1 ? s : c, sine = quarter & 1 ? c : s;
    if (quarter == 1 || quarter == 2) cosine = -cosine;
    if (quarter == 2 || quarter == 3) sine = -sine;
    return (uint64_t)kernel_float_bits((float)sine) << 32 | kernel_float_bits((float)cosine);
}

/* Those of the block's tokens. All threads. */
KERNEL_INLINE void codes_make_angles(const kernel_codes_job *job, uint64_t angles,
                                     uint32_t first_token, uint32_t tokens)
{
    const uint64_t position = (uint64_t)job->first_position + first_token;
    for (uint32_t i = kernel_thread(); i < tokens * job->pairs; i += KERNEL_THREADS) {
        const uint32_t token = i / job->pairs, pair = i - token * job->pairs;
        const uint64_t one = kernel_load8(job->turns + 8 * (uint64_t)pair);
        kernel_store8(angles + 8 * (uint64_t)i, codes_angle(one * (position + token)));
    }
}

/* ---- codes ---- */

/* One turn of the stream, by warp 0. */
KERNEL_INLINE void codes_turn(const codes_room *room, chain_walk *walk, uint32_t *escapes,
                              uint32_t count, uint32_t *chunk)
{
    const uint32_t first = walk->each * kernel_lane();
    uint32_t symbols[CHAIN_LANE_STATES], all;
    const uint32_t empty = chain_turn(walk, room->slots, count, symbols);
    if (kernel_ballot(empty != 0) != 0) {
        uint32_t next = *escapes + chain_before(empty, walk->each, &all);
        *escapes += all;
        CHAIN_EACH(k, walk->each)
        {
            if ((empty >> k & 1) == 0) continue;
            if (next < room->escape_count)
                symbols[k] = CODES_ESCAPE | chain_load2(room->escapes + 2 * (uint64_t)next);
            else
                walk->damaged = 1;
            next++;
        }
    }
    CHAIN_EACH(k, walk->each)
    if (first + k < count) chunk[first + k] = symbols[k];
}

/* Address of a code. */
KERNEL_INLINE uint64_t codes_place(const kernel_codes_job *job, uint64_t codes, uint32_t component,
                                   uint32_t lane, uint32_t groups)
{
    const uint32_t frequency = lane / groups, group = lane - frequency * groups;
    return codes + 2 * (((uint64_t)component * job->room_groups + group) * CODES_ALONG + frequency);
}

/* A class whose symbols come. */
typedef struct codes_units_of {
    uint32_t number;
    uint32_t low_bits;
    uint64_t low; /* address of its low bits */
} codes_units_of;

/* Puts symbol `index` of a class in its place. False: the code is beyond what a code can be. */
KERNEL_INLINE bool codes_put(const kernel_codes_job *job, const codes_room *room,
                             const codes_units_of *units, uint64_t codes, uint64_t order,
                             uint32_t groups, uint32_t index, uint32_t symbol)
{
    uint64_t low = units->low;
    uint32_t band = 0;
    for (;; band++) {
        const uint32_t count = codes_units(room, units->number, band);
        const uint32_t lanes = codes_band_lanes(band, groups);
        if (band + 1 == CODES_BANDS || index < count * lanes) break;
        index -= count * lanes;
        low += (uint64_t)count * codes_low_bytes(units->low_bits, lanes);
    }
    const uint32_t lanes = codes_band_lanes(band, groups);
    const uint32_t unit = index / lanes, lane = index - unit * lanes;
    const uint32_t component =
        kernel_reload2(order + 2 * (uint64_t)(room->starts[units->number][band] + unit));
    int32_t code = (int16_t)(uint16_t)symbol;
    if ((symbol & CODES_ESCAPE) == 0) {
        code = ((int32_t)symbol - 128) * (1 << units->low_bits);
        if (units->low_bits != 0) {
            const uint32_t bit = lane * units->low_bits;
            const uint32_t end = (lane + 1) * units->low_bits;
            uint32_t held = 0;
            low += (uint64_t)unit * codes_low_bytes(units->low_bits, lanes);
            for (uint32_t b = bit / 8; 8 * b < end; b++)
                held |= kernel_load1(low + b) << 8 * (b - bit / 8);
            code += (int32_t)(held >> bit % 8 & ((1u << units->low_bits) - 1));
        }
        if (code > CODES_MOST || code < -CODES_MOST) return false;
    }
    kernel_store2(
        codes_place(job, codes, component, codes_band_start(band) * groups + lane, groups),
        (uint16_t)code);
    return true;
}

/* Reads the codes of all classes; all threads. False: no encoder wrote them. */
KERNEL_INLINE bool codes_read(const kernel_codes_job *job, codes_room *room, uint64_t codes,
                              uint64_t order, uint32_t groups)
{
    const bool walks = kernel_warp() == 0;
    const uint32_t states = room->state_count;
    codes_units_of units = {1, 0, room->low};
    chain_walk walk = CHAIN_WALK_NONE;
    uint32_t escapes = 0;
    bool sound = true;
    if (walks) chain_start(&walk, room->stored, states, room->stored + 2 * states, room->low);
    for (; units.number < CODES_CLASSES; units.number++) {
        const uint32_t symbols = codes_lanes(room, units.number, groups);
        const uint32_t chunks = (symbols + CHAIN_CHUNK - 1) / CHAIN_CHUNK;
        if (symbols == 0) continue;
        units.low_bits = codes_low_bits(job, units.number);
        kernel_meet();
        room->slots[kernel_thread()] =
            kernel_load4(job->tables + KERNEL_CODES_SLOTS +
                         4 * ((uint64_t)units.number * CHAIN_SLOTS + kernel_thread()));
        for (uint32_t chunk = 0; chunk <= chunks; chunk++) {
            kernel_meet();
            if (walks && chunk < chunks) {
                const uint32_t left = symbols - chunk * CHAIN_CHUNK;
                const uint32_t count = left < CHAIN_CHUNK ? left : CHAIN_CHUNK;
                chain_ahead(&walk);
                for (uint32_t turn = 0; turn < count; turn += states) {
                    const uint32_t rest = count - turn;
                    codes_turn(room, &walk, &escapes, rest < states ? rest : states,
                               room->chunks[chunk % 2] + turn);
                }
            }
            if (walks || chunk == 0) continue;
            const uint32_t first = (chunk - 1) * CHAIN_CHUNK;
            const uint32_t left = symbols - first;
            for (uint32_t i = kernel_thread() - KERNEL_WARP; i < left && i < CHAIN_CHUNK;
                 i += KERNEL_THREADS - KERNEL_WARP)
                sound &= codes_put(job, room, &units, codes, order, groups, first + i,
                                   room->chunks[(chunk - 1) % 2][i]);
        }
        for (uint32_t band = 0; band < CODES_BANDS; band++)
            units.low += (uint64_t)codes_units(room, units.number, band) *
                         codes_low_bytes(units.low_bits, codes_band_lanes(band, groups));
    }
    if (!walks) return sound;
    return chain_finish(&walk) && escapes == room->escape_count;
}

/* Where an exception lies in the order in which they are stored: band, component and lane; or 0:
 * it is not sound. */
KERNEL_INLINE uint64_t codes_exception_place(const kernel_codes_job *job, uint64_t at,
                                             uint32_t groups)
{
    const uint32_t component = chain_load2(at), lane = kernel_load1(at + 2);
    if (component >= job->components || lane >= CODES_ALONG * groups || kernel_load1(at + 3) != 0 ||
        chain_load2(at + 4) == 0)
        return 0;
    uint32_t band = CODES_BANDS - 1;
    while (lane < codes_band_start(band) * groups)
        band--;
    if (codes_class(job, component, band) != 0) return 0;
    return (uint64_t)(band + 1) << 32 | component << 8 | lane;
}

/* Codes of class 0; all threads. False: no encoder wrote them. */
KERNEL_INLINE bool codes_read_exceptions(const kernel_codes_job *job, const codes_room *room,
                                         uint64_t codes, uint32_t groups)
{
    bool sound = true;
    for (uint32_t i = kernel_thread(); i < room->exception_count; i += KERNEL_THREADS) {
        const uint64_t at = room->exceptions + CODES_EXCEPTION * (uint64_t)i;
        const uint64_t place = codes_exception_place(job, at, groups);
        const uint64_t before =
            i == 0 ? 0 : codes_exception_place(job, at - CODES_EXCEPTION, groups);
        if (place <= before) {
            sound = false;
            continue;
        }
        kernel_store2(codes_place(job, codes, chain_load2(at), kernel_load1(at + 2), groups),
                      (uint16_t)chain_load2(at + 4));
    }
    return sound;
}

KERNEL_ENTRY(2) kvt_codes(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    KERNEL_SHARED codes_room room;
    kernel_codes_job job;
    KERNEL_TAKE(&job, kernel_job(jobs, sizeof(kernel_codes_job), job_count));
    const uint32_t block = kernel_block() - job.head.first_block;
    const uint32_t first = block * CODES_BLOCK, left = job.tokens - first;
    const uint32_t tokens = left < CODES_BLOCK ? left : CODES_BLOCK;
    const uint32_t groups = (tokens + CODES_ALONG - 1) / CODES_ALONG;
    const uint64_t codes = job.room + block * job.room_bytes;
    const uint64_t code_bytes = 2 * (uint64_t)job.components * job.room_groups * CODES_ALONG;
    const uint64_t order = codes + code_bytes;
    const uint32_t zeros[4] = {0, 0, 0, 0};
    codes_make_order(&job, order, &room);
    for (uint64_t at = 16 * kernel_thread(); at < code_bytes; at += 16 * KERNEL_THREADS)
        kernel_store16(codes + at, zeros);
    codes_make_angles(&job, codes + job.angles_at, first, tokens);
    if (kernel_thread() == 0) codes_open(&job, block, &room);
    kernel_meet();
    bool sound = room.stored != 0;
    if (sound) {
        sound = codes_read(&job, &room, codes, order, groups);
        sound &= codes_read_exceptions(&job, &room, codes, groups);
    }
    if (!sound) kernel_say(verdicts, &job.head, KERNEL_CORRUPT);
}
