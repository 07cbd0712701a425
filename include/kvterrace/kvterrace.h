/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvterrace - a KV-cache store for LLM serving on one host.
 *
 * kvterrace keeps the KV cache of token runs ("entries") in GPU memory, host memory and SSDs. For
 * every entry it decides by marginal utility where it lives and in which form, moves it when that
 * changes, and gives it back bit for bit.
 *
 *     #include <kvterrace/kvterrace.h>
 *
 *     kvt_store_options options;
 *     kvt_store_options_init(&options);
 *     options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
 *     kvt_store *store;
 *     char message[256];
 *     if (kvt_open(&options, &store, message, sizeof message) != KVT_OK) return fail(message);
 *
 *     kvt_entry entry = {.struct_size = sizeof entry, .key = key};
 *     entry.layout = (kvt_layout){.layers = 4, .kv_heads = 2, .head_dim = 64,
 *                                 .dtype = KVT_DTYPE_BF16, .tokens = 256};
 *     kvt_status status = kvt_put(store, &entry, kv, kv_bytes);
 *     if (status == KVT_OK) status = kvt_get(store, &key, kv, kv_bytes, NULL);
 *     if (status == KVT_MISS) recompute();
 *     kvt_close(store);
 *
 * The whole program is examples/example.c; it is built and run by the tests.
 *
 * Words: an entry is the KV cache of one run of tokens of one sequence; its key names its content;
 * its parent is the entry that holds the preceding tokens; its layout says what its bytes are.
 *
 * Processes: a store belongs to the process that opened it. In a child of fork every call on it
 * returns KVT_E_STATE at once, and kvt_close does nothing, so that the parent's store stays whole;
 * the child's copy of its memory goes when the child ends. A child may open stores of its own. It
 * shares the parent's open devices: should the parent be killed, they stay locked until the child
 * has ended, too, or has called exec.
 *
 * Thread rule: every function on a kvt_store may be called from any thread, open and close
 * excepted. Lookups (exists, match_prefix, stats, explain) only take a short lock; they never do
 * I/O. The store's own threads block all signals, so that handlers run on the caller's threads.
 */
#ifndef KVTERRACE_KVTERRACE_H
#define KVTERRACE_KVTERRACE_H

#include "codec.h"
#include "config.h"
#include "device.h"
#include "key.h"
#include "policy.h"
#include "prefill.h"
#include "rope.h"
#include "types.h"
#include "view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---- */

#define KVT_VERSION_MAJOR 0
#define KVT_VERSION_MINOR 2
#define KVT_VERSION_PATCH 0

/* "0.2.0": the version of the library that runs, which may differ from the header's. */
KVT_API const char *kvt_version(void);

/* ---- open and close ---- */

typedef struct kvt_store kvt_store;

/* One tier of a store. HBM and DRAM without devices get one memory device of their capacity. */
typedef struct kvt_tier_options {
    uint64_t capacity_bytes;          /* budget for records; 0 = what its devices hold, or absent */
    const kvt_device_config *devices; /* read during kvt_open only */
    uint32_t device_count;
    uint32_t unit_bytes; /* stripe unit, a multiple of 4096; 0 = 256 KiB */
    bool weights_fixed; /* shares stay as measured at open; else they follow what devices achieve */
    bool emulated;      /* HBM without devices: memory of the host, no GPU is looked for */
    uint64_t rebalance_bytes_per_s; /* for hot objects whose layout fell behind; 0 = none
                                     * (default 32 MB/s) */
    uint64_t reserved[4];
} kvt_tier_options;

/* Called after a move was carried out, in the order of execution, under no lock that the callee
 * could need except that it must not call into the store. outcome KVT_OK = committed. */
typedef void kvt_move_observer(void *context, const kvt_move *move, kvt_status outcome);
typedef struct kvt_observer {
    kvt_move_observer *call; /* NULL = none */
    void *context;
} kvt_observer;

/* A file that the store writes its metrics and last operations to, as kvt_watch_write (watch.h). */
typedef struct kvt_watch_options {
    const char *path; /* NULL = none */
    double seconds;   /* between two such writes; 10 */
} kvt_watch_options;

/* Of put_staging_bytes: a 32nd of DRAM, between 256 MiB and 8 GiB. Whatever is asked,
 * no more than an eighth of the smallest tier. */
#define KVT_PUT_STAGING_AUTO UINT64_MAX

/* Made by kvt_store_options_init, then changed. Strings and arrays are read during kvt_open. */
typedef struct kvt_store_options {
    uint32_t struct_size;
    const char *catalog_path; /* SQLite file that lets SSD entries survive; NULL = none survive */
    const char *profile_path; /* measurements to decide on; NULL or a device without a curve = the
                                 device is measured briefly at open (reads, tenths of a second) */
    bool profile_foreign; /* accept figures of another host, device or version, and imported ones */
    bool format;          /* take over devices that carry other bytes; their content is lost */
    kvt_tier_options tiers[KVT_TIER_PLACES];
    const char *policy;   /* see policy.h; "utility" */
    kvt_variant variant;  /* form stored by the fixed policies: raw (default), lossless, or one of
                             the ladder; entries of another layout are refused then */
    bool lossless;        /* offer the lossless codec to the utility policy; true */
    double alpha_seconds; /* see policy.h */
    double hysteresis;
    kvt_hole_mode holes;
    kvt_prefill prefill; /* what recomputing costs; default: preset llama-3.1-8b:a100 */
    double high_watermark;
    double low_watermark;
    uint64_t staging_bytes;    /* memory for encoded records in motion, taken at open; 256 MiB. A
                                  larger record is granted alone; an entry that passes this is
                                  moved in the form that it has */
    double tick_seconds;       /* pause between background rounds; 0 = no background thread: call
                                  kvt_maintain yourself; 0.05 */
    uint64_t move_bytes_per_s; /* budget for background moves, bytes written; 0 = unlimited */
    uint32_t moves_per_tick;   /* 64 */
    kvt_observer observer;
    uint64_t seed;               /* 1 */
    double get_deadline_seconds; /* of kvt_get; 0 = none */
    bool ladder; /* keep lossy forms: those of the profile's calibration for ladder_layout; false */
    kvt_layout ladder_layout; /* layers, kv_heads, head_dim, sides and dtype; all others stay exact.
                               * No calibration is of one side: KVT_E_MISMATCH. tokens_may_drop 1:
                               * with the forms that drop tokens, for entries that say so, too */
    const char *ladder_model; /* by its name in the profile; NULL = any of that layout */
    const char *ladder_class; /* of texts that it was calibrated on; NULL = any */
    bool learn;           /* keep what is learned in the profile, where that may be written; true */
    double learn_seconds; /* between two such notes; also at close; 300 */
    double loss_limit;    /* no form whose loss may pass this by its upper confidence bound; 0.01 */
    /* Threads that records are encoded and decoded on, of kvt_put, kvt_get and the background; NULL
     * = the one that calls. run is called by several threads at once, and may take them one after
     * the other; it and its context last until kvt_close has returned. Staging holds scratch for
     * each worker. */
    const kvt_codec_workers *codec_workers;
    bool copies; /* with a catalog: a promotion leaves its record on SSD while nothing else needs
                    the room; true */
    bool follow_symlinks; /* the catalog and members may be symbolic links; else one is refused, but
                             for root's links to block devices; folders on the way may be; false */
    uint64_t handle_seed; /* names entries to the policy by a hash of their keys with this; 0 = with
                             a secret, drawn at the first open and kept in the catalog, or at each
                             open without one: nobody can make keys that collide, and handles (of
                             kvt_move) differ from store to store; 0 */
    double close_deadline_seconds; /* with copies: kvt_close writes back what is in HBM and DRAM
                                      alone for so long; 0 = not at all; 20 */
    uint64_t persist_bytes_per_s;  /* with copies: the background writes back into free room on
                                      SSD; 0 = none; 32 MB/s */
    uint64_t put_staging_bytes;    /* memory for entries that kvt_put has accepted and that are
                                      not written yet; mapped at open, used as needed; 0 = kvt_put
                                      returns when the entry is stored; KVT_PUT_STAGING_AUTO */
    double put_backlog_seconds;    /* of planned writes that may wait for one tier: a put that
                                      would add more is KVT_BUSY. At most four puts have a
                                      plan; put_staging_bytes bounds the others; 0 = no bound; 10 */
    kvt_watch_options watch;
    double entry_loss_limit; /* no form in which more than a tenth of the entries may lose more
                                  than this; above 0; 1 = any: loss_limit alone counts; 1 */
    const struct kvt_remote_options *remote; /* remote.h: an engine that other hosts share; NULL =
                                                none. Read during kvt_open */
} kvt_store_options;

/* Fills every field of options of struct_size bytes with its default, the one that its comment
 * names; struct_size is set. Without further changes no tier has a capacity. options is not NULL.
 * Any thread. kvt_store_options_init is the form for C and C++. */
KVT_API void kvt_store_options_init_sized(kvt_store_options *options, uint32_t struct_size);

static inline void kvt_store_options_init(kvt_store_options *options)
{
    kvt_store_options_init_sized(options, (uint32_t)sizeof *options);
}

/* Fills options from the [store], [tier.*], [device.*] and [prefill] settings; all but their
 * struct_size is overwritten. The strings and arrays point into *owner_out: release it with
 * kvt_store_options_free after kvt_open.
 * KVT_OK; KVT_E_ARGUMENT (struct_size); KVT_E_CONFIG; KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_store_options_read(kvt_config *config,
                                                        kvt_store_options *options,
                                                        void **owner_out, char *message,
                                                        size_t message_size);

/* Releases what kvt_store_options_read made: owner is its *owner_out, and options that were filled
 * with it are not used afterwards. An open store keeps nothing of it. NULL is allowed. Any thread,
 * once per owner. */
KVT_API void kvt_store_options_free(void *owner);

/*
 * Opens a store: devices, catalog, recovery of what the catalog lists, policy, background thread.
 * message gets one line for a person on failure, naming the device or file at fault; with KVT_OK it
 * is empty, or notes what was done otherwise than asked, as a capacity of HBM or DRAM that is no
 * multiple of 4 KiB and is rounded down, or that a member's file system has less room than its file
 * may still take.
 * KVT_OK; KVT_E_ARGUMENT (an option; a member that is a symbolic link, or the store's catalog; a
 * catalog with a hard link); KVT_E_SPACE (a tier larger than its devices); KVT_E_GONE,
 * KVT_E_READ_ONLY, KVT_E_IO (a device or the catalog's folder); KVT_E_LOCKED (a device or the
 * catalog is open in this process, or was for 10 s in another: one that is killed lets go late);
 * KVT_E_MISMATCH (a device holds other bytes; the catalog is older than a device; the profile is
 * another host's, version's or device's); KVT_E_CORRUPT (the catalog is damaged, or its log is
 * there without it: they are left as they are, and kvterrace recover makes a new one; or the
 * profile is damaged); KVT_E_VERSION,
 * KVT_E_DATABASE (the catalog; it is left as it is); KVT_E_UNSUPPORTED; KVT_E_MEMORY; KVT_E_THREAD.
 * Blocking.
 *
 * An open that fails removes only files that it made itself, and one that fails or is killed at any
 * point is completed by the next.
 */
KVT_API KVT_NODISCARD kvt_status kvt_open(const kvt_store_options *options, kvt_store **store_out,
                                          char *message, size_t message_size);

/* Finishes moves in flight and, with a catalog, what puts have handed over, writes entries of HBM
 * and DRAM back to SSD as kvt_persist does, within kvt_store_options.close_deadline_seconds,
 * flushes the catalog, closes everything. What is not on SSD then ends here. NULL is allowed. No
 * other call may run or follow. A device that does not answer is waited for no longer than its
 * timeout; it stays open then, and the memory that it may still use stays allocated, until
 * it answers or the process ends. In a child of fork: does nothing. */
KVT_API void kvt_close(kvt_store *store);

/* ---- put, get, delete ---- */

typedef struct kvt_entry {
    uint32_t struct_size;
    kvt_key key;
    const kvt_key *parent;    /* entry of the preceding tokens; NULL = a root; not its own */
    kvt_layout layout;        /* zero for an entry of groups */
    uint32_t first_position;  /* position of the first token in its sequence */
    double recompute_seconds; /* 0 = predict by the prefill model; required for opaque layouts to
                                 be worth storing under the utility policy */
    uint32_t
        class_id;    /* kind of request: entries of one are taken to be alike in how soon they come
                        back and what they lose; 0 = none in particular; 1 to 63 learn apart */
    uint32_t tenant; /* whose entry it is (kvt_tenant_set); below KVT_TENANTS_MAX */
    uint32_t request_tokens; /* of the requests that use it, which share alpha among their tokens; 0
                                = they end with this entry */
    uint32_t token_score_count; /* 0, or the layout's tokens */
    const float *token_scores;  /* of what each token is worth to those after it, the same for all
                                    layers: a form by scores keeps those of the highest. Finite, and
                                    not all 0; only where the layout's tokens_may_drop is 1. NULL
                                    with a count of 0 */
    double lifetime_seconds; /* from the put on; at its end the entry is a miss; 0 = no end; at most
                                1e9 */
    uint32_t group_count;    /* 0, or groups of layers, each with its own layout: 1 to
                                KVT_GROUPS_MAX */
    uint32_t reserved;
    const kvt_layout *groups; /* group_count of them; NULL with a count of 0 */
} kvt_entry;

/*
 * An entry of groups is one entry: one key, place, variant and lifetime. Full attention, a sliding
 * window of fewer tokens, an index of one side and opaque state may be its groups, up to 2^46 bytes
 * together. Its tokens are the most that a group has. Of its groups those may be stored lossy that
 * are of the ladder's shape (kvt_store_options.ladder_layout, layers aside), when they have
 * together as many layers as it; all others are stored exact. Nothing of it drops tokens: a group
 * with tokens_may_drop is KVT_E_ARGUMENT, and so are token scores.
 */

/*
 * Offers an entry. The store may decline it; what it accepts is readable at once.
 *   data    data_bytes as kvt_layout_bytes(layout) says; of an entry of groups their packed bytes,
 *           one after the other. Read until return, then the caller's again
 * The call decides, copies the bytes into the put's staging and returns; threads of the store make
 * room, encode and write behind it. While several puts are under way, they ask the policy, too:
 * what it declines then is a miss from then on, counted in puts_refused. An entry that cannot be
 * stored after all is a miss from then on: kvt_store_stats.puts_lost counts it and the next
 * kvt_flush returns the error. KVT_OK accepted; KVT_EXISTS (stored or accepted already, nothing
 * read; an entry whose basis the store lacks is dropped first, and does not count); KVT_REFUSED
 * (the policy declined, or no device is left to take it: one that does not answer for
 * kvt_device_config.timeout_ns, as a file may on a disk that others keep busy, is out of service);
 * KVT_BUSY (the store cannot keep up: the put's staging is full or a tier's writes are
 * kvt_store_options.put_backlog_seconds behind, counted in puts_busy; or the same key is on its way
 * in or out at this moment; nothing is kept: do without, or kvt_flush and put again);
 * KVT_E_ARGUMENT (also token_scores, and a parent whose layout lets tokens go); KVT_E_SPACE (no
 * room could be made); KVT_E_MEMORY. Durable only after kvt_flush.
 *
 * With put_staging_bytes 0 the call itself makes room, encodes and writes, KVT_OK means stored, and
 * KVT_E_IO is possible, too.
 */
KVT_API KVT_NODISCARD kvt_status kvt_put(kvt_store *store, const kvt_entry *entry, const void *data,
                                         uint64_t data_bytes);

/*
 * Which tokens of an entry a get was given. An entry whose layout says tokens_may_drop may have a
 * form that holds some of its tokens alone. A get is given such a form only when it has room for
 * positions; its K rows are the first ones of each matrix then, and the rows behind them are not
 * written. Of positions, [sets][K], row i of layer l is positions[i] with one set, and
 * positions[l * K + i] with a set a layer; each set ascends. A capacity of layers times the
 * layout's tokens is enough for any form; the layout's tokens are enough for those with one set.
 * Before the call struct_size, positions, capacity and rope are set.
 */
typedef struct kvt_kept_tokens {
    uint32_t struct_size;
    uint32_t count;       /* K, 0 unless KVT_OK: fewer than the layout's where some were dropped */
    uint32_t *positions;  /* the caller's, from 0 on; not written where no token was dropped. NULL
                            with a capacity of 0 */
    uint64_t capacity;    /* of positions; 0: forms that have dropped tokens are not wanted */
    const kvt_rope *rope; /* NULL, or turns the kept keys from where the tokens stood on to
                             positions without gaps, from first_position on (rope.h); nothing is
                             turned where no token was dropped */
    uint32_t sets;        /* 0: every token is there; else 1, or one a layer */
    uint32_t reserved;
} kvt_kept_tokens;

/* How a get was served. An entry that a put has handed over is copied from memory: tier DRAM, raw,
 * no device time. Before the call struct_size and kept are set; all else is overwritten. */
typedef struct kvt_get_info {
    uint32_t struct_size;
    kvt_tier tier;
    kvt_variant variant;   /* of a hit, and with KVT_E_MISMATCH */
    uint64_t stored_bytes; /* bytes read */
    uint64_t read_ns;      /* device time, queueing included; 0 = read where it lies in memory */
    uint64_t decode_ns;    /* verification and decoding */
    uint64_t predicted_ns; /* what the get was expected to take when its read began; 0 = shared */
    uint64_t elapsed_ns;   /* what it took */
    bool shared;           /* waited on another get's read */
    bool timed_out;        /* a miss for want of time: the entry may still be stored */
    bool refused_tokens;   /* a miss because the form has dropped tokens: the entry is stored */
    kvt_kept_tokens *kept; /* NULL: forms that have dropped tokens are not wanted */
} kvt_get_info;

/*
 * Reads an entry into the caller's buffer, verified: key, generation and every checksum. Waits as
 * long as kvt_store_options.get_deadline_seconds says, which is for ever by default: then until the
 * devices answer, or are unresponsive for longer than kvt_device_config.timeout_ns.
 *   data    at least the entry's decoded size; data_bytes must equal it; undefined unless KVT_OK.
 *           Of an entry of groups all of them, one after the other
 *   info    may be NULL
 * A load that fails in HBM or DRAM is tried again from the entry's copy on SSD, if there is one.
 * KVT_OK; KVT_MISS (not stored, its load failed: the entry is dropped and the event counted; or
 * info->refused_tokens); KVT_E_MISMATCH (stored in a form whose basis the store lacks; the entry
 * stays, and info->variant names the basis: basis.h); KVT_E_ARGUMENT (wrong size, of data or of
 * info; too little room for positions; a rope out of range); KVT_E_UNSUPPORTED (keys of the layout
 * do not turn as the rope says); KVT_E_MEMORY. Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_get(kvt_store *store, const kvt_key *key, void *data,
                                         uint64_t data_bytes, kvt_get_info *info);

/*
 * The same, with a deadline of its own: an instant of CLOCK_MONOTONIC in nanoseconds,
 * KVT_NO_DEADLINE for none. When it passes before the record has arrived, the get is a miss with
 * info->timed_out; the entry stays, and data is not written any more after the return, whatever a
 * device does later. The deadline bounds the waiting alone: an entry that lies in memory, and a
 * record that has arrived in time, is decoded also after it. 0 reads what is in memory and starts
 * no device.
 */
KVT_API KVT_NODISCARD kvt_status kvt_get_until(kvt_store *store, const kvt_key *key, void *data,
                                               uint64_t data_bytes, uint64_t deadline_ns,
                                               kvt_get_info *info);

/*
 * kvt_put of bytes that lie where a view says (view.h), for example in an engine's paged pool; the
 * put gathers them into its staging. The view is checked as kvt_view_check does.
 *   view   its arrays and its memory are read until return
 * Statuses as of kvt_put, and those of kvt_view_check; KVT_E_ARGUMENT for an entry of groups.
 */
KVT_API KVT_NODISCARD kvt_status kvt_put_view(kvt_store *store, const kvt_entry *entry,
                                              const kvt_view *view);

/*
 * The same of an entry of groups, with a view for each in their order; an entry without groups has
 * one.
 *   views   count of them; each may be of memory of its own. They and what they name are read until
 *           return
 *   count   the entry's group_count; another one is KVT_E_ARGUMENT
 */
KVT_API KVT_NODISCARD kvt_status kvt_put_views(kvt_store *store, const kvt_entry *entry,
                                               const kvt_view *const *views, uint32_t count);

/*
 * kvt_get_until into the places of a view; nothing between them is written. The view is checked for
 * the layout of the entry that is stored.
 *   view   its arrays are read until return; the memory that it names is undefined unless KVT_OK
 * Statuses as of kvt_get_until, and those of kvt_view_check; KVT_E_ARGUMENT for an entry of groups.
 */
KVT_API KVT_NODISCARD kvt_status kvt_get_view(kvt_store *store, const kvt_key *key,
                                              const kvt_view *view, uint64_t deadline_ns,
                                              kvt_get_info *info);

/*
 * The same of an entry of groups, with a view for each in their order; an entry without groups has
 * one. Views are not compared with each other: what two of them share is undefined.
 *   count   the entry's groups, 1 to KVT_GROUPS_MAX; another one than is stored is KVT_E_ARGUMENT
 */
KVT_API KVT_NODISCARD kvt_status kvt_get_views(kvt_store *store, const kvt_key *key,
                                               const kvt_view *const *views, uint32_t count,
                                               uint64_t deadline_ns, kvt_get_info *info);

/* KVT_OK or KVT_MISS. Does not count as a use. An entry that may lose tokens is there, too; one
 * whose basis the store lacks is not (basis.h). */
KVT_API KVT_NODISCARD kvt_status kvt_exists(kvt_store *store, const kvt_key *key);

/* Removes an entry; waits for a move of it to end, and for no read: one that has begun ends as it
 * would have, and its room comes back then. KVT_OK; KVT_MISS; KVT_BUSY (a lease
 * holds it, lookup.h). */
KVT_API KVT_NODISCARD kvt_status kvt_delete(kvt_store *store, const kvt_key *key);

/*
 * How long gets of these entries would take, one after the other, begun now: what their devices and
 * forms have lately taken, and what the devices have to do first.
 *   seconds_out   count of them; of each get alone, NAN where nothing is stored, or on a device
 *                 that is out of service
 * KVT_OK; KVT_E_ARGUMENT. Not a use.
 */
KVT_API KVT_NODISCARD kvt_status kvt_predict_loads(kvt_store *store, const kvt_key *keys,
                                                   size_t count, double *seconds_out);

/* How many leading keys are stored, by scanning from the first; holes end the run, and so does an
 * entry whose layout says tokens_may_drop, whatever its form: tokens are counted here. The lock is
 * held for 256 keys at a time, so that a long scan holds nobody up: each key counted was stored at
 * the moment at which it was looked up. The entries are not pinned: a later get may still miss.
 * KVT_OK; KVT_E_ARGUMENT. */
KVT_API KVT_NODISCARD kvt_status kvt_match_prefix(kvt_store *store, const kvt_key *keys,
                                                  size_t count, size_t *matched_out);

/* Waits until every put that has returned has ended, stored or not. Then makes every entry that is
 * on SSD now durable. One that a later get promotes stays there as a copy
 * while room allows; without its copy it is as short-lived as the tier it went to. KVT_OK.
 * Something since the last flush may not be durable: KVT_E_IO (a device or the catalog's file
 * failed), KVT_E_SPACE (the file system of the catalog is full), KVT_E_MEMORY, KVT_E_DATABASE
 * (anything else that SQLite reports). All is durable, but a put that had returned KVT_OK is not
 * stored: its KVT_E_IO, KVT_E_SPACE or KVT_E_MEMORY, the first since the last flush. Blocking. */
KVT_API KVT_NODISCARD kvt_status kvt_flush(kvt_store *store);

/* What a kvt_persist did, and what it left. */
typedef struct kvt_persist_info {
    uint32_t struct_size;
    uint64_t written, written_bytes;           /* records that the SSD did not have */
    uint64_t displaced, displaced_bytes;       /* stored entries of less worth that made way */
    uint64_t without_room, without_room_bytes; /* worth less than what the SSD holds */
    uint64_t left, left_bytes; /* the deadline had passed, also while an entry was in motion, or a
                                  device failed: not on SSD */
} kvt_persist_info;

/*
 * Makes what is in HBM and DRAM survive a restart, too: writes entries that have no record on SSD
 * there, those with the most worth per byte first, into free room and in place of entries that are
 * worth less, then does what kvt_flush does. For a shutdown that may be cut short; kvt_close does
 * the same. The entries stay where they are; gets go on meanwhile. What saves no time on SSD
 * against recomputing is not written.
 *
 * Every entry whose put had returned before the call is looked at. One that is in motion is waited
 * for, also when the background or another kvt_persist is copying it; its plan is called off if it
 * has not begun. After KVT_OK with left 0 and without_room 0, each of these entries was seen on SSD
 * during the call, or written there by it, and what is still there at the return is durable. What
 * can take it from there is what can take any entry: delete, eviction, a copy that makes way for a
 * later put or move. An entry that gets and puts keep in motion without a pause is left.
 *   deadline_ns  instant of CLOCK_MONOTONIC in nanoseconds, KVT_NO_DEADLINE for none: no record is
 *                begun, and no move is waited for, after it
 *   info_out     may be NULL; zero but after KVT_OK and a failure on the way
 * KVT_OK; KVT_E_TIMEOUT (info_out says how much is left); KVT_E_UNSUPPORTED (no catalog, no SSD
 * tier, or copies are off); what kvt_flush says; KVT_E_GONE, KVT_E_READ_ONLY (a device);
 * KVT_E_ARGUMENT. Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_persist(kvt_store *store, uint64_t deadline_ns,
                                             kvt_persist_info *info_out);

/* One round of background work in the calling thread, whether or not devices are busy with reads.
 * moves_out (may be NULL): moves committed. KVT_OK; KVT_BUSY when a round is running already.
 * Blocking. */
KVT_API KVT_NODISCARD kvt_status kvt_maintain(kvt_store *store, uint32_t *moves_out);

/* ---- what it learns ---- */

/*
 * Tells what an answer lost that was made from an entry's stored form: measured against the answer
 * from exact KV, as the store's losses are. One question says little of an entry, so it counts as
 * much as the profile's measurement has shown entries' losses to repeat; the mean of its class's
 * entries follows too.
 *   variant  the form that was read (kvt_get_info.variant)
 *   loss     1 - quality, in [0, 1]
 *   weight   of the evidence: 1 = about as much text as one entry had in the profile's measurement;
 *            above 0, at most 1000
 * KVT_OK; KVT_MISS (not stored any more); KVT_E_UNSUPPORTED (the form loses nothing, or is none of
 * the store's); KVT_E_ARGUMENT; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_observe_quality(kvt_store *store, const kvt_key *key,
                                                     kvt_variant variant, double loss,
                                                     double weight);

/* How soon entries of a class come back; all zero but the counts before anything came back. */
typedef struct kvt_reuse_class {
    uint64_t entries;                  /* watched, that were seen at all */
    uint64_t uses;                     /* of these, after their first */
    double half_life_seconds;          /* of the greatest likelihood */
    double branching;                  /* uses that one use brings about by itself */
    double log_likelihood;             /* per use; of its time since the use before, in seconds */
    double log_likelihood_exponential; /* of a constant rate per entry and class, to compare with */
    double prior_uses; /* for kvt_policy_set_prior: what a first use is worth beside a later one */
} kvt_reuse_class;

/* What was learned of a class of entries, 0 to 63. */
typedef struct kvt_class_stats {
    uint32_t struct_size;
    double loss_factor;         /* on the forms' mean losses */
    double loss_factor_upper;   /* an entry's is below with a probability of 95 % */
    uint64_t loss_observations; /* 0: the factor is 1 */
    uint64_t loss_reopened;     /* how often it had drifted, and was learned anew */
    kvt_reuse_class reuse;
} kvt_class_stats;

/* KVT_OK; KVT_END past the last class; KVT_E_ARGUMENT. */
KVT_API KVT_NODISCARD kvt_status kvt_class_stats_at(kvt_store *store, uint32_t class_id,
                                                    kvt_class_stats *out);

/*
 * Sets what a tenant wants, as kvt_policy_set_tenant; tenant 0 is everybody who is none in
 * particular. Holds from now on; nothing is moved by the call, and nothing survives a restart. No
 * tenant is allowed more loss than kvt_store_options.loss_limit where lossy forms are offered.
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_tenant_set(kvt_store *store, uint32_t tenant,
                                                const kvt_tenant *limits);

/* ---- what it does and why ---- */

/* Explains the present decision on an entry. KVT_OK; KVT_E_ARGUMENT; KVT_MISS: out is zero
 * but for its reason, which says why the last put of the key was refused, or is NULL when that is
 * not known any more. */
KVT_API KVT_NODISCARD kvt_status kvt_explain(kvt_store *store, const kvt_key *key,
                                             kvt_explanation *out);

/* How far the predictions of loads were off: gets that read for themselves. An error is relative,
 * |predicted - achieved| / achieved, of a prediction made before the read; old ones are forgotten
 * by and by. */
typedef struct kvt_load_stats {
    uint64_t loads;
    double predicted_seconds; /* sums */
    double achieved_seconds;
    double error_p50;
    double error_p90;
} kvt_load_stats;

typedef struct kvt_tier_stats {
    uint64_t capacity_bytes;
    uint64_t used_bytes; /* physical: extents held, reservations included */
    uint64_t entries;
    uint64_t bytes_read;
    uint64_t bytes_written;
    uint64_t hits; /* gets served from here */
    bool emulated; /* stands in for absent hardware */
    kvt_load_stats loads;
    uint64_t reserved[4];
} kvt_tier_stats;

/* Moves of plans, ever. */
typedef struct kvt_move_counts {
    uint64_t committed, aborted;
    uint64_t failed_io;     /* of aborted: a device failed; */
    uint64_t failed_space;  /* no room for the record at its target, or a full device; */
    uint64_t failed_memory; /* no memory; */
    uint64_t failed_larger; /* the record came out larger than was planned. The others were planned
                               behind one that failed */
    uint64_t deferred;      /* put off for a round by the background, because reads that somebody
                               waits for kept a device busy; each round counts */
} kvt_move_counts;

/* Records on SSD beside entries in HBM and DRAM. */
typedef struct kvt_copy_counts {
    uint64_t count, bytes;  /* now; the bytes are in the tier's used_bytes */
    uint64_t kept, dropped; /* by promotions, and for room or a device, ever */
    uint64_t demotions;     /* that found their record on SSD and wrote nothing */
    uint64_t fallbacks;     /* failed loads that the copy stood in for */
    uint64_t evictions;     /* from above, that left the entry with its record on SSD */
} kvt_copy_counts;

/* Figures that were learned, ever. */
typedef struct kvt_learning_counts {
    uint64_t reopened;       /* curves of devices that had drifted, and were taken up anew */
    uint64_t recosted;       /* entries whose options got new figures for that */
    uint64_t curves_rebased; /* measured curves that what is achieved took the place of */
    uint64_t puts_refused;   /* puts that speeds learned lately refused: the measured curves would
                                have taken them */
    uint64_t puts_tried; /* puts stored against the figures, to time a tier that takes nothing */
} kvt_learning_counts;

/* Entries that sparse sequences read where they lie now, so that they stay. */
typedef struct kvt_in_place {
    uint64_t entries;
    uint64_t bytes[KVT_TIER_PLACES]; /* of the tiers' used bytes */
} kvt_in_place;

typedef struct kvt_record_counts {
    uint64_t records, bytes;
} kvt_record_counts;

typedef struct kvt_store_stats {
    uint32_t struct_size; /* set by the caller */
    kvt_tier_stats tiers[KVT_TIER_PLACES];
    uint64_t puts, puts_refused, puts_existing, gets, misses, shared_reads;
    uint64_t load_failures;  /* gets that failed verification or I/O and became misses */
    uint64_t recovered;      /* entries taken over from the catalog at open */
    uint64_t recovery_drops; /* rows dropped at open: unreadable, or on a device that is not ours */
    kvt_move_counts moves;
    uint64_t promotions, demotions, evictions;
    uint64_t decision_ns_p50, decision_ns_p99;
    kvt_record_counts relayouts; /* laid out anew in their tier: drifted devices, drains */
    uint64_t quarantined;        /* entries set aside because a device went, ever */
    uint64_t readmitted;         /* and of those, the ones that came back with it */
    uint64_t timeouts;           /* gets whose deadline passed: misses of entries that are stored */
    uint64_t staging_bytes; /* memory of records in motion now; unresponsive devices keep theirs */
    kvt_learning_counts learned;
    kvt_policy_stats policy;
    uint64_t given_up; /* entries dropped: a put needed their room, and none was left to move to */
    uint64_t backing_off; /* entries now that no plan moves for a while, because a move failed */
    kvt_copy_counts copies;
    kvt_record_counts persisted; /* written back by kvt_persist and in the background */
    uint64_t puts_busy;          /* puts refused because the store could not keep up */
    uint64_t puts_waiting;       /* puts that have returned and are not written yet, now */
    uint64_t put_staging_bytes;  /* memory that their entries take, now */
    uint64_t puts_lost;          /* puts that returned KVT_OK and could not be stored, ever */
    uint64_t staged_hits; /* of the gets, those copied from the staging of a put; counted as hits of
                             DRAM, too */
    uint64_t expired;     /* entries removed because their lifetime had ended, ever */
    uint64_t refused_tokens; /* gets that had not asked for fewer tokens than were put, of forms
                                that have dropped some: misses of entries that are stored */
    uint64_t refused_loss;   /* gets of forms that may lose more than the get accepts: misses */
    uint64_t lent_bytes[KVT_TIER_PLACES]; /* of tiers, lent to sparse sequences now: not the
                                             policy's to fill */
    uint64_t lacked_basis; /* gets of entries whose basis the store lacks (basis.h): KVT_E_MISMATCH,
                                counted in misses, too */
    kvt_in_place in_place;
    uint64_t catalog_log_bytes; /* of SQLite's log beside the catalog, after its last batch */
} kvt_store_stats;

/*
 * Copies the counters and gauges of the store and its tiers as of now; "ever" counts from the open.
 *   stats   struct_size is set to sizeof(kvt_store_stats) by the caller; all else is overwritten
 * KVT_OK; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_STATE (in a child of fork). Any thread;
 * takes short locks, does no I/O.
 */
KVT_API KVT_NODISCARD kvt_status kvt_stats(kvt_store *store, kvt_store_stats *stats);

/* One device of a store: its facts, its use and what was learned of its speed. */
typedef struct kvt_device_stats {
    uint32_t struct_size;
    char name[32];
    kvt_tier tier;
    kvt_device_facts facts;
    uint64_t used_bytes;
    uint64_t bytes_read, bytes_written, requests;
    double read_bytes_per_s, write_bytes_per_s; /* at open; then as achieved, while it was busy */
    bool retired;                               /* failed; its entries are misses */
    bool reopened; /* it has drifted since the open: measure it anew (kvterrace profile devices) */
    double weight_bytes_per_s; /* that placement counts on now */
    uint64_t pending_bytes;    /* queued and not finished, approximately */
    uint64_t free_bytes;       /* fragmentation: the largest range and how many */
    uint64_t free_bytes_largest;
    uint32_t free_ranges;
    kvt_device_state state;
    uint64_t bytes_written_ever;         /* over restarts, as far as the catalog knows */
    uint64_t write_budget_bytes_per_day; /* 0 = none; */
    uint64_t write_budget_left_bytes;    /* at 0 new units go to other devices */
    kvt_affine read_learned; /* seconds of one load's part, as achieved: residual is the spread of
                                single ones; bytes_per_s 0 = nothing learned yet */
    kvt_affine write_learned;
    double read_drift; /* how far that is off the curve of the open, relatively, at 1 MiB */
} kvt_device_stats;

/* Copies what is known of one device into *out. index counts over the devices of all tiers, from 0.
 * KVT_OK; KVT_END past the last; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_STATE (in a child of
 * fork). Any thread; takes short locks, does no I/O. */
KVT_API KVT_NODISCARD kvt_status kvt_device_stats_at(kvt_store *store, size_t index,
                                                     kvt_device_stats *out);

/* ---- what is out of order ---- */

typedef enum kvt_health_kind {
    KVT_HEALTH_FILE = 1,   /* the catalog: what is put or deleted now may not survive; or, with
                              KVT_E_LOCKED, its log, which a reader keeps growing */
    KVT_HEALTH_THREAD = 2, /* one of the store's own has ended */
    KVT_HEALTH_DEVICE = 3, /* out of service, or its last write failed */
    KVT_HEALTH_PUT = 4,    /* an entry was accepted and could not be stored */
    KVT_HEALTH_BASIS = 5,  /* stored entries need bases that the store lacks (basis.h) */
    KVT_HEALTH_HOSTS =
        6 /* a node that other hosts share is out of service, or fails a kind of work */
} kvt_health_kind;

typedef struct kvt_health_item {
    uint32_t struct_size;
    kvt_health_kind kind;
    kvt_status status; /* an error */
    char name[64];     /* of the device, thread or node; of the file's path, the end */
    double seconds;    /* for so long; 0 = not known */
    char text[192];    /* one sentence for a person */
} kvt_health_item;

/*
 * What is out of order now; the gravest first: the catalog, then threads, devices, puts, bases, the
 * catalog's log, nodes of other hosts.
 *   items        may be NULL with capacity 0; else items[0].struct_size is set by the caller, the
 *                distance from one item to the next, and is written to each
 *   count_out    how many there are, which may be more than capacity; 0 = all is in order
 *   overall_out  KVT_OK, or the status of the first; may be NULL
 * A device is reported until it serves again (kvt_store_device_add), a failed write until the next
 * one succeeds, the catalog until a batch is committed, puts until kvt_flush returns their error,
 * bases until they are added or nothing needs them, a node until it does what it has failed. A
 * thread that has ended does not come back: its device is out of service, the catalog's writer
 * leaves what is put to this life, and without the background kvt_maintain is the caller's. KVT_OK;
 * KVT_E_ARGUMENT; KVT_E_STATE (in a child of fork). Any thread; takes short locks, waits for no
 * I/O.
 */
KVT_API KVT_NODISCARD kvt_status kvt_health(kvt_store *store, kvt_health_item *items,
                                            size_t capacity, size_t *count_out,
                                            kvt_status *overall_out);

/* ---- devices that come and go (docs/TIERS.md) ---- */

typedef enum kvt_device_action {
    KVT_DEVICE_DRAIN = 1, /* move what lies there to other devices of the tier, in the background */
    KVT_DEVICE_SERVE = 2, /* end a drain */
    KVT_DEVICE_RETIRE = 3, /* out of service now: what lies there are misses */
    KVT_DEVICE_REMOVE = 4  /* close a device that is drained and empty, or out of service */
} kvt_device_action;

/*
 * Changes what a device of the store is for; name is the one in its configuration. Serving goes on.
 * A drain is done when kvt_device_stats_at shows used_bytes 0. KVT_OK; KVT_E_ARGUMENT (no such
 * device); KVT_E_STATE (it is out of service, for drain and serve); KVT_BUSY (remove: something
 * lies there, or it has not answered all requests). Remove and retire may wait for readers.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_device_change(kvt_store *store, const char *name,
                                                         kvt_device_action action);

/*
 * Brings a device in while the store serves. A name that the tier has, of a device that is out of
 * service or removed, puts it back into its place: with the label of this store and this life its
 * entries come back, with an older one or none it is taken as empty. Another name becomes the
 * tier's next device; put it at the end of the tier's devices when the store is opened again.
 *   config   read until return
 *   message  one line for a person on failure; may be NULL with message_size 0
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (the store has no such tier); KVT_E_STATE (a device of
 * that name serves); KVT_BUSY (requests to the old device are in flight, or entries on it are in
 * motion: try again); KVT_E_MISMATCH (it holds other bytes, and store.format is not set); what
 * kvt_device_open says; KVT_E_DATABASE. Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_device_add(kvt_store *store, kvt_tier tier,
                                                      const kvt_device_config *config,
                                                      char *message, size_t message_size);

/* Batches, layered loads, leases and prefixes are in queue.h, load.h and lookup.h; names, lifetimes
 * and clearing in names.h; metrics and events in watch.h. */

#ifdef __cplusplus
}
#endif

#endif
