/* SPDX-License-Identifier: Apache-2.0 */
/*
 * whole_file.h - files that are whole or as they were. Every writer of a file that a user named
 * goes through here. Thread rule: any thread, one per path.
 *
 * A regular file is written under another name in its folder and gets its own name when all of it
 * is there. A path that names something else (a terminal, a pipe, a device node) is written
 * directly, and nothing is ever renamed over it.
 */
#ifndef ESTIMATOR_WHOLE_FILE_H
#define ESTIMATOR_WHOLE_FILE_H

#include <kvterrace/status.h>

#include <stddef.h>
#include <stdint.h>

/* The name to write to, which whole_file_end frees: an empty file that was just made, or path
 * itself where that is no regular file. KVT_OK; KVT_E_CONFIG when it cannot be made; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status whole_file_begin(const char *path, char **partial_out, char *message,
                                          size_t message_size);

/* Gives the file its name when status is KVT_OK and removes it otherwise. Returns status, or
 * KVT_E_IO. NULL in *partial is nothing to end. */
KVT_NODISCARD kvt_status whole_file_end(char **partial, const char *path, kvt_status status,
                                        char *message, size_t message_size);

/* Both, with the bytes between them. KVT_OK; KVT_E_CONFIG; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status whole_file_write(const char *path, const void *bytes, uint64_t count,
                                          char *message, size_t message_size);

/* ---- a whole file mapped read-only, and messages that name it ---- */

/*
 * The loaders of weights, vocabularies and tensors share it. Thread rule: a mapping may be read by
 * any thread. A file that is cut short while it is mapped makes the reads fault, so files must be
 * left alone meanwhile.
 */

typedef struct model_map {
    const uint8_t *bytes;
    uint64_t size;
} model_map;

/* Maps `path`. KVT_OK; KVT_E_GONE (cannot be opened); KVT_E_CORRUPT (empty or no regular file);
 * KVT_E_IO (cannot be mapped). On failure *map_out is zero and `message` names path and reason. */
KVT_NODISCARD kvt_status model_map_open(const char *path, model_map *map_out, char *message,
                                        size_t message_size);
void model_map_close(model_map *map);

/* Writes "path: text" into message, which may be NULL; gives `status` back. */
__attribute__((format(printf, 5, 6))) kvt_status model_map_say(kvt_status status, char *message,
                                                               size_t message_size,
                                                               const char *path, const char *format,
                                                               ...);

#endif
