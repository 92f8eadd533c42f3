/* Ranks as threads over one mapping, for the thread sanitizer, which sees nothing between processes.
 *
 * Three ranks run operations of every kind, each with distinct values by rank and element, and compare what they get.
 * Two more exchange records by a ring.
 * With -DPLANTED the store that publishes has no order, with -DPLANTED_RING that of the ring, too: the sanitizer has to
 * find that. With -DPLANTED_PLACE the flag
 * of a place shares a bit with its offset: arrays at odd bytes have to come out wrong. */
#include "words.h"
#if defined PLANTED || defined PLANTED_RING
static inline void planted_store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
#define word_store planted_store
#endif
#ifdef PLANTED_PLACE
#include "slots.h"
static inline uint64_t planted_word(uint64_t at, int exposed) { return at | (uint64_t)(exposed != 0); }
static inline uint64_t planted_at(uint64_t word) { return word & ~(uint64_t)1; }
#define place_word planted_word
#define place_at planted_at
#endif
#define FOR_EACH_PROCESSOR /* the loader would choose a loop before the sanitizer is there */
#include "exchange.h"
#include "ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 3, SEGMENT = 4 << 20, BASE = 64 * 1024, STAGING = 1 << 20, ROUNDS = 6000, COUNT = 900 };
enum { CASES = 6, ODD = 2 * STAGING + 1, RING = 4096, RECORDS = 60000, HEAD = 16 };

static uint64_t segments[RANKS][SEGMENT / 8] __attribute__((aligned(4096)));
static pthread_barrier_t made;

static void fail(const char *what, int rank, uint64_t seq) {
    fprintf(stderr, "%s: rank %d, operation %llu\n", what, rank, (unsigned long long)seq);
    exit(1);
}

static int64_t value(int rank, uint64_t seq, int index) { return rank * 1000000 + (int64_t)seq * 1000 + index; }

/* The plan of one of the cases: in the slot, staged in one block, in several, lying in the segment. */
static void make_plan(plan *of, group *all, int which) {
    static unsigned char everybody[RANKS] = {1, 1, 1};
    memset(of, 0, sizeof *of);
    of->all = all;
    of->kind = which == 0 ? EACH : which < 3 ? SHARE : which < 6 ? REDUCE : MEET;
    of->in_slot = which == 0 || which == 1;
    of->in_thread = which == 2 || which == 4;
    of->alike = of->collects = 1;
    of->sorts = of->kind == SHARE;
    of->itemsize = of->alignment = 8;
    of->combine = of->kind == SHARE ? NULL : combine_loop_for(I64, SUM);
    of->gives = of->gets = everybody;
    of->sizes = calloc(2 * RANKS, sizeof(size_t));
    of->starts = of->sizes + RANKS;
    for (int m = 0; m < RANKS; m++) {
        of->sizes[m] = of->kind == EACH ? COUNT : COUNT / RANKS;
        of->starts[m] = (size_t)m * (COUNT / RANKS);
    }
    of->longest = of->sizes[0];
    of->block = of->in_thread ? 64 : of->longest;
    of->larger = 128;
    of->count = (of->longest + of->block - 1) / of->block;
    of->fewer = (of->longest + of->larger - 1) / of->larger;
    of->depth = of->in_thread ? 2 : 1;
    of->lane = (of->block * 8 + 63) / 64 * 64;
    of->lanes = 1;
}

static void *run(void *argument) {
    const int rank = (int)(intptr_t)argument;
    memory memories[RANKS];
    member members[RANKS];
    group all = {.rank = rank, .size = RANKS, .low = 0xffff, .members = members};
    for (int m = 0; m < RANKS; m++) {
        memories[m] = (memory){.words = segments[m], .nbytes = SEGMENT, .bell = -1, .ring_bulk = 2};
        members[m] = (member){.segment = &memories[m], .base = BASE / 8};
    }
    plan plans[CASES];
    for (int which = 0; which < CASES; which++) make_plan(&plans[which], &all, which);
    int64_t own[COUNT], got[COUNT];
    uint64_t places[2 * RANKS];
    char *send[RANKS], *recv[RANKS];
    pthread_barrier_wait(&made);
    for (uint64_t seq = 0; seq < ROUNDS; seq++) {
        const plan *of = &plans[seq % CASES];
        unsigned char signature[SIGNATURE_BYTES] = {0};
        exchange x = {.of = of, .seq = seq, .code = 77 << 16 | ((seq + 1) & all.low), .sources = places, .results = places + RANKS};
        const int at_odd_byte = seq % CASES == 5;
        char *source = at_odd_byte ? (char *)segments[rank] + ODD : (char *)own;
        char *target = at_odd_byte ? source : (char *)got;
        while (!slot_is_free(&all, seq)) sched_yield();
        x.own = own_slot(&all, seq);
        for (int i = 0; i < COUNT; i++) {
            const int64_t element = value(rank, seq, i);
            memcpy(source + 8 * i, &element, 8);
        }
        for (int m = 0; m < RANKS; m++) send[m] = source, recv[m] = target + 8 * of->starts[m];
        recv[0] = target;
        x.send = send;
        x.recv = recv;
        if (at_odd_byte) {
            x.source = x.result = ODD;
            x.exposed = x.shown = 1;
        } else if (!of->in_slot) { /* each number has its own: what is read late is not overwritten */
            x.source = STAGING + seq % 4 * (STAGING / 4);
            x.result = x.source + STAGING / 8;
        }
        exchange_begin(&x, signature);
        for (int what; (what = exchange_advance(&x)) != OVER;) {
            if (what != WAIT) fail("an odd outcome", rank, seq);
            sched_yield();
        }
        note_finished(&all, seq);
        if (!at_odd_byte && !of->in_slot)
            while (!all_finished(&all, seq)) sched_yield(); /* as whoever gives staging out again */
        for (int i = 0; i < COUNT; i++) {
            int64_t right = 0;
            if (of->kind == SHARE)
                right = value(i / (COUNT / RANKS), seq, i % (COUNT / RANKS));
            else
                for (int m = 0; m < RANKS; m++) right += value(m, seq, i);
            int64_t found;
            memcpy(&found, target + 8 * i, 8);
            if (found != right) fail("a wrong result", rank, seq);
        }
    }
    for (int which = 0; which < CASES; which++) free(plans[which].sizes);
    return NULL;
}

static uint64_t areas[2][(RING_RECORDS + RING) / 8] __attribute__((aligned(64)));

static unsigned char byte_of(int record, int index) { return (unsigned char)(record * 7 + index); }
static int bytes_of(int record) { return record * 13 % 300; }

static void *append_records(void *unused) {
    char *mine = (char *)areas[0], *theirs = (char *)areas[1];
    producer p = {.word = areas[0], .records = mine + RING_RECORDS, .size = RING, .taken_word = (uint64_t *)(theirs + RING_TAKEN)};
    for (int record = 0; record < RECORDS; record++) {
        unsigned char header[HEAD] = {1}, payload[300];
        memcpy(header + 8, &record, sizeof record);
        for (int i = 0; i < bytes_of(record); i++) payload[i] = byte_of(record, i);
        for (int what; (what = producer_append(&p, header, HEAD, payload, (size_t)bytes_of(record))) != APPENDED;) {
            if (what != NO_ROOM) fail("a count that cannot be", 0, (uint64_t)record);
            sched_yield();
        }
    }
    return unused;
}

static void *take_records(void *unused) {
    char *mine = (char *)areas[1], *theirs = (char *)areas[0];
    consumer c = {.word = areas[0], .records = theirs + RING_RECORDS, .size = RING, .taken_word = (uint64_t *)(mine + RING_TAKEN)};
    for (int record = 0; record < RECORDS; record++) {
        uint64_t nbytes;
        int found;
        while (!consumer_is_waiting(&c)) sched_yield();
        const char *first = consumer_first(&c, &nbytes);
        if (!first || nbytes < (uint64_t)(HEAD + bytes_of(record))) fail("a head that cannot be", 1, (uint64_t)record);
        memcpy(&found, first + 8, sizeof found);
        if (found != record) fail("a record in the place of another", 1, (uint64_t)record);
        for (int i = 0; i < bytes_of(record); i++)
            if ((unsigned char)first[HEAD + i] != byte_of(record, i)) fail("a wrong byte", 1, (uint64_t)record);
        consumer_took(&c, (uint64_t)(HEAD + bytes_of(record)));
    }
    return unused;
}

static void exchange_records(void) {
    pthread_t ends[2];
    pthread_create(&ends[0], NULL, append_records, NULL);
    pthread_create(&ends[1], NULL, take_records, NULL);
    for (int end = 0; end < 2; end++) pthread_join(ends[end], NULL);
    puts("all records came");
}

int main(void) {
    pthread_t threads[RANKS];
#ifndef PLANTED
    exchange_records();
#endif
    pthread_barrier_init(&made, NULL, RANKS);
    for (intptr_t rank = 0; rank < RANKS; rank++) pthread_create(&threads[rank], NULL, run, (void *)rank);
    for (int rank = 0; rank < RANKS; rank++) pthread_join(threads[rank], NULL);
    puts("all ranks agree");
    return 0;
}
