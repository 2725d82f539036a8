/* XXH3-128 of long inputs, written from the algorithm's specification (Y. Collet, xxHash). */
#include "native.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2 1
#else
#define HAS_AVX2 0
#endif

#define STRIPE 64
#define SECRET 192
#define STRIPES_A_BLOCK ((SECRET - STRIPE) / 8)
#define BLOCK (STRIPES_A_BLOCK * STRIPE)

static const uint64_t P32_1 = 0x9E3779B1u, P32_2 = 0x85EBCA77u, P32_3 = 0xC2B2AE3Du;
static const uint64_t P64_1 = 0x9E3779B185EBCA87u, P64_2 = 0xC2B2AE3D27D4EB4Fu,
                      P64_3 = 0x165667B19E3779F9u, P64_4 = 0x85EBCA77C2B2AE63u,
                      P64_5 = 0x27D4EB2F165667C5u;

/* The specification's default secret. */
static const uint8_t secret[SECRET] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint64_t word(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

static void accumulate_plain(uint64_t acc[8], const uint8_t *data, size_t stripes,
                             const uint8_t *key)
{
    for (; stripes--; data += STRIPE, key += 8)
        for (int i = 0; i < 8; i++) {
            uint64_t value = word(data + 8 * i), mixed = value ^ word(key + 8 * i);
            acc[i ^ 1] += value;
            acc[i] += (uint64_t)(uint32_t)mixed * (mixed >> 32);
        }
}

#if HAS_AVX2
__attribute__((target("avx2"))) static void accumulate_avx2(uint64_t acc[8], const uint8_t *data,
                                                             size_t stripes, const uint8_t *key)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)acc);
    __m256i high = _mm256_loadu_si256((const __m256i *)acc + 1);
    for (; stripes--; data += STRIPE, key += 8) {
        _mm_prefetch((const char *)data + 512, _MM_HINT_T0);
        __m256i a = _mm256_loadu_si256((const __m256i *)data);
        __m256i b = _mm256_loadu_si256((const __m256i *)data + 1);
        __m256i x = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)key));
        __m256i y = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)key + 1));
        /* neighbours are swapped: 2, 3, 0, 1 in words of 32 bits */
        low = _mm256_add_epi64(low, _mm256_shuffle_epi32(a, _MM_SHUFFLE(1, 0, 3, 2)));
        high = _mm256_add_epi64(high, _mm256_shuffle_epi32(b, _MM_SHUFFLE(1, 0, 3, 2)));
        low = _mm256_add_epi64(low, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
        high = _mm256_add_epi64(high, _mm256_mul_epu32(y, _mm256_srli_epi64(y, 32)));
    }
    _mm256_storeu_si256((__m256i *)acc, low);
    _mm256_storeu_si256((__m256i *)acc + 1, high);
}
#endif

static void accumulate(uint64_t acc[8], const uint8_t *data, size_t stripes, const uint8_t *key)
{
#if HAS_AVX2
    if (__builtin_cpu_supports("avx2")) {
        accumulate_avx2(acc, data, stripes, key);
        return;
    }
#endif
    accumulate_plain(acc, data, stripes, key);
}

static void scramble(uint64_t acc[8])
{
    const uint8_t *key = secret + SECRET - STRIPE;
    for (int i = 0; i < 8; i++)
        acc[i] = (acc[i] ^ acc[i] >> 47 ^ word(key + 8 * i)) * P32_1;
}

static uint64_t folded(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t merged(const uint64_t acc[8], const uint8_t *key, uint64_t start)
{
    for (int i = 0; i < 4; i++)
        start += folded(acc[2 * i] ^ word(key + 16 * i), acc[2 * i + 1] ^ word(key + 16 * i + 8));
    start ^= start >> 37;
    start *= 0x165667919E3779F9u;
    return start ^ start >> 32;
}

static void store(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (56 - 8 * i));
}

void kvconn_xxh3_128(const uint8_t *data, size_t size, uint8_t digest[16])
{
    uint64_t acc[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    const uint8_t *end = data + size;
    size_t blocks = (size - 1) / BLOCK;
    for (size_t i = 0; i < blocks; i++, data += BLOCK) {
        accumulate(acc, data, STRIPES_A_BLOCK, secret);
        scramble(acc);
    }
    accumulate(acc, data, (size - 1 - blocks * BLOCK) / STRIPE, secret);
    accumulate(acc, end - STRIPE, 1, secret + SECRET - STRIPE - 7);
    store(digest, merged(acc, secret + SECRET - STRIPE - 11, ~(size * P64_2)));
    store(digest + 8, merged(acc, secret + 11, size * P64_1));
}
