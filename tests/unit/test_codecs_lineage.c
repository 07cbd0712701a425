/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_codecs_lineage.c - which variant is made from which other, and in which way. That derived
 * and dropped records are right is tested with the records.
 */

#include "cases.h"

#include "codecs/codecs.h"

static kvt_variant named(const char *name)
{
    kvt_variant variant;
    assert_int_equal(kvt_variant_parse(name, &variant), KVT_OK);
    return variant;
}

TEST(each_pair_has_its_way)
{
    static const struct {
        const char *from, *to;
        codecs_way way;
    } pairs[] = {
        {"raw", "entropy:k1v1", CODECS_WAY_RECODE},
        {"lossless", "raw", CODECS_WAY_RECODE},
        {"lossless:fast", "planes:k2v2,g64", CODECS_WAY_RECODE},
        {"planes:k8v8,g64", "planes:k4v4,g64", CODECS_WAY_DROP},
        {"planes:k4v3,g64", "planes:k4v2,g64", CODECS_WAY_DROP},
        {"planes:k8v8,g64", "planes:k4v4,g32", CODECS_WAY_RECODE},
        {"planes:k8v8,g64", "entropy:k1v1", CODECS_WAY_RECODE},
        {"planes:k8v6,g64", "entropy:k1v1", CODECS_WAY_NONE},
        {"planes:k4v2,g64", "planes:k4v3,g64", CODECS_WAY_NONE},
        {"planes:k6v6,g64", "planes:k4v4,g32", CODECS_WAY_NONE},
        {"entropy:k0.25v0.5", "entropy:k0.75v1.5", CODECS_WAY_DERIVE},
        {"entropy:k0.25v0.5", "entropy:k0.25v1.5", CODECS_WAY_DERIVE},
        {"entropy:k0.25v0.5", "entropy:k0.5v1.5", CODECS_WAY_NONE},
        {"entropy:k0.25v0.5", "entropy:k0.75v1.5,vchan", CODECS_WAY_NONE},
        {"entropy:k0.75v1.5", "entropy:k0.25v0.5", CODECS_WAY_NONE},
        {"entropy:k0.25v0.5", "planes:k2v2,g64", CODECS_WAY_NONE},
        {"kivi:k8v8,g64", "kivi:k4v4,g64", CODECS_WAY_NONE},
        {"drop:stream,50+planes:k8v8,g64", "drop:stream,50+planes:k4v4,g64", CODECS_WAY_DROP},
        {"drop:stream,50+planes:k8v8,g64", "planes:k4v4,g64", CODECS_WAY_NONE},
        {"drop:stream,50+raw", "raw", CODECS_WAY_NONE},
        {"planes:k8v8,g64", "drop:stream,50+planes:k4v4,g64", CODECS_WAY_RECODE},
        {"drop:stream,50", "drop:stream,25", CODECS_WAY_RECODE},
        {"drop:stream,50", "drop:stream,50+entropy:k1v1", CODECS_WAY_RECODE},
        {"drop:scores,50+lossless", "drop:scores,25+planes:k4v4,g64", CODECS_WAY_RECODE},
        {"drop:scores,50+planes:k8v8,g64", "drop:scores,25+planes:k4v4,g64", CODECS_WAY_RECODE},
        {"drop:scores,50+planes:k6v6,g64", "drop:scores,25+planes:k4v4,g64", CODECS_WAY_NONE},
        {"drop:stream,25", "drop:stream,50", CODECS_WAY_NONE},
        {"drop:stream,50", "drop:scores,25", CODECS_WAY_NONE},
        {"drop:knorm,50", "drop:knorm,25", CODECS_WAY_NONE},
        {"drop:keydiff,50", "drop:keydiff,50+planes:k4v4,g64", CODECS_WAY_NONE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (codecs_made_from(named(pairs[i].from), named(pairs[i].to)) != pairs[i].way)
            fail_msg("%s to %s", pairs[i].from, pairs[i].to);
    }
}

TEST(unknown_codecs_make_nothing)
{
    const kvt_variant unknown = {.codec = 127};
    assert_int_equal(codecs_made_from(unknown, named("raw")), CODECS_WAY_NONE);
    assert_int_equal(codecs_made_from(unknown, unknown), CODECS_WAY_NONE);
}
