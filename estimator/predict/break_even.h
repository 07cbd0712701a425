/* SPDX-License-Identifier: Apache-2.0 */
/*
 * break_even.h - where one choice stops being faster than another.
 *
 * Pure; any thread.
 */
#ifndef ESTIMATOR_BREAK_EVEN_H
#define ESTIMATOR_BREAK_EVEN_H

#include "estimator/profile/profile.h"

/*
 * Seconds until source_bytes of KV are decoded: request_seconds + share * source_bytes /
 * bytes_per_s + source_bytes / decode_bytes_per_s. A decode speed of 0 stands for no decoding; one
 * of several threads stands for that many at work on one entry.
 */
double kvt_load_seconds(const kvt_affine *read, const kvt_codec_curve *form, double source_bytes);

/*
 * The bandwidth of a device above which a form loads no faster than raw bytes:
 *
 *     (share of raw - share of form) / (1 / decode of form - 1 / decode of raw)
 *
 * INFINITY where it always pays (smaller and no slower to decode), 0 where it never does. The
 * device's seconds per request do not matter: both pay them.
 */
double kvt_break_even_bandwidth(const kvt_codec_curve *raw, const kvt_codec_curve *form);

/*
 * The context length in tokens, from position 0, below which recomputing is faster than loading it
 * from a device in this form; from there on loading wins. Where prefill crosses the load time more
 * than once the last crossing counts. 0: loading wins at every length; INFINITY: recomputing does.
 */
double kvt_break_even_tokens(const kvt_affine *read, const kvt_codec_curve *form,
                             double bytes_per_token, const kvt_prefill *prefill);

#endif
