/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_queue.c - requests of any content to a queue. The input is a list of calls: batches, drains,
 * cancels, waits, counts, closes. Every field of a request, of its entry and of its view may have
 * any value, but for what the caller owes: memory that is named is there and as large as it says,
 * and an array holds as many items as are announced. What must hold:
 *
 *     a batch is accepted as a whole or not at all
 *     each accepted request completes once, with its own batch, index, kind and user word, and with
 *         a status that its kind has
 *     nothing is written but into the buffers of views, and nothing at all after the close
 *     at the end no staging is held, and what is stored can be cleared
 *
 * The store lies in memory and is opened once; each execution begins with an empty one.
 */
#include "base/clock.h"
#include "fuzz_arena.h"

#include <kvterrace/key.h>
#include <kvterrace/kvterrace.h>
#include <kvterrace/names.h>
#include <kvterrace/queue.h>

enum {
    FUZZ_KEYS = 6,
    FUZZ_VIEWS = 4,
    FUZZ_POOL = 4096, /* of a view */
    FUZZ_BLOCKS = 8,
    FUZZ_BASES = 8,
    FUZZ_BATCH = 6,
    FUZZ_DEPTH = 24,
    FUZZ_CALLS = 40,
    FUZZ_GROUPS = 2,     /* of an entry that has some: its own layout, and that of the next one */
    FUZZ_BYTES_MAX = 256 /* of a request or completion that a newer caller might have */
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- the input ---- */

static uint64_t fuzz_word(fuzz_input *input)
{
    uint64_t word = 0;
    for (uint32_t i = 0; i < 8; i++)
        word = word << 8 | fuzz_byte(input);
    return word;
}

/* Mostly a small number, now and then anything. */
static uint64_t fuzz_number(fuzz_input *input, uint32_t usual)
{
    const uint8_t kind = fuzz_byte(input);
    return kind < 240 ? kind % usual : fuzz_word(input);
}

/* ---- what requests name ---- */

typedef struct fuzz_item {
    bool flies;
    uint64_t batch;
    uint32_t index, kind;
} fuzz_item;

typedef struct fuzz_site {
    kvt_store *store;
    kvt_queue *queue;
    uint8_t *pools[FUZZ_VIEWS];
    kvt_view views[FUZZ_VIEWS];
    void *bases[FUZZ_VIEWS][FUZZ_BASES];
    uint64_t bases_bytes[FUZZ_VIEWS][FUZZ_BASES];
    uint32_t blocks[FUZZ_VIEWS][FUZZ_BLOCKS];
    const kvt_view *pointers[FUZZ_VIEWS + FUZZ_GROUPS]; /* the first ones again at the end */
    kvt_view grouped[FUZZ_DEPTH];                       /* of items */
    kvt_layout layouts[FUZZ_VIEWS + FUZZ_GROUPS];
    kvt_entry entries[FUZZ_VIEWS];
    kvt_key parent;
    float scores[FUZZ_BLOCKS];
    fuzz_item items[FUZZ_DEPTH];
    uint32_t flying; /* accepted and not drained */
    uint64_t batches;
} fuzz_site;

static void fuzz_check(bool holds)
{
    if (!holds) abort();
}

static kvt_key fuzz_key(fuzz_input *input)
{
    kvt_key key = {{7}};
    key.bytes[31] = fuzz_byte(input) % FUZZ_KEYS;
    return key;
}

static kvt_layout fuzz_layout(fuzz_input *input)
{
    static const kvt_layout usual[] = {
        {.layers = 2, .kv_heads = 1, .head_dim = 32, .dtype = KVT_DTYPE_BF16, .tokens = 8},
        {.layers = 1, .kv_heads = 2, .head_dim = 16, .dtype = KVT_DTYPE_FP16, .tokens = 8},
        {.layers = 2,
         .kv_heads = 1,
         .head_dim = 32,
         .dtype = KVT_DTYPE_FP32,
         .tokens = 4,
         .sides = 1},
        {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 1000}};
    kvt_layout layout = usual[fuzz_byte(input) % 4];
    if (fuzz_byte(input) < 200) return layout;
    layout.layers = (uint16_t)fuzz_number(input, 4);
    layout.kv_heads = (uint16_t)fuzz_number(input, 3);
    layout.head_dim = (uint16_t)fuzz_number(input, 40);
    layout.dtype = (uint8_t)fuzz_number(input, 6);
    layout.order = (uint8_t)fuzz_number(input, 3);
    layout.tokens = (uint32_t)fuzz_number(input, 12);
    layout.tokens_may_drop = (uint8_t)fuzz_number(input, 2);
    layout.sides = (uint8_t)fuzz_number(input, 4);
    layout.reserved[0] = fuzz_byte(input) < 250 ? 0 : 1;
    layout.opaque_bytes = fuzz_number(input, 2);
    return layout;
}

/* The numbers of a view; its memory stays what it is. */
static void fuzz_change_view(fuzz_input *input, kvt_view *view)
{
    switch (fuzz_byte(input) % 13) {
    case 0: view->struct_size = (uint32_t)fuzz_number(input, 200); break;
    case 1: view->memory = (uint32_t)fuzz_number(input, 3); break;
    case 2: view->dtype = (uint32_t)fuzz_number(input, 6); break;
    case 3: view->base_bytes[0] = fuzz_byte(input) * UINT64_C(16); break;
    case 4: view->layer_stride = (int64_t)fuzz_number(input, 250); break;
    case 5: view->side_stride = (int64_t)fuzz_number(input, 250); break;
    case 6: view->block_stride = (int64_t)fuzz_number(input, 250); break;
    case 7: view->token_stride = (int64_t)fuzz_number(input, 250); break;
    case 8: view->head_stride = (int64_t)fuzz_number(input, 250); break;
    case 9: view->tokens_per_block = (uint32_t)fuzz_number(input, 5); break;
    case 10: view->first_slot = (uint32_t)fuzz_number(input, 5); break;
    case 11: view->bases_kind = fuzz_byte(input) % 7; break;
    default: view->reserved[fuzz_byte(input) % 3] = fuzz_number(input, 2);
    }
}

static void fuzz_make_view(fuzz_input *input, fuzz_site *site, uint32_t at)
{
    static const char *const axes[] = {"lsth", "lbths", "blsth", "tlsh", "lth", "bth"};
    kvt_view *view = &site->views[at];
    const kvt_layout layout = site->entries[at].layout;
    const uint8_t which = fuzz_byte(input) % 8, spoils = fuzz_byte(input);
    const uint8_t changes = spoils < 160 ? 0 : spoils % 4;
    *view = (kvt_view){.struct_size = sizeof *view};
    bool made = false;
    if (which < sizeof axes / sizeof axes[0] && layout.tokens != 0) {
        const bool paged = strchr(axes[which], 'b') != NULL;
        made = kvt_view_make(&layout, axes[which], paged ? 4 : 0, paged ? 4 : layout.tokens,
                             view) == KVT_OK;
    }
    if (!made) view->base_bytes[0] = layout.opaque_bytes;
    if (!made || view->base_bytes[0] > FUZZ_POOL) view->base_bytes[0] = FUZZ_POOL;
    if (view->bases_kind >= KVT_BASES_LAYERS) {
        view->bases = site->bases[at];
        view->bases_bytes = site->bases_bytes[at];
        for (uint32_t i = 0; i < FUZZ_BASES; i++) {
            site->bases[at][i] = site->pools[at] + i * (FUZZ_POOL / FUZZ_BASES);
            site->bases_bytes[at][i] = FUZZ_POOL / FUZZ_BASES;
        }
        view->base_bytes[0] = 0;
    } else {
        view->base[0] = site->pools[at];
        view->base[1] =
            view->bases_kind == KVT_BASES_SIDES ? site->pools[at] + FUZZ_POOL / 2 : NULL;
        if (view->bases_kind == KVT_BASES_SIDES) view->base_bytes[0] = FUZZ_POOL / 2;
        view->base_bytes[1] = view->bases_kind == KVT_BASES_SIDES ? FUZZ_POOL / 2 : 0;
    }
    if (view->tokens_per_block != 0) {
        view->blocks = site->blocks[at];
        view->block_count = 4;
        if (spoils % 8 == 1) view->block_count = fuzz_byte(input) % (FUZZ_BLOCKS + 1);
        for (uint32_t i = 0; i < FUZZ_BLOCKS; i++) /* numbers twice and beyond the pool, too */
            site->blocks[at][i] = spoils % 8 != 2 ? i : (uint32_t)fuzz_number(input, 6);
    }
    for (uint8_t i = 0; i < changes; i++)
        fuzz_change_view(input, view);
}

/* Makes an entry one of groups, whose views are those of this entry and the next one. */
static void fuzz_group(fuzz_input *input, fuzz_site *site, uint32_t at)
{
    kvt_entry *entry = &site->entries[at];
    memset(&entry->layout, 0, sizeof entry->layout);
    entry->groups = &site->layouts[at];
    entry->group_count = FUZZ_GROUPS;
    if (fuzz_byte(input) % 16 == 0) entry->group_count = fuzz_byte(input) % (FUZZ_GROUPS + 1);
    if (fuzz_byte(input) % 16 == 0) entry->layout = site->layouts[at];
}

/* Entries and views are borrowed while requests fly: they are made while none does. */
static void fuzz_make_things(fuzz_input *input, fuzz_site *site)
{
    bool grouped[FUZZ_VIEWS];
    for (uint32_t i = 0; i < FUZZ_VIEWS; i++) {
        kvt_entry *entry = &site->entries[i];
        *entry = (kvt_entry){.struct_size = sizeof *entry,
                             .key = fuzz_key(input),
                             .layout = fuzz_layout(input),
                             .recompute_seconds = 1};
        const uint8_t spoils = fuzz_byte(input);
        const uint8_t changes = spoils < 160 ? 0 : fuzz_byte(input);
        if (changes & 1) entry->parent = &site->parent;
        if (changes & 2) entry->first_position = (uint32_t)fuzz_number(input, 100);
        if (changes & 4) entry->tenant = (uint32_t)fuzz_number(input, 4);
        if (changes & 8) entry->class_id = (uint32_t)fuzz_number(input, 70);
        if ((changes & 48) == 48) entry->struct_size = (uint32_t)fuzz_number(input, 200);
        if ((changes & 192) == 192) {
            uint64_t bits = fuzz_word(input);
            memcpy(changes & 1 ? &entry->recompute_seconds : &entry->lifetime_seconds, &bits,
                   sizeof bits);
        }
        if (changes == 8) {
            entry->token_scores = site->scores;
            entry->token_score_count = fuzz_byte(input) % (FUZZ_BLOCKS + 1);
        }
        grouped[i] = spoils % 32 == 31 || (changes & 3) == 3;
        /* A struct that says to be longer has to be: what it says is cut to what there is. */
        if (entry->struct_size > sizeof *entry) entry->struct_size = 0;
        fuzz_make_view(input, site, i);
        if (site->views[i].struct_size > sizeof site->views[i]) site->views[i].struct_size = 0;
    }
    for (uint32_t i = 0; i < FUZZ_VIEWS + FUZZ_GROUPS; i++) {
        site->layouts[i] = site->entries[i % FUZZ_VIEWS].layout;
        site->pointers[i] = &site->views[i % FUZZ_VIEWS];
    }
    for (uint32_t i = 0; i < FUZZ_VIEWS; i++)
        if (grouped[i]) fuzz_group(input, site, i);
}

/* ---- calls ---- */

/* The view of an item that names views from one on. */
static const kvt_view *fuzz_grouped(fuzz_site *site, uint32_t item, uint32_t first, uint32_t count)
{
    site->grouped[item] = kvt_view_grouped(&site->pointers[first], count);
    return &site->grouped[item];
}

static kvt_request fuzz_request(fuzz_input *input, fuzz_site *site, uint32_t user)
{
    const uint8_t at = fuzz_byte(input) % FUZZ_VIEWS, changes = fuzz_byte(input);
    kvt_request request = {.struct_size = sizeof request,
                           .kind = 1 + fuzz_byte(input) % 6,
                           .urgency = fuzz_byte(input) % 3,
                           .deadline_ns = KVT_NO_DEADLINE,
                           .key = fuzz_key(input),
                           .user = user};
    if (fuzz_byte(input) % 4 != 0) request.key = site->entries[at].key;
    if (request.kind == KVT_REQUEST_PREFETCH) request.tier = KVT_TIER_DRAM;
    if (request.kind <= KVT_REQUEST_PUT) request.view = &site->views[at];
    if (request.kind == KVT_REQUEST_PUT) request.entry = &site->entries[at];
    if (request.kind <= KVT_REQUEST_PUT && site->entries[at].groups != NULL) {
        uint32_t count = site->entries[at].group_count;
        if (changes % 16 == 15) count = fuzz_byte(input) % (FUZZ_GROUPS + 1);
        if (changes % 64 != 63) request.view = fuzz_grouped(site, user, at, count);
    }
    if (changes < 128) return request;
    switch (changes % 10) {
    case 0: request.kind = (uint32_t)fuzz_number(input, 9); break;
    case 1: request.urgency = (uint32_t)fuzz_number(input, 5); break;
    case 2: request.tier = (uint32_t)fuzz_number(input, 10); break;
    case 3: request.view = NULL; break;
    case 4: request.entry = NULL; break;
    case 5:
        /* A put waits until its deadline; this one lies in the past, or a little ahead. */
        request.deadline_ns = fuzz_byte(input) < 128 ? fuzz_number(input, 2) % (UINT64_C(1) << 40)
                                                     : base_clock_ns() + 200000;
        break;
    case 6: {
        uint64_t bits = fuzz_word(input);
        memcpy(&request.loss_max, &bits, sizeof bits);
        break;
    }
    case 7: request.first_layer = (uint32_t)fuzz_number(input, 4); break;
    case 8: request.layer_count = (uint32_t)fuzz_number(input, 4); break;
    default: request.view = &site->views[fuzz_byte(input) % FUZZ_VIEWS];
    }
    if (changes < 250 || request.kind > KVT_REQUEST_PUT) return request;
    /* Several views where there may be one, and one of several. */
    const uint32_t first = fuzz_byte(input) % FUZZ_VIEWS;
    request.view = fuzz_grouped(site, user, first, 1 + fuzz_byte(input) % FUZZ_GROUPS);
    return request;
}

/* Sizes of structs that calls accept: of this version and of newer ones. */
static uint32_t fuzz_struct_size(fuzz_input *input, uint32_t known)
{
    const uint8_t kind = fuzz_byte(input);
    if (kind < 200) return known;
    if (kind < 230) return known + 8 * (kind % 8u);
    return fuzz_byte(input) % FUZZ_BYTES_MAX;
}

static void fuzz_submit(fuzz_input *input, fuzz_site *site)
{
    const uint32_t asked = fuzz_byte(input) % (FUZZ_BATCH + 1);
    const uint32_t stride = fuzz_struct_size(input, sizeof(kvt_request));
    /* Sizes that lie closer than four bytes overwrite each other: then the first one lies. */
    const uint32_t count = stride < sizeof(uint32_t) && asked > 1 ? 1 : asked;
    const uint32_t room = stride < sizeof(uint32_t) ? (uint32_t)sizeof(uint32_t) : stride;
    const uint8_t noise = fuzz_byte(input);
    uint8_t *bytes = fuzz_arena_take((uint64_t)room * (count + 1));
    fuzz_item *items[FUZZ_BATCH];
    memset(bytes, 0, (uint64_t)room * (count + 1));
    uint32_t taken = 0;
    for (uint32_t i = 0; i < count; i++) {
        while (taken < FUZZ_DEPTH && site->items[taken].flies)
            taken++;
        if (taken == FUZZ_DEPTH) return; /* all words are out */
        kvt_request request = fuzz_request(input, site, taken);
        items[i] = &site->items[taken++];
        *items[i] = (fuzz_item){.index = i, .kind = request.kind};
        request.struct_size = noise == 255 && i == count - 1 ? stride + 8 : stride;
        memcpy(bytes + (size_t)i * stride, &request,
               stride < sizeof request ? room : sizeof request);
        if (stride > sizeof request && noise % 8 == 7)
            bytes[(size_t)i * stride + sizeof request] = noise; /* what nobody knows */
    }
    uint64_t batch = 0;
    kvt_status status =
        kvt_queue_submit(site->queue, (const kvt_request *)(void *)bytes, count, &batch);
    fuzz_check(status == KVT_OK || status == KVT_BUSY || status == KVT_E_ARGUMENT);
    if (status != KVT_OK) return;
    fuzz_check(batch == ++site->batches);
    for (uint32_t i = 0; i < count; i++) {
        items[i]->flies = true;
        items[i]->batch = batch;
    }
    site->flying += count;
}

/* Whether a kind of request may end so. */
static bool fuzz_may_end(uint32_t kind, kvt_status status)
{
    if (status == KVT_E_CANCELLED || status == KVT_E_ARGUMENT) return true;
    switch (kind) {
    case KVT_REQUEST_GET:
        return status == KVT_OK || status == KVT_MISS || status == KVT_E_UNSUPPORTED;
    case KVT_REQUEST_PUT:
        return status >= 0 || status == KVT_E_TIMEOUT || status == KVT_E_UNSUPPORTED ||
               status == KVT_E_SPACE;
    case KVT_REQUEST_EXISTS:
    case KVT_REQUEST_TOUCH:
    case KVT_REQUEST_DELETE:
        return status == KVT_OK || status == KVT_MISS || status == KVT_BUSY ||
               status == KVT_E_TIMEOUT;
    case KVT_REQUEST_PREFETCH:
        return status == KVT_OK || status == KVT_MISS || status == KVT_REFUSED ||
               status == KVT_E_TIMEOUT || status == KVT_E_UNSUPPORTED;
    default: return false;
    }
}

static void fuzz_drain(fuzz_input *input, fuzz_site *site)
{
    const uint32_t capacity = fuzz_byte(input) % 8;
    const uint32_t stride = fuzz_struct_size(input, sizeof(kvt_completion));
    const uint32_t room = stride < sizeof(uint32_t) ? (uint32_t)sizeof(uint32_t) : stride;
    uint8_t *bytes = fuzz_arena_take((uint64_t)room * (capacity + 1));
    memset(bytes, 0, (uint64_t)room * (capacity + 1));
    memcpy(bytes, &stride, sizeof stride);
    size_t count = kvt_queue_drain(site->queue, (kvt_completion *)(void *)bytes, capacity);
    fuzz_check(count <= capacity && count <= site->flying);
    for (size_t i = 0; i < count; i++) {
        kvt_completion done = {0};
        memcpy(&done, bytes + i * stride, stride < sizeof done ? stride : sizeof done);
        fuzz_check(done.struct_size == stride && done.user < FUZZ_DEPTH);
        fuzz_item *item = &site->items[done.user];
        fuzz_check(item->flies && item->batch == done.batch && item->index == done.index);
        fuzz_check(item->kind == done.kind && fuzz_may_end(done.kind, done.status));
        item->flies = false;
        site->flying--;
    }
}

static void fuzz_open(fuzz_site *site)
{
    const kvt_queue_options options = {
        .struct_size = sizeof options, .threads = 1, .depth = FUZZ_DEPTH};
    fuzz_check(kvt_queue_open(site->store, &options, &site->queue) == KVT_OK);
    memset(site->items, 0, sizeof site->items);
    site->flying = 0;
    site->batches = 0;
}

/* After a close nothing is written any more. */
static void fuzz_close(fuzz_site *site)
{
    kvt_queue_close(site->queue);
    for (uint32_t i = 0; i < FUZZ_VIEWS; i++)
        memset(site->pools[i], (int)i, FUZZ_POOL);
    fuzz_open(site);
    for (uint32_t i = 0; i < FUZZ_VIEWS; i++)
        for (uint32_t k = 0; k < FUZZ_POOL; k++)
            fuzz_check(site->pools[i][k] == i);
}

static void fuzz_count(fuzz_input *input, fuzz_site *site)
{
    kvt_queue_stats stats = {.struct_size = sizeof stats};
    if (fuzz_byte(input) % 8 == 0) stats.struct_size = fuzz_byte(input) % sizeof stats;
    const bool whole = stats.struct_size == sizeof stats;
    if (kvt_queue_stats_get(site->queue, &stats) != KVT_OK) return;
    fuzz_check(!whole || stats.waiting + stats.begun + stats.undrained == site->flying);
    fuzz_check(!whole || stats.batches == site->batches);
}

static void fuzz_call(fuzz_input *input, fuzz_site *site)
{
    const uint8_t call = fuzz_byte(input);
    if (call < 120)
        fuzz_submit(input, site);
    else if (call < 190)
        fuzz_drain(input, site);
    else if (call < 210)
        (void)!kvt_queue_cancel(site->queue, fuzz_number(input, 6));
    else if (call < 225)
        (void)!kvt_queue_wait(site->queue, base_clock_ns() + 100000);
    else if (call < 240)
        fuzz_count(input, site);
    else if (call < 246)
        fuzz_close(site);
    else if (site->flying == 0)
        fuzz_make_things(input, site);
}

/* ---- one execution ---- */

static kvt_store *fuzz_store(void)
{
    static kvt_store *store;
    if (store != NULL) return store;
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 256 << 10;
    options.limits.staging_bytes = 1 << 20;
    options.limits.put_staging_bytes = 64 << 10;
    options.limits.tick_seconds = 0;
    options.policy = "lru";
    fuzz_check(kvt_store_open(&options, &store, NULL, 0) == KVT_OK);
    return store;
}

static void fuzz_end(fuzz_site *site)
{
    const uint64_t end_ns = base_clock_ns() + UINT64_C(60000000000);
    while (site->flying != 0) {
        const uint8_t none[1] = {0};
        fuzz_input input = {none, 0};
        fuzz_check(kvt_queue_wait(site->queue, end_ns) == KVT_OK);
        kvt_completion done = {.struct_size = sizeof done};
        fuzz_check(kvt_queue_drain(site->queue, &done, 1) == 1);
        fuzz_item *item = &site->items[done.user];
        fuzz_check(item->flies && fuzz_may_end(done.kind, done.status));
        item->flies = false;
        site->flying--;
        fuzz_count(&input, site);
    }
    fuzz_check(kvt_queue_wait(site->queue, 0) == KVT_END);
    kvt_queue_close(site->queue);
    kvt_clear_filter filter = {.struct_size = sizeof filter, .by_space = true};
    const kvt_key key = {{7}};
    filter.space = kvt_key_space(&key);
    (void)!kvt_store_flush(site->store);
    fuzz_check(kvt_store_clear(site->store, &filter, NULL) == KVT_OK);
    kvt_store_stats stats = {.struct_size = sizeof stats};
    fuzz_check(kvt_store_stats_get(site->store, &stats) == KVT_OK);
    fuzz_check(stats.staging_bytes == 0 && stats.tiers[KVT_TIER_DRAM].used_bytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    static fuzz_site site;
    memset(&site, 0, sizeof site);
    fuzz_arena_reset();
    site.store = fuzz_store();
    for (uint32_t i = 0; i < FUZZ_VIEWS; i++) {
        site.pools[i] = fuzz_arena_take(FUZZ_POOL);
        memset(site.pools[i], 0x40 + (int)i, FUZZ_POOL);
    }
    fuzz_open(&site);
    fuzz_make_things(&input, &site);
    for (uint32_t i = 0; i < FUZZ_CALLS && input.size != 0; i++)
        fuzz_call(&input, &site);
    fuzz_end(&site);
    return 0;
}
