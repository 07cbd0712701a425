/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_drop_index.c - the reader of kept-token indices against any bytes. The first 4 bytes are the
 * numbers of tokens and of kept tokens. An accepted index must be ascending and come back from its
 * own packing, which must not be larger.
 */
#include "codecs/drop.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_HEAD_BYTES = 4 };

static void *fuzz_memory(size_t bytes)
{
    void *memory = malloc(bytes + (bytes == 0));
    if (memory == NULL) abort();
    return memory;
}

static void fuzz_pack_again(const uint32_t *index, uint32_t count, uint32_t tokens, uint64_t limit)
{
    const uint64_t bytes = drop_index_bytes(index, count, tokens);
    uint64_t written;
    if (bytes > limit) abort();
    uint8_t *packed = fuzz_memory(bytes);
    uint32_t *back = fuzz_memory(count * sizeof *back);
    if (drop_index_pack(index, count, tokens, packed, bytes, &written) != KVT_OK) abort();
    if (written != bytes) abort();
    if (drop_index_unpack(packed, bytes, tokens, count, back) != KVT_OK) abort();
    if (memcmp(back, index, count * sizeof *back) != 0) abort();
    free(back);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < FUZZ_HEAD_BYTES) return 0;
    const uint32_t tokens = data[0] | (uint32_t)data[1] << 8;
    const uint32_t count = data[2] | (uint32_t)data[3] << 8;
    size -= FUZZ_HEAD_BYTES;
    uint8_t *stored = fuzz_memory(size);
    uint32_t *index = fuzz_memory(count * sizeof *index);
    memcpy(stored, data + FUZZ_HEAD_BYTES, size);
    const kvt_status status = drop_index_unpack(stored, size, tokens, count, index);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    if (status == KVT_OK) {
        for (uint32_t i = 0; i < count; i++) {
            if (index[i] >= tokens || (i > 0 && index[i] <= index[i - 1])) abort();
        }
        fuzz_pack_again(index, count, tokens, size);
    }
    free(index);
    free(stored);
    return 0;
}
