/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_loads.c - how far predicted load seconds are off what loads take, beside how far the same
 * loads are off themselves when they are done once more.
 *
 * A store on the devices holds objects of several sizes. Readers load them with drawn pauses, so
 * that queues come and go; each in an order of its own, from objects of its own, because a joined
 * read has no time of its own. After a pass that the store learns from, the same pass is done
 * twice. The store's prediction is made before each load and knows nothing of the other pass.
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "base/order.h"
#include "bench.h"

#include "bench_parts.h"

#include <kvterrace/kvterrace.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum {
    LOADS_OBJECTS = 64,
    LOADS_READERS_MAX = 8,
    LOADS_PASSES = 3, /* the first one is for learning */
    LOADS_CASES = 3,
    LOADS_PER_READER = 150,
    LOADS_PER_READER_QUICK = 12
};

static const uint64_t loads_sizes[] = {MIB / 4, MIB / 2, MIB, 2 * MIB, 4 * MIB};
static const struct {
    uint32_t readers;
    uint32_t writers;
} loads_cases[LOADS_CASES] = {{1, 0}, {4, 0}, {4, 1}};

/* One load of one pass; elapsed 0: it failed. */
typedef struct loads_sample {
    double predicted;
    double elapsed;
} loads_sample;

typedef struct loads_site {
    kvt_store *store;
    uint64_t seed;
    uint32_t readers;
    double pause_seconds; /* mean, between a reader's loads */
    uint32_t per_reader;
    atomic_bool stop; /* for the writer */
    _Atomic uint64_t wrong;
} loads_site;

typedef struct loads_reader {
    loads_site *site;
    uint32_t number;
    loads_sample *samples;
    pthread_t thread;
    bool started;
} loads_reader;

typedef struct loads_row {
    uint32_t readers, writers;
    uint32_t loads;
    double predicted, achieved; /* seconds, sums */
    double error_p50, error_p90;
    double repeat_p50, repeat_p90;
} loads_row;

static int loads_complain(kvt_status status, const char *message)
{
    fprintf(stderr, "kvterrace bench loads: %s\n",
            message[0] != '\0' ? message : kvt_status_text(status));
    return 1;
}

/* ---- objects ---- */

static kvt_key loads_key(uint32_t object)
{
    kvt_key key = {{'l', 'o', 'a', 'd'}};
    memcpy(key.bytes + 8, &object, sizeof object);
    return key;
}

static uint64_t loads_size(uint32_t object)
{
    return loads_sizes[object % (sizeof loads_sizes / sizeof loads_sizes[0])];
}

static uint64_t loads_word(uint32_t object, uint64_t index)
{
    return ((uint64_t)object << 32 ^ index) * UINT64_C(0x9E3779B97F4A7C15);
}

static kvt_status loads_put(kvt_store *store, uint32_t object, uint64_t bytes, uint64_t *words)
{
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = loads_key(object),
                       .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes, .tokens = 1},
                       .recompute_seconds = 1};
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = loads_word(object, i);
    return kvt_put(store, &entry, words, bytes);
}

static bool loads_holds(uint32_t object, const uint64_t *words)
{
    for (uint64_t i = 0; i < loads_size(object) / 8; i++)
        if (words[i] != loads_word(object, i)) return false;
    return true;
}

/* ---- readers and the writer ---- */

static double loads_draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(*seed >> 11) + 0.5) * 0x1p-53;
}

static void loads_sleep(double seconds)
{
    base_sleep((uint64_t)(seconds * 1e9));
}

static void *loads_read(void *argument)
{
    loads_reader *reader = argument;
    loads_site *site = reader->site;
    uint64_t seed = site->seed * 64 + reader->number;
    uint64_t *words = bench_buffer(4 * MIB);
    for (uint32_t i = 0; words != NULL && i < site->per_reader; i++) {
        uint32_t turn = (uint32_t)(loads_draw(&seed) * (LOADS_OBJECTS / (double)site->readers));
        uint32_t object = turn * site->readers + reader->number;
        loads_sleep(-site->pause_seconds * log(loads_draw(&seed)));
        kvt_key key = loads_key(object);
        kvt_get_info info = {.struct_size = sizeof info};
        kvt_status status = kvt_get(site->store, &key, words, loads_size(object), &info);
        bool right = status == KVT_OK && loads_holds(object, words);
        if (!right) atomic_fetch_add(&site->wrong, 1);
        if (right && info.predicted_ns != 0)
            reader->samples[i] = (loads_sample){.predicted = (double)info.predicted_ns * 1e-9,
                                                .elapsed = (double)info.elapsed_ns * 1e-9};
    }
    free(words);
    return NULL;
}

/* New objects come and go until told to stop. */
static void *loads_write(void *argument)
{
    loads_site *site = argument;
    uint64_t *words = bench_buffer(MIB);
    uint64_t seed = site->seed;
    for (uint32_t i = 0; words != NULL && !atomic_load(&site->stop); i++) {
        kvt_key key = loads_key(10000 + i);
        if (loads_put(site->store, 10000 + i, MIB, words) < 0) break;
        (void)!kvt_delete(site->store, &key);
        loads_sleep(-4 * site->pause_seconds * log(loads_draw(&seed)));
    }
    free(words);
    return NULL;
}

/* One pass of all readers. */
static bool loads_pass(loads_site *site, loads_sample *samples)
{
    loads_reader readers[LOADS_READERS_MAX];
    bool all = true;
    for (uint32_t i = 0; i < site->readers; i++) {
        readers[i] = (loads_reader){
            .site = site, .number = i, .samples = samples + (size_t)i * site->per_reader};
        readers[i].started = pthread_create(&readers[i].thread, NULL, loads_read, &readers[i]) == 0;
        all = all && readers[i].started;
    }
    for (uint32_t i = 0; i < site->readers; i++)
        if (readers[i].started) pthread_join(readers[i].thread, NULL);
    return all;
}

/* ---- figures ---- */

static double loads_quantile(double *values, uint32_t count, double share)
{
    if (count == 0) return 0;
    qsort(values, count, sizeof *values, base_order_doubles);
    return values[(uint32_t)(share * (count - 1) + 0.5)];
}

/* Errors of both counted passes, and of each one as a forecast of the other. */
static kvt_status loads_judge(const loads_sample *samples, uint32_t count, loads_row *row)
{
    const loads_sample *first = samples + count, *second = samples + (size_t)2 * count;
    double *errors = malloc(sizeof *errors * 4 * count);
    if (errors == NULL) return KVT_E_MEMORY;
    double *repeats = errors + (size_t)2 * count;
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!(first[i].elapsed > 0) || !(second[i].elapsed > 0)) continue;
        double off = fabs(first[i].elapsed - second[i].elapsed);
        errors[2 * used] = fabs(first[i].predicted / first[i].elapsed - 1);
        errors[2 * used + 1] = fabs(second[i].predicted / second[i].elapsed - 1);
        repeats[2 * used] = off / first[i].elapsed;
        repeats[2 * used + 1] = off / second[i].elapsed;
        row->predicted += first[i].predicted + second[i].predicted;
        row->achieved += first[i].elapsed + second[i].elapsed;
        used++;
    }
    row->loads = 2 * used;
    row->error_p50 = loads_quantile(errors, 2 * used, 0.5);
    row->error_p90 = loads_quantile(errors, 2 * used, 0.9);
    row->repeat_p50 = loads_quantile(repeats, 2 * used, 0.5);
    row->repeat_p90 = loads_quantile(repeats, 2 * used, 0.9);
    free(errors);
    return KVT_OK;
}

static kvt_status loads_case(loads_site *site, uint32_t which, loads_row *row)
{
    pthread_t writer;
    site->readers = loads_cases[which].readers;
    *row = (loads_row){.readers = site->readers, .writers = loads_cases[which].writers};
    uint32_t count = site->readers * site->per_reader;
    loads_sample *samples = calloc((size_t)LOADS_PASSES * count, sizeof *samples);
    if (samples == NULL) return KVT_E_MEMORY;
    bool all = true;
    for (uint32_t pass = 0; pass < LOADS_PASSES && all; pass++) {
        site->seed = which * 2 + (pass > 0); /* both counted passes are the same */
        atomic_store(&site->stop, false);
        bool writing = row->writers != 0 && pthread_create(&writer, NULL, loads_write, site) == 0;
        all = loads_pass(site, samples + (size_t)pass * count);
        atomic_store(&site->stop, true);
        if (writing) pthread_join(writer, NULL);
    }
    kvt_status status = all ? loads_judge(samples, count, row) : KVT_E_MEMORY;
    free(samples);
    return status;
}

/* ---- the report ---- */

static int loads_print_json(const bench_options *options, const loads_site *site,
                            const loads_row *rows, const kvt_store_stats *stats)
{
    json_t *root = bench_report_head("kvterrace-bench-loads-1", LOADS_PASSES - 1);
    json_t *list = json_array();
    int failed = root == NULL || list == NULL;
    for (uint32_t i = 0; i < LOADS_CASES && !failed; i++) {
        const loads_row *row = &rows[i];
        failed = json_array_append_new(
            list,
            json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "readers",
                      (json_int_t)row->readers, "writers", (json_int_t)row->writers, "loads",
                      (json_int_t)row->loads, "predicted_s", row->predicted, "achieved_s",
                      row->achieved, "error_p50", row->error_p50, "error_p90", row->error_p90,
                      "repeat_error_p50", row->repeat_p50, "repeat_error_p90", row->repeat_p90));
    }
    if (!failed) failed = json_object_set_new(root, "rows", list);
    if (!failed)
        failed =
            json_object_set_new(root, "curves_reopened", json_integer((json_int_t)stats->reopened));
    if (!failed)
        failed =
            json_object_set_new(root, "wrong", json_integer((json_int_t)atomic_load(&site->wrong)));
    return bench_report_print(options->out, failed ? NULL : root);
}

static int loads_print_text(const bench_options *options, const loads_site *site,
                            const loads_row *rows, const kvt_store_stats *stats)
{
    FILE *out = options->out;
    fprintf(out, "%8s %8s %8s %12s %12s %18s %18s\n", "readers", "writers", "loads", "predicted",
            "achieved", "error p50, p90", "repeated p50, p90");
    for (uint32_t i = 0; i < LOADS_CASES; i++) {
        const loads_row *row = &rows[i];
        fprintf(out, "%8u %8u %8u %10.3f s %10.3f s %7.1f %%, %5.1f %% %7.1f %%, %5.1f %%\n",
                row->readers, row->writers, row->loads, row->predicted, row->achieved,
                100 * row->error_p50, 100 * row->error_p90, 100 * row->repeat_p50,
                100 * row->repeat_p90);
    }
    fprintf(out, "curves re-opened: %llu; wrong or failed: %llu\n",
            (unsigned long long)stats->reopened, (unsigned long long)atomic_load(&site->wrong));
    return ferror(out) != 0;
}

/* ---- the whole ---- */

static kvt_status loads_open(const bench_options *given, loads_site *site, char *message,
                             size_t message_size)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.put_staging_bytes = 0; /* what is put is where it stays */
    options.policy = "lru";
    options.format = true;
    options.lossless = false;
    options.staging_bytes = 128 * MIB;
    options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = given->devices, .device_count = given->device_count};
    return kvt_open(&options, &site->store, message, message_size);
}

/* Puts the objects, and reads each once: the mean of that is what readers pause for. */
static kvt_status loads_fill(loads_site *site)
{
    uint64_t *words = bench_buffer(4 * MIB);
    kvt_status status = words != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t i = 0; i < LOADS_OBJECTS && status == KVT_OK; i++)
        status = loads_put(site->store, i, loads_size(i), words);
    for (uint32_t i = 0; i < LOADS_OBJECTS && status == KVT_OK; i++) {
        kvt_key key = loads_key(i);
        kvt_get_info info = {.struct_size = sizeof info};
        status = kvt_get(site->store, &key, words, loads_size(i), &info);
        site->pause_seconds += (double)info.elapsed_ns * 1e-9 / LOADS_OBJECTS;
    }
    free(words);
    return status;
}

static int loads_run(const bench_options *options)
{
    loads_site site = {.per_reader = options->quick ? LOADS_PER_READER_QUICK : LOADS_PER_READER};
    loads_row rows[LOADS_CASES] = {{0}};
    kvt_store_stats stats = {.struct_size = sizeof stats};
    char message[256] = "";
    kvt_status status = loads_open(options, &site, message, sizeof message);
    bench_tell(options, 0, LOADS_CASES + 1, "filling the store");
    if (status == KVT_OK) status = loads_fill(&site);
    for (uint32_t i = 0; i < LOADS_CASES && status == KVT_OK; i++) {
        bench_tell(options, i + 1, LOADS_CASES + 1, "loading");
        status = loads_case(&site, i, &rows[i]);
    }
    if (status == KVT_OK) status = kvt_stats(site.store, &stats);
    bench_tell(options, 1, 1, NULL);
    kvt_close(site.store);
    if (status != KVT_OK) return loads_complain(status, message);
    int code = options->json ? loads_print_json(options, &site, rows, &stats)
                             : loads_print_text(options, &site, rows, &stats);
    if (code == 0 && atomic_load(&site.wrong) != 0)
        code = loads_complain(KVT_E_CORRUPT, "loads failed or came back different");
    return code;
}

int bench_loads_run(const bench_options *options)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    bench_give_drives(&given, 128 * MIB, 80000, own);
    if (bench_kept_drive(&given) != NULL)
        return loads_complain(KVT_E_MISMATCH,
                              "a device may hold data; store.format = yes gives it up");
    return loads_run(&given);
}
