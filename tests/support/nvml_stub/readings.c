/* What is read of a card: energy, power, utilisation, clocks, temperature, memory. */
#include "inside.h"

#include <math.h>

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEM = 2 };
enum { FIELD_TOTAL_ENERGY = 83, FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186 };

/* ---- energy and power ------------------------------------------------------------------ */

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
