/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_basis.c - a store with a rung of the transform codec: given its basis it codes with
 * it, finds it again after a restart, gives no values without it, and refuses what
 * is no basis, a second one by the same name, and a disk that takes none. Single thread.
 */
#include "base/clock.h"
#include "basis_support.h"
#include "codecs/codecs.h"
#include "codecs/kv_sample.h"
#include "ladder_support.h"
#include "lent_store.h"
#include "store/core/store.h"

#include <kvterrace/basis.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES = 40, ENTRY_BYTES = 512 * 1024, ROOM = 12 * ENTRY_BYTES };

static const kvt_layout layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 512};
static const transform_shape shape = {.layers = 2,
                                      .kv_heads = 2,
                                      .head_dim = 64,
                                      .rotary_dim = 64,
                                      .sides = 2,
                                      .span = TRANSFORM_SPAN_LAYER};

static char folder[64], profile_path[96], ssd_path[96], catalog_path[96], basis_path[128];
static char rung_name[48];
static basis_made made;

static kvt_record_spec spec_of(const transform_basis *const *list)
{
    kvt_record_spec spec = {.generation = 1, .layout = layout, .bases = {list, 1}};
    assert_ok(kvt_variant_parse(rung_name, &spec.variant));
    return spec;
}

static void fill_entry(uint32_t number, void *data)
{
    codecs_kv_sample_fill(&layout, 1000 + number, data);
}

/* What one coding gives back; returns the bits of an element. */
static double code_once(const void *data, void *decoded)
{
    static _Alignas(4096) char record[2 * ENTRY_BYTES], scratch[8 << 20];
    const transform_basis *list[] = {&made.basis};
    const kvt_record_spec spec = spec_of(list);
    uint64_t bytes, bound, scratch_bytes;
    kvt_record_info info;
    assert_ok(kvt_record_bound(&spec, &bound, &scratch_bytes));
    assert_true(bound <= sizeof record && scratch_bytes <= sizeof scratch);
    assert_ok(kvt_record_encode(&spec, data, ENTRY_BYTES, record, sizeof record, scratch,
                                sizeof scratch, &bytes));
    assert_ok(
        kvt_record_decode(record, bytes, &spec, decoded, ENTRY_BYTES, scratch, sizeof scratch));
    assert_ok(kvt_record_parse(record, bytes, &info));
    return info.physical_bits_per_element;
}

TEST_BEFORE_EACH
{
    static char data[ENTRY_BYTES], decoded[ENTRY_BYTES];
    support_make_folder(folder, sizeof folder);
    (void)snprintf(profile_path, sizeof profile_path, "%s/profile.db", folder);
    (void)snprintf(ssd_path, sizeof ssd_path, "%s/ssd", folder);
    (void)snprintf(catalog_path, sizeof catalog_path, "%s/catalog.db", folder);
    made = basis_made_of(shape, 8);
    assert_ok(basis_made_write(&made));
    const unsigned start = (unsigned)transform_hash_start(made.basis.hash);
    (void)snprintf(rung_name, sizeof rung_name, "transform:%05X,s2", start);
    (void)snprintf(basis_path, sizeof basis_path, "%s.basis-%05X", catalog_path, start);
    fill_entry(0, data);
    const test_rung rung = {rung_name, code_once(data, decoded), 0.005, 0.009, true};
    ladder_make_profile(profile_path, &rung, 1);
}

static kvt_store *open_store(void)
{
    const kvt_device_config device = support_file_config("ssd0", ssd_path, ROOM);
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0;
    options.limits.staging_bytes = 32 << 20;
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    options.durability.catalog_path = catalog_path;
    options.limits.tick_seconds = 0;
    options.learning.profile_path = profile_path;
    options.loss.ladder = true;
    options.loss.ladder_layout = layout;
    options.loss.alpha_seconds = 1;
    if (kvt_store_open(&options, &store, message, sizeof message) < 0)
        fail_msg("open: %s", message);
    assert_non_null(store);
    return store;
}

static void press(kvt_store *store)
{
    static char data[ENTRY_BYTES];
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_entry entry = support_entry(support_key(i), layout, 1e4);
        fill_entry(i, data);
        const kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
        assert_true(status == KVT_OK || status == KVT_EXISTS || status == KVT_REFUSED);
    }
}

/* Every entry that is found is the one that was put, or one coding of it. Returns how many of them
 * are in the form that needs the basis; in all, how many there are. */
static uint32_t look(kvt_store *store, uint32_t *found_out)
{
    static char data[ENTRY_BYTES], got[ENTRY_BYTES], wanted[ENTRY_BYTES];
    uint32_t coded = 0;
    *found_out = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        kvt_get_info info = {.struct_size = sizeof info};
        const kvt_status status =
            kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, &info);
        if (status == KVT_MISS || status == KVT_E_MISMATCH) continue;
        assert_ok(status);
        (*found_out)++;
        fill_entry(i, data);
        if (info.variant.codec != KVT_CODEC_TRANSFORM) {
            assert_memory_equal(got, data, sizeof got);
            continue;
        }
        (void)code_once(data, wanted);
        assert_memory_equal(got, wanted, sizeof got);
        coded++;
    }
    return coded;
}

TEST(entries_are_coded_with_the_basis)
{
    uint32_t found, again;
    /* The first life has no basis: its rung is none. */
    kvt_store *store = open_store();
    press(store);
    assert_int_equal(look(store, &found), 0);
    assert_true(found > 0);
    assert_ok(kvt_basis_add(store, made.object, made.bytes));
    assert_int_equal(kvt_basis_add(store, made.object, made.bytes), KVT_EXISTS);
    kvt_store_close(store);
    /* The next one finds it beside the catalog, and offers the rung. */
    store = open_store();
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        const kvt_status status = kvt_store_delete(store, &key);
        assert_true(status == KVT_OK || status == KVT_MISS);
    }
    press(store);
    const uint32_t coded = look(store, &found);
    assert_true(coded >= 8);
    kvt_store_close(store);
    store = open_store();
    assert_int_equal(look(store, &again), coded);
    assert_int_equal(again, found);
    kvt_store_close(store);
}

/* Its entries stay as long as nothing shows that they are worthless, and nothing wrong is given. */
/* A profile that carries the basis needs no call: the first life codes with it already, and a
 * damaged one in the profile is a rung less and a note. */
TEST(the_profile_brings_the_basis)
{
    uint32_t found;
    kvt_profile *profile = NULL;
    assert_ok(kvt_profile_open(profile_path, KVT_PROFILE_WRITE, &profile, NULL, 0));
    assert_ok(profile_basis_import(profile, made.object, made.bytes, "test", NULL));
    kvt_profile_close(profile);
    kvt_store *store = open_store();
    press(store);
    assert_true(look(store, &found) > 0);
    assert_int_equal(kvt_basis_add(store, made.object, made.bytes), KVT_EXISTS);
    kvt_store_close(store);
    assert_int_equal(access(basis_path, R_OK), 0);
    assert_int_equal(unlink(basis_path), 0);
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(profile_path, &database), SQLITE_OK);
    ladder_run_sql(database, "UPDATE basis SET object = zeroblob(length(object))");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    store = open_store();
    assert_int_equal(look(store, &found), 0);
    kvt_store_close(store);
    assert_int_not_equal(access(basis_path, R_OK), 0);
}

TEST(without_the_basis_nothing_is_decoded)
{
    uint32_t found, left;
    kvt_store *store = open_store();
    assert_ok(kvt_basis_add(store, made.object, made.bytes));
    kvt_store_close(store);
    store = open_store();
    press(store);
    assert_true(look(store, &found) >= 8);
    /* As if it were another one: no get decodes. */
    transform_basis *own = &lent_store_own(store)->bases.owned[0]->view;
    own->hash[1] ^= 0xff;
    assert_int_equal(look(store, &left), 0);
    assert_true(left < found);
    own->hash[1] ^= 0xff;
    assert_true(look(store, &left) >= 8);
    assert_int_equal(left, found);
    kvt_store_close(store);
    /* A damaged file is no basis. */
    const int file = open(basis_path, O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0 && pwrite(file, "damage", 6, 9000) == 6);
    (void)close(file);
    store = open_store();
    assert_null(lent_store_own(store)->bases.owned[0]);
    assert_int_equal(look(store, &left), 0);
    assert_ok(kvt_basis_add(store, made.object, made.bytes));
    kvt_store_close(store);
    store = open_store();
    assert_non_null(lent_store_own(store)->bases.owned[0]);
    kvt_store_close(store);
}

TEST(what_is_no_basis_is_refused)
{
    struct stat facts;
    kvt_store *store = open_store();
    assert_int_equal(kvt_basis_add(NULL, made.object, made.bytes), KVT_E_ARGUMENT);
    assert_int_equal(kvt_basis_add(store, NULL, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_basis_add(store, made.object, 0), KVT_E_CORRUPT);
    assert_int_equal(kvt_basis_add(store, made.object, made.bytes - 1), KVT_E_CORRUPT);
    made.object[5000] ^= 1;
    assert_int_equal(kvt_basis_add(store, made.object, made.bytes), KVT_E_CORRUPT);
    made.object[5000] ^= 1;
    assert_int_equal(stat(basis_path, &facts), -1);
    /* A file that cannot be written: a folder has its name. */
    char drafts[160], link[160], left[160];
    (void)snprintf(drafts, sizeof drafts, "%s.new", basis_path);
    (void)snprintf(link, sizeof link, "%s.new-a", basis_path);
    (void)snprintf(left, sizeof left, "%s.new-abcdef", basis_path);
    assert_int_equal(mkdir(basis_path, 0700), 0);
    assert_int_equal(kvt_basis_add(store, made.object, made.bytes), KVT_E_ARGUMENT);
    assert_null(lent_store_own(store)->bases.owned[0]);
    assert_int_equal(rmdir(basis_path), 0);
    /* A folder, a link and a file that a kill left, where drafts lie: the file alone goes, with the
     * next open, and none is in the way. A link by the basis's own name is replaced. */
    assert_int_equal(mkdir(drafts, 0700), 0);
    assert_int_equal(symlink("nowhere", link), 0);
    assert_int_equal(symlink("nowhere", basis_path), 0);
    FILE *file = fopen(left, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_ok(kvt_basis_add(store, made.object, made.bytes));
    kvt_store_close(store);
    assert_int_equal(stat(left, &facts), 0);
    store = open_store();
    assert_int_equal(stat(left, &facts), -1);
    assert_int_equal(lstat(link, &facts), 0);
    assert_int_equal(stat(drafts, &facts), 0);
    assert_int_equal(lstat(basis_path, &facts), 0);
    assert_true(S_ISREG(facts.st_mode));
    assert_int_equal(unlink(link), 0);
    assert_int_equal(rmdir(drafts), 0);
    assert_int_equal(facts.st_size, made.bytes);
    /* Another basis by the same first digits. */
    lent_store_own(store)->bases.owned[0]->view.hash[31] ^= 1;
    assert_int_equal(kvt_basis_add(store, made.object, made.bytes), KVT_E_UNSUPPORTED);
    kvt_store_close(store);
}
