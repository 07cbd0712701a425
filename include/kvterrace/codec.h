/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - the variants that an entry can be stored in: codecs, the names of variants, and the
 * threads that a caller lends for coding.
 *
 * The store encodes and decodes by itself. An application meets codecs where it names a variant in
 * a setting, prints the one that kvt_get_info reports, or lends threads.
 *
 * Thread rule: every function is re-entrant.
 */
#ifndef KVTERRACE_CODEC_H
#define KVTERRACE_CODEC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codec ids are part of the record format: append only, never reused. 7 is taken: no codec of this
 * version has it, and a record that names it is KVT_E_VERSION. */
typedef enum kvt_codec_id {
    KVT_CODEC_RAW = 1,      /* copy */
    KVT_CODEC_LOSSLESS = 2, /* exponent plane split off and entropy-coded; exact */
    KVT_CODEC_KIVI = 3,     /* the published KIVI quantizer, bit-exact */
    KVT_CODEC_PLANES = 4,   /* nested quantizer in bit planes; its top 4 bits are KIVI-4 */
    KVT_CODEC_ENTROPY = 5,  /* uniform step and static-table entropy coding */
    KVT_CODEC_DROP = 6,     /* token drop: a stage before any codec, in the variant's mode */
    KVT_CODEC_TRANSFORM = 8 /* linear transform with a basis learnt per model, entropy coding */
} kvt_codec_id;

#define KVT_BASIS_HASH_BYTES 32u /* BLAKE2b-256: the name of a basis of KVT_CODEC_TRANSFORM */

/* The elements that a basis transforms together. */
typedef enum kvt_basis_span {
    KVT_BASIS_HEAD = 1,   /* one head of K or of V */
    KVT_BASIS_LAYER = 2,  /* K and V of a layer */
    KVT_BASIS_LAYERS4 = 3 /* of four layers */
} kvt_basis_span;

/*
 * Parses a variant's name. KVT_OK or KVT_E_ARGUMENT. name and variant_out are not NULL.
 *   raw, lossless, lossless:fast
 *   kivi:k4v4,g64[,r128][,half]       bits 2, 4, 8; groups of 32, 64, 128; window r, multiple of 32
 *   planes:k6v4,g64[,vhead|vchan][,vfirst]   bits 2, 3, 4, 6, 8; V groups along the row (default),
 *                                     inside a head, or per channel; vfirst: V planes lie first
 *   entropy:k0.25v0.5[,vchan][,middle]   steps in standard deviations, 1/16 to 12; values come
 *                                     back at the middle of their cell, not at its centre of mass
 *   transform:1F3A9,s0.5              the first 5 digits of the basis's hash; step in the basis's
 *                                     unit, 1/64 to 15. Not after a drop
 *   drop:stream,50[+<one of these>]   method and kept percent, then the codec (default raw)
 * Settings that are left out take their defaults: kivi:k4v4,g64; planes:k4v4,g64;
 * entropy:k0.25v0.5; transform's step 0.5.
 *
 * In an entry of one side (kvt_layout.sides) the matrix of a layer is coded as K or as V: that
 * side's settings apply, the other's count for nothing. lagkv chooses tokens by K alone, and no
 * tokens of V alone are dropped.
 */
KVT_API KVT_NODISCARD kvt_status kvt_variant_parse(const char *name, kvt_variant *variant_out);

/* Writes the variant's name, always terminated, cut to size. Returns the length it would need. */
KVT_API size_t kvt_variant_format(kvt_variant variant, char *text, size_t size);

/*
 * Threads that the caller lends for one call: its pool's parallel loop. A loop on one thread is
 *
 *   static void run(void *context, uint32_t tasks, kvt_codec_task task, void *argument)
 *   {
 *       for (uint32_t i = 0; i < tasks; i++) task(argument, i, 0);
 *   }
 *
 * run calls task(argument, index, worker) once for every index below `tasks`, on any threads and in
 * any order, and returns when all have returned and what they wrote is visible to its caller (a
 * join, a mutex or a barrier does both). Calls that may run at the same time have different
 * `worker` numbers, all below count. A task is one (layer, side) matrix or one 8 MiB piece of an
 * opaque entry; it calls nothing of the caller's, takes no lock and does not block.
 */
typedef void (*kvt_codec_task)(void *argument, uint32_t index, uint32_t worker);

typedef struct kvt_codec_workers {
    uint32_t struct_size; /* sizeof(kvt_codec_workers) of the caller */
    uint32_t count;       /* at least 1 */
    void (*run)(void *context, uint32_t tasks, kvt_codec_task task, void *argument);
    void *context;
} kvt_codec_workers;

#ifdef __cplusplus
}
#endif

#endif
