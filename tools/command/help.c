/* SPDX-License-Identifier: Apache-2.0 */
/*
 * help.c - what --help says of a command, as text of at most 80 columns and as JSON, from the table
 * that declares the command. The manual page and the completions are made from the JSON. One
 * thread.
 */
#include "command.h"

#include "estimator/quality/quality.h"

#include <kvterrace/kvterrace.h>

#include <stdlib.h>
#include <string.h>

#define HELP_COLUMNS     79u
#define HELP_TEXT_COLUMN 28u

const char *const help_exit_codes[][2] = {
    {"0", "fine"},
    {"1", "a check or an operation failed"},
    {"2", "wrong usage, setting or input file"},
    {"77", "this build or machine lacks what was asked for"},
    {"130", "interrupted; what was finished until then is printed or stays"},
    {NULL, NULL},
};

/* Writes words with line breaks; column is where the line is now, indent where the next begin. */
static void help_wrap(FILE *out, const char *text, size_t column, size_t indent)
{
    bool first = true;
    while (*text != '\0') {
        const size_t span = strcspn(text, " \n");
        if (span > 0) {
            if (!first && column + 1 + span > HELP_COLUMNS) {
                fprintf(out, "\n%*s", (int)indent, "");
                column = indent;
            } else if (!first) {
                fputc(' ', out);
                column++;
            }
            fprintf(out, "%.*s", (int)span, text);
            column += span;
            first = false;
        }
        text += span + (text[span] != '\0');
    }
    fputc('\n', out);
}

static void help_print_option(FILE *out, const command_option *option)
{
    char names[96];
    if (option->kind == OPTION_GONE || option->name == NULL) return;
    int length =
        snprintf(names, sizeof names, "  %c%c%c --%s%s%s", option->letter ? '-' : ' ',
                 option->letter ? option->letter : ' ', option->letter ? ',' : ' ', option->name,
                 option->argument ? "=" : "", option->argument ? option->argument : "");
    fputs(names, out);
    if (length < 0 || (size_t)length + 2 > HELP_TEXT_COLUMN)
        fprintf(out, "\n%*s", (int)HELP_TEXT_COLUMN, "");
    else
        fprintf(out, "%*s", (int)(HELP_TEXT_COLUMN - (size_t)length), "");
    help_wrap(out, option->text, HELP_TEXT_COLUMN, HELP_TEXT_COLUMN);
}

/* The rest of the n-th usage line behind the name; false: there are fewer lines. */
static bool help_synopsis(const command_spec *spec, unsigned n, char *text, size_t size)
{
    const command_option *operands = options_operands(spec);
    if (spec->synopsis != NULL) {
        const char *line = spec->synopsis;
        for (; n > 0; n--) {
            line += strcspn(line, "\n");
            if (*line++ == '\0') return false;
        }
        (void)snprintf(text, size, "[OPTION...] %.*s", (int)strcspn(line, "\n"), line);
    } else if (spec->commands != NULL) {
        (void)snprintf(text, size, "COMMAND [OPTION...]");
    } else {
        (void)snprintf(text, size, "[OPTION...]%s%s%s", operands ? " " : "",
                       operands ? operands->argument : "",
                       operands && operands->most != 1 ? "..." : "");
    }
    return n == 0 || spec->synopsis != NULL;
}

static const char *help_variant_at(size_t index)
{
    return quality_variant_usual((uint32_t)index, false);
}

static void help_print_names(FILE *out, const char *title, const char *(*name_at)(size_t index))
{
    const char *name;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL) return;
    fputs(title, stream);
    for (size_t i = 0; (name = name_at(i)) != NULL; i++)
        fprintf(stream, " %s", name);
    if (fclose(stream) == 0) {
        fputc('\n', out);
        help_wrap(out, text, 0, 2);
    }
    free(text);
}

static void help_print_lists(const command_spec *spec, FILE *out)
{
    if (spec->lists & LISTS_POLICIES) help_print_names(out, "Policies:", kvt_policy_name_get);
    if (spec->lists & LISTS_VARIANTS)
        help_print_names(
            out, "Variants, of many (docs/codecs/ has a card of each codec):", help_variant_at);
    if (spec->lists & LISTS_SETTINGS)
        fputs("\nSettings: `kvterrace settings [SECTION]` lists them with their defaults.\n", out);
}

void help_print(const command_spec *spec, const char *name, FILE *out)
{
    char synopsis[256];
    for (unsigned n = 0; help_synopsis(spec, n, synopsis, sizeof synopsis); n++) {
        fprintf(out, "%s %s ", n == 0 ? "Usage:" : "  or: ", name);
        help_wrap(out, synopsis, strlen(name) + 8, 12);
        if (spec->synopsis == NULL) break;
    }
    help_wrap(out, spec->about, 0, 0);
    if (spec->commands != NULL) fputs("\nCommands:\n", out);
    for (size_t i = 0; spec->commands != NULL && spec->commands[i] != NULL; i++)
        fprintf(out, "  %-14s %s\n", spec->commands[i]->name, spec->commands[i]->summary);
    const command_option *option = spec->options;
    fputs("\nOptions:\n", out);
    for (; option != NULL && (option->name != NULL || option->argument != NULL); option++)
        help_print_option(out, option);
    for (option = command_common_options; spec->commands == NULL && option->name != NULL; option++)
        help_print_option(out, option);
    if (spec->commands != NULL)
        fputs("  -h, --help                Show this; with --json as a table of all commands\n"
              "  -v, -V, --version         Show the version\n"
              "`COMMAND --help` tells more of each.\n",
              out);
    if (spec->details != NULL) {
        const char *part = spec->details;
        do {
            const char *end = strstr(part, "\n\n");
            char *copy = end != NULL ? strndup(part, (size_t)(end - part)) : strdup(part);
            fputc('\n', out);
            if (copy != NULL) help_wrap(out, copy, 0, 0);
            free(copy);
            part = end != NULL ? end + 2 : NULL;
        } while (part != NULL);
    }
    help_print_lists(spec, out);
    if (spec->example != NULL) fprintf(out, "\nExample:\n%s\n", spec->example);
    if (spec->commands == NULL) return;
    fputs("\nExit codes:\n", out);
    for (size_t i = 0; help_exit_codes[i][0] != NULL; i++)
        fprintf(out, "  %-4s%s\n", help_exit_codes[i][0], help_exit_codes[i][1]);
}

/* ---- the same as JSON ---- */

static json_t *help_option_json(const command_option *option)
{
    const char letter[2] = {option->letter, '\0'};
    return json_pack("{s:s, s:s?, s:s?, s:s, s:s?, s:b}", "name", option->name, "letter",
                     option->letter ? letter : NULL, "argument", option->argument, "text",
                     option->text, "choices", option->kind == OPTION_CHOICE ? option->extra : NULL,
                     "file",
                     option->argument != NULL && (strcmp(option->argument, "FILE") == 0 ||
                                                  strcmp(option->argument, "DIR") == 0 ||
                                                  strcmp(option->argument, "PREFIX") == 0 ||
                                                  strcmp(option->argument, "[CLASS=]FILE") == 0));
}

static void help_add_options(json_t *rows, const command_option *option)
{
    for (; option != NULL && (option->name != NULL || option->argument != NULL); option++)
        if (option->name != NULL && option->kind != OPTION_GONE)
            (void)json_array_append_new(rows, help_option_json(option));
}

static void help_add_commands(json_t *rows, const command_spec *spec, const char *name)
{
    const command_option *operands = options_operands(spec);
    json_t *options = json_array(), *usage = json_array(), *commands = json_array();
    char text[512], line[512];
    for (unsigned n = 0; help_synopsis(spec, n, text, sizeof text); n++) {
        (void)snprintf(line, sizeof line, "%.200s %.256s", name, text);
        (void)json_array_append_new(usage, json_string(line));
        if (spec->synopsis == NULL) break;
    }
    help_add_options(options, spec->options);
    if (spec->commands == NULL) help_add_options(options, command_common_options);
    for (size_t i = 0; spec->commands != NULL && spec->commands[i] != NULL; i++)
        (void)json_array_append_new(commands, json_string(spec->commands[i]->name));
    (void)json_array_append_new(
        rows,
        json_pack("{s:s, s:s?, s:s, s:s?, s:s?, s:s?, s:o, s:o, s:o}", "name", name, "summary",
                  spec->summary, "about", spec->about, "details", spec->details, "example",
                  spec->example, "operands", operands != NULL ? operands->argument : NULL, "usage",
                  usage, "options", options, "commands", commands));
    for (size_t i = 0; spec->commands != NULL && spec->commands[i] != NULL; i++) {
        (void)snprintf(line, sizeof line, "%.200s %.200s", name, spec->commands[i]->name);
        help_add_commands(rows, spec->commands[i], line);
    }
}

json_t *help_document(const command_spec *spec, const char *name)
{
    json_t *rows = json_array(), *codes = json_object(), *variants = json_array();
    json_t *policies = json_array();
    const char *text;
    for (size_t i = 0; (text = help_variant_at(i)) != NULL; i++)
        (void)json_array_append_new(variants, json_string(text));
    for (size_t i = 0; (text = kvt_policy_name_get(i)) != NULL; i++)
        (void)json_array_append_new(policies, json_string(text));
    for (size_t i = 0; help_exit_codes[i][0] != NULL; i++)
        (void)json_object_set_new(codes, help_exit_codes[i][0], json_string(help_exit_codes[i][1]));
    help_add_commands(rows, spec, name);
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "schema", "kvterrace-commands-1", "version",
                     kvt_version(), "exit_codes", codes, "policies", policies, "variants", variants,
                     "commands", rows);
}
