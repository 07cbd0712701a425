/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_command.h - kvterrace replay --compare: what replay_command.c hands over. One thread.
 */
#ifndef TOOLS_COMPARE_COMMAND_H
#define TOOLS_COMPARE_COMMAND_H

#include "command.h"

typedef struct compare_arguments {
    const char *trace; /* or NULL: generated */
    const char *policies;
    const char *speeds; /* --speeds, or NULL */
    uint32_t sessions;  /* 0: not given */
    uint32_t threads;
    bool quick;
    const char *machine;
} compare_arguments;

/* Runs the comparison and prints it; returns the exit code. */
int command_compare(const command_common *common, const compare_arguments *arguments);

/* KVT_E_CONFIG, with a message, when replay.block_tokens was set to another length than the blocks
 * of the trace have. */
KVT_NODISCARD kvt_status command_check_blocks(const command_common *common, uint32_t block_tokens,
                                              uint64_t wanted, char *message, size_t message_size);

#endif
