/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_pairs.c - an entry of every form, moved into every other form from every tier to
 * every tier, and with each thing that the move needs missing in turn: the basis of its source or
 * of its target, the nth allocation, room, a write, a read. Whatever the move says, the entry is
 * there afterwards, in the old form or in the new one, with the bytes that a coding of the test's
 * own gives.
 *
 * The moves are planned here: the policy's part of them is wrapped away, so it knows of none.
 */
#include "basis_support.h"
#include "store_support.h"

#include "codecs/codecs.h"
#include "codecs/drop.h"
#include "store/core/executor.h"
#include "store/core/plans.h"

#include <errno.h>
#include <kvterrace/basis.h>

enum {
    LAYERS = 6,
    DIMENSION = 32,
    TOKENS = 64,
    MATRICES = 2 * LAYERS,
    ROW = 2 * DIMENSION,
    MATRIX = TOKENS * ROW,
    BYTES = MATRICES * MATRIX,
    TIERS = KVT_TIER_COUNT - KVT_TIER_HBM
};

static const kvt_layout layout = {.layers = LAYERS,
                                  .kv_heads = 1,
                                  .head_dim = DIMENSION,
                                  .dtype = KVT_DTYPE_BF16,
                                  .tokens = TOKENS,
                                  .tokens_may_drop = 1};

/* %A and %B: the beginnings of the names of two bases. Steps of one third derive from each other,
 * planes from more planes, and fewer tokens from more of them. */
static const char *const form_names[] = {"raw",
                                         "lossless",
                                         "lossless:fast",
                                         "kivi:k4v4,g32",
                                         "planes:k8v8,g32",
                                         "planes:k6v6,g32",
                                         "planes:k4v4,g32",
                                         "entropy:k0.25v0.5",
                                         "entropy:k0.75v1.5",
                                         "drop:stream,50",
                                         "drop:stream,25+planes:k8v8,g32",
                                         "drop:stream,25+entropy:k0.25v0.5",
                                         "transform:%A,s0.5",
                                         "transform:%A,s1.5",
                                         "transform:%B,s0.5",
                                         "transform:%B,s1.5"};
enum { FORMS = sizeof form_names / sizeof form_names[0] };

/* ---- what the moves lack ---- */

typedef enum lack {
    LACK_NOTHING,
    LACK_SOURCE_BASIS,
    LACK_TARGET_BASIS,
    LACK_ALLOCATION,
    LACK_ROOM,
    LACK_WRITE,
    LACK_SPACE,
    LACK_READ,
    LACK_COUNT
} lack;

static const char *const lack_names[LACK_COUNT] = {
    "nothing", "source's basis", "target's basis", "an allocation",
    "room",    "a write",        "a full device",  "a read"};

static atomic_long fail_at; /* the nth allocation from now on; 0: none */

/* Whether this allocation is to fail. */
static bool fails_now(void)
{
    if (atomic_load(&fail_at) <= 0) return false;
    return atomic_fetch_sub(&fail_at, 1) == 1;
}

#define ALLOCATION(type_and_name, real, parameters, arguments)                                     \
    void *real parameters;                                                                         \
    void *type_and_name parameters;                                                                \
    void *type_and_name parameters                                                                 \
    {                                                                                              \
        return fails_now() ? NULL : real arguments;                                                \
    }

ALLOCATION(__wrap_malloc, __real_malloc, (size_t bytes), (bytes))
ALLOCATION(__wrap_calloc, __real_calloc, (size_t count, size_t bytes), (count, bytes))
ALLOCATION(__wrap_realloc, __real_realloc, (void *old, size_t bytes), (old, bytes))
ALLOCATION(__wrap_aligned_alloc, __real_aligned_alloc, (size_t align, size_t bytes), (align, bytes))

extern __typeof__(kvt_policy_commit) __wrap_kvt_policy_commit;
extern __typeof__(kvt_policy_abort) __real_kvt_policy_abort, __wrap_kvt_policy_abort;
extern __typeof__(kvt_policy_commit) __real_kvt_policy_commit;

/* Moves of this test have the number 0, which is none of the policy's. */
kvt_status __wrap_kvt_policy_commit(kvt_policy *policy, uint64_t id,
                                    const uint64_t bytes[KVT_TIER_PLACES])
{
    return id == 0 ? KVT_OK : __real_kvt_policy_commit(policy, id, bytes);
}

kvt_status __wrap_kvt_policy_abort(kvt_policy *policy, uint64_t id)
{
    return id == 0 ? KVT_OK : __real_kvt_policy_abort(policy, id);
}

/* ---- the site ---- */

typedef struct site {
    char folder[64], catalog[96], disk[96];
    support_fault faults[KVT_TIER_COUNT];
    kvt_device_config configs[KVT_TIER_COUNT];
    kvt_store *store;
    basis_made bases[2];
    kvt_variant forms[FORMS];
    uint64_t moved, kept, lost;
} site;

/* Two bases, of heads and of layers together. */
static void site_make_bases(site *s)
{
    static const transform_span spans[] = {TRANSFORM_SPAN_LAYERS4, TRANSFORM_SPAN_HEAD};
    for (int i = 0; i < 2; i++) {
        const transform_shape shape = {.layers = LAYERS,
                                       .kv_heads = 1,
                                       .head_dim = DIMENSION,
                                       .rotary_dim = DIMENSION,
                                       .sides = 2,
                                       .span = spans[i]};
        s->bases[i] = basis_made_of(shape, 20 + (uint64_t)i);
        assert_ok(basis_made_write(&s->bases[i]));
        assert_ok(kvt_basis_add(s->store, s->bases[i].object, s->bases[i].bytes));
    }
}

static void site_name_forms(site *s)
{
    for (int i = 0; i < FORMS; i++) {
        char name[64];
        const char *at = strchr(form_names[i], '%');
        (void)snprintf(name, sizeof name, "%s", form_names[i]);
        if (at != NULL)
            (void)snprintf(
                name, sizeof name, "%.*s%05X%s", (int)(at - form_names[i]), form_names[i],
                (unsigned)transform_hash_start(s->bases[at[1] == 'B'].basis.hash), at + 2);
        if (kvt_variant_parse(name, &s->forms[i]) != KVT_OK) fail_msg("no form: %s", name);
    }
}

static void site_open(site *s)
{
    static const char *const names[KVT_TIER_COUNT] = {NULL, "hbm0", "dram0", "ssd0"};
    char message[256] = "";
    memset(s, 0, sizeof *s);
    support_make_folder(s->folder, sizeof s->folder);
    (void)snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    (void)snprintf(s->disk, sizeof s->disk, "%s/disk", s->folder);
    kvt_store_options options = support_options(1 << 20, "lru");
    options.durability.catalog_path = s->catalog;
    options.durability.copies = false;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        s->faults[tier] = (support_fault){.capacity_bytes = 2 << 20,
                                          .path = tier == KVT_TIER_SSD ? s->disk : NULL};
        s->configs[tier] = support_fault_config(&s->faults[tier], names[tier]);
        options.tiers[tier] = (kvt_tier_options){.devices = &s->configs[tier],
                                                 .device_count = 1,
                                                 .unit_bytes = 4096,
                                                 .weights_fixed = true};
    }
    if (kvt_store_open(&options, &s->store, message, sizeof message) != KVT_OK)
        fail_msg("open: %s", message);
    site_make_bases(s);
    site_name_forms(s);
}

static void site_close(site *s)
{
    kvt_store_close(s->store);
}

/* ---- contents ---- */

/* One coding of packed bytes, given back in their place: rows that were dropped are zeros. */
static void code(const site *s, kvt_variant form, uint8_t *packed)
{
    static _Alignas(4096) uint8_t record[2 * BYTES], scratch[4 << 20];
    static uint8_t rows[BYTES];
    const transform_basis *list[] = {&s->bases[0].basis, &s->bases[1].basis};
    const kvt_record_spec spec = {
        .generation = 1, .layout = layout, .variant = form, .bases = {list, 2}};
    kvt_record_info info;
    uint64_t bytes;
    uint32_t kept[TOKENS];
    kvt_status status = kvt_record_encode(&spec, packed, BYTES, record, sizeof record, scratch,
                                          sizeof scratch, &bytes);
    assert_true(status == KVT_OK || status == KVT_RAW);
    assert_ok(kvt_record_parse(record, bytes, &info));
    assert_ok(
        kvt_record_decode(record, bytes, &spec, rows, info.decoded_bytes, scratch, sizeof scratch));
    assert_ok(kvt_record_kept_tokens(record, bytes, 0, kept, TOKENS));
    memset(packed, 0, BYTES);
    for (uint32_t matrix = 0; matrix < MATRICES; matrix++)
        for (uint32_t i = 0; i < info.stored_tokens; i++)
            memcpy(packed + (size_t)matrix * MATRIX + (size_t)kept[i] * ROW,
                   rows + ((size_t)matrix * info.stored_tokens + i) * ROW, ROW);
}

/* The bytes of the entry in form `from` (`into` < 0), or once it was moved from there into another:
 * what is made from codes is the coding of the entry itself. */
static const uint8_t *content(const site *s, int from, int into)
{
    static uint8_t known[FORMS][FORMS + 1][BYTES];
    static bool there[FORMS][FORMS + 1];
    uint8_t *bytes = known[from][into + 1];
    if (there[from][into + 1]) return bytes;
    const codecs_way way =
        into < 0 ? CODECS_WAY_NONE : codecs_made_from(s->forms[from], s->forms[into]);
    codecs_kv_sample_fill(&layout, 77, bytes);
    if (way != CODECS_WAY_DROP && way != CODECS_WAY_DERIVE) code(s, s->forms[from], bytes);
    if (into >= 0) code(s, s->forms[into], bytes);
    there[from][into + 1] = true;
    return bytes;
}

/* Gets the entry, and spreads the rows of one that has dropped tokens. */
static kvt_status get(site *s, uint8_t *packed, kvt_variant *form)
{
    static uint8_t got[BYTES];
    static uint32_t positions[LAYERS * TOKENS];
    kvt_kept_tokens kept = {
        .struct_size = sizeof kept, .positions = positions, .capacity = LAYERS * TOKENS};
    kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
    const kvt_key key = support_key(1);
    const kvt_status status =
        kvt_store_get(s->store, &key, KVT_PACKED(got, sizeof got), KVT_STORE_DEADLINE, &info);
    *form = info.variant;
    memset(packed, 0, BYTES);
    for (uint32_t matrix = 0; status == KVT_OK && matrix < MATRICES; matrix++)
        for (uint32_t i = 0; i < kept.count; i++)
            memcpy(packed + (size_t)matrix * MATRIX +
                       (size_t)(kept.sets != 0 ? positions[i] : i) * ROW,
                   got + (size_t)matrix * MATRIX + (size_t)i * ROW, ROW);
    return status;
}

/* ---- moves ---- */

/* Carries out the plan of one change. */
static kvt_status move_to(site *s, int form, int tier)
{
    const kvt_key key = support_key(1);
    executor_result result;
    pthread_mutex_lock(&s->store->lock);
    store_entry *entry = entry_find_key(&s->store->table, &key);
    assert_non_null(entry);
    kvt_move move = {
        .handle = entry->handle, .kind = KVT_MOVE_CHANGE, .to_variant = s->forms[form]};
    move.from_bytes[entry->place->tier] = entry->place->record_bytes;
    move.to_bytes[tier] = 2 * BYTES;
    const kvt_plan plan = {.moves = &move, .capacity = 1, .count = 1};
    plan_mark(s->store, &plan);
    pthread_mutex_unlock(&s->store->lock);
    return executor_run_plan(s->store, &move, 1, (executor_source){0}, &result);
}

/* Puts the entry, and brings it into a form in a tier. */
static void prepare(site *s, int form, int tier)
{
    static uint8_t data[BYTES];
    const kvt_key key = support_key(1);
    const kvt_entry entry = support_entry(key, layout, 1e4);
    const kvt_status deleted = kvt_store_delete(s->store, &key);
    assert_true(deleted == KVT_OK || deleted == KVT_MISS);
    codecs_kv_sample_fill(&layout, 77, data);
    assert_ok(kvt_store_put(s->store, &entry, KVT_PACKED(data, sizeof data)));
    pthread_mutex_lock(&s->store->lock);
    const store_entry *found = entry_find_key(&s->store->table, &key);
    assert_ok(kvt_policy_pin(s->store->policy, found->handle));
    pthread_mutex_unlock(&s->store->lock);
    assert_ok(move_to(s, form, tier));
}

/* The slot of the basis that a form needs, or -1. */
static int slot_of(const site *s, int form)
{
    const char *at = strchr(form_names[form], '%');
    if (at == NULL) return -1;
    const uint32_t start = transform_hash_start(s->bases[at[1] == 'B'].basis.hash);
    int slot = 0;
    while (s->store->bases.starts[slot] != start + 1)
        slot++;
    return slot;
}

static void fail_device(site *s, int tier, uint32_t kinds, kvt_status status)
{
    const tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                   .kinds = kinds,
                                   .status = status,
                                   .os_error = status == KVT_E_SPACE ? ENOSPC : EIO};
    assert_ok(tiers_fault_add(s->faults[tier].device, &rule));
}

/* All of a tier's room, behind the policy's back. */
static tiers_location *take_room(site *s, int tier)
{
    tiers_pool_facts facts;
    tiers_location *location = NULL;
    if (s->store->catalog != NULL) assert_ok(catalog_settle(s->store->catalog));
    tiers_pool_facts_get(s->store->pools[tier], &facts);
    assert_ok(tiers_pool_reserve(s->store->pools[tier], facts.capacity_bytes - facts.used_bytes,
                                 &location));
    return location;
}

/* Moves the entry while something is missing, which is there again afterwards. */
static kvt_status move_without(site *s, lack what, long nth, int from, int into, int source,
                               int target)
{
    const int slot = what == LACK_SOURCE_BASIS   ? slot_of(s, from)
                     : what == LACK_TARGET_BASIS ? slot_of(s, into)
                                                 : -1;
    uint32_t start = 0;
    tiers_location *taken = what == LACK_ROOM ? take_room(s, target) : NULL;
    if (slot >= 0) start = __atomic_exchange_n(&s->store->bases.starts[slot], 0, __ATOMIC_SEQ_CST);
    if (what == LACK_WRITE) fail_device(s, target, TIERS_FAULT_WRITES, KVT_E_IO);
    if (what == LACK_SPACE) fail_device(s, target, TIERS_FAULT_WRITES, KVT_E_SPACE);
    if (what == LACK_READ) fail_device(s, source, TIERS_FAULT_READS, KVT_E_IO);
    if (what == LACK_ALLOCATION) atomic_store(&fail_at, nth);
    const kvt_status status = move_to(s, into, target);
    if (what != LACK_ALLOCATION) atomic_store(&fail_at, 0);
    if (slot >= 0) __atomic_store_n(&s->store->bases.starts[slot], start, __ATOMIC_SEQ_CST);
    tiers_fault_clear(s->faults[source].device);
    tiers_fault_clear(s->faults[target].device);
    if (taken != NULL) tiers_pool_release(s->store->pools[target], taken);
    return status;
}

/* The entry is there, as it was or as it was to become. */
static void check(site *s, kvt_status moved, lack what, int from, int into, int source, int target)
{
    static uint8_t packed[BYTES];
    kvt_variant form;
    const kvt_status status = get(s, packed, &form);
    const int found = moved == KVT_OK ? into : -1;
    const uint8_t *bytes = content(s, from, found);
    const kvt_variant *wanted = &s->forms[moved == KVT_OK ? into : from];
    s->moved += moved == KVT_OK;
    s->kept += moved != KVT_OK;
    s->lost += status == KVT_MISS;
    if (status != KVT_OK || memcmp(&form, wanted, sizeof form) != 0 ||
        memcmp(packed, bytes, BYTES) != 0)
        fail_msg("%s in tier %d -> %s in tier %d without %s: moved %s, get %s%s%s",
                 form_names[from], source, form_names[into], target, lack_names[what],
                 kvt_status_name(moved), kvt_status_name(status),
                 memcmp(&form, wanted, sizeof form) != 0 ? ", another form" : "",
                 status == KVT_OK ? ", its bytes" : "");
}

/* ---- tests ---- */

/* Whether a move between two forms can be carried out. From dropped tokens few ways lead on. */
static bool has_way(const site *s, int from, int into)
{
    if (!kvt_variant_drops_tokens(s->forms[from])) return true;
    return from == into || codecs_made_from(s->forms[from], s->forms[into]) != CODECS_WAY_NONE;
}

TEST(every_pair_on_every_pair_of_tiers)
{
    site *s = *state;
    for (int from = 0; from < FORMS; from++)
        for (int into = 0; into < FORMS; into++)
            for (int way = 0; way < TIERS * TIERS; way++) {
                const int source = KVT_TIER_HBM + way / TIERS, target = KVT_TIER_HBM + way % TIERS;
                prepare(s, from, source);
                const kvt_status status =
                    move_without(s, LACK_NOTHING, 0, from, into, source, target);
                if ((status == KVT_OK) != has_way(s, from, into))
                    fail_msg("%s -> %s: %s", form_names[from], form_names[into],
                             kvt_status_name(status));
                check(s, status, LACK_NOTHING, from, into, source, target);
            }
    print_message("%llu moves, %llu refused\n", (unsigned long long)s->moved,
                  (unsigned long long)s->kept);
    assert_int_equal(s->lost, 0);
}

/* Fails the allocations of a move one after the other, until it comes to none that fails. */
static void sweep_allocations(site *s, int from, int into, int source, int target)
{
    bool reached = true;
    prepare(s, from, source);
    for (long nth = 1; reached; nth++) {
        const kvt_status status = move_without(s, LACK_ALLOCATION, nth, from, into, source, target);
        reached = atomic_exchange(&fail_at, 0) <= 0;
        check(s, status, LACK_ALLOCATION, from, into, source, target);
        if (status == KVT_OK && reached) prepare(s, from, source);
    }
}

TEST(every_pair_without_each_thing)
{
    site *s = *state;
    uint32_t turn = 0;
    s->moved = s->kept = 0;
    for (int from = 0; from < FORMS; from++)
        for (int into = 0; into < FORMS; into++)
            for (int what = LACK_SOURCE_BASIS; what < LACK_COUNT; what++, turn++) {
                const int source = KVT_TIER_HBM + (int)(turn / TIERS % TIERS);
                const int target = KVT_TIER_HBM + (int)(turn % TIERS);
                if (what == LACK_ALLOCATION) {
                    sweep_allocations(s, from, into, source, target);
                    continue;
                }
                prepare(s, from, source);
                const kvt_status status =
                    move_without(s, (lack)what, 0, from, into, source, target);
                if (what >= LACK_ROOM) assert_int_not_equal(status, KVT_OK);
                check(s, status, (lack)what, from, into, source, target);
            }
    print_message("%llu moves, %llu that failed\n", (unsigned long long)s->moved,
                  (unsigned long long)s->kept);
    assert_int_equal(s->lost, 0);
    assert_true(s->kept > s->moved);
}

TEST_BEFORE_ALL
{
    static site s;
    site_open(&s);
    *state = &s;
}

TEST_AFTER_ALL
{
    site_close(*state);
}

int main(void)
{
    /* Thousands of records, whose syncs nothing here needs. */
    if (chdir("/dev/shm") != 0) print_message("no /dev/shm: every sync is the disk's\n");
    return tests_run();
}
