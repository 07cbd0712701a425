/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_show_command.c - kvterrace profile show: what a profile holds, as text or as one JSON
 * document. One thread.
 */
#include "command.h"
#include "profile_document.h"
#include "profile_open.h"
#include "profile_print.h"
#include "profile_show.h"

#include <string.h>

typedef struct show_arguments {
    command_common common;
    uint64_t token_bytes;
} show_arguments;

static const struct argp_option show_options[] = {
    PROFILE_DATABASE_OPTION,
    {"html", 'H', "FILE", OPTION_HIDDEN, NULL, 0},
    {"plot", 'P', "FOLDER", OPTION_HIDDEN, NULL, 0},
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
    case 'H':
    case 'P':
        argp_error(state, "pages and figures come from --json | kvterrace report - -o PAGE.html");
        return 0;
    case 'b':
        if (kvt_parse_bytes(argument, &arguments->token_bytes) != KVT_OK ||
            arguments->token_bytes == 0 || arguments->token_bytes > UINT64_C(1) << 40) {
            argp_error(state, "--token-bytes: '%s' is not a size from 1 to 1TiB", argument);
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
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
    if (code == EXIT_FINE) {
        const profile_view view = {.path = command_profile_path(config),
                                   .token_bytes = (double)arguments.token_bytes};
        status = profile_document_make(profile, &view, &document);
        if (status == KVT_OK && arguments.common.json)
            status = profile_print_json(document);
        else if (status == KVT_OK)
            profile_print_text(document, PROFILE_PRINT_ALL);
        if (status != KVT_OK) code = command_fail(status, message);
    }
    json_decref(document);
    kvt_profile_close(profile);
    command_unload(&arguments.common);
    return command_finish(code);
}
