/* SPDX-License-Identifier: Apache-2.0 */
/*
 * whole_file.c - writes under another name, renames regular files alone. Thread rule: any thread,
 * one per path.
 */
#include "estimator/model/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

kvt_status whole_file_begin(const char *path, char **partial_out, char *message,
                            size_t message_size)
{
    struct stat facts;
    char real[PATH_MAX];
    bool exists = stat(path, &facts) == 0;
    *partial_out = NULL;
    if (exists && !S_ISREG(facts.st_mode)) {
        *partial_out = strdup(path);
        return *partial_out ? KVT_OK : KVT_E_MEMORY;
    }
    /* Replaces the file that a symbolic link names, and leaves the link. */
    const char *named = exists && realpath(path, real) ? real : path;
    if (asprintf(partial_out, "%s.part.%ld", named, (long)getpid()) < 0) {
        *partial_out = NULL;
        return KVT_E_MEMORY;
    }
    int descriptor = open(*partial_out, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
        if (exists) (void)!fchmod(descriptor, facts.st_mode & 0777);
        (void)close(descriptor);
        return KVT_OK;
    }
    (void)snprintf(message, message_size, "%.300s: %s", path, strerror(errno));
    free(*partial_out);
    *partial_out = NULL;
    return KVT_E_CONFIG;
}

kvt_status whole_file_end(char **partial, const char *path, kvt_status status, char *message,
                          size_t message_size)
{
    char real[PATH_MAX];
    if (!*partial) return status;
    const char *named = realpath(path, real) ? real : path;
    if (strcmp(*partial, path) == 0) {
        /* Written directly. */
    } else if (status != KVT_OK) {
        (void)unlink(*partial);
    } else if (rename(*partial, named) != 0) {
        (void)snprintf(message, message_size, "%.300s: %s", path, strerror(errno));
        (void)unlink(*partial);
        status = KVT_E_IO;
    }
    free(*partial);
    *partial = NULL;
    return status;
}

kvt_status whole_file_write(const char *path, const void *bytes, uint64_t count, char *message,
                            size_t message_size)
{
    char *partial = NULL;
    kvt_status status = whole_file_begin(path, &partial, message, message_size);
    if (status != KVT_OK) return status;
    FILE *file = fopen(partial, "wbe");
    bool sound = file != NULL && fwrite(bytes, 1, count, file) == count;
    if (file != NULL && fclose(file) != 0) sound = false;
    if (!sound) (void)snprintf(message, message_size, "%.300s: %s", path, strerror(errno));
    return whole_file_end(&partial, path, sound ? KVT_OK : KVT_E_IO, message, message_size);
}

/* ---- files mapped read-only ---- */

kvt_status model_map_say(kvt_status status, char *message, size_t message_size, const char *path,
                         const char *format, ...)
{
    if (message == NULL || message_size == 0) return status;
    int length = snprintf(message, message_size, "%s: ", path);
    if (length < 0 || (size_t)length >= message_size) return status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message + length, message_size - (size_t)length, format, arguments);
    va_end(arguments);
    return status;
}

kvt_status model_map_open(const char *path, model_map *map_out, char *message, size_t message_size)
{
    struct stat facts;
    kvt_status status = KVT_OK;
    *map_out = (model_map){NULL, 0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return model_map_say(KVT_E_GONE, message, message_size, path, "%s", strerror(errno));
    }
    if (fstat(file, &facts) != 0) {
        status = model_map_say(KVT_E_IO, message, message_size, path, "%s", strerror(errno));
    } else if (!S_ISREG(facts.st_mode) || facts.st_size <= 0) {
        status = model_map_say(KVT_E_CORRUPT, message, message_size, path,
                               S_ISREG(facts.st_mode) ? "empty" : "not a regular file");
    } else {
        void *bytes = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes == MAP_FAILED) {
            status = model_map_say(KVT_E_IO, message, message_size, path, "%s", strerror(errno));
        } else {
            *map_out = (model_map){bytes, (uint64_t)facts.st_size};
        }
    }
    close(file);
    return status;
}

void model_map_close(model_map *map)
{
    if (map->bytes != NULL) munmap((void *)(uintptr_t)map->bytes, map->size);
    *map = (model_map){NULL, 0};
}
