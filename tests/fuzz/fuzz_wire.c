/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_wire.c - any bytes as a packet, the argument and the result of a call, a request and a
 * completion: a value or a status. What is read is written as it was, a hello's answer is one that
 * its client can read, and what passes lies inside of its area.
 *
 * The first byte of the input says who has sent the packet, how many descriptors came with it, and
 * how far the two sides have agreed.
 */
#include "base/ring_words.h"
#include "serve/wire/channel_entries.h"
#include "serve/wire/control.h"
#include "serve/wire/messages.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const wire_struct structs[] = {{"view", 160, 120}, {"entry", 112, 112}};
static const wire_speaks speaks = {1, 3, 0x000200, structs, 2};

static void answer(const wire_hello *hello, uint64_t now_ns)
{
    const wire_welcome limits = {
        .instance = 1, .depth = 64, .channels = 1, .argument_bytes = 4096, .staging_bytes = 4096};
    wire_message made, heard;
    const kvt_status status = wire_answer_hello(hello, &speaks, &limits, now_ns, &made);
    const wire_expected expected = {WIRE_FROM_SERVER, 0, 3};
    if (wire_message_read(&made, made.head.bytes, 0, &expected, &heard) != KVT_OK) abort();
    if (heard.head.status != status || heard.head.number != hello->head.number) abort();
    if (status != KVT_OK) return;
    if (heard.welcome.protocol < hello->protocol_least ||
        heard.welcome.protocol > hello->protocol_most)
        abort();
    if (wire_check_welcome(&heard.welcome, hello, &speaks, NULL) != KVT_OK) abort();
}

static void check_channel(const wire_channel *channel)
{
    const uint64_t ring = base_ring_bytes(channel->entries);
    if (channel->completions - channel->submissions < ring) abort();
    if (channel->completions + ring > channel->arguments) abort();
    if (channel->arguments + channel->argument_bytes > channel->staging) abort();
    if (channel->staging + channel->staging_bytes > channel->area_bytes) abort();
}

/* A result as the one of each call, of this library's size and of a shorter one. */
static void read_result(const wire_result *result)
{
    for (uint32_t call = 1; call < WIRE_CALL_END; call++)
        for (uint32_t asked = 8; asked <= 400; asked += 392) {
            const bool asks = wire_call_kinds[call].item == WIRE_ITEM_ASKED;
            const wire_argument_head at = {8, asks ? asked : 0};
            wire_result of = *result;
            size_t count;
            of.call = call;
            const kvt_status status =
                wire_result_check(&of, (wire_call_number)call, &at, of.result, &count);
            if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
            if (status == KVT_OK && count > of.bytes) abort();
        }
}

static void read_call(const wire_call *call)
{
    wire_argument argument;
    const kvt_status status = wire_call_read(call, &argument);
    if (status != KVT_OK && status != KVT_E_ARGUMENT && status != KVT_E_UNSUPPORTED) abort();
    if (status == KVT_OK && argument.at.struct_size != call->bytes) abort();
}

static void read_packet(uint8_t how, const uint8_t *data, size_t size)
{
    const wire_side from = (how & 1) != 0 ? WIRE_FROM_SERVER : WIRE_FROM_CLIENT;
    const uint32_t agreed = how >> 3 & 3;
    const wire_expected expected = {from, agreed, (how & 32) != 0 ? 3 : agreed};
    wire_message message;
    const kvt_status status = wire_message_read(data, size, how >> 1 & 3, &expected, &message);
    if (status != KVT_OK && status != KVT_E_CORRUPT) abort();
    if (status != KVT_OK) return;
    if (message.head.bytes > size) abort();
    wire_message again;
    memset(&again, 0, sizeof again);
    memcpy(&again, data, message.head.bytes);
    again.head.bytes = message.head.bytes;
    if (memcmp(&again, &message, sizeof again) != 0) abort();
    if (message.head.kind == WIRE_CALL) read_call(&message.call);
    if (message.head.kind == WIRE_RESULT) read_result(&message.result);
    if (message.head.kind == WIRE_CHANNEL) check_channel(&message.channel);
    if (message.head.kind == WIRE_HELLO) {
        answer(&message.hello, message.hello.clock_ns);
        answer(&message.hello, size * 1000);
    }
    if (message.head.kind == WIRE_REFUSED && strlen(message.refused.text) >= 192) abort();
}

static void read_entries(const uint8_t *data, size_t size)
{
    base_ring_body body;
    wire_request request;
    wire_completion completion;
    memset(&body, 0, sizeof body);
    memcpy(&body, data, size < sizeof body ? size : sizeof body);
    const kvt_status status = wire_request_read(&body, 65536, 4096, &request);
    if (status != KVT_OK && status != KVT_E_ARGUMENT) abort();
    if (status == KVT_OK && request.argument_bytes > 0) {
        if (request.argument_bytes > 4096 || request.argument > 65536) abort();
        if (request.argument + request.argument_bytes > 65536) abort();
    }
    const kvt_status sound = wire_completion_read(&body, &completion);
    if (sound != KVT_OK && sound != KVT_E_CORRUPT) abort();
    if (sound == KVT_OK && kvt_tier_name(completion.tier) == NULL) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    read_packet(data[0], data + 1, size - 1);
    read_entries(data + 1, size - 1);
    return 0;
}
