/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict.c - finds a document's kind and the words for it. The sentences of each kind are
 * in report_verdict_runs.c (replays), report_verdict_grid.c and report_verdict_bench.c
 * (measurements). One thread.
 */
#include "report_verdict.h"

#include "command.h"
#include "profile_document.h"
#include "report_verdict_part.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *kind, *title;
    void (*fill)(const json_t *document, json_t *verdict);
} verdict_kinds[] = {
    {"replay", "Replay", verdict_replay},
    {"compare", "Comparison at equal quality", verdict_compare},
    {"bench-grid", "Grid of workloads", verdict_grid},
    {"bench-live", "Simulator beside the store", verdict_bench_live},
    {"bench-codecs", "Codecs", verdict_bench_codecs},
    {"bench-devices", "Devices", verdict_bench_devices},
    {"bench-stripe", "Striping", verdict_bench_stripe},
    {"bench-drift", "Drives that slow down or vanish", verdict_bench_drift},
    {"bench-ablation", "Ablation of the read path", verdict_bench_ablation},
    {"bench-restart", "Restarts", verdict_bench_restart},
    {"bench-policy", "Decision engine", verdict_bench_policy},
    {"bench-loads", "Predicted loads", NULL},
    {"bench-extent", "Extent allocator", NULL},
    {"bench-adaptcache", "AdaptCache's experiment", NULL},
    {"profile", "Profile", verdict_profile},
    {"profile-quality", "Quality", verdict_profile_quality},
};

static char *verdict_format(const char *format, va_list arguments)
{
    char *text = NULL;
    return vasprintf(&text, format, arguments) < 0 ? NULL : text;
}

void verdict_say(json_t *verdict, const char *state, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = verdict_format(format, arguments);
    va_end(arguments);
    if (text == NULL) return;
    (void)json_array_append_new(json_object_get(verdict, "sentences"),
                                json_pack("{s:s, s:s}", "state", state, "text", text));
    free(text);
}

void verdict_next(json_t *verdict, const char *format, ...)
{
    if (view_text(verdict, "next")[0] != '\0') return;
    va_list arguments;
    va_start(arguments, format);
    char *text = verdict_format(format, arguments);
    va_end(arguments);
    if (text == NULL) return;
    (void)json_object_set_new(verdict, "next", json_string(text));
    free(text);
}

const char *verdict_seconds(char text[VERDICT_NUMBER_BYTES], double seconds)
{
    if (isfinite(seconds)) return format_seconds(text, seconds);
    return "-";
}

void verdict_list(char names[VERDICT_NAMES_BYTES], const char *name)
{
    const size_t used = strlen(names), length = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += length) {
        if ((at == names || at[-1] == ' ') && (at[length] == ',' || at[length] == '\0')) return;
    }
    if (used + length + 3 > VERDICT_NAMES_BYTES) return;
    (void)snprintf(names + used, VERDICT_NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "", name);
}

/* The KIND of "kvterrace-KIND-1" into kind; "" for anything else. */
static void verdict_find_kind(const json_t *document, char *kind, size_t size)
{
    static const char prefix[] = "kvterrace-";
    const char *schema = view_text(document, "schema"), *end = strrchr(schema, '-');
    kind[0] = '\0';
    if (strncmp(schema, prefix, sizeof prefix - 1) != 0 || end == NULL) return;
    schema += sizeof prefix - 1;
    if (end <= schema || end[1] == '\0') return;
    for (const char *at = end + 1; *at != '\0'; at++)
        if (!isdigit((unsigned char)*at)) return;
    if ((size_t)(end - schema) < size)
        (void)snprintf(kind, size, "%.*s", (int)(end - schema), schema);
}

static void verdict_other(const char *kind, json_t *verdict)
{
    if (kind[0] == '\0') {
        verdict_say(verdict, "warning",
                    "This document has no schema of kvterrace: its numbers are drawn as they are, "
                    "and nothing is concluded from them.");
        verdict_next(verdict, "Make the document anew with a command's --json.");
        return;
    }
    verdict_say(verdict, "note",
                "No verdict is computed for documents of the kind %s: the tables below hold all "
                "that it says.",
                kind);
    verdict_next(verdict, "Read the first figure and the tables below it.");
}

json_t *report_verdict_make(const json_t *document)
{
    char kind[64];
    void (*fill)(const json_t *, json_t *) = NULL;
    verdict_find_kind(document, kind, sizeof kind);
    const char *title = kind[0] == '\0' ? "Document" : kind;
    for (size_t i = 0; i < sizeof verdict_kinds / sizeof verdict_kinds[0]; i++) {
        if (strcmp(verdict_kinds[i].kind, kind) != 0) continue;
        title = verdict_kinds[i].title;
        fill = verdict_kinds[i].fill;
    }
    json_t *verdict =
        json_pack("{s:s, s:s, s:[], s:s}", "kind", kind, "title", title, "sentences", "next", "");
    if (verdict == NULL) return NULL;
    if (fill != NULL) fill(document, verdict);
    if (json_array_size(json_object_get(verdict, "sentences")) == 0) verdict_other(kind, verdict);
    verdict_next(verdict, "Run the command again with other settings, and put both documents into "
                          "one page.");
    return verdict;
}
