/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_text.c - reads a module: words, declarations of variables, registers and functions, scopes
 * and labels. Instructions are ptx_decode.c's. The text may be hostile: every number, length and
 * nesting has a bound.
 */
#include "ptx_parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_MOST = 64 << 20,
    ROWS_MOST = 1 << 16, /* registers of a function */
    VARIABLE_MOST = 4096,
    VARIABLE_BYTES = 1 << 24,
    GLOBAL_BYTES = 1 << 26, /* of all variables of the module */
    SCOPES_MOST = 1 << 16,
    GAP_BYTES = 64, /* behind a shared variable */
    FRAME_BYTES = 1 << 18,
    VERSION_MAJOR = 7
};

_Noreturn void ptx_fail(ptx_parser *parser, uint32_t line, const char *format, ...)
{
    int at = line > 0 ? snprintf(parser->error, PTX_ERROR_BYTES, "line %u: ", line) : 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(parser->error + at, PTX_ERROR_BYTES - (size_t)at, format, arguments);
    va_end(arguments);
    longjmp(parser->failed, 1);
}

void *ptx_grow(ptx_parser *parser, void *array, uint32_t *count, uint32_t *room, size_t bytes)
{
    if (*count == *room) {
        const uint32_t wanted = *room == 0 ? 64 : 2 * *room;
        void **place = array;
        void *grown = wanted > *room ? realloc(*place, wanted * bytes) : NULL;
        if (grown == NULL) ptx_fail(parser, parser->word.line, "no memory");
        *place = grown;
        *room = wanted;
    }
    void *element = (char *)*(void **)array + *count * bytes;
    memset(element, 0, bytes);
    ++*count;
    return element;
}

/* clang-format off */
static const struct { const char *name; uint8_t bits; } types[PTX_TYPES] = {
    [PTX_NO_TYPE] = {"", 0},
    [PTX_B8] = {"b8", 8}, [PTX_B16] = {"b16", 16}, [PTX_B32] = {"b32", 32}, [PTX_B64] = {"b64", 64},
    [PTX_U8] = {"u8", 8}, [PTX_U16] = {"u16", 16}, [PTX_U32] = {"u32", 32}, [PTX_U64] = {"u64", 64},
    [PTX_S8] = {"s8", 8}, [PTX_S16] = {"s16", 16}, [PTX_S32] = {"s32", 32}, [PTX_S64] = {"s64", 64},
    [PTX_F16] = {"f16", 16}, [PTX_BF16] = {"bf16", 16}, [PTX_F16X2] = {"f16x2", 32},
    [PTX_BF16X2] = {"bf16x2", 32}, [PTX_F32] = {"f32", 32}, [PTX_F64] = {"f64", 64},
    [PTX_PRED] = {"pred", 1},
};
/* clang-format on */

ptx_type ptx_type_named(const char *name, size_t bytes)
{
    for (uint32_t i = PTX_B8; i < PTX_TYPES; i++)
        if (strlen(types[i].name) == bytes && memcmp(types[i].name, name, bytes) == 0)
            return (ptx_type)i;
    return PTX_NO_TYPE;
}

uint32_t ptx_type_bits(ptx_type type)
{
    return types[type].bits;
}

bool ptx_type_is_signed(ptx_type type)
{
    return type >= PTX_S8 && type <= PTX_S64;
}

bool ptx_type_is_float(ptx_type type)
{
    return type >= PTX_F16 && type <= PTX_F64;
}

/* Words */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '%' || c == '.';
}

static void skip_blanks(ptx_parser *parser)
{
    const char *text = parser->text;
    while (parser->at < parser->bytes) {
        const char c = text[parser->at];
        const char next = parser->at + 1 < parser->bytes ? text[parser->at + 1] : 0;
        if (c == '\n') parser->line++;
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            parser->at++;
        } else if (c == '/' && next == '/') {
            while (parser->at < parser->bytes && text[parser->at] != '\n')
                parser->at++;
        } else if (c == '/' && next == '*') {
            parser->at += 2;
            while (parser->at + 1 < parser->bytes &&
                   !(text[parser->at] == '*' && text[parser->at + 1] == '/'))
                parser->line += text[parser->at++] == '\n';
            if (parser->at + 1 >= parser->bytes)
                ptx_fail(parser, parser->line, "a comment without an end");
            parser->at += 2;
        } else {
            break;
        }
    }
}

static uint32_t digit_of(char c)
{
    if (c >= '0' && c <= '9') return (uint32_t)(c - '0');
    if (c >= 'a' && c <= 'f') return (uint32_t)(c - 'a') + 10;
    if (c >= 'A' && c <= 'F') return (uint32_t)(c - 'A') + 10;
    return 99;
}

/* 12, 0x1F, 017, 0b1, each with U behind it or not; 0f and 8 digits, 0d and 16. */
static void read_number(ptx_parser *parser, ptx_word *word)
{
    const char *text = parser->text + word->at;
    const uint32_t left = parser->bytes - word->at;
    uint32_t base = 10, at = 0, digits = 0;
    word->kind = PTX_NUMBER;
    if (left > 1 && text[0] == '0') {
        const char kind = text[1];
        const bool is_float = kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D';
        if (is_float) word->kind = PTX_FLOAT;
        if (is_float || kind == 'x' || kind == 'X') base = 16;
        if (kind == 'b' || kind == 'B') base = 2;
        at = base == 10 ? 0 : 2;
        if (base == 10) base = digit_of(kind) < 10 ? 8 : 10;
    }
    for (; at < left && digit_of(text[at]) < base; at++, digits++) {
        if (word->number > (UINT64_MAX - digit_of(text[at])) / base)
            ptx_fail(parser, word->line, "a number of more than 64 bits");
        word->number = word->number * base + digit_of(text[at]);
    }
    if (word->kind == PTX_FLOAT && digits != (text[1] == 'f' || text[1] == 'F' ? 8u : 16u))
        ptx_fail(parser, word->line, "a float of %u digits", digits);
    if (digits == 0) ptx_fail(parser, word->line, "a number without digits");
    if (word->kind == PTX_NUMBER && at < left && text[at] == 'U') at++;
    if (at < left && is_name(text[at]) && text[at] != '.')
        ptx_fail(parser, word->line, "'%c' in a number", text[at]);
    word->bytes = at;
}

static void read_word(ptx_parser *parser)
{
    skip_blanks(parser);
    ptx_word *word = &parser->word;
    *word = (ptx_word){PTX_END, parser->line, parser->at, 0, 0};
    if (parser->at == parser->bytes) return;
    const char *text = parser->text;
    const char c = text[parser->at];
    uint32_t end = parser->at + 1;
    if (c >= '0' && c <= '9') {
        read_number(parser, word);
    } else if (is_name(c)) {
        word->kind = PTX_WORD;
        while (end < parser->bytes &&
               (is_name(text[end]) ||
                (text[end] == ':' && end + 1 < parser->bytes && text[end + 1] == ':' && ++end)))
            end++;
        word->bytes = end - parser->at;
    } else if (c == '"') {
        word->kind = PTX_STRING;
        while (end < parser->bytes && text[end] != '"' && text[end] != '\n')
            end++;
        if (end == parser->bytes || text[end] != '"')
            ptx_fail(parser, word->line, "a string without an end");
        word->bytes = end + 1 - parser->at;
    } else {
        if (strchr(";,:{}()[]<>@!|+-=", c) == NULL || c == 0)
            ptx_fail(parser, word->line, "a character of code %u", (unsigned char)c);
        word->kind = c;
        word->bytes = 1;
    }
    parser->at += word->bytes;
}

ptx_word ptx_take(ptx_parser *parser)
{
    const ptx_word word = parser->word;
    read_word(parser);
    return word;
}

bool ptx_accept(ptx_parser *parser, int kind)
{
    if (parser->word.kind != kind) return false;
    read_word(parser);
    return true;
}

ptx_word ptx_expect(ptx_parser *parser, int kind)
{
    static const char *const kinds[] = {"the end", "a name", "a number", "a float", "a string"};
    const ptx_word word = parser->word;
    const char wanted[2] = {(char)kind, 0};
    if (word.kind != kind)
        ptx_fail(parser, word.line, "'%.*s' where %s is expected", (int)word.bytes,
                 parser->text + word.at, kind > PTX_STRING ? wanted : kinds[kind]);
    read_word(parser);
    return word;
}

bool ptx_is(const ptx_parser *parser, const ptx_word *word, const char *text)
{
    return word->kind == PTX_WORD && strlen(text) == word->bytes &&
           memcmp(parser->text + word->at, text, word->bytes) == 0;
}

bool ptx_same(const ptx_parser *parser, const ptx_word *a, const ptx_word *b)
{
    return a->bytes == b->bytes &&
           memcmp(parser->text + a->at, parser->text + b->at, a->bytes) == 0;
}

uint64_t ptx_integer(ptx_parser *parser)
{
    const bool negative = ptx_accept(parser, '-');
    const uint64_t number = ptx_expect(parser, PTX_NUMBER).number;
    return negative ? 0 - number : number;
}

/* A number that must be within bounds. */
static uint32_t take_count(ptx_parser *parser, uint32_t least, uint32_t most)
{
    const ptx_word word = ptx_expect(parser, PTX_NUMBER);
    if (word.number < least || word.number > most)
        ptx_fail(parser, word.line, "%llu, which is not within %u and %u",
                 (unsigned long long)word.number, least, most);
    return (uint32_t)word.number;
}

static bool accept_word(ptx_parser *parser, const char *text)
{
    if (!ptx_is(parser, &parser->word, text)) return false;
    read_word(parser);
    return true;
}

static ptx_type take_type(ptx_parser *parser)
{
    const ptx_word word = ptx_expect(parser, PTX_WORD);
    const char *name = parser->text + word.at;
    const ptx_type type = name[0] == '.' ? ptx_type_named(name + 1, word.bytes - 1) : PTX_NO_TYPE;
    if (type == PTX_NO_TYPE) ptx_fail(parser, word.line, "%.*s is no type", (int)word.bytes, name);
    return type;
}

/* Names */

const ptx_declared *ptx_find_register(const ptx_parser *parser, const ptx_word *name,
                                      uint32_t *index)
{
    const char *text = parser->text + name->at;
    uint32_t digits = name->bytes;
    while (digits > 0 && text[digits - 1] >= '0' && text[digits - 1] <= '9')
        digits--;
    /* name(index) has no zeros in front */
    if (digits + 1 < name->bytes && text[digits] == '0') digits = name->bytes;
    uint64_t number = 0;
    for (uint32_t i = digits; i < name->bytes && number < ROWS_MOST; i++)
        number = number * 10 + digit_of(text[i]);
    for (uint32_t i = parser->declared_count; i-- > 0;) {
        const ptx_declared *one = &parser->declared[i];
        const uint32_t bytes = one->is_many ? digits : name->bytes;
        if (one->name_bytes != bytes || memcmp(parser->text + one->name, text, bytes) != 0)
            continue;
        if (one->is_many && (digits == name->bytes || number >= one->count)) continue;
        *index = one->is_many ? (uint32_t)number : 0;
        return one;
    }
    return NULL;
}

ptx_variable *ptx_find_variable(ptx_parser *parser, const ptx_word *name)
{
    ptx_machine *machine = parser->machine;
    for (uint32_t i = machine->variable_count; i-- > 0;) {
        ptx_variable *one = &machine->variables[i];
        if (one->is_hidden || one->name_bytes != name->bytes ||
            memcmp(one->name, parser->text + name->at, name->bytes) != 0)
            continue;
        if (one->space == PTX_SHARED && !one->is_dynamic && one->function != parser->function) {
            one->function = parser->function;
            machine->functions[parser->function].shared_bytes += (uint32_t)one->bytes;
        }
        return one;
    }
    return NULL;
}

uint32_t ptx_find_function(ptx_parser *parser, const ptx_word *name)
{
    for (uint32_t i = 0; i < parser->machine->function_count; i++) {
        const char *other = parser->machine->functions[i].name;
        if (strlen(other) == name->bytes &&
            memcmp(other, parser->text + name->at, name->bytes) == 0)
            return i;
    }
    return UINT32_MAX;
}

/* Variables */

static uint32_t align_to(uint32_t value, uint32_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

static void read_initial(ptx_parser *parser, const ptx_variable *one, ptx_type type)
{
    const uint32_t bytes = ptx_type_bits(type) / 8;
    const bool many = ptx_accept(parser, '{');
    uint64_t at = 0;
    do {
        if (at + bytes > one->bytes)
            ptx_fail(parser, parser->word.line, "more initial values than the variable has");
        const uint64_t value =
            parser->word.kind == PTX_FLOAT ? ptx_take(parser).number : ptx_integer(parser);
        memcpy((char *)one->memory + at, &value, bytes);
        at += bytes;
    } while (many && ptx_accept(parser, ','));
    if (many) ptx_expect(parser, '}');
}

/* Where a variable of a space is: its address, and memory where the machine holds it. */
static void place_variable(ptx_parser *parser, ptx_variable *one, uint32_t alignment, uint32_t line)
{
    ptx_machine *machine = parser->machine;
    ptx_function *function = &machine->functions[parser->function];
    if (one->is_dynamic) {
        one->address = PTX_DYNAMIC_SHARED;
    } else if (one->space == PTX_SHARED) {
        const uint32_t at = align_to(machine->shared_bytes, alignment);
        if (at + one->bytes + GAP_BYTES > PTX_DYNAMIC_SHARED)
            ptx_fail(parser, line, "more than 1 MiB of shared variables");
        uint8_t *gaps = realloc(machine->shared_gaps, (size_t)(at + one->bytes + GAP_BYTES));
        if (gaps == NULL) ptx_fail(parser, line, "no memory");
        machine->shared_gaps = gaps;
        memset(gaps + machine->shared_bytes, 1, at - machine->shared_bytes);
        memset(gaps + at, 0, one->bytes);
        memset(gaps + at + one->bytes, 1, GAP_BYTES);
        one->address = at;
        machine->shared_bytes = (uint32_t)(at + one->bytes + GAP_BYTES);
    } else if (one->space == PTX_LOCAL) {
        const uint32_t at = align_to(function->frame_bytes, alignment);
        if (at + one->bytes > FRAME_BYTES)
            ptx_fail(parser, line, "more than %u bytes of a thread's own", FRAME_BYTES);
        one->address = at;
        function->frame_bytes = (uint32_t)(at + one->bytes);
    } else if (one->space == PTX_PARAM) {
        const uint32_t at = align_to(function->parameter_bytes, alignment);
        if (at + one->bytes > 4096) ptx_fail(parser, line, "more than 4,096 bytes of parameters");
        one->address = at;
        function->parameter_bytes = (uint32_t)(at + one->bytes);
    } else {
        machine->global_bytes += one->bytes;
        if (machine->global_bytes > GLOBAL_BYTES)
            ptx_fail(parser, line, "more than 64 MiB of global variables");
        one->memory = calloc(1, one->bytes);
        if (one->memory != NULL)
            one->address = ptx_region_add(machine, one->memory, one->bytes,
                                          one->space == PTX_GLOBAL, one->space == PTX_CONST);
        if (one->address == 0) ptx_fail(parser, line, "no memory");
    }
}

/* [.align N] .type [.ptr [.space] .align N] name[count]...; the space's word has been taken. */
static ptx_variable *read_variable(ptx_parser *parser, ptx_space space, bool is_extern)
{
    ptx_machine *machine = parser->machine;
    if (machine->variable_count >= VARIABLE_MOST)
        ptx_fail(parser, parser->word.line, "more than %u variables", VARIABLE_MOST);
    uint32_t alignment = accept_word(parser, ".align") ? take_count(parser, 1, 128) : 0;
    const ptx_type type = take_type(parser);
    if (type == PTX_PRED) ptx_fail(parser, parser->word.line, "a predicate in memory");
    if (accept_word(parser, ".ptr")) {
        while (accept_word(parser, ".global") || accept_word(parser, ".shared") ||
               accept_word(parser, ".const") || accept_word(parser, ".local"))
            continue;
        if (accept_word(parser, ".align")) take_count(parser, 1, 1u << 20);
    }
    if (alignment == 0) alignment = ptx_type_bits(type) / 8;
    if ((alignment & (alignment - 1)) != 0)
        ptx_fail(parser, parser->word.line, "an alignment of %u", alignment);
    const ptx_word name = ptx_expect(parser, PTX_WORD);
    uint64_t bytes = ptx_type_bits(type) / 8;
    bool is_open = false;
    while (ptx_accept(parser, '[')) {
        is_open = parser->word.kind == ']';
        if (!is_open) bytes *= take_count(parser, 1, VARIABLE_BYTES);
        ptx_expect(parser, ']');
        if (bytes > VARIABLE_BYTES) ptx_fail(parser, name.line, "a variable above 16 MiB");
    }
    if ((is_open || is_extern) && !(is_open && is_extern && space == PTX_SHARED))
        ptx_fail(parser, name.line, "a variable that is not of this module");
    ptx_variable *one = ptx_grow(parser, &machine->variables, &machine->variable_count,
                                 &machine->variable_room, sizeof *one);
    *one = (ptx_variable){.name = parser->text + name.at,
                          .name_bytes = name.bytes,
                          .space = (uint8_t)space,
                          .is_dynamic = is_open,
                          .function = UINT32_MAX,
                          .bytes = bytes};
    place_variable(parser, one, alignment, name.line);
    if (ptx_accept(parser, '=')) {
        if (one->memory == NULL) ptx_fail(parser, name.line, "an initial value in this space");
        read_initial(parser, one, type);
    }
    return one;
}

/* .space ... {, ...}; true when the word was a space. */
static bool read_variables(ptx_parser *parser, bool in_function, bool is_extern)
{
    ptx_space space;
    if (accept_word(parser, ".global"))
        space = PTX_GLOBAL;
    else if (accept_word(parser, ".const"))
        space = PTX_CONST;
    else if (accept_word(parser, ".shared"))
        space = PTX_SHARED;
    else if (in_function && (accept_word(parser, ".local") || accept_word(parser, ".param")))
        space = PTX_LOCAL; /* a parameter of a call lies in the frame */
    else
        return false;
    read_variable(parser, space, is_extern);
    ptx_expect(parser, ';');
    return true;
}

/* .reg .type name<count>, name ...; */
static void read_registers(ptx_parser *parser)
{
    ptx_function *function = &parser->machine->functions[parser->function];
    const ptx_type type = take_type(parser);
    do {
        const ptx_word name = ptx_expect(parser, PTX_WORD);
        uint32_t count = 1;
        const bool is_many = ptx_accept(parser, '<');
        if (is_many) {
            count = take_count(parser, 1, ROWS_MOST);
            ptx_expect(parser, '>');
        }
        if (count > ROWS_MOST - function->rows)
            ptx_fail(parser, name.line, "more than %u registers", ROWS_MOST);
        if (parser->declared_count >= VARIABLE_MOST)
            ptx_fail(parser, name.line, "more than %u declarations", VARIABLE_MOST);
        ptx_declared *one = ptx_grow(parser, &parser->declared, &parser->declared_count,
                                     &parser->declared_room, sizeof *one);
        *one = (ptx_declared){name.at,       name.bytes, count, PTX_SPECIALS + function->rows,
                              (uint8_t)type, is_many};
        function->rows += count;
    } while (ptx_accept(parser, ','));
    ptx_expect(parser, ';');
}

/* Labels */

void ptx_fix_label(ptx_parser *parser, const ptx_word *name, uint32_t step, uint32_t target,
                   bool is_table)
{
    ptx_fix *fix =
        ptx_grow(parser, &parser->fixes, &parser->fix_count, &parser->fix_room, sizeof *fix);
    *fix = (ptx_fix){*name, parser->scope, step, target, is_table};
}

/* name: or name: .branchtargets a, b ...; */
static void read_label(ptx_parser *parser, const ptx_word *name)
{
    ptx_machine *machine = parser->machine;
    ptx_label *label =
        ptx_grow(parser, &parser->labels, &parser->label_count, &parser->label_room, sizeof *label);
    *label = (ptx_label){*name, parser->scope, machine->step_count, 0};
    for (uint32_t i = 0; i + 1 < parser->label_count; i++)
        if (parser->labels[i].scope == parser->scope &&
            ptx_same(parser, &parser->labels[i].name, name))
            ptx_fail(parser, name->line, "a second label %.*s", (int)name->bytes,
                     parser->text + name->at);
    if (parser->label_count > VARIABLE_MOST) ptx_fail(parser, name->line, "too many labels");
    if (!accept_word(parser, ".branchtargets")) return;
    label->step = machine->target_count;
    do {
        const ptx_word target = ptx_expect(parser, PTX_WORD);
        ptx_fix_label(parser, &target, UINT32_MAX, machine->target_count, false);
        ptx_grow(parser, &machine->targets, &machine->target_count, &machine->target_room,
                 sizeof *machine->targets);
        label->targets++;
    } while (ptx_accept(parser, ','));
    ptx_expect(parser, ';');
}

static void resolve_labels(ptx_parser *parser)
{
    ptx_machine *machine = parser->machine;
    for (uint32_t i = 0; i < parser->fix_count; i++) {
        const ptx_fix *fix = &parser->fixes[i];
        const ptx_label *found = NULL;
        for (uint32_t scope = fix->scope; found == NULL && scope != UINT32_MAX;
             scope = parser->scopes[scope])
            for (uint32_t k = 0; found == NULL && k < parser->label_count; k++)
                if (parser->labels[k].scope == scope &&
                    ptx_same(parser, &parser->labels[k].name, &fix->name))
                    found = &parser->labels[k];
        if (found == NULL || fix->is_table != (found->targets > 0))
            ptx_fail(parser, fix->name.line, "no label %.*s%s", (int)fix->name.bytes,
                     parser->text + fix->name.at, fix->is_table ? " of targets" : "");
        if (fix->step == UINT32_MAX) {
            machine->targets[fix->target] = found->step;
        } else {
            machine->steps[fix->step].target = found->step;
            machine->steps[fix->step].target_count = found->targets;
        }
    }
}

/* Functions */

static void enter_scope(ptx_parser *parser)
{
    if (parser->scope_count >= SCOPES_MOST) ptx_fail(parser, parser->word.line, "too many scopes");
    uint32_t *around = ptx_grow(parser, &parser->scopes, &parser->scope_count, &parser->scope_room,
                                sizeof *around);
    *around = parser->scope;
    parser->scope = parser->scope_count - 1;
}

/* .loc, .file and .pragma say nothing to a machine. */
static bool skip_remark(ptx_parser *parser)
{
    if (accept_word(parser, ".pragma")) {
        ptx_expect(parser, PTX_STRING);
        ptx_expect(parser, ';');
        return true;
    }
    const uint32_t line = parser->word.line;
    if (!accept_word(parser, ".loc") && !accept_word(parser, ".file")) return false;
    while (parser->word.line == line && parser->word.kind != PTX_END)
        ptx_take(parser);
    return true;
}

static void read_statement(ptx_parser *parser)
{
    if (skip_remark(parser) || read_variables(parser, true, false)) return;
    if (accept_word(parser, ".reg")) {
        read_registers(parser);
        return;
    }
    if (parser->word.kind == PTX_WORD) {
        const ptx_word name = parser->word;
        const uint32_t at = parser->at, line = parser->line;
        read_word(parser);
        if (ptx_accept(parser, ':')) {
            read_label(parser, &name);
            return;
        }
        parser->at = at;
        parser->line = line;
        parser->word = name;
    }
    ptx_decode(parser);
}

static void read_body(ptx_parser *parser)
{
    ptx_machine *machine = parser->machine;
    struct {
        uint32_t declared, variables;
    } outer[64];
    uint32_t depth = 0;
    const uint32_t first = machine->step_count;
    do {
        if (ptx_accept(parser, '{')) {
            if (depth == 64) ptx_fail(parser, parser->word.line, "more than 64 scopes in scopes");
            outer[depth].declared = parser->declared_count;
            outer[depth++].variables = machine->variable_count;
            enter_scope(parser);
        } else if (ptx_accept(parser, '}')) {
            depth--;
            parser->declared_count = outer[depth].declared;
            for (uint32_t i = outer[depth].variables; i < machine->variable_count; i++)
                machine->variables[i].is_hidden = true;
            parser->scope = parser->scopes[parser->scope];
        } else {
            read_statement(parser);
        }
    } while (depth > 0);
    ptx_step *last =
        ptx_grow(parser, &machine->steps, &machine->step_count, &machine->step_room, sizeof *last);
    *last = (ptx_step){.line = parser->word.line,
                       .function = parser->function,
                       .op = PTX_RET,
                       .guard = PTX_NO_ROW}; /* a body may end without one */
    resolve_labels(parser);
    machine->functions[parser->function].first = first;
    machine->functions[parser->function].steps = machine->step_count - first;
    machine->functions[parser->function].has_body = true;
}

/* ( .param ... , ... ) */
static void read_parameters(ptx_parser *parser, bool is_kernel, uint32_t *count)
{
    if (!ptx_accept(parser, '(')) return;
    while (!ptx_accept(parser, ')')) {
        ptx_function *function = &parser->machine->functions[parser->function];
        const uint32_t at = function->inputs + function->outputs;
        if (at == PTX_PARAMETERS_MAX) ptx_fail(parser, parser->word.line, "too many parameters");
        if (!accept_word(parser, ".param"))
            ptx_fail(parser, parser->word.line, "a parameter that is not .param");
        const ptx_variable *one = read_variable(parser, is_kernel ? PTX_PARAM : PTX_LOCAL, false);
        function->parameter[at] = (ptx_parameter){(uint32_t)one->address, (uint32_t)one->bytes};
        ++*count;
        if (parser->word.kind != ')') ptx_expect(parser, ',');
    }
}

static void read_limits(ptx_parser *parser, ptx_function *function)
{
    function->threads_most = 1024;
    while (parser->word.kind == PTX_WORD) {
        const bool exact = ptx_is(parser, &parser->word, ".reqntid");
        if (exact || ptx_is(parser, &parser->word, ".maxntid")) {
            uint32_t most = 1, sides[3] = {1, 1, 1};
            ptx_take(parser);
            for (uint32_t i = 0; i < 3; i++) {
                sides[i] = take_count(parser, 1, 1024);
                most *= sides[i];
                if (!ptx_accept(parser, ',')) break;
            }
            if (most < function->threads_most) function->threads_most = most;
            if (exact) memcpy(function->threads_exact, sides, sizeof sides);
        } else if (accept_word(parser, ".minnctapersm") || accept_word(parser, ".maxnreg")) {
            take_count(parser, 1, 1024);
        } else if (!accept_word(parser, ".noreturn")) {
            ptx_fail(parser, parser->word.line, "%.*s of a function", (int)parser->word.bytes,
                     parser->text + parser->word.at);
        }
    }
}

/* The function of a name; a second declaration of one without a body starts it anew. */
static void read_function(ptx_parser *parser, bool is_kernel)
{
    ptx_machine *machine = parser->machine;
    ptx_function fresh = {.is_kernel = is_kernel};
    const uint32_t variables = machine->variable_count;
    parser->declared_count = parser->label_count = parser->fix_count = parser->scope_count = 0;
    parser->scope = UINT32_MAX;
    /* The results stand before the name: read them into a function without one first. */
    ptx_grow(parser, &machine->functions, &machine->function_count, &machine->function_room,
             sizeof fresh);
    parser->function = machine->function_count - 1;
    machine->functions[parser->function] = fresh;
    machine->functions[parser->function].name = strdup("");
    if (!is_kernel) read_parameters(parser, false, &machine->functions[parser->function].outputs);
    const ptx_word name = ptx_expect(parser, PTX_WORD);
    const uint32_t before = ptx_find_function(parser, &name);
    if (before != UINT32_MAX &&
        (machine->functions[before].has_body || machine->functions[before].is_kernel != is_kernel))
        ptx_fail(parser, name.line, "a second function of this name");
    free(machine->functions[parser->function].name);
    machine->functions[parser->function].name = strndup(parser->text + name.at, name.bytes);
    if (machine->functions[parser->function].name == NULL) ptx_fail(parser, name.line, "no memory");
    read_parameters(parser, is_kernel, &machine->functions[parser->function].inputs);
    if (before != UINT32_MAX) {
        ptx_function *old = &machine->functions[before],
                     *now = &machine->functions[parser->function];
        if (old->inputs != now->inputs || old->outputs != now->outputs ||
            memcmp(old->parameter, now->parameter, sizeof old->parameter) != 0)
            ptx_fail(parser, name.line, "parameters that its declaration has not");
        free(old->name);
        *old = *now;
        machine->function_count--;
        parser->function = before;
    }
    if (machine->function_count > 1024) ptx_fail(parser, name.line, "more than 1,024 functions");
    read_limits(parser, &machine->functions[parser->function]);
    if (!ptx_accept(parser, ';')) {
        if (parser->word.kind != '{') ptx_expect(parser, '{');
        read_body(parser);
        if (is_kernel) machine->kernel_count++;
    }
    for (uint32_t i = variables; i < machine->variable_count; i++)
        machine->variables[i].is_hidden = true;
}

/* Modules */

static void read_head(ptx_parser *parser)
{
    if (!accept_word(parser, ".version"))
        ptx_fail(parser, parser->word.line, "a text that does not begin with .version");
    const ptx_word major = ptx_expect(parser, PTX_NUMBER);
    const ptx_word minor = ptx_expect(parser, PTX_WORD);
    if (major.number > VERSION_MAJOR ||
        (major.number == VERSION_MAJOR && !ptx_is(parser, &minor, ".0")))
        ptx_fail(parser, major.line, "version %llu%.*s; drivers of 450 read up to 7.0",
                 (unsigned long long)major.number, (int)minor.bytes, parser->text + minor.at);
    static const char *const architectures[] = {"sm_60", "sm_61", "sm_62", "sm_70",
                                                "sm_72", "sm_75", "sm_80"};
    bool is_known = false;
    if (!accept_word(parser, ".target")) ptx_fail(parser, parser->word.line, "no .target");
    for (uint32_t i = 0; i < 7; i++)
        is_known = is_known || accept_word(parser, architectures[i]);
    if (!is_known) ptx_fail(parser, parser->word.line, "a .target that is none up to sm_80");
    if (!accept_word(parser, ".address_size") || take_count(parser, 32, 64) != 64)
        ptx_fail(parser, parser->word.line, "no .address_size of 64");
}

static void read_module(ptx_parser *parser)
{
    parser->line = 1;
    read_word(parser);
    read_head(parser);
    while (parser->word.kind != PTX_END) {
        bool is_extern = false;
        if (skip_remark(parser)) continue;
        for (;;) {
            if (accept_word(parser, ".extern"))
                is_extern = true;
            else if (!accept_word(parser, ".visible") && !accept_word(parser, ".weak"))
                break;
        }
        if (accept_word(parser, ".entry"))
            read_function(parser, true);
        else if (accept_word(parser, ".func"))
            read_function(parser, false);
        else if (!read_variables(parser, false, is_extern))
            ptx_fail(parser, parser->word.line, "'%.*s' outside of functions",
                     (int)parser->word.bytes, parser->text + parser->word.at);
    }
    for (uint32_t i = 0; i < parser->machine->step_count; i++) {
        const ptx_step *step = &parser->machine->steps[i];
        if (step->op == PTX_CALL && !parser->machine->functions[step->target].has_body)
            ptx_fail(parser, step->line, "%s has no body",
                     parser->machine->functions[step->target].name);
    }
}

bool ptx_read(ptx_machine *machine, char *error)
{
    ptx_parser *parser = calloc(1, sizeof *parser);
    if (parser == NULL || machine->text_bytes > TEXT_MOST) {
        snprintf(error, PTX_ERROR_BYTES, parser == NULL ? "no memory" : "a text above 64 MiB");
        free(parser);
        return false;
    }
    parser->machine = machine;
    parser->text = machine->text;
    parser->bytes = (uint32_t)machine->text_bytes;
    parser->error = error;
    const bool failed = setjmp(parser->failed) != 0;
    if (!failed) read_module(parser);
    free(parser->declared);
    free(parser->labels);
    free(parser->fixes);
    free(parser->scopes);
    free(parser);
    return !failed;
}
