/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_ring.c - a ring gives each entry once and in order, to threads and to a second process;
 * it wakes who sleeps; and a side that writes anything at any time neither moves the other out of
 * its memory nor keeps it busy.
 */
#include "ring_support.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>

#define ENTRIES 8u

typedef struct site {
    void *memory;
    base_ring ring;
    _Atomic uint64_t claimed;
} site;

static site *site_make(uint32_t entries)
{
    static site at;
    at = (site){.memory = ring_memory(base_ring_bytes(entries))};
    base_ring_make(at.memory, entries);
    assert_ok(base_ring_attach(&at.ring, at.memory, base_ring_bytes(entries), entries));
    return &at;
}

static void site_free(site *at)
{
    ring_memory_free(at->memory, base_ring_bytes((uint32_t)at->ring.entries));
}

static base_ring_body body_of(uint64_t number)
{
    base_ring_body body;
    for (uint32_t i = 0; i < BASE_RING_BODY_WORDS; i++)
        body.words[i] = number * (i + 1);
    return body;
}

static void assert_body(const base_ring_body *body, uint64_t number)
{
    for (uint32_t i = 0; i < BASE_RING_BODY_WORDS; i++)
        assert_int_equal(body->words[i], number * (i + 1));
}

static kvt_status put(site *at, uint64_t number)
{
    uint64_t position;
    const base_ring_body body = body_of(number);
    kvt_status status = base_ring_claim(&at->ring, &at->claimed, 1, &position);
    return status == KVT_OK ? base_ring_post(&at->ring, position, &body) : status;
}

TEST(only_what_was_agreed_is_a_ring)
{
    const size_t bytes = base_ring_bytes(ENTRIES);
    char *memory = ring_memory(bytes);
    base_ring ring;
    base_ring_make(memory, ENTRIES);
    assert_int_equal(bytes, 256 + 64 * ENTRIES);
    assert_ok(base_ring_attach(&ring, memory, bytes, ENTRIES));
    assert_int_equal(base_ring_attach(&ring, memory, bytes - 1, ENTRIES), KVT_E_ARGUMENT);
    assert_int_equal(base_ring_attach(&ring, memory + 8, bytes, ENTRIES), KVT_E_ARGUMENT);
    assert_int_equal(base_ring_attach(&ring, NULL, bytes, ENTRIES), KVT_E_ARGUMENT);
    assert_int_equal(base_ring_attach(&ring, memory, bytes, ENTRIES / 2), KVT_E_CORRUPT);
    const uint32_t unsound[] = {0, 1, 3, 12, BASE_RING_ENTRIES_MAX * 2, UINT32_MAX};
    for (size_t i = 0; i < sizeof unsound / sizeof *unsound; i++)
        assert_int_equal(base_ring_attach(&ring, memory, SIZE_MAX, unsound[i]), KVT_E_ARGUMENT);
    const size_t heads[] = {0, 7, 8, 11, 12, 15};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        memory[heads[i]] ^= 1;
        assert_int_equal(base_ring_attach(&ring, memory, bytes, ENTRIES), KVT_E_CORRUPT);
        memory[heads[i]] ^= 1;
    }
    ring_memory_free(memory, bytes);
}

/* docs/SERVE.md, The ring: what a producer or a consumer without this code relies on. */
TEST(the_words_are_those_of_the_page)
{
    site *at = site_make(ENTRIES);
    const uint64_t *words = at->memory;
    assert_memory_equal(words, "kvtring1", 8);
    assert_int_equal(words[1], ENTRIES | UINT64_C(64) << 32);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(words[32 + 8 * i], i);
    base_ring_body body;
    assert_ok(put(at, 5));
    assert_int_equal(words[32], 1);
    for (uint32_t i = 0; i < BASE_RING_BODY_WORDS; i++)
        assert_int_equal(words[33 + i], 5 * (i + 1));
    assert_ok(base_ring_take(&at->ring, 0, &body));
    assert_int_equal(words[32], ENTRIES);
    assert_true(base_ring_sleeps(&at->ring, 1));
    assert_int_equal(words[8], 1);
    site_free(at);
}

TEST(entries_come_once_and_in_order)
{
    site *at = site_make(ENTRIES);
    base_ring_body body;
    uint64_t given = 0, taken = 0;
    for (uint32_t round = 0; round < 100; round++) {
        const uint32_t count = round % (ENTRIES + 1);
        for (uint32_t i = 0; i < count; i++)
            assert_ok(put(at, ++given));
        if (count == ENTRIES) {
            assert_int_equal(put(at, 1), KVT_BUSY);
            assert_int_equal(base_ring_room(&at->ring, &at->claimed, 0), KVT_BUSY);
        } else {
            assert_ok(base_ring_room(&at->ring, &at->claimed, ENTRIES - count - 1));
            if (count > 0)
                assert_int_equal(base_ring_room(&at->ring, &at->claimed, ENTRIES - count),
                                 KVT_BUSY);
        }
        for (uint32_t i = 0; i < count; i++) {
            assert_ok(base_ring_take(&at->ring, taken, &body));
            assert_body(&body, ++taken);
        }
        assert_int_equal(base_ring_take(&at->ring, taken, &body), KVT_END);
    }
    assert_int_equal(given, taken);
    site_free(at);
}

TEST(a_batch_is_claimed_whole_or_not)
{
    site *at = site_make(ENTRIES);
    uint64_t position;
    base_ring_body body = body_of(1);
    assert_ok(base_ring_claim(&at->ring, &at->claimed, ENTRIES - 2, &position));
    assert_int_equal(position, 0);
    assert_int_equal(base_ring_claim(&at->ring, &at->claimed, 3, &position), KVT_BUSY);
    assert_ok(base_ring_claim(&at->ring, &at->claimed, 2, &position));
    assert_int_equal(position, ENTRIES - 2);
    /* Nothing is posted: all of it is a hole. */
    assert_int_equal(base_ring_claim(&at->ring, &at->claimed, 1, &position), KVT_BUSY);
    assert_int_equal(base_ring_take(&at->ring, 0, &body), KVT_END);
    /* What is posted behind a hole is not taken before the hole. */
    assert_ok(base_ring_post(&at->ring, 1, &body));
    assert_int_equal(base_ring_take(&at->ring, 0, &body), KVT_END);
    assert_ok(base_ring_post(&at->ring, 0, &body));
    assert_ok(base_ring_take(&at->ring, 0, &body));
    assert_ok(base_ring_take(&at->ring, 1, &body));
    assert_int_equal(base_ring_post(&at->ring, 1, &body), KVT_E_CORRUPT);
    site_free(at);
}

/* Completions that stand at the index of their submission come in any order. */
TEST(answers_may_stand_at_an_index)
{
    site *at = site_make(ENTRIES);
    const uint64_t order[] = {3, 0, 7, 1, 2, 6, 5, 4};
    base_ring_body body;
    for (uint64_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < ENTRIES; i++) {
            const uint64_t position = round * ENTRIES + order[i];
            assert_int_equal(base_ring_take(&at->ring, position, &body), KVT_END);
            body = body_of(position);
            assert_ok(base_ring_post(&at->ring, position, &body));
            assert_int_equal(base_ring_post(&at->ring, position, &body), KVT_E_CORRUPT);
            assert_ok(base_ring_take(&at->ring, position, &body));
            assert_body(&body, position);
            assert_int_equal(base_ring_take(&at->ring, position, &body), KVT_E_CORRUPT);
        }
    }
    site_free(at);
}

/* Each of a side's words set to what it cannot be. */
TEST(words_that_jump_are_corrupt)
{
    site *at = site_make(ENTRIES);
    base_ring_body body = body_of(1);
    uint64_t position;
    const uint64_t offsets[] = {2,
                                3,
                                ENTRIES,
                                ENTRIES + 1,
                                (uint64_t)0 - 1,
                                (uint64_t)0 - ENTRIES,
                                (uint64_t)1 << 63,
                                UINT64_MAX / 3};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        for (uint64_t next = 0; next < 3 * ENTRIES; next += 5) {
            atomic_store(&at->ring.words->entry[next % ENTRIES].sequence, next + offsets[i]);
            assert_int_equal(base_ring_take(&at->ring, next, &body), KVT_E_CORRUPT);
            assert_int_equal(base_ring_post(&at->ring, next, &body), KVT_E_CORRUPT);
            assert_false(base_ring_sleeps(&at->ring, next));
            atomic_store(&at->claimed, next);
            const bool full = offsets[i] == (uint64_t)0 - ENTRIES;
            assert_int_equal(base_ring_claim(&at->ring, &at->claimed, 1, &position),
                             full ? KVT_BUSY : KVT_E_CORRUPT);
            assert_int_equal(base_ring_room(&at->ring, &at->claimed, 0),
                             full ? KVT_BUSY : KVT_E_CORRUPT);
            assert_int_equal(atomic_load(&at->claimed), next);
        }
    }
    site_free(at);
}

TEST(a_bell_is_rung_once_a_sleep)
{
    site *at = site_make(ENTRIES);
    base_ring_body body;
    assert_false(base_ring_wakes(&at->ring));
    assert_true(base_ring_sleeps(&at->ring, 0));
    assert_ok(put(at, 1));
    assert_true(base_ring_wakes(&at->ring));
    assert_ok(put(at, 2));
    assert_false(base_ring_wakes(&at->ring));
    assert_false(base_ring_sleeps(&at->ring, 0));
    assert_ok(base_ring_take(&at->ring, 0, &body));
    assert_false(base_ring_wakes(&at->ring));
    site_free(at);
}

/* ---- threads ---- */

#define PRODUCERS 4u
#define EACH      20000u

typedef struct crowd {
    site *at;
    int bell;
    uint64_t first;
    _Atomic uint64_t *rung;
} crowd;

static void *crowd_produces(void *argument)
{
    const crowd *one = argument;
    for (uint64_t i = 0; i < EACH;) {
        uint64_t position;
        const uint32_t count = i % 3 == 0 && i + 2 <= EACH ? 2 : 1;
        if (base_ring_claim(&one->at->ring, &one->at->claimed, count, &position) != KVT_OK) {
            sched_yield();
            continue;
        }
        for (uint32_t k = 0; k < count; k++) {
            const base_ring_body body = body_of(one->first + i + k);
            if (base_ring_post(&one->at->ring, position + k, &body) != KVT_OK) return argument;
        }
        i += count;
        const uint64_t one_more = 1;
        if (base_ring_wakes(&one->at->ring)) {
            atomic_fetch_add(one->rung, 1);
            if (write(one->bell, &one_more, sizeof one_more) != sizeof one_more) return argument;
        }
    }
    return NULL;
}

/* A lost wake would leave the consumer at poll for ever. */
TEST(threads_lose_nothing_and_sleep_over_nothing)
{
    site *at = site_make(64);
    _Atomic uint64_t rung = 0;
    crowd crowds[PRODUCERS];
    pthread_t threads[PRODUCERS];
    uint64_t sleeps = 0, next = 0, seen[PRODUCERS] = {0};
    const int bell = eventfd(0, 0);
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        crowds[i] = (crowd){at, bell, i * EACH, &rung};
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_produces, &crowds[i]), 0);
    }
    while (next < PRODUCERS * EACH) {
        base_ring_body body;
        const kvt_status status = base_ring_take(&at->ring, next, &body);
        if (status == KVT_OK) {
            const uint64_t producer = body.words[0] / EACH;
            assert_body(&body, body.words[0]);
            assert_true(producer < PRODUCERS);
            assert_int_equal(body.words[0] % EACH, seen[producer]++);
            next++;
            continue;
        }
        assert_int_equal(status, KVT_END);
        if (!base_ring_sleeps(&at->ring, next)) continue;
        uint64_t count;
        assert_int_equal(read(bell, &count, sizeof count), sizeof count);
        sleeps++;
    }
    void *failed;
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_true(atomic_load(&rung) >= sleeps);
    close(bell);
    site_free(at);
}

typedef struct scribbler {
    base_ring_words *words;
    uint32_t entries;
    uint64_t seed;
    atomic_bool stop;
} scribbler;

static void *scribbler_runs(void *argument)
{
    scribbler *one = argument;
    while (!atomic_load_explicit(&one->stop, memory_order_relaxed))
        ring_scribble(one->words, one->entries, &one->seed);
    return NULL;
}

/* All calls while the other side writes; returns how many entries looked sound. */
static uint64_t meet_scribbler(site *at, uint32_t steps, bool shares)
{
    uint64_t next = 0, given, sound = 0, seed = 7;
    _Atomic uint64_t *claimed = shares ? &at->ring.words->claimed : &at->claimed;
    for (uint32_t i = 0; i < steps; i++) {
        base_ring_body body = body_of(i);
        kvt_status status = base_ring_take(&at->ring, next, &body);
        assert_true(status == KVT_OK || status == KVT_END || status == KVT_E_CORRUPT);
        next += status == KVT_OK;
        sound += status == KVT_OK;
        status = base_ring_claim(&at->ring, claimed, 1 + i % ENTRIES, &given);
        assert_true(status == KVT_OK || status == KVT_BUSY || status == KVT_E_CORRUPT);
        if (status == KVT_OK) status = base_ring_post(&at->ring, given, &body);
        assert_true(status == KVT_OK || status == KVT_BUSY || status == KVT_E_CORRUPT);
        status = base_ring_room(&at->ring, claimed, i % ENTRIES);
        assert_true(status == KVT_OK || status == KVT_BUSY || status == KVT_E_CORRUPT);
        (void)base_ring_sleeps(&at->ring, next);
        (void)base_ring_wakes(&at->ring);
        /* A sound ring again, or a place far from it. */
        if (i % 64 == 0) {
            next = i % 128 == 0 ? 0 : ring_random(&seed);
            base_ring_make(at->memory, ENTRIES);
            atomic_store(&at->claimed, next);
        }
    }
    return sound;
}

TEST(a_thread_that_writes_anything_moves_nobody_out)
{
    site *at = site_make(ENTRIES);
    scribbler one = {.words = at->ring.words, .entries = ENTRIES, .seed = 11};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, scribbler_runs, &one), 0);
    uint64_t next = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        base_ring_body body = body_of(i);
        uint64_t position;
        if (base_ring_take(&at->ring, next, &body) == KVT_OK) next++;
        kvt_status status = base_ring_claim(&at->ring, &at->claimed, 1, &position);
        if (status == KVT_OK) status = base_ring_post(&at->ring, position, &body);
        assert_true(status == KVT_OK || status == KVT_BUSY || status == KVT_E_CORRUPT);
        (void)base_ring_sleeps(&at->ring, next);
        (void)base_ring_wakes(&at->ring);
    }
    atomic_store(&one.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    site_free(at);
}

/* ---- processes ---- */

TEST(a_process_that_writes_anything_moves_nobody_out)
{
    site *at = site_make(ENTRIES);
    const pid_t child = ring_fork();
    if (child == 0) {
        uint64_t seed = 3;
        for (;;)
            ring_scribble(at->ring.words, ENTRIES, &seed);
    }
    const uint64_t sound = meet_scribbler(at, 200000, false) + meet_scribbler(at, 200000, true);
    kill(child, SIGKILL);
    assert_true(WIFSIGNALED(ring_child_ends(child)));
    assert_true(sound > 0);
    site_free(at);
}

/* Asks and answers over two rings; each process sleeps on an eventfd when it has nothing to do. */
#define ASKED 30000u

typedef struct pair {
    base_ring asks, answers;
    int asked, answered; /* bells */
} pair;

static kvt_status pair_gives(base_ring *ring, _Atomic uint64_t *claimed, int bell, uint64_t number)
{
    uint64_t position;
    const base_ring_body body = body_of(number);
    kvt_status status = base_ring_claim(ring, claimed, 1, &position);
    if (status == KVT_OK) status = base_ring_post(ring, position, &body);
    const uint64_t one = 1;
    if (status == KVT_OK && base_ring_wakes(ring) && write(bell, &one, sizeof one) != sizeof one)
        return KVT_E_IO;
    return status;
}

/* Waits for the entry at `next`. */
static kvt_status pair_gets(base_ring *ring, int bell, uint64_t next, base_ring_body *body)
{
    for (;;) {
        const kvt_status status = base_ring_take(ring, next, body);
        uint64_t count;
        if (status != KVT_END) return status;
        if (base_ring_sleeps(ring, next) && read(bell, &count, sizeof count) != sizeof count)
            return KVT_E_IO;
    }
}

static int pair_answers(pair *both)
{
    _Atomic uint64_t claimed = 0;
    for (uint64_t next = 0; next < ASKED; next++) {
        base_ring_body body;
        if (pair_gets(&both->asks, both->asked, next, &body) != KVT_OK) return 1;
        kvt_status status;
        do {
            status = pair_gives(&both->answers, &claimed, both->answered, body.words[0] * 3);
        } while (status == KVT_BUSY && sched_yield() == 0);
        if (status != KVT_OK) return 2;
    }
    return 0;
}

TEST(two_processes_ask_and_answer)
{
    const uint32_t entries = 32;
    const size_t bytes = base_ring_bytes(entries);
    void *memory[2] = {ring_memory(bytes), ring_memory(bytes)};
    pair both = {.asked = eventfd(0, 0), .answered = eventfd(0, 0)};
    base_ring_make(memory[0], entries);
    base_ring_make(memory[1], entries);
    assert_ok(base_ring_attach(&both.asks, memory[0], bytes, entries));
    assert_ok(base_ring_attach(&both.answers, memory[1], bytes, entries));
    const pid_t child = ring_fork();
    if (child == 0) _exit(pair_answers(&both));
    _Atomic uint64_t claimed = 0;
    uint64_t given = 0;
    for (uint64_t next = 0; next < ASKED; next++) {
        base_ring_body body;
        /* Sometimes one at a time, sometimes as many as fit. */
        while (given < ASKED && given < next + 1 + next % (2 * entries) &&
               pair_gives(&both.asks, &claimed, both.asked, given) == KVT_OK)
            given++;
        assert_ok(pair_gets(&both.answers, both.answered, next, &body));
        assert_body(&body, next * 3);
    }
    assert_int_equal(ring_child_ends(child), 0);
    close(both.asked);
    close(both.answered);
    ring_memory_free(memory[0], bytes);
    ring_memory_free(memory[1], bytes);
}

/* Producers of several processes share the counter in the ring; one of them dies between claim and
 * post, and everything before its hole still comes. */
TEST(a_producer_that_dies_leaves_a_hole)
{
    site *at = site_make(64);
    base_ring_words *words = at->ring.words;
    uint64_t position;
    for (uint64_t i = 0; i < 3; i++) {
        const pid_t child = ring_fork();
        if (child == 0) {
            const base_ring_body body = body_of(i);
            if (base_ring_claim(&at->ring, &words->claimed, 2, &position) != KVT_OK) _exit(1);
            if (base_ring_post(&at->ring, position, &body) != KVT_OK) _exit(2);
            if (i == 2) _exit(3);
            _exit(base_ring_post(&at->ring, position + 1, &body) != KVT_OK);
        }
        assert_int_equal(WEXITSTATUS(ring_child_ends(child)), i == 2 ? 3 : 0);
    }
    base_ring_body body = body_of(9);
    assert_ok(base_ring_claim(&at->ring, &words->claimed, 1, &position));
    assert_int_equal(position, 6);
    assert_ok(base_ring_post(&at->ring, position, &body));
    for (uint64_t next = 0; next < 5; next++) {
        assert_ok(base_ring_take(&at->ring, next, &body));
        assert_body(&body, next / 2);
    }
    assert_int_equal(base_ring_take(&at->ring, 5, &body), KVT_END);
    assert_true(base_ring_sleeps(&at->ring, 5));
    site_free(at);
}
