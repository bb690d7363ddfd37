/* kernels/common/packs.h — neighbouring elements that are loaded and stored as one.
 *
 * - obk::Pack<T, V>: V elements of storage type T, in words
 * - obk::load_pack<V>(p, i): elements i .. i + V - 1 of p, whose address is a multiple of the
 * pack's size, or of 16 bytes
 * - obk::still_pack<V>(p, i): the same of memory that nobody writes while the kernel runs
 * - obk::once_pack<V>(p, i): the same of more than caches hold, which the kernel reads once
 * - obk::load_sums<V, planes>(p, other, i): of floats, the same, plus what lies `other` floats
 *   further, plane after plane, if not 0
 * - obk::at(pack, v): element v as the type of arithmetic
 * - obk::unpack_anew(pack): what at() gave before is not kept for later, the pack alone stays in
 *   registers
 * - obk::store_pack<V>(p, i, o): o[0 .. V-1], with one rounding each
 *
 * Before this text stand numbers.h and load_bytes<n>(from, words), store_bytes<n>(to, words) of the
 * machine. */
#ifndef OBK_PACKS_H
#define OBK_PACKS_H

namespace obk {

template <typename T, int V>
struct Pack {
  static constexpr int kBytes = V * (int)sizeof(T);
  uint32_t words[(kBytes + 3) / 4];
};

template <int V, typename T>
static inline Pack<T, V> load_pack(const T* p, int64_t i) {
  Pack<T, V> pack;
  load_bytes<V*(int)sizeof(T)>(p + i, pack.words);
  return pack;
}

#ifndef OBK_OWN_STILL
template <int V, typename T>
static inline Pack<T, V> still_pack(const T* p, int64_t i) {
  return load_pack<V>(p, i);
}
template <int V, typename T>
static inline Pack<T, V> once_pack(const T* p, int64_t i) {
  return load_pack<V>(p, i);
}
template <int V, typename T>
static inline void unpack_anew(Pack<T, V>&) {}
#endif

template <int V, int planes = 2>
static inline Pack<float, V> load_sums(const float* p, int other, int i) {
  Pack<float, V> sums = load_pack<V>(p, i);
  for (int plane = 1; other != 0 && plane < planes; ++plane) {
    const Pack<float, V> more = load_pack<V>(p + plane * other, i);
    for (int v = 0; v < V; ++v) {
      float a, b;
      memcpy(&a, &sums.words[v], 4), memcpy(&b, &more.words[v], 4);
      a += b;
      memcpy(&sums.words[v], &a, 4);
    }
  }
  return sums;
}

/* Element v's bits. */
template <typename T, int V>
static inline T element(const Pack<T, V>& pack, int v) {
  T value;
  if (sizeof(T) == 8) {
    const uint64_t bits = (uint64_t)pack.words[2 * v + 1] << 32 | pack.words[2 * v];
    memcpy(&value, &bits, sizeof value);
  } else if (sizeof(T) == 4) {
    memcpy(&value, &pack.words[v], sizeof value);
  } else {
    constexpr int per_word = 4 / (int)sizeof(T);
    const uint32_t bits = pack.words[v / per_word] >> (v % per_word * 8 * (int)sizeof(T));
    memcpy(&value, &bits, sizeof value);
  }
  return value;
}
template <typename T, int V>
static inline auto at(const Pack<T, V>& pack, int v) {
  const T value = element(pack, v);
  return load(&value, 0);
}

/* Of 16 bits in scratchpad memory, whose rows begin at words: element v of two packs side by side;
 * V elements from a word on. */
template <typename T, int V>
static inline void put_pair(T* to, int word, const Pack<T, V>& low, const Pack<T, V>& high, int v) {
  const uint32_t bits = low.words[v / 2] >> v % 2 * 16 & 0xffff | high.words[v / 2] >> v % 2 * 16
                                                                                           << 16;
  ((uint32_t*)to)[word] = bits;
}
template <int V, typename T>
static inline Pack<T, V> take_pairs(const T* from, int word) {
  Pack<T, V> pack;
  for (int k = 0; k < V / 2; ++k) pack.words[k] = ((const uint32_t*)from)[word + k];
  return pack;
}

/* Two neighbours of 16 bits, the first in the low half. A machine may have a better way
 * (OBK_OWN_PAIRS). */
template <typename T, typename A>
static inline uint32_t pair_bits(const T*, A low, A high) {
  T value[2];
  store(value, 0, low), store(value, 1, high);
  uint32_t bits = 0;
  memcpy(&bits, value, 2 * sizeof(T) < 4 ? 2 * sizeof(T) : 4);
  return bits;
}
#ifdef OBK_OWN_PAIRS
static inline uint32_t pair_bits(const f16*, float low, float high) {
  return pair_f16_bits(low, high);
}
static inline uint32_t pair_bits(const bf16*, float low, float high) {
  return pair_bf16_bits(low, high);
}
#endif

template <int V, typename T, typename A>
static inline Pack<T, V> make_pack(const T*, const A (&o)[V]) {
  Pack<T, V> pack = {};
  uint32_t(&words)[(Pack<T, V>::kBytes + 3) / 4] = pack.words;
  if (sizeof(T) == 2 && V % 2 == 0) {
    for (int v = 0; v < V; v += 2) words[v / 2] = pair_bits((const T*)0, o[v], o[v + 1]);
  } else {
    for (int v = 0; v < V; ++v) {
      T value;
      store(&value, 0, o[v]);
      if (sizeof(T) == 8) {
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        words[2 * v] = (uint32_t)bits, words[2 * v + 1] = (uint32_t)(bits >> 32);
      } else {
        uint32_t bits = 0;
        memcpy(&bits, &value, sizeof value);
        constexpr int per_word = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1;
        words[v / per_word] |= bits << (v % per_word * 8 * (int)(sizeof(T) & 3));
      }
    }
  }
  return pack;
}
template <int V, typename T, typename A>
static inline void store_pack(T* p, int64_t i, const A (&o)[V]) {
  const Pack<T, V> pack = make_pack((const T*)0, o);
  store_bytes<V*(int)sizeof(T)>(p + i, pack.words);
}

}  // namespace obk

#endif
