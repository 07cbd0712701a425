/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commands.h - the commands of kvterrace, and what they call of each other. One thread.
 */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include "replay/workload.h"
#include "tools/command/command.h"

enum { COMMAND_NAMES_MAX = 32 };

/* ---- replay_command.c ---- */

/* Has settings count as effective where one of the policies of a list obeys them; NULL: those of
 * store.policy. KVT_OK; KVT_E_MEMORY. */
kvt_status command_try_policies(kvt_config *config, const char *policies);

/* Checks --workload and its absence beside --trace, whose - becomes standard input. EXIT_FINE or
 * EXIT_USAGE. */
int tools_check_workload(const char **trace, const char *workload);

/* A list such as "lru,utility", cut at its commas. */
typedef struct command_names {
    char *text; /* owned; the names point into it */
    const char *names[COMMAND_NAMES_MAX];
    size_t count;
} command_names;

/* Cuts a list, which is freed with command_names_free. KVT_OK; KVT_E_CONFIG: a name that is there
 * twice, or too many; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status command_cut_names(const char *list, command_names *names, char *message,
                                           size_t message_size);
void command_names_free(command_names *names);

/* Reads a trace with workload.rate of the settings. KVT_OK; KVT_E_CONFIG: the rate is out of range,
 * or it or replay.block_tokens was set and has no effect on this trace; what replay_workload_read
 * returns. */
KVT_NODISCARD kvt_status command_read_trace(const command_common *common, const char *path,
                                            const replay_trace_options *options,
                                            replay_workload *workload, char *message,
                                            size_t message_size);

/* Facts of a run for its results: a line about this machine (system, processor), and the time. */
typedef struct command_run {
    char machine[512], date[32];
} command_run;
void command_describe_run(command_run *run);

/* ---- loop_command.c: kvterrace replay --mode live --model ---- */

typedef struct loop_arguments {
    const char *trace; /* or NULL: generated */
    const char *policies, *report;
    const char *model, *tokenizer, *name, *cache;
    command_list texts;                                                    /* [CLASS=]FILE */
    uint32_t contexts, context_tokens, continuation_tokens, answer_tokens; /* 0: not given */
    unsigned prefill; /* the place in once|each */
    unsigned loss;    /* the place in top1|rouge_l|f1 */
    unsigned use;     /* the place in worse|answers|recall */
    double mix_loss;  /* below 0: not given */
    bool observe;
} loop_arguments;

/* Runs the contenders and prints them; returns the exit code. */
int command_loop(const command_common *common, const loop_arguments *arguments);

/* ---- serve_command.c ---- */

/* Checks [serve] as kvterrace serve does, in a configuration that names a socket; options are its
 * store's. KVT_OK; KVT_E_CONFIG with a message. */
KVT_NODISCARD kvt_status tools_check_serve(kvt_config *config, const kvt_store_options *options,
                                           char *message, size_t message_size);

/* ---- report_command.c ---- */

/* Writes the page of what `print` prints, one JSON document, to a file, whole or not at all; the
 * name is for the reader. KVT_OK; KVT_E_CONFIG and KVT_E_IO with a message; KVT_E_MEMORY; what
 * print says. */
KVT_NODISCARD kvt_status report_page_write(const char *path, const char *name,
                                           kvt_status (*print)(const void *report, FILE *out),
                                           const void *report, char *message, size_t message_size);

/* ---- the commands ---- */

extern const command_spec check_config_spec, clear_spec, decode_spec, encode_spec, tools_flush_spec,
    inspect_spec, tools_ls_spec, profile_spec, recover_spec, tools_rekey_spec, replay_spec,
    report_spec, tools_retire_spec, tools_rm_spec, serve_spec, settings_spec, tools_size_spec,
    tools_top_spec, verify_spec;

/* Of profile. */
extern const command_spec profile_attention_spec, profile_basis_spec, profile_calibrate_spec,
    profile_diff_spec, profile_dumps_spec, profile_export_spec, profile_gc_spec,
    profile_import_spec, profile_quality_spec, profile_show_spec, profile_slack_spec;

#endif
