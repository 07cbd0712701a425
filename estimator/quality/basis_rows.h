/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_rows.h - what was judged of bases, kept in a file as it is done, so that a judgement of an
 * hour that is stopped goes on: one line for each context and form, found by a key of everything
 * that the line follows from.
 *
 * Thread rule: one thread per basis_rows.
 */
#ifndef ESTIMATOR_QUALITY_BASIS_ROWS_H
#define ESTIMATOR_QUALITY_BASIS_ROWS_H

#include "estimator/quality/quality_basis.h"

typedef struct basis_rows basis_rows;

/* Opens a file of rows, or makes it; path NULL: rows are kept nowhere and none is found. Lines that
 * are none, such as the last one of a run that was killed, are passed over. KVT_OK; KVT_E_IO (the
 * message says what); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_rows_open(const char *path, basis_rows **rows_out, char *message,
                                         size_t message_size);
void basis_rows_close(basis_rows *rows); /* NULL is allowed */

/* The key of a form on an entry of a model: its tokens, the passage where one is asked for, and the
 * form's text, which names basis and step, or the variant. */
uint64_t basis_rows_key(const char *model_digest, const quality_entry *entry, bool recall,
                        const char *form);

/* Whether a row is there. */
bool basis_rows_find(const basis_rows *rows, uint64_t key, quality_basis_sums *sums_out);

/* Adds a row, on the disk when the call returns. KVT_OK; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status basis_rows_add(basis_rows *rows, uint64_t key,
                                        const quality_basis_sums *sums);

#endif
