/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_places.h - whether the files that a store's settings name can be what they are named as.
 *
 * Only names and kinds are looked at: no file is opened, so what lies in one, and whether a drive
 * answers, is for the store to find. One thread.
 */
#ifndef TOOLS_CHECK_PLACES_H
#define TOOLS_CHECK_PLACES_H

#include <kvterrace/kvterrace.h>

/* KVT_OK, or KVT_E_CONFIG with a message that names the setting: a profile or a folder that is not
 * there, a folder in a file's place, one file in two places. */
KVT_NODISCARD kvt_status check_places(const kvt_store_options *options, char *message,
                                      size_t message_size);

#endif
