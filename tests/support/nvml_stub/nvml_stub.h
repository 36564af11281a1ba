/* Layout of the state file that every process using the stub maps.
 *
 * Only doubles, 64-bit integers and fixed strings, so that `state.py` can mirror it field by field.
 * Times are seconds of CLOCK_MONOTONIC; 0 in a `*_at_s` field means "never".
 */
#ifndef WATTLOOP_NVML_STUB_H
#define WATTLOOP_NVML_STUB_H

#include <stdint.h>

#define STUB_MAGIC 0x574c4e564d4c3033ull
#define STUB_MAX_GPUS 16
#define STUB_SEGMENTS 1024
#define STUB_TEXT 96
#define STUB_MEMORY_CLOCKS 4
#define STUB_PROCESSES 8
#define STUB_INSTANCES 7

enum wave { WAVE_CONSTANT = 0, WAVE_STEP = 1, WAVE_RAMP = 2, WAVE_SQUARE = 3, WAVE_SPIKES = 4 };

/* Calls that can be declared unsupported, forbidden or without effect, as bits of a mask. */
enum call {
    CALL_POWER = 1,
    CALL_INSTANT = 2,
    CALL_ENERGY = 4,
    CALL_UTILISATION = 8,
    CALL_CLOCK = 16,
    CALL_TEMPERATURE = 32,
    CALL_MEMORY = 64,
    CALL_LIMIT = 128,
    CALL_SET = 256, /* any setter */
    CALL_SET_LIMIT = 512,
    CALL_SET_CLOCK = 1024,
    CALL_SET_MEMORY_CLOCK = 2048
};

/* From `start_s` on, the card's demand follows one waveform under one set of limits. */
struct segment {
    double start_s;
    double energy_j; /* true energy consumed up to start_s */
    double origin_s; /* time at which the waveform began */
    double kind;
    double low_w;
    double high_w;
    double period_s; /* of square and spikes; delay of a step; length of a ramp */
    double duty;     /* share of a period at high_w */
    double utilisation; /* at high_w, 0 to 1 */
    double limit_w;
    double clock_mhz;        /* highest SM clock allowed */
    double memory_clock_mhz; /* highest memory clock allowed */
    double clock_locked, clock_low_mhz;               /* 1 while locked; lower end of the lock */
    double memory_clock_locked, memory_clock_low_mhz;
};

struct gpu {
    uint64_t segment_count; /* published last: a writer killed half-way leaves no trace */
    uint64_t draws;         /* of unknown errors, so that all processes share one stream */
    double idle_w, default_limit_w, min_limit_w, max_limit_w;
    double min_clock_mhz, max_clock_mhz, memory_clock_mhz, clock_exponent;
    double memory_share;  /* of dynamic power, which follows the memory clock */
    double cap_overshoot; /* 0.21 lets the card draw 21% more than its limit */
    double memory_clocks_mhz[STUB_MEMORY_CLOCKS]; /* supported ones, highest first, then 0 */
    double sensor_period_s, sensor_window_s, averaging_s, noise_w, counter_gain;
    double energy_read_cost_s, set_cost_s;
    double memory_total_b, memory_used_b;
    double compute_major, compute_minor, architecture;
    double mig_mode, virtualization_mode, handle_error;
    double unsupported_calls, forbidden_calls, ignored_calls;
    double lost_at_s, forbidden_at_s, reset_required_at_s, counter_reset_at_s;
    double error_probability;
    double process_pids[STUB_PROCESSES]; /* that have a context; 0 where there is none */
    double process_sm[STUB_PROCESSES];   /* their SM utilisation, percent */
    double mig_slices[STUB_INSTANCES];   /* of each MIG instance; 0 where there is none */
    double mig_pids[STUB_INSTANCES];
    double mig_sm[STUB_INSTANCES]; /* percent; below 0: GPM is not supported */     /* the process on it; 0 where there is none */
    double seed;
    char name[STUB_TEXT];
    char uuid[STUB_TEXT];
    struct segment segments[STUB_SEGMENTS];
};

struct state {
    uint64_t magic;
    double gpu_count, init_error, shutdown_delay_s;
    char driver_version[STUB_TEXT];
    struct gpu gpus[STUB_MAX_GPUS];
};

#endif
