/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remembered.c - what is kept of an entry's own options when it leaves, for the bound of dual.c.
 *
 * A ladder outlives its entries, so an entry of a ladder keeps its reference. Options of its own
 * take 120 bytes each and go. In their place stay up to REMEMBERED_POINTS points of 8 bytes, in the
 * bytes of the entry that only a stored one needs: seconds, loss, and bytes in the highest tier.
 *
 * The points promise at least what the options did: each option has a point in its tier that takes
 * no more seconds, loses no more, and takes no more bytes. Numbers are rounded down, bytes in lower
 * tiers are left out, and options too many for the points share one that has the least of each
 * number. So a bound with points is a bound, and loose by what was
 * rounded. Options that the tenant's limits excluded when the entry left are not kept.
 */
#include "policy/engine.h"

#include <assert.h>
#include <string.h>

/* A point while it is chosen, in doubles; remembered_point is the same in 8 bytes. */
typedef struct sketch {
    double seconds;
    double loss;
    double bytes;
    double cost; /* at the present alpha, to compare points by */
    int tier;
} sketch;

/* The largest float that does not pass a number of 0 or more. A promise must not fall short, so
 * rounding goes down: the bound may be loose but never too low. */
static uint32_t remembered_bits(double number)
{
    float near = (float)number;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    return (double)near > number ? bits - 1 : bits;
}

/* Reads a float that was cut off to its upper bits. */
static double remembered_number(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return (double)number;
}

/* Returns the seconds of one use of a point, quality included. */
static double sketch_cost(const sketch *s, const entry *e, double alpha)
{
    assert(alpha >= 0.0);
    double loss = (double)e->sensitivity * s->loss;
    return s->seconds + alpha * (loss < 1.0 ? loss : 1.0);
}

/* The point that stands for two of one tier: `small` has the fewer bytes. Each number of the result
 * is the lesser one, so it promises at least what either point did. */
static sketch sketch_join(const sketch *large, const sketch *small, const entry *e, double alpha)
{
    assert(large->tier == small->tier && large->bytes >= small->bytes);
    sketch both = *small;
    if (large->seconds < both.seconds) both.seconds = large->seconds;
    if (large->loss < both.loss) both.loss = large->loss;
    both.cost = sketch_cost(&both, e, alpha);
    return both;
}

/* Adds a point in order: by tier, then most bytes first. */
static void sketch_add(sketch *points, uint32_t *count, const sketch *added)
{
    uint32_t at = (*count)++;
    for (; at > 0; at--) {
        const sketch *before = &points[at - 1];
        if (before->tier < added->tier) break;
        if (before->tier == added->tier && before->bytes >= added->bytes) break;
        points[at] = *before;
    }
    points[at] = *added;
}

/* Joins the two neighbours whose common point promises least that neither kept. Points of different
 * tiers are never joined, because bytes of one tier say nothing of another. The caller has more
 * points than there are tiers, so two of them share one. */
static void sketch_shrink(sketch *points, uint32_t *count, const entry *e, double alpha)
{
    assert(*count > 1);
    uint32_t best = 0;
    double least = UNLIMITED;
    for (uint32_t i = 0; i + 1 < *count; i++) {
        if (points[i].tier != points[i + 1].tier) continue;
        sketch both = sketch_join(&points[i], &points[i + 1], e, alpha);
        double promised = points[i + 1].cost - both.cost;
        if (promised >= least) continue;
        least = promised;
        best = i;
    }
    points[best] = sketch_join(&points[best], &points[best + 1], e, alpha);
    --*count;
    memmove(&points[best + 1], &points[best + 2], (*count - best - 1) * sizeof *points);
}

/* Draws at most REMEMBERED_POINTS points of the options of an entry that leaves. Neighbours are
 * joined until so few are left. The entry's option_count becomes the number of points and one; its
 * own options may be given back afterwards. */
void remembered_keep(const kvt_policy *policy, entry *e)
{
    assert(!e->shares);
    sketch points[KVT_OPTIONS_MAX];
    uint32_t count = 0;
    double alpha = entry_alpha(policy, e);
    for (uint8_t option = 1; option < e->option_count; option++) {
        const stored_option *o = entry_option(policy, e, option);
        if ((e->excluded >> option & 1) != 0) continue;
        int tier = option_home(o);
        sketch added = {.seconds = o->load_seconds + o->decode_seconds,
                        .loss = o->loss,
                        .bytes = (double)o->bytes[tier],
                        .tier = tier};
        added.cost = sketch_cost(&added, e, alpha);
        sketch_add(points, &count, &added);
    }
    while (count > REMEMBERED_POINTS)
        sketch_shrink(points, &count, e, alpha);
    for (uint32_t i = 0; i < count; i++) {
        e->points[i].seconds = (uint16_t)(remembered_bits(points[i].seconds) >> 16);
        e->points[i].loss = (uint16_t)(remembered_bits(points[i].loss) >> 16);
        e->points[i].bytes =
            (remembered_bits(points[i].bytes) & ~UINT32_C(3)) | (uint32_t)points[i].tier;
    }
    e->option_count = (uint8_t)(count + 1);
    e->excluded = 0;
}

/* Turns a point back into an option, for the bound alone. It has no variant and no lineage, and
 * fits as long as its tier's capacity lets it. */
void remembered_option(const kvt_policy *policy, const entry *e, uint32_t point, stored_option *out)
{
    assert(e->state == POLICY_ENTRY_GHOST && point + 1u < e->option_count);
    const remembered_point *from = &e->points[point];
    memset(out, 0, sizeof *out);
    int tier = (int)(from->bytes & 3);
    assert(tier < TIERS);
    double bytes = remembered_number(from->bytes & ~UINT32_C(3));
    out->load_seconds = remembered_number((uint32_t)from->seconds << 16);
    out->loss = remembered_number((uint32_t)from->loss << 16);
    out->bytes[tier] = (uint64_t)bytes;
    out->base_cost = out->load_seconds;
    out->fits = out->bytes[tier] <= policy->capacity[tier];
}
