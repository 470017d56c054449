/* Names of exported functions: one for each type of number and instruction set, `fedray_NAME_f32_avx2`. */
#ifndef FEDRAY_NAMES_H
#define FEDRAY_NAMES_H

#define EXPORT __attribute__((visibility("default")))
#define JOIN_(a, b, c) fedray_##a##_f##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define NAME(function) JOIN(function, REAL_BITS, BUILD)

#endif
