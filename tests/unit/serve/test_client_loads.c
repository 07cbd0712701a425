/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_loads.c - layered loads of a client beside a server in another process: paged memory
 * in a region, lists longer than a record, waits and announcements, ends, and the loss of the
 * server in the middle.
 */
#include "store_support.h"

#include "base/clock.h"
#include "serve/server/server.h"

#include <kvterrace/connect.h>
#include <kvterrace/gpu.h>
#include <kvterrace/load.h>
#include <kvterrace/queue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ENTRIES = 6, LAYERS = 8, TOKENS = 32, PER_BLOCK = 16, BLOCKS = 2 * ENTRIES };

/* 8 layers of 2 x 32 tokens x 2 heads x 64 x bf16 = 16 KiB each. */
static const kvt_layout layout = {
    .layers = LAYERS, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = TOKENS};

#define LAYER_BYTES 16384u
#define ENTRY_BYTES ((uint64_t)LAYERS * LAYER_BYTES)
#define POOL_BYTES  (ENTRIES * ENTRY_BYTES)
#define SECOND_NS   UINT64_C(1000000000)

static char folder[64], path[96];
static pid_t server_process;
static kvt_store *store;
static kvt_queue *queue;
static char *pool; /* the region */
static kvt_key keys[ENTRIES];
static kvt_view views[ENTRIES];
static const kvt_view *pointers[ENTRIES];
static uint32_t blocks[ENTRIES][2];
static void *bases[LAYERS];
static char expected[ENTRIES][ENTRY_BYTES];

/* ---- the server ---- */

static void serve(void)
{
    char message[256];
    kvt_store *own;
    server *lends;
    kvt_store_options options;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.limits.staging_bytes = 4 << 20;
    options.limits.put_staging_bytes = 4 << 20;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 8 << 20;
    const server_options lent = {.path = path, .staging_bytes = 1 << 20};
    if (kvt_store_open(&options, &own, message, sizeof message) != KVT_OK ||
        server_open(own, &lent, &lends, message, sizeof message) != KVT_OK ||
        server_run(lends) != KVT_OK)
        _exit(1);
    _exit(0);
}

static void server_begin(void)
{
    server_process = fork();
    assert_true(server_process >= 0);
    if (server_process == 0) serve();
}

static void server_kill(void)
{
    int how;
    if (server_process <= 0) return;
    assert_int_equal(kill(server_process, SIGKILL), 0);
    assert_int_equal(waitpid(server_process, &how, 0), server_process);
    server_process = 0;
}

/* ---- the client ---- */

/* Puts all entries, as soon as the server serves. A put by staging would not fit: the region's
 * second half is the source. */
static void puts_all(void)
{
    const uint64_t until_ns = base_clock_ns() + 30 * SECOND_NS;
    char *source = pool + POOL_BYTES;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_entry entry = support_entry(keys[i], layout, 1);
        kvt_status status;
        memcpy(source, expected[i], ENTRY_BYTES);
        while ((status = kvt_store_put(store, &entry, KVT_PACKED(source, ENTRY_BYTES))) ==
                   KVT_REFUSED ||
               status == KVT_E_SPACE) {
            assert_true(base_clock_ns() < until_ns);
            usleep(2000);
        }
        assert_ok(status);
    }
}

TEST_BEFORE_EACH
{
    char message[256];
    kvt_status status;
    support_make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/socket", folder);
    server_begin();
    /* Less staging than one entry has bytes: what comes has no copy. */
    const kvt_connect_options options = {.struct_size = sizeof options, .staging_bytes = 65536};
    const uint64_t until_ns = base_clock_ns() + 30 * SECOND_NS;
    while ((status = kvt_connect(path, &options, &store, message, sizeof message)) == KVT_E_GONE &&
           base_clock_ns() < until_ns)
        usleep(2000);
    assert_ok(status);
    assert_ok(kvt_queue_open(store, NULL, &queue));
    void *memory;
    assert_ok(kvt_region_make(store, 2 * POOL_BYTES, &memory));
    pool = memory;
    memset(pool, 0xee, 2 * POOL_BYTES);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        bases[layer] = pool + layer * (POOL_BYTES / LAYERS);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        keys[i] = support_key(i);
        codecs_kv_sample_fill(&layout, 50 + i, expected[i]);
        assert_ok(kvt_view_make(&layout, "bsth", PER_BLOCK, BLOCKS, &views[i]));
        views[i].bases = bases;
        views[i].base_count = LAYERS;
        views[i].blocks = blocks[i];
        views[i].block_count = 2;
        for (uint32_t k = 0; k < 2; k++)
            blocks[i][k] = (2 * i + k) * 5 % BLOCKS; /* scattered */
        pointers[i] = &views[i];
    }
    puts_all();
}

TEST_AFTER_EACH
{
    kvt_queue_close(queue);
    kvt_store_close(store);
    (void)kvt_region_free(NULL, pool);
    server_kill();
    support_remove_folder(folder);
}

/* Whether the pool holds a layer of an entry. */
static bool pool_holds(uint32_t number, uint32_t layer)
{
    const size_t row = 2 * 64 * 2; /* heads of a token */
    const char *packed = expected[number] + layer * LAYER_BYTES;
    for (size_t side = 0; side < 2; side++)
        for (size_t token = 0; token < TOKENS; token++, packed += row) {
            const size_t block = blocks[number][token / PER_BLOCK];
            const char *at = (const char *)bases[layer] +
                             ((block * 2 + side) * PER_BLOCK + token % PER_BLOCK) * row;
            if (memcmp(at, packed, row) != 0) return false;
        }
    return true;
}

static kvt_load *begin(const kvt_load_options *options)
{
    kvt_load *load = NULL;
    assert_ok(kvt_load_begin(queue, keys, pointers, ENTRIES, options, &load));
    return load;
}

static const kvt_load_options one_ahead = {
    .struct_size = sizeof one_ahead, .layers_ahead = 1, .deadline_ns = KVT_NO_DEADLINE};

TEST(layers_come_into_the_region)
{
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    bool reads = true;
    kvt_load *load = begin(&one_ahead);
    assert_int_equal(kvt_load_total(load, &reads), LAYERS);
    assert_false(reads);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kvt_load_wait(load, layer + 1, base_clock_ns() + 60 * SECOND_NS));
        assert_true(kvt_load_layers(load) >= layer + 1 && kvt_load_layers(load) <= layer + 2);
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_true(pool_holds(i, layer));
        kvt_load_release(load, layer + 1);
    }
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(kvt_load_status(load, i));
    assert_int_equal(kvt_load_status(load, ENTRIES), KVT_E_ARGUMENT);
    assert_int_equal(kvt_load_wait_layer(load, 0, NULL), KVT_E_ARGUMENT);
    assert_ok(kvt_load_end(load, statuses, &result));
    assert_int_equal(result.layers, LAYERS);
    assert_int_equal(result.entries, ENTRIES);
}

/* Steps of a progressive load are counted over a connection, too; these entries have one form. */
TEST(a_progressive_load)
{
    kvt_load_options options = one_ahead;
    kvt_load_quality said = {.struct_size = sizeof said};
    kvt_load *load = NULL;
    options.coarse_planes = 5;
    assert_int_equal(kvt_load_begin(queue, keys, pointers, ENTRIES, &options, &load),
                     KVT_E_ARGUMENT);
    options.coarse_planes = 1;
    load = begin(&options);
    assert_int_equal(kvt_load_total(load, NULL), 2 * LAYERS);
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait(load, 2 * LAYERS, base_clock_ns() + 60 * SECOND_NS));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_ok(kvt_load_status(load, i));
        assert_true(pool_holds(i, 0) && pool_holds(i, LAYERS - 1));
    }
    assert_int_equal(kvt_load_quality_of(load, 0, &said), KVT_E_UNSUPPORTED);
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(load, NULL, &result));
    assert_int_equal(result.layers, 2 * LAYERS);
}

/* A region stays while a load names it. */
TEST(what_is_refused)
{
    char outside[64];
    kvt_load *loads[65];
    kvt_view own[64];
    void *more;
    const kvt_view view = kvt_view_packed(outside, sizeof outside);
    const kvt_view *one = &view;
    assert_int_equal(kvt_load_begin(queue, keys, &one, 1, NULL, &loads[0]), KVT_E_UNSUPPORTED);
    views[0].base_count = 0; /* nobody knows how many to look at */
    assert_int_equal(kvt_load_begin(queue, keys, pointers, 1, NULL, &loads[0]), KVT_E_UNSUPPORTED);
    views[0].base_count = LAYERS - 1;
    assert_int_equal(kvt_load_begin(queue, keys, pointers, 1, NULL, &loads[0]), KVT_MISS);
    views[0].base_count = LAYERS;
    const kvt_key none = support_key(999);
    assert_int_equal(kvt_load_begin(queue, &none, pointers, 1, NULL, &loads[0]), KVT_MISS);
    /* Each has memory of its own: the server's threads write all of it at once. */
    assert_ok(kvt_region_make(store, 64 * ENTRY_BYTES, &more));
    loads[0] = begin(NULL);
    for (uint32_t i = 1; i < 64; i++) {
        own[i] = kvt_view_packed((char *)more + i * ENTRY_BYTES, ENTRY_BYTES);
        one = &own[i];
        assert_ok(kvt_load_begin(queue, keys, &one, 1, NULL, &loads[i]));
    }
    assert_int_equal(kvt_load_begin(queue, keys, pointers, ENTRIES, NULL, &loads[64]), KVT_BUSY);
    assert_int_equal(kvt_region_free(store, pool), KVT_BUSY);
    for (uint32_t i = 0; i < 64; i++)
        assert_ok(kvt_load_end(loads[i], NULL, NULL));
    assert_ok(kvt_region_free(store, more));
    assert_ok(kvt_load_end(begin(NULL), NULL, NULL));
}

/* Three records of keys, of which the last ones are stored. */
TEST(a_list_longer_than_a_record)
{
    enum { MANY = 20000 };
    static kvt_key all[MANY];
    static const kvt_view *places[MANY];
    static kvt_status statuses[MANY];
    kvt_load *load = NULL;
    for (uint32_t i = 0; i < MANY; i++) {
        const bool last = i >= MANY - ENTRIES;
        all[i] = last ? keys[i - (MANY - ENTRIES)] : support_key(1000 + i);
        places[i] = last ? pointers[i - (MANY - ENTRIES)] : pointers[0];
    }
    assert_ok(kvt_load_begin(queue, all, places, MANY, NULL, &load));
    kvt_load_release(load, LAYERS);
    assert_ok(kvt_load_wait(load, LAYERS, base_clock_ns() + 60 * SECOND_NS));
    kvt_load_result result = {.struct_size = sizeof result};
    assert_ok(kvt_load_end(load, statuses, &result));
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(statuses[i], i >= MANY - ENTRIES ? KVT_OK : KVT_MISS);
    assert_int_equal(result.layers, LAYERS);
    assert_int_equal(result.entries, 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_true(pool_holds(i, layer));
}

typedef struct waiter {
    kvt_load *load;
    uint32_t layers;
    kvt_status status;
} waiter;

static void *waits(void *argument)
{
    waiter *own = argument;
    own->status = kvt_load_wait(own->load, own->layers, KVT_NO_DEADLINE);
    return NULL;
}

TEST(several_threads_wait)
{
    pthread_t threads[LAYERS];
    waiter waiters[LAYERS];
    for (int round = 0; round < 20; round++) {
        kvt_load *load = begin(&one_ahead);
        for (uint32_t i = 0; i < LAYERS; i++) {
            waiters[i] = (waiter){.load = load, .layers = i + 1};
            assert_int_equal(pthread_create(&threads[i], NULL, waits, &waiters[i]), 0);
        }
        for (uint32_t i = 1; i <= LAYERS; i++)
            kvt_load_release(load, i);
        for (uint32_t i = 0; i < LAYERS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_ok(waiters[i].status);
        }
        assert_ok(kvt_load_end(load, NULL, NULL));
    }
}

static void told(void *context, uint32_t layers)
{
    uint32_t *last = context;
    assert_true(layers > *last);
    *last = layers;
}

/* A caller with an event loop sleeps at the queue's descriptor alone. */
TEST(the_descriptor_tells_of_layers)
{
    for (int round = 0; round < 20; round++) {
        uint32_t last = 0;
        kvt_completion done = {.struct_size = sizeof done};
        kvt_load_options options = one_ahead;
        options.announced = told;
        options.announced_context = &last;
        kvt_load *load = begin(&options);
        while (last < LAYERS) {
            struct pollfd at = {.fd = kvt_queue_fd(queue), .events = POLLIN};
            assert_int_equal(poll(&at, 1, 20000), 1);
            assert_int_equal(kvt_queue_drain(queue, &done, 1), 0);
            kvt_load_release(load, last);
        }
        assert_ok(kvt_load_end(load, NULL, NULL));
    }
}

/* Without a look at the descriptor, and without a wait, layers come as well. */
TEST(a_caller_that_polls)
{
    kvt_load *load = begin(NULL);
    const uint64_t until_ns = base_clock_ns() + 60 * SECOND_NS;
    uint32_t layers = 0;
    while ((layers = kvt_load_layers(load)) < LAYERS) {
        kvt_load_release(load, layers);
        assert_true(base_clock_ns() < until_ns);
        sched_yield();
    }
    assert_ok(kvt_load_end(load, NULL, NULL));
}

/* What had come stays whole; nothing more comes, and the end says so. */
TEST(the_server_dies_in_the_middle)
{
    kvt_status statuses[ENTRIES];
    kvt_load_result result = {.struct_size = sizeof result};
    for (int round = 0; round < 3; round++) {
        kvt_load *load = begin(&one_ahead);
        assert_ok(kvt_load_wait(load, 2, KVT_NO_DEADLINE));
        server_kill();
        if (round == 1) server_begin(); /* another one, which has no such load */
        assert_ok(kvt_load_wait(load, 2, KVT_NO_DEADLINE));
        if (round != 2) assert_int_equal(kvt_load_wait(load, 3, KVT_NO_DEADLINE), KVT_MISS);
        kvt_load_release(load, 2);
        if (round != 2) assert_int_equal(kvt_load_status(load, 0), KVT_MISS);
        assert_ok(kvt_load_end(load, statuses, &result));
        assert_int_equal(result.layers, 2);
        assert_int_equal(result.entries, 0);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            assert_int_equal(statuses[i], KVT_MISS);
            assert_true(pool_holds(i, 0) && pool_holds(i, 1));
        }
        if (round != 1) {
            kvt_load *none = NULL;
            assert_int_equal(kvt_load_begin(queue, keys, pointers, ENTRIES, NULL, &none), KVT_MISS);
            server_begin();
        }
        puts_all();
        memset(pool, 0xee, POOL_BYTES);
    }
}

/* A wait sleeps while the server dies. */
TEST(the_server_dies_under_a_wait)
{
    pthread_t threads[3];
    waiter waiters[3];
    kvt_load *load = begin(&one_ahead);
    for (uint32_t i = 0; i < 3; i++) {
        waiters[i] = (waiter){.load = load, .layers = LAYERS};
        assert_int_equal(pthread_create(&threads[i], NULL, waits, &waiters[i]), 0);
    }
    usleep(20000);
    server_kill();
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(waiters[i].status, KVT_MISS);
    }
    assert_ok(kvt_load_end(load, NULL, NULL));
}

TEST(closes_in_the_middle)
{
    kvt_status statuses[ENTRIES];
    kvt_load *load = begin(&one_ahead);
    assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
    kvt_queue_close(queue);
    assert_int_equal(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE), KVT_E_STATE);
    assert_ok(kvt_load_end(load, statuses, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(statuses[i], KVT_E_TIMEOUT);
    assert_ok(kvt_queue_open(store, NULL, &queue));
    load = begin(&one_ahead);
    kvt_store_close(store);
    store = NULL;
    assert_int_equal(kvt_load_wait(load, LAYERS, KVT_NO_DEADLINE), KVT_E_STATE);
    assert_ok(kvt_load_end(load, NULL, NULL));
}

TEST(in_a_child_of_fork)
{
    int how;
    kvt_load *load = begin(&one_ahead);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_status status = KVT_OK;
        (void)alarm(20);
        const bool right = kvt_load_layers(load) == 0 && kvt_load_total(load, NULL) == 0 &&
                           kvt_load_wait(load, 1, KVT_NO_DEADLINE) == KVT_E_STATE &&
                           kvt_load_status(load, 0) == KVT_E_STATE &&
                           kvt_load_end(load, &status, NULL) == KVT_E_STATE && status == KVT_OK;
        kvt_load_release(load, LAYERS);
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_ok(kvt_load_wait(load, 2, KVT_NO_DEADLINE));
    assert_int_equal(kvt_load_wait(load, 3, base_clock_ns() + SECOND_NS / 50), KVT_E_TIMEOUT);
    assert_ok(kvt_load_end(load, NULL, NULL));
}

/* Gets and puts with an address a layer need no copy, either. */
TEST(gets_into_bases)
{
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(kvt_store_get(store, &keys[i], &views[i], KVT_NO_DEADLINE, NULL));
    for (uint32_t i = 0; i < ENTRIES; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_true(pool_holds(i, layer));
    const kvt_entry entry = support_entry(support_key(100), layout, 1);
    assert_ok(kvt_store_put(store, &entry, &views[3]));
    char *packed = pool + POOL_BYTES;
    assert_ok(
        kvt_store_get(store, &entry.key, KVT_PACKED(packed, ENTRY_BYTES), KVT_NO_DEADLINE, NULL));
    assert_memory_equal(packed, expected[3], ENTRY_BYTES);
    views[0].base_count = LAYERS - 1;
    assert_int_equal(kvt_store_get(store, &keys[0], &views[0], KVT_NO_DEADLINE, NULL),
                     KVT_E_ARGUMENT);
}
