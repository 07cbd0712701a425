/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_file.h - codecs on KV dumps: a safetensors file (estimator/quality/quality_dump.h
 * says of which form) into a record and back.
 *
 * Thread rule: any thread; calls do not share anything.
 */
#ifndef BENCH_BENCH_CODECS_FILE_H
#define BENCH_BENCH_CODECS_FILE_H

#include "codecs/record.h"

typedef struct bench_file_result {
    kvt_record_info info; /* its layout is that of the source */
    double nmse[2];       /* K, V; not a number when the dump has NaN or infinity */
    bool queried;         /* there were queries */
    double attention_error;
    uint32_t query_rows;
    uint32_t ignored; /* tensors of other names */
} bench_file_result;

/*
 * Encodes `path` with the variant, decodes it again to measure what was lost, and writes the record
 * to `target` unless that is NULL. The record's key is zero. KVT_OK; KVT_E_PARSE (the dump is not
 * of this form; the message says what is missing or does not fit); KVT_E_CORRUPT (not a sound
 * safetensors file); KVT_E_UNSUPPORTED (the codec does not take this shape); KVT_E_GONE; KVT_E_IO;
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status bench_file_encode(const char *path, kvt_variant variant,
                                           const char *target, bench_file_result *result_out,
                                           char *message, size_t message_size);

/*
 * Decodes the record in `path` and writes k.<layer> and v.<layer> to `target`; after a drop also
 * positions.<layer>, F32 of shape [tokens]: which of the sequence's positions each row is. KVT_OK;
 * KVT_E_CORRUPT, KVT_E_VERSION; KVT_E_UNSUPPORTED (an opaque record, or FP8); KVT_E_GONE; KVT_E_IO;
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status bench_file_decode(const char *path, const char *target,
                                           kvt_record_info *info_out, char *message,
                                           size_t message_size);

#endif
