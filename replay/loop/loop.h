/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h - the whole loop on a real model: requests over real contexts and questions against a real
 * store. A miss is prefilled by the reference decoder, a hit is read and decoded, the model answers
 * from what came back; seconds and answers are measured. docs/LOOP.md has the states of a request,
 * the clocks and what is checked.
 *
 *   loop_open      model, texts -> contexts with questions
 *   loop_prepare   exact KV, prefill seconds and exact answers of the contexts that a workload uses
 *   loop_run       one contender on a store of its own -> loop_result
 *   loop_print_*   what all of them came to
 *
 * Thread rule: one thread; a run's store has threads of its own.
 */
#ifndef LOOP_H
#define LOOP_H

#include "estimator/quality/quality.h"
#include "replay/live.h"

enum {
    LOOP_QUESTIONS_MAX = 4,
    LOOP_CLASSES_MAX = 8,
    LOOP_FORMS_MAX = 2 * KVT_VARIANTS_MAX + 2, /* raw, lossless, two ladders' rungs, single ones */
    LOOP_NAME_BYTES = 80
};

/* ---- contexts ---- */

typedef struct loop_text {
    char class_name[64];
    const char *path;
} loop_text;

typedef struct loop_options {
    const char *model;     /* as model_open takes it */
    const char *tokenizer; /* NULL: tokenizer.bin in the model's folder */
    const char *name;      /* of the model in the profile; NULL: from its path */
    const loop_text *texts;
    uint32_t text_count;
    uint32_t contexts;                            /* at most, of all classes together; 0 = all */
    uint32_t context_tokens, continuation_tokens; /* of texts that do not say */
    uint32_t answer_tokens;                       /* of one answer, at most */
    bool prefill_each;                            /* every miss is computed again */
    bool observe;          /* measured losses are told to the store (kvt_quality_observe) */
    quality_metric metric; /* what a loss is: top1, rouge_l or f1 */
    quality_use use;       /* and what the KV is for (docs/PROFILE.md) */
    const char *cache;     /* folder of exact KV and answers; NULL: a temporary one */
    bool (*proceed)(void *context, double done, const char *what); /* false: stop; or NULL */
    void *proceed_context;
} loop_options;

/* Tokens of the entry, counted from its start. */
typedef struct loop_question {
    uint32_t first, count; /* what is asked */
    uint32_t answer_tokens;
    const uint32_t *exact; /* the answer from exact KV; NULL before loop_prepare */
} loop_question;

typedef struct loop_context {
    const quality_entry *entry;
    uint32_t class_index;
    uint32_t question_count;
    loop_question questions[LOOP_QUESTIONS_MAX];
    /* Stands for the entry's own text behind the context, which nobody asks: count is 0, and
     * answer_tokens are the tokens that loop_generator_follow compares. */
    loop_question text;
    uint64_t digest; /* of the weights and all tokens */
    kvt_key key;
    /* Of loop_prepare: */
    bool ready;
    double prefill_seconds;
    uint64_t kv_bytes, kv_checksum; /* fp16, as loop_layout says */
} loop_context;

/* One answer from one context's KV as it came back: equal bytes, equal answers. Of the text that
 * stands behind the context: what the model expects after each of its tokens. */
typedef struct loop_answer {
    uint64_t context, kv_checksum;
    uint32_t first, count, answer_tokens;
    uint32_t *ids;
    double ask_seconds; /* that the question took; 0: not known */
    /* Against the exact answer; NAN before they were compared, and where the other kind has them.
     * top1, recall: shares of the text's and of the passage's tokens after which the model expects
     * the same; recall NAN without a passage. */
    double rouge_l, f1, top1, recall;
    bool same; /* as the exact one, up to its end */
} loop_answer;

/* The model's KV rows in fp32 with what is generated behind them. */
typedef struct loop_generator {
    model_session *session;
    const model_config *config;
    float **k, **v, **k_next, **v_next; /* [layers] */
    float *logits;                      /* [logit_rows][vocab] */
    uint32_t rows_max, held;            /* rows there is room for, and rows held */
    uint32_t logit_rows;                /* of logits there is room for */
    uint32_t position;                  /* of the next token */
    void *memory;
} loop_generator;

typedef struct loop_site {
    loop_options options;
    quality_model measured;
    model_session *session;
    quality_entries entries[LOOP_CLASSES_MAX];
    loop_context *contexts; /* classes take turns */
    uint32_t context_count;
    uint32_t tokens_max; /* of a context, and of a question and its answer */
    uint32_t tail_max, answer_max;
    loop_generator generator;
    loop_answer *answers;
    size_t answer_count, answer_room;
    char folder[256];
    bool folder_is_temporary;
    FILE *journal;                                        /* of the cache, or NULL */
    uint8_t *scratch;                                     /* KV of the longest context */
    kvt_prefill prefill;                                  /* fitted to the measured seconds */
    double prefill_error_p50;                             /* relative, over the contexts */
    uint64_t answers_made, answers_known, contexts_known; /* generated, and found in the cache */
} loop_site;

/* Opens model and texts, makes contexts; nothing is computed. The site keeps pointers into options.
 * KVT_OK; KVT_E_ARGUMENT (a class named twice, more than LOOP_CLASSES_MAX, no context in a text:
 * the message says which); KVT_E_IO (the cache); what quality_model_open and quality_entries_read
 * give. loop_close also after an error. */
KVT_NODISCARD kvt_status loop_open(const loop_options *options, loop_site *site, char *message,
                                   size_t message_size);
void loop_close(loop_site *site);

/* An entry of the model: fp16, layer by layer, K before V; a whole context, whose tokens may be
 * dropped. */
kvt_layout loop_layout(const loop_site *site, uint32_t tokens);

/* ---- requests ---- */

typedef struct loop_request {
    uint64_t arrival_ns;
    uint32_t context, question;
} loop_request;

typedef struct loop_requests {
    loop_request *requests;
    uint64_t count;
    uint64_t fingerprint;
    uint32_t distinct; /* contexts */
} loop_requests;

/* The first block of a request stands for its context (docs/LOOP.md). arrival_scale multiplies
 * arrivals. Free requests. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_requests_make(const loop_site *site, const replay_workload *workload,
                                            double arrival_scale, loop_requests *requests_out);

/* ---- exact KV and answers ---- */

/* Prefills every context that the requests use, asks its questions, and fits the prefill model.
 * KVT_OK; KVT_E_CANCELLED; KVT_E_UNSUPPORTED (KV beyond fp16); KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_prepare(loop_site *site, const loop_requests *requests, char *message,
                                      size_t message_size);

/* Maps a context's exact KV; loop_kv_unmap it. KVT_OK; KVT_E_IO. */
KVT_NODISCARD kvt_status loop_kv_map(const loop_site *site, const loop_context *context,
                                     const uint8_t **kv_out);
void loop_kv_unmap(const loop_context *context, const uint8_t *kv);

/* Computes a context's KV into kv. KVT_OK; KVT_E_UNSUPPORTED; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_prefill(const loop_site *site, const loop_context *context,
                                      uint8_t *kv);

KVT_NODISCARD kvt_status loop_generator_open(model_session *session, uint32_t rows,
                                             uint32_t answer_tokens, loop_generator *generator);
void loop_generator_close(loop_generator *generator);

/* Takes a context's rows over: kv is fp16 as loop_layout says with `tokens` tokens, of each matrix
 * of which the first `kept` rows count. The next token stands at position `tokens`. */
void loop_generator_load(loop_generator *generator, const uint8_t *kv, uint32_t tokens,
                         uint32_t kept);

/* The first token of the answer to a question. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_generator_ask(loop_generator *generator, const uint32_t *question,
                                            uint32_t count, uint32_t *first_out);

/* The rest of the answer, answer[0] being there. The draft is as long as the answer: what the model
 * is expected to say, which one batch confirms as far as it goes. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_generator_answer(loop_generator *generator, const uint32_t *draft,
                                               uint32_t answer_tokens, uint32_t *answer);

/* What the model expects after each token of the entry's continuation, then where the passage is
 * scored, from the rows as loop_generator_load left them; they are left so. ids: as many as
 * context->text says. KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_generator_follow(loop_generator *generator,
                                               const loop_context *context, uint32_t *ids);

/* The answer of KV with this checksum, NULL when it was not generated yet. */
loop_answer *loop_answer_find(loop_site *site, const loop_context *context,
                              const loop_question *question, uint64_t kv_checksum);

/* Keeps an answer, compared with the exact one if that is there. answer_out may be NULL.
 * KVT_OK; KVT_E_MEMORY; KVT_E_IO (the journal). */
KVT_NODISCARD kvt_status loop_answer_add(loop_site *site, const loop_context *context,
                                         const loop_question *question, uint64_t kv_checksum,
                                         const uint32_t *ids, double ask_seconds,
                                         loop_answer **answer_out);

/* Compares an answer with the exact one, if that is there and the answer was not compared before.
 * KVT_OK or KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_answer_compare(loop_site *site, const loop_context *context,
                                             const loop_question *question, loop_answer *answer);

/* Keeps the seconds of an answer's question where they were not known. KVT_OK; KVT_E_IO. */
KVT_NODISCARD kvt_status loop_answer_time(loop_site *site, loop_answer *answer, double ask_seconds);

/* Reads the cache's journal and writes on behind it. */
KVT_NODISCARD kvt_status loop_journal_open(loop_site *site, char *message, size_t message_size);
KVT_NODISCARD kvt_status loop_journal_context(loop_site *site, const loop_context *context);

/* ---- contenders ---- */

typedef enum loop_forms {
    LOOP_FORMS_RAW,
    LOOP_FORMS_ONE,
    LOOP_FORMS_MIX,
    LOOP_FORMS_LADDER
} loop_forms;

typedef struct loop_contender {
    char name[LOOP_NAME_BYTES];
    char policy[32];
    loop_forms forms;
    kvt_variant variant, other; /* of one, and of a mix */
    double other_share;
} loop_contender;

/* The variants that a run may meet, raw first, with what they are predicted to lose. */
typedef struct loop_ladder {
    kvt_codec_curve curves[LOOP_FORMS_MAX];
    uint32_t count; /* raw and the calibration's rungs */
    uint32_t all;   /* and the single variants of contenders behind them */
    char class_name[64];
} loop_ladder;

/* Reads "lru+kivi-4" (docs/LOOP.md). KVT_OK; KVT_E_ARGUMENT with a message. */
KVT_NODISCARD kvt_status loop_contender_parse(const char *name, loop_contender *contender_out,
                                              char *message, size_t message_size);

/* The calibration of the site's model and what is measured of single variants. KVT_OK;
 * KVT_E_ARGUMENT (no profile, or a single variant was never measured); KVT_E_MISMATCH (no
 * calibration of this model, its weights, or class); what kvt_profile_open says. */
KVT_NODISCARD kvt_status loop_ladder_read(const loop_site *site, const kvt_store_options *store,
                                          const loop_contender *contenders, uint32_t count,
                                          loop_ladder *ladder_out, char *message,
                                          size_t message_size);

/* The mix of two forms with the least mean bytes whose mean predicted loss is at most `loss`. */
void loop_contender_mix(const loop_ladder *ladder, double loss, loop_contender *contender);

/* Index of a variant; ladder->all when it is none of them. */
uint32_t loop_ladder_find(const loop_ladder *ladder, kvt_variant variant);

/* Adds the contender's variants to a run's copy of the profile as the calibration of a class of its
 * own, whose name it gives. KVT_OK; what exchange_import_tables says. */
KVT_NODISCARD kvt_status loop_ladder_write(const loop_site *site, const loop_ladder *ladder,
                                           const loop_contender *contender, const char *path,
                                           char *message, size_t message_size);
#define LOOP_CLASS_OWN "the run's own"

/* ---- one run ---- */

/* A form that was served, over the requests that count. */
typedef struct loop_form {
    char name[QUALITY_NAME_BYTES];
    uint64_t hits[KVT_TIER_COUNT];   /* by tier; [0] is the total */
    uint64_t stored[KVT_TIER_COUNT]; /* entries at the end */
    uint64_t staged;                 /* of the hits in DRAM, from the staging of a put: raw */
    uint64_t same;                   /* answers equal to the exact ones */
    double stored_share;
    double rouge_l, f1, top1, recall;  /* means; NAN without hits, recall also without passages */
    double loss, loss_low, loss_high;  /* measured, with 95 % over contexts */
    double loss_predicted, loss_upper; /* of the ladder; NAN: not known */
    uint32_t contexts;
    double load_p50, load_predicted_p50; /* seconds of a get */
    double decode_p50;
} loop_form;

typedef struct loop_result {
    char contender[LOOP_NAME_BYTES];
    char forms_text[2 * QUALITY_NAME_BYTES + 32]; /* what it stores */
    uint64_t seed;
    uint64_t requests, hits, loads_declined; /* found, but slower to load than to compute */
    uint64_t hits_by_tier[KVT_TIER_COUNT];
    double ttft_mean, ttft_p50, ttft_p90, ttft_p99;
    double wait_mean, load_mean, prefill_mean, question_mean, put_mean;
    double rho;                      /* busy seconds over the span of arrivals */
    double rouge_l, f1, rouge_l_p10; /* over all requests; what was computed has 1 */
    double top1, recall, loss;       /* the same; what was computed lost 0 */
    double loss_predicted;           /* mean over hits */
    uint64_t same_answers;
    double load_error_p50, load_error_p90; /* of gets, relative */
    uint64_t load_predictions;
    uint64_t exact_checked, exact_wrong, tokens_wrong; /* gets of exact forms, first tokens */
    uint64_t positions_checked, positions_wrong;       /* gets of forms that dropped tokens */
    uint64_t puts, refused, busy, failed_puts, load_failures;
    uint64_t promotions, demotions, evictions;
    uint64_t bytes_read[KVT_TIER_COUNT], bytes_written[KVT_TIER_COUNT];
    uint64_t capacity_bytes[KVT_TIER_COUNT], used_bytes[KVT_TIER_COUNT];
    bool emulated[KVT_TIER_COUNT];
    loop_form forms[LOOP_FORMS_MAX];
    uint32_t form_count;
    uint64_t answers_fingerprint;
    double span_s, paused_s, leapt_s, wall_s;
} loop_result;

typedef struct loop_run_options {
    const loop_requests *requests;
    const loop_contender *contender;
    const loop_ladder *ladder;
    const kvt_store_options *store;
    double warmup; /* share of the requests that is served and not counted */
    bool load_all; /* also where computing is predicted to be faster */
    uint64_t seed;
    bool (*interrupted)(void);
} loop_run_options;

/* Serves all requests. Devices that were blank are blank again. KVT_OK, also when bytes differed;
 * KVT_E_CANCELLED; kvt_store_open's errors; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_run(loop_site *site, const loop_run_options *options,
                                  loop_result *result_out, char *message, size_t message_size);

/* ---- reports ---- */

typedef struct loop_report {
    const char *version, *command, *machine, *date;
    const loop_site *site;
    const loop_requests *requests; /* of the first seed */
    const loop_ladder *ladder;
    const kvt_store_options *store;
    const char *workload;
    const loop_result *results;
    size_t result_count;
    double others_share; /* what other programs took of the processors meanwhile */
} loop_report;

/* KVT_OK; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status loop_print_text(const loop_report *report, FILE *file);
/* Schema "kvterrace-loop-1". */
KVT_NODISCARD kvt_status loop_print_json(const loop_report *report, FILE *file);

#endif
