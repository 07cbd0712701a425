/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_map.c - maps files for the loaders. Thread rule: see model_map.h.
 */
#include "estimator/model/model_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
