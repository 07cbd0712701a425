/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_singles.c - single tokens of pages in memory: codes, which tokens they choose, the
 * weights of those that are left, and the steps of a sequence with single_share.
 */
#include "sequence_site.h"

#include "base/order.h"
#include "codecs/kernels/cpu.h"
#include "sparse/sequence.h"
#include "sparse/sparse_kernels.h"

enum { MIB = 1 << 20, GROUP = SITE_GROUP, ZONE = 2944 };

/* ---- codes and choices ---- */

typedef struct unit_site {
    sequence_site *s;
    sparse_index index;
    sparse_paging paging;
    singles_codes codes;
    singles_work scratch;
    singles_choice choice;
    sparse_work work;
    float queries[SITE_QUERY];
} unit_site;

static void build_codes(const unit_site *u, singles_codes *codes)
{
    const sparse_rows keys = {u->s->k[0], SITE_ROW * 2};
    assert_ok(sparse_singles_build(&u->index, &keys, KVT_DTYPE_BF16, 7, codes));
}

static void unit_stop(void *at)
{
    unit_site *u = at;
    sparse_singles_free(&u->codes);
    sparse_singles_work_close(&u->scratch);
    sparse_singles_close(&u->choice);
    sparse_work_close(&u->work);
    sparse_index_free(&u->index);
}

/* Head 0 of layer 0, all of whose pages bring single tokens. one_pass: 0 for the default. */
static unit_site *unit_start(uint32_t one_pass, float share)
{
    const float resident[GROUP] = {-INFINITY, -INFINITY};
    unit_site *u = test_zeros(sizeof *u);
    u->s = site_start(8 * MIB, 8 * MIB);
    const sparse_rows keys = {u->s->k[0], SITE_ROW * 2}, values = {u->s->v[0], SITE_ROW * 2};
    const sparse_index_options options = {.head_dim = SITE_DIM,
                                          .dtype = KVT_DTYPE_BF16,
                                          .segment_tokens = 512,
                                          .one_pass = one_pass,
                                          .seed = 3};
    sparse_work_room room = {.pages = 0};
    assert_ok(sparse_index_build(&options, &keys, &values, ZONE, &u->index));
    assert_ok(sparse_paging_init(&u->paging, SITE_DIM, KVT_DTYPE_BF16, ZONE, 512, 64));
    sparse_work_room_add(&room, &u->index, u->paging.pages);
    assert_ok(sparse_work_open(&room, GROUP, SITE_DIM, &u->work));
    assert_ok(sparse_singles_work_open(ZONE, GROUP, SITE_DIM, &u->scratch));
    assert_ok(sparse_singles_open(ZONE, u->paging.pages, u->index.lanes, GROUP, &u->choice));
    build_codes(u, &u->codes);
    site_query(u->s, 0, 11, u->queries);
    memset(u->choice.page, 1, u->paging.pages);
    assert_ok(sparse_choose_weights(&u->index, &u->paging, u->queries, GROUP, 0.125f, resident,
                                    &u->work));
    sparse_singles_choose(&u->codes, &u->index, &u->paging, u->queries, 0.125f, share, &u->scratch,
                          &u->work, &u->choice);
    return test_after(unit_stop, u);
}

/* exp(score - largest) of a place, as work->scores are. */
static double truth_of(const unit_site *u, uint32_t g, uint32_t place)
{
    const uint16_t *key = u->s->k[0] + sparse_index_token(&u->index, place) * SITE_ROW;
    double score = 0.0;
    for (uint32_t d = 0; d < SITE_DIM; d++)
        score += (double)u->queries[g * SITE_DIM + d] * (double)site_float(key[d]) * 0.125;
    return exp(score - (double)u->work.largest[g]);
}

TEST(codes_tell_keys_from_their_centroids)
{
    unit_site *u = unit_start(0, 0.1f);
    double error = 0.0, scatter = 0.0;
    singles_codes scalar;
    for (uint32_t d = 0; d < SITE_DIM; d++) {
        error += (double)u->codes.error[d];
        scatter += (double)u->index.key_scatter[d];
    }
    print_message("error of codes %.3f of the scatter\n", error / scatter);
    assert_true(error < 0.5 * scatter);
    codecs_cpu_force(CODECS_CPU_SCALAR);
    build_codes(u, &scalar);
    const unit_site *other = unit_start(0, 0.1f);
    codecs_cpu_force(codecs_cpu_best());
    assert_int_equal(scalar.bytes, u->codes.bytes);
    assert_memory_equal(scalar.book, u->codes.book, scalar.bytes);
    assert_memory_equal(other->choice.chosen, u->choice.chosen, ZONE / 8);
    assert_memory_equal(other->choice.left.weight, u->choice.left.weight,
                        u->choice.left.count * GROUP * sizeof(float));
    sparse_singles_free(&scalar);
}

TEST(the_heaviest_tokens_are_chosen_and_the_others_weigh_what_they_do)
{
    const float shares[] = {0.01f, 0.05f, 0.3f};
    for (int i = 0; i < 3; i++) {
        unit_site *u = unit_start(0, shares[i]);
        const uint32_t most = (uint32_t)(shares[i] * ZONE + 0.5f);
        double chosen = 0.0, best[ZONE] = {0.0}, largest = 0.0;
        uint32_t count = 0;
        for (uint32_t g = 0; g < GROUP; g++) {
            double left = 0.0, guess = 0.0, all = 0.0;
            for (uint32_t p = 0; p < ZONE; p++)
                all += truth_of(u, g, p);
            for (uint32_t p = 0; p < ZONE; p++) {
                const double weight = truth_of(u, g, p);
                best[p] += weight / all;
                left += singles_is_chosen(&u->choice, p) ? 0.0 : weight;
            }
            for (uint32_t c = 0; c < u->choice.left.count; c++)
                guess += (double)u->choice.left.weight[c * GROUP + g];
            print_message("share %.2f: left %.4f, guessed %.4f\n", (double)shares[i], left / all,
                          guess / all);
            assert_true(fabs(guess - left) < 0.3 * left);
        }
        for (uint32_t p = 0; p < ZONE; p++) {
            count += singles_is_chosen(&u->choice, p);
            chosen += singles_is_chosen(&u->choice, p) ? best[p] : 0.0;
        }
        qsort(best, ZONE, sizeof *best, base_order_doubles);
        for (uint32_t p = 0; p < most; p++)
            largest += best[ZONE - 1 - p];
        print_message("chosen %.4f of %.4f\n", chosen / GROUP, largest / GROUP);
        assert_int_equal(count, most);
        assert_int_equal(u->choice.count, most);
        assert_int_equal(u->choice.tokens, ZONE);
        assert_true(chosen > 0.9 * largest);
    }
}

TEST(all_or_none_of_the_tokens)
{
    float output[GROUP * SITE_DIM], lse[GROUP];
    for (int all = 0; all < 2; all++) {
        unit_site *u = unit_start(0, all ? 1.0f : 1e-6f);
        uint8_t *variant = test_alloc(u->paging.pages);
        memset(variant, PAGES_RAW, u->paging.pages);
        assert_int_equal(u->choice.count, all ? ZONE : 0);
        sparse_choose_estimate(&u->index, &u->paging, variant, &u->work, output, lse);
        for (uint32_t g = 0; g < GROUP; g++) {
            double sum = 0.0;
            for (uint32_t p = 0; p < ZONE && !all; p++)
                sum += truth_of(u, g, p);
            assert_true(all ? lse[g] == -INFINITY
                            : fabs((double)lse[g] - log(sum) - (double)u->work.largest[g]) < 0.1);
        }
    }
}

/* Clusters that were not scored in full are left as they are. */
TEST(in_two_passes_tokens_come_of_clusters_in_full)
{
    unit_site *u = unit_start(16, 0.05f);
    uint32_t next = 0, count = 0;
    assert_true(u->index.axes > 0 && u->work.listed < u->index.clusters);
    for (uint32_t c = 0; c < u->index.clusters; c++) {
        const bool full = sparse_choose_is_full(&u->index, &u->work, c, &next);
        for (uint32_t p = u->index.first[c]; p < u->index.first[c + 1]; p++) {
            assert_true(full || !singles_is_chosen(&u->choice, p));
            count += singles_is_chosen(&u->choice, p);
        }
        for (uint32_t g = 0; g < GROUP && !full; g++)
            assert_float_equal(u->choice.left.weight[c * GROUP + g],
                               u->work.scores[g * u->work.lanes + c], 1e-6f);
    }
    assert_int_equal(count, 147);
}

/* ---- sequences ---- */

static kvt_sparse_options options_of(float share)
{
    kvt_sparse_options options = site_options();
    options.budget_bytes = 0;
    options.divide_windows = false;
    options.window_bytes[KVT_TIER_DRAM] = 3 * MIB / 2; /* half of it */
    options.single_share = share;
    return options;
}

/* A step's rows by head and position. */
typedef struct brought {
    const uint8_t *k[SITE_HEADS][SITE_TOKENS], *v[SITE_HEADS][SITE_TOKENS];
    uint32_t tokens[SITE_HEADS]; /* of the window */
} brought;

static void note_rows(const kvt_sparse_pages *pages, brought *rows)
{
    memset(rows, 0, sizeof *rows);
    for (uint32_t h = 0; h < SITE_HEADS; h++)
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++) {
            const kvt_sparse_page *page = &pages->heads[h].pages[i];
            assert_true(page->tokens > 0);
            for (uint32_t t = 0; t < page->tokens; t++) {
                const uint32_t at = page->positions[t];
                assert_null(rows->k[h][at]);
                rows->k[h][at] = (const uint8_t *)page->k + (size_t)t * SITE_DIM * 2;
                rows->v[h][at] = (const uint8_t *)page->v + (size_t)t * SITE_DIM * 2;
            }
            rows->tokens[h] += page->tier == KVT_TIER_DRAM ? page->tokens : 0;
        }
}

/* The rows are those that whole pages have, as many of them as asked; errors of the output are less
 * than with nothing in memory. */
TEST(a_step_brings_single_tokens_of_the_window)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    static brought whole, single;
    kvt_sparse_options options[3] = {options_of(0.0f), options_of(0.0625f), options_of(0.0f)};
    kvt_sparse *sequence[3];
    double error[3] = {0.0};
    options[2].window_bytes[KVT_TIER_DRAM] = 0;
    for (int i = 0; i < 3; i++) {
        sequence[i] = site_sequence(s, &options[i]);
        s->random = 5;
        if (i < 2) site_warm(s, sequence[i]);
    }
    const uint64_t bytes =
        site_stats(sequence[1]).index_bytes - site_stats(sequence[0]).index_bytes;
    assert_int_equal(bytes, 4 * sequence[1]->units[0].single_codes.bytes);
    for (uint32_t topic = 0; topic < 16; topic++) {
        const kvt_sparse_pages *pages[2];
        kvt_sparse_step *step[2];
        float queries[SITE_QUERY], output[SITE_QUERY];
        double exact[SITE_QUERY];
        char text[4096];
        size_t length;
        site_query(s, 0, topic, queries);
        site_exact(s, 0, SITE_TOKENS, queries, exact);
        for (int i = 0; i < 2; i++) {
            assert_ok(kvt_sparse_select(sequence[i], 0, queries, &step[i]));
            assert_ok(kvt_sparse_wait(sequence[i], step[i], KVT_NO_DEADLINE, &pages[i]));
            assert_ok(kvt_sparse_attend(pages[i], queries, output, NULL));
            assert_int_equal(pages[i]->read_bytes, 0);
            note_rows(pages[i], i == 0 ? &whole : &single);
            error[i] += site_error(output, exact) / 16;
        }
        for (uint32_t h = 0; h < SITE_HEADS; h++) {
            assert_true(whole.tokens[h] > 1000);
            assert_int_equal(single.tokens[h], (uint32_t)(0.0625 * whole.tokens[h] + 0.5));
            for (uint32_t t = 0; t < SITE_TOKENS; t++) {
                if (single.k[h][t] == NULL) continue;
                assert_memory_equal(single.k[h][t], whole.k[h][t], SITE_DIM * 2);
                assert_memory_equal(single.v[h][t], whole.v[h][t], SITE_DIM * 2);
            }
        }
        assert_ok(kvt_sparse_explain(sequence[1], 0, 0, text, sizeof text, &length));
        assert_non_null(strstr(text, "; single tokens "));
        for (int i = 0; i < 2; i++)
            kvt_sparse_done(sequence[i], step[i]);
        error[2] += site_step(s, sequence[2], 0, queries, NULL, NULL) / 16;
    }
    print_message("error with whole pages %.4f, single tokens %.4f, without a window %.4f\n",
                  error[0], error[1], error[2]);
    assert_true(error[1] < 0.75 * error[2]);
    for (int i = 0; i < 3; i++)
        kvt_sparse_close(sequence[i]);
}

/* Pages that a step reads are whole; when they are lost, the estimate has them. */
TEST(pages_that_are_read_are_whole)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    kvt_sparse_options options = options_of(0.03f);
    const tiers_fault_rule fails = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_READS, .status = KVT_E_IO};
    options.budget_bytes = 2 * MIB;
    options.replica_share = 0.0f;
    kvt_sparse *sequence = site_sequence(s, &options);
    site_warm(s, sequence);
    for (int lost = 0; lost < 2; lost++) {
        const kvt_sparse_pages *pages;
        kvt_sparse_step *step;
        float queries[SITE_QUERY], output[SITE_QUERY];
        double exact[SITE_QUERY];
        uint32_t read = 0;
        site_query(s, 1, 30 + (uint32_t)lost, queries);
        for (int i = 0; i < SITE_DRIVES && lost; i++)
            assert_ok(tiers_fault_add(s->drives[i].device, &fails));
        assert_ok(kvt_sparse_select(sequence, 1, queries, &step));
        assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
        assert_ok(kvt_sparse_attend(pages, queries, output, NULL));
        for (uint32_t i = 0; i < pages->heads[0].page_count; i++) {
            const kvt_sparse_page *page = &pages->heads[0].pages[i];
            if (page->tier != KVT_TIER_SSD) continue;
            assert_int_equal(page->tokens, 64);
            read++;
        }
        assert_true(lost ? read == 0 && pages->lost_count > 0 : read > 0);
        site_exact(s, 1, SITE_TOKENS, queries, exact);
        assert_true(site_error(output, exact) < (lost ? 0.9 : 0.2));
        kvt_sparse_done(sequence, step);
    }
    kvt_sparse_close(sequence);
}

TEST(a_kept_sequence_has_whole_pages)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = options_of(0.0625f);
    const kvt_key key = support_key(4);
    const kvt_sparse_pages *pages;
    kvt_sparse_step *step;
    static brought rows;
    float queries[SITE_QUERY];
    site_keep(s, &options, &key);
    kvt_sparse *sequence = site_open_kept(s, &options, &key);
    site_warm(s, sequence);
    site_query(s, 0, 3, queries);
    assert_ok(kvt_sparse_select(sequence, 0, queries, &step));
    assert_ok(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages));
    note_rows(pages, &rows);
    assert_true(rows.tokens[0] > 1000 && rows.tokens[0] % 64 == 0);
    kvt_sparse_done(sequence, step);
    kvt_sparse_close(sequence);
}
