/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvterrace - a KV-cache store for LLM serving on one host.
 *
 * kvterrace keeps the KV cache of token runs ("entries") in GPU memory, host memory and SSDs. For
 * every entry it decides by marginal utility where it lives and in which variant, moves it when the
 * decision changes, and gives it back bit for bit unless the caller allows loss.
 *
 *     #include <kvterrace/kvterrace.h>
 *
 *     kvt_store_options options;
 *     kvt_store_options_init(&options);
 *     options.tiers[KVT_TIER_DRAM].capacity_bytes = 64 << 20;
 *     kvt_store *store;
 *     char message[256];
 *     kvt_status status = kvt_store_open(&options, &store, message, sizeof message);
 *     if (status != KVT_OK) return fail(message);
 *
 *     kvt_entry entry = {.struct_size = sizeof entry, .key = key};
 *     entry.layout = (kvt_layout){.layers = 4, .kv_heads = 2, .head_dim = 64,
 *                                 .dtype = KVT_DTYPE_BF16, .tokens = 256};
 *     kvt_view view = kvt_view_packed(kv, kv_bytes);
 *     status = kvt_store_put(store, &entry, &view);
 *     if (status == KVT_OK) status = kvt_store_get(store, &key, &view, KVT_NO_DEADLINE, NULL);
 *     if (status == KVT_MISS) recompute();
 *     kvt_store_close(store);
 *
 * The whole program is examples/example.c; it is built and run by the tests.
 *
 * Words: an entry is the KV cache of one run of tokens of one sequence; its key names its content;
 * its parent is the entry that holds the preceding tokens; its layout says what its bytes are.
 *
 * Processes: a store belongs to the process that opened it. In a child of fork every call on it
 * returns KVT_E_STATE at once, and kvt_store_close does nothing, so that the parent's store stays
 * whole; the child's copy of its memory goes when the child ends. A child may open stores of its
 * own. The parent's devices stay locked until the child, too, has ended or called exec.
 *
 * Thread rule: every function on a kvt_store may be called from any thread, open and close
 * excepted. Lookups (exists, match, stats, explain) only take a short lock; they never do
 * I/O. The store's own threads block all signals, so that handlers run on the caller's threads.
 */
#ifndef KVTERRACE_KVTERRACE_H
#define KVTERRACE_KVTERRACE_H

#include "codec.h"
#include "device.h"
#include "policy.h"
#include "prefill.h"
#include "types.h"
#include "view.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvt_config; /* config.h */
struct kvt_rope;   /* rope.h */

/* ---- version ---- */

#define KVT_VERSION_MAJOR 0
#define KVT_VERSION_MINOR 2
#define KVT_VERSION_PATCH 0

/* "0.2.0": the version of the library that runs, which may differ from the header's. */
KVT_API const char *kvt_version(void);

/* ---- open and close ---- */

typedef struct kvt_store kvt_store;

/* How the records of a tier lie on its devices: docs/TIERS.md, Placement. */
typedef enum kvt_placement {
    KVT_PLACE_PROPORTIONAL = 0, /* stripe units by measured bandwidth */
    KVT_PLACE_EQUAL = 1,        /* as many units to each device; a baseline */
    KVT_PLACE_ROUND_ROBIN = 2,  /* units in turn; a baseline */
    KVT_PLACE_TENSOR = 3,       /* as proportional, each layer's K or V whole on one device */
    KVT_PLACE_ENTRY = 4         /* a record whole on one device, devices in turn by bandwidth */
} kvt_placement;

/* One tier of a store. HBM and DRAM without devices get one memory device of their capacity. */
typedef struct kvt_tier_options {
    uint64_t capacity_bytes;          /* budget for records; 0 = what its devices hold, or absent */
    const kvt_device_config *devices; /* read during kvt_store_open only */
    uint32_t device_count;
    uint32_t unit_bytes; /* stripe unit, a multiple of 4096; 0 = 256 KiB */
    bool weights_fixed;  /* shares stay as measured at open; else they follow the measured speeds */
    bool emulated;       /* HBM without devices: memory of the host, no GPU is looked for */
    uint64_t rebalance_bytes_per_s; /* for hot objects whose layout fell behind; 0 = none
                                     * (default 32 MB/s) */
    const char *slots; /* sizes of places that are made ahead: FORM@TOKENS of loss.ladder_layout, as
                          "planes:k4v4,g64@256", or a record's bytes, as "1280KiB"; several with
                          commas; NULL = none */
    uint32_t placement;     /* a kvt_placement */
    uint32_t reserved_word; /* zero */
    uint64_t reserved[2];
} kvt_tier_options;

/* Called after a move was carried out, in the order of execution. It holds no lock that the callee
 * could need, but the callee must not call into the store. outcome KVT_OK = committed. */
typedef void kvt_move_observer(void *context, const kvt_move *move, kvt_status outcome);
typedef struct kvt_observer {
    kvt_move_observer *call; /* NULL = none */
    void *context;
} kvt_observer;

/* A file to which the store writes its metrics and last operations (kvt_watch_write, watch.h). */
typedef struct kvt_watch_options {
    const char *path; /* NULL = none */
    double seconds;   /* between two writes of it; 10 */
} kvt_watch_options;

/* A 32nd of DRAM, 256 MiB to 8 GiB. No value takes more than an eighth of the smallest tier. */
#define KVT_PUT_STAGING_AUTO UINT64_MAX

/* Means by which entries outlive the process. */
typedef struct kvt_durability_options {
    const char *catalog_path; /* SQLite file that lets SSD entries survive; NULL = none survive */
    bool copies; /* with a catalog: a promotion leaves its record on SSD while it has room; true */
    double close_deadline_seconds; /* with copies: how long kvt_store_close writes entries that are
                                      in HBM and DRAM alone to SSD; 0 = not at all; 20 */
    uint64_t persist_bytes_per_s;  /* with copies: how fast the background writes such entries into
                                      free room on SSD; 0 = not at all; 32 MB/s */
} kvt_durability_options;

/* Measurements that the store decides on, and what it adds to them. */
typedef struct kvt_learning_options {
    const char *profile_path; /* NULL or a device without a curve = the device is measured briefly
                                 at open (reads, tenths of a second) */
    bool profile_foreign; /* accept figures of another host, device or version, and imported ones */
    bool learn;           /* keep learned figures in the profile, if it can be written; true */
    double learn_seconds; /* between two writes of them; also at close; 300 */
} kvt_learning_options;

/* Whether entries may be stored lossy, and how much they may lose. */
typedef struct kvt_loss_options {
    bool ladder; /* offer the lossy variants of the profile's calibration of ladder_layout; false */
    kvt_layout ladder_layout; /* layers, kv_heads, head_dim, sides and dtype of the entries that may
                               * be lossy; all others stay exact. One side: entries of K alone and
                               * of V alone, of whichever width, of the calibrated model; never
                               * MLA's latent, which is both. tokens_may_drop 1: with the variants
                               * that drop tokens, for entries whose layout says so, too */
    const char *ladder_model; /* by its name in the profile; NULL = any of that layout */
    const char *ladder_class; /* of texts that it was calibrated on; NULL = any */
    double alpha_seconds;     /* see policy.h */
    double alpha_prefills;
    double loss_limit; /* no variant whose loss passes this by its upper confidence bound; 0.01 */
    double entry_loss_limit; /* no variant in which more than a tenth of the entries may lose more
                                than this; above 0; 1 = loss_limit alone counts; 1 */
} kvt_loss_options;

/* How much memory, time and bandwidth the store takes beside its tiers. */
typedef struct kvt_limit_options {
    double high_watermark; /* see policy.h */
    double low_watermark;
    uint64_t staging_bytes;      /* memory for encoded records in motion, taken at open; 256 MiB. A
                                   larger record is granted alone; an entry larger than this is
                                   moved in the variant that it has */
    uint64_t put_staging_bytes;  /* memory for entries that kvt_store_put has accepted and that are
                                   not written yet; mapped at open, used as needed; 0: a put
                                   returns when the entry is stored; KVT_PUT_STAGING_AUTO */
    double put_backlog_seconds;  /* of planned writes that may wait for one tier: a put that would
                                   add more is KVT_BUSY. At most four puts have a plan;
                                   put_staging_bytes bounds the others; 0 = no bound; 10 */
    double get_deadline_seconds; /* of kvt_store_get with KVT_STORE_DEADLINE; 0 = none */
    double tick_seconds;         /* pause between background rounds; 0 = no background thread: call
                                    kvt_store_maintain yourself; 0.05 */
    uint64_t move_bytes_per_s;   /* budget for background moves, bytes written; 0 = unlimited */
    uint32_t moves_per_tick;     /* 64 */
} kvt_limit_options;

/* In which order a device begins operations (docs/TIERS.md, Passes and slack). */
typedef enum kvt_io_order {
    KVT_IO_READS_FIRST = 0, /* reads that somebody waits for, other reads, puts, background */
    KVT_IO_FIFO = 1,        /* as they came */
    KVT_IO_ROUND_ROBIN = 2, /* a read and a write in turn */
    KVT_IO_TABLE = 3,       /* writes in what a layer's computing leaves of the device */
    KVT_IO_SLACK = 4        /* writes that make no layer of an announced pass late (load.h) */
} kvt_io_order;

/* When devices write. */
typedef struct kvt_io_options {
    kvt_io_order order;            /* KVT_IO_SLACK */
    uint32_t reserved;             /* zero */
    double write_grain_seconds;    /* order slack: a read that nobody foresaw waits for writes no
                                      longer; 0.002 */
    double write_patience_seconds; /* orders table and slack: writes that have waited for so long
                                      get a twentieth of the device's time, and a pass that has
                                      stopped for so long no longer counts; 10 */
} kvt_io_options;

/* Made by kvt_store_options_init, then changed. kvt_store_open copies strings and arrays. */
typedef struct kvt_store_options {
    uint32_t struct_size;
    bool format;          /* take over devices that carry other bytes; their content is lost */
    bool follow_symlinks; /* the catalog and members may be symbolic links; else a link is refused,
                             except one of root's to a block device. Folders of the path may be
                             links in either case; false */
    bool lossless;        /* offer the lossless codec to the utility policy; true */
    kvt_tier_options tiers[KVT_TIER_PLACES];
    kvt_limit_options limits;
    kvt_loss_options loss;
    kvt_learning_options learning;
    kvt_durability_options durability;
    const char *policy;  /* see policy.h; "utility" */
    kvt_variant variant; /* stored by the fixed policies: raw (default), lossless, or one of the
                             ladder; entries of another layout than the ladder's are refused then */
    double hysteresis;   /* see policy.h, as holes */
    kvt_hole_mode holes;
    kvt_prefill prefill;  /* what recomputing costs; default: preset llama-3.1-8b:a100 */
    uint64_t seed;        /* 1 */
    uint64_t handle_seed; /* names entries to the policy by a hash of their keys with this seed. 0 =
                             a secret one, drawn at the first open and kept in the catalog, or drawn
                             at each open without a catalog: nobody can make keys that collide, and
                             handles (of kvt_move) differ from store to store; 0 */
    /* Threads on which kvt_store_put, kvt_store_get and the background encode and decode records;
     * NULL = the thread that calls. Several threads call run at once; it may serve one after the
     * other. run and its context last until kvt_store_close returns. Staging holds scratch for
     * each worker. */
    const kvt_codec_workers *codec_workers;
    kvt_observer observer;
    kvt_watch_options watch;
    const struct kvt_remote_options *remote; /* remote.h: an engine that hosts share; NULL = none */
    /* Opens a follower: it reads what the store of another process (the owner) has on SSD, beside
     * it, by catalog_path and the SSD tier's devices of back end "file", in the owner's order. Only
     * these, follow_symlinks and get_deadline_seconds count then. It takes no lock, makes and
     * writes no file, and the owner need not run; but no owner may be opened in its process.
     * Entries that the owner has flushed are found; those in HBM and DRAM alone are misses. get,
     * exists, describe, match without worth and load_seconds, prefix_get, stats of gets, health,
     * queues, flush and close work; a put is KVT_REFUSED, all else KVT_E_UNSUPPORTED: loads, some
     * layers, info->kept. The open is KVT_E_GONE without a catalog. A lost device is tried again */
    bool follow;
    bool serve_early;    /* gets before the rows are read: watch.h, kvt_store_wait; false */
    uint8_t reserved[6]; /* zero */
    kvt_io_options io;
    const struct kvt_pass_row *pass_rows; /* load.h: for passes that announce no seconds; NULL */
    uint64_t pass_row_count;
    kvt_gpu_options gpu;
    kvt_scrub_options scrub;
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
 * kvt_store_options_free after kvt_store_open.
 * KVT_OK; KVT_E_ARGUMENT (struct_size); KVT_E_CONFIG; KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_store_options_read(struct kvt_config *config,
                                                        kvt_store_options *options,
                                                        void **owner_out, char *message,
                                                        size_t message_size);

/* Releases what kvt_store_options_read made: owner is its *owner_out, and options that were filled
 * with it are not used afterwards. An open store keeps none of it. NULL is allowed. Any thread. */
KVT_API void kvt_store_options_free(void *owner);

/*
 * Opens a store: devices, catalog, recovery of what the catalog lists, policy, background thread.
 * message gets one line for a person on failure, naming the device or file at fault; with KVT_OK it
 * is empty, or notes what was done otherwise than asked, as a capacity of HBM or DRAM that is no
 * multiple of 4 KiB and is rounded down, or that a member's file system has less room than its file
 * may still take. KVT_OK; KVT_E_ARGUMENT (an option; a member that is a symbolic link, or the
 * store's catalog; a catalog with a hard link); KVT_E_SPACE (a tier larger than its devices);
 * KVT_E_GONE, KVT_E_READ_ONLY, KVT_E_IO (a device or the catalog's folder); KVT_E_LOCKED (a device
 * or the catalog is open in this process, or was for 10 s in another: one that is killed lets go
 * late); KVT_E_MISMATCH (a device holds other bytes; the catalog is older than a device; the
 * profile is another host's, version's or device's); KVT_E_CORRUPT (the catalog is damaged, or its
 * log is there without it: they are left as they are, and kvterrace recover makes a new one; or the
 * profile is damaged); KVT_E_VERSION, KVT_E_DATABASE (the catalog; it is left as it is);
 * KVT_E_UNSUPPORTED; KVT_E_MEMORY; KVT_E_THREAD. Blocking.
 *
 * An open that fails removes only files that it made itself, and one that fails or is killed at any
 * point is completed by the next.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_open(const kvt_store_options *options,
                                                kvt_store **store_out, char *message,
                                                size_t message_size);

/* Closes a store: finishes moves in flight and, with a catalog, puts that have been handed over;
 * writes entries of HBM and DRAM back to SSD as kvt_store_persist does, within
 * kvt_durability_options.close_deadline_seconds; flushes the catalog; closes all files and devices.
 * Entries that are not on SSD by then are lost. NULL is allowed. No other call may run or follow.
 * A device that does not answer is waited for no longer than its timeout; it stays open then, and
 * the memory that it may still use stays allocated, until it answers or the process ends. In a
 * child of fork: does nothing. */
KVT_API void kvt_store_close(kvt_store *store);

/* ---- put, get, delete ---- */

typedef struct kvt_entry {
    uint32_t struct_size;
    kvt_key key;
    const kvt_key *parent;   /* of the preceding tokens; NULL = a root; never the entry's own key */
    kvt_layout layout;       /* zero for an entry of groups */
    uint32_t first_position; /* position of the first token in its sequence */
    double recompute_seconds; /* 0 = predict by the prefill model; required for opaque layouts to
                                 be worth storing under the utility policy */
    uint32_t
        class_id;    /* kind of request: entries of one are taken to be alike in how soon they come
                        back and what they lose; 0 = none in particular; 1 to 63 learn apart */
    uint32_t tenant; /* whose entry it is (kvt_tenant_set); below KVT_TENANTS_MAX */
    uint32_t request_tokens; /* of the requests that use it, which share alpha among their tokens; 0
                                = they end with this entry */
    uint32_t token_score_count; /* 0, or the layout's tokens */
    const float *token_scores;  /* how much each token is worth to the tokens after it, the same for
                                    all layers: drop:scores keeps the highest. Finite, and not all
                                    0; only where the layout's tokens_may_drop is 1. NULL with a
                                    count of 0 */
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
 * together. The entry counts as many tokens as its longest group. Groups of the ladder's shape
 * (kvt_loss_options.ladder_layout, layers aside) may be stored lossy when together they have K and
 * V of as many layers as the ladder, in groups of both or of K alone and V alone, whose width is
 * any; all others are stored exact. No group drops tokens: one with
 * tokens_may_drop is KVT_E_ARGUMENT, and so are token scores.
 */

/*
 * Offers an entry. The store may decline it; what it accepts is readable at once.
 *   view    where its bytes are (view.h): a packed buffer, a paged pool, or a view for each group.
 *           It is checked as kvt_view_check does; its arrays and its memory are read until return
 * The call decides, copies the bytes into the put's staging and returns; threads of the store make
 * room, encode and write behind it. While several puts are under way these threads ask the policy
 * after the call has returned; an entry that it declines then becomes a miss, counted in
 * puts_refused. An entry that was accepted and cannot be stored becomes a miss, too:
 * kvt_store_stats.puts_lost counts it and the next kvt_store_flush returns the error.
 * KVT_OK (accepted); KVT_EXISTS (stored or accepted already, nothing was read; a stored entry whose
 * basis the store lacks does not count: it is dropped, and the new one is taken); KVT_REFUSED
 * (the policy declined, or no device is left to take it: one that does not answer for
 * kvt_device_config.timeout_ns, as a file may on a disk that others keep busy, is out of service);
 * KVT_BUSY (the store cannot keep up: the put's staging is full or a tier's writes are
 * kvt_limit_options.put_backlog_seconds behind, counted in puts_busy; or the same key is on its way
 * in or out at this moment; nothing is kept: do without, or kvt_store_flush and put again);
 * KVT_E_ARGUMENT (also the view, token_scores, and a parent whose layout lets tokens go);
 * KVT_E_SPACE (no room could be made, or loads held it for a second); KVT_E_UNSUPPORTED (the view);
 * KVT_E_MEMORY. Durable only after kvt_store_flush.
 *
 * With put_staging_bytes 0 the call itself makes room, encodes and writes, KVT_OK means stored, and
 * KVT_E_IO is possible, too.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_put(kvt_store *store, const kvt_entry *entry,
                                               const kvt_view *view);

/*
 * Which tokens of an entry a get was given. An entry whose layout says tokens_may_drop may be
 * stored in a variant that holds K of its tokens alone. A get is served from such a variant only
 * when the caller gives room for positions; the first K rows of each matrix are written then, and
 * no others. positions is [sets][K]: with one set row i of every layer is token positions[i], with
 * a set a layer row i of layer l is token positions[l * K + i]; each set ascends. A capacity of
 * layers times the layout's tokens is always enough; the layout's tokens are enough for variants
 * with one set. Before the call struct_size, positions, capacity and rope are set.
 */
typedef struct kvt_kept_tokens {
    uint32_t struct_size;
    uint32_t count;      /* K, 0 unless KVT_OK: fewer than the layout's where some were dropped */
    uint32_t *positions; /* the caller's, from 0 on; not written where no token was dropped. NULL
                            with a capacity of 0 */
    uint64_t capacity;   /* of positions; 0: variants that drop tokens are not wanted */
    const struct kvt_rope *rope; /* NULL, or turns the kept keys from their tokens' old positions to
                             positions without gaps, from first_position on (rope.h); nothing is
                             turned where no token was dropped */
    uint32_t sets;               /* 0: every token is there; else 1, or one a layer */
    uint32_t reserved;
} kvt_kept_tokens;

/* How a get was served. An entry whose put is not written yet is copied from the put's staging:
 * tier DRAM, raw, no device time. Before the call struct_size and kept are set; all else is
 * overwritten. */
typedef struct kvt_get_info {
    uint32_t struct_size;
    kvt_tier tier;
    kvt_variant variant;   /* of a hit, and with KVT_E_MISMATCH */
    uint64_t stored_bytes; /* bytes read */
    uint64_t read_ns;      /* device time, queueing included; 0 = read where it lies in memory */
    uint64_t decode_ns;    /* verification and decoding, partly while the rest is read */
    uint64_t predicted_ns; /* expected when its read began; 0 = shared, or of a GPU not measured */
    uint64_t elapsed_ns;   /* that it took */
    bool shared;           /* waited on another get's read */
    bool timed_out;        /* a miss for want of time: the entry may still be stored */
    bool refused_tokens;   /* a miss because the variant drops tokens: the entry is stored */
    kvt_kept_tokens *kept; /* NULL: variants that drop tokens are not wanted */
} kvt_get_info;

/* As a deadline of kvt_store_get: kvt_limit_options.get_deadline_seconds from now. */
#define KVT_STORE_DEADLINE (UINT64_MAX - 1)

/*
 * Reads an entry to where a view says, verified: key, generation and every checksum.
 *   view         a packed buffer of the entry's size, or places that are checked for the layout of
 *                the entry that is stored, as kvt_view_check does; of an entry of groups a view for
 *                each, which are not compared with each other. Its arrays are read until return;
 *                its memory is undefined unless KVT_OK, and nothing between the places is written
 *   deadline_ns  an instant of CLOCK_MONOTONIC in nanoseconds; KVT_NO_DEADLINE: until the devices
 *                answer or have been unresponsive for kvt_device_config.timeout_ns;
 *                KVT_STORE_DEADLINE. It bounds the waiting alone: an entry that lies in memory, or
 *                whose record has arrived in time, is decoded even after the deadline. With 0 the
 *                get reads entries in memory and starts no device. A get whose deadline passes is a
 *                miss with info->timed_out: the entry stays, and the memory is not written any more
 *                after the return, whatever a device does later
 *   info         may be NULL
 * A load that fails in HBM or DRAM is tried again from the entry's copy on SSD, if there is one.
 * KVT_OK; KVT_MISS (not stored; or its load failed, which is counted: a damaged entry is
 * dropped, any other stays; or
 * info->refused_tokens); KVT_E_MISMATCH (stored in a variant whose basis the store lacks; the entry
 * stays, and info->variant names the basis: basis.h); KVT_E_ARGUMENT (the view, such as a buffer of
 * another size; the info; too little room for positions; a rope out of range); KVT_E_UNSUPPORTED
 * (the view; keys of the layout do not turn as the rope says); KVT_E_MEMORY. Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_get(kvt_store *store, const kvt_key *key,
                                               const kvt_view *view, uint64_t deadline_ns,
                                               kvt_get_info *info);

/* Whether an entry is stored: KVT_OK or KVT_MISS. Not a use. An entry whose layout says
 * tokens_may_drop counts as stored, one whose basis the store lacks does not (basis.h). */
KVT_API KVT_NODISCARD kvt_status kvt_store_exists(kvt_store *store, const kvt_key *key);

/* Removes an entry. Waits for a move of it to end, and for no read: a read that has begun goes on
 * to its end, and the room is free after it. KVT_OK; KVT_MISS; KVT_BUSY (a lease, lookup.h). */
KVT_API KVT_NODISCARD kvt_status kvt_store_delete(kvt_store *store, const kvt_key *key);

/* Waits until every put that has returned is written or has failed, then makes every entry that is
 * on SSD durable. An entry that a later get promotes keeps a copy on SSD while room allows; without
 * the copy it survives no longer than the tier it went to. KVT_OK. When something since the last
 * flush may not be durable: KVT_E_IO (a device or the catalog's file failed), KVT_E_SPACE (the file
 * system of the catalog is full), KVT_E_MEMORY, KVT_E_DATABASE (anything else that SQLite reports).
 * When all is durable, but an entry whose put had returned KVT_OK could not be stored: the
 * KVT_E_IO, KVT_E_SPACE or KVT_E_MEMORY of the first such put since the last flush. Blocking. */
KVT_API KVT_NODISCARD kvt_status kvt_store_flush(kvt_store *store);

/* How many entries a kvt_store_persist wrote, displaced and left. */
typedef struct kvt_persist_info {
    uint32_t struct_size;
    uint64_t written, written_bytes;           /* records that the SSD did not have */
    uint64_t displaced, displaced_bytes;       /* stored entries of less worth that made way */
    uint64_t without_room, without_room_bytes; /* worth less than the entries on SSD: not written */
    uint64_t left, left_bytes; /* the deadline had passed, also while an entry was in motion, or a
                                  device failed: not on SSD */
} kvt_persist_info;

/*
 * Makes entries of HBM and DRAM survive a restart, too: writes those that have no record on SSD
 * there, the ones worth most per byte first, into free room and in place of entries that are
 * worth less, then flushes as kvt_store_flush does. For a shutdown that may be cut short;
 * kvt_store_close does the same. The entries stay where they are; gets go on meanwhile. An entry
 * that loads from SSD no sooner than it is recomputed is not written.
 *
 * Every entry whose put had returned before the call is looked at. The call waits for one that is
 * in motion, also when the background or another kvt_store_persist is copying it; a planned move
 * that has not begun is called off. After KVT_OK with left 0 and without_room 0, each of these
 * entries was on SSD during the call, or the call has written it there, and those that are still on
 * SSD at the return are durable. A delete, an eviction, or a later put or move that needs a copy's
 * room can still remove one. An entry that gets and puts keep in motion without a pause is left.
 *   deadline_ns  instant of CLOCK_MONOTONIC in nanoseconds, KVT_NO_DEADLINE for none: no record is
 *                begun, and no move is waited for, after it
 *   info_out     may be NULL; zero but after KVT_OK and a failure on the way
 * KVT_OK; KVT_E_TIMEOUT (info_out says how much is left); KVT_E_UNSUPPORTED (no catalog, no SSD
 * tier, or copies are off); what kvt_store_flush says; KVT_E_GONE, KVT_E_READ_ONLY (a device);
 * KVT_E_ARGUMENT. Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_persist(kvt_store *store, uint64_t deadline_ns,
                                                   kvt_persist_info *info_out);

/* One round of background work in the calling thread, whether or not devices are busy with reads.
 * moves_out (may be NULL): moves committed. KVT_OK; KVT_BUSY (a round is running). Blocking. */
KVT_API KVT_NODISCARD kvt_status kvt_store_maintain(kvt_store *store, uint32_t *moves_out);

/* ---- what it learns ---- */

/*
 * Tells the store the loss of an answer that was made from an entry in a lossy variant, against the
 * answer from exact KV. One question says little of an entry: its weight in the entry's own mean is
 * as large as losses of an entry have been found to repeat (in the profile); it also moves the mean
 * of the entry's class, and so the variants that its entries may have under the limits of loss.
 *   variant  that was read (kvt_get_info.variant), or another of the ladder that the caller coded
 *            the entry in itself (coding.h), also one that no entry may have yet
 *   loss     1 - quality, in [0, 1]
 *   weight   of the evidence: 1 = about as much text as one entry had in the profile's measurement;
 *            above 0, at most 1000
 * KVT_OK; KVT_MISS (not stored any more); KVT_E_UNSUPPORTED (the variant is exact, or is none of
 * the store's); KVT_E_ARGUMENT; KVT_E_MEMORY.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_quality_observe(kvt_store *store,
                                                                      const kvt_key *key,
                                                                      kvt_variant variant,
                                                                      double loss, double weight);

/* How soon entries of a class come back; until an entry is used again, all but the counts are 0. */
typedef struct kvt_reuse_class {
    uint64_t entries;                  /* that were watched */
    uint64_t uses;                     /* of these entries, after their first one */
    double half_life_seconds;          /* of the greatest likelihood */
    double branching;                  /* further uses that one use brings about */
    double log_likelihood;             /* mean over the uses, of the seconds since the use before */
    double log_likelihood_exponential; /* the same under a constant rate per entry and class */
    double prior_uses; /* for kvt_policy_prior_set: the weight of a first use beside a later one */
} kvt_reuse_class;

/* What was learned of a class of entries, 0 to 63. */
typedef struct kvt_class_stats {
    uint32_t struct_size;
    double loss_factor;       /* on the variants' mean losses */
    double loss_factor_upper; /* the mean of its entries' factors is below, with probability 0.95 */
    uint64_t loss_observations; /* 0: the factor is 1 */
    uint64_t loss_reopened;     /* how often it had drifted, and was learned anew */
    kvt_reuse_class reuse;
} kvt_class_stats;

/* KVT_OK; KVT_END past the last class; KVT_E_ARGUMENT. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_class_stats_get(kvt_store *store,
                                                                      uint32_t class_id,
                                                                      kvt_class_stats *out);

/*
 * Sets what a tenant wants, as kvt_policy_tenant_set; tenant 0 is everybody who is none in
 * particular. Holds from now on; the call moves nothing, and a restart forgets the limits. No
 * tenant is allowed more loss than kvt_loss_options.loss_limit where lossy variants are offered.
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_tenant_set(kvt_store *store, uint32_t tenant,
                                                const kvt_tenant *limits);

/* ---- what it does and why ---- */

/* Explains the present decision on an entry. KVT_OK; KVT_E_ARGUMENT; KVT_MISS: out is zero
 * but for its reason, which says why the last put of the key was refused; NULL if not known. */
KVT_API KVT_NODISCARD kvt_status kvt_store_explain(kvt_store *store, const kvt_key *key,
                                                   kvt_explanation *out);

/* How far predictions of loads were off, over gets that did not share another one's read. An error
 * is |predicted - achieved| / achieved, of a prediction made before the read; old errors fade. */
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
    uint64_t failed_larger; /* the record came out larger than was planned. All other aborted moves
                               followed one that failed, in its plan */
    uint64_t deferred;      /* put off for a round by the background, because reads that a caller
                               waits for kept a device busy; each round counts */
} kvt_move_counts;

/* Records on SSD beside entries in HBM and DRAM. */
typedef struct kvt_copy_counts {
    uint64_t count, bytes;  /* now; the bytes are in the tier's used_bytes */
    uint64_t kept, dropped; /* by promotions, and for room or a device, ever */
    uint64_t demotions;     /* that found their record on SSD and wrote nothing */
    uint64_t fallbacks;     /* loads that failed above and were served from the copy */
    uint64_t evictions;     /* from HBM or DRAM, that left the entry with its record on SSD */
} kvt_copy_counts;

/* Figures that were learned, ever. */
typedef struct kvt_learning_counts {
    uint64_t reopened;       /* curves of devices that had drifted, and are learned anew */
    uint64_t recosted;       /* entries whose options got new figures because of such a curve */
    uint64_t curves_rebased; /* measured curves that learned ones have replaced */
    uint64_t puts_refused;   /* puts refused because of learned speeds, which the measured curves
                                would have let in */
    uint64_t puts_tried; /* stored against the figures, to time a tier that nothing is written to */
} kvt_learning_counts;

/* Entries that sparse sequences now read in place; they are neither moved nor evicted. */
typedef struct kvt_in_place {
    uint64_t entries;
    uint64_t bytes[KVT_TIER_PLACES]; /* of the tiers' used bytes */
} kvt_in_place;

typedef struct kvt_record_counts {
    uint64_t records, bytes;
} kvt_record_counts;

/* Gets that missed although the entry is stored, by what its variant does. */
typedef struct kvt_refused_counts {
    uint64_t tokens; /* it drops tokens */
    uint64_t loss;   /* it may lose more than the get accepts */
    uint64_t basis;  /* it needs a basis that the store lacks (basis.h): KVT_E_MISMATCH */
} kvt_refused_counts;

/* Leases of a store (lookup.h). */
typedef struct kvt_lease_stats {
    uint64_t leases;                     /* open now */
    uint64_t entries;                    /* held now */
    uint64_t bytes[KVT_TIER_PLACES];     /* held now */
    uint64_t granted, released, ran_out; /* leases ever; ran_out: at their instant */
    uint64_t refused_bound, lost;        /* entries ever: beyond the bound; gone while held */
} kvt_lease_stats;

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
    uint64_t readmitted;         /* of the quarantined ones, those that came back with the device */
    uint64_t timeouts;           /* gets whose deadline passed: misses of entries that are stored */
    uint64_t staging_bytes; /* memory of records in motion now; unresponsive devices keep theirs */
    kvt_learning_counts learned;
    kvt_policy_stats policy;
    uint64_t given_up; /* entries dropped: a put needed their room, and none was left to move to */
    uint64_t backing_off; /* entries now that no plan moves for a while, because a move failed */
    kvt_copy_counts copies;
    kvt_record_counts persisted; /* written back by kvt_store_persist and in the background */
    uint64_t puts_busy;          /* puts refused because the store could not keep up */
    uint64_t puts_waiting;       /* puts that have returned and are not written yet, now */
    uint64_t put_staging_bytes;  /* memory that their entries take, now */
    uint64_t puts_lost;          /* puts that returned KVT_OK and could not be stored, ever */
    uint64_t staged_hits; /* of the gets, those copied from the staging of a put; counted as hits of
                             DRAM, too */
    uint64_t expired;     /* entries removed because their lifetime had ended, ever */
    kvt_refused_counts refused;
    uint64_t lent_bytes[KVT_TIER_PLACES]; /* of tiers, lent to sparse sequences now: not the
                                             policy's to fill */
    kvt_in_place in_place;
    uint64_t catalog_log_bytes; /* of SQLite's log beside the catalog, after its last batch */
    kvt_lease_stats leases;
    uint64_t hints_skipped; /* hints of keys that were not stored; all others are in policy.hints */
} kvt_store_stats;

/*
 * Copies the counters and gauges of the store and its tiers as of now; "ever" counts from the open.
 *   stats   struct_size is set to sizeof(kvt_store_stats) by the caller; all else is overwritten
 * KVT_OK; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_STATE (in a child of fork). Any thread;
 * takes short locks, does no I/O.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_stats_get(kvt_store *store, kvt_store_stats *stats);

/* What the orders table and slack decided, ever: requests that began, by why, and times that some
 * began to wait, by why. */
typedef struct kvt_io_decisions {
    uint64_t idle;         /* a write: no read was there, and no pass loaded from the device */
    uint64_t fits;         /* every layer of the passes still came in time */
    uint64_t share;        /* it had waited too long, or puts were short of staging */
    uint64_t waits_reads;  /* for reads */
    uint64_t waits_layers; /* a layer would have come late */
    uint64_t waits_grain;  /* for other writes, which filled the grain */
    uint64_t waits_turn;   /* for the end of the other direction's requests */
} kvt_io_decisions;

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
    bool reopened; /* its speed has drifted since the open: kvterrace profile devices measures it */
    double weight_bytes_per_s; /* that placement counts on now */
    uint64_t pending_bytes;    /* queued and not finished, approximately */
    uint64_t free_bytes;       /* fragmentation: the largest range and how many */
    uint64_t free_bytes_largest;
    uint32_t free_ranges;
    kvt_device_state state;
    uint64_t bytes_written_ever;         /* over restarts, as far as the catalog knows */
    uint64_t write_budget_bytes_per_day; /* 0 = none */
    uint64_t write_budget_left_bytes;    /* with a budget: at 0 new units go to other devices */
    kvt_affine read_learned; /* seconds of a load's part on this device, as achieved: residual is
                                the spread of single parts; bytes_per_s 0 = nothing learned yet */
    kvt_affine write_learned;
    double read_drift; /* of read_learned from the curve of the open, relatively, at 1 MiB */
    kvt_io_decisions decisions;
    uint64_t scrub_faults;              /* damaged segments that lay on this device alone */
    uint64_t write_budget_beyond_bytes; /* written although a budget in shadow was spent */
    uint64_t tag_faults; /* encrypted: units read since the open that were not what was written */
} kvt_device_stats;

/* Copies what is known of one device into *out. index counts over the devices of all tiers, from 0.
 * KVT_OK; KVT_END past the last; KVT_E_ARGUMENT (struct_size, NULL); KVT_E_STATE (in a child of
 * fork). Any thread; takes short locks, does no I/O. */
KVT_API KVT_NODISCARD kvt_status kvt_device_stats_get(kvt_store *store, size_t index,
                                                      kvt_device_stats *out);

/* ---- what is out of order ---- */

typedef enum kvt_health_kind {
    KVT_HEALTH_FILE = 1,   /* the catalog: puts and deletes from now on may not survive; or, with
                              KVT_E_LOCKED, its log, which a reader keeps growing */
    KVT_HEALTH_THREAD = 2, /* one of the store's own threads has ended */
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
    char name[64];     /* of the device, thread or node; the end of the file's path */
    double seconds;    /* how long it has been so; 0 = not known */
    char text[192];    /* one sentence for a person */
} kvt_health_item;

/*
 * Lists everything that is out of order now, the gravest first: the catalog, then threads, devices,
 * puts, bases, the catalog's log, nodes of other hosts.
 *   items        may be NULL with capacity 0; else items[0].struct_size is set by the caller, the
 *                distance from one item to the next, and is written to each
 *   count_out    how many there are, which may be more than capacity; 0 = all is in order
 *   overall_out  KVT_OK, or the status of the first; may be NULL
 * A device is reported until it serves again (kvt_device_add), a failed write until the next
 * one succeeds, the catalog until a batch is committed, puts until kvt_store_flush returns their
 * error, bases until they are added or nothing needs them, a node until it succeeds at the kind of
 * work that it has failed. A thread that has ended does not come back: without a device's thread
 * the device is out of service; without the catalog's writer no put survives a restart; without the
 * background the caller has to call kvt_store_maintain. KVT_OK; KVT_E_ARGUMENT; KVT_E_STATE (in a
 * child of fork). Any thread; takes short locks, waits for no I/O.
 */
KVT_API KVT_NODISCARD kvt_status kvt_health_get(kvt_store *store, kvt_health_item *items,
                                                size_t capacity, size_t *count_out,
                                                kvt_status *overall_out);

/* ---- devices that come and go (docs/TIERS.md) ---- */

typedef enum kvt_device_action {
    KVT_DEVICE_DRAIN = 1,  /* move its entries to other devices of the tier, in the background */
    KVT_DEVICE_SERVE = 2,  /* end a drain */
    KVT_DEVICE_RETIRE = 3, /* out of service now: its entries are misses */
    KVT_DEVICE_REMOVE = 4  /* close a device that is drained and empty, or out of service */
} kvt_device_action;

/*
 * Changes what a device of the store is for; name is the one in its configuration. Serving goes on.
 * A drain is done when kvt_device_stats_get shows used_bytes 0. KVT_OK; KVT_E_ARGUMENT (no such
 * device); KVT_E_STATE (it is out of service, for drain and serve); KVT_BUSY (remove: something
 * lies there, or it has not answered all requests). Remove and retire may wait for readers.
 */
KVT_API KVT_NODISCARD kvt_status kvt_device_change(kvt_store *store, const char *name,
                                                   kvt_device_action action);

/*
 * Brings a device in while the store serves. The name of a device of the tier that is out of
 * service or removed puts this one into its place: with the label that the store gave it since the
 * open its entries come back, with an older label or none it is taken as empty. With another name
 * it becomes the tier's next device; configure it as the last one when the store is opened again.
 *   config   read until return
 *   message  one line for a person on failure; may be NULL with message_size 0
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (the store has no such tier); KVT_E_STATE (a device of
 * that name serves); KVT_BUSY (requests to the old device are in flight, or entries on it are in
 * motion: try again); KVT_E_MISMATCH (it holds other bytes, and store.format is not set); what
 * kvt_device_open says; KVT_E_DATABASE. Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_device_add(kvt_store *store, kvt_tier tier,
                                                const kvt_device_config *config, char *message,
                                                size_t message_size);

/* Batches, layered loads, leases and prefixes are in queue.h, load.h and lookup.h; names, lifetimes
 * and clearing in names.h; metrics and events in watch.h. */

#ifdef __cplusplus
}
#endif

#endif
