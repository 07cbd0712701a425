/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.c - what the store knows of entries of several groups beside their opaque layout. The file
 * makes no record and decides on no variant; it turns the policy's one variant into one for each
 * group.
 */
#include "store/read/groups.h"
#include "codecs/codec_table.h"

#include "base/struct_size.h"
#include "codecs/view_rows.h"

#include <assert.h>
#include <string.h>

const kvt_entry *groups_take_entry(const kvt_entry *given, kvt_entry *whole)
{
    static const kvt_layout none;
    if (given->groups == NULL && given->group_count == 0) return given;
    if (given->groups == NULL || memcmp(&given->layout, &none, sizeof none) != 0) return NULL;
    if (whole != given) *whole = *given;
    if (record_groups_layout(given->groups, given->group_count, &whole->layout) != KVT_OK)
        return NULL;
    return whole;
}

bool groups_has_shape(const kvt_layout *ladder, const kvt_layout *group)
{
    const bool v_alone = group->sides == KVT_SIDES_V;
    return group->dtype != KVT_DTYPE_OPAQUE && group->kv_heads == ladder->kv_heads &&
           (group->head_dim == ladder->head_dim || v_alone) && group->dtype == ladder->dtype;
}

uint64_t groups_lossy(const kvt_store *store, const kvt_layout *layouts, uint32_t count)
{
    const kvt_layout *ladder = &store->ladder_layout;
    uint64_t mask = 0;
    const bool both = kvt_layout_sides(ladder) == 2;
    uint32_t k = 0, v = 0; /* layers */
    assert(count <= KVT_GROUPS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const bool one = kvt_layout_sides(&layouts[i]) == 1;
        if (!groups_has_shape(ladder, &layouts[i]) || (!both && !one)) continue;
        mask |= UINT64_C(1) << i;
        if (layouts[i].sides != KVT_SIDES_V) k += layouts[i].layers;
        if (layouts[i].sides == KVT_SIDES_V || !one) v += layouts[i].layers;
    }
    /* A calibration is of a model whose layers are all coded: of fewer, or more, nothing is known.
     * Entries of one side have one of them alone. */
    const bool k_whole = k == ladder->layers || (!both && k == 0);
    const bool v_whole = v == ladder->layers || (!both && v == 0);
    return k_whole && v_whole ? mask : 0;
}

bool groups_take(const kvt_store *store, const entry_kind *kind, uint64_t lossy,
                 kvt_variant variant)
{
    const kvt_layout *ladder = &store->ladder_layout;
    if (variant.codec != KVT_CODEC_TRANSFORM) return true;
    for (uint32_t i = 0; i < kind->group_count; i++) {
        const kvt_layout *group = &kind->groups[i];
        if ((lossy >> i & 1) == 0) continue;
        if (group->layers != ladder->layers || !codecs_same_sides(group, ladder)) return false;
    }
    return true;
}

uint32_t groups_exact(const kvt_store *store)
{
    assert(store->exact_variants > 0);
    return store->exact_variants - 1;
}

record_groups_spec groups_spec(const kvt_store *store, const kvt_record_spec *spec,
                               const kvt_layout *layouts, uint32_t count, kvt_variant *variants)
{
    const bool exact = kvt_codec_is_exact(spec->variant);
    const uint64_t lossy = exact ? 0 : groups_lossy(store, layouts, count);
    for (uint32_t i = 0; i < count; i++) {
        variants[i] = spec->variant;
        if (!exact && (lossy >> i & 1) == 0)
            variants[i] = store->costs.variants[groups_exact(store)].variant;
    }
    return (record_groups_spec){.key = spec->key,
                                .generation = spec->generation,
                                .variant = spec->variant,
                                .first_position = spec->first_position,
                                .count = count,
                                .layouts = layouts,
                                .variants = variants,
                                .bases = spec->bases};
}

kvt_status groups_bound(const kvt_store *store, const record_groups_spec *spec,
                        const kvt_view *views, uint64_t *bytes_out, uint64_t *scratch_bytes_out)
{
    bool apart = false;
    for (uint32_t i = 0; views != NULL && i < spec->count; i++)
        apart = apart || (spec->variants[i].codec != KVT_CODEC_RAW &&
                          view_is_apart(&views[i], &spec->layouts[i]));
    return record_groups_bound(spec, store->workers != NULL ? store->workers->count : 0, apart,
                               bytes_out, scratch_bytes_out);
}

bool groups_are_named(const kvt_view *view)
{
    return struct_size_is_sound(view, STRUCT_SIZE_THROUGH(kvt_view, reserved)) &&
           view->bases_kind == KVT_BASES_GROUPS && view->groups != NULL && view->group_count != 0 &&
           view->group_count <= KVT_GROUPS_MAX;
}

/* Gives a view that was made of another one the same memory. */
static void groups_name_memory(const kvt_view *from, kvt_view *view)
{
    view->memory = from->memory;
    view->gpu = from->gpu;
    view->ready = from->ready;
}

/* The same of one group, or of an entry without any. */
static kvt_status groups_take_one(const kvt_layout *layout, const kvt_view *view,
                                  kvt_view *view_out)
{
    if (view == NULL) return KVT_E_ARGUMENT;
    const kvt_status status = kvt_view_check(view, layout, NULL, 0);
    kvt_view whole = {.struct_size = sizeof whole};
    if (status != KVT_OK) return status;
    *view_out = *(const kvt_view *)struct_size_in(view, &whole, sizeof whole,
                                                  STRUCT_SIZE_THROUGH(kvt_view, reserved));
    if (view->bases_kind == KVT_BASES_PACKED) {
        *view_out = codecs_packed_view(layout, view->base[0]);
        groups_name_memory(view, view_out);
    }
    return KVT_OK;
}

kvt_status groups_take_view(const kvt_layout *layouts, uint32_t count, bool grouped,
                            const kvt_view *view, kvt_view *views_out)
{
    assert(count > 0 && count <= KVT_GROUPS_MAX && (grouped || count == 1));
    if (view == NULL) return KVT_E_ARGUMENT;
    if (!grouped) {
        const bool one = groups_are_named(view) && view->group_count == 1;
        return groups_take_one(layouts, one ? view->groups[0] : view, views_out);
    }
    if (view->bases_kind == KVT_BASES_PACKED) {
        kvt_layout whole; /* of all groups' bytes */
        kvt_status status = record_groups_layout(layouts, count, &whole);
        if (status == KVT_OK) status = kvt_view_check(view, &whole, NULL, 0);
        if (status == KVT_OK) record_groups_pack(layouts, count, view->base[0], views_out);
        for (uint32_t i = 0; i < count && status == KVT_OK; i++)
            groups_name_memory(view, &views_out[i]);
        return status;
    }
    if (!groups_are_named(view) || view->group_count != count) return KVT_E_ARGUMENT;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status = groups_take_one(&layouts[i], view->groups[i], &views_out[i]);
    return status;
}

uint64_t groups_bytes(const kvt_layout *layout)
{
    uint64_t bytes;
    kvt_status status = kvt_layout_bytes(layout, &bytes);
    assert(status == KVT_OK);
    (void)status;
    return bytes;
}

void groups_gather(const kvt_layout *layouts, const kvt_view *views, uint32_t count, void *packed)
{
    uint8_t *at = packed;
    for (uint32_t i = 0; i < count; at += groups_bytes(&layouts[i]), i++)
        view_gather_entry(&views[i], &layouts[i], at);
}

void groups_scatter(const kvt_layout *layouts, const kvt_view *views, uint32_t count,
                    uint32_t first_layer, uint32_t layer_count, const void *packed)
{
    const uint8_t *at = packed;
    record_groups_range range;
    bool has = record_groups_range_of(layouts, count, first_layer, layer_count, &range);
    assert(has);
    (void)has;
    uint32_t before = 0;
    for (uint32_t i = 0; i < count; at += groups_bytes(&layouts[i]), i++) {
        uint32_t first, layers;
        if (record_groups_part(&range, &layouts[i], before, &first, &layers))
            view_scatter_entry(&views[i], &layouts[i], first, layers, at);
        before += layouts[i].layers;
    }
}
