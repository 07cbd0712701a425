/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_guard.h - keeps the server alive when memory of a client is not there: a hole in huge
 * pages gives its reservation back, and the next access finds none in the pool, which is SIGBUS.
 * The handler puts a private page of zeros there and rings the bell of the session, which ends.
 *
 * A signal elsewhere goes to the handler that was there before, or ends the process as without one.
 *
 * Thread rule: any thread; one table for all servers of the process.
 */
#ifndef SERVE_SERVER_REGION_GUARD_H
#define SERVE_SERVER_REGION_GUARD_H

#include <kvterrace/status.h>
#include <stdint.h>

/* Installs the handler where another one, or none, is installed. KVT_OK; KVT_E_IO. */
KVT_NODISCARD kvt_status server_guard_install(void);

/* Guards a mapping. `page_bytes` is what of it can be mapped alone; the bell is an eventfd that
 * stays open until server_guard_remove. KVT_OK; KVT_E_MEMORY (as many are guarded as can be). */
KVT_NODISCARD kvt_status server_guard_add(const void *address, uint64_t bytes, uint64_t page_bytes,
                                          int bell);

/* Ends it, before the mapping ends. */
void server_guard_remove(const void *address);

#endif
