/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_promises.c - what the header says of calls that cannot be served: options that no
 * open takes, a kept sequence that has lost a part, pages whose own drive fails
 * while they are kept. Each was found by somebody who knew the header alone.
 */
#include "sequence_site.h"

#include <unistd.h>

enum { MIB = 1 << 20 };

TEST(options_are_refused_with_a_reason)
{
    sequence_site s;
    site_start(&s, 16 * MIB, 8 * MIB);
    for (int i = 0; i < 15; i++) {
        kvt_sparse_options options = site_options();
        kvt_sparse *sequence = NULL;
        char message[256] = "";
        if (i == 0) options.cluster_tokens = 257;
        if (i == 1) options.iterations = 101;
        if (i == 2) options.segment_tokens = 1000;
        if (i == 3) options.segment_tokens = 65536;
        if (i == 4) options.page_tokens = 17;
        if (i == 5) options.page_tokens = 256;
        if (i == 6) options.layout.order = 7;
        if (i == 7) options.layout.sides = 1;
        if (i == 8) options.layout.tokens_may_drop = 1;
        if (i == 9) options.worth_per_byte = -1;
        if (i == 10) options.worth_per_byte = NAN;
        if (i == 11) options.layout.sides = 3;
        if (i == 12) options.layout.reserved[0] = 1;
        if (i == 13) options.layout.opaque_bytes = 1;
        if (i == 14) options.segment_tokens = 64;
        assert_int_equal(
            kvt_sparse_open_live(s.store, &options, &sequence, message, sizeof message),
            KVT_E_ARGUMENT);
        assert_true(message[0] != '\0' && strchr(message, '\n') == NULL);
        assert_null(sequence);
        if (options.segment_tokens == 64) assert_non_null(strstr(message, "a multiple of 128"));
    }
    /* What cannot be known from the options has a line as well. */
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = NULL;
    char message[256] = "";
    const kvt_key key = support_key(9);
    assert_int_equal(
        kvt_sparse_open(s.store, &options, &key, 1, &sequence, message, sizeof message), KVT_MISS);
    assert_true(message[0] != '\0');
    message[0] = '\0';
    assert_int_equal(
        kvt_sparse_open_kept(s.store, &options, &key, &sequence, message, sizeof message),
        KVT_MISS);
    assert_true(message[0] != '\0');
    site_stop(&s);
}

TEST(nothing_is_a_programmers_error_alone)
{
    float queries[SITE_QUERY] = {0};
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    assert_int_equal(kvt_sparse_select(NULL, 0, queries, &step), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_hint(NULL, 0, queries), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_wait(NULL, NULL, 0, &pages), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_observe(NULL, 0, queries, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_append(NULL, 0, queries, queries, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_sparse_keep(NULL, NULL), KVT_E_ARGUMENT);
}

TEST(a_keep_replaces_one_that_lost_a_part)
{
    sequence_site s;
    site_start(&s, 16 * MIB, 16 * MIB);
    kvt_sparse_options options = site_options();
    kvt_sparse *sequence = site_sequence(&s, &options), *again = NULL;
    const kvt_key key = support_key(5), foreign = support_key(6);
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_OK);
    const kvt_key part = site_part_key(s.store, &key, 2);
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_EXISTS);
    assert_int_equal(kvt_delete(s.store, &part), KVT_OK);
    assert_int_equal(kvt_sparse_open_kept(s.store, &options, &key, &again, NULL, 0), KVT_MISS);
    assert_int_equal(kvt_sparse_keep(sequence, &key), KVT_OK);
    assert_int_equal(kvt_sparse_open_kept(s.store, &options, &key, &again, NULL, 0), KVT_OK);
    kvt_sparse_close(again);
    /* Somebody else's entry is left alone. */
    assert_int_equal(support_put(s.store, 6), KVT_OK);
    assert_int_equal(kvt_sparse_keep(sequence, &foreign), KVT_EXISTS);
    assert_int_equal(support_get(s.store, 6, NULL), KVT_OK);
    kvt_sparse_close(sequence);
    site_stop(&s);
}

TEST(a_keep_reads_copies)
{
    const tiers_fault_action actions[] = {TIERS_FAULT_FLIP, TIERS_FAULT_FAIL};
    for (int action = 0; action < 2; action++) {
        for (int copies = 0; copies < 2; copies++) {
            sequence_site s;
            float rows[16 * SITE_QUERY];
            site_start(&s, 16 * MIB, 16 * MIB);
            kvt_sparse_options options = site_options();
            options.replica_share = copies ? 1 : 0;
            kvt_sparse *sequence = site_sequence(&s, &options), *again = NULL;
            for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
                for (uint32_t i = 0; i < 16; i++)
                    site_query(&s, layer, i, rows + i * SITE_QUERY);
                assert_int_equal(kvt_sparse_observe(sequence, layer, rows, 16), KVT_OK);
            }
            const tiers_fault_rule rule = {.action = actions[action],
                                           .kinds = TIERS_FAULT_READS,
                                           .status = KVT_E_IO,
                                           .flip_bit = 12345};
            assert_int_equal(tiers_fault_add(s.drives[1].device, &rule), KVT_OK);
            const kvt_key key = support_key(5);
            assert_int_equal(kvt_sparse_keep(sequence, &key), copies ? KVT_OK : KVT_E_IO);
            tiers_fault_clear(s.drives[1].device);
            const kvt_status opened =
                kvt_sparse_open_kept(s.store, &options, &key, &again, NULL, 0);
            assert_int_equal(opened, copies ? KVT_OK : KVT_MISS);
            kvt_sparse_close(again);
            kvt_sparse_close(sequence);
            site_stop(&s);
        }
    }
}
