/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_model_config.c - any bytes as a model's config.json. What is taken is a configuration that a
 * model can have: within its bounds, with frequencies that are none of NaN and infinity.
 */
#include "estimator/model/model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char message[256] = "";
    model_config config;
    /* An exact copy, so that a sanitizer sees a read past the end. */
    uint8_t *exact = malloc(size + (size == 0));
    if (exact == NULL) abort();
    if (size > 0) memcpy(exact, data, size);
    const kvt_status status =
        model_config_parse("fuzz", exact, size, &config, message, sizeof message);
    free(exact);
    if (status != KVT_OK) {
        if (status != KVT_E_PARSE && status != KVT_E_CORRUPT && status != KVT_E_UNSUPPORTED)
            abort();
        if (message[0] == '\0') abort();
        return 0;
    }
    if (model_config_fault(&config) != NULL) abort();
    if (model_weight_count(&config) >= UINT64_C(1) << 62) abort();
    for (uint32_t i = 0; i < model_rotary_dim(&config) / 2; i++) {
        const double frequency = model_frequency(&config, i);
        if (!(frequency >= 0.0 && frequency <= 1.0)) abort();
    }
    return 0;
}
