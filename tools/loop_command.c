/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop_command.c - kvterrace replay --mode live --model: requests over real contexts, answered by a
 * model from what a real store gives back (docs/LOOP.md). Exit 1 when exact forms gave back other
 * bytes, or equal bytes another first token.
 *
 * Contenders run one after the other in this thread; a mix runs last, because what utility served
 * says how much it may lose.
 */
#include "commands.h"
#include "profile_measure.h"

#include "base/config_values.h"
#include "replay/loop/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOOP_SEEDS_MAX     100u
#define LOOP_ANSWER_TOKENS 32u
#define LOOP_STANDARD      "lru,lru+mix,adaptcache,utility"

typedef struct loop_work {
    const command_common *common;
    const loop_arguments *arguments;
    replay_options options;
    kvt_store_options store;
    void *store_owner;
    loop_text texts[LOOP_CLASSES_MAX];
    loop_site site;
    loop_contender contenders[COMMAND_NAMES_MAX];
    uint32_t contender_count;
    uint32_t seeds;
    loop_ladder ladder;
    replay_workload workload; /* of the first seed */
    loop_requests requests;
    loop_result *results; /* seed by seed, contenders in the order of the list */
    size_t result_count;
    double others_share; /* of the processors */
    bool input_fault;
    command_progress bar;
    char message[COMMAND_MESSAGE_BYTES];
} loop_work;

/* ---- before anything runs ---- */

static kvt_status loop_take_contenders(loop_work *work)
{
    const char *list = work->arguments->policies;
    command_names names;
    kvt_status status = command_cut_names(list != NULL ? list : LOOP_STANDARD, &names,
                                          work->message, sizeof work->message);
    for (size_t i = 0; status == KVT_OK && i < names.count; i++) {
        status = loop_contender_parse(names.names[i], &work->contenders[i], work->message,
                                      sizeof work->message);
        work->contender_count += status == KVT_OK;
    }
    command_names_free(&names);
    return status;
}

static kvt_status loop_take_texts(loop_work *work)
{
    const command_list *texts = &work->arguments->texts;
    for (size_t i = 0; i < texts->count; i++) {
        const char *text = texts->items[i], *mark = strchr(text, '=');
        const size_t length = mark != NULL ? (size_t)(mark - text) : strlen(MEASURE_CLASS);
        loop_text *one = &work->texts[i];
        if (i == LOOP_CLASSES_MAX || length >= sizeof one->class_name) {
            (void)snprintf(work->message, sizeof work->message,
                           "%.100s: at most %d classes, each of 1 to 63 bytes", text,
                           LOOP_CLASSES_MAX);
            return KVT_E_ARGUMENT;
        }
        (void)snprintf(one->class_name, sizeof one->class_name, "%.*s", (int)length,
                       mark != NULL ? text : MEASURE_CLASS);
        one->path = mark != NULL ? mark + 1 : text;
    }
    return KVT_OK;
}

static bool loop_proceed(void *context, double done, const char *what)
{
    loop_work *work = context;
    return progress_ask(&work->bar, done, what);
}

static kvt_status loop_open_site(loop_work *work)
{
    const loop_arguments *arguments = work->arguments;
    const loop_options options = {
        .model = arguments->model,
        .tokenizer = arguments->tokenizer,
        .name = arguments->name,
        .texts = work->texts,
        .text_count = (uint32_t)arguments->texts.count,
        .contexts = arguments->contexts,
        .context_tokens = measure_or(arguments->context_tokens, MEASURE_CONTEXT_TOKENS),
        .continuation_tokens =
            measure_or(arguments->continuation_tokens, MEASURE_CONTINUATION_TOKENS),
        .answer_tokens = measure_or(arguments->answer_tokens, LOOP_ANSWER_TOKENS),
        .prefill_each = arguments->prefill == 1,
        .observe = arguments->observe,
        .metric = (quality_metric)arguments->loss,
        .use = (quality_use)arguments->use,
        .cache = arguments->cache,
        .proceed = loop_proceed,
        .proceed_context = work};
    return loop_open(&options, &work->site, work->message, sizeof work->message);
}

/* With a profile there is a ladder, of the model's layout, whose settings count then. */
static kvt_status loop_set_ladder(loop_work *work)
{
    kvt_config *config = work->common->config;
    const kvt_layout layout = loop_layout(&work->site, 1);
    char text[96];
    if (kvt_config_text(config, "store.profile") == NULL) return KVT_OK;
    (void)snprintf(text, sizeof text, "store.ladder_layout=%ux%ux%u:fp16,drop", layout.layers,
                   layout.kv_heads, layout.head_dim);
    kvt_status status =
        kvt_config_set(config, "store.ladder=calibrated", work->message, sizeof work->message);
    if (status == KVT_OK)
        status = kvt_config_set(config, text, work->message, sizeof work->message);
    return status;
}

static kvt_status loop_begin(loop_work *work)
{
    kvt_config *config = work->common->config;
    char *const message = work->message;
    kvt_status status = command_try_policies(config, work->arguments->policies);
    if (status == KVT_OK)
        status = replay_options_read(config, true, &work->options, message, sizeof work->message);
    work->store.struct_size = sizeof work->store;
    if (status == KVT_OK) status = loop_take_contenders(work);
    if (status == KVT_OK) status = loop_take_texts(work);
    if (status == KVT_OK) status = loop_open_site(work);
    if (status == KVT_OK) status = loop_set_ladder(work);
    if (status == KVT_OK)
        status = kvt_store_options_read(config, &work->store, &work->store_owner, message,
                                        sizeof work->message);
    const uint64_t seeds = kvt_config_bytes(config, "replay.seeds");
    if (status == KVT_OK && (seeds < 1 || seeds > LOOP_SEEDS_MAX)) {
        (void)snprintf(message, sizeof work->message, "replay.seeds: from 1 to %u", LOOP_SEEDS_MAX);
        status = KVT_E_CONFIG;
    }
    work->seeds = (uint32_t)seeds;
    if (status == KVT_OK && work->arguments->report != NULL)
        status = command_check_target(work->common, "report", work->arguments->report, message,
                                      sizeof work->message);
    if (status == KVT_OK)
        status =
            loop_ladder_read(&work->site, &work->store, work->contenders, work->contender_count,
                             &work->ladder, message, sizeof work->message);
    return status;
}

/* ---- the workload ---- */

/* A context is one block, and a session one request: what a conversation would add is not here. */
static kvt_status loop_make_workload(loop_work *work, uint64_t seed, replay_workload *workload)
{
    kvt_config *config = work->common->config;
    if (work->arguments->trace != NULL) {
        const replay_trace_options trace = {.seed = seed, .limit = work->options.limit};
        return command_read_trace(work->common, work->arguments->trace, &trace, workload,
                                  work->message, sizeof work->message);
    }
    replay_generator generator;
    replay_generator_read(config, &generator);
    generator.seed = seed;
    generator.block_tokens = 1;
    generator.tokens_median = 1;
    generator.tokens_sigma = 0;
    generator.tokens_max = 1;
    generator.turns_mean = 1;
    generator.turn_tokens = 1;
    generator.system_tokens = 0;
    if (!command_was_set(work->common, "workload.contexts"))
        generator.contexts = work->site.context_count;
    return replay_workload_generate(&generator, workload, work->message, sizeof work->message);
}

/* ---- runs ---- */

static kvt_status loop_run_one(loop_work *work, const loop_requests *requests, uint64_t seed,
                               const loop_contender *contender, loop_result *result)
{
    const loop_run_options run = {.requests = requests,
                                  .contender = contender,
                                  .ladder = &work->ladder,
                                  .store = &work->store,
                                  .warmup = work->options.warmup,
                                  .load_all = work->options.load_all,
                                  .seed = seed,
                                  .interrupted = command_interrupted};
    return loop_run(&work->site, &run, result, work->message, sizeof work->message);
}

/* The loss that the mix may have: the one asked for, else the predicted loss of utility's hits. */
static double loop_mix_loss(const loop_work *work, const loop_result *results)
{
    if (work->arguments->mix_loss >= 0.0) return work->arguments->mix_loss;
    for (uint32_t i = 0; i < work->contender_count; i++)
        if (strcmp(work->contenders[i].policy, "utility") == 0) return results[i].loss_predicted;
    return work->store.loss.loss_limit;
}

/* All contenders on one seed's requests; results lie in the order of the list. */
static kvt_status loop_run_contenders(loop_work *work, const loop_requests *requests, uint64_t seed,
                                      loop_result *results)
{
    kvt_status status = KVT_OK;
    for (int mixes = 0; mixes < 2; mixes++) {
        for (uint32_t i = 0; status == KVT_OK && i < work->contender_count; i++) {
            loop_contender contender = work->contenders[i];
            if ((contender.forms == LOOP_FORMS_MIX) != (mixes == 1)) continue;
            if (mixes == 1)
                loop_contender_mix(&work->ladder, loop_mix_loss(work, results), &contender);
            status = loop_run_one(work, requests, seed, &contender, &results[i]);
        }
    }
    return status;
}

static kvt_status loop_run_seed(loop_work *work, uint32_t number)
{
    const uint64_t seed = work->options.seed + number;
    replay_workload other = {0};
    loop_requests requests = {0};
    replay_workload *workload = number == 0 ? &work->workload : &other;
    const bool scaled = command_was_set(work->common, "replay.scale");
    kvt_status status = loop_make_workload(work, seed, workload);
    work->input_fault = status != KVT_OK;
    if (status == KVT_OK)
        status = loop_requests_make(&work->site, workload, scaled ? work->options.scale : 1.0,
                                    &requests);
    if (status == KVT_OK)
        status = loop_prepare(&work->site, &requests, work->message, sizeof work->message);
    if (status == KVT_OK)
        status = loop_run_contenders(work, &requests, seed,
                                     work->results + (size_t)number * work->contender_count);
    if (number == 0) {
        work->requests = requests;
        requests.requests = NULL;
    }
    free(requests.requests);
    replay_workload_free(&other);
    return status;
}

/* Moves the finished runs to the front: a run has requests when it has ended. */
static void loop_keep_finished(loop_work *work)
{
    for (size_t i = 0; i < (size_t)work->seeds * work->contender_count; i++) {
        if (work->results[i].requests == 0) continue;
        if (i != work->result_count) work->results[work->result_count] = work->results[i];
        work->result_count++;
    }
}

static kvt_status loop_run_all(loop_work *work)
{
    kvt_status status = KVT_OK;
    work->results = calloc((size_t)work->seeds * work->contender_count, sizeof *work->results);
    if (work->results == NULL) return KVT_E_MEMORY;
    progress_start(&work->bar, work->common);
    for (uint32_t s = 0; s < work->seeds && status == KVT_OK; s++)
        status = loop_run_seed(work, s);
    progress_end(&work->bar);
    loop_keep_finished(work);
    if (status == KVT_E_CANCELLED)
        (void)snprintf(work->message, sizeof work->message,
                       "interrupted; %zu of %zu runs were finished", work->result_count,
                       (size_t)work->seeds * work->contender_count);
    return status;
}

/* ---- results ---- */

static kvt_status loop_print_page(const void *report, FILE *out)
{
    return loop_print_json(report, out);
}

static kvt_status loop_print(loop_work *work)
{
    command_run run;
    command_describe_run(&run);
    const loop_report report = {.version = kvt_version(),
                                .command = work->common->line,
                                .machine = run.machine,
                                .date = run.date,
                                .others_share = work->others_share,
                                .site = &work->site,
                                .requests = &work->requests,
                                .ladder = &work->ladder,
                                .store = &work->store,
                                .workload = work->workload.name,
                                .results = work->results,
                                .result_count = work->result_count};
    kvt_status status =
        work->common->json ? loop_print_json(&report, stdout) : loop_print_text(&report, stdout);
    if (status == KVT_OK && work->arguments->report != NULL) {
        status = report_page_write(work->arguments->report, report.workload, loop_print_page,
                                   &report, work->message, sizeof work->message);
        if (status == KVT_OK) command_note(work->common, "report: %s", work->arguments->report);
    }
    return status;
}

static int loop_judge(const loop_work *work)
{
    for (size_t i = 0; i < work->result_count; i++) {
        const loop_result *result = &work->results[i];
        if (result->exact_wrong == 0 && result->tokens_wrong == 0 && result->positions_wrong == 0)
            continue;
        fprintf(
            stderr,
            "kvterrace replay: %s: %llu exact gets gave other bytes, %llu gets other tokens than "
            "they kept, %llu first tokens differ from those of equal bytes\n",
            result->contender, (unsigned long long)result->exact_wrong,
            (unsigned long long)result->positions_wrong, (unsigned long long)result->tokens_wrong);
        return EXIT_FAILED;
    }
    return EXIT_FINE;
}

int command_loop(const command_common *common, const loop_arguments *arguments)
{
    static const char *const sections[] = {"replay", "prefill", "workload", NULL};
    loop_work *work = calloc(1, sizeof *work);
    if (work == NULL) return command_fail(KVT_E_MEMORY, "");
    *work = (loop_work){.common = common, .arguments = arguments};
    command_choose_blas();
    replay_options_init(&work->options);
    kvt_status status = loop_begin(work);
    work->input_fault = status != KVT_OK;
    int code = EXIT_FINE;
    if (status == KVT_OK) {
        replay_generator generator;
        replay_generator_read(common->config, &generator); /* marks its settings as used */
        code = command_report_unused(common, sections);
    }
    if (status == KVT_OK && code == EXIT_FINE) {
        command_processors processors;
        command_catch_interrupts();
        command_others_begin(&processors);
        status = loop_run_all(work);
        work->others_share = command_others_end(&processors, common);
        const bool cancelled = status == KVT_E_CANCELLED;
        if (status == KVT_OK || (cancelled && work->result_count > 0)) {
            kvt_status printed = loop_print(work);
            if (printed != KVT_OK) status = printed;
        }
        if (status == KVT_OK) code = loop_judge(work);
    }
    if (status != KVT_OK)
        code = work->input_fault ? command_fail_input(status, work->message)
                                 : command_fail(status, work->message);
    loop_close(&work->site);
    replay_workload_free(&work->workload);
    replay_options_free(&work->options);
    kvt_store_options_free(work->store_owner);
    free(work->requests.requests);
    free(work->results);
    free(work);
    return code;
}
