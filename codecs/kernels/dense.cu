/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dense.cu - matrices of codec lossless, mode dense (lossless_dense.h): a block of threads decodes
 * a tile of up to 256 tokens by 1024 channels.
 *
 * A tile's place follows from the heads before it, so that one thread walks these; a matrix has
 * few. A tile has one stream of symbols, or, where its lows are coded, two, each of a symbol an
 * element. Warp 0 walks the stream of exponents, warp 1 that of lows if there is one, a chunk at a
 * time; the other warps make elements of the chunk before.
 */
#include "lossless_device.h"
#include "rans_device.h"

enum {
    DENSE_HEAD = 4,
    DENSE_RAW = 0, /* kinds */
    DENSE_BYTE = 1,
    DENSE_FP16 = 2,
    DENSE_FP8 = 3,
    DENSE_BASES = 1, /* flags */
    DENSE_NO_EXTRAS = 2,
    DENSE_NARROW = 4,
    DENSE_CODED_LOWS = 8
};

/* A tile whose parts lie inside of the segment. */
typedef struct dense_tile {
    uint64_t next; /* address behind it; 0: no encoder wrote it */
    uint64_t bases;
    uint64_t extras; /* of a raw tile its elements */
    uint64_t lows;
    chain_stream symbols;
    chain_stream coded_lows;
    uint32_t token; /* of the matrix, its first one */
    uint32_t channel;
    uint32_t tokens;
    uint32_t channels;
    uint32_t kind;
    uint32_t flags;
} dense_tile;

/* What the threads of a block share. */
typedef struct dense_room {
    dense_tile tile;
    uint8_t chunks[2][2][CHAIN_CHUNK]; /* of exponents and of lows: symbols */
    uint32_t slots[2][CHAIN_SLOTS];
    chain_table table;
} dense_room;

KERNEL_INLINE uint32_t dense_element_bytes(const kernel_dense_job *job)
{
    return job->dtype == KERNEL_FP32 ? 4 : job->dtype == KERNEL_FP8 ? 1 : 2;
}

/* Whether kind and flags are ones that the dtype has. */
KERNEL_INLINE bool dense_head_sound(uint32_t dtype, uint32_t kind, uint32_t flags)
{
    uint32_t allowed = DENSE_BASES | DENSE_CODED_LOWS, needed = 0, wanted = DENSE_BYTE;
    if (kind == DENSE_RAW) return flags == 0;
    if (dtype == KERNEL_FP8) {
        wanted = DENSE_FP8;
        allowed = DENSE_BASES;
    } else if (dtype == KERNEL_FP16 && kind == DENSE_FP16) {
        wanted = DENSE_FP16;
    } else if (dtype == KERNEL_FP16) {
        allowed |= DENSE_NARROW;
        needed = DENSE_NARROW;
    } else if (dtype == KERNEL_FP32) {
        allowed |= DENSE_NO_EXTRAS;
    }
    return kind == wanted && (flags & ~allowed) == 0 && (flags & needed) == needed;
}

/* Bytes of nibbles or of three bits an element. */
KERNEL_INLINE uint32_t dense_extra_bytes(uint32_t dtype, uint32_t kind, uint32_t flags,
                                         uint32_t elements)
{
    if (kind == DENSE_FP8)
        return elements / LOSSLESS_RUN * (LOSSLESS_RUN / 2) + (elements % LOSSLESS_RUN + 1) / 2;
    if (kind == DENSE_FP16) return (3 * elements + 7) / 8;
    return dtype == KERNEL_FP32 && (flags & DENSE_NO_EXTRAS) == 0 ? 2 * elements : 0;
}

/* Finds the parts of the tile at `at`, before `end`. */
KERNEL_INLINE void dense_open(const kernel_dense_job *job, uint64_t at, uint64_t end,
                              dense_tile *tile)
{
    const uint32_t elements = tile->tokens * tile->channels;
    tile->next = 0;
    if (end - at < DENSE_HEAD) return;
    tile->kind = kernel_load1(at);
    tile->flags = kernel_load1(at + 1);
    if (chain_load2(at + 2) != 0 || !dense_head_sound(job->dtype, tile->kind, tile->flags)) return;
    at += DENSE_HEAD;
    tile->bases = tile->extras = at;
    if (tile->kind == DENSE_RAW) {
        const uint64_t bytes = (uint64_t)elements * dense_element_bytes(job);
        if (end - at >= bytes) tile->next = at + bytes;
        return;
    }
    if (tile->flags & DENSE_BASES) tile->extras += tile->channels;
    tile->lows = tile->extras + dense_extra_bytes(job->dtype, tile->kind, tile->flags, elements);
    const uint64_t before = tile->lows - at;
    if (end - at < before) return;
    at = tile->lows;
    if (tile->flags & DENSE_CODED_LOWS) {
        tile->coded_lows = chain_open(at, end, elements);
        at = tile->coded_lows.next;
        if (at == 0) return;
    } else if (tile->kind != DENSE_FP8) {
        if (end - at < elements) return;
        at += elements;
    }
    tile->symbols = chain_open(at, end, elements);
    tile->next = tile->symbols.next;
}

/* Walks to a tile of the segment, by one thread. */
KERNEL_INLINE void dense_find(const kernel_dense_job *job, uint32_t wanted, dense_tile *tile)
{
    const uint64_t end = job->source + job->bytes;
    uint64_t at = job->source;
    tile->token = tile->channel = 0;
    tile->lows = 0;
    tile->symbols = tile->coded_lows = chain_open(at, at, 0); /* none */
    for (uint32_t i = 0;; i++) {
        const uint32_t tokens = job->tokens - tile->token, channels = job->row - tile->channel;
        tile->tokens = tokens < KERNEL_DENSE_TOKENS ? tokens : KERNEL_DENSE_TOKENS;
        tile->channels = channels < KERNEL_DENSE_CHANNELS ? channels : KERNEL_DENSE_CHANNELS;
        dense_open(job, at, end, tile);
        at = tile->next;
        if (at == 0 || i == wanted) break;
        tile->channel += tile->channels;
        if (tile->channel < job->row) continue;
        tile->channel = 0;
        tile->token += tile->tokens;
    }
    /* The last tile ends the segment. */
    if (tile->token + tile->tokens == job->tokens && tile->channel + tile->channels == job->row &&
        tile->next != end)
        tile->next = 0;
}

/* ---- elements ---- */

/* The sign and two or three bits of the mantissa of element i. */
KERNEL_INLINE uint32_t dense_few(const dense_tile *tile, uint32_t i)
{
    if (tile->kind == DENSE_FP8) {
        const uint32_t run = i / LOSSLESS_RUN * LOSSLESS_RUN;
        const uint32_t left = tile->tokens * tile->channels - run;
        return lossless_field(tile->extras + run / 2, left < LOSSLESS_RUN ? left : LOSSLESS_RUN, 4,
                              i - run);
    }
    const uint64_t at = tile->extras + 3 * i / 8;
    const uint32_t shift = 3 * i % 8;
    return (kernel_load1(at) | (shift > 5 ? kernel_load1(at + 1) << 8 : 0)) >> shift & 7;
}

/* Element i of its symbol and its low bits. */
KERNEL_INLINE uint32_t dense_merge(uint32_t dtype, const dense_tile *tile, uint32_t i,
                                   uint32_t symbol, uint32_t base, uint32_t low)
{
    const uint32_t exponent = (128 + base - symbol) & 0xff, sign = low & 0x80;
    if (dtype == KERNEL_BF16) return sign << 8 | exponent << 7 | (low & 0x7f);
    if (dtype == KERNEL_FP32) {
        const bool none = (tile->flags & DENSE_NO_EXTRAS) != 0;
        const uint32_t extra = none ? 0 : chain_load2(tile->extras + 2 * (uint64_t)i);
        return sign << 24 | exponent << 23 | (low & 0x7f) << 16 | extra;
    }
    if (tile->kind == DENSE_BYTE) return sign << 8 | (exponent & 0x1f) << 10 | (low & 0x7f) << 3;
    const uint32_t few = dense_few(tile, i);
    if (dtype == KERNEL_FP8) return (few & 8) << 4 | (exponent & 15) << 3 | (few & 7);
    return (few & 4) << 13 | (exponent & 0x1f) << 10 | (few & 3) << 8 | low;
}

/* Element i, whose symbols are in one of the two chunks. */
KERNEL_INLINE uint32_t dense_element(uint32_t dtype, const dense_room *room, uint32_t chunk,
                                     uint32_t i, uint32_t channel)
{
    const dense_tile *tile = &room->tile;
    const uint32_t in_chunk = i % CHAIN_CHUNK;
    const uint32_t base = tile->flags & DENSE_BASES ? kernel_load1(tile->bases + channel) : 0;
    uint32_t low = 0;
    if (tile->flags & DENSE_CODED_LOWS)
        low = (room->chunks[1][chunk][in_chunk] - 1u) & 0xff;
    else if (tile->kind != DENSE_FP8)
        low = kernel_load1(tile->lows + i);
    return dense_merge(dtype, tile, i, room->chunks[0][chunk][in_chunk], base, low);
}

/* The same, as it is. */
KERNEL_INLINE uint32_t dense_raw_element(const dense_tile *tile, uint32_t element_bytes, uint32_t i)
{
    const uint64_t at = tile->extras + (uint64_t)i * element_bytes;
    if (element_bytes == 4) return lossless_word(at);
    return element_bytes == 2 ? chain_load2(at) : kernel_load1(at);
}

/* Stores elements [first, first + count) of the tile, whose symbols are in a chunk, by the threads
 * from `from` on. */
KERNEL_INLINE void dense_store(const kernel_dense_job *job, uint64_t at, const dense_room *room,
                               uint32_t chunk, uint32_t first, uint32_t count, uint32_t from)
{
    const dense_tile *tile = &room->tile;
    const uint32_t element_bytes = dense_element_bytes(job);
    const uint32_t together = lossless_neighbours(&job->target, element_bytes) ? 8 : 1;
    const uint64_t target = at + offsetof(kernel_dense_job, target);
    for (uint32_t i = first + together * (kernel_thread() - from); i < first + count;
         i += together * (KERNEL_THREADS - from)) {
        const uint32_t token = i / tile->channels, channel = i - token * tile->channels;
        const uint64_t place = lossless_place(&job->target, target, tile->token + token,
                                              tile->channel + channel, element_bytes);
        uint32_t values[8];
        KERNEL_UNROLL
        for (uint32_t k = 0; k < 8; k++) {
            if (k >= together) break;
            values[k] = tile->kind == DENSE_RAW
                            ? dense_raw_element(tile, element_bytes, i + k)
                            : dense_element(job->dtype, room, chunk, i + k, channel + k);
        }
        if (together == 8)
            lossless_store(place, element_bytes, job->transfer_bytes, values);
        else
            kernel_store_one(place, element_bytes, values[0]);
    }
}

/* Whether the bits behind the last element's are zero, by one thread. */
KERNEL_INLINE bool dense_ends_clear(const dense_tile *tile)
{
    const uint32_t elements = tile->tokens * tile->channels;
    const uint32_t bits = tile->kind == DENSE_FP16  ? 3 * elements % 8
                          : tile->kind == DENSE_FP8 ? 4 * elements % 8
                                                    : 0;
    return bits == 0 || kernel_load1(tile->lows - 1) >> bits == 0;
}

/* ---- the tile ---- */

/* One turn of a stream, by its warp. */
KERNEL_INLINE void dense_turn(const chain_stream *stream, const uint32_t *slots, chain_walk *walk,
                              uint32_t *escapes, uint32_t count, uint8_t *chunk)
{
    const uint32_t first = walk->each * kernel_lane();
    uint32_t symbols[CHAIN_LANE_STATES], all;
    const uint32_t empty = chain_turn(walk, slots, count, symbols);
    if (kernel_ballot(empty != 0) != 0) {
        uint32_t next = *escapes + chain_before(empty, walk->each, &all);
        *escapes += all;
        CHAIN_EACH(k, walk->each)
        {
            if ((empty >> k & 1) == 0) continue;
            if (next < stream->escape_count)
                symbols[k] = kernel_load1(stream->escapes + next);
            else
                walk->damaged = 1;
            next++;
        }
    }
    CHAIN_EACH(k, walk->each)
    if (first + k < count) chunk[first + k] = (uint8_t)symbols[k];
}

/* All threads. False: no encoder wrote the tile. */
KERNEL_INLINE bool dense_tile_decode(const kernel_dense_job *job, uint64_t at, dense_room *room)
{
    const dense_tile *tile = &room->tile;
    const uint32_t elements = tile->tokens * tile->channels, own = kernel_warp();
    const uint32_t chunks = (elements + CHAIN_CHUNK - 1) / CHAIN_CHUNK;
    const uint32_t walkers = tile->flags & DENSE_CODED_LOWS ? 2 : 1;
    const chain_stream *stream = own == 0 ? &tile->symbols : &tile->coded_lows;
    uint32_t escapes = 0; /* taken */
    chain_walk walk = CHAIN_WALK_NONE;
    if (!chain_make_slots(&tile->symbols, &room->table, room->slots[0])) return false;
    if (walkers == 2 && !chain_make_slots(&tile->coded_lows, &room->table, room->slots[1]))
        return false;
    if (own < walkers)
        chain_start(&walk, stream->states, stream->state_count, stream->code, stream->next);
    for (uint32_t chunk = 0; chunk <= chunks; chunk++) {
        kernel_meet();
        if (own < walkers && chunk < chunks) {
            const uint32_t left = elements - chunk * CHAIN_CHUNK, states = stream->state_count;
            const uint32_t count = left < CHAIN_CHUNK ? left : CHAIN_CHUNK;
            chain_ahead(&walk);
            for (uint32_t turn = 0; turn < count; turn += states) {
                const uint32_t rest = count - turn;
                dense_turn(stream, room->slots[own], &walk, &escapes, rest < states ? rest : states,
                           room->chunks[own][chunk % 2] + turn);
            }
        }
        if (own < walkers || chunk == 0) continue;
        const uint32_t first = (chunk - 1) * CHAIN_CHUNK;
        dense_store(job, at, room, (chunk - 1) % 2, first,
                    elements - first < CHAIN_CHUNK ? elements - first : CHAIN_CHUNK,
                    walkers * KERNEL_WARP);
    }
    if (own < walkers) return chain_finish(&walk) && escapes == stream->escape_count;
    return kernel_thread() != walkers * KERNEL_WARP || dense_ends_clear(tile);
}

KERNEL_ENTRY(2) kvt_dense(uint64_t jobs, uint32_t job_count, uint64_t verdicts)
{
    KERNEL_SHARED dense_room room;
    const uint64_t at = kernel_job(jobs, sizeof(kernel_dense_job), job_count);
    kernel_dense_job job;
    KERNEL_TAKE(&job, at);
    if (kernel_thread() == 0) dense_find(&job, kernel_block() - job.head.first_block, &room.tile);
    kernel_meet();
    bool sound = room.tile.next != 0;
    if (sound && room.tile.kind == DENSE_RAW)
        dense_store(&job, at, &room, 0, 0, room.tile.tokens * room.tile.channels, 0);
    else if (sound)
        sound = dense_tile_decode(&job, at, &room);
    if (!sound) kernel_say(verdicts, &job.head, KERNEL_CORRUPT);
}
