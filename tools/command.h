/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command.h - what the subcommands share: options, settings, messages, exit codes, progress.
 *
 * Data goes to stdout, everything else to stderr. One thread.
 */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include <kvterrace/config.h>

#include <argp.h>
#include <stdio.h>

enum {
    EXIT_FINE = 0,
    EXIT_FAILED = 1,        /* a check found something, or an operation failed */
    EXIT_USAGE = 2,         /* the command line, a setting or an input file is wrong */
    EXIT_ABSENT = 77,       /* this build or machine lacks what was asked for */
    EXIT_INTERRUPTED = 130, /* SIGINT or SIGTERM ended it, as a shell would say */
};

#define COMMAND_MESSAGE_BYTES 512u

/* One subcommand: argv[0] is "kvterrace NAME" for messages. Returns the exit code. */
typedef struct command_entry {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} command_entry;

/* The options that every subcommand takes. Zeroed before parsing; argp's child input. */
typedef struct command_common {
    const char **files; /* --config, in order */
    size_t file_count;
    const char **settings; /* --set and the shorthands of a subcommand, in order */
    size_t setting_count;
    const char **inputs; /* other files that the run uses (output_file.h) */
    size_t input_count;
    char **owned; /* strings made for shorthands */
    size_t owned_count;
    bool json;
    bool quiet;
    kvt_config *config; /* made by command_load */
} command_common;

extern const struct argp command_common_argp;

/* The children table that an argp with command_common as its only child needs. */
#define COMMAND_CHILDREN                                                                           \
    {                                                                                              \
        {&command_common_argp, 0, "Common options:", 10},                                          \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* Adds a configuration file as --config does. */
void command_add_file(command_common *common, const char *path);

/* Adds "key=value" as if it had been given by --set. */
void command_add_setting(command_common *common, const char *key, const char *value);

/* Frees text with common; returns it. */
const char *command_keep(command_common *common, char *text);

/* Parses argv and loads the settings; input receives the options and starts with a command_common.
 * Returns EXIT_FINE or the code to leave with, after a message. */
int command_load(const struct argp *argp, int argc, char **argv, void *input);
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

/* A whole number from 1 to most, digits alone: no sign, no blank, nothing behind it. */
bool command_parse_count(const char *text, uint32_t most, uint32_t *count_out);

/* The same of an option; anything else is told to the user, and the command ends. */
uint32_t command_option_count(struct argp_state *state, const char *option, const char *argument,
                              uint32_t most);

/* From now on SIGINT and SIGTERM end nothing by themselves: command_interrupted turns true. */
void command_catch_interrupts(void);
bool command_interrupted(void);

/* argv as one line, for the profile's provenance. */
void command_keep_line(int argc, char **argv, char *line, size_t size);

/* The exit code of a status. */
int command_exit_code(kvt_status status);

/* Prints "kvterrace NAME: message" to stderr; with an empty message the status' own text. Returns
 * the exit code of the status. */
int command_fail(kvt_status status, const char *message);

/* The same for a command whose work is to read the files that the user named: bytes in them that
 * are not what they should be are EXIT_USAGE, a read or write that failed is EXIT_FAILED. */
int command_fail_content(kvt_status status, const char *message);

/* The same for what went wrong with a file that the user named, before anything was run: whatever
 * is wrong with it, even that it cannot be read, is EXIT_USAGE. A lock or no memory is not. */
int command_fail_input(kvt_status status, const char *message);

/* A note to stderr, left out by --quiet. */
void command_note(const command_common *common, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Starts the command anew with OpenBLAS' kernels for this processor, when it chose those of an old
 * one because it does not know this one. Called before anything is opened. */
void command_choose_blas(void);

/* Output that cannot be written is EXIT_FAILED also where the command ends inside argp. Once. */
void command_watch_output(void);

/* Flushes stdout; what could not be written is an error. Returns code, or EXIT_FAILED. */
int command_finish(int code);

/* ---- progress: one line on stderr, only when that is a terminal and --quiet was not given ---- */

typedef struct command_progress {
    bool shown;
    bool drawn;
    unsigned permille;
    uint64_t drawn_ns;
} command_progress;

void progress_start(command_progress *progress, const command_common *common);
/* done in [0,1]. Draws at most ten times a second. */
void progress_update(command_progress *progress, double done, const char *what);
/* Removes the line. */
void progress_end(command_progress *progress);

/* "1.50 GB/s", "64.0 GiB", "1.25 ms" for tables; text has 32 bytes. Returns text. */
const char *format_rate(char text[32], double bytes_per_s);
const char *format_bytes(char text[32], uint64_t bytes);
const char *format_seconds(char text[32], double seconds);

/* ---- the subcommands ---- */

int command_profile(int argc, char **argv);
int command_replay(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_bench_devices(int argc, char **argv); /* of bench */
int command_bench_stripe(int argc, char **argv);
int command_bench_policy(int argc, char **argv);
int command_bench_adaptcache(int argc, char **argv);
int command_bench_grid(int argc, char **argv);
int command_bench_drift(int argc, char **argv);
int command_bench_live(int argc, char **argv);
int command_bench_loads(int argc, char **argv);
int command_bench_restart(int argc, char **argv);
int command_bench_ablation(int argc, char **argv);
int command_bench_extent(int argc, char **argv);
int command_report(int argc, char **argv);
int command_encode(int argc, char **argv);
int command_decode(int argc, char **argv);
int command_inspect(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_recover(int argc, char **argv);
int command_check_config(int argc, char **argv);

/* Chooses argv[1] from a table that ends with a NULL name, for subcommands of subcommands. */
int command_choose(const command_entry *table, const char *synopsis, const char *doc, int argc,
                   char **argv);

#endif
