/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings_effect.c - whether the settings of a configuration have an effect in it.
 *
 * The condition of each setting stands in the table (settings.c). This file reads conditions, finds
 * the first setting that was given and whose condition fails, and says in a sentence why. Looking
 * marks nothing as used.
 *
 *     condition    TERM and TERM ...         "" is always met
 *     term         TEST or TEST ...
 *     test         [!] [COUNT] KEY [=VALUE|VALUE ... or !=VALUE]
 *
 * A test of a key alone asks for a value, given or the standard one, that is neither no nor 0. In a
 * key "*" is the name in the setting's own section, and "?" any section's, of which COUNT (1) must
 * pass.
 *
 * Thread rule: as config_values.h.
 */
#include "config_parse.h"
#include "config_values.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EFFECT_KEY_BYTES 96u

typedef struct effect_test {
    bool negated;  /* no value, or no section that passes */
    bool is_other; /* KEY!=VALUE */
    unsigned sections;
    char key[EFFECT_KEY_BYTES];
    const char *values; /* "a|b", or NULL */
    size_t values_length;
} effect_test;

/* The next part of a text up to a word such as " and "; NULL when there is none left. */
static const char *effect_part(const char **rest, const char *word, size_t *length_out)
{
    const char *part = *rest;
    if (part == NULL) return NULL;
    const char *end = strstr(part, word);
    *length_out = end != NULL ? (size_t)(end - part) : strlen(part);
    *rest = end != NULL ? end + strlen(word) : NULL;
    return part;
}

/* Puts a name where a key has a mark. */
static void effect_name_key(char key[EFFECT_KEY_BYTES], char mark, const char *name, size_t length)
{
    char named[EFFECT_KEY_BYTES];
    const char *at = strchr(key, mark);
    if (at == NULL) return;
    int written = snprintf(named, sizeof named, "%.*s%.*s%s", (int)(at - key), key, (int)length,
                           name, at + 1);
    assert(written > 0 && (size_t)written < sizeof named);
    memcpy(key, named, (size_t)written + 1);
}

/* Reads one test of the condition of `setting`. */
static effect_test effect_read(const char *text, size_t length, const char *setting)
{
    effect_test test = {.sections = 1};
    const char *end = text + length;
    if (*text == '!') {
        test.negated = true;
        text++;
    }
    if (*text >= '1' && *text <= '9') {
        test.sections = (unsigned)(*text - '0');
        text += 2;
    }
    const char *equals = memchr(text, '=', (size_t)(end - text));
    const char *key_end = equals != NULL ? equals : end;
    if (equals != NULL) {
        test.is_other = key_end[-1] == '!';
        key_end -= test.is_other;
        test.values = equals + 1;
        test.values_length = (size_t)(end - test.values);
    }
    const int written = snprintf(test.key, sizeof test.key, "%.*s", (int)(key_end - text), text);
    assert(written > 0 && (size_t)written < sizeof test.key);
    (void)written;
    const char *first = strchr(setting, '.'), *last = strrchr(setting, '.');
    if (first != last) effect_name_key(test.key, '*', first + 1, (size_t)(last - first - 1));
    return test;
}

/* Whether two values of a setting say the same: numbers as numbers, so that 1 is 1.0. */
static bool effect_is_same(const char *value, const char *other, size_t length)
{
    if (strlen(value) == length && memcmp(value, other, length) == 0) return true;
    char text[32], *end_a, *end_b;
    if (snprintf(text, sizeof text, "%.*s", (int)length, other) >= (int)sizeof text) return false;
    const double a = strtod(value, &end_a), b = strtod(text, &end_b);
    return end_a != value && *end_a == '\0' && end_b != text && *end_b == '\0' && a == b;
}

/* Whether a value is one of "a|b|c". value may be a list with commas, of policies that are tried,
 * or "lru+planes", a policy with a variant: one of them is enough. */
static bool effect_is_listed(const char *value, const char *values, size_t values_length)
{
    while (*value != '\0') {
        char one[EFFECT_KEY_BYTES];
        const size_t length = strcspn(value, ",");
        (void)snprintf(one, sizeof one, "%.*s", (int)strcspn(value, ",+"), value);
        for (const char *at = values; at < values + values_length;) {
            const char *bar = memchr(at, '|', (size_t)(values + values_length - at));
            const size_t span = (size_t)((bar != NULL ? bar : values + values_length) - at);
            if (effect_is_same(one, at, span)) return true;
            at += span + 1;
        }
        value += length + (value[length] == ',');
    }
    return false;
}

/* Whether a value stands for something: neither no nor 0. */
static bool effect_is_on(const kvt_setting *setting, const char *value)
{
    uint64_t whole = 0;
    double number = 0;
    bool on = false;
    switch (setting->kind) {
    case KVT_SETTING_TEXT: return true;
    case KVT_SETTING_SWITCH: return store_parse_switch(value, &on) == KVT_OK && on;
    case KVT_SETTING_SECONDS: return kvt_parse_seconds(value, &number) == KVT_OK && number != 0;
    case KVT_SETTING_NUMBER: return store_parse_number(value, &number) == KVT_OK && number != 0;
    default: break;
    }
    return (store_parse_rate(value, &whole) == KVT_OK ||
            store_parse_count(value, &whole) == KVT_OK) &&
           whole != 0;
}

static bool effect_key_passes(const kvt_config *config, const effect_test *test, const char *key)
{
    const char *value = kvt_config_peek(config, key);
    const kvt_setting *setting = base_setting_find(key, strlen(key));
    assert(setting != NULL && "a condition names settings of the table");
    if (test->values == NULL) return value != NULL && effect_is_on(setting, value);
    return (value != NULL && effect_is_listed(value, test->values, test->values_length)) !=
           test->is_other;
}

/* Whether a test is met. */
static bool effect_passes(const kvt_config *config, const effect_test *test)
{
    if (strchr(test->key, '?') == NULL)
        return effect_key_passes(config, test, test->key) != test->negated;
    char family[16], name[KVT_CONFIG_NAME_BYTES];
    unsigned passing = 0;
    (void)snprintf(family, sizeof family, "%.*s", (int)strcspn(test->key, "."), test->key);
    for (size_t i = 0; kvt_config_name_at(config, family, i, name); i++) {
        char key[EFFECT_KEY_BYTES];
        memcpy(key, test->key, sizeof key);
        effect_name_key(key, '?', name, strlen(name));
        passing += effect_key_passes(config, test, key);
    }
    return (passing >= test->sections) != test->negated;
}

/* Says why a test fails: "store.policy is utility", "no [device.NAME] has tier = ssd". */
static void effect_explain(const kvt_config *config, const effect_test *test, char *text,
                           size_t size)
{
    const char *value = strchr(test->key, '?') == NULL ? kvt_config_peek(config, test->key) : NULL;
    char wanted[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < test->values_length && used + 5 < sizeof wanted; i++) {
        const char *put = test->values[i] == '|' ? " or " : (char[]){test->values[i], '\0'};
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s", put);
    }
    if (strchr(test->key, '?') != NULL) {
        const char *field = strrchr(test->key, '.') + 1;
        const int family = (int)strcspn(test->key, ".");
        const char *what = test->values != NULL ? " = " : "";
        if (test->sections > 1)
            (void)snprintf(text, size, "fewer than %u [%.*s.NAME] have %s%s%s", test->sections,
                           family, test->key, field, what, wanted);
        else
            (void)snprintf(text, size, "%s [%.*s.NAME] has %s%s%s", test->negated ? "a" : "no",
                           family, test->key, field, what, wanted);
    } else if (value == NULL) {
        (void)snprintf(text, size, "%s is not set", test->key);
    } else if (test->values != NULL && !test->is_other) {
        (void)snprintf(text, size, "%s is %s, not %s", test->key, value, wanted);
    } else {
        (void)snprintf(text, size, "%s is %s", test->key, test->negated ? "set" : value);
    }
}

/* Whether a term is met; if not, why, when a text is asked for. */
static bool effect_term(const kvt_config *config, const char *term, size_t length,
                        const char *setting, char *text, size_t size)
{
    char tests[512];
    size_t used = 0, part_length = 0;
    const int written = snprintf(tests, sizeof tests, "%.*s", (int)length, term);
    assert(written >= 0 && (size_t)written < sizeof tests);
    (void)written;
    const char *rest = tests, *part;
    while ((part = effect_part(&rest, " or ", &part_length)) != NULL) {
        const effect_test test = effect_read(part, part_length, setting);
        char reason[256];
        if (effect_passes(config, &test)) return true;
        effect_explain(config, &test, reason, sizeof reason);
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", and " : "",
                                     reason);
    }
    return false;
}

bool kvt_config_has_effect(const kvt_config *config, const char *key, char *reason, size_t size)
{
    const kvt_setting *setting = base_setting_find(key, strlen(key));
    assert(setting != NULL && "the key is in the table of settings");
    const char *rest = setting->effect, *term;
    size_t length = 0;
    assert(rest != NULL && "the table states when a setting has an effect");
    if (*rest == '\0') return true;
    while ((term = effect_part(&rest, " and ", &length)) != NULL)
        if (!effect_term(config, term, length, key, reason, size)) return false;
    return true;
}

kvt_status kvt_config_check_effects(const kvt_config *config, char *message, size_t size)
{
    char reason[512] = "";
    const char *key;
    for (size_t i = 0; (key = kvt_config_key_at(config, i)) != NULL; i++) {
        if (kvt_config_has_effect(config, key, reason, sizeof reason)) continue;
        (void)snprintf(message, size, "%s has no effect here: %s", key, reason);
        return KVT_E_CONFIG;
    }
    return KVT_OK;
}
