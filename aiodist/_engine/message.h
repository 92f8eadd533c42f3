/* The frame of an eager message, as `net/wire/frame.py` has it: the fields that the fast path looks at. */
#ifndef AIODIST_MESSAGE_H
#define AIODIST_MESSAGE_H

#include <stdint.h>
#include <string.h>

enum { FRAME_BYTES = 96, SIGNATURE = 32, SIGNATURE_NUMBER = 16 };

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are little-endian: other machines run without the engine"
#endif

typedef struct {
    uint32_t kind; /* and three bytes that are zero */
    uint32_t stream;
    uint64_t context, seq;
    uint32_t part, nbytes;
    uint64_t offset, total, word, zeros;
    unsigned char signature[SIGNATURE];
} frame;

typedef char frame_has_its_size[sizeof(frame) == FRAME_BYTES ? 1 : -1];

/* Whether it is a whole message between two ranks (no part of a collective) of at most so many bytes. */
static inline int is_message(const frame *f, uint32_t eager, uint64_t most) {
    return f->kind == eager && f->stream && !f->part && !f->offset && !f->zeros && f->nbytes == f->total &&
           f->total <= most;
}

/* Give a message's frame, or the signature of its receive, a number. */
static inline void number_frame(frame *f, uint64_t number) {
    f->seq = number;
    memcpy(f->signature + SIGNATURE_NUMBER, &number, sizeof number);
}

/* Whether a signature is that of a message like `like`, with a number. */
static inline int is_signed(const unsigned char *signature, const unsigned char *like, uint64_t number) {
    enum { BEHIND = SIGNATURE_NUMBER + 8 };
    return memcmp(signature, like, SIGNATURE_NUMBER) == 0 &&
           memcmp(signature + SIGNATURE_NUMBER, &number, sizeof number) == 0 &&
           memcmp(signature + BEHIND, like + BEHIND, SIGNATURE - BEHIND) == 0;
}

#endif
