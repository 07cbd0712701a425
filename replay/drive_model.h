/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive_model.h - the drives of a tier in virtual time, as one: layered loads of passes beside
 * writes and other reads, begun in an order of docs/TIERS.md (Passes and slack).
 *
 *     caller     drive_load, drive_add -> drive_next_ns: when the model has something to do
 *     event      drive_advance: pieces end, layers begin to be computed, windows open, pieces begin
 *     answers    loaded and ended of drive_calls, from inside of either
 *
 * One bus serves the pieces that the drive has in the order in which they began, each for its bytes
 * over its direction's rate; while pieces of both directions are in the drive, `mix` of the rate is
 * lost. What begins next is decided with the arithmetic of live members: slack.h and needs.h of
 * tiers/pool, the ranks of worker_order.c, the window and the pace of layered loads.
 *
 * Thread rule: one thread; a call must not come from inside an answer.
 */
#ifndef REPLAY_DRIVE_MODEL_H
#define REPLAY_DRIVE_MODEL_H

#include "tiers/pool/slack.h"

#include <kvterrace/status.h>
#include <stdio.h>

typedef struct drive_settings {
    tiers_order order;
    double read_bytes_per_s, write_bytes_per_s; /* above 0 */
    double request_seconds;                     /* behind the bus: of no other request's time */
    double mix; /* share of the rates lost while both directions are in the drive, below 1 */
    double grain_seconds, patience_seconds;
    FILE *log; /* receives the decisions that are counted (slack_log.h); or NULL */
} drive_settings;

/* One pass and what it loads. */
typedef struct drive_pass {
    uint32_t layers;       /* at least 1 */
    uint64_t head_bytes;   /* read before any layer is asked for */
    uint64_t layer_bytes;  /* that the drive reads, above 0 */
    double layer_seconds;  /* of computing one */
    double decode_seconds; /* of one, behind its bytes */
    double other_seconds;  /* until what other tiers give of all layers has come, in even steps */
    double announced_seconds; /* of a layer; 0: the pass is not announced */
} drive_pass;

/* A pass whose last layer has come. */
typedef struct drive_loaded {
    uint64_t loaded_ns, computed_ns; /* all layers have come; the last one will be computed */
    double blocked_seconds;          /* that computing waits for layers, up to computed_ns */
} drive_loaded;

typedef struct drive_calls {
    void (*loaded)(void *context, uint32_t tag, const drive_loaded *result);
    void (*ended)(void *context, uint32_t tag, uint64_t now_ns); /* what drive_add began */
    void *context;
} drive_calls;

/* Of the writes that were to be counted. */
typedef struct drive_figures {
    uint64_t writes, writes_deferred; /* deferred: a read that came later began sooner,
                                      or the gate let the write wait */
    uint64_t bytes_written, bytes_deferred;
    double wait_seconds, wait_seconds_max; /* from asked for to written: the sum, and the most */
    uint64_t decisions[SLACK_REASONS];     /* of all pieces, as kvt_device_stats has them */
} drive_figures;

typedef struct drive_model drive_model;

/* KVT_OK; KVT_E_MEMORY. calls are copied. */
KVT_NODISCARD kvt_status drive_open(const drive_settings *settings, const drive_calls *calls,
                                    drive_model **model_out);
void drive_close(drive_model *model); /* NULL is allowed */

/* A pass begins to load. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status drive_load(drive_model *model, uint64_t now_ns, uint32_t tag,
                                    const drive_pass *pass);

/* A read or write of so many bytes, above 0, that is no layer. counted: in the figures. KVT_OK;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status drive_add(drive_model *model, uint64_t now_ns, tiers_rank rank,
                                   uint64_t bytes, uint32_t tag, bool counted);

/* Forgets what drive_add gave and has not ended; its bytes with the drive still pass the bus. No
 * call of it comes any more. */
void drive_forget(drive_model *model);

/* The instant of the next event; UINT64_MAX: there is none. */
uint64_t drive_next_ns(const drive_model *model);

/* Takes the model to an instant. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status drive_advance(drive_model *model, uint64_t now_ns);

/* Whether writes are short of staging, as tiers_pool_hurry. */
void drive_set_hurry(drive_model *model, bool hurry);

/* Bytes of layers that were asked for or will be, and have not come. */
uint64_t drive_waited_bytes(const drive_model *model);

const drive_figures *drive_figures_of(const drive_model *model);

#endif
