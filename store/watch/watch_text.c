/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_text.c - the exposition format (watch_text.h).
 *
 * Thread rule: a text belongs to one thread.
 */
#include "store/watch/watch_text.h"

#include <math.h>
#include <stdio.h>

void watch_print(watch_text *out, const char *format, ...)
{
    const size_t left = out->used < out->size ? out->size - out->used : 0;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(left != 0 ? out->text + out->used : NULL, left, format, arguments);
    va_end(arguments);
    if (length > 0) out->used += (size_t)length;
}

/* Writes one letter if there is room, and counts it in any case. */
static void watch_put(watch_text *out, char letter)
{
    if (out->used + 1 < out->size) {
        out->text[out->used] = letter;
        out->text[out->used + 1] = '\0';
    }
    out->used++;
}

void watch_family(watch_text *out, const char *name, const char *type, const char *help)
{
    watch_print(out, "# HELP kvterrace_%s %s\n# TYPE kvterrace_%s %s\n", name, help, name, type);
}

/* A label's value between quotes: backslash, quote and line feed are escaped. */
static void watch_label_print(watch_text *out, const watch_label *label)
{
    watch_print(out, "%s=\"", label->name);
    for (const char *at = label->value; *at != '\0'; at++) {
        if (*at == '\\' || *at == '"' || *at == '\n') watch_put(out, '\\');
        watch_put(out, *at == '\n' ? 'n' : *at);
    }
    watch_put(out, '"');
}

/* A sample's line as far as its value. */
static void watch_begin(watch_text *out, const char *name, watch_label first, watch_label second)
{
    watch_print(out, "kvterrace_%s", name);
    if (first.name != NULL) {
        watch_put(out, '{');
        watch_label_print(out, &first);
        if (second.name != NULL) {
            watch_put(out, ',');
            watch_label_print(out, &second);
        }
        watch_put(out, '}');
    }
    watch_put(out, ' ');
}

/* So many billionths, as a decimal number. */
static void watch_print_billionths(watch_text *out, uint64_t value)
{
    watch_print(out, "%llu.%09llu", (unsigned long long)(value / 1000000000),
                (unsigned long long)(value % 1000000000));
}

void watch_sample(watch_text *out, const char *name, watch_label first, watch_label second,
                  uint64_t value)
{
    watch_begin(out, name, first, second);
    watch_print(out, "%llu\n", (unsigned long long)value);
}

void watch_sample_seconds(watch_text *out, const char *name, watch_label first, watch_label second,
                          double value)
{
    watch_begin(out, name, first, second);
    if (value >= 0 && value < 1e9) {
        watch_print_billionths(out, (uint64_t)llround(value * 1e9));
        watch_put(out, '\n');
    } else {
        watch_print(out, value >= 1e9 ? "+Inf\n" : "NaN\n");
    }
}

void watch_single(watch_text *out, const char *name, const char *type, const char *help,
                  uint64_t value)
{
    const watch_label none = {0};
    watch_family(out, name, type, help);
    watch_sample(out, name, none, none, value);
}

void watch_histogram_print(watch_text *out, const char *name, const watch_scale *scale,
                           const watch_histogram *histogram, bool billionths)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < scale->count; i++) {
        const uint64_t bound = UINT64_C(1) << (scale->first + i * scale->step);
        count += histogram->buckets[i];
        watch_print(out, "kvterrace_%s_bucket{le=\"", name);
        if (billionths)
            watch_print_billionths(out, bound);
        else
            watch_print(out, "%llu", (unsigned long long)bound);
        watch_print(out, "\"} %llu\n", (unsigned long long)count);
    }
    count += histogram->buckets[scale->count];
    watch_print(out, "kvterrace_%s_bucket{le=\"+Inf\"} %llu\nkvterrace_%s_sum ", name,
                (unsigned long long)count, name);
    if (billionths)
        watch_print_billionths(out, histogram->sum);
    else
        watch_print(out, "%llu", (unsigned long long)histogram->sum);
    watch_print(out, "\nkvterrace_%s_count %llu\n", name, (unsigned long long)count);
}
