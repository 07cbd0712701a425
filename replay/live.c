/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live.c - the same requests against a real store: real bytes, real devices, wall clock.
 *
 * `servers` threads take requests in order; each sleeps until the request's arrival, so the queue
 * is FIFO as in the simulation. A server is busy until it has put what was missing, and rho counts
 * all of that; only the time to the first token counts as service, the puts are reported apart.
 *
 * Lock order: run.lock guards the collector, the sums and the next request; log.lock guards the
 * plan log. Neither is held while the store is called.
 */
#include "live.h"
#include "base/clock.h"
#include "base/order.h"
#include "results.h"
#include "store/core/options.h"

#include <kvterrace/lookup.h>
#include <kvterrace/view.h>

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* Each server's memory for blocks that were read and not checked yet. */
#define LIVE_BUFFER_BYTES (UINT64_C(32) << 20)
/* Background rounds do not get closer than this. */
#define LIVE_TICK_SECONDS 0.005
#define LIVE_SETTLE_TRIES 200
#define LIVE_NAP_NS       UINT64_C(50000000) /* an interrupted run ends within so long */

/* How the measured cost of loads is followed: weight of a new ratio, its bound against a single
 * hiccup, and the return of trust per request that loaded nothing. */
#define LIVE_SLOWDOWN_WEIGHT 0.1
#define LIVE_SLOWDOWN_MAX    50.0
#define LIVE_SLOWDOWN_MIN    0.1
#define LIVE_TRUST_RETURN    0.98

typedef struct live_log {
    pthread_mutex_t lock;
    FILE *file; /* NULL = count only */
    bool failed;
    bool ended; /* the counters were read; what the store still does on its way out is not logged */
    uint64_t committed, aborted;
    uint64_t moved_bytes_read[KVT_TIER_COUNT]; /* of committed changes: what was read for them */
    uint64_t begin_ns;                         /* times in the log count from here */
} live_log;

typedef struct live_run {
    const replay_options *options;
    const replay_workload *workload;
    const replay_live *live;
    live_profile profile; /* the store's own */
    kvt_store *store;
    kvt_prefill prefill; /* scaled */
    double scale;
    uint64_t block_bytes;
    uint32_t buffer_blocks;
    kvt_layout layout;
    uint64_t begin_ns; /* wall clock of virtual time 0 */
    live_log log;

    pthread_mutex_t lock;
    uint64_t next; /* request that no server has taken */
    results_collector collector;
    replay_result *result;
    double slowdown;         /* measured over predicted load seconds, smoothed */
    kvt_load_stats requests; /* predicted against measured seconds of heads loaded whole */
    double *errors;          /* of these, relative */
} live_run;

/* One server thread's own memory and the request in its hands. */
typedef struct live_server {
    live_run *run;
    pthread_t thread;
    kvt_key *keys;
    double *seconds; /* predicted, by key */
    uint8_t *buffer; /* buffer_blocks blocks that were read, and as many to be put */
    kvt_view *views; /* of the blocks that were read, a pointer to each, and the tier of each */
    const kvt_view **pointers;
    int *tiers;
    uint32_t made_from, made; /* computed blocks whose bytes are there already */
    const replay_request *request;
    const uint32_t *prefix;
    uint32_t held; /* blocks in the buffer that are not checked yet */
    uint32_t first_held;
    uint64_t loaded_ns; /* when the last get ended */
    /* Of this request: */
    uint64_t tier_blocks[KVT_TIER_COUNT], tier_tokens[KVT_TIER_COUNT];
    uint64_t later_blocks[KVT_TIER_COUNT]; /* found and not loaded; tokens of the leading run */
    uint64_t later_tokens[KVT_TIER_COUNT];
    uint64_t verified, wrong, failed_puts;
    live_forms forms; /* of a store with a ladder; a block is checked before the next is read */
    kvt_get_info got;
} live_server;

static bool live_is_interrupted(const live_run *run)
{
    return run->live->interrupted != NULL && run->live->interrupted();
}

/* Until then, or until the run is interrupted. */
static void live_sleep_until(const live_run *run, uint64_t ns)
{
    while (base_clock_ns() + LIVE_NAP_NS < ns && !live_is_interrupted(run))
        base_sleep_until(base_clock_ns() + LIVE_NAP_NS);
    if (!live_is_interrupted(run)) base_sleep_until(ns);
}

/* ---- plan log ---- */

/* Counts a move that the store carried out or gave up. */
static void live_note_move(live_log *log, const kvt_move *move, kvt_status outcome)
{
    if (outcome != KVT_OK) {
        log->aborted++;
        return;
    }
    log->committed++;
    for (int tier = 1; tier < KVT_TIER_COUNT && move->kind == KVT_MOVE_CHANGE; tier++)
        log->moved_bytes_read[tier] += move->from_bytes[tier];
}

/* The store's observer: counts each move and logs it. Any of the store's threads calls it. */
static void live_observe(void *context, const kvt_move *move, kvt_status outcome)
{
    live_log *log = context;
    char text[256];
    kvt_move_format(move, text, sizeof text);
    pthread_mutex_lock(&log->lock);
    if (!log->ended) live_note_move(log, move, outcome);
    uint64_t now_ns = base_clock_ns() - log->begin_ns;
    if (!log->ended && log->file != NULL &&
        fprintf(log->file, "%llu %s %s\n", (unsigned long long)now_ns,
                outcome == KVT_OK ? "committed" : "aborted", text) < 0) {
        log->failed = true;
    }
    pthread_mutex_unlock(&log->lock);
}

/*
 * Reads the store's counters at a moment when no move is between its commit and its observer, and
 * compares them with the log. Background rounds go on meanwhile, so it may take several tries.
 */
static kvt_status live_compare_moves(live_run *run, kvt_store_stats *stats)
{
    replay_result *result = run->result;
    for (int i = 0; i < LIVE_SETTLE_TRIES && !result->moves_match; i++) {
        if (i > 0) base_sleep_until(base_clock_ns() + 2000000u);
        stats->struct_size = sizeof *stats;
        kvt_status status = kvt_store_stats_get(run->store, stats);
        if (status != KVT_OK) return status;
        pthread_mutex_lock(&run->log.lock);
        result->moves_committed = run->log.committed;
        result->moves_aborted = run->log.aborted;
        result->moves_match = stats->moves.committed == result->moves_committed &&
                              stats->moves.aborted == result->moves_aborted;
        run->log.ended = result->moves_match;
        memcpy(result->moved_bytes_read, run->log.moved_bytes_read,
               sizeof result->moved_bytes_read);
        pthread_mutex_unlock(&run->log.lock);
        result->moves = result->moves_committed + result->moves_aborted;
    }
    return KVT_OK;
}

/* ---- one request ---- */

/* Compares the blocks in the buffer with what was put. */
static void live_check_held(live_server *server)
{
    const live_run *run = server->run;
    for (uint32_t i = 0; i < server->held; i++) {
        const uint8_t *data = server->buffer + (size_t)i * run->block_bytes;
        uint32_t block = server->prefix[server->first_held + i];
        const bool whole =
            run->live->store->loss.ladder
                ? live_forms_match(&server->forms, run->options->seed, block, &server->got, data)
                : live_matches(run->options->seed, block, data, run->block_bytes);
        server->verified += whole;
        server->wrong += !whole;
    }
    server->first_held += server->held;
    server->held = 0;
}

/* Tokens of a request's block; the last one may be partial. */
static uint32_t live_block_tokens(const live_run *run, const replay_request *request, uint32_t at)
{
    uint32_t unit = run->workload->block_tokens, rest = request->input_tokens - at * unit;
    return rest < unit ? rest : unit;
}

/* Scaled seconds to compute what follows so many blocks; at least one token is computed. */
static double live_prefill_after(const live_run *run, const replay_request *request,
                                 uint32_t blocks)
{
    uint64_t held = (uint64_t)blocks * run->workload->block_tokens;
    uint32_t from = held < request->input_tokens ? (uint32_t)held : request->input_tokens - 1;
    return kvt_prefill_seconds(&run->prefill, from, request->input_tokens);
}

/*
 * How many of the matched blocks to load: the head that makes the first token earliest, as in the
 * simulation. The cost of a load is the store's own prediction.
 */
static uint32_t live_choose(live_server *server, uint32_t matched, double *predicted_out)
{
    live_run *run = server->run;
    pthread_mutex_lock(&run->lock);
    double slowdown = run->slowdown;
    pthread_mutex_unlock(&run->lock);
    double load_s = 0.0, best_s = live_prefill_after(run, server->request, 0);
    uint32_t best = 0;
    *predicted_out = 0.0;
    if (kvt_store_match(run->store, server->keys, matched,
                        KVT_MATCH(.load_seconds = server->seconds), NULL) != KVT_OK)
        return 0;
    for (uint32_t blocks = 1; blocks <= matched; blocks++) {
        if (isnan(server->seconds[blocks - 1])) break;
        load_s += server->seconds[blocks - 1];
        double compute_s = live_prefill_after(run, server->request, blocks);
        double total_s = load_s * slowdown + compute_s;
        if (run->options->overlap) total_s = fmax(load_s * slowdown, compute_s);
        if (total_s > best_s && !run->options->load_all) continue;
        best = blocks;
        best_s = total_s;
        *predicted_out = load_s;
    }
    return best;
}

/* Follows what loads really cost. Where nothing was loaded, trust comes back slowly, so that a load
 * is tried again. */
static void live_learn(live_run *run, uint32_t loaded, double predicted_s, double measured_s)
{
    pthread_mutex_lock(&run->lock);
    if (loaded == 0) {
        run->slowdown = fmax(LIVE_SLOWDOWN_MIN, run->slowdown * LIVE_TRUST_RETURN);
    } else if (predicted_s > 0.0 && measured_s > 0.0) {
        double ratio = fmin(measured_s / predicted_s, LIVE_SLOWDOWN_MAX);
        run->slowdown += LIVE_SLOWDOWN_WEIGHT * (ratio - run->slowdown);
        run->requests.predicted_seconds += predicted_s;
        run->requests.achieved_seconds += measured_s;
        run->errors[run->requests.loads++] = fabs(predicted_s / measured_s - 1.0);
    }
    pthread_mutex_unlock(&run->lock);
}

/* The tier that a block would be read from, or KVT_TIER_NONE. */
static int live_find(const live_run *run, const kvt_key *key)
{
    kvt_explanation why = {.struct_size = sizeof why};
    if (kvt_store_explain(run->store, key, &why) != KVT_OK || why.current == KVT_OPTION_NONE)
        return KVT_TIER_NONE;
    const uint64_t *bytes = why.options[why.current].option.read_bytes;
    for (int tier = KVT_TIER_COUNT - 1; tier > KVT_TIER_NONE; tier--)
        if (bytes[tier] > 0) return tier;
    return KVT_TIER_NONE;
}

/* The leading blocks that are stored. A block that may lose tokens is a context, which no call that
 * counts tokens sees. */
static kvt_status live_match(const live_server *server, size_t *matched_out)
{
    const live_run *run = server->run;
    *matched_out = 0;
    if (!run->layout.tokens_may_drop)
        return kvt_store_match(run->store, server->keys, server->request->block_count, NULL,
                               matched_out);
    kvt_status status = kvt_store_exists(run->store, &server->keys[0]);
    *matched_out = status == KVT_OK ? 1 : 0;
    return status == KVT_MISS ? KVT_OK : status;
}

/* Keeps what a get gave until it is checked, and counts its form. */
static void live_note_form(live_server *server, const kvt_get_info *info)
{
    live_run *run = server->run;
    server->got = *info;
    pthread_mutex_lock(&run->lock);
    live_forms_count(run->result, info, run->layout.tokens);
    pthread_mutex_unlock(&run->lock);
}

/* Counts a block that arrived from a tier. */
static void live_count_loaded(live_server *server, int tier, uint32_t position)
{
    server->held++;
    server->tier_blocks[tier]++;
    server->tier_tokens[tier] += live_block_tokens(server->run, server->request, position);
}

/* Gets one block in the form that it is stored in. Returns 1, or 0 when it did not arrive; adds
 * the nanoseconds that it took. */
static uint32_t live_get_form(live_server *server, uint32_t position, uint64_t *load_ns)
{
    live_run *run = server->run;
    kvt_get_info info = {.struct_size = sizeof info, .kept = &server->forms.given};
    if (kvt_store_get(run->store, &server->keys[position],
                      KVT_PACKED(server->buffer, run->block_bytes), KVT_STORE_DEADLINE,
                      &info) != KVT_OK)
        return 0;
    *load_ns += info.elapsed_ns;
    live_count_loaded(server, (int)info.tier, position);
    live_note_form(server, &info);
    return 1;
}

/* Gets so many blocks from a position on at once, as far as the empty buffer goes. Returns how many
 * arrived; adds the nanoseconds that it took. */
static uint32_t live_get_blocks(live_server *server, uint32_t position, uint32_t count,
                                uint64_t *load_ns)
{
    live_run *run = server->run;
    size_t arrived = 0;
    assert(server->held == 0);
    if (count > run->buffer_blocks) count = run->buffer_blocks;
    for (uint32_t i = 0; i < count; i++) {
        const int tier = live_find(run, &server->keys[position + i]);
        server->tiers[i] = tier != KVT_TIER_NONE ? tier : KVT_TIER_DRAM; /* a put's staging */
    }
    uint64_t begin_ns = base_clock_ns();
    if (kvt_prefix_get(run->store, &server->keys[position], server->pointers, count,
                       KVT_NO_DEADLINE, &arrived) != KVT_OK)
        arrived = 0;
    *load_ns += base_clock_ns() - begin_ns;
    for (uint32_t i = 0; i < arrived; i++)
        live_count_loaded(server, server->tiers[i], position + i);
    return (uint32_t)arrived;
}

/* Gets the chosen head of the leading run, until a miss. Returns the blocks that arrived; errors
 * are misses here and counted by the store as load failures. */
static uint32_t live_load(live_server *server)
{
    live_run *run = server->run;
    const replay_request *request = server->request;
    size_t matched = 0;
    double predicted_s = 0.0;
    server->loaded_ns = base_clock_ns();
    if (live_match(server, &matched) != KVT_OK) return 0;
    uint32_t chosen = live_choose(server, (uint32_t)matched, &predicted_s), loaded = 0, got = 1;
    uint64_t load_ns = 0;
    for (; loaded < chosen && got > 0; loaded += got) {
        live_check_held(server);
        got = run->live->store->loss.ladder
                  ? live_get_form(server, loaded, &load_ns)
                  : live_get_blocks(server, loaded, chosen - loaded, &load_ns);
    }
    server->loaded_ns = base_clock_ns();
    if (matched > 0 && (loaded > 0 || chosen == 0))
        live_learn(run, loaded, loaded == chosen ? predicted_s : 0.0, (double)load_ns * 1e-9);
    for (uint32_t i = loaded; i < request->block_count; i++) {
        int tier = live_find(run, &server->keys[i]);
        if (tier == KVT_TIER_NONE) continue;
        server->later_blocks[tier]++;
        if (i < matched) server->later_tokens[tier] += live_block_tokens(run, request, i);
    }
    return loaded;
}

/* Where the bytes of a computed block are made. */
static uint8_t *live_place(const live_server *server, uint32_t position)
{
    const live_run *run = server->run;
    size_t slot = run->buffer_blocks + position % run->buffer_blocks;
    return server->buffer + slot * run->block_bytes;
}

/* Fills a block's place in the server's buffer with its content. */
static void live_make_block(const live_server *server, uint32_t position)
{
    const live_run *run = server->run;
    live_fill(run->options->seed, server->prefix[position], live_place(server, position),
              run->block_bytes);
}

/* Makes what is to be put, as far as the buffer goes: a prefill would be making it now. */
static void live_make_rest(live_server *server, uint32_t loaded)
{
    uint32_t count = server->request->block_count - loaded;
    server->made_from = loaded;
    server->made = count < server->run->buffer_blocks ? count : server->run->buffer_blocks;
    for (uint32_t i = 0; i < server->made; i++)
        live_make_block(server, loaded + i);
}

/* Puts a block that was computed. One behind a hole may be there still: its put counts as a use. */
static void live_put(live_server *server, uint32_t position)
{
    live_run *run = server->run;
    uint32_t unit = run->workload->block_tokens;
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = server->keys[position],
                       .parent = position > 0 ? &server->keys[position - 1] : NULL,
                       .layout = run->layout,
                       .first_position = position * unit,
                       .request_tokens = server->request->input_tokens};
    if (run->live->store->loss.ladder && run->layout.tokens_may_drop) {
        entry.token_scores =
            live_forms_scores(&server->forms, run->options->seed, server->prefix[position]);
        entry.token_score_count = run->layout.tokens;
    }
    if (run->layout.dtype == KVT_DTYPE_OPAQUE) {
        entry.recompute_seconds =
            kvt_offer_recompute_seconds(&run->prefill, run->live->store->holes, position * unit,
                                        unit, server->request->input_tokens);
    }
    if (position >= server->made_from + server->made) live_make_block(server, position);
    kvt_status status = kvt_store_put(run->store, &entry,
                                      KVT_PACKED(live_place(server, position), run->block_bytes));
    server->failed_puts += status < 0 && status != KVT_E_SPACE;
}

/* Lets the seconds of a prefill pass until the first token, and puts each block when it would have
 * been computed. Returns the instant of the first token: puts are beside the computing. */
static uint64_t live_compute(live_server *server, uint32_t loaded, uint64_t first_ns)
{
    live_run *run = server->run;
    const replay_request *request = server->request;
    double least_s = live_prefill_after(run, request, request->block_count);
    uint32_t at = loaded;
    for (; at + 1 < request->block_count && !live_is_interrupted(run); at++) {
        double rest_s = live_prefill_after(run, request, at + 1) - least_s;
        uint64_t rest_ns = rest_s > 0.0 ? (uint64_t)(rest_s * 1e9) : 0;
        live_sleep_until(run, first_ns - rest_ns);
        live_put(server, at);
    }
    bool late = base_clock_ns() > first_ns && at > loaded;
    live_sleep_until(run, first_ns);
    if (!late) first_ns = base_clock_ns();
    for (; at < request->block_count && !live_is_interrupted(run); at++)
        live_put(server, at);
    return first_ns;
}

/* Adds what this request saw to the run's result. */
static void live_report(live_server *server, uint64_t index, const results_sample *sample)
{
    live_run *run = server->run;
    replay_result *result = run->result;
    pthread_mutex_lock(&run->lock);
    result->verified_gets += server->verified;
    result->wrong_bytes += server->wrong;
    result->failed_puts += server->failed_puts;
    if (index >= run->collector.skip) {
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            uint64_t blocks = server->tier_blocks[tier] + server->later_blocks[tier];
            uint64_t tokens = server->tier_tokens[tier] + server->later_tokens[tier];
            result->hit_block_ratio[tier] += (double)blocks;
            result->hit_token_ratio[tier] += (double)tokens;
            result->hit_block_ratio[0] += (double)blocks;
            result->hit_token_ratio[0] += (double)tokens;
            result->used_token_ratio += (double)server->tier_tokens[tier];
        }
    }
    results_add(&run->collector, index, sample);
    pthread_mutex_unlock(&run->lock);
}

/* One request from its arrival to the end of its puts. */
static void live_serve(live_server *server, uint64_t index)
{
    live_run *run = server->run;
    const replay_request *request = &run->workload->requests[index];
    uint64_t arrival_ns = run->begin_ns + (uint64_t)((double)request->arrival_ns * run->scale);
    live_sleep_until(run, arrival_ns);
    if (live_is_interrupted(run)) return;
    uint64_t start_ns = base_clock_ns();

    server->request = request;
    server->prefix = &run->workload->blocks[request->first_block];
    server->held = server->first_held = 0;
    server->verified = server->wrong = server->failed_puts = 0;
    memset(server->later_blocks, 0, sizeof server->later_blocks);
    memset(server->later_tokens, 0, sizeof server->later_tokens);
    memset(server->tier_blocks, 0, sizeof server->tier_blocks);
    memset(server->tier_tokens, 0, sizeof server->tier_tokens);
    for (uint32_t i = 0; i < request->block_count; i++)
        server->keys[i] = live_key(run->options->seed, server->prefix[i]);
    uint32_t loaded = live_load(server);
    double compute_s = run->prefill.fixed_seconds + live_prefill_after(run, request, loaded);
    uint64_t prefill_from_ns = run->options->overlap ? start_ns : server->loaded_ns;
    live_check_held(server);
    live_make_rest(server, loaded);
    uint64_t first_token_ns =
        live_compute(server, loaded, prefill_from_ns + (uint64_t)(compute_s * 1e9));
    double unscale = 1e-9 / run->scale;
    live_report(server, index,
                &(results_sample){.wait_s = (double)(start_ns - arrival_ns) * unscale,
                                  .service_s = (double)(first_token_ns - start_ns) * unscale,
                                  .compute_s = compute_s / run->scale,
                                  .put_s = (double)(base_clock_ns() - first_token_ns) * unscale});
}

/* A server's thread: takes the next request until there is none, or the run is interrupted. */
static void *live_serve_all(void *context)
{
    live_server *server = context;
    live_run *run = server->run;
    /* The default slack of 50 us would be 13 ms of prefill at a scale of 1/256. */
    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    for (;;) {
        pthread_mutex_lock(&run->lock);
        uint64_t index = run->next;
        if (index < run->workload->request_count) run->next++;
        /* Under the lock, so that one thread at a time tells; an interruption shows below. */
        if (run->options->proceed != NULL)
            (void)!run->options->proceed(run->options->proceed_context,
                                         (double)index / (double)run->workload->request_count);
        pthread_mutex_unlock(&run->lock);
        if (index >= run->workload->request_count || live_is_interrupted(run)) return NULL;
        live_serve(server, index);
    }
}

/* ---- the run ---- */

static kvt_status live_server_open(live_run *run, live_server *server)
{
    server->run = run;
    server->keys = malloc(((size_t)run->workload->longest_prefix + 1) * sizeof *server->keys);
    server->buffer = malloc((size_t)run->buffer_blocks * 2 * run->block_bytes);
    server->seconds = malloc(((size_t)run->workload->longest_prefix + 1) * sizeof *server->seconds);
    server->views = malloc(run->buffer_blocks * sizeof *server->views);
    server->pointers = malloc(run->buffer_blocks * sizeof *server->pointers);
    server->tiers = malloc(run->buffer_blocks * sizeof *server->tiers);
    if (server->keys == NULL || server->seconds == NULL || server->buffer == NULL ||
        server->views == NULL || server->pointers == NULL || server->tiers == NULL)
        return KVT_E_MEMORY;
    for (uint32_t i = 0; i < run->buffer_blocks; i++) {
        uint8_t *data = server->buffer + (size_t)i * run->block_bytes;
        server->views[i] = kvt_view_packed(data, run->block_bytes);
        server->pointers[i] = &server->views[i];
    }
    return run->live->store->loss.ladder ? live_forms_open(&server->forms, &run->layout) : KVT_OK;
}

/* Starts all servers, waits for them, and releases their memory. */
static kvt_status live_run_servers(live_run *run)
{
    uint32_t count = run->options->servers, started = 0;
    live_server *servers = calloc(count, sizeof *servers);
    if (servers == NULL) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status = live_server_open(run, &servers[i]);
    run->begin_ns = base_clock_ns();
    while (started < count && status == KVT_OK) {
        live_server *server = &servers[started];
        if (pthread_create(&server->thread, NULL, live_serve_all, server) != 0) {
            status = KVT_E_MEMORY;
            pthread_mutex_lock(&run->lock);
            run->next = run->workload->request_count; /* those that run have no more to do */
            pthread_mutex_unlock(&run->lock);
            break;
        }
        started++;
    }
    for (uint32_t i = 0; i < started; i++)
        pthread_join(servers[i].thread, NULL);
    run->result->wall_s = (double)(base_clock_ns() - run->begin_ns) * 1e-9;
    for (uint32_t i = 0; i < count; i++) {
        live_forms_close(&servers[i].forms);
        free(servers[i].keys);
        free(servers[i].seconds);
        free(servers[i].buffer);
        free(servers[i].views);
        free(servers[i].pointers);
        free(servers[i].tiers);
    }
    free(servers);
    return status;
}

/* The put staging of a store of the stated capacities, scaled as all capacities are. */
static uint64_t live_put_staging(const kvt_store_options *store, double scale)
{
    uint64_t capacity_bytes[KVT_TIER_COUNT] = {0};
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        capacity_bytes[tier] = store->tiers[tier].capacity_bytes;
    uint64_t bytes = kvt_put_staging_limit(store->limits.put_staging_bytes, capacity_bytes);
    return (uint64_t)((double)bytes * scale);
}

/* Capacities and everything that is a time shrink with the bytes; bandwidths stay. */
static kvt_status live_open_store(live_run *run, const replay_live *live, const char *policy,
                                  char *message, size_t message_size)
{
    kvt_store_options store = *live->store;
    store.policy = policy;
    store.durability.catalog_path = NULL;
    if (store.handle_seed == 0) store.handle_seed = 1; /* runs repeat */
    if (run->profile.path[0] != '\0') store.learning.profile_path = run->profile.path;
    store.prefill = run->prefill;
    store.loss.alpha_seconds *= run->scale;
    store.limits.put_backlog_seconds *= run->scale;
    store.limits.put_staging_bytes = live_put_staging(&store, run->scale);
    if (store.limits.tick_seconds > 0.0) {
        store.limits.tick_seconds *= run->scale;
        if (store.limits.tick_seconds < LIVE_TICK_SECONDS)
            store.limits.tick_seconds = LIVE_TICK_SECONDS;
    }
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        uint64_t bytes = store.tiers[tier].capacity_bytes;
        if (bytes == 0) continue;
        bytes = (uint64_t)((double)bytes * run->scale);
        if (bytes == 0) {
            snprintf(message, message_size,
                     "replay.scale: %g leaves nothing of tier %s's %llu bytes", run->scale,
                     kvt_tier_name(tier), (unsigned long long)store.tiers[tier].capacity_bytes);
            return KVT_E_CONFIG;
        }
        store.tiers[tier].capacity_bytes = (bytes + 4095) / 4096 * 4096;
    }
    run->log.begin_ns = base_clock_ns();
    store.observer.call = live_observe;
    store.observer.context = &run->log;
    kvt_status status = kvt_store_open(&store, &run->store, message, message_size);
    if (status != KVT_OK) return status;
    const policy_trial trial = {.half_life_seconds = TRIAL_HALF_LIFE,
                                .clock_scale = run->options->clock_scale / run->scale};
    live_try(run->store, &trial);
    return KVT_OK;
}

/* Opens the plan log, when the options name one. */
static kvt_status live_open_log(live_run *run, char *message, size_t message_size)
{
    const char *path = run->options->plan_log;
    if (path == NULL) return KVT_OK;
    run->log.file = fopen(path, "w");
    if (run->log.file == NULL) {
        snprintf(message, message_size, "%s: %s", path, strerror(errno));
        return KVT_E_IO;
    }
    snprintf(run->result->plan_log, sizeof run->result->plan_log, "%s", path);
    return KVT_OK;
}

/* Copies the store's counters into the result, and the errors of its predictions. */
static void live_take_stats(live_run *run, const kvt_store_stats *stats)
{
    replay_result *result = run->result;
    const kvt_policy_stats *policy = &stats->policy;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        result->bytes_read[tier] = stats->tiers[tier].bytes_read;
        result->bytes_written[tier] = stats->tiers[tier].bytes_written;
        result->capacity_bytes[tier] = stats->tiers[tier].capacity_bytes;
        result->peak_bytes[tier] = stats->tiers[tier].used_bytes;
        result->emulated[tier] = stats->tiers[tier].emulated;
        result->loads[tier] = stats->tiers[tier].loads;
    }
    kvt_load_stats *requests = &result->loads[0];
    *requests = run->requests;
    qsort(run->errors, requests->loads, sizeof *run->errors, base_order_doubles);
    if (requests->loads > 0) {
        requests->error_p50 = run->errors[(requests->loads - 1) / 2];
        requests->error_p90 = run->errors[(requests->loads - 1) * 9 / 10];
    }
    result->reopened = stats->learned.reopened;
    result->load_failures = stats->load_failures;
    result->decisions = policy->admitted + policy->refused + policy->accesses;
    result->decision_ns_p50 = stats->decision_ns_p50;
    result->decision_ns_p99 = stats->decision_ns_p99;
    result->puts = stats->puts;
    result->puts_busy = stats->puts_busy;
    result->refused = stats->puts_refused;
    memcpy(result->refused_for, policy->refused_for, sizeof result->refused_for);
    result->promotions = stats->promotions;
    result->demotions = stats->demotions;
    result->evictions = stats->evictions;
    result->reuse = policy->reuse;
    result->loop_s = result->wall_s;
    results_finish(&run->collector, run->options->servers);
}

/* Sizes blocks and buffers by the scale. The caller releases what there is also after an error. */
static kvt_status live_prepare(live_run *run, const replay_options *options,
                               const replay_workload *workload, replay_result *result)
{
    run->options = options;
    run->workload = workload;
    run->result = result;
    run->scale = options->scale;
    run->slowdown = 1.0;
    run->errors = malloc((workload->request_count + 1) * sizeof *run->errors);
    if (run->errors == NULL) return KVT_E_MEMORY;
    uint64_t per_token = (uint64_t)((double)options->bytes_per_token * options->scale + 0.5);
    if (per_token == 0) per_token = 1;
    run->layout = live_layout(per_token, workload->block_tokens);
    run->block_bytes = per_token * workload->block_tokens;
    if (run->live->store->loss.ladder) {
        run->layout = live_forms_layout(run->live->store, workload->block_tokens);
        kvt_status sound = kvt_layout_bytes(&run->layout, &run->block_bytes);
        if (sound != KVT_OK) return sound;
    }
    uint64_t blocks = LIVE_BUFFER_BYTES / run->block_bytes;
    if (blocks > workload->longest_prefix) blocks = workload->longest_prefix;
    run->buffer_blocks = blocks > 0 ? (uint32_t)blocks : 1;
    result->scale = options->scale;
    result->footprint_bytes = (double)workload->distinct_blocks * (double)run->block_bytes;
    run->prefill = options->model.prefill;
    run->prefill.linear_seconds_per_token *= run->scale;
    run->prefill.square_seconds_per_token2 *= run->scale;
    run->prefill.fixed_seconds *= run->scale;
    return results_collector_open(&run->collector, result, workload, options->warmup);
}

kvt_status replay_run_live(const replay_options *options, const replay_workload *workload,
                           const replay_live *live, const char *policy, replay_result *result,
                           char *message, size_t message_size)
{
    assert(options != NULL && workload != NULL && live != NULL && live->store != NULL);
    live_run run = {.live = live};
    live_devices devices = {.blank = NULL};
    kvt_store_stats stats = {.struct_size = sizeof stats};
    results_start(result, "live", policy, options, workload);
    pthread_mutex_init(&run.lock, NULL);
    pthread_mutex_init(&run.log.lock, NULL);
    snprintf(message, message_size, "out of memory");
    kvt_status status = live_forms_check(options, workload, live->store, message, message_size);
    if (status == KVT_OK) status = live_prepare(&run, options, workload, result);
    if (status != KVT_OK) goto out;
    status = live_open_log(&run, message, message_size);
    if (status != KVT_OK) goto out;
    status = live_devices_note(&devices, live->store);
    if (status != KVT_OK) goto out;
    status =
        live_profile_make(&run.profile, live->store->learning.profile_path, message, message_size);
    if (status != KVT_OK) goto out;
    if (live->profile_seen != NULL) live->profile_seen(live->context, run.profile.path, false);
    status = live_open_store(&run, live, policy, message, message_size);
    if (status != KVT_OK) goto out;
    snprintf(message, message_size, "the servers could not be started");
    status = live_run_servers(&run);
    /* Until every put that was handed over has ended, stored or not; the counters say which. */
    if (status == KVT_OK && !live_is_interrupted(&run)) (void)!kvt_store_flush(run.store);
    if (status == KVT_OK && live_is_interrupted(&run)) {
        snprintf(message, message_size, "interrupted");
        status = KVT_E_CANCELLED;
    }
    if (status != KVT_OK) goto out;
    status = live_compare_moves(&run, &stats);
    if (status != KVT_OK) {
        snprintf(message, message_size, "the store's counters: %s", kvt_status_text(status));
        goto out;
    }
    live_take_stats(&run, &stats);
out:
    kvt_store_close(run.store);
    if (status == KVT_OK && live->profile_seen != NULL)
        live->profile_seen(live->context, run.profile.path, true);
    status = live_site_end(&devices, &run.profile, status, message, message_size);
    if (run.log.file != NULL && fclose(run.log.file) != 0) run.log.failed = true;
    if (status == KVT_OK && run.log.failed) {
        snprintf(message, message_size, "%s: write failed", options->plan_log);
        status = KVT_E_IO;
    }
    results_collector_close(&run.collector);
    free(run.errors);
    pthread_mutex_destroy(&run.lock);
    pthread_mutex_destroy(&run.log.lock);
    return status;
}
