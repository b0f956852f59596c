/* Sorts the elements of a set in each dimension, and sums them with weights by rank: for sets of at most 255 elements.

   x is [B, N, L] with contiguous rows (the strides of an item and of an element are given), mask is [B, N]. A block of WIDTH
   dimensions of an item is copied to the stack, sorted there by a network of comparisons, each of which exchanges two rows of
   the block, and summed. So a row is read once, and the compiler turns every inner loop into vector instructions.

   A set keeps the element of each rank in one byte (ids), from which the gradient is written without another sort. Numbers in
   bfloat16 are widened when they are read; sums are in single precision.

   This file includes itself once for each type of number. */

#ifndef STORE

#include <stdint.h>
#include <string.h>

#define WIDTH 64
#define LARGEST 255
#define COMPARISONS 4096 /* of the largest set there are 3,839 */

typedef int64_t i64;

typedef struct {
  i64 item, element; /* strides of x, in numbers */
  i64 elements, dims; /* N and L */
  i64 ranks; /* M, the number of weights of an item, at least the size of its set */
} Shape;

typedef struct {
  int size, count;
  uint8_t first[COMPARISONS], second[COMPARISONS];
} Network;

/* Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M), which sorts any number of rows. */
static void make_network(Network *net, int size) {
  int top = 1;
  net->size = size;
  net->count = 0;
  if (size < 2) return;
  while (2 * top < size) top *= 2;
  for (int p = top; p > 0; p /= 2) {
    int q = top, r = 0, d = p;
    for (;;) {
      for (int i = 0; i < size - d; i++)
        if ((i & p) == r) {
          net->first[net->count] = (uint8_t)i;
          net->second[net->count++] = (uint8_t)(i + d);
        }
      if (q == p) break;
      d = q - p;
      q /= 2;
      r = p;
    }
  }
}

static void sort_values(float rows[][WIDTH], const Network *net) {
  for (int c = 0; c < net->count; c++) {
    float *restrict a = rows[net->first[c]], *restrict b = rows[net->second[c]];
    for (int w = 0; w < WIDTH; w++) {
      float x = a[w], y = b[w];
      a[w] = y > x ? y : x;
      b[w] = y > x ? x : y;
    }
  }
}

static void sort_both(float rows[][WIDTH], int32_t ids[][WIDTH], const Network *net) {
  for (int c = 0; c < net->count; c++) {
    float *restrict a = rows[net->first[c]], *restrict b = rows[net->second[c]];
    int32_t *restrict i = ids[net->first[c]], *restrict j = ids[net->second[c]];
    for (int w = 0; w < WIDTH; w++) {
      float x = a[w], y = b[w];
      int32_t of_x = i[w], of_y = j[w];
      int exchange = y > x;
      a[w] = exchange ? y : x;
      b[w] = exchange ? x : y;
      i[w] = exchange ? of_y : of_x;
      j[w] = exchange ? of_x : of_y;
    }
  }
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
  for (int k = 0; k < net->size; k++) {
    if (width < WIDTH) memset(rows[k], 0, sizeof rows[k]);
    LOAD(rows[k], x + real[k] * s->element, width);
    if (with_ids)
      for (int w = 0; w < WIDTH; w++) ids[k][w] = real[k];
  }
  if (with_ids) sort_both(rows, ids, net);
  else sort_values(rows, net);
}

static void CALLED(save_ids)(uint8_t *to, const Shape *s, int size, int width, int32_t ids[][WIDTH]) {
  for (int k = 0; k < size; k++)
    for (int w = 0; w < width; w++) to[k * s->dims + w] = (uint8_t)ids[k][w];
}

/* out[b, l] = sum_k weights[b, k] * (the k-th largest x[b, :, l]); ids [B, N, L] may be NULL. */
void CALLED(sum)(const STORE *x, const uint8_t *mask, const float *weights, float *out, uint8_t *ids, const Shape *s,
                 i64 from, i64 to) {
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
void CALLED(sum_back)(const STORE *x, const uint8_t *mask, const float *weights, const uint8_t *ids, const float *of_out,
                      STORE *of_x, float *of_weights, const Shape *s, i64 from, i64 to) {
  _Alignas(64) float rows[LARGEST][WIDTH];
  _Alignas(64) float back[LARGEST][WIDTH];
  int real[LARGEST];
  for (i64 b = from; b < to; b++) {
    int size = real_elements(mask + b * s->elements, s->elements, real);
    STORE *own = of_x + b * s->elements * s->dims;
    for (i64 l = 0; l < s->dims; l += WIDTH) {
      int width = s->dims - l < WIDTH ? (int)(s->dims - l) : WIDTH;
      const float *given = of_out + b * s->dims + l;
      for (int k = 0; k < size; k++) LOAD(rows[real[k]], x + b * s->item + real[k] * s->element + l, width);
      for (int k = 0; k < size; k++) {
        const uint8_t *number = ids + (b * s->elements + k) * s->dims + l;
        float weight = weights[b * s->ranks + k], total = 0;
        for (int w = 0; w < width; w++) {
          total += rows[number[w]][w] * given[w];
          back[number[w]][w] = weight * given[w];
        }
        of_weights[b * s->ranks + k] += total;
      }
      for (int k = 0; k < size; k++) SAVE(own + real[k] * s->dims + l, back[real[k]], width);
    }
    for (i64 e = 0; e < s->elements; e++)
      if (!mask[b * s->elements + e]) memset(own + e * s->dims, 0, sizeof(STORE) * s->dims);
  }
}

/* out[b, k, l] = the k-th largest x[b, :, l], and 0 beyond the set; ids [B, N, L] may be NULL. */
void CALLED(sort)(const STORE *x, const uint8_t *mask, STORE *out, uint8_t *ids, const Shape *s, i64 from, i64 to) {
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
void CALLED(sort_back)(const uint8_t *mask, const uint8_t *ids, const STORE *of_out, STORE *of_x, const Shape *s, i64 from,
                       i64 to) {
  int real[LARGEST];
  for (i64 b = from; b < to; b++) {
    int size = real_elements(mask + b * s->elements, s->elements, real);
    i64 start = b * s->elements * s->dims;
    for (i64 e = 0; e < s->elements; e++)
      if (!mask[b * s->elements + e]) memset(of_x + start + e * s->dims, 0, sizeof(STORE) * s->dims);
    for (int k = 0; k < size; k++) {
      const uint8_t *number = ids + start + k * s->dims;
      const STORE *given = of_out + start + k * s->dims;
      for (i64 l = 0; l < s->dims; l++) of_x[start + number[l] * s->dims + l] = given[l];
    }
  }
}

#endif
