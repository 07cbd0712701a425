/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.c - single records in somebody else's program: an entry is encoded in three forms, "sent"
 * as bytes, and decoded by a side that knows nothing of it. It uses coding.h and nothing else of
 * kvterrace.
 *
 * Exit status 0 when the exact forms come back whole, and the lossy one within its step.
 */
#include <kvterrace/coding.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, HEADS = 2, DIM = 64, TOKENS = 64, ELEMENTS = LAYERS * 2 * TOKENS * HEADS * DIM };

static float kv[ELEMENTS], back[ELEMENTS];

/* Rounded up, so that memory of no bytes is some memory. */
static void *room(uint64_t bytes)
{
    return aligned_alloc(KVT_CODING_ALIGN,
                         (size_t)(bytes / KVT_CODING_ALIGN + 1) * KVT_CODING_ALIGN);
}

/* The other side: all it has is the record. Returns the largest difference, negative on failure. */
static double receive(const void *record, uint64_t bytes)
{
    kvt_coding_info info = {.struct_size = sizeof info};
    kvt_status status = kvt_coding_inspect(record, bytes, &info);
    if (status != KVT_OK || info.decoded_bytes != sizeof back) return -1;
    void *scratch = room(info.scratch_bytes);
    status = kvt_coding_decode(NULL, record, bytes, back, sizeof back, scratch, info.scratch_bytes);
    free(scratch);
    if (status != KVT_OK) return -1;
    double largest = 0;
    for (int i = 0; i < ELEMENTS; i++)
        largest = fmax(largest, fabs((double)kv[i] - (double)back[i]));
    return largest;
}

static double send_as(const char *name)
{
    kvt_coding coding = {.struct_size = sizeof coding,
                         .layout = {.layers = LAYERS,
                                    .kv_heads = HEADS,
                                    .head_dim = DIM,
                                    .dtype = KVT_DTYPE_FP32,
                                    .tokens = TOKENS}};
    kvt_coding_sizes sizes = {.struct_size = sizeof sizes};
    uint64_t bytes;
    double largest = -1;
    if (kvt_variant_parse(name, &coding.variant) != KVT_OK) return -1;
    if (kvt_coding_plan(&coding, &sizes) != KVT_OK) return -1;
    void *record = room(sizes.record_bytes), *scratch = room(sizes.scratch_bytes);
    kvt_status status = kvt_coding_encode(&coding, kv, sizeof kv, record, sizes.record_bytes,
                                          scratch, sizes.scratch_bytes, &bytes);
    if (status >= KVT_OK) largest = receive(record, bytes);
    printf("%-20s %6llu bytes of %zu, largest difference %.4f (%s)\n", name,
           (unsigned long long)bytes, sizeof kv, largest, kvt_status_name(status));
    free(record);
    free(scratch);
    return largest;
}

int main(void)
{
    unsigned dice = 1;
    for (int i = 0; i < ELEMENTS; i++) {
        dice = dice * 1103515245u + 12345u;
        kv[i] = (float)(dice >> 16) / 65536.0f - 0.5f;
    }
    const double lossless = send_as("lossless"), raw = send_as("raw");
    const double planes = send_as("planes:k8v8,g64");
    return lossless != 0 || raw != 0 || planes < 0 || planes > 0.01;
}
