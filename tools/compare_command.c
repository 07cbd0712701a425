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

#define COMPARE_QUICK_LIMIT 400u

typedef struct compare_session {
    const command_common *common;
    const compare_arguments *arguments;
    replay_options options;
    replay_workload trace;
    replay_generator generator;
    replay_compare plan;
    command_names policies;
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

/* --policy, or every baseline there is; utility is the other side of every row. */
static kvt_status compare_take_policies(compare_session *session)
{
    char every[512] = "utility";
    const char *list = session->arguments->policies, *name;
    for (size_t i = 0; (name = kvt_policy_name_get(i)) != NULL; i++)
        if (list == NULL && strcmp(name, "utility") != 0)
            (void)snprintf(every + strlen(every), sizeof every - strlen(every), ",%s", name);
    command_names *names = &session->policies;
    kvt_status status = command_cut_names(list != NULL ? list : every, names, session->message,
                                          sizeof session->message);
    size_t kept = 0;
    for (size_t i = 0; status == KVT_OK && i < names->count; i++) {
        if (strcmp(names->names[i], "utility") == 0) continue;
        status = command_check_policy(names->names[i], session->message, sizeof session->message);
        names->names[kept++] = names->names[i];
    }
    session->plan.policies = names->names;
    session->plan.policy_count = kept;
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
    const replay_trace_options trace = {
        .seed = session->options.seed, .limit = limit, .keep_steps = true};
    session->plan.trace = &session->trace;
    return command_read_trace(session->common, session->arguments->trace, &trace, &session->trace,
                              session->message, sizeof session->message);
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
    for (size_t i = 0; (name = kvt_policy_name_get(i)) != NULL && !session->arguments->policies;
         i++)
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
    command_names_free(&session.policies);
    return code;
}
