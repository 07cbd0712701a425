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
#include "bench_restart.h"

#include "base/clock.h"
#include "bench_parts.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    RESTART_MEMORY_SHARE = 20, /* one in so many fits memory */
    RESTART_USES = 2,          /* gets of each entry that is used */
    RESTART_CHECKS = 1000,     /* entries that are read and compared after a restart */
    RESTART_HOLLOW_FROM = 200001,
    RESTART_QUICK = 2000,
    RESTART_ROWS_MAX = 8
};

static const uint32_t restart_sizes[] = {100000, 1000000};

static const restart_behaviour restart_behaviours[] = {
    {"copies and write-back", true, 600, 32000000},
    {"one place per entry", false, 0, 0},
};

/* The processor time of this process, in seconds. */
static double restart_cpu_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

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
            fprintf(stderr, "kvterrace bench restart: a put: %s\n", kvt_status_name(status));
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
    double cpu_began = restart_cpu_seconds();
    kvt_store *store = restart_site_open(site);
    row->reopen_cpu_seconds = restart_cpu_seconds() - cpu_began;
    row->reopen_seconds = base_clock_seconds() - began;
    if (store == NULL) return 1;
    kvt_store_stats stats = restart_stats(store);
    row->back_bytes = stats.policy.used_bytes[KVT_TIER_SSD];
    for (uint32_t i = 0; i < row->entries; i++)
        if (restart_exists(store, i) == KVT_OK) row->back++;
    uint32_t step = row->entries / RESTART_CHECKS + 1;
    for (uint32_t i = 0; i < row->entries && !site->hollow; i += step) {
        kvt_status status = restart_get(store, i);
        if (status == KVT_OK) row->checked++;
        if (status != KVT_OK && status != KVT_MISS) row->wrong++;
    }
    kvt_close(store);
    return 0;
}

static int restart_run(const bench_options *options, const restart_behaviour *behaviour,
                       restart_row *row)
{
    restart_site site;
    uint64_t bytes = restart_record_bytes() * row->entries;
    if (restart_site_make(&site, options, row->hollow) != 0) return 1;
    /* A tenth more than all entries take, and what the watermark leaves. */
    restart_site_size(&site, behaviour, bytes / 10 * 11, bytes / RESTART_MEMORY_SHARE);
    int code = restart_in_child(restart_life, &site, row, row->killed);
    if (code == 0) code = restart_in_child(restart_return, &site, row, false);
    bench_scratch_remove();
    if (code != 0)
        fprintf(stderr, "kvterrace bench restart: %u entries, %s, %s: failed\n", row->entries,
                behaviour->name, row->killed ? "kill -9" : "close");
    return code;
}

/* ---- report ---- */

static double restart_ratio(const restart_row *row)
{
    return row->fit_bytes != 0 ? (double)row->back_bytes / (double)row->fit_bytes : 0;
}

static void restart_print(FILE *out, const restart_row *rows, uint32_t count,
                          const restart_gets *gets)
{
    fprintf(out, "%9s  %-22s %-8s %8s %8s %9s %9s %9s %7s\n", "entries", "store", "ended by",
            "put s", "close s", "reopen s", "cpu s", "back", "ratio");
    for (uint32_t i = 0; i < count; i++) {
        const restart_row *row = &rows[i];
        fprintf(out, "%9u  %-22s %-8s %8.1f %8.2f %9.2f %9.2f %9llu %7.3f%s\n", row->entries,
                row->behaviour, row->killed ? "kill -9" : "close", row->put_seconds,
                row->close_seconds, row->reopen_seconds, row->reopen_cpu_seconds,
                (unsigned long long)row->back, restart_ratio(row), row->hollow ? " *" : "");
        if (row->wrong != 0)
            fprintf(out, "%9s  wrong bytes: %llu\n", "", (unsigned long long)row->wrong);
    }
    fprintf(out, "ratio: bytes that came back, of the stored ones that fit the SSD tier\n"
                 "*: members that keep their labels alone; nothing is read there before the "
                 "restart\n\n");
    fprintf(out, "%14s %9s %9s %9s %18s %12s\n", "write-back", "gets", "p50 us", "p99 us",
            "p99 of runs", "written MB/s");
    for (uint32_t i = 0; i < RESTART_RATES; i++) {
        char rate[32] = "none";
        if (gets[i].persist_bytes_per_s != 0)
            snprintf(rate, sizeof rate, "%.0f MB/s", (double)gets[i].persist_bytes_per_s / 1e6);
        fprintf(out, "%14s %9llu %9.0f %9.0f %8.0f -%8.0f %12.1f\n", rate,
                (unsigned long long)gets[i].gets, gets[i].p50_seconds * 1e6,
                gets[i].p99_seconds * 1e6, gets[i].p99_min_seconds * 1e6,
                gets[i].p99_max_seconds * 1e6, gets[i].written_bytes_per_s / 1e6);
    }
}

static json_t *restart_row_json(const restart_row *row)
{
    return json_pack(
        "{s:I, s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I}",
        "entries", (json_int_t)row->entries, "behaviour", row->behaviour, "ended_by",
        row->killed ? "kill" : "close", "members_keep_labels_alone", row->hollow, "put_s",
        row->put_seconds, "close_s", row->close_seconds, "reopen_s", row->reopen_seconds,
        "reopen_cpu_s", row->reopen_cpu_seconds, "entries_stored", (json_int_t)row->stored,
        "bytes_stored", (json_int_t)row->stored_bytes, "bytes_fit", (json_int_t)row->fit_bytes,
        "entries_back", (json_int_t)row->back, "bytes_back", (json_int_t)row->back_bytes,
        "bytes_back_ratio", restart_ratio(row), "checked", (json_int_t)row->checked, "wrong_bytes",
        (json_int_t)row->wrong);
}

static json_t *restart_gets_json(const restart_gets *row)
{
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "persist_bytes_per_s",
                     (json_int_t)row->persist_bytes_per_s, "gets", (json_int_t)row->gets, "p50_s",
                     row->p50_seconds, "p99_s", row->p99_seconds, "p99_s_min", row->p99_min_seconds,
                     "p99_s_max", row->p99_max_seconds, "written_bytes_per_s",
                     row->written_bytes_per_s);
}

static int restart_report(const bench_options *options, const restart_row *rows, uint32_t count,
                          const restart_gets *gets)
{
    if (!options->json) {
        restart_print(options->out, rows, count, gets);
        return ferror(options->out) != 0;
    }
    json_t *root = bench_report_head("kvterrace-bench-restart-1", 1);
    json_t *restarts = json_array(), *beside = json_array();
    int failed = root == NULL || restarts == NULL || beside == NULL;
    for (uint32_t i = 0; i < count && !failed; i++)
        failed = json_array_append_new(restarts, restart_row_json(&rows[i]));
    for (uint32_t i = 0; i < RESTART_RATES && !failed; i++)
        failed = json_array_append_new(beside, restart_gets_json(&gets[i]));
    if (!failed)
        failed = json_object_set_new(root, "members", json_integer(RESTART_MEMBERS)) != 0 ||
                 json_object_set_new(root, "record_bytes",
                                     json_integer((json_int_t)restart_record_bytes())) != 0 ||
                 json_object_set(root, "restarts", restarts) != 0 ||
                 json_object_set(root, "gets_beside_write_back", beside) != 0;
    json_decref(restarts);
    json_decref(beside);
    if (!failed) return bench_report_print(options->out, root);
    json_decref(root);
    return 1;
}

/* ---- the whole ---- */

int bench_restart_run(const bench_options *options)
{
    const uint32_t sizes = options->quick ? 1 : sizeof restart_sizes / sizeof restart_sizes[0];
    const uint32_t kinds = sizeof restart_behaviours / sizeof restart_behaviours[0];
    restart_gets gets[RESTART_RATES] = {{0}};
    uint32_t count = 0;
    /* The children write their figures here. */
    restart_row *rows = mmap(NULL, RESTART_ROWS_MAX * sizeof *rows, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rows == MAP_FAILED) return 1;
    int code = 0;
    bool sound = true;
    for (uint32_t i = 0; i < sizes * kinds * 2 && code == 0; i++) {
        const restart_behaviour *behaviour = &restart_behaviours[i / 2 % kinds];
        uint32_t entries = restart_sizes[i / 2 / kinds];
        if (options->quick) entries = RESTART_QUICK;
        if (options->iterations != 0) entries = options->iterations;
        restart_row *row = &rows[count++];
        *row = (restart_row){.entries = entries,
                             .behaviour = behaviour->name,
                             .killed = i % 2 != 0,
                             .hollow = entries >= RESTART_HOLLOW_FROM};
        bench_tell(options, i, sizes * kinds * 2 + 1, behaviour->name);
        code = restart_run(options, behaviour, row);
        sound = sound && row->wrong == 0;
        if (options->iterations != 0 && i + 1 == kinds * 2) break;
    }
    if (code == 0) code = bench_restart_gets(options, gets);
    bench_tell(options, 1, 1, NULL);
    if (code == 0) code = restart_report(options, rows, count, gets);
    (void)munmap(rows, RESTART_ROWS_MAX * sizeof *rows);
    return code == 0 && !sound ? 1 : code;
}
