/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_check.c - whether a view is one of its layout, lies inside its buffers and meets itself
 * nowhere.
 *
 * Every axis of a view, its addresses included, has a gap (the least distance of two members) and a
 * reach (the distance of the first and the last). Ordered by their gaps, each gap must be at least
 * as long as all that lies inside of it: a head, and the reaches of the axes before. Re-entrant.
 */
#include "base/struct_size.h"
#include "codecs/view_rows.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VIEW_AXES_MAX = 6,   /* head, token, block, side, layer, addresses */
    VIEW_SORT_ROOM = 512 /* numbers that are sorted without an allocation */
};

#define VIEW_REACH_MAX (UINT64_C(1) << 62) /* sums of a few of them do not overflow */

/* One axis of a view; see the head of the file. Distances in bytes. */
typedef struct view_axis {
    const char *name;
    uint64_t gap;
    uint64_t reach;
} view_axis;

/* A check under way. The axes are collected in any order, and ordered at the end. */
typedef struct view_checker {
    const kvt_view *view;
    const kvt_layout *layout;
    uint32_t element; /* bytes */
    uint64_t head_bytes;
    uint64_t need; /* bytes behind an address, as far as the axes were seen */
    view_axis axes[VIEW_AXES_MAX];
    uint32_t axis_count;
    char *message;
    size_t message_size;
} view_checker;

/* Writes the message. */
static __attribute__((format(printf, 2, 3))) kvt_status view_refuse(const view_checker *checker,
                                                                    const char *format, ...)
{
    va_list arguments;
    if (checker->message_size == 0) return KVT_E_ARGUMENT;
    va_start(arguments, format);
    vsnprintf(checker->message, checker->message_size, format, arguments);
    va_end(arguments);
    return KVT_E_ARGUMENT;
}

/* Adds an axis of at least two members; its reach is at least one gap. */
static void view_add_axis(view_checker *checker, const char *name, uint64_t gap, uint64_t reach)
{
    assert(checker->axis_count < VIEW_AXES_MAX && reach >= gap);
    checker->axes[checker->axis_count++] = (view_axis){name, gap, reach};
}

/* Checks a stride that counts. */
static kvt_status view_check_stride(const view_checker *checker, const char *name, int64_t stride)
{
    if (stride < 0) return view_refuse(checker, "%s_stride is negative", name);
    if (stride % checker->element != 0) {
        return view_refuse(checker, "%s_stride of %lld bytes is no multiple of an element", name,
                           (long long)stride);
    }
    return KVT_OK;
}

/* Adds `count` times a stride to what an address needs. */
static kvt_status view_add_need(view_checker *checker, const char *name, int64_t stride,
                                uint64_t count)
{
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)stride, count, &bytes) || bytes > VIEW_REACH_MAX ||
        checker->need + bytes > VIEW_REACH_MAX) {
        return view_refuse(checker, "%s_stride of %lld bytes overflows", name, (long long)stride);
    }
    checker->need += bytes;
    assert(checker->need <= VIEW_REACH_MAX);
    return KVT_OK;
}

/* An axis of `count` members from the first on, at a stride. */
static kvt_status view_take_axis(view_checker *checker, const char *name, int64_t stride,
                                 uint64_t count)
{
    const uint64_t before = checker->need;
    if (count <= 1) return KVT_OK;
    kvt_status status = view_check_stride(checker, name, stride);
    if (status == KVT_OK) status = view_add_need(checker, name, stride, count - 1);
    if (status != KVT_OK) return status;
    view_add_axis(checker, name, (uint64_t)stride, checker->need - before);
    return KVT_OK;
}

/* ---- numbers in any order ---- */

/* Reads the number at an index of a caller's list, which may hold blocks or addresses. */
typedef uint64_t (*view_number)(const void *list, size_t index);

/* The number of a block in the caller's table. */
static uint64_t view_block_at(const void *list, size_t index)
{
    return ((const uint32_t *)list)[index];
}

/* An address of the caller's list, as a number: distances of addresses are compared, and addresses
 * of different objects have none in C. */
static uint64_t view_address_at(const void *list, size_t index)
{
    return (uintptr_t)((void *const *)list)[index];
}

/* K's address of a layer. */
static uint64_t view_pair_at(const void *list, size_t index)
{
    return view_address_at(list, 2 * index);
}

/* How numbers lie, whatever their order. */
typedef struct view_spread {
    uint64_t least;
    uint64_t most;
    uint64_t gap; /* the least distance of two; 0: one is there twice */
} view_spread;

/* Ascending, for qsort. */
static int view_compare(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Looks at numbers that ascend. False when they do not. */
static bool view_spread_ascending(const void *list, view_number number, size_t count,
                                  view_spread *spread)
{
    spread->gap = UINT64_MAX;
    spread->least = number(list, 0);
    spread->most = spread->least;
    for (size_t i = 1; i < count; i++) {
        const uint64_t next = number(list, i);
        if (next <= spread->most) return false;
        if (next - spread->most < spread->gap) spread->gap = next - spread->most;
        spread->most = next;
    }
    return true;
}

/* Distances of at least two numbers. KVT_OK; KVT_E_MEMORY. */
static kvt_status view_spread_of(const void *list, view_number number, size_t count,
                                 view_spread *spread)
{
    uint64_t room[VIEW_SORT_ROOM];
    uint64_t *sorted = room;
    assert(count >= 2);
    if (view_spread_ascending(list, number, count, spread)) return KVT_OK;
    if (count > VIEW_SORT_ROOM) sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < count; i++) {
        sorted[i] = number(list, i);
    }
    qsort(sorted, count, sizeof *sorted, view_compare);
    spread->least = sorted[0];
    spread->most = sorted[count - 1];
    spread->gap = UINT64_MAX;
    for (size_t i = 1; i < count; i++) {
        const uint64_t gap = sorted[i] - sorted[i - 1];
        if (gap < spread->gap) spread->gap = gap;
    }
    if (sorted != room) free(sorted);
    return KVT_OK;
}

/* ---- tokens ---- */

/* The offset of the last byte's token, over all blocks. */
static kvt_status view_need_blocks(view_checker *checker, uint64_t used)
{
    const kvt_view *view = checker->view;
    const uint64_t before = checker->need;
    const uint64_t end = view->first_slot + (uint64_t)checker->layout->tokens - 1;
    uint64_t most = 0;
    for (uint64_t i = 0; i < used; i++) {
        const uint64_t number = view->blocks != NULL ? view->blocks[i] : i;
        const uint64_t last =
            i + 1 == used ? end % view->tokens_per_block : view->tokens_per_block - 1;
        checker->need = before;
        kvt_status status = view_add_need(checker, "block", view->block_stride, number);
        if (status == KVT_OK && last != 0) {
            status = view_add_need(checker, "token", view->token_stride, last);
        }
        if (status != KVT_OK) return status;
        if (checker->need > most) most = checker->need;
    }
    checker->need = most;
    return KVT_OK;
}

/* The block table: each number once. */
static kvt_status view_take_blocks(view_checker *checker, uint64_t used)
{
    const kvt_view *view = checker->view;
    view_spread spread = {0, used - 1, 1};
    if (used > 1 && view->blocks != NULL) {
        kvt_status status = view_spread_of(view->blocks, view_block_at, used, &spread);
        if (status != KVT_OK) return status;
    }
    if (spread.gap == 0) return view_refuse(checker, "blocks names a block twice");
    if (used > 1) {
        /* view_need_blocks has seen that the products are small. */
        const uint64_t stride = (uint64_t)view->block_stride;
        view_add_axis(checker, "block", spread.gap * stride, (spread.most - spread.least) * stride);
    }
    return KVT_OK;
}

/* Takes the tokens of a paged view: an axis of blocks, and one of the slots inside a block. The
 * first block may begin at a slot, and the last one may be filled in part. */
static kvt_status view_take_paged(view_checker *checker)
{
    const kvt_view *view = checker->view;
    const uint64_t tokens = checker->layout->tokens;
    const uint64_t used =
        (view->first_slot + tokens + view->tokens_per_block - 1) / view->tokens_per_block;
    const uint64_t slots = used == 1 ? tokens : view->tokens_per_block;
    kvt_status status = KVT_OK;
    if (view->first_slot >= view->tokens_per_block) {
        return view_refuse(checker, "first_slot %u lies beyond a block of %u tokens",
                           view->first_slot, view->tokens_per_block);
    }
    if (view->blocks == NULL && view->block_count != 0) {
        return view_refuse(checker, "block_count is %u, and blocks is NULL", view->block_count);
    }
    if (view->blocks != NULL && used > view->block_count) {
        return view_refuse(checker, "block_count is %u, and %llu tokens need %llu",
                           view->block_count, (unsigned long long)tokens, (unsigned long long)used);
    }
    if (view->blocks != NULL || used > 1) {
        status = view_check_stride(checker, "block", view->block_stride);
    }
    if (status == KVT_OK && (slots > 1 || view->first_slot != 0)) {
        status = view_check_stride(checker, "token", view->token_stride);
    }
    if (status == KVT_OK) status = view_need_blocks(checker, used);
    if (status == KVT_OK) status = view_take_blocks(checker, used);
    if (status == KVT_OK && slots > 1) {
        view_add_axis(checker, "token", (uint64_t)view->token_stride,
                      (slots - 1) * (uint64_t)view->token_stride);
    }
    return status;
}

/* Takes the axis of tokens. Without blocks, first_slot shifts all addresses, so it counts as need
 * and not as an axis. */
static kvt_status view_take_tokens(view_checker *checker)
{
    const kvt_view *view = checker->view;
    if (view->tokens_per_block != 0) return view_take_paged(checker);
    if (view->blocks != NULL || view->block_count != 0) {
        return view_refuse(checker, "blocks or block_count are set, and tokens_per_block is 0");
    }
    kvt_status status = KVT_OK;
    if (view->first_slot != 0) {
        status = view_check_stride(checker, "token", view->token_stride);
        if (status == KVT_OK) {
            status = view_add_need(checker, "token", view->token_stride, view->first_slot);
        }
    }
    if (status != KVT_OK) return status;
    return view_take_axis(checker, "token", view->token_stride, checker->layout->tokens);
}

/* ---- addresses ---- */

/* Checks one address, field[index]: it is there, aligned to an element, and what the axes need lies
 * inside its buffer, which ends below the end of the address space. */
static kvt_status view_check_address(const view_checker *checker, const char *field, size_t index,
                                     const void *address, uint64_t bytes)
{
    if (address == NULL) return view_refuse(checker, "%s[%zu] is NULL", field, index);
    if ((uintptr_t)address % checker->element != 0) {
        return view_refuse(checker, "%s[%zu] is no multiple of an element's %u bytes", field, index,
                           checker->element);
    }
    if (bytes > UINTPTR_MAX - (uintptr_t)address) {
        return view_refuse(checker, "%s[%zu]: a buffer of %llu bytes ends beyond the address space",
                           field, index, (unsigned long long)bytes);
    }
    if (checker->need > bytes) {
        return view_refuse(checker, "%s[%zu]: the view needs %llu bytes of a buffer of %llu", field,
                           index, (unsigned long long)checker->need, (unsigned long long)bytes);
    }
    return KVT_OK;
}

/* Addresses in a list, of layers or of layers and sides. */
static kvt_status view_take_list(view_checker *checker, bool sides)
{
    const kvt_view *view = checker->view;
    const size_t layers = checker->layout->layers;
    const bool pairs = sides && kvt_layout_sides(checker->layout) == 2;
    const size_t count = pairs ? 2 * layers : layers;
    if (view->bases == NULL)
        return view_refuse(checker, "bases is NULL, and bases_kind asks for it");
    if (view->base_count != 0 && view->base_count != count)
        return view_refuse(checker, "base_count is %llu, and the layout has %zu addresses",
                           (unsigned long long)view->base_count, count);
    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes =
            view->bases_bytes != NULL ? view->bases_bytes[i] : view->base_bytes[0];
        kvt_status status = view_check_address(checker, "bases", i, view->bases[i], bytes);
        if (status != KVT_OK) return status;
    }
    /* Sides that lie as far apart in every layer are an axis; a layer's address is K's then. */
    bool even = pairs;
    const uint64_t k = pairs ? view_address_at(view->bases, 0) : 0;
    const uint64_t v = pairs ? view_address_at(view->bases, 1) : 0;
    for (size_t layer = 0; even && layer < layers; layer++) {
        even =
            view_address_at(view->bases, 2 * layer + 1) - view_pair_at(view->bases, layer) == v - k;
    }
    if (even) view_add_axis(checker, "side", v > k ? v - k : k - v, v > k ? v - k : k - v);
    const size_t members = pairs && !even ? count : layers;
    view_spread spread;
    if (members <= 1) return KVT_OK;
    kvt_status status =
        view_spread_of(view->bases, even ? view_pair_at : view_address_at, members, &spread);
    if (status == KVT_OK) {
        view_add_axis(checker, "bases", spread.gap, spread.most - spread.least);
    }
    return status;
}

/* Takes the addresses, one, two or a list, as the last axis: all that lies behind one address has
 * been summed up in `need` by now. */
static kvt_status view_take_bases(view_checker *checker)
{
    const kvt_view *view = checker->view;
    const bool listed = view->bases_kind >= KVT_BASES_LAYERS;
    const bool two = view->bases_kind == KVT_BASES_SIDES;
    if (!listed && (view->bases != NULL || view->bases_bytes != NULL || view->base_count != 0)) {
        return view_refuse(
            checker, "bases, their bytes or count are set, and bases_kind has no use for them");
    }
    if (view->base[1] != NULL && !two) {
        return view_refuse(checker, "base[1] is set, and bases_kind has no use for it");
    }
    if (listed && view->base[0] != NULL) {
        return view_refuse(checker, "base[0] is set beside bases");
    }
    if (listed) return view_take_list(checker, view->bases_kind == KVT_BASES_LAYERS_SIDES);
    kvt_status status = view_check_address(checker, "base", 0, view->base[0], view->base_bytes[0]);
    if (status != KVT_OK || !two) return status;
    status = view_check_address(checker, "base", 1, view->base[1], view->base_bytes[1]);
    if (status != KVT_OK) return status;
    const uint64_t k = (uintptr_t)view->base[0], v = (uintptr_t)view->base[1];
    view_add_axis(checker, "side", v > k ? v - k : k - v, v > k ? v - k : k - v);
    return KVT_OK;
}

/* ---- the whole ---- */

/* Orders the axes by their gaps, and refuses a view in which an axis steps into what lies inside of
 * it. Axes are few, so they are sorted by insertion. */
static kvt_status view_check_nesting(view_checker *checker)
{
    view_axis *axes = checker->axes;
    for (uint32_t i = 1; i < checker->axis_count; i++) {
        for (uint32_t k = i; k > 0 && axes[k].gap < axes[k - 1].gap; k--) {
            const view_axis swapped = axes[k];
            axes[k] = axes[k - 1];
            axes[k - 1] = swapped;
        }
    }
    uint64_t inside = checker->head_bytes;
    for (uint32_t i = 0; i < checker->axis_count; i++) {
        assert(i == 0 || axes[i - 1].gap <= axes[i].gap);
        if (axes[i].gap < inside) {
            return view_refuse(checker,
                               "%s: one is %llu bytes from the next and has %llu inside: "
                               "elements overlap or interleave",
                               axes[i].name, (unsigned long long)axes[i].gap,
                               (unsigned long long)inside);
        }
        /* Addresses may be far apart; nothing lies outside of the axis that passes the limit. */
        inside = axes[i].reach > UINT64_MAX - inside ? UINT64_MAX : inside + axes[i].reach;
    }
    return KVT_OK;
}

/* Whether a view says more than where one run of bytes is. */
static bool view_has_axes(const kvt_view *view)
{
    return view->layer_stride != 0 || view->side_stride != 0 || view->block_stride != 0 ||
           view->token_stride != 0 || view->head_stride != 0 || view->tokens_per_block != 0 ||
           view->first_slot != 0 || view->blocks != NULL || view->block_count != 0;
}

/* An opaque entry is a run of bytes: nothing of the layout tells its parts. */
static kvt_status view_check_opaque(view_checker *checker)
{
    const kvt_view *view = checker->view;
    if (view->bases_kind != KVT_BASES_ONE || view_has_axes(view)) {
        return view_refuse(checker, "an opaque entry has base[0] alone: no strides, no blocks");
    }
    checker->need = checker->layout->opaque_bytes;
    return view_take_bases(checker);
}

/* A packed buffer has the size of its entry. */
static kvt_status view_check_packed(const view_checker *checker, uint64_t bytes)
{
    const kvt_view *view = checker->view;
    if (view_has_axes(view) || view->bases != NULL || view->bases_bytes != NULL ||
        view->base_count != 0 || view->base[1] != NULL || view->base_bytes[1] != 0) {
        return view_refuse(checker, "a packed buffer has base[0] alone: no strides, no blocks");
    }
    if (view->base[0] == NULL) return view_refuse(checker, "base[0] is NULL");
    if (view->base_bytes[0] == bytes) return KVT_OK;
    return view_refuse(checker, "the buffer has %llu bytes, the entry %llu",
                       (unsigned long long)view->base_bytes[0], (unsigned long long)bytes);
}

/* Fields that this version does not know are zero. */
static kvt_status view_check_fields(const view_checker *checker)
{
    const kvt_view *view = checker->view;
    if (view->bases_kind == KVT_BASES_GROUPS) {
        return view_refuse(checker, "a view of groups: each of its views has a layout of its own");
    }
    bool unknown = view->memory > KVT_MEMORY_GPU;
    for (size_t i = 0; i < sizeof view->reserved / sizeof view->reserved[0]; i++) {
        unknown = unknown || view->reserved[i] != 0;
    }
    if (unknown) {
        (void)view_refuse(checker,
                          "memory or reserved fields are set to what this version does not know");
        return KVT_E_UNSUPPORTED;
    }
    if (view->memory == KVT_MEMORY_HOST && (view->gpu != 0 || view->ready != NULL)) {
        return view_refuse(checker, "a GPU or an event is set, and memory is the host's");
    }
    if (view->groups != NULL || view->group_count != 0) {
        return view_refuse(checker, "groups are set, and bases_kind is not KVT_BASES_GROUPS");
    }
    if (view->dtype != 0 && view->dtype != checker->layout->dtype) {
        return view_refuse(checker, "the view is of elements of kvt_dtype %u, the entry of %u",
                           view->dtype, (unsigned)checker->layout->dtype);
    }
    if (view->bases_kind > KVT_BASES_PACKED) {
        return view_refuse(checker, "bases_kind %u is no kvt_bases", view->bases_kind);
    }
    return KVT_OK;
}

kvt_status kvt_view_check(const kvt_view *view, const kvt_layout *layout, char *message,
                          size_t message_size)
{
    uint64_t bytes;
    kvt_view whole = {.struct_size = sizeof whole};
    view_checker checker = {.layout = layout, .message = message, .message_size = message_size};
    assert(view != NULL && layout != NULL && (message != NULL || message_size == 0));
    if (kvt_layout_bytes(layout, &bytes) != KVT_OK) return view_refuse(&checker, "the layout");
    const uint32_t size = view->struct_size;
    view = struct_size_in(view, &whole, sizeof whole, STRUCT_SIZE_THROUGH(kvt_view, reserved));
    if (view == NULL)
        return view_refuse(&checker, "struct_size %u is not one that this version takes", size);
    checker.view = view;
    checker.element = kvt_dtype_bytes(layout->dtype);
    kvt_status status = view_check_fields(&checker);
    if (status != KVT_OK) return status;
    if (view->bases_kind == KVT_BASES_PACKED) return view_check_packed(&checker, bytes);
    if (layout->dtype == KVT_DTYPE_OPAQUE) return view_check_opaque(&checker);
    const uint32_t sides = kvt_layout_sides(layout);
    const bool per_side =
        view->bases_kind == KVT_BASES_SIDES || view->bases_kind == KVT_BASES_LAYERS_SIDES;
    if (view->bases_kind == KVT_BASES_SIDES && sides != 2) {
        return view_refuse(&checker, "bases_kind has K and V, and the layout has one side");
    }
    checker.head_bytes = (uint64_t)layout->head_dim * checker.element;
    checker.need = checker.head_bytes;
    status = view_take_axis(&checker, "head", view->head_stride, layout->kv_heads);
    if (status == KVT_OK && !per_side) {
        status = view_take_axis(&checker, "side", view->side_stride, sides);
    }
    if (status == KVT_OK && view->bases_kind <= KVT_BASES_SIDES) {
        status = view_take_axis(&checker, "layer", view->layer_stride, layout->layers);
    }
    if (status == KVT_OK) status = view_take_tokens(&checker);
    if (status == KVT_OK) status = view_take_bases(&checker);
    return status == KVT_OK ? view_check_nesting(&checker) : status;
}
