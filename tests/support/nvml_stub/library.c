/* A stand-in for libnvidia-ml.so.1: beginning, end, and which cards there are. */
#include "inside.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

nvml_return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (stub_attach(getenv("WATTLOOP_NVML_STUB_STATE")) != 0) return DRIVER_NOT_LOADED;
    if (shared->init_error != 0) return (nvml_return)shared->init_error;
    init_count++;
    return OK;
}

nvml_return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvml_return nvmlInit(void) { return nvmlInitWithFlags(0); }

nvml_return nvmlShutdown(void) {
    if (init_count <= 0) return UNINITIALIZED;
    if (shared->shutdown_delay_s > 0) usleep((useconds_t)(shared->shutdown_delay_s * 1e6));
    init_count--;
    return OK;
}

const char *nvmlErrorString(nvml_return code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
    }
}

static nvml_return text(char *out, unsigned length, const char *value) {
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

nvml_return nvmlSystemGetDriverVersion(char *out, unsigned length) {
    return init_count > 0 ? text(out, length, shared->driver_version) : UNINITIALIZED;
}

nvml_return nvmlSystemGetNVMLVersion(char *out, unsigned length) {
    return text(out, length, "12.stub");
}

nvml_return nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return OK;
}

nvml_return nvmlDeviceGetCount_v2(unsigned *count) {
    if (init_count <= 0) return UNINITIALIZED;
    *count = (unsigned)shared->gpu_count;
    return OK;
}

nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device) {
    if (init_count <= 0) return UNINITIALIZED;
    if (index >= (unsigned)shared->gpu_count) return INVALID_ARGUMENT;
    if (shared->gpus[index].handle_error != 0) return (nvml_return)shared->gpus[index].handle_error;
    *device = &shared->gpus[index];
    return fault(*device, 0);
}

nvml_return nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device) {
    unsigned i;
    if (init_count <= 0) return UNINITIALIZED;
    for (i = 0; i < (unsigned)shared->gpu_count; i++) {
        struct gpu *g = &shared->gpus[i];
        /* the one MIG instance of card GPU-x is MIG-x, and its handle the card's own */
        int mig = g->mig_mode == 1 && strncmp(uuid, "MIG-", 4) == 0;
        if (strcmp(uuid, g->uuid) == 0 || (mig && strcmp(uuid + 4, g->uuid + 4) == 0))
            return nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return NOT_FOUND;
}

nvml_return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_device g, nvml_device *card) {
    CHECK(g, 0);
    if (g->mig_mode != 1) return NOT_SUPPORTED;
    *card = g;
    return OK;
}

/* On some boards the device files are not in the order of the bus: there the last is nvidia0. */
nvml_return nvmlDeviceGetMinorNumber(nvml_device g, unsigned *minor) {
    CHECK(g, 0);
    *minor = (unsigned)(g - shared->gpus);
    if (getenv("WATTLOOP_NVML_STUB_REVERSED")) *minor = (unsigned)shared->gpu_count - 1 - *minor;
    return OK;
}

nvml_return nvmlDeviceGetName(nvml_device g, char *out, unsigned length) {
    CHECK(g, 0);
    return text(out, length, g->name);
}

nvml_return nvmlDeviceGetUUID(nvml_device g, char *out, unsigned length) {
    CHECK(g, 0);
    return text(out, length, g->uuid);
}

nvml_return nvmlDeviceGetIndex(nvml_device g, unsigned *index) {
    CHECK(g, 0);
    *index = (unsigned)(g - shared->gpus);
    return OK;
}

nvml_return nvmlDeviceGetCudaComputeCapability(nvml_device g, int *major, int *minor) {
    CHECK(g, 0);
    *major = (int)g->compute_major;
    *minor = (int)g->compute_minor;
    return OK;
}

nvml_return nvmlDeviceGetArchitecture(nvml_device g, unsigned *architecture) {
    CHECK(g, 0);
    *architecture = (unsigned)g->architecture;
    return OK;
}

nvml_return nvmlDeviceGetMigMode(nvml_device g, unsigned *current, unsigned *pending) {
    CHECK(g, 0);
    if (g->mig_mode < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)g->mig_mode;
    return OK;
}

nvml_return nvmlDeviceGetVirtualizationMode(nvml_device g, unsigned *mode) {
    CHECK(g, 0);
    *mode = (unsigned)g->virtualization_mode;
    return OK;
}

struct processes {
    unsigned pid;
    unsigned long long memory_b;
    unsigned gpu_instance, compute_instance;
};

struct process_sample {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
};

/* Handles of MIG instances: copies of their card with a UUID of their own and one process. NVML
 * samples no utilisation there, and gives power and energy for the card alone. */
struct gpu instances[STUB_MAX_GPUS][STUB_INSTANCES];

nvml_return nvmlDeviceGetMaxMigDeviceCount(nvml_device g, unsigned *count) {
    CHECK(g, 0);
    *count = g->mig_mode == 1 ? STUB_INSTANCES : 0;
    return OK;
}

nvml_return nvmlDeviceGetMigDeviceHandleByIndex(nvml_device g, unsigned index, nvml_device *out) {
    struct gpu *instance;
    CHECK(g, 0);
    if (g->mig_mode != 1) return NOT_SUPPORTED;
    if (index >= STUB_INSTANCES) return INVALID_ARGUMENT;
    if (g->mig_slices[index] <= 0) return NOT_FOUND;
    instance = &instances[g - shared->gpus][index];
    *instance = *g;
    instance->mig_slices[0] = g->mig_slices[index];
    snprintf(instance->uuid, sizeof instance->uuid, "MIG-%u%.80s", index, g->uuid + 5);
    memset(instance->process_pids, 0, sizeof instance->process_pids);
    instance->process_pids[0] = g->mig_pids[index];
    *out = instance;
    return OK;
}

/* GPM: a sample is a handle that remembers its instance; the library works with two of them. As the
 * real one, it has no activity for two samples of different instances. */
struct gpm_sample {
    double sm;
    unsigned instance;
};

struct gpm_metric {
    unsigned id;
    nvml_return result;
    double value;
    const char *short_name, *long_name, *unit;
};

struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[1];
};

nvml_return nvmlDeviceGetGpuInstanceId(nvml_device g, unsigned *number) {
    CHECK(g, 0);
    *number = (unsigned)(g - &instances[0][0]) % STUB_INSTANCES;
    return OK;
}

nvml_return nvmlGpmQueryDeviceSupport(nvml_device g, unsigned *support) {
    CHECK(g, 0);
    if (support[0] != 1) return INVALID_ARGUMENT; /* its version */
    support[1] = g->mig_sm[0] >= 0;
    return OK;
}

nvml_return nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    *sample = calloc(1, sizeof **sample);
    return OK;
}

nvml_return nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return OK;
}

nvml_return nvmlGpmMigSampleGet(nvml_device g, unsigned instance, struct gpm_sample *sample) {
    CHECK(g, 0);
    if (instance >= STUB_INSTANCES || g->mig_slices[instance] <= 0) return NOT_FOUND;
    *sample = (struct gpm_sample){g->mig_sm[instance], instance};
    return OK;
}

nvml_return nvmlGpmMetricsGet(struct gpm_metrics *asked) {
    struct gpm_metric *metric = &asked->metrics[0];
    if (asked->version != 1 || asked->count != 1) return INVALID_ARGUMENT;
    metric->result = asked->first->instance == asked->second->instance && metric->id == 2
                         ? OK : INVALID_ARGUMENT;
    metric->value = asked->second->sm;
    return OK;
}

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, slices, compute_slices;
    unsigned long long memory_mb;
};

nvml_return nvmlDeviceGetAttributes_v2(nvml_device g, struct attributes *found) {
    CHECK(g, 0);
    memset(found, 0, sizeof *found);
    found->slices = found->compute_slices = (unsigned)g->mig_slices[0];
    return OK;
}

static nvml_return no_processes(nvml_device g, unsigned *count) {
    CHECK(g, 0);
    *count = 0;
    return OK;
}

nvml_return nvmlDeviceGetComputeRunningProcesses_v3(nvml_device g, unsigned *n, struct processes *p) {
    unsigned i, found = 0, room = p ? *n : 0;
    CHECK(g, 0);
    for (i = 0; i < STUB_PROCESSES; i++) {
        if (g->process_pids[i] <= 0) continue;
        if (found < room) p[found] = (struct processes){(unsigned)g->process_pids[i], 1 << 20, 0, 0};
        found++;
    }
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

nvml_return nvmlDeviceGetProcessUtilization(nvml_device g, struct process_sample *p, unsigned *n,
                                            unsigned long long last_seen_us) {
    unsigned i, found = 0, room = p ? *n : 0;
    CHECK(g, CALL_UTILISATION);
    if (g->mig_mode == 1) return NOT_SUPPORTED;
    for (i = 0; i < STUB_PROCESSES; i++) {
        unsigned sm = (unsigned)g->process_sm[i];
        if (g->process_pids[i] <= 0 || sm == 0) continue;
        if (found < room)
            p[found] = (struct process_sample){(unsigned)g->process_pids[i], last_seen_us + 1, sm, 0, 0, 0};
        found++;
    }
    *n = found;
    if (found == 0) return NOT_FOUND;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

nvml_return nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device g, unsigned *n, struct processes *p) {
    (void)p;
    return no_processes(g, n);
}
