/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_calls.h - the calls of a connected store, each as the public function of its name
 * (base/handle_calls.h). Thread rule: any thread.
 */
#ifndef SERVE_CLIENT_CLIENT_CALLS_H
#define SERVE_CLIENT_CLIENT_CALLS_H

#include "serve/client/client_internal.h"

/* client_calls.c */
kvt_status client_put(kvt_store *handle, const kvt_entry *entry, const kvt_view *view);
kvt_status client_get(kvt_store *handle, const kvt_key *key, const kvt_view *view,
                      uint64_t deadline_ns, kvt_get_info *info);
kvt_status client_exists(kvt_store *handle, const kvt_key *key);
kvt_status client_delete(kvt_store *handle, const kvt_key *key);
kvt_status client_describe(kvt_store *handle, const kvt_key *key, kvt_description *out);
kvt_status client_prefetch(kvt_store *handle, const kvt_key *key, kvt_tier tier);
kvt_status client_touch(kvt_store *handle, const kvt_key *keys, size_t count, size_t *touched_out);
kvt_status client_match(kvt_store *handle, const kvt_key *keys, size_t count,
                        const kvt_match *match, size_t *matched_out);
kvt_status client_prefix_get(kvt_store *handle, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, uint64_t deadline_ns, size_t *loaded_out);
kvt_status client_hint(kvt_store *handle, const kvt_key *keys, size_t count,
                       const kvt_expectation *expected, size_t *hinted_out);
kvt_status client_lease_begin(kvt_store *handle, kvt_queue *owner, const kvt_key *keys,
                              size_t count, uint64_t until_ns, bool *held_out, uint64_t *lease_out);
kvt_status client_lease_extend(kvt_store *handle, uint64_t lease, uint64_t until_ns);
kvt_status client_lease_end(kvt_store *handle, uint64_t lease);

/* client_control.c */
kvt_status client_explain(kvt_store *handle, const kvt_key *key, kvt_explanation *out);
kvt_status client_clear(kvt_store *handle, const kvt_clear_filter *filter, uint64_t *removed_out);
kvt_status client_flush(kvt_store *handle);
kvt_status client_persist(kvt_store *handle, uint64_t deadline_ns, kvt_persist_info *info_out);
kvt_status client_maintain(kvt_store *handle, uint32_t *moves_out);
kvt_status client_space_set(kvt_store *handle, uint64_t space, uint32_t tenant);
kvt_status client_space_stats(kvt_store *handle, uint64_t space, kvt_space_stats *stats);
kvt_status client_list(kvt_store *handle, const kvt_clear_filter *filter, uint64_t *cursor,
                       kvt_list_item *items, size_t capacity, size_t *count_out);
kvt_status client_tenant_set(kvt_store *handle, uint32_t tenant, const kvt_tenant *limits);
kvt_status client_stats(kvt_store *handle, kvt_store_stats *stats);
kvt_status client_device_stats(kvt_store *handle, size_t index, kvt_device_stats *out);
kvt_status client_class_stats(kvt_store *handle, uint32_t class_id, kvt_class_stats *out);
kvt_status client_health(kvt_store *handle, kvt_health_item *items, size_t capacity,
                         size_t *count_out, kvt_status *overall_out);
kvt_status client_device_change(kvt_store *handle, const char *name, kvt_device_action action);
size_t client_metrics(kvt_store *handle, char *text, size_t size);
kvt_status client_operations(kvt_store *handle, kvt_operation *out, size_t capacity,
                             size_t *count_out);
kvt_status client_observe(kvt_store *handle, const kvt_key *key, kvt_variant variant, double loss,
                          double weight);
kvt_status client_remote_flush(kvt_store *handle, uint64_t deadline_ns);
kvt_status client_remote_stats(kvt_store *handle, kvt_remote_stats *stats);
kvt_status client_remote_node(kvt_store *handle, uint32_t index, kvt_remote_node *node);

/* client_events.c */
kvt_status client_events_open(kvt_store *handle, uint32_t capacity, kvt_events **events_out);

/* client_passes.c */
kvt_status client_pass_begin(kvt_store *handle, const kvt_pass *pass, uint64_t *pass_out);
kvt_status client_pass_layer(kvt_store *handle, uint64_t pass, uint32_t layer);
kvt_status client_pass_end(kvt_store *handle, uint64_t pass);
kvt_status client_pass_table_set(kvt_store *handle, const kvt_pass_row *rows, size_t count);
kvt_status client_basis_add(kvt_store *handle, const void *bytes, uint64_t size);
kvt_status client_basis_remove(kvt_store *handle, const uint8_t *hash);
kvt_status client_basis_get(kvt_store *handle, size_t index, kvt_basis_info *out);

#endif
