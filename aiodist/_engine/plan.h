/* What a plan and an exchange know: see `exchange.h`. */
#ifndef AIODIST_PLAN_H
#define AIODIST_PLAN_H

#include "clock.h"
#include "slots.h"

typedef void (*combine_loop)(const void *left, const void *right, void *out, size_t count); /* as in loops.h */

enum kind { MEET, EACH, SHARE, REDUCE };

/* Why `exchange_advance` stops. FILL_NOW: the caller has to copy what is staged, then call again. DIFFERS: a peer
 * has published something else. OUTSIDE: a peer names a place outside its segment. Both name it in `trouble`, and
 * the exchange goes no further. */
enum outcome { WAIT, OVER, FILL_NOW, DIFFERS, OUTSIDE };

typedef void (*finish_loop)(void *array, int divisor, size_t count);

/* What calls that are alike share. Sizes are in elements, lanes in bytes. */
typedef struct {
    group *all;
    int kind;
    int in_thread;     /* the thread carries it out; else the loop */
    int in_slot;       /* all that a rank gives lies in its slot */
    int cut;           /* ranks agree on the number of elements of all parts; else of one */
    int alike;         /* all that take from a rank take the same; else there is a part for each */
    int sorts;         /* what comes has a place for each member */
    int collects;      /* this rank gets the result of REDUCE */
    size_t itemsize, alignment; /* of an element */
    combine_loop combine; /* NULL: nothing is reduced */
    finish_loop finish;   /* NULL: nothing is left to be done */
    unsigned char *gives, *gets; /* by member: it gives this rank something; it gets something of this rank */
    size_t *sizes;     /* of the part of, or for, each member; of each member's part of what is reduced */
    size_t *starts;    /* where these parts begin */
    size_t longest, total; /* elements of the longest part, and of all parts */
    size_t block, count; /* elements of a block, blocks */
    size_t larger, fewer; /* the same where nothing is staged at all (REDUCE in the thread) */
    size_t depth;      /* blocks that lie in staging at a time */
    size_t most, most_larger, most_depth; /* of block, larger and depth; 0: as large as a part, and all blocks */
    size_t lane, lanes; /* bytes from one part of a block to the next in staging; parts of a block */
} plan;

enum stage { ARRIVE, PLACES, GIVE, TAKE, COLLECT, LEND, GONE };

typedef struct {
    const plan *of;
    uint64_t seq, code;
    uint64_t *own; /* the words of its slot */
    char **send, **recv; /* parts, by member; what is alike lies in the first. NULL: none */
    int in_place;  /* the result goes where the source lies */
    int stage;
    size_t at_block;
    int peer;      /* that is collected from next */
    size_t block, count;
    uint64_t source, result; /* where they lie in this rank's segment; 0: nowhere */
    int exposed, shown; /* peers read the source, the result, where they lie */
    int fills;     /* something is copied before it is given */
    uint64_t *sources, *results; /* the same of the members, as their words say */
    uint64_t moves; /* counts the words that were written */
    int trouble;
    int ended; /* it goes no further: it is over, or its group is broken. Set by the loop, read by the thread */
} exchange;

static inline int has_ended(const exchange *x) { return flag_is_set(&x->ended); }
static inline void end_exchange(exchange *x) { set_flag(&x->ended, 1); }

#endif
