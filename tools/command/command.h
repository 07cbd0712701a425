/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command.h - how a command is declared, and what the commands share: options, settings, messages,
 * exit codes, documents, progress.
 *
 * One table declares a command: its name, options, help, example and function. The parser
 * (command_options.c), the help (help.c), the manual page and the completions (make_manual.py, from
 * the help's JSON) read that table. Data goes to stdout, everything else to stderr. One thread.
 */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include <kvterrace/config.h>

#include <jansson.h>

#include <stddef.h>
#include <stdio.h>

enum {
    EXIT_FINE = 0,
    EXIT_FAILED = 1,        /* a check found something, or an operation failed */
    EXIT_USAGE = 2,         /* the command line, a setting or an input file is wrong */
    EXIT_ABSENT = 77,       /* this build or machine lacks what was asked for */
    EXIT_INTERRUPTED = 130, /* SIGINT or SIGTERM ended it, as a shell would say */
};

#define COMMAND_MESSAGE_BYTES 512u

/* ---- how a command is declared ---- */

typedef enum option_kind {
    OPTION_FLAG,    /* bool: true */
    OPTION_TEXT,    /* const char * */
    OPTION_COUNT,   /* uint32_t from least to most, also with k, m or g */
    OPTION_NUMBER,  /* double from least to most */
    OPTION_SHARE,   /* double from least, also in percent */
    OPTION_SIZE,    /* uint64_t bytes from least to most */
    OPTION_TIME,    /* double seconds from least to most, least excluded */
    OPTION_CHOICE,  /* unsigned: the place in `extra`, such as "sim|live" */
    OPTION_LIST,    /* command_list, one more; at most `most` of them when it is not 0 */
    OPTION_SETTING, /* stands for --set EXTRA=ARGUMENT; no field */
    OPTION_GONE,    /* not listed; `extra` says what to use instead */
} option_kind;

enum {
    OPTION_READS = 1, /* the run reads this file, so that no output may be it */
    OPTION_DATA = 2,  /* may be a file that was installed with the command */
};

/* A row without a name declares the operands: an OPTION_LIST of `least` to `most` (0: any number),
 * out of `extra` when that is set. A table ends with a row without name and argument. */
typedef struct command_option {
    const char *name;
    const char *argument; /* what the help calls it; NULL: a flag */
    const char *text;
    size_t offset; /* of the field in the command's arguments */
    double least, most;
    const char *extra;
    option_kind kind;
    unsigned flags;
    char letter; /* 0: none; one letter has one meaning in all commands, as a test checks */
} command_option;

/* Strings in the order of the command line. */
typedef struct command_list {
    const char **items;
    size_t count;
} command_list;

/* The rows of an option table; `field` names a member of the command's arguments. */
#define FLAG_OPTION(type, field, option, character, help)                                          \
    {                                                                                              \
        .name = (option), .letter = (character), .text = (help), .offset = offsetof(type, field)   \
    }
#define TEXT_OPTION(type, field, option, character, operand, help)                                 \
    {                                                                                              \
        .name = (option), .letter = (character), .argument = (operand), .text = (help),            \
        .kind = OPTION_TEXT, .offset = offsetof(type, field)                                       \
    }
#define COUNT_OPTION(type, field, option, from, to, help)                                          \
    {                                                                                              \
        .name = (option), .argument = "N", .text = (help), .kind = OPTION_COUNT,                   \
        .offset = offsetof(type, field), .least = (from), .most = (to)                             \
    }
#define LIST_OPTION(type, field, option, operand, limit, how, help)                                \
    {                                                                                              \
        .name = (option), .argument = (operand), .text = (help), .kind = OPTION_LIST,              \
        .flags = (how), .offset = offsetof(type, field), .most = (limit)                           \
    }
#define OPERANDS(type, field, operand, from, to, how)                                              \
    {                                                                                              \
        .argument = (operand), .kind = OPTION_LIST, .flags = (how),                                \
        .offset = offsetof(type, field), .least = (from), .most = (to)                             \
    }
#define SETTING_OPTION(setting, option, character, operand, help)                                  \
    {                                                                                              \
        .name = (option), .letter = (character), .argument = (operand), .text = (help),            \
        .kind = OPTION_SETTING, .extra = (setting)                                                 \
    }
#define GONE_OPTION(option, instead)                                                               \
    {                                                                                              \
        .name = (option), .argument = "X", .kind = OPTION_GONE, .extra = (instead)                 \
    }

/* Rows that several commands have. */
#define QUICK_OPTION(type, field, help)  FLAG_OPTION(type, field, "quick", 'Q', help)
#define OUTPUT_OPTION(type, field, help) TEXT_OPTION(type, field, "output", 'o', "FILE", help)

/* Requests that a file has; tools_check_workload takes - for standard input. */
#define TRACE_OPTION(type, field, what)                                                            \
    {                                                                                              \
        .name = "trace", .letter = 't', .argument = "FILE",                                        \
        .text =                                                                                    \
            what ": JSONL or CSV, plain, gzip or zstd (docs/GUIDE.md, 1); - is standard input",    \
        .kind = OPTION_TEXT, .flags = OPTION_READS, .offset = offsetof(type, field)                \
    }

/* Where test files go. */
#define FOLDER_OPTION(type, field, help) TEXT_OPTION(type, field, "directory", 'D', "DIR", help)

/* Of work that can be told to write nothing, and of work in threads. */
#define DRY_RUN_OPTION(type, field, help)     FLAG_OPTION(type, field, "dry-run", 'n', help)
#define THREADS_OPTION(type, field, to, help) COUNT_OPTION(type, field, "threads", 1, to, help)
#define DATABASE_OPTION                                                                            \
    SETTING_OPTION("store.profile", "database", 'd', "FILE",                                       \
                   "Profile database (store.profile; " PROFILE_STANDARD_PATH ")")
#define COMMAND_BASIS_OPTION(type, field, help)                                                    \
    LIST_OPTION(type, field, "basis", "FILE", 64, OPTION_READS, help)
#define PROFILE_STANDARD_PATH "kvterrace-profile.db"

/* How a command treats settings before it runs. */
typedef enum command_settings {
    SETTINGS_NONE,    /* reads none: every one that was given is an error */
    SETTINGS_PROFILE, /* reads store.profile and store.profile_foreign alone */
    SETTINGS_OWN,     /* calls command_report_unused itself */
} command_settings;

enum { LISTS_POLICIES = 1, LISTS_SETTINGS = 2, LISTS_VARIANTS = 4 }; /* at the end of a help */

/* One command, or a group of them. */
typedef struct command_spec {
    const char *name;
    const char *summary;           /* in the list of its group */
    const char *about;             /* above the options */
    const char *details;           /* below them, or NULL */
    const char *synopsis;          /* what comes behind the name, a line each; NULL: the operands */
    const char *example;           /* command lines */
    const command_option *options; /* or NULL */
    size_t argument_bytes;         /* of its arguments, which start with a command_common */
    const void *standard;          /* what they are before parsing; NULL: zeros */
    int (*check)(void *arguments); /* after parsing; EXIT_FINE or command_misuse's code; or NULL */
    int (*run)(void *arguments);   /* the exit code; NULL in a group */
    command_settings settings;     /* what it reads of them */
    unsigned lists;                /* LISTS_* */
    const struct command_spec *const *commands; /* of a group, ends with NULL */
} command_spec;

/* The options that every command takes, and what belongs to one run. */
typedef struct command_common {
    command_list files;    /* --config, in order */
    command_list settings; /* --set and what stands for it, in order */
    command_list inputs;   /* other files that the run uses */
    command_list owned;    /* strings to free */
    bool json;
    bool quiet;
    bool help;
    kvt_config *config;
    const command_spec *spec;
    char line[1024]; /* the command line, for what the run leaves behind */
} command_common;

extern const command_option command_common_options[];

/* The whole of a program: finds the command that argv names below the group, whose name is the
 * program's, and runs it. Returns the exit code. */
int command_main(const command_spec *group, int argc, char **argv);

/* ---- command_options.c ---- */

/* Fills arguments from argv[1] on. EXIT_FINE, or EXIT_USAGE after a message. */
int options_parse(const command_spec *spec, int argc, char **argv, void *arguments);

/* The row of the operands; NULL: the command takes none. */
const command_option *options_operands(const command_spec *spec);

/* Adds to a list that the arguments own, or ends the command when memory is short. */
void command_list_add(command_list *list, const char *text);

/* A count from least to most in digits, also with k, m or g behind them. */
bool command_parse_count(const char *text, double least, double most, uint32_t *count_out);

/* ---- help.c ---- */

void help_print(const command_spec *spec, const char *name, FILE *out);
/* The command and those below it. */
json_t *help_document(const command_spec *spec, const char *name);

/* ---- common.c ---- */

/* Adds "key=value" as if it had been given by --set. */
void command_add_setting(command_common *common, const char *key, const char *value);

/* Frees text with common; returns it. */
const char *command_keep(command_common *common, char *text);

/* From now on messages start with the name, and say errors in JSON too when json is set. */
void command_begin(const char *name, bool json);

/* Reads the configuration files and settings. EXIT_FINE, or a code after a message. */
int command_load(command_common *common);
void command_unload(command_common *common);

/*
 * Reports settings that nothing read, once everything has been opened: every one given by --set,
 * and those of files in the sections that this command reads ("replay", "tier.*", "*" for all of
 * them, ...; ends with NULL). A key of a tier without a capacity gets a hint that this is missing.
 * A file's other sections are for other commands. Returns EXIT_FINE or EXIT_USAGE.
 */
int command_report_unused(const command_common *common, const char *const *sections);

/* Whether --set, or an option that stands for it, gave this key. */
bool command_was_set(const command_common *common, const char *key);

/* From now on SIGINT and SIGTERM end nothing by themselves: command_interrupted turns true. */
void command_catch_interrupts(void);
bool command_interrupted(void);

/* The exit code of a status. */
int command_exit_code(kvt_status status);

/* Says "kvterrace NAME: message" on stderr, with --json as a document on stdout too, unless
 * something was printed there; with an empty message the status' own text. Returns the exit code of
 * the status. */
int command_fail(kvt_status status, const char *message);

/* The same for a command whose work is to read the files that the user named: bytes in them that
 * are not what they should be are EXIT_USAGE, a read or write that failed is EXIT_FAILED. */
int command_fail_content(kvt_status status, const char *message);

/* The same for what went wrong with a file that the user named, before anything was run: whatever
 * is wrong with it, even that it cannot be read, is EXIT_USAGE. A lock or no memory is not. */
int command_fail_input(kvt_status status, const char *message);

/* The command line is wrong: EXIT_USAGE, with a line that leads to the help. */
int command_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Appends "; did you mean 'x'?" to a message about text, when one of the names is near. */
void command_suggest(char *message, size_t size, const char *text,
                     const char *(*name_at)(size_t index));

/* A note to stderr, left out by --quiet. */
void command_note(const command_common *common, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Seconds of the processors since the machine's start: all, those that were not idle, and this
 * program's own. Zeros where the system does not say. */
typedef struct command_processors {
    double all, taken, own;
} command_processors;

/* Around what is timed by the clock: a note on stderr says when other programs took a tenth of the
 * processors or more. Returns their share. */
void command_others_begin(command_processors *load);
double command_others_end(const command_processors *begin, const command_common *common);

/* Prints a document on stdout and releases it. EXIT_FINE; NULL is short memory: EXIT_FAILED. */
int command_print_document(json_t *document);

/* The same with all digits of every number, for figures that are read back, and without a message.
 * KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status command_print_exact(json_t *document);

/* A number of an object; `otherwise` when it is absent or null. */
double view_number(const json_t *object, const char *key, double otherwise);
/* A text of an object; "" when it is absent or null. */
const char *view_text(const json_t *object, const char *key);
/* A number as JSON; null when it is not finite. */
json_t *view_real(double value);
/* A text as JSON; "?" when it is not UTF-8, as names and command lines need not be. */
json_t *view_string(const char *text);

/* Flushes stdout; what could not be written is an error. With --json a failure that said nothing
 * yet gets a document. Returns code, or EXIT_FAILED. */
int command_finish(int code);

/* ---- one line on stderr, only when that is a terminal, not with --quiet ---- */

typedef struct command_progress {
    bool shown;
    bool drawn;
    uint64_t started_ns;
    uint64_t drawn_ns;
} command_progress;

void progress_start(command_progress *progress, const command_common *common);
/* done in [0,1]. Draws at most ten times a second; after two seconds with the time left. Done 1
 * without a text removes the line. */
void progress_update(command_progress *progress, double done, const char *what);
/* The same for callbacks of what cannot be interrupted; context is the progress. */
void progress_show(void *context, double done, const char *what);
/* The same for callbacks of what can be interrupted: context is the progress. False: interrupted.
 */
bool progress_ask(void *context, double done, const char *what);
/* Removes the line. */
void progress_end(command_progress *progress);

/* "1.50 GB/s", "64.0 GiB", "1.25 ms" for tables; text has 32 bytes. Returns text. */
const char *format_bytes(char text[32], uint64_t bytes);
const char *format_seconds(char text[32], double seconds);

/* ---- command_files.c: files that a command writes, and those that come with kvterrace ---- */

/* Names a file that this run reads or writes for something else: no output may be that file. The
 * configuration files and the paths in the settings are known without this. The path stays the
 * caller's. */
void command_add_input(command_common *common, const char *path);

/* Whether a file could be made at path and is none of those that this run uses otherwise: KVT_OK,
 * or KVT_E_CONFIG with a message that starts with what. Makes nothing. */
KVT_NODISCARD kvt_status command_check_target(const command_common *common, const char *what,
                                              const char *path, char *message, size_t message_size);

/* The `=` of CLASS=PATH; NULL: the whole is a path. One whose own name has a `=` is found as such
 * when it is there, and what stands behind the `=` is not. */
const char *command_class_mark(const char *text);

/* A path as the user gave it, when something is there; else the file of that name that was
 * installed beside this program (../share/kvterrace from its folder, then the configured prefix);
 * else the path as it was given, for a message that names it. A path to one of our texts may lack
 * its .zst. It lives as long as common. */
const char *command_data_path(command_common *common, const char *path);

/* The same of the path behind the `=` of CLASS=PATH, or of the whole. */
const char *command_data_text(command_common *common, const char *text);

/* The same of a setting's value, when it was set; what else it may be starts with `except`. */
void command_data_setting(command_common *common, const char *key, const char *except);

#endif
