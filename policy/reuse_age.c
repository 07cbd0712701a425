/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_age.c - hazards of the next use by age and turn, and the index of keeping.
 *
 *     hazard(j)  = uses found at ages of bin j / seconds that entries spent there
 *     index(i)   = max over j >= i of  P(used from node i to the end of bin j) /
 *                                      E(seconds until then or until the use)
 *
 * No sum of falling terms can say that the next turn of a conversation comes after a minute or not
 * at all, or that a loop comes around every hour: there the hazard rises with age. The index is
 * what a second spent on the entry brings when it is given up at the best moment (Gittins).
 *
 * A row begins as the mean of all rows, and all rows as a guess, each worth less than a use a bin.
 */
#include "policy/reuse.h"

#include <assert.h>
#include <string.h>

#define AGE_POOL   0.5   /* uses of a bin of all rows that a row begins with */
#define AGE_FIRST  0.1   /* uses that the guess is worth in a bin */
#define AGE_GUESS  0.05  /* uses that are guessed to follow a use within each half-life */
#define AGE_LEAST  1e-9  /* uses a second: a guess is no less */
#define AGE_STAKES 256.0 /* uses that the mean stake is taken over */
#define AGE_NONE   1e30  /* no age */
#define AGE_LARGE  1e100 /* scale at which sums are brought down */
#define AGE_EVERY  8     /* uses found between two rows that are worked out anew */

/* The two nodes of an octave. */
#define AGE_OCTAVE(n) 0x1p##n, 0x1.6a09e667f3bcdp##n

const double reuse_age_nodes[REUSE_AGES + 1] = {0.0,
                                                AGE_OCTAVE(0),
                                                AGE_OCTAVE(1),
                                                AGE_OCTAVE(2),
                                                AGE_OCTAVE(3),
                                                AGE_OCTAVE(4),
                                                AGE_OCTAVE(5),
                                                AGE_OCTAVE(6),
                                                AGE_OCTAVE(7),
                                                AGE_OCTAVE(8),
                                                AGE_OCTAVE(9),
                                                AGE_OCTAVE(10),
                                                AGE_OCTAVE(11),
                                                AGE_OCTAVE(12),
                                                AGE_OCTAVE(13),
                                                AGE_OCTAVE(14),
                                                AGE_OCTAVE(15)};

/* The place of an age among the nodes, the last one at most. */
static double age_place(double age)
{
    if (age <= 1.0) return age > 0.0 ? age : 0.0;
    double place = 1.0 + 2.0 * number_log2(age);
    return place < REUSE_AGES ? place : REUSE_AGES;
}

/* The bin of an age. */
static int age_bin(double age)
{
    int bin = (int)age_place(age);
    return bin < REUSE_AGES ? bin : REUSE_AGES - 1;
}

/* The chance of no use in so many seconds at a hazard. */
static double age_kept(double hazard, double seconds)
{
    return number_exp2(-hazard * seconds * 0x1.71547652b82fep0); /* 1 / ln 2 */
}

/* Works out a row's hazards. kept and spent: of each bin the chance of no use in it, and the
 * seconds until one or until its end. */
static void age_hazards(reuse_ages *ages, int turn, double kept[REUSE_AGES],
                        double spent[REUSE_AGES])
{
    double stake = ages->stake * ages->scale;
    for (int bin = 0; bin < REUSE_AGES; bin++) {
        double found = AGE_FIRST * stake, exposed = found / ages->first[bin];
        for (int row = 0; row < REUSE_TURNS; row++) {
            found += ages->found[row][bin];
            exposed += ages->exposed[row][bin];
        }
        double pool = AGE_POOL * stake;
        double hazard =
            (ages->found[turn][bin] + pool) / (ages->exposed[turn][bin] + pool * exposed / found);
        double width = reuse_age_nodes[bin + 1] - reuse_age_nodes[bin];
        assert(hazard >= 0.0 && width > 0.0);
        ages->hazard[turn][bin] = hazard;
        kept[bin] = age_kept(hazard, width);
        spent[bin] = hazard * width > 1e-6 ? (1.0 - kept[bin]) / hazard : width;
    }
}

/* Whether the end of a bin is a moment to give up an entry that is kept from a node on. Sooner, it
 * gives back a place that others have lost until their next use. */
static bool age_is_held(const reuse_ages *ages, int node, int bin)
{
    return bin == REUSE_AGES - 1 ||
           reuse_age_nodes[bin + 1] - reuse_age_nodes[node] >= ages->held_seconds;
}

/* Works out what follows of a row's sums: hazards, indices, uses to come. */
static void age_weigh(reuse_ages *ages, int turn)
{
    double kept[REUSE_AGES], spent[REUSE_AGES];
    age_hazards(ages, turn, kept, spent);
    double later = 0.0;
    ages->later[turn][REUSE_AGES] = 0.0;
    ages->index[turn][REUSE_AGES] = ages->hazard[turn][REUSE_AGES - 1];
    for (int node = REUSE_AGES - 1; node >= 0; node--) {
        later += ages->hazard[turn][node] * (reuse_age_nodes[node + 1] - reuse_age_nodes[node]);
        ages->later[turn][node] = later;
        double left = 1.0, seconds = 0.0, best = 0.0;
        for (int bin = node; bin < REUSE_AGES && left > 1e-3; bin++) {
            seconds += left * spent[bin];
            left *= kept[bin];
            const double rate = (1.0 - left) / seconds;
            if ((age_is_held(ages, node, bin) || left <= 1e-3) && rate > best) best = rate;
        }
        ages->index[turn][node] = best;
    }
}

void reuse_ages_open(reuse_ages *ages, const double half_lives[KVT_REUSE_HALF_LIVES])
{
    memset(ages, 0, sizeof *ages);
    ages->stake = ages->scale = 1.0;
    for (int bin = 0; bin < REUSE_AGES; bin++) {
        double age = 0.5 * (reuse_age_nodes[bin] + reuse_age_nodes[bin + 1]);
        double rate = 0.0;
        for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++)
            rate += AGE_GUESS * REUSE_LN2 / half_lives[k] * number_exp2(-age / half_lives[k]);
        ages->first[bin] = rate > AGE_LEAST ? rate : AGE_LEAST;
    }
    for (int turn = 0; turn < REUSE_TURNS; turn++)
        age_weigh(ages, turn);
}

void reuse_ages_expose(reuse_ages *ages, int turn, double from, double to, double stake)
{
    if (from < 0.0) from = 0.0;
    for (int bin = age_bin(from); bin < REUSE_AGES && reuse_age_nodes[bin] < to; bin++) {
        double begin = reuse_age_nodes[bin] > from ? reuse_age_nodes[bin] : from;
        double end = reuse_age_nodes[bin + 1] < to ? reuse_age_nodes[bin + 1] : to;
        if (end > begin) ages->exposed[turn][bin] += ages->scale * stake * (end - begin);
    }
}

/* Multiplies all sums, which changes no hazard. */
static void age_multiply(reuse_ages *ages, double by)
{
    for (int row = 0; row < REUSE_TURNS; row++) {
        for (int bin = 0; bin < REUSE_AGES; bin++) {
            ages->found[row][bin] *= by;
            ages->exposed[row][bin] *= by;
        }
    }
}

void reuse_ages_scale(reuse_ages *ages, double stake)
{
    age_multiply(ages, stake / ages->stake);
    ages->stake = stake;
}

/* One row is worked out anew every few uses, in turn: to do so takes microseconds. */
void reuse_ages_find(reuse_ages *ages, int turn, double age, double share, double stake,
                     double kept)
{
    assert(share >= 0.0 && share <= 1.0 && stake > 0.0);
    ages->scale /= kept;
    if (ages->scale > AGE_LARGE) { /* before numbers become too large */
        age_multiply(ages, 1.0 / ages->scale);
        ages->scale = 1.0;
    }
    ages->stake = ages->finds == 0 ? stake : ages->stake + (stake - ages->stake) / AGE_STAKES;
    ages->found[turn][age_bin(age)] += ages->scale * share * stake;
    if (++ages->finds % AGE_EVERY == 0)
        age_weigh(ages, (int)(ages->finds / AGE_EVERY % REUSE_TURNS));
}

double reuse_ages_hazard(const reuse_ages *ages, int turn, double age)
{
    return ages->hazard[turn][age_bin(age)];
}

/* The rate that keeping an entry to the end of a bin brings: its hazard, in a bin that is long
 * enough. */
static double age_within(const reuse_ages *ages, int turn, int bin)
{
    return age_is_held(ages, bin, bin) ? ages->hazard[turn][bin] : 0.0;
}

/* Between nodes the index is a straight line, but no less than what giving the entry up at the
 * bin's end brings. */
reuse_due reuse_ages_look(const reuse_ages *ages, int turn, double age)
{
    double place = age_place(age);
    int bin = place < REUSE_AGES ? (int)place : REUSE_AGES - 1;
    double part = place - bin;
    const double *index = ages->index[turn], *later = ages->later[turn];
    double rate = index[bin] + part * (index[bin + 1] - index[bin]);
    const double least = age_within(ages, turn, bin);
    return (reuse_due){.rate = rate > least ? rate : least,
                       .uses = later[bin] + part * (later[bin + 1] - later[bin])};
}

/* The rate falls along the line between two nodes, or at the end of a bin whose hazard holds it.
 * The other rate is worked out only where the table's alone is low enough. */
double reuse_ages_fall(const reuse_ages *ages, int turn, double age, const reuse_counted *counted,
                       double least)
{
    double place = age_place(age);
    double before = -1.0; /* at `place`; not worked out yet */
    for (int bin = (int)place; bin < REUSE_AGES; bin++) {
        double end = (double)bin + 1.0;
        double after = ages->index[turn][bin + 1];
        if (after <= least) {
            double still =
                counted->rate * number_exp2(-(reuse_age_nodes[bin + 1] - age) / counted->half_life);
            after += still;
            if (after <= least) {
                if (before < 0.0) {
                    before = counted->rate + reuse_ages_look(ages, turn, age).rate;
                    if (before <= least) return age;
                }
                if (age_within(ages, turn, bin) + still <= least && before > least)
                    end = place + (end - place) * (before - least) / (before - after);
                double found = end <= 1.0 ? end : number_exp2((end - 1.0) / 2.0);
                return found > age ? found : age;
            }
        } else {
            after += counted->rate;
        }
        before = after;
        place = end;
    }
    return AGE_NONE;
}

/* The bins of all rows share the uses as a path that they describe would. */
void reuse_ages_recall(reuse_ages *ages, const double hazard[REUSE_TURNS][REUSE_AGES], double uses)
{
    for (int turn = 0; turn < REUSE_TURNS; turn++) {
        double left = 1.0;
        for (int bin = 0; bin < REUSE_AGES; bin++) {
            double width = reuse_age_nodes[bin + 1] - reuse_age_nodes[bin];
            double next = left * age_kept(hazard[turn][bin], width);
            double found = uses / REUSE_TURNS * (left - next);
            ages->found[turn][bin] = found * ages->stake;
            ages->exposed[turn][bin] = hazard[turn][bin] > 0.0 && found > 0.0
                                           ? ages->found[turn][bin] / hazard[turn][bin]
                                           : width * left * uses / REUSE_TURNS * ages->stake;
            left = next;
        }
    }
    for (int turn = 0; turn < REUSE_TURNS; turn++)
        age_weigh(ages, turn);
}

/* ---- lives ---- */

/*
 *     p(turn)    = (went on + 1) / (went on + ended + 4)
 *     more(turn) = p(next) (1 + more(next))          more(last) = p / (1 - p), 9 at most
 */
#define LIVES_MEMORY 4096.0 /* lives of a turn, halved beyond */
#define LIVES_CHANCE 0.9    /* that a life goes on, at most: stems would count for all others */
#define LIVES_GAPS   512.0  /* gaps that the mean is taken over */

static double lives_chance(const lives *all, int turn)
{
    return (all->went_on[turn] + 1.0) / (all->went_on[turn] + all->ended[turn] + 4.0);
}

static void lives_count(lives *all, int turn, double *what)
{
    *what += 1.0;
    if (all->went_on[turn] + all->ended[turn] > LIVES_MEMORY) {
        all->went_on[turn] /= 2.0;
        all->ended[turn] /= 2.0;
    }
    int last = REUSE_TURNS - 1;
    double chance = lives_chance(all, last);
    if (chance > LIVES_CHANCE) chance = LIVES_CHANCE;
    all->more[last] = chance / (1.0 - chance);
    all->more[last - 1] = all->more[last]; /* the last turns but one are several */
    for (int before = last - 2; before >= 0; before--)
        all->more[before] = lives_chance(all, before + 1) * (1.0 + all->more[before + 1]);
}

void lives_go_on(lives *all, int turn, double seconds)
{
    double seen = 1.0;
    for (int each = 0; each < REUSE_TURNS; each++)
        seen += all->went_on[each];
    all->gap_seconds += (seconds - all->gap_seconds) / (seen < LIVES_GAPS ? seen : LIVES_GAPS);
    lives_count(all, turn, &all->went_on[turn]);
}

void lives_end(lives *all, int turn)
{
    lives_count(all, turn, &all->ended[turn]);
}
