/*
 * A mock of NVIDIA's libnvidia-ml.so.1, at the outermost edge: it stands in for the driver, and everything of ours and of
 * pynvml above it is real. It implements the calls that pynvml makes for the sampler, with NVML's own signatures.
 *
 * What it answers stands in the text file that FAKE_NVML_CONTROL names, read again at each call, so that a test may change
 * it between two samples. One "key value" a line; a value "!15" makes that call fail with NVML's error code 15:
 *
 *   init !9                 nvmlInitWithFlags fails
 *   epoch 2                 another number than at init: the driver was restarted, every call is "uninitialized" until
 *                           NVML is opened again
 *   driver 550.54.15        count 2
 *   0.name NVIDIA H200      0.uuid GPU-0000      0.handle !15
 *   0.total 150754820096    0.used 1048576       0.reserved 600     bytes
 *   0.gpu 57                per cent             0.power 350123     milliwatts        0.temperature 41   Celsius
 *   0.events 1              the GPU takes registrations for events
 *   0.xids 2    0.xid 79    critical events so far, and the code of those that nobody was told yet
 *   0.wait !15              waiting for events fails
 *   0.processes 71:1024,9:-  processes that hold memory of the GPU: pid and bytes, "-" where it does not say how much
 *
 * A key that is missing gives "not supported". Each nvmlInit and nvmlShutdown, and each event set made and freed, is a
 * line in the file FAKE_NVML_LOG, if set.
 * Built with -DOLD_DRIVER it lacks the symbols that drivers before 570 lack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    MISMATCH = 25
};

typedef int nvmlReturn_t;
typedef struct device *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned int version; int sensor; int temperature; } nvmlTemperature_t;
typedef struct { nvmlDevice_t device; unsigned long long seen; } *nvmlEventSet_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

static int initialized;
static char epoch_at_init[64];

static nvmlReturn_t look_up(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    size_t length = strlen(key);
    nvmlReturn_t result = NOT_SUPPORTED;
    if (!file) return NOT_SUPPORTED;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) || line[length] != ' ') continue;
        if (line[length + 1] == '!') {
            result = atoi(line + length + 2);
        } else if (strlen(line + length + 1) >= size) {
            result = INSUFFICIENT_SIZE;
        } else {
            strcpy(value, line + length + 1);
            result = SUCCESS;
        }
        break;
    }
    fclose(file);
    return result;
}

static nvmlReturn_t session(void) {
    char epoch[64] = "";
    look_up("epoch", epoch, sizeof epoch);
    return initialized > 0 && !strcmp(epoch, epoch_at_init) ? SUCCESS : UNINITIALIZED;
}

static nvmlReturn_t ask(const char *key, char *value, size_t size) {
    nvmlReturn_t result = session();
    return result ? result : look_up(key, value, size);
}

/* A device handle is its index plus one, so that no valid handle is NULL. */
static nvmlReturn_t ask_device(nvmlDevice_t device, const char *what, char *value, size_t size) {
    char key[64];
    snprintf(key, sizeof key, "%d.%s", (int)(size_t)device - 1, what);
    return ask(key, value, size);
}

static nvmlReturn_t ask_number(nvmlDevice_t device, const char *what, unsigned long long *number) {
    char value[64];
    nvmlReturn_t result = ask_device(device, what, value, sizeof value);
    if (!result) *number = strtoull(value, NULL, 10);
    return result;
}

static void note(const char *line) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", line);
        fclose(file);
    }
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    char value[64];
    nvmlReturn_t result = look_up("init", value, sizeof value);
    (void)flags;
    note("init");
    if (result != SUCCESS && result != NOT_SUPPORTED) return result;
    epoch_at_init[0] = 0;
    look_up("epoch", epoch_at_init, sizeof epoch_at_init);
    initialized = 1;
    return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = session();
    note("shutdown");
    initialized = 0;
    return result;
}

const char *nvmlErrorString(nvmlReturn_t code) { return code == 4242 ? "Words of the driver" : "Some Error"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) { return ask("driver", version, length); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    char value[64];
    nvmlReturn_t result = ask("count", value, sizeof value);
    if (!result) *count = (unsigned int)atoi(value);
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    char value[64];
    nvmlReturn_t result;
    *device = (nvmlDevice_t)(size_t)(index + 1);
    result = ask_device(*device, "handle", value, sizeof value);
    return result == NOT_SUPPORTED ? SUCCESS : result; /* no line: the handle is given out */
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    return ask_device(device, "uuid", uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    return ask_device(device, "name", name, length);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    unsigned long long reserved = 0;
    nvmlReturn_t result = ask_number(device, "total", &memory->total);
    if (!result) result = ask_number(device, "used", &memory->used);
    if (result) return result;
    ask_number(device, "reserved", &reserved);
    memory->used += reserved; /* version 1 counts what the driver keeps for itself as used */
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    unsigned long long per_cent = 0;
    nvmlReturn_t result = ask_number(device, "gpu", &per_cent);
    utilization->gpu = (unsigned int)per_cent;
    utilization->memory = 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    char value[256], *place = value;
    unsigned int room = *count;
    nvmlReturn_t result = ask_device(device, "processes", value, sizeof value);
    if (result) return result;
    for (*count = 0; *place >= '0' && *place <= '9'; ++*count) {
        nvmlProcessInfo_t info = {0, ~0ULL, ~0U, ~0U};
        info.pid = (unsigned int)strtoul(place, &place, 10);
        if (place[1] != '-') info.usedGpuMemory = strtoull(place + 1, &place, 10);
        else place += 2;
        if (*place == ',') place++;
        if (*count < room) infos[*count] = info;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    unsigned long long value = 0;
    nvmlReturn_t result = ask_number(device, "power", &value);
    *milliwatts = (unsigned int)value;
    return result;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius) {
    unsigned long long value = 0;
    nvmlReturn_t result = sensor ? INVALID_ARGUMENT : ask_number(device, "temperature", &value);
    *celsius = (unsigned int)value;
    return result;
}

#ifndef OLD_DRIVER
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t result = session();
    if (!result && !(*set = calloc(1, sizeof **set))) result = INSUFFICIENT_SIZE;
    if (!result) note("events");
    return result;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    free(set);
    note("freed");
    return SUCCESS;
}

/* What has happened before the registration is told to nobody. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    unsigned long long yes = 0;
    nvmlReturn_t result = types == 8 ? ask_number(device, "events", &yes) : INVALID_ARGUMENT;
    set->device = device;
    if (!result) ask_number(device, "xids", &set->seen);
    return result;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds) {
    unsigned long long xids = 0;
    nvmlReturn_t result = ask_device(set->device, "wait", (char[64]){0}, 64);
    if (milliseconds) return INVALID_ARGUMENT; /* a sample must not be kept waiting */
    if (result != NOT_SUPPORTED) return result;
    ask_number(set->device, "xids", &xids);
    if (set->seen >= xids) return TIMEOUT;
    set->seen++;
    data->device = set->device;
    data->eventType = 8;
    return ask_number(set->device, "xid", &data->eventData);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result;
    if (memory->version != (sizeof *memory | 2u << 24)) return MISMATCH;
    memory->reserved = 0;
    result = ask_number(device, "total", &memory->total);
    if (!result) result = ask_number(device, "used", &memory->used);
    if (result) return result;
    ask_number(device, "reserved", &memory->reserved);
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    unsigned long long value = 0;
    nvmlReturn_t result;
    if (temperature->version != (sizeof *temperature | 1u << 24)) return MISMATCH;
    result = temperature->sensor ? INVALID_ARGUMENT : ask_number(device, "temperature", &value);
    temperature->temperature = (int)value;
    return result;
}
#endif
