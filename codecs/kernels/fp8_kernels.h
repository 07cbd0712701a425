/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8_kernels.h - elements of fp8 (E4M3, as base/half.h has them) to bf16 and back, on each
 * instruction set alike. bf16 has every value of fp8; on the way back values are rounded to the
 * nearest, ties to even, and kept within 448. Re-entrant.
 */
#ifndef CODECS_FP8_KERNELS_H
#define CODECS_FP8_KERNELS_H

#include <stdint.h>

void fp8_widen(const uint8_t *source, uint64_t count, uint16_t *target);
void fp8_narrow(const uint16_t *source, uint64_t count, uint8_t *target);

#endif
