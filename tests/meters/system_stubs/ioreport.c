/* The calls of libIOReport and CoreFoundation that the meter makes. Channels, with their units and
 * values, come from the file in WATTLOOP_IOREPORT_STUB: one `name|unit|value` per line.
 * References are counted, so that a test can find one that was not released. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct object { int kind; int references; char text[64], unit[8]; int64_t value; struct object *items[64]; long count; };
static int living;

static struct object *make(int kind, const char *text) {
    struct object *o = calloc(1, sizeof *o);
    o->kind = kind, o->references = 1, living++;
    snprintf(o->text, sizeof o->text, "%s", text);
    return o;
}

int stub_living(void) { return living; }
void *CFStringCreateWithCString(void *a, const char *text, uint32_t encoding) { (void)a, (void)encoding; return make(1, text); }
bool CFStringGetCString(struct object *o, char *out, long size, uint32_t encoding) {
    (void)encoding;
    return snprintf(out, size, "%s", o->text) < size;
}
void CFRelease(struct object *o) {
    if (--o->references > 0) return;
    for (long i = 0; i < o->count; i++) { CFRelease(o->items[i]->items[0]); CFRelease(o->items[i]->items[1]); o->items[i]->count = 0; CFRelease(o->items[i]); }
    living--, free(o);
}
void *CFDictionaryGetValue(struct object *o, struct object *key) { return strcmp(key->text, "IOReportChannels") ? NULL : o; }
long CFArrayGetCount(struct object *o) { return o->count; }
void *CFArrayGetValueAtIndex(struct object *o, long i) { return o->items[i]; }
void *IOReportCopyChannelsInGroup(struct object *group, void *sub, uint64_t a, uint64_t b, uint64_t c) {
    (void)sub, (void)a, (void)b, (void)c;
    return strcmp(group->text, "Energy Model") || !getenv("WATTLOOP_IOREPORT_STUB") ? NULL : make(2, "");
}
void *IOReportCreateSubscription(void *a, void *channels, void **subscribed, uint64_t id, void *b) {
    (void)a, (void)channels, (void)id, (void)b;
    *subscribed = make(2, "");
    return make(3, "");
}
void *IOReportCreateSamples(void *subscription, void *channels, void *a) {
    (void)a;
    FILE *file = fopen(getenv("WATTLOOP_IOREPORT_STUB"), "r");
    if (!file || !subscription || !channels) return NULL;
    struct object *sample = make(2, "");
    char name[64], unit[8];
    long long value;
    while (sample->count < 64 && fscanf(file, " %63[^|]|%7[^|]|%lld", name, unit, &value) == 3) {
        struct object *item = make(4, "");
        item->items[0] = make(1, name), item->items[1] = make(1, unit), item->value = value;
        sample->items[sample->count++] = item;
    }
    fclose(file);
    return sample;
}
void *IOReportChannelGetChannelName(struct object *o) { return o->items[0]; }
void *IOReportChannelGetUnitLabel(struct object *o) { return o->items[1]; }
int64_t IOReportSimpleGetIntegerValue(struct object *o, int32_t a) { (void)a; return o->value; }
