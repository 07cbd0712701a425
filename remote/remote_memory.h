/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_memory.h - an engine in the memory of this process: the back end `memory`. All clients of
 * one name share its objects, which stay until remote_memory_clear. For tests, and for a look
 * without a server.
 *
 * Thread rule: any thread.
 */
#ifndef REMOTE_REMOTE_MEMORY_H
#define REMOTE_REMOTE_MEMORY_H

#include "remote/client.h"

/* Removes the objects of a name. */
void remote_memory_clear(const char *name);

/* Objects of a name, and bytes of their values and keys. */
uint64_t remote_memory_count(const char *name, uint64_t *bytes_out);

/* Reads or replaces a value by its key, as a stranger might. peek: false when there is none; the
 * first bytes of it, *bytes_out are all. */
bool remote_memory_peek(const char *name, const char *key, void *to, size_t capacity,
                        size_t *bytes_out);
KVT_NODISCARD kvt_status remote_memory_poke(const char *name, const char *key, const void *value,
                                            size_t bytes);

/* Bytes that the values of a name may have: a PUT beyond is KVT_E_SPACE. 0: no bound. */
void remote_memory_limit(const char *name, uint64_t bytes);

#endif
