/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs.h - what the CPU tells the kernels of a GPU: one job for each matrix that a kernel decodes,
 * and for each segment that is verified. C11 and CUDA read it alike. docs/GPU.md says what a launch
 * of each kernel does.
 *
 *     planner (record_jobs.c)         an array of jobs of one kernel, in memory of the GPU
 *     kernel<<<blocks, threads>>>(jobs, job_count, verdicts)
 *
 * A job was made from a head and a view that the CPU has checked, and its fields are trusted. The
 * bytes that its addresses name are not: a kernel reads inside of the segments and writes inside of
 * the target, whatever they hold.
 *
 * Addresses are numbers of 64 bits, and so are strides, which are added modulo 2^64.
 */
#ifndef CODECS_JOBS_H
#define CODECS_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define KERNEL_ASSERT(condition) static_assert(condition, "part of what kernels were made for")
#else
#define KERNEL_ASSERT(condition) _Static_assert(condition, "part of what kernels were made for")
#endif

/* The kernels, in the order in which a layer's are launched. */
typedef enum kernel_id {
    KERNEL_CHECK, /* XXH3 and padding of segments */
    KERNEL_RAW,   /* rows that are stored as they are */
    KERNEL_KIVI,
    KERNEL_PLANES,
    KERNEL_LOSSLESS, /* mode fast */
    KERNEL_DENSE,    /* lossless, mode dense */
    KERNEL_ENTROPY,
    KERNEL_CODES,                    /* of transform, into a room, */
    KERNEL_TRANSFORM,                /* and out of it to elements */
    KERNEL_DECODERS,                 /* those above decode; those that follow encode, from views */
    KERNEL_GATHER = KERNEL_DECODERS, /* rows to where they are stored as they are */
    KERNEL_RANGES,                   /* minima and scales of groups */
    KERNEL_CODE_KIVI,                /* codes of groups, in one plane */
    KERNEL_CODE_PLANES,
    KERNEL_RING, /* posts blocks of a ring; of no layer */
    KERNEL_COUNT
} kernel_id;

enum {
    KERNEL_THREADS = 256,   /* of a block, in every kernel */
    KERNEL_WARP = 32,       /* threads that run together */
    KERNEL_CHECK_BLOCK = 8, /* segments that a block verifies, a warp each */
    KERNEL_RING_BLOCK = 8,  /* posts of a block of a ring's kernel, a warp each */
    KERNEL_PLANES_MAX = 5,  /* planes of a matrix */
    KERNEL_GROUP_ROWS = 16, /* tokens of a thread of kivi and planes */
    KERNEL_DENSE_TOKENS = 256,
    KERNEL_DENSE_CHANNELS = 1024,
    KERNEL_CODES_TOKENS = 256,  /* of a block of codes */
    KERNEL_CODES_SLOTS = 128,   /* bytes in front of the slots of a basis's tables */
    KERNEL_TRANSFORM_ITEMS = 8, /* of a block of transform, a warp each */
    KERNEL_RAW_BYTES = 32768    /* of the rows that a block of raw copies, about */
};

/* A job's word, which the planner sets before the launch: UNSEEN for a check, which says SOUND or a
 * reason, and SOUND for the others, which say a reason or nothing. So all is well where every word
 * is SOUND. */
typedef enum kernel_verdict {
    KERNEL_UNSEEN = 0,   /* a check that has not run */
    KERNEL_SOUND = 1,    /* the checksum is right and the padding is zero */
    KERNEL_CHECKSUM = 2, /* the checksum is wrong */
    KERNEL_PADDING = 3,  /* the checksum is right, but a byte of the padding is not zero */
    KERNEL_CORRUPT = 4,  /* the bytes are none that the codec's encoder writes */
    KERNEL_UNCODED = 5   /* the elements are none that the codec takes */
} kernel_verdict;

/* Types of elements: the numbers of kvt_dtype. */
enum { KERNEL_FP16 = 1, KERNEL_BF16 = 2, KERNEL_FP32 = 3, KERNEL_FP8 = 4 };

/* The first member of every job. Jobs of an array ascend by first_block; a job ends where the next
 * one, or the grid, does. */
typedef struct kernel_head {
    uint32_t first_block; /* of the grid; KERNEL_CHECK: 0 */
    uint32_t verdict;     /* index of its word */
} kernel_head;

/*
 * Where the rows of a matrix go: view_rows of a view whose memory is the GPU's. With p = first_slot
 * + token, the bytes of head h of a token are at
 *
 *     start + block * block_stride + p % block_tokens * token_stride + h * head_stride
 *
 * where block is blocks[p / block_tokens], or p / block_tokens without a table. Without gaps
 * between heads there is one head, the row.
 */
typedef struct kernel_target {
    uint64_t start;  /* address of block 0, slot 0 */
    uint64_t blocks; /* address of uint32_t block numbers; 0: 0, 1, 2, .. */
    uint64_t block_stride;
    uint64_t token_stride;
    uint64_t head_stride;
    uint64_t head_bytes;
    uint64_t first_slot;   /* of token 0, from blocks[0] on */
    uint32_t block_tokens; /* UINT32_MAX: no blocks */
    uint32_t heads;
} kernel_target;

KERNEL_ASSERT(sizeof(kernel_target) == 64);

/* One segment to verify; at `address`, a multiple of 64, are padded_bytes bytes, a multiple of 64
 * and more than 0. */
typedef struct kernel_check_job {
    kernel_head head;
    uint64_t address;
    uint64_t stored_bytes; /* from here to padded_bytes all is zero */
    uint64_t padded_bytes;
    uint64_t checksum; /* XXH3-64 of padded_bytes */
} kernel_check_job;

KERNEL_ASSERT(sizeof(kernel_check_job) == 40);

/* Rows that follow each other at `source` and go to the target's from token 0 on; of KERNEL_GATHER
 * they come from there. */
typedef struct kernel_raw_job {
    kernel_head head;
    uint64_t source;
    uint64_t rows;
    uint64_t row_bytes;      /* target.heads * target.head_bytes */
    uint32_t block_rows;     /* rows of a block of threads */
    uint32_t transfer_bytes; /* 16, 8, 4, 2 or 1: divides all addresses and strides */
    kernel_target target;
} kernel_raw_job;

KERNEL_ASSERT(sizeof(kernel_raw_job) == 104);

/* A matrix of kivi or planes: groups of elements with a minimum and a scale (kivi_group.h). A block
 * of threads decodes KERNEL_THREADS pieces of 8 channels and KERNEL_GROUP_ROWS tokens, channels
 * first. */
typedef struct kernel_group_job {
    kernel_head head;
    uint32_t tokens;         /* coded ones */
    uint32_t width;          /* channels of a row, a multiple of 8 */
    uint32_t unit;           /* groups along the rows do not cross it; divides width */
    uint32_t group;          /* elements of a group */
    uint32_t row_groups;     /* groups of a row; of groups along the columns: of a run, the width */
    uint32_t transfer_bytes; /* 16, 8, 4, 2 or 1: divides the target's addresses and strides */
    uint8_t columns;         /* 1: groups along the columns */
    uint8_t dtype;           /* of the target: KERNEL_FP16 .. KERNEL_FP8 */
    uint8_t planes;          /* of codes: 1 for kivi, 1 .. 5 for planes */
    uint8_t bits;            /* of kivi: 2, 4 or 8 */
    uint8_t half_steps;      /* kivi: values in fp16 steps */
    uint8_t reserved[3];     /* zero */
    uint64_t table;          /* address of planes' 32 bytes of centroids; of kivi 0 */
    uint64_t minima;         /* addresses of fp16 numbers, one a group */
    uint64_t scales;
    uint64_t codes[KERNEL_PLANES_MAX]; /* addresses of the planes, multiples of 64 */
    kernel_target target;              /* of the first coded token */
} kernel_group_job;

enum { KERNEL_GROUP_CODES_AT = 64 };

KERNEL_ASSERT(sizeof(kernel_group_job) == 168);
KERNEL_ASSERT(offsetof(kernel_group_job, codes) == KERNEL_GROUP_CODES_AT);

/* A matrix that becomes one of kivi or planes. A thread of ranges makes those of eight channels of
 * a run of tokens, or of one group along the rows; a thread of the codes those of 64 elements,
 * token after token. */
typedef struct kernel_code_job {
    kernel_head head;
    uint32_t tokens; /* that are coded; tokens * width is below 2^32 */
    uint32_t width;  /* as in kernel_group_job, up to transfer_bytes, which is of the source */
    uint32_t unit;
    uint32_t group;
    uint32_t row_groups;
    uint32_t transfer_bytes;
    uint8_t columns;
    uint8_t dtype;        /* of the source */
    uint8_t planes;       /* of codes: 1 for kivi, 1 .. 5 for planes */
    uint8_t bits;         /* of a code: 2, 4 or 8; of planes 4, whose codes have a fine part */
    uint32_t sample_step; /* planes: of so many batches of 8 tokens one is counted */
    uint64_t histogram;   /* planes: address of 256 counts of fine codes, zero; of kivi 0 */
    uint64_t minima;      /* addresses of fp16 numbers, one a group */
    uint64_t scales;
    uint64_t codes[KERNEL_PLANES_MAX]; /* addresses of the planes, multiples of 64 */
    kernel_target source;              /* of the first coded token */
} kernel_code_job;

enum {
    KERNEL_CODE_PLANES_AT = 64,
    KERNEL_SAMPLE = 4096 /* elements of a batch that are counted */
};

KERNEL_ASSERT(sizeof(kernel_code_job) == 168);
KERNEL_ASSERT(offsetof(kernel_code_job, codes) == KERNEL_CODE_PLANES_AT);

/* A matrix of lossless, mode fast (lossless_fast.h). A block of threads decodes a tile of 65,536
 * elements. */
typedef struct kernel_lossless_job {
    kernel_head head;
    uint64_t source;
    uint64_t bytes; /* stored */
    uint64_t elements;
    uint32_t row_elements;
    uint32_t transfer_bytes; /* as in kernel_group_job */
    uint8_t dtype;           /* KERNEL_FP16, BF16 or FP32 */
    uint8_t reserved[7];     /* zero */
    kernel_target target;
} kernel_lossless_job;

KERNEL_ASSERT(sizeof(kernel_lossless_job) == 112);

/* A matrix of lossless, mode dense (lossless_dense.h). A block of threads decodes a tile of up to
 * KERNEL_DENSE_TOKENS tokens by KERNEL_DENSE_CHANNELS channels; channels go first. */
typedef struct kernel_dense_job {
    kernel_head head;
    uint64_t source;
    uint64_t bytes;  /* stored */
    uint32_t tokens; /* at least 1, as is row */
    uint32_t row;    /* elements of a row */
    uint32_t transfer_bytes;
    uint8_t dtype;       /* KERNEL_FP16 .. KERNEL_FP8 */
    uint8_t reserved[3]; /* zero */
    kernel_target target;
} kernel_dense_job;

KERNEL_ASSERT(sizeof(kernel_dense_job) == 104);

/* A matrix of entropy (entropy_span.h). A block of threads decodes one span. */
typedef struct kernel_entropy_job {
    kernel_head head;
    uint64_t source;
    uint64_t bytes;       /* stored */
    uint32_t tokens;      /* coded ones */
    uint32_t width;       /* channels of a row, a multiple of 8 */
    uint32_t span_tokens; /* of every span but the last one, a multiple of 256 */
    uint32_t transfer_bytes;
    uint16_t step; /* the head of the matrix must have this step, */
    uint8_t flags; /* and these flags */
    uint8_t dtype; /* of the target: KERNEL_FP16 .. KERNEL_FP8 */
    uint32_t reserved;
    kernel_target target; /* of the first coded token */
} kernel_entropy_job;

KERNEL_ASSERT(sizeof(kernel_entropy_job) == 112);

/*
 * A segment of transform (transform_block.h). A block of threads reads the codes of 256 tokens, and
 * makes their angles, in a room of its own:
 *
 *     codes i16 [components][room_groups][16] | order u16 [components][5] | angles [tokens][pairs]
 *
 * The tables are a basis's as transform_image.h places them: bits that each of 32 classes stores as
 * they are, u32, then of each class 256 slots.
 */
typedef struct kernel_codes_job {
    kernel_head head;
    uint64_t source;
    uint64_t bytes; /* stored */
    uint64_t tables;
    uint64_t spreads; /* i16 [components][5] */
    uint64_t turns;   /* u64 [pairs]: of one position, in 2^-64 of a whole turn */
    uint64_t room;    /* a multiple of 16, as is room_bytes */
    uint64_t room_bytes;
    uint64_t angles_at; /* in a room */
    uint32_t tokens;    /* at least 1 */
    uint32_t components;
    uint32_t room_groups;    /* of 16 tokens: those of the first block */
    uint32_t first_position; /* of token 0 */
    uint32_t pairs;          /* that turn; 0: none */
    int32_t class_offset;    /* added to a spread before it is a class */
    uint16_t step;           /* the head of the segment must have this step, */
    uint16_t span;           /* and this span */
    uint32_t reserved;       /* zero */
} kernel_codes_job;

KERNEL_ASSERT(sizeof(kernel_codes_job) == 104);

/* A matrix of such a segment. A warp makes 16 tokens of 64 elements of a head; the items of a block
 * of tokens and a head, groups first, are `chunks` times the groups. */
typedef struct kernel_transform_job {
    kernel_head head;
    uint64_t room; /* as KERNEL_CODES leaves it */
    uint64_t room_bytes;
    uint64_t angles_at;
    uint64_t inverse; /* bf16 [component][element] of the span; of heads that of the first one */
    uint64_t means;   /* of the matrix, fp32 */
    uint32_t tokens;
    uint32_t room_groups;
    uint32_t width;  /* components of a span */
    uint32_t column; /* of the span, the matrix' first element */
    uint32_t heads;
    uint32_t head_dim;
    uint32_t chunks;   /* of 32 pairs of elements of a head */
    uint32_t rotary;   /* channels of a head that turn; 0: none */
    uint8_t apart;     /* 1: a pair's elements are half of them apart; 0: neighbours */
    uint8_t own_spans; /* 1: each head is a span */
    uint8_t dtype;     /* of the target: KERNEL_FP16 .. KERNEL_FP8 */
    uint8_t reserved;  /* zero */
    uint16_t step;
    uint16_t transfer_bytes;
    kernel_target target; /* of the first coded token */
} kernel_transform_job;

KERNEL_ASSERT(sizeof(kernel_transform_job) == 152);

/* Any of them. */
typedef union kernel_any_job {
    kernel_head head;
    kernel_check_job check;
    kernel_raw_job raw;
    kernel_group_job group;
    kernel_lossless_job lossless;
    kernel_dense_job dense;
    kernel_entropy_job entropy;
    kernel_code_job code;
    kernel_codes_job codes;
    kernel_transform_job transform;
} kernel_any_job;

/* A job that is being made, and the blocks of threads that it takes. */
typedef struct kernel_work {
    kernel_id kernel;
    uint64_t blocks;
    kernel_any_job job;
} kernel_work;

/* Words that a ring's kernel has in the GPU's memory beside its posts: addresses of the ring's
 * memory, and the counter of positions, which kernels alone have. */
typedef struct kernel_ring_gate {
    uint64_t submissions, completions; /* of entry 0: a sequence word and 56 bytes each */
    uint64_t tables, statuses;
    uint32_t depth, contexts; /* of a table */
    uint64_t claimed;
} kernel_ring_gate;

KERNEL_ASSERT(sizeof(kernel_ring_gate) == 48);

/* A post: the words of kvt_ring_post, whose addresses are trusted, and nothing else of it. */
typedef struct kernel_ring_post {
    uint32_t mode;
    int32_t status;
    uint64_t index, wait_ns, contexts, statuses;
    uint64_t block[7], result[7];
} kernel_ring_post;

KERNEL_ASSERT(sizeof(kernel_ring_post) == 152);

#endif
