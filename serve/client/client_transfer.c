/* SPDX-License-Identifier: Apache-2.0 */
/* client_transfer.c - the steps of gets and puts through a channel, and their copies. */
#include "serve/client/client_transfer.h"

#include "base/copy.h"
#include "base/struct_size.h"
#include "codecs/view_rows.h"
#include "serve/wire/key_records.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TRANSFER_VIEW_LEAST  STRUCT_SIZE_THROUGH(kvt_view, reserved)
#define TRANSFER_ENTRY_LEAST STRUCT_SIZE_THROUGH(kvt_entry, groups)
#define TRANSFER_KEPT_LEAST  STRUCT_SIZE_THROUGH(kvt_kept_tokens, reserved)
#define TRANSFER_INFO_LEAST  STRUCT_SIZE_THROUGH(kvt_get_info, kept)

static kvt_status take_view(client_transfer *transfer, const kvt_view *view)
{
    transfer->view =
        struct_size_in(view, &transfer->whole, sizeof transfer->whole, TRANSFER_VIEW_LEAST);
    return transfer->view != NULL ? KVT_OK : KVT_E_ARGUMENT;
}

kvt_status client_transfer_init_get(client_transfer *transfer, const kvt_key *key,
                                    const kvt_view *view, uint64_t deadline_ns, kvt_get_info *info)
{
    *transfer = (client_transfer){.info = info};
    if (key == NULL || view == NULL) return KVT_E_ARGUMENT;
    if (info != NULL && !struct_size_is_sound(info, TRANSFER_INFO_LEAST)) return KVT_E_ARGUMENT;
    kvt_kept_tokens *kept = info != NULL ? info->kept : NULL;
    if (kept != NULL && (!struct_size_is_sound(kept, TRANSFER_KEPT_LEAST) ||
                         (kept->positions == NULL && kept->capacity != 0)))
        return KVT_E_ARGUMENT;
    if (kept != NULL && kept->rope != NULL) return KVT_E_UNSUPPORTED;
    if (kept != NULL) kept->count = kept->sets = 0;
    transfer->request.body = (wire_request){.kind = WIRE_GET, .key = *key};
    transfer->get = (wire_get){.deadline_ns = deadline_ns,
                               .got_bytes = info != NULL ? sizeof(wire_got) : 0,
                               .kept_capacity = kept != NULL ? kept->capacity : 0};
    return take_view(transfer, view);
}

/* The shape of a put's entry, which is the caller's. */
static kvt_status put_shape(client_transfer *transfer)
{
    const kvt_entry *entry = transfer->entry;
    transfer->layout = entry->layout;
    transfer->group_count = entry->group_count;
    if (entry->group_count == 0) {
        if (entry->groups != NULL) return KVT_E_ARGUMENT;
        return kvt_layout_bytes(&entry->layout, &transfer->packed_bytes);
    }
    static const kvt_layout none;
    if (entry->groups == NULL || entry->group_count > KVT_GROUPS_MAX ||
        memcmp(&entry->layout, &none, sizeof none) != 0)
        return KVT_E_ARGUMENT;
    for (uint32_t i = 0; i < entry->group_count; i++) {
        uint64_t bytes;
        const kvt_status status = kvt_layout_bytes(&entry->groups[i], &bytes);
        if (status != KVT_OK) return status;
        transfer->packed_bytes += bytes;
    }
    return KVT_OK;
}

kvt_status client_transfer_init_put(client_transfer *transfer, const kvt_entry *entry,
                                    const kvt_view *view, uint64_t deadline_ns)
{
    *transfer = (client_transfer){.get.deadline_ns = deadline_ns};
    if (entry == NULL || view == NULL) return KVT_E_ARGUMENT;
    entry = struct_size_in(entry, &transfer->entry_whole, sizeof transfer->entry_whole,
                           TRANSFER_ENTRY_LEAST);
    if (entry == NULL || entry->reserved != 0 ||
        (entry->token_scores == NULL) != (entry->token_score_count == 0))
        return KVT_E_ARGUMENT;
    transfer->entry = entry;
    transfer->request.body = (wire_request){.kind = WIRE_PUT, .key = entry->key};
    const kvt_status status = take_view(transfer, view);
    return status == KVT_OK ? put_shape(transfer) : status;
}

/* ---- which way ---- */

/* How many addresses the transfer's view has; 0: that is not known here. */
static uint32_t base_count(const client_transfer *transfer)
{
    const kvt_view *view = transfer->view;
    const uint32_t layers = transfer->entry != NULL ? transfer->layout.layers : 0;
    const uint32_t said = wire_view_bases(view);
    if (said != 0 || layers == 0 || view->bases == NULL) return said;
    return view->bases_kind == KVT_BASES_LAYERS_SIDES ? layers * kvt_layout_sides(&transfer->layout)
                                                      : layers;
}

/* Whether so many addresses of a view lie in regions, whose bits are added. */
static bool lies_in(const client_channel *channel, const kvt_view *view, uint32_t count,
                    uint64_t *regions)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes;
        wire_place place;
        const void *address = wire_view_address(view, i, &bytes);
        if (!wire_place_find(channel->regions, WIRE_REGIONS_MAX, address, bytes, &place))
            return false;
        *regions |= UINT64_C(1) << place.region;
    }
    return count != 0;
}

bool client_view_is_direct(const client_channel *channel, const kvt_view *view, uint64_t *regions)
{
    return lies_in(channel, view, wire_view_bases(view), regions);
}

/* Whether all of a view lies in regions. */
static bool is_direct(const client_channel *channel, const client_transfer *transfer)
{
    uint64_t regions = 0;
    if (transfer->group_count != 0 && transfer->view->bases_kind != KVT_BASES_PACKED) return false;
    return lies_in(channel, transfer->view, base_count(transfer), &regions);
}

/* Whether a get writes a buffer of the entry's size from end to end. */
static bool is_whole(const client_transfer *transfer)
{
    return transfer->view->bases_kind == KVT_BASES_PACKED && transfer->view->dtype == 0 &&
           transfer->get.first_layer == 0 && transfer->get.layer_count == 0;
}

static transfer_step first_step(const client_channel *channel, client_transfer *transfer)
{
    if (is_direct(channel, transfer)) return TRANSFER_DIRECT;
    if (transfer->entry != NULL) return TRANSFER_STAGED;
    if (!is_whole(transfer)) return TRANSFER_DESCRIBES;
    transfer->packed_bytes = transfer->view->base_bytes[0];
    return TRANSFER_STAGED;
}

/* ---- views of the caller ---- */

/* The view and the layout of group i, or of the whole entry. */
static const kvt_view *part_of(const client_transfer *transfer, uint32_t i,
                               const kvt_layout **layout_out)
{
    const kvt_layout *groups = transfer->entry != NULL && transfer->group_count != 0
                                   ? transfer->entry->groups
                                   : transfer->groups;
    const kvt_view *view = transfer->view;
    *layout_out = transfer->group_count != 0 ? &groups[i] : &transfer->layout;
    /* An entry without groups may be named as one group. */
    const bool one = view->bases_kind == KVT_BASES_GROUPS && transfer->group_count == 0;
    return transfer->group_count != 0 || one ? view->groups[i] : view;
}

static uint32_t part_count(const client_transfer *transfer)
{
    return transfer->group_count != 0 ? transfer->group_count : 1;
}

/* Whether the caller's view fits the entry's shape. KVT_OK; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED;
 * KVT_E_MEMORY. */
static kvt_status check_view(const client_transfer *transfer)
{
    const kvt_view *view = transfer->view;
    const kvt_layout *layout;
    const bool grouped = view->bases_kind == KVT_BASES_GROUPS;
    if (view->bases_kind == KVT_BASES_PACKED && (view->dtype == 0 || transfer->group_count != 0)) {
        const bool whole = view->base_bytes[0] == transfer->packed_bytes && view->base[0] != NULL;
        return whole ? KVT_OK : KVT_E_ARGUMENT;
    }
    if (!grouped && transfer->group_count != 0) return KVT_E_ARGUMENT;
    if (grouped && (view->groups == NULL || view->group_count != part_count(transfer)))
        return KVT_E_ARGUMENT;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < part_count(transfer) && status == KVT_OK; i++) {
        const kvt_view *part = part_of(transfer, i, &layout);
        if (part == NULL || part->bases_kind == KVT_BASES_GROUPS) return KVT_E_ARGUMENT;
        status = kvt_view_check(part, layout, NULL, 0);
    }
    return status;
}

/* A view that has been checked, with the strides that the copies below need. */
static kvt_view strided(const kvt_view *view, const kvt_layout *layout)
{
    kvt_view whole = {.struct_size = sizeof whole};
    if (view->bases_kind == KVT_BASES_PACKED) return codecs_packed_view(layout, view->base[0]);
    return *(const kvt_view *)struct_size_in(view, &whole, sizeof whole, TRANSFER_VIEW_LEAST);
}

/* ---- preparing ---- */

static kvt_status prepare_describe(client_channel *channel, client_transfer *transfer)
{
    kvt_layout groups[1];
    const kvt_description asked = {
        .struct_size = sizeof asked, .groups_capacity = KVT_GROUPS_MAX, .groups = groups};
    client_request *request = &transfer->request;
    const size_t room =
        sizeof(wire_describe) + sizeof(kvt_description) + KVT_GROUPS_MAX * sizeof(kvt_layout);
    kvt_status status = client_request_room(channel, request, room, 0);
    size_t bytes;
    if (status != KVT_OK) return status;
    request->body.kind = WIRE_DESCRIBE;
    status = wire_describe_write(&asked, client_record_of(request), room, &bytes);
    request->body.argument_bytes = (uint32_t)bytes;
    return status;
}

/* Writes the record of a get or a put whose room is there. */
static kvt_status write_record(const client_channel *channel, client_transfer *transfer,
                               const kvt_view *view, uint32_t bases, size_t room)
{
    client_request *request = &transfer->request;
    size_t bytes = 0;
    kvt_status status;
    if (transfer->entry == NULL) {
        wire_get get = transfer->get;
        /* All of an entry of groups comes; layers are chosen in the copy. */
        if (transfer->step == TRANSFER_STAGED && transfer->group_count != 0)
            get.first_layer = get.layer_count = 0;
        status = wire_get_write(&get, view, bases, channel->regions, client_record_of(request),
                                room, &bytes);
    } else {
        const wire_put put = wire_put_of(transfer->entry, transfer->get.deadline_ns);
        status = wire_put_write(&put, transfer->entry->groups, transfer->entry->token_scores, view,
                                bases, channel->regions, client_record_of(request), room, &bytes);
    }
    request->body.argument_bytes = (uint32_t)bytes;
    return status;
}

static kvt_status prepare_record(client_channel *channel, client_transfer *transfer)
{
    client_request *request = &transfer->request;
    const bool staged = transfer->step == TRANSFER_STAGED;
    kvt_view packed = kvt_view_packed(NULL, transfer->packed_bytes);
    const kvt_view *view = staged ? &packed : transfer->view;
    const uint32_t bases = staged ? 1 : base_count(transfer);
    size_t room;
    if (transfer->entry == NULL) {
        room = wire_get_bytes(&transfer->get, view, bases);
    } else {
        const wire_put put = wire_put_of(transfer->entry, transfer->get.deadline_ns);
        room = wire_put_bytes(&put, view, bases);
    }
    if (room > atomic_load(&channel->store->record_bytes)) return KVT_E_SPACE;
    kvt_status status =
        client_request_room(channel, request, room, staged ? transfer->packed_bytes : 0);
    if (status != KVT_OK) return status;
    request->body.kind = transfer->entry != NULL ? WIRE_PUT : WIRE_GET;
    if (staged) packed.base[0] = client_staging_of(request);
    status = write_record(channel, transfer, view, bases, room);
    if (status != KVT_OK) client_request_free(channel, request);
    return status;
}

kvt_status client_transfer_prepare(client_channel *channel, client_transfer *transfer)
{
    client_transfer_enter(channel, transfer);
    /* A request that its server has not seen may meet one that has not taken the region. */
    if (transfer->step == TRANSFER_NEW ||
        (transfer->step == TRANSFER_DIRECT && !is_direct(channel, transfer))) {
        if (view_is_far(transfer->view)) return KVT_E_UNSUPPORTED;
        transfer->step = first_step(channel, transfer);
        if (transfer->step == TRANSFER_STAGED) {
            const kvt_status status = check_view(transfer);
            if (status != KVT_OK) return status;
        }
    }
    transfer->request.body.urgency = (uint16_t)transfer->urgency;
    return transfer->step == TRANSFER_DESCRIBES ? prepare_describe(channel, transfer)
                                                : prepare_record(channel, transfer);
}

/* ---- copies ---- */

void client_transfer_fill(client_transfer *transfer)
{
    const kvt_view *view = transfer->view;
    if (transfer->step != TRANSFER_STAGED || transfer->entry == NULL) return;
    uint8_t *packed = client_staging_of(&transfer->request);
    if (view->bases_kind == KVT_BASES_PACKED) {
        base_copy(packed, view->base[0], transfer->packed_bytes);
        return;
    }
    for (uint32_t i = 0; i < part_count(transfer); i++) {
        const kvt_layout *layout;
        const kvt_view *part = part_of(transfer, i, &layout);
        const kvt_view at = strided(part, layout);
        uint64_t bytes = 0;
        const kvt_status status = kvt_layout_bytes(layout, &bytes);
        assert(status == KVT_OK);
        (void)status;
        view_gather_entry(&at, layout, packed);
        packed += bytes;
    }
}

/* The layers of a group that are wanted, when `before` layers come before it. False: none. */
static bool wanted_layers(const client_transfer *transfer, const kvt_layout *layout,
                          uint64_t before, uint32_t *first_out, uint32_t *count_out)
{
    const wire_get *get = &transfer->get;
    const uint64_t first = get->first_layer;
    const uint64_t end = get->layer_count == 0 ? UINT64_MAX : first + get->layer_count;
    const uint64_t begins = first > before ? first - before : 0;
    const uint64_t ends = end - before < layout->layers ? end - before : layout->layers;
    if (end <= before || begins >= ends) return false;
    *first_out = (uint32_t)begins;
    *count_out = (uint32_t)(ends - begins);
    return true;
}

/* Layers of a part, of which the first rows alone are there when tokens were dropped. */
static void copy_layers(const kvt_view *at, const kvt_layout *layout, uint32_t first,
                        uint32_t count, uint32_t tokens, const uint8_t *packed)
{
    if (tokens == 0 || tokens == layout->tokens) {
        view_scatter_entry(at, layout, first, count, packed);
        return;
    }
    const uint64_t row = kvt_layout_matrix_bytes(layout) / layout->tokens;
    for (uint32_t layer = first; layer < first + count; layer++)
        for (uint32_t side = 0; side < kvt_layout_sides(layout); side++) {
            const view_rows rows = view_rows_of(at, layout, tokens, layer, (kvt_side)side);
            view_rows_scatter(&rows, 0, row * tokens,
                              packed + kvt_layout_matrix_offset(layout, layer, (kvt_side)side));
            view_rows_close(&rows);
        }
}

/* Whether a get wants every layer of its entry. */
static bool wants_all(const client_transfer *transfer)
{
    const wire_get *get = &transfer->get;
    uint64_t layers = 0;
    for (uint32_t i = 0; i < part_count(transfer); i++) {
        const kvt_layout *layout;
        (void)part_of(transfer, i, &layout);
        layers += layout->layers;
    }
    return get->first_layer == 0 && (get->layer_count == 0 || get->layer_count >= layers);
}

static void copy_out(const client_transfer *transfer, uint32_t tokens)
{
    const uint8_t *packed = client_staging_of(&transfer->request);
    uint64_t before = 0;
    if (is_whole(transfer)) {
        base_copy_past(transfer->view->base[0], packed, transfer->packed_bytes);
        return;
    }
    for (uint32_t i = 0; i < part_count(transfer); i++) {
        const kvt_layout *layout;
        const kvt_view *part = part_of(transfer, i, &layout);
        uint64_t bytes = 0;
        uint32_t first, count;
        const kvt_status status = kvt_layout_bytes(layout, &bytes);
        assert(status == KVT_OK);
        (void)status;
        const kvt_view at = strided(part, layout);
        if (layout->dtype != KVT_DTYPE_OPAQUE) {
            if (wanted_layers(transfer, layout, before, &first, &count))
                copy_layers(&at, layout, first, count, tokens, packed);
            before += layout->layers;
        } else if (wants_all(transfer)) {
            base_copy_past(at.base[0], packed, bytes);
        }
        packed += bytes;
    }
}

/* ---- finishing ---- */

/* What is stored has been told: the next step is a get of it, packed. */
static kvt_status take_description(client_transfer *transfer)
{
    const client_request *request = &transfer->request;
    kvt_description told = {.struct_size = sizeof told, .groups_capacity = KVT_GROUPS_MAX};
    told.groups = calloc(KVT_GROUPS_MAX, sizeof *told.groups);
    if (told.groups == NULL) return KVT_E_MEMORY;
    kvt_status status =
        wire_describe_answer_read(client_record_of(request), request->done.answer_bytes, &told);
    if (status == KVT_OK && told.group_count > KVT_GROUPS_MAX) status = KVT_E_CORRUPT;
    if (status != KVT_OK) {
        free(told.groups);
        return KVT_MISS;
    }
    free(transfer->groups);
    transfer->groups = told.groups;
    transfer->group_count = told.group_count;
    transfer->layout = told.layout;
    transfer->packed_bytes = 0;
    for (uint32_t i = 0; i < part_count(transfer) && status == KVT_OK; i++) {
        uint64_t bytes = 0;
        status = kvt_layout_bytes(told.group_count != 0 ? &told.groups[i] : &told.layout, &bytes);
        transfer->packed_bytes += bytes;
    }
    if (status != KVT_OK) return KVT_MISS; /* no entry has such a layout */
    transfer->step = TRANSFER_STAGED;
    return check_view(transfer);
}

/* Whether the entry has the tokens that are said to be left: the copy goes by their number. */
static bool tokens_fit(const client_transfer *transfer, const kvt_kept_tokens *kept)
{
    const uint32_t tokens = kept != NULL ? kept->count : 0;
    if (transfer->step != TRANSFER_STAGED || is_whole(transfer)) return true;
    for (uint32_t i = 0; i < part_count(transfer); i++) {
        const kvt_layout *layout;
        (void)part_of(transfer, i, &layout);
        if (layout->dtype != KVT_DTYPE_OPAQUE && tokens > layout->tokens) return false;
    }
    return true;
}

/* Reads how a get was served, which its copy needs to know. KVT_OK; KVT_E_CORRUPT. */
static kvt_status take_answer(const client_transfer *transfer, kvt_get_info *whole)
{
    const client_request *request = &transfer->request;
    if (request->area == NULL || request->done.answer_bytes == 0) return KVT_OK;
    whole->kept = transfer->info != NULL ? transfer->info->kept : NULL;
    return wire_got_read(client_record_of(request), request->done.answer_bytes, whole);
}

/* Tells the caller. */
static void tell(const client_transfer *transfer, kvt_get_info *whole)
{
    const wire_completion *done = &transfer->request.done;
    if (transfer->info == NULL) return;
    whole->variant = done->variant;
    whole->stored_bytes = done->stored_bytes;
    whole->elapsed_ns = done->elapsed_ns;
    whole->timed_out = (done->flags & WIRE_TIMED_OUT) != 0;
    whole->refused_tokens = (done->flags & WIRE_REFUSED_TOKENS) != 0;
    whole->kept = transfer->info->kept;
    struct_size_out(transfer->info, whole, sizeof *whole);
}

/* What has come of a get that is no description. */
static kvt_status finish_get(client_transfer *transfer)
{
    kvt_status status = transfer->request.done.status;
    kvt_get_info whole = {.struct_size = sizeof whole,
                          .tier = (kvt_tier)transfer->request.done.tier};
    if (status == KVT_OK && take_answer(transfer, &whole) != KVT_OK) status = KVT_MISS;
    if (status == KVT_OK && !tokens_fit(transfer, whole.kept)) status = KVT_MISS;
    if (status == KVT_OK && transfer->step == TRANSFER_STAGED)
        copy_out(transfer, whole.kept != NULL ? whole.kept->count : 0);
    tell(transfer, &whole);
    return status;
}

kvt_status client_transfer_finish(client_transfer *transfer)
{
    const client_request *request = &transfer->request;
    assert(request->completed);
    if (transfer->entry != NULL) return request->done.status;
    if (transfer->misses) {
        /* Somebody has put it meanwhile: one byte is not enough for it. */
        const bool came = request->done.status == KVT_OK || request->done.status == KVT_E_ARGUMENT;
        return came ? KVT_MISS : finish_get(transfer);
    }
    if (transfer->step == TRANSFER_DESCRIBES && request->done.status == KVT_MISS &&
        request->area != NULL && request->area->staging.units > 0) {
        /* The store counts misses of gets: one byte is enough to ask for. */
        transfer->misses = true;
        transfer->step = TRANSFER_STAGED;
        transfer->packed_bytes = 1;
        return KVT_QUEUED;
    }
    if (transfer->step != TRANSFER_DESCRIBES || request->done.status != KVT_OK)
        return finish_get(transfer);
    const kvt_status status = take_description(transfer);
    return status == KVT_OK ? KVT_QUEUED : status;
}

void client_transfer_end(client_channel *channel, client_transfer *transfer)
{
    client_transfer_leave(transfer);
    client_request_free(channel, &transfer->request);
    free(transfer->groups);
    transfer->groups = NULL;
}
