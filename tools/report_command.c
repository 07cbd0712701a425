/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_command.c - kvterrace report: what JSON documents of the other commands say, as a page or
 * as text. One thread.
 */
#include "commands.h"
#include "output_file.h"
#include "report_page.h"

#include <errno.h>
#include <string.h>

#define REPORT_BYTES_MAX (UINT64_C(64) << 20) /* of all files: a browser has to hold the page */

typedef struct report_arguments {
    command_common common;
    const char *output;
    command_list inputs;
} report_arguments;

static const command_option report_rows[] = {
    OUTPUT_OPTION(report_arguments, output,
                  "Write the page to FILE; without it print what it concludes"),
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
        json_decref(document);
        document = NULL;
    }
    *document_out = document;
    return document != NULL ? KVT_OK : KVT_E_CORRUPT;
}

static kvt_status report_read_all(const report_arguments *arguments, report_page *page,
                                  char *message, size_t message_size)
{
    uint64_t left = REPORT_BYTES_MAX;
    kvt_status status = report_page_open(page);
    for (size_t i = 0; status == KVT_OK && i < arguments->inputs.count; i++) {
        const char *path = arguments->inputs.items[i];
        json_t *document = NULL;
        status = report_read(path, &left, &document, message, message_size);
        if (status == KVT_OK)
            status =
                report_page_add(page, strcmp(path, "-") == 0 ? "standard input" : path, document);
        json_decref(document);
    }
    return status;
}

static int report_run(void *context)
{
    const report_arguments *arguments = context;
    const command_common *common = &arguments->common;
    char message[COMMAND_MESSAGE_BYTES] = "";
    report_page page = {0};
    int code = EXIT_FINE;
    kvt_status status = KVT_OK;
    if (arguments->output != NULL)
        status = command_check_target(common, "output", arguments->output, message, sizeof message);
    if (status == KVT_OK) status = report_read_all(arguments, &page, message, sizeof message);
    if (status != KVT_OK) {
        code = command_fail_input(status, message);
    } else {
        if (arguments->output != NULL)
            status = report_page_save(&page, arguments->output, message, sizeof message);
        if (status == KVT_OK && (arguments->output == NULL || common->json))
            status = report_page_print(&page, common->json, stdout);
        if (status != KVT_OK) code = command_fail(status, message);
    }
    report_page_close(&page);
    return code;
}

const command_spec report_spec = {
    .name = "report",
    .summary = "say and draw what the JSON of the other commands means",
    .about = "Reads what other commands printed with --json and says what it means: which policy "
             "is ahead, where it is behind, what to do next. With --output these words head a page "
             "with figures and tables, one HTML file that needs nothing else. A FILE of - is "
             "standard input.",
    .example = "  kvterrace replay --workload poisson --policy lru,utility --json >run.json\n"
               "  kvterrace report run.json -o run.html",
    .options = report_rows,
    .argument_bytes = sizeof(report_arguments),
    .run = report_run,
};
