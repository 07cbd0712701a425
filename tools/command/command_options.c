/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command_options.c - the words of a command line, read by the command's table into its arguments.
 *
 * Options may stand before and behind operands; `--` ends them. A long option may be cut short
 * where that is clear, and takes its argument behind `=` or as the next word. This file knows no
 * command. One thread.
 */
#include "command.h"

#include "base/config_parse.h"
#include "base/nearest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const command_option command_common_options[] = {
    {.name = "config",
     .letter = 'c',
     .argument = "FILE",
     .text = "Read settings from FILE; may be given several times",
     .kind = OPTION_LIST,
     .offset = offsetof(command_common, files)},
    {.name = "set",
     .letter = 's',
     .argument = "KEY=VALUE",
     .text = "Override one setting, such as tier.dram.capacity=125GiB",
     .kind = OPTION_LIST,
     .offset = offsetof(command_common, settings)},
    FLAG_OPTION(command_common, json, "json", 'j', "Print one JSON document instead of text"),
    FLAG_OPTION(command_common, quiet, "quiet", 'q', "No notes and no progress bar"),
    FLAG_OPTION(command_common, help, "help", 'h', "Show this"),
    {0},
};

/* ---- values ---- */

void command_list_add(command_list *list, const char *text)
{
    const char **grown = realloc(list->items, (list->count + 1) * sizeof *grown);
    if (grown == NULL) exit(command_finish(command_fail(KVT_E_MEMORY, "")));
    list->items = grown;
    list->items[list->count++] = text;
}

bool command_parse_count(const char *text, double least, double most, uint32_t *count_out)
{
    uint64_t count = 0;
    if (store_parse_count(text, &count) != KVT_OK) return false;
    if ((double)count < least || (double)count > most || count > UINT32_MAX) return false;
    *count_out = (uint32_t)count;
    return true;
}

/* A plain number, or a share that may be in percent. NAN: neither. */
static double options_number(const char *text, bool share)
{
    double value;
    if (!share && strchr(text, '%') != NULL) return NAN;
    return store_parse_number(text, &value) == KVT_OK ? value : NAN;
}

static int options_refuse(const command_option *option, const char *value, const char *wanted)
{
    return command_misuse("--%s: '%.200s' is not %s", option->name, value, wanted);
}

static int options_refuse_range(const command_option *option, const char *value, const char *what)
{
    char wanted[96];
    (void)snprintf(wanted, sizeof wanted, "%s%.15g to %.15g", what, option->least, option->most);
    return options_refuse(option, value, wanted);
}

static int options_take_choice(const command_option *option, const char *value, unsigned *out)
{
    char message[COMMAND_MESSAGE_BYTES];
    unsigned place = 0;
    for (const char *at = option->extra; *at != '\0'; place++) {
        const size_t span = strcspn(at, "|");
        if (strlen(value) == span && memcmp(at, value, span) == 0) {
            *out = place;
            return EXIT_FINE;
        }
        at += span + (at[span] == '|');
    }
    nearest search = {.text = value, .length = strlen(value)};
    nearest_offer_list(&search, option->extra);
    (void)snprintf(message, sizeof message, "unknown %s '%.100s': one of %s", option->name, value,
                   option->extra);
    if (search.best == NULL) return command_misuse("%s", message);
    return command_misuse("%s; did you mean '%.*s'?", message, (int)nearest_span(&search),
                          search.best);
}

static bool options_is_nameless(const command_option *option, const char *value)
{
    return value[0] == '\0' && option->name != NULL && strcmp(option->argument, "FILE") == 0;
}

static int options_take_list(const command_option *option, const char *value,
                             command_common *common, command_list *list)
{
    if (option->most > 0 && (double)list->count >= option->most) {
        return option->name != NULL
                   ? command_misuse("--%s: more than %.0f", option->name, option->most)
                   : command_misuse("Too many arguments: '%.200s'", value);
    }
    if (options_is_nameless(option, value))
        return command_misuse("--%s: the name of the file is empty", option->name);
    if (option->argument != NULL && strcmp(option->argument, "KEY=VALUE") == 0 &&
        strchr(value, '=') == NULL)
        return options_refuse(option, value, option->argument);
    if (option->flags & OPTION_DATA) value = command_data_text(common, value);
    if (option->flags & OPTION_READS) command_add_input(common, value);
    command_list_add(list, value);
    return EXIT_FINE;
}

static int options_take_measure(const command_option *option, const char *value, void *field)
{
    uint64_t bytes = 0;
    double number = 0;
    switch (option->kind) {
    case OPTION_COUNT:
        if (command_parse_count(value, option->least, option->most, field)) return EXIT_FINE;
        return options_refuse_range(option, value, "from ");
    case OPTION_SIZE:
        if (kvt_parse_bytes(value, &bytes) != KVT_OK || (double)bytes < option->least ||
            (double)bytes > option->most)
            return options_refuse_range(option, value, "a size from ");
        *(uint64_t *)field = bytes;
        return EXIT_FINE;
    case OPTION_TIME:
        if (kvt_parse_seconds(value, &number) != KVT_OK || number <= option->least ||
            number > option->most)
            return options_refuse(option, value, "a time such as 200ms or 12h, or out of range");
        break;
    default:
        number = options_number(value, option->kind == OPTION_SHARE);
        if (!(number >= option->least && number <= option->most))
            return options_refuse_range(option, value,
                                        option->kind == OPTION_SHARE
                                            ? "a share such as 0.05 or 5%, from "
                                            : "a number from ");
    }
    *(double *)field = number;
    return EXIT_FINE;
}

static int options_take(const command_option *option, const char *value, void *arguments)
{
    command_common *common = arguments;
    void *field = (char *)arguments + option->offset;
    switch (option->kind) {
    case OPTION_FLAG: *(bool *)field = true; return EXIT_FINE;
    case OPTION_TEXT:
        if (options_is_nameless(option, value))
            return command_misuse("--%s: the name of the file is empty", option->name);
        if (option->flags & OPTION_DATA) value = command_data_path(common, value);
        if (option->flags & OPTION_READS) command_add_input(common, value);
        *(const char **)field = value;
        return EXIT_FINE;
    case OPTION_CHOICE: return options_take_choice(option, value, field);
    case OPTION_LIST: return options_take_list(option, value, common, field);
    case OPTION_SETTING: command_add_setting(common, option->extra, value); return EXIT_FINE;
    case OPTION_GONE: return command_misuse("--%s: %s", option->name, option->extra);
    default: return options_take_measure(option, value, field);
    }
}

/* ---- words ---- */

static const command_option *options_table(const command_spec *spec, int part)
{
    return part == 0 ? spec->options : command_common_options;
}

/* The option of this letter, or of this name, which may be cut short; NULL: none, or *several_out
 * begin so. */
static const command_option *options_find(const command_spec *spec, const char *name, size_t length,
                                          bool *several_out)
{
    const command_option *found = NULL;
    *several_out = false;
    for (int part = 0; part < 2; part++) {
        const command_option *option = options_table(spec, part);
        for (; option != NULL && (option->name != NULL || option->argument != NULL); option++) {
            if (option->name == NULL || strncmp(option->name, name, length) != 0) continue;
            if (option->name[length] == '\0') return option;
            *several_out = found != NULL;
            found = option;
        }
    }
    return *several_out ? NULL : found;
}

static const command_option *options_find_letter(const command_spec *spec, char letter)
{
    for (int part = 0; part < 2; part++) {
        const command_option *option = options_table(spec, part);
        for (; option != NULL && (option->name != NULL || option->argument != NULL); option++)
            if (option->letter == letter) return option;
    }
    return NULL;
}

static int options_refuse_name(const command_spec *spec, const char *name, size_t length,
                               bool several)
{
    nearest search = {.text = name, .length = length};
    for (int part = 0; part < 2; part++) {
        const command_option *option = options_table(spec, part);
        for (; option != NULL && (option->name != NULL || option->argument != NULL); option++)
            if (option->name != NULL && option->kind != OPTION_GONE)
                nearest_offer(&search, option->name);
    }
    if (several) return command_misuse("option '--%.*s' is ambiguous", (int)length, name);
    if (search.best != NULL)
        return command_misuse("unrecognized option '--%.*s'; did you mean '--%s'?", (int)length,
                              name, search.best);
    return command_misuse("unrecognized option '--%.*s'", (int)length, name);
}

#define OPTIONS_SEEN_MAX 8u

typedef struct options_words {
    int argc;
    char **argv;
    int next;
    const command_option *seen[OPTIONS_SEEN_MAX]; /* of one input */
    size_t seen_count;
} options_words;

/* Takes an option. One that names the one input is given once, so that no input is passed over; of
 * other values the last one holds, as of a line that an alias begins. */
static int options_take_once(options_words *words, const command_option *option, const char *value,
                             void *arguments)
{
    const bool single =
        option->kind == OPTION_TEXT && (option->flags & (OPTION_READS | OPTION_DATA)) != 0;
    for (size_t i = 0; single && i < words->seen_count; i++)
        if (words->seen[i] == option)
            return command_misuse("--%s is given twice: '%.200s'", option->name, value);
    if (single && words->seen_count < OPTIONS_SEEN_MAX) words->seen[words->seen_count++] = option;
    return options_take(option, value, arguments);
}

static int options_take_long(const command_spec *spec, options_words *words, const char *word,
                             void *arguments)
{
    const size_t length = strcspn(word, "=");
    bool several;
    const command_option *option = options_find(spec, word, length, &several);
    const char *value = word[length] == '=' ? word + length + 1 : NULL;
    if (option == NULL || length == 0) return options_refuse_name(spec, word, length, several);
    if (option->kind == OPTION_GONE) return options_take(option, "", arguments);
    if (option->argument == NULL && value != NULL)
        return command_misuse("option '--%s' takes no argument", option->name);
    if (option->argument != NULL && value == NULL) {
        if (words->next == words->argc)
            return command_misuse("option '--%s' requires an argument", option->name);
        value = words->argv[words->next++];
    }
    return options_take_once(words, option, value, arguments);
}

/* Letters of flags may stand together; the argument of the last one follows, or is the next word.
 */
static int options_take_letters(const command_spec *spec, options_words *words, const char *word,
                                void *arguments)
{
    int code = EXIT_FINE;
    bool several;
    const size_t length = strlen(word);
    const command_option *whole = options_find(spec, word, length, &several);
    if (length > 1 && whole != NULL && whole->name[length] == '\0')
        return command_misuse("unrecognized option '-%.40s'; did you mean '--%s'?", word,
                              whole->name);
    while (code == EXIT_FINE && *word != '\0') {
        const command_option *option = options_find_letter(spec, *word);
        if (option == NULL) return command_misuse("unrecognized option '-%c'", *word);
        word++;
        if (option->argument == NULL) {
            code = options_take(option, NULL, arguments);
            continue;
        }
        if (*word == '\0' && words->next == words->argc)
            return command_misuse("option '-%c' requires an argument", option->letter);
        return options_take_once(words, option, *word != '\0' ? word : words->argv[words->next++],
                                 arguments);
    }
    return code;
}

const command_option *options_operands(const command_spec *spec)
{
    const command_option *option = spec->options;
    for (; option != NULL && (option->name != NULL || option->argument != NULL); option++)
        if (option->name == NULL) return option;
    return NULL;
}

static int options_take_operand(const command_spec *spec, const char *word, void *arguments)
{
    const command_option *operands = options_operands(spec);
    if (operands == NULL)
        return command_misuse("Too many arguments: '%.200s': %s takes options alone", word,
                              spec->name);
    if (operands->extra != NULL) {
        const size_t length = strlen(word);
        const char *at = strstr(operands->extra, word);
        if (at == NULL || length == 0 || (at[length] != '|' && at[length] != '\0') ||
            (at != operands->extra && at[-1] != '|'))
            return command_misuse("'%.200s' is none of %s", word, operands->extra);
    }
    return options_take(operands, word, arguments);
}

int options_parse(const command_spec *spec, int argc, char **argv, void *arguments)
{
    options_words words = {.argc = argc, .argv = argv, .next = 1};
    const command_option *operands = options_operands(spec);
    const command_common *common = arguments;
    bool options_end = false;
    int code = EXIT_FINE;
    while (code == EXIT_FINE && words.next < argc) {
        const char *word = argv[words.next++];
        if (options_end || word[0] != '-' || word[1] == '\0') {
            code = options_take_operand(spec, word, arguments);
        } else if (strcmp(word, "--") == 0) {
            options_end = true;
        } else if (word[1] == '-') {
            code = options_take_long(spec, &words, word + 2, arguments);
        } else {
            code = options_take_letters(spec, &words, word + 1, arguments);
        }
        if (common->help) return EXIT_FINE;
    }
    if (code != EXIT_FINE || operands == NULL) return code;
    const command_list *list = (const command_list *)((const char *)arguments + operands->offset);
    if ((double)list->count < operands->least)
        return command_misuse("which %s?", operands->argument);
    return EXIT_FINE;
}
