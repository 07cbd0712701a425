/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings_command.c - kvterrace settings: the table of settings with kinds and defaults. One
 * thread.
 */
#include "commands.h"

#include "base/config_values.h"
#include "base/nearest.h"

#include <string.h>

typedef struct settings_arguments {
    command_common common;
    command_list sections;
} settings_arguments;

static const command_option settings_rows[] = {
    OPERANDS(settings_arguments, sections, "[SECTION]", 0, 0, 0),
    {0},
};

static const char *const settings_kinds[] = {
    [KVT_SETTING_TEXT] = "text",     [KVT_SETTING_BYTES] = "size",
    [KVT_SETTING_RATE] = "rate",     [KVT_SETTING_SECONDS] = "seconds",
    [KVT_SETTING_NUMBER] = "number", [KVT_SETTING_COUNT] = "count",
    [KVT_SETTING_SWITCH] = "switch",
};

/* "tier" is the section of every tier.*.* key, "tier.dram" that of one tier. */
static bool settings_is_in(const char *name, const char *section)
{
    const size_t length = strlen(section);
    return strncmp(name, section, length) == 0 && (name[length] == '.' || name[length] == '\0');
}

static bool settings_is_wanted(const settings_arguments *arguments, const char *name)
{
    for (size_t i = 0; i < arguments->sections.count; i++)
        if (settings_is_in(name, arguments->sections.items[i])) return true;
    return arguments->sections.count == 0;
}

/* Sections that no setting is in, which are the user's mistake. */
static int settings_check(const settings_arguments *arguments)
{
    for (size_t i = 0; i < arguments->sections.count; i++) {
        const char *section = arguments->sections.items[i];
        nearest search = {.text = section, .length = strlen(section)};
        const kvt_setting *setting;
        char names[2][64];
        bool known = false;
        for (size_t k = 0; (setting = kvt_setting_at(k)) != NULL; k++) {
            char *name = names[search.best == names[0]];
            (void)snprintf(name, sizeof names[0], "%.*s",
                           (int)(strrchr(setting->name, '.') - setting->name), setting->name);
            known = known || settings_is_in(setting->name, section);
            nearest_offer(&search, name);
        }
        for (size_t k = 0; search.best == NULL && (setting = kvt_setting_at(k)) != NULL; k++)
            nearest_offer(&search, setting->name);
        if (known) continue;
        if (search.best == NULL) return command_misuse("no section '%.100s'", section);
        return command_misuse("no section '%.100s'; did you mean '%s'?", section, search.best);
    }
    return EXIT_FINE;
}

static int settings_run(void *context)
{
    const settings_arguments *arguments = context;
    const kvt_setting *setting;
    int code = settings_check(arguments);
    if (code != EXIT_FINE) return code;
    json_t *rows = arguments->common.json ? json_array() : NULL;
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        const char *kind = settings_kinds[setting->kind];
        char range[64];
        if (!settings_is_wanted(arguments, setting->name)) continue;
        (void)kvt_setting_range(setting, range);
        if (rows != NULL) {
            (void)json_array_append_new(
                rows, json_pack("{s:s, s:s, s:s?, s:s?, s:s?, s:s, s:s}", "name", setting->name,
                                "kind", kind, "default", setting->standard, "choices",
                                setting->choices, "range", range[0] != '\0' ? range : NULL, "text",
                                setting->text, "effect", setting->effect));
        } else {
            printf("%-26s %-8s %-13s %s\n", setting->name, kind,
                   setting->standard ? setting->standard : "-", setting->text);
            if (setting->choices) printf("%-49s %s\n", "", setting->choices);
            if (range[0] != '\0') printf("%-49s %s\n", "", range);
            if (setting->effect[0] != '\0')
                printf("%-49s has an effect with %s\n", "", setting->effect);
        }
    }
    if (rows == NULL) return EXIT_FINE;
    return command_print_document(
        json_pack("{s:s, s:o}", "schema", "kvterrace-settings-1", "settings", rows));
}

const command_spec settings_spec = {
    .name = "settings",
    .summary = "list the settings with their defaults",
    .about = "Lists every setting, or those of a section such as store, tier.dram, device, replay "
             "or workload: name, kind, default, what it does.",
    .example = "  kvterrace settings workload",
    .options = settings_rows,
    .argument_bytes = sizeof(settings_arguments),
    .run = settings_run,
};
