/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_config.c - kvterrace check-config: what a configuration says, before anything is opened.
 *
 * Every line is checked against the table of settings. Then the file is read the way the store, its
 * server and both modes of replay read it, without opening devices, catalog or profile, and what
 * they would refuse is refused here: values out of range, tiers that their devices cannot hold,
 * settings without effect, files that cannot be what they are named as, no tier at all.
 * The machine is this one: what its memory and file systems do not have is refused as well. What
 * opening alone can tell stays unseen: what lies on drives, whether a drive or a GPU answers,
 * locks, permissions. One thread.
 */
#include "commands.h"

#include "base/config_values.h"
#include "replay/replay.h"
#include "tools/inspect/settings_check.h"

#include <string.h>

typedef struct check_arguments {
    command_common common;
} check_arguments;

/* The files are configuration files as --config names them. */
static const command_option check_rows[] = {
    OPERANDS(check_arguments, common.files, "FILE", 1, 0, 0),
    {0},
};

/* Prints the store that the settings give; the caller releases the options. */
static void check_print_store(const kvt_store_options *options, bool as_json)
{
    char text[32];
    json_t *tiers = json_array();
    if (!as_json) printf("policy   %s\n", options->policy);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *row = &options->tiers[tier];
        if (row->capacity_bytes == 0 && row->device_count == 0) continue;
        json_t *devices = json_array();
        if (!as_json) {
            printf("%-8s %s\n", kvt_tier_name(tier),
                   row->capacity_bytes ? format_bytes(text, row->capacity_bytes)
                                       : "what its devices hold");
        }
        for (uint32_t i = 0; i < row->device_count; i++) {
            const kvt_device_config *device = &row->devices[i];
            json_array_append_new(devices,
                                  json_pack("{s:s, s:s, s:s?, s:I}", "name", device->name,
                                            "backend", device->backend, "path", device->path,
                                            "capacity_bytes", (json_int_t)device->capacity_bytes));
            if (!as_json) {
                printf("         %-12s %-7s %s %s\n", device->name, device->backend,
                       device->capacity_bytes ? format_bytes(text, device->capacity_bytes) : "-",
                       device->path ? device->path : "");
            }
        }
        json_array_append_new(tiers, json_pack("{s:s, s:I, s:o}", "tier", kvt_tier_name(tier),
                                               "capacity_bytes", (json_int_t)row->capacity_bytes,
                                               "devices", devices));
    }
    if (as_json) {
        (void)command_print_document(json_pack("{s:s, s:b, s:s, s:O}", "schema",
                                               "kvterrace-check-config-1", "ok", 1, "policy",
                                               options->policy, "tiers", tiers));
    }
    json_decref(tiers);
}

/* A file that says nothing of a store may be about replays, which have tiers of their own. */
static kvt_status check_tiers(const kvt_config *config, const kvt_store_options *options,
                              char *message, size_t message_size)
{
    static const char *const sections[] = {"replay.", "workload.", "prefill."};
    const kvt_setting *setting;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *row = &options->tiers[tier];
        if (row->capacity_bytes > 0 || row->device_count > 0) return KVT_OK;
    }
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        for (size_t s = 0; s < sizeof sections / sizeof sections[0]; s++) {
            bool of_replays = strncmp(setting->name, sections[s], strlen(sections[s])) == 0;
            if (of_replays && kvt_config_has(config, setting->name)) return KVT_OK;
        }
    }
    (void)snprintf(message, message_size, "no tier has a capacity or a device");
    return KVT_E_CONFIG;
}

/* Reads and checks what a store and a replay would, then prints it. */
static int check_run(void *context)
{
    const check_arguments *arguments = context;
    static const char *const every_section[] = {"*", NULL};
    kvt_config *config = arguments->common.config;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_store_options options = {.struct_size = sizeof options};
    void *owner = NULL;
    kvt_store_options_init(&options);
    kvt_status status = kvt_store_options_read(config, &options, &owner, message, sizeof message);
    if (status == KVT_OK)
        status = inspect_settings(&arguments->common, &options, message, sizeof message);
    if (status == KVT_OK) status = replay_settings_check(config, &options, message, sizeof message);
    if (status == KVT_OK) status = tools_check_serve(config, &options, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, every_section)
                                : command_fail_input(status, message);
    if (code == EXIT_FINE) {
        status = check_tiers(config, &options, message, sizeof message);
        if (status != KVT_OK) code = command_fail(status, message);
    }
    if (code == EXIT_FINE) check_print_store(&options, arguments->common.json);
    kvt_store_options_free(owner);
    return code;
}

const command_spec check_config_spec = {
    .name = "check-config",
    .summary = "check a configuration file without opening anything",
    .about = "Checks configuration files: syntax, names, values, settings without effect, whether "
             "tiers and devices fit together, and whether this machine has the profile, folders, "
             "devices, memory and disk space that they name. "
             "The contents of drives and of the profile are checked when the store opens.",
    .example = "  kvterrace check-config kvterrace.ini --set tier.dram.capacity=64GiB",
    .options = check_rows,
    .argument_bytes = sizeof(check_arguments),
    .run = check_run,
    .settings = SETTINGS_OWN,
    .lists = LISTS_POLICIES | LISTS_SETTINGS,
};
