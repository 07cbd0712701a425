/*
 * entropy_span.c - see entropy_span.h. Words are coded backwards from the end of the room that is
 * left and then moved into place, so that coding needs no buffer of its own. Re-entrant.
 */
#include "entropy_span.h"

#include "codecs.h"

#include <string.h>

enum {
    SPAN_SCAN = 64,             /* symbols looked at together */
    SPAN_SAMPLED_MIN = 1 << 18, /* symbols from which on a part of them makes the table */
    SPAN_ESCAPE_BITS = 16
};

bool entropy_append(entropy_target *target, const void *source, uint64_t bytes)
{
    if (bytes > target->limit - target->used) return false;
    memcpy(target->bytes + target->used, source, bytes);
    target->used += bytes;
    return true;
}

/* Counts symbols. Of a long span one run in four, chosen by a hash so that no channel is preferred:
 * a quarter million symbols make as good a table as a million. Returns how many were counted. */
static uint64_t span_count(const uint8_t *symbols, uint64_t count, uint32_t counts[256])
{
    rans_counts parts;
    uint64_t counted = 0;
    memset(&parts, 0, sizeof parts);
    if (count < SPAN_SAMPLED_MIN) {
        rans_count(symbols, count, &parts);
        counted = count;
    } else {
        for (uint32_t i = 0; i < count / (4 * SPAN_SCAN); i++) {
            uint32_t one = (i * UINT32_C(0x9e3779b1)) >> 30;
            rans_count(symbols + (4 * (uint64_t)i + one) * SPAN_SCAN, SPAN_SCAN, &parts);
            counted += SPAN_SCAN;
        }
    }
    rans_count_sum(&parts, counts);
    return counted;
}

/*
 * Whether a symbol at the edge of the table earns its place. As an escape each of its elements
 * costs 16 bits more. In the table it costs about 12 bits and one slot of 4096, which is
 * count / 2839 bits over all other elements.
 */
static bool span_earns(uint32_t occurrences, uint64_t count)
{
    return (uint64_t)occurrences * SPAN_ESCAPE_BITS > count / 2839 + 12;
}

/* Leaves symbols out of the table from both ends, as escapes. */
static void span_trim(uint32_t counts[256], uint64_t count)
{
    unsigned first = 1;
    unsigned last = 255;
    for (; first <= last && !span_earns(counts[first], count); first++) {
        counts[0] += counts[first];
        counts[first] = 0;
    }
    for (; last > first && !span_earns(counts[last], count); last--) {
        counts[0] += counts[last];
        counts[last] = 0;
    }
    if (counts[0] == 0) counts[0] = 1;
    /* What a sample missed between them may still occur. */
    for (unsigned s = first; s <= last; s++) {
        if (counts[s] == 0) counts[s] = 1;
    }
}

void entropy_make_table(const uint32_t counts[256], rans_frequencies *table)
{
    uint32_t smoothed[256];
    for (unsigned s = 0; s < 256; s++) {
        smoothed[s] = counts[s] < UINT32_MAX / 512 ? counts[s] : UINT32_MAX / 512;
        if (smoothed[s] == 0 && (s == 0 || (s > 1 && s < 255 && counts[s - 1] + counts[s + 1]))) {
            smoothed[s] = 1;
        }
    }
    rans_normalise(smoothed, table);
}

/* Whether any of the symbols is outside the table's range. */
static bool span_any_outside(const uint8_t *symbols, uint64_t count, uint8_t first, uint8_t width)
{
    uint8_t any = 0;
    for (uint64_t i = 0; i < count; i++) {
        any |= (uint8_t)((uint8_t)(symbols[i] - first) > width ? 1 : 0);
    }
    return any != 0;
}

/* Appends the codes of all symbols that the table lacks, and makes them 0. */
static bool span_append_escapes(entropy_target *target, const rans_frequencies *frequencies,
                                const entropy_scratch *scratch, uint64_t count)
{
    const int16_t *distant = scratch->distant;
    uint8_t first = 1;
    uint8_t last = 255;
    bool holes = false;
    while (first < 255 && frequencies->of[first] == 0) {
        first++;
    }
    while (last > first && frequencies->of[last] == 0) {
        last--;
    }
    for (unsigned s = first; s <= last; s++) {
        holes = holes || frequencies->of[s] == 0;
    }
    for (uint64_t at = 0; at < count; at += SPAN_SCAN) {
        uint8_t *symbols = scratch->symbols + at;
        uint64_t run = count - at < SPAN_SCAN ? count - at : SPAN_SCAN;
        if (!holes && !span_any_outside(symbols, run, first, (uint8_t)(last - first))) continue;
        for (uint64_t i = 0; i < run; i++) {
            if (symbols[i] != 0 && frequencies->of[symbols[i]] != 0) continue;
            int16_t code = symbols[i] == 0 ? *distant++ : (int16_t)(symbols[i] - 128);
            symbols[i] = 0;
            if (!entropy_append(target, &code, sizeof code)) return false;
        }
    }
    return true;
}

/* A table of the span's own. */
static void span_make_table(const uint8_t *symbols, uint64_t count, rans_frequencies *frequencies)
{
    uint32_t counts[256];
    uint64_t counted = span_count(symbols, count, counts);
    span_trim(counts, counted);
    rans_normalise(counts, frequencies);
}

bool entropy_span_code(entropy_target *target, uint64_t head_at, const rans_frequencies *carried,
                       const entropy_scratch *scratch, uint64_t count)
{
    rans_frequencies frequencies;
    uint32_t states[RANS_STATES_MAX];
    uint64_t table_bytes = 0;
    if (carried != NULL) {
        frequencies = *carried;
    } else {
        span_make_table(scratch->symbols, count, &frequencies);
        table_bytes = rans_write_frequencies(&frequencies, target->bytes + target->used,
                                             target->limit - target->used);
        if (table_bytes == 0) return false;
        target->used += table_bytes;
    }
    const uint64_t escapes_at = target->used;
    if (!span_append_escapes(target, &frequencies, scratch, count)) return false;
    const uint64_t escapes = (target->used - escapes_at) / sizeof(int16_t);

    const uint32_t state_count = rans_state_count(count);
    const uint64_t states_bytes = state_count * sizeof states[0];
    if (states_bytes > target->limit - target->used) return false;
    uint8_t *states_at = target->bytes + target->used;
    uint8_t *words_at = states_at + states_bytes;
    uint8_t *end = target->bytes + target->limit;
    rans_fill_encode_table(&frequencies, scratch->encode_table);
    uint8_t *word = rans_encode(scratch->encode_table, scratch->symbols, count, state_count,
                                words_at, end, states);
    if (word == NULL) return false;
    uint64_t word_bytes = (uint64_t)(end - word);
    memcpy(states_at, states, states_bytes);
    memmove(words_at, word, word_bytes);
    target->used += states_bytes + word_bytes;

    uint8_t *head = target->bytes + head_at;
    codecs_store32(head, (uint32_t)(word_bytes / 2));
    codecs_store32(head + 4, (uint32_t)escapes);
    head[8] = (uint8_t)table_bytes;
    head[9] = (uint8_t)(table_bytes >> 8);
    head[10] = (uint8_t)state_count;
    head[11] = 0;
    return true;
}

static const uint8_t *span_take(const uint8_t **source, uint64_t *left, uint64_t bytes)
{
    if (bytes > *left) return NULL;
    const uint8_t *taken = *source;
    *source += bytes;
    *left -= bytes;
    return taken;
}

/* The bytes of all groups of a span; 0 when they are not sound. */
static uint64_t span_groups_bytes(const entropy_shape *shape, entropy_axis axis, uint32_t tokens,
                                  const uint8_t *source, uint64_t bytes)
{
    uint64_t total = 0;
    while (tokens > 0) {
        uint32_t part = tokens < ENTROPY_GROUP_TOKENS ? tokens : ENTROPY_GROUP_TOKENS;
        const entropy_group group = {shape, axis, part};
        uint64_t one = entropy_group_bytes(&group, source + total, bytes - total);
        if (one == 0) return 0;
        total += one;
        tokens -= part;
    }
    return total;
}

static bool span_open_table(const rans_frequencies *carried, const uint8_t **source, uint64_t *left,
                            uint64_t table_bytes, rans_frequencies *frequencies)
{
    const uint8_t *table = span_take(source, left, table_bytes);
    if (table == NULL) return false;
    if (carried != NULL) {
        *frequencies = *carried;
        return table_bytes == 0;
    }
    return table_bytes > 0 && rans_read_frequencies(table, table_bytes, frequencies) == table_bytes;
}

kvt_status entropy_span_open(const rans_frequencies *carried, const entropy_shape *shape,
                             entropy_axis axis, uint32_t tokens, const uint8_t **source,
                             uint64_t *bytes, const entropy_scratch *scratch,
                             entropy_stored_span *span)
{
    const uint8_t *head = span_take(source, bytes, ENTROPY_SPAN_HEAD_BYTES);
    if (head == NULL || head[11] != 0) return KVT_E_CORRUPT;
    const uint64_t word_bytes = 2 * (uint64_t)codecs_load32(head);
    const uint64_t table_bytes = head[8] | (uint64_t)head[9] << 8;
    const uint32_t state_count = head[10];
    if (state_count != rans_state_count((uint64_t)tokens * shape->row)) return KVT_E_CORRUPT;
    span->escape_count = codecs_load32(head + 4);
    span->group_bytes = span_groups_bytes(shape, axis, tokens, *source, *bytes);
    if (span->group_bytes == 0) return KVT_E_CORRUPT;
    span->groups = span_take(source, bytes, span->group_bytes);
    if (!span_open_table(carried, source, bytes, table_bytes, &span->frequencies)) {
        return KVT_E_CORRUPT;
    }
    span->escapes = span_take(source, bytes, 2 * span->escape_count);
    const uint8_t *states = span_take(source, bytes, state_count * sizeof(uint32_t));
    const uint8_t *words = span_take(source, bytes, word_bytes);
    if (span->escapes == NULL || states == NULL || words == NULL) return KVT_E_CORRUPT;
    rans_fill_decode_table(&span->frequencies, scratch->decode_table);
    return rans_decode_start(&span->decoder, scratch->decode_table, state_count, states, words,
                             word_bytes);
}
