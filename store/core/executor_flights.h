/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_flights.h - puts of one thread whose records are written together: the thread encodes
 * one after the other, their writes begin in groups, and it waits once for all of them.
 *
 *     opened -> carried out as far as its write -> flies -> landed -> the stages behind -> ended
 *
 * A flight holds its staging and its room on the device. A thread that has some therefore waits for
 * nothing that another thread holds: it ends them first, and begins further ones afterwards.
 *
 * Thread rule: flights belong to one thread. No lock is held.
 */
#ifndef STORE_EXECUTOR_FLIGHTS_H
#define STORE_EXECUTOR_FLIGHTS_H

#include "store/core/executor_internal.h"
#include "store/core/transfer.h"
#include "store/learn/learn.h"

/* The puts of a thread that fly. */
typedef struct executor_flights {
    kvt_store *store;
    uint64_t limit_bytes; /* of sources; beyond it the flights end before another one begins */
    uint64_t bytes;       /* of those that are not ended */
    struct executor_flight *first, **last; /* not ended, in their order */
    struct executor_flight *held;          /* of these the first whose write has not begun */
    uint64_t held_bytes;
    pthread_mutex_t lock;
    pthread_cond_t landed;
    uint32_t flying; /* under lock */
} executor_flights;

/* One put. Zeroed but for `flights` before the executor gets it. */
typedef struct executor_flight {
    executor_flights *flights;
    struct executor_flight *next;
    store_op op;
    learn_transfer watched;
    store_transfer *write; /* NULL: does not fly, or was given up */
    bool down;             /* landed; under the lock of flights */
    bool ended;            /* status and cause say how */
    kvt_status status;
    executor_cause cause;
} executor_flight;

/* For puts into this store. */
void executor_flights_open(executor_flights *flights, kvt_store *store);
void executor_flights_close(executor_flights *flights);

/* Waits for all writes and runs the stages behind them. */
void executor_flights_end(executor_flights *flights);

/* Ends a flight that executor_run_plan has left under way, with all others. The first failure, as
 * executor_run_plan; result_out is what that call gave, completed. */
KVT_NODISCARD kvt_status executor_flight_end(executor_flight *flight, executor_result *result_out);

#endif
