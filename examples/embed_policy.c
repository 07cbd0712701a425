/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embed_policy.c - the decision engine alone, in somebody else's program: this one keeps blocks of
 * text in two arrays, a small fast one and a larger slow one, and lets kvterrace decide which block
 * lives where. It uses policy.h and nothing else of kvterrace.
 *
 * The executor is `carry_out`: it does what a move says. Everything else is the caller's data.
 * Exit status 0 when every block that the engine calls stored reads back whole.
 */
#include <kvterrace/policy.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 40, BLOCK_BYTES = 64, DRAM_SLOTS = 6, SSD_SLOTS = 12, REQUESTS = 2000 };
enum { IN_DRAM = 1, IN_SSD = 2, OPTIONS = 3 };

typedef struct slot {
    uint64_t handle; /* 0: free */
    char text[BLOCK_BYTES];
} slot;

static slot dram[DRAM_SLOTS];
static slot ssd[SSD_SLOTS];

static void *resize(void *context, void *memory, size_t old_bytes, size_t bytes)
{
    (void)context;
    (void)old_bytes;
    if (bytes > 0) return realloc(memory, bytes);
    free(memory);
    return NULL;
}

static void make_text(uint64_t handle, char text[BLOCK_BYTES])
{
    memset(text, 0, BLOCK_BYTES);
    snprintf(text, BLOCK_BYTES, "block %llu", (unsigned long long)handle);
}

/* The slot of a block in one tier, or with handle 0 a free one; NULL when there is none. */
static slot *find_slot(int option, uint64_t handle)
{
    slot *slots = option == IN_DRAM ? dram : ssd;
    size_t count = option == IN_DRAM ? DRAM_SLOTS : SSD_SLOTS;
    for (size_t i = 0; i < count; i++)
        if (slots[i].handle == handle) return &slots[i];
    return NULL;
}

/* Source and target are held at once, as the engine has planned for. */
static kvt_status carry_out(const kvt_move *move, const char *new_text)
{
    slot *source = move->from != KVT_OPTION_NONE ? find_slot(move->from, move->handle) : NULL;
    if (move->to != KVT_OPTION_NONE) {
        slot *target = find_slot(move->to, 0);
        if (target == NULL) return KVT_E_SPACE;
        memcpy(target->text, source != NULL ? source->text : new_text, BLOCK_BYTES);
        target->handle = move->handle;
    }
    if (source != NULL) source->handle = 0;
    return KVT_OK;
}

/* In order; when one move fails, the rest of the plan is given up too. */
static int obey(kvt_policy *policy, const kvt_plan *plan, const char *new_text)
{
    int failures = 0;
    for (uint32_t i = 0; i < plan->count; i++) {
        const kvt_move *move = &plan->moves[i];
        if (failures == 0 && carry_out(move, new_text) == KVT_OK) {
            failures += kvt_policy_commit(policy, move->id, NULL) != KVT_OK;
        } else {
            failures++;
            if (kvt_policy_abort(policy, move->id) != KVT_OK) failures++;
        }
    }
    return failures;
}

static kvt_policy *open_engine(void)
{
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.tiers[KVT_TIER_DRAM].capacity_bytes = DRAM_SLOTS * BLOCK_BYTES;
    config.tiers[KVT_TIER_SSD].capacity_bytes = SSD_SLOTS * BLOCK_BYTES;
    config.allocator.resize = resize;
    kvt_policy *policy = NULL;
    char message[128];
    if (kvt_policy_open(&config, &policy, message, sizeof message) != KVT_OK) {
        fprintf(stderr, "embed_policy: %s\n", message);
    }
    return policy;
}

/* One use of one block; hits counts those that were stored. Returns the number of failures. */
static int use_block(kvt_policy *policy, uint64_t now_ns, uint64_t handle, unsigned *hits)
{
    char text[BLOCK_BYTES];
    kvt_move moves[8];
    kvt_plan plan = {moves, 8, 0};
    make_text(handle, text);
    if (kvt_policy_access(policy, now_ns, handle, &plan) == KVT_OK) {
        const slot *found = find_slot(kvt_policy_option_get(policy, handle), handle);
        ++*hits;
        if (found == NULL || memcmp(found->text, text, BLOCK_BYTES) != 0) return 1;
        return obey(policy, &plan, NULL);
    }
    /* A miss: the block has been made anew, at a cost of 50 ms, and is offered. */
    kvt_option options[OPTIONS] = {{.load_seconds = 0.050}};
    options[IN_DRAM].bytes[KVT_TIER_DRAM] = BLOCK_BYTES;
    options[IN_DRAM].load_seconds = 0.0001;
    options[IN_SSD].bytes[KVT_TIER_SSD] = BLOCK_BYTES;
    options[IN_SSD].load_seconds = 0.010;
    kvt_policy_entry entry = {
        .struct_size = sizeof entry, .handle = handle, .options = options, .option_count = OPTIONS};
    kvt_status status = kvt_policy_admit(policy, now_ns, &entry, &plan);
    if (status == KVT_REFUSED) return 0;
    return status == KVT_OK ? obey(policy, &plan, text) : 1;
}

/* Tells the engine of uses that no count shows, and asks it about a stored entry, `handle`. Returns
 * the number of failures. */
static int know_better(kvt_policy *policy, uint64_t now_ns, uint64_t handle)
{
    kvt_move moves[8];
    kvt_plan plan = {moves, 8, 0};
    kvt_explanation why = {.struct_size = sizeof why};
    kvt_policy_worth worth = {.struct_size = sizeof worth};
    /* A queue of requests is a better forecast than the past; a class may come back more often. */
    int failures = kvt_policy_rate_set(policy, handle, 2.0) != KVT_OK;
    failures += kvt_policy_prior_set(policy, 1, 0.5) != KVT_OK;
    failures += kvt_policy_hint(policy, now_ns, handle, KVT_HINT_RETAIN, 60.0, 0) != KVT_OK;
    /* Ahead of its use it comes up, if that is worth it, and stays while it is read. */
    const kvt_status moved = kvt_policy_promote(policy, now_ns, handle, KVT_TIER_DRAM, &plan);
    failures += moved == KVT_OK ? obey(policy, &plan, NULL) : moved != KVT_REFUSED;
    failures += kvt_policy_pin(policy, handle) != KVT_OK;
    failures += kvt_policy_unpin(policy, handle) != KVT_OK;
    failures += kvt_policy_explain(policy, now_ns, handle, &why) != KVT_OK;
    failures += kvt_policy_worth_get(policy, handle, KVT_TIER_DRAM, &worth) != KVT_OK;
    printf("block %llu: %s It saves %.4f s a use.\n", (unsigned long long)handle, why.reason,
           worth.saved_seconds);
    /* Half of the slow array is taken away; a block that somebody deleted is forgotten. */
    failures +=
        kvt_policy_capacity_set(policy, KVT_TIER_SSD, SSD_SLOTS / 2 * BLOCK_BYTES) != KVT_OK;
    slot *gone = find_slot(kvt_policy_option_get(policy, handle), handle);
    failures += kvt_policy_remove(policy, handle) != KVT_OK || gone == NULL;
    if (gone != NULL) gone->handle = 0;
    return failures;
}

int main(void)
{
    kvt_policy *policy = open_engine();
    if (policy == NULL) return 1;
    int failures = 0;
    unsigned hits = 0;
    uint64_t dice = 1;
    for (uint64_t i = 0; i < REQUESTS; i++) {
        dice = dice * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t draw = (dice >> 33) % BLOCKS;
        failures += use_block(policy, i * 100000000u, 1 + draw * draw / BLOCKS, &hits);
    }
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    printf("%u hits of %d, %llu puts, %llu promotions, %llu demotions, %llu evictions\n", hits,
           (int)REQUESTS, (unsigned long long)stats.puts, (unsigned long long)stats.promotions,
           (unsigned long long)stats.demotions, (unsigned long long)stats.evictions);
    size_t stored = 0;
    while (stored < DRAM_SLOTS - 1 && dram[stored].handle == 0)
        stored++;
    failures += know_better(policy, REQUESTS * UINT64_C(100000000), dram[stored].handle);
    kvt_policy_close(policy);
    if (failures > 0) fprintf(stderr, "embed_policy: %d failures\n", failures);
    return failures > 0 || hits == 0;
}
