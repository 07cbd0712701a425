/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_tables.h - what entropy tables of other entries cost on KV, beside each matrix' own.
 * Thread rule: one thread per calibrate_tables.
 */
#ifndef ESTIMATOR_CALIBRATE_TABLES_H
#define ESTIMATOR_CALIBRATE_TABLES_H

#include <kvterrace/codec.h>

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
