/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_configs.c - the configurations of a run, and the walk over a source's units.
 */
#include "decode.h"

#include <stdlib.h>
#include <string.h>

#define RAW    (1u << PAGES_RAW)
#define BITS_8 (1u << PAGES_BITS_8)
#define BITS_4 (1u << PAGES_BITS_4)
#define BITS_2 (1u << PAGES_BITS_2)

const double decode_budgets[DECODE_BUDGETS] = {0.0039, 0.0078, 0.0156, 0.0312, 0.0625, 0.125};

/* Budgets from .. to of each row; the first rows are the rivals. */
static const struct {
    decode_config config;
    uint32_t from, to;
} decode_rows[] = {
    {{.index = DECODE_ORACLE, .layout = DECODE_TOKENS, .variants = RAW}, 2, 5},
    {{.index = DECODE_ORACLE, .layout = DECODE_RUNS, .run = 16, .variants = RAW}, 2, 5},
    {{.index = DECODE_QUEST, .layout = DECODE_RUNS, .run = 16, .variants = RAW}, 2, 5},
    {{.index = DECODE_QUEST, .layout = DECODE_RUNS, .run = 4, .variants = RAW}, 2, 5},
    {{.index = DECODE_MEAN, .layout = DECODE_RUNS, .run = 16, .variants = RAW}, 2, 5},
    {{.index = DECODE_MEAN, .layout = DECODE_RUNS, .run = 4, .variants = RAW}, 2, 5},
    {{.index = DECODE_CHUNK_MEAN, .layout = DECODE_RUNS, .run = 4, .variants = RAW}, 2, 5},
    {{.index = DECODE_REPRESENTATIVE, .layout = DECODE_RUNS, .run = 128, .variants = RAW}, 2, 5},
    {{.index = DECODE_COACTIVE, .layout = DECODE_CLUSTERS, .variants = RAW}, 2, 5},
    {{.index = DECODE_CENTROID, .layout = DECODE_CLUSTERS, .variants = RAW}, 2, 5},
    {{.index = DECODE_CENTROID, .layout = DECODE_CLUSTERS, .variants = RAW, .estimate = true},
     2,
     5},
    {{.index = DECODE_CENTROID,
      .layout = DECODE_PAGES,
      .variants = BITS_4 | BITS_8,
      .estimate = true},
     0,
     6},
    {{.index = DECODE_CLUSTER, .layout = DECODE_CLUSTERS, .variants = RAW}, 0, 6},
    {{.index = DECODE_CLUSTER, .layout = DECODE_CLUSTERS, .variants = RAW, .estimate = true}, 0, 6},
    {{.index = DECODE_CLUSTER, .layout = DECODE_CLUSTERS, .variants = BITS_8, .estimate = true},
     2,
     5},
    {{.index = DECODE_CLUSTER, .layout = DECODE_CLUSTERS, .variants = BITS_4 | BITS_8}, 2, 5},
    {{.index = DECODE_CLUSTER,
      .layout = DECODE_CLUSTERS,
      .variants = BITS_4 | BITS_8,
      .estimate = true},
     0,
     6},
    {{.index = DECODE_CLUSTER,
      .layout = DECODE_CLUSTERS,
      .variants = BITS_2 | BITS_4 | BITS_8,
      .estimate = true},
     2,
     5},
    {{.index = DECODE_CLUSTER, .layout = DECODE_PAGES, .variants = RAW}, 2, 5},
    {{.index = DECODE_CLUSTER, .layout = DECODE_PAGES, .variants = RAW, .estimate = true}, 2, 5},
    {{.index = DECODE_CLUSTER,
      .layout = DECODE_PAGES,
      .variants = BITS_4 | BITS_8,
      .estimate = true},
     0,
     6},
    {{.index = DECODE_CLUSTER, .layout = DECODE_CLUSTERS, .variants = RAW, .window = 2}, 3, 5},
    {{.index = DECODE_CLUSTER,
      .layout = DECODE_CLUSTERS,
      .variants = RAW,
      .window = 2,
      .windows_attend = true},
     3,
     5},
    {{.index = DECODE_CLUSTER,
      .layout = DECODE_PAGES,
      .variants = BITS_4 | BITS_8,
      .estimate = true,
      .window = 2,
      .windows_attend = true},
     2,
     5},
};
enum { DECODE_ROW_COUNT = sizeof decode_rows / sizeof decode_rows[0] };

const char *decode_index_name(decode_index index)
{
    static const char *const names[DECODE_INDEXES] = {"cluster",        "centroid", "oracle",
                                                      "quest",          "mean",     "chunk-mean",
                                                      "representative", "coactive"};
    return names[index];
}

void decode_layout_name(const decode_config *config, const sparse_paging *paging, char *text,
                        size_t size)
{
    if (config->layout == DECODE_TOKENS)
        (void)snprintf(text, size, "token");
    else if (config->layout == DECODE_CLUSTERS)
        (void)snprintf(text, size, "cluster");
    else if (config->layout == DECODE_PAGES)
        (void)snprintf(text, size, "page%u", paging->page_tokens);
    else
        (void)snprintf(text, size, "run%u", config->run);
}

kvt_status decode_configs(decode_results *results)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < DECODE_ROW_COUNT; i++)
        count += decode_rows[i].to - decode_rows[i].from;
    results->rows = calloc(count, sizeof *results->rows);
    if (results->rows == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < DECODE_ROW_COUNT; i++)
        for (uint32_t b = decode_rows[i].from; b < decode_rows[i].to; b++) {
            decode_result *row = &results->rows[results->count++];
            row->config = decode_rows[i].config;
            row->config.budget = decode_budgets[b];
        }
    return KVT_OK;
}

/* Neighbouring rows share their items. */
static kvt_status unit_rows(decode_unit *unit, decode_results *results)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < results->count;) {
        const decode_config *config = &results->rows[i].config;
        decode_choice choice;
        status = decode_choice_open(unit, config->index, config->layout, config->run, &choice);
        for (; i < results->count; i++) {
            const decode_config *next = &results->rows[i].config;
            if (next->index != config->index || next->layout != config->layout ||
                next->run != config->run)
                break;
            if (status == KVT_OK) status = decode_config_run(unit, &choice, &results->rows[i]);
        }
        decode_choice_close(&choice);
    }
    return status;
}

static kvt_status unit_run(decode_unit *unit, decode_results *results)
{
    const double kv = (double)unit->zone * unit->dim * 4.0;
    decode_choice choice;
    kvt_status status = unit_rows(unit, results);
    if (status != KVT_OK) return status;
    results->exact_energy += unit->exact_energy;
    results->index_share += (double)(unit->index.bytes + unit->index.slope_bytes) / kv;
    results->code_share += (double)unit->code_bytes / kv;
    results->build_tokens_per_s += unit->zone / (unit->build_seconds + 1e-9);
    results->paging = unit->paging;
    status = decode_choice_open(unit, DECODE_CLUSTER, DECODE_CLUSTERS, 0, &choice);
    if (status == KVT_OK) status = decode_windows_unit(unit, &choice, &results->windows);
    decode_choice_close(&choice);
    return status == KVT_OK ? decode_half_unit(unit, &results->halves) : status;
}

static kvt_status source_run(const bench_options *common, decode_results *results, double done,
                             double parts)
{
    const decode_source *source = &results->source;
    const uint32_t units = source->layers * source->kv_heads;
    kvt_status status = decode_configs(results);
    for (uint32_t u = 0; status == KVT_OK && u < units; u++) {
        decode_unit unit;
        if (!bench_tell(common, done + (double)u / units, parts, source->name))
            return KVT_E_CANCELLED;
        status = decode_unit_open(source, common->own, u / source->kv_heads, u % source->kv_heads,
                                  &unit);
        if (status == KVT_OK) status = unit_run(&unit, results);
        decode_unit_close(&unit);
    }
    results->index_share /= units;
    results->code_share /= units;
    results->build_tokens_per_s /= units;
    return status;
}

static kvt_status decode_run(const bench_options *common, bench_report *report)
{
    const decode_options *options = common->own;
    const uint32_t count = options->dump_count + (options->synthetic ? 1u : 0u);
    decode_results *results = calloc(count + 1u, sizeof *results);
    decode_cost cost = {.tokens = 0};
    kvt_status status = results != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
        if (i < options->dump_count)
            status = decode_source_dump(options->dumps[i], options->rows, &results[i].source,
                                        report->message, BENCH_MESSAGE_BYTES);
        else
            decode_source_synthetic(options->layers, options->tokens,
                                    options->rows > 0 ? options->rows : 32, options->seed,
                                    &results[i].source);
        if (status != KVT_OK) break;
        status = source_run(common, &results[i], i, count + (options->cost ? 1.0 : 0.0));
        decode_source_close(&results[i].source);
    }
    if (status == KVT_OK && options->cost) status = decode_cost_measure(options, &cost);
    if (status == KVT_OK) {
        bench_report_set(report, "seed", json_integer((json_int_t)options->seed));
        decode_report(results, count, &cost, report);
    }
    for (uint32_t i = 0; results != NULL && i < count; i++)
        free(results[i].rows);
    free(results);
    return status;
}

const bench_case bench_decode_case = {
    .name = "decode",
    .schema = "kvterrace-bench-decode-1",
    .tables =
        (const document_table[]){
            {"sources", "dump layers kv_heads group head_dim tokens steps index_share "
                        "code_share build_tokens_per_s"},
            {"rows", "dump index layout precision estimate evict budget "
                     "bytes_per_step block_bytes_per_step recall error hit_ratio"},
            {"windows", "dump budget window decayed lookahead lru fifo lfu belady"},
            {"halves", "dump unit budget recall error"},
            {"cost", "tokens select_ms_p50 select_ms_p99 score_ms choose_ms "
                     "estimate_ms build_tokens_per_s index_share code_share "
                     "axes full_share recall recall_one_pass single_ms "
                     "single_tokens_per_s single_share"},
            {0}},
    .run = decode_run,
};
