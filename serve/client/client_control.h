/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_control.h - calls by the socket, for the files that make some. Thread rule: any thread.
 */
#ifndef SERVE_CLIENT_CLIENT_CONTROL_H
#define SERVE_CLIENT_CLIENT_CONTROL_H

#include "serve/client/client_internal.h"
#include "serve/wire/control.h"

/* A result, copied out of the message or the memory that it came in. */
typedef struct control_result {
    void *bytes; /* allocated; NULL: there is none */
    size_t count;
} control_result;

/*
 * Makes a call.
 *   handle     a client_store
 *   argument   one of the call's, whose head is set
 *   result     what it gives, also with another status than KVT_OK where there is something;
 *              result->bytes is the caller's to free
 */
KVT_NODISCARD kvt_status client_control(kvt_store *handle, wire_call_number call,
                                        const void *argument, control_result *result);

/* Makes a call whose result is one public structure of `size` bytes here, and fills the caller's
 * with KVT_OK. */
KVT_NODISCARD kvt_status client_fill(kvt_store *handle, wire_call_number call, const void *argument,
                                     void *out, size_t size);

/* Makes a call without a result, or whose result is a count. */
KVT_NODISCARD kvt_status client_order(kvt_store *handle, wire_call_number call,
                                      const void *argument, uint64_t *count_out);

/* Makes a call without a result, whose argument is a copy of `size` bytes in a region that it makes
 * and frees. What kvt_region_make says, too; KVT_E_SPACE: no region is so large. */
KVT_NODISCARD kvt_status client_order_with(kvt_store *handle, wire_call_number call,
                                           const void *bytes, uint64_t size);

#endif
