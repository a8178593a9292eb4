/* MIG: parts of a card. NVLink: what joins cards. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The index-th instance that holds a compute instance: only such a one is a device. */
static const struct json *mig_device(const struct json *card, unsigned index)
{
    const struct json *list = mig_is_on(card) ? json_get(card, "mig_instances") : NULL;
    const struct json *one = list ? list->child : NULL;
    for (; one; one = one->next)
        if (json_text(one, "uuid", NULL) && index-- == 0)
            break;
    return one;
}

API int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    BEGIN("nvmlDeviceGetMigMode", device)
    const char *mode = json_text(call.card, "mig_mode", NULL);
    if (!mode || call.instance)
        return call_end(NOT_SUPPORTED);
    *current = (unsigned)mig_is_on(call.card);
    *pending = strcmp(json_text(call.card, "mig_pending", mode), "Enabled") == 0;
    return call_end(OK);
}

API int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetMaxMigDeviceCount", device)
    *out = json_text(call.card, "mig_mode", NULL) ? 7 : 0;
    return call_end(OK);
}

API int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    BEGIN("nvmlDeviceGetMigDeviceHandleByIndex", device)
    const struct json *one = mig_device(call.card, index);
    if (!json_text(call.card, "mig_mode", NULL))
        return call_end(NOT_SUPPORTED);
    if (!one)
        return call_end(NOT_FOUND);
    *out = device_for(json_text(one, "uuid", ""));
    return call_end(*out ? OK : UNKNOWN);
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    BEGIN("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device)
    if (!call.instance)
        return call_end(INVALID_ARGUMENT);
    *out = device_for(json_text(call.card, "uuid", ""));
    return call_end(*out ? OK : UNKNOWN);
}

API int nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceIsMigDeviceHandle", device)
    *out = call.instance != NULL;
    return call_end(OK);
}

API int nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetGpuInstanceId", device)
    return call_end(copy_number(call.instance, "gi_id", out, 1));
}

API int nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetComputeInstanceId", device)
    return call_end(copy_number(call.instance, "ci_id", out, 1));
}

API int nvmlDeviceGetAttributes_v2(nvmlDevice_t device, struct attributes *out)
{
    BEGIN("nvmlDeviceGetAttributes", device)
    if (!call.instance)
        return call_end(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    out->sms = (unsigned)json_number(call.instance, "sms", 0);
    out->gi_slices = out->ci_slices = (unsigned)atoi(json_text(call.instance, "profile", "0"));
    out->memory_mib = (unsigned long long)json_number(call.instance, "memory_total_mib", 0);
    return call_end(OK);
}

/* NVLink: the card's list names the peer of each link, null for a link that is down. */

API int nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *out)
{
    BEGIN("nvmlDeviceGetNvLinkState", device)
    const struct json *links = json_get(call.card, "nvlinks");
    const struct json *one = element(links, link);
    if (!one)
        return call_end(links && links->child ? INVALID_ARGUMENT : NOT_SUPPORTED);
    *out = one->kind == JSON_STRING;
    return call_end(OK);
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, struct pci_info *out)
{
    BEGIN("nvmlDeviceGetNvLinkRemotePciInfo", device)
    const struct json *one = element(json_get(call.card, "nvlinks"), link);
    if (!one || one->kind != JSON_STRING)
        return call_end(one ? UNKNOWN : NOT_SUPPORTED);
    fill_pci(one->text, out);
    return call_end(OK);
}
