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
    const char *text;     /* one line of explanation with the unit */
} kvt_setting;
const kvt_setting *kvt_setting_at(size_t index);

/* Reads a value, its default when it was not set, and marks it used. The key must be in the table
 * with that kind (assert). Text lives until the next set, read or free; NULL when there is neither
 * a value nor a default. */
const char *kvt_config_text(kvt_config *config, const char *key);
uint64_t kvt_config_bytes(kvt_config *config, const char *key); /* BYTES, RATE, COUNT */
double kvt_config_number(kvt_config *config, const char *key);  /* NUMBER, SECONDS */
bool kvt_config_switch(kvt_config *config, const char *key);

/* True when the key was set by file or override. */
bool kvt_config_has(const kvt_config *config, const char *key);

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
