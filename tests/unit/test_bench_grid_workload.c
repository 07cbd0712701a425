/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_grid_workload.c - what a cell is replayed with: the capacity and its split, the forms
 * of the shipped ladder, servers for the load, the share of scans; no setting of the engine.
 */
#include "cases.h"

#include "estimator/exchange/exchange.h"
#include "lab/bench/bench_grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const grid_cell *cell_named(const char *name)
{
    for (size_t i = 0; i < grid_cell_count(); i++)
        if (strcmp(grid_cell_at(i)->name, name) == 0) return grid_cell_at(i);
    fail_msg("no cell %s", name);
    return NULL;
}

static void open_sources(grid_sources *sources)
{
    char message[256];
    bool needed[GRID_FAMILIES] = {[GRID_AGENTIC] = true};
    memset(sources, 0, sizeof *sources);
    sources->quick = true;
    assert_int_equal(grid_sources_open(sources, "/nonexistent", needed, message, sizeof message),
                     KVT_OK);
    assert_non_null(strstr(sources->missing[GRID_AGENTIC], "agentic_coding.jsonl.zst"));
}

static void draw(const grid_sources *sources, const grid_cell *cell, replay_workload *workload,
                 replay_options *options)
{
    char message[256];
    assert_int_equal(
        grid_draw_workload(sources, cell, 5, workload, options, message, sizeof message), KVT_OK);
}

TEST(capacity_is_split)
{
    grid_sources sources;
    replay_workload workload;
    replay_options options;
    open_sources(&sources);
    const grid_cell *cell = cell_named("turns3-zipf0.6-cap20-ssd0.5");
    draw(&sources, cell, &workload, &options);
    double footprint = (double)workload.distinct_blocks * 512.0 * 131072.0;
    double dram = (double)options.tiers[KVT_TIER_DRAM].capacity_bytes;
    double ssd = (double)options.tiers[KVT_TIER_SSD].capacity_bytes;
    assert_true(fabs(dram + ssd - 0.2 * footprint) < 16.0);
    assert_true(fabs(dram - 0.04 * footprint) < 16.0);
    assert_true(fabs(options.tiers[KVT_TIER_SSD].write.bytes_per_s - 0.5e9) < 1.0);
    replay_workload_free(&workload);
    draw(&sources, cell_named("turns3-zipf0-cap20-dram"), &workload, &options);
    assert_int_equal(options.tiers[KVT_TIER_SSD].capacity_bytes, 0);
    replay_workload_free(&workload);
    grid_sources_close(&sources);
}

/* The table in code is the shipped ladder's, so that a run needs no file. */
TEST(forms_are_the_shipped_ones)
{
    const char *source = getenv("KVT_SOURCE_DIR");
    char path[1024], message[256];
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    uint32_t count;
    grid_sources sources;
    replay_workload workload;
    replay_options options;
    assert_non_null(source);
    (void)snprintf(path, sizeof path, "%s/profiles/ladder-codec-trial.json", source);
    assert_int_equal(
        exchange_ladder_read(path, curves, KVT_VARIANTS_MAX, &count, message, sizeof message),
        KVT_OK);
    open_sources(&sources);
    draw(&sources, cell_named("turns8-zipf0.6-cap20-ssd3"), &workload, &options);
    assert_int_equal(options.model.variant_count, 2);
    const kvt_codec_curve *mine = &options.model.variants[1];
    assert_int_equal(mine->variant.codec, curves[1].variant.codec);
    assert_true(fabs(mine->stored_share - curves[1].stored_share) < 1e-12);
    assert_true(fabs(mine->encode_bytes_per_s / curves[1].encode_bytes_per_s - 1.0) < 1e-12);
    assert_true(fabs(mine->decode_bytes_per_s / curves[1].decode_bytes_per_s - 1.0) < 1e-12);
    assert_true(mine->loss <= 0.0 && curves[1].loss <= 0.0);
    replay_workload_free(&workload);
    grid_sources_close(&sources);
}

/* Without a cache the servers have the cell's load at most in the busiest part. */
TEST(servers_carry_the_load)
{
    static const char *const names[] = {"turns16-zipf0.6-cap80-dram", "turns3-zipf0-cap20-dram",
                                        "scan0.5-turns1-zipf0.9-cap20-dram"};
    grid_sources sources;
    open_sources(&sources);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const grid_cell *cell = cell_named(names[i]);
        char message[256];
        replay_workload workload;
        replay_options options;
        replay_result result;
        draw(&sources, cell, &workload, &options);
        assert_int_equal(
            replay_run_sim(&options, &workload, "none", &result, message, sizeof message), KVT_OK);
        assert_true(result.rho <= cell->load);
        assert_true(result.rho > cell->load / 4.0);
        replay_workload_free(&workload);
    }
    grid_sources_close(&sources);
}

/* Half of the requests of the scan cells of strength 0.5 are for documents of their own. */
TEST(scans_have_their_share)
{
    grid_sources sources;
    replay_workload workload;
    replay_options options;
    open_sources(&sources);
    draw(&sources, cell_named("scan0.5-turns1-zipf0.9-cap20-dram"), &workload, &options);
    uint32_t *uses = calloc((size_t)workload.distinct_blocks, sizeof *uses);
    assert_non_null(uses);
    for (uint64_t i = 0; i < workload.block_refs; i++)
        uses[workload.blocks[i]]++;
    double single = 0.0;
    for (uint64_t i = 0; i < workload.request_count; i++)
        single += uses[workload.blocks[workload.requests[i].first_block]] == 1;
    double share = single / (double)workload.request_count;
    assert_true(share > 0.4 && share < 0.7); /* contexts that came once are among them */
    free(uses);
    replay_workload_free(&workload);
    grid_sources_close(&sources);
}

TEST(the_engine_has_its_defaults)
{
    grid_sources sources;
    replay_workload workload;
    replay_options options, usual;
    open_sources(&sources);
    replay_options_init(&usual);
    draw(&sources, cell_named("turns8-zipf0.6-cap20-ssd3"), &workload, &options);
    assert_memory_equal(&options.alpha_seconds, &usual.alpha_seconds, sizeof(double));
    assert_memory_equal(&options.half_life_seconds, &usual.half_life_seconds, sizeof(double));
    assert_memory_equal(&options.hysteresis, &usual.hysteresis, sizeof(double));
    assert_memory_equal(&options.tick_seconds, &usual.tick_seconds, sizeof(double));
    assert_memory_equal(&options.low_watermark, &usual.low_watermark, sizeof(double));
    assert_int_equal(options.moves_per_tick, usual.moves_per_tick);
    replay_workload_free(&workload);
    replay_options_free(&usual);
    grid_sources_close(&sources);
}
