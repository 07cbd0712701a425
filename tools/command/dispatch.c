/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.c - finds the command that the command line names, and runs it. One thread.
 */
#include "command.h"

#include "base/config_values.h"
#include "base/nearest.h"

#include <kvterrace/config.h>
#include <kvterrace/kvterrace.h>

#include <stdlib.h>
#include <string.h>

/* Whether the command line asks for JSON as the parser will read it: cut short, or among letters of
 * flags, and even with an argument, which is an error to be said in JSON. */
static bool dispatch_has_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const size_t length = strcspn(argv[i], "=");
        if (length >= 3 && length <= 6 && strncmp(argv[i], "--json", length) == 0) return true;
        if (strcmp(argv[i], "-j") == 0 || strcmp(argv[i], "-qj") == 0) return true;
    }
    return false;
}

/* argv as one line, for the profile's provenance. */
static void dispatch_keep_line(int argc, char **argv, char *line, size_t size)
{
    size_t used = 0;
    line[0] = '\0';
    for (int i = 0; i < argc && used < size; i++) {
        int length = snprintf(line + used, size - used, "%s%s", i ? " " : "", argv[i]);
        if (length < 0) break;
        used += (size_t)length;
    }
}

static void dispatch_free(const command_spec *spec, void *arguments)
{
    const command_option *option = spec->options;
    command_unload(arguments);
    for (; option != NULL && (option->name != NULL || option->argument != NULL); option++) {
        if (option->kind != OPTION_LIST) continue;
        command_list *list = (command_list *)((char *)arguments + option->offset);
        free(list->items);
        *list = (command_list){0}; /* another row may fill the same list */
    }
    free(arguments);
}

static int dispatch_load(const command_spec *spec, void *arguments)
{
    static const char *const no_sections[] = {NULL};
    command_common *common = arguments;
    int code = spec->check != NULL ? spec->check(arguments) : EXIT_FINE;
    if (code == EXIT_FINE) code = command_load(common);
    if (code != EXIT_FINE || spec->settings == SETTINGS_OWN) return code;
    if (spec->settings == SETTINGS_PROFILE) {
        (void)kvt_config_text(common->config, "store.profile");
        (void)kvt_config_switch(common->config, "store.profile_foreign");
    }
    return command_report_unused(common, no_sections);
}

static int dispatch_run(const command_spec *spec, int argc, char **argv)
{
    const size_t bytes = spec->argument_bytes;
    command_common *common = calloc(1, bytes);
    if (common == NULL) return command_fail(KVT_E_MEMORY, "");
    if (spec->standard != NULL) memcpy(common, spec->standard, bytes);
    common->spec = spec;
    dispatch_keep_line(argc, argv, common->line, sizeof common->line);
    int code = options_parse(spec, argc, argv, common);
    if (code == EXIT_FINE && common->help) {
        if (dispatch_has_json(argc, argv))
            code = command_print_document(help_document(spec, argv[0]));
        else
            help_print(spec, argv[0], stdout);
    } else {
        if (code == EXIT_FINE) code = dispatch_load(spec, common);
        if (code == EXIT_FINE) code = spec->run(common);
    }
    dispatch_free(spec, common);
    return command_finish(code);
}

static int dispatch_refuse(const command_spec *group, const char *name)
{
    nearest search = {.text = name, .length = strlen(name)};
    for (size_t i = 0; group->commands[i] != NULL; i++)
        nearest_offer(&search, group->commands[i]->name);
    if (name[0] == '-')
        return command_misuse("unrecognized option '%.200s': options stand behind the command",
                              name);
    if (search.best == NULL) return command_misuse("unknown command '%.200s'", name);
    return command_misuse("unknown command '%.200s'; did you mean '%s'?", name, search.best);
}

/* A group's own options. True: one was there, and the code to leave with is in *code_out. */
static bool dispatch_take_option(const command_spec *group, int argc, char **argv, int *code_out)
{
    const char *word = argc > 1 ? argv[1] : "";
    *code_out = EXIT_FINE;
    if (argc < 2) {
        help_print(group, argv[0], stderr);
        *code_out = EXIT_USAGE;
    } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0) {
        if (dispatch_has_json(argc, argv))
            *code_out = command_print_document(help_document(group, argv[0]));
        else
            help_print(group, argv[0], stdout);
    } else if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0 ||
               strcmp(word, "-v") == 0) {
        printf("%.*s %s\n", (int)strcspn(argv[0], " "), argv[0], kvt_version());
    } else {
        return false;
    }
    return true;
}

static int dispatch(const command_spec *group, int argc, char **argv)
{
    int code;
    char help[] = "--help", version[] = "--version";
    command_begin(argv[0], dispatch_has_json(argc, argv));
    /* As words, the way git and cargo have them: `help replay` is `replay --help`. */
    if (argc > 1 && strcmp(argv[1], "version") == 0) argv[1] = version;
    if (argc > 1 && strcmp(argv[1], "help") == 0) {
        memmove(&argv[1], &argv[2], (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = help;
    }
    if (dispatch_take_option(group, argc, argv, &code)) return command_finish(code);
    const command_spec *spec = NULL;
    for (size_t i = 0; group->commands[i] != NULL; i++)
        if (strcmp(group->commands[i]->name, argv[1]) == 0) spec = group->commands[i];
    if (spec == NULL) return command_finish(dispatch_refuse(group, argv[1]));
    char *name = NULL;
    if (asprintf(&name, "%s %s", argv[0], spec->name) < 0)
        return command_finish(command_fail(KVT_E_MEMORY, ""));
    argv[1] = name;
    if (spec->commands != NULL) {
        code = dispatch(spec, argc - 1, argv + 1);
    } else {
        command_begin(name, dispatch_has_json(argc, argv));
        code = dispatch_run(spec, argc - 1, argv + 1);
    }
    free(name);
    return code;
}

int command_main(const command_spec *group, int argc, char **argv)
{
    char *name = strdup(group->name), *words[] = {name, NULL};
    if (name == NULL) return EXIT_FAILED;
    if (argc > 0) argv[0] = name;
    const int code = argc > 0 ? dispatch(group, argc, argv) : dispatch(group, 1, words);
    free(name);
    return code;
}
