/*
 * check_config.c - kvterrace check-config: what a configuration says, before anything is opened.
 *
 * Every line is checked against the table of settings; a policy, tier or device that does not fit
 * together is found by reading the file the way the store reads it. One thread.
 */
#include "command.h"

#include <kvterrace/kvterrace.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct check_arguments {
    command_common common;
    bool settings;
} check_arguments;

static const struct argp_option check_options[] = {
    {"settings", 'S', NULL, 0, "List every known setting with its default instead", 0},
    {0},
};

static error_t check_parse(int key, char *argument, struct argp_state *state)
{
    check_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'S': arguments->settings = true; return 0;
    case ARGP_KEY_ARG: command_add_file(&arguments->common, argument); return 0;
    case ARGP_KEY_END:
        if (!arguments->settings && arguments->common.file_count == 0) {
            argp_error(state, "which FILE?");
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char *const check_kinds[] = {
    [KVT_SETTING_TEXT] = "text",     [KVT_SETTING_BYTES] = "size",
    [KVT_SETTING_RATE] = "rate",     [KVT_SETTING_SECONDS] = "seconds",
    [KVT_SETTING_NUMBER] = "number", [KVT_SETTING_COUNT] = "count",
    [KVT_SETTING_SWITCH] = "switch",
};

static int check_list_settings(bool as_json)
{
    const kvt_setting *setting;
    json_t *rows = as_json ? json_array() : NULL;
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        if (as_json) {
            json_array_append_new(rows, json_pack("{s:s, s:s, s:s?, s:s?, s:s}", "name",
                                                  setting->name, "kind", check_kinds[setting->kind],
                                                  "default", setting->standard, "choices",
                                                  setting->choices, "text", setting->text));
        } else {
            printf("%-26s %-8s %-13s %s\n", setting->name, check_kinds[setting->kind],
                   setting->standard ? setting->standard : "-", setting->text);
        }
    }
    if (as_json) {
        json_t *document = json_pack("{s:o}", "settings", rows);
        json_dumpf(document, stdout, JSON_INDENT(2));
        fputc('\n', stdout);
        json_decref(document);
    }
    return EXIT_FINE;
}

/* What the store makes of the settings, printed; the options are released by the caller. */
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
        json_t *document =
            json_pack("{s:b, s:s, s:O}", "ok", 1, "policy", options->policy, "tiers", tiers);
        json_dumpf(document, stdout, JSON_INDENT(2));
        fputc('\n', stdout);
        json_decref(document);
    }
    json_decref(tiers);
}

int command_check_config(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {.options = check_options,
                              .parser = check_parse,
                              .args_doc = "FILE...",
                              .doc = "Checks configuration files: syntax, names, values, and "
                                     "whether tiers and devices fit together. Opens no device.",
                              .children = children};
    check_arguments arguments = {0};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    if (arguments.settings) {
        code = check_list_settings(arguments.common.json);
    } else {
        char message[COMMAND_MESSAGE_BYTES] = "";
        kvt_store_options options;
        void *owner = NULL;
        kvt_store_options_init(&options);
        kvt_status status = kvt_store_options_read(arguments.common.config, &options, &owner,
                                                   message, sizeof message);
        if (status == KVT_OK) {
            check_print_store(&options, arguments.common.json);
        } else {
            code = command_fail(status, message);
        }
        kvt_store_options_free(owner);
    }
    command_unload(&arguments.common);
    return command_finish(code);
}
