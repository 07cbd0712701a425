/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_profile_import.c - any bytes as a document of rows to import: they come in whole and can be
 * exported and read, or nothing does and the message says why. The bytes are handed over through a
 * file in memory.
 */
#include "estimator/exchange/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t count_rows(kvt_profile *profile)
{
    json_t *tables = json_object(), *rows;
    const char *name;
    uint64_t count = 0;
    if (exchange_export(profile, NULL, tables) != KVT_OK) abort();
    json_object_foreach(tables, name, rows) count += json_array_size(rows);
    json_decref(tables);
    return count;
}

static void read_all(kvt_profile *profile)
{
    kvt_device_curve curve;
    kvt_device_point point;
    for (size_t i = 0; kvt_profile_device_at(profile, i, &curve) == KVT_OK; i++) {
        if (!(curve.read.bytes_per_s > 0) || !curve.imported) abort();
        for (size_t p = 0; kvt_profile_point_at(profile, curve.device, p, &point) == KVT_OK; p++)
            if (!(point.bytes_per_s > 0)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kvt_profile *profile;
    static unsigned uses;
    char path[64], message[256] = "";
    uint64_t rows = 0;
    if (uses++ % 64 == 0) { /* what came in before must not make everything a repetition */
        kvt_profile_close(profile);
        if (kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0) != KVT_OK) abort();
    }
    int file = memfd_create("import", MFD_CLOEXEC);
    if (file < 0) return 0;
    if (write(file, data, size) != (ssize_t)size) {
        close(file);
        return 0;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    uint64_t before = count_rows(profile);
    kvt_status status =
        exchange_import(profile, path, "fuzz", NULL, &rows, message, sizeof message);
    close(file);
    uint64_t after = count_rows(profile);
    if (status == KVT_OK) {
        /* Rows of models that are known already add none; curves that make their model add two. */
        if (rows == 0 || after < before || after > before + 2 * rows) abort();
        read_all(profile);
    } else if (status != KVT_E_PARSE || rows != 0 || after != before || message[0] == '\0') {
        abort();
    }
    return 0;
}
