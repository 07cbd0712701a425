/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_value.c - the result of one lane, as the PTX manual defines each instruction. Nothing here is
 * the library's: the arithmetic of halves and the roundings are an oracle of their own.
 */
#include "ptx_module.h"

#include <math.h>
#include <string.h>

/* Floats. Every value is computed as a double: a sum, product, quotient or root of two values of at
 * most 24 bits, rounded to 53 and then to 24 or fewer, is what one rounding gives. */

typedef struct format {
    int mantissa, least; /* bits behind the point; the exponent of the least normal number */
    uint64_t nan;
} format;

static format format_of(ptx_type type)
{
    switch (type) {
    case PTX_F16: return (format){10, -14, 0x7fff};
    case PTX_BF16: return (format){7, -126, 0x7fff};
    case PTX_F32: return (format){23, -126, 0x7fffffff};
    default: return (format){52, -1022, UINT64_C(0x7fffffffffffffff)};
    }
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A value of a format as a double, which holds each exactly. */
static double widen(ptx_type type, uint64_t bits)
{
    if (type == PTX_F64) return double_of(bits);
    if (type == PTX_F32 || type == PTX_BF16) {
        const uint32_t word = (uint32_t)(type == PTX_BF16 ? bits << 16 : bits);
        float value;
        memcpy(&value, &word, sizeof value);
        return (double)value;
    }
    const int exponent = (int)(bits >> 10 & 31);
    const double mantissa = (double)(bits & 1023);
    double value = exponent == 0    ? ldexp(mantissa, -24)
                   : exponent == 31 ? (mantissa > 0 ? NAN : INFINITY)
                                    : ldexp(mantissa + 1024, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
}

/* mantissa * 2^exponent, and a little more when `more`, rounded to a format. */
static uint64_t compose(ptx_type type, bool negative, uint64_t mantissa, int exponent, bool more,
                        uint8_t rounding)
{
    const format to = format_of(type);
    const uint64_t sign = negative ? UINT64_C(1) << (ptx_type_bits(type) - 1) : 0;
    if (mantissa == 0) return sign;
    const int zeros = __builtin_clzll(mantissa);
    mantissa <<= zeros;
    int top = exponent - zeros + 63; /* the exponent of the first bit */
    int drop = 63 - to.mantissa;
    if (top < to.least) drop += to.least - top;
    uint64_t kept = drop > 63 ? 0 : mantissa >> drop;
    const uint64_t lost = drop > 63 ? mantissa : mantissa & ptx_ones((uint32_t)drop);
    const uint64_t half = drop > 64 ? 0 : UINT64_C(1) << (drop - 1);
    const bool inexact = lost != 0 || more;
    bool up = false;
    if (rounding == PTX_RP) up = inexact && !negative;
    if (rounding == PTX_RM) up = inexact && negative;
    if (rounding == PTX_RN || rounding == PTX_NO_ROUNDING)
        up = half != 0 && (lost > half || (lost == half && (more || (kept & 1) != 0)));
    kept += up;
    /* Each carry runs on into the exponent, from subnormal numbers, too. */
    uint64_t biased = top < to.least ? kept : kept + ((uint64_t)(top - to.least) << to.mantissa);
    const uint64_t infinite = ptx_ones(ptx_type_bits(type) - 1) >> to.mantissa << to.mantissa;
    if (biased >= infinite) {
        const bool away = rounding == PTX_RN || rounding == PTX_NO_ROUNDING ||
                          (rounding == PTX_RP && !negative) || (rounding == PTX_RM && negative);
        biased = away ? infinite : infinite - 1;
    }
    return sign | biased;
}

static uint64_t narrow_more(ptx_type type, double value, bool more, uint8_t rounding)
{
    if (isnan(value)) return format_of(type).nan;
    if (type == PTX_F64) return bits_of(value);
    if (type == PTX_F32 && !more && rounding <= PTX_RN) {
        const float cut = (float)value;
        uint32_t bits;
        memcpy(&bits, &cut, sizeof bits);
        return bits;
    }
    const format to = format_of(type);
    const uint64_t bits = bits_of(value);
    const uint64_t infinite = ptx_ones(ptx_type_bits(type) - 1) >> to.mantissa << to.mantissa;
    if (isinf(value)) return infinite | (bits >> 63 << (ptx_type_bits(type) - 1));
    const int exponent = (int)(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & ptx_ones(52);
    return compose(type, bits >> 63 != 0, fraction | (uint64_t)(exponent > 0) << 52,
                   (exponent > 0 ? exponent : 1) - 1075, more, rounding);
}

static uint64_t narrow(ptx_type type, double value, uint8_t rounding)
{
    return narrow_more(type, value, false, rounding);
}

/* a * b + c with one rounding. For halves the product is exact, and what the sum loses decides. */
static uint64_t fused(ptx_type type, double a, double b, double c)
{
    if (type == PTX_F64) return narrow(type, fma(a, b, c), PTX_RN);
    if (type == PTX_F32) return narrow(type, (double)fmaf((float)a, (float)b, (float)c), PTX_RN);
    const double product = a * b, sum = product + c;
    const double back = sum - product;
    const double lost = isfinite(sum) ? (product - (sum - back)) + (c - back) : 0;
    if (lost == 0) return narrow(type, sum, PTX_RN);
    /* The sum cut towards zero, with a remark that there is more. */
    const bool beyond = (lost < 0) != (sum < 0);
    const double cut = beyond ? nextafter(sum, 0) : sum;
    return narrow_more(type, cut, true, PTX_RN);
}

static double lesser(double a, double b)
{
    if (isnan(a)) return b;
    if (isnan(b)) return a;
    if (a == b) return signbit(a) ? a : b; /* -0 is below +0 */
    return a < b ? a : b;
}

static uint64_t float_value(const ptx_step *step, ptx_type type, uint64_t left, uint64_t right,
                            uint64_t third)
{
    const uint64_t sign = UINT64_C(1) << (ptx_type_bits(type) - 1);
    const double a = widen(type, left), b = widen(type, right);
    const bool poison = (step->flags & PTX_NAN_RESULT) != 0 && (isnan(a) || isnan(b));
    switch (step->op) {
    case PTX_FADD: return narrow(type, a + b, PTX_RN);
    case PTX_FSUB: return narrow(type, a - b, PTX_RN);
    case PTX_FMUL: return narrow(type, a * b, PTX_RN);
    case PTX_FMA: return fused(type, a, b, widen(type, third));
    case PTX_FDIV: return narrow(type, a / b, PTX_RN);
    case PTX_FRCP: return narrow(type, 1 / a, PTX_RN);
    case PTX_FSQRT: return narrow(type, sqrt(a), PTX_RN);
    case PTX_FABS: return left & ~sign;
    case PTX_FNEG: return left ^ sign;
    case PTX_COPYSIGN: return (right & ~sign) | (left & sign);
    case PTX_FMIN: return narrow(type, poison ? NAN : lesser(a, b), PTX_RN);
    default: return narrow(type, poison ? NAN : -lesser(-a, -b), PTX_RN); /* FMAX */
    }
}

/* Conversions */

static uint64_t float_to_integer(const ptx_step *step, double value)
{
    const uint32_t bits = step->bits;
    const bool is_signed = ptx_type_is_signed(step->type);
    if (isnan(value)) return 0;
    const double whole = step->mode == PTX_RZI   ? trunc(value)
                         : step->mode == PTX_RMI ? floor(value)
                         : step->mode == PTX_RPI ? ceil(value)
                                                 : nearbyint(value);
    const double end = ldexp(1, (int)(is_signed ? bits - 1 : bits));
    if (whole >= end) return ptx_ones(is_signed ? bits - 1 : bits);
    if (is_signed) return whole < -end ? (uint64_t)1 << (bits - 1) : (uint64_t)(int64_t)whole;
    return whole <= 0 ? 0 : (uint64_t)whole;
}

static uint64_t saturate_integer(const ptx_step *step, uint64_t value, bool from_signed)
{
    const uint32_t bits = step->bits;
    const bool is_signed = ptx_type_is_signed(step->type);
    const uint64_t most = ptx_ones(is_signed ? bits - 1 : bits);
    if (from_signed && (int64_t)value < 0) {
        if (!is_signed) return 0;
        const int64_t least = -(int64_t)most - 1;
        return (int64_t)value < least ? (uint64_t)least : value;
    }
    return value > most ? most : value;
}

static uint64_t convert(const ptx_step *step, uint64_t a)
{
    const ptx_type to = (ptx_type)step->type, from = (ptx_type)step->more;
    const uint32_t from_bits = ptx_type_bits(from);
    a &= ptx_ones(from_bits);
    if (ptx_type_is_float(from)) {
        double value = widen(from, a);
        if (!ptx_type_is_float(to)) return ptx_extend(to, float_to_integer(step, value));
        if (to == from && step->mode == PTX_NO_ROUNDING && (step->flags & PTX_SAT) == 0) return a;
        if (step->mode >= PTX_RNI)
            value = step->mode == PTX_RZI   ? trunc(value)
                    : step->mode == PTX_RMI ? floor(value)
                    : step->mode == PTX_RPI ? ceil(value)
                                            : nearbyint(value);
        if ((step->flags & PTX_SAT) != 0) value = value > 0 ? (value < 1 ? value : 1) : 0;
        return narrow(to, value, step->mode >= PTX_RNI ? PTX_RN : step->mode);
    }
    const bool from_signed = ptx_type_is_signed(from);
    if (from_signed) a = (uint64_t)ptx_signed(a, from_bits);
    if (ptx_type_is_float(to)) {
        const bool negative = from_signed && (int64_t)a < 0;
        return compose(to, negative, negative ? 0 - a : a, 0, false, step->mode);
    }
    if ((step->flags & PTX_SAT) != 0) a = saturate_integer(step, a, from_signed);
    return ptx_extend(to, a & ptx_ones(step->bits));
}

/* Integers */

static uint64_t product_high(const ptx_step *step, uint64_t a, uint64_t b)
{
    const uint32_t bits = step->bits;
    if (ptx_type_is_signed(step->type)) {
        const __int128 product = (__int128)ptx_signed(a, bits) * ptx_signed(b, bits);
        return (uint64_t)(product >> bits);
    }
    return (uint64_t)((unsigned __int128)a * b >> bits);
}

static uint64_t product_wide(const ptx_step *step, uint64_t a, uint64_t b)
{
    if (ptx_type_is_signed(step->type))
        return (uint64_t)(ptx_signed(a, step->bits) * ptx_signed(b, step->bits));
    return a * b;
}

static uint64_t quotient(const ptx_step *step, uint64_t a, uint64_t b, bool wants_rest)
{
    if (b == 0) return wants_rest ? a : UINT64_MAX; /* the manual leaves it open */
    if (!ptx_type_is_signed(step->type)) return wants_rest ? a % b : a / b;
    const int64_t left = ptx_signed(a, step->bits), right = ptx_signed(b, step->bits);
    if (right == -1) return wants_rest ? 0 : 0 - a;
    return (uint64_t)(wants_rest ? left % right : left / right);
}

static uint64_t bit_field(const ptx_step *step, uint64_t a, uint64_t from, uint64_t length)
{
    const uint32_t bits = step->bits;
    const bool is_signed = ptx_type_is_signed(step->type);
    from &= 255;
    length &= 255;
    if (length == 0) return 0;
    const uint64_t end = from + length - 1 < bits - 1 ? from + length - 1 : bits - 1;
    const bool sign = is_signed && (a >> end & 1) != 0;
    const uint64_t field = from < bits ? a >> from & ptx_ones((uint32_t)length) : 0;
    const uint64_t have = from < bits ? (length < bits - from ? length : bits - from) : 0;
    return sign ? field | ~ptx_ones((uint32_t)have) : field;
}

static uint64_t insert_field(const ptx_step *step, uint64_t a, uint64_t b, uint64_t from,
                             uint64_t length)
{
    from &= 255;
    length &= 255;
    if (from >= step->bits) return b;
    const uint64_t mask = ptx_ones((uint32_t)length) << from;
    return (b & ~mask) | (a << from & mask);
}

static uint64_t find_bit(const ptx_step *step, uint64_t a)
{
    if (ptx_type_is_signed(step->type) && (a >> (step->bits - 1)) != 0)
        a = ~a & ptx_ones(step->bits);
    if (a == 0) return UINT32_MAX;
    const uint64_t at = 63 - (uint64_t)__builtin_clzll(a);
    return (step->flags & PTX_SHIFT_AMOUNT) != 0 ? step->bits - 1 - at : at;
}

static uint64_t reverse(uint64_t a, uint32_t bits)
{
    uint64_t turned = 0;
    for (uint32_t i = 0; i < bits; i++)
        turned |= (a >> i & 1) << (bits - 1 - i);
    return turned;
}

static uint64_t permute(uint64_t a, uint64_t b, uint64_t selector)
{
    const uint64_t bytes = a | b << 32;
    uint64_t result = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t nibble = (uint32_t)(selector >> (4 * i)) & 15;
        uint64_t byte = bytes >> (8 * (nibble & 7)) & 255;
        if ((nibble & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}

static uint64_t look_up(uint64_t a, uint64_t b, uint64_t c, uint64_t table)
{
    uint64_t result = 0;
    for (uint32_t i = 0; i < 8; i++) {
        if ((table >> i & 1) == 0) continue;
        result |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
    }
    return result;
}

static uint64_t shift(const ptx_step *step, uint64_t a, uint64_t by)
{
    if (step->op == PTX_SHL) return by >= step->bits ? 0 : a << by;
    if (!ptx_type_is_signed(step->type)) return by >= step->bits ? 0 : a >> by;
    return (uint64_t)(ptx_signed(a, step->bits) >> (by >= step->bits ? step->bits - 1u : by));
}

/* The window of 32 bits of b:a. */
static uint64_t funnel(const ptx_step *step, uint64_t a, uint64_t b, uint64_t by)
{
    const uint64_t both = b << 32 | a;
    by = (step->flags & PTX_CLAMP) != 0 ? (by > 32 ? 32 : by) : by & 31;
    return step->op == PTX_SHF_LEFT ? (by == 32 ? a : both << by >> 32) : both >> by;
}

static uint64_t sum_saturated(const ptx_step *step, uint64_t a, uint64_t b)
{
    const int64_t left = ptx_signed(a, step->bits), right = ptx_signed(b, step->bits);
    const int64_t sum = step->op == PTX_ADD ? left + right : left - right;
    if (sum > INT32_MAX) return INT32_MAX;
    return sum < INT32_MIN ? UINT64_C(0x80000000) : (uint64_t)sum;
}

static bool is_less(const ptx_step *step, uint64_t a, uint64_t b)
{
    if (!ptx_type_is_signed(step->type)) return a < b;
    return ptx_signed(a, step->bits) < ptx_signed(b, step->bits);
}

bool ptx_holds(const ptx_step *step, ptx_type type, uint64_t a, uint64_t b)
{
    int order; /* -1, 0, 1; 2 where one is a NaN */
    if (ptx_type_is_float(type)) {
        const double left = widen(type, a), right = widen(type, b);
        order = isnan(left) || isnan(right) ? 2 : (left > right) - (left < right);
    } else if (ptx_type_is_signed(type) && step->mode < PTX_LO) {
        const uint32_t bits = ptx_type_bits(type);
        const int64_t left = ptx_signed(a, bits), right = ptx_signed(b, bits);
        order = (left > right) - (left < right);
    } else {
        order = (a > b) - (a < b);
    }
    switch (step->mode) {
    case PTX_EQ: return order == 0;
    case PTX_NE: return order != 0 && order != 2;
    case PTX_LT:
    case PTX_LO: return order == -1;
    case PTX_LE:
    case PTX_LS: return order == -1 || order == 0;
    case PTX_GT:
    case PTX_HI: return order == 1;
    case PTX_GE:
    case PTX_HS: return order == 1 || order == 0;
    case PTX_EQU: return order == 0 || order == 2;
    case PTX_NEU: return order != 0;
    case PTX_LTU: return order == -1 || order == 2;
    case PTX_LEU: return order != 1;
    case PTX_GTU: return order > 0;
    case PTX_GEU: return order != -1;
    case PTX_NUM: return order != 2;
    default: return order == 2; /* NAN */
    }
}

uint64_t ptx_combine(const ptx_step *step, uint64_t old, uint64_t a, uint64_t b)
{
    switch (step->mode) {
    case PTX_AND_MODE: return old & a;
    case PTX_OR_MODE: return old | a;
    case PTX_XOR_MODE: return old ^ a;
    case PTX_MIN_MODE: return is_less(step, a, old) ? a : old;
    case PTX_MAX_MODE: return is_less(step, old, a) ? a : old;
    case PTX_INC_MODE: return old >= a ? 0 : old + 1;
    case PTX_DEC_MODE: return old == 0 || old > a ? a : old - 1;
    case PTX_EXCH_MODE: return a;
    case PTX_CAS_MODE: return old == a ? b : old;
    default: /* ADD */
        if (step->type == PTX_F32)
            return narrow(PTX_F32, widen(PTX_F32, old) + widen(PTX_F32, a), PTX_RN);
        return (old + a) & ptx_ones(step->bits);
    }
}

/* Operations of floats, of two halves in a register each half for itself. */
static uint64_t halves_value(const ptx_step *step, uint64_t a, uint64_t b, uint64_t c)
{
    if (step->type != PTX_F16X2 && step->type != PTX_BF16X2)
        return float_value(step, (ptx_type)step->type, a, b, c);
    const ptx_type type = step->type == PTX_F16X2 ? PTX_F16 : PTX_BF16;
    return float_value(step, type, a & 0xffff, b & 0xffff, c & 0xffff) |
           float_value(step, type, a >> 16, b >> 16, c >> 16) << 16;
}

static uint64_t other_value(const ptx_step *step, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    const ptx_type half = step->type == PTX_F16X2 ? PTX_F16 : PTX_BF16;
    switch (step->op) {
    case PTX_CNOT: return a == 0;
    case PTX_CLZ: return (a == 0 ? 64 : (uint32_t)__builtin_clzll(a)) - 64 + step->bits;
    case PTX_POPC: return (uint64_t)__builtin_popcountll(a);
    case PTX_BREV: return reverse(a, step->bits);
    case PTX_BFIND: return find_bit(step, a);
    case PTX_BFE: return bit_field(step, a, b, c);
    case PTX_BFI: return insert_field(step, a, b, c, d);
    case PTX_PRMT: return permute(a, b, c);
    case PTX_LOP3: return look_up(a, b, c, d);
    case PTX_SELP: return (c != 0) != ((step->flags & PTX_SOURCE_NOT) != 0) ? a : b;
    case PTX_SLCT:
        if (step->more == PTX_F32) return widen(PTX_F32, c) >= 0 ? a : b;
        return ptx_signed(c, 32) >= 0 ? a : b;
    case PTX_SET:
        if (!ptx_holds(step, (ptx_type)step->more, a, b)) return 0;
        return step->type == PTX_F32 ? 0x3f800000 : UINT32_MAX;
    case PTX_CVT: return convert(step, a);
    case PTX_CVT_TWO: /* the first source is the upper half */
        return narrow(half, widen(PTX_F32, a), step->mode) << 16 |
               narrow(half, widen(PTX_F32, b), step->mode);
    case PTX_CVTA:
        return a + (step->space == PTX_SHARED  ? PTX_SHARED_WINDOW
                    : step->space == PTX_LOCAL ? PTX_LOCAL_WINDOW
                                               : 0);
    case PTX_CVTA_TO:
        return a - (step->space == PTX_SHARED  ? PTX_SHARED_WINDOW
                    : step->space == PTX_LOCAL ? PTX_LOCAL_WINDOW
                                               : 0);
    default: return halves_value(step, a, b, c);
    }
}

uint64_t ptx_value(const ptx_step *step, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    switch (step->op) {
    case PTX_ADD: return (step->flags & PTX_SAT) != 0 ? sum_saturated(step, a, b) : a + b;
    case PTX_SUB: return (step->flags & PTX_SAT) != 0 ? sum_saturated(step, a, b) : a - b;
    case PTX_MUL_LO: return a * b;
    case PTX_MUL_HI: return product_high(step, a, b);
    case PTX_MUL_WIDE: return product_wide(step, a, b);
    case PTX_MAD_LO: return a * b + c;
    case PTX_MAD_HI: return product_high(step, a, b) + c;
    case PTX_MAD_WIDE: return product_wide(step, a, b) + c;
    case PTX_SAD: return (is_less(step, a, b) ? b - a : a - b) + c;
    case PTX_DIV: return quotient(step, a, b, false);
    case PTX_REM: return quotient(step, a, b, true);
    case PTX_ABS: return is_less(step, a, 0) ? 0 - a : a;
    case PTX_NEG: return 0 - a;
    case PTX_MIN: return is_less(step, b, a) ? b : a;
    case PTX_MAX: return is_less(step, a, b) ? b : a;
    case PTX_AND: return a & b;
    case PTX_OR: return a | b;
    case PTX_XOR: return a ^ b;
    case PTX_NOT: return ~a;
    case PTX_SHL:
    case PTX_SHR: return shift(step, a, b);
    case PTX_SHF_LEFT:
    case PTX_SHF_RIGHT: return funnel(step, a, b, c);
    case PTX_MOV: return a;
    default: return other_value(step, a, b, c, d);
    }
}
