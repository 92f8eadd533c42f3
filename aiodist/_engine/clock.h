/* The clock of `time.monotonic`, and flags between two threads of this process. */
#ifndef AIODIST_CLOCK_H
#define AIODIST_CLOCK_H

#include <time.h>

static inline double monotonic_seconds(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static inline int flag_is_set(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static inline void set_flag(int *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

#endif
