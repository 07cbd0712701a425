/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct_size.h - public structs of callers that were built against another version: one that a
 * call reads is taken in, one that a call fills is given out.
 *
 * A public struct begins with a uint32_t struct_size, sizeof of the caller's struct. `size` is
 * sizeof in this library, `least` the size in version 0.2.0 (STRUCT_SIZE_THROUGH its last member).
 * types.h has the rule. Nothing is allocated here. Re-entrant; inline.
 */
#ifndef BASE_STRUCT_SIZE_H
#define BASE_STRUCT_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STRUCT_SIZE_MAX 65536u /* a larger one is not a size but chance */

/* The bytes of a struct from its beginning to the end of a member. */
#define STRUCT_SIZE_THROUGH(type, member) (offsetof(type, member) + sizeof((type *)NULL)->member)

static inline uint32_t struct_size_of(const void *given)
{
    uint32_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static inline bool struct_size_is_sound(const void *given, size_t least)
{
    uint32_t size = struct_size_of(given);
    return size >= least && size <= STRUCT_SIZE_MAX;
}

/* The caller's struct as this library knows it: `given` itself when it has the same size, else a
 * copy in `whole`, which holds the defaults. NULL when struct_size is unsound, or when a member is
 * set that this library does not know. */
static inline const void *struct_size_in(const void *given, void *whole, size_t size, size_t least)
{
    uint32_t has = struct_size_of(given);
    if (has == size) return given;
    if (!struct_size_is_sound(given, least)) return NULL;
    for (size_t i = size; i < has; i++)
        if (((const unsigned char *)given)[i] != 0) return NULL;
    memcpy(whole, given, has < size ? has : size);
    uint32_t own = (uint32_t)size;
    memcpy(whole, &own, sizeof own);
    return whole;
}

/* Copies a filled struct of this library to the caller's, whose struct_size is sound and stays. */
static inline void struct_size_out(void *given, const void *whole, size_t size)
{
    uint32_t has = struct_size_of(given);
    memcpy(given, whole, has < size ? has : size);
    if (has > size) memset((unsigned char *)given + size, 0, has - size);
    memcpy(given, &has, sizeof has);
}

#endif
