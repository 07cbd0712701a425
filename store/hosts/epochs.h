/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epochs.h - which copies of a space or tenant count: those whose names have its present epoch, a
 * random number that a clear draws anew (docs/REMOTE.md, Epochs).
 *
 *     epoch of a key   made of those of its space and of its tenant, each in EPOCH_PARTS objects of
 *                      the engine by the key, so that a node that is lost takes a part of them
 *     unknown          nothing lately: asked for before the copy is
 *     absent           no host has published since the engine lost it: there are no copies
 *
 * What was asked for more than a second ago is unknown. A clear of this store counts at once, and
 * before what the engine says, until the engine has it. Then it is looked after for a minute: a
 * server replicates behind its answer, and a replica that takes over may have the number of before.
 *
 * Thread rule: any thread; its own lock, a leaf. epochs_run and epochs_pay wait for the link.
 */
#ifndef STORE_EPOCHS_H
#define STORE_EPOCHS_H

#include "remote/client.h"

#include <kvterrace/names.h>
#include <pthread.h>

#define EPOCH_PARTS   8u
#define EPOCH_FRESH   UINT64_C(1000000000)  /* nanoseconds that an answer counts */
#define EPOCH_WATCHED UINT64_C(60000000000) /* and that a clear is looked after */
#define EPOCH_EVERY   UINT64_MAX            /* in place of a tenant: all of them */
#define EPOCHS_ROOM   1024u
#define EPOCHS_WAYS   4u
#define EPOCHS_BUMPS  64u
#define EPOCHS_ASKING 64u
#define EPOCHS_ALL    UINT64_MAX

struct store_remote;

typedef enum epoch_state { EPOCH_UNKNOWN = 0, EPOCH_ABSENT = 1, EPOCH_KNOWN = 2 } epoch_state;

/* One epoch object of the engine. */
typedef struct epoch_id {
    uint64_t number; /* of the space or the tenant */
    bool tenant;
    uint8_t part;
} epoch_id;

/* The engine's answer about an epoch. */
typedef struct epoch_item {
    epoch_id id;
    uint64_t value;    /* 0: there is none */
    uint64_t asked_ns; /* 0: the item is free */
    uint64_t set_ns;   /* this store has set it: answers to earlier questions do not count */
} epoch_item;

/* A clear that the engine does not have yet, or has had for less than a minute. */
typedef struct epoch_bump {
    uint64_t number;
    bool tenant;
    uint64_t value;
    uint64_t paid_ns; /* since when the engine has it; 0: it is owed */
} epoch_bump;

typedef struct remote_epochs {
    pthread_mutex_t lock;
    epoch_item *items;              /* EPOCHS_ROOM, in sets of EPOCHS_WAYS */
    epoch_bump bumps[EPOCHS_BUMPS]; /* the later one of two counts */
    uint32_t bump_count;
    uint64_t bumped, tried; /* clears ever, and those that have been tried */
    uint64_t repeated;      /* clears that the engine had lost */
} remote_epochs;

/* Epochs to be asked for together, each once. */
typedef struct epochs_asking {
    bool creates;
    uint32_t count;
    epoch_id ids[EPOCHS_ASKING];
} epochs_asking;

KVT_NODISCARD kvt_status epochs_open(remote_epochs *epochs);
void epochs_close(remote_epochs *epochs);

/* The epoch of a key of a tenant, as far as it is known at an instant. */
epoch_state epochs_get(remote_epochs *epochs, const kvt_key *key, uint32_t tenant, uint64_t now_ns,
                       uint64_t *epoch_out);

/* Whether a clear is known since a key had this epoch. */
bool epochs_passed(remote_epochs *epochs, const kvt_key *key, uint32_t tenant, uint64_t epoch);

/* The epoch objects of a key: of its space, and of its tenant. */
void epochs_of_key(const kvt_key *key, uint32_t tenant, epoch_id ids[2]);

/* Epochs to be asked for together: epochs_want adds those of a key that are unknown, and asks when
 * the list is full; epochs_run asks for the rest, and empties the list. creates: epochs that are
 * absent are wanted too, and drawn. */
void epochs_want(struct store_remote *remote, const kvt_key *key, uint32_t tenant,
                 epochs_asking *asking, uint64_t deadline_ns);
void epochs_run(struct store_remote *remote, epochs_asking *asking, uint64_t deadline_ns);

/* ---- one request, for whoever has a batch of its own ---- */

#define EPOCH_BYTES      16u
#define EPOCH_NAME_BYTES 80u

/* The memory of a question for an epoch object, or of setting one, until it has been answered. */
typedef struct epoch_question {
    epoch_id id;
    char name[EPOCH_NAME_BYTES];
    uint8_t value[EPOCH_BYTES];
    struct iovec part;
} epoch_question;

/* The name of an epoch object. Returns its length. */
uint32_t epochs_name(const struct store_remote *remote, const epoch_id *id,
                     char name[EPOCH_NAME_BYTES]);

/* Fills in a question and its request. */
void epochs_question(const struct store_remote *remote, const epoch_id *id, uint64_t deadline_ns,
                     epoch_question *question, remote_request *request);

/* Takes the answer to a question that was asked at an instant. KVT_OK: there is an epoch; KVT_MISS:
 * there is none; KVT_E_MISMATCH: another object has its name, which counts as none; else the node
 * has not answered. */
KVT_NODISCARD kvt_status epochs_answer(struct store_remote *remote, const epoch_question *question,
                                       const remote_request *request, uint64_t asked_ns);

/* The engine says that some epochs have changed: all are unknown. */
void epochs_forget(remote_epochs *epochs);

/* ---- clears ---- */

/* Draws a new epoch for the copies that a filter covers, or for more: the copies of a tenant in a
 * space go with those of the space. Counts here at once. */
void epochs_bump(struct store_remote *remote, const kvt_clear_filter *filter);

/* Gives the engine the clears that it does not have yet. */
void epochs_pay(struct store_remote *remote, uint64_t wait_ns);

/* Looks whether the engine still has the clears of the last minute, and draws those anew that it
 * has lost: an older number is there again. */
void epochs_look_after(struct store_remote *remote, uint64_t wait_ns);

/* How many clears are owed or looked after; how many were lost and drawn anew. */
uint32_t epochs_kept(remote_epochs *epochs);
uint64_t epochs_repeated(remote_epochs *epochs);

/* How many clears the engine does not have; how many there have been, and whether so many have been
 * tried; EPOCHS_ALL: all of them. */
uint32_t epochs_owed(remote_epochs *epochs);
uint64_t epochs_bumped_ever(remote_epochs *epochs);
bool epochs_tried(remote_epochs *epochs, uint64_t bumped);

#endif
