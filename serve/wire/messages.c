/* SPDX-License-Identifier: Apache-2.0 */
/*
 * messages.c - reads messages: one table of kinds, and a check of each member's range.
 */
#include "serve/wire/messages.h"

#include "base/ring_words.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct message_kind {
    uint32_t bytes; /* of the first version, and of this one */
    uint8_t from;   /* wire_side */
    uint8_t descriptors;
    bool opens;   /* before a protocol is spoken */
    bool answers; /* a question of the other side */
    bool varies;  /* it ends with as much as it says */
    bool (*is_sound)(const wire_message *message);
} message_kind;

static bool is_text(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && text[i] >= ' ' && text[i] <= '~')
        i++;
    if (i == bytes) return false;
    while (i < bytes && text[i] == '\0')
        i++;
    return i == bytes;
}

static bool are_sizes(const uint32_t *sizes)
{
    for (uint32_t i = 0; i < WIRE_SIZES; i++)
        if (sizes[i] > WIRE_SIZE_MAX || sizes[i] % 4 != 0) return false;
    return true;
}

/* Whole pages, at most WIRE_MEMORY_MAX. */
static bool are_pages(uint64_t bytes)
{
    return bytes % WIRE_PAGE == 0 && bytes <= WIRE_MEMORY_MAX;
}

static bool hello_is_sound(const wire_message *message)
{
    const wire_hello *hello = &message->hello;
    return hello->protocol_least >= 1 && hello->protocol_least <= hello->protocol_most &&
           hello->zero == 0 && is_text(hello->name, sizeof hello->name) && are_sizes(hello->sizes);
}

static bool welcome_is_sound(const wire_message *message)
{
    const wire_welcome *welcome = &message->welcome;
    return welcome->protocol == welcome->head.protocol && welcome->head.status == KVT_OK &&
           welcome->instance != 0 && welcome->zero == 0 && base_ring_is_size(welcome->depth) &&
           welcome->channels >= 1 && are_pages(welcome->registered_bytes) &&
           are_pages(welcome->staging_bytes) && are_pages(welcome->argument_bytes) &&
           are_sizes(welcome->sizes);
}

static bool refused_is_sound(const wire_message *message)
{
    const wire_refused *refused = &message->refused;
    return refused->head.status < 0 && refused->protocol_least <= refused->protocol_most &&
           is_text(refused->text, sizeof refused->text);
}

static bool open_is_sound(const wire_message *message)
{
    const wire_open_channel *open = &message->open;
    return base_ring_is_size(open->entries) && open->zero == 0 && are_pages(open->argument_bytes) &&
           are_pages(open->staging_bytes);
}

/* The parts of an area in their order, without sharing a byte, all inside. */
static bool channel_is_sound(const wire_message *message)
{
    const wire_channel *channel = &message->channel;
    if (channel->head.status != KVT_OK || !base_ring_is_size(channel->entries)) return false;
    const uint64_t ring = base_ring_bytes(channel->entries);
    const uint64_t parts[][2] = {{channel->submissions, ring},
                                 {channel->completions, ring},
                                 {channel->arguments, channel->argument_bytes},
                                 {channel->staging, channel->staging_bytes}};
    if (channel->submissions % 64 != 0 || channel->completions % 64 != 0) return false;
    if (!are_pages(channel->arguments) || !are_pages(channel->argument_bytes)) return false;
    if (!are_pages(channel->staging) || !are_pages(channel->staging_bytes)) return false;
    if (!are_pages(channel->area_bytes)) return false;
    uint64_t end = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i][0] < end || parts[i][0] > channel->area_bytes) return false;
        if (parts[i][1] > channel->area_bytes - parts[i][0]) return false;
        end = parts[i][0] + parts[i][1];
    }
    return true;
}

static bool one_is_sound(const wire_message *message)
{
    return message->one.zero == 0;
}

static bool region_is_sound(const wire_message *message)
{
    return message->one.zero == 0 && message->head.status == KVT_OK;
}

static bool register_is_sound(const wire_message *message)
{
    const wire_register *registers = &message->registers;
    return are_pages(registers->offset) && are_pages(registers->bytes) && registers->bytes > 0 &&
           registers->offset <= WIRE_MEMORY_MAX - registers->bytes && registers->flags == 0 &&
           registers->zero == 0;
}

static bool done_is_sound(const wire_message *message)
{
    return message->head.status >= -99 && message->head.status <= 99;
}

/* The bytes behind a call's or a result's members, and zeros up to the message's end. */
static bool tail_is_sound(const wire_message *message, const uint64_t *tail, uint32_t bytes)
{
    const uint32_t room = message->head.bytes - (uint32_t)offsetof(wire_call, argument);
    if (bytes > room || room - bytes >= 8) return false;
    for (uint32_t i = bytes; i < room; i++)
        if (((const uint8_t *)tail)[i] != 0) return false;
    return true;
}

static bool call_is_sound(const wire_message *message)
{
    return tail_is_sound(message, message->call.argument, message->call.bytes);
}

static bool result_is_sound(const wire_message *message)
{
    return done_is_sound(message) &&
           tail_is_sound(message, message->result.result, message->result.bytes);
}

static bool result_memory_is_sound(const wire_message *message)
{
    return done_is_sound(message) && message->result.bytes > 0;
}

#define CALL_HEAD offsetof(wire_call, argument)

static const message_kind message_kinds[] = {
    [WIRE_HELLO] = {sizeof(wire_hello), WIRE_FROM_CLIENT, 0, true, false, false, hello_is_sound},
    [WIRE_WELCOME] = {sizeof(wire_welcome), WIRE_FROM_SERVER, 0, false, true, false,
                      welcome_is_sound},
    [WIRE_REFUSED] = {sizeof(wire_refused), WIRE_FROM_SERVER, 0, true, true, false,
                      refused_is_sound},
    [WIRE_OPEN_CHANNEL] = {sizeof(wire_open_channel), WIRE_FROM_CLIENT, 0, false, false, false,
                           open_is_sound},
    [WIRE_CHANNEL] = {sizeof(wire_channel), WIRE_FROM_SERVER, 3, false, true, false,
                      channel_is_sound},
    [WIRE_CLOSE_CHANNEL] = {sizeof(wire_one), WIRE_FROM_CLIENT, 0, false, false, false,
                            one_is_sound},
    [WIRE_REGISTER] = {sizeof(wire_register), WIRE_FROM_CLIENT, 1, false, false, false,
                       register_is_sound},
    [WIRE_REGION] = {sizeof(wire_one), WIRE_FROM_SERVER, 0, false, true, false, region_is_sound},
    [WIRE_RELEASE] = {sizeof(wire_one), WIRE_FROM_CLIENT, 0, false, false, false, one_is_sound},
    [WIRE_DONE] = {sizeof(wire_head), WIRE_FROM_SERVER, 0, false, true, false, done_is_sound},
    [WIRE_LEAVING] = {sizeof(wire_one), WIRE_FROM_SERVER, 0, false, false, false, one_is_sound},
    [WIRE_CALL] = {CALL_HEAD, WIRE_FROM_CLIENT, 0, false, false, true, call_is_sound},
    [WIRE_RESULT] = {CALL_HEAD, WIRE_FROM_SERVER, 0, false, true, true, result_is_sound},
    [WIRE_RESULT_MEMORY] = {CALL_HEAD, WIRE_FROM_SERVER, 1, false, true, false,
                            result_memory_is_sound},
    [WIRE_EVENTS_WAIT] = {sizeof(wire_head), WIRE_FROM_SERVER, 0, false, false, false,
                          done_is_sound},
};

#define MESSAGE_KINDS (sizeof message_kinds / sizeof *message_kinds)

/* A message that no question asks for. */
static bool is_unasked(uint32_t kind)
{
    return kind == WIRE_LEAVING || kind == WIRE_EVENTS_WAIT;
}

void wire_message_make(wire_message *message, wire_kind kind, uint32_t protocol, uint32_t number)
{
    assert(kind >= WIRE_HELLO && kind < MESSAGE_KINDS && protocol <= UINT16_MAX);
    assert((number == 0) == is_unasked(kind));
    memset(message, 0, sizeof *message);
    message->head = (wire_head){.magic = WIRE_MAGIC,
                                .kind = (uint16_t)kind,
                                .protocol = (uint16_t)protocol,
                                .bytes = message_kinds[kind].bytes,
                                .number = number};
}

/* What all heads have in common. */
static bool head_is_sound(const wire_head *head, const wire_expected *expected)
{
    const message_kind *kind = &message_kinds[head->kind];
    if (kind->from != expected->from || head->zero != 0) return false;
    if (head->protocol < expected->protocol_least || head->protocol > expected->protocol_most)
        return false;
    if (kind->opens != (head->protocol == 0)) return false;
    if (!kind->answers && head->status != KVT_OK) return false;
    return (head->number == 0) == is_unasked(head->kind);
}

kvt_status wire_message_read(const void *packet, size_t size, uint32_t descriptors,
                             const wire_expected *expected, wire_message *message_out)
{
    const uint8_t *bytes = packet;
    memset(message_out, 0, sizeof *message_out);
    if (size < sizeof(wire_head) || size > WIRE_MESSAGE_MAX || size % 8 != 0) return KVT_E_CORRUPT;
    wire_head head;
    memcpy(&head, packet, sizeof head);
    if (head.magic != WIRE_MAGIC || head.bytes != size) return KVT_E_CORRUPT;
    if (head.kind < WIRE_HELLO || head.kind >= MESSAGE_KINDS) return KVT_E_CORRUPT;
    const message_kind *kind = &message_kinds[head.kind];
    if (size < kind->bytes || descriptors != kind->descriptors) return KVT_E_CORRUPT;
    const size_t known = kind->varies ? size : kind->bytes;
    for (size_t i = known; i < size; i++)
        if (bytes[i] != 0) return KVT_E_CORRUPT;
    memcpy(message_out, packet, known);
    message_out->head.bytes = (uint32_t)known;
    return head_is_sound(&head, expected) && kind->is_sound(message_out) ? KVT_OK : KVT_E_CORRUPT;
}

/* ---- hello and its answer ---- */

static void sizes_write(uint32_t sizes[WIRE_SIZES], const wire_speaks *speaks)
{
    assert(speaks->struct_count <= WIRE_SIZES);
    for (uint32_t i = 0; i < speaks->struct_count; i++)
        sizes[i] = speaks->structs[i].bytes;
}

/* The first structure that the other side has in a size of no version; NULL: there is none. */
static const wire_struct *sizes_lack(const uint32_t sizes[WIRE_SIZES], const wire_speaks *speaks)
{
    for (uint32_t i = 0; i < speaks->struct_count; i++)
        if (sizes[i] != 0 && sizes[i] < speaks->structs[i].least) return &speaks->structs[i];
    return NULL;
}

void wire_hello_make(wire_message *message, const wire_speaks *speaks, const char *name,
                     uint64_t now_ns)
{
    wire_message_make(message, WIRE_HELLO, 0, 1);
    wire_hello *hello = &message->hello;
    hello->protocol_least = speaks->protocol_least;
    hello->protocol_most = speaks->protocol_most;
    hello->library = speaks->library;
    hello->clock_ns = now_ns;
    for (size_t i = 0; i + 1 < sizeof hello->name && name[i] != '\0'; i++)
        hello->name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    sizes_write(hello->sizes, speaks);
}

/* Begins a refused; the caller writes its text. */
static wire_refused *refuse(wire_message *answer, const wire_hello *hello,
                            const wire_speaks *speaks, kvt_status status)
{
    wire_message_make(answer, WIRE_REFUSED, 0, hello->head.number);
    answer->head.status = status;
    answer->refused.protocol_least = speaks->protocol_least;
    answer->refused.protocol_most = speaks->protocol_most;
    return &answer->refused;
}

kvt_status wire_answer_hello(const wire_hello *hello, const wire_speaks *speaks,
                             const wire_welcome *limits, uint64_t now_ns, wire_message *answer)
{
    const wire_struct *lacks = sizes_lack(hello->sizes, speaks);
    const uint32_t protocol =
        hello->protocol_most < speaks->protocol_most ? hello->protocol_most : speaks->protocol_most;
    if (protocol < hello->protocol_least || protocol < speaks->protocol_least) {
        wire_refused *refused = refuse(answer, hello, speaks, KVT_E_VERSION);
        snprintf(refused->text, sizeof refused->text,
                 "the client speaks the protocols %u to %u, the server %u to %u",
                 hello->protocol_least, hello->protocol_most, speaks->protocol_least,
                 speaks->protocol_most);
        return KVT_E_VERSION;
    }
    if (lacks != NULL) {
        wire_refused *refused = refuse(answer, hello, speaks, KVT_E_VERSION);
        snprintf(refused->text, sizeof refused->text,
                 "the client's %s has %u bytes; the protocol has %u at least", lacks->name,
                 hello->sizes[lacks - speaks->structs], lacks->least);
        return KVT_E_VERSION;
    }
    const bool ahead = hello->clock_ns > now_ns;
    if (ahead || now_ns - hello->clock_ns > WIRE_CLOCK_LATE_NS) {
        wire_refused *refused = refuse(answer, hello, speaks, KVT_E_MISMATCH);
        const uint64_t off = ahead ? hello->clock_ns - now_ns : now_ns - hello->clock_ns;
        snprintf(refused->text, sizeof refused->text,
                 "the client's monotonic clock is %.3f s %s the server's (a container with a time "
                 "namespace?)",
                 (double)off / 1e9, ahead ? "ahead of" : "behind");
        return KVT_E_MISMATCH;
    }
    wire_message_make(answer, WIRE_WELCOME, protocol, hello->head.number);
    const wire_head head = answer->head;
    answer->welcome = *limits;
    answer->welcome.head = head;
    answer->welcome.protocol = protocol;
    answer->welcome.library = speaks->library;
    memset(answer->welcome.sizes, 0, sizeof answer->welcome.sizes);
    sizes_write(answer->welcome.sizes, speaks);
    return KVT_OK;
}

kvt_status wire_check_welcome(const wire_welcome *welcome, const wire_hello *hello,
                              const wire_speaks *speaks, const char **lacks_out)
{
    if (lacks_out != NULL) *lacks_out = NULL;
    if (welcome->head.number != hello->head.number) return KVT_E_CORRUPT;
    if (welcome->protocol < hello->protocol_least || welcome->protocol > hello->protocol_most)
        return KVT_E_CORRUPT;
    const wire_struct *lacks = sizes_lack(welcome->sizes, speaks);
    if (lacks == NULL) return KVT_OK;
    if (lacks_out != NULL) *lacks_out = lacks->name;
    return KVT_E_VERSION;
}
