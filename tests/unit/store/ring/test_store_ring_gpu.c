/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_ring_gpu.c - a kernel as the producer of a ring, over the stand-in for the driver: it
 * posts, waits no longer than it may and takes completions while the ring's threads read; what it
 * finds wrong ends its post with a status. The build runs the cases twice: with the host's build of
 * the kernel, and with its PTX.
 */
#include "fake_cuda.h"
#include "kernel_lanes.h"
#include "ring_site.h"

#include "base/ring_words.h"
#include "store/ring/ring_contexts.h"

#include <sched.h>

enum { POSTS_MAX = 24, PIECES = 64, CONTEXTS_MAX = PIECES * 4 * RING_ENTRIES };

#define LONG_NS  (10 * SECOND_NS)
#define SHORT_NS UINT64_C(5000000)

_Static_assert(CONTEXTS_MAX == KVT_RING_CONTEXTS_MAX, "a block of all pieces");

/* The driver's calls that an engine makes, and what it has. */
static struct {
    int (*allocate)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*stream)(void **, unsigned);
    int (*end_stream)(void *);
    int (*finish)(void *);
} driver;

static struct {
    uint64_t posts, contexts, statuses; /* in the GPU's memory */
    void *stream;
    bool open;
} engine;

static kvt_ring_memory memory; /* of the ring */
static bool dies;              /* the kernel cannot write the submissions */
static uint32_t deaths;

static void find(const char *name, void *pointer)
{
    void *symbol = fake_cuda_symbol(name);
    assert_non_null(symbol);
    memcpy(pointer, &symbol, sizeof symbol);
}

static int open_all(void **state)
{
    if (fake_cuda_load(state) != 0) return -1;
    find("cuMemAlloc_v2", &driver.allocate);
    find("cuMemFree_v2", &driver.free);
    find("cuStreamCreate", &driver.stream);
    find("cuStreamDestroy_v2", &driver.end_stream);
    find("cuStreamSynchronize", &driver.finish);
    return 0;
}

static ring_head head_of(void)
{
    ring_head head;
    memcpy(&head, memory.memory, sizeof head);
    return head;
}

/* The kernel reaches posts, gate, contexts and statuses, and of the ring what a producer needs. */
static void run_kernel(const fake_cuda_kernel *kernel, const fake_cuda_launch *launch)
{
    (void)kernel;
    const ring_head head = head_of();
    const char *at = memory.memory;
    const lanes_memory reach[] = {
        {at + head.submissions_at, base_ring_bytes(head.depth), !dies},
        {at + head.completions_at, base_ring_bytes(head.depth), true},
        {at + head.tables_at, (uint64_t)head.depth * head.contexts * 64, true},
        {at + head.statuses_at, (uint64_t)head.depth * head.contexts, false},
        {(void *)(uintptr_t)engine.contexts, CONTEXTS_MAX * 64, false},
        {(void *)(uintptr_t)engine.statuses, POSTS_MAX * CONTEXTS_MAX, true}};
    assert_int_equal(launch->block, KERNEL_THREADS);
    deaths += !lanes_launch(KERNEL_RING, (void *)(uintptr_t)launch->parameters[0],
                            (uint32_t)launch->parameters[1], launch->grid,
                            (uint32_t *)(uintptr_t)launch->parameters[2],
                            sizeof(kernel_ring_gate) / 4, reach, sizeof reach / sizeof reach[0]);
}

static const fake_cuda_kernel kernels[] = {{"kvt_ring_posts", run_kernel, {8, 4, 8}}};

static void engine_open(void)
{
    (void)fake_cuda_turn(0, 1);
    assert_int_equal(driver.allocate(&engine.posts, POSTS_MAX * sizeof(kvt_ring_post)), 0);
    assert_int_equal(driver.allocate(&engine.contexts, CONTEXTS_MAX * 64), 0);
    assert_int_equal(driver.allocate(&engine.statuses, POSTS_MAX * CONTEXTS_MAX), 0);
    assert_int_equal(driver.stream(&engine.stream, 1), 0);
    engine.open = true;
}

static void engine_close(void)
{
    if (!engine.open) return;
    assert_int_equal(driver.end_stream(engine.stream), 0);
    assert_int_equal(driver.free(engine.posts), 0);
    assert_int_equal(driver.free(engine.contexts), 0);
    assert_int_equal(driver.free(engine.statuses), 0);
    (void)fake_cuda_turn(0, -1);
    engine.open = false;
}

static int begin_case(void **state)
{
    (void)state;
    *fake = (fake_cuda_state){
        .gpu_count = 2, .queries_until_done = 2, .kernels = kernels, .kernel_count = 1};
    dies = false;
    deaths = 0;
    engine_open();
    return 0;
}

static int end_case(void **state)
{
    fake->fail_call = 0;
    const int closed = ring_site_close(state);
    engine_close();
    return fake_cuda_is_empty(state) != 0 ? -1 : closed;
}

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

/* A store, a ring that kernels have, and the ring's memory. */
static void open_site(bool device, const kvt_ring_options *options)
{
    ring_site_open(device, options);
    memory.struct_size = sizeof memory;
    assert_ok(kvt_ring_describe(ring, &memory));
    assert_ok(kvt_ring_gpu_open(ring, 0));
}

/* Launches posts, and lets the engine's stream come to its end. */
static void launch(kvt_ring_post *posts, uint32_t count)
{
    fake_cuda_move(posts, engine.posts, count * sizeof *posts, 1);
    assert_ok(kvt_ring_gpu_launch(ring, (void *)(uintptr_t)engine.posts, count, engine.stream));
    assert_int_equal(driver.finish(engine.stream), 0);
    fake_cuda_move(posts, engine.posts, count * sizeof *posts, 0);
}

static kvt_ring_post launch_one(kvt_ring_post post)
{
    launch(&post, 1);
    return post;
}

/* Piece i of all entries: of matrix i % 32, K and V of each layer of each entry. */
static kvt_ring_context piece(uint32_t i)
{
    const uint32_t matrix = i % (4 * RING_ENTRIES), at = i / (4 * RING_ENTRIES);
    kvt_ring_context context = ring_matrix(matrix / 4, matrix / 2 % 2, matrix % 2);
    context.bytes = RING_MATRIX / PIECES;
    context.offset = at * context.bytes;
    context.target += context.offset;
    return context;
}

/* Fills the GPU's contexts with the first pieces. */
static void give_pieces(uint32_t count, bool expected)
{
    static kvt_ring_context contexts[CONTEXTS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        contexts[i] = piece(i);
        if (expected) ring_expect(i % (4 * RING_ENTRIES) / 4, &contexts[i], 0);
    }
    fake_cuda_move(contexts, engine.contexts, count * sizeof contexts[0], 1);
}

/* A block of the first pieces, out of the GPU's memory. */
static kvt_ring_post post_of(uint32_t mode, uint32_t count, uint64_t wait_ns)
{
    return (kvt_ring_post){
        .mode = mode,
        .wait_ns = wait_ns,
        .contexts = engine.contexts,
        .statuses = engine.statuses,
        .block = {.count = count, .deadline_ns = KVT_NO_DEADLINE, .user = 70 + count}};
}

static void hang_reads(void)
{
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
}

/* ---- the same bytes ---- */

TEST(posts_of_any_size)
{
    static const uint32_t counts[] = {1, 2, 31, 32, 33, 500, 2048};
    static signed char statuses[CONTEXTS_MAX];
    for (int device = 1; device >= 0; device--) {
        open_site(device != 0, NULL);
        for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            const uint32_t count = counts[i];
            give_pieces(count, true);
            memset(statuses, 1, sizeof statuses);
            fake_cuda_move(statuses, engine.statuses, sizeof statuses, 1);
            const kvt_ring_post post =
                launch_one(post_of(KVT_RING_POST | KVT_RING_WAIT, count, LONG_NS));
            assert_int_equal(post.status, KVT_OK);
            assert_int_equal(post.index, i);
            assert_int_equal(post.result.status, KVT_OK);
            assert_int_equal(post.result.user, 70 + count);
            assert_int_equal(post.result.bytes, (uint64_t)count * RING_MATRIX / PIECES);
            fake_cuda_move(statuses, engine.statuses, sizeof statuses, 0);
            for (uint32_t k = 0; k < CONTEXTS_MAX; k++)
                assert_int_equal(statuses[k], k < count ? KVT_OK : 1);
            ring_assert_bytes();
        }
        assert_int_equal(deaths, 0);
        ring_site_close(NULL);
    }
}

/* More warps than the ring has places, of several blocks of threads, name a kept table. */
TEST(more_posts_than_places)
{
    const kvt_ring_options options = {.struct_size = sizeof options, .tables = 1};
    kvt_ring_post posts[POSTS_MAX];
    uint32_t table;
    bool seen[POSTS_MAX] = {false};
    open_site(true, &options);
    kvt_ring_context *kept = kvt_ring_table(ring, 0, &table);
    for (uint32_t i = 0; i < POSTS_MAX; i++) {
        kept[i] = piece(i);
        ring_expect(i / 4, &kept[i], 0);
        posts[i] = post_of(KVT_RING_POST | KVT_RING_WAIT, 1, LONG_NS);
        posts[i].contexts = 0;
        posts[i].statuses = engine.statuses + i * CONTEXTS_MAX;
        posts[i].block.table = table;
        posts[i].block.first = i;
        posts[i].block.user = i;
    }
    launch(posts, POSTS_MAX);
    for (uint32_t i = 0; i < POSTS_MAX; i++) {
        assert_int_equal(posts[i].status, KVT_OK);
        assert_int_equal(posts[i].result.status, KVT_OK);
        assert_int_equal(posts[i].result.user, i);
        assert_true(posts[i].index < POSTS_MAX && !seen[posts[i].index]);
        seen[posts[i].index] = true;
    }
    ring_assert_bytes();
    assert_int_equal(ring_stats().blocks, POSTS_MAX);
}

/* A kernel a layer: it posts the next layer, and waits for its own, which a kernel before posted.
 * The contexts are written by the GPU's own memory alone. */
TEST(a_kernel_a_layer)
{
    kvt_ring_post posts[2];
    open_site(true, NULL);
    give_pieces(CONTEXTS_MAX, true);
    posts[0] = launch_one(post_of(KVT_RING_POST, CONTEXTS_MAX / 2, 0));
    assert_int_equal(posts[0].status, KVT_QUEUED);
    for (uint32_t layer = 0; layer < 3 * RING_DEPTH; layer++) {
        const uint64_t index = posts[0].index;
        posts[1] = post_of(KVT_RING_WAIT, CONTEXTS_MAX / 2, LONG_NS);
        posts[1].index = index;
        posts[0] = post_of(KVT_RING_POST, CONTEXTS_MAX / 2, 0);
        if (layer % 2 == 0) posts[0].contexts += CONTEXTS_MAX / 2 * 64;
        launch(posts, 2);
        assert_int_equal(posts[0].status, KVT_QUEUED);
        assert_int_equal(posts[0].index, index + 1);
        assert_int_equal(posts[1].status, KVT_OK);
        assert_int_equal(posts[1].result.status, KVT_OK);
        if (layer > 0) ring_assert_bytes();
    }
}

/* The host may take what a kernel has posted. */
TEST(the_host_waits)
{
    open_site(true, NULL);
    give_pieces(8, true);
    for (uint32_t i = 0; i < 2 * RING_DEPTH; i++) {
        const kvt_ring_post post = launch_one(post_of(KVT_RING_POST, 8, LONG_NS));
        assert_int_equal(post.status, KVT_QUEUED);
        assert_int_equal(ring_await(post.index, NULL).status, KVT_OK);
    }
    ring_assert_bytes();
}

/* ---- bounds ---- */

/* A wait ends by its time, and another kernel waits again; a block's own deadline completes it. */
TEST(waits_and_deadlines)
{
    open_site(true, NULL);
    give_pieces(8, true);
    hang_reads();
    kvt_ring_post post = launch_one(post_of(KVT_RING_POST | KVT_RING_WAIT, 8, SHORT_NS));
    assert_int_equal(post.status, KVT_E_TIMEOUT);
    kvt_ring_post late = post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS);
    late.block.deadline_ns = 1;
    late = launch_one(late);
    assert_int_equal(late.status, KVT_OK);
    assert_int_equal(late.result.status, KVT_E_TIMEOUT);
    assert_int_equal(late.result.failed, 8);
    tiers_fault_clear(fault.device);
    post.mode = KVT_RING_WAIT;
    post.wait_ns = LONG_NS;
    post = launch_one(post);
    assert_int_equal(post.status, KVT_OK);
    assert_int_equal(post.result.status, KVT_OK);
    ring_assert_bytes();
    /* It was taken, and its place is another block's now. */
    assert_int_equal(launch_one(post).status, KVT_MISS);
    post.index = 77;
    assert_int_equal(launch_one(post).status, KVT_E_ARGUMENT);
}

TEST(a_full_ring)
{
    kvt_ring_post posts[RING_DEPTH + 1];
    open_site(true, NULL);
    give_pieces(8, true);
    hang_reads();
    for (uint32_t i = 0; i < RING_DEPTH; i++)
        posts[i] = post_of(KVT_RING_POST, 8, 0);
    launch(posts, RING_DEPTH);
    for (uint32_t i = 0; i < RING_DEPTH; i++)
        assert_int_equal(posts[i].status, KVT_QUEUED);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(launch_one(post_of(KVT_RING_POST, 8, i * SHORT_NS)).status, KVT_BUSY);
    tiers_fault_clear(fault.device);
    for (uint32_t i = 0; i < RING_DEPTH; i++) {
        posts[i].mode = KVT_RING_WAIT;
        posts[i].wait_ns = LONG_NS;
    }
    posts[RING_DEPTH] = post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS);
    launch(posts, RING_DEPTH + 1);
    for (uint32_t i = 0; i <= RING_DEPTH; i++)
        assert_int_equal(posts[i].status, KVT_OK);
    ring_assert_bytes();
}

/* A kernel that dies between fill and post leaves a hole: what comes behind waits for lost_ms. */
TEST(a_kernel_that_dies)
{
    const kvt_ring_options options = {.struct_size = sizeof options, .lost_ms = 50};
    open_site(true, &options);
    give_pieces(8, false);
    dies = true;
    (void)launch_one(post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS));
    assert_int_equal(deaths, 1);
    dies = false;
    const kvt_ring_post post = launch_one(post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS));
    assert_int_equal(post.status, KVT_OK);
    assert_int_equal(post.index, 1);
    assert_int_equal(post.result.status, KVT_E_TIMEOUT);
    assert_int_equal(launch_one(post_of(KVT_RING_POST, 8, LONG_NS)).status, KVT_E_STATE);
    ring_assert_bytes(); /* nothing was written */
}

/* ---- what makes no sense ---- */

static base_ring_words *words_at(uint64_t at)
{
    return (base_ring_words *)(void *)((char *)memory.memory + at);
}

TEST(words_that_jump)
{
    static const uint64_t jumps[] = {2, 3, 77, UINT64_MAX - 20, UINT64_MAX / 2};
    for (uint32_t i = 0; i < 3 * sizeof jumps / sizeof jumps[0]; i++) {
        const uint32_t kind = i % 3; /* of a place's submission, its completion, a waited one */
        open_site(false, NULL);
        give_pieces(8, true);
        kvt_ring_post post = launch_one(post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS));
        assert_int_equal(post.status, KVT_OK);
        const uint64_t at = kind == 0 ? head_of().submissions_at : head_of().completions_at;
        atomic_store(&words_at(at)->entry[kind < 2].sequence,
                     kind < 2 ? 1 + jumps[i / 3] : RING_DEPTH - jumps[i / 3]);
        post.mode = kind < 2 ? KVT_RING_POST : KVT_RING_WAIT;
        const int32_t status = launch_one(post).status;
        /* The ring looks at a submission's word, too, and may have given itself up by now. */
        assert_true(status == KVT_E_CORRUPT || (kind == 0 && status == KVT_E_STATE));
        ring_assert_bytes();
        ring_site_close(NULL);
    }
}

TEST(posts_that_are_none)
{
    open_site(false, NULL);
    give_pieces(8, true);
    for (uint32_t bad = 0; bad < 6; bad++) {
        kvt_ring_post post = post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS);
        if (bad == 0) post.mode = 0;
        if (bad == 1) post.mode = 4;
        if (bad == 2) post.block.count = KVT_RING_CONTEXTS_MAX + 1;
        if (bad == 3) post.block.count = UINT32_MAX;
        if (bad == 4) post.block.first = 1;
        if (bad == 5) post.contexts += 8;
        assert_int_equal(launch_one(post).status, KVT_E_ARGUMENT);
    }
    /* What the ring itself refuses completes. */
    kvt_ring_post post = post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS);
    post.block.after = 2;
    post = launch_one(post);
    assert_int_equal(post.status, KVT_OK);
    assert_int_equal(post.result.status, KVT_E_ARGUMENT);
    assert_int_equal(post.index, 0);
    assert_int_equal(launch_one(post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS)).status, KVT_OK);
    ring_assert_bytes();
}

TEST(arguments_and_states)
{
    kvt_ring_iocb iocb;
    void *posts = (void *)(uintptr_t)engine.posts, *foreign;
    ring_site_open(false, NULL);
    assert_int_equal(kvt_ring_gpu_launch(ring, posts, 1, engine.stream), KVT_E_STATE);
    assert_int_equal(kvt_ring_gpu_open(NULL, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_gpu_open(ring, 2), KVT_E_ARGUMENT);
    fake->kernel_count = 0;
    assert_int_equal(kvt_ring_gpu_open(ring, 1), KVT_E_UNSUPPORTED);
    fake->kernel_count = 1;
    assert_ok(kvt_ring_gpu_open(ring, 0)); /* what failed holds nothing */
    assert_int_equal(kvt_ring_gpu_open(ring, 0), KVT_E_STATE);
    assert_int_equal(kvt_ring_get_iocb(ring, 1, &iocb), KVT_E_STATE);
    assert_int_equal(kvt_ring_gpu_launch(NULL, posts, 1, engine.stream), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_gpu_launch(ring, NULL, 1, engine.stream), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_gpu_launch(ring, &iocb, 1, engine.stream), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_gpu_launch(ring, (char *)posts + 4, 1, engine.stream),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_gpu_launch(ring, posts, 0, engine.stream), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_gpu_launch(ring, posts, 65537, engine.stream), KVT_E_ARGUMENT);
    assert_int_equal(kvt_ring_gpu_launch(ring, posts, 60000, engine.stream), KVT_E_ARGUMENT);
    (void)fake_cuda_turn(1, 1);
    assert_int_equal(driver.stream(&foreign, 1), 0);
    assert_int_equal(kvt_ring_gpu_launch(ring, posts, 1, foreign), KVT_E_ARGUMENT);
    assert_int_equal(driver.end_stream(foreign), 0);
    (void)fake_cuda_turn(1, -1);
    ring_site_close(NULL);
    /* A ring of which the host has claimed stays the host's. */
    ring_site_open(false, NULL);
    iocb = ring_claim_layer(0);
    assert_int_equal(kvt_ring_gpu_open(ring, 0), KVT_E_STATE);
    assert_int_equal(ring_carry_out(&iocb, NULL).status, KVT_OK);
}

/* ---- ends ---- */

/* Each call of the driver fails in turn, once or for good: nothing is left, and what says that it
 * was launched has run. */
TEST(calls_that_fail_in_turn)
{
    give_pieces(8, false);
    for (uint32_t turn = 0; turn < 4; turn++) {
        bool reached = true;
        for (uint32_t n = 1; reached; n++) {
            ring_site_open(false, NULL);
            assert_ok(kvt_ring_describe(ring, (memory.struct_size = sizeof memory, &memory)));
            kvt_ring_post post = post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS);
            post.status = 123;
            give_pieces(8, true);
            fake_cuda_move(&post, engine.posts, sizeof post, 1);
            fake->calls = fake->failed = 0;
            fake->fail_call = n;
            fake->fail_result = turn % 2 == 0 ? 2 : 719;
            fake->fail_for_good = turn >= 2;
            kvt_status status = kvt_ring_gpu_open(ring, 0);
            if (status == KVT_OK)
                status =
                    kvt_ring_gpu_launch(ring, (void *)(uintptr_t)engine.posts, 1, engine.stream);
            reached = fake->failed > 0;
            fake->fail_call = 0;
            if (!reached || turn < 2) (void)driver.finish(engine.stream);
            fake_cuda_move(&post, engine.posts, sizeof post, 0);
            if (!reached) assert_int_equal(status, KVT_OK);
            if (status == KVT_OK && !reached) assert_int_equal(post.status, KVT_OK);
            assert_true(n < 200);
            ring_site_close(NULL);
            fake->fail_for_good = 0;
            engine_close();
            assert_int_equal(fake->live, 0);
            engine_open();
        }
    }
}

/* The end of ring or store waits for kernels, whose posts it completes. */
TEST(ends_with_kernels)
{
    for (int store_first = 0; store_first < 2; store_first++) {
        kvt_ring_post posts[2];
        open_site(true, NULL);
        give_pieces(8, false);
        hang_reads();
        posts[0] = post_of(KVT_RING_POST, 8, 0);
        launch(posts, 1);
        posts[0].mode = KVT_RING_WAIT;
        posts[0].wait_ns = LONG_NS;
        posts[1] = post_of(KVT_RING_POST | KVT_RING_WAIT, 8, LONG_NS);
        fake_cuda_move(posts, engine.posts, sizeof posts, 1);
        assert_ok(kvt_ring_gpu_launch(ring, (void *)(uintptr_t)engine.posts, 2, engine.stream));
        if (store_first == 1) {
            tiers_fault_clear(fault.device);
            kvt_store_close(store);
            store = NULL;
            fault.device = NULL;
            assert_int_equal(
                kvt_ring_gpu_launch(ring, (void *)(uintptr_t)engine.posts, 1, engine.stream),
                KVT_E_STATE);
            assert_int_equal(kvt_ring_gpu_open(ring, 0), KVT_E_STATE);
        }
        kvt_ring_close(ring);
        ring = NULL;
        fake_cuda_move(posts, engine.posts, sizeof posts, 0);
        assert_int_equal(posts[0].status, KVT_OK);
        assert_true(posts[0].result.status == KVT_E_CANCELLED || store_first == 1);
        assert_int_equal(posts[1].status, KVT_E_STATE);
        ring_site_close(NULL);
    }
}
