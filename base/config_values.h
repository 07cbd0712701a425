/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_values.h - the table of settings, and the values that a configuration gives them.
 *
 * Thread rule: one thread at a time per kvt_config; the table is constant.
 */
#ifndef BASE_CONFIG_VALUES_H
#define BASE_CONFIG_VALUES_H

#include <kvterrace/config.h>

/* The kind decides how a value is written and which reader may read it. */
typedef enum kvt_setting_kind {
    KVT_SETTING_TEXT,
    KVT_SETTING_BYTES,   /* 4096, 64KiB, 1.5GB, 125GiB */
    KVT_SETTING_RATE,    /* bytes per second: 150MB/s or 150MB */
    KVT_SETTING_SECONDS, /* 0.5, 500ms, 80us, 2h; up to 1e9 s */
    KVT_SETTING_NUMBER,  /* a finite double */
    KVT_SETTING_COUNT,   /* an unsigned integer */
    KVT_SETTING_SWITCH   /* yes/no, true/false, on/off, 1/0 */
} kvt_setting_kind;

/* The table of known settings, for help texts and documentation; NULL past the end.
 * name has "*" where a device name stands: "device.*.path". */
typedef struct kvt_setting {
    const char *name;
    kvt_setting_kind kind;
    const char *standard; /* the default as text, or NULL when there is none */
    const char *choices;  /* "a|b|c" for TEXT with fixed choices, or NULL */
    const char *effect;   /* what must be so for it to do anything, as settings_effect.c reads it;
                             "" = always */
    const char *text;     /* one line of explanation with the unit */
    double least, most;   /* in the kind's unit; most 0: any value of the kind */
} kvt_setting;
const kvt_setting *kvt_setting_at(size_t index);

/* Its range in words, "0 to 3600"; "" when it has none. */
const char *kvt_setting_range(const kvt_setting *setting, char text[64]);

/* Reads a value, its default when it was not set, and marks it used. The key must be in the table
 * with that kind (assert). Text lives until the next set, read or free; NULL when there is neither
 * a value nor a default. */
const char *kvt_config_text(kvt_config *config, const char *key);
uint64_t kvt_config_bytes(kvt_config *config, const char *key); /* BYTES, RATE, COUNT */
double kvt_config_number(kvt_config *config, const char *key);  /* NUMBER, SECONDS */
bool kvt_config_switch(kvt_config *config, const char *key);

/* True when the key was set by file or override. */
bool kvt_config_has(const kvt_config *config, const char *key);

/* A key's value, given or standard, as text; NULL when there is neither. Marks nothing as used. */
const char *kvt_config_peek(const kvt_config *config, const char *key);

/* Marks all values as unused again. For a caller before whom others have read them: only values
 * that are read from now on count as used. */
void kvt_config_forget_uses(kvt_config *config);

/* Marks what was given of a setting of the table as used, in every section that has it. */
void kvt_config_use(kvt_config *config, const char *setting);

/* Whether a file was read. */
bool kvt_config_has_file(const kvt_config *config);

/* The keys that were given, in that order; NULL past the end. */
const char *kvt_config_key_at(const kvt_config *config, size_t index);

/* Whether a key's setting has an effect beside the others; if not, why: "store.policy is utility,
 * not lru". The key must be in the table (assert). */
bool kvt_config_has_effect(const kvt_config *config, const char *key, char *reason, size_t size);

/* KVT_OK when each setting that was given has an effect, whatever reads them; KVT_E_CONFIG names
 * the first that has none. */
KVT_NODISCARD kvt_status kvt_config_check_effects(const kvt_config *config, char *message,
                                                  size_t size);

/* Has the configuration stand for several policies in turn, "lru,utility": a setting that one of
 * them obeys has an effect. NULL: store.policy alone. The text is copied. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status kvt_config_try_policies(kvt_config *config, const char *policies);

/* The file and the line that gave a key its value; false when an override did, or nothing. The path
 * lives as long as the configuration. */
bool kvt_config_place(const kvt_config *config, const char *key, const char **path_out,
                      unsigned *line_out);

/* The names of a family's sections, as [remote.NAME], in the order in which they were first given.
 * False past the end. */
#define KVT_CONFIG_NAME_BYTES 32u
bool kvt_config_name_at(const kvt_config *config, const char *family, size_t index,
                        char name[KVT_CONFIG_NAME_BYTES]);

/* Names of the device sections, in file order; NULL past the end. */
const char *kvt_config_device_at(const kvt_config *config, size_t index);

/* Parse helpers for one value; KVT_OK or KVT_E_CONFIG. */
KVT_NODISCARD kvt_status kvt_parse_bytes(const char *text, uint64_t *bytes_out);
KVT_NODISCARD kvt_status kvt_parse_seconds(const char *text, double *seconds_out);

#endif
