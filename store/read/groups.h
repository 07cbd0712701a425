/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.h - entries of several groups of layers (kvt_entry.groups): their layouts, the variant of
 * each group, their record's size, their bytes in views.
 *
 * Inside the store such an entry has the layout of an opaque one, of all groups' bytes, and its
 * kind has the groups' layouts; its place has one variant, as any place. This file says what that
 * variant is for each group: the ladder's lossy variants are for the groups of the ladder's shape,
 * when these have as many layers together as the ladder; all others take the densest exact variant
 * of the store. No group drops tokens.
 *
 * Thread rule: re-entrant on what is fixed after open.
 */
#ifndef STORE_GROUPS_H
#define STORE_GROUPS_H

#include "codecs/record_groups.h"
#include "store/core/store.h"

/* Copies a caller's entry with its groups in *whole and gives it the layout that stands for them.
 * The entry as it is, when it has no groups; NULL: groups and group_count contradict each other or
 * the layout, or a group's layout is unsound. */
const kvt_entry *groups_take_entry(const kvt_entry *given, kvt_entry *whole);

/* Whether layers of a layout are of the ladder's shape, their number and sides aside: V alone may
 * have another width. */
bool groups_has_shape(const kvt_layout *ladder, const kvt_layout *group);

/* Whether the lossy groups of a kind may be stored in a variant: a basis is of all layers, and of K
 * and V. */
bool groups_take(const kvt_store *store, const entry_kind *kind, uint64_t lossy,
                 kvt_variant variant);

/* Groups that lossy variants are for, a bit each; 0: exact variants alone. */
uint64_t groups_lossy(const kvt_store *store, const kvt_layout *layouts, uint32_t count);

/* The store's variant that groups are stored in which a lossy one is not for: its place in
 * costs.variants. */
uint32_t groups_exact(const kvt_store *store);

/* The specification of a record: `spec` has key, generation, variant and first position. variants
 * has room for KVT_GROUPS_MAX and stays the caller's, as layouts do. */
record_groups_spec groups_spec(const kvt_store *store, const kvt_record_spec *spec,
                               const kvt_layout *layouts, uint32_t count, kvt_variant *variants);

/* Room for a record, and scratch to make it of the views, or of packed bytes when views is NULL.
 * Statuses as of record_groups_bound. */
KVT_NODISCARD kvt_status groups_bound(const kvt_store *store, const record_groups_spec *spec,
                                      const kvt_view *views, uint64_t *bytes_out,
                                      uint64_t *scratch_bytes_out);

/* Whether a view is of groups, which may be named in it: its struct_size is sound, and so is their
 * number. */
bool groups_are_named(const kvt_view *view);

/* Checks a caller's view of an entry of groups, or of one without (grouped false, one layout), and
 * makes a view with strides or bases of each group. views_out has room for KVT_GROUPS_MAX of them,
 * or for `count` where the view is not packed. Statuses as of kvt_view_check; KVT_E_ARGUMENT also
 * for NULL and for another number of groups. An entry without groups takes groups of one, too. */
KVT_NODISCARD kvt_status groups_take_view(const kvt_layout *layouts, uint32_t count, bool grouped,
                                          const kvt_view *view, kvt_view *views_out);

/* Bytes of a group; its layout is sound. */
uint64_t groups_bytes(const kvt_layout *layout);

/* Copies the groups' bytes from their views into packed memory, and packed bytes of layers that the
 * groups have into the views: layer_count of them from first_layer on, 0 for all that follow, as
 * record_groups_range_of counts. */
void groups_gather(const kvt_layout *layouts, const kvt_view *views, uint32_t count, void *packed);
void groups_scatter(const kvt_layout *layouts, const kvt_view *views, uint32_t count,
                    uint32_t first_layer, uint32_t layer_count, const void *packed);

#endif
