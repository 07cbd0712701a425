/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_command.c - kvterrace replay --compare: settings and options to a plan, a comparison, its
 * tables or JSON.
 *
 * The budget goes to stderr before the long part, a line for every tenth of the runs after it where
 * stderr is no terminal. The threads are those of the comparison; this file has one.
 */
#include "commands.h"

#include "base/config_values.h"
#include "replay/compare.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMPARE_POLICIES_MAX 32u
#define COMPARE_QUICK_LIMIT  400u

typedef struct compare_session {
    const command_common *common;
    const compare_arguments *arguments;
    replay_options options;
    replay_workload trace;
    replay_generator generator;
    replay_compare plan;
    char *policy_text; /* owned; cut into policies */
    const char *policies[COMPARE_POLICIES_MAX];
    command_progress bar;
    unsigned tenths; /* told on stderr */
    bool input_fault;
    char message[COMMAND_MESSAGE_BYTES];
} compare_session;

static void compare_show(void *context, uint64_t done, uint64_t total, const char *what)
{
    compare_session *session = context;
    double share = total > 0 ? (double)done / (double)total : 0.0;
    progress_update(&session->bar, share, what);
    if (session->bar.shown || (unsigned)(share * 10.0) <= session->tenths) return;
    session->tenths = (unsigned)(share * 10.0);
    command_note(session->common, "%u %% of at most %llu runs: %s", session->tenths * 10,
                 (unsigned long long)total, what);
}

static void compare_tell_budget(void *context, uint64_t runs, double minutes, double run_s)
{
    const compare_session *session = context;
    command_note(session->common,
                 "budget: at most %llu runs, about %.1f minutes on %u threads (one run of utility "
                 "takes %.2f s)",
                 (unsigned long long)runs, minutes, session->plan.threads, run_s);
}

static kvt_status compare_fault(compare_session *session, const char *text)
{
    (void)snprintf(session->message, sizeof session->message, "%s", text);
    return KVT_E_CONFIG;
}

static kvt_status compare_take_policy(compare_session *session, const char *name)
{
    replay_compare *plan = &session->plan;
    if (strcmp(name, "utility") == 0) return KVT_OK; /* it is the other side of every row */
    for (size_t i = 0; i < plan->policy_count; i++)
        if (strcmp(session->policies[i], name) == 0) return KVT_OK;
    if (!command_policy_known(name) || plan->policy_count == COMPARE_POLICIES_MAX) {
        bool oracle = strcmp(name, "oracle") == 0;
        (void)snprintf(session->message, sizeof session->message,
                       oracle ? "--policy: '%.100s' knows what comes and is no baseline"
                              : "--policy: unknown policy '%.100s'",
                       name);
        if (!oracle)
            command_suggest(session->message, sizeof session->message, name, kvt_policy_name_at);
        return KVT_E_CONFIG;
    }
    session->policies[plan->policy_count++] = name;
    return KVT_OK;
}

/* --policy, or every baseline there is. */
static kvt_status compare_take_policies(compare_session *session)
{
    kvt_status status = KVT_OK;
    const char *name;
    session->plan.policies = session->policies;
    if (!session->arguments->policies) {
        for (size_t i = 0; status == KVT_OK && (name = kvt_policy_name_at(i)) != NULL; i++)
            status = compare_take_policy(session, name);
        return status;
    }
    session->policy_text = strdup(session->arguments->policies);
    if (!session->policy_text) return KVT_E_MEMORY;
    char *rest = session->policy_text;
    while (status == KVT_OK && (name = strsep(&rest, ",")) != NULL)
        status = compare_take_policy(session, name);
    return status;
}

/* "1,3,7": bandwidths of the SSD in GB/s. */
static kvt_status compare_take_speeds(compare_session *session)
{
    const char *at = session->arguments->speeds;
    replay_compare *plan = &session->plan;
    while (at) {
        char *end;
        double speed = strtod(at, &end);
        if (end == at || (*end != ',' && *end != '\0') || !(speed > 0.0 && speed < 1e6) ||
            plan->speed_count == REPLAY_SPEEDS_MAX) {
            return compare_fault(session, "--speeds: up to 8 numbers above 0 with commas, in GB/s");
        }
        plan->speeds[plan->speed_count++] = speed * 1e9;
        at = *end == ',' ? end + 1 : NULL;
    }
    kvt_config *config = session->common->config;
    if (plan->speed_count == 0 || kvt_config_has(config, "tier.ssd.read_bandwidth")) return KVT_OK;
    /* So that nothing speaks of a default that no run has. */
    char setting[64];
    (void)snprintf(setting, sizeof setting, "tier.ssd.read_bandwidth=%.0f", plan->speeds[0]);
    return kvt_config_set(config, setting, session->message, sizeof session->message);
}

static kvt_status compare_take_counts(compare_session *session)
{
    replay_compare *plan = &session->plan;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    plan->threads = online > 0 ? (uint32_t)online : 1;
    if (session->arguments->threads > 0) plan->threads = session->arguments->threads;
    plan->sessions = session->arguments->sessions;
    if (plan->sessions > 0 && !session->arguments->trace) {
        return compare_fault(session, "--sessions has no effect on a generated workload");
    }
    plan->quick = session->arguments->quick;
    if (plan->quick) {
        plan->seeds = 3;
        plan->tuning_seeds = 3;
        plan->spreads[0] = plan->main;
        plan->spread_count = 1;
    }
    if (command_was_set(session->common, "replay.seeds")) plan->seeds = session->options.seeds;
    return KVT_OK;
}

kvt_status command_check_blocks(const command_common *common, uint32_t block_tokens,
                                uint64_t wanted, char *message, size_t message_size)
{
    if (block_tokens == wanted || !kvt_config_has(common->config, "replay.block_tokens"))
        return KVT_OK;
    (void)snprintf(message, message_size,
                   "replay.block_tokens has no effect here: the trace has blocks of %u tokens",
                   (unsigned)block_tokens);
    return KVT_E_CONFIG;
}

static kvt_status compare_read_workload(compare_session *session)
{
    kvt_config *config = session->common->config;
    uint64_t limit = session->options.limit;
    if (limit == 0 && session->plan.quick) limit = COMPARE_QUICK_LIMIT;
    if (!session->arguments->trace) {
        replay_generator_read(config, &session->generator);
        if (limit > 0 && limit < session->generator.requests) session->generator.requests = limit;
        session->plan.generator = &session->generator;
        return replay_generator_check(&session->generator, session->message,
                                      sizeof session->message);
    }
    double rate = kvt_config_number(config, "workload.rate");
    if (!(rate > 0.0 && rate <= 1e6)) {
        return compare_fault(session, "workload.rate: above 0, up to 1e6 conversations per second");
    }
    const replay_trace_options trace = {.seed = session->options.seed,
                                        .limit = limit,
                                        .conversations_per_s = rate,
                                        .keep_steps = true};
    kvt_status status = replay_workload_read(session->arguments->trace, &trace, &session->trace,
                                             session->message, sizeof session->message);
    session->plan.trace = &session->trace;
    if (status == KVT_OK && session->trace.conversations_per_s == 0.0 &&
        command_was_set(session->common, "workload.rate")) {
        return compare_fault(session,
                             "workload.rate has no effect here: the trace has arrival times");
    }
    if (status == KVT_OK)
        status = command_check_blocks(session->common, session->trace.block_tokens,
                                      session->options.block_tokens, session->message,
                                      sizeof session->message);
    return status;
}

/* A comparison sets these itself. */
static kvt_status compare_refuse_settings(compare_session *session)
{
    static const char *const tuned[] = {"store.variant", "store.alpha", "store.loss_limit"};
    for (size_t i = 0; i < sizeof tuned / sizeof tuned[0]; i++) {
        if (!command_was_set(session->common, tuned[i])) continue;
        (void)snprintf(session->message, sizeof session->message,
                       "%s has no effect here: a comparison tries its values itself", tuned[i]);
        return KVT_E_CONFIG;
    }
    return KVT_OK;
}

/* Settings have an effect with utility, or with a baseline. */
static kvt_status compare_try_policies(compare_session *session)
{
    char list[512] = "utility";
    const char *name;
    for (size_t i = 0; (name = kvt_policy_name_at(i)) != NULL && !session->arguments->policies; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), ",%s", name);
    if (session->arguments->policies != NULL)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), ",%s",
                       session->arguments->policies);
    return command_try_policies(session->common->config, list);
}

static kvt_status compare_prepare(compare_session *session)
{
    kvt_config *config = session->common->config;
    kvt_status status = compare_take_speeds(session);
    if (status == KVT_OK) status = compare_try_policies(session);
    if (status != KVT_OK) return status;
    status = replay_options_read(config, false, &session->options, session->message,
                                 sizeof session->message);
    if (status != KVT_OK) return status;
    if (session->plan.speed_count > 0 && session->options.tiers[KVT_TIER_SSD].capacity_bytes == 0) {
        return compare_fault(session, "--speeds has no effect here: tier.ssd.capacity is not set");
    }
    session->plan.base = &session->options;
    status = compare_refuse_settings(session);
    if (status != KVT_OK) return status;
    if (session->options.plan_log) {
        return compare_fault(session, "replay.plan_log has no effect here: no run is a single one");
    }
    if (command_was_set(session->common, "replay.sensitivity") ||
        command_was_set(session->common, "replay.repeatability")) {
        session->plan.main =
            (replay_spread){session->options.sensitivity, session->options.repeatability};
    }
    session->plan.write_follows = !kvt_config_has(config, "tier.ssd.write_bandwidth");
    status = compare_take_policies(session);
    if (status == KVT_OK) status = compare_take_counts(session);
    if (status == KVT_OK) status = compare_read_workload(session);
    return status;
}

static kvt_status compare_print(const compare_session *session, const replay_compare_result *result)
{
    command_run run;
    command_describe_run(&run);
    const replay_compare_head head = {.version = kvt_version(),
                                      .command = session->common->line,
                                      .machine = run.machine,
                                      .date = run.date};
    return session->common->json ? replay_compare_print_json(&session->plan, result, &head, stdout)
                                 : replay_compare_print_text(&session->plan, result, &head, stdout);
}

int command_compare(const command_common *common, const compare_arguments *arguments)
{
    static const char *const sections[] = {"replay", "prefill", NULL};
    static const char *const all_sections[] = {"replay", "prefill", "workload", NULL};
    compare_session session = {.common = common, .arguments = arguments};
    replay_compare_result result = {0};
    replay_options_init(&session.options);
    replay_compare_init(&session.plan);
    session.plan.progress = compare_show;
    session.plan.budget = compare_tell_budget;
    session.plan.context = &session;
    kvt_status status = compare_prepare(&session);
    session.input_fault = status != KVT_OK;
    int code = EXIT_FINE;
    if (status == KVT_OK) {
        code = command_report_unused(common, arguments->trace ? sections : all_sections);
    }
    if (status == KVT_OK && code == EXIT_FINE) {
        command_catch_interrupts();
        session.plan.interrupted = command_interrupted;
        progress_start(&session.bar, common);
        status =
            replay_compare_run(&session.plan, &result, session.message, sizeof session.message);
        session.input_fault = status == KVT_E_CONFIG;
        progress_end(&session.bar);
        if (status == KVT_E_CANCELLED)
            (void)snprintf(session.message, sizeof session.message,
                           "interrupted; %zu rows have two finished seeds or more",
                           result.row_count);
        const bool some = status == KVT_E_CANCELLED && result.row_count > 0;
        if (status == KVT_OK && result.capacity_over_footprint >= 1)
            command_note(common,
                         "the tiers hold %.2f times the raw bytes of the workload, so that nothing "
                         "has to leave: replay more of it, or set smaller tier capacities",
                         result.capacity_over_footprint);
        if (status == KVT_OK || some) {
            kvt_status printed = compare_print(&session, &result);
            if (printed != KVT_OK) status = printed;
        }
    }
    if (status != KVT_OK) {
        code = session.input_fault ? command_fail_input(status, session.message)
                                   : command_fail(status, session.message);
    }
    replay_compare_free(&result);
    replay_workload_free(&session.trace);
    replay_options_free(&session.options);
    free(session.policy_text);
    return code;
}
