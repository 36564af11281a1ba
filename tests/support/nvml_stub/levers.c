/* Setters of power limit and clock locks; the values are in the file that all processes share. */
#include "inside.h"

#include <math.h>
#include <unistd.h>

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
