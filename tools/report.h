/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - JSON documents of this command as words and as one HTML page that needs nothing else:
 * words, style, script and the documents themselves are inside.
 *
 * report_command.c writes the page. The verdicts are pure: no file, no clock. C computes the words
 * and not the page's script, so that a page without scripts and a terminal say the same, and so
 * that they can be tested without a browser. One thread.
 */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include "tools/command/command.h"

#include <jansson.h>

/* Writes the page of what `print` prints, one JSON document, to a file, whole or not at all; the
 * name is for the reader. KVT_OK; KVT_E_CONFIG and KVT_E_IO with a message; KVT_E_MEMORY; what
 * print says. */
KVT_NODISCARD kvt_status report_page_write(const char *path, const char *name,
                                           kvt_status (*print)(const void *report, FILE *out),
                                           const void *report, char *message, size_t message_size);

/* ---- verdicts ---- */

/*
 * An object {"kind", "title", "sentences": [{"state", "text"}], "next"} about a document. `kind` is
 * the middle of its schema, "kvterrace-KIND-VERSION", or "" without one. A state is one of "ahead",
 * "level" and "behind" of policies, "met" and "missed" of what is asked, "warning", and "note".
 * `next` is one sentence. The document may hold anything: what is absent or of another type is left
 * out. NULL without memory; release with json_decref.
 */
json_t *report_verdict_make(const json_t *document);

/* Whether a document of a kind with a verdict has a schema of a later version than any here. */
bool report_verdict_is_later(const json_t *document);

/* ---- how the verdicts of the kinds add their sentences ---- */

#define VERDICT_NUMBER_BYTES 32u
#define VERDICT_NAMES_BYTES  256u

/* Adds one sentence. A sentence that no memory is left for is missing. */
void verdict_say(json_t *verdict, const char *state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the next step, unless an earlier and more urgent one is set. */
void verdict_next(json_t *verdict, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "1.23 s", "45.6 ms"; "-" for what is not finite. Returns text. */
const char *verdict_seconds(char text[VERDICT_NUMBER_BYTES], double seconds);

/* Adds a name to a list of names with commas, once. A full list stays as it is. */
void verdict_list(char names[VERDICT_NAMES_BYTES], const char *name);

/* One function per kind: fills the sentences and the next step. */
void verdict_replay(const json_t *document, json_t *verdict);
void verdict_compare(const json_t *document, json_t *verdict);
void verdict_loop(const json_t *document, json_t *verdict);
void verdict_grid(const json_t *document, json_t *verdict);
void verdict_bench_live(const json_t *document, json_t *verdict);
void verdict_bench_codecs(const json_t *document, json_t *verdict);
void verdict_bench_devices(const json_t *document, json_t *verdict);
void verdict_bench_stripe(const json_t *document, json_t *verdict);
void verdict_bench_restart(const json_t *document, json_t *verdict);
void verdict_bench_policy(const json_t *document, json_t *verdict);
void verdict_profile(const json_t *document, json_t *verdict);
void verdict_profile_quality(const json_t *document, json_t *verdict);

#endif
