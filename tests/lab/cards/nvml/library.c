/* Calls about the library and the driver. A call that is in none of these files is "function not found" to
 * nvidia-ml-py, as with an older driver. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int copy_text(const char *text, char *out, unsigned size)
{
    if (!text)
        return NOT_SUPPORTED;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

int copy_number(const struct json *object, const char *key, unsigned *out, double factor)
{
    const struct json *value = json_get(object, key);
    if (!value || value->kind != JSON_NUMBER)
        return NOT_SUPPORTED;
    *out = (unsigned)(value->number * factor + 0.5);
    return OK;
}

const struct json *element(const struct json *array, unsigned index)
{
    const struct json *one = array && array->kind == JSON_ARRAY ? array->child : NULL;
    while (one && index--)
        one = one->next;
    return one;
}

int mig_is_on(const struct json *card)
{
    return strcmp(json_text(card, "mig_mode", ""), "Enabled") == 0;
}

void fill_pci(const char *bus_id, struct pci_info *out)
{
    memset(out, 0, sizeof *out);
    sscanf(bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xFFFF, out->bus & 0xFF,
             out->device & 0xFF);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xFF, out->device & 0xFF);
    out->id = 0x233010DE; /* an H100; nothing here looks at it */
}

API int nvmlInitWithFlags(unsigned flags) { (void)flags; return library_init(); }
API int nvmlInit_v2(void) { return library_init(); }
API int nvmlInit(void) { return library_init(); }
API int nvmlShutdown(void) { return library_shutdown(); }

API const char *nvmlErrorString(int code)
{
    static const struct { int code; const char *text; } texts[] = {
        {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
        {4, "Insufficient Permissions"}, {6, "Not Found"}, {7, "Insufficient Size"},
        {8, "Insufficient External Power"}, {9, "Driver Not Loaded"}, {10, "Timeout"}, {11, "Interrupt Request Issue"},
        {12, "NVML Shared Library Not Found"}, {13, "Function Not Found"}, {14, "Corrupted infoROM"},
        {15, "GPU is lost"}, {16, "GPU requires reset"}, {17, "GPU access blocked by the operating system"},
        {18, "Driver/library version mismatch"}, {19, "In use by another client"}, {20, "Insufficient Memory"},
        {21, "No data"}, {23, "Insufficient Resources"}, {27, "Not Ready"}, {28, "GPU Not Found"},
    };
    for (unsigned at = 0; at < sizeof texts / sizeof *texts; at++)
        if (texts[at].code == code)
            return texts[at].text;
    return "Unknown Error";
}

API int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    BEGIN_LIBRARY("nvmlSystemGetDriverVersion")
    return call_end(copy_text(json_text(call.state, "driver_version", NULL), out, size));
}

API int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    char text[96];
    BEGIN_LIBRARY("nvmlSystemGetNVMLVersion")
    snprintf(text, sizeof text, "12.%s", json_text(call.state, "driver_version", "0"));
    return call_end(copy_text(text, out, size));
}

static int cuda_version(int *out)
{
    int major = 0, minor = 0;
    BEGIN_LIBRARY("nvmlSystemGetCudaDriverVersion")
    sscanf(json_text(call.state, "cuda_version", "0"), "%d.%d", &major, &minor);
    *out = major * 1000 + minor * 10;
    return call_end(OK);
}

API int nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version(out); }
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version(out); }

API int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    BEGIN_LIBRARY("nvmlSystemGetProcessName")
    for (const struct json *card = first_card(call.state); card; card = next_card(card)) {
        const struct json *list = json_get(card, "processes");
        for (const struct json *one = list ? list->child : NULL; one; one = one->next)
            if ((unsigned)json_number(one, "pid", 0) == pid)
                return call_end(copy_text(json_text(one, "name", ""), out, size));
    }
    return call_end(NOT_FOUND);
}
