/* SPDX-License-Identifier: Apache-2.0 */
/*
 * document.h - what the JSON documents of this room share: members that fail together, numbers that
 * may be missing, the end of a document, and its lists as tables.
 *
 * Thread rule: any thread.
 */
#ifndef REPLAY_DOCUMENT_H
#define REPLAY_DOCUMENT_H

#include <kvterrace/status.h>
#include <kvterrace/types.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Takes over value; a failure anywhere makes *sound false and leaves a document to be dropped. */
void document_put(json_t *object, const char *key, json_t *value, bool *sound);
void document_add(json_t *array, json_t *value, bool *sound);

/* Null for what is no number. */
json_t *document_number(double value);

/* Null for no text, "?" for one that is not UTF-8. */
json_t *document_text(const char *text);

/* A member that is a field of a structure: null for a number that is none, or a text without
 * letters. */
typedef enum document_kind {
    DOCUMENT_REAL,    /* double */
    DOCUMENT_COUNT,   /* uint64_t */
    DOCUMENT_COUNT32, /* uint32_t */
    DOCUMENT_BOOLEAN, /* bool */
    DOCUMENT_LETTERS  /* char[] */
} document_kind;

typedef struct document_field {
    const char *key;
    size_t offset;
    document_kind kind;
} document_field;

#define DOCUMENT_KIND(value)                                                                       \
    _Generic((value),                                                                              \
        double: DOCUMENT_REAL,                                                                     \
        uint64_t: DOCUMENT_COUNT,                                                                  \
        uint32_t: DOCUMENT_COUNT32,                                                                \
        bool: DOCUMENT_BOOLEAN,                                                                    \
        char *: DOCUMENT_LETTERS)
#define DOCUMENT_FIELD(type, key, member)                                                          \
    {                                                                                              \
        key, offsetof(type, member), DOCUMENT_KIND(((type *)NULL)->member)                         \
    }

/* Puts the fields of the structure at `from`, up to one without a key. */
void document_put_fields(json_t *object, const void *from, const document_field *fields,
                         bool *sound);
#define DOCUMENT_PUT_FIELDS(object, from, sound, ...)                                              \
    document_put_fields(object, from, (const document_field[]){__VA_ARGS__, {NULL, 0, 0}}, sound)

/* A value by tier, from tier `first` on; 0 is the total. */
extern const char *const document_tier_keys[KVT_TIER_COUNT];
json_t *document_tiers(const void *by_tier, document_kind kind, int first, bool *sound);
#define DOCUMENT_TIERS(by_tier, first, sound)                                                      \
    document_tiers(by_tier, DOCUMENT_KIND((by_tier)[0]), first, sound)

/* Prints a document with so many digits of a number, and frees it. KVT_OK; KVT_E_MEMORY (it is not
 * sound); KVT_E_IO. */
KVT_NODISCARD kvt_status document_print(json_t *root, bool sound, int digits, FILE *file);

/* A list of the document in text: the keys of its columns with blanks between them, with a title
 * and '=' before a key or not. "a.b" is b of the object a, also of the document; "list:kind" are
 * the rows whose "case" is that kind, or that have such a member; "list/inner" is the
 * list of each row of another one, under what that row says in words. A list that is one object is
 * one row, and "" is the document itself. */
typedef struct document_table {
    const char *list, *columns;
} document_table;

/* Prints lists that have rows; `tables` ends with an empty one. */
void document_print_tables(json_t *root, const document_table *tables, FILE *out);

#endif
