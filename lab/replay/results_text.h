/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results_text.h - numbers as people read them; private to the room. Any thread.
 */
#ifndef REPLAY_RESULTS_TEXT_H
#define REPLAY_RESULTS_TEXT_H

#include "replay.h"

#define RESULTS_TEXT_BYTES 24u

/* "1.23 s", "45.6 ms", "789 us"; "-" when not finite. text holds RESULTS_TEXT_BYTES. */
const char *results_format_seconds(double seconds, char *text);

/* Notes on a workload that a reader must have: how its arrivals came about, and why no block can
 * hit. One line each, at most `count` of RESULTS_NOTE_BYTES; returns how many. */
#define RESULTS_NOTE_BYTES 192u
size_t results_workload_notes(const replay_workload *workload, char notes[][RESULTS_NOTE_BYTES],
                              size_t count);

/* Whether there are requests enough for a 99th percentile: below, it is one or two of them. */
#define RESULTS_P99_REQUESTS 500u
bool results_has_p99(const replay_report *report);

/* "12.3 GB", decimal prefixes; "0" for none. */
const char *results_format_bytes(double bytes, char *text);

#endif
