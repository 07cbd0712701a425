/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict_part.h - how the verdicts of the kinds add their sentences. One thread.
 */
#ifndef TOOLS_REPORT_VERDICT_PART_H
#define TOOLS_REPORT_VERDICT_PART_H

#include <jansson.h>

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
void verdict_grid(const json_t *document, json_t *verdict);
void verdict_bench_live(const json_t *document, json_t *verdict);
void verdict_bench_codecs(const json_t *document, json_t *verdict);
void verdict_bench_devices(const json_t *document, json_t *verdict);
void verdict_bench_stripe(const json_t *document, json_t *verdict);
void verdict_bench_drift(const json_t *document, json_t *verdict);
void verdict_bench_ablation(const json_t *document, json_t *verdict);
void verdict_bench_restart(const json_t *document, json_t *verdict);
void verdict_bench_policy(const json_t *document, json_t *verdict);
void verdict_profile(const json_t *document, json_t *verdict);
void verdict_profile_quality(const json_t *document, json_t *verdict);

#endif
