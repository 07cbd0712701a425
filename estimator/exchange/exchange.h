/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange.h - a profile's rows as JSON: in from elsewhere, out to elsewhere and for people, and
 * what differs between two profiles. It stands outside of the library, which reads profiles as
 * SQLite alone. docs/PROFILE.md has the format, the tables and the columns.
 *
 * Thread rule: as profile.h says.
 */
#ifndef ESTIMATOR_EXCHANGE_H
#define ESTIMATOR_EXCHANGE_H

#include "estimator/profile/profile.h"

#include <jansson.h>

/*
 * Brings rows from a JSON document (also .zst) into the profile: device speeds, task scores or
 * losses, prefill times, calibrations; or a basis from a file FILE.kvtbasis. Every row has a
 * source, its own or `source` (may be NULL then). The whole file comes in, or nothing. KVT_OK;
 * KVT_E_PARSE (message: file, row, field, reason); KVT_E_GONE (no such file); KVT_E_IO;
 * KVT_E_READ_ONLY; KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status exchange_import(kvt_profile *profile, const char *path, const char *source,
                                         const char *command_line, uint64_t *rows_out,
                                         char *message, size_t message_size);

/* The same of a document's tables, each an array of rows. */
KVT_NODISCARD kvt_status exchange_import_tables(kvt_profile *profile, json_t *tables,
                                                const char *source, char *message,
                                                size_t message_size);

/*
 * Puts the rows of one table, or of every one that an import takes (NULL), as arrays under their
 * tables' names into `tables`; interrupted runs are left out. Tables "run" and "learned" are for
 * reading alone. KVT_OK; KVT_E_ARGUMENT (no such table); KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status exchange_export(kvt_profile *profile, const char *table, json_t *tables);

/* A document of rows, which takes over `tables`; NULL without memory. */
json_t *exchange_document(const char *database, json_t *tables);

/*
 * Puts the rows of a view into `views` under its name, with the columns of docs/PROFILE.md: "runs"
 * (all of them); "mixed", "starts", "codecs", "models", "quality_sets", "quality" (by set_id),
 * "calibrations", "rungs", "choices" (by calibration_id), "learned", "bases" (all, without their
 * objects), "prefill", "passes" (what answers: of the newest complete run that measured the same
 * thing).
 * KVT_OK; KVT_E_ARGUMENT (no such view); KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status exchange_view(kvt_profile *profile, const char *view, json_t *views);

/*
 * Compares what answers in two profiles, figure by figure, into rows ordered by curve: curve
 * ("device ssd0 read"), quantity ("bytes_per_s"), before and after (null: only in the other one),
 * change ((after - before) / before; null from 0, or when one is missing) and spread ("within":
 * their repetitions overlap, "beyond", "unknown"). KVT_OK; KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status exchange_diff(kvt_profile *before, kvt_profile *after, json_t *changes);

/*
 * Drops runs that answer for nothing because newer complete ones do, or because they were
 * interrupted longer than so many seconds ago, and models without curves; then the file shrinks. An
 * interrupted run that alone knows a thing stays. Fills the report: "runs" (run, kind, started_utc,
 * reason: "superseded" or "interrupted", source), "models" (how many), "bytes_before",
 * "bytes_after". dry_run: only says what would go. KVT_OK; KVT_E_READ_ONLY; KVT_E_DATABASE;
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status exchange_gc(kvt_profile *profile, bool dry_run, double interrupted_seconds,
                                     json_t *report);

/*
 * The variants to choose among for one model (by name) and class of text: raw, then the accepted
 * rungs of the newest calibration, or without one the measured or imported variants that no other
 * beats in both size and loss; sizes fall. Speeds are the profile's codec curves. layout may be
 * NULL; the model's layers, KV heads and head dimension must agree with it as far as they are
 * known. KVT_OK; KVT_MISS (message: no such model, class, or the speed of which variant is
 * missing); KVT_E_MISMATCH (message: what differs from the layout); KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status exchange_ladder(kvt_profile *profile, const char *model,
                                         const char *class_name, const kvt_layout *layout,
                                         kvt_codec_curve *curves, uint32_t capacity,
                                         uint32_t *count_out, char *message, size_t message_size);

/*
 * Reads a ladder of variants: the table "ladder" of a document (also .zst;
 * profiles/ladder-codec-trial.json shows the columns and says where each row comes from). Sizes
 * fall from row to row. KVT_OK; KVT_E_PARSE (message: file, row, field, reason); KVT_E_GONE;
 * KVT_E_IO; KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status exchange_ladder_read(const char *path, kvt_codec_curve *curves,
                                              uint32_t capacity, uint32_t *count_out, char *message,
                                              size_t message_size);

#endif
