/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_model.c - the drives of a tier in virtual time. The contract is in drive_model.h.
 *
 *     pass    window lets a layer be asked for -> job -> pieces -> come, decoded -> computed
 *     job     waits in its rank -> pieces with the drive -> ended
 *
 * One thread.
 */
#include "drive_model.h"

#include "tiers/pool/needs.h"
#include "tiers/pool/slack_log.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRIVE_DEPTH = 32,
    DRIVE_AHEAD = 2,  /* layers_ahead of loads that do not say */
    DRIVE_RING = 4,   /* more layers than come beyond those that were computed */
    DRIVE_PASSED = 15 /* pieces of other ranks, until a rank that waits is served */
};

#define DRIVE_FLYING_BYTES  ((uint64_t)8 << 20)
#define DRIVE_REQUEST_BYTES ((uint64_t)512 << 10)
#define DRIVE_REQUEST_NS    250000.0 /* a request that takes less of a fast drive is made longer */
#define DRIVE_ASK_AGAIN_NS  UINT64_C(250000)
#define DRIVE_GUARD_NS      500000.0 /* beside a request's latency, as a pool has it */
#define DRIVE_NO_TAG        UINT32_MAX

typedef struct drive_job {
    struct drive_job *next;
    tiers_rank rank;
    uint32_t tag; /* DRIVE_NO_TAG: nobody waits for it any more */
    struct drive_load_state *load;
    uint64_t bytes, left, flying; /* left: of no piece yet */
    uint64_t number, queued_ns;
    bool counted, deferred;
} drive_job;

typedef struct drive_piece {
    drive_job *job;
    uint64_t bytes;
} drive_piece;

/* One pass that loads. Layers ascend: asked >= come >= begun. */
typedef struct drive_load_state {
    struct drive_load_state *next;
    drive_pass pass;
    uint32_t tag;
    uint32_t asked, come, begun;
    bool head_asked, head_came;
    uint64_t began_ns;
    uint64_t here_ns[DRIVE_RING]; /* of layers that have come and were not begun */
    uint64_t computed_ns;         /* the layer begun last has been computed then */
    uint64_t need;                /* number of its need; 0: none */
    tiers_pace pace;
    bool ready; /* as store_pass.ready */
    double blocked_seconds;
} drive_load_state;

struct drive_model {
    drive_settings settings;
    drive_calls calls;
    slack_settings gate;
    slack_account account;
    tiers_needs needs;
    uint64_t now_ns;
    uint64_t request_bytes, write_bytes; /* of a piece at most */
    drive_job *heads[TIERS_RANKS], **tails[TIERS_RANKS];
    uint32_t passed[TIERS_RANKS];
    uint64_t numbers;
    bool wrote, hurry;
    slack_reason held_for;
    uint64_t ask_again_ns; /* UINT64_MAX: nothing is held */
    drive_piece flying[DRIVE_DEPTH];
    uint32_t first, count;    /* of flying: a ring */
    uint64_t flying_bytes[2]; /* reads, writes */
    uint64_t piece_ends_ns;   /* of the first piece */
    uint64_t waited_bytes;    /* of jobs of layers, not ended */
    uint64_t read_bytes;      /* of other reads */
    drive_load_state *loads;
    drive_job *spare_jobs;
    drive_figures figures;
};

static uint64_t drive_ns(double seconds)
{
    return (uint64_t)(seconds * 1e9 + 0.5);
}

static bool drive_is_write(tiers_rank rank)
{
    return rank >= TIERS_RANK_WRITE;
}

/* ---- open, close ---- */

kvt_status drive_open(const drive_settings *settings, const drive_calls *calls,
                      drive_model **model_out)
{
    assert(settings->read_bytes_per_s > 0 && settings->write_bytes_per_s > 0);
    assert(settings->mix >= 0 && settings->mix < 1);
    drive_model *model = calloc(1, sizeof *model);
    *model_out = model;
    if (model == NULL) return KVT_E_MEMORY;
    model->settings = *settings;
    model->calls = *calls;
    model->gate =
        (slack_settings){.order = settings->order,
                         .grain_ns = drive_ns(settings->grain_seconds),
                         .patience_ns = drive_ns(settings->patience_seconds),
                         .guard_ns = (uint64_t)DRIVE_GUARD_NS + drive_ns(settings->request_seconds),
                         .mix_loss = settings->mix};
    needs_init(&model->needs, model->gate.patience_ns);
    const uint64_t fast = (uint64_t)(settings->read_bytes_per_s * DRIVE_REQUEST_NS * 1e-9);
    model->request_bytes = fast > DRIVE_REQUEST_BYTES ? fast : DRIVE_REQUEST_BYTES;
    model->write_bytes = model->request_bytes;
    const uint64_t bounded =
        slack_write_bytes(&model->gate, &model->account, settings->write_bytes_per_s);
    if (settings->order == TIERS_SLACK && bounded < model->write_bytes)
        model->write_bytes = bounded;
    model->ask_again_ns = UINT64_MAX;
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++)
        model->tails[rank] = &model->heads[rank];
    return KVT_OK;
}

static void drive_free_jobs(drive_job *job)
{
    while (job != NULL) {
        drive_job *next = job->next;
        free(job);
        job = next;
    }
}

void drive_close(drive_model *model)
{
    if (model == NULL) return;
    for (uint32_t i = 0; i < model->count; i++) {
        drive_job *job = model->flying[(model->first + i) % DRIVE_DEPTH].job;
        /* The last piece of a job that waits nowhere frees it. */
        if (job->left == 0 && --job->flying == 0) free(job);
    }
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++)
        drive_free_jobs(model->heads[rank]);
    drive_free_jobs(model->spare_jobs);
    while (model->loads != NULL) {
        drive_load_state *next = model->loads->next;
        free(model->loads);
        model->loads = next;
    }
    needs_destroy(&model->needs);
    free(model);
}

/* ---- jobs ---- */

static kvt_status drive_queue(drive_model *model, const drive_job *like)
{
    drive_job *job = model->spare_jobs;
    if (job != NULL)
        model->spare_jobs = job->next;
    else
        job = malloc(sizeof *job);
    if (job == NULL) return KVT_E_MEMORY;
    *job = *like;
    job->left = job->bytes;
    job->next = NULL;
    job->number = ++model->numbers;
    job->queued_ns = model->now_ns;
    *model->tails[job->rank] = job;
    model->tails[job->rank] = &job->next;
    if (job->load != NULL) model->waited_bytes += job->bytes;
    if (job->rank == TIERS_RANK_READ) model->read_bytes += job->bytes;
    return KVT_OK;
}

static void drive_count_write(drive_model *model, const drive_job *job)
{
    drive_figures *figures = &model->figures;
    const double waited = (double)(model->now_ns - job->queued_ns) * 1e-9;
    figures->writes++;
    figures->bytes_written += job->bytes;
    figures->writes_deferred += job->deferred;
    if (job->deferred) figures->bytes_deferred += job->bytes;
    figures->wait_seconds += waited;
    if (waited > figures->wait_seconds_max) figures->wait_seconds_max = waited;
}

/* A job's last piece has ended. */
static void drive_end_job(drive_model *model, drive_job *job)
{
    drive_load_state *load = job->load;
    if (load != NULL && !load->head_came) {
        load->head_came = true;
    } else if (load != NULL) {
        const double other = load->pass.other_seconds / load->pass.layers * (load->come + 1);
        const uint64_t other_ns = load->began_ns + drive_ns(other);
        const uint64_t read_ns = model->now_ns + drive_ns(model->settings.request_seconds);
        const uint64_t before_ns =
            load->come > 0 ? load->here_ns[(load->come - 1) % DRIVE_RING] : load->began_ns;
        uint64_t here_ns = read_ns > other_ns ? read_ns : other_ns;
        if (before_ns > here_ns) here_ns = before_ns; /* the layer before is decoded first */
        here_ns += drive_ns(load->pass.decode_seconds);
        load->here_ns[load->come % DRIVE_RING] = here_ns;
        load->come++;
        needs_progress(&model->needs, load->need, load->come, load->asked);
    } else if (job->tag != DRIVE_NO_TAG) {
        if (drive_is_write(job->rank) && job->counted) drive_count_write(model, job);
        model->calls.ended(model->calls.context, job->tag, model->now_ns);
    }
    job->next = model->spare_jobs;
    model->spare_jobs = job;
}

/* ---- what begins next: as worker_order.c ---- */

static uint32_t drive_first_rank(const drive_model *model, uint32_t from, uint32_t end)
{
    uint32_t first = TIERS_RANKS;
    for (uint32_t rank = from; rank < end; rank++) {
        if (model->heads[rank] == NULL) continue;
        if (model->passed[rank] >= DRIVE_PASSED) return rank;
        if (first == TIERS_RANKS) first = rank;
    }
    return first;
}

static uint32_t drive_oldest_rank(const drive_model *model)
{
    uint32_t oldest = TIERS_RANKS;
    for (uint32_t rank = 0; rank < TIERS_RANKS; rank++) {
        const drive_job *job = model->heads[rank];
        if (job == NULL) continue;
        if (oldest == TIERS_RANKS || job->number < model->heads[oldest]->number) oldest = rank;
    }
    return oldest;
}

static slack_state drive_state(drive_model *model, slack_need *needs)
{
    slack_state state = {.now_ns = model->now_ns,
                         .short_of_staging = model->hurry,
                         .reads_queued = model->waited_bytes + model->read_bytes != 0,
                         .reading_bytes = model->flying_bytes[0],
                         .writing_bytes = model->flying_bytes[1],
                         .read_bytes_per_s = model->settings.read_bytes_per_s,
                         .write_bytes_per_s = model->settings.write_bytes_per_s,
                         .needs = needs};
    for (uint32_t rank = TIERS_RANK_WRITE; rank < TIERS_RANKS; rank++) {
        const drive_job *job = model->heads[rank];
        if (job != NULL && model->now_ns - job->queued_ns > state.waited_ns)
            state.waited_ns = model->now_ns - job->queued_ns;
    }
    state.need_count = needs_list(&model->needs, 0, model->now_ns, model->waited_bytes, needs);
    return state;
}

static bool drive_asks(drive_model *model, const slack_state *state, uint32_t rank)
{
    const bool write = drive_is_write(rank);
    const slack_question question = {.rank = (tiers_rank)rank,
                                     .bytes = write ? model->write_bytes : model->request_bytes,
                                     .settings = model->gate,
                                     .account = model->account,
                                     .state = *state};
    const slack_reason reason = tiers_slack_ask(&question, &model->account);
    const bool begins = slack_begins(reason);
    if (write && !begins && reason != SLACK_GRAIN) model->heads[rank]->deferred = true;
    if (begins || reason != model->held_for) {
        model->figures.decisions[reason]++;
        if (model->settings.log != NULL)
            tiers_slack_log_add(model->settings.log, &question, reason);
    }
    model->held_for = begins ? SLACK_ORDERED : reason;
    return begins;
}

static uint32_t drive_by_gate(drive_model *model)
{
    slack_need needs[SLACK_NEEDS_MAX];
    const uint32_t read = drive_first_rank(model, TIERS_RANK_WAITED, TIERS_RANK_WRITE);
    const uint32_t write = drive_first_rank(model, TIERS_RANK_WRITE, TIERS_RANKS);
    if (read == TIERS_RANKS && write == TIERS_RANKS) return TIERS_RANKS;
    const slack_state state = drive_state(model, needs);
    const bool late =
        write != TIERS_RANKS && tiers_slack_share_is_due(&model->gate, &model->account, &state);
    if (late && drive_asks(model, &state, write)) return write;
    if (read != TIERS_RANKS) {
        if (drive_asks(model, &state, read)) return read;
        if (read != TIERS_RANK_WAITED && model->heads[TIERS_RANK_WAITED] != NULL &&
            drive_asks(model, &state, TIERS_RANK_WAITED))
            return TIERS_RANK_WAITED;
    }
    if (write != TIERS_RANKS && !late && drive_asks(model, &state, write)) return write;
    model->ask_again_ns = model->now_ns + DRIVE_ASK_AGAIN_NS;
    return TIERS_RANKS;
}

/* Whether the gate decides: always in the order table, in slack while passes count. */
static bool drive_is_gated(const drive_model *model)
{
    if (model->settings.order == TIERS_TABLE) return true;
    return model->settings.order == TIERS_SLACK && needs_are_seen(&model->needs, model->now_ns);
}

static uint32_t drive_choose(drive_model *model)
{
    const uint32_t read = drive_first_rank(model, TIERS_RANK_WAITED, TIERS_RANK_WRITE);
    const uint32_t write = drive_first_rank(model, TIERS_RANK_WRITE, TIERS_RANKS);
    if (drive_is_gated(model)) return drive_by_gate(model);
    switch (model->settings.order) {
    case TIERS_FIFO: return drive_oldest_rank(model);
    case TIERS_ROUND_ROBIN:
        if (read == TIERS_RANKS) return write;
        return write == TIERS_RANKS || model->wrote ? read : write;
    default: return drive_first_rank(model, 0, TIERS_RANKS);
    }
}

/* ---- the bus ---- */

/* The first piece begins to pass the bus. */
static void drive_serve(drive_model *model)
{
    if (model->count == 0) return;
    const drive_piece *piece = &model->flying[model->first];
    const bool mixed = model->flying_bytes[0] != 0 && model->flying_bytes[1] != 0;
    double rate = drive_is_write(piece->job->rank) ? model->settings.write_bytes_per_s
                                                   : model->settings.read_bytes_per_s;
    if (mixed) rate *= 1 - model->settings.mix;
    model->piece_ends_ns = model->now_ns + drive_ns((double)piece->bytes / rate);
}

/* Gives the drive pieces as far as it takes them. */
static void drive_fill(drive_model *model)
{
    model->ask_again_ns = UINT64_MAX;
    while (model->count < DRIVE_DEPTH &&
           model->flying_bytes[0] + model->flying_bytes[1] < DRIVE_FLYING_BYTES) {
        const uint32_t rank = drive_choose(model);
        if (rank == TIERS_RANKS) return;
        drive_job *job = model->heads[rank];
        const bool write = drive_is_write(job->rank);
        const bool cut = write && drive_is_gated(model);
        const uint64_t most = cut ? model->write_bytes : model->request_bytes;
        const uint64_t bytes = job->left < most ? job->left : most;
        model->flying[(model->first + model->count) % DRIVE_DEPTH] = (drive_piece){job, bytes};
        model->count++;
        model->flying_bytes[write] += bytes;
        job->left -= bytes;
        job->flying++;
        model->wrote = write;
        for (uint32_t other = 0; other < TIERS_RANKS; other++) {
            const bool waits = other != rank && model->heads[other] != NULL;
            model->passed[other] = waits ? model->passed[other] + 1 : 0;
            if (waits && !write && drive_is_write(other) &&
                model->heads[other]->number < job->number)
                model->heads[other]->deferred = true;
        }
        if (job->left == 0) {
            model->heads[rank] = job->next;
            if (job->next == NULL) model->tails[rank] = &model->heads[rank];
        }
        if (model->count == 1) drive_serve(model);
    }
}

/* The first piece has passed the bus. */
static void drive_end_piece(drive_model *model)
{
    const drive_piece piece = model->flying[model->first];
    drive_job *job = piece.job;
    model->first = (model->first + 1) % DRIVE_DEPTH;
    model->count--;
    model->flying_bytes[drive_is_write(job->rank)] -= piece.bytes;
    if (job->load != NULL) model->waited_bytes -= piece.bytes;
    if (job->rank == TIERS_RANK_READ) model->read_bytes -= piece.bytes;
    job->flying--;
    drive_serve(model);
    if (job->flying == 0 && job->left == 0) drive_end_job(model, job);
}

/* ---- passes ---- */

/* When the next layer begins, if it has come; UINT64_MAX: it has not. */
static uint64_t drive_begins_ns(const drive_load_state *load)
{
    if (load->begun == load->come) return UINT64_MAX;
    const uint64_t here_ns = load->here_ns[load->begun % DRIVE_RING];
    return here_ns > load->computed_ns ? here_ns : load->computed_ns;
}

/* The next layer begins: kvt_pass_layer. */
static void drive_begin_layer(drive_model *model, drive_load_state *load, uint64_t at_ns)
{
    tiers_pace *pace = &load->pace;
    const uint32_t layer = load->begun;
    load->blocked_seconds += (double)(at_ns - load->computed_ns) * 1e-9;
    load->computed_ns = at_ns + drive_ns(load->pass.layer_seconds);
    load->begun++;
    if (layer > pace->layer)
        pace->step_ns =
            slack_step(pace->step_ns, at_ns - pace->began_ns, layer - pace->layer, load->ready);
    pace->layer = layer;
    pace->began_ns = at_ns;
    load->ready = load->come >= layer + 2 || load->come == pace->layers;
    needs_set_pace(&model->needs, load->need, pace);
}

/* Takes a pass as far as its layers and the clock let it. KVT_OK; KVT_E_MEMORY. */
static kvt_status drive_step(drive_model *model, drive_load_state *load)
{
    kvt_status status = KVT_OK;
    while (drive_begins_ns(load) <= model->now_ns)
        drive_begin_layer(model, load, drive_begins_ns(load));
    if (!load->head_came) {
        if (load->head_asked) return KVT_OK;
        load->head_asked = true;
        return drive_queue(model, &(drive_job){.rank = TIERS_RANK_WAITED,
                                               .tag = load->tag,
                                               .load = load,
                                               .bytes = load->pass.head_bytes});
    }
    const bool computing = load->computed_ns > model->now_ns;
    const uint32_t released = load->begun - (computing && load->begun > 0);
    while (status == KVT_OK && load->asked < load->pass.layers &&
           load->asked <= released + DRIVE_AHEAD) {
        status = drive_queue(model, &(drive_job){.rank = TIERS_RANK_WAITED,
                                                 .tag = load->tag,
                                                 .load = load,
                                                 .bytes = load->pass.layer_bytes});
        load->asked++;
        needs_progress(&model->needs, load->need, load->come, load->asked);
    }
    return status;
}

/* All layers have come: the rest is computed without the drive. */
static void drive_end_load(drive_model *model, drive_load_state *load)
{
    drive_loaded result = {.loaded_ns = load->here_ns[(load->come - 1) % DRIVE_RING]};
    while (load->begun < load->pass.layers)
        drive_begin_layer(model, load, drive_begins_ns(load));
    needs_end(&model->needs, load->need);
    result.computed_ns = load->computed_ns;
    result.blocked_seconds = load->blocked_seconds;
    model->calls.loaded(model->calls.context, load->tag, &result);
    free(load);
}

static kvt_status drive_step_all(drive_model *model)
{
    kvt_status status = KVT_OK;
    drive_load_state **at = &model->loads;
    while (*at != NULL && status == KVT_OK) {
        drive_load_state *load = *at;
        status = drive_step(model, load);
        if (load->come < load->pass.layers) {
            at = &load->next;
            continue;
        }
        *at = load->next;
        drive_end_load(model, load);
    }
    return status;
}

/* ---- calls ---- */

/* When something of the passes happens without a piece's end. */
static uint64_t drive_passes_ns(const drive_model *model)
{
    uint64_t next_ns = UINT64_MAX;
    for (const drive_load_state *load = model->loads; load != NULL; load = load->next) {
        const uint64_t begins_ns = drive_begins_ns(load);
        if (begins_ns < next_ns) next_ns = begins_ns;
        const bool opens = load->asked < load->pass.layers && load->computed_ns > model->now_ns;
        if (opens && load->computed_ns < next_ns) next_ns = load->computed_ns;
    }
    return next_ns;
}

uint64_t drive_next_ns(const drive_model *model)
{
    uint64_t next_ns = drive_passes_ns(model);
    if (model->count > 0 && model->piece_ends_ns < next_ns) next_ns = model->piece_ends_ns;
    return model->ask_again_ns < next_ns ? model->ask_again_ns : next_ns;
}

kvt_status drive_advance(drive_model *model, uint64_t now_ns)
{
    kvt_status status = KVT_OK;
    for (;;) {
        const uint64_t next_ns = drive_next_ns(model);
        if (next_ns > now_ns || status != KVT_OK) break;
        if (next_ns > model->now_ns) model->now_ns = next_ns;
        if (model->count > 0 && model->piece_ends_ns <= model->now_ns) drive_end_piece(model);
        status = drive_step_all(model);
        if (status == KVT_OK) drive_fill(model);
    }
    if (now_ns > model->now_ns) model->now_ns = now_ns;
    return status;
}

kvt_status drive_load(drive_model *model, uint64_t now_ns, uint32_t tag, const drive_pass *pass)
{
    static tiers_share share = {.member = 0, .units = 1};
    const tiers_location place = {.shares = &share, .share_count = 1};
    assert(pass->layers > 0 && pass->layer_bytes > 0);
    kvt_status status = drive_advance(model, now_ns);
    drive_load_state *load = status == KVT_OK ? calloc(1, sizeof *load) : NULL;
    if (load == NULL) return status != KVT_OK ? status : KVT_E_MEMORY;
    load->pass = *pass;
    load->tag = tag;
    load->head_came = pass->head_bytes == 0;
    load->began_ns = load->computed_ns = now_ns;
    load->pace = (tiers_pace){
        .layers = pass->layers, .began_ns = now_ns, .step_ns = drive_ns(pass->announced_seconds)};
    if (pass->announced_seconds > 0)
        load->need = needs_begin(&model->needs, &load->pace, 0, pass->layers, DRIVE_AHEAD, now_ns);
    needs_add(&model->needs, load->need, &place, pass->layer_bytes * pass->layers);
    drive_load_state **at = &model->loads;
    while (*at != NULL)
        at = &(*at)->next;
    *at = load;
    status = drive_step_all(model);
    if (status == KVT_OK) drive_fill(model);
    return status;
}

kvt_status drive_add(drive_model *model, uint64_t now_ns, tiers_rank rank, uint64_t bytes,
                     uint32_t tag, bool counted)
{
    assert(rank != TIERS_RANK_WAITED && bytes > 0 && tag != DRIVE_NO_TAG);
    kvt_status status = drive_advance(model, now_ns);
    if (status == KVT_OK)
        status = drive_queue(
            model, &(drive_job){.rank = rank, .tag = tag, .bytes = bytes, .counted = counted});
    if (status == KVT_OK) drive_fill(model);
    return status;
}

void drive_forget(drive_model *model)
{
    for (uint32_t rank = TIERS_RANK_READ; rank < TIERS_RANKS; rank++) {
        drive_job *job = model->heads[rank];
        while (job != NULL) {
            drive_job *next = job->next;
            if (rank == TIERS_RANK_READ) model->read_bytes -= job->left;
            job->left = 0;
            job->tag = DRIVE_NO_TAG;
            if (job->flying == 0) free(job); /* else its last piece ends it */
            job = next;
        }
        model->heads[rank] = NULL;
        model->tails[rank] = &model->heads[rank];
    }
    for (uint32_t i = 0; i < model->count; i++) {
        drive_job *job = model->flying[(model->first + i) % DRIVE_DEPTH].job;
        if (job->load == NULL) job->tag = DRIVE_NO_TAG;
    }
}

void drive_set_hurry(drive_model *model, bool hurry)
{
    model->hurry = hurry;
}

uint64_t drive_waited_bytes(const drive_model *model)
{
    uint64_t bytes = model->waited_bytes;
    for (const drive_load_state *load = model->loads; load != NULL; load = load->next)
        bytes += (load->pass.layers - load->asked) * load->pass.layer_bytes;
    return bytes;
}

const drive_figures *drive_figures_of(const drive_model *model)
{
    return &model->figures;
}
