/* SPDX-License-Identifier: Apache-2.0 */
/*
 * messages.h - the messages between a client and the server, each one packet of a local socket, to
 * the byte; how one is read from bytes that nobody vouches for, and how two versions agree
 * (docs/SERVE.md, The socket).
 *
 *     wire_message message;
 *     wire_message_make(&message, WIRE_REGISTER, protocol, number);
 *     message.registers.bytes = bytes;
 *     ... send message.head.bytes bytes of it ...
 *
 *     const wire_expected expected = {WIRE_FROM_CLIENT, protocol, protocol};
 *     kvt_status status = wire_message_read(packet, size, descriptor_count, &expected, &message);
 *
 * Later versions add members at the end of a message. Thread rule: any thread; nothing here
 * allocates or calls the system.
 */
#ifndef SERVE_WIRE_MESSAGES_H
#define SERVE_WIRE_MESSAGES_H

#include <kvterrace/status.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC           UINT32_C(0x5354564b) /* "KVTS" */
#define WIRE_MESSAGE_MAX     4096u                /* bytes */
#define WIRE_DESCRIPTORS_MAX 3u
#define WIRE_SIZES           16u /* places for sizes of structures */
#define WIRE_SIZE_MAX        65536u
#define WIRE_MEMORY_MAX      (UINT64_C(1) << 46) /* bytes of an area or a region */
#define WIRE_PAGE            4096u
#define WIRE_CLOCK_LATE_NS   UINT64_C(10000000000) /* a hello is no older than this */

typedef enum wire_kind {
    WIRE_HELLO = 1,
    WIRE_WELCOME = 2,
    WIRE_REFUSED = 3,
    WIRE_OPEN_CHANNEL = 4,
    WIRE_CHANNEL = 5,
    WIRE_CLOSE_CHANNEL = 6,
    WIRE_REGISTER = 7,
    WIRE_REGION = 8,
    WIRE_RELEASE = 9,
    WIRE_DONE = 10,
    WIRE_LEAVING = 11,
    WIRE_CALL = 12,
    WIRE_RESULT = 13,
    WIRE_RESULT_MEMORY = 14,
    WIRE_EVENTS_WAIT = 15
} wire_kind;

typedef enum wire_side { WIRE_FROM_CLIENT = 1, WIRE_FROM_SERVER = 2 } wire_side;

typedef struct wire_head {
    uint32_t magic;
    uint16_t kind;     /* wire_kind */
    uint16_t protocol; /* that is spoken; 0 in hello and refused */
    uint32_t bytes;    /* of the message */
    uint32_t number;   /* of the question, in its answer, too; 0: nobody asked */
    int32_t status;    /* kvt_status of an answer */
    uint32_t zero;
} wire_head;

typedef struct wire_hello {
    wire_head head;
    uint32_t protocol_least, protocol_most; /* that the client speaks */
    uint32_t library;                       /* major << 16 | minor << 8 | patch */
    uint32_t zero;
    uint64_t clock_ns; /* CLOCK_MONOTONIC when it was sent */
    char name[64];     /* for the server's log */
    uint32_t sizes[WIRE_SIZES];
} wire_hello;

typedef struct wire_welcome {
    wire_head head;
    uint32_t protocol;
    uint32_t library;
    uint64_t instance;         /* of this start of the server; not 0 */
    uint64_t registered_bytes; /* that a client may have, together */
    uint64_t staging_bytes;    /* the same */
    uint32_t depth;            /* entries of a ring, at most */
    uint32_t channels;         /* at most */
    uint32_t argument_bytes;   /* of a request's record, at most */
    uint32_t zero;
    uint32_t sizes[WIRE_SIZES];
} wire_welcome;

typedef struct wire_refused {
    wire_head head;
    uint32_t protocol_least, protocol_most; /* that the server speaks */
    char text[192];
} wire_refused;

typedef struct wire_open_channel {
    wire_head head;
    uint32_t entries; /* of each ring */
    uint32_t zero;
    uint64_t argument_bytes; /* for records of all requests */
    uint64_t staging_bytes;
} wire_open_channel;

/* Descriptors: the area, the server's bell, the client's bell. Places are from the area's begin. */
typedef struct wire_channel {
    wire_head head;
    uint32_t channel;
    uint32_t entries;
    uint64_t submissions, completions;  /* rings: multiples of 64 */
    uint64_t arguments, argument_bytes; /* pages */
    uint64_t staging, staging_bytes;    /* pages */
    uint64_t area_bytes;                /* pages */
} wire_channel;

/* Close channel, region, release, leaving. */
typedef struct wire_one {
    wire_head head;
    uint32_t value; /* channel, region, or milliseconds until the server stops */
    uint32_t zero;
} wire_one;

/* Descriptor: the memory. */
typedef struct wire_register {
    wire_head head;
    uint64_t offset, bytes; /* pages of it */
    uint32_t flags;         /* 0 */
    uint32_t zero;
} wire_register;

#define WIRE_CALL_ROOM (WIRE_MESSAGE_MAX - 32)

/* A call on the store (control.h). The message ends with the argument, filled up with zeros to a
 * multiple of 8. */
typedef struct wire_call {
    wire_head head;
    uint32_t call;  /* wire_call_number */
    uint32_t bytes; /* of the argument */
    uint64_t argument[WIRE_CALL_ROOM / 8];
} wire_call;

/* Its answer, with the call's status in the head. Of the result in memory the message says how
 * large it is, and ends there. Descriptor: the memory, which is the session's: its content stays
 * until the next call. */
typedef struct wire_result {
    wire_head head;
    uint32_t call;  /* that was asked */
    uint32_t bytes; /* of the result */
    uint64_t result[WIRE_CALL_ROOM / 8];
} wire_result;

typedef union wire_message {
    wire_head head;
    wire_hello hello;
    wire_welcome welcome;
    wire_refused refused;
    wire_open_channel open;
    wire_channel channel;
    wire_one one;
    wire_register registers;
    wire_call call;
    wire_result result;
} wire_message;

_Static_assert(sizeof(wire_head) == 24, "head");
_Static_assert(sizeof(wire_hello) == 176 && offsetof(wire_hello, sizes) == 112, "hello");
_Static_assert(sizeof(wire_welcome) == 136 && offsetof(wire_welcome, sizes) == 72, "welcome");
_Static_assert(sizeof(wire_refused) == 224, "refused");
_Static_assert(sizeof(wire_open_channel) == 48, "open channel");
_Static_assert(sizeof(wire_channel) == 88 && offsetof(wire_channel, area_bytes) == 80, "channel");
_Static_assert(sizeof(wire_one) == 32, "one number");
_Static_assert(sizeof(wire_register) == 48, "register");
_Static_assert(sizeof(wire_call) == WIRE_MESSAGE_MAX && offsetof(wire_call, argument) == 32,
               "call");
_Static_assert(sizeof(wire_result) == WIRE_MESSAGE_MAX && offsetof(wire_result, result) == 32,
               "result");

/* Zeroes a message and fills its head. number is 0 for what is told unasked: WIRE_LEAVING and
 * WIRE_EVENTS_WAIT. */
void wire_message_make(wire_message *message, wire_kind kind, uint32_t protocol, uint32_t number);

/* Which messages may come now: from this side, speaking a protocol of these. Before they have
 * agreed, 0 to 0 for the server and 0 to the largest that it speaks for the client. */
typedef struct wire_expected {
    wire_side from;
    uint32_t protocol_least, protocol_most;
} wire_expected;

/*
 * Reads a packet. Members that it is too short for are zero, and what it has beyond the members
 * that are known here is.
 *   descriptors   that came with it
 * KVT_OK: every member is in its range; KVT_E_CORRUPT: it is none of those that may come.
 */
KVT_NODISCARD kvt_status wire_message_read(const void *packet, size_t size, uint32_t descriptors,
                                           const wire_expected *expected,
                                           wire_message *message_out);

/* A structure whose size the two sides tell each other. Its place in `sizes` is its place in a
 * table that only grows. */
typedef struct wire_struct {
    const char *name;
    uint32_t bytes; /* here */
    uint32_t least; /* in the first version of the protocol */
} wire_struct;

/* What this side speaks. */
typedef struct wire_speaks {
    uint32_t protocol_least, protocol_most;
    uint32_t library;
    const wire_struct *structs;
    uint32_t struct_count; /* at most WIRE_SIZES */
} wire_speaks;

/*
 * Makes a hello.
 *   name     cut where it is longer than 63 bytes; other than printable characters become '?'
 *   now_ns   CLOCK_MONOTONIC
 */
void wire_hello_make(wire_message *message, const wire_speaks *speaks, const char *name,
                     uint64_t now_ns);

/*
 * The server's answer to a hello that was read.
 *   limits   its members from `instance` to `argument_bytes` are told to the client
 *   now_ns   CLOCK_MONOTONIC, when the hello had come
 *   answer   a welcome with KVT_OK, else a refused that says why
 * KVT_OK; KVT_E_VERSION (no protocol in common; a structure older than the first version's);
 * KVT_E_MISMATCH (the clocks differ).
 */
KVT_NODISCARD kvt_status wire_answer_hello(const wire_hello *hello, const wire_speaks *speaks,
                                           const wire_welcome *limits, uint64_t now_ns,
                                           wire_message *answer);

/* Whether a welcome that was read answers this hello: KVT_OK; KVT_E_CORRUPT (a protocol that was
 * not offered, another number); KVT_E_VERSION (a structure of the server is older than the first
 * version's; its name goes to *lacks_out, which may be NULL). */
KVT_NODISCARD kvt_status wire_check_welcome(const wire_welcome *welcome, const wire_hello *hello,
                                            const wire_speaks *speaks, const char **lacks_out);

#endif
