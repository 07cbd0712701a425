/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_replay_trace.c - any bytes as a trace file: they are a workload that keeps its promises, or
 * a parse error with a message: JSON lines and CSV, plain or packed. The bytes are handed over
 * through a file in memory.
 */
#include "replay/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_workload(const replay_workload *workload)
{
    uint64_t last = 0, refs = 0;
    if (workload->request_count == 0 || workload->block_tokens == 0) abort();
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *request = &workload->requests[i];
        if (request->arrival_ns < last || request->first_block != refs) abort();
        if (request->input_tokens == 0 || request->input_tokens > REPLAY_TOKENS_MAX) abort();
        last = request->arrival_ns;
        for (uint32_t j = 0; j < request->block_count; j++) {
            if (workload->blocks[refs + j] >= workload->distinct_blocks) abort();
        }
        refs += request->block_count;
    }
    if (refs != workload->block_refs || refs < workload->distinct_blocks) abort();
    if (memchr(workload->note, '\0', sizeof workload->note) == NULL) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Large blocks where a trace has none of its own: a short row may ask for 2^24 tokens. The size
     * of the input picks one of the ways to read. */
    const replay_trace_options options = {.seed = 1,
                                          .conversations_per_s = 1.0,
                                          .limit = size % 3 == 0 ? 5 : 0,
                                          .keep_steps = size % 5 == 0,
                                          .merge_to = size % 2 == 0 ? 512 : 0,
                                          .block_tokens = 65536};
    char path[64], message[512] = "";
    replay_workload workload;
    int file = memfd_create("trace", MFD_CLOEXEC);
    if (file < 0) return 0;
    if (write(file, data, size) != (ssize_t)size) {
        close(file);
        return 0;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    kvt_status status = replay_workload_read(path, &options, &workload, message, sizeof message);
    if (status == KVT_OK) {
        check_workload(&workload);
        replay_workload_free(&workload);
    } else if (status != KVT_E_PARSE || message[0] == '\0') {
        abort();
    }
    close(file);
    return 0;
}
