/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_basis.c - a basis that is added, used, removed or read at an open, while the nth
 * call that changes a file is the last one of the process, or fails, or finds the disk full, or the
 * nth allocation fails. What must hold afterwards: no wrong bytes, a store that opens, a basis that
 * is whole or absent, every entry that was flushed, and a store that takes basis and entries again.
 *
 * The calls are counted here, in front of the C library, which SQLite uses too; allocations are
 * those of the program's own objects. A sweep goes on until a run ends before its nth call.
 */
#include "basis_site.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { ENTRIES = 3 };

/* ---- the nth call ---- */

typedef enum step_kind { STEP_KILL, STEP_FAIL, STEP_FULL, STEP_ALLOCATE, STEP_KINDS } step_kind;

static const char *const step_names[STEP_KINDS] = {"kill", "fail", "full disk", "allocation"};

static step_kind step_does;
static long step_at; /* 0: nothing is counted */
static _Atomic long steps;

/* Whether a call of a kind that counts is the one. */
static bool step_is_due(bool counts)
{
    return step_at != 0 && counts && atomic_fetch_add(&steps, 1) + 1 == step_at;
}

/* True when this call, which changes a file, is the one that fails. */
static bool step_fails(void)
{
    if (!step_is_due(step_does != STEP_ALLOCATE)) return false;
    if (step_does == STEP_KILL) {
        (void)kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
    errno = step_does == STEP_FULL ? ENOSPC : EIO;
    return true;
}

/* Syncs change nothing that a kill can show, but they fail. */
static bool sync_fails(void)
{
    return step_does == STEP_FAIL && step_fails();
}

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
STEP(int, unlink, (const char *path), SYS_unlink, path)
STEP(int, rename, (const char *from, const char *to), SYS_rename, from, to)

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

#define ALLOCATION(type_and_name, real, parameters, arguments)                                     \
    void *real parameters;                                                                         \
    void *type_and_name parameters;                                                                \
    void *type_and_name parameters                                                                 \
    {                                                                                              \
        return step_is_due(step_does == STEP_ALLOCATE) ? NULL : real arguments;                    \
    }

ALLOCATION(__wrap_malloc, __real_malloc, (size_t bytes), (bytes))
ALLOCATION(__wrap_calloc, __real_calloc, (size_t count, size_t bytes), (count, bytes))
ALLOCATION(__wrap_realloc, __real_realloc, (void *old, size_t bytes), (old, bytes))
ALLOCATION(__wrap_aligned_alloc, __real_aligned_alloc, (size_t align, size_t bytes), (align, bytes))

/* ---- runs in a child ---- */

static basis_site site;

/* What a child had been told of when it ended. */
typedef struct run_end {
    bool added, flushed, removed, killed, counted; /* counted: it came to its nth call */
} run_end;

typedef void run_child(int pipe_end);

static void tell(int pipe_end, char what)
{
    const long at = step_at;
    step_at = 0;
    if (write(pipe_end, &what, 1) != 1) _exit(9);
    step_at = at;
}

/* A get gives right bytes or none; a basis that is there is enough. */
static void check_gets(kvt_store *store, bool present, bool flushed)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_status status = basis_site_get(&site, store, i, NULL);
        if (status == KVT_E_CORRUPT) _exit(10);
        if (status == KVT_E_MISMATCH && present) _exit(11);
        if (status != KVT_OK && flushed) _exit(12);
        if (status != KVT_OK && status != KVT_MISS && status != KVT_E_MISMATCH &&
            status != KVT_E_MEMORY)
            _exit(13);
    }
}

/* Adds the basis, puts, and flushes; a call that fails is made once more without faults. */
static void child_uses(int pipe_end)
{
    kvt_store *store = NULL;
    const long at = step_at;
    step_at = 0;
    if (basis_site_open(&site, BASIS_SITE_CODES, &store, NULL, 0) < 0) _exit(2);
    step_at = at;
    kvt_status status = kvt_basis_add(store, site.made.object, site.made.bytes);
    if (status == KVT_OK) {
        tell(pipe_end, 'a');
    } else {
        step_at = 0;
        status = kvt_basis_add(store, site.made.object, site.made.bytes);
        if (status != KVT_OK && status != KVT_EXISTS) _exit(3);
        step_at = at;
    }
    for (uint32_t i = 0; i < ENTRIES; i++)
        (void)!basis_site_put(store, i);
    const bool flushed = kvt_flush(store) == KVT_OK;
    bool all = flushed;
    step_at = 0;
    for (uint32_t i = 0; i < ENTRIES; i++)
        all = basis_site_get(&site, store, i, NULL) == KVT_OK && all;
    if (all) tell(pipe_end, 'f');
    check_gets(store, true, false);
    kvt_close(store);
}

/* Removes the basis that nothing needs; the file is there. */
static void child_removes(int pipe_end)
{
    kvt_store *store = NULL;
    const long at = step_at;
    step_at = 0;
    if (basis_site_open(&site, BASIS_SITE_BARE, &store, NULL, 0) < 0) _exit(2);
    step_at = at;
    if (kvt_basis_remove(store, site.made.basis.hash) == KVT_OK) tell(pipe_end, 'r');
    step_at = 0;
    kvt_close(store);
}

/* Opens a store that has the basis and entries. */
static void child_opens(int pipe_end)
{
    kvt_store *store = NULL;
    const kvt_status status = basis_site_open(&site, BASIS_SITE_CODES, &store, NULL, 0);
    step_at = 0;
    if (status < 0) return;
    kvt_basis_info info = {.struct_size = sizeof info};
    const bool present = kvt_basis_at(store, 0, &info) == KVT_OK && info.state == KVT_BASIS_PRESENT;
    check_gets(store, present, false);
    /* A basis that lacked memory comes back by a call. */
    const kvt_status added = kvt_basis_add(store, site.made.object, site.made.bytes);
    if (added != (present ? KVT_EXISTS : KVT_OK)) _exit(14);
    tell(pipe_end, 'a');
    kvt_close(store);
}

static run_end run_once(run_child *child, step_kind does, long at)
{
    int ends[2], status;
    char what;
    run_end end = {.killed = false};
    assert_int_equal(pipe(ends), 0);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        close(ends[0]);
        step_does = does;
        step_at = at;
        child(ends[1]);
        _exit(atomic_load(&steps) < at ? 1 : 0);
    }
    close(ends[1]);
    while (read(ends[0], &what, 1) == 1) {
        end.added |= what == 'a';
        end.flushed |= what == 'f';
        end.removed |= what == 'r';
    }
    close(ends[0]);
    assert_int_equal(waitpid(process, &status, 0), process);
    end.killed = WIFSIGNALED(status);
    if (end.killed) assert_int_equal(WTERMSIG(status), SIGKILL);
    if (!end.killed && WEXITSTATUS(status) > 1)
        fail_msg("%s %ld: the run ends with %d", step_names[does], at, WEXITSTATUS(status));
    end.counted = end.killed || WEXITSTATUS(status) == 0;
    return end;
}

/* ---- after a run ---- */

static void look(const run_end *end, const char *name, long at)
{
    kvt_basis_info info = {.struct_size = sizeof info};
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED) /* the kernel takes the ring of a killed process down */
        status = basis_site_open(&site, BASIS_SITE_CODES, &store, message, sizeof message);
    if (status < 0) fail_msg("%s %ld: the next open: %s", name, at, message);
    const bool listed = kvt_basis_at(store, 0, &info) == KVT_OK;
    if (listed && info.state == KVT_BASIS_DAMAGED) fail_msg("%s %ld: damaged", name, at);
    const bool present = listed && info.state == KVT_BASIS_PRESENT;
    if (end->added && !end->removed) assert_true(present);
    if (end->removed) assert_false(present);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        status = basis_site_get(&site, store, i, NULL);
        if (end->flushed) assert_int_equal(status, KVT_OK);
        assert_true(status == KVT_OK || status == KVT_MISS ||
                    (status == KVT_E_MISMATCH && !present));
    }
    status = kvt_basis_add(store, site.made.object, site.made.bytes);
    assert_int_equal(status, present ? KVT_EXISTS : KVT_OK);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_true(basis_site_put(store, i) >= 0);
        assert_int_equal(basis_site_get(&site, store, i, NULL), KVT_OK);
    }
    kvt_close(store);
}

static void empty_folder(void)
{
    char command[256];
    (void)snprintf(command, sizeof command, "rm -f %s/ssd %s/catalog*", site.folder, site.folder);
    assert_int_equal(system(command), 0);
}

static void sweep(run_child *child, bool with_basis, bool with_entries, long least)
{
    for (int kind = 0; kind < STEP_KINDS; kind++) {
        bool counted = true;
        long at = 1;
        for (; counted; at++) {
            empty_folder();
            if (with_basis) kvt_close(basis_site_filled(&site, with_entries ? ENTRIES : 0));
            run_end end = run_once(child, (step_kind)kind, at);
            end.flushed |= with_entries;
            look(&end, step_names[kind], at);
            counted = end.counted;
        }
        print_message("%s: %ld calls\n", step_names[kind], at - 2);
        assert_true(at - 2 >= least);
    }
}

static void a_basis_is_added_and_used(void **state)
{
    (void)state;
    sweep(child_uses, false, false, 5);
}

static void a_basis_is_removed(void **state)
{
    (void)state;
    sweep(child_removes, true, false, 0);
}

/* The nth allocation of an open alone: torture_store_open fails its files. */
static void a_basis_is_read_at_open(void **state)
{
    (void)state;
    bool counted = true;
    long at = 1;
    empty_folder();
    kvt_close(basis_site_filled(&site, ENTRIES));
    for (; counted; at += 1 + at / 24) {
        run_end end = run_once(child_opens, STEP_ALLOCATE, at);
        end.flushed = true;
        look(&end, "open, allocation", at);
        counted = end.counted;
    }
    print_message("up to %ld allocations\n", at);
    assert_true(at > 20);
}

static int make_site(void **state)
{
    (void)state;
    basis_site_make(&site);
    return 0;
}

static int remove_site(void **state)
{
    (void)state;
    basis_site_remove(&site);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_basis_is_added_and_used),
        cmocka_unit_test(a_basis_is_removed),
        cmocka_unit_test(a_basis_is_read_at_open),
    };
    return cmocka_run_group_tests(tests, make_site, remove_site);
}
