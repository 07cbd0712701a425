/* SPDX-License-Identifier: Apache-2.0 */
/*
 * variant_name.c - variants as text and back, such as "drop:stream,50+planes:k6v4,g64".
 *
 * A name is [drop stage "+"] codec [":" setting {"," setting}]. Parsing accepts settings in any
 * order; formatting writes them in one order and leaves out what is default, so that a name that
 * was formatted parses to the same variant. Re-entrant; no state.
 */
#include "codecs.h"
#include "entropy.h"
#include "transform.h"

#include <assert.h>
#include <stdio.h>

enum { NAME_NUMBER_MAX = 100000 };

/* A reader of the rest of a name. */
typedef struct name_reader {
    const char *at;
} name_reader;

static bool name_take(name_reader *reader, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(reader->at, word, length) != 0) return false;
    reader->at += length;
    return true;
}

/* Takes a whole word: what follows is a separator or the end. */
static bool name_take_word(name_reader *reader, const char *word)
{
    name_reader after = *reader;
    if (!name_take(&after, word)) return false;
    if (*after.at != '\0' && *after.at != ',' && *after.at != '+') return false;
    *reader = after;
    return true;
}

static bool name_take_number(name_reader *reader, uint32_t *value_out)
{
    uint32_t value = 0;
    if (*reader->at < '0' || *reader->at > '9') return false;
    while (*reader->at >= '0' && *reader->at <= '9') {
        value = value * 10u + (uint32_t)(*reader->at++ - '0');
        if (value > NAME_NUMBER_MAX) return false;
    }
    *value_out = value;
    return true;
}

/* A decimal such as 0.25, rounded to the nearest 1/scale. */
static bool name_take_decimal(name_reader *reader, uint32_t scale, uint32_t *value_out)
{
    uint32_t whole;
    uint32_t part = 0;
    uint32_t unit = 1;
    if (!name_take_number(reader, &whole)) return false;
    if (*reader->at == '.') {
        reader->at++;
        if (*reader->at < '0' || *reader->at > '9') return false;
        for (; *reader->at >= '0' && *reader->at <= '9'; reader->at++) {
            if (unit >= 10000) continue; /* further digits do not matter */
            part = part * 10u + (uint32_t)(*reader->at - '0');
            unit *= 10;
        }
    }
    *value_out = whole * scale + (part * scale * 2 + unit) / (2 * unit);
    return true;
}

static uint32_t name_log2(uint32_t value)
{
    for (uint32_t log = 0; log < 16; log++) {
        if (value == UINT32_C(1) << log) return log;
    }
    return 0; /* no codec takes groups of one element */
}

static uint32_t name_planes_of_bits(uint32_t bits)
{
    static const uint8_t bits_of[] = {2, 3, 4, 6, 8};
    for (uint32_t i = 0; i < sizeof bits_of; i++) {
        if (bits_of[i] == bits) return i + 1;
    }
    return 0;
}

static void name_put_field(kvt_variant *variant, unsigned shift, unsigned bits, uint32_t value)
{
    uint32_t mask = (1u << bits) - 1u;
    /* A value that does not fit becomes one that no codec accepts: all bits set. */
    if (value > mask) value = mask;
    variant->rate = (variant->rate & ~(mask << shift)) | value << shift;
}

static bool name_kivi_setting(name_reader *reader, kvt_variant *variant)
{
    uint32_t k;
    uint32_t v;
    if (name_take(reader, "k")) {
        if (!name_take_number(reader, &k) || !name_take(reader, "v")) return false;
        if (!name_take_number(reader, &v)) return false;
        name_put_field(variant, 0, 4, k);
        name_put_field(variant, 4, 4, v);
        return true;
    }
    if (name_take_word(reader, "half")) {
        variant->mode = KVT_KIVI_HALF;
        return true;
    }
    if (name_take(reader, "g")) {
        if (!name_take_number(reader, &k)) return false;
        name_put_field(variant, 8, 4, name_log2(k));
        return true;
    }
    if (!name_take(reader, "r") || !name_take_number(reader, &k)) return false;
    if (k % 32 != 0 || k / 32 > 255) return false;
    name_put_field(variant, 12, 8, k / 32);
    return true;
}

static bool name_planes_setting(name_reader *reader, kvt_variant *variant)
{
    uint32_t k;
    uint32_t v;
    if (name_take_word(reader, "vrow")) return true; /* the default, spelled out */
    if (name_take_word(reader, "vhead")) {
        variant->rate |= CODECS_PLANES_V_HEAD;
        return true;
    }
    if (name_take_word(reader, "vchan")) {
        variant->rate |= CODECS_PLANES_V_CHANNEL;
        return true;
    }
    if (name_take_word(reader, "vfirst")) {
        variant->rate |= CODECS_PLANES_V_FIRST;
        return true;
    }
    if (name_take(reader, "g")) {
        if (!name_take_number(reader, &k)) return false;
        name_put_field(variant, 6, 4, name_log2(k));
        return true;
    }
    if (!name_take(reader, "k") || !name_take_number(reader, &k)) return false;
    if (!name_take(reader, "v") || !name_take_number(reader, &v)) return false;
    name_put_field(variant, 0, 3, name_planes_of_bits(k));
    name_put_field(variant, 3, 3, name_planes_of_bits(v));
    return true;
}

static bool name_entropy_setting(name_reader *reader, kvt_variant *variant)
{
    uint32_t k;
    uint32_t v;
    if (name_take_word(reader, "vchan")) {
        variant->rate |= CODECS_ENTROPY_V_CHANNEL;
        return true;
    }
    if (name_take_word(reader, "middle")) {
        variant->rate |= CODECS_ENTROPY_MIDDLE;
        return true;
    }
    if (!name_take(reader, "k") || !name_take_decimal(reader, ENTROPY_STEP_ONE, &k)) {
        return false;
    }
    if (!name_take(reader, "v") || !name_take_decimal(reader, ENTROPY_STEP_ONE, &v)) {
        return false;
    }
    name_put_field(variant, 0, 10, k);
    name_put_field(variant, 10, 10, v);
    return true;
}

/* "1F3A9,s0.5": five digits of a basis, of either case, then the step. */
static bool name_transform_setting(name_reader *reader, kvt_variant *variant)
{
    uint32_t step;
    if (*reader->at == 's') {
        reader->at++;
        if (!name_take_decimal(reader, TRANSFORM_STEP_ONE, &step)) return false;
        name_put_field(variant, 0, CODECS_BASIS_SHIFT, step);
        return step <= TRANSFORM_STEP_MAX;
    }
    uint32_t basis = 0;
    for (uint32_t i = 0; i < CODECS_BASIS_BITS / 4; i++, reader->at++) {
        const char digit = *reader->at;
        const bool number = digit >= '0' && digit <= '9';
        const bool small = digit >= 'a' && digit <= 'f';
        if (!number && !small && (digit < 'A' || digit > 'F')) return false;
        basis = basis << 4 | (uint32_t)(number  ? digit - '0'
                                        : small ? digit - 'a' + 10
                                                : digit - 'A' + 10);
    }
    if (*reader->at != '\0' && *reader->at != ',') return false;
    name_put_field(variant, CODECS_BASIS_SHIFT, CODECS_BASIS_BITS, basis);
    variant->mode = TRANSFORM_MODE; /* without a basis there is no variant */
    return true;
}

static bool name_lossless_setting(name_reader *reader, kvt_variant *variant)
{
    if (name_take_word(reader, "dense")) return true;
    if (!name_take_word(reader, "fast")) return false;
    variant->mode = KVT_LOSSLESS_FAST;
    return true;
}

typedef struct name_codec {
    const char *name;
    kvt_variant usual; /* without settings */
    bool (*setting)(name_reader *reader, kvt_variant *variant);
} name_codec;

static const name_codec name_codecs[] = {
    {"raw", {KVT_CODEC_RAW, 0, 0}, NULL},
    {"lossless", {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0}, name_lossless_setting},
    {"kivi", {KVT_CODEC_KIVI, KVT_KIVI_FLOAT, 4 | 4 << 4 | 6 << 8}, name_kivi_setting},
    {"planes", {KVT_CODEC_PLANES, 1, 3 | 3 << 3 | 6 << 6}, name_planes_setting},
    {"entropy", {KVT_CODEC_ENTROPY, 1, 16 | 32 << 10}, name_entropy_setting},
    {"transform", {KVT_CODEC_TRANSFORM, 0, TRANSFORM_STEP_ONE / 2}, name_transform_setting},
};

enum { NAME_CODEC_COUNT = sizeof name_codecs / sizeof name_codecs[0] };

static const char *const name_drop_methods[] = {"",        "stream", "knorm",
                                                "keydiff", "lagkv",  "scores"};

enum { NAME_DROP_COUNT = sizeof name_drop_methods / sizeof name_drop_methods[0] };

/* Takes "method,percent" after "drop:". mode_out is the mode's high byte in place. */
static bool name_take_drop(name_reader *reader, uint16_t *mode_out)
{
    uint32_t keep;
    for (uint32_t method = 1; method < NAME_DROP_COUNT; method++) {
        if (!name_take_word(reader, name_drop_methods[method])) continue;
        if (!name_take(reader, ",") || !name_take_decimal(reader, 32 * 100, &keep)) return false;
        keep = (keep + 5000) / 10000; /* percent to 32nds */
        if (keep < 1 || keep > 31) return false;
        *mode_out = (uint16_t)(method << 13 | keep << 8);
        return true;
    }
    return false;
}

static bool name_take_codec(name_reader *reader, kvt_variant *variant)
{
    const name_codec *codec = NULL;
    for (size_t i = 0; i < NAME_CODEC_COUNT && codec == NULL; i++) {
        if (name_take(reader, name_codecs[i].name)) codec = &name_codecs[i];
    }
    if (codec == NULL) return false;
    *variant = codec->usual;
    if (*reader->at == '\0') return true;
    if (codec->setting == NULL || !name_take(reader, ":")) return false;
    do {
        if (!codec->setting(reader, variant)) return false;
    } while (name_take(reader, ","));
    return *reader->at == '\0';
}

/* Whether any layout can carry the variant, as far as its own codec knows. */
static bool name_is_known(kvt_variant variant)
{
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    const kvt_layout layout = {
        .layers = 1, .kv_heads = 1, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 256};
    return codec != NULL && codec->check(codecs_variant_core(variant), &layout) == KVT_OK;
}

kvt_status kvt_variant_parse(const char *name, kvt_variant *variant_out)
{
    assert(name != NULL && variant_out != NULL);
    name_reader reader = {name};
    kvt_variant variant = {KVT_CODEC_RAW, 0, 0};
    uint16_t drop = 0;
    if (name_take(&reader, "drop:")) {
        if (!name_take_drop(&reader, &drop)) return KVT_E_ARGUMENT;
        if (*reader.at != '\0' && !name_take(&reader, "+")) return KVT_E_ARGUMENT;
        if (*reader.at == '\0' && reader.at[-1] == '+') return KVT_E_ARGUMENT;
    }
    if (drop == 0 || *reader.at != '\0') {
        if (!name_take_codec(&reader, &variant)) return KVT_E_ARGUMENT;
    }
    if (drop != 0 && variant.codec == KVT_CODEC_TRANSFORM) return KVT_E_ARGUMENT;
    if (!name_is_known(variant)) return KVT_E_ARGUMENT;
    variant.mode |= drop;
    *variant_out = variant;
    return KVT_OK;
}

/* A writer that counts what it would have written. */
typedef struct name_writer {
    char *text;
    size_t size;
    size_t length;
} name_writer;

#define name_write(writer, ...)                                                                    \
    ((writer)->length += (size_t)snprintf(name_room(writer), name_left(writer), __VA_ARGS__))

static size_t name_left(const name_writer *writer)
{
    return writer->length < writer->size ? writer->size - writer->length : 0;
}

static char *name_room(const name_writer *writer)
{
    return name_left(writer) > 0 ? writer->text + writer->length : NULL;
}

/* A value in 1/scale with up to three decimals and no trailing zeros. */
static void name_write_decimal(name_writer *writer, uint32_t value, uint32_t scale)
{
    uint32_t thousandths = (value * 2000u + scale) / (2 * scale);
    uint32_t part = thousandths % 1000;
    name_write(writer, "%u", (unsigned)(thousandths / 1000));
    if (part == 0) return;
    unsigned digits = 3;
    while (part % 10 == 0) {
        part /= 10;
        digits--;
    }
    name_write(writer, ".%0*u", (int)digits, (unsigned)part);
}

static void name_write_kivi(name_writer *writer, kvt_variant variant)
{
    name_write(writer, "kivi:k%uv%u,g%u", (unsigned)codecs_rate_field(variant, 0, 4),
               (unsigned)codecs_rate_field(variant, 4, 4), 1u << codecs_rate_field(variant, 8, 4));
    uint32_t window = codecs_rate_field(variant, 12, 8) * 32;
    if (window != 0) name_write(writer, ",r%u", (unsigned)window);
    if (variant.mode == KVT_KIVI_HALF) name_write(writer, ",half");
}

static void name_write_planes(name_writer *writer, kvt_variant variant)
{
    static const uint8_t bits_of[8] = {0, 2, 3, 4, 6, 8, 0, 0};
    name_write(writer, "planes:k%uv%u,g%u", bits_of[codecs_rate_field(variant, 0, 3)],
               bits_of[codecs_rate_field(variant, 3, 3)], 1u << codecs_rate_field(variant, 6, 4));
    if (variant.rate & CODECS_PLANES_V_HEAD) name_write(writer, ",vhead");
    if (variant.rate & CODECS_PLANES_V_CHANNEL) name_write(writer, ",vchan");
    if (variant.rate & CODECS_PLANES_V_FIRST) name_write(writer, ",vfirst");
}

static void name_write_entropy(name_writer *writer, kvt_variant variant)
{
    name_write(writer, "entropy:k");
    name_write_decimal(writer, codecs_rate_field(variant, 0, 10), ENTROPY_STEP_ONE);
    name_write(writer, "v");
    name_write_decimal(writer, codecs_rate_field(variant, 10, 10), ENTROPY_STEP_ONE);
    if (variant.rate & CODECS_ENTROPY_V_CHANNEL) name_write(writer, ",vchan");
    if (variant.rate & CODECS_ENTROPY_MIDDLE) name_write(writer, ",middle");
}

static void name_write_codec(name_writer *writer, kvt_variant variant)
{
    if (!name_is_known(variant)) {
        name_write(writer, "codec%u:mode%u:rate%u", (unsigned)variant.codec, (unsigned)variant.mode,
                   (unsigned)variant.rate);
        return;
    }
    switch (variant.codec) {
    case KVT_CODEC_LOSSLESS:
        name_write(writer, variant.mode == KVT_LOSSLESS_FAST ? "lossless:fast" : "lossless");
        break;
    case KVT_CODEC_KIVI: name_write_kivi(writer, variant); break;
    case KVT_CODEC_PLANES: name_write_planes(writer, variant); break;
    case KVT_CODEC_ENTROPY: name_write_entropy(writer, variant); break;
    case KVT_CODEC_TRANSFORM:
        name_write(writer, "transform:%05X,s",
                   (unsigned)codecs_rate_field(variant, CODECS_BASIS_SHIFT, CODECS_BASIS_BITS));
        name_write_decimal(writer, codecs_rate_field(variant, 0, CODECS_BASIS_SHIFT),
                           TRANSFORM_STEP_ONE);
        break;
    default: name_write(writer, "%s", kvt_codec_find(variant.codec)->name); break;
    }
}

size_t kvt_variant_format(kvt_variant variant, char *text, size_t size)
{
    assert(text != NULL || size == 0);
    name_writer writer = {text, size, 0};
    const uint32_t method = codecs_drop_method(variant);
    const uint32_t keep = codecs_drop_keep(variant);
    if (method > 0 && method < NAME_DROP_COUNT && keep > 0) {
        name_write(&writer, "drop:%s,", name_drop_methods[method]);
        name_write_decimal(&writer, keep * 100, 32);
        variant = codecs_variant_core(variant);
        if (variant.codec == KVT_CODEC_RAW) return writer.length;
        name_write(&writer, "+");
    }
    name_write_codec(&writer, variant);
    return writer.length;
}
