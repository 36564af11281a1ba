/* A stand-in for libnvidia-ml.so.1 with power that reacts to load, power limit and clocks.
 *
 * Power is a piecewise analytic function of CLOCK_MONOTONIC, so the true energy between any two
 * instants is known exactly. The sensors look at it the way a data-centre card's do: values change
 * once per sensor period, the instantaneous reading averages a short window, the plain power
 * reading averages one second. All state lives in a file (WATTLOOP_NVML_STUB_STATE) that processes
 * share; see nvml_stub.h. Functions that begin with `stub_` are for the controller.
 */
#include "nvml_stub.h"

#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int nvml_return;
typedef struct gpu *nvml_device;

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    VERSION_MISMATCH = 18,
    UNKNOWN = 999
};

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEM = 2 };
enum { FIELD_TOTAL_ENERGY = 83, FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186 };

static struct state *shared;
static char shared_path[4096];
static int init_count;

/* ---- time and noise -------------------------------------------------------------------- */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static double uniform(uint64_t key) { return (double)(mix(key) >> 11) * 0x1p-53; }

static double normal(uint64_t key) {
    double u = uniform(2 * key + 1), v = uniform(2 * key + 2);
    return sqrt(-2.0 * log(u > 0 ? u : 1e-300)) * cos(6.283185307179586 * v);
}

/* ---- physics --------------------------------------------------------------------------- */

/* Part of the dynamic power that is left at the segment's memory clock. */
static double memory_factor(const struct gpu *g, const struct segment *s) {
    return 1 - g->memory_share * (1 - s->memory_clock_mhz / g->memory_clock_mhz);
}

/* Dynamic power falls as (f / f_max)^n below the highest clock, n = 3 where V follows f. */
static double at_clock_w(const struct gpu *g, const struct segment *s, double demand_w, double mhz) {
    double dynamic_w = (demand_w - g->idle_w) * memory_factor(g, s);
    if (dynamic_w <= 0) return demand_w;
    return g->idle_w + dynamic_w * pow(mhz / g->max_clock_mhz, g->clock_exponent);
}

static double clocked_w(const struct gpu *g, const struct segment *s, double demand_w) {
    return at_clock_w(g, s, demand_w, s->clock_mhz);
}

/* Caps are not hard limits: cards overshoot, and cannot run slower than their lowest clock. */
static double ceiling_w(const struct gpu *g, const struct segment *s) {
    double floor_w = at_clock_w(g, s, s->high_w, g->min_clock_mhz);
    return fmax(s->limit_w * (1 + g->cap_overshoot), floor_w);
}

static double level_w(const struct gpu *g, const struct segment *s, double demand_w) {
    return fmin(clocked_w(g, s, demand_w), ceiling_w(g, s));
}

/* Start of the spike within period k: anywhere, but never across the period's end. */
static double spike_at(const struct gpu *g, const struct segment *s, double k) {
    return uniform((uint64_t)g->seed * 7919 + (uint64_t)k) * (1 - s->duty) * s->period_s;
}

static int is_high(const struct gpu *g, const struct segment *s, double x) {
    double k, within;
    switch ((int)s->kind) {
    case WAVE_STEP: return x >= s->period_s;
    case WAVE_SQUARE:
    case WAVE_SPIKES:
        k = floor(x / s->period_s);
        within = x - k * s->period_s;
        if ((int)s->kind == WAVE_SPIKES) within -= spike_at(g, s, k);
        return within >= 0 && within < s->duty * s->period_s;
    default: return 1;
    }
}

static double demand_w(const struct gpu *g, const struct segment *s, double t) {
    double x = fmax(0, t - s->origin_s);
    if ((int)s->kind == WAVE_RAMP && x < s->period_s)
        return s->low_w + (s->high_w - s->low_w) * x / s->period_s;
    return is_high(g, s, x) ? s->high_w : s->low_w;
}

/* Integral over [0, x] of min(a + (b - a) u / T, limit). */
static double ramp_j(double a, double b, double T, double limit, double x) {
    double y = fmin(x, T), end_w = a + (b - a) * y / T, rest_j = (x - y) * fmin(b, limit);
    double cross;
    if (a <= limit && end_w <= limit) return rest_j + 0.5 * (a + end_w) * y;
    if (a >= limit && end_w >= limit) return rest_j + limit * y;
    cross = (limit - a) / (b - a) * T;
    if (a < limit) return rest_j + 0.5 * (a + limit) * cross + limit * (y - cross);
    return rest_j + limit * cross + 0.5 * (limit + end_w) * (y - cross);
}

/* Energy of the waveform from its origin to x seconds later. */
static double wave_j(const struct gpu *g, const struct segment *s, double x) {
    double low = level_w(g, s, s->low_w), high = level_w(g, s, s->high_w);
    double T = s->period_s, k, within, high_s;
    if (x <= 0) return 0;
    switch ((int)s->kind) {
    case WAVE_STEP: return low * fmin(x, T) + high * fmax(0, x - T);
    case WAVE_RAMP:
        return ramp_j(clocked_w(g, s, s->low_w), clocked_w(g, s, s->high_w), T, ceiling_w(g, s), x);
    case WAVE_SQUARE:
    case WAVE_SPIKES:
        k = floor(x / T);
        within = x - k * T;
        high_s = within - ((int)s->kind == WAVE_SPIKES ? spike_at(g, s, k) : 0);
        high_s = fmin(fmax(high_s, 0), s->duty * T) + k * s->duty * T;
        return high * high_s + low * (x - high_s);
    default: return high * x;
    }
}

static const struct segment *segment_at(const struct gpu *g, double t) {
    uint64_t count = __atomic_load_n(&g->segment_count, __ATOMIC_ACQUIRE);
    uint64_t oldest = count > STUB_SEGMENTS ? count - STUB_SEGMENTS : 0, i;
    for (i = count - 1; i > oldest; i--)
        if (g->segments[i % STUB_SEGMENTS].start_s <= t) break;
    return &g->segments[i % STUB_SEGMENTS];
}

static double energy_at(const struct gpu *g, double t) {
    const struct segment *s = segment_at(g, t);
    if (t < s->start_s) return s->energy_j - g->idle_w * (s->start_s - t);
    return s->energy_j + wave_j(g, s, t - s->origin_s) - wave_j(g, s, s->start_s - s->origin_s);
}

static double power_at(const struct gpu *g, double t) {
    const struct segment *s = segment_at(g, t);
    return t < s->start_s ? g->idle_w : level_w(g, s, demand_w(g, s, t));
}

/* ---- sensors --------------------------------------------------------------------------- */

static double tick_s(const struct gpu *g) {
    return floor(now_s() / g->sensor_period_s) * g->sensor_period_s;
}

static double sensed_w(const struct gpu *g, double window_s) {
    double t = tick_s(g), power_w = power_at(g, t);
    if (window_s > 0) power_w = (energy_at(g, t) - energy_at(g, t - window_s)) / window_s;
    if (g->noise_w > 0)
        power_w += g->noise_w * normal((uint64_t)g->seed + (uint64_t)llround(t * 1e4));
    return fmax(0, power_w);
}

static double counted_j(const struct gpu *g) {
    double t = tick_s(g), energy_j = energy_at(g, t);
    if (g->counter_reset_at_s > 0 && t >= g->counter_reset_at_s)
        energy_j -= energy_at(g, g->counter_reset_at_s);
    return energy_j * g->counter_gain;
}

/* The clock at which the card settles: highest allowed, or lower where the limit bites. */
static double settled_mhz(const struct gpu *g, double t) {
    const struct segment *s = segment_at(g, t);
    double wanted_w = demand_w(g, s, t), dynamic_w, ratio;
    if (wanted_w <= g->idle_w * 1.001) return fmax(g->min_clock_mhz, 0.17 * g->max_clock_mhz);
    if (clocked_w(g, s, wanted_w) <= ceiling_w(g, s)) return s->clock_mhz;
    dynamic_w = (wanted_w - g->idle_w) * memory_factor(g, s);
    ratio = fmax((ceiling_w(g, s) - g->idle_w) / dynamic_w, 1e-6);
    return fmax(g->min_clock_mhz, g->max_clock_mhz * pow(ratio, 1 / g->clock_exponent));
}

/* Work per second relative to a card without limits: arithmetic follows the SM clock, the memory's
 * share of it the memory clock. */
static double speed_at(const struct gpu *g, double t) {
    const struct segment *s = segment_at(g, t);
    double compute = settled_mhz(g, t) / g->max_clock_mhz;
    double memory = s->memory_clock_mhz / g->memory_clock_mhz;
    if (demand_w(g, s, t) <= g->idle_w) return 0;
    return 1 / ((1 - g->memory_share) / compute + g->memory_share / memory);
}

static double utilisation(const struct gpu *g) {
    double t = tick_s(g);
    const struct segment *s = segment_at(g, t);
    double span_w = s->high_w - g->idle_w;
    if (span_w <= 0) return (int)s->kind == WAVE_CONSTANT ? s->utilisation : 0;
    return fmin(1, fmax(0, s->utilisation * (demand_w(g, s, t) - g->idle_w) / span_w));
}

/* ---- faults ---------------------------------------------------------------------------- */

static nvml_return fault(struct gpu *g, unsigned call) {
    double t = now_s();
    if (init_count <= 0 || shared == NULL) return UNINITIALIZED;
    if (g < shared->gpus || g >= shared->gpus + (int)shared->gpu_count) return INVALID_ARGUMENT;
    if (g->lost_at_s > 0 && t >= g->lost_at_s) return GPU_IS_LOST;
    if (g->reset_required_at_s > 0 && t >= g->reset_required_at_s) return RESET_REQUIRED;
    if (g->forbidden_at_s > 0 && t >= g->forbidden_at_s) return NO_PERMISSION;
    if ((unsigned)g->unsupported_calls & call) return NOT_SUPPORTED;
    if ((unsigned)g->forbidden_calls & call) return NO_PERMISSION;
    if (call && g->error_probability > 0) {
        uint64_t n = __atomic_add_fetch(&g->draws, 1, __ATOMIC_RELAXED);
        if (uniform((uint64_t)g->seed * 31 + n) < g->error_probability) return UNKNOWN;
    }
    return OK;
}

#define CHECK(device, call)                        \
    do {                                           \
        nvml_return ret_ = fault((device), (call)); \
        if (ret_ != OK) return ret_;               \
    } while (0)

/* ---- for the controller ---------------------------------------------------------------- */

int stub_attach(const char *path) {
    int fd;
    struct stat info;
    void *map;
    if (path == NULL || strlen(path) >= sizeof shared_path) return -1;
    if (shared != NULL && strcmp(path, shared_path) == 0) return 0;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &info) != 0 || info.st_size < (off_t)sizeof(struct state)) {
        close(fd);
        return -2;
    }
    map = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return -3;
    if (((struct state *)map)->magic != STUB_MAGIC) {
        munmap(map, sizeof(struct state));
        return -4;
    }
    /* The previous map is kept: another thread may still be reading through a handle into it. */
    shared = map;
    strcpy(shared_path, path);
    return 0;
}

size_t stub_state_size(void) { return sizeof(struct state); }
double stub_energy_j(unsigned gpu, double t) { return energy_at(&shared->gpus[gpu], t); }
double stub_power_w(unsigned gpu, double t) { return power_at(&shared->gpus[gpu], t); }
double stub_speed(unsigned gpu, double t) { return speed_at(&shared->gpus[gpu], t); }

/* Append a segment that `edit` derives from the current one. The lock is the kernel's, so a
 * process killed here releases it; each change opens the file anew, so threads exclude each other
 * too. */
static nvml_return change(struct gpu *g, void (*edit)(struct segment *, const double *),
                          const double *values) {
    int fd = open(shared_path, O_RDWR | O_CLOEXEC);
    struct segment next;
    if (fd < 0) return UNKNOWN;
    flock(fd, LOCK_EX);
    next = g->segments[(g->segment_count - 1) % STUB_SEGMENTS];
    next.start_s = now_s();
    next.energy_j = energy_at(g, next.start_s);
    edit(&next, values);
    g->segments[g->segment_count % STUB_SEGMENTS] = next;
    __atomic_store_n(&g->segment_count, g->segment_count + 1, __ATOMIC_RELEASE);
    close(fd);
    return OK;
}

static void edit_wave(struct segment *s, const double *v) {
    s->origin_s = s->start_s;
    s->kind = v[0];
    s->low_w = v[1];
    s->high_w = v[2];
    s->period_s = v[3];
    s->duty = v[4];
    s->utilisation = v[5];
}

static void edit_limit(struct segment *s, const double *v) { s->limit_w = v[0]; }

static void edit_clock(struct segment *s, const double *v) {
    s->clock_mhz = v[0];
    s->clock_low_mhz = v[1];
    s->clock_locked = v[2];
}

static void edit_memory_clock(struct segment *s, const double *v) {
    s->memory_clock_mhz = v[0];
    s->memory_clock_low_mhz = v[1];
    s->memory_clock_locked = v[2];
}

int stub_set_wave(unsigned gpu, const double *values) {
    return change(&shared->gpus[gpu], edit_wave, values);
}

/* ---- library --------------------------------------------------------------------------- */

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
    for (i = 0; i < (unsigned)shared->gpu_count; i++)
        if (strcmp(uuid, shared->gpus[i].uuid) == 0) return nvmlDeviceGetHandleByIndex_v2(i, device);
    return NOT_FOUND;
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

struct processes;

static nvml_return no_processes(nvml_device g, unsigned *count) {
    CHECK(g, 0);
    *count = 0;
    return OK;
}

nvml_return nvmlDeviceGetComputeRunningProcesses_v3(nvml_device g, unsigned *n, struct processes *p) {
    (void)p;
    return no_processes(g, n);
}

nvml_return nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device g, unsigned *n, struct processes *p) {
    (void)p;
    return no_processes(g, n);
}

/* ---- energy and power ------------------------------------------------------------------ */

static unsigned milliwatts(double power_w) { return (unsigned)llround(power_w * 1e3); }

nvml_return nvmlDeviceGetTotalEnergyConsumption(nvml_device g, unsigned long long *millijoules) {
    CHECK(g, CALL_ENERGY);
    double until_s = now_s() + g->energy_read_cost_s;
    *millijoules = (unsigned long long)floor(counted_j(g) * 1e3);
    while (now_s() < until_s) /* the real call keeps the CPU busy */
        ;
    return OK;
}

nvml_return nvmlDeviceGetPowerUsage(nvml_device g, unsigned *out) {
    CHECK(g, CALL_POWER);
    *out = milliwatts(sensed_w(g, g->averaging_s));
    return OK;
}

struct field {
    uint32_t id, scope;
    int64_t timestamp_us, latency_us;
    int32_t value_type, result;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

enum { VALUE_UINT = 1, VALUE_ULONGLONG = 3 };

static nvml_return field(nvml_device g, struct field *f) {
    unsigned long long millijoules;
    f->value_type = VALUE_UINT;
    switch (f->id) {
    case FIELD_POWER_INSTANT:
        CHECK(g, CALL_INSTANT);
        f->value.u = milliwatts(sensed_w(g, g->sensor_window_s));
        return OK;
    case FIELD_POWER_AVERAGE:
        CHECK(g, CALL_INSTANT);
        f->value.u = milliwatts(sensed_w(g, 1.0));
        return OK;
    case FIELD_TOTAL_ENERGY:
        CHECK(g, 0);
        f->value_type = VALUE_ULONGLONG;
        f->result = nvmlDeviceGetTotalEnergyConsumption(g, &millijoules);
        f->value.ull = millijoules;
        return f->result;
    default: return NOT_SUPPORTED;
    }
}

nvml_return nvmlDeviceGetFieldValues(nvml_device g, int count, struct field *fields) {
    int i;
    CHECK(g, 0);
    for (i = 0; i < count; i++) {
        fields[i].timestamp_us = (int64_t)(now_s() * 1e6);
        fields[i].result = field(g, &fields[i]);
    }
    return OK;
}

/* ---- signals --------------------------------------------------------------------------- */

struct utilisation {
    unsigned gpu, memory;
};

nvml_return nvmlDeviceGetUtilizationRates(nvml_device g, struct utilisation *out) {
    CHECK(g, CALL_UTILISATION);
    out->gpu = (unsigned)lround(100 * utilisation(g));
    out->memory = out->gpu / 2;
    return OK;
}

nvml_return nvmlDeviceGetClockInfo(nvml_device g, int type, unsigned *mhz) {
    CHECK(g, CALL_CLOCK);
    if (type == CLOCK_MEM)
        *mhz = (unsigned)segment_at(g, tick_s(g))->memory_clock_mhz;
    else
        *mhz = (unsigned)settled_mhz(g, tick_s(g));
    return OK;
}

nvml_return nvmlDeviceGetMaxClockInfo(nvml_device g, int type, unsigned *mhz) {
    CHECK(g, CALL_CLOCK);
    *mhz = (unsigned)(type == CLOCK_MEM ? g->memory_clock_mhz : g->max_clock_mhz);
    return OK;
}

/* 30 degC in the rack, 40 K more at the default limit, averaged over ten seconds. */
static double temperature_c(const struct gpu *g) {
    double t = tick_s(g);
    return 30 + 40 * (energy_at(g, t) - energy_at(g, t - 10)) / 10 / g->default_limit_w;
}

nvml_return nvmlDeviceGetTemperature(nvml_device g, int sensor, unsigned *celsius) {
    CHECK(g, CALL_TEMPERATURE);
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = (unsigned)lround(temperature_c(g));
    return OK;
}

struct temperature {
    unsigned version;
    int sensor, celsius;
};

nvml_return nvmlDeviceGetTemperatureV(nvml_device g, struct temperature *out) {
    CHECK(g, CALL_TEMPERATURE);
    out->celsius = (int)lround(temperature_c(g));
    return OK;
}

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

nvml_return nvmlDeviceGetMemoryInfo(nvml_device g, struct memory *out) {
    CHECK(g, CALL_MEMORY);
    out->total = (unsigned long long)g->memory_total_b;
    out->used = (unsigned long long)g->memory_used_b;
    out->free = out->total - out->used;
    return OK;
}

nvml_return nvmlDeviceGetMemoryInfo_v2(nvml_device g, struct memory_v2 *out) {
    struct memory plain;
    nvml_return code = nvmlDeviceGetMemoryInfo(g, &plain);
    if (code != OK) return code;
    out->total = plain.total;
    out->reserved = 0;
    out->free = plain.free;
    out->used = plain.used;
    return OK;
}

/* ---- levers ---------------------------------------------------------------------------- */

nvml_return nvmlDeviceGetEnforcedPowerLimit(nvml_device g, unsigned *out) {
    CHECK(g, CALL_LIMIT);
    *out = milliwatts(segment_at(g, now_s())->limit_w);
    return OK;
}

nvml_return nvmlDeviceGetPowerManagementLimit(nvml_device g, unsigned *out) {
    return nvmlDeviceGetEnforcedPowerLimit(g, out);
}

nvml_return nvmlDeviceGetPowerManagementDefaultLimit(nvml_device g, unsigned *out) {
    CHECK(g, CALL_LIMIT);
    *out = milliwatts(g->default_limit_w);
    return OK;
}

nvml_return nvmlDeviceGetPowerManagementLimitConstraints(nvml_device g, unsigned *low,
                                                         unsigned *high) {
    CHECK(g, CALL_LIMIT);
    *low = milliwatts(g->min_limit_w);
    *high = milliwatts(g->max_limit_w);
    return OK;
}

nvml_return nvmlDeviceGetPowerManagementMode(nvml_device g, unsigned *mode) {
    CHECK(g, CALL_LIMIT);
    *mode = 1;
    return OK;
}

/* A setter takes its time, half before and half after the change, as real ones do: a process may
 * be killed in either. */
static nvml_return set(nvml_device g, unsigned call, void (*edit)(struct segment *, const double *),
                       const double *values) {
    nvml_return code = OK;
    useconds_t half_us = (useconds_t)(g->set_cost_s * 5e5);
    if (half_us > 0) usleep(half_us);
    if (!((unsigned)g->ignored_calls & (call | CALL_SET))) code = change(g, edit, values);
    if (half_us > 0) usleep(half_us);
    return code;
}

static int outside(double value, double low, double high) { return value < low || value > high; }

nvml_return nvmlDeviceSetPowerManagementLimit(nvml_device g, unsigned limit_mw) {
    double limit_w = limit_mw * 1e-3;
    CHECK(g, CALL_SET | CALL_SET_LIMIT);
    if (outside(limit_w, g->min_limit_w, g->max_limit_w)) return INVALID_ARGUMENT;
    return set(g, CALL_SET_LIMIT, edit_limit, &limit_w);
}

nvml_return nvmlDeviceSetGpuLockedClocks(nvml_device g, unsigned low_mhz, unsigned high_mhz) {
    double values[3] = {high_mhz, low_mhz, 1};
    CHECK(g, CALL_SET | CALL_SET_CLOCK);
    if (low_mhz > high_mhz || outside(high_mhz, g->min_clock_mhz, g->max_clock_mhz))
        return INVALID_ARGUMENT;
    return set(g, CALL_SET_CLOCK, edit_clock, values);
}

nvml_return nvmlDeviceResetGpuLockedClocks(nvml_device g) {
    double values[3] = {g->max_clock_mhz, 0, 0};
    CHECK(g, CALL_SET | CALL_SET_CLOCK);
    return set(g, CALL_SET_CLOCK, edit_clock, values);
}

static double lowest_memory_mhz(const struct gpu *g) {
    double low_mhz = g->memory_clock_mhz;
    int i;
    for (i = 0; i < STUB_MEMORY_CLOCKS && g->memory_clocks_mhz[i] > 0; i++)
        low_mhz = fmin(low_mhz, g->memory_clocks_mhz[i]);
    return low_mhz;
}

nvml_return nvmlDeviceSetMemoryLockedClocks(nvml_device g, unsigned low_mhz, unsigned high_mhz) {
    double values[3] = {high_mhz, low_mhz, 1};
    CHECK(g, CALL_SET | CALL_SET_MEMORY_CLOCK);
    if (low_mhz > high_mhz || outside(high_mhz, lowest_memory_mhz(g), g->memory_clock_mhz))
        return INVALID_ARGUMENT;
    return set(g, CALL_SET_MEMORY_CLOCK, edit_memory_clock, values);
}

nvml_return nvmlDeviceResetMemoryLockedClocks(nvml_device g) {
    double values[3] = {g->memory_clock_mhz, 0, 0};
    CHECK(g, CALL_SET | CALL_SET_MEMORY_CLOCK);
    return set(g, CALL_SET_MEMORY_CLOCK, edit_memory_clock, values);
}

nvml_return nvmlDeviceGetSupportedMemoryClocks(nvml_device g, unsigned *count, unsigned *out) {
    unsigned n = 0, i;
    CHECK(g, CALL_CLOCK);
    while (n < STUB_MEMORY_CLOCKS && g->memory_clocks_mhz[n] > 0) n++;
    if (out == NULL || *count < n) {
        *count = n;
        return INSUFFICIENT_SIZE;
    }
    *count = n;
    for (i = 0; i < n; i++) out[i] = (unsigned)g->memory_clocks_mhz[i];
    return OK;
}

nvml_return nvmlDeviceGetSupportedGraphicsClocks(nvml_device g, unsigned memory_mhz,
                                                 unsigned *count, unsigned *out) {
    unsigned n = (unsigned)floor((g->max_clock_mhz - g->min_clock_mhz) / 15) + 1, i;
    int known = 0;
    CHECK(g, CALL_CLOCK);
    for (i = 0; i < STUB_MEMORY_CLOCKS; i++) known |= memory_mhz == g->memory_clocks_mhz[i];
    if (!known || memory_mhz == 0) return NOT_FOUND;
    if (out == NULL || *count < n) {
        *count = n;
        return INSUFFICIENT_SIZE;
    }
    *count = n;
    for (i = 0; i < n; i++) out[i] = (unsigned)(g->max_clock_mhz - i * 15);
    return OK;
}

enum { REASON_IDLE = 1, REASON_LOCKED = 2, REASON_POWER_CAP = 4 };

nvml_return nvmlDeviceGetCurrentClocksThrottleReasons(nvml_device g, unsigned long long *reasons) {
    const struct segment *s;
    double t;
    CHECK(g, CALL_CLOCK);
    t = tick_s(g);
    s = segment_at(g, t);
    *reasons = 0;
    if (demand_w(g, s, t) <= g->idle_w * 1.001) *reasons = REASON_IDLE;
    else if (settled_mhz(g, t) < s->clock_mhz) *reasons = REASON_POWER_CAP;
    else if (s->clock_locked != 0) *reasons = REASON_LOCKED;
    return OK;
}

nvml_return nvmlDeviceGetCurrentClocksEventReasons(nvml_device g, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(g, reasons);
}
