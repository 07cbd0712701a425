/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_socket.c - a socket of the kind SEQPACKET: each call names its own flags, because those of a
 * description are shared with whoever else has it.
 */
#include "serve/wire/peer_socket.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_WAITING  64 /* connections that are not accepted */
#define WIRE_CONNECT_MS 5000

static kvt_status status_of(int error)
{
    switch (error) {
    case EACCES:
    case EPERM:
    case EROFS: return KVT_E_READ_ONLY;
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN: return KVT_E_GONE;
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
    case ENFILE: return KVT_E_MEMORY;
    case ELOOP:
    case ENAMETOOLONG: return KVT_E_ARGUMENT;
    default: return KVT_E_IO;
    }
}

static kvt_status address_of(const char *path, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t length = strlen(path);
    if (length == 0 || length >= sizeof address->sun_path) return KVT_E_ARGUMENT;
    memcpy(address->sun_path, path, length);
    return KVT_OK;
}

static int socket_make(int flags)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
}

/* Takes the lock that says who may bind the path. */
static kvt_status lock_take(const char *path, int *lock_out, char *message, size_t message_size)
{
    char name[sizeof((struct sockaddr_un *)NULL)->sun_path + 8];
    snprintf(name, sizeof name, "%s.lock", path);
    const int lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (lock < 0) {
        const int error = errno;
        snprintf(message, message_size, "%s: %s", name, strerror(error));
        return status_of(error);
    }
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        snprintf(message, message_size, "%s: another server listens there", path);
        close(lock);
        return KVT_E_LOCKED;
    }
    *lock_out = lock;
    return KVT_OK;
}

/* Makes the path free; the lock is held, so a socket there is a leftover, unless somebody who knows
 * no lock listens. */
static kvt_status path_free(const char *path, const struct sockaddr_un *address, char *message,
                            size_t message_size)
{
    struct stat found;
    if (lstat(path, &found) != 0) {
        if (errno == ENOENT) return KVT_OK;
        const int error = errno;
        snprintf(message, message_size, "%s: %s", path, strerror(error));
        return status_of(error);
    }
    if (!S_ISSOCK(found.st_mode)) {
        snprintf(message, message_size,
                 S_ISLNK(found.st_mode) ? "%s: it is a symbolic link"
                                        : "%s: there is something that is no socket",
                 path);
        return KVT_E_ARGUMENT;
    }
    const int probe = socket_make(SOCK_NONBLOCK);
    const bool answers =
        probe >= 0 && (connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 ||
                       errno != ECONNREFUSED);
    if (probe >= 0) close(probe);
    if (answers) {
        snprintf(message, message_size, "%s: another program listens there", path);
        return KVT_E_LOCKED;
    }
    if (unlink(path) == 0) return KVT_OK;
    const int error = errno;
    snprintf(message, message_size, "%s: %s", path, strerror(error));
    return status_of(error);
}

kvt_status wire_listen(const char *path, mode_t mode, wire_listener *listener_out, char *message,
                       size_t message_size)
{
    struct sockaddr_un address;
    wire_listener listener = {.socket = -1, .lock = -1};
    *listener_out = listener;
    if (address_of(path, &address) != KVT_OK) {
        snprintf(message, message_size, "a socket's path has 1 to %zu bytes",
                 sizeof address.sun_path - 1);
        return KVT_E_ARGUMENT;
    }
    memcpy(listener.path, address.sun_path, sizeof listener.path);
    kvt_status status = lock_take(path, &listener.lock, message, message_size);
    if (status == KVT_OK) status = path_free(path, &address, message, message_size);
    if (status != KVT_OK) goto out;
    listener.socket = socket_make(SOCK_NONBLOCK);
    struct stat made;
    /* The mode of the socket is the one that the path gets, less the process's mask; so it is never
     * wider. The chmod behind the bind undoes the mask. */
    if (listener.socket < 0 || fchmod(listener.socket, mode) != 0 ||
        bind(listener.socket, (const struct sockaddr *)&address, sizeof address) != 0) {
        const int error = errno;
        snprintf(message, message_size, "%s: %s", path, strerror(error));
        status = status_of(error);
    } else if (lstat(path, &made) != 0 ||
               ((made.st_mode & 07777) != mode && chmod(path, mode) != 0) ||
               listen(listener.socket, SOCKET_WAITING) != 0) {
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        status = KVT_E_IO;
    } else {
        listener.device = made.st_dev;
        listener.inode = made.st_ino;
    }
out:
    if (status != KVT_OK) {
        if (listener.socket >= 0) close(listener.socket);
        if (listener.lock >= 0) close(listener.lock);
        return status;
    }
    *listener_out = listener;
    return KVT_OK;
}

void wire_listener_close(wire_listener *listener)
{
    struct stat found;
    if (listener->socket < 0) return;
    if (lstat(listener->path, &found) == 0 && found.st_dev == listener->device &&
        found.st_ino == listener->inode)
        (void)unlink(listener->path);
    close(listener->socket);
    /* The file of the lock stays: a server that has opened it already must not lock a file which
     * the next one does not find. */
    close(listener->lock);
    listener->socket = listener->lock = -1;
}

kvt_status wire_accept(const wire_listener *listener, int *socket_out)
{
    *socket_out = accept4(listener->socket, NULL, NULL, SOCK_CLOEXEC);
    if (*socket_out >= 0) return KVT_OK;
    if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return KVT_END;
    return status_of(errno);
}

kvt_status wire_connect(const char *path, int *socket_out)
{
    struct sockaddr_un address;
    *socket_out = -1;
    kvt_status status = address_of(path, &address);
    if (status != KVT_OK) return status;
    const int made = socket_make(0);
    if (made < 0) return status_of(errno);
    /* A server that does not accept lets a few wait, and all others stand in connect. */
    const struct timeval longest = {.tv_sec = WIRE_CONNECT_MS / 1000};
    const uint64_t until_ns = base_clock_ns() + WIRE_CONNECT_MS * UINT64_C(1000000);
    int result = setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
    if (result == 0) do {
            result = connect(made, (const struct sockaddr *)&address, sizeof address);
        } while (result != 0 && errno == EINTR && base_clock_ns() < until_ns);
    if (result != 0) {
        status = errno == EAGAIN || errno == EINTR ? KVT_E_TIMEOUT : status_of(errno);
        close(made);
        return status;
    }
    *socket_out = made;
    return KVT_OK;
}

kvt_status wire_peer_check(int socket, const uid_t *users, size_t user_count, wire_peer *peer_out)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
        length != sizeof credentials)
        return KVT_E_IO;
    *peer_out = (wire_peer){.user = credentials.uid, .process = credentials.pid};
    for (size_t i = 0; i < user_count; i++)
        if (users[i] == credentials.uid) return KVT_OK;
    return KVT_E_READ_ONLY;
}

/* Room for the descriptors of one message. */
typedef union control_room {
    char bytes[CMSG_SPACE(sizeof(int) * WIRE_DESCRIPTORS_MAX)];
    struct cmsghdr aligned;
} control_room;

kvt_status wire_send(int socket, const wire_message *message, const int *descriptors,
                     uint32_t descriptor_count)
{
    assert(descriptor_count <= WIRE_DESCRIPTORS_MAX && message->head.bytes <= sizeof *message);
    control_room room;
    memset(&room, 0, sizeof room);
    struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = message->head.bytes};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor_count > 0) {
        packet.msg_control = room.bytes;
        packet.msg_controllen = CMSG_SPACE(sizeof(int) * descriptor_count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&packet);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * descriptor_count);
        memcpy(CMSG_DATA(head), descriptors, sizeof(int) * descriptor_count);
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)message->head.bytes) return KVT_OK;
    if (sent >= 0) return KVT_E_IO;
    return errno == EAGAIN ? KVT_BUSY : status_of(errno);
}

void wire_packet_close(wire_packet *packet)
{
    for (uint32_t i = 0; i < packet->descriptor_count; i++)
        close(packet->descriptors[i]);
    packet->descriptor_count = 0;
}

/* Takes over the descriptors that came; false: other control data, or more than there is room. */
static bool descriptors_take(struct msghdr *message, wire_packet *packet)
{
    bool sound = (message->msg_flags & MSG_CTRUNC) == 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL;
         head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            sound = false;
            continue;
        }
        const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(head) + i * sizeof(int), sizeof descriptor);
            if (packet->descriptor_count < WIRE_DESCRIPTORS_MAX) {
                packet->descriptors[packet->descriptor_count++] = descriptor;
            } else {
                close(descriptor);
                sound = false;
            }
        }
    }
    return sound;
}

kvt_status wire_receive(int socket, wire_packet *packet_out)
{
    control_room room;
    struct iovec part = {.iov_base = packet_out->bytes, .iov_len = sizeof packet_out->bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = sizeof room.bytes};
    packet_out->size = 0;
    packet_out->descriptor_count = 0;
    ssize_t came;
    do {
        came = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (came < 0 && errno == EINTR);
    if (came < 0) return errno == EAGAIN ? KVT_END : status_of(errno);
    if (!descriptors_take(&message, packet_out) || (message.msg_flags & MSG_TRUNC) != 0) {
        wire_packet_close(packet_out);
        return KVT_E_CORRUPT;
    }
    if (came == 0) {
        wire_packet_close(packet_out);
        return KVT_E_GONE;
    }
    packet_out->size = (size_t)came;
    return KVT_OK;
}
