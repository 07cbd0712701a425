/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict_grid.c - verdicts on the grid of workloads, and on the simulator beside the store.
 * One thread.
 */
#include "profile_document.h"
#include "report_verdict_part.h"

#include <math.h>
#include <string.h>

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
    verdict_next(verdict, sums.behind > 0 ? "Explain the worst cell: bench grid --cell NAME, then "
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
