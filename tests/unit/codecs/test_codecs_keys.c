/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_keys.c - keys of dropped records at contiguous positions, against an independent
 * computation in double. test_estimator_model.c holds them against the reference decoder.
 */
#include "codecs/keys_rerotate.h"
#include "codecs_support.h"

#include <math.h>

enum { KEYS_TOKENS = 150 };

static const kvt_layout shape = {.layers = 2,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .dtype = KVT_DTYPE_FP32,
                                 .tokens = KEYS_TOKENS,
                                 .tokens_may_drop = 1};

/* Turns one head by `angle` positions with complex numbers' rule, all in double. */
static void turn_exactly(double *head, uint32_t rotary, uint8_t pairing, double base, double by)
{
    for (uint32_t j = 0; j < rotary / 2; j++) {
        const double angle = by * pow(base, -2.0 * j / rotary);
        double *x = head + (pairing == KVT_ROPE_HALVES ? j : 2 * j);
        double *y = pairing == KVT_ROPE_HALVES ? x + rotary / 2 : x + 1;
        const double old = *x;
        *x = old * cos(angle) - *y * sin(angle);
        *y = *y * cos(angle) + old * sin(angle);
    }
}

/* Encodes with half of the tokens dropped, decodes layer 1's keys, turns them. */
TEST(record_keys_turn_in_double)
{
    for (unsigned n = 0; n < 4; n++) {
        const uint16_t rotary = n < 2 ? 32 : 20;
        const kvt_rope rope = {.struct_size = sizeof rope,
                               .rotary_dim = rotary,
                               .pairing = n % 2,
                               .base = n < 2 ? 10000.0 : 500000.0};
        uint32_t kept[KEYS_TOKENS];
        kvt_record_info info;
        encoded e = encoded_make(shape, "drop:knorm,50", NULL);
        assert_status(kvt_record_parse(e.record.data, e.record.bytes, &info), KVT_OK);
        const uint32_t count = info.stored_tokens;
        assert_int_equal(count, KEYS_TOKENS / 2);
        assert_status(kvt_record_kept_tokens(e.record.data, e.record.bytes, 1, kept, count),
                      KVT_OK);
        const uint64_t bytes = (uint64_t)count * 64 * sizeof(float);
        float *keys = test_alloc(bytes);
        float *turned = test_alloc(bytes);
        assert_status(kvt_record_decode_matrix(e.record.data, e.record.bytes, NULL, 1, KVT_SIDE_K,
                                               keys, bytes, e.scratch.data, e.scratch.bytes),
                      KVT_OK);
        memcpy(turned, keys, bytes);
        assert_status(
            kvt_keys_rerotate(&info.spec.layout, &rope, kept, count, 7000, 3, turned, bytes),
            KVT_OK);
        for (uint32_t at = 0; at < count * 64; at += 32) {
            double head[32];
            for (uint32_t c = 0; c < 32; c++) {
                head[c] = (double)keys[at + c];
            }
            const double by = 3.0 + at / 64 - (7000.0 + kept[at / 64]);
            turn_exactly(head, rotary, rope.pairing, rope.base, by);
            for (uint32_t c = 0; c < 32; c++) {
                const double size = 1.0 + fabs(head[c]);
                assert_true(fabs(head[c] - (double)turned[at + c]) < 2e-6 * size);
                if (c >= rotary) assert_true(turned[at + c] == keys[at + c]);
            }
        }
    }
}

/* What does not fit is refused, and the keys stay as they are. */
TEST(wrong_keys_are_refused)
{
    const kvt_rope good = {.struct_size = sizeof good, .rotary_dim = 32, .base = 10000.0};
    const double frequencies[16] = {7.0};
    const struct {
        uint32_t kept[2];
        uint64_t bytes;
        uint32_t new_first;
        uint8_t dtype;
        kvt_rope rope;
        kvt_status wanted;
    } cases[] = {
        {{3, 9}, 512, 0, KVT_DTYPE_FP32, good, KVT_OK},
        {{3, 9}, 511, 0, KVT_DTYPE_FP32, good, KVT_E_ARGUMENT},
        {{3, 9}, 256, 0, KVT_DTYPE_FP32, good, KVT_E_ARGUMENT},
        {{9, 9}, 512, 0, KVT_DTYPE_FP32, good, KVT_E_ARGUMENT},
        {{3, KEYS_TOKENS}, 512, 0, KVT_DTYPE_FP32, good, KVT_E_ARGUMENT},
        {{3, 9}, 512, UINT32_MAX - 1, KVT_DTYPE_FP32, good, KVT_E_ARGUMENT},
        {{3, 9}, 128, 0, KVT_DTYPE_FP8, good, KVT_E_UNSUPPORTED},
        {{3, 9}, 512, 0, 9, good, KVT_E_ARGUMENT},
        {{3, 9}, 512, 0, KVT_DTYPE_FP32, {.rotary_dim = 32, .base = 1e4}, KVT_E_ARGUMENT},
        {{3, 9}, 512, 0, KVT_DTYPE_FP32, {sizeof good, 31, 0, 0, 1e4, NULL}, KVT_E_UNSUPPORTED},
        {{3, 9}, 512, 0, KVT_DTYPE_FP32, {sizeof good, 34, 0, 0, 1e4, NULL}, KVT_E_UNSUPPORTED},
        {{3, 9}, 512, 0, KVT_DTYPE_FP32, {sizeof good, 2000, 0, 0, 1e4, NULL}, KVT_E_UNSUPPORTED},
        {{3, 9}, 512, 0, KVT_DTYPE_FP32, {sizeof good, 32, 2, 0, 1e4, NULL}, KVT_E_UNSUPPORTED},
        {{3, 9}, 512, 0, KVT_DTYPE_FP32, {sizeof good, 32, 0, 0, 1.0, NULL}, KVT_E_ARGUMENT},
        {{3, 9},
         512,
         0,
         KVT_DTYPE_FP32,
         {sizeof good, 32, 0, 0, (double)NAN, NULL},
         KVT_E_ARGUMENT},
        {{3, 9},
         512,
         0,
         KVT_DTYPE_FP32,
         {sizeof good, 32, 0, 0, 0, frequencies},
         KVT_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float keys[128];
        float before[128];
        kvt_layout layout = shape;
        layout.dtype = cases[i].dtype;
        for (unsigned c = 0; c < 128; c++) {
            keys[c] = before[c] = (float)c;
        }
        assert_status(kvt_keys_rerotate(&layout, &cases[i].rope, cases[i].kept, 2, 0,
                                        cases[i].new_first, keys, cases[i].bytes),
                      cases[i].wanted);
        assert_int_equal(memcmp(keys, before, sizeof keys) == 0, cases[i].wanted != KVT_OK);
    }
}
