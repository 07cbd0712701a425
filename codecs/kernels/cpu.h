/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.h - which instruction set the kernels use.
 *
 * The scalar functions are the specification; the others give the same bytes, faster. The choice is
 * made once from what the processor has, and can be forced for tests and benches (never above what
 * the processor has).
 *
 * Thread rule: any thread; forcing while another thread encodes is the caller's business.
 */
#ifndef CODECS_CPU_H
#define CODECS_CPU_H

typedef enum codecs_cpu {
    CODECS_CPU_SCALAR = 0,
    CODECS_CPU_AVX2 = 1,  /* AVX2, FMA, F16C, BMI2 */
    CODECS_CPU_AVX512 = 2 /* AVX-512 F, BW, DQ, VL, VBMI, VBMI2, and what AVX2 has */
} codecs_cpu;

/* The level in use. */
codecs_cpu codecs_cpu_level(void);

/* The highest level that this processor has. */
codecs_cpu codecs_cpu_best(void);

/* Uses this level, or the best one below it that the processor has, from now on. */
void codecs_cpu_force(codecs_cpu level);

/* "scalar", "avx2", "avx512". */
const char *codecs_cpu_name(codecs_cpu level);

/* For functions compiled for one level inside a file compiled for the baseline. */
#if defined(__x86_64__)
#define CODECS_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi2")))
#define CODECS_TARGET_AVX512                                                                       \
    __attribute__((                                                                                \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,fma,f16c,bmi2")))
#endif

#endif
