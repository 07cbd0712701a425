/* SPDX-License-Identifier: Apache-2.0 */
/*
 * corpus_main.c - runs a fuzz target over files instead of a fuzzer: corpus_main [-r N] FILE...
 * With -r, each file is also tried with N seeded mutations (byte changes, cuts, repeats), so that
 * a build without libFuzzer still explores a little. Exit 0 when nothing crashed, 2 for a file
 * that cannot be read.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CORPUS_FILE_MAX = 1 << 20 };

static uint64_t corpus_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* An exact copy of the bytes, so that a sanitizer sees a read past them. */
static void corpus_run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + (size == 0));
    if (copy == NULL) abort();
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void corpus_mutate(const uint8_t *data, size_t size, unsigned long times)
{
    static uint8_t changed[2 * CORPUS_FILE_MAX];
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15) ^ size;
    for (unsigned long i = 0; i < times; i++) {
        size_t length = size;
        memcpy(changed, data, size);
        for (uint64_t k = corpus_random(&state) % 4 + 1; k > 0 && length > 0; k--) {
            uint64_t place = corpus_random(&state) % length;
            switch (corpus_random(&state) % 4) {
            case 0: length = place; break;
            case 1:
                memcpy(changed + length, data, size < 64 ? size : 64);
                length += size < 64 ? size : 64;
                break;
            default: changed[place] = (uint8_t)corpus_random(&state); break;
            }
        }
        corpus_run(changed, length);
    }
}

int main(int count, char **arguments)
{
    static uint8_t data[CORPUS_FILE_MAX];
    unsigned long times = 0;
    int first = 1;
    if (count > 2 && strcmp(arguments[1], "-r") == 0) {
        times = strtoul(arguments[2], NULL, 10);
        first = 3;
    }
    for (int i = first; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        if (file == NULL) {
            fprintf(stderr, "%s: cannot be read\n", arguments[i]);
            return 2;
        }
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        corpus_run(data, size);
        corpus_mutate(data, size, times);
    }
    return 0;
}
