/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_menus.c - the variants of AdaptCache's experiment: from the ladders of published
 * losses, or from the quality rows of a measured profile. One thread.
 *
 * Of a profile a variant counts when it was measured on all three classes. The paper's menu is raw,
 * KIVI and StreamingLLM; ours is raw and what no other variant beats in both size and mean loss.
 * Among the variants of one method, from large to small, no task's loss falls: a smaller one that
 * measured better did so by noise, and a frontier must not be bought with it.
 *
 * What a profile says of the spread between entries is that of their KL. A loss grows more slowly
 * than its KL; the power is taken from the curves themselves, and the spread of losses is that of
 * the KL times the power.
 */
#include "adaptcache_experiment.h"

#include "estimator/exchange/exchange.h"
#include "lab/private.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MENU_CURVES_MAX = 96 };

#define RAW_BITS   16.0
#define LEAST_LOSS 1e-6 /* a lossy variant whose loss measured as 0 is not exact for that */

/* One variant on all three classes. */
typedef struct menu_curve {
    kvt_variant variant;
    double share[EXPERIMENT_TASKS], loss[EXPERIMENT_TASKS];
    double kl[EXPERIMENT_TASKS]; /* NAN: not measured */
    bool has[EXPERIMENT_TASKS];
} menu_curve;

typedef struct menu_curves {
    menu_curve list[MENU_CURVES_MAX];
    uint32_t count;
    uint32_t entries[EXPERIMENT_TASKS];
    char model[96];
} menu_curves;

static const char *const menu_ladders[EXPERIMENT_MENUS] = {"adaptcache", "nested"};
static const char *const menu_tasks[EXPERIMENT_TASKS] = {"qa", "summarization", "code"};

/* ---- the host of the paper ---- */

static kvt_status menu_host(const experiment_options *options, kvt_cost_model *model)
{
    memset(model, 0, sizeof *model);
    model->parallel_codecs = 1;
    model->present[KVT_TIER_DRAM] = model->present[KVT_TIER_SSD] = true;
    model->read[KVT_TIER_DRAM] = model->write[KVT_TIER_DRAM] =
        (kvt_affine){.request_seconds = 1e-5, .bytes_per_s = 25e9};
    model->read[KVT_TIER_SSD] = model->write[KVT_TIER_SSD] =
        (kvt_affine){.request_seconds = 1e-4, .bytes_per_s = options->ssd_bytes_per_s};
    kvt_status status = kvt_prefill_preset_get("llama-3.1-8b:a100", &model->prefill);
    model->prefill.linear_seconds_per_token /= options->prefill_speed;
    model->prefill.square_seconds_per_token2 /= options->prefill_speed;
    model->prefill.fixed_seconds /= options->prefill_speed;
    return status;
}

/* ---- published ladders ---- */

static kvt_status menu_read_ladder(experiment *run, uint32_t menu, uint32_t task, char *message,
                                   size_t message_size)
{
    char path[1024];
    kvt_cost_model *model = &run->models[menu][task];
    const kvt_cost_model *first = &run->models[menu][0];
    (void)snprintf(path, sizeof path, "%s/ladder-%s-%s.json", run->options->ladders,
                   menu_ladders[menu], menu_tasks[task]);
    kvt_status status = menu_host(run->options, model);
    if (status == KVT_OK)
        status = exchange_ladder_read(path, model->variants, KVT_VARIANTS_MAX,
                                      &model->variant_count, message, message_size);
    bool alike = status == KVT_OK && model->variant_count == first->variant_count;
    for (uint32_t i = 0; alike && i < model->variant_count; i++)
        alike = memcmp(&model->variants[i].variant, &first->variants[i].variant,
                       sizeof model->variants[i].variant) == 0;
    if (status == KVT_OK && !alike) {
        (void)snprintf(message, message_size, "%s: not the %u variants of the other tasks", path,
                       first->variant_count);
        status = KVT_E_PARSE;
    }
    return status;
}

static kvt_status menu_read_ladders(experiment *run, char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        (void)snprintf(run->tasks[task].name, sizeof run->tasks[task].name, "%s", menu_tasks[task]);
        for (uint32_t menu = 0; status == KVT_OK && menu < EXPERIMENT_MENUS; menu++)
            status = menu_read_ladder(run, menu, task, message, message_size);
    }
    return status;
}

/* ---- measured curves ---- */

static menu_curve *menu_curve_of(menu_curves *curves, kvt_variant variant)
{
    for (uint32_t i = 0; i < curves->count; i++)
        if (memcmp(&curves->list[i].variant, &variant, sizeof variant) == 0)
            return &curves->list[i];
    if (curves->count == MENU_CURVES_MAX) return NULL;
    menu_curve *added = &curves->list[curves->count++];
    *added = (menu_curve){.variant = variant};
    return added;
}

/* All curves of the first model in the profile, on the classes of the options. */
static kvt_status menu_collect(const experiment *run, kvt_profile *profile, menu_curves *curves)
{
    kvt_quality_curve row;
    kvt_status status;
    for (size_t at = 0; (status = kvt_profile_quality_at(profile, at, &row)) == KVT_OK; at++) {
        if (curves->model[0] == '\0')
            (void)snprintf(curves->model, sizeof curves->model, "%s", row.model);
        if (strcmp(row.model, curves->model) != 0) continue;
        if ((row.variant.mode & QUALITY_MERGED_MODE) != 0) continue;
        for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
            if (strcmp(row.class_name, run->options->classes[task]) != 0) continue;
            menu_curve *curve = menu_curve_of(curves, row.variant);
            if (curve == NULL || curve->has[task]) continue;
            curve->share[task] = row.bits_per_element / RAW_BITS;
            const double loss = run->options->by_answers ? 1.0 - row.rouge_l : row.loss_mean;
            if (isnan(loss)) continue;
            curve->has[task] = true;
            curve->loss[task] = fmax(loss, LEAST_LOSS);
            curve->kl[task] = row.kl;
            if (row.entries > curves->entries[task]) curves->entries[task] = row.entries;
        }
    }
    return status == KVT_END ? KVT_OK : status;
}

static double menu_mean(const double values[EXPERIMENT_TASKS])
{
    double sum = 0.0;
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++)
        sum += values[task] / EXPERIMENT_TASKS;
    return sum;
}

/* By falling size, then by rising loss. */
static int menu_order(const void *left, const void *right)
{
    const menu_curve *a = left, *b = right;
    const double by_size = menu_mean(b->share) - menu_mean(a->share);
    const double by_loss = menu_mean(a->loss) - menu_mean(b->loss);
    const double order = by_size != 0.0 ? by_size : by_loss;
    return order < 0.0 ? -1 : order > 0.0;
}

static bool menu_is_exact(kvt_variant variant)
{
    return codecs_drop_method(variant) == 0 &&
           (variant.codec == KVT_CODEC_RAW || variant.codec == KVT_CODEC_LOSSLESS);
}

/* Whether AdaptCache's two methods make the variant. */
static bool menu_is_paper(kvt_variant variant)
{
    if (variant.codec == KVT_CODEC_KIVI) return codecs_drop_method(variant) == 0;
    return variant.codec == KVT_CODEC_RAW && codecs_drop_method(variant) == DROP_METHOD_STREAM;
}

static bool menu_is_beaten(const menu_curves *curves, const menu_curve *curve)
{
    for (uint32_t i = 0; i < curves->count; i++) {
        const menu_curve *other = &curves->list[i];
        if (other == curve || menu_order(other, curve) == 0) continue;
        if (menu_mean(other->share) <= menu_mean(curve->share) &&
            menu_mean(other->loss) <= menu_mean(curve->loss))
            return true;
    }
    return false;
}

/* Leaves out the curve whose size is closest to that of its larger neighbour, until they fit: never
 * the first or the last. */
static void menu_thin(menu_curves *curves, uint32_t most)
{
    while (curves->count > most) {
        uint32_t closest = 1;
        double ratio = 0.0;
        for (uint32_t i = 1; i + 1 < curves->count; i++) {
            const double now =
                menu_mean(curves->list[i].share) / menu_mean(curves->list[i - 1].share);
            if (now > ratio) closest = i;
            if (now > ratio) ratio = now;
        }
        curves->count--;
        memmove(&curves->list[closest], &curves->list[closest + 1],
                (curves->count - closest) * sizeof curves->list[0]);
    }
}

/* The speed of a codec on a GPU, from codecs-gpu.json: that of the variant that stands for it. */
static kvt_status menu_speed(kvt_profile *profile, kvt_variant variant, kvt_codec_curve *curve,
                             char *message, size_t message_size)
{
    static const char *const usual[] = {"raw",
                                        "lossless",
                                        "kivi:k4v4,g32",
                                        "planes:k4v4,g64",
                                        "entropy:k0.25v0.5",
                                        "transform:00000,s1"};
    kvt_codec_curve speed;
    kvt_status status = KVT_MISS;
    for (size_t i = 0; status == KVT_MISS && i < sizeof usual / sizeof usual[0]; i++) {
        kvt_variant stands;
        if (kvt_variant_parse(usual[i], &stands) != KVT_OK) continue;
        if (stands.codec == variant.codec) status = kvt_profile_codec(profile, stands, &speed);
    }
    if (status != KVT_OK) {
        char name[96];
        (void)kvt_variant_format(variant, name, sizeof name);
        (void)snprintf(message, message_size, "codecs-gpu.json has no speed for %s", name);
        return status;
    }
    curve->encode_bytes_per_s = speed.encode_bytes_per_s;
    curve->decode_bytes_per_s = speed.decode_bytes_per_s;
    return KVT_OK;
}

static bool menu_same_method(kvt_variant a, kvt_variant b)
{
    return a.codec == b.codec && codecs_drop_method(a) == codecs_drop_method(b);
}

/* The largest loss up to this one of its method. */
static double menu_loss(const menu_curves *chosen, uint32_t index, uint32_t task)
{
    double loss = 0.0;
    for (uint32_t i = 0; i <= index; i++)
        if (menu_same_method(chosen->list[i].variant, chosen->list[index].variant))
            loss = fmax(loss, chosen->list[i].loss[task]);
    return loss;
}

/* Puts the chosen curves into the tasks' models behind raw. */
static kvt_status menu_fill(experiment *run, kvt_profile *profile, uint32_t menu,
                            const menu_curves *chosen, char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    for (uint32_t task = 0; status == KVT_OK && task < EXPERIMENT_TASKS; task++) {
        kvt_cost_model *model = &run->models[menu][task];
        status = menu_host(run->options, model);
        model->variants[0] =
            (kvt_codec_curve){.variant = {.codec = KVT_CODEC_RAW}, .stored_share = 1.0};
        model->variant_count = 1;
        for (uint32_t i = 0; i < chosen->count; i++) {
            const menu_curve *from = &chosen->list[i];
            kvt_codec_curve *to = &model->variants[model->variant_count++];
            *to = (kvt_codec_curve){.variant = from->variant, .stored_share = from->share[task]};
            if (!menu_is_exact(from->variant)) to->loss = menu_loss(chosen, i, task);
            to->loss_upper = to->loss;
        }
        for (uint32_t i = 0; status == KVT_OK && i < model->variant_count; i++)
            status = menu_speed(profile, model->variants[i].variant, &model->variants[i], message,
                                message_size);
    }
    return status;
}

static kvt_status menu_choose(experiment *run, kvt_profile *profile, const menu_curves *curves,
                              uint32_t menu, char *message, size_t message_size)
{
    menu_curves *chosen = calloc(1, sizeof *chosen);
    (void)snprintf(message, message_size, "out of memory");
    if (chosen == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < curves->count; i++) {
        const menu_curve *curve = &curves->list[i];
        const bool raw = menu_is_exact(curve->variant) && curve->variant.codec == KVT_CODEC_RAW;
        const bool wanted = menu == EXPERIMENT_MENU_PAPER ? menu_is_paper(curve->variant)
                                                          : !menu_is_beaten(curves, curve);
        if (wanted && !raw) chosen->list[chosen->count++] = *curve;
    }
    qsort(chosen->list, chosen->count, sizeof chosen->list[0], menu_order);
    menu_thin(chosen, KVT_VARIANTS_MAX - 1);
    kvt_status status = KVT_E_CONFIG;
    if (chosen->count == 0)
        (void)snprintf(
            message, message_size, "%s: no variant of %s was measured on %s, %s and %s",
            run->options->profile, menu == EXPERIMENT_MENU_PAPER ? "KIVI or StreamingLLM" : "ours",
            run->options->classes[0], run->options->classes[1], run->options->classes[2]);
    else
        status = menu_fill(run, profile, menu, chosen, message, message_size);
    free(chosen);
    return status;
}

/* The power of its KL by which a loss of the task grows: the slope of the logarithms over the lossy
 * variants, 1 where fewer than three tell. */
static double menu_power(const menu_curves *curves, uint32_t task)
{
    double n = 0.0, x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
    for (uint32_t i = 0; i < curves->count; i++) {
        const menu_curve *curve = &curves->list[i];
        if (!curve->has[task] || !(curve->kl[task] > 0.0) || !(curve->loss[task] > LEAST_LOSS))
            continue;
        const double kl = log(curve->kl[task]), loss = log(curve->loss[task]);
        n += 1.0;
        x += kl;
        y += loss;
        xx += kl * kl;
        xy += kl * loss;
    }
    const double spread = n * xx - x * x;
    if (n < 3.0 || !(spread > 0.0)) return 1.0;
    return fmin(fmax((n * xy - x * y) / spread, 0.0), 1.0);
}

/* Only variants that were measured on all classes stay. */
static void menu_keep_complete(menu_curves *curves)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < curves->count; i++) {
        bool complete = true;
        for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++)
            complete = complete && curves->list[i].has[task];
        if (complete) curves->list[kept++] = curves->list[i];
    }
    curves->count = kept;
}

/* Refuses a profile that has no curve of a class that is asked for, and says which it has. */
static kvt_status menu_check_classes(const experiment *run, kvt_profile *profile,
                                     const menu_curves *curves, char *message, size_t message_size)
{
    char names[512] = "";
    size_t length = 0;
    kvt_quality_curve row;
    uint32_t task = 0;
    while (task < EXPERIMENT_TASKS && curves->entries[task] > 0)
        task++;
    if (task == EXPERIMENT_TASKS) return KVT_OK;
    for (size_t at = 0; kvt_profile_quality_at(profile, at, &row) == KVT_OK; at++) {
        char listed[sizeof row.class_name + 4];
        (void)snprintf(listed, sizeof listed, ", %s,", row.class_name);
        if (strcmp(row.model, curves->model) != 0 || strstr(names, listed) != NULL) continue;
        /* Each name stands between commas; the next one takes the place of the last comma. */
        const size_t start = length > 0 ? length - 1 : 0;
        if (start + strlen(listed) + 1 > sizeof names) break;
        length = start + (size_t)snprintf(names + start, sizeof names - start, "%s", listed);
    }
    if (length == 0)
        (void)snprintf(message, message_size, "%s: no quality was measured in it",
                       run->options->profile);
    else
        (void)snprintf(message, message_size, "%s: no class %s; --class takes three of %.*s",
                       run->options->profile, run->options->classes[task], (int)length - 3,
                       names + 2);
    return KVT_E_CONFIG;
}

static kvt_status menu_read_curves(experiment *run, kvt_profile *profile, char *message,
                                   size_t message_size)
{
    menu_curves *curves = calloc(1, sizeof *curves);
    if (curves == NULL) return KVT_E_MEMORY;
    kvt_status status = menu_collect(run, profile, curves);
    if (status == KVT_OK) status = menu_check_classes(run, profile, curves, message, message_size);
    menu_keep_complete(curves);
    for (uint32_t task = 0; status == KVT_OK && task < EXPERIMENT_TASKS; task++) {
        experiment_task *to = &run->tasks[task];
        (void)snprintf(to->name, sizeof to->name, "%s", run->options->classes[task]);
        to->entries = curves->entries[task];
        status = profile_sensitivity_read(profile, NULL, curves->model, to->name, &to->sigma,
                                          &to->repeatability);
        if (status == KVT_MISS) status = KVT_OK; /* no spread was measured: all alike */
        to->sigma *= menu_power(curves, task);
        to->repeatability = fmax(to->repeatability, 0.0);
    }
    for (uint32_t menu = 0; status == KVT_OK && menu < EXPERIMENT_MENUS; menu++)
        status = menu_choose(run, profile, curves, menu, message, message_size);
    free(curves);
    return status;
}

static kvt_status menu_read_profile(experiment *run, char *message, size_t message_size)
{
    char speeds[1024];
    kvt_profile *profile;
    (void)snprintf(speeds, sizeof speeds, "%s/codecs-gpu.json", run->options->ladders);
    kvt_status status =
        kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, message, message_size);
    if (status != KVT_OK) return status;
    uint64_t rows;
    status =
        exchange_import(profile, run->options->profile, NULL, NULL, &rows, message, message_size);
    if (status == KVT_OK)
        status = exchange_import(profile, speeds, NULL, NULL, &rows, message, message_size);
    if (status == KVT_OK) status = menu_read_curves(run, profile, message, message_size);
    kvt_profile_close(profile);
    return status;
}

kvt_status experiment_menus_read(experiment *run, char *message, size_t message_size)
{
    return run->options->profile != NULL ? menu_read_profile(run, message, message_size)
                                         : menu_read_ladders(run, message, message_size);
}
