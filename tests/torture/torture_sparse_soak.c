/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_sparse_soak.c - 16 sequences on one store, each in a thread of its own, open, decode,
 * append, keep, close and open again for a while, as drives fail, lie and come back: no row is
 * wrong, no position comes twice, no window passes its bytes, and the store has everything back.
 *
 *     torture_sparse_soak [--seconds N]
 */
#include "sequence_site.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { SEQUENCES = 16, GIVEN = 1100, MOST = 2000, MIB = 1 << 20, WINDOW = 160 << 10 };

typedef struct soak_thread {
    pthread_t thread;
    sequence_site site; /* the shared one, with dice of its own */
    kvt_sparse_options options;
    kvt_sparse *sequence;
    uint32_t number, tokens[SITE_LAYERS];
    uint32_t kept[SITE_LAYERS]; /* tokens of the kept sequence */
    uint64_t steps, appended, lost, opens, kept_opens;
} soak_thread;

/* An assertion of cmocka's ends the main thread alone. */
static void soak_check(bool holds, const char *what, int line)
{
    if (holds) return;
    (void)fprintf(stderr, "torture_sparse_soak.c:%d: %s\n", line, what);
    abort();
}
#define SOAK(holds) soak_check((holds), #holds, __LINE__)

/* A drive fails, or is taken out of service when it does not answer for a while. */
static bool is_of_drives(kvt_status status)
{
    return status == KVT_E_IO || status == KVT_E_GONE;
}

static double soak_seconds = 3;
static _Atomic bool soak_over;

static uint32_t roll(soak_thread *t, uint32_t sides)
{
    return (uint32_t)(site_uniform(&t->site) * (float)sides) % sides;
}

static kvt_key soak_key(const soak_thread *t)
{
    return support_key(1000 + t->number);
}

static void soak_open(soak_thread *t)
{
    const kvt_key key = soak_key(t);
    t->sequence = NULL;
    if (roll(t, 3) > 0) {
        const kvt_status status =
            kvt_sparse_open_kept(t->site.store, &t->options, &key, &t->sequence, NULL, 0);
        SOAK(status == KVT_OK || status == KVT_MISS || status == KVT_E_SPACE ||
             status == KVT_E_CORRUPT || is_of_drives(status));
        if (status == KVT_OK) {
            t->kept_opens++;
            memcpy(t->tokens, t->kept, sizeof t->tokens);
            return;
        }
    }
    kvt_status status = kvt_sparse_open_live(t->site.store, &t->options, &t->sequence, NULL, 0);
    if (status == KVT_E_SPACE) return;
    SOAK(status == KVT_OK);
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        status = kvt_sparse_give(t->sequence, layer, t->site.k[layer], t->site.v[layer]);
        t->tokens[layer] = GIVEN;
        if (status == KVT_OK) continue;
        SOAK(is_of_drives(status));
        kvt_sparse_close(t->sequence);
        t->sequence = NULL;
        return;
    }
    t->opens++;
    (void)!kvt_store_delete(t->site.store, &key);
}

/* Rows are the source's, near it when they are coded; what stays in the window fits into it. */
static void check_pages(const soak_thread *t, const kvt_sparse_pages *pages)
{
    const bool raw = (t->options.variants >> KVT_SPARSE_RAW & 1u) != 0;
    uint64_t held = 0;
    for (uint32_t h = 0; h < pages->kv_heads; h++) {
        unsigned char seen[SITE_TOKENS] = {0};
        for (uint32_t i = 0; i < pages->heads[h].page_count; i++) {
            const kvt_sparse_page *page = &pages->heads[h].pages[i];
            if (page->tier == KVT_TIER_DRAM) held += page->tokens * SITE_DIM * 4;
            for (uint32_t n = 0; n < page->tokens; n++) {
                const uint32_t position = page->positions[n];
                SOAK(position < t->tokens[pages->layer] && !seen[position]);
                seen[position] = 1;
                const size_t at = (size_t)position * SITE_ROW + h * SITE_DIM;
                const uint16_t *k = (const uint16_t *)page->k + (size_t)n * SITE_DIM;
                for (uint32_t d = 0; d < SITE_DIM; d++) {
                    const float wanted = site_float(t->site.k[pages->layer][at + d]);
                    const float got = site_float(k[d]);
                    /* Without raw pages a kept sequence has its appended rows as coded. */
                    SOAK(page->variant == KVT_SPARSE_RAW && raw ? got == wanted
                                                                : fabsf(got - wanted) < 1.0f);
                }
            }
        }
    }
    /* A kept sequence has pages of entries in DRAM as well. */
    kvt_sparse_stats stats = {.struct_size = sizeof stats};
    SOAK(kvt_sparse_stats_get(t->sequence, &stats) == KVT_OK);
    SOAK(stats.tier_window_bytes[KVT_TIER_DRAM] <= WINDOW);
    SOAK(stats.in_place_pages > 0 || held <= WINDOW / SITE_LAYERS);
}

/* "; window USED of CAPACITY" of each head. */
static void check_window(soak_thread *t, uint32_t layer)
{
    char text[512];
    size_t length;
    for (uint32_t h = 0; h < SITE_HEADS; h++) {
        unsigned long long used, capacity;
        SOAK(kvt_sparse_explain(t->sequence, layer, h, text, sizeof text, &length) == KVT_OK);
        const char *at = strstr(text, "; window ");
        SOAK(at != NULL);
        SOAK(sscanf(at, "; window %llu of %llu", &used, &capacity) == 2);
        SOAK(used <= capacity && capacity <= WINDOW);
    }
}

static void soak_step(soak_thread *t, uint32_t layer)
{
    float queries[SITE_QUERY], output[SITE_QUERY];
    kvt_sparse_step *step;
    const kvt_sparse_pages *pages;
    site_query(&t->site, layer, (uint32_t)(t->steps / 9), queries);
    if (roll(t, 2) == 0 && t->tokens[layer] < MOST) {
        const uint32_t most = MOST - t->tokens[layer];
        const uint32_t wished = roll(t, 12) == 0 ? 40 : 1, tokens = wished < most ? wished : most;
        const size_t at = (size_t)t->tokens[layer] * SITE_ROW;
        SOAK(kvt_sparse_append(t->sequence, layer, t->site.k[layer] + at, t->site.v[layer] + at,
                               tokens) == KVT_OK);
        t->tokens[layer] += tokens;
        t->appended += tokens;
    }
    SOAK(kvt_sparse_select(t->sequence, layer, queries, &step) == KVT_OK);
    check_window(t, layer);
    if (roll(t, 20) > 0) {
        const uint64_t deadline_ns =
            roll(t, 8) > 0 ? KVT_NO_DEADLINE : base_clock_ns() + UINT64_C(200000);
        const kvt_status status = kvt_sparse_wait(t->sequence, step, deadline_ns, &pages);
        SOAK(status == KVT_OK || status == KVT_E_TIMEOUT);
        check_pages(t, pages);
        t->lost += pages->lost_count;
        SOAK(kvt_sparse_attend(pages, queries, output, NULL) == KVT_OK);
    }
    kvt_sparse_done(t->sequence, step);
    t->steps++;
}

static void soak_keep(soak_thread *t)
{
    const kvt_key key = soak_key(t);
    (void)!kvt_store_delete(t->site.store, &key);
    const kvt_status status = kvt_sparse_keep(t->sequence, &key);
    SOAK(status == KVT_OK || status == KVT_EXISTS || status == KVT_E_SPACE || is_of_drives(status));
    memcpy(t->kept, t->tokens, sizeof t->kept);
    /* A key without its entry is a miss, and so is one that could not be kept. */
    if (status != KVT_OK) (void)!kvt_store_delete(t->site.store, &key);
}

static void *soak_run(void *context)
{
    soak_thread *t = context;
    float rows[4 * SITE_QUERY];
    while (!atomic_load(&soak_over)) {
        soak_open(t);
        if (t->sequence == NULL) continue;
        for (uint32_t layer = 0; layer < SITE_LAYERS && roll(t, 2) == 0; layer++) {
            for (uint32_t i = 0; i < 4; i++)
                site_query(&t->site, layer, i, rows + (size_t)i * SITE_QUERY);
            SOAK(kvt_sparse_observe(t->sequence, layer, rows, 4) == KVT_OK);
        }
        for (uint32_t i = 0, steps = 60 + roll(t, 300); i < steps && !atomic_load(&soak_over); i++)
            soak_step(t, i % SITE_LAYERS);
        if (roll(t, 2) == 0) soak_keep(t);
        kvt_sparse_close(t->sequence);
    }
    return NULL;
}

/* Faults of a moment, on a drive at a time; the others have copies or losses. */
static void disturb(sequence_site *s, uint32_t turn)
{
    const tiers_fault_action actions[] = {TIERS_FAULT_FAIL, TIERS_FAULT_FLIP};
    const tiers_fault_rule rule = {.action = actions[turn % 2],
                                   .kinds = turn % 4 == 3 ? TIERS_FAULT_WRITES : TIERS_FAULT_READS,
                                   .skip = turn % 5,
                                   .hits = 1 + turn % 7,
                                   .status = KVT_E_IO,
                                   .flip_bit = 4321 + turn};
    if (rule.action == TIERS_FAULT_FLIP && rule.kinds == TIERS_FAULT_WRITES) return;
    tiers_fault_clear(s->drives[turn / 3 % SITE_DRIVES].device); /* rules that are used up */
    assert_ok(tiers_fault_add(s->drives[turn / 3 % SITE_DRIVES].device, &rule));
}

TEST(sequences_soak)
{
    static soak_thread threads[SEQUENCES];
    sequence_site *s = site_start(48 * MIB, 24 * MIB);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        soak_thread *t = &threads[i];
        *t = (soak_thread){.site = *s, .number = i, .options = site_options()};
        t->site.random = i + 1;
        t->options.layout.tokens = GIVEN;
        t->options.tokens_max = MOST;
        t->options.local_tokens = 16;
        t->options.join_tokens = 32;
        t->options.page_tokens = 32;
        t->options.budget_bytes = 48 << 10;
        t->options.window_bytes[KVT_TIER_DRAM] = WINDOW;
        t->options.seed = i;
        if (i % 4 == 1) t->options.variants = 1u << KVT_SPARSE_RAW;
        if (i % 4 == 2) t->options.variants = 1u << KVT_SPARSE_BITS_4 | 1u << KVT_SPARSE_BITS_8;
        assert_int_equal(pthread_create(&t->thread, NULL, soak_run, t), 0);
    }
    const uint64_t end_ns = base_clock_ns() + (uint64_t)(soak_seconds * 1e9);
    for (uint32_t turn = 0; base_clock_ns() < end_ns; turn++) {
        const struct timespec pause = {.tv_nsec = 20000000};
        nanosleep(&pause, NULL);
        if (turn % 3 == 0) disturb(s, turn / 3);
    }
    atomic_store(&soak_over, true);
    uint64_t steps = 0, appended = 0, lost = 0, opens = 0, kept = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        pthread_join(threads[i].thread, NULL);
        steps += threads[i].steps;
        appended += threads[i].appended;
        lost += threads[i].lost;
        opens += threads[i].opens;
        kept += threads[i].kept_opens;
    }
    print_message("%llu steps, %llu tokens appended, %llu pages lost, %llu opens, %llu kept\n",
                  (unsigned long long)steps, (unsigned long long)appended, (unsigned long long)lost,
                  (unsigned long long)opens, (unsigned long long)kept);
    assert_true(steps > SEQUENCES && appended > 0 && opens > 0);
    const kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.lent_bytes[KVT_TIER_SSD] + stats.lent_bytes[KVT_TIER_DRAM], 0);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--seconds") == 0) soak_seconds = strtod(argv[i + 1], NULL);
    return tests_run();
}
