/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_support.h - what tests of object back ends share: requests that are waited for.
 *
 * Thread rule: one test at a time.
 */
#ifndef TESTS_REMOTE_SUPPORT_H
#define TESTS_REMOTE_SUPPORT_H

#include "cases.h"

#include "base/clock.h"
#include "remote/client.h"

#include <signal.h>
#include <string.h>

#define REMOTE_SECOND_NS UINT64_C(1000000000)

/* Submits a request and waits for it. */
static inline kvt_status remote_do(remote_client *client, remote_request *request)
{
    remote_request *done[1];
    request->state = REMOTE_IDLE;
    if (request->deadline_ns == 0) request->deadline_ns = base_clock_ns() + 10 * REMOTE_SECOND_NS;
    remote_submit(client, request);
    size_t got = 0;
    for (int i = 0; i < 100 && got == 0; i++) /* a wake may end one reap */
        got = remote_reap(client, done, 1, 1, REMOTE_SECOND_NS);
    assert_int_equal(got, 1);
    assert_ptr_equal(done[0], request);
    return request->status;
}

static inline remote_request remote_of(remote_kind kind, const char *key, struct iovec *parts,
                                       uint32_t part_count)
{
    return (remote_request){.kind = kind,
                            .key = key,
                            .key_bytes = (uint32_t)strlen(key),
                            .parts = parts,
                            .part_count = part_count};
}

static inline kvt_status remote_put(remote_client *client, const char *key, const void *value,
                                    size_t bytes)
{
    struct iovec part = {(void *)(uintptr_t)value, bytes};
    remote_request request = remote_of(REMOTE_PUT, key, &part, 1);
    return remote_do(client, &request);
}

static inline kvt_status remote_get(remote_client *client, const char *key, void *value,
                                    size_t bytes, uint64_t *bytes_out)
{
    struct iovec part = {value, bytes};
    remote_request request = remote_of(REMOTE_GET, key, &part, 1);
    kvt_status status = remote_do(client, &request);
    if (bytes_out != NULL) *bytes_out = request.value_bytes;
    return status;
}

static inline kvt_status remote_ask(remote_client *client, remote_kind kind, const char *key)
{
    remote_request request = remote_of(kind, key, NULL, 0);
    return remote_do(client, &request);
}

/* Values that no two places share. */
static inline void remote_fill(uint8_t *to, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        to[i] = (uint8_t)(seed >> 56);
    }
}

/* For TEST_ALL: a peer that has gone is an error of the write, not the end of the program. */
static inline int ignore_pipes(void **state)
{
    (void)state;
    return signal(SIGPIPE, SIG_IGN) == SIG_ERR;
}

#endif
