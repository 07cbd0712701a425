/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer.h - what the library alone needs of the offers that kvt_offer_build makes (profile.h).
 * Pure; any thread.
 */
#ifndef ESTIMATOR_OFFER_H
#define ESTIMATOR_OFFER_H

#include <kvterrace/profile.h>

/* Header and table of an entry's record; NAN for a layout that has no record. */
double offer_head_bytes(const kvt_layout *layout);

#endif
