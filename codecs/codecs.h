/*
 * codecs.h - what the files of this room share: the codecs behind the table and the arithmetic of
 * alignment. Thread rule: everything here is re-entrant and without state.
 */
#ifndef CODECS_CODECS_H
#define CODECS_CODECS_H

#include <kvterrace/codec.h>

#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvterrace records are little-endian and are read in place: big-endian hosts are refused"
#endif

extern const kvt_codec codecs_raw;
extern const kvt_codec codecs_lossless;

/* Rounds up to a power of two. The caller keeps value far below 2^64. */
static inline uint64_t codecs_align(uint64_t value, uint64_t step)
{
    return (value + step - 1) & ~(step - 1);
}

static inline uint32_t codecs_load32(const uint8_t *source)
{
    uint32_t value;
    memcpy(&value, source, sizeof value);
    return value;
}

static inline void codecs_store32(uint8_t *target, uint32_t value)
{
    memcpy(target, &value, sizeof value);
}

#endif
