/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_show_command.c - kvterrace profile show: what a profile holds, as text, as one JSON
 * document, as a page or as plots. One thread.
 */
#include "command.h"
#include "output_file.h"
#include "profile_document.h"
#include "profile_open.h"
#include "profile_page.h"
#include "profile_plot.h"
#include "profile_print.h"
#include "profile_show.h"

#include "estimator/whole_file.h"

#include <errno.h>
#include <string.h>

typedef struct show_arguments {
    command_common common;
    const char *html;
    const char *plot;
    uint64_t token_bytes;
} show_arguments;

static const struct argp_option show_options[] = {
    PROFILE_DATABASE_OPTION,
    {"html", 'H', "FILE", 0, "Write a page that needs nothing else; plots if gnuplot is there", 0},
    {"plot", 'P', "FOLDER", 0, "Write the plots as SVG and PNG with their gnuplot scripts", 0},
    {"token-bytes", 'b', "SIZE", 0,
     "Decoded KV of a token, for break-even lengths (that of the prefill's model; 128KiB)", 0},
    {0},
};

static error_t show_parse(int key, char *argument, struct argp_state *state)
{
    show_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    case 'H': arguments->html = argument; return 0;
    case 'P': arguments->plot = argument; return 0;
    case 'b':
        if (kvt_parse_bytes(argument, &arguments->token_bytes) != KVT_OK ||
            arguments->token_bytes == 0 || arguments->token_bytes > UINT64_C(1) << 40) {
            argp_error(state, "--token-bytes: '%s' is not a size from 1 to 1TiB", argument);
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static kvt_status show_page(const json_t *document, const char *path, char *message,
                            size_t message_size)
{
    char *partial = NULL;
    kvt_status status = whole_file_begin(path, &partial, message, message_size);
    if (status != KVT_OK) return status;
    FILE *file = fopen(partial, "w");
    status = KVT_E_IO;
    if (file != NULL) {
        status = profile_page_write(document, file);
        if (fclose(file) != 0 && status == KVT_OK) status = KVT_E_IO;
    }
    if (status == KVT_E_IO) {
        (void)snprintf(message, message_size, "%.300s: %s", path, strerror(errno));
    }
    return whole_file_end(&partial, path, status, message, message_size);
}

/* What goes to files, then what goes to stdout. */
static kvt_status show_all(const json_t *document, const show_arguments *arguments, char *message,
                           size_t message_size)
{
    kvt_status status = KVT_OK;
    if (arguments->plot != NULL) {
        status = profile_plot_write(document, arguments->plot, message, message_size);
    }
    if (status == KVT_OK && arguments->html != NULL) {
        if (!profile_plot_available()) {
            command_note(&arguments->common, "gnuplot is not installed: the page has no plots");
        }
        status = show_page(document, arguments->html, message, message_size);
    }
    if (status != KVT_OK) return status;
    if (arguments->common.json) return profile_print_json(document);
    if (arguments->html == NULL && arguments->plot == NULL) {
        profile_print_text(document, PROFILE_PRINT_ALL);
    }
    return KVT_OK;
}

int command_profile_show(int argc, char **argv)
{
    static const char *const no_sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {.options = show_options,
                              .parser = show_parse,
                              .doc = "Shows what a profile database holds.",
                              .children = children};
    show_arguments arguments;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    json_t *document = NULL;
    memset(&arguments, 0, sizeof arguments);
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    kvt_config *config = arguments.common.config;
    kvt_status status =
        command_profile_open(config, KVT_PROFILE_READ, &profile, message, sizeof message);
    code = status == KVT_OK ? command_report_unused(&arguments.common, no_sections)
                            : command_fail_input(status, message);
    command_add_input(&arguments.common, command_profile_path(config));
    if (code == EXIT_FINE && arguments.html != NULL) {
        status = command_check_target(&arguments.common, "--html", arguments.html, message,
                                      sizeof message);
        if (status != KVT_OK) code = command_fail(status, message);
    }
    if (code == EXIT_FINE) {
        const profile_view view = {.path = command_profile_path(config),
                                   .token_bytes = (double)arguments.token_bytes};
        status = profile_document_make(profile, &view, &document);
        if (status == KVT_OK) status = show_all(document, &arguments, message, sizeof message);
        if (status != KVT_OK) code = command_fail(status, message);
    }
    json_decref(document);
    kvt_profile_close(profile);
    command_unload(&arguments.common);
    return command_finish(code);
}
