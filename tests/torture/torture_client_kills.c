/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_client_kills.c - clients and the server of a store are killed under load, KVT_KILLS times
 * each (20). No byte is ever wrong, nothing of a killed client stays with the server, nobody else's
 * request fails because of it, and what was flushed is there after the server's death.
 *
 *     workers    processes that put and get, by regions and by staging; killed in turn
 *     steady     a process that is never killed: its requests must not fail while the server lives
 */
#include "serve_process.h"

#include <dirent.h>
#include <kvterrace/lookup.h>
#include <kvterrace/queue.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define ENTRY   SUPPORT_ENTRY_BYTES
#define SECOND  UINT64_C(1000000000)
#define WORKERS 3
#define KEPT    16u /* entries that are flushed before the first death */
#define BATCH   32u

static serve_process host;

/* Shared by all processes. */
typedef struct board {
    _Atomic uint32_t wrong;        /* bytes or statuses that may not be */
    _Atomic uint32_t steady_fails; /* of the steady client */
    _Atomic uint64_t steady_done, worker_done;
    _Atomic uint32_t sessions, descriptors; /* of the server, as it last said */
    _Atomic uint32_t reports;
    _Atomic uint32_t server_may_die; /* misses are no fault */
    _Atomic uint64_t steady_good;    /* of its looks */
} board;
static board *shared;

static uint32_t kills(void)
{
    const char *text = getenv("KVT_KILLS");
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : 20;
}

/* ---- the server ---- */

static uint32_t count_descriptors(void)
{
    uint32_t count = 0;
    DIR *list = opendir("/proc/self/fd");
    while (list != NULL && readdir(list) != NULL)
        count++;
    if (list != NULL) closedir(list);
    return count;
}

static void *server_reports(void *lends)
{
    for (;;) {
        atomic_store(&shared->sessions, server_sessions(lends));
        atomic_store(&shared->descriptors, count_descriptors());
        atomic_fetch_add(&shared->reports, 1);
        usleep(5000);
    }
    return NULL;
}

static void server_reports_beside(server *lends)
{
    pthread_t reporter;
    (void)!pthread_create(&reporter, NULL, server_reports, lends);
}

/* ---- clients ---- */

static kvt_store *connect_patiently(void)
{
    kvt_store *store = NULL;
    return serve_process_connect(&host, NULL, &store) == KVT_OK ? store : NULL;
}

static void check_got(uint32_t number, kvt_status status, const char *data)
{
    static _Thread_local char expected[ENTRY];
    if (status == KVT_MISS) return;
    support_fill(number, expected);
    if (status != KVT_OK || memcmp(data, expected, ENTRY) != 0) atomic_fetch_add(&shared->wrong, 1);
}

static bool put_is_sound(kvt_status status)
{
    return status == KVT_OK || status == KVT_EXISTS || status == KVT_BUSY ||
           status == KVT_REFUSED || status == KVT_E_GONE;
}

/* A batch of gets and puts through a queue. */
static void work_batch(kvt_queue *queue, char *memory, uint32_t first)
{
    kvt_view views[BATCH];
    kvt_request requests[BATCH];
    kvt_entry entries[BATCH];
    kvt_completion done[BATCH];
    for (uint32_t i = 0; i < BATCH; i++) {
        const bool put = i % 3 == 0;
        const uint32_t number = KEPT + (first + i) % 400;
        views[i] = kvt_view_packed(memory + i * ENTRY, ENTRY);
        if (put) support_fill(number, memory + i * ENTRY);
        entries[i] = support_entry(support_key(number), support_layout, 1);
        requests[i] =
            (kvt_request){.struct_size = sizeof requests[i],
                          .kind = put ? KVT_REQUEST_PUT : KVT_REQUEST_GET,
                          .key = support_key(number),
                          .entry = put ? &entries[i] : NULL,
                          .view = &views[i],
                          .deadline_ns = put ? base_clock_ns() + SECOND / 10 : KVT_NO_DEADLINE,
                          .user = number};
    }
    if (kvt_queue_submit(queue, requests, BATCH, NULL) != KVT_OK) return;
    for (size_t count = 0; count < BATCH;) {
        if (kvt_queue_wait(queue, KVT_NO_DEADLINE) != KVT_OK) return;
        done[0].struct_size = sizeof done[0];
        const size_t now = kvt_queue_drain(queue, done, BATCH);
        for (size_t i = 0; i < now; i++)
            if (done[i].kind == KVT_REQUEST_GET)
                check_got((uint32_t)done[i].user, done[i].status, memory + done[i].index * ENTRY);
            else if (!put_is_sound(done[i].status))
                atomic_fetch_add(&shared->wrong, 1);
        count += now;
    }
}

static void work(uint32_t seed)
{
    void *region = NULL;
    kvt_queue *queue = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    kvt_store *store = connect_patiently();
    char *plain = malloc(BATCH * ENTRY);
    if (store == NULL || plain == NULL) _exit(1);
    for (uint32_t round = seed;; round++) {
        if (queue == NULL) (void)!kvt_queue_open(store, NULL, &queue);
        if (region == NULL) (void)!kvt_region_make(store, BATCH * ENTRY, &region);
        if (queue != NULL)
            work_batch(queue, round % 2 == 0 || region == NULL ? plain : region, round * 7);
        uint64_t lease;
        const kvt_key key = support_key(KEPT + round % 400);
        (void)!kvt_lease_begin(store, NULL, &key, 1, base_clock_ns() + 30 * SECOND, NULL, &lease);
        atomic_fetch_add(&shared->worker_done, 1);
    }
}

/* Never killed: while no server has been killed, what is kept is found at every look. */
static void work_steadily(void)
{
    char data[ENTRY];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    kvt_store *store = connect_patiently();
    if (store == NULL) _exit(1);
    for (uint32_t i = 0;; i++) {
        const uint32_t number = i % KEPT;
        const kvt_key key = support_key(number);
        const bool may_miss = atomic_load(&shared->server_may_die) != 0;
        const kvt_status status =
            kvt_store_get(store, &key, KVT_PACKED(data, ENTRY), KVT_NO_DEADLINE, NULL);
        check_got(number, status, data);
        if (status == KVT_MISS && !may_miss) atomic_fetch_add(&shared->steady_fails, 1);
        if (status == KVT_MISS) usleep(500);
        if (status == KVT_OK) atomic_fetch_add(&shared->steady_good, 1);
        atomic_fetch_add(&shared->steady_done, 1);
    }
}

/* ---- processes ---- */

static pid_t spawn(void (*run)(uint32_t), uint32_t seed)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        run(seed);
        _exit(0);
    }
    return child;
}

static void run_steady(uint32_t seed)
{
    (void)seed;
    work_steadily();
}

static void wait_for_more(_Atomic uint64_t *count, uint64_t more)
{
    const uint64_t wanted = atomic_load(count) + more;
    for (int i = 0; atomic_load(count) < wanted; i++) {
        assert_true(i < 600000);
        usleep(100);
    }
}

static void put_kept(void)
{
    kvt_store *store = connect_patiently();
    assert_non_null(store);
    for (uint32_t i = 0; i < KEPT; i++) {
        kvt_status status;
        while ((status = support_put(store, i)) == KVT_BUSY)
            assert_ok(kvt_store_flush(store));
        assert_true(status == KVT_OK || status == KVT_EXISTS);
    }
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    kvt_store_close(store);
}

static void expect_kept(void)
{
    kvt_store *store = connect_patiently();
    assert_non_null(store);
    for (uint32_t i = 0; i < KEPT; i++)
        assert_ok(support_get(store, i, NULL));
    kvt_store_close(store);
}

TEST_BEFORE_EACH
{
    serve_process_place(&host);
    host.lent.sessions = 16;
    host.beside = server_reports_beside;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
}

TEST_AFTER_EACH
{
    munmap(shared, sizeof *shared);
    support_remove_folder(host.folder);
}

/* Waits until the server says so many sessions, and gives its descriptors. */
static uint32_t descriptors_at(uint32_t sessions)
{
    for (int i = 0;; i++) {
        const uint32_t report = atomic_load(&shared->reports);
        while (atomic_load(&shared->reports) < report + 2)
            usleep(1000);
        if (atomic_load(&shared->sessions) == sessions) return atomic_load(&shared->descriptors);
        assert_true(i < 2000);
    }
}

TEST(clients_die)
{
    const uint32_t rounds = kills();
    pid_t workers[WORKERS];
    const pid_t lender = serve_process_begin(&host);
    put_kept();
    const uint32_t before = descriptors_at(0);
    const pid_t steady = spawn(run_steady, 0);
    wait_for_more(&shared->steady_done, 10);
    for (uint32_t i = 0; i < WORKERS; i++)
        workers[i] = spawn(work, i * 1000);
    for (uint32_t i = 0; i < rounds; i++) {
        wait_for_more(&shared->worker_done, 2 + i % 3);
        usleep(i * 37 % 5000);
        serve_process_kill(workers[i % WORKERS]);
        workers[i % WORKERS] = spawn(work, i * 100);
    }
    wait_for_more(&shared->steady_done, 10);
    for (uint32_t i = 0; i < WORKERS; i++)
        serve_process_kill(workers[i]);
    serve_process_kill(steady);
    assert_int_equal(descriptors_at(0), before);
    expect_kept();
    serve_process_kill(lender);
    assert_int_equal(atomic_load(&shared->wrong), 0);
    assert_int_equal(atomic_load(&shared->steady_fails), 0);
}

TEST(the_server_dies)
{
    const uint32_t rounds = kills();
    uint64_t longest_ns = 0;
    pid_t workers[WORKERS];
    pid_t lender = serve_process_begin(&host);
    put_kept();
    atomic_store(&shared->server_may_die, 1);
    const pid_t steady = spawn(run_steady, 0);
    for (uint32_t i = 0; i < WORKERS; i++)
        workers[i] = spawn(work, i * 1000);
    for (uint32_t i = 0; i < rounds; i++) {
        wait_for_more(&shared->worker_done, 3);
        usleep(i * 37 % 5000);
        serve_process_kill(lender);
        lender = serve_process_begin(&host);
        expect_kept();
        const uint64_t begin_ns = base_clock_ns();
        wait_for_more(&shared->steady_good, 1);
        const uint64_t took_ns = base_clock_ns() - begin_ns;
        if (took_ns > longest_ns) longest_ns = took_ns;
    }
    wait_for_more(&shared->worker_done, 3);
    for (uint32_t i = 0; i < WORKERS; i++)
        serve_process_kill(workers[i]);
    serve_process_kill(steady);
    (void)descriptors_at(0);
    serve_process_kill(lender);
    assert_int_equal(atomic_load(&shared->wrong), 0);
    print_message("back %.3f s after the server at most\n", (double)longest_ns * 1e-9);
}
