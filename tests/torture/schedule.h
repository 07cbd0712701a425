/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - one thread at a time, on a virtual clock, in an order that a seed decides.
 *
 * The linker sends the calls below of every object of the program, the library's included, to
 * schedule.c (KVT_WRAPPED_SCHEDULE in cmake/tests.cmake); shared libraries, SQLite among them, call
 * what they always call, so a call into them is one step.
 *
 *     locks           pthread_mutex_lock, _unlock, _trylock
 *     conditions      pthread_cond_wait, _timedwait, _signal, _broadcast
 *     threads         pthread_create, _join, _detach
 *     time            base_clock_ns, base_clock_seconds, base_calendar_ns, base_cpu_seconds,
 *                     base_sleep, base_sleep_until
 *     work that lasts kvt_record_encode_parallel, kvt_record_decode_parallel
 *     chance          getrandom
 *
 * Every thread is a real one and waits for its baton. The thread that has it runs until a call
 * above, where the scheduler may give it to another one that can run, or let it rest for a while,
 * as a thread that gets no processor. Time passes a little with each call; when nobody can run it
 * jumps to the next deadline; now and then it jumps although somebody could, as on a machine that
 * stood still. When nobody can run and nobody has a deadline, the program ends with a report of
 * where each thread waits.
 *
 * Data races are not found: what happens between two calls is never interrupted.
 */
#ifndef TESTS_SCHEDULE_H
#define TESTS_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct schedule_options {
    uint64_t seed;
    bool keep_log;       /* for schedule_print_log */
    bool signals_narrow; /* a planted bug: a broadcast wakes one thread, not all */
    uint64_t stop_step;  /* the process ends at this step, as if it was killed; 0: never */
    uint64_t *stop_hash; /* with it: where the hash goes */
} schedule_options;

/* Begins: the calling thread becomes thread 0, and has the baton. */
void schedule_begin(const schedule_options *options);

/* Ends it; all other threads have ended. Says how many steps were taken, and a hash of every
 * decision and every note. */
void schedule_end(uint64_t *steps_out, uint64_t *hash_out);

/* A call at which another thread may go on, and which takes some time. */
void schedule_step(uint64_t lasts_ns);

/* The scheduler's own chance: a number below `below`, which is not 0. */
uint32_t schedule_draw(uint32_t below);

/* Puts a word and two numbers into the log and the hash. The word is a literal. */
void schedule_note(const char *word, uint64_t a, uint64_t b);

/* Prints the notes and decisions on standard output. */
void schedule_print_log(void);

/* Ends the process with a report of every thread. */
_Noreturn void schedule_fail(const char *reason);

enum { SCHEDULE_EXIT_FAILED = 3, SCHEDULE_EXIT_STOPPED = 4 };

#endif
