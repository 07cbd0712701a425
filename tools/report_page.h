/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_page.h - JSON documents of this command as one HTML page that needs nothing else: words,
 * style, script and the documents themselves are inside. One thread.
 */
#ifndef TOOLS_REPORT_PAGE_H
#define TOOLS_REPORT_PAGE_H

#include "command.h"

#include <jansson.h>

/* The documents of one page: an array of {"name", "document", "verdict"}. */
typedef struct report_page {
    json_t *entries;
} report_page;

/* KVT_OK; KVT_E_MEMORY. Close in every case. */
KVT_NODISCARD kvt_status report_page_open(report_page *page);
void report_page_close(report_page *page);

/* Adds a document under a name for the reader. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status report_page_add(report_page *page, const char *name, json_t *document);

/* Writes the page to a file, whole or not at all. KVT_OK; KVT_E_CONFIG and KVT_E_IO with a message;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status report_page_save(const report_page *page, const char *path, char *message,
                                          size_t message_size);

/* The verdicts as text, or as one JSON document of the schema kvterrace-report-1. KVT_OK;
 * KVT_E_MEMORY; KVT_E_IO. */
KVT_NODISCARD kvt_status report_page_print(const report_page *page, bool json, FILE *file);

#endif
