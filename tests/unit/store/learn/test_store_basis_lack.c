/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_basis_lack.c - a store that lacks the basis of its entries: what each call says, that
 * no entry goes and no bytes are wrong, and that adding the basis brings all of them back. Single
 * thread but for a queue's own.
 */
#include "basis_site.h"
#include "codecs/view_rows.h"
#include "metrics_support.h"
#include "queued.h"

#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/watch.h>
#include <math.h>
#include <sys/stat.h>

enum { ENTRIES = 12 };

static char away[160];

TEST_BEFORE_EACH
{
    basis_site_make(&site);
    (void)snprintf(away, sizeof away, "%s/away", site.folder);
}

/* A store with entries in the form, whose file of the basis somebody has moved away. */
static kvt_store *open_lacking(void)
{
    kvt_store *store = basis_site_filled(&site, ENTRIES);
    assert_int_equal(basis_site_info(store).records, ENTRIES);
    assert_true(basis_site_info(store).in_ladder);
    kvt_store_close(store);
    assert_int_equal(rename(site.basis_path, away), 0);
    return basis_site_store(&site, BASIS_SITE_EXACT);
}

static double count_misses(kvt_store *store, const char *reason)
{
    const size_t room = kvt_metrics_write(store, NULL, 0) + 4096;
    char *text = test_alloc(room);
    assert_true(kvt_metrics_write(store, text, room) <= room);
    metrics_text *parsed = metrics_parse(text);
    const double count = metrics_sum(parsed, "kvterrace_misses_total", reason);
    free(parsed);
    return count;
}

/* Whether a status says that the basis is lacking, and the form says which. */
static void assert_lacking(kvt_status status, kvt_variant variant)
{
    char name[64];
    assert_int_equal(status, KVT_E_MISMATCH);
    (void)kvt_variant_format(variant, name, sizeof name);
    assert_string_equal(name, site.form_name);
}

TEST_EACH(NULL, basis_site_tear_down);

TEST(gets_name_the_basis)
{
    static char got[BASIS_SITE_BYTES];
    const kvt_view view = codecs_packed_view(&basis_site_layout, got);
    const kvt_view *const views[] = {&view};
    const kvt_key key = support_key(3), keys[] = {key, support_key(4)};
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_load *load = NULL;
    kvt_queue *queue = NULL;
    size_t loaded = 9;
    kvt_store *store = open_lacking();
    assert_ok(kvt_queue_open(store, NULL, &queue));
    memset(got, 0x5c, sizeof got);
    assert_lacking(
        kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, &info),
        info.variant);
    assert_int_equal(
        kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, NULL),
        KVT_E_MISMATCH);
    assert_lacking(kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), 0, &info), info.variant);
    assert_lacking(kvt_store_get(store, &key, &view, KVT_NO_DEADLINE, &info), info.variant);
    assert_lacking(kvt_store_get(store, &key, KVT_GROUPED(views, 1), KVT_NO_DEADLINE, &info),
                   info.variant);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = key,
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    const kvt_completion done = queued_call(queue, &request);
    assert_lacking(done.status, done.variant);
    assert_false(done.timed_out || done.refused_loss || done.refused_tokens);
    /* A wrong size is one, whatever the form. */
    assert_int_equal(
        kvt_store_get(store, &key, KVT_PACKED(got, sizeof got - 1), KVT_STORE_DEADLINE, NULL),
        KVT_E_ARGUMENT);
    assert_ok(kvt_prefix_get(store, keys, (const kvt_view *const[]){&view, &view}, 2,
                             KVT_NO_DEADLINE, &loaded));
    assert_int_equal(loaded, 0);
    assert_int_equal(kvt_load_begin(queue, &key, views, 1, NULL, &load), KVT_MISS);
    /* Beside one that can be read, an entry fails for itself. */
    assert_ok(basis_site_put(store, 50));
    static char other[BASIS_SITE_BYTES];
    const kvt_view second = codecs_packed_view(&basis_site_layout, other);
    const kvt_key both[] = {support_key(50), key};
    const kvt_view *const pair[] = {&second, &view};
    kvt_status statuses[2];
    assert_ok(kvt_load_begin(queue, both, pair, 2, NULL, &load));
    kvt_load_release(load, basis_site_layout.layers);
    assert_ok(kvt_load_wait(load, basis_site_layout.layers, KVT_NO_DEADLINE));
    assert_int_equal(kvt_load_status(load, 1), KVT_E_MISMATCH);
    assert_ok(kvt_load_end(load, statuses, NULL));
    assert_ok(statuses[0]);
    assert_int_equal(statuses[1], KVT_E_MISMATCH);
    for (size_t i = 0; i < sizeof got; i++)
        assert_int_equal(got[i], 0x5c);
    const kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.refused.basis, 8);
    assert_int_equal(stats.misses, 8);
    assert_int_equal(stats.load_failures, 0);
    assert_true(count_misses(store, "lacks_basis") == 8);
    assert_true(count_misses(store, "corrupt") == 0);
    kvt_queue_close(queue);
    kvt_store_close(store);
}

TEST(lookups_take_such_entries_as_absent)
{
    const kvt_key key = support_key(3), keys[] = {support_key(60), key};
    double seconds[2];
    size_t count = 9;
    uint64_t lease = 0;
    bool held = true;
    kvt_queue *queue = NULL;
    kvt_worth worth = {.struct_size = sizeof worth};
    kvt_description what = {.struct_size = sizeof what};
    kvt_explanation why = {.struct_size = sizeof why};
    const kvt_expectation soon = {
        .struct_size = sizeof soon, .kind = KVT_HINT_NEXT_USE, .seconds = 1};
    kvt_store *store = open_lacking();
    assert_ok(kvt_queue_open(store, NULL, &queue));
    assert_ok(basis_site_put(store, 60));
    assert_int_equal(kvt_store_exists(store, &key), KVT_MISS);
    assert_ok(kvt_store_match(store, keys, 2, NULL, &count));
    assert_int_equal(count, 1);
    assert_ok(kvt_store_match(store, keys, 2, KVT_MATCH(.worth = &worth), NULL));
    assert_int_equal(worth.stored, 1);
    assert_ok(kvt_store_match(store, keys, 2, KVT_MATCH(.load_seconds = seconds), NULL));
    assert_true(seconds[0] > 0 && isnan(seconds[1]));
    assert_ok(kvt_store_touch(store, keys, 2, &count));
    assert_int_equal(count, 1);
    assert_ok(kvt_store_hint(store, keys, 2, &soon, &count));
    assert_int_equal(count, 1);
    assert_int_equal(kvt_lease_begin(store, queue, &key, 1, base_clock_ns() + UINT64_C(60000000000),
                                     &held, &lease),
                     KVT_MISS);
    assert_false(held);
    const kvt_request exists = {
        .struct_size = sizeof exists, .kind = KVT_REQUEST_EXISTS, .key = key};
    assert_int_equal(queued_call(queue, &exists).status, KVT_MISS);
    /* What is stored is described and explained all the same. */
    assert_ok(kvt_store_describe(store, &key, &what));
    assert_int_equal(what.lacks_basis, 1);
    assert_lacking(KVT_E_MISMATCH, what.variant);
    assert_ok(kvt_store_describe(store, &keys[0], &what));
    assert_int_equal(what.lacks_basis, 0);
    assert_ok(kvt_store_explain(store, &key, &why));
    kvt_queue_close(queue);
    kvt_store_close(store);
}

TEST(what_is_lacking_is_listed_and_reported)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    kvt_health_item items[4] = {{.struct_size = sizeof items[0]}};
    kvt_status overall;
    size_t count = 0;
    char digits[8];
    kvt_store *store = open_lacking();
    assert_ok(kvt_basis_get(store, 0, &info));
    assert_int_equal(info.state, KVT_BASIS_MISSING);
    assert_int_equal(info.records, ENTRIES);
    /* The catalog remembers the whole name. */
    assert_int_equal(info.hash_bits, 256);
    assert_memory_equal(info.hash, site.made.basis.hash, sizeof info.hash);
    assert_int_equal(info.bytes, 0);
    assert_true(info.in_ladder);
    assert_int_equal(kvt_basis_get(store, 1, &info), KVT_END);
    assert_ok(kvt_health_get(store, items, 4, &count, &overall));
    assert_int_equal(count, 1);
    assert_int_equal(overall, KVT_E_MISMATCH);
    assert_int_equal(items[0].kind, KVT_HEALTH_BASIS);
    (void)snprintf(digits, sizeof digits, "%05X",
                   (unsigned)transform_hash_start(site.made.basis.hash));
    assert_non_null(strstr(items[0].text, digits));
    assert_non_null(strstr(items[0].name, digits));
    assert_int_equal(kvt_basis_remove(store, site.made.basis.hash), KVT_MISS);
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    assert_ok(kvt_basis_get(store, 0, &info));
    assert_int_equal(info.state, KVT_BASIS_PRESENT);
    assert_int_equal(info.bytes, site.made.bytes);
    assert_int_equal(info.span, KVT_BASIS_LAYERS4);
    assert_string_equal(info.model, "made");
    assert_ok(kvt_health_get(store, items, 4, &count, &overall));
    assert_int_equal(count, 0);
    kvt_store_close(store);
}

/* A put of a key that cannot be read stores it anew, and adding the basis brings the rest back. */
TEST(puts_and_the_basis_bring_entries_back)
{
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_store *store = open_lacking();
    assert_ok(basis_site_put(store, 5));
    assert_int_equal(basis_site_put(store, 5), KVT_EXISTS);
    assert_ok(basis_site_get(&site, store, 5, &info));
    assert_int_equal(info.variant.codec, KVT_CODEC_RAW);
    assert_int_equal(basis_site_info(store).records, ENTRIES - 1);
    const kvt_key gone = support_key(6);
    assert_ok(kvt_store_delete(store, &gone));
    assert_int_equal(basis_site_info(store).records, ENTRIES - 2);
    /* A restart changes nothing of it. */
    kvt_store_close(store);
    store = basis_site_store(&site, BASIS_SITE_EXACT);
    assert_int_equal(basis_site_info(store).records, ENTRIES - 2);
    assert_int_equal(basis_site_get(&site, store, 7, NULL), KVT_E_MISMATCH);
    assert_ok(kvt_basis_add(store, site.made.object, site.made.bytes));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(basis_site_get(&site, store, i, &info), i == 6 ? KVT_MISS : KVT_OK);
    assert_int_equal(info.variant.codec, KVT_CODEC_TRANSFORM);
    kvt_store_close(store);
}

/* Another basis with the same first 20 bits: the record's own name tells them apart. */
TEST(a_basis_by_the_same_digits_gives_no_values)
{
    static char got[BASIS_SITE_BYTES];
    const kvt_view view = codecs_packed_view(&basis_site_layout, got);
    const kvt_view *const views[] = {&view};
    const kvt_key key = support_key(2);
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_queue *queue = NULL;
    kvt_load *load = NULL;
    kvt_status ended = KVT_OK;
    kvt_store *store = basis_site_filled(&site, ENTRIES);
    assert_ok(kvt_queue_open(store, NULL, &queue));
    store->bases.owned[0]->view.hash[31] ^= 1;
    assert_lacking(
        kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, &info),
        info.variant);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = key,
                                 .view = &view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    const kvt_completion done = queued_call(queue, &request);
    assert_lacking(done.status, done.variant);
    if (kvt_load_begin(queue, &key, views, 1, NULL, &load) == KVT_OK) {
        (void)!kvt_load_wait(load, 1, KVT_NO_DEADLINE);
        assert_ok(kvt_load_end(load, &ended, NULL));
        assert_int_not_equal(ended, KVT_OK);
    }
    assert_int_equal(support_stats(store).refused.basis, 2);
    assert_int_equal(support_stats(store).load_failures, 0);
    store->bases.owned[0]->view.hash[31] ^= 1;
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(basis_site_get(&site, store, i, NULL));
    kvt_queue_close(queue);
    kvt_store_close(store);
}
