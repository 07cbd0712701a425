/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rekey_command.c - kvterrace rekey: encrypted devices under their current keys. One thread.
 */
#include "commands.h"

#include <kvterrace/recover.h>

typedef struct rekey_arguments {
    command_common common;
} rekey_arguments;

static const command_option rekey_rows[] = {{0}};

static bool rekey_take_progress(void *context, const char *device, uint64_t done, uint64_t total)
{
    return progress_ask(context, total ? (double)done / (double)total : 1, device);
}

static int rekey_print(const rekey_arguments *arguments, const kvt_rekey_report *report)
{
    char changed[32], damaged[32];
    if (arguments->common.json)
        return command_print_document(json_pack(
            "{s:s, s:I, s:I, s:I}", "schema", "kvterrace-rekey-1", "devices",
            (json_int_t)report->devices, "changed_bytes", (json_int_t)report->changed_bytes,
            "damaged_bytes", (json_int_t)report->damaged_bytes));
    printf("%u encrypted devices, %s put under their current keys\n", report->devices,
           format_bytes(changed, report->changed_bytes));
    if (report->damaged_bytes != 0)
        printf("%s are damaged and were left as they are\n",
               format_bytes(damaged, report->damaged_bytes));
    if (report->devices > 0) printf("no other key is needed any more\n");
    return EXIT_FINE;
}

static int rekey_run(void *context)
{
    static const char *const sections[] = {"device.*", NULL};
    const rekey_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_store_options options = {.struct_size = sizeof options};
    kvt_rekey_report report = {.struct_size = sizeof report};
    command_progress bar;
    void *owner = NULL;
    kvt_status status =
        kvt_store_options_read(arguments->common.config, &options, &owner, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail_input(status, message);
    if (code == EXIT_FINE) {
        progress_start(&bar, &arguments->common);
        command_catch_interrupts();
        status =
            kvt_store_rekey(&options, rekey_take_progress, &bar, &report, message, sizeof message);
        progress_end(&bar);
        code = status == KVT_OK ? rekey_print(arguments, &report) : command_fail(status, message);
    }
    kvt_store_options_free(owner);
    return code;
}

const command_spec tools_rekey_spec = {
    .name = "rekey",
    .summary = "put encrypted devices under their current keys",
    .about = "Puts all that the encrypted devices of a configuration hold under the first key of "
             "their key_file or key_command, and forgets the others, which can be taken out of the "
             "file afterwards. The store must be closed. A run that is cut off loses nothing, and "
             "the next one goes on.",
    .example = "  kvterrace rekey --config kvterrace.ini",
    .options = rekey_rows,
    .argument_bytes = sizeof(rekey_arguments),
    .run = rekey_run,
    .settings = SETTINGS_OWN,
};
