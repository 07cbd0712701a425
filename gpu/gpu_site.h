/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_site.h - one GPU as a store uses it: the primary context, a stream each way, pinned memory of
 * the host, events, and copies between packed bytes and the rows of a view (docs/GPU.md).
 *
 *     gpu_site_open -> gpu_site_check, gpu_host_take, gpu_copy_in ... gpu_mark -> gpu_await
 *                   -> gpu_host_give -> gpu_site_close
 *
 * The context is current on the calling thread inside of these calls alone. After an error that
 * ends the context the site is gone: every later call says KVT_E_GONE.
 *
 * Statuses: KVT_OK; KVT_E_GONE; KVT_E_MEMORY (of the GPU, or pinned); KVT_E_IO (this call alone).
 *
 * Thread rule: any thread, open and close excepted.
 */
#ifndef GPU_SITE_H
#define GPU_SITE_H

#include "codecs/view_rows.h"

typedef struct gpu_site gpu_site;

/* The streams of a site. */
typedef enum gpu_way { GPU_IN = 0, GPU_OUT = 1 } gpu_way;

/* Memory of the host that the GPU copies from and to. */
typedef struct gpu_host {
    struct gpu_host *next; /* of those that nobody has */
    void *memory;
    uint64_t bytes;
} gpu_host;

/* A place in a stream that was marked. */
typedef struct gpu_event {
    struct gpu_event *next; /* of those that nobody has */
    void *event;
} gpu_event;

/* Bytes of scratch that a store takes, and of pinned memory that it keeps, unless gpu.scratch and
 * gpu.pinned say otherwise. */
#define GPU_ROOM_BYTES (UINT64_C(256) << 20)

/* Opens a GPU by the driver's number, with scratch of so many bytes for kernels (gpu_kernels.h), 0
 * for none, and as many bytes of pinned memory kept for later. KVT_E_UNSUPPORTED: there is no
 * driver, or none that will do; KVT_E_ARGUMENT: there is no such GPU; with a reason of one line. */
KVT_NODISCARD kvt_status gpu_site_open(uint32_t ordinal, uint64_t scratch_bytes,
                                       uint64_t pinned_bytes, gpu_site **site_out, char *reason,
                                       size_t reason_size);

/* All work has ended, and nobody has events or memory of the host. NULL is allowed. */
void gpu_site_close(gpu_site *site);

/* Writes which hardware the GPU is: its name and its place on the bus. */
KVT_NODISCARD kvt_status gpu_site_identity(gpu_site *site, char *text, size_t text_size);

/* Whether bytes are memory of this GPU. KVT_E_ARGUMENT: they are not. */
KVT_NODISCARD kvt_status gpu_site_check(gpu_site *site, const void *address, uint64_t bytes);

/* Whether the work behind an event of the engine is over. KVT_QUEUED: it is not. */
KVT_NODISCARD kvt_status gpu_site_ready(gpu_site *site, void *event);

/* Takes pinned memory, and gives it back for others to take; no copy uses it any more. */
KVT_NODISCARD kvt_status gpu_host_take(gpu_site *site, uint64_t bytes, gpu_host **host_out);
void gpu_host_give(gpu_site *site, gpu_host *host);

/* Lets kernels reach memory of the host, at the address that they see; and ends that, once no work
 * uses it. */
KVT_NODISCARD kvt_status gpu_host_map(gpu_site *site, void *memory, uint64_t bytes,
                                      uint64_t *address_out);
void gpu_host_unmap(gpu_site *site, void *memory);

/* Queues copies of a matrix, from packed bytes into the rows of a view (GPU_IN) or out of them. The
 * packed bytes are pinned memory. After a failure some of the copies may be under way. */
KVT_NODISCARD kvt_status gpu_copy_rows(gpu_site *site, gpu_way way, const view_rows *rows,
                                       void *packed);

/* Marks the end of what a stream has been given. */
KVT_NODISCARD kvt_status gpu_mark(gpu_site *site, gpu_way way, gpu_event **event_out);

/* Whether all before the mark has ended: KVT_QUEUED: not yet; else how. */
KVT_NODISCARD kvt_status gpu_look(gpu_site *site, const gpu_event *event);

/* Waits for it. */
KVT_NODISCARD kvt_status gpu_await(gpu_site *site, const gpu_event *event);

/* Gives an event back; NULL is allowed. */
void gpu_event_give(gpu_site *site, gpu_event *event);

/* Makes a stream of the engine wait for a mark. KVT_E_ARGUMENT: it belongs to another context. */
KVT_NODISCARD kvt_status gpu_follow(gpu_site *site, void *stream, const gpu_event *event);

/* Waits until a stream has done all that it was given: after a failure, before memory goes. Where
 * that fails the site is gone. */
void gpu_rest(gpu_site *site, gpu_way way);

/* Ends work that was put into a stream, or that has failed with a status: waits for it, or lets the
 * stream come to rest, before its pinned memory is given back. */
KVT_NODISCARD kvt_status gpu_settle(gpu_site *site, gpu_way way, kvt_status status);

/* What is counted: layers of entries, those of opaque bytes as one. */
typedef enum gpu_counter {
    GPU_DECODED_BY_CPU,
    GPU_DECODED_BY_GPU,
    GPU_UNSOUND, /* that kernels have found unsound */
    GPU_ENCODED_BY_CPU,
    GPU_ENCODED_BY_GPU,
    GPU_DECODED_IN_PLACE, /* of those by the GPU: out of its own memory, */
    GPU_SENT_IN_PLACE,    /* or sent from where their records lie in the host's */
    GPU_COUNTERS
} gpu_counter;

void gpu_count(gpu_site *site, gpu_counter counter, uint64_t more);
uint64_t gpu_counted(const gpu_site *site, gpu_counter counter);

/* Bytes that copies were queued for, ever. */
uint64_t gpu_bytes_copied(const gpu_site *site, gpu_way way);

#endif
