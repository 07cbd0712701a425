/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_control.c - each call's argument is read as it was made, also by a side of another
 * version; an argument and a result that are not what their call has are refused.
 */
#include "wire_support.h"

/* The sound argument of a call. */
static void argument_of(uint32_t call, wire_argument *argument)
{
    const wire_call_kind *kind = &wire_call_kinds[call];
    memset(argument, 0, sizeof *argument);
    argument->at.struct_size = kind->argument_bytes;
    argument->at.result_size = kind->item == WIRE_ITEM_ASKED ? 80 : 0;
    if (call == WIRE_CALL_CLEAR) argument->clear.conditions = WIRE_CLEAR_EVERYTHING;
    if (call == WIRE_CALL_TENANT_SET) {
        argument->tenant.limits.struct_size = sizeof argument->tenant.limits;
        argument->tenant.limits.loss_limit = 0.5;
    }
    if (call == WIRE_CALL_DEVICE_CHANGE) memcpy(argument->device.name, "disk 0", 6);
}

static kvt_status sent(uint32_t call, const wire_argument *argument, uint32_t bytes)
{
    wire_message message, heard;
    wire_argument out;
    const wire_expected expected = {WIRE_FROM_CLIENT, 1, 1};
    wire_message_make(&message, WIRE_CALL, 1, 7);
    message.call.call = call;
    message.call.bytes = bytes;
    memcpy(message.call.argument, argument, bytes < sizeof *argument ? bytes : sizeof *argument);
    message.head.bytes += (bytes + 7) / 8 * 8;
    assert_ok(wire_message_read(&message, message.head.bytes, 0, &expected, &heard));
    return wire_call_read(&heard.call, &out);
}

TEST(each_argument_is_read_as_it_was_made)
{
    for (uint32_t call = 1; call < WIRE_CALL_END; call++) {
        wire_argument argument, out;
        wire_message message, heard;
        const wire_expected expected = {WIRE_FROM_CLIENT, 1, 1};
        argument_of(call, &argument);
        wire_call_make(&message, (wire_call_number)call, 1, 7, &argument);
        assert_ok(wire_message_read(&message, message.head.bytes, 0, &expected, &heard));
        assert_ok(wire_call_read(&heard.call, &out));
        assert_memory_equal(&out, &argument, sizeof out);
        assert_non_null(wire_call_kinds[call].name);
    }
}

TEST(arguments_of_other_sizes_follow_the_rule_of_versions)
{
    for (uint32_t call = 1; call < WIRE_CALL_END; call++) {
        const wire_call_kind *kind = &wire_call_kinds[call];
        union {
            wire_argument argument;
            uint64_t words[WIRE_CALL_ROOM / 8];
        } both;
        wire_message message;
        wire_argument out;
        for (uint32_t bytes = 0; bytes <= WIRE_CALL_ROOM; bytes += 4) {
            memset(&both, 0, sizeof both);
            argument_of(call, &both.argument);
            both.argument.at.struct_size = bytes;
            if (call == WIRE_CALL_TENANT_SET && bytes >= 16)
                both.argument.tenant.limits.struct_size = bytes - 16;
            wire_message_make(&message, WIRE_CALL, 1, 7);
            message.call.call = call;
            message.call.bytes = bytes;
            memcpy(message.call.argument, &both, bytes);
            const bool sound = bytes >= kind->argument_least && bytes % 8 == 0;
            const kvt_status status = wire_call_read(&message.call, &out);
            assert_int_equal(status, sound ? KVT_OK : KVT_E_ARGUMENT);
            if (call == WIRE_CALL_TENANT_SET && sound)
                assert_int_equal(out.tenant.limits.struct_size, sizeof(kvt_tenant));
            /* A member that is not known here. */
            if (bytes < kind->argument_bytes + 8 || bytes % 8 != 0) continue;
            message.call.argument[bytes / 8 - 1] = 1;
            assert_int_equal(wire_call_read(&message.call, &out), KVT_E_ARGUMENT);
        }
    }
}

TEST(calls_and_members_that_do_not_exist_are_refused)
{
    wire_argument argument;
    const uint32_t none[] = {0, WIRE_CALL_END, 1000, UINT32_MAX};
    argument_of(WIRE_CALL_FLUSH, &argument);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(sent(none[i], &argument, 8), KVT_E_UNSUPPORTED);
    for (uint32_t call = 1; call < WIRE_CALL_END; call++) {
        const uint32_t bytes = wire_call_kinds[call].argument_bytes;
        argument_of(call, &argument);
        assert_ok(sent(call, &argument, bytes));
        const uint32_t size = argument.at.result_size;
        const uint32_t wrong[] = {size == 0 ? 8 : 0, 12, WIRE_SIZE_MAX + 8, UINT32_MAX};
        for (size_t i = 0; i < 4; i++) {
            argument.at.result_size = wrong[i];
            assert_int_equal(sent(call, &argument, bytes), KVT_E_ARGUMENT);
        }
        argument.at.result_size = size;
        argument.at.struct_size += 8;
        assert_int_equal(sent(call, &argument, bytes), KVT_E_ARGUMENT);
    }
    argument_of(WIRE_CALL_CLEAR, &argument);
    argument.clear.conditions = 8;
    assert_int_equal(sent(WIRE_CALL_CLEAR, &argument, sizeof argument.clear), KVT_E_ARGUMENT);
    argument_of(WIRE_CALL_OPERATIONS, &argument);
    argument.index.zero = 1;
    assert_int_equal(sent(WIRE_CALL_OPERATIONS, &argument, 16), KVT_E_ARGUMENT);
    argument_of(WIRE_CALL_SPACE_STATS, &argument);
    argument.space.tenant = 1;
    assert_int_equal(sent(WIRE_CALL_SPACE_STATS, &argument, 24), KVT_E_ARGUMENT);
    argument_of(WIRE_CALL_TENANT_SET, &argument);
    argument.tenant.limits.struct_size -= 8;
    assert_int_equal(sent(WIRE_CALL_TENANT_SET, &argument, sizeof argument.tenant), KVT_E_ARGUMENT);
    argument_of(WIRE_CALL_BASIS_ADD, &argument);
    argument.memory.region = 63;
    assert_int_equal(sent(WIRE_CALL_BASIS_ADD, &argument, 24), KVT_E_ARGUMENT);
    argument.memory.bytes = UINT64_MAX;
    assert_ok(sent(WIRE_CALL_BASIS_ADD, &argument, 24));
    argument.memory.region = 64;
    assert_int_equal(sent(WIRE_CALL_BASIS_ADD, &argument, 24), KVT_E_ARGUMENT);
    argument.memory.region = 0;
    argument.memory.zero = 1;
    assert_int_equal(sent(WIRE_CALL_PASS_TABLE, &argument, 24), KVT_E_ARGUMENT);
    static const char *const names[] = {"", "a\nb", "\x80"};
    for (size_t i = 0; i < 3; i++) {
        argument_of(WIRE_CALL_DEVICE_CHANGE, &argument);
        memset(argument.device.name, 0, 64);
        memcpy(argument.device.name, names[i], strlen(names[i]));
        assert_int_equal(sent(WIRE_CALL_DEVICE_CHANGE, &argument, 80), KVT_E_ARGUMENT);
    }
    memset(argument.device.name, 'x', 64);
    assert_int_equal(sent(WIRE_CALL_DEVICE_CHANGE, &argument, 80), KVT_E_ARGUMENT);
    memset(argument.device.name + 5, 0, 20);
    assert_int_equal(sent(WIRE_CALL_DEVICE_CHANGE, &argument, 80), KVT_E_ARGUMENT);
}

/* A result of so many bytes, whose public structures have the size that was asked for. */
static kvt_status answered(uint32_t call, uint32_t bytes, kvt_status status, size_t *count_out)
{
    const wire_call_kind *kind = &wire_call_kinds[call];
    const wire_argument_head asked = {8, kind->item == WIRE_ITEM_ASKED ? 400 : 0};
    char *result = test_alloc(bytes + 1);
    memset(result, 0, bytes);
    if (kind->item == WIRE_ITEM_BYTE && bytes > 0) memset(result, 'm', bytes - 1);
    for (uint32_t at = kind->head; kind->item == WIRE_ITEM_ASKED && at + 4 <= bytes; at += 400)
        memcpy(result + at, &asked.result_size, 4);
    if (call == WIRE_CALL_HEALTH && bytes >= sizeof(wire_health))
        ((wire_health *)(void *)result)->count = 1000;
    for (uint32_t at = kind->head; call == WIRE_CALL_EVENTS && at + 128 <= bytes; at += 128)
        result[at + offsetof(kvt_event, kind)] = KVT_EVENT_STORED;
    wire_message message;
    wire_result_make(&message, call, 1, 7, status, result, bytes);
    assert_int_equal(message.head.kind, bytes > 4064 ? WIRE_RESULT_MEMORY : WIRE_RESULT);
    return wire_result_check(&message.result, (wire_call_number)call, &asked, result, count_out);
}

TEST(a_result_has_the_size_that_its_call_has)
{
    for (uint32_t call = 1; call < WIRE_CALL_END; call++) {
        const wire_call_kind *kind = &wire_call_kinds[call];
        const uint32_t item = kind->item == WIRE_ITEM_ASKED  ? 400
                              : kind->item == WIRE_ITEM_BYTE ? 1
                                                             : kind->item;
        assert_ok(answered(call, 0, KVT_E_ARGUMENT, NULL));
        for (uint32_t bytes = 0; bytes < 9000; bytes += bytes < 2500 ? 1 : 97) {
            size_t count = 99;
            const uint32_t left = bytes - kind->head;
            bool sound = bytes >= kind->head && (item == 0 ? left == 0 : left % item == 0);
            if (sound && kind->single) sound = left == item;
            if (kind->item == WIRE_ITEM_BYTE && bytes == 0) sound = false;
            assert_int_equal(answered(call, bytes, KVT_OK, &count), sound ? KVT_OK : KVT_E_CORRUPT);
            assert_int_equal(count, sound && item != 0 ? left / item : 0);
        }
    }
}

TEST(what_a_result_says_within_is_checked)
{
    wire_message message;
    const wire_argument_head asked = {8, 400}, text = {8, 0};
    union {
        char bytes[720];
        wire_explained explained;
        wire_health health;
        uint32_t size;
    } of;
    /* Of another call; larger than any. */
    wire_result_make(&message, WIRE_CALL_METRICS, 1, 7, KVT_OK, "ab", 3);
    assert_ok(wire_result_check(&message.result, WIRE_CALL_METRICS, &text, "ab", NULL));
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_STATS, &asked, "ab", NULL),
                     KVT_E_CORRUPT);
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_METRICS, &text, "abc", NULL),
                     KVT_E_CORRUPT);
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_METRICS, &text, "a\0", NULL),
                     KVT_E_CORRUPT);
    message.result.bytes = WIRE_RESULT_MAX + 1;
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_METRICS, &text, "ab", NULL),
                     KVT_E_CORRUPT);
    /* A structure of another size; texts without an end; fewer in all than follow. */
    memset(&of, 0, sizeof of);
    of.size = 392;
    wire_result_make(&message, WIRE_CALL_STATS, 1, 7, KVT_OK, &of, 400);
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_STATS, &asked, &of, NULL),
                     KVT_E_CORRUPT);
    of.size = 400;
    assert_ok(wire_result_check(&message.result, WIRE_CALL_STATS, &asked, &of, NULL));
    wire_result_make(&message, WIRE_CALL_DEVICE_STATS, 1, 7, KVT_OK, &of, 400);
    memset(of.bytes + 4, 'x', 32);
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_DEVICE_STATS, &asked, &of, NULL),
                     KVT_E_CORRUPT);
    memset(&of, 0, sizeof of);
    memcpy(of.bytes + sizeof of.explained, &asked.result_size, 4);
    wire_result_make(&message, WIRE_CALL_EXPLAIN, 1, 7, KVT_OK, &of, sizeof of);
    assert_ok(wire_result_check(&message.result, WIRE_CALL_EXPLAIN, &asked, &of, NULL));
    memset(of.explained.reuse_expert, 'x', 64);
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_EXPLAIN, &asked, &of, NULL),
                     KVT_E_CORRUPT);
    memset(&of, 0, sizeof of);
    memcpy(of.bytes + sizeof of.health, &asked.result_size, 4);
    wire_result_make(&message, WIRE_CALL_HEALTH, 1, 7, KVT_OK, &of, 416);
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_HEALTH, &asked, &of, NULL),
                     KVT_E_CORRUPT);
    of.health.count = 1;
    assert_ok(wire_result_check(&message.result, WIRE_CALL_HEALTH, &asked, &of, NULL));
    /* Events by whose members a reader could not branch. */
    static const struct {
        size_t at;
        uint8_t most;
    } members[] = {{offsetof(kvt_event, kind), KVT_EVENT_MOVED},
                   {offsetof(kvt_event, reason), KVT_REMOVED_UNSTORED},
                   {offsetof(kvt_event, tier), KVT_TIER_REMOTE},
                   {offsetof(kvt_event, source_tier), KVT_TIER_REMOTE}};
    for (size_t i = 0; i < 4; i++)
        for (uint32_t value = 0; value < 256; value++) {
            char events[8 + 2 * sizeof(kvt_event)] = {0};
            char *second = events + 8 + sizeof(kvt_event);
            events[8 + offsetof(kvt_event, kind)] = KVT_EVENT_STORED;
            second[offsetof(kvt_event, kind)] = KVT_EVENT_REMOVED;
            second[members[i].at] = (char)value;
            const bool sound = value <= members[i].most && (i != 0 || value != 0);
            wire_result_make(&message, WIRE_CALL_EVENTS, 1, 7, KVT_OK, events, sizeof events);
            assert_int_equal(
                wire_result_check(&message.result, WIRE_CALL_EVENTS, &text, events, NULL),
                sound ? KVT_OK : KVT_E_CORRUPT);
        }
    memset(of.bytes + sizeof of.health + offsetof(kvt_health_item, name), 'x', 64);
    assert_int_equal(wire_result_check(&message.result, WIRE_CALL_HEALTH, &asked, &of, NULL),
                     KVT_E_CORRUPT);
}

/* A basis by whose members a reader could not branch, or whose model does not end. */
TEST(what_a_basis_says_is_checked)
{
    wire_message message;
    const wire_argument_head asked = {8, 400};
    union {
        char bytes[400];
        uint32_t size;
    } of;
    static const struct {
        size_t at;
        int value;
    } of_basis[] = {{offsetof(kvt_basis_info, state), 4},
                    {offsetof(kvt_basis_info, status), 1},
                    {offsetof(kvt_basis_info, hash_bits) + 1, 2},
                    {offsetof(kvt_basis_info, in_ladder), 2}};
    for (size_t i = 0; i < 5; i++) {
        memset(&of, 0, sizeof of);
        of.size = 400;
        wire_result_make(&message, WIRE_CALL_BASIS_GET, 1, 7, KVT_OK, &of, 400);
        assert_ok(wire_result_check(&message.result, WIRE_CALL_BASIS_GET, &asked, &of, NULL));
        if (i < 4)
            of.bytes[of_basis[i].at] = (char)of_basis[i].value;
        else
            memset(of.bytes + offsetof(kvt_basis_info, model), 'x', 96);
        assert_int_equal(wire_result_check(&message.result, WIRE_CALL_BASIS_GET, &asked, &of, NULL),
                         KVT_E_CORRUPT);
    }
}
