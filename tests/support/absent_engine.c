/* SPDX-License-Identifier: Apache-2.0 */
/*
 * absent_engine.c - what the tests of stores run with an engine that is not there: with
 * KVT_TEST_ENGINE in the environment, every store that a test opens without a remote tier has one,
 * which nobody serves. The linker sends the test's calls of kvt_store_open here.
 *
 *     refuses   a port that nobody listens on: each connection is refused
 *     silent    a port that is listened on, and never read: each request ends at its deadline
 *
 * With KVT_TEST_LENT every store that a test opens is lent by a server (lent_store.h).
 *
 * Thread rule: any thread.
 */
#include "lent_store.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/remote.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static char engine_address[32]; /* empty: no engine is asked for */
static bool stores_are_lent;

/* Takes a port of loopback for the life of the process, so that no other process serves it. */
static void engine_take_port(void)
{
    const char *mode = getenv("KVT_TEST_ENGINE");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    stores_are_lent = getenv("KVT_TEST_LENT") != NULL;
    if (mode == NULL || mode[0] == '\0') return;
    const bool silent = strcmp(mode, "silent") == 0;
    const int port = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if ((!silent && strcmp(mode, "refuses") != 0) || port < 0 ||
        bind(port, (struct sockaddr *)&at, sizeof at) != 0 ||
        getsockname(port, (struct sockaddr *)&at, &length) != 0 ||
        (silent && listen(port, 1) != 0)) {
        fprintf(stderr, "no engine to be absent: KVT_TEST_ENGINE is refuses or silent\n");
        abort();
    }
    snprintf(engine_address, sizeof engine_address, "127.0.0.1:%u", ntohs(at.sin_port));
}

kvt_status __real_kvt_store_open(const kvt_store_options *options, kvt_store **store_out,
                                 char *message, size_t message_size);
kvt_status __wrap_kvt_store_open(const kvt_store_options *options, kvt_store **store_out,
                                 char *message, size_t message_size);
void __real_kvt_store_close(kvt_store *store);
void __wrap_kvt_store_close(kvt_store *store);

kvt_status __wrap_kvt_store_open(const kvt_store_options *options, kvt_store **store_out,
                                 char *message, size_t message_size)
{
    pthread_once(&engine_once, engine_take_port);
    if (stores_are_lent) {
        const kvt_status status = __real_kvt_store_open(options, store_out, message, message_size);
        if (status == KVT_OK) *store_out = lent_store_open(*store_out);
        return status;
    }
    /* Options of another version of the library are passed on as they are. */
    if (engine_address[0] == '\0' || options == NULL || options->struct_size != sizeof *options ||
        options->remote != NULL)
        return __real_kvt_store_open(options, store_out, message, message_size);
    kvt_store_options given = *options;
    kvt_remote_options remote;
    kvt_remote_options_init(&remote);
    remote.backend = "valkey";
    remote.address = engine_address;
    remote.namespace_text = "absent@1";
    remote.publish = KVT_PUBLISH_ALL;
    remote.deadline_seconds = 0.005; /* a silent engine costs each miss so long */
    given.remote = &remote;
    return __real_kvt_store_open(&given, store_out, message, message_size);
}

void __wrap_kvt_store_close(kvt_store *store)
{
    if (!lent_store_close(store)) __real_kvt_store_close(store);
}
