/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings_check.c - what a store would refuse of its options, found before anything is opened:
 * files that cannot be what they are named as, tiers that their devices cannot hold, memory and
 * disk space that this machine does not have. One thread.
 */
#include "settings_check.h"

#include "base/config_values.h"
#include "base/secret.h"
#include "store/core/options.h"
#include "tiers/devices/device_memory_node.h"
#include "tiers/devices/superblock.h"
#include "tiers/seal/seal_device.h"
#include "tiers/seal/seal_header.h"

#include <kvterrace/config.h>
#include <kvterrace/remote.h>

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- places ---- */

/* 64 devices a tier, and the catalog and the profile. */
#define PLACES_MAX (3u * 64u + 3u)

typedef struct place {
    char setting[96];
    const char *path;
    bool exists;
    struct stat facts;
} place;

typedef struct place_list {
    place places[PLACES_MAX];
    size_t count;
    char *message;
    size_t message_size;
} place_list;

static kvt_status places_refuse(place_list *list, const place *one, const char *reason)
{
    (void)snprintf(list->message, list->message_size, "%s: %.300s: %s", one->setting, one->path,
                   reason);
    return KVT_E_CONFIG;
}

static char *places_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
}

/* Files that are not there are one when their names and the folders of them are. */
static bool places_are_one_name(const char *a, const char *b)
{
    struct stat facts_a, facts_b;
    const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
    if (strcmp(slash_a != NULL ? slash_a + 1 : a, slash_b != NULL ? slash_b + 1 : b) != 0)
        return false;
    char *folder_a = places_folder(a), *folder_b = places_folder(b);
    bool same = folder_a != NULL && folder_b != NULL && stat(folder_a, &facts_a) == 0 &&
                stat(folder_b, &facts_b) == 0 && facts_a.st_dev == facts_b.st_dev &&
                facts_a.st_ino == facts_b.st_ino;
    free(folder_a);
    free(folder_b);
    return same;
}

/* Two names are one file when they agree in device and inode; names of files that are not there yet
 * when they agree as text. */
static bool places_are_one(const place *a, const place *b)
{
    if (a->exists != b->exists) return false;
    if (!a->exists) return places_are_one_name(a->path, b->path);
    bool drives = S_ISBLK(a->facts.st_mode) || S_ISCHR(a->facts.st_mode);
    if (drives && a->facts.st_mode == b->facts.st_mode) return a->facts.st_rdev == b->facts.st_rdev;
    return a->facts.st_dev == b->facts.st_dev && a->facts.st_ino == b->facts.st_ino;
}

/* A file that may be made when it is absent: its folder must be there. */
static kvt_status places_check_folder(place_list *list, const place *one)
{
    struct stat facts;
    char *folder = places_folder(one->path);
    if (folder == NULL) return KVT_E_MEMORY;
    int failed = stat(folder, &facts);
    free(folder);
    if (failed != 0) return places_refuse(list, one, "its folder is not there");
    return S_ISDIR(facts.st_mode) ? KVT_OK : places_refuse(list, one, "its folder is no folder");
}

/* must_exist: what nothing makes on the way. */
static kvt_status places_add(place_list *list, const char *setting, const char *path,
                             bool must_exist)
{
    place *one = &list->places[list->count];
    if (path == NULL || list->count == PLACES_MAX) return KVT_OK;
    *one = (place){.path = path, .exists = false};
    (void)snprintf(one->setting, sizeof one->setting, "%s", setting);
    one->exists = stat(path, &one->facts) == 0;
    if (!one->exists && errno != ENOENT) return places_refuse(list, one, strerror(errno));
    if (!one->exists && must_exist) return places_refuse(list, one, strerror(ENOENT));
    if (one->exists && S_ISDIR(one->facts.st_mode))
        return places_refuse(list, one, "this is a folder");
    for (size_t i = 0; i < list->count; i++) {
        if (!places_are_one(one, &list->places[i])) continue;
        char reason[128];
        (void)snprintf(reason, sizeof reason, "%s is the same file", list->places[i].setting);
        return places_refuse(list, one, reason);
    }
    list->count++;
    return one->exists ? KVT_OK : places_check_folder(list, one);
}

/* What the file back end refuses: a link that may not be followed (those to block devices that are
 * root's may), and what is neither a regular file nor a block device. */
static const char *places_refused_file(const kvt_device_config *device)
{
    struct stat link, facts;
    if (lstat(device->path, &link) != 0) return NULL;
    bool there = stat(device->path, &facts) == 0;
    if (S_ISLNK(link.st_mode)) {
        if (!there) return "a symbolic link that leads nowhere";
        if (!device->follow_symlinks && !(link.st_uid == 0 && S_ISBLK(facts.st_mode)))
            return "a symbolic link; store.follow_symlinks = yes opens what it leads to";
    }
    bool fits = S_ISREG(facts.st_mode) || S_ISBLK(facts.st_mode) || S_ISDIR(facts.st_mode);
    return fits ? NULL : "neither a regular file nor a block device";
}

/* Why a regular file cannot be this device, by what lies where its label or header goes; NULL: it
 * can, or the file is not there. */
static const char *places_refused_bytes(const kvt_device_config *device, bool format)
{
    const char *const path = device->path;
    const bool asked = tiers_seal_is_asked(device);
    char slots[2][8] = {{0}};
    struct stat facts;
    if (path == NULL || stat(path, &facts) != 0 || !S_ISREG(facts.st_mode)) return NULL;
    FILE *file = fopen(path, "re");
    if (file == NULL) return NULL;
    (void)!fread(slots[0], 1, sizeof slots[0], file);
    if (fseek(file, TIERS_LABEL_BYTES, SEEK_SET) == 0)
        (void)!fread(slots[1], 1, sizeof slots[1], file);
    (void)fclose(file);
    for (int i = 0; i < 2; i++) {
        if (memcmp(slots[i], SEAL_HEADER_MAGIC, 8) == 0)
            return asked ? NULL
                         : "this file is encrypted, and neither key_file nor key_command is set";
        if (memcmp(slots[i], TIERS_LABEL_MAGIC, 8) == 0)
            return asked ? "this file is not encrypted, and a key is set" : NULL;
    }
    if (format || memcmp(slots[0], "\0\0\0\0\0\0\0", 8) == 0) return NULL;
    return "this file holds other bytes; store.format = yes gives them up";
}

/* Refuses a key file as the device would, which several devices may share. A command is not run. */
static kvt_status places_check_key(place_list *list, const kvt_device_config *device)
{
    place one = {.path = device->key_file};
    char fault[300];
    seal_keys keys;
    if (device->key_file == NULL) return KVT_OK;
    const bool read = seal_keys_read(device->key_file, NULL, &keys, fault, sizeof fault) == NULL;
    explicit_bzero(&keys, sizeof keys);
    if (read) return KVT_OK;
    (void)snprintf(one.setting, sizeof one.setting, "device.%.60s.key_file", device->name);
    return places_refuse(list, &one, fault);
}

/* A regular file is made when it is absent and its capacity is known; a drive is there or not. */
static kvt_status places_add_device(place_list *list, const kvt_device_config *device, bool format)
{
    char setting[96];
    bool file = strcmp(device->backend, "file") == 0;
    (void)snprintf(setting, sizeof setting, "device.%.60s.path", device->name);
    const char *refused = file && device->path != NULL ? places_refused_file(device) : NULL;
    if (file && refused == NULL) refused = places_refused_bytes(device, format);
    if (refused != NULL) {
        place one = {.path = device->path};
        (void)snprintf(one.setting, sizeof one.setting, "%s", setting);
        return places_refuse(list, &one, refused);
    }
    const kvt_status status =
        places_add(list, setting, device->path, !file || device->capacity_bytes == 0);
    return status == KVT_OK ? places_check_key(list, device) : status;
}

/* Refuses a file that the store would not take as a secret, such as one that others may read. */
static kvt_status places_add_secret(place_list *list, const kvt_config *config, const char *path)
{
    char name[KVT_CONFIG_NAME_BYTES] = "", setting[64];
    (void)kvt_config_name_at(config, "remote", 0, name);
    (void)snprintf(setting, sizeof setting, "remote.%s.password_file", name);
    kvt_status status = places_add(list, setting, path, true);
    if (status != KVT_OK || path == NULL) return status;
    base_password secret;
    const char *fault = base_password_read(path, &secret);
    explicit_bzero(&secret, sizeof secret);
    return fault == NULL ? KVT_OK : places_refuse(list, &list->places[list->count - 1], fault);
}

/* KVT_OK, or KVT_E_CONFIG with a message that names the setting: a profile or a folder that is not
 * there, a folder in a file's place, one file in two places, a file of somebody else's. Of a file
 * only the place of the label is read; whether a drive answers is for the store to find. */
static kvt_status check_places(const kvt_config *config, const kvt_store_options *options,
                               char *message, size_t message_size)
{
    place_list *list = calloc(1, sizeof *list);
    if (list == NULL) return KVT_E_MEMORY;
    list->message = message;
    list->message_size = message_size;
    kvt_status status = places_add(list, "store.profile", options->learning.profile_path, true);
    if (status == KVT_OK)
        status = places_add(list, "store.catalog", options->durability.catalog_path, false);
    if (status == KVT_OK) status = places_add(list, "store.watch_path", options->watch.path, false);
    if (status == KVT_OK && options->remote != NULL)
        status = places_add_secret(list, config, options->remote->password_file);
    for (int tier = KVT_TIER_HBM; status == KVT_OK && tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *row = &options->tiers[tier];
        for (uint32_t i = 0; status == KVT_OK && i < row->device_count; i++)
            status = places_add_device(list, &row->devices[i], options->format);
    }
    free(list);
    return status;
}

#define CHECK_FILE_LEAST  (UINT64_C(64) << 10)
#define CHECK_UNIT_BYTES  (UINT64_C(256) << 10) /* where tier.*.unit is not set */
#define CHECK_MEMORY_MOST (UINT64_C(1) << 47)   /* what a process can address */

/* ---- whether it fits together ---- */

/* A file for simulation alone describes its SSD by speeds and needs no device. */
static bool check_is_simulated(const kvt_config *config, int tier)
{
    static const char *const keys[] = {"read_bandwidth", "write_bandwidth", "latency", "devices"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char key[64];
        (void)snprintf(key, sizeof key, "tier.%s.%s", kvt_tier_name(tier), keys[i]);
        if (kvt_config_has(config, key)) return true;
    }
    return false;
}

/* What will really be asked for: a live replay with a scale shrinks capacities. */
static uint64_t check_wanted_bytes(kvt_config *config, uint64_t bytes)
{
    if (!kvt_config_has(config, "replay.scale")) return bytes;
    const double wanted = (double)bytes * kvt_config_number(config, "replay.scale");
    return wanted < 0x1p63 ? (uint64_t)wanted : UINT64_MAX;
}

__attribute__((format(printf, 3, 4))) static kvt_status
check_refuse(char *message, size_t message_size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, message_size, format, arguments);
    va_end(arguments);
    return KVT_E_CONFIG;
}

/* Memory that the host does not have: a store would not open here. */
static kvt_status check_memory(const char *setting, uint64_t bytes, char *message,
                               size_t message_size)
{
    char wanted[32], held[32];
    const double here = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (bytes > CHECK_MEMORY_MOST)
        return check_refuse(message, message_size,
                            "%s: %llu bytes are more than a process can have", setting,
                            (unsigned long long)bytes);
    if (here > 0 && (double)bytes > here)
        return check_refuse(message, message_size,
                            "%s: %s are more memory than this machine has, %s: a store would not "
                            "open here",
                            setting, format_bytes(wanted, bytes),
                            format_bytes(held, (uint64_t)here));
    return KVT_OK;
}

/* Refuses settings of a device as its back end would. */
static kvt_status check_device(const kvt_tier_options *row, const kvt_device_config *device,
                               char *message, size_t message_size)
{
    const bool file = strcmp(device->backend, "file") == 0;
    const bool labelled = file || strcmp(device->backend, "nvme") == 0;
    const uint64_t bytes = device->capacity_bytes;
    const uint64_t unit = row->unit_bytes != 0 ? row->unit_bytes : CHECK_UNIT_BYTES;
    char setting[96];
    node_cpus cpus;
    (void)snprintf(setting, sizeof setting, "device.%.60s.capacity", device->name);
    if (file && bytes > 0 && bytes < CHECK_FILE_LEAST)
        return check_refuse(message, message_size, "%s: at least 64KiB", setting);
    if (!labelled && bytes < unit)
        return check_refuse(message, message_size, "%s: at least a stripe unit of %llu bytes",
                            setting, (unsigned long long)unit);
    if (device->on_node && !node_find(device->node, &cpus))
        return check_refuse(message, message_size,
                            "device.%.60s.node: there is no NUMA node %u with memory; this machine "
                            "has %u",
                            device->name, (unsigned)device->node, (unsigned)node_count());
    if (strcmp(device->backend, "sim") == 0 &&
        (device->read_bytes_per_s == 0 || device->write_bytes_per_s == 0))
        return check_refuse(message, message_size,
                            "device.%.60s: a sim device needs read_bandwidth and write_bandwidth",
                            device->name);
    const bool host = strcmp(device->backend, "memory") == 0 ||
                      (device->emulated && strcmp(device->backend, "hbm") == 0);
    return host ? check_memory(setting, bytes, message, message_size) : KVT_OK;
}

/* A tier without devices is one memory device that the store makes. */
static kvt_status check_tier_memory(const command_common *common, const kvt_tier_options *row,
                                    int tier, char *message, size_t message_size)
{
    char setting[32];
    const uint64_t bytes = check_wanted_bytes(common->config, row->capacity_bytes);
    const uint64_t unit = row->unit_bytes != 0 ? row->unit_bytes : CHECK_UNIT_BYTES;
    (void)snprintf(setting, sizeof setting, "tier.%s.capacity", kvt_tier_name(tier));
    if (row->capacity_bytes == 0 || row->device_count > 0 || tier == KVT_TIER_SSD ||
        check_is_simulated(common->config, tier))
        return KVT_OK;
    if (bytes < unit)
        return check_refuse(message, message_size, "%s: at least a stripe unit of %llu bytes",
                            setting, (unsigned long long)unit);
    if (tier == KVT_TIER_HBM && !row->emulated) return KVT_OK;
    return check_memory(setting, bytes, message, message_size);
}

static kvt_status check_tier(const command_common *common, const kvt_store_options *options,
                             int tier, char *message, size_t message_size)
{
    kvt_config *config = common->config;
    const kvt_tier_options *row = &options->tiers[tier];
    const char *name = kvt_tier_name(tier);
    uint64_t sum = 0;
    bool known = row->device_count > 0;
    kvt_status status = check_tier_memory(common, row, tier, message, message_size);
    for (uint32_t i = 0; status == KVT_OK && i < row->device_count; i++)
        status = check_device(row, &row->devices[i], message, message_size);
    if (status != KVT_OK) return status;
    if (tier == KVT_TIER_SSD && row->capacity_bytes > 0 && row->device_count == 0 &&
        !check_is_simulated(config, tier)) {
        return check_refuse(message, message_size,
                            "tier.%s.capacity is set, but no device has tier = %s (a file for "
                            "simulation alone gives tier.%s.read_bandwidth)",
                            name, name, name);
    }
    for (uint32_t i = 0; i < row->device_count; i++) {
        uint64_t bytes = 0;
        known = known && kvt_device_room(&row->devices[i], &bytes);
        sum += bytes;
    }
    uint64_t bytes_wanted = check_wanted_bytes(config, row->capacity_bytes);
    const bool made = row->device_count == 0 && row->capacity_bytes > 0; /* of memory */
    if (made || (known && row->capacity_bytes <= sum))
        return kvt_tier_check(options, tier, message, message_size);
    if (!known || bytes_wanted <= sum) return KVT_OK;
    char wanted[32], held[32];
    return check_refuse(message, message_size,
                        "tier.%s.capacity: %s (%llu bytes), but its devices hold %s (%llu bytes, "
                        "labels left out)",
                        name, format_bytes(wanted, bytes_wanted), (unsigned long long)bytes_wanted,
                        format_bytes(held, sum), (unsigned long long)sum);
}

/* What files of devices still take of their file systems, those of one together. */
static kvt_status check_disk(const kvt_store_options *options, char *message, size_t message_size)
{
    dev_t systems[64];
    uint64_t wanted[64];
    size_t count = 0;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        for (uint32_t i = 0; i < options->tiers[tier].device_count; i++) {
            const kvt_device_config *device = &options->tiers[tier].devices[i];
            struct stat facts;
            struct statvfs room;
            char text[2][32];
            if (strcmp(device->backend, "file") != 0) continue;
            const bool there = stat(device->path, &facts) == 0;
            if (there && !S_ISREG(facts.st_mode)) continue;
            const uint64_t held = there ? (uint64_t)facts.st_blocks * 512 : 0;
            char *folder = places_folder(device->path);
            const bool known =
                folder != NULL && stat(folder, &facts) == 0 && statvfs(folder, &room) == 0;
            free(folder);
            size_t at = 0;
            while (known && at < count && systems[at] != facts.st_dev)
                at++;
            if (!known || at == sizeof systems / sizeof systems[0]) continue;
            if (at == count) {
                systems[count] = facts.st_dev;
                wanted[count++] = 0;
            }
            wanted[at] += device->capacity_bytes > held ? device->capacity_bytes - held : 0;
            const uint64_t space = (uint64_t)room.f_bavail * room.f_frsize;
            if (wanted[at] <= space) continue;
            return check_refuse(message, message_size,
                                "device.%.60s.capacity: %s more than the files there have are "
                                "wanted of a file system with %s free",
                                device->name, format_bytes(text[0], wanted[at]),
                                format_bytes(text[1], space));
        }
    }
    return KVT_OK;
}

/* A store gives puts no more staging than an eighth of its smallest tier. */
static void check_note_put_staging(const command_common *common, const kvt_store_options *options)
{
    uint64_t rooms[KVT_TIER_COUNT] = {0};
    char message[COMMAND_MESSAGE_BYTES], text[2][32];
    const uint64_t asked = options->limits.put_staging_bytes;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (kvt_tier_room(&options->tiers[tier], tier, &rooms[tier], message, sizeof message) !=
            KVT_OK)
            return;
    const uint64_t given = kvt_put_staging_limit(asked, rooms);
    if (asked != KVT_PUT_STAGING_AUTO && given < asked)
        command_note(common, "store.put_staging: of %s puts get %s, an eighth of the smallest tier",
                     format_bytes(text[0], asked), format_bytes(text[1], given));
}

kvt_status inspect_settings(const command_common *common, const kvt_store_options *options,
                            char *message, size_t message_size)
{
    char reason[256] = "";
    kvt_status status = KVT_OK;
    if (store_options_try_policy(options, reason, sizeof reason) != KVT_OK)
        status = check_refuse(message, message_size, "[store]: %s", reason);
    if (status == KVT_OK && !store_options_hold(options, message, message_size))
        status = KVT_E_CONFIG;
    for (int tier = KVT_TIER_HBM; status == KVT_OK && tier < KVT_TIER_COUNT; tier++)
        status = check_tier(common, options, tier, message, message_size);
    if (status == KVT_OK) status = check_places(common->config, options, message, message_size);
    if (status == KVT_OK)
        status =
            check_memory("store.staging", options->limits.staging_bytes, message, message_size);
    if (status == KVT_OK) status = check_disk(options, message, message_size);
    if (status == KVT_OK) check_note_put_staging(common, options);
    return status;
}
