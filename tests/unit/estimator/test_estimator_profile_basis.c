/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_profile_basis.c - bases in a profile: they come in whole or not at all, from
 * memory and from a file; a damaged one is a status; gc keeps the bases that rows
 * need; show and diff know them.
 */

#include "basis_support.h"
#include "cases.h"
#include "estimator/exchange/exchange.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_quality.h"
#include "profile_scratch.h"

static const transform_shape shape = {.layers = 2,
                                      .kv_heads = 2,
                                      .head_dim = 16,
                                      .rotary_dim = 16,
                                      .sides = 2,
                                      .span = TRANSFORM_SPAN_HEAD};

static basis_made make_basis(uint64_t seed)
{
    basis_made made = basis_made_of(shape, seed);
    assert_ok(basis_made_write(&made));
    return made;
}

static uint32_t list_bases(kvt_profile *profile)
{
    json_t *views = json_object();
    assert_ok(exchange_view(profile, "bases", views));
    const uint32_t rows = (uint32_t)json_array_size(json_object_get(views, "bases"));
    json_decref(views);
    return rows;
}

TEST_ALL(scratch_make, scratch_remove);

TEST(a_basis_comes_in_and_out)
{
    basis_made made = make_basis(3);
    const uint32_t start = transform_hash_start(made.basis.hash);
    profile_basis out;
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_int_equal(profile_basis_get(profile, start, &out), KVT_MISS);
    assert_ok(profile_basis_import(profile, made.object, made.bytes, NULL, "x"));
    assert_int_equal(profile_basis_import(profile, made.object, made.bytes, NULL, "x"), KVT_EXISTS);
    assert_int_equal(list_bases(profile), 1);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT count(*) FROM run"), 1);
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(profile_basis_import(profile, made.object, made.bytes, NULL, "x"),
                     KVT_E_READ_ONLY);
    assert_ok(profile_basis_get(profile, start, &out));
    assert_int_equal(out.bytes, made.bytes);
    assert_memory_equal(out.object, made.object, made.bytes);
    assert_int_equal(out.view.shape.span, TRANSFORM_SPAN_HEAD);
    profile_basis_free(&out);
    assert_ok(profile_basis_at(profile, 0, &out));
    profile_basis_free(&out);
    assert_int_equal(profile_basis_at(profile, 1, &out), KVT_MISS);
    const kvt_variant variant = {.codec = KVT_CODEC_TRANSFORM,
                                 .mode = TRANSFORM_MODE,
                                 .rate = start << PROFILE_BASIS_SHIFT | 64};
    assert_int_equal(profile_basis_span(profile, variant), TRANSFORM_SPAN_HEAD);
    assert_int_equal(profile_basis_span(profile, (kvt_variant){.codec = KVT_CODEC_RAW}), 0);
    kvt_profile_close(profile);
}

TEST(what_is_no_basis_stays_out)
{
    basis_made made = make_basis(4);
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    made.object[made.bytes / 2] ^= 1;
    assert_int_equal(profile_basis_import(profile, made.object, made.bytes, "s", NULL),
                     KVT_E_CORRUPT);
    made.object[made.bytes / 2] ^= 1;
    assert_int_equal(profile_basis_import(profile, made.object, made.bytes - 1, "s", NULL),
                     KVT_E_CORRUPT);
    assert_int_equal(profile_basis_import(profile, made.object, 0, "s", NULL), KVT_E_CORRUPT);
    assert_int_equal(list_bases(profile), 0);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT count(*) FROM run"), 0);
}

/* Two bases that a variant's 20 bits could not tell apart. */
TEST(a_name_is_of_one_basis)
{
    basis_made made = make_basis(5), other = make_basis(6);
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(profile_basis_import(profile, made.object, made.bytes, "s", NULL));
    kvt_profile_close(profile);
    char sql[160];
    (void)snprintf(sql, sizeof sql, "UPDATE basis SET start = %u",
                   (unsigned)transform_hash_start(other.basis.hash));
    scratch_change(sql);
    profile = scratch_open(KVT_PROFILE_WRITE);
    assert_int_equal(profile_basis_import(profile, other.object, other.bytes, "s", NULL),
                     KVT_E_UNSUPPORTED);
    kvt_profile_close(profile);
}

TEST(a_file_comes_in_by_import)
{
    char path[160];
    uint64_t rows = 9;
    basis_made made = make_basis(7);
    (void)snprintf(path, sizeof path, "%s/made.kvtbasis", scratch.folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(made.object, 1, made.bytes, file), made.bytes);
    fclose(file);
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    for (int again = 0; again < 2; again++) {
        assert_ok(exchange_import(profile, path, "here", "x", &rows, scratch.message,
                                  sizeof scratch.message));
        assert_int_equal(rows, again == 0);
    }
    assert_int_equal(truncate(path, (off_t)made.bytes - 7), 0);
    assert_int_equal(
        exchange_import(profile, path, "here", "x", &rows, scratch.message, sizeof scratch.message),
        KVT_E_PARSE);
    assert_non_null(strstr(scratch.message, path));
    (void)unlink(path);
    assert_int_equal(
        exchange_import(profile, path, "here", "x", &rows, scratch.message, sizeof scratch.message),
        KVT_E_GONE);
    assert_int_equal(list_bases(profile), 1);
    kvt_profile_close(profile);
}

/* Bytes of an object that changed on the disk: the profile opens, the basis does not come out. */
TEST(a_damaged_object_is_a_status)
{
    basis_made made = make_basis(8);
    profile_basis out;
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(profile_basis_import(profile, made.object, made.bytes, "s", NULL));
    kvt_profile_close(profile);
    scratch_change("UPDATE basis SET object = zeroblob(length(object))");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(profile_basis_get(profile, transform_hash_start(made.basis.hash), &out),
                     KVT_E_CORRUPT);
    assert_null(out.object);
    kvt_profile_close(profile);
    scratch_change("PRAGMA ignore_check_constraints = ON; UPDATE basis SET object = x'00'; PRAGMA "
                   "wal_checkpoint(TRUNCATE)");
    scratch_refused(KVT_PROFILE_READ, KVT_E_CORRUPT);
}

/* ---- gc and diff ---- */

#define RUN(id)                                                                                    \
    "INSERT INTO run SELECT " #id ", 'calibration', 1, host_identity, host_name, kernel, "         \
    "cpu_model, cpu_count, memory_bytes, started_utc, finished_utc, library_version, "             \
    "sqlite_version, zstd_version, command_line, seed, '' FROM run WHERE id = 1;"

/* Runs 2 and 3 learnt a basis each; 3 replaces 2, and its ladder has a rung of the first. */
TEST(gc_keeps_the_bases_of_rows)
{
    basis_made used = make_basis(10), unused = make_basis(11), taken = make_basis(12);
    json_t *report = json_object();
    char sql[512];
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(profile_basis_import(profile, taken.object, taken.bytes, "s", NULL));
    kvt_profile_close(profile);
    scratch_change(RUN(2) RUN(3) RUN(4) "INSERT INTO calibration VALUES (1, 2, 1, 'c'), (2, 3, 1, "
                                        "'c');");
    profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(profile_basis_put(profile, 2, 1, "one", used.object, used.bytes));
    assert_ok(profile_basis_put(profile, 2, 1, "two", unused.object, unused.bytes));
    kvt_profile_close(profile);
    (void)snprintf(sql, sizeof sql,
                   "INSERT INTO calibration_rung (calibration_id, position, codec, mode, rate, "
                   "name, bits_per_element, loss, loss_upper, accepted, evidence) VALUES (2, 0, 8, "
                   "1, %u, 't', 2, 0.1, 0.1, 1, 'e')",
                   (unsigned)(transform_hash_start(used.basis.hash) << PROFILE_BASIS_SHIFT | 64));
    scratch_change(sql);
    profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(exchange_gc(profile, false, 0, report));
    assert_int_equal(json_array_size(json_object_get(report, "runs")), 1);
    json_decref(report);
    profile_basis out;
    assert_ok(profile_basis_find(profile, 1, "one", TRANSFORM_SPAN_HEAD, &out));
    profile_basis_free(&out);
    assert_int_equal(profile_basis_find(profile, 1, "two", TRANSFORM_SPAN_HEAD, &out), KVT_MISS);
    assert_ok(profile_basis_get(profile, transform_hash_start(taken.basis.hash), &out));
    profile_basis_free(&out);
    assert_int_equal(list_bases(profile), 2);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT run_id FROM basis WHERE lesson = 'one'"), 3);
}

TEST(diff_names_a_basis_of_one_profile)
{
    json_t *changes = json_array(), *change;
    size_t i;
    uint32_t seen = 0;
    kvt_profile *empty = NULL;
    basis_made made = make_basis(13);
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(profile_basis_import(profile, made.object, made.bytes, "s", NULL));
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &empty, NULL, 0));
    assert_ok(exchange_diff(empty, profile, changes));
    json_array_foreach(changes, i, change)
    {
        seen += strncmp(json_string_value(json_object_get(change, "curve")), "basis ", 6) == 0 &&
                json_is_null(json_object_get(change, "before")) &&
                json_number_value(json_object_get(change, "after")) > 4096;
    }
    json_decref(changes);
    assert_int_equal(seen, 1);
    kvt_profile_close(empty);
    kvt_profile_close(profile);
}
