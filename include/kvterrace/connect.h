/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.h - a store that another process of the host has: `kvterrace serve` lends it
 * (docs/SERVE.md).
 *
 *     kvt_store *store;
 *     char message[256];
 *     kvt_status status = kvt_connect("/run/kvt.sock", NULL, &store, message, sizeof message);
 *     ... the calls of kvterrace.h, queue.h, load.h, lookup.h and names.h ...
 *     kvt_store_close(store);
 *
 * The store and its queues take the same calls as those of this process, and answer the same. What
 * is different:
 * - A call that names memory outside of regions takes one copy more. A region is memory that the
 *   server has mapped, too: it decodes straight into it, and puts are read from there.
 * - While there is no connection, lookups and gets are KVT_MISS, puts are KVT_REFUSED, and all else
 *   is KVT_E_GONE. Requests that were under way when it was lost end so, puts and deletes with
 *   KVT_E_GONE: whether they were carried out is not known. Leases have ended. Calls
 *   connect again, by themselves, at most once in 10 ms and later less often.
 * - A server that is stopped (SIGSTOP, a debugger) is not gone. Calls that it does not answer in
 *   kvt_connect_options.answer_seconds are KVT_E_TIMEOUT (flush, persist, clear and maintain: ten
 *   times as long); whether it will carry them out is not known. A blocking get whose memory lies
 *   outside of regions is a miss one second after its deadline. What names regions waits until the
 *   server goes on, whatever the deadline, because it may still write there: gets, puts, and with
 *   such under way kvt_queue_close and kvt_store_close. Requests of queues wait, too.
 * - A view with an address for each layer says by base_count how many it has, or takes a copy.
 * - A layered load goes into regions alone, else it is KVT_E_UNSUPPORTED; a queue has 64 open at
 *   most (KVT_BUSY). kvt_load_options.announced is called by kvt_load_wait, kvt_queue_wait and
 *   kvt_queue_drain; kvt_queue_fd becomes readable for it. kvt_load_status is as of the last layer
 *   that came. A load may wait for its share of the server (serve.in_flight): kvt_load_total is 0
 *   then, and a load of nothing is KVT_MISS of kvt_load_wait. When the connection is lost,
 *   kvt_load_wait for what has not come is KVT_MISS, and kvt_load_end says so of each entry that is
 *   not complete.
 * - KVT_E_UNSUPPORTED: sparse.h, rings, kvt_device_add, kvt_gpu_stats_get; a get that takes
 *   positions of kept tokens; passes of an older server. An entry that does not fit in the staging
 *   of its queue is KVT_E_SPACE, and so is a load's whose view has more than 512 KiB.
 * - KVT_E_READ_ONLY: calls that change other clients' entries (kvt_store_clear, kvt_store_maintain,
 *   kvt_device_change, kvt_tenant_set, kvt_space_set, kvt_basis_add, kvt_basis_remove), what is
 *   believed of them (kvt_quality_observe, kvt_pass_table_set), or that name them (kvt_store_list,
 *   kvt_events_open), where the server does not let this user make them.
 * - A client has 16 passes (load.h) announced at most, which end with their connection. A basis and
 *   a table of passes go through a region of that call: KVT_E_SPACE and KVT_BUSY as of
 *   kvt_region_make.
 * - A reader of events (watch.h) has a connection of its own, and goes on after kvt_store_close.
 *   The server keeps 16,384 events for it at most. A connection that is lost counts as one lost
 *   event, and its return as another one: how many there were is not known. Meanwhile the
 *   descriptor becomes readable ten times a second, and the drain looks for a server.
 *   kvt_events_open: KVT_E_GONE where the server is gone, or has no room for one more client.
 * - kvt_watch_write writes a file of this process; KVT_E_GONE without a connection.
 * - kvt_store_flush tells each client once that an entry was lost since its last flush, whoever had
 *   put it: the store knows no clients.
 * - With an engine on other hosts (remote.h), gets and prefetches reach it. kvt_store_match and
 *   kvt_prefix_get ask it nothing, because they would keep the requests behind them waiting: what
 *   other hosts have counts as far as earlier answers said so.
 * - kvt_queue_options.whole_batches is a wish: the descriptor may become readable before.
 *
 * Thread rule: as kvterrace.h; a child of fork connects by itself.
 */
#ifndef KVTERRACE_CONNECT_H
#define KVTERRACE_CONNECT_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero but for struct_size: the defaults. Read during kvt_connect. */
typedef struct kvt_connect_options {
    uint32_t struct_size;
    uint32_t depth;   /* blocking calls under way at once, a power of two; 0 = 256; a server may
                               have less */
    const char *name; /* for the server's log; NULL = the process's name */
    uint64_t staging_bytes; /* shared memory for views outside of regions, of each queue and of the
                               blocking calls together; taken as it is used; 0 = 64 MiB; at most
                               half of what the server leaves to this client */
    const uint32_t *users;  /* whose server it may be; NULL = this process's user and root */
    uint32_t user_count;
    uint32_t reserved;
    double patience_seconds; /* how long calls and requests wait for a server that is gone, or that
                                leaves, before they end as above: a restart of the server is a pause
                                then. Those that it had begun end at once; 0 = not at all; at most
                                1e6 */
    double answer_seconds;   /* how long a call waits for the answer of a server that is there; 0 =
                                60; at most 1e6 */
} kvt_connect_options;

/*
 * Connects to a server.
 *   address  the path of its socket
 *   options  may be NULL
 *   message  one line for a person after a failure
 * KVT_OK; KVT_E_GONE (nobody listens there); KVT_E_READ_ONLY (no permission; the server is another
 * user's; it does not let this one in); KVT_E_VERSION (it speaks another protocol);
 * KVT_E_MISMATCH (the clocks differ: another time namespace); KVT_E_TIMEOUT (it does not answer);
 * KVT_E_CORRUPT (what answers is no server); KVT_E_ARGUMENT; KVT_E_MEMORY; KVT_E_IO. Blocking, for
 * seconds at most.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_connect(const char *address,
                                                              const kvt_connect_options *options,
                                                              kvt_store **store_out, char *message,
                                                              size_t message_size);

/*
 * Makes memory that calls on a store use without a copy: zeroed, shared with the server of a
 * connected store, plain memory for a store of this process. It is the store's region until
 * kvt_region_free, which may follow kvt_store_close.
 *   bytes  above 0; rounded up to pages
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_SPACE (the server lets a client register no more); KVT_BUSY (64
 * regions are there); KVT_E_MEMORY; KVT_E_GONE (no connection); KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_region_make(kvt_store *store, uint64_t bytes,
                                                                  void **memory_out);

/*
 * Makes memory that the caller has mapped a region. A store of this process needs none: KVT_OK.
 *   descriptor     of memfd_create, sealed with F_SEAL_SHRINK, not against writing; the call keeps
 *                  its own
 *   offset, bytes  pages of it
 *   memory         where the caller has them
 * What kvt_region_make says; KVT_E_UNSUPPORTED (it is not sealed so: calls copy, as for memory
 * outside of regions).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_region_add(kvt_store *store, int descriptor,
                                                                 uint64_t offset, uint64_t bytes,
                                                                 void *memory);

/* Ends a region, which begins at `memory`, when no request names it. What kvt_region_make has made
 * is unmapped. store may be NULL after kvt_store_close, for what was made alone. KVT_OK; KVT_BUSY
 * (a request under way names it); KVT_E_ARGUMENT (no region begins there); KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL kvt_status kvt_region_free(kvt_store *store, void *memory);

#ifdef __cplusplus
}
#endif

#endif
