/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_encrypted.c - what reads parts of records, on encrypted drives in slots of whole
 * tensors: layers, coarse planes, blocks of a ring, loads into a GPU's memory (the stand-in) by
 * kernels and by the CPU; after a kill, after rekey, and with damage.
 */
#include "gpu_engine.h"

#include "codecs/codecs.h"

#include <kvterrace/recover.h>
#include <kvterrace/ring.h>
#include <sys/stat.h>
#include <sys/wait.h>

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

#define FORM "planes:k6v4,g64"

enum { DRIVES = 2, MORE = 100, MATRIX = ENTRY_BYTES / (2 * LAYERS) };

static char folder[64], profile_file[96], catalog_file[96], key_file[96], drive_files[DRIVES][96];
static kvt_device_config drives[DRIVES];
static char wanted_bytes[ENTRIES][ENTRY_BYTES];

static void write_keys(const char *keys)
{
    FILE *file = fopen(key_file, "we");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    fputs(keys, file);
    fclose(file);
}

#define KEY_A "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef\n"
#define KEY_B "ff112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef\n"

/* A store of two encrypted drives, whose entries have a form and lie in slots of it. */
static kvt_store_options encrypted_options(const char *form)
{
    static const char *const names[DRIVES] = {"d0", "d1"};
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0;
    options.limits.staging_bytes = 16 << 20;
    options.limits.tick_seconds = 0;
    options.policy = "lru";
    options.lossless = false;
    options.durability.catalog_path = catalog_file;
    options.loss.ladder_layout = layout;
    for (int i = 0; i < DRIVES; i++) {
        drives[i] = support_file_config(names[i], drive_files[i], 8 << 20);
        drives[i].key_file = key_file;
    }
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = drives,
                                                     .device_count = DRIVES,
                                                     .slots = form != NULL ? FORM "@64" : "raw@64",
                                                     .placement = KVT_PLACE_TENSOR,
                                                     .weights_fixed = true};
    if (form == NULL) return options;
    assert_ok(kvt_variant_parse(form, &options.variant));
    options.learning.profile_path = profile_file;
    options.loss.ladder = true;
    options.loss.alpha_seconds = 1;
    return options;
}

static void encrypted_begin(const char *form)
{
    const test_rung rung = {FORM, 5, 0.001, 0.002, true};
    support_make_folder(folder, sizeof folder);
    (void)snprintf(profile_file, sizeof profile_file, "%s/profile.db", folder);
    (void)snprintf(catalog_file, sizeof catalog_file, "%s/catalog.db", folder);
    (void)snprintf(key_file, sizeof key_file, "%s/key", folder);
    for (int i = 0; i < DRIVES; i++)
        (void)snprintf(drive_files[i], sizeof drive_files[i], "%s/d%d", folder, i);
    write_keys(KEY_A);
    ladder_make_profile(profile_file, &rung, form != NULL ? 1 : 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        fill(i, wanted_bytes[i]);
        if (form != NULL) decode_form(i, form, wanted_bytes[i]);
    }
}

static void encrypted_open(const kvt_store_options *options)
{
    store = support_open(options);
    queue = queue_site_queue(2, 0);
}

/* Another process puts the entries, flushes, and is killed. */
static void put_and_die(const kvt_store_options *options)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static char data[ENTRY_BYTES];
        kvt_store *own_store = NULL;
        bool well = kvt_store_open(options, &own_store, NULL, 0) == KVT_OK;
        for (uint32_t i = 0; i < ENTRIES && well; i++) {
            const kvt_entry entry = support_entry(support_key(i), layout, 1);
            fill(i, data);
            well = kvt_store_put(own_store, &entry, KVT_PACKED(data, ENTRY_BYTES)) == KVT_OK;
        }
        if (well && kvt_store_flush(own_store) == KVT_OK) (void)raise(SIGKILL);
        _exit(1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

/* ---- reads; with damage, an entry may be a miss, and none has other bytes ---- */

static void judge(kvt_status status, const void *found, uint32_t number, uint64_t offset,
                  uint64_t bytes, bool damaged)
{
    if (status != KVT_OK && damaged) return;
    if (status != KVT_OK)
        fail_msg("entry %u, %llu bytes: %s", number, (unsigned long long)bytes,
                 kvt_status_name(status));
    assert_memory_equal(found, wanted_bytes[number] + offset, bytes);
}

static void read_layer(uint32_t number, bool damaged)
{
    static char found[ENTRY_BYTES];
    const uint64_t half = ENTRY_BYTES / LAYERS;
    const kvt_view view = kvt_view_packed(found, ENTRY_BYTES);
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = own.keys[number],
                                 .view = &view,
                                 .first_layer = 1,
                                 .layer_count = LAYERS - 1,
                                 .deadline_ns = KVT_NO_DEADLINE};
    kvt_completion done = {.struct_size = sizeof done};
    memset(found, 0xee, sizeof found);
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    for (uint64_t i = 0; i < half; i++)
        assert_int_equal((unsigned char)found[i], 0xee);
    judge(done.status, found + half, number, half, ENTRY_BYTES - half, damaged);
}

static void read_coarse_first(bool damaged)
{
    static char found[ENTRIES][ENTRY_BYTES];
    const kvt_load_options progressive = {
        .struct_size = sizeof progressive, .deadline_ns = KVT_NO_DEADLINE, .coarse_planes = 1};
    kvt_view views[ENTRIES];
    const kvt_view *pointers[ENTRIES];
    kvt_status statuses[ENTRIES];
    kvt_load *load = NULL;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        views[i] = codecs_packed_view(&layout, found[i]);
        pointers[i] = &views[i];
    }
    const kvt_status begun =
        kvt_load_begin(queue, own.keys, pointers, ENTRIES, &progressive, &load);
    if (begun == KVT_MISS && damaged) return; /* all have been given up */
    assert_ok(begun);
    const uint32_t steps = kvt_load_total(load, NULL);
    for (uint32_t i = 0; i < steps; i++) {
        if (kvt_load_wait(load, i + 1, KVT_NO_DEADLINE) != KVT_OK) break;
        kvt_load_release(load, i + 1);
    }
    const kvt_status ended = kvt_load_end(load, statuses, NULL);
    assert_true(ended == KVT_OK || damaged);
    for (uint32_t i = 0; i < ENTRIES; i++)
        judge(statuses[i], found[i], i, 0, ENTRY_BYTES, damaged);
}

static void read_to_gpu(bool damaged)
{
    static char pool[POOL_BYTES], found[ENTRY_BYTES];
    kvt_status statuses[ENTRIES];
    memset(found, 0x3d, sizeof found);
    for (uint32_t i = 0; i < ENTRIES; i++)
        pool_write(i, found);
    const kvt_status status = load_all(statuses);
    if (status == KVT_MISS && damaged) return;
    assert_true(status == KVT_OK || damaged);
    assert_int_equal(driver.finish(own.stream), 0);
    fake_cuda_move(pool, own.pool, POOL_BYTES, 0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_view view = own.views[i];
        view.base[0] = pool;
        view_gather_entry(&view, &layout, found);
        judge(statuses[i], found, i, 0, ENTRY_BYTES, damaged);
    }
}

static void read_by_ring(bool damaged)
{
    kvt_ring *ring = NULL;
    char *memory = test_aligned(4096, ENTRIES * (uint64_t)ENTRY_BYTES);
    uint64_t objects[ENTRIES];
    uint32_t region;
    assert_ok(kvt_ring_open(store, 8, NULL, &ring));
    assert_ok(kvt_ring_region_add(ring, memory, ENTRIES * (uint64_t)ENTRY_BYTES, &region));
    const kvt_status opened = kvt_ring_object_open(ring, own.keys, ENTRIES, objects);
    assert_true(opened == KVT_OK || damaged);
    for (uint32_t layer = 0; layer < LAYERS && opened == KVT_OK; layer++) {
        signed char statuses[KVT_RING_CONTEXTS_MAX];
        kvt_ring_iocb iocb;
        kvt_ring_result result;
        assert_ok(kvt_ring_get_iocb(ring, 1, &iocb));
        iocb.block.count = 2 * ENTRIES;
        for (uint32_t i = 0; i < 2 * ENTRIES; i++)
            iocb.contexts[i] = (kvt_ring_context){
                .object = objects[i / 2],
                .layer = layer,
                .side = i % 2,
                .bytes = MATRIX,
                .region = region,
                .target = i / 2 * (uint64_t)ENTRY_BYTES +
                          kvt_layout_matrix_offset(&layout, layer, (kvt_side)(i % 2))};
        assert_ok(kvt_ring_submit(ring, &iocb, 1));
        assert_ok(kvt_ring_wait(ring, iocb.index, 1, KVT_NO_DEADLINE, &result, statuses));
        for (uint32_t i = 0; i < 2 * ENTRIES; i++) {
            const uint64_t at = kvt_layout_matrix_offset(&layout, layer, (kvt_side)(i % 2));
            judge((kvt_status)statuses[i], memory + i / 2 * (uint64_t)ENTRY_BYTES + at, i / 2, at,
                  MATRIX, damaged);
        }
    }
    kvt_ring_close(ring);
}

/* Reads the entries whose keys begin at a number in every way, ranges first: a get of a damaged
 * entry gives it up. */
static void read_all(uint32_t from, bool damaged)
{
    static char found[ENTRY_BYTES];
    for (uint32_t i = 0; i < ENTRIES; i++)
        own.keys[i] = support_key(from + i);
    for (uint32_t i = 0; i < ENTRIES; i++)
        read_layer(i, damaged);
    read_by_ring(damaged);
    read_coarse_first(damaged);
    read_to_gpu(damaged);
    for (uint32_t i = 0; i < ENTRIES; i++)
        judge(kvt_store_get(store, &own.keys[i], KVT_PACKED(found, ENTRY_BYTES), KVT_NO_DEADLINE,
                            NULL),
              found, i, 0, ENTRY_BYTES, damaged);
    const kvt_store_stats stats = support_stats(store);
    assert_true(damaged || (stats.load_failures == 0 && stats.misses == 0));
}

/* The exact bytes of the entries come from the GPU, under other keys. */
static void put_from_gpu(void)
{
    static char packed[ENTRY_BYTES];
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_entry entry = support_entry(support_key(MORE + i), layout, 1);
        fill(i, packed);
        pool_write(i, packed);
        assert_ok(kvt_store_put(store, &entry, &own.views[i]));
    }
    assert_ok(kvt_store_flush(store));
}

/* Flips a bit in each second 4 KiB of a drive behind its header, tags and labels. */
static void damage_drive(int drive)
{
    FILE *file = fopen(drive_files[drive], "r+e");
    assert_non_null(file);
    for (long at = 1 << 20; at < 8 << 20; at += 8192) {
        assert_int_equal(fseek(file, at + 1000, SEEK_SET), 0);
        const int byte = fgetc(file);
        if (byte == EOF) break;
        assert_int_equal(fseek(file, at + 1000, SEEK_SET), 0);
        fputc(byte ^ 8, file);
    }
    fclose(file);
}

static void live(const char *form, bool kernels)
{
    if (kernels) give_kernels();
    encrypted_begin(form);
    const kvt_store_options options = encrypted_options(form);
    put_and_die(&options);
    engine_open(0, "lsbth");
    encrypted_open(&options);
    kvt_device_stats device = {.struct_size = sizeof device};
    assert_ok(kvt_device_stats_get(store, 1, &device));
    assert_true((device.facts.flags & KVT_DEVICE_ENCRYPTED) != 0);
    assert_true(device.used_bytes > 0);
    assert_int_equal(support_stats(store).recovered, ENTRIES);
    read_all(0, false);
    assert_int_equal(stats_of(0).decoded_by_gpu > 0, kernels);
    put_from_gpu();
    read_all(MORE, false);
    assert_int_equal(queue_site_close(NULL), 0);

    char message[256] = "";
    kvt_rekey_report report = {.struct_size = sizeof report};
    write_keys(KEY_B KEY_A);
    if (kvt_store_rekey(&options, NULL, NULL, &report, message, sizeof message) != KVT_OK)
        fail_msg("rekey: %s", message);
    assert_int_equal(report.devices, DRIVES);
    assert_int_equal(report.damaged_bytes, 0);
    assert_true(report.changed_bytes > 0);
    write_keys(KEY_B);
    encrypted_open(&options);
    assert_int_equal(support_stats(store).recovered, 2 * ENTRIES);
    read_all(0, false);
    read_all(MORE, false);
    assert_int_equal(queue_site_close(NULL), 0);

    damage_drive(0);
    encrypted_open(&options);
    read_all(0, true);
    read_all(MORE, true);
    assert_true(support_stats(store).misses > 0);
    assert_ok(kvt_device_stats_get(store, 0, &device));
    assert_true(device.tag_faults > 0);
    assert_ok(kvt_device_stats_get(store, 1, &device));
    assert_int_equal(device.tag_faults, 0);
    assert_int_equal(queue_site_close(NULL), 0);
    engine_close();
}

TEST(raw_tensors)
{
    live(NULL, false);
}

TEST(raw_tensors_by_kernels)
{
    live(NULL, true);
}

TEST(planes)
{
    live(FORM, false);
}

TEST(planes_by_kernels)
{
    live(FORM, true);
}
