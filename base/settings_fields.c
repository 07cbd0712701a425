/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings_fields.c - values of settings into the fields of an options struct, and their ranges.
 * The values were checked against their kinds when they were set (config.c), so reading cannot
 * fail.
 *
 * Thread rule: as settings_fields.h.
 */
#include "settings_fields.h"

#include "config_parse.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIELDS_KEY_BYTES 96u

/* The place of a choice in "a|b|c". The place is the value of the enum that the field stands
 * for. */
static uint64_t fields_choice(const char *text, const char *choices)
{
    size_t length = strlen(text);
    uint64_t place = 0;
    for (const char *at = choices; at != NULL; at = strchr(at, '|'), place++) {
        if (*at == '|') at++;
        if (strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0'))
            return place;
    }
    assert(false && "a value was checked against the choices");
    return 0;
}

/* Stores a setting's value in its member, in the member's type. A setting without a standard value
 * that was not given leaves the member as it is. Seconds go into whole fields as nanoseconds.
 * Counts beyond 32 bits are cut to the largest number. */
static void fields_store(kvt_config *config, const char *key, const settings_field *field,
                         void *target)
{
    const kvt_setting *setting = base_setting_find(key, strlen(key));
    assert(setting != NULL && "the key is in the table of settings");
    if (setting->standard == NULL && !kvt_config_has(config, key)) return;
    uint64_t whole = 0;
    double number = 0;
    switch (setting->kind) {
    case KVT_SETTING_NUMBER:
    case KVT_SETTING_SECONDS:
        number = kvt_config_number(config, key);
        whole = (uint64_t)(number * 1e9);
        break;
    case KVT_SETTING_TEXT:
        whole = fields_choice(kvt_config_text(config, key), setting->choices);
        break;
    case KVT_SETTING_SWITCH: whole = kvt_config_switch(config, key) != field->negated; break;
    default: number = (double)(whole = kvt_config_bytes(config, key));
    }
    switch (field->type) {
    case SETTINGS_BOOL: *(bool *)target = whole != 0; break;
    case SETTINGS_U32:
        *(uint32_t *)target = whole < UINT32_MAX ? (uint32_t)whole : UINT32_MAX;
        break;
    case SETTINGS_U64: *(uint64_t *)target = whole; break;
    case SETTINGS_DOUBLE: *(double *)target = number; break;
    }
}

/* name stands for the "*" of settings that have one, as a device's; a table without any may have
 * NULL. Fields of other modes are passed over. */
void settings_read(kvt_config *config, const char *name, const settings_field *fields, size_t count,
                   uint32_t modes, void *options)
{
    for (size_t i = 0; i < count; i++) {
        const settings_field *field = &fields[i];
        if (field->modes != 0 && (field->modes & modes) == 0) continue;
        char key[FIELDS_KEY_BYTES];
        const char *star = strchr(field->setting, '*');
        assert(star == NULL || name != NULL);
        int head = star != NULL ? (int)(star - field->setting) : (int)strlen(field->setting);
        int length = snprintf(key, sizeof key, "%.*s%s%s", head, field->setting,
                              star != NULL ? name : "", star != NULL ? star + 1 : "");
        assert(length > 0 && (size_t)length < sizeof key);
        (void)length;
        fields_store(config, key, field, (char *)options + field->offset);
    }
}

const char *kvt_setting_range(const kvt_setting *setting, char text[64])
{
    const bool open = setting->least == DBL_MIN;
    text[0] = '\0';
    if (setting->most == INFINITY)
        (void)snprintf(text, 64, "%.10g and more", setting->least);
    else if (setting->most > 0)
        (void)snprintf(text, 64, "%s%.10g%s%.10g", open ? "above " : "", open ? 0 : setting->least,
                       open ? ", up to " : " to ", setting->most);
    return text;
}

/* NaN is out of every range. */
bool settings_hold(const settings_field *fields, size_t count, const void *options, char *message,
                   size_t message_size)
{
    for (size_t i = 0; i < count; i++) {
        const settings_field *field = &fields[i];
        const void *at = (const char *)options + field->offset;
        const kvt_setting *setting = base_setting_find(field->setting, strlen(field->setting));
        char range[64];
        if (setting == NULL || setting->most == 0) continue;
        double value = field->type == SETTINGS_DOUBLE ? *(const double *)at
                       : field->type == SETTINGS_U64  ? (double)*(const uint64_t *)at
                                                      : (double)*(const uint32_t *)at;
        if (value >= setting->least && value <= setting->most) continue;
        (void)snprintf(message, message_size, "%s: %s", field->setting,
                       kvt_setting_range(setting, range));
        return false;
    }
    return true;
}
