/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_fork.c - every public function that takes a store or a handle that came from one, in
 * a child of fork while the locks of all of them are held: each returns at once, ends nothing, and
 * the parent goes on. And each on a connected store and on a follower, which have some of them. The
 * headers say which functions these are; one that the table lacks fails.
 */
#include "lent_store.h"
#include "sequence_site.h"

#include "store/core/store.h"
#include "store/read/load_internal.h"
#include "store/ring/ring_internal.h"
#include "store/watch/watching.h"

#include <ctype.h>
#include <dirent.h>
#include <kvterrace/basis.h>
#include <kvterrace/config.h>
#include <kvterrace/connect.h>
#include <kvterrace/gpu.h>
#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/remote.h>
#include <kvterrace/ring.h>
#include <kvterrace/watch.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { MIB = 1 << 20, TEXT_BYTES = 1 << 20 };

/* Everything that a call may want. */
typedef struct site {
    sequence_site *sequences;
    kvt_store *store;
    kvt_queue *queue, *opened_queue;
    kvt_load *load, *opened_load;
    kvt_events *events, *opened_events;
    kvt_sparse *sequence, *selecting, *opened_sequence;
    kvt_sparse_step *step, *opened_step;
    kvt_sparse_options sparse_options;
    kvt_sparse_given given;
    const void *index_keys;
    const kvt_sparse_pages *pages;
    float queries[SITE_QUERY];
    uint64_t lease;
    kvt_key key;
    kvt_entry entry;
    kvt_view view;
    const kvt_view *views;
    char data[SUPPORT_ENTRY_BYTES], text[256];
    void *memory;
    bool held;
    size_t count;
    uint32_t moves;
    double seconds;
    uint64_t number;
    kvt_status status;
    kvt_request request;
    kvt_completion completion;
    kvt_operation operation;
    kvt_event event;
    kvt_clear_filter filter;
    kvt_expectation expectation;
    kvt_tenant tenant;
    kvt_worth worth;
    kvt_description description;
    kvt_explanation explanation;
    kvt_store_stats stats;
    kvt_device_stats device_stats;
    kvt_class_stats class_stats;
    kvt_space_stats space_stats;
    kvt_list_item listed;
    uint64_t cursor;
    kvt_queue_stats queue_stats;
    kvt_remote_stats remote_stats;
    kvt_remote_node node;
    kvt_sparse_stats sparse_stats;
    kvt_basis_info basis;
    kvt_health_item health;
    kvt_persist_info persist;
    kvt_gpu_stats gpu_stats;
    kvt_pass pass;
    kvt_ring *ring, *opened_ring;
    kvt_ring_memory ring_memory;
    kvt_ring_stats ring_stats;
    kvt_ring_iocb iocb;
    uint32_t region;
    uint64_t object;
} site;

/* What a function without a status gives in its place: `gone` when it says that there is nothing.
 */
static kvt_status state_if(bool gone)
{
    return gone ? KVT_E_STATE : KVT_OK;
}

#define NEVER       KVT_NO_DEADLINE
#define QUIET(call) ((call), KVT_E_STATE)

/* Each function once, with arguments that it takes where the store is its own. */
#define CALLS(X)                                                                                   \
    X(kvt_region_make, kvt_region_make(s->store, 4096, &s->memory))                                \
    X(kvt_region_add, kvt_region_add(s->store, 0, 0, 4096, s->data))                               \
    X(kvt_region_free, kvt_region_free(s->store, s->data))                                         \
    X(kvt_basis_add, kvt_basis_add(s->store, s->data, sizeof s->data))                             \
    X(kvt_basis_remove, kvt_basis_remove(s->store, s->key.bytes))                                  \
    X(kvt_basis_get, kvt_basis_get(s->store, 0, &s->basis))                                        \
    X(kvt_store_close, QUIET(kvt_store_close(s->store)))                                           \
    X(kvt_store_wait, kvt_store_wait(s->store, NEVER, NULL, 0))                                    \
    X(kvt_store_put, kvt_store_put(s->store, &s->entry, KVT_PACKED(s->data, sizeof s->data)))      \
    X(kvt_store_get, kvt_store_get(s->store, &s->key, &s->view, KVT_STORE_DEADLINE, NULL))         \
    X(kvt_store_exists, kvt_store_exists(s->store, &s->key))                                       \
    X(kvt_store_delete, kvt_store_delete(s->store, &s->key))                                       \
    X(kvt_store_match, kvt_store_match(s->store, &s->key, 1, NULL, &s->count))                     \
    X(kvt_store_flush, kvt_store_flush(s->store))                                                  \
    X(kvt_store_persist, kvt_store_persist(s->store, NEVER, &s->persist))                          \
    X(kvt_store_maintain, kvt_store_maintain(s->store, &s->moves))                                 \
    X(kvt_quality_observe,                                                                         \
      kvt_quality_observe(s->store, &s->key, (kvt_variant){.codec = KVT_CODEC_RAW}, 0, 1))         \
    X(kvt_class_stats_get, kvt_class_stats_get(s->store, 0, &s->class_stats))                      \
    X(kvt_tenant_set, kvt_tenant_set(s->store, 1, &s->tenant))                                     \
    X(kvt_store_explain, kvt_store_explain(s->store, &s->key, &s->explanation))                    \
    X(kvt_store_stats_get, kvt_store_stats_get(s->store, &s->stats))                               \
    X(kvt_device_stats_get, kvt_device_stats_get(s->store, 0, &s->device_stats))                   \
    X(kvt_health_get, kvt_health_get(s->store, &s->health, 1, &s->count, &s->status))              \
    X(kvt_device_change, kvt_device_change(s->store, "drive0", KVT_DEVICE_DRAIN))                  \
    X(kvt_device_add,                                                                              \
      kvt_device_add(s->store, KVT_TIER_SSD, s->sequences->files, s->text, sizeof s->text))        \
    X(kvt_load_begin, kvt_load_begin(s->queue, &s->key, &s->views, 1, NULL, &s->opened_load))      \
    X(kvt_load_layers, state_if(kvt_load_layers(s->load) == 0))                                    \
    X(kvt_load_total, state_if(kvt_load_total(s->load, NULL) == 0))                                \
    X(kvt_load_wait_layer, kvt_load_wait_layer(s->load, 0, NULL))                                  \
    X(kvt_load_quality_of,                                                                         \
      kvt_load_quality_of(s->load, 0,                                                              \
                          &(kvt_load_quality){.struct_size = sizeof(kvt_load_quality)}))           \
    X(kvt_load_stored_of,                                                                          \
      kvt_load_stored_of(s->load, 0, 0,                                                            \
                         &(kvt_load_stored){.struct_size = sizeof(kvt_load_stored)}))              \
    X(kvt_gpu_stats_get, kvt_gpu_stats_get(s->store, 0, &s->gpu_stats))                            \
    X(kvt_load_wait, kvt_load_wait(s->load, 1, NEVER))                                             \
    X(kvt_load_release, QUIET(kvt_load_release(s->load, 1)))                                       \
    X(kvt_load_status, kvt_load_status(s->load, 0))                                                \
    X(kvt_load_end, kvt_load_end(s->load, &s->status, NULL))                                       \
    X(kvt_pass_begin, kvt_pass_begin(s->store, &s->pass, &s->number))                              \
    X(kvt_pass_layer, kvt_pass_layer(s->store, s->number, 0))                                      \
    X(kvt_pass_end, kvt_pass_end(s->store, s->number))                                             \
    X(kvt_pass_table_set, kvt_pass_table_set(s->store, NULL, 0))                                   \
    X(kvt_ring_open, kvt_ring_open(s->store, 2, NULL, &s->opened_ring))                            \
    X(kvt_ring_describe, kvt_ring_describe(s->ring, &s->ring_memory))                              \
    X(kvt_ring_region_add, kvt_ring_region_add(s->ring, s->data, 1, &s->region))                   \
    X(kvt_ring_region_end, kvt_ring_region_end(s->ring, s->region))                                \
    X(kvt_ring_object_open, kvt_ring_object_open(s->ring, &s->key, 1, &s->object))                 \
    X(kvt_ring_object_close, QUIET(kvt_ring_object_close(s->ring, &s->object, 1)))                 \
    X(kvt_ring_get_iocb, kvt_ring_get_iocb(s->ring, 1, &s->iocb))                                  \
    X(kvt_ring_table, state_if(kvt_ring_table(s->ring, 0, &s->region) == NULL))                    \
    X(kvt_ring_gpu_open, kvt_ring_gpu_open(s->ring, 0))                                            \
    X(kvt_ring_gpu_launch, kvt_ring_gpu_launch(s->ring, s->data, 1, NULL))                         \
    X(kvt_ring_submit, kvt_ring_submit(s->ring, &s->iocb, 1))                                      \
    X(kvt_ring_wait, kvt_ring_wait(s->ring, s->iocb.index, 1, NEVER, NULL, NULL))                  \
    X(kvt_ring_stats_get, kvt_ring_stats_get(s->ring, &s->ring_stats))                             \
    X(kvt_ring_close, QUIET(kvt_ring_close(s->ring)))                                              \
    X(kvt_prefix_get, kvt_prefix_get(s->store, &s->key, &s->views, 1, NEVER, &s->count))           \
    X(kvt_store_prefetch, kvt_store_prefetch(s->store, &s->key, KVT_TIER_DRAM))                    \
    X(kvt_store_hint, kvt_store_hint(s->store, &s->key, 1, &s->expectation, &s->count))            \
    X(kvt_lease_begin,                                                                             \
      kvt_lease_begin(s->store, NULL, &s->key, 1, NEVER - 1, &s->held, &s->lease))                 \
    X(kvt_lease_extend, kvt_lease_extend(s->store, s->lease, NEVER - 1))                           \
    X(kvt_lease_end, kvt_lease_end(s->store, s->lease))                                            \
    X(kvt_store_describe, kvt_store_describe(s->store, &s->key, &s->description))                  \
    X(kvt_store_touch, kvt_store_touch(s->store, &s->key, 1, &s->count))                           \
    X(kvt_store_clear, kvt_store_clear(s->store, &s->filter, &s->number))                          \
    X(kvt_space_set, kvt_space_set(s->store, 1, 1))                                                \
    X(kvt_space_stats_get, kvt_space_stats_get(s->store, 1, &s->space_stats))                      \
    X(kvt_store_list, kvt_store_list(s->store, NULL, &s->cursor, &s->listed, 1, &s->count))        \
    X(kvt_queue_open, kvt_queue_open(s->store, NULL, &s->opened_queue))                            \
    X(kvt_queue_close, QUIET(kvt_queue_close(s->queue)))                                           \
    X(kvt_queue_fd, state_if(kvt_queue_fd(s->queue) == -1))                                        \
    X(kvt_queue_submit, kvt_queue_submit(s->queue, &s->request, 1, &s->number))                    \
    X(kvt_queue_drain, state_if(kvt_queue_drain(s->queue, &s->completion, 1) == 0))                \
    X(kvt_queue_wait, kvt_queue_wait(s->queue, NEVER))                                             \
    X(kvt_queue_cancel, kvt_queue_cancel(s->queue, 1))                                             \
    X(kvt_queue_stats_get, kvt_queue_stats_get(s->queue, &s->queue_stats))                         \
    X(kvt_remote_flush, kvt_remote_flush(s->store, NEVER))                                         \
    X(kvt_remote_stats_get, kvt_remote_stats_get(s->store, &s->remote_stats))                      \
    X(kvt_remote_node_get, kvt_remote_node_get(s->store, 0, &s->node))                             \
    X(kvt_sparse_open_live, kvt_sparse_open_live(s->store, &s->sparse_options,                     \
                                                 &s->opened_sequence, s->text, sizeof s->text))    \
    X(kvt_sparse_give, kvt_sparse_give(s->sequence, 0, s->sequences->k[0], s->sequences->v[0]))    \
    X(kvt_sparse_open, kvt_sparse_open(s->store, &s->sparse_options, &s->key, 1,                   \
                                       &s->opened_sequence, s->text, sizeof s->text))              \
    X(kvt_sparse_keep, kvt_sparse_keep(s->sequence, &s->key))                                      \
    X(kvt_sparse_open_kept, kvt_sparse_open_kept(s->store, &s->sparse_options, &s->key,            \
                                                 &s->opened_sequence, s->text, sizeof s->text))    \
    X(kvt_sparse_delete, kvt_sparse_delete(s->store, &s->key))                                     \
    X(kvt_sparse_close, QUIET(kvt_sparse_close(s->sequence)))                                      \
    X(kvt_sparse_observe, kvt_sparse_observe(s->sequence, 0, s->queries, 1))                       \
    X(kvt_sparse_append,                                                                           \
      kvt_sparse_append(s->sequence, 1, s->sequences->k[1], s->sequences->v[1], 1))                \
    X(kvt_sparse_select, kvt_sparse_select(s->sequence, 1, s->queries, &s->opened_step))           \
    X(kvt_sparse_wait, kvt_sparse_wait(s->sequence, s->step, NEVER, &s->pages))                    \
    X(kvt_sparse_done, QUIET(kvt_sparse_done(s->sequence, s->step)))                               \
    X(kvt_sparse_select_given,                                                                     \
      kvt_sparse_select_given(s->selecting, 1, &s->given, &s->opened_step))                        \
    X(kvt_sparse_give_selected,                                                                    \
      kvt_sparse_give_selected(s->selecting, SITE_LAYERS, NULL, NULL, NULL, 0))                    \
    X(kvt_sparse_hint_given, kvt_sparse_hint_given(s->selecting, 1, &s->given))                    \
    X(kvt_sparse_observe_given, kvt_sparse_observe_given(s->selecting, 1, &s->given, 1))           \
    X(kvt_sparse_give_keys, kvt_sparse_give_keys(s->selecting, 1, s->data, 1))                     \
    X(kvt_sparse_keys, kvt_sparse_keys(s->selecting, 1, &s->index_keys, &s->moves))                \
    X(kvt_sparse_explain,                                                                          \
      kvt_sparse_explain(s->sequence, 0, 0, s->text, sizeof s->text, &s->count))                   \
    X(kvt_sparse_stats_get, kvt_sparse_stats_get(s->sequence, &s->sparse_stats))                   \
    X(kvt_metrics_write, state_if(kvt_metrics_write(s->store, s->text, sizeof s->text) == 0))      \
    X(kvt_events_open, kvt_events_open(s->store, 16, &s->opened_events))                           \
    X(kvt_events_drain, kvt_events_drain(s->events, &s->event, 1, &s->count, NULL))                \
    X(kvt_events_fd, state_if(kvt_events_fd(s->events) == -1))                                     \
    X(kvt_events_close, QUIET(kvt_events_close(s->events)))                                        \
    X(kvt_operations_get, kvt_operations_get(s->store, &s->operation, 1, &s->count))               \
    X(kvt_watch_write, kvt_watch_write(s->store, "/nowhere/at/all"))

#define DEFINE(name, call)                                                                         \
    static kvt_status call_##name(site *s)                                                         \
    {                                                                                              \
        return (call);                                                                             \
    }
CALLS(DEFINE)

typedef struct table_row {
    const char *name;
    kvt_status (*call)(site *s);
} table_row;

#define ROW(name, call) {#name, call_##name},
static const table_row table[] = {CALLS(ROW)};
enum { TABLE_ROWS = sizeof table / sizeof table[0] };

/* ---- the headers ---- */

/* Handles of a store; and types that are memory alone, whose copy in a child is the child's. */
static const char *const handles[] = {"kvt_store",  "kvt_queue",       "kvt_load", "kvt_events",
                                      "kvt_sparse", "kvt_sparse_step", "kvt_ring"};
static const char *const memory_types[] = {"kvt_policy", "kvt_config", "kvt_coding_basis"};

static bool is_among(const char *name, size_t length, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return true;
    return false;
}

/* The text of a header, without comments. The caller frees it. */
static char *read_header(const char *folder, const char *name)
{
    char path[4096];
    assert_true(snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path);
    char *text = calloc(1, TEXT_BYTES);
    FILE *file = fopen(path, "r");
    assert_true(text != NULL && file != NULL);
    const size_t bytes = fread(text, 1, TEXT_BYTES - 1, file);
    assert_true(bytes > 0 && bytes < TEXT_BYTES - 1);
    fclose(file);
    char *begin, *end = text;
    while ((begin = strstr(end, "/*")) != NULL) {
        end = strstr(begin, "*/");
        assert_non_null(end);
        memset(begin, ' ', (size_t)(end + 2 - begin));
    }
    return text;
}

/* `typedef struct x x;` says that nobody sees into it: it is a handle, or in memory_types. */
static void check_types(const char *text)
{
    for (const char *at = text; (at = strstr(at, "typedef struct ")) != NULL; at++) {
        char tag[64], name[64], after;
        if (sscanf(at, "typedef struct %63[a-z_0-9] %63[a-z_0-9]%c", tag, name, &after) != 3 ||
            after != ';' || strcmp(tag, name) != 0)
            continue;
        const size_t length = strlen(name);
        if (!is_among(name, length, handles, sizeof handles / sizeof *handles) &&
            !is_among(name, length, memory_types, sizeof memory_types / sizeof *memory_types))
            fail_msg("%s is neither a handle nor memory alone: say which, here", name);
    }
}

/* Whether a declaration has a parameter `HANDLE *`. */
static bool takes_handle(const char *parameters, const char *end)
{
    for (const char *at = parameters; at < end; at++) {
        if (strncmp(at, "kvt_", 4) != 0 || at[-1] == '_' || isalnum((unsigned char)at[-1]))
            continue;
        const size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789");
        if (strncmp(at + length, " *", 2) == 0 && at[length + 2] != '*' &&
            is_among(at, length, handles, sizeof handles / sizeof *handles))
            return true;
        at += length;
    }
    return false;
}

/* Counts the functions of a header that take a handle, and checks that each is in the table. */
static uint32_t check_functions(const char *text)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, "KVT_API ")) != NULL; at++) {
        const char *end = strchr(at, ';'), *open = strchr(at, '(');
        assert_true(end != NULL && open != NULL);
        if (open > end || !takes_handle(open + 1, end)) continue;
        const char *name = open;
        while (name[-1] == '_' || isalnum((unsigned char)name[-1]))
            name--;
        const char *names[TABLE_ROWS];
        for (uint32_t i = 0; i < TABLE_ROWS; i++)
            names[i] = table[i].name;
        if (!is_among(name, (size_t)(open - name), names, TABLE_ROWS))
            fail_msg("%.*s takes a handle, and is not called in a child of fork here",
                     (int)(open - name), name);
        count++;
    }
    return count;
}

TEST(the_table_has_every_function)
{
    char folder[4000];
    const char *source = getenv("KVT_SOURCE_DIR");
    if (source == NULL) skip();
    assert_true(snprintf(folder, sizeof folder, "%s/include/kvterrace", source) < 4000);
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    uint32_t count = 0;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strcmp(dot, ".h") != 0) continue;
        char *text = read_header(folder, entry->d_name);
        check_types(text);
        count += check_functions(text);
        free(text);
    }
    closedir(entries);
    assert_int_equal(count, TABLE_ROWS);
}

/* ---- the calls ---- */

static site *make_site(void)
{
    site *s = test_zeros(sizeof *s);
    s->sequences = site_start(8 * MIB, 8 * MIB);
    s->store = s->sequences->store;
    s->key = support_key(1);
    assert_ok(support_put(s->store, 1));
    s->entry = support_entry(support_key(2), support_layout, 1);
    s->view = kvt_view_packed(s->data, SUPPORT_ENTRY_BYTES);
    s->views = &s->view;
    s->request =
        (kvt_request){.struct_size = sizeof s->request, .kind = KVT_REQUEST_EXISTS, .key = s->key};
    s->completion.struct_size = sizeof s->completion;
    s->filter.struct_size = sizeof s->filter;
    s->expectation = (kvt_expectation){.struct_size = sizeof s->expectation, .kind = 1};
    s->tenant = (kvt_tenant){.struct_size = sizeof s->tenant, .alpha_seconds = 1, .loss_limit = 1};
    s->worth.struct_size = sizeof s->worth;
    s->description.struct_size = sizeof s->description;
    s->explanation.struct_size = sizeof s->explanation;
    s->stats.struct_size = sizeof s->stats;
    s->device_stats.struct_size = sizeof s->device_stats;
    s->class_stats.struct_size = sizeof s->class_stats;
    s->space_stats.struct_size = sizeof s->space_stats;
    s->listed.struct_size = sizeof s->listed;
    s->queue_stats.struct_size = sizeof s->queue_stats;
    s->remote_stats.struct_size = sizeof s->remote_stats;
    s->node.struct_size = sizeof s->node;
    s->sparse_stats.struct_size = sizeof s->sparse_stats;
    s->basis.struct_size = sizeof s->basis;
    s->health.struct_size = sizeof s->health;
    s->persist.struct_size = sizeof s->persist;
    s->gpu_stats.struct_size = sizeof s->gpu_stats;
    s->pass =
        (kvt_pass){.struct_size = sizeof s->pass, .new_tokens = 1, .layers = 1, .layer_seconds = 1};
    s->sparse_options = site_options();
    s->sequence = site_sequence(s->sequences, &s->sparse_options);
    kvt_sparse_options selecting = s->sparse_options;
    static const uint32_t none = 0;
    selecting.given = true;
    selecting.variants = 1u << KVT_SPARSE_RAW;
    selecting.key_bytes = 16;
    s->selecting = site_sequence(s->sequences, &selecting);
    s->given = (kvt_sparse_given){
        .struct_size = sizeof s->given, .block_tokens = 1, .lists = 1, .counts = &none};
    site_query(s->sequences, 0, 1, s->queries);
    assert_ok(kvt_sparse_select(s->sequence, 0, s->queries, &s->step));
    assert_ok(kvt_queue_open(s->store, NULL, &s->queue));
    assert_ok(kvt_events_open(s->store, 16, &s->events));
    assert_ok(kvt_lease_begin(s->store, NULL, &s->key, 1, NEVER - 1, &s->held, &s->lease));
    /* The first layer has come, and the second one: in the child no call says so. */
    assert_ok(kvt_load_begin(s->queue, &s->key, &s->views, 1, NULL, &s->load));
    assert_ok(kvt_load_wait(s->load, support_layout.layers, NEVER));
    const kvt_ring_options ring_options = {.struct_size = sizeof ring_options, .tables = 1};
    s->ring_memory.struct_size = sizeof s->ring_memory;
    s->ring_stats.struct_size = sizeof s->ring_stats;
    assert_ok(kvt_ring_open(s->store, 2, &ring_options, &s->ring));
    assert_ok(kvt_ring_object_open(s->ring, &s->key, 1, &s->object));
    assert_ok(kvt_ring_get_iocb(s->ring, 1, &s->iocb));
    return s;
}

/* What a fork may find held by a thread that the child does not have. */
static void hold_locks(site *s, int (*change)(pthread_mutex_t *lock))
{
    pthread_mutex_t *locks[] = {&s->store->members_lock,
                                &s->store->observer_lock,
                                &s->store->kept_lock,
                                &s->store->bases.lock,
                                &s->load->announce_lock,
                                &s->load->lock,
                                &s->ring->lock,
                                &s->ring->done_lock,
                                &s->queue->lock,
                                &s->store->lock,
                                &s->store->reads_lock,
                                &s->store->wear_lock,
                                &s->store->watch->readers_lock,
                                &s->store->watch->file_lock};
    for (size_t i = 0; i < sizeof locks / sizeof *locks; i++)
        assert_int_equal(change(locks[i]), 0);
}

typedef struct outcome {
    uint32_t called; /* so many rows have been begun */
    kvt_status statuses[TABLE_ROWS];
} outcome;

TEST(every_call_in_a_child_returns)
{
    site *s = make_site();
    outcome *seen =
        mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);
    hold_locks(s, pthread_mutex_lock);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a call that waits would wait for ever */
        for (uint32_t i = 0; i < TABLE_ROWS; i++) {
            seen->called = i + 1;
            seen->statuses[i] = table[i].call(s);
        }
        _exit(0);
    }
    hold_locks(s, pthread_mutex_unlock);
    assert_true(child > 0);
    int ended;
    assert_int_equal(waitpid(child, &ended, 0), child);
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0)
        fail_msg("%s did not return", table[seen->called - 1].name);
    for (uint32_t i = 0; i < TABLE_ROWS; i++)
        if (seen->statuses[i] != KVT_E_STATE)
            fail_msg("%s: %s", table[i].name, kvt_status_name(seen->statuses[i]));
    munmap(seen, sizeof *seen);
    /* Nothing of it has reached the parent. */
    assert_ok(kvt_sparse_wait(s->sequence, s->step, NEVER, &s->pages));
    kvt_sparse_done(s->sequence, s->step);
    kvt_sparse_close(s->sequence);
    assert_ok(kvt_lease_end(s->store, s->lease));
    assert_ok(kvt_load_end(s->load, &s->status, NULL));
    assert_ok(s->status);
    assert_ok(kvt_ring_submit(s->ring, &s->iocb, 1));
    assert_ok(kvt_ring_wait(s->ring, s->iocb.index, 1, NEVER, NULL, NULL));
    kvt_ring_close(s->ring);
    assert_ok(kvt_queue_submit(s->queue, &s->request, 1, NULL));
    assert_ok(kvt_queue_wait(s->queue, NEVER));
    kvt_queue_close(s->queue);
    assert_ok(kvt_events_drain(s->events, &s->event, 1, &s->count, NULL));
    kvt_events_close(s->events);
    assert_ok(support_get(s->store, 1, NULL));
}

/* What connect.h calls unsupported. */
static const char *const unsupported[] = {
    "kvt_device_add", "kvt_load_begin", "kvt_sparse_open_live", "kvt_sparse_open",
    "kvt_sparse_open_kept", "kvt_sparse_delete", "kvt_gpu_stats_get", "kvt_ring_open",
    /* What the store behind it says: it has no engine. */
    "kvt_remote_flush", "kvt_remote_stats_get", "kvt_remote_node_get"};

/* Functions that take what such a store does not give, or end it. */
static bool is_left_out(const char *name)
{
    static const char *const prefixes[] = {"kvt_load_",        "kvt_sparse_", "kvt_store_close",
                                           "kvt_queue_close",  "kvt_region_", "kvt_watch_write",
                                           "kvt_events_close", "kvt_ring_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
    return false;
}

TEST(every_call_on_a_connected_store)
{
    site *s = make_site();
    kvt_store *const own = s->store;
    kvt_queue *const own_queue = s->queue;
    kvt_store *const behind = support_open_memory("lru", 8 * MIB, 2 * MIB);
    s->store = lent_store_open(behind);
    kvt_events *const own_events = s->events;
    assert_ok(kvt_queue_open(s->store, NULL, &s->queue));
    assert_ok(kvt_events_open(s->store, 16, &s->events));
    assert_ok(support_put(s->store, 1));
    assert_int_equal(kvt_watch_write(s->store, "/nowhere/at/all"), KVT_E_GONE);
    for (uint32_t i = 0; i < TABLE_ROWS; i++) {
        const char *name = table[i].name;
        const bool lacks =
            is_among(name, strlen(name), unsupported, sizeof unsupported / sizeof *unsupported);
        if (!lacks && is_left_out(name)) continue;
        const kvt_status status = table[i].call(s);
        const bool quiet = strcmp(name, "kvt_queue_drain") == 0;
        if (lacks ? status != KVT_E_UNSUPPORTED
                  : !quiet && (status == KVT_E_UNSUPPORTED || status == KVT_E_STATE ||
                               status == KVT_E_GONE))
            if (strcmp(name, "kvt_store_persist") != 0) /* it has no catalog */
                fail_msg("%s: %s", name, kvt_status_name(status));
    }
    kvt_queue_close(s->opened_queue);
    kvt_queue_close(s->queue);
    kvt_events_close(s->opened_events);
    kvt_events_close(s->events);
    s->events = own_events;
    assert_true(lent_store_close(s->store));
    s->store = own;
    s->queue = own_queue;
    kvt_sparse_done(s->sequence, s->step);
    kvt_sparse_close(s->sequence);
    assert_ok(kvt_load_end(s->load, NULL, NULL));
    kvt_ring_close(s->ring);
    kvt_queue_close(s->queue);
    kvt_events_close(s->events);
}

/* ---- a follower ---- */

/* An owner that lives and ends in a child, before anything here opens a catalog. */
static void follower_files(kvt_store_options *options, const kvt_device_config *file)
{
    *options = support_options(4 * MIB, "lru");
    options->limits.put_staging_bytes = 2 * MIB;
    options->durability.catalog_path = "followed/catalog.db";
    support_tier(options, KVT_TIER_SSD, file, 1);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_store *own = NULL;
        char message[256];
        bool kept = kvt_store_open(options, &own, message, sizeof message) == KVT_OK;
        for (uint32_t i = 0; kept && i < 3; i++)
            kept = support_put(own, i) == KVT_OK;
        if (kept) kept = kvt_store_persist(own, NEVER, NULL) == KVT_OK;
        kvt_store_close(own);
        _exit(kept ? 0 : 1);
    }
    int ended;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

/* What a follower answers: KVT_OK where it reads or has a queue, and what else is listed. */
static const struct {
    const char *name;
    kvt_status status;
} follower_answers[] = {{"kvt_store_put", KVT_REFUSED},    {"kvt_store_get", KVT_OK},
                        {"kvt_store_exists", KVT_OK},      {"kvt_store_describe", KVT_OK},
                        {"kvt_store_match", KVT_OK},       {"kvt_prefix_get", KVT_OK},
                        {"kvt_store_flush", KVT_OK},       {"kvt_store_stats_get", KVT_OK},
                        {"kvt_health_get", KVT_OK},        {"kvt_queue_open", KVT_OK},
                        {"kvt_queue_submit", KVT_OK},      {"kvt_queue_wait", KVT_OK},
                        {"kvt_queue_fd", KVT_OK},          {"kvt_queue_stats_get", KVT_OK},
                        {"kvt_queue_drain", KVT_OK},       {"kvt_store_wait", KVT_OK},
                        {"kvt_queue_cancel", KVT_MISS},    {"kvt_region_make", KVT_OK},
                        {"kvt_region_add", KVT_OK},        {"kvt_region_free", KVT_OK},
                        {"kvt_metrics_write", KVT_E_STATE} /* no text */};

static kvt_status follower_answer(const char *name)
{
    for (size_t i = 0; i < sizeof follower_answers / sizeof *follower_answers; i++)
        if (strcmp(name, follower_answers[i].name) == 0) return follower_answers[i].status;
    return KVT_E_UNSUPPORTED;
}

/* Calls on handles that no follower gives, and the ends. */
static bool is_not_of_a_follower(const char *name)
{
    static const char *const handles_of[] = {"kvt_load_", "kvt_sparse_", "kvt_events_",
                                             "kvt_ring_"};
    static const char *const openers[] = {
        "kvt_load_begin",    "kvt_sparse_open_live", "kvt_sparse_open", "kvt_sparse_open_kept",
        "kvt_sparse_delete", "kvt_events_open",      "kvt_ring_open"};
    if (is_among(name, strlen(name), openers, sizeof openers / sizeof *openers)) return false;
    for (size_t i = 0; i < sizeof handles_of / sizeof *handles_of; i++)
        if (strncmp(name, handles_of[i], strlen(handles_of[i])) == 0) return true;
    return strcmp(name, "kvt_store_close") == 0 || strcmp(name, "kvt_queue_close") == 0;
}

TEST(every_call_on_a_follower)
{
    kvt_store_options options;
    char message[256] = "";
    support_remove_folder("followed");
    assert_int_equal(mkdir("followed", 0700), 0);
    const kvt_device_config file = support_file_config("disk", "followed/disk", 8 * MIB);
    follower_files(&options, &file);
    site *s = make_site();
    kvt_store *const own = s->store;
    kvt_queue *const own_queue = s->queue;
    options.follow = true;
    assert_ok(kvt_store_open(&options, &s->store, message, sizeof message));
    assert_ok(kvt_queue_open(s->store, NULL, &s->queue));
    for (uint32_t i = 0; i < TABLE_ROWS; i++) {
        const char *name = table[i].name;
        /* The drain comes behind the wait, which would have nothing left to wait for. */
        if (is_not_of_a_follower(name) || strcmp(name, "kvt_queue_drain") == 0) continue;
        const kvt_status status = table[i].call(s);
        if (status != follower_answer(name)) fail_msg("%s: %s", name, kvt_status_name(status));
        if (strcmp(name, "kvt_queue_wait") == 0)
            assert_int_equal(kvt_queue_drain(s->queue, &s->completion, 1), 1);
    }
    assert_ok(kvt_region_free(NULL, s->memory));
    kvt_queue_close(s->opened_queue);
    kvt_queue_close(s->queue);
    kvt_store_close(s->store);
    s->store = own;
    s->queue = own_queue;
    kvt_sparse_done(s->sequence, s->step);
    kvt_sparse_close(s->sequence);
    assert_ok(kvt_load_end(s->load, NULL, NULL));
    kvt_ring_close(s->ring);
    kvt_queue_close(s->queue);
    kvt_events_close(s->events);
    support_remove_folder("followed");
}
