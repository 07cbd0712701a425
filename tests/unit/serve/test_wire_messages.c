/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_messages.c - a packet is read only when it is a message that may come now, with every
 * member in its range; and a client and a server of different versions agree, or name why not.
 */
#include "wire_support.h"

#include <stdio.h>

#define KINDS (WIRE_RESULT_MEMORY + 1)

static kvt_status read_as(const wire_message *message, size_t size, uint32_t descriptors,
                          wire_expected expected)
{
    /* An exact copy, so that a sanitizer sees a read beyond it. */
    wire_message out;
    void *packet = test_alloc(size);
    memcpy(packet, message, size);
    return wire_message_read(packet, size, descriptors, &expected, &out);
}

TEST(each_kind_is_read_as_it_was_made)
{
    for (uint32_t kind = WIRE_HELLO; kind < KINDS; kind++) {
        wire_message message, out;
        uint32_t descriptors;
        wire_test_message((wire_kind)kind, &message, &descriptors);
        const wire_expected expected = wire_test_expected((wire_kind)kind);
        assert_ok(wire_message_read(&message, message.head.bytes, descriptors, &expected, &out));
        assert_memory_equal(&out, &message, sizeof out);
    }
}

TEST(other_sizes_are_refused_and_later_members_are_zero)
{
    for (uint32_t kind = WIRE_HELLO; kind < KINDS; kind++) {
        union {
            wire_message message;
            uint8_t bytes[WIRE_MESSAGE_MAX + 8];
        } both;
        wire_message message;
        uint32_t descriptors;
        memset(&both, 0, sizeof both);
        wire_test_message((wire_kind)kind, &message, &descriptors);
        memcpy(&both, &message, sizeof message);
        const wire_expected expected = wire_test_expected((wire_kind)kind);
        const uint32_t bytes = message.head.bytes;
        for (uint32_t size = 0; size <= WIRE_MESSAGE_MAX + 8; size += size < 512 ? 1 : 8) {
            wire_message out;
            both.message.head.bytes = size;
            const kvt_status status =
                wire_message_read(both.bytes, size, descriptors, &expected, &out);
            /* Calls and results say themselves how long they are. */
            const bool varies = kind == WIRE_CALL || kind == WIRE_RESULT;
            const bool sound =
                varies ? size == bytes : size >= bytes && size <= WIRE_MESSAGE_MAX && size % 8 == 0;
            assert_int_equal(status, sound ? KVT_OK : KVT_E_CORRUPT);
            if (!sound) continue;
            assert_memory_equal(&out, &message, sizeof out);
            if (size == bytes) continue;
            both.bytes[size - 1] = 1;
            assert_int_equal(wire_message_read(both.bytes, size, descriptors, &expected, &out),
                             KVT_E_CORRUPT);
            both.bytes[size - 1] = 0;
        }
        both.message.head.bytes = bytes;
        assert_int_equal(read_as(&both.message, bytes + 8, descriptors, expected), KVT_E_CORRUPT);
    }
}

TEST(what_may_not_come_now_is_refused)
{
    for (uint32_t kind = WIRE_HELLO; kind < KINDS; kind++) {
        wire_message message;
        uint32_t descriptors;
        wire_test_message((wire_kind)kind, &message, &descriptors);
        const wire_expected expected = wire_test_expected((wire_kind)kind);
        wire_expected other = expected;
        other.from = expected.from == WIRE_FROM_CLIENT ? WIRE_FROM_SERVER : WIRE_FROM_CLIENT;
        const uint32_t bytes = message.head.bytes;
        assert_int_equal(read_as(&message, bytes, descriptors, other), KVT_E_CORRUPT);
        for (uint32_t count = 0; count <= WIRE_DESCRIPTORS_MAX; count++)
            assert_int_equal(read_as(&message, bytes, count, expected),
                             count == descriptors ? KVT_OK : KVT_E_CORRUPT);
        /* Before they have agreed, and after it. */
        const bool opens = kind == WIRE_HELLO || kind == WIRE_REFUSED;
        other = (wire_expected){expected.from, 0, 0};
        assert_int_equal(read_as(&message, bytes, descriptors, other),
                         opens ? KVT_OK : KVT_E_CORRUPT);
        other = (wire_expected){expected.from, 2, 2};
        assert_int_equal(read_as(&message, bytes, descriptors, other),
                         opens ? KVT_E_CORRUPT : KVT_OK);
        other = (wire_expected){expected.from, 3, 3};
        assert_int_equal(read_as(&message, bytes, descriptors, other), KVT_E_CORRUPT);
    }
    for (uint32_t kind = 0; kind < 300; kind++) {
        wire_message message;
        uint32_t descriptors;
        wire_test_message(WIRE_DONE, &message, &descriptors);
        message.head.kind = (uint16_t)(kind < KINDS && kind > 0 ? 65535 - kind : kind);
        const wire_expected expected = {WIRE_FROM_SERVER, 0, 3};
        assert_int_equal(read_as(&message, message.head.bytes, 0, expected), KVT_E_CORRUPT);
    }
}

/* A member of a message set to a value that it cannot have. */
typedef struct wrong_member {
    wire_kind kind;
    uint32_t offset, bytes;
    uint64_t value;
} wrong_member;

#define MEMBER(type, member) offsetof(type, member), sizeof(((type *)NULL)->member)

static const wrong_member wrong_members[] = {
    {WIRE_DONE, MEMBER(wire_head, magic), 0},
    {WIRE_DONE, MEMBER(wire_head, number), 0},
    {WIRE_DONE, MEMBER(wire_head, zero), 1},
    {WIRE_DONE, MEMBER(wire_head, protocol), 4},
    {WIRE_DONE, MEMBER(wire_head, protocol), 0},
    {WIRE_DONE, MEMBER(wire_head, status), 100},
    {WIRE_DONE, MEMBER(wire_head, status), (uint32_t)-100},
    {WIRE_LEAVING, MEMBER(wire_head, number), 1},
    {WIRE_LEAVING, MEMBER(wire_one, zero), 1},
    {WIRE_EVENTS_WAIT, MEMBER(wire_head, number), 1},
    {WIRE_EVENTS_WAIT, MEMBER(wire_head, status), 1},
    {WIRE_RELEASE, MEMBER(wire_head, status), 1},
    {WIRE_REGION, MEMBER(wire_head, status), 1},
    {WIRE_HELLO, MEMBER(wire_head, protocol), 1},
    {WIRE_HELLO, MEMBER(wire_head, status), 1},
    {WIRE_HELLO, MEMBER(wire_hello, protocol_least), 0},
    {WIRE_HELLO, MEMBER(wire_hello, protocol_least), 4},
    {WIRE_HELLO, MEMBER(wire_hello, protocol_most), 0},
    {WIRE_HELLO, MEMBER(wire_hello, zero), 1},
    {WIRE_HELLO, offsetof(wire_hello, name), 1, '\n'},
    {WIRE_HELLO, offsetof(wire_hello, name) + 63, 1, 'x'},
    {WIRE_HELLO, offsetof(wire_hello, sizes) + 60, 4, WIRE_SIZE_MAX + 4},
    {WIRE_HELLO, offsetof(wire_hello, sizes), 4, 123},
    {WIRE_WELCOME, MEMBER(wire_welcome, protocol), 1},
    {WIRE_WELCOME, MEMBER(wire_head, status), 1},
    {WIRE_WELCOME, MEMBER(wire_welcome, instance), 0},
    {WIRE_WELCOME, MEMBER(wire_welcome, registered_bytes), 1},
    {WIRE_WELCOME, MEMBER(wire_welcome, staging_bytes), WIRE_MEMORY_MAX + 4096},
    {WIRE_WELCOME, MEMBER(wire_welcome, depth), 3},
    {WIRE_WELCOME, MEMBER(wire_welcome, channels), 0},
    {WIRE_WELCOME, MEMBER(wire_welcome, argument_bytes), 100},
    {WIRE_WELCOME, MEMBER(wire_welcome, zero), 1},
    {WIRE_WELCOME, offsetof(wire_welcome, sizes), 4, 3},
    {WIRE_REFUSED, MEMBER(wire_head, status), 0},
    {WIRE_REFUSED, MEMBER(wire_refused, protocol_least), 9},
    {WIRE_REFUSED, offsetof(wire_refused, text) + 2, 1, 0x80},
    {WIRE_REFUSED, offsetof(wire_refused, text) + 9, 1, 'x'},
    {WIRE_OPEN_CHANNEL, MEMBER(wire_open_channel, entries), 0},
    {WIRE_OPEN_CHANNEL, MEMBER(wire_open_channel, entries), UINT32_MAX},
    {WIRE_OPEN_CHANNEL, MEMBER(wire_open_channel, zero), 1},
    {WIRE_OPEN_CHANNEL, MEMBER(wire_open_channel, argument_bytes), UINT64_MAX - 4095},
    {WIRE_OPEN_CHANNEL, MEMBER(wire_open_channel, staging_bytes), 100},
    {WIRE_CHANNEL, MEMBER(wire_head, status), 1},
    {WIRE_CHANNEL, MEMBER(wire_channel, entries), 32},
    {WIRE_CHANNEL, MEMBER(wire_channel, submissions), 32},
    {WIRE_CHANNEL, MEMBER(wire_channel, submissions), 64},
    {WIRE_CHANNEL, MEMBER(wire_channel, submissions), UINT64_MAX - 63},
    {WIRE_CHANNEL, MEMBER(wire_channel, completions), 1216},
    {WIRE_CHANNEL, MEMBER(wire_channel, completions), 2880},
    {WIRE_CHANNEL, MEMBER(wire_channel, arguments), 0},
    {WIRE_CHANNEL, MEMBER(wire_channel, argument_bytes), 12288},
    {WIRE_CHANNEL, MEMBER(wire_channel, argument_bytes), 4095},
    {WIRE_CHANNEL, MEMBER(wire_channel, staging), 8192},
    {WIRE_CHANNEL, MEMBER(wire_channel, staging), 12289},
    {WIRE_CHANNEL, MEMBER(wire_channel, staging_bytes), 8192},
    {WIRE_CHANNEL, MEMBER(wire_channel, area_bytes), 12288},
    {WIRE_CHANNEL, MEMBER(wire_channel, area_bytes), WIRE_MEMORY_MAX * 2},
    {WIRE_REGISTER, MEMBER(wire_register, offset), 1},
    {WIRE_REGISTER, MEMBER(wire_register, offset), WIRE_MEMORY_MAX},
    {WIRE_REGISTER, MEMBER(wire_register, bytes), 0},
    {WIRE_REGISTER, MEMBER(wire_register, bytes), 4097},
    {WIRE_REGISTER, MEMBER(wire_register, bytes), UINT64_MAX - 4095},
    {WIRE_REGISTER, MEMBER(wire_register, flags), 1},
    {WIRE_REGISTER, MEMBER(wire_register, zero), 1},
    {WIRE_CALL, MEMBER(wire_head, status), 1},
    {WIRE_CALL, MEMBER(wire_call, bytes), 17},
    {WIRE_CALL, MEMBER(wire_call, bytes), 8},
    {WIRE_CALL, MEMBER(wire_call, bytes), UINT32_MAX},
    {WIRE_RESULT, MEMBER(wire_head, status), (uint32_t)-100},
    {WIRE_RESULT, MEMBER(wire_result, bytes), 9},
    {WIRE_RESULT, MEMBER(wire_result, bytes), 0},
    {WIRE_RESULT, offsetof(wire_result, result) + 7, 1, 1},
    {WIRE_RESULT_MEMORY, MEMBER(wire_head, status), 100},
    {WIRE_RESULT_MEMORY, MEMBER(wire_result, bytes), 0},
};

TEST(a_member_out_of_its_range_is_refused)
{
    for (size_t i = 0; i < sizeof wrong_members / sizeof *wrong_members; i++) {
        const wrong_member *wrong = &wrong_members[i];
        wire_message message;
        uint32_t descriptors;
        wire_test_message(wrong->kind, &message, &descriptors);
        const wire_expected expected = wire_test_expected(wrong->kind);
        assert_ok(read_as(&message, message.head.bytes, descriptors, expected));
        const uint32_t bytes = message.head.bytes;
        memcpy((char *)&message + wrong->offset, &wrong->value, wrong->bytes);
        if (read_as(&message, bytes, descriptors, expected) != KVT_E_CORRUPT)
            fail_msg("row %zu: kind %d, offset %u was taken", i, (int)wrong->kind, wrong->offset);
    }
}

/* ---- versions ---- */

/* Client's hello and server's answer, each read as the other side reads it. */
static kvt_status agree(const wire_speaks *client, const wire_speaks *server, uint64_t sent_ns,
                        uint64_t came_ns, wire_message *answer)
{
    wire_message hello, heard, made;
    const wire_welcome limits = wire_test_limits();
    const wire_expected to_server = {WIRE_FROM_CLIENT, 0, 0};
    const wire_expected to_client = {WIRE_FROM_SERVER, 0, client->protocol_most};
    wire_hello_make(&hello, client, "an engine", sent_ns);
    assert_ok(wire_message_read(&hello, hello.head.bytes, 0, &to_server, &heard));
    const kvt_status status = wire_answer_hello(&heard.hello, server, &limits, came_ns, &made);
    assert_ok(wire_message_read(&made, made.head.bytes, 0, &to_client, answer));
    assert_int_equal(answer->head.kind, status == KVT_OK ? WIRE_WELCOME : WIRE_REFUSED);
    assert_int_equal(answer->head.status, status);
    if (status == KVT_OK)
        assert_ok(wire_check_welcome(&answer->welcome, &hello.hello, client, NULL));
    return status;
}

TEST(the_largest_protocol_of_both_is_spoken)
{
    for (uint32_t least = 1; least <= 4; least++) {
        for (uint32_t most = least; most <= 5; most++) {
            wire_speaks client = wire_test_speaks, server = wire_test_speaks;
            wire_message answer;
            client.protocol_least = least;
            client.protocol_most = most;
            server.protocol_least = 2;
            const kvt_status status = agree(&client, &server, 0, 0, &answer);
            if (most < 2 || least > 3) {
                char text[100];
                assert_int_equal(status, KVT_E_VERSION);
                snprintf(text, sizeof text,
                         "the client speaks the protocols %u to %u, the server 2 to 3", least,
                         most);
                assert_string_equal(answer.refused.text, text);
                assert_int_equal(answer.refused.protocol_least, 2);
                assert_int_equal(answer.refused.protocol_most, 3);
            } else {
                assert_ok(status);
                assert_int_equal(answer.welcome.protocol, most < 3 ? most : 3);
                assert_int_equal(answer.welcome.sizes[0], 160);
                assert_int_equal(answer.welcome.sizes[2], 0);
                assert_int_equal(answer.welcome.depth, 64);
                assert_int_equal(answer.welcome.instance, 99);
            }
        }
    }
}

TEST(structures_of_other_versions_are_served_or_named)
{
    /* The older client knows no entry and a shorter view; the newer one has a third structure. */
    const wire_struct older[] = {{"view", 120, 120}};
    const wire_struct newer[] = {{"view", 200, 120}, {"entry", 112, 112}, {"load", 64, 64}};
    const wire_struct planted[] = {{"view", 160, 120}, {"entry", 104, 104}};
    wire_speaks client = wire_test_speaks;
    wire_message answer;
    client.structs = older;
    client.struct_count = 1;
    assert_ok(agree(&client, &wire_test_speaks, 0, 0, &answer));
    client.structs = newer;
    client.struct_count = 3;
    assert_ok(agree(&client, &wire_test_speaks, 0, 0, &answer));
    client.structs = planted;
    client.struct_count = 2;
    assert_int_equal(agree(&client, &wire_test_speaks, 0, 0, &answer), KVT_E_VERSION);
    assert_string_equal(answer.refused.text,
                        "the client's entry has 104 bytes; the protocol has 112 at least");
    /* And a server's structure that is older than the client can speak. */
    wire_message hello;
    const char *lacks = NULL;
    wire_test_message(WIRE_WELCOME, &answer, &(uint32_t){0});
    wire_hello_make(&hello, &wire_test_speaks, "", 0);
    answer.head.number = hello.head.number;
    answer.welcome.sizes[0] = 116;
    assert_int_equal(wire_check_welcome(&answer.welcome, &hello.hello, &wire_test_speaks, &lacks),
                     KVT_E_VERSION);
    assert_string_equal(lacks, "view");
    answer.welcome.protocol = 4;
    assert_int_equal(wire_check_welcome(&answer.welcome, &hello.hello, &wire_test_speaks, &lacks),
                     KVT_E_CORRUPT);
    answer.welcome.protocol = 2;
    answer.head.number++;
    assert_int_equal(wire_check_welcome(&answer.welcome, &hello.hello, &wire_test_speaks, &lacks),
                     KVT_E_CORRUPT);
}

TEST(clocks_that_differ_are_named)
{
    wire_message answer;
    const uint64_t now = 100 * SECOND;
    assert_ok(agree(&wire_test_speaks, &wire_test_speaks, now, now, &answer));
    assert_ok(agree(&wire_test_speaks, &wire_test_speaks, now - WIRE_CLOCK_LATE_NS, now, &answer));
    assert_int_equal(
        agree(&wire_test_speaks, &wire_test_speaks, now - WIRE_CLOCK_LATE_NS - 1, now, &answer),
        KVT_E_MISMATCH);
    assert_non_null(strstr(answer.refused.text, "10.000 s behind"));
    assert_int_equal(agree(&wire_test_speaks, &wire_test_speaks, now + SECOND, now, &answer),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(answer.refused.text, "1.000 s ahead of"));
    assert_int_equal(agree(&wire_test_speaks, &wire_test_speaks, UINT64_MAX, 0, &answer),
                     KVT_E_MISMATCH);
}

TEST(names_are_cut_and_made_printable)
{
    wire_message hello, heard;
    char name[200];
    const wire_expected expected = {WIRE_FROM_CLIENT, 0, 0};
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    name[3] = '\n';
    name[4] = (char)0xc3;
    wire_hello_make(&hello, &wire_test_speaks, name, 0);
    assert_ok(wire_message_read(&hello, hello.head.bytes, 0, &expected, &heard));
    assert_int_equal(strlen(heard.hello.name), 63);
    assert_memory_equal(heard.hello.name, "nnn??nnn", 8);
}
