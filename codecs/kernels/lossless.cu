/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless.cu - matrices of codec lossless, mode fast (lossless_fast.h): a block of threads decodes
 * a tile of 65,536 elements.
 *
 * A tile's place follows from the heads before it, so that a block walks these; a matrix has few.
 * Inside of a tile nothing waits but for escapes: element i takes the escape of the number of
 * escapes before it. So the block
 *
 *   counts the escapes of every run of 128 elements, two runs a thread, and adds the counts up,
 *   decodes: a thread has the 8 bytes of a run that hold the nibbles of elements i .. i + 7 and
 *   64 + i .. 64 + i + 7; runs that have escapes count them once more between their 8 threads.
 *
 * Nibbles are read twice, the second time from a cache. Escapes are bytes, so that tiles begin at
 * any address: eight bytes are made of the two words that hold them.
 */
#include "lossless_device.h"

enum {
    LOSSLESS_TILE = 65536,
    LOSSLESS_RUNS = LOSSLESS_TILE / LOSSLESS_RUN,
    LOSSLESS_SHARE = LOSSLESS_RUN / 16, /* threads of a run */
    LOSSLESS_HEAD = 8,
    LOSSLESS_KIND = 3, /* bits of kind: */
    LOSSLESS_RAW = 0,
    LOSSLESS_BYTE = 1,
    LOSSLESS_HALF = 2,
    LOSSLESS_ZERO = 16, /* and its flags */
    LOSSLESS_NO_EXTRAS = 32,
    LOSSLESS_NARROW = 64
};

/* A tile whose head was read. */
typedef struct lossless_tile {
    uint64_t nibbles; /* address behind the head; of a raw tile of the elements */
    uint32_t elements;
    uint32_t kind;
    uint32_t base;
    uint32_t escape; /* the code of an escape */
    uint32_t escapes;
    uint32_t nibble_bytes;
    uint32_t extra_bytes;
    uint64_t bytes; /* of all of it; 0: no encoder wrote it, or it is longer than what is left */
} lossless_tile;

/* Bytes of fields, `per_byte` in a byte of a run. */
KERNEL_INLINE uint32_t lossless_field_bytes(uint32_t elements, uint32_t per_byte)
{
    return elements / LOSSLESS_RUN * (LOSSLESS_RUN / per_byte) +
           (elements % LOSSLESS_RUN + per_byte - 1) / per_byte;
}

/* The tile at an address, of which `left` bytes are the segment's. */
KERNEL_INLINE lossless_tile lossless_read(uint64_t address, uint64_t left, uint32_t elements,
                                          uint32_t dtype)
{
    lossless_tile tile = {address + LOSSLESS_HEAD, elements, 0, 0, 15, 0, 0, 0, 0};
    const uint32_t element_bytes = dtype == KERNEL_FP32 ? 4 : 2;
    if (left < LOSSLESS_HEAD) return tile;
    tile.kind = kernel_load1(address);
    tile.base = kernel_load1(address + 1);
    tile.escapes = lossless_word(address + 4);
    if ((kernel_load1(address + 2) | kernel_load1(address + 3)) != 0) return tile;
    uint64_t bytes = LOSSLESS_HEAD;
    if ((tile.kind & LOSSLESS_KIND) == LOSSLESS_RAW) {
        if (tile.kind != 0 || tile.base != 0 || tile.escapes != 0) return tile;
        bytes += (uint64_t)elements * element_bytes;
    } else {
        uint32_t allowed = LOSSLESS_ZERO, kind = LOSSLESS_BYTE;
        if (dtype == KERNEL_FP16) {
            allowed |= LOSSLESS_NARROW;
            if ((tile.kind & LOSSLESS_NARROW) == 0) kind = LOSSLESS_HALF;
        }
        if (dtype == KERNEL_FP32) allowed |= LOSSLESS_NO_EXTRAS;
        if ((tile.kind & ~allowed) != kind) return tile;
        if (kind == LOSSLESS_HALF) {
            tile.escape = 7;
            tile.extra_bytes = lossless_field_bytes(elements, 4);
        }
        if (dtype == KERNEL_FP32 && (tile.kind & LOSSLESS_NO_EXTRAS) == 0)
            tile.extra_bytes = 2 * elements;
        tile.nibble_bytes = lossless_field_bytes(elements, 2);
        bytes += (uint64_t)tile.nibble_bytes + elements + tile.extra_bytes + tile.escapes;
    }
    tile.bytes = bytes <= left ? bytes : 0;
    return tile;
}

/* ---- elements to their places ---- */

KERNEL_INLINE uint64_t lossless_place_of(const kernel_lossless_job *job, uint64_t at,
                                         uint32_t index)
{
    const uint32_t token = index / job->row_elements;
    return lossless_place(&job->target, at + offsetof(kernel_lossless_job, target), token,
                          index - token * job->row_elements, job->dtype == KERNEL_FP32 ? 4 : 2);
}

/* Eight neighbours, of which the first one's number is a multiple of 8. */
KERNEL_INLINE void lossless_store_eight(const kernel_lossless_job *job, uint64_t at, uint32_t index,
                                        const uint32_t values[8])
{
    const uint32_t element_bytes = job->dtype == KERNEL_FP32 ? 4 : 2;
    if (lossless_neighbours(&job->target, element_bytes)) {
        lossless_store(lossless_place_of(job, at, index), element_bytes, job->transfer_bytes,
                       values);
        return;
    }
    for (uint32_t i = 0; i < 8; i++)
        kernel_store_one(lossless_place_of(job, at, index + i), element_bytes, values[i]);
}

/* ---- fields ---- */

/* An element of its parts; exponent of a code, or the escape. */
KERNEL_INLINE uint32_t lossless_merge(const kernel_lossless_job *job, const lossless_tile *tile,
                                      uint32_t nibble, uint32_t exponent, uint32_t low,
                                      uint32_t extra)
{
    if (job->dtype == KERNEL_FP32)
        return (low & 0x80) << 24 | exponent << 23 | (low & 0x7f) << 16 | extra;
    if (job->dtype == KERNEL_BF16) return (low & 0x80) << 8 | exponent << 7 | (low & 0x7f);
    if (tile->kind & LOSSLESS_NARROW)
        return (low & 0x80) << 8 | (exponent & 0x1f) << 10 | (low & 0x7f) << 3;
    return (nibble & 8) << 12 | (exponent & 0x1f) << 10 | (extra & 3) << 8 | low;
}

KERNEL_INLINE uint32_t lossless_exponent(const lossless_tile *tile, uint32_t code)
{
    if (code == 0 && (tile->kind & LOSSLESS_ZERO)) return 0;
    return (tile->base + code) & 0xff;
}

/* The last run where it is short, by one thread. escape: address of the first one. */
KERNEL_INLINE void lossless_short_run(const kernel_lossless_job *job, uint64_t at,
                                      const lossless_tile *tile, uint32_t first, uint64_t escape)
{
    const uint32_t run = tile->elements / LOSSLESS_RUN * LOSSLESS_RUN, count = tile->elements - run;
    const uint64_t lows = tile->nibbles + tile->nibble_bytes, extras = lows + tile->elements;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t nibble = lossless_field(tile->nibbles + run / 2, count, 4, i);
        const uint32_t code = nibble & tile->escape;
        uint32_t exponent = lossless_exponent(tile, code), extra = 0;
        if (code == tile->escape) exponent = kernel_load1(escape++);
        if (tile->escape == 7)
            extra = lossless_field(extras + run / 4, count, 2, i);
        else if (tile->extra_bytes != 0)
            extra = kernel_load1(extras + 2 * (run + i)) | kernel_load1(extras + 2 * (run + i) + 1)
                                                               << 8;
        kernel_store_one(
            lossless_place_of(job, at, first + run + i), job->dtype == KERNEL_FP32 ? 4 : 2,
            lossless_merge(job, tile, nibble, exponent, kernel_load1(lows + run + i), extra));
    }
}

/* Bit 8 i: whether nibble i, in the lower half of byte i, is the escape. */
KERNEL_INLINE uint64_t lossless_escape_bits(uint64_t nibbles, uint32_t escape)
{
    /* A code that is the escape has all its bits set. */
    const uint64_t pairs = nibbles & nibbles >> 1;
    const uint64_t bits = pairs & (escape == 15 ? pairs >> 2 : nibbles >> 2);
    return bits & 0x0101010101010101ull;
}

KERNEL_INLINE uint32_t lossless_count(uint64_t bits)
{
    return kernel_count_bits((uint32_t)bits) + kernel_count_bits((uint32_t)(bits >> 32));
}

/* Escapes of a run of the tile. */
KERNEL_INLINE uint32_t lossless_run_escapes(const lossless_tile *tile, uint32_t run)
{
    const uint64_t nibbles = tile->nibbles + run * (LOSSLESS_RUN / 2);
    const uint32_t left = tile->elements - run * LOSSLESS_RUN;
    uint32_t count = 0;
    if (left < LOSSLESS_RUN) {
        for (uint32_t i = 0; i < left; i++)
            count += (lossless_field(nibbles, left, 4, i) & tile->escape) == tile->escape;
        return count;
    }
    KERNEL_UNROLL
    for (uint32_t i = 0; i < LOSSLESS_SHARE; i++) {
        const uint64_t eight = lossless_eight(nibbles + 8 * i);
        count += lossless_count(lossless_escape_bits(eight, tile->escape) |
                                lossless_escape_bits(eight >> 4, tile->escape) << 1);
    }
    return count;
}

/* Eight elements, from `index` of the tile on. nibbles: in the lower halves of the bytes; escape:
 * address of their first one. */
KERNEL_INLINE void lossless_eight_elements(const kernel_lossless_job *job, uint64_t at,
                                           const lossless_tile *tile, uint32_t first,
                                           uint32_t index, uint64_t nibbles, uint64_t escape)
{
    const uint64_t lows_at = tile->nibbles + tile->nibble_bytes, extras = lows_at + tile->elements;
    const uint64_t lows = lossless_eight(lows_at + index);
    uint64_t pairs = 0, wides[2] = {0, 0};
    uint32_t values[8];
    if (tile->escape == 7) {
        const uint32_t in_run = index % LOSSLESS_RUN;
        pairs = lossless_eight(extras + index / LOSSLESS_RUN * 32 + in_run % 32) >> in_run / 32 * 2;
    } else if (tile->extra_bytes != 0) {
        wides[0] = lossless_eight(extras + 2 * index);
        wides[1] = lossless_eight(extras + 2 * index + 8);
    }
    KERNEL_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t nibble = (uint32_t)(nibbles >> 8 * i) & 15;
        const uint32_t code = nibble & tile->escape;
        uint32_t exponent = lossless_exponent(tile, code);
        if (code == tile->escape) exponent = kernel_load1(escape++);
        const uint32_t extra = tile->escape == 7
                                   ? (uint32_t)(pairs >> 8 * i)
                                   : (uint32_t)(wides[i / 4] >> 16 * (i % 4)) & 0xffff;
        values[i] =
            lossless_merge(job, tile, nibble, exponent, (uint32_t)(lows >> 8 * i) & 0xff, extra);
    }
    lossless_store_eight(job, at, first + index, values);
}

/* ---- the tile ---- */

/* Elements that follow the head as they are. */
KERNEL_INLINE void lossless_raw_tile(const kernel_lossless_job *job, uint64_t at,
                                     const lossless_tile *tile, uint32_t first)
{
    const bool wide = job->dtype == KERNEL_FP32;
    for (uint32_t i = 8 * kernel_thread(); i < tile->elements; i += 8 * KERNEL_THREADS) {
        const uint32_t left = tile->elements - i;
        uint32_t values[8];
        if (left < 8) {
            for (uint32_t k = 0; k < left; k++) {
                const uint64_t from = tile->nibbles + (uint64_t)(i + k) * (wide ? 4 : 2);
                const uint32_t low = kernel_load1(from) | kernel_load1(from + 1) << 8;
                kernel_store_one(lossless_place_of(job, at, first + i + k), wide ? 4 : 2,
                                 wide ? lossless_word(from) : low);
            }
            return;
        }
        KERNEL_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            if (!wide && k >= 2) break;
            const uint64_t eight =
                lossless_eight(tile->nibbles + (uint64_t)i * (wide ? 4 : 2) + 8 * k);
            if (wide) {
                values[2 * k] = (uint32_t)eight;
                values[2 * k + 1] = (uint32_t)(eight >> 32);
            } else {
                KERNEL_UNROLL
                for (uint32_t n = 0; n < 4; n++)
                    values[(4 * k + n) % 8] = (uint32_t)(eight >> 16 * n) & 0xffff;
            }
        }
        lossless_store_eight(job, at, first + i, values);
    }
}

/* Makes sums of counts: sums[i] becomes what lies before count i, for LOSSLESS_RUNS of them, two a
 * thread. Returns the sum of all. warps: room for the warps' sums. */
KERNEL_INLINE uint32_t lossless_add_up(uint32_t *sums, uint32_t *warps, uint32_t own, uint32_t next)
{
    const uint32_t lane = kernel_lane();
    uint32_t before = own + next, all = 0;
    KERNEL_UNROLL
    for (uint32_t step = 1; step < KERNEL_WARP; step *= 2) {
        const uint32_t other = kernel_shuffle(before, lane >= step ? lane - step : lane);
        if (lane >= step) before += other;
    }
    if (lane == KERNEL_WARP - 1) warps[kernel_warp()] = before;
    before -= own + next;
    kernel_meet();
    for (uint32_t i = 0; i < KERNEL_THREADS / KERNEL_WARP; i++) {
        if (i < kernel_warp()) before += warps[i];
        all += warps[i];
    }
    sums[2 * kernel_thread()] = before;
    sums[2 * kernel_thread() + 1] = before + own;
    kernel_meet();
    return all;
}

/* False: the tile has other escapes than its head says. All threads come here together. */
KERNEL_INLINE bool lossless_coded_tile(const kernel_lossless_job *job, uint64_t at,
                                       const lossless_tile *tile, uint32_t first)
{
    KERNEL_SHARED uint32_t sums[LOSSLESS_RUNS], warps[KERNEL_THREADS / KERNEL_WARP];
    const uint32_t runs = (tile->elements + LOSSLESS_RUN - 1) / LOSSLESS_RUN;
    const uint32_t mine = 2 * kernel_thread();
    const uint32_t own = mine < runs ? lossless_run_escapes(tile, mine) : 0;
    const uint32_t next = mine + 1 < runs ? lossless_run_escapes(tile, mine + 1) : 0;
    if (lossless_add_up(sums, warps, own, next) != tile->escapes) return false;
    const uint64_t escapes =
        tile->nibbles + tile->nibble_bytes + tile->elements + tile->extra_bytes;
    const uint32_t whole = tile->elements / LOSSLESS_RUN, share = kernel_thread() % LOSSLESS_SHARE;
    /* Every lane of a warp goes round as often, for the sake of the shuffles. */
    for (uint32_t turn = 0; turn < whole; turn += KERNEL_THREADS / LOSSLESS_SHARE) {
        const uint32_t run = turn + kernel_thread() / LOSSLESS_SHARE;
        const bool here = run < whole;
        const uint64_t eight =
            here ? lossless_eight(tile->nibbles + run * (LOSSLESS_RUN / 2) + 8 * share) : 0;
        const uint64_t low = eight & 0x0f0f0f0f0f0f0f0full,
                       high = eight >> 4 & 0x0f0f0f0f0f0f0f0full;
        uint64_t low_at = escapes, high_at = escapes;
        if (kernel_ballot(here && (lossless_escape_bits(low, tile->escape) |
                                   lossless_escape_bits(high, tile->escape)) != 0) != 0) {
            /* Counts of both halves in one word: before this thread, and of the lower half of the
             * whole run. */
            const uint32_t counts = lossless_count(lossless_escape_bits(low, tile->escape)) |
                                    lossless_count(lossless_escape_bits(high, tile->escape)) << 16;
            const uint32_t lane = kernel_lane();
            uint32_t sum = counts;
            KERNEL_UNROLL
            for (uint32_t step = 1; step < LOSSLESS_SHARE; step *= 2) {
                const uint32_t other = kernel_shuffle(sum, share >= step ? lane - step : lane);
                if (share >= step) sum += other;
            }
            const uint32_t lower = kernel_shuffle(sum, lane | (LOSSLESS_SHARE - 1)) & 0xffff;
            sum -= counts;
            if (here) {
                low_at += sums[run] + (sum & 0xffff);
                high_at += sums[run] + lower + (sum >> 16);
            }
        }
        if (!here) continue;
        const uint32_t index = run * LOSSLESS_RUN + 8 * share;
        lossless_eight_elements(job, at, tile, first, index, low, low_at);
        lossless_eight_elements(job, at, tile, first, index + LOSSLESS_RUN / 2, high, high_at);
    }
    if (kernel_thread() == 0 && tile->elements % LOSSLESS_RUN != 0)
        lossless_short_run(job, at, tile, first, escapes + sums[whole]);
    return true;
}

KERNEL_ENTRY(2) kvt_lossless(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    const uint64_t at = kernel_job(jobs, sizeof(kernel_lossless_job), job_count);
    kernel_lossless_job job;
    KERNEL_TAKE(&job, at);
    const uint32_t wanted = kernel_block() - job.head.first_block;
    lossless_tile tile;
    uint64_t from = job.source, left = job.bytes;
    uint32_t first = 0;
    for (uint32_t i = 0;; i++) {
        const uint32_t rest = (uint32_t)job.elements - first;
        tile = lossless_read(from, left, rest < LOSSLESS_TILE ? rest : LOSSLESS_TILE, job.dtype);
        from += tile.bytes;
        left -= tile.bytes;
        if (tile.bytes == 0 || i == wanted) break;
        first += LOSSLESS_TILE;
    }
    bool sound = tile.bytes != 0;
    /* The last tile ends the segment. */
    if (first + tile.elements == job.elements && left != 0) sound = false;
    if (sound && tile.kind == 0)
        lossless_raw_tile(&job, at, &tile, first);
    else if (sound)
        sound = lossless_coded_tile(&job, at, &tile, first);
    if (!sound && kernel_thread() == 0) kernel_say(verdicts, &job.head, KERNEL_CORRUPT);
}
