/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slack_log.c - lines of the gate's decisions, written and decided again. The contract is
 * slack_log.h's.
 *
 * One table of fields writes and reads the inputs. A line is checked by asking the gate, and by
 * writing what it says: the two texts are the same, or the decision is another one.
 *
 * Thread rule: as slack_log.h.
 */
#include "slack_log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LOG_LINE_BYTES 4096u /* sixteen needs of six numbers of twenty digits, and the fields */
#define LOG_LAYERS_MAX 65536u

typedef enum log_kind { LOG_WORD, LOG_COUNT, LOG_FLAG, LOG_REAL } log_kind;

typedef struct log_field {
    const char *name;
    log_kind kind;
    size_t offset;
} log_field;

_Static_assert(sizeof(tiers_order) == sizeof(uint32_t) && sizeof(tiers_rank) == sizeof(uint32_t),
               "enumerations are written as counts");

#define FIELD(kind, path, name)                                                                    \
    {                                                                                              \
        name, LOG_##kind, offsetof(slack_question, path)                                           \
    }
#define SETTING(kind, path) FIELD(kind, settings.path, #path)
#define ACCOUNT(kind, path) FIELD(kind, account.path, #path)
#define STATE(kind, path)   FIELD(kind, state.path, #path)

static const log_field log_fields[] = {
    FIELD(COUNT, member, "member"), FIELD(COUNT, rank, "rank"),
    FIELD(WORD, bytes, "bytes"),    SETTING(COUNT, order),
    SETTING(WORD, grain_ns),        SETTING(WORD, patience_ns),
    SETTING(WORD, guard_ns),        SETTING(REAL, mix_loss),
    ACCOUNT(WORD, share_ns),        ACCOUNT(WORD, window_ns),
    ACCOUNT(REAL, window_seconds),  ACCOUNT(WORD, batch_ns),
    ACCOUNT(FLAG, filled),          ACCOUNT(WORD, still_ns),
    ACCOUNT(COUNT, still),          STATE(WORD, now_ns),
    STATE(WORD, waited_ns),         STATE(FLAG, short_of_staging),
    STATE(FLAG, reads_queued),      STATE(WORD, reading_bytes),
    STATE(WORD, writing_bytes),     STATE(REAL, read_bytes_per_s),
    STATE(REAL, write_bytes_per_s),
};

#define LOG_FIELDS (sizeof log_fields / sizeof log_fields[0])

static bool log_is_write(const slack_question *question)
{
    return question->rank >= TIERS_RANK_WRITE;
}

slack_reason tiers_slack_ask(const slack_question *question, slack_account *account)
{
    const slack_settings *settings = &question->settings;
    if (log_is_write(question))
        return slack_may_write(settings, account, &question->state, question->bytes);
    return slack_may_read(settings, account, &question->state, question->rank == TIERS_RANK_WAITED,
                          question->bytes);
}

/* Writes a question and its answer. Returns the length, with the end of the line. */
static size_t log_print(char *line, const slack_question *question, slack_reason reason)
{
    static const char *const classes[TIERS_RANKS] = {"load", "prefetch", "put", "background"};
    const slack_state *state = &question->state;
    const double rate = log_is_write(question) ? state->write_bytes_per_s : state->read_bytes_per_s;
    const double seconds = (double)question->bytes / rate;
    size_t at = (size_t)snprintf(
        line, LOG_LINE_BYTES, "%" PRIu64 " member=%u class=%s seconds=%.9f least=%.9f %s %s |",
        state->now_ns, question->member, classes[question->rank], seconds,
        tiers_slack_margin(state, seconds), slack_begins(reason) ? "begins" : "waits",
        slack_reason_name(reason));
    for (size_t i = 0; i < LOG_FIELDS; i++) {
        const log_field *field = &log_fields[i];
        const void *value = (const char *)question + field->offset;
        const size_t room = LOG_LINE_BYTES - at;
        int length = snprintf(line + at, room, " %s=", field->name);
        at += (size_t)length;
        if (field->kind == LOG_REAL)
            length = snprintf(line + at, room, "%.17g", *(const double *)value);
        else
            length = snprintf(line + at, room, "%" PRIu64,
                              field->kind == LOG_WORD    ? *(const uint64_t *)value
                              : field->kind == LOG_COUNT ? *(const uint32_t *)value
                                                         : *(const bool *)value);
        at += (size_t)length;
    }
    for (uint32_t i = 0; i < state->need_count; i++) {
        const slack_need *need = &state->needs[i];
        at += (size_t)snprintf(line + at, LOG_LINE_BYTES - at,
                               " need=%" PRIu64 ",%" PRIu64 ",%u,%u,%" PRIu64 ",%" PRIu64,
                               need->due_ns, need->step_ns, need->layers, need->ahead,
                               need->layer_bytes, need->landed_bytes);
    }
    line[at++] = '\n';
    line[at] = '\0';
    return at;
}

void tiers_slack_log_add(FILE *log, const slack_question *question, slack_reason reason)
{
    char line[LOG_LINE_BYTES];
    (void)fwrite(line, log_print(line, question, reason), 1, log);
}

/* Whether the gate takes these numbers. */
static bool log_is_sound(const slack_question *question)
{
    const slack_state *state = &question->state;
    bool sound = question->member < TIERS_MEMBERS_MAX && question->rank < TIERS_RANKS;
    sound = sound && question->settings.order < TIERS_ORDERS;
    sound = sound && state->read_bytes_per_s > 0 && state->write_bytes_per_s > 0;
    for (uint32_t i = 0; i < state->need_count; i++)
        sound = sound && state->needs[i].layers <= LOG_LAYERS_MAX;
    return sound;
}

/* Reads the inputs of a line. False: they are none. */
static bool log_parse(const char *at, slack_question *question, slack_need *needs)
{
    uint32_t count = 0;
    *question = (slack_question){.state.needs = needs};
    for (size_t i = 0; i < LOG_FIELDS; i++) {
        const log_field *field = &log_fields[i];
        const size_t name = strlen(field->name);
        void *value = (char *)question + field->offset;
        char *end;
        if (*at++ != ' ' || strncmp(at, field->name, name) != 0 || at[name] != '=') return false;
        at += name + 1;
        if (field->kind == LOG_REAL)
            *(double *)value = strtod(at, &end);
        else {
            const uint64_t word = strtoull(at, &end, 10);
            if (field->kind == LOG_WORD) *(uint64_t *)value = word;
            if (field->kind == LOG_COUNT) *(uint32_t *)value = (uint32_t)word;
            if (field->kind == LOG_FLAG) *(bool *)value = word != 0;
        }
        if (end == at) return false;
        at = end;
    }
    for (; strncmp(at, " need=", 6) == 0 && count < SLACK_NEEDS_MAX; count++) {
        uint64_t words[6];
        at += 5; /* in front of the first number, as of the others, stands one sign */
        for (uint32_t i = 0; i < 6; i++) {
            char *end;
            words[i] = strtoull(at + 1, &end, 10);
            if ((i > 0 && *at != ',') || end == at + 1) return false;
            at = end;
        }
        needs[count] = (slack_need){words[0],           words[1], (uint32_t)words[2],
                                    (uint32_t)words[3], words[4], words[5]};
    }
    question->state.need_count = count;
    return *at == '\n' && log_is_sound(question);
}

kvt_status tiers_slack_log_check(FILE *log, slack_log_sums *sums_out)
{
    char line[LOG_LINE_BYTES], again[LOG_LINE_BYTES];
    slack_need needs[SLACK_NEEDS_MAX];
    slack_question question;
    *sums_out = (slack_log_sums){0};
    while (fgets(line, sizeof line, log) != NULL) {
        const char *head = strchr(line, ' '), *inputs = strchr(line, '|');
        sums_out->lines++;
        if (head == NULL || strncmp(head, " member=", 8) != 0) continue;
        if (inputs == NULL || !log_parse(inputs + 1, &question, needs)) return KVT_E_CORRUPT;
        slack_account account = question.account;
        (void)log_print(again, &question, tiers_slack_ask(&question, &account));
        sums_out->decisions++;
        sums_out->differ += strcmp(line, again) != 0;
    }
    return ferror(log) != 0 ? KVT_E_IO : KVT_OK;
}
