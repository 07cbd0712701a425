/* SPDX-License-Identifier: Apache-2.0 */
/* client_passes.c - passes of a connected store, by the channel of the blocking calls; their table
 * and the bases of the store, by the socket. */
#include "serve/client/client_calls.h"

#include "base/struct_size.h"
#include "serve/client/client_control.h"
#include "serve/wire/key_records.h"

#include <string.h>

#define PASSES_ROWS_MAX 4096u
#define PASSES_LEAST    STRUCT_SIZE_THROUGH(kvt_pass, layer_seconds)
#define PASSES_BASIS    STRUCT_SIZE_THROUGH(kvt_basis_info, model)

/* One of the three requests. */
typedef struct pass_call {
    const kvt_pass *begins; /* NULL: a layer, or the end */
    uint64_t pass;
    uint32_t layer;
} pass_call;

static kvt_status pass_ready(client_channel *channel, client_request *request, void *context)
{
    const pass_call *call = context;
    size_t bytes = 0;
    /* An older server would take the request for an unsound one. */
    if (channel->area != NULL && !atomic_load(&channel->store->takes_passes))
        return KVT_E_UNSUPPORTED;
    const bool ends = request->body.kind == WIRE_PASS_END;
    kvt_status status = client_request_room(channel, request, ends ? 0 : sizeof(kvt_pass), 0);
    if (status != KVT_OK || ends) return status;
    void *record = client_record_of(request);
    status = call->begins != NULL
                 ? wire_pass_write(call->begins, record, sizeof(kvt_pass), &bytes)
                 : wire_pass_layer_write(call->pass, call->layer, record, sizeof(kvt_pass), &bytes);
    request->body.argument_bytes = (uint32_t)bytes;
    if (status != KVT_OK) client_request_free(channel, request);
    return status;
}

static kvt_status pass_do(client_store *store, uint32_t kind, pass_call *call, uint64_t *answer_out)
{
    client_channel *channel = &store->calls;
    client_request request = {.body = {.kind = (uint16_t)kind}};
    if (kind == WIRE_PASS_END) request.body.argument = call->pass;
    kvt_status status = client_call_do(channel, &request, pass_ready, call, KVT_NO_DEADLINE);
    if (status == KVT_OK) status = request.done.status;
    if (status == KVT_E_GONE) status = client_lost(kind, true);
    if (status == KVT_OK && answer_out != NULL) *answer_out = request.done.answer;
    pthread_mutex_lock(&channel->lock);
    client_request_free(channel, &request);
    pthread_mutex_unlock(&channel->lock);
    return status;
}

kvt_status client_pass_begin(kvt_store *handle, const kvt_pass *pass, uint64_t *pass_out)
{
    client_store *store;
    kvt_pass whole = {.struct_size = sizeof whole};
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (pass == NULL || pass_out == NULL) return KVT_E_ARGUMENT;
    pass_call call = {.begins = struct_size_in(pass, &whole, sizeof whole, PASSES_LEAST)};
    if (call.begins == NULL) return KVT_E_ARGUMENT;
    return pass_do(store, WIRE_PASS_BEGIN, &call, pass_out);
}

kvt_status client_pass_layer(kvt_store *handle, uint64_t pass, uint32_t layer)
{
    client_store *store;
    pass_call call = {.pass = pass, .layer = layer};
    const kvt_status status = client_enter(handle, &store);
    return status == KVT_OK ? pass_do(store, WIRE_PASS_LAYER, &call, NULL) : status;
}

kvt_status client_pass_end(kvt_store *handle, uint64_t pass)
{
    client_store *store;
    pass_call call = {.pass = pass};
    const kvt_status status = client_enter(handle, &store);
    return status == KVT_OK ? pass_do(store, WIRE_PASS_END, &call, NULL) : status;
}

kvt_status client_pass_table_set(kvt_store *handle, const kvt_pass_row *rows, size_t count)
{
    if (count > PASSES_ROWS_MAX || (rows == NULL && count != 0)) return KVT_E_ARGUMENT;
    return client_order_with(handle, WIRE_CALL_PASS_TABLE, rows, count * sizeof *rows);
}

/* ---- bases ---- */

kvt_status client_basis_add(kvt_store *handle, const void *bytes, uint64_t size)
{
    if (bytes == NULL) return KVT_E_ARGUMENT;
    return client_order_with(handle, WIRE_CALL_BASIS_ADD, bytes, size);
}

kvt_status client_basis_remove(kvt_store *handle, const uint8_t *hash)
{
    wire_key_argument argument = {.at = {sizeof argument, 0}};
    if (hash == NULL) return KVT_E_ARGUMENT;
    memcpy(argument.key.bytes, hash, sizeof argument.key.bytes);
    return client_order(handle, WIRE_CALL_BASIS_REMOVE, &argument, NULL);
}

kvt_status client_basis_get(kvt_store *handle, size_t index, kvt_basis_info *out)
{
    const wire_index_argument argument = {.at = {sizeof argument, sizeof *out},
                                          .index =
                                              index < UINT32_MAX ? (uint32_t)index : UINT32_MAX};
    if (out == NULL || !struct_size_is_sound(out, PASSES_BASIS)) return KVT_E_ARGUMENT;
    return client_fill(handle, WIRE_CALL_BASIS_GET, &argument, out, sizeof *out);
}
