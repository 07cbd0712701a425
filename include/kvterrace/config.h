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

/* An empty configuration: every setting at its default. KVT_OK; KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_config_new(kvt_config **config_out);

/* Releases a configuration and every string that came from it; NULL is allowed. What was read from
 * it with kvt_store_options_read stays valid. */
KVT_API void kvt_config_free(kvt_config *config);

/* Reads an INI file on top of what is there. KVT_OK; KVT_E_GONE; KVT_E_CONFIG (message: file, line,
 * key, reason); KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_config_read(kvt_config *config, const char *path,
                                                 char *message, size_t message_size);

/* Sets one key from "key=value", as --set does. KVT_OK; KVT_E_CONFIG. */
KVT_API KVT_NODISCARD kvt_status kvt_config_set(kvt_config *config, const char *assignment,
                                                char *message, size_t message_size);

/* The next key that was set and that nothing has read, counting from index 0; NULL when none is
 * left. Callers report each as an error once everything has been opened. */
KVT_API const char *kvt_config_unused_get(const kvt_config *config, size_t index);

#ifdef __cplusplus
}
#endif

#endif
