/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_serve.c - serves an emulated drive through FUSE at the speed of its token bucket.
 *
 *     kernel -> receivers -> queue of reads  -> answerer: wait for the bus, latency, fault, reply
 *                        \-> queue of writes -> answerer: the same
 *
 * The bus is one point in time per direction (or one for both): when it will be free. A request
 * starts at the later of its arrival and that time, holds the bus for bytes / rate, and is answered
 * a latency later. Time in which nothing waits is lost, as on a drive: there is no credit and no
 * burst. All instants are absolute, so a late wake-up delays one answer and not the next.
 *
 * A write's bytes stay in the buffer that they were received in until their answer is due; until
 * then a reader sees the old ones, and a killed server has not stored them. Receiving a write
 * copies it, which a drive does when its bus is free for it: so with one bus at most a few writes
 * are received ahead, and what comes after them waits its turn in the kernel, reads included. Else
 * a burst of writes would take the processors away from everybody for milliseconds.
 *
 * Thread rule: queues, bus and settings under one mutex; content is read and written by the two
 * answerers without one, as a drive orders nothing between requests in flight.
 */
#define FUSE_USE_VERSION 34

#include "drive_serve.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    SERVE_READ = 0,
    SERVE_WRITE = 1,
    SERVE_RECEIVERS = 2,
    SERVE_WRITES_AHEAD = 4,
    SERVE_SPARE_BUFFERS = 8,
    SERVE_REQUEST_BYTES_MAX = 1 << 20,
    SERVE_NODE_DRIVE = 2,
    SERVE_NODE_CONTROL = 3
};

typedef struct serve_request {
    struct serve_request *next;
    fuse_req_t fuse;
    uint64_t arrived_ns;
    uint64_t offset;
    size_t bytes;     /* 0: a flush of what was written */
    const char *data; /* of a write, inside buffer */
    void *buffer;
} serve_request;

static struct {
    struct fuse_session *session;
    drive_state *state;
    unsigned char *content;
    uint64_t bytes;

    pthread_mutex_t mutex;
    pthread_cond_t arrived[2]; /* by direction: a request, or a new setting */
    pthread_cond_t room;       /* for writes: one was answered, or a new setting */
    serve_request *head[2];
    serve_request *tail[2];
    uint32_t waiting[2];
    uint64_t bus_free_ns[2];
    uint64_t bus_carry[2]; /* what the division left over, so that rates are exact */
    void *spare[SERVE_SPARE_BUFFERS];
    uint32_t spare_count;
} serve = {.mutex = PTHREAD_MUTEX_INITIALIZER,
           .arrived = {PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER},
           .room = PTHREAD_COND_INITIALIZER};

/* What the receiving thread is working on; a write takes the buffer away. */
static _Thread_local struct fuse_buf serve_incoming;

/* ---- buffers of received requests ---- */

static void *serve_take_buffer(void)
{
    pthread_mutex_lock(&serve.mutex);
    void *buffer = serve.spare_count > 0 ? serve.spare[--serve.spare_count] : NULL;
    pthread_mutex_unlock(&serve.mutex);
    return buffer; /* NULL: libfuse makes one */
}

static void serve_give_buffer(void *buffer)
{
    pthread_mutex_lock(&serve.mutex);
    bool kept = serve.spare_count < SERVE_SPARE_BUFFERS;
    if (kept) serve.spare[serve.spare_count++] = buffer;
    pthread_mutex_unlock(&serve.mutex);
    if (!kept) free(buffer);
}

/* ---- the queues ---- */

static void serve_queue(int direction, const serve_request *request)
{
    serve_request *queued = malloc(sizeof *queued);
    if (queued == NULL) {
        fuse_reply_err(request->fuse, ENOMEM);
        free(request->buffer);
        return;
    }
    *queued = *request;
    queued->next = NULL;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    queued->arrived_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    pthread_mutex_lock(&serve.mutex);
    if (serve.tail[direction] != NULL)
        serve.tail[direction]->next = queued;
    else
        serve.head[direction] = queued;
    serve.tail[direction] = queued;
    serve.waiting[direction]++;
    pthread_cond_signal(&serve.arrived[direction]);
    pthread_mutex_unlock(&serve.mutex);
}

/* The bytes that a request takes the bus for. */
static uint64_t serve_bus_bytes(int direction, const serve_request *request, uint64_t chunk)
{
    if (chunk == 0 || direction != SERVE_READ) return request->bytes;
    const uint64_t begin = request->offset / chunk * chunk;
    const uint64_t end = (request->offset + request->bytes + chunk - 1) / chunk * chunk;
    return end - begin;
}

/* Books a request on the bus; the instant at which its answer is due. The mutex is held. */
static uint64_t serve_book(int direction, const serve_request *request)
{
    const drive_settings *settings = &serve.state->settings;
    int bus = settings->shared ? 0 : direction;
    uint64_t rate = settings->rate[bus];
    uint64_t start_ns = request->arrived_ns;
    if (start_ns < serve.bus_free_ns[bus]) start_ns = serve.bus_free_ns[bus];
    uint64_t duration_ns = 0;
    /* The loss is that of the instant at which a request takes the bus. */
    const bool mixed = serve.waiting[SERVE_READ] > 0 && serve.waiting[SERVE_WRITE] > 0;
    if (mixed) rate = rate * (1000 - settings->mix) / 1000;
    if (rate != 0) {
        const uint64_t bytes = serve_bus_bytes(direction, request, settings->chunk_bytes);
        uint64_t work = bytes * UINT64_C(1000000000) + serve.bus_carry[bus];
        duration_ns = work / rate;
        serve.bus_carry[bus] = work % rate;
    }
    serve.bus_free_ns[bus] = start_ns + duration_ns;
    return serve.bus_free_ns[bus] + settings->latency_ns;
}

/* Waits until the request at the head is due and takes it out, with the settings of that moment. */
static serve_request *serve_take(int direction, drive_settings *settings)
{
    pthread_mutex_lock(&serve.mutex);
    while (serve.head[direction] == NULL || serve.state->settings.hang)
        pthread_cond_wait(&serve.arrived[direction], &serve.mutex);
    serve_request *request = serve.head[direction];
    uint64_t due_ns = serve_book(direction, request);
    pthread_mutex_unlock(&serve.mutex);
    struct timespec wake = {.tv_sec = (time_t)(due_ns / 1000000000u),
                            .tv_nsec = (long)(due_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR) {
    }
    pthread_mutex_lock(&serve.mutex);
    while (serve.state->settings.hang)
        pthread_cond_wait(&serve.arrived[direction], &serve.mutex);
    serve.head[direction] = request->next;
    if (request->next == NULL) serve.tail[direction] = NULL;
    serve.waiting[direction]--;
    if (direction == SERVE_WRITE) pthread_cond_signal(&serve.room);
    serve.state->requests[direction]++;
    serve.state->bytes[direction] += request->bytes;
    *settings = serve.state->settings;
    pthread_mutex_unlock(&serve.mutex);
    return request;
}

/* ---- answers ---- */

/* A copy of the content with one bit flipped in each sector of the corrupt ranges. */
static void serve_reply_corrupt(const drive_settings *settings, const serve_request *request)
{
    char *copy = malloc(request->bytes);
    if (copy == NULL) {
        fuse_reply_err(request->fuse, EIO);
        return;
    }
    memcpy(copy, serve.content + request->offset, request->bytes);
    for (uint64_t at = 0; at < request->bytes; at += DRIVE_SECTOR_BYTES)
        if (drive_settings_touch(settings, DRIVE_FAULT_CORRUPT, request->offset + at, 1))
            copy[at] ^= 0x10;
    fuse_reply_buf(request->fuse, copy, request->bytes);
    free(copy);
}

static void serve_answer_write(const drive_settings *settings, const serve_request *request)
{
    size_t stored = request->bytes;
    if (stored == 0) {
        fuse_reply_err(request->fuse, 0);
        return;
    }
    if (drive_settings_touch(settings, DRIVE_FAULT_EIO_WRITE, request->offset, stored)) {
        fuse_reply_err(request->fuse, EIO);
        return;
    }
    if (drive_settings_touch(settings, DRIVE_FAULT_TORN, request->offset, stored))
        stored = stored / 2 / DRIVE_SECTOR_BYTES * DRIVE_SECTOR_BYTES;
    memcpy(serve.content + request->offset, request->data, stored);
    fuse_reply_write(request->fuse, request->bytes);
}

static void *serve_answerer(void *argument)
{
    int direction = *(int *)argument;
    prctl(PR_SET_TIMERSLACK, 1); /* else the kernel may wake 50 us late */
    for (;;) {
        drive_settings settings;
        serve_request *request = serve_take(direction, &settings);
        if (direction == SERVE_READ) {
            uint64_t offset = request->offset;
            if (drive_settings_touch(&settings, DRIVE_FAULT_EIO_READ, offset, request->bytes))
                fuse_reply_err(request->fuse, EIO);
            else if (drive_settings_touch(&settings, DRIVE_FAULT_CORRUPT, offset, request->bytes))
                serve_reply_corrupt(&settings, request);
            else
                fuse_reply_buf(request->fuse, (const char *)serve.content + offset, request->bytes);
        } else
            serve_answer_write(&settings, request);
        if (request->buffer != NULL) serve_give_buffer(request->buffer);
        free(request);
    }
    return NULL;
}

/* ---- what the kernel asks ---- */

static struct stat serve_stat(fuse_ino_t node)
{
    struct stat facts = {.st_ino = node, .st_nlink = 1, .st_mode = S_IFREG | 0600};
    if (node == FUSE_ROOT_ID) facts.st_mode = S_IFDIR | 0755;
    if (node == SERVE_NODE_DRIVE) facts.st_size = (off_t)serve.bytes;
    facts.st_blksize = 4096;
    facts.st_blocks = facts.st_size / 512;
    return facts;
}

static void serve_init(void *context, struct fuse_conn_info *connection)
{
    (void)context;
    connection->max_background = 128;
    connection->congestion_threshold = 128;
    connection->max_readahead = SERVE_REQUEST_BYTES_MAX;
    connection->max_write = SERVE_REQUEST_BYTES_MAX;
    connection->want |= connection->capable & FUSE_CAP_ASYNC_DIO;
}

static void serve_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    fuse_ino_t node = 0;
    if (parent == FUSE_ROOT_ID && strcmp(name, "drive") == 0) node = SERVE_NODE_DRIVE;
    if (parent == FUSE_ROOT_ID && strcmp(name, "control") == 0) node = SERVE_NODE_CONTROL;
    if (node == 0) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    struct fuse_entry_param entry = {
        .ino = node, .attr = serve_stat(node), .attr_timeout = 1e6, .entry_timeout = 1e6};
    fuse_reply_entry(request, &entry);
}

static void serve_getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *file)
{
    (void)file;
    struct stat facts = serve_stat(node);
    fuse_reply_attr(request, &facts, 1e6);
}

/* A drive has the size that it has; times and owners are accepted and forgotten. */
static void serve_setattr(fuse_req_t request, fuse_ino_t node, struct stat *facts, int which,
                          struct fuse_file_info *file)
{
    bool resize = (which & FUSE_SET_ATTR_SIZE) != 0;
    if (resize && node == SERVE_NODE_DRIVE && (uint64_t)facts->st_size != serve.bytes) {
        fuse_reply_err(request, EPERM);
        return;
    }
    serve_getattr(request, node, file);
}

static void serve_readdir(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                          struct fuse_file_info *file)
{
    static const char *const names[] = {".", "..", "drive", "control"};
    static const fuse_ino_t nodes[] = {FUSE_ROOT_ID, FUSE_ROOT_ID, SERVE_NODE_DRIVE,
                                       SERVE_NODE_CONTROL};
    char entries[512];
    size_t used = 0;
    (void)node;
    (void)file;
    for (off_t i = offset; i >= 0 && i < 4; i++) {
        struct stat facts = serve_stat(nodes[i]);
        size_t room = (size < sizeof entries ? size : sizeof entries) - used;
        size_t need = fuse_add_direntry(request, entries + used, room, names[i], &facts, i + 1);
        if (need > room) break;
        used += need;
    }
    fuse_reply_buf(request, entries, used);
}

static void serve_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *file)
{
    file->direct_io = node == SERVE_NODE_CONTROL; /* its size is not known beforehand */
    fuse_reply_open(request, file);
}

static void serve_read_control(fuse_req_t request, size_t size, off_t offset)
{
    char text[DRIVE_TEXT_BYTES];
    pthread_mutex_lock(&serve.mutex);
    const drive_state *state = serve.state;
    size_t used = drive_settings_print(&state->settings, text, sizeof text - 512);
    for (int i = 0; i < 2; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "# %s: %" PRIu64 " requests, %" PRIu64 " bytes, %u waiting\n",
                                 i == SERVE_READ ? "reads" : "writes", state->requests[i],
                                 state->bytes[i], serve.waiting[i]);
    used += (size_t)snprintf(text + used, sizeof text - used, "# trimmed: %" PRIu64 " bytes\n",
                             state->bytes_trimmed);
    pthread_mutex_unlock(&serve.mutex);
    if ((size_t)offset > used) offset = (off_t)used;
    size_t rest = used - (size_t)offset;
    fuse_reply_buf(request, text + offset, rest < size ? rest : size);
}

static void serve_write_control(fuse_req_t request, const char *data, size_t size)
{
    char text[DRIVE_TEXT_BYTES];
    if (size >= sizeof text) {
        fuse_reply_err(request, EFBIG);
        return;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    pthread_mutex_lock(&serve.mutex);
    bool applied = drive_settings_apply(&serve.state->settings, text);
    pthread_cond_broadcast(&serve.arrived[SERVE_READ]);
    pthread_cond_broadcast(&serve.arrived[SERVE_WRITE]);
    pthread_cond_broadcast(&serve.room);
    pthread_mutex_unlock(&serve.mutex);
    if (applied)
        fuse_reply_write(request, size);
    else
        fuse_reply_err(request, EINVAL);
}

static void serve_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                       struct fuse_file_info *file)
{
    (void)file;
    if (node == SERVE_NODE_CONTROL) {
        serve_read_control(request, size, offset);
        return;
    }
    uint64_t at = (uint64_t)offset;
    if (at >= serve.bytes) {
        fuse_reply_buf(request, NULL, 0);
        return;
    }
    if (size > serve.bytes - at) size = serve.bytes - at;
    serve_queue(SERVE_READ, &(serve_request){.fuse = request, .offset = at, .bytes = size});
}

static void serve_write(fuse_req_t request, fuse_ino_t node, const char *data, size_t size,
                        off_t offset, struct fuse_file_info *file)
{
    (void)file;
    uint64_t at = (uint64_t)offset;
    if (node == SERVE_NODE_CONTROL) {
        serve_write_control(request, data, size);
        return;
    }
    if (at >= serve.bytes || size > serve.bytes - at) {
        fuse_reply_err(request, ENOSPC);
        return;
    }
    serve_request queued = {.fuse = request, .offset = at, .bytes = size, .data = data};
    queued.buffer = serve_incoming.mem;
    serve_incoming.mem = NULL;
    serve_queue(SERVE_WRITE, &queued);
}

static void serve_fsync(fuse_req_t request, fuse_ino_t node, int data_only,
                        struct fuse_file_info *file)
{
    (void)data_only;
    (void)file;
    if (node == SERVE_NODE_CONTROL)
        fuse_reply_err(request, 0);
    else
        serve_queue(SERVE_WRITE, &(serve_request){.fuse = request});
}

/* Trim: a hole reads as zeros. */
static void serve_fallocate(fuse_req_t request, fuse_ino_t node, int mode, off_t offset,
                            off_t length, struct fuse_file_info *file)
{
    (void)file;
    uint64_t at = (uint64_t)offset;
    uint64_t bytes = (uint64_t)length;
    if (node != SERVE_NODE_DRIVE || mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) {
        fuse_reply_err(request, EOPNOTSUPP);
        return;
    }
    if (at < serve.bytes) {
        if (bytes > serve.bytes - at) bytes = serve.bytes - at;
        memset(serve.content + at, 0, bytes);
        pthread_mutex_lock(&serve.mutex);
        serve.state->bytes_trimmed += bytes;
        pthread_mutex_unlock(&serve.mutex);
    }
    fuse_reply_err(request, 0);
}

static const struct fuse_lowlevel_ops serve_ops = {
    .init = serve_init,
    .lookup = serve_lookup,
    .getattr = serve_getattr,
    .setattr = serve_setattr,
    .readdir = serve_readdir,
    .open = serve_open,
    .read = serve_read,
    .write = serve_write,
    .fsync = serve_fsync,
    .fallocate = serve_fallocate,
};

/* ---- threads ---- */

static void *serve_receiver(void *unused)
{
    for (;;) {
        /* A hung drive receives everything, or it could not be told to go on. */
        const drive_settings *settings = &serve.state->settings;
        pthread_mutex_lock(&serve.mutex);
        while (serve.waiting[SERVE_WRITE] >= SERVE_WRITES_AHEAD && settings->shared &&
               !settings->hang)
            pthread_cond_wait(&serve.room, &serve.mutex);
        pthread_mutex_unlock(&serve.mutex);
        if (serve_incoming.mem == NULL) serve_incoming.mem = serve_take_buffer();
        int received = fuse_session_receive_buf(serve.session, &serve_incoming);
        if (received == -EINTR || received == -EAGAIN || received == -ENOENT) continue;
        if (received <= 0) break; /* unmounted */
        fuse_session_process_buf(serve.session, &serve_incoming);
    }
    return unused;
}

void drive_serve(const char *folder, drive_state *state, unsigned char *content, uint64_t bytes,
                 int ready_fd)
{
    static int directions[] = {SERVE_READ, SERVE_WRITE};
    char name[] = "emulated_drive";
    char option[] = "-ofsname=emulated_drive,subtype=kvterrace";
    char *words[] = {name, option, NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(2, words);
    serve.state = state;
    serve.content = content;
    serve.bytes = bytes;
    serve.session = fuse_session_new(&arguments, &serve_ops, sizeof serve_ops, NULL);
    if (serve.session == NULL || fuse_session_mount(serve.session, folder) != 0) {
        fprintf(stderr, "emulated_drive: %s cannot be mounted\n", folder);
        return;
    }
    /* Hardware does not wait for a processor: its threads, which inherit this, come first. */
    (void)setpriority(PRIO_PROCESS, 0, -20);
    (void)sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 10});
    pthread_t thread;
    int failed = 0;
    for (int i = 0; i < 2; i++)
        failed |= pthread_create(&thread, NULL, serve_answerer, &directions[i]);
    for (int i = 1; i < SERVE_RECEIVERS; i++)
        failed |= pthread_create(&thread, NULL, serve_receiver, NULL);
    if (failed != 0 || write(ready_fd, "", 1) != 1) {
        fprintf(stderr, "emulated_drive: no threads\n");
        return;
    }
    close(ready_fd);
    serve_receiver(NULL);
}
