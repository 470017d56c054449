/* Random numbers by their addresses (splitmix64, Steele, Lea and Flood 2014), as in fedray/core/rng.py. */
#ifndef FEDRAY_KEYS_H
#define FEDRAY_KEYS_H

#include <stdint.h>

#define GOLDEN 0x9E3779B97F4A7C15u

static uint64_t mix_bits(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* The key of an address that is longer by one part: `rng.fresh`. */
static uint64_t extend_key(uint64_t key, uint64_t part) { return mix_bits((key ^ part) * GOLDEN + part + GOLDEN); }

/* Number i of a key: `rng.bits`. */
static uint64_t find_bits(uint64_t key, uint64_t i) { return mix_bits(key + (i + 1) * GOLDEN); }

#endif
