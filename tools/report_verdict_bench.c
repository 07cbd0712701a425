/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_verdict_bench.c - verdicts on measurements: benches, a profile, and quality. One thread.
 */
#include "profile_document.h"
#include "report.h"
#include "tools/command/command.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define BENCH_NAMED_MAX      5u
#define BENCH_CONTEXT_TOKENS 131072.0
#define BENCH_STRIPE_ASKED   0.9  /* of the members' sum */
#define BENCH_ENTRIES        30.0 /* fewer say little of a loss */
#define BENCH_LOSS_ASKED     0.01 /* mean loss, upper end of its interval */

/* The larger and the smaller of a column of rows; false without a number in it. */
static bool bench_range(const json_t *rows, const char *key, double *least_out, double *most_out)
{
    const json_t *row;
    size_t i;
    *least_out = INFINITY;
    *most_out = -INFINITY;
    json_array_foreach(rows, i, row)
    {
        double value = view_number(row, key, NAN);
        *least_out = fmin(*least_out, value);
        *most_out = fmax(*most_out, value);
    }
    return isfinite(*least_out);
}

static double bench_sum(const json_t *rows, const char *key)
{
    const json_t *row;
    double sum = 0.0;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        sum += view_number(row, key, 0.0);
    }
    return sum;
}

/* ---- codecs ---- */

static void codecs_say_checks(const json_t *checks, json_t *verdict)
{
    const size_t count = json_array_size(checks);
    size_t i, missed = 0, named = 0;
    const json_t *check;
    json_array_foreach(checks, i, check)
    {
        missed += json_is_false(json_object_get(check, "ok"));
    }
    if (count == 0) return;
    verdict_say(verdict, missed == 0 ? "met" : "missed",
                "%zu of the %zu figures that are asked of the codecs are met.", count - missed,
                count);
    json_array_foreach(checks, i, check)
    {
        if (!json_is_false(json_object_get(check, "ok")) || named++ >= BENCH_NAMED_MAX) continue;
        verdict_say(verdict, "missed", "Of %s: %s (%s) is %.3f, asked is %s %.3f.",
                    view_text(check, "source"), view_text(check, "check"), view_text(check, "what"),
                    view_number(check, "value", NAN),
                    strcmp(view_text(check, "asked"), "at_least") == 0 ? "at least" : "at most",
                    view_number(check, "limit", NAN));
    }
}

/* The best variant of a source at no more than so many bits. */
static const json_t *codecs_best(const json_t *losses, const char *source, const char *key,
                                 double bits)
{
    const json_t *row, *best = NULL;
    size_t i;
    json_array_foreach(losses, i, row)
    {
        double error = view_number(row, key, NAN);
        if (strcmp(view_text(row, "source"), source) != 0 || !isfinite(error)) continue;
        if (!(view_number(row, "bits_per_element", INFINITY) <= bits)) continue;
        if (best == NULL || error < view_number(best, key, NAN)) best = row;
    }
    return best;
}

static void codecs_say_source(const json_t *losses, const char *source, json_t *verdict)
{
    static const double budgets[] = {6.0, 4.6, 3.2};
    for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++) {
        bool evaluated = codecs_best(losses, source, "kl", INFINITY) != NULL;
        const char *key = evaluated ? "kl" : "attention_error";
        const json_t *best = codecs_best(losses, source, key, budgets[i]);
        if (best == NULL) continue;
        verdict_say(verdict, "note",
                    "Of %s, at most %.1f bits an element: %s changes least, with %s %.2e at %.2f "
                    "bits.",
                    source, budgets[i], view_text(best, "variant"),
                    evaluated ? "a mean KL of" : "an attention error of",
                    view_number(best, key, NAN), view_number(best, "bits_per_element", NAN));
    }
}

void verdict_bench_codecs(const json_t *document, json_t *verdict)
{
    const json_t *losses = json_object_get(document, "losses");
    const json_t *sources = json_object_get(document, "sources");
    const size_t count = json_array_size(sources);
    codecs_say_checks(json_object_get(document, "checks"), verdict);
    if (count > 0)
        codecs_say_source(losses, view_text(json_array_get(sources, count - 1), "source"), verdict);
    if (count <= 1)
        verdict_next(verdict, "Give --model, --tokenizer and --text: generated KV says little of "
                              "what a variant costs in answers.");
    verdict_next(verdict, "Calibrate a ladder for your model: profile calibrate.");
}

/* ---- drives ---- */

/* The default layout is held against what is asked; the others stand beside it. */
static bool stripe_is_default(const json_t *row)
{
    return strcmp(view_text(row, "layout"), "proportional") == 0;
}

static const char *stripe_state(const json_t *row, double ratio)
{
    if (!stripe_is_default(row)) return "note";
    return ratio >= BENCH_STRIPE_ASKED ? "met" : "missed";
}

static const char *stripe_asked(const json_t *row)
{
    return stripe_is_default(row) ? " (at least 0.9 is asked)" : "";
}

static void devices_say_stripes(const json_t *rows, json_t *verdict)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        double ratio = view_number(row, "ratio", NAN);
        if (!isfinite(ratio)) continue;
        verdict_say(verdict, stripe_state(row, ratio),
                    "Striping (%s) over %.0f members reaches %.3f of their sum in its slower "
                    "direction%s.",
                    view_text(row, "layout"), view_number(row, "members", 0.0), ratio,
                    stripe_asked(row));
    }
}

void verdict_bench_devices(const json_t *document, json_t *verdict)
{
    const json_t *rows = json_object_get(document, "results");
    const json_t *fast = json_object_get(document, "fast_path");
    double least, most;
    char low[VERDICT_NUMBER_BYTES], high[VERDICT_NUMBER_BYTES];
    if (bench_range(rows, "read_bytes_per_s", &least, &most))
        verdict_say(verdict, "note", "Reads run at %s to %s over %zu devices and layouts.",
                    format_rate(low, least), format_rate(high, most), json_array_size(rows));
    devices_say_stripes(rows, verdict);
    if (bench_range(fast, "ratio", &least, &most))
        verdict_say(verdict, least >= 1.0 ? "met" : "note",
                    "Beside fio on the same device, best run over best run, our engine has %.3f to "
                    "%.3f of its bandwidth.",
                    least, most);
    verdict_next(verdict, "Keep what this machine can do: profile devices codecs --database FILE.");
}

void verdict_bench_stripe(const json_t *document, json_t *verdict)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(document, "results"), i, row)
    {
        double ratio = view_number(row, "ratio", NAN);
        if (!isfinite(ratio)) continue;
        verdict_say(verdict, stripe_state(row, ratio),
                    "Layout %s, objects of %.0f MiB: %.3f of the drives' sum in its slower "
                    "direction%s.",
                    view_text(row, "layout"), view_number(row, "object_bytes", 0.0) / 1048576.0,
                    ratio, stripe_asked(row));
    }
    if (view_number(document, "repetitions", 0.0) < 3)
        verdict_next(verdict, "Run again without --quick: one repetition has no spread.");
}

void verdict_bench_restart(const json_t *document, json_t *verdict)
{
    const json_t *rows = json_object_get(document, "restarts"), *row;
    double wrong = bench_sum(rows, "wrong_bytes");
    char text[VERDICT_NUMBER_BYTES];
    size_t i;
    if (json_array_size(rows) == 0) return;
    verdict_say(verdict, wrong > 0.0 ? "missed" : "met",
                "%.0f entries came back with wrong bytes, of %.0f that were checked.", wrong,
                bench_sum(rows, "checked"));
    json_array_foreach(rows, i, row)
    {
        verdict_say(verdict, "note",
                    "%.0f entries, %s, ended by %s: %.1f %% of the bytes are back, the store is "
                    "open after %s.",
                    view_number(row, "entries", 0.0), view_text(row, "behaviour"),
                    view_text(row, "ended_by"), 100.0 * view_number(row, "bytes_back_ratio", NAN),
                    verdict_seconds(text, view_number(row, "reopen_s", NAN)));
    }
}

void verdict_bench_policy(const json_t *document, json_t *verdict)
{
    const json_t *rows = json_object_get(document, "rows"), *row;
    double least, most;
    size_t i;
    if (bench_range(rows, "gap_solver", &least, &most))
        verdict_say(verdict, "note",
                    "The solver is at most %.2e of the stake away from its own bound (dual).",
                    most);
    json_array_foreach(rows, i, row)
    {
        double median = view_number(row, "decision_ns_p50", NAN);
        if (!isfinite(median)) continue;
        verdict_say(verdict, "note",
                    "%.0f entries: a decision takes %.0f ns in the median and %.0f ns in the 99th "
                    "percentile, an entry %.0f bytes.",
                    view_number(row, "n", 0.0), median, view_number(row, "decision_ns_p99", NAN),
                    view_number(row, "bytes_per_entry", NAN));
    }
}

/* ---- profiles ---- */

static void profile_say_devices(const json_t *devices, json_t *verdict)
{
    const json_t *device;
    size_t i, busy = 0;
    char read[VERDICT_NUMBER_BYTES], write[VERDICT_NUMBER_BYTES];
    json_array_foreach(devices, i, device)
    {
        kvt_affine reads, writes;
        busy += json_is_true(json_object_get(device, "busy"));
        if (!view_affine(device, "read", &reads)) continue;
        bool known = view_affine(device, "write", &writes);
        verdict_say(verdict, "note", "%s (%s%s) reads at %s and writes at %s.",
                    view_text(device, "device"), view_text(device, "tier"),
                    json_is_true(json_object_get(device, "imported")) ? ", imported" : "",
                    format_rate(read, reads.bytes_per_s),
                    known ? format_rate(write, writes.bytes_per_s) : "an unknown rate");
    }
    if (busy == 0) return;
    verdict_say(verdict, "warning",
                "The machine was busy while %zu of the devices were measured: their figures are "
                "too uncertain to decide by.",
                busy);
    verdict_next(verdict, "Measure the devices again when the machine is quiet: profile devices.");
}

/* How many of the cases are better loaded, at the latest in the longest context. */
static void profile_say_break_even(const json_t *document, json_t *verdict)
{
    const json_t *rows = json_object_get(json_object_get(document, "break_even"), "devices"), *row;
    size_t i, loads = 0;
    json_array_foreach(rows, i, row)
    {
        const char *wins = view_text(row, "loading_wins");
        bool from = strcmp(wins, "from") == 0;
        loads += strcmp(wins, "always") == 0 ||
                 (from && view_number(row, "tokens", INFINITY) <= BENCH_CONTEXT_TOKENS);
    }
    if (json_array_size(rows) == 0) return;
    verdict_say(verdict, loads == json_array_size(rows) ? "met" : "note",
                "Loading beats recomputing in contexts of at most %.0f tokens in %zu of %zu cases "
                "of device, prefill and variant.",
                BENCH_CONTEXT_TOKENS, loads, json_array_size(rows));
}

/* The fewest bits with a loss that is small with confidence, of rows with these keys. */
static void quality_say_set(const json_t *set, const json_t *rows, const char *name,
                            json_t *verdict)
{
    const json_t *row, *best = NULL;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        double high = view_number(row, "loss_high", view_number(row, "loss_mean", NAN));
        double bits = view_number(row, "bits_per_element", NAN);
        if (!(high <= BENCH_LOSS_ASKED) || !isfinite(bits)) continue;
        if (best == NULL || bits < view_number(best, "bits_per_element", NAN)) best = row;
    }
    if (view_number(set, "entries", BENCH_ENTRIES) < BENCH_ENTRIES)
        verdict_next(verdict, "Measure quality again without --quick: %.0f entries say little.",
                     view_number(set, "entries", 0.0));
    if (best == NULL) {
        verdict_say(verdict, "missed",
                    "%s on %s: no variant has a loss that is below 1 %% with confidence.",
                    view_text(set, "model"), view_text(set, "class"));
        return;
    }
    verdict_say(verdict, "note",
                "%s on %s: %s has the fewest bits, %.2f an element, at a loss below 1 %%: %.4f "
                "[%.4f, %.4f], from %.0f entries.",
                view_text(set, "model"), view_text(set, "class"), view_text(best, name),
                view_number(best, "bits_per_element", NAN), view_number(best, "loss_mean", NAN),
                view_number(best, "loss_low", NAN), view_number(best, "loss_high", NAN),
                view_number(best, "entries", 0.0));
}

void verdict_profile(const json_t *document, json_t *verdict)
{
    const json_t *sets = json_object_get(document, "quality_sets"), *set;
    const json_t *devices = json_object_get(document, "devices");
    size_t i;
    profile_say_devices(devices, verdict);
    profile_say_break_even(document, verdict);
    json_array_foreach(sets, i, set)
    {
        quality_say_set(set, json_object_get(set, "curves"), "name", verdict);
    }
    if (json_array_size(devices) == 0) {
        verdict_say(verdict, "warning", "No device was measured yet.");
        verdict_next(verdict, "Measure this machine: profile devices codecs --database FILE.");
    }
    if (json_array_size(sets) == 0)
        verdict_next(verdict, "Measure what variants cost in answers: profile quality.");
    verdict_next(verdict, "Replay a workload on these measurements: replay --database FILE.");
}

void verdict_profile_quality(const json_t *document, json_t *verdict)
{
    const json_t *set;
    size_t i;
    json_array_foreach(json_object_get(document, "sets"), i, set)
    {
        quality_say_set(set, json_object_get(set, "variants"), "variant", verdict);
    }
    verdict_next(verdict, "Turn the measured losses into a ladder: profile calibrate.");
}
