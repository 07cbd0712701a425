/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_live_forms.c - live runs of whole contexts over a store whose ladder has forms that
 * drop tokens: every byte and kept position of every get is checked by the run, the floor of loss
 * holds, and a ladder without such forms drops nothing.
 */
#include "ladder_support.h"
#include "replay/replay.h"
#include "steady_costs.h"

enum { CONTEXT_TOKENS = 512 };

static const test_rung rungs[] = {
    {"planes:k8v8,g64", 8.6, 0.0005, 0.001, true},
    {"planes:k4v4,g64", 4.6, 0.004, 0.006, true},
    {"drop:stream,50+planes:k4v4,g64", 2.4, 0.006, 0.008, true},
    {"drop:scores,25+planes:k8v8,g64", 2.2, 0.005, 0.007, true},
    {"drop:scores,25+planes:k4v4,g64", 1.3, 0.007, 0.009, true},
    {"drop:stream,12.5", 2.1, 0.05, 0.06, true},
};
enum { RUNGS = sizeof rungs / sizeof rungs[0] };

/* Contexts of so many blocks each, of which a few are asked for often. */
static void make_contexts(const char *path, uint32_t blocks, replay_workload *workload)
{
    char message[512];
    const replay_trace_options plain = {.seed = 7, .conversations_per_s = 0.1};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (uint32_t i = 0; i < 400; i++) {
        const uint32_t context = i * i % 61 * (blocks + 1);
        fprintf(file,
                "{\"timestamp\": %u, \"input_length\": %u, \"output_length\": 1, \"hash_ids\": "
                "[%u",
                i * 5, CONTEXT_TOKENS * blocks, context);
        for (uint32_t k = 1; k < blocks; k++)
            fprintf(file, ", %u", context + k);
        fprintf(file, "]}\n");
    }
    assert_int_equal(fclose(file), 0);
    assert_ok(replay_workload_read(path, &plain, workload, message, sizeof message));
}

static kvt_store_options make_store(const char *profile, const kvt_device_config *ssd, bool drop)
{
    kvt_store_options store;
    kvt_store_options_init(&store);
    store.tiers[KVT_TIER_DRAM].capacity_bytes = 2 << 20;
    store.tiers[KVT_TIER_SSD].devices = ssd;
    store.tiers[KVT_TIER_SSD].device_count = 1;
    store.learning.profile_path = profile;
    store.loss.ladder = true;
    store.loss.alpha_seconds =
        0.01; /* contexts are quickly computed, and losses count for as little */
    store.loss.loss_limit = 0.01;
    store.loss.ladder_layout = (kvt_layout){.layers = 2,
                                            .kv_heads = 2,
                                            .head_dim = 64,
                                            .dtype = KVT_DTYPE_BF16,
                                            .tokens_may_drop = drop};
    return store;
}

/* Gets of forms that have dropped tokens. */
static uint64_t dropped_gets(const replay_result *result)
{
    uint64_t gets = 0;
    for (uint32_t i = 0; i < result->form_count; i++) {
        const replay_form *form = &result->forms[i];
        const bool drops = kvt_variant_drops_tokens(form->variant);
        assert_int_equal(form->tokens_kept < form->tokens, drops);
        for (int tier = 1; drops && tier < KVT_TIER_COUNT; tier++)
            gets += form->gets[tier];
        char name[96];
        (void)kvt_variant_format(form->variant, name, sizeof name);
        printf("  %-34s dram %4llu ssd %4llu\n", name,
               (unsigned long long)form->gets[KVT_TIER_DRAM],
               (unsigned long long)form->gets[KVT_TIER_SSD]);
        for (uint32_t k = 0; k < RUNGS; k++) {
            kvt_variant rung;
            assert_ok(kvt_variant_parse(rungs[k].name, &rung));
            if (memcmp(&rung, &form->variant, sizeof rung) == 0)
                assert_true(rungs[k].upper <= 0.01);
        }
    }
    return gets;
}

TEST(contexts_come_back_in_the_forms_that_the_engine_chose)
{
    char folder[64], profile[96], ssd_path[96], trace[96], message[512] = "";
    support_make_folder(folder, sizeof folder);
    (void)snprintf(profile, sizeof profile, "%s/profile.db", folder);
    (void)snprintf(trace, sizeof trace, "%s/trace.jsonl", folder);
    (void)snprintf(ssd_path, sizeof ssd_path, "%s/ssd", folder);
    ladder_make_profile(profile, rungs, RUNGS);
    const kvt_device_config ssd = support_file_config("ssd0", ssd_path, 3 << 20);
    replay_workload workload;
    replay_options options;
    make_contexts(trace, 1, &workload);
    replay_options_init(&options);
    options.servers = 2;
    options.scale = 1.0;
    options.load_all = true; /* whether loading pays depends on the machine */
    options.model.prefill.linear_seconds_per_token = 1e-5;
    for (int drop = 0; drop < 2; drop++) {
        const kvt_store_options store = make_store(profile, &ssd, drop);
        const replay_live live = {.store = &store};
        replay_result result;
        kvt_status status = replay_run_live(&options, &workload, &live, "adaptcache", &result,
                                            message, sizeof message);
        if (status != KVT_OK) fail_msg("%s", message);
        assert_int_equal(result.wrong_bytes, 0);
        assert_true(result.verified_gets > 50 && result.form_count > 0);
        const uint64_t dropped = dropped_gets(&result);
        printf("drop %d: %llu gets, %llu of forms that dropped tokens, hits %.3f\n", drop,
               (unsigned long long)result.verified_gets, (unsigned long long)dropped,
               result.hit_block_ratio[0]);
        assert_true(drop ? dropped > 0 : dropped == 0);
    }
    /* A request of several blocks is no whole context. */
    replay_workload_free(&workload);
    make_contexts(trace, 2, &workload);
    const kvt_store_options store = make_store(profile, &ssd, true);
    const replay_live live = {.store = &store};
    replay_result result;
    assert_int_equal(
        replay_run_live(&options, &workload, &live, "lru", &result, message, sizeof message),
        KVT_E_CONFIG);
    assert_non_null(strstr(message, "whole contexts"));
    replay_workload_free(&workload);
}
