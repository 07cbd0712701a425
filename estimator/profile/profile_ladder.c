/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_ladder.c - the variants that a store's entries may take, out of the calibration of their
 * model, with the speeds that stand for theirs. Thread rule: as profile.h says.
 */
#include "codecs/codecs.h"
#include "estimator/profile/profile.h"
#include "estimator/profile/profile_internal.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of the CPU's rows, or of a GPU's. */
static kvt_status ladder_near(kvt_profile *profile, const char *sql, const kvt_codec_curve *curve,
                              kvt_codec_curve *speed)
{
    profile_row row = profile_row_begin(profile, sql);
    profile_row_integer(&row, curve->variant.codec);
    profile_row_integer(&row, curve->variant.rate >> PROFILE_BASIS_SHIFT);
    profile_row_integer(&row, curve->variant.mode >> 8 != 0);
    profile_row_integer(&row, curve->variant.mode);
    profile_row_integer(&row, curve->variant.rate);
    profile_row_real(&row, curve->stored_share);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    if (row.result == SQLITE_ROW) {
        speed->encode_bytes_per_s = sqlite3_column_double(row.statement, 0);
        speed->decode_bytes_per_s = sqlite3_column_double(row.statement, 1);
        speed->imported = sqlite3_column_int(row.statement, 2) != 0;
    }
    int result = row.result;
    sqlite3_finalize(row.statement);
    if (result == SQLITE_DONE) return KVT_MISS;
    return profile_status(result) == KVT_OK ? KVT_OK : KVT_E_DATABASE;
}

#define LADDER_NEAR(isa)                                                                           \
    "SELECT c.encode_bytes_per_s, c.decode_bytes_per_s, r.kind = 'import' FROM codec_curve c "     \
    "JOIN run r ON r.id = c.run_id WHERE c.isa " isa " '" PROFILE_ISA_GPU                          \
    "' AND c.codec = ? AND (c.codec <> 8 OR c.rate >> 10 = ?) "                                    \
    "ORDER BY (c.mode >> 8 <> 0) <> ?, " PROFILE_ORDER                                             \
    ", c.mode <> ? OR c.rate <> ?, c.threads, abs(c.stored_share - ?), "                           \
    "c.decode_bytes_per_s DESC LIMIT 1"

kvt_status profile_ladder_near_speed(kvt_profile *profile, const kvt_codec_curve *curve,
                                     kvt_codec_curve *speed)
{
    return ladder_near(profile, LADDER_NEAR("<>"), curve, speed);
}

kvt_status kvt_profile_codec_gpu(kvt_profile *profile, bool imported, kvt_codec_curve *curve)
{
    kvt_codec_curve speed;
    const kvt_status status = ladder_near(profile, LADDER_NEAR("="), curve, &speed);
    if (status == KVT_OK && speed.imported && !imported) return KVT_MISS;
    if (status == KVT_OK) curve->gpu_bytes_per_s = speed.decode_bytes_per_s;
    return status;
}

/* Rungs of one calibration, as they are read. */
typedef struct rungs_list {
    kvt_codec_curve curves[PROFILE_RUNGS_MAX];
    uint32_t spans[PROFILE_RUNGS_MAX]; /* of the variants' bases; 0: none is needed */
    uint32_t count;
} rungs_list;

static kvt_status rungs_status(int result)
{
    if (result == SQLITE_ROW || result == SQLITE_OK) return KVT_OK;
    if (result == SQLITE_DONE) return KVT_MISS;
    return profile_status(result) == KVT_E_MEMORY ? KVT_E_MEMORY : KVT_E_DATABASE;
}

/* Newest first, those of the layout before others, and of the model and class before others. */
#define RUNGS_FIND                                                                                 \
    "SELECT c.id, m.name, m.layers, m.kv_heads, m.head_dim, c.class, "                             \
    "m.layers = ?1 AND m.kv_heads = ?2 AND m.head_dim = ?3 AS fits, "                              \
    "(?4 IS NULL OR m.name = ?4) AS named, ?5 IS NULL OR c.class = ?5 AS same FROM calibration c " \
    "JOIN run r ON r.id = c.run_id "                                                               \
    "JOIN model m ON m.id = c.model_id WHERE r.complete = 1 "                                      \
    "ORDER BY fits DESC, named DESC, same DESC, " PROFILE_ORDER ", c.id DESC LIMIT 1"

static kvt_status rungs_find(kvt_profile *profile, const kvt_layout *layout, const char *wanted,
                             const char *class_name, int64_t *calibration_out, char *message,
                             size_t message_size)
{
    profile_row row = profile_row_begin(profile, RUNGS_FIND);
    profile_row_integer(&row, layout->layers);
    profile_row_integer(&row, layout->kv_heads);
    profile_row_integer(&row, layout->head_dim);
    profile_row_text(&row, wanted);
    profile_row_text(&row, class_name);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    kvt_status status = rungs_status(row.result);
    if (status == KVT_OK) {
        const char *model = (const char *)sqlite3_column_text(row.statement, 1);
        const char *found = (const char *)sqlite3_column_text(row.statement, 5);
        *calibration_out = sqlite3_column_int64(row.statement, 0);
        if (sqlite3_column_int(row.statement, 6) == 0) {
            (void)snprintf(message, message_size,
                           "calibrated is %s with %d layers x %d KV heads x %d, not %u x %u x %u",
                           model, sqlite3_column_int(row.statement, 2),
                           sqlite3_column_int(row.statement, 3),
                           sqlite3_column_int(row.statement, 4), layout->layers, layout->kv_heads,
                           layout->head_dim);
            status = KVT_E_MISMATCH;
        } else if (sqlite3_column_int(row.statement, 7) == 0) {
            (void)snprintf(message, message_size, "calibrated is %s, not %s", model, wanted);
            status = KVT_E_MISMATCH;
        } else if (sqlite3_column_int(row.statement, 8) == 0) {
            (void)snprintf(message, message_size, "%s is calibrated for class '%s', not '%s'",
                           model, found, class_name);
            status = KVT_E_MISMATCH;
        }
    } else if (status == KVT_MISS) {
        (void)snprintf(message, message_size,
                       "the profile holds no calibration; kvterrace profile calibrate makes one");
    }
    sqlite3_finalize(row.statement);
    return status;
}

/* Whether entries of the layout may be stored so. */
static bool rungs_takes(const kvt_layout *layout, kvt_variant variant)
{
    const kvt_record_spec spec = {.generation = 1, .layout = *layout, .variant = variant};
    uint64_t bytes, scratch;
    return kvt_record_bound(&spec, &bytes, &scratch) == KVT_OK;
}

/* A figure that stands as text; what is none, or beyond `most`, is not known. */
static double rungs_share(double value, double most)
{
    return value > 0.0 && value <= most ? value : 0.0;
}

/* What a variant asks of an entry beyond its layout: nothing, that its tokens may go, or scores of
 * the caller besides. Entries that take a variant take those that ask for less. */
static uint32_t rungs_need(kvt_variant variant)
{
    if (!kvt_variant_drops_tokens(variant)) return 0;
    return codecs_drop_method(variant) == KVT_DROP_SCORES ? 2 : 1;
}

/* A rung that is not smaller than the last one that asks for the same says nothing. */
static bool rungs_is_larger(const rungs_list *rungs, const kvt_codec_curve *curve, uint32_t span)
{
    const uint32_t need = rungs_need(curve->variant);
    for (uint32_t i = rungs->count; i-- > 0;) {
        if (rungs_need(rungs->curves[i].variant) != need || rungs->spans[i] != span) continue;
        return curve->stored_share >= rungs->curves[i].stored_share;
    }
    return false;
}

static void rungs_add(kvt_profile *profile, const kvt_layout *layout, sqlite3_stmt *statement,
                      rungs_list *rungs)
{
    kvt_codec_curve *curve = &rungs->curves[rungs->count];
    *curve =
        (kvt_codec_curve){.variant = {.codec = (uint16_t)sqlite3_column_int(statement, 0),
                                      .mode = (uint16_t)sqlite3_column_int(statement, 1),
                                      .rate = (uint32_t)sqlite3_column_int64(statement, 2)},
                          .stored_share = sqlite3_column_double(statement, 3) /
                                          (8.0 * kvt_dtype_bytes(layout->dtype)),
                          .loss = sqlite3_column_double(statement, 4),
                          .loss_upper = sqlite3_column_double(statement, 5),
                          .loss_entry = rungs_share(sqlite3_column_double(statement, 6), 1.0),
                          .loss_widening = rungs_share(sqlite3_column_double(statement, 7), 1e6)};
    const uint32_t span = profile_basis_span(profile, curve->variant);
    rungs->spans[rungs->count] = span;
    /* A calibration of wider elements may have rungs that are larger than these are raw. */
    if (curve->stored_share >= 1.0) return;
    if (!rungs_is_larger(rungs, curve, span) && rungs_takes(layout, curve->variant)) rungs->count++;
}

/* Reads the accepted rungs; or, of planes, all that were measured, none of which is larger. */
static kvt_status rungs_read_all(kvt_profile *profile, const kvt_layout *layout,
                                 int64_t calibration, bool planes, rungs_list *rungs)
{
    _Static_assert(KVT_CODEC_PLANES == 4, "the query names it");
    profile_row row = profile_row_begin(
        profile,
        "SELECT codec, mode, rate, bits_per_element, loss, loss_upper, (SELECT CAST(chosen AS "
        "REAL) FROM calibration_choice h WHERE h.calibration_id = g.calibration_id AND question = "
        "'" PROFILE_ENTRY_LIMIT "' || g.name), (SELECT CAST(chosen AS REAL) FROM "
        "calibration_choice h WHERE h.calibration_id = g.calibration_id AND question = "
        "'" PROFILE_WIDENING "') FROM calibration_rung g WHERE calibration_id = ? AND "
        "CASE WHEN ? THEN codec = 4 ELSE accepted = 1 END ORDER BY position");
    profile_row_integer(&row, (uint64_t)calibration);
    profile_row_integer(&row, planes);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    while (row.result == SQLITE_ROW && rungs->count < PROFILE_RUNGS_MAX) {
        rungs_add(profile, layout, row.statement, rungs);
        row.result = sqlite3_step(row.statement);
    }
    kvt_status status = rungs_status(row.result);
    sqlite3_finalize(row.statement);
    return status == KVT_MISS ? KVT_OK : status;
}

/* Rungs of planes at 8 bits of K and V that several models were calibrated with, each with the
 * largest size, losses and bounds of any of them. */
static kvt_status rungs_read_any(kvt_profile *profile, const kvt_layout *layout,
                                 const char *class_name, rungs_list *rungs, char *message,
                                 size_t message_size)
{
    profile_row row = profile_row_begin(
        profile,
        "SELECT codec, mode, rate, MAX(bits_per_element), MAX(loss), MAX(loss_upper), MAX((SELECT "
        "CAST(chosen AS REAL) FROM calibration_choice h WHERE h.calibration_id = g.calibration_id "
        "AND question = '" PROFILE_ENTRY_LIMIT "' || g.name)), NULL "
        "FROM calibration_rung g JOIN calibration c ON c.id = g.calibration_id "
        "JOIN run r ON r.id = c.run_id JOIN model m ON m.id = c.model_id WHERE r.complete = 1 AND "
        "accepted = 1 AND g.name GLOB 'planes:k8v8*' AND (?1 IS NULL OR c.class = ?1) "
        "GROUP BY codec, mode, rate HAVING COUNT(DISTINCT m.name) >= ?2 "
        "ORDER BY MAX(loss_upper), rate");
    profile_row_text(&row, class_name);
    profile_row_integer(&row, PROFILE_ANY_MODELS);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    while (row.result == SQLITE_ROW && rungs->count < PROFILE_RUNGS_MAX) {
        rungs_add(profile, layout, row.statement, rungs);
        row.result = sqlite3_step(row.statement);
    }
    const kvt_status status = rungs_status(row.result);
    sqlite3_finalize(row.statement);
    if (status != KVT_OK && status != KVT_MISS) return status;
    if (rungs->count != 0) return KVT_OK;
    (void)snprintf(message, message_size,
                   "%d calibrated models with planes of 8 bits are needed: import profiles that "
                   "have them, as those that are shipped",
                   PROFILE_ANY_MODELS);
    return KVT_E_MISMATCH;
}

static void rungs_remove(rungs_list *rungs, uint32_t at)
{
    rungs->count--;
    memmove(&rungs->curves[at], &rungs->curves[at + 1],
            (rungs->count - at) * sizeof rungs->curves[0]);
    memmove(&rungs->spans[at], &rungs->spans[at + 1], (rungs->count - at) * sizeof rungs->spans[0]);
}

/* By falling size; equals keep their order. */
static void rungs_sort(rungs_list *rungs)
{
    for (uint32_t i = 1; i < rungs->count; i++) {
        const kvt_codec_curve curve = rungs->curves[i];
        const uint32_t span = rungs->spans[i];
        uint32_t at = i;
        for (; at > 0 && rungs->curves[at - 1].stored_share < curve.stored_share; at--) {
            rungs->curves[at] = rungs->curves[at - 1];
            rungs->spans[at] = rungs->spans[at - 1];
        }
        rungs->curves[at] = curve;
        rungs->spans[at] = span;
    }
}

/* Whether every entry that takes a rung has one that is no larger, loses less and decodes as fast:
 * a wider basis, or any beside none, is slower, and prices decide between them. */
static bool rungs_is_beaten(const rungs_list *rungs, uint32_t rung)
{
    const kvt_codec_curve *own = &rungs->curves[rung];
    for (uint32_t i = 0; i < rungs->count; i++) {
        const kvt_codec_curve *other = &rungs->curves[i];
        if (other->stored_share > own->stored_share || !(other->loss < own->loss)) continue;
        if (rungs->spans[i] > rungs->spans[rung]) continue;
        if (rungs_need(other->variant) <= rungs_need(own->variant)) return true;
    }
    return false;
}

/* Variants that drop tokens were not compared with those that keep them; here both count. What
 * beats a rung that goes beats what that rung has beaten, so the order does not matter. */
static void rungs_refuse_beaten(rungs_list *rungs)
{
    for (uint32_t i = rungs->count; i-- > 0;)
        if (rungs_is_beaten(rungs, i)) rungs_remove(rungs, i);
}

/* ---- the rungs of a ladder that holds fewer ---- */

/* The situations that rungs are chosen for: what computing a byte of KV takes (8 billion parameters
 * on an H100 and on a desktop's GPU, a small model on a fast core and on slow ones), how many
 * prefills a loss of 1 is worth, and what the room and the loading of a stored byte cost, in
 * prefills of a byte. Seconds would say little of room: an entry gives way to others, which are
 * worth their prefills. */
static const double choose_prefills[] = {3e-10, 4e-9, 5e-8, 2e-6};
static const double choose_alphas[] = {1.0, 10.0, 100.0};
static const double choose_bytes[] = {0.03, 0.1, 0.3, 1.0, 3.0, 10.0};
enum { CHOOSE_SITUATIONS = 4 * 3 * 6 };

/* A rung without a speed counts as one of this. */
#define CHOOSE_UNTIMED_BYTES_PER_S 1e9

/* The cost of a use of a rung in a situation, in prefills; beyond one the entry is computed. */
static double choose_cost(const kvt_codec_curve *curve, uint32_t situation)
{
    double prefill = choose_prefills[situation % 4], alpha = choose_alphas[situation / 4 % 3];
    double speed = curve->decode_bytes_per_s;
    if (!(speed > 0.0)) speed = CHOOSE_UNTIMED_BYTES_PER_S;
    return fmin(1.0, alpha * curve->loss + curve->stored_share * choose_bytes[situation / 12] +
                         1.0 / (speed * prefill));
}

/* Adds to `missed`, by rung, what entries that allow `need` pay more when the rung is left out. */
static void choose_add_missed(const kvt_codec_curve *curves, uint32_t count, uint32_t need,
                              double missed[PROFILE_CANDIDATES_MAX])
{
    for (uint32_t s = 0; s < CHOOSE_SITUATIONS; s++) {
        double least = 1.0, second = 1.0; /* computing is always there */
        uint32_t best = count;
        for (uint32_t i = 0; i < count; i++) {
            if (rungs_need(curves[i].variant) > need) continue;
            double cost = choose_cost(&curves[i], s);
            if (cost < least) {
                second = least;
                least = cost;
                best = i;
            } else if (cost < second) {
                second = cost;
            }
        }
        if (best < count) missed[best] += second - least;
    }
}

void profile_ladder_choose(kvt_codec_curve *curves, uint32_t *count, uint32_t capacity)
{
    assert(*count <= PROFILE_CANDIDATES_MAX && capacity > 0);
    while (*count > capacity) {
        double missed[PROFILE_CANDIDATES_MAX] = {0.0};
        uint32_t least = *count - 1;
        for (uint32_t need = 0; need <= 2; need++)
            choose_add_missed(curves, *count, need, missed);
        for (uint32_t i = *count; i-- > 0;) {
            bool exact = curves[i].loss <= 0.0; /* kept: limits may leave nothing else */
            if (!exact && (missed[i] < missed[least] || curves[least].loss <= 0.0)) least = i;
        }
        --*count;
        memmove(&curves[least], &curves[least + 1], (*count - least) * sizeof curves[0]);
    }
}

kvt_status profile_rungs_read(kvt_profile *profile, const kvt_layout *layout, const char *model,
                              const char *class_name, kvt_codec_curve *curves, uint32_t capacity,
                              uint32_t *count_out, char *message, size_t message_size)
{
    assert(profile != NULL && layout != NULL && curves != NULL && count_out != NULL);
    rungs_list rungs = {.count = 0};
    kvt_layout one = *layout;
    uint64_t bytes;
    int64_t calibration = 0;
    *count_out = 0;
    if (one.tokens == 0) one.tokens = 256;
    if (capacity < 2 || one.dtype == KVT_DTYPE_OPAQUE || kvt_layout_bytes(&one, &bytes) != KVT_OK) {
        (void)snprintf(message, message_size, "a ladder needs a layout of K and V");
        return KVT_E_ARGUMENT;
    }
    kvt_status status;
    if (model != NULL && strcmp(model, PROFILE_ANY_8_BIT) == 0) {
        status = rungs_read_any(profile, &one, class_name, &rungs, message, message_size);
    } else {
        status = rungs_find(profile, &one, model, class_name, &calibration, message, message_size);
        if (status == KVT_OK) status = rungs_read_all(profile, &one, calibration, false, &rungs);
    }
    if (status != KVT_OK) return status;
    rungs_sort(&rungs);
    rungs_refuse_beaten(&rungs);
    for (uint32_t i = 0; i < rungs.count; i++) {
        kvt_codec_curve *curve = &rungs.curves[i], speeds;
        status = kvt_profile_codec(profile, curve->variant, &speeds);
        if (status == KVT_MISS && rungs.spans[i] != 0)
            status = profile_ladder_near_speed(profile, curve, &speeds);
        if (status < 0) return status;
        if (status == KVT_OK) curve->encode_bytes_per_s = speeds.encode_bytes_per_s;
        if (status == KVT_OK) curve->decode_bytes_per_s = speeds.decode_bytes_per_s;
    }
    profile_ladder_choose(rungs.curves, &rungs.count, capacity);
    memcpy(curves, rungs.curves, rungs.count * sizeof curves[0]);
    *count_out = rungs.count;
    return KVT_OK;
}

kvt_status profile_planes_read(kvt_profile *profile, const kvt_layout *layout, const char *model,
                               const char *class_name, kvt_codec_curve *curves, uint32_t *count_out)
{
    rungs_list rungs = {.count = 0};
    int64_t calibration = 0;
    char message[256];
    *count_out = 0;
    kvt_status status =
        rungs_find(profile, layout, model, class_name, &calibration, message, sizeof message);
    if (status == KVT_OK) status = rungs_read_all(profile, layout, calibration, true, &rungs);
    if (status != KVT_OK) return status;
    memcpy(curves, rungs.curves, rungs.count * sizeof curves[0]);
    *count_out = rungs.count;
    return KVT_OK;
}
