/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_follow.c - a follower beside stores of other processes that put, move, remove, restart
 * and are killed: every hit has the right bytes, what is at rest is found, nothing is left behind.
 *
 * The owners are children that were forked before the follower opened anything, because SQLite's
 * state must not be carried over a fork; each lives one life, by commands from a pipe.
 */
#include "tests/support/store_site.h"

#include <dirent.h>
#include <fcntl.h>
#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>
#include <kvterrace/watch.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { OWNERS = 4, KEYS = 48, WORDS = 4096 };
#define BYTES ((uint64_t)WORDS * 8)

/* What owners tell, in memory that all share. */
typedef struct told {
    bool durable[KEYS];
    uint32_t versions[KEYS]; /* of the newest put that was taken */
    volatile bool stop;
    volatile uint32_t rounds;
} told;

typedef struct owner {
    pid_t pid;
    int command, answer;
} owner;

static owner owners[OWNERS];
static told *shared;

/* ---- entries: each word says number, version and place ---- */

static uint64_t word_of(uint32_t number, uint32_t version, uint32_t at)
{
    uint64_t word = ((uint64_t)number << 48 | (uint64_t)version << 16) + 0x9e37 * (uint64_t)at;
    word ^= word >> 29;
    return word * UINT64_C(0xbf58476d1ce4e5b9) + at;
}

static void entry_fill(uint32_t number, uint32_t version, uint64_t *words)
{
    words[0] = number;
    words[1] = version;
    for (uint32_t i = 2; i < WORDS; i++)
        words[i] = word_of(number, version, i);
}

static kvt_status entry_put(kvt_store *store, uint32_t number, uint32_t version)
{
    static uint64_t words[WORDS];
    entry_fill(number, version, words);
    const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = BYTES};
    const kvt_entry entry = support_entry(support_key(number), layout, 1);
    return kvt_store_put(store, &entry, KVT_PACKED(words, BYTES));
}

/* Gets an entry; a hit has every byte of one version of it. */
static kvt_status entry_get(kvt_store *store, uint32_t number, uint32_t *version_out)
{
    static uint64_t words[WORDS], expected[WORDS];
    const kvt_key key = support_key(number);
    memset(words, 0xee, BYTES);
    const kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(words, BYTES), KVT_NO_DEADLINE, NULL);
    if (status != KVT_OK) return status;
    assert_int_equal(words[0], number);
    *version_out = (uint32_t)words[1];
    entry_fill(number, *version_out, expected);
    assert_memory_equal(words, expected, BYTES);
    return KVT_OK;
}

/* ---- owners ---- */

static void owner_note(kvt_store *store)
{
    for (uint32_t i = 0; i < KEYS; i++) {
        kvt_description what = {.struct_size = sizeof what};
        const kvt_key key = support_key(i);
        shared->durable[i] = kvt_store_describe(store, &key, &what) == KVT_OK &&
                             (what.tier == KVT_TIER_SSD || what.copy_bytes != 0);
    }
}

/* Puts, uses, removes and clears until it is told to stop; restarts now and then. */
static kvt_status owner_churn(site *s, bool restarts)
{
    uint64_t dice = (uint64_t)getpid() * 2654435761u + 1;
    while (!shared->stop) {
        dice = dice * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const uint32_t number = (uint32_t)(dice >> 33) % KEYS, what = (uint32_t)(dice >> 20) % 64;
        const kvt_key key = support_key(number);
        uint32_t version;
        if (what < 26) {
            (void)!kvt_store_delete(s->store, &key);
            const kvt_status status = entry_put(s->store, number, shared->versions[number] + 1);
            if (status == KVT_OK) shared->versions[number]++;
        } else if (what < 50) {
            (void)!entry_get(s->store, number, &version);
        } else if (what < 58) {
            (void)!kvt_store_delete(s->store, &key);
        } else if (what < 62) {
            (void)!kvt_store_maintain(s->store, NULL);
        } else if (dice >> 55 < 8) {
            const kvt_clear_filter all = {.struct_size = sizeof all, .everything = true};
            (void)!kvt_store_clear(s->store, &all, NULL);
        } else if (restarts && dice >> 55 < 24) {
            site_close(s);
            const kvt_status status = site_try_open(s);
            if (status != KVT_OK) return status;
        }
        shared->rounds++;
    }
    return kvt_store_flush(s->store);
}

static kvt_status owner_do(site *s, char what, uint32_t from, uint32_t to)
{
    kvt_status status = KVT_OK;
    switch (what) {
    case 'o': return site_try_open(s);
    case 'p':
        for (uint32_t i = from; i < to && status == KVT_OK; i++) {
            status = entry_put(s->store, i, shared->versions[i] + 1);
            if (status == KVT_OK) shared->versions[i]++;
        }
        break;
    case 'd':
        for (uint32_t i = from; i < to && status == KVT_OK; i++) {
            const kvt_key key = support_key(i);
            status = kvt_store_delete(s->store, &key);
        }
        break;
    case 'c': status = owner_churn(s, from != 0); break;
    case 'x': site_close(s); return KVT_OK;
    default: return KVT_E_ARGUMENT;
    }
    if (status == KVT_OK) status = kvt_store_flush(s->store);
    owner_note(s->store);
    return status;
}

static void owner_live(site *s, int commands, int answers, pid_t parent)
{
    uint32_t command[3];
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(99);
    while (read(commands, command, sizeof command) == (ssize_t)sizeof command) {
        const int32_t status = owner_do(s, (char)command[0], command[1], command[2]);
        if (write(answers, &status, sizeof status) != (ssize_t)sizeof status) break;
        if ((char)command[0] == 'x') break;
    }
    _exit(0);
}

/* A site with owners that wait; no store is open. Memory above the files: 0 or a few entries. */
static site *site_follow(uint32_t memory_entries)
{
    site *s = site_prepare((site_shape){.disks = 2,
                                        .disk_bytes = 1 << 20,
                                        .unit_bytes = 8192,
                                        .plain = true,
                                        .memory_bytes = memory_entries * (BYTES + 16384)});
    const pid_t parent = getpid();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (int i = 0; i < OWNERS; i++) {
        int commands[2], answers[2];
        assert_int_equal(pipe2(commands, O_CLOEXEC), 0);
        assert_int_equal(pipe2(answers, O_CLOEXEC), 0);
        owners[i] = (owner){fork(), commands[1], answers[0]};
        assert_true(owners[i].pid >= 0);
        if (owners[i].pid == 0) owner_live(s, commands[0], answers[1], parent);
        close(commands[0]);
        close(answers[1]);
    }
    return s;
}

static void owner_ask(int which, char what, uint32_t from, uint32_t to)
{
    const uint32_t command[3] = {(uint32_t)what, from, to};
    assert_int_equal(write(owners[which].command, command, sizeof command), sizeof command);
}

static kvt_status owner_answer(int which)
{
    int32_t status = KVT_E_GONE;
    assert_int_equal(read(owners[which].answer, &status, sizeof status), sizeof status);
    return (kvt_status)status;
}

static kvt_status owner_tell(int which, char what, uint32_t from, uint32_t to)
{
    owner_ask(which, what, from, to);
    return owner_answer(which);
}

static void owners_end(void)
{
    for (int i = 0; i < OWNERS; i++) {
        if (owners[i].pid <= 0) continue;
        (void)kill(owners[i].pid, SIGKILL);
        (void)waitpid(owners[i].pid, NULL, 0);
        close(owners[i].command);
        close(owners[i].answer);
        owners[i].pid = 0;
    }
    munmap(shared, sizeof *shared);
}

static void owner_kill(int which)
{
    assert_int_equal(kill(owners[which].pid, SIGKILL), 0);
    assert_int_equal(waitpid(owners[which].pid, NULL, 0), owners[which].pid);
    close(owners[which].command);
    close(owners[which].answer);
    owners[which].pid = 0;
}

static kvt_status follow_try(site *s, kvt_store **out)
{
    kvt_store_options options = s->options;
    options.follow = true;
    return kvt_store_open(&options, out, s->message, sizeof s->message);
}

static kvt_store *follow_now(site *s)
{
    kvt_store *store = NULL;
    const kvt_status status = follow_try(s, &store);
    if (status != KVT_OK) fail_msg("follow: %s: %s", kvt_status_name(status), s->message);
    assert_string_equal(s->message, "");
    return store;
}

/* All that the owner has said to be on its devices is found, with the newest bytes. Returns how
 * many there are. */
static uint32_t expect_durable(kvt_store *follower)
{
    uint32_t count = 0, version;
    for (uint32_t i = 0; i < KEYS; i++) {
        const kvt_key key = support_key(i);
        const kvt_status status = entry_get(follower, i, &version);
        assert_int_equal(status, shared->durable[i] ? KVT_OK : KVT_MISS);
        assert_int_equal(kvt_store_exists(follower, &key), status);
        if (status != KVT_OK) continue;
        assert_int_equal(version, shared->versions[i]);
        count++;
    }
    return count;
}

/* All whose row is there is found. Returns how many there are. */
static uint32_t expect_rows(kvt_store *follower)
{
    uint32_t count = 0, version;
    for (uint32_t i = 0; i < KEYS; i++) {
        const kvt_key key = support_key(i);
        const kvt_status there = kvt_store_exists(follower, &key);
        assert_int_equal(entry_get(follower, i, &version), there);
        count += there == KVT_OK;
    }
    return count;
}

/* ---- cases ---- */

TEST(what_is_flushed_is_found)
{
    site *s = site_follow(0);
    kvt_store *follower = NULL;
    assert_int_equal(follow_try(s, &follower), KVT_E_GONE); /* no catalog yet */
    assert_ok(owner_tell(0, 'o', 0, 0));
    assert_ok(owner_tell(0, 'p', 0, 10));
    follower = follow_now(s);
    assert_int_equal(expect_durable(follower), 10);
    assert_ok(owner_tell(0, 'd', 0, 4));
    assert_int_equal(expect_durable(follower), 6);
    assert_ok(owner_tell(0, 'p', 0, 2)); /* other bytes under the same keys */
    assert_ok(owner_tell(0, 'p', 10, 14));
    assert_int_equal(expect_durable(follower), 12);
    kvt_key keys[5];
    size_t matched;
    for (uint32_t i = 0; i < 5; i++)
        keys[i] = support_key(i == 0 ? 13 : 9 + i);
    assert_ok(kvt_store_match(follower, keys, 5, NULL, &matched));
    assert_int_equal(matched, 5);
    keys[3] = support_key(3); /* was deleted */
    assert_ok(kvt_store_match(follower, keys, 5, NULL, &matched));
    assert_int_equal(matched, 3);
    kvt_description what = {.struct_size = sizeof what};
    assert_ok(kvt_store_describe(follower, &keys[0], &what));
    assert_true(what.tier == KVT_TIER_SSD && what.bytes == BYTES && what.stored_bytes >= BYTES);
    const kvt_store_stats stats = support_stats(follower);
    assert_int_equal(stats.gets, 3 * KEYS);
    assert_int_equal(stats.tiers[KVT_TIER_SSD].hits, 28);
    assert_int_equal(stats.misses, 3 * KEYS - 28);
    assert_int_equal(stats.load_failures, 0);
    /* The owner's end changes nothing, and neither does that of its log. */
    assert_ok(owner_tell(0, 'x', 0, 0));
    assert_int_equal(expect_durable(follower), 12);
    kvt_store_close(follower);
    follower = follow_now(s);
    assert_int_equal(expect_durable(follower), 12);
    /* The next owner is seen. */
    assert_ok(owner_tell(1, 'o', 0, 0));
    assert_ok(owner_tell(1, 'd', 4, 8));
    assert_ok(owner_tell(1, 'p', 20, 30));
    assert_int_equal(expect_durable(follower), 18);
    kvt_store_close(follower);
    owners_end();
}

TEST(nothing_can_be_changed)
{
    site *s = site_follow(0);
    assert_ok(owner_tell(0, 'o', 0, 0));
    assert_ok(owner_tell(0, 'p', 0, 3));
    kvt_store *follower = follow_now(s);
    const kvt_key key = support_key(1);
    size_t count, loaded;
    uint64_t removed;
    char text[8] = "text";
    assert_int_equal(entry_put(follower, 40, 1), KVT_REFUSED);
    assert_int_equal(kvt_store_delete(follower, &key), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_store_clear(follower, NULL, &removed), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_store_touch(follower, &key, 1, &count), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_store_maintain(follower, NULL), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_device_change(follower, "disk0", KVT_DEVICE_RETIRE), KVT_E_UNSUPPORTED);
    kvt_list_item item = {.struct_size = sizeof item};
    uint64_t cursor = 0;
    assert_int_equal(kvt_store_list(follower, NULL, &cursor, &item, 1, &count), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_metrics_write(follower, text, sizeof text), 0);
    assert_ok(kvt_store_flush(follower));
    assert_int_equal(expect_durable(follower), 3);
    /* A view for another size, and a deadline that leaves no time. */
    static uint64_t words[WORDS];
    kvt_get_info info = {.struct_size = sizeof info};
    assert_int_equal(
        kvt_store_get(follower, &key, KVT_PACKED(words, BYTES - 8), KVT_NO_DEADLINE, &info),
        KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_get(follower, &key, KVT_PACKED(words, BYTES), 0, &info), KVT_MISS);
    assert_true(info.timed_out);
    assert_ok(kvt_store_get(follower, &key, KVT_PACKED(words, BYTES), KVT_NO_DEADLINE, &info));
    assert_true(info.tier == KVT_TIER_SSD && !info.timed_out && info.stored_bytes >= BYTES);
    static uint64_t other[WORDS];
    kvt_key keys[3] = {support_key(0), support_key(2), support_key(9)};
    const kvt_view *views[3] = {KVT_PACKED(words, BYTES), KVT_PACKED(other, BYTES),
                                KVT_PACKED(other, BYTES)};
    assert_ok(kvt_prefix_get(follower, keys, views, 3, KVT_NO_DEADLINE, &loaded));
    assert_true(loaded == 2 && words[0] == 0 && other[0] == 2);
    kvt_status overall;
    assert_ok(kvt_health_get(follower, NULL, 0, &count, &overall));
    assert_true(count == 0 && overall == KVT_OK);
    kvt_store_close(follower);
    owners_end();
}

/* One request, carried out to its end. */
static kvt_completion carry_out(kvt_queue *queue, kvt_request request)
{
    kvt_completion done = {.struct_size = sizeof done};
    request.struct_size = sizeof request;
    if (request.deadline_ns == 0) request.deadline_ns = KVT_NO_DEADLINE;
    assert_ok(kvt_queue_submit(queue, &request, 1, NULL));
    assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
    assert_int_equal(kvt_queue_wait(queue, KVT_NO_DEADLINE), KVT_END);
    return done;
}

/* A queue carries out what the follower's own calls do, and gives their answers. */
TEST(queues_answer_as_the_calls_do)
{
    enum { MANY = 4 * KEYS };
    static uint64_t words[MANY][WORDS], expected[WORDS];
    static kvt_request requests[MANY];
    static kvt_view views[MANY];
    static kvt_completion done[MANY];
    site *s = site_follow(0);
    assert_ok(owner_tell(0, 'o', 0, 0));
    assert_ok(owner_tell(0, 'p', 0, 24));
    kvt_store *follower = follow_now(s);
    kvt_queue *queue = NULL;
    assert_int_equal(kvt_queue_open(follower, NULL, NULL), KVT_E_ARGUMENT);
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = 4, .depth = MANY};
    assert_ok(kvt_queue_open(follower, &options, &queue));
    for (int round = 0; round < 5; round++) {
        uint32_t hits = 0;
        for (uint32_t i = 0; i < MANY; i++) {
            views[i] = kvt_view_packed(words[i], BYTES);
            requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                        .kind = i % 8 == 7 ? KVT_REQUEST_EXISTS : KVT_REQUEST_GET,
                                        .urgency = i % 3,
                                        .key = support_key(i % KEYS),
                                        .view = &views[i],
                                        .deadline_ns = KVT_NO_DEADLINE,
                                        .user = i};
        }
        assert_ok(kvt_queue_submit(queue, requests, MANY, NULL));
        assert_int_equal(kvt_queue_submit(queue, requests, MANY, NULL), KVT_BUSY);
        done[0].struct_size = sizeof done[0];
        for (size_t count = 0, now; count < MANY; count += now) {
            assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
            now = kvt_queue_drain(queue, done, MANY);
            for (size_t i = 0; i < now; i++) {
                const uint32_t number = (uint32_t)done[i].user % KEYS;
                assert_int_equal(done[i].status, shared->durable[number] ? KVT_OK : KVT_MISS);
                if (done[i].status != KVT_OK || done[i].kind != KVT_REQUEST_GET) continue;
                entry_fill(number, shared->versions[number], expected);
                assert_memory_equal(words[done[i].user], expected, BYTES);
                assert_int_equal(done[i].tier, KVT_TIER_SSD);
                assert_true(done[i].stored_bytes >= BYTES);
                hits++;
            }
        }
        assert_true(hits > 24);
    }
    /* A batch that is called off, and a store that is closed first. */
    uint64_t batch;
    assert_ok(kvt_queue_submit(queue, requests, MANY, &batch));
    (void)!kvt_queue_cancel(queue, batch);
    size_t ended = 0;
    while (kvt_queue_wait(queue, KVT_NO_DEADLINE) == KVT_OK)
        ended += kvt_queue_drain(queue, done, MANY);
    assert_int_equal(ended, MANY);
    assert_ok(kvt_queue_submit(queue, requests, MANY, NULL));
    kvt_store_close(follower);
    assert_int_equal(kvt_queue_submit(queue, requests, 1, NULL), KVT_E_STATE);
    assert_int_equal(kvt_queue_drain(queue, done, MANY), MANY);
    kvt_queue_close(queue);
    owners_end();
}

/* What a queue of a follower refuses, and what it cannot. */
TEST(queues_refuse_what_the_calls_refuse)
{
    static uint64_t words[WORDS];
    site *s = site_follow(0);
    assert_ok(owner_tell(0, 'o', 0, 0));
    assert_ok(owner_tell(0, 'p', 0, 3));
    kvt_store *follower = follow_now(s);
    kvt_queue *queue = NULL;
    assert_ok(kvt_queue_open(follower, NULL, &queue));
    const kvt_view packed = kvt_view_packed(words, BYTES);
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_entry entry = support_entry(support_key(1), support_layout, 1);
    const kvt_key key = support_key(1);
    const kvt_view *view = &packed;
    kvt_completion one =
        carry_out(queue, (kvt_request){.kind = KVT_REQUEST_PUT, .entry = &entry, .view = view});
    assert_int_equal(one.status, KVT_REFUSED);
    static const uint32_t unsupported[] = {KVT_REQUEST_DELETE, KVT_REQUEST_TOUCH,
                                           KVT_REQUEST_PREFETCH};
    for (int i = 0; i < 3; i++) {
        one = carry_out(queue,
                        (kvt_request){.kind = unsupported[i], .key = key, .tier = KVT_TIER_DRAM});
        assert_int_equal(one.status, KVT_E_UNSUPPORTED);
    }
    const kvt_request get = {.kind = KVT_REQUEST_GET, .key = key, .view = view, .info = &info};
    kvt_request other = get;
    other.layer_count = 1;
    assert_int_equal(carry_out(queue, other).status, KVT_E_UNSUPPORTED);
    other = get;
    other.loss_max = -1; /* all of its entries are exact */
    one = carry_out(queue, other);
    assert_true(one.status == KVT_OK && info.tier == KVT_TIER_SSD && !one.refused_loss);
    other.deadline_ns = 1;
    one = carry_out(queue, other);
    assert_true(one.status == KVT_MISS && one.timed_out);
    kvt_load *load = NULL;
    assert_int_equal(kvt_load_begin(queue, &key, &view, 1, NULL, &load), KVT_E_UNSUPPORTED);
    kvt_queue_close(queue);
    kvt_store_close(follower);
    owners_end();
}

/* Entries that are in DRAM alone are misses. */
TEST(memory_alone_is_a_miss)
{
    site *s = site_follow(4);
    assert_ok(owner_tell(0, 'o', 0, 0));
    assert_ok(owner_tell(0, 'p', 0, 12));
    kvt_store *follower = follow_now(s);
    const uint32_t found = expect_durable(follower);
    assert_true(found > 0 && found < 12);
    kvt_store_close(follower);
    owners_end();
}

/* Gets all the time while an owner works; returns hits. */
static uint32_t get_meanwhile(kvt_store *follower, uint32_t rounds)
{
    uint32_t hits = 0, version;
    const uint32_t until = shared->rounds + rounds;
    for (uint32_t i = 0; (int32_t)(until - shared->rounds) > 0; i++) {
        const kvt_status status = entry_get(follower, i * 7 % KEYS, &version);
        assert_true(status == KVT_OK || status == KVT_MISS);
        hits += status == KVT_OK;
    }
    return hits;
}

TEST(no_race_gives_wrong_bytes)
{
    site *s = site_follow(6);
    assert_ok(owner_tell(0, 'o', 0, 0));
    kvt_store *follower = follow_now(s);
    owner_ask(0, 'c', 1, 0);
    assert_true(get_meanwhile(follower, 3000) > 100);
    shared->stop = true;
    assert_ok(owner_answer(0));
    assert_true(expect_durable(follower) > 0);
    assert_int_equal(support_stats(follower).load_failures, 0);
    /* Killed at work: every row that is there is that of a whole record. A transaction that was
     * written and not yet in the log's index is seen by the follower that opens next alone. */
    shared->stop = false;
    owner_ask(0, 'c', 0, 0);
    assert_true(get_meanwhile(follower, 1000) > 20);
    owner_kill(0);
    assert_true(expect_rows(follower) > 0);
    kvt_store_close(follower);
    follower = follow_now(s); /* with a log that a dead process has left */
    assert_true(expect_rows(follower) > 0);
    assert_ok(owner_tell(1, 'o', 0, 0));
    owner_ask(1, 'c', 1, 0);
    assert_true(get_meanwhile(follower, 1500) > 50);
    shared->stop = true;
    assert_ok(owner_answer(1));
    /* The killed owner may have put a version that it did not note, so no version is compared. */
    uint32_t durable = 0;
    for (uint32_t i = 0; i < KEYS; i++)
        durable += shared->durable[i];
    assert_int_equal(expect_rows(follower), durable);
    assert_int_equal(support_stats(follower).load_failures, 0);
    kvt_store_close(follower);
    owners_end();
}

/* ---- what is left behind ---- */

typedef struct listing {
    uint32_t count;
    struct {
        char name[64];
        off_t size;
        struct timespec written; /* st_ctim is another: to root, SQLite says a log's owner anew */
        ino_t inode;
    } files[16];
} listing;

static listing list_folder(const site *s)
{
    listing out;
    memset(&out, 0, sizeof out);
    DIR *folder = opendir(s->folder);
    assert_non_null(folder);
    for (const struct dirent *item; (item = readdir(folder)) != NULL;) {
        struct stat facts;
        char path[400];
        if (item->d_name[0] == '.') continue;
        assert_true(out.count < 16);
        (void)snprintf(path, sizeof path, "%s/%s", s->folder, item->d_name);
        assert_int_equal(stat(path, &facts), 0);
        (void)snprintf(out.files[out.count].name, 64, "%.63s", item->d_name);
        out.files[out.count].size = facts.st_size;
        out.files[out.count].written = facts.st_mtim;
        out.files[out.count++].inode = facts.st_ino;
    }
    closedir(folder);
    return out;
}

TEST(nothing_is_left_behind)
{
    site *s = site_follow(0);
    assert_ok(owner_tell(0, 'o', 0, 0));
    assert_ok(owner_tell(0, 'p', 0, 8));
    /* With an owner, with one that was killed, and with none. */
    for (int life = 0; life < 3; life++) {
        if (life == 1) owner_kill(0);
        if (life == 2) {
            assert_ok(owner_tell(1, 'o', 0, 0));
            assert_ok(owner_tell(1, 'x', 0, 0));
        }
        const listing before = list_folder(s);
        assert_int_equal(before.count, life < 2 ? 6 : 5); /* a close keeps the rows beside */
        kvt_store *follower = follow_now(s);
        assert_int_equal(expect_durable(follower), 8);
        const listing during = list_folder(s);
        kvt_store_close(follower);
        const listing after = list_folder(s);
        assert_memory_equal(&before, &during, sizeof before);
        assert_memory_equal(&before, &after, sizeof before);
    }
    owners_end();
}

/* The catalog of an owner that has closed is whole without the log that a follower makes stay. */
TEST(a_catalog_alone_is_whole)
{
    site *s = site_follow(0);
    char command[400];
    assert_ok(owner_tell(0, 'o', 0, 0));
    kvt_store *follower = follow_now(s);
    assert_ok(owner_tell(0, 'p', 0, 8));
    assert_ok(owner_tell(0, 'x', 0, 0));
    kvt_store_close(follower);
    (void)snprintf(command, sizeof command, "rm -f '%s-wal' '%s-shm'", s->catalog, s->catalog);
    assert_int_equal(system(command), 0);
    follower = follow_now(s);
    assert_int_equal(expect_durable(follower), 8);
    kvt_store_close(follower);
    owners_end();
}

TEST(owners_exclude_each_other_as_ever)
{
    site *s = site_follow(0);
    assert_ok(owner_tell(0, 'o', 0, 0));
    kvt_store *follower = follow_now(s);
    assert_int_equal(owner_tell(1, 'o', 0, 0), KVT_E_LOCKED);
    assert_ok(owner_tell(0, 'x', 0, 0));
    /* The follower keeps nobody out. */
    assert_ok(owner_tell(2, 'o', 0, 0));
    assert_ok(owner_tell(2, 'p', 0, 5));
    assert_int_equal(expect_durable(follower), 5);
    kvt_store_close(follower);
    owners_end();
}

/* Puts a copy in a file's place. */
static void replace_file(const char *path)
{
    char command[480];
    (void)snprintf(command, sizeof command, "cp '%s' '%s.new' && mv '%s.new' '%s'", path, path,
                   path, path);
    assert_int_equal(system(command), 0);
}

TEST(replaced_files_are_followed)
{
    site *s = site_follow(0);
    assert_ok(owner_tell(0, 'o', 0, 0));
    assert_ok(owner_tell(0, 'p', 0, 6));
    assert_ok(owner_tell(0, 'x', 0, 0));
    kvt_store *follower = follow_now(s);
    assert_int_equal(expect_durable(follower), 6);
    replace_file(s->catalog);
    replace_file(s->paths[0]);
    assert_int_equal(expect_durable(follower), 6);
    assert_ok(owner_tell(1, 'o', 0, 0));
    assert_ok(owner_tell(1, 'd', 0, 6));
    assert_ok(owner_tell(1, 'p', 0, 12)); /* on the new file alone */
    assert_int_equal(expect_durable(follower), 12);
    assert_ok(owner_tell(1, 'x', 0, 0));
    /* Bytes that are damaged at rest are a miss, and a failure. */
    assert_int_equal(support_stats(follower).load_failures, 0);
    for (int i = 0; i < 2; i++) {
        char command[200];
        (void)snprintf(command, sizeof command,
                       "dd if=/dev/zero of='%s' bs=4096 seek=2 count=200 conv=notrunc 2>/dev/null",
                       s->paths[i]);
        assert_int_equal(system(command), 0);
    }
    uint32_t version;
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(entry_get(follower, i, &version), KVT_MISS);
    assert_int_equal(support_stats(follower).load_failures, 12);
    kvt_store_close(follower);
    /* A device that is absent: its entries are misses, and it is looked for again. */
    char gone[128];
    (void)snprintf(gone, sizeof gone, "%s.gone", s->paths[1]);
    assert_int_equal(rename(s->paths[1], gone), 0);
    assert_ok(follow_try(s, &follower));
    assert_non_null(strstr(s->message, "disk1"));
    size_t count;
    kvt_status overall;
    kvt_health_item items[2] = {{.struct_size = sizeof items[0]}};
    assert_ok(kvt_health_get(follower, items, 2, &count, &overall));
    assert_true(count == 1 && overall == KVT_E_GONE && strcmp(items[0].name, "disk1") == 0);
    assert_int_equal(access(s->paths[1], F_OK), -1);
    kvt_store_close(follower);
    owners_end();
}
