/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_remote_mooncake.c - stores that share entries by a Mooncake Store: over the library
 * that does as it is told (tests/support/fake_mooncake.c), or over another one of that name with
 * the master that KVT_MOONCAKE_MASTER names. Without a library this test is left out.
 */
#include "store_remote_support.h"

#include "base/clock.h"
#include "fake_mooncake.h"

#include <kvterrace/lookup.h>

#include <dlfcn.h>
#include <unistd.h>

#define DEADLINE_S 0.05
#define SLACK_S    0.5  /* of a busy machine */
#define RECOVERY_S 10.0 /* same; what it took is printed */
#define LOCAL      600u /* a number that put_all leaves out */
#define MOMENT_NS  UINT64_C(5000000)

static void (*set_mode)(fake_mooncake_mode mode); /* NULL: the library is a real one */
static int (*held)(void);

static kvt_store *open_store(kvt_publish publish, double deadline_seconds)
{
    static char name[64];
    kvt_remote_options remote = remote_options(publish);
    const char *master = getenv("KVT_MOONCAKE_MASTER");
    /* A real engine keeps what the test before has put. */
    snprintf(name, sizeof name, "mooncake test %ld", (long)getpid());
    remote.backend = "mooncake";
    remote.address = master != NULL ? master : "127.0.0.1:50051";
    remote.namespace_text = name;
    remote.deadline_seconds = deadline_seconds;
    return open_with(&remote);
}

static double seconds_since(uint64_t began_ns)
{
    return (double)(base_clock_ns() - began_ns) * 1e-9;
}

TEST(copies_pass)
{
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20), *b = open_store(KVT_PUBLISH_NONE, 20);
    put_all(a);
    assert_int_equal(stats_of(a).published, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        kvt_get_info info = {.struct_size = sizeof info};
        assert_ok(support_get(b, i, &info)); /* every byte */
        assert_int_equal(info.tier, KVT_TIER_REMOTE);
    }
    assert_int_equal(stats_of(b).hits, COUNT);
    assert_int_equal(support_get(b, 900, NULL), KVT_MISS);
    /* What one host deletes is gone for others, and the rest is not. */
    for (uint32_t i = 3; i < 5; i++) {
        const kvt_key key = support_key(i);
        assert_ok(kvt_store_delete(a, &key));
    }
    assert_ok(kvt_remote_flush(a, KVT_NO_DEADLINE));
    kvt_store *c = open_store(KVT_PUBLISH_NONE, 20);
    size_t matched = 99;
    kvt_key keys[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        keys[i] = support_key(i);
    assert_ok(kvt_store_match(c, keys, COUNT,
                              KVT_MATCH(.hosts = true, .deadline_ns = KVT_NO_DEADLINE), &matched));
    assert_int_equal(matched, 3);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(support_get(c, i, NULL), i == 3 || i == 4 ? KVT_MISS : KVT_OK);
    assert_int_equal(stats_of(c).bad_records + stats_of(b).bad_records, 0);
    kvt_store_close(a);
    kvt_store_close(b);
    kvt_store_close(c);
}

/* Gets entries that others have until one comes, and says how long that took. */
static void await_recovery(kvt_store *store, const char *what)
{
    const uint64_t began_ns = base_clock_ns();
    kvt_status status = KVT_MISS;
    for (uint32_t i = 8; status != KVT_OK && seconds_since(began_ns) < RECOVERY_S; i++) {
        status = support_get(store, 8 + i % (COUNT - 8), NULL);
        if (status != KVT_OK) base_sleep(MOMENT_NS);
    }
    assert_ok(status);
    print_message("%s: used again after %.3f s\n", what, seconds_since(began_ns));
}

/* Calls that do not return: whoever waits leaves at its deadline, and soon nobody waits at all.
 * Local gets notice nothing. */
TEST(a_stopped_engine_is_left_alone)
{
    if (set_mode == NULL) skip();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20), *b = open_store(KVT_PUBLISH_ALL, DEADLINE_S);
    put_all(a);
    assert_ok(support_put(b, LOCAL));
    assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
    set_mode(FAKE_MOONCAKE_SILENT);
    uint32_t timed_out = 0;
    for (uint32_t i = 0; i < 8; i++) {
        kvt_get_info info = {.struct_size = sizeof info};
        const uint64_t began_ns = base_clock_ns();
        assert_int_equal(support_get(b, i, &info), KVT_MISS);
        assert_true(seconds_since(began_ns) < DEADLINE_S + SLACK_S);
        timed_out += info.timed_out;
        assert_ok(support_get(b, LOCAL, &info));
        assert_int_equal(info.tier, KVT_TIER_DRAM);
    }
    assert_in_range(timed_out, 2, 3); /* then its breaker is open */
    assert_int_equal(stats_of(b).nodes_open, 1);
    assert_int_equal(held(), timed_out);
    set_mode(FAKE_MOONCAKE_GOOD);
    await_recovery(b, "stopped");
    assert_int_equal(stats_of(b).bad_records, 0);
    kvt_store_close(a);
    kvt_store_close(b);
}

/* An engine whose calls fail, and one that is full: misses and drops. */
TEST(a_killed_engine_is_left_alone)
{
    if (set_mode == NULL) skip();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20), *b = open_store(KVT_PUBLISH_ALL, DEADLINE_S);
    put_all(a);
    set_mode(FAKE_MOONCAKE_GONE);
    assert_ok(support_put(b, LOCAL));
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(support_get(b, i, NULL), KVT_MISS);
    assert_ok(support_get(b, LOCAL, NULL));
    assert_true(stats_of(b).node_failures >= 3);
    set_mode(FAKE_MOONCAKE_GOOD);
    await_recovery(b, "killed");
    set_mode(FAKE_MOONCAKE_FULL);
    assert_ok(support_put(b, LOCAL + 1));
    assert_ok(kvt_remote_flush(b, KVT_NO_DEADLINE));
    assert_true(stats_of(b).dropped_node >= 1);
    assert_ok(support_get(b, LOCAL + 1, NULL));
    kvt_store_close(a);
    kvt_store_close(b);
    set_mode(FAKE_MOONCAKE_GOOD);
}

/* A store closes while a call does not return: the call has its memory, and frees the client. */
TEST(a_close_waits_for_no_call)
{
    if (set_mode == NULL) skip();
    kvt_store *a = open_store(KVT_PUBLISH_ALL, 20), *b = open_store(KVT_PUBLISH_NONE, DEADLINE_S);
    put_all(a);
    set_mode(FAKE_MOONCAKE_SILENT);
    assert_int_equal(support_get(b, 1, NULL), KVT_MISS);
    kvt_store_close(b);
    assert_true(held() >= 1);
    set_mode(FAKE_MOONCAKE_GOOD);
    while (held() != 0)
        base_sleep(MOMENT_NS);
    kvt_store_close(a);
    base_sleep(4 * MOMENT_NS); /* the memory is given back, which a checker of leaks looks at */
}

int main(void)
{
    void *library = dlopen("libmooncake_store.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "no libmooncake_store.so: left out\n");
        return 77;
    }
    *(void **)&set_mode = dlsym(library, "fake_mooncake_set");
    *(void **)&held = dlsym(library, "fake_mooncake_held");
    if (set_mode == NULL && getenv("KVT_MOONCAKE_MASTER") == NULL) return 77;
    const int status = tests_run();
    /* A real library's threads still run. */
    fflush(NULL);
    if (set_mode == NULL) _exit(status);
    return status;
}
