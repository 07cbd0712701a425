/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - copies of entries for other hosts: an entry that one host has computed every host can
 * load, from an engine (a Valkey, say) that all of them reach (docs/REMOTE.md).
 *
 *     kvt_remote_options remote;
 *     kvt_remote_options_init(&remote);
 *     remote.backend = "valkey";
 *     remote.address = "kv1.example:6379, kv2.example:6379";
 *     remote.cluster = true;
 *     remote.namespace_text = "llama-3.1-8b@r1/vllm-sha256";
 *     options.remote = &remote;
 *     kvt_status status = kvt_store_open(&options, &store, message, sizeof message);
 *     if (status != KVT_OK) return fail(message);
 *
 *     size_t matched;
 *     status = kvt_store_match(store, keys, count,
 *                              KVT_MATCH(.hosts = true, .deadline_ns = soon_ns), &matched);
 *
 * Thread rule: any thread.
 */
#ifndef KVTERRACE_REMOTE_H
#define KVTERRACE_REMOTE_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which entries are published. An entry in a lossy variant, or of groups, never is. */
typedef enum kvt_publish {
    KVT_PUBLISH_ALL = 0,        /* once they are stored */
    KVT_PUBLISH_SECOND_USE = 1, /* at their first hit here */
    KVT_PUBLISH_NONE = 3        /* none: this host reads alone */
} kvt_publish;

/* Made by kvt_remote_options_init, then changed. Strings are read during kvt_store_open. */
typedef struct kvt_remote_options {
    uint32_t struct_size;
    const char *backend; /* "valkey", also for Redis; "mooncake": libmooncake_store.so is loaded;
                            "memory": an engine in this process */
    const char *address; /* host:port, several with commas when cluster is set; of "mooncake" the
                            master, as [tcp://|rdma://]host:port[/devices] */
    bool cluster;
    bool tls;         /* verified against ca; needs OpenSSL at run time */
    bool feed;        /* follow the engine's invalidations; for up to 32 hosts */
    uint32_t publish; /* kvt_publish; ALL */
    const char *user; /* NULL = the engine's default user */
    const char
        *password_file; /* its first line, read again before each login; NULL = none. Refused when
                                  others than its owner may read it */
    const char *ca;     /* of TLS: certificates that are trusted; NULL = the system's. Read again
                           when it changes, as cert and cert_key */
    const char *cert;   /* the client's own; NULL = none */
    const char *cert_key;
    const char *namespace_text; /* required: all that changes bytes beside the keys, such as model,
                                   revision and how keys are made; 1 to 255 bytes */
    double ttl_seconds;         /* of published objects; 0 = the engine's eviction alone */
    double hint_ttl_seconds;    /* how long the engine's answer about a key is believed; 10 */
    double deadline_seconds;    /* of a get from another host; 0.05 */
    uint32_t chunk_bytes;       /* of an object, at most; 1 MiB - 16 */
    uint32_t queue;             /* entries that may wait to be published; 4096 */
    uint64_t write_bytes_per_s; /* that are published; 0 = no bound */
} kvt_remote_options;

/* Fills every field of options of struct_size bytes with its default; struct_size is set here.
 * kvt_remote_options_init is the form for C and C++. */
KVT_API void kvt_remote_options_init_sized(kvt_remote_options *options, uint32_t struct_size);

static inline void kvt_remote_options_init(kvt_remote_options *options)
{
    kvt_remote_options_init_sized(options, (uint32_t)sizeof *options);
}

/* Waits until all publications, deletions and clears that were pending when the call began are done
 * or dropped. A deletion or a clear whose node is out of service counts as done; owed_deletes and
 * owed_clears count it until the node has taken it. KVT_OK; KVT_E_TIMEOUT (deadline_ns, an instant
 * of CLOCK_MONOTONIC, has passed); KVT_E_UNSUPPORTED (no engine); KVT_E_STATE. Blocking. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_remote_flush(kvt_store *store,
                                                                   uint64_t deadline_ns);

/* Counts since the open. */
typedef struct kvt_remote_stats {
    uint32_t struct_size;
    uint32_t nodes;      /* of the engine, as far as they are known */
    uint32_t nodes_open; /* of these, whose breaker is open: they are not asked */
    uint32_t reserved;
    uint64_t hits, hit_bytes; /* gets served from other hosts' entries, bytes as stored */
    uint64_t misses;          /* gets that asked the engine and found nothing */
    uint64_t known_misses;    /* gets that asked nobody, because of an earlier answer */
    uint64_t shared;          /* of the hits: waited for another get's read */
    uint64_t timeouts;        /* gets that ended at their deadline */
    uint64_t node_failures;   /* gets whose node was out of service */
    uint64_t bad_records;     /* objects whose bytes were wrong; they were deleted */
    uint64_t unfit;           /* objects of another size or layout */
    uint64_t probes;          /* keys asked for by kvt_store_match and publishing */
    uint64_t probe_batches;   /* writes to a node that these questions took */
    uint64_t known_probes;    /* keys that an earlier answer decided */
    uint64_t published, published_bytes;
    uint64_t deduplicated;                /* not written: another host had */
    uint64_t declined;                    /* lossy, of groups, or with a lifetime */
    uint64_t dropped_queue, dropped_node; /* the queue was full; the node failed or was full */
    uint64_t dropped_deletes;             /* copies that stay: there was no room for deletions */
    uint64_t deleted;
    uint64_t invalidations;       /* keys that the feed has named */
    uint64_t bytes_in, bytes_out; /* of the connections */
    uint64_t waiting;             /* entries to be published now */
    double saved_seconds;         /* recomputing that the hits have spared, less what they took */
    double survival;              /* share of copies known to be there that were found */
    uint64_t prefetched;          /* entries that have come without a get, by a prefetch */
    uint64_t not_worth;    /* gets that asked nobody: recomputing was expected to be sooner */
    uint64_t copies_told;  /* times that the policy was told of a copy, present or gone */
    double load_error;     /* median error of predicted loads, over nodes by their loads */
    uint64_t owed_deletes; /* deletions not taken yet: tried each second, and no get asks */
    char message[160];     /* why a node failed last, without a secret; empty: none has */
    uint64_t owed_clears;  /* clears that the engine has not taken: other hosts still find copies */
    uint64_t repeated_clears; /* clears that the engine had taken and lost, and that were made anew:
                                 other hosts found copies meanwhile */
} kvt_remote_stats;

/* KVT_OK; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_UNSUPPORTED (no engine); KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_remote_stats_get(kvt_store *store,
                                                                       kvt_remote_stats *stats);

/* One node of the engine. */
typedef struct kvt_remote_node {
    uint32_t struct_size;
    uint32_t breaker; /* 0 closed: it is asked; 1 open; 2 being probed */
    char address[64];
    uint64_t opened; /* times that the breaker has opened */
    uint64_t requests, timeouts, failures;
    uint64_t bytes_in, bytes_out;
    uint64_t loads;      /* of records from it, that were timed */
    double load_seconds; /* that the load of a record of 1 MiB is expected to take now */
    double load_error;   /* median of |predicted - achieved| / achieved */
    char message[160];   /* why it failed last, without a secret; empty: it has not */
    /* Figures of the node's memory, which it is asked for once in ten seconds;
     * zeros while it has told none, or may not be asked (docs/REMOTE.md, Security). */
    uint64_t memory_bytes;     /* that it uses, for whatever it holds */
    uint64_t memory_bytes_max; /* its maxmemory; 0: no bound */
    char eviction[24]; /* its maxmemory-policy, which says what goes first; empty: not known */
} kvt_remote_node;

/* KVT_OK; KVT_END (no such node); KVT_E_ARGUMENT; KVT_E_UNSUPPORTED; KVT_E_STATE. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_remote_node_get(kvt_store *store,
                                                                      uint32_t index,
                                                                      kvt_remote_node *node);

#ifdef __cplusplus
}
#endif

#endif
