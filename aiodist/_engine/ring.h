/* Rings of records in shared memory: one process appends, one other takes, in order.
 *
 * Two processes that exchange records have an area each, in their own segment, which the other only reads:
 *
 *     at         8 bytes: the head, which counts all bytes that were ever appended to this ring
 *     at + 8     8 bytes: 1 while the producer waits for room
 *     at + 16    8 bytes: where this process has its segment in its own address space
 *     at + 64    8 bytes: how many bytes this process has taken of the other's ring
 *     at + 128   8 words that are the user's
 *     at + 192   the records, each padded to a multiple of 8, none of which goes around the end: what is left
 *                there is skipped, and a record whose first byte is 0 says so
 *
 * The head is a release behind the record, and its load an acquire before it; likewise the count of what was
 * taken, behind the reads of the record. tests/models has this as "ring".
 *
 * What the other process writes is not trusted: a head or a count that cannot be is refused, and no offset is
 * taken from a record.
 */
#ifndef AIODIST_RING_H
#define AIODIST_RING_H

#include <string.h>

#include "words.h"

enum { RING_WAITS = 8, RING_ADDRESS = 16, RING_TAKEN = 64, RING_WORDS = 128, RING_RECORDS = 192 };

typedef struct {
    uint64_t *word, *waits; /* NULL once the memory is let go of */
    char *records;
    uint64_t size;
    const uint64_t *taken_word;
    uint64_t head, taken;
} producer;

typedef struct {
    const uint64_t *word, *waits; /* NULL once the memory is let go of */
    const char *records;
    uint64_t size;
    uint64_t *taken_word;
    uint64_t taken;
} consumer;

enum { APPENDED, NO_ROOM, WRONG_COUNT };

/* Append a record: a header, whose first byte is not 0 and whose length is a multiple of 8, and a payload. Both
 * are at most half of the ring: an empty one has room for that, wherever it stands. */
static inline int producer_append(producer *p, const void *header, size_t length, const void *payload, size_t nbytes) {
    uint64_t begin = p->head % p->size, size = length + nbytes, padded = (size + 7) & ~(uint64_t)7;
    uint64_t skipped = begin + padded > p->size ? p->size - begin : 0;
    if (p->head + skipped + padded - p->taken > p->size) {
        uint64_t taken = word_load(p->taken_word);
        if (taken < p->taken || taken > p->head) return WRONG_COUNT;
        p->taken = taken;
        if (p->head + skipped + padded - taken > p->size) return NO_ROOM;
    }
    if (skipped) {
        p->records[begin] = 0;
        begin = 0;
    }
    memcpy(p->records + begin, header, length);
    if (nbytes) memcpy(p->records + begin + length, payload, nbytes);
    p->head += skipped + padded;
    word_store(p->word, p->head);
    return APPENDED;
}

static inline int consumer_is_waiting(const consumer *c) { return c->word && word_load(c->word) != c->taken; }

/* The first record that was not taken, and how much memory there is from it on; only while something waits.
 * NULL: no ring can look like this. */
static inline const char *consumer_first(consumer *c, uint64_t *nbytes) {
    uint64_t ahead = word_load(c->word) - c->taken, begin = c->taken % c->size;
    *nbytes = ahead;
    if (!ahead || ahead > c->size || ahead & 7) return NULL;
    if (!c->records[begin]) {
        uint64_t skipped = c->size - begin;
        *nbytes = ahead - skipped;
        if (ahead <= skipped) return NULL;
        ahead -= skipped;
        c->taken += skipped;
        begin = 0;
    }
    *nbytes = ahead < c->size - begin ? ahead : c->size - begin;
    return c->records + begin;
}

/* Take a record of so many bytes: its memory is the producer's again. */
static inline void consumer_took(consumer *c, uint64_t nbytes) {
    c->taken += (nbytes + 7) & ~(uint64_t)7;
    word_store(c->taken_word, c->taken);
}

#endif
