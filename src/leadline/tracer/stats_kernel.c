/* Statistics of float32 numbers in one read of their memory; `stats_kernel.py` calls these functions.

   Sums are kept in double: the square of any float neither overflows nor vanishes there, and no sum loses digits.
   Each block is read from memory once. It fits in the first cache, where the other loops find it.
   Nothing here allocates memory or keeps a state, so any thread may call anything at any time. */

#include <stdint.h>
#include <string.h>

enum { BLOCK = 1024, SMALL = 1024 };

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

/* Changes with every change of a signature; `stats_kernel.py` refuses a library of another version. */
int64_t leadline_version(void) { return 1; }

static float as_float(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static int has_nonzero(const float *x, int64_t outer, int64_t step, int64_t inner) {
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i)
            if (x[o * step + i] != 0) return 1;
    return 0;
}

/* Add up the units of `x`, of shape (outer, units, inner); `sums` has room for one number per unit.
   Write the sum of squares of these sums, and how many units have a number that is not zero. */
FOR_EACH_CPU static void measure_units(
    const float *x, int64_t outer, int64_t units, int64_t inner, double *sums, double *out
) {
    int64_t o = 0;
    for (int64_t u = 0; u < units; ++u) sums[u] = 0;
    for (; inner == 1 && o + 4 <= outer; o += 4) { /* four rows at once: the sums are read and written less often */
        const float *a = x + o * units, *b = a + units, *c = b + units, *d = c + units;
        for (int64_t u = 0; u < units; ++u) sums[u] += ((double)a[u] + b[u]) + ((double)c[u] + d[u]);
    }
    for (; o < outer; ++o)
        for (int64_t u = 0; u < units; ++u) {
            const float *unit = x + (o * units + u) * inner;
            double sum = 0;
            for (int64_t i = 0; i < inner; ++i) sum += unit[i];
            sums[u] += sum;
        }
    double squares = 0;
    int64_t alive = 0;
    for (int64_t u = 0; u < units; ++u) {
        squares += sums[u] * sums[u];
        alive += sums[u] != 0 || has_nonzero(x + u * inner, outer, units * inner, inner);
    }
    out[0] = squares;
    out[1] = (double)alive;
}

/* Write the sum, the sum of squares, the smallest and the largest of `count` > 0 numbers, and how many are not zero.
   Return whether all of them are finite; if not, what was written means nothing.

   As integers, positive floats have the same order as the numbers, and negative ones, without a sign, the opposite. */
FOR_EACH_CPU static int measure(const float *x, int64_t count, double *out) {
    double total = 0, squares = 0;
    int64_t nonzero = 0;
    uint32_t smallest = UINT32_MAX, largest = 0; /* of all bits, as integers without a sign */
    int32_t largest_positive = INT32_MIN;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int size = count - start < BLOCK ? (int)(count - start) : BLOCK;
        const float *block = x + start;
        const uint32_t *bits = (const uint32_t *)block;
        double sum = 0, sum_of_squares = 0;
        int32_t count_of_nonzero = 0;
        for (int i = 0; i < size; ++i) {
            const double number = block[i];
            sum += number;
            sum_of_squares += number * number;
        }
        for (int i = 0; i < size; ++i) {
            const uint32_t each = bits[i];
            smallest = each < smallest ? each : smallest;
            largest = each > largest ? each : largest;
            largest_positive = (int32_t)each > largest_positive ? (int32_t)each : largest_positive;
            count_of_nonzero += (each << 1) != 0;
        }
        total += sum;
        squares += sum_of_squares;
        nonzero += count_of_nonzero;
    }
    const int has_negative = (int32_t)largest < 0, has_positive = largest_positive >= 0;
    out[0] = total;
    out[1] = squares;
    out[2] = as_float(has_negative ? largest : smallest);
    out[3] = as_float(has_positive ? (uint32_t)largest_positive : smallest);
    out[4] = (double)nonzero;
    const uint32_t infinite = 0x7f800000u;
    return (!has_positive || (uint32_t)largest_positive < infinite) &&
           (!has_negative || (largest & 0x7fffffffu) < infinite);
}

/* Measure `x`, of shape (outer, units, inner), into `out`: five numbers of its elements and, if there are `units`, two of
   its units. `sums` is room for a number per unit; it may be NULL if there are no more than SMALL. */
int32_t leadline_measure(
    const float *x, int64_t outer, int64_t units, int64_t inner, double *sums, double *out
) {
    double room[SMALL];
    const int is_finite = measure(x, outer * inner * (units ? units : 1), out);
    if (is_finite && units) measure_units(x, outer, units, inner, sums ? sums : room, out + 5);
    return is_finite;
}

/* Return the sum of squares. */
FOR_EACH_CPU double leadline_squares(const float *x, int64_t count) {
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) squares += (double)x[i] * x[i];
    return squares;
}

/* Write the sum of `w`, and the inner products of `w` with itself, of `g` with itself, and of both. */
FOR_EACH_CPU void leadline_pair(const float *w, const float *g, int64_t count, double *out) {
    double total = 0, ww = 0, gg = 0, wg = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double a = w[i], b = g[i];
        total += a;
        ww += a * a;
        gg += b * b;
        wg += a * b;
    }
    out[0] = total;
    out[1] = ww;
    out[2] = gg;
    out[3] = wg;
}
