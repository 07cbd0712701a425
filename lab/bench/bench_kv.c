/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_kv.c - see bench_kv.h. One thread.
 */
#include "bench_kv.h"

#include "estimator/quality/quality_dump.h"

#include <stdlib.h>
#include <string.h>

#define KV_ALIGN 4096u

static void *kv_allocate(uint64_t bytes)
{
    return aligned_alloc(KV_ALIGN, (bytes / KV_ALIGN + 1u) * KV_ALIGN);
}

/* Moves each matrix' first rows together; `kv` then has so many tokens. */
static void kv_shorten(kvt_profile_kv *kv, unsigned char *bytes, uint32_t tokens)
{
    const kvt_layout whole = kv->layout;
    kv->layout.tokens = tokens;
    const uint64_t kept = kvt_layout_matrix_bytes(&kv->layout);
    for (uint32_t layer = 0; layer < whole.layers; layer++) {
        for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
            memmove(bytes + kvt_layout_matrix_offset(&kv->layout, layer, (kvt_side)side),
                    bytes + kvt_layout_matrix_offset(&whole, layer, (kvt_side)side), kept);
        }
    }
}

kvt_status bench_kv_read(const char *path, uint64_t most_bytes, kvt_profile_kv *out, char *message,
                         size_t message_size)
{
    quality_dump dump = {.file = NULL};
    uint64_t bytes = 0;
    unsigned char *memory = NULL;
    kvt_status status = quality_dump_open(path, &dump, message, message_size);
    if (status == KVT_OK) status = kvt_layout_bytes(&dump.layout, &bytes);
    if (status == KVT_OK) memory = kv_allocate(bytes);
    if (status == KVT_OK && memory == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) {
        quality_dump_load(&dump, memory);
        *out = (kvt_profile_kv){.name = path, .layout = dump.layout, .bytes = memory};
        uint64_t tokens = most_bytes / (bytes / dump.layout.tokens);
        if (tokens < 1) tokens = 1;
        if (tokens < dump.layout.tokens) kv_shorten(out, memory, (uint32_t)tokens);
    }
    quality_dump_close(&dump);
    return status;
}

void bench_kv_free(kvt_profile_kv *kv)
{
    union {
        const void *given;
        void *owned;
    } memory = {.given = kv->bytes};
    free(memory.owned);
    *kv = (kvt_profile_kv){.name = NULL};
}
