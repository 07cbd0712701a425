/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - the kvterrace command: its subcommands and how one is chosen. One thread.
 */
#include "command.h"

#include <kvterrace/kvterrace.h>

#include <stdlib.h>
#include <string.h>

static const command_entry main_commands[] = {
    {"profile", "measure this machine's devices and codecs, or show them", command_profile},
    {"replay", "run a trace or a generated workload against policies", command_replay},
    {"bench", "measure the library's own parts beside this machine's limits", command_bench},
    {"report", "say and draw what the JSON of the other commands means", command_report},
    {"encode", "encode a KV dump into a record, and say what it costs", command_encode},
    {"decode", "decode a record into a KV dump", command_decode},
    {"inspect", "show a catalog, a record file or a device's label", command_inspect},
    {"verify", "read and check every entry that a catalog lists", command_verify},
    {"recover", "make a new catalog from what the devices hold", command_recover},
    {"check-config", "check a configuration file without opening anything", command_check_config},
    {0},
};

typedef struct choose_state {
    const command_entry *table;
    int index; /* of the chosen name in argv; 0 = none */
} choose_state;

static const command_entry *choose_find(const command_entry *table, const char *name)
{
    for (; table->name; table++) {
        if (strcmp(table->name, name) == 0) return table;
    }
    return NULL;
}

static error_t choose_parse(int key, char *argument, struct argp_state *state)
{
    choose_state *choice = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (!choose_find(choice->table, argument)) {
            argp_error(state, "unknown command '%s'", argument);
        }
        choice->index = state->next - 1;
        state->next = state->argc; /* the rest belongs to the subcommand */
        return 0;
    case ARGP_KEY_NO_ARGS: argp_usage(state); return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The table of subcommands, in front of argp's list of options. */
static char *choose_help(int key, const char *text, void *input)
{
    const choose_state *choice = input;
    if (key != ARGP_KEY_HELP_POST_DOC || !choice) return (char *)(uintptr_t)text;
    char *help = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&help, &bytes);
    if (!stream) return (char *)(uintptr_t)text;
    fputs("Commands:\n", stream);
    for (const command_entry *entry = choice->table; entry->name; entry++) {
        fprintf(stream, "  %-14s %s\n", entry->name, entry->summary);
    }
    fputs("\n`COMMAND --help` tells more about each.\n\n"
          "Exit codes:\n"
          "  0   fine\n"
          "  1   a check or an operation failed\n"
          "  2   wrong usage, setting or input file\n"
          "  77  this build or machine lacks what was asked for\n"
          "  130 interrupted; what a profile measured until then stays",
          stream);
    return fclose(stream) == 0 ? help : (char *)(uintptr_t)text;
}

int command_choose(const command_entry *table, const char *synopsis, const char *doc, int argc,
                   char **argv)
{
    choose_state choice = {.table = table};
    const struct argp argp = {
        .parser = choose_parse, .args_doc = synopsis, .doc = doc, .help_filter = choose_help};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &choice) != 0) return EXIT_USAGE;
    const command_entry *entry = choose_find(table, argv[choice.index]);
    char *name = NULL;
    if (asprintf(&name, "%s %s", argv[0], entry->name) < 0) return EXIT_FAILED;
    argv[choice.index] = name;
    int code = entry->run(argc - choice.index, argv + choice.index);
    free(name);
    return code;
}

static void main_print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "kvterrace %s\n", kvt_version());
}

int main(int argc, char **argv)
{
    char name[] = "kvterrace";
    if (argc > 0) argv[0] = name;
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version_hook = main_print_version;
    command_watch_output();
    return command_choose(main_commands, "COMMAND [OPTION...]",
                          "Decides where and in which form an LLM server's KV cache is kept, and "
                          "measures what that takes.\v",
                          argc, argv);
}
