/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_index.c - the stored form of a kept-token index. See drop.h. Re-entrant.
 */
#include "drop.h"

#include <string.h>

enum { DROP_FORM_BITMAP = 0, DROP_FORM_GAPS = 1, DROP_FORM_RUNS = 2, DROP_FORM_COUNT = 3 };

static uint32_t drop_varint_bytes(uint32_t value)
{
    uint32_t bytes = 1;
    while (value >= 128) {
        value >>= 7;
        bytes++;
    }
    return bytes;
}

static uint8_t *drop_varint_write(uint8_t *target, uint32_t value)
{
    while (value >= 128) {
        *target++ = (uint8_t)(value | 128u);
        value >>= 7;
    }
    *target++ = (uint8_t)value;
    return target;
}

/* Tokens skipped before index[i]. */
static uint32_t drop_gap(const uint32_t *index, uint32_t i)
{
    return i == 0 ? index[0] : index[i] - index[i - 1] - 1;
}

static uint32_t drop_run_end(const uint32_t *index, uint32_t count, uint32_t at)
{
    uint32_t end = at + 1;
    while (end < count && index[end] == index[end - 1] + 1) {
        end++;
    }
    return end;
}

/* Chooses the form and gives its bytes, the naming one included. */
static uint64_t drop_index_choose(const uint32_t *index, uint32_t count, uint32_t tokens,
                                  uint32_t *form_out)
{
    uint64_t bytes[DROP_FORM_COUNT] = {1 + ((uint64_t)tokens + 7) / 8, 1, 1};
    for (uint32_t i = 0; i < count; i++) {
        bytes[DROP_FORM_GAPS] += drop_varint_bytes(drop_gap(index, i));
    }
    for (uint32_t i = 0; i < count;) {
        const uint32_t end = drop_run_end(index, count, i);
        bytes[DROP_FORM_RUNS] +=
            drop_varint_bytes(drop_gap(index, i)) + drop_varint_bytes(end - i - 1);
        i = end;
    }
    *form_out = DROP_FORM_BITMAP;
    for (uint32_t form = 1; form < DROP_FORM_COUNT; form++) {
        if (bytes[form] < bytes[*form_out]) *form_out = form;
    }
    return bytes[*form_out];
}

uint64_t drop_index_bytes(const uint32_t *index, uint32_t count, uint32_t tokens)
{
    uint32_t form;
    return drop_index_choose(index, count, tokens, &form);
}

kvt_status drop_index_pack(const uint32_t *index, uint32_t count, uint32_t tokens, void *target,
                           uint64_t capacity, uint64_t *written_out)
{
    uint8_t *out = target;
    uint32_t form;
    const uint64_t bytes = drop_index_choose(index, count, tokens, &form);
    *written_out = 0;
    if (bytes > capacity) return KVT_E_SPACE;
    *out++ = (uint8_t)form;
    if (form == DROP_FORM_BITMAP) {
        memset(out, 0, bytes - 1);
        for (uint32_t i = 0; i < count; i++) {
            out[index[i] / 8] |= (uint8_t)(1u << (index[i] % 8));
        }
    }
    for (uint32_t i = 0; form == DROP_FORM_GAPS && i < count; i++) {
        out = drop_varint_write(out, drop_gap(index, i));
    }
    for (uint32_t i = 0; form == DROP_FORM_RUNS && i < count;) {
        const uint32_t end = drop_run_end(index, count, i);
        out = drop_varint_write(out, drop_gap(index, i));
        out = drop_varint_write(out, end - i - 1);
        i = end;
    }
    *written_out = bytes;
    return KVT_OK;
}

typedef struct drop_reader {
    const uint8_t *at;
    const uint8_t *end;
} drop_reader;

static bool drop_varint_read(drop_reader *reader, uint32_t *value_out)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 35; shift += 7) {
        if (reader->at == reader->end) return false;
        const uint8_t byte = *reader->at++;
        value |= (uint64_t)(byte & 127u) << shift;
        if (byte >= 128) continue;
        *value_out = (uint32_t)value;
        return value <= UINT32_MAX && (byte != 0 || shift == 0);
    }
    return false;
}

static bool drop_bitmap_read(const drop_reader *reader, uint32_t tokens, uint32_t count,
                             uint32_t *index_out)
{
    const uint64_t bytes = ((uint64_t)tokens + 7) / 8;
    uint32_t found = 0;
    if ((uint64_t)(reader->end - reader->at) != bytes) return false;
    for (uint64_t i = 0; i < bytes; i++) {
        for (uint32_t left = reader->at[i]; left != 0; left &= left - 1) {
            const uint64_t token = 8 * i + (uint32_t)__builtin_ctz(left);
            if (token >= tokens || found == count) return false;
            index_out[found++] = (uint32_t)token;
        }
    }
    return found == count;
}

/* Gaps, and lengths where runs is set. */
static bool drop_runs_read(drop_reader *reader, bool runs, uint32_t tokens, uint32_t count,
                           uint32_t *index_out)
{
    uint64_t next = 0; /* the first token that may come */
    for (uint32_t found = 0; found < count;) {
        uint32_t gap;
        uint32_t more = 0;
        if (!drop_varint_read(reader, &gap)) return false;
        if (runs && !drop_varint_read(reader, &more)) return false;
        if (runs && found > 0 && gap == 0) return false; /* the run before was not whole */
        next += gap;
        if (more >= count - found || next + more >= tokens) return false;
        for (uint64_t end = next + more; next <= end; next++) {
            index_out[found++] = (uint32_t)next;
        }
    }
    return reader->at == reader->end;
}

kvt_status drop_index_unpack(const void *source, uint64_t bytes, uint32_t tokens, uint32_t count,
                             uint32_t *index_out)
{
    drop_reader reader = {source, source};
    bool sound = false;
    if (bytes == 0 || count > tokens) return KVT_E_CORRUPT;
    reader.end += bytes;
    switch (*reader.at++) {
    case DROP_FORM_BITMAP: sound = drop_bitmap_read(&reader, tokens, count, index_out); break;
    case DROP_FORM_GAPS: sound = drop_runs_read(&reader, false, tokens, count, index_out); break;
    case DROP_FORM_RUNS: sound = drop_runs_read(&reader, true, tokens, count, index_out); break;
    default: break;
    }
    return sound ? KVT_OK : KVT_E_CORRUPT;
}
