/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_remote_faults.c - a node of the engine is killed, stopped, emptied, filled, and gives slots
 * away, and the link to all nodes is cut (where network namespaces can be made), while one thread
 * gets entries of other hosts and another one local entries of the same store: nothing wrong is
 * served, nothing comes late, local gets do not notice. Local gets are timed before the fault and
 * during it, so that both figures are of one store and of the same seconds. A third thread calls
 * nothing and sleeps for a deadline at a time: how late it wakes is what the machine adds.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_remote.h"

#include "base/clock.h"
#include "bench_parts.h"

#include <kvterrace/lookup.h>
#include <kvterrace/remote.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define FAULT_BYTES     (UINT64_C(64) << 10)
#define FAULT_REMOTE    600u
#define FAULT_LOCAL     64u
#define FAULT_FIRST     100000u /* number of the first local entry */
#define FAULT_DEADLINE  0.05
#define FAULT_GRACE     0.005
#define FAULT_LATENCIES 400000u
#define FAULT_VICTIM    1u
#define FAULT_LEASE_NS  UINT64_C(600000000000)

enum {
    PHASE_NONE,
    PHASE_KILLED,
    PHASE_STOPPED,
    PHASE_CUT,
    PHASE_MOVED,
    PHASE_FULL,
    PHASE_EMPTIED,
    PHASES
};
static const char *const phase_names[PHASES] = {"none",  "killed", "stopped", "cut",
                                                "moved", "full",   "emptied"};

/* Local gets of a while. */
typedef struct fault_local {
    double p50_s, p99_s;
    uint64_t gets;
    uint64_t waits, preempted; /* switches away from the thread: it slept; it had to */
} fault_local;

/* What the threads have seen in a phase. */
typedef struct fault_seen {
    uint64_t gets, hits, misses, timeouts, wrong, late;
    double lost_s; /* in gets that ended at their deadline */
    double slowest_s;
    fault_local before, during;
    uint64_t local_misses;
    uint64_t sleeps, late_sleeps; /* of the thread that sleeps alone */
    double slowest_sleep_s;
    double recovery_s; /* from the node's return to its use; below 0: it was not used */
} fault_seen;

typedef struct fault_run {
    kvt_store *store;
    const bench_remote_site *site;
    atomic_bool stop;
    atomic_bool back; /* the node has returned: the first hit on it is waited for */
    atomic_uint_fast64_t back_ns;
    _Atomic double used_s; /* from then on, until its breaker is closed; below 0: not yet */
    fault_seen seen;       /* the thread's of remote gets, but for local gets and sleeps */
    double *latencies;
} fault_run;

/* The node that an entry of the bench lies on, by the bench's own client. */
static uint32_t fault_node(const fault_run *run, uint32_t number)
{
    char name[80] = "{";
    const kvt_key key = bench_remote_key(FAULT_BYTES, number);
    for (size_t i = 0; i < sizeof key; i++)
        (void)snprintf(name + 1 + 2 * i, 3, "%02x", ((const uint8_t *)&key)[i]);
    name[1 + 2 * sizeof key] = '}';
    return remote_node_of(run->site->client, name, 2 + 2 * sizeof key);
}

static void *fault_get_remote(void *argument)
{
    fault_run *run = argument;
    char *data = bench_buffer(FAULT_BYTES);
    uint64_t draw = 1;
    while (data != NULL && !atomic_load(&run->stop)) {
        draw = draw * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const uint32_t number = (uint32_t)(draw >> 33) % FAULT_REMOTE;
        const kvt_key key = bench_remote_key(FAULT_BYTES, number);
        kvt_get_info info = {.struct_size = sizeof info};
        uint32_t stamp = UINT32_MAX;
        const uint64_t began_ns = base_clock_ns();
        const kvt_status status = kvt_get(run->store, &key, data, FAULT_BYTES, &info);
        const double seconds = (double)(base_clock_ns() - began_ns) * 1e-9;
        memcpy(&stamp, data, sizeof stamp);
        run->seen.gets++;
        run->seen.hits += status == KVT_OK;
        run->seen.misses += status == KVT_MISS;
        run->seen.timeouts += info.timed_out;
        run->seen.wrong += (status == KVT_OK && stamp != number) || status < 0;
        run->seen.late += seconds > FAULT_DEADLINE + FAULT_GRACE;
        if (info.timed_out) run->seen.lost_s += seconds;
        if (seconds > run->seen.slowest_s) run->seen.slowest_s = seconds;
        if (status == KVT_OK && info.tier == KVT_TIER_REMOTE && atomic_load(&run->back) &&
            fault_node(run, number) == FAULT_VICTIM && run->seen.recovery_s < 0)
            run->seen.recovery_s = (double)(base_clock_ns() - atomic_load(&run->back_ns)) * 1e-9;
        if (status == KVT_MISS) base_sleep(200000); /* an engine would compute now */
    }
    free(data);
    return NULL;
}

static int fault_order(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Whether the store asks the node again: its entries may be gone, so that no get hits. */
static void fault_look(fault_run *run)
{
    kvt_remote_node node = {.struct_size = sizeof node};
    if (!atomic_load(&run->back) || atomic_load(&run->used_s) >= 0) return;
    if (kvt_remote_node_get(run->store, FAULT_VICTIM, &node) != KVT_OK || node.breaker != 0) return;
    atomic_store(&run->used_s, (double)(base_clock_ns() - atomic_load(&run->back_ns)) * 1e-9);
}

/* Sleeps for one deadline after the other. */
static void *fault_sleep(void *argument)
{
    fault_run *run = argument;
    while (!atomic_load(&run->stop)) {
        const uint64_t began_ns = base_clock_ns();
        base_sleep((uint64_t)(FAULT_DEADLINE * 1e9));
        const double seconds = (double)(base_clock_ns() - began_ns) * 1e-9;
        run->seen.sleeps++;
        run->seen.late_sleeps += seconds > FAULT_DEADLINE + FAULT_GRACE;
        if (seconds > run->seen.slowest_sleep_s) run->seen.slowest_sleep_s = seconds;
    }
    return NULL;
}

/* Gets local entries for so many seconds, and takes the figures of their times. */
static void fault_get_local(fault_run *run, double seconds, fault_local *out)
{
    char *data = bench_buffer(FAULT_BYTES);
    struct rusage before, after;
    uint32_t count = 0;
    const uint64_t end_ns = base_clock_ns() + (uint64_t)(seconds * 1e9);
    getrusage(RUSAGE_THREAD, &before);
    while (data != NULL && base_clock_ns() < end_ns) {
        fault_look(run);
        const kvt_key key = bench_remote_key(FAULT_BYTES, FAULT_FIRST + count % FAULT_LOCAL);
        const uint64_t began_ns = base_clock_ns();
        const kvt_status status = kvt_get(run->store, &key, data, FAULT_BYTES, NULL);
        if (count < FAULT_LATENCIES)
            run->latencies[count] = (double)(base_clock_ns() - began_ns) * 1e-9;
        run->seen.local_misses += status != KVT_OK;
        count++;
        base_sleep(50000);
    }
    getrusage(RUSAGE_THREAD, &after);
    free(data);
    out->gets = count;
    /* Each get is followed by one sleep. */
    const uint64_t slept = (uint64_t)(after.ru_nvcsw - before.ru_nvcsw);
    out->waits = slept > count ? slept - count : 0;
    out->preempted = (uint64_t)(after.ru_nivcsw - before.ru_nivcsw);
    if (count > FAULT_LATENCIES) count = FAULT_LATENCIES;
    if (count == 0) return;
    qsort(run->latencies, count, sizeof *run->latencies, fault_order);
    out->p50_s = run->latencies[count / 2];
    out->p99_s = run->latencies[(uint64_t)count * 99 / 100];
}

/* Gives slots that hold keys to another node, with the keys. */
static void fault_move_slots(const bench_cluster *cluster)
{
    static char answer[65536];
    char line[512], ids[2][41] = {"", ""};
    for (uint32_t i = 0; i < 2; i++)
        if (bench_cluster_say(cluster, i, "CLUSTER MYID", answer, sizeof answer))
            snprintf(ids[i], sizeof ids[i], "%.40s", strchr(answer, '\n') + 1);
    uint32_t moved = 0;
    for (uint32_t slot = 0; slot < 5400 && moved < 40; slot++) {
        snprintf(line, sizeof line, "CLUSTER COUNTKEYSINSLOT %u", slot);
        if (!bench_cluster_say(cluster, 0, line, answer, sizeof answer) || answer[1] == '0')
            continue;
        moved++;
        snprintf(line, sizeof line, "CLUSTER SETSLOT %u IMPORTING %s", slot, ids[0]);
        (void)bench_cluster_say(cluster, 1, line, answer, sizeof answer);
        snprintf(line, sizeof line, "CLUSTER SETSLOT %u MIGRATING %s", slot, ids[1]);
        (void)bench_cluster_say(cluster, 0, line, answer, sizeof answer);
        for (int i = 0; i < 32; i++) {
            snprintf(line, sizeof line, "CLUSTER GETKEYSINSLOT %u 1", slot);
            if (!bench_cluster_say(cluster, 0, line, answer, sizeof answer)) break;
            base_sleep(1000000);
            const char *key = strstr(answer, "kvt1:");
            if (key == NULL) break;
            snprintf(line, sizeof line, "MIGRATE %s %u %.*s 0 1000", cluster->address,
                     cluster->nodes[1].port, (int)strcspn(key, "\r"), key);
            (void)bench_cluster_say(cluster, 0, line, answer, sizeof answer);
        }
        for (uint32_t i = 0; i < cluster->count; i++) {
            snprintf(line, sizeof line, "CLUSTER SETSLOT %u NODE %s", slot, ids[1]);
            (void)bench_cluster_say(cluster, i, line, answer, sizeof answer);
        }
    }
}

static void fault_begin(fault_run *run, int phase)
{
    bench_cluster *cluster = (bench_cluster *)(uintptr_t)&run->site->cluster;
    char answer[128];
    if (phase == PHASE_KILLED) bench_cluster_kill(cluster, FAULT_VICTIM);
    if (phase == PHASE_STOPPED) bench_cluster_signal(cluster, FAULT_VICTIM, SIGSTOP);
    if (phase == PHASE_CUT) (void)bench_hosts_cut(&run->site->spaces, 0, true);
    if (phase == PHASE_MOVED) fault_move_slots(cluster);
    if (phase == PHASE_FULL) {
        (void)bench_cluster_say(cluster, FAULT_VICTIM, "CONFIG SET maxmemory-policy noeviction",
                                answer, sizeof answer);
        (void)bench_cluster_say(cluster, FAULT_VICTIM, "CONFIG SET maxmemory 1000000", answer,
                                sizeof answer);
    }
    if (phase == PHASE_EMPTIED) (void)bench_cluster_restart(cluster, FAULT_VICTIM);
}

/* The node returns, with the entries that it has lost. */
static void fault_end(fault_run *run, int phase)
{
    bench_cluster *cluster = (bench_cluster *)(uintptr_t)&run->site->cluster;
    char answer[128];
    if (phase == PHASE_KILLED && !bench_cluster_restart(cluster, FAULT_VICTIM)) return;
    if (phase == PHASE_STOPPED) bench_cluster_signal(cluster, FAULT_VICTIM, SIGCONT);
    if (phase == PHASE_CUT) (void)bench_hosts_cut(&run->site->spaces, 0, false);
    if (phase == PHASE_FULL)
        (void)bench_cluster_say(cluster, FAULT_VICTIM, "CONFIG SET maxmemory 700000000", answer,
                                sizeof answer);
    if (phase >= PHASE_KILLED && phase <= PHASE_CUT) {
        atomic_store(&run->back_ns, base_clock_ns());
        atomic_store(&run->back, true);
    }
}

/* Puts the remote entries again, by a store that knows nothing of what is there. */
static bool fault_fill(const bench_remote_site *site)
{
    kvt_store *store =
        bench_remote_store(&site->cluster, UINT64_C(96) << 20, KVT_PUBLISH_ALL, 5, 0.001);
    const bool good = store != NULL && bench_remote_publish(store, FAULT_BYTES, FAULT_REMOTE);
    kvt_close(store);
    return good;
}

/* Puts the local entries, and keeps them: those that gets bring would push them out, and a get of
 * one that is gone asks the engine. */
static bool fault_put_local(kvt_store *store)
{
    kvt_key keys[FAULT_LOCAL];
    uint64_t lease;
    char *data = bench_buffer(FAULT_BYTES);
    bool good = data != NULL;
    for (uint32_t i = 0; i < FAULT_LOCAL && good; i++) {
        const uint32_t number = FAULT_FIRST + i;
        memcpy(data, &number, sizeof number);
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = bench_remote_key(FAULT_BYTES, number),
                                 .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = FAULT_BYTES},
                                 .recompute_seconds = 1};
        keys[i] = entry.key;
        good = kvt_put(store, &entry, data, FAULT_BYTES) == KVT_OK;
    }
    free(data);
    return good && kvt_flush(store) == KVT_OK &&
           kvt_lease(store, NULL, keys, FAULT_LOCAL, base_clock_ns() + FAULT_LEASE_NS, NULL,
                     &lease) == KVT_OK;
}

static bool fault_phase(const bench_remote_site *site, int phase, double seconds, fault_seen *out)
{
    fault_run run = {.site = site, .seen = {.recovery_s = -1}, .used_s = -1};
    fault_local after;
    pthread_t thread, sleeper;
    if (phase > PHASE_KILLED && !fault_fill(site)) return false;
    run.store =
        bench_remote_store(&site->cluster, UINT64_C(12) << 20, KVT_PUBLISH_NONE, FAULT_DEADLINE, 1);
    run.latencies = calloc(FAULT_LATENCIES, sizeof *run.latencies);
    const bool good = run.store != NULL && run.latencies != NULL && fault_put_local(run.store);
    const bool sleeps = good && pthread_create(&sleeper, NULL, fault_sleep, &run) == 0;
    const bool started = sleeps && pthread_create(&thread, NULL, fault_get_remote, &run) == 0;
    if (started) {
        base_sleep(300000000);
        fault_get_local(&run, seconds, &run.seen.before);
        fault_begin(&run, phase);
        fault_get_local(&run, seconds, &run.seen.during);
        fault_end(&run, phase);
        if (atomic_load(&run.back)) fault_get_local(&run, seconds, &after);
    }
    atomic_store(&run.stop, true);
    if (started) pthread_join(thread, NULL);
    if (sleeps) pthread_join(sleeper, NULL);
    *out = run.seen;
    if (out->recovery_s < 0) out->recovery_s = atomic_load(&run.used_s);
    kvt_close(run.store);
    free(run.latencies);
    return started;
}

static json_t *fault_report_local(const fault_local *local)
{
    return json_pack("{s:f, s:f, s:I, s:I, s:I}", "p50_s", local->p50_s, "p99_s", local->p99_s,
                     "gets", (json_int_t)local->gets, "waits", (json_int_t)local->waits,
                     "preempted", (json_int_t)local->preempted);
}

static json_t *fault_report(const fault_seen *seen, int phase)
{
    json_t *one = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:f, s:I}",
                            "fault", phase_names[phase], "gets", (json_int_t)seen->gets, "hits",
                            (json_int_t)seen->hits, "misses", (json_int_t)seen->misses, "timeouts",
                            (json_int_t)seen->timeouts, "wrong_bytes", (json_int_t)seen->wrong,
                            "late_calls", (json_int_t)seen->late, "lost_s", seen->lost_s,
                            "slowest_s", seen->slowest_s, "sleeps", (json_int_t)seen->sleeps,
                            "late_sleeps", (json_int_t)seen->late_sleeps, "slowest_sleep_s",
                            seen->slowest_sleep_s, "local_misses", (json_int_t)seen->local_misses);
    json_object_set_new(one, "local_before", fault_report_local(&seen->before));
    json_object_set_new(one, "local_during", fault_report_local(&seen->during));
    if (phase >= PHASE_KILLED && phase <= PHASE_CUT)
        json_object_set_new(one, "recovery_s",
                            seen->recovery_s < 0 ? json_null() : json_real(seen->recovery_s));
    return one;
}

int bench_remote_faults(const bench_options *options)
{
    static bench_remote_site site;
    static fault_seen seen[PHASES];
    bench_options own = *options;
    own.quick = true; /* few objects beside the bench's own */
    int result = bench_remote_open(&own, &site);
    if (result != 0) return result;
    bool good = fault_fill(&site);
    for (int phase = 0; phase < PHASES && good; phase++) {
        if (phase == PHASE_CUT && !site.has_spaces) continue;
        bench_tell(options, phase, PHASES, phase_names[phase]);
        good = fault_phase(&site, phase, options->quick ? 1 : 3, &seen[phase]);
    }
    bench_tell(options, 1, 1, "");
    if (good && options->json) {
        json_t *root = bench_report_head("kvterrace-bench-remote-faults-2", 1);
        json_t *list = json_array();
        for (int phase = 0; phase < PHASES; phase++)
            if (phase != PHASE_CUT || site.has_spaces)
                json_array_append_new(list, fault_report(&seen[phase], phase));
        json_object_set_new(root, "deadline_s", json_real(FAULT_DEADLINE));
        json_object_set_new(root, "faults", list);
        result = bench_report_print(options->out, root);
    } else if (good) {
        fprintf(options->out, "%-8s %8s %8s %8s %6s %5s %8s %8s %11s %18s %18s %9s\n", "fault",
                "gets", "hits", "timeouts", "wrong", "late", "slowest", "sleep", "late sleeps",
                "local p50, p99 us", "during the fault", "recovery");
        for (int phase = 0; phase < PHASES; phase++) {
            if (phase == PHASE_CUT && !site.has_spaces) continue;
            const fault_seen *one = &seen[phase];
            fprintf(options->out,
                    "%-8s %8llu %8llu %8llu %6llu %5llu %8.4f %8.4f %4llu of %4llu %9.1f %8.1f "
                    "%9.1f %8.1f %9.2f\n",
                    phase_names[phase], (unsigned long long)one->gets,
                    (unsigned long long)one->hits, (unsigned long long)one->timeouts,
                    (unsigned long long)one->wrong, (unsigned long long)one->late, one->slowest_s,
                    one->slowest_sleep_s, (unsigned long long)one->late_sleeps,
                    (unsigned long long)one->sleeps, one->before.p50_s * 1e6,
                    one->before.p99_s * 1e6, one->during.p50_s * 1e6, one->during.p99_s * 1e6,
                    one->recovery_s);
        }
    }
    bench_remote_close(&site);
    return good ? result : 1;
}
