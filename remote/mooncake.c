/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake.c - objects in a Mooncake Store: batch calls of its C interface, on threads of this
 * file, from and into registered memory.
 *
 *     submit -> queued -> taken by a thread with all of its kind -> a batch call -> done
 *                  \------------ at its deadline ------------------------------/
 *
 * A call has no deadline: one was seen to last 30 s when a node stopped. So a request leaves at its
 * own, and the call keeps its thread, and the memory that it reads or writes, until it returns.
 * Other requests go to another thread, of which there are MOONCAKE_THREADS at most. Values are
 * copied once, between a thread's memory and the request's parts.
 *
 * The interface names no node, so there is one breaker, that of the whole store.
 *
 * Thread rule: a client is its thread's; what its threads share is under `lock`.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "base/wait.h"
#include "remote/backends.h"
#include "remote/breaker.h"
#include "remote/mooncake_call.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOONCAKE_THREADS     8u
#define MOONCAKE_BUFFER      ((uint64_t)16 << 20) /* that the library takes for itself */
#define MOONCAKE_CLOSE_NS    UINT64_C(1000000000)
#define MOONCAKE_PAUSE_NS    UINT64_C(1000000000) /* of the breaker, at most: it is for all nodes */
#define MOONCAKE_METADATA    "P2PHANDSHAKE"
#define MOONCAKE_ADDRESS_MAX 256u

typedef struct mooncake_client mooncake_client;

/* A thread and the requests that it has. */
typedef struct mooncake_thread {
    mooncake_client *client;
    bool busy;
    mooncake_call call;
} mooncake_thread;

struct mooncake_client {
    remote_client base;
    const mooncake_library *library;
    char protocol[8], devices[64], master[128], own[64];

    pthread_mutex_t lock;
    pthread_cond_t work, changed;
    uint32_t users; /* the owner and the threads: the last one frees */
    bool closing, woken;
    mooncake_store store; /* NULL: not set up */
    bool setting_up;
    mooncake_thread *threads[MOONCAKE_THREADS];
    uint32_t thread_count, idle;
    remote_request *new_first, *new_last; /* submitted since the last flush */
    remote_request *first, *last;         /* queued */
    remote_request *done_first, *done_last;
    remote_breaker breaker;
    remote_stats stats;
    remote_node_stats node;
    int event;
};

/* ---- ends of requests; lock held ---- */

static void mooncake_append(remote_request **first, remote_request **last, remote_request *request)
{
    request->next = NULL;
    if (*last != NULL)
        (*last)->next = request;
    else
        *first = request;
    *last = request;
}

static void mooncake_end(mooncake_client *client, remote_request *request, kvt_status status)
{
    const bool failed = status == KVT_E_TIMEOUT || status == KVT_E_GONE;
    request->status = status;
    request->state = REMOTE_DONE;
    request->finished_ns = base_clock_ns();
    client->node.timeouts += status == KVT_E_TIMEOUT;
    client->node.failures += failed;
    mooncake_append(&client->done_first, &client->done_last, request);
    if (!failed)
        remote_breaker_good(&client->breaker, request->kind);
    else if (client->breaker.state != REMOTE_OPEN)
        (void)remote_breaker_bad(&client->breaker, request->kind, request->finished_ns);
}

static void mooncake_tell(mooncake_client *client)
{
    const uint64_t one = 1;
    pthread_cond_broadcast(&client->changed);
    (void)!write(client->event, &one, sizeof one);
}

/* ---- the threads ---- */

/* Takes the first request and all others of its kind that fit. Lock held. */
static void mooncake_take(mooncake_client *client, mooncake_call *call)
{
    size_t used = 0;
    remote_request **at = &client->first;
    call->count = 0;
    call->kind = client->first->kind;
    call->fresh = client->first->fresh;
    client->last = NULL;
    while (*at != NULL) {
        remote_request *request = *at;
        const size_t room = mooncake_call_room(request);
        const bool fits = call->count < MOONCAKE_BATCH && used + room <= MOONCAKE_BYTES;
        if (request->kind != call->kind || request->fresh != call->fresh || !fits) {
            client->last = request;
            at = &request->next;
            continue;
        }
        mooncake_slot *slot = &call->slots[call->count++];
        *at = request->next;
        request->state = REMOTE_SENT;
        *slot = (mooncake_slot){.request = request,
                                .copying = request->kind == REMOTE_PUT,
                                .offset = used,
                                .room = request->fresh ? room / 2 : room,
                                .status = KVT_QUEUED};
        memcpy(slot->key, request->key, request->key_bytes);
        used += (room + 63) / 64 * 64;
    }
    client->node.requests += call->count;
    client->stats.batches[call->kind]++;
}

/* Connects, once for all threads. Lock held at entry and return. */
static bool mooncake_set_up(mooncake_client *client)
{
    while (client->setting_up)
        pthread_cond_wait(&client->work, &client->lock);
    if (client->store != NULL) return true;
    client->setting_up = true;
    pthread_mutex_unlock(&client->lock);
    const mooncake_library *library = client->library;
    mooncake_store store = library->create();
    if (store != NULL && library->setup(store, client->own, MOONCAKE_METADATA, 0, MOONCAKE_BUFFER,
                                        client->protocol, client->devices, client->master) != 0) {
        library->destroy(store);
        store = NULL;
    }
    pthread_mutex_lock(&client->lock);
    client->store = store;
    client->setting_up = false;
    if (store == NULL)
        snprintf(client->stats.message, sizeof client->stats.message,
                 "%.100s: no store of Mooncake could be set up", client->master);
    pthread_cond_broadcast(&client->work);
    return store != NULL;
}

/* Copies the values of requests that are still there: into the memory before a call of puts, out of
 * it behind one of gets. Lock held at entry and return. */
static void mooncake_copy(mooncake_thread *thread, bool in)
{
    mooncake_client *client = thread->client;
    for (uint32_t i = 0; i < thread->call.count; i++) {
        mooncake_slot *slot = &thread->call.slots[i];
        if (!in) slot->copying = slot->request != NULL && slot->status == KVT_OK;
    }
    pthread_mutex_unlock(&client->lock);
    for (uint32_t i = 0; i < thread->call.count; i++) {
        mooncake_slot *slot = &thread->call.slots[i];
        if (!slot->copying) continue;
        if (in)
            mooncake_call_gather(&thread->call, slot);
        else
            mooncake_call_scatter(&thread->call, slot);
    }
    pthread_mutex_lock(&client->lock);
    for (uint32_t i = 0; i < thread->call.count; i++)
        thread->call.slots[i].copying = false;
}

/* Takes one batch through its call. Lock held at entry and return. */
static void mooncake_run(mooncake_client *client, mooncake_thread *thread)
{
    mooncake_take(client, &thread->call);
    thread->busy = true;
    if (thread->call.kind == REMOTE_PUT) mooncake_copy(thread, true);
    const bool up = mooncake_set_up(client);
    thread->call.store = client->store;
    pthread_mutex_unlock(&client->lock);
    if (up)
        mooncake_call_run(&thread->call);
    else
        mooncake_call_fail(&thread->call);
    pthread_mutex_lock(&client->lock);
    if (thread->call.kind == REMOTE_GET) mooncake_copy(thread, false);
    for (uint32_t i = 0; i < thread->call.count; i++) {
        mooncake_slot *slot = &thread->call.slots[i];
        remote_request *request = slot->request;
        slot->request = NULL;
        if (request == NULL) {
            client->stats.late_replies++;
            continue;
        }
        request->value_bytes = slot->value_bytes;
        if (slot->status == KVT_OK && thread->call.kind == REMOTE_GET)
            client->node.bytes_in += slot->value_bytes;
        if (slot->status == KVT_OK && thread->call.kind == REMOTE_PUT)
            client->node.bytes_out += slot->room;
        mooncake_end(client, request, slot->status);
    }
    thread->busy = false;
    mooncake_tell(client);
}

/* Gives up the client; the last of its users frees it. Lock held at entry, and not at return. */
static void mooncake_leave(mooncake_client *client)
{
    const bool last = --client->users == 0;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    if (!last) return;
    for (uint32_t i = 0; i < client->thread_count; i++) {
        mooncake_thread *thread = client->threads[i];
        if (thread->call.registered)
            (void)client->library->unregister_buffer(client->store, thread->call.memory);
    }
    if (client->store != NULL) client->library->destroy(client->store);
    for (uint32_t i = 0; i < client->thread_count; i++) {
        munmap(client->threads[i]->call.memory, MOONCAKE_BYTES);
        free(client->threads[i]);
    }
    close(client->event);
    pthread_mutex_destroy(&client->lock);
    pthread_cond_destroy(&client->work);
    pthread_cond_destroy(&client->changed);
    free(client);
}

static void *mooncake_main(void *argument)
{
    mooncake_thread *thread = argument;
    mooncake_client *client = thread->client;
    pthread_mutex_lock(&client->lock);
    while (!client->closing) {
        if (client->first != NULL) {
            mooncake_run(client, thread);
            continue;
        }
        client->idle++;
        pthread_cond_wait(&client->work, &client->lock);
        client->idle--;
    }
    mooncake_leave(client);
    return NULL;
}

/* Starts one more thread. Lock held. */
static kvt_status mooncake_start(mooncake_client *client)
{
    pthread_t started;
    mooncake_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL) return KVT_E_MEMORY;
    thread->client = client;
    thread->call.library = client->library;
    thread->call.memory =
        mmap(NULL, MOONCAKE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    kvt_status status = thread->call.memory != MAP_FAILED ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = base_thread_start(&started, mooncake_main, thread);
    if (status != KVT_OK) {
        if (thread->call.memory != MAP_FAILED) munmap(thread->call.memory, MOONCAKE_BYTES);
        free(thread);
        return status;
    }
    pthread_detach(started);
    client->threads[client->thread_count++] = thread;
    client->users++;
    return KVT_OK;
}

/* ---- the operations ---- */

static void mooncake_submit(remote_client *base, remote_request *request)
{
    mooncake_client *client = (mooncake_client *)base;
    const uint64_t now_ns = request->submitted_ns;
    pthread_mutex_lock(&client->lock);
    client->stats.requests[request->kind]++;
    request->node = 0;
    const bool probes = remote_breaker_probes(&client->breaker, now_ns);
    kvt_status status = KVT_QUEUED;
    if (client->breaker.state != REMOTE_CLOSED && !probes) status = KVT_E_GONE;
    if (mooncake_call_room(request) > MOONCAKE_BYTES) status = KVT_E_SPACE;
    if (status == KVT_QUEUED && request->deadline_ns > now_ns) {
        request->state = REMOTE_QUEUED;
        mooncake_append(&client->new_first, &client->new_last, request);
    } else {
        /* Nobody was asked, so the breaker learns nothing. */
        request->status = status == KVT_QUEUED ? KVT_E_TIMEOUT : status;
        request->state = REMOTE_DONE;
        request->finished_ns = now_ns;
        mooncake_append(&client->done_first, &client->done_last, request);
        if (probes) (void)remote_breaker_bad(&client->breaker, REMOTE_CAUSE_CONNECTION, now_ns);
    }
    pthread_mutex_unlock(&client->lock);
}

/* Lets the threads have what was submitted, as one batch; where all of them are in calls, one more
 * thread. Lock held. */
static void mooncake_send(mooncake_client *client)
{
    if (client->new_first != NULL) {
        if (client->last != NULL)
            client->last->next = client->new_first;
        else
            client->first = client->new_first;
        client->last = client->new_last;
        client->new_first = client->new_last = NULL;
    }
    if (client->first == NULL) return;
    if (client->idle == 0 && client->thread_count < MOONCAKE_THREADS) (void)mooncake_start(client);
    pthread_cond_signal(&client->work);
}

static void mooncake_flush(remote_client *base)
{
    mooncake_client *client = (mooncake_client *)base;
    pthread_mutex_lock(&client->lock);
    mooncake_send(client);
    pthread_mutex_unlock(&client->lock);
}

/* Ends the requests whose deadlines have passed. Returns the next deadline. Lock held. */
static uint64_t mooncake_expire(mooncake_client *client)
{
    const uint64_t now_ns = base_clock_ns();
    uint64_t next_ns = UINT64_MAX;
    remote_request **at = &client->first;
    client->last = NULL;
    while (*at != NULL) {
        remote_request *request = *at;
        if (request->deadline_ns <= now_ns) {
            *at = request->next;
            mooncake_end(client, request, KVT_E_TIMEOUT);
            continue;
        }
        if (request->deadline_ns < next_ns) next_ns = request->deadline_ns;
        client->last = request;
        at = &request->next;
    }
    for (uint32_t i = 0; i < client->thread_count; i++) {
        mooncake_thread *thread = client->threads[i];
        for (uint32_t k = 0; thread->busy && k < thread->call.count; k++) {
            mooncake_slot *slot = &thread->call.slots[k];
            if (slot->request == NULL || slot->copying) continue;
            if (slot->request->deadline_ns <= now_ns) {
                mooncake_end(client, slot->request, KVT_E_TIMEOUT);
                slot->request = NULL;
            } else if (slot->request->deadline_ns < next_ns) {
                next_ns = slot->request->deadline_ns;
            }
        }
    }
    return next_ns;
}

static size_t mooncake_reap(remote_client *base, remote_request **done, size_t min, size_t max,
                            uint64_t timeout_ns)
{
    mooncake_client *client = (mooncake_client *)base;
    const uint64_t now_ns = base_clock_ns();
    const uint64_t end_ns = timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : UINT64_MAX;
    uint64_t seen;
    size_t count = 0;
    bool waiting = true;
    pthread_mutex_lock(&client->lock);
    mooncake_send(client);
    for (;;) {
        const uint64_t next_ns = mooncake_expire(client);
        while (count < max && client->done_first != NULL) {
            done[count++] = client->done_first;
            client->done_first = client->done_first->next;
            if (client->done_first == NULL) client->done_last = NULL;
        }
        if (count >= min || client->woken || !waiting) break;
        (void)base_condition_wait_until(&client->changed, &client->lock,
                                        next_ns < end_ns ? next_ns : end_ns);
        waiting = base_clock_ns() < end_ns;
    }
    client->woken = false;
    if (client->done_first == NULL) (void)!read(client->event, &seen, sizeof seen);
    pthread_mutex_unlock(&client->lock);
    return count;
}

static void mooncake_wake(remote_client *base)
{
    mooncake_client *client = (mooncake_client *)base;
    pthread_mutex_lock(&client->lock);
    client->woken = true;
    mooncake_tell(client);
    pthread_mutex_unlock(&client->lock);
}

static int mooncake_fd(const remote_client *base)
{
    return ((const mooncake_client *)base)->event;
}

static void mooncake_stats(const remote_client *base, remote_stats *out)
{
    mooncake_client *client = (mooncake_client *)(uintptr_t)base;
    pthread_mutex_lock(&client->lock);
    *out = client->stats;
    out->node_count = 1;
    pthread_mutex_unlock(&client->lock);
}

static bool mooncake_node_stats(const remote_client *base, uint32_t node, remote_node_stats *out)
{
    mooncake_client *client = (mooncake_client *)(uintptr_t)base;
    if (node != 0) return false;
    pthread_mutex_lock(&client->lock);
    *out = client->node;
    out->breaker = client->breaker.state;
    out->opened = client->breaker.opened;
    out->suspect = remote_breaker_suspects_work(&client->breaker);
    out->failing_ns = client->breaker.failing_ns;
    memcpy(out->message, client->stats.message, sizeof out->message);
    pthread_mutex_unlock(&client->lock);
    return true;
}

static void mooncake_close(remote_client *base)
{
    mooncake_client *client = (mooncake_client *)base;
    const uint64_t end_ns = base_clock_ns() + MOONCAKE_CLOSE_NS;
    bool waiting = true;
    pthread_mutex_lock(&client->lock);
    client->closing = true;
    pthread_cond_broadcast(&client->work);
    /* A call that does not return keeps the client, with its memory. */
    while (client->users > 1 && waiting)
        waiting = base_condition_wait_until(&client->changed, &client->lock, end_ns);
    mooncake_leave(client);
}

/* ---- open ---- */

/* This host's address, as the master's network sees it. */
static void mooncake_own_address(const char *host, const char *port, char *own, size_t size)
{
    const struct addrinfo wanted = {.ai_family = AF_INET,
                                    .ai_socktype = SOCK_DGRAM,
                                    .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    snprintf(own, size, "127.0.0.1");
    if (getaddrinfo(host, port, &wanted, &found) == 0) {
        const int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        /* A datagram socket sends nothing to connect: the route alone is asked for. */
        if (probe >= 0 && connect(probe, found->ai_addr, found->ai_addrlen) == 0 &&
            getsockname(probe, (struct sockaddr *)&at, &length) == 0)
            (void)!inet_ntop(AF_INET, &at.sin_addr, own, (socklen_t)size);
        if (probe >= 0) close(probe);
        freeaddrinfo(found);
    } else {
        (void)gethostname(own, size);
        own[size - 1] = '\0';
    }
}

/* Splits [PROTOCOL://]HOST:PORT[/DEVICES]. */
static bool mooncake_take_address(mooncake_client *client, const char *address)
{
    char text[MOONCAKE_ADDRESS_MAX];
    if (address == NULL || strlen(address) >= sizeof text) return false;
    memcpy(text, address, strlen(address) + 1);
    char *master = text, *scheme = strstr(text, "://");
    if (scheme != NULL) {
        *scheme = '\0';
        master = scheme + 3;
        if (strcmp(text, "tcp") != 0 && strcmp(text, "rdma") != 0) return false;
    }
    snprintf(client->protocol, sizeof client->protocol, "%.7s", scheme != NULL ? text : "tcp");
    char *devices = strchr(master, '/');
    if (devices != NULL) *devices++ = '\0';
    if (devices != NULL && strlen(devices) >= sizeof client->devices) return false;
    snprintf(client->devices, sizeof client->devices, "%s", devices != NULL ? devices : "");
    char *port = strrchr(master, ':');
    if (port == NULL || port == master || strlen(master) >= sizeof client->master) return false;
    if (strspn(port + 1, "0123456789") != strlen(port + 1) || strspn(master, " \t") != 0)
        return false;
    const long number = strtol(port + 1, NULL, 10);
    if (number < 1 || number > 65535 || strpbrk(master, ", ") != NULL) return false;
    snprintf(client->master, sizeof client->master, "%.127s", master);
    snprintf(client->node.address, sizeof client->node.address, "%.63s", master);
    *port = '\0';
    mooncake_own_address(master, port + 1, client->own, sizeof client->own);
    return true;
}

/* The first setting that Mooncake does not have; NULL: none. */
static const char *mooncake_fault(const remote_config *config)
{
    if (config->user != NULL || config->password != NULL || config->password_file != NULL ||
        config->tls)
        return "a store of Mooncake knows neither users nor TLS: use a private network";
    if (config->cluster)
        return "a store of Mooncake is reached by its master; cluster is not for it";
    if (config->feed_prefix != NULL)
        return "a store of Mooncake tells no changes; feed must be off";
    return NULL;
}

static kvt_status mooncake_open(const remote_config *config, remote_client **client_out,
                                char *message, size_t message_size)
{
    const char *fault = mooncake_fault(config);
    const mooncake_library *library = mooncake_library_get();
    mooncake_client *client = calloc(1, sizeof *client);
    kvt_status status = KVT_OK;
    if (client == NULL) return KVT_E_MEMORY;
    if (fault == NULL && !mooncake_take_address(client, config->addresses)) {
        fault = "the address is not [tcp://|rdma://]HOST:PORT[/DEVICES] of a master";
    }
    if (fault != NULL) status = KVT_E_ARGUMENT;
    if (status == KVT_OK && library == NULL) {
        status = KVT_E_UNSUPPORTED;
        fault = "libmooncake_store.so, built with WITH_STORE_C_SHARED, cannot be loaded";
    }
    client->event = status == KVT_OK ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (status == KVT_OK && client->event < 0) status = KVT_E_IO;
    if (status != KVT_OK) {
        if (fault != NULL) snprintf(message, message_size, "%s", fault);
        free(client);
        return status;
    }
    client->base.ops = &remote_mooncake_ops;
    client->library = library;
    client->users = 1;
    remote_breaker_init(&client->breaker, config->seed != 0 ? config->seed : base_clock_ns());
    client->breaker.most_ns = MOONCAKE_PAUSE_NS;
    pthread_mutex_init(&client->lock, NULL);
    base_condition_init(&client->work);
    base_condition_init(&client->changed);
    *client_out = &client->base;
    return KVT_OK;
}

const remote_ops remote_mooncake_ops = {.struct_size = sizeof(remote_ops),
                                        .name = "mooncake",
                                        .open = mooncake_open,
                                        .close = mooncake_close,
                                        .fd = mooncake_fd,
                                        .submit = mooncake_submit,
                                        .flush = mooncake_flush,
                                        .reap = mooncake_reap,
                                        .wake = mooncake_wake,
                                        .stats = mooncake_stats,
                                        .node_stats = mooncake_node_stats};
