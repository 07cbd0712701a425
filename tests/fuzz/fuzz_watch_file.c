/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_watch_file.c - what `kvterrace inspect` does with a file that begins like a running store's:
 * any lines. What the reader hands on is terminated text within its line.
 */
#include "tools/inspect/watch_read.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads every byte of the fields. */
static bool fuzz_take_fields(void *context, const watch_read_field *fields, size_t count)
{
    if (count > WATCH_READ_FIELDS_MAX) abort();
    for (size_t i = 0; i < count; i++)
        *(size_t *)context += strlen(fields[i].name) + strlen(fields[i].value);
    return true;
}

static bool fuzz_take_sample(void *context, const char *name, const watch_read_field *labels,
                             size_t count, double value)
{
    (void)value;
    *(size_t *)context += strlen(name);
    return fuzz_take_fields(context, labels, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t taken = 0, lines = 0;
    if (size == 0) return 0;
    FILE *file = fmemopen((void *)(uintptr_t)data, size, "r");
    if (file == NULL) return 0;
    const watch_read_visitor visitor = {.context = &taken,
                                        .head = fuzz_take_fields,
                                        .sample = fuzz_take_sample,
                                        .operation = fuzz_take_fields};
    const kvt_status status = watch_read_stream(file, &visitor, &lines);
    if (status != KVT_OK && status != KVT_E_PARSE) abort();
    if (taken > size || lines > size) abort();
    fclose(file);
    return 0;
}
