/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.h - what was measured, and what it predicts.
 *
 * A profile is a SQLite database of measurements with their provenance: device curves (bandwidth
 * and latency by request size and depth) and codec curves (ratio, encode and decode speed). The
 * estimator turns curves into the numbers the policy decides on: bytes and seconds per option.
 *
 * Thread rule: one kvt_profile belongs to one thread at a time; several may read one file.
 * kvt_cost_model is plain data: any number of threads may read it.
 */
#ifndef KVTERRACE_PROFILE_H
#define KVTERRACE_PROFILE_H

#include "codec.h"
#include "device.h"
#include "policy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_profile kvt_profile;

enum {
    KVT_PROFILE_READ = 0,         /* must exist */
    KVT_PROFILE_WRITE = 1u << 0,  /* made when absent */
    KVT_PROFILE_FOREIGN = 1u << 1 /* accept another host's or library version's measurements */
};

/*
 * Opens a profile database and checks its integrity, schema version and host. The path ":memory:"
 * with WRITE gives one that is gone after closing.
 * KVT_OK; KVT_MISS (absent and not to be made); KVT_E_CORRUPT (not a sound profile: never
 * overwritten); KVT_E_VERSION; KVT_E_MISMATCH (measured on another host or by another
 * major.minor of the library; message says what differs); KVT_E_DATABASE; KVT_E_READ_ONLY;
 * KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_profile_open(const char *path, uint32_t flags,
                                                  kvt_profile **profile_out, char *message,
                                                  size_t message_size);
KVT_API void kvt_profile_close(kvt_profile *profile);

/* Writes the profile's content as of now into a new file. KVT_OK; KVT_E_IO (the file is there, or
 * cannot be made); KVT_E_DATABASE; KVT_E_SPACE; KVT_E_MEMORY. Nothing is left of a copy that
 * failed.
 */
KVT_API KVT_NODISCARD kvt_status kvt_profile_copy(kvt_profile *profile, const char *path,
                                                  char *message, size_t message_size);

/* Called now and then while measuring: share done in [0,1] and what is measured. Returning false
 * stops the measurement (KVT_E_CANCELLED); what was stored stays. */
typedef bool kvt_profile_progress(void *context, double done, const char *what);

/* KV of a model. name and bytes (kvt_layout_bytes of the layout) are the caller's. */
typedef struct kvt_profile_kv {
    const char *name; /* where it is from; kept as the curves' source */
    kvt_layout layout;
    const void *bytes;
} kvt_profile_kv;

typedef struct kvt_profile_request {
    uint32_t struct_size;
    double seconds_per_point; /* measuring time per (direction, size, depth, repetition); 0 = 0.05,
                                 quick 0.03 */
    uint32_t repetitions;     /* 0 = 5, quick 3 */
    bool quick;               /* a coarse grid of sizes and depths */
    const char *command_line; /* kept as provenance; may be NULL */
    double resume_seconds;    /* an interrupted run of the same command line, machine and settings
                                 that began at most so long ago is gone on with; 0 = never */
    kvt_profile_progress *progress;
    void *progress_context;
    /* Of the codecs alone: */
    const kvt_codec_workers *workers; /* measured on these threads too; NULL: on one thread only */
    const kvt_profile_kv *kv;         /* measured instead of generated KV; kv_count of them */
    uint32_t kv_count;
} kvt_profile_request;

/*
 * Measures one device and stores every point: direction x request size x depth, repetitions with
 * median and spread, and the fitted affine model. Overwrites the device's content when writing is
 * measured: pass write_offset and write_bytes of a range that may be overwritten (0 bytes = reads
 * only). KVT_OK; KVT_E_CANCELLED; KVT_E_IO and others of the device; KVT_E_DATABASE;
 * KVT_E_READ_ONLY (profile opened for reading, or writes on a device that refuses them);
 * KVT_E_ARGUMENT (tier, range or request); KVT_E_SPACE (range below one request); KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_profile_measure_device(kvt_profile *profile,
                                                            kvt_device *device, kvt_tier tier,
                                                            uint64_t write_offset,
                                                            uint64_t write_bytes,
                                                            const kvt_profile_request *request);

/* Measures the default ladder and its neighbours on generated bf16 KV (lognormal channel sigma, 10
 * % biased channels; seeded) or on the caller's KV, and stores sizes and speeds: the best
 * instruction set on one thread and on the caller's, and unless quick the lesser ones on one
 * thread. A codec that does not take the KV's shape is left out. No other thread may use codecs
 * meanwhile. KVT_OK; KVT_E_CANCELLED; KVT_E_DATABASE; KVT_E_READ_ONLY; KVT_E_ARGUMENT;
 * KVT_E_MEMORY; KVT_E_CORRUPT (an exact codec lost a bit). */
KVT_API KVT_NODISCARD kvt_status kvt_profile_measure_codecs(kvt_profile *profile,
                                                            const kvt_profile_request *request);

/* One measured point of a device. */
typedef struct kvt_device_point {
    uint8_t kind; /* kvt_io_kind */
    uint32_t request_bytes;
    uint32_t depth;
    uint32_t repetitions;
    double bytes_per_s; /* median */
    double bytes_per_s_min;
    double bytes_per_s_max;
    double latency_seconds_p50; /* of one request at this depth */
    double latency_seconds_p99;
} kvt_device_point;

/* Reads and writes at once, all of one size, so many in flight. */
typedef struct kvt_device_mixed {
    uint32_t request_bytes;
    uint32_t depth;
    uint32_t repetitions;
    double read_share;          /* of the requests */
    double bytes_per_s;         /* of both together; median */
    double unmixed_bytes_per_s; /* what the same mixture would give if the two did not meet */
    double read_latency_seconds_p50;
    double read_latency_seconds_p99;
} kvt_device_mixed;

/* Affine cost of moving bytes: request_seconds + bytes / bytes_per_s. */
typedef struct kvt_affine {
    double request_seconds;
    double bytes_per_s;
    double residual; /* largest relative error of the fit over the points it was fitted to */
} kvt_affine;

typedef struct kvt_device_curve {
    char device[32];
    char identity[96];
    char engine[32];
    uint8_t tier; /* kvt_tier */
    bool direct;
    bool emulated;
    uint64_t capacity_bytes;
    uint32_t depth_achieved;
    kvt_affine read;
    kvt_affine write;
    bool imported; /* published or measured elsewhere, not here */
} kvt_device_curve;

/* The newest curve of a device by name: of the newest complete run, or of an interrupted one when
 * there is no other. read and write each come from the newest run that measured them on the same
 * hardware or file; write is all zeros when none did. KVT_OK; KVT_MISS;
 * KVT_E_DATABASE. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_device(kvt_profile *profile, const char *device,
                                                    kvt_device_curve *out);

/* The index-th device with a curve, ordered by name; KVT_END past the last. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_device_at(kvt_profile *profile, size_t index,
                                                       kvt_device_curve *out);

/* The index-th point of a device's newest curve; KVT_END past the last. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_point_at(kvt_profile *profile, const char *device,
                                                      size_t index, kvt_device_point *out);

typedef struct kvt_codec_curve {
    kvt_variant variant;
    double stored_share;       /* stored bytes over source bytes, metadata included */
    double encode_bytes_per_s; /* of source bytes; kvt_profile_codec: on one thread */
    double decode_bytes_per_s; /* likewise */
    double loss;               /* mean 1 - quality; 0 for exact forms */
    double loss_upper;         /* its upper confidence bound; 0 = loss */
    bool imported;             /* speeds that were not measured here */
} kvt_codec_curve;

/*
 * Reads a ladder of forms (CSV, also .zst; profiles/ladder-codec-trial.csv shows the columns and
 * says where each row comes from). Lines that start with # are skipped; the source may not be
 * empty; sizes fall from row to row.
 * KVT_OK; KVT_E_PARSE (message: file, line, reason); KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_ladder_read_csv(const char *path, kvt_codec_curve *curves,
                                                     uint32_t capacity, uint32_t *count_out,
                                                     char *message, size_t message_size);

/* The curve of one variant. KVT_OK; KVT_MISS; KVT_E_DATABASE. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_codec(kvt_profile *profile, kvt_variant variant,
                                                   kvt_codec_curve *out);

/* ---- quality: what a variant's loss does to answers ---- */

/* The curve of one variant on one model and class of text. Not a number: not measured by this
 * method (docs/PROFILE.md says what the columns mean). */
typedef struct kvt_quality_curve {
    char model[96];
    char class_name[64];
    char method[16]; /* "continuation", "attention", "import" */
    char metric[32]; /* what loss is: "top1", "rouge_l", "f1", "kl", "answers", ... */
    char name[96];   /* of the variant; "@row" at its end: measured with the row as one head */
    kvt_variant variant;
    uint32_t entries;
    double bits_per_element;
    double loss_mean; /* 1 - quality */
    double loss_low;  /* 95 % interval of the mean */
    double loss_high;
    double loss_p90; /* over entries */
    double loss_cv;
    double kl; /* nats per token */
    double top1;
    double nll_delta;
    double rouge_l;
    double f1;
    double answers;
    double attention_error;
    double spearman_entries;
    double repeatability;
    /* Of the set that it belongs to. */
    double set_nll_nats;
    double set_spearman_variants;
    double set_sensitivity_sd; /* of the log of an entry's factor on losses */
    double set_repeatability;  /* of that factor, between two halves of a continuation */
} kvt_quality_curve;

/* The newest curve of a variant; model and class_name may be NULL: any. KVT_OK; KVT_MISS;
 * KVT_E_DATABASE. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_quality(kvt_profile *profile, kvt_variant variant,
                                                     const char *model, const char *class_name,
                                                     kvt_quality_curve *out);

/* The index-th curve of the newest sets, ordered by model, class, method, and bits from the most;
 * KVT_END past the last. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_quality_at(kvt_profile *profile, size_t index,
                                                        kvt_quality_curve *out);

/*
 * The forms to choose among for one model (by name) and class of text: raw, then the accepted rungs
 * of the newest calibration, or without one the measured or imported variants that no other beats
 * in both size and loss; sizes fall. Speeds are the profile's codec curves. layout may be NULL; the
 * model's layers, KV heads and head dimension must agree with it as far as they are known.
 * KVT_OK; KVT_MISS (message: no such model, class, or the speed of which variant is missing);
 * KVT_E_MISMATCH (message: what differs from the layout); KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_profile_ladder(kvt_profile *profile, const char *model,
                                                    const char *class_name,
                                                    const kvt_layout *layout,
                                                    kvt_codec_curve *curves, uint32_t capacity,
                                                    uint32_t *count_out, char *message,
                                                    size_t message_size);

/* ---- curves from elsewhere, and to elsewhere ---- */

/*
 * Brings curves from a CSV file (also .zst) into the profile: device speeds, task scores or losses,
 * prefill times, calibrations; docs/PROFILE.md lists tables and columns. Every row has a source,
 * its own or `source` (may be NULL then). The whole file comes in, or nothing. KVT_OK; KVT_E_PARSE
 * (message: file, line, reason); KVT_E_GONE (no such file); KVT_E_IO; KVT_E_READ_ONLY;
 * KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_profile_import(kvt_profile *profile, const char *path,
                                                    const char *source, const char *command_line,
                                                    uint64_t *rows_out, char *message,
                                                    size_t message_size);

typedef enum kvt_cell_kind {
    KVT_CELL_NULL,
    KVT_CELL_INTEGER,
    KVT_CELL_REAL,
    KVT_CELL_TEXT
} kvt_cell_kind;

typedef struct kvt_profile_cell {
    const char *column;
    kvt_cell_kind kind;
    int64_t integer;
    double real;
    const char *text; /* until the visit returns */
} kvt_profile_cell;

/* One row; returning false ends the visits. */
typedef bool kvt_profile_visit(void *context, const char *table, const kvt_profile_cell *cells,
                               size_t cell_count);

/*
 * Visits the rows of one table, or of every one that an import takes (NULL), in an order that an
 * import can take them in; interrupted runs are left out. Tables "run" and "learned" are for
 * reading alone. KVT_OK; KVT_E_ARGUMENT (no such table); KVT_E_CANCELLED; KVT_E_DATABASE;
 * KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_profile_export(kvt_profile *profile, const char *table,
                                                    kvt_profile_visit *visit, void *context);

typedef enum kvt_spread {
    KVT_SPREAD_UNKNOWN, /* no repetitions were kept */
    KVT_SPREAD_WITHIN,  /* the two overlap */
    KVT_SPREAD_BEYOND
} kvt_spread;

/* One figure of one curve in two profiles. */
typedef struct kvt_profile_change {
    const char *curve;    /* "device ssd0 read", "codec lossless ...", until the visit returns */
    const char *quantity; /* "bytes_per_s" */
    double before;        /* NaN: only in the other profile */
    double after;
    double change; /* (after - before) / before; infinite from 0, NaN when one is missing */
    kvt_spread spread;
} kvt_profile_change;

typedef bool kvt_profile_compare(void *context, const kvt_profile_change *change);

/* Compares what answers in two profiles, ordered by curve. KVT_OK; KVT_E_CANCELLED;
 * KVT_E_DATABASE; KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_diff(kvt_profile *before, kvt_profile *after,
                                                  kvt_profile_compare *visit, void *context);

/* A run that goes. Texts until the visit returns. */
typedef struct kvt_profile_gc_run {
    int64_t id;
    const char *kind;
    const char *started_utc;
    const char *source;
    const char *reason; /* "superseded", "interrupted" */
} kvt_profile_gc_run;

typedef struct kvt_profile_gc_request {
    uint32_t struct_size;
    bool dry_run;
    double interrupted_seconds; /* interrupted runs go once they are older */
    bool (*visit)(void *context,
                  const kvt_profile_gc_run *run); /* may be NULL; false: nothing goes */
    void *context;
} kvt_profile_gc_request;

typedef struct kvt_profile_gc_result {
    uint64_t runs;
    uint64_t models;
    uint64_t bytes_before;
    uint64_t bytes_after;
} kvt_profile_gc_result;

/* Drops runs that answer for nothing because newer complete ones do, or because they were
 * interrupted, and models without curves; then the file shrinks. An interrupted run that alone
 * knows a thing stays. KVT_OK; KVT_E_READ_ONLY; KVT_E_ARGUMENT; KVT_E_CANCELLED; KVT_E_DATABASE;
 * KVT_E_MEMORY. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_gc(kvt_profile *profile,
                                                const kvt_profile_gc_request *request,
                                                kvt_profile_gc_result *out);
/* ---- everything, for whoever shows it ---- */

/*
 * Visits every row of a view (which is handed on as the table), with the columns of
 * docs/PROFILE.md: "runs" (all of them); "mixed", "codecs", "models", "quality_sets", "quality" (by
 * set_id), "calibrations", "rungs", "choices" (by calibration_id), "learned", "prefill" (what
 * answers: of the newest complete run that measured the same thing). KVT_OK; KVT_E_ARGUMENT (no
 * such view); KVT_E_CANCELLED (a visit returned false); KVT_E_DATABASE; KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_profile_list(kvt_profile *profile, const char *view,
                                                  kvt_profile_visit *visit, void *context);

/* ---- prefill: the seconds that recomputing would take ---- */

/* FLOP model of a decoder with causal attention, grouped queries and a SwiGLU MLP; research/policy
 * eq. 5 is the case of Llama-3.1-8B: 26 L d^2 per token and 2 L d per token pair. */
typedef struct kvt_prefill {
    double linear_seconds_per_token;
    double square_seconds_per_token2; /* prefill(start, end) adds this times end^2 - start^2 */
    double fixed_seconds;             /* per prefill call */
    const double *table_seconds; /* measured seconds from 0 to i * table_step tokens, or NULL */
    uint32_t table_count;
    uint32_t table_step;
} kvt_prefill;

/* Presets by name: "llama-3.1-8b:a100", "llama-3.1-8b:h100". KVT_OK; KVT_E_ARGUMENT. */
KVT_API KVT_NODISCARD kvt_status kvt_prefill_preset(const char *name, kvt_prefill *out);

/* A prefill model of the profile by name, as imported. KVT_OK; KVT_MISS; KVT_E_DATABASE. */
KVT_API KVT_NODISCARD kvt_status kvt_profile_prefill(kvt_profile *profile, const char *name,
                                                     kvt_prefill *out);

/* Seconds to compute tokens start..end-1 on top of start cached ones; 0 when end <= start. Without
 * fixed_seconds, so that costs of adjacent ranges add up. Beyond a table's end: its last slope. */
KVT_API double kvt_prefill_seconds(const kvt_prefill *prefill, uint32_t start, uint32_t end);

/*
 * Reads measured per-layer times (CSV, also .zst: FILE_attention, FILE_dense, FILE_per_sequence,
 * as ../shared/data/costs describes; prefix is the path up to "_attention.csv") into a table for a
 * model of `layers` layers. The table is released by kvt_prefill_free.
 * KVT_OK; KVT_E_PARSE (message: file, line, reason); KVT_E_GONE (no such file); KVT_E_IO;
 * KVT_E_MEMORY; KVT_E_ARGUMENT (layers not in 1..65535).
 */
KVT_API KVT_NODISCARD kvt_status kvt_prefill_read_csv(const char *prefix, uint32_t layers,
                                                      kvt_prefill *out, char *message,
                                                      size_t message_size);
KVT_API void kvt_prefill_free(kvt_prefill *prefill);

/* The index-th preset's name; NULL past the last. */
KVT_API const char *kvt_prefill_preset_at(size_t index);

/* ---- break-even: where one choice stops being faster than another ---- */

/*
 * Seconds until source_bytes of KV are decoded: request_seconds + share * source_bytes /
 * bytes_per_s + source_bytes / decode_bytes_per_s. A decode speed of 0 stands for no decoding; one
 * of several threads stands for that many at work on one entry.
 */
KVT_API double kvt_load_seconds(const kvt_affine *read, const kvt_codec_curve *form,
                                double source_bytes);

/*
 * The bandwidth of a device above which a form loads no faster than raw bytes:
 *
 *     (share of raw - share of form) / (1 / decode of form - 1 / decode of raw)
 *
 * INFINITY where it always pays (smaller and no slower to decode), 0 where it never does. The
 * device's seconds per request do not matter: both pay them.
 */
KVT_API double kvt_break_even_bandwidth(const kvt_codec_curve *raw, const kvt_codec_curve *form);

/*
 * The context length in tokens, from position 0, below which recomputing is faster than loading it
 * from a device in this form; from there on loading wins. Where prefill crosses the load time more
 * than once the last crossing counts. 0: loading wins at every length; INFINITY: recomputing does.
 */
KVT_API double kvt_break_even_tokens(const kvt_affine *read, const kvt_codec_curve *form,
                                     double bytes_per_token, const kvt_prefill *prefill);

/* ---- reuse: how soon entries of a class come back ---- */

/*
 * Watches a sample of the entries and fits, for each class,
 *
 *     rate of uses at t = branching * (ln 2 / h) * sum over uses before t of 2^(-(t - t_use) / h),
 *
 * which is what the policy's decayed counters predict with, for half lives h from 10 s to 6 h at
 * once. One thread at a time; memory is taken at open alone.
 */
typedef struct kvt_reuse kvt_reuse;

#define KVT_REUSE_CLASSES 64u /* higher numbers count as class 0 */

/* entries: how many are watched at most, 64 to 2^20; 0 = 4096. KVT_OK; KVT_E_ARGUMENT;
 * KVT_E_MEMORY.
 */
KVT_API KVT_NODISCARD kvt_status kvt_reuse_open(uint32_t entries, kvt_reuse **reuse_out);
KVT_API void kvt_reuse_close(kvt_reuse *reuse);

/* One use of an entry. handle: not 0, well mixed. Time never steps back. */
KVT_API void kvt_reuse_use(kvt_reuse *reuse, uint64_t now_ns, uint64_t handle, uint32_t class_id);

/* What was found for a class; all zero but the counts before anything came back. */
typedef struct kvt_reuse_class {
    uint64_t entries;                  /* watched, that were seen at all */
    uint64_t uses;                     /* of these, after their first */
    double half_life_seconds;          /* of the greatest likelihood */
    double branching;                  /* uses that one use brings about by itself */
    double log_likelihood;             /* per use; of its time since the use before, in seconds */
    double log_likelihood_exponential; /* of a constant rate per entry and class, to compare with */
    double prior_uses; /* for kvt_policy_set_prior: what a first use is worth beside a later one */
} kvt_reuse_class;

/* KVT_OK; KVT_E_ARGUMENT (no such class). Some milliseconds. */
KVT_API KVT_NODISCARD kvt_status kvt_reuse_read(kvt_reuse *reuse, uint64_t now_ns,
                                                uint32_t class_id, kvt_reuse_class *out);

/* ---- options: what an entry could become, and what that costs ---- */

#define KVT_VARIANTS_MAX 10u

typedef struct kvt_cost_model {
    bool present[KVT_TIER_COUNT];    /* tiers that may hold entries */
    kvt_affine read[KVT_TIER_COUNT]; /* of the whole tier: its devices striped together */
    kvt_affine write[KVT_TIER_COUNT];
    kvt_codec_curve variants[KVT_VARIANTS_MAX];
    uint32_t variant_count;
    kvt_prefill prefill;
    uint32_t parallel_codecs; /* threads that encode or decode one entry; at least 1 */
} kvt_cost_model;

/* A record of an entry in this form takes so many bytes: it was made once. */
typedef struct kvt_known_size {
    kvt_variant variant;
    uint64_t bytes;
} kvt_known_size;

/* What is known of an entry when it is offered to the engine; zero is what is not known. */
typedef struct kvt_offer {
    uint64_t handle;         /* names it in the engine; not 0 */
    uint64_t parent;         /* the entry with the tokens before it; 0 = none */
    kvt_layout layout;       /* tells its tokens, its bytes and its record's header */
    uint32_t first_position; /* of its first token */
    uint32_t request_tokens; /* of the requests that use it; 0 = up to this entry's end */
    uint32_t class_id;
    uint32_t tenant;
    uint32_t variants;           /* only the model's first so many; 0 = all */
    double recompute_seconds;    /* 0 = what the prefill model says; opaque entries: of the entry */
    double sensitivity;          /* factor on losses, which the engine keeps; 0 = 1 */
    double loss_factor;          /* of losses observed to those of the curves; 0 = 1 */
    double loss_factor_upper;    /* of their bounds */
    const double *shares;        /* by variant: learned bytes over source bytes without the record's
                                    header; NAN = the curve's; NULL = all of them */
    const kvt_known_size *known; /* sizes of this entry's records */
    uint32_t known_count;
} kvt_offer;

/*
 * Seconds of option NONE. Where holes end a prefix (CONTIGUOUS), a path is worth storing as a whole
 * or not at all, so each of its tokens carries the mean over the path of request_tokens; in MIXED
 * mode an entry has the seconds of its own place.
 */
KVT_API double kvt_offer_recompute_seconds(const kvt_prefill *prefill, kvt_hole_mode holes,
                                           uint32_t first_position, uint32_t tokens,
                                           uint32_t request_tokens);

/*
 * What the engine decides on. options (KVT_OPTIONS_MAX of them) are NONE, then every present tier x
 * every variant, tiers from HBM down, variants in the model's order; entry_out names them and is
 * ready for kvt_policy_admit.
 *   bytes         what a plan reserves: the record with its header in whole KVT_RECORD_ALIGN, and
 *                 2 % more where its size is an estimate
 *   read_bytes    what the record is expected to take
 *   made_from     which lossy forms come from which without coding anything twice: planes dropped,
 *                 planes at 8 bits to any coarser lossy form, an entropy form to three times its
 *                 steps. A move writes the new record whole, so kept_from is empty
 * KVT_OK; KVT_E_ARGUMENT when the model would give more options than fit, or holds a rate, share or
 * time that is not positive and finite, or the layout is unsound.
 */
KVT_API KVT_NODISCARD kvt_status kvt_offer_build(const kvt_cost_model *model, kvt_hole_mode holes,
                                                 const kvt_offer *offer, kvt_option *options,
                                                 kvt_policy_entry *entry_out);

/* The same without options: recompute_seconds and what describes the entry, for one of a ladder
 * (kvt_policy_ladder_add), whose number the caller sets. KVT_OK; KVT_E_ARGUMENT. */
KVT_API KVT_NODISCARD kvt_status kvt_offer_describe(const kvt_cost_model *model,
                                                    kvt_hole_mode holes, const kvt_offer *offer,
                                                    kvt_policy_entry *entry_out);

#ifdef __cplusplus
}
#endif

#endif
