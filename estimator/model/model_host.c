/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_host.c - the client of a model that another process runs. Thread rule: model_host.h.
 */
#include "estimator/model/model_host.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers of a host are little-endian"
#endif

#define HOST_SECONDS_MAX 1e6 /* of one pass */

/* ---- bytes ---- */

static bool host_send(int socket, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count > 0) {
        const ssize_t sent = send(socket, at, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

static bool host_receive(int socket, void *bytes, size_t count)
{
    char *at = bytes;
    while (count > 0) {
        const ssize_t got = recv(socket, at, count, MSG_WAITALL);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}

static bool host_begin(int socket, uint32_t kind, uint64_t bytes)
{
    const host_head head = {.magic = {'K', 'V', 'T', 'M'}, .kind = kind, .bytes = bytes};
    return host_send(socket, &head, sizeof head);
}

/* Receives the head of an answer; a failure's text goes to message. *bytes_out is the payload's. */
static bool host_answered(int socket, uint32_t kind, uint64_t *bytes_out, char *message,
                          size_t message_size)
{
    host_head head;
    if (!host_receive(socket, &head, sizeof head) || memcmp(head.magic, "KVTM", 4) != 0) {
        (void)snprintf(message, message_size, "the model's host has left");
        return false;
    }
    *bytes_out = head.bytes;
    if (head.kind == kind) return true;
    char text[256] = "";
    size_t length = head.bytes < sizeof text - 1 ? (size_t)head.bytes : sizeof text - 1;
    if (head.kind != HOST_FAILED || !host_receive(socket, text, length)) text[0] = '\0';
    for (char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    (void)snprintf(message, message_size, "the model's host has failed: %s",
                   text[0] != '\0' ? text : "it does not speak this protocol");
    return false;
}

int model_host_connect(const model_host *host)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _Static_assert(sizeof address.sun_path == sizeof host->path, "a socket's path");
    memcpy(address.sun_path, host->path, sizeof host->path);
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0) return -1;
    int result;
    do
        result = connect(made, (const struct sockaddr *)&address, sizeof address);
    while (result != 0 && errno == EINTR);
    if (result == 0) return made;
    (void)close(made);
    return -1;
}

/* ---- what the model is ---- */

static const char *host_take_hello(const host_hello *hello, uint64_t bytes, model *m)
{
    if (hello->version != HOST_VERSION) return "it speaks another version";
    m->config = (model_config){.dim = hello->dim,
                               .ffn_dim = 1,
                               .layers = hello->layers,
                               .heads = hello->heads,
                               .kv_heads = hello->kv_heads,
                               .head_dim = hello->head_dim,
                               .vocab = hello->vocab,
                               .context = hello->context,
                               .rope_theta = 1.0,
                               .rope_halves = hello->rope_halves != 0,
                               .rotary_dim = hello->rotary_dim,
                               .frequencies = m->host->frequencies};
    m->host->digest = hello->digest;
    m->host->parameters = hello->parameters;
    const char *fault = model_config_fault(&m->config);
    if (fault != NULL) return fault;
    if (hello->rotary_dim > hello->head_dim || hello->rotary_dim % 2 != 0 ||
        hello->rotary_dim / 2 > MODEL_FREQUENCIES_MAX)
        return "it turns more of a key than there is";
    if (bytes != sizeof *hello + hello->rotary_dim / 2 * sizeof(double))
        return "its greeting has another length";
    return NULL;
}

/* Every number of an answer is finite, or the answer is of no use. */
static bool host_take_numbers(int socket, double *numbers, size_t count)
{
    if (!host_receive(socket, numbers, count * sizeof *numbers)) return false;
    for (size_t i = 0; i < count; i++)
        if (!isfinite(numbers[i])) return false;
    return true;
}

/* Greets, and asks for the output projections. NULL, or what is wrong. */
static const char *host_greet(int socket, model *m, char *text, size_t size)
{
    host_hello hello;
    uint64_t bytes = 0;
    if (!host_begin(socket, HOST_HELLO, 0) ||
        !host_answered(socket, HOST_HELLO, &bytes, text, size))
        return text;
    if (bytes < sizeof hello || !host_receive(socket, &hello, sizeof hello))
        return "its greeting is too short";
    const char *fault = host_take_hello(&hello, bytes, m);
    if (fault != NULL) return fault;
    if (!host_take_numbers(socket, m->host->frequencies, hello.rotary_dim / 2))
        return "a frequency is no number";
    const model_config *c = &m->config;
    const size_t grams = (size_t)c->layers * c->kv_heads * c->head_dim * c->head_dim;
    if (!host_begin(socket, HOST_GRAMS, 0) ||
        !host_answered(socket, HOST_GRAMS, &bytes, text, size))
        return text;
    if (bytes != 0 && bytes != grams * sizeof(double))
        return "its output projections have another size";
    m->host->grams = calloc(grams, sizeof(double));
    if (m->host->grams == NULL) return "out of memory";
    for (size_t i = 0; bytes == 0 && i < grams / c->head_dim; i++)
        m->host->grams[i * c->head_dim + i % c->head_dim] = 1.0;
    if (bytes == 0) return NULL;
    return host_take_numbers(socket, m->host->grams, grams) ? NULL
                                                            : "an output projection is no number";
}

kvt_status model_host_open(const char *path, model **model_out, char *message, size_t message_size)
{
    char text[320];
    const char *fault = "out of memory";
    model *m = calloc(1, sizeof *m);
    if (m != NULL) m->host = calloc(1, sizeof *m->host);
    *model_out = NULL;
    if (m == NULL || m->host == NULL) {
        free(m);
        return model_map_say(KVT_E_MEMORY, message, message_size, path, "%s", fault);
    }
    kvt_status status = KVT_E_PARSE;
    int socket = -1;
    if (strlen(path) < sizeof m->host->path) {
        (void)snprintf(m->host->path, sizeof m->host->path, "%s", path);
        socket = model_host_connect(m->host);
        fault = "nobody listens at this socket";
        if (socket < 0) status = KVT_E_GONE;
    } else {
        fault = "the path of a socket has at most 107 bytes";
    }
    if (socket >= 0) {
        fault = host_greet(socket, m, text, sizeof text);
        (void)close(socket);
    }
    if (fault == NULL) {
        *model_out = m;
        return KVT_OK;
    }
    model_close(m);
    return model_map_say(status, message, message_size, path, "%s", fault);
}

/* ---- the forward pass ---- */

static bool host_send_past(int socket, const model_config *c, const model_past *past)
{
    const size_t heads = (size_t)c->kv_heads * past->tokens;
    const size_t matrix = heads * c->head_dim * kvt_dtype_bytes(past->dtype);
    for (uint32_t l = 0; l < c->layers; l++) {
        if (!host_send(socket, past->k[l], matrix) || !host_send(socket, past->v[l], matrix))
            return false;
        if (past->kept != NULL && !host_send(socket, past->kept[l], heads)) return false;
    }
    return true;
}

/* Receives rows of each layer. */
static bool host_receive_layers(int socket, uint32_t layers, float *const *rows, size_t count)
{
    for (uint32_t l = 0; l < layers; l++)
        if (!host_receive(socket, rows[l], count * sizeof(float))) return false;
    return true;
}

static bool host_run(int socket, model_host *host, const model_config *c, const model_request *q)
{
    static const model_past none = {.tokens = 0};
    const model_past *past = q->past != NULL && q->past->tokens > 0 ? q->past : &none;
    const bool kv = q->k_out != NULL, logits = q->logits_out != NULL;
    const bool attended = q->attended_out != NULL;
    assert(kv == (q->v_out != NULL) && (!attended || q->queries_out != NULL));
    const host_forward asked = {.token_count = q->token_count,
                                .first_position = q->first_position,
                                .past_tokens = past->tokens,
                                .past_dtype = past->tokens > 0 ? past->dtype : 0,
                                .past_kept = past->tokens > 0 && past->kept != NULL,
                                .logits_first = q->logits_first,
                                .logits_count = logits ? q->logits_count : 0,
                                .queries_first = q->queries_first,
                                .queries_count = q->queries_out != NULL ? q->queries_count : 0,
                                .wants = (kv ? (uint32_t)HOST_WANTS_KV : 0) |
                                         (attended ? (uint32_t)HOST_WANTS_ATTENDED : 0)};
    const size_t row = (size_t)c->kv_heads * c->head_dim;
    const size_t matrix = row * past->tokens * kvt_dtype_bytes(past->dtype);
    const size_t kept = asked.past_kept != 0 ? (size_t)c->kv_heads * past->tokens : 0;
    const size_t own = kv ? row * q->token_count : 0;
    const size_t heads = (size_t)c->heads * c->head_dim * asked.queries_count;
    const size_t floats =
        (size_t)asked.logits_count * c->vocab + c->layers * (2 * own + (attended ? 2 : 1) * heads);
    uint64_t bytes = 0;
    double seconds = -1.0;
    char text[320];
    bool done = host_begin(socket, HOST_FORWARD,
                           sizeof asked + q->token_count * sizeof(uint32_t) +
                               c->layers * (2 * matrix + kept)) &&
                host_send(socket, &asked, sizeof asked) &&
                host_send(socket, q->tokens, q->token_count * sizeof(uint32_t)) &&
                (past->tokens == 0 || host_send_past(socket, c, past)) &&
                host_answered(socket, HOST_FORWARD, &bytes, text, sizeof text) &&
                bytes == sizeof seconds + floats * sizeof(float) &&
                host_receive(socket, &seconds, sizeof seconds) && seconds >= 0.0 &&
                seconds < HOST_SECONDS_MAX;
    for (uint32_t l = 0; kv && l < c->layers && done; l++)
        done = host_receive(socket, q->k_out[l], own * sizeof(float)) &&
               host_receive(socket, q->v_out[l], own * sizeof(float));
    if (done && logits)
        done =
            host_receive(socket, q->logits_out, (size_t)q->logits_count * c->vocab * sizeof(float));
    if (done && heads > 0) done = host_receive_layers(socket, c->layers, q->queries_out, heads);
    if (done && attended) done = host_receive_layers(socket, c->layers, q->attended_out, heads);
    if (done) atomic_fetch_add(&host->computed_ns, (uint64_t)(seconds * 1e9));
    return done;
}

kvt_status model_host_forward(const model_session *session, const model_request *requests,
                              uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!host_run(session->connection, session->m->host, &session->m->config, &requests[i]))
            return KVT_E_IO;
    return KVT_OK;
}
