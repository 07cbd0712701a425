/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_control.c - calls on the store by the socket say what the store's own calls say, to
 * clients of every version; whoever is no operator changes nothing; a session ends with its
 * client's process, and a server that stops tells its clients and lets their requests complete.
 */
#include "serve_client.h"
#include "store_site.h"

#include "serve/server/server.h"
#include "serve/wire/control.h"

#include <kvterrace/key.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ENTRY  SUPPORT_ENTRY_BYTES
#define NOBODY 65534u

static char folder[64], path[96];
static kvt_store *store;
static server *lends;
static pthread_t thread;
static bool runs;
static serve_client first, second;

static void *server_runs(void *argument)
{
    return server_run(argument) == KVT_OK ? NULL : argument;
}

static void serve_begin(kvt_store *opened, server_options options)
{
    char message[256];
    store = opened;
    options.path = path;
    const kvt_status status = server_open(store, &options, &lends, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    assert_int_equal(pthread_create(&thread, NULL, server_runs, lends), 0);
    runs = true;
}

static void wait_for_sessions(uint32_t count)
{
    while (server_sessions(lends) != count)
        usleep(1000);
}

/* Waits until the server has left. */
static void serve_join(void)
{
    void *failed = lends;
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_int_equal(server_sessions(lends), 0);
    runs = false;
}

static void serve_end(void)
{
    client_close(&first);
    client_close(&second);
    if (runs) {
        server_stop(lends);
        serve_join();
    }
    server_close(lends);
    kvt_store_close(store);
    lends = NULL;
    store = NULL;
}

/* The same store lent anew, with other options. */
static void serve_again(server_options options)
{
    serve_end();
    serve_begin(support_open_memory("lru", 64 << 20, 8 << 20), options);
}

TEST_BEFORE_EACH
{
    first.socket = second.socket = -1;
    snprintf(folder, sizeof folder, "control_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
    serve_begin(support_open_memory("lru", 64 << 20, 8 << 20), (server_options){.depth = 64});
}

TEST_AFTER_EACH
{
    char lock[128];
    serve_end();
    snprintf(lock, sizeof lock, "%s.lock", path);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- calls ---- */

/* The result of the last call. */
static union {
    char bytes[WIRE_RESULT_MAX];
    wire_health health;
    wire_explained explained;
    wire_count count;
    kvt_store_stats stats;
    kvt_device_stats device;
    kvt_class_stats class_stats;
    kvt_space_stats space;
    kvt_persist_info persist;
    kvt_operation operations[WIRE_RESULT_MAX / sizeof(kvt_operation)];
} result;
static size_t result_count;
static bool result_in_memory;

/* Makes a call: its status, or KVT_E_CORRUPT where the answer is none. */
static kvt_status call(serve_client *at, wire_call_number number, const void *argument)
{
    wire_message message, answer;
    int descriptors[3] = {-1, -1, -1};
    const wire_argument_head *asked = argument;
    wire_call_make(&message, number, at->protocol, ++at->number, argument);
    kvt_status status = client_ask(at, &message, NULL, 0, &answer, descriptors);
    if (status != KVT_OK) return status;
    const wire_result *got = &answer.result;
    assert_true(answer.head.kind == WIRE_RESULT || answer.head.kind == WIRE_RESULT_MEMORY);
    result_in_memory = answer.head.kind == WIRE_RESULT_MEMORY;
    memset(&result, 0xee, 2 * WIRE_SIZE_MAX);
    if (result_in_memory) {
        void *memory;
        assert_ok(wire_memory_map(descriptors[0], 0, WIRE_RESULT_MAX, WIRE_SEALED_SIZE, &memory));
        memcpy(&result, memory, got->bytes);
        /* What the client writes there is nothing to the server. */
        memset(memory, 0x55, WIRE_RESULT_MAX / 8);
        wire_memory_unmap(memory, WIRE_RESULT_MAX);
        close(descriptors[0]);
    } else {
        memcpy(&result, got->result, got->bytes);
    }
    assert_ok(wire_result_check(got, number, asked, &result, &result_count));
    return answer.head.status;
}

static kvt_status call_plain(serve_client *at, wire_call_number number, uint32_t size)
{
    const wire_argument_head argument = {sizeof argument, size};
    return call(at, number, &argument);
}

static kvt_status call_index(serve_client *at, wire_call_number number, uint32_t size,
                             uint32_t index)
{
    const wire_index_argument argument = {.at = {sizeof argument, size}, .index = index};
    return call(at, number, &argument);
}

static kvt_status call_explain(serve_client *at, uint32_t entry, uint32_t size)
{
    const wire_key_argument argument = {.at = {sizeof argument, size}, .key = support_key(entry)};
    return call(at, WIRE_CALL_EXPLAIN, &argument);
}

static kvt_status call_clear(serve_client *at, uint32_t conditions, uint32_t tenant)
{
    const wire_clear_argument argument = {
        .at = {sizeof argument, 0}, .conditions = conditions, .tenant = tenant};
    return call(at, WIRE_CALL_CLEAR, &argument);
}

static kvt_status call_device(serve_client *at, const char *name, uint32_t action)
{
    wire_device_argument argument = {.at = {sizeof argument, 0}, .action = action};
    memcpy(argument.name, name, strlen(name));
    return call(at, WIRE_CALL_DEVICE_CHANGE, &argument);
}

static kvt_status call_tenant(serve_client *at, uint32_t tenant, double loss_limit)
{
    const wire_tenant_argument argument = {
        .at = {sizeof argument, 0},
        .tenant = tenant,
        .limits = {.struct_size = sizeof argument.limits, .loss_limit = loss_limit}};
    return call(at, WIRE_CALL_TENANT_SET, &argument);
}

static kvt_status call_space(serve_client *at, wire_call_number number, uint64_t space,
                             uint32_t tenant)
{
    const uint32_t size = number == WIRE_CALL_SPACE_STATS ? sizeof(kvt_space_stats) : 0;
    const wire_space_argument argument = {
        .at = {sizeof argument, size}, .space = space, .tenant = tenant};
    return call(at, number, &argument);
}

TEST(results_are_what_the_store_says)
{
    const kvt_key key = support_key(3);
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_device_stats device = {.struct_size = sizeof device};
    kvt_class_stats class_stats = {.struct_size = sizeof class_stats};
    kvt_space_stats space = {.struct_size = sizeof space};
    kvt_explanation explanation = {.struct_size = sizeof explanation};
    assert_ok(client_hello(&first, path));
    support_puts(store, 0, 8);
    assert_ok(kvt_store_flush(store));
    support_gets(store, 0, 8);

    assert_ok(kvt_store_stats_get(store, &stats));
    assert_ok(call_plain(&first, WIRE_CALL_STATS, sizeof stats));
    assert_int_equal(result.stats.puts, 8);
    assert_memory_equal(&result.stats, &stats, sizeof stats);

    assert_ok(kvt_device_stats_get(store, 0, &device));
    assert_ok(call_index(&first, WIRE_CALL_DEVICE_STATS, sizeof device, 0));
    assert_string_equal(result.device.name, device.name);
    assert_int_equal(result.device.used_bytes, device.used_bytes);
    assert_int_equal(call_index(&first, WIRE_CALL_DEVICE_STATS, sizeof device, 1), KVT_END);
    assert_int_equal(call_index(&first, WIRE_CALL_DEVICE_STATS, sizeof device, UINT32_MAX),
                     KVT_END);

    assert_ok(kvt_class_stats_get(store, 0, &class_stats));
    assert_ok(call_index(&first, WIRE_CALL_CLASS_STATS, sizeof class_stats, 0));
    assert_true(class_stats.reuse.entries == 8);
    assert_int_equal(result.class_stats.reuse.entries, 8);
    assert_true(result.class_stats.loss_factor == 1);
    assert_int_equal(call_index(&first, WIRE_CALL_CLASS_STATS, sizeof class_stats, 64), KVT_END);

    assert_ok(kvt_space_stats_get(store, kvt_key_space(&key), &space));
    assert_ok(call_space(&first, WIRE_CALL_SPACE_STATS, kvt_key_space(&key), 0));
    assert_true(result.space.entries >= 1);
    assert_memory_equal(&result.space, &space, sizeof space);

    assert_ok(kvt_store_explain(store, &key, &explanation));
    assert_ok(call_explain(&first, 3, sizeof explanation));
    assert_true(result_in_memory);
    assert_string_equal(result.explained.reason, explanation.reason);
    kvt_explanation told;
    memcpy(&told, result.bytes + sizeof result.explained, sizeof told);
    assert_null(told.reason);
    assert_null(told.reuse_expert);
    assert_int_equal(told.handle, explanation.handle);
    assert_int_equal(told.option_count, explanation.option_count);
    assert_int_equal(call_explain(&first, 999, sizeof explanation), KVT_MISS);
    assert_string_equal(result.explained.reason, "");

    assert_ok(call_index(&first, WIRE_CALL_HEALTH, sizeof(kvt_health_item), 16));
    assert_int_equal(result.health.count, 0);
    assert_int_equal(result.health.overall, KVT_OK);
    assert_int_equal(result_count, 0);

    assert_ok(call_index(&first, WIRE_CALL_OPERATIONS, 0, 5));
    assert_int_equal(result_count, 5);
    assert_int_equal(result.operations[4].kind, KVT_OPERATION_GET);
    assert_ok(call_index(&first, WIRE_CALL_OPERATIONS, 0, UINT32_MAX));
    assert_true(result_count >= 16);
    assert_ok(call_index(&first, WIRE_CALL_OPERATIONS, 0, 0));
    assert_int_equal(result_count, 0);

    assert_ok(call_plain(&first, WIRE_CALL_METRICS, 0));
    assert_true(result_in_memory && strlen(result.bytes) + 1 == result_count);
    assert_non_null(strstr(result.bytes, "# TYPE "));
}

TEST(a_list_is_what_the_store_lists)
{
    wire_list_argument list = {.at = {sizeof list, sizeof(kvt_list_item)}, .capacity = 100};
    const kvt_list_item *items = (const void *)(result.bytes + sizeof(wire_cursor));
    kvt_description what = {.struct_size = sizeof what};
    uint32_t all = 0;
    assert_ok(client_hello(&first, path));
    support_puts(store, 0, 80);
    assert_ok(kvt_store_flush(store));
    assert_ok(call(&first, WIRE_CALL_LIST, &list));
    assert_true(result_in_memory);
    assert_int_equal(result_count, 80);
    for (size_t i = 0; i < 80; i++) {
        assert_ok(kvt_store_describe(store, &items[i].key, &what));
        assert_int_equal(items[i].stored_bytes, what.stored_bytes);
    }
    /* By a cursor, for a client whose items are longer; then its end, and what is none. */
    list.at.result_size += 16;
    list.capacity = 9;
    while (call(&first, WIRE_CALL_LIST, &list) == KVT_OK) {
        memcpy(&list.cursor, result.bytes, sizeof list.cursor);
        assert_true(result_count > 0 && result_count <= 9);
        all += (uint32_t)result_count;
    }
    assert_int_equal(all, 80);
    list.cursor = UINT64_MAX;
    assert_int_equal(call(&first, WIRE_CALL_LIST, &list), KVT_END);
    assert_int_equal(result_count, 0);
    list.cursor = 0;
    list.capacity = 0;
    assert_int_equal(call(&first, WIRE_CALL_LIST, &list), KVT_E_ARGUMENT);
    list.capacity = UINT32_MAX;
    list.at.result_size = WIRE_SIZE_MAX;
    assert_ok(call(&first, WIRE_CALL_LIST, &list));
    assert_true(result_count > 0 && result_count < 80);
    list.at.result_size = 8;
    assert_int_equal(call(&first, WIRE_CALL_LIST, &list), KVT_E_ARGUMENT);
    list.at.result_size = sizeof(kvt_list_item);
    list.conditions = WIRE_CLEAR_EVERYTHING | WIRE_CLEAR_TENANT;
    assert_int_equal(call(&first, WIRE_CALL_LIST, &list), KVT_E_ARGUMENT);
}

TEST(clients_of_other_versions_are_served)
{
    static const struct {
        wire_call_number number;
        uint32_t bytes, least;
    } rows[] = {{WIRE_CALL_STATS, sizeof(kvt_store_stats), 2048},
                {WIRE_CALL_DEVICE_STATS, sizeof(kvt_device_stats), 256},
                {WIRE_CALL_CLASS_STATS, sizeof(kvt_class_stats), 96}};
    assert_ok(client_hello(&first, path));
    support_puts(store, 0, 8);
    assert_ok(kvt_store_flush(store));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool plain = rows[i].number == WIRE_CALL_STATS;
        for (uint32_t size = 8; size <= WIRE_SIZE_MAX; size += size < 8192 ? 8 : 8184) {
            const kvt_status status = plain ? call_plain(&first, rows[i].number, size)
                                            : call_index(&first, rows[i].number, size, 0);
            if (size < 32) assert_int_equal(status, KVT_E_ARGUMENT);
            if (size >= rows[i].bytes) assert_ok(status);
            if (status != KVT_OK) continue;
            if (plain) assert_int_equal(result.stats.puts, 8);
            for (uint32_t at = rows[i].bytes; at < size; at++)
                assert_int_equal(result.bytes[at], 0);
        }
    }
    const uint32_t whole = sizeof(kvt_explanation), larger = whole + 800;
    for (uint32_t size = 8; size <= larger; size += size < whole ? 8 : 80) {
        const kvt_status status = call_explain(&first, 3, size);
        if (size >= whole) assert_ok(status);
        if (status == KVT_OK && size >= whole)
            for (uint32_t at = whole; at < size; at++)
                assert_int_equal(result.bytes[sizeof(wire_explained) + at], 0);
        if (status != KVT_OK) assert_int_equal(status, KVT_E_ARGUMENT);
    }
    assert_int_equal(call_index(&first, WIRE_CALL_HEALTH, 8, 0), KVT_OK);
}

TEST(calls_change_the_store)
{
    uint64_t space;
    site *s = site_prepare((site_shape){
        .disks = 2, .disk_bytes = 32 << 20, .unit_bytes = 65536, .fast = true, .staged = true});
    s->options.tiers[KVT_TIER_DRAM].capacity_bytes = 16 << 20;
    serve_end();
    site_open(s);
    serve_begin(s->store, (server_options){.depth = 64});
    s->store = NULL; /* serve_end closes it */
    const kvt_key key = support_key(1);
    space = kvt_key_space(&key);
    assert_ok(client_hello(&first, path));
    assert_ok(call_tenant(&first, 5, 0.25));
    assert_int_equal(call_tenant(&first, KVT_TENANTS_MAX, 0.25), KVT_E_ARGUMENT);
    assert_int_equal(call_tenant(&first, 5, NAN), KVT_E_ARGUMENT);
    assert_int_equal(call_tenant(&first, 5, -1), KVT_E_ARGUMENT);
    assert_ok(call_space(&first, WIRE_CALL_SPACE_SET, space, 5));
    assert_int_equal(call_space(&first, WIRE_CALL_SPACE_SET, space, KVT_TENANTS_MAX),
                     KVT_E_ARGUMENT);
    support_puts(store, 0, 24);
    assert_ok(call_plain(&first, WIRE_CALL_FLUSH, 0));
    assert_int_equal(support_stats(store).puts_waiting, 0);
    const wire_deadline_argument persist = {.at = {sizeof persist, sizeof(kvt_persist_info)},
                                            .deadline_ns = KVT_NO_DEADLINE};
    assert_ok(call(&first, WIRE_CALL_PERSIST, &persist));
    assert_int_equal(result.persist.struct_size, sizeof(kvt_persist_info));
    assert_int_equal(result.persist.left, 0);
    assert_ok(call_plain(&first, WIRE_CALL_MAINTAIN, 0));
    /* A drain moves what is there, by as many rounds as it takes. */
    assert_ok(call_device(&first, "disk1", KVT_DEVICE_DRAIN));
    assert_int_equal(call_device(&first, "disk9", KVT_DEVICE_DRAIN), KVT_E_ARGUMENT);
    assert_int_equal(call_device(&first, "disk1", 0), KVT_E_ARGUMENT);
    assert_int_equal(call_device(&first, "disk1", UINT32_MAX), KVT_E_ARGUMENT);
    assert_ok(call_device(&first, "disk1", KVT_DEVICE_SERVE));
    assert_ok(call_device(&first, "disk1", KVT_DEVICE_RETIRE));
    assert_ok(call_index(&first, WIRE_CALL_HEALTH, sizeof(kvt_health_item), 1));
    assert_true(result.health.count >= 1 && result_count == 1 && result.health.overall != KVT_OK);
    assert_int_equal(((kvt_health_item *)(void *)(&result.health + 1))->kind, KVT_HEALTH_DEVICE);
    assert_ok(call_index(&first, WIRE_CALL_HEALTH, sizeof(kvt_health_item), 0));
    assert_true(result.health.count >= 1 && result_count == 0);
    /* Clears: of a tenant with no entries, of none, of both at once with everything, of all. */
    assert_ok(call_clear(&first, WIRE_CLEAR_TENANT, 77));
    assert_int_equal(result.count.count, 0);
    assert_int_equal(call_clear(&first, 0, 0), KVT_E_ARGUMENT);
    assert_int_equal(call_clear(&first, WIRE_CLEAR_TENANT, KVT_TENANTS_MAX), KVT_E_ARGUMENT);
    assert_ok(call_clear(&first, WIRE_CLEAR_EVERYTHING, 0));
    assert_true(result.count.count > 0);
    assert_int_equal(kvt_store_exists(store, &key), KVT_MISS);
    serve_end();
    serve_begin(support_open_memory("lru", 64 << 20, 8 << 20), (server_options){0});
    /* A store without a catalog persists nothing. */
    assert_ok(client_hello(&first, path));
    assert_int_equal(call(&first, WIRE_CALL_PERSIST, &persist), KVT_E_UNSUPPORTED);
}

/* ---- hostile ---- */

TEST(results_in_memory_cost_a_session_one_memory)
{
    assert_ok(client_hello(&first, path));
    assert_ok(call_plain(&first, WIRE_CALL_METRICS, 0));
    const uint32_t before = open_descriptors();
    for (uint32_t i = 0; i < 200; i++)
        assert_ok(call_plain(&first, WIRE_CALL_METRICS, 0));
    assert_int_equal(open_descriptors(), before);
    client_close(&first);
    wait_for_sessions(0);
}

TEST(bad_calls_are_answered_and_bad_messages_end_the_session)
{
    wire_message message, answer;
    assert_ok(client_hello(&first, path));
    for (uint32_t k = 0; k < 5; k++) {
        const wire_argument_head argument = {8, sizeof(kvt_store_stats)};
        wire_call_make(&message, WIRE_CALL_STATS, first.protocol, ++first.number, &argument);
        if (k == 0) message.call.call = WIRE_CALL_END;
        if (k == 1) message.call.call = 0;
        if (k == 2) message.call.argument[0] = 0;
        if (k == 3) message.call.argument[0] = UINT64_MAX;
        if (k == 4) message.call.call = WIRE_CALL_TENANT_SET;
        assert_ok(client_ask(&first, &message, NULL, 0, &answer, (int[3]){0}));
        assert_int_equal(answer.head.kind, WIRE_RESULT);
        assert_int_equal(answer.result.call, message.call.call);
        assert_int_equal(answer.result.bytes, 0);
        assert_int_equal(answer.head.status, k < 2 ? KVT_E_UNSUPPORTED : KVT_E_ARGUMENT);
    }
    for (uint32_t k = 0; k < 4; k++) {
        const wire_argument_head argument = {8, sizeof(kvt_store_stats)};
        const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_ok(client_hello(&second, path));
        wire_call_make(&message, WIRE_CALL_STATS, second.protocol, ++second.number, &argument);
        if (k == 0) message.call.bytes = 4064;
        if (k == 1) message.call.bytes = 0;
        if (k == 2) message.head.kind = WIRE_RESULT;
        assert_ok(wire_send(second.socket, &message, &null, k == 3 ? 1 : 0));
        close(null);
        assert_int_equal(
            client_message(&second, second.protocol, second.protocol, &answer, (int[3]){0}),
            KVT_E_GONE);
        client_close(&second);
    }
    assert_ok(call_plain(&first, WIRE_CALL_STATS, sizeof(kvt_store_stats)));
}

/* ---- users ---- */

/* Every call that changes something is refused, every other one is not. */
static bool only_looks(serve_client *at)
{
    const wire_deadline_argument persist = {.at = {sizeof persist, sizeof(kvt_persist_info)}};
    const wire_list_argument list = {.at = {sizeof list, sizeof(kvt_list_item)}, .capacity = 9};
    const wire_observe_argument observe = {.at = {sizeof observe, 0}, .loss = 0.5, .weight = 1};
    const wire_memory_argument memory = {.at = {sizeof memory, 0}};
    const wire_key_argument hash = {.at = {sizeof hash, 0}};
    return call(at, WIRE_CALL_LIST, &list) == KVT_E_READ_ONLY &&
           call_clear(at, WIRE_CLEAR_EVERYTHING, 0) == KVT_E_READ_ONLY &&
           call_plain(at, WIRE_CALL_MAINTAIN, 0) == KVT_E_READ_ONLY &&
           call_tenant(at, 1, 1) == KVT_E_READ_ONLY &&
           call_space(at, WIRE_CALL_SPACE_SET, 1, 1) == KVT_E_READ_ONLY &&
           call_device(at, "dram", KVT_DEVICE_RETIRE) == KVT_E_READ_ONLY &&
           call(at, WIRE_CALL_OBSERVE, &observe) == KVT_E_READ_ONLY &&
           call(at, WIRE_CALL_PASS_TABLE, &memory) == KVT_E_READ_ONLY &&
           call(at, WIRE_CALL_BASIS_ADD, &memory) == KVT_E_READ_ONLY &&
           call(at, WIRE_CALL_BASIS_REMOVE, &hash) == KVT_E_READ_ONLY &&
           call_index(at, WIRE_CALL_BASIS_GET, sizeof(kvt_basis_info), 0) == KVT_END &&
           call_index(at, WIRE_CALL_EVENTS_OPEN, 0, 16) == KVT_E_READ_ONLY &&
           call_index(at, WIRE_CALL_EVENTS, 0, 16) == KVT_E_STATE &&
           call_plain(at, WIRE_CALL_STATS, sizeof(kvt_store_stats)) == KVT_OK &&
           call_plain(at, WIRE_CALL_FLUSH, 0) == KVT_OK &&
           call(at, WIRE_CALL_PERSIST, &persist) == KVT_E_UNSUPPORTED &&
           call_space(at, WIRE_CALL_SPACE_STATS, 1, 0) == KVT_OK &&
           call_plain(at, WIRE_CALL_METRICS, 0) == KVT_OK &&
           call_explain(at, 1, sizeof(kvt_explanation)) == KVT_OK;
}

TEST(who_is_no_operator_changes_nothing)
{
    const uid_t own = geteuid();
    serve_again((server_options){.users = &own, .user_count = 1, .operators = &own});
    support_puts(store, 0, 8);
    assert_ok(client_hello(&first, path));
    assert_true(only_looks(&first));
    support_gets(store, 0, 8);
    /* An operator may connect, also when the list of users has others. */
    const uid_t other = NOBODY;
    serve_again(
        (server_options){.users = &other, .user_count = 1, .operators = &own, .operator_count = 1});
    assert_ok(client_hello(&first, path));
    assert_ok(call_clear(&first, WIRE_CLEAR_EVERYTHING, 0));
    serve_again((server_options){.users = &other, .user_count = 1, .operators = &own});
    assert_int_equal(client_hello(&first, path), KVT_E_GONE);
}

/* Runs a client as another user: what it returns in `exit`. */
static int as_user(uid_t user, int (*run)(void))
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        if (setgid(NOBODY) != 0 || setuid(user) != 0) _exit(9);
        _exit(run());
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int client_looks(void)
{
    if (client_hello(&second, path) != KVT_OK) return 1;
    return only_looks(&second) ? 0 : 2;
}

static int client_asks(void)
{
    const kvt_status status = client_hello(&second, path);
    return status == KVT_E_GONE ? 0 : status == KVT_E_READ_ONLY ? 3 : 1;
}

TEST(users_of_a_list_may_look_and_others_may_not_connect)
{
    const uid_t user = NOBODY;
    if (geteuid() != 0) skip();
    assert_int_equal(chmod(folder, 0711), 0);
    serve_again((server_options){.users = &user, .user_count = 1, .mode = 0666});
    support_puts(store, 0, 8);
    assert_int_equal(as_user(NOBODY, client_looks), 0);
    assert_int_equal(as_user(NOBODY - 1, client_asks), 0);
    support_gets(store, 0, 8);
    /* And the mode keeps others out before that. */
    serve_again((server_options){.users = &user, .user_count = 1});
    assert_int_equal(as_user(NOBODY, client_asks), 3);
}

/* ---- processes ---- */

/* The client's process ends while a child of its own holds the socket. */
TEST(a_session_ends_with_the_process_that_connected)
{
    int ready[2];
    pid_t held = 0;
    const int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (own < 0) skip();
    close(own);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const pid_t child = fork();
    if (child == 0) {
        if (client_hello(&second, path) != KVT_OK) _exit(1);
        const pid_t grandchild = fork();
        if (grandchild == 0) {
            for (;;)
                pause();
        }
        if (write(ready[1], &grandchild, sizeof grandchild) != sizeof grandchild) _exit(2);
        for (;;)
            pause();
    }
    assert_true(child > 0);
    assert_int_equal(read(ready[0], &held, sizeof held), sizeof held);
    wait_for_sessions(1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    wait_for_sessions(0);
    /* The grandchild lives and has the socket. */
    assert_int_equal(kill(held, 0), 0);
    assert_int_equal(kill(held, SIGKILL), 0);
    assert_int_equal(waitpid(held, NULL, 0), held);
    close(ready[0]);
    close(ready[1]);
}

/* ---- leaving ---- */

static void assert_told(serve_client *at, uint32_t most)
{
    wire_message message;
    assert_ok(client_message(at, at->protocol, at->protocol, &message, (int[3]){0}));
    assert_int_equal(message.head.kind, WIRE_LEAVING);
    assert_true(message.one.value <= most);
}

static void assert_ended(serve_client *at)
{
    wire_message message;
    assert_int_equal(client_message(at, at->protocol, at->protocol, &message, (int[3]){0}),
                     KVT_E_GONE);
}

/* With an hour of time it ends nevertheless, because nothing is under way; one that has said no
 * hello is not told. */
TEST(a_server_that_stops_tells_its_clients)
{
    serve_again((server_options){.leave_ms = 3600000});
    assert_ok(client_hello(&first, path));
    assert_ok(client_open_channel(&first));
    assert_ok(wire_connect(path, &second.socket));
    wait_for_sessions(2);
    server_stop(lends);
    serve_join();
    assert_told(&first, 3600000);
    assert_ended(&first);
    assert_ended(&second);
    assert_int_equal(access(path, F_OK), -1);
}

static void post_get(serve_client *at, char *memory, uint32_t number, uint64_t *request)
{
    static const wire_get get = {.struct_size = sizeof get, .deadline_ns = KVT_NO_DEADLINE};
    const kvt_key key = support_key(number);
    assert_ok(client_post(at, WIRE_GET, &key, &get, KVT_PACKED(memory, ENTRY), request));
}

/* A store on a disk that does not answer reads, and a client with a get under way there. */
static site *hung_site(uint32_t leave_ms, char **memory)
{
    static const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    site *s = site_prepare((site_shape){
        .disks = 1, .disk_bytes = 32 << 20, .unit_bytes = 65536, .fast = true, .staged = true});
    uint64_t request;
    serve_end();
    site_open(s);
    serve_begin(s->store, (server_options){.depth = 64, .leave_ms = leave_ms});
    s->store = NULL; /* serve_end closes it */
    support_puts(store, 0, 4);
    assert_ok(kvt_store_flush(store));
    assert_ok(client_hello(&first, path));
    assert_ok(client_open_channel(&first));
    assert_ok(client_register(&first, 4 * ENTRY, F_SEAL_SHRINK, memory, NULL));
    assert_ok(tiers_fault_add(s->disks[0].device, &hang));
    post_get(&first, *memory, 2, &request);
    tiers_fault_counts counts = {0};
    while (counts.hung == 0) {
        usleep(1000);
        tiers_fault_counts_get(s->disks[0].device, &counts);
    }
    return s;
}

TEST(requests_under_way_complete_before_a_server_leaves)
{
    char *memory, expected[ENTRY];
    wire_completion done;
    site *s = hung_site(3600000, &memory);
    server_stop(lends);
    assert_told(&first, 3600000);
    /* Nobody connects any more, and the session goes on: calls and requests are carried out. */
    assert_int_equal(client_hello(&second, path), KVT_E_GONE);
    assert_ok(call_plain(&first, WIRE_CALL_STATS, sizeof(kvt_store_stats)));
    usleep(50000);
    assert_int_equal(server_sessions(lends), 1);
    tiers_fault_clear(s->disks[0].device);
    assert_ok(client_take(&first, &done));
    assert_ok(done.status);
    support_fill(2, expected);
    assert_memory_equal(memory, expected, ENTRY);
    serve_join();
    assert_ended(&first);
    serve_end();
    serve_begin(support_open_memory("lru", 64 << 20, 8 << 20), (server_options){0});
}

TEST(requests_that_do_not_end_are_cut_off)
{
    char *memory;
    site *s = hung_site(30, &memory);
    server_stop(lends);
    assert_told(&first, 30);
    serve_join();
    assert_ended(&first);
    tiers_fault_clear(s->disks[0].device);
    serve_end();
    serve_begin(support_open_memory("lru", 64 << 20, 8 << 20), (server_options){0});
}
