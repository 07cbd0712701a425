/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.c - see cpu.h. The only state is the chosen level, written atomically.
 */
#include "codecs/kernels/cpu.h"

static int cpu_chosen = -1;

codecs_cpu codecs_cpu_best(void)
{
#if defined(__x86_64__)
    /* clang has no name for F16C, but no processor has AVX2 without it. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2")) {
        return CODECS_CPU_SCALAR;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2")) {
        return CODECS_CPU_AVX512;
    }
    return CODECS_CPU_AVX2;
#else
    return CODECS_CPU_SCALAR;
#endif
}

codecs_cpu codecs_cpu_level(void)
{
    int level = __atomic_load_n(&cpu_chosen, __ATOMIC_RELAXED);
    if (level < 0) {
        level = (int)codecs_cpu_best();
        __atomic_store_n(&cpu_chosen, level, __ATOMIC_RELAXED);
    }
    return (codecs_cpu)level;
}

void codecs_cpu_force(codecs_cpu level)
{
    codecs_cpu best = codecs_cpu_best();
    __atomic_store_n(&cpu_chosen, (int)(level < best ? level : best), __ATOMIC_RELAXED);
}

const char *codecs_cpu_name(codecs_cpu level)
{
    switch (level) {
    case CODECS_CPU_AVX2: return "avx2";
    case CODECS_CPU_AVX512: return "avx512";
    default: return "scalar";
    }
}
