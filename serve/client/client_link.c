/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_link.c - the connection of a client: hello, questions by the socket, and the way back
 * when it is lost. A lost connection is restored by the next call that wants one, if its pause has
 * passed: there is no thread that waits for a server.
 */
#include "serve/client/client_calls.h"
#include "serve/client/client_load_state.h"
#include "serve/client/client_transfer.h"

#include "base/clock.h"
#include "base/wait.h"
#include "serve/wire/control.h"
#include "serve/wire/peer_socket.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENT_HELLO_NS        UINT64_C(5000000000)  /* for a server's answer to hello */
#define CLIENT_WELCOME_NS      UINT64_C(10000000)    /* for that to a later one, in one call */
#define CLIENT_OPEN_NS         UINT64_C(10000000000) /* for all answers until it serves */
#define CLIENT_ARGUMENTS_LEAST (UINT64_C(1) << 20)   /* for loads of a queue with few entries */
#define CLIENT_RECORD_BYTES    4096u /* of the arguments, for each entry of a ring */

/* The calls of every connected store; NULL: there has been none. */
static _Atomic(const base_store_calls *) link_calls;

bool client_is(const kvt_store *handle)
{
    const base_store_calls *calls = base_store_calls_of(handle);
    return calls != NULL && calls == atomic_load(&link_calls);
}

kvt_status client_enter(const kvt_store *handle, client_store **store_out)
{
    client_store *store = (client_store *)(uintptr_t)handle;
    *store_out = store;
    return fork_guard_is_current(store->forks) ? KVT_OK : KVT_E_STATE;
}

/* ---- messages ---- */

/* The next message, waited for until an instant. KVT_OK; KVT_E_TIMEOUT; KVT_E_GONE; KVT_E_CORRUPT.
 * Descriptors that came with it are in *packet_out, also after a failure. */
static kvt_status link_next(int socket, uint32_t least, uint32_t most, uint64_t deadline_ns,
                            atomic_bool *leaving, wire_packet *packet_out,
                            wire_message *message_out)
{
    const wire_expected expected = {WIRE_FROM_SERVER, least, most};
    packet_out->descriptor_count = 0;
    for (;;) {
        const uint64_t now_ns = base_clock_ns();
        if (now_ns >= deadline_ns) return KVT_E_TIMEOUT;
        struct pollfd waits = {.fd = socket, .events = POLLIN};
        const int timeout_ms =
            deadline_ns == KVT_NO_DEADLINE ? -1 : (int)((deadline_ns - now_ns) / 1000000 + 1);
        if (poll(&waits, 1, timeout_ms) < 0 && errno != EINTR) return KVT_E_GONE;
        if (waits.revents == 0) continue;
        kvt_status status = wire_receive(socket, packet_out);
        if (status == KVT_END) continue;
        if (status != KVT_OK) return status == KVT_E_CORRUPT ? status : KVT_E_GONE;
        status = wire_message_read(packet_out->bytes, packet_out->size,
                                   packet_out->descriptor_count, &expected, message_out);
        if (status == KVT_OK && message_out->head.kind == WIRE_EVENTS_WAIT) continue;
        if (status != KVT_OK || message_out->head.kind != WIRE_LEAVING) return status;
        if (leaving != NULL) atomic_store(leaving, true);
    }
}

/* Whether a message answers a question that is not waited for any more; what it gives is given
 * back. Answers come in the order of their questions. */
static bool link_take_late(client_store *store, const wire_message *message)
{
    wire_message undo;
    const uint32_t number = message->head.number, kind = message->head.kind;
    if (store->owed == 0 || number == 0 || kind == WIRE_LEAVING) return false;
    if (number - store->owed >= UINT32_C(1) << 31) return false;   /* before it */
    if (store->number - number >= UINT32_C(1) << 31) return false; /* not asked yet */
    store->owed = number == store->number ? 0 : number + 1;
    if (kind != WIRE_CHANNEL && kind != WIRE_REGION) return true;
    if (++store->number == 0) store->number = 1;
    wire_message_make(&undo, kind == WIRE_CHANNEL ? WIRE_CLOSE_CHANNEL : WIRE_RELEASE,
                      store->protocol, store->number);
    undo.one.value = kind == WIRE_CHANNEL ? message->channel.channel : message->one.value;
    if (wire_send(store->socket, &undo, NULL, 0) == KVT_OK && store->owed == 0)
        store->owed = store->number;
    return true;
}

void client_hear(client_store *store)
{
    wire_packet packet;
    wire_message message;
    const wire_expected expected = {WIRE_FROM_SERVER, store->protocol, store->protocol};
    if (pthread_mutex_trylock(&store->lock) != 0) return; /* whoever asks hears it */
    const kvt_status status = store->socket >= 0 && !store->dead && !store->greets
                                  ? wire_receive(store->socket, &packet)
                                  : KVT_END;
    if (status == KVT_OK) {
        const bool sound = wire_message_read(packet.bytes, packet.size, packet.descriptor_count,
                                             &expected, &message) == KVT_OK;
        wire_packet_close(&packet);
        if (!sound || !link_take_late(store, &message)) {
            atomic_store(&store->leaving, true);
            /* Nobody has asked for anything else. */
            if (!sound || message.head.kind != WIRE_LEAVING)
                (void)shutdown(store->socket, SHUT_RDWR);
        }
    } else if (status == KVT_E_CORRUPT) {
        (void)shutdown(store->socket, SHUT_RDWR);
    }
    pthread_mutex_unlock(&store->lock);
}

static void link_die(client_store *store)
{
    if (store->socket >= 0) (void)shutdown(store->socket, SHUT_RDWR);
    store->dead = true;
}

/* The answer that was expected, or, of a failure, the one to all questions. */
static bool is_answer(const wire_message *answer, wire_kind expected)
{
    const uint32_t kind = answer->head.kind;
    if (kind == expected) return true;
    if (expected == WIRE_RESULT && kind == WIRE_RESULT_MEMORY) return true;
    return kind == WIRE_DONE && answer->head.status != KVT_OK;
}

/* Whether the process may have so many more descriptors: one that has none left loses those of an
 * answer, and the connection with them. */
static bool link_takes(const client_store *store, uint32_t count)
{
    int spare[WIRE_DESCRIPTORS_MAX];
    uint32_t made = 0;
    while (made < count && (spare[made] = fcntl(store->socket, F_DUPFD_CLOEXEC, 0)) >= 0)
        made++;
    for (uint32_t i = 0; i < made; i++)
        close(spare[i]);
    return made == count;
}

/* Until when an answer is waited for. Calls that a store takes its time for have ten times as much.
 */
static uint64_t link_answer_by(const client_store *store, const wire_message *question)
{
    const uint32_t call = question->head.kind == WIRE_CALL ? question->call.call : WIRE_CALL_STATS;
    const bool slow = call == WIRE_CALL_FLUSH || call == WIRE_CALL_PERSIST ||
                      call == WIRE_CALL_CLEAR || call == WIRE_CALL_MAINTAIN ||
                      call == WIRE_CALL_BASIS_ADD || call == WIRE_CALL_BASIS_REMOVE;
    if (store->answer_by_ns != KVT_NO_DEADLINE) return store->answer_by_ns;
    return base_clock_ns() + store->answer_ns * (slow ? 10 : 1);
}

/* Waits for the answer to the last question. */
static kvt_status link_answer(client_store *store, uint32_t number, uint64_t deadline_ns,
                              wire_packet *packet, wire_message *answer)
{
    for (;;) {
        const kvt_status status = link_next(store->socket, store->protocol, store->protocol,
                                            deadline_ns, &store->leaving, packet, answer);
        if (status != KVT_OK || answer->head.number == number) return status;
        if (!link_take_late(store, answer)) return KVT_E_CORRUPT;
        wire_packet_close(packet);
    }
}

static kvt_status link_ask(client_store *store, wire_message *question, const int *descriptors,
                           uint32_t descriptor_count, wire_kind expected, uint64_t deadline_ns,
                           wire_message *answer, int *received)
{
    wire_packet packet = {.descriptor_count = 0};
    if (store->socket < 0 || store->dead || store->greets) return KVT_E_GONE;
    if (!link_takes(store, expected == WIRE_CHANNEL ? 3 : expected == WIRE_RESULT ? 1 : 0)) {
        answer->head = (wire_head){.kind = WIRE_DONE, .status = KVT_E_MEMORY};
        return KVT_E_MEMORY;
    }
    const uint32_t number = store->number + 1 != 0 ? store->number + 1 : 1;
    const bool connects = store->answer_by_ns != KVT_NO_DEADLINE;
    question->head.protocol = (uint16_t)store->protocol;
    question->head.number = number;
    kvt_status status = wire_send(store->socket, question, descriptors, descriptor_count);
    if (status == KVT_OK) {
        store->number = number;
        status = link_answer(store, number, deadline_ns, &packet, answer);
        if (status == KVT_E_TIMEOUT && store->owed == 0) store->owed = number;
    } else if (status == KVT_BUSY) {
        status = KVT_E_TIMEOUT; /* it has not read what it was asked before */
    }
    if (status == KVT_E_TIMEOUT && !connects) {
        answer->head = (wire_head){.kind = WIRE_DONE, .status = status};
        return status;
    }
    const bool known = status == KVT_OK && is_answer(answer, expected);
    if (!known) {
        /* An answer that is none: nothing is sure of this server any more. */
        wire_packet_close(&packet);
        link_die(store);
        return KVT_E_GONE;
    }
    /* A question behind this one is owed still. */
    store->owed = store->number != number ? (number + 1 != 0 ? number + 1 : 1) : 0;
    for (uint32_t i = 0; received != NULL && i < packet.descriptor_count; i++)
        received[i] = packet.descriptors[i];
    if (received == NULL) wire_packet_close(&packet);
    return answer->head.status;
}

kvt_status client_ask_locked(client_store *store, wire_message *question, const int *descriptors,
                             uint32_t descriptor_count, wire_kind expected, wire_message *answer,
                             int *received)
{
    return link_ask(store, question, descriptors, descriptor_count, expected,
                    link_answer_by(store, question), answer, received);
}

/* ---- hello ---- */

static void say(char *message, size_t size, const char *text)
{
    if (size > 0) (void)snprintf(message, size, "%s", text);
}

/* Whose server it is. */
static kvt_status link_check_peer(const client_store *store)
{
    const uid_t own[] = {geteuid(), 0};
    wire_peer peer;
    _Static_assert(sizeof(uid_t) == sizeof *store->users, "users are numbers of 4 bytes");
    if (store->users == NULL) return wire_peer_check(store->socket, own, 2, &peer);
    return wire_peer_check(store->socket, (const uid_t *)store->users, store->user_count, &peer);
}

/* Takes the server's answer to hello, and agrees with it. message: why not. KVT_E_TIMEOUT: there is
 * none until the instant. */
static kvt_status link_agree(client_store *store, uint64_t deadline_ns, char *message, size_t size)
{
    wire_message hello, answer;
    wire_packet packet = {.descriptor_count = 0};
    const char *lacks = NULL;
    kvt_status status =
        link_next(store->socket, 0, WIRE_PROTOCOL, deadline_ns, NULL, &packet, &answer);
    if (status == KVT_E_TIMEOUT) say(message, size, "the server does not answer");
    if (status == KVT_E_CORRUPT) say(message, size, "what answers is no kvterrace server");
    if (status == KVT_E_GONE)
        say(message, size, "the server has closed the connection: it may be full, or leaving");
    wire_packet_close(&packet);
    if (status != KVT_OK) return status;
    if (answer.head.kind == WIRE_REFUSED) {
        say(message, size, answer.refused.text);
        return answer.head.status;
    }
    wire_hello_make(&hello, &wire_own_speaks, store->name,
                    0); /* as it was sent, but for the clock */
    status = answer.head.kind == WIRE_WELCOME
                 ? wire_check_welcome(&answer.welcome, &hello.hello, &wire_own_speaks, &lacks)
                 : KVT_E_CORRUPT;
    if (status == KVT_E_VERSION && size > 0)
        (void)snprintf(message, size, "the server is too old: it lacks members of \"%s\"",
                       lacks != NULL ? lacks : "?");
    if (status == KVT_E_CORRUPT) say(message, size, "what answers is no kvterrace server");
    if (status != KVT_OK) return status;
    store->limits = answer.welcome;
    atomic_store(&store->record_bytes, answer.welcome.argument_bytes);
    atomic_store(&store->takes_passes, answer.welcome.sizes[WIRE_STRUCT_PASS] != 0);
    store->protocol = answer.welcome.protocol;
    store->number = answer.head.number;
    return KVT_OK;
}

/* ---- channels ---- */

/* Staging of the channels that are open. Under store->lock. */
static uint64_t link_staging(const client_store *store)
{
    uint64_t bytes = 0;
    for (client_channel *channel = store->channels; channel != NULL; channel = channel->next) {
        pthread_mutex_lock(&channel->lock);
        if (channel->area != NULL) bytes += channel->area->places.staging_bytes;
        pthread_mutex_unlock(&channel->lock);
    }
    return bytes < store->limits.staging_bytes ? bytes : store->limits.staging_bytes;
}

/* Opens a channel at the server that is connected. Under store->lock. */
static kvt_status link_open_channel(client_store *store, client_channel *channel)
{
    wire_message question, answer;
    int descriptors[WIRE_DESCRIPTORS_MAX];
    client_area *area;
    /* Half of what is left at most, so that there is some for every queue to come. */
    const uint64_t most =
        (store->limits.staging_bytes - link_staging(store)) / 2 / WIRE_PAGE * WIRE_PAGE;
    wire_message_make(&question, WIRE_OPEN_CHANNEL, store->protocol, 1);
    question.open.entries =
        channel->entries < store->limits.depth ? channel->entries : store->limits.depth;
    question.open.argument_bytes = (uint64_t)question.open.entries * CLIENT_RECORD_BYTES;
    if (question.open.argument_bytes < CLIENT_ARGUMENTS_LEAST)
        question.open.argument_bytes = CLIENT_ARGUMENTS_LEAST;
    question.open.staging_bytes = channel->staging_bytes < most ? channel->staging_bytes : most;
    kvt_status status =
        client_ask_locked(store, &question, NULL, 0, WIRE_CHANNEL, &answer, descriptors);
    if (status != KVT_OK) return status;
    status = client_area_make(&answer.channel, descriptors, &area);
    if (status != KVT_OK) {
        link_die(store);
        return status;
    }
    pthread_mutex_lock(&channel->lock);
    channel->number = answer.channel.channel;
    client_regions_tell(store, channel);
    client_channel_attach(channel, area, store->socket);
    pthread_cond_broadcast(&channel->arrived);
    pthread_mutex_unlock(&channel->lock);
    return KVT_OK;
}

kvt_status client_channel_begin(client_store *store, client_channel *channel)
{
    pthread_mutex_init(&channel->lock, NULL);
    base_condition_init(&channel->arrived);
    base_spin_init(&channel->spin, CLIENT_SPIN_NS);
    channel->store = store;
    pthread_mutex_lock(&store->lock);
    const kvt_status status = link_open_channel(store, channel);
    if (status == KVT_OK) {
        channel->next = store->channels;
        store->channels = channel;
    }
    pthread_mutex_unlock(&store->lock);
    if (status == KVT_OK) return KVT_OK;
    pthread_cond_destroy(&channel->arrived);
    pthread_mutex_destroy(&channel->lock);
    return status;
}

void client_channel_end(client_channel *channel)
{
    client_store *store = channel->store;
    wire_message question, answer;
    pthread_mutex_lock(&store->lock);
    client_channel **at = &store->channels;
    while (*at != channel)
        at = &(*at)->next;
    *at = channel->next;
    const bool open = channel->area != NULL && !store->dead;
    if (open) {
        /* Nothing is written to regions for its requests after the answer. */
        wire_message_make(&question, WIRE_CLOSE_CHANNEL, store->protocol, 1);
        question.one.value = channel->number;
        pthread_mutex_lock(&channel->lock);
        const bool works = client_transfer_is_under_way(channel);
        pthread_mutex_unlock(&channel->lock);
        const kvt_status status =
            link_ask(store, &question, NULL, 0, WIRE_DONE,
                     works ? KVT_NO_DEADLINE : link_answer_by(store, &question), &answer, NULL);
        (void)status;
    }
    pthread_mutex_lock(&channel->lock);
    client_channel_detach(channel, store->socket);
    while (channel->reading)
        pthread_cond_wait(&channel->arrived, &channel->lock);
    pthread_mutex_unlock(&channel->lock);
    pthread_mutex_unlock(&store->lock);
    pthread_cond_destroy(&channel->arrived);
    pthread_mutex_destroy(&channel->lock);
}

/* ---- loss and return ---- */

/* Takes the connection away from all channels. Under store->lock. */
static void link_close(client_store *store)
{
    if (store->socket < 0) return;
    link_die(store);
    for (client_channel *channel = store->channels; channel != NULL; channel = channel->next) {
        pthread_mutex_lock(&channel->lock);
        (void)client_channel_take(channel);
        client_channel_detach(channel, store->socket);
        /* The end of the socket wakes it. */
        while (channel->reading)
            pthread_cond_wait(&channel->arrived, &channel->lock);
        pthread_mutex_unlock(&channel->lock);
    }
    if (store->poller >= 0) (void)epoll_ctl(store->poller, EPOLL_CTL_DEL, store->socket, NULL);
    close(store->socket);
    store->socket = -1;
    store->greets = false;
}

/* Connects, and says hello. Under store->lock, without a socket. */
static kvt_status link_greet(client_store *store, char *message, size_t size)
{
    wire_message hello;
    kvt_status status = wire_connect(store->path, &store->socket);
    if (status != KVT_OK) {
        store->socket = -1;
        if (size > 0)
            (void)snprintf(message, size, "%s: %s", store->path,
                           status == KVT_E_GONE        ? "no server listens there"
                           : status == KVT_E_TIMEOUT   ? "the server does not answer"
                           : status == KVT_E_ARGUMENT  ? "no path of a socket"
                           : status == KVT_E_READ_ONLY ? "no permission to connect"
                                                       : kvt_status_text(status));
        return status;
    }
    store->dead = false;
    store->owed = 0;
    atomic_store(&store->leaving, false);
    status = link_check_peer(store);
    if (status == KVT_E_READ_ONLY) say(message, size, "the server is another user's");
    if (status == KVT_OK) {
        wire_hello_make(&hello, &wire_own_speaks, store->name, base_clock_ns());
        status = wire_send(store->socket, &hello, NULL, 0);
    }
    store->greets = status == KVT_OK;
    store->greets_until_ns = base_clock_ns() + CLIENT_HELLO_NS;
    if (status != KVT_OK) link_close(store);
    return status;
}

/* Ends what link_greet began: all regions and channels are there again. Under store->lock.
 * KVT_E_TIMEOUT: the server has not answered until the instant, and may still do so. */
static kvt_status link_open(client_store *store, uint64_t deadline_ns, char *message, size_t size)
{
    kvt_status status = link_agree(store, deadline_ns, message, size);
    if (status == KVT_E_TIMEOUT) return status;
    store->greets = false;
    store->answer_by_ns = base_clock_ns() + CLIENT_OPEN_NS;
    if (status == KVT_OK) status = client_regions_restore(store);
    for (client_channel *channel = store->channels; channel != NULL && status == KVT_OK;
         channel = channel->next)
        status = link_open_channel(store, channel);
    if (status == KVT_E_GONE && base_clock_ns() >= store->answer_by_ns) {
        say(message, size, "the server does not answer");
        status = KVT_E_TIMEOUT;
    }
    store->answer_by_ns = KVT_NO_DEADLINE;
    struct epoll_event event = {.events = EPOLLIN};
    if (status == KVT_OK && store->poller >= 0 &&
        epoll_ctl(store->poller, EPOLL_CTL_ADD, store->socket, &event) != 0)
        status = KVT_E_GONE; /* as without a connection */
    if (status != KVT_OK) link_close(store);
    return status;
}

/* Whether the connection is there. Under store->lock. */
static bool link_is_up(const client_store *store)
{
    struct pollfd asked = {.fd = store->socket, .events = 0};
    return store->socket >= 0 && !store->dead && !store->greets && poll(&asked, 1, 0) <= 0;
}

/* Connects again where the pause has passed. A server that listens answers once its store is open,
 * which may take minutes: no call waits for that, a later one finds the answer. Under store->lock,
 * without a connection. KVT_OK; KVT_E_GONE. */
static kvt_status link_return(client_store *store)
{
    kvt_status status = KVT_OK;
    struct pollfd answer = {.fd = store->socket, .events = POLLIN};
    if (store->greets) {
        if (poll(&answer, 1, 0) <= 0) {
            if (base_clock_ns() >= store->greets_until_ns) link_close(store);
            return KVT_E_GONE;
        }
    } else {
        link_close(store);
        if (base_clock_ns() < store->retry_ns) return KVT_E_GONE;
        status = link_greet(store, NULL, 0);
    }
    if (status == KVT_OK) status = link_open(store, base_clock_ns() + CLIENT_WELCOME_NS, NULL, 0);
    if (status == KVT_OK) store->pause_ns = CLIENT_PAUSE_FIRST_NS;
    store->retry_ns = base_clock_ns() + store->pause_ns;
    if (status != KVT_OK && store->pause_ns < CLIENT_PAUSE_LAST_NS)
        store->pause_ns =
            store->pause_ns * 2 < CLIENT_PAUSE_LAST_NS ? store->pause_ns * 2 : CLIENT_PAUSE_LAST_NS;
    return status == KVT_OK ? KVT_OK : KVT_E_GONE;
}

kvt_status client_restore(client_store *store, const client_channel *channel)
{
    kvt_status status = KVT_E_GONE;
    if (pthread_mutex_trylock(&store->lock) != 0) {
        if (channel != NULL) return KVT_E_GONE; /* somebody connects, or asks for long */
        pthread_mutex_lock(&store->lock);
    }
    if (store->closed)
        status = KVT_E_STATE;
    else if (link_is_up(store))
        status = atomic_load(&store->leaving) ? KVT_E_GONE : KVT_OK;
    else
        status = link_return(store);
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ---- open and close ---- */

kvt_status client_link_begin(client_store *store, char *message, size_t size)
{
    atomic_store(&link_calls, store->elsewhere);
    pthread_mutex_lock(&store->lock);
    kvt_status status = link_greet(store, message, size);
    if (status == KVT_OK)
        status = link_open(store, base_clock_ns() + CLIENT_HELLO_NS, message, size);
    if (status != KVT_OK) link_close(store);
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* Has the server end what it does in regions for requests that have not completed: it closes its
 * end of the socket afterwards. */
static void link_quiet(client_store *store)
{
    struct pollfd ends = {.fd = store->socket};
    bool works = false;
    if (!link_is_up(store)) return;
    for (client_channel *channel = store->channels; channel != NULL; channel = channel->next) {
        pthread_mutex_lock(&channel->lock);
        works = works || client_transfer_is_under_way(channel) || client_loads_are_open(channel);
        pthread_mutex_unlock(&channel->lock);
    }
    if (!works || shutdown(store->socket, SHUT_WR) != 0) return;
    while (poll(&ends, 1, -1) < 0 && errno == EINTR)
        continue;
}

void client_link_end(client_store *store)
{
    pthread_mutex_lock(&store->lock);
    store->closed = true;
    link_quiet(store);
    link_close(store);
    pthread_mutex_unlock(&store->lock);
}

void client_let_go(client_store *store)
{
    if (atomic_fetch_sub(&store->holders, 1) != 1) return;
    if (store->channels != NULL) {
        assert(store->channels == &store->calls && store->socket < 0);
        pthread_cond_destroy(&store->calls.arrived);
        pthread_mutex_destroy(&store->calls.lock);
    }
    pthread_mutex_destroy(&store->lock);
    pthread_mutex_destroy(&store->file_lock);
    for (uint32_t i = 0; i < CLIENT_TEXTS; i++)
        free(store->texts[i]);
    free(store->users);
    free(store);
}
