/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_log.h - whether SQLite's write-ahead log of a catalog was damaged.
 *
 * SQLite takes the log up to the first frame that fails its checksum and forgets the rest, because
 * an unfinished write looks the same. They differ in what follows: with synchronous=FULL no frame
 * of a transaction is written before the one before it is durable, so sound frames behind a commit
 * that lies behind a bad frame were acknowledged once.
 *
 * Thread rule: while nobody writes the catalog.
 */
#ifndef STORE_CATALOG_LOG_H
#define STORE_CATALOG_LOG_H

#include <kvterrace/status.h>

#include <stdbool.h>
#include <stdint.h>

/* Looks at the log beside a catalog. bytes_out: its size, 0 when absent. Damage of the last
 * transaction cannot be told from an unfinished write. KVT_OK; KVT_E_CORRUPT; KVT_E_MEMORY;
 * KVT_E_IO. */
KVT_NODISCARD kvt_status catalog_log_check(const char *catalog_path, uint64_t *bytes_out);

#endif
