/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size_print.c - what kvterrace size found, as a document, and as words with tables of it. One
 * thread.
 */
#include "size.h"

#include "replay/document.h"
#include "replay/results.h"

#include <inttypes.h>
#include <stdarg.h>

const char *tools_size_format_bytes(char text[SIZE_TEXT_BYTES], uint64_t bytes)
{
    if (bytes == 0) return "none";
    if (bytes % (UINT64_C(1) << 30) != 0) return results_format_bytes((double)bytes, text);
    (void)snprintf(text, SIZE_TEXT_BYTES, "%" PRIu64 " GiB", bytes >> 30);
    return text;
}

/* What was assumed, and the option that changes it. */
__attribute__((format(printf, 3, 4))) static void print_assume(json_t *rows, const char *option,
                                                               const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)json_array_append_new(
        rows, json_pack("{s:s, s:o}", "option", option, "assumed", view_string(text)));
}

static json_t *print_assumptions(const size_study *study)
{
    json_t *rows = json_array();
    const replay_options *options = &study->options;
    kvt_prefill preset;
    const bool calculated = kvt_prefill_preset_get(options->prefill_name, &preset) == KVT_OK;
    print_assume(rows, "--model, --gpu", "prefill of %s%s, %" PRIu64 " bytes of KV a token",
                 options->prefill_name, calculated ? ", calculated from FLOPs" : "",
                 options->bytes_per_token);
    print_assume(rows, "--servers", "%" PRIu32 " servers, a GPU each", options->servers);
    if (options->ladder[0] == '\0')
        print_assume(rows, "--set store.ladder", "exact variants alone, no loss");
    else
        print_assume(rows, "--set store.loss_limit", "no variant with a loss above %.4g",
                     options->loss_limit);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        const replay_tier *model = &options->tiers[tier];
        if (model->capacity_bytes > 0)
            print_assume(rows, "--machine, --config",
                         "%s of any size reads at %.3g GB/s and writes at %.3g GB/s (%s)",
                         kvt_tier_name(tier), model->read.bytes_per_s * 1e-9,
                         model->write.bytes_per_s * 1e-9,
                         model->source[0] != '\0' ? model->source : "by default");
    }
    print_assume(rows, "--limit", "%s %" PRIu64 " requests, which stand for every day",
                 study->options.limit > 0 ? "the first" : "all", study->requests);
    if (study->workload.conversations_per_s > 0.0)
        print_assume(rows, "--set workload.rate",
                     "%g conversations begin in a second, as the trace has no common clock",
                     study->workload.conversations_per_s);
    if (study->sampled > 0)
        print_assume(rows, "--sample",
                     "%" PRIu32 " of %" PRIu32 " sessions, in %.3g of the room and of %.3g of the "
                     "time, so that room, working set and load keep their proportions",
                     study->sampled, study->sessions, study->room, study->pace);
    if (study->workload.merged > 1)
        print_assume(rows, "--sample 1",
                     "%" PRIu32 " of the trace's blocks are one of %" PRIu32
                     " tokens, which an engine's chunk should have too",
                     study->workload.merged, study->workload.block_tokens);
    print_assume(rows, "--price", "$%g a GB of DRAM and $%g a GB of SSD a month, $%g a GPU hour",
                 study->prices[SIZE_DRAM], study->prices[SIZE_SSD], study->prices[SIZE_AXES]);
    if (study->draws > 1)
        print_assume(rows, "--draws", "intervals of 95 %% from %" PRIu32 " %s", study->draws,
                     study->generator != NULL ? "other seeds" : "draws of the sessions");
    return rows;
}

static json_t *print_run(const size_run *run, const size_run *advised)
{
    char cell[2 * SIZE_TEXT_BYTES + 4], size[SIZE_AXES][SIZE_TEXT_BYTES];
    (void)snprintf(cell, sizeof cell, run->policy == SIZE_NONE ? "no cache" : "%s + %s",
                   tools_size_format_bytes(size[SIZE_DRAM], run->bytes[SIZE_DRAM]),
                   tools_size_format_bytes(size[SIZE_SSD], run->bytes[SIZE_SSD]));
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:b, s:o, s:{s:o, s:o, s:o, s:o}, s:b}",
                     "cell", cell, "policy", tools_size_policy_names[run->policy], "dram_bytes",
                     (json_int_t)run->bytes[SIZE_DRAM], "ssd_bytes",
                     (json_int_t)run->bytes[SIZE_SSD], "ttft_s_mean", view_real(run->mean_s),
                     "ttft_s_p99", view_real(run->p99_s), "hit_token_ratio", view_real(run->hits),
                     "steady", run->steady, "gpu_hours_per_day", view_real(run->gpu_hours),
                     "cost_per_month", "dram", view_real(run->room[SIZE_DRAM]), "ssd",
                     view_real(run->room[SIZE_SSD]), "gpu", view_real(run->gpu), "total",
                     view_real(run->cost), "advised", run == advised);
}

static json_t *print_saved(const size_interval saved[SIZE_SAVINGS])
{
    static const char *const keys[SIZE_SAVINGS] = {"ttft_s_mean", "gpu_hours_per_day"};
    json_t *object = json_object();
    for (size_t s = 0; s < SIZE_SAVINGS; s++)
        (void)json_object_set_new(object, keys[s],
                                  json_pack("{s:o, s:o, s:o}", "value", view_real(saved[s].value),
                                            "low", view_real(saved[s].low), "high",
                                            view_real(saved[s].high)));
    return object;
}

static json_t *print_workload(const size_study *study)
{
    return json_pack("{s:o, s:I, s:I, s:i, s:o, s:o, s:i, s:i, s:o, s:o}", "name",
                     view_string(study->workload.name), "requests", (json_int_t)study->requests,
                     "requests_simulated", (json_int_t)study->workload.request_count,
                     "block_tokens", (int)study->workload.block_tokens, "input_tokens_per_s",
                     view_real(study->tokens_per_s), "footprint_bytes", view_real(study->footprint),
                     "sessions", (int)study->sessions, "sessions_sampled", (int)study->sampled,
                     "room", view_real(study->room), "pace", view_real(study->pace));
}

json_t *tools_size_document(const size_study *study, const size_advice *advice)
{
    command_run run;
    size_t unfinished = 0;
    json_t *cells = json_array(), *sentences = json_array(), *saved = json_null();
    command_describe_run(&run);
    for (size_t i = 0; i < study->run_count; i++) {
        unfinished += !study->runs[i].done;
        if (study->runs[i].done && study->runs[i].draw == 0)
            (void)json_array_append_new(cells, print_run(&study->runs[i], advice->run));
    }
    for (size_t i = 0; advice->run != NULL && i < SIZE_SENTENCES; i++)
        (void)json_array_append_new(sentences, json_string(advice->sentences[i]));
    if (advice->run != NULL)
        saved = json_pack("{s:o, s:o}", "none", print_saved(advice->saved[SIZE_NONE]), "lru",
                          print_saved(advice->saved[SIZE_LRU]));
    return json_pack("{s:s, s:s, s:o, s:o, s:s, s:b, s:b, s:o, s:o, s:o, s:o, s:o}", "schema",
                     "kvterrace-size-1", "version", kvt_version(), "command",
                     view_string(study->common->line), "machine", view_string(run.machine), "date",
                     run.date, "interrupted", unfinished > 0, "pays", advice->pays, "verdict",
                     sentences, "saved_over", saved, "workload", print_workload(study), "cells",
                     cells, "assumptions", print_assumptions(study));
}

void tools_size_print_text(json_t *document, FILE *out)
{
    static const document_table tables[] = {
        {"cells", "DRAM_and_SSD=cell policy TTFT_mean=ttft_s_mean p99=ttft_s_p99 "
                  "token_hits=hit_token_ratio GPU_hours_a_day=gpu_hours_per_day "
                  "$_a_month=cost_per_month.total advised"},
        {"assumptions", "option assumed"},
        {0},
    };
    size_t i;
    json_t *sentence;
    json_array_foreach(json_object_get(document, "verdict"), i, sentence)
    {
        fprintf(out, "%s\n", json_string_value(sentence));
    }
    fputc('\n', out);
    document_print_tables(document, tables, out);
}
