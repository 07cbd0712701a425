/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_decode.c - the table of instructions, and the reading of one: its word against the table,
 * then its operands against the row's letters.
 *
 * The words behind an instruction's name, one letter or literal each:
 *
 *     T U  a type of the row's `types`, of its `more`    C  a comparison   J  and, or, xor of setp
 *     S    a space, or none: generic                       K  cache hints, any number
 *     O    volatile, relaxed ..., or nothing               R  a rounding of cvt, or none
 *     M    an operation of atom, red, redux                V  v2, v4, or nothing
 *     ?x   the literal x, or nothing                       x  the literal x
 *
 * Its operands, one letter each:
 *
 *     d e D  a register for a T; at least as wide as T; twice as wide         a w W  a source alike
 *     y u    a register, a source of 32 bits                                  x X    a source of U;
 *     p q    a predicate; one behind a bar, or none                              at least as wide
 *     s      a predicate source, which ! may turn round                       m      [memory]
 *     v V    registers, sources as V says, at least as wide as T              L      a label
 *     ?      what follows may be absent
 */
#include "ptx_parser.h"

#include <stdio.h>
#include <string.h>

#define OF(type) (1u << (type))
#define BITS16   (OF(PTX_B16) | OF(PTX_U16) | OF(PTX_S16))
#define BITS32   (OF(PTX_B32) | OF(PTX_U32) | OF(PTX_S32))
#define BITS64   (OF(PTX_B64) | OF(PTX_U64) | OF(PTX_S64))
#define BITS8    (OF(PTX_B8) | OF(PTX_U8) | OF(PTX_S8))
#define PLAIN    (OF(PTX_B16) | OF(PTX_B32) | OF(PTX_B64))
#define WORDS    (OF(PTX_B32) | OF(PTX_B64))
#define SIGNED   (OF(PTX_S16) | OF(PTX_S32) | OF(PTX_S64))
#define NUMBERS  (SIGNED | OF(PTX_U16) | OF(PTX_U32) | OF(PTX_U64))
#define LONGS    (OF(PTX_S32) | OF(PTX_S64) | OF(PTX_U32) | OF(PTX_U64))
#define NARROWS  (OF(PTX_S16) | OF(PTX_S32) | OF(PTX_U16) | OF(PTX_U32))
#define HALVES   (OF(PTX_F16) | OF(PTX_F16X2))
#define BRAINS   (OF(PTX_BF16) | OF(PTX_BF16X2))
#define FLOATS   (OF(PTX_F32) | OF(PTX_F64))
#define ANY16    (BITS16 | OF(PTX_F16) | OF(PTX_BF16))
#define ANY32    (BITS32 | OF(PTX_F32) | OF(PTX_F16X2) | OF(PTX_BF16X2))
#define ANY      (BITS8 | BITS16 | BITS32 | BITS64 | FLOATS)
#define CVT_ANY  (NUMBERS | OF(PTX_U8) | OF(PTX_S8) | FLOATS | OF(PTX_F16))
#define PRED     OF(PTX_PRED)
#define U32      OF(PTX_U32)
#define S32      OF(PTX_S32)
#define B32      OF(PTX_B32)
#define B64      OF(PTX_B64)
#define F32      OF(PTX_F32)

typedef struct instruction {
    const char *name, *words, *operands;
    uint8_t op, mode;
    uint16_t flags;
    uint32_t types, more;
} instruction;

/* clang-format off */
static const instruction instructions[] = {
    {"add", "T", "daa", PTX_ADD, 0, 0, NUMBERS, 0},
    {"add", "sat T", "daa", PTX_ADD, 0, PTX_SAT, S32, 0},
    {"sub", "T", "daa", PTX_SUB, 0, 0, NUMBERS, 0},
    {"sub", "sat T", "daa", PTX_SUB, 0, PTX_SAT, S32, 0},
    {"add", "cc T", "daa", PTX_CARRY, 0, PTX_CARRY_OUT, LONGS, 0},
    {"addc", "T", "daa", PTX_CARRY, 0, PTX_CARRY_IN, LONGS, 0},
    {"addc", "cc T", "daa", PTX_CARRY, 0, PTX_CARRY_IN | PTX_CARRY_OUT, LONGS, 0},
    {"sub", "cc T", "daa", PTX_CARRY, 0, PTX_CARRY_OUT | PTX_SUBTRACT, LONGS, 0},
    {"subc", "T", "daa", PTX_CARRY, 0, PTX_CARRY_IN | PTX_SUBTRACT, LONGS, 0},
    {"subc", "cc T", "daa", PTX_CARRY, 0, PTX_CARRY_IN | PTX_CARRY_OUT | PTX_SUBTRACT, LONGS, 0},
    {"mul", "lo T", "daa", PTX_MUL_LO, 0, 0, NUMBERS, 0},
    {"mul", "hi T", "daa", PTX_MUL_HI, 0, 0, NUMBERS, 0},
    {"mul", "wide T", "Daa", PTX_MUL_WIDE, 0, 0, NARROWS, 0},
    {"mad", "lo T", "daaa", PTX_MAD_LO, 0, 0, NUMBERS, 0},
    {"mad", "hi T", "daaa", PTX_MAD_HI, 0, 0, NUMBERS, 0},
    {"mad", "wide T", "DaaW", PTX_MAD_WIDE, 0, 0, NARROWS, 0},
    {"sad", "T", "daaa", PTX_SAD, 0, 0, NUMBERS, 0},
    {"div", "T", "daa", PTX_DIV, 0, 0, NUMBERS, 0},
    {"rem", "T", "daa", PTX_REM, 0, 0, NUMBERS, 0},
    {"abs", "T", "da", PTX_ABS, 0, 0, SIGNED, 0},
    {"neg", "T", "da", PTX_NEG, 0, 0, SIGNED, 0},
    {"min", "T", "daa", PTX_MIN, 0, 0, NUMBERS, 0},
    {"max", "T", "daa", PTX_MAX, 0, 0, NUMBERS, 0},
    {"and", "T", "daa", PTX_AND, 0, 0, PLAIN | PRED, 0},
    {"or", "T", "daa", PTX_OR, 0, 0, PLAIN | PRED, 0},
    {"xor", "T", "daa", PTX_XOR, 0, 0, PLAIN | PRED, 0},
    {"not", "T", "da", PTX_NOT, 0, 0, PLAIN | PRED, 0},
    {"cnot", "T", "da", PTX_CNOT, 0, 0, PLAIN, 0},
    {"shl", "T", "dau", PTX_SHL, 0, 0, PLAIN, 0},
    {"shr", "T", "dau", PTX_SHR, 0, 0, PLAIN | NUMBERS, 0},
    {"shf", "l wrap T", "daau", PTX_SHF_LEFT, 0, 0, B32, 0},
    {"shf", "l clamp T", "daau", PTX_SHF_LEFT, 0, PTX_CLAMP, B32, 0},
    {"shf", "r wrap T", "daau", PTX_SHF_RIGHT, 0, 0, B32, 0},
    {"shf", "r clamp T", "daau", PTX_SHF_RIGHT, 0, PTX_CLAMP, B32, 0},
    {"clz", "T", "ya", PTX_CLZ, 0, 0, WORDS, 0},
    {"popc", "T", "ya", PTX_POPC, 0, 0, WORDS, 0},
    {"brev", "T", "da", PTX_BREV, 0, 0, WORDS, 0},
    {"bfind", "T", "ya", PTX_BFIND, 0, 0, LONGS, 0},
    {"bfind", "shiftamt T", "ya", PTX_BFIND, 0, PTX_SHIFT_AMOUNT, LONGS, 0},
    {"bfe", "T", "dauu", PTX_BFE, 0, 0, LONGS, 0},
    {"bfi", "T", "daauu", PTX_BFI, 0, 0, WORDS, 0},
    {"prmt", "T", "daaa", PTX_PRMT, 0, 0, B32, 0},
    {"lop3", "T", "daaau", PTX_LOP3, 0, 0, B32, 0},
    {"selp", "T", "daas", PTX_SELP, 0, 0, NUMBERS | PLAIN | FLOATS, 0},
    {"slct", "T U", "daax", PTX_SLCT, 0, 0, NUMBERS | PLAIN | FLOATS, S32 | F32},
    {"set", "C T U", "dxx", PTX_SET, 0, 0, U32 | S32 | F32, NUMBERS | PLAIN | FLOATS},
    {"setp", "C T", "pqaa", PTX_SETP, 0, 0, NUMBERS | PLAIN | FLOATS | OF(PTX_F16), 0},
    {"setp", "C J T", "pqaas", PTX_SETP, 0, 0, NUMBERS | PLAIN | FLOATS | OF(PTX_F16), 0},
    {"add", "rn T", "daa", PTX_FADD, 0, 0, FLOATS | HALVES, 0},
    {"sub", "rn T", "daa", PTX_FSUB, 0, 0, FLOATS | HALVES, 0},
    {"mul", "rn T", "daa", PTX_FMUL, 0, 0, FLOATS | HALVES, 0},
    {"fma", "rn T", "daaa", PTX_FMA, 0, 0, FLOATS | HALVES | BRAINS, 0},
    {"div", "rn T", "daa", PTX_FDIV, 0, 0, FLOATS, 0},
    {"rcp", "rn T", "da", PTX_FRCP, 0, 0, FLOATS, 0},
    {"sqrt", "rn T", "da", PTX_FSQRT, 0, 0, FLOATS, 0},
    {"abs", "T", "da", PTX_FABS, 0, 0, FLOATS | HALVES | BRAINS, 0},
    {"neg", "T", "da", PTX_FNEG, 0, 0, FLOATS | HALVES | BRAINS, 0},
    {"min", "T", "daa", PTX_FMIN, 0, 0, FLOATS | HALVES | BRAINS, 0},
    {"max", "T", "daa", PTX_FMAX, 0, 0, FLOATS | HALVES | BRAINS, 0},
    {"min", "NaN T", "daa", PTX_FMIN, 0, PTX_NAN_RESULT, F32 | HALVES | BRAINS, 0},
    {"max", "NaN T", "daa", PTX_FMAX, 0, PTX_NAN_RESULT, F32 | HALVES | BRAINS, 0},
    {"copysign", "T", "daa", PTX_COPYSIGN, 0, 0, FLOATS, 0},
    {"cvt", "R T U", "eX", PTX_CVT, 0, 0, CVT_ANY, CVT_ANY},
    {"cvt", "R sat T U", "eX", PTX_CVT, 0, PTX_SAT, CVT_ANY, CVT_ANY},
    {"cvt", "R T U", "dx", PTX_CVT, 0, 0, OF(PTX_BF16), F32},
    {"cvt", "R T U", "dxx", PTX_CVT_TWO, 0, 0, OF(PTX_F16X2) | OF(PTX_BF16X2), F32},
    {"cvta", "S T", "da", PTX_CVTA, 0, 0, OF(PTX_U64), 0},
    {"cvta", "to S T", "da", PTX_CVTA_TO, 0, 0, OF(PTX_U64), 0},
    {"isspacep", "S", "pa", PTX_ISSPACEP, 0, 0, 0, 0},
    {"activemask", "T", "d", PTX_ACTIVEMASK, 0, 0, B32, 0},
    {"mov", "T", "=", PTX_MOV, 0, 0, ANY16 | ANY32 | BITS64 | FLOATS | PRED, 0},
    {"ld", "O S K V T", "vm", PTX_LD, 0, 0, ANY, 0},
    {"ldu", "S V T", "vm", PTX_LD, 0, 0, ANY, 0},
    {"st", "O S K V T", "mV", PTX_ST, 0, 0, ANY, 0},
    {"atom", "O S M T", "dma", PTX_ATOM, 0, 0, LONGS | WORDS | F32, 0},
    {"atom", "O S cas T", "dmaa", PTX_ATOM, PTX_CAS_MODE, 0, WORDS | OF(PTX_B16), 0},
    {"red", "O S M T", "ma", PTX_RED, 0, 0, LONGS | WORDS | F32, 0},
    {"prefetch", "S L1", "m", PTX_TOUCH, 0, 0, 0, 0},
    {"prefetch", "S L2", "m", PTX_TOUCH, 0, 0, 0, 0},
    {"shfl", "sync up T", "dqauuu", PTX_SHFL, PTX_UP_MODE, 0, B32, 0},
    {"shfl", "sync down T", "dqauuu", PTX_SHFL, PTX_DOWN_MODE, 0, B32, 0},
    {"shfl", "sync bfly T", "dqauuu", PTX_SHFL, PTX_BFLY_MODE, 0, B32, 0},
    {"shfl", "sync idx T", "dqauuu", PTX_SHFL, PTX_IDX_MODE, 0, B32, 0},
    {"vote", "sync all T", "dsu", PTX_VOTE, PTX_ALL_MODE, 0, PRED, 0},
    {"vote", "sync any T", "dsu", PTX_VOTE, PTX_ANY_MODE, 0, PRED, 0},
    {"vote", "sync uni T", "dsu", PTX_VOTE, PTX_UNI_MODE, 0, PRED, 0},
    {"vote", "sync ballot T", "dsu", PTX_VOTE, PTX_BALLOT_MODE, 0, B32, 0},
    {"match", "any sync T", "yau", PTX_MATCH_ANY, 0, 0, WORDS, 0},
    {"match", "all sync T", "yqau", PTX_MATCH_ALL, 0, 0, WORDS, 0},
    {"redux", "sync M T", "dau", PTX_REDUX, 0, 0, BITS32, 0},
    {"bar", "warp sync", "u", PTX_WARP_SYNC, 0, 0, 0, 0},
    {"bar", "sync", "u?u", PTX_BAR, 0, 0, 0, 0},
    {"barrier", "sync aligned", "u?u", PTX_BAR, 0, 0, 0, 0},
    {"barrier", "sync", "u?u", PTX_BARRIER, 0, 0, 0, 0},
    {"bar", "red popc T", "dus", PTX_BAR_RED, PTX_POPC_MODE, 0, U32, 0},
    {"bar", "red and T", "dus", PTX_BAR_RED, PTX_AND_MODE, 0, PRED, 0},
    {"bar", "red or T", "dus", PTX_BAR_RED, PTX_OR_MODE, 0, PRED, 0},
    {"bra", "?uni", "L", PTX_BRA, 0, 0, 0, 0},
    {"brx", "idx ?uni", "ul", PTX_BRX, 0, 0, 0, 0},
    {"call", "?uni", "(", PTX_CALL, 0, 0, 0, 0},
    {"ret", "?uni", "", PTX_RET, 0, 0, 0, 0},
    {"exit", "", "", PTX_EXIT, 0, 0, 0, 0},
    {"trap", "", "", PTX_TRAP, 0, 0, 0, 0},
    {"brkpt", "", "", PTX_TRAP, 0, 0, 0, 0},
    {"membar", "cta", "", PTX_NOTHING, 0, 0, 0, 0},
    {"membar", "gl", "", PTX_NOTHING, 0, 0, 0, 0},
    {"membar", "sys", "", PTX_NOTHING, 0, 0, 0, 0},
    {"fence", "O", "", PTX_NOTHING, 0, 0, 0, 0},
    {"nanosleep", "T", "a", PTX_NOTHING, 0, 0, U32, 0},
};

static const struct { const char *name; uint8_t value; }
comparisons[] = {
    {"eq", PTX_EQ}, {"ne", PTX_NE}, {"lt", PTX_LT}, {"le", PTX_LE}, {"gt", PTX_GT}, {"ge", PTX_GE},
    {"lo", PTX_LO}, {"ls", PTX_LS}, {"hi", PTX_HI}, {"hs", PTX_HS}, {"equ", PTX_EQU},
    {"neu", PTX_NEU}, {"ltu", PTX_LTU}, {"leu", PTX_LEU}, {"gtu", PTX_GTU}, {"geu", PTX_GEU},
    {"num", PTX_NUM}, {"nan", PTX_NAN}, {NULL, 0}},
spaces[] = {
    {"global", PTX_GLOBAL}, {"const", PTX_CONST}, {"shared", PTX_SHARED}, {"local", PTX_LOCAL},
    {"param", PTX_PARAM}, {NULL, 0}},
roundings[] = {
    {"rn", PTX_RN}, {"rz", PTX_RZ}, {"rm", PTX_RM}, {"rp", PTX_RP}, {"rni", PTX_RNI},
    {"rzi", PTX_RZI}, {"rmi", PTX_RMI}, {"rpi", PTX_RPI}, {NULL, 0}},
modes[] = {
    {"and", PTX_AND_MODE}, {"or", PTX_OR_MODE}, {"xor", PTX_XOR_MODE}, {"add", PTX_ADD_MODE},
    {"min", PTX_MIN_MODE}, {"max", PTX_MAX_MODE}, {"inc", PTX_INC_MODE}, {"dec", PTX_DEC_MODE},
    {"exch", PTX_EXCH_MODE}, {NULL, 0}},
hints[] = { /* of caches; those that version 7.0 has */
    {"ca", 0}, {"cg", 0}, {"cs", 0}, {"lu", 0}, {"cv", 0}, {"wb", 0}, {"wt", 0}, {"nc", 0},
    {NULL, 0}},
orders[] = { /* the first word of O, then its scope */
    {"volatile", 0}, {"weak", 0}, {"relaxed", 1}, {"acquire", 1}, {"release", 1}, {"acq_rel", 1},
    {"sc", 1}, {NULL, 0}},
scopes[] = {{"cta", 0}, {"gpu", 0}, {"sys", 0}, {NULL, 0}},
specials[] = {
    {"%tid.x", PTX_TID_X}, {"%tid.y", PTX_TID_Y}, {"%tid.z", PTX_TID_Z}, {"%ntid.x", PTX_NTID_X},
    {"%ntid.y", PTX_NTID_Y}, {"%ntid.z", PTX_NTID_Z}, {"%ctaid.x", PTX_CTAID_X},
    {"%ctaid.y", PTX_CTAID_Y}, {"%ctaid.z", PTX_CTAID_Z}, {"%nctaid.x", PTX_NCTAID_X},
    {"%nctaid.y", PTX_NCTAID_Y}, {"%nctaid.z", PTX_NCTAID_Z}, {"%laneid", PTX_LANEID},
    {"%warpid", PTX_WARPID}, {"%nwarpid", PTX_NWARPID}, {"%lanemask_eq", PTX_MASK_EQ},
    {"%lanemask_lt", PTX_MASK_LT}, {"%lanemask_le", PTX_MASK_LE}, {"%lanemask_gt", PTX_MASK_GT},
    {"%lanemask_ge", PTX_MASK_GE}, {NULL, 0}};
/* clang-format on */

/* The value of a word in a table, in value_out; false when it is not there. */
static bool named(const void *table, const char *word, size_t bytes, uint8_t *value_out)
{
    const struct {
        const char *name;
        uint8_t value;
    } *row = table;
    for (; row->name != NULL; row++) {
        if (strlen(row->name) != bytes || memcmp(row->name, word, bytes) != 0) continue;
        *value_out = row->value;
        return true;
    }
    return false;
}

/* The words of an instruction behind its name, one after the other. */
typedef struct words {
    const char *at, *end;
} words;

static size_t next_word(const words *left)
{
    const char *dot = memchr(left->at, '.', (size_t)(left->end - left->at));
    return (size_t)((dot != NULL ? dot : left->end) - left->at);
}

static bool pass(words *left, size_t bytes)
{
    left->at += bytes + (left->at + bytes < left->end); /* with its dot */
    return true;
}

/* One word of a table, which may be absent. */
static bool take_named(words *left, const void *table, uint8_t *value_out)
{
    const size_t bytes = next_word(left);
    return named(table, left->at, bytes, value_out) && pass(left, bytes);
}

static bool match_class(words *left, char class, const instruction *row, ptx_step *step)
{
    const size_t bytes = next_word(left);
    uint8_t value = 0;
    switch (class) {
    case 'T':
    case 'U': {
        const ptx_type type = ptx_type_named(left->at, bytes);
        const uint32_t allowed = class == 'T' ? row->types : row->more;
        if (type == PTX_NO_TYPE || (allowed >> type & 1) == 0) return false;
        *(class == 'T' ? &step->type : &step->more) = (uint8_t)type;
        return pass(left, bytes);
    }
    case 'C': return take_named(left, comparisons, &step->mode);
    case 'J': return take_named(left, modes, &step->joined) && step->joined <= PTX_XOR_MODE;
    case 'S': take_named(left, spaces, &step->space); return true;
    case 'R': take_named(left, roundings, &step->mode); return true;
    case 'M': return take_named(left, modes, &step->mode);
    case 'K':
        while (take_named(left, hints, &value))
            continue;
        return true;
    case 'O':
        if (!take_named(left, orders, &value)) return true;
        if (left->at[-2] != 'k') step->flags |= PTX_STRONG; /* all but weak */
        return value == 0 || take_named(left, scopes, &value);
    case 'V':
        if (bytes == 2 && left->at[0] == 'v' && (left->at[1] == '2' || left->at[1] == '4')) {
            step->count = (uint8_t)(left->at[1] - '0');
            pass(left, bytes);
        }
        return true;
    default: return false;
    }
}

static bool match_words(const instruction *row, words left, ptx_step *step)
{
    for (const char *at = row->words; *at != 0; at += strcspn(at, " "), at += *at == ' ') {
        const size_t bytes = strcspn(at, " ");
        if (bytes == 1 && strchr("TUCJSRMKOV", *at) != NULL) {
            if (!match_class(&left, *at, row, step)) return false;
            continue;
        }
        const bool optional = *at == '?';
        if (next_word(&left) == bytes - optional &&
            memcmp(left.at, at + optional, bytes - optional) == 0)
            pass(&left, bytes - optional);
        else if (!optional)
            return false;
    }
    return left.at == left.end;
}

/* What the table cannot say of cvt, atom, red, redux and comparisons. */
static bool is_sound(const ptx_step *step)
{
    const ptx_type to = step->type, from = step->more;
    const bool to_float = ptx_type_is_float(to), from_float = ptx_type_is_float(from);
    switch (step->op) {
    case PTX_CVT:
        if (to_float && !from_float && (step->flags & PTX_SAT) != 0) return false;
        if (to_float && from_float && step->mode >= PTX_RNI) return to == from;
        if (to_float && from_float && ptx_type_bits(to) >= ptx_type_bits(from))
            return step->mode == PTX_NO_ROUNDING;
        if (to_float)
            return step->mode >= PTX_RN && step->mode <= PTX_RP &&
                   (to != PTX_BF16 || step->mode <= PTX_RZ);
        return from_float ? step->mode >= PTX_RNI : step->mode == PTX_NO_ROUNDING;
    case PTX_CVT_TWO: return step->mode == PTX_RN || step->mode == PTX_RZ;
    case PTX_SETP:
    case PTX_SET: {
        const ptx_type type = step->op == PTX_SETP ? to : from;
        if (ptx_type_is_float(type)) return step->mode < PTX_LO || step->mode > PTX_HS;
        if (type <= PTX_B64) return step->mode <= PTX_NE;
        return step->mode <= (ptx_type_is_signed(type) ? PTX_GE : PTX_HS);
    }
    case PTX_ATOM:
    case PTX_RED:
    case PTX_REDUX: {
        const bool plain = to <= PTX_B64;
        if (step->op == PTX_REDUX && step->mode > PTX_MAX_MODE) return false;
        switch (step->mode) {
        case PTX_AND_MODE:
        case PTX_OR_MODE:
        case PTX_XOR_MODE: return plain;
        case PTX_EXCH_MODE: return plain && step->op == PTX_ATOM;
        case PTX_CAS_MODE: return plain;
        case PTX_INC_MODE:
        case PTX_DEC_MODE: return to == PTX_U32;
        case PTX_ADD_MODE: return !plain && (to != PTX_S64 || step->op == PTX_REDUX);
        default: return !plain && to != PTX_F32;
        }
    }
    case PTX_CVTA:
    case PTX_CVTA_TO:
    case PTX_ISSPACEP: return step->space != PTX_GENERIC && step->space != PTX_PARAM;
    default: return true;
    }
}

static uint8_t find_instruction(ptx_parser *parser, const ptx_word *word, ptx_step *step_out)
{
    const char *text = parser->text + word->at;
    const char *dot = memchr(text, '.', word->bytes);
    const size_t name = dot != NULL ? (size_t)(dot - text) : word->bytes;
    const words left = {text + name + (dot != NULL), text + word->bytes};
    for (size_t i = 0; i < sizeof instructions / sizeof *instructions; i++) {
        const instruction *row = &instructions[i];
        if (strlen(row->name) != name || memcmp(row->name, text, name) != 0) continue;
        ptx_step step = *step_out;
        step.op = row->op;
        step.mode = row->mode;
        step.flags |= row->flags;
        step.count = 1;
        if (!match_words(row, left, &step) || !is_sound(&step)) continue;
        step.bits = (uint8_t)ptx_type_bits(step.type);
        *step_out = step;
        return (uint8_t)i;
    }
    const bool contracts = word->bytes > 5 && strchr("136", text[5]) != NULL &&
                           (memcmp(text, "add.f", 5) == 0 || memcmp(text, "sub.f", 5) == 0 ||
                            memcmp(text, "mul.f", 5) == 0);
    if (contracts)
        ptx_fail(parser, word->line, "%.*s has no rounding: ptxas may contract it",
                 (int)word->bytes, text);
    ptx_fail(parser, word->line, "%.*s: no such instruction, type or modifier", (int)word->bytes,
             text);
}

/* Operands */

enum { AT_LEAST = 256 }; /* beside a number of bits */

static int32_t take_register(ptx_parser *parser, uint32_t bits, uint32_t *bits_out)
{
    const ptx_word name = ptx_expect(parser, PTX_WORD);
    uint32_t index = 0;
    if (ptx_is(parser, &name, "_")) return PTX_SINK;
    const ptx_declared *one = ptx_find_register(parser, &name, &index);
    if (one == NULL)
        ptx_fail(parser, name.line, "no register %.*s", (int)name.bytes, parser->text + name.at);
    const uint32_t width = ptx_type_bits(one->type);
    const uint32_t wanted = bits & (AT_LEAST - 1);
    if ((bits & AT_LEAST) != 0 ? width < wanted : width != wanted)
        ptx_fail(parser, name.line, "%.*s has %u bits, not %u", (int)name.bytes,
                 parser->text + name.at, width, wanted);
    if (bits_out != NULL) *bits_out = width;
    return (int32_t)(one->row + index);
}

/* A register or a constant of the type. */
static int32_t take_source(ptx_parser *parser, ptx_type type, uint32_t bits)
{
    const ptx_word word = parser->word;
    const uint32_t width = bits & (AT_LEAST - 1);
    if (word.kind == PTX_WORD && !ptx_is(parser, &word, "_"))
        return take_register(parser, bits, NULL);
    if (word.kind == PTX_FLOAT) {
        ptx_take(parser);
        const bool is_long = word.bytes == 18;
        if ((type == PTX_F32 || type == PTX_B32 || type == PTX_F64 || type == PTX_B64) &&
            (width == 64) == is_long)
            return ptx_constant(parser, word.number);
        ptx_fail(parser, word.line, "a float of another size");
    }
    if (type == PTX_F32 || type == PTX_F64)
        ptx_fail(parser, word.line, "'%.*s' where a register or a float is expected",
                 (int)word.bytes, parser->text + word.at);
    return ptx_constant(parser, ptx_integer(parser) & ptx_ones(width));
}

static int32_t take_predicate(ptx_parser *parser, ptx_step *step)
{
    if (ptx_accept(parser, '!')) step->flags |= PTX_SOURCE_NOT;
    return take_register(parser, 1, NULL);
}

/* Where a variable is, as an address of its space; of the frame with the flag. */
static void take_symbol(ptx_parser *parser, const ptx_word *name, ptx_step *step,
                        ptx_space *space_out)
{
    const ptx_variable *one = ptx_find_variable(parser, name);
    if (one == NULL)
        ptx_fail(parser, name->line, "no register or variable %.*s", (int)name->bytes,
                 parser->text + name->at);
    *space_out = (ptx_space)one->space;
    if (one->space == PTX_LOCAL) step->flags |= PTX_OF_FRAME;
    step->offset = (int64_t)one->address;
}

static int64_t take_offset(ptx_parser *parser)
{
    if (ptx_accept(parser, '+')) return (int64_t)ptx_integer(parser);
    return parser->word.kind == '-' ? (int64_t)ptx_integer(parser) : 0;
}

/* [register], [variable], [number], each with an offset. */
static void take_memory(ptx_parser *parser, ptx_step *step)
{
    ptx_expect(parser, '[');
    const ptx_word word = parser->word;
    uint32_t index;
    step->base = PTX_NO_ROW;
    if (word.kind == PTX_NUMBER) {
        step->offset = (int64_t)ptx_take(parser).number;
    } else if (ptx_find_register(parser, &word, &index) != NULL) {
        uint32_t bits = 0;
        step->base = take_register(parser, 32 | AT_LEAST, &bits);
        if (bits == 32 && step->space != PTX_SHARED)
            ptx_fail(parser, word.line, "an address of 32 bits");
        step->offset = take_offset(parser);
        if (step->space == PTX_PARAM && !parser->machine->functions[parser->function].is_kernel)
            ptx_fail(parser, word.line, "a parameter of a function by its address");
    } else {
        const ptx_word name = ptx_expect(parser, PTX_WORD);
        ptx_space space;
        take_symbol(parser, &name, step, &space);
        const bool is_argument = step->space == PTX_PARAM && space == PTX_LOCAL;
        if (step->space != (uint8_t)space && !is_argument)
            ptx_fail(parser, name.line, "%.*s lies in another space", (int)name.bytes,
                     parser->text + name.at);
        step->space = (uint8_t)space;
        step->offset = (int64_t)((uint64_t)step->offset + (uint64_t)take_offset(parser));
    }
    ptx_expect(parser, ']');
}

/* {a, b ...} of `count` registers or sources, or one of them alone. */
static void take_vector(ptx_parser *parser, ptx_step *step, bool is_source, uint32_t count,
                        uint32_t bits)
{
    if (count > 1) ptx_expect(parser, '{');
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) ptx_expect(parser, ',');
        if (is_source) {
            step->from[i] = take_source(parser, step->type, bits);
        } else {
            uint32_t width = 64;
            step->to[i] = take_register(parser, bits, &width);
            if (i == 0 || width < 64) step->keep = ptx_ones(width);
        }
    }
    if (count > 1) ptx_expect(parser, '}');
}

/* mov: a value, a variable's address, a vector packed or unpacked, a place or a clock. */
static void take_move(ptx_parser *parser, ptx_step *step)
{
    const uint32_t bits = step->bits;
    uint32_t index;
    ptx_space space;
    uint8_t special;
    step->keep = ptx_ones(bits);
    if (ptx_accept(parser, '{')) {
        step->op = PTX_UNPACK;
        uint32_t widths = 0, width = 0;
        for (step->count = 0; step->count < 4;) {
            step->to[step->count++] = take_register(parser, 8 | AT_LEAST, &width);
            if (widths > 0 && width != widths)
                ptx_fail(parser, parser->word.line, "parts of %u and %u bits", widths, width);
            widths = width;
            if (!ptx_accept(parser, ',')) break;
        }
        ptx_expect(parser, '}');
        ptx_expect(parser, ',');
        if (step->type > PTX_B64 || widths * step->count != bits)
            ptx_fail(parser, parser->word.line, "%u parts of %u bits", step->count, widths);
        step->from[0] = take_source(parser, step->type, bits);
        return;
    }
    step->to[0] = take_register(parser, bits, NULL);
    ptx_expect(parser, ',');
    const ptx_word word = parser->word;
    const char *text = parser->text + word.at;
    if (ptx_accept(parser, '{')) {
        uint32_t parts = 1;
        for (uint32_t at = parser->word.at; at < parser->bytes && parser->text[at] != '}'; at++)
            parts += parser->text[at] == ',';
        if (step->type > PTX_B64 || (parts != 2 && parts != 4) || bits / parts < 8)
            ptx_fail(parser, word.line, "%u parts of %u bits", parts, bits);
        step->op = PTX_PACK;
        step->count = (uint8_t)parts;
        for (uint32_t i = 0; i < parts; i++) {
            if (i > 0) ptx_expect(parser, ',');
            step->from[i] = take_source(parser, PTX_NO_TYPE, bits / parts);
        }
        ptx_expect(parser, '}');
    } else if (word.kind != PTX_WORD || ptx_find_register(parser, &word, &index) != NULL) {
        step->from[0] = take_source(parser, step->type, bits);
    } else if (named(specials, text, word.bytes, &special)) {
        ptx_take(parser);
        if (bits != 32) ptx_fail(parser, word.line, "%.*s has 32 bits", (int)word.bytes, text);
        step->from[0] = special;
    } else if (ptx_is(parser, &word, "%clock") || ptx_is(parser, &word, "%clock64") ||
               ptx_is(parser, &word, "%globaltimer")) {
        ptx_take(parser);
        step->op = PTX_CLOCK;
    } else {
        ptx_take(parser);
        take_symbol(parser, &word, step, &space);
        if (bits != 64 && !(bits == 32 && space == PTX_SHARED))
            ptx_fail(parser, word.line, "an address of %u bits", bits);
        step->offset = (int64_t)((uint64_t)step->offset + (uint64_t)take_offset(parser));
        if ((step->flags & PTX_OF_FRAME) != 0)
            step->op = PTX_FRAME;
        else
            step->from[0] = ptx_constant(parser, (uint64_t)step->offset);
    }
}

/* The arguments of a call, each a .param variable of the caller's frame. */
static uint32_t take_arguments(ptx_parser *parser, bool is_result)
{
    ptx_machine *machine = parser->machine;
    uint32_t count = 0;
    if (!ptx_accept(parser, '(')) return 0;
    while (!ptx_accept(parser, ')')) {
        const ptx_word name = ptx_expect(parser, PTX_WORD);
        const ptx_variable *one = ptx_find_variable(parser, &name);
        if (one == NULL || one->space != PTX_LOCAL)
            ptx_fail(parser, name.line, "%.*s is no .param variable", (int)name.bytes,
                     parser->text + name.at);
        ptx_copy *copy = ptx_grow(parser, &machine->copies, &machine->copy_count,
                                  &machine->copy_room, sizeof *copy);
        *copy = (ptx_copy){(uint32_t)one->address, (uint32_t)one->bytes, is_result};
        count++;
        if (parser->word.kind != ')') ptx_expect(parser, ',');
    }
    return count;
}

/* call (results), function, (arguments); */
static void take_call(ptx_parser *parser, ptx_step *step)
{
    ptx_machine *machine = parser->machine;
    step->copies = machine->copy_count;
    const uint32_t results = take_arguments(parser, true);
    if (results > 0) ptx_expect(parser, ',');
    const ptx_word name = ptx_expect(parser, PTX_WORD);
    step->target = ptx_find_function(parser, &name);
    if (step->target == UINT32_MAX || machine->functions[step->target].is_kernel)
        ptx_fail(parser, name.line, "no function %.*s", (int)name.bytes, parser->text + name.at);
    const uint32_t inputs = ptx_accept(parser, ',') ? take_arguments(parser, false) : 0;
    const ptx_function *called = &machine->functions[step->target];
    if (results != called->outputs || inputs != called->inputs)
        ptx_fail(parser, name.line, "%s has %u results and %u parameters", called->name,
                 called->outputs, called->inputs);
    for (uint32_t i = 0; i < results + inputs; i++)
        if (machine->copies[step->copies + i].bytes != called->parameter[i].bytes)
            ptx_fail(parser, name.line, "%s has another size of parameter %u", called->name, i);
}

/* One operand of the letter; true when a comma goes before the next one. */
static bool take_operand(ptx_parser *parser, ptx_step *step, char letter, uint32_t *sources)
{
    const ptx_type type = step->type, more = step->more;
    const uint32_t bits = step->bits, more_bits = ptx_type_bits(more);
    uint32_t width = 64;
    switch (letter) {
    case 'd': step->to[0] = take_register(parser, bits, NULL); break;
    case 'D': step->to[0] = take_register(parser, 2 * bits, NULL); break;
    case 'y': step->to[0] = take_register(parser, 32, NULL); break;
    case 'e': step->to[0] = take_register(parser, bits | AT_LEAST, &width); break;
    case 'p': step->to[0] = take_register(parser, 1, NULL); break;
    case 'q':
        step->to[1] = PTX_SINK;
        if (!ptx_accept(parser, '|')) return false;
        step->to[1] = take_register(parser, 1, NULL);
        return false;
    case 'a':
        step->from[(*sources)++] = step->op == PTX_ISSPACEP ? take_register(parser, 64, NULL)
                                                            : take_source(parser, type, bits);
        return true;
    case 'W': step->from[(*sources)++] = take_source(parser, PTX_NO_TYPE, 2 * bits); return true;
    case 'u': step->from[(*sources)++] = take_source(parser, PTX_B32, 32); return true;
    case 'x': step->from[(*sources)++] = take_source(parser, more, more_bits); return true;
    case 'X':
        step->from[(*sources)++] = take_source(parser, more, more_bits | AT_LEAST);
        return true;
    case 's': step->from[(*sources)++] = take_predicate(parser, step); return true;
    case 'm': take_memory(parser, step); return true;
    case 'v': take_vector(parser, step, false, step->count, bits | AT_LEAST); return true;
    case 'V': take_vector(parser, step, true, step->count, bits | AT_LEAST); return true;
    case '=': take_move(parser, step); return true;
    case '(': take_call(parser, step); return true;
    default: { /* L, l: a label, a table of them */
        const ptx_word name = ptx_expect(parser, PTX_WORD);
        ptx_fix_label(parser, &name, parser->machine->step_count, 0, letter == 'l');
        return true;
    }
    }
    step->keep = letter == 'D'   ? ptx_ones(2 * bits)
                 : letter == 'y' ? ptx_ones(32)
                 : letter == 'e' ? ptx_ones(width)
                                 : ptx_ones(letter == 'p' ? 1 : bits);
    return true;
}

void ptx_decode(ptx_parser *parser)
{
    ptx_machine *machine = parser->machine;
    ptx_step step = {.function = parser->function, .guard = PTX_NO_ROW, .base = PTX_NO_ROW};
    if (ptx_accept(parser, '@')) {
        if (ptx_accept(parser, '!')) step.flags |= PTX_GUARD_NOT;
        step.guard = take_register(parser, 1, NULL);
    }
    const ptx_word word = ptx_expect(parser, PTX_WORD);
    step.line = word.line;
    step.name = word.at;
    step.name_bytes = word.bytes;
    const instruction *row = &instructions[find_instruction(parser, &word, &step)];
    uint32_t sources = 0;
    bool comma = false;
    for (const char *at = row->operands; *at != 0; at++) {
        if (*at == '?') {
            if (parser->word.kind == ';') break;
            continue;
        }
        if (comma && *at != 'q') ptx_expect(parser, ',');
        comma = take_operand(parser, &step, *at, &sources) || *at == 'q';
    }
    if (step.op == PTX_BAR || step.op == PTX_BARRIER) step.count = (uint8_t)sources;
    ptx_expect(parser, ';');
    ptx_step *place =
        ptx_grow(parser, &machine->steps, &machine->step_count, &machine->step_room, sizeof *place);
    *place = step;
}

int32_t ptx_constant(ptx_parser *parser, uint64_t value)
{
    ptx_machine *machine = parser->machine;
    const uint32_t recent = machine->constant_count > 256 ? machine->constant_count - 256 : 0;
    for (uint32_t i = recent; i < machine->constant_count; i++)
        if (machine->constants[i][0] == value) return ~(int32_t)i;
    uint64_t *lanes = ptx_grow(parser, &machine->constants, &machine->constant_count,
                               &machine->constant_room, sizeof *machine->constants);
    for (uint32_t i = 0; i < PTX_LANES; i++)
        lanes[i] = value;
    return ~(int32_t)(machine->constant_count - 1);
}
