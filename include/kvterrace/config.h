/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - settings: an INI file and overrides, checked against one table of known keys.
 *
 * A key is "section.name", such as "tier.dram.capacity" or "device.nvme0.path"; "device.*" sections
 * carry a name of the user's choosing. An unknown key, a malformed value and a key that nothing
 * reads in the chosen mode are errors: a setting either works or is reported.
 *
 * Thread rule: one thread at a time per object.
 */
#ifndef KVTERRACE_CONFIG_H
#define KVTERRACE_CONFIG_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_config kvt_config;

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
KVT_API const kvt_setting *kvt_setting_at(size_t index);

/* An empty configuration: every setting at its default. KVT_OK; KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_config_new(kvt_config **config_out);
KVT_API void kvt_config_free(kvt_config *config);

/* Reads an INI file on top of what is there. KVT_OK; KVT_E_GONE; KVT_E_CONFIG (message: file, line,
 * key, reason); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_config_read(kvt_config *config, const char *path,
                                                 char *message, size_t message_size);

/* Sets one key from "key=value", as --set does. KVT_OK; KVT_E_CONFIG. */
KVT_API KVT_NODISCARD kvt_status kvt_config_set(kvt_config *config, const char *assignment,
                                                char *message, size_t message_size);

/* Reads a value, its default when it was not set, and marks it used. The key must be in the table
 * with that kind (assert). Text lives until the next set, read or free; NULL when there is neither
 * a value nor a default. */
KVT_API const char *kvt_config_text(kvt_config *config, const char *key);
KVT_API uint64_t kvt_config_bytes(kvt_config *config, const char *key); /* BYTES, RATE, COUNT */
KVT_API double kvt_config_number(kvt_config *config, const char *key);  /* NUMBER, SECONDS */
KVT_API bool kvt_config_switch(kvt_config *config, const char *key);

/* True when the key was set by file or override. */
KVT_API bool kvt_config_has(const kvt_config *config, const char *key);

/* Names of the device sections, in file order; NULL past the end. */
KVT_API const char *kvt_config_device_at(const kvt_config *config, size_t index);

/* The next key that was set and that nothing has read, counting from index 0; NULL when none is
 * left. Callers report each as an error once everything has been opened. */
KVT_API const char *kvt_config_unused_at(const kvt_config *config, size_t index);

/* Parse helpers for one value; KVT_OK or KVT_E_CONFIG. */
KVT_API KVT_NODISCARD kvt_status kvt_parse_bytes(const char *text, uint64_t *bytes_out);
KVT_API KVT_NODISCARD kvt_status kvt_parse_seconds(const char *text, double *seconds_out);

#ifdef __cplusplus
}
#endif

#endif
