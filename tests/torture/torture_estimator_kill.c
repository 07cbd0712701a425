/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_estimator_kill.c - a process that measures is killed at arbitrary points; the profile
 * stays sound, keeps what was complete, and can be measured on. A second part fails every n-th
 * allocation of SQLite.
 */
#include "cases.h"
#include "failing_sqlite.h"

#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

static char folder[64];
static char path[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "estimator-kill-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/profile.db", folder);
    return 0;
}

/* A killed maker may leave its draft behind; nothing else may be there. */
static int remove_folder(void **state)
{
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "rm -f %s/profile.db*", folder);
    return system(command) != 0 || rmdir(folder) != 0;
}

static kvt_status measure(kvt_profile *profile, uint64_t rate, kvt_profile_progress *progress,
                          void *context)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "disk",
                                .backend = "sim",
                                .capacity_bytes = 1u << 24,
                                .read_bytes_per_s = rate,
                                .write_bytes_per_s = rate,
                                .latency_ns = 1000};
    kvt_profile_request request = {.struct_size = sizeof request,
                                   .repetitions = 1,
                                   .progress = progress,
                                   .progress_context = context};
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(&config, &device, NULL, 0);
    if (status != KVT_OK) return status;
    status = kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 0, &request);
    kvt_device_close(device);
    return status;
}

/* Dies by SIGKILL in the middle of the n-th point, without any clean-up. */
static bool die_at(void *context, double done, const char *what)
{
    int *calls_left = context;
    (void)done;
    (void)what;
    if ((*calls_left)-- == 0) raise(SIGKILL);
    return true;
}

static void run_and_kill(int calls)
{
    int result = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_profile *profile = NULL;
        if (kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0) != KVT_OK) _exit(1);
        if (measure(profile, 2000000000, die_at, &calls) != KVT_OK) _exit(2);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
}

static size_t count_points(kvt_profile *profile)
{
    kvt_device_point point;
    size_t count = 0;
    while (kvt_profile_point_at(profile, "disk", count, &point) == KVT_OK)
        count++;
    return count;
}

static kvt_profile *reopen(uint32_t flags)
{
    char message[256];
    kvt_profile *profile = NULL;
    kvt_status status = kvt_profile_open(path, flags, &profile, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return profile;
}

TEST_ALL(make_folder, remove_folder);

/* Killed at the start of point n: exactly the points before it are there. Reports come between
 * points and, when a machine is slow, inside them too, so n is an upper bound. */
TEST(killed_runs_leave_whole_points)
{
    for (int calls = 0; calls < 20; calls += 3) {
        kvt_device_curve curve;
        run_and_kill(calls);
        kvt_profile *profile = reopen(KVT_PROFILE_READ);
        size_t points = count_points(profile);
        assert_true(points <= (size_t)calls);
        assert_int_equal(kvt_profile_device(profile, "disk", &curve),
                         points > 0 ? KVT_OK : KVT_MISS);
        kvt_profile_close(profile);
    }
    kvt_profile *profile = reopen(KVT_PROFILE_WRITE);
    assert_ok(measure(profile, 1000000000, NULL, NULL));
    kvt_profile_close(profile);
    run_and_kill(18);
    kvt_device_curve curve;
    profile = reopen(KVT_PROFILE_READ);
    assert_int_equal(count_points(profile), 20);
    assert_ok(kvt_profile_device(profile, "disk", &curve));
    assert_true(curve.read.bytes_per_s < 1.1e9); /* the complete run, not the later killed one */
    kvt_profile_close(profile);
}

/* Killed by a clock instead, at places that no callback chooses, making included. */
TEST(killed_anywhere_stays_sound)
{
    for (int round = 0; round < 30; round++) {
        const struct timespec wait = {0, 200000L + 700000L * round};
        const bool fresh = round % 3 == 0;
        int result = 0;
        if (fresh) assert_int_equal(remove_folder(NULL), 0);
        if (fresh) assert_int_equal(make_folder(NULL), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            kvt_profile *profile = NULL;
            if (kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0) != KVT_OK) _exit(1);
            for (;;) {
                if (measure(profile, 2000000000, NULL, NULL) != KVT_OK) _exit(2);
            }
        }
        nanosleep(&wait, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFSIGNALED(result));
        char message[256];
        kvt_profile *profile = NULL;
        kvt_status status =
            kvt_profile_open(path, KVT_PROFILE_READ, &profile, message, sizeof message);
        if (status != KVT_OK && status != KVT_MISS) fail_msg("round %d: %s", round, message);
        if (status == KVT_OK) (void)count_points(profile);
        kvt_profile_close(profile);
        kvt_profile_close(reopen(KVT_PROFILE_WRITE));
    }
}

/* ---- allocations that fail ---- */

/* From the n-th allocation on all fail, for growing n, until a whole session gets through. */
TEST(failed_allocations_are_reported)
{
    long n = 1, failures = 0;
    for (;; n += 1 + n / 16) {
        kvt_profile *profile = NULL;
        kvt_device_curve curve = {0};
        allocations_left = n;
        kvt_status status = kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0);
        if (status == KVT_OK) status = measure(profile, 1000000000, NULL, NULL);
        if (status == KVT_OK) status = kvt_profile_device(profile, "disk", &curve);
        bool through = allocations_left > 0;
        allocations_left = -1;
        kvt_profile_close(profile);
        if (through) assert_ok(status);
        if (through) break;
        if (status != KVT_OK) failures++;
        assert_true(n < 100000000);
        kvt_profile_close(reopen(KVT_PROFILE_WRITE));
    }
    assert_true(failures > 10);
}

int main(void)
{
    if (!failing_sqlite_install()) return 1;
    return tests_run();
}
