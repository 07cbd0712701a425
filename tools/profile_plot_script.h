/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_plot_script.h - gnuplot scripts of a profile's plots. Text from the profile reaches a
 * script through script_quote alone: gnuplot runs what stands in backquotes. One thread.
 */
#ifndef TOOLS_PROFILE_PLOT_SCRIPT_H
#define TOOLS_PROFILE_PLOT_SCRIPT_H

#include <kvterrace/types.h>

#include <jansson.h>
#include <stdio.h>

#define PLOT_NAME_BYTES    64u
#define PLOT_CAPTION_BYTES 256u

/* One plot: what it is of, and its size in pixels. */
typedef struct profile_plot {
    char name[PLOT_NAME_BYTES]; /* of its files */
    char caption[PLOT_CAPTION_BYTES];
    int width, height;
    const json_t *document;
    const json_t *subject; /* the set, device or table; NULL for the whole document */
    const char *part;      /* "read" or "write", or the source of codecs' KV */
    void (*draw)(const struct profile_plot *plot, FILE *script);
} profile_plot;

/* Writes text in single quotes; what means something to gnuplot becomes '_'. */
void script_quote(FILE *script, const char *text);

/* The commands up to and with `plot`, without terminal and output. */
void script_draw_loss(const profile_plot *plot, FILE *script);
void script_draw_bandwidth(const profile_plot *plot, FILE *script);
void script_draw_latency(const profile_plot *plot, FILE *script);
void script_draw_load(const profile_plot *plot, FILE *script);
void script_draw_codecs(const profile_plot *plot, FILE *script);

/* Whether single reads or writes ("read", "write") were measured. */
bool script_has_latencies(const json_t *document, const char *kind);

/* Whether a set has losses enough to draw on a logarithmic scale. */
bool script_has_loss(const json_t *set);

#endif
