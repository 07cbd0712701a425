/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_threads.c - a system that starts no further thread, at each thread in turn that a
 * store, a queue or a device that is added asks for: the call says so, not that memory is short,
 * and leaves nothing that hinders the next one.
 */
#include "open_support.h"

#include <errno.h>
#include <kvterrace/queue.h>
#include <pthread.h>
#include <stdatomic.h>

/* So many threads are still started; then none. */
static atomic_int threads_left;

extern __typeof__(pthread_create) __real_pthread_create, __wrap_pthread_create;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *argument), void *argument)
{
    if (atomic_fetch_sub(&threads_left, 1) <= 0) return EAGAIN;
    return __real_pthread_create(thread, attributes, run, argument);
}

TEST(a_limit_of_threads_is_named)
{
    open_site site;
    kvt_store *store = NULL;
    kvt_queue *queue = NULL;
    char message[256];
    kvt_status status = KVT_E_THREAD;
    open_prepare(&site);
    site.options.limits.put_staging_bytes = 4 << 20;
    site.options.limits.tick_seconds = 1;
    char watch[160];
    snprintf(watch, sizeof watch, "%s/watch", site.folder);
    site.options.watch.path = watch;
    int refused = 0, least = 0;
    for (; status == KVT_E_THREAD; least++) {
        atomic_store(&threads_left, least);
        status = kvt_store_open(&site.options, &store, message, sizeof message);
        if (status != KVT_OK && (status != KVT_E_THREAD || strstr(message, "thread") == NULL))
            fail_msg("%d threads: %s, %s", least, kvt_status_name(status), message);
        refused += status == KVT_E_THREAD;
    }
    /* A device, the catalog's writer, the background, the watch file: each refused at least once.
     * Of the threads of puts one is enough. */
    assert_true(refused >= 4);
    atomic_store(&threads_left, 1000);
    assert_ok(support_put(store, 1));
    assert_ok(kvt_store_flush(store));
    for (int i = 0; i < 4; i++) {
        const kvt_queue_options options = {.struct_size = sizeof options, .threads = 2};
        atomic_store(&threads_left, i);
        assert_int_equal(kvt_queue_open(store, &options, &queue), KVT_E_THREAD);
    }
    atomic_store(&threads_left, 1000);
    assert_ok(kvt_queue_open(store, NULL, &queue));
    kvt_queue_close(queue);
    assert_ok(support_get(store, 1, NULL));
    kvt_store_close(store);
}
