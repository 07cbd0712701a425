/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_file.h - a text that a user named, read whole, and what a file is that is none.
 * Thread rule: any thread.
 */
#ifndef EXCHANGE_TEXT_FILE_H
#define EXCHANGE_TEXT_FILE_H

#include <kvterrace/status.h>

#include <stddef.h>

typedef struct text_file {
    char path[4096]; /* as it was opened */
    char *bytes;
    size_t size;
} text_file;

/* Reads `path`, or `path`.zst when there is no `path`; what ends in .zst is unpacked. KVT_OK;
 * KVT_E_GONE (neither can be opened); KVT_E_PARSE (damaged, no text, or larger than 64 MiB
 * unpacked); KVT_E_IO; KVT_E_MEMORY. On failure nothing is to be freed and `message`, which may be
 * NULL, says why. */
KVT_NODISCARD kvt_status text_file_read(text_file *file, const char *path, char *message,
                                        size_t message_size);
void text_file_free(text_file *file);

#endif
