/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_connection.c - a client beside a server in another process that is killed, comes back
 * and is none: every call ends with the status that connect.h names, no byte is wrong, and what was
 * flushed is there.
 */
#include "peer_support.h"
#include "serve_process.h"

#include "serve/wire/peer_socket.h"

#include <fcntl.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/watch.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define ENTRY   SUPPORT_ENTRY_BYTES
#define SECOND  UINT64_C(1000000000)
#define THREADS 4
#define STAGING (UINT64_C(4) << 20) /* of a client */

static serve_process host; /* its `lent` is of the next server */
static pid_t server_process;
static kvt_store *store; /* connected */

static void server_begin(void)
{
    server_process = serve_process_begin(&host);
}

static void server_kill(void)
{
    if (server_process > 0) serve_process_kill(server_process);
    server_process = 0;
}

static kvt_status try_connect(const kvt_connect_options *options)
{
    return serve_process_connect(&host, options, &store);
}

TEST_BEFORE_EACH
{
    serve_process_place(&host);
    host.lent.staging_bytes = STAGING;
    store = NULL;
    server_begin();
}

TEST_AFTER_EACH
{
    kvt_store_close(store);
    server_kill();
    support_remove_folder(host.folder);
}

/* Puts entries, however slow the disk is. */
static void puts_all(uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        kvt_status status;
        while ((status = support_put(store, i)) == KVT_BUSY)
            assert_ok(kvt_store_flush(store));
        assert_true(status == KVT_OK || status == KVT_EXISTS);
    }
}

/* Waits until calls are served again; how long that took. */
static uint64_t wait_until_served(void)
{
    const uint64_t begin_ns = base_clock_ns();
    kvt_store_stats stats = {.struct_size = sizeof stats};
    while (kvt_store_stats_get(store, &stats) != KVT_OK) {
        assert_true(base_clock_ns() - begin_ns < 60 * SECOND);
        usleep(1000);
    }
    return base_clock_ns() - begin_ns;
}

TEST(nobody_there)
{
    char message[256];
    kvt_store *none = NULL;
    static const char *const wrong[] = {"", "/nonexistent/socket", "socket_that_is_not_there"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        message[0] = '\0';
        const kvt_status status = kvt_connect(wrong[i], NULL, &none, message, sizeof message);
        assert_true(status == KVT_E_GONE || status == KVT_E_ARGUMENT);
        assert_true(none == NULL && strlen(message) > 0);
    }
    char longest[300];
    memset(longest, 'x', sizeof longest);
    longest[299] = '\0';
    assert_int_equal(kvt_connect(longest, NULL, &none, NULL, 0), KVT_E_ARGUMENT);
    kvt_connect_options options = {.struct_size = sizeof options, .depth = 3};
    assert_int_equal(kvt_connect(host.path, &options, &none, message, sizeof message),
                     KVT_E_ARGUMENT);
    options.struct_size = 4;
    assert_int_equal(kvt_connect(host.path, &options, &none, NULL, 0), KVT_E_ARGUMENT);
}

TEST(another_users_server_is_refused)
{
    char message[256];
    kvt_store *none = NULL;
    assert_ok(try_connect(NULL));
    const uint32_t other = geteuid() + 1;
    const kvt_connect_options options = {
        .struct_size = sizeof options, .users = &other, .user_count = 1};
    assert_int_equal(kvt_connect(host.path, &options, &none, message, sizeof message),
                     KVT_E_READ_ONLY);
    assert_non_null(strstr(message, "another user"));
}

TEST(a_server_that_is_gone_is_a_store_without_entries)
{
    kvt_get_info info = {.struct_size = sizeof info};
    size_t count = 1;
    uint64_t lease = 1;
    bool held[2] = {true, true};
    const kvt_key keys[2] = {support_key(0), support_key(1)};
    kvt_description what = {.struct_size = sizeof what};
    double seconds[2];
    assert_ok(try_connect(NULL));
    puts_all(0, 2);
    server_kill();
    assert_int_equal(support_get(store, 0, &info), KVT_MISS);
    assert_int_equal(support_get(store, 0, NULL), KVT_MISS);
    assert_int_equal(support_put(store, 7), KVT_REFUSED);
    assert_int_equal(kvt_store_exists(store, &keys[0]), KVT_MISS);
    assert_int_equal(kvt_store_delete(store, &keys[0]), KVT_E_GONE);
    assert_int_equal(kvt_store_describe(store, &keys[0], &what), KVT_MISS);
    assert_int_equal(kvt_store_prefetch(store, &keys[0], KVT_TIER_DRAM), KVT_MISS);
    assert_ok(kvt_store_match(store, keys, 2, KVT_MATCH(.load_seconds = seconds), &count));
    assert_int_equal(count, 0);
    assert_true(seconds[0] != seconds[0]);
    count = 1;
    assert_ok(kvt_store_touch(store, keys, 2, &count));
    assert_int_equal(count, 0);
    assert_int_equal(kvt_lease_begin(store, NULL, keys, 2, base_clock_ns() + SECOND, held, &lease),
                     KVT_MISS);
    assert_true(!held[0] && !held[1] && lease == 0);
    assert_int_equal(kvt_store_flush(store), KVT_E_GONE);
    assert_int_equal(kvt_store_maintain(store, NULL), KVT_E_GONE);
    kvt_store_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(kvt_store_stats_get(store, &stats), KVT_E_GONE);
    kvt_queue *queue = NULL;
    assert_int_equal(kvt_queue_open(store, NULL, &queue), KVT_E_GONE);
}

TEST(what_was_flushed_is_there_when_it_comes_back)
{
    const uint32_t before = open_descriptors();
    assert_ok(try_connect(NULL));
    puts_all(0, 40);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    for (int round = 0; round < 3; round++) {
        server_kill();
        assert_int_equal(support_get(store, 0, NULL), KVT_MISS);
        server_begin();
        (void)wait_until_served();
        for (uint32_t i = 0; i < 40; i++)
            assert_ok(support_get(store, i, NULL));
    }
    kvt_store_close(store);
    store = NULL;
    assert_int_equal(open_descriptors(), before);
}

TEST(regions_come_back_too)
{
    void *memory = NULL, *other = NULL;
    assert_ok(try_connect(NULL));
    puts_all(0, 4);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    assert_ok(kvt_region_make(store, 2 * ENTRY, &memory));
    assert_ok(kvt_region_make(store, 1, &other));
    assert_ok(kvt_region_free(store, other));
    server_kill();
    server_begin();
    (void)wait_until_served();
    char expected[ENTRY];
    for (uint32_t i = 0; i < 4; i++) {
        const kvt_key key = support_key(i);
        support_fill(i, expected);
        assert_ok(kvt_store_get(store, &key, KVT_PACKED(memory, ENTRY), KVT_NO_DEADLINE, NULL));
        assert_memory_equal(memory, expected, ENTRY);
    }
    kvt_store_close(store);
    store = NULL;
    memset(memory, 1, ENTRY); /* it is the caller's still */
    assert_ok(kvt_region_free(NULL, memory));
    assert_int_equal(kvt_region_free(NULL, memory), KVT_E_ARGUMENT);
}

/* The next server takes no region: what lay in one is copied. */
TEST(regions_that_do_not_come_back)
{
    char expected[ENTRY];
    void *memory = NULL;
    const kvt_key key = support_key(1);
    kvt_queue *queue = NULL;
    assert_ok(try_connect(NULL));
    puts_all(0, 2);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    assert_ok(kvt_region_make(store, 2 * ENTRY, &memory));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    server_kill();
    host.lent.registered_bytes = 4096;
    server_begin();
    (void)wait_until_served();
    assert_ok(kvt_store_get(store, &key, KVT_PACKED(memory, ENTRY), KVT_NO_DEADLINE, NULL));
    support_fill(1, expected);
    assert_memory_equal(memory, expected, ENTRY);
    assert_ok(kvt_region_free(store, memory));
    assert_int_equal(kvt_region_make(store, 2 * ENTRY, &memory), KVT_E_SPACE);
    kvt_queue_close(queue);
}

TEST(regions_save_the_staging)
{
    void *memory = NULL;
    const kvt_connect_options options = {.struct_size = sizeof options, .staging_bytes = ENTRY};
    assert_ok(try_connect(&options));
    /* Two entries as one opaque one are too large for the staging, and not for a region. */
    kvt_entry large = support_entry(support_key(9), (kvt_layout){.opaque_bytes = 2 * ENTRY}, 1);
    large.layout.dtype = KVT_DTYPE_OPAQUE;
    char *plain = test_zeros(2 * ENTRY);
    assert_int_equal(kvt_store_put(store, &large, KVT_PACKED(plain, 2 * ENTRY)), KVT_E_SPACE);
    assert_ok(kvt_region_make(store, 2 * ENTRY, &memory));
    memset(memory, 0x5b, 2 * ENTRY);
    assert_ok(kvt_store_put(store, &large, KVT_PACKED(memory, 2 * ENTRY)));
    memset(memory, 0, 2 * ENTRY);
    assert_int_equal(
        kvt_store_get(store, &large.key, KVT_PACKED(plain, 2 * ENTRY), KVT_NO_DEADLINE, NULL),
        KVT_E_SPACE);
    assert_ok(
        kvt_store_get(store, &large.key, KVT_PACKED(memory, 2 * ENTRY), KVT_NO_DEADLINE, NULL));
    for (uint32_t i = 0; i < 2 * ENTRY; i++)
        assert_int_equal(((char *)memory)[i], 0x5b);
    assert_ok(kvt_region_free(store, memory));
    /* Memory of the caller's own. */
    const int descriptor = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(descriptor >= 0 && ftruncate(descriptor, 2 * ENTRY) == 0);
    void *mine = mmap(NULL, 2 * ENTRY, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert_true(mine != MAP_FAILED);
    assert_int_equal(kvt_region_add(store, descriptor, 0, 2 * ENTRY, mine), KVT_E_UNSUPPORTED);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(kvt_region_add(store, descriptor, 0, 4 * ENTRY, mine), KVT_E_ARGUMENT);
    assert_int_equal(kvt_region_add(store, descriptor, 1, ENTRY, mine), KVT_E_ARGUMENT);
    assert_int_equal(kvt_region_add(store, descriptor, 0, ENTRY + 1, mine), KVT_E_ARGUMENT);
    assert_ok(kvt_region_add(store, descriptor, 0, 2 * ENTRY, mine));
    close(descriptor);
    assert_ok(kvt_store_get(store, &large.key, KVT_PACKED(mine, 2 * ENTRY), KVT_NO_DEADLINE, NULL));
    assert_int_equal(((char *)mine)[2 * ENTRY - 1], 0x5b);
    assert_ok(kvt_region_free(store, mine));
    munmap(mine, 2 * ENTRY);
}

/* Requests of a queue that are under way when the server is killed complete, each once. */
TEST(requests_under_way_end)
{
    enum { MANY = 200 };
    static char data[MANY][ENTRY];
    static kvt_view views[MANY];
    static kvt_request requests[MANY];
    static kvt_entry entries[MANY];
    kvt_completion done[MANY];
    kvt_queue *queue = NULL;
    assert_ok(try_connect(NULL));
    puts_all(0, 100);
    const kvt_queue_options options = {.struct_size = sizeof options, .depth = MANY};
    assert_ok(kvt_queue_open(store, &options, &queue));
    for (int round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < MANY; i++) {
            const bool put = i % 4 == 3;
            const uint32_t number = put ? 1000 + (uint32_t)round * MANY + i : i % 100;
            views[i] = kvt_view_packed(data[i], ENTRY);
            requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                        .kind = put ? KVT_REQUEST_PUT : KVT_REQUEST_GET,
                                        .key = support_key(number),
                                        .view = &views[i],
                                        .deadline_ns = KVT_NO_DEADLINE,
                                        .user = i};
            if (!put) continue;
            support_fill(number, data[i]);
            entries[i] = support_entry(support_key(number), support_layout, 1);
            requests[i].entry = &entries[i];
        }
        assert_ok(kvt_queue_submit(queue, requests, MANY, NULL));
        if (round % 2 == 1) server_kill();
        bool seen[MANY] = {false};
        for (size_t count = 0; count < MANY;) {
            struct pollfd waits = {.fd = kvt_queue_fd(queue), .events = POLLIN};
            assert_true(poll(&waits, 1, 20000) == 1);
            done[0].struct_size = sizeof done[0];
            const size_t now = kvt_queue_drain(queue, done, MANY);
            for (size_t i = 0; i < now; i++) {
                const uint64_t user = done[i].user;
                assert_true(user < MANY && !seen[user]);
                seen[user] = true;
                if (requests[user].kind == KVT_REQUEST_PUT) {
                    assert_true(done[i].status == KVT_OK || done[i].status == KVT_EXISTS ||
                                done[i].status == KVT_E_GONE || done[i].status == KVT_REFUSED);
                    continue;
                }
                if (done[i].status != KVT_OK) assert_int_equal(done[i].status, KVT_MISS);
                if (done[i].status != KVT_OK) continue;
                char expected[ENTRY];
                support_fill((uint32_t)user % 100, expected);
                assert_memory_equal(data[user], expected, ENTRY);
            }
            count += now;
        }
        assert_int_equal(kvt_queue_drain(queue, done, MANY), 0);
        assert_int_equal(kvt_queue_wait(queue, KVT_NO_DEADLINE), KVT_END);
        if (round % 2 == 1) {
            server_begin();
            (void)wait_until_served();
            puts_all(0, 100);
        }
    }
    kvt_store_close(store);
    store = NULL;
    assert_int_equal(kvt_queue_submit(queue, requests, 1, NULL), KVT_E_STATE);
    kvt_queue_close(queue);
}

static void *works(void *argument)
{
    const uint32_t number = *(const uint32_t *)argument;
    for (uint32_t i = 0; i < 300; i++) {
        const uint32_t one = number * 1000 + i;
        const kvt_status put = support_put(store, one);
        if (put != KVT_OK && put != KVT_BUSY && put != KVT_REFUSED && put != KVT_E_GONE)
            return argument;
        const kvt_status got = support_get(store, one, NULL);
        if (got != KVT_OK && got != KVT_MISS) return argument;
        if (i % 50 == 0) {
            kvt_store_stats stats = {.struct_size = sizeof stats};
            (void)!kvt_store_stats_get(store, &stats);
        }
    }
    return NULL;
}

/* Threads share one connection, which is lost and comes back under them. */
TEST(threads_beside_a_server_that_dies)
{
    pthread_t threads[THREADS];
    uint32_t numbers[THREADS];
    /* Little staging, so that they wait for room as well. */
    const kvt_connect_options options = {
        .struct_size = sizeof options, .depth = 4, .staging_bytes = 2 * ENTRY};
    assert_ok(try_connect(&options));
    for (uint32_t i = 0; i < THREADS; i++) {
        numbers[i] = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, works, &numbers[i]), 0);
    }
    for (int round = 0; round < 4; round++) {
        usleep(30000);
        server_kill();
        server_begin();
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
}

/* The patient ones see a restart as a pause. */
typedef struct patient {
    uint32_t number, failed;
    bool queued;
    atomic_bool *stop;
    _Atomic uint64_t done;
} patient;

static kvt_status patient_get(kvt_queue *queue, uint32_t number)
{
    char data[ENTRY], expected[ENTRY];
    kvt_completion done = {.struct_size = sizeof done};
    const kvt_view view = kvt_view_packed(data, ENTRY);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = support_key(number),
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    const kvt_status status = kvt_queue_submit(queue, &request, 1, NULL);
    if (status != KVT_OK) return status;
    while (kvt_queue_drain(queue, &done, 1) == 0) {
        struct pollfd waits = {.fd = kvt_queue_fd(queue), .events = POLLIN};
        if (poll(&waits, 1, 30000) != 1) return KVT_E_TIMEOUT;
    }
    support_fill(number, expected);
    return done.status == KVT_OK && memcmp(data, expected, ENTRY) != 0 ? KVT_E_CORRUPT
                                                                       : done.status;
}

static void *patient_works(void *argument)
{
    patient *me = argument;
    kvt_queue *queue = NULL;
    if (me->queued && kvt_queue_open(store, NULL, &queue) != KVT_OK) me->failed++;
    for (uint32_t i = 0; !atomic_load(me->stop); i++) {
        const uint32_t number = (me->number * 7 + i) % 30;
        const kvt_status got =
            me->queued ? patient_get(queue, number) : support_get(store, number, NULL);
        if (got != KVT_OK) me->failed++;
        const kvt_status put = support_put(store, 100 + me->number * 50 + i % 50);
        if (put != KVT_OK && put != KVT_EXISTS && put != KVT_BUSY) me->failed++;
        atomic_fetch_add(&me->done, 1);
    }
    kvt_queue_close(queue);
    return NULL;
}

TEST(a_restart_is_a_pause_for_the_patient)
{
    const kvt_connect_options options = {.struct_size = sizeof options, .patience_seconds = 30};
    atomic_bool stop = false;
    patient all[THREADS];
    pthread_t threads[THREADS];
    int how;
    assert_ok(try_connect(&options));
    puts_all(0, 30);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    for (uint32_t i = 0; i < THREADS; i++) {
        all[i] = (patient){.number = i, .queued = i % 2 == 1, .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL, patient_works, &all[i]), 0);
    }
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < THREADS; i++) {
            const uint64_t wanted = atomic_load(&all[i].done) + 20;
            while (atomic_load(&all[i].done) < wanted)
                usleep(1000);
        }
        assert_int_equal(kill(server_process, SIGTERM), 0);
        assert_int_equal(waitpid(server_process, &how, 0), server_process);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
        server_begin();
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        const uint64_t wanted = atomic_load(&all[i].done) + 20;
        while (atomic_load(&all[i].done) < wanted)
            usleep(1000);
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(all[i].failed, 0);
}

/* A get into a region that waits for its server, or was posted to one that has not seen it, goes
 * to the next one; the region stays until then, whether that one takes it or not. */
TEST(a_region_stays_while_a_request_waits)
{
    char expected[ENTRY];
    void *memory = NULL;
    kvt_queue *queue = NULL;
    const kvt_connect_options options = {.struct_size = sizeof options, .patience_seconds = 60};
    assert_ok(try_connect(&options));
    puts_all(0, 1);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    assert_ok(kvt_region_make(store, ENTRY, &memory));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    support_fill(0, expected);
    const kvt_view view = kvt_view_packed(memory, ENTRY);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = support_key(0),
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    for (int round = 0; round < 4; round++) {
        kvt_completion done = {.struct_size = sizeof done};
        const bool posted = round % 2 == 0;
        memset(memory, 0, ENTRY);
        host.lent.registered_bytes = round < 2 ? 0 : WIRE_PAGE;
        if (posted) {
            serve_process_stop(server_process);
            assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
        }
        server_kill();
        if (!posted) assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
        assert_int_equal(kvt_queue_drain(queue, &done, 1), 0);
        assert_int_equal(kvt_region_free(store, memory), KVT_BUSY);
        server_begin();
        assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND));
        assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
        assert_ok(done.status);
        assert_memory_equal(memory, expected, ENTRY);
    }
    assert_ok(kvt_region_free(store, memory));
    kvt_queue_close(queue);
}

/* A process without descriptors gets no queue, and keeps its connection with all leases. */
TEST(a_process_without_descriptors_keeps_its_connection)
{
    struct rlimit before;
    uint64_t lease;
    uint32_t refused = 0;
    const kvt_key key = support_key(0);
    const uint64_t until_ns = base_clock_ns() + 600 * SECOND;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_ok(try_connect(NULL));
    puts_all(0, 1);
    assert_ok(kvt_lease_begin(store, NULL, &key, 1, until_ns, NULL, &lease));
    for (rlim_t most = 3;; most++) {
        kvt_queue *queue = NULL;
        const struct rlimit few = {.rlim_cur = most, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        const kvt_status status = kvt_queue_open(store, NULL, &queue);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_ok(kvt_lease_extend(store, lease, until_ns));
        kvt_queue_close(queue);
        if (status == KVT_OK) break;
        assert_int_equal(status, KVT_E_MEMORY);
        refused++;
    }
    assert_true(refused >= 6);
}

/* When a store has been closed, its server writes to no region any more. */
TEST(a_region_is_quiet_after_the_close)
{
    enum { GETS = 16 };
    const uint64_t bytes = 1 << 20;
    kvt_view views[GETS];
    kvt_request requests[GETS];
    for (int round = 0; round < 5; round++) {
        void *memory = NULL;
        kvt_queue *queue = NULL;
        assert_ok(try_connect(NULL));
        assert_ok(kvt_region_make(store, GETS * bytes, &memory));
        memset(memory, 0x5b, bytes);
        kvt_entry large = support_entry(support_key(9), (kvt_layout){.opaque_bytes = bytes}, 1);
        large.layout.dtype = KVT_DTYPE_OPAQUE;
        const kvt_status put = kvt_store_put(store, &large, KVT_PACKED(memory, bytes));
        assert_true(put == KVT_OK || put == KVT_EXISTS);
        assert_ok(kvt_queue_open(store, NULL, &queue));
        for (int i = 0; i < GETS; i++) {
            views[i] = kvt_view_packed((char *)memory + (uint64_t)i * bytes, bytes);
            requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                        .kind = KVT_REQUEST_GET,
                                        .key = large.key,
                                        .view = &views[i],
                                        .deadline_ns = KVT_NO_DEADLINE};
        }
        assert_ok(kvt_queue_submit(queue, requests, GETS, NULL));
        usleep(200);
        kvt_store_close(store);
        store = NULL;
        kvt_queue_close(queue);
        memset(memory, 0x11, GETS * bytes);
        usleep(50000);
        for (uint64_t i = 0; i < GETS * bytes; i += 64)
            assert_int_equal(((char *)memory)[i], 0x11);
        assert_ok(kvt_region_free(NULL, memory));
    }
}

/* A lease that ended with its connection names none that began on the next one. */
TEST(a_lease_s_number_is_not_used_again)
{
    uint64_t first, second;
    const kvt_key key = support_key(0);
    const uint64_t until_ns = base_clock_ns() + 600 * SECOND;
    assert_ok(try_connect(NULL));
    puts_all(0, 1);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    assert_ok(kvt_lease_begin(store, NULL, &key, 1, until_ns, NULL, &first));
    server_kill();
    server_begin();
    (void)wait_until_served();
    assert_ok(kvt_lease_begin(store, NULL, &key, 1, until_ns, NULL, &second));
    assert_int_equal(kvt_lease_extend(store, first, until_ns), KVT_MISS);
    assert_int_equal(kvt_lease_end(store, first), KVT_MISS);
    assert_ok(kvt_lease_end(store, second));
}

/* What was too large for the staging of a server is not for that of the next one. */
TEST(the_next_server_has_more_staging)
{
    static char data[ENTRY];
    kvt_queue *queue = NULL;
    const kvt_connect_options options = {.struct_size = sizeof options, .patience_seconds = 60};
    const kvt_view view = kvt_view_packed(data, ENTRY);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = support_key(0),
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    for (int queued = 0; queued < 2; queued++) {
        kvt_completion done = {.struct_size = sizeof done};
        server_kill();
        host.lent.staging_bytes = WIRE_PAGE;
        server_begin();
        assert_ok(try_connect(&options));
        if (queued) assert_ok(kvt_queue_open(store, NULL, &queue));
        for (int more = 0; more < 2; more++) {
            if (more == 1) {
                server_kill();
                host.lent.staging_bytes = STAGING;
                server_begin();
            }
            const kvt_status expected = more ? KVT_MISS : KVT_E_SPACE;
            if (!queued) {
                assert_int_equal(support_get(store, 0, NULL), expected);
                continue;
            }
            assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
            assert_ok(kvt_queue_wait(queue, base_clock_ns() + 60 * SECOND));
            assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
            assert_int_equal(done.status, expected);
        }
        kvt_queue_close(queue);
        kvt_store_close(store);
        store = NULL;
    }
}

/* Takes what waits of a reader; the last event is in *event_out. */
static size_t drain_events(kvt_events *reader, kvt_event *event_out, uint64_t *lost_out)
{
    static kvt_event events[64];
    size_t count;
    assert_ok(kvt_events_drain(reader, events, 64, &count, lost_out));
    if (count > 0) *event_out = events[count - 1];
    return count;
}

/* A reader says each loss of its connection, at the loss and when it reads again, and its
 * descriptor tells that there is something to say. */
TEST(a_reader_of_events_says_what_it_missed)
{
    kvt_event event;
    kvt_events *reader = NULL;
    uint64_t lost;
    assert_ok(try_connect(NULL));
    assert_ok(kvt_events_open(store, 64, &reader));
    for (uint32_t round = 0; round < 3; round++) {
        struct pollfd waits = {.fd = kvt_events_fd(reader), .events = POLLIN};
        puts_all(round, round + 1);
        assert_int_equal(poll(&waits, 1, 30000), 1);
        assert_true(drain_events(reader, &event, &lost) >= 1);
        assert_int_equal(lost, 0);
        puts_all(10 + round, 11 + round); /* waits at the server that dies */
        server_kill();
        assert_int_equal(poll(&waits, 1, 30000), 1);
        assert_int_equal(drain_events(reader, &event, &lost), 0);
        assert_int_equal(lost, 1);
        assert_int_equal(drain_events(reader, &event, &lost), 0);
        assert_int_equal(lost, 0);
        server_begin();
        for (lost = 0; lost == 0;) {
            assert_int_equal(poll(&waits, 1, 30000), 1);
            assert_int_equal(drain_events(reader, &event, &lost), 0);
        }
        assert_int_equal(lost, 1);
        (void)wait_until_served();
    }
    serve_process_stop(server_process);
    const uint64_t began_ns = base_clock_ns();
    assert_int_equal(drain_events(reader, &event, &lost), 0);
    assert_true(lost == 1 && base_clock_ns() - began_ns < 60 * SECOND);
    assert_int_equal(kill(server_process, SIGCONT), 0);
    kvt_events_close(reader);
    server_kill();
    assert_int_equal(kvt_events_open(store, 64, &reader), KVT_E_GONE);
    assert_int_equal(kvt_watch_write(store, "never_written"), KVT_E_GONE);
    assert_int_equal(access("never_written", F_OK), -1);
}

/* A child of fork has no store; the parent's goes on. */
TEST(a_child_of_fork)
{
    int how;
    assert_ok(try_connect(NULL));
    puts_all(0, 1);
    kvt_queue *queue = NULL;
    assert_ok(kvt_queue_open(store, NULL, &queue));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const kvt_key key = support_key(0);
        kvt_store_stats stats = {.struct_size = sizeof stats};
        const bool refused = kvt_store_exists(store, &key) == KVT_E_STATE &&
                             kvt_store_stats_get(store, &stats) == KVT_E_STATE &&
                             support_get(store, 0, NULL) == KVT_E_STATE &&
                             kvt_queue_wait(queue, 0) == KVT_E_STATE && kvt_queue_fd(queue) == -1;
        kvt_queue_close(queue);
        kvt_store_close(store);
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_ok(support_get(store, 0, NULL));
    kvt_queue_close(queue);
}

static void *looks_for_a_region(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        if (kvt_region_free(NULL, stop) != KVT_E_ARGUMENT) return stop;
    return NULL;
}

/* Whatever other threads do at the fork, the child can connect by itself. */
TEST(a_child_of_fork_connects)
{
    atomic_bool stop = false;
    pthread_t threads[THREADS];
    void *failed, *memory;
    assert_ok(try_connect(NULL));
    for (int i = 0; i < 32; i++)
        assert_ok(kvt_region_make(store, WIRE_PAGE, &memory));
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, looks_for_a_region, &stop), 0);
    for (int i = 0; i < 30; i++) {
        int how;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char message[256];
            kvt_store *own = NULL;
            (void)alarm(20);
            const kvt_status status = kvt_connect(host.path, NULL, &own, message, sizeof message);
            kvt_store_close(own);
            _exit(status == KVT_OK ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
}

/* A listener that answers a hello with bytes of its own: the client believes nothing. */
static void *answers_nonsense(void *argument)
{
    wire_listener *listener = argument;
    for (int i = 0; i < 40; i++) {
        int peer = -1;
        struct pollfd waits = {.fd = listener->socket, .events = POLLIN};
        if (poll(&waits, 1, 10000) != 1 || wire_accept(listener, &peer) != KVT_OK) return argument;
        wire_packet packet;
        struct pollfd reads = {.fd = peer, .events = POLLIN};
        (void)poll(&reads, 1, 10000);
        (void)!wire_receive(peer, &packet);
        uint8_t bytes[256];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)(i * 31 + (int)k * 7);
        if (i % 4 != 0) memcpy(bytes, packet.bytes, 16); /* our own hello, or nearly */
        if (i % 8 != 7) (void)!write(peer, bytes, i % 3 == 0 ? 24 : sizeof bytes);
        close(peer);
    }
    return NULL;
}

TEST(what_answers_is_no_server)
{
    char message[256], other[96];
    wire_listener listener;
    pthread_t thread;
    void *failed;
    kvt_store *none = NULL;
    snprintf(other, sizeof other, "%s/other", host.folder);
    assert_ok(wire_listen(other, 0600, &listener, message, sizeof message));
    assert_int_equal(pthread_create(&thread, NULL, answers_nonsense, &listener), 0);
    for (int i = 0; i < 40; i++) {
        message[0] = '\0';
        const kvt_status status = kvt_connect(other, NULL, &none, message, sizeof message);
        assert_true(status == KVT_E_CORRUPT || status == KVT_E_GONE);
        assert_true(strlen(message) > 0);
        assert_null(none);
    }
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    wire_listener_close(&listener);
}
