/* What a card draws and how fast it works.
 *
 * Power is a piecewise analytic function of CLOCK_MONOTONIC that reacts to load, power limit and
 * clocks, so the true energy between any two instants is known exactly.
 */
#include "inside.h"

#include <math.h>
#include <time.h>

/* ---- time and noise -------------------------------------------------------------------- */

double now_s(void) {
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

double uniform(uint64_t key) { return (double)(mix(key) >> 11) * 0x1p-53; }

double normal(uint64_t key) {
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

double demand_w(const struct gpu *g, const struct segment *s, double t) {
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

const struct segment *segment_at(const struct gpu *g, double t) {
    uint64_t count = __atomic_load_n(&g->segment_count, __ATOMIC_ACQUIRE);
    uint64_t oldest = count > STUB_SEGMENTS ? count - STUB_SEGMENTS : 0, i;
    for (i = count - 1; i > oldest; i--)
        if (g->segments[i % STUB_SEGMENTS].start_s <= t) break;
    return &g->segments[i % STUB_SEGMENTS];
}

double energy_at(const struct gpu *g, double t) {
    const struct segment *s = segment_at(g, t);
    if (t < s->start_s) return s->energy_j - g->idle_w * (s->start_s - t);
    return s->energy_j + wave_j(g, s, t - s->origin_s) - wave_j(g, s, s->start_s - s->origin_s);
}

double power_at(const struct gpu *g, double t) {
    const struct segment *s = segment_at(g, t);
    return t < s->start_s ? g->idle_w : level_w(g, s, demand_w(g, s, t));
}

/* The clock at which the card settles: highest allowed, or lower where the limit bites. */
double settled_mhz(const struct gpu *g, double t) {
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
double speed_at(const struct gpu *g, double t) {
    const struct segment *s = segment_at(g, t);
    double compute = settled_mhz(g, t) / g->max_clock_mhz;
    double memory = s->memory_clock_mhz / g->memory_clock_mhz;
    if (demand_w(g, s, t) <= g->idle_w) return 0;
    return 1 / ((1 - g->memory_share) / compute + g->memory_share / memory);
}
