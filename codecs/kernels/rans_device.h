/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_device.h - streams of symbols (rans.h, rans_stream.h) as kernels of a GPU read them. For
 * .cu files.
 *
 * A stream is one chain: state i takes its byte behind those of all states before it. One warp
 * walks it, a turn of up to 128 states at a time; a lane has neighbouring states, and ballots tell
 * it how many bytes the lanes before it take.
 *
 * A table is made by one thread for its bits, and by all threads of the block for its slots.
 */
#ifndef CODECS_RANS_DEVICE_H
#define CODECS_RANS_DEVICE_H

#include "kernel_words.h"

enum {
    CHAIN_SLOTS = 256,
    CHAIN_STEP = 163, /* from slot to slot of a table, in the order of its symbols */
    CHAIN_STATE_LEAST = 256,
    CHAIN_LANE_STATES = 4, /* at most */
    CHAIN_CHUNK = 2048     /* symbols that are walked before others have them: whole turns */
};

/* Every state of a lane, by numbers that are constants, so that states stay in registers. */
#define CHAIN_EACH(k, each)                                                                        \
    KERNEL_UNROLL                                                                                  \
    for (uint32_t k = 0; k < CHAIN_LANE_STATES; k++)                                               \
        if (k < (each))

KERNEL_INLINE uint32_t chain_load4(uint64_t address)
{
    return kernel_load1(address) | kernel_load1(address + 1) << 8 |
           kernel_load1(address + 2) << 16 | kernel_load1(address + 3) << 24;
}

KERNEL_INLINE uint32_t chain_load2(uint64_t address)
{
    return kernel_load1(address) | kernel_load1(address + 1) << 8;
}

/* The good number of states of a stream. */
KERNEL_INLINE uint32_t chain_state_count(uint64_t symbols)
{
    return symbols < 16384 ? 16 : symbols < 131072 ? 64 : 128;
}

/* ---- a stream and its table ---- */

/* A stream whose parts lie inside of the segment. */
typedef struct chain_stream {
    uint64_t next; /* address behind it; 0: no encoder wrote it */
    uint64_t table;
    uint64_t escapes;
    uint64_t states;
    uint64_t code;
    uint32_t escape_count;
    uint32_t table_bytes;
    uint32_t state_count;
} chain_stream;

/* The stream of so many symbols at `at`, before `end`. */
KERNEL_INLINE chain_stream chain_open(uint64_t at, uint64_t end, uint64_t symbols)
{
    chain_stream stream = {0, 0, 0, 0, 0, 0, 0, 0};
    if (end - at < 12) return stream;
    const uint64_t code_bytes = chain_load4(at);
    stream.escape_count = chain_load4(at + 4);
    stream.table_bytes = kernel_load1(at + 8);
    stream.state_count = kernel_load1(at + 9);
    if (chain_load2(at + 10) != 0 || stream.table_bytes == 0) return stream;
    if (stream.state_count != chain_state_count(symbols)) return stream;
    stream.table = at + 12;
    stream.escapes = stream.table + stream.table_bytes;
    stream.states = stream.escapes + stream.escape_count;
    stream.code = stream.states + 2 * stream.state_count;
    if (end - at < stream.code + code_bytes - at) return stream;
    stream.next = stream.code + code_bytes;
    return stream;
}

/* Shared by the threads of a block while they make a table. */
typedef struct chain_table {
    uint32_t order[CHAIN_SLOTS]; /* symbols by slot */
    uint32_t frequencies[CHAIN_SLOTS];
    uint32_t wrong;
} chain_table;

/* The frequencies of a stored table (rans_write_table), by one thread. False: it is not sound. */
KERNEL_INLINE bool chain_read_table(uint64_t table, uint32_t table_bytes, uint32_t *frequencies)
{
    if (table_bytes < 2) return false;
    const uint32_t first = kernel_load1(table), last = kernel_load1(table + 1);
    uint32_t held = 0, count = 0, byte = 2, sum = 0, others = 0;
    if (first == 0 || first > last) return false;
    for (uint32_t s = 0; s <= last; s = s == 0 ? first : s + 1) {
        uint32_t frequency = 0, width = 0;
        for (uint32_t part = 0; part < 2; part++) {
            const uint32_t bits = part == 0 ? 4 : width > 1 ? width - 1 : 0;
            while (count < bits) {
                if (byte == table_bytes) return false;
                held |= kernel_load1(table + byte++) << count;
                count += 8;
            }
            const uint32_t value = held & ((1u << bits) - 1);
            held >>= bits;
            count -= bits;
            if (part == 0) width = value;
            if (width > 8) return false;
            if (part == 1 && width > 0) frequency = (1u << (width - 1)) + value;
        }
        frequencies[s] = frequency & 0xff;
        sum += frequency & 0xff;
        others += s != 0 && (frequency & 0xff) != 0;
    }
    return frequencies[0] != 0 && frequencies[first] != 0 && frequencies[last] != 0 && held == 0 &&
           byte == table_bytes && sum == CHAIN_SLOTS && others >= 1 && others <= 127;
}

/* Makes the slots of a stream's table, frequency << 16 | rank << 8 | symbol; all threads. False:
 * the table is not sound. */
KERNEL_INLINE bool chain_make_slots(const chain_stream *stream, chain_table *room, uint32_t *slots)
{
    const uint32_t own = kernel_thread();
    room->frequencies[own] = 0;
    kernel_meet();
    if (own == 0) {
        room->wrong = !chain_read_table(stream->table, stream->table_bytes, room->frequencies);
        uint32_t slot = 0;
        for (uint32_t s = 0; s < CHAIN_SLOTS && !room->wrong; s++)
            for (uint32_t i = 0; i < room->frequencies[s]; i++) {
                room->order[slot] = s;
                slot = (slot + CHAIN_STEP) % CHAIN_SLOTS;
            }
    }
    kernel_meet();
    if (room->wrong) return false;
    uint32_t rank = 0;
    for (uint32_t slot = 0; slot < own; slot++)
        rank += room->order[slot] == room->order[own];
    slots[own] = room->frequencies[room->order[own]] << 16 | rank << 8 | room->order[own];
    kernel_meet();
    return true;
}

/* ---- walking: one warp ---- */

typedef struct chain_walk {
    uint32_t states[CHAIN_LANE_STATES]; /* neighbours */
    uint32_t each;                      /* of a lane */
    uint32_t damaged;                   /* of this lane: something was missing */
    uint64_t code;                      /* the next byte */
    uint64_t code_end;
} chain_walk;

#define CHAIN_WALK_NONE                                                                            \
    {                                                                                              \
        {0, 0, 0, 0}, 0, 0, 0, 0                                                                   \
    }

/* Starts at states that are stored. */
KERNEL_INLINE void chain_start(chain_walk *walk, uint64_t states, uint32_t state_count,
                               uint64_t code, uint64_t code_end)
{
    walk->each = state_count < KERNEL_WARP ? 1 : state_count / KERNEL_WARP;
    walk->damaged = 0;
    walk->code = code;
    walk->code_end = code_end;
    CHAIN_EACH(k, CHAIN_LANE_STATES)
    {
        const uint32_t state = walk->each * kernel_lane() + k;
        walk->states[k] = CHAIN_STATE_LEAST;
        if (k >= walk->each || state >= state_count) continue;
        walk->states[k] = chain_load2(states + 2 * state);
        walk->damaged |= walk->states[k] < CHAIN_STATE_LEAST;
    }
}

/* How many of `flags`, bit k for this lane's symbol k, lie before this lane; and in all. */
KERNEL_INLINE uint32_t chain_before(uint32_t flags, uint32_t each, uint32_t *all_out)
{
    const uint32_t below = (1u << kernel_lane()) - 1;
    uint32_t before = 0, all = 0;
    CHAIN_EACH(k, each)
    {
        const uint32_t mask = kernel_ballot((flags >> k & 1) != 0);
        before += kernel_count_bits(mask & below);
        all += kernel_count_bits(mask);
    }
    *all_out = all;
    return before;
}

/* One turn: a symbol of each state, of which `count` are there. Returns bit k where this lane's
 * symbol k is 0, the escape. */
KERNEL_INLINE uint32_t chain_turn(chain_walk *walk, const uint32_t *slots, uint32_t count,
                                  uint32_t symbols[CHAIN_LANE_STATES])
{
    const uint32_t first = walk->each * kernel_lane();
    uint32_t due = 0, empty = 0, all;
    CHAIN_EACH(k, CHAIN_LANE_STATES)
    symbols[k] = 1;
    CHAIN_EACH(k, walk->each)
    {
        if (first + k >= count) continue;
        const uint32_t x = walk->states[k], slot = slots[x % CHAIN_SLOTS];
        symbols[k] = slot & 0xff;
        walk->states[k] = (slot >> 16) * (x >> 8) + (slot >> 8 & 0xff);
        due |= (uint32_t)(walk->states[k] < CHAIN_STATE_LEAST) << k;
        empty |= (uint32_t)(symbols[k] == 0) << k;
    }
    uint64_t at = walk->code + chain_before(due, walk->each, &all);
    CHAIN_EACH(k, walk->each)
    {
        if ((due >> k & 1) == 0) continue;
        const bool here = at < walk->code_end;
        walk->states[k] = walk->states[k] << 8 | (here ? kernel_load1(at) : 0);
        walk->damaged |= !here;
        at++;
    }
    walk->code += all;
    return empty;
}

/* Asks for the lines of code behind those of the chunk that comes. */
KERNEL_INLINE void chain_ahead(const chain_walk *walk)
{
    const uint64_t ahead = walk->code + CHAIN_CHUNK + 64 * kernel_lane();
    if (ahead < walk->code_end) kernel_ahead(ahead);
}

/* Whether this lane's part of the chain ended as a sound one does. */
KERNEL_INLINE bool chain_finish(const chain_walk *walk)
{
    bool sound = walk->damaged == 0 && walk->code == walk->code_end;
    CHAIN_EACH(k, walk->each)
    sound = sound && walk->states[k] == CHAIN_STATE_LEAST;
    return sound;
}

#endif
