/* The card state file, read again whenever it changed, and the faults it asks for. */
#ifndef HF_LAB_STATE_H
#define HF_LAB_STATE_H

#include "json.h"

/* NVML return codes that the library gives by itself. */
enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    UNKNOWN = 999
};

/* What an nvmlDevice_t points to: a name that outlives every change of the file. */
struct device {
    char uuid[96];
};

/* The parts of the state that a call is about. Valid until call_end. */
struct call {
    const struct json *state;
    const struct json *card;     /* NULL for calls about the library */
    const struct json *instance; /* the MIG instance when the device is one */
};

int library_init(void);
int library_shutdown(void);

/* Begin a call: lock, read the file, find the device, do its fault (delay, hang, error).
 * On OK the caller must end it with call_end; on an error everything is released already. */
int call_begin(struct call *call, const char *name, const struct device *device);
/* The same for getting a card's handle: the card's own faults for "handle" apply. */
int call_begin_handle(struct call *call, const char *name, const struct json *(*find)(const struct json *, const void *),
                      const void *wanted);
int call_end(int result);

/* The one device record for this uuid; NULL when the table is full. Call it between begin and end. */
struct device *device_for(const char *uuid);

/* Cards that are present, in the file's order. */
const struct json *first_card(const struct json *state);
const struct json *next_card(const struct json *card);

#endif
