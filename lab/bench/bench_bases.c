/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_bases.c - loads of contexts in forms of the transform codec beside others, through a store
 * on two throttled drives and on the same store without the throttle, with two decoding threads:
 * what the drives take, what decoding takes, and which of them limits. Whole loads (kvt_get), and
 * on the throttled drives layered ones (kvt_load), whose reads and decoding overlap: until the
 * first layer is there, and until the last one is.
 *
 * Each form is the only lossy rung of a calibration that is made for the occasion, and the store's
 * fixed form; every get is checked against one coding of its entry. KV is of dumps, or drawn from
 * the widest basis.
 *
 * Thread rule: one bench at a time; the pool's threads decode.
 */
#include "base/clock.h"
#include "basis/basis_file.h"
#include "bench.h"
#include "bench_parts.h"
#include "codecs/record.h"
#include "estimator/measure/measure.h"
#include "estimator/model/whole_file.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_round_trip.h"
#include "tools/command/worker_pool.h"

#include <kvterrace/kvterrace.h>
#include <kvterrace/load.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BASES_DRIVES = 2,
    BASES_THREADS = 2,
    BASES_DRAWN = 4, /* contexts that are drawn */
    BASES_KV_MAX = 16,
    BASES_REPEATS = 3,
    BASES_AHEAD = 8, /* layers that the second kind of layered load has under way: two wide spans */
    BASES_SAMPLES = BASES_KV_MAX * 16
};

typedef struct bases_form {
    quality_variant variant;
    double stored_bytes;       /* of a context, in the mean */
    bench_rate drives, memory; /* seconds of a load: throttled, and not */
    bench_rate first, last;    /* of a layered one, throttled: until these layers are there */
    bench_rate ahead;          /* until the last one, with more layers under way */
} bases_form;

/* The bytes that gets have to give, and their places. */
typedef struct bases_wanted {
    uint8_t *contexts[BASES_KV_MAX];
    uint8_t *target;
} bases_wanted;

typedef struct bases_bench {
    const bench_options *common;
    const bench_bases_options *options;
    bench_report *report;
    profile_basis bases[BENCH_BASES_MAX];
    const transform_basis *list[BENCH_BASES_MAX];
    uint32_t basis_count;
    kvt_layout layout;
    uint64_t bytes; /* of a context */
    uint8_t *contexts[BASES_KV_MAX];
    uint32_t context_count;
    bases_form forms[BENCH_BASES_FORMS];
    uint32_t form_count;
    worker_pool pool;
    char profile_path[512];
} bases_bench;

/* ---- KV ---- */

static kvt_status bases_read_files(bases_bench *bench)
{
    const bench_bases_options *o = bench->options;
    for (uint32_t i = 0; i < o->basis_count; i++) {
        profile_basis *one = &bench->bases[i];
        model_map map;
        kvt_status status =
            model_map_open(o->bases[i], &map, bench->report->message, BENCH_MESSAGE_BYTES);
        if (status != KVT_OK) return status;
        one->bytes = map.size;
        one->object = aligned_alloc(64, (map.size / 64 + 1) * 64);
        if (one->object != NULL) memcpy(one->object, map.bytes, map.size);
        model_map_close(&map);
        if (one->object == NULL) return KVT_E_MEMORY;
        bench->basis_count = i + 1;
        status = basis_read(one->object, one->bytes, &one->view, NULL);
        if (status != KVT_OK) {
            (void)snprintf(bench->report->message, BENCH_MESSAGE_BYTES, "%.300s: %s", o->bases[i],
                           kvt_status_text(status));
            return status;
        }
        bench->list[i] = &one->view;
    }
    return KVT_OK;
}

static kvt_status bases_add_context(bases_bench *bench)
{
    uint8_t *memory = aligned_alloc(4096, (bench->bytes / 4096 + 1) * 4096);
    if (memory == NULL) return KVT_E_MEMORY;
    bench->contexts[bench->context_count++] = memory;
    return KVT_OK;
}

static const transform_basis *bases_widest(const bases_bench *bench)
{
    const transform_basis *widest = bench->list[0];
    for (uint32_t i = 1; i < bench->basis_count; i++)
        if (bench->list[i]->shape.span > widest->shape.span) widest = bench->list[i];
    return widest;
}

static kvt_status bases_draw(bases_bench *bench)
{
    const transform_basis *basis = bases_widest(bench);
    bench->layout = (kvt_layout){.layers = (uint16_t)basis->shape.layers,
                                 .kv_heads = (uint16_t)basis->shape.kv_heads,
                                 .head_dim = (uint16_t)basis->shape.head_dim,
                                 .dtype = KVT_DTYPE_BF16,
                                 .sides = basis->shape.sides == 1,
                                 .tokens = bench->options->tokens};
    kvt_status status = kvt_layout_bytes(&bench->layout, &bench->bytes);
    for (uint32_t i = 0; status == KVT_OK && i < BASES_DRAWN; i++) {
        status = bases_add_context(bench);
        if (status == KVT_OK)
            status = basis_sample_fill(basis, &bench->layout, 0, i + 1, bench->contexts[i]);
    }
    return status;
}

/* The first `tokens` of each dump, so that all contexts are of one layout. */
static kvt_status bases_read_kv(bases_bench *bench)
{
    const bench_bases_options *o = bench->options;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < o->kv_count; i++) {
        quality_dump dump = {.file = NULL};
        uint64_t bytes = 0;
        uint8_t *whole = NULL;
        status = quality_dump_open(o->kv[i], &dump, bench->report->message, BENCH_MESSAGE_BYTES);
        if (status == KVT_OK && i == 0) {
            bench->layout = dump.layout;
            bench->layout.tokens = o->tokens;
            status = kvt_layout_bytes(&bench->layout, &bench->bytes);
        }
        if (status == KVT_OK && dump.layout.tokens < o->tokens) {
            (void)snprintf(bench->report->message, BENCH_MESSAGE_BYTES,
                           "%.300s: fewer tokens than %u", o->kv[i], (unsigned)o->tokens);
            status = KVT_E_ARGUMENT;
        }
        if (status == KVT_OK) status = kvt_layout_bytes(&dump.layout, &bytes);
        if (status == KVT_OK && (whole = malloc(bytes)) == NULL) status = KVT_E_MEMORY;
        if (status == KVT_OK) status = bases_add_context(bench);
        if (status == KVT_OK) quality_dump_load(&dump, whole);
        for (uint32_t m = 0; status == KVT_OK && m < 2u * bench->layout.layers; m++)
            memcpy(bench->contexts[i] +
                       kvt_layout_matrix_offset(&bench->layout, m / 2, (kvt_side)(m % 2)),
                   whole + kvt_layout_matrix_offset(&dump.layout, m / 2, (kvt_side)(m % 2)),
                   kvt_layout_matrix_bytes(&bench->layout));
        free(whole);
        quality_dump_close(&dump);
    }
    return status;
}

/* ---- one form ---- */

/* A profile whose only rung is the form, with the bases. */
static kvt_status bases_make_profile(bases_bench *bench, const bases_form *form)
{
    const profile_model facts = {.name = "bench",
                                 .layers = bench->layout.layers,
                                 .kv_heads = bench->layout.kv_heads,
                                 .head_dim = bench->layout.head_dim};
    calibrate_ladder ladder = {.rung_count = 1};
    kvt_profile *profile = NULL;
    int64_t run = 0, model_id = 0;
    ladder.rungs[0] = (calibrate_rung){.variant = form->variant,
                                       .bits_per_element = 8.0,
                                       .loss = 0.001,
                                       .loss_upper = 0.001,
                                       .accepted = true,
                                       .evidence = "a bench"};
    (void)remove(bench->profile_path);
    kvt_status status = kvt_profile_open(bench->profile_path, KVT_PROFILE_WRITE, &profile,
                                         bench->report->message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) status = profile_model_of_shape(profile, &facts, &model_id);
    if (status == KVT_OK) status = profile_run_begin(profile, "calibration", NULL, 1, &run);
    if (status == KVT_OK) status = calibrate_put_ladder(profile, run, model_id, "bench", &ladder);
    for (uint32_t i = 0; status == KVT_OK && i < bench->basis_count; i++)
        status = profile_basis_put(profile, run, model_id, "", bench->bases[i].object,
                                   bench->bases[i].bytes);
    if (status == KVT_OK) status = profile_run_complete(profile, run);
    kvt_profile_close(profile);
    return status;
}

static kvt_status bases_open_store(bases_bench *bench, const bases_form *form, bool throttled,
                                   kvt_store **store_out)
{
    kvt_device_config drives[BASES_DRIVES];
    static const char *const names[BASES_DRIVES] = {"ssd0", "ssd1"};
    kvt_store_options options;
    kvt_store_options_init(&options);
    for (uint32_t i = 0; i < BASES_DRIVES; i++)
        drives[i] = (kvt_device_config){
            .struct_size = sizeof drives[i],
            .name = names[i],
            .backend = "memory",
            .emulated = true,
            .capacity_bytes = (bench->context_count + 1) * bench->bytes + (UINT64_C(16) << 20),
            .read_bytes_per_s = throttled ? bench->options->bytes_per_s : 0};
    options.policy = "lru";
    options.format = true;
    options.tick_seconds = 0;
    options.put_staging_bytes = 0;
    options.lossless = false;
    options.variant = form->variant.variant;
    options.profile_path = bench->profile_path;
    options.profile_foreign = true;
    options.ladder = true;
    options.ladder_layout = bench->layout;
    options.loss_limit = 0.01;
    options.codec_workers = &bench->pool.workers;
    options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = drives, .device_count = BASES_DRIVES};
    return kvt_open(&options, store_out, bench->report->message, BENCH_MESSAGE_BYTES);
}

/* What one coding gives back, which is what gets have to give. */
static kvt_status bases_code(bases_bench *bench, const bases_form *form, quality_round_trip *trip,
                             uint32_t context, double *bytes_out)
{
    memcpy(trip->source, bench->contexts[context], bench->bytes);
    trip->bases = (kvt_record_bases){bench->list, bench->basis_count};
    const kvt_status status = quality_round_trip_run(trip, form->variant.variant, false);
    if (status == KVT_OK) *bytes_out = (double)trip->info.record_bytes;
    return status;
}

static uint32_t bases_repeats(const bases_bench *bench)
{
    return bench_repetitions(bench->common->iterations, BASES_REPEATS, bench->common->quick);
}

static kvt_key bases_key(uint32_t context)
{
    return (kvt_key){{(uint8_t)(context + 1)}};
}

/* A load in another form or with other bytes is KVT_E_CORRUPT. */
static kvt_status bases_check(bases_bench *bench, const bases_form *form, kvt_status status,
                              const bases_wanted *wanted, uint32_t context)
{
    if (status == KVT_OK && memcmp(wanted->target, wanted->contexts[context], bench->bytes) != 0)
        status = KVT_E_CORRUPT;
    if (status == KVT_OK) return KVT_OK;
    (void)snprintf(bench->report->message, BENCH_MESSAGE_BYTES, "%s: context %u: %s",
                   form->variant.name, (unsigned)context, kvt_status_text(status));
    return status < 0 ? status : KVT_E_CORRUPT;
}

/* Loads every context whole, in turn. */
static kvt_status bases_load(bases_bench *bench, const bases_form *form, kvt_store *store,
                             const bases_wanted *wanted, bench_rate *rate_out)
{
    static double seconds[BASES_SAMPLES];
    const uint32_t all = bases_repeats(bench) * bench->context_count;
    uint32_t count = 0;
    for (; count < all && count < BASES_SAMPLES; count++) {
        const uint32_t context = count % bench->context_count;
        const kvt_key key = bases_key(context);
        kvt_get_info info = {.struct_size = sizeof info};
        const double start = base_clock_seconds();
        kvt_status status = kvt_get(store, &key, wanted->target, bench->bytes, &info);
        seconds[count] = base_clock_seconds() - start;
        const kvt_variant *is = &info.variant, *should = &form->variant.variant;
        if (status == KVT_OK && (is->codec != should->codec || is->rate != should->rate))
            status = KVT_E_CORRUPT;
        status = bases_check(bench, form, status, wanted, context);
        if (status != KVT_OK) return status;
    }
    *rate_out = bench_rate_of(seconds, count);
    return KVT_OK;
}

/* One layered load by a caller who computes in no time. */
static kvt_status bases_load_layers(const bases_bench *bench, kvt_queue *queue, uint32_t context,
                                    const kvt_load_options *options, uint8_t *target,
                                    double *first_out, double *last_out)
{
    const kvt_key key = bases_key(context);
    const kvt_view view = kvt_view_packed(&bench->layout, target);
    const kvt_view *views = &view;
    const double start = base_clock_seconds();
    kvt_load *load = NULL;
    kvt_status loaded = KVT_OK;
    kvt_status status = kvt_load_begin(queue, &key, &views, 1, options, &load);
    if (status != KVT_OK) return status;
    for (uint32_t layer = 1; status == KVT_OK && layer <= bench->layout.layers; layer++) {
        status = kvt_load_wait(load, layer, KVT_NO_DEADLINE);
        *last_out = base_clock_seconds() - start;
        if (layer == 1) *first_out = *last_out;
        kvt_load_release(load, layer);
    }
    (void)kvt_load_end(load, &loaded, NULL);
    return status == KVT_OK ? loaded : status;
}

/* Loads every context in layers, in turn; layers_ahead 0: as many under way as is usual. */
static kvt_status bases_load_layered(bases_bench *bench, const bases_form *form, kvt_queue *queue,
                                     const bases_wanted *wanted, uint32_t layers_ahead,
                                     bench_rate *first_out, bench_rate *last_out)
{
    static double first[BASES_SAMPLES], last[BASES_SAMPLES];
    const kvt_load_options options = {.struct_size = sizeof options,
                                      .layers_ahead = layers_ahead,
                                      .deadline_ns = KVT_NO_DEADLINE};
    const uint32_t all = bases_repeats(bench) * bench->context_count;
    uint32_t count = 0;
    for (; count < all && count < BASES_SAMPLES; count++) {
        const uint32_t context = count % bench->context_count;
        memset(wanted->target, 0, bench->bytes);
        kvt_status status = bases_load_layers(bench, queue, context, &options, wanted->target,
                                              &first[count], &last[count]);
        status = bases_check(bench, form, status, wanted, context);
        if (status != KVT_OK) return status;
    }
    *first_out = bench_rate_of(first, count);
    *last_out = bench_rate_of(last, count);
    return KVT_OK;
}

static kvt_status bases_load_both(bases_bench *bench, bases_form *form, kvt_store *store,
                                  const bases_wanted *wanted)
{
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = BASES_THREADS};
    kvt_queue *queue = NULL;
    bench_rate first;
    kvt_status status = kvt_queue_open(store, &options, &queue);
    if (status == KVT_OK)
        status = bases_load_layered(bench, form, queue, wanted, 0, &form->first, &form->last);
    if (status == KVT_OK)
        status = bases_load_layered(bench, form, queue, wanted, BASES_AHEAD, &first, &form->ahead);
    kvt_queue_close(queue);
    return status;
}

static kvt_status bases_run_store(bases_bench *bench, bases_form *form, bool throttled,
                                  const bases_wanted *wanted)
{
    kvt_store *store = NULL;
    kvt_status status = bases_open_store(bench, form, throttled, &store);
    for (uint32_t i = 0; status == KVT_OK && i < bench->context_count; i++) {
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = bases_key(i),
                                 .layout = bench->layout,
                                 .recompute_seconds = 1e4};
        status = kvt_put(store, &entry, bench->contexts[i], bench->bytes);
    }
    if (status == KVT_OK) status = kvt_flush(store);
    if (status == KVT_OK)
        status = bases_load(bench, form, store, wanted, throttled ? &form->drives : &form->memory);
    if (status == KVT_OK && throttled) status = bases_load_both(bench, form, store, wanted);
    kvt_close(store);
    return status;
}

static kvt_status bases_measure(bases_bench *bench, bases_form *form)
{
    bases_wanted wanted = {.target = malloc(bench->bytes)};
    quality_round_trip trip = {.source = NULL};
    kvt_status status = wanted.target == NULL ? KVT_E_MEMORY : bases_make_profile(bench, form);
    if (status == KVT_OK) status = quality_round_trip_open(&bench->layout, &trip);
    for (uint32_t i = 0; status == KVT_OK && i < bench->context_count; i++) {
        double bytes = 0.0;
        status = bases_code(bench, form, &trip, i, &bytes);
        form->stored_bytes += bytes / bench->context_count;
        wanted.contexts[i] = malloc(bench->bytes);
        if (wanted.contexts[i] == NULL) status = KVT_E_MEMORY;
        if (status == KVT_OK) memcpy(wanted.contexts[i], trip.decoded, bench->bytes);
    }
    quality_round_trip_close(&trip);
    if (status == KVT_OK) status = bases_run_store(bench, form, false, &wanted);
    if (status == KVT_OK) status = bases_run_store(bench, form, true, &wanted);
    for (uint32_t i = 0; i < bench->context_count; i++)
        free(wanted.contexts[i]);
    free(wanted.target);
    return status;
}

/* ---- report ---- */

static void bases_add_row(const bases_bench *bench, const bases_form *form)
{
    const double drive_s =
        form->stored_bytes / (BASES_DRIVES * (double)bench->options->bytes_per_s);
    json_t *row = json_pack("{s:s, s:f, s:f, s:f, s:f, s:s}", "form", form->variant.name,
                            "bits_per_element", 16.0 * form->stored_bytes / (double)bench->bytes,
                            "stored_bytes", form->stored_bytes, "drive_s", drive_s, "of_first",
                            form->drives.median / bench->forms[0].drives.median, "limit",
                            form->memory.median > drive_s ? "decoding" : "drives");
    row = bench_with_rate(row, "load_s", &form->drives);
    row = bench_with_rate(row, "decoding_s", &form->memory);
    row = bench_with_rate(row, "first_layer_s", &form->first);
    row = bench_with_rate(row, "layered_s", &form->last);
    bench_report_row(bench->report, "forms", bench_with_rate(row, "layered_ahead_s", &form->ahead));
}

/* Every form of the transform has its basis among those that are given. */
static kvt_status bases_check_forms(const bases_bench *bench)
{
    for (uint32_t i = 0; i < bench->form_count; i++) {
        const quality_variant *form = &bench->forms[i].variant;
        uint32_t at = 0;
        if (form->variant.codec != KVT_CODEC_TRANSFORM) continue;
        while (at < bench->basis_count && transform_hash_start(bench->bases[at].view.hash) !=
                                              form->variant.rate >> PROFILE_BASIS_SHIFT)
            at++;
        if (at < bench->basis_count) continue;
        (void)snprintf(bench->report->message, BENCH_MESSAGE_BYTES,
                       "%s needs a basis that is not given", form->name);
        return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

static kvt_status bases_run(const bench_options *common, bench_report *report)
{
    const bench_bases_options *options = common->own;
    bases_bench *bench = calloc(1, sizeof *bench);
    char folder[256] = "";
    if (bench == NULL) return KVT_E_MEMORY;
    bench->common = common;
    bench->options = options;
    bench->report = report;
    bench->form_count = options->variant_count;
    for (uint32_t i = 0; i < options->variant_count; i++)
        bench->forms[i].variant = options->variants[i];
    worker_pool_open(&bench->pool, BASES_THREADS);
    kvt_status status = bases_read_files(bench);
    if (status == KVT_OK) status = bases_check_forms(bench);
    if (status == KVT_OK) status = options->kv_count > 0 ? bases_read_kv(bench) : bases_draw(bench);
    if (status == KVT_OK && bench_scratch_make(NULL, "bases", folder, sizeof folder) != 0)
        status = KVT_E_IO;
    (void)snprintf(bench->profile_path, sizeof bench->profile_path, "%s/profile.db", folder);
    for (uint32_t i = 0; status == KVT_OK && i < bench->form_count; i++) {
        (void)bench_tell(common, i, bench->form_count, bench->forms[i].variant.name);
        status = bases_measure(bench, &bench->forms[i]);
        if (status == KVT_OK) bases_add_row(bench, &bench->forms[i]);
    }
    bench_scratch_remove();
    if (status == KVT_OK)
        bench_report_add(report, json_pack("{s:I, s:I, s:I, s:I, s:I}", "repetitions",
                                           (json_int_t)bases_repeats(bench), "contexts",
                                           (json_int_t)bench->context_count, "tokens",
                                           (json_int_t)bench->layout.tokens, "context_bytes",
                                           (json_int_t)bench->bytes, "drive_bytes_per_s",
                                           (json_int_t)options->bytes_per_s));
    worker_pool_close(&bench->pool);
    for (uint32_t i = 0; i < bench->context_count; i++)
        free(bench->contexts[i]);
    for (uint32_t i = 0; i < bench->basis_count; i++)
        profile_basis_free(&bench->bases[i]);
    free(bench);
    return status;
}

const bench_case bench_bases_case = {
    .name = "bases",
    .schema = "kvterrace-bench-bases-1",
    .tables = (const bench_table[]){{"", "contexts tokens context_bytes drive_bytes_per_s"},
                                    {"forms",
                                     "form bits_per_element load_s load_s_min load_s_max drive_s "
                                     "decoding_s of_first first_layer_s layered_s layered_ahead_s "
                                     "limit"},
                                    {0}},
    .run = bases_run,
};
