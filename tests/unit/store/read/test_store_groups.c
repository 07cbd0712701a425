/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_groups.c - entries of several groups of layers in a store: packed and through views,
 * in memory, on SSD and from the staging of their put, over a restart, a lost catalog and damage;
 * what is refused. test_store_groups_ladder has lossy forms.
 */
#include "codecs/view_rows.h"
#include "groups_support.h"
#include "store_site.h"

#include <fcntl.h>
#include <kvterrace/load.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/recover.h>
#include <sqlite3.h>

enum { ENTRIES = 24, DATA_BYTES = 256 * 1024 };

/* One file, and puts that are handed over. */
TEST_BEFORE_EACH
{
    site *s = site_new(
        state, (site_shape){.disks = 1, .disk_bytes = 48 << 20, .plain = true, .staged = true});
    s->options.limits.put_backlog_seconds = 0;
}

/* 1, 2 or 5 groups; every fourth entry has none. */
static uint32_t groups_of(uint32_t number)
{
    static const uint32_t counts[] = {1, 2, GROUPS_SHAPES, 0};
    return counts[number % 4];
}

static uint64_t fill(uint32_t number, void *data)
{
    const uint32_t count = groups_of(number) != 0 ? groups_of(number) : 1;
    const guarded source = groups_sample(groups_shapes, count, 100 * number);
    assert_true(source.bytes <= DATA_BYTES);
    memcpy(data, source.data, source.bytes);
    return source.bytes;
}

static kvt_entry entry_of(uint32_t number)
{
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(number),
                       .first_position = 96 * number,
                       .recompute_seconds = 1};
    entry.group_count = groups_of(number);
    if (entry.group_count != 0)
        entry.groups = groups_shapes;
    else
        entry.layout = groups_shapes[0];
    return entry;
}

/* Views with the tokens of a group apart, so that values are gathered; memory for each group. */
typedef struct apart {
    kvt_view views[GROUPS_SHAPES];
    const kvt_view *pointers[GROUPS_SHAPES];
    char *memory[GROUPS_SHAPES];
    uint64_t bytes[GROUPS_SHAPES];
} apart;

static void apart_make(apart *a, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const kvt_layout *layout = &groups_shapes[i];
        uint64_t bytes;
        assert_ok(kvt_layout_bytes(layout, &bytes));
        a->bytes[i] = 2 * bytes;
        a->memory[i] = test_alloc(a->bytes[i]);
        memset(a->memory[i], 0xee, a->bytes[i]);
        if (layout->dtype == KVT_DTYPE_OPAQUE) {
            a->views[i] = codecs_packed_view(layout, a->memory[i]);
        } else {
            /* [token][layer][side][head], every second token slot. */
            assert_ok(kvt_view_make(layout, "tlsh", 0, 2 * layout->tokens, &a->views[i]));
            a->views[i].token_stride *= 2;
            a->views[i].base[0] = a->memory[i];
            a->views[i].base_bytes[0] = a->bytes[i];
        }
        a->pointers[i] = &a->views[i];
    }
}

/* Where a matrix' element is in the views, against packed bytes: copies one way. */
static void apart_copy(apart *a, uint32_t count, char *packed, bool in)
{
    for (uint32_t i = 0; i < count; i++) {
        const kvt_layout *layout = &groups_shapes[i];
        const uint64_t head = (uint64_t)layout->head_dim * kvt_dtype_bytes(layout->dtype);
        uint64_t bytes;
        assert_ok(kvt_layout_bytes(layout, &bytes));
        if (layout->dtype == KVT_DTYPE_OPAQUE) {
            memcpy(in ? a->memory[i] : packed, in ? packed : a->memory[i], bytes);
            continue;
        }
        const kvt_view *view = &a->views[i];
        for (uint32_t l = 0; l < layout->layers; l++)
            for (uint32_t s = 0; s < kvt_layout_sides(layout); s++)
                for (uint32_t t = 0; t < layout->tokens; t++)
                    for (uint32_t h = 0; h < layout->kv_heads; h++) {
                        char *there = a->memory[i] + l * view->layer_stride +
                                      s * view->side_stride + t * view->token_stride +
                                      h * view->head_stride;
                        char *here = packed + kvt_layout_matrix_offset(layout, l, (kvt_side)s) +
                                     ((uint64_t)t * layout->kv_heads + h) * head;
                        memcpy(in ? there : here, in ? here : there, head);
                    }
        packed += bytes;
    }
}

static kvt_status put_one(kvt_store *store, uint32_t number, bool views)
{
    static char data[DATA_BYTES];
    const uint64_t bytes = fill(number, data);
    const kvt_entry entry = entry_of(number);
    if (!views) return kvt_store_put(store, &entry, KVT_PACKED(data, bytes));
    const uint32_t count = entry.group_count != 0 ? entry.group_count : 1;
    apart a;
    apart_make(&a, count);
    apart_copy(&a, count, data, true);
    kvt_status status = kvt_store_put(store, &entry, KVT_GROUPED(a.pointers, count));
    return status;
}

static void put_all(kvt_store *store)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_status status = put_one(store, i, i % 3 == 0);
        while (status == KVT_BUSY) {
            assert_ok(kvt_store_flush(store));
            status = put_one(store, i, i % 3 == 0);
        }
        assert_ok(status);
    }
}

/* Loads one layer by layer, and gets it by a queue: the same bytes, or the same status. */
static void check_by_queue(kvt_store *store, uint32_t number, const char *wanted, uint64_t bytes,
                           kvt_status expected)
{
    static char got[DATA_BYTES];
    const uint32_t count = groups_of(number) != 0 ? groups_of(number) : 1;
    const kvt_key key = support_key(number);
    const kvt_load_options options = {
        .struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE, .layers_ahead = 64};
    kvt_queue *queue = NULL;
    kvt_load *load = NULL;
    kvt_completion done = {.struct_size = sizeof done};
    apart a;
    apart_make(&a, count);
    const kvt_view whole = kvt_view_grouped(a.pointers, count), *const view = &whole;
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = key,
                                 .view = view,
                                 .deadline_ns = KVT_NO_DEADLINE};
    assert_ok(kvt_queue_open(store, NULL, &queue));
    /* A store that is lent has no layered loads yet. */
    const bool loads = getenv("KVT_TEST_LENT") == NULL;
    kvt_status status = loads ? kvt_load_begin(queue, &key, &view, 1, &options, &load) : KVT_MISS;
    uint32_t layers = 0;
    for (uint32_t i = 0; i < count; i++)
        layers += groups_shapes[i].layers;
    if (status == KVT_OK) {
        /* Where other hosts are asked, a miss is known later. */
        const kvt_status waited = kvt_load_wait(load, layers, KVT_NO_DEADLINE);
        assert_true(waited == KVT_OK || (waited == KVT_MISS && expected == KVT_MISS));
    }
    if (status == KVT_OK) (void)kvt_load_end(load, &status, NULL);
    /* A host that is asked and does not answer in its time, on a slow machine, says so (load.h). */
    assert_true(!loads || status == expected || (status == KVT_E_TIMEOUT && expected == KVT_MISS));
    apart_copy(&a, count, got, false);
    if (status == KVT_OK) assert_memory_equal(got, wanted, bytes);
    apart_make(&a, count);
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_int_equal(done.status, expected);
    apart_copy(&a, count, got, false);
    if (status == KVT_OK) assert_memory_equal(got, wanted, bytes);
    kvt_queue_close(queue);
}

/* Gets one packed, through views, by a load and by a queue: KVT_MISS each way, or one value. */
static kvt_status get_one(kvt_store *store, uint32_t number)
{
    static char got[DATA_BYTES], wanted[DATA_BYTES];
    const uint64_t bytes = fill(number, wanted);
    const uint32_t count = groups_of(number) != 0 ? groups_of(number) : 1;
    const kvt_key key = support_key(number);
    kvt_kept_tokens kept = {.struct_size = sizeof kept};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    memset(got, 0xee, sizeof got);
    kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(got, bytes), KVT_STORE_DEADLINE, &info);
    apart a;
    apart_make(&a, count);
    if (status == KVT_OK) {
        assert_memory_equal(got, wanted, bytes);
        assert_int_equal(got[bytes] & 0xff, 0xee);
        assert_int_equal(kept.count, 96);
        memset(got, 0xee, sizeof got);
        assert_ok(kvt_store_get(store, &key, KVT_GROUPED(a.pointers, count), UINT64_MAX, NULL));
        apart_copy(&a, count, got, false);
        assert_memory_equal(got, wanted, bytes);
    } else {
        assert_int_equal(
            kvt_store_get(store, &key, KVT_GROUPED(a.pointers, count), UINT64_MAX, NULL), status);
    }
    check_by_queue(store, number, wanted, bytes, status);
    return status;
}

static void check_all(kvt_store *store)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_layout layouts[KVT_GROUPS_MAX];
        kvt_description found = {
            .struct_size = sizeof found, .groups = layouts, .groups_capacity = KVT_GROUPS_MAX};
        const kvt_key key = support_key(i);
        assert_ok(get_one(store, i));
        assert_ok(kvt_store_describe(store, &key, &found));
        assert_int_equal(found.group_count, groups_of(i));
        if (found.group_count == 0) continue;
        assert_memory_equal(layouts, groups_shapes, found.group_count * sizeof layouts[0]);
        assert_int_equal(found.layout.dtype, KVT_DTYPE_OPAQUE);
        assert_int_equal(found.layout.opaque_bytes, found.bytes);
        assert_int_equal(found.layout.tokens, 96);
        found.groups_capacity = found.group_count - 1;
        memset(layouts, 0x11, sizeof layouts);
        assert_ok(kvt_store_describe(store, &key, &found));
        assert_int_equal(layouts[0].layers, 0x1111); /* they do not fit: none is written */
    }
}

static const char *const forms[] = {"raw", "lossless"};

/* In memory, on SSD, and from the staging of their put, in each exact form. */
TEST(groups_go_through_every_tier)
{
    site *s = *state;
    for (uint32_t i = 0; i < 8; i++) {
        const bool memory = (i & 1) != 0, staged = (i & 2) != 0;
        s->options.durability.catalog_path = NULL;
        s->options.format = true;
        assert_ok(kvt_variant_parse(forms[i / 4], &s->options.variant));
        s->options.limits.put_staging_bytes = staged ? KVT_PUT_STAGING_AUTO : 0;
        s->options.tiers[KVT_TIER_DRAM].capacity_bytes = memory ? 32 << 20 : 0;
        site_open(s);
        put_all(s->store);
        check_all(s->store);
        assert_ok(kvt_store_flush(s->store));
        check_all(s->store);
        for (uint32_t k = 0; k < ENTRIES; k++)
            assert_int_equal(put_one(s->store, k, k % 2 == 0), KVT_EXISTS);
        const kvt_store_stats stats = support_stats(s->store);
        assert_int_equal(stats.load_failures + stats.puts_lost + stats.puts_refused, 0);
        const kvt_key key = support_key(2);
        assert_ok(kvt_store_delete(s->store, &key));
        assert_int_equal(get_one(s->store, 2), KVT_MISS);
        assert_ok(put_one(s->store, 2, true));
        assert_ok(get_one(s->store, 2));
        site_close(s);
    }
}

/* Rows bring the groups back, also after a close that wrote memory back. */
TEST(groups_survive_a_restart)
{
    site *s = *state;
    for (uint32_t life = 0; life < 4; life++) {
        s->options.tiers[KVT_TIER_DRAM].capacity_bytes = life % 2 == 0 ? 0 : 32 << 20;
        site_open(s);
        if (life == 0) put_all(s->store);
        assert_int_equal(support_stats(s->store).recovered, life == 0 ? 0 : ENTRIES);
        assert_int_equal(support_stats(s->store).recovery_drops, 0);
        check_all(s->store);
        assert_ok(kvt_store_flush(s->store));
        site_close(s);
    }
}

/* A row whose groups are none of its layout, or not those of its checksum, is nobody's. */
TEST(damaged_rows_are_dropped)
{
    static const char *const damage[] = {
        "UPDATE entry SET layouts=NULL WHERE key=(SELECT max(key) FROM entry WHERE layouts NOT "
        "NULL)",
        "UPDATE entry SET layouts=zeroblob(24) WHERE key=(SELECT max(key) FROM entry WHERE layouts "
        "NOT NULL)",
        "UPDATE entry SET layouts=zeroblob(24*65) WHERE key=(SELECT max(key) FROM entry WHERE "
        "layouts NOT NULL)",
        "UPDATE entry SET layouts=substr(layouts, 1, 23) WHERE key=(SELECT max(key) FROM entry "
        "WHERE layouts NOT NULL)",
        "UPDATE entry SET layouts=(SELECT layouts FROM entry WHERE layouts NOT NULL LIMIT 1) WHERE "
        "key=(SELECT max(key) FROM entry WHERE layouts IS NULL)"};
    site *s = *state;
    site_open(s);
    put_all(s->store);
    site_close(s);
    for (uint32_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        sqlite3 *database = NULL;
        assert_int_equal(sqlite3_open(s->catalog, &database), SQLITE_OK);
        assert_int_equal(sqlite3_exec(database, damage[i], NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_close(database), SQLITE_OK);
        site_open(s);
        assert_int_equal(support_stats(s->store).recovered, ENTRIES - i - 1);
        assert_int_equal(support_stats(s->store).recovery_drops, 1);
        uint32_t there = 0;
        for (uint32_t k = 0; k < ENTRIES; k++)
            there += get_one(s->store, k) == KVT_OK;
        assert_int_equal(there, ENTRIES - i - 1);
        site_close(s);
    }
}

/* Without a catalog the records tell their groups. */
TEST(a_lost_catalog_is_rebuilt)
{
    site *s = *state;
    char message[256] = "", log[128];
    kvt_recover_report report = {.struct_size = sizeof report};
    kvt_recover_options options;
    assert_ok(kvt_variant_parse("lossless", &s->options.variant));
    site_open(s);
    put_all(s->store);
    site_close(s);
    snprintf(log, sizeof log, "%s-wal", s->catalog);
    assert_int_equal(unlink(s->catalog), 0);
    (void)unlink(log);
    kvt_recover_options_init(&options);
    assert_ok(kvt_store_recover(&s->options, &options, &report, message, sizeof message));
    assert_int_equal(report.entries, ENTRIES);
    assert_int_equal(report.headers, ENTRIES);
    assert_int_equal(report.without_note + report.damaged, 0);
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, ENTRIES);
    check_all(s->store);
}

/* Damage anywhere in the records is a miss, of that entry alone. */
TEST(damaged_records_are_misses)
{
    site *s = *state;
    s->options.variant = (kvt_variant){.codec = KVT_CODEC_RAW};
    for (uint32_t round = 0; round < 4; round++) {
        static const uint64_t places[] = {100, 8192 + 20, 12288 + 40, 12288 + 12288 + 9};
        s->options.format = true;
        (void)unlink(s->catalog);
        site_open(s);
        put_all(s->store);
        site_close(s);
        uint32_t hit = 0;
        uint8_t block[8];
        int file = open(s->paths[0], O_RDWR);
        assert_true(file >= 0);
        for (off_t at = 8192; pread(file, block, 8, at) == 8; at += 4096) {
            uint32_t flags;
            if (memcmp(block, "KVTR\r\n\x1a\n", 8) != 0) continue;
            assert_int_equal(pread(file, &flags, 4, at + 24), 4);
            if (flags != 4) continue;
            const off_t place = at + (off_t)places[round];
            assert_int_equal(pread(file, block, 1, place), 1);
            block[0] ^= 1;
            assert_int_equal(pwrite(file, block, 1, place), 1);
            hit++;
        }
        close(file);
        assert_int_equal(hit, ENTRIES * 3 / 4);
        s->options.format = false;
        site_open(s);
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_int_equal(get_one(s->store, i), groups_of(i) != 0 ? KVT_MISS : KVT_OK);
        assert_int_equal(support_stats(s->store).load_failures, ENTRIES * 3 / 4);
        site_close(s);
    }
}

/* Counts, layouts and sizes that contradict each other. */
TEST(bad_entries_are_refused)
{
    site *s = *state;
    static char data[DATA_BYTES];
    kvt_layout many[KVT_GROUPS_MAX + 1];
    kvt_view view;
    const kvt_view *views[KVT_GROUPS_MAX + 1];
    site_open(s);
    const uint64_t bytes = fill(1, data);
    kvt_entry entry = entry_of(1);
    for (uint32_t i = 0; i <= KVT_GROUPS_MAX; i++) {
        many[i] = (kvt_layout){.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 64};
        view = codecs_packed_view(&many[i], data);
        views[i] = &view;
    }
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, bytes - 1)), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, bytes + 1)), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_put(s->store, &entry, &view), KVT_E_ARGUMENT);
    entry.layout = groups_shapes[0];
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, bytes)), KVT_E_ARGUMENT);
    entry = entry_of(1);
    entry.group_count = 0;
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, bytes)), KVT_E_ARGUMENT);
    entry = entry_of(1);
    entry.groups = NULL;
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, bytes)), KVT_E_ARGUMENT);
    entry.groups = many;
    entry.group_count = KVT_GROUPS_MAX + 1;
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, 64 * 65)), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_GROUPED(views, KVT_GROUPS_MAX + 1)),
                     KVT_E_ARGUMENT);
    entry.group_count = KVT_GROUPS_MAX;
    many[5].tokens_may_drop = 1;
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, 64 * 64)), KVT_E_ARGUMENT);
    many[5].tokens_may_drop = 0;
    entry.reserved = 1;
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, 64 * 64)), KVT_E_ARGUMENT);
    entry.reserved = 0;
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_GROUPED(views, KVT_GROUPS_MAX - 1)),
                     KVT_E_ARGUMENT);
    views[7] = NULL;
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_GROUPED(views, KVT_GROUPS_MAX)),
                     KVT_E_ARGUMENT);
    assert_int_equal(support_stats(s->store).puts, 0);
    views[7] = &view;
    assert_ok(kvt_store_put(s->store, &entry, KVT_GROUPED(views, KVT_GROUPS_MAX)));
    entry.key = support_key(77);
    many[3].layers = 3; /* of an opaque group */
    assert_int_equal(kvt_store_put(s->store, &entry, KVT_PACKED(data, 64 * 64)), KVT_E_ARGUMENT);
}

/* A get with another number of views, a single view, or through the queue. */
TEST(other_numbers_of_views_are_refused)
{
    site *s = *state;
    static char data[DATA_BYTES];
    site_open(s);
    apart a;
    apart_make(&a, GROUPS_SHAPES);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(put_one(s->store, i, false));
    for (uint32_t i = 0; i < 4; i++) {
        const kvt_key key = support_key(i);
        const uint32_t own = groups_of(i) != 0 ? groups_of(i) : 1;
        for (uint32_t count = 0; count <= GROUPS_SHAPES; count++)
            assert_int_equal(
                kvt_store_get(s->store, &key, KVT_GROUPED(a.pointers, count), UINT64_MAX, NULL),
                count == own ? KVT_OK : KVT_E_ARGUMENT);
        assert_int_equal(
            kvt_store_get(s->store, &key, KVT_GROUPED(a.pointers, KVT_GROUPS_MAX + 1), 0, NULL),
            KVT_E_ARGUMENT);
        assert_int_equal(kvt_store_get(s->store, &key, a.pointers[0], UINT64_MAX, NULL),
                         groups_of(i) != 0 ? KVT_E_ARGUMENT : KVT_OK);
        kvt_queue *queue = NULL;
        const kvt_queue_options options = {.struct_size = sizeof options};
        assert_ok(kvt_queue_open(s->store, &options, &queue));
        const uint64_t bytes = fill(i, data);
        const kvt_layout all = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes};
        const kvt_view opaque = codecs_packed_view(&all, data);
        const kvt_entry entry = entry_of(i + 100);
        const kvt_request requests[3] = {{.struct_size = sizeof(kvt_request),
                                          .kind = KVT_REQUEST_GET,
                                          .key = key,
                                          .view = a.pointers[0],
                                          .deadline_ns = UINT64_MAX},
                                         {.struct_size = sizeof(kvt_request),
                                          .kind = KVT_REQUEST_GET,
                                          .key = key,
                                          .view = &opaque,
                                          .deadline_ns = UINT64_MAX},
                                         {.struct_size = sizeof(kvt_request),
                                          .kind = KVT_REQUEST_PUT,
                                          .entry = &entry,
                                          .view = a.pointers[0],
                                          .deadline_ns = UINT64_MAX}};
        kvt_completion done[3] = {{.struct_size = sizeof done[0]}};
        assert_ok(kvt_queue_submit(queue, requests, 3, NULL));
        for (size_t drained = 0; drained < 3;) {
            assert_ok(kvt_queue_wait(queue, UINT64_MAX));
            size_t now = kvt_queue_drain(queue, done, 3);
            for (size_t k = 0; k < now; k++) {
                const bool fits = groups_of(i) == 0 && done[k].index != 1;
                assert_int_equal(done[k].status, fits ? KVT_OK : KVT_E_ARGUMENT);
            }
            drained += now;
        }
        kvt_load *load = NULL;
        const kvt_status one = kvt_load_begin(queue, &key, a.pointers, 1, NULL, &load);
        if (getenv("KVT_TEST_LENT") == NULL)
            assert_int_equal(one, groups_of(i) > 1 ? KVT_MISS : KVT_OK);
        else
            assert_int_equal(one, KVT_E_UNSUPPORTED);
        (void)kvt_load_end(load, NULL, NULL);
        kvt_queue_close(queue);
    }
}
