/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_break_even.c - the break-even tables of a profile's document, and how long contexts take
 * to load and to compute (docs/PROFILE.md has the formulas). One thread.
 *
 *   break_even.codecs   a form, by source of KV and threads: the bandwidth of a device above which
 *                       raw bytes are there sooner
 *   break_even.devices  a device or all of a tier, a prefill and a form: the tokens below which
 *                       computing is faster than loading
 *   load                the same pairs: seconds to load and to compute contexts of several lengths
 */
#include "estimator/predict/predict.h"
#include "profile_document.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The forms of the device tables: what a store keeps, from exact to coarse. */
static const char *const even_forms[] = {"raw", "lossless", "planes:k8v8,g64", "planes:k4v4,g64",
                                         "entropy:k0.5v1,vchan"};
#define EVEN_FORMS 5u

static const double even_tokens[] = {256, 1024, 4096, 16384, 65536, 131072};
#define EVEN_LENGTHS (sizeof even_tokens / sizeof even_tokens[0])

/* A place that loads come from: a device, or a tier's devices striped together. */
typedef struct even_place {
    char name[64];
    const char *tier;
    bool imported;
    kvt_affine read;
} even_place;

#define EVEN_PLACES_MAX 256u

typedef struct even_state {
    json_t *document;
    even_place places[EVEN_PLACES_MAX];
    size_t place_count;
    kvt_codec_curve forms[EVEN_FORMS];
    bool form_present[EVEN_FORMS];
    uint32_t threads;
} even_state;

static kvt_codec_curve even_curve(const json_t *row)
{
    return (kvt_codec_curve){
        .stored_share = view_number(row, "stored_share", 1),
        .encode_bytes_per_s = view_number(row, "encode_bytes_per_s", 0),
        .decode_bytes_per_s = view_number(row, "decode_bytes_per_s", 0),
    };
}

/* What the machine has is what it uses; the others were measured for comparison. */
static int even_rank(const json_t *row)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(view_text(row, "isa"), sets[i]) == 0) return i;
    }
    return 3;
}

static bool even_is_gpu(const json_t *row)
{
    return strcmp(view_text(row, "isa"), "cuda") == 0;
}

/* The row of a form on so many threads of one source, on the best instruction set, or on a GPU. */
static const json_t *even_find(const json_t *document, const char *name, const char *source,
                               uint32_t threads, bool gpu)
{
    const json_t *row, *best = NULL;
    size_t i;
    json_array_foreach(json_object_get(document, "codecs"), i, row)
    {
        if (strcmp(view_text(row, "name"), name) != 0 ||
            strcmp(view_text(row, "source"), source) != 0 ||
            (uint32_t)view_number(row, "threads", 0) != threads || even_is_gpu(row) != gpu) {
            continue;
        }
        if (best == NULL || even_rank(row) > even_rank(best)) best = row;
    }
    return best;
}

/* Whether it is the row that even_find gives for its like. */
static bool even_is_best(const json_t *document, const json_t *row)
{
    return even_find(document, view_text(row, "name"), view_text(row, "source"),
                     (uint32_t)view_number(row, "threads", 0), even_is_gpu(row)) == row;
}

/* ---- forms against raw ---- */

static json_t *even_codec_row(const json_t *document, const json_t *row)
{
    const uint32_t threads = (uint32_t)view_number(row, "threads", 0);
    const char *source = view_text(row, "source");
    const json_t *raw_row = even_find(document, "raw", source, threads, even_is_gpu(row));
    if (raw_row == NULL || raw_row == row) return NULL;
    kvt_codec_curve raw = even_curve(raw_row), form = even_curve(row);
    const double bandwidth = kvt_break_even_bandwidth(&raw, &form);
    const char *pays = bandwidth <= 0 ? "never" : isinf(bandwidth) ? "always" : "below";
    return json_pack("{s:s, s:s, s:I, s:s, s:f, s:f, s:s, s:o}", "codec", view_text(row, "name"),
                     "source", source, "threads", (json_int_t)threads, "isa", view_text(row, "isa"),
                     "stored_share", form.stored_share, "decode_bytes_per_s",
                     form.decode_bytes_per_s, "pays", pays, "bytes_per_s", view_real(bandwidth));
}

static kvt_status even_add_codecs(const even_state *state, json_t *rows)
{
    json_t *row;
    size_t i;
    json_array_foreach(json_object_get(state->document, "codecs"), i, row)
    {
        const bool best = even_is_best(state->document, row);
        if (json_object_set_new(row, "best", json_boolean(best)) != 0) return KVT_E_MEMORY;
        if (!best) continue;
        json_t *even = even_codec_row(state->document, row);
        if (even != NULL && json_array_append_new(rows, even) != 0) return KVT_E_MEMORY;
    }
    return KVT_OK;
}

/* ---- loading against computing ---- */

/* Speed of one decoding thread: it holds on a busy machine too. */
static void even_take_forms(even_state *state)
{
    const json_t *row = json_array_get(json_object_get(state->document, "codecs"), 0);
    const char *source = view_text(row, "source"); /* generated KV comes first */
    for (size_t form = 0; form < EVEN_FORMS; form++) {
        row = even_find(state->document, even_forms[form], source, state->threads, false);
        state->form_present[form] = row != NULL;
        if (row != NULL) state->forms[form] = even_curve(row);
    }
    if (state->form_present[0]) return;
    /* Without codecs: bytes as they are, decoded by nobody. */
    state->form_present[0] = true;
    state->forms[0] = (kvt_codec_curve){.stored_share = 1};
}

static void even_take_places(even_state *state)
{
    const json_t *device;
    size_t i, pooled = 0;
    even_place pool = {.tier = ""};
    json_array_foreach(json_object_get(state->document, "devices"), i, device)
    {
        even_place place = {.tier = view_text(device, "tier"),
                            .imported = json_is_true(json_object_get(device, "imported"))};
        (void)snprintf(place.name, sizeof place.name, "%s", view_text(device, "device"));
        if (!view_affine(device, "read", &place.read)) continue;
        if (state->place_count + 1 < EVEN_PLACES_MAX) state->places[state->place_count++] = place;
        if (strcmp(place.tier, "ssd") != 0 || place.imported) continue;
        pool.tier = place.tier;
        pool.read.request_seconds = fmax(pool.read.request_seconds, place.read.request_seconds);
        pool.read.bytes_per_s += place.read.bytes_per_s;
        pooled++;
    }
    if (pooled < 2) return;
    (void)snprintf(pool.name, sizeof pool.name, "%zu ssd striped", pooled);
    state->places[state->place_count++] = pool;
}

static kvt_prefill even_prefill(const json_t *row)
{
    return (kvt_prefill){
        .linear_seconds_per_token = view_number(row, "linear_seconds_per_token", 0),
        .square_seconds_per_token2 = view_number(row, "square_seconds_per_token2", 0),
        .fixed_seconds = view_number(row, "fixed_seconds", 0),
    };
}

static kvt_status even_add_device(const even_state *state, const even_place *place,
                                  const json_t *prefill_row, json_t *rows)
{
    const kvt_prefill prefill = even_prefill(prefill_row);
    const double token_bytes = view_number(prefill_row, "token_bytes", 1);
    for (size_t form = 0; form < EVEN_FORMS; form++) {
        if (!state->form_present[form]) continue;
        const double tokens =
            kvt_break_even_tokens(&place->read, &state->forms[form], token_bytes, &prefill);
        const char *loading = tokens <= 1 ? "always" : isinf(tokens) ? "never" : "from";
        json_t *row =
            json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:s, s:o}", "device", place->name, "tier",
                      place->tier, "prefill", view_text(prefill_row, "name"), "codec",
                      even_forms[form], "threads", (json_int_t)state->threads, "token_bytes",
                      token_bytes, "loading_wins", loading, "tokens", view_real(tokens));
        if (json_array_append_new(rows, row) != 0) return KVT_E_MEMORY;
    }
    return KVT_OK;
}

/* Seconds by length: of a place when it is given, else of the prefill. */
static json_t *even_seconds(const even_state *state, const even_place *place,
                            const json_t *prefill_row)
{
    const kvt_prefill prefill = even_prefill(prefill_row);
    const double token_bytes = view_number(prefill_row, "token_bytes", 1);
    json_t *seconds = json_array();
    for (size_t i = 0; i < EVEN_LENGTHS; i++) {
        double value =
            place != NULL
                ? kvt_load_seconds(&place->read, &state->forms[0], even_tokens[i] * token_bytes)
                : prefill.fixed_seconds +
                      kvt_prefill_seconds(&prefill, 0, (uint32_t)even_tokens[i]);
        json_array_append_new(seconds, view_real(value));
    }
    return seconds;
}

/* One table per size of a token: places' rows and, below, those of the prefills of that size. */
static kvt_status even_add_loads(const even_state *state, const json_t *prefill_row, json_t *loads)
{
    const json_t *bytes = json_object_get(prefill_row, "token_bytes");
    json_t *load, *table = NULL;
    size_t i;
    json_array_foreach(loads, i, load)
    {
        if (json_equal(json_object_get(load, "token_bytes"), bytes)) table = load;
    }
    if (table == NULL) {
        json_t *lengths = json_array(), *rows = json_array();
        for (i = 0; i < EVEN_LENGTHS; i++)
            json_array_append_new(lengths, json_real(even_tokens[i]));
        table = json_pack("{s:O, s:o, s:o, s:[]}", "token_bytes", bytes, "tokens", lengths, "loads",
                          rows, "prefills");
        if (json_array_append_new(loads, table) != 0) return KVT_E_MEMORY;
        for (i = 0; i < state->place_count; i++) {
            json_t *row = json_pack("{s:s, s:s, s:b, s:o}", "device", state->places[i].name, "tier",
                                    state->places[i].tier, "imported", state->places[i].imported,
                                    "seconds", even_seconds(state, &state->places[i], prefill_row));
            if (json_array_append_new(rows, row) != 0) return KVT_E_MEMORY;
        }
    }
    json_t *row = json_pack("{s:s, s:o}", "prefill", view_text(prefill_row, "name"), "seconds",
                            even_seconds(state, NULL, prefill_row));
    return json_array_append_new(json_object_get(table, "prefills"), row) == 0 ? KVT_OK
                                                                               : KVT_E_MEMORY;
}

kvt_status profile_break_even_add(json_t *document)
{
    static even_state state;
    state = (even_state){.document = document, .threads = 1};
    json_t *codecs = json_array(), *devices = json_array(), *loads = json_array();
    json_t *even = json_pack("{s:o, s:o}", "codecs", codecs, "devices", devices);
    const json_t *prefill;
    size_t i;
    if (json_object_set_new(document, "break_even", even) != 0 ||
        json_object_set_new(document, "load", loads) != 0) {
        return KVT_E_MEMORY;
    }
    kvt_status status = even_add_codecs(&state, codecs);
    even_take_forms(&state);
    even_take_places(&state);
    json_array_foreach(json_object_get(document, "prefill"), i, prefill)
    {
        for (size_t place = 0; place < state.place_count && status == KVT_OK; place++) {
            status = even_add_device(&state, &state.places[place], prefill, devices);
        }
        if (status == KVT_OK) status = even_add_loads(&state, prefill, loads);
    }
    return status;
}
