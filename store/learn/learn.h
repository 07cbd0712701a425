/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.h - what a store learns while it runs: the seconds of its devices and codecs, and how far
 * its predictions were off (docs/STORE.md, Learning).
 *
 * Thread rule: any thread. learn.lock is a leaf: it may be taken under the control lock, and
 * nothing is called under it but the estimator's arithmetic. reuse_lock is held for as long as a
 * fit takes, and so never waited for under the control lock.
 */
#ifndef STORE_LEARN_H
#define STORE_LEARN_H

#include "estimator/predict/predict.h"
#include "store/core/entry.h"
#include "store/core/transfer.h"
#include "tiers/devices/device_ops.h"

#include <kvterrace/kvterrace.h>
#include <pthread.h>

/* The models of one device, one a direction. A member that is not known is not observed. */
typedef struct learn_member {
    bool known;
    char identity[96];        /* of the hardware or file */
    uint64_t in_flight_bytes; /* of the other direction, that may be ahead of a request at most */
    kvt_affine measured[2];   /* by kvt_io_kind, as it joined: fixed, what curves may become */
    online_device kinds[2];   /* by kvt_io_kind */
    uint64_t evidence[2];     /* of kinds: observations when decay last looked */
    double age_seconds[2];    /* of what was loaded of kinds, at open */
    double option_seconds[2]; /* of a load of ONLINE_LOAD_BYTES, when options were made last */
} learn_member;

/* The models and the prediction errors of one tier. */
typedef struct learn_tier {
    online_average overhead; /* of a get: its seconds less the slowest member's and the decoding */
    online_average waiting;  /* of the slowest member's seconds, what was due to others */
    online_error loads;      /* whole gets */
    online_error kinds[2];   /* single members' parts, by kvt_io_kind */
    uint64_t evidence;       /* of overhead */
    learn_member members[TIERS_MEMBERS_MAX];
} learn_tier;

/* One variant: seconds per source byte of its curve, and achieved over these. */
typedef struct learn_codec {
    double decode_curve;
    double encode_curve;
    online_factor decode;
    online_factor encode;
    uint64_t evidence[2]; /* of decode and encode: observations when decay last looked */
} learn_codec;

/* One variant of one kind of entry: its records' share of the source bytes. */
typedef struct learn_size {
    bool known;
    uint32_t others; /* records of the kind in other variants since the last one */
    double mean;
    double spread; /* mean distance from it */
} learn_size;

#define LEARN_SIZE_KINDS 32u

/* The sizes of one kind of entry, for every variant. */
typedef struct learn_size_kind {
    uint64_t used;     /* records noted when the last one of the kind was; 0 = a free slot */
    kvt_layout layout; /* tokens and opaque_bytes aside */
    uint32_t class_id;
    learn_size variants[KVT_VARIANTS_MAX]; /* in the order of the store's variants */
} learn_size_kind;

/* The kinds of seconds that are timed. */
typedef enum learn_timing {
    LEARN_TIME_READ = 0, /* a member's part; the two of kvt_io_kind */
    LEARN_TIME_WRITE = 1,
    LEARN_TIME_DECODE = 2,
    LEARN_TIME_ENCODE = 3,
    LEARN_TIME_GET = 4,   /* all of a get */
    LEARN_TIME_REMOTE = 5 /* a load from an engine that other hosts share */
} learn_timing;

/* Seconds in place of those that were measured, so that a test decides by counts alone. */
typedef double learn_clock(void *context, learn_timing what, double bytes, double measured_seconds);

/* Everything that a store learns. Members are under `lock` unless their comment names another rule.
 */
typedef struct store_learn {
    pthread_mutex_t lock;
    learn_clock *clock; /* NULL but in tests, which set it before anything is timed */
    void *clock_context;
    uint64_t decayed_ns;          /* when decay looked last; the background round's */
    online_loss_prior loss_prior; /* fixed after open */
    online_loss_class losses[KVT_REUSE_CLASSES]; /* under the store's control lock */
    double factors[KVT_REUSE_CLASSES]; /* the factor in the options of its entries; same */
    double priors[KVT_REUSE_CLASSES];  /* of reuse, from the profile */
    char *profile_path;                /* where it is kept; NULL = nowhere */
    uint64_t save_interval_ns;
    uint64_t saved_ns; /* when that was tried last */
    uint64_t saves;
    uint64_t priors_updated_ns; /* when priors were updated last; the background round's */
    int64_t run;                /* of the profile, this store's; 0 = none yet */
    pthread_mutex_t reuse_lock; /* a leaf as well; never under the control lock */
    kvt_reuse *reuse;
    uint64_t reopened;  /* curves, ever */
    double gpu_share;   /* of gets and loads lately, those into a GPU's memory, */
    bool targets_noted; /* once there was one; before it, of puts */
    learn_tier tiers[KVT_TIER_COUNT];
    learn_codec codecs[KVT_VARIANTS_MAX]; /* in the order of the store's variants */
    uint64_t sizes_noted;                 /* ever */
    learn_size_kind sizes[LEARN_SIZE_KINDS];
} store_learn;

/* One transfer while it is watched; on its runner's stack. */
typedef struct learn_transfer {
    kvt_store *store;
    kvt_tier tier;
    kvt_io_kind kind;
    double slowest_seconds; /* of the members, as predicted at the start */
    double waiting_seconds; /* of these, for what was ahead */
    double overhead_seconds;
    uint32_t steps;  /* in which the record is decoded while it is read; 0: all at once */
    bool in_memory;  /* no worker is asked: the record is decoded where it lies, */
    uint32_t member; /* on this member, */
    uint64_t bytes;  /* so many */
    transfer_watch watch;
} learn_transfer;

KVT_NODISCARD kvt_status learn_open(kvt_store *store);
void learn_close(kvt_store *store);

/* A device joins, with its curves. */
void learn_set_member(kvt_store *store, kvt_tier tier, uint32_t member,
                      const kvt_device_facts *facts, const kvt_affine *read,
                      const kvt_affine *write, uint64_t in_flight_bytes_max);

/* The measured seconds, or those of the clock that a simulation set; neither 0 nor endless. Any
 * lock. */
double learn_seconds(const store_learn *learn, learn_timing what, double bytes,
                     double measured_seconds);

/* Prepares a transfer; returns its watch. */
const transfer_watch *learn_watch(kvt_store *store, kvt_tier tier, kvt_io_kind kind,
                                  learn_transfer *transfer);

/* Prepares what learn_note_get takes for a get that decodes a record where it lies, which is in one
 * piece. */
void learn_begin_in_memory(kvt_store *store, kvt_tier tier, const tiers_location *location,
                           learn_transfer *transfer);

/* Seconds that a get of a readable entry is expected to take: with the present queues, or, of one
 * that comes after others, with such as there mostly are; NAN when no copy serves. Lock held. */
double learn_load_seconds(kvt_store *store, const store_entry *entry, bool now);

/* Seconds that decoding so many bytes is expected to take; 0 for a variant that is not the store's.
 */
double learn_decode_seconds(const kvt_store *store, kvt_variant variant, uint64_t source_bytes);

/* Takes and lets go of the lock that learn_note_get is called under, once for many gets. */
void learn_notes_begin(kvt_store *store);
void learn_notes_end(kvt_store *store);

/* How a get ended that read for itself: seconds of its decoding, and all of its seconds. Returns
 * what it was expected to take. Between learn_notes_begin and learn_notes_end. */
double learn_note_get(kvt_store *store, const learn_transfer *transfer, kvt_variant variant,
                      uint64_t source_bytes, double decode_seconds, double all_seconds);

/* So many entries came into a GPU's memory, or the host's. Between learn_notes_begin and
 * learn_notes_end. */
void learn_note_targets(kvt_store *store, bool gpu, uint64_t count);

/* An entry was put from a GPU's memory: gets are expected to go there, until there is one. */
void learn_note_put_from_gpu(kvt_store *store);

/* Seconds that so many bytes of pinned memory are expected to take to a GPU; 0: not measured. */
double learn_link_seconds(const kvt_store *store, uint64_t bytes);

/* Seconds that a get is expected to take which lets kernels decode source_bytes out of stored_bytes
 * that cross the link; 0 of those: the record lies in the GPU's memory. 0: not measured. */
double learn_kernel_seconds(const kvt_store *store, const learn_transfer *transfer,
                            kvt_variant variant, uint64_t stored_bytes, uint64_t source_bytes);

void learn_note_encode(kvt_store *store, kvt_variant variant, uint64_t source_bytes,
                       double seconds);

/* The same of a record that was encoded into the memory that is its place. */
void learn_note_encode_in_memory(kvt_store *store, kvt_tier tier, const tiers_location *location,
                                 kvt_variant variant, uint64_t source_bytes, double seconds);

/* The part of the distance from the curve that stays after so many seconds without evidence. */
double learn_kept(double idle_seconds);

/* All stored entries are given options anew, in the background. Control lock held. */
void learn_begin_epoch(kvt_store *store);

/* Statistics of the store, and of one device. No lock held. */
void learn_fill_stats(kvt_store *store, kvt_store_stats *stats);
void learn_fill_device(kvt_store *store, kvt_tier tier, uint32_t member, kvt_device_stats *out);

/* ---- learn_round.c ---- */

/* All tiers' and codecs' models as of now. At open. */
void learn_cost_all(kvt_store *store);

/* A tier's read or write model as of now: its serving devices striped together. Lock held. */
void learn_cost_tier(kvt_store *store, kvt_tier tier);

/* Brings the costs of new options up to what was learned: a tier's seconds, and once a curve has
 * been re-opened a new epoch for all entries. In the background round; no lock held. */
void learn_round(kvt_store *store);

/* ---- learn_size.c ---- */

/* A record of an entry came out so large. Any thread. */
void learn_note_size(kvt_store *store, const store_entry *entry, kvt_variant variant,
                     uint64_t record_bytes);

/* Per variant, the share of the source bytes to plan with; NAN: the measured ratio stands. */
void learn_size_shares(const kvt_store *store, const store_entry *entry,
                       double shares[KVT_VARIANTS_MAX]);

/* The known sizes of the entry's own records: of the one that last came out larger than planned,
 * and of the stored one. Returns how many there are, at most LEARN_KNOWN_SIZES. Lock held. */
#define LEARN_KNOWN_SIZES 2u
uint32_t learn_known_sizes(const store_entry *entry, kvt_known_size known[LEARN_KNOWN_SIZES]);

/* ---- learn_loss.c ---- */

#define LEARN_PRIOR_USES                                                                           \
    200u /* uses after first ones until a class's prior is handed to the policy */
#define LEARN_PRIOR_MOST 8.0

/* The class that an entry's losses and reuse count for: 0 for one that is not kept apart. */
uint32_t learn_class_of(uint32_t class_id);

/* The mean loss that a variant of the entry is decided on, or 0. Control lock held. */
double learn_variant_loss(const kvt_store *store, const store_entry *entry, kvt_variant variant);

/* The same with its bound, of any variant of planes that was calibrated, too; NAN: not known. Same.
 */
void learn_known_loss(const kvt_store *store, const store_entry *entry, kvt_variant variant,
                      double *loss_out, double *upper_out);

/* The bound that this loss may reach: the upper end of its confidence, or 0. Same. */
double learn_variant_loss_upper(const kvt_store *store, const store_entry *entry,
                                kvt_variant variant);

/* Whether a variant was beyond the limit at the open for want of observations, and nothing observed
 * of the entry's class has brought it within since (ladder.c). Lock held. */
bool learn_variant_waits(const kvt_store *store, const store_entry *entry, kvt_variant variant);

/* How the entry's losses and their bounds stand to those of the curves. Control lock held. */
online_loss_factor learn_loss_factor(const kvt_store *store, const store_entry *entry);

/* Of an entry of a class (below KVT_REUSE_CLASSES) of which nothing of its own was observed. Lock
 * held. */
online_loss_factor learn_class_factor(const kvt_store *store, uint32_t class_id);

/* A use of an entry. */
typedef struct learn_use {
    uint64_t handle;
    uint32_t class_id;
} learn_use;

/* Counts uses. Any thread; not under the control lock, because it waits while a class is read. */
void learn_note_uses(kvt_store *store, const learn_use *uses, uint32_t count);
void learn_note_use(kvt_store *store, uint64_t handle, uint32_t class_id);

/* Updates the policy about the worth of first uses of each class. In the background; no lock held.
 */
void learn_update_priors(kvt_store *store);

/* ---- learn_save.c ---- */

/* Takes up the learned rows of the profile, which may be NULL. After the pools, before the policy.
 */
void learn_load(kvt_store *store, const kvt_store_options *options, kvt_profile *profile);
void learn_update_loaded_priors(kvt_store *store);

/* Writes it. No lock held. */
void learn_save(kvt_store *store);

#endif
