/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_settings.c - the text form of an emulated drive's settings; see drive_settings.h.
 *
 * Thread rule: as there.
 */
#include "drive_settings.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key;
    drive_fault fault;
} settings_faults[] = {
    {"eio", DRIVE_FAULT_EIO},
    {"eio_read", DRIVE_FAULT_EIO_READ},
    {"eio_write", DRIVE_FAULT_EIO_WRITE},
    {"corrupt", DRIVE_FAULT_CORRUPT},
    {"torn", DRIVE_FAULT_TORN},
};

enum { SETTINGS_FAULTS = sizeof settings_faults / sizeof settings_faults[0] };

/* Reads digits and a suffix; returns what follows, or NULL. */
static const char *settings_number(const char *text, uint64_t *value_out)
{
    char *end = NULL;
    if (!isdigit((unsigned char)text[0])) return NULL;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno != 0) return NULL;
    const char *const letters = "KMG";
    const char *letter = *end != '\0' ? strchr(letters, *end) : NULL;
    if (letter != NULL) {
        bool binary = end[1] == 'i';
        end += binary ? 2 : 1;
        for (const char *step = letters; step <= letter; step++)
            if (__builtin_mul_overflow(value, binary ? 1024u : 1000u, &value)) return NULL;
    }
    *value_out = value;
    return end;
}

bool drive_number_read(const char *text, uint64_t *value_out)
{
    const char *end = settings_number(text, value_out);
    return end != NULL && *end == '\0';
}

static bool settings_add_range(drive_settings *settings, drive_fault fault, const char *value)
{
    drive_range range = {.fault = fault};
    const char *rest = settings_number(value, &range.offset);
    if (rest == NULL || *rest != '+') return false;
    if (!drive_number_read(rest + 1, &range.bytes) || range.bytes == 0) return false;
    if (range.offset > UINT64_MAX - range.bytes) return false;
    if (settings->range_count == DRIVE_RANGES_MAX) return false;
    settings->ranges[settings->range_count++] = range;
    return true;
}

static bool settings_apply_number(drive_settings *settings, const char *key, uint64_t number)
{
    if (strcmp(key, "rate") == 0) {
        settings->rate[0] = settings->rate[1] = number;
        settings->shared = true;
    } else if (strcmp(key, "read_rate") == 0) {
        settings->rate[0] = number;
        settings->shared = false;
    } else if (strcmp(key, "write_rate") == 0) {
        settings->rate[1] = number;
        settings->shared = false;
    } else if (strcmp(key, "latency_us") == 0 && number <= 60u * 1000 * 1000) {
        settings->latency_ns = number * 1000;
    } else if (strcmp(key, "chunk") == 0 && (number == 0 || number >= 4096) &&
               number <= UINT64_C(1) << 30) {
        settings->chunk_bytes = number;
    } else if (strcmp(key, "hang") == 0 && number <= 1) {
        settings->hang = number == 1;
    } else if (strcmp(key, "clear") == 0 && number == 1) {
        settings->range_count = 0;
    } else {
        return false;
    }
    return true;
}

/* A share below 1 in thousandths: 0, or 0. and up to three digits. */
static bool settings_share(const char *text, uint32_t *share_out)
{
    uint32_t share = 0;
    size_t digits = strspn(text, "0123456789.");
    if (text[0] != '0' || text[digits] != '\0' || digits == 2 || digits > 5) return false;
    if (digits > 1 && (text[1] != '.' || strchr(text + 2, '.') != NULL)) return false;
    for (size_t i = 2; i < 5; i++)
        share = share * 10 + (i < digits ? (uint32_t)(text[i] - '0') : 0);
    *share_out = share;
    return true;
}

static bool settings_apply_one(drive_settings *settings, char *word)
{
    char *value = strchr(word, '=');
    if (value == NULL) return false;
    *value++ = '\0';
    for (int i = 0; i < SETTINGS_FAULTS; i++)
        if (strcmp(word, settings_faults[i].key) == 0)
            return settings_add_range(settings, settings_faults[i].fault, value);
    if (strcmp(word, "mix") == 0) return settings_share(value, &settings->mix);
    uint64_t number;
    return drive_number_read(value, &number) && settings_apply_number(settings, word, number);
}

bool drive_settings_apply(drive_settings *settings, const char *text)
{
    char copy[DRIVE_TEXT_BYTES];
    drive_settings next = *settings;
    size_t length = strlen(text);
    if (length >= sizeof copy) return false;
    memcpy(copy, text, length + 1);
    char *rest = NULL;
    for (char *word = strtok_r(copy, " \t\r\n", &rest); word != NULL;
         word = strtok_r(NULL, " \t\r\n", &rest))
        if (!settings_apply_one(&next, word)) return false;
    *settings = next;
    return true;
}

size_t drive_settings_print(const drive_settings *settings, char *text, size_t size)
{
    size_t used = 0;
    FILE *stream = fmemopen(text, size, "w");
    if (stream == NULL) return 0;
    if (settings->shared)
        fprintf(stream, "rate=%" PRIu64 "\n", settings->rate[0]);
    else
        fprintf(stream, "read_rate=%" PRIu64 "\nwrite_rate=%" PRIu64 "\n", settings->rate[0],
                settings->rate[1]);
    fprintf(stream, "latency_us=%" PRIu64 "\nmix=0.%03" PRIu32 "\nchunk=%" PRIu64 "\nhang=%d\n",
            settings->latency_ns / 1000, settings->mix, settings->chunk_bytes, settings->hang);
    for (uint32_t i = 0; i < settings->range_count; i++)
        for (int k = 0; k < SETTINGS_FAULTS; k++)
            if (settings_faults[k].fault == settings->ranges[i].fault)
                fprintf(stream, "%s=%" PRIu64 "+%" PRIu64 "\n", settings_faults[k].key,
                        settings->ranges[i].offset, settings->ranges[i].bytes);
    if (fflush(stream) == 0) used = (size_t)ftell(stream);
    fclose(stream);
    return used < size ? used : size;
}

bool drive_settings_touch(const drive_settings *settings, unsigned faults, uint64_t offset,
                          uint64_t bytes)
{
    for (uint32_t i = 0; i < settings->range_count; i++) {
        const drive_range *range = &settings->ranges[i];
        if (((unsigned)range->fault & faults) == 0) continue;
        if (offset < range->offset + range->bytes && offset + bytes > range->offset) return true;
    }
    return false;
}
