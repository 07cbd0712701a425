/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_safetensors.c - the safetensors reader against any bytes. The first byte chooses whether the
 * rest is a whole file or a header to which the length and, from the second byte, data are added,
 * so that most inputs get past the length. Of what is accepted every byte is read.
 */
#include "estimator/model/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The tensors tile the data: their sizes add up to no more than there is. */
static void read_all(const safetensors *file, size_t limit)
{
    uint64_t total = 0, sum = 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *tensor = safetensors_at(file, i);
        const uint8_t *bytes = tensor->data;
        float value;
        if (safetensors_find(file, tensor->name) != tensor) abort();
        if (tensor->bytes != tensor->elements * tensor->element_bytes) abort();
        for (uint64_t at = 0; at < tensor->bytes; at++)
            sum += bytes[at];
        total += tensor->bytes;
        if (tensor->dtype == KVT_DTYPE_OPAQUE || tensor->dtype == KVT_DTYPE_FP8) continue;
        if (tensor->elements > 0) safetensors_read_fp32(tensor, tensor->elements - 1, 1, &value);
    }
    if (total > limit || sum > 255 * total) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    size_t length = size - 2, extra = data[0] % 2 == 0 ? 0 : data[1], head = extra > 0 ? 8 : 0;
    uint8_t *bytes = calloc(1, head + length + extra + 1);
    safetensors *file = NULL;
    char message[128] = "";
    if (bytes == NULL) abort();
    for (size_t i = 0; i < head; i++)
        bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(bytes + head, data + 2, length);
    /* An exact copy, so that a sanitizer sees a read past the end. */
    uint8_t *exact = malloc(head + length + extra);
    if (exact == NULL && head + length + extra > 0) abort();
    if (exact != NULL) memcpy(exact, bytes, head + length + extra);
    kvt_status status = safetensors_open_bytes("fuzz", exact, head + length + extra, &file, message,
                                               sizeof message);
    if (status == KVT_OK) {
        read_all(file, head + length + extra);
        safetensors_close(file);
    } else if ((status != KVT_E_CORRUPT && status != KVT_E_PARSE) || file != NULL ||
               message[0] == '\0') {
        abort();
    }
    free(exact);
    free(bytes);
    return 0;
}
