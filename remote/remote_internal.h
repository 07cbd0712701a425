/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_internal.h - the back ends, for the table of remote.c. Constant data; any thread.
 */
#ifndef REMOTE_REMOTE_INTERNAL_H
#define REMOTE_REMOTE_INTERNAL_H

#include "remote/remote.h"

extern const remote_ops remote_valkey_ops;
extern const remote_ops remote_memory_ops;
extern const remote_ops remote_fault_ops;

#endif
