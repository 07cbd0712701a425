/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hex.h - bytes from their hexadecimal digits.
 *
 * Thread rule: pure.
 */
#ifndef BASE_HEX_H
#define BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The value of a digit, or -1. */
static inline int base_hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

/* Reads 2 x count digits. False: one of them is none; the bytes before it are read. */
static inline bool base_hex_read(const char *text, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int high = base_hex_digit(text[2 * i]);
        const int low = high < 0 ? -1 : base_hex_digit(text[2 * i + 1]);
        if (low < 0) return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

#endif
