/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound.c - stays, their variants, and the Lagrangian dual over them: an upper bound on the seconds
 * that any placement could save (bound.h).
 */
#include "bound.h"

#include "live.h"

#include "codecs/record.h"
#include "sparse/decide/knapsack.h"

#include <stdlib.h>
#include <string.h>

#define BOUND_REFINE 20u /* passes over all stays at most, after the sample's */

_Static_assert(BOUND_LEVELS == KNAPSACK_ROWS, "prices have one place for each tier");

/* ---- what a use is worth ---- */

/* A partial block's record ends on a whole grain too, so it is at least its part of the whole one
 * less that of a grain. */
static kvt_status bound_find_grain(bound_source *source)
{
    const replay_options *options = source->options;
    uint32_t unit = source->workload->block_tokens, count;
    kvt_option built[KVT_OPTIONS_MAX];
    kvt_status status = block_options(options, unit, built, &count);
    for (uint32_t o = 1; o < count && status == KVT_OK; o++) {
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            if (built[o].read_bytes[tier] == 0) continue;
            double share = (double)KVT_RECORD_ALIGN / (double)built[o].read_bytes[tier];
            if (share > source->grain_share) source->grain_share = share;
        }
    }
    return status;
}

kvt_status bound_source_open(bound_source *source, const replay_options *options,
                             const replay_workload *workload)
{
    *source = (bound_source){.options = options, .workload = workload};
    if (!options->partial_exact) return KVT_OK;
    uint32_t unit = workload->block_tokens;
    source->least_tokens = malloc(((size_t)workload->distinct_blocks + 1) * sizeof(uint32_t));
    if (source->least_tokens == NULL) return KVT_E_MEMORY;
    for (uint64_t i = 0; i < workload->distinct_blocks; i++)
        source->least_tokens[i] = unit;
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *request = &workload->requests[i];
        for (uint32_t j = 0; j < request->block_count; j++) {
            uint32_t block = workload->blocks[request->first_block + j];
            uint32_t rest = request->input_tokens - j * unit;
            if (rest < source->least_tokens[block]) source->least_tokens[block] = rest;
        }
    }
    return bound_find_grain(source);
}

void bound_source_close(bound_source *source)
{
    free(source->least_tokens);
    source->least_tokens = NULL;
}

/* A loaded block saves the prefill of its tokens; the request's last token is computed always. Its
 * loss weighs by its share of the most that could be loaded, which no policy can dilute. */
bound_stay bound_use(const bound_source *source, const replay_request *request, uint32_t position,
                     uint32_t run_tokens)
{
    const replay_options *options = source->options;
    const kvt_prefill *prefill = &options->model.prefill;
    uint32_t unit = source->workload->block_tokens;
    uint32_t block = source->workload->blocks[request->first_block + position];
    uint32_t first = position * unit;
    uint32_t rest = request->input_tokens - first;
    uint32_t tokens = rest < unit ? rest : unit;
    double saved = kvt_prefill_seconds(prefill, first, first + tokens);
    if (rest <= unit)
        saved -= kvt_prefill_seconds(prefill, request->input_tokens - 1, request->input_tokens);
    double share = run_tokens > 0 ? (double)tokens / (double)run_tokens : 1.0;
    double most = replay_alpha(options, request->input_tokens) * share;
    float factor = 1.0f;
    if (options->sensitivity > 0.0) replay_sensitivity(options, block, &factor, NULL);
    bound_stay stay = {.block = block,
                       .recompute_s = (float)saved,
                       .uses = 1.0f,
                       .sense = (float)(most * (double)factor),
                       .loss_most = (float)most,
                       .scale = 1.0f};
    if (source->least_tokens != NULL && source->least_tokens[block] < unit) {
        double part = (double)source->least_tokens[block] / (double)unit;
        stay.scale = (float)(part * (1.0 - source->grain_share));
    }
    return stay;
}

/* ---- variants ---- */

/* Which variants an entry may be held in, if it is to be loaded as `to`. */
static uint32_t bound_sources(const kvt_option *options, uint32_t count, uint32_t to)
{
    uint32_t sources = 0;
    const kvt_variant *wanted = &options[to].variant;
    for (uint32_t from = 1; from < count; from++) {
        const kvt_variant *held = &options[from].variant;
        bool same = held->codec == wanted->codec && held->mode == wanted->mode &&
                    held->rate == wanted->rate;
        if (same || options[from].loss <= 0.0 || (options[to].made_from >> from & 1) != 0) {
            sources |= UINT32_C(1) << (from - 1);
        }
    }
    return sources;
}

/* A variant counts with the bytes that its record is expected to take: plans reserve a little more.
 */
static bool bound_fill_form(const kvt_option *option, const replay_options *options,
                            const double weight[KVT_TIER_COUNT], bound_variant *shape)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (option->read_bytes[tier] == 0) continue;
        if (option->read_bytes[tier] > options->tiers[tier].capacity_bytes) return false;
        double fixed = options->model.read[tier].request_seconds;
        shape->level = tier - 1;
        shape->bytes = (double)option->read_bytes[tier];
        shape->request_s = weight[tier] * fixed;
        shape->sized_s = weight[tier] * (option->load_seconds - fixed);
    }
    if (!options->overlap) shape->sized_s += option->decode_seconds;
    shape->loss = option->loss;
    return true;
}

kvt_status bound_begin(bound_instance *instance, const bound_source *source,
                       const double weight[KVT_TIER_COUNT], double horizon)
{
    const replay_options *options = source->options;
    kvt_option built[KVT_OPTIONS_MAX];
    uint32_t count;
    kvt_status status = block_options(options, source->workload->block_tokens, built, &count);
    if (status != KVT_OK) return status;
    instance->variant_count = 0;
    for (uint32_t o = 0; o < KVT_OPTIONS_MAX; o++)
        instance->place[o] = BOUND_NONE;
    for (uint32_t o = 1; o < count; o++) {
        bound_variant *shape = &instance->variants[instance->variant_count];
        *shape = (bound_variant){.bytes = 0.0};
        if (bound_fill_form(&built[o], options, weight, shape))
            instance->place[o] = instance->variant_count++;
    }
    for (uint32_t o = 1; o < count; o++) {
        uint32_t sources = instance->place[o] != BOUND_NONE ? bound_sources(built, count, o) : 0;
        for (uint32_t from = 1; from < count; from++) {
            if ((sources >> (from - 1) & 1) == 0 || instance->place[from] == BOUND_NONE) continue;
            instance->variants[instance->place[o]].held_as |= UINT32_C(1) << instance->place[from];
        }
    }
    for (int level = 0; level < KNAPSACK_ROWS; level++)
        instance->capacity[level] = (double)options->tiers[level + 1].capacity_bytes * horizon;
    return KVT_OK;
}

kvt_status bound_add(bound_instance *instance, const bound_stay *stay)
{
    if (instance->count == instance->room) {
        uint64_t room = instance->room == 0 ? 1024 : (uint64_t)instance->room * 2;
        if (room >= UINT32_MAX) return KVT_E_MEMORY;
        bound_stay *grown = realloc(instance->stays, (size_t)room * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        instance->stays = grown;
        instance->room = (uint32_t)room;
    }
    instance->stays[instance->count++] = *stay;
    return KVT_OK;
}

void bound_end(bound_instance *instance)
{
    free(instance->stays);
    *instance = (bound_instance){.count = 0};
}

/* ---- the dual ---- */

double bound_value(const bound_variant *shape, const bound_stay *stay)
{
    double loss = (double)stay->sense * shape->loss;
    if (loss > (double)stay->loss_most) loss = (double)stay->loss_most;
    double load = shape->request_s + (double)stay->scale * shape->sized_s;
    double value = (double)stay->recompute_s - (double)stay->uses * load - loss;
    return value > 0.0 ? value : 0.0;
}

/* The variants side by side, so that the scores of a stay are computed at once; and which variant
 * is held for each, where variants may change. */
typedef struct bound_table {
    double request_s[KVT_OPTIONS_MAX], sized_s[KVT_OPTIONS_MAX], loss[KVT_OPTIONS_MAX];
    double price[KVT_OPTIONS_MAX];      /* of a unit of span in the variant itself */
    double held_price[KVT_OPTIONS_MAX]; /* and in the cheapest that becomes it */
    uint32_t held[KVT_OPTIONS_MAX];
} bound_table;

static void bound_fill_table(const bound_instance *instance, const double price[BOUND_LEVELS],
                             bound_table *table)
{
    for (uint32_t o = 0; o < instance->variant_count; o++) {
        const bound_variant *shape = &instance->variants[o];
        table->request_s[o] = shape->request_s;
        table->sized_s[o] = shape->sized_s;
        table->loss[o] = shape->loss;
        table->price[o] = price[shape->level] * shape->bytes;
    }
    for (uint32_t o = 0; o < instance->variant_count; o++) {
        uint32_t held = o, sources = instance->moving ? instance->variants[o].held_as : 0;
        for (uint32_t from = 0; sources >> from != 0; from++) {
            bool may = (sources >> from & 1) != 0;
            if (may && table->price[from] < table->price[held]) held = from;
        }
        table->held[o] = held;
        table->held_price[o] = table->price[held];
    }
}

/* Best variant of a stay that is worth its price, or BOUND_NONE. */
static uint32_t bound_choose(const bound_table *table, uint32_t count, const bound_stay *stay,
                             double last, double *score_out)
{
    double score[KVT_OPTIONS_MAX];
    double scale = (double)stay->scale, uses = (double)stay->uses, sized = uses * scale;
    double sense = (double)stay->sense, most = (double)stay->loss_most;
    double span = scale * ((double)stay->span - last), end = scale * last;
    for (uint32_t o = 0; o < count; o++) {
        double loss = sense * table->loss[o];
        loss = loss < most ? loss : most;
        score[o] = (double)stay->recompute_s - uses * table->request_s[o] -
                   sized * table->sized_s[o] - loss - span * table->held_price[o] -
                   end * table->price[o];
    }
    uint32_t found = BOUND_NONE;
    *score_out = 0.0;
    for (uint32_t o = 0; o < count; o++) {
        if (score[o] <= *score_out) continue;
        *score_out = score[o];
        found = o;
    }
    return found;
}

/* The oracle of the dual search: all stays at these prices, every stride-th of them. */
static void bound_ask(const void *context, const double price[BOUND_LEVELS], uint32_t stride,
                      price_pass *out)
{
    const bound_instance *instance = context;
    bound_table table;
    bound_fill_table(instance, price, &table);
    for (uint32_t i = 0; i < instance->count; i += stride) {
        const bound_stay *stay = &instance->stays[i];
        double last = instance->moving ? (double)stay->last : 0.0, score;
        uint32_t found = bound_choose(&table, instance->variant_count, stay, last, &score);
        if (found == BOUND_NONE) continue;
        const bound_variant *after = &instance->variants[found];
        const bound_variant *before = &instance->variants[table.held[found]];
        double scale = (double)stay->scale;
        out->value += score;
        out->used[before->level] += scale * ((double)stay->span - last) * before->bytes;
        out->used[after->level] += scale * last * after->bytes;
    }
}

double bound_solve(const bound_instance *instance, double tolerance,
                   double price_out[KNAPSACK_ROWS])
{
    price_search search = {
        .ask = bound_ask, .context = instance, .entries = instance->count, .tolerance = tolerance};
    for (int level = 0; level < KNAPSACK_ROWS; level++) {
        search.capacity[level] = instance->capacity[level];
        search.price[level] = 1e-12;
    }
    price_find(&search, BOUND_REFINE);
    if (price_out != NULL) memcpy(price_out, search.best_price, sizeof search.best_price);
    return search.best;
}

double bound_ideal(const bound_instance *instance)
{
    const double nothing[KNAPSACK_ROWS] = {0.0, 0.0, 0.0};
    price_pass pass = {0};
    bound_ask(instance, nothing, 1, &pass);
    return pass.value;
}

/* ---- the offline optimum for blocks of one size ---- */

/*
 * A heap by next use holds the resident blocks. A hit inserts the block again with its new next
 * use; the old item is stale and skipped when it comes up, so a hit costs one insertion and no
 * search.
 */

#define NEVER UINT64_MAX

typedef struct future {
    uint64_t next; /* reference that uses the block next */
    uint32_t block;
} future;

typedef struct futures { /* a binary heap, the farthest first */
    future *items;
    uint64_t count;
} futures;

/* Files a block by its next use. */
static void futures_add(futures *queue, future added)
{
    uint64_t at = queue->count++;
    while (at > 0 && queue->items[(at - 1) / 2].next < added.next) {
        queue->items[at] = queue->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->items[at] = added;
}

/* Removes the block whose next use is the farthest. */
static future futures_take(futures *queue)
{
    future first = queue->items[0];
    future last = queue->items[--queue->count];
    uint64_t at = 0;
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= queue->count) break;
        if (child + 1 < queue->count && queue->items[child + 1].next > queue->items[child].next) {
            child++;
        }
        if (queue->items[child].next <= last.next) break;
        queue->items[at] = queue->items[child];
        at = child;
    }
    if (queue->count > 0) queue->items[at] = last;
    return first;
}

/* next_use[i]: the reference after i to the same block. */
static void belady_look_ahead(const replay_workload *workload, uint64_t *next_use, uint64_t *seen)
{
    memset(seen, 0xFF, workload->distinct_blocks * sizeof *seen);
    for (uint64_t i = workload->block_refs; i-- > 0;) {
        uint32_t block = workload->blocks[i];
        next_use[i] = seen[block];
        seen[block] = i;
    }
}

double replay_belady(const replay_workload *workload, uint64_t blocks)
{
    uint64_t refs = workload->block_refs;
    uint64_t *next_use = malloc((refs + 1) * sizeof *next_use);
    uint64_t *resident = malloc((workload->distinct_blocks + 1) * sizeof *resident);
    futures queue = {malloc((refs + 1) * sizeof *queue.items), 0};
    double ratio = -1.0;
    if (next_use == NULL || resident == NULL || queue.items == NULL) goto out;
    belady_look_ahead(workload, next_use, resident);
    /* From here on: the next use by which a resident block is filed, 0 for others. */
    memset(resident, 0, workload->distinct_blocks * sizeof *resident);
    uint64_t hits = 0, held = 0;
    for (uint64_t i = 0; i < refs; i++) {
        uint32_t block = workload->blocks[i];
        bool hit = resident[block] != 0;
        hits += hit;
        if (next_use[i] == NEVER) {
            held -= hit;
            resident[block] = 0;
            continue;
        }
        resident[block] = next_use[i];
        futures_add(&queue, (future){next_use[i], block});
        held += !hit;
        while (held > blocks) {
            future farthest = futures_take(&queue);
            if (resident[farthest.block] != farthest.next) continue;
            resident[farthest.block] = 0;
            held--;
        }
    }
    ratio = refs > 0 ? (double)hits / (double)refs : 0.0;
out:
    free(next_use);
    free(resident);
    free(queue.items);
    return ratio;
}
