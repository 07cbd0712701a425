/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_manage_command.c - kvterrace profile import, export, diff, gc: what is done to a
 * profile database as a whole. One thread.
 */
#include "command.h"
#include "data_files.h"
#include "profile_manage.h"
#include "profile_open.h"

#include <kvterrace/kvterrace.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MANAGE_FILES_MAX   2u
#define MANAGE_THRESHOLD   0.05
#define MANAGE_OLD_SECONDS (7 * 86400.0)

enum { MANAGE_SOURCE = 256, MANAGE_TABLE, MANAGE_CSV, MANAGE_LADDER, MANAGE_OLDER, MANAGE_DRY };

typedef struct manage_arguments {
    command_common common;
    const char *files[MANAGE_FILES_MAX];
    unsigned file_count, files_wanted;
    const char *source, *table, *ladder;
    double threshold, older_seconds;
    bool csv, all, dry_run;
    char command_line[1024];
} manage_arguments;

static double manage_share(const char *text)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end != text && *end == '%') {
        value /= 100;
        end++;
    }
    return end != text && *end == '\0' ? value : NAN;
}

static error_t manage_parse(int key, char *argument, struct argp_state *state)
{
    manage_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    case MANAGE_SOURCE: arguments->source = argument; return 0;
    case MANAGE_TABLE: arguments->table = argument; return 0;
    case MANAGE_CSV: arguments->csv = true; return 0;
    case MANAGE_LADDER: arguments->ladder = argument; return 0;
    case MANAGE_DRY: arguments->dry_run = true; return 0;
    case 'a': arguments->all = true; return 0;
    case MANAGE_OLDER:
        if (kvt_parse_seconds(argument, &arguments->older_seconds) != KVT_OK)
            argp_error(state, "--older: '%s' is not a time such as 12h", argument);
        return 0;
    case 't':
        arguments->threshold = manage_share(argument);
        if (!(arguments->threshold >= 0))
            argp_error(state, "--threshold: '%s' is not a share such as 0.05 or 5%%", argument);
        return 0;
    case ARGP_KEY_ARG:
        if (arguments->file_count == arguments->files_wanted) return ARGP_ERR_UNKNOWN;
        arguments->files[arguments->file_count++] = argument;
        return 0;
    case ARGP_KEY_END:
        if (arguments->file_count < arguments->files_wanted) argp_error(state, "a file is missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int manage_load(const struct argp_option *options, const char *files, unsigned files_wanted,
                       const char *doc, int argc, char **argv, manage_arguments *arguments)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {.options = options,
                              .parser = manage_parse,
                              .args_doc = files,
                              .doc = doc,
                              .children = children};
    memset(arguments, 0, sizeof *arguments);
    arguments->files_wanted = files_wanted;
    arguments->threshold = MANAGE_THRESHOLD;
    arguments->older_seconds = MANAGE_OLD_SECONDS;
    command_keep_line(argc, argv, arguments->command_line, sizeof arguments->command_line);
    return command_load(&argp, argc, argv, arguments);
}

/* Opens the profile that the settings name. EXIT_FINE or the code to leave with. */
static int manage_open(const command_common *common, uint32_t flags, kvt_profile **profile_out)
{
    static const char *const no_sections[] = {NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_status status =
        command_profile_open(common->config, flags, profile_out, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    return command_report_unused(common, no_sections);
}

/* ---- import ---- */

int command_profile_import(int argc, char **argv)
{
    static const struct argp_option options[] = {
        PROFILE_DATABASE_OPTION,
        {"source", MANAGE_SOURCE, "TEXT", 0,
         "Where the figures are from: a paper and its table, a data sheet, a run elsewhere; rows "
         "may have their own",
         0},
        {0}};
    manage_arguments arguments;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    uint64_t rows = 0;
    int code =
        manage_load(options, "FILE.csv", 1,
                    "Brings curves that were measured elsewhere or published into the profile, "
                    "each with its source: device speeds, task scores or losses of variants, "
                    "prefill times, calibrations. docs/PROFILE.md lists tables and columns. The "
                    "whole file comes in, or the first bad row is named and nothing does.",
                    argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    code = manage_open(&arguments.common, KVT_PROFILE_WRITE, &profile);
    if (code == EXIT_FINE) {
        kvt_status status = kvt_profile_import(
            profile, command_data_path(&arguments.common, arguments.files[0]), arguments.source,
            arguments.command_line, &rows, message, sizeof message);
        if (status != KVT_OK) code = command_fail_input(status, message);
    }
    if (code == EXIT_FINE)
        command_note(&arguments.common, "%llu rows imported", (unsigned long long)rows);
    kvt_profile_close(profile);
    command_unload(&arguments.common);
    return command_finish(code);
}

/* ---- export ---- */

static int manage_export_ladder(kvt_profile *profile, const manage_arguments *arguments)
{
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    char message[COMMAND_MESSAGE_BYTES] = "";
    const char *colon = strrchr(arguments->ladder, ':');
    uint32_t count = 0;
    if (colon == NULL || colon[1] == '\0')
        return command_fail_input(KVT_E_ARGUMENT, "--ladder: MODEL:CLASS is meant");
    char *model = strndup(arguments->ladder, (size_t)(colon - arguments->ladder));
    if (model == NULL) return command_fail(KVT_E_MEMORY, "");
    kvt_status status = kvt_profile_ladder(profile, model, colon + 1, NULL, curves,
                                           KVT_VARIANTS_MAX, &count, message, sizeof message);
    int code = EXIT_FINE;
    if (status == KVT_OK) {
        manage_print_ladder(curves, count, model, colon + 1,
                            command_profile_path(arguments->common.config));
    } else {
        code = command_fail_input(status == KVT_MISS ? KVT_E_GONE : status, message);
    }
    free(model);
    return code;
}

static int manage_export_rows(kvt_profile *profile, const manage_arguments *arguments)
{
    bool json = arguments->common.json;
    manage_export export = {.tables = json ? json_object() : NULL};
    kvt_status status = kvt_profile_export(profile, arguments->table,
                                           json ? manage_print_json : manage_print_csv, &export);
    if (status == KVT_E_ARGUMENT) {
        json_decref(export.tables);
        return command_fail_input(status, "--table: no such table (docs/PROFILE.md lists them)");
    }
    /* The visitor ends it when a row cannot be printed or kept. */
    if (status == KVT_E_CANCELLED) status = export.lost ? KVT_E_MEMORY : KVT_E_IO;
    if (status == KVT_OK && json) {
        status = manage_print_document(
            json_pack("{s:s, s:s, s:s, s:O}", "schema", "kvterrace-profile-export-1", "version",
                      kvt_version(), "database", command_profile_path(arguments->common.config),
                      "tables", export.tables));
    }
    json_decref(export.tables);
    if (status != KVT_OK) return command_fail(status, "");
    if (export.rows == 0) command_note(&arguments->common, "nothing to export");
    return EXIT_FINE;
}

int command_profile_export(int argc, char **argv)
{
    static const struct argp_option options[] = {
        PROFILE_DATABASE_OPTION,
        {"table", MANAGE_TABLE, "TABLE", 0, "One table; without it, all that import takes", 0},
        {"csv", MANAGE_CSV, NULL, 0, "CSV, as without --json", 0},
        {"ladder", MANAGE_LADDER, "MODEL:CLASS", 0,
         "The ladder of a model and class of text, as replay.ladder reads it", 0},
        {0}};
    manage_arguments arguments;
    kvt_profile *profile = NULL;
    int code = manage_load(options, "", 0,
                           "Prints a profile's curves with their sources, in the form that import "
                           "takes. Tables run and learned are printed when named.",
                           argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    if (arguments.csv && arguments.common.json) {
        code = command_fail(KVT_E_CONFIG, "--csv and --json exclude each other");
    } else {
        /* Figures of other hosts may be looked at; what is refused is deciding on them. */
        code = manage_open(&arguments.common, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile);
    }
    if (code == EXIT_FINE) {
        code = arguments.ladder != NULL ? manage_export_ladder(profile, &arguments)
                                        : manage_export_rows(profile, &arguments);
    }
    kvt_profile_close(profile);
    command_unload(&arguments.common);
    return command_finish(code);
}

/* ---- diff ---- */

static kvt_status manage_compare(kvt_profile *before, kvt_profile *after,
                                 const manage_arguments *arguments, manage_diff *diff)
{
    bool json = arguments->common.json;
    if (json) diff->rows = json_array();
    if (json && diff->rows == NULL) return KVT_E_MEMORY;
    kvt_status status = kvt_profile_diff(before, after, manage_print_change, diff);
    if (status == KVT_E_CANCELLED) status = diff->lost ? KVT_E_MEMORY : KVT_E_IO;
    if (status == KVT_OK && json) {
        status = manage_print_document(json_pack(
            "{s:s, s:s, s:s, s:s, s:f, s:I, s:I, s:O}", "schema", "kvterrace-profile-diff-1",
            "version", kvt_version(), "before", arguments->files[0], "after", arguments->files[1],
            "threshold", diff->threshold, "figures", (json_int_t)diff->curves, "different",
            (json_int_t)diff->different, "changes", diff->rows));
    } else if (status == KVT_OK) {
        printf("%s%llu of %llu figures differ by more than %g %%\n", diff->printed ? "\n" : "",
               (unsigned long long)diff->different, (unsigned long long)diff->curves,
               diff->threshold * 100);
    }
    json_decref(diff->rows);
    return status;
}

int command_profile_diff(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"threshold", 't', "SHARE", 0, "How much a figure may change (0.05)", 0},
        {"all", 'a', NULL, 0, "Show figures that did not change as well", 0},
        {0}};
    manage_arguments arguments;
    kvt_profile *profiles[2] = {NULL, NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    int code = manage_load(
        options, "BEFORE.db AFTER.db", 2,
        "Compares what answers in two profiles, figure by figure. A figure differs when it is in "
        "one of them alone, or when it changed by more than the threshold and the spread of the "
        "repetitions behind it, where known, does not explain that. Exit code 1 when one differs.",
        argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    manage_diff diff = {.threshold = arguments.threshold, .all = arguments.all};
    for (int i = 0; i < 2 && code == EXIT_FINE; i++) {
        kvt_status status =
            kvt_profile_open(arguments.files[i], KVT_PROFILE_READ | KVT_PROFILE_FOREIGN,
                             &profiles[i], message, sizeof message);
        if (status != KVT_OK)
            code = command_fail_input(status == KVT_MISS ? KVT_E_GONE : status, message);
    }
    if (code == EXIT_FINE) {
        kvt_status status = manage_compare(profiles[0], profiles[1], &arguments, &diff);
        if (status != KVT_OK) code = command_fail(status, "");
    }
    if (code == EXIT_FINE && diff.different > 0) code = EXIT_FAILED;
    kvt_profile_close(profiles[0]);
    kvt_profile_close(profiles[1]);
    command_unload(&arguments.common);
    return command_finish(code);
}

/* ---- gc ---- */

typedef struct manage_gc {
    json_t *rows; /* NULL: text */
    bool lost;
} manage_gc;

static bool manage_gc_run(void *context, const kvt_profile_gc_run *run)
{
    manage_gc *gc = context;
    if (gc->rows == NULL) {
        printf("run %-6lld %-12s %s  %s%s%s\n", (long long)run->id, run->kind, run->started_utc,
               run->reason, run->source[0] != '\0' ? "  " : "", run->source);
        return true;
    }
    json_t *row =
        json_pack("{s:I, s:s, s:s, s:s, s:s}", "run", (json_int_t)run->id, "kind", run->kind,
                  "started_utc", run->started_utc, "reason", run->reason, "source", run->source);
    gc->lost = row == NULL || json_array_append_new(gc->rows, row) != 0;
    return !gc->lost;
}

static kvt_status manage_collect(kvt_profile *profile, const manage_arguments *arguments)
{
    manage_gc gc = {.rows = arguments->common.json ? json_array() : NULL};
    kvt_profile_gc_result result;
    kvt_profile_gc_request request = {.struct_size = sizeof request,
                                      .dry_run = arguments->dry_run,
                                      .interrupted_seconds = arguments->older_seconds,
                                      .visit = manage_gc_run,
                                      .context = &gc};
    kvt_status status = kvt_profile_gc(profile, &request, &result);
    if (gc.lost) status = KVT_E_MEMORY;
    if (status == KVT_OK && arguments->common.json) {
        status = manage_print_document(json_pack(
            "{s:s, s:s, s:b, s:O, s:I, s:I, s:I}", "schema", "kvterrace-profile-gc-1", "version",
            kvt_version(), "dry_run", arguments->dry_run, "runs", gc.rows, "models",
            (json_int_t)result.models, "bytes_before", (json_int_t)result.bytes_before,
            "bytes_after", (json_int_t)result.bytes_after));
    } else if (status == KVT_OK) {
        printf("%llu runs and %llu models without curves %s; %llu bytes, %llu before\n",
               (unsigned long long)result.runs, (unsigned long long)result.models,
               arguments->dry_run ? "would go" : "went", (unsigned long long)result.bytes_after,
               (unsigned long long)result.bytes_before);
    }
    json_decref(gc.rows);
    return status;
}

int command_profile_gc(int argc, char **argv)
{
    static const struct argp_option options[] = {
        PROFILE_DATABASE_OPTION,
        {"dry-run", MANAGE_DRY, NULL, 0, "Say what would go and change nothing", 0},
        {"older", MANAGE_OLDER, "TIME", 0,
         "Interrupted runs go once they are older than TIME (168h)", 0},
        {0}};
    manage_arguments arguments;
    kvt_profile *profile = NULL;
    int code = manage_load(options, "", 0,
                           "Drops runs that answer for nothing any more: those that newer complete "
                           "ones replace, and interrupted ones. What alone knows a thing stays.",
                           argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    /* Opening for reading first: what does not exist is not made. */
    code = manage_open(&arguments.common, KVT_PROFILE_READ, &profile);
    if (code == EXIT_FINE && !arguments.dry_run) {
        kvt_profile_close(profile);
        profile = NULL;
        code = manage_open(&arguments.common, KVT_PROFILE_WRITE, &profile);
    }
    if (code == EXIT_FINE) {
        kvt_status status = manage_collect(profile, &arguments);
        if (status != KVT_OK) code = command_fail(status, "");
    }
    kvt_profile_close(profile);
    command_unload(&arguments.common);
    return command_finish(code);
}
