/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict.h - what a JSON document of this command means, in words: who is ahead, where it
 * is behind, and what to do next. Pure: no file, no clock. One thread.
 *
 * The words are computed here and not in the page's script, so that a page without scripts and a
 * terminal say the same, and so that they can be tested without a browser.
 */
#ifndef TOOLS_REPORT_VERDICT_H
#define TOOLS_REPORT_VERDICT_H

#include <jansson.h>

/*
 * An object {"kind", "title", "sentences": [{"state", "text"}], "next"} about a document. `kind` is
 * the middle of its schema, "kvterrace-KIND-VERSION", or "" without one. A state is one of "ahead",
 * "level" and "behind" of policies, "met" and "missed" of what is asked, "warning", and "note".
 * `next` is one sentence. The document may hold anything: what is absent or of another type is left
 * out. NULL without memory; release with json_decref.
 */
json_t *report_verdict_make(const json_t *document);

#endif
