/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_support.h - for tests of the wire: posting a request as a client, and the count of this
 * process's descriptors.
 */
#ifndef TESTS_PEER_SUPPORT_H
#define TESTS_PEER_SUPPORT_H

#include "cases.h"

#include <dirent.h>

#include "base/ring_words.h"
#include "serve/wire/channel_entries.h"
#include "serve/wire/shared_memory.h"

static inline uint32_t open_descriptors(void)
{
    uint32_t count = 0;
    DIR *list = opendir("/proc/self/fd");
    assert_non_null(list);
    while (readdir(list) != NULL)
        count++;
    closedir(list);
    return count;
}

/* Claims an entry for a request, posts it, and rings the bell where the other side asks for it. */
static inline kvt_status peer_post(base_ring *submissions, _Atomic uint64_t *claimed, int bell,
                                   const wire_request *request)
{
    const base_ring_body body = wire_request_body(request);
    uint64_t position;
    kvt_status status = base_ring_claim(submissions, claimed, 1, &position);
    if (status == KVT_OK) status = base_ring_post(submissions, position, &body);
    if (status == KVT_OK && base_ring_wakes(submissions)) status = wire_bell_ring(bell);
    return status;
}

#endif
