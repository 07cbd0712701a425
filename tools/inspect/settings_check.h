/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings_check.h - whether a store could open with its options on this machine, unopened.
 */
#ifndef INSPECT_SETTINGS_CHECK_H
#define INSPECT_SETTINGS_CHECK_H

#include "tools/command/command.h"

#include <kvterrace/kvterrace.h>

/* KVT_OK, with a note where puts get less staging than was asked for; else what kvt_store_open or
 * its devices would say, with a message that names the setting. Opens nothing but a password's
 * file; of a device's file it reads the place of the label. */
KVT_NODISCARD kvt_status inspect_settings(const command_common *common,
                                          const kvt_store_options *options, char *message,
                                          size_t message_size);

#endif
