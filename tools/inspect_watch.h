/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect_watch.h - the part of kvterrace inspect that shows a running store's file.
 */
#ifndef TOOLS_INSPECT_WATCH_H
#define TOOLS_INSPECT_WATCH_H

#include "tools/command/command.h"

/* Reads the file of a store that runs: kind, written_ns, clock_ns, metrics, operations. KVT_OK with
 * the document, the caller's; the statuses of watch_read. */
KVT_NODISCARD kvt_status inspect_watch_read(const char *path, json_t **document_out, char *message,
                                            size_t message_size);

/* Prints such a document as tables; of the operations all, or the last 20. */
void inspect_watch_print(const json_t *document, bool all);

#endif
