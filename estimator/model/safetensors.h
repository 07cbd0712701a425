/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h - reads and writes the safetensors format: an 8-byte little-endian header length,
 * a JSON object {name: {dtype, shape, data_offsets}}, then the tensors' bytes without gaps.
 * Model weights come in it, and KV dumps: k.<layer>, v.<layer> and, if there are any, q.<layer>,
 * of shape [tokens, heads, head_dim], F16, BF16 or F32.
 *
 * Thread rule: an open file may be read by any number of threads.
 */
#ifndef ESTIMATOR_SAFETENSORS_H
#define ESTIMATOR_SAFETENSORS_H

#include <kvterrace/types.h>

#define SAFETENSORS_RANK_MAX   8u
#define SAFETENSORS_HEADER_MAX (UINT64_C(100) << 20) /* bytes; the format's own limit */

typedef struct safetensors_tensor {
    const char *name;
    uint8_t dtype; /* kvt_dtype; OPAQUE for element types that are no KV's */
    /* The format's name of the element type: F8_E4M3 and F8_E5M2 are one kvt_dtype. Static when
     * read; when written NULL stands for the name of the dtype, which FP8 has none of. */
    const char *type;
    uint8_t element_bytes;
    uint8_t rank;
    uint64_t shape[SAFETENSORS_RANK_MAX];
    uint64_t elements;
    uint64_t bytes;
    const void *data; /* of any alignment when read */
} safetensors_tensor;

typedef struct safetensors safetensors;

/* Maps and checks `path`: every header byte is checked before the first tensor is given out.
 * KVT_OK; KVT_E_CORRUPT (lengths, offsets, shapes and types that do not fit each other or the
 * file); KVT_E_PARSE (the header is no JSON of this form); KVT_E_GONE, KVT_E_IO, KVT_E_MEMORY. */
KVT_NODISCARD kvt_status safetensors_open(const char *path, safetensors **file_out, char *message,
                                          size_t message_size);

/* The same over bytes that the caller keeps until the close; `name` is for messages. */
KVT_NODISCARD kvt_status safetensors_open_bytes(const char *name, const void *bytes, uint64_t size,
                                                safetensors **file_out, char *message,
                                                size_t message_size);
void safetensors_close(safetensors *file); /* NULL is allowed */

/* Tensors in order of their names. Pointers live until the close. NULL when there is none. */
size_t safetensors_count(const safetensors *file);
const safetensors_tensor *safetensors_at(const safetensors *file, size_t index);
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name);

/* A string of the file's metadata, NULL when there is none; lives until the close. */
const char *safetensors_metadata(const safetensors *file, const char *name);

/* Elements [first, first + count) of an F16, BF16 or F32 tensor as fp32. */
void safetensors_read_fp32(const safetensors_tensor *tensor, uint64_t first, uint64_t count,
                           float *out);

/* A string of a file's metadata. */
typedef struct safetensors_note {
    const char *name, *text;
} safetensors_note;

/* Writes a file of F16, BF16, F32 and 8-bit float tensors (name, dtype, type, rank, shape and data
 * are read; shape factors of zero are allowed), in the order given, with notes [note_count] as its
 * metadata. A regular file appears under `path` when it is complete; anything else at `path` is
 * written directly. KVT_OK; KVT_E_ARGUMENT (a dtype, rank, or a name that is empty, not UTF-8,
 * reserved or used twice; a note that is not UTF-8); KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status safetensors_write(const char *path, const safetensors_tensor *tensors,
                                           size_t count, const safetensors_note *notes,
                                           size_t note_count, char *message, size_t message_size);

#endif
