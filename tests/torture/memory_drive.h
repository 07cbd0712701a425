/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_drive.h - a drive of memory with a latency, which fails, falls silent, fills and goes when
 * it is told. Its bytes are the test's and outlive the device.
 *
 * Operations end in any order, and half of an operation's bytes move when it is submitted and half
 * when it ends, so a buffer or an extent that is used too early shows. Under schedule.h the time is
 * virtual, and chance the scheduler's.
 *
 * Thread rule: orders by any thread at any time; all else by the thread that has the device.
 */
#ifndef TESTS_MEMORY_DRIVE_H
#define TESTS_MEMORY_DRIVE_H

#include "stand_in.h"

#include <stdatomic.h>

typedef struct memory_drive {
    const char *name;
    uint64_t capacity_bytes;
    unsigned char *bytes;
    uint32_t depth; /* 1 to 16 */
    uint32_t request_bytes;
    uint32_t spread;     /* an operation takes its latency, and up to so many times that more */
    uint64_t timeout_ns; /* as kvt_device_config's */
    uint64_t look_ns;    /* how long a wait sees no order; 0: until something ends */
    bool durable;
    bool wakes; /* its device can be woken, else its worker looks again and again */
    bool trims; /* takes trims, and fills what it is told with garbage */
    uint32_t (*draw)(void *context, uint32_t below); /* below is not 0 */
    void *draw_context;
    void (*submitted)(void); /* after each submission; may be NULL */

    stand_in stand_in;

    /* Orders: */
    atomic_uint latency_ns;
    atomic_uint fail_one_in;       /* 0: no operation fails */
    atomic_uint fail_left;         /* operations that may still fail */
    atomic_ullong silent_until_ns; /* no operation ends before */
    atomic_bool full;              /* writes end with KVT_E_SPACE */
    atomic_bool gone;

    /* Counts: */
    atomic_ullong failed, operations, syncs, trims_done;
} memory_drive;

/* What a store opens the drive by. */
kvt_device_config memory_drive_config(memory_drive *drive);

#endif
