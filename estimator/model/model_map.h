/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_map.h - a whole file mapped read-only, and messages that name it. What the loaders of
 * weights, vocabularies and tensors share. Thread rule: a mapping may be read by any thread;
 * whoever cuts the file short meanwhile makes the reads fault, so files must be left alone while
 * mapped.
 */
#ifndef ESTIMATOR_MODEL_MAP_H
#define ESTIMATOR_MODEL_MAP_H

#include <kvterrace/status.h>

#include <stddef.h>
#include <stdint.h>

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
