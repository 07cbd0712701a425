/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_socket.c - a server listens at a path that is nobody else's; messages come whole with
 * their descriptors, or not at all; nothing that a peer sends leaves a descriptor behind.
 */
#include "peer_support.h"
#include "wire_support.h"

#include "serve/wire/peer_socket.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], path[96];
static char message[256];

TEST_BEFORE_EACH
{
    snprintf(folder, sizeof folder, "wire_socket_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/store.sock", folder);
}

TEST_AFTER_EACH
{
    char name[128];
    const char *names[] = {"store.sock", "store.sock.lock", "other"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        (void)unlink(name);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Both ends of a connection. */
static void connect_pair(const wire_listener *listener, int ends[2])
{
    assert_ok(wire_connect(path, &ends[0]));
    assert_ok(wire_accept(listener, &ends[1]));
}

TEST(a_path_is_listened_at_by_one)
{
    wire_listener first, second;
    struct stat found;
    int end;
    const uint32_t before = open_descriptors();
    const mode_t mask = umask(0077);
    assert_int_equal(wire_connect(path, &end), KVT_E_GONE);
    assert_ok(wire_listen(path, 0660, &first, message, sizeof message));
    umask(mask);
    assert_int_equal(lstat(path, &found), 0);
    assert_int_equal(found.st_mode & 07777, 0660);
    assert_int_equal(wire_listen(path, 0600, &second, message, sizeof message), KVT_E_LOCKED);
    assert_non_null(strstr(message, "another server listens there"));
    assert_int_equal(wire_accept(&first, &end), KVT_END);
    wire_listener_close(&first);
    wire_listener_close(&first);
    assert_int_equal(lstat(path, &found), -1);
    assert_ok(wire_listen(path, 0600, &second, message, sizeof message));
    assert_int_equal(lstat(path, &found), 0);
    assert_int_equal(found.st_mode & 07777, 0600);
    wire_listener_close(&second);
    assert_int_equal(open_descriptors(), before);
}

TEST(a_server_that_died_leaves_its_path_to_the_next)
{
    wire_listener listener;
    const pid_t child = fork();
    if (child == 0)
        _exit(wire_listen(path, 0600, &listener, message, sizeof message) == KVT_OK ? 0 : 1);
    int status, end;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    struct stat found;
    assert_int_equal(lstat(path, &found), 0);
    assert_int_equal(wire_connect(path, &end), KVT_E_GONE);
    assert_ok(wire_listen(path, 0600, &listener, message, sizeof message));
    int ends[2];
    connect_pair(&listener, ends);
    close(ends[0]);
    close(ends[1]);
    wire_listener_close(&listener);
}

TEST(what_is_no_socket_of_ours_stays)
{
    wire_listener listener;
    char other[128], text[200];
    struct stat found;
    snprintf(other, sizeof other, "%s/other", folder);
    /* A file. */
    const int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(wire_listen(path, 0600, &listener, message, sizeof message), KVT_E_ARGUMENT);
    assert_int_equal(lstat(path, &found), 0);
    assert_int_equal(unlink(path), 0);
    /* A link, to a socket that nobody listens at. */
    assert_ok(wire_listen(path, 0600, &listener, message, sizeof message));
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink("other", path), 0);
    wire_listener_close(&listener);
    assert_int_equal(lstat(path, &found), 0);
    assert_int_equal(wire_listen(path, 0600, &listener, message, sizeof message), KVT_E_ARGUMENT);
    assert_int_equal(lstat(other, &found), 0);
    assert_int_equal(unlink(path), 0);
    /* A program that takes no lock, and does not accept. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path));
    const int foreign = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(foreign, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(foreign, 0), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(wire_listen(path, 0600, &listener, message, sizeof message), KVT_E_LOCKED);
    close(foreign);
    /* A lock that is a link. */
    snprintf(text, sizeof text, "%s.lock", path);
    assert_int_equal(unlink(text), 0);
    assert_int_equal(symlink("other", text), 0);
    assert_int_equal(wire_listen(path, 0600, &listener, message, sizeof message), KVT_E_ARGUMENT);
    /* Paths. */
    memset(text, 'p', sizeof text);
    text[108] = '\0';
    int end;
    assert_int_equal(wire_listen(text, 0600, &listener, message, sizeof message), KVT_E_ARGUMENT);
    assert_int_equal(wire_connect(text, &end), KVT_E_ARGUMENT);
    assert_int_equal(wire_listen("", 0600, &listener, message, sizeof message), KVT_E_ARGUMENT);
    snprintf(text, sizeof text, "%s/no/such", folder);
    assert_int_equal(wire_listen(text, 0600, &listener, message, sizeof message), KVT_E_GONE);
    wire_listener_close(&listener);
}

/* Connections beyond those that a listener lets wait are not waited for without end. */
TEST(a_server_that_accepts_nobody_is_given_up)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int ends[4] = {-1, -1, -1, -1}, count = 0;
    kvt_status status = KVT_OK;
    memcpy(address.sun_path, path, strlen(path));
    const int stopped = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(stopped, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(stopped, 0), 0);
    while (status == KVT_OK && count < 4)
        status = wire_connect(path, &ends[count++]);
    assert_int_equal(status, KVT_E_TIMEOUT);
    assert_int_equal(ends[count - 1], -1);
    for (int i = 0; i + 1 < count; i++)
        close(ends[i]);
    close(stopped);
}

TEST(the_kernel_says_who_is_there)
{
    wire_listener listener;
    int ends[2];
    wire_peer peer;
    assert_ok(wire_listen(path, 0600, &listener, message, sizeof message));
    connect_pair(&listener, ends);
    const uid_t own[] = {getuid() + 1, getuid()};
    assert_ok(wire_peer_check(ends[1], own, 2, &peer));
    assert_int_equal(peer.user, getuid());
    assert_int_equal(peer.process, getpid());
    assert_int_equal(wire_peer_check(ends[1], own, 1, &peer), KVT_E_READ_ONLY);
    assert_int_equal(wire_peer_check(ends[1], own, 0, &peer), KVT_E_READ_ONLY);
    const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(wire_peer_check(file, own, 2, &peer), KVT_E_IO);
    close(file);
    close(ends[0]);
    close(ends[1]);
    wire_listener_close(&listener);
}

TEST(messages_come_with_their_descriptors)
{
    wire_listener listener;
    int ends[2], pipe_ends[2];
    wire_packet packet;
    assert_ok(wire_listen(path, 0600, &listener, message, sizeof message));
    connect_pair(&listener, ends);
    assert_int_equal(wire_receive(ends[1], &packet), KVT_END);
    for (uint32_t kind = WIRE_HELLO; kind <= WIRE_LEAVING; kind++) {
        wire_message sent, read_out;
        uint32_t descriptors;
        wire_test_message((wire_kind)kind, &sent, &descriptors);
        assert_int_equal(pipe2(pipe_ends, O_CLOEXEC), 0);
        const int passed[] = {pipe_ends[1], pipe_ends[1], pipe_ends[0]};
        const wire_expected expected = wire_test_expected((wire_kind)kind);
        assert_ok(wire_send(ends[0], &sent, passed, descriptors));
        assert_ok(wire_receive(ends[1], &packet));
        assert_int_equal(packet.size, sent.head.bytes);
        assert_ok(wire_message_read(packet.bytes, packet.size, packet.descriptor_count, &expected,
                                    &read_out));
        assert_memory_equal(&read_out, &sent, sizeof sent);
        for (uint32_t i = 0; i < packet.descriptor_count; i++)
            assert_true((fcntl(packet.descriptors[i], F_GETFD) & FD_CLOEXEC) != 0);
        if (descriptors > 0) {
            char byte = 'b';
            assert_int_equal(write(packet.descriptors[0], &byte, 1), 1);
            byte = 0;
            assert_int_equal(read(pipe_ends[0], &byte, 1), 1);
            assert_int_equal(byte, 'b');
        }
        wire_packet_close(&packet);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
    }
    close(ends[0]);
    assert_int_equal(wire_receive(ends[1], &packet), KVT_E_GONE);
    wire_message done;
    wire_test_message(WIRE_DONE, &done, &(uint32_t){0});
    assert_int_equal(wire_send(ends[1], &done, NULL, 0), KVT_E_GONE);
    close(ends[1]);
    wire_listener_close(&listener);
}

/* Sends bytes with copies of a descriptor, as a peer of no manners does. */
static void send_raw(int socket, const void *bytes, size_t size, int descriptor, uint32_t copies)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
        struct cmsghdr aligned;
    } room = {{0}};
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    if (copies > 0) {
        packet.msg_control = room.bytes;
        packet.msg_controllen = CMSG_SPACE(sizeof(int) * copies);
        struct cmsghdr *head = CMSG_FIRSTHDR(&packet);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * copies);
        for (uint32_t i = 0; i < copies; i++)
            memcpy(CMSG_DATA(head) + i * sizeof(int), &descriptor, sizeof descriptor);
    }
    assert_int_equal(sendmsg(socket, &packet, MSG_NOSIGNAL), size);
}

TEST(nothing_that_comes_leaves_a_descriptor_behind)
{
    wire_listener listener;
    int ends[2];
    wire_packet packet;
    static char bytes[WIRE_MESSAGE_MAX + 64];
    assert_ok(wire_listen(path, 0600, &listener, message, sizeof message));
    connect_pair(&listener, ends);
    const uint32_t before = open_descriptors();
    for (uint32_t copies = 0; copies <= 64; copies++) {
        const size_t sizes[] = {1, 24, WIRE_MESSAGE_MAX, WIRE_MESSAGE_MAX + 1, sizeof bytes};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            send_raw(ends[0], bytes, sizes[i], ends[0], copies);
            const bool fits = copies <= WIRE_DESCRIPTORS_MAX && sizes[i] <= WIRE_MESSAGE_MAX;
            assert_int_equal(wire_receive(ends[1], &packet), fits ? KVT_OK : KVT_E_CORRUPT);
            assert_int_equal(packet.descriptor_count, fits ? copies : 0);
            assert_int_equal(open_descriptors(), before + packet.descriptor_count);
            wire_packet_close(&packet);
        }
    }
    /* A message of no bytes is the end of a connection. */
    send_raw(ends[0], bytes, 0, ends[0], 2);
    assert_int_equal(wire_receive(ends[1], &packet), KVT_E_GONE);
    assert_int_equal(open_descriptors(), before);
    /* What was sent and never received. */
    send_raw(ends[0], bytes, 24, ends[0], 3);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(open_descriptors(), before - 2);
    wire_listener_close(&listener);
}

TEST(a_peer_that_does_not_read_keeps_nobody)
{
    wire_listener listener;
    int ends[2];
    wire_message done;
    uint32_t sent = 0;
    wire_test_message(WIRE_DONE, &done, &(uint32_t){0});
    assert_ok(wire_listen(path, 0600, &listener, message, sizeof message));
    connect_pair(&listener, ends);
    kvt_status status = KVT_OK;
    while (status == KVT_OK && sent < 1000000) {
        status = wire_send(ends[1], &done, NULL, 0);
        sent += status == KVT_OK;
    }
    assert_int_equal(status, KVT_BUSY);
    wire_packet packet;
    for (uint32_t i = 0; i < sent; i++)
        assert_ok(wire_receive(ends[0], &packet));
    assert_int_equal(wire_receive(ends[0], &packet), KVT_END);
    assert_ok(wire_send(ends[1], &done, NULL, 0));
    close(ends[0]);
    close(ends[1]);
    wire_listener_close(&listener);
}
