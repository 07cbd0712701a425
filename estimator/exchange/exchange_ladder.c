/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_ladder.c - the variants that a simulation's entries may take: from a calibration, from
 * what was measured or imported of a model's quality, or from a file. Thread rule: as profile.h
 * says.
 */
#include "estimator/exchange/exchange.h"
#include "estimator/exchange/exchange_rows.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_quality.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LADDER_RAW_BITS 16.0

/* Variants with size and loss; speeds come last. */
typedef struct ladder_list {
    kvt_codec_curve curves[PROFILE_CANDIDATES_MAX];
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
        if (list->count < PROFILE_CANDIDATES_MAX) list->curves[list->count++] = curve;
    }
    sqlite3_finalize(row);
    return result;
}

/* A model without a shape (0) holds for any layout. */
static kvt_status ladder_check_layout(kvt_profile *profile, const char *model,
                                      const kvt_layout *layout, char *message, size_t size)
{
    sqlite3_stmt *row = NULL;
    kvt_status status = KVT_MISS;
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
    if (list->count == PROFILE_CANDIDATES_MAX) list->count--;
    memmove(list->curves + 1, list->curves, list->count * sizeof list->curves[0]);
    list->curves[0] = (kvt_codec_curve){.variant = {.codec = KVT_CODEC_RAW}, .stored_share = 1.0};
    list->count++;
}

/* Variants without a speed keep 0. */
static kvt_status ladder_speeds(kvt_profile *profile, ladder_list *list, char *message, size_t size)
{
    for (uint32_t i = 0; i < list->count; i++) {
        kvt_codec_curve *curve = &list->curves[i], speed;
        kvt_status status = kvt_profile_codec(profile, curve->variant, &speed);
        if (status == KVT_MISS) status = profile_ladder_near_speed(profile, curve, &speed);
        if (status == KVT_MISS) continue;
        if (status != KVT_OK) profile_say(message, size, "%s", kvt_status_text(status));
        if (status != KVT_OK) return status;
        curve->encode_bytes_per_s = speed.encode_bytes_per_s;
        curve->decode_bytes_per_s = speed.decode_bytes_per_s;
        curve->imported = speed.imported;
    }
    return KVT_OK;
}

/* A simulation needs the speed of every variant that it has. */
static kvt_status ladder_check_speeds(const ladder_list *list, char *message, size_t size)
{
    for (uint32_t i = 0; i < list->count; i++) {
        char name[96];
        if (list->curves[i].decode_bytes_per_s > 0.0) continue;
        (void)kvt_variant_format(list->curves[i].variant, name, sizeof name);
        profile_say(message, size,
                    "the profile has no speed of %s: measure it (kvterrace profile codecs) or "
                    "import it ([codec])",
                    name);
        return KVT_MISS;
    }
    return KVT_OK;
}

kvt_status exchange_ladder(kvt_profile *profile, const char *model, const char *class_name,
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
    status = ladder_speeds(profile, &list, message, message_size);
    if (status != KVT_OK) return status;
    profile_ladder_choose(list.curves, &list.count, capacity);
    status = ladder_check_speeds(&list, message, message_size);
    if (status != KVT_OK) return status;
    memcpy(curves, list.curves, list.count * sizeof curves[0]);
    *count_out = list.count;
    return KVT_OK;
}

/* ---- a ladder in a file ---- */

#define LADDER_BITS_MAX 17.0 /* raw elements have 16, and a record has a head */

static kvt_status ladder_row(const rows_file *file, size_t index, kvt_codec_curve *curve)
{
    const rows_column *columns = rows_ladder.columns;
    const json_t *row = json_array_get(rows_of(file, &rows_ladder), index);
    double numbers[LADDER_DECODE + 1] = {0};
    char name[160];
    kvt_status status = rows_check(file, &rows_ladder, index);
    if (status != KVT_OK) return status;
    for (size_t c = LADDER_BITS; c <= LADDER_DECODE; c++)
        numbers[c] = json_number_value(json_object_get(row, columns[c].name));
    *curve = (kvt_codec_curve){.stored_share = numbers[LADDER_BITS] / 16.0,
                               .loss = numbers[LADDER_LOSS],
                               .loss_upper = numbers[LADDER_UPPER],
                               .encode_bytes_per_s = numbers[LADDER_ENCODE],
                               .decode_bytes_per_s = numbers[LADDER_DECODE]};
    (void)rows_variant(json_string_value(json_object_get(row, "variant")), &curve->variant, name);
    if (curve->variant.mode & QUALITY_MERGED_MODE)
        return rows_fail(file, &rows_ladder, index, "variant", "no such variant");
    if (numbers[LADDER_BITS] > LADDER_BITS_MAX)
        return rows_fail(file, &rows_ladder, index, "bits", "more than 17");
    if (numbers[LADDER_ENCODE] < 1.0 || numbers[LADDER_DECODE] < 1.0)
        return rows_fail(file, &rows_ladder, index, NULL,
                         "encode and decode are at least 1 byte/s");
    if (curve->loss_upper < curve->loss)
        return rows_fail(file, &rows_ladder, index, "loss_upper", "below loss");
    if (index > 0 && curve->stored_share >= curve[-1].stored_share)
        return rows_fail(file, &rows_ladder, index, "bits", "sizes must fall from row to row");
    return KVT_OK;
}

kvt_status exchange_ladder_read(const char *path, kvt_codec_curve *curves, uint32_t capacity,
                                uint32_t *count_out, char *message, size_t message_size)
{
    rows_file file;
    *count_out = 0;
    kvt_status status = rows_open(&file, path, message, message_size);
    if (status != KVT_OK) return status;
    const size_t count = json_array_size(rows_of(&file, &rows_ladder));
    if (count == 0 || count > capacity) {
        profile_say(message, message_size, "%s: %s: %s", file.path, rows_ladder.name,
                    count == 0 ? "no variant" : "more variants than a ladder can have");
        status = KVT_E_PARSE;
    }
    for (size_t i = 0; i < count && status == KVT_OK; i++)
        status = ladder_row(&file, i, &curves[i]);
    rows_close(&file);
    if (status == KVT_OK) *count_out = (uint32_t)count;
    return status;
}
