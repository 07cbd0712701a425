/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - calls on the store by the socket: each has a number, an argument and a result of its
 * own, and all go by one kind of message and two kinds of answer (docs/SERVE.md, Control calls).
 *
 *     wire_index_argument argument = {.at = {sizeof argument, sizeof stats}, .index = 2};
 *     wire_call_make(&message, WIRE_CALL_DEVICE_STATS, protocol, number, &argument);
 *     ... send; the answer is WIRE_RESULT, or WIRE_RESULT_MEMORY with a descriptor ...
 *     status = wire_result_check(&answer.result, &argument.at, result, answer.result.bytes);
 *     if (status == KVT_OK) memcpy(&stats, result, sizeof stats);
 *
 * An argument begins with its size as its writer knows it, by the rule of types.h: a reader takes a
 * smaller one down to the first version's and a larger one whose further bytes are zero. A public
 * structure in a result has the size that the argument asks for, and is filled as the store's own
 * call fills a caller's of that size. Its pointers are NULL.
 *
 * Thread rule: any thread; nothing here allocates or calls the system.
 */
#ifndef SERVE_WIRE_CONTROL_H
#define SERVE_WIRE_CONTROL_H

#include <kvterrace/basis.h>
#include <kvterrace/load.h>
#include <kvterrace/names.h>
#include <kvterrace/remote.h>
#include <kvterrace/watch.h>

#include "serve/wire/messages.h"

/* Events that wait for a reader, at most: all of them are one result. */
#define WIRE_EVENTS_MAX 16384u

/* Results are no larger. The memory of WIRE_RESULT_MEMORY has so many bytes, whatever it holds. */
#define WIRE_RESULT_MAX (UINT32_C(4) << 20)

/* The numbers stay. Behind each: its argument, its result, and the public call that says what it
 * does and returns. "asked" is the public structure, of the size that the argument asks for. */
typedef enum wire_call_number {
    WIRE_CALL_STATS = 1,          /* plain; asked kvt_store_stats; kvt_store_stats_get */
    WIRE_CALL_DEVICE_STATS = 2,   /* index; asked kvt_device_stats; kvt_device_stats_get */
    WIRE_CALL_CLASS_STATS = 3,    /* index; asked kvt_class_stats; kvt_class_stats_get */
    WIRE_CALL_HEALTH = 4,         /* index: capacity; wire_health, then asked kvt_health_item of
                                     each; kvt_health_get */
    WIRE_CALL_EXPLAIN = 5,        /* key; wire_explained, then asked kvt_explanation;
                                     kvt_store_explain */
    WIRE_CALL_FLUSH = 6,          /* plain; nothing; kvt_store_flush */
    WIRE_CALL_PERSIST = 7,        /* deadline; asked kvt_persist_info; kvt_store_persist */
    WIRE_CALL_MAINTAIN = 8,       /* plain; wire_count: moves; kvt_store_maintain; operators */
    WIRE_CALL_CLEAR = 9,          /* clear; wire_count: removed; kvt_store_clear; operators */
    WIRE_CALL_SPACE_SET = 10,     /* space; nothing; kvt_space_set; operators */
    WIRE_CALL_SPACE_STATS = 11,   /* space; asked kvt_space_stats; kvt_space_stats_get */
    WIRE_CALL_TENANT_SET = 12,    /* tenant; nothing; kvt_tenant_set; operators */
    WIRE_CALL_DEVICE_CHANGE = 13, /* device; nothing; kvt_device_change; operators */
    WIRE_CALL_METRICS = 14,       /* plain; the text with its zero; kvt_metrics_write */
    WIRE_CALL_OPERATIONS = 15,    /* index: capacity; kvt_operation of each, the last ones, oldest
                                     first; kvt_operations_get */
    WIRE_CALL_LIST = 16,          /* list; wire_cursor, then asked kvt_list_item of each;
                                     kvt_store_list; operators */
    WIRE_CALL_OBSERVE = 17,       /* observe; nothing; kvt_quality_observe; operators */
    WIRE_CALL_EVENTS_OPEN = 18,   /* index: capacity; nothing; kvt_events_open, of the session's one
                                     reader, which ends with it: KVT_E_STATE when it has one;
                                     operators */
    WIRE_CALL_EVENTS = 19,        /* index: capacity; wire_events, then kvt_event of each;
                                     kvt_events_drain; KVT_E_STATE: the session has no reader */
    WIRE_CALL_REMOTE_FLUSH = 20,  /* deadline; nothing; kvt_remote_flush */
    WIRE_CALL_REMOTE_STATS = 21,  /* plain; asked kvt_remote_stats; kvt_remote_stats_get */
    WIRE_CALL_REMOTE_NODE = 22,   /* index; asked kvt_remote_node; kvt_remote_node_get */
    WIRE_CALL_PASS_TABLE = 23,    /* memory: kvt_pass_row of each; nothing; kvt_pass_table_set;
                                     operators */
    WIRE_CALL_BASIS_ADD = 24,     /* memory: the object; nothing; kvt_basis_add; operators */
    WIRE_CALL_BASIS_REMOVE = 25,  /* key: the hash; nothing; kvt_basis_remove; operators */
    WIRE_CALL_BASIS_GET = 26,     /* index; asked kvt_basis_info; kvt_basis_get */
    WIRE_CALL_END = 27
} wire_call_number;

/* Every argument begins so. */
typedef struct wire_argument_head {
    uint32_t struct_size; /* of the argument, a multiple of 8 */
    uint32_t result_size; /* of the public structure in the result; 0 where there is none */
} wire_argument_head;

typedef struct wire_index_argument {
    wire_argument_head at;
    uint32_t index; /* device or class; or how many items the result may have */
    uint32_t zero;
} wire_index_argument;

typedef struct wire_key_argument {
    wire_argument_head at;
    kvt_key key;
} wire_key_argument;

typedef struct wire_deadline_argument {
    wire_argument_head at;
    uint64_t deadline_ns;
} wire_deadline_argument;

/* What is too large for a message lies in a region, of which the server makes a copy. */
typedef struct wire_memory_argument {
    wire_argument_head at;
    uint32_t region;
    uint32_t zero;
    uint64_t bytes; /* from the region's begin on; 0: none, and no region */
} wire_memory_argument;

#define WIRE_CLEAR_SPACE      1u
#define WIRE_CLEAR_TENANT     2u
#define WIRE_CLEAR_EVERYTHING 4u

typedef struct wire_clear_argument {
    wire_argument_head at;
    uint32_t conditions; /* bits, of kvt_clear_filter */
    uint32_t tenant;
    uint64_t space;
} wire_clear_argument;

typedef struct wire_list_argument {
    wire_argument_head at;
    uint32_t conditions; /* as of wire_clear_argument; 0 = everything */
    uint32_t tenant;
    uint64_t space;
    uint64_t cursor;
    uint32_t capacity; /* items that the result may have; fewer where it would be too large */
    uint32_t zero;
} wire_list_argument;

typedef struct wire_space_argument {
    wire_argument_head at;
    uint64_t space;
    uint32_t tenant; /* space_set; else 0 */
    uint32_t zero;
} wire_space_argument;

typedef struct wire_tenant_argument {
    wire_argument_head at;
    uint32_t tenant;
    uint32_t zero;
    kvt_tenant limits; /* stays last: it grows */
} wire_tenant_argument;

typedef struct wire_device_argument {
    wire_argument_head at;
    uint32_t action; /* kvt_device_action */
    uint32_t zero;
    char name[64]; /* printable characters, then zeros */
} wire_device_argument;

typedef struct wire_observe_argument {
    wire_argument_head at;
    kvt_key key;
    double loss, weight;
    kvt_variant variant;
} wire_observe_argument;

/* An argument that was read. Members that the writer did not know are zero. */
typedef union wire_argument {
    wire_argument_head at;
    wire_index_argument index;
    wire_key_argument key;
    wire_deadline_argument deadline;
    wire_clear_argument clear;
    wire_list_argument list;
    wire_space_argument space;
    wire_tenant_argument tenant;
    wire_device_argument device;
    wire_observe_argument observe;
    wire_memory_argument memory;
} wire_argument;

/* ---- results ---- */

typedef struct wire_count {
    uint64_t count;
} wire_count;

/* Items follow, each as large as was asked. */
typedef struct wire_health {
    uint64_t count; /* that are out of order, which may be more than follow */
    int32_t overall;
    uint32_t zero;
} wire_health;

/* Items follow, each as large as was asked. */
typedef struct wire_cursor {
    uint64_t cursor;
} wire_cursor;

/* Events follow. */
typedef struct wire_events {
    uint64_t lost; /* since the last result */
} wire_events;

/* The two texts of the explanation that follows; empty: NULL there. Also of a miss. */
typedef struct wire_explained {
    char reason[256];
    char reuse_expert[64];
} wire_explained;

_Static_assert(sizeof(wire_argument_head) == 8, "argument");
_Static_assert(sizeof(wire_index_argument) == 16, "index");
_Static_assert(sizeof(wire_key_argument) == 40, "key");
_Static_assert(sizeof(wire_deadline_argument) == 16, "deadline");
_Static_assert(sizeof(wire_clear_argument) == 24, "clear");
_Static_assert(sizeof(wire_list_argument) == 40, "list");
_Static_assert(sizeof(wire_space_argument) == 24, "space");
_Static_assert(offsetof(wire_tenant_argument, limits) == 16, "tenant");
_Static_assert(sizeof(wire_device_argument) == 80, "device");
_Static_assert(sizeof(wire_count) == 8 && sizeof(wire_health) == 16, "counts");
_Static_assert(sizeof(wire_cursor) == 8 && sizeof(wire_events) == 8, "cursor, events");
_Static_assert(sizeof(wire_observe_argument) == 64, "observe");
_Static_assert(sizeof(wire_memory_argument) == 24, "memory");
_Static_assert(sizeof(kvt_key) == KVT_BASIS_HASH_BYTES && sizeof(kvt_pass_row) == 16, "passes");
_Static_assert(sizeof(wire_events) + WIRE_EVENTS_MAX * sizeof(kvt_event) <= WIRE_RESULT_MAX,
               "events");
_Static_assert(sizeof(wire_explained) == 320, "explained");

/* ---- the table ---- */

#define WIRE_ITEM_ASKED 1u /* as `item`: as large as the argument's result_size */
#define WIRE_ITEM_BYTE  2u /* text, which ends with a zero */

/* One call. Its result is `head` bytes, then items: exactly one with `single`, else any number. */
typedef struct wire_call_kind {
    const char *name;
    uint32_t argument_bytes; /* here */
    uint32_t argument_least; /* in the first version */
    uint32_t head;           /* bytes that a result with KVT_OK begins with */
    uint32_t item;           /* bytes, WIRE_ITEM_ASKED, WIRE_ITEM_BYTE, or 0: none */
    bool single;
    bool guarded; /* it changes what others have, or names it: for operators alone */
} wire_call_kind;

/* By number; the place 0 is empty. */
extern const wire_call_kind wire_call_kinds[WIRE_CALL_END];

/* Makes a WIRE_CALL. The argument is one of the call's, whose struct_size and result_size are set.
 */
void wire_call_make(wire_message *message, wire_call_number call, uint32_t protocol,
                    uint32_t number, const void *argument);

/* Reads the argument of a WIRE_CALL that wire_message_read has passed. KVT_OK: every member is in
 * its range as far as the wire says; KVT_E_UNSUPPORTED: no such call here; KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status wire_call_read(const wire_call *message, wire_argument *argument_out);

/* Makes the answer of a call: a WIRE_RESULT with a copy of the result, or a WIRE_RESULT_MEMORY,
 * which says how large it is, when it does not fit into a message.
 *   bytes   at most WIRE_RESULT_MAX; 0 when the call has no result, or failed without one */
void wire_result_make(wire_message *message, uint32_t call, uint32_t protocol, uint32_t number,
                      kvt_status status, const void *result, uint32_t bytes);

/*
 * Whether the answer of a call, which wire_message_read has passed, has the result that the call
 * has.
 *   answer     WIRE_RESULT or WIRE_RESULT_MEMORY, which begin alike
 *   call       that was asked
 *   asked      the argument's head
 *   result     answer->bytes of it: answer->result, or the begin of the memory, of which the
 *              reader has made a copy: the server writes its next result there. Map it as
 *              WIRE_SEALED_SIZE and WIRE_RESULT_MAX bytes
 *   count_out  items; may be NULL
 * KVT_OK: it is whole, texts end, the structures are as large as asked. Of a status other than
 * KVT_OK in the answer there may be no result: answer->bytes is 0 then, and *count_out. Pointers in
 * it are the reader's to set. KVT_E_CORRUPT.
 */
KVT_NODISCARD kvt_status wire_result_check(const wire_result *answer, wire_call_number call,
                                           const wire_argument_head *asked, const void *result,
                                           size_t *count_out);

#endif
