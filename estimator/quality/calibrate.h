/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate.h - the choices of a model's ladder, made of measurements.
 *
 * What a good variant is differs between models, and some answers invert (K or V first, tokens or
 * channels, which tokens to drop). So each is a question with candidates: all are
 * measured on the same entries and compared pair by pair, over entries of all classes. From the
 * chosen ones follow the rungs, and of those only such count as no cheaper rung beats. Each class
 * has a ladder of these rungs with its own losses, and classes that were not measured have one
 * with wider bounds.
 *
 * Thread rule: one calibration at a time; the source may use threads of its own.
 */
#ifndef ESTIMATOR_CALIBRATE_H
#define ESTIMATOR_CALIBRATE_H

#include "estimator/profile/profile.h"
#include "estimator/quality/promise.h"
#include "estimator/quality/quality.h"

#include <kvterrace/codec.h>

enum {
    CALIBRATE_VARIANTS_MAX = 96,
    CALIBRATE_WANTED_MAX = 40,
    CALIBRATE_BASIS_STEPS = 5, /* variants that an accepted basis gives */
    CALIBRATE_RUNGS_MAX = 60,
    CALIBRATE_KNOWN_MAX = CALIBRATE_RUNGS_MAX - CALIBRATE_BASIS_STEPS * TRANSFORM_SPAN_LAYERS4,
    CALIBRATE_CHOICES_MAX = 9,
    CALIBRATE_TEXT_BYTES = 640,
    CALIBRATE_NOTES_MAX = 8,
    CALIBRATE_LADDERS_MAX = QUALITY_CLASSES_MAX + 1
};

#define CALIBRATE_NONE UINT32_MAX /* no variant */

/* Bases of the transform codec that the question `entropy: basis` is about. */
typedef struct calibrate_bases {
    uint32_t starts[TRANSFORM_SPAN_LAYERS4]; /* of their hashes, by span */
    bool present[TRANSFORM_SPAN_LAYERS4];
    bool taught[QUALITY_CLASSES_MAX]; /* documents of this class taught them */
    const char *metric;               /* what an error costs in them, and what weighs the layers */
} calibrate_bases;

/* Where rows come from: a model that goes on from decoded KV, or dumps with queries. */
typedef struct calibrate_source {
    uint32_t entries;
    /* [entries], below class_count; NULL: all of class 0. */
    const uint32_t *classes;
    uint32_t class_count;           /* 1 to QUALITY_CLASSES_MAX; 0 counts as 1 */
    const char *const *class_names; /* [class_count]; may be NULL with one class */
    const uint64_t *documents;      /* [entries], as in quality_summarise; may be NULL */
    const bool *asked;            /* [entries]: questions are asked on these alone; NULL: on all */
    uint32_t trials;              /* that one row's loss is a mean of: tokens, or queries */
    const calibrate_bases *bases; /* NULL: no question about them */
    /* Measures the variants: rows_out[entry * count + variant], with loss set and, where the method
     * has it, kl, the distortion that variants are compared by; otherwise attention_error. Needed
     * are the entries that `mask` says, NULL: all; rows of others that are there anyhow count as
     * well. Rows of variants that do not take the layout are not present. */
    kvt_status (*measure)(void *context, const quality_variant *variants, uint32_t count,
                          const bool *mask, quality_row *rows_out);
    /* Mean bits per element of an entropy variant with each matrix' own tables and with one table
     * per layer and side of other entries' codes; NULL: that question is not asked. */
    kvt_status (*tables)(void *context, const quality_variant *variant, double *own_bits_out,
                         double *shared_bits_out);
    void *context;
} calibrate_source;

/* The entries that a variant was measured on: the pilot's, which are the first ones that questions
 * are asked on, all that they are asked on, or all. */
typedef enum calibrate_reach { CALIBRATE_PILOT, CALIBRATE_ASKED, CALIBRATE_ALL } calibrate_reach;

/* Measured variants, each once. */
typedef struct calibrate_rows {
    const calibrate_source *source;
    quality_variant variants[CALIBRATE_VARIANTS_MAX];
    uint8_t reach[CALIBRATE_VARIANTS_MAX]; /* calibrate_reach */
    /* Of one that is no rung by the pilot alone, what beat it there; CALIBRATE_NONE of others. */
    uint32_t beaten_by[CALIBRATE_VARIANTS_MAX];
    uint32_t count;
    quality_row *rows;     /* [entries][CALIBRATE_VARIANTS_MAX] */
    quality_curve *curves; /* [CALIBRATE_VARIANTS_MAX]; entries 0: does not take the layout */
    uint32_t *documents;   /* [entries], from 0 on */
    bool *pilot;           /* [entries] */
    uint32_t pilot_count, asked_count;
    double *sums; /* [2 * entries], for comparing */
    uint64_t seed;
    /* What calibrate_run made of them. */
    bool accepted[TRANSFORM_SPAN_LAYERS4]; /* bases, by span */
    struct calibrate_left {
        char name[QUALITY_NAME_BYTES]; /* was named, or is of an accepted basis, and is no rung */
        uint32_t entries;              /* that have a row of it, too few; 0: none has one */
        bool named;
    } left[CALIBRATE_RUNGS_MAX];
    uint32_t left_count;
} calibrate_rows;

static inline const quality_row *calibrate_row_at(const calibrate_rows *rows, uint32_t entry,
                                                  uint32_t variant)
{
    return &rows->rows[(size_t)entry * CALIBRATE_VARIANTS_MAX + variant];
}

typedef struct calibrate_choice {
    const char *question;
    char chosen[QUALITY_NAME_BYTES];
    char evidence[CALIBRATE_TEXT_BYTES];
} calibrate_choice;

/* What a rung asks for beside a decoder: nothing, a basis, which is the slower to decode the wider
 * its span is, or that tokens may go. */
typedef enum calibrate_kind {
    CALIBRATE_PLAIN,
    CALIBRATE_HEAD, /* and on: the spans of transform_span */
    CALIBRATE_LAYER,
    CALIBRATE_LAYERS4,
    CALIBRATE_DROPS,
    CALIBRATE_KINDS
} calibrate_kind;

/* Whether one kind can stand for another: it asks for no more, and decodes no slower. A variant
 * that keeps all tokens is measured against its like alone, since the others are not for every
 * layout; one that drops some has no basis. */
bool quality_stands_for(calibrate_kind kind, calibrate_kind other);

/* The kind of a variant, given the bases of its calibration; NULL: none. */
calibrate_kind calibrate_kind_of(const calibrate_bases *bases, kvt_variant variant);

typedef struct calibrate_rung {
    quality_variant variant;
    double bits_per_element;
    double loss, loss_upper; /* do not fall along the accepted rungs */
    double loss_entry;       /* 90 % of entries lose no more; likewise; 0: not known */
    uint8_t kind;            /* calibrate_kind: losses do not fall within one */
    bool accepted;
    char evidence[CALIBRATE_TEXT_BYTES];
} calibrate_rung;

/* Rungs by falling bits. */
typedef struct calibrate_ladder {
    calibrate_choice choices[CALIBRATE_CHOICES_MAX];
    uint32_t choice_count;
    calibrate_rung rungs[CALIBRATE_RUNGS_MAX];
    uint32_t rung_count;
    uint32_t entries; /* that have a row of every rung */
    double widening;  /* in both bounds, for a class that was not measured; 0: it was */
} calibrate_ladder;

/* Variants to judge as rungs, beside those of accepted bases and instead of the others that follow
 * from the answers. */
typedef struct calibrate_wanted {
    const quality_variant *variants;
    uint32_t count; /* at most CALIBRATE_KNOWN_MAX */
    bool answers;   /* questions that name no rung are answered too, by the rows that are there */
} calibrate_wanted;

/* Measures what the questions need, answers them, and makes the ladders: one of each class in
 * order, and of two classes and more one for entries of any other; all have the same choices and
 * rungs. wanted may be NULL. rows_out keeps all that was measured; calibrate_rows_free it, also
 * after an error. KVT_OK; KVT_E_ARGUMENT (the layout takes no lossy variant, or a class has fewer
 * than two entries with a row of every rung); KVT_E_MEMORY; what the source gave. */
KVT_NODISCARD kvt_status calibrate_run(const calibrate_source *source, uint64_t seed,
                                       const calibrate_wanted *wanted,
                                       calibrate_ladder *ladders_out, calibrate_rows *rows_out,
                                       char *message, size_t message_size);
uint32_t calibrate_ladder_count(const calibrate_source *source);

/* ---- parts, for tests ---- */

/* Room for rows of the source. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status calibrate_rows_make(calibrate_rows *rows, const calibrate_source *source,
                                             uint64_t seed);
void calibrate_rows_free(calibrate_rows *rows);

/* Two variants entry by entry: log of distortion (KL, or squared attention error), less what the
 * difference in bits is worth: 2 ln 2 a bit, as at high rates. Below zero: a is better. */
typedef struct calibrate_pair {
    uint32_t entries, documents;
    double mean, low, high; /* 95 % interval of the mean, over documents */
} calibrate_pair;

enum { CALIBRATE_ALL_CLASSES = -1, CALIBRATE_NEW_CLASS = -1 };

/* Over the entries of a class that have both. even_bits: bits count as above; else distortion
 * alone. */
calibrate_pair calibrate_compare(const calibrate_rows *rows, uint32_t a, uint32_t b, bool even_bits,
                                 int class_index);

/* Measures variants by name that have not been, on the entries of the reach. indices_out[count]:
 * where they are; CALIBRATE_NONE for one that does not take the layout.
 */
KVT_NODISCARD kvt_status calibrate_measure(calibrate_rows *rows, const char *const *names,
                                           uint32_t count, calibrate_reach reach,
                                           uint32_t *indices_out);

/* The rungs of measured variants, by falling bits, for entries of one class, or of those that were
 * not measured (CALIBRATE_NEW_CLASS); docs/PROFILE.md says what is refused. Entries that lack a row
 * of one of them do not count. Choices are left alone. KVT_OK; KVT_E_ARGUMENT (fewer than two
 * entries are left); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status calibrate_make_ladder(const calibrate_rows *rows, const uint32_t *variants,
                                               uint32_t count, int class_index,
                                               calibrate_ladder *ladder);

/* ---- the pilot ---- */

/* Marks the pilot's entries: the first asked ones of each class, of different documents. */
void quality_pilot_choose(calibrate_rows *rows);

/* Of the variants that were measured, or are marked, one that is cheaper than this one, may stand
 * for it and is better on the pilot beyond doubt; CALIBRATE_NONE: none. */
uint32_t quality_pilot_beaten_by(const calibrate_rows *rows, const bool *marked, uint32_t variant);

/* Which candidates of a question the pilot leaves: none that is no better than another at even
 * bits, nor one that drops tokens where a cheaper variant is better with all of them. One alone is
 * the answer. Of the question about bases: those that the pilot leaves in doubt or finds better,
 * and entropy, the first, with them. Returns how many. */
uint32_t quality_pilot_leaves(const calibrate_rows *rows, const uint32_t *at, uint32_t count,
                              bool *left);
uint32_t quality_pilot_leaves_bases(const calibrate_rows *rows, const uint32_t *at, uint32_t count,
                                    bool *left);

enum { CALIBRATE_LIMITS = 3 }; /* 0.01, 0.02 and 0.05 */

/* Tries the bounds of a ladder's rungs at the limits, on entries that have a row of each: of
 * classes left out in turn, and of half of the documents of each class. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status calibrate_try(const calibrate_rows *rows, const calibrate_ladder *ladder,
                                       promise_trial classes[CALIBRATE_LIMITS],
                                       promise_trial documents[CALIBRATE_LIMITS]);

/* ---- bounds of rungs ---- */

/* Sets loss_upper and loss_entry of the rungs for entries of a class (promise.h), or of those of
 * none (CALIBRATE_NEW_CLASS). `variants` are those of the rows. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status calibrate_bound(const promise_rows *rows, const quality_variant *variants,
                                         int class_index, calibrate_ladder *ladder);

/* Puts rungs, choices and bounds of a ladder into the profile. KVT_OK; KVT_E_DATABASE; ... */
KVT_NODISCARD kvt_status calibrate_put_ladder(kvt_profile *profile, int64_t run, int64_t of_model,
                                              const char *class_name,
                                              const calibrate_ladder *ladder);

/* ---- a calibration into a profile database ---- */

/*
 * The source is a model and texts, or KV dumps with queries. Every measured row is stored as it is
 * done. Rows that any measurement of this library version has left of the same model, texts and
 * cuts are not measured again, whether it was a calibration or one of quality, complete or not. The
 * profile belongs to the calling thread, and to one of the measuring threads at a time meanwhile.
 */

typedef struct calibrate_options {
    const char *name;             /* of the model; NULL: from its path (not with dumps) */
    const char *model;            /* as model_open takes it; NULL: dumps */
    const char *tokenizer;        /* NULL: tokenizer.bin in the model's folder */
    const quality_class *classes; /* with dumps without texts */
    uint32_t class_count;
    const calibrate_wanted *wanted; /* NULL: rungs follow from the answers. Of quality_profile_run
                                       the variants, 1 to QUALITY_VARIANTS_MAX */
    uint32_t contexts;              /* of each class, at most; with dumps 0 is all of them */
    uint32_t question_contexts;     /* of them, that questions are asked on; 0: all */
    uint32_t context_tokens, continuation_tokens;
    uint32_t answer_tokens; /* 0: no answers are generated, and no metric compares them */
    quality_metric metric;
    quality_use use;
    double seconds; /* after which, and after one row at least, the calibration stops as if it were
                       cancelled; 0: never */
    bool basis;     /* bases of the transform codec are learnt, and asked about */
    bool lesson;    /* nothing else is done, with a model: contexts is 0, no entry judges */
    const bool *teaches;     /* [class_count]: whose documents teach; NULL: the first class's */
    uint32_t teach_contexts; /* that teach, at most; one in four makes tables instead */
    uint64_t teach_tokens;   /* of them, about */
    bool unjudged; /* a model that does not understand the texts is measured too: for models of
                      random numbers */
    bool finish;   /* nothing is measured: the rows that are there count as all. Without `wanted`
                       the rungs are the lossy variants that were measured on as many entries as
                       most */
    const char *const *dumps;
    uint32_t dump_count;
    const uint32_t *dump_classes; /* [dump_count]; NULL: all of the first class */
    const char *rope; /* how the keys of dumps turn, as quality_rope_parse takes it; NULL: as those
                         say that teach */
    uint32_t queries; /* of a dump's layers and heads; 0: QUALITY_DUMPS_QUERIES, or as many as the
                         first has */
    uint32_t threads; /* 0: one per processor */
    const char *command_line;
    kvt_profile_progress *progress; /* may be NULL; false stops (KVT_E_CANCELLED) */
    void *progress_context;
} calibrate_options;

typedef struct calibrate_report {
    profile_model model;
    uint32_t entries;
    uint32_t measured; /* variants */
    uint64_t resumed;  /* rows that were there */
    uint64_t rows;     /* that were measured now */
    uint32_t taught;   /* contexts that taught the bases; 0: none did now */
    uint64_t taught_tokens;
    double seconds;
    char names[CALIBRATE_LADDERS_MAX][64];
    char notes[CALIBRATE_NOTES_MAX][CALIBRATE_TEXT_BYTES]; /* sentences: what no ladder has, why,
                                                              and what to run */
    uint32_t note_count;
    calibrate_ladder ladders[CALIBRATE_LADDERS_MAX];
    uint32_t ladder_count;
    quality_likelihood likelihoods[QUALITY_CLASSES_MAX]; /* by class, of a model; NAN: not known */
    /* How bounds hold on what they were not made of: classes left out, and halves of documents. */
    promise_trial classes[CALIBRATE_LIMITS], documents[CALIBRATE_LIMITS];
} calibrate_report;

/* KVT_OK; KVT_E_ARGUMENT (message says what); KVT_E_MISMATCH (the model does not understand the
 * texts of a class: there is no ladder); KVT_E_CANCELLED; KVT_E_READ_ONLY; KVT_E_DATABASE;
 * what calibrate_run and the readers of models, texts and dumps give. */
KVT_NODISCARD kvt_status calibrate_profile_run(kvt_profile *profile,
                                               const calibrate_options *options,
                                               calibrate_report *report_out, char *message,
                                               size_t message_size);

/* ---- curves of variants into a profile database, and as a report ---- */

typedef struct quality_set_report {
    char class_name[64];
    uint32_t entries, documents;                  /* that are whole: a row of every variant */
    uint32_t context_tokens, continuation_tokens; /* of the first entry */
    quality_spread spread;
    quality_likelihood likelihood; /* of the entries; NAN of passages, and of dumps */
    quality_curve *curves;         /* [variant_count] */
    double *sensitivity;           /* [entries], the entry effect */
} quality_set_report;

/* Classes in their order, each with its passages as class "NAME/recall" where it has some; then, of
 * two classes and more, all entries together as class "pooled". */
typedef struct quality_report {
    profile_model model;
    quality_metric metric;
    quality_use use;
    quality_set_report sets[2 * QUALITY_CLASSES_MAX + 2];
    uint32_t set_count;
    /* Of dumps. */
    quality_map map;
    bool mapped[QUALITY_VARIANTS_MAX]; /* the loss is by a fit; else by a bound */
    uint32_t queries;                  /* of each layer and head */
    uint64_t measured;                 /* rows */
    uint64_t resumed;                  /* rows that an earlier run had left */
    double seconds;
} quality_report;

/* The options of a calibration without bases and questions, of dumps one class. Entries of the
 * classes are measured in turn, so that a measurement that stops has about as many of each; one
 * that was stopped is gone on with when model, texts or dumps, cuts and metric are the same.
 * KVT_OK; KVT_E_ARGUMENT (message says what); KVT_E_MISMATCH (the model does not understand the
 * texts of a class: the report is whole, the database has rows and no curves); KVT_E_CANCELLED (the
 * report of a model then has what is there, unless no entry is whole; the database has rows and no
 * curves); KVT_E_READ_ONLY; KVT_E_DATABASE; what the readers of models, texts and dumps and
 * quality_measure give. */
KVT_NODISCARD kvt_status quality_profile_run(kvt_profile *profile, const calibrate_options *options,
                                             quality_report *report_out, char *message,
                                             size_t message_size);
void quality_report_free(quality_report *report); /* zeroed is allowed */

/* ---- what entropy tables of other entries cost on KV, beside each matrix' own ---- */

/*
 * One thread per calibrate_tables.
 */

enum { CALIBRATE_TABLES_ENTRIES = 4 /* that are counted, and as many that are coded */ };

typedef struct calibrate_tables {
    kvt_variant variant;
    kvt_layout layout;
    uint32_t *counts; /* [layers][K, V][KVT_ENTROPY_SYMBOLS] */
    double own_bits, shared_bits;
    uint32_t coded;
} calibrate_tables;

/* KVT_OK; KVT_E_UNSUPPORTED (another codec, or a layout that it does not take); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status calibrate_tables_open(kvt_variant variant, const kvt_layout *layout,
                                               calibrate_tables *tables);
void calibrate_tables_close(calibrate_tables *tables);

/* Adds an entry's symbols to the counts; codes one both ways. Entries are of the layout but for
 * their tokens. KVT_OK; KVT_E_MEMORY; what the codec gives. */
KVT_NODISCARD kvt_status calibrate_tables_count(calibrate_tables *tables, uint32_t tokens,
                                                const void *entry);
KVT_NODISCARD kvt_status calibrate_tables_code(calibrate_tables *tables, uint32_t tokens,
                                               const void *entry);

#endif
