/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_fault.h - a back end that wraps another one and does it harm: `fault`. What it does may be
 * changed while it runs.
 *
 * Thread rule: the fields below are any thread's; the client is its thread's.
 */
#ifndef REMOTE_REMOTE_FAULT_H
#define REMOTE_REMOTE_FAULT_H

#include "remote/client.h"

#include <stdatomic.h>

/* Numbers count requests of the kind: n = each nth one; 0 = none. */
typedef struct remote_fault {
    remote_config inner;        /* of the client that is wrapped */
    atomic_uint flip_each;      /* GET: a bit of the value, the place moves on */
    atomic_uint short_each;     /* GET: the value lacks its last byte */
    atomic_uint other_each;     /* GET: the value of the GET before it, if it fits */
    atomic_uint fail_each;      /* any: ends with `failure` without being carried out */
    atomic_int failure;         /* kvt_status */
    atomic_uint lose_each;      /* PUT: acknowledged, and not carried out */
    atomic_bool silent;         /* no answer: requests end at their deadlines */
    atomic_bool holds;          /* GETs wait until it is false again, or end at their deadlines */
    atomic_bool gone;           /* the node is out of service: KVT_E_GONE at once */
    atomic_uint_fast64_t count; /* requests seen */
    atomic_uint_fast64_t patience_ns; /* the longest that a PUT had until its deadline */
} remote_fault;

/* The faults of clients that are opened without any in their configuration, as a store's is; NULL:
 * none, and they are not opened. Before the open; lasts until the close. */
void remote_fault_use(remote_fault *faults);

#endif
