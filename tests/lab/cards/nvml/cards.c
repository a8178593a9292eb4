/* Finding cards, and what a card is for all its life. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

API int nvmlDeviceGetCount_v2(unsigned *out)
{
    BEGIN_LIBRARY("nvmlDeviceGetCount")
    *out = 0;
    for (const struct json *card = first_card(call.state); card; card = next_card(card))
        ++*out;
    return call_end(OK);
}

static const struct json *find_index(const struct json *state, const void *wanted)
{
    unsigned left = *(const unsigned *)wanted;
    const struct json *card = first_card(state);
    while (card && left--)
        card = next_card(card);
    return card;
}

static const struct json *find_uuid(const struct json *state, const void *wanted)
{
    for (const struct json *card = first_card(state); card; card = next_card(card)) {
        if (strcmp(json_text(card, "uuid", ""), wanted) == 0)
            return card;
        const struct json *list = json_get(card, "mig_instances");
        for (const struct json *one = list ? list->child : NULL; one; one = one->next)
            if (strcmp(json_text(one, "uuid", ""), wanted) == 0)
                return one;
    }
    return NULL;
}

/* Bus ids are written with 4 or 8 digits of domain, in either case. */
static int same_bus_id(const char *a, const char *b)
{
    unsigned x[4] = {0}, y[4] = {0};
    return sscanf(a, "%x:%x:%x.%x", x, x + 1, x + 2, x + 3) >= 3 &&
           sscanf(b, "%x:%x:%x.%x", y, y + 1, y + 2, y + 3) >= 3 && memcmp(x, y, sizeof x) == 0;
}

static const struct json *find_bus_id(const struct json *state, const void *wanted)
{
    const struct json *card = first_card(state);
    while (card && !same_bus_id(json_text(card, "pci_bus_id", ""), wanted))
        card = next_card(card);
    return card;
}

static int handle(const char *name, const struct json *(*find)(const struct json *, const void *), const void *wanted,
                  int absent, nvmlDevice_t *out)
{
    struct call call;
    int begun = call_begin_handle(&call, name, find, wanted);
    if (begun != OK)
        return begun == NOT_FOUND ? absent : begun;
    *out = device_for(json_text(call.instance ? call.instance : call.card, "uuid", ""));
    return call_end(*out ? OK : UNKNOWN);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    return handle("nvmlDeviceGetHandleByIndex", find_index, &index, INVALID_ARGUMENT, out);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    return uuid ? handle("nvmlDeviceGetHandleByUUID", find_uuid, uuid, NOT_FOUND, out) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out)
{
    return bus_id ? handle("nvmlDeviceGetHandleByPciBusId", find_bus_id, bus_id, NOT_FOUND, out) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetIndex", device)
    *out = 0;
    for (const struct json *card = first_card(call.state); card != call.card; card = next_card(card))
        ++*out;
    return call_end(OK);
}

API int nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned size)
{
    BEGIN("nvmlDeviceGetUUID", device)
    return call_end(copy_text(device->uuid, out, size));
}

API int nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned size)
{
    char text[160];
    BEGIN("nvmlDeviceGetName", device)
    snprintf(text, sizeof text, call.instance ? "%s MIG %s" : "%s", json_text(call.card, "name", ""),
             json_text(call.instance, "profile", ""));
    return call_end(copy_text(text, out, size));
}

API int nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned size)
{
    BEGIN("nvmlDeviceGetSerial", device)
    return call_end(copy_text(json_text(call.card, "serial", NULL), out, size));
}

API int nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetMinorNumber", device)
    return call_end(copy_number(call.card, "minor", out, 1));
}

API int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *out)
{
    BEGIN("nvmlDeviceGetPciInfo", device)
    fill_pci(json_text(call.card, "pci_bus_id", ""), out);
    return call_end(OK);
}

API int nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetNumaNodeId", device)
    return call_end(copy_number(call.card, "numa_node", out, 1));
}

API int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    BEGIN("nvmlDeviceGetCudaComputeCapability", device)
    int found = sscanf(json_text(call.card, "compute_capability", ""), "%d.%d", major, minor);
    return call_end(found == 2 ? OK : NOT_SUPPORTED);
}
