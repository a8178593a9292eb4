/* The part of NVML's interface that nvidia-ml-py calls, as its structures lie in memory, and what the
 * functions here share. */
#ifndef HF_LAB_NVML_H
#define HF_LAB_NVML_H

#include "state.h"

#define API __attribute__((visibility("default")))
#define MIB (1024ULL * 1024ULL)
typedef struct device *nvmlDevice_t;

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct temperature { unsigned version, sensor; int celsius; };
struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };
struct attributes { unsigned sms, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices; unsigned long long memory_mib; };

/* Open a call about a device and leave the function when it fails. */
#define BEGIN(name, device)                                                                                            \
    struct call call;                                                                                                  \
    if (!(device))                                                                                                     \
        return INVALID_ARGUMENT;                                                                                       \
    int begun = call_begin(&call, name, device);                                                                       \
    if (begun != OK)                                                                                                   \
        return begun;
#define BEGIN_LIBRARY(name)                                                                                            \
    struct call call;                                                                                                  \
    int begun = call_begin(&call, name, NULL);                                                                         \
    if (begun != OK)                                                                                                   \
        return begun;
/* Sensors and modes of a card do not exist for a MIG instance of it. */
#define NOT_FOR_INSTANCES                                                                                              \
    if (call.instance)                                                                                                 \
        return call_end(NOT_SUPPORTED);

/* A text that is NULL and a number that is null are "not supported". */
int copy_text(const char *text, char *out, unsigned size);
int copy_number(const struct json *object, const char *key, unsigned *out, double factor);
const struct json *element(const struct json *array, unsigned index);
int mig_is_on(const struct json *card);
void fill_pci(const char *bus_id, struct pci_info *out);

#endif
