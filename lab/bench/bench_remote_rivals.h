/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote_rivals.h - other clients of Valkey and Redis, where they are installed: libraries
 * that are loaded by name or by path, with hiredis' calls or libvalkey's.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_REMOTE_RIVALS_H
#define BENCH_BENCH_REMOTE_RIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rival_library {
    const char *name; /* of its rows */
    void *handle;
    void *(*connect)(const char *host, int port);
    void (*free_context)(void *context);
    int (*append)(void *context, int count, const char **words, const size_t *bytes);
    int (*get_reply)(void *context, void **reply);
    void (*free_reply)(void *reply);
    bool has_double; /* the reply's layout */
} rival_library;

/* hiredis, from the system. False: it is not installed. */
bool rival_open_hiredis(rival_library *out);

/* libvalkey at a path. False: it is none, or path is NULL. */
bool rival_open_libvalkey(const char *path, rival_library *out);

void rival_close(rival_library *library);

/* The bytes of a reply that is a text; NULL: it is another one. */
const char *rival_text(const rival_library *library, const void *reply, size_t *bytes_out);

/* Whether a reply is a status, as that of SET. */
bool rival_is_status(const void *reply);

#endif
