/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - the kvterrace command: its subcommands, and how one is found and run. One thread.
 */
#include "command.h"

#include "base/config_values.h"
#include "base/nearest.h"

#include <kvterrace/kvterrace.h>

#include <stdlib.h>
#include <string.h>

static const command_spec *const main_commands[] = {
    &profile_spec,      &replay_spec,   &bench_spec,  &report_spec,  &encode_spec,
    &decode_spec,       &inspect_spec,  &verify_spec, &recover_spec, &clear_spec,
    &check_config_spec, &settings_spec, NULL,
};

static const command_spec main_spec = {
    .name = "kvterrace",
    .about = "Decides where and in which variant an LLM server's KV cache is kept, and measures "
             "what that takes.",
    .commands = main_commands,
    .example = "  kvterrace replay --workload poisson --policy lru,utility --report run.html",
};

/* Whether a word of the command line is this option. */
static bool main_has(int argc, char **argv, const char *name, const char *letter)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], name) == 0 || strcmp(argv[i], letter) == 0) return true;
    return false;
}

/* Whether the command line asks for JSON as the parser will read it: cut short, or among letters of
 * flags, and even with an argument, which is an error to be said in JSON. */
static bool main_has_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const size_t length = strcspn(argv[i], "=");
        if (length >= 3 && length <= 6 && strncmp(argv[i], "--json", length) == 0) return true;
        if (strcmp(argv[i], "-j") == 0 || strcmp(argv[i], "-qj") == 0) return true;
    }
    return false;
}

/* argv as one line, for the profile's provenance. */
static void main_keep_line(int argc, char **argv, char *line, size_t size)
{
    size_t used = 0;
    line[0] = '\0';
    for (int i = 0; i < argc && used < size; i++) {
        int length = snprintf(line + used, size - used, "%s%s", i ? " " : "", argv[i]);
        if (length < 0) break;
        used += (size_t)length;
    }
}

static void main_free(const command_spec *spec, void *arguments)
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

static int main_load(const command_spec *spec, void *arguments)
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

static int main_run(const command_spec *spec, int argc, char **argv)
{
    const size_t bytes = spec->argument_bytes;
    command_common *common = calloc(1, bytes);
    if (common == NULL) return command_fail(KVT_E_MEMORY, "");
    if (spec->standard != NULL) memcpy(common, spec->standard, bytes);
    common->spec = spec;
    main_keep_line(argc, argv, common->line, sizeof common->line);
    int code = options_parse(spec, argc, argv, common);
    if (code == EXIT_FINE && common->help) {
        if (main_has_json(argc, argv))
            code = command_print_document(help_document(spec, argv[0]));
        else
            help_print(spec, argv[0], stdout);
    } else {
        if (code == EXIT_FINE) code = main_load(spec, common);
        if (code == EXIT_FINE) code = spec->run(common);
    }
    main_free(spec, common);
    return command_finish(code);
}

static int main_refuse(const command_spec *group, const char *name)
{
    nearest search = {.text = name, .length = strlen(name)};
    for (size_t i = 0; group->commands[i] != NULL; i++)
        nearest_offer(&search, group->commands[i]->name);
    if (name[0] == '-') return command_misuse("unrecognized option '%.200s'", name);
    if (search.best == NULL) return command_misuse("unknown command '%.200s'", name);
    return command_misuse("unknown command '%.200s'; did you mean '%s'?", name, search.best);
}

/* A group's own options. True: one was there, and the code to leave with is in *code_out. */
static bool main_take_option(const command_spec *group, int argc, char **argv, int *code_out)
{
    const char *word = argc > 1 ? argv[1] : "";
    *code_out = EXIT_FINE;
    if (argc < 2) {
        help_print(group, argv[0], stderr);
        *code_out = EXIT_USAGE;
    } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0) {
        if (main_has_json(argc, argv))
            *code_out = command_print_document(help_document(group, argv[0]));
        else
            help_print(group, argv[0], stdout);
    } else if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("kvterrace %s\n", kvt_version());
    } else {
        return false;
    }
    return true;
}

int command_main(const command_spec *group, int argc, char **argv)
{
    int code;
    char help[] = "--help", version[] = "--version";
    command_begin(argv[0], main_has_json(argc, argv));
    /* As words, the way git and cargo have them: `help replay` is `replay --help`. */
    if (argc > 1 && strcmp(argv[1], "version") == 0) argv[1] = version;
    if (argc > 1 && strcmp(argv[1], "help") == 0) {
        memmove(&argv[1], &argv[2], (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = help;
    }
    if (main_take_option(group, argc, argv, &code)) return command_finish(code);
    const command_spec *spec = NULL;
    for (size_t i = 0; group->commands[i] != NULL; i++)
        if (strcmp(group->commands[i]->name, argv[1]) == 0) spec = group->commands[i];
    if (spec == NULL) return command_finish(main_refuse(group, argv[1]));
    char *name = NULL;
    if (asprintf(&name, "%s %s", argv[0], spec->name) < 0)
        return command_finish(command_fail(KVT_E_MEMORY, ""));
    argv[1] = name;
    if (spec->commands != NULL) {
        code = command_main(spec, argc - 1, argv + 1);
    } else {
        const bool json = main_has_json(argc, argv);
        command_begin(name, json);
        const bool guarded = group->guard != NULL && !spec->own_guard &&
                             !main_has(argc, argv, "--help", "-h") && group->guard(json, &code);
        if (!guarded) code = main_run(spec, argc - 1, argv + 1);
    }
    free(name);
    return code;
}

int main(int argc, char **argv)
{
    char standard[] = "kvterrace", *words[] = {standard, NULL};
    if (argc > 0) argv[0] = standard;
    return argc > 0 ? command_main(&main_spec, argc, argv) : command_main(&main_spec, 1, words);
}
