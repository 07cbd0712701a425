/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_module.h - a decoded module of PTX: what ptx_text.c and ptx_decode.c make, and ptx_warp.c and
 * ptx_run.c carry out.
 *
 * A value is a row: 32 lanes of 64 bits, each zero above the width of its type. Rows have numbers:
 *
 *     below 0                 a constant: row ~number of the module's constants
 *     0 .. PTX_SPECIALS - 1   a register of the thread's place (%tid.x ...), one for all functions
 *     above                   a register of the function; it counts from PTX_SPECIALS on
 *
 * Addresses as a kernel sees them, which no two spaces share:
 *
 *     shared     0 .. 1 MiB variables, each with a gap behind it; from 1 MiB on the dynamic ones
 *     local      from 0 on in the thread's frames; each function has one, as there is no recursion
 *     generic    shared + 2^32, local + 2^33, a global or constant address as it is
 *     global     regions that are 2^36 bytes apart, from 2^48 on; below, those at the addresses
 *                that their memory has in this process
 */
#ifndef KVT_TESTS_SUPPORT_PTX_MODULE_H
#define KVT_TESTS_SUPPORT_PTX_MODULE_H

#include "ptx_machine.h"

#define PTX_DYNAMIC_SHARED UINT64_C(0x100000)
#define PTX_SHARED_WINDOW  UINT64_C(0x100000000)
#define PTX_LOCAL_WINDOW   UINT64_C(0x200000000)
#define PTX_REGION_STEP    UINT64_C(0x1000000000)
#define PTX_REGION_BASE    UINT64_C(0x1000000000000)

enum {
    PTX_LANES = 32,
    PTX_DEPTH = 16, /* of calls */
    PTX_REGIONS = 4096,
    PTX_OWN_REGIONS = 256,
    PTX_SHARED_MOST = 227 * 1024,
    PTX_NO_ROW = INT32_MIN
};

typedef enum ptx_type {
    PTX_NO_TYPE,
    PTX_B8,
    PTX_B16,
    PTX_B32,
    PTX_B64,
    PTX_U8,
    PTX_U16,
    PTX_U32,
    PTX_U64,
    PTX_S8,
    PTX_S16,
    PTX_S32,
    PTX_S64,
    PTX_F16,
    PTX_BF16,
    PTX_F16X2,
    PTX_BF16X2,
    PTX_F32,
    PTX_F64,
    PTX_PRED,
    PTX_TYPES
} ptx_type;

/* clang-format off */
typedef enum ptx_op {
    /* a result from up to four values, the same function for each lane: ptx_value.c */
    PTX_ADD, PTX_SUB, PTX_MUL_LO, PTX_MUL_HI, PTX_MUL_WIDE, PTX_MAD_LO, PTX_MAD_HI, PTX_MAD_WIDE,
    PTX_SAD, PTX_DIV, PTX_REM, PTX_ABS, PTX_NEG, PTX_MIN, PTX_MAX, PTX_AND, PTX_OR, PTX_XOR,
    PTX_NOT, PTX_CNOT, PTX_SHL, PTX_SHR, PTX_SHF_LEFT, PTX_SHF_RIGHT, PTX_CLZ, PTX_POPC, PTX_BREV,
    PTX_BFIND, PTX_BFE, PTX_BFI, PTX_PRMT, PTX_LOP3, PTX_SELP, PTX_SLCT, PTX_SET, PTX_MOV,
    PTX_FADD, PTX_FSUB, PTX_FMUL, PTX_FMA, PTX_FDIV, PTX_FRCP, PTX_FSQRT, PTX_FABS, PTX_FNEG,
    PTX_FMIN, PTX_FMAX, PTX_COPYSIGN, PTX_CVT, PTX_CVT_TWO, PTX_CVTA, PTX_CVTA_TO,
    PTX_VALUES_END,
    /* of a thread's place, or more than one result */
    PTX_SETP, PTX_PACK, PTX_UNPACK, PTX_CARRY, PTX_CLOCK, PTX_FRAME, PTX_ISSPACEP, PTX_ACTIVEMASK,
    /* memory */
    PTX_LD, PTX_ST, PTX_ATOM, PTX_RED, PTX_TOUCH,
    /* lanes that meet */
    PTX_SHFL, PTX_VOTE, PTX_MATCH_ANY, PTX_MATCH_ALL, PTX_REDUX, PTX_WARP_SYNC,
    PTX_BAR, PTX_BARRIER, PTX_BAR_RED,
    /* the way on */
    PTX_BRA, PTX_BRX, PTX_CALL, PTX_RET, PTX_EXIT, PTX_TRAP, PTX_NOTHING,
    PTX_OPS
} ptx_op;

typedef enum ptx_space {
    PTX_GENERIC, PTX_GLOBAL, PTX_CONST, PTX_SHARED, PTX_LOCAL, PTX_PARAM
} ptx_space;

/* Comparisons; from EQU on those of floats that also hold where one is a NaN. */
typedef enum ptx_compare {
    PTX_EQ, PTX_NE, PTX_LT, PTX_LE, PTX_GT, PTX_GE, PTX_LO, PTX_LS, PTX_HI, PTX_HS,
    PTX_EQU, PTX_NEU, PTX_LTU, PTX_LEU, PTX_GTU, PTX_GEU, PTX_NUM, PTX_NAN
} ptx_compare;

typedef enum ptx_rounding {
    PTX_NO_ROUNDING, PTX_RN, PTX_RZ, PTX_RM, PTX_RP, PTX_RNI, PTX_RZI, PTX_RMI, PTX_RPI
} ptx_rounding;

/* Operations of atom, red, redux, vote, the joining of setp and the modes of shfl. */
typedef enum ptx_mode {
    PTX_NO_MODE, PTX_AND_MODE, PTX_OR_MODE, PTX_XOR_MODE, PTX_ADD_MODE, PTX_MIN_MODE, PTX_MAX_MODE,
    PTX_INC_MODE, PTX_DEC_MODE, PTX_EXCH_MODE, PTX_CAS_MODE, PTX_ALL_MODE, PTX_ANY_MODE,
    PTX_UNI_MODE, PTX_BALLOT_MODE, PTX_UP_MODE, PTX_DOWN_MODE, PTX_BFLY_MODE, PTX_IDX_MODE,
    PTX_POPC_MODE
} ptx_mode;

/* Registers of a thread's place, as rows. The sink takes what `_` gets. */
typedef enum ptx_special {
    PTX_SINK, PTX_TID_X, PTX_TID_Y, PTX_TID_Z, PTX_NTID_X, PTX_NTID_Y, PTX_NTID_Z, PTX_CTAID_X,
    PTX_CTAID_Y, PTX_CTAID_Z, PTX_NCTAID_X, PTX_NCTAID_Y, PTX_NCTAID_Z, PTX_LANEID, PTX_WARPID,
    PTX_NWARPID, PTX_MASK_EQ, PTX_MASK_LT, PTX_MASK_LE, PTX_MASK_GT, PTX_MASK_GE,
    PTX_SPECIALS
} ptx_special;
/* clang-format on */

enum { /* of a step */
       PTX_SAT = 1,
       PTX_GUARD_NOT = 2,  /* goes on where the guard is 0 */
       PTX_SOURCE_NOT = 4, /* the predicate source is turned round */
       PTX_STRONG = 8,     /* volatile, relaxed, acquire, release: no race */
       PTX_OF_FRAME = 16,  /* the address counts from the function's frame */
       PTX_CLAMP = 32,     /* shf */
       PTX_NAN_RESULT = 64,
       PTX_CARRY_IN = 128,
       PTX_CARRY_OUT = 256,
       PTX_SHIFT_AMOUNT = 512,
       PTX_SUBTRACT = 1024
};

/* An instruction. */
typedef struct ptx_step {
    uint32_t line, name, name_bytes; /* where its word stands in the text */
    uint32_t function;
    uint8_t op, type, more; /* the first and the second type of its name */
    uint8_t bits;           /* of `type` */
    uint8_t mode, joined, space, count;
    uint16_t flags;
    int32_t guard;
    int32_t to[4], from[5];
    int32_t base; /* of an address, with offset */
    int64_t offset;
    uint64_t keep;   /* the bits of a result */
    uint32_t target; /* a step; of a call a function; of brx the first of `count_targets` */
    uint32_t target_count, copies; /* of a call: its first copy, the number of its arguments */
} ptx_step;

/* An argument of a call: bytes of the caller's frame that are a parameter of the called one. */
typedef struct ptx_copy {
    uint32_t offset, bytes;
    bool is_result;
} ptx_copy;

typedef struct ptx_parameter {
    uint32_t offset, bytes;
} ptx_parameter;

typedef struct ptx_function {
    char *name;
    uint32_t first, steps; /* in the module's steps; none: declared alone */
    uint32_t rows;         /* of registers */
    uint32_t frame_bytes, shared_bytes;
    uint32_t inputs, outputs;
    ptx_parameter parameter[PTX_PARAMETERS_MAX]; /* outputs first */
    uint32_t parameter_bytes;                    /* of a kernel: all of them */
    bool is_kernel, has_body;
    uint32_t threads_most, threads_exact[3];
    uint32_t kernel; /* its place among ptx_kernels */
} ptx_function;

typedef struct ptx_variable {
    const char *name; /* in the text */
    uint32_t name_bytes;
    uint8_t space;
    bool is_dynamic, is_hidden; /* out of scope */
    uint32_t function;          /* the last that named it */
    uint64_t address, bytes;
    void *memory; /* of a global or a constant, owned */
} ptx_variable;

typedef struct ptx_region {
    uint64_t address;
    uint8_t *memory;
    uint64_t bytes;
    bool is_writable, is_constant, is_mapped;
} ptx_region;

/* Arrays that grow: their elements, how many there are, and for how many there is room. */
struct ptx_machine {
    char *text;
    size_t text_bytes;
    ptx_step *steps;
    ptx_function *functions;
    ptx_variable *variables;
    ptx_copy *copies;
    uint32_t *targets;
    uint64_t (*constants)[PTX_LANES];
    ptx_kernel *kernels;
    uint32_t step_count, function_count, variable_count, copy_count, target_count, constant_count,
        kernel_count;
    uint32_t step_room, function_room, variable_room, copy_room, target_room, constant_room;
    uint64_t global_bytes; /* of all variables */
    uint32_t shared_bytes; /* of all variables, with their gaps */
    uint8_t *shared_gaps;  /* 1 for each byte that belongs to none */
    ptx_region regions[PTX_REGIONS];
    uint32_t region_count;             /* the first is never used */
    ptx_region owned[PTX_OWN_REGIONS]; /* at the addresses of this process */
    uint32_t owned_count;
};

/* Widths and kinds of types. */
uint32_t ptx_type_bits(ptx_type type);
bool ptx_type_is_signed(ptx_type type);
bool ptx_type_is_float(ptx_type type);

/* All bits of a value of that many bits. */
static inline uint64_t ptx_ones(uint32_t bits)
{
    return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
}

static inline int64_t ptx_signed(uint64_t value, uint32_t bits)
{
    return (int64_t)(value << (64 - bits)) >> (64 - bits);
}

/* The result of one lane: of operations below PTX_VALUES_END, a comparison, and an atomic one. */
uint64_t ptx_value(const ptx_step *step, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
bool ptx_holds(const ptx_step *step, ptx_type type, uint64_t a, uint64_t b);
uint64_t ptx_combine(const ptx_step *step, uint64_t old, uint64_t a, uint64_t b);

/* A value as the register of an instruction that may be wider than its type gets it. */
static inline uint64_t ptx_extend(ptx_type type, uint64_t value)
{
    return ptx_type_is_signed(type) ? (uint64_t)ptx_signed(value, ptx_type_bits(type)) : value;
}

/* Reads machine->text into the rest of it; false with a sentence in `error`. */
bool ptx_read(ptx_machine *machine, char *error);

/* What stands at a region's number; 0 when all are taken. */
uint64_t ptx_region_add(ptx_machine *machine, void *memory, uint64_t bytes, bool writable,
                        bool constant);

#endif
