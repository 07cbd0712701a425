/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_fast_path.c - what the pool's worker costs over io_uring, seen beside fio.
 *
 * Both read or write the same drive from start to end and again, with O_DIRECT, requests of the
 * same size, the same number in flight and registered buffers where the device takes them, in turn
 * within one run. The pool moves objects of 1 MiB, four at a time, through buffers that are used
 * again as a store's staging memory is; the device is told to take no larger requests than fio's.
 * fio runs as it does by default, which submits and waits one request at a time, and in batches of
 * half the depth; the better of the two is the rival. Processor time is of the process here and of
 * fio's job there; kernel threads of a loop device count in neither.
 *
 * The ratio is of the best repetitions. Where a loop device's kernel thread happens to run on
 * another processor than the submitter, a virtual machine pays an interrupt between the two per
 * request, and either program falls to a third of its speed; a median would mostly say how often
 * that happened to whom. Medians and the ratio of neighbours in time are beside it.
 *
 * Thread rule: one bench at a time; nothing else runs in this process meanwhile.
 */
#include "bench_devices.h"

#include "base/clock.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum {
    FAST_DEPTH = 8,
    FAST_IN_FLIGHT = 4, /* objects */
    FAST_OBJECT_BYTES = 1 << 20,
    FAST_OBJECTS_MAX = 4096,
    FAST_MILLISECONDS = 400, /* of one repetition, of which there are FAST_TIMES as many as usual */
    FAST_TIMES = 2,
    FAST_MILLISECONDS_QUICK = 50,
    FAST_RIVALS = 2
};

static const uint32_t fast_sizes[] = {64 * 1024, 256 * 1024};

/* What fio submits at once, and waits for. */
static const uint32_t fast_batches[FAST_RIVALS] = {1, FAST_DEPTH / 2};

typedef struct fast_sample {
    double bytes_per_s;
    double cpu_per_gb;
} fast_sample;

/* ---- ours ---- */

static double fast_cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

typedef struct fast_drive {
    tiers_pool *pool;
    char *buffer; /* FAST_IN_FLIGHT objects */
    uint32_t object_count;
    tiers_location *objects[FAST_OBJECTS_MAX];
} fast_drive;

static void fast_close(fast_drive *drive)
{
    for (uint32_t i = 0; i < drive->object_count; i++)
        tiers_pool_release(drive->pool, drive->objects[i]);
    tiers_pool_close(drive->pool);
    free(drive->buffer);
    *drive = (fast_drive){.pool = NULL};
}

/* Opens the drive as a pool's only member and cuts it into objects. */
static kvt_status fast_open(const kvt_device_config *config, bench_fast_row *row, fast_drive *drive,
                            char *message, size_t message_size)
{
    kvt_device *device = NULL;
    kvt_device_config deep = *config;
    deep.depth = FAST_DEPTH;
    *drive = (fast_drive){.buffer = bench_buffer(FAST_IN_FLIGHT * (uint64_t)FAST_OBJECT_BYTES)};
    if (drive->buffer == NULL) return KVT_E_MEMORY;
    kvt_status status = kvt_device_open(&deep, &device, message, message_size);
    if (status == KVT_OK) {
        const kvt_device_region region = {.memory = drive->buffer,
                                          .bytes = FAST_IN_FLIGHT * (uint64_t)FAST_OBJECT_BYTES};
        row->registered = kvt_device_register_buffers(device, &region, 1) == KVT_OK;
        /* Nobody else has the device yet: its facts may still be narrowed. */
        device->facts.request_bytes_max = row->request_bytes;
        tiers_member_options member = {
            .device = device, .read_bytes_per_s = 1, .write_bytes_per_s = 1, .present = true};
        tiers_pool_options options = {0};
        status = tiers_pool_open(&member, 1, &options, &drive->pool, message, message_size);
        if (status != KVT_OK) kvt_device_close(device);
    }
    while (status == KVT_OK && drive->object_count < FAST_OBJECTS_MAX &&
           tiers_pool_reserve(drive->pool, FAST_OBJECT_BYTES,
                              &drive->objects[drive->object_count]) == KVT_OK)
        drive->object_count++;
    if (status == KVT_OK && drive->object_count < FAST_IN_FLIGHT) status = KVT_E_SPACE;
    if (status != KVT_OK) fast_close(drive);
    return status;
}

static void fast_start(fast_drive *drive, kvt_io_kind kind, uint32_t turn, tiers_transfer *transfer)
{
    *transfer = (tiers_transfer){.kind = kind,
                                 .location = drive->objects[turn % drive->object_count],
                                 .buffer = drive->buffer +
                                           (size_t)(turn % FAST_IN_FLIGHT) * FAST_OBJECT_BYTES,
                                 .bytes = FAST_OBJECT_BYTES};
    tiers_transfer_start(drive->pool, transfer);
}

/* Keeps the objects in flight until the time is over. */
static kvt_status fast_ours(fast_drive *drive, kvt_io_kind kind, uint32_t milliseconds,
                            fast_sample *sample)
{
    tiers_transfer transfers[FAST_IN_FLIGHT];
    kvt_status first = KVT_OK;
    uint64_t bytes = 0;
    double cpu = fast_cpu_seconds();
    uint64_t start = base_clock_ns();
    uint64_t end = start + milliseconds * UINT64_C(1000000);
    uint32_t started = 0;
    uint32_t ended = 0;
    while (started < FAST_IN_FLIGHT) {
        fast_start(drive, kind, started, &transfers[started]);
        started++;
    }
    while (ended < started) {
        kvt_status status = tiers_transfer_wait(drive->pool, &transfers[ended % FAST_IN_FLIGHT]);
        if (first == KVT_OK) first = status;
        bytes += FAST_OBJECT_BYTES;
        ended++;
        if (first != KVT_OK || base_clock_ns() >= end) continue;
        fast_start(drive, kind, started, &transfers[started % FAST_IN_FLIGHT]);
        started++;
    }
    sample->bytes_per_s = bench_bytes_per_s(bytes, base_clock_ns() - start);
    sample->cpu_per_gb = (fast_cpu_seconds() - cpu) / ((double)bytes * 1e-9);
    return first;
}

/* ---- fio ---- */

/* Runs fio and waits for it. False when it is not there or failed. */
static bool fast_spawn_fio(char *const *words)
{
    pid_t fio = 0;
    int outcome = 0;
    if (posix_spawnp(&fio, words[0], NULL, NULL, words, environ) != 0) return false;
    while (waitpid(fio, &outcome, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0;
}

static bool fast_read_fio(const char *path, kvt_io_kind kind, fast_sample *sample)
{
    json_t *root = json_load_file(path, 0, NULL);
    json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    json_t *part = json_object_get(job, kind == KVT_IO_READ ? "read" : "write");
    double bytes = json_number_value(json_object_get(part, "io_bytes"));
    double percent = json_number_value(json_object_get(job, "usr_cpu")) +
                     json_number_value(json_object_get(job, "sys_cpu"));
    double seconds = json_number_value(json_object_get(job, "job_runtime")) * 1e-3;
    sample->bytes_per_s = json_number_value(json_object_get(part, "bw_bytes"));
    sample->cpu_per_gb = bytes > 0 ? percent / 100 * seconds / (bytes * 1e-9) : 0;
    json_decref(root);
    return sample->bytes_per_s > 0 && bytes > 0;
}

static bool fast_fio(const char *path, const bench_fast_row *row, uint64_t bytes, uint32_t batch,
                     uint32_t milliseconds, fast_sample *sample)
{
    char output[] = "/tmp/kvterrace-fio-XXXXXX";
    int fd = mkstemp(output);
    if (fd < 0) return false;
    close(fd);
    char words[9][64];
    char file[4096];
    int length = snprintf(file, sizeof file, "--filename=%s", path);
    snprintf(words[0], sizeof words[0], "--bs=%u", row->request_bytes);
    snprintf(words[1], sizeof words[1], "--iodepth=%u", row->depth);
    snprintf(words[2], sizeof words[2], "--size=%llu", (unsigned long long)bytes);
    snprintf(words[3], sizeof words[3], "--runtime=%ums", milliseconds);
    snprintf(words[4], sizeof words[4], "--output=%s", output);
    snprintf(words[5], sizeof words[5], "--direct=%d", row->direct);
    snprintf(words[6], sizeof words[6], "--rw=%s", row->kind == KVT_IO_READ ? "read" : "write");
    snprintf(words[7], sizeof words[7], "--iodepth_batch_submit=%u", batch);
    snprintf(words[8], sizeof words[8], "--iodepth_batch_complete_min=%u", batch);
    char fio[] = "fio", name[] = "--name=kvterrace", engine[] = "--ioengine=io_uring";
    char fixed[] = "--fixedbufs=1", files[] = "--registerfiles=1", timed[] = "--time_based";
    char format[] = "--output-format=json", fallocate[] = "--fallocate=none";
    char *const list[] = {fio,      name,      file,     engine,   fixed,    files,    timed,
                          format,   fallocate, words[0], words[1], words[2], words[3], words[4],
                          words[5], words[6],  words[7], words[8], NULL};
    bool fine = length > 0 && (size_t)length < sizeof file && strchr(path, ':') == NULL &&
                fast_spawn_fio(list) && fast_read_fio(output, row->kind, sample);
    unlink(output);
    return fine;
}

/* ---- both ---- */

typedef struct fast_samples {
    double ours[BENCH_ITERATIONS_MAX];
    double ours_cpu[BENCH_ITERATIONS_MAX];
    double fio[FAST_RIVALS][BENCH_ITERATIONS_MAX];
    double fio_cpu[FAST_RIVALS][BENCH_ITERATIONS_MAX];
    double paired[FAST_RIVALS][BENCH_ITERATIONS_MAX];
} fast_samples;

/* One repetition of ours; the device is closed afterwards, because two at once are refused. */
static kvt_status fast_repeat(const kvt_device_config *config, uint32_t milliseconds,
                              bench_fast_row *row, uint64_t *bytes_out, fast_sample *sample,
                              char *message, size_t message_size)
{
    static fast_drive drive;
    kvt_status status = fast_open(config, row, &drive, message, message_size);
    if (status != KVT_OK) return status;
    status = fast_ours(&drive, row->kind, milliseconds, sample);
    tiers_member_stats stats;
    if (tiers_pool_member(drive.pool, 0, &stats) == KVT_OK) {
        row->direct = (stats.facts.flags & KVT_DEVICE_DIRECT) != 0;
        memcpy(row->engine, stats.facts.engine, sizeof row->engine);
    }
    *bytes_out = (uint64_t)drive.object_count * FAST_OBJECT_BYTES;
    fast_close(&drive);
    return status;
}

/* fio's turns of one repetition, beside what ours just reached. */
static void fast_repeat_fio(const char *path, uint64_t bytes, uint32_t milliseconds, uint32_t turn,
                            bench_fast_row *row, fast_samples *samples)
{
    for (int rival = 0; rival < FAST_RIVALS && row->note == NULL; rival++) {
        fast_sample sample;
        if (!fast_fio(path, row, bytes, fast_batches[rival], milliseconds, &sample)) {
            row->note = "fio is not installed, or cannot drive this device";
            return;
        }
        samples->fio[rival][turn] = sample.bytes_per_s;
        samples->fio_cpu[rival][turn] = sample.cpu_per_gb;
        samples->paired[rival][turn] = samples->ours[turn] / sample.bytes_per_s;
    }
}

/* Chooses fio's better way, as the ratio does: by its best repetition. */
static void fast_choose_rival(bench_fast_row *row, fast_samples *samples, uint32_t repetitions)
{
    for (int rival = 0; rival < FAST_RIVALS; rival++) {
        bench_rate rate = bench_rate_of(samples->fio[rival], repetitions);
        if (rival == 0) row->fio_default = rate;
        if (rival > 0 && rate.max <= row->fio.max) continue;
        row->fio = rate;
        row->fio_cpu = bench_rate_of(samples->fio_cpu[rival], repetitions);
        row->paired = bench_rate_of(samples->paired[rival], repetitions);
        row->fio_batch = fast_batches[rival];
    }
}

static kvt_status fast_row(const kvt_device_config *config, uint32_t repetitions,
                           uint32_t milliseconds, bench_fast_row *row, char *message,
                           size_t message_size)
{
    static fast_samples samples;
    for (uint32_t i = 0; i < repetitions; i++) {
        fast_sample sample;
        uint64_t bytes = 0;
        kvt_status status =
            fast_repeat(config, milliseconds, row, &bytes, &sample, message, message_size);
        if (status != KVT_OK) return status;
        samples.ours[i] = sample.bytes_per_s;
        samples.ours_cpu[i] = sample.cpu_per_gb;
        fast_repeat_fio(config->path, bytes, milliseconds, i, row, &samples);
    }
    if (row->note == NULL) fast_choose_rival(row, &samples, repetitions);
    row->ours = bench_rate_of(samples.ours, repetitions);
    row->ours_cpu = bench_rate_of(samples.ours_cpu, repetitions);
    return KVT_OK;
}

kvt_status bench_fast_path(const kvt_device_config *config, uint32_t repetitions, bool quick,
                           bench_fast_row *rows, char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    if (repetitions > BENCH_ITERATIONS_MAX / FAST_TIMES)
        repetitions = BENCH_ITERATIONS_MAX / FAST_TIMES;
    for (int i = 0; i < BENCH_FAST_ROWS && status == KVT_OK; i++) {
        bench_fast_row *row = &rows[i];
        *row = (bench_fast_row){.kind = i < 2 ? KVT_IO_READ : KVT_IO_WRITE,
                                .request_bytes = fast_sizes[i % 2],
                                .depth = FAST_DEPTH,
                                .note = i > 0 ? rows[i - 1].note : NULL};
        snprintf(row->device, sizeof row->device, "%s", config->name);
        status = fast_row(config, quick ? repetitions : repetitions * FAST_TIMES,
                          quick ? FAST_MILLISECONDS_QUICK : FAST_MILLISECONDS, row, message,
                          message_size);
    }
    return status;
}
