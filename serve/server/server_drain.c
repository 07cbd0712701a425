/* SPDX-License-Identifier: Apache-2.0 */
/* server_drain.c - has the server at a path leave, and waits until its process has ended. */
#include "serve/server/server.h"

#include "serve/wire/peer_socket.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sends SIGTERM to a process, whoever has its number later, and waits for its end. */
static kvt_status drain_process(pid_t process, int timeout_ms, char *message, size_t message_size)
{
    const int watched = (int)syscall(SYS_pidfd_open, process, 0);
    if (watched < 0) {
        if (errno == ESRCH) return KVT_OK;
        (void)snprintf(message, message_size, "this kernel has no descriptors of processes");
        return KVT_E_UNSUPPORTED;
    }
    kvt_status status = KVT_OK;
    if (syscall(SYS_pidfd_send_signal, watched, SIGTERM, NULL, 0) != 0 && errno != ESRCH) {
        (void)snprintf(message, message_size, "no permission to end the server, process %d",
                       (int)process);
        status = KVT_E_READ_ONLY;
    }
    struct pollfd ends = {.fd = watched, .events = POLLIN};
    if (status == KVT_OK && poll(&ends, 1, timeout_ms) != 1) {
        (void)snprintf(message, message_size, "the server, process %d, has not ended after %d s",
                       (int)process, timeout_ms / 1000);
        status = KVT_E_TIMEOUT;
    }
    close(watched);
    return status;
}

kvt_status server_drain(const char *path, int timeout_ms, char *message, size_t message_size)
{
    int socket = -1;
    wire_peer peer;
    const uid_t nobody = (uid_t)-1;
    if (message_size > 0) message[0] = '\0';
    kvt_status status = wire_connect(path, &socket);
    if (status == KVT_E_GONE) return KVT_OK;
    if (status != KVT_OK) {
        (void)snprintf(message, message_size, "%s: %s", path, kvt_status_text(status));
        return status;
    }
    status = wire_peer_check(socket, &nobody, 1, &peer); /* it fills in who it is in either case */
    close(socket);
    if (status == KVT_E_IO || peer.process <= 0) {
        (void)snprintf(message, message_size, "%s: who serves there is not known", path);
        return KVT_E_UNSUPPORTED;
    }
    return drain_process(peer.process, timeout_ms, message, message_size);
}
