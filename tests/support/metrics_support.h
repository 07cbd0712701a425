/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_support.h - a strict reader of Prometheus text: what it accepts is in the order and the
 * form that the format's description asks for, and no series comes twice.
 */
#ifndef TESTS_METRICS_SUPPORT_H
#define TESTS_METRICS_SUPPORT_H

#include "cases.h"

#include <stdbool.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_SERIES_MAX 1024u

typedef struct metrics_series {
    char name[128];   /* with _bucket, _sum and _count */
    char labels[256]; /* as written, without braces; "" = none */
    char type[16];
    double value;
} metrics_series;

typedef struct metrics_text {
    metrics_series series[METRICS_SERIES_MAX];
    size_t count;
    char family[128]; /* the one whose samples come now */
    char type[16];
    char families[METRICS_SERIES_MAX][128];
    size_t family_count;
} metrics_text;

/* Copies a metric's name, and returns where it ends. */
static inline const char *metrics_read_name(const char *at, char *name, size_t size)
{
    size_t length = 0;
    assert_true(isalpha((unsigned char)*at) || *at == '_' || *at == ':');
    while (isalnum((unsigned char)at[length]) || at[length] == '_' || at[length] == ':')
        length++;
    assert_true(length < size);
    memcpy(name, at, length);
    name[length] = '\0';
    return at + length;
}

/* Reads `name="value",...` up to the brace; returns what follows that. */
static inline const char *metrics_read_labels(const char *at, metrics_series *series)
{
    const char *start = at;
    char name[64];
    for (;;) {
        at = metrics_read_name(at, name, sizeof name);
        assert_true(at[0] == '=' && at[1] == '"');
        for (at += 2; *at != '"'; at++) {
            assert_true(*at != '\0' && *at != '\n');
            if (*at != '\\') continue;
            at++;
            assert_true(*at == '\\' || *at == '"' || *at == 'n');
        }
        at++;
        if (*at != ',') break;
        at++;
    }
    assert_true(*at == '}' && (size_t)(at - start) < sizeof series->labels);
    memcpy(series->labels, start, (size_t)(at - start));
    return at + 1;
}

/* A comment begins a family, or is none of ours. */
static inline void metrics_read_comment(metrics_text *out, const char *line, const char *end)
{
    char name[128] = "";
    const bool help = strncmp(line, "# HELP ", 7) == 0;
    if (!help && strncmp(line, "# TYPE ", 7) != 0) return;
    const char *at = metrics_read_name(line + 7, name, sizeof name);
    assert_true(*at++ == ' ' && at < end);
    if (help) {
        for (size_t i = 0; i < out->family_count; i++)
            assert_string_not_equal(out->families[i], name);
        memcpy(out->families[out->family_count++], name, sizeof name);
        memcpy(out->family, name, sizeof name);
        out->type[0] = '\0';
        return;
    }
    assert_string_equal(out->family, name); /* right behind its HELP */
    assert_string_equal(out->type, "");
    snprintf(out->type, sizeof out->type, "%.*s", (int)(end - at), at);
    const bool counter = strcmp(out->type, "counter") == 0;
    assert_true(counter || strcmp(out->type, "gauge") == 0 || strcmp(out->type, "histogram") == 0);
    const size_t length = strlen(name);
    assert_int_equal(counter, length > 6 && strcmp(name + length - 6, "_total") == 0);
}

static inline void metrics_read_sample(metrics_text *out, const char *line, const char *end)
{
    assert_true(out->count < METRICS_SERIES_MAX);
    metrics_series *series = &out->series[out->count];
    memset(series, 0, sizeof *series);
    const char *at = metrics_read_name(line, series->name, sizeof series->name);
    const char *suffix = series->name + strlen(out->family);
    assert_int_equal(strncmp(series->name, out->family, strlen(out->family)), 0);
    if (strcmp(out->type, "histogram") == 0)
        assert_true(!strcmp(suffix, "_bucket") || !strcmp(suffix, "_sum") ||
                    !strcmp(suffix, "_count"));
    else
        assert_string_equal(suffix, "");
    assert_true(out->type[0] != '\0');
    memcpy(series->type, out->type, sizeof series->type);
    if (*at == '{') at = metrics_read_labels(at + 1, series);
    assert_int_equal(*at, ' ');
    char *rest;
    series->value = strtod(at + 1, &rest);
    assert_true(rest == end);
    for (size_t i = 0; i < out->count; i++)
        assert_false(strcmp(out->series[i].name, series->name) == 0 &&
                     strcmp(out->series[i].labels, series->labels) == 0);
    out->count++;
}

/* Buckets of one histogram grow, and the last one is the count. */
static inline void metrics_check_buckets(const metrics_text *text)
{
    double bound = 0, before = 0;
    for (size_t i = 0; i < text->count; i++) {
        const metrics_series *series = &text->series[i];
        const char *suffix = strstr(series->name, "_bucket");
        if (strcmp(series->type, "histogram") != 0) continue;
        if (suffix == NULL) {
            if (strstr(series->name, "_count") != NULL) assert_true(series->value == before);
            bound = 0;
            if (strstr(series->name, "_count") != NULL) before = 0;
            continue;
        }
        const double le = strtod(series->labels + strlen("le=\""), NULL);
        assert_true(le > bound && series->value >= before);
        bound = le;
        before = series->value;
    }
}

static inline metrics_text *metrics_parse(const char *text)
{
    metrics_text *out = calloc(1, sizeof *out); /* the caller frees it */
    assert_non_null(out);
    while (*text != '\0') {
        const char *end = strchr(text, '\n');
        assert_non_null(end);
        assert_true(end > text);
        if (*text == '#')
            metrics_read_comment(out, text, end);
        else
            metrics_read_sample(out, text, end);
        text = end + 1;
    }
    metrics_check_buckets(out);
    return out;
}

/* The sum of a name's series whose labels hold a text, such as `tier="dram"`; "" = all. */
static inline double metrics_sum(const metrics_text *text, const char *name, const char *label)
{
    double sum = 0;
    bool found = false;
    for (size_t i = 0; i < text->count; i++) {
        if (strcmp(text->series[i].name, name) != 0) continue;
        found = true;
        if (strstr(text->series[i].labels, label) != NULL) sum += text->series[i].value;
    }
    if (!found) fail_msg("no metric %s", name);
    return sum;
}

/* No counter and no bucket of `after` is below what it was. */
static inline void metrics_check_rise(const metrics_text *before, const metrics_text *after)
{
    for (size_t i = 0; i < before->count; i++) {
        const metrics_series *series = &before->series[i];
        bool found = strcmp(series->type, "gauge") == 0;
        for (size_t j = 0; j < after->count && !found; j++) {
            const metrics_series *later = &after->series[j];
            if (strcmp(series->name, later->name) || strcmp(series->labels, later->labels))
                continue;
            if (later->value < series->value)
                fail_msg("%s{%s} fell from %g to %g", series->name, series->labels, series->value,
                         later->value);
            found = true;
        }
        if (!found) fail_msg("%s{%s} is gone", series->name, series->labels);
    }
}

#endif
