/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_dumps.h - quality from KV dumps with queries: what every variant does to attention, into
 * a profile database and as a report; and dumps made of a model and texts. Entries are committed
 * one by one; a run that was stopped is gone on with when dumps and settings are the same.
 *
 * Thread rule: one run at a time per process; the profile belongs to the calling thread, and to one
 * of the measuring threads at a time meanwhile.
 */
#ifndef ESTIMATOR_QUALITY_DUMPS_H
#define ESTIMATOR_QUALITY_DUMPS_H

#include "estimator/profile/profile.h"
#include "estimator/quality/quality_attention.h"
#include "estimator/quality/quality_map.h"
#include "estimator/quality/quality_model.h"

enum { QUALITY_DUMPS_QUERIES = 8 /* of a layer and head, where nobody says */ };

typedef struct quality_dumps_options {
    const char *const *paths;
    uint32_t count;
    const char *name;       /* of the model that the KV is of */
    const char *class_name; /* of the texts */
    const quality_variant *variants;
    uint32_t variant_count;
    uint32_t queries; /* of a layer and head; 0: QUALITY_DUMPS_QUERIES. No more than there are */
    uint32_t threads; /* 0: one per processor */
    const char *command_line;
    kvt_profile_progress *progress; /* may be NULL; false stops (KVT_E_CANCELLED) */
    void *progress_context;
} quality_dumps_options;

typedef struct quality_dumps_report {
    profile_model model;
    kvt_layout layout; /* of the first dump */
    uint32_t query_heads, queries;
    uint32_t entries;
    quality_row *rows;     /* [entries][variant_count] */
    quality_curve *curves; /* [variant_count] */
    double *uppers;        /* [variant_count]: upper bound of the loss */
    bool *mapped;          /* [variant_count]: by a fit, else the bound */
    quality_map map;
    quality_attention_cost cost; /* of all threads */
    double square_gflops, shape_gflops;
    uint64_t resumed; /* rows that an earlier run had left */
    double seconds;
} quality_dumps_report;

/* KVT_OK; KVT_E_ARGUMENT (message says what: no dump, one without queries, of another shape than
 * the first, or with values that are not finite); KVT_E_CANCELLED; KVT_E_READ_ONLY; KVT_E_DATABASE;
 * what quality_dump_open gives. */
KVT_NODISCARD kvt_status quality_dumps_run(kvt_profile *profile,
                                           const quality_dumps_options *options,
                                           quality_dumps_report *report_out, char *message,
                                           size_t message_size);

/* The same measurement without a database: rows[count * variant_count], losses by `map`. Rows that
 * are present are kept as they are; the others are measured. */
KVT_NODISCARD kvt_status quality_dumps_measure(const quality_dumps_options *options,
                                               const quality_map *map, quality_row *rows,
                                               char *message, size_t message_size);

void quality_dumps_report_free(quality_dumps_report *report); /* zeroed is allowed */

/* ---- dumps of a model ---- */

typedef struct quality_dumps_make_options {
    const char *model, *tokenizer;
    const char *const *texts;
    uint32_t text_count;
    const char *folder; /* made when absent; files are 0000.safetensors and so on */
    uint32_t contexts, context_tokens, continuation_tokens;
    uint32_t queries; /* of each layer and head, spread over the continuation */
    kvt_profile_progress *progress;
    void *progress_context;
} quality_dumps_make_options;

/* Runs the model over contexts cut from the texts and writes one dump each: KV in fp16, queries of
 * the tokens that follow. KVT_OK; KVT_E_CANCELLED; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (KV beyond
 * fp16); what quality_model_open, quality_entries_read and quality_dump_write give. */
KVT_NODISCARD kvt_status quality_dumps_make(const quality_dumps_make_options *options,
                                            uint32_t *count_out, char *message,
                                            size_t message_size);

#endif
