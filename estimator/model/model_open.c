/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_open.c - the choice of a loader, and elements as fp32. Thread rule: see model.h.
 */
#include "base/half.h"
#include "estimator/model/model_host.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MODEL_TERNARY_MAGIC = 0x616b3432 };

/* What a path names that is no model but is taken for one; NULL: nothing of that kind. */
static const char *model_other_kind(const char *path, const model_map *map)
{
    static const char weights[] = ".safetensors";
    const size_t length = strlen(path), ends = sizeof weights - 1;
    if (length > ends && strcmp(path + length - ends, weights) == 0)
        return "weights alone; the model is the folder with them and config.json";
    if (map->size >= 4 && memcmp(map->bytes, "GGUF", 4) == 0)
        return "GGUF is not read; reference_model/convert_gguf.py makes a folder of it";
    return NULL;
}

kvt_status model_open(const char *path, model **model_out, char *message, size_t message_size)
{
    struct stat facts;
    model_map map;
    uint32_t magic = 0;
    *model_out = NULL;
    const mode_t kind = stat(path, &facts) == 0 ? facts.st_mode : 0;
    if (S_ISDIR(kind)) return model_open_folder(path, model_out, message, message_size);
    if (S_ISSOCK(kind)) return model_host_open(path, model_out, message, message_size);
    kvt_status status = model_map_open(path, &map, message, message_size);
    if (status == KVT_E_GONE)
        return model_map_say(
            status, message, message_size, path,
            "%s; a model is a folder of this machine with config.json and "
            "model.safetensors, a file of llama2.c, or a socket of kvterrace.model_host",
            strerror(errno));
    if (status != KVT_OK) return status;
    const char *other = model_other_kind(path, &map);
    if (other != NULL) {
        model_map_close(&map);
        return model_map_say(KVT_E_CORRUPT, message, message_size, path, "no model: %s", other);
    }
    if (map.size >= sizeof magic) memcpy(&magic, map.bytes, sizeof magic);
    status = magic == MODEL_TERNARY_MAGIC
                 ? model_open_ternary(path, &map, model_out, message, message_size)
                 : model_open_llama2c(path, &map, model_out, message, message_size);
    model_map_close(&map);
    if (status == KVT_OK) status = model_check_weights(*model_out, path, message, message_size);
    if (status != KVT_OK) {
        model_close(*model_out);
        *model_out = NULL;
        if (status == KVT_E_MEMORY) {
            model_map_say(status, message, message_size, path, "out of memory");
        }
    }
    return status;
}

/* ---- elements as fp32 ---- */

/*
 * KV of any float dtype as fp32, for the products. The integer path is the specification; vector
 * instructions give the same bits (NaN becomes quiet).
 */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef void (*convert_half)(const uint16_t *source, size_t count, float *target);

static void convert_fp16_plain(const uint16_t *source, size_t count, float *target)
{
    for (size_t i = 0; i < count; i++)
        target[i] = half_to_float(source[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) static void convert_fp16_f16c(const uint16_t *source,
                                                                   size_t count, float *target)
{
    size_t whole = count / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(half));
    }
    _mm256_zeroupper();
    convert_fp16_plain(source + whole, count - whole, target + whole);
}

__attribute__((target("avx512f"))) static void convert_fp16_avx512(const uint16_t *source,
                                                                   size_t count, float *target)
{
    size_t whole = count / 16 * 16;
    for (size_t i = 0; i < whole; i += 16) {
        __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        _mm512_storeu_ps(target + i, _mm512_cvtph_ps(half));
    }
    _mm256_zeroupper();
    convert_fp16_plain(source + whole, count - whole, target + whole);
}
#endif

#if defined(__x86_64__)
/* clang 14 has no name for it to ask by. */
static bool convert_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static convert_half convert_choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return convert_fp16_avx512;
    if (__builtin_cpu_supports("avx2") && convert_has_f16c()) return convert_fp16_f16c;
#endif
    return convert_fp16_plain;
}

void model_convert(uint8_t dtype, const void *source, size_t count, float *target)
{
    const uint16_t *half = source;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target, source, count * sizeof *target);
    } else if (dtype == KVT_DTYPE_FP16) {
        convert_choose()(half, count, target);
    } else if (dtype == KVT_DTYPE_FP8) {
        for (size_t i = 0; i < count; i++)
            target[i] = half_fp8_to_float(((const uint8_t *)source)[i]);
    } else {
        for (size_t i = 0; i < count; i++)
            target[i] = half_bf16_to_float(half[i]);
    }
}
