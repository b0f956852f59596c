/* Sorts the elements of a set in each dimension, and sums them with weights by rank: for sets of at most 255 elements.

   x is [B, N, L] with contiguous rows (the strides of an item and of an element are given), mask is [B, N]. A block of WIDTH
   dimensions of an item is copied to the stack, sorted there by a network of exchanges between two rows of the block, and
   summed. So a row is read once, and the compiler turns every inner loop into vector instructions.

   A function does its work for some of the items: "run" has it do all of them on several threads, those of OpenMP that PyTorch
   uses. Other threads would wait for PyTorch's, which stay busy for a while after they have worked.

   NaN counts as the largest number, as in PyTorch: exchanges leave it where it is, and the few dimensions that have one are sorted
   again (nan_first). A sum is NaN if one of its numbers is, whatever its weight.

   A set keeps the element of each rank in one byte (ids), from which the gradient is written without another sort. Numbers in
   bfloat16 are widened when they are read; sums are in single precision.

   This file includes itself once for each type of number. */

#ifndef STORE

#include <stdint.h>
#include <string.h>

#define WIDTH 64
#define LARGEST 255
#define RUN 16 /* rows that are sorted in registers */
#define LANES 16 /* dimensions that are sorted at once there */
#define EXCHANGES 3000 /* of the largest set there are 2,886 */

typedef int64_t i64;

typedef struct {
  i64 item, element; /* strides of x, in numbers */
  i64 elements, dims; /* N and L */
  i64 ranks; /* M, the number of weights of an item, at least the size of its set */
} Shape;

typedef struct {
  int size, count;
  uint8_t first[EXCHANGES], second[EXCHANGES];
} Network;

/* Batcher's odd-even merge sort (Sorting networks and their applications, 1968) of any number of rows: those that a power of
   two would add are the smallest, so no exchange moves them. Whole runs of 16 rows are sorted beforehand, see sort_runs. */
static void make_network(Network *net, int size) {
  net->size = size;
  net->count = 0;
  for (int p = 1; p < size; p *= 2)
    for (int k = p; k > 0; k /= 2)
      for (int j = k % p; j + k < size; j += 2 * k)
        for (int i = j; i < j + k && i + k < size; i++) {
          int sorted_run = 2 * p <= RUN && i < size / RUN * RUN;
          if (i / (2 * p) != (i + k) / (2 * p) || sorted_run) continue;
          net->first[net->count] = (uint8_t)i;
          net->second[net->count++] = (uint8_t)(i + k);
        }
}

/* The smallest known network for 16 rows: 60 exchanges (Green, 1969). */
#define RUN_EXCHANGES(X)                                                                                                   \
  X(0, 13) X(1, 12) X(2, 15) X(3, 14) X(4, 8) X(5, 6) X(7, 11) X(9, 10) X(0, 5) X(1, 7) X(2, 9) X(3, 4) X(6, 13) X(8, 14)  \
  X(10, 15) X(11, 12) X(0, 1) X(2, 3) X(4, 5) X(6, 8) X(7, 9) X(10, 11) X(12, 13) X(14, 15) X(0, 2) X(1, 3) X(4, 10)       \
  X(5, 11) X(6, 7) X(8, 9) X(12, 14) X(13, 15) X(1, 2) X(3, 12) X(4, 6) X(5, 7) X(8, 10) X(9, 11) X(13, 14) X(1, 4)        \
  X(2, 6) X(5, 8) X(7, 10) X(9, 13) X(11, 14) X(2, 4) X(3, 6) X(9, 12) X(11, 13) X(3, 5) X(6, 8) X(7, 9) X(10, 12) X(3, 4) \
  X(5, 6) X(7, 8) X(9, 10) X(11, 12) X(6, 7) X(8, 9)

/* Put the larger numbers into a and the others into b. */
static inline void exchange(float *restrict a, float *restrict b, int width) {
  for (int w = 0; w < width; w++) {
    float x = a[w], y = b[w];
    a[w] = y > x ? y : x;
    b[w] = y > x ? x : y;
  }
}

/* Do the same, and move the numbers of the elements with them. */
static inline void exchange_both(float *restrict a, float *restrict b, int32_t *restrict i, int32_t *restrict j, int width) {
  for (int w = 0; w < width; w++) {
    float x = a[w], y = b[w];
    int32_t of_x = i[w], of_y = j[w];
    int swap = y > x;
    a[w] = swap ? y : x;
    b[w] = swap ? x : y;
    i[w] = swap ? of_y : of_x;
    j[w] = swap ? of_x : of_y;
  }
}

/* Sort each whole run of 16 rows, a few dimensions at a time, so that the compiler keeps all 16 in registers. */
static void sort_runs(float rows[][WIDTH], int size) {
  for (int start = 0; start + RUN <= size; start += RUN)
    for (int l = 0; l < WIDTH; l += LANES) {
      float run[RUN][LANES];
      for (int k = 0; k < RUN; k++) memcpy(run[k], rows[start + k] + l, sizeof run[k]);
#define EXCHANGE(i, j) exchange(run[i], run[j], LANES);
      RUN_EXCHANGES(EXCHANGE)
#undef EXCHANGE
      for (int k = 0; k < RUN; k++) memcpy(rows[start + k] + l, run[k], sizeof run[k]);
    }
}

static void sort_runs_both(float rows[][WIDTH], int32_t ids[][WIDTH], int size) {
  for (int start = 0; start + RUN <= size; start += RUN)
    for (int l = 0; l < WIDTH; l += LANES) {
      float run[RUN][LANES];
      int32_t numbers[RUN][LANES];
      for (int k = 0; k < RUN; k++) memcpy(run[k], rows[start + k] + l, sizeof run[k]);
      for (int k = 0; k < RUN; k++) memcpy(numbers[k], ids[start + k] + l, sizeof numbers[k]);
#define EXCHANGE(i, j) exchange_both(run[i], run[j], numbers[i], numbers[j], LANES);
      RUN_EXCHANGES(EXCHANGE)
#undef EXCHANGE
      for (int k = 0; k < RUN; k++) memcpy(rows[start + k] + l, run[k], sizeof run[k]);
      for (int k = 0; k < RUN; k++) memcpy(ids[start + k] + l, numbers[k], sizeof numbers[k]);
    }
}

static void sort_values(float rows[][WIDTH], const Network *net) {
  sort_runs(rows, net->size);
  for (int c = 0; c < net->count; c++) exchange(rows[net->first[c]], rows[net->second[c]], WIDTH);
}

static void sort_both(float rows[][WIDTH], int32_t ids[][WIDTH], const Network *net) {
  sort_runs_both(rows, ids, net->size);
  for (int c = 0; c < net->count; c++) {
    int i = net->first[c], j = net->second[c];
    exchange_both(rows[i], rows[j], ids[i], ids[j], WIDTH);
  }
}

/* Sort the dimensions whose sum is NaN again, by insertion, which is fast where there is little else to move. */
static void nan_first(float rows[][WIDTH], int32_t ids[][WIDTH], int size, int with_ids, const float *sums) {
  for (int w = 0; w < WIDTH; w++)
    for (int k = 1; sums[w] != sums[w] && k < size; k++) {
      float value = rows[k][w];
      int32_t id = with_ids ? ids[k][w] : 0;
      int to = k;
      for (; to > 0 && rows[to - 1][w] == rows[to - 1][w] && !(rows[to - 1][w] >= value); to--) {
        rows[to][w] = rows[to - 1][w];
        if (with_ids) ids[to][w] = ids[to - 1][w];
      }
      rows[to][w] = value;
      if (with_ids) ids[to][w] = id;
    }
}

/* Work on the items of a range, with the tensors that the function names in its comment. */
typedef void Work(void **given, const Shape *s, i64 from, i64 to);

/* Whether run uses several threads. */
int has_threads(void) {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

void run(Work *work, void **given, const Shape *s, i64 from, i64 to, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int part = 0; part < threads; part++)
    work(given, s, from + (to - from) * part / threads, from + (to - from) * (part + 1) / threads);
}

static float sum_of(const float *values) {
  float lanes[LANES] = {0}, total = 0;
  for (int w = 0; w < WIDTH; w += LANES)
    for (int i = 0; i < LANES; i++) lanes[i] += values[w + i];
  for (int i = 0; i < LANES; i++) total += lanes[i];
  return total;
}

static int real_elements(const uint8_t *mask, i64 n, int *real) {
  int size = 0;
  for (i64 e = 0; e < n; e++)
    if (mask[e]) real[size++] = (int)e;
  return size;
}

static void load_float(float *to, const float *from, int width) { memcpy(to, from, sizeof(float) * width); }
static void store_float(float *to, const float *from, int width) { memcpy(to, from, sizeof(float) * width); }

static void load_bfloat(float *to, const uint16_t *from, int width) {
  for (int w = 0; w < width; w++) {
    uint32_t bits = (uint32_t)from[w] << 16;
    memcpy(to + w, &bits, sizeof bits);
  }
}

static void store_bfloat(uint16_t *to, const float *from, int width) {
  for (int w = 0; w < width; w++) {
    uint32_t bits;
    memcpy(&bits, from + w, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; /* to the nearest, ties to even */
    to[w] = (uint16_t)(from[w] == from[w] ? rounded : 0x7fc0);
  }
}

#define STORE float
#define CALLED(name) name##_float
#define LOAD load_float
#define SAVE store_float
#include "ranked.c"
#undef STORE
#undef CALLED
#undef LOAD
#undef SAVE
#define STORE uint16_t
#define CALLED(name) name##_bfloat
#define LOAD load_bfloat
#define SAVE store_bfloat
#include "ranked.c"

#else

/* Read a block of the real elements and sort it, with the number of each element if ids are wanted. */
static void CALLED(sort_block)(const STORE *x, const Shape *s, const int *real, const Network *net, int width,
                               float rows[][WIDTH], int32_t ids[][WIDTH], int with_ids) {
  _Alignas(64) float sums[WIDTH] = {0};
  int any_nan = 0;
  for (int k = 0; k < net->size; k++) {
    if (width < WIDTH) memset(rows[k], 0, sizeof rows[k]);
    LOAD(rows[k], x + real[k] * s->element, width);
    for (int w = 0; w < WIDTH; w++) sums[w] += rows[k][w];
    if (with_ids)
      for (int w = 0; w < WIDTH; w++) ids[k][w] = real[k];
  }
  if (with_ids) sort_both(rows, ids, net);
  else sort_values(rows, net);
  for (int w = 0; w < WIDTH; w++) any_nan |= sums[w] != sums[w];
  if (any_nan) nan_first(rows, ids, net->size, with_ids, sums);
}

static void CALLED(save_ids)(uint8_t *to, const Shape *s, int size, int width, int32_t ids[][WIDTH]) {
  for (int k = 0; k < size; k++)
    for (int w = 0; w < width; w++) to[k * s->dims + w] = (uint8_t)ids[k][w];
}

/* out[b, l] = sum_k weights[b, k] * (the k-th largest x[b, :, l]); ids [B, N, L] may be NULL. */
void CALLED(sum)(void **given, const Shape *s, i64 from, i64 to) {
  const STORE *x = given[0];
  const uint8_t *mask = given[1];
  const float *weights = given[2];
  float *out = given[3];
  uint8_t *ids = given[4];
  _Alignas(64) float rows[LARGEST][WIDTH];
  _Alignas(64) int32_t numbers[LARGEST][WIDTH];
  _Alignas(64) float total[WIDTH];
  int real[LARGEST];
  Network net;
  net.size = -1;
  for (i64 b = from; b < to; b++) {
    int size = real_elements(mask + b * s->elements, s->elements, real);
    if (size != net.size) make_network(&net, size);
    for (i64 l = 0; l < s->dims; l += WIDTH) {
      int width = s->dims - l < WIDTH ? (int)(s->dims - l) : WIDTH;
      CALLED(sort_block)(x + b * s->item + l, s, real, &net, width, rows, numbers, ids != NULL);
      memset(total, 0, sizeof total);
      for (int w = 0; size > 0 && w < WIDTH; w++)
        if (rows[0][w] != rows[0][w]) total[w] = rows[0][w];
      for (int k = 0; k < size; k++) {
        float weight = weights[b * s->ranks + k];
        if (weight == 0) continue; /* as of a k-max, whose other elements must not count even if they are infinite */
        for (int w = 0; w < WIDTH; w++) total[w] += weight * rows[k][w];
      }
      memcpy(out + b * s->dims + l, total, sizeof(float) * width);
      if (ids) CALLED(save_ids)(ids + b * s->elements * s->dims + l, s, size, width, numbers);
    }
  }
}

/* The gradients of sum: for x, contiguous, which is 0 at padding, and for the weights, which are given as 0. */
void CALLED(sum_back)(void **given, const Shape *s, i64 from, i64 to) {
  const STORE *x = given[0];
  const uint8_t *mask = given[1];
  const float *weights = given[2];
  const uint8_t *ids = given[3];
  const float *of_out = given[4];
  STORE *of_x = given[5];
  float *of_weights = given[6];
  _Alignas(64) float rows[LARGEST][WIDTH];
  _Alignas(64) float back[LARGEST][WIDTH];
  int real[LARGEST];
  for (i64 b = from; b < to; b++) {
    int size = real_elements(mask + b * s->elements, s->elements, real);
    STORE *own = of_x + b * s->elements * s->dims;
    for (i64 l = 0; l < s->dims; l += WIDTH) {
      int width = s->dims - l < WIDTH ? (int)(s->dims - l) : WIDTH;
      const float *upper = of_out + b * s->dims + l;
      for (int k = 0; k < size; k++) LOAD(rows[real[k]], x + b * s->item + real[k] * s->element + l, width);
      for (int k = 0; k < size; k++) {
        const uint8_t *number = ids + (b * s->elements + k) * s->dims + l;
        float weight = weights[b * s->ranks + k], share[WIDTH] = {0}, scaled[WIDTH];
        for (int w = 0; w < width; w++) share[w] = rows[0][number[w] * WIDTH + w] * upper[w];
        for (int w = 0; w < width; w++) scaled[w] = weight * upper[w];
        for (int w = 0; w < width; w++) back[number[w]][w] = scaled[w];
        of_weights[b * s->ranks + k] += sum_of(share);
      }
      for (int k = 0; k < size; k++) SAVE(own + real[k] * s->dims + l, back[real[k]], width);
    }
    for (i64 e = 0; e < s->elements; e++)
      if (!mask[b * s->elements + e]) memset(own + e * s->dims, 0, sizeof(STORE) * s->dims);
  }
}

/* out[b, k, l] = the k-th largest x[b, :, l], and 0 beyond the set; ids [B, N, L] may be NULL. */
void CALLED(sort)(void **given, const Shape *s, i64 from, i64 to) {
  const STORE *x = given[0];
  const uint8_t *mask = given[1];
  STORE *out = given[2];
  uint8_t *ids = given[3];
  _Alignas(64) float rows[LARGEST][WIDTH];
  _Alignas(64) int32_t numbers[LARGEST][WIDTH];
  int real[LARGEST];
  Network net;
  net.size = -1;
  for (i64 b = from; b < to; b++) {
    int size = real_elements(mask + b * s->elements, s->elements, real);
    STORE *own = out + b * s->elements * s->dims;
    if (size != net.size) make_network(&net, size);
    for (i64 l = 0; l < s->dims; l += WIDTH) {
      int width = s->dims - l < WIDTH ? (int)(s->dims - l) : WIDTH;
      CALLED(sort_block)(x + b * s->item + l, s, real, &net, width, rows, numbers, ids != NULL);
      for (int k = 0; k < size; k++) SAVE(own + k * s->dims + l, rows[k], width);
      if (ids) CALLED(save_ids)(ids + b * s->elements * s->dims + l, s, size, width, numbers);
    }
    memset(own + size * s->dims, 0, sizeof(STORE) * (s->elements - size) * s->dims);
  }
}

/* The gradient of sort for x, contiguous: each element gets that of its rank, and padding 0. */
void CALLED(sort_back)(void **given, const Shape *s, i64 from, i64 to) {
  const uint8_t *mask = given[0];
  const uint8_t *ids = given[1];
  const STORE *of_out = given[2];
  STORE *of_x = given[3];
  int real[LARGEST];
  for (i64 b = from; b < to; b++) {
    int size = real_elements(mask + b * s->elements, s->elements, real);
    i64 start = b * s->elements * s->dims;
    for (i64 e = 0; e < s->elements; e++)
      if (!mask[b * s->elements + e]) memset(of_x + start + e * s->dims, 0, sizeof(STORE) * s->dims);
    for (int k = 0; k < size; k++) {
      const uint8_t *number = ids + start + k * s->dims;
      const STORE *upper = of_out + start + k * s->dims;
      for (i64 l = 0; l < s->dims; l++) of_x[start + number[l] * s->dims + l] = upper[l];
    }
  }
}

#endif
