/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_starts.c - where reads of a drive should begin: measured on a stand-in drive whose
 * reads cost the chunks that they touch, kept in the profile, and judged. Time is virtual, so every
 * figure is exact.
 */
#include "cases.h"

#include "estimator/exchange/exchange.h"
#include "profile_scratch.h"
#include "rows_text.h"

TEST_ALL(scratch_make, scratch_remove);

#define KIB UINT64_C(1024)

enum { CHUNKS_DEPTH = 64 };

/* A drive with one server, 1 GB/s and 10 us a request. */
typedef struct chunk_drive {
    kvt_device base;
    uint64_t read_chunk; /* reads cost all of so many bytes that they touch; 0: their own */
    uint64_t clock_ns;
    uint64_t least, most; /* of the bytes that were read */
    kvt_io *queue[CHUNKS_DEPTH];
    uint32_t queued;
} chunk_drive;

static kvt_status chunk_submit(kvt_device *device, kvt_io *io)
{
    chunk_drive *drive = (chunk_drive *)device;
    if (drive->queued == CHUNKS_DEPTH) return KVT_BUSY;
    assert_true(io->offset + io->bytes <= device->facts.capacity_bytes);
    if (io->offset < drive->least) drive->least = io->offset;
    if (io->offset + io->bytes > drive->most) drive->most = io->offset + io->bytes;
    io->submitted_ns = drive->clock_ns;
    drive->queue[drive->queued++] = io;
    return KVT_QUEUED;
}

static size_t chunk_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    chunk_drive *drive = (chunk_drive *)device;
    (void)min, (void)max, (void)timeout_ns;
    if (drive->queued == 0) return 0;
    kvt_io *io = drive->queue[0];
    memmove(drive->queue, drive->queue + 1, --drive->queued * sizeof drive->queue[0]);
    const uint64_t chunk = drive->read_chunk;
    uint64_t bytes = io->bytes;
    if (chunk != 0 && io->kind == KVT_IO_READ)
        bytes = (io->offset + io->bytes + chunk - 1) / chunk * chunk - io->offset / chunk * chunk;
    drive->clock_ns += 10000 + bytes;
    io->status = KVT_OK;
    io->finished_ns = drive->clock_ns;
    done[0] = io;
    return 1;
}

static void chunk_close(kvt_device *device)
{
    (void)device; /* the test's */
}

static const kvt_device_ops chunk_ops = {.struct_size = sizeof(kvt_device_ops),
                                         .abi_version = KVT_DEVICE_ABI,
                                         .name = "chunks",
                                         .close = chunk_close,
                                         .submit = chunk_submit,
                                         .reap = chunk_reap};

static void chunk_make(chunk_drive *drive, uint64_t chunk)
{
    memset(drive, 0, sizeof *drive);
    drive->base.ops = &chunk_ops;
    drive->base.facts = (kvt_device_facts){.capacity_bytes = 64 << 20,
                                           .align_bytes = 512,
                                           .request_bytes_max = 1 << 20,
                                           .depth_max = 32,
                                           .flags = KVT_DEVICE_NO_DATA | KVT_DEVICE_VIRTUAL_TIME};
    snprintf(drive->base.name, sizeof drive->base.name, "drive");
    snprintf(drive->base.facts.identity, sizeof drive->base.facts.identity, "chunks");
    snprintf(drive->base.facts.engine, sizeof drive->base.facts.engine, "chunks");
    drive->read_chunk = chunk;
    drive->least = UINT64_MAX;
}

static kvt_status chunk_measure(kvt_profile *profile, chunk_drive *drive, kvt_tier tier, bool quick)
{
    const kvt_profile_request request = {
        .struct_size = sizeof request, .repetitions = 3, .quick = quick};
    return kvt_profile_measure_device(profile, &drive->base, tier, 0, 0, &request);
}

static size_t count_starts(kvt_profile *profile)
{
    json_t *views = json_object();
    assert_ok(exchange_view(profile, "starts", views));
    const size_t count = json_array_size(json_object_get(views, "starts"));
    json_decref(views);
    return count;
}

TEST(the_chunk_of_a_drive_is_found)
{
    static const struct {
        uint64_t chunk, begin;
    } cases[] = {{0, 4 * KIB},         {512, 4 * KIB},       {4 * KIB, 4 * KIB},
                 {16 * KIB, 16 * KIB}, {64 * KIB, 64 * KIB}, {128 * KIB, 128 * KIB}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int quick = 0; quick < 2; quick++) {
            chunk_drive drive;
            uint64_t begin = 7;
            scratch_remove_profile();
            kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
            assert_int_equal(kvt_profile_begins_at(profile, "drive", &begin), KVT_MISS);
            assert_true(begin == 0);
            chunk_make(&drive, cases[i].chunk);
            assert_ok(chunk_measure(profile, &drive, KVT_TIER_SSD, quick != 0));
            assert_int_equal(count_starts(profile), quick ? 4 : 16);
            assert_ok(kvt_profile_begins_at(profile, "drive", &begin));
            assert_int_equal(begin, cases[i].begin);
            kvt_profile_close(profile);
        }
    }
}

/* Memory has no chunks; a range without room for the begins, and a drive whose blocks are larger
 * than the least begin, leave it open. */
TEST(where_nothing_can_be_compared_nothing_is_said)
{
    chunk_drive drive;
    uint64_t begin;
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    chunk_make(&drive, 64 * KIB);
    assert_ok(chunk_measure(profile, &drive, KVT_TIER_DRAM, false));
    assert_int_equal(kvt_profile_begins_at(profile, "drive", &begin), KVT_MISS);
    drive.base.facts.capacity_bytes = 512 * KIB;
    assert_ok(chunk_measure(profile, &drive, KVT_TIER_SSD, false));
    assert_int_equal(kvt_profile_begins_at(profile, "drive", &begin), KVT_MISS);
    drive.base.facts.capacity_bytes = 64 << 20;
    drive.base.facts.align_bytes = 8192;
    assert_ok(chunk_measure(profile, &drive, KVT_TIER_SSD, false));
    assert_int_equal(kvt_profile_begins_at(profile, "drive", &begin), KVT_MISS);
    drive.base.facts.align_bytes = 512;
    drive.base.facts.request_bytes_max = 64 * KIB;
    assert_ok(chunk_measure(profile, &drive, KVT_TIER_SSD, false));
    assert_int_equal(count_starts(profile), 8); /* of 32 and of 64 KiB */
    kvt_profile_close(profile);
}

/* Begins count from the drive's start, wherever the range lies in it, and stay within the range. */
TEST(a_range_that_begins_anywhere)
{
    chunk_drive drive;
    uint64_t begin;
    const kvt_profile_request request = {.struct_size = sizeof request, .repetitions = 1};
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    chunk_make(&drive, 128 * KIB);
    const uint64_t offset = 1024 * KIB + 3 * 4 * KIB, bytes = (8 << 20) + 4 * KIB;
    assert_ok(
        kvt_profile_measure_device(profile, &drive.base, KVT_TIER_SSD, offset, bytes, &request));
    assert_ok(kvt_profile_begins_at(profile, "drive", &begin));
    assert_int_equal(begin, 128 * KIB);
    assert_true(drive.least >= offset && drive.most <= offset + bytes);
    kvt_profile_close(profile);
}

/* Imports rows of one device: begins of 4, 16 and 64 KiB for reads of 32 and 64 KiB. */
static void put_starts(kvt_profile *profile, const double rates[2][3])
{
    static const int begins[3] = {4096, 16384, 65536};
    char text[2048];
    int used = snprintf(text, sizeof text,
                        "[device]\n"
                        "device,tier,direction,bytes_per_s,request_seconds\n"
                        "drive,ssd,read,1e9,1e-5\n"
                        "[device_start]\n"
                        "device,request_bytes,begins_at,depth,bytes_per_s\n");
    for (int size = 0; size < 2; size++)
        for (int i = 0; i < 3; i++)
            used += snprintf(text + used, sizeof text - (size_t)used, "drive,%d,%d,32,%.17g\n",
                             32768 << size, begins[i], rates[size][i]);
    json_t *tables = rows_text_tables(text);
    const kvt_status status = exchange_import_tables(profile, tables, "a data sheet",
                                                     scratch.message, sizeof scratch.message);
    if (status != KVT_OK) fail_msg("%s", scratch.message);
    json_decref(tables);
}

/* A twentieth pays, less does not; of begins that are nearly as good the least one is taken; sizes
 * count alike, whatever they gain. */
TEST(a_begin_has_to_gain_a_twentieth)
{
    static const struct {
        double rates[2][3];
        uint64_t begin;
    } cases[] = {
        {{{1e9, 1e9, 1e9}, {1e9, 1e9, 1e9}}, 4096},
        {{{1e9, 1.04e9, 1.049e9}, {2e9, 2.08e9, 2.098e9}}, 4096},
        {{{1e9, 1.02e9, 1.051e9}, {2e9, 2.04e9, 2.102e9}}, 65536},
        {{{1e9, 1.04e9, 1.051e9}, {2e9, 2.08e9, 2.102e9}}, 16384},
        {{{1e9, 1.3e9, 1.2e9}, {2e9, 2.6e9, 2.4e9}}, 16384},
        {{{1e9, 1e9, 1.2e9}, {2e9, 2e9, 1.9e9}}, 65536},
        {{{1e9, 1e9, 1.2e9}, {2e9, 2e9, 1.7e9}}, 4096},
        {{{1e9, 0.5e9, 0.7e9}, {2e9, 1e9, 1e9}}, 4096},
    };
    uint64_t begin;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        scratch_remove_profile();
        kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
        put_starts(profile, cases[i].rates);
        assert_ok(kvt_profile_begins_at(profile, "drive", &begin));
        assert_int_equal(begin, cases[i].begin);
        kvt_profile_close(profile);
    }
}

/* A busy machine: the medians differ by half, and the repetitions by more. */
TEST(a_gain_within_the_repetitions_is_none)
{
    static const double rows[2][3] = {{1e9, 1.5e9, 1.1e9}, {1e9, 1.5e9, 1.1e9}};
    static const char *const spreads[] = {
        "UPDATE device_start SET bytes_per_s_max = 1.6e9 WHERE begins_at = 4096",
        "UPDATE device_start SET bytes_per_s_min = 0.9e9 WHERE begins_at = 16384"};
    static const uint64_t left[] = {4096, 65536};
    uint64_t begin;
    for (size_t i = 0; i < 2; i++) {
        scratch_remove_profile();
        kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
        put_starts(profile, rows);
        kvt_profile_close(profile);
        scratch_change(spreads[i]);
        profile = scratch_open(KVT_PROFILE_READ);
        assert_ok(kvt_profile_begins_at(profile, "drive", &begin));
        assert_int_equal(begin, left[i]);
        kvt_profile_close(profile);
    }
}

/* What was measured answers before what was imported, and a newer run before an older one. */
TEST(the_newest_measurement_answers)
{
    static const double rows[2][3] = {{1e9, 2e9, 1e9}, {1e9, 2e9, 1e9}};
    chunk_drive drive;
    uint64_t begin;
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    chunk_make(&drive, 128 * KIB);
    assert_ok(chunk_measure(profile, &drive, KVT_TIER_SSD, true));
    put_starts(profile, rows);
    assert_ok(kvt_profile_begins_at(profile, "drive", &begin));
    assert_int_equal(begin, 128 * KIB);
    drive.read_chunk = 0;
    assert_ok(chunk_measure(profile, &drive, KVT_TIER_SSD, true));
    assert_ok(kvt_profile_begins_at(profile, "drive", &begin));
    assert_int_equal(begin, 4 * KIB);
    kvt_profile_close(profile);
}

/* Rows that no measurement makes are refused, at import and at open. */
TEST(impossible_rows_are_refused)
{
    static const char *const bad[] = {"begins_at = 0",       "begins_at = 4095",
                                      "begins_at = 262144",  "begins_at = 12288",
                                      "request_bytes = 0",   "bytes_per_s_min = bytes_per_s * 2",
                                      "bytes_per_s = 1e301", "bytes_per_s_max = 1e301",
                                      "repetitions = 0",     "depth = 0"};
    static const double rows[2][3] = {{1e9, 2e9, 1e9}, {1e9, 2e9, 1e9}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char sql[160];
        scratch_remove_profile();
        kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
        put_starts(profile, rows);
        kvt_profile_close(profile);
        snprintf(sql, sizeof sql,
                 "PRAGMA ignore_check_constraints = 1; UPDATE device_start SET %s WHERE "
                 "request_bytes = 32768 AND begins_at = 65536",
                 bad[i]);
        scratch_change(sql);
        assert_int_equal(kvt_profile_open(scratch.path, KVT_PROFILE_READ, &profile, NULL, 0),
                         KVT_E_CORRUPT);
    }
}
