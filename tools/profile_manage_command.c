/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_manage_command.c - kvterrace profile import, export, diff, gc: what is done to a
 * profile database as a whole. One thread.
 */
#include "commands.h"
#include "profile_document.h"

#include "estimator/exchange/exchange.h"
#include "estimator/model/whole_file.h"
#include "estimator/predict/predict.h"

#include <kvterrace/codec.h>
#include <kvterrace/kvterrace.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- differences ---- */

typedef struct manage_diff {
    double threshold;
    bool all;  /* text: what did not change as well */
    bool json; /* no text */
    size_t different, printed;
} manage_diff;

static void manage_print_change(manage_diff *diff, const json_t *change)
{
    const double before = view_number(change, "before", NAN);
    const double after = view_number(change, "after", NAN);
    const double share = view_number(change, "change", INFINITY);
    char from[32] = "-", to[32] = "-", amount[32] = "-";
    if (!isnan(before)) (void)snprintf(from, sizeof from, "%.4g", before);
    if (!isnan(after)) (void)snprintf(to, sizeof to, "%.4g", after);
    if (isfinite(share)) (void)snprintf(amount, sizeof amount, "%+.1f %%", share * 100);
    if (diff->printed++ == 0)
        printf("%-52s %-26s %10s %10s %9s  %s\n", "curve", "quantity", "before", "after", "change",
               "spread");
    printf("%-52s %-26s %10s %10s %9s  %s\n", view_text(change, "curve"),
           view_text(change, "quantity"), from, to, amount,
           isnan(before)  ? "only after"
           : isnan(after) ? "only before"
                          : view_text(change, "spread"));
}

/* Marks the changes that count, and prints them as text. */
static void manage_mark_changes(manage_diff *diff, json_t *changes)
{
    json_t *change;
    size_t i;
    json_array_foreach(changes, i, change)
    {
        const bool above = fabs(view_number(change, "change", INFINITY)) > diff->threshold &&
                           strcmp(view_text(change, "spread"), "within") != 0;
        (void)json_object_set_new(change, "differs", json_boolean(above));
        diff->different += above;
        if (!diff->json && (above || diff->all)) manage_print_change(diff, change);
    }
}

typedef struct manage_arguments {
    command_common common;
    command_list files;
    const char *source, *table, *ladder, *basis, *output;
    double threshold, older_seconds;
    bool all, dry_run;
} manage_arguments;

/* Opens the profile that the settings name for reading. EXIT_FINE or the code to leave with. */
static int manage_open(const command_common *common, uint32_t flags, kvt_profile **profile_out)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_status status =
        command_profile_open(common->config, flags, profile_out, message, sizeof message);
    return status == KVT_OK ? EXIT_FINE : command_fail_input(status, message);
}

/* ---- import ---- */

static const command_option import_rows[] = {
    DATABASE_OPTION,
    TEXT_OPTION(manage_arguments, source, "source", 0, "TEXT",
                "Where the figures are from: a paper and its table, a data sheet, a run elsewhere; "
                "rows may have their own"),
    OPERANDS(manage_arguments, files, "FILE.json", 1, 1, OPTION_DATA | OPTION_READS),
    {0},
};

static int import_run(void *context)
{
    const manage_arguments *arguments = context;
    const command_common *common = &arguments->common;
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_profile profile;
    uint64_t rows = 0;
    kvt_status status = command_profile_begin(common->config, &profile, message, sizeof message);
    if (status == KVT_OK)
        status = exchange_import(profile.profile, arguments->files.items[0], arguments->source,
                                 common->line, &rows, message, sizeof message);
    (void)command_profile_finish(&profile, status == KVT_OK ? EXIT_FINE : EXIT_FAILED);
    if (status != KVT_OK) return command_fail_input(status, message);
    if (common->json)
        return command_print_document(
            json_pack("{s:s, s:s, s:s, s:s, s:I}", "schema", "kvterrace-profile-import-1",
                      "version", kvt_version(), "database", command_profile_path(common->config),
                      "file", arguments->files.items[0], "rows", (json_int_t)rows));
    command_note(common, "%llu row%s imported", (unsigned long long)rows, rows == 1 ? "" : "s");
    return EXIT_FINE;
}

const command_spec profile_import_spec = {
    .name = "import",
    .summary = "bring in curves that were published or measured elsewhere",
    .about = "Brings curves that were measured elsewhere or published into the profile, each with "
             "its source: device speeds, task scores or losses of variants, prefill times, "
             "calibrations. docs/PROFILE.md lists tables and columns. The whole file comes in, or "
             "the first bad row is named and nothing does. A file FILE.kvtbasis is a basis of the "
             "transform codec.",
    .example = "  kvterrace profile import profiles/llama-3.1-8b.json --database profile.db",
    .options = import_rows,
    .argument_bytes = sizeof(manage_arguments),
    .run = import_run,
    .settings = SETTINGS_PROFILE,
};

/* ---- export ---- */

static const command_option export_rows[] = {
    DATABASE_OPTION,
    TEXT_OPTION(manage_arguments, table, "table", 0, "TABLE",
                "One table; without it, all that import takes"),
    TEXT_OPTION(manage_arguments, ladder, "ladder", 0, "MODEL:CLASS",
                "The ladder of a model and class of text, as replay.ladder reads it"),
    TEXT_OPTION(manage_arguments, basis, "basis", 0, "HASH",
                "A basis of the transform codec, by the first five digits of its hash or more"),
    OUTPUT_OPTION(manage_arguments, output, "Where the basis is written"),
    {0},
};

static json_t *manage_pack_ladder(const kvt_codec_curve *curves, uint32_t count)
{
    json_t *rungs = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const kvt_codec_curve *curve = &curves[i];
        char name[128];
        (void)kvt_variant_format(curve->variant, name, sizeof name);
        (void)json_array_append_new(
            rungs, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:s}", "variant", name, "bits",
                             curve->stored_share * 16, "loss", curve->loss, "loss_upper",
                             curve->loss_upper, "encode_bytes_per_s", curve->encode_bytes_per_s,
                             "decode_bytes_per_s", curve->decode_bytes_per_s, "source", "profile"));
    }
    return json_pack("{s:o}", "ladder", rungs);
}

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
    kvt_status status = exchange_ladder(profile, model, colon + 1, NULL, curves, KVT_VARIANTS_MAX,
                                        &count, message, sizeof message);
    free(model);
    if (status != KVT_OK)
        return command_fail_input(status == KVT_MISS ? KVT_E_GONE : status, message);
    status = command_print_exact(exchange_document(command_profile_path(arguments->common.config),
                                                   manage_pack_ladder(curves, count)));
    return status == KVT_OK ? EXIT_FINE : command_fail(status, "");
}

/* Tables name bases by their hashes and do not have them: whoever imports them lacks the bases. */
static void manage_note_bases(kvt_profile *profile, const manage_arguments *arguments)
{
    char names[160] = "";
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK || status == KVT_E_CORRUPT; i++) {
        profile_basis basis;
        const size_t used = strlen(names);
        status = profile_basis_at(profile, i, &basis);
        if (status == KVT_OK && used + 8 < sizeof names)
            (void)snprintf(names + used, sizeof names - used, "%s%05X", used > 0 ? ", " : "",
                           (unsigned)transform_hash_start(basis.view.hash));
        profile_basis_free(&basis);
    }
    if (names[0] != '\0')
        command_note(&arguments->common,
                     "the bases %s are not in the tables: --basis HASH -o FILE exports one", names);
}

static int manage_export_rows(kvt_profile *profile, const manage_arguments *arguments)
{
    json_t *tables = json_object();
    kvt_status status = exchange_export(profile, arguments->table, tables);
    const bool empty = json_object_size(tables) == 0;
    if (status != KVT_OK) {
        json_decref(tables);
        return status == KVT_E_ARGUMENT
                   ? command_fail_input(status,
                                        "--table: no such table (docs/PROFILE.md lists them)")
                   : command_fail(status, "");
    }
    status = command_print_exact(
        exchange_document(command_profile_path(arguments->common.config), tables));
    if (status != KVT_OK) return command_fail(status, "");
    if (empty) command_note(&arguments->common, "nothing to export");
    if (arguments->table == NULL) manage_note_bases(profile, arguments);
    return EXIT_FINE;
}

static int manage_export_basis(kvt_profile *profile, const manage_arguments *arguments)
{
    char message[COMMAND_MESSAGE_BYTES] = "", start[6], *end = NULL;
    profile_basis basis = {.object = NULL};
    (void)snprintf(start, sizeof start, "%s", arguments->basis);
    const unsigned long number = strtoul(start, &end, 16);
    if (strlen(start) != 5 || *end != '\0')
        return command_fail_input(KVT_E_ARGUMENT, "--basis: five hexadecimal digits or more");
    kvt_status status = profile_basis_get(profile, (uint32_t)number, &basis);
    if (status == KVT_MISS)
        return command_fail_input(KVT_E_GONE, "--basis: the profile has no such basis");
    if (status == KVT_OK)
        status =
            whole_file_write(arguments->output, basis.object, basis.bytes, message, sizeof message);
    profile_basis_free(&basis);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, message);
}

static int export_check(void *context)
{
    const manage_arguments *arguments = context;
    if ((arguments->basis != NULL) != (arguments->output != NULL))
        return command_misuse("--basis and --output go together");
    return EXIT_FINE;
}

static int export_run(void *context)
{
    const manage_arguments *arguments = context;
    kvt_profile *profile = NULL;
    /* Figures of other hosts may be looked at; what is refused is deciding on them. */
    int code = manage_open(&arguments->common, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile);
    if (code == EXIT_FINE)
        code = arguments->ladder != NULL  ? manage_export_ladder(profile, arguments)
               : arguments->basis != NULL ? manage_export_basis(profile, arguments)
                                          : manage_export_rows(profile, arguments);
    kvt_profile_close(profile);
    return code;
}

const command_spec profile_export_spec = {
    .name = "export",
    .summary = "print curves with their sources",
    .about =
        "Prints a profile's curves with their sources as JSON, as import takes them. Tables run "
        "and learned are printed when named.",
    .example = "  kvterrace profile export --database profile.db --table prefill",
    .options = export_rows,
    .argument_bytes = sizeof(manage_arguments),
    .check = export_check,
    .run = export_run,
    .settings = SETTINGS_PROFILE,
};

/* ---- diff ---- */

static const command_option diff_rows[] = {
    {.name = "threshold",
     .argument = "SHARE",
     .text = "How much a figure may change (0.05)",
     .kind = OPTION_SHARE,
     .offset = offsetof(manage_arguments, threshold),
     .most = 1e9},
    FLAG_OPTION(manage_arguments, all, "all", 'a', "Show figures that did not change as well"),
    OPERANDS(manage_arguments, files, "PROFILE.db", 2, 2, OPTION_READS),
    {0},
};

static kvt_status manage_compare(kvt_profile *before, kvt_profile *after,
                                 const manage_arguments *arguments, manage_diff *diff)
{
    json_t *changes = json_array();
    kvt_status status = exchange_diff(before, after, changes);
    const size_t figures = json_array_size(changes);
    if (status == KVT_OK) manage_mark_changes(diff, changes);
    if (status == KVT_OK && diff->json) {
        status = command_print_exact(json_pack(
            "{s:s, s:s, s:s, s:s, s:f, s:I, s:I, s:O}", "schema", "kvterrace-profile-diff-1",
            "version", kvt_version(), "before", arguments->files.items[0], "after",
            arguments->files.items[1], "threshold", diff->threshold, "figures", (json_int_t)figures,
            "different", (json_int_t)diff->different, "changes", changes));
    } else if (status == KVT_OK) {
        printf("%s%zu of %zu figures differ by more than %g %%\n", diff->printed ? "\n" : "",
               diff->different, figures, diff->threshold * 100);
    }
    json_decref(changes);
    return status;
}

static int diff_run(void *context)
{
    const manage_arguments *arguments = context;
    kvt_profile *profiles[2] = {NULL, NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    manage_diff diff = {
        .threshold = arguments->threshold, .all = arguments->all, .json = arguments->common.json};
    int code = EXIT_FINE;
    for (int i = 0; i < 2 && code == EXIT_FINE; i++) {
        kvt_status status =
            command_profile_look(arguments->files.items[i], &profiles[i], message, sizeof message);
        if (status != KVT_OK) code = command_fail_input(status, message);
    }
    if (code == EXIT_FINE) {
        kvt_status status = manage_compare(profiles[0], profiles[1], arguments, &diff);
        if (status != KVT_OK) code = command_fail(status, "");
    }
    if (code == EXIT_FINE && diff.different > 0) code = EXIT_FAILED;
    kvt_profile_close(profiles[0]);
    kvt_profile_close(profiles[1]);
    return code;
}

static const manage_arguments diff_standard = {.threshold = 0.05};

const command_spec profile_diff_spec = {
    .name = "diff",
    .summary = "compare two profiles",
    .about = "Compares what answers in two profiles, figure by figure. A figure differs when it is "
             "in one of them alone, or when it changed by more than the threshold and the spread "
             "of the repetitions behind it, where known, does not explain that. Exit code 1 when "
             "one differs.",
    .synopsis = "BEFORE.db AFTER.db",
    .example = "  kvterrace profile diff before.db after.db --threshold 10%",
    .options = diff_rows,
    .argument_bytes = sizeof(manage_arguments),
    .standard = &diff_standard,
    .run = diff_run,
};

/* ---- gc ---- */

static const command_option gc_rows[] = {
    DATABASE_OPTION,
    DRY_RUN_OPTION(manage_arguments, dry_run, "Say what would go and change nothing"),
    {.name = "older",
     .argument = "TIME",
     .text = "Interrupted runs go once they are older than TIME (168h)",
     .kind = OPTION_TIME,
     .offset = offsetof(manage_arguments, older_seconds),
     .least = -1,
     .most = 1e9},
    {0},
};

static kvt_status manage_collect(kvt_profile *profile, const manage_arguments *arguments)
{
    json_t *report = json_object(), *run;
    size_t i;
    kvt_status status = exchange_gc(profile, arguments->dry_run, arguments->older_seconds, report);
    if (status == KVT_OK && arguments->common.json) {
        json_t *document = json_pack("{s:s, s:s, s:b}", "schema", "kvterrace-profile-gc-1",
                                     "version", kvt_version(), "dry_run", arguments->dry_run);
        (void)json_object_update(document, report);
        status = command_print_exact(document);
    } else if (status == KVT_OK) {
        const json_t *runs = json_object_get(report, "runs");
        json_array_foreach(runs, i, run)
        {
            const char *source = view_text(run, "source");
            printf("run %-6.0f %-12s %s  %s%s%s\n", view_number(run, "run", 0),
                   view_text(run, "kind"), view_text(run, "started_utc"), view_text(run, "reason"),
                   source[0] != '\0' ? "  " : "", source);
        }
        printf("%zu runs and %.0f models without curves %s; %.0f bytes, %.0f before\n",
               json_array_size(runs), view_number(report, "models", 0),
               arguments->dry_run ? "would go" : "went", view_number(report, "bytes_after", 0),
               view_number(report, "bytes_before", 0));
    }
    json_decref(report);
    return status;
}

static int gc_run(void *context)
{
    const manage_arguments *arguments = context;
    kvt_profile *profile = NULL;
    /* Opening for reading first: what does not exist is not made. */
    int code = manage_open(&arguments->common, KVT_PROFILE_READ, &profile);
    if (code == EXIT_FINE && !arguments->dry_run) {
        kvt_profile_close(profile);
        profile = NULL;
        code = manage_open(&arguments->common, KVT_PROFILE_WRITE, &profile);
    }
    if (code == EXIT_FINE) {
        kvt_status status = manage_collect(profile, arguments);
        if (status != KVT_OK) code = command_fail(status, "");
    }
    kvt_profile_close(profile);
    return code;
}

static const manage_arguments gc_standard = {.older_seconds = 7 * 86400.0};

const command_spec profile_gc_spec = {
    .name = "gc",
    .summary = "drop runs that newer ones replace",
    .about = "Drops runs that newer complete ones replace, and interrupted ones. A run stays when "
             "it alone knows a figure.",
    .example = "  kvterrace profile gc --database profile.db --dry-run",
    .options = gc_rows,
    .argument_bytes = sizeof(manage_arguments),
    .standard = &gc_standard,
    .run = gc_run,
    .settings = SETTINGS_PROFILE,
};
