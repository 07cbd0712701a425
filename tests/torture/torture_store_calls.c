/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_calls.c - all calls that engines make, by many threads on the same keys, while
 * entries move between tiers and forms and drives fail, fall silent, fill, go and come back.
 *
 *     torture_store_calls [--seconds N] [--seed S] [--threads T]
 *
 * A run has several lives of one store. Every other life is closed with requests in flight. At the
 * end every key is deleted: then nothing may be held. Prints one line of key=value pairs; exit 1 at
 * the first violation, with the last events of its key and a line that starts the run again. The
 * seed decides what each thread chooses and what the operator does, not how threads interleave.
 */
#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TORTURE_LIFE_SECONDS = 6, TORTURE_LIVES_MAX = 20, TORTURE_STILL_SECONDS = 180 };

typedef struct torture_role {
    void (*begin)(calls_thread *self);
    void (*step)(calls_thread *self);
    void (*end)(calls_thread *self);
} torture_role;

/* By the number of a thread; what a queue has in flight is settled when all threads have ended. */
static const torture_role torture_roles[8] = {
    {.begin = calls_queue_begin, .step = calls_queue_step},
    {.step = calls_direct_step},
    {.begin = calls_load_begin, .step = calls_load_step, .end = calls_load_end},
    {.begin = calls_queue_begin, .step = calls_queue_step},
    {.step = calls_direct_step},
    {.begin = calls_queue_begin, .step = calls_queue_step},
    {.step = calls_direct_step},
    {.step = calls_keeper_step},
};

static void *torture_main(void *argument)
{
    calls_thread *self = argument;
    const torture_role *role = &torture_roles[self->number % 8];
    if (role->begin != NULL) role->begin(self);
    while (!atomic_load(&self->site->stop)) {
        role->step(self);
        atomic_fetch_add(&self->site->counts.calls, 1);
    }
    if (role->end != NULL) role->end(self);
    return NULL;
}

static void torture_live(calls_site *site, calls_thread *threads, calls_thread *helper,
                         uint64_t end_ns, bool last)
{
    pthread_t operator;
    bool in_flight = !last && site->counts.lives % 2 == 0;
    calls_site_open(site);
    atomic_store(&site->stop, false);
    atomic_store(&site->closing, false);
    helper->store = site->store;
    helper->shared = site->shared;
    for (uint32_t i = 0; i < site->thread_count; i++) {
        threads[i].store = site->store;
        threads[i].shared = site->shared;
        if (pthread_create(&threads[i].thread, NULL, torture_main, &threads[i]) != 0) abort();
    }
    if (pthread_create(&operator, NULL, calls_operator_main, site) != 0) abort();
    /* Wait until a life is over; a run in which nothing ends any more is a finding. */
    uint64_t calls = 0, moved_ns = base_clock_ns();
    while (base_clock_ns() < end_ns) {
        base_sleep(50 * CALLS_MS);
        uint64_t now = atomic_load(&site->counts.calls);
        if (now != calls) moved_ns = base_clock_ns();
        calls = now;
        if (base_clock_ns() - moved_ns > TORTURE_STILL_SECONDS * CALLS_SECOND)
            calls_violate(site, CALLS_KEYS, "no call ends any more", (int64_t)calls);
    }
    atomic_store(&site->stop, true);
    for (uint32_t i = 0; i < site->thread_count; i++)
        pthread_join(threads[i].thread, NULL);
    pthread_join(operator, NULL);
    calls_site_count(site);
    if (in_flight) {
        atomic_store(&site->closing, true);
        kvt_store_close(site->store);
    }
    /* All queues are drained and closed, before or after the store; none may be left without an
     * end. */
    for (uint32_t i = 0; i < CALLS_SHARED_QUEUES; i++) {
        calls_queue_drain(helper, site->shared[i]);
        kvt_queue_close(site->shared[i]);
    }
    for (uint32_t i = 0; i < site->thread_count; i++) {
        calls_thread *thread = &threads[i];
        if (thread->queue == NULL) continue;
        if (in_flight) calls_queue_drain(thread, thread->queue);
        calls_queue_end(thread);
        calls_queue_check(thread);
    }
    if (in_flight) return;
    calls_site_mend(site);
    if (last) calls_site_empty(site);
    kvt_store_close(site->store);
}

static bool torture_parse(calls_site *site, int count, char **words)
{
    for (int i = 1; i + 1 < count; i += 2) {
        unsigned long long value = strtoull(words[i + 1], NULL, 0);
        if (strcmp(words[i], "--seconds") == 0 && value > 0)
            site->seconds = (uint32_t)value;
        else if (strcmp(words[i], "--seed") == 0)
            site->seed = value;
        else if (strcmp(words[i], "--threads") == 0 && value > 0 && value <= CALLS_THREADS_MAX)
            site->thread_count = (uint32_t)value;
        else
            return false;
    }
    return count % 2 == 1;
}

int main(int count, char **words)
{
    static calls_site site = {
        .program = "torture_store_calls", .seconds = 12, .seed = 1, .thread_count = 16};
    static calls_thread threads[CALLS_THREADS_MAX], helper;
    if (!torture_parse(&site, count, words)) {
        fprintf(stderr, "usage: %s [--seconds N] [--seed S] [--threads T]\n", words[0]);
        return 2;
    }
    if (!calls_site_make(&site)) return 2;
    for (uint32_t i = 0; i < site.thread_count; i++)
        calls_thread_make(&threads[i], &site, i, NULL);
    calls_thread_make(&helper, &site, site.thread_count, NULL);
    uint32_t lives = site.seconds / TORTURE_LIFE_SECONDS;
    if (lives < 2) lives = 2;
    if (lives > TORTURE_LIVES_MAX) lives = TORTURE_LIVES_MAX;
    uint64_t begun_ns = base_clock_ns(), life_ns = site.seconds * CALLS_SECOND / lives;
    for (uint32_t i = 0; i < lives; i++)
        torture_live(&site, threads, &helper, begun_ns + (i + 1) * life_ns, i + 1 == lives);
    const calls_counts *c = &site.counts;
    const struct {
        const char *name;
        unsigned long long value;
    } pairs[] = {{"seed", site.seed},
                 {"seconds", site.seconds},
                 {"threads", site.thread_count},
                 {"lives", c->lives},
                 {"calls", c->calls},
                 {"gets", c->gets},
                 {"hits", c->hits},
                 {"lossy_hits", c->lossy_hits},
                 {"puts", c->puts},
                 {"kept", c->kept},
                 {"deletes", c->deletes},
                 {"requests", c->requests},
                 {"completions", c->completions},
                 {"cancels", c->cancels},
                 {"cancelled", c->cancelled},
                 {"timed_out", c->timed_out},
                 {"refused_loss", c->refused_loss},
                 {"closes", c->closes},
                 {"loads", c->loads},
                 {"layers", c->layers},
                 {"leases", c->leases},
                 {"device_changes", c->device_changes},
                 {"quarantined", c->quarantined},
                 {"readmitted", c->readmitted},
                 {"promotions", c->promotions},
                 {"demotions", c->demotions},
                 {"evictions", c->evictions},
                 {"aborted", c->aborted},
                 {"shared_reads", c->shared_reads},
                 {"load_failures", c->load_failures},
                 {"expired", c->expired}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        printf("%s%s=%llu", i == 0 ? "" : " ", pairs[i].name, pairs[i].value);
    printf(" violations=0\n");
    calls_site_remove(&site);
    return site.counts.hits == 0 || site.counts.completions == 0 ? 1 : 0;
}
