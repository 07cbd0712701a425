/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_open.c - a sequence's life: its options, the room that it needs, and its end.
 *
 * Room is asked for once, before any work: slots of all pages and of their copies on SSD, and the
 * windows in DRAM and HBM. So an open that succeeds does not run out of tiers later.
 *
 * Thread rule: the sequence's thread; opens of several sequences from any threads.
 */
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/handle_calls.h"
#include "base/struct_size.h"
#include "kept.h"
#include "sequence.h"

#define OPTIONS_LEAST STRUCT_SIZE_THROUGH(kvt_sparse_options, seed)

enum { APPEND_TOKENS = 1024, OPTIONS_HEDGE_NS = 20000000 };

void kvt_sparse_options_init_sized(kvt_sparse_options *options, uint32_t struct_size,
                                   const kvt_layout *layout)
{
    const kvt_sparse_options whole = {.query_heads = layout->kv_heads,
                                      .layout = *layout,
                                      .sink_tokens = 4,
                                      .local_tokens = 64,
                                      .join_tokens = 256,
                                      .variants = 1u << KVT_SPARSE_BITS_4 |
                                                  1u << KVT_SPARSE_BITS_8 | 1u << KVT_SPARSE_RAW,
                                      .decay = WINDOWS_DECAY_DEFAULT,
                                      .replica_share = 0.25f,
                                      .estimate = true,
                                      .divide_windows = true,
                                      .hedge_ns = OPTIONS_HEDGE_NS};
    options->struct_size = struct_size;
    struct_size_out(options, &whole, sizeof whole);
}

/* One line for a person; the buffer may be NULL. */
static void say(char *message, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(char *message, size_t size, const char *format, ...)
{
    if (message == NULL || size == 0) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, size, format, arguments);
    va_end(arguments);
}

/* ---- options ---- */

static const char *options_fault(const kvt_sparse_options *o)
{
    const uint32_t known = (1u << PAGES_VARIANTS) - 2;
    if (o->layout.layers == 0 || o->layout.kv_heads == 0 || o->layout.tokens == 0)
        return "the layout has no layers, heads or tokens";
    if ((uint64_t)o->layout.layers * o->layout.kv_heads > SPARSE_UNITS_MAX)
        return "layers * kv_heads is above 65,536";
    if (o->layout.order > KVT_ORDER_SIDE_LAYER || o->layout.tokens_may_drop != 0)
        return "the layout's order is unknown, or its tokens may drop";
    if (!o->given && kvt_layout_sides(&o->layout) != 2) return "a sequence has K and V";
    if (o->layout.sides == KVT_SIDES_V) return "one side is K";
    if (o->given && o->variants != 1u << PAGES_RAW)
        return "variants is not raw alone, where the model selects";
    if (o->key_bytes > 0 && (!o->given || o->key_bytes > SPARSE_KEY_BYTES_MAX))
        return "key_bytes is above 65,536, or the model does not select";
    if (o->layout.sides > 2 || o->layout.opaque_bytes != 0 ||
        (o->layout.reserved[0] | o->layout.reserved[1]) != 0)
        return "the layout's sides are unknown, or fields that have to be zero are not";
    if (o->cluster_tokens > SPARSE_CLUSTER_MAX) return "cluster_tokens is above 256";
    if (o->iterations > SPARSE_ITERATIONS_MAX) return "iterations is above 100";
    if (o->segment_tokens % SPARSE_CODE_TOKENS != 0 || o->segment_tokens > SPARSE_SEGMENT_MAX)
        return "segment_tokens is not a multiple of 128 up to 32,768";
    if (o->page_tokens != 0 && (o->page_tokens < 8 || SPARSE_CODE_TOKENS % o->page_tokens != 0))
        return "page_tokens is none of 8, 16, 32, 64 and 128";
    if (o->query_heads == 0 || o->query_heads % o->layout.kv_heads != 0)
        return "query_heads is not a multiple of kv_heads";
    if (o->query_heads / o->layout.kv_heads > SPARSE_GROUP_MAX) return "too many query heads";
    if ((o->variants & known) == 0 || (o->variants & ~known) != 0) return "variants are unknown";
    if (!(o->decay >= 0 && o->decay < 1)) return "decay is outside of [0, 1)";
    if (!(o->index_share >= 0 && o->index_share <= 1)) return "index_share is no share";
    if (!(o->single_share >= 0 && o->single_share <= 1)) return "single_share is no share";
    if (o->single_share > 0 && (!o->estimate || o->given))
        return "single_share has no estimate, or the model selects";
    if (!(o->replica_share >= 0 && o->replica_share <= 1)) return "replica_share is no share";
    if (o->tokens_max != 0 && o->tokens_max < o->layout.tokens)
        return "tokens_max is below the layout's tokens";
    if (!(o->worth_per_byte >= 0)) return "worth_per_byte is no number, or negative";
    for (int tier = 0; tier < KVT_TIER_PLACES; tier++)
        if (tier != KVT_TIER_HBM && tier != KVT_TIER_DRAM && o->window_bytes[tier] != 0)
            return "HBM and DRAM alone have windows";
    return NULL;
}

/* Zone, sinks and local tokens. The zone is whole pages, so too short a one is all local. */
static void divide_tokens(kvt_sparse *s, uint32_t page_tokens)
{
    kvt_sparse_options *o = &s->options;
    const uint32_t tokens = o->layout.tokens;
    if (o->sink_tokens > tokens) o->sink_tokens = tokens;
    const uint32_t rest = tokens - o->sink_tokens;
    s->zone_tokens = rest > o->local_tokens ? rest - o->local_tokens : 0;
    s->zone_tokens -= s->zone_tokens % page_tokens;
    s->local_first = o->sink_tokens + s->zone_tokens;
    s->local_most = o->tokens_max - s->local_first;
    /* The prompt's own local tokens all have room. */
    const uint32_t first = tokens - s->local_first;
    const uint64_t wished = (uint64_t)o->local_tokens + o->join_tokens;
    const uint64_t keep = wished > first ? wished : first > 0 ? first : 1;
    s->local_keep = keep < s->local_most ? (uint32_t)keep : s->local_most;
    const uint64_t room = (uint64_t)s->local_keep * 3 / 2 + 16;
    s->local_room = room < s->local_most ? (uint32_t)room : s->local_most;
}

/* ---- room ---- */

/* What the tiers are asked for; the copies of a unit lie on up to all members, one object each. */
static uint32_t wish_room(const kvt_sparse *s, const sparse_paging *paging, bool zone_has_room,
                          scratch_wish wishes[3])
{
    const uint64_t units = (uint64_t)s->options.layout.layers * s->options.layout.kv_heads;
    const uint64_t slot = sparse_slot_bytes(paging, s->variants, NULL);
    const uint64_t pages = (zone_has_room ? (uint64_t)paging->pages : 0) + s->tail_paging.pages;
    const uint64_t copies = (uint64_t)ceil((double)s->options.replica_share * paging->pages);
    wishes[0] = (scratch_wish){
        .tier = KVT_TIER_SSD, .bytes = units * (pages + copies) * slot, .worth_per_byte = INFINITY};
    const uint64_t windows[] = {
        s->options.window_bytes[KVT_TIER_DRAM] / SPARSE_GRAIN * SPARSE_GRAIN, sparse_hbm_bytes(s)};
    const kvt_tier tiers[] = {KVT_TIER_DRAM, KVT_TIER_HBM};
    uint32_t count = 1;
    for (int i = 0; i < 2; i++)
        if (windows[i] > 0)
            wishes[count++] = (scratch_wish){
                .tier = tiers[i], .bytes = windows[i], .worth_per_byte = s->options.worth_per_byte};
    return count;
}

static void say_missing(const uint64_t *missing, char *message, size_t size)
{
    say(message, size, "the sequence lacks %llu bytes of SSD, %llu of DRAM and %llu of HBM",
        (unsigned long long)missing[KVT_TIER_SSD], (unsigned long long)missing[KVT_TIER_DRAM],
        (unsigned long long)missing[KVT_TIER_HBM]);
}

static kvt_status take_room(kvt_sparse *s, const sparse_paging *paging, bool zone_has_room,
                            char *message, size_t size)
{
    scratch_wish wishes[3];
    uint64_t missing[KVT_TIER_COUNT];
    if (s->options.window_bytes[KVT_TIER_HBM] > 0 && sparse_hbm_bytes(s) == 0) {
        say(message, size, "window_bytes of HBM is less than one page of each layer and head");
        return KVT_E_ARGUMENT;
    }
    const uint32_t count = wish_room(s, paging, zone_has_room, wishes);
    kvt_status status = scratch_open(s->store, wishes, count, &s->scratch, missing);
    if (status == KVT_E_SPACE) say_missing(missing, message, size);
    if (status == KVT_E_UNSUPPORTED)
        say(message, size, "the store has no SSD for pages, or no DRAM or HBM for the windows");
    return status;
}

kvt_status sparse_sequence_grow(kvt_sparse *s, uint64_t bytes, char *message, size_t message_size)
{
    uint64_t missing[KVT_TIER_COUNT] = {0};
    const scratch_wish wish = {.tier = KVT_TIER_SSD, .bytes = bytes, .worth_per_byte = INFINITY};
    kvt_status status = scratch_grow(s->scratch, &wish, &missing[KVT_TIER_SSD]);
    if (status == KVT_E_SPACE) say_missing(missing, message, message_size);
    return status;
}

/* ---- memory ---- */

/* Rows of sinks and local tokens: one block, [unit][K, V][sinks + local room]. */
static kvt_status make_rows(kvt_sparse *s)
{
    const kvt_layout *layout = &s->options.layout;
    const uint64_t units = (uint64_t)layout->layers * layout->kv_heads;
    const uint64_t tokens = (uint64_t)s->options.sink_tokens + s->local_room;
    const uint64_t side = tokens * s->row_bytes, both = side + tokens * s->value_bytes;
    s->units = calloc(units, sizeof *s->units);
    s->appended = calloc(layout->layers, sizeof *s->appended);
    s->rows = calloc(units, both);
    const uint64_t positions = (uint64_t)s->options.sink_tokens + s->local_most;
    s->positions = malloc(positions * sizeof *s->positions);
    if (s->units == NULL || s->appended == NULL || s->rows == NULL || s->positions == NULL)
        return KVT_E_MEMORY;
    for (uint64_t i = 0; i < positions; i++)
        s->positions[i] = (uint32_t)(i < s->options.sink_tokens ? i : i + s->zone_tokens);
    for (uint64_t i = 0; i < units; i++) {
        uint8_t *rows = s->rows + i * both;
        const uint64_t sinks = (uint64_t)s->options.sink_tokens * s->row_bytes;
        s->units[i].sinks = (sparse_resident){.keys = rows, .values = rows + side};
        s->units[i].local = (sparse_resident){.keys = rows + sinks, .values = rows + side + sinks};
        if (s->value_bytes == 0) s->units[i].local.values = s->units[i].local.keys;
    }
    return KVT_OK;
}

kvt_status sparse_sequence_paging(const kvt_sparse *s, uint32_t tokens, uint32_t segment_tokens,
                                  uint32_t page_tokens, sparse_paging *paging)
{
    const kvt_layout *layout = &s->options.layout;
    /* Nothing is coded where the model selects: the least page that fills a grain. */
    for (uint32_t n = 8; s->options.given && page_tokens == 0; n *= 2)
        if (n * (s->row_bytes + s->value_bytes) >= SPARSE_GRAIN || n == SPARSE_CODE_TOKENS)
            page_tokens = n;
    const kvt_status status = sparse_paging_init(paging, layout->head_dim, layout->dtype, tokens,
                                                 segment_tokens, page_tokens);
    paging->sides = s->value_bytes > 0 ? 2 : 1;
    return status;
}

/* Whether sequences have such rows: an index is over numbers, and its sums have a limit. */
static bool rows_are_known(const kvt_sparse_options *o)
{
    const uint8_t dtype = o->layout.dtype;
    if (o->given && dtype == KVT_DTYPE_FP8) return true;
    if (!o->given && o->layout.head_dim > SPARSE_HEAD_DIM_MAX) return false;
    return dtype == KVT_DTYPE_FP16 || dtype == KVT_DTYPE_BF16 || dtype == KVT_DTYPE_FP32;
}

/* Settles what the options leave open. */
static kvt_status settle_options(kvt_sparse *s, sparse_paging *paging)
{
    kvt_sparse_options *o = &s->options;
    if (!rows_are_known(o)) return KVT_E_UNSUPPORTED;
    if (o->tokens_max == 0) o->tokens_max = o->layout.tokens + APPEND_TOKENS;
    if (o->segment_tokens == 0) o->segment_tokens = SPARSE_SEGMENT_TOKENS;
    if (o->given) o->sink_tokens = 0;
    s->row_bytes = o->layout.head_dim * kvt_dtype_bytes(o->layout.dtype);
    s->value_bytes = kvt_layout_sides(&o->layout) == 2 ? s->row_bytes : 0;
    if (sparse_sequence_paging(s, o->layout.tokens, o->segment_tokens, o->page_tokens, paging) !=
        KVT_OK)
        return KVT_E_UNSUPPORTED;
    const uint32_t page_tokens = paging->page_tokens;
    divide_tokens(s, page_tokens);
    const uint32_t appended = (s->local_most - s->local_keep) / page_tokens * page_tokens;
    if (sparse_sequence_paging(s, s->zone_tokens, o->segment_tokens, page_tokens, paging) !=
            KVT_OK ||
        sparse_sequence_paging(s, appended, 0, page_tokens, &s->tail_paging) != KVT_OK ||
        sparse_sequence_paging(s, page_tokens, 0, page_tokens, &s->tail_page) != KVT_OK)
        return KVT_E_UNSUPPORTED;
    s->variants = o->variants;
    s->group = o->query_heads / o->layout.kv_heads;
    s->scale = 1.0f / sqrtf((float)o->layout.head_dim);
    pages_terms_init(&s->terms, o->layout.head_dim, kvt_dtype_bytes(o->layout.dtype), s->variants,
                     SPARSE_GRAIN);
    s->terms.token_bytes[PAGES_RAW] = s->row_bytes + s->value_bytes;
    s->terms.rows_stay = true;
    return KVT_OK;
}

/* Seconds to read a byte, for curves in seconds. */
static double seconds_per_byte(const kvt_sparse *s)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(scratch_pool(s->scratch, KVT_TIER_SSD), &facts);
    return facts.read_bytes_per_s > 0 ? 1.0 / facts.read_bytes_per_s : 1e-9;
}

kvt_status sparse_sequence_make(kvt_store *store, const kvt_sparse_options *given,
                                bool zone_has_room, kvt_sparse **sequence_out, char *message,
                                size_t message_size)
{
    kvt_sparse_options whole = {.struct_size = sizeof whole};
    const kvt_sparse_options *options =
        given != NULL ? struct_size_in(given, &whole, sizeof whole, OPTIONS_LEAST) : NULL;
    const char *fault = store == NULL || given == NULL || sequence_out == NULL
                            ? "no store, options or place for the sequence"
                        : options == NULL ? "struct_size is not one that this library knows"
                                          : options_fault(options);
    if (fault != NULL) {
        say(message, message_size, "%s", fault);
        return KVT_E_ARGUMENT;
    }
    if (!scratch_is_ours(store)) {
        say(message, message_size, "the store was opened by another process");
        return KVT_E_STATE;
    }
    sparse_paging paging;
    kvt_sparse *s = calloc(1, sizeof *s);
    if (s == NULL) return KVT_E_MEMORY;
    s->store = store;
    s->options = *options;
    /* Sequences of one store never have one id: a page of another one fails its checksum. */
    static _Atomic uint64_t drawn;
    s->id = (s->options.seed + atomic_fetch_add(&drawn, 1) + 1) * UINT64_C(0xd1342543de82ef95);
    kvt_status status = settle_options(s, &paging);
    if (status != KVT_OK)
        say(message, message_size,
            "head_dim is not a multiple of 8 up to %u, or the dtype none of fp16, bf16 and fp32",
            s->options.given ? SPARSE_ROW_DIM_MAX : SPARSE_HEAD_DIM_MAX);
    /* Room first: memory for more tokens than the drives have room for is never touched. */
    if (status == KVT_OK) status = take_room(s, &paging, zone_has_room, message, message_size);
    if (status == KVT_OK) status = make_rows(s);
    if (status == KVT_OK) s->seconds_per_byte = seconds_per_byte(s);
    if (status == KVT_OK) status = sparse_append_open(s);
    if (status == KVT_OK) status = sparse_given_open(s);
    if (status == KVT_OK) {
        status = sparse_window_open(s);
        if (status == KVT_E_UNSUPPORTED)
            say(message, message_size, "no device of HBM says where a kernel finds its bytes");
        if (status == KVT_E_SPACE)
            say(message, message_size, "no device of HBM has %llu bytes in one piece",
                (unsigned long long)sparse_hbm_bytes(s));
    }
    if (status == KVT_E_MEMORY) say(message, message_size, "there is no memory for the sequence");
    if (status != KVT_OK) {
        kvt_sparse_close(s);
        return status;
    }
    *sequence_out = s;
    return KVT_OK;
}

void sparse_sequence_say(kvt_status status, char *message, size_t message_size)
{
    if (message != NULL && message_size > 0 && message[0] == '\0')
        say(message, message_size, "%s", kvt_status_text(status));
}

kvt_status kvt_sparse_open_live(kvt_store *store, const kvt_sparse_options *options,
                                kvt_sparse **sequence_out, char *message, size_t message_size)
{
    if (base_store_calls_of(store) != NULL) return KVT_E_UNSUPPORTED;
    if (message != NULL && message_size > 0) message[0] = '\0';
    return sparse_sequence_make(store, options, true, sequence_out, message, message_size);
}

kvt_status sparse_sequence_wait_blocks(kvt_sparse *s)
{
    kvt_status first = KVT_OK;
    for (int i = 0; i < 2; i++) {
        kvt_status status = s->blocks[i] != NULL ? sparse_block_wait(s->blocks[i]) : KVT_OK;
        if (first == KVT_OK) first = status;
    }
    return first;
}

kvt_status sparse_sequence_add_layer(kvt_sparse *s)
{
    s->layers_given++;
    if (s->layers_given < s->options.layout.layers) return KVT_OK;
    for (int i = 0; i < 2; i++) {
        sparse_block_free(s->blocks[i]);
        s->blocks[i] = NULL;
    }
    return sparse_steps_open(s);
}

void kvt_sparse_close(kvt_sparse *s)
{
    if (s == NULL || !scratch_is_ours(s->store)) return;
    const uint64_t units = (uint64_t)s->options.layout.layers * s->options.layout.kv_heads;
    for (int i = 0; i < 2; i++)
        sparse_block_free(s->blocks[i]);
    sparse_steps_close(s);
    for (uint64_t i = 0; s->units != NULL && i < units; i++) {
        sparse_unit *unit = &s->units[i];
        sparse_append_close_unit(unit);
        sparse_index_free(&unit->index);
        sparse_code_close(&unit->code);
        sparse_singles_free(&unit->single_codes);
        sparse_table_close(&unit->table);
        sparse_window_close_unit(unit);
        free(unit->token_at);
        free(unit->place_of);
    }
    if (s->scratch != NULL) sparse_window_close(s);
    sparse_append_close(s);
    sparse_given_close(s);
    scratch_close(s->scratch);
    free(s->units);
    free(s->appended);
    free(s->rows);
    free(s->positions);
    free(s);
}

kvt_status kvt_sparse_stats_get(const kvt_sparse *s, kvt_sparse_stats *stats)
{
    if (s == NULL || stats == NULL || stats->struct_size != sizeof *stats) return KVT_E_ARGUMENT;
    if (!scratch_is_ours(s->store)) return KVT_E_STATE;
    *stats = s->stats;
    stats->struct_size = sizeof *stats;
    for (uint32_t i = 0; s->index_keys != NULL && i < s->options.layout.layers; i++)
        stats->index_bytes += (uint64_t)s->index_key_tokens[i] * s->options.key_bytes;
    for (uint64_t i = 0; i < (uint64_t)s->layers_given * s->options.layout.kv_heads; i++) {
        const sparse_unit *unit = &s->units[i];
        const uint64_t pages = sparse_unit_pages(unit);
        const sparse_tail *tail = &unit->tail;
        stats->pages += pages;
        stats->page_bytes += pages * unit->table.slot_bytes;
        stats->index_bytes += unit->index.bytes + unit->index.slope_bytes + unit->code.bytes +
                              unit->single_codes.bytes + tail->added.bytes +
                              pages * sizeof *unit->table.sums;
        if (unit->token_at != NULL)
            stats->index_bytes += 2 * (uint64_t)s->zone_tokens * sizeof *unit->token_at;
        for (uint32_t page = 0; tail->codes != NULL && page < tail->added.pages; page++)
            stats->index_bytes += tail->codes[page].bytes;
        stats->appended_pages += tail->added.pages;
        stats->copied_pages += unit->table.copied;
        uint64_t slots = 0;
        for (uint32_t slot = 0; slot < unit->slots; slot++)
            slots += unit->slot_page[slot] != SPARSE_NOT_HELD;
        const uint64_t page_bytes = sparse_window_page_bytes(unit);
        stats->tier_window_bytes[KVT_TIER_HBM] += slots * page_bytes;
        stats->tier_window_bytes[KVT_TIER_DRAM] += unit->dram_pages * page_bytes;
        if (unit->table.visited.visit != NULL) stats->in_place_pages += unit->paging.pages;
    }
    return KVT_OK;
}
