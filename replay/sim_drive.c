/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_drive.c - a host's SSDs as drive_model.h has them, in the loop of events: heads of requests
 * load layer by layer, and moves read and write beside them. One thread.
 */
#include "sim_host.h"

#include <string.h>

/* ---- answers of the model ---- */

static void drive_has_loaded(void *context, uint32_t tag, const drive_loaded *result)
{
    sim_host *host = context;
    host->servers[tag].loaded = *result;
    sim_schedule(
        host, result->loaded_ns > host->run->now_ns ? result->loaded_ns : host->run->now_ns, tag);
}

static void drive_has_moved(void *context, uint32_t tag, uint64_t now_ns)
{
    sim_host *host = context;
    const replay_tier *tier = &host->sim.options->tiers[KVT_TIER_SSD];
    const sim_worker *worker = &host->workers[tag];
    uint64_t end_ns = now_ns + sim_to_ns(worker->writing ? tier->write.request_seconds
                                                         : tier->read.request_seconds);
    if (worker->other_ns > end_ns) end_ns = worker->other_ns;
    sim_schedule(host, end_ns > host->run->now_ns ? end_ns : host->run->now_ns,
                 sim_actor_of_worker(host, tag));
}

/* ---- open, close ---- */

kvt_status sim_drive_open(sim_host *host)
{
    const replay_options *options = host->sim.options;
    const replay_tier *tier = &options->tiers[KVT_TIER_SSD];
    if (!options->layered || tier->capacity_bytes == 0) return KVT_OK;
    const drive_calls calls = {
        .loaded = drive_has_loaded, .ended = drive_has_moved, .context = host};
    const drive_settings settings = {.order = (tiers_order)options->io.order,
                                     .read_bytes_per_s = tier->read.bytes_per_s,
                                     .write_bytes_per_s = tier->write.bytes_per_s,
                                     .request_seconds = tier->read.request_seconds,
                                     .mix = options->mix,
                                     .grain_seconds = options->io.write_grain_seconds,
                                     .patience_seconds = options->io.write_patience_seconds,
                                     .log = host->sim.plan_log};
    return drive_open(&settings, &calls, &host->drive);
}

void sim_drive_close(sim_host *host)
{
    drive_close(host->drive);
}

/* Puts the model's next event into the loop. */
static kvt_status drive_go_on(sim_host *host, kvt_status status)
{
    if (status != KVT_OK) return status;
    const uint64_t next_ns = drive_next_ns(host->drive);
    if (next_ns != UINT64_MAX) sim_reschedule(host, next_ns, sim_actor_of_drive(host));
    return KVT_OK;
}

kvt_status sim_drive_serve(sim_host *host)
{
    /* Three quarters of the staging, as in the store. */
    drive_set_hurry(host->drive, host->staging_bound_bytes != 0 &&
                                     host->staged_bytes > host->staging_bound_bytes / 4 * 3);
    return drive_go_on(host, drive_advance(host->drive, host->run->now_ns));
}

/* ---- loads and moves ---- */

kvt_status sim_drive_load(sim_host *host, uint32_t index, uint64_t bytes, double other_s,
                          double decode_s, double compute_s)
{
    const replay_options *options = host->sim.options;
    const sim_visit *visit = &host->servers[index].visit;
    const uint32_t layers = options->layers;
    const uint64_t held = (uint64_t)visit->loaded * host->sim.workload->block_tokens;
    const uint32_t input = visit->request->input_tokens;
    const uint32_t prefix = held < input ? (uint32_t)held : input - 1;
    const kvt_pass announced = {
        .new_tokens = input - prefix, .prefix_tokens = prefix, .layers = layers};
    const drive_pass pass = {.layers = layers,
                             .layer_bytes = (bytes + layers - 1) / layers,
                             .layer_seconds = compute_s / layers,
                             .decode_seconds = decode_s / layers,
                             .other_seconds = other_s,
                             .announced_seconds =
                                 kvt_pass_seconds(options->pass_rows, options->pass_row_count,
                                                  &options->model.prefill, &announced)};
    return drive_go_on(host, drive_load(host->drive, host->run->now_ns, index, &pass));
}

kvt_status sim_drive_move(sim_host *host, uint32_t index, bool write, uint64_t bytes,
                          uint64_t other_ns)
{
    const bool background = index == SIM_EXECUTORS;
    const tiers_rank rank = !write       ? TIERS_RANK_READ
                            : background ? TIERS_RANK_BACKGROUND
                                         : TIERS_RANK_WRITE;
    host->workers[index].other_ns = other_ns;
    return drive_go_on(
        host, drive_add(host->drive, host->run->now_ns, rank, bytes, index, host->sim.counting));
}

uint64_t sim_drive_free_ns(const sim_host *host)
{
    const double bytes = (double)drive_waited_bytes(host->drive);
    return host->run->now_ns +
           sim_to_ns(bytes / host->sim.options->tiers[KVT_TIER_SSD].read.bytes_per_s);
}

void sim_drive_finish(const sim_host *host)
{
    replay_drive *out = &host->run->result->drive;
    if (host->drive == NULL) return;
    const drive_figures *figures = drive_figures_of(host->drive);
    const double waited = out->write_wait_s_mean * (double)out->writes + figures->wait_seconds;
    out->known = true;
    out->writes += figures->writes;
    out->writes_deferred += figures->writes_deferred;
    out->bytes_deferred += figures->bytes_deferred;
    out->write_wait_s_mean = out->writes > 0 ? waited / (double)out->writes : 0;
    if (figures->wait_seconds_max > out->write_wait_s_max)
        out->write_wait_s_max = figures->wait_seconds_max;
    out->decisions.idle += figures->decisions[SLACK_IDLE];
    out->decisions.fits += figures->decisions[SLACK_FITS];
    out->decisions.share += figures->decisions[SLACK_SHARE];
    out->decisions.waits_reads += figures->decisions[SLACK_BEHIND_READS];
    out->decisions.waits_layers += figures->decisions[SLACK_LATE];
    out->decisions.waits_grain += figures->decisions[SLACK_GRAIN];
    out->decisions.waits_turn += figures->decisions[SLACK_TURN];
}
