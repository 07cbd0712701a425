/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_age.h - how soon the next use comes after the last one, by its age and by how many uses the
 * entry's path has seen: a table of hazards, learned from a sample, and what keeping an entry until
 * the best moment is worth by it.
 *
 * Ages are cut at nodes: 0, 1 s, and half an octave apart from there to 13 hours. Units: seconds,
 * uses per second; a stake weighs what is seen by the seconds that a use saves. Pure functions of
 * the table; thread rule: the caller's lock.
 */
#ifndef POLICY_REUSE_AGE_H
#define POLICY_REUSE_AGE_H

#include "kvterrace/policy.h"

#include <stdint.h>

#define REUSE_TURNS KVT_REUSE_TURNS
#define REUSE_AGES  KVT_REUSE_AGES

/*
 * found and exposed are the uses that were seen in a bin and the seconds that entries spent in it,
 * both weighed by stakes and forgotten alike. hazard is the one over the other. index at a node is
 * the most uses a second that keeping an entry from there on can bring, over all moments to give it
 * up at that are held_seconds away: it rises before a use is due and falls when it has not come.
 * later is the uses to come from a node on.
 */
typedef struct reuse_ages {
    double found[REUSE_TURNS][REUSE_AGES];
    double exposed[REUSE_TURNS][REUSE_AGES];
    double hazard[REUSE_TURNS][REUSE_AGES];
    double index[REUSE_TURNS][REUSE_AGES + 1];
    double later[REUSE_TURNS][REUSE_AGES + 1];
    double first[REUSE_AGES]; /* hazards before anything is known */
    double stake;             /* of a use on average; 1 before any was seen */
    /* The weight of the newest use beside that of the first ones: to weigh the new by more and more
     * is to forget the old. */
    double scale;
    double held_seconds; /* that an entry is kept at least, as the index has it */
    uint32_t finds;      /* since the table began: now and then a row is worked out anew */
} reuse_ages;

/* An age as the table has it: uses a second, and uses to come. */
typedef struct reuse_due {
    double rate, uses;
} reuse_due;

/* The age of each node, for statistics; REUSE_AGES + 1 of them. */
extern const double reuse_age_nodes[REUSE_AGES + 1];

/* An empty table: uses are guessed to come within each of the half-lives alike. */
void reuse_ages_open(reuse_ages *ages, const double half_lives[KVT_REUSE_HALF_LIVES]);
/* The row of an entry whose path was used so often. */
static inline int reuse_ages_turn(uint32_t uses)
{
    return uses <= 1 ? 0 : uses == 2 ? 1 : uses <= 4 ? 2 : 3;
}
/* An entry was not used while its last use aged from the one to the other. */
void reuse_ages_expose(reuse_ages *ages, int turn, double from, double to, double stake);
/* A use came at this age: share of it is the table's, the rest what uses add up to. kept is what
 * remains of all that was seen before. */
void reuse_ages_find(reuse_ages *ages, int turn, double age, double share, double stake,
                     double kept);
double reuse_ages_hazard(const reuse_ages *ages, int turn, double age);
reuse_due reuse_ages_look(const reuse_ages *ages, int turn, double age);
/* A rate beside the table's that halves in so many seconds. */
typedef struct reuse_counted {
    double rate, half_life;
} reuse_counted;

/* The first age from this one on at which both rates together are at most `least`; above 1e9 when
 * none is found. */
double reuse_ages_fall(const reuse_ages *ages, int turn, double age, const reuse_counted *counted,
                       double least);
/* Takes over hazards that were learned from `uses` uses; scale makes them stand for as many with
 * this at stake in each, once that is known. */
void reuse_ages_recall(reuse_ages *ages, const double hazard[REUSE_TURNS][REUSE_AGES], double uses);
void reuse_ages_scale(reuse_ages *ages, double stake);

/*
 * How often an entry that is used once more is used before it gives way again. A life goes from a
 * use to the next one (it goes on) or to the first step that makes the entry worse (it ends). What
 * is lost by coding an entry stays lost in every use that follows; what is lost by evicting it ends
 * with the next use, which computes it and stores it anew. So a step that codes is charged for the
 * uses of a whole life.
 */
typedef struct lives {
    double went_on[REUSE_TURNS], ended[REUSE_TURNS]; /* by the turn at the life's begin */
    double more[REUSE_TURNS]; /* uses that follow the next one, from that turn on */
    double gap_seconds;       /* between two uses of a life */
} lives;

/* A life went on with a use after so many seconds, or ended. */
void lives_go_on(lives *all, int turn, double seconds);
void lives_end(lives *all, int turn);

#endif
