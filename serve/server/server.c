/* SPDX-License-Identifier: Apache-2.0 */
/* server.c - listens, starts a session for each client, and joins those that have ended. */
#include "serve/server/server_internal.h"

#include "base/clock.h"
#include "base/thread.h"
#include "serve/server/region_guard.h"
#include "serve/wire/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static void handle_nothing(int number)
{
    (void)number;
}

/* Fills a server that is zero but for its store; what it has is given back by server_close. */
static kvt_status server_fill(server *lends, const server_options *options)
{
    const uid_t own[] = {geteuid(), 0};
    lends->listener = (wire_listener){.socket = -1, .lock = -1};
    lends->stop = lends->leave = lends->end = lends->reaps = -1;
    lends->leave_ms = options->leave_ms != 0 ? options->leave_ms : 2000;
    lends->staging_bytes =
        options->staging_bytes != 0 ? options->staging_bytes : UINT64_C(256) << 20;
    lends->in_flight_bytes =
        options->in_flight_bytes != 0 ? options->in_flight_bytes : UINT64_C(128) << 20;
    lends->session_most = options->sessions != 0 ? options->sessions : 64;
    lends->depth = options->depth != 0 ? options->depth : 1024;
    lends->registered_bytes =
        options->registered_bytes != 0 ? options->registered_bytes : UINT64_C(1) << 40;
    if (lends->session_most > 1024 || !base_ring_is_size(lends->depth) ||
        lends->registered_bytes % WIRE_PAGE != 0 || lends->registered_bytes > WIRE_MEMORY_MAX ||
        lends->staging_bytes % WIRE_PAGE != 0 || lends->staging_bytes > WIRE_MEMORY_MAX)
        return KVT_E_ARGUMENT;
    const size_t users = options->users != NULL ? options->user_count : 1;
    lends->operator_count = options->operators != NULL ? options->operator_count : 2;
    lends->user_count = users + lends->operator_count;
    lends->users = calloc(lends->user_count + 1, sizeof *lends->users);
    lends->sessions = calloc(lends->session_most, sizeof *lends->sessions);
    if (lends->users == NULL || lends->sessions == NULL) return KVT_E_MEMORY;
    memcpy(lends->users, options->users != NULL ? options->users : own, users * sizeof *own);
    memcpy(lends->users + users, options->operators != NULL ? options->operators : own,
           lends->operator_count * sizeof *own);
    if (getrandom(&lends->instance, sizeof lends->instance, 0) != sizeof lends->instance)
        return KVT_E_IO;
    lends->instance |= 1;
    int *const bells[] = {&lends->stop, &lends->leave, &lends->end, &lends->reaps};
    kvt_status status = KVT_OK;
    for (size_t i = 0; i < sizeof bells / sizeof *bells && status == KVT_OK; i++)
        status = wire_bell_make(bells[i]);
    return status;
}

/* Gives the socket's path to a group, and only then the mode that lets the group in. The path is
 * held by a descriptor: what somebody has put in its place is not touched. */
static kvt_status server_share(const server *lends, const server_options *options, mode_t mode,
                               char *message, size_t message_size)
{
    char name[64];
    struct stat found;
    const int held = open(options->path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    snprintf(name, sizeof name, "/proc/self/fd/%d", held);
    const bool ours = held >= 0 && fstat(held, &found) == 0 &&
                      found.st_dev == lends->listener.device &&
                      found.st_ino == lends->listener.inode;
    const bool done = ours && fchownat(held, "", (uid_t)-1, *options->group, AT_EMPTY_PATH) == 0 &&
                      chmod(name, mode) == 0;
    if (!done)
        snprintf(message, message_size, "%s: its group: %s", options->path,
                 held < 0 || ours ? strerror(errno) : "somebody has replaced it");
    if (held >= 0) close(held);
    return done ? KVT_OK : KVT_E_READ_ONLY;
}

kvt_status server_open(kvt_store *store, const server_options *options, server **server_out,
                       char *message, size_t message_size)
{
    *server_out = NULL;
    if (message_size > 0) message[0] = '\0';
    server *lends = calloc(1, sizeof *lends);
    if (lends == NULL) return KVT_E_MEMORY;
    lends->store = store;
    const struct sigaction action = {.sa_handler = handle_nothing};
    kvt_status status = server_fill(lends, options);
    if (status == KVT_OK && sigaction(SERVER_SIGNAL, &action, NULL) != 0) status = KVT_E_IO;
    if (status == KVT_OK) status = server_guard_install();
    const mode_t mode = options->mode != 0 ? options->mode : 0600;
    if (status == KVT_OK)
        status = wire_listen(options->path, options->group != NULL ? mode & 0700 : mode,
                             &lends->listener, message, message_size);
    if (status == KVT_OK && options->group != NULL)
        status = server_share(lends, options, mode, message, message_size);
    if (status != KVT_OK) {
        server_close(lends);
        return status;
    }
    *server_out = lends;
    return KVT_OK;
}

/* Joins the sessions that have ended; with `all`, waits for those that have not. */
static void server_reap(server *lends, bool all)
{
    wire_bell_clear(lends->reaps);
    for (uint32_t i = 0; i < lends->session_most; i++) {
        server_session *session = &lends->sessions[i];
        if (!session->taken || (!all && !atomic_load(&session->ended))) continue;
        pthread_join(session->thread, NULL);
        session->taken = false;
        atomic_fetch_sub(&lends->session_count, 1);
    }
}

/* Starts a session, or closes the connection: no place, no memory or no thread is left. */
static void server_begin(server *lends, int socket)
{
    uint32_t place = 0;
    while (place < lends->session_most && lends->sessions[place].taken)
        place++;
    int wake = -1;
    if (place == lends->session_most || wire_bell_make(&wake) != KVT_OK) {
        close(socket);
        return;
    }
    server_session *session = &lends->sessions[place];
    *session = (server_session){.lends = lends,
                                .socket = socket,
                                .wake = wake,
                                .process = -1,
                                .results_memory = -1,
                                .number_last = base_clock_ns(),
                                .taken = true};
    pthread_mutex_init(&session->lock, NULL);
    atomic_fetch_add(&lends->session_count, 1);
    if (base_thread_start(&session->thread, server_session_run, session) == KVT_OK) return;
    pthread_mutex_destroy(&session->lock);
    close(socket);
    close(wake);
    session->taken = false;
    atomic_fetch_sub(&lends->session_count, 1);
}

void server_lend(server *lends, kvt_store *store)
{
    lends->store = store;
}

static void server_ring(int bell)
{
    const kvt_status status = wire_bell_ring(bell);
    (void)status;
}

/* Has the sessions end: first those whose requests have completed, then all. */
static void server_leave(server *lends)
{
    const uint64_t end_ns = base_clock_ns() + lends->leave_ms * UINT64_C(1000000);
    wire_listener_close(&lends->listener);
    atomic_store(&lends->leave_ns, end_ns);
    server_ring(lends->leave);
    for (uint64_t now_ns = base_clock_ns(); now_ns < end_ns; now_ns = base_clock_ns()) {
        struct pollfd wait = {.fd = lends->reaps, .events = POLLIN};
        server_reap(lends, false);
        if (server_sessions(lends) == 0) break;
        (void)poll(&wait, 1, (int)((end_ns - now_ns) / 1000000 + 1));
    }
    server_ring(lends->end);
    server_reap(lends, true);
}

kvt_status server_run(server *lends)
{
    struct pollfd waits[] = {{.fd = lends->listener.socket, .events = POLLIN},
                             {.fd = lends->stop, .events = POLLIN},
                             {.fd = lends->reaps, .events = POLLIN}};
    kvt_status status = KVT_OK;
    while (status == KVT_OK && waits[1].revents == 0) {
        if (poll(waits, sizeof waits / sizeof *waits, -1) < 0) {
            if (errno != EINTR) status = KVT_E_IO;
            continue;
        }
        if (waits[2].revents != 0) server_reap(lends, false);
        int socket;
        if (waits[0].revents == 0) continue;
        const kvt_status came = wire_accept(&lends->listener, &socket);
        if (came == KVT_OK) {
            server_begin(lends, socket);
        } else if (came == KVT_E_MEMORY) {
            /* No descriptor is left: whoever waits is served when a session has ended. */
            (void)poll(&waits[1], 2, 100);
        } else if (came != KVT_END) {
            status = came;
        }
    }
    server_leave(lends);
    return status;
}

void server_stop(server *lends)
{
    server_ring(lends->stop);
}

uint32_t server_sessions(server *lends)
{
    return atomic_load(&lends->session_count);
}

void server_close(server *lends)
{
    if (lends == NULL) return;
    wire_listener_close(&lends->listener);
    const int bells[] = {lends->stop, lends->leave, lends->end, lends->reaps};
    for (size_t i = 0; i < sizeof bells / sizeof *bells; i++)
        if (bells[i] >= 0) close(bells[i]);
    free(lends->users);
    free(lends->sessions);
    free(lends);
}
