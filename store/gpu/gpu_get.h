/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_get.h - a get into a GPU's memory by kernels: its record crosses the link as it is stored,
 * and is verified and decoded there (docs/GPU.md).
 *
 * Thread rule: as of the get.
 */
#ifndef STORE_GPU_GET_H
#define STORE_GPU_GET_H

#include "store/read/access_get.h"

/*
 * Decodes the record of a get whose target is in a GPU's memory. It waits until the events of the
 * views are over, and then until its own work is, whose verdicts have been read.
 *   arrival   of a record that is on its way, else NULL
 * KVT_OK: the views have what the record holds. KVT_E_UNSUPPORTED: kernels take nothing of it. Any
 * other status: some layer has failed. After both the CPU is to decode all of it; KVT_E_CORRUPT
 * says that kernels have found bytes unsound.
 */
KVT_NODISCARD kvt_status store_gpu_get(kvt_store *store, const access_get *get,
                                       kvt_record_arrival *arrival);

#endif
