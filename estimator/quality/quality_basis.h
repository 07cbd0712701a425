/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_basis.h - bases of the transform codec, learnt on a model's KV (quality_basis_learn.c) or
 * on dumps of it (quality_basis_dumps.c), and what they save on other texts (quality_basis.c): bits
 * at the KL of the entropy codec.
 *
 * Thread rule: one thread per call.
 */
#ifndef ESTIMATOR_QUALITY_BASIS_H
#define ESTIMATOR_QUALITY_BASIS_H

#include "codecs/transform_basis.h"
#include "estimator/quality/quality.h"

enum { QUALITY_BASIS_SPANS = TRANSFORM_SPAN_LAYERS4 };

/* The name of a span, "head" for TRANSFORM_SPAN_HEAD; "" of 0. */
const char *quality_basis_span_name(uint32_t span);

/* ---- learning ---- */

/* The contexts that a basis is made of. All are cut from texts, and those of the tables from other
 * documents than those that teach. */
typedef struct quality_basis_lesson {
    const quality_model *target;
    const quality_entry *const *teach; /* [teach_count]: means, covariances and queries */
    uint32_t teach_count;
    const quality_entry *const *tables; /* [table_count]: spreads and tables */
    uint32_t table_count;
    uint64_t digest; /* of the texts */
    /* Called before each run of the model; false stops. May be NULL. */
    bool (*step)(void *context, const char *what);
    void *context;
} quality_basis_lesson;

/* Of each span; objects of spans that are too wide for the codec are NULL. */
typedef struct quality_bases {
    uint8_t *objects[QUALITY_BASIS_SPANS]; /* .kvtbasis, aligned to 64 */
    uint64_t bytes[QUALITY_BASIS_SPANS];
    transform_basis bases[QUALITY_BASIS_SPANS]; /* views of the objects */
} quality_bases;

/* Runs of the model that learning takes, which is how often step is called. */
uint32_t quality_bases_runs(const quality_basis_lesson *lesson);

/*
 * Learns all spans in one pass over the contexts that teach: covariances, second moments of the
 * continuations' queries, Gram matrices of the output projections, and noise on the first two
 * contexts, a layer and side at a time, which weighs the layers. The same lesson gives the same
 * bytes on one machine.
 *   objects_out  free with quality_bases_free, also after an error
 * KVT_OK; KVT_E_ARGUMENT (no context, or one with no token behind the sinks); KVT_E_CANCELLED;
 * KVT_E_UNSUPPORTED (KV beyond fp16); KVT_E_MEMORY; what a learner gives.
 */
KVT_NODISCARD kvt_status quality_bases_learn(const quality_basis_lesson *lesson,
                                             quality_bases *bases_out);
void quality_bases_free(quality_bases *bases);

/* Dumps that a basis is made of. All are of one shape. */
typedef struct quality_dump_lesson {
    const char *model;        /* its name, for the bases */
    const char *const *teach; /* [teach_count] */
    uint32_t teach_count;
    const char *const *tables; /* [table_count] */
    uint32_t table_count;
    const quality_rope *rope; /* how keys and queries turn */
    bool positioned;          /* every dump that teaches says where its queries stand */
    bool asked;               /* every dump that teaches has queries */
    uint64_t digest;          /* of the dumps */
    /* Called before each dump and each layer's noise; false stops. May be NULL. */
    bool (*step)(void *context, const char *what);
    void *context;
} quality_dump_lesson;

/* How often step is called. */
uint32_t quality_dump_lesson_steps(const quality_dump_lesson *lesson, uint32_t layers);

/*
 * quality_bases_learn without a model. Errors of K count by the second moments of the dumps'
 * queries where these are positioned, errors of V alike, because a dump has no output projection.
 * Where there are queries, noise on the first two dumps, a layer and side at a time, weighs the
 * layers by the squared relative error of attention; otherwise each layer and side has the same
 * ratio of signal to error. Statuses as there, with a message; KVT_E_ARGUMENT: another shape than
 * the first dump's, too, and what quality_dump_open gives.
 */
KVT_NODISCARD kvt_status quality_bases_learn_dumps(const quality_dump_lesson *lesson,
                                                   quality_bases *bases_out, char *message,
                                                   size_t message_size);

/* ---- judging ---- */

enum {
    QUALITY_BASIS_STEPS = 5,   /* of each span */
    QUALITY_BASIS_ENTROPY = 6, /* settings of entropy */
    QUALITY_BASIS_ROWS = QUALITY_BASIS_ENTROPY + QUALITY_BASIS_SPANS * QUALITY_BASIS_STEPS,
    QUALITY_BASIS_JUDGED = QUALITY_CLASSES_MAX + 2 /* each class, all that teach, all others */
};

/* Where bases are compared with entropy, and where recall is looked at for each span. */
#define QUALITY_BASIS_BITS 3.1
extern const double quality_basis_recall_bits[QUALITY_BASIS_SPANS];

typedef struct quality_basis_options {
    const char *model, *tokenizer;
    const quality_class *classes;
    uint32_t class_count;
    const bool *teaches;     /* [class_count]; NULL: all classes do */
    uint32_t teach_contexts; /* of all classes that teach */
    uint32_t table_contexts; /* likewise */
    uint32_t judge_contexts; /* of each class */
    uint32_t longest;        /* contexts of more tokens are passed over; 0: none is */
    uint32_t context_tokens;
    uint32_t continuation_tokens; /* longer continuations are cut */
    const char *output;           /* bases go to OUTPUT-SPAN.kvtbasis; NULL: nowhere */
    const char *basis;            /* bases come from BASIS-SPAN.kvtbasis; NULL: they are learnt */
    const char *rows;             /* a file that keeps what was judged; NULL: nothing is kept */
    double
        seconds; /* after which, and one form at least, the call stops as if cancelled; 0: never */
    kvt_profile_progress *progress;
    void *progress_context;
} quality_basis_options;

/* One form over the contexts that judge. Bits are of all tokens but the chain's sinks, which are
 * raw in every form. */
typedef struct quality_basis_row {
    char name[48];
    uint8_t span;       /* transform_span; 0: entropy */
    double bits;        /* an element, as stored */
    double order0_bits; /* an element: the order-0 entropy of the codes in their classes, on these
                           contexts; NAN: of entropy, or of codes that were stored raw */
    double kl;          /* mean over the continuation, nats; geometric mean over contexts */
    double top1;        /* mean */
    double recall_kl;   /* the same of a passage word for word; NAN: no text has one */
    double recall_top1; /* mean */
} quality_basis_row;

/* The contexts of one class, or of several together. */
typedef struct quality_basis_judged {
    char name[64];
    bool taught; /* documents of this class taught */
    uint32_t contexts;
    quality_basis_row rows[QUALITY_BASIS_ROWS];
    double reference_kl; /* the least of entropy at QUALITY_BASIS_BITS, between two settings */
    /* Of each span, from TRANSFORM_SPAN_HEAD on; NAN: not between two rows. */
    double bits[QUALITY_BASIS_SPANS];        /* at the reference's KL */
    double recall_top1[QUALITY_BASIS_SPANS]; /* at quality_basis_recall_bits */
} quality_basis_judged;

typedef struct quality_basis_report {
    profile_model model;
    uint32_t taught, tables; /* contexts */
    uint64_t taught_tokens;
    quality_basis_judged judged[QUALITY_BASIS_JUDGED];
    uint32_t judged_count;
    uint32_t row_count;                  /* of each */
    uint64_t bytes[QUALITY_BASIS_SPANS]; /* of the bases; 0: the span is too wide */
    char hashes[QUALITY_BASIS_SPANS][2 * TRANSFORM_HASH_BYTES + 1];
    double seconds;
} quality_basis_report;

/* Bases that come from files were learnt on the same texts, classes and roles, or are refused.
 * Of the documents of a class every fifth judges; of those of a class that teaches one of five
 * makes tables and three teach. Entries without a document are documents of their own. Stores
 * nothing. KVT_OK; KVT_E_ARGUMENT (a role has no context: message says which); KVT_E_CANCELLED;
 * KVT_E_MEMORY; what quality_model_open, quality_entries_read and quality_bases_learn give. */
KVT_NODISCARD kvt_status quality_basis_run(const quality_basis_options *options,
                                           quality_basis_report *report_out, char *message,
                                           size_t message_size);

/* ---- parts of the report, for tests (quality_basis_report.c) ---- */

/* Sums of one form over contexts. */
typedef struct quality_basis_sums {
    double bits, order0_bits, log_kl, top1, log_recall, recall_top1;
    uint32_t contexts, recalls;
} quality_basis_sums;

/* The least log KL of entropy at QUALITY_BASIS_BITS: below the lines between all pairs of settings,
 * since a mixture of two lies on theirs; NAN when no two have these bits between them. */
double quality_basis_reference(const quality_basis_row *rows, uint32_t count);

void quality_basis_add(quality_basis_sums *sums, const quality_basis_sums *more);

/* Fills rows [count], whose names and spans are set, and the rest of what was judged. */
void quality_basis_sum_up(const quality_basis_sums *sums, uint32_t count,
                          quality_basis_judged *judged);

#endif
