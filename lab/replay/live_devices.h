/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_devices.h - leaves the devices of a live run as blank as it found them; private to the room.
 * One thread, while no store has the devices open.
 */
#ifndef REPLAY_LIVE_DEVICES_H
#define REPLAY_LIVE_DEVICES_H

#include <kvterrace/kvterrace.h>

typedef struct live_devices {
    const kvt_store_options *store;
    bool *blank;  /* by device, tier after tier: absent, or zeros where a label goes */
    bool *absent; /* by device: the run makes its file */
    uint32_t count;
} live_devices;

/* Notes which devices are blank. A device that cannot be read is not blank; opening the store says
 * why. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status live_devices_note(live_devices *devices, const kvt_store_options *store);

/* Zeroes the labels on the devices that were blank and removes files that were absent: nothing of a
 * live run is worth keeping, and a label would keep the next run out. Releases what was noted.
 * KVT_OK, or the first failure with a message. */
kvt_status live_devices_wipe(live_devices *devices, char *message, size_t message_size);

#endif
