/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_source.h - where a calibration's KV comes from: a model that runs over texts
 * (source_model.c), or KV dumps (source_dumps.c). A calibration asks for the KV of an entry and
 * for the effect of a change of that KV: on the continuation's logits or, where no model runs, on
 * the outputs of the queries that a dump has.
 *
 * A calibration takes its entries from a source, counts tables and learns bases (docs/PROFILE.md,
 * One pipeline and two sources).
 *
 * Thread rule: one thread per source.
 */
#ifndef ESTIMATOR_QUALITY_SOURCE_H
#define ESTIMATOR_QUALITY_SOURCE_H

#include "estimator/quality/basis_learners.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

/* An entry before its KV is asked for. */
typedef struct quality_identity {
    kvt_layout layout;
    uint32_t heads;    /* of queries; 0: it has none */
    uint32_t queries;  /* of each layer and head, of a dump */
    uint64_t document; /* equal where entries were cut from one document; 0: not known */
    uint64_t content;  /* equal where the KV is */
    uint64_t link[2];  /* what digests of several entries are chained of */
    uint32_t links;
} quality_identity;

/* The digest of the entries so far and one more. */
uint64_t quality_identity_chain(const quality_identity *identity, uint64_t digest);

/* An entry whose KV is there. */
typedef struct quality_kv {
    kvt_layout layout;
    uint8_t *bytes; /* kvt_layout_bytes of it */
    evaluate_entry *judged;
    quality_dump dump;
    quality_attention *attention;
} quality_kv;

typedef struct quality_source quality_source;

/* An entry is a quality_entry of a model, the path of a dump. */
typedef struct quality_source_type {
    const char *method;  /* of sets in a profile */
    const char *entries; /* what progress and messages call them */

    /* KVT_OK; what quality_dump_open gives. */
    kvt_status (*identify)(quality_source *source, const void *entry, quality_identity *out);

    /* Whether an entry may teach a basis, or make its tables; takes note of what it has. NULL: all
     * may. KVT_OK; KVT_E_ARGUMENT with a message; KVT_E_PARSE; KVT_E_MEMORY. */
    kvt_status (*admit)(quality_source *source, const void *entry, bool tables);

    /* The KV; quality_source_close closes it, also after an error. KVT_OK; KVT_E_UNSUPPORTED (KV
     * beyond fp16); KVT_E_ARGUMENT (another shape than the first entry's); KVT_E_MEMORY; what
     * quality_dump_open gives. */
    kvt_status (*open)(quality_source *source, const void *entry, quality_kv *out);

    /* The Gram matrices of the output projections, once; NULL: not known. KVT_OK; KVT_E_MEMORY. */
    kvt_status (*outputs)(quality_source *source, basis_learners *learners);

    /* Queries that attend to the entry. KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY. */
    kvt_status (*queries)(quality_source *source, quality_kv *kv, basis_learners *learners);

    /* The cost of noise on one layer and side, [tokens][kv_heads][head_dim], none on the sinks: KL
     * of the continuation, or the squared relative error of attention. KVT_OK; KVT_E_MEMORY. */
    kvt_status (*disturb)(quality_source *source, quality_kv *kv, uint32_t layer, kvt_side side,
                          const float *noise, double *error_out);
} quality_source_type;

struct quality_source {
    const quality_source_type *type;
    const char *name;  /* of the model, for bases */
    quality_rope rope; /* how keys and queries turn */
    bool asked;        /* what follows every entry that teaches is known */
    bool positioned;   /* of dumps: and where it stands */
    const char *at;    /* the present dump's path, for messages; NULL: none */
    char *message;
    size_t message_size;
    /* Of a model. */
    const quality_model *target;
    model_session *session; /* opened by need */
    evaluate_variant changed;
    /* Of dumps. */
    bool given;       /* rope is the caller's, whatever dumps say */
    bool turns;       /* rope is known */
    kvt_layout first; /* its shape is everybody's; layers 0: not known yet */
    uint32_t heads;   /* of queries; 0: not known yet */
};

/* A model's source; `target` stays. */
quality_source quality_source_of_model(const quality_model *target, char *message,
                                       size_t message_size);

/* Dumps of a model of that name. The caller may set `rope` and `given`; else keys turn as those
 * dumps say that teach. */
quality_source quality_source_of_dumps(const char *name, char *message, size_t message_size);

void quality_source_end(quality_source *source); /* zeroed is allowed */

/* KVT_OK with the KV of an entry, or what type->open gives; then nothing is to be closed. */
KVT_NODISCARD kvt_status quality_source_open(quality_source *source, const void *entry,
                                             quality_kv *kv_out);
void quality_source_close(quality_kv *kv);

/* The status, with a message that begins with the present dump's path. */
__attribute__((format(printf, 3, 4))) kvt_status
quality_source_refuse(const quality_source *source, kvt_status status, const char *format, ...);

/* ---- learning bases ---- */

/* The entries that bases are made of; those of the tables are others. */
typedef struct quality_lesson {
    quality_source *source;
    const void *const *teach; /* [teach_count]: means, covariances and queries */
    uint32_t teach_count;
    const void *const *tables; /* [table_count]: spreads and tables */
    uint32_t table_count;
    uint64_t digest; /* of the entries */
    /* Called before an entry is opened, and before each layer's noise; false stops. May be NULL. */
    bool (*step)(void *context, const char *what);
    void *context;
} quality_lesson;

/* How often step is called. */
uint32_t quality_lesson_steps(const quality_lesson *lesson, uint32_t layers);

/*
 * Learns all spans in one pass over the entries that teach: covariances, second moments of the
 * queries, Gram matrices of the output projections where the source knows them, and noise on the
 * first two entries, a layer and side at a time, which weighs the layers where what follows an
 * entry is known; otherwise each layer and side has the same ratio of signal to error. The same
 * lesson gives the same bytes on one machine.
 *   bases_out  free with quality_bases_free, also after an error
 * KVT_OK; KVT_E_ARGUMENT (no entry, or one with no token behind the sinks); KVT_E_CANCELLED; what
 * the source and a learner give. The source has the message.
 */
KVT_NODISCARD kvt_status quality_lesson_learn(const quality_lesson *lesson,
                                              quality_bases *bases_out);

#endif
