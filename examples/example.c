/* SPDX-License-Identifier: Apache-2.0 */
/*
 * example.c - the opening example of kvterrace.h as a whole program: one entry in, the same out.
 */
#include <kvterrace/kvterrace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *message)
{
    fprintf(stderr, "example: %s\n", message);
    return 1;
}

static void fill(unsigned char *kv, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        kv[i] = (unsigned char)(i * 31 + (i >> 9));
}

int main(void)
{
    /* README: from here */
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
    kvt_store *store;
    char message[256] = "";
    if (kvt_store_open(&options, &store, message, sizeof message) != KVT_OK) return fail(message);

    kvt_key key = {{1, 2, 3}}; /* a hash over tokens, model and layout */
    kvt_entry entry = {
        .struct_size = sizeof entry,
        .key = key,
        .layout = {
            .layers = 4, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 256}};
    uint64_t kv_bytes;
    if (kvt_layout_bytes(&entry.layout, &kv_bytes) != KVT_OK) return fail("layout");
    unsigned char *kv = malloc(kv_bytes);
    fill(kv, kv_bytes); /* the engine's prefill */
    kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(kv, kv_bytes));
    memset(kv, 0, kv_bytes);
    if (status == KVT_OK)
        status = kvt_store_get(store, &key, KVT_PACKED(kv, kv_bytes), KVT_NO_DEADLINE, NULL);
    if (status == KVT_MISS) fill(kv, kv_bytes); /* recompute */
    kvt_store_close(store);
    /* README: to here */

    unsigned char *expected = malloc(kv_bytes);
    fill(expected, kv_bytes);
    int differ = status != KVT_OK || memcmp(kv, expected, kv_bytes) != 0;
    free(expected);
    free(kv);
    if (differ) return fail(kvt_status_text(status));
    printf("kvterrace %s: %llu bytes in and out\n", kvt_version(), (unsigned long long)kv_bytes);
    return 0;
}
