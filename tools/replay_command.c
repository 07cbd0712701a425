/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_command.c - kvterrace replay: a workload, policies, a mode; results as table or JSON, and
 * as a page.
 *
 * Runs are made one after the other in this thread: every policy with every seed. Exit 1 when a
 * live run gave back wrong bytes or its moves differ from its plan log.
 */
#include "commands.h"
#include "profile_document.h"

#include "base/config_values.h"
#include "estimator/model/whole_file.h"
#include "replay/live.h"
#include "replay/replay.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#define REPLAY_SEEDS_MAX 1000u

typedef struct replay_arguments {
    command_common common;
    const char *trace;
    const char *report;
    const char *policies;
    const char *workload; /* "poisson", or NULL */
    unsigned live;        /* the place of the mode in sim|live */
    const char *mix, *variant;
    bool draw, verbose;
    uint32_t sessions;   /* 0: not given */
    loop_arguments loop; /* --model: of these, what the table below fills */
} replay_arguments;

/* One run of the command, from settings to results. */
typedef struct replay_session {
    const replay_arguments *arguments;
    replay_options options;
    kvt_store_options store; /* live only, with what it points to */
    void *store_owner;
    kvt_store_options live_store; /* the same with `profile` */
    double others_share;          /* of the processors, in a live run */
    live_profile profile;         /* as it was at the beginning: all runs begin with it */
    replay_live live;
    replay_workload workload; /* of the first seed */
    command_names policies;
    uint64_t first_seed;
    replay_result *results; /* policy by policy, seed by seed; the finished ones in the end */
    bool *finished;         /* of the runs */
    size_t run_count, result_count;
    bool input_fault; /* what failed is a setting or a file that was named, not the run */
    char message[COMMAND_MESSAGE_BYTES];
} replay_session;

static const command_option replay_rows[] = {
    TRACE_OPTION(replay_arguments, trace, "Replay a trace"),
    TEXT_OPTION(replay_arguments, workload, "workload", 'w', "poisson",
                "Replay a generated workload, made by the settings in [workload]"),
    TEXT_OPTION(replay_arguments, policies, "policy", 'p', "LIST",
                "Policies to compare, such as lru,utility (store.policy); in simulation also "
                "oracle, utility with the future's rates: a bound"),
    {.name = "mode",
     .letter = 'm',
     .argument = "sim|live",
     .text = "Virtual time, or a real store with real bytes (sim)",
     .kind = OPTION_CHOICE,
     .offset = offsetof(replay_arguments, live),
     .extra = "sim|live"},
    FLAG_OPTION(replay_arguments, draw, "draw", 0,
                "Draw the trace's sessions with replacement, for each seed anew"),
    COUNT_OPTION(replay_arguments, sessions, "sessions", 1, 1u << 24,
                 "Sessions of one draw (as many as the trace has)"),
    FLAG_OPTION(replay_arguments, verbose, "verbose", 'v',
                "Print hits, traffic and moves too, behind the times"),
    TEXT_OPTION(replay_arguments, report, "report", 'r', "FILE",
                "Write a page too, as kvterrace report does"),
    SETTING_OPTION("store.profile", "database", 'd', "FILE", "Profile database (store.profile)"),
    SETTING_OPTION("replay.seed", "seed", 'S', "N",
                   "Seed of the workload and of live bytes (replay.seed)"),
    SETTING_OPTION("replay.seeds", "seeds", 0, "N",
                   "Runs per policy, each with the next seed (replay.seeds)"),
    SETTING_OPTION("replay.limit", "limit", 0, "N", "Requests to replay (replay.limit)"),
    SETTING_OPTION("replay.scale", "scale", 0, "X",
                   "Live: factor on bytes and seconds (replay.scale)"),
    SETTING_OPTION("replay.plan_log", "plan-log", 0, "FILE",
                   "Write every move, one line each (replay.plan_log); of several runs, to "
                   "FILE.POLICY.SEED"),
    SETTING_OPTION("replay.explain", "explain", 0, "N",
                   "Simulation: say why each of the N stored blocks that the engine expects to be "
                   "used soonest is where it is, and by which reuse expert (replay.explain)"),
    TEXT_OPTION(
        replay_arguments, mix, "mix", 0, "LIST",
        "Simulation: variants that each tier offers, by their places on the ladder, such as "
        "dram=0,ssd=1/3@0.4, where four entries in ten get the second"),
    TEXT_OPTION(replay_arguments, variant, "variant", 0, "VARIANT",
                "Simulation: what policies with one variant store, any of the ladder "
                "(store.variant)"),
    GONE_OPTION("compare", "lab/compare.py compares policies at equal quality"),
    {.name = "model",
     .argument = "FOLDER",
     .text = "Live: a model answers questions about real contexts from what the store gives back; "
             "policies are then also lru+VARIANT and lru+mix (docs/LOOP.md). The options below are "
             "for this",
     .kind = OPTION_TEXT,
     .flags = OPTION_DATA,
     .offset = offsetof(replay_arguments, loop.model)},
    LIST_OPTION(replay_arguments, loop.texts, "text", "[CLASS=]FILE", 8, OPTION_DATA,
                "JSONL with contexts and questions of one class; may be repeated"),
    TEXT_OPTION(replay_arguments, loop.tokenizer, "tokenizer", 0, "FILE",
                "The model's vocabulary (tokenizer.bin beside it)"),
    TEXT_OPTION(replay_arguments, loop.name, "name", 0, "NAME",
                "What the profile calls the model (from its path)"),
    COUNT_OPTION(replay_arguments, loop.contexts, "contexts", 1, 1u << 20,
                 "Contexts at most, of all classes (all that the texts have)"),
    COUNT_OPTION(replay_arguments, loop.context_tokens, "context-tokens", 1, 65536,
                 "Of texts that do not say: tokens of a context (768)"),
    COUNT_OPTION(replay_arguments, loop.continuation_tokens, "continuation-tokens", 1, 65536,
                 "Of texts that do not say: tokens after it (200)"),
    COUNT_OPTION(replay_arguments, loop.answer_tokens, "answer-tokens", 1, 4096,
                 "Tokens of an answer at most (32)"),
    {.name = "prefill",
     .argument = "once|each",
     .text = "A miss takes the seconds that its context's prefill took once, or is computed again "
             "(once)",
     .kind = OPTION_CHOICE,
     .offset = offsetof(replay_arguments, loop.prefill),
     .extra = "once|each"},
    {.name = "mix-loss",
     .argument = "X",
     .text = "Mean loss that lru+mix may be predicted to have (what utility's hits are)",
     .kind = OPTION_SHARE,
     .offset = offsetof(replay_arguments, loop.mix_loss),
     .most = 1},
    {.name = "loss",
     .argument = "METRIC",
     .text = "What a loss is, as the ladder's were measured: top1, rouge_l or f1 (top1)",
     .kind = OPTION_CHOICE,
     .offset = offsetof(replay_arguments, loop.loss),
     .extra = "top1|rouge_l|f1"},
    {.name = "use",
     .argument = "USE",
     .text = "What the KV is for: answers, recall or the worse (worse)",
     .kind = OPTION_CHOICE,
     .offset = offsetof(replay_arguments, loop.use),
     .extra = "worse|answers|recall"},
    FLAG_OPTION(replay_arguments, loop.observe, "observe", 0,
                "Tell the store what each answer lost, so that it learns"),
    TEXT_OPTION(replay_arguments, loop.cache, "cache", 0, "FOLDER",
                "Keep exact KV and answers here, for runs that go on"),
    {0},
};

int tools_check_workload(const char **trace, const char *workload)
{
    if (workload != NULL && strcmp(workload, "poisson") != 0)
        return command_misuse("unknown workload '%.200s': poisson is the one there is", workload);
    if (*trace != NULL && workload != NULL)
        return command_misuse("--trace and --workload exclude each other");
    if (*trace != NULL && strcmp(*trace, "-") == 0) *trace = "/dev/stdin";
    return EXIT_FINE;
}

static int replay_check(void *context)
{
    replay_arguments *arguments = context;
    if (!arguments->trace && !arguments->workload)
        return command_misuse("what is to be replayed? --trace FILE or --workload poisson");
    const int code = tools_check_workload(&arguments->trace, arguments->workload);
    if (code != EXIT_FINE) return code;
    if ((arguments->mix != NULL || arguments->variant != NULL) && arguments->live)
        return command_misuse("--mix and --variant are of simulations, not of --mode live");
    const loop_arguments *loop = &arguments->loop;
    if (loop->model == NULL &&
        (loop->texts.count > 0 || loop->tokenizer || loop->name || loop->contexts ||
         loop->context_tokens || loop->continuation_tokens || loop->answer_tokens ||
         loop->prefill || loop->loss || loop->use || loop->observe || loop->cache ||
         loop->mix_loss >= 0))
        return command_misuse("--text and the options below it are options of --model");
    if (loop->model != NULL && !arguments->live)
        return command_misuse("--model goes with --mode live");
    if (loop->model != NULL && arguments->verbose)
        return command_misuse("--verbose is not of --model");
    if (loop->model != NULL && loop->texts.count == 0) return command_misuse("--text is missing");
    if (arguments->draw && !arguments->trace) return command_misuse("--draw goes with --trace");
    if (arguments->sessions && !arguments->draw)
        return command_misuse("--sessions goes with --draw");
    return EXIT_FINE;
}

kvt_status command_try_policies(kvt_config *config, const char *policies)
{
    char *list = NULL;
    if (policies == NULL) return KVT_OK;
    /* The oracle is utility, told of the future. */
    const char *oracle = strstr(policies, REPLAY_ORACLE);
    if (asprintf(&list, "%s%s", policies, oracle != NULL ? ",utility" : "") < 0)
        return KVT_E_MEMORY;
    const kvt_status status = kvt_config_try_policies(config, list);
    free(list);
    return status;
}

kvt_status command_cut_names(const char *list, command_names *names, char *message,
                             size_t message_size)
{
    *names = (command_names){.text = strdup(list)};
    if (names->text == NULL) return KVT_E_MEMORY;
    char *rest = names->text, *name;
    while ((name = strsep(&rest, ",")) != NULL) {
        const char *fault = names->count == COMMAND_NAMES_MAX ? "one name too many" : NULL;
        for (size_t i = 0; i < names->count && fault == NULL; i++)
            if (strcmp(names->names[i], name) == 0) fault = "named twice";
        if (fault != NULL) {
            (void)snprintf(message, message_size, "policy '%.100s' is %s", name, fault);
            return KVT_E_CONFIG;
        }
        names->names[names->count++] = name;
    }
    return KVT_OK;
}

void command_names_free(command_names *names)
{
    free(names->text);
    *names = (command_names){.text = NULL};
}

/* KVT_OK; KVT_E_CONFIG: no policy has this name, and perhaps one is near. */
static kvt_status replay_check_policy(const char *name, char *message, size_t message_size)
{
    const char *known;
    for (size_t i = 0; (known = kvt_policy_name_get(i)) != NULL; i++)
        if (strcmp(known, name) == 0) return KVT_OK;
    if (strcmp(name, REPLAY_ORACLE) == 0) {
        (void)snprintf(message, message_size,
                       "policy 'oracle' knows what comes: it is of simulations alone");
        return KVT_E_CONFIG;
    }
    (void)snprintf(message, message_size, "unknown policy '%.100s'%s", name,
                   name[0] == '\0' ? ": an empty name in the list" : "");
    command_suggest(message, message_size, name, kvt_policy_name_get);
    return KVT_E_CONFIG;
}

/* Checks each name before a long run starts. */
static kvt_status replay_take_policies(replay_session *session, const char *list)
{
    kvt_status status =
        command_cut_names(list, &session->policies, session->message, sizeof session->message);
    for (size_t i = 0; status == KVT_OK && i < session->policies.count; i++)
        if (session->arguments->live || strcmp(session->policies.names[i], REPLAY_ORACLE) != 0)
            status = replay_check_policy(session->policies.names[i], session->message,
                                         sizeof session->message);
    return status;
}

kvt_status command_read_trace(const command_common *common, const char *path,
                              const replay_trace_options *options, replay_workload *workload,
                              char *message, size_t message_size)
{
    kvt_config *config = common->config;
    const uint64_t blocks = kvt_config_bytes(config, "replay.block_tokens");
    replay_trace_options trace = *options;
    trace.conversations_per_s = kvt_config_number(config, "workload.rate");
    trace.block_tokens = (uint32_t)blocks;
    if (!(trace.conversations_per_s > 0.0 && trace.conversations_per_s <= 1e6)) {
        (void)snprintf(message, message_size,
                       "workload.rate: above 0, up to 1e6 conversations per second");
        return KVT_E_CONFIG;
    }
    kvt_status status = replay_workload_read(path, &trace, workload, message, message_size);
    if (status != KVT_OK) return status;
    if (workload->conversations_per_s == 0.0 && command_was_set(common, "workload.rate")) {
        (void)snprintf(message, message_size,
                       "workload.rate has no effect here: the trace has arrival times");
        return KVT_E_CONFIG;
    }
    if (workload->block_tokens == blocks || !kvt_config_has(config, "replay.block_tokens"))
        return KVT_OK;
    (void)snprintf(message, message_size,
                   "replay.block_tokens has no effect here: the trace has blocks of %u tokens",
                   (unsigned)workload->block_tokens);
    return KVT_E_CONFIG;
}

static kvt_status replay_make_workload(replay_session *session, uint64_t seed,
                                       replay_workload *workload)
{
    const replay_arguments *arguments = session->arguments;
    char *const message = session->message;
    if (arguments->trace) {
        /* All seeds draw from the same requests. */
        const replay_trace_options options = {.seed = arguments->draw ? 1 : seed,
                                              .limit = session->options.limit,
                                              .keep_steps = arguments->draw};
        replay_workload trace = {0};
        kvt_status status = command_read_trace(&arguments->common, arguments->trace, &options,
                                               arguments->draw ? &trace : workload, message,
                                               sizeof session->message);
        if (status == KVT_OK && arguments->draw)
            status = replay_resample(&trace, seed, arguments->sessions, workload);
        if (status == KVT_OK && seed == session->first_seed && workload->note[0] != '\0')
            command_note(&arguments->common, "%s: %s", workload->name, workload->note);
        replay_workload_free(&trace);
        return status;
    }
    replay_generator generator;
    replay_generator_read(arguments->common.config, &generator);
    generator.seed = seed;
    return replay_workload_generate(&generator, workload, message, sizeof session->message);
}

/* The plan log of one run among several: FILE.policy.seed. Returns KVT_E_MEMORY or KVT_OK. */
static kvt_status replay_name_log(const replay_session *session, const char *base,
                                  const char *policy, uint64_t seed, char **name_out)
{
    *name_out = NULL;
    if (!base) return KVT_OK;
    int length = session->run_count == 1
                     ? asprintf(name_out, "%s", base)
                     : asprintf(name_out, "%s.%s.%llu", base, policy, (unsigned long long)seed);
    if (length >= 0) return KVT_OK;
    *name_out = NULL;
    return KVT_E_MEMORY;
}

/* Where the bar is in one of the runs. */
typedef struct replay_place {
    command_progress *bar;
    const char *what;
    double before, share;
} replay_place;

static bool replay_proceed(void *context, double done)
{
    const replay_place *place = context;
    return progress_ask(place->bar, place->before + done * place->share, place->what);
}

static kvt_status replay_run_one(replay_session *session, const replay_workload *workload,
                                 const char *policy, uint64_t seed, replay_result *result)
{
    replay_options options = session->options;
    char *log = NULL, *partial = NULL;
    kvt_status status = replay_name_log(session, session->options.plan_log, policy, seed, &log);
    if (status == KVT_OK && log)
        status = whole_file_begin(log, &partial, session->message, sizeof session->message);
    options.plan_log = partial;
    options.seed = seed;
    if (status == KVT_OK && session->arguments->live) {
        status = replay_run_live(&options, workload, &session->live, policy, result,
                                 session->message, sizeof session->message);
    } else if (status == KVT_OK) {
        status = replay_run_sim(&options, workload, policy, result, session->message,
                                sizeof session->message);
    }
    if (status == KVT_E_SPACE && session->arguments->live && options.scale != 1.0) {
        const size_t used = strlen(session->message);
        (void)snprintf(session->message + used, sizeof session->message - used,
                       " (the settings' sizes times replay.scale, %g)", options.scale);
    }
    /* A device that is too small, or holds other bytes, was found when the store was opened. */
    session->input_fault =
        session->arguments->live && (status == KVT_E_SPACE || status == KVT_E_MISMATCH);
    status = whole_file_end(&partial, log, status, session->message, sizeof session->message);
    free(log);
    return status;
}

/* The bound is the workload's: once for all policies. */
static kvt_status replay_find_bound(replay_session *session, const replay_workload *workload,
                                    uint64_t seed, replay_bound *bound)
{
    replay_options options = session->options;
    options.seed = seed;
    if (session->arguments->live || !options.bounds) return KVT_OK;
    kvt_status status = replay_bound_find(&options, workload, bound);
    if (status != KVT_OK) {
        (void)snprintf(session->message, sizeof session->message, "the bound of %s: %s",
                       workload->name, kvt_status_text(status));
    }
    return status;
}

/* Runs every policy with one seed. The runs that were finished are counted, in order of policies,
 * even where a later one fails. */
static kvt_status replay_run_seed(replay_session *session, command_progress *bar,
                                  const replay_workload *workload, size_t s)
{
    const size_t seeds = session->run_count / session->policies.count;
    const uint64_t seed = session->first_seed + s;
    replay_bound bound = {0};
    kvt_status status = command_interrupted() ? KVT_E_CANCELLED : KVT_OK;
    if (status == KVT_OK) status = replay_find_bound(session, workload, seed, &bound);
    for (size_t p = 0; p < session->policies.count && status == KVT_OK; p++) {
        replay_result *result = &session->results[p * seeds + s];
        char what[64];
        (void)snprintf(what, sizeof what, "%s, seed %llu", session->policies.names[p],
                       (unsigned long long)seed);
        replay_place place = {.bar = bar,
                              .what = what,
                              .before = (double)(s * session->policies.count + p) /
                                        (double)session->run_count,
                              .share = 1.0 / (double)session->run_count};
        session->options.proceed = replay_proceed;
        session->options.proceed_context = &place;
        (void)replay_proceed(&place, 0);
        status = replay_run_one(session, workload, session->policies.names[p], seed, result);
        result->bound = bound;
        session->finished[p * seeds + s] = status == KVT_OK;
    }
    session->options.proceed = NULL;
    return status;
}

static kvt_status replay_run_all(replay_session *session)
{
    command_progress bar;
    kvt_status status = KVT_OK;
    progress_start(&bar, &session->arguments->common);
    size_t seeds = session->run_count / session->policies.count;
    for (size_t s = 0; s < seeds && status == KVT_OK; s++) {
        replay_workload other = {0};
        replay_workload *workload = s == 0 ? &session->workload : &other;
        progress_update(&bar, (double)s / (double)seeds, "reading the workload");
        status = replay_make_workload(session, session->first_seed + s, workload);
        session->input_fault = status != KVT_OK;
        if (status == KVT_OK) status = replay_run_seed(session, &bar, workload, s);
        replay_workload_free(&other);
    }
    progress_end(&bar);
    return status;
}

/* Moves the finished runs to the front. */
static void replay_keep_finished(replay_session *session)
{
    size_t kept = 0;
    for (size_t i = 0; i < session->run_count; i++) {
        if (!session->finished[i]) continue;
        replay_result result = session->results[i];
        session->results[i] = session->results[kept];
        session->results[kept++] = result;
    }
    session->result_count = kept;
}

void command_describe_run(command_run *run)
{
    const time_t now = time(NULL);
    struct tm calendar;
    struct utsname system;
    char model[128] = "unknown processor";
    char line[256];
    if (uname(&system) != 0) memset(&system, 0, sizeof system);
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "model name : %127[^\n]", model) == 1) break;
    }
    if (file) (void)fclose(file);
    (void)snprintf(run->machine, sizeof run->machine, "%s %s %s, %s", system.sysname,
                   system.release, system.machine, model);
    if (gmtime_r(&now, &calendar) == NULL ||
        strftime(run->date, sizeof run->date, "%Y-%m-%dT%H:%M:%SZ", &calendar) == 0)
        run->date[0] = '\0';
}

static kvt_status replay_print_page(const void *report, FILE *out)
{
    return replay_print_json(report, out);
}

/* Whether the profile that the run is based on is a busy machine's. */
static bool replay_is_profile_busy(const replay_session *session)
{
    char message[COMMAND_MESSAGE_BYTES];
    kvt_config *config = session->arguments->common.config;
    kvt_profile *profile = NULL;
    json_t *document = NULL;
    if (!kvt_config_text(config, "store.profile")) return false;
    const profile_view view = {.path = command_profile_path(config)};
    kvt_status status =
        command_profile_open(config, KVT_PROFILE_READ, &profile, message, sizeof message);
    if (status == KVT_OK) status = profile_document_make(profile, &view, &document);
    bool busy = status == KVT_OK && profile_document_is_busy(document);
    json_decref(document);
    kvt_profile_close(profile);
    return busy;
}

static kvt_status replay_print(replay_session *session)
{
    const replay_arguments *arguments = session->arguments;
    command_run run;
    command_describe_run(&run);
    replay_report report = {.version = kvt_version(),
                            .command = arguments->common.line,
                            .machine = run.machine,
                            .date = run.date,
                            .options = &session->options,
                            .store = arguments->live ? &session->store : NULL,
                            .workload = &session->workload,
                            .results = session->results,
                            .result_count = session->result_count,
                            .profile_busy = replay_is_profile_busy(session),
                            .others_share = session->others_share};
    kvt_status status = arguments->common.json
                            ? replay_print_json(&report, stdout)
                            : replay_print_text(&report, arguments->verbose, stdout);
    if (status == KVT_OK && arguments->report) {
        status = report_page_write(arguments->report, report.workload->name, replay_print_page,
                                   &report, session->message, sizeof session->message);
        if (status == KVT_OK) command_note(&arguments->common, "report: %s", arguments->report);
    }
    return status;
}

static int replay_judge(const replay_session *session)
{
    for (size_t i = 0; i < session->result_count; i++) {
        const replay_result *result = &session->results[i];
        if (!session->arguments->live) break;
        if (result->wrong_bytes > 0 || !result->moves_match) {
            fprintf(stderr, "kvterrace replay: %s: %llu requests got wrong bytes, moves %s\n",
                    result->policy, (unsigned long long)result->wrong_bytes,
                    result->moves_match ? "agree with the plan log" : "differ from the plan log");
            return EXIT_FAILED;
        }
    }
    return EXIT_FINE;
}

/* A live replay hands the profile to the store; whether it can be used is found before the run. */
static kvt_status replay_try_profile(replay_session *session)
{
    const kvt_store_options *store = &session->store;
    kvt_profile *profile = NULL;
    if (!store->learning.profile_path) return KVT_OK;
    uint32_t flags =
        KVT_PROFILE_READ | (store->learning.profile_foreign ? KVT_PROFILE_FOREIGN : 0u);
    kvt_status status = kvt_profile_open(store->learning.profile_path, flags, &profile,
                                         session->message, sizeof session->message);
    kvt_profile_close(profile);
    if (status != KVT_MISS) return status;
    (void)snprintf(session->message, sizeof session->message, "%.300s: no such profile",
                   store->learning.profile_path);
    return KVT_E_GONE;
}

/* Checks output files before a long run. */
static kvt_status replay_try_targets(replay_session *session)
{
    const command_common *common = &session->arguments->common;
    const char *report = session->arguments->report, *base = session->options.plan_log;
    size_t seeds = session->run_count / session->policies.count;
    kvt_status status = KVT_OK;
    if (report)
        status = command_check_target(common, "report", report, session->message,
                                      sizeof session->message);
    if (status == KVT_OK && report && base && strcmp(report, base) == 0) {
        (void)snprintf(session->message, sizeof session->message,
                       "report and plan log are both %.300s", report);
        return KVT_E_CONFIG;
    }
    for (size_t i = 0; status == KVT_OK && base && i < session->run_count; i++) {
        char *log = NULL;
        status = replay_name_log(session, base, session->policies.names[i / seeds],
                                 session->first_seed + i % seeds, &log);
        if (status == KVT_OK)
            status = command_check_target(common, "plan log", log, session->message,
                                          sizeof session->message);
        free(log);
    }
    return status;
}

static kvt_status replay_prepare(replay_session *session)
{
    const replay_arguments *arguments = session->arguments;
    kvt_config *config = arguments->common.config;
    kvt_status status = command_try_policies(config, arguments->policies);
    if (status == KVT_OK)
        status = replay_options_read(config, arguments->live, &session->options, session->message,
                                     sizeof session->message);
    if (status == KVT_OK && arguments->variant != NULL &&
        kvt_variant_parse(arguments->variant, &session->options.variant) != KVT_OK) {
        (void)snprintf(session->message, sizeof session->message,
                       "--variant: unknown variant '%.100s'", arguments->variant);
        return KVT_E_CONFIG;
    }
    if (status == KVT_OK && arguments->mix != NULL)
        status = replay_mix_read(arguments->mix, &session->options, session->message,
                                 sizeof session->message);
    if (status == KVT_OK && arguments->live) {
        session->store.struct_size = sizeof session->store;
        status = kvt_store_options_read(config, &session->store, &session->store_owner,
                                        session->message, sizeof session->message);
        if (status == KVT_OK && session->store.durability.catalog_path) {
            command_note(&arguments->common,
                         "store.catalog is left alone: nothing of a live replay survives it");
        }
        if (status == KVT_OK) status = replay_try_profile(session);
        /* From here on there is something to clean up. */
        command_catch_interrupts();
        if (status == KVT_OK)
            status = live_profile_make(&session->profile, session->store.learning.profile_path,
                                       session->message, sizeof session->message);
        session->live_store = session->store;
        if (session->profile.path[0] != '\0')
            session->live_store.learning.profile_path = session->profile.path;
        session->live.store = &session->live_store;
        session->live.interrupted = command_interrupted;
    }
    if (status != KVT_OK) return status;
    status = replay_take_policies(session, arguments->policies
                                               ? arguments->policies
                                               : kvt_config_text(config, "store.policy"));
    if (status != KVT_OK) return status;
    uint64_t seeds = kvt_config_bytes(config, "replay.seeds");
    session->first_seed = session->options.seed;
    if (seeds < 1 || seeds > REPLAY_SEEDS_MAX) {
        (void)snprintf(session->message, sizeof session->message,
                       "replay.seeds: %llu is not from 1 to %u", (unsigned long long)seeds,
                       REPLAY_SEEDS_MAX);
        return KVT_E_CONFIG;
    }
    session->run_count = session->policies.count * (size_t)seeds;
    session->results = calloc(session->run_count, sizeof *session->results);
    session->finished = calloc(session->run_count, sizeof *session->finished);
    if (!session->results || !session->finished) return KVT_E_MEMORY;
    status = replay_try_targets(session);
    if (status != KVT_OK) return status;
    /* Marks the workload's settings as used before anything long starts. */
    replay_generator generator;
    if (arguments->workload) {
        replay_generator_read(config, &generator);
        return replay_generator_check(&generator, session->message, sizeof session->message);
    }
    (void)kvt_config_number(config, "workload.rate");
    return KVT_OK;
}

static int replay_run_session(replay_arguments *arguments)
{
    /* A file's [store], [tier.*] and [device.*] serve both modes; what one of them leaves is no
     * error. */
    static const char *const sections[] = {"replay", "prefill", NULL};
    static const char *const all_sections[] = {"replay", "prefill", "workload", NULL};
    replay_session session = {.arguments = arguments};
    replay_options_init(&session.options);
    kvt_status status = replay_prepare(&session);
    session.input_fault = status != KVT_OK;
    int code = EXIT_FINE;
    if (status == KVT_OK) {
        code = command_report_unused(&arguments->common,
                                     arguments->workload ? all_sections : sections);
    }
    if (status == KVT_OK && code == EXIT_FINE) {
        command_processors processors;
        command_catch_interrupts();
        command_others_begin(&processors);
        status = replay_run_all(&session);
        if (arguments->live)
            session.others_share = command_others_end(&processors, &arguments->common);
        replay_keep_finished(&session);
        const bool cancelled = status == KVT_E_CANCELLED;
        if (cancelled)
            (void)snprintf(session.message, sizeof session.message,
                           "interrupted; %zu of %zu runs were finished", session.result_count,
                           session.run_count);
        if (status == KVT_OK || (cancelled && session.result_count > 0)) {
            kvt_status printed = replay_print(&session);
            if (printed != KVT_OK) status = printed;
        }
        if (status == KVT_OK) code = replay_judge(&session);
    }
    if (status != KVT_OK) {
        live_profile_name_source(&session.profile, session.message, sizeof session.message);
        code = session.input_fault ? command_fail_input(status, session.message)
                                   : command_fail(status, session.message);
    }
    live_profile_remove(&session.profile);
    replay_workload_free(&session.workload);
    replay_options_free(&session.options);
    kvt_store_options_free(session.store_owner);
    for (size_t i = 0; i < session.run_count && session.results != NULL; i++)
        replay_result_free(&session.results[i]);
    free(session.results);
    free(session.finished);
    command_names_free(&session.policies);
    return code;
}

static int replay_start(void *context)
{
    replay_arguments *arguments = context;
    command_data_setting(&arguments->common, "replay.ladder", "profile:");
    if (arguments->loop.model != NULL) {
        arguments->loop.trace = arguments->trace;
        arguments->loop.policies = arguments->policies;
        arguments->loop.report = arguments->report;
        return command_loop(&arguments->common, &arguments->loop);
    }
    return replay_run_session(arguments);
}

static const replay_arguments replay_standard = {.loop.mix_loss = -1.0};

const command_spec replay_spec = {
    .name = "replay",
    .summary = "run a trace or a generated workload against policies",
    .about = "Replays a workload against each policy: in virtual time on modelled devices, or live "
             "on a real store. The default tiers of a simulation are 100 GB of DRAM and 400 GB of "
             "SSD, as fast as the profile says. An interruption prints the runs that were "
             "finished.",
    .synopsis = "--trace FILE|--workload poisson",
    .example = "  kvterrace replay --workload poisson --policy lru,utility --report run.html\n"
               "  kvterrace replay --trace trace.jsonl --policy lru,utility "
               "\\\n    --set tier.dram.capacity=125g --set tier.ssd.capacity=500g",
    .options = replay_rows,
    .argument_bytes = sizeof(replay_arguments),
    .standard = &replay_standard,
    .check = replay_check,
    .run = replay_start,
    .settings = SETTINGS_OWN,
    .lists = LISTS_POLICIES | LISTS_SETTINGS,
};
