/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ablation.c - what each part of layered loading gives (Tutti 4.2.5): the pass and the writes
 * of bench_slack.h on stores with more and more of the parts; then what reads gain by where they
 * begin, on a real disk, and progressive loads (bench_coarse.c).
 *
 * Thread rule: one case at a time.
 */
#include "bench_slack.h"

#include "estimator/exchange/exchange.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABLATION_VARIANT "planes:k4v4,g64"
#define ABLATION_HIT     0.75
#define ABLATION_ASK     0.6
#define ALIGNMENT_BYTES  (UINT64_C(256) << 20)

/* A profile with a made-up ladder of raw and planes at 4 bits, without a loss, for entries of the
 * case's layout. */
static kvt_status ablation_profile(const char *path, char *message, size_t message_size)
{
    kvt_profile *profile = NULL;
    kvt_status status = kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, message, message_size);
    if (status != KVT_OK) return status;
    json_t *tables = json_pack(
        "{s:[{s:s, s:i, s:i, s:i}], s:[{s:s, s:s, s:i, s:s, s:f, s:f}]}", "model", "model", "m",
        "layers", SLACK_LAYERS, "kv_heads", (int)bench_slack_layout.kv_heads, "head_dim",
        (int)bench_slack_layout.head_dim, "calibration", "model", "m", "class", "c", "position", 1,
        "variant", ABLATION_VARIANT, "bits_per_element", 4.5, "loss", 0.0);
    status = tables == NULL
                 ? KVT_E_MEMORY
                 : exchange_import_tables(profile, tables, "made up", message, message_size);
    json_decref(tables);
    kvt_profile_close(profile);
    return status;
}

/* One row: the same pass and the same writes on a store with so many of the parts. */
static kvt_status ablation_row(slack_bench *bench, const char *name, bool serial,
                               const slack_site *site)
{
    double length;
    slack_figures figures;
    const double left = bench_slack_left(bench, ABLATION_HIT, &length);
    const double asked = ABLATION_ASK * fmax(left, SLACK_LEAST_LEFT * length);
    kvt_status status = bench_slack_open(bench, site);
    if (status == KVT_OK)
        status = bench_slack_repeat(bench, site->order, serial, ABLATION_HIT, asked, 1, &figures);
    if (status == KVT_OK) {
        const bench_rate blocked = bench_slack_ms(figures.blocked),
                         ttft = bench_slack_ms(figures.seconds);
        const bench_rate alone = bench_slack_ms(figures.alone);
        json_t *row =
            json_pack("{s:s, s:o, s:s, s:s}", "parts", name, "mix", bench_number(bench->mix),
                      "variant", site->variant != NULL ? site->variant : "raw", "io_order",
                      bench_slack_names[site->order]);
        row = bench_with_rate(row, "bubble_ms", &blocked);
        row = bench_with_rate(row, "alone_ms", &alone);
        row = bench_with_rate(row, "write_share", &figures.written);
        bench_report_row(bench->report, "results", bench_with_rate(row, "ttft_ms", &ttft));
    }
    bench_slack_close(bench);
    return bench_blame(bench->report, status, name, bench->report->message);
}

/* The rows of one mixture of the drives. Each has the parts of those before it, but for the ring,
 * which stands alone with slack behind it: what follows is read by loads. */
static kvt_status ablation_rows(slack_bench *bench, const char *profile)
{
    const kvt_placement placed =
        bench->options->device_count > 1 ? KVT_PLACE_TENSOR : KVT_PLACE_PROPORTIONAL;
    const slack_site plain = {.order = KVT_IO_READS_FIRST};
    const slack_site ring = {.ring = true, .order = KVT_IO_READS_FIRST};
    const slack_site ring_slack = {.ring = true, .order = KVT_IO_SLACK};
    const slack_site slots = {.placement = placed, .slots = "raw@64"};
    const slack_site slack = {.order = KVT_IO_SLACK, .placement = placed, .slots = "raw@64"};
    const slack_site planes = {.order = KVT_IO_SLACK,
                               .slots = ABLATION_VARIANT "@64",
                               .profile = profile,
                               .variant = ABLATION_VARIANT};
    const slack_site bytes = {.profile = profile, .variant = ABLATION_VARIANT};
    kvt_status status = ablation_row(bench, "serial", true, &plain);
    if (status == KVT_OK) status = ablation_row(bench, "serial, 4 bits", true, &bytes);
    if (status == KVT_OK) status = ablation_row(bench, "+ layerwise", false, &plain);
    if (status == KVT_OK) status = ablation_row(bench, "+ ring", false, &ring);
    if (status == KVT_OK) status = ablation_row(bench, "ring, slack", false, &ring_slack);
    if (status == KVT_OK) status = ablation_row(bench, "+ slots, placement", false, &slots);
    if (status == KVT_OK) status = ablation_row(bench, "+ slack", false, &slack);
    return status == KVT_OK ? ablation_row(bench, "+ 4 bits", false, &planes) : status;
}

static kvt_status ablation_run(slack_bench *bench, uint32_t done, uint32_t count)
{
    char folder[] = "/tmp/kvlab-ablation-XXXXXX", path[64];
    char *message = bench->report->message;
    (void)bench_tell(bench->options, done, count, "parts");
    if (mkdtemp(folder) == NULL) return KVT_E_IO;
    snprintf(path, sizeof path, "%s/p.db", folder);
    kvt_status status = ablation_profile(path, message, BENCH_MESSAGE_BYTES);
    status = bench_blame(bench->report, status, "a profile", message);
    if (status == KVT_OK) status = ablation_rows(bench, path);
    (void)unlink(path);
    (void)rmdir(folder);
    return status;
}

/* ---- alignment ---- */

/* Measures reads of one drive by where they begin, as `kvterrace profile devices --quick` does. */
static kvt_status alignment_of(const kvt_device_config *config, kvt_profile *profile,
                               bench_report *report)
{
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(config, &device, report->message, BENCH_MESSAGE_BYTES);
    if (status != KVT_OK) return status;
    const kvt_profile_request request = {.struct_size = sizeof request, .quick = true};
    status = kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 0, &request);
    (void)kvt_device_close(device);
    return status;
}

/* Rows of a table "alignment". Emulated drives have no pieces that a read could begin in: they are
 * not judged, and a file in the working folder says what the disk below them gains. */
static kvt_status ablation_alignment(const bench_options *options, bench_report *report)
{
    char folder[] = "kvlab-alignment-XXXXXX", path[64], database[64];
    kvt_profile *profile = NULL;
    const bool real = options->device_count > 0 && !options->devices[0].emulated &&
                      strcmp(options->devices[0].backend, "memory") != 0;
    const kvt_device_config disk = {.struct_size = sizeof disk,
                                    .name = "disk",
                                    .backend = "file",
                                    .path = path,
                                    .capacity_bytes = ALIGNMENT_BYTES};
    if (mkdtemp(folder) == NULL) return KVT_E_IO;
    snprintf(path, sizeof path, "%s/disk", folder);
    snprintf(database, sizeof database, "%s/p.db", folder);
    kvt_status status = kvt_profile_open(database, KVT_PROFILE_WRITE, &profile, report->message,
                                         BENCH_MESSAGE_BYTES);
    for (uint32_t i = 0; i < (real ? options->device_count : 1) && status == KVT_OK; i++)
        status = alignment_of(real ? &options->devices[i] : &disk, profile, report);
    json_t *views = json_object(), *row;
    size_t index;
    if (status == KVT_OK) status = exchange_view(profile, "starts", views);
    json_array_foreach(json_object_get(views, "starts"), index, row)
    {
        json_object_set_new(row, "judged", json_boolean(real));
        bench_report_row(report, "alignment", json_incref(row));
    }
    json_decref(views);
    kvt_profile_close(profile);
    (void)unlink(path);
    (void)unlink(database);
    (void)rmdir(folder);
    return bench_blame(report, status, "alignment", report->message);
}

static kvt_status ablation_case(const bench_options *options, bench_report *report)
{
    kvt_status status = bench_slack_case_of(options, report, ablation_run);
    if (status == KVT_OK) status = ablation_alignment(options, report);
    return status == KVT_OK ? bench_coarse_rows(options, report) : status;
}

const bench_case bench_ablation_case = {
    .name = "ablation",
    .schema = "kvterrace-bench-ablation-1",
    .tables = (const document_table[]){{"results", "parts mix variant io_order bubble_ms alone_ms "
                                                   "ttft_ms write_share"},
                                       {"alignment", "device judged request_bytes begins_at depth "
                                                     "bytes_per_s gain"},
                                       {"coarse", "variant coarse loss coarse_loss plain_ms "
                                                  "coarse_ms refined_ms time_ratio bytes_ratio "
                                                  "read_ratio left_out"},
                                       {0}},
    .run = ablation_case,
};
