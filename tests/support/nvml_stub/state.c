/* The state of the cards: a file (WATTLOOP_NVML_STUB_STATE) that processes share; see nvml_stub.h.
 *
 * Functions that begin with `stub_` are for the controller.
 */
#include "inside.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct state *shared;
static char shared_path[4096];
int init_count;

/* ---- faults ---------------------------------------------------------------------------- */

nvml_return fault(struct gpu *g, unsigned call) {
    double t = now_s();
    if (init_count <= 0 || shared == NULL) return UNINITIALIZED;
    if ((g < shared->gpus || g >= shared->gpus + (int)shared->gpu_count) &&
        (g < &instances[0][0] || g > &instances[STUB_MAX_GPUS - 1][STUB_INSTANCES - 1]))
        return INVALID_ARGUMENT;
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
 * process killed here releases it; each change opens the file again, so threads exclude each other
 * too. */
nvml_return change(struct gpu *g, void (*edit)(struct segment *, const double *),
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

int stub_set_wave(unsigned gpu, const double *values) {
    return change(&shared->gpus[gpu], edit_wave, values);
}
