/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_round_trip.h - one entry through a record and back: what it costs in bits and what it
 * does to the numbers. Measuring quality, the codecs bench and `kvterrace encode` all go through
 * here.
 *
 * Thread rule: one thread per round trip.
 */
#ifndef ESTIMATOR_QUALITY_ROUND_TRIP_H
#define ESTIMATOR_QUALITY_ROUND_TRIP_H

#include "codecs/record.h"
#include "estimator/model/model.h"
#include "estimator/profile/profile_quality.h"

#include <kvterrace/codec.h>
#include <kvterrace/rope.h>
#include <kvterrace/types.h>

typedef struct quality_round_trip {
    kvt_layout layout;      /* of the source */
    kvt_record_bases bases; /* that variants may need; the caller's, none after opening */
    uint64_t source_bytes;
    uint64_t matrix_bytes;
    uint8_t *source;  /* the caller's to fill */
    uint8_t *decoded; /* as the source; rows of dropped tokens are zero */
    uint8_t *kept;    /* [layers][tokens], 0 where a token was dropped */
    bool dropped;     /* some token was */

    /* Of the last run. */
    uint8_t *record;
    kvt_record_info info;
    double nmse[2];    /* K, V: energy of the error over energy, of kept tokens; 0 for no energy */
    uint32_t *kept_at; /* [tokens] of work space */
    uint8_t *compact;  /* the decoded rows of kept tokens, one after the other */
    uint8_t *scratch;
    uint64_t record_capacity;
    uint64_t scratch_capacity;
} quality_round_trip;

/* KVT_OK; KVT_E_ARGUMENT (a layout that is not sound, or opaque); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_round_trip_open(const kvt_layout *layout,
                                                 quality_round_trip *round_trip);
void quality_round_trip_close(
    quality_round_trip *round_trip); /* also after open failed; zeroed is allowed */

/* The source encoded with the variant, decoded, and compared. merged: the codec is shown one wide
 * head instead of kv_heads, so that its groups of V run over the whole row. KVT_OK (also for what
 * fell back to raw); KVT_E_UNSUPPORTED (the layout is none for this variant); KVT_E_MEMORY;
 * KVT_E_CORRUPT (a record that does not decode, or an exact codec that was not). */
KVT_NODISCARD kvt_status quality_round_trip_run(quality_round_trip *round_trip, kvt_variant variant,
                                                bool merged);

/* Source and decoded KV as a probe of attention takes them; lives as long as the buffers of the
 * round trip. */
typedef struct quality_round_trip_kv {
    model_past exact, variant;
    void *memory;
} quality_round_trip_kv;

/* KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_round_trip_kv_open(const quality_round_trip *round_trip,
                                                    quality_round_trip_kv *kv);
void quality_round_trip_kv_close(quality_round_trip_kv *kv);

/* For whoever has no fp8: makes *entry the bf16 of the same values and *layout that of these. Other
 * elements stay as they are, and *owned_out is NULL; free it. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_widen(kvt_layout *layout, const void **entry, void **owned_out);

/* Room for at least `bytes`, aligned to a page and with its pages touched; what was there is lost.
 * KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_round_trip_room(uint8_t **memory, uint64_t *capacity,
                                                 uint64_t bytes);

/* The codec's name, or "drop" when the variant drops tokens first. */
const char *quality_variant_codec(kvt_variant variant);
bool quality_variant_drops(kvt_variant variant);

/* ---- attention over one entry, exact and from every variant ---- */

/* Bits an element of a record's payload without the chain's sinks, which are stored raw: what the
 * variant takes of every other token. Offers add the sinks of an entry that has them. */
double quality_coded_bits(const kvt_record_info *info);

/*
 * No model runs. The queries attend to one entry's K and V as they are (once per entry) and as
 * every variant gives them back; outputs, the weight on dropped tokens and the strongest token of
 * each query are compared. Codes are decoded one matrix at a time into the fp32 that the products
 * take; nothing is allocated between variants once buffers have grown to the largest.
 *
 * One thread per quality_attention. Products are OpenBLAS's: one thread of it each
 * (model_set_blas_threads).
 */

/* Where a high quantile over layers and heads is taken. */
#define QUALITY_ATTENTION_HIGH 0.9

typedef struct quality_attention quality_attention;

/* Room for an entry of the layout and query_rows queries per head, query_heads a multiple of the
 * layout's heads. KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_attention_open(const kvt_layout *layout, uint32_t query_heads,
                                                uint32_t query_rows, quality_attention **out);
void quality_attention_close(quality_attention *attention); /* NULL is allowed */

/* Bases that variants may need, the caller's; none after opening. */
void quality_attention_set_bases(quality_attention *attention, kvt_record_bases bases);

/* The caller's to fill: the entry, and queries as quality_dump_load_queries gives them. */
void *quality_attention_source(quality_attention *attention);
float *quality_attention_queries(quality_attention *attention);

/* The exact side; before the first variant, and after source or queries have changed. */
void quality_attention_exact(quality_attention *attention);

/*
 * One variant. Of row_out are set: present, bits_per_element, physical_bits_per_element,
 * attention_error (relative, |o - o'| / |o| over the queries of a head; mean over layers and
 * heads), attention_error_high (their QUALITY_ATTENTION_HIGH quantile), retained_mass (exact weight
 * on tokens that were kept) and flip_rate (share of queries whose strongest token is another one);
 * the rest is NAN. merged: the codec is shown the row as one head.
 * KVT_OK, present false when the codec does not take the layout; KVT_E_CORRUPT (a record that does
 * not decode); KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status quality_attention_run(quality_attention *attention, kvt_variant variant,
                                               bool merged, quality_row *row_out);

/* Attention with noise on K or V of one layer, [tokens][kv_heads][head_dim]: the squared relative
 * error of an output, mean over the layer's heads. The exact side was made before. */
void quality_attention_disturb(quality_attention *attention, uint32_t layer, kvt_side side,
                               const float *noise, double *error_out);

/* ---- KV dumps ---- */

/*
 * A dump is a safetensors file with one entry's K and V and, if there are any, queries that
 * attended to it. Tensors are k.<layer> and v.<layer>, of shape [tokens, kv_heads, head_dim] in
 * F16, BF16 or F32, layers from 0 without gaps, and q.<layer> of shape [rows, heads, head_dim].
 * Keys and queries are post-RoPE; the entry's first token stands at position 0. An open dump is
 * read-only; any number of threads may load from it.
 *
 * The file's metadata may say, as strings, how keys and queries turn and where the queries stand:
 *
 *   rope_theta         the base of the frequencies; or "none": nothing turns
 *   rope_pairing       "halves" or "neighbours" (kvt_rope_pairing)
 *   rope_dim           channels of a head that turn; the whole head where it is absent
 *   rope_frequencies   [rope_dim / 2] with commas between them, in radians a position, instead of
 *                      rope_theta; dumps that are written here have them
 *   query_positions    of the query rows, with commas between them
 *   queries            "last" instead: the rows are the entry's last tokens
 */

typedef struct safetensors safetensors;

typedef struct quality_dump {
    safetensors *file;
    kvt_layout layout;                /* layer by layer, K before V */
    uint32_t query_heads, query_rows; /* 0: there are no queries */
    uint32_t ignored;                 /* tensors of other names */
    const char *type;                 /* of K and V, as safetensors names it */
} quality_dump;

/* Opens `path` and checks that every tensor fits. KVT_OK; KVT_E_PARSE (the dump is not of this
 * form; the message says what is missing or does not fit); KVT_E_CORRUPT (not a sound safetensors
 * file); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_dump_open(const char *path, quality_dump *dump_out, char *message,
                                           size_t message_size);

/* The same, of 8-bit floats as well, which are bytes to whoever asks for no numbers. */
KVT_NODISCARD kvt_status quality_dump_open_bytes(const char *path, quality_dump *dump_out,
                                                 char *message, size_t message_size);
void quality_dump_close(quality_dump *dump); /* zeroed is allowed */

/* The entry as the layout says, kvt_layout_bytes of it. */
void quality_dump_load(const quality_dump *dump, void *source);

/* `rows` of the dump's query rows, evenly spread over them, in the order in which attention over
 * one KV head takes them: [layers][kv_heads][group][rows][head_dim] with group = query_heads /
 * kv_heads. rows is 1 .. query_rows. */
void quality_dump_load_queries(const quality_dump *dump, uint32_t rows, float *queries);

/* All of one layer's queries, [query_rows][query_heads][head_dim]. */
void quality_dump_layer_queries(const quality_dump *dump, uint32_t layer, float *queries);

/* Of all K, V and queries: equal dumps have equal ones. */
uint64_t quality_dump_digest(const quality_dump *dump);

/* ---- how a dump's keys turn ---- */

enum { QUALITY_ROPE_PAIRS = 4096 /* at most */ };

typedef struct quality_rope {
    uint32_t rotary_dim;                    /* 0: keys do not turn */
    uint8_t pairing;                        /* kvt_rope_pairing */
    double frequencies[QUALITY_ROPE_PAIRS]; /* [rotary_dim / 2] */
} quality_rope;

/* How a model's keys turn. */
void quality_rope_of(const model_config *config, quality_rope *rope_out);

/* Reads "THETA,PAIRING[,DIM]" or "none", for heads of head_dim. KVT_OK; KVT_E_PARSE. */
KVT_NODISCARD kvt_status quality_rope_parse(const char *text, uint32_t head_dim,
                                            quality_rope *rope_out);

/* Reads what the dump's metadata says. KVT_OK; KVT_MISS: nothing; KVT_E_PARSE (what it says makes
 * no sense; the message names it). */
KVT_NODISCARD kvt_status quality_dump_rope(const quality_dump *dump, const char *path,
                                           quality_rope *rope_out, char *message,
                                           size_t message_size);

/* The positions of the query rows, [query_rows]. KVT_OK; KVT_MISS: the metadata does not say;
 * KVT_E_PARSE. */
KVT_NODISCARD kvt_status quality_dump_positions(const quality_dump *dump, const char *path,
                                                uint32_t *positions_out, char *message,
                                                size_t message_size);

/* The parts of a dump. Matrices are in layout.dtype. */
typedef struct quality_dump_content {
    kvt_layout layout;
    const void *const *k; /* [layers], each [tokens][kv_heads][head_dim] */
    const void *const *v;
    const float *const *queries; /* [layers], each [query_rows][query_heads][head_dim] */
    uint32_t query_heads, query_rows;
    const quality_rope *rope;  /* as the metadata is to say it; NULL: it does not */
    const uint32_t *positions; /* of the query rows; NULL: the metadata does not say them */
} quality_dump_content;

/* Writes a dump, queries in F32; the file appears under `path` when it is complete. KVT_OK;
 * KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status quality_dump_write(const char *path, const quality_dump_content *content,
                                            char *message, size_t message_size);

#endif
