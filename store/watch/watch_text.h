/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_text.h - text in a buffer of the caller's, cut where that ends, in the exposition format of
 * Prometheus. Numbers are written from integers, because printf's floating point follows the
 * locale of the process.
 *
 * Thread rule: a text belongs to one thread.
 */
#ifndef STORE_WATCH_TEXT_H
#define STORE_WATCH_TEXT_H

#include "store/watch/watching.h"

#include <stdarg.h>

typedef struct watch_text {
    char *text; /* NULL with size 0 */
    size_t size;
    size_t used; /* what the text takes, without its zero; may be more than size */
} watch_text;

/* One label of a sample. */
typedef struct watch_label {
    const char *name;
    const char *value; /* any bytes; escaped */
} watch_label;

/* Adds formatted text: no floating point. */
void watch_print(watch_text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Begins a family: its HELP and TYPE lines. The name is written behind "kvterrace_". */
void watch_family(watch_text *out, const char *name, const char *type, const char *help);

/* One sample of a family with up to two labels; a NULL name ends them. */
void watch_sample(watch_text *out, const char *name, watch_label first, watch_label second,
                  uint64_t value);
void watch_sample_seconds(watch_text *out, const char *name, watch_label first, watch_label second,
                          double value);

/* A family of one sample without labels. */
void watch_single(watch_text *out, const char *name, const char *type, const char *help,
                  uint64_t value);

/* The samples of a histogram; billionths: its values are nanoseconds, shown as seconds. */
void watch_histogram_print(watch_text *out, const char *name, const watch_scale *scale,
                           const watch_histogram *histogram, bool billionths);

#endif
