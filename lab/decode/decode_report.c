/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_report.c - the results as tables or as JSON, schema "kvterrace-bench-decode-1". No state.
 */
#include "decode.h"

#include <math.h>
#include <string.h>

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

typedef struct figures {
    double error, recall, bytes, grain_bytes, hit_ratio;
} figures;

/* Of all units; bytes are of one step over all of them. */
static figures figures_of(const decode_results *results, const decode_result *row)
{
    const double steps = row->steps > 0 ? row->steps : 1.0;
    return (figures){.error = sqrt(row->error / results->exact_energy),
                     .recall = row->recall / (steps * row->units),
                     .bytes = row->bytes / steps,
                     .grain_bytes = row->grain_bytes / steps,
                     .hit_ratio =
                         row->wanted_bytes > 0.0 ? row->hit_bytes / row->wanted_bytes : NAN};
}

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *row_json(const decode_results *results, const decode_result *row)
{
    const figures f = figures_of(results, row);
    char layout[32], evict[48];
    decode_layout_name(&row->config, &results->paging, layout, sizeof layout);
    evict_of(&row->config, evict, sizeof evict);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:f, s:o}", "dump",
                     results->source.name, "index", decode_index_name(row->config.index), "evict",
                     evict, "layout", layout, "precision", precision_of(row->config.variants),
                     "estimate", (int)row->config.estimate, "budget", row->config.budget,
                     "bytes_per_step", f.bytes, "block_bytes_per_step", f.grain_bytes, "recall",
                     f.recall, "error", f.error, "hit_ratio", number_or_null(f.hit_ratio));
}

static json_t *windows_json(const decode_results *results)
{
    json_t *list = json_array();
    const decode_windows *w = results->windows;
    for (uint32_t b = 0; b < WINDOW_BUDGETS; b++)
        for (uint32_t s = 0; s < WINDOW_SIZES; s++) {
            double ratio;
            if (decode_window_sizes[s] != 2.0 && decode_window_sizes[s] != 3.0) continue;
            json_t *row = json_pack("{s:s, s:f, s:f}", "dump", results->source.name, "budget",
                                    decode_window_budgets[b], "window", decode_window_sizes[s]);
            for (uint32_t r = 0; r <= WINDOWS_RULES; r++)
                (void)json_object_set_new(row, rule_names[r],
                                          number_or_null(w->hit[b][s][r] / w->wanted[b]));
            if (decode_windows_knapsack(w, b, s, &ratio) == KVT_OK)
                (void)json_object_set_new(row, "knapsack_bytes", json_real(ratio));
            (void)json_array_append_new(list, row);
        }
    return list;
}

static json_t *cost_json(const decode_cost *c)
{
    if (c->tokens == 0) return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                     "tokens", (json_int_t)c->tokens, "kv_heads", (json_int_t)c->kv_heads, "group",
                     (json_int_t)c->group, "clusters", (json_int_t)c->clusters, "select_ms_p50",
                     c->select_ms_p50, "select_ms_p99", c->select_ms_p99, "score_ms", c->score_ms,
                     "choose_ms", c->choose_ms, "estimate_ms", c->estimate_ms, "build_tokens_per_s",
                     c->build_tokens_per_s, "index_share", c->index_share, "code_share",
                     c->code_share, "open_share", c->open_share, "recall", c->recall,
                     "recall_lower", c->recall_lower);
}

static void report_json(const decode_options *options, const decode_results *results,
                        uint32_t count, const decode_cost *cost)
{
    json_t *rows = json_array(), *windows = json_array(), *sources = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const decode_results *r = &results[i];
        for (uint32_t k = 0; k < r->count; k++)
            (void)json_array_append_new(rows, row_json(r, &r->rows[k]));
        json_t *list = windows_json(r);
        (void)json_array_extend(windows, list);
        json_decref(list);
        (void)json_array_append_new(
            sources, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "dump",
                               r->source.name, "layers", (json_int_t)r->source.layers, "kv_heads",
                               (json_int_t)r->source.kv_heads, "group", (json_int_t)r->source.group,
                               "head_dim", (json_int_t)r->source.head_dim, "tokens",
                               (json_int_t)r->source.tokens, "steps", (json_int_t)r->source.rows,
                               "index_share", r->index_share, "code_share", r->code_share,
                               "build_tokens_per_s", r->build_tokens_per_s));
    }
    json_t *document =
        json_pack("{s:s, s:I, s:o, s:o, s:o, s:o}", "schema", "kvterrace-bench-decode-1", "seed",
                  (json_int_t)options->seed, "sources", sources, "rows", rows, "windows", windows,
                  "cost", cost_json(cost));
    (void)json_dumpf(document, options->out, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    fputc('\n', options->out);
    json_decref(document);
}

static void report_source(FILE *out, const decode_results *r)
{
    fprintf(out,
            "\n%s: %u layers, %u KV heads of %u, %u queries each; %u tokens, %u steps; index %.1f "
            "%% and code %.1f %% of the KV; %.2f M tokens/s built\n",
            r->source.name, r->source.layers, r->source.kv_heads, r->source.head_dim,
            r->source.group, r->source.tokens, r->source.rows, 100.0 * r->index_share,
            100.0 * r->code_share, r->build_tokens_per_s * 1e-6);
    fprintf(out, "%-15s %-9s %-6s %-4s %-18s %7s %10s %10s %7s %8s %6s\n", "index", "layout",
            "bits", "est", "window", "budget", "KiB/step", "in blocks", "recall", "error", "hits");
    for (uint32_t k = 0; k < r->count; k++) {
        const decode_result *row = &r->rows[k];
        const figures f = figures_of(r, row);
        char layout[32], evict[48];
        decode_layout_name(&row->config, &r->paging, layout, sizeof layout);
        evict_of(&row->config, evict, sizeof evict);
        fprintf(out, "%-15s %-9s %-6s %-4s %-18s %6.2f%% %10.1f %10.1f %7.3f %8.4f ",
                decode_index_name(row->config.index), layout, precision_of(row->config.variants),
                row->config.estimate ? "yes" : "no", evict, 100.0 * row->config.budget,
                f.bytes / 1024.0, f.grain_bytes / 1024.0, f.recall, f.error);
        if (isfinite(f.hit_ratio))
            fprintf(out, "%6.3f\n", f.hit_ratio);
        else
            fprintf(out, "%6s\n", "-");
    }
}

static void report_windows(FILE *out, const decode_results *r)
{
    const decode_windows *w = r->windows;
    fprintf(out, "\n%-8s %-7s", "budget", "window");
    for (uint32_t i = 0; i <= WINDOWS_RULES; i++)
        fprintf(out, " %9s", rule_names[i]);
    fprintf(out, " %9s\n", "knapsack");
    for (uint32_t b = 0; b < WINDOW_BUDGETS; b++)
        for (uint32_t s = 0; s < WINDOW_SIZES; s++) {
            double ratio = NAN;
            if (decode_window_sizes[s] != 2.0 && decode_window_sizes[s] != 3.0) continue;
            fprintf(out, "%6.2f%% x%-6g", 100.0 * decode_window_budgets[b], decode_window_sizes[s]);
            for (uint32_t i = 0; i <= WINDOWS_RULES; i++)
                fprintf(out, " %9.4f", w->hit[b][s][i] / w->wanted[b]);
            if (decode_windows_knapsack(w, b, s, &ratio) == KVT_OK) fprintf(out, " %9.3f\n", ratio);
        }
}

void decode_report(const decode_options *options, const decode_results *results, uint32_t count,
                   const decode_cost *cost)
{
    if (options->json) {
        report_json(options, results, count, cost);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        report_source(options->out, &results[i]);
        report_windows(options->out, &results[i]);
    }
    if (cost->tokens == 0) return;
    fprintf(
        options->out,
        "\nselect of one layer at %u tokens, %u KV heads x %u queries: p50 %.3f ms, p99 %.3f ms "
        "(scores %.3f, choice %.3f); estimate %.3f ms\nindex %.2f %% and code %.2f %% of the KV; "
        "build %.2f M tokens/s per KV head and core; a step scores %.1f %% of the clusters: recall "
        "%.4f, with all of them %.4f\n",
        cost->tokens, cost->kv_heads, cost->group, cost->select_ms_p50, cost->select_ms_p99,
        cost->score_ms, cost->choose_ms, cost->estimate_ms, 100.0 * cost->index_share,
        100.0 * cost->code_share, cost->build_tokens_per_s * 1e-6, 100.0 * cost->open_share,
        cost->recall, cost->recall_lower);
}
