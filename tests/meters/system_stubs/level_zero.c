/* A stand-in for libze_loader: two drivers' worth of cards, laid out as zes_api.h says.
 * ZE_STUB is a text of one letter per device: d discrete, i integrated, t only tiles, n no counter,
 * x lost after the first reading. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t ze_bool_t;
struct core {
    uint32_t stype; void *next;
    uint32_t type, vendorId, deviceId, flags, subdeviceId, coreClockRate;
    uint64_t maxMemAllocSize;
    uint32_t maxHardwareContexts, maxCommandQueuePriority, numThreadsPerEU, physicalEUSimdWidth,
        numEUsPerSubslice, numSubslicesPerSlice, numSlices;
    uint64_t timerResolution;
    uint32_t timestampValidBits, kernelTimestampValidBits;
    uint8_t uuid[16];
    char name[256];
};
struct device_properties {
    uint32_t stype; void *next;
    struct core core;
    uint32_t numSubdevices;
    char serialNumber[64], boardNumber[64], brandName[64], modelName[64], vendorName[64],
        driverVersion[64];
};
struct power_properties {
    uint32_t stype; void *next;
    ze_bool_t onSubdevice; uint32_t subdeviceId;
    ze_bool_t canControl, isEnergyThresholdSupported;
    int32_t defaultLimit, minLimit, maxLimit;
};
struct counter { uint64_t energy, timestamp; };

static int ready, reads;
static const char *kinds(void) { const char *k = getenv("ZE_STUB"); return k ? k : "d"; }

int zesInit(uint32_t flags) {
    (void)flags;
    if (kinds()[0] == '!') return 0x78000001;
    ready = 1;
    return 0;
}
static int give(uint32_t *count, void **room, uint32_t have, uintptr_t first) {
    uint32_t i;
    if (!ready) return 0x78000001;
    if (room) for (i = 0; i < have && i < *count; i++) room[i] = (void *)(first + i);
    *count = have;
    return 0;
}
int zesDriverGet(uint32_t *count, void **room) { return give(count, room, 1, 1); }
int zesDeviceGet(void *driver, uint32_t *count, void **room) {
    (void)driver;
    return give(count, room, (uint32_t)strlen(kinds()), 100);
}
int zesDeviceGetProperties(void *device, struct device_properties *p) {
    char kind = kinds()[(uintptr_t)device - 100];
    if (p->stype != 0x1 || p->core.stype != 0x3) return 0x78000004;
    memset(&p->core.type, 0, sizeof p->core - 16);
    p->core.flags = kind == 'i';
    strcpy(p->core.name, "Intel(R) Data Center GPU Max 1550");
    strcpy(p->driverVersion, "1.3.27642");
    return 0;
}
/* Each card has three domains: of its two tiles, and of the whole card (not with 't'). */
int zesDeviceEnumPowerDomains(void *device, uint32_t *count, void **room) {
    uintptr_t number = (uintptr_t)device - 100;
    return give(count, room, kinds()[number] == 't' ? 2 : 3, 1000 + 10 * number);
}
int zesPowerGetProperties(void *power, struct power_properties *p) {
    if (p->stype != 0xd) return 0x78000004;
    p->onSubdevice = (uintptr_t)power % 10 < 2;
    p->defaultLimit = 600000;
    p->minLimit = p->maxLimit = -1;
    return 0;
}
int zesPowerGetEnergyCounter(void *power, struct counter *c) {
    uintptr_t number = ((uintptr_t)power - 1000) / 10;
    char kind = kinds()[number];
    if (kind == 'n') return 0x78000003;
    if (kind == 'x' && reads > 0) return 0x70000003;
    reads++;
    c->energy = 5000000 * (number + 1) + 1000 * reads;
    c->timestamp = 1000 * reads;
    return 0;
}
