/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - the settings that a file and overrides gave, checked when they are given.
 *
 * A value is checked against its setting's kind the moment it is set, so reading one never fails.
 * Reading a value marks it used; kvt_config_unused_get reports the values that were not read. The
 * INI syntax is inih's; its reader callback counts the lines, because inih does not hand them to
 * the handler, and refuses lines that inih would cut in two without saying so.
 *
 * Thread rule: one thread at a time per object. This file knows no setting by name: settings.c.
 */
#include <kvterrace/config.h>

#include "config_parse.h"
#include "nearest.h"

#include <assert.h>
#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_KEY_MAX    96u
#define CONFIG_DEVICE_MAX 31u /* characters of a device name; kvt_device keeps 32 bytes */

/* A value that was given. text is the configuration's own copy and has passed its setting's
 * check. */
typedef struct config_value {
    char key[CONFIG_KEY_MAX];
    char *text;
    const kvt_setting *setting;
    uint32_t reading; /* which file gave it; 0 = an override */
    unsigned line;    /* of that file */
    bool used;
} config_value;

/* The name of a [device.NAME] section; the devices are listed in the order of the file. */
typedef struct config_device {
    char name[CONFIG_DEVICE_MAX + 1];
} config_device;

/* Values and devices are in the order in which they were first given. readings counts the files, so
 * that a key that stands twice in one file is told from one that a later file overrides. */
struct kvt_config {
    config_value *values;
    size_t value_count, value_capacity;
    config_device *devices;
    size_t device_count, device_capacity;
    char **paths; /* of the files: of reading 1 first */
    size_t path_capacity;
    uint32_t readings;
    char *policies; /* that are tried in place of store.policy, or NULL */
};

/* One file on its way through inih. The first fault is kept. */
typedef struct config_reading {
    kvt_config *config;
    FILE *file;
    unsigned line;
    unsigned fault_line;
    kvt_status status;
    char reason[448];
} config_reading;

/* Writes a message into the caller's buffer, cut off at its size. A size of 0 asks for none. */
__attribute__((format(printf, 3, 4))) static void config_say(char *message, size_t size,
                                                             const char *format, ...)
{
    if (size == 0) return;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, size, format, arguments);
    va_end(arguments);
}

#define CONFIG_QUOTE_CHARACTERS 60u
#define CONFIG_QUOTE_BYTES      (4u * CONFIG_QUOTE_CHARACTERS + 4u)

/* Quotes a user's text for a message on a terminal: the head of the text, with every byte that is
 * not printable ASCII as \xNN, so that no text controls the terminal. Returns quoted. */
static const char *config_quote(const char *text, size_t length, char quoted[CONFIG_QUOTE_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    size_t used = 0;
    for (size_t i = 0; i < length && i < CONFIG_QUOTE_CHARACTERS; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= ' ' && c < 0x7f) {
            quoted[used++] = (char)c;
            continue;
        }
        quoted[used++] = '\\';
        quoted[used++] = 'x';
        quoted[used++] = digits[c >> 4];
        quoted[used++] = digits[c & 15];
    }
    if (length > CONFIG_QUOTE_CHARACTERS) {
        memcpy(quoted + used, "...", 3);
        used += 3;
    }
    quoted[used] = '\0';
    return quoted;
}

/* Whether the key is the setting's name, "*" standing for one device name. A device's name holds no
 * dot, so the parts of a key are not confused. */
static bool config_key_matches(const char *name, const char *key, size_t length)
{
    const char *star = strchr(name, '*');
    if (!star) return strlen(name) == length && memcmp(name, key, length) == 0;
    size_t head = (size_t)(star - name);
    size_t tail = strlen(star + 1);
    if (length <= head + tail || memcmp(name, key, head) != 0) return false;
    if (memcmp(star + 1, key + length - tail, tail) != 0) return false;
    return memchr(key + head, '.', length - head - tail) == NULL;
}

/* A walk over the table: a configuration has a hundred keys and is read once. */
const kvt_setting *base_setting_find(const char *key, size_t length)
{
    const kvt_setting *setting;
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        if (config_key_matches(setting->name, key, length)) return setting;
    }
    return NULL;
}

/* The value of a key, or NULL when it was not given. A configuration of NULL has no values, so
 * every setting has its default. */
static config_value *config_find_value(const kvt_config *config, const char *key)
{
    for (size_t i = 0; config != NULL && i < config->value_count; i++) {
        if (strcmp(config->values[i].key, key) == 0) return &config->values[i];
    }
    return NULL;
}

/* Makes room for one more item; the array doubles. On failure array and capacity are as they
 * were. */
static kvt_status config_grow(void **items, size_t count, size_t *capacity, size_t item_bytes)
{
    if (count < *capacity) return KVT_OK;
    size_t wanted = *capacity ? *capacity * 2 : 16;
    void *grown = realloc(*items, wanted * item_bytes);
    if (!grown) return KVT_E_MEMORY;
    *items = grown;
    *capacity = wanted;
    return KVT_OK;
}

/* Notes the device that "device.NAME.key" speaks of; other keys pass. A device that is known
 * already is not listed twice. */
static kvt_status config_note_device(kvt_config *config, const char *key, char *message,
                                     size_t size)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    const char prefix[] = "device.", other[] = "remote.";
    const bool is_device = strncmp(key, prefix, sizeof prefix - 1) == 0;
    if (!is_device && strncmp(key, other, sizeof other - 1) != 0) return KVT_OK;
    const char *name = key + sizeof prefix - 1; /* both prefixes are of one length */
    size_t length = (size_t)(strrchr(key, '.') - name);
    if (length == 0 || length > CONFIG_DEVICE_MAX || strspn(name, letters) < length) {
        config_say(message, size, "%s: a %s name has 1 to %u letters, digits, '-' or '_'", key,
                   is_device ? "device" : "section's", CONFIG_DEVICE_MAX);
        return KVT_E_CONFIG;
    }
    if (!is_device) return KVT_OK;
    for (size_t i = 0; i < config->device_count; i++) {
        const char *known = config->devices[i].name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) return KVT_OK;
    }
    kvt_status status = config_grow((void **)&config->devices, config->device_count,
                                    &config->device_capacity, sizeof *config->devices);
    if (status != KVT_OK) return status;
    config_device *device = &config->devices[config->device_count];
    memset(device, 0, sizeof *device);
    memcpy(device->name, name, length);
    config->device_count++;
    return KVT_OK;
}

/* Puts "; did you mean '...'?" behind a message, when a name was near. The message stays whole when
 * there is no room behind it. */
static void config_suggest(const nearest *search, char *message, size_t size)
{
    if (search->best == NULL || size == 0) return;
    const size_t used = strlen(message);
    config_say(message + used, size - used, "; did you mean '%.*s'?", (int)nearest_span(search),
               search->best);
}

/* Says behind the message of a refused value what was probably meant. */
static void config_hint(const kvt_setting *setting, const char *text, char *message, size_t size)
{
    nearest search = {.text = text, .length = strlen(text)};
    const size_t used = size > 0 ? strlen(message) : 0;
    const char *hint = "";
    if (setting->kind == KVT_SETTING_NUMBER && search.length > 0 && text[search.length - 1] == '%')
        hint = "; '%' stands behind a share alone";
    if (text[0] == '"' || text[0] == '\'') hint = "; quotes are part of a value: leave them out";
    if (strstr(text, " #") != NULL) hint = "; a comment behind a value begins with ';'";
    if (setting->choices) nearest_offer_list(&search, setting->choices);
    if (setting->kind == KVT_SETTING_SWITCH)
        nearest_offer_list(&search, "yes|no|true|false|on|off");
    config_say(message + used, size - used, "%s", hint);
    config_suggest(&search, message, size);
}

/* Puts the nearest of the known keys behind the message of one that no setting has, or the nearest
 * section. A name with a "*" is offered with the user's device name in it, so that it can be
 * copied. */
static void config_suggest_name(const char *text, size_t length, bool section, char *message,
                                size_t size)
{
    char names[2][CONFIG_KEY_MAX] = {{0}};
    nearest search = {.text = text, .length = length};
    const kvt_setting *setting;
    const char *last = text + length + 1; /* of a section: where its keys would begin */
    while (!section && last > text && last[-1] != '.')
        last--;
    for (size_t i = 0; length < CONFIG_KEY_MAX && (setting = kvt_setting_at(i)) != NULL; i++) {
        const char *star = strchr(setting->name, '*'), *dot = strrchr(setting->name, '.');
        const char *end = star ? star : section ? dot : setting->name + strlen(setting->name);
        const size_t head = (size_t)(end - setting->name);
        if (star && last <= text + head + 1) continue;
        char *name = names[search.best == names[0]]; /* the spare one; the best one is kept */
        (void)snprintf(name, CONFIG_KEY_MAX, "%.*s%.*s%s", (int)head, setting->name,
                       star ? (int)((size_t)(last - text) - head - 1) : 0, star ? text + head : "",
                       star && !section ? star + 1 : "");
        nearest_offer(&search, name);
    }
    config_suggest(&search, message, size);
}

/* Checks and stores one value. All allocations come before the first change, so a failure leaves
 * the configuration as it was. An override (no reading) replaces whatever was there; a file may not
 * set a key twice. */
static kvt_status config_store(kvt_config *config, const char *key, size_t key_length,
                               const char *text, const config_reading *reading, char *message,
                               size_t size)
{
    char quoted[CONFIG_QUOTE_BYTES];
    const kvt_setting *setting =
        key_length < CONFIG_KEY_MAX ? base_setting_find(key, key_length) : NULL;
    if (!setting) {
        config_say(message, size, "%s: unknown setting", config_quote(key, key_length, quoted));
        config_suggest_name(key, key_length, false, message, size);
        return KVT_E_CONFIG;
    }
    char name[CONFIG_KEY_MAX] = {0};
    memcpy(name, key, key_length);
    const char *reason = NULL;
    kvt_status status = store_check_value(setting, text, &reason);
    if (status != KVT_OK) {
        config_say(message, size, "%s: '%s' is not %s%s", name,
                   config_quote(text, strlen(text), quoted), setting->choices ? "one of " : "",
                   reason);
        config_hint(setting, text, message, size);
        return status;
    }
    config_value *value = config_find_value(config, name);
    if (value && reading != NULL && value->reading == config->readings) {
        config_say(message, size, "%s: set twice in this file", name);
        return KVT_E_CONFIG;
    }
    char *copy = strdup(text);
    if (!copy) return KVT_E_MEMORY;
    status = config_grow((void **)&config->values, config->value_count, &config->value_capacity,
                         sizeof *config->values);
    if (status == KVT_OK) status = config_note_device(config, name, message, size);
    if (status != KVT_OK) {
        free(copy);
        return status;
    }
    value = config_find_value(config, name);
    if (!value) {
        value = &config->values[config->value_count++];
        *value = (config_value){.setting = setting};
        memcpy(value->key, name, sizeof name);
    }
    free(value->text);
    value->text = copy;
    value->reading = reading != NULL ? config->readings : 0;
    value->line = reading != NULL ? reading->line : 0;
    value->used = false;
    return KVT_OK;
}

/* An empty configuration: every setting has its default. */
kvt_status kvt_config_new(kvt_config **config_out)
{
    *config_out = calloc(1, sizeof **config_out);
    return *config_out ? KVT_OK : KVT_E_MEMORY;
}

/* Texts that were handed out are gone then. */
void kvt_config_free(kvt_config *config)
{
    if (!config) return;
    for (size_t i = 0; i < config->value_count; i++)
        free(config->values[i].text);
    for (uint32_t i = 0; i < config->readings; i++)
        free(config->paths[i]);
    free((void *)config->paths);
    free(config->values);
    free(config->devices);
    free(config->policies);
    free(config);
}

/* Blanks around the key and before the value are dropped; blanks inside the value are the
 * value's. */
kvt_status kvt_config_set(kvt_config *config, const char *assignment, char *message,
                          size_t message_size)
{
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment) {
        char quoted[CONFIG_QUOTE_BYTES];
        config_say(message, message_size, "%s: expected key=value",
                   config_quote(assignment, strlen(assignment), quoted));
        return KVT_E_CONFIG;
    }
    size_t length = (size_t)(equals - assignment);
    while (length > 0 && assignment[length - 1] == ' ')
        length--;
    const char *text = equals + 1;
    while (*text == ' ')
        text++;
    kvt_status status = config_store(config, assignment, length, text, NULL, message, message_size);
    if (status == KVT_E_MEMORY) config_say(message, message_size, "%s", kvt_status_text(status));
    return status;
}

/* Keeps the first fault of a reading, with its line. Later faults are consequences, as a rule, and
 * say nothing new. */
static void config_fail(config_reading *reading, kvt_status status, const char *reason)
{
    if (reading->status != KVT_OK) return;
    reading->status = status;
    reading->fault_line = reading->line;
    if (reason != reading->reason)
        config_say(reading->reason, sizeof reading->reason, "%s", reason);
}

/* A section is known when some setting's name starts with it. Reported at the section's own line,
 * so that an empty unknown section is an error too. The rest of a line behind "]" is for inih to
 * judge. */
static void config_check_section(config_reading *reading, const char *line)
{
    const char *end = strchr(line, ']');
    if (!end) return; /* inih reports it */
    char probe[CONFIG_KEY_MAX];
    size_t length = (size_t)(end - line - 1);
    bool known = false;
    const kvt_setting *setting;
    for (size_t i = 0; !known && (setting = kvt_setting_at(i)) != NULL; i++) {
        const char *name = strrchr(setting->name, '.');
        int written = snprintf(probe, sizeof probe, "%.*s%s", (int)length, line + 1, name);
        known = written > 0 && (size_t)written < sizeof probe &&
                config_key_matches(setting->name, probe, (size_t)written);
    }
    if (known) return;
    char quoted[CONFIG_QUOTE_BYTES];
    config_say(reading->reason, sizeof reading->reason, "[%s]: unknown section",
               config_quote(line + 1, length, quoted));
    for (size_t i = 0; (setting = kvt_setting_at(i)) != NULL; i++) {
        const char *star = strchr(setting->name, '*');
        if (star != setting->name + length + 1 || memcmp(setting->name, line + 1, length) != 0)
            continue;
        config_say(reading->reason, sizeof reading->reason,
                   "[%.*s]: unknown section; each has a name, as [%.*s.NAME]", (int)length,
                   line + 1, (int)length, line + 1);
        config_fail(reading, KVT_E_CONFIG, reading->reason);
        return;
    }
    config_suggest_name(line + 1, length, true, reading->reason, sizeof reading->reason);
    config_fail(reading, KVT_E_CONFIG, reading->reason);
}

/* inih's line source. Blanks in front are dropped: inih would read such a line as the continuation
 * of the one before. Returning NULL ends the parse. A zero byte or a line that is too long ends the
 * parse with its own message. */
static char *config_read_line(char *target, int size, void *stream)
{
    config_reading *reading = stream;
    if (reading->status != KVT_OK) return NULL;
    int used = 0;
    int c = 0;
    reading->line++;
    while ((c = getc(reading->file)) != EOF && c != '\n') {
        if (used == 0 && (c == ' ' || c == '\t')) continue;
        if (c == '\0' || used + 2 >= size) {
            config_fail(reading, KVT_E_CONFIG,
                        c == '\0' ? "the line holds a zero byte, as text in UTF-16 does: save it "
                                    "as UTF-8"
                                  : "the line is too long");
            return NULL;
        }
        target[used++] = (char)c;
    }
    target[used] = '\0';
    if (used > 0 && strchr(target, '\r') != NULL && strchr(target, '\r') != target + used - 1) {
        config_fail(reading, KVT_E_CONFIG,
                    "the line holds a carriage return: lines end with a newline");
        return NULL;
    }
    if (c == EOF && used == 0) return NULL;
    target[used] = '\n';
    target[used + 1] = '\0';
    if (target[0] == '[') config_check_section(reading, target);
    return target;
}

/* inih's handler: returns 0 to stop. Section and name together are the key. */
static int config_take_line(void *user, const char *section, const char *name, const char *value)
{
    config_reading *reading = user;
    if (reading->status != KVT_OK) return 0;
    char key[2 * CONFIG_KEY_MAX];
    if (section[0] == '\0') {
        char quoted[CONFIG_QUOTE_BYTES];
        config_say(reading->reason, sizeof reading->reason,
                   "'%s' stands before any [section]; a file of settings begins with one, such as "
                   "[tier.dram]",
                   config_quote(name, strlen(name), quoted));
        config_fail(reading, KVT_E_CONFIG, reading->reason);
        return 0;
    }
    int length = snprintf(key, sizeof key, "%s.%s", section, name);
    if (length < 0 || (size_t)length >= sizeof key) length = (int)sizeof key - 1;
    kvt_status status = config_store(reading->config, key, (size_t)length, value, reading,
                                     reading->reason, sizeof reading->reason);
    if (status != KVT_OK) {
        config_fail(reading, status,
                    status == KVT_E_MEMORY ? kvt_status_text(status) : reading->reason);
    }
    return status == KVT_OK;
}

/* Values that were stored before a fault stay, because a caller that goes on after an error gives
 * the configuration up. */
kvt_status kvt_config_read(kvt_config *config, const char *path, char *message, size_t message_size)
{
    config_reading reading = {.config = config, .file = fopen(path, "re")};
    if (!reading.file) {
        config_say(message, message_size, "%s: %m", path);
        return errno == ENOENT ? KVT_E_GONE : KVT_E_CONFIG;
    }
    reading.status = config_grow((void **)&config->paths, config->readings, &config->path_capacity,
                                 sizeof *config->paths);
    if (reading.status == KVT_OK && (config->paths[config->readings] = strdup(path)) == NULL)
        reading.status = KVT_E_MEMORY;
    if (reading.status != KVT_OK) {
        (void)fclose(reading.file);
        config_say(message, message_size, "%s: %s", path, kvt_status_text(reading.status));
        return reading.status;
    }
    config->readings++;
    int first_fault = ini_parse_stream(config_read_line, &reading, config_take_line, &reading);
    if (ferror(reading.file)) {
        struct stat facts; /* fopen takes a folder; reading from it fails */
        const bool folder = stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
        config_fail(&reading, KVT_E_CONFIG,
                    folder ? "this is a folder" : "the file cannot be read");
    } else if (first_fault > 0 &&
               (reading.status == KVT_OK || (unsigned)first_fault < reading.fault_line)) {
        /* inih carries on behind a line that it cannot read; the earlier fault is the one to say.
         */
        reading.status = KVT_E_CONFIG;
        reading.fault_line = (unsigned)first_fault;
        config_say(reading.reason, sizeof reading.reason, "expected [section] or key = value");
    } else if (first_fault < 0) {
        config_fail(&reading, KVT_E_MEMORY, kvt_status_text(KVT_E_MEMORY));
    }
    (void)fclose(reading.file);
    if (reading.status != KVT_OK) {
        config_say(message, message_size, "%s:%u: %s", path, reading.fault_line, reading.reason);
    }
    return reading.status;
}

bool kvt_config_place(const kvt_config *config, const char *key, const char **path_out,
                      unsigned *line_out)
{
    const config_value *value = config_find_value(config, key);
    if (value == NULL || value->reading == 0) return false;
    *path_out = config->paths[value->reading - 1];
    *line_out = value->line;
    return true;
}

/* The text of a setting for the typed readers below, and its kind's check. kinds is a mask of the
 * kinds that the reader stands for. NULL: there is neither a value nor a default. */
static const char *config_use(kvt_config *config, const char *key, unsigned kinds)
{
    config_value *value = config_find_value(config, key);
    const kvt_setting *setting = value ? value->setting : base_setting_find(key, strlen(key));
    assert(setting && "the key is in the table of settings");
    assert((kinds & (1u << setting->kind)) != 0 && "the key is read as what it is");
    (void)kinds;
    if (!value) return setting ? setting->standard : NULL;
    value->used = true;
    return value->text;
}

const char *kvt_config_text(kvt_config *config, const char *key)
{
    return config_use(config, key, 1u << KVT_SETTING_TEXT);
}

/* The value has been checked, so parsing it again cannot fail. */
uint64_t kvt_config_bytes(kvt_config *config, const char *key)
{
    const char *text = config_use(
        config, key, 1u << KVT_SETTING_BYTES | 1u << KVT_SETTING_RATE | 1u << KVT_SETTING_COUNT);
    const kvt_setting *setting = base_setting_find(key, strlen(key));
    uint64_t bytes = 0;
    if (!text || !setting) return 0;
    /* A thousand of a count is 1000, of bytes 1024. */
    kvt_status status = setting->kind == KVT_SETTING_COUNT ? store_parse_count(text, &bytes)
                                                           : store_parse_rate(text, &bytes);
    assert(status == KVT_OK);
    return status == KVT_OK ? bytes : 0;
}

/* A time is read in seconds whatever its unit. */
double kvt_config_number(kvt_config *config, const char *key)
{
    const char *text =
        config_use(config, key, 1u << KVT_SETTING_NUMBER | 1u << KVT_SETTING_SECONDS);
    double number = 0;
    if (!text) return 0;
    kvt_status status = store_parse_number(text, &number);
    if (status != KVT_OK) status = kvt_parse_seconds(text, &number);
    assert(status == KVT_OK);
    return status == KVT_OK ? number : 0;
}

bool kvt_config_switch(kvt_config *config, const char *key)
{
    const char *text = config_use(config, key, 1u << KVT_SETTING_SWITCH);
    bool on = false;
    if (!text) return false;
    kvt_status status = store_parse_switch(text, &on);
    assert(status == KVT_OK);
    return status == KVT_OK && on;
}

bool kvt_config_has(const kvt_config *config, const char *key)
{
    return config_find_value(config, key) != NULL;
}

const char *kvt_config_device_at(const kvt_config *config, size_t index)
{
    return index < config->device_count ? config->devices[index].name : NULL;
}

/* The length of NAME in a key of a family, such as "remote.NAME.address"; 0: another family. */
static size_t config_name_in(const char *key, const char *family, const char **name_out)
{
    const size_t head = strlen(family);
    if (strncmp(key, family, head) != 0 || key[head] != '.') return 0;
    *name_out = key + head + 1;
    return (size_t)(strrchr(key, '.') - *name_out);
}

bool kvt_config_name_at(const kvt_config *config, const char *family, size_t index,
                        char name[KVT_CONFIG_NAME_BYTES])
{
    const char *found, *other;
    for (size_t i = 0; i < config->value_count; i++) {
        const size_t length = config_name_in(config->values[i].key, family, &found);
        bool is_new = length > 0 && length < KVT_CONFIG_NAME_BYTES;
        for (size_t j = 0; j < i && is_new; j++)
            is_new = config_name_in(config->values[j].key, family, &other) != length ||
                     memcmp(found, other, length) != 0;
        if (!is_new) continue;
        if (index-- != 0) continue;
        memcpy(name, found, length);
        name[length] = '\0';
        return true;
    }
    return false;
}

void kvt_config_forget_uses(kvt_config *config)
{
    for (size_t i = 0; i < config->value_count; i++)
        config->values[i].used = false;
}

void kvt_config_use(kvt_config *config, const char *setting)
{
    for (size_t i = 0; i < config->value_count; i++)
        if (strcmp(config->values[i].setting->name, setting) == 0) config->values[i].used = true;
}

bool kvt_config_has_file(const kvt_config *config)
{
    return config->readings > 0;
}

const char *kvt_config_key_at(const kvt_config *config, size_t index)
{
    return index < config->value_count ? config->values[index].key : NULL;
}

const char *kvt_config_peek(const kvt_config *config, const char *key)
{
    const config_value *value = config_find_value(config, key);
    const kvt_setting *setting = base_setting_find(key, strlen(key));
    assert(setting != NULL && "the key is in the table of settings");
    if (config->policies != NULL && strcmp(key, "store.policy") == 0) return config->policies;
    return value != NULL ? value->text : setting->standard;
}

kvt_status kvt_config_try_policies(kvt_config *config, const char *policies)
{
    char *copy = policies != NULL ? strdup(policies) : NULL;
    if (policies != NULL && copy == NULL) return KVT_E_MEMORY;
    free(config->policies);
    config->policies = copy;
    return KVT_OK;
}

/* Its caller reports them: a setting that nothing reads is a mistake of the user. */
const char *kvt_config_unused_get(const kvt_config *config, size_t index)
{
    for (size_t i = 0; i < config->value_count; i++) {
        if (config->values[i].used) continue;
        if (index == 0) return config->values[i].key;
        index--;
    }
    return NULL;
}
