/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy_drift.c - kvterrace bench policy --drift: popularity drifts, and entries that were
 * compressed become popular again. How much of what an unlimited exact copy allows do nested planes
 * keep, and how much an irreversible greedy?
 *
 *     1,100 contexts (bench_policy.c), DRAM for 5 % and SSD for 20 or 60 % of their raw
 *     bytes; every 300 requests 1, 2 or 5 % of the entries change popularity with others drawn at
 *     random
 *     objective of a request = alpha * (1 - loss) - seconds
 *
 * All stores have the same variants, sizes, losses and times, and the same requests:
 *
 *     copy        utility; any variant can be made again, from an exact copy that costs nothing
 *     nested      utility; planes that DRAM gives up lie on SSD, where a request reads them or not,
 *                 and come back from there; only SSD drops planes
 *     dropping    the same, but DRAM may drop planes, too
 *     one way     utility, but no variant is made from another: what it lacks without nesting
 *     adaptcache  its greedy; what is coded anew loses the sum of its variants' losses
 *     largest     the same run, but only the largest of those losses counts
 *
 * Moves are free and at once for all of them. Ours can only lose by that: the greedy's re-coding
 * costs it nothing, and the copy is read for nothing. One thread.
 */
#include "lab/bench/bench_policy.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRIFT_ENTRIES   1100u
#define DRIFT_EPOCH     300u /* requests between two drifts */
#define DRIFT_EPOCHS    200u
#define DRIFT_WARM      50u /* epochs that are not counted */
#define DRIFT_HALF_LIFE 10000.0
#define DRIFT_TICK      10u /* requests between two ticks */
#define DRIFT_MOVES     64u
#define DRIFT_SEEDS     15u
#define DRIFT_STEPS     3u
#define DRIFT_ROWS      (2u * DRIFT_STEPS)
#define DRIFT_RUNGS     5u
#define DRIFT_SPLITS    3u
#define DRIFT_OPTIONS   (1u + 2u * DRIFT_RUNGS + 2u * DRIFT_SPLITS)

enum {
    STORE_COPY,
    STORE_NESTED,
    STORE_DROPPING,
    STORE_ONE_WAY,
    STORE_GREEDY,
    STORE_LARGEST,
    STORE_COUNT
};
static const char *const store_names[STORE_COUNT] = {"copy",    "nested",     "dropping",
                                                     "one way", "adaptcache", "largest"};
static const double drift_shares[DRIFT_STEPS] = {0.01, 0.02, 0.05};
static const double drift_ssd[2] = {1.0, 3.0}; /* times the instance's SSD, a fifth of raw bytes */

/* Bits of 16 and losses of profiles/ladder-codec-trial.csv; the rest of its planes record goes to
 * SSD in the split options. */
static const struct {
    double bits, loss, decode_bytes_per_s;
} drift_rungs[DRIFT_RUNGS] = {
    {16.0, 0.0, 1e13},  {8.5, 0.001, 9e9},  {6.5, 0.002, 11e9},
    {4.5, 0.011, 14e9}, {2.5, 0.066, 15e9},
};

typedef struct outcome {
    double objective, quality, seconds; /* means of a request */
} outcome;

typedef struct drift_run {
    const policy_instance *instance;
    double *rate;
    uint8_t store;
    double ssd; /* factor on the instance's */
    kvt_policy *policy;
    double *lost;    /* by entry: sum of the losses of the variants it was coded from */
    double *largest; /* and the largest of them */
    kvt_move moves[DRIFT_MOVES];
    kvt_plan plan;
} drift_run;

static const double drift_read[KVT_TIER_COUNT] = {0.0, 1.5e12, 25e9, 1e9};
static const double drift_request[KVT_TIER_COUNT] = {0.0, 2e-6, 1e-5, 1e-4};

static uint64_t drift_bytes(double source, double bits)
{
    return (uint64_t)(source * bits / 16.0 / 4096.0 + 1.0) * 4096;
}

static kvt_option drift_option(double source, uint32_t rung, int tier)
{
    kvt_option o = {.variant = {.codec = rung == 0 ? 1 : 4, .rate = rung},
                    .decode_seconds = source / drift_rungs[rung].decode_bytes_per_s,
                    .loss = drift_rungs[rung].loss};
    o.bytes[tier] = o.read_bytes[tier] = drift_bytes(source, drift_rungs[rung].bits);
    o.load_seconds = drift_request[tier] + (double)o.bytes[tier] / drift_read[tier];
    return o;
}

/* The first planes in DRAM and the rest on SSD, which a request leaves there or reads, too. */
static kvt_option drift_split(double source, uint32_t rung, bool reads_rest)
{
    kvt_option o = drift_option(source, rung, KVT_TIER_DRAM);
    o.bytes[KVT_TIER_SSD] = drift_bytes(source, drift_rungs[1].bits) - o.bytes[KVT_TIER_DRAM];
    if (!reads_rest) return o;
    o.variant.rate = 1;
    o.loss = drift_rungs[1].loss;
    o.decode_seconds = source / drift_rungs[1].decode_bytes_per_s;
    o.read_bytes[KVT_TIER_SSD] = o.bytes[KVT_TIER_SSD];
    double rest =
        drift_request[KVT_TIER_SSD] + (double)o.bytes[KVT_TIER_SSD] / drift_read[KVT_TIER_SSD];
    if (rest > o.load_seconds) o.load_seconds = rest; /* both tiers are read at once */
    return o;
}

static uint32_t drift_option_count(const drift_run *run)
{
    uint32_t plain = 1 + 2 * DRIFT_RUNGS;
    if (run->store == STORE_NESTED) return plain + DRIFT_SPLITS;
    return run->store == STORE_DROPPING ? plain + 2 * DRIFT_SPLITS : plain;
}

/* Which option has its bytes in which of another's. planes: how many rungs of planes are stored,
 * 1 being all; 0: raw. */
static void drift_lineage(const drift_run *run, const uint32_t planes[DRIFT_OPTIONS],
                          kvt_option options[DRIFT_OPTIONS])
{
    uint32_t count = drift_option_count(run);
    if (run->store >= STORE_ONE_WAY) return;
    for (uint32_t to = 1; to < count; to++) {
        for (uint32_t from = 1; from < count; from++) {
            bool nested = planes[from] != 0 && planes[to] >= planes[from];
            if (to == from) continue;
            if (nested) options[to].kept_from |= UINT32_C(1) << from;
            if (nested || run->store == STORE_COPY) options[to].made_from |= UINT32_C(1) << from;
        }
    }
}

/* [1..5] DRAM; [6..10] SSD; [11..13] the first 6, 4 or 2 planes in DRAM and the rest on SSD, which
 * is read; the same with the rest unread in [14..16], or in `nested` in place of DRAM's [3..5]. */
static void drift_options(const drift_run *run, uint32_t number, kvt_option options[DRIFT_OPTIONS])
{
    double source = 131072.0 * run->instance->tokens[number];
    uint32_t planes[DRIFT_OPTIONS] = {0};
    memset(options, 0, sizeof *options * DRIFT_OPTIONS);
    options[0].load_seconds = run->instance->recompute[number];
    for (uint32_t rung = 0; rung < DRIFT_RUNGS; rung++) {
        options[1 + rung] = drift_option(source, rung, KVT_TIER_DRAM);
        options[6 + rung] = drift_option(source, rung, KVT_TIER_SSD);
        planes[1 + rung] = planes[6 + rung] = rung;
    }
    uint32_t unread = run->store == STORE_NESTED ? 3 : 14;
    for (uint32_t split = 0; split < DRIFT_SPLITS; split++) {
        options[11 + split] = drift_split(source, 2 + split, true);
        options[unread + split] = drift_split(source, 2 + split, false);
        planes[11 + split] = planes[unread + split] = 1;
    }
    drift_lineage(run, planes, options);
}

static uint32_t drift_rung(uint8_t option)
{
    return (option - 1u) % DRIFT_RUNGS;
}

/* Losses add up only where a lossy variant is coded from another. */
static void drift_note(drift_run *run, const kvt_move *move)
{
    uint64_t number = move->handle - 1;
    if (move->kind != KVT_MOVE_CHANGE) {
        run->lost[number] = run->largest[number] = 0.0;
        return;
    }
    uint32_t from = drift_rung(move->from);
    if (run->store < STORE_GREEDY || from == drift_rung(move->to)) return;
    run->lost[number] += drift_rungs[from].loss;
    run->largest[number] = fmax(run->largest[number], drift_rungs[from].loss);
}

static kvt_status drift_carry_out(drift_run *run)
{
    for (uint32_t i = 0; i < run->plan.count; i++) {
        kvt_status status = kvt_policy_commit(run->policy, run->moves[i].id, NULL);
        if (status != KVT_OK) return status;
        drift_note(run, &run->moves[i]);
    }
    run->plan.count = 0;
    return KVT_OK;
}

/* What the request finds: seconds and loss of the entry's present variant, NONE recomputed. */
static void drift_count(const drift_run *run, uint32_t number, outcome *sum)
{
    const policy_instance *instance = run->instance;
    uint8_t option = kvt_policy_option(run->policy, number + UINT64_C(1));
    double loss = 0.0, seconds = instance->recompute[number];
    if (option != KVT_OPTION_NONE) {
        kvt_option options[DRIFT_OPTIONS];
        drift_options(run, number, options);
        seconds = options[option].load_seconds + options[option].decode_seconds;
        loss = options[option].loss;
        loss = run->store == STORE_LARGEST ? fmax(loss, run->largest[number])
                                           : loss + run->lost[number];
        loss = fmin(1.0, loss * instance->sensitivity[number]);
    }
    sum->quality += 1.0 - loss;
    sum->seconds += seconds;
    sum->objective += instance->alpha_seconds * (1.0 - loss) - seconds;
}

static kvt_status drift_request_one(drift_run *run, uint32_t number, uint64_t now_ns)
{
    run->plan.count = 0;
    kvt_status status = kvt_policy_access(run->policy, now_ns, number + UINT64_C(1), &run->plan);
    if (status == KVT_MISS) {
        kvt_option options[DRIFT_OPTIONS];
        drift_options(run, number, options);
        const kvt_policy_entry offer = {.struct_size = sizeof offer,
                                        .handle = number + UINT64_C(1),
                                        .options = options,
                                        .option_count = drift_option_count(run),
                                        .tokens = run->instance->tokens[number],
                                        .sensitivity = run->instance->sensitivity[number]};
        status = kvt_policy_admit(run->policy, now_ns, &offer, &run->plan);
    }
    if (status != KVT_OK && status != KVT_REFUSED) return status;
    return drift_carry_out(run);
}

static uint32_t drift_draw(const drift_run *run, double total, uint64_t *dice)
{
    double left = policy_unit(dice) * total;
    uint32_t number = 0;
    while (number + 1 < run->instance->entries && left > run->rate[number])
        left -= run->rate[number++];
    return number;
}

/* A share of the entries changes popularity with others. */
static void drift_swap(drift_run *run, double share, uint64_t *dice)
{
    uint32_t n = run->instance->entries;
    uint32_t pairs = (uint32_t)(share * n / 2.0 + 0.5);
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t a = (uint32_t)(policy_unit(dice) * n), b = (uint32_t)(policy_unit(dice) * n);
        double rate = run->rate[a];
        run->rate[a] = run->rate[b];
        run->rate[b] = rate;
    }
}

static kvt_status drift_requests(drift_run *run, double share, uint32_t epochs, outcome *sum,
                                 double *nothing)
{
    uint64_t dice = run->instance->seed * 7919 + 13; /* the same requests for every store */
    uint64_t now_ns = 1, counted = 0, warm = (uint64_t)DRIFT_EPOCH * epochs * DRIFT_WARM;
    double total = 0.0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < run->instance->entries; i++)
        total += run->rate[i];
    for (uint64_t i = 0; status == KVT_OK && i < (uint64_t)DRIFT_EPOCH * epochs; i++) {
        now_ns += (uint64_t)(-log(policy_unit(&dice)) / total * 1e9) + 1;
        if (i % DRIFT_EPOCH == 0) drift_swap(run, share, &dice);
        uint32_t number = drift_draw(run, total, &dice);
        if (i * DRIFT_EPOCHS >= warm) {
            drift_count(run, number, sum);
            *nothing += run->instance->alpha_seconds - run->instance->recompute[number];
            counted++;
        }
        status = drift_request_one(run, number, now_ns);
        if (status != KVT_OK || i % DRIFT_TICK != 0) continue;
        status = kvt_policy_tick(run->policy, now_ns, DRIFT_MOVES, UINT64_MAX, &run->plan);
        if (status == KVT_OK) status = drift_carry_out(run);
    }
    sum->objective /= (double)counted;
    sum->quality /= (double)counted;
    sum->seconds /= (double)counted;
    *nothing /= (double)counted;
    return status;
}

static kvt_status drift_open(drift_run *run, char *message, size_t message_size)
{
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = run->store >= STORE_GREEDY ? "adaptcache" : "utility";
    config.half_life_seconds = DRIFT_HALF_LIFE;
    config.alpha_seconds = run->instance->alpha_seconds;
    config.holes = KVT_HOLES_MIXED;
    config.entries_expected = run->instance->entries;
    config.allocator.resize = kvt_memory_resize;
    for (int level = 0; level < TIERS; level++)
        config.tiers[level + 1].capacity_bytes = run->instance->capacity[level];
    double ssd = (double)config.tiers[KVT_TIER_SSD].capacity_bytes * run->ssd;
    config.tiers[KVT_TIER_SSD].capacity_bytes = (uint64_t)ssd;
    return kvt_policy_open(&config, &run->policy, message, message_size);
}

static kvt_status drift_store(const policy_instance *instance, uint8_t store, double ssd,
                              double share, uint32_t epochs, outcome *sum, double *nothing,
                              char *message, size_t message_size)
{
    uint32_t n = instance->entries;
    drift_run run = {.instance = instance, .store = store, .ssd = ssd};
    run.plan = (kvt_plan){.moves = run.moves, .capacity = DRIFT_MOVES};
    run.rate = malloc(n * sizeof *run.rate);
    run.lost = calloc(n, sizeof *run.lost);
    run.largest = calloc(n, sizeof *run.largest);
    kvt_status status = KVT_E_MEMORY;
    if (run.rate != NULL && run.lost != NULL && run.largest != NULL) {
        memcpy(run.rate, instance->rate, n * sizeof *run.rate);
        status = drift_open(&run, message, message_size);
    }
    *sum = (outcome){0.0, 0.0, 0.0};
    *nothing = 0.0;
    if (status == KVT_OK) status = drift_requests(&run, share, epochs, sum, nothing);
    kvt_policy_close(run.policy);
    free(run.rate);
    free(run.lost);
    free(run.largest);
    return status;
}

/* ---- results ---- */

typedef struct drift_row {
    double share, ssd;
    uint32_t seeds;
    outcome of[STORE_COUNT][DRIFT_SEEDS];
    double nothing[DRIFT_SEEDS]; /* objective */
    double alpha;
} drift_row;

static int drift_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

typedef struct spread {
    double least, median, most;
} spread;

static spread drift_spread(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, drift_compare);
    double middle = 0.5 * (values[(count - 1) / 2] + values[count / 2]);
    return (spread){values[0], middle, values[count - 1]};
}

typedef enum drift_figure {
    FIGURE_OBJECTIVE, /* of a request, over that of `copy` */
    FIGURE_SAVING,    /* the same, each less that of recomputing everything */
    FIGURE_COST,      /* alpha * loss + seconds, over that of `copy` */
    FIGURE_QUALITY,
    FIGURE_SECONDS
} drift_figure;

/* alpha is what nothing lost in no time would be worth. */
static spread drift_of(const drift_row *row, uint32_t store, drift_figure figure)
{
    double values[DRIFT_SEEDS];
    for (uint32_t i = 0; i < row->seeds; i++) {
        const outcome *own = &row->of[store][i], *copy = &row->of[STORE_COPY][i];
        double nothing = row->nothing[i];
        switch (figure) {
        case FIGURE_OBJECTIVE: values[i] = own->objective / copy->objective; break;
        case FIGURE_SAVING:
            values[i] = (own->objective - nothing) / (copy->objective - nothing);
            break;
        case FIGURE_COST:
            values[i] = (row->alpha - own->objective) / (row->alpha - copy->objective);
            break;
        case FIGURE_QUALITY: values[i] = own->quality; break;
        default: values[i] = own->seconds; break;
        }
    }
    return drift_spread(values, row->seeds);
}

static json_t *drift_json(const drift_row *row, uint32_t store)
{
    spread objective = drift_of(row, store, FIGURE_OBJECTIVE);
    spread saving = drift_of(row, store, FIGURE_SAVING);
    spread cost = drift_of(row, store, FIGURE_COST);
    return json_pack("{s:s,s:s,s:f,s:f,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "case",
                     "drift", "store", store_names[store], "drift", row->share, "ssd", row->ssd,
                     "seeds", (json_int_t)row->seeds, "objective_share", objective.median,
                     "objective_share_least", objective.least, "objective_share_most",
                     objective.most, "saving_share", saving.median, "saving_share_least",
                     saving.least, "saving_share_most", saving.most, "cost_ratio", cost.median,
                     "cost_ratio_least", cost.least, "cost_ratio_most", cost.most, "quality",
                     drift_of(row, store, FIGURE_QUALITY).median, "seconds",
                     drift_of(row, store, FIGURE_SECONDS).median);
}

static kvt_status drift_report_json(const drift_row *rows, uint32_t count, FILE *out)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t store = 0; store < STORE_COUNT; store++)
            json_array_append_new(list, drift_json(&rows[i], store));
    json_t *document = json_pack("{s:s,s:o}", "schema", "kvterrace-bench-policy-1", "rows", list);
    if (document == NULL) return KVT_E_MEMORY;
    int failed = json_dumpf(document, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(document);
    return failed != 0 || fputc('\n', out) == EOF ? KVT_E_IO : KVT_OK;
}

static void drift_report_row(const drift_row *row, uint32_t store, FILE *out)
{
    spread objective = drift_of(row, store, FIGURE_OBJECTIVE);
    spread saving = drift_of(row, store, FIGURE_SAVING);
    spread cost = drift_of(row, store, FIGURE_COST);
    fprintf(out,
            "%3.0f%% %4.0f%% %-10s %.4f (%.4f %.4f) %.3f (%.3f %.3f) %.3f (%.3f %.3f) %.4f %.4f\n",
            100.0 * row->share, 20.0 * row->ssd, store_names[store], objective.median,
            objective.least, objective.most, saving.median, saving.least, saving.most, cost.median,
            cost.least, cost.most, drift_of(row, store, FIGURE_QUALITY).median,
            drift_of(row, store, FIGURE_SECONDS).median);
}

static kvt_status drift_report_text(const drift_row *rows, uint32_t count, FILE *out)
{
    fprintf(out,
            "popularity drifts: share of the entries swapped every %u requests; medians of %u "
            "seeds (least, most)\nobjective: sum of alpha * quality - seconds, over that with an "
            "unlimited exact copy; saving: the same,\neach less the objective of recomputing "
            "everything; cost: alpha * loss + seconds, over that with the copy\n"
            "%4s %5s %-10s %22s %19s %19s %s %s\n",
            DRIFT_EPOCH, rows[0].seeds, "drift", "SSD", "store", "objective", "saving", "cost",
            "quality", "seconds");
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t store = 0; store < STORE_COUNT; store++)
            drift_report_row(&rows[i], store, out);
    return ferror(out) ? KVT_E_IO : KVT_OK;
}

static kvt_status drift_measure(drift_row *row, uint32_t entries, uint32_t epochs, char *message,
                                size_t message_size)
{
    for (uint32_t seed = 0; seed < row->seeds; seed++) {
        policy_instance instance;
        kvt_status status = policy_instance_draw(entries, 2, 2, seed + 1, &instance);
        if (status != KVT_OK) return status;
        row->alpha = instance.alpha_seconds;
        for (uint8_t store = 0; status == KVT_OK && store < STORE_COUNT; store++) {
            status = drift_store(&instance, store, row->ssd, row->share, epochs,
                                 &row->of[store][seed], &row->nothing[seed], message, message_size);
        }
        policy_instance_free(&instance);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

kvt_status bench_policy_drift_run(const bench_policy_options *options, char *message,
                                  size_t message_size)
{
    static drift_row rows[DRIFT_ROWS];
    memset(rows, 0, sizeof rows);
    snprintf(message, message_size, "out of memory");
    uint32_t seeds = options->seeds != 0 ? options->seeds : 5;
    uint32_t entries = options->entries != 0 ? options->entries : DRIFT_ENTRIES;
    uint32_t epochs = options->quick ? DRIFT_EPOCHS / 10 : DRIFT_EPOCHS;
    uint32_t count = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < DRIFT_ROWS && status == KVT_OK; i++) {
        drift_row *row = &rows[i];
        row->share = drift_shares[i % DRIFT_STEPS];
        row->ssd = drift_ssd[i / DRIFT_STEPS];
        row->seeds = seeds > DRIFT_SEEDS ? DRIFT_SEEDS : seeds;
        char what[48];
        (void)snprintf(what, sizeof what, "%.0f %% drift, SSD for %.0f %%", 100.0 * row->share,
                       20.0 * row->ssd);
        if (options->progress != NULL &&
            !options->progress(options->progress_context, (double)i / DRIFT_ROWS, what))
            status = KVT_E_CANCELLED;
        if (status == KVT_OK) status = drift_measure(row, entries, epochs, message, message_size);
        count += status == KVT_OK;
    }
    if (status != KVT_OK && !(status == KVT_E_CANCELLED && count > 0)) return status;
    kvt_status printed = options->json ? drift_report_json(rows, count, options->out)
                                       : drift_report_text(rows, count, options->out);
    return printed == KVT_OK ? status : printed;
}
