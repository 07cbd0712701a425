/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common.c - common options, settings, messages and number formats of the subcommands. One thread.
 */
#include "command.h"
#include "output_file.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *common_name = "kvterrace"; /* set once per run, for messages */

static const struct argp_option common_options[] = {
    {"config", 'c', "FILE", 0, "Read settings from FILE; may be given several times", 0},
    {"set", 's', "KEY=VALUE", 0, "Override one setting, such as tier.dram.capacity=125GiB", 0},
    {"json", 'j', NULL, 0, "Print one JSON document instead of text", 0},
    {"quiet", 'q', NULL, 0, "No notes and no progress bar", 0},
    {0},
};

/* The command cannot go on without these few bytes. */
static void *common_need(void *memory)
{
    if (memory) return memory;
    fprintf(stderr, "%s: out of memory\n", common_name);
    exit(EXIT_FAILED);
}

static void common_append(const char ***list, size_t *count, const char *text)
{
    *list = common_need(realloc(*list, (*count + 1) * sizeof **list));
    (*list)[(*count)++] = text;
}

void command_add_file(command_common *common, const char *path)
{
    common_append(&common->files, &common->file_count, path);
}

void command_add_input(command_common *common, const char *path)
{
    common_append(&common->inputs, &common->input_count, path);
}

const char *command_keep(command_common *common, char *text)
{
    common->owned =
        common_need(realloc(common->owned, (common->owned_count + 1) * sizeof *common->owned));
    common->owned[common->owned_count++] = text;
    return text;
}

void command_add_setting(command_common *common, const char *key, const char *value)
{
    char *text = NULL;
    if (asprintf(&text, "%s=%s", key, value) < 0) text = NULL;
    common_append(&common->settings, &common->setting_count, common_need(text));
    (void)command_keep(common, text);
}

static error_t common_parse(int key, char *argument, struct argp_state *state)
{
    command_common *common = state->input;
    switch (key) {
    case 'c': command_add_file(common, argument); break;
    case 's': common_append(&common->settings, &common->setting_count, argument); break;
    case 'j': common->json = true; break;
    case 'q': common->quiet = true; break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp command_common_argp = {.options = common_options, .parser = common_parse};

int command_load(const struct argp *argp, int argc, char **argv, void *input)
{
    command_common *common = input;
    char message[COMMAND_MESSAGE_BYTES] = "";
    common_name = argv[0];
    if (argp_parse(argp, argc, argv, 0, NULL, input) != 0) return EXIT_USAGE;
    kvt_status status = kvt_config_new(&common->config);
    for (size_t i = 0; status == KVT_OK && i < common->file_count; i++) {
        status = kvt_config_read(common->config, common->files[i], message, sizeof message);
    }
    for (size_t i = 0; status == KVT_OK && i < common->setting_count; i++) {
        status = kvt_config_set(common->config, common->settings[i], message, sizeof message);
    }
    if (status == KVT_OK) return EXIT_FINE;
    command_fail(status, message);
    command_unload(common);
    return command_exit_code(status);
}

void command_unload(command_common *common)
{
    for (size_t i = 0; i < common->owned_count; i++)
        free(common->owned[i]);
    free(common->owned);
    free(common->files);
    free(common->settings);
    free(common->inputs);
    kvt_config_free(common->config);
    memset(common, 0, sizeof *common);
}

bool command_was_set(const command_common *common, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < common->setting_count; i++) {
        const char *text = common->settings[i];
        if (strncmp(text, key, length) == 0 && text[length + strspn(text + length, " ")] == '=') {
            return true;
        }
    }
    return false;
}

/* Whether the key's section is in the list; "tier.*" stands for every section that starts so. */
static bool common_in_sections(const char *key, const char *const *sections)
{
    size_t length = (size_t)(strrchr(key, '.') - key);
    for (; *sections; sections++) {
        size_t span = strlen(*sections);
        bool open_end = span > 0 && (*sections)[span - 1] == '*';
        if (open_end ? strncmp(key, *sections, span - 1) == 0
                     : span == length && memcmp(key, *sections, span) == 0) {
            return true;
        }
    }
    return false;
}

/* Why a key of a tier that is not there does nothing; "" when there is nothing to say. */
static const char *common_hint(const kvt_config *config, const char *key, char *hint, size_t size)
{
    char capacity[64];
    const char *dot = strrchr(key, '.');
    if (strncmp(key, "tier.", 5) != 0 || dot - key > 32) return "";
    (void)snprintf(capacity, sizeof capacity, "%.*s.capacity", (int)(dot - key), key);
    if (kvt_config_has(config, capacity)) return "";
    (void)snprintf(hint, size, ": %s is not set", capacity);
    return hint;
}

int command_report_unused(const command_common *common, const char *const *sections)
{
    const char *key;
    int code = EXIT_FINE;
    for (size_t i = 0; (key = kvt_config_unused_at(common->config, i)) != NULL; i++) {
        if (!command_was_set(common, key) && !common_in_sections(key, sections)) continue;
        char hint[96];
        fprintf(stderr, "%s: %s has no effect here%s\n", common_name, key,
                common_hint(common->config, key, hint, sizeof hint));
        code = EXIT_USAGE;
    }
    return code;
}

bool command_parse_count(const char *text, uint32_t most, uint32_t *count_out)
{
    uint64_t count = 0;
    if (text[0] == '\0') return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        count = count * 10 + (uint64_t)(*text - '0');
        if (count > most) return false;
    }
    *count_out = (uint32_t)count;
    return count > 0;
}

uint32_t command_option_count(struct argp_state *state, const char *option, const char *argument,
                              uint32_t most)
{
    uint32_t count = 0;
    if (!command_parse_count(argument, most, &count))
        argp_error(state, "%s: '%s' is not from 1 to %u", option, argument, (unsigned)most);
    return count;
}

static volatile sig_atomic_t common_interrupted;

static void common_interrupt(int number)
{
    (void)number;
    common_interrupted = 1;
}

void command_catch_interrupts(void)
{
    const struct sigaction action = {.sa_handler = common_interrupt};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

bool command_interrupted(void)
{
    return common_interrupted != 0;
}

void command_keep_line(int argc, char **argv, char *line, size_t size)
{
    size_t used = 0;
    line[0] = '\0';
    for (int i = 0; i < argc && used < size; i++) {
        int length = snprintf(line + used, size - used, "%s%s", i ? " " : "", argv[i]);
        if (length < 0) break;
        used += (size_t)length;
    }
}

int command_exit_code(kvt_status status)
{
    switch (status) {
    case KVT_OK: return EXIT_FINE;
    case KVT_E_ARGUMENT:
    case KVT_E_CONFIG:
    case KVT_E_PARSE:
    case KVT_E_GONE: return EXIT_USAGE;
    case KVT_E_UNSUPPORTED: return EXIT_ABSENT;
    case KVT_E_CANCELLED: return EXIT_INTERRUPTED;
    default: return EXIT_FAILED;
    }
}

int command_fail(kvt_status status, const char *message)
{
    /* What could not be written looks like another fault; command_finish says what it is. */
    if (ferror(stdout) && (status == KVT_E_MEMORY || status == KVT_E_IO)) return EXIT_FAILED;
    if (message[0] == '\0') message = kvt_status_text(status);
    fprintf(stderr, "%s: %s (%s)\n", common_name, message, kvt_status_name(status));
    return command_exit_code(status);
}

int command_fail_content(kvt_status status, const char *message)
{
    int code = command_fail(status, message);
    switch (status) {
    case KVT_E_CORRUPT:
    case KVT_E_VERSION:
    case KVT_E_MISMATCH: return EXIT_USAGE;
    default: return code;
    }
}

int command_fail_input(kvt_status status, const char *message)
{
    int code = command_fail_content(status, message);
    switch (status) {
    case KVT_E_IO:
    case KVT_E_SPACE:
    case KVT_E_READ_ONLY:
    case KVT_E_DATABASE: return EXIT_USAGE;
    default: return code;
    }
}

void command_note(const command_common *common, const char *format, ...)
{
    if (common->quiet) return;
    va_list arguments;
    fprintf(stderr, "%s: ", common_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static bool common_finished;

/* Help and version end the command inside argp. */
static void common_check_output(void)
{
    if (common_finished || (fflush(stdout) == 0 && !ferror(stdout))) return;
    fprintf(stderr, "kvterrace: standard output: %s\n", strerror(errno));
    _exit(EXIT_FAILED);
}

void command_watch_output(void)
{
    (void)atexit(common_check_output);
}

int command_finish(int code)
{
    common_finished = true;
    bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout)) return code;
    /* What an earlier write failed with has been overwritten by now. */
    fprintf(stderr, "%s: standard output: %s\n", common_name,
            flushed ? "not all of it could be written" : strerror(errno));
    return code == EXIT_FINE ? EXIT_FAILED : code;
}

static const char *format_scaled(char text[32], double value, double step, const char *const *units,
                                 size_t count)
{
    size_t unit = 0;
    while (unit + 1 < count && value >= step * 0.9995) {
        value /= step;
        unit++;
    }
    int digits = unit == 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    (void)snprintf(text, 32, "%.*f %s", digits, value, units[unit]);
    return text;
}

const char *format_rate(char text[32], double bytes_per_s)
{
    static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    return format_scaled(text, bytes_per_s, 1000, units, sizeof units / sizeof units[0]);
}

const char *format_bytes(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return format_scaled(text, (double)bytes, 1024, units, sizeof units / sizeof units[0]);
}

const char *format_seconds(char text[32], double seconds)
{
    if (seconds < 1e-6) {
        (void)snprintf(text, 32, "%.0f ns", seconds * 1e9);
    } else if (seconds < 1e-3) {
        (void)snprintf(text, 32, "%.1f us", seconds * 1e6);
    } else if (seconds < 1) {
        (void)snprintf(text, 32, "%.2f ms", seconds * 1e3);
    } else {
        (void)snprintf(text, 32, "%.3f s", seconds);
    }
    return text;
}
