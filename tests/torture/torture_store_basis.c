/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_basis.c - a basis that is added, used, removed or read at an open, while the nth
 * call that changes a file is the last one of the process, or fails, or finds the disk full, the
 * process dies at its nth kill point, or the nth allocation fails (step_calls.h; allocations are
 * those of the program's own objects). What must hold afterwards: no wrong bytes, a store that
 * opens, a basis that is whole or absent, every entry that was flushed, and a store that takes
 * basis and entries again.
 */
#include "basis_site.h"

#include "store/core/kill_note.h"
#include "tests/torture/step_calls.h"

enum { ENTRIES = 3 };

/* ---- allocations and kill points ---- */

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

void kvt_kill_point(const char *const *point)
{
    (void)point;
    if (step_is_due(step_does == STEP_POINT)) step_die();
}

void kvt_kill_note(kill_note note, const kvt_key *key, kvt_tier tier)
{
    (void)note, (void)key, (void)tier;
}

/* ---- runs in a child ---- */

/* What a child had done when it ended. */
typedef struct run_end {
    bool added, flushed, removed, counted; /* counted: it came to its nth call */
} run_end;

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
static void child_uses(void *context, int pipe_end)
{
    (void)context;
    kvt_store *store = NULL;
    const long at = step_at;
    step_at = 0;
    if (basis_site_open(&site, BASIS_SITE_CODES, &store, NULL, 0) < 0) _exit(2);
    step_at = at;
    kvt_status status = kvt_basis_add(store, site.made.object, site.made.bytes);
    if (status == KVT_OK) {
        step_tell(pipe_end, 'a');
    } else {
        step_at = 0;
        status = kvt_basis_add(store, site.made.object, site.made.bytes);
        if (status != KVT_OK && status != KVT_EXISTS) _exit(3);
        step_at = at;
    }
    for (uint32_t i = 0; i < ENTRIES; i++)
        (void)!basis_site_put(store, i);
    const bool flushed = kvt_store_flush(store) == KVT_OK;
    bool all = flushed;
    step_at = 0;
    for (uint32_t i = 0; i < ENTRIES; i++)
        all = basis_site_get(&site, store, i, NULL) == KVT_OK && all;
    if (all) step_tell(pipe_end, 'f');
    check_gets(store, true, false);
    kvt_store_close(store);
}

/* Removes the basis that nothing needs; the file is there. */
static void child_removes(void *context, int pipe_end)
{
    (void)context;
    kvt_store *store = NULL;
    const long at = step_at;
    step_at = 0;
    if (basis_site_open(&site, BASIS_SITE_BARE, &store, NULL, 0) < 0) _exit(2);
    step_at = at;
    if (kvt_basis_remove(store, site.made.basis.hash) == KVT_OK) step_tell(pipe_end, 'r');
    step_at = 0;
    kvt_store_close(store);
}

/* Opens a store that has the basis and entries. */
static void child_opens(void *context, int pipe_end)
{
    (void)context;
    kvt_store *store = NULL;
    const kvt_status status = basis_site_open(&site, BASIS_SITE_CODES, &store, NULL, 0);
    step_at = 0;
    if (status < 0) return;
    kvt_basis_info info = {.struct_size = sizeof info};
    const bool present =
        kvt_basis_get(store, 0, &info) == KVT_OK && info.state == KVT_BASIS_PRESENT;
    check_gets(store, present, false);
    /* A basis that lacked memory comes back by a call. */
    const kvt_status added = kvt_basis_add(store, site.made.object, site.made.bytes);
    if (added != (present ? KVT_EXISTS : KVT_OK)) _exit(14);
    step_tell(pipe_end, 'a');
    kvt_store_close(store);
}

static run_end run_once(step_child *child, step_kind does, long at)
{
    const step_end end = step_run(child, NULL, does, at);
    return (run_end){.added = (end.told & STEP_TOLD('a')) != 0,
                     .flushed = (end.told & STEP_TOLD('f')) != 0,
                     .removed = (end.told & STEP_TOLD('r')) != 0,
                     .counted = end.counted};
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
    const bool listed = kvt_basis_get(store, 0, &info) == KVT_OK;
    if (listed && info.state == KVT_BASIS_DAMAGED) fail_msg("%s %ld: damaged", name, at);
    const bool present = listed && info.state == KVT_BASIS_PRESENT;
    if (end->added && !end->removed) assert_true(present);
    if (end->removed) assert_false(present);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        status = basis_site_get(&site, store, i, NULL);
        if (end->flushed) assert_ok(status);
        assert_true(status == KVT_OK || status == KVT_MISS ||
                    (status == KVT_E_MISMATCH && !present));
    }
    status = kvt_basis_add(store, site.made.object, site.made.bytes);
    assert_int_equal(status, present ? KVT_EXISTS : KVT_OK);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_true(basis_site_put(store, i) >= 0);
        assert_ok(basis_site_get(&site, store, i, NULL));
    }
    kvt_store_close(store);
}

static void empty_folder(void)
{
    char command[256];
    (void)snprintf(command, sizeof command, "rm -f %s/ssd %s/catalog*", site.folder, site.folder);
    assert_int_equal(system(command), 0);
}

static void sweep(step_child *child, bool with_basis, bool with_entries, long least)
{
    for (int kind = 0; kind < STEP_KINDS; kind++) {
        bool counted = true;
        long at = 1;
        for (; counted; at++) {
            empty_folder();
            if (with_basis) kvt_store_close(basis_site_filled(&site, with_entries ? ENTRIES : 0));
            run_end end = run_once(child, (step_kind)kind, at);
            end.flushed |= with_entries;
            look(&end, step_names[kind], at);
            counted = end.counted;
        }
        print_message("%s: %ld calls\n", step_names[kind], at - 2);
        assert_true(at - 2 >= least);
    }
}

TEST(a_basis_is_added_and_used)
{
    sweep(child_uses, false, false, 5);
}

TEST(a_basis_is_removed)
{
    sweep(child_removes, true, false, 0);
}

/* Kills at every point of an open, and the nth allocation: torture_store_open fails its files. */
TEST(a_basis_is_read_at_open)
{
    static const step_kind kinds[] = {STEP_POINT, STEP_ALLOCATE};
    for (int kind = 0; kind < 2; kind++) {
        bool counted = true;
        long at = 1;
        empty_folder();
        kvt_store_close(basis_site_filled(&site, ENTRIES));
        for (; counted; at += kinds[kind] == STEP_POINT ? 1 : 1 + at / 24) {
            run_end end = run_once(child_opens, kinds[kind], at);
            end.flushed = true;
            look(&end, "open", at);
            counted = end.counted;
        }
        print_message("open, up to the %s %ld\n", step_names[kinds[kind]], at);
        assert_true(at > (kinds[kind] == STEP_POINT ? 10 : 20));
    }
}

TEST_ALL(basis_site_set_up, basis_site_tear_down);

int main(void)
{
    /* Hundreds of runs with their syncs, which a kill of the process alone does not need. */
    if (chdir("/dev/shm") != 0) print_message("no /dev/shm: every sync is the disk's\n");
    return tests_run();
}
