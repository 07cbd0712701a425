/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.c - the table of announced passes, and the public calls on them. The instants go to the
 * pools as needs (tiers/pool/needs.h), whose workers ask the gate.
 *
 * The seconds of a layer are the caller's, else the table's, else the prefill model's. They are
 * corrected while the pass runs: an interval between two layers bounds them from above, and is them
 * where the second layer had come before the first one began.
 *
 * Thread rule: any thread.
 */
#include "store/read/pass.h"

#include "base/clock.h"
#include "base/struct_size.h"
#include "estimator/predict/predict.h"
#include "store/core/store.h"
#include "tiers/pool/slack.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PASS_LAYERS_MAX  4096u
#define PASS_SECONDS_MAX 1e6
#define PASS_LEAST       STRUCT_SIZE_THROUGH(kvt_pass, layer_seconds)

void passes_init(store_passes *passes, double patience_seconds)
{
    memset(passes, 0, sizeof *passes);
    pthread_mutex_init(&passes->lock, NULL);
    passes->patience_ns = (uint64_t)(patience_seconds * 1e9);
}

void passes_destroy(store_passes *passes)
{
    free(passes->rows);
    pthread_mutex_destroy(&passes->lock);
}

kvt_status passes_set_rows(store_passes *passes, const kvt_pass_row *rows, size_t count)
{
    kvt_pass_row *copy = NULL;
    if (count > PROFILE_PASS_ROWS_MAX) return KVT_E_ARGUMENT;
    if (count != 0) {
        if (!kvt_pass_rows_are_sound(rows, count)) return KVT_E_ARGUMENT;
        copy = malloc(count * sizeof *copy);
        if (copy == NULL) return KVT_E_MEMORY;
        memcpy(copy, rows, count * sizeof *copy);
    }
    pthread_mutex_lock(&passes->lock);
    kvt_pass_row *before = passes->rows;
    passes->rows = copy;
    passes->row_count = count;
    pthread_mutex_unlock(&passes->lock);
    free(before);
    return KVT_OK;
}

/* The pass of a number, or NULL. Lock held. */
static store_pass *passes_find(store_passes *passes, uint64_t number)
{
    store_pass *pass = &passes->passes[number % PASS_MOST];
    return number != 0 && pass->number == number ? pass : NULL;
}

/* Whether a pass has stopped for the patience. Lock held. */
static bool pass_has_stopped(const store_passes *passes, const store_pass *pass, uint64_t now_ns)
{
    const tiers_pace *pace = &pass->pace;
    const double left = (double)(pace->layers - pace->layer) * (double)pace->step_ns;
    return (double)now_ns > (double)pace->began_ns + left + (double)passes->patience_ns;
}

/* Tells the pools of a pass's loads its pace. Lock held. */
static void pass_tell(const store_pass *pass)
{
    for (uint32_t i = 0; i < PASS_LOADS; i++)
        if (pass->loads[i].need != 0)
            tiers_need_set_pace(pass->loads[i].pool, pass->loads[i].need, &pass->pace);
}

/* ---- loads ---- */

uint64_t pass_join(store_passes *passes, uint64_t number, tiers_pool *pool, uint32_t first,
                   uint32_t end, uint32_t ahead)
{
    uint64_t need = 0;
    pthread_mutex_lock(&passes->lock);
    store_pass *pass = passes_find(passes, number);
    for (uint32_t i = 0; pass != NULL && i < PASS_LOADS && need == 0; i++) {
        pass_load *load = &pass->loads[i];
        if (load->need != 0) continue;
        need = tiers_need_begin(pool, &pass->pace, first, end, ahead);
        if (need == 0) break;
        *load =
            (pass_load){.need = need, .pool = pool, .first = first, .end = end, .arrived = first};
    }
    pthread_mutex_unlock(&passes->lock);
    return need;
}

void pass_note(store_passes *passes, uint64_t number, uint64_t need, uint32_t arrived,
               uint32_t issued)
{
    pthread_mutex_lock(&passes->lock);
    store_pass *pass = passes_find(passes, number);
    for (uint32_t i = 0; pass != NULL && i < PASS_LOADS; i++) {
        pass_load *load = &pass->loads[i];
        if (load->need != need) continue;
        if (arrived > load->arrived) load->arrived = arrived;
        tiers_need_progress(load->pool, need, arrived, issued);
        break;
    }
    pthread_mutex_unlock(&passes->lock);
}

void pass_leave(store_passes *passes, uint64_t number, uint64_t need, tiers_pool *pool)
{
    pthread_mutex_lock(&passes->lock);
    store_pass *pass = passes_find(passes, number);
    for (uint32_t i = 0; pass != NULL && i < PASS_LOADS; i++)
        if (pass->loads[i].need == need) pass->loads[i] = (pass_load){.need = 0};
    pthread_mutex_unlock(&passes->lock);
    tiers_need_end(pool, need);
}

/* Whether the layer behind the one that is computed has come in all loads; never by blocks of a
 * ring alone, which are told apart no longer once they are complete. Lock held. */
static bool pass_is_ready(const store_pass *pass)
{
    uint32_t loads = 0;
    const uint32_t end = pass->pace.layer + 2;
    for (uint32_t i = 0; i < PASS_LOADS; i++) {
        const pass_load *load = &pass->loads[i];
        if (load->need == 0 || load->first >= end) continue;
        loads++;
        if (load->arrived < end && load->arrived < load->end) return false;
    }
    return loads > 0;
}

/* ---- the public calls ---- */

/* Whether a store of this process takes these calls. */
static kvt_status pass_check(const kvt_store *store)
{
    if (store == NULL) return KVT_E_ARGUMENT;
    return fork_guard_is_ours(store) ? KVT_OK : KVT_E_STATE;
}

/* The free place for a pass, a stopped one's if need be, or NULL. Lock held. */
static store_pass *passes_place(store_passes *passes, uint64_t now_ns)
{
    store_pass *stopped = NULL;
    for (uint32_t i = 0; i < PASS_MOST; i++) {
        store_pass *pass = &passes->passes[i];
        if (pass->number == 0) return pass;
        if (pass_has_stopped(passes, pass, now_ns)) stopped = pass;
    }
    return stopped;
}

kvt_status kvt_pass_begin(kvt_store *store, const kvt_pass *given, uint64_t *pass_out)
{
    const base_store_calls *calls = base_store_calls_of(store);
    if (calls != NULL) return BASE_CALL(calls, pass_begin, store, given, pass_out);
    kvt_status status = pass_check(store);
    if (status != KVT_OK) return status;
    kvt_pass whole = {0};
    if (given == NULL || pass_out == NULL) return KVT_E_ARGUMENT;
    given = struct_size_in(given, &whole, sizeof whole, PASS_LEAST);
    if (given == NULL || given->new_tokens == 0 || given->reserved != 0) return KVT_E_ARGUMENT;
    if (given->layers == 0 || given->layers > PASS_LAYERS_MAX) return KVT_E_ARGUMENT;
    if ((uint32_t)given->kind > KVT_PASS_DECODE) return KVT_E_ARGUMENT;
    double seconds = given->layer_seconds;
    if (!(seconds >= 0 && seconds <= PASS_SECONDS_MAX)) return KVT_E_ARGUMENT;
    store_passes *passes = &store->passes;
    pthread_mutex_lock(&passes->lock);
    if (seconds == 0)
        seconds = kvt_pass_seconds(passes->rows, passes->row_count, &store->costs.prefill, given);
    const uint64_t now_ns = base_clock_ns();
    store_pass *pass = passes_place(passes, now_ns);
    if (pass == NULL) {
        status = KVT_BUSY;
    } else {
        passes->numbers++;
        *pass =
            (store_pass){.number = passes->numbers * PASS_MOST + (uint64_t)(pass - passes->passes),
                         .pace = {.layers = given->layers,
                                  .began_ns = now_ns,
                                  .step_ns = (uint64_t)(fmin(seconds, PASS_SECONDS_MAX) * 1e9)}};
        *pass_out = pass->number;
    }
    pthread_mutex_unlock(&passes->lock);
    return status;
}

kvt_status kvt_pass_layer(kvt_store *store, uint64_t number, uint32_t layer)
{
    const base_store_calls *calls = base_store_calls_of(store);
    if (calls != NULL) return BASE_CALL(calls, pass_layer, store, number, layer);
    kvt_status status = pass_check(store);
    if (status != KVT_OK) return status;
    store_passes *passes = &store->passes;
    pthread_mutex_lock(&passes->lock);
    store_pass *pass = passes_find(passes, number);
    tiers_pace *pace = pass != NULL ? &pass->pace : NULL;
    if (pace == NULL) status = KVT_MISS;
    const uint64_t now_ns = base_clock_ns();
    if (pace != NULL && (layer >= pace->layers || layer < pace->layer))
        status = pass_has_stopped(passes, pass, now_ns) ? KVT_MISS : KVT_E_ARGUMENT;
    if (status == KVT_OK) {
        const uint64_t spent_ns = now_ns > pace->began_ns ? now_ns - pace->began_ns : 0;
        if (layer > pace->layer)
            pace->step_ns = slack_step(pace->step_ns, spent_ns, layer - pace->layer, pass->ready);
        pace->layer = layer;
        pace->began_ns = now_ns;
        pass->ready = pass_is_ready(pass);
        pass_tell(pass);
    }
    pthread_mutex_unlock(&passes->lock);
    return status;
}

kvt_status kvt_pass_end(kvt_store *store, uint64_t number)
{
    const base_store_calls *calls = base_store_calls_of(store);
    if (calls != NULL) return BASE_CALL(calls, pass_end, store, number);
    kvt_status status = pass_check(store);
    if (status != KVT_OK) return status;
    store_passes *passes = &store->passes;
    pthread_mutex_lock(&passes->lock);
    store_pass *pass = passes_find(passes, number);
    if (pass == NULL) status = KVT_MISS;
    for (uint32_t i = 0; pass != NULL && i < PASS_LOADS; i++)
        if (pass->loads[i].need != 0) tiers_need_end(pass->loads[i].pool, pass->loads[i].need);
    if (pass != NULL) *pass = (store_pass){.number = 0};
    pthread_mutex_unlock(&passes->lock);
    return status;
}

kvt_status kvt_pass_table_set(kvt_store *store, const kvt_pass_row *rows, size_t count)
{
    const base_store_calls *calls = base_store_calls_of(store);
    if (calls != NULL) return BASE_CALL(calls, pass_table_set, store, rows, count);
    const kvt_status status = pass_check(store);
    return status == KVT_OK ? passes_set_rows(&store->passes, rows, count) : status;
}
