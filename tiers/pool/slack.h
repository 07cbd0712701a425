/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slack.h - whether an operation may begin on a member now (docs/TIERS.md, Passes and slack).
 *
 * A pass of a model needs layer j of what it loads at D_j. Q_j is when the layer will have come if
 * nothing else begins on the member. A write of w seconds begins in the order `slack` only if
 *
 *     min over j of (D_j - Q_j(now + w)) >= guard
 *
 * where Q_j(t) is Q_j of a member that is free from t on. A layer that the load's window has not
 * opened yet is read from the opening on, so a write in a gap between two windows delays nothing.
 * Loads of several passes are taken by their instants (earliest deadline first).
 *
 * The file is arithmetic: it reads no clock, takes no lock and knows no device.
 *
 * Thread rule: none of its own; an account belongs to one thread.
 */
#ifndef TIERS_SLACK_H
#define TIERS_SLACK_H

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"

/* Why an operation begins, and from SLACK_WAITS on why it waits. */
typedef enum slack_reason {
    SLACK_ORDERED = 0, /* the order asks for no permission */
    SLACK_IDLE = 1,    /* no pass loads from the member, and no read is there */
    SLACK_FITS = 2,    /* every layer still comes in time */
    SLACK_SHARE = 3, /* it waited for the patience, or staging is short: a twentieth of the time */
    SLACK_WAITS = 4,
    SLACK_BEHIND_READS = 4, /* reads are queued or under way */
    SLACK_LATE = 5,         /* a layer would come late */
    SLACK_GRAIN = 6,        /* the writes under way fill the grain */
    SLACK_TURN = 7,         /* operations of the other direction end first */
    SLACK_REASONS = 8
} slack_reason;

/* A word for a reason, such as "fits". */
const char *slack_reason_name(slack_reason reason);

static inline bool slack_begins(slack_reason reason)
{
    return reason < SLACK_WAITS;
}

/* What one load still needs of a member: layers of one size, in steps of one length. */
typedef struct slack_need {
    uint64_t due_ns;       /* when the first layer that has not come is needed */
    uint64_t step_ns;      /* from one layer's instant to the next one's */
    uint32_t layers;       /* that have not come, the one at due_ns included */
    uint32_t ahead;        /* a layer may be asked for so many steps before it is needed */
    uint64_t layer_bytes;  /* of each on the member */
    uint64_t landed_bytes; /* of the first ones, that are here already */
} slack_need;

#define SLACK_NEEDS_MAX 16u

/*
 * The least D_j - Q_j in seconds over all layers of the needs, for a member that is free from
 * start_ns on and reads so many bytes per second; INFINITY without needs. Up to SLACK_NEEDS_MAX.
 */
double slack_least(const slack_need *needs, uint32_t count, uint64_t start_ns, double bytes_per_s);

/* The instant after which a need counts no longer, because its pass has stopped: patience after
 * its last layer was due. */
uint64_t slack_need_ends(const slack_need *need, uint64_t patience_ns);

/* Settings of a member, fixed while it serves. */
typedef struct slack_settings {
    tiers_order order;
    uint64_t grain_ns;    /* a read that nobody foresaw waits for writes no longer than this */
    uint64_t patience_ns; /* a write that waited for so long gets its share */
    uint64_t guard_ns;    /* what a prediction may be wrong by */
    double mix_loss;      /* of the device while both directions are under way, 0 to 1; NAN: unknown
                             (then directions take turns) */
} slack_settings;

/* What the gate remembers of a member. Zeroed at first. */
typedef struct slack_account {
    uint64_t share_ns;     /* the next share begins no sooner */
    uint64_t window_ns;    /* of the order table: the layer whose window was last looked at, */
    double window_seconds; /* and what its writes have used of it */
    uint64_t batch_ns;     /* of writes under way, where the worker is slow; 0 = the grain */
    bool filled;           /* a write had to wait because the batch was full */
    uint64_t still_ns;     /* the last instant at which an operation had to wait, */
    uint32_t still;        /* and how often in a row it was the same one */
} slack_account;

/* A member at the instant of a decision. */
typedef struct slack_state {
    uint64_t now_ns;
    uint64_t waited_ns;     /* how long the oldest write has waited */
    bool short_of_staging;  /* writes hold more staging than its watermark */
    bool reads_queued;      /* or under way */
    uint64_t reading_bytes; /* with the device */
    uint64_t writing_bytes;
    double read_bytes_per_s;  /* above 0 */
    double write_bytes_per_s; /* above 0 */
    const slack_need *needs;  /* of loads that name a pass */
    uint32_t need_count;
} slack_state;

/* The least D_j - Q_j when an operation of so many seconds begins behind the writes under way. */
double tiers_slack_margin(const slack_state *state, double seconds);

/* Whether operations of both directions may be under way together while a pass loads. */
bool slack_may_overlap(const slack_settings *settings);

/* The rate that writes are cut by: as measured, but no less than half of what the device had at
 * open. Small requests measure slow, so a cut by the measure alone would shrink without end. */
double slack_write_rate(double measured_bytes_per_s, double nominal_bytes_per_s);

/* Nanoseconds of writes that may be under way. It is the grain while the worker comes back before
 * they have ended. Where it comes later, as on a busy machine, the device would idle: the batch
 * doubles each time that it had ended whole, up to eight grains, and shrinks while half of it is
 * left. An unforeseen read waits for that worker, too. */
uint64_t slack_batch_ns(const slack_settings *settings, const slack_account *account);

/* Bytes of one write request at most, a quarter of the batch; a multiple of 4 KiB and not 0. */
uint64_t slack_write_bytes(const slack_settings *settings, const slack_account *account,
                           double write_bytes_per_s);

/* Whether what has waited for too long, or is short of staging, begins before reads that wait. */
bool tiers_slack_share_is_due(const slack_settings *settings, const slack_account *account,
                              const slack_state *state);

/* Whether a write of so many bytes begins. A begin is booked in the account. */
slack_reason slack_may_write(const slack_settings *settings, slack_account *account,
                             const slack_state *state, uint64_t bytes);

/* What a layer takes after so many layers took spent_ns: a bound from above, and the figure itself
 * where the pass computed alone, without a wait for the one layer. */
uint64_t slack_step(uint64_t step_ns, uint64_t spent_ns, uint32_t layers, bool alone);

/* Whether a read begins: one that somebody waits for, or another one of so many bytes, which must
 * leave the layers of a pass in time as a write must. */
slack_reason slack_may_read(const slack_settings *settings, slack_account *account,
                            const slack_state *state, bool waited, uint64_t bytes);

#endif
