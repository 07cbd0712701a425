/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_sweep.c - one scripted life of a whole store in which the n-th allocation, read,
 * write, sync or call of SQLite's on its file fails, for every n that a clean run makes.
 *
 * The store is DRAM over two SSD members with a catalog. The script puts more than DRAM holds,
 * promotes, demotes, deletes and puts again, retires a device and brings it back, flushes, closes,
 * opens again and reads everything. A model follows the moves that the store reports. What must
 * hold is more than right bytes or a miss: a fault loses no stored entry but the one whose only
 * bytes it hit, which only a failed read can do, and what was flushed comes back.
 *
 * In its normal form the test takes every so many n, of lru with puts that carry their plan out, of
 * utility with puts that hand over, and of utility with all calls through a queue; else of each
 * policy with all of these. With KVT_SWEEP_ALL=1 in the environment it takes all of them, but for
 * SQLite's own allocations, 16,000 a run: 1,000 of these. KVT_SWEEP_ALL=2 takes those, too.
 */
#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"
#include "queued.h"
#include "store_support.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { NUMBERS = 28, SSDS = 2, DEVICES = 3, PER_KIND = 14, RETRIES = 5, FINDINGS_SHOWN = 20 };

/* ---- faults: one of all calls of a kind fails ---- */

typedef enum sweep_kind {
    SWEEP_NOTHING = 0,
    SWEEP_ALLOCATION,
    SWEEP_SQLITE_ALLOCATION,
    SWEEP_THREAD,
    SWEEP_READ,
    SWEEP_WRITE,
    SWEEP_FULL, /* a write for which the device has no room */
    SWEEP_SYNC,
    SWEEP_CATALOG_READ,
    SWEEP_CATALOG_WRITE,
    SWEEP_CATALOG_SYNC,
    SWEEP_KINDS
} sweep_kind;

static const char *const sweep_names[SWEEP_KINDS] = {
    "nothing", "allocation", "SQLite allocation", "thread",        "read",        "write",
    "full",    "sync",       "catalog read",      "catalog write", "catalog sync"};

/* Counts run while the library is called, on all its threads. SQLite calls what is exported. */
static atomic_bool armed;
static sweep_kind fault_kind;
static uint64_t fault_at;
static _Atomic uint64_t seen[SWEEP_KINDS];
static atomic_bool fault_hit;
static const char *policy;
static bool handed; /* puts hand over; else they return when the entry is stored */
static bool queued; /* gets, puts and deletes go through a queue */
static uint32_t findings;
static uint64_t wrong_bytes;

/* Counts one call; true when it is the one that fails. */
static bool sweep_fails(sweep_kind kind)
{
    if (!atomic_load_explicit(&armed, memory_order_relaxed)) return false;
    uint64_t number = atomic_fetch_add(&seen[kind], 1);
    if (kind != fault_kind || number != fault_at) return false;
    atomic_store(&fault_hit, true);
    return true;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SWEEP_ALLOCATIONS false /* they have allocators of their own */
#else
#define SWEEP_ALLOCATIONS true
/* The library is a part of the program, SQLite is not. The few allocations of libc and the loader
 * count as SQLite's: pthread_create makes one for each new stack, and asserts that an allocation
 * that failed has set errno. */
extern const char __executable_start[], etext[];

static bool sweep_allocation_fails(const void *caller)
{
    const char *from = caller;
    const bool library = from >= __executable_start && from < etext;
    if (!sweep_fails(library ? SWEEP_ALLOCATION : SWEEP_SQLITE_ALLOCATION)) return false;
    errno = ENOMEM;
    return true;
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

KVT_API void *malloc(size_t bytes)
{
    return sweep_allocation_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

KVT_API void *calloc(size_t count, size_t bytes)
{
    return sweep_allocation_fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

KVT_API void *realloc(void *memory, size_t bytes)
{
    return sweep_allocation_fails(__builtin_return_address(0)) ? NULL
                                                               : __libc_realloc(memory, bytes);
}

KVT_API void *aligned_alloc(size_t align, size_t bytes)
{
    return sweep_allocation_fails(__builtin_return_address(0)) ? NULL
                                                               : __libc_memalign(align, bytes);
}
#endif

typedef int sweep_thread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                void *(*run)(void *), void *argument);

KVT_API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                           void *(*run)(void *), void *argument)
{
    static sweep_thread_create *real;
    if (real == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_create");
        memcpy(&real, &found, sizeof found);
    }
    return sweep_fails(SWEEP_THREAD) ? EAGAIN : real(thread, attributes, run, argument);
}

/* ---- devices that count ---- */

typedef struct sweep_device {
    kvt_device base;
    kvt_device *inner;
    uint64_t clock_ns;
} sweep_device;

static void sweep_device_close(kvt_device *device)
{
    kvt_device_close(((sweep_device *)device)->inner);
    free(device);
}

static kvt_status sweep_device_submit(kvt_device *device, kvt_io *io)
{
    sweep_device *self = (sweep_device *)device;
    bool reads = io->kind == KVT_IO_READ;
    bool fails = sweep_fails(reads ? SWEEP_READ : SWEEP_WRITE);
    bool full = !reads && sweep_fails(SWEEP_FULL);
    io->submitted_ns = self->clock_ns;
    self->clock_ns += UINT64_C(10) * io->bytes;
    io->finished_ns = self->clock_ns;
    if (fails || full)
        io->status = fails ? KVT_E_IO : KVT_E_SPACE;
    else
        io->status = kvt_device_transfer(self->inner, io->kind, io->offset, io->buffer, io->bytes);
    return KVT_OK;
}

static kvt_status sweep_device_sync(kvt_device *device)
{
    if (sweep_fails(SWEEP_SYNC)) return KVT_E_IO;
    return kvt_device_sync(((sweep_device *)device)->inner);
}

static const kvt_device_ops sweep_device_inside = {.struct_size = sizeof sweep_device_inside,
                                                   .abi_version = KVT_DEVICE_ABI,
                                                   .name = "sweep",
                                                   .close = sweep_device_close,
                                                   .submit = sweep_device_submit,
                                                   .sync = sweep_device_sync};

/* The context is the path of a file, or NULL for memory. */
static kvt_status sweep_device_open(const kvt_device_config *config, kvt_device **device_out,
                                    char *message, size_t message_size)
{
    sweep_device *self = calloc(1, sizeof *self);
    if (self == NULL) return KVT_E_MEMORY;
    const char *path = stand_in_context(config);
    kvt_device_config wrapped = {.struct_size = sizeof wrapped,
                                 .name = config->name,
                                 .backend = path != NULL ? "file" : "memory",
                                 .path = path,
                                 .sparse = path != NULL,
                                 .capacity_bytes = config->capacity_bytes};
    kvt_status status = kvt_device_open(&wrapped, &self->inner, message, message_size);
    if (status != KVT_OK) {
        free(self);
        return status;
    }
    self->base = (kvt_device){.ops = &sweep_device_inside, .facts = self->inner->facts};
    self->base.facts.depth_max = 1;
    memcpy(self->base.name, self->inner->name, sizeof self->base.name);
    *device_out = &self->base;
    return KVT_OK;
}

static const kvt_device_ops sweep_device_ops = {.struct_size = sizeof sweep_device_ops,
                                                .abi_version = KVT_DEVICE_ABI,
                                                .name = "sweep",
                                                .open = sweep_device_open};

/* ---- SQLite's calls on its files ---- */

typedef ssize_t sweep_pread(int file, void *bytes, size_t count, off_t offset);
typedef ssize_t sweep_pwrite(int file, const void *bytes, size_t count, off_t offset);
static sweep_pread *real_pread;
static sweep_pwrite *real_pwrite;
static int (*real_fdatasync)(int file);
static int (*real_fsync)(int file);

static ssize_t failing_pread(int file, void *bytes, size_t count, off_t offset)
{
    if (!sweep_fails(SWEEP_CATALOG_READ)) return real_pread(file, bytes, count, offset);
    errno = EIO;
    return -1;
}

static ssize_t failing_pwrite(int file, const void *bytes, size_t count, off_t offset)
{
    if (!sweep_fails(SWEEP_CATALOG_WRITE)) return real_pwrite(file, bytes, count, offset);
    errno = ENOSPC;
    return -1;
}

static bool sweep_is_catalog(int file)
{
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return strstr(path, "catalog.db") != NULL;
}

static int sweep_sync(const char *name, int (**real)(int file), int file)
{
    if (*real == NULL) {
        void *found = dlsym(RTLD_NEXT, name);
        memcpy(real, &found, sizeof found);
    }
    if (!sweep_is_catalog(file) || !sweep_fails(SWEEP_CATALOG_SYNC)) return (*real)(file);
    errno = EIO;
    return -1;
}

/* SQLite calls one of the two, by name. */
KVT_API int fdatasync(int file)
{
    return sweep_sync("fdatasync", &real_fdatasync, file);
}

KVT_API int fsync(int file)
{
    return sweep_sync("fsync", &real_fsync, file);
}

static void sweep_take_sqlite(void)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    static const char *const reads[] = {"pread", "pread64"};
    static const char *const writes[] = {"pwrite", "pwrite64"};
    for (int i = 0; i < 2; i++) {
        sqlite3_syscall_ptr found = vfs->xGetSystemCall(vfs, reads[i]);
        if (found != NULL && real_pread == NULL) memcpy(&real_pread, &found, sizeof found);
        sweep_pread *mine = failing_pread;
        sqlite3_syscall_ptr given;
        memcpy(&given, &mine, sizeof given);
        if (found != NULL) (void)vfs->xSetSystemCall(vfs, reads[i], given);
        found = vfs->xGetSystemCall(vfs, writes[i]);
        if (found != NULL && real_pwrite == NULL) memcpy(&real_pwrite, &found, sizeof found);
        sweep_pwrite *writer = failing_pwrite;
        memcpy(&given, &writer, sizeof given);
        if (found != NULL) (void)vfs->xSetSystemCall(vfs, writes[i], given);
    }
    assert_non_null(real_pread);
    assert_non_null(real_pwrite);
}

/* ---- the model ---- */

typedef struct sweep_entry {
    uint64_t handle;
    bool stored;
    bool on_ssd;
    bool durable; /* on SSD, and flushed since it came there */
    bool deleted; /* and that was flushed */
} sweep_entry;

typedef struct sweep_run {
    char folder[64];
    char catalog[96];
    char paths[SSDS][96];
    kvt_device_config configs[DEVICES];
    stand_in stand_ins[DEVICES];
    kvt_store_options options;
    kvt_store *store;
    kvt_queue *queue; /* NULL unless queued */
    sweep_entry entries[NUMBERS];
    uint32_t put_number;
    uint64_t load_failures, given_up;
} sweep_run;

static sweep_entry *sweep_find(sweep_run *run, uint64_t handle)
{
    for (uint32_t i = 0; i < NUMBERS; i++) {
        if (run->entries[i].stored && run->entries[i].handle == handle) return &run->entries[i];
    }
    return NULL;
}

static void sweep_observe(void *context, const kvt_move *move, kvt_status outcome)
{
    sweep_run *run = context;
    if (outcome != KVT_OK) return;
    if (move->kind == KVT_MOVE_PUT)
        run->entries[run->put_number] = (sweep_entry){.handle = move->handle, .stored = true};
    sweep_entry *entry = sweep_find(run, move->handle);
    if (entry == NULL) return;
    entry->stored = move->kind != KVT_MOVE_EVICT;
    entry->on_ssd = move->to_bytes[KVT_TIER_SSD] != 0;
    entry->durable = false;
}

/* ---- the script ---- */

static char sweep_folder[64];
static char sweep_profile[96];

/* In memory where there is such a file system: a run costs hundreds of syncs. */
static void sweep_make_folder(char *path, size_t size)
{
    snprintf(path, size, "%s/kvt-sweep-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".");
    if (mkdtemp(path) == NULL) abort();
}

/* Curves of devices by these names, so that no open measures. */
static void sweep_make_profile(void)
{
    sweep_make_folder(sweep_folder, sizeof sweep_folder);
    snprintf(sweep_profile, sizeof sweep_profile, "%s/profile.db", sweep_folder);
    kvt_profile *profile = NULL;
    assert_ok(kvt_profile_open(sweep_profile, KVT_PROFILE_WRITE, &profile, NULL, 0));
    static const char *const names[DEVICES] = {"dram", "ssd0", "ssd1"};
    for (int i = 0; i < DEVICES; i++) {
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = names[i],
                                    .backend = "sim",
                                    .capacity_bytes = 1u << 24,
                                    .read_bytes_per_s = UINT64_C(100000000),
                                    .write_bytes_per_s = UINT64_C(100000000),
                                    .latency_ns = 1000};
        kvt_profile_request request = {
            .struct_size = sizeof request, .repetitions = 1, .quick = true, .command_line = "x"};
        kvt_device *device = NULL;
        assert_ok(kvt_device_open(&config, &device, NULL, 0));
        assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 1u << 24, &request));
        kvt_device_close(device);
    }
    kvt_profile_close(profile);
}

static kvt_device_config sweep_config(stand_in *device, const char *name, char *path,
                                      uint64_t capacity_bytes)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = name,
                               .backend = stand_in_set(device, &sweep_device_ops, path),
                               .capacity_bytes = capacity_bytes,
                               .timeout_ns = UINT64_MAX};
}

static void sweep_prepare(sweep_run *run)
{
    static const char *const names[SSDS] = {"ssd0", "ssd1"};
    memset(run, 0, sizeof *run);
    sweep_make_folder(run->folder, sizeof run->folder);
    snprintf(run->catalog, sizeof run->catalog, "%s/catalog.db", run->folder);
    kvt_store_options_init(&run->options);
    if (!handed) run->options.limits.put_staging_bytes = 0;
    run->options.limits.staging_bytes = 1 << 20;
    run->options.durability.catalog_path = run->catalog;
    run->options.learning.profile_path = sweep_profile;
    run->options.learning.profile_foreign = true;
    run->options.learning.learn = false;
    run->options.lossless = false;
    run->options.policy = policy;
    run->options.limits.tick_seconds = 0;
    run->options.observer.call = sweep_observe;
    run->options.observer.context = run;
    run->configs[0] = sweep_config(&run->stand_ins[0], "dram", NULL, 240 << 10);
    for (int i = 0; i < SSDS; i++) {
        snprintf(run->paths[i], sizeof run->paths[i], "%s/%s", run->folder, names[i]);
        run->configs[1 + i] =
            sweep_config(&run->stand_ins[1 + i], names[i], run->paths[i], 640 << 10);
    }
    run->options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){
        .devices = &run->configs[0], .device_count = 1, .unit_bytes = 4096, .weights_fixed = true};
    run->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = &run->configs[1],
                                                          .device_count = SSDS,
                                                          .unit_bytes = 4096,
                                                          .weights_fixed = true};
}

#define SWEEP(call)                                                                                \
    do {                                                                                           \
        atomic_store(&armed, true);                                                                \
        call;                                                                                      \
        atomic_store(&armed, false);                                                               \
    } while (0)

/* Notes what a run did that it must not, and goes on: the sweep tells of all such runs. */
static void sweep_fail(const char *text, uint32_t number, int value)
{
    if (findings++ < FINDINGS_SHOWN)
        print_message("%s %llu fails: %s (%u, %d)\n", sweep_names[fault_kind],
                      (unsigned long long)fault_at, text, number, value);
}

/* An open that the fault makes fail leaves everything to the next one. */
static void sweep_open(sweep_run *run)
{
    char message[256] = "";
    kvt_status status;
    SWEEP(status = kvt_store_open(&run->options, &run->store, message, sizeof message));
    if (status != KVT_OK && atomic_load(&fault_hit))
        status = kvt_store_open(&run->options, &run->store, message, sizeof message);
    if (status != KVT_OK) sweep_fail(message, 0, status);
    if (status != KVT_OK) run->store = NULL;
    run->queue = NULL;
    if (!queued || run->store == NULL) return;
    SWEEP(status = kvt_queue_open(run->store, NULL, &run->queue));
    if (status != KVT_OK && atomic_load(&fault_hit))
        status = kvt_queue_open(run->store, NULL, &run->queue);
    if (status != KVT_OK) sweep_fail("a queue", 0, status);
}

/* Ends a queue and its store. */
static void sweep_close(sweep_run *run)
{
    kvt_queue_close(run->queue);
    kvt_store_close(run->store);
}

/* Until what was handed over has ended, stored or not; the model knows one put at a time. */
static void sweep_await_put(kvt_store *store)
{
    while (handed && support_stats(store).puts_waiting != 0)
        usleep(100);
}

static void sweep_put(sweep_run *run, uint32_t number)
{
    static char data[SUPPORT_ENTRY_BYTES];
    support_fill(number, data);
    const kvt_entry entry = support_entry(support_key(number), support_layout, 1);
    run->put_number = number;
    kvt_status status;
    SWEEP({
        status = run->queue != NULL
                     ? queued_put(run->queue, &entry, data)
                     : kvt_store_put(run->store, &entry, KVT_PACKED(data, sizeof data));
        sweep_await_put(run->store);
    });
    bool expected = status == KVT_OK || (run->entries[number].stored && status == KVT_EXISTS);
    if (!expected && !atomic_load(&fault_hit)) sweep_fail("put", number, status);
}

static kvt_status sweep_get(sweep_run *run, uint32_t number, bool faults)
{
    static char data[SUPPORT_ENTRY_BYTES], expected[SUPPORT_ENTRY_BYTES];
    kvt_key key = support_key(number);
    kvt_status status;
    atomic_store(&armed, faults);
    status = run->queue != NULL ? queued_get(run->queue, &key, &support_layout, data)
                                : kvt_store_get(run->store, &key, KVT_PACKED(data, sizeof data),
                                                KVT_STORE_DEADLINE, NULL);
    atomic_store(&armed, false);
    support_fill(number, expected);
    if (status == KVT_OK && memcmp(data, expected, sizeof data) != 0) {
        wrong_bytes++;
        sweep_fail("wrong bytes", number, 0);
    }
    if (status != KVT_OK && status != KVT_MISS && !(status == KVT_E_MEMORY && faults))
        sweep_fail("get", number, status);
    return status;
}

static void sweep_delete(sweep_run *run, uint32_t number)
{
    kvt_key key = support_key(number);
    kvt_status status;
    SWEEP(status = run->queue != NULL ? queued_delete(run->queue, &key)
                                      : kvt_store_delete(run->store, &key));
    if (status != KVT_OK && status != KVT_MISS) sweep_fail("delete", number, status);
    run->entries[number] = (sweep_entry){0};
}

static void sweep_flush(sweep_run *run)
{
    kvt_status status;
    SWEEP(status = kvt_store_flush(run->store));
    if (status != KVT_OK && !atomic_load(&fault_hit)) sweep_fail("flush", 0, status);
    for (uint32_t i = 0; i < NUMBERS && status == KVT_OK; i++) {
        sweep_entry *entry = &run->entries[i];
        kvt_key key = support_key(i);
        bool there =
            kvt_store_exists(run->store, &key) == KVT_OK; /* else its device is out of service */
        entry->durable = entry->stored && entry->on_ssd && there;
        entry->deleted = !entry->stored;
    }
}

static void sweep_maintain(sweep_run *run)
{
    kvt_status status;
    SWEEP(status = kvt_store_maintain(run->store, NULL));
    if (status != KVT_OK && status != KVT_E_MEMORY) sweep_fail("maintain", 0, status);
}

static void sweep_change_devices(sweep_run *run)
{
    kvt_status status;
    SWEEP(status = kvt_device_change(run->store, "ssd1", KVT_DEVICE_RETIRE));
    if (status != KVT_OK) sweep_fail("retire", 0, status);
    (void)sweep_get(run, 1, true);
    char message[256] = "";
    status = KVT_BUSY;
    for (int i = 0; i < RETRIES && status != KVT_OK; i++)
        SWEEP(status = kvt_device_add(run->store, KVT_TIER_SSD, &run->configs[2], message,
                                      sizeof message));
    if (status != KVT_OK) sweep_fail(message, 0, status);
}

static void sweep_live(sweep_run *run)
{
    for (uint32_t i = 0; i < 20; i++)
        sweep_put(run, i);
    sweep_flush(run);
    for (uint32_t i = 0; i < 20; i += 3) {
        (void)sweep_get(run, i, true);
        sweep_maintain(run);
    }
    for (uint32_t i = 20; i < NUMBERS; i++)
        sweep_put(run, i);
    sweep_delete(run, 2);
    sweep_delete(run, 23);
    sweep_flush(run);
    sweep_put(run, 2);
    sweep_change_devices(run);
    sweep_maintain(run);
    sweep_flush(run);
}

/* How many entries that shall be there are not. Closing writes back what DRAM alone holds, and what
 * is worth less gives way to it on a full SSD: as many flushed entries may be gone as came back. */
static uint32_t sweep_missing(sweep_run *run, bool reopened)
{
    uint32_t missing = 0, written_back = 0;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        const sweep_entry *entry = &run->entries[i];
        kvt_status status = sweep_get(run, i, false);
        bool expected = reopened ? entry->durable : entry->stored;
        missing += expected && status != KVT_OK;
        written_back += reopened && entry->stored && !entry->on_ssd && status == KVT_OK;
        if (reopened && entry->deleted && status == KVT_OK)
            sweep_fail("a flushed deletion came back", i, 0);
    }
    return missing > written_back ? missing - written_back : 0;
}

typedef struct sweep_totals {
    uint64_t runs, hits, lost_by_fault, entries_checked;
} sweep_totals;

static void sweep_check(sweep_run *run, sweep_totals *totals, bool reopened)
{
    kvt_store_stats stats = support_stats(run->store);
    run->load_failures += stats.load_failures;
    run->given_up += stats.given_up;
    /* A member whose sync failed is out of service until the store is opened again. */
    if (fault_kind == SWEEP_SYNC && !reopened) return;
    uint64_t allowed = fault_kind == SWEEP_READ ? run->load_failures : 0;
    uint32_t missing = sweep_missing(run, reopened);
    for (uint32_t i = 0; i < NUMBERS; i++)
        totals->entries_checked += reopened ? run->entries[i].durable : run->entries[i].stored;
    if (run->load_failures > (fault_kind == SWEEP_READ ? 1u : 0u) && fault_kind != SWEEP_SYNC)
        sweep_fail("more loads failed than faults", 0, (int)run->load_failures);
    if (missing <= allowed) return;
    totals->lost_by_fault += missing - allowed;
    sweep_fail(reopened ? "flushed entries are gone" : "stored entries are gone", missing,
               (int)run->given_up);
}

static void sweep_once(sweep_kind kind, uint64_t at, sweep_totals *totals)
{
    sweep_run run;
    fault_kind = kind;
    fault_at = at;
    atomic_store(&fault_hit, false);
    for (int i = 0; i < SWEEP_KINDS; i++)
        atomic_store(&seen[i], 0);
    sweep_prepare(&run);
    sweep_open(&run);
    if (run.store != NULL) {
        sweep_live(&run);
        sweep_check(&run, totals, false);
        SWEEP(sweep_close(&run));
        sweep_open(&run);
    }
    if (run.store != NULL) sweep_check(&run, totals, true);
    sweep_close(&run);
    support_remove_folder(run.folder);
    totals->runs++;
    totals->hits += atomic_load(&fault_hit);
}

/* Every so many n of every kind under the policy of now. */
static void sweep_policy(sweep_totals *totals, int all)
{
    uint64_t counts[SWEEP_KINDS];
    sweep_once(SWEEP_NOTHING, UINT64_MAX, totals);
    assert_int_equal(findings, 0);
    for (int i = 0; i < SWEEP_KINDS; i++)
        counts[i] = atomic_load(&seen[i]);
    counts[SWEEP_FULL] = counts[SWEEP_WRITE];
    for (int kind = SWEEP_ALLOCATION; kind < SWEEP_KINDS; kind++) {
        bool sqlite = kind == SWEEP_SQLITE_ALLOCATION;
        if ((kind == SWEEP_ALLOCATION || sqlite) && !SWEEP_ALLOCATIONS) continue;
        uint64_t runs_wanted = all == 0 ? PER_KIND : all == 1 && sqlite ? 1000 : counts[kind];
        uint64_t stride = (counts[kind] + runs_wanted - 1) / runs_wanted;
        uint64_t hits = totals->hits, runs = totals->runs;
        assert_true(counts[kind] > 0);
        for (uint64_t n = 0; n < counts[kind]; n += stride)
            sweep_once((sweep_kind)kind, n, totals);
        print_message("%-8s %-11s %-17s calls %llu, runs %llu, faults %llu\n", policy,
                      handed   ? "handed over"
                      : queued ? "by queue"
                               : "carried out",
                      sweep_names[kind], (unsigned long long)counts[kind],
                      (unsigned long long)(totals->runs - runs),
                      (unsigned long long)(totals->hits - hits));
        assert_true(totals->hits > hits);
    }
}

TEST(sweep)
{
    static const char *const policies[] = {"lru", "utility"};
    const char *wish = getenv("KVT_SWEEP_ALL");
    int all = wish != NULL && wish[0] >= '1' && wish[0] <= '2' ? wish[0] - '0' : 0;
    sweep_totals totals = {0};
    for (int i = 0; i < 6; i++) {
        policy = policies[i % 2];
        handed = i == 1 || i == 2 || i == 4;
        queued = i >= 4;
        if (all != 0 || i == 0 || i == 1 || i == 5) sweep_policy(&totals, all);
    }
    print_message("sweep_runs=%llu faults=%llu entries_checked=%llu lost_by_fault=%llu "
                  "wrong_bytes=%llu findings=%u\n",
                  (unsigned long long)totals.runs, (unsigned long long)totals.hits,
                  (unsigned long long)totals.entries_checked,
                  (unsigned long long)totals.lost_by_fault, (unsigned long long)wrong_bytes,
                  findings);
    assert_true(totals.entries_checked > totals.runs * NUMBERS);
    assert_int_equal(findings, 0);
    assert_int_equal(totals.lost_by_fault, 0);
    assert_int_equal(wrong_bytes, 0);
}

TEST_BEFORE_ALL
{
    sweep_take_sqlite();
    sweep_make_profile();
}

TEST_AFTER_ALL
{
    support_remove_folder(sweep_folder);
}
