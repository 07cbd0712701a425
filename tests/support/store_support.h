/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_support.h - what the tests of the store share: small stores, entries with known bytes, and
 * a device whose faults the test controls.
 */
#ifndef TESTS_STORE_SUPPORT_H
#define TESTS_STORE_SUPPORT_H

#include "cases.h"

#include "codecs/kv_sample.h"
#include "fault_device.h"
#include "stand_in.h"
#include "tiers/devices/device_ops.h"

#include <kvterrace/kvterrace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One entry of the tests: 2 layers x 2 sides x 32 tokens x 2 heads x 64 x bf16 = 32 KiB. */
static const kvt_layout support_layout = {
    .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 32};
#define SUPPORT_ENTRY_BYTES (32u * 1024u)

static inline kvt_key support_key(uint32_t number)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    key.bytes[31] = 0x5a;
    return key;
}

/* The bytes of entry `number`. */
static inline void support_fill(uint32_t number, void *data)
{
    codecs_kv_sample_fill(&support_layout, 1000 + number, data);
}

static inline kvt_entry support_entry(kvt_key key, kvt_layout layout, double recompute_seconds)
{
    return (kvt_entry){.struct_size = sizeof(kvt_entry),
                       .key = key,
                       .layout = layout,
                       .recompute_seconds = recompute_seconds};
}

static inline kvt_status support_put(kvt_store *store, uint32_t number)
{
    static _Thread_local char data[SUPPORT_ENTRY_BYTES];
    support_fill(number, data);
    const kvt_entry entry = support_entry(support_key(number), support_layout, 1);
    return kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
}

/* Gets an entry and compares every byte; KVT_E_CORRUPT when they differ, which no test accepts. */
static inline kvt_status support_get(kvt_store *store, uint32_t number, kvt_get_info *info)
{
    static _Thread_local char data[SUPPORT_ENTRY_BYTES], expected[SUPPORT_ENTRY_BYTES];
    kvt_key key = support_key(number);
    memset(data, 0xee, sizeof data);
    kvt_status status =
        kvt_store_get(store, &key, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, info);
    if (status != KVT_OK) return status;
    support_fill(number, expected);
    return memcmp(data, expected, sizeof data) == 0 ? KVT_OK : KVT_E_CORRUPT;
}

/* Puts entries, which all are taken. */
static inline void support_puts(kvt_store *store, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_ok(support_put(store, i));
}

/* Gets entries, which all come back. */
static inline void support_gets(kvt_store *store, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_ok(support_get(store, i, NULL));
}

/* Options of a store without a background, whose puts say how their writes went. */
static inline kvt_store_options support_options(uint64_t staging_bytes, const char *policy)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0;
    options.limits.staging_bytes = staging_bytes;
    options.policy = policy;
    options.limits.tick_seconds = 0;
    return options;
}

static inline void support_tier(kvt_store_options *options, kvt_tier tier,
                                const kvt_device_config *devices, uint32_t count)
{
    options->tiers[tier].devices = devices;
    options->tiers[tier].device_count = count;
}

static inline kvt_store *support_open(const kvt_store_options *options)
{
    kvt_store *store = NULL;
    char message[256] = "";
    const kvt_status status = kvt_store_open(options, &store, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
    return store;
}

/* A store of memory alone, without a background. */
static inline kvt_store *support_open_memory(const char *policy, uint64_t capacity_bytes,
                                             uint64_t put_staging_bytes)
{
    kvt_store_options options = support_options(4 << 20, policy);
    options.limits.put_staging_bytes = put_staging_bytes;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = capacity_bytes;
    return support_open(&options);
}

/* Puts an opaque entry of 64 bytes. */
static inline kvt_status support_put_small(kvt_store *store, const kvt_key *key, uint32_t tenant)
{
    static const char data[64];
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = *key,
                             .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = sizeof data},
                             .recompute_seconds = 1,
                             .tenant = tenant};
    return kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
}

static inline kvt_store_stats support_stats(kvt_store *store)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    if (kvt_store_stats_get(store, &stats) != KVT_OK) abort();
    return stats;
}

static inline void support_remove_folder(const char *path)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0) abort();
}

static inline void support_end_folder(void *path)
{
    if (access(path, F_OK) == 0) support_remove_folder(path);
}

/* A folder of its own for each test, which ends with the case. */
static inline void support_make_folder(char *path, size_t size)
{
    snprintf(path, size, "kvt-test-XXXXXX");
    if (mkdtemp(path) == NULL) abort();
    const size_t bytes = strlen(path) + 1;
    test_after(support_end_folder, memcpy(test_alloc(bytes), path, bytes));
}

/* ---- a device with faults ---- */

/* The context of a stand-in; device is set by the open. With a path it is a file, which
 * keeps what it holds and is as fast as every other one by its own clock; else memory. */
typedef struct support_fault {
    uint64_t capacity_bytes;
    const char *path;
    bool foreign;   /* its facts say that somebody else's bytes lie on it */
    bool fast;      /* a file: so fast that decoding takes longer than reading more */
    uint32_t depth; /* 0: as the device under it */
    kvt_device *device;
    stand_in stand_in;
} support_fault;

/* One operation at a time, each at 100 MB/s of a clock of its own, or at 10 GB/s: measurements
 * agree everywhere. */
typedef struct support_steady {
    kvt_device base;
    kvt_device *inner;
    uint64_t clock_ns;
    bool fast;
} support_steady;

static inline void support_steady_close(kvt_device *device)
{
    kvt_device_close(((support_steady *)device)->inner);
    free(device);
}

static inline kvt_status support_steady_submit(kvt_device *device, kvt_io *io)
{
    support_steady *steady = (support_steady *)device;
    io->submitted_ns = steady->clock_ns;
    steady->clock_ns += steady->fast ? io->bytes / 10u + 1u : UINT64_C(10) * io->bytes;
    io->finished_ns = steady->clock_ns;
    io->status = kvt_device_transfer(steady->inner, io->kind, io->offset, io->buffer, io->bytes);
    return KVT_OK;
}

static inline kvt_status support_steady_sync(kvt_device *device)
{
    return kvt_device_sync(((support_steady *)device)->inner);
}

static inline void support_steady_attach(kvt_device *device)
{
    kvt_device_attach(((support_steady *)device)->inner);
}

static inline void support_steady_detach(kvt_device *device)
{
    kvt_device_detach(((support_steady *)device)->inner);
}

static const kvt_device_ops support_steady_ops = {.struct_size = sizeof support_steady_ops,
                                                  .abi_version = KVT_DEVICE_ABI,
                                                  .name = "support-steady",
                                                  .close = support_steady_close,
                                                  .submit = support_steady_submit,
                                                  .sync = support_steady_sync,
                                                  .attach = support_steady_attach,
                                                  .detach = support_steady_detach};

static inline kvt_status support_steady_wrap(kvt_device **device, bool fast)
{
    support_steady *steady = calloc(1, sizeof *steady);
    if (steady == NULL) return KVT_E_MEMORY;
    steady->base = (kvt_device){.ops = &support_steady_ops, .facts = (*device)->facts};
    steady->base.facts.depth_max = 1;
    memcpy(steady->base.name, (*device)->name, sizeof steady->base.name);
    steady->inner = *device;
    steady->fast = fast;
    *device = &steady->base;
    return KVT_OK;
}

static inline kvt_status support_fault_open(const kvt_device_config *config,
                                            kvt_device **device_out, char *message,
                                            size_t message_size)
{
    support_fault *fault = stand_in_context(config);
    kvt_device_config wrapped = {.struct_size = sizeof wrapped,
                                 .name = config->name,
                                 .backend = fault->path != NULL ? "file" : "memory",
                                 .path = fault->path,
                                 .sparse = fault->path != NULL,
                                 .capacity_bytes = fault->capacity_bytes};
    kvt_device *inner;
    kvt_status status = kvt_device_open(&wrapped, &inner, message, message_size);
    if (status != KVT_OK) return status;
    if (fault->depth != 0) inner->facts.depth_max = fault->depth;
    status = tiers_fault_open(inner, device_out);
    fault->device = *device_out;
    if (status == KVT_OK && fault->path != NULL)
        status = support_steady_wrap(device_out, fault->fast);
    if (status == KVT_OK && fault->foreign) (*device_out)->facts.flags |= KVT_DEVICE_FOREIGN;
    return status;
}

static const kvt_device_ops support_fault_ops = {.struct_size = sizeof support_fault_ops,
                                                 .abi_version = KVT_DEVICE_ABI,
                                                 .name = "support-fault",
                                                 .open = support_fault_open};

/* It is never taken for unresponsive: how long a disk that others write to may take decides no
 * test. */
static inline kvt_device_config support_fault_config(support_fault *fault, const char *name)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = name,
                               .backend = stand_in_set(&fault->stand_in, &support_fault_ops, fault),
                               .timeout_ns = UINT64_MAX};
}

/* A regular file, made when it is absent; never taken for unresponsive, as above. */
static inline kvt_device_config support_file_config(const char *name, const char *path,
                                                    uint64_t capacity_bytes)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = name,
                               .backend = "file",
                               .path = path,
                               .capacity_bytes = capacity_bytes,
                               .timeout_ns = UINT64_MAX};
}

#endif
