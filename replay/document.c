/* SPDX-License-Identifier: Apache-2.0 */
/*
 * document.c - what the JSON documents of this room share.
 */
#include "document.h"

#include <math.h>

const char *const document_tier_keys[KVT_TIER_COUNT] = {"total", "hbm", "dram", "ssd"};

void document_put(json_t *object, const char *key, json_t *value, bool *sound)
{
    if (json_object_set_new(object, key, value) != 0) *sound = false;
}

void document_add(json_t *array, json_t *value, bool *sound)
{
    if (json_array_append_new(array, value) != 0) *sound = false;
}

json_t *document_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *document_text(const char *text)
{
    if (text == NULL || text[0] == '\0') return json_null();
    json_t *string = json_string(text);
    return string != NULL ? string : json_string("?");
}

static json_t *document_value(const void *at, document_kind kind)
{
    switch (kind) {
    case DOCUMENT_REAL: return document_number(*(const double *)at);
    case DOCUMENT_COUNT: {
        const uint64_t count = *(const uint64_t *)at;
        return json_integer((json_int_t)(count > INT64_MAX ? INT64_MAX : count));
    }
    case DOCUMENT_COUNT32: return json_integer(*(const uint32_t *)at);
    case DOCUMENT_BOOLEAN: return json_boolean(*(const bool *)at);
    case DOCUMENT_LETTERS: return document_text(at);
    }
    return NULL;
}

void document_put_fields(json_t *object, const void *from, const document_field *fields,
                         bool *sound)
{
    for (; fields->key != NULL; fields++) {
        const void *at = (const char *)from + fields->offset;
        document_put(object, fields->key, document_value(at, fields->kind), sound);
    }
}

json_t *document_tiers(const void *by_tier, document_kind kind, int first, bool *sound)
{
    static const size_t sizes[] = {[DOCUMENT_REAL] = sizeof(double),
                                   [DOCUMENT_COUNT] = sizeof(uint64_t),
                                   [DOCUMENT_BOOLEAN] = sizeof(bool)};
    json_t *object = json_object();
    for (int tier = first; tier < KVT_TIER_COUNT; tier++) {
        const void *at = (const char *)by_tier + (size_t)tier * sizes[kind];
        document_put(object, document_tier_keys[tier], document_value(at, kind), sound);
    }
    return object;
}

kvt_status document_print(json_t *root, bool sound, int digits, FILE *file)
{
    kvt_status status = sound ? KVT_OK : KVT_E_MEMORY;
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits);
    if (sound &&
        (json_dumpf(root, file, flags) != 0 || fputc('\n', file) == EOF || fflush(file) != 0))
        status = KVT_E_IO;
    json_decref(root);
    return status;
}
