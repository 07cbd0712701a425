/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.h - qsort's comparisons of plain numbers, for medians and quantiles. Not a number has no
 * place in the order; callers keep it out. Pure; any thread.
 */
#ifndef BASE_ORDER_H
#define BASE_ORDER_H

#include <stdint.h>

static inline int base_order_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static inline int base_order_floats(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
}

static inline int base_order_u64(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

#endif
