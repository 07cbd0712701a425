/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_files.h - KV dumps in files: encoded into records and back, and as memory, for measuring on
 * one's own KV. A dump is a safetensors file; quality_round_trip.h says of which form.
 *
 * Thread rule: any thread; calls share nothing.
 */
#ifndef QUALITY_KV_FILES_H
#define QUALITY_KV_FILES_H

#include "codecs/record.h"
#include "estimator/profile/profile.h"

typedef struct kv_file_result {
    kvt_record_info info; /* its layout is that of the source */
    double nmse[2];       /* K, V; not a number when the dump has NaN or infinity */
    bool queried;         /* there were queries */
    double attention_error;
    uint32_t query_rows;
    uint32_t ignored; /* tensors of other names */
} kv_file_result;

/*
 * Encodes `path` with the variant, decodes it again to measure what was lost, and writes the record
 * to `target` unless that is NULL. The record's key is zero. KVT_OK; KVT_E_PARSE (the dump is not
 * of this form; the message says what is missing or does not fit); KVT_E_CORRUPT (not a sound
 * safetensors file); KVT_E_UNSUPPORTED (the codec does not take this shape); KVT_E_MISMATCH (the
 * variant's basis is not among them, or is of another shape); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 *   bases  that the variant may need
 */
KVT_NODISCARD kvt_status kv_file_encode(const char *path, kvt_variant variant,
                                        kvt_record_bases bases, const char *target,
                                        kv_file_result *result_out, char *message,
                                        size_t message_size);

/*
 * Decodes the record in `path` and writes k.<layer> and v.<layer> to `target`; after a drop also
 * positions.<layer>, F32 of shape [tokens]: which of the sequence's positions each row is. KVT_OK;
 * KVT_E_CORRUPT, KVT_E_VERSION; KVT_E_UNSUPPORTED (an opaque record, or one of 8-bit floats that
 * kv_file_encode did not make); KVT_E_MISMATCH (the record's basis is not among them: *info_out
 * names it); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status kv_file_decode(const char *path, kvt_record_bases bases,
                                        const char *target, kvt_record_info *info_out,
                                        char *message, size_t message_size);

/*
 * Reads the K and V of a dump (estimator/quality/quality_round_trip.h says what it holds), of its
 * first tokens when it is larger than `most_bytes`. out->name is `path` itself, which the caller
 * keeps. Release with kv_file_free. Statuses of quality_dump_open.
 */
KVT_NODISCARD kvt_status kv_file_read(const char *path, uint64_t most_bytes, kvt_profile_kv *out,
                                      char *message, size_t message_size);
void kv_file_free(kvt_profile_kv *kv);

#endif
