/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths.c - how many seconds of moving wait in each tier's read and write path: what a written byte
 * is charged for it, and which moves the executor would not carry out now.
 *
 *     queue = what the executor told last (kvt_policy_observe_queue) + moves begun since - time
 *
 * A path whose queue is near the executor's limit is closed: no move that needs it is planned. An
 * aborted move takes the rest of its plan with it, and where holes end a prefix, the rest of the
 * context too, while another way of making room was often there.
 */
#include "policy/engine.h"

#define PATHS_LOOK_SECONDS   1.0
#define PATHS_HALF_LIFE      37.5   /* seconds of the busy share */
#define PATHS_LEFT_HALF_LIFE 1200.0 /* and of what leaves a tier */
#define PATHS_FULL           0.95   /* shares count as at most this */
#define PATHS_MARGIN         0.8    /* of a limit: clocks and sizes differ a little */

void paths_set_queue(kvt_policy *policy, path *p, double seconds)
{
    p->queue = seconds > 0.0 ? seconds : 0.0;
    double filled = p->limit > 0.0 ? p->queue / (PATHS_MARGIN * p->limit) : 0.0;
    /* The last seconds before a path closes are dear: what comes then finds it closed. */
    p->wait = p->queue / (1.0 - (filled < PATHS_FULL ? filled : PATHS_FULL));
    bool closed = filled > 1.0;
    if (closed == p->closed) return;
    p->closed = closed;
    if (closed)
        policy->paths_closed++;
    else
        policy->paths_closed--;
}

/* Charges a write: next to nothing on an idle path, its wait on a busy one. */
static void paths_set_price(kvt_policy *policy, int level, double busy)
{
    policy->write_price[level] = BACKGROUND_SHARE * policy->writes[level].second / (1.0 - busy);
}

/* Seconds per byte of a path; the bytes that wait in it stay, so their seconds change with them. */
static void path_set_second(kvt_policy *policy, path *p, double bytes_per_s)
{
    double before = p->second;
    p->second = bytes_per_s > 0.0 ? 1.0 / bytes_per_s : 0.0;
    if (p->queue > 0.0 && before > 0.0) paths_set_queue(policy, p, p->queue * p->second / before);
}

void paths_set_speed(kvt_policy *policy, int level)
{
    const kvt_tier_facts *facts = &policy->config.tiers[level + 1];
    path *writes = &policy->writes[level];
    double before = writes->second;
    double *busy = &policy->write_busy[level];
    policy->reads[level].request = facts->request_seconds;
    path_set_second(policy, &policy->reads[level], facts->read_bytes_per_s);
    path_set_second(policy, writes, facts->write_bytes_per_s);
    if (before > 0.0) *busy *= writes->second / before;
    paths_set_price(policy, level, *busy < PATHS_FULL ? *busy : PATHS_FULL);
}

void paths_open(kvt_policy *policy)
{
    for (int level = 0; level < LEVELS; level++) {
        const kvt_tier_facts *facts = &policy->config.tiers[level + 1];
        policy->reads[level].limit = facts->read_lag_seconds;
        policy->writes[level].limit = facts->write_lag_seconds;
        policy->stay[level] = UNLIMITED;
        paths_set_speed(policy, level);
    }
}

/* Whether a move has to read its source: planes given up in place are not, nor what the caller
 * holds in memory. */
bool paths_move_reads(const kvt_policy *policy, uint32_t index, uint8_t to)
{
    const entry *e = entry_at(policy, index);
    if (to == KVT_OPTION_NONE || e->current == KVT_OPTION_NONE || index == policy->in_hand)
        return false;
    for (int level = 0; level < LEVELS; level++)
        if (entry_need(policy, e, to, level) != 0) return true;
    return false;
}

bool paths_lead_there(const kvt_policy *policy, uint32_t index, uint8_t to)
{
    const entry *e = entry_at(policy, index);
    if (to == KVT_OPTION_NONE) return true;
    bool reads = paths_move_reads(policy, index, to);
    for (int level = 0; level < LEVELS; level++) {
        if (policy->writes[level].closed && entry_need(policy, e, to, level) != 0) return false;
        uint64_t kept = entry_kept(policy, e, to, level);
        if (reads && policy->reads[level].closed &&
            entry_bytes(policy, e, e->current, level) > kept) {
            return false;
        }
    }
    return true;
}

/* The seconds that a move takes of each path; flight.reads says whether it reads. */
void paths_queue(kvt_policy *policy, const flight *move, double by)
{
    const entry *e = entry_at(policy, move->entry);
    for (int level = 0; level < LEVELS; level++) {
        path *reads = &policy->reads[level];
        path *writes = &policy->writes[level];
        uint64_t kept = move->kept[level];
        uint64_t source = entry_bytes(policy, e, move->from, level) - kept;
        uint64_t target = move->to_bytes[level] - kept;
        if (move->reads && source != 0) {
            double seconds = reads->request + (double)source * reads->second;
            paths_set_queue(policy, reads, reads->queue + by * seconds);
        }
        if (target != 0)
            paths_set_queue(policy, writes, writes->queue + by * (double)target * writes->second);
    }
}

/*
 * How long a byte stays in each level: by Little's law what is stored over what leaves in a second.
 * Until something has left, and for as long as no more leaves, it stays as long as it is wanted.
 */
static void paths_measure_stay(kvt_policy *policy, double seen)
{
    double kept = number_exp2(-seen / PATHS_LEFT_HALF_LIFE);
    for (int level = 0; level < LEVELS; level++) {
        uint64_t left = policy->left[level] - policy->left_seen[level];
        policy->left_seen[level] = policy->left[level];
        if (left == 0 && policy->left_seconds[level] <= 0.0) continue;
        policy->left_bytes[level] = kept * policy->left_bytes[level] + (double)left;
        policy->left_seconds[level] = kept * policy->left_seconds[level] + seen;
        double stored = (double)policy->used[level] * policy->left_seconds[level];
        policy->stay[level] =
            policy->left_bytes[level] > 0.0 ? stored / policy->left_bytes[level] : UNLIMITED;
    }
}

/*
 * What is written at a share u of a path's time makes the rest wait 1 / (1-u) as long, and what a
 * path has been given in this moment lets the next bytes wait as many seconds. All of it is time
 * in the background: a tier is not written by entries that hardly pay while those that would wait,
 * and yet no request waits for it.
 */
void paths_pass(kvt_policy *policy, double passed)
{
    for (int level = 0; level < LEVELS; level++) {
        path *reads = &policy->reads[level];
        path *writes = &policy->writes[level];
        if (reads->queue > 0.0) paths_set_queue(policy, reads, reads->queue - passed);
        if (writes->queue > 0.0) paths_set_queue(policy, writes, writes->queue - passed);
    }
    double seen = (double)(policy->now_ns - policy->write_ns) * 1e-9;
    if (seen < PATHS_LOOK_SECONDS) return;
    double kept = number_exp2(-seen / PATHS_HALF_LIFE);
    paths_measure_stay(policy, seen);
    policy->write_ns = policy->now_ns;
    for (int level = 0; level < LEVELS; level++) {
        uint64_t bytes = policy->counters.written_bytes[level + 1];
        double busy =
            (double)(bytes - policy->write_seen[level]) * policy->writes[level].second / seen;
        double *share = &policy->write_busy[level];
        *share = busy + kept * (*share - busy);
        paths_set_price(policy, level, *share < PATHS_FULL ? *share : PATHS_FULL);
        policy->write_seen[level] = bytes;
    }
}
