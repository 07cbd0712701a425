/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab_decode.c - kvlab decode: sparse decode on attention of dumps. One thread; an interruption
 * ends it between two units, without results.
 */
#include "kvlab.h"

#include "lab/decode/decode.h"

#include <stdlib.h>

typedef struct bench_decode_arguments {
    command_common common;
    command_progress bar;
    command_list dumps;
    decode_options options;
    uint32_t seed;
    bool quick;
} bench_decode_arguments;

static const command_option bench_decode_rows[] = {
    QUICK_OPTION(bench_decode_arguments, quick, "4,096 tokens and 8 steps of the generator"),
    LIST_OPTION(bench_decode_arguments, dumps, "dump", "FILE", 0, OPTION_DATA,
                "K, V and queries (safetensors: k.<layer>, v.<layer>, q.<layer>); may be repeated"),
    FLAG_OPTION(bench_decode_arguments, options.synthetic, "synthetic", 0,
                "The generator of Llama-3.1-8B's shape, too (default: without dumps)"),
    FLAG_OPTION(bench_decode_arguments, options.cost, "cost", 0,
                "Time building and selecting at --tokens, too (default: without dumps)"),
    COUNT_OPTION(bench_decode_arguments, options.layers, "layers", 1, 32,
                 "Layers of the generator (default: 2)"),
    COUNT_OPTION(bench_decode_arguments, options.tokens, "tokens", 1024, 4194304,
                 "Tokens of the generator and of the timings (default: 131072)"),
    COUNT_OPTION(bench_decode_arguments, options.rows, "steps", 1, DECODE_ROWS,
                 "Steps of each source, at most (default: 256 of a dump, 32 of the generator)"),
    COUNT_OPTION(bench_decode_arguments, options.page_tokens, "page-tokens", 8, 128,
                 "Tokens of a page: 8, 16, 32, 64 or 128 (default: 4096 over head_dim)"),
    COUNT_OPTION(bench_decode_arguments, seed, "seed", 1, 1000000, "Seed (default: 1)"),
    {0},
};

static int bench_decode_start(void *context)
{
    bench_decode_arguments *arguments = context;
    decode_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    const uint32_t page = options->page_tokens;
    if (page != 0 && (page & (page - 1)) != 0)
        return command_misuse("--page-tokens: %u is no power of two", page);
    if (arguments->dumps.count == 0 && !options->cost && !options->synthetic)
        options->synthetic = options->cost = true;
    if (options->layers == 0) options->layers = 2;
    if (arguments->quick && options->tokens == 0) options->tokens = 4096;
    if (arguments->quick && options->rows == 0) options->rows = 8;
    if (options->tokens == 0) options->tokens = 131072;
    options->seed = arguments->seed > 0 ? arguments->seed : 1;
    options->out = stdout;
    options->json = arguments->common.json;
    options->dumps = arguments->dumps.items;
    options->dump_count = (uint32_t)arguments->dumps.count;
    options->progress = progress_ask;
    options->progress_context = &arguments->bar;
    command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
    const kvt_status status = decode_run(options, message, sizeof message);
    progress_end(&arguments->bar);
    if (status == KVT_E_CANCELLED) return command_fail(status, "interrupted");
    return status == KVT_OK ? EXIT_FINE : command_fail_content(status, message);
}

const command_spec bench_decode_spec = {
    .name = "decode",
    .summary = "sparse decode: error and bytes of selection, precision, windows",
    .about =
        "Decodes over attention of dumps and of a generator with the cluster index, the "
        "baselines and windows of several rules, all in memory: bytes that a step reads, share "
        "of the attention that was read, error of the output against full attention. The "
        "queries of a dump with the metadata `queries: last` are those of its last tokens; "
        "others come after all of it.",
    .example = "  kvlab decode --quick",
    .options = bench_decode_rows,
    .argument_bytes = sizeof(bench_decode_arguments),
    .run = bench_decode_start,
    .own_guard = true,
};
