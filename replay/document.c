/* SPDX-License-Identifier: Apache-2.0 */
/*
 * document.c - what the JSON documents of this room share.
 */
#include "document.h"

#include <math.h>

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
    return text != NULL && text[0] != '\0' ? json_string(text) : json_null();
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
