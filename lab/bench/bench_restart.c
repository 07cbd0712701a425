/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_restart.c - what a restart costs and what it brings back: after a close and after kill -9,
 * with copies and write-back and without.
 *
 * A life is a process of its own: it fills a store, uses some entries so that they come up into
 * memory, and closes or is killed. The next process opens the store again and is timed. The SSD has
 * room for all entries, memory for a twentieth of them.
 *
 * Thread rule: one bench at a time; forks before it has threads.
 */
#include "base/clock.h"
#include "bench.h"
#include "bench_parts.h"
#include "codecs/record.h"

#include <errno.h>
#include <kvterrace/kvterrace.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    RESTART_MEMORY_SHARE = 20, /* one in so many fits memory */
    RESTART_USES = 2,          /* gets of each entry that is used */
    RESTART_CHECKS = 1000,     /* entries that are read and compared after a restart */
    RESTART_HOLLOW_FROM = 200001,
    RESTART_QUICK = 2000
};

enum { RESTART_MEMBERS = 4, RESTART_ENTRY_BYTES = 8192 };

/* How a store behaves beside the others of its kind. */
typedef struct restart_behaviour {
    const char *name;
    bool copies;
    double close_deadline_seconds;
    uint64_t persist_bytes_per_s;
} restart_behaviour;

/* Four members in a folder of their own. hollow: they keep their labels and drop all else, so that
 * many records need no room; such entries cannot be read. */
typedef struct restart_site {
    char folder[160];
    char catalog[192];
    char paths[RESTART_MEMBERS][192];
    char names[RESTART_MEMBERS][8];
    kvt_device_config members[RESTART_MEMBERS];
    bool hollow;
    kvt_store_options options;
} restart_site;

static const uint32_t restart_sizes[] = {100000, 1000000};

static const restart_behaviour restart_behaviours[] = {
    {"copies and write-back", true, 600, 32000000},
    {"one place per entry", false, 0, 0},
};

#define HOLLOW_KEPT_BYTES (UINT64_C(1) << 20) /* labels lie in front */

/* ---- a member that keeps its label alone ----
 *
 * It answers at once, and says that it took as long as a drive of 1 GB/s: memory that is no faster
 * than the drives would hold nothing. */

#define HOLLOW_REQUEST_NS 100000

typedef struct hollow_device {
    kvt_device base;
    kvt_device *inner;
} hollow_device;

static void hollow_close(kvt_device *device)
{
    kvt_device_close(((hollow_device *)device)->inner);
    free(device);
}

static kvt_status hollow_submit(kvt_device *device, kvt_io *io)
{
    hollow_device *hollow = (hollow_device *)device;
    io->submitted_ns = base_clock_ns();
    io->status = KVT_OK;
    if (io->offset + io->bytes <= HOLLOW_KEPT_BYTES)
        io->status =
            kvt_device_transfer(hollow->inner, io->kind, io->offset, io->buffer, io->bytes);
    else if (io->kind == KVT_IO_READ)
        memset(io->buffer, 0, io->bytes);
    io->finished_ns = io->submitted_ns + HOLLOW_REQUEST_NS + io->bytes;
    return KVT_OK;
}

static kvt_status hollow_sync(kvt_device *device)
{
    return kvt_device_sync(((hollow_device *)device)->inner);
}

static void hollow_attach(kvt_device *device)
{
    kvt_device_attach(((hollow_device *)device)->inner);
}

static void hollow_detach(kvt_device *device)
{
    kvt_device_detach(((hollow_device *)device)->inner);
}

static kvt_status hollow_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size);

static const kvt_device_ops hollow_ops = {.struct_size = sizeof hollow_ops,
                                          .abi_version = KVT_DEVICE_ABI,
                                          .name = "bench-hollow",
                                          .open = hollow_open,
                                          .close = hollow_close,
                                          .submit = hollow_submit,
                                          .sync = hollow_sync,
                                          .attach = hollow_attach,
                                          .detach = hollow_detach};

static kvt_status hollow_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size)
{
    const kvt_device_config kept = {.struct_size = sizeof kept,
                                    .name = config->name,
                                    .backend = "file",
                                    .path = config->path,
                                    .sparse = true,
                                    .synchronous = true,
                                    .capacity_bytes = HOLLOW_KEPT_BYTES};
    hollow_device *hollow = calloc(1, sizeof *hollow);
    if (hollow == NULL) return KVT_E_MEMORY;
    kvt_status status = kvt_device_open(&kept, &hollow->inner, message, message_size);
    if (status != KVT_OK) {
        free(hollow);
        return status;
    }
    hollow->base = (kvt_device){.ops = &hollow_ops, .facts = hollow->inner->facts};
    hollow->base.facts.capacity_bytes = config->capacity_bytes;
    memcpy(hollow->base.name, hollow->inner->name, sizeof hollow->base.name);
    *device_out = &hollow->base;
    return KVT_OK;
}

static const kvt_device_ops *hollow_find(const char *backend)
{
    return strcmp(backend, hollow_ops.name) == 0 ? &hollow_ops : NULL;
}

/* ---- the site ---- */

/* Makes the folder, which bench_scratch_remove removes. KVT_E_IO: it cannot be made. */
static kvt_status restart_site_make(restart_site *site, const bench_options *bench, bool hollow,
                                    bench_report *report)
{
    memset(site, 0, sizeof *site);
    site->hollow = hollow;
    tiers_stand_in = hollow ? hollow_find : NULL;
    if (bench_scratch_make(bench->scratch_folder, "restart", site->folder, sizeof site->folder) !=
        0)
        return bench_blame(report, KVT_E_IO, site->folder, strerror(errno));
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    for (uint32_t i = 0; i < RESTART_MEMBERS; i++) {
        snprintf(site->names[i], sizeof site->names[i], "m%u", i);
        snprintf(site->paths[i], sizeof site->paths[i], "%s/%s", site->folder, site->names[i]);
        site->members[i] = (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                                               .name = site->names[i],
                                               .backend = hollow ? hollow_ops.name : "file",
                                               .path = site->paths[i],
                                               .sparse = true};
    }
    return KVT_OK;
}

/* Options for a store of so many bytes on SSD and in memory. */
static void restart_site_size(restart_site *site, const restart_behaviour *behaviour,
                              uint64_t ssd_bytes, uint64_t dram_bytes)
{
    const uint64_t grain = UINT64_C(1) << 20;
    kvt_store_options *options = &site->options;
    kvt_store_options_init(options);
    options->put_staging_bytes = 0; /* each put is timed until its entry is stored */
    for (uint32_t i = 0; i < RESTART_MEMBERS; i++)
        site->members[i].capacity_bytes = (ssd_bytes / RESTART_MEMBERS / grain + 1) * grain;
    options->catalog_path = site->catalog;
    options->lossless = false;
    options->learn = false;
    options->copies = behaviour->copies;
    options->close_deadline_seconds = behaviour->close_deadline_seconds;
    options->persist_bytes_per_s = behaviour->persist_bytes_per_s;
    options->tiers[KVT_TIER_DRAM].capacity_bytes = (dram_bytes / grain + 1) * grain;
    options->tiers[KVT_TIER_DRAM].unit_bytes = 4096;
    options->tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = site->members, .device_count = RESTART_MEMBERS};
}

static kvt_store *restart_site_open(restart_site *site)
{
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_status status = kvt_open(&site->options, &store, message, sizeof message);
    if (status == KVT_OK) return store;
    fprintf(stderr, "kvlab restart: %s: %s\n", kvt_status_name(status), message);
    return NULL;
}

/* ---- entries ---- */

static kvt_key restart_key(uint32_t number)
{
    kvt_key key = {{'r', 'e', 's', 't', 'a', 'r', 't'}};
    memcpy(key.bytes + 8, &number, sizeof number);
    return key;
}

static void restart_fill(uint32_t number, uint64_t *words)
{
    for (uint64_t i = 0; i < RESTART_ENTRY_BYTES / 8; i++)
        words[i] = ((uint64_t)number << 32 ^ i) * UINT64_C(0x9E3779B97F4A7C15);
}

static kvt_entry restart_entry(uint32_t number)
{
    return (kvt_entry){
        .struct_size = sizeof(kvt_entry),
        .key = restart_key(number),
        .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = RESTART_ENTRY_BYTES, .tokens = 16},
        .recompute_seconds = 1};
}

static kvt_status restart_put(kvt_store *store, uint32_t number)
{
    uint64_t words[RESTART_ENTRY_BYTES / 8];
    kvt_entry entry = restart_entry(number);
    restart_fill(number, words);
    return kvt_put(store, &entry, words, sizeof words);
}

/* KVT_E_CORRUPT: other bytes than were put. */
static kvt_status restart_get(kvt_store *store, uint32_t number)
{
    uint64_t words[RESTART_ENTRY_BYTES / 8], expected[RESTART_ENTRY_BYTES / 8];
    kvt_key key = restart_key(number);
    kvt_status status = kvt_get(store, &key, words, sizeof words, NULL);
    if (status != KVT_OK) return status;
    restart_fill(number, expected);
    return memcmp(words, expected, sizeof words) == 0 ? KVT_OK : KVT_E_CORRUPT;
}

/* Bytes on record that an entry takes. 0: it cannot be told. */
static uint64_t restart_record_bytes(void)
{
    kvt_record_spec spec = {
        .generation = 1, .layout = restart_entry(0).layout, .variant = {.codec = KVT_CODEC_RAW}};
    uint64_t bytes = 0, scratch;
    return kvt_record_bound(&spec, &bytes, &scratch) == KVT_OK ? bytes : 0;
}

/* ---- lives ---- */

/* One life and the reopening after it. */
typedef struct restart_row {
    uint32_t entries;
    const char *behaviour;
    bool killed;
    bool hollow;
    double put_seconds, close_seconds;
    double reopen_seconds, reopen_cpu_seconds;
    uint64_t stored, stored_bytes; /* when the life ended */
    uint64_t fit_bytes;            /* of them, what the SSD tier may hold */
    uint64_t back, back_bytes;
    uint64_t checked, wrong;
} restart_row;

/* Runs a part in a child, which ends with this process. Not 0: it failed, or did not end as it
 * should. */
static int restart_in_child(int (*part)(restart_site *, restart_row *), restart_site *site,
                            restart_row *row, bool dies)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(part(site, row));
    }
    if (waitpid(child, &status, 0) != child) return 1;
    if (dies) return !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static kvt_store_stats restart_stats(kvt_store *store)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    (void)!kvt_stats(store, &stats);
    return stats;
}

/* One entry in twenty is read, from all over, so that it comes up. */
static int restart_use(kvt_store *store, const restart_row *row)
{
    for (uint32_t use = 0; use < RESTART_USES; use++) {
        for (uint32_t i = 0; i < row->entries; i += RESTART_MEMORY_SHARE) {
            kvt_status status = restart_get(store, i);
            if (status != KVT_OK && status != KVT_MISS) return 1;
            if (i % (32 * RESTART_MEMORY_SHARE) == 0) (void)!kvt_maintain(store, NULL);
        }
    }
    return 0;
}

static int restart_life(restart_site *site, restart_row *row)
{
    kvt_store *store = restart_site_open(site);
    if (store == NULL) return 1;
    double began = base_clock_seconds();
    for (uint32_t i = 0; i < row->entries; i++) {
        kvt_status status = restart_put(store, i);
        if (status != KVT_OK && status != KVT_REFUSED) {
            fprintf(stderr, "kvlab restart: a put: %s\n", kvt_status_name(status));
            return 1;
        }
    }
    row->put_seconds = base_clock_seconds() - began;
    if (!site->hollow && restart_use(store, row) != 0) return 1;
    if (kvt_flush(store) != KVT_OK) return 1;
    kvt_store_stats stats = restart_stats(store);
    row->stored = stats.policy.entries;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        row->stored_bytes += stats.policy.used_bytes[tier];
    uint64_t room =
        (uint64_t)(site->options.high_watermark * (double)stats.tiers[KVT_TIER_SSD].capacity_bytes);
    row->fit_bytes = row->stored_bytes < room ? row->stored_bytes : room;
    if (row->killed) {
        (void)kill(getpid(), SIGKILL);
        return 1;
    }
    began = base_clock_seconds();
    kvt_close(store);
    row->close_seconds = base_clock_seconds() - began;
    return 0;
}

static int restart_return(restart_site *site, restart_row *row)
{
    double began = base_clock_seconds();
    double cpu_began = bench_process_seconds();
    kvt_store *store = restart_site_open(site);
    row->reopen_cpu_seconds = bench_process_seconds() - cpu_began;
    row->reopen_seconds = base_clock_seconds() - began;
    if (store == NULL) return 1;
    kvt_store_stats stats = restart_stats(store);
    row->back_bytes = stats.policy.used_bytes[KVT_TIER_SSD];
    for (uint32_t i = 0; i < row->entries; i++) {
        const kvt_key key = restart_key(i);
        row->back += kvt_exists(store, &key) == KVT_OK;
    }
    uint32_t step = row->entries / RESTART_CHECKS + 1;
    for (uint32_t i = 0; i < row->entries && !site->hollow; i += step) {
        kvt_status status = restart_get(store, i);
        if (status == KVT_OK) row->checked++;
        if (status != KVT_OK && status != KVT_MISS) row->wrong++;
    }
    kvt_close(store);
    return 0;
}

static kvt_status restart_run(const bench_options *options, const restart_behaviour *behaviour,
                              restart_row *row, bench_report *report)
{
    restart_site site;
    const uint64_t bytes = restart_record_bytes() * row->entries;
    kvt_status status = restart_site_make(&site, options, row->hollow, report);
    if (status != KVT_OK) return status;
    /* A tenth more than all entries take, and what the watermark leaves. */
    restart_site_size(&site, behaviour, bytes / 10 * 11, bytes / RESTART_MEMORY_SHARE);
    int code = restart_in_child(restart_life, &site, row, row->killed);
    if (code == 0) code = restart_in_child(restart_return, &site, row, false);
    bench_scratch_remove();
    if (code == 0) return KVT_OK;
    return bench_blame(report, KVT_E_STATE, behaviour->name,
                       row->killed ? "its life until kill -9, or the return, failed"
                                   : "its life until the close, or the return, failed");
}

static json_t *restart_row_json(const restart_row *row)
{
    const double ratio = row->fit_bytes != 0 ? (double)row->back_bytes / (double)row->fit_bytes : 0;
    return json_pack(
        "{s:I, s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I}",
        "entries", (json_int_t)row->entries, "behaviour", row->behaviour, "ended_by",
        row->killed ? "kill" : "close", "members_keep_labels_alone", row->hollow, "put_s",
        row->put_seconds, "close_s", row->close_seconds, "reopen_s", row->reopen_seconds,
        "reopen_cpu_s", row->reopen_cpu_seconds, "entries_stored", (json_int_t)row->stored,
        "bytes_stored", (json_int_t)row->stored_bytes, "bytes_fit", (json_int_t)row->fit_bytes,
        "entries_back", (json_int_t)row->back, "bytes_back", (json_int_t)row->back_bytes,
        "bytes_back_ratio", ratio, "checked", (json_int_t)row->checked, "wrong_bytes",
        (json_int_t)row->wrong);
}

/* ---- the whole ---- */

static kvt_status restart_case_run(const bench_options *options, bench_report *report)
{
    const uint32_t sizes = options->quick ? 1 : sizeof restart_sizes / sizeof restart_sizes[0];
    const uint32_t kinds = sizeof restart_behaviours / sizeof restart_behaviours[0];
    /* The children write their figures here. */
    restart_row *row =
        mmap(NULL, sizeof *row, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (row == MAP_FAILED) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < sizes * kinds * 2 && status == KVT_OK; i++) {
        const restart_behaviour *behaviour = &restart_behaviours[i / 2 % kinds];
        uint32_t entries = restart_sizes[i / 2 / kinds];
        if (options->quick) entries = RESTART_QUICK;
        if (options->iterations != 0) entries = options->iterations;
        *row = (restart_row){.entries = entries,
                             .behaviour = behaviour->name,
                             .killed = i % 2 != 0,
                             .hollow = entries >= RESTART_HOLLOW_FROM};
        (void)bench_tell(options, i, sizes * kinds * 2, behaviour->name);
        status = restart_run(options, behaviour, row, report);
        wrong += row->wrong;
        if (status == KVT_OK) bench_report_row(report, "restarts", restart_row_json(row));
        if (options->iterations != 0 && i + 1 == kinds * 2) break;
    }
    (void)munmap(row, sizeof *row);
    bench_report_add(report,
                     json_pack("{s:i, s:i, s:I}", "repetitions", 1, "members", RESTART_MEMBERS,
                               "record_bytes", (json_int_t)restart_record_bytes()));
    if (status != KVT_OK || wrong == 0) return status;
    return bench_blame(report, KVT_E_CORRUPT, "restarts", "entries came back with other bytes");
}

const bench_case bench_restart_case = {
    .name = "restart",
    .schema = "kvterrace-bench-restart-1",
    .tables =
        (const bench_table[]){{"restarts", "entries behaviour ended_by put_s close_s reopen_s "
                                           "reopen_cpu_s entries_back bytes_back_ratio wrong_bytes "
                                           "members_keep_labels_alone"},
                              {0}},
    .run = restart_case_run,
};
