/* SPDX-License-Identifier: Apache-2.0 */
/*
 * power_image.c - the files that a power cut may leave, from the log of changes (power.h).
 *
 * Thread rule: one thread, after recording has ended.
 */
#include "power.h"

#include "expected.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECTOR_BYTES = 512, IMAGE_NAMES_MAX = 64 };

typedef struct image_file {
    unsigned char *bytes;
    uint64_t size, room;
} image_file;

typedef struct image_name {
    char name[POWER_NAME_BYTES];
    uint32_t file;
} image_name;

typedef struct image {
    image_file files[POWER_FILES_MAX];
    image_name names[IMAGE_NAMES_MAX];
    uint32_t name_count;
} image;

/* ---- what is durable ---- */

/* Up to which event a file's changes are durable; and names. */
typedef struct image_durable {
    uint32_t files[POWER_FILES_MAX];
    uint32_t names; /* all name events before it */
} image_durable;

static bool image_is_name(const power_event *event)
{
    return event->kind >= POWER_CREATE && event->kind <= POWER_UNLINK;
}

static void image_find_durable(const power_event *events, uint32_t count, image_durable *durable)
{
    memset(durable, 0, sizeof *durable);
    for (uint32_t i = 0; i < count; i++) {
        const power_event *event = &events[i];
        if (event->kind == POWER_SYNC && event->covered > durable->files[event->file])
            durable->files[event->file] = event->covered;
        if (event->kind == POWER_SYNC_NAMES && event->covered > durable->names)
            durable->names = event->covered;
        /* A file's own sync takes its name along, and with it all names before. */
        for (uint32_t j = durable->names; event->kind == POWER_SYNC && j < event->covered; j++) {
            if (events[j].kind == POWER_CREATE && events[j].file == event->file)
                durable->names = j + 1;
        }
    }
}

/* ---- carrying events out ---- */

static void image_set_size(image_file *file, uint64_t size)
{
    if (size > file->room) {
        file->bytes = realloc(file->bytes, size);
        if (file->bytes == NULL) abort();
        file->room = size;
    }
    if (size > file->size) memset(file->bytes + file->size, 0, size - file->size);
    file->size = size;
}

static void image_put(image_file *file, const power_event *event, uint64_t from, uint64_t to)
{
    if (event->offset + to > file->size) image_set_size(file, event->offset + to);
    memcpy(file->bytes + event->offset + from, (const char *)event->data + from, to - from);
}

/* Each sector of a write that is torn is there or not. */
static void image_tear(image_file *file, const power_event *event, uint64_t *random)
{
    uint64_t step = expected_random(random) % 2 ? SECTOR_BYTES : 4096;
    for (uint64_t at = 0; at < event->bytes; at += step) {
        uint64_t end = at + step < event->bytes ? at + step : event->bytes;
        if (expected_random(random) % 2) image_put(file, event, at, end);
    }
}

static uint32_t image_find_name(const image *self, const char *name)
{
    for (uint32_t i = 0; i < self->name_count; i++)
        if (strcmp(self->names[i].name, name) == 0) return i;
    return self->name_count;
}

static void image_set_name(image *self, const char *name, uint32_t file)
{
    uint32_t at = image_find_name(self, name);
    if (at == IMAGE_NAMES_MAX) abort();
    if (at == self->name_count) self->name_count++;
    memcpy(self->names[at].name, name, POWER_NAME_BYTES);
    self->names[at].file = file;
}

static void image_drop_name(image *self, const char *name)
{
    uint32_t at = image_find_name(self, name);
    if (at < self->name_count) self->names[at] = self->names[--self->name_count];
}

/* What becomes of a change that is not durable. */
typedef enum image_fate { FATE_DROP, FATE_KEEP, FATE_TEAR } image_fate;

static image_fate image_draw(uint32_t variant, uint64_t *random)
{
    if (variant == 0) return FATE_DROP;
    if (variant == 1) return FATE_KEEP;
    return (image_fate)(expected_random(random) % 3);
}

static void image_apply(image *self, const power_event *event, image_fate fate, uint64_t *random)
{
    image_file *file = &self->files[event->file];
    if (event->kind == POWER_WRITE) {
        if (fate == FATE_KEEP) image_put(file, event, 0, event->bytes);
        if (fate == FATE_TEAR) image_tear(file, event, random);
    } else if (event->kind == POWER_SIZE && fate == FATE_KEEP) {
        if (event->bytes == 0 || event->offset > file->size) image_set_size(file, event->offset);
    }
}

void power_write_image(const char *folder, uint32_t count, uint64_t seed, uint32_t variant)
{
    uint32_t all, names_left = 0;
    const power_event *events = power_log(&all);
    image *self = calloc(1, sizeof *self);
    image_durable durable;
    uint64_t random = seed;
    if (self == NULL || count > all) abort();
    image_find_durable(events, count, &durable);
    for (uint32_t i = durable.names; i < count; i++)
        names_left += image_is_name(&events[i]);
    uint64_t names_kept = variant == 0   ? 0
                          : variant == 1 ? names_left
                                         : expected_random(&random) % (names_left + 1);
    for (uint32_t i = 0; i < count; i++) {
        const power_event *event = &events[i];
        if (image_is_name(event)) {
            if (i >= durable.names && names_kept == 0) continue;
            names_kept -= i >= durable.names;
            uint32_t at = image_find_name(self, event->name);
            if (event->kind == POWER_CREATE) {
                image_set_name(self, event->name, event->file);
            } else if (event->kind == POWER_UNLINK) {
                image_drop_name(self, event->name);
            } else if (at < self->name_count) {
                image_set_name(self, event->target, self->names[at].file);
                if (event->kind == POWER_RENAME) image_drop_name(self, event->name);
            }
            continue;
        }
        bool safe = i < durable.files[event->file];
        image_apply(self, event, safe ? FATE_KEEP : image_draw(variant, &random), &random);
    }
    for (uint32_t i = 0; i < self->name_count; i++) {
        char path[300];
        const image_file *file = &self->files[self->names[i].file];
        snprintf(path, sizeof path, "%s/%s", folder, self->names[i].name);
        int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        if (fd < 0) abort();
        for (uint64_t at = 0; at < file->size;) {
            ssize_t done = pwrite(fd, file->bytes + at, file->size - at, (off_t)at);
            if (done <= 0) abort();
            at += (uint64_t)done;
        }
        close(fd);
    }
    for (uint32_t i = 0; i < POWER_FILES_MAX; i++)
        free(self->files[i].bytes);
    free(self);
}
