/*
 * profile_page.c - see profile_page.h. Text from the profile is escaped by page_text, and only by
 * it. One thread.
 */
#include "profile_page.h"

#include "command.h"
#include "profile_document.h"
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

/* ---- pieces ---- */

static void show_table(FILE *file, const char *const *heads, size_t count, size_t left)
{
    fprintf(file, "<div class=\"wide\"><table><thead><tr>");
    for (size_t i = 0; i < count; i++)
        fprintf(file, "<th%s>%s</th>", i < left ? " class=\"left\"" : "", heads[i]);
    fprintf(file, "</tr></thead><tbody>\n");
}

static void show_table_end(FILE *file)
{
    fprintf(file, "</tbody></table></div>\n");
}

#define SHOW_TABLE(file, left, ...)                                                                \
    do {                                                                                           \
        static const char *const show_heads[] = {__VA_ARGS__};                                     \
        show_table(file, show_heads, sizeof show_heads / sizeof show_heads[0], left);              \
    } while (0)

static void show_text(FILE *file, const char *class, const char *text)
{
    fprintf(file, "<td%s%s%s>", class[0] ? " class=\"" : "", class, class[0] ? "\"" : "");
    page_text(file, text);
    fprintf(file, "</td>");
}

/* A number times a factor, as "%.*f" or, for digits below 0, with that many digits that count. */
static void show_number(FILE *file, const json_t *row, const char *key, int digits, double factor,
                        const char *unit)
{
    const double value = view_number(row, key, NAN) * factor;
    char text[64] = "-";
    if (isfinite(value) && digits >= 0) {
        (void)snprintf(text, sizeof text, "%.*f%s", digits, value, unit);
    } else if (isfinite(value)) {
        (void)snprintf(text, sizeof text, "%.*g%s", -digits, value, unit);
    }
    show_text(file, "", text);
}

static void show_rate(FILE *file, double bytes_per_s)
{
    char text[32] = "-";
    if (bytes_per_s > 0 && isfinite(bytes_per_s)) format_rate(text, bytes_per_s);
    show_text(file, "", text);
}

static void show_seconds(FILE *file, double seconds)
{
    char text[32] = "-";
    if (isfinite(seconds)) format_seconds(text, seconds);
    show_text(file, "", text);
}

static void show_size(FILE *file, double bytes)
{
    char text[32];
    show_text(file, "", format_bytes(text, (uint64_t)bytes));
}

static void show_fact(FILE *file, const char *name, const char *value)
{
    if (value[0] == '\0') return;
    fprintf(file, "<dt>%s</dt><dd>", name);
    page_text(file, value);
    fprintf(file, "</dd>\n");
}

static size_t show_count(const json_t *document, const char *section)
{
    return json_array_size(json_object_get(document, section));
}

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
                  "</p>\n<dl>\n");
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

/* ---- devices ---- */

static void show_direction(const json_t *device, const char *key, FILE *file)
{
    kvt_affine affine;
    if (!view_affine(device, key, &affine)) {
        fprintf(file, "<td>-</td><td>-</td><td>-</td>");
        return;
    }
    show_rate(file, affine.bytes_per_s);
    show_seconds(file, affine.request_seconds);
    fprintf(file, "<td>%.0f %%</td>", affine.residual * 100);
}

static void show_mixed(const json_t *device, FILE *file)
{
    const json_t *mixed;
    char text[128] = "";
    size_t i;
    json_array_foreach(json_object_get(device, "mixed"), i, mixed)
    {
        char size[32];
        size_t used = strlen(text);
        double unmixed = view_number(mixed, "unmixed_bytes_per_s", 0);
        if (unmixed <= 0) continue;
        (void)snprintf(text + used, sizeof text - used, "%s%.0f %% at %s", used ? ", " : "",
                       100 * view_number(mixed, "bytes_per_s", 0) / unmixed,
                       format_bytes(size, (uint64_t)view_number(mixed, "request_bytes", 0)));
    }
    show_text(file, "", text[0] ? text : "-");
}

static void show_points(const json_t *document, FILE *file)
{
    const json_t *device, *point;
    size_t i, j;
    fprintf(file, "<details><summary>All points, with what the model says at depth 1</summary>\n");
    SHOW_TABLE(file, 2, "device", "direction", "request", "in flight", "bandwidth", "slowest",
               "fastest", "median latency", "p99", "model", "off by");
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        json_array_foreach(json_object_get(device, "points"), j, point)
        {
            fprintf(file, "<tr>");
            show_text(file, "", view_text(device, "device"));
            show_text(file, "left", view_text(point, "kind"));
            show_size(file, view_number(point, "request_bytes", 0));
            show_number(file, point, "depth", 0, 1, "");
            show_rate(file, view_number(point, "bytes_per_s", 0));
            show_rate(file, view_number(point, "bytes_per_s_min", 0));
            show_rate(file, view_number(point, "bytes_per_s_max", 0));
            show_seconds(file, view_number(point, "latency_seconds_p50", NAN));
            show_seconds(file, view_number(point, "latency_seconds_p99", NAN));
            show_seconds(file, view_number(point, "fit_seconds", NAN));
            show_number(file, point, "fit_error", 1, 100, " %");
            fprintf(file, "</tr>\n");
        }
    }
    show_table_end(file);
    fprintf(file, "</details>\n");
}

static kvt_status show_devices(const json_t *document, unsigned *number, FILE *file)
{
    const json_t *device;
    size_t i;
    if (show_count(document, "devices") == 0) return KVT_OK;
    fprintf(file,
            "<h2>Devices</h2>\n<p class=\"note\">A load costs the seconds of a request plus "
            "bytes over bandwidth; fit is the model's largest error at one request at a time. "
            "Mixed is what is left of the bandwidth when reads and writes meet.</p>\n");
    SHOW_TABLE(file, 3, "device", "tier", "engine", "capacity", "read", "+ each", "fit", "write",
               "+ each", "fit", "mixed", "notes");
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        bool direct = json_is_true(json_object_get(device, "direct"));
        bool emulated = json_is_true(json_object_get(device, "emulated"));
        fprintf(file, "<tr>");
        show_text(file, "", view_text(device, "device"));
        show_text(file, "left", view_text(device, "tier"));
        show_text(file, "left", view_text(device, "engine"));
        show_size(file, view_number(device, "capacity_bytes", 0));
        show_direction(device, "read", file);
        show_direction(device, "write", file);
        show_mixed(device, file);
        show_text(file, "",
                  direct && emulated ? "direct, emulated"
                  : direct           ? "direct"
                  : emulated         ? "emulated"
                                     : "");
        fprintf(file, "</tr>\n");
    }
    show_table_end(file);
    kvt_status status = profile_plot_inline(document, PROFILE_PLOT_DEVICES, number, file);
    show_points(document, file);
    return status;
}

/* ---- loading and computing ---- */

static void show_seconds_row(const json_t *row, const char *name, const char *class, FILE *file)
{
    const json_t *value;
    size_t i;
    fprintf(file, "<tr>");
    show_text(file, class, name);
    json_array_foreach(json_object_get(row, "seconds"), i, value)
    {
        show_seconds(file, json_number_value(value));
    }
    fprintf(file, "</tr>\n");
}

static void show_load(const json_t *table, FILE *file)
{
    const json_t *row;
    size_t i;
    char size[32];
    fprintf(file, "<h3>Seconds to load and to compute a context, %s a token</h3>\n",
            format_bytes(size, (uint64_t)view_number(table, "token_bytes", 0)));
    fprintf(file, "<div class=\"wide\"><table><thead><tr><th class=\"left\">tokens</th>");
    json_array_foreach(json_object_get(table, "tokens"), i, row)
    {
        fprintf(file, "<th>%.0f</th>", json_number_value(row));
    }
    fprintf(file, "</tr></thead><tbody>\n");
    json_array_foreach(json_object_get(table, "loads"), i, row)
    {
        show_seconds_row(row, view_text(row, "device"), "", file);
    }
    json_array_foreach(json_object_get(table, "prefills"), i, row)
    {
        char name[128];
        (void)snprintf(name, sizeof name, "compute, %s", view_text(row, "prefill"));
        show_seconds_row(row, name, "left", file);
    }
    show_table_end(file);
}

/* Rows of one device and prefill follow each other, forms in the same order everywhere. */
static void show_break_even(const json_t *document, FILE *file)
{
    const json_t *rows = json_object_get(json_object_get(document, "break_even"), "devices"), *row;
    const json_t *first = json_array_get(rows, 0);
    size_t i, forms = 0;
    if (first == NULL) return;
    fprintf(file,
            "<h3>Break-even context: tokens below which computing is faster than loading</h3>\n"
            "<p class=\"note\">Forms are decoded by %.0f thread%s after the load. "
            "<span class=\"yes\">always</span>: loading wins at every length.</p>\n"
            "<div class=\"wide\"><table><thead><tr><th class=\"left\">device</th>"
            "<th class=\"left\">prefill</th>",
            view_number(first, "threads", 1), view_number(first, "threads", 1) > 1 ? "s" : "");
    json_array_foreach(rows, i, row)
    {
        if (!json_equal(json_object_get(row, "device"), json_object_get(first, "device")) ||
            !json_equal(json_object_get(row, "prefill"), json_object_get(first, "prefill"))) {
            break;
        }
        fprintf(file, "<th>");
        page_text(file, view_text(row, "codec"));
        fprintf(file, "</th>");
        forms++;
    }
    fprintf(file, "</tr></thead><tbody>\n");
    json_array_foreach(rows, i, row)
    {
        const char *wins = view_text(row, "loading_wins");
        if (i % forms == 0) {
            fprintf(file, "<tr>");
            show_text(file, "", view_text(row, "device"));
            show_text(file, "left", view_text(row, "prefill"));
        }
        if (strcmp(wins, "always") == 0) {
            fprintf(file, "<td class=\"yes\">always</td>");
        } else if (strcmp(wins, "never") == 0) {
            fprintf(file, "<td class=\"no\">never</td>");
        } else {
            fprintf(file, "<td>%.0f</td>", ceil(view_number(row, "tokens", 0)));
        }
        if (i % forms == forms - 1) fprintf(file, "</tr>\n");
    }
    show_table_end(file);
}

static kvt_status show_loads(const json_t *document, unsigned *number, FILE *file)
{
    const json_t *table;
    size_t i;
    if (show_count(document, "devices") == 0) return KVT_OK;
    fprintf(file, "<h2>Loading against recomputing</h2>\n");
    kvt_status status = profile_plot_inline(document, PROFILE_PLOT_LOADS, number, file);
    json_array_foreach(json_object_get(document, "load"), i, table)
    {
        show_load(table, file);
    }
    show_break_even(document, file);
    return status;
}

/* ---- codecs ---- */

static const json_t *show_even(const json_t *document, const json_t *codec)
{
    const json_t *row;
    size_t i;
    if (!json_is_true(json_object_get(codec, "best"))) return NULL;
    json_array_foreach(json_object_get(json_object_get(document, "break_even"), "codecs"), i, row)
    {
        if (json_equal(json_object_get(row, "source"), json_object_get(codec, "source")) &&
            json_equal(json_object_get(row, "codec"), json_object_get(codec, "name")) &&
            json_equal(json_object_get(row, "threads"), json_object_get(codec, "threads"))) {
            return row;
        }
    }
    return NULL;
}

static void show_codec(const json_t *document, const json_t *codec, FILE *file)
{
    const json_t *even = show_even(document, codec), *device;
    const char *pays = view_text(even, "pays");
    size_t i;
    fprintf(file, "<tr>");
    show_text(file, "", view_text(codec, "name"));
    show_number(file, codec, "stored_share", 1, 100, " %");
    show_rate(file, view_number(codec, "encode_bytes_per_s", 0));
    show_rate(file, view_number(codec, "decode_bytes_per_s", 0));
    if (even == NULL) {
        fprintf(file, "<td>-</td>");
    } else if (strcmp(pays, "below") != 0) {
        fprintf(file, "<td class=\"%s\">%s</td>", strcmp(pays, "always") == 0 ? "yes" : "no", pays);
    } else {
        show_rate(file, view_number(even, "bytes_per_s", 0));
    }
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        kvt_affine read;
        if (!view_affine(device, "read", &read)) continue;
        bool yes =
            strcmp(pays, "always") == 0 ||
            (strcmp(pays, "below") == 0 && read.bytes_per_s < view_number(even, "bytes_per_s", 0));
        fprintf(file, even == NULL ? "<td>-</td>"
                      : yes        ? "<td class=\"yes\">yes</td>"
                                   : "<td class=\"no\">no</td>");
    }
    fprintf(file, "</tr>\n");
}

static void show_codec_table(const json_t *document, bool best, FILE *file)
{
    const json_t *codec, *device;
    const char *source = "", *isa = "";
    double threads = -1;
    size_t i, columns = 5;
    fprintf(file, "<div class=\"wide\"><table><thead><tr><th class=\"left\">form</th>"
                  "<th>stored</th><th>encode</th><th>decode</th><th>pays below</th>");
    json_array_foreach(json_object_get(document, "devices"), i, device)
    {
        kvt_affine read;
        if (!view_affine(device, "read", &read)) continue;
        fprintf(file, "<th>on ");
        page_text(file, view_text(device, "device"));
        fprintf(file, "</th>");
        columns++;
    }
    fprintf(file, "</tr></thead><tbody>\n");
    json_array_foreach(json_object_get(document, "codecs"), i, codec)
    {
        if (json_is_true(json_object_get(codec, "best")) != best) continue;
        if (strcmp(source, view_text(codec, "source")) != 0 ||
            strcmp(isa, view_text(codec, "isa")) != 0 ||
            threads != view_number(codec, "threads", 0)) {
            source = view_text(codec, "source");
            isa = view_text(codec, "isa");
            threads = view_number(codec, "threads", 0);
            fprintf(file, "<tr class=\"group\"><td class=\"left\" colspan=\"%zu\">", columns);
            page_text(file, strcmp(source, "sample") == 0 ? "generated KV" : source);
            fprintf(file, ", %s, %.0f thread%s</td></tr>\n", isa, threads, threads > 1 ? "s" : "");
        }
        show_codec(document, codec, file);
    }
    show_table_end(file);
}

static kvt_status show_codecs(const json_t *document, unsigned *number, FILE *file)
{
    if (show_count(document, "codecs") == 0) return KVT_OK;
    fprintf(file,
            "<h2>Codecs</h2>\n<p class=\"note\">Speeds are of decoded KV through a whole record, "
            "checksums included. A form pays below the bandwidth at which raw bytes are there as "
            "soon: (share of raw - share of the form) / (1 / its decode - 1 / raw's).</p>\n");
    kvt_status status = profile_plot_inline(document, PROFILE_PLOT_CODECS, number, file);
    show_codec_table(document, true, file);
    fprintf(file, "<details><summary>Lesser instruction sets</summary>\n");
    show_codec_table(document, false, file);
    fprintf(file, "</details>\n");
    return status;
}

/* ---- quality ---- */

static void show_set(const json_t *set, FILE *file)
{
    const json_t *curve;
    const char *source = view_text(set, "source");
    size_t i;
    fprintf(file, "<h3>");
    page_text(file, view_text(set, "model"));
    fprintf(file, " on ");
    page_text(file, view_text(set, "class"));
    fprintf(file,
            "</h3>\n<p class=\"note\">%s, %.0f entries of %.0f tokens, %.0f tokens of "
            "continuation%s",
            view_text(set, "method"), view_number(set, "entries", 0),
            view_number(set, "context_tokens", 0), view_number(set, "continuation_tokens", 0),
            view_number(set, "complete", 0) > 0 ? "" : ", interrupted");
    if (view_number(set, "nll_nats", -1) >= 0) {
        fprintf(file, ", exact KV: %.4f nat a token", view_number(set, "nll_nats", 0));
    }
    if (isfinite(view_number(set, "spearman_variants", NAN))) {
        fprintf(file, ", attention error ranks variants with %.3f",
                view_number(set, "spearman_variants", 0));
    }
    if (source[0] != '\0') {
        fprintf(file, "; source: ");
        page_text(file, source);
    }
    fprintf(file, "</p>\n<details open><summary>%zu variants</summary>\n",
            json_array_size(json_object_get(set, "curves")));
    SHOW_TABLE(file, 1, "variant", "bits", "loss", "low", "high", "p90", "KL, nat", "top-1",
               "ROUGE-L", "F1", "answers", "attention error", "metric");
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
