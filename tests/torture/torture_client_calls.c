/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_client_calls.c - the torture of the calls (torture_store_calls.c) by several processes,
 * which are clients of one server. All are killed in turn but the first one. One history judges the
 * gets of all of them.
 *
 *     torture_client_calls [--seconds N] [--seed S] [--threads T]     T threads of each client
 *
 *     server    the store, its drives, the operator; nothing may be held at the end
 *     clients   the calls of threads; half of the threads have their memory in regions
 *
 * Prints one line of key=value pairs; exit 1 at the first violation, or when a client that was not
 * killed has ended.
 */
#include "calls.h"

#include "serve/server/server.h"

#include <kvterrace/connect.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 4, CLIENT_THREADS_MAX = 4, CLIENT_LIFE_MS = 300, CLIENT_END_MS = 120000 };

/* Shared by all processes. */
typedef struct board {
    calls_site site;
    char path[96];
    atomic_bool stop; /* the server's end; the clients' is in `site` */
    atomic_uint kills;
} board;
static board *shared;

/* ---- the server ---- */

static void *serve_main(void *lends)
{
    return server_run(lends) == KVT_OK ? NULL : lends;
}

static void serve(void)
{
    calls_site *site = &shared->site;
    const server_options options = {.path = shared->path, .sessions = 4 * CLIENTS};
    char message[256] = "";
    server *lends;
    pthread_t serving, operating;
    void *failed = NULL;
    calls_site_open(site);
    if (server_open(site->store, &options, &lends, message, sizeof message) != KVT_OK ||
        pthread_create(&serving, NULL, serve_main, lends) != 0 ||
        pthread_create(&operating, NULL, calls_operator_main, site) != 0) {
        fprintf(stderr, "server: %s\n", message);
        _exit(2);
    }
    while (!atomic_load(&shared->stop))
        base_sleep(10 * CALLS_MS);
    pthread_join(operating, NULL);
    for (uint32_t tries = 0; server_sessions(lends) != 0; tries++) {
        if (tries == CLIENT_END_MS / 10)
            calls_violate(site, CALLS_KEYS, "a session outlives its client",
                          server_sessions(lends));
        base_sleep(10 * CALLS_MS);
    }
    calls_site_count(site);
    calls_site_mend(site);
    calls_site_empty(site);
    server_stop(lends);
    pthread_join(serving, &failed);
    server_close(lends);
    kvt_store_close(site->store);
    _exit(failed == NULL ? 0 : 2);
}

/* ---- a client ---- */

static void *client_main(void *argument)
{
    calls_thread *self = argument;
    while (!atomic_load(&self->site->stop)) {
        if (self->number % 3 == 0)
            calls_queue_step(self);
        else if (self->number % 3 == 1)
            calls_direct_step(self);
        else
            calls_keeper_step(self);
        atomic_fetch_add(&self->site->counts.calls, 1);
    }
    return NULL;
}

static kvt_store *client_connect(void)
{
    char message[256] = "";
    kvt_store *store = NULL;
    for (uint32_t tries = 0; tries < 6000; tries++) {
        const kvt_status status = kvt_connect(shared->path, NULL, &store, message, sizeof message);
        if (status == KVT_OK) return store;
        if (status != KVT_E_GONE) break;
        base_sleep(10 * CALLS_MS);
    }
    calls_violate(&shared->site, CALLS_KEYS, message, 0);
}

/* Makes calls until the clients' end, and ends what it has begun. */
static void client(uint32_t life)
{
    static calls_thread threads[CLIENT_THREADS_MAX], helper;
    kvt_queue *queues[CALLS_SHARED_QUEUES];
    calls_site *site = &shared->site;
    const uint32_t count = site->thread_count;
    kvt_store *store = client_connect();
    calls_thread_make(&helper, site, 0, NULL);
    helper.store = store;
    helper.shared = queues;
    for (uint32_t i = 0; i < CALLS_SHARED_QUEUES; i++)
        if (kvt_queue_open(store, NULL, &queues[i]) != KVT_OK)
            calls_violate(site, CALLS_KEYS, "a queue cannot be opened", i);
    for (uint32_t i = 0; i < count; i++) {
        calls_thread *self = &threads[i];
        calls_thread_make(self, site, 1 + life * count + i, i % 2 == 0 ? store : NULL);
        self->store = store;
        self->shared = queues;
        self->number = i;
        if (i % 3 == 0) calls_queue_begin(self);
        if (pthread_create(&self->thread, NULL, client_main, self) != 0) abort();
    }
    for (uint32_t i = 0; i < count; i++)
        pthread_join(threads[i].thread, NULL);
    for (uint32_t i = 0; i < CALLS_SHARED_QUEUES; i++) {
        calls_queue_drain(&helper, queues[i]);
        kvt_queue_close(queues[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        calls_queue_end(&threads[i]);
        calls_queue_check(&threads[i]);
    }
    kvt_store_close(store);
}

/* ---- the parent ---- */

static pid_t spawn(int life)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) abort();
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (life < 0)
        serve();
    else
        client((uint32_t)life);
    _exit(0);
}

/* Ends the run: some process has found a violation, or has ended without having been asked to. */
static _Noreturn void give_up(const char *who, int how)
{
    fprintf(stderr, "%s has ended: %s %d\n", who, WIFSIGNALED(how) ? "signal" : "exit code",
            WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    exit(1);
}

static void expect_running(const pid_t *clients, pid_t host)
{
    int how;
    if (waitpid(host, &how, WNOHANG) != 0) give_up("the server", how);
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (waitpid(clients[i], &how, WNOHANG) != 0) give_up("a client", how);
}

/* Waits for a process that is to end by itself. */
static void expect_end(pid_t child, const char *who)
{
    int how = 0;
    for (uint32_t waited_ms = 0; waitpid(child, &how, WNOHANG) == 0; waited_ms += 10) {
        if (waited_ms >= CLIENT_END_MS) {
            fprintf(stderr, "%s does not end\n", who);
            exit(1);
        }
        base_sleep(10 * CALLS_MS);
    }
    if (how != 0) give_up(who, how);
}

static bool parse(calls_site *site, int count, char **words)
{
    for (int i = 1; i + 1 < count; i += 2) {
        const unsigned long long value = strtoull(words[i + 1], NULL, 0);
        if (strcmp(words[i], "--seconds") == 0 && value > 0)
            site->seconds = (uint32_t)value;
        else if (strcmp(words[i], "--seed") == 0)
            site->seed = value;
        else if (strcmp(words[i], "--threads") == 0 && value > 0 && value <= CLIENT_THREADS_MAX)
            site->thread_count = (uint32_t)value;
        else
            return false;
    }
    return count % 2 == 1;
}

static void tell(const calls_site *site)
{
    const calls_counts *c = &site->counts;
    const struct {
        const char *name;
        unsigned long long value;
    } pairs[] = {{"seed", site->seed},
                 {"seconds", site->seconds},
                 {"threads", site->thread_count},
                 {"kills", shared->kills},
                 {"calls", c->calls},
                 {"gets", c->gets},
                 {"hits", c->hits},
                 {"lossy_hits", c->lossy_hits},
                 {"puts", c->puts},
                 {"kept", c->kept},
                 {"deletes", c->deletes},
                 {"requests", c->requests},
                 {"completions", c->completions},
                 {"cancelled", c->cancelled},
                 {"leases", c->leases},
                 {"device_changes", c->device_changes},
                 {"evictions", c->evictions}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        printf("%s%s=%llu", i == 0 ? "" : " ", pairs[i].name, pairs[i].value);
    printf(" violations=0\n");
}

int main(int count, char **words)
{
    pid_t clients[CLIENTS];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    calls_site *site = &shared->site;
    *site = (calls_site){
        .program = "torture_client_calls", .seconds = 12, .seed = 1, .thread_count = 3};
    if (!parse(site, count, words)) {
        fprintf(stderr, "usage: %s [--seconds N] [--seed S] [--threads T]\n", words[0]);
        return 2;
    }
    if (!calls_site_make(site)) return 2;
    snprintf(shared->path, sizeof shared->path, "%s/socket", site->folder);
    const pid_t host = spawn(-1);
    uint32_t lives = 0;
    for (uint32_t i = 0; i < CLIENTS; i++)
        clients[i] = spawn((int)lives++);
    const uint64_t end_ns = base_clock_ns() + site->seconds * CALLS_SECOND;
    while (base_clock_ns() < end_ns) {
        const uint32_t victim = 1 + lives % (CLIENTS - 1);
        base_sleep((CLIENT_LIFE_MS + lives * 37 % CLIENT_LIFE_MS) * CALLS_MS);
        expect_running(clients, host);
        kill(clients[victim], SIGKILL);
        waitpid(clients[victim], NULL, 0);
        atomic_fetch_add(&shared->kills, 1);
        clients[victim] = spawn((int)lives++);
    }
    atomic_store(&site->stop, true);
    for (uint32_t i = 0; i < CLIENTS; i++)
        expect_end(clients[i], "a client");
    atomic_store(&shared->stop, true);
    expect_end(host, "the server");
    tell(site);
    const bool worked = site->counts.hits > 0 && site->counts.completions > 0 && shared->kills > 0;
    calls_site_remove(site);
    return worked ? 0 : 1;
}
