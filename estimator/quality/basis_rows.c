/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_rows.c - a file of judged rows, a line each: the key, seven figures and two counts. Thread
 * rule: see basis_rows.h.
 */
#include "estimator/quality/basis_rows.h"

#include "codecs/kernels/checksum.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_LINE_BYTES = 512 };

typedef struct basis_line {
    uint64_t key;
    quality_basis_sums sums;
} basis_line;

struct basis_rows {
    FILE *file; /* NULL: kept nowhere */
    basis_line *lines;
    size_t count, capacity;
};

static kvt_status rows_keep(basis_rows *rows, uint64_t key, const quality_basis_sums *sums)
{
    if (rows->count == rows->capacity) {
        const size_t capacity = 2 * rows->capacity + 64;
        basis_line *grown = realloc(rows->lines, capacity * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        rows->lines = grown;
        rows->capacity = capacity;
    }
    rows->lines[rows->count++] = (basis_line){key, *sums};
    return KVT_OK;
}

/* A line with its end, or false. "nan" reads as one: codes that were stored raw have no entropy. */
static bool rows_parse(const char *text, uint64_t *key, quality_basis_sums *sums)
{
    const size_t length = strlen(text);
    char *end = NULL;
    double *const figures[] = {&sums->bits, &sums->order0_bits, &sums->log_kl,
                               &sums->top1, &sums->log_recall,  &sums->recall_top1};
    if (length == 0 || text[length - 1] != '\n') return false;
    *key = strtoull(text, &end, 16);
    if (end != text + 16) return false;
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        const char *at = end;
        *figures[i] = strtod(at, &end);
        if (end == at) return false;
    }
    sums->contexts = 1;
    sums->recalls = (uint32_t)strtoul(end, &end, 10);
    return strcmp(end, " .\n") == 0 && sums->recalls <= 1;
}

kvt_status basis_rows_open(const char *path, basis_rows **rows_out, char *message,
                           size_t message_size)
{
    char text[ROWS_LINE_BYTES];
    kvt_status status = KVT_OK;
    basis_rows *rows = calloc(1, sizeof *rows);
    *rows_out = rows;
    if (rows == NULL) return KVT_E_MEMORY;
    if (path == NULL) return KVT_OK;
    rows->file = fopen(path, "a+e");
    if (rows->file == NULL) {
        (void)snprintf(message, message_size, "%.300s: cannot be opened or made", path);
        return KVT_E_IO;
    }
    rewind(rows->file);
    bool ended = true;
    while (status == KVT_OK && fgets(text, sizeof text, rows->file) != NULL) {
        basis_line line = {.key = 0};
        ended = text[strlen(text) - 1] == '\n';
        if (rows_parse(text, &line.key, &line.sums)) status = rows_keep(rows, line.key, &line.sums);
    }
    if (!ended) (void)fputc('\n', rows->file);
    return status;
}

void basis_rows_close(basis_rows *rows)
{
    if (rows == NULL) return;
    if (rows->file != NULL) (void)fclose(rows->file);
    free(rows->lines);
    free(rows);
}

uint64_t basis_rows_key(const char *model_digest, const quality_entry *entry, bool recall,
                        const char *form)
{
    const uint64_t tokens = entry->context_tokens + entry->continuation_tokens;
    const bool recalls = recall && entry->recall != NULL;
    const uint64_t parts[7] = {
        checksum_of(model_digest, strlen(model_digest)),
        checksum_of(entry->tokens, tokens * sizeof *entry->tokens),
        entry->context_tokens,
        entry->continuation_tokens,
        recalls ? checksum_of(entry->recall, entry->recall_tokens * sizeof *entry->recall) : 0,
        recalls ? entry->recall_scored : 0,
        checksum_of(form, strlen(form))};
    return checksum_of(parts, sizeof parts);
}

bool basis_rows_find(const basis_rows *rows, uint64_t key, quality_basis_sums *sums_out)
{
    for (size_t i = 0; i < rows->count; i++) {
        if (rows->lines[i].key != key) continue;
        *sums_out = rows->lines[i].sums;
        return true;
    }
    return false;
}

kvt_status basis_rows_add(basis_rows *rows, uint64_t key, const quality_basis_sums *sums)
{
    if (rows->file != NULL) {
        const int length =
            fprintf(rows->file, "%016" PRIx64 " %.17g %.17g %.17g %.17g %.17g %.17g %u .\n", key,
                    sums->bits, sums->order0_bits, sums->log_kl, sums->top1, sums->log_recall,
                    sums->recall_top1, (unsigned)sums->recalls);
        if (length < 0 || fflush(rows->file) != 0) return KVT_E_IO;
    }
    return rows_keep(rows, key, sums);
}
