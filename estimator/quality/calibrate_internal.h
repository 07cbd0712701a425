/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_internal.h - a calibration at work: its entries (calibrate_profile.c), and the rows
 * that are there or are measured (calibrate_measure.c). Of these it makes ladders
 * (calibrate_profile.c) or curves (quality_profile.c). Thread rule: callbacks come from
 * measuring threads, one at a time.
 */
#ifndef ESTIMATOR_CALIBRATE_INTERNAL_H
#define ESTIMATOR_CALIBRATE_INTERNAL_H

#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_source.h"

/* A row that is in the profile or was measured before, its loss and distortion as this calibration
 * judges. */
typedef struct calibrate_kept {
    kvt_variant variant;
    uint32_t entry; /* of all */
    bool counted;   /* as one that was there */
    quality_row row;
} calibrate_kept;

typedef struct calibration {
    kvt_profile *profile;
    const calibrate_options *options;
    calibrate_report *report;
    bool curves; /* of the wanted variants, and no ladders: rows of its own sets alone count */
    char *message;
    size_t message_size;
    double started;
    quality_model measured;                     /* of a model */
    quality_entries texts[QUALITY_CLASSES_MAX]; /* as many as were read for, at least `taken` */
    uint32_t taken[QUALITY_CLASSES_MAX];        /* entries of each class */
    quality_map maps[QUALITY_CLASSES_MAX];      /* of dumps, by class */
    uint32_t queries;                           /* of a dump's layers and heads */
    quality_source source;
    kvt_layout layout;
    int64_t run, model;
    int64_t sets[QUALITY_CLASSES_MAX], passages[QUALITY_CLASSES_MAX]; /* 0: no entry has one */
    /* Entries of the classes in turn, so that a calibration that stops has about as many of
     * each. */
    uint32_t entry_count;
    const void **handles;         /* of each, what the source knows it by */
    quality_identity *identities; /* likewise; kept where bases are learnt */
    quality_entry *entries;       /* of dumps their tokens alone */
    uint32_t *classes, *numbers;  /* the class of each, and which of its entries it is */
    uint64_t *documents;
    bool *asked;
    quality_exact *exact;
    calibrate_bases bases;
    profile_basis owned[QUALITY_BASIS_SPANS];
    const transform_basis *views[QUALITY_BASIS_SPANS];
    kvt_record_bases listed; /* of views */
    calibrate_kept *kept;
    size_t kept_count, kept_capacity;
    bool failed; /* no memory for a row */
    /* While rows are read: of which class, and whether they have answers to compare. */
    uint32_t at;
    bool compares;
    /* While measuring. */
    const quality_variant *variants;
    uint32_t count;
    const bool *mask; /* of the entries that are wanted; NULL: all */
    bool measures;
    quality_row *rows;
    uint64_t done, expected;
} calibration;

/* Checks the options, opens the source, finds or makes the sets, and reads the rows that are there.
 * calibrate_close also after an error. KVT_OK; KVT_E_ARGUMENT with a message; KVT_E_DATABASE;
 * KVT_E_READ_ONLY; what the source gives. */
KVT_NODISCARD kvt_status calibrate_open(calibration *c);
void calibrate_close(calibration *c);

/* A set of entries of which `first` is the first. KVT_OK; KVT_E_DATABASE; KVT_E_READ_ONLY. */
KVT_NODISCARD kvt_status calibrate_open_set(calibration *c, const char *class_name,
                                            const quality_entry *first, const char *settings,
                                            uint32_t entries, int64_t *set_out);

/* The first entry of a class; 0 where it has none. */
uint32_t calibrate_first(const calibration *c, uint32_t class_index);

/* Learns bases on entries that are not judged, or takes those of an interrupted calibration
 * (calibrate_basis.c). KVT_OK; KVT_E_ARGUMENT (no entry is left: the message says so);
 * KVT_E_CANCELLED; what quality_lesson_learn and profile_basis_put give. */
KVT_NODISCARD kvt_status calibrate_learn(calibration *c);

/* The number-th entry of a class as the source knows it, those that judge first; NULL: none. */
const void *calibrate_candidate(const calibration *c, uint32_t class_index, uint32_t number);

/* How many entries of a class are read for the judges and for those that teach. */
uint32_t calibrate_entries_read(const calibrate_options *options, uint32_t class_index);

/* Reads what the profile has of the calibration's entries. KVT_OK; KVT_E_MEMORY; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status calibrate_take_rows(calibration *c);

/* The lossy variants of the rows, each once, that are there on at least half as many entries as the
 * one with the most. Returns how many, of which the first `capacity` are there. */
uint32_t calibrate_known_variants(const calibration *c, quality_variant *variants,
                                  uint32_t capacity);

/* The two callbacks of calibrate_source. */
KVT_NODISCARD kvt_status calibrate_source_measure(void *context, const quality_variant *variants,
                                                  uint32_t count, const bool *mask,
                                                  quality_row *rows_out);
KVT_NODISCARD kvt_status calibrate_source_tables(void *context, const quality_variant *variant,
                                                 double *own_bits_out, double *shared_bits_out);

#endif
