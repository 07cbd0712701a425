/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_meter.c - turns completions into the weight of a member: spans, samples, averages, and the
 * hysteresis of the weight. The file reads no clock; every instant is in an operation.
 *
 *     requests -> span     busy time, at most 25 ms; dropped when the device had too little to do,
 *                          unless its requests took 8 times as long as they ought to, and 20 ms
 *              -> sample   10 ms or 16 requests of spans
 *              -> average  one of reads, one of writes; time constant 0.1 s of busy time
 *              -> weight   follows after 4 samples and 0.3 s beyond 10 %, rests within 3 %
 */
#include "worker_meter.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define METER_SPAN_NS           (25u * 1000u * 1000u)
#define METER_SAMPLE_SECONDS    0.010
#define METER_SAMPLE_REQUESTS   16u
#define METER_AVERAGE_SECONDS   0.1 /* of busy time: the averages' time constant */
#define METER_DEVIATION         0.10
#define METER_SETTLED           0.03
#define METER_STREAK            4u
#define METER_STREAK_NS         (300u * 1000u * 1000u)
#define METER_REFERENCE_AFTER   8u   /* write samples until their average can be a reference */
#define METER_BYTES_PER_S_MOST  1e15 /* of an average, however coarse the clock's steps are */
#define METER_LATENCIES_IN_SPAN 4.0  /* a shorter span from idle shows latency, not bandwidth */
#define METER_SLOW              8.0  /* times as long as a request ought to take is slow, */
#define METER_SLOW_SECONDS      0.020
#define METER_STALL_SECONDS     0.25  /* a request that took so long has cost the weight already */
#define METER_WELL              2.0   /* and up to so many times is not, */
#define METER_WELL_SECONDS      0.005 /* nor is what takes no longer than this */
#define METER_WELL_REQUESTS     16u   /* of these a device is well, and again after so long */
#define METER_WELL_NS           (1000u * 1000u * 1000u)

/* A bandwidth of writes that is not known starts at that of reads, and the first sample replaces
 * it. */
void tiers_meter_init(tiers_meter *meter, double read_bytes_per_s, double write_bytes_per_s,
                      double request_seconds)
{
    assert(read_bytes_per_s > 0);
    memset(meter, 0, sizeof *meter);
    meter->nominal_bytes_per_s = read_bytes_per_s;
    meter->request_seconds = request_seconds > 0 ? request_seconds : 0;
    meter->bytes_per_s[KVT_IO_READ] = read_bytes_per_s;
    meter->bytes_per_s[KVT_IO_WRITE] = write_bytes_per_s > 0 ? write_bytes_per_s : read_bytes_per_s;
    meter->weight_bytes_per_s = read_bytes_per_s;
}

/* ---- weight ---- */

/* Counts a sample that speaks for a change; true when there were enough over long enough. Both
 * bounds must be met: samples come fast on a busy device and slowly on others. */
static bool meter_streak(tiers_meter *meter, bool speaks, uint64_t now_ns)
{
    if (!speaks) {
        meter->streak = 0;
        return false;
    }
    if (meter->streak++ == 0) meter->streak_ns = now_ns;
    if (meter->streak < METER_STREAK || now_ns - meter->streak_ns < METER_STREAK_NS) return false;
    meter->streak = 0;
    return true;
}

/* Moves the weight by one sample. At rest the weight stays until the target is off for a streak;
 * following, it takes each target until the target stayed close to an anchor for a streak. Small
 * wobbles thus never move a weight, and a change that lasts is followed to its end. */
static void meter_follow(tiers_meter *meter, uint64_t now_ns)
{
    /* The presumed bandwidth of reads: their average, lowered by the factor that writes have lost
     * since the last sample of reads. Never below the floor. Writes alone can thus lower the
     * weight of reads, never raise it. */
    double target = meter->bytes_per_s[KVT_IO_READ];
    double writes = meter->bytes_per_s[KVT_IO_WRITE];
    assert(meter->nominal_bytes_per_s > 0);
    if (meter->write_reference > 0 && writes < meter->write_reference)
        target *= writes / meter->write_reference;
    double floor_bytes_per_s = meter->nominal_bytes_per_s / TIERS_METER_FLOOR;
    if (target < floor_bytes_per_s) target = floor_bytes_per_s;
    if (!meter->following) {
        bool off = fabs(target / meter->weight_bytes_per_s - 1) > METER_DEVIATION;
        if (!meter_streak(meter, off, now_ns)) return;
        meter->following = true;
        meter->anchor_bytes_per_s = target;
    } else {
        bool close = fabs(target / meter->anchor_bytes_per_s - 1) < METER_SETTLED;
        if (!close) meter->anchor_bytes_per_s = target;
        if (meter_streak(meter, close, now_ns)) meter->following = false;
    }
    meter->weight_bytes_per_s = target;
}

/* ---- samples ---- */

/* Moves the average of one direction towards a sample, by a share of 0 to 1. Longer samples move it
 * further. */
static void meter_average(tiers_meter *meter, kvt_io_kind kind, double bytes_per_s, double share)
{
    /* The figure of the open may be a guess for writes; the first sample replaces it. */
    if (kind == KVT_IO_WRITE && meter->samples[kind] == 0) share = 1;
    meter->bytes_per_s[kind] += share * (bytes_per_s - meter->bytes_per_s[kind]);
    meter->samples[kind]++;
}

/* Books a sample. With 7/8 of its bytes in one direction it moves that direction's average; a mixed
 * sample scales both by the same factor. */
static void meter_add_sample(tiers_meter *meter, uint64_t now_ns)
{
    double reads = (double)meter->sample_bytes[KVT_IO_READ];
    double writes = (double)meter->sample_bytes[KVT_IO_WRITE];
    double seconds = meter->sample_seconds;
    assert(seconds > 0 && reads + writes > 0 && "a sample is made of spans with bytes");
    double share = 1 - exp(-seconds / METER_AVERAGE_SECONDS);
    double *bytes_per_s = meter->bytes_per_s;
    if (reads >= 7 * writes) {
        meter_average(meter, KVT_IO_READ, (reads + writes) / seconds, share);
        meter->write_reference = meter->samples[KVT_IO_WRITE] > 0 ? bytes_per_s[KVT_IO_WRITE] : 0;
    } else if (writes >= 7 * reads) {
        meter_average(meter, KVT_IO_WRITE, (reads + writes) / seconds, share);
        if (meter->write_reference <= 0 && meter->samples[KVT_IO_WRITE] >= METER_REFERENCE_AFTER)
            meter->write_reference = bytes_per_s[KVT_IO_WRITE];
    } else {
        double expected = reads / bytes_per_s[KVT_IO_READ] + writes / bytes_per_s[KVT_IO_WRITE];
        double factor = 1 + share * (expected / seconds - 1);
        bytes_per_s[KVT_IO_READ] *= factor;
        bytes_per_s[KVT_IO_WRITE] *= factor;
        meter->write_reference *= factor; /* the average of reads has this change already */
    }
    for (int kind = 0; kind < 2; kind++)
        bytes_per_s[kind] = fmin(bytes_per_s[kind], METER_BYTES_PER_S_MOST);
    meter->sample_bytes[KVT_IO_READ] = meter->sample_bytes[KVT_IO_WRITE] = 0;
    meter->sample_requests = 0;
    meter->sample_seconds = 0;
    meter_follow(meter, now_ns);
}

/* ---- spans ---- */

/* Whether the span shows bandwidth: the device had twice as much in flight as it takes to hide
 * one request's latency. A span with a failure, or too short to separate latency from bandwidth, is
 * none. */
static bool meter_is_evidence(const tiers_meter *meter, double seconds)
{
    if (meter->broken || !(seconds > 0)) return false;
    if (meter->fresh && seconds < METER_LATENCIES_IN_SPAN * meter->request_seconds) return false;
    bool reading = meter->bytes[KVT_IO_READ] >= meter->bytes[KVT_IO_WRITE];
    double bytes_per_s = meter->bytes_per_s[reading ? KVT_IO_READ : KVT_IO_WRITE];
    return meter->byte_seconds / seconds >= 2 * meter->request_seconds * bytes_per_s;
}

bool tiers_meter_is_late(const tiers_meter *meter)
{
    return meter->sound_bytes_per_s > 0 &&
           meter->weight_bytes_per_s < (1 - METER_DEVIATION) * meter->sound_bytes_per_s;
}

/* The seconds that a request of the span has taken: the mean, or those of a silence that is long
 * enough by itself, which many answers before it do not hide. */
static double meter_took(const tiers_meter *meter)
{
    const double bytes = (double)(meter->bytes[KVT_IO_READ] + meter->bytes[KVT_IO_WRITE]);
    if (meter->silent_seconds >= METER_STALL_SECONDS) return meter->silent_seconds;
    return bytes > 0 ? meter->byte_seconds / bytes : 0;
}

/* How many times as long as it ought to that is, by the device's latency and what was in flight
 * beside it. 0: that is not known. */
static double meter_slowness(const tiers_meter *meter, double seconds)
{
    if (meter->broken || !(seconds > 0) || meter->request_seconds <= 0) return 0;
    const double flying = meter->byte_seconds / seconds;
    return meter_took(meter) / (meter->request_seconds + flying / meter->nominal_bytes_per_s);
}

/* Looks whether a span shows a device that is slow however little it has to do. Such a one is a
 * sample, if it is no evidence of bandwidth, too. Reads that take no longer than they ought to give
 * the average back that the device had before: they show no bandwidth. */
static bool meter_is_slow(tiers_meter *meter, double seconds)
{
    const double times = meter_slowness(meter, seconds), took = meter_took(meter);
    if (times >= METER_SLOW && took >= METER_SLOW_SECONDS) {
        if (meter->sound_bytes_per_s <= 0)
            meter->sound_bytes_per_s = meter->bytes_per_s[KVT_IO_READ];
        meter->slow_ns = meter->last_ns;
        meter->well = 0;
        if (took >= METER_STALL_SECONDS) {
            meter->weight_bytes_per_s = meter->nominal_bytes_per_s / TIERS_METER_FLOOR;
            meter->following = false;
            meter->streak = 0;
        }
        return true;
    }
    const bool well = times <= METER_WELL || took <= METER_WELL_SECONDS;
    if (meter->sound_bytes_per_s <= 0 || times <= 0 || !well || meter->bytes[KVT_IO_WRITE] != 0)
        return false;
    meter->well += meter->requests;
    if (meter->well < METER_WELL_REQUESTS) return false;
    /* Late answers between many that are not cost no weight; one that is lost comes back later. */
    const bool lost = tiers_meter_is_late(meter);
    if (lost && meter->last_ns - meter->slow_ns < METER_WELL_NS) return false;
    meter->bytes_per_s[KVT_IO_READ] = meter->sound_bytes_per_s;
    if (lost) meter->weight_bytes_per_s = meter->sound_bytes_per_s;
    meter->sound_bytes_per_s = meter->write_reference = 0;
    meter->following = false;
    meter->streak = 0;
    return false;
}

/* Only the first operation on an idle device begins a span. */
void tiers_meter_begin(tiers_meter *meter, const kvt_io *io)
{
    if (meter->in_flight++ > 0) return;
    meter->begin_ns = meter->last_ns = io->submitted_ns;
    meter->fresh = true;
    meter->broken = false;
}

bool tiers_meter_end(tiers_meter *meter, const kvt_io *io)
{
    assert(meter->in_flight > 0);
    meter->in_flight--;
    if (io->status != KVT_OK) {
        meter->broken = true;
    } else {
        meter->requests++;
        meter->bytes[io->kind] += io->bytes;
        if (io->finished_ns > meter->last_ns) {
            const double silent = (double)(io->finished_ns - meter->last_ns) * 1e-9;
            if (silent > meter->silent_seconds) meter->silent_seconds = silent;
            meter->last_ns = io->finished_ns;
        }
        if (io->finished_ns > io->submitted_ns)
            meter->byte_seconds +=
                (double)io->bytes * (double)(io->finished_ns - io->submitted_ns) * 1e-9;
    }
    if (meter->in_flight > 0 && meter->last_ns - meter->begin_ns < METER_SPAN_NS) return false;
    /* Close the span at its last completion; true when that completed a sample. A span that is no
     * evidence is dropped whole. The next one begins where this one ended. */
    bool sampled = false;
    double seconds = (double)(meter->last_ns - meter->begin_ns) * 1e-9;
    const bool evident = meter_is_evidence(meter, seconds);
    const bool weighed = meter->sound_bytes_per_s > 0;
    if (meter_is_slow(meter, seconds) || evident) {
        meter->sample_bytes[KVT_IO_READ] += meter->bytes[KVT_IO_READ];
        meter->sample_bytes[KVT_IO_WRITE] += meter->bytes[KVT_IO_WRITE];
        meter->sample_requests += meter->requests;
        meter->sample_seconds += seconds - (meter->fresh ? meter->request_seconds : 0);
        sampled = meter->sample_seconds >= METER_SAMPLE_SECONDS ||
                  meter->sample_requests >= METER_SAMPLE_REQUESTS;
        if (sampled) meter_add_sample(meter, meter->last_ns);
    }
    sampled = sampled || (weighed && meter->sound_bytes_per_s <= 0);
    meter->begin_ns = meter->last_ns;
    meter->fresh = meter->broken = false;
    meter->requests = 0;
    meter->bytes[KVT_IO_READ] = meter->bytes[KVT_IO_WRITE] = 0;
    meter->byte_seconds = meter->silent_seconds = 0;
    return sampled;
}

/* ---- pressure ---- */

/* Brings the mean up to an instant, then the switch: between the two bounds it stays. */
static void pressure_advance(tiers_pressure *pressure, uint64_t now_ns)
{
    if (pressure->sampled_ns != 0 && now_ns > pressure->sampled_ns) {
        double seconds = (double)(now_ns - pressure->sampled_ns) * 1e-9;
        double share = 1 - exp(-seconds / TIERS_PRESSURE_MEAN_SECONDS);
        pressure->mean_seconds += share * (pressure->backlog_seconds - pressure->mean_seconds);
    }
    if (now_ns > pressure->sampled_ns) pressure->sampled_ns = now_ns;
    if (pressure->mean_seconds > TIERS_PRESSURE_ON_SECONDS)
        pressure->on = true;
    else if (pressure->mean_seconds < TIERS_PRESSURE_OFF_SECONDS)
        pressure->on = false;
}

void tiers_pressure_sample(tiers_pressure *pressure, double backlog_seconds, uint64_t now_ns)
{
    assert(backlog_seconds >= 0);
    pressure_advance(pressure, now_ns);
    pressure->backlog_seconds = backlog_seconds;
}

bool tiers_pressure_is_on(tiers_pressure *pressure, uint64_t now_ns)
{
    pressure_advance(pressure, now_ns);
    return pressure->on;
}
