/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_disk.h - a drive for runs under schedule.h: its bytes are the test's and outlive the
 * device, every operation takes virtual time, and operations end in an order that chance decides.
 *
 * An operation moves half of its bytes when it is submitted and half when it ends, so a buffer or
 * an extent that is used too early shows. Faults are ordered through the fields below, by any
 * thread of the schedule.
 */
#ifndef TESTS_SCHEDULE_DISK_H
#define TESTS_SCHEDULE_DISK_H

#include <kvterrace/device.h>

typedef struct schedule_disk {
    const char *name;
    uint64_t capacity_bytes;
    bool durable;
    bool wakes;          /* its device can be woken, else its worker looks again and again */
    bool trims;          /* takes trims, and fills what it is told with garbage */
    uint32_t latency_ns; /* of an operation; up to ten times as much */
    unsigned char *bytes;

    /* Orders: */
    uint32_t fail_one_in;     /* 0: no operation fails */
    uint32_t fail_left;       /* operations that may still fail */
    uint64_t silent_until_ns; /* no operation ends before */
    bool gone;

    /* Counts: */
    uint64_t failed, operations, syncs, trims_done;
} schedule_disk;

/* What a store opens the disk by. */
kvt_device_config schedule_disk_config(schedule_disk *disk);

#endif
