/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_drift_report.c - the drift bench as text or as JSON, schema "kvterrace-bench-drift-1".
 *
 * Thread rule: one bench at a time.
 */
#include "bench_drift.h"

#include "bench_rate.h"

static json_t *report_slowing(const drift_slowing *slowing)
{
    return json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:I, s:I, s:I, s:I, s:i}",
        "object_bytes", (json_int_t)slowing->object_bytes, "device_sum_bytes_per_s",
        slowing->sum_before, "device_sum_after_bytes_per_s", slowing->sum_after, "ratio_before",
        slowing->ratio_before, "seconds_to_090", slowing->seconds_to_ratio, "new_ratio",
        slowing->new_ratio, "new_ratio_min", slowing->new_ratio_worst, "old_ratio",
        slowing->old_ratio, "old_of_allowed", slowing->old_of_allowed, "hot_objects",
        (int)slowing->hot_objects, "hot_ratio", slowing->hot_ratio, "hot_seconds",
        slowing->hot_seconds, "moved_objects", (json_int_t)slowing->moved_objects, "moved_bytes",
        (json_int_t)slowing->moved_bytes, "move_budget_bytes_per_s",
        (json_int_t)slowing->budget_bytes_per_s, "move_budget_bytes",
        (json_int_t)slowing->budget_bytes, "wrong", (int)slowing->wrong);
}

static json_t *report_vanishing(const drift_vanishing *vanishing)
{
    return json_pack(
        "{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:i, s:i, s:i, s:f}",
        "objects", (int)vanishing->objects, "small_objects", (int)vanishing->small_objects, "reads",
        (json_int_t)vanishing->reads, "hits", (json_int_t)vanishing->hits, "misses",
        (json_int_t)vanishing->misses, "wrong", (json_int_t)vanishing->wrong, "late",
        (json_int_t)vanishing->late, "deadline_s", vanishing->deadline_seconds, "slowest_s",
        vanishing->slowest_seconds, "quarantined", (json_int_t)vanishing->quarantined, "readmitted",
        (json_int_t)vanishing->readmitted, "replaced", (json_int_t)vanishing->replaced,
        "readable_while_gone", (int)vanishing->readable_gone, "unreadable_elsewhere",
        (int)vanishing->unreadable_else, "readable_after_return", (int)vanishing->readable_back,
        "add_s", vanishing->add_seconds);
}

static int report_text(FILE *out, const drift_slowing *slowing, const drift_vanishing *vanishing)
{
    fprintf(out,
            "the fastest drive halves its speed: %.0f -> %.0f MB/s in all, objects of %.0f MiB\n",
            slowing->sum_before / 1e6, slowing->sum_after / 1e6,
            (double)slowing->object_bytes / 1048576);
    fprintf(out, "  before                     %.3f of the sum\n", slowing->ratio_before);
    fprintf(out, "  new objects reach 0.9      after %.2f s; later %.3f (worst %.3f)\n",
            slowing->seconds_to_ratio, slowing->new_ratio, slowing->new_ratio_worst);
    fprintf(out, "  old objects                %.3f of the sum, %.3f of what their layout allows\n",
            slowing->old_ratio, slowing->old_of_allowed);
    fprintf(out,
            "  %u hot objects              %.3f after %.2f s; moved %.1f MB of a budget of %.1f "
            "(%.0f MB/s)\n",
            slowing->hot_objects, slowing->hot_ratio, slowing->hot_seconds,
            (double)slowing->moved_bytes / 1e6, (double)slowing->budget_bytes / 1e6,
            (double)slowing->budget_bytes_per_s / 1e6);
    fprintf(out, "a drive vanishes and returns: %u objects, %u of them on one drive each\n",
            vanishing->objects, vanishing->small_objects);
    fprintf(out,
            "  reads                      %llu: %llu hits, %llu misses, %llu wrong, %llu late\n",
            (unsigned long long)vanishing->reads, (unsigned long long)vanishing->hits,
            (unsigned long long)vanishing->misses, (unsigned long long)vanishing->wrong,
            (unsigned long long)vanishing->late);
    fprintf(out, "  slowest read               %.3f s of %.1f\n", vanishing->slowest_seconds,
            vanishing->deadline_seconds);
    fprintf(out, "  while it was gone          %u readable, %llu set aside, %u lost elsewhere\n",
            vanishing->readable_gone, (unsigned long long)vanishing->quarantined,
            vanishing->unreadable_else);
    fprintf(out, "  after its return           %u readable, %llu came back in %.2f s\n",
            vanishing->readable_back, (unsigned long long)vanishing->readmitted,
            vanishing->add_seconds);
    return ferror(out) != 0;
}

int bench_drift_report(const bench_options *options, const drift_site *site,
                       const drift_slowing *slowing, const drift_vanishing *vanishing)
{
    if (!options->json) return report_text(options->out, slowing, vanishing);
    json_t *root = bench_report_head("kvterrace-bench-drift-1", 1);
    json_t *drives = json_array();
    int failed = root == NULL || drives == NULL;
    for (uint32_t i = 0; i < site->drive_count && !failed; i++)
        failed = json_array_append_new(drives, json_real(site->rates[i]));
    if (!failed) failed = json_object_set(root, "drive_bytes_per_s", drives);
    if (!failed) failed = json_object_set_new(root, "slows", report_slowing(slowing));
    if (!failed) failed = json_object_set_new(root, "vanishes", report_vanishing(vanishing));
    json_decref(drives);
    if (!failed) return bench_report_print(options->out, root);
    json_decref(root);
    return 1;
}
