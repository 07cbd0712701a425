/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_plot.h - the plots of a profile's document, drawn by gnuplot. One thread.
 */
#ifndef TOOLS_PROFILE_PLOT_H
#define TOOLS_PROFILE_PLOT_H

#include <kvterrace/types.h>

#include <jansson.h>
#include <stdio.h>

/* Whether gnuplot can be run. */
bool profile_plot_available(void);

/*
 * Writes NAME.gp, NAME.svg and NAME.png for every plot that has data into a folder, which is made
 * when it is absent. KVT_OK; KVT_E_UNSUPPORTED (no gnuplot: the scripts are there); KVT_E_IO;
 * KVT_E_MEMORY; message says more.
 */
KVT_NODISCARD kvt_status profile_plot_write(const json_t *document, const char *folder,
                                            char *message, size_t message_size);

/* The sections of the page that have plots. */
typedef enum profile_plot_section {
    PROFILE_PLOT_DEVICES,
    PROFILE_PLOT_LOADS,
    PROFILE_PLOT_CODECS,
    PROFILE_PLOT_QUALITY
} profile_plot_section;

/* Draws a section's plots and copies them into a page as inline SVG, each with its caption.
 * `number` counts plots over the page, for their ids. Nothing without gnuplot. KVT_OK; KVT_E_IO;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status profile_plot_inline(const json_t *document, profile_plot_section section,
                                             unsigned *number, FILE *page);

#endif
