/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.h - which entries are worth a copy in the tier that all hosts share.
 *
 *     publish_open(&state, &config);
 *     decision = publish_decide(&state, now_s, &candidate);   for each entry without a copy
 *     if (decision.publish && it was written) publish_written(&state, now_s, class, bytes);
 *     publish_hit(&state, now_s, class, bytes);               a load from there on this host
 *
 * A copy is worth the seconds that other hosts save by it:
 *
 *     gain  = expected loads by others * seconds that one of them saves
 *     price = bytes * ((link + write path seconds per byte) * delay + rate)
 *
 * The expected loads are learned per class: bytes that this host has loaded from the shared tier
 * and that were published as that class, over bytes of the class that this host has published. One
 * host sees its own loads alone; where hosts serve alike, what all of them publish and load has the
 * same ratio. The class travels with the copy, so there is no other channel between hosts. Loads
 * come some time after the copy, so published bytes count as they ripen. Both sums fade with a
 * half-life. Beside them stands what is known of all classes of as many uses, and beside that a
 * prior, to which a class without evidence returns. One candidate in PUBLISH_EXPLORE is published
 * whatever is expected of its class, so that every class keeps some evidence.
 *
 * `delay` is how long a request waits for a second of publishing: while a copy passes, loads on the
 * same path are that much slower. It is the share of the time that this host's loads keep the path
 * busy, PUBLISH_DELAY_LEAST at least.
 *
 * `rate` is the shadow price of the write rate, seconds per byte: the gain per byte above which the
 * candidates of the last minutes would have filled the rate, times twice the share of the queue
 * that is in use. So an idle link takes all that is worth its way, and a full queue the best alone.
 * It is 0 without a bound.
 *
 * A copy without the copy of its parent serves nobody, because a prefix ends at its first hole.
 *
 * Pure: numbers in, decision out; no clock, lock, memory or I/O. The same calls give the same
 * decisions. Thread rule: one thread at a time per state. Source: docs/POLICY.md, "Copies".
 */
#ifndef KVT_POLICY_PUBLISH_H
#define KVT_POLICY_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PUBLISH_CLASSES     64u
#define PUBLISH_UNKNOWN     UINT8_MAX /* a copy whose publisher told no class */
#define PUBLISH_DENSITIES   96u
#define PUBLISH_EXPLORE     32u
#define PUBLISH_DELAY_LEAST 0.002

/* What publishing costs. */
typedef struct publish_config {
    double link_s_per_byte;   /* of this host's link; at least 0, as all of these */
    double write_s_per_byte;  /* of the node that takes the copy */
    double write_bytes_per_s; /* that this host may publish at most; 0 = any */
    double half_life_s;       /* of what is learned; 0 = 1,200 */
    double sharing_hosts;     /* whose loads pass the same node; 0 = 1 */
} publish_config;

/* An entry without a copy, at a put or at a use on this host. */
typedef struct publish_candidate {
    uint64_t handle;       /* well mixed, of the entry or of the request: draws what is explored */
    uint64_t bytes;        /* of the copy, at least 1 */
    double saved_s;        /* by one load on another host: recomputing less loading */
    uint32_t uses;         /* on this host, this one included; at least 1 */
    uint32_t found_tokens; /* of the request, in the cache before it was served */
    uint32_t request_tokens;
    double queue_share; /* of the publishing queue in use, 0 to 1 */
    bool parent_shared; /* the parent has a copy or is being published; true for a root */
} publish_candidate;

typedef enum publish_reason {
    PUBLISH_WORTH = 0,    /* gain >= price */
    PUBLISH_EXPLORED = 1, /* below the price, drawn for evidence */
    PUBLISH_NO_PARENT = 2,
    PUBLISH_NO_GAIN = 3, /* loading is no faster than recomputing */
    PUBLISH_PRICE = 4    /* gain < price */
} publish_reason;

typedef struct publish_decision {
    bool publish;
    uint8_t class_id; /* below PUBLISH_CLASSES; goes with the copy */
    uint8_t reason;   /* publish_reason */
    double loads;     /* expected, by other hosts */
    double gain_s;
    double price_s;
    double rate_price_s; /* part of it: the shadow price of the write rate */
} publish_decision;

typedef struct publish_sums {
    double fresh_bytes;     /* published lately: loads are still to come */
    double published_bytes; /* and longer ago */
    double hit_bytes;
    double at_s; /* as of when */
} publish_sums;

typedef struct publish_state {
    publish_config config;
    publish_sums classes[PUBLISH_CLASSES];
    double offered[PUBLISH_DENSITIES]; /* bytes by gain per byte, half an octave each; fading */
    double offered_at_s;
    double first_s; /* of the first offer; below 0 before it */
    double loaded;  /* bytes, fading: the rate of loads */
    double loaded_at_s;
} publish_state;

/* Readies the caller's memory. */
void publish_open(publish_state *state, const publish_config *config);

/* The class of a candidate: uses, the found part, and the length of its request. */
uint8_t publish_class(const publish_candidate *candidate);

/* Weighs one candidate. It counts as offered; publish_written says what became of it. now_s never
 * steps back by more than rounding; a step back is held. */
publish_decision publish_decide(publish_state *state, double now_s,
                                const publish_candidate *candidate);

/* So many bytes of a class have been published, and loaded from the shared tier by this host. */
void publish_written(publish_state *state, double now_s, uint8_t class_id, uint64_t bytes);
void publish_hit(publish_state *state, double now_s, uint8_t class_id, uint64_t bytes);

/* Loads by others that a copy of the class lets expect now: 0 to PUBLISH_LOADS_MOST. */
#define PUBLISH_LOADS_MOST 64.0
double publish_loads(const publish_state *state, double now_s, uint8_t class_id);

/* Seconds per byte that the write rate costs now. */
double publish_rate_price(const publish_state *state, double now_s);

/* The decision as one sentence. Returns text. */
const char *publish_explain(const publish_decision *decision, char *text, size_t size);

#endif
