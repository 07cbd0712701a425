/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_kv.c - the KV dumps of a command line, by class: files, and folders of them. One thread.
 */
#include "profile_measure.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { KV_DUMPS_MAX = 100000 };

void measure_dumps_free(measure_dumps *dumps)
{
    for (uint32_t i = 0; i < dumps->count; i++)
        free(dumps->paths[i]);
    free(dumps->paths);
    free(dumps->classes);
    *dumps = (measure_dumps){.count = 0};
}

/* Takes a path of malloc over, also when it fails. */
static kvt_status kv_add(measure_dumps *dumps, uint32_t class_index, char *path)
{
    if (path == NULL) return KVT_E_MEMORY;
    if (dumps->count == dumps->room) {
        const uint32_t room = 2 * dumps->room + 64;
        char **paths = realloc(dumps->paths, room * sizeof *paths);
        if (paths != NULL) dumps->paths = paths;
        uint32_t *classes = realloc(dumps->classes, room * sizeof *classes);
        if (classes != NULL) dumps->classes = classes;
        if (paths == NULL || classes == NULL) {
            free(path);
            return KVT_E_MEMORY;
        }
        dumps->room = room;
    }
    dumps->paths[dumps->count] = path;
    dumps->classes[dumps->count++] = class_index;
    return KVT_OK;
}

static int kv_is_dump(const struct dirent *entry)
{
    static const char ending[] = ".safetensors";
    const size_t length = strlen(entry->d_name), ends = sizeof ending - 1;
    return length > ends && strcmp(entry->d_name + length - ends, ending) == 0;
}

static int kv_order(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static kvt_status kv_add_folder(measure_dumps *dumps, uint32_t class_index, const char *folder,
                                char *message, size_t message_size)
{
    struct dirent **entries = NULL;
    const int count = scandir(folder, &entries, kv_is_dump, kv_order);
    kvt_status status = KVT_OK;
    if (count <= 0) {
        (void)snprintf(message, message_size, "%.400s: %s", folder,
                       count < 0 ? strerror(errno) : "no *.safetensors in this folder");
        free(entries);
        return count < 0 ? KVT_E_IO : KVT_E_ARGUMENT;
    }
    for (int i = 0; i < count; i++) {
        char *path = NULL;
        if (status == KVT_OK && asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0)
            path = NULL;
        if (status == KVT_OK) status = kv_add(dumps, class_index, path);
        free(entries[i]);
    }
    free(entries);
    return status;
}

kvt_status command_parse_dumps(const measure_arguments *arguments, measure_classes *classes,
                               measure_dumps *dumps, char *message, size_t message_size)
{
    const char *standard = arguments->class_name != NULL ? arguments->class_name : MEASURE_CLASS;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && i < arguments->dumps.count; i++) {
        struct stat about;
        const char *path = NULL;
        uint32_t class_index = 0;
        status = command_class_of(classes, standard, arguments->dumps.items[i], &class_index, &path,
                                  message, message_size);
        if (status != KVT_OK) break;
        if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
            status = kv_add_folder(dumps, class_index, path, message, message_size);
        else
            status = kv_add(dumps, class_index, strdup(path));
        if (status == KVT_OK && dumps->count > KV_DUMPS_MAX) {
            (void)snprintf(message, message_size, "at most %d dumps", (int)KV_DUMPS_MAX);
            status = KVT_E_ARGUMENT;
        }
    }
    return status;
}
