/* SPDX-License-Identifier: Apache-2.0 */
/*
 * document.h - what the JSON documents of this room share: members that fail together, numbers that
 * may be missing, and the end of a document.
 *
 * Thread rule: any thread.
 */
#ifndef REPLAY_DOCUMENT_H
#define REPLAY_DOCUMENT_H

#include <kvterrace/status.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Takes over value; a failure anywhere makes *sound false and leaves a document to be dropped. */
void document_put(json_t *object, const char *key, json_t *value, bool *sound);
void document_add(json_t *array, json_t *value, bool *sound);

/* Null for what is no number. */
json_t *document_number(double value);

/* Null for no text. */
json_t *document_text(const char *text);

/* Prints a document with so many digits of a number, and frees it. KVT_OK; KVT_E_MEMORY (it is not
 * sound); KVT_E_IO. */
KVT_NODISCARD kvt_status document_print(json_t *root, bool sound, int digits, FILE *file);

#endif
