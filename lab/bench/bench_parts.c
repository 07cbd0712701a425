/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_parts.c - medians, clocks, buffers and report parts that the device benches share.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_parts.h"

#include "base/clock.h"
#include "base/order.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <kvterrace/kvterrace.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

bench_rate bench_rate_of(double *samples, uint32_t count)
{
    qsort(samples, count, sizeof *samples, base_order_doubles);
    double middle = samples[count / 2];
    if (count % 2 == 0) middle = (middle + samples[count / 2 - 1]) / 2;
    return (bench_rate){.median = middle, .min = samples[0], .max = samples[count - 1]};
}

double bench_bytes_per_s(uint64_t bytes, uint64_t nanoseconds)
{
    return (double)bytes * 1e9 / (double)(nanoseconds > 0 ? nanoseconds : 1);
}

uint32_t bench_repetitions(uint32_t wanted, uint32_t usual, bool quick)
{
    if (wanted > BENCH_ITERATIONS_MAX) return BENCH_ITERATIONS_MAX;
    if (wanted > 0) return wanted;
    return quick ? 1 : usual;
}

void bench_give_drives(bench_options *given, uint64_t capacity_bytes, uint64_t latency_ns,
                       kvt_device_config own[BENCH_OWN_DRIVES])
{
    static const char *const names[BENCH_OWN_DRIVES] = {"memory0", "memory1", "memory2", "memory3"};
    static const uint64_t rates[BENCH_OWN_DRIVES] = {100000000, 100000000, 200000000, 400000000};
    if (given->device_count != 0) return;
    for (int i = 0; i < BENCH_OWN_DRIVES; i++)
        own[i] = (kvt_device_config){.struct_size = sizeof own[i],
                                     .name = names[i],
                                     .backend = "memory",
                                     .capacity_bytes = capacity_bytes,
                                     .emulated = true,
                                     .read_bytes_per_s = rates[i],
                                     .write_bytes_per_s = rates[i],
                                     .latency_ns = latency_ns};
    given->devices = own;
    given->device_count = BENCH_OWN_DRIVES;
    given->overwrite = NULL;
}

const kvt_device_config *bench_kept_drive(const bench_options *options)
{
    for (uint32_t i = 0; options->overwrite != NULL && i < options->device_count; i++)
        if (!options->overwrite[i]) return &options->devices[i];
    return NULL;
}

void *bench_buffer(uint64_t bytes)
{
    uint64_t *words = aligned_alloc(TIERS_GRAIN_BYTES, bytes);
    if (words == NULL) return NULL;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = i * 0x9e3779b97f4a7c15u;
    return words;
}

kvt_status bench_move(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                      void *buffer, double *bytes_per_s, double *spread_out)
{
    tiers_transfer transfer = {
        .kind = kind, .location = location, .buffer = buffer, .bytes = location->bytes};
    tiers_transfer_start(pool, &transfer);
    kvt_status status = tiers_transfer_wait(pool, &transfer);
    *bytes_per_s = bench_bytes_per_s(location->bytes, transfer.finished_ns - transfer.started_ns);
    if (spread_out != NULL) {
        uint64_t first_ns = transfer.member_finished_ns_first - transfer.started_ns;
        uint64_t last_ns = transfer.finished_ns - transfer.started_ns;
        *spread_out = first_ns > 0 ? (double)(last_ns - first_ns) / (double)first_ns : 0;
    }
    return status;
}

int bench_put_rate(json_t *object, const char *key, const bench_rate *rate)
{
    char name[64];
    int failed = 0;
    const double values[] = {rate->median, rate->min, rate->max};
    const char *const tails[] = {"", "_min", "_max"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", key, tails[i]);
        json_t *value = rate->median > 0 ? json_real(values[i]) : json_null();
        failed |= json_object_set_new(object, name, value);
    }
    return failed;
}

json_t *bench_report_head(const char *schema, uint32_t repetitions)
{
    struct utsname host = {.nodename = ""};
    (void)uname(&host);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "schema", schema, "version", kvt_version(),
                     "host", host.nodename, "kernel", host.release, "machine", host.machine,
                     "repetitions", (json_int_t)repetitions);
}

int bench_report_print(FILE *out, json_t *root)
{
    int failed = root == NULL;
    if (!failed) failed = json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (!failed) failed = fputc('\n', out) == EOF;
    json_decref(root);
    return failed != 0;
}

void bench_print_cell(FILE *out, const bench_rate *rate)
{
    char cell[64] = "-";
    if (rate->median > 0)
        snprintf(cell, sizeof cell, "%.0f (%.0f-%.0f)", rate->median / 1e6, rate->min / 1e6,
                 rate->max / 1e6);
    fprintf(out, "  %22s", cell);
}

/* ---- a bench's folder ---- */

enum { SCRATCH_NOTED_BYTES = 4096 };

static char scratch_own[SCRATCH_NOTED_BYTES];
static char *scratch_noted = scratch_own; /* the folder that is there; "" = none */

int bench_scratch_share(void)
{
    char *shared =
        mmap(NULL, SCRATCH_NOTED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    scratch_noted = shared;
    return 0;
}

int bench_scratch_make(const char *parent, const char *name, char *folder, size_t size)
{
    if (parent == NULL) parent = "/var/tmp";
    int length = snprintf(folder, size, "%s/kvterrace-%s-XXXXXX", parent, name);
    if (length < 0 || (size_t)length >= size) {
        errno = ENAMETOOLONG;
        return 1;
    }
    if (mkdtemp(folder) == NULL) return 1;
    (void)snprintf(scratch_noted, SCRATCH_NOTED_BYTES, "%s", folder);
    return 0;
}

void bench_scratch_remove(void)
{
    if (scratch_noted[0] == '\0') return;
    DIR *list = opendir(scratch_noted);
    const struct dirent *entry;
    while (list != NULL && (entry = readdir(list)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(list), entry->d_name, 0);
    }
    if (list != NULL) (void)closedir(list);
    if (rmdir(scratch_noted) != 0)
        fprintf(stderr, "kvterrace bench: %s: %s\n", scratch_noted, strerror(errno));
    scratch_noted[0] = '\0';
}
