/* SPDX-License-Identifier: Apache-2.0 */
/* control.c - the table of calls, and the check of what either side says by it. */
#include "serve/wire/control.h"
#include "serve/wire/view_records.h"

#include <assert.h>
#include <string.h>

#define PLAIN    sizeof(wire_argument_head)
#define INDEX    sizeof(wire_index_argument)
#define KEY      sizeof(wire_key_argument)
#define DEADLINE sizeof(wire_deadline_argument)
#define CLEAR    sizeof(wire_clear_argument)
#define LIST     sizeof(wire_list_argument)
#define SPACE    sizeof(wire_space_argument)
#define TENANT   sizeof(wire_tenant_argument)
#define DEVICE   sizeof(wire_device_argument)
#define OBSERVE  sizeof(wire_observe_argument)
#define MEMORY   sizeof(wire_memory_argument)
#define ASKED    WIRE_ITEM_ASKED

#define BASIS_IN_LADDER offsetof(kvt_basis_info, in_ladder)

const wire_call_kind wire_call_kinds[WIRE_CALL_END] = {
    [WIRE_CALL_STATS] = {"stats", PLAIN, 8, 0, ASKED, true, false},
    [WIRE_CALL_DEVICE_STATS] = {"device_stats", INDEX, 16, 0, ASKED, true, false},
    [WIRE_CALL_CLASS_STATS] = {"class_stats", INDEX, 16, 0, ASKED, true, false},
    [WIRE_CALL_HEALTH] = {"health", INDEX, 16, sizeof(wire_health), ASKED, false, false},
    [WIRE_CALL_EXPLAIN] = {"explain", KEY, 40, sizeof(wire_explained), ASKED, true, false},
    [WIRE_CALL_FLUSH] = {"flush", PLAIN, 8, 0, 0, false, false},
    [WIRE_CALL_PERSIST] = {"persist", DEADLINE, 16, 0, ASKED, true, false},
    [WIRE_CALL_MAINTAIN] = {"maintain", PLAIN, 8, sizeof(wire_count), 0, false, true},
    [WIRE_CALL_CLEAR] = {"clear", CLEAR, 24, sizeof(wire_count), 0, false, true},
    [WIRE_CALL_SPACE_SET] = {"space_set", SPACE, 24, 0, 0, false, true},
    [WIRE_CALL_SPACE_STATS] = {"space_stats", SPACE, 24, 0, ASKED, true, false},
    [WIRE_CALL_TENANT_SET] = {"tenant_set", TENANT, 120, 0, 0, false, true},
    [WIRE_CALL_DEVICE_CHANGE] = {"device_change", DEVICE, 80, 0, 0, false, true},
    [WIRE_CALL_METRICS] = {"metrics", PLAIN, 8, 0, WIRE_ITEM_BYTE, false, false},
    [WIRE_CALL_OPERATIONS] = {"operations", INDEX, 16, 0, sizeof(kvt_operation), false, false},
    [WIRE_CALL_LIST] = {"list", LIST, 40, sizeof(wire_cursor), ASKED, false, true},
    [WIRE_CALL_OBSERVE] = {"observe", OBSERVE, 64, 0, 0, false, true},
    [WIRE_CALL_EVENTS_OPEN] = {"events_open", INDEX, 16, 0, 0, false, true},
    [WIRE_CALL_EVENTS] = {"events", INDEX, 16, sizeof(wire_events), sizeof(kvt_event), false,
                          false},
    [WIRE_CALL_REMOTE_FLUSH] = {"remote_flush", DEADLINE, 16, 0, 0, false, false},
    [WIRE_CALL_REMOTE_STATS] = {"remote_stats", PLAIN, 8, 0, ASKED, true, false},
    [WIRE_CALL_REMOTE_NODE] = {"remote_node", INDEX, 16, 0, ASKED, true, false},
    [WIRE_CALL_PASS_TABLE] = {"pass_table", MEMORY, 24, 0, 0, false, true},
    [WIRE_CALL_BASIS_ADD] = {"basis_add", MEMORY, 24, 0, 0, false, true},
    [WIRE_CALL_BASIS_REMOVE] = {"basis_remove", KEY, 40, 0, 0, false, true},
    [WIRE_CALL_BASIS_GET] = {"basis_get", INDEX, 16, 0, ASKED, true, false},
};

void wire_call_make(wire_message *message, wire_call_number call, uint32_t protocol,
                    uint32_t number, const void *argument)
{
    assert(call >= WIRE_CALL_STATS && call < WIRE_CALL_END);
    const wire_argument_head *at = argument;
    assert(at->struct_size == wire_call_kinds[call].argument_bytes);
    assert((at->result_size != 0) == (wire_call_kinds[call].item == WIRE_ITEM_ASKED));
    wire_message_make(message, WIRE_CALL, protocol, number);
    message->call.call = call;
    message->call.bytes = at->struct_size;
    memcpy(message->call.argument, argument, at->struct_size);
    message->head.bytes += at->struct_size;
}

static bool name_is_sound(const char name[64])
{
    size_t i = 0;
    while (i < 64 && name[i] >= ' ' && name[i] <= '~')
        i++;
    if (i == 0 || i == 64) return false;
    while (i < 64 && name[i] == '\0')
        i++;
    return i == 64;
}

/* What the members of one call's argument may be. */
static bool argument_is_sound(uint32_t call, const wire_argument *argument)
{
    switch (call) {
    case WIRE_CALL_DEVICE_STATS:
    case WIRE_CALL_CLASS_STATS:
    case WIRE_CALL_HEALTH:
    case WIRE_CALL_OPERATIONS:
    case WIRE_CALL_EVENTS_OPEN:
    case WIRE_CALL_EVENTS:
    case WIRE_CALL_BASIS_GET:
    case WIRE_CALL_REMOTE_NODE: return argument->index.zero == 0;
    case WIRE_CALL_CLEAR: return argument->clear.conditions <= 7;
    case WIRE_CALL_LIST: return argument->list.conditions <= 7 && argument->list.zero == 0;
    case WIRE_CALL_SPACE_STATS: return argument->space.tenant == 0 && argument->space.zero == 0;
    case WIRE_CALL_SPACE_SET: return argument->space.zero == 0;
    case WIRE_CALL_TENANT_SET: return argument->tenant.zero == 0;
    case WIRE_CALL_PASS_TABLE:
    case WIRE_CALL_BASIS_ADD:
        return argument->memory.zero == 0 && argument->memory.region < WIRE_REGIONS_MAX &&
               (argument->memory.bytes != 0 || argument->memory.region == 0);
    case WIRE_CALL_DEVICE_CHANGE:
        return argument->device.zero == 0 && name_is_sound(argument->device.name);
    default: return true;
    }
}

/* The public structure at the end of tenant_set's argument: its size is what the argument leaves
 * for it, and becomes the one that it has here. */
static bool limits_take(wire_tenant_argument *argument, uint32_t given)
{
    const uint32_t room = given - (uint32_t)offsetof(wire_tenant_argument, limits);
    if (argument->limits.struct_size != room) return false;
    if (room > sizeof argument->limits)
        argument->limits.struct_size = (uint32_t)sizeof argument->limits;
    return true;
}

kvt_status wire_call_read(const wire_call *message, wire_argument *argument_out)
{
    const uint8_t *bytes = (const uint8_t *)message->argument;
    memset(argument_out, 0, sizeof *argument_out);
    if (message->call == 0 || message->call >= WIRE_CALL_END) return KVT_E_UNSUPPORTED;
    const wire_call_kind *kind = &wire_call_kinds[message->call];
    wire_argument_head at;
    if (message->bytes < kind->argument_least || message->bytes > WIRE_CALL_ROOM)
        return KVT_E_ARGUMENT;
    memcpy(&at, bytes, sizeof at);
    if (at.struct_size != message->bytes || at.struct_size % 8 != 0) return KVT_E_ARGUMENT;
    for (uint32_t i = kind->argument_bytes; i < at.struct_size; i++)
        if (bytes[i] != 0) return KVT_E_ARGUMENT;
    const bool asks = kind->item == WIRE_ITEM_ASKED;
    if (at.result_size % 8 != 0 || at.result_size > WIRE_SIZE_MAX || asks != (at.result_size != 0))
        return KVT_E_ARGUMENT;
    memcpy(argument_out, bytes,
           at.struct_size < kind->argument_bytes ? at.struct_size : kind->argument_bytes);
    if (message->call == WIRE_CALL_TENANT_SET &&
        !limits_take(&argument_out->tenant, at.struct_size))
        return KVT_E_ARGUMENT;
    return argument_is_sound(message->call, argument_out) ? KVT_OK : KVT_E_ARGUMENT;
}

void wire_result_make(wire_message *message, uint32_t call, uint32_t protocol, uint32_t number,
                      kvt_status status, const void *result, uint32_t bytes)
{
    assert(bytes <= WIRE_RESULT_MAX);
    const bool fits = bytes <= WIRE_CALL_ROOM;
    wire_message_make(message, fits ? WIRE_RESULT : WIRE_RESULT_MEMORY, protocol, number);
    message->head.status = status;
    message->result.call = call;
    message->result.bytes = bytes;
    if (!fits || bytes == 0) return;
    memcpy(message->result.result, result, bytes);
    message->head.bytes += (bytes + 7) / 8 * 8;
}

static bool ends(const char *text, size_t bytes)
{
    return memchr(text, '\0', bytes) != NULL;
}

/* Whether a text ends that a structure of `asked` bytes has whole. */
static bool text_ends(const uint8_t *item, uint32_t asked, size_t offset, size_t bytes)
{
    return asked < offset + bytes || ends((const char *)item + offset, bytes);
}

#define TEXT_ENDS(type, text, item, asked)                                                         \
    text_ends(item, asked, offsetof(type, text), sizeof((type *)NULL)->text)

/* Whether the members by which a reader branches are of those that watch.h names. */
static bool event_is_sound(const kvt_event *event)
{
    return event->kind >= KVT_EVENT_STORED && event->kind <= KVT_EVENT_MOVED &&
           event->reason <= KVT_REMOVED_UNSTORED && event->tier <= KVT_TIER_REMOTE &&
           event->source_tier <= KVT_TIER_REMOTE;
}

/* A basis, whose members a reader compares and prints; a structure that is cut lacks some. */
static bool basis_is_sound(const uint8_t *item, uint32_t asked)
{
    kvt_basis_info whole = {0};
    memcpy(&whole, item, asked < sizeof whole ? asked : sizeof whole);
    const uint8_t *bytes = (const uint8_t *)&whole;
    return (uint32_t)whole.state <= KVT_BASIS_MISSING && whole.status <= KVT_OK &&
           whole.hash_bits <= 8 * KVT_BASIS_HASH_BYTES && bytes[BASIS_IN_LADDER] <= 1 &&
           ends(whole.model, sizeof whole.model);
}

/* What lies in the parts of a result that have their right sizes. */
static bool result_is_whole(wire_call_number call, const void *result, uint32_t asked, size_t count)
{
    const uint8_t *items = (const uint8_t *)result + wire_call_kinds[call].head;
    if (wire_call_kinds[call].item == WIRE_ITEM_BYTE)
        return count > 0 && ((const char *)result)[count - 1] == '\0' &&
               memchr(result, '\0', count - 1) == NULL;
    if (wire_call_kinds[call].item == WIRE_ITEM_ASKED) {
        for (size_t i = 0; i < count; i++) {
            uint32_t has;
            memcpy(&has, items + i * asked, sizeof has);
            if (has != asked) return false;
        }
    }
    if (call == WIRE_CALL_EXPLAIN) {
        const wire_explained *explained = result;
        return ends(explained->reason, sizeof explained->reason) &&
               ends(explained->reuse_expert, sizeof explained->reuse_expert);
    }
    if (call == WIRE_CALL_HEALTH) {
        const wire_health *health = result;
        for (size_t i = 0; i < count; i++) {
            const uint8_t *item = items + i * asked;
            if (!TEXT_ENDS(kvt_health_item, name, item, asked) ||
                !TEXT_ENDS(kvt_health_item, text, item, asked))
                return false;
        }
        return health->count >= count && health->zero == 0;
    }
    if (call == WIRE_CALL_EVENTS) {
        const kvt_event *events = (const kvt_event *)(const void *)items;
        for (size_t i = 0; i < count; i++)
            if (!event_is_sound(&events[i])) return false;
    }
    if (call == WIRE_CALL_BASIS_GET) return basis_is_sound(items, asked);
    if (call == WIRE_CALL_DEVICE_STATS) return TEXT_ENDS(kvt_device_stats, name, items, asked);
    if (call == WIRE_CALL_REMOTE_STATS) return TEXT_ENDS(kvt_remote_stats, message, items, asked);
    if (call == WIRE_CALL_REMOTE_NODE)
        return TEXT_ENDS(kvt_remote_node, address, items, asked) &&
               TEXT_ENDS(kvt_remote_node, message, items, asked) &&
               TEXT_ENDS(kvt_remote_node, eviction, items, asked);
    return true;
}

kvt_status wire_result_check(const wire_result *answer, wire_call_number call,
                             const wire_argument_head *asked, const void *result, size_t *count_out)
{
    const wire_call_kind *kind = &wire_call_kinds[call];
    if (count_out != NULL) *count_out = 0;
    if (answer->call != call || answer->bytes > WIRE_RESULT_MAX) return KVT_E_CORRUPT;
    if (answer->bytes == 0) {
        const bool none = kind->head == 0 && (kind->item == 0 || kind->item > WIRE_ITEM_BYTE);
        return answer->head.status != KVT_OK || none ? KVT_OK : KVT_E_CORRUPT;
    }
    if (answer->bytes < kind->head) return KVT_E_CORRUPT;
    const uint32_t left = answer->bytes - kind->head;
    const uint32_t item = kind->item == WIRE_ITEM_ASKED  ? asked->result_size
                          : kind->item == WIRE_ITEM_BYTE ? 1
                                                         : kind->item;
    if (item == 0 ? left != 0 : left % item != 0) return KVT_E_CORRUPT;
    const size_t count = item == 0 ? 0 : left / item;
    if (kind->single && count != 1) return KVT_E_CORRUPT;
    if (!result_is_whole(call, result, asked->result_size, count)) return KVT_E_CORRUPT;
    if (count_out != NULL) *count_out = count;
    return KVT_OK;
}
