/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slack_log.h - decisions of the gate as lines of text, each with all that it was made from, so
 * that it can be made again.
 *
 *     11804228911004 member=2 class=put seconds=0.000327680 least=0.011213 begins fits | bytes=...
 *
 * `least` is the least D_j - Q_j if the operation begins, in seconds (slack.h); inf: no layer is
 * needed. What stands behind the bar are the inputs, in full precision.
 *
 * Thread rule: a line is one write to its stream, which locks itself.
 */
#ifndef TIERS_SLACK_LOG_H
#define TIERS_SLACK_LOG_H

#include <stdio.h>

#include "slack.h"

/* A question to the gate, with all that the gate knew. */
typedef struct slack_question {
    uint32_t member;
    tiers_rank rank;
    uint64_t bytes; /* that would begin */
    slack_settings settings;
    slack_account account; /* before the decision */
    slack_state state;
} slack_question;

/* Asks. account: as of the question, which the decision may change. */
slack_reason tiers_slack_ask(const slack_question *question, slack_account *account);

/* Writes one line. ferror() of the stream says whether one was lost. */
void tiers_slack_log_add(FILE *log, const slack_question *question, slack_reason reason);

typedef struct slack_log_sums {
    uint64_t lines;     /* of the log */
    uint64_t decisions; /* among them; the others are left out, as moves in a log of plans */
    uint64_t differ;    /* the permission, its reason or a figure is another one now */
} slack_log_sums;

/* Asks the gate again for each line. KVT_OK; KVT_E_CORRUPT: the last line begins as a decision and
 * is none; KVT_E_IO. */
KVT_NODISCARD kvt_status tiers_slack_log_check(FILE *log, slack_log_sums *sums_out);

#endif
