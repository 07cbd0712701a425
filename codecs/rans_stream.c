/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_stream.c - see rans_stream.h. Code is written backwards from as far as it can reach and then
 * moved into place, so that coding needs no buffer of its own. Re-entrant.
 */
#include "rans_stream.h"

#include "codecs.h"
#include "codecs/kernels/cpu.h"

#include <string.h>

enum { STREAM_SCAN = 64 /* symbols looked at together */ };

bool rans_append(rans_target *target, const void *source, uint64_t bytes)
{
    if (bytes > target->limit - target->used) return false;
    memcpy(target->bytes + target->used, source, bytes);
    target->used += bytes;
    return true;
}

const uint8_t *rans_take(rans_source *source, uint64_t bytes)
{
    if (bytes > source->left) return NULL;
    const uint8_t *taken = source->bytes;
    source->bytes += bytes;
    source->left -= bytes;
    return taken;
}

/* See rans_collect_avx512. */
static uint8_t *stream_collect(const rans_encode_table *encode, const uint8_t *symbols,
                               uint64_t count, uint8_t *out, const uint8_t *out_end)
{
    for (uint64_t at = 0; at < count; at += STREAM_SCAN) {
        const uint64_t run = count - at < STREAM_SCAN ? count - at : STREAM_SCAN;
        if (!rans_any_escapes(encode, symbols + at, run)) continue;
        for (uint64_t i = at; i < at + run; i++) {
            if (!rans_escapes(encode, symbols[i])) continue;
            if (out == out_end) return NULL;
            *out++ = symbols[i];
        }
    }
    return out;
}

/* Appends all symbols that the table lacks. */
static bool stream_append_escapes(rans_target *target, const rans_encode_table *encode,
                                  const uint8_t *symbols, uint64_t count)
{
    uint8_t *out = target->bytes + target->used;
    const uint8_t *end = target->bytes + target->limit;
#if defined(__x86_64__)
    out = codecs_cpu_level() >= CODECS_CPU_AVX512
              ? rans_collect_avx512(encode, symbols, count, out, end)
              : stream_collect(encode, symbols, count, out, end);
#else
    out = stream_collect(encode, symbols, count, out, end);
#endif
    if (out == NULL) return false;
    target->used = (uint64_t)(out - target->bytes);
    return true;
}

/* Appends states and code; returns the code's bytes in *code_bytes_out. */
static bool stream_append_code(rans_target *target, const rans_encode_table *encode,
                               const uint8_t *symbols, uint64_t count, uint32_t state_count,
                               uint64_t *code_bytes_out)
{
    uint16_t states[RANS_STATES_MAX];
    const uint64_t states_bytes = (uint64_t)state_count * RANS_STATE_BYTES;
    const uint64_t room = target->limit - target->used;
    if (states_bytes > room) return false;
    uint8_t *begin = target->bytes + target->used + states_bytes;
    /* A symbol moves one byte at most. */
    uint8_t *end = begin + (count < room - states_bytes ? count : room - states_bytes);
    const uint8_t *code = rans_encode(encode, symbols, count, state_count, begin, end, states);
    if (code == NULL) return false;
    *code_bytes_out = (uint64_t)(end - code);
    memcpy(target->bytes + target->used, states, states_bytes);
    memmove(begin, code, *code_bytes_out);
    target->used += states_bytes + *code_bytes_out;
    return true;
}

bool rans_stream_write(rans_target *target, const rans_table *given, const uint8_t *symbols,
                       uint64_t count, rans_encode_table *encode)
{
    rans_table own;
    uint32_t counts[256];
    uint64_t code_bytes;
    const uint64_t head_at = target->used;
    const uint8_t empty[RANS_STREAM_HEAD_BYTES] = {0};
    const uint32_t state_count = rans_state_count(count);
    if (!rans_append(target, empty, sizeof empty)) return false;
    if (given == NULL) {
        (void)rans_count(symbols, count, counts);
        rans_make_table(counts, RANS_ESCAPE_BITS, &own);
        given = &own;
    }
    const size_t table_bytes =
        rans_write_table(given, target->bytes + target->used, target->limit - target->used);
    if (table_bytes == 0) return false;
    target->used += table_bytes;
    rans_fill_encode_table(given, encode);
    const uint64_t escapes_at = target->used;
    if (!stream_append_escapes(target, encode, symbols, count)) return false;
    const uint64_t escapes = target->used - escapes_at;
    if (!stream_append_code(target, encode, symbols, count, state_count, &code_bytes)) return false;
    uint8_t *head = target->bytes + head_at;
    codecs_store32(head, (uint32_t)code_bytes);
    codecs_store32(head + 4, (uint32_t)escapes);
    head[8] = (uint8_t)table_bytes;
    head[9] = (uint8_t)state_count;
    return true;
}

kvt_status rans_stream_open(rans_stream *stream, rans_source *source, uint64_t count,
                            rans_decode_table *decode)
{
    const uint8_t *head = rans_take(source, RANS_STREAM_HEAD_BYTES);
    if (head == NULL || head[10] != 0 || head[11] != 0) return KVT_E_CORRUPT;
    const uint64_t code_bytes = codecs_load32(head);
    const uint64_t escapes = codecs_load32(head + 4);
    const uint32_t state_count = head[9];
    if (state_count != rans_state_count(count)) return KVT_E_CORRUPT;
    const uint8_t *table = rans_take(source, head[8]);
    if (table == NULL || head[8] == 0 ||
        rans_read_table(table, head[8], &stream->table) != head[8]) {
        return KVT_E_CORRUPT;
    }
    stream->escape = rans_take(source, escapes);
    const uint8_t *states = rans_take(source, (uint64_t)state_count * RANS_STATE_BYTES);
    const uint8_t *code = rans_take(source, code_bytes);
    if (stream->escape == NULL || states == NULL || code == NULL) return KVT_E_CORRUPT;
    stream->escape_end = stream->escape + escapes;
    stream->left = count;
    rans_fill_decode_table(&stream->table, decode);
    return rans_decode_start(&stream->decoder, decode, state_count, states, code, code_bytes);
}

/* See rans_patch_avx512. */
static const uint8_t *stream_patch(uint8_t *symbols, uint64_t count, const uint8_t *escape,
                                   const uint8_t *escape_end)
{
    uint8_t *const end = symbols + count;
    while ((symbols = memchr(symbols, 0, (size_t)(end - symbols))) != NULL) {
        if (escape == escape_end) return NULL;
        *symbols++ = *escape++;
    }
    return escape;
}

/* Puts the escapes in place. False when they run out. */
static bool stream_patch_all(rans_stream *stream, uint8_t *symbols, uint64_t count)
{
    const uint8_t *escape = stream->escape;
    const uint8_t *end = stream->escape_end;
#if defined(__x86_64__)
    escape = codecs_cpu_level() >= CODECS_CPU_AVX512
                 ? rans_patch_avx512(symbols, count, escape, end)
                 : stream_patch(symbols, count, escape, end);
#else
    escape = stream_patch(symbols, count, escape, end);
#endif
    if (escape == NULL) return false;
    stream->escape = escape;
    return true;
}

uint64_t rans_stream_read(rans_stream *stream, uint64_t count, uint8_t *symbols)
{
    const uint64_t turn = stream->decoder.state_count;
    uint64_t more = (count + turn - 1) / turn * turn;
    if (more > stream->left) more = stream->left;
    rans_decode(&stream->decoder, symbols, more);
    stream->left -= more;
    return stream_patch_all(stream, symbols, more) ? more : 0;
}

bool rans_stream_finish(const rans_stream *stream)
{
    return stream->left == 0 && stream->escape == stream->escape_end &&
           rans_decode_finish(&stream->decoder);
}
