/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_data.c - sources of attention: dumps with queries.
 *
 * Queries of a dump whose metadata says `queries: last` are those of its last tokens in order: step
 * r is at token tokens - rows + r and sees the tokens up to itself. Others come after the entry and
 * see all of it.
 */
#include "decode.h"
#include "estimator/model/safetensors.h"
#include "lab/private.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

kvt_status decode_source_dump(const char *path, uint32_t rows, decode_source *source_out,
                              char *message, size_t message_size)
{
    decode_source s = {.seed = 0};
    kvt_status status = quality_dump_open(path, &s.dump, message, message_size);
    if (status != KVT_OK) return status;
    const quality_dump *d = &s.dump;
    const char *where = d->file != NULL ? safetensors_metadata(d->file, "queries") : NULL;
    const char *slash = strrchr(path, '/');
    (void)snprintf(s.name, sizeof s.name, "%.60s", slash != NULL ? slash + 1 : path);
    char *dot = strstr(s.name, ".safetensors");
    if (dot != NULL) *dot = '\0';
    s.layers = d->layout.layers;
    s.kv_heads = d->layout.kv_heads;
    s.head_dim = d->layout.head_dim;
    s.group = d->query_heads / s.kv_heads;
    s.grows = where != NULL && strcmp(where, "last") == 0;
    s.rows = d->query_rows < DECODE_ROWS ? d->query_rows : DECODE_ROWS;
    s.tokens = d->layout.tokens;
    if (s.grows && d->query_rows < s.tokens) s.tokens -= d->query_rows;
    if (rows > 0 && rows < s.rows) s.rows = rows;
    s.all = s.tokens + (s.grows ? s.rows : 0);
    const char *why = NULL;
    if (d->query_rows == 0)
        why = "there are no queries (q.<layer>)";
    else if (d->layout.dtype == KVT_DTYPE_FP8)
        why = "8-bit floats are not decoded over";
    else if (s.grows && d->query_rows >= d->layout.tokens)
        why = "more query rows than tokens";
    else if (s.tokens < DECODE_SINKS + DECODE_LOCAL + 64)
        why = "fewer than 132 tokens";
    else if (s.head_dim % 8 != 0 || s.head_dim > SPARSE_HEAD_DIM_MAX)
        why = "head_dim is no multiple of 8, or over 512";
    else if (s.group > SPARSE_GROUP_MAX)
        why = "more than 64 query heads of a KV head";
    if (why != NULL) {
        quality_dump_close(&s.dump);
        (void)snprintf(message, message_size, "%s: %s", path, why);
        return KVT_E_ARGUMENT;
    }
    *source_out = s;
    return KVT_OK;
}

void decode_source_close(decode_source *source)
{
    quality_dump_close(&source->dump);
}

static const safetensors_tensor *tensor_of(const quality_dump *dump, char side, uint32_t layer)
{
    char name[32];
    (void)snprintf(name, sizeof name, "%c.%u", side, layer);
    return safetensors_find(dump->file, name);
}

/* One head of K or V as fp16. */
static void dump_head(const decode_source *source, char side, uint32_t layer, uint32_t head,
                      uint16_t *out)
{
    const safetensors_tensor *tensor = tensor_of(&source->dump, side, layer);
    float row[SPARSE_HEAD_DIM_MAX];
    for (uint32_t t = 0; t < source->all; t++) {
        const uint64_t at = ((uint64_t)t * source->kv_heads + head) * source->head_dim;
        safetensors_read_fp32(tensor, at, source->head_dim, row);
        for (uint32_t d = 0; d < source->head_dim; d++)
            *out++ = half_from_float(row[d]);
    }
}

void decode_source_unit(const decode_source *source, uint32_t layer, uint32_t head, uint16_t *keys,
                        uint16_t *values, float *queries)
{
    if (source->dump.file == NULL) {
        decode_synthetic_unit(source, layer, head, keys, values, queries);
        return;
    }
    const safetensors_tensor *tensor = tensor_of(&source->dump, 'q', layer);
    const uint32_t width = source->group * source->head_dim;
    dump_head(source, 'k', layer, head, keys);
    dump_head(source, 'v', layer, head, values);
    for (uint32_t r = 0; r < source->rows; r++)
        safetensors_read_fp32(tensor, ((uint64_t)r * source->kv_heads + head) * width, width,
                              queries + (size_t)r * width);
}
