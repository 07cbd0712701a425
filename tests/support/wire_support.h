/* SPDX-License-Identifier: Apache-2.0 */
/* wire_support.h - a sound message of each kind, and what two versions speak. */
#ifndef KVT_TESTS_SUPPORT_WIRE_SUPPORT_H
#define KVT_TESTS_SUPPORT_WIRE_SUPPORT_H

#include "cases.h"

#include "serve/wire/control.h"
#include "serve/wire/messages.h"

#include <stdbool.h>

#define SECOND UINT64_C(1000000000)

static const wire_struct wire_test_structs[] = {{"view", 160, 120}, {"entry", 112, 112}};

static const wire_speaks wire_test_speaks = {.protocol_least = 1,
                                             .protocol_most = 3,
                                             .library = 0x000200,
                                             .structs = wire_test_structs,
                                             .struct_count = 2};

static inline wire_welcome wire_test_limits(void)
{
    return (wire_welcome){.instance = 99,
                          .registered_bytes = UINT64_C(1) << 30,
                          .staging_bytes = 1 << 20,
                          .depth = 64,
                          .channels = 4,
                          .argument_bytes = 65536};
}

/* A sound message; the number of descriptors that belong to it in *descriptors_out. */
static inline void wire_test_message(wire_kind kind, wire_message *message,
                                     uint32_t *descriptors_out)
{
    const uint32_t protocol = kind == WIRE_HELLO || kind == WIRE_REFUSED ? 0 : 2;
    const bool memory = kind == WIRE_REGISTER || kind == WIRE_RESULT_MEMORY;
    const bool unasked = kind == WIRE_LEAVING || kind == WIRE_EVENTS_WAIT;
    *descriptors_out = kind == WIRE_CHANNEL ? 3 : memory ? 1 : 0;
    wire_message_make(message, kind, protocol, unasked ? 0 : 7);
    switch (kind) {
    case WIRE_HELLO: wire_hello_make(message, &wire_test_speaks, "an engine", 5 * SECOND); break;
    case WIRE_WELCOME: {
        const wire_head head = message->head;
        message->welcome = wire_test_limits();
        message->head = head;
        message->welcome.protocol = 2;
        break;
    }
    case WIRE_REFUSED:
        message->head.status = KVT_E_VERSION;
        memcpy(message->refused.text, "no", 2);
        break;
    case WIRE_OPEN_CHANNEL:
        message->open.entries = 16;
        message->open.argument_bytes = 8192;
        message->open.staging_bytes = 4096;
        break;
    case WIRE_CHANNEL:
        message->channel.channel = 1;
        message->channel.entries = 16;
        message->channel.completions = 1280;
        message->channel.arguments = 4096;
        message->channel.argument_bytes = 8192;
        message->channel.staging = 12288;
        message->channel.staging_bytes = 4096;
        message->channel.area_bytes = 16384;
        break;
    case WIRE_REGISTER:
        message->registers.offset = 4096;
        message->registers.bytes = 8192;
        break;
    case WIRE_CLOSE_CHANNEL:
    case WIRE_REGION:
    case WIRE_RELEASE:
    case WIRE_LEAVING: message->one.value = 3; break;
    case WIRE_EVENTS_WAIT: break;
    case WIRE_DONE: message->head.status = KVT_E_SPACE; break;
    case WIRE_CALL: {
        const wire_index_argument argument = {.at = {sizeof argument, 400}, .index = 2};
        wire_call_make(message, WIRE_CALL_DEVICE_STATS, protocol, 7, &argument);
        break;
    }
    case WIRE_RESULT:
        wire_result_make(message, WIRE_CALL_METRICS, protocol, 7, KVT_OK, "a text", 7);
        break;
    case WIRE_RESULT_MEMORY:
        wire_result_make(message, WIRE_CALL_METRICS, protocol, 7, KVT_OK, NULL, 100000);
        break;
    }
}

static inline wire_expected wire_test_expected(wire_kind kind)
{
    const bool server = kind == WIRE_WELCOME || kind == WIRE_REFUSED || kind == WIRE_CHANNEL ||
                        kind == WIRE_REGION || kind == WIRE_DONE || kind == WIRE_LEAVING ||
                        kind == WIRE_RESULT || kind == WIRE_RESULT_MEMORY ||
                        kind == WIRE_EVENTS_WAIT;
    return (wire_expected){server ? WIRE_FROM_SERVER : WIRE_FROM_CLIENT, 0, 3};
}

#endif
