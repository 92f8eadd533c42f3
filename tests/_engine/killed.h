/* Ends the process before its n-th store of a shared word: included before all else (gcc -include).
 *
 * AIODIST_KILL=exchange:37 says in which extension, and before which of its stores, counted from 1. AIODIST_STORES
 * names a file to which each extension appends how many stores it has done, when the process ends well. */
#ifndef AIODIST_KILLED_H
#define AIODIST_KILLED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "words.h"

static long killed_left, killed_done;
static const char *killed_name;

__attribute__((constructor)) static void killed_begin(void) {
    static char name[64];
    const char *slash = strrchr(__BASE_FILE__, '/'), *wanted = getenv("AIODIST_KILL");
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : __BASE_FILE__);
    if (strchr(name, '.')) *strchr(name, '.') = 0;
    killed_name = name;
    if (wanted && !strncmp(wanted, name, strlen(name)) && wanted[strlen(name)] == ':') killed_left = atol(wanted + strlen(name) + 1);
}

__attribute__((destructor)) static void killed_end(void) {
    const char *path = getenv("AIODIST_STORES");
    FILE *file = path && killed_done ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %ld\n", killed_name, killed_done);
    fclose(file);
}

static inline void killed_count(void) {
    __atomic_add_fetch(&killed_done, 1, __ATOMIC_RELAXED);
    if (killed_left && __atomic_sub_fetch(&killed_left, 1, __ATOMIC_RELAXED) == 0) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
}

static inline void killed_store(uint64_t *word, uint64_t value) {
    killed_count();
    word_store(word, value);
}

static inline void killed_set(uint64_t *word, uint64_t value) {
    killed_count();
    word_set(word, value);
}

#define word_store killed_store
#define word_set killed_set

#endif
