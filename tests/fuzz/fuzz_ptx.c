/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ptx.c - any text, as a module of PTX (tests/support/ptx_machine.h): it is decoded or refused
 * with a sentence, and each of its kernels, on two small blocks, ends within its steps and touches
 * no byte but those of its region.
 */
#include "tests/support/ptx_machine.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORDS = 64, GUARD = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t words[WORDS + GUARD];
    static uint8_t values[4096];
    char error[PTX_ERROR_BYTES] = "";
    ptx_machine *machine = ptx_open((const char *)data, size, error);
    if (machine == NULL) {
        if (error[0] == 0 || memchr(error, 0, sizeof error) == NULL) abort();
        return 0;
    }
    memset(words, 0x5a, sizeof words);
    const uint64_t address = ptx_map(machine, words, WORDS * sizeof *words, true);
    for (size_t i = 0; i + sizeof address <= sizeof values; i += sizeof address)
        memcpy(values + i, &address, sizeof address);
    const void *parameters[PTX_PARAMETERS_MAX];
    for (uint32_t i = 0; i < PTX_PARAMETERS_MAX; i++)
        parameters[i] = values;
    for (uint32_t i = 0; i < ptx_kernels(machine) && i < 4; i++) {
        const ptx_kernel *kernel = ptx_kernel_at(machine, i);
        const uint32_t threads = kernel->threads_most < 40 ? kernel->threads_most : 40;
        ptx_launch launch = {.kernel = kernel->name,
                             .grid = {2, 1, 1},
                             .block = {threads, 1, 1},
                             .dynamic_shared_bytes = 256,
                             .steps_most = 20000,
                             .parameters = parameters};
        const bool ran = ptx_run(machine, &launch, error);
        if (ran != (error[0] == 0)) abort();
        if (launch.steps > launch.steps_most + 32) abort();
    }
    for (uint32_t i = WORDS; i < WORDS + GUARD; i++)
        if (words[i] != UINT64_C(0x5a5a5a5a5a5a5a5a)) abort();
    ptx_close(machine);
    return 0;
}
