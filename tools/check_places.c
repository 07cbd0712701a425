/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_places.c - see check_places.h. One thread.
 */
#include "check_places.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* 64 devices a tier, and the catalog and the profile. */
#define PLACES_MAX (3u * 64u + 2u)

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

/* A regular file is made when it is absent and its capacity is known; a drive is there or not. */
static kvt_status places_add_device(place_list *list, const kvt_device_config *device)
{
    char setting[96];
    bool file = strcmp(device->backend, "file") == 0;
    (void)snprintf(setting, sizeof setting, "device.%.60s.path", device->name);
    const char *refused = file && device->path != NULL ? places_refused_file(device) : NULL;
    if (refused != NULL) {
        place one = {.path = device->path};
        (void)snprintf(one.setting, sizeof one.setting, "%s", setting);
        return places_refuse(list, &one, refused);
    }
    return places_add(list, setting, device->path, !file || device->capacity_bytes == 0);
}

kvt_status check_places(const kvt_store_options *options, char *message, size_t message_size)
{
    place_list *list = calloc(1, sizeof *list);
    if (list == NULL) return KVT_E_MEMORY;
    list->message = message;
    list->message_size = message_size;
    kvt_status status = places_add(list, "store.profile", options->profile_path, true);
    if (status == KVT_OK) status = places_add(list, "store.catalog", options->catalog_path, false);
    for (int tier = KVT_TIER_HBM; status == KVT_OK && tier < KVT_TIER_COUNT; tier++) {
        const kvt_tier_options *row = &options->tiers[tier];
        for (uint32_t i = 0; status == KVT_OK && i < row->device_count; i++)
            status = places_add_device(list, &row->devices[i]);
    }
    free(list);
    return status;
}
