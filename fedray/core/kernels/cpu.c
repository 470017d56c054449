/* Which of the builds in this library the processor can run, and which sources the library was made from. */
#include "names.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>

static unsigned long long enabled_registers(void) { /* those that the operating system saves */
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((unsigned long long)high << 32) | low;
}

/* 0: none, 1: AVX2 with fused multiply-add, 2: AVX-512 (F, BW, DQ, VL). */
EXPORT int fedray_instructions(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    int fma = (c >> 12) & 1, saved = (c >> 27) & 1, f16c = (c >> 29) & 1;
    if (!fma || !saved || !f16c || (enabled_registers() & 6) != 6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    unsigned bmi = (1u << 3) | (1u << 8), wide = (1u << 16) | (1u << 17) | (1u << 28) | (1u << 30) | (1u << 31);
    if (!((b >> 5) & 1) || (b & bmi) != bmi) return 0;
    unsigned e, f, g, h;
    if (!__get_cpuid(0x80000001, &e, &f, &g, &h) || !((g >> 5) & 1)) return 0; /* lzcnt */
    return (b & wide) == wide && (enabled_registers() & 0xE6) == 0xE6 ? 2 : 1;
}
#else
/* 3: NEON, which every 64-bit ARM processor has. */
EXPORT int fedray_instructions(void) { return 3; }
#endif

EXPORT const char *fedray_digest(void) { return FEDRAY_DIGEST; }
