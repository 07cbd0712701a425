/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_holes.c - a client punches a hole into a region of huge pages, and the pool has none
 * left for it: the session ends, and the server goes on. Skipped where no huge page can be had.
 */
#include "serve_site.h"

#include "serve/server/region_guard.h"

#include <errno.h>
#include <kvterrace/connect.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/wait.h>

#define HUGE_BYTES (2 << 20)
#define PAGES      4

static long pool_before = -1;

/* The pool of huge pages, or -1; sets it where `pages` is not below 0. */
static long huge_pool(long pages)
{
    static const char name[] = "/proc/sys/vm/nr_hugepages";
    long count = -1;
    FILE *file = fopen(name, pages < 0 ? "r" : "w");
    if (file == NULL) return -1;
    if (pages >= 0) {
        count = fprintf(file, "%ld\n", pages) > 0 ? pages : -1;
    } else if (fscanf(file, "%ld", &count) != 1) {
        count = -1;
    }
    return fclose(file) == 0 ? count : -1;
}

/* Memory of huge pages that were made for it. Stores of other processes take them, too, where they
 * are faster: NULL. */
static char *take_pages(int *descriptor_out)
{
    void *memory = MAP_FAILED;
    const int made = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    *descriptor_out = made;
    if (made < 0 || ftruncate(made, PAGES * HUGE_BYTES) != 0) return NULL;
    for (int i = 0; i < 200 && memory == MAP_FAILED; i++) {
        if (i > 0) usleep(10000);
        (void)huge_pool(0);
        if (huge_pool(PAGES) < 0) return NULL;
        memory = mmap(NULL, PAGES * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    }
    if (memory == MAP_FAILED) return NULL;
    memset(memory, 7, PAGES * HUGE_BYTES);
    return memory;
}

TEST_BEFORE_EACH
{
    pool_before = huge_pool(-1);
    if (pool_before > 0) pool_before = -1; /* somebody uses it: it is left alone */
}

TEST_AFTER_EACH
{
    if (pool_before == 0) (void)huge_pool(0);
}

/* ---- signals elsewhere ---- */

/* How a child ends that installs the guard over an action of its own. */
static int child_ends(void (*handler)(int), bool sent)
{
    int how;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct sigaction action = {.sa_handler = handler};
        if (sigaction(SIGBUS, &action, NULL) != 0 || server_guard_install() != KVT_OK) _exit(9);
        if (sent) {
            (void)raise(SIGBUS);
            _exit(3);
        }
        const int made = memfd_create("short", MFD_CLOEXEC);
        volatile char *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, made, 0);
        _exit(memory[0] + 4);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFSIGNALED(how) ? -WTERMSIG(how) : WEXITSTATUS(how);
}

static void ends_with_5(int number)
{
    (void)number;
    _exit(5);
}

TEST(a_signal_elsewhere_is_passed_on)
{
    assert_int_equal(child_ends(ends_with_5, false), 5);
    assert_int_equal(child_ends(ends_with_5, true), 5);
    assert_int_equal(child_ends(SIG_DFL, false), -SIGBUS);
    assert_int_equal(child_ends(SIG_DFL, true), -SIGBUS);
    assert_int_equal(child_ends(SIG_IGN, false), -SIGBUS);
    assert_int_equal(child_ends(SIG_IGN, true), 3);
}

/* ---- holes ---- */

/* Begins with a region of huge pages, one of which is a hole that nothing can fill. */
static bool begin(serve_site *at, kvt_store **store_out, char **region_out, int *made_out)
{
    char message[256] = "";
    *region_out = pool_before == 0 ? take_pages(made_out) : NULL;
    if (*region_out == NULL) {
        print_message("no huge pages of its own: skipped\n");
        return false;
    }
    assert_int_equal(fcntl(*made_out, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    serve_site_begin(at, support_open_memory("lru", 16 << 20, 1 << 20));
    assert_ok(support_put(at->store, 1));
    assert_ok(kvt_connect(at->path, NULL, store_out, message, sizeof message));
    assert_ok(kvt_region_add(*store_out, *made_out, 0, PAGES * HUGE_BYTES, *region_out));
    assert_int_equal(
        fallocate(*made_out, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGE_BYTES), 0);
    (void)huge_pool(0);
    return true;
}

/* The session has ended, and another one is served. */
static void end(serve_site *at, kvt_store *store, char *region, int made)
{
    char message[256] = "";
    kvt_store *other;
    kvt_store_close(store);
    while (server_sessions(at->lends) != 0)
        usleep(1000);
    assert_ok(kvt_connect(at->path, NULL, &other, message, sizeof message));
    assert_ok(support_get(other, 1, NULL));
    kvt_store_close(other);
    serve_site_end(at);
    munmap(region, PAGES * HUGE_BYTES);
    close(made);
}

static bool is_lost(serve_site *at)
{
    for (int i = 0; i < 10000 && server_sessions(at->lends) != 0; i++)
        usleep(1000);
    return server_sessions(at->lends) == 0;
}

TEST(a_get_into_a_hole_ends_its_session)
{
    serve_site at;
    kvt_store *store;
    char *region;
    int made;
    if (!begin(&at, &store, &region, &made)) return;
    const kvt_key key = support_key(1);
    /* Decoded before the session ends, or lost with it; the client does not look at the hole. */
    const kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(region, SUPPORT_ENTRY_BYTES), KVT_NO_DEADLINE, NULL);
    assert_true(status == KVT_OK || status == KVT_MISS);
    assert_true(is_lost(&at));
    end(&at, store, region, made);
}

TEST(a_put_from_a_hole_ends_its_session)
{
    serve_site at;
    kvt_store *store;
    char *region;
    int made;
    if (!begin(&at, &store, &region, &made)) return;
    const kvt_entry entry = support_entry(support_key(2), support_layout, 1);
    const kvt_status status =
        kvt_store_put(store, &entry, KVT_PACKED(region + 4096, SUPPORT_ENTRY_BYTES));
    assert_true(status == KVT_OK || status == KVT_E_GONE);
    assert_true(is_lost(&at));
    end(&at, store, region, made);
}
