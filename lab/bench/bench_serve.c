/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_serve.c - what a store costs that another process lends, beside the same store in this
 * process: lookups, gets into regions and through staging, batches; and gets of several clients
 * from drives.
 *
 * Every repeat runs the same calls on both, one after the other, and a ratio is made within one
 * repeat; its median counts. The server is `kvterrace serve` from the folder of this program. From
 * drives, a store that this process opens and one that a server opens have the same entries: the
 * drives have one owner at a time, so that their repeats follow each other.
 *
 * Thread rule: one bench at a time.
 */
#include "bench.h"

#include "lab/private.h"

#include <kvterrace/connect.h>
#include <kvterrace/queue.h>

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

enum {
    SERVE_REPEATS = 9,
    SERVE_REPEATS_QUICK = 3,
    SERVE_REPEATS_MAX = 99,
    SERVE_ENTRIES = 64,
    SERVE_BATCH = 64,
    SERVE_CLIENTS_MAX = 4,
    SERVE_CALLS = 4000,    /* lookups and round trips of a repeat */
    SERVE_START_MS = 30000 /* that a server may take to listen */
};

/* One kind of work, on a store and memory. Returns how much was done, 0 when a call failed. */
typedef double serve_work(kvt_store *store, char *memory, uint64_t bytes, uint32_t rounds);

typedef struct serve_bench {
    const bench_options *options;
    bench_report *report;
    uint32_t repeats;
    char folder[64], socket[96], config[96];
    pid_t server; /* 0: none */
} serve_bench;

static kvt_key serve_key(uint32_t number, uint64_t bytes)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    memcpy(key.bytes + 8, &bytes, sizeof bytes);
    return key;
}

/* ---- the server ---- */

static void serve_end(serve_bench *bench)
{
    int how;
    if (bench->server <= 0) return;
    (void)kill(bench->server, SIGTERM);
    while (waitpid(bench->server, &how, 0) < 0)
        continue;
    bench->server = 0;
}

/* Writes the server's configuration: memory, or the devices as SSD. */
static bool serve_configure(const serve_bench *bench, uint64_t dram_bytes, bool drives)
{
    FILE *file = fopen(bench->config, "w");
    if (file == NULL) return false;
    fprintf(file,
            "[store]\npolicy = lru\nput_staging = 64MiB\n%s[serve]\nsocket = %s\n"
            "[tier.dram]\ncapacity = %lluMiB\n",
            drives ? "format = yes\n" : "", bench->socket, (unsigned long long)(dram_bytes / MIB));
    for (uint32_t i = 0; drives && i < bench->options->device_count; i++) {
        const kvt_device_config *device = &bench->options->devices[i];
        fprintf(file, "\n[device.%s]\ntier = ssd\nbackend = file\npath = %s\n", device->name,
                device->path);
        if (device->capacity_bytes != 0)
            fprintf(file, "capacity = %llu\n", (unsigned long long)device->capacity_bytes);
    }
    return fclose(file) == 0;
}

/* Starts the server and connects to it. */
static kvt_status serve_begin(serve_bench *bench, kvt_store **store_out, char *message, size_t size)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 16);
    if (length <= 0) return KVT_E_IO;
    program[length] = '\0';
    char *name = strrchr(program, '/') + 1;
    memcpy(name, "kvterrace", sizeof "kvterrace");
    bench->server = fork();
    if (bench->server < 0) return KVT_E_MEMORY;
    if (bench->server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0) _exit(127);
        execl(program, "kvterrace", "serve", "--quiet", "--config", bench->config, (char *)NULL);
        _exit(127);
    }
    kvt_status status = KVT_E_GONE;
    for (int waited = 0; waited < SERVE_START_MS; waited += 10) {
        status = kvt_connect(bench->socket, NULL, store_out, message, size);
        /* One that listens may be formatting its drives yet. */
        if (status != KVT_E_GONE && status != KVT_E_TIMEOUT) break;
        if (waitpid(bench->server, NULL, WNOHANG) == bench->server) {
            bench->server = 0; /* it has said why on standard error */
            break;
        }
        base_sleep(10000000);
    }
    return status;
}

/* ---- work ---- */

/* Puts the entries of a size, of so many clients. */
static bool serve_puts(kvt_store *store, uint64_t bytes, uint32_t clients)
{
    char *data = malloc(bytes);
    bool done = data != NULL;
    for (uint32_t i = 0; i < SERVE_ENTRIES * clients && done; i++) {
        kvt_entry entry = {.struct_size = sizeof entry,
                           .key = serve_key(i, bytes),
                           .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes},
                           .recompute_seconds = 1};
        memset(data, (int)i + 1, bytes);
        kvt_status status;
        while ((status = kvt_store_put(store, &entry, KVT_PACKED(data, bytes))) == KVT_BUSY)
            (void)!kvt_store_flush(store);
        done = status == KVT_OK || status == KVT_EXISTS;
    }
    free(data);
    return done && kvt_store_flush(store) == KVT_OK;
}

/* The median seconds of a lookup; 0: one failed. */
static double serve_exists(kvt_store *store, uint64_t bytes)
{
    static double seconds[SERVE_CALLS];
    for (uint32_t i = 0; i < SERVE_CALLS; i++) {
        const kvt_key key = serve_key(i % SERVE_ENTRIES, bytes);
        const uint64_t begin_ns = base_clock_ns();
        if (kvt_store_exists(store, &key) != KVT_OK) return 0;
        seconds[i] = (double)(base_clock_ns() - begin_ns) * 1e-9;
    }
    return bench_rate_of(seconds, SERVE_CALLS).median;
}

static double serve_gets(kvt_store *store, char *memory, uint64_t bytes, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        const uint32_t number = i % SERVE_ENTRIES;
        const kvt_key key = serve_key(number, bytes);
        char *to = memory + number * bytes;
        if (kvt_store_get(store, &key, KVT_PACKED(to, bytes), KVT_NO_DEADLINE, NULL) != KVT_OK)
            return 0;
        if (to[0] != (char)(number + 1) || to[bytes - 1] != (char)(number + 1)) return 0;
    }
    return (double)rounds * (double)bytes;
}

static bool serve_batch(kvt_queue *queue, char *memory, uint64_t bytes, uint32_t first)
{
    kvt_view views[SERVE_BATCH];
    kvt_request requests[SERVE_BATCH];
    kvt_completion done[SERVE_BATCH];
    for (uint32_t i = 0; i < SERVE_BATCH; i++) {
        views[i] = kvt_view_packed(memory + i * bytes, bytes);
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = serve_key(first + i % SERVE_ENTRIES, bytes),
                                    .view = &views[i],
                                    .deadline_ns = KVT_NO_DEADLINE};
    }
    if (kvt_queue_submit(queue, requests, SERVE_BATCH, NULL) != KVT_OK) return false;
    for (size_t count = 0; count < SERVE_BATCH;) {
        if (kvt_queue_wait(queue, KVT_NO_DEADLINE) != KVT_OK) return false;
        done[0].struct_size = sizeof done[0];
        const size_t now = kvt_queue_drain(queue, done, SERVE_BATCH);
        for (size_t i = 0; i < now; i++)
            if (done[i].status != KVT_OK) return false;
        count += now;
    }
    return true;
}

/* Batches of the entries from `first` on. */
static double serve_batches_of(kvt_store *store, char *memory, uint64_t bytes, uint32_t rounds,
                               uint32_t first)
{
    kvt_queue *queue = NULL;
    if (kvt_queue_open(store, NULL, &queue) != KVT_OK) return 0;
    bool done = true;
    for (uint32_t i = 0; i < rounds && done; i++)
        done = serve_batch(queue, memory, bytes, first);
    kvt_queue_close(queue);
    return done ? (double)rounds * SERVE_BATCH * (double)bytes : 0;
}

static double serve_batches(kvt_store *store, char *memory, uint64_t bytes, uint32_t rounds)
{
    return serve_batches_of(store, memory, bytes, rounds, 0);
}

/* How much a second; 0: a call failed. */
static double serve_rate(serve_work *work, kvt_store *store, char *memory, uint64_t bytes,
                         uint32_t rounds)
{
    if (work == NULL) {
        const double seconds = serve_exists(store, bytes);
        return seconds > 0 ? 1 / seconds : 0;
    }
    const uint64_t begin_ns = base_clock_ns();
    const double done = work(store, memory, bytes, rounds);
    const uint64_t took_ns = base_clock_ns() - begin_ns;
    return took_ns > 0 ? done * 1e9 / (double)took_ns : 0;
}

/* ---- memory ---- */

typedef struct serve_case {
    const char *name;
    serve_work *work; /* NULL: lookups, whose rate is of the median one */
    uint64_t bytes;
    uint32_t rounds;
    bool region; /* the client's memory is one; else its gets go through staging */
} serve_case;

static const serve_case serve_cases[] = {
    {"exists", NULL, MIB / 32, 0, false},
    {"get 1 MiB, region", serve_gets, MIB, 400, true},
    {"get 1 MiB, staging", serve_gets, MIB, 400, false},
    {"get 32 KiB, region", serve_gets, MIB / 32, 2000, true},
    {"64 of 32 KiB, region", serve_batches, MIB / 32, 60, true},
    {"64 of 32 KiB, staging", serve_batches, MIB / 32, 60, false},
    {"64 of 1 MiB, region", serve_batches, MIB, 6, true},
    {"64 of 1 MiB, staging", serve_batches, MIB, 6, false},
};

/* Median seconds of a round trip between two processes by eventfd; 0: it could not be made. */
static double serve_round_trip(void)
{
    static double seconds[SERVE_CALLS];
    const int there = eventfd(0, EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC);
    uint64_t count = 1;
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (read(there, &count, sizeof count) > 0 && write(back, &count, sizeof count) > 0)
            count = 1;
        _exit(0);
    }
    uint32_t made = 0;
    while (child > 0 && made < SERVE_CALLS) {
        const uint64_t begin_ns = base_clock_ns();
        count = 1;
        if (write(there, &count, sizeof count) < 0 || read(back, &count, sizeof count) < 0) break;
        seconds[made++] = (double)(base_clock_ns() - begin_ns) * 1e-9;
    }
    if (child > 0) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
    }
    close(there);
    close(back);
    return made > 0 ? bench_rate_of(seconds, made).median : 0;
}

/* One case in all repeats. */
static kvt_status serve_run_case(serve_bench *bench, const serve_case *one, kvt_store *own,
                                 kvt_store *lent, char *plain, char *region)
{
    double rates[2][SERVE_REPEATS_MAX], ratios[SERVE_REPEATS_MAX], trips[SERVE_REPEATS_MAX];
    uint32_t trip_count = 0;
    for (uint32_t i = 0; i < bench->repeats; i++) {
        rates[0][i] = serve_rate(one->work, own, plain, one->bytes, one->rounds);
        rates[1][i] =
            serve_rate(one->work, lent, one->region ? region : plain, one->bytes, one->rounds);
        if (rates[0][i] == 0 || rates[1][i] == 0)
            return bench_blame(bench->report, KVT_E_CORRUPT, one->name,
                               "a call failed, or gave other bytes");
        ratios[i] = rates[1][i] / rates[0][i];
        if (one->work != NULL) continue;
        const double trip = serve_round_trip();
        if (trip > 0) trips[trip_count++] = (1 / rates[1][i] - 1 / rates[0][i]) / trip;
    }
    const bench_rate ratio = bench_rate_of(ratios, bench->repeats);
    const double trip = trip_count > 0 ? bench_rate_of(trips, trip_count).median : 0;
    json_t *row = json_pack("{s:s, s:f, s:f}", "case", one->name, "own_per_s",
                            bench_rate_of(rates[0], bench->repeats).median, "lent_per_s",
                            bench_rate_of(rates[1], bench->repeats).median);
    (void)bench_with_rate(row, "ratio", &ratio);
    (void)json_object_set_new(row, "round_trips", trip_count > 0 ? json_real(trip) : json_null());
    bench_report_row(bench->report, "rows", row);
    return KVT_OK;
}

static kvt_status serve_own(const serve_bench *bench, uint64_t dram_bytes, bool drives,
                            kvt_store **store_out)
{
    char message[BENCH_MESSAGE_BYTES];
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.lossless = false;
    options.format = true;
    options.limits.put_staging_bytes = 64 * MIB;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    if (drives)
        options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
            .devices = bench->options->devices, .device_count = bench->options->device_count};
    const kvt_status status = kvt_store_open(&options, store_out, message, sizeof message);
    return status == KVT_OK ? status : bench_blame(bench->report, status, "store", message);
}

static kvt_status serve_memory(serve_bench *bench)
{
    char message[BENCH_MESSAGE_BYTES] = "";
    kvt_store *own = NULL, *lent = NULL;
    void *region = NULL;
    const uint64_t bytes = SERVE_ENTRIES * MIB;
    char *plain = malloc(bytes);
    kvt_status status = plain != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK && !serve_configure(bench, 256 * MIB, false)) status = KVT_E_IO;
    if (status == KVT_OK) status = serve_own(bench, 256 * MIB, false, &own);
    if (status == KVT_OK) status = serve_begin(bench, &lent, message, sizeof message);
    if (status == KVT_OK) status = kvt_region_make(lent, bytes, &region);
    if (status == KVT_OK) {
        memset(plain, 1, bytes);
        memset(region, 1, bytes);
        const bool there = serve_puts(own, MIB, 1) && serve_puts(own, MIB / 32, 1) &&
                           serve_puts(lent, MIB, 1) && serve_puts(lent, MIB / 32, 1);
        if (!there) status = KVT_E_SPACE;
    }
    const uint32_t count = sizeof serve_cases / sizeof *serve_cases;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        (void)bench_tell(bench->options, i, count + 1, serve_cases[i].name);
        status = serve_run_case(bench, &serve_cases[i], own, lent, plain, region);
    }
    if (region != NULL) (void)!kvt_region_free(lent, region);
    kvt_store_close(lent);
    serve_end(bench);
    kvt_store_close(own);
    free(plain);
    if (status != KVT_OK && message[0] != '\0')
        return bench_blame(bench->report, status, "server", message);
    return status;
}

/* ---- drives ---- */

typedef struct serve_client {
    kvt_store *store;
    char *memory;
    pthread_t thread;
    uint32_t number, rounds;
    double rate;
} serve_client;

static void *serve_client_runs(void *argument)
{
    serve_client *client = argument;
    const uint64_t begin_ns = base_clock_ns();
    const double done = serve_batches_of(client->store, client->memory, MIB, client->rounds,
                                         client->number * SERVE_ENTRIES);
    client->rate = done * 1e9 / (double)(base_clock_ns() - begin_ns);
    return NULL;
}

/* Gets of several clients at once, each all entries of its own in batches, because gets of the same
 * ones share reads: bytes a second together, and the slowest one's part of the mean. */
static double serve_together(serve_client *clients, uint32_t count, uint32_t rounds,
                             double *fair_out)
{
    double least = 0, sum = 0;
    const uint64_t begin_ns = base_clock_ns();
    for (uint32_t i = 0; i < count; i++)
        clients[i].rounds = rounds;
    for (uint32_t i = 0; i < count; i++)
        if (base_thread_start(&clients[i].thread, serve_client_runs, &clients[i]) != KVT_OK)
            return 0;
    for (uint32_t i = 0; i < count; i++)
        (void)pthread_join(clients[i].thread, NULL);
    const double seconds = (double)(base_clock_ns() - begin_ns) * 1e-9;
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || clients[i].rate < least) least = clients[i].rate;
        sum += clients[i].rate;
    }
    *fair_out = sum > 0 ? least * count / sum : 0;
    return least > 0 ? (double)rounds * SERVE_BATCH * (double)MIB * count / seconds : 0;
}

/* Rates of `count` handles of one store, in all repeats. 0 rows: a call failed. */
static kvt_status serve_drive_rates(const serve_bench *bench, serve_client *clients, uint32_t count,
                                    double *rates, double *fairs)
{
    /* Clients that end one batch after the other are fair to a part of one in so many. */
    const uint32_t rounds = bench->options->quick ? 2 : 6;
    for (uint32_t i = 0; i < bench->repeats; i++) {
        rates[i] = serve_together(clients, count, rounds, &fairs[i]);
        if (rates[i] == 0)
            return bench_blame(bench->report, KVT_E_CORRUPT, "drives", "a call failed");
    }
    return KVT_OK;
}

static void serve_drive_row(serve_bench *bench, const char *name, uint32_t clients, double *rates,
                            double *fairs, double own)
{
    const bench_rate rate = bench_rate_of(rates, bench->repeats);
    bench_report_row(bench->report, "drives",
                     json_pack("{s:s, s:i, s:f, s:f, s:f}", "store", name, "clients", (int)clients,
                               "bytes_per_s", rate.median, "ratio", rate.median / own, "fair",
                               bench_rate_of(fairs, bench->repeats).median));
}

/* Gives clients, whose stores are there, a region each to read into. */
static kvt_status serve_take_memory(serve_client *clients, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        void *memory = NULL;
        const kvt_status status = kvt_region_make(clients[i].store, SERVE_BATCH * MIB, &memory);
        if (status != KVT_OK) return status;
        clients[i].memory = memory;
    }
    return KVT_OK;
}

static void serve_free_memory(serve_client *clients)
{
    for (uint32_t i = 0; i < SERVE_CLIENTS_MAX; i++) {
        if (clients[i].memory != NULL) (void)kvt_region_free(NULL, clients[i].memory);
        clients[i].memory = NULL;
    }
}

/* Rates of the first clients over what the drives hold. */
static kvt_status serve_drive_lent(serve_bench *bench, serve_client *clients, double own)
{
    double rates[SERVE_REPEATS_MAX], fairs[SERVE_REPEATS_MAX];
    kvt_status status = serve_take_memory(clients, SERVE_CLIENTS_MAX);
    if (status == KVT_OK && !serve_puts(clients[0].store, MIB, SERVE_CLIENTS_MAX))
        status = KVT_E_SPACE;
    for (uint32_t count = 1; count <= SERVE_CLIENTS_MAX && status == KVT_OK; count *= 2) {
        status = serve_drive_rates(bench, clients, count, rates, fairs);
        if (status == KVT_OK) serve_drive_row(bench, "lent", count, rates, fairs, own);
    }
    return status;
}

static kvt_status serve_drive_own(serve_bench *bench, double *own_out)
{
    double rates[SERVE_REPEATS_MAX], fairs[SERVE_REPEATS_MAX];
    serve_client clients[SERVE_CLIENTS_MAX] = {0};
    kvt_status status = serve_own(bench, 4 * MIB, true, &clients[0].store);
    if (status == KVT_OK) status = serve_take_memory(clients, 1);
    if (status == KVT_OK && !serve_puts(clients[0].store, MIB, SERVE_CLIENTS_MAX))
        status = KVT_E_SPACE;
    if (status == KVT_OK) status = serve_drive_rates(bench, clients, 1, rates, fairs);
    if (status == KVT_OK) {
        *own_out = bench_rate_of(rates, bench->repeats).median;
        serve_drive_row(bench, "own", 1, rates, fairs, *own_out);
    }
    kvt_store_close(clients[0].store);
    serve_free_memory(clients);
    return status;
}

static kvt_status serve_drives(serve_bench *bench)
{
    double own = 0;
    char message[BENCH_MESSAGE_BYTES] = "";
    serve_client clients[SERVE_CLIENTS_MAX] = {0};
    kvt_status status = serve_drive_own(bench, &own);
    if (status == KVT_OK && !serve_configure(bench, 4 * MIB, true)) status = KVT_E_IO;
    if (status == KVT_OK) status = serve_begin(bench, &clients[0].store, message, sizeof message);
    for (uint32_t i = 1; i < SERVE_CLIENTS_MAX && status == KVT_OK; i++) {
        clients[i].number = i;
        status = kvt_connect(bench->socket, NULL, &clients[i].store, message, sizeof message);
    }
    if (status == KVT_OK) status = serve_drive_lent(bench, clients, own);
    for (uint32_t i = 0; i < SERVE_CLIENTS_MAX; i++)
        kvt_store_close(clients[i].store);
    serve_free_memory(clients);
    serve_end(bench);
    return status == KVT_OK || message[0] == '\0'
               ? status
               : bench_blame(bench->report, status, "server", message);
}

/* ---- the case ---- */

static kvt_status serve_run(const bench_options *options, bench_report *report)
{
    char lock[112];
    serve_bench bench = {.options = options,
                         .report = report,
                         .repeats = options->quick        ? SERVE_REPEATS_QUICK
                                    : options->iterations ? options->iterations
                                                          : SERVE_REPEATS};
    if (bench.repeats > SERVE_REPEATS_MAX) return KVT_E_ARGUMENT;
    (void)snprintf(bench.folder, sizeof bench.folder, "/tmp/kvlab_serve_XXXXXX");
    if (mkdtemp(bench.folder) == NULL) return KVT_E_IO;
    (void)snprintf(bench.socket, sizeof bench.socket, "%s/socket", bench.folder);
    (void)snprintf(bench.config, sizeof bench.config, "%s/config.ini", bench.folder);
    (void)snprintf(lock, sizeof lock, "%s.lock", bench.socket);
    kvt_status status = serve_memory(&bench);
    if (status == KVT_OK && options->device_count > 0) status = serve_drives(&bench);
    (void)unlink(bench.config);
    (void)unlink(lock);
    (void)rmdir(bench.folder);
    bench_report_set(report, "repetitions", json_integer(bench.repeats));
    return status;
}

const bench_case bench_serve_case = {
    .name = "serve",
    .schema = "kvterrace-bench-serve-1",
    .tables = (const document_table[]){{"rows", "case own_per_s lent_per_s ratio ratio_min "
                                                "ratio_max round_trips"},
                                       {"drives", "store clients bytes_per_s ratio fair"},
                                       {"", "repetitions"},
                                       {0}},
    .run = serve_run,
};
