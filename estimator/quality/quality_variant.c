/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_variant.c - names of what is measured, and what is measured when nobody says.
 * Thread rule: any thread.
 */
#include "estimator/quality/quality.h"

#include <kvterrace/codec.h>
#include <stdio.h>
#include <string.h>

/* Ends the name of a variant that is shown the row as one head. */
#define QUALITY_MERGED "@row"

/* The quick list is what stands first. */
static const char *const quality_usual[] = {
    "planes:k8v8,g64",
    "planes:k4v4,g64",
    "planes:k2v2,g64",
    "entropy:k0.25v0.5,vchan",
    "drop:stream,50+entropy:k0.5v1,vchan",
    "planes:k6v6,g64",
    "planes:k6v4,g64",
    "planes:k4v6,g64,vfirst",
    "planes:k3v3,g64",
    "entropy:k0.25v0.5",
    "entropy:k0.5v0.5",
    "entropy:k0.75v0.75",
    "entropy:k0.5v1,vchan",
    "rotate:b8",
    "rotate:b4",
    "rotate:b3",
    "kivi:k8v8,g64",
    "kivi:k4v4,g64",
    "kivi:k4v4,g64@row",
    "kivi:k2v2,g64",
    "drop:stream,50",
    "drop:knorm,50",
    "drop:keydiff,50",
    "drop:stream,25+entropy:k0.5v1,vchan",
};

enum {
    QUALITY_USUAL_COUNT = sizeof quality_usual / sizeof quality_usual[0],
    QUALITY_QUICK_COUNT = 5
};

const char *quality_variant_usual(uint32_t index, bool quick)
{
    uint32_t count = quick ? (uint32_t)QUALITY_QUICK_COUNT : (uint32_t)QUALITY_USUAL_COUNT;
    return index < count ? quality_usual[index] : NULL;
}

kvt_status quality_variant_parse(const char *name, quality_variant *variant)
{
    const char *at = strchr(name, '@');
    size_t length = at != NULL ? (size_t)(at - name) : strlen(name);
    char plain[QUALITY_NAME_BYTES];
    *variant = (quality_variant){.merged = at != NULL};
    if (length >= sizeof plain - sizeof QUALITY_MERGED) return KVT_E_PARSE;
    if (at != NULL && strcmp(at, QUALITY_MERGED) != 0) return KVT_E_PARSE;
    memcpy(plain, name, length);
    plain[length] = '\0';
    if (kvt_variant_parse(plain, &variant->variant) != KVT_OK) return KVT_E_PARSE;
    (void)kvt_variant_format(variant->variant, plain, sizeof plain);
    (void)snprintf(variant->name, sizeof variant->name, "%.*s%s",
                   (int)(sizeof plain - sizeof QUALITY_MERGED), plain,
                   variant->merged ? QUALITY_MERGED : "");
    return KVT_OK;
}

kvt_variant quality_variant_key(const quality_variant *variant)
{
    kvt_variant key = variant->variant;
    if (variant->merged) key.mode |= QUALITY_MERGED_MODE;
    return key;
}
