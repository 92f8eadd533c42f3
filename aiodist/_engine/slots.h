/* A group's slots: one region in each member's segment, of the same layout.
 *
 *     region   SLOTS words: in word i the number + 1 of the last operation in slot i that this rank has finished
 *              SLOTS slots of STRIDE bytes: words, signature, and room for a small payload
 *
 * An operation's slot is its number modulo SLOTS. A rank writes a slot again when every member has finished what
 * it held. `backends/host/local/board.py` has the same numbers, and finds regions by the segments' directories.
 *
 * What a peer writes into its own segment is not trusted: a place that it names is checked against the size of
 * its segment (`place_in`), and no loop depends on a word of a peer but by comparing it.
 */
#ifndef AIODIST_SLOTS_H
#define AIODIST_SLOTS_H

#include <string.h>
#include <unistd.h>

#include "words.h"

enum { SLOTS = 64, PAYLOAD = 8 * 1024, SLOT_HEADER = 128, SIGNATURE_AT = 64, SIGNATURE_BYTES = 32 };
enum { STRIDE = SLOT_HEADER + PAYLOAD + 64, REGION = SLOTS * 8 + SLOTS * STRIDE };

/* Words of a slot; `board.py` says what they mean. */
enum { CODE, FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT };

/* Words of a segment: its loop sleeps, its thread sleeps (`hub.py`); and what its bell is rung with. */
enum { ASLEEP_LOOP = 512, ASLEEP_BULK = 520 };
#define RING_LOOP ((uint64_t)1)

/* A segment, as seen from here; shared by all groups. */
typedef struct {
    uint64_t *words; /* NULL once it is let go of; a peer's is only read */
    size_t nbytes;
    int bell;            /* an eventfd that never blocks; -1: none */
    uint64_t ring_bulk;  /* what the bell is rung with for the thread */
    uint64_t loop_rung, bulk_rung; /* for which sleep it was rung last */
} memory;

/* A member of a group. */
typedef struct {
    memory *segment;
    uint64_t base; /* word of its region; 0 until it has made the group */
} member;

typedef struct {
    int rank, size;
    uint64_t low; /* mask of the bits of CODE that are of the number */
    member *members;
    uint64_t unseen;              /* slots with something that ended without a look at what all peers published */
    uint64_t unseen_seq[SLOTS], unseen_code[SLOTS];
    unsigned char signed_by[SLOTS][SIGNATURE_BYTES]; /* the signature that each slot holds */
} group;

static inline unsigned slot_of(uint64_t seq) { return (unsigned)(seq & (SLOTS - 1)); }

/* The first word of an operation's slot, counted from the start of a region. */
static inline uint64_t head_of(uint64_t seq) { return SLOTS + (uint64_t)slot_of(seq) * (STRIDE / 8); }

static inline uint64_t *own_slot(const group *all, uint64_t seq) {
    const member *me = &all->members[all->rank];
    return me->segment->words + me->base + head_of(seq);
}

static inline const uint64_t *slot_at(const member *who, uint64_t seq) {
    return who->segment->words + who->base + head_of(seq);
}

/* ── waking ──
 *
 * One side writes ASLEEP, looks at its peers' words and sleeps; the other writes a word, looks at ASLEEP and
 * rings. If each looked before the other's store is visible, one would sleep for ever (Dekker's pattern), so
 * both have a fence between store and look. Each sleep has a number, and is rung once: to ring is a call to the
 * system. Two threads of a process may ring for the same sleep; that wakes it once. */

static inline void ring_with(const memory *who, uint64_t what) {
    /* A bell that is full rings already. */
    if (who->bell >= 0 && write(who->bell, &what, sizeof what) < 0) return;
}

static inline void wake_loop(memory *who) {
    uint64_t asleep = word_load(who->words + ASLEEP_LOOP);
    if (asleep && asleep != who->loop_rung) {
        who->loop_rung = asleep;
        ring_with(who, RING_LOOP);
    }
}

static inline void wake_bulk(memory *who) {
    uint64_t asleep = word_load(who->words + ASLEEP_BULK);
    if (asleep && asleep != who->bulk_rung) {
        who->bulk_rung = asleep;
        ring_with(who, who->ring_bulk);
    }
}

/* Wake the peers that may wait for a word that was written: their loops, their threads. */
static inline void ring(group *all, int loops, int bulks) {
    full_fence();
    for (int m = 0; m < all->size; m++) {
        if (m == all->rank) continue;
        if (loops) wake_loop(all->members[m].segment);
        if (bulks) wake_bulk(all->members[m].segment);
    }
}

/* ── slots ── */

static inline int all_made(const group *all) {
    for (int m = 0; m < all->size; m++)
        if (!all->members[m].base) return 0;
    return 1;
}

/* Whether a member touches nothing of an operation any more. */
static inline int has_finished(const member *who, uint64_t seq) {
    return word_load(who->segment->words + who->base + slot_of(seq)) > seq;
}

/* Whether no member, this one included, touches anything of an operation any more. */
static inline int all_finished(const group *all, uint64_t seq) {
    for (int m = 0; m < all->size; m++)
        if (!all->members[m].base || !has_finished(&all->members[m], seq)) return 0;
    return 1;
}

static inline int slot_is_free(const group *all, uint64_t seq) {
    return seq < SLOTS || all_finished(all, seq - SLOTS);
}

static inline void note_finished(group *all, uint64_t seq) {
    const member *me = &all->members[all->rank];
    word_store(me->segment->words + me->base + slot_of(seq), seq + 1);
}

/* Whether a member has published something else than `code` under the number that `code` has. */
static inline int differs(const group *all, uint64_t theirs, uint64_t code) {
    return theirs && theirs != code && !((theirs ^ code) & all->low);
}

/* Look at what peers have published in a slot that is unseen → the member that differs; -1: none does. What all
 * have published alike is seen now.
 *
 * A peer that has written there again meanwhile has looked at this rank's word before it did so. Of two that
 * differ at least one finds it: each looks before it writes. */
static inline int look_back(group *all, unsigned slot) {
    uint64_t seq = all->unseen_seq[slot], code = all->unseen_code[slot];
    int seen = 1;
    for (int m = 0; m < all->size; m++) {
        const member *who = &all->members[m];
        if (m == all->rank) continue;
        uint64_t theirs = who->base ? word_load(slot_at(who, seq) + CODE) : 0;
        if (theirs == code) continue;
        if (differs(all, theirs, code)) return m;
        seen = seen && who->base && has_finished(who, seq);
    }
    if (seen) all->unseen &= ~((uint64_t)1 << slot);
    return -1;
}

/* The first of the slots that are unseen, of which there is one. */
static inline unsigned first_unseen(const group *all) { return (unsigned)__builtin_ctzll(all->unseen); }

/* Whether a slot may be written again, as far as it is unseen: what it held is the same with all peers. */
static inline int is_seen(group *all, unsigned slot) {
    uint64_t bit = (uint64_t)1 << slot;
    return !(all->unseen & bit) || (look_back(all, slot) < 0 && !(all->unseen & bit));
}

/* A place as SOURCE and RESULT have it: any byte of the segment, and whether all of the array lies there, where it
 * is communicated; else blocks go around in staging. */
static inline uint64_t place_word(uint64_t at, int exposed) { return at << 1 | (uint64_t)(exposed != 0); }
static inline uint64_t place_at(uint64_t word) { return word >> 1; }
static inline int lies_there(uint64_t word) { return (int)(word & 1); }

/* Bytes of a peer's segment; NULL where it has none there. */
static inline const char *place_in(const member *who, uint64_t at, size_t nbytes) {
    const memory *segment = who->segment;
    if (at > segment->nbytes || nbytes > segment->nbytes - at) return NULL;
    return (const char *)segment->words + at;
}

/* Publish: CODE comes last, and who finds it finds all the rest. */
static inline void publish_code(group *all, uint64_t seq, uint64_t code, const unsigned char *signature) {
    uint64_t *own = own_slot(all, seq);
    unsigned char *kept = all->signed_by[slot_of(seq)];
    if (memcmp(kept, signature, SIGNATURE_BYTES) != 0) {
        memcpy(kept, signature, SIGNATURE_BYTES);
        memcpy((char *)own + SIGNATURE_AT, signature, SIGNATURE_BYTES);
    }
    word_store(own + CODE, code);
}

#endif
