/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.h - entries, places and the location table.
 *
 * Everything here is guarded by the store's control lock, except a place's location while the
 * holder has a reference: it is immutable.
 */
#ifndef STORE_ENTRY_H
#define STORE_ENTRY_H

#include "base/slab.h"
#include "codecs/codecs.h"
#include "estimator/predict/predict.h"
#include "store/catalog/catalog.h"
#include "store/core/staging.h"
#include "tiers/pool/pool.h"

#include <kvterrace/kvterrace.h>

/* The state of an entry; entry.c has the legal changes. */
typedef enum entry_state {
    ENTRY_ARRIVING = 1, /* being put; invisible */
    ENTRY_RESIDENT = 2, /* readable, at rest */
    ENTRY_MOVING = 3,   /* readable at its source; a change is planned or under way */
    ENTRY_LEAVING = 4,  /* being removed; invisible */
    ENTRY_QUARANTINED =
        5, /* in the table of quarantined entries: a device that holds a part of it is gone */
    ENTRY_STAGED = 6 /* handed over by a put: readable from staging, its record is in the making */
} entry_state;

/* Whether a place that is no longer its entry's is given back: its last reader does so. With LATER
 * its row has been deleted, and the extents go through the node. */
typedef enum place_left { PLACE_HELD = 0, PLACE_LEFT = 1, PLACE_LEFT_LATER = 2 } place_left;

/* The place of one stored variant of an entry. A place has memory of its own, so that readers may
 * finish on a place that is no longer the entry's; nobody waits for them (place_drain). */
typedef struct store_place {
    uint64_t serial;     /* no two places of one key share it, over all opens of the store */
    uint64_t generation; /* in the record's header; a record that is copied keeps it */
    uint64_t record_bytes;
    uint64_t scratch_bytes; /* that decoding needs, for all of the store's workers */
    tiers_location *location;
    union {
        catalog_ticket *ticket; /* the right to delete its catalog row; NULL when it has none */
        catalog_later *later;   /* of PLACE_LEFT_LATER */
    };
    kvt_variant variant;
    uint32_t readers;         /* gets and changes that read from it now */
    uint16_t slow_gets;       /* gets since its layout fell behind */
    uint8_t tier;             /* kvt_tier */
    uint8_t left : 2;         /* place_left */
    uint8_t visited : 1;      /* it is read as visit.h says */
    uint8_t unread : 1;       /* its last read or decode failed for another cause than damage */
    uint8_t by_cpu : 1;       /* kernels of a GPU have found its bytes unsound */
    uint8_t verified_lap : 2; /* of the scrub, in which its whole record was verified last; or 0 */
} store_place;
_Static_assert(sizeof(store_place) == 64, "places are stored by the million");

struct store_read;   /* read.h */
struct store_staged; /* handover.h */

/* The layout of entries; most entries of a store share one. */
typedef struct entry_kind {
    struct entry_kind *next; /* hash chain */
    kvt_layout layout;
    uint64_t source_bytes; /* of an entry, uncompressed: the layout's */
    uint32_t users;        /* entries; the last one frees it */
    uint32_t group_count;  /* 0: the layout has all */
    kvt_layout groups[];   /* of an entry with groups, whose layout is that of their bytes */
} entry_kind;

/* Facts that few entries have. All zeros: an entry without them. */
typedef struct entry_rare {
    online_loss_entry loss;     /* its own observed losses, since the open */
    kvt_variant larger_variant; /* the variant whose record came out larger than planned last, */
    uint64_t larger_bytes;      /* and its size; 0 = none */
    uint64_t pinned_until_ns; /* a move failed: the policy's plans leave it out until then; or 0 */
    float *scores; /* the caller's, one a token, or NULL; fixed from the put on, and freed with
                      the entry */
} entry_rare;

typedef struct store_entry {
    /* Fields that a lookup reads lie together, and behind them those that a prediction reads. */
    kvt_key key;
    struct store_entry *next; /* hash chain */
    uint64_t handle;          /* entry_handle(key) */
    uint64_t expires_ns;      /* store_now_ns of its end; 0 = none */
    uint8_t state;            /* entry_state */
    uint8_t tenant;
    uint16_t class_id;
    uint8_t failed_moves; /* in a row; backoff.c */
    bool leased;          /* lease.c holds it where it is */
    bool announced : 1;   /* lookups find it, and readers of events were told */
    bool shared : 1;      /* other hosts have a copy, or it is about to be published */
    bool used : 1;        /* it has had a hit, with an engine to publish to */
    bool has_parent;
    store_place *place; /* in RESIDENT, MOVING, and in LEAVING until released; else NULL */
    union {
        struct store_read
            *read; /* but in STAGED: the read of `place` that a further get may join, or NULL */
        struct store_staged *staged; /* in STAGED: the bytes as they were put */
    };
    store_place *copy; /* beside a place in HBM or DRAM: a record on SSD with its row, or NULL */
    const entry_kind *kind; /* never NULL */
    entry_rare *rare;       /* or NULL */
    uint64_t born; /* the store's next serial when a put made it; 0: it was there at the open */
    float recompute_seconds;
    uint32_t first_position;
    uint32_t since; /* of the put, or of the open: lifetime.c */
    uint32_t request_tokens;
    uint32_t copy_index;  /* among the copies that may be dropped; UINT32_MAX: not listed */
    uint16_t curve_epoch; /* low bits of the store's epoch when its options were made */
    uint16_t moves;       /* that were planned for it so far, modulo 65536 */
    kvt_key parent;
} store_entry;
_Static_assert(sizeof(store_entry) == 168, "entries are stored by the million");

/* The secret that handles are mixed with; callers, who choose the keys, do not know it. */
typedef struct entry_secret {
    uint64_t words[2];
} entry_secret;

/* How many places are in variants that need a basis, by the first 20 bits of its hash: pages of
 * counts, made at their first use. Atomic: places are freed on any thread. */
#define ENTRY_BASES_PAGES 1024u
typedef struct entry_bases {
    uint32_t *pages[ENTRY_BASES_PAGES]; /* ENTRY_BASES_PAGES counts each, or NULL */
} entry_bases;

/* The memory of a store's entries and places. entries and kinds under the store's lock. */
typedef struct entry_memory {
    base_slab entries;
    base_slab places;
    entry_kind **kinds; /* by a hash of the layout */
    size_t kind_buckets;
    size_t kind_count;
    entry_bases bases;
} entry_memory;

/* The entries by handle. The chains are unordered; an insertion doubles the buckets when there are
 * half as many entries. */
typedef struct entry_table {
    store_entry **buckets; /* by handle */
    size_t bucket_count;   /* a power of two */
    size_t count;
    const entry_secret *secret;
    entry_memory *memory;
} entry_table;

/* close comes after the tables' deinit. open: KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status entry_memory_open(entry_memory *memory);
void entry_memory_close(entry_memory *memory);

/* Makes a place of zeros with a variant, which is fixed; NULL without memory. Frees it. Any
 * thread. */
store_place *entry_place_new(entry_memory *memory, kvt_variant variant);
void entry_place_free(entry_memory *memory, store_place *place);

/* The first 20 bits of the hash of the basis that a variant needs; false: it needs none. */
static inline bool entry_basis_of(kvt_variant variant, uint32_t *start_out)
{
    *start_out = variant.rate >> CODECS_BASIS_SHIFT & ((1u << CODECS_BASIS_BITS) - 1);
    return variant.codec == KVT_CODEC_TRANSFORM;
}

/* How many places need a basis whose hash begins so: those of entries, copies among them, and those
 * that only readers still hold. Any thread. */
uint32_t entry_basis_places(const entry_memory *memory, uint32_t start);

/* The next such beginning of a hash, from `start` on; false: there is none. Any thread. */
bool entry_basis_next(const entry_memory *memory, uint32_t *start);

/* The secret and the memory are the store's; the secret may be filled in later, before the first
 * entry. */
KVT_NODISCARD kvt_status entry_table_init(entry_table *table, const entry_secret *secret,
                                          entry_memory *memory);

/* Makes room for so many entries at once; without memory the table grows as they come. */
void entry_table_reserve(entry_table *table, size_t entries);

/* Frees the entries and the memory of their places; the caller releases locations and rows. */
void entry_table_deinit(entry_table *table);

/* The policy's name of a key: a 64-bit keyed hash of it, never 0. Stable over restarts of a store
 * with a catalog and over lives of the entry, so that the policy can remember how often something
 * that left was used. */
uint64_t entry_handle(const entry_secret *secret, const kvt_key *key);

/* Looks many keys up, one after the other: while one is looked up, the memory of the next ones is
 * prefetched. entry_sight_begin needs no lock; entry_sight_find, for i = 0, 1, ..., does. */
#define ENTRY_SIGHT_KEYS 512u
typedef struct entry_sight {
    const kvt_key *keys;
    size_t count;
    uint64_t handles[ENTRY_SIGHT_KEYS];
} entry_sight;

/* At most ENTRY_SIGHT_KEYS keys, which stay the caller's. */
void entry_sight_begin(entry_sight *sight, const entry_secret *secret, const kvt_key *keys,
                       size_t count);
store_entry *entry_sight_find(const entry_table *table, const entry_sight *sight, size_t i);

/* NULL when absent. */
store_entry *entry_find_key(const entry_table *table, const kvt_key *key);
store_entry *entry_find_handle(const entry_table *table, uint64_t handle);

/* entry_find_key with the key's handle. */
store_entry *entry_find_hashed(const entry_table *table, uint64_t handle, const kvt_key *key);

/* The kind of a new entry: a sound layout, and the layouts of its groups when it has some. */
typedef struct entry_shape {
    const kvt_layout *layout;
    const kvt_layout *groups; /* NULL: none */
    uint32_t group_count;
} entry_shape;

/* Adds an entry for a key that is not in the table, in state ARRIVING. KVT_OK; KVT_REFUSED (another
 * key with the same handle is there: once in 2^64 pairs); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status entry_insert(entry_table *table, const kvt_key *key,
                                      const entry_shape *shape, store_entry **entry_out);

/* The entry's rare facts, to be changed; NULL without memory. */
entry_rare *entry_rare_make(store_entry *entry);

/* Until when a failed move keeps the entry out of the policy's plans; 0 = no failed move does. */
static inline uint64_t entry_pinned_until_ns(const store_entry *entry)
{
    return entry->rare != NULL ? entry->rare->pinned_until_ns : 0;
}

/* Moves an entry from one table to another. */
void entry_transfer(entry_table *from, entry_table *to, store_entry *entry);

/* Takes an entry in state LEAVING or ARRIVING, without a place, out of the table and frees it. */
void entry_erase(entry_table *table, store_entry *entry);

/* The only way to change a state; asserts that the pair is legal. */
void entry_set_state(store_entry *entry, entry_state from, entry_state to);

/* True when it has a place that a get may read. */
static inline bool entry_is_visible(const store_entry *entry)
{
    return entry->state == ENTRY_RESIDENT || entry->state == ENTRY_MOVING;
}

/* True when a lookup may see it. */
static inline bool entry_is_readable(const store_entry *entry)
{
    return entry_is_visible(entry) || entry->state == ENTRY_STAGED;
}

/* True when it has its only record above the SSD, also while it moves, and while it is to be
 * evicted, because the eviction may be called off. An entry that is being put is not stored yet. */
static inline bool entry_is_above_alone(const store_entry *entry)
{
    return entry->state != ENTRY_ARRIVING && entry->place != NULL &&
           entry->place->tier < KVT_TIER_SSD && entry->copy == NULL;
}

#endif
