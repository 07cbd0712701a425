/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common.c - settings, messages, exit codes, documents, number formats of the commands, and the
 * line on a terminal that says how far a long command is. One thread.
 */
#include "command.h"

#include "base/clock.h"
#include "base/config_values.h"
#include "base/nearest.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The stream that stdout's buffer passes with --json. One thread. */
static bool common_written; /* a document has begun to leave */

static ssize_t common_write(void *cookie, const char *bytes, size_t count)
{
    size_t done = 0;
    (void)cookie;
    common_written = true;
    while (done < count) {
        ssize_t written = write(STDOUT_FILENO, bytes + done, count - done);
        if (written < 0 && errno != EINTR) return (ssize_t)done;
        if (written > 0) done += (size_t)written;
    }
    return (ssize_t)done;
}

static const char *common_name = "kvterrace"; /* for messages */
static bool common_json;                      /* errors are documents on stdout too */
static const kvt_config *common_config;       /* of the command that runs */

#define COMMON_BUFFER_BYTES (UINT64_C(16) << 20)

void command_begin(const char *name, bool json)
{
    common_name = name;
    if (!json || common_json) return;
    common_json = true;
    /* A document is printed whole: one that is cut off by an interruption never begins. */
    FILE *through = fopencookie(NULL, "w", (cookie_io_functions_t){.write = common_write});
    if (through == NULL) return;
    stdout = through;
    (void)setvbuf(stdout, NULL, _IOFBF, COMMON_BUFFER_BYTES);
}

void command_add_input(command_common *common, const char *path)
{
    command_list_add(&common->inputs, path);
}

const char *command_keep(command_common *common, char *text)
{
    command_list_add(&common->owned, text);
    return text;
}

void command_add_setting(command_common *common, const char *key, const char *value)
{
    char *text = NULL;
    if (asprintf(&text, "%s=%s", key, value) < 0)
        exit(command_finish(command_fail(KVT_E_MEMORY, "")));
    command_list_add(&common->settings, command_keep(common, text));
}

int command_load(command_common *common)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_status status = kvt_config_new(&common->config);
    common_config = common->config;
    for (size_t i = 0; status == KVT_OK && i < common->files.count; i++)
        status = kvt_config_read(common->config, common->files.items[i], message, sizeof message);
    for (size_t i = 0; status == KVT_OK && i < common->settings.count; i++)
        status = kvt_config_set(common->config, common->settings.items[i], message, sizeof message);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, message);
}

void command_unload(command_common *common)
{
    for (size_t i = 0; i < common->owned.count; i++)
        free((void *)(uintptr_t)common->owned.items[i]);
    free(common->owned.items);
    free(common->files.items);
    free(common->settings.items);
    free(common->inputs.items);
    common_config = NULL;
    kvt_config_free(common->config);
    memset(common, 0, sizeof *common);
}

bool command_was_set(const command_common *common, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < common->settings.count; i++) {
        const char *text = common->settings.items[i];
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

int command_report_unused(const command_common *common, const char *const *sections)
{
    const char *key;
    int code = EXIT_FINE;
    for (size_t i = 0; (key = kvt_config_unused_get(common->config, i)) != NULL; i++) {
        if (!command_was_set(common, key) && !common_in_sections(key, sections)) continue;
        char reason[512] = "", message[COMMAND_MESSAGE_BYTES];
        const bool unread = kvt_config_has_effect(common->config, key, reason, sizeof reason);
        (void)snprintf(message, sizeof message, "%.200s has no effect here%s%s", key,
                       unread ? "" : ": ", reason);
        code = command_fail(KVT_E_CONFIG, message);
    }
    return code;
}

/* Atomic: the signal may come to any thread, one of a library's included. */
static atomic_bool common_interrupted;

static void common_interrupt(int number)
{
    (void)number;
    atomic_store(&common_interrupted, true);
}

void command_catch_interrupts(void)
{
    const struct sigaction action = {.sa_handler = common_interrupt};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

bool command_interrupted(void)
{
    return atomic_load(&common_interrupted);
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

/* The file and the line that a message starts with, as in "trace.jsonl:2: ..." or, when there is
 * such a file, "kv.kvt: ...". */
static json_t *common_error_json(kvt_status status, const char *message)
{
    const char *mark = strstr(message, ": ");
    size_t length = mark != NULL ? (size_t)(mark - message) : 0;
    size_t digits = 0;
    long line = 0;
    char path[COMMAND_MESSAGE_BYTES];
    while (digits < length && strchr("0123456789", message[length - 1 - digits]) != NULL)
        digits++;
    if (digits > 0 && digits < 9 && digits < length && message[length - 1 - digits] == ':') {
        line = strtol(message + length - digits, NULL, 10);
        length -= digits + 1;
    }
    (void)snprintf(path, sizeof path, "%.*s", (int)length, message);
    const bool file = length > 0 && (line > 0 || access(path, F_OK) == 0 ||
                                     (status == KVT_E_GONE && strchr(path, ' ') == NULL));
    json_t *text = json_string(message);
    /* Bytes of a file in a message need not be UTF-8. */
    if (text == NULL) text = json_string(kvt_status_text(status));
    return json_pack("{s:s, s:{s:s, s:o, s:o, s:o}}", "schema", "kvterrace-error-1", "error",
                     "status", kvt_status_name(status), "message", text, "file",
                     file ? view_string(path) : json_null(), "line",
                     line > 0 ? json_integer(line) : json_null());
}

/* One error is the document of a run that has printed none. */
static void common_print_error(kvt_status status, const char *message)
{
    if (!common_json || common_written || __fpending(stdout) > 0 || ferror(stdout)) return;
    json_t *document = common_error_json(status, message);
    if (document != NULL) (void)json_dumpf(document, stdout, JSON_INDENT(1));
    fputc('\n', stdout);
    json_decref(document);
}

/* Writes the message with the file and the line of the setting that it begins with, where a file
 * gave that one. */
static const char *common_place(const char *message, char placed[2 * COMMAND_MESSAGE_BYTES])
{
    char key[COMMAND_MESSAGE_BYTES];
    const char *path;
    unsigned line;
    (void)snprintf(key, sizeof key, "%.*s", (int)strcspn(message, ": "), message);
    if (!kvt_config_place(common_config, key, &path, &line)) return message;
    (void)snprintf(placed, (size_t)2 * COMMAND_MESSAGE_BYTES, "%.300s:%u: %s", path, line, message);
    return placed;
}

int command_fail(kvt_status status, const char *message)
{
    char placed[2 * COMMAND_MESSAGE_BYTES];
    const int code = command_exit_code(status);
    /* An output that could not be written looks like another fault; command_finish names it. */
    if (ferror(stdout) && (status == KVT_E_MEMORY || status == KVT_E_IO)) return EXIT_FAILED;
    if (message[0] == '\0') message = kvt_status_text(status);
    message = common_place(message, placed);
    fprintf(stderr, "%s: %s\n", common_name, message);
    common_print_error(status, message);
    return code;
}

int command_misuse(const char *format, ...)
{
    char message[COMMAND_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s: %s\nTry `%s --help`.\n", common_name, message, common_name);
    common_print_error(KVT_E_ARGUMENT, message);
    return EXIT_USAGE;
}

void command_suggest(char *message, size_t size, const char *text,
                     const char *(*name_at)(size_t index))
{
    nearest search = {.text = text, .length = strlen(text)};
    const size_t used = strlen(message);
    const char *name;
    for (size_t i = 0; (name = name_at(i)) != NULL; i++)
        nearest_offer(&search, name);
    if (search.best != NULL)
        (void)snprintf(message + used, size - used, "; did you mean '%s'?", search.best);
}

static kvt_status common_print(json_t *document, size_t flags)
{
    const bool failed = document == NULL || json_dumpf(document, stdout, flags) != 0;
    json_decref(document);
    if (failed) return KVT_E_MEMORY;
    fputc('\n', stdout);
    return KVT_OK;
}

int command_print_document(json_t *document)
{
    kvt_status status = common_print(document, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    return status == KVT_OK ? EXIT_FINE : command_fail(status, "");
}

kvt_status command_print_exact(json_t *document)
{
    return common_print(document, JSON_INDENT(2));
}

double view_number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

const char *view_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

json_t *view_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *view_string(const char *text)
{
    json_t *string = json_string(text);
    return string != NULL ? string : json_string("?");
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

int command_finish(int code)
{
    if (code == EXIT_INTERRUPTED)
        common_print_error(KVT_E_CANCELLED, "interrupted");
    else if (code != EXIT_FINE)
        common_print_error(KVT_E_IO, "it failed; stderr says why");
    const bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout)) return code;
    /* What an earlier write failed with has been overwritten by now. */
    fprintf(stderr, "%s: standard output: %s\n", common_name,
            flushed ? "not all of it could be written" : strerror(errno));
    return code == EXIT_FINE ? EXIT_FAILED : code;
}

const char *format_bytes(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (unit + 1 < sizeof units / sizeof units[0] && value >= 1024 * 0.9995) {
        value /= 1024;
        unit++;
    }
    int digits = unit == 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    (void)snprintf(text, 32, "%.*f %s", digits, value, units[unit]);
    return text;
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

/* ---- progress ---- */

#define PROGRESS_CELLS    24u
#define PROGRESS_STEP_NS  UINT64_C(100000000)
#define PROGRESS_QUIET_NS UINT64_C(2000000000) /* so long nothing is said of what is left */

void progress_start(command_progress *progress, const command_common *common)
{
    *progress = (command_progress){.shown = !common->quiet && isatty(STDERR_FILENO) == 1,
                                   .started_ns = base_clock_ns()};
}

/* "20 s", "3 min 20 s", "2.5 h". */
static const char *progress_time(char text[32], double seconds)
{
    const unsigned whole = (unsigned)fmin(seconds, 3600.0);
    if (seconds < 60) {
        (void)snprintf(text, 32, "%u s", whole);
    } else if (seconds < 3600) {
        (void)snprintf(text, 32, "%u min %02u s", whole / 60, whole % 60);
    } else {
        (void)snprintf(text, 32, "%.1f h", seconds / 3600);
    }
    return text;
}

/* "1 min 05 s gone, 3 min 20 s left", as if the rest went like what is done; "" where that cannot
 * be said yet. */
static const char *progress_times(char text[80], double done, uint64_t elapsed_ns)
{
    const double seconds = (double)elapsed_ns * 1e-9;
    char gone[32], left[32];
    text[0] = '\0';
    if (elapsed_ns < PROGRESS_QUIET_NS || !(done > 0.005)) return text;
    (void)snprintf(text, 80, "%s gone, %s left", progress_time(gone, seconds),
                   progress_time(left, seconds * (1 - done) / done));
    return text;
}

void progress_end(command_progress *progress)
{
    if (progress->drawn) fputs("\r\033[K", stderr);
    progress->drawn = false;
}

void progress_update(command_progress *progress, double done, const char *what)
{
    char cells[PROGRESS_CELLS + 1], times[80];
    if (!progress->shown) return;
    if (done >= 1 && what == NULL) {
        progress_end(progress);
        return;
    }
    const uint64_t now = base_clock_ns();
    if (progress->drawn && now - progress->drawn_ns < PROGRESS_STEP_NS) return;
    if (!(done >= 0)) done = 0;
    if (done > 1) done = 1;
    progress->drawn = true;
    progress->drawn_ns = now;
    for (unsigned i = 0; i < PROGRESS_CELLS; i++)
        cells[i] = i < done * PROGRESS_CELLS ? '#' : '.';
    cells[PROGRESS_CELLS] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3.0f%% %s %.32s", cells, done * 100,
            progress_times(times, done, now - progress->started_ns), what != NULL ? what : "");
    fflush(stderr);
}

void progress_show(void *context, double done, const char *what)
{
    progress_update(context, done, what);
}

bool progress_ask(void *context, double done, const char *what)
{
    progress_update(context, done, what);
    return !command_interrupted();
}
