/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the HTML report: what ran, one table, three figures, what is modelled. One file that
 * needs nothing else: no script, no font, no image. One thread.
 */
#include "report_page.h"
#include "results.h"
#include "results_text.h"

#include <math.h>
#include <string.h>

const char page_style[] =
    ":root{--ink:#1c2430;--soft:#667085;--line:#e3e6eb;--paper:#fff;--card:#f7f8fa;"
    "--wait:#b9c0cb;--blocked:#e07b1a;--compute:#2f6fde;--hbm:#b3419a;--dram:#1f9d68;"
    "--ssd:#c2a100}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#98a2b3;--line:#2c3442;"
    "--paper:#11161d;--card:#19202a;--wait:#5b6675}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",sans-serif}\n"
    "main{max-width:1200px;margin:0 auto;padding:32px 24px 64px}\n"
    "h1{font-size:26px;margin:0 0 4px}h2{font-size:17px;margin:40px 0 10px}\n"
    ".lead{color:var(--soft);margin:0 0 22px}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;background:var(--card);"
    "border:1px solid var(--line);border-radius:8px;padding:14px 18px;margin:0}\n"
    "dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px;"
    "font-variant-numeric:tabular-nums}\n"
    "th,td{padding:7px 5px;text-align:right;border-bottom:1px solid var(--line);"
    "white-space:nowrap}th:first-child,td:first-child{text-align:left}\n"
    "th{color:var(--soft);font-weight:600}td:first-child{font-weight:600}\n"
    ".warning{border-left:4px solid var(--blocked);background:var(--card);padding:10px 14px}\n"
    "svg{width:100%;height:auto;display:block}main>.wide svg{min-width:760px}svg text{font:13px "
    "system-ui,sans-serif;"
    "fill:var(--ink)}svg .tick{fill:var(--soft);font-size:12px}svg .name{font-weight:600}\n"
    ".grid{stroke:var(--line);stroke-width:1}.curve{fill:none;stroke-width:2.2;"
    "stroke-linejoin:round}\n"
    "rect.wait{fill:var(--wait)}rect.blocked{fill:var(--blocked)}rect.compute"
    "{fill:var(--compute)}rect.hbm{fill:var(--hbm)}rect.dram{fill:var(--dram)}"
    "rect.ssd{fill:var(--ssd)}\n"
    ".legend{margin:0 0 6px;color:var(--soft);font-size:13px}.legend span{margin-right:18px}"
    ".legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;"
    "vertical-align:-1px}\n"
    "i.wait{background:var(--wait)}i.blocked{background:var(--blocked)}"
    "i.compute{background:var(--compute)}i.hbm{background:var(--hbm)}"
    "i.dram{background:var(--dram)}i.ssd{background:var(--ssd)}\n"
    ".notes{color:var(--soft)}.notes li{margin:4px 0}code{font-size:13px}\n";

/* Length of a well-formed UTF-8 sequence at text, 0 when there is none. */
static size_t page_sequence(const unsigned char *text)
{
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xc2 ? 0
                    : text[0] < 0xe0 ? 2
                    : text[0] < 0xf0 ? 3
                    : text[0] < 0xf5 ? 4
                                     : 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
    }
    if (text[0] == 0xe0 && text[1] < 0xa0) return 0;
    if (text[0] == 0xed && text[1] >= 0xa0) return 0;
    if (text[0] == 0xf0 && text[1] < 0x90) return 0;
    if (text[0] == 0xf4 && text[1] >= 0x90) return 0;
    return length;
}

void page_text(FILE *file, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        size_t length = page_sequence(at);
        if (length == 0 || *at < 0x20 || *at == 0x7f) {
            fputc(*at == '\n' || *at == '\t' ? ' ' : '?', file);
            at++;
            continue;
        }
        switch (*at) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '"': fputs("&quot;", file); break;
        case '\'': fputs("&#39;", file); break;
        default: fwrite(at, 1, length, file);
        }
        at += length;
    }
}

void page_warn_busy(FILE *file)
{
    fprintf(file, "<p class=\"warning\">This machine was busy while it was measured: figures and "
                  "times on this page are too uncertain to compare anything by. Measure again when "
                  "it is quiet.</p>\n");
}

static void page_fact(FILE *file, const char *name, const char *value)
{
    if (value == NULL || value[0] == '\0') return;
    fprintf(file, "<dt>%s</dt><dd>", name);
    page_text(file, value);
    fprintf(file, "</dd>\n");
}

/* What a live run really used, in bytes of this machine. */
static void page_live_tiers(const replay_report *report, FILE *file)
{
    if (report->result_count == 0 || strcmp(report->results[0].mode, "live") != 0) return;
    const replay_result *result = &report->results[0];
    char line[192], bytes[RESULTS_TEXT_BYTES];
    snprintf(line, sizeof line, "1/%.4g of bytes and seconds", 1.0 / result->scale);
    page_fact(file, "scale", line);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (result->capacity_bytes[tier] == 0) continue;
        snprintf(line, sizeof line, "%s%s",
                 results_format_bytes((double)result->capacity_bytes[tier], bytes),
                 result->emulated[tier] ? ", emulated on this machine" : "");
        page_fact(file, kvt_tier_name(tier), line);
    }
}

static void page_tiers(const replay_report *report, FILE *file)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        const replay_tier *model = &report->options->tiers[tier];
        char line[192], bytes[RESULTS_TEXT_BYTES], read[RESULTS_TEXT_BYTES];
        char write[RESULTS_TEXT_BYTES], fixed[RESULTS_TEXT_BYTES];
        if (model->capacity_bytes == 0) continue;
        snprintf(line, sizeof line, "%s, reads at %s/s, writes at %s/s, %s per request",
                 results_format_bytes((double)model->capacity_bytes, bytes),
                 results_format_bytes(model->read.bytes_per_s, read),
                 results_format_bytes(model->write.bytes_per_s, write),
                 results_format_seconds(model->read.request_seconds, fixed));
        page_fact(file, kvt_tier_name(tier), line);
    }
}

static void page_facts(const replay_report *report, FILE *file)
{
    const replay_workload *workload = report->workload;
    const replay_options *options = report->options;
    char line[256], bytes[RESULTS_TEXT_BYTES], per_token[RESULTS_TEXT_BYTES];
    fprintf(file, "<dl>\n");
    snprintf(line, sizeof line, "%s: %llu requests, %llu references to %llu blocks of %u tokens",
             workload->name, (unsigned long long)workload->request_count,
             (unsigned long long)workload->block_refs,
             (unsigned long long)workload->distinct_blocks, workload->block_tokens);
    page_fact(file, "workload", line);
    double footprint = (double)workload->distinct_blocks * (double)workload->block_tokens *
                       (double)options->bytes_per_token;
    double ideal = workload->block_refs > 0
                       ? (double)workload->repeated_refs / (double)workload->block_refs
                       : 0.0;
    snprintf(line, sizeof line, "%s at %s a token; an unlimited cache hits %.1f %% of the blocks",
             results_format_bytes(footprint, bytes),
             results_format_bytes((double)options->bytes_per_token, per_token), ideal * 100.0);
    page_fact(file, "footprint", line);
    snprintf(line, sizeof line, "%u, prefill %s, %s", options->servers, options->prefill_name,
             options->overlap ? "loads overlap the prefill layer by layer"
                              : "loads precede the prefill");
    page_fact(file, "servers", line);
    page_tiers(report, file);
    page_live_tiers(report, file);
    snprintf(line, sizeof line, "alpha %.3g s, half-life %.4g s, hysteresis %.3g, holes %s",
             options->alpha_seconds, options->half_life_seconds, options->hysteresis,
             options->holes == KVT_HOLES_MIXED ? "mixed" : "contiguous");
    page_fact(file, "policy", line);
    snprintf(line, sizeof line, "%llu", (unsigned long long)options->seed);
    page_fact(file, "seed", line);
    page_fact(file, "profile", options->profile);
    page_fact(file, "machine", report->machine);
    page_fact(file, "version", report->version);
    page_fact(file, "date", report->date);
    page_fact(file, "command", report->command);
    fprintf(file, "</dl>\n");
}

static void page_cell_seconds(FILE *file, double seconds)
{
    char text[RESULTS_TEXT_BYTES];
    fprintf(file, "<td>%s</td>", results_format_seconds(seconds, text));
}

static void page_row(const replay_report *report, size_t index, FILE *file)
{
    const replay_result *result = &report->results[index];
    const replay_times *times = &result->times;
    bool stable = results_has_mean(result);
    char label[64], text[RESULTS_TEXT_BYTES];
    double read = 0.0, written = 0.0;
    page_label(report, index, label, sizeof label);
    fprintf(file, "<tr><td>");
    page_text(file, label);
    fprintf(file, "</td>");
    page_cell_seconds(file, stable ? times->ttft_mean : NAN);
    page_cell_seconds(file, times->ttft_p50);
    page_cell_seconds(file, times->ttft_p90);
    if (results_has_p99(report)) page_cell_seconds(file, times->ttft_p99);
    page_cell_seconds(file, stable ? times->wait_mean : NAN);
    page_cell_seconds(file, times->blocked_mean);
    page_cell_seconds(file, result->put_mean_s);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        read += (double)result->bytes_read[tier];
        written += (double)result->bytes_written[tier];
    }
    fprintf(file, "<td>%.3f</td><td>%.3f</td><td>%.1f %%</td><td>%.1f %%</td><td>%.1f %%</td>",
            result->rho, result->rho_peak, result->hit_block_ratio[0] * 100.0,
            result->hit_token_ratio[0] * 100.0, result->used_token_ratio * 100.0);
    fprintf(file, "<td>%s</td>", results_format_bytes(read, text));
    fprintf(file, "<td>%s</td>", results_format_bytes(written, text));
    fprintf(file, "<td>%llu</td><td>%llu ns</td></tr>\n", (unsigned long long)result->moves_aborted,
            (unsigned long long)result->decision_ns_p50);
}

static void page_table(const replay_report *report, FILE *file)
{
    static const char *const heads[] = {
        "policy",  "TTFT mean", "p50",      "p90",           "p99",        "wait",
        "blocked", "put",       "load rho", "peak rho",      "block hits", "token hits",
        "loaded",  "read",      "written",  "moves aborted", "decision"};
    fprintf(file, "<div class=\"wide\"><table><thead><tr>");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        if (strcmp(heads[i], "p99") == 0 && !results_has_p99(report)) continue;
        fprintf(file, "<th>%s</th>", heads[i]);
    }
    fprintf(file, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < report->result_count; i++)
        page_row(report, i, file);
    fprintf(file, "</tbody></table></div>\n");
}

static const char page_notes_sim[] =
    "<li>Simulated in virtual time: no byte is moved. Servers, prefill, and each tier's read and "
    "write path are models; devices are affine, seconds per request plus bytes over "
    "bandwidth.</li>\n"
    "<li>A server is busy from the start of a request's service to its first token. Decoding of "
    "answers runs elsewhere and is not part of these times.</li>\n"
    "<li>Loading stops where recomputing the rest is faster, so a token that is found need not be "
    "loaded.</li>\n"
    "<li>A move for a path that has fallen too far behind is aborted with the rest of its "
    "plan.</li>\n";

static const char page_notes_live[] =
    "<li>Live: a real store, real bytes on this machine's devices, every byte read compared with "
    "what was put. Prefill is waited for, not computed.</li>\n"
    "<li>Bytes, prefill and arrivals are scaled by the same factor; times are shown divided by it, "
    "so that they compare with the unscaled workload: a millisecond that another process takes "
    "counts as many. A server is busy until it has put what was missing, and the load rho counts "
    "that.</li>\n"
    "<li>Each policy began with the same copy of the profile. Which tokens were found is decided "
    "by "
    "the policy and its room; times are decided by this machine as well, so differences between "
    "them count when they repeat with the policies in the other order.</li>\n";

/* What a live run takes without storing anything. */
static void page_note_machine(const replay_report *report, FILE *file)
{
    bool none = false;
    for (size_t i = 0; i < report->result_count; i++)
        none |= strcmp(report->results[i].policy, "none") == 0;
    fprintf(file,
            "<li>What this machine adds by itself, by waking late and by making and checking "
            "the bytes, is %s.</li>\n",
            none ? "in the row of the policy \"none\", whose blocked time is no load: it loads "
                   "nothing"
                 : "part of all times; a run of the policy \"none\" shows it");
}

static void page_notes(const replay_report *report, FILE *file)
{
    bool sim = false, live = false;
    fprintf(file, "<h2>How to read this</h2>\n<ul class=\"notes\">\n");
    for (size_t i = 0; i < report->result_count; i++) {
        if (strcmp(report->results[i].mode, "live") == 0) {
            live = true;
        } else {
            sim = true;
        }
    }
    char notes[3][RESULTS_NOTE_BYTES];
    size_t count = results_workload_notes(report->workload, notes, 3);
    for (size_t i = 0; i < count; i++) {
        fprintf(file, "<li>");
        page_text(file, notes[i]);
        fprintf(file, ".</li>\n");
    }
    if (sim) fputs(page_notes_sim, file);
    if (live) fputs(page_notes_live, file);
    if (live) page_note_machine(report, file);
    for (size_t i = 0; i < report->result_count; i++) {
        const replay_result *result = &report->results[i];
        if (strcmp(result->mode, "live") != 0) continue;
        fprintf(file, "<li>");
        page_text(file, result->policy);
        fprintf(file, ": %llu gets verified, %llu wrong; %llu moves committed, %llu aborted, %s",
                (unsigned long long)result->verified_gets, (unsigned long long)result->wrong_bytes,
                (unsigned long long)result->moves_committed,
                (unsigned long long)result->moves_aborted,
                result->moves_match ? "as the store counts them" : "unlike the store's counters");
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            if (result->emulated[tier]) fprintf(file, "; %s is emulated", kvt_tier_name(tier));
        }
        fprintf(file, ".</li>\n");
    }
    fprintf(file,
            "<li>Block hits count every resident block of a path, token hits its leading run "
            "alone. Wait is the queue before a server; blocked is load time that no computing "
            "hides. rho is the load offered over the whole span, peak rho that of its busiest part "
            "(a tenth, or what holds 200 requests); at 1 and above the queue grows as long as that "
            "lasts, and no mean is shown.</li>\n");
    if (report->options->note[0] != '\0') {
        fprintf(file, "<li>");
        page_text(file, report->options->note);
        fprintf(file, "</li>\n");
    }
    fprintf(file, "</ul>\n");
}

kvt_status replay_print_html(const replay_report *report, FILE *file)
{
    fprintf(file, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                  "<title>kvterrace replay: ");
    page_text(file, report->workload->name);
    fprintf(file, "</title>\n<style>\n%s</style></head><body><main>\n", page_style);
    fprintf(file,
            "<h1>kvterrace replay</h1>\n<p class=\"lead\">Time to first token of the same "
            "requests, %zu %s</p>\n",
            report->result_count, report->result_count == 1 ? "run" : "runs");
    if (report->profile_busy) page_warn_busy(file);
    page_facts(report, file);
    fprintf(file, "<h2>Results</h2>\n");
    page_table(report, file);
    if (report->result_count > 0) {
        fprintf(file, "<h2>Mean time to first token</h2>\n<div class=\"wide\">");
        page_bars_ttft(report, file);
        fprintf(file, "</div>\n<h2>Tokens found, by tier</h2>\n<div class=\"wide\">");
        page_bars_hits(report, file);
        fprintf(file, "</div>\n<h2>Requests answered within a time</h2>\n<div class=\"wide\">");
        page_curves_ttft(report, file);
        fprintf(file, "</div>\n");
        page_regrets(report, file);
    }
    page_notes(report, file);
    fprintf(file, "</main></body></html>\n");
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}
