/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans.c - the scalar coder, which is the specification, and the choice of a faster one. See
 * rans.h; tables are made in rans_table.c. Re-entrant.
 */
#include "rans.h"

#include "codecs/kernels/cpu.h"

#include <assert.h>
#include <string.h>

enum { RANS_STATES_FEW = 16, RANS_STATES_SOME = 64 };

uint32_t rans_state_count(uint64_t symbols)
{
    /* A state costs about three bytes; more of them hide more latency. */
    if (symbols < 16384) return RANS_STATES_FEW;
    return symbols < 131072 ? RANS_STATES_SOME : RANS_STATES_MAX;
}

/* Codes symbols[first .. last) backwards. Returns false when the room is too small. A byte is
 * written whether it is due or not, while there is room for it: a branch would often be missed. */
static bool rans_encode_scalar(const rans_encode_table *table, const uint8_t *symbols,
                               uint64_t first, uint64_t last, uint32_t state_count,
                               const uint8_t *begin, uint8_t **at, uint16_t *states)
{
    uint8_t *next = *at;
    const uint64_t mask = state_count - 1;
    for (uint64_t i = last; i-- > first;) {
        const uint32_t range = table->range[symbols[i]];
        const uint32_t frequency = range & 0xffffu;
        uint32_t x = states[i & mask];
        const uint32_t due = x >> RANS_SCALE_BITS >= frequency ? 1 : 0;
        if (next > begin) {
            next[-1] = (uint8_t)x;
        } else if (due) {
            return false;
        }
        next -= due;
        x >>= 8 * due;
        const uint32_t quotient = x / frequency;
        const uint32_t rank = x - quotient * frequency;
        states[i & mask] =
            (uint16_t)(quotient << RANS_SCALE_BITS | table->slot[(range >> 16) + rank]);
    }
    *at = next;
    return true;
}

void rans_encode_start(uint32_t state_count, uint16_t *states)
{
    for (uint32_t i = 0; i < state_count; i++) {
        states[i] = RANS_STATE_MIN;
    }
}

uint8_t *rans_encode(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                     uint32_t state_count, uint8_t *begin, uint8_t *end, uint16_t *states)
{
    assert(state_count > 0 && state_count <= RANS_STATES_MAX);
    rans_encode_start(state_count, states);
    return rans_encode_more(table, symbols, count, state_count, begin, end, states);
}

uint8_t *rans_encode_more(const rans_encode_table *table, const uint8_t *symbols, uint64_t count,
                          uint32_t state_count, uint8_t *begin, uint8_t *end, uint16_t *states)
{
    assert(state_count > 0 && state_count <= RANS_STATES_MAX);
    assert((state_count & (state_count - 1)) == 0); /* states take turns by a mask */
    assert(begin <= end);
    uint8_t *at = end;
    uint64_t whole = count - count % state_count;
    if (!rans_encode_scalar(table, symbols, whole, count, state_count, begin, &at, states)) {
        return NULL;
    }
#if defined(__x86_64__)
    codecs_cpu level = codecs_cpu_level();
    if (level >= CODECS_CPU_AVX512 && state_count > RANS_STATES_FEW) {
        whole = rans_encode_avx512(table, symbols, whole, state_count, begin, &at, states);
    } else if (level >= CODECS_CPU_AVX2) {
        whole = rans_encode_avx2(table, symbols, whole, state_count, begin, &at, states);
    }
#endif
    if (!rans_encode_scalar(table, symbols, 0, whole, state_count, begin, &at, states)) {
        return NULL;
    }
    assert(at >= begin && at <= end);
    return at;
}

kvt_status rans_decode_start(rans_decoder *decoder, const rans_decode_table *table,
                             uint32_t state_count, const uint8_t *states, const uint8_t *bytes,
                             uint64_t byte_count)
{
    assert(state_count > 0 && state_count <= RANS_STATES_MAX);
    assert((state_count & (state_count - 1)) == 0);
    decoder->table = table;
    decoder->at = bytes;
    decoder->end = bytes + byte_count;
    decoder->state_count = state_count;
    decoder->damaged = false;
    memcpy(decoder->states, states, (size_t)state_count * RANS_STATE_BYTES);
    for (uint32_t i = 0; i < state_count; i++) {
        if (decoder->states[i] < RANS_STATE_MIN) return KVT_E_CORRUPT;
    }
    return KVT_OK;
}

/* A byte is read whether it is due or not, while there are any: see above. */
static void rans_decode_scalar(rans_decoder *decoder, uint8_t *symbols, uint64_t count)
{
    const uint64_t mask = decoder->state_count - 1;
    const uint8_t *at = decoder->at;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t x = decoder->states[i & mask];
        const uint32_t entry = decoder->table->entry[x % RANS_SCALE];
        symbols[i] = (uint8_t)entry;
        x = (entry >> 16) * (x >> RANS_SCALE_BITS) + (entry >> 8 & 0xff);
        const uint32_t due = x < RANS_STATE_MIN ? 1 : 0;
        uint32_t next = 0;
        if (at < decoder->end) {
            next = *at & (0u - due);
            at += due;
        } else if (due) {
            decoder->damaged = true;
        }
        decoder->states[i & mask] = (uint16_t)(x << 8 * due | next);
    }
    decoder->at = at;
}

void rans_decode(rans_decoder *decoder, uint8_t *symbols, uint64_t count)
{
    uint64_t done = 0;
#if defined(__x86_64__)
    codecs_cpu level = codecs_cpu_level();
    if (level >= CODECS_CPU_AVX512 && decoder->state_count > RANS_STATES_FEW) {
        done = rans_decode_avx512(decoder, symbols, count);
    } else if (level >= CODECS_CPU_AVX2) {
        done = rans_decode_avx2(decoder, symbols, count);
    }
#endif
    assert(done <= count && decoder->at <= decoder->end);
    rans_decode_scalar(decoder, symbols + done, count - done);
    assert(decoder->at <= decoder->end);
}

bool rans_decode_finish(const rans_decoder *decoder)
{
    bool sound = !decoder->damaged && decoder->at == decoder->end;
    for (uint32_t i = 0; i < decoder->state_count; i++) {
        sound = sound && decoder->states[i] == RANS_STATE_MIN;
    }
    return sound;
}
