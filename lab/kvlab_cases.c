/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab_cases.c - the cases of kvlab: name, options, help, and what runs them. One thread.
 */
#include "kvlab.h"

#include "tools/command/variants.h"

#include <stdlib.h>
#include <string.h>

#define DRIVES_OR                                                                                  \
    "Without --config and --set it takes the drives of tests/support/drives, where they are up, "  \
    "and "

#define QUICK(help)                      QUICK_OPTION(lab_arguments, options.quick, help)
#define COUNT(field, name, most, help)   COUNT_OPTION(lab_arguments, field, name, 1, most, help)
#define TEXT(field, name, operand, help) TEXT_OPTION(lab_arguments, field, name, 0, operand, help)
#define FLAG(field, name, help)          FLAG_OPTION(lab_arguments, field, name, 0, help)
#define REPETITIONS                                                                                \
    COUNT(options.iterations, "iterations", 999999, "Repetitions of each measurement")

/* The rest of a case's declaration: what it makes of the arguments, and how it runs. */
#define RUNS(what, ...)                                                                            \
    .argument_bytes = sizeof(lab_arguments),                                                       \
    .standard = &(const lab_arguments){.one = {&bench_##what##_case, __VA_ARGS__}}, .run = lab_run
#define RUNS_ON_DRIVES(what)                                                                       \
    RUNS(what, .drives = true), .check = lab_take_drives, .settings = SETTINGS_OWN

/* Cuts names apart that blanks or ';' part; they point into a copy. */
static void cut_names(lab_arguments *arguments, const char *text)
{
    char *copy = strdup(text != NULL ? text : ""), *rest = NULL;
    if (copy == NULL) return;
    (void)command_keep(&arguments->common, copy);
    for (char *name = strtok_r(copy, "; \t\n", &rest); name != NULL;
         name = strtok_r(NULL, "; \t\n", &rest))
        command_list_add(&arguments->names, name);
}

/* ---- drives, stores ---- */

static const command_option list_options[] = {
    QUICK("One short iteration: shows that it runs, not how fast"), REPETITIONS, {0}};

static const command_spec stripe_spec = {
    .name = "stripe",
    .summary = "all devices as one pool, by layout and size",
    .about = "Overwrites and reads every configured device of the tier ssd alone, then all of them "
             "as one pool, with proportional and equal shares and in turn (round robin), objects "
             "of 16, 64 and 256 MiB.",
    .details = DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab stripe --quick",
    .options = list_options,
    RUNS_ON_DRIVES(stripe),
};

static const command_option keep_options[] = {
    QUICK("Small objects, a thousand entries: shows that it runs, not how fast"),
    COUNT(options.iterations, "size", 100000000,
          "Entries that are opened (default 100,000, then 1,000,000)"),
    {.name = "part",
     .argument = "PART",
     .text = "What is measured: seal (encryption), reopen, scrub, slow, or all (all)",
     .kind = OPTION_CHOICE,
     .offset = offsetof(lab_arguments, options.part),
     .extra = "all|seal|reopen|scrub|slow"},
    {0},
};

static const command_spec keep_spec = {
    .name = "keep",
    .summary = "encrypted devices, opens of large stores, scrub, slow drive",
    .about =
        "Encrypts and decrypts in memory by units of 4, 16 and 64 KiB on one core; then "
        "overwrites and reads one and all configured devices of the tier ssd, plain and "
        "encrypted, an object of 32 MiB. Then fills a store of files in the working folder "
        "with 100,000 entries, churned by three times as many puts and deletes and not, and with "
        "1,000,000, and opens each three times plain and with serve_early: seconds until the open "
        "returns, until a first hit and until all is "
        "known, and processor seconds until then. Then, on drives of memory: damages 1,000 "
        "records of 4,000 that nobody reads, and gets others in blocks with the scrub and "
        "without; and delays one drive of four by 50 ms, then by 2 s, beside puts and gets.",
    .details = DRIVES_OR "else four throttled memory devices. The opens take 17 GB in the working "
                         "folder. Exits 1 when entries are missing, bytes wrong or planted faults "
                         "not found.",
    .example = "  kvlab keep --quick",
    .options = keep_options,
    RUNS_ON_DRIVES(keep),
};

static const command_option slack_options[] = {
    QUICK("One short iteration: shows that it runs, not how fast"),
    REPETITIONS,
    COUNT(options.hit_percent, "hit-rate", 99, "This hit rate alone: 25, 50, 75, 90 or 99 %"),
    COUNT(options.asked_percent, "asked", 90, "This demand of writes alone: 30, 60 or 90 %"),
    FLAG(options.mixing, "mixing", "Emulated drives with mix=0.6 alone"),
    TEXT(options.decisions, "decisions", "FILE",
         "Write each decision of the drives, with what it was made from, and make all again"),
    TEXT(options.check, "check", "FILE",
         "Measure nothing: make the decisions of such a file, or of a plan log, again"),
    {0},
};

static const command_spec slack_spec = {
    .name = "slack",
    .summary = "layered loads beside writes, by the order of requests",
    .about =
        "Overwrites the configured devices of the tier ssd. Passes load 25 to 99 % of a context "
        "layer by layer and compute the rest, beside writes that ask for 30, 60 and 90 % of "
        "the time that the loads leave: blocked time, its ratio to the same loads alone, the "
        "share of the writes done by the end, and their waits, in each store.io_order. The "
        "bound is that time over what was asked for: below 1 no order can do all.",
    .details = DRIVES_OR "else four throttled memory devices. Emulated drives run with mix=0 and "
                         "with mix=0.6.",
    .example = "  kvlab slack --quick",
    .options = slack_options,
    RUNS_ON_DRIVES(slack),
};

static const command_spec ablation_spec = {
    .name = "ablation",
    .summary = "what each part of layered loading gives",
    .about = "Overwrites the configured devices of the tier ssd. One pass loads 75 % of a context "
             "and computes the rest, beside writes that ask for 60 % of the time that the loads "
             "leave, on stores with more and more of the parts: entries one by one, layer by "
             "layer, by a ring, slots and a placement, store.io_order=slack, and planes at 4 "
             "bits. Then reads by where they begin, of real drives, else of a file in the working "
             "folder. Then "
             "progressive loads: when planes of SmolLM2-135M's shape can be computed with in their "
             "coarse form, are refined, and come by a plain load, with the loss of either form "
             "(run it where profiles/ is).",
    .details = DRIVES_OR "else four throttled memory devices. Emulated drives run with mix=0 and "
                         "with mix=0.6.",
    .example = "  kvlab ablation --quick",
    .options = list_options,
    RUNS_ON_DRIVES(ablation),
};

static const command_spec objects_spec = {
    .name = "objects",
    .summary = "contexts layer by layer, by layout, with slots and without",
    .about = "Overwrites the configured devices of the tier ssd with entries in each placement, "
             "reads contexts of 1K to 128K tokens layer by layer, and measures what it costs to "
             "take a slot and to write into slots after 1e5 puts and deletes.",
    .details = DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab objects --quick",
    .options = list_options,
    RUNS_ON_DRIVES(objects),
};

static const command_spec ring_spec = {
    .name = "ring",
    .summary = "layers of 16 to 4,096 KV blocks through a ring",
    .about = "Overwrites the configured devices of the tier ssd. Layers of KV blocks come through "
             "a ring that the caller fills, through one that a thread fills as a GPU would, and by "
             "a get a block: calls and processor time of the caller, the store's, and the drives' "
             "share; then contexts per second from drives of memory alone.",
    .details = DRIVES_OR
    "else four throttled memory devices. Where a GPU answers, its kernels post as well.",
    .example = "  kvlab ring --quick",
    .options = list_options,
    RUNS_ON_DRIVES(ring),
};

static const command_spec sequence_spec = {
    .name = "sequence",
    .summary = "decode steps of a sparse sequence on the drives",
    .about = "One layer of a generator's context of 64K tokens lies on every configured device of "
             "the tier ssd, which are overwritten. Steps of queries: the drives' seconds and their "
             "share of what they could read, by layout, copies, window and precision, with "
             "the error against full attention; beside them InfLLM, PQCache and SWARM at the same "
             "error.",
    .details = DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab sequence --quick",
    .options = list_options,
    RUNS_ON_DRIVES(sequence),
};

static const command_option pipeline_options[] = {
    QUICK("4,096 tokens, few steps: shows that it runs, not how fast"),
    COUNT(options.sequences, "sequences", 16, "Sequences (default: 4)"),
    COUNT(options.compute_us, "compute", 10000000,
          "Microseconds of computing a layer of a sequence (default: the best method's fetch)"),
    {0},
};

static const command_spec pipeline_spec = {
    .name = "pipeline",
    .summary = "tokens per second of several sparse sequences",
    .about = "Several sequences of two layers and 32K tokens of a generator decode over every "
             "configured device of the tier ssd, which are overwritten: select of one, fetch of "
             "another and compute of a third at once. Beside it full load, Quest, ShadowKV and "
             "RetroInfer at the same error, each with its own schedule. A layer's computing is a "
             "wait, for a GPU would do it; everything is measured again with none.",
    .details = DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab pipeline --quick",
    .options = pipeline_options,
    RUNS_ON_DRIVES(pipeline),
};

static const command_option store_options[] = {
    QUICK("160 MiB of each size, 20,000 entries looked up"),
    COUNT(options.iterations, "size", 100000000, "Entries that are looked up (default 1,000,000)"),
    {0},
};

static const command_spec store_spec = {
    .name = "store",
    .summary = "gets and puts in DRAM beside memcpy",
    .about =
        "Gets and puts entries of 32 KiB to 32 MiB in DRAM, one by one, beside memcpy of as "
        "many bytes that are as cold, in turns; gets in batches and on two threads; a lookup "
        "among a million entries; a prefix of 512 tiny entries. Says where the time of a get goes.",
    .details =
        "Takes 2 GiB of memory. Exits 1 when bytes are wrong. Of a get's time, checksum is what "
        "a checked copy takes beyond memcpy; below 0 where it is the faster one.",
    .example = "  kvlab store --quick",
    .options = store_options,
    RUNS(store, NULL),
};

static const command_spec serve_spec = {
    .name = "serve",
    .summary = "a store that another process lends, beside one's own",
    .about = "Looks entries up and gets them, one by one and in batches, into regions and through "
             "staging, in a store of this process and in one that `kvterrace serve` lends, in "
             "turns; from configured drives, which are overwritten, with 1, 2 and 4 clients.",
    .details = "A round trip is one wake each way between two processes by eventfd, measured in "
               "the same repeat; round_trips is what a lookup takes beyond its own.",
    .example = "  kvlab serve --quick",
    .options = list_options,
    RUNS_ON_DRIVES(serve),
};

static const command_option live_options[] = {QUICK("Two settings and half the requests"), {0}};

static const command_spec live_spec = {
    .name = "live",
    .summary = "a store beside its simulation: mean times, ranks",
    .about = "A store on throttled memory serves requests by the clock, with real bytes, and the "
             "simulator serves the same ones: 8 settings of devices and load, 6 policies. Says how "
             "far the mean times to the first token lie apart and whether both rank the policies "
             "alike. Exits 1 when a mean differs by more than 10 %, when policies that the "
             "simulator tells apart by more than 5 % rank otherwise, or when bytes are wrong.",
    .example = "  kvlab live --quick",
    .options = live_options,
    RUNS(live, NULL),
};

/* ---- the decision engine ---- */

static int make_policy(lab_arguments *arguments)
{
    arguments->policy =
        (bench_policy_options){.entries = arguments->size, .seeds = arguments->seeds};
    arguments->options.own = &arguments->policy;
    return EXIT_FINE;
}

static const command_option policy_options[] = {
    QUICK("A thousand entries: shows that it runs, not how fast"),
    COUNT(size, "size", 20000000,
          "Instances of so many entries (default: 1k, 100k and 1m; above 2m the engine alone)"),
    COUNT(seeds, "seeds", 7, "Instances of each kind, 1 to 7 (default: 3; one of a million)"),
    {0},
};

static const command_spec policy_spec = {
    .name = "policy",
    .summary = "the decision engine: distance to its bound, nanoseconds",
    .about = "Draws instances from seeds and compares our choice with its dual bound, with "
             "AdaptCache's greedy, with the best uniform variant and with LRU order; then lets "
             "the engine work on them, ten calls an entry, and says how far its own state is from "
             "the bound and how long its decisions take.",
    .example = "  kvlab policy --size 100k --seeds 1",
    .options = policy_options,
    RUNS(policy, make_policy, .ends_between_runs = true),
};

/* ---- AdaptCache's experiment ---- */

static int make_adaptcache(lab_arguments *arguments)
{
    experiment_options *options = &arguments->experiment;
    const command_list *classes = &arguments->classes;
    const char *profile = arguments->profile;
    experiment_options_init(options);
    if (arguments->options.quick) {
        options->seeds = 2;
        options->uses = 4;
        options->coarse = true;
        options->rates = 1u << 1 | 1u << 4;
        options->settings = 1u << EXPERIMENT_TASKS | 1u << (EXPERIMENT_SETTINGS - 1);
    }
    if (classes->count != 0 && classes->count != EXPERIMENT_TASKS)
        return command_misuse("--class is given three times, or not at all");
    if (classes->count != 0 && profile == NULL)
        return command_misuse("--class names a class of a profile: --profile is missing");
    if (arguments->loss != 0 && profile == NULL)
        return command_misuse("--loss is of a profile: --profile is missing");
    for (size_t i = 0; i < classes->count; i++)
        options->classes[i] = classes->items[i];
    if (arguments->coarse) options->coarse = true;
    if (arguments->uses > 0) options->uses = arguments->uses;
    if (arguments->rate > 0) options->rates = 1u << (arguments->rate - 1);
    if (arguments->seeds > 0) options->seeds = arguments->seeds;
    if (arguments->threads > 0) options->threads = arguments->threads;
    if (arguments->ladders != NULL) options->ladders = arguments->ladders;
    if (arguments->dram_gb > 0.0) options->dram_bytes = 1e9 * arguments->dram_gb;
    if (arguments->ssd_gb > 0.0) options->ssd_bytes = 1e9 * arguments->ssd_gb;
    if (arguments->ssd_gb_per_s > 0.0) options->ssd_bytes_per_s = 1e9 * arguments->ssd_gb_per_s;
    if (arguments->prefill_speed > 0.0) options->prefill_speed = arguments->prefill_speed;
    options->by_answers = arguments->loss != 0;
    options->ladders = command_data_path(&arguments->common, options->ladders);
    options->profile = profile;
    /* A path as it is, or the name of a file among the profiles. */
    if (profile != NULL && strpbrk(profile, "/.") == NULL) {
        (void)snprintf(arguments->path, sizeof arguments->path, "%s/%s.json", options->ladders,
                       profile);
        options->profile = arguments->path;
    }
    arguments->options.own = options;
    return EXIT_FINE;
}

#define ADAPTCACHE_NUMBER(option, field, unit, help)                                               \
    {                                                                                              \
        .name = (option), .argument = (unit), .text = (help), .kind = OPTION_NUMBER,               \
        .offset = offsetof(lab_arguments, field), .least = 0.001, .most = 1e6                      \
    }

static const command_option adaptcache_options[] = {
    QUICK("Two seeds, two settings of eight, two rates of six, fewer requests and mixes"),
    COUNT(seeds, "seeds", EXPERIMENT_SEEDS,
          "Runs of everything, 1 to 40 (default: 6); half of them choose, half judge"),
    THREADS_OPTION(lab_arguments, threads, 64, "Threads, 1 to 64 (default: 1)"),
    COUNT(uses, "uses", 1000, "Requests per context, of which 40 % warm the store (default: 10)"),
    COUNT(
        rate, "rate", EXPERIMENT_RATES,
        "One rate alone, 1 to 6: 0.3, 0.6, 0.9, 1.5, 2.5, 4 of what prefill bears (default: all)"),
    FLAG(coarse, "coarse", "Mixes of one variant in each tier, without halves between two"),
    TEXT(profile, "profile", "NAME",
         "Measured curves: profiles/NAME.json, or a file of quality rows (default: published "
         "losses)"),
    LIST_OPTION(lab_arguments, classes, "class", "CLASS", EXPERIMENT_TASKS, 0,
                "A class of the profile, three times: question answering, summarisation, agents "
                "(default: qa, summarisation, agent)"),
    TEXT(ladders, "ladders", "DIR",
         "Where ladder-adaptcache-*.json and codecs-gpu.json are (default: profiles)"),
    {.name = "loss",
     .argument = "METRIC",
     .text = "What a loss of the profile is: its own, or rouge_l, that of answers (profile)",
     .kind = OPTION_CHOICE,
     .offset = offsetof(lab_arguments, loss),
     .extra = "profile|rouge_l"},
    ADAPTCACHE_NUMBER("dram", dram_gb, "GB", "DRAM of the host (100)"),
    ADAPTCACHE_NUMBER("ssd", ssd_gb, "GB", "SSD of the host (400)"),
    ADAPTCACHE_NUMBER("ssd-speed", ssd_gb_per_s, "GB/s", "Its reading speed (1)"),
    ADAPTCACHE_NUMBER("prefill-speed", prefill_speed, "X",
                      "Speed of prefill, times that of Llama-3.1-8B at half of an A100's peak (1)"),
    GONE_OPTION("zipf", "gone: even and Zipf popularity are both run"),
    {0},
};

static const command_spec adaptcache_spec = {
    .name = "adaptcache",
    .summary = "AdaptCache's own experiment",
    .about = "AdaptCache's own experiment in virtual time: whole contexts of three task types on "
             "one A100 with 100 GB of DRAM and 400 GB of SSD at 1 GB/s. Its policy and ours at "
             "sixteen weights of quality, against fixed compression in LRU order, no "
             "compression, prefill and the best uniform mix, at six rates up to saturation, each "
             "task alone and all in one store, with even and with Zipf popularity. With "
             "--profile, losses and their spread are those that were measured on a model.",
    .example = "  kvlab adaptcache --quick",
    .options = adaptcache_options,
    RUNS(adaptcache, make_adaptcache, .ends_between_runs = true),
};

/* ---- codecs ---- */

static int make_codecs(lab_arguments *arguments)
{
    bench_codecs_options *options = &arguments->codecs;
    cut_names(arguments, arguments->variants);
    if (arguments->variants != NULL && arguments->names.count == 0)
        return command_misuse("--variants: no name");
    options->variants = arguments->names.items;
    options->variant_count = (uint32_t)arguments->names.count;
    /* The library does not look at the environment; this case does, so that one instruction set
     * can be chosen for it as for the tests. */
    const char *forced = getenv("KVT_CPU");
    if (options->isa == NULL && forced != NULL && forced[0] != '\0') options->isa = forced;
    arguments->options.own = options;
    return EXIT_FINE;
}

static const command_option codecs_options[] = {
    QUICK("32 MiB, the best instruction set"),
    TEXT(variants, "variants", "LIST", "Variants to measure, with blanks or ';' between them"),
    TEXT_OPTION(lab_arguments, codecs.isa, "isa", 'i', "NAME",
                "Only scalar, avx2 or avx512; KVT_CPU in the environment too"),
    GONE_OPTION("plot", "figures come from --json | kvterrace report - -o PAGE.html"),
    GONE_OPTION("model", "kvterrace profile quality judges variants on a model's KV"),
    COUNT(codecs.workers, "workers", 16, "Time whole records on N threads as well (wall clock)"),
    {0},
};

static const command_spec codecs_spec = {
    .name = "codecs",
    .summary = "codecs: speed, bits and loss",
    .about = "Encodes and decodes generated bf16 KV with every variant on every instruction set, "
             "one thread, beside memcpy; says what each variant costs in bits and does to the "
             "numbers.",
    .example = "  kvlab codecs --quick --variants 'lossless planes:k4v4,g64'",
    .options = codecs_options,
    RUNS(codecs, make_codecs),
    .lists = LISTS_VARIANTS,
};

/* ---- a GPU ---- */

static int make_gpu(lab_arguments *arguments)
{
    char reason[COMMAND_MESSAGE_BYTES / 2] = "", message[COMMAND_MESSAGE_BYTES];
    arguments->gpu.loads = arguments->loads;
    arguments->gpu.seconds = arguments->seconds;
    arguments->options.own = &arguments->gpu;
    (void)setenv("CUDA_CACHE_DISABLE", "1", 1); /* a first load is one */
    if (bench_gpu_answers(reason, sizeof reason)) return EXIT_FINE;
    (void)snprintf(message, sizeof message, "skipped, for no GPU answers: %s", reason);
    return command_fail(KVT_E_UNSUPPORTED, message);
}

static const command_option gpu_options[] = {
    QUICK("Fewer repetitions and 1,000 loads with faults: about a minute"),
    COUNT(loads, "loads", 1000000, "Loads with faults (default: 10000)"),
    COUNT(seconds, "seconds", 3600, "Begin no bar or case after so long (default: 420, quick 80)"),
    {0},
};

static const command_spec gpu_spec = {
    .name = "gpu",
    .summary = "decoding, verifying and loading on a GPU",
    .about = "Eight bars of the first GPU, beside copies within it and to it in the same run: "
             "kernels alone, entropy, checksums, loads from DRAM and from throttled drives, "
             "layers beside kernels, modules, loads with faults. Each row says what was asked and "
             "what was reached. At most 8 minutes; without a GPU it exits with 77.",
    .example = "  kvlab gpu --quick --json",
    .options = gpu_options,
    RUNS(gpu, make_gpu),
};

static int make_transform(lab_arguments *arguments)
{
    (void)arguments;
    command_choose_blas();
    return EXIT_FINE;
}

static const command_option transform_options[] = {QUICK("Three repetitions of each timing"), {0}};

static const command_spec transform_spec = {
    .name = "transform",
    .summary = "the transform codec on one thread",
    .about = "Times encoding and decoding under a basis that is learnt on generated KV, on every "
             "instruction set. One thread.",
    .example = "  kvlab transform --quick",
    .options = transform_options,
    RUNS(transform, make_transform),
};

/* ---- sparse decode in memory ---- */

static int make_decode(lab_arguments *arguments)
{
    decode_options *options = &arguments->decode;
    const uint32_t page = options->page_tokens;
    const bool quick = arguments->options.quick;
    if (page != 0 && (page & (page - 1)) != 0)
        return command_misuse("--page-tokens: %u is no power of two", page);
    options->dumps = arguments->dumps.items;
    options->dump_count = (uint32_t)arguments->dumps.count;
    if (options->dump_count == 0 && !options->cost && !options->synthetic)
        options->synthetic = options->cost = true;
    if (options->layers == 0) options->layers = 2;
    if (options->tokens == 0) options->tokens = quick ? 4096 : 131072;
    if (quick && options->rows == 0) options->rows = 8;
    options->seed = arguments->seed > 0 ? arguments->seed : 1;
    arguments->options.own = options;
    return EXIT_FINE;
}

static const command_option decode_rows[] = {
    QUICK("4,096 tokens and 8 steps of the generator"),
    LIST_OPTION(lab_arguments, dumps, "dump", "FILE", 0, OPTION_DATA,
                "K, V and queries (safetensors: k.<layer>, v.<layer>, q.<layer>); may be repeated"),
    FLAG(decode.synthetic, "synthetic",
         "The generator of Llama-3.1-8B's shape, too (default: without dumps)"),
    FLAG(decode.cost, "cost",
         "Time building and selecting at --tokens, too (default: without dumps)"),
    COUNT(decode.layers, "layers", 32, "Layers of the generator (default: 2)"),
    COUNT_OPTION(lab_arguments, decode.tokens, "tokens", 1024, 4194304,
                 "Tokens of the generator and of the timings (default: 131072)"),
    COUNT(decode.rows, "steps", DECODE_ROWS,
          "Steps of each source, at most (default: 256 of a dump, 32 of the generator)"),
    COUNT_OPTION(lab_arguments, decode.fall, "fall", 0, 16,
                 "Octaves from the first to the last channel of the timings' keys (default: 0)"),
    COUNT_OPTION(lab_arguments, decode.one_pass, "one-pass", 1, UINT32_MAX,
                 "Most clusters of an index whose steps score all in full (default: 1024)"),
    COUNT_OPTION(lab_arguments, decode.page_tokens, "page-tokens", 8, 128,
                 "Tokens of a page: 8, 16, 32, 64 or 128 (default: 4096 over head_dim)"),
    COUNT(seed, "seed", 1000000, "Seed (default: 1)"),
    {0},
};

static const command_spec decode_spec = {
    .name = "decode",
    .summary = "sparse decode: error and bytes of selection, precision, windows",
    .about =
        "Decodes over attention of dumps and of a generator with the cluster index, the "
        "baselines and windows of several rules, all in memory: bytes that a step reads, share "
        "of the attention that was read, error of the output against full attention. The "
        "queries of a dump with the metadata `queries: last` are those of its last tokens; "
        "others come after all of it.",
    .example = "  kvlab decode --quick",
    .options = decode_rows,
    RUNS(decode, make_decode, .ends_between_runs = true),
};

/* ---- selections that a model makes ---- */

static int make_given(lab_arguments *arguments)
{
    if (arguments->dumps.count == 0) {
        (void)fprintf(stderr, "kvlab given: there is no data: name a dump with --dump\n");
        return EXIT_ABSENT;
    }
    arguments->given = (decode_given_options){.paths = arguments->dumps.items,
                                              .count = (uint32_t)arguments->dumps.count};
    arguments->options.own = &arguments->given;
    return EXIT_FINE;
}

static const command_option given_options[] = {
    QUICK("8 steps of one share: shows that it runs, not how fast"),
    LIST_OPTION(lab_arguments, dumps, "dump", "FILE", 0, OPTION_DATA,
                "K, V and queries of the last tokens (as for decode); may be repeated"),
    {0},
};

static const command_spec given_spec = {
    .name = "given",
    .summary = "steps of a model that selects by itself, on the drives",
    .about =
        "The heaviest tokens of a dump's attention stand for what a model would select. K and V of "
        "all heads lie as latents on every configured device of the tier ssd, which are "
        "overwritten. Bytes, hits in DRAM and seconds of a step, beside an LRU of fixed blocks; "
        "with computing, with and without hints. Exits 1 when a row is wrong or missing, 77 "
        "without a dump.",
    .details = DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab given --dump qa.safetensors",
    .options = given_options,
    .argument_bytes = sizeof(lab_arguments),
    .standard = &(const lab_arguments){.one = {&decode_given_case, make_given, .drives = true}},
    .run = lab_run,
    .check = lab_take_drives,
    .settings = SETTINGS_OWN,
};

const command_spec *const lab_commands[] = {
    &ablation_spec, &adaptcache_spec, &codecs_spec,    &decode_spec,  &given_spec,
    &gpu_spec,      &keep_spec,       &live_spec,      &objects_spec, &pipeline_spec,
    &policy_spec,   &ring_spec,       &sequence_spec,  &serve_spec,   &slack_spec,
    &store_spec,    &stripe_spec,     &transform_spec, NULL,
};
