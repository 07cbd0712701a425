/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number.c - log2 and exp2 from tables of 64 pieces and a short Taylor polynomial.
 *
 * The results are the same bits on every compiler, so plan logs can be compared across builds. Pure
 * functions, any thread. The tables were computed with 200-bit arithmetic and rounded once.
 */
#include "base/number/number.h"

#include <assert.h>
#include <string.h>

#define NUMBER_STEPS 64
#define NUMBER_LN2   0x1.62e42fefa39efp-1
#define NUMBER_INLN2 0x1.71547652b82fep+0 /* 1 / ln 2 */

/* clang-format off */
/* The tables are part of the plan log's definition: another rounding of one entry would change
 * decisions, so they are written out and not computed at start. */
/* 2^(i/64) */
static const double number_exp2_table[NUMBER_STEPS] = {
    0x1.0000000000000p+0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0, 0x1.0874518759bc8p+0,
    0x1.0b5586cf9890fp+0, 0x1.0e3ec32d3d1a2p+0, 0x1.11301d0125b51p+0, 0x1.1429aaea92de0p+0,
    0x1.172b83c7d517bp+0, 0x1.1a35beb6fcb75p+0, 0x1.1d4873168b9aap+0, 0x1.2063b88628cd6p+0,
    0x1.2387a6e756238p+0, 0x1.26b4565e27cddp+0, 0x1.29e9df51fdee1p+0, 0x1.2d285a6e4030bp+0,
    0x1.306fe0a31b715p+0, 0x1.33c08b26416ffp+0, 0x1.371a7373aa9cbp+0, 0x1.3a7db34e59ff7p+0,
    0x1.3dea64c123422p+0, 0x1.4160a21f72e2ap+0, 0x1.44e086061892dp+0, 0x1.486a2b5c13cd0p+0,
    0x1.4bfdad5362a27p+0, 0x1.4f9b2769d2ca7p+0, 0x1.5342b569d4f82p+0, 0x1.56f4736b527dap+0,
    0x1.5ab07dd485429p+0, 0x1.5e76f15ad2148p+0, 0x1.6247eb03a5585p+0, 0x1.6623882552225p+0,
    0x1.6a09e667f3bcdp+0, 0x1.6dfb23c651a2fp+0, 0x1.71f75e8ec5f74p+0, 0x1.75feb564267c9p+0,
    0x1.7a11473eb0187p+0, 0x1.7e2f336cf4e62p+0, 0x1.82589994cce13p+0, 0x1.868d99b4492edp+0,
    0x1.8ace5422aa0dbp+0, 0x1.8f1ae99157736p+0, 0x1.93737b0cdc5e5p+0, 0x1.97d829fde4e50p+0,
    0x1.9c49182a3f090p+0, 0x1.a0c667b5de565p+0, 0x1.a5503b23e255dp+0, 0x1.a9e6b5579fdbfp+0,
    0x1.ae89f995ad3adp+0, 0x1.b33a2b84f15fbp+0, 0x1.b7f76f2fb5e47p+0, 0x1.bcc1e904bc1d2p+0,
    0x1.c199bdd85529cp+0, 0x1.c67f12e57d14bp+0, 0x1.cb720dcef9069p+0, 0x1.d072d4a07897cp+0,
    0x1.d5818dcfba487p+0, 0x1.da9e603db3285p+0, 0x1.dfc97337b9b5fp+0, 0x1.e502ee78b3ff6p+0,
    0x1.ea4afa2a490dap+0, 0x1.efa1bee615a27p+0, 0x1.f50765b6e4540p+0, 0x1.fa7c1819e90d8p+0,
};

/* 1/c for the centre c = 1 + (i + 0.5)/64 of each piece of [1,2) */
static const double number_centre_inverse[NUMBER_STEPS] = {
    0x1.fc07f01fc07f0p-1, 0x1.f44659e4a4271p-1, 0x1.ecc07b301ecc0p-1, 0x1.e573ac901e574p-1,
    0x1.de5d6e3f8868ap-1, 0x1.d77b654b82c34p-1, 0x1.d0cb58f6ec074p-1, 0x1.ca4b3055ee191p-1,
    0x1.c3f8f01c3f8f0p-1, 0x1.bdd2b899406f7p-1, 0x1.b7d6c3dda338bp-1, 0x1.b2036406c80d9p-1,
    0x1.ac5701ac5701bp-1, 0x1.a6d01a6d01a6dp-1, 0x1.a16d3f97a4b02p-1, 0x1.9c2d14ee4a102p-1,
    0x1.970e4f80cb872p-1, 0x1.920fb49d0e229p-1, 0x1.8d3018d3018d3p-1, 0x1.886e5f0abb04ap-1,
    0x1.83c977ab2beddp-1, 0x1.7f405fd017f40p-1, 0x1.7ad2208e0ecc3p-1, 0x1.767dce434a9b1p-1,
    0x1.724287f46debcp-1, 0x1.6e1f76b4337c7p-1, 0x1.6a13cd1537290p-1, 0x1.661ec6a5122f9p-1,
    0x1.623fa77016240p-1, 0x1.5e75bb8d015e7p-1, 0x1.5ac056b015ac0p-1, 0x1.571ed3c506b3ap-1,
    0x1.5390948f40febp-1, 0x1.5015015015015p-1, 0x1.4cab88725af6ep-1, 0x1.49539e3b2d067p-1,
    0x1.460cbc7f5cf9ap-1, 0x1.42d6625d51f87p-1, 0x1.3fb013fb013fbp-1, 0x1.3c995a47babe7p-1,
    0x1.3991c2c187f63p-1, 0x1.3698df3de0748p-1, 0x1.33ae45b57bcb2p-1, 0x1.30d190130d190p-1,
    0x1.2e025c04b8097p-1, 0x1.2b404ad012b40p-1, 0x1.288b01288b013p-1, 0x1.25e22708092f1p-1,
    0x1.23456789abcdfp-1, 0x1.20b470c67c0d9p-1, 0x1.1e2ef3b3fb874p-1, 0x1.1bb4a4046ed29p-1,
    0x1.19453808ca29cp-1, 0x1.16e0689427379p-1, 0x1.1485f0e0acd3bp-1, 0x1.12358e75d3033p-1,
    0x1.0fef010fef011p-1, 0x1.0db20a88f4696p-1, 0x1.0b7e6ec259dc8p-1, 0x1.0953f39010954p-1,
    0x1.073260a47f7c6p-1, 0x1.05197f7d73404p-1, 0x1.03091b51f5e1ap-1, 0x1.0101010101010p-1,
};

/* log2 of the same centres */
static const double number_centre_log2[NUMBER_STEPS] = {
    0x1.6fe50b6ef0851p-7, 0x1.11cd1d5133413p-5, 0x1.c4dfab90aab5fp-5, 0x1.3aa2fdd27f1c3p-4,
    0x1.918a16e46335bp-4, 0x1.e72ec117fa5b2p-4, 0x1.1dcd197552b7bp-3, 0x1.476a9f983f74dp-3,
    0x1.70742d4ef027fp-3, 0x1.98edd077e70dfp-3, 0x1.c0db6cdd94deep-3, 0x1.e840be74e6a4dp-3,
    0x1.0790adbb03009p-2, 0x1.1ac05b291f070p-2, 0x1.2db10fc4d9aafp-2, 0x1.406463b1b0449p-2,
    0x1.52dbdfc4c96b3p-2, 0x1.6518fe4677ba7p-2, 0x1.771d2ba7efb3cp-2, 0x1.88e9c72e0b226p-2,
    0x1.9a802391e232fp-2, 0x1.abe18797f1f49p-2, 0x1.bd0f2e9e79031p-2, 0x1.ce0a4923a587dp-2,
    0x1.ded3fd442364cp-2, 0x1.ef6d67328e220p-2, 0x1.ffd799a83ff9bp-2, 0x1.0809cf27f703dp-1,
    0x1.10113b153c8eap-1, 0x1.18028cf72976ap-1, 0x1.1fde3d30e8126p-1, 0x1.27a4c0585cbf8p-1,
    0x1.2f56875eb3f26p-1, 0x1.36f3ffb6d9162p-1, 0x1.3e7d9379f7016p-1, 0x1.45f3a98a20739p-1,
    0x1.4d56a5b33cec4p-1, 0x1.54a6e8ca5438ep-1, 0x1.5be4d0cb51435p-1, 0x1.6310b8f553048p-1,
    0x1.6a2af9e5a0f0ap-1, 0x1.7133e9b156c7cp-1, 0x1.782bdbfdda657p-1, 0x1.7f1322182cf16p-1,
    0x1.85ea0b0b27b26p-1, 0x1.8cb0e3b4b3bbep-1, 0x1.9367f6da0ab2fp-1, 0x1.9a0f8d3b0e050p-1,
    0x1.a0a7eda4c112dp-1, 0x1.a7315d02f20c8p-1, 0x1.adac1e711c833p-1, 0x1.b418734a9008cp-1,
    0x1.ba769b39e4964p-1, 0x1.c0c6d447c5dd3p-1, 0x1.c7095ae91e1c7p-1, 0x1.cd3e6a0ca8907p-1,
    0x1.d3663b27f31d5p-1, 0x1.d9810643d6615p-1, 0x1.df8f02086af2cp-1, 0x1.e59063c8822cep-1,
    0x1.eb855f8ca88fbp-1, 0x1.f16e281db7630p-1, 0x1.f74aef0efafaep-1, 0x1.fd1be4c7f2af9p-1,
};
/* clang-format on */

/*
 * x = 2^e * m with m in [1,2); c is the centre of m's piece, so |r| = |m - c| / c < 1/128 and
 * log2 x = e + log2 c + ln(1 + r) / ln 2. m - c is exact: both have few leading bits in common.
 *
 * The polynomial ends at r^7 / 7, below 2^-52 of the result for |r| < 1/128.
 */
double number_log2(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    unsigned piece = (unsigned)(bits >> 46) & (NUMBER_STEPS - 1);
    bits = (bits & 0xFFFFFFFFFFFFFu) | (UINT64_C(1023) << 52);
    double m;
    memcpy(&m, &bits, sizeof m);
    double centre = 1.0 + ((double)piece + 0.5) / NUMBER_STEPS;
    double r = (m - centre) * number_centre_inverse[piece];
    double sum = 1.0 / 7.0;
    sum = -1.0 / 6.0 + r * sum;
    sum = 1.0 / 5.0 + r * sum;
    sum = -1.0 / 4.0 + r * sum;
    sum = 1.0 / 3.0 + r * sum;
    sum = -1.0 / 2.0 + r * sum;
    sum = r + r * r * sum;
    return (double)exponent + (number_centre_log2[piece] + sum * NUMBER_INLN2);
}

/* x = whole / 64 + rest with 0 <= rest < 1/64: a shift, a table and e^(rest ln 2). Results below
 * the least normal number are 0: denormal ones would be slow and mean nothing here. */
double number_exp2(double x)
{
    if (x < -1022.0) return 0.0;
    if (x > 1023.0) x = 1023.0;
    double scaled = x * NUMBER_STEPS;
    int64_t whole = (int64_t)scaled;
    if ((double)whole > scaled) whole--;
    double r = (scaled - (double)whole) / NUMBER_STEPS * NUMBER_LN2;
    double sum = 1.0 / 720.0;
    sum = 1.0 / 120.0 + r * sum;
    sum = 1.0 / 24.0 + r * sum;
    sum = 1.0 / 6.0 + r * sum;
    sum = 1.0 / 2.0 + r * sum;
    sum = r + r * r * sum;
    /* whole + 1022 * 64 is not negative, so the shift is a division that rounds down. */
    uint64_t biased = (uint64_t)(whole + INT64_C(1023) * NUMBER_STEPS);
    uint64_t bits = (biased / NUMBER_STEPS) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    double base = number_exp2_table[biased % NUMBER_STEPS];
    return power * (base + base * sum);
}

/* Starts a text in the caller's memory, which may be too small or missing: the length counts on. */
void text_start(text *out, char *to, size_t size)
{
    assert(out != NULL);
    out->to = to;
    out->size = to != NULL ? size : 0;
    out->length = 0;
    if (out->size > 0) to[0] = '\0';
}

/* Adds a letter, if there is room for it and the end. */
static void text_add_char(text *out, char letter)
{
    if (out->length + 1 < out->size) {
        out->to[out->length] = letter;
        out->to[out->length + 1] = '\0';
    }
    out->length++;
}

/* Adds words. */
void text_add(text *out, const char *words)
{
    assert(words != NULL);
    while (*words != '\0')
        text_add_char(out, *words++);
}

/* Adds a number in decimal digits. A number of 64 bits has at most 20 digits. */
void text_add_number(text *out, uint64_t number)
{
    char digits[20];
    unsigned count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    while (count > 0)
        text_add_char(out, digits[--count]);
}

/* Adds a number exactly, in hexadecimal digits, so that a log says the same on every machine. The
 * digits are those of the bits, so nothing is rounded. */
void text_add_double(text *out, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint64_t fraction = bits & 0xFFFFFFFFFFFFFu;
    int exponent = (int)(bits >> 52 & 0x7FF);
    if (bits >> 63 != 0) text_add(out, "-");
    if (exponent == 0x7FF) {
        text_add(out, fraction != 0 ? "nan" : "inf");
        return;
    }
    text_add(out, exponent == 0 ? "0x0" : "0x1");
    if (fraction != 0) text_add_char(out, '.');
    while (fraction != 0) {
        text_add_char(out, "0123456789abcdef"[fraction >> 48 & 15]);
        fraction = fraction << 4 & 0xFFFFFFFFFFFFFu;
    }
    int power = exponent == 0 ? -1022 : exponent - 1023;
    if ((bits << 1) == 0) power = 0;
    text_add(out, power < 0 ? "p-" : "p+");
    text_add_number(out, (uint64_t)(power < 0 ? -power : power));
}

/* Says whether two texts are the same. */
bool text_equal(const char *a, const char *b)
{
    assert(a != NULL && b != NULL);
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}
