/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_rest.h - what is left of a record while it is read front to back.
 *
 * Thread rule: plain data, any thread. Inline.
 */
#ifndef SERVE_WIRE_RECORD_REST_H
#define SERVE_WIRE_RECORD_REST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct record_rest {
    const uint8_t *at;
    size_t left;
} record_rest;

/* Takes the structure that comes next, of `size` bytes here and in the first version. False: it is
 * cut, smaller, or says more than is known here. */
static inline bool record_take(record_rest *from, void *out, size_t size)
{
    uint32_t has;
    if (from->left < sizeof has) return false;
    memcpy(&has, from->at, sizeof has);
    if (has < size || has > from->left || has % 8 != 0) return false;
    for (size_t i = size; i < has; i++)
        if (from->at[i] != 0) return false;
    memcpy(out, from->at, size);
    from->at += has;
    from->left -= has;
    return true;
}

#endif
