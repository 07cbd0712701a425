/*
 * codec_table.c - the static table of codecs, and the names of variants. No registration at run
 * time: a static archive would drop it. Any thread; no state.
 */
#include "codecs.h"

#include <assert.h>
#include <stdio.h>

static const kvt_codec *const codec_table[] = {&codecs_raw, &codecs_lossless};

enum { CODEC_TABLE_COUNT = sizeof codec_table / sizeof codec_table[0] };

const kvt_codec *kvt_codec_find(uint16_t id)
{
    for (size_t i = 0; i < CODEC_TABLE_COUNT; i++) {
        if (codec_table[i]->id == id) return codec_table[i];
    }
    return NULL;
}

const kvt_codec *kvt_codec_find_name(const char *name)
{
    assert(name != NULL);
    for (size_t i = 0; i < CODEC_TABLE_COUNT; i++) {
        if (strcmp(codec_table[i]->name, name) == 0) return codec_table[i];
    }
    return NULL;
}

const kvt_codec *kvt_codec_at(size_t index)
{
    return index < CODEC_TABLE_COUNT ? codec_table[index] : NULL;
}

typedef struct variant_name {
    const char *name;
    kvt_variant variant;
} variant_name;

/* Every variant that exists. Codecs with rates will need a parser; these two have none. */
static const variant_name variant_names[] = {
    {"raw", {KVT_CODEC_RAW, 0, 0}},
    {"lossless", {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0}},
};

enum { VARIANT_NAME_COUNT = sizeof variant_names / sizeof variant_names[0] };

kvt_status kvt_variant_parse(const char *name, kvt_variant *variant_out)
{
    assert(name != NULL && variant_out != NULL);
    for (size_t i = 0; i < VARIANT_NAME_COUNT; i++) {
        if (strcmp(variant_names[i].name, name) == 0) {
            *variant_out = variant_names[i].variant;
            return KVT_OK;
        }
    }
    return KVT_E_ARGUMENT;
}

size_t kvt_variant_format(kvt_variant variant, char *text, size_t size)
{
    assert(text != NULL || size == 0);
    int length = -1;
    for (size_t i = 0; i < VARIANT_NAME_COUNT && length < 0; i++) {
        const kvt_variant *known = &variant_names[i].variant;
        if (known->codec == variant.codec && known->mode == variant.mode &&
            known->rate == variant.rate) {
            length = snprintf(text, size, "%s", variant_names[i].name);
        }
    }
    if (length < 0) {
        length = snprintf(text, size, "codec%u:mode%u:rate%u", (unsigned)variant.codec,
                          (unsigned)variant.mode, (unsigned)variant.rate);
    }
    assert(length > 0);
    return (size_t)length;
}
