/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_avx2.c - the arithmetic of codec 8 in registers of 8 floats: the plain loops, compiled
 * for them. Re-entrant.
 */
#if defined(__x86_64__)
#include "cpu.h"

#define TRANSFORM_TARGET CODECS_TARGET_AVX2
#define TRANSFORM_TABLE  transform_kernels_avx2
#include "transform_body.h"
#endif
