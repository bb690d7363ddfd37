/* kernels/common/blocks.h — the parameters of the hand-written blocks, which compute ops that have
 * no loop form.
 *
 * A block is  template <class T, ...> void name(const int64_t* params, void* const* operands,
 * int64_t item); and does one of `items` independent pieces of work, so that workers, or threads,
 * share it by item. Parameters are the fields of the block's structure in order, 64-bit integers; a
 * real number stands by its bits. Operands are base addresses: the op's inputs, then its outputs;
 * an absent one is null. Host and device read this text. Axes: at most OBK_RANK. */
#ifndef OBK_BLOCKS_H
#define OBK_BLOCKS_H

#include <stdint.h>

#define OBK_RANK 8
#define OBK_DET 32 /* the largest matrix whose determinant is taken in a thread's own memory */

/* How a number between two powers of two is rounded. */
enum ObkRounding { OBK_DOWN, OBK_NEAREST, OBK_UP };

/* How an update meets what it hits. */
enum ObkFold { OBK_REPLACE, OBK_ADD, OBK_MUL, OBK_MAX, OBK_MIN };

/* x[outer, extent, inner] -> values, indices [outer, k, inner]. An item is a line: outer * inner +
 * inner. */
struct ObkTopK {
  int64_t extent, inner, k, largest;
};

/* x[outer, extent, inner] -> y of the same shape. An item is a line. `fold`: OBK_ADD or OBK_MUL. */
struct ObkScan {
  int64_t extent, inner, fold, exclusive, reverse;
};

/* data, indices, updates -> output, along an axis. An item is a line of the data and one of
 * `ranges` pieces of it. Shapes and strides are without the axis. */
struct ObkScatterElements {
  int64_t fold, rank, ranges;
  int64_t extent, stride;               /* of the axis, in data */
  int64_t update_extent, update_stride; /* of the axis, in indices and updates */
  int64_t shape[OBK_RANK], strides[OBK_RANK];
  int64_t update_shape[OBK_RANK], update_strides[OBK_RANK];
};

/* data[slices, inner], indices[tuples, depth], updates[tuples, inner] -> output. An item is one of
 * `slice_ranges` ranges of slices and one of `inner_ranges` ranges of columns. */
struct ObkScatterNd {
  int64_t fold, slices, inner, tuples, depth, slice_ranges, inner_ranges;
  int64_t extents[OBK_RANK], strides[OBK_RANK]; /* of the indexed axes; strides in slices */
};

/* In place, for an output that takes the memory of the data, both lack operand 0 and neither read
 * nor write what no update hits; of ObkScatterElements `shape` is then that of the updates. */

/* x[count], indices[count] -> output[size]. Indices count in a tensor of `strides`, the output has
 * `to_strides`. An item is one of `ranges` ranges of the output. */
struct ObkMaxUnpool {
  int64_t count, inner_count, size, ranges, rank;
  int64_t strides[OBK_RANK], to_strides[OBK_RANK];
};

/* image[N, channels, height, width], rois[R, 4], batch[R] -> [R, channels, rows, columns]. An item
 * is an output element. */
struct ObkRoiAlign {
  int64_t batches, channels, height, width, rows, columns, sampling, half_pixel, takes_max;
  int64_t scale_bits; /* a double */
};

/* image[N, channels, height, width], rois[R, 5] -> [R, channels, rows, columns]. An item is an
 * output element. */
struct ObkMaxRoiPool {
  int64_t batches, channels, height, width, rows, columns;
  int64_t scale_bits; /* a double */
};

/* x[count] -> y[count]. An item is one of `ranges` ranges. */
struct ObkRanges {
  int64_t count, ranges;
};
struct ObkPowers {
  int64_t count, ranges, rounding, saturate;
};

/* bins, length, rate, low, high: scalars -> [rows, bins]. An item is a filter. */
struct ObkMel {
  int64_t bins, length, rows;
};

/* The steps of a recurrent layer (ops/recurrence.h): fed, R, bias, lengths, initial h and c -> Y,
 * last h and c; then the words that gangs exchange. An item is a member of the gang of a direction
 * and of up to OBK_RECURRENT_BATCH sequences; its threads share it. */
struct ObkRecurrent {
  int64_t steps, batch, directions, first_backwards;
};
#define OBK_RECURRENT_BATCH 8
/* Words of a step that members of a cluster leave in one another's scratchpad memory, at most. */
#define OBK_RECURRENT_DSMEM 512
/* On a core: floats of scratchpad memory a unit and sequence: two states, the cell, the gates'
 * sums. */
static constexpr inline int64_t obk_recurrent_floats(int64_t gates) { return 3 + gates; }
/* On a GPU: units of one member; and bytes of scratchpad memory: two states, a row of each
 * sequence, in pieces of 32 or 128 units, an odd count of 64 bytes so that rows below one another
 * meet no bank twice. */
static constexpr inline int64_t obk_recurrent_units(int64_t hidden, int64_t gang) {
  return ((hidden + gang - 1) / gang + 3) / 4 * 4;
}
static constexpr inline int64_t obk_recurrent_pitch(int64_t hidden, int64_t bytes) {
  return bytes == 2 ? ((hidden + 31) / 32 | 1) * 64 : (hidden + 127) / 128 * 512;
}
static constexpr inline int64_t obk_recurrent_scratch(int64_t hidden, int64_t batch,
                                                      int64_t bytes) {
  return 2 * batch * obk_recurrent_pitch(hidden, bytes) +
         (batch * hidden <= OBK_RECURRENT_DSMEM ? 16 * batch * hidden : 0);
}

/* A squeeze-and-excitation block (ops/squeeze_excite.h): x with its channels last, w1, b1, w2, b2
 * -> y as x. An item is a member of the gang of an image: it has a part of the pixels and a part of
 * the channels, in vectors of 16 bytes, which it keeps in shared memory. */
struct ObkSqueezeExcite {
  int64_t images;
  int64_t alpha_bits, beta_bits; /* of a hard sigmoid; doubles */
};
enum ObkActivation { OBK_RELU, OBK_SWISH, OBK_HARD_SWISH, OBK_SIGMOID, OBK_HARD_SIGMOID };
#define OBK_EXCITE_GANG 8
#define OBK_EXCITE_THREADS 256
/* Of a pixel's vectors: how many members share them, each with eight or more (128 bytes lie
 * together), and those of one. The rest of the gang shares the pixels. */
static constexpr inline int64_t obk_excite_across(int64_t vectors) {
  return vectors >= 64 ? 8 : vectors >= 32 ? 4 : vectors >= 16 ? 2 : 1;
}
static constexpr inline int64_t obk_excite_own(int64_t vectors) {
  return (vectors + obk_excite_across(vectors) - 1) / obk_excite_across(vectors);
}
/* Pixels of a member, at most; vectors of a thread, where those of a pixel lie side by side. */
static constexpr inline int64_t obk_excite_pixels(int64_t pixels, int64_t vectors) {
  const int64_t down = OBK_EXCITE_GANG / obk_excite_across(vectors);
  return (pixels + down - 1) / down;
}
static constexpr inline int64_t obk_excite_each(int64_t pixels, int64_t vectors) {
  const int64_t rows = OBK_EXCITE_THREADS / obk_excite_own(vectors);
  return (obk_excite_pixels(pixels, vectors) + rows - 1) / rows;
}
/* Floats of shared memory: an mbarrier, sums of the threads, means and gates of the own channels,
 * what all members send, the squeezed values; bytes of these, of both weights and of the map. */
static constexpr inline int64_t obk_excite_floats(int64_t vectors, int64_t squeezed,
                                                  int64_t bytes) {
  return 4 + (OBK_EXCITE_THREADS + 2 * obk_excite_own(vectors)) * (16 / bytes) +
         OBK_EXCITE_THREADS + ((OBK_EXCITE_GANG + 1) * squeezed + 3) / 4 * 4;
}
static constexpr inline int64_t obk_excite_scratch(int64_t pixels, int64_t vectors,
                                                   int64_t squeezed, int64_t bytes) {
  return obk_excite_floats(vectors, squeezed, bytes) * 4 +
         (2 * squeezed + obk_excite_pixels(pixels, vectors)) * obk_excite_own(vectors) * 16;
}

/* x[.., n, n] -> [..]. An item is a matrix; n <= OBK_DET. */
struct ObkDet {
  int64_t n;
};

#endif
