/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload_reuse.c - how soon blocks of a workload come back, by class: half lives by maximum
 * likelihood (kvt_reuse), from the references in arrival order.
 *
 * A trace names no classes, but its paths tell some: the stem is what half of all requests begin
 * with; any other block belongs to a conversation's beginning when the request that brought it in
 * found nothing there but the stem, and to a continuation otherwise.
 */
#include "estimator/predict/reuse.h"
#include "workload.h"

#include <stdlib.h>

#define REUSE_WATCHED 32768u

static const char *const reuse_names[REPLAY_REUSE_CLASSES] = {"stem", "beginning", "continuation"};

static void reuse_count(const replay_workload *workload, uint32_t *counts)
{
    for (uint64_t i = 0; i < workload->block_refs; i++)
        counts[workload->blocks[i]]++;
}

static void reuse_walk(const replay_workload *workload, const uint32_t *counts, uint8_t *classes,
                       kvt_reuse *reuse)
{
    for (uint64_t r = 0; r < workload->request_count; r++) {
        const replay_request *request = &workload->requests[r];
        const uint32_t *path = &workload->blocks[request->first_block];
        uint8_t class_id = 1; /* of what this request brings in */
        for (uint32_t i = 0; i < request->block_count; i++) {
            uint8_t *known = &classes[path[i]];
            bool stem = (uint64_t)counts[path[i]] * 2 >= workload->request_count;
            if (*known != 0 && !stem) class_id = 2;
            if (*known == 0) *known = (uint8_t)(1 + (stem ? 0 : class_id));
            kvt_reuse_use(reuse, request->arrival_ns,
                          (path[i] + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15), *known - 1u);
        }
    }
}

kvt_status replay_workload_reuse(const replay_workload *workload,
                                 replay_reuse_row rows[REPLAY_REUSE_CLASSES])
{
    kvt_reuse *reuse = NULL;
    uint32_t *counts = calloc(workload->distinct_blocks + 1, sizeof *counts);
    uint8_t *classes = calloc(workload->distinct_blocks + 1, sizeof *classes);
    kvt_status status = counts != NULL && classes != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = kvt_reuse_open(REUSE_WATCHED, &reuse);
    if (status == KVT_OK) {
        reuse_count(workload, counts);
        reuse_walk(workload, counts, classes, reuse);
    }
    for (uint32_t i = 0; i < REPLAY_REUSE_CLASSES && status == KVT_OK; i++) {
        rows[i].name = reuse_names[i];
        status = kvt_reuse_read(reuse, 0, i, &rows[i].found);
    }
    kvt_reuse_close(reuse);
    free(classes);
    free(counts);
    return status;
}
