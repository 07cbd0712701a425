/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_bases.c - what inspection and verification of a store say of its bases: present,
 * damaged, missing, another one by the same digits. Single thread.
 */
#include "basis_site.h"

#include "tools/inspect/inspect.h"

enum { ENTRIES = 5 };

TEST_BEFORE_EACH
{
    basis_site_make(&site);
    kvt_store_close(basis_site_filled(&site, ENTRIES));
}

/* The reports of one walk. */
typedef struct seen {
    basis_needed last;
    uint32_t bases, faults;
    char reason[128];
} seen;

static bool see_entry(void *context, const inspect_entry *entry)
{
    (void)context;
    return entry->readable;
}

static bool see_basis(void *context, const basis_needed *basis)
{
    seen *to = context;
    to->last = *basis;
    to->bases++;
    return true;
}

static void note_basis(void *context, const basis_needed *basis)
{
    (void)see_basis(context, basis);
}

static void note_fault(void *context, const char *device, const kvt_key *key, const char *reason)
{
    seen *to = context;
    (void)device, (void)key;
    to->faults++;
    (void)snprintf(to->reason, sizeof to->reason, "%s", reason);
}

/* Looks at the catalog, and at the whole store; both say the same of its bases. */
static verify_counts look(seen *to)
{
    char message[256] = "";
    seen catalog = {.bases = 0};
    verify_counts counts;
    const inspect_visitor visitor = {.context = &catalog, .entry = see_entry, .basis = see_basis};
    const verify_observer observer = {.context = to, .fault = note_fault, .basis = note_basis};
    const kvt_device_config device = support_file_config("ssd0", site.ssd_path, BASIS_SITE_ROOM);
    kvt_store_options options;
    kvt_store_options_init(&options);
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    options.durability.catalog_path = site.catalog_path;
    *to = (seen){.bases = 0};
    assert_ok(inspect_catalog(site.catalog_path, &visitor, message, sizeof message));
    assert_ok(verify_store(&options, &observer, &counts, message, sizeof message));
    assert_int_equal(counts.entries, ENTRIES);
    assert_int_equal(counts.bases, to->bases);
    assert_int_equal(catalog.bases, to->bases);
    assert_memory_equal(&catalog.last, &to->last, sizeof to->last);
    return counts;
}

TEST_EACH(NULL, basis_site_tear_down);

TEST(a_sound_store_has_its_basis)
{
    seen found;
    const verify_counts counts = look(&found);
    assert_int_equal(counts.sound, ENTRIES);
    assert_int_equal(counts.bases_faulty, 0);
    assert_int_equal(found.bases, 1);
    assert_int_equal(found.last.state, BASIS_FILE_PRESENT);
    assert_int_equal(found.last.records, ENTRIES);
    assert_int_equal(found.last.hash_bits, 256);
    assert_int_equal(found.last.bytes, site.made.bytes);
    assert_memory_equal(found.last.hash, site.made.basis.hash, sizeof found.last.hash);
}

TEST(a_missing_basis_is_named)
{
    seen found;
    assert_int_equal(unlink(site.basis_path), 0);
    const verify_counts counts = look(&found);
    assert_int_equal(counts.bases_faulty, 1);
    assert_int_equal(counts.faulty, 0); /* the records are sound */
    assert_int_equal(found.last.state, BASIS_FILE_MISSING);
    assert_int_equal(found.last.records, ENTRIES);
    assert_memory_equal(found.last.hash, site.made.basis.hash, sizeof found.last.hash);
}

TEST(a_damaged_basis_is_named)
{
    seen found;
    FILE *file = fopen(site.basis_path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 9000, SEEK_SET), 0);
    assert_int_equal(fwrite("damage", 1, 6, file), 6);
    assert_int_equal(fclose(file), 0);
    const verify_counts counts = look(&found);
    assert_int_equal(counts.bases_faulty, 1);
    assert_int_equal(found.last.state, BASIS_FILE_DAMAGED);
    assert_int_equal(found.last.status, KVT_E_CORRUPT);
    assert_int_equal(found.last.records, ENTRIES);
}

/* A file by another's name is refused here as the store refuses it. */
TEST(a_basis_by_the_wrong_name_is_damaged)
{
    seen found;
    basis_made other = basis_made_of(basis_site_shape, 77);
    assert_ok(basis_made_write(&other));
    FILE *file = fopen(site.basis_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(other.object, 1, other.bytes, file), other.bytes);
    assert_int_equal(fclose(file), 0);
    const verify_counts counts = look(&found);
    assert_int_equal(counts.bases_faulty, 1);
    assert_int_equal(found.last.state, BASIS_FILE_DAMAGED);
    assert_int_equal(found.last.status, KVT_E_MISMATCH);
}
