/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_file.c - the text file that shows a store while it runs: its metrics, then its last
 * operations as comments, so that it stays Prometheus text.
 *
 *     # kvterrace-watch-1 written=<ns since 1970> clock=<ns of CLOCK_MONOTONIC>
 *     ... what kvt_metrics_write writes ...
 *     # operation instant=<ns> kind=get tier=dram status=KVT_OK bytes=... form=raw elapsed=<ns>
 *                 decide=<ns> transfer=<ns> code=<ns> key=<32 hexadecimal digits>    (one line)
 *
 * The file is written beside its place and renamed. A file of other content is never replaced.
 *
 * Thread rule: any thread; one file at a time under file_lock. The writer's thread takes no other
 * lock while it writes.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "base/wait.h"
#include "store/core/store.h"
#include "store/watch/watch_text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WATCH_FILE_OPERATIONS 256u
#define WATCH_FILE_LINE       384u /* bytes of an operation at most */

static const char watch_file_mark[] = "# kvterrace-watch-1 ";

/* ---- the text ---- */

/* Prints one operation as a comment of the exposition format. Numbers of kinds and tiers come from
 * records of this process, and are named as unknown when they are none. */
static void watch_print_operation(watch_text *out, const kvt_operation *operation)
{
    static const char *const kinds[] = {"none", "get", "put", "delete", "move", "evict"};
    const char *tier = kvt_tier_name(operation->tier);
    char form[64] = "none", key[33];
    if (operation->variant.codec != 0)
        (void)kvt_variant_format(operation->variant, form, sizeof form);
    for (size_t i = 0; i < sizeof operation->key_prefix; i++)
        (void)snprintf(&key[2 * i], 3, "%02x", operation->key_prefix[i]);
    watch_print(out,
                "# operation instant=%llu kind=%s tier=%s status=%s bytes=%llu form=%s "
                "elapsed=%llu decide=%u transfer=%u code=%u key=%s\n",
                (unsigned long long)operation->instant_ns,
                operation->kind <= KVT_OPERATION_EVICT ? kinds[operation->kind] : "unknown",
                tier != NULL ? tier : "unknown", kvt_status_name(operation->status),
                (unsigned long long)operation->bytes, form,
                (unsigned long long)operation->elapsed_ns, operation->decide_ns,
                operation->transfer_ns, operation->code_ns, key);
}

/* Makes the whole text, the caller's to free. KVT_OK; KVT_E_MEMORY; KVT_E_GONE (the process that
 * has the store does not answer). */
static kvt_status watch_make_text(kvt_store *store, char **text_out, size_t *bytes_out)
{
    const size_t operations_bytes = WATCH_FILE_OPERATIONS * sizeof(kvt_operation);
    /* Between two calls numbers may get longer, and forms and devices be added. */
    const size_t size = 2 * kvt_metrics_write(store, NULL, 0) + 4096 +
                        (size_t)WATCH_FILE_OPERATIONS * WATCH_FILE_LINE;
    char *text = malloc(size);
    kvt_operation *operations = malloc(operations_bytes);
    kvt_status status = text != NULL && operations != NULL ? KVT_OK : KVT_E_MEMORY;
    watch_text out = {.text = text, .size = size};
    if (status == KVT_OK) {
        watch_print(&out, "%swritten=%llu clock=%llu\n", watch_file_mark,
                    (unsigned long long)base_calendar_ns(), (unsigned long long)base_clock_ns());
        const size_t room = size - out.used - (size_t)WATCH_FILE_OPERATIONS * WATCH_FILE_LINE;
        const size_t bytes = kvt_metrics_write(store, text + out.used, room);
        if (bytes == 0 || bytes > room) status = KVT_E_GONE;
        out.used += bytes - 1;
    }
    size_t count = 0;
    if (status == KVT_OK)
        status = kvt_operations_get(store, operations, WATCH_FILE_OPERATIONS, &count);
    for (size_t i = 0; i < count; i++)
        watch_print_operation(&out, &operations[i]);
    free(operations);
    assert(status != KVT_OK || out.used < size);
    *bytes_out = out.used;
    *text_out = text;
    if (status == KVT_OK) return KVT_OK;
    free(text);
    return status;
}

/* ---- the file ---- */

/* The status for an error of the file system. */
static kvt_status watch_file_status(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR: return KVT_E_GONE;
    case ENOSPC:
    case EDQUOT: return KVT_E_SPACE;
    case EROFS: return KVT_E_READ_ONLY;
    case ENOMEM: return KVT_E_MEMORY;
    case ENAMETOOLONG:
    case ELOOP: return KVT_E_ARGUMENT;
    default: return KVT_E_IO;
    }
}

/* Whether a path names nothing, or a file of this kind, or an empty one: those may be replaced. */
static kvt_status watch_may_replace(const char *path)
{
    struct stat found;
    if (lstat(path, &found) != 0) return errno == ENOENT ? KVT_OK : watch_file_status(errno);
    if (!S_ISREG(found.st_mode)) return KVT_E_ARGUMENT;
    if (found.st_size == 0) return KVT_OK;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return watch_file_status(errno);
    char head[sizeof watch_file_mark - 1];
    const ssize_t got = read(file, head, sizeof head);
    close(file);
    const bool ours = got == sizeof head && memcmp(head, watch_file_mark, sizeof head) == 0;
    return ours ? KVT_OK : KVT_E_MISMATCH;
}

/* Writes all of a text to a new file, or over one that may be replaced. */
static kvt_status watch_fill(const char *path, const char *text, size_t bytes)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file < 0) return watch_file_status(errno);
    kvt_status status = KVT_OK;
    while (bytes != 0 && status == KVT_OK) {
        const ssize_t wrote = write(file, text, bytes);
        if (wrote < 0 && errno != EINTR) status = watch_file_status(errno);
        if (wrote <= 0) continue;
        text += wrote;
        bytes -= (size_t)wrote;
    }
    if (close(file) != 0 && status == KVT_OK) status = watch_file_status(errno);
    return status;
}

/* Writes beside the path, and renames. file_lock held. */
static kvt_status watch_replace(const char *path, const char *text, size_t bytes)
{
    char beside[4096];
    const int length = snprintf(beside, sizeof beside, "%s.new", path);
    if (length < 0 || (size_t)length >= sizeof beside) return KVT_E_ARGUMENT;
    kvt_status status = watch_may_replace(path);
    if (status == KVT_OK) status = watch_may_replace(beside);
    if (status != KVT_OK) return status;
    status = watch_fill(beside, text, bytes);
    /* A reader sees the old file or the new one, and none that is written in part. */
    if (status == KVT_OK && rename(beside, path) != 0) status = watch_file_status(errno);
    if (status != KVT_OK) (void)unlink(beside);
    return status;
}

kvt_status kvt_watch_write(kvt_store *store, const char *path)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (store == NULL || path == NULL || path[0] == '\0') return KVT_E_ARGUMENT;
    if (other == NULL && !fork_guard_is_ours(store)) return KVT_E_STATE;
    if (other != NULL &&
        (other->file_lock == NULL || base_calls_lack(store, KVT_OK) == KVT_E_STATE))
        return base_calls_lack(store, other->lacks);
    size_t bytes = 0;
    char *text = NULL;
    kvt_status status = watch_make_text(store, &text, &bytes);
    if (status != KVT_OK) return status;
    pthread_mutex_t *lock = other != NULL ? other->file_lock(store) : &store->watch->file_lock;
    pthread_mutex_lock(lock);
    status = watch_replace(path, text, bytes);
    pthread_mutex_unlock(lock);
    free(text);
    return status;
}

/* ---- the writer ---- */

/* Waits for an instant. False when the store stops. The writer's lock is held. */
static bool watch_wait(watch_writer *writer, uint64_t until_ns)
{
    bool waiting = true;
    while (waiting && !writer->stopping)
        waiting = base_condition_wait_until(&writer->changed, &writer->lock, until_ns);
    return !writer->stopping;
}

/* A file that cannot be written at one turn may be at the next. */
static void *watch_serve(void *argument)
{
    kvt_store *store = argument;
    watch_writer *writer = &store->watch->writer;
    pthread_mutex_lock(&writer->lock);
    while (watch_wait(writer, base_clock_ns() + (uint64_t)(writer->seconds * 1e9))) {
        pthread_mutex_unlock(&writer->lock);
        (void)!kvt_watch_write(store, writer->path);
        pthread_mutex_lock(&writer->lock);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

kvt_status watch_file_open(kvt_store *store, const char *path, double seconds)
{
    watch_writer *writer = &store->watch->writer;
    assert(writer->path == NULL);
    if (path == NULL) return KVT_OK;
    const kvt_status status = kvt_watch_write(store, path);
    if (status != KVT_OK) return status;
    writer->path = strdup(path);
    if (writer->path == NULL) return KVT_E_MEMORY;
    writer->seconds = seconds;
    writer->stopping = false;
    pthread_mutex_init(&writer->lock, NULL);
    base_condition_init(&writer->changed);
    return KVT_OK;
}

kvt_status watch_file_start(kvt_store *store)
{
    watch_writer *writer = &store->watch->writer;
    assert(!writer->has_thread);
    if (writer->path == NULL) return KVT_OK;
    if (base_thread_start(&writer->thread, watch_serve, store) != KVT_OK) return KVT_E_THREAD;
    writer->has_thread = true;
    return KVT_OK;
}

void watch_file_stop(kvt_store *store)
{
    if (store->watch == NULL || store->watch->writer.path == NULL) return;
    watch_writer *writer = &store->watch->writer;
    if (writer->has_thread) {
        pthread_mutex_lock(&writer->lock);
        writer->stopping = true;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
        writer->has_thread = false;
        (void)!kvt_watch_write(store, writer->path);
    }
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer->path);
    writer->path = NULL;
}
