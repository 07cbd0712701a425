/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_report.c - the report of the decode case. No state.
 */
#include "decode.h"

#include <math.h>

static const char *const rule_names[WINDOWS_RULES + 1] = {"decayed", "lookahead", "lru",
                                                          "fifo",    "lfu",       "belady"};

static const char *precision_of(uint32_t variants)
{
    switch (variants) {
    case 1u << PAGES_RAW: return "16";
    case 1u << PAGES_BITS_8: return "8";
    case 1u << PAGES_BITS_4 | 1u << PAGES_BITS_8: return "4/8";
    case 1u << PAGES_BITS_2 | 1u << PAGES_BITS_4 | 1u << PAGES_BITS_8: return "2/4/8";
    default: return "other";
    }
}

static void evict_of(const decode_config *config, char *text, size_t size)
{
    if (config->window <= 0.0)
        (void)snprintf(text, size, "none");
    else
        (void)snprintf(text, size, "%s x%g%s", rule_names[config->rule], config->window,
                       config->windows_attend ? "" : " apart");
}

/* Of all units; bytes are of one step over all of them. */
static json_t *row_json(const decode_results *results, const decode_result *row)
{
    const double steps = row->steps > 0 ? row->steps : 1.0;
    char layout[32], evict[48];
    decode_layout_name(&row->config, &results->paging, layout, sizeof layout);
    evict_of(&row->config, evict, sizeof evict);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:f, s:o}", "dump",
        results->source.name, "index", decode_index_name(row->config.index), "evict", evict,
        "layout", layout, "precision", precision_of(row->config.variants), "estimate",
        (int)row->config.estimate, "budget", row->config.budget, "bytes_per_step",
        row->bytes / steps, "block_bytes_per_step", row->grain_bytes / steps, "recall",
        row->recall / (steps * row->units), "error", sqrt(row->error / results->exact_energy),
        "hit_ratio",
        bench_number(row->wanted_bytes > 0.0 ? row->hit_bytes / row->wanted_bytes : NAN));
}

static void report_windows(bench_report *report, const decode_results *results)
{
    const decode_windows *w = &results->windows;
    for (uint32_t i = 0; i < WINDOW_BUDGETS * WINDOW_SIZES; i++) {
        const uint32_t b = i / WINDOW_SIZES, s = i % WINDOW_SIZES;
        json_t *row = json_pack("{s:s, s:f, s:f}", "dump", results->source.name, "budget",
                                decode_window_budgets[b], "window", decode_window_sizes[s]);
        for (uint32_t r = 0; r <= WINDOWS_RULES; r++)
            (void)json_object_set_new(row, rule_names[r],
                                      bench_number(w->hit[b][s][r] / w->wanted[b]));
        bench_report_row(report, "windows", row);
    }
}

static void report_halves(bench_report *report, const decode_results *results)
{
    static const char *const names[DECODE_HALVES] = {"page", "cluster", "single", "oracle"};
    const decode_halves *h = &results->halves;
    for (uint32_t i = 0; i < DECODE_HALVES * HALF_BUDGETS && h->steps > 0; i++) {
        const uint32_t unit = i / HALF_BUDGETS, b = i % HALF_BUDGETS;
        bench_report_row(report, "halves",
                         json_pack("{s:s, s:s, s:f, s:f, s:f}", "dump", results->source.name,
                                   "unit", names[unit], "budget", decode_budgets[b + 2], "recall",
                                   h->recall[unit][b] / h->steps, "error",
                                   sqrt(h->error[unit][b] / h->energy)));
    }
}

static json_t *cost_json(const decode_cost *c)
{
    if (c->tokens == 0) return json_null();
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:f, s:f}",
        "tokens", (json_int_t)c->tokens, "kv_heads", (json_int_t)c->kv_heads, "group",
        (json_int_t)c->group, "clusters", (json_int_t)c->clusters, "select_ms_p50",
        c->select_ms_p50, "select_ms_p99", c->select_ms_p99, "score_ms", c->score_ms, "choose_ms",
        c->choose_ms, "estimate_ms", c->estimate_ms, "build_tokens_per_s", c->build_tokens_per_s,
        "index_share", c->index_share, "code_share", c->code_share, "axes", c->axes, "full_share",
        c->full_share, "recall", c->recall, "recall_one_pass", c->recall_one_pass, "single_ms",
        c->single_ms, "single_tokens_per_s", c->single_tokens_per_s, "single_share",
        c->single_share);
}

void decode_report(const decode_results *results, uint32_t count, const decode_cost *cost,
                   bench_report *report)
{
    for (const decode_results *r = results; r < results + count; r++)
        bench_report_row(
            report, "sources",
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "dump", r->source.name,
                      "layers", (json_int_t)r->source.layers, "kv_heads",
                      (json_int_t)r->source.kv_heads, "group", (json_int_t)r->source.group,
                      "head_dim", (json_int_t)r->source.head_dim, "tokens",
                      (json_int_t)r->source.tokens, "steps", (json_int_t)r->source.rows,
                      "index_share", r->index_share, "code_share", r->code_share,
                      "build_tokens_per_s", r->build_tokens_per_s));
    for (const decode_results *r = results; r < results + count; r++)
        for (uint32_t k = 0; k < r->count; k++)
            bench_report_row(report, "rows", row_json(r, &r->rows[k]));
    for (const decode_results *r = results; r < results + count; r++)
        report_windows(report, r);
    for (const decode_results *r = results; r < results + count; r++)
        report_halves(report, r);
    bench_report_set(report, "cost", cost_json(cost));
}
