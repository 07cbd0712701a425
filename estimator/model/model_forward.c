/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_forward.c - the forward pass: new tokens of one or several sequences, each on top of its
 * own K and V. The new tokens of all sequences are one batch in every product with weights, so that
 * these are read once per layer; attention goes sequence by sequence. Thread rule: one thread per
 * session.
 */
#include "estimator/model/model_host.h"
#include "estimator/model/model_vector.h"

#include <cblas.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_flag forward_threads_set = ATOMIC_FLAG_INIT;

void model_set_blas_threads(int threads)
{
    atomic_flag_test_and_set(&forward_threads_set);
    openblas_set_num_threads(threads);
}

const char *model_blas_kernels(void)
{
    return openblas_get_corename();
}

kvt_status model_session_open(const model *m, model_session **session_out)
{
    if (!atomic_flag_test_and_set(&forward_threads_set)) openblas_set_num_threads(1);
    model_session *session = calloc(1, sizeof *session);
    *session_out = session;
    if (session == NULL) return KVT_E_MEMORY;
    session->m = m;
    session->connection = -1;
    if (m->host == NULL) return KVT_OK;
    session->connection = model_host_connect(m->host);
    if (session->connection >= 0) return KVT_OK;
    free(session);
    *session_out = NULL;
    return KVT_E_IO;
}

void model_session_close(model_session *session)
{
    if (session == NULL) return;
    if (session->connection >= 0) (void)close(session->connection);
    free(session->memory);
    free(session);
}

const model_config *model_session_config(const model_session *session)
{
    return &session->m->config;
}

static uint32_t forward_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static kvt_status forward_reserve(model_session *s, uint32_t rows, bool several)
{
    const model_config *c = &s->m->config;
    size_t wide = forward_max(c->dim, forward_max(c->ffn_dim, model_query_dim(c)));
    struct {
        float **place;
        size_t floats;
    } parts[] = {{&s->x, (size_t)rows * c->dim},
                 {&s->normed, rows * wide},
                 {&s->query, (size_t)rows * model_query_dim(c)},
                 {&s->attended, (size_t)rows * model_query_dim(c)},
                 {&s->gate, (size_t)rows * c->ffn_dim},
                 {&s->up, (size_t)rows * c->ffn_dim},
                 {&s->delta, (size_t)rows * c->dim},
                 {&s->keys, (size_t)rows * model_kv_dim(c)},
                 {&s->values, (size_t)rows * model_kv_dim(c)},
                 {&s->cosine, (size_t)rows * c->head_dim / 2},
                 {&s->sine, (size_t)rows * c->head_dim / 2},
                 {&s->work, model_attend_floats(c)},
                 {&s->logits, several ? (size_t)MODEL_LOGIT_ROWS * c->vocab : 0}};
    size_t floats = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        floats += (parts[i].floats + 15) / 16 * 16;
    if (floats > s->memory_floats) {
        free(s->memory);
        s->memory_floats = 0;
        s->memory = aligned_alloc(64, floats * sizeof *s->memory);
        if (s->memory == NULL) return KVT_E_MEMORY;
        s->memory_floats = floats;
    }
    float *at = s->memory;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].place = at;
        at += (parts[i].floats + 15) / 16 * 16;
    }
    return KVT_OK;
}

/* A product of few rows: y[rows][out] = x[rows][in] w[out][in]^T. */
typedef struct forward_few {
    const float *x, *w;
    float *y;
    uint32_t rows, in, out;
} forward_few;

enum { FEW_ROWS = 16, FEW_TILE = 4 };

/* The sums of up to FEW_TILE rows with up to FEW_TILE outputs. */
VECTOR_INLINE void forward_few_tile(const forward_few *few, uint32_t row, uint32_t rows,
                                    uint32_t out, uint32_t outs)
{
    vector_floats sums[FEW_TILE][FEW_TILE] = {{{0.0f}}};
    const float *x[FEW_TILE], *w[FEW_TILE];
    const size_t in = few->in;
    for (uint32_t i = 0; i < FEW_TILE; i++) {
        /* A row or an output that is not there is another one again. */
        x[i] = few->x + (row + (i < rows ? i : 0)) * in;
        w[i] = few->w + (out + (i < outs ? i : 0)) * in;
    }
    for (uint32_t at = 0; at < few->in; at += VECTOR_LANES) {
        vector_floats of_x[FEW_TILE], of_w;
        for (uint32_t i = 0; i < FEW_TILE; i++)
            vector_load(x[i], at, few->in, 0.0f, &of_x[i]);
        for (uint32_t o = 0; o < FEW_TILE; o++) {
            vector_load(w[o], at, few->in, 0.0f, &of_w);
            for (uint32_t i = 0; i < FEW_TILE; i++)
                sums[i][o] += of_x[i] * of_w;
        }
    }
    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t o = 0; o < outs; o++) {
            float sum = 0.0f;
            for (unsigned lane = 0; lane < VECTOR_LANES; lane++)
                sum += sums[i][o][lane];
            few->y[(row + (size_t)i) * few->out + out + o] = sum;
        }
    }
}

/* Reads the weights once, as they lie. */
VECTOR_INLINE void forward_product_body(forward_few *few)
{
    for (uint32_t out = 0; out < few->out; out += FEW_TILE) {
        const uint32_t outs = few->out - out < FEW_TILE ? few->out - out : (uint32_t)FEW_TILE;
        for (uint32_t row = 0; row < few->rows; row += FEW_TILE) {
            const uint32_t rows = few->rows - row < FEW_TILE ? few->rows - row : (uint32_t)FEW_TILE;
            forward_few_tile(few, row, rows, out, outs);
        }
    }
}

VECTOR_VERSIONS(forward_product, forward_few)

/* y[rows][out] = x[rows][in] w[out][in]^T. Of few rows the library spends most of its time on
 * bringing the weights into another order. */
static void forward_linear(const float *x, const float *w, float *y, uint32_t rows,
                           model_shape shape)
{
    if (rows <= FEW_ROWS) {
        forward_product(&(forward_few){x, w, y, rows, shape.columns, shape.rows});
        return;
    }
    int in = (int)shape.columns, out = (int)shape.rows;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, out, in, 1.0f, x, in, w, in,
                0.0f, y, out);
}

static void forward_add(float *x, const float *delta, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] += delta[i];
}

static void forward_matrix(model_session *s, uint32_t l, int matrix, const float *x, float *y,
                           uint32_t rows)
{
    const model_shape shape = model_matrix_shape(&s->m->config, matrix);
    forward_linear(x, model_matrix(&s->m->layers[l], matrix), y, rows, shape);
    if (!s->m->config.biased || matrix > MODEL_WV) return;
    for (uint32_t r = 0; r < rows; r++)
        forward_add(y + (size_t)r * shape.rows, s->m->layers[l].bias[matrix], shape.rows);
}

/* RMSNorm with weights; without them x / rms(x) / width, the ternary models' scaling. */
static void forward_norm(const model_config *c, const float *weight, const float *x, uint32_t rows,
                         uint32_t width, float *out)
{
    for (uint32_t r = 0; r < rows; r++, x += width, out += width) {
        double sum = 0.0;
        for (uint32_t i = 0; i < width; i++)
            sum += (double)x[i] * x[i];
        double mean = sum / width;
        if (weight == NULL) {
            float scale = mean > 0.0 ? (float)(1.0 / (sqrt(mean) * width)) : 0.0f;
            for (uint32_t i = 0; i < width; i++)
                out[i] = x[i] * scale;
        } else {
            float scale = (float)(1.0 / sqrt(mean + (double)c->norm_eps));
            for (uint32_t i = 0; i < width; i++)
                out[i] = x[i] * scale * weight[i];
        }
    }
}

/* Prepares the input of a block's second linear layer: scaled in ternary models, else as it is. */
static const float *forward_inner(model_session *s, const float *x, uint32_t rows, uint32_t width)
{
    if (!s->m->config.bare_norm) return x;
    forward_norm(&s->m->config, NULL, x, rows, width, s->normed);
    return s->normed;
}

/* Of rows [row, row + rows), whose first token is at position `first`. */
static void forward_rotation_table(model_session *s, uint32_t row, uint32_t first, uint32_t rows)
{
    const model_config *c = &s->m->config;
    uint32_t half = c->head_dim / 2;
    float *cosine = s->cosine + (size_t)row * half, *sine = s->sine + (size_t)row * half;
    for (uint32_t i = 0; i < half; i++) {
        const double frequency = model_frequency(c, i);
        for (uint32_t r = 0; r < rows; r++) {
            double angle = ((double)first + r) * frequency;
            cosine[(size_t)r * half + i] = (float)cos(angle);
            sine[(size_t)r * half + i] = (float)sin(angle);
        }
    }
}

static void forward_rotate(const model_session *s, float *vectors, uint32_t rows, uint32_t heads)
{
    const model_config *c = &s->m->config;
    uint32_t half = c->head_dim / 2;
    uint32_t step = c->rope_halves ? 1 : 2, apart = c->rope_halves ? half : 1;
    for (uint32_t r = 0; r < rows; r++) {
        const float *cosine = s->cosine + (size_t)r * half, *sine = s->sine + (size_t)r * half;
        for (uint32_t h = 0; h < heads; h++, vectors += c->head_dim) {
            for (uint32_t i = 0; i < half; i++) {
                float *low = &vectors[i * step], *high = low + apart;
                float a = *low, b = *high;
                *low = a * cosine[i] - b * sine[i];
                *high = a * sine[i] + b * cosine[i];
            }
        }
    }
}

/* The requests of a batch; their new tokens' rows follow each other. */
typedef struct forward_batch {
    const model_request *requests;
    uint32_t count;
    uint32_t rows; /* of all */
} forward_batch;

static uint32_t forward_past(const model_request *q)
{
    return q->past != NULL ? q->past->tokens : 0;
}

static void forward_attend(model_session *s, const model_request *q, uint32_t l, uint32_t row)
{
    const model_config *c = &s->m->config;
    const uint32_t past = forward_past(q);
    const size_t query = (size_t)row * model_query_dim(c), kv = (size_t)row * model_kv_dim(c);
    model_attend_all attend = {.config = c,
                               .queries = s->query + query,
                               .out = s->attended + query,
                               .rows = q->token_count,
                               .own_keys = s->keys + kv,
                               .own_values = s->values + kv,
                               .past = past};
    if (past > 0) {
        attend.dtype = q->past->dtype;
        attend.past_keys = q->past->k[l];
        attend.past_values = q->past->v[l];
        attend.kept = q->past->kept != NULL ? q->past->kept[l] : NULL;
    }
    model_attend_past(&attend, s->work);
}

/* Gives a request the rows of one layer that it asks for, from `row` on, but not attention's. */
static void forward_give(const model_session *s, const model_request *q, uint32_t l, uint32_t row)
{
    const model_config *c = &s->m->config;
    const size_t query_dim = model_query_dim(c), kv_dim = model_kv_dim(c);
    const size_t bytes = q->token_count * kv_dim * sizeof(float);
    if (q->k_out != NULL) memcpy(q->k_out[l], s->keys + row * kv_dim, bytes);
    if (q->v_out != NULL) memcpy(q->v_out[l], s->values + row * kv_dim, bytes);
    if (q->queries_out != NULL) {
        memcpy(q->queries_out[l], s->query + (row + (size_t)q->queries_first) * query_dim,
               q->queries_count * query_dim * sizeof *s->query);
    }
}

static void forward_attention_part(model_session *s, const forward_batch *batch, uint32_t l)
{
    const model_config *c = &s->m->config;
    const uint32_t rows = batch->rows, query_dim = model_query_dim(c);
    forward_norm(c, s->m->layers[l].norm_attention, s->x, rows, c->dim, s->normed);
    forward_matrix(s, l, MODEL_WQ, s->normed, s->query, rows);
    forward_matrix(s, l, MODEL_WK, s->normed, s->keys, rows);
    forward_matrix(s, l, MODEL_WV, s->normed, s->values, rows);
    forward_rotate(s, s->query, rows, c->heads);
    forward_rotate(s, s->keys, rows, c->kv_heads);
    for (uint32_t i = 0, row = 0; i < batch->count; row += batch->requests[i++].token_count) {
        const model_request *q = &batch->requests[i];
        forward_give(s, q, l, row);
        forward_attend(s, q, l, row);
        if (q->attended_out == NULL) continue;
        memcpy(q->attended_out[l], s->attended + (row + (size_t)q->queries_first) * query_dim,
               (size_t)q->queries_count * query_dim * sizeof *s->attended);
    }
    forward_matrix(s, l, MODEL_WO, forward_inner(s, s->attended, rows, query_dim), s->delta, rows);
    forward_add(s->x, s->delta, (size_t)rows * c->dim);
}

/* gate = silu(gate) * up, with silu(x) = x / (1 + e^-x). */
typedef struct forward_gate {
    float *gate;
    const float *up;
    uint32_t count;
} forward_gate;

VECTOR_INLINE void forward_swish_body(forward_gate *row)
{
    for (uint32_t i = 0; i < row->count; i += VECTOR_LANES) {
        vector_floats gate, up, small;
        vector_load(row->gate, i, row->count, 0.0f, &gate);
        vector_load(row->up, i, row->count, 0.0f, &up);
        /* e^-|x|, so that it never overflows: 1 / (1 + e^-x) is that over 1 + that below zero. */
        vector_bits below = (vector_bits)(gate < 0.0f);
        small = (vector_floats)((vector_bits)gate | 0x80000000u);
        vector_exp(&small);
        vector_floats one = (vector_floats){0.0f} + 1.0f;
        vector_floats above =
            (vector_floats)((below & (vector_bits)small) | (~below & (vector_bits)one));
        gate = gate * up * (above / (small + 1.0f));
        vector_store(row->gate, i, row->count, &gate);
    }
}

VECTOR_VERSIONS(forward_swish, forward_gate)

static void forward_ffn_part(model_session *s, uint32_t l, uint32_t rows)
{
    const model_config *c = &s->m->config;
    forward_norm(c, s->m->layers[l].norm_ffn, s->x, rows, c->dim, s->normed);
    forward_matrix(s, l, MODEL_W1, s->normed, s->gate, rows);
    forward_matrix(s, l, MODEL_W3, s->normed, s->up, rows);
    for (uint32_t r = 0; r < rows; r++) {
        const size_t place = (size_t)r * c->ffn_dim;
        forward_swish(&(forward_gate){s->gate + place, s->up + place, c->ffn_dim});
    }
    forward_matrix(s, l, MODEL_W2, forward_inner(s, s->gate, rows, c->ffn_dim), s->delta, rows);
    forward_add(s->x, s->delta, (size_t)rows * c->dim);
}

static bool forward_is_sound(const model_config *c, const model_request *q)
{
    if (q->token_count == 0 || q->token_count > MODEL_TOKENS_MAX) return false;
    for (uint32_t i = 0; i < q->token_count; i++)
        if (q->tokens[i] >= c->vocab) return false;
    if (q->past != NULL) {
        if (q->past->tokens > MODEL_TOKENS_MAX) return false;
        if (!model_is_float(q->past->dtype)) return false;
    }
    return q->logits_first <= q->token_count &&
           q->logits_count <= q->token_count - q->logits_first &&
           q->queries_first <= q->token_count &&
           q->queries_count <= q->token_count - q->queries_first;
}

/* Logits of rows that several requests want, computed together and then handed to each. */
typedef struct forward_gathered {
    float *targets[MODEL_LOGIT_ROWS]; /* [vocab] each */
    uint32_t count;
} forward_gathered;

static void forward_gathered_give(model_session *s, forward_gathered *rows)
{
    const model_config *c = &s->m->config;
    if (rows->count > 0)
        forward_linear(s->normed, s->m->output, s->logits, rows->count,
                       (model_shape){c->vocab, c->dim});
    for (uint32_t i = 0; i < rows->count; i++)
        memcpy(rows->targets[i], s->logits + (size_t)i * c->vocab, c->vocab * sizeof(float));
    rows->count = 0;
}

/* The logits of each request's wanted rows. The output matrix is the largest of all: requests of
 * few rows share a product. */
static void forward_logits(model_session *s, const forward_batch *batch)
{
    const model *m = s->m;
    const model_config *c = &m->config;
    forward_gathered rows = {.count = 0};
    for (uint32_t i = 0, row = 0; i < batch->count; row += batch->requests[i++].token_count) {
        const model_request *q = &batch->requests[i];
        const float *x = s->x + (row + (size_t)q->logits_first) * c->dim;
        if (q->logits_out == NULL || q->logits_count == 0) continue;
        if (batch->count > 1 && q->logits_count <= MODEL_LOGIT_ROWS / 4) {
            if (rows.count + q->logits_count > MODEL_LOGIT_ROWS) forward_gathered_give(s, &rows);
            forward_norm(c, m->norm_final, x, q->logits_count, c->dim,
                         s->normed + (size_t)rows.count * c->dim);
            for (uint32_t r = 0; r < q->logits_count; r++)
                rows.targets[rows.count++] = q->logits_out + (size_t)r * c->vocab;
            continue;
        }
        forward_gathered_give(s, &rows); /* `normed` is needed */
        forward_norm(c, m->norm_final, x, q->logits_count, c->dim, s->normed);
        forward_linear(s->normed, m->output, q->logits_out, q->logits_count,
                       (model_shape){c->vocab, c->dim});
    }
    forward_gathered_give(s, &rows);
}

kvt_status model_forward_many(model_session *s, const model_request *requests, uint32_t count)
{
    const model *m = s->m;
    const model_config *c = &m->config;
    forward_batch batch = {.requests = requests, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        if (!forward_is_sound(c, &requests[i])) return KVT_E_ARGUMENT;
        if (requests[i].token_count > MODEL_TOKENS_MAX - batch.rows) return KVT_E_ARGUMENT;
        batch.rows += requests[i].token_count;
    }
    if (count == 0) return KVT_OK;
    if (m->host != NULL) return model_host_forward(s, requests, count);
    kvt_status status = forward_reserve(s, batch.rows, count > 1);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0, row = 0; i < count; row += requests[i++].token_count) {
        for (uint32_t r = 0; r < requests[i].token_count; r++) {
            memcpy(s->x + ((size_t)row + r) * c->dim,
                   m->embedding + (size_t)requests[i].tokens[r] * c->dim, c->dim * sizeof *s->x);
        }
        forward_rotation_table(s, row, requests[i].first_position, requests[i].token_count);
    }
    for (uint32_t l = 0; l < c->layers; l++) {
        forward_attention_part(s, &batch, l);
        forward_ffn_part(s, l, batch.rows);
    }
    forward_logits(s, &batch);
    return KVT_OK;
}

kvt_status model_forward(model_session *s, const model_request *q)
{
    return model_forward_many(s, q, 1);
}
