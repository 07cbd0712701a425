/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_remote.h - the tier that all hosts of a simulation share, in virtual time. Private to the
 * room; one thread.
 *
 *     host's link, in         node, by the block's hash
 *     [reads ............]    [reads   |  one thread serves both: they interleave]
 *     [writes ...........]    [writes  |                                         ]
 *
 * A read has passed when it has passed the node and the link, and half a round trip is over.
 * Published blocks are read from the moment at which they have passed both. The tier is an LRU list
 * of blocks; a read and a write touch.
 */
#ifndef REPLAY_SIM_REMOTE_H
#define REPLAY_SIM_REMOTE_H

#include "sim_state.h"

/* In sim_visit.found: the shared tier alone had the block; once the request has been served, that
 * and it was published anew; and the host had or computed it, and it was published. */
#define SIM_FOUND_SHARED    UINT8_MAX
#define SIM_FOUND_AGAIN     (UINT8_MAX - 1)
#define SIM_FOUND_PUBLISHED (UINT8_MAX - 2)
#define SIM_PUBLISH_QUEUE   32u /* blocks that may wait for the write rate */
#define SIM_ERRORS_MAX      65536u
_Static_assert(SIM_FOUND_PUBLISHED > KVT_OPTIONS_MAX, "options and the shared tier are told apart");

/* One host's state of the shared tier. */
typedef struct sim_link {
    uint64_t in_free_ns, out_free_ns; /* its link */
    uint64_t publish_free_ns;         /* when the write rate takes the next byte */
    online_device *nodes;             /* what it has learned of each node's loads */
    replay_host *row;
} sim_link;

typedef struct sim_node {
    uint64_t read_free_ns, write_free_ns;
} sim_node;

/* A block in the list; `since_ns` UINT64_MAX: it is not there. */
typedef struct sim_copy {
    uint64_t since_ns; /* when it has been written */
    uint32_t older, newer;
    uint32_t bytes_4k;
} sim_copy;

typedef struct sim_remote {
    const replay_options *options;
    uint64_t used_bytes;
    sim_copy *copies; /* by block; the last one is the list's end */
    uint32_t end;
    sim_node nodes[REPLAY_NODES_MAX];
    uint8_t *uses; /* by block, of all hosts */
    float *errors; /* of predicted seconds */
    uint64_t error_count;
    replay_hosts *hosts;
} sim_remote;

static inline bool sim_was_fetched(const sim_visit *visit, uint32_t position)
{
    return position < visit->loaded && visit->found[position] >= SIM_FOUND_AGAIN;
}

static inline bool sim_was_published(const sim_visit *visit, uint32_t position)
{
    return visit->found[position] == SIM_FOUND_AGAIN ||
           visit->found[position] == SIM_FOUND_PUBLISHED;
}

/* KVT_OK; KVT_E_MEMORY. close also after an error. */
KVT_NODISCARD kvt_status sim_remote_open(sim_remote *remote, const replay_options *options,
                                         uint64_t blocks, replay_hosts *hosts);
void sim_remote_close(sim_remote *remote);
void sim_remote_finish(sim_remote *remote);

KVT_NODISCARD kvt_status sim_link_open(sim_link *link, const replay_options *options);
void sim_link_close(sim_link *link);
/* Forgets all that a restart forgets. */
void sim_link_restart(sim_link *link, const replay_options *options);

/* Whether a block can be read now. */
bool sim_remote_has(const sim_remote *remote, uint32_t block, uint64_t now_ns);

/* Bytes that are on their way to the host. */
uint64_t sim_remote_ahead(const sim_state *sim, uint64_t now_ns);

/* Seconds until a block has been read, as the host expects it behind so many bytes that are on
 * their way to it. */
double sim_remote_expect(const sim_state *sim, uint32_t block, uint64_t bytes, uint64_t ahead);

/* Reads a block: occupies node and link. Returns when it is there. The host learns from it. */
uint64_t sim_remote_read(sim_state *sim, uint32_t block, uint64_t bytes, uint64_t ahead,
                         uint64_t now_ns);

/* Bytes of a copy of so many tokens, in the smallest exact form, and seconds to decode it. */
uint64_t sim_remote_bytes(sim_state *sim, uint32_t tokens);
double sim_remote_decode_s(sim_state *sim, uint32_t tokens);

/* The node of a block. */
uint32_t sim_remote_node(const sim_remote *remote, uint32_t block);

/* Seconds to load a block of the request alone, when the shared tier has it; else 0. What a policy
 * is told of a copy. */
double sim_remote_copy_s(sim_state *sim, const sim_visit *visit, uint32_t position,
                         uint64_t now_ns);

/* Tells the policy what the host has learned of copies by the request: what it asked for and did
 * not find, loaded, or published. */
KVT_NODISCARD kvt_status sim_remote_tell(sim_state *sim, const sim_visit *visit, uint64_t now_ns);

/* Touches what the request has loaded, and publishes, when it has been served. The visit's `found`
 * says from then on what was published. */
void sim_remote_publish(sim_state *sim, const sim_visit *visit, uint64_t now_ns);

/* The host's own tiers have given a block up. */
void sim_remote_leave(sim_state *sim, uint32_t block, uint64_t now_ns);

#endif
