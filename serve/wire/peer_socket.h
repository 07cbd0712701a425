/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_socket.h - the local socket between a client and the server: its path, who is at the other
 * end, packets with descriptors (docs/SERVE.md, The socket).
 *
 * Thread rule: any thread; one receiver at a time per socket. None of the calls waits but
 * wire_connect, which waits for room in the server's list of connections.
 */
#ifndef SERVE_WIRE_PEER_SOCKET_H
#define SERVE_WIRE_PEER_SOCKET_H

#include "serve/wire/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A socket that the server listens on. */
typedef struct wire_listener {
    int socket, lock; /* descriptors; -1: none */
    char path[108];
    dev_t device; /* of the path, so that another server's is not removed */
    ino_t inode;
} wire_listener;

/*
 * Listens at a path. A lock on the file beside it (".lock") keeps other servers away; a socket that
 * a server which is gone has left there is replaced.
 *   mode      0600, or with a group's bits
 *   message   one line for a person after a failure
 * KVT_OK; KVT_E_ARGUMENT (the path is empty, too long, a link or no socket); KVT_E_LOCKED (another
 * server has it); KVT_E_GONE (no such folder); KVT_E_READ_ONLY (no permission); KVT_E_IO.
 */
KVT_NODISCARD kvt_status wire_listen(const char *path, mode_t mode, wire_listener *listener_out,
                                     char *message, size_t message_size);

/* Ends a listener and removes its path, if it is its own still. */
void wire_listener_close(wire_listener *listener);

/* The next connection, in *socket_out. KVT_OK; KVT_END (none waits); KVT_E_MEMORY (no descriptor is
 * left, too: try again when another one is closed); KVT_E_IO. */
KVT_NODISCARD kvt_status wire_accept(const wire_listener *listener, int *socket_out);

/* Connects to a server. KVT_OK; KVT_E_ARGUMENT (the path); KVT_E_GONE (nobody listens there);
 * KVT_E_READ_ONLY (no permission); KVT_E_TIMEOUT (it has accepted nobody for 5 s); KVT_E_MEMORY;
 * KVT_E_IO. */
KVT_NODISCARD kvt_status wire_connect(const char *path, int *socket_out);

/* Who is at the other end, as the kernel says. */
typedef struct wire_peer {
    uid_t user;
    pid_t process; /* 0: of another namespace */
} wire_peer;

/* Asks for the peer, and whether its user is in a list. KVT_OK; KVT_E_READ_ONLY (it is not);
 * KVT_E_IO. */
KVT_NODISCARD kvt_status wire_peer_check(int socket, const uid_t *users, size_t user_count,
                                         wire_peer *peer_out);

/* Sends a message with descriptors, which stay the caller's. KVT_OK; KVT_BUSY (the other side does
 * not read: nothing was sent); KVT_E_GONE; KVT_E_IO. */
KVT_NODISCARD kvt_status wire_send(int socket, const wire_message *message, const int *descriptors,
                                   uint32_t descriptor_count);

/* A packet as it came. */
typedef struct wire_packet {
    size_t size;
    uint32_t descriptor_count;
    int descriptors[WIRE_DESCRIPTORS_MAX]; /* the taker's to close; closed on exec */
    uint64_t bytes[WIRE_MESSAGE_MAX / 8];
} wire_packet;

/* Takes the next packet. KVT_OK; KVT_END (none is there); KVT_E_GONE (the other side has closed);
 * KVT_E_CORRUPT (too long, or too many descriptors; none is kept); KVT_E_IO. */
KVT_NODISCARD kvt_status wire_receive(int socket, wire_packet *packet_out);

/* Closes the descriptors of a packet that nobody has taken over. Of a descriptor that a hostile
 * peer has sent this may wait for as long as that one likes. */
void wire_packet_close(wire_packet *packet);

#endif
