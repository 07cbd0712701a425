/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - object back ends: keys to bytes on other hosts, asynchronous, behind one wrapper
 * (docs/REMOTE.md).
 *
 * submit takes a request, flush sends what was taken, reap collects completions. A request embeds
 * its completion, so nothing is allocated per request. A back end knows neither records nor entries
 * nor who asks.
 *
 * Thread rule: a client belongs to one thread at a time, but for remote_wake and remote_node_of,
 * which any thread may call between open and close. That thread has SIGPIPE blocked or ignored; of
 * a client that remote_is_calm has called calm it need not.
 */
#ifndef REMOTE_CLIENT_H
#define REMOTE_CLIENT_H

#include <kvterrace/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

typedef struct remote_client remote_client;

typedef enum remote_kind {
    REMOTE_EXISTS = 0,
    REMOTE_GET = 1,
    REMOTE_PUT = 2,
    REMOTE_DELETE = 3,
    REMOTE_KINDS = 4
} remote_kind;

typedef enum remote_state {
    REMOTE_IDLE = 0,   /* the caller's */
    REMOTE_QUEUED = 1, /* not a byte of it is sent */
    REMOTE_SENT = 2,   /* a part of it is, or all */
    REMOTE_DONE = 3    /* completed, and not yet reaped */
} remote_state;

#define REMOTE_KEY_MAX        160u        /* bytes of an object's key */
#define REMOTE_PARTS_MAX      4u          /* of one request */
#define REMOTE_VALUE_MAX      (16u << 20) /* bytes of an object */
#define REMOTE_NODES_MAX      64u         /* of one client */
#define REMOTE_DEADLINE_NEVER UINT64_MAX  /* no deadline */

/*
 * One request. The caller fills the first block and zeroes the rest; the client fills the second
 * block. Key, parts and what they name stay unchanged from submit until the request is reaped, and
 * after that the client touches none of it, whatever a server does later.
 */
typedef struct remote_request {
    remote_kind kind;
    uint32_t key_bytes; /* 1 to REMOTE_KEY_MAX */
    const char *key;
    struct iovec *parts;  /* GET: where the value goes; PUT: the value; else NULL. The client
                             changes none of it */
    uint32_t part_count;  /* at most REMOTE_PARTS_MAX */
    uint32_t ttl_seconds; /* PUT: 0 = none */
    bool fresh;           /* PUT: where there is none alone; KVT_EXISTS otherwise */
    uint64_t deadline_ns; /* base_clock_ns; the request is DONE then at the latest */
    void *user;           /* the caller's; not touched */

    /* KVT_OK: there (EXISTS), received (GET), stored, or gone now (DELETE). KVT_MISS: no such
     * object, or the node does not say. KVT_EXISTS: PUT of a fresh one, and there is one.
     * KVT_E_SPACE: the engine is full, or the value is longer than the parts. KVT_E_MISMATCH: GET
     * of an object that is no text. KVT_E_TIMEOUT.
     * KVT_E_GONE: the node is out of service, or the connection was lost. KVT_E_CORRUPT: it answers
     * nonsense. KVT_E_READ_ONLY: it refuses writes. */
    kvt_status status;
    uint64_t value_bytes; /* GET: of the value */
    uint32_t node;        /* which one it was sent to last */
    uint64_t submitted_ns, finished_ns;

    remote_state state;          /* the client's from here on */
    bool redirected;             /* MOVED or ASK was followed: once is enough */
    bool on_trial;               /* the one of its kind that a node that failed it is asked */
    struct remote_request *next; /* in one of the client's lists */
    uint64_t sent_bytes;         /* of the value of a PUT */
} remote_request;

/* How a node is. */
typedef enum remote_breaker_state {
    REMOTE_CLOSED = 0,
    REMOTE_OPEN = 1,
    REMOTE_PROBING = 2
} remote_breaker_state;

/* Counts of a client, of one node. */
typedef struct remote_node_stats {
    char address[64]; /* as it was given, or as the cluster names it: host:port */
    remote_breaker_state breaker;
    uint64_t opened;   /* times that the breaker has opened */
    uint64_t requests; /* sent */
    uint64_t timeouts, failures;
    uint64_t bytes_in, bytes_out; /* on the wire, as the client's sockets count them */
    bool suspect;        /* asked for one piece at a time of some work that it has failed */
    uint64_t failing_ns; /* base_clock_ns: since when the breaker opens; 0: it does not */
    char message[160];   /* why it failed last, without a secret */
    /* Figures of the node's memory, as it told them last and kvt_remote_node has them. */
    uint64_t memory_bytes, memory_bytes_max;
    char eviction[24];
} remote_node_stats;

typedef struct remote_stats {
    uint64_t requests[REMOTE_KINDS];
    uint64_t batches[REMOTE_KINDS]; /* writes to a socket that began with such a request */
    uint64_t redirections, late_replies, malformed, invalidations;
    uint32_t node_count;
    char message[160]; /* the last reason why a node failed; names the node, never a secret */
} remote_stats;

/* Called in reap for every key that the engine says has changed; NULL: all of them have. */
typedef void remote_invalidated(void *context, const char *key, size_t key_bytes);

/* Texts are read during open. */
typedef struct remote_config {
    const char *backend;   /* valkey, mooncake, memory, fault */
    const char *addresses; /* host:port, with commas; mooncake: the master, as mooncake.c has it;
                              memory: the name of the store */
    bool cluster;
    const char *user, *password; /* NULL: none. password without user: the default user's */
    const char *password_file;   /* in place of password; secret.h. Read again before each login */
    bool tls;
    const char *ca, *cert, *cert_key; /* files, read again when they change; NULL: the system's,
                                         none */
    uint64_t connect_ns;              /* for a connection with its login; 0: 1 s */
    uint64_t memory_ns;               /* valkey: from one question for a node's memory to the next;
                                         0: 10 s */
    const char *feed_prefix;          /* of keys whose changes are told; NULL: no feed */
    remote_invalidated *invalidated;  /* with a feed; on the client's thread */
    void *invalidated_context;
    uint64_t seed;               /* of the jitter; 0: from the clock */
    struct remote_fault *faults; /* fault: remote_fault.h */
} remote_config;

typedef struct remote_ops {
    uint32_t struct_size;
    const char *name;
    kvt_status (*open)(const remote_config *config, remote_client **client_out, char *message,
                       size_t message_size);
    void (*close)(remote_client *client);
    int (*fd)(const remote_client *client);
    void (*submit)(remote_client *client, remote_request *request);
    void (*flush)(remote_client *client);
    size_t (*reap)(remote_client *client, remote_request **done, size_t min, size_t max,
                   uint64_t timeout_ns);
    void (*wake)(remote_client *client);
    void (*stats)(const remote_client *client, remote_stats *out);
    bool (*node_stats)(const remote_client *client, uint32_t node, remote_node_stats *out);
    /* (optional, default: node 0) The node that a key lies on, as far as the client knows. Any
     * thread. */
    uint32_t (*node_of)(const remote_client *client, const char *key, size_t key_bytes);
    /* (optional, default: never) As remote_is_calm. */
    bool (*is_calm)(const remote_client *client);
} remote_ops;

/* Every back end's object starts with this; the wrapper's. */
struct remote_client {
    const remote_ops *ops;
    uint64_t in_flight; /* requests submitted and not reaped */
};

/*
 * Opens a client. No server need answer: nodes that do not are out of service.
 *   message   one line for a person on failure, without a secret
 * KVT_OK; KVT_E_ARGUMENT (an address, a text); KVT_E_UNSUPPORTED (no such back end; TLS without
 * OpenSSL); KVT_E_GONE, KVT_E_CORRUPT (a certificate's file); KVT_E_MEMORY; KVT_E_IO.
 */
KVT_NODISCARD kvt_status remote_open(const remote_config *config, remote_client **client_out,
                                     char *message, size_t message_size);

/* Closes; nothing is in flight. NULL is allowed. */
void remote_close(remote_client *client);

/* A descriptor that is readable when reap has something to do, for a caller with a loop of its own;
 * -1: there is none. */
int remote_fd(const remote_client *client);

/* Takes a request, which completes through reap, also one that fails at once. */
void remote_submit(remote_client *client, remote_request *request);

/* Sends what was taken: requests of one node that are submitted between two flushes go out in one
 * write as far as they fit. reap does so, too. */
void remote_flush(remote_client *client);

/*
 * Collects up to max completions. Waits up to timeout_ns for the first min of them, and not beyond
 * a wake; time passes for deadlines and breakers here alone. Returns how many.
 */
size_t remote_reap(remote_client *client, remote_request **done, size_t min, size_t max,
                   uint64_t timeout_ns);

/* Ends the present wait of reap, or the next one. Any thread. */
void remote_wake(remote_client *client);

void remote_stats_get(const remote_client *client, remote_stats *out);

/* False when there is no such node. */
bool remote_node_stats_get(const remote_client *client, uint32_t node, remote_node_stats *out);

/* The node that a key lies on, as far as the client knows. Any thread. */
uint32_t remote_node_of(const remote_client *client, const char *key, size_t key_bytes);

/* Whether nothing happens until the next request but what may wait for it: no probe, no
 * connecting, no late bytes, no feed. Nothing is in flight. */
bool remote_is_calm(const remote_client *client);

/* Bytes of a request's parts. */
static inline uint64_t remote_parts_bytes(const remote_request *request)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request->part_count; i++)
        bytes += request->parts[i].iov_len;
    return bytes;
}

/* The table of back ends; NULL past the end. */
const remote_ops *remote_backend_at(size_t index);

#endif
