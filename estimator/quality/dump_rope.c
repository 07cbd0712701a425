/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dump_rope.c - what a dump's metadata says of positions: how its keys turn, and where its queries
 * stand. No string of a file is trusted. Thread rule: quality_round_trip.h.
 */
#include "estimator/model/safetensors.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROPE_THETA_MAX     1e12
#define ROPE_FREQUENCY_MAX 6.28 /* radians a position, as of a basis */

/* A decimal number at the start of *at, which moves behind it; false where there is none. Only
 * digits, a point and an exponent are let in, so that no locale and no "nan" matters. */
static bool rope_number(const char **at, double *number_out)
{
    char copy[64];
    const size_t length = strspn(*at, "0123456789.eE+-");
    char *end = NULL;
    if (length == 0 || length >= sizeof copy) return false;
    memcpy(copy, *at, length);
    copy[length] = '\0';
    *number_out = strtod(copy, &end);
    *at += length;
    return *end == '\0' && isfinite(*number_out);
}

/* A whole number from 0 to `most`. */
static bool rope_whole(const char **at, uint32_t most, uint32_t *number_out)
{
    double number;
    if (!rope_number(at, &number) || number < 0.0 || number > most || number != floor(number))
        return false;
    *number_out = (uint32_t)number;
    return true;
}

static bool rope_pairing(const char *text, size_t length, uint8_t *pairing_out)
{
    static const char *const names[] = {
        [KVT_ROPE_HALVES] = "halves", [KVT_ROPE_NEIGHBOURS] = "neighbours"};
    for (uint8_t i = 0; i < 2; i++) {
        if (strlen(names[i]) != length || strncmp(names[i], text, length) != 0) continue;
        *pairing_out = i;
        return true;
    }
    return false;
}

static bool rope_width_fits(uint32_t rotary_dim, uint32_t head_dim)
{
    return rotary_dim >= 2 && rotary_dim % 2 == 0 && rotary_dim <= head_dim &&
           rotary_dim / 2 <= QUALITY_ROPE_PAIRS;
}

void quality_rope_of(const model_config *config, quality_rope *rope_out)
{
    memset(rope_out, 0, sizeof *rope_out);
    rope_out->rotary_dim = model_rotary_dim(config);
    rope_out->pairing = config->rope_halves ? KVT_ROPE_HALVES : KVT_ROPE_NEIGHBOURS;
    for (uint32_t i = 0; i < rope_out->rotary_dim / 2; i++)
        rope_out->frequencies[i] = model_frequency(config, i);
}

static bool rope_set_theta(double theta, quality_rope *rope)
{
    if (!(theta >= 1.0 && theta <= ROPE_THETA_MAX)) return false;
    for (uint32_t i = 0; i < rope->rotary_dim / 2; i++)
        rope->frequencies[i] = pow(theta, -2.0 * i / rope->rotary_dim);
    return true;
}

kvt_status quality_rope_parse(const char *text, uint32_t head_dim, quality_rope *rope_out)
{
    double theta;
    memset(rope_out, 0, sizeof *rope_out);
    if (strcmp(text, "none") == 0) return KVT_OK;
    rope_out->rotary_dim = head_dim;
    if (!rope_number(&text, &theta) || *text++ != ',') return KVT_E_PARSE;
    const size_t length = strcspn(text, ",");
    if (!rope_pairing(text, length, &rope_out->pairing)) return KVT_E_PARSE;
    text += length;
    if (*text == ',') {
        text++;
        if (!rope_whole(&text, head_dim, &rope_out->rotary_dim)) return KVT_E_PARSE;
    }
    const bool fits = *text == '\0' && rope_width_fits(rope_out->rotary_dim, head_dim);
    return fits && rope_set_theta(theta, rope_out) ? KVT_OK : KVT_E_PARSE;
}

/* [rotary_dim / 2] numbers. */
static bool rope_read_frequencies(const char *text, quality_rope *rope)
{
    const uint32_t count = rope->rotary_dim / 2;
    for (uint32_t i = 0; i < count; i++) {
        double *frequency = &rope->frequencies[i];
        if (!rope_number(&text, frequency)) return false;
        if (!(*frequency >= 0.0 && *frequency <= ROPE_FREQUENCY_MAX)) return false;
        if (i + 1 < count && *text++ != ',') return false;
    }
    return *text == '\0';
}

/* The name of what makes no sense; NULL: all does. */
static const char *rope_read(const quality_dump *dump, const char *theta, const char *frequencies,
                             quality_rope *rope)
{
    const char *pairing = safetensors_metadata(dump->file, "rope_pairing");
    const char *width = safetensors_metadata(dump->file, "rope_dim");
    double base;
    rope->rotary_dim = dump->layout.head_dim;
    if (width != NULL &&
        (!rope_whole(&width, dump->layout.head_dim, &rope->rotary_dim) || *width != '\0'))
        return "rope_dim";
    if (!rope_width_fits(rope->rotary_dim, dump->layout.head_dim)) return "rope_dim";
    if (pairing == NULL || !rope_pairing(pairing, strlen(pairing), &rope->pairing))
        return "rope_pairing";
    if (frequencies != NULL)
        return rope_read_frequencies(frequencies, rope) ? NULL : "rope_frequencies";
    if (!rope_number(&theta, &base) || *theta != '\0' || !rope_set_theta(base, rope))
        return "rope_theta";
    return NULL;
}

static kvt_status rope_refuse(const char *path, const char *name, char *message,
                              size_t message_size)
{
    (void)snprintf(message, message_size, "%.300s: the metadata's %s makes no sense", path, name);
    return KVT_E_PARSE;
}

kvt_status quality_dump_rope(const quality_dump *dump, const char *path, quality_rope *rope_out,
                             char *message, size_t message_size)
{
    const char *theta = safetensors_metadata(dump->file, "rope_theta");
    const char *frequencies = safetensors_metadata(dump->file, "rope_frequencies");
    memset(rope_out, 0, sizeof *rope_out);
    if (theta == NULL && frequencies == NULL) return KVT_MISS;
    if (frequencies == NULL && strcmp(theta, "none") == 0) return KVT_OK;
    const char *wrong = rope_read(dump, theta, frequencies, rope_out);
    return wrong == NULL ? KVT_OK : rope_refuse(path, wrong, message, message_size);
}

kvt_status quality_dump_positions(const quality_dump *dump, const char *path,
                                  uint32_t *positions_out, char *message, size_t message_size)
{
    const char *last = safetensors_metadata(dump->file, "queries");
    const char *text = safetensors_metadata(dump->file, "query_positions");
    const uint32_t rows = dump->query_rows, tokens = dump->layout.tokens;
    if (text == NULL) {
        if (last == NULL || strcmp(last, "last") != 0) return KVT_MISS;
        if (rows > tokens) return rope_refuse(path, "queries", message, message_size);
        for (uint32_t r = 0; r < rows; r++)
            positions_out[r] = tokens - rows + r;
        return KVT_OK;
    }
    for (uint32_t r = 0; r < rows; r++) {
        const bool fine = rope_whole(&text, INT32_MAX, &positions_out[r]) &&
                          (r + 1 == rows ? *text == '\0' : *text++ == ',');
        if (!fine) return rope_refuse(path, "query_positions", message, message_size);
    }
    return KVT_OK;
}
