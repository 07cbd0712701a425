/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_gpu_costs.c - what gets into a GPU's memory are expected to take, over the stand-in
 * for the driver: the read, the link and the kernels' decoding, of figures of a profile.
 */
#include "store/core/store.h"

#include "estimator/profile/profile_internal.h"
#include "gpu_engine.h"
#include "store/core/store_offer.h"

#include <math.h>

TEST_ALL(open_all, NULL);
TEST_EACH(begin_case, end_case);

#define FORM         "kivi:k4v4"
#define LINK_REQUEST 0.25
#define LINK_RATE    1e6 /* bytes per second: slower than anything else here */
#define KERNEL_RATE  1e5

static bool with_link, with_kernels;
static double kernel_rate = KERNEL_RATE;

/* Rows of the link, and of the kernels of the form, as profile codecs makes them. */
static void rows_of_gpu(const char *path)
{
    kvt_profile *profile;
    char message[256];
    int64_t run, row;
    assert_ok(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    assert_ok(profile_run_begin(profile, "codecs", NULL, 1, &run));
    const kvt_device link = {.name = PROFILE_LINK_NAME,
                             .facts = {.request_bytes_max = 1, .depth_max = 1}};
    kvt_affine fit = {.request_seconds = LINK_REQUEST, .bytes_per_s = LINK_RATE};
    kvt_device_point point = {.request_bytes = 1,
                              .depth = 1,
                              .repetitions = 1,
                              .bytes_per_s = 1,
                              .bytes_per_s_min = 1,
                              .bytes_per_s_max = 1};
    if (with_link) {
        assert_ok(profile_device_insert(profile, run, &link, KVT_TIER_HBM, &row));
        point.kind = KVT_IO_WRITE;
        assert_ok(profile_point_insert(profile, row, &point, 1, &fit));
        point.kind = KVT_IO_READ;
        fit.bytes_per_s = 1; /* the other way */
        assert_ok(profile_point_insert(profile, row, &point, 1, &fit));
    }
    kvt_codec_curve curve = {
        .stored_share = 0.3, .encode_bytes_per_s = 1, .decode_bytes_per_s = kernel_rate};
    assert_ok(kvt_variant_parse(FORM, &curve.variant));
    if (with_kernels)
        assert_ok(profile_codec_insert(profile, run, &curve, PROFILE_ISA_GPU, 1, "sample", 1, 1));
    assert_ok(profile_run_complete(profile, run));
    kvt_profile_close(profile);
}

static void costs_open(bool device, bool link, bool kernels)
{
    with_link = link;
    with_kernels = kernels;
    profile_rows = rows_of_gpu;
    engine_open(0, "lsbth");
    site_open_form(device, false, FORM);
    assert_ok(kvt_store_flush(store));
}

static void costs_close(void)
{
    assert_int_equal(queue_site_close(NULL), 0);
    engine_close();
}

static kvt_get_info get_one(uint32_t number)
{
    kvt_get_info info = {.struct_size = sizeof info};
    assert_ok(kvt_store_get(store, &own.keys[number], &own.views[number], KVT_NO_DEADLINE, &info));
    return info;
}

static double link_seconds(double bytes)
{
    return LINK_REQUEST + bytes / LINK_RATE;
}

/* Whether a prediction is these seconds, but for the rounding to nanoseconds. */
static bool is_predicted(const kvt_get_info *info, double seconds)
{
    return fabs((double)info->predicted_ns * 1e-9 - seconds) < 2e-9;
}

/* Of a record in DRAM, which the link reads where it lies; all of it, and some of its layers. */
TEST(kernels_from_dram)
{
    give_kernels();
    costs_open(false, true, true);
    const kvt_get_info info = get_one(0);
    assert_int_equal(stats_of(0).decoded_by_gpu, LAYERS);
    assert_true(
        is_predicted(&info, link_seconds((double)info.stored_bytes) + ENTRY_BYTES / KERNEL_RATE));
    kvt_get_info part = {.struct_size = sizeof part};
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = own.keys[1],
                                 .view = &own.views[1],
                                 .first_layer = 1,
                                 .layer_count = 1,
                                 .deadline_ns = KVT_NO_DEADLINE,
                                 .info = &part};
    kvt_completion done = {.struct_size = sizeof done};
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_ok(done.status);
    assert_int_equal(stats_of(0).decoded_by_gpu, LAYERS + 1);
    assert_true(is_predicted(&part, link_seconds((double)(part.stored_bytes / LAYERS)) +
                                        (double)(ENTRY_BYTES / LAYERS) / KERNEL_RATE));
}

/* Of a record on a device: its read as well. */
TEST(kernels_from_a_device)
{
    give_kernels();
    costs_open(true, true, true);
    const kvt_get_info info = get_one(0);
    assert_int_equal(stats_of(0).decoded_by_gpu, LAYERS);
    const double behind = link_seconds((double)info.stored_bytes) + ENTRY_BYTES / KERNEL_RATE;
    const double read = (double)info.predicted_ns * 1e-9 - behind;
    assert_true(read > 1e-8);
    pthread_mutex_lock(&store->learn->lock);
    const online_work work = {.bytes = (double)info.stored_bytes};
    const online_device *device = &store->learn->tiers[info.tier].members[0].kinds[KVT_IO_READ];
    const double least = device->curve[0] + device->curve[1] * work.bytes;
    pthread_mutex_unlock(&store->learn->lock);
    assert_true(read > least / ONLINE_FACTOR_MOST && read < least * ONLINE_FACTOR_MOST);
}

/* Of a record in the GPU's own memory: nothing crosses. */
TEST(kernels_in_place)
{
    static kvt_device_config device;
    static kvt_tier_options tier;
    device = (kvt_device_config){.struct_size = sizeof device,
                                 .name = "gpu0",
                                 .backend = "hbm",
                                 .capacity_bytes = 24 * ENTRY_BYTES};
    tier = (kvt_tier_options){.devices = &device, .device_count = 1};
    give_kernels();
    for (int link = 0; link < 2; link++) {
        hbm_tier = &tier;
        costs_open(false, link != 0, true);
        const kvt_get_info info = get_one(0);
        assert_int_equal(info.tier, KVT_TIER_HBM);
        assert_int_equal(stats_of(0).decoded_in_place, LAYERS);
        assert_true(is_predicted(&info, ENTRY_BYTES / KERNEL_RATE));
        costs_close();
    }
}

/* What was not measured is not said: the link, the kernels, and with one figure alone. */
TEST(nothing_measured_nothing_said)
{
    for (int way = 0; way < 6; way++) {
        const bool kernels = way >= 3;
        if (kernels) give_kernels();
        costs_open(way % 2 != 0, way % 3 == 1 && kernels, way % 3 == 2);
        const kvt_get_info info = get_one(0);
        assert_int_equal(stats_of(0).decoded_by_gpu, kernels ? LAYERS : 0);
        assert_int_equal(info.predicted_ns, 0);
        assert_true(info.decode_ns > 0);
        costs_close();
    }
}

static double decode_seconds; /* that were last timed */

static double note_decoding(void *context, learn_timing what, double bytes, double seconds)
{
    (void)context, (void)bytes;
    if (what == LEARN_TIME_DECODE) decode_seconds = seconds;
    return seconds;
}

/* The CPU decodes, and raw bytes cross. The store learns of the CPU's decoding alone, however long
 * copies take. */
TEST(the_cpu_decodes_and_the_raw_bytes_cross)
{
    for (int device = 0; device < 2; device++) {
        kvt_get_info host = {.struct_size = sizeof host};
        static char data[ENTRY_BYTES];
        costs_open(device != 0, true, true);
        pthread_mutex_lock(&store->learn->lock);
        store->learn->clock = note_decoding;
        pthread_mutex_unlock(&store->learn->lock);
        assert_ok(kvt_store_get(store, &own.keys[1], KVT_PACKED(data, ENTRY_BYTES), KVT_NO_DEADLINE,
                                &host));
        assert_true(host.predicted_ns > 0 && (double)host.predicted_ns < 0.25e9);
        fake->queries_until_done = 1000;
        const kvt_get_info info = get_one(0);
        fake->queries_until_done = 2;
        assert_int_equal(stats_of(0).decoded_by_cpu, LAYERS);
        const double predicted = (double)info.predicted_ns * 1e-9;
        assert_true(predicted > link_seconds(ENTRY_BYTES));
        assert_true(predicted < link_seconds(ENTRY_BYTES) + 0.25);
        /* Each look at the copy but those of the first 50 us came after a nap of 10 us. */
        assert_true((double)info.decode_ns * 1e-9 > decode_seconds + 0.005);
        costs_close();
    }
}

/* ---- options ---- */

/* The form of an entry, by a get into the host's memory. */
static kvt_variant form_of(uint32_t number)
{
    static char data[ENTRY_BYTES];
    kvt_get_info info = {.struct_size = sizeof info};
    const kvt_key key = support_key(number);
    assert_ok(kvt_store_get(store, &key, KVT_PACKED(data, ENTRY_BYTES), KVT_NO_DEADLINE, &info));
    return info.variant;
}

/* The form in which an entry that is put from the host's memory is kept. */
static kvt_variant form_of_put(uint32_t number)
{
    static char data[ENTRY_BYTES];
    kvt_entry entry = support_entry(support_key(number), layout, 1);
    fill(0, data);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, ENTRY_BYTES)));
    return form_of(number);
}

static kvt_option option_of(uint32_t number, uint16_t codec)
{
    kvt_explanation found = {.struct_size = sizeof found};
    const kvt_key key = support_key(number);
    assert_ok(kvt_store_explain(store, &key, &found));
    for (uint32_t i = 1; i < found.option_count; i++)
        if (found.options[i].option.variant.codec == codec) return found.options[i].option;
    fail_msg("no option of codec %u", (unsigned)codec);
    return found.options[0].option;
}

/* Where gets go decides what a lossy form is worth: into the host's memory raw bytes of DRAM are
 * the fastest; over a slow link, and decoded by fast kernels, fewer bytes are. Entries that are
 * stored get the new seconds, too, and the old ones when gets come back to the host. */
TEST(options_follow_the_target_of_gets)
{
    static const char *const path = "test_store_gpu_costs_options.db";
    const test_rung rung = {FORM, 5, 0.001, 0.002, true};
    give_kernels();
    engine_open(0, "lsbth");
    with_link = with_kernels = true;
    kernel_rate = 1e9;
    (void)unlink(path);
    ladder_make_profile(path, &rung, 1);
    rows_of_gpu(path);
    kernel_rate = KERNEL_RATE;
    kvt_store_options options = ladder_store_options(path, &layout, 64 << 20);
    options.lossless = false;
    assert_ok(kvt_store_open(&options, &store, NULL, 0));
    assert_int_equal(form_of_put(0).codec, KVT_CODEC_RAW);
    const kvt_option before = option_of(0, KVT_CODEC_KIVI);
    learn_round(store); /* gets went to the host: nothing changes */
    assert_int_equal(form_of_put(1).codec, KVT_CODEC_RAW);
    for (int i = 0; i < 400; i++)
        (void)get_one(0);
    assert_true(stats_of(0).gets_share > 0.9);
    learn_round(store);
    assert_int_equal(form_of_put(2).codec, KVT_CODEC_KIVI);
    const kvt_option after = option_of(0, KVT_CODEC_KIVI);
    assert_true(after.load_seconds > 0.9 * LINK_REQUEST && before.load_seconds < 0.01);
    assert_true(after.load_seconds + after.decode_seconds <
                option_of(0, KVT_CODEC_RAW).load_seconds +
                    option_of(0, KVT_CODEC_RAW).decode_seconds);
    for (uint32_t i = 0; i < 400; i++)
        (void)form_of(0);
    assert_true(stats_of(0).gets_share < 0.1);
    learn_round(store);
    assert_int_equal(form_of_put(4).codec, KVT_CODEC_RAW);
    assert_true(option_of(0, KVT_CODEC_KIVI).load_seconds < 0.1 * LINK_REQUEST);
}

/* Before any get a put says where they will go; a load's entries count as gets do. */
TEST(puts_and_loads_say_where_gets_go)
{
    costs_open(false, true, true);
    assert_true(stats_of(0).gets_share == 0.0); /* no GPU was needed */
    kvt_entry entry = support_entry(support_key(50), layout, 1);
    assert_ok(kvt_store_put(store, &entry, &own.views[0]));
    assert_true(stats_of(0).gets_share == 1.0);
    static char data[ENTRY_BYTES];
    assert_ok(
        kvt_store_get(store, &own.keys[1], KVT_PACKED(data, ENTRY_BYTES), KVT_NO_DEADLINE, NULL));
    assert_true(stats_of(0).gets_share == 0.0); /* a get says more than a put */
    entry.key = support_key(51);
    assert_ok(kvt_store_put(store, &entry, &own.views[0]));
    assert_true(stats_of(0).gets_share == 0.0);
    kvt_status statuses[ENTRIES];
    assert_ok(load_all(statuses));
    const double gets = stats_of(0).gets_share;
    assert_true(fabs(gets - (1.0 - pow(63.0 / 64.0, ENTRIES))) < 1e-12);
    assert_int_equal(kvt_store_get(store, &(kvt_key){{9}}, &own.views[0], KVT_NO_DEADLINE, NULL),
                     KVT_MISS);
    assert_true(stats_of(0).gets_share == gets); /* nothing came */
}
