/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_sample.c - one sample of a lent store: its statistics, devices, health, and what the metrics
 * have beyond these. One thread.
 */
#include "top_sample.h"

#include "base/clock.h"
#include "tools/inspect/watch_read.h"

#include <kvterrace/watch.h>

#include <stdlib.h>
#include <string.h>

static void part_add(top_parts *parts, const char *name, double value)
{
    for (size_t i = 0; i < parts->count; i++) {
        if (strcmp(parts->parts[i].name, name) != 0) continue;
        parts->parts[i].value += value;
        return;
    }
    if (parts->count == TOP_PARTS_MAX) return;
    parts->parts[parts->count].value = value;
    (void)snprintf(parts->parts[parts->count].name, sizeof parts->parts->name, "%s", name);
    parts->count++;
}

double tools_top_part(const top_parts *parts, const char *name)
{
    for (size_t i = 0; i < parts->count; i++)
        if (strcmp(parts->parts[i].name, name) == 0) return parts->parts[i].value;
    return 0;
}

static const char *label_of(const watch_read_field *labels, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(labels[i].name, name) == 0) return labels[i].value;
    return "?";
}

/* Takes the samples that a screen shows; moves that failed are not among them. */
static bool take_metric(void *context, const char *name, const watch_read_field *labels,
                        size_t count, double value)
{
    top_sample *sample = context;
    const struct {
        const char *name, *label;
        top_parts *parts;
    } families[] = {{"kvterrace_misses_total", "reason", &sample->misses},
                    {"kvterrace_put_refusals_total", "reason", &sample->refusals},
                    {"kvterrace_moves_total", "kind", &sample->moves},
                    {"kvterrace_hits_total", "form", &sample->forms},
                    {"kvterrace_ssd_written_bytes_total", "cause", &sample->written_mb}};
    if (strcmp(name, "kvterrace_open_seconds") == 0) sample->open_seconds = value;
    if (strcmp(name, "kvterrace_build_info") == 0)
        (void)snprintf(sample->version, sizeof sample->version, "%s",
                       label_of(labels, count, "version"));
    if (strcmp(label_of(labels, count, "outcome"), "aborted") == 0) return true;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(name, families[i].name) == 0)
            part_add(families[i].parts, label_of(labels, count, families[i].label),
                     families[i].parts == &sample->written_mb ? value * 1e-6 : value);
    return true;
}

static bool take_other(void *context, const watch_read_field *fields, size_t count)
{
    (void)context;
    (void)fields;
    (void)count;
    return true;
}

/* The metrics may have grown by the time of the second call. */
static kvt_status sample_metrics(kvt_store *store, top_sample *sample)
{
    const watch_read_visitor visitor = {
        .context = sample, .head = take_other, .sample = take_metric, .operation = take_other};
    const size_t room = kvt_metrics_write(store, NULL, 0) + 65536;
    size_t lines;
    char *text = malloc(room);
    if (text == NULL) return KVT_E_MEMORY;
    const size_t bytes = kvt_metrics_write(store, text, room);
    kvt_status status = bytes != 0 && bytes <= room ? KVT_OK : KVT_E_GONE;
    FILE *file = status == KVT_OK ? fmemopen(text, bytes - 1, "r") : NULL;
    if (status == KVT_OK && file == NULL) status = KVT_E_MEMORY;
    if (file != NULL) {
        status = watch_read_stream(file, &visitor, &lines);
        (void)fclose(file);
    }
    free(text);
    return status;
}

kvt_status tools_top_sample_take(const live_store *live, top_sample *sample)
{
    *sample = (top_sample){.at_ns = base_clock_ns(), .stats.struct_size = sizeof sample->stats};
    sample->health[0].struct_size = sizeof sample->health[0];
    kvt_status status = kvt_store_stats_get(live->store, &sample->stats);
    while (status == KVT_OK && sample->device_count < LIVE_DEVICES_MAX) {
        kvt_device_stats *device = &sample->devices[sample->device_count];
        device->struct_size = sizeof *device;
        status = kvt_device_stats_get(live->store, sample->device_count, device);
        sample->device_count += status == KVT_OK;
    }
    if (status == KVT_END) status = KVT_OK;
    while (status == KVT_OK && sample->node_count < TOP_NODES_MAX) {
        kvt_remote_node *node = &sample->nodes[sample->node_count];
        node->struct_size = sizeof *node;
        status = kvt_remote_node_get(live->store, (uint32_t)sample->node_count, node);
        sample->node_count += status == KVT_OK;
    }
    if (status == KVT_END || status == KVT_E_UNSUPPORTED) status = KVT_OK;
    if (status == KVT_OK)
        status = kvt_health_get(live->store, sample->health, TOP_HEALTH_MAX, &sample->health_count,
                                NULL);
    return status == KVT_OK ? sample_metrics(live->store, sample) : status;
}

uint64_t tools_top_hits(const kvt_store_stats *stats)
{
    uint64_t hits = 0;
    for (int tier = 0; tier < KVT_TIER_PLACES; tier++)
        hits += stats->tiers[tier].hits;
    return hits;
}

bool tools_top_goes_on(const top_sample *earlier, const top_sample *sample)
{
    return earlier->open_seconds <= sample->open_seconds &&
           earlier->stats.gets <= sample->stats.gets && earlier->stats.puts <= sample->stats.puts;
}
