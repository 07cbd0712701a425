/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode.h - the bench of sparse decode: what selection, precision and windows do to attention, on
 * dumps of real models and on a synthetic one, in memory.
 *
 *     decode_data.c       dumps, unit by unit; decode_synthetic.c the generator
 *     decode_unit.c       one unit: index, pages, exact attention, logits of every precision
 *     decode_items.c      what an index may choose: clusters, pages, tokens; cluster scores
 *     decode_rivals.c     scores of the baselines; decode_coactive.c SWARM's clusters
 *     decode_run.c        one configuration over a unit's steps; decode_configs.c which there are
 *     decode_windows.c    windows of several sizes and rules over the same steps, Belady's bound
 *     decode_half.c       units of what a step brings of pages that are in memory
 *     decode_cost.c       seconds of building, scoring and choosing
 *     decode_given.c      a case of its own: steps on drives for selections that are given
 *     decode_report.c     the report
 *
 * Errors and recalls of a configuration are sums over all units of a source, so that units are
 * taken one after the other. Thread rule: one bench at a time.
 */
#ifndef DECODE_DECODE_H
#define DECODE_DECODE_H

#include "estimator/quality/quality_round_trip.h"
#include "lab/harness/bench_case.h"
#include "lab/private.h"
#include "replay/rivals/window_rules.h"

enum {
    DECODE_SINKS = 4,
    DECODE_LOCAL = 64,
    DECODE_ROWS = 256,          /* most steps of a source: appended tokens stay resident */
    DECODE_ITEM_TOKENS = 32,    /* clusters that are larger are cut */
    DECODE_PROFILE_STEPS = 64,  /* most steps of SWARM's profile */
    DECODE_COACTIVE_MOST = 4096 /* most members of one of its clusters */
};

/* Sparse decode on attention of dumps, and of a generator: error and bytes of selection, precision,
 * windows. KVT_E_CANCELLED; KVT_E_ARGUMENT: a dump without queries, or too short. */
extern const bench_case bench_decode_case;

/* The case's own options. */
typedef struct decode_options {
    const char *const *dumps;
    uint32_t dump_count;
    bool synthetic;       /* the generator besides */
    bool cost;            /* seconds besides */
    uint32_t layers;      /* of the generator */
    uint32_t tokens;      /* of the generator, and of the costs */
    uint32_t rows;        /* steps; 0: as many as there are */
    uint32_t page_tokens; /* 0: by head_dim */
    uint32_t fall;        /* of the costs' keys */
    uint32_t one_pass;    /* clusters of an index without sketches; 0: the library's */
    bool raw_alone;       /* units have no coded variants */
    uint32_t context;     /* tokens of one of them; 0: 1,800 */
    uint64_t seed;
} decode_options;

/* Decode steps over a dump's attention, whose selections are its own heaviest tokens, on drives
 * (as for sequence), which are overwritten: bytes, hits and seconds of a step, beside an LRU of
 * fixed blocks. KVT_E_CORRUPT: a row was wrong or missing. */
extern const bench_case decode_given_case;

typedef struct decode_given_options {
    const char *const *paths;
    uint32_t count;
} decode_given_options;

/* ---- sources ---- */

typedef struct decode_source {
    char name[64];
    uint32_t layers, kv_heads, group, head_dim;
    uint32_t tokens; /* before the first step */
    uint32_t rows;   /* steps */
    bool grows;      /* step r sees r + 1 more tokens, which the source has */
    uint32_t all;    /* tokens with those */
    quality_dump dump;
    uint32_t
        fall; /* of the generator's keys: octaves from the first channel to the last; 0: white */
    uint64_t seed;
} decode_source;

kvt_status decode_source_dump(const char *path, uint32_t rows, decode_source *source_out,
                              char *message, size_t message_size);
void decode_source_synthetic(uint32_t layers, uint32_t tokens, uint32_t rows, uint64_t seed,
                             decode_source *source_out);
void decode_source_close(decode_source *source);

/* K and V of a unit, fp16 [all][head_dim], and queries fp32 [rows][group][head_dim]. */
void decode_source_unit(const decode_source *source, uint32_t layer, uint32_t head, uint16_t *keys,
                        uint16_t *values, float *queries);
void decode_synthetic_unit(const decode_source *source, uint32_t layer, uint32_t head,
                           uint16_t *keys, uint16_t *values, float *queries);

/* ---- a unit ---- */

/* The zone's places are in packed order; `place_of` leads from its tokens to them. */
typedef struct decode_unit {
    const decode_source *source;
    uint32_t dim, group, rows, zone;
    float scale;
    uint16_t *keys, *values; /* [all][dim] by position */
    float *queries;
    sparse_index index;
    sparse_paging paging;
    uint32_t *place_of;
    uint16_t *rows_of[PAGES_VARIANTS]; /* V of each variant, [zone][dim] by place */
    float *logits[PAGES_VARIANTS];     /* [rows][group][zone] by place */
    float *resident, *resident_lse;    /* partial output of sinks and local: [rows][group][dim] */
    double *zone_lse;                  /* [rows][group] */
    float *exact;                      /* [rows][group][dim]: full attention */
    double exact_energy;               /* sum of its squares */
    uint64_t code_bytes;               /* minima, scales, tables */
    double build_seconds;
    sparse_work work;
} decode_unit;

kvt_status decode_unit_open(const decode_source *source, const decode_options *options,
                            uint32_t layer, uint32_t head, decode_unit *unit_out);
void decode_unit_close(decode_unit *unit);

/* Attention of a step over what is resident, the zone's places in their variants (PAGES_ABSENT: not
 * read) and, unless NULL, an estimate of the others ([group][dim], [group]). Adds squared errors to
 * *error and the group's mean share of the zone's weight that was read to *recall. */
void decode_unit_judge(const decode_unit *unit, uint32_t row, const uint8_t *variant_of_place,
                       const float *estimate, const float *estimate_lse, double *error,
                       double *recall);

/* ---- what can be chosen ---- */

typedef enum decode_layout {
    DECODE_TOKENS,
    DECODE_CLUSTERS,
    DECODE_PAGES,
    DECODE_RUNS
} decode_layout;

/* Items are sets of places; an item's are places[first[i]] .. places[first[i + 1] - 1]. */
typedef struct decode_items {
    uint32_t count;
    uint32_t *first;
    uint32_t *places;
    uint16_t *tokens;
    uint32_t *cluster; /* of each item, where it lies in one; or NULL */
} decode_items;

typedef enum decode_index {
    DECODE_CLUSTER,
    DECODE_CENTROID, /* the same index, without what a cluster's scatter adds to its score */
    DECODE_ORACLE,
    DECODE_QUEST,
    DECODE_MEAN,
    DECODE_CHUNK_MEAN,
    DECODE_REPRESENTATIVE,
    DECODE_COACTIVE,
    DECODE_INDEXES
} decode_index;

/* An index that is built over one unit: its items, and their expected weights in a step. */
typedef struct decode_choice {
    decode_index index;
    decode_layout layout;
    uint32_t run; /* tokens of a run of DECODE_RUNS */
    decode_items items;
    float *keys[2];    /* of the rivals: [items][dim], or two of them */
    uint32_t *medoids; /* of DECODE_COACTIVE and _REPRESENTATIVE: places */
    sparse_index chunks;
    float *weight; /* [items]: of the last step asked */
    float *row;    /* scratch */
} decode_choice;

kvt_status decode_choice_open(decode_unit *unit, decode_index index, decode_layout layout,
                              uint32_t run, decode_choice *choice_out);
void decode_choice_close(decode_choice *choice);
kvt_status decode_choice_weights(decode_unit *unit, decode_choice *choice, uint32_t row);
kvt_status decode_rival_open(decode_unit *unit, decode_choice *choice);
void decode_rival_weights(decode_unit *unit, decode_choice *choice, uint32_t row);
kvt_status decode_coactive_open(decode_unit *unit, decode_choice *choice);

/* Which steps each entry is active in. */
typedef struct decode_profile {
    uint32_t entries, steps;
    uint64_t *seen; /* of each entry: bit s of step s */
} decode_profile;

/* Adds, to the attention of each of the zone's tokens by position, the group's mean in a step. */
void decode_unit_attention(const decode_unit *unit, uint32_t row, float *attention);

kvt_status decode_profile_open(uint32_t entries, decode_profile *profile);
void decode_profile_close(decode_profile *profile);
/* A tenth of the entries is active: those with the most attention. Steps beyond the most are left
 * out. */
kvt_status decode_profile_add(decode_profile *profile, const float *attention);
/* Clusters of entries; replicas are items' places too. The medoids are the caller's to free. */
kvt_status decode_coactive_build(const decode_profile *profile, decode_items *items,
                                 uint32_t **medoids_out);
kvt_status decode_items_open(decode_items *items, uint32_t count, uint32_t places);
void decode_items_close(decode_items *items);

/* A window over items by one of the rules. False: out of memory; close it either way. */
bool decode_window_open(const decode_items *items, const pages_terms *terms, windows_rule rule,
                        double capacity_bytes, windows_unit *window_out);
void decode_window_close(windows_unit *window);

/* Items of `run` neighbouring tokens by position. */
kvt_status decode_items_runs(const decode_unit *unit, uint32_t run, decode_items *items);

/* Turns [count] scores of one query head into shares and adds them, over the group, to weight. */
void decode_softmax_add(const float *scores, const uint16_t *tokens, uint32_t count, uint32_t group,
                        float *weight);

/* ---- configurations ---- */

#define DECODE_BUDGETS 6u
extern const double decode_budgets[DECODE_BUDGETS]; /* shares of the zone at 16 bits */

typedef struct decode_config {
    decode_index index;
    decode_layout layout;
    uint32_t run;
    uint32_t variants; /* bits of pages_variant */
    bool estimate;
    double window; /* in budgets; 0: none */
    windows_rule rule;
    bool windows_attend; /* all of the window takes part */
    bool windows_choose; /* and counts as read when the plan is made */
    double budget;       /* share */
} decode_config;

/* Sums over units. */
typedef struct decode_result {
    decode_config config;
    double error, recall;      /* squared; of all steps and units */
    double bytes, grain_bytes; /* read, coded; in whole blocks of 4 KiB */
    double wanted_bytes, hit_bytes;
    double index_bytes; /* not of rivals whose index is a table of floats here */
    uint32_t steps, units;
} decode_result;

enum { WINDOW_SIZES = 2, WINDOW_BUDGETS = 2 };
extern const double decode_window_sizes[WINDOW_SIZES]; /* in budgets */
extern const double decode_window_budgets[WINDOW_BUDGETS];

/* Bytes of all units: hits of every rule, Belady's last, and what was wanted. */
typedef struct decode_windows {
    double hit[WINDOW_BUDGETS][WINDOW_SIZES][WINDOWS_RULES + 1], wanted[WINDOW_BUDGETS];
} decode_windows;

kvt_status decode_windows_unit(decode_unit *unit, decode_choice *choice, decode_windows *windows);

/* Units of what a step brings of the half of the pages that is in memory. */
typedef enum decode_half {
    DECODE_HALF_PAGE,
    DECODE_HALF_CLUSTER,
    DECODE_HALF_SINGLE, /* tokens by their codes */
    DECODE_HALF_ORACLE, /* tokens by their true weights */
    DECODE_HALVES
} decode_half;

/* Sums over the units' steps at each budget, a share of the half's tokens: squared errors, shares
 * of the half's attention. */
enum { HALF_BUDGETS = 3 };
typedef struct decode_halves {
    double error[DECODE_HALVES][HALF_BUDGETS], recall[DECODE_HALVES][HALF_BUDGETS];
    double energy;
    uint32_t steps;
} decode_halves;

kvt_status decode_half_unit(decode_unit *unit, decode_halves *halves);

typedef struct decode_results {
    decode_source source; /* the dump is closed */
    decode_result *rows;
    uint32_t count;
    double exact_energy;
    double index_share, code_share; /* of KV bytes */
    double build_tokens_per_s;
    sparse_paging paging;
    decode_windows windows;
    decode_halves halves;
} decode_results;

kvt_status decode_configs(decode_results *results);
kvt_status decode_config_run(decode_unit *unit, decode_choice *choice, decode_result *result);

/* The estimate of what no item brings, after a step's decode_choice_weights of the cluster index:
 * [group][dim] and [group]. */
void decode_unit_estimate(const decode_unit *unit, const uint8_t *variant_of_place, float *estimate,
                          float *estimate_lse);
const char *decode_index_name(decode_index index);
void decode_layout_name(const decode_config *config, const sparse_paging *paging, char *text,
                        size_t size);

/* ---- costs and reports ---- */

typedef struct decode_cost {
    uint32_t tokens, kv_heads, group, head_dim, clusters;
    double score_ms, choose_ms, select_ms_p50, select_ms_p99;
    double build_tokens_per_s, index_share, code_share, estimate_ms;
    double single_ms;                         /* to choose single tokens of half of the pages */
    double single_tokens_per_s, single_share; /* of the codes by which they are chosen */
    double axes;                              /* of a sketch, on average over the heads; 0: none */
    double full_share;              /* of the clusters, that a step scores in full at most */
    double recall, recall_one_pass; /* of attention, by the index and without its sketches */
} decode_cost;

kvt_status decode_cost_measure(const decode_options *options, decode_cost *cost_out);

void decode_report(const decode_results *results, uint32_t count, const decode_cost *cost,
                   bench_report *report);

#endif
