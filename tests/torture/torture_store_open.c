/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_open.c - an open that is cut short at any of its steps, or of which any step fails,
 * is taken up by the next one.
 *
 * The calls that change a file are counted here, in front of the C library: a child is killed
 * before its nth one, or its nth one fails, for every n until the open ends by itself. What a
 * process that is killed leaves behind changes at no other moment.
 */
#include "estimator/profile/profile.h"
#include "store_support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define OPEN_ENTRIES 3u
#define OPEN_MEMBERS 2u

/* ---- the nth call ---- */

typedef enum step_kind { STEP_COUNT, STEP_KILL, STEP_FAIL } step_kind;

static step_kind step_does = STEP_COUNT;
static long step_at;
static _Atomic long steps;

/* True when this call is the one that fails. */
static bool step_fails(void)
{
    if (step_at == 0 || atomic_fetch_add(&steps, 1) + 1 != step_at) return false;
    if (step_does == STEP_KILL) {
        (void)kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
    errno = EIO;
    return step_does == STEP_FAIL;
}

/* Syncs change nothing that a kill can show, but they fail. */
static bool sync_fails(void)
{
    return step_does == STEP_FAIL && step_fails();
}

/* SQLite, in a library of its own, calls these too. */
#pragma GCC visibility push(default)

#define STEP(type, name, parameters, ...)                                                          \
    type name parameters;                                                                          \
    type name parameters                                                                           \
    {                                                                                              \
        return step_fails() ? (type)-1 : (type)syscall(__VA_ARGS__);                               \
    }

STEP(ssize_t, write, (int fd, const void *data, size_t bytes), SYS_write, fd, data, bytes)
STEP(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t at), SYS_pwrite64, fd, data,
     bytes, at)
STEP(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off64_t at), SYS_pwrite64, fd,
     data, bytes, at)
STEP(int, ftruncate, (int fd, off_t bytes), SYS_ftruncate, fd, bytes)
STEP(int, ftruncate64, (int fd, off64_t bytes), SYS_ftruncate, fd, bytes)
STEP(int, fallocate, (int fd, int mode, off_t at, off_t bytes), SYS_fallocate, fd, mode, at, bytes)
STEP(int, fallocate64, (int fd, int mode, off64_t at, off64_t bytes), SYS_fallocate, fd, mode, at,
     bytes)
STEP(int, fchmod, (int fd, mode_t mode), SYS_fchmod, fd, mode)
STEP(int, unlink, (const char *path), SYS_unlink, path)
STEP(int, rename, (const char *from, const char *to), SYS_rename, from, to)
STEP(int, link, (const char *from, const char *to), SYS_link, from, to)
STEP(int, renameat2, (int from_at, const char *from, int to_at, const char *to, unsigned flags),
     SYS_renameat2, from_at, from, to_at, to, flags)

int fsync(int fd)
{
    return sync_fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_fails() ? -1 : (int)syscall(SYS_fdatasync, fd);
}

static int open_step(const char *path, int flags, mode_t mode)
{
    if ((flags & O_CREAT) != 0 && step_fails()) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    return open_step(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    return open_step(path, flags, mode);
}

#pragma GCC visibility pop

/* ---- the store ---- */

typedef struct open_site {
    char folder[64];
    char catalog[96];
    char profile[96];
    char paths[OPEN_MEMBERS][96];
    kvt_device_config devices[OPEN_MEMBERS];
    kvt_store_options options;
} open_site;

/* A profile, so that nothing is measured; the same for all. */
static void open_make_profile(const char *path)
{
    char csv[96];
    kvt_profile *profile;
    uint64_t rows;
    snprintf(csv, sizeof csv, "%s.csv", path);
    FILE *file = fopen(csv, "w");
    assert_non_null(file);
    fputs("[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
          "ssd0,ssd,read,1e9,0\nssd0,ssd,write,1e9,0\n"
          "ssd1,ssd,read,1e9,0\nssd1,ssd,write,1e9,0\n",
          file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_OK);
    assert_int_equal(kvt_profile_import(profile, csv, "s", NULL, &rows, NULL, 0), KVT_OK);
    kvt_profile_close(profile);
}

static void open_prepare(open_site *site, const char *profile)
{
    static const char *const names[OPEN_MEMBERS] = {"ssd0", "ssd1"};
    memset(site, 0, sizeof *site);
    support_make_folder(site->folder, sizeof site->folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    snprintf(site->profile, sizeof site->profile, "%s", profile);
    kvt_store_options_init(&site->options);
    site->options.put_staging_bytes = 0; /* a put says how its write went */
    site->options.staging_bytes = 4 << 20;
    site->options.policy = "lru";
    site->options.lossless = false;
    site->options.learn = false;
    site->options.tick_seconds = 0;
    site->options.catalog_path = site->catalog;
    site->options.profile_path = site->profile;
    site->options.profile_foreign = true;
    for (uint32_t i = 0; i < OPEN_MEMBERS; i++) {
        snprintf(site->paths[i], sizeof site->paths[i], "%s/ssd%u", site->folder, i);
        site->devices[i] = support_file_config(names[i], site->paths[i], 1 << 20);
        site->devices[i].sparse = i == 1;
        site->devices[i].synchronous = true;
    }
    site->options.tiers[KVT_TIER_SSD].devices = site->devices;
    site->options.tiers[KVT_TIER_SSD].device_count = OPEN_MEMBERS;
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
}

static kvt_store *open_again(open_site *site, long step)
{
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_status status = kvt_open(&site->options, &store, message, sizeof message);
    if (status != KVT_OK)
        fail_msg("step %ld: the next open: %s: %s", step, kvt_status_name(status), message);
    return store;
}

static void open_fill(open_site *site, long step)
{
    kvt_store *store = open_again(site, step);
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        assert_int_equal(support_put(store, i), KVT_OK);
        assert_int_equal(support_get(store, i, NULL), KVT_OK);
    }
    assert_int_equal(kvt_flush(store), KVT_OK);
    kvt_close(store);
}

static void open_expect_all(open_site *site, long step)
{
    kvt_store *store = open_again(site, step);
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        kvt_status status = support_get(store, i, NULL);
        if (status != KVT_OK) fail_msg("step %ld: entry %u: %s", step, i, kvt_status_name(status));
    }
    assert_int_equal(support_stats(store).recovered, OPEN_ENTRIES);
    kvt_close(store);
}

/* An open whose nth step is its last, or fails. False: it had fewer, or passed over the failure and
 * went to its end. */
static bool open_cut(open_site *site, step_kind does, long step)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_store *store = NULL;
        step_does = does;
        step_at = step;
        kvt_status opened = kvt_open(&site->options, &store, NULL, 0);
        long taken = atomic_load(&steps);
        step_at = 0;
        if (opened == KVT_OK && does == STEP_FAIL) kvt_close(store);
        _exit(taken < step ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) assert_int_equal(WTERMSIG(status), SIGKILL);
    return WIFSIGNALED(status) || WEXITSTATUS(status) == 0;
}

/* filled: the open that is cut short is not the first one. */
static void open_sweep(step_kind does, bool filled)
{
    char folder[64], profile[96];
    support_make_folder(folder, sizeof folder);
    snprintf(profile, sizeof profile, "%s/profile.db", folder);
    open_make_profile(profile);
    long step = 1;
    for (bool cut = true; cut; step++) {
        open_site site;
        open_prepare(&site, profile);
        if (filled) open_fill(&site, step);
        cut = open_cut(&site, does, step);
        if (filled) {
            open_expect_all(&site, step);
        } else {
            open_fill(&site, step);
        }
        support_remove_folder(site.folder);
    }
    print_message("%ld steps\n", step - 2);
    assert_true(step > (filled ? 10 : 20));
    support_remove_folder(folder);
}

static void test_killed_first_open(void **state)
{
    (void)state;
    open_sweep(STEP_KILL, false);
}

static void test_failed_first_open(void **state)
{
    (void)state;
    open_sweep(STEP_FAIL, false);
}

static void test_killed_later_open(void **state)
{
    (void)state;
    open_sweep(STEP_KILL, true);
}

static void test_failed_later_open(void **state)
{
    (void)state;
    open_sweep(STEP_FAIL, true);
}

int main(void)
{
    /* Hundreds of opens with their syncs, which a kill of the process alone does not need. */
    if (chdir("/dev/shm") != 0) print_message("no /dev/shm: every sync is the disk's\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_first_open),
        cmocka_unit_test(test_failed_first_open),
        cmocka_unit_test(test_killed_later_open),
        cmocka_unit_test(test_failed_later_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
