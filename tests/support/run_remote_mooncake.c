/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_remote_mooncake.c - the back end of Mooncake with a real engine, for
 * test_remote_mooncake_engine.py.
 *
 *     run_remote_mooncake speed MASTER BYTES OBJECTS DEPTH     beside batch_get_into, three rounds
 *     run_remote_mooncake faults MASTER BYTES OBJECTS DEPTH SECONDS
 *
 * faults prints a line when the objects are there, and another one for each second of gets, while
 * the script does harm to nodes. Counts of wrong bytes and of late ends decide; figures do not.
 *
 * Thread rule: one thread.
 */
#include "base/clock.h"
#include "remote/client.h"
#include "remote/mooncake_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH_MOST  32u
#define DEADLINE_NS UINT64_C(50000000)
#define SLACK_NS    UINT64_C(5000000)
#define LONG_NS     UINT64_C(20000000000)

typedef struct run {
    remote_client *client;
    size_t bytes;
    uint32_t objects, depth;
    char *memory; /* depth values, and one more */
    uint64_t deadline_ns;
    uint64_t good, misses, timeouts, gone, wrong, late;
} run;

static void run_key(const run *at, uint32_t number, char key[64])
{
    snprintf(key, 64, "kvt1:run:{%u}:%zu", number, at->bytes);
}

/* Values that no two objects share. */
static void run_fill(const run *at, uint32_t number, char *value)
{
    memset(value, (int)(number * 37u + 11u), at->bytes);
    memcpy(value, &number, sizeof number);
    memcpy(value + at->bytes - sizeof number, &number, sizeof number);
}

static bool run_is_right(const run *at, uint32_t number, const char *value)
{
    char *expected = at->memory + at->depth * at->bytes;
    run_fill(at, number, expected);
    return memcmp(expected, value, at->bytes) == 0;
}

/* Runs `depth` requests from an object on, and waits for all of them. */
static void run_batch(run *at, remote_kind kind, uint32_t from, bool check)
{
    remote_request requests[DEPTH_MOST], *done[DEPTH_MOST];
    struct iovec parts[DEPTH_MOST];
    char keys[DEPTH_MOST][64];
    for (uint32_t i = 0; i < at->depth; i++) {
        const uint32_t number = (from + i) % at->objects;
        parts[i] = (struct iovec){at->memory + i * at->bytes, at->bytes};
        run_key(at, number, keys[i]);
        if (kind == REMOTE_PUT) run_fill(at, number, parts[i].iov_base);
        requests[i] = (remote_request){.kind = kind,
                                       .key = keys[i],
                                       .key_bytes = (uint32_t)strlen(keys[i]),
                                       .parts = &parts[i],
                                       .part_count = 1,
                                       .deadline_ns = base_clock_ns() + at->deadline_ns};
        remote_submit(at->client, &requests[i]);
    }
    for (uint32_t ended = 0; ended < at->depth;)
        ended += (uint32_t)remote_reap(at->client, done, 1, DEPTH_MOST, LONG_NS);
    for (uint32_t i = 0; i < at->depth; i++) {
        const remote_request *request = &requests[i];
        const kvt_status status = request->status;
        at->good += status == KVT_OK;
        at->misses += status == KVT_MISS;
        at->timeouts += status == KVT_E_TIMEOUT;
        at->gone += status != KVT_OK && status != KVT_MISS && status != KVT_E_TIMEOUT;
        at->late += request->finished_ns > request->deadline_ns + SLACK_NS;
        if (check && status == KVT_OK && kind == REMOTE_GET)
            at->wrong += request->value_bytes != at->bytes ||
                         !run_is_right(at, (from + i) % at->objects, parts[i].iov_base);
    }
}

static int run_faults(run *at, uint32_t seconds)
{
    uint32_t from = 0;
    printf("ready\n");
    fflush(stdout);
    at->deadline_ns = DEADLINE_NS;
    for (uint32_t second = 0; second < seconds; second++) {
        const uint64_t end_ns = base_clock_ns() + UINT64_C(1000000000);
        run before = *at;
        while (base_clock_ns() < end_ns) {
            run_batch(at, REMOTE_GET, from, true);
            from += at->depth;
            base_sleep(2000000);
        }
        printf("second=%u good=%llu misses=%llu timeouts=%llu gone=%llu wrong=%llu late=%llu\n",
               second, (unsigned long long)(at->good - before.good),
               (unsigned long long)(at->misses - before.misses),
               (unsigned long long)(at->timeouts - before.timeouts),
               (unsigned long long)(at->gone - before.gone), (unsigned long long)at->wrong,
               (unsigned long long)at->late);
        fflush(stdout);
    }
    return at->wrong == 0 ? 0 : 1;
}

/* The rate of the library's own call, one batch after the other. */
static double run_direct(const run *at, mooncake_store store, uint32_t batches)
{
    const mooncake_library *library = mooncake_library_get();
    const char *keys[DEPTH_MOST];
    char texts[DEPTH_MOST][64];
    void *buffers[DEPTH_MOST];
    size_t bytes[DEPTH_MOST];
    int64_t results[DEPTH_MOST];
    const uint64_t began_ns = base_clock_ns();
    for (uint32_t from = 0; from < batches * at->depth; from += at->depth) {
        for (uint32_t i = 0; i < at->depth; i++) {
            run_key(at, (from + i) % at->objects, texts[i]);
            keys[i] = texts[i];
            buffers[i] = at->memory + i * at->bytes;
            bytes[i] = at->bytes + sizeof(uint64_t); /* the trailer; the next one overwrites it */
        }
        if (library->batch_get_into(store, keys, buffers, bytes, at->depth, results) != 0) return 0;
        for (uint32_t i = 0; i < at->depth; i++)
            if (results[i] < (int64_t)at->bytes) return 0;
    }
    return (double)batches * at->depth * (double)at->bytes /
           ((double)(base_clock_ns() - began_ns) * 1e-9);
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static int run_speed(run *at, const char *master)
{
    const mooncake_library *library = mooncake_library_get();
    double direct[3], ours[3];
    mooncake_store store = library->create();
    const size_t room = (at->depth + 1) * at->bytes + 4096;
    uint32_t batches = (uint32_t)((UINT64_C(192) << 20) / at->bytes / at->depth);
    if (batches == 0) batches = 1;
    if (store == NULL ||
        library->setup(store, "127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) != 0 ||
        library->register_buffer(store, at->memory, room) != 0)
        return 1;
    for (int round = 0; round < 3; round++) {
        direct[round] = run_direct(at, store, batches);
        const uint64_t began_ns = base_clock_ns();
        for (uint32_t i = 0; i < batches; i++)
            run_batch(at, REMOTE_GET, i * at->depth, i == 0);
        ours[round] = (double)batches * at->depth * (double)at->bytes /
                      ((double)(base_clock_ns() - began_ns) * 1e-9);
    }
    qsort(direct, 3, sizeof *direct, compare);
    qsort(ours, 3, sizeof *ours, compare);
    printf("bytes=%zu depth=%u direct_mb_per_s=%.0f ours_mb_per_s=%.0f ratio=%.3f wrong=%llu "
           "failed=%llu\n",
           at->bytes, at->depth, direct[1] * 1e-6, ours[1] * 1e-6, ours[1] / direct[1],
           (unsigned long long)at->wrong,
           (unsigned long long)(at->misses + at->timeouts + at->gone));
    (void)library->unregister_buffer(store, at->memory);
    library->destroy(store);
    return at->wrong + at->misses + at->timeouts + at->gone == 0 ? 0 : 1;
}

int main(int count, char **arguments)
{
    char message[200];
    if (count < 6) return 2;
    const remote_config config = {.backend = "mooncake", .addresses = arguments[2]};
    run at = {.bytes = strtoul(arguments[3], NULL, 10),
              .objects = (uint32_t)strtoul(arguments[4], NULL, 10),
              .depth = (uint32_t)strtoul(arguments[5], NULL, 10),
              .deadline_ns = LONG_NS};
    if (at.bytes < 64 || at.depth == 0 || at.depth > DEPTH_MOST || at.objects == 0) return 2;
    at.memory = aligned_alloc(4096, ((at.depth + 1) * at.bytes + 8191) / 4096 * 4096);
    if (at.memory == NULL) return 1;
    if (remote_open(&config, &at.client, message, sizeof message) != KVT_OK) {
        fprintf(stderr, "%s\n", message);
        return 77;
    }
    for (uint32_t from = 0; from < at.objects; from += at.depth)
        run_batch(&at, REMOTE_PUT, from, false);
    int status = 1;
    if (at.misses + at.timeouts + at.gone != 0)
        fprintf(stderr, "%llu puts failed\n", (unsigned long long)(at.timeouts + at.gone));
    else if (strcmp(arguments[1], "faults") == 0 && count == 7)
        status = run_faults(&at, (uint32_t)strtoul(arguments[6], NULL, 10));
    else
        status = run_speed(&at, arguments[2]);
    remote_close(at.client);
    free(at.memory);
    /* Calls that have not returned still use what an exit would take down. */
    fflush(NULL);
    _exit(status);
}
