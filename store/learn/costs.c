/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs.c - the figures of devices and codecs that the store decides with: from the profile, or,
 * where the profile has none, from a brief measurement at open.
 *
 * A brief probe is coarser than `kvterrace profile devices`, but it is of this machine now; there
 * is no constant to fall back to. The disk may be busy at that moment: of a few repetitions the
 * fastest counts.
 *
 * Thread rule: the opener's thread; the devices are not yet with their workers.
 */
#include "store/learn/costs.h"
#include "base/clock.h"

#include "codecs/codecs.h"
#include "codecs/kv_sample.h"
#include "codecs/transform_basis.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COSTS_DEPTH           8u
#define COSTS_REQUEST_BYTES   (256u * 1024u)
#define COSTS_SECONDS         0.005               /* of each repetition */
#define COSTS_REQUESTS        8u                  /* at least, however slow the device is */
#define COSTS_TIMEOUT_SECONDS 5.0                 /* seconds of an idle device that takes nothing */
#define COSTS_SPARSE_BYTES    (UINT64_C(4) << 20) /* of a sparse file, which are written */
#define COSTS_LATENCY_RUNS    4u
#define COSTS_REPEATS         4u /* of which the fastest counts: nothing is faster than it is */

/* One probe: a range of a device, requests of one size walking over it. */
typedef struct costs_probe {
    kvt_device *device;
    kvt_io_kind kind;
    uint32_t request_bytes;
    uint64_t base;
    uint64_t requests_in_range;
    uint64_t next;
    char *buffers;
    kvt_io ios[COSTS_DEPTH];
    uint64_t first_ns; /* device clock */
    uint64_t last_ns;
    uint64_t bytes;
    kvt_status status;
} costs_probe;

/* Counts a request that ended, and keeps the first error. */
static void costs_finish_io(costs_probe *probe, const kvt_io *io)
{
    if (io->status != KVT_OK && probe->status == KVT_OK) probe->status = io->status;
    if (probe->first_ns == 0 || io->submitted_ns < probe->first_ns) {
        probe->first_ns = io->submitted_ns;
    }
    if (io->finished_ns > probe->last_ns) probe->last_ns = io->finished_ns;
    probe->bytes += io->bytes;
}

/* Keeps `depth` requests in flight until `limit` of them were made or the time is over. */
static void costs_run(costs_probe *probe, uint32_t depth, uint64_t limit)
{
    double until = base_clock_seconds() + COSTS_SECONDS;
    uint64_t made = 0;
    uint32_t in_flight = 0, idle_count = depth;
    uint32_t idle[COSTS_DEPTH];
    assert(depth > 0 && depth <= COSTS_DEPTH);
    for (uint32_t i = 0; i < depth; i++) {
        idle[i] = i;
    }
    while (in_flight != 0 || (made < limit && probe->status == KVT_OK)) {
        bool more = made < limit && probe->status == KVT_OK;
        if (more && idle_count != 0) {
            uint32_t slot = idle[idle_count - 1];
            /* Fill the next request of the walk; the walk begins anew at the end of the range. */
            assert(slot < COSTS_DEPTH && probe->requests_in_range > 0);
            uint64_t index = probe->next++ % probe->requests_in_range;
            probe->ios[slot] =
                (kvt_io){.kind = probe->kind,
                         .bytes = probe->request_bytes,
                         .offset = probe->base + index * probe->request_bytes,
                         .buffer = probe->buffers + (size_t)slot * COSTS_REQUEST_BYTES};
            kvt_status status = kvt_device_submit(probe->device, &probe->ios[slot]);
            if (status == KVT_OK) costs_finish_io(probe, &probe->ios[slot]);
            if (status == KVT_QUEUED) in_flight++, idle_count--;
            if (status == KVT_BUSY && in_flight == 0 &&
                base_clock_seconds() > until + COSTS_TIMEOUT_SECONDS) {
                probe->status = KVT_E_IO;
            }
            if (status != KVT_BUSY) made++;
            if (made >= COSTS_REQUESTS && base_clock_seconds() > until) limit = made;
            if (status != KVT_BUSY && idle_count != 0) continue;
        }
        kvt_io *done[COSTS_DEPTH];
        kvt_device_flush(probe->device);
        size_t count = kvt_device_reap(probe->device, done, 1, COSTS_DEPTH, UINT64_C(1000000000));
        for (size_t i = 0; i < count; i++) {
            costs_finish_io(probe, done[i]);
            idle[idle_count++] = (uint32_t)(done[i] - probe->ios);
            in_flight--;
        }
    }
    /* Every request has come back: the buffers may be freed. */
    assert(idle_count == depth);
}

/* Seconds from the first submission to the last completion, never 0. */
static double costs_elapsed(const costs_probe *probe)
{
    uint64_t ns = probe->last_ns - probe->first_ns;
    return ns == 0 ? 1e-9 : (double)ns * 1e-9;
}

/* Ascending, for qsort. */
static int costs_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Begins a measurement in requests of one size, where the last one ended. */
static void costs_begin(costs_probe *probe, uint64_t room, uint32_t request_bytes)
{
    probe->request_bytes = request_bytes;
    probe->requests_in_range = room / request_bytes;
    probe->bytes = probe->first_ns = probe->last_ns = 0;
}

/* Measures one direction: the seconds of a small request alone, and the bandwidth at depth. The
 * seconds of a request are the latency less the time of its bytes. Bytes outside of
 * [head_bytes, end_bytes) are not touched. */
static kvt_status costs_probe_kind(kvt_device *device, kvt_io_kind kind, uint64_t head_bytes,
                                   uint64_t end_bytes, kvt_affine *out)
{
    const kvt_device_facts *facts = &device->facts;
    uint32_t request = facts->request_bytes_max < COSTS_REQUEST_BYTES ? facts->request_bytes_max
                                                                      : COSTS_REQUEST_BYTES;
    if (end_bytes <= head_bytes) return KVT_E_SPACE;
    uint64_t room = end_bytes - head_bytes;
    if (request > room) request = (uint32_t)room;
    request -= request % facts->align_bytes;
    if (request == 0) return KVT_E_SPACE;
    costs_probe probe = {.device = device, .kind = kind, .base = head_bytes};
    probe.buffers = aligned_alloc(4096, (size_t)COSTS_DEPTH * COSTS_REQUEST_BYTES);
    if (probe.buffers == NULL) return KVT_E_MEMORY;
    memset(probe.buffers, 0, (size_t)COSTS_DEPTH * COSTS_REQUEST_BYTES);
    uint32_t small = facts->align_bytes > 4096 ? facts->align_bytes : 4096;
    if (small > request) small = request;
    uint32_t depth = facts->depth_max < COSTS_DEPTH ? facts->depth_max : COSTS_DEPTH;
    double latency = 0, bytes_per_s = 0;
    for (uint32_t i = 0; i < COSTS_REPEATS && probe.status == KVT_OK; i++) {
        /* Median seconds of a small request that is alone on the device. */
        double latencies[COSTS_LATENCY_RUNS];
        for (uint32_t k = 0; k < COSTS_LATENCY_RUNS; k++) {
            costs_begin(&probe, room, small);
            costs_run(&probe, 1, 1);
            latencies[k] = costs_elapsed(&probe);
        }
        qsort(latencies, COSTS_LATENCY_RUNS, sizeof latencies[0], costs_compare);
        double seconds = latencies[COSTS_LATENCY_RUNS / 2];
        if (i == 0 || seconds < latency) latency = seconds;
        costs_begin(&probe, room, request);
        costs_run(&probe, depth, UINT64_MAX);
        double speed = (double)probe.bytes / costs_elapsed(&probe);
        if (speed > bytes_per_s) bytes_per_s = speed;
    }
    free(probe.buffers);
    if (probe.status != KVT_OK) return probe.status;
    double wire = (double)small / bytes_per_s;
    *out = online_figures((kvt_affine){.request_seconds = latency > wire ? latency - wire : 0,
                                       .bytes_per_s = bytes_per_s});
    return KVT_OK;
}

kvt_status costs_profiled_curve(kvt_profile *profile, bool foreign, const char *name,
                                kvt_device_curve *out)
{
    if (profile == NULL) return KVT_MISS;
    const kvt_status status = kvt_profile_device(profile, name, out);
    if (status != KVT_OK) return status < 0 ? status : KVT_MISS;
    return out->imported && !foreign ? KVT_MISS : KVT_OK;
}

kvt_status costs_profiled_device(const cost_profile *profile, const kvt_device *device,
                                 cost_device *out)
{
    memset(out, 0, sizeof *out);
    kvt_device_curve curve;
    const kvt_status status =
        costs_profiled_curve(profile->profile, profile->foreign, device->name, &curve);
    if (status != KVT_OK) return status;
    if (!profile->foreign && strcmp(curve.identity, device->facts.identity) != 0) {
        snprintf(profile->message, profile->message_size,
                 "device %s: the profile measured \"%s\", this is \"%s\": measure it again "
                 "(kvterrace profile devices), or store.profile_foreign=yes takes the figures all "
                 "the same",
                 device->name, curve.identity, device->facts.identity);
        return KVT_E_MISMATCH;
    }
    if (!(curve.read.bytes_per_s > 0 && curve.write.bytes_per_s > 0)) return KVT_MISS;
    out->read = online_figures(curve.read);
    out->write = online_figures(curve.write);
    kvt_status also = kvt_profile_mix_kept(profile->profile, device->name, &out->mix_kept);
    if (also == KVT_OK || also == KVT_MISS)
        also = kvt_profile_begins_at(profile->profile, device->name, &out->begins_at);
    return also == KVT_MISS ? KVT_OK : also;
}

kvt_status learn_profiled_gpu(const cost_profile *profile, kvt_cost_model *costs)
{
    kvt_device_curve link;
    kvt_status status =
        costs_profiled_curve(profile->profile, profile->foreign, PROFILE_LINK_NAME, &link);
    if (profile->profile == NULL) return KVT_OK;
    if (status == KVT_OK && link.write.bytes_per_s > 0) costs->link = online_figures(link.write);
    for (uint32_t i = 0; i < costs->variant_count && status >= 0; i++) {
        kvt_codec_curve *variant = &costs->variants[i];
        status = kvt_profile_codec_gpu(profile->profile, profile->foreign, variant);
        if (status == KVT_OK) variant->gpu_bytes_per_s = online_rate(variant->gpu_bytes_per_s);
    }
    return status < 0 ? status : KVT_OK;
}

kvt_status costs_probe_device(kvt_device *device, bool blank, uint64_t head_bytes, cost_device *out)
{
    memset(out, 0, sizeof *out);
    out->probed = true;
    /* A hole is read faster than any drive: a sparse file is written first, in a short range, and
     * the range is a hole again afterwards. */
    const bool holes = blank && (device->facts.flags & KVT_DEVICE_SPARSE) != 0;
    uint64_t end_bytes = device->facts.capacity_bytes;
    /* Memory that nobody has touched is read and written at another speed than later. */
    if (device->facts.prepared_bytes > head_bytes) end_bytes = device->facts.prepared_bytes;
    if (holes && end_bytes > head_bytes + COSTS_SPARSE_BYTES)
        end_bytes = head_bytes + COSTS_SPARSE_BYTES;
    kvt_status wrote = KVT_OK;
    kvt_device_attach(device);
    if (holes) wrote = costs_probe_kind(device, KVT_IO_WRITE, head_bytes, end_bytes, &out->write);
    kvt_status status = costs_probe_kind(device, KVT_IO_READ, head_bytes, end_bytes, &out->read);
    if (status == KVT_OK && blank && !holes)
        wrote = costs_probe_kind(device, KVT_IO_WRITE, head_bytes, end_bytes, &out->write);
    if (holes && end_bytes > head_bytes) { /* its blocks go back; where that fails they stay */
        const uint64_t align = device->facts.align_bytes;
        const uint64_t bytes = (end_bytes - head_bytes) / align * align;
        if (bytes != 0) (void)!kvt_device_trim(device, head_bytes, bytes);
    }
    kvt_device_detach(device);
    /* Writing would destroy the content of a device that is not blank, and a sparse file on a file
     * system that is nearly full cannot be written in whole: the figures of reads stand for writes
     * then, until the device is profiled. */
    if (!blank || wrote == KVT_E_SPACE)
        out->write = out->read;
    else if (status == KVT_OK)
        status = wrote;
    return status;
}

kvt_affine costs_combine(const cost_device *devices, uint32_t count, kvt_io_kind kind)
{
    kvt_affine sum = {0};
    for (uint32_t i = 0; i < count; i++) {
        const kvt_affine *one = kind == KVT_IO_READ ? &devices[i].read : &devices[i].write;
        if (one->request_seconds > sum.request_seconds) sum.request_seconds = one->request_seconds;
        if (one->residual > sum.residual) sum.residual = one->residual;
        sum.bytes_per_s += one->bytes_per_s;
    }
    return sum;
}

#define COSTS_SAMPLE_TOKENS 256u

/* Scores where a variant chooses tokens by them, all of them different. */
static kvt_codec_extras costs_sample_extras(kvt_variant variant, float scores[COSTS_SAMPLE_TOKENS])
{
    kvt_codec_extras extras = {.struct_size = sizeof extras};
    for (uint32_t i = 0; i < COSTS_SAMPLE_TOKENS; i++)
        scores[i] = (float)(i * 97u % COSTS_SAMPLE_TOKENS);
    if (codecs_drop_method(variant) != KVT_DROP_SCORES) return extras;
    extras.scores = scores;
    extras.score_layers = 1;
    return extras;
}

/* The layout of a sample: that of the variant's basis, or any. */
static void costs_sample_shape(const kvt_record_bases *bases, kvt_variant variant,
                               kvt_layout *layout)
{
    if (variant.codec != KVT_CODEC_TRANSFORM) return;
    for (uint32_t i = 0; i < bases->count; i++) {
        const transform_shape *shape = &bases->list[i]->shape;
        const uint32_t start = transform_hash_start(bases->list[i]->hash);
        if (start != variant.rate >> CODECS_BASIS_SHIFT) continue;
        layout->layers = (uint16_t)shape->layers;
        layout->kv_heads = (uint16_t)shape->kv_heads;
        layout->head_dim = (uint16_t)shape->head_dim;
        layout->sides = shape->sides == 1;
    }
}

kvt_status costs_measure_variant(const cost_profile *profile, kvt_variant variant,
                                 kvt_codec_curve *out)
{
    if (profile->profile != NULL) {
        kvt_status status = kvt_profile_codec(profile->profile, variant, out);
        if (status < 0 || (status == KVT_OK && (profile->foreign || !out->imported))) return status;
    }
    kvt_record_spec spec = {.generation = 1,
                            .layout = {.layers = 1,
                                       .kv_heads = 8,
                                       .head_dim = 128,
                                       .dtype = KVT_DTYPE_BF16,
                                       .tokens = COSTS_SAMPLE_TOKENS,
                                       .tokens_may_drop = 1},
                            .variant = variant,
                            .first_position = KVT_SINK_TOKENS, /* a share has no sinks in it */
                            .bases = profile->bases};
    float scores[COSTS_SAMPLE_TOKENS];
    const kvt_codec_extras extras = costs_sample_extras(variant, scores);
    kvt_record_info info = {.decoded_bytes = 0};
    uint64_t source_bytes, record_bytes, scratch_bytes, written = 0;
    costs_sample_shape(&profile->bases, variant, &spec.layout);
    kvt_status status = kvt_layout_bytes(&spec.layout, &source_bytes);
    if (status == KVT_OK) status = kvt_record_bound(&spec, &record_bytes, &scratch_bytes);
    if (status != KVT_OK) return status;
    uint64_t scratch_at = (source_bytes + record_bytes + 4095) / 4096 * 4096;
    char *memory = aligned_alloc(4096, (scratch_at + scratch_bytes + 4095) / 4096 * 4096);
    if (memory == NULL) return KVT_E_MEMORY;
    char *record = memory + source_bytes; /* of 256 tokens: stays aligned */
    double encode = 1e9, decode = 1e9;
    codecs_kv_sample_fill(&spec.layout, 1, memory);
    for (int run = 0; run < 3 && status >= 0; run++) {
        double start = base_clock_seconds();
        status = kvt_record_encode_with(&spec, extras.scores != NULL ? &extras : NULL, memory,
                                        source_bytes, record, record_bytes, memory + scratch_at,
                                        scratch_bytes, &written);
        double middle = base_clock_seconds();
        if (status >= 0) status = kvt_record_parse(record, written, &info);
        if (status >= 0) {
            status = kvt_record_decode(record, written, &spec, memory, info.decoded_bytes,
                                       memory + scratch_at, scratch_bytes);
        }
        double end = base_clock_seconds();
        if (middle - start < encode) encode = middle - start;
        if (end - middle < decode) decode = end - middle;
    }
    free(memory);
    if (status < 0) return status;
    out->variant = variant;
    out->stored_share = (double)written / (double)source_bytes;
    out->encode_bytes_per_s = online_rate((double)source_bytes / online_timed(encode));
    out->decode_bytes_per_s = online_rate((double)source_bytes / online_timed(decode));
    return KVT_OK;
}
