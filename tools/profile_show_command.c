/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_show_command.c - kvterrace profile show: what a profile holds, as text or as one JSON
 * document. One thread.
 */
#include "commands.h"
#include "profile_document.h"
#include "profile_open.h"
#include "profile_print.h"

#define SHOW_PAGES "pages and figures come from --json | kvterrace report - -o PAGE.html"

typedef struct show_arguments {
    command_common common;
    uint64_t token_bytes;
} show_arguments;

static const command_option show_rows[] = {
    DATABASE_OPTION,
    GONE_OPTION("html", SHOW_PAGES),
    GONE_OPTION("plot", SHOW_PAGES),
    {.name = "token-bytes",
     .letter = 'b',
     .argument = "SIZE",
     .text = "Decoded KV of a token, for break-even lengths (that of the prefill's model; 128KiB)",
     .kind = OPTION_SIZE,
     .offset = offsetof(show_arguments, token_bytes),
     .least = 1,
     .most = 1.0995116e12},
    {0},
};

static int show_run(void *context)
{
    const show_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    json_t *document = NULL;
    kvt_config *config = arguments->common.config;
    const profile_view view = {.path = command_profile_path(config),
                               .token_bytes = (double)arguments->token_bytes};
    kvt_status status =
        command_profile_open(config, KVT_PROFILE_READ, &profile, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    status = profile_document_make(profile, &view, &document);
    if (status == KVT_OK && arguments->common.json)
        status = profile_print_json(document);
    else if (status == KVT_OK)
        profile_print_text(document, PROFILE_PRINT_ALL);
    json_decref(document);
    kvt_profile_close(profile);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, message);
}

const command_spec profile_show_spec = {
    .name = "show",
    .summary = "show what was measured",
    .about = "Shows what a profile database holds.",
    .example = "  kvterrace profile show --database profile.db --json >profile.json\n"
               "  kvterrace report profile.json -o profile.html",
    .options = show_rows,
    .argument_bytes = sizeof(show_arguments),
    .run = show_run,
    .settings = SETTINGS_PROFILE,
};
