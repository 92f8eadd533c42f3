/* One running operation between ranks of one host, carried from one wait for a peer to the next.
 *
 * Nobody waits in here. The loop may not block, and a thread runs the operations of all groups, which ranks may
 * have issued in different order: a thread that waited in one for a peer that waits in another would never end.
 * So `exchange_advance` can be called again at any time, goes as far as peers let it, and says why it stops.
 *
 * What a rank reads of a peer it has to read before the peer writes there again. The peer learns of it by counts
 * that only grow: TOOK (blocks taken of sources), TOOK_OUT (of results). Counts, not flags: a flag would have to
 * be taken back before the next use of the slot, and that would race with a reader that is late. Publishing sets
 * all counts to 0 before CODE is written, and nobody looks at them earlier.
 *
 * A peer may withdraw what is being read: its operation failed, and its user may write there. It writes 0 to CODE
 * first. So a reader looks at CODE once more before anything that was derived from the reading is handed on or
 * reported (`still_there`): copying first and asking afterwards, as a seqlock does. The answer "it is gone" ends
 * nothing here. The group has broken, the control links carry the reason, and the Work fails by those.
 *
 * Kinds
 *   MEET     all ranks are here, and do the same: barrier, new_group, and what messages carry.
 *   EACH     all_reduce: every rank gives all of it, and reduces everything, in rank order.
 *   SHARE    one phase: all_gather, gather, broadcast, scatter, all_to_all, reduce_scatter, small reduces. A rank
 *            that has something to give copies it in, block by block, or lets it be read where it lies; a rank
 *            that gets something takes it from there, or combines it in rank order. A rank is one block ahead with
 *            filling. A rank that only gives need not wait until it was taken, as long as there is staging left:
 *            a root of small broadcasts runs ahead. Every byte is copied once where it lies in its rank's
 *            segment, else twice.
 *   REDUCE   all_reduce and reduce in two phases: each rank reduces its part, then all collect the parts. A rank
 *            is one block ahead with filling and one behind with collecting, so that what it needs of a peer is
 *            there in time. Every element is reduced once, by its part's rank, and handed out (law 3). Part r of
 *            an array is overwritten by rank r's result, which rank r publishes after it has read the array, so
 *            work in place is safe. For n ranks and N bytes each reads (n-1)·N/n and writes N/n to reduce, reads
 *            and writes (n-1)·N/n to collect; staging adds a copy of each. Reduce-scatter and all-gather as in
 *            Rabenseifner (2004), through shared memory.
 *
 * The caller owns all memory: arrays, parts, staging. It keeps them until the operation has ended or is
 * withdrawn. */
#ifndef AIODIST_EXCHANGE_H
#define AIODIST_EXCHANGE_H

#include "loops.h"
#include "plan.h"

/* Called before a peer's memory is read: tests stop a reader there. */
static void (*before_read)(void) = NULL;

static inline size_t least(size_t a, size_t b) { return a < b ? a : b; }

static inline const member *member_of(const exchange *x, int m) { return &x->of->all->members[m]; }

static inline int is_peer(const exchange *x, int m) { return m != x->of->all->rank; }

/* Write a word of the slot, and wake peers that wait for it. */
static void put(exchange *x, int word, uint64_t value) {
    word_store(x->own + word, value);
    x->moves++;
    ring(x->of->all, !x->of->in_thread, x->of->in_thread);
}

/* Say what this operation is, and where its data lies. Peers go on from here. */
static void publish(exchange *x, const unsigned char *signature, uint64_t filled) {
    if (x->of->kind >= SHARE) {
        word_set(x->own + FILL, filled);
        word_set(x->own + TOOK, 0);
        word_set(x->own + OUT, 0);
        word_set(x->own + TOOK_OUT, 0);
        word_set(x->own + RESULT, place_word(x->result, x->shown));
    }
    word_set(x->own + SOURCE, place_word(x->source, x->exposed));
    publish_code(x->of->all, x->seq, x->code, signature);
    x->moves++;
    ring(x->of->all, 1, x->of->in_thread);
}

/* ── waiting ── */

/* Whether the members of a list have published the same; NULL: all peers. WAIT, OVER or DIFFERS. */
static int have_arrived(exchange *x, const unsigned char *which) {
    const group *all = x->of->all;
    for (int m = 0; m < all->size; m++) {
        if (m == all->rank || (which && !which[m])) continue;
        const member *who = &all->members[m];
        uint64_t theirs = who->base ? word_load(slot_at(who, x->seq) + CODE) : 0;
        if (theirs == x->code) continue;
        if (differs(all, theirs, x->code)) {
            x->trouble = m;
            x->stage = GONE;
            return DIFFERS;
        }
        return WAIT;
    }
    return OVER;
}

/* Whether members, which have all arrived, have written at least a value to a word. */
static int have_reached(const exchange *x, const unsigned char *which, int word, uint64_t value) {
    const group *all = x->of->all;
    for (int m = 0; m < all->size; m++) {
        if (m == all->rank || (which && !which[m])) continue;
        if (word_load(slot_at(&all->members[m], x->seq) + word) < value) return 0;
    }
    return 1;
}

/* Whether what was just read of members' memory is what they have published: see the top. */
static int still_there(const exchange *x, const unsigned char *which) {
    const group *all = x->of->all;
    load_fence();
    for (int m = 0; m < all->size; m++) {
        if (m == all->rank || (which && !which[m])) continue;
        if (word_peek(slot_at(&all->members[m], x->seq) + CODE) != x->code) return 0;
    }
    return 1;
}

static int gone(exchange *x) {
    x->stage = GONE;
    return WAIT;
}

static int outside(exchange *x, int m) {
    x->trouble = m;
    x->stage = GONE;
    return OUTSIDE;
}

/* ── reductions ── */

enum { AT_ONCE = 8 * 1024 }; /* bytes that are reduced at once: what is put aside stays in the first cache */

static inline int is_aligned(const void *at, size_t alignment) { return ((uintptr_t)at & (alignment - 1)) == 0; }

/* Combine two pieces of AT_ONCE bytes at most, which may begin at any byte: the loops take aligned elements. */
static void combine_two(const plan *of, const char *left, const char *right, char *out, size_t count) {
    if (is_aligned(left, of->alignment) && is_aligned(right, of->alignment) && is_aligned(out, of->alignment)) {
        of->combine(left, right, out, count);
        return;
    }
    _Alignas(64) char copies[2][AT_ONCE];
    memcpy(copies[0], left, count * of->itemsize);
    memcpy(copies[1], right, count * of->itemsize);
    of->combine(copies[0], copies[1], copies[0], count);
    memcpy(out, copies[0], count * of->itemsize);
}

static void finish_piece(const plan *of, char *out, size_t count) {
    if (is_aligned(out, of->alignment)) {
        of->finish(out, of->all->size, count);
        return;
    }
    _Alignas(64) char copy[AT_ONCE];
    memcpy(copy, out, count * of->itemsize);
    of->finish(copy, of->all->size, count);
    memcpy(out, copy, count * of->itemsize);
}

/* Combine the operands of all members in rank order, element by element: the lower rank on the left (law 3). `out`
 * may be the operand of `mine`: what comes before that is put aside. */
static void reduce_members(const plan *of, const char **operands, int mine, char *out, size_t count) {
    _Alignas(64) char aside[AT_ONCE];
    const size_t step = AT_ONCE / of->itemsize, size = (size_t)of->all->size;
    for (size_t start = 0; start < count; start += step) {
        const size_t some = least(step, count - start), at = start * of->itemsize;
        const char *total = operands[0] + at;
        for (size_t m = 1; m < size; m++) {
            char *into = out == operands[mine] && m < (size_t)mine ? aside : out + at;
            combine_two(of, total, operands[m] + at, into, some);
            total = into;
        }
        if (of->finish) finish_piece(of, out + at, some);
    }
}

/* AVG divides, with NumPy's results: a complex number is divided as by a complex one. That makes NaNs of infinities,
 * whose bits a compiler may choose: see loops.h. */
#define DIVIDE(NAME, TYPE)                                                    \
    FOR_EACH_PROCESSOR static void NAME(void *array, int divisor, size_t count) { \
        TYPE *at = array;                                                     \
        const TYPE number = (TYPE)divisor;                                    \
        INDEPENDENT for (size_t i = 0; i < count; i++) at[i] = at[i] / number; \
    }
#define DIVIDE_PAIRS(NAME, TYPE, ONE_NAN)                                     \
    static void NAME(void *array, int divisor, size_t count) {                \
        TYPE *at = array;                                                     \
        const TYPE ratio = (TYPE)0 / (TYPE)divisor, scale = (TYPE)1 / ((TYPE)divisor + (TYPE)0 * ratio); \
        for (size_t i = 0; i < count; i++, at += 2) {                         \
            const TYPE real = at[0], imaginary = at[1];                       \
            at[0] = ONE_NAN((real + imaginary * ratio) * scale);              \
            at[1] = ONE_NAN((imaginary - real * ratio) * scale);              \
        }                                                                     \
    }
#define DIVIDE_HALVES(NAME, TYPE)                                             \
    static void NAME(void *array, int divisor, size_t count) { scale_loop_for(TYPE, 1)(array, (float)divisor, count); }
DIVIDE(divide_f32, float)
DIVIDE(divide_f64, double)
DIVIDE_PAIRS(divide_c64, float, one_nan32)
DIVIDE_PAIRS(divide_c128, double, one_nan64)
DIVIDE_HALVES(average_f16, F16)
DIVIDE_HALVES(average_b16, B16)

/* The last step of an operation on elements of a type; NULL where there is none. */
static finish_loop finish_loop_for(int type, int op) {
    if (op != AVG) return NULL;
    switch (type) {
        case F16: return average_f16;
        case B16: return average_b16;
        case F32: return divide_f32;
        case F64: return divide_f64;
        case C64: return divide_c64;
        case C128: return divide_c128;
        default: return NULL;
    }
}

/* ── EACH ── */

static int advance_each(exchange *x) {
    const plan *of = x->of;
    const group *all = of->all;
    int found = have_arrived(x, NULL);
    if (found != OVER) return found;
    const size_t nbytes = of->longest * of->itemsize;
    const char *operands[all->size];
    for (int m = 0; m < all->size; m++) {
        const member *who = member_of(x, m);
        uint64_t at = (who->base + head_of(x->seq)) * 8 + SLOT_HEADER;
        if (!of->in_slot) at = place_at(word_peek(slot_at(who, x->seq) + SOURCE));
        operands[m] = place_in(who, at, nbytes);
        if (!operands[m]) return outside(x, m);
    }
    if (before_read) before_read();
    reduce_members(of, operands, all->rank, x->recv[0], of->longest);
    return OVER;
}

/* ── SHARE ── */

/* Copy a block of what is given to where peers take it. */
static void fill_share(exchange *x, size_t block) {
    const plan *of = x->of;
    const int rank = of->all->rank;
    const size_t start = block * of->block;
    char *at = (char *)member_of(x, rank)->segment->words + x->source + block % of->depth * of->lanes * of->lane;
    for (int m = 0; m < of->all->size; m++) {
        if (!of->alike && (m == rank || !of->gets[m])) continue;
        const size_t size = of->sizes[of->alike ? rank : m];
        if (start < size) {
            char *lane = of->alike ? at : at + (size_t)(m - (m > rank)) * of->lane;
            memcpy(lane, x->send[of->alike ? 0 : m] + start * of->itemsize, least(of->block, size - start) * of->itemsize);
        }
        if (of->alike) break;
    }
}

/* A peer's block for this rank; NULL where it names a place outside its segment. */
static const char *share_of(const exchange *x, int m, size_t block, size_t count) {
    const plan *of = x->of;
    const member *who = member_of(x, m);
    const int rank = of->all->rank;
    const size_t start = block * of->block, nbytes = count * of->itemsize;
    uint64_t at = place_at(x->sources[m]);
    if (lies_there(x->sources[m])) {
        at += ((of->alike ? 0 : of->starts[rank]) + start) * of->itemsize;
    } else {
        size_t place = block % of->depth;
        if (!of->alike) place = place * (size_t)(of->all->size - 1) + (size_t)(rank - (rank > m));
        at += place * of->lane;
    }
    return place_in(who, at, nbytes);
}

/* Take a block of all that give → the member that names a place outside its segment; -1: none does. */
static int take_share(exchange *x, size_t block) {
    const plan *of = x->of;
    const group *all = of->all;
    const int rank = all->rank;
    const size_t start = block * of->block;
    if (!x->recv) return -1;
    if (of->combine) {
        const size_t size = of->sizes[rank];
        if (start >= size) return -1;
        const size_t some = least(of->block, size - start);
        const char *operands[all->size];
        for (int m = 0; m < all->size; m++) {
            operands[m] = is_peer(x, m) || of->in_slot ? share_of(x, m, block, some)
                                                       : x->send[rank] + start * of->itemsize;
            if (!operands[m]) return m;
        }
        if (before_read) before_read();
        reduce_members(of, operands, rank, x->recv[0] + start * of->itemsize, some);
        return -1;
    }
    for (int m = 0; m < all->size; m++) {
        const int own = !is_peer(x, m);
        if (own ? !x->send : !of->gives[m]) continue;
        const size_t size = of->sizes[of->alike ? m : rank];
        if (start >= size) continue;
        const size_t some = least(of->block, size - start);
        const char *from = own ? x->send[of->alike ? 0 : rank] + start * of->itemsize : share_of(x, m, block, some);
        if (!from) return m;
        if (!own && before_read) before_read();
        memcpy(x->recv[of->sorts ? m : 0] + start * of->itemsize, from, some * of->itemsize);
    }
    return -1;
}

static int advance_share(exchange *x) {
    const plan *of = x->of;
    const group *all = of->all;
    int found;
    switch (x->stage) {
    case ARRIVE:
        found = have_arrived(x, of->gives);
        if (found != OVER) return found;
        for (int m = 0; m < all->size; m++) {
            const member *who = member_of(x, m);
            if (of->in_slot)
                x->sources[m] = place_word((who->base + head_of(x->seq)) * 8 + SLOT_HEADER, 1);
            else if (of->gives[m])
                x->sources[m] = word_peek(slot_at(who, x->seq) + SOURCE);
        }
        x->stage = PLACES;
        if (of->in_thread && x->fills) return FILL_NOW;
        /* fall through */
    case PLACES:
        if (x->exposed && word_peek(x->own + FILL) < x->count) put(x, FILL, x->count);
        x->at_block = 0;
        x->stage = GIVE;
        /* fall through */
    case GIVE:
    case TAKE:
        for (; x->at_block <= x->count; x->at_block++, x->stage = GIVE) {
            const size_t block = x->at_block;
            if (x->stage == GIVE) {
                if (x->source && block < x->count && !of->in_slot && word_peek(x->own + FILL) <= block) {
                    if (block + 1 > of->depth) {
                        found = have_arrived(x, of->gets);
                        if (found != OVER) return found;
                        if (!have_reached(x, of->gets, TOOK, block + 1 - of->depth)) return WAIT;
                    }
                    fill_share(x, block);
                    put(x, FILL, block + 1);
                }
                x->stage = TAKE;
            }
            if (block > 0) {
                if (!of->in_slot && !have_reached(x, of->gives, FILL, block)) return WAIT;
                const int nowhere = take_share(x, block - 1);
                if (nowhere >= 0) return outside(x, nowhere);
                if (!of->in_slot && x->recv) put(x, TOOK, block);
            }
        }
        if (!of->in_slot && !still_there(x, of->gives)) return gone(x);
        x->stage = LEND;
        /* fall through */
    case LEND:
        if (x->exposed && x->count) {
            found = have_arrived(x, of->gets);
            if (found != OVER) return found;
            if (!have_reached(x, of->gets, TOOK, x->count)) return WAIT;
        }
        return OVER;
    default: return WAIT;
    }
}

/* ── REDUCE ── */

/* The bounds of a block of a member's part in the buffer. */
static inline size_t span_of(const exchange *x, int m, size_t block, size_t *low) {
    const size_t size = x->of->sizes[m], start = least(block * x->block, size);
    *low = x->of->starts[m] + start;
    return least(x->block, size - start);
}

static inline size_t reduce_lane(const exchange *x, size_t block) {
    return block % x->of->depth * (size_t)(x->of->all->size - 1) * x->of->lane;
}

/* Copy in what each peer will reduce. */
static void fill_reduce(exchange *x, size_t block) {
    const plan *of = x->of;
    const int rank = of->all->rank;
    char *at = (char *)member_of(x, rank)->segment->words + x->source + reduce_lane(x, block);
    for (int m = 0; m < of->all->size; m++) {
        size_t low, count;
        if (m == rank || !(count = span_of(x, m, block, &low))) continue;
        memcpy(at + (size_t)(m - (m > rank)) * of->lane, x->send[0] + low * of->itemsize, count * of->itemsize);
    }
}

static char *own_result(exchange *x, size_t block, size_t low) {
    if (x->shown) return x->recv[0] + low * x->of->itemsize;
    return (char *)member_of(x, x->of->all->rank)->segment->words + x->result + block % x->of->depth * x->of->lane;
}

/* Combine a block of this rank's part of all ranks, where peers find the result → as `take_share`. */
static int reduce_block(exchange *x, size_t block) {
    const plan *of = x->of;
    const group *all = of->all;
    const int rank = all->rank;
    size_t low, count = span_of(x, rank, block, &low);
    const char *operands[all->size];
    if (!count) return -1;
    for (int m = 0; m < all->size; m++) {
        if (m == rank) {
            operands[m] = x->send[0] + low * of->itemsize;
            continue;
        }
        uint64_t at = place_at(x->sources[m]);
        at += lies_there(x->sources[m]) ? low * of->itemsize : reduce_lane(x, block) + (size_t)(rank - (rank > m)) * of->lane;
        operands[m] = place_in(member_of(x, m), at, count * of->itemsize);
        if (!operands[m]) return m;
    }
    if (before_read) before_read();
    reduce_members(of, operands, rank, own_result(x, block, low), count);
    return -1;
}

/* Copy a peer's block of the result to this rank's array → as `take_share`. */
static int collect_block(exchange *x, int m, size_t block) {
    const plan *of = x->of;
    size_t low, count = span_of(x, m, block, &low);
    if (!count) return -1;
    uint64_t at = place_at(x->results[m]);
    at += lies_there(x->results[m]) ? low * of->itemsize : block % of->depth * of->lane;
    const char *from = place_in(member_of(x, m), at, count * of->itemsize);
    if (!from) return m;
    if (before_read) before_read();
    memcpy(x->recv[0] + low * of->itemsize, from, count * of->itemsize);
    return -1;
}

static int advance_reduce(exchange *x) {
    const plan *of = x->of;
    const group *all = of->all;
    int found, nowhere;
    switch (x->stage) {
    case ARRIVE: {
        found = have_arrived(x, NULL);
        if (found != OVER) return found;
        int nothing_staged = x->exposed && x->shown;
        for (int m = 0; m < all->size; m++) {
            if (!is_peer(x, m)) continue;
            const uint64_t *words = slot_at(member_of(x, m), x->seq);
            x->sources[m] = word_peek(words + SOURCE);
            x->results[m] = word_peek(words + RESULT);
            nothing_staged = nothing_staged && lies_there(x->sources[m]) && lies_there(x->results[m]);
        }
        if (nothing_staged) x->block = of->larger, x->count = of->fewer;
        x->stage = PLACES;
        if (of->in_thread && x->fills) return FILL_NOW;
    } /* fall through */
    case PLACES:
        if (x->exposed && word_peek(x->own + FILL) < x->count) put(x, FILL, x->count);
        x->at_block = 0;
        x->stage = GIVE;
        /* fall through */
    case GIVE:
    case TAKE:
    case COLLECT:
        for (; x->at_block < x->count + 2; x->at_block++, x->stage = GIVE) {
            const size_t block = x->at_block;
            if (x->stage == GIVE) {
                if (block < x->count && !x->exposed && word_peek(x->own + FILL) <= block) {
                    if (block + 1 > of->depth && !have_reached(x, NULL, TOOK, block + 1 - of->depth)) return WAIT;
                    fill_reduce(x, block);
                    put(x, FILL, block + 1);
                }
                x->stage = TAKE;
            }
            if (x->stage == TAKE) {
                if (block >= 1 && block <= x->count) {
                    if (!have_reached(x, NULL, FILL, block)) return WAIT;
                    if (!x->shown && block > of->depth && !have_reached(x, of->gets, TOOK_OUT, block - of->depth))
                        return WAIT;
                    nowhere = reduce_block(x, block - 1);
                    if (nowhere >= 0) return outside(x, nowhere);
                    if (!still_there(x, NULL)) return gone(x);
                    word_store(x->own + TOOK, block);
                    put(x, OUT, block);
                    if (x->recv && !x->shown) {
                        size_t low, count = span_of(x, all->rank, block - 1, &low);
                        if (count)
                            memcpy(x->recv[0] + low * of->itemsize, own_result(x, block - 1, low), count * of->itemsize);
                    }
                }
                x->peer = 0;
                x->stage = COLLECT;
            }
            if (block >= 2 && of->collects) {
                for (; x->peer < all->size; x->peer++) {
                    if (!is_peer(x, x->peer)) continue;
                    if (word_load(slot_at(member_of(x, x->peer), x->seq) + OUT) < block - 1) return WAIT;
                    nowhere = collect_block(x, x->peer, block - 2);
                    if (nowhere >= 0) return outside(x, nowhere);
                }
                put(x, TOOK_OUT, block - 1);
            }
        }
        if (of->collects && !still_there(x, NULL)) return gone(x);
        x->stage = LEND;
        /* fall through */
    case LEND:
        if (x->exposed && !have_reached(x, NULL, TOOK, x->count)) return WAIT;
        if (x->shown && !have_reached(x, of->gets, TOOK_OUT, x->count)) return WAIT;
        return OVER;
    default: return WAIT;
    }
}

/* ── all kinds ── */

static int exchange_advance(exchange *x) {
    if (x->stage == GONE) return WAIT;
    switch (x->of->kind) {
        case EACH: return advance_each(x);
        case SHARE: return advance_share(x);
        case REDUCE: return advance_reduce(x);
        default: return have_arrived(x, NULL);
    }
}

/* Whether any peer that it may know of has published something else; then it goes no further. */
static int exchange_differs(exchange *x) {
    const group *all = x->of->all;
    if (x->stage == GONE) return 0;
    for (int m = 0; m < all->size; m++) {
        const member *who = &all->members[m];
        if (m == all->rank || !who->base || !differs(all, word_load(slot_at(who, x->seq) + CODE), x->code)) continue;
        x->trouble = m;
        x->stage = GONE;
        return 1;
    }
    return 0;
}

/* Fill what can be filled at once, and publish. What is copied before (`fills`) was copied, or is later. */
static void exchange_begin(exchange *x, const unsigned char *signature) {
    const plan *of = x->of;
    uint64_t filled = 0;
    x->block = of->block;
    x->count = of->count;
    x->stage = ARRIVE;
    x->trouble = -1;
    if (of->in_slot && x->send) {
        char *at = (char *)x->own + SLOT_HEADER;
        if (of->kind == EACH || of->alike)
            memcpy(at, x->send[0], (of->kind == EACH ? of->longest : of->sizes[of->all->rank]) * of->itemsize);
        else
            for (int m = 0; m < of->all->size; m++)
                memcpy(at + of->starts[m] * of->itemsize, x->send[m], of->sizes[m] * of->itemsize);
    } else if (of->kind == EACH) {
        memcpy((char *)member_of(x, of->all->rank)->segment->words + x->source, x->send[0], of->longest * of->itemsize);
    } else if (x->exposed) {
        filled = of->in_thread && x->fills ? 0 : x->count;
    } else if (of->kind >= SHARE && !of->in_thread && x->source && x->count) {
        if (of->kind == SHARE)
            fill_share(x, 0);
        else
            fill_reduce(x, 0);
        filled = 1;
    }
    publish(x, signature, filled);
}

#endif
