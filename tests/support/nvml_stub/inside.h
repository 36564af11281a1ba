/* Internal declarations of the stub: state, physics, sensors, faults. */
#ifndef WATTLOOP_NVML_STUB_INSIDE_H
#define WATTLOOP_NVML_STUB_INSIDE_H

#include "nvml_stub.h"

#include <stddef.h>

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

int stub_attach(const char *path); /* 0 when the state is mapped */

/* The names are too plain to be seen by the program that loads the library. */
#pragma GCC visibility push(hidden)

/* state.c: the file that is mapped, and who may look at it */
extern struct state *shared;
extern int init_count;
extern struct gpu instances[STUB_MAX_GPUS][STUB_INSTANCES]; /* of cards split by MIG */
nvml_return fault(struct gpu *g, unsigned call);
nvml_return change(struct gpu *g, void (*edit)(struct segment *, const double *),
                   const double *values);

/* physics.c: what a card really does at time t */
double now_s(void);
double uniform(uint64_t key);
double normal(uint64_t key);
const struct segment *segment_at(const struct gpu *g, double t);
double demand_w(const struct gpu *g, const struct segment *s, double t);
double energy_at(const struct gpu *g, double t);
double power_at(const struct gpu *g, double t);
double settled_mhz(const struct gpu *g, double t);
double speed_at(const struct gpu *g, double t);

/* sensors.c: what its sensors show of it now */
double tick_s(const struct gpu *g);
double sensed_w(const struct gpu *g, double window_s);
double counted_j(const struct gpu *g);
double utilisation(const struct gpu *g);
unsigned milliwatts(double power_w);

#pragma GCC visibility pop

#define CHECK(device, call)                        \
    do {                                           \
        nvml_return ret_ = fault((device), (call)); \
        if (ret_ != OK) return ret_;               \
    } while (0)

#endif
