/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_command.c - kvterrace report: JSON documents of the other commands as a page, whose script
 * says and draws what they mean. cmake/report.cmake puts the page, tools/report/, into the program.
 *
 * Documents are text from outside, and reach the page as data alone: every '<' is written as
 * \u003c, which JSON reads back as the same character and HTML cannot take for the end of the
 * script element that holds it. One thread.
 */
#include "commands.h"

#include "estimator/model/whole_file.h"

#include <kvterrace/kvterrace.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The files of tools/report/, each with a 0 behind it. */
extern const unsigned char report_part_page[];
extern const unsigned char report_part_style[];
extern const unsigned char report_part_script[];

/* The documents of a page are an array of {"name", "document"}. */
static kvt_status report_add(json_t *entries, const char *name, json_t *document)
{
    json_t *entry = json_pack("{s:o, s:O}", "name", view_string(name), "document", document);
    return json_array_append_new(entries, entry) == 0 ? KVT_OK : KVT_E_MEMORY;
}

static int page_dump(const char *text, size_t size, void *context)
{
    FILE *file = context;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '<') {
            fputs("\\u003c", file);
        } else {
            fputc(text[i], file);
        }
    }
    return ferror(file);
}

static void page_documents(const json_t *entries, FILE *file)
{
    const json_t *entry;
    size_t i;
    json_array_foreach(entries, i, entry)
    {
        fprintf(file,
                "<section class=\"document\" id=\"document-%zu\"></section>\n"
                "<script type=\"application/json\" class=\"data\">",
                i);
        (void)json_dump_callback(entry, page_dump, file, JSON_COMPACT | JSON_REAL_PRECISION(12));
        fputs("</script>\n", file);
    }
}

static kvt_status page_write(const json_t *entries, FILE *file)
{
    /* The text that replaces {{name}} in the template; NULL: the documents. */
    const struct {
        const char *name;
        const unsigned char *text;
    } parts[] = {{"{{style}}", report_part_style},
                 {"{{documents}}", NULL},
                 {"{{script}}", report_part_script}};
    const size_t count = sizeof parts / sizeof parts[0];
    const char *at = (const char *)report_part_page;
    while (*at != '\0') {
        size_t part = 0;
        while (part < count && strncmp(at, parts[part].name, strlen(parts[part].name)) != 0)
            part++;
        if (part == count) {
            fputc(*at++, file);
            continue;
        }
        if (parts[part].text != NULL)
            fputs((const char *)parts[part].text, file);
        else
            page_documents(entries, file);
        at += strlen(parts[part].name);
    }
    return fflush(file) == 0 && !ferror(file) ? KVT_OK : KVT_E_IO;
}

static kvt_status report_save(const json_t *entries, const char *path, char *message,
                              size_t message_size)
{
    char *partial = NULL;
    kvt_status status = whole_file_begin(path, &partial, message, message_size);
    if (status != KVT_OK) return status;
    FILE *file = fopen(partial, "we");
    status = file != NULL ? page_write(entries, file) : KVT_E_IO;
    if (file != NULL && fclose(file) != 0 && status == KVT_OK) status = KVT_E_IO;
    if (status == KVT_E_IO)
        (void)snprintf(message, message_size, "%.300s: %s", path, strerror(errno));
    return whole_file_end(&partial, path, status, message, message_size);
}

kvt_status report_page_write(const char *path, const char *name,
                             kvt_status (*print)(const void *report, FILE *out), const void *report,
                             char *message, size_t message_size)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *entries = json_array(), *document = NULL;
    FILE *stream = open_memstream(&text, &bytes);
    kvt_status status = stream != NULL ? print(report, stream) : KVT_E_MEMORY;
    if (stream != NULL && fclose(stream) != 0 && status == KVT_OK) status = KVT_E_MEMORY;
    if (status == KVT_OK) document = json_loadb(text, bytes, 0, NULL);
    if (status == KVT_OK && document == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) status = report_add(entries, name, document);
    if (status == KVT_OK) status = report_save(entries, path, message, message_size);
    json_decref(entries);
    json_decref(document);
    free(text);
    return status;
}

#define REPORT_BYTES_MAX (UINT64_C(64) << 20) /* of all files: a browser has to hold the page */

typedef struct report_arguments {
    command_common common;
    const char *output;
    command_list inputs;
} report_arguments;

static const command_option report_rows[] = {
    OUTPUT_OPTION(report_arguments, output, "Write the page to FILE (standard output)"),
    OPERANDS(report_arguments, inputs, "FILE", 1, 0, OPTION_READS),
    {0},
};

/* A file while jansson reads it. */
typedef struct report_source {
    FILE *file;
    uint64_t *left; /* bytes that may still be read, of all files */
    bool too_large;
} report_source;

static size_t report_read_bytes(void *buffer, size_t size, void *context)
{
    report_source *source = context;
    size_t count = fread(buffer, 1, size, source->file);
    if (count == 0 && ferror(source->file)) return (size_t)-1;
    source->too_large = source->too_large || count > *source->left;
    if (source->too_large) return (size_t)-1;
    *source->left -= count;
    return count;
}

static kvt_status report_read(const char *path, uint64_t *left, json_t **document_out,
                              char *message, size_t message_size)
{
    json_error_t error;
    const bool standard = strcmp(path, "-") == 0;
    report_source source = {.file = standard ? stdin : fopen(path, "re"), .left = left};
    *document_out = NULL;
    if (source.file == NULL) {
        (void)snprintf(message, message_size, "%.300s: %s", path, strerror(errno));
        return KVT_E_IO;
    }
    errno = 0;
    json_t *document =
        json_load_callback(report_read_bytes, &source, JSON_REJECT_DUPLICATES, &error);
    const int failure = ferror(source.file) ? errno : 0;
    if (!standard) (void)fclose(source.file);
    /* "kvterrace-KIND-VERSION" */
    const char *schema = view_text(document, "schema");
    const bool later =
        strncmp(schema, "kvterrace-", 10) == 0 && strtoul(strrchr(schema, '-') + 1, NULL, 10) > 2;
    if (failure != 0) {
        (void)snprintf(message, message_size, "%.300s: %s", path, strerror(failure));
    } else if (source.too_large) {
        (void)snprintf(message, message_size, "%.300s: a page holds at most %u MiB of documents",
                       path, (unsigned)(REPORT_BYTES_MAX >> 20));
    } else if (document == NULL) {
        (void)snprintf(message, message_size, "%.300s: no JSON, line %d: %s", path, error.line,
                       error.text);
    } else if (!json_is_object(document)) {
        (void)snprintf(message, message_size, "%.300s: no document of kvterrace: not an object",
                       path);
    } else if (later) {
        (void)snprintf(message, message_size,
                       "%.300s: its schema, %.100s, is of another version of kvterrace", path,
                       schema);
    } else {
        *document_out = document;
        return KVT_OK;
    }
    json_decref(document);
    return KVT_E_CORRUPT;
}

static kvt_status report_read_all(const report_arguments *arguments, json_t *entries, char *message,
                                  size_t message_size)
{
    uint64_t left = REPORT_BYTES_MAX;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && i < arguments->inputs.count; i++) {
        const char *path = arguments->inputs.items[i];
        json_t *document = NULL;
        status = report_read(path, &left, &document, message, message_size);
        if (status == KVT_OK)
            status =
                report_add(entries, strcmp(path, "-") == 0 ? "standard input" : path, document);
        json_decref(document);
    }
    return status;
}

static int report_run(void *context)
{
    const report_arguments *arguments = context;
    const command_common *common = &arguments->common;
    char message[COMMAND_MESSAGE_BYTES] = "";
    int code = EXIT_FINE;
    kvt_status status = KVT_OK;
    if (arguments->output == NULL && isatty(STDOUT_FILENO))
        return command_misuse("a page of HTML is nothing for a terminal: -o FILE, or a pipe");
    json_t *entries = json_array();
    if (arguments->output != NULL)
        status = command_check_target(common, "output", arguments->output, message, sizeof message);
    if (status == KVT_OK) status = report_read_all(arguments, entries, message, sizeof message);
    if (status != KVT_OK) {
        code = command_fail_input(status, message);
    } else {
        status = arguments->output != NULL
                     ? report_save(entries, arguments->output, message, sizeof message)
                     : page_write(entries, stdout);
        if (status != KVT_OK) code = command_fail(status, message);
    }
    json_decref(entries);
    return code;
}

const command_spec report_spec = {
    .name = "report",
    .summary = "make a page of what the JSON of the other commands means",
    .about = "Makes a page of what other commands printed with --json, one HTML file that needs "
             "nothing else: which policy is ahead, where it is behind, what to do next, then "
             "figures and tables. A FILE of - is standard input.",
    .example = "  kvterrace replay --workload poisson --policy lru,utility --json >run.json\n"
               "  kvterrace report run.json -o run.html",
    .options = report_rows,
    .argument_bytes = sizeof(report_arguments),
    .run = report_run,
};
