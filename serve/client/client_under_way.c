/* SPDX-License-Identifier: Apache-2.0 */
/* client_under_way.c - the gets and puts of a channel that have begun and not ended. */
#include "serve/client/client_transfer.h"

void client_transfer_enter(client_channel *channel, client_transfer *transfer)
{
    if (transfer->at != NULL) return;
    transfer->at = &channel->transfers;
    transfer->next = channel->transfers;
    if (transfer->next != NULL) transfer->next->at = &transfer->next;
    channel->transfers = transfer;
}

void client_transfer_leave(client_transfer *transfer)
{
    if (transfer->at == NULL) return;
    *transfer->at = transfer->next;
    if (transfer->next != NULL) transfer->next->at = transfer->at;
    transfer->at = NULL;
}

/* Whether a view may name bytes of a range. How many addresses an array has, the entry alone says:
 * it may. */
static bool view_names(const kvt_view *view, const void *memory, uint64_t bytes)
{
    const uintptr_t begin = (uintptr_t)memory;
    if (view == NULL) return false;
    if (view->bases_kind == KVT_BASES_GROUPS) {
        for (uint32_t i = 0; view->groups != NULL && i < view->group_count; i++)
            if (view->groups[i] != view && view_names(view->groups[i], memory, bytes)) return true;
        return false;
    }
    if (view->bases_kind == KVT_BASES_LAYERS || view->bases_kind == KVT_BASES_LAYERS_SIDES)
        return true;
    for (int i = 0; i < 2; i++) {
        const uintptr_t base = (uintptr_t)view->base[i];
        if (base != 0 && base < begin + bytes && begin < base + view->base_bytes[i]) return true;
    }
    return false;
}

bool client_transfer_names(const client_channel *channel, const void *memory, uint64_t bytes)
{
    for (const client_transfer *one = channel->transfers; one != NULL; one = one->next)
        if (view_names(one->view, memory, bytes)) return true;
    return false;
}

bool client_transfer_is_under_way(const client_channel *channel)
{
    for (const client_transfer *one = channel->transfers; one != NULL; one = one->next)
        if (one->step == TRANSFER_DIRECT && one->request.posted && !one->request.completed)
            return true;
    return false;
}
