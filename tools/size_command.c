/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size_command.c - kvterrace size: what DRAM and SSD are worth to a workload, as an advice in
 * words, a table, a page and a configuration file.
 *
 * One thread, but for the simulations (size_grid.c).
 */
#include "size.h"

#include "base/config_values.h"
#include "tools/command/worker_pool.h"

#include <stdlib.h>
#include <string.h>

/*
 * Where no --price says otherwise, those of "Tutti" (arXiv 2605.03375, section 4.3), which takes
 * them from the price list of a cloud: $5 an hour for an H100, $0.0088 and $0.000082 an hour for a
 * GB of DRAM and of NVMe SSD, here times the 730 hours of a month. Memory that was bought costs a
 * tenth of it and less.
 */
#define SIZE_PRICE_GPU_HOUR 5.0
#define SIZE_PRICE_DRAM     (0.0088 * 730)
#define SIZE_PRICE_SSD      (0.000082 * 730)

typedef struct size_arguments {
    command_common common;
    const char *trace, *workload, *machine, *model, *gpu, *price, *dram, *ssd, *report, *output;
    uint32_t threads, draws;
    double sample;
    bool assumed; /* no machine was given */
    double prices[SIZE_AXES + 1];
    size_axis axes[SIZE_AXES];
} size_arguments;

#define SIZE_MACHINE "dram 256GiB, ssd 4TB at 6GB/s"

static const command_option size_rows[] = {
    TRACE_OPTION(size_arguments, trace, "Requests"),
    TEXT_OPTION(size_arguments, workload, "workload", 'w', "poisson",
                "Or a generated workload, made by the settings in [workload]"),
    TEXT_OPTION(size_arguments, machine, "machine", 0, "TEXT",
                "The machine that the grid is around, without --config (" SIZE_MACHINE "); behind "
                "a tier's speed 'writing RATE' is another one for writes, xN is so many drives"),
    TEXT_OPTION(size_arguments, model, "model", 0, "NAME",
                "The model, with its prefill in the profile (llama-3.1-8b)"),
    TEXT_OPTION(size_arguments, gpu, "gpu", 0, "NAME",
                "The GPU: a100, h100, or one whose prefill the profile has (prefill.gpu)"),
    TEXT_OPTION(size_arguments, price, "price", 0, "LIST",
                "Prices: dram= and ssd= of a GB (1e9 bytes) a month, gpu_hour= of a server's hour "
                "(dram=6.42,ssd=0.06,gpu_hour=5)"),
    TEXT_OPTION(size_arguments, dram, "dram", 0, "LIST",
                "Sizes of DRAM to try (a quarter to twice of what is there, and further where it "
                "pays)"),
    TEXT_OPTION(size_arguments, ssd, "ssd", 0, "LIST",
                "Sizes of SSD to try (none, a quarter to twice of what is there, and further)"),
    SETTING_OPTION("replay.servers", "servers", 0, "N",
                   "Prefill servers, a GPU each (replay.servers)"),
    SETTING_OPTION("replay.limit", "limit", 0, "N", "Requests to take (replay.limit)"),
    {.name = "sample",
     .argument = "SHARE",
     .text = "Share of the sessions to simulate, on a machine that is smaller by as much; 1: all "
             "of them in the trace's own blocks (as many as some minutes of a core can do)",
     .kind = OPTION_SHARE,
     .offset = offsetof(size_arguments, sample),
     .least = 1e-6,
     .most = 1},
    COUNT_OPTION(size_arguments, draws, "draws", 0, SIZE_DRAWS_MAX,
                 "Draws of the sessions behind an interval (5); below 2 there is none"),
    THREADS_OPTION(size_arguments, threads, WORKER_POOL_MAX,
                   "Simulations at once (as many as this machine has cores)"),
    SETTING_OPTION("store.profile", "database", 'd', "FILE", "Profile database (store.profile)"),
    TEXT_OPTION(size_arguments, report, "report", 'r', "FILE",
                "Write a page too, as kvterrace report does"),
    OUTPUT_OPTION(size_arguments, output, "Write the advice as a configuration to FILE"),
    {0},
};

/* A machine is given once. */
static int size_check_machine(size_arguments *arguments)
{
    command_common *common = &arguments->common;
    bool set = common->files.count > 0 || command_was_set(common, "tier.dram.capacity") ||
               command_was_set(common, "tier.ssd.capacity");
    for (size_t i = 0; i < common->settings.count; i++)
        set |= strncmp(common->settings.items[i], "device.", 7) == 0;
    if (arguments->machine != NULL && set)
        return command_misuse("--machine excludes --config and settings of a tier's capacity or a "
                              "device: these have the machine");
    arguments->assumed = !set && arguments->machine == NULL;
    if (set) return EXIT_FINE;
    return tools_size_machine_read(common, arguments->assumed ? SIZE_MACHINE : arguments->machine);
}

static int size_check(void *context)
{
    size_arguments *arguments = context;
    command_common *common = &arguments->common;
    if (arguments->trace == NULL && arguments->workload == NULL)
        return command_misuse("what is to be served? --trace FILE or --workload poisson");
    int code = tools_check_workload(&arguments->trace, arguments->workload);
    if (code == EXIT_FINE) code = size_check_machine(arguments);
    if (code == EXIT_FINE) code = tools_size_model_read(common, arguments->model, arguments->gpu);
    if (code == EXIT_FINE && arguments->price != NULL)
        code = tools_size_prices_read(arguments->price, arguments->prices);
    if (code == EXIT_FINE && arguments->dram != NULL)
        code = tools_size_axis_read("dram", arguments->dram, &arguments->axes[SIZE_DRAM]);
    if (code == EXIT_FINE && arguments->ssd != NULL)
        code = tools_size_axis_read("ssd", arguments->ssd, &arguments->axes[SIZE_SSD]);
    return code;
}

static kvt_status size_prepare(const size_arguments *arguments, size_study *study)
{
    /* What replays do and size does not. */
    static const char *const keys[] = {"replay.hosts",   "replay.restart", "tier.remote.capacity",
                                       "replay.explain", "replay.seeds",   "replay.plan_log"};
    kvt_config *config = arguments->common.config;
    char *const message = study->message;
    const size_t size = sizeof study->message;
    kvt_status status = command_try_policies(config, "none,lru,utility");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && status == KVT_OK; i++) {
        if (!kvt_config_has(config, keys[i])) continue;
        (void)snprintf(message, size, "%s is of kvterrace replay and has no effect here", keys[i]);
        status = KVT_E_CONFIG;
    }
    if (status == KVT_OK)
        status = replay_options_read(config, false, &study->options, message, size);
    if (status == KVT_OK && arguments->report != NULL)
        status =
            command_check_target(&arguments->common, "report", arguments->report, message, size);
    if (status == KVT_OK && arguments->output != NULL)
        status =
            command_check_target(&arguments->common, "output", arguments->output, message, size);
    if (status == KVT_OK && arguments->report != NULL && arguments->output != NULL &&
        strcmp(arguments->report, arguments->output) == 0) {
        (void)snprintf(message, size, "report and output are both %.300s", arguments->report);
        status = KVT_E_CONFIG;
    }
    return status;
}

/* Blocks are merged unless all is asked for: an engine's chunks are larger than most traces'. */
static kvt_status size_read_workload(const size_arguments *arguments, replay_generator *generator,
                                     size_study *study)
{
    const replay_trace_options options = {.seed = study->options.seed,
                                          .limit = study->options.limit,
                                          .merge_to = study->sample < 1.0 ? 512 : 0};
    replay_workload *own = &study->workload;
    kvt_status status;
    if (arguments->trace != NULL) {
        status = command_read_trace(&arguments->common, arguments->trace, &options, own,
                                    study->message, sizeof study->message);
        if (status == KVT_OK && own->note[0] != '\0')
            command_note(&arguments->common, "%s: %s", own->name, own->note);
    } else {
        replay_generator_read(arguments->common.config, generator);
        study->generator = generator;
        status = replay_workload_generate(generator, own, study->message, sizeof study->message);
    }
    if (status == KVT_OK &&
        (own->block_refs == 0 ||
         own->requests[0].arrival_ns == own->requests[own->request_count - 1].arrival_ns)) {
        (void)snprintf(study->message, sizeof study->message,
                       "%.200s: requests of several times, with blocks, are needed to tell what a "
                       "day asks for",
                       own->name);
        status = KVT_E_PARSE;
    }
    if (status == KVT_OK && arguments->trace != NULL && own->repeated_refs == 0) {
        (void)snprintf(study->message, sizeof study->message,
                       "%.200s: no block comes twice, so these requests cannot tell what a cache "
                       "is worth",
                       own->name);
        status = KVT_E_PARSE;
    }
    return status;
}

static kvt_status size_print_page(const void *document, FILE *out)
{
    return json_dumpf(document, out, JSON_REAL_PRECISION(9)) == 0 ? KVT_OK : KVT_E_MEMORY;
}

static kvt_status size_print(const size_arguments *arguments, size_study *study,
                             const size_advice *advice)
{
    json_t *document = tools_size_document(study, advice);
    kvt_status status = document != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK && arguments->report != NULL)
        status = report_page_write(arguments->report, study->workload.name, size_print_page,
                                   document, study->message, sizeof study->message);
    if (status == KVT_OK && arguments->output != NULL && advice->run != NULL)
        status = tools_size_config_write(study, advice, arguments->output);
    if (status == KVT_OK && !arguments->common.json) tools_size_print_text(document, stdout);
    if (status == KVT_OK && arguments->common.json)
        status = command_print_exact(json_incref(document));
    json_decref(document);
    if (status == KVT_OK && arguments->report != NULL)
        command_note(&arguments->common, "report: %s", arguments->report);
    if (status == KVT_OK && arguments->output != NULL && advice->run != NULL)
        command_note(&arguments->common, "configuration: %s", arguments->output);
    return status;
}

/* Simulates and prints. What was finished is printed after an interruption too. */
static int size_study_run(const size_arguments *arguments, size_study *study)
{
    size_advice advice;
    command_catch_interrupts();
    kvt_status status = tools_size_grid_run(study);
    const bool cancelled = status == KVT_E_CANCELLED;
    if (status != KVT_OK && !cancelled) return command_fail(status, study->message);
    size_t finished = 0;
    for (size_t i = 0; i < study->run_count; i++)
        finished += study->runs[i].done;
    tools_size_advise(study, &advice);
    if (advice.run == NULL && !cancelled)
        return command_misuse("--dram and --ssd leave no cell with any room");
    if (finished > 0 && (status = size_print(arguments, study, &advice)) != KVT_OK)
        return command_fail(status, study->message);
    if (!cancelled) return EXIT_FINE;
    (void)snprintf(study->message, sizeof study->message,
                   "interrupted; %zu of %zu simulations were finished, and the advice is of these",
                   finished, study->run_count);
    return command_fail(KVT_E_CANCELLED, study->message);
}

static int size_start(void *context)
{
    static const char *const sections[] = {"replay", "prefill", NULL};
    static const char *const all_sections[] = {"replay", "prefill", "workload", NULL};
    size_arguments *arguments = context;
    replay_generator generator;
    size_study *study = calloc(1, sizeof *study);
    if (study == NULL) return command_fail(KVT_E_MEMORY, "");
    command_data_setting(&arguments->common, "replay.ladder", "profile:");
    study->common = &arguments->common;
    memcpy(study->prices, arguments->prices, sizeof study->prices);
    study->sample = arguments->sample;
    study->draws = arguments->draws;
    study->threads = arguments->threads != 0 ? arguments->threads : worker_pool_threads();
    memcpy(study->axes, arguments->axes, sizeof study->axes);
    replay_options_init(&study->options);
    kvt_status status = size_prepare(arguments, study);
    if (status == KVT_OK) {
        for (size_axis_name axis = 0; axis < SIZE_AXES && !arguments->assumed; axis++)
            study->owned[axis] = study->options.tiers[tools_size_tiers[axis]].capacity_bytes;
        status = size_read_workload(arguments, &generator, study);
    }
    int code = status == KVT_OK
                   ? command_report_unused(&arguments->common,
                                           arguments->workload != NULL ? all_sections : sections)
                   : command_fail_input(status, study->message);
    if (status == KVT_OK && code == EXIT_FINE) {
        status = tools_size_grid_make(study);
        code = status == KVT_OK ? size_study_run(arguments, study)
                                : command_fail(status, study->message);
    }
    tools_size_study_free(study);
    free(study);
    return code;
}

static const size_arguments size_standard = {
    .sample = -1.0, .draws = 5, .prices = {SIZE_PRICE_DRAM, SIZE_PRICE_SSD, SIZE_PRICE_GPU_HOUR}};

const command_spec tools_size_spec = {
    .name = "size",
    .summary = "say what DRAM and SSD are worth to a trace",
    .about = "Simulates no cache, LRU as engines have it and kvterrace's own policy on a grid of "
             "DRAM and SSD, and says what costs least: DRAM and SSD at their prices, and the hours "
             "that servers spend on requests before their first tokens at the price of a GPU hour. "
             "An interruption prints what was finished.",
    .synopsis = "--trace FILE|--workload poisson",
    .example = "  kvterrace size --trace trace.jsonl --gpu h100 \\\n"
               "    --machine \"dram 64GiB, ssd 2TB at 6GB/s x2\" --report size.html -o kv.ini\n"
               "  kvterrace check-config kv.ini",
    .options = size_rows,
    .argument_bytes = sizeof(size_arguments),
    .standard = &size_standard,
    .check = size_check,
    .run = size_start,
    .settings = SETTINGS_OWN,
    .lists = LISTS_SETTINGS,
};
