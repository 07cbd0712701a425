/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_parser.h - the state of one reading of a module's text, which ptx_text.c and ptx_decode.c
 * share. An error leaves by longjmp to ptx_open, which closes the machine: the parser owns nothing
 * but `labels`, `fixes` and `declared`.
 */
#ifndef KVT_TESTS_SUPPORT_PTX_PARSER_H
#define KVT_TESTS_SUPPORT_PTX_PARSER_H

#include "ptx_module.h"

#include <setjmp.h>

enum {
    PTX_END = 0, /* kinds of words, beside the characters of punctuation */
    PTX_WORD = 1,
    PTX_NUMBER = 2,
    PTX_FLOAT = 3, /* 0f... or 0d... */
    PTX_STRING = 4
};

/* A word of the text. */
typedef struct ptx_word {
    int kind;
    uint32_t line, at, bytes;
    uint64_t number;
} ptx_word;

/* Registers of one declaration: name, or name0 .. name(count - 1). */
typedef struct ptx_declared {
    uint32_t name, name_bytes, count, row;
    uint8_t type;
    bool is_many;
} ptx_declared;

typedef struct ptx_label {
    ptx_word name;
    uint32_t scope, step; /* or the first of a table of targets */
    uint32_t targets;     /* of a table; 0: a label */
} ptx_label;

/* A place that names a label: a step's target, or an element of `targets`. */
typedef struct ptx_fix {
    ptx_word name;
    uint32_t scope, step, target;
    bool is_table; /* the step wants a table */
} ptx_fix;

typedef struct ptx_parser {
    ptx_machine *machine;
    const char *text;
    uint32_t bytes, at, line;
    ptx_word word; /* the next one */
    ptx_declared *declared;
    ptx_label *labels;
    ptx_fix *fixes;
    uint32_t *scopes; /* the scope around each scope of the function */
    uint32_t declared_count, label_count, fix_count, scope_count;
    uint32_t declared_room, label_room, fix_room, scope_room;
    uint32_t scope, function;
    char *error;
    jmp_buf failed;
} ptx_parser;

/* Ends the reading with a sentence about a line. */
_Noreturn void ptx_fail(ptx_parser *parser, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Room for one more element of a growing array; the element is all zeros. */
void *ptx_grow(ptx_parser *parser, void *array, uint32_t *count, uint32_t *room, size_t bytes);

/* The next word, taken; one of a kind, or an error; whether it is there, then taken. */
ptx_word ptx_take(ptx_parser *parser);
ptx_word ptx_expect(ptx_parser *parser, int kind);
bool ptx_accept(ptx_parser *parser, int kind);
bool ptx_is(const ptx_parser *parser, const ptx_word *word, const char *text);
bool ptx_same(const ptx_parser *parser, const ptx_word *a, const ptx_word *b);

/* A number with a sign, if any, cut to 64 bits. */
uint64_t ptx_integer(ptx_parser *parser);

/* A type without its dot; PTX_NO_TYPE when it is none. */
ptx_type ptx_type_named(const char *name, size_t bytes);

/* What a name means now; NULL when nothing. `index` is set to the one of name(index). */
const ptx_declared *ptx_find_register(const ptx_parser *parser, const ptx_word *name,
                                      uint32_t *index);
ptx_variable *ptx_find_variable(ptx_parser *parser, const ptx_word *name);
uint32_t ptx_find_function(ptx_parser *parser, const ptx_word *name); /* UINT32_MAX: none */

/* The row of a constant. */
int32_t ptx_constant(ptx_parser *parser, uint64_t value);

/* Decodes one instruction, whose first word is the next one, to its semicolon. */
void ptx_decode(ptx_parser *parser);

/* Whether the name belongs to a function's parameter list, a declaration or an instruction. */
void ptx_fix_label(ptx_parser *parser, const ptx_word *name, uint32_t step, uint32_t target,
                   bool is_table);

#endif
