/* Words of shared memory: loads and stores with an order, and the fence.
 *
 * A rank writes words of its own segment and reads those of its peers. A store that publishes something is a
 * release, a load that looks for it an acquire: who sees the word sees everything that was written before it, on
 * any processor. tests/models has each protocol as a model, and shows that it fails without each of its orders.
 */
#ifndef AIODIST_WORDS_H
#define AIODIST_WORDS_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t word_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static inline void word_store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/* A word that nobody looks at before a later store that is a release. */
static inline void word_set(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static inline uint64_t word_peek(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

/* What comes before is done before what comes after: also a store before a load, which x86-64 may exchange. */
static inline void full_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Loads that come before are done before those that come after. */
static inline void load_fence(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

/* The other thread of this core may go on. */
static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
