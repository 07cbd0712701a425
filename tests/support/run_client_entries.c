/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_client_entries.c - a client of a lent store for tests of commands: what an engine would do.
 *
 *     run_client_entries SOCKET put SPACE TENANT COUNT BYTES   prints the keys
 *     run_client_entries SOCKET get SPACE TENANT COUNT BYTES   how many are there
 *     run_client_entries SOCKET hold SPACE TENANT COUNT BYTES  leases, until the input ends
 *
 * Entry i of a space and tenant has one key, and bytes of its own. Exit code 1: a call failed.
 */
#include <kvterrace/connect.h>
#include <kvterrace/kvterrace.h>
#include <kvterrace/lookup.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvt_key entry_key(uint64_t space, uint32_t tenant, uint32_t number)
{
    kvt_key key = {{0}};
    for (int i = 0; i < 8; i++)
        key.bytes[i] = (uint8_t)(space >> (56 - 8 * i));
    key.bytes[8] = (uint8_t)tenant;
    for (int i = 0; i < 4; i++)
        key.bytes[12 + i] = (uint8_t)(number >> (24 - 8 * i));
    return key;
}

static void entry_fill(uint32_t number, unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((number + 1) * 2654435761u >> (i % 25));
}

static int fail(const char *what, kvt_status status)
{
    fprintf(stderr, "%s: %s\n", what, kvt_status_name(status));
    return 1;
}

static int put(kvt_store *store, uint64_t space, uint32_t tenant, uint32_t count,
               unsigned char *data, size_t bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        const kvt_entry entry = {
            .struct_size = sizeof entry,
            .key = entry_key(space, tenant, i),
            .layout = {.dtype = KVT_DTYPE_OPAQUE, .tokens = 16, .opaque_bytes = bytes},
            .recompute_seconds = 1,
            .tenant = tenant};
        kvt_status status;
        entry_fill(i, data, bytes);
        while ((status = kvt_store_put(store, &entry, KVT_PACKED(data, bytes))) == KVT_BUSY)
            if (kvt_store_flush(store) != KVT_OK) return fail("flush", status);
        if (status != KVT_OK) return fail("put", status);
        for (size_t at = 0; at < sizeof entry.key.bytes; at++)
            printf("%02x", entry.key.bytes[at]);
        printf("\n");
    }
    return 0;
}

static int get(kvt_store *store, uint64_t space, uint32_t tenant, uint32_t count,
               unsigned char *data, size_t bytes)
{
    unsigned char *expected = malloc(bytes);
    uint32_t found = 0;
    int code = expected == NULL;
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        const kvt_key key = entry_key(space, tenant, i);
        const kvt_status status =
            kvt_store_get(store, &key, KVT_PACKED(data, bytes), KVT_NO_DEADLINE, NULL);
        if (status == KVT_MISS) continue;
        entry_fill(i, expected, bytes);
        if (status != KVT_OK || memcmp(data, expected, bytes) != 0) code = fail("get", status);
        found++;
    }
    free(expected);
    printf("%u\n", found);
    return code;
}

static int hold(kvt_store *store, uint64_t space, uint32_t tenant, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const kvt_key key = entry_key(space, tenant, i);
        uint64_t lease;
        bool held = false;
        const kvt_status status =
            kvt_lease_begin(store, NULL, &key, 1, KVT_NO_DEADLINE - 1, &held, &lease);
        if (status != KVT_OK || !held) return fail("lease", status);
    }
    printf("held\n");
    (void)fflush(stdout);
    while (getchar() != EOF)
        continue;
    return 0;
}

int main(int argc, char **argv)
{
    char message[256];
    kvt_store *store;
    if (argc != 7) return 2;
    const kvt_connect_options options = {.struct_size = sizeof options, .depth = 16};
    const kvt_status status = kvt_connect(argv[1], &options, &store, message, sizeof message);
    if (status != KVT_OK) return fail(message, status);
    const uint64_t space = strtoull(argv[3], NULL, 16);
    const uint32_t tenant = (uint32_t)strtoul(argv[4], NULL, 10);
    const uint32_t count = (uint32_t)strtoul(argv[5], NULL, 10);
    const size_t bytes = strtoul(argv[6], NULL, 10);
    unsigned char *data = malloc(bytes + 1);
    int code = data == NULL;
    if (code == 0 && strcmp(argv[2], "put") == 0)
        code = put(store, space, tenant, count, data, bytes);
    else if (code == 0 && strcmp(argv[2], "get") == 0)
        code = get(store, space, tenant, count, data, bytes);
    else if (code == 0)
        code = hold(store, space, tenant, count);
    free(data);
    kvt_store_close(store);
    return code;
}
