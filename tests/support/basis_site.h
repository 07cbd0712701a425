/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_site.h - a store on one file, with a catalog and a profile whose ladder has one rung of the
 * transform, for tests of bases: entries that are stored in that form or exact, and what a get of
 * them may give. Single thread.
 */
#ifndef SUPPORT_BASIS_SITE_H
#define SUPPORT_BASIS_SITE_H

#include "basis_support.h"
#include "codecs/codecs.h"
#include "codecs/kv_sample.h"
#include "ladder_support.h"
#include "store/core/store.h"

#include <kvterrace/basis.h>

enum { BASIS_SITE_BYTES = 192 * 1024, BASIS_SITE_ROOM = 96 * BASIS_SITE_BYTES };

static const kvt_layout basis_site_layout = {
    .layers = 6, .kv_heads = 1, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 256};
/* Two spans: four layers, and two. */
static const transform_shape basis_site_shape = {.layers = 6,
                                                 .kv_heads = 1,
                                                 .head_dim = 32,
                                                 .rotary_dim = 32,
                                                 .sides = 2,
                                                 .span = TRANSFORM_SPAN_LAYERS4};

typedef struct basis_site {
    char folder[64], profile_path[96], ssd_path[96], catalog_path[96], basis_path[128];
    char form_name[48];
    kvt_variant form; /* of the transform */
    basis_made made;
    uint64_t dram_bytes;         /* 0: the store has no such tier */
    const kvt_gpu_options *gpu;  /* of its stores; NULL: as they are */
    const kvt_tier_options *hbm; /* same; NULL: there is none */
} basis_site;

/* How the store of a site is opened. */
typedef enum basis_site_mode {
    BASIS_SITE_CODES, /* a put is stored in the form */
    BASIS_SITE_EXACT, /* a put is stored as it is, and what is there stays in its form */
    BASIS_SITE_BARE   /* without a ladder: no lossy form is taken over */
} basis_site_mode;

static inline void basis_site_fill(uint32_t number, void *data)
{
    codecs_kv_sample_fill(&basis_site_layout, 1000 + number, data);
}

/* What one coding of an entry gives back; returns the bits of an element. */
static inline double basis_site_code(const basis_site *site, const void *data, void *decoded)
{
    static _Alignas(4096) char record[2 * BASIS_SITE_BYTES], scratch[8 << 20];
    const transform_basis *list[] = {&site->made.basis};
    const kvt_record_spec spec = {
        .generation = 1, .layout = basis_site_layout, .variant = site->form, .bases = {list, 1}};
    uint64_t bytes, bound, scratch_bytes;
    kvt_record_info info;
    if (kvt_record_bound(&spec, &bound, &scratch_bytes) != KVT_OK || bound > sizeof record ||
        scratch_bytes > sizeof scratch)
        abort();
    if (kvt_record_encode(&spec, data, BASIS_SITE_BYTES, record, sizeof record, scratch,
                          sizeof scratch, &bytes) != KVT_OK)
        abort();
    if (kvt_record_decode(record, bytes, &spec, decoded, BASIS_SITE_BYTES, scratch,
                          sizeof scratch) != KVT_OK)
        abort();
    if (kvt_record_parse(record, bytes, &info) != KVT_OK) abort();
    return info.physical_bits_per_element;
}

/* The paths of a site's files in a folder of that name. */
static inline void basis_site_name(basis_site *site, const char *folder)
{
    const unsigned start = (unsigned)transform_hash_start(site->made.basis.hash);
    (void)snprintf(site->folder, sizeof site->folder, "%s", folder);
    (void)snprintf(site->profile_path, sizeof site->profile_path, "%s/profile.db", folder);
    (void)snprintf(site->ssd_path, sizeof site->ssd_path, "%s/ssd", folder);
    (void)snprintf(site->catalog_path, sizeof site->catalog_path, "%s/catalog.db", folder);
    (void)snprintf(site->basis_path, sizeof site->basis_path, "%s.basis-%05X", site->catalog_path,
                   start);
}

/* The profile's model gets the shape of the site's entries. */
static inline void basis_site_make_profile(const basis_site *site, const test_rung *rung)
{
    sqlite3 *database = NULL;
    ladder_make_profile(site->profile_path, rung, 1);
    assert_int_equal(sqlite3_open(site->profile_path, &database), SQLITE_OK);
    ladder_run_sql(database, "UPDATE model SET layers = %d, kv_heads = %d, head_dim = %d",
                   basis_site_layout.layers, basis_site_layout.kv_heads,
                   basis_site_layout.head_dim);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

/* Makes the folder, a basis, and the profile with its rung. */
static inline void basis_site_make(basis_site *site)
{
    static char data[BASIS_SITE_BYTES], decoded[BASIS_SITE_BYTES];
    char folder[sizeof site->folder];
    memset(site, 0, sizeof *site);
    site->made = basis_made_of(basis_site_shape, 8);
    if (basis_made_write(&site->made) != KVT_OK) abort();
    support_make_folder(folder, sizeof folder);
    basis_site_name(site, folder);
    (void)snprintf(site->form_name, sizeof site->form_name, "transform:%05X,s2",
                   (unsigned)transform_hash_start(site->made.basis.hash));
    if (kvt_variant_parse(site->form_name, &site->form) != KVT_OK) abort();
    basis_site_fill(0, data);
    const test_rung rung = {site->form_name, basis_site_code(site, data, decoded), 0.005, 0.009,
                            true};
    basis_site_make_profile(site, &rung);
}

static inline kvt_status basis_site_open(const basis_site *site, basis_site_mode mode,
                                         kvt_store **store_out, char *message, size_t size)
{
    const kvt_device_config device = support_file_config("ssd0", site->ssd_path, BASIS_SITE_ROOM);
    kvt_store_options options = support_options(32 << 20, "lru");
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = site->dram_bytes;
    options.durability.catalog_path = site->catalog_path;
    if (site->gpu != NULL) options.gpu = *site->gpu;
    if (site->hbm != NULL) options.tiers[KVT_TIER_HBM] = *site->hbm;
    if (mode != BASIS_SITE_BARE) {
        options.learning.profile_path = site->profile_path;
        options.loss.ladder = true;
        options.loss.ladder_layout = basis_site_layout;
    }
    if (mode == BASIS_SITE_CODES) options.variant = site->form;
    *store_out = NULL;
    return kvt_store_open(&options, store_out, message, size);
}

static inline kvt_store *basis_site_store(const basis_site *site, basis_site_mode mode)
{
    char message[256] = "";
    kvt_store *store = NULL;
    if (basis_site_open(site, mode, &store, message, sizeof message) < 0)
        fail_msg("open: %s", message);
    return store;
}

static inline kvt_status basis_site_put(kvt_store *store, uint32_t number)
{
    static char data[BASIS_SITE_BYTES];
    const kvt_entry entry = support_entry(support_key(number), basis_site_layout, 1e4);
    basis_site_fill(number, data);
    return kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
}

/* A get: the entry's own bytes or one coding of them with KVT_OK; any others are KVT_E_CORRUPT,
 * which no test accepts. */
static inline kvt_status basis_site_get(const basis_site *site, kvt_store *store, uint32_t number,
                                        kvt_get_info *info)
{
    static char got[BASIS_SITE_BYTES], data[BASIS_SITE_BYTES], coded[BASIS_SITE_BYTES];
    const kvt_key key = support_key(number);
    const kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, info);
    if (status != KVT_OK) return status;
    basis_site_fill(number, data);
    if (memcmp(got, data, sizeof got) == 0) return KVT_OK;
    (void)basis_site_code(site, data, coded);
    return memcmp(got, coded, sizeof got) == 0 ? KVT_OK : KVT_E_CORRUPT;
}

/* Opens a store that codes, with the basis, and puts so many entries. */
static inline kvt_store *basis_site_filled(const basis_site *site, uint32_t entries)
{
    kvt_store *store = basis_site_store(site, BASIS_SITE_EXACT);
    const kvt_status added = kvt_basis_add(store, site->made.object, site->made.bytes);
    assert_true(added == KVT_OK || added == KVT_EXISTS);
    kvt_store_close(store);
    store = basis_site_store(site, BASIS_SITE_CODES);
    for (uint32_t i = 0; i < entries; i++)
        assert_ok(basis_site_put(store, i));
    assert_ok(kvt_store_flush(store));
    return store;
}

/* The facts of one basis of the store, which has one. */
static inline kvt_basis_info basis_site_info(kvt_store *store)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    assert_ok(kvt_basis_get(store, 0, &info));
    return info;
}

/* The site of a program's cases, by TEST_EACH or TEST_ALL. */
static basis_site site;

static inline int basis_site_set_up(void **state)
{
    (void)state;
    basis_site_make(&site);
    return 0;
}

static inline int basis_site_tear_down(void **state)
{
    (void)state;
    return 0;
}

#endif
