/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_model_host.c - a model behind a socket: a host in a thread of its own runs the
 * reference decoder, so that every number comes back bit for bit; and hosts that answer wrongly.
 */
#include "base/clock.h"
#include "base/half.h"
#include "estimator/model/model_host.h"
#include "estimator/quality/quality_round_trip.h"
#include "model_folder.h"
#include "model_support.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TOKENS = 90, PAST = 60 };

#define PASS_SECONDS 0.25 /* what a host says that a pass took */

/* The faults of a host. */
typedef enum host_fault {
    FAULT_NONE,
    FAULT_SILENT,    /* hangs up at the first question */
    FAULT_MAGIC,     /* answers in another protocol */
    FAULT_VERSION,   /* of another version */
    FAULT_HEADS,     /* KV heads that do not divide the heads */
    FAULT_TURNS,     /* turns more of a key than there is */
    FAULT_LENGTH,    /* its greeting is longer than it says */
    FAULT_FREQUENCY, /* a frequency is no number */
    FAULT_GRAMS,     /* a byte too many of output projections */
    FAULT_GRAM,      /* one of them is infinite */
    FAULT_NO_GRAMS,  /* has none: no fault */
    FAULT_TEXT,      /* fails with a text at a forward pass */
    FAULT_SHORT,     /* hangs up in the middle of an answer */
    FAULT_MORE,      /* a byte too many of logits */
    FAULT_SECONDS,   /* computed for less than no time */
    FAULT_NO_TIME,   /* its seconds are no number */
    FAULTS
} host_fault;

typedef struct host {
    const model *m;
    int listener;
    host_fault fault;
    pthread_t thread;
} host;

static naive_model plain;
static model *local;
static uint32_t tokens[TOKENS];

static bool take(int made, void *bytes, size_t count)
{
    return count == 0 || recv(made, bytes, count, MSG_WAITALL) == (ssize_t)count;
}

static bool give(int made, const void *bytes, size_t count)
{
    for (const char *at = bytes; count > 0;) {
        const ssize_t sent = send(made, at, count, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

static bool begin(int made, uint32_t kind, uint64_t bytes)
{
    const host_head head = {.magic = {'K', 'V', 'T', 'M'}, .kind = kind, .bytes = bytes};
    return give(made, &head, sizeof head);
}

static bool answer_hello(const host *h, int made)
{
    const model_config *c = model_config_of(h->m);
    const uint32_t turns = h->fault == FAULT_TURNS ? c->head_dim + 2 : c->head_dim;
    double frequencies[MODEL_FREQUENCIES_MAX + 1] = {0};
    const host_hello hello = {.version = h->fault == FAULT_VERSION ? 1 : HOST_VERSION,
                              .layers = c->layers,
                              .heads = c->heads,
                              .kv_heads = h->fault == FAULT_HEADS ? c->heads + 1 : c->kv_heads,
                              .head_dim = c->head_dim,
                              .vocab = c->vocab,
                              .context = c->context,
                              .dim = c->dim,
                              .rope_halves = c->rope_halves,
                              .rotary_dim = turns,
                              .digest = model_digest(h->m),
                              .parameters = model_parameters(h->m)};
    for (uint32_t i = 0; i < turns / 2; i++)
        frequencies[i] = pow(c->rope_theta, -2.0 * i / c->head_dim);
    if (h->fault == FAULT_FREQUENCY) frequencies[1] = (double)NAN;
    const size_t bytes = turns / 2 * sizeof(double) + (h->fault == FAULT_LENGTH ? 8 : 0);
    return begin(made, HOST_HELLO, sizeof hello + bytes) && give(made, &hello, sizeof hello) &&
           give(made, frequencies, bytes);
}

static bool answer_grams(const host *h, int made)
{
    const model_config *c = model_config_of(h->m);
    const size_t one = (size_t)c->head_dim * c->head_dim, all = c->layers * c->kv_heads * one;
    double *grams = calloc(1, (all + 1) * sizeof *grams);
    if (h->fault == FAULT_NO_GRAMS) {
        free(grams);
        return begin(made, HOST_GRAMS, 0);
    }
    for (uint32_t i = 0; i < c->layers * c->kv_heads; i++)
        model_output_gram(h->m, i / c->kv_heads, i % c->kv_heads, grams + i * one);
    if (h->fault == FAULT_GRAM) grams[3] = (double)INFINITY;
    const size_t bytes = all * sizeof *grams + (h->fault == FAULT_GRAMS);
    const bool given = begin(made, HOST_GRAMS, bytes) && give(made, grams, bytes);
    free(grams);
    return given;
}

/* Room for rows of every layer. */
static void rows_make(float **rows, uint32_t layers, size_t floats)
{
    for (uint32_t l = 0; l < layers; l++)
        rows[l] = calloc(1, (floats + 1) * sizeof(float));
}

static void rows_free(float **rows, uint32_t layers)
{
    for (uint32_t l = 0; l < layers; l++)
        free(rows[l]);
}

static bool take_past(const model_config *c, int made, const host_forward *asked, void **k,
                      void **v, uint8_t **kept)
{
    const size_t heads = (size_t)c->kv_heads * asked->past_tokens;
    const size_t matrix = heads * c->head_dim * kvt_dtype_bytes((uint8_t)asked->past_dtype);
    bool taken = true;
    for (uint32_t l = 0; l < c->layers; l++) {
        k[l] = calloc(1, matrix + 1);
        v[l] = calloc(1, matrix + 1);
        kept[l] = calloc(1, heads + 1);
        taken = taken && take(made, k[l], matrix) && take(made, v[l], matrix) &&
                (asked->past_kept == 0 || take(made, kept[l], heads));
    }
    return taken;
}

static bool answer_forward(const host *h, int made)
{
    const model_config *c = model_config_of(h->m);
    host_forward asked;
    uint32_t ids[TOKENS];
    void *past_k[NAIVE_LAYERS_MAX], *past_v[NAIVE_LAYERS_MAX];
    uint8_t *kept[NAIVE_LAYERS_MAX];
    float *rows[4][NAIVE_LAYERS_MAX];
    if (!take(made, &asked, sizeof asked) || asked.token_count > TOKENS) return false;
    if (!take(made, ids, asked.token_count * sizeof ids[0])) return false;
    bool done = take_past(c, made, &asked, past_k, past_v, kept);
    if (h->fault == FAULT_TEXT) {
        done = done && begin(made, HOST_FAILED, 4) && give(made, "full", 4);
    } else {
        const size_t own = (size_t)c->kv_heads * c->head_dim * asked.token_count;
        const size_t heads = (size_t)c->heads * c->head_dim * asked.queries_count;
        const size_t logits = (size_t)asked.logits_count * c->vocab;
        const bool kv = (asked.wants & HOST_WANTS_KV) != 0;
        const bool attended = (asked.wants & HOST_WANTS_ATTENDED) != 0;
        float *out = calloc(1, (logits + 1) * sizeof(float));
        for (int i = 0; i < 4; i++)
            rows_make(rows[i], c->layers, i < 2 ? own : heads);
        const model_past past = {.tokens = asked.past_tokens,
                                 .dtype = (uint8_t)asked.past_dtype,
                                 .k = (const void *const *)past_k,
                                 .v = (const void *const *)past_v,
                                 .kept =
                                     asked.past_kept != 0 ? (const uint8_t *const *)kept : NULL};
        const model_request request = {.tokens = ids,
                                       .token_count = asked.token_count,
                                       .first_position = asked.first_position,
                                       .past = asked.past_tokens > 0 ? &past : NULL,
                                       .k_out = rows[0],
                                       .v_out = rows[1],
                                       .logits_first = asked.logits_first,
                                       .logits_count = asked.logits_count,
                                       .logits_out = out,
                                       .queries_first = asked.queries_first,
                                       .queries_count = asked.queries_count,
                                       .queries_out = rows[2],
                                       .attended_out = rows[3]};
        model_session *session = NULL;
        done = done && model_session_open(h->m, &session) == KVT_OK &&
               model_forward(session, &request) == KVT_OK;
        model_session_close(session);
        const double seconds = h->fault == FAULT_SECONDS   ? -1.0
                               : h->fault == FAULT_NO_TIME ? (double)NAN
                                                           : PASS_SECONDS;
        const size_t bytes =
            sizeof seconds +
            (logits + c->layers * ((kv ? 2 * own : 0) + (attended ? 2 : 1) * heads)) *
                sizeof(float);
        done = done && begin(made, HOST_FORWARD, bytes + (h->fault == FAULT_MORE)) &&
               give(made, &seconds, sizeof seconds);
        for (uint32_t l = 0; l < c->layers && done && kv; l++)
            done = give(made, rows[0][l], own * sizeof(float)) &&
                   give(made, rows[1][l], own * sizeof(float));
        if (h->fault == FAULT_SHORT) done = false;
        done = done && give(made, out, logits * sizeof(float));
        for (int i = 2; i < 3 + attended; i++)
            for (uint32_t l = 0; l < c->layers && done; l++)
                done = give(made, rows[i][l], heads * sizeof(float));
        free(out);
        for (int i = 0; i < 4; i++)
            rows_free(rows[i], c->layers);
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        free(past_k[l]);
        free(past_v[l]);
        free(kept[l]);
    }
    return done;
}

static bool answer(const host *h, int made)
{
    host_head head;
    if (!take(made, &head, sizeof head) || memcmp(head.magic, "KVTM", 4) != 0) return false;
    if (h->fault == FAULT_SILENT) return false;
    if (h->fault == FAULT_MAGIC) return give(made, "HTTP/1.1 400 Bad", 16);
    if (head.kind == HOST_HELLO) return answer_hello(h, made);
    if (head.kind == HOST_GRAMS) return answer_grams(h, made);
    return answer_forward(h, made);
}

static void *serve(void *context)
{
    const host *h = context;
    for (;;) {
        const int made = accept(h->listener, NULL, NULL);
        if (made < 0 && errno == EINTR) continue;
        if (made < 0) return NULL; /* host_end */
        while (answer(h, made))
            continue;
        (void)close(made);
    }
}

static void host_start(host *h, host_fault fault)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *h = (host){.m = local, .fault = fault, .listener = socket(AF_UNIX, SOCK_STREAM, 0)};
    assert_true(strlen(in_folder("model.bin")) < sizeof address.sun_path);
    memcpy(address.sun_path, in_folder("model.bin"), strlen(in_folder("model.bin")));
    assert_int_equal(bind(h->listener, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(h->listener, 4), 0);
    assert_int_equal(pthread_create(&h->thread, NULL, serve, h), 0);
}

static void host_end(host *h)
{
    (void)shutdown(h->listener, SHUT_RDWR);
    assert_int_equal(pthread_join(h->thread, NULL), 0);
    (void)close(h->listener);
    (void)unlink(in_folder("model.bin"));
}

static int open_local(void **state)
{
    uint64_t random = 5;
    if (make_folder(state) != 0) return -1;
    plain = naive_make(naive_config(), 21);
    naive_write(&plain, in_folder("model.bin"));
    local = naive_open(in_folder("model.bin"));
    (void)unlink(in_folder("model.bin"));
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = naive_random(&random) % plain.c.vocab;
    return 0;
}

static int close_local(void **state)
{
    model_close(local);
    local = NULL;
    return remove_folder(state);
}

TEST_EACH(open_local, close_local);

/* All that a forward pass gives. */
typedef struct outcome {
    float *logits, *k[NAIVE_LAYERS_MAX], *v[NAIVE_LAYERS_MAX], *queries[NAIVE_LAYERS_MAX],
        *attended[NAIVE_LAYERS_MAX];
} outcome;

/* The same of the test's own, which the harness frees. */
static void zeros_make(float **rows, uint32_t layers, size_t floats)
{
    for (uint32_t l = 0; l < layers; l++)
        rows[l] = test_zeros(floats * sizeof(float));
}

static outcome outcome_make(void)
{
    const model_config *c = &plain.c;
    outcome o = {.logits = test_zeros((size_t)TOKENS * c->vocab * sizeof(float))};
    zeros_make(o.k, c->layers, (size_t)TOKENS * c->kv_heads * c->head_dim);
    zeros_make(o.v, c->layers, (size_t)TOKENS * c->kv_heads * c->head_dim);
    zeros_make(o.queries, c->layers, (size_t)TOKENS * c->heads * c->head_dim);
    zeros_make(o.attended, c->layers, (size_t)TOKENS * c->heads * c->head_dim);
    return o;
}

/* The first tokens from nothing, then the others on their KV in fp16 with some of it dropped. */
static kvt_status outcome_run(model_session *session, outcome *o)
{
    const model_config *c = &plain.c;
    const size_t row = (size_t)c->kv_heads * c->head_dim, floats = PAST * row;
    const model_request first = {
        .tokens = tokens, .token_count = PAST, .k_out = o->k, .v_out = o->v};
    kvt_status status = model_forward(session, &first);
    if (status != KVT_OK) return status;
    uint16_t *half[2][NAIVE_LAYERS_MAX];
    uint8_t *kept[NAIVE_LAYERS_MAX];
    for (uint32_t l = 0; l < c->layers; l++) {
        for (int side = 0; side < 2; side++) {
            half[side][l] = test_zeros(floats * sizeof(uint16_t));
            for (size_t i = 0; i < floats; i++)
                half[side][l][i] = half_from_float(side == 0 ? o->k[l][i] : o->v[l][i]);
        }
        kept[l] = test_zeros((size_t)c->kv_heads * PAST);
        for (uint32_t i = 0; i < c->kv_heads * PAST; i++)
            kept[l][i] = i % 3 != 0;
    }
    const model_past past = {.tokens = PAST,
                             .dtype = KVT_DTYPE_FP16,
                             .k = (const void *const *)half[0],
                             .v = (const void *const *)half[1],
                             .kept = (const uint8_t *const *)kept};
    const model_request rest = {.tokens = tokens + PAST,
                                .token_count = TOKENS - PAST,
                                .first_position = PAST,
                                .past = &past,
                                .logits_first = 2,
                                .logits_count = TOKENS - PAST - 5,
                                .logits_out = o->logits,
                                .queries_first = 1,
                                .queries_count = 7,
                                .queries_out = o->queries,
                                .attended_out = o->attended};
    return model_forward(session, &rest);
}

TEST(a_host_gives_what_the_model_gives)
{
    const model_config *c = &plain.c;
    const size_t own = (size_t)PAST * c->kv_heads * c->head_dim * sizeof(float);
    const size_t heads = (size_t)7 * c->heads * c->head_dim * sizeof(float);
    for (host_fault fault = FAULT_NONE; fault <= FAULT_NO_GRAMS; fault += FAULT_NO_GRAMS) {
        host h;
        char message[256];
        model *m = NULL;
        model_session *session[2];
        outcome o[2] = {outcome_make(), outcome_make()};
        host_start(&h, fault);
        assert_ok(model_open(in_folder("model.bin"), &m, message, sizeof message));
        assert_true(model_digest(m) == model_digest(local));
        assert_true(model_parameters(m) == model_parameters(local));
        /* While this process sleeps nothing is computed. */
        const double there_s = model_clock_seconds(m), here_s = model_clock_seconds(local);
        base_sleep(20000000);
        assert_true(model_clock_seconds(m) == there_s);
        assert_true(model_clock_seconds(local) - here_s < 0.02);
        assert_int_equal(model_rotary_dim(model_config_of(m)), model_rotary_dim(c));
        static quality_rope here, there; /* as dumps say it */
        quality_rope_of(c, &here);
        quality_rope_of(model_config_of(m), &there);
        assert_memory_equal(&here, &there, sizeof here);
        assert_true(there.frequencies[1] < 1.0);
        assert_ok(model_session_open(local, &session[0]));
        assert_ok(model_session_open(m, &session[1]));
        for (int i = 0; i < 2; i++) {
            assert_ok(outcome_run(session[i], &o[i]));
            model_session_close(session[i]);
        }
        /* Two passes, and what the socket took is none of them. */
        assert_true(model_clock_seconds(m) - there_s == 2 * PASS_SECONDS);
        assert_memory_equal(o[0].logits, o[1].logits,
                            (TOKENS - PAST - 5) * c->vocab * sizeof(float));
        for (uint32_t l = 0; l < c->layers; l++) {
            assert_memory_equal(o[0].k[l], o[1].k[l], own);
            assert_memory_equal(o[0].v[l], o[1].v[l], own);
            assert_memory_equal(o[0].queries[l], o[1].queries[l], heads);
            assert_memory_equal(o[0].attended[l], o[1].attended[l], heads);
        }
        const size_t width = c->head_dim;
        double *gram[2] = {test_zeros(width * width * sizeof(double)),
                           test_zeros(width * width * sizeof(double))};
        model_output_gram(local, c->layers - 1, 1, gram[0]);
        model_output_gram(m, c->layers - 1, 1, gram[1]);
        if (fault == FAULT_NONE) {
            assert_memory_equal(gram[0], gram[1], width * width * sizeof(double));
        } else { /* all errors alike */
            for (size_t i = 0; i < width * width; i++)
                assert_true(gram[1][i] == (i % (width + 1) == 0 ? 1.0 : 0.0));
        }
        model_close(m);
        host_end(&h);
    }
}

/* Nothing that a host says crashes a run or goes by unseen. */
TEST(wrong_answers_are_refused)
{
    static const char *const said[FAULTS] = {
        [FAULT_SILENT] = "has left",         [FAULT_MAGIC] = "has left",
        [FAULT_VERSION] = "another version", [FAULT_HEADS] = "do not divide",
        [FAULT_TURNS] = "more of a key",     [FAULT_LENGTH] = "another length",
        [FAULT_FREQUENCY] = "frequency",     [FAULT_GRAMS] = "another size",
        [FAULT_GRAM] = "no number"};
    for (host_fault fault = FAULT_SILENT; fault < FAULTS; fault++) {
        host h;
        char message[256] = "";
        model *m = NULL;
        model_session *session = NULL;
        host_start(&h, fault);
        kvt_status status = model_open(in_folder("model.bin"), &m, message, sizeof message);
        if (said[fault] != NULL) {
            assert_int_equal(status, KVT_E_PARSE);
            if (strstr(message, said[fault]) == NULL) fail_msg("%d: %s", (int)fault, message);
            assert_null(m);
        } else {
            outcome o = outcome_make();
            assert_ok(status);
            assert_ok(model_session_open(m, &session));
            assert_int_equal(outcome_run(session, &o), fault == FAULT_NO_GRAMS ? KVT_OK : KVT_E_IO);
        }
        model_session_close(session);
        model_close(m);
        host_end(&h);
    }
    host h;
    char message[256];
    model *m = NULL;
    host_start(&h, FAULT_NONE);
    assert_ok(model_open(in_folder("model.bin"), &m, message, sizeof message));
    (void)shutdown(h.listener, SHUT_RDWR);
    assert_int_equal(pthread_join(h.thread, NULL), 0);
    (void)close(h.listener);
    model *other = NULL;
    model_session *session = NULL;
    assert_int_equal(model_open(in_folder("model.bin"), &other, message, sizeof message),
                     KVT_E_GONE);
    assert_int_equal(model_session_open(m, &session), KVT_E_IO);
    assert_null(session);
    model_close(m);
    (void)unlink(in_folder("model.bin"));
}
