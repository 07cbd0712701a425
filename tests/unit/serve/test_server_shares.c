/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_shares.c - clients that keep a drive busy get the same bytes of it, whatever the
 * number of their channels, by gets or by layered loads; a client beyond its share waits without
 * holding up its other requests.
 *
 * The drive is a file behind a throttle, far slower than any client: the server's choice of what it
 * lets each have in flight decides what each gets.
 */

#include "store_support.h"

#include "base/clock.h"
#include "serve/server/server.h"

#include <kvterrace/connect.h>
#include <kvterrace/load.h>
#include <kvterrace/queue.h>
#include <pthread.h>
#include <stdatomic.h>

#define SHARES_ENTRY   (64u * 1024u)
#define SHARES_ENTRIES 128u /* of each client */
#define SHARES_DEPTH   128u /* requests of a queue */
#define SHARES_CLIENTS 4u
#define SHARES_WINDOW  (8u << 20)
#define SHARES_WARM    200u /* gets of each before what all get is counted */

static const kvt_layout shares_layout = {
    .layers = 8, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 32};

static char folder[64], path[96], disk[96];
static kvt_store *own;
static server *lends;
static pthread_t serving;

static void *serves(void *argument)
{
    return server_run(argument) == KVT_OK ? NULL : argument;
}

/* Lends a store of one drive that reads so many bytes a second. */
static void begin(uint64_t read_bytes_per_s, uint64_t in_flight_bytes)
{
    char message[256] = "";
    kvt_store_options options;
    support_make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(disk, sizeof disk, "%s/disk", folder);
    kvt_store_options_init(&options);
    kvt_device_config file = support_file_config("disk", disk, 64 << 20);
    file.read_bytes_per_s = read_bytes_per_s;
    options.policy = "lru";
    options.lossless = false;
    options.scrub.period_seconds = 0; /* its reads are pending bytes, too */
    options.limits.staging_bytes = 64 << 20;
    options.limits.put_staging_bytes = 4 << 20;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = &file, .device_count = 1};
    if (kvt_store_open(&options, &own, message, sizeof message) != KVT_OK) fail_msg("%s", message);
    const server_options lent = {.path = path, .in_flight_bytes = in_flight_bytes};
    if (server_open(own, &lent, &lends, message, sizeof message) != KVT_OK) fail_msg("%s", message);
    assert_int_equal(pthread_create(&serving, NULL, serves, lends), 0);
}

static void end(void)
{
    void *failed;
    server_stop(lends);
    assert_int_equal(pthread_join(serving, &failed), 0);
    assert_null(failed);
    server_close(lends);
    kvt_store_close(own);
    support_remove_folder(folder);
}

static void put_all(uint32_t count)
{
    char *data = calloc(1, SHARES_ENTRY);
    assert_non_null(data);
    for (uint32_t i = 0; i < count; i++) {
        const kvt_entry entry = support_entry(support_key(i), shares_layout, 1);
        kvt_status status;
        memset(data, (int)i, SHARES_ENTRY);
        while ((status = kvt_store_put(own, &entry, KVT_PACKED(data, SHARES_ENTRY))) == KVT_BUSY)
            assert_ok(kvt_store_flush(own));
        assert_ok(status);
    }
    assert_ok(kvt_store_flush(own));
    free(data);
}

/* ---- a client that keeps its queues full, or as many loads open ---- */

#define SHARES_LOADS   8u
#define SHARES_OF_LOAD (SHARES_ENTRIES / SHARES_LOADS) /* entries; no load shares a read */

typedef struct client {
    uint32_t number, queues, next;
    kvt_store *store;
    kvt_queue *queue[8];
    bool loads;
    kvt_load *load[SHARES_LOADS];
    uint32_t layers[SHARES_LOADS]; /* that have come of them */
    char *memory;                  /* a region: a place for each request */
    pthread_t thread;
    atomic_uint done;
    atomic_bool wrong;
} client;

static atomic_bool stops;

static void client_asks(client *self, uint32_t queue, uint32_t place)
{
    char *at = self->memory + (size_t)(queue * SHARES_DEPTH + place) * SHARES_ENTRY;
    const kvt_view view = kvt_view_packed(at, SHARES_ENTRY);
    static _Thread_local kvt_view views[8 * SHARES_DEPTH];
    const uint32_t number = self->number * SHARES_ENTRIES + self->next++ % SHARES_ENTRIES;
    views[queue * SHARES_DEPTH + place] = view;
    const kvt_request request = {.struct_size = sizeof request,
                                 .kind = KVT_REQUEST_GET,
                                 .key = support_key(number),
                                 .view = &views[queue * SHARES_DEPTH + place],
                                 .deadline_ns = KVT_NO_DEADLINE,
                                 .user = (uint64_t)number << 32 | place};
    if (kvt_queue_submit(self->queue[queue], &request, 1, NULL) != KVT_OK)
        atomic_store(&self->wrong, true);
}

static void *client_runs(void *argument)
{
    client *self = argument;
    for (uint32_t q = 0; q < self->queues; q++)
        for (uint32_t i = 0; i < SHARES_DEPTH; i++)
            client_asks(self, q, i);
    while (!atomic_load(&stops)) {
        size_t moved = 0;
        for (uint32_t q = 0; q < self->queues; q++) {
            kvt_completion done[SHARES_DEPTH] = {{.struct_size = sizeof done[0]}};
            const size_t count = kvt_queue_drain(self->queue[q], done, SHARES_DEPTH);
            for (size_t i = 0; i < count; i++) {
                const uint32_t place = (uint32_t)done[i].user,
                               number = (uint32_t)(done[i].user >> 32);
                const char *at = self->memory + (size_t)(q * SHARES_DEPTH + place) * SHARES_ENTRY;
                if (done[i].status != KVT_OK || at[0] != (char)number ||
                    at[SHARES_ENTRY - 1] != (char)number)
                    atomic_store(&self->wrong, true);
                atomic_fetch_add(&self->done, 1);
                client_asks(self, q, place);
            }
            moved += count;
        }
        if (moved == 0) usleep(1000);
    }
    return NULL;
}

static void client_loads(client *self, uint32_t place)
{
    kvt_view views[SHARES_OF_LOAD];
    const kvt_view *pointers[SHARES_OF_LOAD];
    kvt_key keys[SHARES_OF_LOAD];
    for (uint32_t i = 0; i < SHARES_OF_LOAD; i++) {
        const uint32_t entry = place * SHARES_OF_LOAD + i;
        views[i] = kvt_view_packed(self->memory + (size_t)entry * SHARES_ENTRY, SHARES_ENTRY);
        pointers[i] = &views[i];
        keys[i] = support_key(self->number * SHARES_ENTRIES + entry);
    }
    const kvt_load_options options = {
        .struct_size = sizeof options, .layers_ahead = 7, .deadline_ns = KVT_NO_DEADLINE};
    self->layers[place] = 0;
    if (kvt_load_begin(self->queue[0], keys, pointers, SHARES_OF_LOAD, &options,
                       &self->load[place]) != KVT_OK)
        atomic_store(&self->wrong, true);
}

/* Takes the layers that have come, as many gets as their bytes are. True: there were some. */
static bool client_takes(client *self, uint32_t place)
{
    const uint32_t layers = kvt_load_layers(self->load[place]);
    const uint32_t came = layers - self->layers[place];
    self->layers[place] = layers;
    atomic_fetch_add(&self->done, came * SHARES_OF_LOAD / shares_layout.layers);
    kvt_load_release(self->load[place], layers);
    if (layers < shares_layout.layers) return came > 0;
    kvt_status statuses[SHARES_OF_LOAD];
    if (kvt_load_end(self->load[place], statuses, NULL) != KVT_OK) return false;
    for (uint32_t i = 0; i < SHARES_OF_LOAD; i++) {
        const uint32_t entry = place * SHARES_OF_LOAD + i;
        const char expected = (char)(self->number * SHARES_ENTRIES + entry);
        const char *at = self->memory + (size_t)entry * SHARES_ENTRY;
        if (statuses[i] != KVT_OK || at[0] != expected || at[SHARES_ENTRY - 1] != expected)
            atomic_store(&self->wrong, true);
    }
    client_loads(self, place);
    return true;
}

static void *client_runs_loads(void *argument)
{
    client *self = argument;
    for (uint32_t i = 0; i < SHARES_LOADS; i++)
        client_loads(self, i);
    while (!atomic_load(&stops) && !atomic_load(&self->wrong)) {
        bool moved = false;
        for (uint32_t i = 0; i < SHARES_LOADS; i++)
            moved = client_takes(self, i) || moved;
        if (!moved) usleep(1000);
    }
    for (uint32_t i = 0; i < SHARES_LOADS; i++)
        (void)kvt_load_end(self->load[i], NULL, NULL);
    return NULL;
}

/* A client of so many queues; 0: one, for loads. */
static void client_begins(client *self, uint32_t number, uint32_t queues)
{
    char message[256] = "";
    void *memory = NULL;
    *self = (client){.number = number, .queues = queues + (queues == 0), .loads = queues == 0};
    queues = self->queues;
    if (kvt_connect(path, NULL, &self->store, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
    assert_ok(
        kvt_region_make(self->store, (uint64_t)queues * SHARES_DEPTH * SHARES_ENTRY, &memory));
    self->memory = memory;
    for (uint32_t q = 0; q < queues; q++)
        assert_ok(kvt_queue_open(self->store, NULL, &self->queue[q]));
    assert_int_equal(
        pthread_create(&self->thread, NULL, self->loads ? client_runs_loads : client_runs, self),
        0);
}

static void client_ends(client *self)
{
    pthread_join(self->thread, NULL);
    for (uint32_t q = 0; q < self->queues; q++)
        kvt_queue_close(self->queue[q]);
    assert_ok(kvt_region_free(self->store, self->memory));
    kvt_store_close(self->store);
    assert_false(atomic_load(&self->wrong));
}

/* Runs clients with so many queues each, until they have got `gets` entries together. */
static void expect_fair(const uint32_t *queues, uint32_t count, uint32_t gets)
{
    static client clients[SHARES_CLIENTS];
    uint32_t before[SHARES_CLIENTS], got[SHARES_CLIENTS], sum = 0;
    begin(40 << 20, SHARES_WINDOW);
    put_all(count * SHARES_ENTRIES);
    atomic_store(&stops, false);
    for (uint32_t i = 0; i < count; i++)
        client_begins(&clients[i], i, queues[i]);
    for (uint32_t i = 0; i < count; i++)
        while (atomic_load(&clients[i].done) < SHARES_WARM)
            usleep(1000);
    for (uint32_t i = 0; i < count; i++)
        before[i] = atomic_load(&clients[i].done);
    while (sum < gets) {
        usleep(1000);
        sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            got[i] = atomic_load(&clients[i].done) - before[i];
            sum += got[i];
        }
    }
    atomic_store(&stops, true);
    for (uint32_t i = 0; i < count; i++)
        client_ends(&clients[i]);
    end();
    for (uint32_t i = 0; i < count; i++) {
        print_message("%u queues: %u of %u gets\n", queues[i], got[i], sum);
        assert_in_range(got[i] * count * 10, sum * 9, sum * 11);
    }
}

TEST(two_clients_share_a_drive)
{
    expect_fair((const uint32_t[]){1, 1}, 2, 1600);
}

TEST(seven_queues_get_no_more_than_one)
{
    expect_fair((const uint32_t[]){7, 1}, 2, 1600);
}

TEST(four_clients_share_a_drive)
{
    expect_fair((const uint32_t[]){4, 1, 2, 1}, 4, 2000);
}

TEST(loads_get_no_more_than_gets)
{
    expect_fair((const uint32_t[]){0, 1}, 2, 1600);
}

TEST(clients_of_loads_share_a_drive)
{
    expect_fair((const uint32_t[]){0, 0}, 2, 1600);
}

#define HELD_GETS 24u

static char held_memory[2 * HELD_GETS + 1][SHARES_ENTRY];
static kvt_view held_views[2 * HELD_GETS + 1];

/* Submits a batch of gets. */
static uint64_t submit_gets(kvt_queue *queue, uint32_t first, uint32_t count, uint64_t deadline_ns)
{
    kvt_request requests[HELD_GETS];
    uint64_t batch = 0;
    for (uint32_t i = 0; i < count; i++) {
        held_views[first + i] = kvt_view_packed(held_memory[first + i], SHARES_ENTRY);
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = support_key(first + i),
                                    .view = &held_views[first + i],
                                    .deadline_ns = deadline_ns};
    }
    assert_ok(kvt_queue_submit(queue, requests, count, &batch));
    return batch;
}

static kvt_completion next_of(kvt_queue *queue)
{
    kvt_completion done = {.struct_size = sizeof done};
    while (kvt_queue_drain(queue, &done, 1) == 0)
        assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
    return done;
}

/* A client has one get in flight and the others held. One that is called off, one whose deadline
 * passes and a lookup end long before those that were asked for first. */
TEST(what_is_held_ends_by_itself)
{
    char message[256] = "";
    kvt_store *store;
    kvt_queue *queue;
    uint32_t first_done = 0;
    begin(1 << 20, SHARES_ENTRY);
    put_all(2 * HELD_GETS + 1);
    assert_ok(kvt_connect(path, NULL, &store, message, sizeof message));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    const uint64_t first = submit_gets(queue, 0, HELD_GETS, KVT_NO_DEADLINE);
    const uint64_t second = submit_gets(queue, HELD_GETS, HELD_GETS, KVT_NO_DEADLINE);
    const uint64_t late =
        submit_gets(queue, 2 * HELD_GETS, 1, base_clock_ns() + UINT64_C(100000000));
    const kvt_request looks = {
        .struct_size = sizeof looks, .kind = KVT_REQUEST_EXISTS, .key = support_key(1)};
    assert_ok(kvt_queue_submit(queue, &looks, 1, NULL));
    assert_ok(kvt_queue_cancel(queue, second));
    for (uint32_t cancelled = 0, timed_out = 0, found = 0;
         cancelled < HELD_GETS || timed_out == 0 || found == 0;) {
        const kvt_completion done = next_of(queue);
        if (done.batch == first) {
            assert_ok(done.status);
            first_done++;
        } else if (done.batch == second) {
            assert_int_equal(done.status, KVT_E_CANCELLED);
            cancelled++;
        } else if (done.batch == late) {
            assert_int_equal(done.status, KVT_MISS);
            assert_true(done.timed_out);
            timed_out++;
        } else {
            assert_ok(done.status);
            found++;
        }
    }
    assert_in_range(first_done, 0, HELD_GETS - 4);
    for (; first_done < HELD_GETS; first_done++)
        assert_ok(next_of(queue).status);
    for (uint32_t i = 0; i < HELD_GETS; i++)
        assert_int_equal(held_memory[i][SHARES_ENTRY - 1], (int)i);
    /* A client that goes with requests held leaves nothing. */
    (void)submit_gets(queue, 0, HELD_GETS, KVT_NO_DEADLINE);
    kvt_queue_close(queue);
    kvt_store_close(store);
    end();
}

/* The view of entries of up to 32 tokens in place i of a region: it does not say how many. */
static kvt_view loose_view(char *memory, uint32_t place)
{
    kvt_view view;
    assert_ok(kvt_view_make(&shares_layout, "lsth", 0, shares_layout.tokens, &view));
    view.base[0] = memory + (size_t)place * SHARES_ENTRY;
    return view;
}

/* Views of one form have entries of any size: after one of a single token, whole ones still count
 * as what they are, and two of them are more than the client may have in flight. */
TEST(a_small_entry_says_nothing_of_the_next_ones)
{
    char message[256] = "";
    kvt_store *store;
    kvt_queue *queue;
    void *memory = NULL;
    kvt_view views[HELD_GETS];
    kvt_request requests[HELD_GETS];
    kvt_device_stats stats = {.struct_size = sizeof stats};
    uint64_t most = 0;
    begin(1 << 20, SHARES_ENTRY);
    put_all(HELD_GETS);
    kvt_entry small = support_entry(support_key(1000), shares_layout, 1);
    small.layout.tokens = 1;
    const size_t small_bytes = SHARES_ENTRY / shares_layout.tokens;
    assert_ok(kvt_store_put(own, &small, KVT_PACKED(held_memory, small_bytes)));
    assert_ok(kvt_store_flush(own));
    assert_ok(kvt_connect(path, NULL, &store, message, sizeof message));
    assert_ok(kvt_region_make(store, (uint64_t)HELD_GETS * SHARES_ENTRY, &memory));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    for (uint32_t i = 0; i < HELD_GETS; i++) {
        views[i] = loose_view(memory, i);
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = support_key(i),
                                    .view = &views[i],
                                    .deadline_ns = KVT_NO_DEADLINE};
    }
    kvt_request first = requests[0];
    first.key = small.key;
    assert_ok(kvt_queue_submit(queue, &first, 1, NULL));
    assert_ok(next_of(queue).status);
    assert_ok(kvt_queue_submit(queue, requests, HELD_GETS, NULL));
    for (uint32_t done = 0; done < HELD_GETS;) {
        kvt_completion one = {.struct_size = sizeof one};
        assert_ok(kvt_device_stats_get(own, 0, &stats));
        if (stats.pending_bytes > most) most = stats.pending_bytes;
        if (kvt_queue_drain(queue, &one, 1) == 0) continue;
        assert_ok(one.status);
        done++;
    }
    assert_in_range(most, 1, 2 * SHARES_ENTRY);
    kvt_queue_close(queue);
    assert_ok(kvt_region_free(store, memory));
    kvt_store_close(store);
    end();
}

/* ---- loads that wait ---- */

#define WAIT_ENTRIES 8u

/* Begins a load of entries from `first` on, into places of a region. */
static kvt_status begin_load(kvt_queue *queue, char *memory, uint32_t first, uint32_t ahead,
                             uint64_t deadline_ns, kvt_load **load_out)
{
    static kvt_view views[64];
    const kvt_view *pointers[WAIT_ENTRIES];
    kvt_key keys[WAIT_ENTRIES];
    const kvt_load_options options = {
        .struct_size = sizeof options, .layers_ahead = ahead, .deadline_ns = deadline_ns};
    for (uint32_t i = 0; i < WAIT_ENTRIES; i++) {
        const uint32_t place = (first + i) % 64;
        views[place] = kvt_view_packed(memory + (size_t)place * SHARES_ENTRY, SHARES_ENTRY);
        pointers[i] = &views[place];
        keys[i] = support_key(first + i);
    }
    return kvt_load_begin(queue, keys, pointers, WAIT_ENTRIES, &options, load_out);
}

/* One thread has two loads and gets, and releases none before all of them have begun to come: what
 * it does not release keeps nothing else waiting. */
TEST(loads_that_are_not_released_let_others_come)
{
    char message[256] = "";
    kvt_store *store;
    kvt_queue *queue;
    kvt_load *loads[4];
    void *memory = NULL;
    begin(40 << 20, 4096);
    put_all(48);
    assert_ok(kvt_connect(path, NULL, &store, message, sizeof message));
    assert_ok(kvt_region_make(store, 64 * SHARES_ENTRY, &memory));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(begin_load(queue, memory, i * WAIT_ENTRIES, 1, KVT_NO_DEADLINE, &loads[i]));
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(kvt_load_wait(loads[i], 2, KVT_NO_DEADLINE));
    (void)submit_gets(queue, 40, 4, KVT_NO_DEADLINE);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(next_of(queue).status);
    for (uint32_t layer = 2; layer <= shares_layout.layers; layer++)
        for (uint32_t i = 0; i < 4; i++) {
            assert_ok(kvt_load_wait(loads[i], layer, KVT_NO_DEADLINE));
            kvt_load_release(loads[i], layer);
        }
    for (uint32_t i = 0; i < 4; i++) {
        kvt_status statuses[WAIT_ENTRIES];
        assert_ok(kvt_load_end(loads[i], statuses, NULL));
        for (uint32_t k = 0; k < WAIT_ENTRIES; k++) {
            assert_ok(statuses[k]);
            assert_int_equal(((char *)memory)[(i * WAIT_ENTRIES + k) * SHARES_ENTRY],
                             i * WAIT_ENTRIES + k);
        }
    }
    kvt_queue_close(queue);
    assert_ok(kvt_region_free(store, memory));
    kvt_store_close(store);
    end();
}

/* Behind a load that takes its time: one that is ended, one whose deadline passes, one of entries
 * that are not there, and a client that goes. */
TEST(loads_that_wait_end_by_themselves)
{
    char message[256] = "";
    kvt_store *store;
    kvt_queue *queue;
    kvt_load *slow, *ended, *late, *none = NULL, *left[4];
    kvt_status statuses[WAIT_ENTRIES];
    void *memory = NULL;
    begin(1 << 20, 4096);
    put_all(40);
    assert_ok(kvt_connect(path, NULL, &store, message, sizeof message));
    assert_ok(kvt_region_make(store, 64 * SHARES_ENTRY, &memory));
    assert_ok(kvt_queue_open(store, NULL, &queue));
    assert_ok(begin_load(queue, memory, 0, 7, KVT_NO_DEADLINE, &slow));
    assert_ok(begin_load(queue, memory, 8, 7, KVT_NO_DEADLINE, &ended));
    const uint32_t total = kvt_load_total(ended, NULL);
    if (kvt_load_layers(slow) < shares_layout.layers) assert_int_equal(total, 0);
    assert_ok(begin_load(queue, memory, 16, 7, base_clock_ns() + 1000000, &late));
    const kvt_status begun = begin_load(queue, memory, 1000, 7, KVT_NO_DEADLINE, &none);
    assert_true(begun == KVT_OK || begun == KVT_MISS);
    assert_int_equal(kvt_load_wait(late, 8, KVT_NO_DEADLINE), KVT_E_TIMEOUT);
    assert_ok(kvt_load_end(late, statuses, NULL));
    assert_int_equal(statuses[0], KVT_E_TIMEOUT);
    assert_ok(kvt_load_end(ended, statuses, NULL));
    if (begun == KVT_OK) {
        assert_int_equal(kvt_load_wait(none, 1, KVT_NO_DEADLINE), KVT_MISS);
        assert_ok(kvt_load_end(none, statuses, NULL));
        assert_int_equal(statuses[7], KVT_MISS);
    }
    assert_ok(kvt_load_wait(slow, shares_layout.layers, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(slow, statuses, NULL));
    assert_ok(statuses[7]);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(begin_load(queue, memory, i * 8, 7, KVT_NO_DEADLINE, &left[i]));
    (void)submit_gets(queue, 0, HELD_GETS, KVT_NO_DEADLINE);
    kvt_queue_close(queue);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(kvt_load_end(left[i], NULL, NULL));
    kvt_store_close(store);
    assert_ok(kvt_region_free(NULL, memory));
    end();
}
