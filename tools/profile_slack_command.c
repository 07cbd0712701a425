/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_slack_command.c - kvterrace profile slack: what one layer of a pass takes, by new tokens
 * and prefix, into a profile: from a table of the caller's, or measured on a model that runs here.
 * One thread.
 */
#include "profile_measure.h"

#include "estimator/model/pass_seconds.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLACK_HEADER "new_tokens,prefix_tokens,layer_seconds"

enum {
    SLACK_PLACES = 8,
    SLACK_REPETITIONS = 5,
    SLACK_REPETITIONS_QUICK = 1,
    SLACK_TOKENS_MOST = 1 << 20 /* of one forward pass of a model */
};

typedef struct slack_arguments {
    command_common common;
    bool quick;
    const char *table, *model, *name, *source, *new_tokens, *prefix_tokens;
} slack_arguments;

static const command_option slack_rows[] = {
    DATABASE_OPTION,
    {.name = "table",
     .argument = "FILE.csv",
     .text = "Seconds of a layer that were measured elsewhere: a header " SLACK_HEADER
             " and a row for each place, in any order",
     .kind = OPTION_TEXT,
     .flags = OPTION_READS,
     .offset = offsetof(slack_arguments, table)},
    {.name = "model",
     .argument = "FILE",
     .text = "A model to measure on: a folder, a file, or the socket of a program, which is "
             "measured without prefixes alone",
     .kind = OPTION_TEXT,
     .flags = OPTION_DATA,
     .offset = offsetof(slack_arguments, model)},
    TEXT_OPTION(slack_arguments, name, "name", 0, "NAME",
                "What the profile calls the table, for prefill.slack (from the path)"),
    TEXT_OPTION(slack_arguments, source, "source", 0, "TEXT",
                "Where the table is from (the path of it)"),
    TEXT_OPTION(slack_arguments, new_tokens, "new", 0, "N,...",
                "New tokens of the passes that are measured (1,64,256,1024)"),
    TEXT_OPTION(slack_arguments, prefix_tokens, "prefix", 0, "N,...",
                "Tokens before them (0,1024,4096)"),
    QUICK_OPTION(slack_arguments, quick, "One pass for each place"),
    {0},
};

static int slack_check(void *context)
{
    const slack_arguments *arguments = context;
    if ((arguments->table == NULL) == (arguments->model == NULL))
        return command_misuse("either --table or --model");
    if (arguments->table != NULL &&
        (arguments->new_tokens != NULL || arguments->prefix_tokens != NULL || arguments->quick))
        return command_misuse("--new, --prefix and --quick are for --model");
    if (arguments->model != NULL && arguments->source != NULL)
        return command_misuse("--source is for --table");
    return EXIT_FINE;
}

/* The rows of a table. */
typedef struct slack_table {
    kvt_pass_row rows[PROFILE_PASS_ROWS_MAX];
    size_t count;
} slack_table;

/* ---- from a file ---- */

/* A count behind which a comma follows; *at moves behind the comma. */
static bool slack_read_count(const char **at, uint32_t *out)
{
    char *end;
    if (**at < '0' || **at > '9') return false;
    errno = 0;
    const unsigned long long value = strtoull(*at, &end, 10);
    if (errno != 0 || value > UINT32_MAX || *end != ',') return false;
    *out = (uint32_t)value;
    *at = end + 1;
    return true;
}

/* NULL, or what is wrong with a line. */
static const char *slack_read_line(const char *line, slack_table *table)
{
    kvt_pass_row row;
    char *end;
    const char *at = line;
    if (!slack_read_count(&at, &row.new_tokens) || row.new_tokens == 0)
        return "new_tokens is not a whole number above 0";
    if (!slack_read_count(&at, &row.prefix_tokens)) return "prefix_tokens is not a whole number";
    row.layer_seconds = strtod(at, &end);
    if (end == at || *end != '\0') return "layer_seconds is not a number, or more follows";
    if (!(row.layer_seconds > 0) || !(row.layer_seconds < 1e300))
        return "layer_seconds is not a number above 0";
    for (size_t i = 0; i < table->count; i++)
        if (table->rows[i].new_tokens == row.new_tokens &&
            table->rows[i].prefix_tokens == row.prefix_tokens)
            return "a row above has these new_tokens and prefix_tokens";
    if (table->count == PROFILE_PASS_ROWS_MAX) return "more than 4096 rows";
    table->rows[table->count++] = row;
    return NULL;
}

static kvt_status slack_read_file(const char *path, slack_table *table, char *message,
                                  size_t message_size)
{
    char line[256];
    const char *fault = NULL;
    unsigned number = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        (void)snprintf(message, message_size, "%.400s: %s", path, strerror(errno));
        return errno == ENOENT ? KVT_E_GONE : KVT_E_IO;
    }
    while (fault == NULL && fgets(line, sizeof line, file) != NULL) {
        const size_t length = strlen(line);
        number++;
        if (length + 1 == sizeof line && line[length - 1] != '\n') fault = "the line is too long";
        line[strcspn(line, "\r\n")] = '\0';
        if (fault == NULL && number == 1)
            fault = strcmp(line, SLACK_HEADER) != 0 ? "the header is not " SLACK_HEADER : NULL;
        else if (fault == NULL && line[0] != '\0')
            fault = slack_read_line(line, table);
    }
    const bool failed = ferror(file) != 0;
    (void)fclose(file);
    if (!failed && fault == NULL && table->count == 0) fault = "it has no row";
    if (fault != NULL)
        (void)snprintf(message, message_size, "%.400s:%u: %s", path, number > 0 ? number : 1,
                       fault);
    if (failed) (void)snprintf(message, message_size, "%.400s: it cannot be read", path);
    return failed ? KVT_E_IO : fault != NULL ? KVT_E_PARSE : KVT_OK;
}

/* ---- by a model ---- */

static bool slack_proceed(void *context, double done)
{
    progress_update(context, done, "passes");
    return !command_interrupted();
}

/* A list such as "0,1024"; false: it is none, or has too many. */
static bool slack_read_list(const char *text, uint32_t least, uint32_t values[SLACK_PLACES],
                            uint32_t *count_out)
{
    uint32_t count = 0;
    for (const char *at = text; count < SLACK_PLACES; at++) {
        char *end;
        if (*at < '0' || *at > '9') return false;
        errno = 0;
        const unsigned long value = strtoul(at, &end, 10);
        if (errno != 0 || value < least || value > SLACK_TOKENS_MOST) return false;
        for (uint32_t i = 0; i < count; i++)
            if (values[i] == value) return false;
        values[count++] = (uint32_t)value;
        *count_out = count;
        if (*end == '\0') return true;
        if (*end != ',') return false;
        at = end;
    }
    return false;
}

static kvt_status slack_measure(const slack_arguments *arguments, slack_table *table, char *message,
                                size_t message_size)
{
    uint32_t new_tokens[SLACK_PLACES], prefix_tokens[SLACK_PLACES];
    const char *news = arguments->new_tokens != NULL ? arguments->new_tokens : "1,64,256,1024";
    const char *prefixes =
        arguments->prefix_tokens != NULL ? arguments->prefix_tokens : "0,1024,4096";
    command_progress bar;
    pass_grid grid = {.new_tokens = new_tokens,
                      .prefix_tokens = prefix_tokens,
                      .repetitions = arguments->quick ? SLACK_REPETITIONS_QUICK : SLACK_REPETITIONS,
                      .proceed = slack_proceed,
                      .context = &bar};
    model *m = NULL;
    if (!slack_read_list(news, 1, new_tokens, &grid.new_count) ||
        !slack_read_list(prefixes, 0, prefix_tokens, &grid.prefix_count)) {
        (void)snprintf(message, message_size,
                       "--new and --prefix are up to %d different numbers of tokens, such as "
                       "0,1024; --new from 1 on",
                       (int)SLACK_PLACES);
        return KVT_E_ARGUMENT;
    }
    command_choose_blas();
    kvt_status status = model_open(arguments->model, &m, message, message_size);
    if (status != KVT_OK) return status;
    progress_start(&bar, &arguments->common);
    status = pass_seconds_measure(m, &grid, table->rows, &table->count);
    progress_end(&bar);
    if (status == KVT_OK && model_is_elsewhere(m) && grid.prefix_count > 1)
        command_note(&arguments->common, "a program runs the model: it is measured without "
                                         "prefixes alone, because they would be sent each time");
    model_close(m);
    if (status == KVT_OK && table->count == 0) {
        (void)snprintf(message, message_size, "--prefix: a program's model needs 0 among them");
        return KVT_E_ARGUMENT;
    }
    if (status == KVT_E_CANCELLED) (void)snprintf(message, message_size, "interrupted");
    return status;
}

/* ---- the command ---- */

/* The name of a table: as given, or a path's last part without its ending. */
static void slack_name(const slack_arguments *arguments, char name[PROFILE_PASS_NAME_MAX + 1])
{
    const char *path = arguments->table != NULL ? arguments->table : arguments->model;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t first = length;
    while (first > 0 && path[first - 1] != '/')
        first--;
    const char *text = arguments->name != NULL ? arguments->name : path + first;
    length = arguments->name != NULL ? strlen(text) : length - first;
    const char *dot = arguments->name == NULL ? memchr(text, '.', length) : NULL;
    if (dot != NULL && dot != text) length = (size_t)(dot - text);
    if (length > PROFILE_PASS_NAME_MAX) length = PROFILE_PASS_NAME_MAX;
    (void)snprintf(name, PROFILE_PASS_NAME_MAX + 1, "%.*s", (int)length, text);
}

static json_t *slack_document(const char *name, const slack_table *table)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < table->count; i++)
        (void)json_array_append_new(
            rows, json_pack("{s:I, s:I, s:f}", "new_tokens", (json_int_t)table->rows[i].new_tokens,
                            "prefix_tokens", (json_int_t)table->rows[i].prefix_tokens,
                            "layer_seconds", table->rows[i].layer_seconds));
    return json_pack("{s:s, s:o, s:o}", "schema", "kvterrace-profile-slack-1", "name",
                     view_string(name), "rows", rows);
}

static const document_table slack_tables[] = {
    {"", "name"},
    {"rows", "new_tokens prefix_tokens layer_seconds"},
    {0},
};

static kvt_status slack_fill(const slack_arguments *arguments, slack_table *table, char *message,
                             size_t message_size)
{
    if (arguments->name != NULL &&
        (arguments->name[0] == '\0' || strlen(arguments->name) > PROFILE_PASS_NAME_MAX)) {
        (void)snprintf(message, message_size, "--name: a name of 1 to 63 bytes");
        return KVT_E_ARGUMENT;
    }
    if (arguments->table != NULL)
        return slack_read_file(arguments->table, table, message, message_size);
    return slack_measure(arguments, table, message, message_size);
}

static int slack_run(void *context)
{
    const slack_arguments *arguments = context;
    const command_common *common = &arguments->common;
    char message[COMMAND_MESSAGE_BYTES] = "", name[PROFILE_PASS_NAME_MAX + 1];
    command_profile profile;
    command_catch_interrupts();
    slack_table *table = calloc(1, sizeof *table);
    if (table == NULL) return command_fail(KVT_E_MEMORY, "");
    slack_name(arguments, name);
    kvt_status status = slack_fill(arguments, table, message, sizeof message);
    if (status == KVT_OK) {
        const char *source = arguments->source != NULL ? arguments->source : arguments->table;
        status = command_profile_begin(common->config, &profile, message, sizeof message);
        if (status == KVT_OK) {
            status = kvt_profile_passes_put(profile.profile, name, table->rows, table->count,
                                            source, common->line);
            if (status != KVT_OK)
                (void)snprintf(message, sizeof message, "%s", kvt_status_text(status));
        }
        (void)command_profile_finish(&profile, status == KVT_OK ? EXIT_FINE : EXIT_FAILED);
    }
    int code = EXIT_FINE;
    if (status != KVT_OK)
        code = status == KVT_E_CANCELLED ? command_fail(status, message)
                                         : command_fail_input(status, message);
    else
        code = command_print_tables(common, slack_document(name, table), slack_tables);
    free(table);
    return code;
}

const command_spec profile_slack_spec = {
    .name = "slack",
    .summary = "keep what one layer of a pass takes",
    .about = "Puts a table of seconds per layer into the profile, by new tokens and prefix: of a "
             "file, or measured on a model that runs here. With prefill.slack=NAME a store takes "
             "it for passes that announce no seconds; between its places and beyond them the "
             "prefill model is scaled by the places near by.",
    .synopsis = "--table FILE.csv | --model FILE",
    .example = "  kvterrace profile slack --model reference_model/model --name tiny \\\n"
               "    --new 16,64 --prefix 0,256 --database profile.db --quick",
    .options = slack_rows,
    .argument_bytes = sizeof(slack_arguments),
    .check = slack_check,
    .run = slack_run,
    .settings = SETTINGS_PROFILE,
};
