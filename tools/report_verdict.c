/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict.c - finds a document's kind and the words for it; the grid of workloads, and the
 * simulator beside the store. report_verdict_runs.c has the sentences of replays,
 * report_verdict_bench.c those of measurements. One thread.
 */
#include "profile_document.h"
#include "report.h"
#include "tools/command/command.h"

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
    {"loop", "The whole loop on a model", verdict_loop},
    {"bench-grid", "Grid of workloads", verdict_grid},
    {"bench-live", "Simulator beside the store", verdict_bench_live},
    {"bench-codecs", "Codecs", verdict_bench_codecs},
    {"bench-devices", "Devices", verdict_bench_devices},
    {"bench-stripe", "Striping", verdict_bench_stripe},
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

bool report_verdict_is_later(const json_t *document)
{
    char kind[64];
    verdict_find_kind(document, kind, sizeof kind);
    for (size_t i = 0; i < sizeof verdict_kinds / sizeof verdict_kinds[0]; i++)
        if (strcmp(verdict_kinds[i].kind, kind) == 0)
            return strtoul(strrchr(view_text(document, "schema"), '-') + 1, NULL, 10) > 2;
    return false;
}

static void verdict_other(const char *kind, bool computed, json_t *verdict)
{
    if (computed) {
        verdict_say(verdict, "warning",
                    "This document holds no finished run that a verdict could be computed from.");
        return;
    }
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
    if (json_array_size(json_object_get(verdict, "sentences")) == 0)
        verdict_other(kind, fill != NULL, verdict);
    verdict_next(verdict, "Run the command again with other settings, and put both documents into "
                          "one page.");
    return verdict;
}

/* ---- the grid ---- */

/* ---- the grid ---- */

#define GRID_CELLS_NAMED 5u

typedef struct grid_sums {
    unsigned ahead, level, behind, lost;
    char rivals[VERDICT_NAMES_BYTES]; /* best in some cell */
} grid_sums;

static void grid_count(const json_t *cells, grid_sums *sums)
{
    const json_t *cell;
    size_t i;
    json_array_foreach(cells, i, cell)
    {
        double low = view_number(cell, "ratio_low", NAN);
        double high = view_number(cell, "ratio_high", NAN);
        if (!isfinite(view_number(cell, "ratio", NAN))) continue;
        sums->ahead += high < 1.0;
        sums->behind += low > 1.0;
        sums->level += !(high < 1.0) && !(low > 1.0);
        verdict_list(sums->rivals, view_text(cell, "best_rival"));
    }
}

static const json_t *grid_find(const json_t *cells, const char *name)
{
    const json_t *cell;
    size_t i;
    json_array_foreach(cells, i, cell)
    {
        if (strcmp(view_text(cell, "cell"), name) == 0) return cell;
    }
    return NULL;
}

static void grid_say_worst(const json_t *worst, const json_t *cells, json_t *verdict)
{
    const json_t *row;
    size_t i;
    json_array_foreach(worst, i, row)
    {
        const json_t *cell = grid_find(cells, view_text(row, "cell"));
        double ratio = view_number(row, "ratio", NAN), low = view_number(cell, "ratio_low", NAN);
        if (i >= GRID_CELLS_NAMED || !(ratio > 1.0)) continue;
        verdict_say(verdict, low > 1.0 ? "behind" : "level", "%s: %.3f [%.3f, %.3f] of %s; %s.",
                    view_text(row, "cell"), ratio, low, view_number(cell, "ratio_high", NAN),
                    view_text(row, "best_rival"), view_text(row, "why"));
    }
}

void verdict_grid(const json_t *document, json_t *verdict)
{
    const json_t *totals = json_object_get(document, "totals");
    grid_sums sums = {0};
    grid_count(json_object_get(document, "cells"), &sums);
    const unsigned cells = sums.ahead + sums.level + sums.behind;
    const double lost = view_number(totals, "intervals_above_1_02", 0.0);
    const double room = view_number(totals, "cells_with_room", 0.0);
    if (cells == 0) return;
    verdict_say(
        verdict, sums.behind == 0 ? "ahead" : "note",
        "Mean time to first token, exact forms, beside the best of all rivals in each cell: "
        "utility is ahead in %u of %u cells, level in %u and behind in %u (95 %% intervals "
        "over %.0f paired seeds).",
        sums.ahead, cells, sums.level, sums.behind, view_number(document, "repetitions", 0.0));
    verdict_say(verdict, lost > 0.0 ? "missed" : "met",
                "In %.0f of them the interval lies above 1.02; none is asked.", lost);
    if (room > 0.0) {
        double mean = view_number(totals, "geometric_mean_with_room", NAN);
        verdict_say(verdict, mean <= 0.95 ? "met" : "missed",
                    "In the %.0f cells whose best rival lies more than 5 %% above the bound, the "
                    "geometric mean of the ratios is %.3f; at most 0.95 is asked.",
                    room, mean);
    }
    verdict_say(verdict, "note",
                "Best rivals: %s. Medians and 99th percentiles are not part of "
                "the grid.",
                sums.rivals);
    grid_say_worst(json_object_get(totals, "worst"), json_object_get(document, "cells"), verdict);
    if (json_is_true(json_object_get(document, "interrupted")))
        verdict_next(verdict, "Run it again to its end: cells are missing.");
    if (json_is_true(json_object_get(document, "quick")))
        verdict_next(verdict, "Run again without --quick: a quarter of the cells and 3 seeds say "
                              "little.");
    verdict_next(verdict, sums.behind > 0 ? "Explain the worst cell: kvlab grid --cell NAME, then "
                                            "replay with its settings."
                                          : "Replay a trace of your own: replay --trace FILE.");
}

/* ---- the simulator beside the store ---- */

void verdict_bench_live(const json_t *document, json_t *verdict)
{
    const json_t *totals = json_object_get(document, "totals"), *row, *worst = NULL;
    double rows = view_number(totals, "rows", 0.0), within = view_number(totals, "within", 0.0);
    double wrong = view_number(totals, "wrong_bytes", 0.0), most = 0.0;
    double inverted = view_number(totals, "pairs_inverted", 0.0);
    size_t i;
    if (rows <= 0.0) return;
    verdict_say(verdict, within < rows ? "missed" : "met",
                "In %.0f of %.0f runs the store's mean time to first token lies within %.0f %% of "
                "the simulator's; the ratios lie from %.3f to %.3f.",
                within, rows, 100.0 * view_number(totals, "ratio_allowed", NAN),
                view_number(totals, "ratio_min", NAN), view_number(totals, "ratio_max", NAN));
    verdict_say(verdict, inverted > 0.0 ? "missed" : "met",
                "Of %.0f pairs of policies that the simulator tells apart, %.0f rank the other way "
                "on the store.",
                view_number(totals, "pairs_told_apart", 0.0), inverted);
    verdict_say(verdict, wrong > 0.0 ? "missed" : "met", "%.0f gets gave back wrong bytes.", wrong);
    json_array_foreach(json_object_get(document, "rows"), i, row)
    {
        double ratio = view_number(row, "ratio", NAN);
        if (!(fabs(log(ratio)) > most)) continue;
        most = fabs(log(ratio));
        worst = row;
    }
    if (worst != NULL)
        verdict_say(verdict, "note", "Furthest apart: %s with %s, %.3f.",
                    view_text(worst, "setting"), view_text(worst, "policy"),
                    view_number(worst, "ratio", NAN));
    verdict_next(verdict, within < rows ? "Repeat it on a quiet machine, and compare what differs "
                                          "twice: hits, puts and rho of both."
                                        : "Trust the simulator's order for such devices.");
}
