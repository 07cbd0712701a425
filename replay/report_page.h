/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_page.h - the parts of the HTML report, of which the profile's page takes style and
 * escaping. One thread.
 *
 * Everything is inline: style, figures as SVG, no script. Text from outside is escaped by
 * page_text, and only by it.
 */
#ifndef REPLAY_REPORT_PAGE_H
#define REPLAY_REPORT_PAGE_H

#include "replay.h"

/* The colours of policies, by position; they repeat after PAGE_COLOURS. */
#define PAGE_COLOURS 8u
const char *page_colour(size_t index);

/* The style sheet of every page. */
extern const char page_style[];

/* Writes text with &, <, > and quotes escaped; control bytes and broken UTF-8 become '?'. */
void page_text(FILE *file, const char *text);

/* The warning at the top of a page whose figures rest on a busy machine's profile. */
void page_warn_busy(FILE *file);

/* "lru" or "lru, seed 2" when policies repeat. */
void page_label(const replay_report *report, size_t index, char *text, size_t size);

/* Figures: a bar per result of wait, blocked I/O and compute; a bar per result of hits by tier;
 * one curve of TTFT per result, logarithmic. */
void page_bars_ttft(const replay_report *report, FILE *file);
void page_bars_hits(const replay_report *report, FILE *file);
void page_curves_ttft(const replay_report *report, FILE *file);

/* The table of bounds and regrets, when there is one. */
void page_regrets(const replay_report *report, FILE *file);

#endif
