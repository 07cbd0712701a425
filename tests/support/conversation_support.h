/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversation_support.h - Mooncake's conversation trace for golden tests, from below the folder
 * that KVT_DATA_DIR names; the test is skipped without it. Include after cmocka. Single thread.
 */
#ifndef SUPPORT_CONVERSATION_SUPPORT_H
#define SUPPORT_CONVERSATION_SUPPORT_H

#include "replay/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static replay_workload conversation;

static int conversation_load(void **state)
{
    (void)state;
    char path[1024], message[256];
    const char *folder = getenv("KVT_DATA_DIR");
    if (folder == NULL || folder[0] == '\0') {
        print_message("skipped: KVT_DATA_DIR is not set\n");
        exit(77);
    }
    snprintf(path, sizeof path, "%s/traces/mooncake_conversation.jsonl.zst", folder);
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is not readable\n", path);
        exit(77);
    }
    replay_trace_options options = {.seed = 1, .conversations_per_s = 1.0};
    kvt_status status =
        replay_workload_read(path, &options, &conversation, message, sizeof message);
    if (status != KVT_OK) print_message("%s\n", message);
    return status;
}

static int conversation_release(void **state)
{
    (void)state;
    replay_workload_free(&conversation);
    return 0;
}

#endif
