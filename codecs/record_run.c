/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_run.c - tasks on the caller's workers. The first failure is one word, which workers lower
 * without a lock. Re-entrant.
 */
#include "record_writer.h"

#include <assert.h>

typedef struct record_tasks {
    record_step step;
    void *argument;
    uint64_t failed; /* index and status of the first failed task; UINT64_MAX: none */
} record_tasks;

static void record_task(void *argument, uint32_t index, uint32_t worker)
{
    record_tasks *tasks = argument;
    uint64_t failed = __atomic_load_n(&tasks->failed, __ATOMIC_RELAXED);
    if (failed >> 32 < index) return;
    const kvt_status status = tasks->step(tasks->argument, index, worker);
    if (status == KVT_OK) return;
    const uint64_t own = (uint64_t)index << 32 | (uint32_t)status;
    while (own < failed && !__atomic_compare_exchange_n(&tasks->failed, &failed, own, false,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

kvt_status record_run(const kvt_codec_workers *workers, uint32_t count, record_step step,
                      void *argument)
{
    record_tasks tasks = {step, argument, UINT64_MAX};
    if (workers == NULL) {
        kvt_status status = KVT_OK;
        for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
            status = step(argument, i, 0);
        }
        return status;
    }
    workers->run(workers->context, count, record_task, &tasks);
    /* run has returned: it saw every task end. */
    return tasks.failed == UINT64_MAX ? KVT_OK : (kvt_status)(int32_t)(uint32_t)tasks.failed;
}
