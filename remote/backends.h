/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backends.h - the back ends, for the table of client.c. Constant data; any thread.
 */
#ifndef REMOTE_BACKENDS_H
#define REMOTE_BACKENDS_H

#include "remote/client.h"

extern const remote_ops remote_valkey_ops;
extern const remote_ops remote_mooncake_ops;
extern const remote_ops remote_memory_ops;
extern const remote_ops remote_fault_ops;

#endif
