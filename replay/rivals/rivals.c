/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rivals.c - the table of rivals, which a program that is linked with this folder adds to the
 * library's policies.
 */
#include "rivals.h"

const policy_ops *const policy_rivals[] = {
    &policy_lru_leaf_ops,
    &policy_fifo_ops,
    &policy_lru_twice_ops,
    &policy_lfu_ops,
    &policy_gdsf_ops,
    &policy_sieve_ops,
    &policy_s3fifo_ops,
    &policy_tinylfu_ops,
    &policy_pensieve_ops,
    &policy_adaptcache_ops,
    NULL,
};
