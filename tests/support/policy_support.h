/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_support.h - what the tests of the decision engine share: a counting allocator that can
 * fail, a seeded generator, and an engine on small tiers. Single thread.
 */
#ifndef SUPPORT_POLICY_SUPPORT_H
#define SUPPORT_POLICY_SUPPORT_H

#include "cases.h"

#include <stdlib.h>
#include <string.h>

#include <kvterrace/policy.h>

#define SECOND UINT64_C(1000000000)

/* Fails every request for memory once `left` has run down; -1 never fails. Checks old_bytes. */
typedef struct test_memory {
    long left;
    long requests;
    size_t held_bytes;
} test_memory;

static inline void *test_resize(void *context, void *memory, size_t old_bytes, size_t bytes)
{
    test_memory *state = context;
    if (bytes == 0) {
        state->held_bytes -= old_bytes;
        free(memory);
        return NULL;
    }
    state->requests++;
    if (state->left == 0) return NULL;
    if (state->left > 0) state->left--;
    /* Always another address, so that a pointer kept across growth is caught. */
    void *fresh = malloc(bytes);
    if (fresh == NULL) return NULL;
    if (memory != NULL) memcpy(fresh, memory, old_bytes < bytes ? old_bytes : bytes);
    free(memory);
    state->held_bytes += bytes - old_bytes;
    return fresh;
}

static inline kvt_allocator test_allocator(test_memory *state)
{
    return (kvt_allocator){.context = state, .resize = test_resize};
}

/* xorshift64*: the tests' own dice. */
static inline uint64_t test_draw(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}

static inline uint64_t test_below(uint64_t *state, uint64_t limit)
{
    return (test_draw(state) >> 11) % limit;
}

static inline kvt_policy *test_open(const kvt_policy_config *config)
{
    kvt_policy *policy = NULL;
    char message[128];
    kvt_status status = kvt_policy_open(config, &policy, message, sizeof message);
    if (status != KVT_OK) fail_msg("open failed (%d): %s", status, message);
    return policy;
}

/* An option with bytes in one tier; reading costs `load` seconds. */
static inline kvt_option test_option(uint16_t codec, int tier, uint64_t bytes, double load)
{
    kvt_option o = {.variant = {.codec = codec}, .load_seconds = load};
    o.bytes[tier] = o.read_bytes[tier] = bytes;
    return o;
}

static inline kvt_option test_none(double recompute)
{
    return (kvt_option){.load_seconds = recompute};
}

/* An entry without a parent. */
static inline kvt_policy_entry test_entry(uint64_t handle, const kvt_option *options,
                                          uint32_t count, uint32_t tokens)
{
    return (kvt_policy_entry){.struct_size = sizeof(kvt_policy_entry),
                              .handle = handle,
                              .options = options,
                              .option_count = count,
                              .tokens = tokens};
}

/* Commits a whole plan. */
static inline void test_carry_out(kvt_policy *policy, const kvt_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++)
        assert_ok(kvt_policy_commit(policy, plan->moves[i].id, NULL));
}

#endif
