/* What changes by the second: memory, load, sensors, error counts, processes. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int memory(const struct call *call, unsigned long long *total, unsigned long long *used)
{
    const struct json *from = call->instance ? call->instance : call->card;
    if (json_is_null(from, "memory_total_mib") || json_is_null(from, "memory_used_mib"))
        return NOT_SUPPORTED;
    *total = (unsigned long long)json_number(from, "memory_total_mib", 0) * MIB;
    *used = (unsigned long long)json_number(from, "memory_used_mib", 0) * MIB;
    return OK;
}

API int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *out)
{
    BEGIN("nvmlDeviceGetMemoryInfo", device)
    int result = memory(&call, &out->total, &out->used);
    out->free = out->total > out->used ? out->total - out->used : 0;
    return call_end(result);
}

API int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *out)
{
    BEGIN("nvmlDeviceGetMemoryInfo", device)
    int result = memory(&call, &out->total, &out->used);
    out->reserved = (unsigned long long)json_number(call.card, "memory_reserved_mib", 0) * MIB;
    unsigned long long taken = out->used + out->reserved;
    out->free = out->total > taken ? out->total - taken : 0;
    return call_end(result);
}

API int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *out)
{
    BEGIN("nvmlDeviceGetUtilizationRates", device)
    NOT_FOR_INSTANCES
    if (mig_is_on(call.card))
        return call_end(NOT_SUPPORTED);
    out->memory = (unsigned)json_number(call.card, "memory_utilization_pct", 0);
    return call_end(copy_number(call.card, "utilization_pct", &out->gpu, 1));
}

API int nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
    BEGIN("nvmlDeviceGetTemperature", device)
    NOT_FOR_INSTANCES
    return call_end(sensor == 0 ? copy_number(call.card, "temperature_c", out, 1) : INVALID_ARGUMENT);
}

API int nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *out)
{
    unsigned celsius = 0;
    BEGIN("nvmlDeviceGetTemperature", device)
    NOT_FOR_INSTANCES
    int result = copy_number(call.card, "temperature_c", &celsius, 1);
    out->celsius = (int)celsius;
    return call_end(result);
}

API int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetPowerUsage", device)
    NOT_FOR_INSTANCES
    return call_end(copy_number(call.card, "power_w", out, 1000));
}

API int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *out)
{
    BEGIN("nvmlDeviceGetEnforcedPowerLimit", device)
    NOT_FOR_INSTANCES
    return call_end(copy_number(call.card, "power_limit_w", out, 1000));
}

API int nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *out)
{
    return nvmlDeviceGetEnforcedPowerLimit(device, out);
}

API int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter, unsigned long long *out)
{
    unsigned count = 0;
    (void)counter;
    BEGIN("nvmlDeviceGetTotalEccErrors", device)
    NOT_FOR_INSTANCES
    int result = copy_number(call.card, "ecc_uncorrected", &count, 1);
    *out = kind == 1 ? count : 0; /* 1: uncorrected */
    return call_end(result);
}

API int nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                  unsigned *pending, unsigned *failure)
{
    BEGIN("nvmlDeviceGetRemappedRows", device)
    NOT_FOR_INSTANCES
    const struct json *rows = json_get(call.card, "remapped_rows");
    *pending = (unsigned)json_true(rows, "pending", 0);
    *failure = (unsigned)json_true(rows, "failure", 0);
    int result = copy_number(rows, "correctable", correctable, 1);
    return call_end(result == OK ? copy_number(rows, "uncorrectable", uncorrectable, 1) : result);
}

/* Processes: the caller asks for the count first, then comes with room for them. */
static int processes(const char *name, nvmlDevice_t device, const char *type, unsigned *count, struct process *out)
{
    unsigned room = *count;
    BEGIN(name, device)
    const struct json *list = json_get(call.card, "processes");
    *count = 0;
    for (const struct json *one = list ? list->child : NULL; one; one = one->next) {
        int gi = (int)json_number(one, "gi_id", -1), ci = (int)json_number(one, "ci_id", -1);
        if (strcmp(json_text(one, "type", "C"), type) != 0 ||
            (call.instance && gi != (int)json_number(call.instance, "gi_id", -1)))
            continue;
        if (out && *count < room)
            out[*count] = (struct process){
                (unsigned)json_number(one, "pid", 0),
                json_is_null(one, "memory_mib") ? ~0ULL : (unsigned long long)json_number(one, "memory_mib", 0) * MIB,
                (unsigned)gi, (unsigned)ci};
        ++*count;
    }
    return call_end(*count > room || (*count && !out) ? INSUFFICIENT_SIZE : OK);
}

API int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, struct process *out)
{
    return processes("nvmlDeviceGetComputeRunningProcesses", device, "C", count, out);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, struct process *out)
{
    return processes("nvmlDeviceGetGraphicsRunningProcesses", device, "G", count, out);
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, struct process *out)
{
    return processes("nvmlDeviceGetMPSComputeRunningProcesses", device, "M", count, out);
}
