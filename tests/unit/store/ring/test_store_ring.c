/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_ring.c - rings: contexts bring exactly the bytes that they name, wherever the record
 * lies; what is unsound fails alone and writes nothing; blocks keep their order; a full ring, lost
 * producers and words that make no sense end in a status.
 */
#include "ring_site.h"

#include "base/ring_words.h"
#include "codecs/codecs.h"
#include "store/ring/ring_contexts.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

TEST(bytes_of_devices_memory_and_staging)
{
    ring_site_open(true, NULL);
    carry_out_layers();
    const kvt_ring_stats read = ring_stats();
    assert_int_equal(read.blocks, 2);
    assert_int_equal(read.contexts, 4 * RING_ENTRIES);
    assert_int_equal(read.bytes, RING_REGION_BYTES);
    assert_true(read.read_bytes >= read.bytes && read.requests > 0);
    ring_site_close(NULL);
    ring_site_open(false, NULL);
    carry_out_layers();
    assert_int_equal(ring_stats().read_bytes, 0);
    const kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.gets, RING_ENTRIES); /* one use of each object, whatever its blocks */
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].hits, RING_ENTRIES);
}

/* Any parts of one matrix, in any order, come of one read of it. */
TEST(a_matrix_is_read_once)
{
    enum { PART = 128 };
    ring_site_open(true, NULL);
    kvt_ring_iocb iocb = ring_claim();
    iocb.block.count = RING_MATRIX / PART;
    for (uint32_t i = 0; i < iocb.block.count; i++) {
        iocb.contexts[i] = ring_matrix(3, 1, 1);
        iocb.contexts[i].offset = i * 29 % iocb.block.count * PART;
        iocb.contexts[i].target += iocb.contexts[i].offset;
        iocb.contexts[i].bytes = PART;
        ring_expect(3, &iocb.contexts[i], 0);
    }
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
    ring_assert_bytes();
    const uint64_t head = codecs_head_bytes(&support_layout, (kvt_variant){.codec = KVT_CODEC_RAW});
    assert_true(ring_stats().read_bytes <= head + RING_MATRIX + 4096);
    /* K and V of a layer are neighbours, and one request. */
    iocb = ring_claim();
    iocb.block.count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        iocb.contexts[i] = ring_matrix(3, 0, 1 - i);
        ring_expect(3, &iocb.contexts[i], 0);
    }
    const uint64_t before = ring_stats().requests;
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
    ring_assert_bytes();
    assert_int_equal(ring_stats().requests, before + 1);
}

/* Rows of tokens lie apart at the target; two sides may alternate. */
TEST(rows_apart)
{
    const uint64_t row = RING_MATRIX / support_layout.tokens;
    ring_site_open(true, NULL);
    kvt_ring_iocb iocb = ring_claim();
    iocb.block.count = 2;
    for (uint32_t side = 0; side < 2; side++) {
        iocb.contexts[side] = ring_matrix(2, 0, side);
        iocb.contexts[side].offset = 4 * row;
        iocb.contexts[side].bytes = 20 * row;
        iocb.contexts[side].stride = 3 * row;
        iocb.contexts[side].target = 77 + side * row;
        ring_expect(2, &iocb.contexts[side], 0);
    }
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
    ring_assert_bytes();
}

/* One kept table serves all layers. */
TEST(kept_tables)
{
    const kvt_ring_options options = {.struct_size = sizeof options, .tables = 1};
    uint32_t table = 0;
    ring_site_open(true, &options);
    assert_null(kvt_ring_table(ring, 1, &table));
    kvt_ring_context *kept = kvt_ring_table(ring, 0, &table);
    assert_non_null(kept);
    for (uint32_t i = 0; i < 2 * RING_ENTRIES; i++)
        kept[5 + i] = ring_matrix(i / 2, 0, i % 2);
    kvt_ring_iocb iocbs[2];
    kvt_ring_result results[2];
    assert_ok(kvt_ring_get_iocb(ring, 2, iocbs));
    for (uint32_t layer = 0; layer < 2; layer++) {
        kvt_ring_block *block = &iocbs[layer].block;
        block->table = table;
        block->first = 5;
        block->count = 2 * RING_ENTRIES;
        block->layer = layer;
        block->target = layer * 2 * RING_MATRIX;
        block->after = layer == 1 ? iocbs[0].index + 1 : 0;
        ring_expect_layer(layer);
    }
    assert_ok(kvt_ring_submit(ring, iocbs, 2));
    assert_ok(kvt_ring_wait(ring, iocbs[0].index, 2, KVT_NO_DEADLINE, results, NULL));
    assert_int_equal(results[0].status | results[1].status, KVT_OK);
    assert_true(results[0].done_ns <= results[1].done_ns);
    ring_assert_bytes();
}

/* ---- unsound contexts ---- */

static void check_unsound(kvt_ring_context bad, const char *what)
{
    signed char statuses[KVT_RING_CONTEXTS_MAX];
    kvt_ring_iocb iocb = ring_claim();
    iocb.block.count = 3;
    iocb.contexts[0] = ring_matrix(0, 0, 0);
    iocb.contexts[1] = bad;
    iocb.contexts[2] = ring_matrix(5, 1, 0);
    ring_expect(0, &iocb.contexts[0], 0);
    ring_expect(5, &iocb.contexts[2], 0);
    const kvt_ring_result result = ring_carry_out(&iocb, statuses);
    if (statuses[1] != KVT_E_ARGUMENT) fail_msg("%s: %s", what, kvt_status_name(statuses[1]));
    assert_int_equal(statuses[0], KVT_OK);
    assert_int_equal(statuses[2], KVT_OK);
    assert_int_equal(result.status, KVT_E_ARGUMENT);
    assert_int_equal(result.failed, 1);
    assert_int_equal(result.bytes, 2 * RING_MATRIX);
    ring_assert_bytes();
}

TEST(unsound_contexts_fail_alone)
{
    ring_site_open(true, NULL);
    const kvt_ring_context sound = ring_matrix(4, 1, 1);
    const uint64_t row = RING_MATRIX / support_layout.tokens, end = RING_REGION_BYTES;
#define UNSOUND(...)                                                                               \
    do {                                                                                           \
        kvt_ring_context bad = sound;                                                              \
        __VA_ARGS__;                                                                               \
        check_unsound(bad, #__VA_ARGS__);                                                          \
    } while (0)
    UNSOUND(bad.object = 0);
    UNSOUND(bad.object += RING_ENTRIES);
    UNSOUND(bad.object += UINT64_C(1) << 32);
    UNSOUND(bad.object = UINT64_MAX);
    UNSOUND(bad.layer = 2);
    UNSOUND(bad.layer = UINT32_MAX);
    UNSOUND(bad.side = 2);
    UNSOUND(bad.side = UINT32_MAX);
    UNSOUND(bad.bytes = 0);
    UNSOUND(bad.bytes++);
    UNSOUND(bad.bytes = UINT64_MAX);
    UNSOUND(bad.offset = 1);
    UNSOUND(bad.offset = RING_MATRIX);
    UNSOUND(bad.offset = UINT64_MAX; bad.bytes = 2);
    UNSOUND(bad.region = 0);
    UNSOUND(bad.region++);
    UNSOUND(bad.region += 1024);
    UNSOUND(bad.region = UINT32_MAX);
    UNSOUND(bad.target = end - RING_MATRIX + 1);
    UNSOUND(bad.target = end);
    UNSOUND(bad.target = UINT64_MAX);
    UNSOUND(bad.stride = 1);
    UNSOUND(bad.stride = row - 1);
    UNSOUND(bad.stride = row; bad.offset = row / 2; bad.bytes = row);
    UNSOUND(bad.stride = row; bad.bytes = row + 1);
    UNSOUND(bad.stride = end);
    UNSOUND(bad.stride = UINT64_MAX);
    UNSOUND(bad.stride = UINT64_MAX / 31);
    UNSOUND(bad.target = 0; bad.stride = (end - row) / 31 + 1);
    UNSOUND(bad.zero_a = 1);
    UNSOUND(bad.zero_b = 1);
    UNSOUND(bad = (kvt_ring_context){0});
    UNSOUND(memset(&bad, 0xff, sizeof bad));
#undef UNSOUND
    /* The last byte of everything is allowed. */
    kvt_ring_iocb iocb = ring_claim();
    iocb.block.count = 2;
    iocb.contexts[0] = sound;
    iocb.contexts[0].offset = RING_MATRIX - 1;
    iocb.contexts[0].bytes = 1;
    iocb.contexts[0].target = end - 1;
    iocb.contexts[1] = sound;
    iocb.contexts[1].bytes = 2 * row;
    iocb.contexts[1].target = 8;
    iocb.contexts[1].stride = end - row - 9;
    ring_expect(4, &iocb.contexts[0], 0);
    ring_expect(4, &iocb.contexts[1], 0);
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
    ring_assert_bytes();
}

/* What block adds may not pass either. */
TEST(unsound_additions)
{
    ring_site_open(false, NULL);
    const struct addition {
        uint32_t layer;
        uint64_t target;
    } bad[] = {{1, 0}, {UINT32_MAX, 0}, {0, RING_REGION_BYTES}, {0, UINT64_MAX}};
    for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvt_ring_iocb iocb = ring_claim();
        iocb.block.count = 1;
        iocb.contexts[0] = ring_matrix(1, 1, 0);
        iocb.block.layer = bad[i].layer;
        iocb.block.target = bad[i].target;
        assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_E_ARGUMENT);
    }
    ring_assert_bytes();
}

/* Of two contexts that write a byte twice the later one fails, wherever it lies. */
TEST(overlapping_targets)
{
    const uint64_t row = RING_MATRIX / support_layout.tokens;
    const struct pair {
        uint64_t target[2], stride[2], bytes[2];
        bool meet;
    } pairs[] = {
        {{0, 0}, {0, 0}, {RING_MATRIX, RING_MATRIX}, true},
        {{0, RING_MATRIX - 1}, {0, 0}, {RING_MATRIX, 10}, true},
        {{0, RING_MATRIX}, {0, 0}, {RING_MATRIX, 10}, false},
        {{RING_MATRIX - 1, 0}, {0, 0}, {10, RING_MATRIX}, true},
        {{0, row}, {2 * row, 2 * row}, {8 * row, 8 * row}, false},
        {{row, 0}, {2 * row, 2 * row}, {8 * row, 8 * row}, false},
        {{0, row + 1}, {2 * row, 2 * row}, {8 * row, 8 * row}, true},
        {{0, row - 1}, {2 * row, 2 * row}, {8 * row, 8 * row}, true},
        {{0, 3 * row}, {2 * row, 0}, {8 * row, row}, false},
        {{0, 3 * row}, {2 * row, 0}, {8 * row, row + 1}, true},
        {{0, 4 * row}, {2 * row, 0}, {8 * row, 1}, true},
        {{0, row}, {2 * row, 4 * row}, {8 * row, 8 * row}, true}, /* other strides */
    };
    ring_site_open(true, NULL);
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        signed char statuses[KVT_RING_CONTEXTS_MAX];
        kvt_ring_iocb iocb = ring_claim();
        iocb.block.count = 2;
        for (uint32_t k = 0; k < 2; k++) {
            iocb.contexts[k] = ring_matrix(k, 0, 0);
            iocb.contexts[k].target = pairs[i].target[k];
            iocb.contexts[k].stride = pairs[i].stride[k];
            iocb.contexts[k].bytes = pairs[i].bytes[k];
            if (k == 0 || !pairs[i].meet) ring_expect(k, &iocb.contexts[k], 0);
        }
        const kvt_ring_result result = ring_carry_out(&iocb, statuses);
        assert_int_equal(statuses[0], KVT_OK);
        if (statuses[1] != (pairs[i].meet ? KVT_E_ARGUMENT : KVT_OK)) fail_msg("pair %u", i);
        assert_int_equal(result.failed, pairs[i].meet);
        ring_assert_bytes();
    }
}

/* ---- blocks ---- */

TEST(unsound_blocks)
{
    const kvt_ring_options options = {.struct_size = sizeof options, .contexts = 64, .tables = 2};
    ring_site_open(false, &options);
    for (uint32_t i = 0; i < 9; i++) {
        kvt_ring_iocb iocb = ring_claim_layer(0);
        kvt_ring_block *block = &iocb.block;
        if (i == 0) block->table = RING_DEPTH + 2;
        if (i == 1) block->table = UINT32_MAX;
        if (i == 2) block->first = 64 - block->count + 1;
        if (i == 3) block->first = UINT32_MAX;
        if (i == 4) block->count = 65;
        if (i == 5) block->count = UINT32_MAX;
        if (i == 6) block->after = iocb.index + 1; /* itself */
        if (i == 7) block->after = iocb.index + 2; /* a later one, which might come after it */
        if (i == 8) block->after = UINT64_MAX;
        const kvt_ring_result result = ring_carry_out(&iocb, NULL);
        assert_int_equal(result.status, KVT_E_ARGUMENT);
        assert_int_equal(result.user, 1000);
    }
    ring_assert_bytes();
    /* An empty block completes, as does one after a block of long ago. */
    kvt_ring_iocb iocb = ring_claim();
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
    iocb = ring_claim_layer(1);
    iocb.block.after = 1;
    ring_expect_layer(1);
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
    ring_assert_bytes();
}

/* A block waits for the one that it comes after, and no other does. */
TEST(order_of_blocks)
{
    ring_site_open(true, NULL);
    kvt_ring_result results[3];
    kvt_ring_iocb iocbs[3];
    /* All heads are known, so that a block is one read. */
    iocbs[0] = ring_claim_layer(0);
    assert_int_equal(ring_carry_out(&iocbs[0], NULL).status, KVT_OK);
    for (uint32_t i = 0; i < 3; i++) {
        iocbs[i] = ring_claim();
        iocbs[i].block.count = i < 2; /* the device takes one read at a time: the third has none */
        iocbs[i].contexts[0] = ring_matrix(i, 1, 0);
    }
    iocbs[1].block.after = iocbs[0].index + 1;
    queue_site_fault(
        (tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS, .hits = 1});
    assert_ok(kvt_ring_submit(ring, &iocbs[0], 1));
    tiers_fault_counts counts;
    do
        tiers_fault_counts_get(fault.device, &counts);
    while (counts.hung == 0);
    assert_ok(kvt_ring_submit(ring, &iocbs[1], 2));
    assert_ok(kvt_ring_wait(ring, iocbs[2].index, 1, KVT_NO_DEADLINE, &results[2], NULL));
    assert_int_equal(kvt_ring_wait(ring, iocbs[0].index, 2, 0, results, NULL), KVT_E_TIMEOUT);
    assert_int_equal(kvt_ring_wait(ring, iocbs[1].index, 1, 0, results, NULL), KVT_E_TIMEOUT);
    tiers_fault_clear(fault.device);
    assert_ok(kvt_ring_wait(ring, iocbs[0].index, 2, KVT_NO_DEADLINE, results, NULL));
    assert_true(results[2].done_ns <= results[0].done_ns);
    assert_true(results[0].done_ns <= results[1].done_ns);
    assert_int_equal(results[0].status | results[1].status | results[2].status, KVT_OK);
}

TEST(full_ring_and_places)
{
    kvt_ring_iocb iocbs[RING_DEPTH + 1];
    ring_site_open(false, NULL);
    assert_int_equal(kvt_ring_get_iocb(ring, 0, iocbs), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_get_iocb(ring, RING_DEPTH + 1, iocbs), KVT_E_ARGUMENT);
    for (uint32_t round = 0; round < 3; round++) {
        assert_ok(kvt_ring_get_iocb(ring, RING_DEPTH, iocbs));
        assert_int_equal(iocbs[0].index, round * RING_DEPTH);
        assert_int_equal(kvt_ring_get_iocb(ring, 1, &iocbs[RING_DEPTH]), KVT_BUSY);
        assert_ok(kvt_ring_submit(ring, iocbs, RING_DEPTH));
        (void)ring_await(iocbs[1].index, NULL);
        /* Complete, but the first completion was not taken: its place is nobody's. */
        assert_int_equal(kvt_ring_get_iocb(ring, 1, &iocbs[RING_DEPTH]), KVT_BUSY);
        (void)ring_await(iocbs[0].index, NULL);
        assert_int_equal(kvt_ring_get_iocb(ring, 3, &iocbs[RING_DEPTH - 2]), KVT_BUSY);
        assert_ok(kvt_ring_wait(ring, iocbs[2].index, RING_DEPTH - 2, KVT_NO_DEADLINE, NULL, NULL));
    }
}

TEST(posts_and_waits_that_are_none)
{
    kvt_ring_result result;
    ring_site_open(false, NULL);
    kvt_ring_iocb iocb = ring_claim_layer(0);
    ring_expect_layer(0);
    assert_int_equal(kvt_ring_wait(ring, iocb.index, 1, 0, &result, NULL), KVT_E_TIMEOUT);
    assert_int_equal(kvt_ring_wait(ring, iocb.index + 1, 1, 0, &result, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_wait(ring, iocb.index, 2, 0, &result, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_wait(ring, UINT64_MAX, 1, 0, &result, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_wait(ring, iocb.index, 0, 0, &result, NULL), KVT_E_ARGUMENT);
    kvt_ring_iocb other = iocb;
    other.index++; /* claimed by nobody */
    assert_int_equal(kvt_ring_submit(ring, &other, 1), KVT_E_ARGUMENT);
    other.index = UINT64_MAX;
    assert_int_equal(kvt_ring_submit(ring, &other, 1), KVT_E_ARGUMENT);
    assert_ok(kvt_ring_submit(ring, &iocb, 1));
    assert_int_equal(kvt_ring_submit(ring, &iocb, 1), KVT_E_ARGUMENT); /* twice */
    result = ring_await(iocb.index, NULL);
    assert_int_equal(result.status, KVT_OK);
    assert_int_equal(kvt_ring_submit(ring, &iocb, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_wait(ring, iocb.index, 1, KVT_NO_DEADLINE, &result, NULL), KVT_MISS);
    for (uint32_t i = 0; i < 2 * RING_DEPTH; i++) {
        other = ring_claim();
        (void)ring_carry_out(&other, NULL);
    }
    assert_int_equal(kvt_ring_wait(ring, iocb.index, 1, KVT_NO_DEADLINE, &result, NULL), KVT_MISS);
    ring_assert_bytes();
    assert_int_equal(ring_stats().blocks, 1 + 2 * RING_DEPTH);
}

/* ---- producers that cannot be trusted ---- */

static base_ring words_of(uint64_t at)
{
    kvt_ring_memory memory = {.struct_size = sizeof memory};
    base_ring words;
    assert_ok(kvt_ring_describe(ring, &memory));
    char *ring_at = (char *)memory.memory + at;
    assert_ok(base_ring_attach(&words, ring_at, memory.bytes - at, RING_DEPTH));
    return words;
}

static ring_head head_of(void)
{
    kvt_ring_memory memory = {.struct_size = sizeof memory};
    ring_head head;
    assert_ok(kvt_ring_describe(ring, &memory));
    memcpy(&head, memory.memory, sizeof head);
    assert_int_equal(head.magic, RING_MAGIC);
    assert_int_equal(head.bytes, memory.bytes);
    assert_int_equal(head.depth, RING_DEPTH);
    return head;
}

/* Everything that was posted or claimed completes with one status, and the ring takes no more. */
static void assert_given_up(const kvt_ring_iocb *iocbs, uint32_t count, kvt_status status)
{
    kvt_ring_iocb more;
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(ring_await(iocbs[i].index, NULL).status, status);
    assert_int_equal(kvt_ring_get_iocb(ring, 1, &more), status);
    assert_int_equal(kvt_ring_submit(ring, iocbs, 1), status);
    ring_assert_bytes();
}

TEST(words_that_jump)
{
    static const uint64_t jumps[] = {0, 1, 3, 77, UINT64_MAX - 20, UINT64_MAX / 2};
    for (uint32_t i = 0; i < sizeof jumps / sizeof jumps[0]; i++) {
        ring_site_open(false, NULL);
        kvt_ring_iocb iocbs[3];
        const kvt_ring_iocb first = ring_claim();
        (void)ring_carry_out(&first, NULL);
        assert_ok(kvt_ring_get_iocb(ring, 3, iocbs));
        const base_ring words = words_of(head_of().submissions_at);
        atomic_store(&words.words->entry[1].sequence, 1 + 2 + jumps[i]);
        for (uint32_t k = 1; k < 3; k++)
            (void)!kvt_ring_submit(ring, &iocbs[k], 1);
        assert_given_up(iocbs, 3, KVT_E_CORRUPT);
        ring_site_close(NULL);
    }
}

/* The words of a completion are the ring's: once they are another's, it is given up. */
TEST(completion_words_that_jump)
{
    ring_site_open(false, NULL);
    kvt_ring_iocb iocb = ring_claim_layer(0);
    const base_ring words = words_of(head_of().completions_at);
    atomic_store(&words.words->entry[0].sequence, 99);
    kvt_ring_result result;
    assert_ok(kvt_ring_submit(ring, &iocb, 1));
    while (kvt_ring_get_iocb(ring, 1, &iocb) == KVT_OK)
        (void)!kvt_ring_submit(ring, &iocb, 1);
    assert_int_equal(kvt_ring_wait(ring, 0, 1, KVT_NO_DEADLINE, &result, NULL), KVT_E_CORRUPT);
}

/* A claimed counter that another producer plays with is a full ring, or one that is given up. */
TEST(claims_that_jump)
{
    kvt_ring_iocb iocb;
    ring_site_open(false, NULL);
    const base_ring words = words_of(head_of().submissions_at);
    for (uint64_t jump = 1; jump != 0; jump *= 3) {
        atomic_store(&words.words->claimed, jump);
        const kvt_status status = kvt_ring_get_iocb(ring, RING_DEPTH, &iocb);
        assert_true(status == KVT_BUSY || status == KVT_E_CORRUPT || status == KVT_E_STATE);
        if (jump > UINT64_MAX / 3) break;
    }
}

/* What was claimed and is never posted keeps the blocks behind it for a time, and no longer. */
TEST(lost_producers)
{
    const kvt_ring_options options = {.struct_size = sizeof options, .lost_ms = 100};
    kvt_ring_iocb iocbs[4];
    ring_site_open(false, &options);
    assert_ok(kvt_ring_get_iocb(ring, 4, iocbs));
    assert_ok(kvt_ring_submit(ring, iocbs, 1));
    assert_int_equal(ring_await(iocbs[0].index, NULL).status, KVT_OK);
    assert_ok(kvt_ring_submit(ring, &iocbs[2], 1));
    assert_given_up(&iocbs[1], 3, KVT_E_TIMEOUT);
}

/* A hole with nothing behind it harms nobody, and its producer may come late. */
TEST(late_producer)
{
    const kvt_ring_options options = {.struct_size = sizeof options, .lost_ms = 1, .poll_us = 1000};
    ring_site_open(false, &options);
    const kvt_ring_iocb iocb = ring_claim();
    base_sleep(100000000);
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
}

/* Another process maps the memory by the page alone, claims, fills and posts, without the bell. */
static void produce_elsewhere(int fd, uint64_t bytes, const kvt_ring_context *context)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    base_ring words;
    ring_head head;
    if (memory == MAP_FAILED) _exit(1);
    memcpy(&head, memory, sizeof head);
    if (base_ring_attach(&words, memory + head.submissions_at, bytes, head.depth) != KVT_OK)
        _exit(2);
    uint64_t position;
    if (base_ring_claim(&words, &words.words->claimed, 1, &position) != KVT_OK) _exit(3);
    const uint32_t table = (uint32_t)position % head.depth;
    memcpy(memory + head.tables_at + (uint64_t)table * head.contexts * 64, context, 64);
    const kvt_ring_block block = {.table = table, .count = 1, .deadline_ns = KVT_NO_DEADLINE};
    base_ring_body body;
    memcpy(&body, &block, sizeof body);
    _exit(base_ring_post(&words, position, &body) == KVT_OK ? 0 : 4);
}

TEST(producer_of_another_process)
{
    ring_site_open(true, NULL);
    kvt_ring_memory memory = {.struct_size = sizeof memory};
    assert_ok(kvt_ring_describe(ring, &memory));
    const kvt_ring_context wanted = ring_matrix(6, 1, 0);
    ring_expect(6, &wanted, 0);
    const pid_t child = fork();
    if (child == 0) produce_elsewhere(memory.fd, memory.bytes, &wanted);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(ring_await(0, NULL).status, KVT_OK);
    ring_assert_bytes();
}

/* ---- many at once ---- */

enum { PRODUCERS = 4, ROUNDS = 150 };

static void *produce(void *context)
{
    const uint32_t own = (uint32_t)(uintptr_t)context;
    char *wanted = malloc(SUPPORT_ENTRY_BYTES);
    uintptr_t wrong = wanted == NULL;
    for (uint32_t i = 0; i < ROUNDS && wrong == 0; i++) {
        kvt_ring_iocb iocbs[2];
        kvt_ring_result results[2];
        const uint32_t claims = 1 + i % 2; /* the second one is empty */
        while (kvt_ring_get_iocb(ring, claims, iocbs) == KVT_BUSY)
            sched_yield();
        const uint32_t entry = own + PRODUCERS * (i % 2), side = i / 2 % 2, layer = i / 4 % 2;
        iocbs[0].contexts[0] = ring_matrix(entry, layer, side);
        iocbs[0].block.count = 1;
        iocbs[0].block.user = (uint64_t)own << 32 | i;
        char *target = ring_memory + 4096 + iocbs[0].contexts[0].target;
        memset(target, 0xee, RING_MATRIX);
        wrong += kvt_ring_submit(ring, iocbs, claims) != KVT_OK;
        wrong += kvt_ring_wait(ring, iocbs[0].index, claims, KVT_NO_DEADLINE, results, NULL) != 0;
        wrong += results[0].status != KVT_OK || results[0].user != ((uint64_t)own << 32 | i);
        support_fill(entry, wanted);
        const uint64_t at = kvt_layout_matrix_offset(&support_layout, layer, (kvt_side)side);
        wrong += memcmp(target, wanted + at, RING_MATRIX) != 0;
    }
    free(wanted);
    return (void *)wrong;
}

TEST(many_producers)
{
    for (int device = 0; device < 2; device++) {
        pthread_t threads[PRODUCERS];
        const kvt_ring_options options = {.struct_size = sizeof options, .threads = 3};
        ring_site_open(device != 0, &options);
        for (uintptr_t i = 0; i < PRODUCERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, produce, (void *)i), 0);
        for (uint32_t i = 0; i < PRODUCERS; i++) {
            void *wrong = NULL;
            pthread_join(threads[i], &wrong);
            assert_null(wrong);
        }
        assert_int_equal(ring_stats().blocks, PRODUCERS * (ROUNDS + ROUNDS / 2));
        assert_int_equal(ring_stats().failed, 0);
        ring_site_close(NULL);
    }
}

/* ---- arguments ---- */

TEST(bad_arguments)
{
    kvt_ring *other = NULL;
    kvt_ring_options options = {.struct_size = sizeof options};
    ring_site_open(false, NULL);
    const uint32_t depths[] = {0, 1, 3, 8192, UINT32_MAX};
    for (uint32_t i = 0; i < sizeof depths / sizeof depths[0]; i++)
        assert_int_equal(kvt_ring_open(store, depths[i], NULL, &other), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_open(NULL, 8, NULL, &other), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_open(store, 8, NULL, NULL), KVT_E_ARGUMENT);
#define WRONG(member, value)                                                                       \
    do {                                                                                           \
        kvt_ring_options wrong = options;                                                          \
        wrong.member = (value);                                                                    \
        assert_int_equal(kvt_ring_open(store, 8, &wrong, &other), KVT_E_ARGUMENT);                 \
    } while (0)
    WRONG(struct_size, 4);
    WRONG(contexts, KVT_RING_CONTEXTS_MAX + 1);
    WRONG(tables, 4097);
    WRONG(threads, 17);
    WRONG(poll_us, 20001);
    WRONG(lost_ms, 3600001);
    WRONG(loss_max, 0.0 / 0.0);
#undef WRONG
    kvt_ring_memory memory = {.struct_size = 3};
    kvt_ring_stats stats = {.struct_size = 3};
    uint32_t region;
    uint64_t object;
    const kvt_key key = support_key(77);
    assert_int_equal(kvt_ring_describe(ring, &memory), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_stats_get(ring, &stats), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_region_add(ring, NULL, 1, &region), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_region_add(ring, &region, 0, &region), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_region_add(ring, &region, UINT64_MAX, &region), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_object_open(ring, &key, 0, &object), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_object_open(ring, NULL, 1, &object), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_object_open(ring, &key, 1, &object), KVT_MISS);
    assert_int_equal(object, 0);
    kvt_ring_close(NULL);
}

TEST_EACH(NULL, ring_site_close);
