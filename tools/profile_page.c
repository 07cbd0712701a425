/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_page.c - see profile_page.h: the page's head, quality, ladders, what was learned, prefill
 * and runs. One thread.
 */
#include "profile_page.h"

#include "command.h"
#include "profile_document.h"
#include "profile_page_part.h"
#include "profile_plot.h"
#include "replay/report_page.h"

#include <math.h>
#include <string.h>

/* Beyond what all pages share. */
static const char show_style[] =
    ".figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));"
    "gap:16px;margin:14px 0}\n"
    "figure{margin:0;padding:12px 12px 10px;background:#fff;border:1px solid var(--line);"
    "border-radius:8px}figure.broad{grid-column:1/-1;max-width:960px}\n"
    "figure svg text{font:inherit;fill:inherit}"
    "figcaption{color:#667085;font-size:13px;margin-top:6px}\n"
    "td.left,th.left{text-align:left}td.note{white-space:normal;text-align:left;min-width:260px;"
    "color:var(--soft)}\n"
    "tr.refused td{color:var(--soft)}tr.refused td:first-child{text-decoration:line-through;"
    "font-weight:400}\n"
    ".yes{color:#1f9d68;font-weight:600}.no{color:#d0433c;font-weight:600}\n"
    "tr.group td{background:var(--card);color:var(--soft);font-weight:600}\n"
    "details{margin:10px 0}summary{cursor:pointer;color:var(--soft)}\n"
    "p.note{color:var(--soft);margin:6px 0 12px;max-width:80ch}h3{font-size:15px;margin:22px 0 6px}"
    "\n.empty{color:var(--soft)}\n";

/* ---- where it is from ---- */

static void show_head(const json_t *document, FILE *file)
{
    const json_t *runs = json_object_get(document, "runs"), *run;
    const size_t count = json_array_size(runs);
    const json_t *last = count > 0 ? json_array_get(runs, count - 1) : NULL;
    char line[512], bytes[32];
    size_t i, interrupted = 0;
    json_array_foreach(runs, i, run)
    {
        interrupted += view_number(run, "complete", 0) <= 0;
    }
    fprintf(file, "<h1>kvterrace profile</h1>\n<p class=\"lead\">What was measured, where and when"
                  "</p>\n");
    if (profile_document_is_busy(document)) page_warn_busy(file);
    fprintf(file, "<dl>\n");
    show_fact(file, "database", view_text(document, "database"));
    if (last != NULL) {
        (void)snprintf(line, sizeof line, "%s: %s, %.0f CPUs, %s of memory, %s",
                       view_text(last, "host_name"), view_text(last, "cpu_model"),
                       view_number(last, "cpu_count", 0),
                       format_bytes(bytes, (uint64_t)view_number(last, "memory_bytes", 0)),
                       view_text(last, "kernel"));
        show_fact(file, "machine", line);
        (void)snprintf(line, sizeof line, "%zu run%s, from %s to %s%s", count,
                       count == 1 ? "" : "s", view_text(json_array_get(runs, 0), "started_utc"),
                       view_text(last, "started_utc"), interrupted ? ", not all complete" : "");
        show_fact(file, "measured", line);
        (void)snprintf(line, sizeof line, "kvterrace %s, SQLite %s, zstd %s",
                       view_text(last, "library_version"), view_text(last, "sqlite_version"),
                       view_text(last, "zstd_version"));
        show_fact(file, "versions", line);
        show_fact(file, "last command", view_text(last, "command_line"));
    } else {
        show_fact(file, "measured", "nothing yet");
    }
    fprintf(file, "</dl>\n");
}

static void show_runs(const json_t *document, FILE *file)
{
    const json_t *run;
    size_t i;
    if (show_count(document, "runs") == 0) return;
    fprintf(file, "<details><summary>All runs</summary>\n");
    SHOW_TABLE(file, 3, "run", "kind", "what", "state", "started", "finished", "host", "version",
               "seed", "command or source");
    json_array_foreach(json_object_get(document, "runs"), i, run)
    {
        const char *source = view_text(run, "source");
        fprintf(file, "<tr>");
        show_number(file, run, "id", 0, 1, "");
        show_text(file, "left", view_text(run, "kind"));
        show_text(file, "left", view_text(run, "device"));
        show_text(file, "", view_number(run, "complete", 0) > 0 ? "complete" : "interrupted");
        show_text(file, "", view_text(run, "started_utc"));
        show_text(file, "", view_text(run, "finished_utc"));
        show_text(file, "", view_text(run, "host_name"));
        show_text(file, "", view_text(run, "library_version"));
        show_number(file, run, "seed", 0, 1, "");
        show_text(file, "note", source[0] ? source : view_text(run, "command_line"));
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
    fprintf(file, "</details>\n");
}

/* ---- quality ---- */

static void show_set(const json_t *set, FILE *file)
{
    const json_t *curve;
    const bool imported = strcmp(view_text(set, "method"), "import") == 0;
    size_t i;
    fprintf(file, "<h3>");
    page_text(file, view_text(set, "model"));
    fprintf(file, " on ");
    page_text(file, view_text(set, "class"));
    fprintf(file, "</h3>\n<p class=\"note\">");
    page_text(file, imported ? "imported" : view_text(set, "method"));
    if (view_number(set, "entries", 0) > 0) {
        fprintf(file, ", %.0f entries of %.0f tokens, %.0f tokens of continuation",
                view_number(set, "entries", 0), view_number(set, "context_tokens", 0),
                view_number(set, "continuation_tokens", 0));
    }
    if (view_number(set, "complete", 0) <= 0) fprintf(file, ", interrupted");
    if (view_number(set, "nll_nats", -1) >= 0) {
        fprintf(file, ", exact KV: %.4f nat a token", view_number(set, "nll_nats", 0));
    }
    if (isfinite(view_number(set, "spearman_variants", NAN))) {
        fprintf(file, ", attention error ranks variants with %.3f",
                view_number(set, "spearman_variants", 0));
    }
    fprintf(file, "</p>\n<details open><summary>%zu variants</summary>\n",
            json_array_size(json_object_get(set, "curves")));
    /* The last column is for imports. */
    static const char *const heads[] = {"variant", "bits",  "loss",    "low",
                                        "high",    "p90",   "KL, nat", "top-1",
                                        "ROUGE-L", "F1",    "answers", "attention error",
                                        "metric",  "source"};
    show_table(file, heads, sizeof heads / sizeof heads[0] - (imported ? 0 : 1), 1);
    json_array_foreach(json_object_get(set, "curves"), i, curve)
    {
        fprintf(file, "<tr>");
        show_text(file, "", view_text(curve, "name"));
        show_number(file, curve, "bits_per_element", 2, 1, "");
        show_number(file, curve, "loss_mean", 5, 1, "");
        show_number(file, curve, "loss_low", 5, 1, "");
        show_number(file, curve, "loss_high", 5, 1, "");
        show_number(file, curve, "loss_p90", 5, 1, "");
        show_number(file, curve, "kl", -3, 1, "");
        show_number(file, curve, "top1", 4, 1, "");
        show_number(file, curve, "rouge_l", 4, 1, "");
        show_number(file, curve, "f1", 4, 1, "");
        show_number(file, curve, "answers", 4, 1, "");
        show_number(file, curve, "attention_error", 4, 1, "");
        show_text(file, "", view_text(curve, "metric"));
        if (imported) show_text(file, "note", view_text(curve, "source"));
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
    fprintf(file, "</details>\n");
}

static kvt_status show_quality(const json_t *document, unsigned *number, FILE *file)
{
    const json_t *set;
    size_t i;
    if (show_count(document, "quality_sets") == 0) return KVT_OK;
    fprintf(file, "<h2>Quality</h2>\n<p class=\"note\">Loss is one minus the similarity to answers "
                  "from exact KV. It belongs to a model and a class of text, not to a machine. "
                  "Exact forms lose nothing and are not drawn.</p>\n");
    kvt_status status = profile_plot_inline(document, PROFILE_PLOT_QUALITY, number, file);
    json_array_foreach(json_object_get(document, "quality_sets"), i, set)
    {
        show_set(set, file);
    }
    return status;
}

static void show_calibration(const json_t *calibration, FILE *file)
{
    const json_t *row;
    size_t i;
    fprintf(file, "<h3>");
    page_text(file, view_text(calibration, "model"));
    fprintf(file, " on ");
    page_text(file, view_text(calibration, "class"));
    fprintf(file, "</h3>\n");
    SHOW_TABLE(file, 1, "rung", "bits", "loss", "at most", "", "evidence");
    json_array_foreach(json_object_get(calibration, "rungs"), i, row)
    {
        bool accepted = view_number(row, "accepted", 0) > 0;
        fprintf(file, "<tr%s>", accepted ? "" : " class=\"refused\"");
        show_text(file, "", view_text(row, "name"));
        show_number(file, row, "bits_per_element", 2, 1, "");
        show_number(file, row, "loss", 5, 1, "");
        show_number(file, row, "loss_upper", 5, 1, "");
        fprintf(file,
                accepted ? "<td class=\"yes\">accepted</td>" : "<td class=\"no\">refused</td>");
        show_text(file, "note", view_text(row, "evidence"));
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
    if (json_array_size(json_object_get(calibration, "choices")) == 0) return;
    SHOW_TABLE(file, 2, "question", "chosen", "evidence");
    json_array_foreach(json_object_get(calibration, "choices"), i, row)
    {
        fprintf(file, "<tr>");
        show_text(file, "", view_text(row, "question"));
        show_text(file, "left", view_text(row, "chosen"));
        show_text(file, "note", view_text(row, "evidence"));
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
}

static void show_calibrations(const json_t *document, FILE *file)
{
    const json_t *calibration;
    size_t i;
    if (show_count(document, "calibrations") == 0) return;
    fprintf(file,
            "<h2>Ladders</h2>\n<p class=\"note\">Best rung first. A rung that is worse than a "
            "cheaper one is refused.</p>\n");
    json_array_foreach(json_object_get(document, "calibrations"), i, calibration)
    {
        show_calibration(calibration, file);
    }
}

/* ---- what a store learned, and prefill ---- */

static void show_learned(const json_t *document, FILE *file)
{
    const json_t *row;
    size_t i;
    if (show_count(document, "learned") == 0) return;
    fprintf(file, "<h2>Learned while running</h2>\n<p class=\"note\">Factors on what was predicted "
                  "(1 = as measured), half-lives of reuse in seconds; errors are of predictions "
                  "made before each observation.</p>\n");
    SHOW_TABLE(file, 3, "kind", "of", "part", "value", "weight", "observations", "error p50", "p90",
               "log-likelihood", "since");
    json_array_foreach(json_object_get(document, "learned"), i, row)
    {
        fprintf(file, "<tr>");
        show_text(file, "", view_text(row, "kind"));
        show_text(file, "left", view_text(row, "name"));
        show_text(file, "left", view_text(row, "part"));
        show_number(file, row, "value", -4, 1, "");
        show_number(file, row, "weight", -4, 1, "");
        show_number(file, row, "observations", 0, 1, "");
        show_number(file, row, "error_p50", 1, 100, " %");
        show_number(file, row, "error_p90", 1, 100, " %");
        show_number(file, row, "log_likelihood", -4, 1, "");
        show_text(file, "", view_text(row, "started_utc"));
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
}

static void show_prefill(const json_t *document, FILE *file)
{
    const json_t *row;
    size_t i;
    fprintf(file,
            "<h2>Prefill</h2>\n<p class=\"note\">Seconds to compute n tokens from position 0: "
            "fixed + linear n + square n&sup2;.</p>\n");
    SHOW_TABLE(file, 1, "model and machine", "fixed", "linear, us a token",
               "square, ns a token&sup2;", "KV of a token", "source");
    json_array_foreach(json_object_get(document, "prefill"), i, row)
    {
        fprintf(file, "<tr>");
        show_text(file, "", view_text(row, "name"));
        show_seconds(file, view_number(row, "fixed_seconds", 0));
        show_number(file, row, "linear_seconds_per_token", 2, 1e6, "");
        show_number(file, row, "square_seconds_per_token2", 3, 1e9, "");
        show_size(file, view_number(row, "token_bytes", 0));
        show_text(file, "note", view_text(row, "source"));
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
}

kvt_status profile_page_write(const json_t *document, FILE *file)
{
    unsigned number = 0;
    fprintf(file,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
            "<title>kvterrace profile</title>\n<style>\n%s%s</style></head><body><main>\n",
            page_style, show_style);
    show_head(document, file);
    kvt_status status = show_devices(document, &number, file);
    if (status == KVT_OK) status = show_loads(document, &number, file);
    if (status == KVT_OK) status = show_codecs(document, &number, file);
    if (status == KVT_OK) status = show_quality(document, &number, file);
    show_calibrations(document, file);
    show_learned(document, file);
    show_prefill(document, file);
    show_runs(document, file);
    fprintf(file, "</main></body></html>\n");
    return status == KVT_OK && (fflush(file) != 0 || ferror(file)) ? KVT_E_IO : status;
}
