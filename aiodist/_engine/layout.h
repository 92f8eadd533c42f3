/* Where the parts of a plan's data begin, and in which blocks they go; and the signature of a call. */
#ifndef AIODIST_LAYOUT_H
#define AIODIST_LAYOUT_H

#include <stdio.h>

#include "plan.h"

enum { CACHE_LINE = 64 };

static inline size_t up_to(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }

/* The elements of each member's part, and where it begins. REDUCE: equal parts of whole cache lines, for parts of
 * one buffer meet at their edges. */
static void lay_parts(plan *p, size_t count) {
    const size_t size = (size_t)p->all->size, line = CACHE_LINE / p->itemsize ? CACHE_LINE / p->itemsize : 1;
    const size_t part = p->kind == EACH     ? count
                        : p->kind == SHARE  ? (p->cut ? count / size : count)
                        : p->kind == REDUCE ? up_to(count, size * line) / size
                                            : 0;
    for (size_t m = 0; m < size; m++) {
        size_t start = m * part;
        if (p->kind == REDUCE && start > count) start = count;
        p->starts[m] = start;
        p->sizes[m] = p->kind == REDUCE && part > count - start ? count - start : part;
    }
}

/* What follows from the parts. */
static void lay_blocks(plan *p) {
    p->longest = p->total = 0;
    for (int m = 0; m < p->all->size; m++) {
        if (p->sizes[m] > p->longest) p->longest = p->sizes[m];
        p->total += p->sizes[m];
    }
    if (p->kind == EACH) {
        p->total = p->longest;
        p->in_slot = p->total * p->itemsize <= PAYLOAD;
    }
    const size_t whole = p->longest ? p->longest : 1;
    p->block = p->most && p->most < whole ? p->most : whole;
    p->count = (p->longest + p->block - 1) / p->block;
    p->larger = p->most_larger && p->most_larger < whole ? p->most_larger : whole;
    p->fewer = (p->longest + p->larger - 1) / p->larger;
    p->depth = p->most_depth ? p->most_depth : p->count ? p->count : 1;
    p->lane = up_to(p->block * p->itemsize, CACHE_LINE);
}

/* ── signatures, as `base/types.py` makes them ── */

enum { NDIM_AT = 3, COUNT_AT = 8, SHAPE_AT = 24 };

/* The checksum of a shape as Python writes it: '(3, 4)', '(3,)', '()'. That of zlib (CRC-32). */
static uint32_t sum_of_shape(int ndim, const ssize_t *dims) {
    char text[32 * 22];
    size_t length = 0;
    text[length++] = '(';
    for (int axis = 0; axis < ndim; axis++) {
        char digits[20];
        int some = 0;
        if (axis) text[length++] = ',', text[length++] = ' ';
        size_t left = (size_t)dims[axis];
        do digits[some++] = (char)('0' + left % 10);
        while (left /= 10);
        while (some) text[length++] = digits[--some];
    }
    if (ndim == 1) text[length++] = ',';
    text[length++] = ')';
    uint32_t sum = ~(uint32_t)0;
    for (size_t at = 0; at < length; at++) {
        sum ^= (unsigned char)text[at];
        for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (0xEDB88320u & (0u - (sum & 1)));
    }
    return ~sum;
}

/* Make the signature of a call that of the same call on arrays of another shape, 32 axes at most. */
static void sign_shape(unsigned char *signature, int ndim, const ssize_t *dims) {
    uint64_t count = 1;
    for (int axis = 0; axis < ndim; axis++) count *= (uint64_t)dims[axis];
    uint32_t sum = sum_of_shape(ndim, dims);
    signature[NDIM_AT] = (unsigned char)ndim;
    memcpy(signature + COUNT_AT, &count, sizeof count);
    memcpy(signature + SHAPE_AT, &sum, sizeof sum);
}

static inline uint64_t mixed(uint64_t word) { /* the finisher of MurmurHash3: each bit depends on all */
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCDu;
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53u;
    return word ^ word >> 33;
}

/* 48 bits that stand for a signature without number and offer; never 0. */
static uint64_t digest_of(const unsigned char *signature) {
    uint64_t words[2];
    uint32_t sum;
    memcpy(words, signature, sizeof words);
    memcpy(&sum, signature + SHAPE_AT, sizeof sum);
    uint64_t digest = mixed(mixed(mixed(words[0]) + words[1]) + sum) >> 16;
    return digest ? digest : 1;
}

#endif
