/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.h - the database of what was measured.
 *
 * A profile is a SQLite database of measurements with their provenance: device curves (bandwidth
 * and latency by request size and depth), codec curves (ratio, encode and decode speed) and what
 * variants lose. docs/PROFILE.md has its tables. measure.h fills it, predict.h predicts with it.
 *
 * Thread rule: one kvt_profile belongs to one thread at a time; several may read one file.
 */
#ifndef ESTIMATOR_PROFILE_H
#define ESTIMATOR_PROFILE_H

#include "codecs/transform_basis.h"

#include <kvterrace/codec.h>
#include <kvterrace/load.h>
#include <kvterrace/prefill.h>
#include <kvterrace/types.h>

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
KVT_NODISCARD kvt_status kvt_profile_open(const char *path, uint32_t flags,
                                          kvt_profile **profile_out, char *message,
                                          size_t message_size);
void kvt_profile_close(kvt_profile *profile);

/* Writes the profile's content as of now into a new file. KVT_OK; KVT_E_IO (the file is there, or
 * cannot be made); KVT_E_DATABASE; KVT_E_SPACE; KVT_E_MEMORY. Nothing is left of a copy that
 * failed.
 */
KVT_NODISCARD kvt_status kvt_profile_copy(kvt_profile *profile, const char *path, char *message,
                                          size_t message_size);

/* Called now and then while measuring: share done in [0,1] and what is measured. Returning false
 * stops the measurement (KVT_E_CANCELLED); what was stored stays. */
typedef bool kvt_profile_progress(void *context, double done, const char *what);

/* KV of a model. name and bytes (kvt_layout_bytes of the layout) are the caller's. */
typedef struct kvt_profile_kv {
    const char *name; /* where it is from; kept as the curves' source */
    kvt_layout layout;
    const void *bytes;
} kvt_profile_kv;

#define PROFILE_WITHOUT_GPU 96

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
    char *without_gpu; /* room for PROFILE_WITHOUT_GPU: why no GPU is measured, or empty; or NULL */
} kvt_profile_request;

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

/* Reads of one size that begin at multiples of so many bytes, so many in flight. */
typedef struct kvt_device_start {
    uint32_t request_bytes;
    uint32_t begins_at; /* a power of two, 4 to 128 KiB */
    uint32_t depth;
    uint32_t repetitions;
    double bytes_per_s; /* median */
    double bytes_per_s_min;
    double bytes_per_s_max;
} kvt_device_start;

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
KVT_NODISCARD kvt_status kvt_profile_device(kvt_profile *profile, const char *device,
                                            kvt_device_curve *out);

/* The index-th device with a curve, ordered by name; KVT_END past the last. */
KVT_NODISCARD kvt_status kvt_profile_device_at(kvt_profile *profile, size_t index,
                                               kvt_device_curve *out);

/* The index-th point of a device's newest curve; KVT_END past the last. */
KVT_NODISCARD kvt_status kvt_profile_point_at(kvt_profile *profile, const char *device,
                                              size_t index, kvt_device_point *out);

/* The share of its speed that a device keeps while it reads and writes at once, in the worst of the
 * measured mixtures of its largest requests; at most 1. KVT_OK; KVT_MISS; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status kvt_profile_mix_kept(kvt_profile *profile, const char *device,
                                              double *out);

/* The bytes at whose multiples reads of a device should begin: the least begin that is read within
 * 2 % as fast as the best one, where that one gains at least 5 % over begins at 4 KiB, in the mean
 * over the request sizes, and more than repetitions differ by; else 4096 (docs/PROFILE.md says
 * why). KVT_OK; KVT_MISS (not measured); KVT_E_DATABASE. */
KVT_NODISCARD kvt_status kvt_profile_begins_at(kvt_profile *profile, const char *device,
                                               uint64_t *out);

/* The device whose writes are copies of pinned memory to GPU 0, and its reads the way back: no
 * configured device has a ':' in its name. */
#define PROFILE_LINK_NAME "gpu0:link"

typedef struct kvt_codec_curve {
    kvt_variant variant;
    double stored_share;       /* stored bytes over source bytes, metadata included */
    double encode_bytes_per_s; /* of source bytes; kvt_profile_codec: on one thread */
    double decode_bytes_per_s; /* likewise */
    double gpu_bytes_per_s;    /* the same by kernels of a GPU; 0: not measured, or not asked */
    double loss;               /* mean 1 - quality; 0 for exact variants */
    double loss_upper;         /* its upper confidence bound; 0 = loss */
    double loss_entry;         /* 90 % of entries lose no more, at that confidence; 0 = not known */
    double loss_widening;      /* factor in both bounds for a class never measured; 0 = none */
    bool imported;             /* speeds that were not measured here */
} kvt_codec_curve;

/* The curve of one variant. KVT_OK; KVT_MISS; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status kvt_profile_codec(kvt_profile *profile, kvt_variant variant,
                                           kvt_codec_curve *out);

/* Sets curve->gpu_bytes_per_s: of the variant, else of the one of its codec whose share is nearest,
 * as it was measured here, or with `imported` elsewhere. KVT_OK; KVT_MISS; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status kvt_profile_codec_gpu(kvt_profile *profile, bool imported,
                                               kvt_codec_curve *curve);

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
    double set_nll_nats; /* of exact KV, over the set that it belongs to */
} kvt_quality_curve;

/* The newest curve of a variant; model and class_name may be NULL: any. KVT_OK; KVT_MISS;
 * KVT_E_DATABASE. */
KVT_NODISCARD kvt_status kvt_profile_quality(kvt_profile *profile, kvt_variant variant,
                                             const char *model, const char *class_name,
                                             kvt_quality_curve *out);

/* The index-th curve of the newest sets, ordered by model, class, method, and bits from the most;
 * KVT_END past the last. */
KVT_NODISCARD kvt_status kvt_profile_quality_at(kvt_profile *profile, size_t index,
                                                kvt_quality_curve *out);

/* ---- bases of the transform codec (docs/codecs/transform.md) ---- */

/*
 * A profile carries the bases that its variants name, whole. A variant names one by the first 20
 * bits of its hash, and no two of a profile begin alike.
 */

#define PROFILE_BASIS_BYTES_MAX (UINT64_C(512) << 20) /* wider ones stay files: kvt_basis_add */
#define PROFILE_BASIS_SHIFT     10                    /* a variant's rate: the start begins here */

/* A basis out of a profile. */
typedef struct profile_basis {
    uint8_t *object; /* .kvtbasis, aligned to 64 */
    uint64_t bytes;
    transform_basis view; /* of the object */
} profile_basis;

void profile_basis_free(profile_basis *basis); /* zeroed is allowed */

/* The basis whose hash starts so, and the index-th of all, by model and span. Release with
 * profile_basis_free. KVT_OK; KVT_MISS; KVT_E_CORRUPT (the object is damaged: its row is left);
 * KVT_E_DATABASE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status profile_basis_get(kvt_profile *profile, uint32_t start,
                                           profile_basis *out);
KVT_NODISCARD kvt_status profile_basis_at(kvt_profile *profile, uint32_t index, profile_basis *out);

/* The span of a variant's basis: 0 of another codec, the widest of a basis that is not there. */
uint32_t profile_basis_span(kvt_profile *profile, kvt_variant variant);

/* Brings an object in as a run of its own, an import. source: its origin; NULL: "a file". KVT_OK;
 * KVT_EXISTS (this very basis is there); KVT_E_CORRUPT, KVT_E_VERSION (the object);
 * KVT_E_UNSUPPORTED (another basis of the profile has the same first 20 bits); KVT_E_SPACE (larger
 * than PROFILE_BASIS_BYTES_MAX); KVT_E_READ_ONLY; KVT_E_DATABASE; KVT_E_MEMORY. Nothing comes in
 * with an error. */
KVT_NODISCARD kvt_status profile_basis_import(kvt_profile *profile, const void *object,
                                              uint64_t bytes, const char *source,
                                              const char *command_line);

/* ---- prefill ---- */

/* A prefill model of the profile by name, as imported. KVT_OK; KVT_MISS; KVT_E_DATABASE. */
KVT_NODISCARD kvt_status kvt_profile_prefill(kvt_profile *profile, const char *name,
                                             kvt_prefill *out);

/* ---- seconds of a layer ---- */

#define PROFILE_PASS_ROWS_MAX 4096u /* of a table */
#define PROFILE_PASS_NAME_MAX 63u   /* bytes of its name */

/* Whether rows are a table: finite seconds above 0, new tokens, and no place twice. */
bool kvt_pass_rows_are_sound(const kvt_pass_row *rows, size_t count);

/* Puts a table of what one layer of a pass takes into the profile, as a run of its own: whole, or
 * not at all. source: its origin; NULL or "": it was measured here. KVT_OK; KVT_E_ARGUMENT (the
 * name; no rows or too many, or rows that are not sound); KVT_E_READ_ONLY; KVT_E_DATABASE;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status kvt_profile_passes_put(kvt_profile *profile, const char *name,
                                                const kvt_pass_row *rows, size_t count,
                                                const char *source, const char *command_line);

/* The rows of the table of a name that answers. *rows_out is the caller's, to free. KVT_OK;
 * KVT_MISS; KVT_E_SPACE (more rows than a table has); KVT_E_DATABASE; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status kvt_profile_passes(kvt_profile *profile, const char *name,
                                            kvt_pass_row **rows_out, size_t *count_out);

/* ---- the ladder of a calibration, by layout, for a store ---- */

/*
 * The accepted rungs of the newest calibration of a model with the layout's layers, KV heads and
 * head_dim, by falling size. Variants that drop tokens are among them only where the layout lets
 * them; of more rungs than capacity profile_ladder_choose leaves some out.
 *   layout       layers, kv_heads, head_dim, dtype and tokens_may_drop are looked at; a layout of
 *                one side is K of a model whose K and V were calibrated
 *   model        by name, and class_name: of the texts that it was calibrated on; NULL: any.
 *                PROFILE_ANY_8_BIT: no calibration of the model; planes of 8 bits, with the largest
 *                losses and bounds of PROFILE_ANY_MODELS calibrated models or more
 *   curves       capacity of them, at least 2; speeds are 0 where the profile has none
 *   message      one line for a person on failure: what is there instead, and what differs
 * KVT_OK; KVT_MISS (no calibration at all); KVT_E_MISMATCH (of another layout, model or class);
 * KVT_E_ARGUMENT (the layout is not sound, or opaque); KVT_E_DATABASE; KVT_E_MEMORY.
 */
#define PROFILE_ANY_8_BIT  "any-8-bit"
#define PROFILE_ANY_MODELS 2
KVT_NODISCARD kvt_status profile_rungs_read(kvt_profile *profile, const kvt_layout *layout,
                                            const char *model, const char *class_name,
                                            kvt_codec_curve *curves, uint32_t capacity,
                                            uint32_t *count_out, char *message,
                                            size_t message_size);

/* The variants of planes in the same calibration, accepted or not, by falling size: an entry may be
 * there with some of its planes. curves have room for PROFILE_RUNGS_MAX. Arguments and statuses as
 * of profile_rungs_read, which has taken them. */
KVT_NODISCARD kvt_status profile_planes_read(kvt_profile *profile, const kvt_layout *layout,
                                             const char *model, const char *class_name,
                                             kvt_codec_curve *curves, uint32_t *count_out);

/*
 * Leaves out rungs until there are no more than capacity, the one first without which uses cost
 * least more: over fast and slow models and devices, prices of loss and of room, at the speeds that
 * the rungs have (0: of memory). Exact rungs stay as long as there are others, and rungs that drop
 * tokens count beside those that entries without leave to drop have. At most
 * PROFILE_CANDIDATES_MAX.
 */
enum { PROFILE_RUNGS_MAX = 64, /* of one calibration */ PROFILE_CANDIDATES_MAX = 256 };
void profile_ladder_choose(kvt_codec_curve *curves, uint32_t *count, uint32_t capacity);

/* ---- what a running store has learned; the spread that its factors are shrunk by ---- */

/* One row (docs/PROFILE.md, learned). Figures that are not there are not a number. */
typedef struct profile_learned {
    char kind[8];  /* "device", "codec", "loss", "reuse" */
    char name[96]; /* of a device its identity; of a codec its variant; else the class */
    char part[24];
    double value;
    double weight;
    uint64_t observations;
    double error_p50;
    double error_p90;
    double log_likelihood;
    double age_seconds; /* read: since the row was written, by the clock of day; at least 0 */
} profile_learned;

/*
 * Writes the rows as the content of a run, in one transaction: a process that is killed leaves what
 * was there before. Waits for other writers a quarter of a second at most. *run is 0 for a new run,
 * which the call begins, or what an earlier call gave. KVT_OK; KVT_E_READ_ONLY; KVT_E_DATABASE.
 */
KVT_NODISCARD kvt_status profile_learned_write(kvt_profile *profile, const char *command_line,
                                               const profile_learned *rows, size_t count,
                                               int64_t *run);

typedef void profile_learned_visit(void *context, const profile_learned *row);

/* Visits the newest row of each thing that was learned on this host with this version of the
 * library, and since when the device or the codecs were not measured anew. KVT_OK; KVT_E_DATABASE.
 */
KVT_NODISCARD kvt_status profile_learned_read(kvt_profile *profile, profile_learned_visit *visit,
                                              void *context);

/*
 * The spread of entries' losses on a model of the layout (by name, or NULL), from the newest
 * complete measurement that tells it, on a class of texts (or NULL). With layout NULL the model's
 * shape does not matter. KVT_OK; KVT_MISS; KVT_E_DATABASE.
 */
KVT_NODISCARD kvt_status profile_sensitivity_read(kvt_profile *profile, const kvt_layout *layout,
                                                  const char *model, const char *class_name,
                                                  double *sd_out, double *repeatability_out);

#endif
