/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_ladder.c - the variants that a model's entries may take, out of the profile: from its
 * calibration, or from what was measured or imported of its quality. Thread rule: as profile.h
 * says.
 */
#include "codecs/codecs.h"
#include "estimator/profile/profile.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_quality.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LADDER_CANDIDATES_MAX 256u
#define LADDER_RAW_BITS       16.0

/* Variants with size and loss; speeds come last. */
typedef struct ladder_list {
    kvt_codec_curve curves[LADDER_CANDIDATES_MAX];
    uint32_t count;
} ladder_list;

static const char ladder_calibration[] =
    "SELECT g.codec, g.mode, g.rate, g.bits_per_element, g.loss, g.loss_upper FROM "
    "calibration_rung g WHERE g.accepted = 1 AND g.calibration_id = (SELECT c.id FROM calibration "
    "c JOIN model m ON m.id = c.model_id JOIN run r ON r.id = c.run_id WHERE m.name = ?1 AND "
    "c.class = ?2 "
    "AND r.complete = 1 ORDER BY " PROFILE_ORDER " LIMIT 1) ORDER BY g.position";

/* One loss per variant, the newest. All of the best set's method, and imports do not mix with
 * measurements: their losses are of other texts. SQLite gives the columns beside a min() from its
 * row. */
static const char ladder_quality[] =
    "WITH sets (id, method, imported, place) AS (SELECT s.id, s.method, r.kind = 'import', "
    "row_number() OVER (ORDER BY " PROFILE_ORDER ", s.id DESC) FROM quality_set s JOIN model m ON "
    "m.id = s.model_id JOIN run r ON r.id = s.run_id WHERE m.name = ?1 AND s.class = ?2 AND "
    "r.complete = 1 AND EXISTS (SELECT 1 FROM quality_curve e WHERE e.set_id = s.id)), "
    "alike AS (SELECT a.id, a.place FROM sets a JOIN sets b ON b.place = 1 AND b.method = "
    "a.method AND b.imported = a.imported), "
    "best AS (SELECT q.*, min(a.place) FROM quality_curve q JOIN alike a ON a.id = q.set_id GROUP "
    "BY q.codec, q.mode, q.rate) "
    "SELECT codec, mode, rate, bits_per_element, loss_mean, loss_high FROM best ORDER BY "
    "bits_per_element DESC, loss_mean DESC";

static kvt_status ladder_status(kvt_profile *profile, int result, char *message, size_t size)
{
    kvt_status status = profile_status(result);
    if (status == KVT_OK) return KVT_OK;
    profile_say(message, size, "%s", sqlite3_errmsg(profile->database));
    return status == KVT_E_MEMORY ? KVT_E_MEMORY : KVT_E_DATABASE;
}

static int ladder_prepare(kvt_profile *profile, const char *sql, const char *model,
                          const char *class_name, sqlite3_stmt **row_out)
{
    int result = sqlite3_prepare_v2(profile->database, sql, -1, row_out, NULL);
    if (result == SQLITE_OK) result = sqlite3_bind_text(*row_out, 1, model, -1, SQLITE_STATIC);
    if (result == SQLITE_OK && class_name != NULL)
        result = sqlite3_bind_text(*row_out, 2, class_name, -1, SQLITE_STATIC);
    return result;
}

/* Variants that are stored; merged rows are measured for comparison alone. */
static int ladder_read(kvt_profile *profile, const char *sql, const char *model,
                       const char *class_name, ladder_list *list)
{
    sqlite3_stmt *row = NULL;
    int result = ladder_prepare(profile, sql, model, class_name, &row);
    while (result == SQLITE_OK) {
        result = sqlite3_step(row);
        if (result != SQLITE_ROW) break;
        result = SQLITE_OK;
        kvt_codec_curve curve = {.variant = {.codec = (uint16_t)sqlite3_column_int(row, 0),
                                             .mode = (uint16_t)sqlite3_column_int(row, 1),
                                             .rate = (uint32_t)sqlite3_column_int64(row, 2)},
                                 .stored_share = sqlite3_column_double(row, 3) / LADDER_RAW_BITS,
                                 .loss = sqlite3_column_double(row, 4),
                                 .loss_upper = sqlite3_column_double(row, 5)};
        if ((curve.variant.mode & QUALITY_MERGED_MODE) != 0) continue;
        if (list->count < LADDER_CANDIDATES_MAX) list->curves[list->count++] = curve;
    }
    sqlite3_finalize(row);
    return result;
}

/* Every calibration is of K and V: a model's queries read both. None holds for a layout of one
 * side, whose matrix serves as keys and values at once. */
static bool ladder_is_one_sided(const kvt_layout *layout, char *message, size_t size)
{
    if (layout == NULL || kvt_layout_sides(layout) == 2) return false;
    profile_say(message, size,
                "calibrations are of layouts with K and V; none holds for a layout of one side");
    return true;
}

/* A model without a shape (0) holds for any layout of two sides. */
static kvt_status ladder_check_layout(kvt_profile *profile, const char *model,
                                      const kvt_layout *layout, char *message, size_t size)
{
    sqlite3_stmt *row = NULL;
    kvt_status status = KVT_MISS;
    if (ladder_is_one_sided(layout, message, size)) return KVT_E_MISMATCH;
    int result = ladder_prepare(profile,
                                "SELECT layers, kv_heads, head_dim FROM model WHERE name = ?1 "
                                "ORDER BY id",
                                model, NULL, &row);
    while (result == SQLITE_OK && status != KVT_OK) {
        result = sqlite3_step(row);
        if (result != SQLITE_ROW) break;
        result = SQLITE_OK;
        int shape[3] = {sqlite3_column_int(row, 0), sqlite3_column_int(row, 1),
                        sqlite3_column_int(row, 2)};
        status = KVT_OK;
        if (layout == NULL) continue;
        int wanted[3] = {layout->layers, layout->kv_heads, layout->head_dim};
        for (int i = 0; i < 3; i++)
            if (shape[i] != 0 && shape[i] != wanted[i]) status = KVT_E_MISMATCH;
        if (status == KVT_E_MISMATCH) {
            profile_say(message, size,
                        "the figures of %s are of %d layers, %d KV heads, head dimension %d; the "
                        "layout has %d, %d, %d",
                        model, shape[0], shape[1], shape[2], wanted[0], wanted[1], wanted[2]);
        }
    }
    sqlite3_finalize(row);
    if (result != SQLITE_OK && result != SQLITE_DONE)
        return ladder_status(profile, result, message, size);
    if (status == KVT_MISS) profile_say(message, size, "the profile knows no model %s", model);
    return status;
}

/* Drops variants that another beats, or equals, in both size and loss. Sizes fall afterwards. */
static void ladder_drop_beaten(ladder_list *list)
{
    double best = INFINITY, smallest = INFINITY;
    uint32_t kept = list->count;
    for (uint32_t i = list->count; i-- > 0;) {
        const kvt_codec_curve *curve = &list->curves[i];
        bool larger = kept == list->count || curve->stored_share > smallest;
        if (curve->loss >= best || !larger) continue;
        best = curve->loss;
        smallest = curve->stored_share;
        list->curves[--kept] = *curve;
    }
    list->count -= kept;
    memmove(list->curves, list->curves + kept, list->count * sizeof list->curves[0]);
}

/* A calibration's order counts; a rung that is not smaller than the last one says nothing. */
static void ladder_drop_larger(ladder_list *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        if (count > 0 && list->curves[i].stored_share >= list->curves[count - 1].stored_share)
            continue;
        list->curves[count++] = list->curves[i];
    }
    list->count = count;
}

static bool ladder_same(kvt_variant a, kvt_variant b)
{
    return a.codec == b.codec && a.mode == b.mode && a.rate == b.rate;
}

/* Exact bytes in front, where the evidence does not list them. */
static void ladder_put_raw(ladder_list *list)
{
    const kvt_variant raw = {.codec = KVT_CODEC_RAW};
    if (list->count > 0 && ladder_same(list->curves[0].variant, raw)) return;
    while (list->count > 0 && list->curves[0].stored_share >= 1.0) {
        list->count--;
        memmove(list->curves, list->curves + 1, list->count * sizeof list->curves[0]);
    }
    if (list->count == LADDER_CANDIDATES_MAX) list->count--;
    memmove(list->curves + 1, list->curves, list->count * sizeof list->curves[0]);
    list->curves[0] = (kvt_codec_curve){.variant = {.codec = KVT_CODEC_RAW}, .stored_share = 1.0};
    list->count++;
}

/* Leaves out the variants nearest to the line between their neighbours: what is missed least. */
static void ladder_thin(ladder_list *list, uint32_t capacity)
{
    while (list->count > capacity) {
        uint32_t least = list->count - 1;
        double least_gap = INFINITY;
        for (uint32_t i = 1; i + 1 < list->count; i++) {
            const kvt_codec_curve *a = &list->curves[i - 1], *b = &list->curves[i + 1];
            double share = (a->stored_share - list->curves[i].stored_share) /
                           (a->stored_share - b->stored_share);
            double gap = fabs(a->loss + share * (b->loss - a->loss) - list->curves[i].loss);
            if (gap >= least_gap) continue;
            least = i;
            least_gap = gap;
        }
        list->count--;
        memmove(list->curves + least, list->curves + least + 1,
                (list->count - least) * sizeof list->curves[0]);
    }
}

/* Of the measured variant of the same codec whose size is nearest: calibrated steps are finer than
 * the list of variants that are timed, and a codec's speed changes little along them. Of variants
 * that drop tokens first, one that does not may stand for those. A basis has a speed of its own. */
static kvt_status ladder_near_speed(kvt_profile *profile, const kvt_codec_curve *curve,
                                    kvt_codec_curve *speed)
{
    profile_row row = profile_row_begin(
        profile, "SELECT c.encode_bytes_per_s, c.decode_bytes_per_s, r.kind = 'import' FROM "
                 "codec_curve c JOIN run r ON r.id = c.run_id WHERE c.codec = ? AND (c.codec <> 8 "
                 "OR c.rate >> 10 = ?) ORDER BY (c.mode >> 8 <> 0) <> ?, " PROFILE_ORDER
                 ", c.threads, abs(c.stored_share - ?), c.decode_bytes_per_s DESC LIMIT 1");
    profile_row_integer(&row, curve->variant.codec);
    profile_row_integer(&row, curve->variant.rate >> PROFILE_BASIS_SHIFT);
    profile_row_integer(&row, curve->variant.mode >> 8 != 0);
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

static kvt_status ladder_speeds(kvt_profile *profile, ladder_list *list, char *message, size_t size)
{
    for (uint32_t i = 0; i < list->count; i++) {
        kvt_codec_curve *curve = &list->curves[i], speed;
        char name[96];
        kvt_status status = kvt_profile_codec(profile, curve->variant, &speed);
        if (status == KVT_MISS) status = ladder_near_speed(profile, curve, &speed);
        (void)kvt_variant_format(curve->variant, name, sizeof name);
        if (status == KVT_MISS) {
            profile_say(message, size,
                        "the profile has no speed of %s: measure it (kvterrace profile codecs) or "
                        "import it ([codec])",
                        name);
        } else if (status != KVT_OK) {
            profile_say(message, size, "%s", kvt_status_text(status));
        }
        if (status != KVT_OK) return status;
        curve->encode_bytes_per_s = speed.encode_bytes_per_s;
        curve->decode_bytes_per_s = speed.decode_bytes_per_s;
        curve->imported = speed.imported;
    }
    return KVT_OK;
}

kvt_status kvt_profile_ladder(kvt_profile *profile, const char *model, const char *class_name,
                              const kvt_layout *layout, kvt_codec_curve *curves, uint32_t capacity,
                              uint32_t *count_out, char *message, size_t message_size)
{
    assert(profile != NULL && model != NULL && class_name != NULL && count_out != NULL);
    assert(curves != NULL && capacity >= 2);
    ladder_list list = {.count = 0};
    *count_out = 0;
    kvt_status status = ladder_check_layout(profile, model, layout, message, message_size);
    if (status != KVT_OK) return status;
    int result = ladder_read(profile, ladder_calibration, model, class_name, &list);
    bool calibrated = list.count > 0;
    if (!calibrated && (result == SQLITE_DONE))
        result = ladder_read(profile, ladder_quality, model, class_name, &list);
    status = ladder_status(profile, result, message, message_size);
    if (status != KVT_OK) return status;
    if (list.count == 0) {
        profile_say(message, message_size, "no calibration or quality of %s for the class %s",
                    model, class_name);
        return KVT_MISS;
    }
    if (calibrated) {
        ladder_drop_larger(&list);
    } else {
        ladder_drop_beaten(&list);
    }
    ladder_put_raw(&list);
    ladder_thin(&list, capacity);
    status = ladder_speeds(profile, &list, message, message_size);
    if (status != KVT_OK) return status;
    memcpy(curves, list.curves, list.count * sizeof curves[0]);
    *count_out = list.count;
    return KVT_OK;
}

/* ---- the ladder of a calibration ---- */

enum { RUNGS_MAX = 64, RUNGS_BASES = 3 };

/* Rungs of one calibration, as they are read. */
typedef struct rungs_list {
    kvt_codec_curve curves[RUNGS_MAX];
    uint32_t spans[RUNGS_MAX]; /* of the variants' bases; 0: none is needed */
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
    if (!rungs_is_larger(rungs, curve, span) && rungs_takes(layout, curve->variant)) rungs->count++;
}

static kvt_status rungs_read_all(kvt_profile *profile, const kvt_layout *layout,
                                 int64_t calibration, rungs_list *rungs)
{
    profile_row row = profile_row_begin(
        profile,
        "SELECT codec, mode, rate, bits_per_element, loss, loss_upper, (SELECT CAST(chosen AS "
        "REAL) FROM calibration_choice h WHERE h.calibration_id = g.calibration_id AND question = "
        "'" PROFILE_ENTRY_LIMIT "' || g.name), (SELECT CAST(chosen AS REAL) FROM "
        "calibration_choice h WHERE h.calibration_id = g.calibration_id AND question = "
        "'" PROFILE_WIDENING "') FROM calibration_rung g WHERE calibration_id = ? AND "
        "accepted = 1 ORDER BY position");
    profile_row_integer(&row, (uint64_t)calibration);
    if (row.result == SQLITE_OK) row.result = sqlite3_step(row.statement);
    while (row.result == SQLITE_ROW && rungs->count < RUNGS_MAX) {
        rungs_add(profile, layout, row.statement, rungs);
        row.result = sqlite3_step(row.statement);
    }
    kvt_status status = rungs_status(row.result);
    sqlite3_finalize(row.statement);
    return status == KVT_MISS ? KVT_OK : status;
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

/* Of bases first those beyond RUNGS_BASES, so that they do not push out what decodes fast. */
static void rungs_thin(rungs_list *rungs, uint32_t capacity)
{
    while (rungs->count > capacity) {
        uint32_t closest = 1, bases = 0;
        double least = 1e300;
        for (uint32_t i = 0; i < rungs->count; i++)
            bases += rungs->spans[i] != 0;
        for (uint32_t i = 1; i + 1 < rungs->count; i++) {
            if (bases > RUNGS_BASES && rungs->spans[i] == 0) continue;
            double gap = rungs->curves[i - 1].stored_share / rungs->curves[i + 1].stored_share;
            if (gap < least) closest = i;
            if (gap < least) least = gap;
        }
        rungs_remove(rungs, closest);
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
        (void)snprintf(message, message_size, "a ladder is for layouts of K and V");
        return KVT_E_ARGUMENT;
    }
    if (ladder_is_one_sided(&one, message, message_size)) return KVT_E_MISMATCH;
    kvt_status status =
        rungs_find(profile, &one, model, class_name, &calibration, message, message_size);
    if (status == KVT_OK) status = rungs_read_all(profile, &one, calibration, &rungs);
    if (status != KVT_OK) return status;
    rungs_sort(&rungs);
    rungs_refuse_beaten(&rungs);
    rungs_thin(&rungs, capacity);
    for (uint32_t i = 0; i < rungs.count; i++) {
        kvt_codec_curve speeds;
        status = kvt_profile_codec(profile, rungs.curves[i].variant, &speeds);
        if (status == KVT_MISS && rungs.spans[i] != 0)
            status = ladder_near_speed(profile, &rungs.curves[i], &speeds);
        if (status < 0) return status;
        curves[i] = rungs.curves[i];
        if (status == KVT_OK) curves[i].encode_bytes_per_s = speeds.encode_bytes_per_s;
        if (status == KVT_OK) curves[i].decode_bytes_per_s = speeds.decode_bytes_per_s;
    }
    *count_out = rungs.count;
    return KVT_OK;
}
