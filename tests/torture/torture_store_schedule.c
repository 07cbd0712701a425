/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_schedule.c - a store whose threads run one at a time, in orders that seeds decide.
 *
 *     torture_store_schedule [--seeds N] [--first S]   seeds S .. S+N-1; 100 from 1
 *     torture_store_schedule --seed S                  one seed, with its log of events
 *
 * The same seed is the same run, step by step: the first seeds are run again in a new process, with
 * other addresses, and must have the same hash of all decisions. docs/TESTING.md says what is
 * scheduled. Prints one line of key=value pairs; exit 1 when a seed fails or finds nothing to do.
 */
#include "schedule_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SCHEDULE_SEEDS = 100, SCHEDULE_REPEATED = 5 };

/* A workload that no longer reaches a part of the store would prove nothing of it. */
static int schedule_judge_counts(const schedule_counts *counts)
{
    const uint64_t *met = (const uint64_t *)counts;
    int missing = 0;
    for (size_t i = 0; i < sizeof *counts / sizeof *met; i++)
        if (met[i] == 0) missing++;
    if (missing != 0) printf("%d of these never happened\n", missing);
    return missing;
}

/* The hash of a seed as another process of this program finds it. */
static uint64_t schedule_hash_elsewhere(uint64_t seed)
{
    char command[128];
    uint64_t hash = 0;
    snprintf(command, sizeof command, "/proc/%ld/exe --hash %" PRIu64, (long)getpid(), seed);
    FILE *answer = popen(command, "r");
    if (answer == NULL || fscanf(answer, "%" SCNx64, &hash) != 1) hash = 0;
    if (answer != NULL) pclose(answer);
    return hash;
}

static int schedule_run_seeds(uint64_t first, uint64_t count)
{
    schedule_counts counts = {0};
    uint64_t failed = 0, steps = 0, unlike = 0;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint64_t i = 0; i < count; i++) {
        const schedule_try try = {.seed = first + i};
        schedule_outcome outcome = schedule_store_try(&try);
        steps += outcome.steps;
        if (!outcome.passed) failed++;
        schedule_counts_add(&counts, &outcome.counts);
        if (outcome.passed && i < SCHEDULE_REPEATED &&
            schedule_hash_elsewhere(try.seed) != outcome.hash) {
            fprintf(stderr, "seed %" PRIu64 " is not the same run twice\n", try.seed);
            unlike++;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("seeds=%" PRIu64 " failed=%" PRIu64 " unlike=%" PRIu64 " steps=%" PRIu64
           " seeds_per_s=%.1f ",
           count, failed, unlike, steps, (double)count / seconds);
    printf("puts=%" PRIu64 " refused=%" PRIu64 " busy=%" PRIu64 " hits=%" PRIu64
           " staged_hits=%" PRIu64 " shared_reads=%" PRIu64 " misses=%" PRIu64 " timeouts=%" PRIu64
           " promotions=%" PRIu64 " demotions=%" PRIu64 " evictions=%" PRIu64 " aborted=%" PRIu64
           " copies=%" PRIu64 " persisted=%" PRIu64 " recovered=%" PRIu64 " load_failures=%" PRIu64
           " failed_operations=%" PRIu64 " quarantined=%" PRIu64 " readmitted=%" PRIu64
           " device_changes=%" PRIu64 " trims=%" PRIu64 " outlived=%" PRIu64 " kills=%" PRIu64
           " batches=%" PRIu64 "\n",
           counts.puts, counts.refused, counts.busy, counts.hits, counts.staged_hits,
           counts.shared_reads, counts.misses, counts.timeouts, counts.promotions, counts.demotions,
           counts.evictions, counts.aborted, counts.copies, counts.persisted, counts.recovered,
           counts.load_failures, counts.failed_operations, counts.quarantined, counts.readmitted,
           counts.device_changes, counts.trims, counts.outlived, counts.kills, counts.batches);
    bool covered = count < SCHEDULE_SEEDS || schedule_judge_counts(&counts) == 0;
    return failed == 0 && unlike == 0 && covered ? 0 : 1;
}

int main(int argc, char **argv)
{
    uint64_t first = 1, count = SCHEDULE_SEEDS;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t number = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seeds") == 0) {
            count = number;
        } else if (strcmp(argv[i], "--first") == 0) {
            first = number;
        } else if (strcmp(argv[i], "--seed") == 0 || strcmp(argv[i], "--hash") == 0) {
            const schedule_try try = {.seed = number, .print_log = argv[i][2] == 's'};
            schedule_outcome outcome = schedule_store_try(&try);
            printf("%016" PRIx64 "\n", outcome.hash);
            return outcome.passed ? 0 : 1;
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
    }
    return schedule_run_seeds(first, count);
}
