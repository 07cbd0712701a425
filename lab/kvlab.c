/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab.c - the program of the evidence: its cases, and those of codecs, of the decision engine, of
 * AdaptCache's experiment and of the grid; kvlab_devices.c has those of devices and of stores.
 *
 * A bench of devices or codecs runs in a process of its own. A measurement looks at no flag between
 * two requests, and one that waits for a device could not: another process ends it and cleans up
 * behind it. The other three end between two runs and print what was finished. One thread; the
 * replays of the grid have their own.
 */
#include "kvlab.h"
#include "tools/command/variants.h"

#include "lab/bench/bench.h"
#include "lab/bench/bench_grid.h"
#include "lab/bench/bench_parts.h"
#include "lab/experiments/adaptcache_experiment.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a process of its own ---- */

/* The child: signals act as before, and it ends with its parent. */
static void guard_begin(const sigset_t *before, pid_t parent)
{
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILED);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
}

/* Signals that come between two looks at the flag stay blocked until sigsuspend. */
static int guard_wait(pid_t child, const sigset_t *before)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        if (command_interrupted()) {
            (void)kill(child, SIGKILL);
            ended = waitpid(child, &status, 0);
            break;
        }
        (void)sigsuspend(before);
    }
    bench_scratch_remove();
    if (command_interrupted()) {
        if (isatty(STDERR_FILENO) == 1) fputs("\r\033[K", stderr); /* the child's bar */
        return command_finish(command_fail(KVT_E_CANCELLED, "interrupted"));
    }
    if (ended == child && WIFEXITED(status)) return WEXITSTATUS(status);
    if (ended == child && WIFSIGNALED(status))
        fprintf(stderr, "kvlab: signal %d ended it\n", WTERMSIG(status));
    return EXIT_FAILED;
}

static void guard_child_ended(int number)
{
    (void)number;
}

/* Forks. False in the child, which runs the bench; true in the process that waited for it, with the
 * exit code to leave with. SIGINT or SIGTERM kills the child, removes its scratch folder, and gives
 * EXIT_INTERRUPTED; rows of text that were finished are printed by then, a JSON document is not.
 * Call it before there are threads. */
static bool bench_guard(bool json, int *code_out)
{
    const struct sigaction ended = {.sa_handler = guard_child_ended};
    const pid_t self = getpid();
    sigset_t watched, before;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &watched, &before);
    (void)sigaction(SIGCHLD, &ended, NULL);
    command_catch_interrupts();
    pid_t child = -1;
    if (bench_scratch_share() == 0) {
        (void)fflush(NULL);
        child = fork();
    }
    if (child == 0) {
        /* The rows that are finished are out when the rest is not to come. */
        if (!json) (void)setvbuf(stdout, NULL, _IOLBF, 0);
        (void)signal(SIGCHLD, SIG_DFL);
        guard_begin(&before, self);
        return false;
    }
    *code_out = child > 0 ? guard_wait(child, &before) : command_fail(KVT_E_MEMORY, "");
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return true;
}

/* The exit code of a bench that looks at interruptions itself. */
static int bench_end(kvt_status status, const char *message)
{
    if (status == KVT_OK) return EXIT_FINE;
    return command_fail(status, status == KVT_E_CANCELLED ? "interrupted" : message);
}

/* ---- policy ---- */

typedef struct bench_policy_arguments {
    command_common common;
    bench_policy_options options;
    command_progress bar;
} bench_policy_arguments;

static const command_option bench_policy_rows[] = {
    QUICK_OPTION(bench_policy_arguments, options.quick,
                 "A thousand entries: shows that it runs, not how fast"),
    COUNT_OPTION(bench_policy_arguments, options.entries, "size", 1, 20000000,
                 "Instances of so many entries (default: 1k, 100k and 1m; above 2m the engine "
                 "alone)"),
    COUNT_OPTION(bench_policy_arguments, options.seeds, "seeds", 1, 7,
                 "Instances of each kind, 1 to 7 (default: 3; one of a million)"),
    {0},
};

static int bench_policy_start(void *context)
{
    bench_policy_arguments *arguments = context;
    bench_policy_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    options->out = stdout;
    options->json = arguments->common.json;
    options->progress = progress_ask;
    options->progress_context = &arguments->bar;
    command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
    const kvt_status status = bench_policy_run(options, message, sizeof message);
    progress_end(&arguments->bar);
    return bench_end(status, message);
}

static const command_spec bench_policy_spec = {
    .name = "policy",
    .summary = "the decision engine: distance to its bound, nanoseconds",
    .about = "Draws instances from seeds and compares our choice with its dual bound, with "
             "AdaptCache's greedy, with the best uniform variant and with LRU order; then lets "
             "the engine work on them, ten calls an entry, and says how far its own state is from "
             "the bound and how long its decisions take.",
    .example = "  kvlab policy --size 100k --seeds 1",
    .options = bench_policy_rows,
    .argument_bytes = sizeof(bench_policy_arguments),
    .run = bench_policy_start,
    .own_guard = true,
};

/* ---- adaptcache ---- */

typedef struct bench_adaptcache_arguments {
    command_common common;
    command_progress bar;
    bool quick, coarse;
    uint32_t seeds, threads, uses;         /* 0: the experiment's own */
    const char *ladders, *texts, *profile; /* or NULL */
    command_list classes;
    unsigned loss;                                       /* the place in profile|rouge_l */
    double dram_gb, ssd_gb, ssd_gb_per_s, prefill_speed; /* 0: the paper's */
} bench_adaptcache_arguments;

#define ADAPTCACHE_NUMBER(option, field, unit, help)                                               \
    {                                                                                              \
        .name = (option), .argument = (unit), .text = (help), .kind = OPTION_NUMBER,               \
        .offset = offsetof(bench_adaptcache_arguments, field), .least = 0.001, .most = 1e6         \
    }

static const command_option bench_adaptcache_options[] = {
    QUICK_OPTION(bench_adaptcache_arguments, quick,
                 "Two seeds, two settings of eight, two rates of six, fewer requests and mixes"),
    COUNT_OPTION(bench_adaptcache_arguments, seeds, "seeds", 1, EXPERIMENT_SEEDS,
                 "Runs of everything, 1 to 40 (default: 6); half of them choose, half judge"),
    THREADS_OPTION(bench_adaptcache_arguments, threads, 64, "Threads, 1 to 64 (default: 1)"),
    COUNT_OPTION(bench_adaptcache_arguments, uses, "uses", 1, 1000,
                 "Requests per context, of which 40 % warm the store (default: 10)"),
    FLAG_OPTION(bench_adaptcache_arguments, coarse, "coarse", 0,
                "Mixes of one variant in each tier, without halves between two"),
    TEXT_OPTION(
        bench_adaptcache_arguments, profile, "profile", 0, "NAME",
        "Measured curves: profiles/NAME.json, or a file of quality rows (default: published "
        "losses)"),
    LIST_OPTION(bench_adaptcache_arguments, classes, "class", "CLASS", EXPERIMENT_TASKS, 0,
                "A class of the profile, three times: question answering, summarisation, agents "
                "(default: qa, summarisation, agent)"),
    TEXT_OPTION(bench_adaptcache_arguments, ladders, "ladders", 0, "DIR",
                "Where ladder-adaptcache-*.json and codecs-gpu.json are (profiles)"),
    TEXT_OPTION(bench_adaptcache_arguments, texts, "texts", 0, "DIR",
                "Real texts below DIR (leval, longbench, qmsum; .jsonl.zst) instead of the "
                "built-in table of their lengths"),
    {.name = "loss",
     .argument = "METRIC",
     .text = "What a loss of the profile is: its own, or rouge_l, that of answers (profile)",
     .kind = OPTION_CHOICE,
     .offset = offsetof(bench_adaptcache_arguments, loss),
     .extra = "profile|rouge_l"},
    ADAPTCACHE_NUMBER("dram", dram_gb, "GB", "DRAM of the host (100)"),
    ADAPTCACHE_NUMBER("ssd", ssd_gb, "GB", "SSD of the host (400)"),
    ADAPTCACHE_NUMBER("ssd-speed", ssd_gb_per_s, "GB/s", "Its reading speed (1)"),
    ADAPTCACHE_NUMBER("prefill-speed", prefill_speed, "X",
                      "Speed of prefill, times that of Llama-3.1-8B at half of an A100's peak (1)"),
    GONE_OPTION("zipf", "gone: even and Zipf popularity are both run"),
    {0},
};

/* A path as it is, or the name of a file among the profiles. */
static const char *bench_adaptcache_profile(const bench_adaptcache_arguments *arguments,
                                            const experiment_options *options, char *path,
                                            size_t size)
{
    if (arguments->profile == NULL) return NULL;
    if (strchr(arguments->profile, '/') != NULL || strchr(arguments->profile, '.') != NULL)
        return arguments->profile;
    (void)snprintf(path, size, "%s/%s.json", options->ladders, arguments->profile);
    return path;
}

/* What was given of the host in place of the paper's. */
static void bench_adaptcache_host(const bench_adaptcache_arguments *arguments,
                                  experiment_options *options)
{
    if (arguments->dram_gb > 0.0) options->dram_bytes = 1e9 * arguments->dram_gb;
    if (arguments->ssd_gb > 0.0) options->ssd_bytes = 1e9 * arguments->ssd_gb;
    if (arguments->ssd_gb_per_s > 0.0) options->ssd_bytes_per_s = 1e9 * arguments->ssd_gb_per_s;
    if (arguments->prefill_speed > 0.0) options->prefill_speed = arguments->prefill_speed;
}

static int bench_adaptcache_run(void *context)
{
    bench_adaptcache_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "", path[1024];
    experiment_options options;
    experiment_options_init(&options);
    if (arguments->quick) {
        options.seeds = 2;
        options.uses = 4;
        options.coarse = true;
        options.rates = 1u << 1 | 1u << 4;
        options.settings = 1u << EXPERIMENT_TASKS | 1u << (EXPERIMENT_SETTINGS - 1);
    }
    if (arguments->coarse) options.coarse = true;
    if (arguments->uses > 0) options.uses = arguments->uses;
    if (arguments->seeds > 0) options.seeds = arguments->seeds;
    if (arguments->threads > 0) options.threads = arguments->threads;
    if (arguments->ladders != NULL) options.ladders = arguments->ladders;
    if (arguments->classes.count != 0 && arguments->classes.count != EXPERIMENT_TASKS)
        return command_misuse("--class is given three times, or not at all");
    if (arguments->classes.count != 0 && arguments->profile == NULL)
        return command_misuse("--class names a class of a profile: --profile is missing");
    if (arguments->loss != 0 && arguments->profile == NULL)
        return command_misuse("--loss is of a profile: --profile is missing");
    for (size_t i = 0; i < arguments->classes.count; i++)
        options.classes[i] = arguments->classes.items[i];
    options.by_answers = arguments->loss != 0;
    bench_adaptcache_host(arguments, &options);
    options.ladders = command_data_path(&arguments->common, options.ladders);
    options.profile = bench_adaptcache_profile(arguments, &options, path, sizeof path);
    options.texts = arguments->texts;
    options.json = arguments->common.json;
    options.progress = progress_ask;
    options.progress_context = &arguments->bar;
    command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
    kvt_status status = experiment_run(&options, message, sizeof message);
    progress_end(&arguments->bar);
    return bench_end(status, message);
}

static const command_spec bench_adaptcache_spec = {
    .name = "adaptcache",
    .summary = "AdaptCache's own experiment",
    .about = "AdaptCache's own experiment in virtual time: whole contexts of three task types on "
             "one A100 with 100 GB of DRAM and 400 GB of SSD at 1 GB/s. Its policy and ours at "
             "sixteen weights of quality, against fixed compression in LRU order, no "
             "compression, prefill and the best uniform mix, at six rates up to saturation, each "
             "task alone and all in one store, with even and with Zipf popularity. With "
             "--profile, losses and their spread are those that were measured on a model.",
    .example = "  kvlab adaptcache --quick",
    .options = bench_adaptcache_options,
    .argument_bytes = sizeof(bench_adaptcache_arguments),
    .run = bench_adaptcache_run,
    .own_guard = true,
};

/* ---- grid ---- */

typedef struct grid_arguments {
    command_common common;
    grid_options options;
    command_progress bar;
    unsigned tenths; /* told on stderr */
    unsigned half;   /* grid_half */
    bool list;
    const char *data;
    char traces[1024];
} grid_arguments;

static const command_option grid_rows[] = {
    QUICK_OPTION(grid_arguments, options.quick, "A quarter of the cells, smaller, with 3 seeds"),
    COUNT_OPTION(grid_arguments, options.seeds, "seeds", 1, GRID_SEEDS_MAX,
                 "Paired seeds of each cell, 1 to 100 (default: 10)"),
    {.name = "half",
     .argument = "NAME",
     .text = "all, tuning or hidden: only this half of the cells (default: all); tuning must look "
             "at the half of that name alone",
     .kind = OPTION_CHOICE,
     .offset = offsetof(grid_arguments, half),
     .extra = "all|tuning|hidden"},
    TEXT_OPTION(grid_arguments, options.cell, "cell", 0, "NAME", "Only this cell"),
    FLAG_OPTION(grid_arguments, list, "list", 0, "List the cells and run none"),
    TEXT_OPTION(grid_arguments, data, "data", 0, "DIR",
                "Where traces/ with the real traces is (default: $KVT_DATA_DIR); cells without "
                "their trace are skipped"),
    FLAG_OPTION(grid_arguments, options.store_model, "store-model", 0,
                "A modelled store, as replay.store_model, instead of an ideal one whose writes "
                "are free"),
    THREADS_OPTION(grid_arguments, options.threads, 64,
                   "Seeds at a time, 1 to 64 (one per processor)"),
    {0},
};

static void grid_take_data(grid_arguments *arguments, const char *folder)
{
    if (folder == NULL || folder[0] == '\0') return;
    (void)snprintf(arguments->traces, sizeof arguments->traces, "%.1000s/traces", folder);
    arguments->options.traces = arguments->traces;
}

static void grid_tell_budget(void *context, uint32_t cells, uint64_t replays, double minutes)
{
    const grid_arguments *arguments = context;
    command_note(&arguments->common,
                 "budget: %u cells, %llu replays, about %.1f minutes on %u threads", cells,
                 (unsigned long long)replays, minutes, arguments->options.threads);
}

static void grid_tell_skipped(void *context, const char *family, uint32_t cells, const char *why)
{
    const grid_arguments *arguments = context;
    command_note(&arguments->common, "%u cells of %s are skipped: %s (--data, KVT_DATA_DIR)", cells,
                 family, why);
}

static void grid_show(void *context, double done, const char *what)
{
    grid_arguments *arguments = context;
    progress_update(&arguments->bar, done, what);
    if (arguments->bar.shown || (unsigned)(done * 10.0) <= arguments->tenths) return;
    arguments->tenths = (unsigned)(done * 10.0);
    command_note(&arguments->common, "%u %%: %s", arguments->tenths * 10, what);
}

static int grid_start(void *context)
{
    grid_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    grid_options *options = &arguments->options;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (options->threads == 0)
        options->threads = online > 64 ? 64 : online > 0 ? (uint32_t)online : 1;
    options->out = stdout;
    options->json = arguments->common.json;
    options->half = (grid_half)arguments->half;
    options->interrupted = command_interrupted;
    options->budget = grid_tell_budget;
    options->skipped = grid_tell_skipped;
    options->progress = grid_show;
    options->context = arguments;
    grid_take_data(arguments, arguments->data != NULL ? arguments->data : getenv("KVT_DATA_DIR"));
    if (arguments->list) {
        kvt_status listed = grid_print_list(options);
        return listed == KVT_OK ? EXIT_FINE : command_fail(listed, "");
    }
    command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
    kvt_status status = grid_run_all(options, message, sizeof message);
    progress_end(&arguments->bar);
    if (status == KVT_E_CANCELLED) return command_fail(status, "interrupted");
    return status == KVT_OK ? EXIT_FINE : command_fail_content(status, message);
}

static const command_spec bench_grid_spec = {
    .name = "grid",
    .summary = "many workloads: the engine beside its rivals, and the bound",
    .about = "Replays many workloads in virtual time, the engine with its defaults beside every "
             "policy that it would replace, all with the same variants: generated sessions by "
             "turns, popularity, capacity and devices, long contexts, drift, scans, crowds, and "
             "real traces. Says for each cell the ratio to its best rival and the bound that no "
             "policy can pass.",
    .example = "  kvlab grid --quick",
    .options = grid_rows,
    .argument_bytes = sizeof(grid_arguments),
    .run = grid_start,
    .own_guard = true,
};

typedef struct bench_codecs_arguments {
    command_common common;
    bench_codecs_options options;
    command_progress bar;
    const char *variants; /* names with blanks or ';' between them */
    command_list models, texts;
} bench_codecs_arguments;

static const command_option bench_codecs_rows[] = {
    QUICK_OPTION(bench_codecs_arguments, options.quick,
                 "32 MiB, the best instruction set, 8 contexts"),
    TEXT_OPTION(bench_codecs_arguments, variants, "variants", 0, "LIST",
                "Variants to measure, with blanks or ';' between them"),
    TEXT_OPTION(bench_codecs_arguments, options.isa, "isa", 'i', "NAME",
                "Only scalar, avx2 or avx512; KVT_CPU in the environment too"),
    GONE_OPTION("plot", "figures come from --json | kvterrace report - -o PAGE.html"),
    LIST_OPTION(bench_codecs_arguments, models, "model", "FILE", 0, OPTION_DATA,
                "Judge on this model's KV; may be repeated"),
    TEXT_OPTION(bench_codecs_arguments, options.tokenizer, "tokenizer", 0, "FILE",
                "The models' vocabulary"),
    LIST_OPTION(bench_codecs_arguments, texts, "text", "FILE", 0, OPTION_DATA,
                "JSONL with texts for the models; may be repeated"),
    COUNT_OPTION(bench_codecs_arguments, options.contexts, "contexts", 1, 10000,
                 "Contexts per model (default 40)"),
    THREADS_OPTION(bench_codecs_arguments, options.threads, 16,
                   "Threads that judge (default: one per processor)"),
    COUNT_OPTION(bench_codecs_arguments, options.workers, "workers", 1, 16,
                 "Time whole records on N threads as well (wall clock)"),
    {0},
};

/* Cuts the names apart; they point into a copy. */
static void bench_codecs_cut(bench_codecs_arguments *arguments, command_list *names)
{
    char *copy = strdup(arguments->variants != NULL ? arguments->variants : ""), *rest = NULL;
    if (copy == NULL) return;
    (void)command_keep(&arguments->common, copy);
    for (char *name = strtok_r(copy, "; \t\n", &rest); name != NULL;
         name = strtok_r(NULL, "; \t\n", &rest))
        command_list_add(names, name);
}

static int bench_codecs_start(void *context)
{
    bench_codecs_arguments *arguments = context;
    bench_codecs_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_list names = {0};
    bench_codecs_cut(arguments, &names);
    if (arguments->variants != NULL && names.count == 0)
        return command_misuse("--variants: no name");
    if (arguments->models.count > 0) command_choose_blas();
    options->out = stdout;
    options->json = arguments->common.json;
    options->quiet = arguments->common.quiet;
    options->variants = names.items;
    options->variant_count = (uint32_t)names.count;
    options->models = arguments->models.items;
    options->model_count = (uint32_t)arguments->models.count;
    options->texts = arguments->texts.items;
    options->text_count = (uint32_t)arguments->texts.count;
    options->progress = progress_show;
    options->progress_context = &arguments->bar;
    /* The library does not look at the environment; this bench does, so that one instruction set
     * can be chosen for it as for the tests. */
    const char *forced = getenv("KVT_CPU");
    if (options->isa == NULL && forced != NULL && forced[0] != '\0') options->isa = forced;
    progress_start(&arguments->bar, &arguments->common);
    kvt_status status = bench_codecs_run(options, message, sizeof message);
    progress_end(&arguments->bar);
    free(names.items);
    return status == KVT_OK ? EXIT_FINE : command_fail_content(status, message);
}

static const command_spec bench_codecs_spec = {
    .name = "codecs",
    .summary = "codecs: speed, bits and loss",
    .about = "Encodes and decodes generated bf16 KV with every variant on every instruction set, "
             "one thread, beside memcpy; says what each variant costs in bits and does to the "
             "numbers. With models it runs their own KV through records and compares what they "
             "predict on top of it.",
    .example = "  kvlab codecs --quick --variants 'lossless planes:k4v4,g64'",
    .options = bench_codecs_rows,
    .argument_bytes = sizeof(bench_codecs_arguments),
    .run = bench_codecs_start,
    .lists = LISTS_VARIANTS,
};

typedef struct bench_bases_arguments {
    command_common common;
    bench_bases_options options;
    command_progress bar;
    command_list bases, kv;
    const char *variants;
    uint64_t bytes_per_s;
} bench_bases_arguments;

static const command_option bench_bases_rows[] = {
    QUICK_OPTION(bench_bases_arguments, options.quick, "One load of each context"),
    LIST_OPTION(bench_bases_arguments, bases, "basis", "FILE", BENCH_BASES_MAX, OPTION_DATA,
                "A .kvtbasis file; may be repeated"),
    LIST_OPTION(bench_bases_arguments, kv, "kv", "FILE", 16, OPTION_DATA,
                "A KV dump; may be repeated (KV drawn from the widest basis)"),
    TEXT_OPTION(bench_bases_arguments, variants, "variants", 0, "LIST",
                "Forms, the one to compare with first, with blanks or ';' between them"),
    COUNT_OPTION(bench_bases_arguments, options.tokens, "tokens", 1, 65536,
                 "Tokens of a context (1024)"),
    COUNT_OPTION(bench_bases_arguments, options.iterations, "iterations", 1, 16,
                 "Loads of each context (3)"),
    {.name = "rate",
     .argument = "SIZE",
     .text = "Bytes a second of each drive (100MB)",
     .kind = OPTION_SIZE,
     .offset = offsetof(bench_bases_arguments, bytes_per_s),
     .least = 1e6,
     .most = 1e12},
    {0},
};

static int bench_bases_start(void *context)
{
    bench_bases_arguments *arguments = context;
    bench_bases_options *options = &arguments->options;
    quality_variant variants[BENCH_BASES_FORMS];
    char message[COMMAND_MESSAGE_BYTES] = "";
    if (arguments->bases.count == 0) return command_misuse("--basis: which basis?");
    if (arguments->variants == NULL) return command_misuse("--variants: which forms?");
    kvt_status status =
        command_parse_variants(arguments->variants, false, variants, BENCH_BASES_FORMS,
                               &options->variant_count, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    command_choose_blas();
    options->variants = variants;
    options->bases = arguments->bases.items;
    options->basis_count = (uint32_t)arguments->bases.count;
    options->kv = arguments->kv.items;
    options->kv_count = (uint32_t)arguments->kv.count;
    options->bytes_per_s = arguments->bytes_per_s;
    options->out = stdout;
    options->json = arguments->common.json;
    status = bench_bases_run(options, message, sizeof message);
    return status == KVT_OK ? EXIT_FINE : command_fail_content(status, message);
}

static const bench_bases_arguments bench_bases_standard = {.options = {.tokens = 1024},
                                                           .bytes_per_s = 100000000};

static const command_spec bench_bases_spec = {
    .name = "bases",
    .summary = "loads in forms of the transform codec over slow drives",
    .about = "Loads contexts in each form through a store on two emulated drives with two decoding "
             "threads, and without the drives' limit, and says which of both takes longer. Layered "
             "loads follow: until the first layer is there, and until the last one is. Every "
             "load is checked.",
    .example = "  kvlab bases --basis ref-head.kvtbasis \\\n"
               "    --variants 'entropy:k0.25v1 transform:12345,s1'",
    .options = bench_bases_rows,
    .argument_bytes = sizeof(bench_bases_arguments),
    .standard = &bench_bases_standard,
    .run = bench_bases_start,
};

static const command_spec *const kvlab_commands[] = {
    &bench_adaptcache_spec, &bench_bases_spec,  &bench_codecs_spec,    &bench_decode_spec,
    &bench_devices_spec,    &bench_grid_spec,   &bench_live_spec,      &bench_pipeline_spec,
    &bench_policy_spec,     &bench_remote_spec, &bench_restart_spec,   &bench_sequence_spec,
    &bench_store_spec,      &bench_stripe_spec, &bench_transform_spec, NULL,
};

static const command_spec kvlab_spec = {
    .name = "kvlab",
    .about = "Measures parts of kvterrace beside this machine's own limits and beside published "
             "methods. An interruption prints the rows that were finished and removes what the "
             "bench made.",
    .commands = kvlab_commands,
    .guard = bench_guard,
    .example = "  kvlab codecs --quick",
};

int main(int argc, char **argv)
{
    return command_main(&kvlab_spec, argc, argv);
}
