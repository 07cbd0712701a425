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
    const char *speeds;   /* --speeds, or NULL */
    const char *sessions; /* --sessions, or NULL */
    const char *threads;
    bool quick;
    const char *machine;
    const char *command_line;
} compare_arguments;

/* Runs the comparison and prints it; returns the exit code. */
int command_compare(const command_common *common, const compare_arguments *arguments);

/* KVT_E_CONFIG, with a message, when replay.block_tokens was set to another length than the blocks
 * of the trace have. */
KVT_NODISCARD kvt_status command_check_blocks(const command_common *common, uint32_t block_tokens,
                                              uint64_t wanted, char *message, size_t message_size);

#endif
