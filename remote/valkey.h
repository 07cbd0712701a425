/* SPDX-License-Identifier: Apache-2.0 */
/*
 * valkey.h - the client of Valkey and Redis: valkey.c has requests and time, connection.c one
 * connection, slots.c the map of slots.
 *
 *     connection   DOWN -> RESOLVING -> CONNECTING -> SHAKING -> LOGIN -> UP
 *                    ^                                                    |
 *                    +---------- lost, refused, malformed, too slow ------+
 *
 * A request waits in its connection's list (QUEUED) until it is written into `out`; then it has a
 * slot, in the order of the replies. A slot outlives its request: when a deadline passes first the
 * slot's request is NULL, and the reply goes to nobody.
 *
 * Thread rule: the client's thread.
 */
#ifndef REMOTE_VALKEY_H
#define REMOTE_VALKEY_H

#include "base/secret.h"
#include "remote/breaker.h"
#include "remote/resolve.h"
#include "remote/resp.h"
#include "remote/tls.h"

#include <stdatomic.h>

#define VALKEY_SLOTS       1024u /* replies of one connection that are waited for */
#define VALKEY_WINDOW      64u   /* of GET and PUT; of these so many */
#define VALKEY_OUT_BYTES   65536u
#define VALKEY_COMMAND_MAX 512u /* a command without the value, at most */
#define VALKEY_LOGIN_MAX   1024u
#define VALKEY_TAIL_MAX    48u
#define VALKEY_HASH_SLOTS  16384u
#define VALKEY_SILENCE_NS  UINT64_C(10000000)   /* a shorter wait says nothing against a node */
#define VALKEY_LIFE_NS     UINT64_C(1000000000) /* a connection lost sooner counts as failed */
#define VALKEY_REFUSED     60u                  /* pauses after a refusal to tell of the memory */

typedef enum valkey_role { VALKEY_BULK = 0, VALKEY_PROBE = 1, VALKEY_FEED = 2 } valkey_role;
enum { VALKEY_ROLES = 3 };

typedef enum valkey_state {
    VALKEY_DOWN = 0,
    VALKEY_RESOLVING,
    VALKEY_CONNECTING,
    VALKEY_SHAKING,
    VALKEY_LOGIN,
    VALKEY_UP
} valkey_state;

typedef enum valkey_ask {
    VALKEY_ASK_REQUEST = 0,
    VALKEY_ASK_NOTHING, /* a reply that says nothing: of ASKING */
    VALKEY_ASK_HELLO,
    VALKEY_ASK_AUTH, /* of a server without HELLO */
    VALKEY_ASK_TRACKING,
    VALKEY_ASK_SLOTS,
    VALKEY_ASK_MEMORY
} valkey_ask;

/* A reply that is waited for. */
typedef struct valkey_slot {
    remote_request *request; /* NULL: nobody waits any more */
    valkey_ask ask;
} valkey_slot;

typedef struct valkey_list {
    remote_request *first, *last;
} valkey_list;

typedef struct valkey_node valkey_node;
typedef struct valkey_client valkey_client;

typedef struct valkey_connection {
    valkey_node *node;
    valkey_role role;
    valkey_state state;
    int socket;
    uint32_t events; /* that the poll waits for */
    bool tls_writes; /* TLS goes on when the socket takes bytes, whatever for */
    remote_tls_session *tls;
    remote_resolution *resolution;
    struct addrinfo *found, *address; /* all of the host's, and the one that is tried */
    uint64_t began_ns;                /* of the connecting */
    uint64_t up_ns;                   /* when it was logged in */
    uint64_t answered_ns;             /* when a request was answered in time last */
    uint32_t blame;                   /* causes, as bits, of a failure that is under way */

    valkey_list waiting;
    valkey_slot slots[VALKEY_SLOTS];
    uint32_t slot_first, slot_count;
    char *out;
    uint32_t out_begin, out_end;
    remote_request *put; /* whose value follows `out`, and the tail after it */
    bool put_begins;     /* something of it is sent */
    char tail[VALKEY_TAIL_MAX];
    uint32_t tail_bytes, tail_sent;

    bool in_push;    /* the tokens are those of a push, */
    bool push_tells; /* which is an invalidation */
    bool refused;    /* the reply under way is an error */
    resp_reader reader;
} valkey_connection;

/* The reading of CLUSTER SLOTS. */
typedef struct valkey_map_reading {
    int64_t numbers[2]; /* first and last slot of the range */
    uint32_t number_count, node_count, field_count;
    char host[64];
} valkey_map_reading;

struct valkey_node {
    valkey_client *client;
    uint32_t index;
    char host[NI_MAXHOST];
    char port[8];
    remote_breaker breaker;
    uint32_t on_trial;  /* bits of the kinds of which a request is on trial */
    bool given;         /* by the configuration: its place in the table stays its own */
    uint64_t lost_ns;   /* when it said last that it has lost its cluster; 0: it has not */
    uint64_t memory_ns; /* when it was asked for its memory last */
    remote_node_stats stats;
    valkey_map_reading reading;
    valkey_connection connections[VALKEY_ROLES];
};

struct valkey_client {
    remote_client base;
    remote_config config; /* with texts of its own */
    char *texts;
    base_password secret;     /* the password when it is a file's, */
    const char *secret_fault; /* and why the file was not taken last; NULL: it was */
    remote_tls *tls;
    int poll_fd, wake_fd;
    bool woken;
    valkey_node *nodes[REMOTE_NODES_MAX];
    uint32_t node_count;
    atomic_uchar map[VALKEY_HASH_SLOTS]; /* slot -> node; any thread looks a key up */
    bool map_wanted;
    uint64_t map_asked_ns;
    uint32_t map_turn; /* the node that is asked next */
    valkey_list done;
    uint64_t next_ns; /* no deadline, pause or connecting ends before */
    remote_stats stats;
};

/* ---- valkey.c ---- */

/* Lists, which keep the order. */
void valkey_append(valkey_list *list, remote_request *request);
remote_request *valkey_take(valkey_list *list);

/* Completes a request. */
void valkey_done(valkey_client *client, remote_request *request, kvt_status status);

/* Sends a request to a node, or again to another one. */
void valkey_route(valkey_client *client, remote_request *request, uint32_t node, bool asking);

/* Says why a node fails, in the client's words. what: follows the node's address. */
void valkey_say(valkey_node *node, const char *what, const char *more);

/* Reads the password again. A file that may not be taken leaves the last password in use. */
void valkey_renew_secret(valkey_client *client);

/* The node has failed: its breaker may open, and then all that waits for it fails. causes: bits of
 * remote_cause; why: a static text without a secret. */
void valkey_node_failed(valkey_node *node, uint32_t causes, const char *why);

/* The node of a host and port. A new one is added, in the place of one that has left the cluster
 * where there is such a place. UINT32_MAX: there are too many. */
uint32_t valkey_find_node(valkey_client *client, const char *host, const char *port);

/* ---- connection.c ---- */

void valkey_connection_init(valkey_connection *connection, valkey_node *node, valkey_role role);

/* Begins to connect, if it is DOWN. */
void valkey_connect(valkey_connection *connection, uint64_t now_ns);

/* Closes; what waits on it or was sent ends with a status. */
void valkey_disconnect(valkey_connection *connection, kvt_status status);

/* Goes on after the poll, or because of a resolution. */
void valkey_connection_step(valkey_connection *connection, uint32_t events);

/* Writes what waits, as far as window and socket take it. */
void valkey_connection_send(valkey_connection *connection);

/* Ends requests whose deadline has passed; lowers *next_ns to the next one. */
void valkey_connection_expire(valkey_connection *connection, uint64_t now_ns, uint64_t *next_ns);

/* Takes a token of the reply to INFO memory. */
void valkey_memory_token(valkey_node *node, const resp_token *token);

/* Adds a command of the client's own. False: there is no room now. */
bool valkey_ask_for(valkey_connection *connection, valkey_ask ask);

/* ---- slots.c ---- */

/* The hash slot of a key. */
uint32_t valkey_key_slot(const char *key, size_t bytes);

/* Takes a token of the reply to CLUSTER SLOTS that `node` gives. */
void valkey_map_token(valkey_client *client, valkey_node *node, const resp_token *token);

/* Follows MOVED and ASK, once. False: the error is another one. */
bool valkey_redirect(valkey_client *client, valkey_node *node, remote_request *request,
                     const char *text, size_t bytes);

#endif
