/* How sensors show a card's power: as those of a data-centre card do.
 *
 * Values change once per sensor period, the instantaneous reading averages a short window, the
 * plain power reading averages one second.
 */
#include "inside.h"

#include <math.h>

double tick_s(const struct gpu *g) {
    return floor(now_s() / g->sensor_period_s) * g->sensor_period_s;
}

double sensed_w(const struct gpu *g, double window_s) {
    double t = tick_s(g), power_w = power_at(g, t);
    if (window_s > 0) power_w = (energy_at(g, t) - energy_at(g, t - window_s)) / window_s;
    if (g->noise_w > 0)
        power_w += g->noise_w * normal((uint64_t)g->seed + (uint64_t)llround(t * 1e4));
    return fmax(0, power_w);
}

double counted_j(const struct gpu *g) {
    double t = tick_s(g), energy_j = energy_at(g, t);
    if (g->counter_reset_at_s > 0 && t >= g->counter_reset_at_s)
        energy_j -= energy_at(g, g->counter_reset_at_s);
    return energy_j * g->counter_gain;
}

double utilisation(const struct gpu *g) {
    double t = tick_s(g);
    const struct segment *s = segment_at(g, t);
    double span_w = s->high_w - g->idle_w;
    if (span_w <= 0) return (int)s->kind == WAVE_CONSTANT ? s->utilisation : 0;
    return fmin(1, fmax(0, s->utilisation * (demand_w(g, s, t) - g->idle_w) / span_w));
}

unsigned milliwatts(double power_w) { return (unsigned)llround(power_w * 1e3); }
