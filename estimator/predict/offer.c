/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer.c - from measured curves and what is known of an entry to what the engine decides on.
 *
 * The store, the live replay (through the store) and the simulator offer entries by this file
 * alone, so that one model and one entry give them the same numbers
 * (docs/decisions/0015-one-offer.md). It is called for every admitted entry: arithmetic alone, no
 * allocation, no lock, no I/O. Any thread.
 */
#include "estimator/predict/predict.h"

#include "codecs/codecs.h"
#include "codecs/record_groups.h"

#include <kvterrace/codec.h>
#include <kvterrace/prefill.h>

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* A layout has at most 2^46 bytes, so every product with a share stays below 2^53, where doubles
 * count bytes exactly. */
#define COST_SHARE_MAX 64.0

static bool cost_rate_is_valid(double rate)
{
    return rate > 0.0 && isfinite(rate);
}

static bool cost_seconds_are_valid(double seconds)
{
    return seconds >= 0.0 && isfinite(seconds);
}

static bool cost_model_is_valid(const kvt_cost_model *model, uint32_t *tiers_out)
{
    uint32_t tiers = 0;
    if (model->variant_count > KVT_VARIANTS_MAX || model->parallel_codecs == 0) return false;
    if (!(model->gpu_share >= 0.0 && model->gpu_share <= 1.0)) return false;
    if (!cost_seconds_are_valid(model->link.bytes_per_s)) return false;
    if (!cost_seconds_are_valid(model->link.request_seconds)) return false;
    for (int tier = KVT_TIER_NONE + 1; tier < KVT_TIER_COUNT; tier++) {
        if (!model->present[tier]) continue;
        tiers++;
        if (!cost_rate_is_valid(model->read[tier].bytes_per_s)) return false;
        if (!cost_seconds_are_valid(model->read[tier].request_seconds)) return false;
    }
    for (uint32_t i = 0; i < model->variant_count; i++) {
        const kvt_codec_curve *curve = &model->variants[i];
        if (!(curve->stored_share > 0.0 && curve->stored_share <= COST_SHARE_MAX)) return false;
        if (!cost_rate_is_valid(curve->decode_bytes_per_s)) return false;
        if (!cost_rate_is_valid(curve->encode_bytes_per_s)) return false;
        if (!cost_seconds_are_valid(curve->gpu_bytes_per_s)) return false; /* 0: not measured */
        if (!(curve->loss >= 0.0 && curve->loss <= 1.0)) return false;
        if (!(curve->loss_upper >= 0.0 && curve->loss_upper <= 1.0)) return false;
    }
    *tiers_out = tiers;
    return 1u + tiers * model->variant_count <= KVT_OPTIONS_MAX;
}

/* How far an entry may miss the expected size of a variant before its commit needs room that was
 * not planned. */
#define OFFER_SIZE_MARGIN 1.02

/* What a variant costs whatever the tier; worked out once per call, because divisions are most of
 * the time that this file takes. */
typedef struct cost_variant {
    uint64_t planned_bytes;
    uint64_t expected_bytes;
    double decode_seconds;
    double encode_seconds;
    double kernel_seconds; /* of decoding by a GPU; INFINITY: the CPU does it */
    uint32_t steps;        /* of decoding it while it is read; of groups 0: all at once */
} cost_variant;

/* Sizes of an entry that all its variants start from. */
typedef struct offer_size {
    uint64_t source_bytes;
    uint64_t raw_bytes;  /* of its raw record, exactly */
    uint64_t head_bytes; /* of them, header and table */
} offer_size;

static kvt_status offer_measure(const kvt_layout *layout, offer_size *size)
{
    kvt_status status = kvt_layout_bytes(layout, &size->source_bytes);
    if (status != KVT_OK) return status;
    status = codecs_raw_record_bytes(layout, &size->head_bytes, &size->raw_bytes);
    return status == KVT_OK ? KVT_OK : KVT_E_ARGUMENT;
}

/* Source bytes of the tokens that a record of the variant stores raw. */
static double offer_sink_bytes(const kvt_layout *layout, uint64_t source_bytes, kvt_variant variant,
                               uint32_t first_position)
{
    const uint32_t sinks = codecs_sink_tokens(variant, first_position, layout->tokens);
    return sinks == 0 ? 0.0 : (double)source_bytes / (double)layout->tokens * (double)sinks;
}

double offer_coded_share(const kvt_layout *layout, kvt_variant variant, uint32_t first_position,
                         uint64_t record_bytes)
{
    offer_size size;
    if (offer_measure(layout, &size) != KVT_OK) return (double)NAN;
    const double sinks = offer_sink_bytes(layout, size.source_bytes, variant, first_position);
    const double coded = (double)size.source_bytes - sinks;
    if (!(coded > 0)) return (double)NAN;
    return ((double)record_bytes - (double)size.head_bytes - sinks) / coded;
}

/* A record is whole grains, and stored raw rather than larger. */
static uint64_t offer_record_bytes(const offer_size *size, double payload)
{
    assert(payload >= 0 && size->head_bytes <= size->raw_bytes);
    double exact = payload + (double)size->head_bytes;
    if (exact >= (double)size->raw_bytes) return size->raw_bytes;
    uint64_t bytes = (uint64_t)exact;
    if ((double)bytes < exact) bytes++;
    return (bytes + KVT_RECORD_ALIGN - 1u) / KVT_RECORD_ALIGN * KVT_RECORD_ALIGN;
}

/* Kernels take no opaque bytes, and nothing is known of those that were not measured. */
static double offer_kernel_seconds(const kvt_codec_curve *curve, const kvt_layout *layout,
                                   uint64_t source_bytes)
{
    if (layout->dtype == KVT_DTYPE_OPAQUE || !(curve->gpu_bytes_per_s > 0)) return INFINITY;
    return (double)source_bytes / curve->gpu_bytes_per_s;
}

/* Every byte of the entry as it is: token drop has raw as its codec, too, but fewer rows. */
static bool offer_is_raw(kvt_variant variant)
{
    return variant.codec == KVT_CODEC_RAW && codecs_drop_method(variant) == 0;
}

/* A size that a record of the entry has shown counts alone. */
static void offer_take_known(const kvt_offer *offer, const kvt_codec_curve *curve,
                             cost_variant *out)
{
    for (uint32_t i = 0; i < offer->known_count; i++) {
        const kvt_known_size *known = &offer->known[i];
        if (memcmp(&known->variant, &curve->variant, sizeof known->variant) != 0) continue;
        out->planned_bytes = out->expected_bytes = known->bytes;
    }
}

/* A raw record's size is known exactly; of another variant the share that was learned of such
 * entries counts, or the measured one, both without the chain's sinks, which are stored raw. */
static void offer_fill_bytes(const kvt_offer *offer, const offer_size *size,
                             const kvt_codec_curve *curve, uint32_t number, cost_variant *out)
{
    double share = curve->stored_share;
    bool raw = offer_is_raw(curve->variant);
    if (offer->shares != NULL && !isnan(offer->shares[number])) share = offer->shares[number];
    const double sinks =
        offer_sink_bytes(&offer->layout, size->source_bytes, curve->variant, offer->first_position);
    double payload = share * ((double)size->source_bytes - sinks) + sinks;
    out->expected_bytes = raw ? size->raw_bytes : offer_record_bytes(size, payload);
    out->planned_bytes =
        raw ? size->raw_bytes : offer_record_bytes(size, payload * OFFER_SIZE_MARGIN);
    offer_take_known(offer, curve, out);
}

/* Adds a group's record and times to every variant: an option stores each group in its variant or,
 * where a lossy one is not for the group, in an exact one. */
static void offer_add_group(const kvt_cost_model *model, const kvt_offer *offer, uint32_t group,
                            uint32_t count, cost_variant *variants)
{
    const kvt_offer_groups *groups = offer->groups;
    const bool lossy = (groups->lossy >> group & 1) != 0;
    const kvt_offer one = {.layout = groups->layouts[group],
                           .first_position = offer->first_position,
                           .shares = lossy ? offer->shares : NULL};
    offer_size size;
    kvt_status status = offer_measure(&one.layout, &size);
    assert(status == KVT_OK);
    (void)status;
    const double bytes = (double)size.source_bytes / (double)model->parallel_codecs;
    for (uint32_t i = 0; i < count; i++) {
        const bool other = model->variants[i].loss > 0.0 && !lossy;
        const kvt_codec_curve *curve = &model->variants[other ? groups->exact : i];
        cost_variant cost;
        offer_fill_bytes(&one, &size, curve, i, &cost);
        variants[i].planned_bytes += cost.planned_bytes;
        variants[i].expected_bytes += cost.expected_bytes;
        variants[i].decode_seconds += bytes / curve->decode_bytes_per_s;
        variants[i].encode_seconds += bytes / curve->encode_bytes_per_s;
        variants[i].kernel_seconds += offer_kernel_seconds(curve, &one.layout, size.source_bytes);
    }
}

/* Sizes and times of the groups add up. The losses are the curves', because the groups that a lossy
 * variant is for are all the layers that it was measured with. */
static void offer_fill_groups(const kvt_cost_model *model, const kvt_offer *offer, uint32_t count,
                              cost_variant *variants)
{
    for (uint32_t i = 0; i < count; i++)
        variants[i] = (cost_variant){.planned_bytes = RECORD_GROUPS_HEAD_BYTES,
                                     .expected_bytes = RECORD_GROUPS_HEAD_BYTES};
    for (uint32_t i = 0; i < offer->groups->count; i++)
        offer_add_group(model, offer, i, count, variants);
    for (uint32_t i = 0; i < count; i++)
        offer_take_known(offer, &model->variants[i], &variants[i]);
}

static void cost_fill_variants(const kvt_cost_model *model, const kvt_offer *offer,
                               const offer_size *size, uint32_t count, cost_variant *variants)
{
    assert(count <= KVT_VARIANTS_MAX);
    double per_thread = (double)size->source_bytes / (double)model->parallel_codecs;
    if (offer->groups != NULL) {
        offer_fill_groups(model, offer, count, variants);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const kvt_codec_curve *curve = &model->variants[i];
        offer_fill_bytes(offer, size, curve, i, &variants[i]);
        variants[i].decode_seconds = per_thread / curve->decode_bytes_per_s;
        variants[i].encode_seconds = per_thread / curve->encode_bytes_per_s;
        variants[i].kernel_seconds =
            offer_kernel_seconds(curve, &offer->layout, size->source_bytes);
        variants[i].steps =
            codecs_arriving_steps(&offer->layout, curve->variant, variants[i].expected_bytes);
    }
}

/*
 * Codings on top of each other. The losses of two add up at most, which the engine counts where the
 * codec changes. Within a codec it counts nothing, so a variant must lose a quarter of the next one
 * there. Without such codings an entry that was stored in a fine lossy variant while there was room
 * could never become a coarse one, only leave.
 */
#define OFFER_AGAIN_SHARE 0.25

/* How the engine may plan to make one lossy variant from another. Exact variants serve every other
 * one, which the engine knows by itself. */
typedef enum offer_way {
    OFFER_WAY_NONE,
    OFFER_WAY_NESTED, /* nothing is lost a second time */
    OFFER_WAY_AGAIN
} offer_way;

static offer_way offer_way_from(const kvt_codec_curve *to, const kvt_codec_curve *from)
{
    if (!(to->loss > 0.0) || !(from->loss > 0.0) || to->stored_share >= from->stored_share)
        return OFFER_WAY_NONE;
    if (codecs_made_from(from->variant, to->variant) != CODECS_WAY_NONE) return OFFER_WAY_NESTED;
    if (codecs_drop_method(from->variant) != 0) return OFFER_WAY_NONE; /* its tokens are gone */
    const bool counted = from->variant.codec != to->variant.codec;
    return counted || from->loss <= OFFER_AGAIN_SHARE * to->loss ? OFFER_WAY_AGAIN : OFFER_WAY_NONE;
}

/* Numbers of the variants, large ones first: what one is made of stands before it. */
static void offer_order(const kvt_cost_model *model, uint32_t variants,
                        uint8_t order[KVT_VARIANTS_MAX])
{
    for (uint32_t i = 0; i < variants; i++) {
        uint32_t at = i;
        for (; at > 0; at--) {
            const kvt_codec_curve *before = &model->variants[order[at - 1]];
            if (before->stored_share >= model->variants[i].stored_share) break;
            order[at] = order[at - 1];
        }
        order[at] = (uint8_t)i;
    }
}

/* Fills made_from of all options, and raises the bounds of those that are coded from lossy ones by
 * the bound of these, raised likewise; what would pass the limit is no source. Option
 * 1 + i + tier * variants is variant i, so its sources are the same in every tier. */
static void cost_fill_lineage(const kvt_cost_model *model, uint32_t variants, kvt_option *options,
                              uint32_t count)
{
    const double limit = model->loss_limit > 0.0 ? model->loss_limit : (double)INFINITY;
    uint8_t order[KVT_VARIANTS_MAX];
    assert(count <= KVT_OPTIONS_MAX); /* a bit each */
    offer_order(model, variants, order);
    for (uint32_t at = 0; at < variants; at++) {
        const uint32_t to = order[at];
        const double own = options[1 + to].loss_upper;
        double most = 0.0;
        uint32_t sources = 0;
        for (uint32_t k = 0; k < at; k++) {
            const uint32_t from = order[k];
            const offer_way way = offer_way_from(&model->variants[to], &model->variants[from]);
            const double carried = way == OFFER_WAY_AGAIN ? options[1 + from].loss_upper : 0.0;
            if (way == OFFER_WAY_NONE || own + carried > limit) continue;
            most = fmax(most, carried);
            for (uint32_t i = 1 + from; i < count; i += variants)
                sources |= UINT32_C(1) << i;
        }
        for (uint32_t i = 1 + to; i < count; i += variants) {
            options[i].made_from = sources;
            options[i].loss_upper = fmin(own + most, 1.0);
        }
    }
}

void kvt_offer_losses(const kvt_codec_curve *curve, double factor, double factor_upper,
                      double *loss_out, double *upper_out)
{
    *loss_out = curve->loss;
    *upper_out = fmax(curve->loss_upper, curve->loss);
    if (!(curve->loss > 0.0) || factor <= 0.0) return;
    /* Observations of the class take the place of what its bound was widened by for want of them:
     * the factor's own bound starts from a class that may differ by as much (online_loss.c). */
    if (curve->loss_widening > 1.0 && factor_upper != 1.0)
        *upper_out = fmax(*upper_out / curve->loss_widening, curve->loss);
    *loss_out = fmin(curve->loss * fmin(fmax(factor, 1e-6), 1e6), 1.0);
    *upper_out = fmax(fmin(*upper_out * factor_upper, 1.0), *loss_out);
}

/*
 * Mixes the seconds of gets into a GPU's memory into an option's. With kernels the stored bytes
 * cross the link: behind the read, or beside it, or in place of the read of memory; and none of
 * those that lie in the GPU's memory. Without them the CPU decodes, and raw bytes cross.
 */
static void cost_mix_gpu(const kvt_cost_model *model, int tier, double read_seconds,
                         uint64_t source_bytes, const cost_variant *cost, kvt_option *option)
{
    const bool kernels = isfinite(cost->kernel_seconds), device = model->arriving[tier];
    const bool crosses = tier != KVT_TIER_HBM || !device; /* an emulated GPU is the host's memory */
    const uint64_t bytes = kernels ? cost->expected_bytes : source_bytes;
    const double link = model->link.request_seconds + (double)bytes / model->link.bytes_per_s;
    double load = option->load_seconds, decode = option->decode_seconds + link;
    if (kernels && crosses && device) {
        decode = offer_decode_beside(read_seconds, link + cost->kernel_seconds, cost->steps);
    } else if (kernels) {
        load = crosses ? link : 0.0;
        decode = cost->kernel_seconds;
    }
    option->load_seconds += model->gpu_share * (load - option->load_seconds);
    option->decode_seconds += model->gpu_share * (decode - option->decode_seconds);
}

/* One get is one striped set of requests: one fixed cost, then the tier's whole bandwidth. */
static void cost_fill_option(const kvt_cost_model *model, const kvt_offer *offer, int tier,
                             double seconds_per_byte, const kvt_codec_curve *curve,
                             uint64_t source_bytes, const cost_variant *cost, kvt_option *option)
{
    memset(option, 0, sizeof *option);
    option->variant = curve->variant;
    option->bytes[tier] = cost->planned_bytes;
    option->read_bytes[tier] = cost->expected_bytes;
    const double read_seconds = (double)cost->expected_bytes * seconds_per_byte;
    option->load_seconds = model->read[tier].request_seconds + read_seconds;
    option->decode_seconds = offer_decode_beside(read_seconds, cost->decode_seconds,
                                                 model->arriving[tier] ? cost->steps : 1);
    if (model->gpu_share > 0.0 && model->link.bytes_per_s > 0.0)
        cost_mix_gpu(model, tier, read_seconds, source_bytes, cost, option);
    option->encode_seconds = cost->encode_seconds;
    kvt_offer_losses(curve, offer->loss_factor, offer->loss_factor_upper, &option->loss,
                     &option->loss_upper);
}

double kvt_offer_recompute_seconds(const kvt_prefill *prefill, kvt_hole_mode holes,
                                   uint32_t first_position, uint32_t tokens,
                                   uint32_t request_tokens)
{
    uint32_t end = first_position + tokens;
    if (holes != KVT_HOLES_CONTIGUOUS || tokens == 0)
        return kvt_prefill_seconds(prefill, first_position, end);
    uint32_t whole = request_tokens > end ? request_tokens : end;
    return kvt_prefill_seconds(prefill, 0, whole) * (double)tokens / (double)whole;
}

static double offer_none_seconds(const kvt_cost_model *model, kvt_hole_mode holes,
                                 const kvt_offer *offer)
{
    bool opaque = offer->layout.dtype == KVT_DTYPE_OPAQUE && offer->groups == NULL;
    if (opaque || offer->recompute_seconds != 0.0) return offer->recompute_seconds;
    return kvt_offer_recompute_seconds(&model->prefill, holes, offer->first_position,
                                       offer->layout.tokens, offer->request_tokens);
}

/* A request has at least the entry and what precedes it: its share is at most that of these. */
kvt_status kvt_offer_describe(const kvt_cost_model *model, kvt_hole_mode holes,
                              const kvt_offer *offer, kvt_policy_entry *entry_out)
{
    assert(model != NULL && offer != NULL && entry_out != NULL);
    *entry_out = (kvt_policy_entry){.struct_size = sizeof *entry_out};
    if (offer->layout.tokens > UINT32_MAX - offer->first_position) return KVT_E_ARGUMENT;
    double seconds = offer_none_seconds(model, holes, offer);
    if (!cost_seconds_are_valid(seconds)) return KVT_E_ARGUMENT;
    uint32_t least = offer->first_position + offer->layout.tokens;
    entry_out->handle = offer->handle;
    entry_out->parent = offer->parent;
    entry_out->tokens = offer->layout.tokens;
    entry_out->request_tokens = offer->request_tokens > least ? offer->request_tokens : least;
    entry_out->recompute_seconds = seconds;
    entry_out->sensitivity = offer->sensitivity;
    entry_out->class_id = offer->class_id;
    entry_out->tenant = offer->tenant;
    return KVT_OK;
}

kvt_status kvt_offer_build(const kvt_cost_model *model, kvt_hole_mode holes, const kvt_offer *offer,
                           kvt_option *options, kvt_policy_entry *entry_out)
{
    assert(model != NULL && offer != NULL && options != NULL && entry_out != NULL);
    uint32_t tiers, count = 1;
    offer_size size = {.source_bytes = 0};
    cost_variant variants[KVT_VARIANTS_MAX];
    kvt_status status = kvt_offer_describe(model, holes, offer, entry_out);
    if (status == KVT_OK) status = offer_measure(&offer->layout, &size);
    if (status == KVT_OK && !cost_model_is_valid(model, &tiers)) status = KVT_E_ARGUMENT;
    if (status != KVT_OK) return status;

    uint32_t variant_count = model->variant_count;
    if (offer->variants != 0 && offer->variants < variant_count) variant_count = offer->variants;
    memset(&options[KVT_OPTION_NONE], 0, sizeof options[KVT_OPTION_NONE]);
    options[KVT_OPTION_NONE].load_seconds = entry_out->recompute_seconds;
    cost_fill_variants(model, offer, &size, variant_count, variants);
    for (int tier = KVT_TIER_NONE + 1; tier < KVT_TIER_COUNT; tier++) {
        if (!model->present[tier]) continue;
        double seconds_per_byte = 1.0 / model->read[tier].bytes_per_s;
        for (uint32_t i = 0; i < variant_count; i++) {
            cost_fill_option(model, offer, tier, seconds_per_byte, &model->variants[i],
                             size.source_bytes, &variants[i], &options[count++]);
        }
    }
    assert(count == 1 + tiers * variant_count);
    cost_fill_lineage(model, variant_count, options, count);
    entry_out->options = options;
    entry_out->option_count = count;
    return KVT_OK;
}

/* ---- prefill: a FLOP model of two coefficients ---- */

/*
 * Llama-3.1-8B has L = 32 layers and model width d = 4096. Per layer and token the matrices hold,
 * in units of d^2: queries 1, keys and values together 0.5 (8 of 32 heads), output 1, and the
 * SwiGLU MLP 10.5 (three matrices of 3.5). Two FLOPs per weight make 26 L d^2 per token. Causal
 * attention spends 4 L d per pair of tokens, half of the pairs count, so 2 L d (end^2 - start^2).
 */
#define PREFILL_LLAMA_LAYERS 32.0
#define PREFILL_LLAMA_WIDTH  4096.0
#define PREFILL_TOKEN_FLOPS                                                                        \
    (26.0 * PREFILL_LLAMA_LAYERS * PREFILL_LLAMA_WIDTH * PREFILL_LLAMA_WIDTH)
#define PREFILL_PAIR_FLOPS (2.0 * PREFILL_LLAMA_LAYERS * PREFILL_LLAMA_WIDTH)

/*
 * What a GPU sustains is imported, not measured here: the vendor's dense bf16 peak (A100 312e12,
 * H100 SXM 989e12 FLOP/s, NVIDIA data tables) times the utilisation that published prefill times
 * imply, 0.50 and 0.60. For comparison, NVIDIA's 407 ms for 5,000 tokens of a 70B model in fp8 on
 * two H100 is 0.45, and a measured RTX 3090 reaches 60e12 FLOP/s. A measured model of the profile
 * replaces the preset where one exists.
 */
typedef struct prefill_preset {
    const char *name;
    double flops_per_s;
} prefill_preset;

static const prefill_preset prefill_presets[] = {
    {"llama-3.1-8b:a100", 156e12},
    {"llama-3.1-8b:h100", 593e12},
};

kvt_status kvt_prefill_preset_get(const char *name, kvt_prefill *out)
{
    assert(name != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof prefill_presets / sizeof prefill_presets[0]; i++) {
        if (strcmp(prefill_presets[i].name, name) != 0) continue;
        out->linear_seconds_per_token = PREFILL_TOKEN_FLOPS / prefill_presets[i].flops_per_s;
        out->square_seconds_per_token2 = PREFILL_PAIR_FLOPS / prefill_presets[i].flops_per_s;
        return KVT_OK;
    }
    return KVT_E_ARGUMENT;
}

const char *kvt_prefill_preset_name(size_t index)
{
    const size_t count = sizeof prefill_presets / sizeof prefill_presets[0];
    return index < count ? prefill_presets[index].name : NULL;
}

double kvt_prefill_seconds(const kvt_prefill *prefill, uint32_t start, uint32_t end)
{
    assert(prefill != NULL);
    if (end <= start) return 0.0;
    double count = (double)end - (double)start;
    double sum = (double)end + (double)start;
    return prefill->linear_seconds_per_token * count +
           prefill->square_seconds_per_token2 * count * sum;
}

/* ---- break-even points ---- */

/*
 * Variants are compared with raw by the bandwidth of the device, loading with recomputing by the
 * length of the context. The terms are those of kvt_offer_build (docs/PROFILE.md has the
 * formulas); the rounding of stored bytes to KVT_RECORD_ALIGN is left out.
 */

double kvt_load_seconds(const kvt_affine *read, const kvt_codec_curve *variant, double source_bytes)
{
    assert(read != NULL && variant != NULL);
    double seconds =
        read->request_seconds + variant->stored_share * source_bytes / read->bytes_per_s;
    if (variant->decode_bytes_per_s > 0.0) seconds += source_bytes / variant->decode_bytes_per_s;
    return seconds;
}

/* Seconds per source byte; no speed means that decoding is free. */
static double break_even_decode(const kvt_codec_curve *variant)
{
    return variant->decode_bytes_per_s > 0.0 ? 1.0 / variant->decode_bytes_per_s : 0.0;
}

double kvt_break_even_bandwidth(const kvt_codec_curve *raw, const kvt_codec_curve *variant)
{
    assert(raw != NULL && variant != NULL);
    const double saved = raw->stored_share - variant->stored_share;
    const double decode = break_even_decode(variant) - break_even_decode(raw);
    if (saved <= 0.0) return 0.0; /* at low bandwidths it is no better, whatever it does above */
    return decode > 0.0 ? saved / decode : INFINITY;
}

double kvt_break_even_tokens(const kvt_affine *read, const kvt_codec_curve *variant,
                             double bytes_per_token, const kvt_prefill *prefill)
{
    assert(read != NULL && variant != NULL && prefill != NULL);
    const double load_per_token =
        bytes_per_token * (variant->stored_share / read->bytes_per_s + break_even_decode(variant));
    /* Prefill less load is a convex parabola of the tokens: from its larger root on loading wins
     * for good. */
    const double square = prefill->square_seconds_per_token2;
    const double linear = prefill->linear_seconds_per_token - load_per_token;
    const double fixed = prefill->fixed_seconds - read->request_seconds;
    if (square <= 0.0) {
        if (linear <= 0.0) return linear == 0.0 && fixed >= 0.0 ? 0.0 : INFINITY;
        return fmax(0.0, -fixed / linear);
    }
    const double root = linear * linear - 4.0 * square * fixed;
    if (root < 0.0) return 0.0; /* loading wins at every length */
    /* The form without cancellation: fixed is negative as a rule, so the roots differ in sign. */
    const double sum = -linear + sqrt(root);
    if (linear <= 0.0) return fmax(0.0, sum / (2.0 * square));
    return fmax(0.0, -2.0 * fixed / (linear + sqrt(root)));
}
