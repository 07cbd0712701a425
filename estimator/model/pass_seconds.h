/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_seconds.h - measures what one layer of a pass takes on a model that runs here.
 *
 * Thread rule: one thread at a time per model.
 */
#ifndef MODEL_PASS_SECONDS_H
#define MODEL_PASS_SECONDS_H

#include "estimator/model/model.h"
#include <kvterrace/load.h>

typedef struct pass_grid {
    const uint32_t *new_tokens; /* each with each of */
    const uint32_t *prefix_tokens;
    uint32_t new_count, prefix_count;
    uint32_t repetitions; /* at least 1; the median counts */
    /* Told of the share that is done; false ends the measurement. Or NULL. */
    bool (*proceed)(void *context, double done);
    void *context;
} pass_grid;

/*
 * Times passes over the grid, each behind a prefix that is there in fp32, over the layers.
 * A model that another program runs is measured without prefixes alone, because its prefix would be
 * sent with each pass. rows: room for new_count * prefix_count. KVT_OK; KVT_E_CANCELLED;
 * KVT_E_ARGUMENT (sizes that a model does not take); KVT_E_IO (the program); KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status pass_seconds_measure(const model *m, const pass_grid *grid,
                                              kvt_pass_row *rows, size_t *count_out);

#endif
