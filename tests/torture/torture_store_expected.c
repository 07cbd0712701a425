/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_expected.c - kills a store at random instants and at named kill points, and says
 * from a model in another process what may come back (expected.h).
 *
 *     torture_store_expected [--cycles N] [--seed S] [--jobs J] [--series K] [--lossy 0|1]
 *                            [--encrypted 0|1] [--folder DIR]
 *
 * One cycle is one life of a store that ends by a kill or a close. A series is a fresh folder with
 * up to SERIES_LIVES lives; its policy, devices and sizes follow from the seed. --series runs one
 * alone. Prints one line of key=value pairs; exit 1 when anything was lost, wrong, or not opened.
 */
#include "codecs/record.h"
#include "expected.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SERIES_LIVES = 10, HANG_MS = 120000 };

typedef struct run_options {
    uint32_t cycles;
    uint32_t jobs;
    uint64_t seed;
    long series;    /* -1 = all */
    bool lossy;     /* every series, not a third of them */
    bool encrypted; /* the same, of a quarter */
    const char *folder;
    const char *program;
} run_options;

/* How a life is to end. */
typedef enum ending { END_RANDOM, END_POINT, END_CLOSE, END_IN_OPEN } ending;

typedef struct lane {
    const run_options *options;
    expected_totals *totals;
    expected_model *model;
    expected_series series;
    uint32_t number;      /* of the series */
    bool faults_in_doubt; /* a life with faults has ended since the last look */
    bool broken;
} lane;

static uint64_t run_mix(uint64_t seed, uint64_t number)
{
    uint64_t state = seed * UINT64_C(0x100000001b3) + number;
    return expected_random(&state);
}

static void *run_share(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

/* ---- what a series is ---- */

static const char *run_policy(uint64_t choice)
{
    size_t count = 0;
    while (kvt_policy_name_get(count) != NULL)
        count++;
    return kvt_policy_name_get(choice % count);
}

static void run_fill_series(lane *self)
{
    static const uint64_t member_kib[] = {256, 512, 1024, 2048};
    static const uint64_t dram_kib[] = {64, 128, 256, 512};
    static const uint32_t units[] = {4096, 16384, 0};
    expected_series *series = &self->series;
    uint64_t seed = run_mix(self->options->seed, self->number), random = seed;
    const char *place = self->options->folder;
    memset(series, 0, sizeof *series);
    series->seed = seed;
    /* A policy that keeps nothing gets a series in sixteen. */
    series->policy = run_policy(self->number);
    if (strcmp(series->policy, "none") == 0 && self->number % 16 != 0) series->policy = "utility";
    if (place == NULL)
        place = access("/dev/shm", W_OK) == 0 && self->number % 5 != 0 ? "/dev/shm" : ".";
    snprintf(series->folder, sizeof series->folder, "%s/kvt-test-expected-%llx-%u-%d", place,
             (unsigned long long)self->options->seed, self->number, (int)getpid());
    series->threads = 4 + (uint32_t)(expected_random(&random) % 5);
    series->members = 2 + (uint32_t)(expected_random(&random) % 3);
    if (self->number % 8 == 7) series->members = 1;
    series->member_bytes = member_kib[expected_random(&random) % 4] << 10;
    series->dram_bytes = dram_kib[expected_random(&random) % 4] << 10;
    if (expected_random(&random) % 6 == 0) series->dram_bytes = 0;
    series->unit_bytes = units[expected_random(&random) % 3];
    if (series->unit_bytes == 0) series->unit_bytes = 8192;
    series->striping = (tiers_striping)(expected_random(&random) % 3);
    series->holes = (kvt_hole_mode)(expected_random(&random) % 2);
    series->variant.codec = expected_random(&random) % 2 ? KVT_CODEC_RAW : KVT_CODEC_LOSSLESS;
    if (series->variant.codec == KVT_CODEC_LOSSLESS) series->variant.mode = KVT_LOSSLESS_DENSE;
    series->lossy = self->options->lossy || self->number % 3 == 1;
    series->tick_seconds = 0.001 * (double)(1 + expected_random(&random) % 20);
    series->sparse = expected_random(&random) % 2;
    series->synchronous_members = (uint32_t)expected_random(&random) % 32;
    series->encrypted = self->options->encrypted || self->number % 4 == 2;
    if (series->encrypted) series->member_bytes += EXPECTED_SEAL_BYTES;
}

/* ---- one life, seen by the parent ---- */

static void run_nap(uint64_t microseconds)
{
    struct timespec time = {.tv_sec = (time_t)(microseconds / 1000000),
                            .tv_nsec = (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&time, &time) != 0)
        continue;
}

/* Another program looks into the catalog while the store has it open: nothing may come of it. */
static void run_poke(lane *self)
{
    char path[240];
    sqlite3 *database = NULL;
    snprintf(path, sizeof path, "%s/catalog.db", self->series.folder);
    if (sqlite3_open_v2(path, &database, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(database, 50);
        (void)sqlite3_exec(database, "SELECT count(*) FROM entry", NULL, NULL, NULL);
    }
    sqlite3_close(database);
    atomic_fetch_add(&self->totals->pokes, 1);
}

/* Waits for a byte or the end of the pipe; 0 = the worker is dead, -1 = it hangs. */
static int run_hear(int ear, int limit_ms)
{
    char byte;
    struct pollfd wait = {.fd = ear, .events = POLLIN};
    int ready = poll(&wait, 1, limit_ms);
    if (ready <= 0) return -1;
    return read(ear, &byte, 1) == 1 ? 1 : 0;
}

/* Points of a first open are passed in the first life of a series alone. */
static bool run_is_first(const char *point)
{
    return strncmp(point, "first open:", 11) == 0 || strncmp(point, "member:", 7) == 0;
}

/* The n-th point of the first life, or of the later ones, in turn; count = none of them exists. */
static uint32_t run_pick_point(bool first, uint64_t turn)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < expected_point_count(); i++)
        count += run_is_first(__start_kvt_kill_points[i]) == first;
    uint64_t left = count == 0 ? 0 : turn % count;
    for (uint32_t i = 0; i < expected_point_count(); i++) {
        if (run_is_first(__start_kvt_kill_points[i]) != first) continue;
        if (left-- == 0) return i;
    }
    return expected_point_count();
}

/* One point after the other, so that every one has its turn. */
static void run_set_point(lane *self, uint32_t life, uint64_t *random, expected_life *plan)
{
    uint64_t turn = life == 0 ? self->number : (uint64_t)self->number * SERIES_LIVES / 2 + life / 2;
    uint32_t point = run_pick_point(life == 0, turn);
    if (point == expected_point_count()) return;
    uint64_t passes = expected_random(random) % 2 == 0 ? 1 + expected_random(random) % 40 : 1;
    plan->change_devices = strncmp(__start_kvt_kill_points[point], "device", 6) == 0;
    plan->change_basis = strncmp(__start_kvt_kill_points[point], "basis", 5) == 0;
    if (plan->change_devices || plan->change_basis || life == 0) passes = 1 + passes % 2;
    if (strncmp(__start_kvt_kill_points[point], "first", 5) == 0) passes = 1;
    atomic_store(&self->model->passes, (int)passes);
    atomic_store(&self->model->point, point + 1);
}

/* After the look: lets the worker work, and ends it as decided. */
static void run_end(lane *self, pid_t worker, ending end, uint64_t *random, int ear)
{
    uint64_t work_us = 2000 + expected_random(random) % 80000;
    if (expected_random(random) % 3 == 0) {
        run_nap(work_us / 2);
        run_poke(self);
        work_us /= 2;
    }
    if (end == END_RANDOM) {
        run_nap(work_us);
        kill(worker, SIGKILL);
        atomic_fetch_add(&self->totals->kills_random, 1);
        return;
    }
    struct pollfd wait = {.fd = ear, .events = POLLIN};
    (void)poll(&wait, 1, (int)(work_us / 1000));
    atomic_store(&self->model->stop, true);
    if (run_hear(ear, HANG_MS) == -1) {
        expected_report(&self->totals->hangs, "HANG: the close of series %u does not end",
                        self->number);
        kill(worker, SIGKILL);
        self->broken = true;
    }
}

static void run_bury(lane *self, pid_t worker, bool open_fault, uint32_t life)
{
    int status = 0;
    expected_totals *totals = self->totals;
    while (waitpid(worker, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        atomic_fetch_add(&totals->closes, 1);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == EXPECTED_EXIT_OPEN) {
        expected_report(
            &totals->failed_reopens, "FAILED REOPEN: series %u life %u: %s: %s", self->number, life,
            kvt_status_name((kvt_status)atomic_load(&self->model->status)), self->model->message);
        self->broken = true;
    } else if (!(open_fault && WIFEXITED(status) && WEXITSTATUS(status) == EXPECTED_EXIT_REFUSED)) {
        expected_report(&totals->crashes, "CRASH: series %u life %u ended with %s %d", self->number,
                        life, WIFSIGNALED(status) ? "signal" : "exit",
                        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        self->broken = true;
    }
}

static ending run_choose_end(uint64_t *random, uint32_t life)
{
    uint64_t choice = expected_random(random) % 10;
    if (life == 0) return choice < 6 ? END_POINT : choice < 8 ? END_IN_OPEN : END_RANDOM;
    if (life % 2 == 1) return END_POINT;
    if (choice < 1) return END_IN_OPEN;
    return choice < 8 ? END_RANDOM : END_CLOSE;
}

/* With --series: what each life does, before it begins. */
static void run_tell(const lane *self, uint32_t number, ending end, const expected_life *life)
{
    static const char *const ends[] = {"random", "point", "close", "in open"};
    uint32_t point = atomic_load(&self->model->point);
    if (self->options->series < 0) return;
    fprintf(stderr, "life %u: ends %s%s%s%s%s\n", number, ends[end], point == 0 ? "" : " at ",
            point == 0 ? "" : __start_kvt_kill_points[point - 1], life->faults ? ", faults" : "",
            life->open_fault ? ", a fault in open" : "");
}

static void run_life(lane *self, uint32_t number)
{
    uint64_t random = run_mix(self->series.seed, number);
    expected_model *model = self->model;
    expected_life life = {.seed = expected_random(&random)};
    ending end = run_choose_end(&random, number);
    life.faults = expected_random(&random) % 4 == 0;
    life.open_fault = !life.faults && expected_random(&random) % 12 == 0;
    life.skip = (uint32_t)(expected_random(&random) % 40);
    int up[2], down[2];
    if (pipe(up) != 0 || pipe(down) != 0) abort();
    atomic_store(&model->point, 0);
    atomic_store(&model->faulty, life.faults || life.open_fault);
    if (end == END_POINT) run_set_point(self, number, &random, &life);
    run_tell(self, number, end, &life);
    pid_t worker = fork();
    if (worker < 0) abort();
    if (worker == 0) {
        close(up[0]);
        close(down[1]);
        expected_run_life(&self->series, &life, model, self->totals, up[1], down[0]);
    }
    close(up[1]);
    close(down[0]);
    atomic_fetch_add(&self->totals->lives, 1);
    if (end == END_IN_OPEN) {
        run_nap(expected_random(&random) % 120000);
        kill(worker, SIGKILL);
        atomic_fetch_add(&self->totals->kills_random, 1);
    } else {
        int heard = run_hear(up[0], HANG_MS);
        if (heard == 1) {
            expected_judge(model, self->totals, self->faults_in_doubt);
            expected_judge_basis(model, self->totals);
            self->faults_in_doubt = false;
            if (write(down[1], "G", 1) == 1) run_end(self, worker, end, &random, up[0]);
        } else if (heard == -1) {
            expected_report(&self->totals->hangs, "HANG: the open of series %u life %u",
                            self->number, number);
            kill(worker, SIGKILL);
            self->broken = true;
        }
    }
    run_bury(self, worker, life.open_fault, number);
    self->faults_in_doubt |= life.faults || life.open_fault;
    close(up[0]);
    close(down[1]);
}

static uint64_t run_faults(const expected_totals *totals)
{
    return (uint64_t)totals->wrong_bytes + totals->lost_flushed + totals->lost_by_fault +
           totals->failed_reopens + totals->came_back + totals->crashes + totals->hangs +
           totals->odd;
}

static void run_remove(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", folder);
}

static void run_series(lane *self, uint32_t lives)
{
    run_fill_series(self);
    memset(self->model, 0, sizeof *self->model);
    atomic_store(&self->model->members, self->series.members);
    self->faults_in_doubt = false;
    self->broken = false;
    if (mkdir(self->series.folder, 0700) != 0) {
        perror(self->series.folder);
        exit(2);
    }
    if (self->series.lossy) expected_make_ladder(&self->series);
    for (uint32_t i = 0; i < lives && !self->broken; i++)
        run_life(self, i);
    atomic_fetch_add(&self->totals->series, 1);
    if (atomic_load(&self->model->reports) == 0) {
        run_remove(self->series.folder);
        return;
    }
    fprintf(stderr,
            "kept: %s (policy %s, %u members of %llu KiB)\nagain: %s --seed %llu --series %u\n",
            self->series.folder, self->series.policy, self->series.members,
            (unsigned long long)self->series.member_bytes >> 10, self->options->program,
            (unsigned long long)self->options->seed, self->number);
}

/* ---- the run ---- */

static void run_lane(const run_options *options, expected_totals *totals, uint32_t number)
{
    lane self = {.options = options, .totals = totals};
    self.model = run_share(sizeof *self.model);
    expected_attach(self.model, totals);
    if (options->series >= 0) {
        self.number = (uint32_t)options->series;
        run_series(&self, SERIES_LIVES);
        return;
    }
    uint32_t count = (options->cycles + SERIES_LIVES - 1) / SERIES_LIVES;
    for (self.number = number; self.number < count; self.number += options->jobs) {
        uint32_t left = options->cycles - self.number * SERIES_LIVES;
        run_series(&self, left < SERIES_LIVES ? left : SERIES_LIVES);
    }
}

static int run_compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static void run_print_points(const expected_totals *totals, uint32_t *covered_out,
                             uint32_t *kills_out)
{
    *covered_out = *kills_out = 0;
    for (uint32_t i = 0; i < expected_point_count(); i++) {
        bool first = true; /* of its name */
        for (uint32_t j = 0; j < i; j++)
            first &= strcmp(__start_kvt_kill_points[i], __start_kvt_kill_points[j]) != 0;
        *kills_out += totals->killed[i];
        *covered_out += totals->killed[i] != 0;
        if (totals->killed[i] == 0 && first)
            fprintf(stderr, "no kill at: %s (passed %u times)\n", __start_kvt_kill_points[i],
                    totals->reached[i]);
    }
}

static int run_print(const run_options *options, expected_totals *totals)
{
    uint32_t covered, kills;
    uint32_t times = totals->time_count < EXPECTED_TIMES ? totals->time_count : EXPECTED_TIMES;
    run_print_points(totals, &covered, &kills);
    qsort(totals->reopen_us, times, sizeof totals->reopen_us[0], run_compare);
    double p50 = times == 0 ? 0 : totals->reopen_us[times / 2] * 1e-6;
    double most = times == 0 ? 0 : totals->reopen_us[times - 1] * 1e-6;
    printf("seed=%llu cycles=%u series=%u kill_points=%u/%u kills_at_points=%u kills_at_random=%u "
           "closes=%u second_opens=%u catalog_looks=%u device_changes=%u basis_changes=%u "
           "faults_injected=%u "
           "puts=%u gets=%u transform_hits=%u flushes=%u persists=%u persisted_keys=%u checks=%u "
           "wrong_bytes=%u "
           "lost_flushed=%u lost_by_fault=%u "
           "failed_reopens=%u came_back=%u crashes=%u hangs=%u odd=%u open_seconds_p50=%.3f "
           "open_seconds_max=%.3f\n",
           (unsigned long long)options->seed, totals->lives, totals->series, covered,
           expected_point_count(), kills, totals->kills_random, totals->closes,
           totals->opens_refused, totals->pokes, totals->device_changes, totals->basis_changes,
           totals->faults, totals->puts, totals->gets, totals->transform_hits, totals->flushes,
           totals->persists, totals->persisted_keys, totals->checks, totals->wrong_bytes,
           totals->lost_flushed, totals->lost_by_fault, totals->failed_reopens, totals->came_back,
           totals->crashes, totals->hangs, totals->odd, p50, most);
    return run_faults(totals) == 0 ? 0 : 1;
}

static bool run_parse(run_options *options, int count, char **words)
{
    for (int i = 1; i < count; i += 2) {
        if (i + 1 == count) return false;
        char *end = words[i + 1];
        unsigned long long value = strtoull(words[i + 1], &end, 0);
        if (strcmp(words[i], "--folder") == 0) {
            options->folder = words[i + 1];
            continue;
        }
        if (*end != '\0' || end == words[i + 1]) return false;
        if (strcmp(words[i], "--cycles") == 0) {
            options->cycles = (uint32_t)value;
        } else if (strcmp(words[i], "--seed") == 0) {
            options->seed = value;
        } else if (strcmp(words[i], "--jobs") == 0 && value > 0) {
            options->jobs = (uint32_t)value;
        } else if (strcmp(words[i], "--series") == 0) {
            options->series = (long)value;
        } else if (strcmp(words[i], "--encrypted") == 0 && value <= 1) {
            options->encrypted = value == 1;
        } else if (strcmp(words[i], "--lossy") == 0 && value <= 1) {
            options->lossy = value == 1;
        } else {
            return false;
        }
    }
    return true;
}

int main(int count, char **words)
{
    run_options options = {.cycles = 200, .jobs = 2, .seed = 1, .series = -1, .program = words[0]};
    if (!run_parse(&options, count, words)) {
        fprintf(stderr,
                "usage: %s [--cycles N] [--seed S] [--jobs J] [--series K] [--lossy 0|1] "
                "[--encrypted 0|1] "
                "[--folder DIR]\n",
                words[0]);
        return 2;
    }
    if (options.series >= 0) options.jobs = 1;
    signal(SIGPIPE, SIG_IGN); /* a worker that is told to go on may be dead */
    expected_totals *totals = run_share(sizeof *totals);
    bool died = false;
    for (uint32_t i = 0; i < options.jobs; i++) {
        pid_t child = fork();
        if (child < 0) abort();
        if (child == 0) {
            run_lane(&options, totals, i);
            exit(0);
        }
    }
    for (uint32_t i = 0; i < options.jobs; i++) {
        int status = 0;
        if (wait(&status) < 0) abort();
        died |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    int result = run_print(&options, totals);
    return died ? 1 : result;
}
