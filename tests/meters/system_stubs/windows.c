/* The calls of setupapi.dll and kernel32.dll that the meter makes. Device N is the folder N below
 * WATTLOOP_EMI_STUB; the answer to control code C is its file C (four hexadecimal digits). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <wchar.h>

static const unsigned char guid[16] = {0x44, 0x83, 0xbd, 0x45, 0xd6, 0x7e, 0xcf, 0x49, 0xa4, 0x40, 0xc2, 0x76, 0xc9, 0x33, 0xb0, 0x53};
static int list_open, handles;
int stub_open(void) { return list_open + handles; }
void *SetupDiGetClassDevsW(const unsigned char *id, void *a, void *b, uint32_t flags) {
    (void)a, (void)b;
    if (memcmp(id, guid, 16) || flags != 0x12) return (void *)-1;
    list_open++;
    return &list_open;
}
int SetupDiEnumDeviceInterfaces(void *list, void *a, const unsigned char *id, uint32_t index, uint32_t *data) {
    char path[512];
    struct stat info;
    (void)list, (void)a;
    snprintf(path, sizeof path, "%s/%u", getenv("WATTLOOP_EMI_STUB"), index);
    if (data[0] != 32 || memcmp(id, guid, 16) || stat(path, &info)) return 0;
    data[5] = index; /* flags */
    return 1;
}
int SetupDiGetDeviceInterfaceDetailW(void *list, uint32_t *data, uint32_t *detail, uint32_t room, uint32_t *needed, void *a) {
    wchar_t text[64];
    (void)list, (void)a;
    swprintf(text, 64, L"\\\\?\\emi#%u", data[5]);
    uint32_t size = 4 + sizeof(wchar_t) * (uint32_t)(wcslen(text) + 1);
    if (needed) *needed = size;
    if (!detail || room < size || detail[0] != 8) return 0;
    memcpy((char *)detail + 4, text, size - 4);
    return 1;
}
int SetupDiDestroyDeviceInfoList(void *list) { (void)list; return list_open--, 1; }
void *CreateFileW(const wchar_t *path, uint32_t access, uint32_t share, void *a, uint32_t how, uint32_t flags, void *b) {
    unsigned number;
    (void)a, (void)flags, (void)b;
    if (access != 0x80000000u || share != 3 || how != 3 || swscanf(path, L"\\\\?\\emi#%u", &number) != 1) return (void *)-1;
    handles++;
    return (void *)(intptr_t)(number + 1);
}
int DeviceIoControl(void *handle, uint32_t code, void *in, uint32_t in_size, char *out, uint32_t room, uint32_t *returned, void *a) {
    char path[512];
    (void)in, (void)in_size, (void)a;
    snprintf(path, sizeof path, "%s/%u/%04x", getenv("WATTLOOP_EMI_STUB"), (unsigned)(intptr_t)handle - 1, code & 0xffff);
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    *returned = (uint32_t)fread(out, 1, room, file);
    fclose(file);
    return 1;
}
int CloseHandle(void *handle) { (void)handle; return handles--, 1; }
