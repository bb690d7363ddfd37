/* kernels/cuda/core/ptx.cuh — PTX instructions, one function each, named by what they do.
 *
 *   order       arrive_release, poll_acquire at gpu scope; fence_async_global: plain writes before
 *               copies of TMA
 *   copies      mbarriers in shared memory, bulk copies global -> shared, 16-byte asynchronous
 *               copies of single threads
 *   matrices    mma m16n8k16 (f16 or bf16 in, float out) and m16n8k8 (tf32 in), ldmatrix
 *   floats      f16, bf16 <-> float, rounded to nearest even; NaN stays NaN
 *
 * Addresses of shared memory are 32-bit, from `shared_address`. Needs sm_80; bulk copies and
 * mbarriers need sm_90. */
#ifndef OBK_PTX_CUH
#define OBK_PTX_CUH

#include "core/types.cuh"

#define OBK_DEVICE static __device__ __forceinline__

/* A warp that computes nothing is not waited for (dataflow.cuh). */
#ifdef OBK_DATAFLOW
static __device__ __forceinline__ void obk_meet() { asm volatile("bar.sync 0, 256;" ::: "memory"); }
#define __syncthreads obk_meet
#endif

namespace obk {

/* ---- order ---- */
/* 64-bit counters never wrap, so that one that only grows needs no reset between runs. */
OBK_DEVICE void arrive_release(uint64_t* counter) {
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(counter) : "memory");
}
/* By who has nothing to show (barrier.cuh): waits for no copy. */
OBK_DEVICE void arrive_relaxed(uint64_t* counter) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(counter) : "memory");
}
OBK_DEVICE uint64_t poll_acquire(const uint64_t* counter) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}
OBK_DEVICE uint64_t poll_relaxed(const uint64_t* counter) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}
/* Adds one; gives what was there. Stores of threads that met this one before are seen by who draws
 * a later number, and by threads that meet that one. */
OBK_DEVICE uint32_t take_ticket(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}
OBK_DEVICE float exp2_approx(float x) { /* to 2 units of the last place; -inf gives 0, NaN stays */
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
OBK_DEVICE float reciprocal_approx(float x) { /* to 1 unit of the last place; inf gives 0 */
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/* A word that carries all that its reader needs: seen whole or not at all, in no order with others.
 */
OBK_DEVICE void post_relaxed(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
/* The same in the shared memory of CTAs of one cluster, which must all have begun (cluster_meet)
 * and must not end before what others write to them has come. */
OBK_DEVICE uint32_t dsmem_address(uint32_t shared, int rank) {
  uint32_t address = shared;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
#endif
  return address;
}
OBK_DEVICE void post_dsmem(uint32_t to, uint64_t word) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.relaxed.cluster.shared::cluster.u64 [%0], %1;" ::"r"(to), "l"(word) : "memory");
#endif
}
OBK_DEVICE uint64_t poll_dsmem(uint32_t own) {
  uint64_t word = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.relaxed.cluster.shared::cta.u64 %0, [%1];" : "=l"(word) : "r"(own) : "memory");
#endif
  return word;
}
/* Four bytes, which the mbarrier beside them counts when they have come. */
OBK_DEVICE void store_dsmem4(uint32_t to, float value, uint32_t bar) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
      "f"(value), "r"(bar)
      : "memory");
#endif
}
/* The same of eight. */
OBK_DEVICE void store_dsmem8(uint32_t to, float a, float b, uint32_t bar) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "f"(a), "f"(b), "r"(bar)
      : "memory");
#endif
}
/* The same of sixteen. */
OBK_DEVICE void store_dsmem16(uint32_t to, const uint32_t (&words)[4], uint32_t bar) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(bar)
      : "memory");
#endif
}
/* All threads of a cluster, each of which arrives before it waits. */
OBK_DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
/* With nothing to show but mbarriers that a fence has made known: the other waits for all stores.
 */
OBK_DEVICE void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
OBK_DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
OBK_DEVICE void cluster_meet() { cluster_arrive(), cluster_wait(); }
/* The same of who has stored nothing that another one reads, but for mbarriers
 * (mbarrier_init_fence). */
OBK_DEVICE void cluster_meet_relaxed() { cluster_arrive_relaxed(), cluster_wait(); }
/* Between what others stored plainly, and an acquire has shown, and TMA's reads. Of all
 * spaces (fence.proxy.async) it would wait for all that is on its way as well. */
OBK_DEVICE void fence_async_global() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
/* Between plain accesses to shared memory and those of TMA and of wgmma. */
OBK_DEVICE void fence_async_shared() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* Whole warps, so many threads, meet; name 0 is the barrier of all. */
OBK_DEVICE void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* ---- clocks ---- */
OBK_DEVICE int64_t clock_cycles() { return clock64(); }
OBK_DEVICE uint64_t clock_nanos() {
  unsigned long long value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

OBK_DEVICE uint32_t sm_id() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

/* ---- copies ---- */
OBK_DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

#if __CUDA_ARCH__ >= 900
OBK_DEVICE void mbarrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
OBK_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
OBK_DEVICE void mbarrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
OBK_DEVICE bool mbarrier_try(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}
/* The same, waiting about so many nanoseconds at most. */
OBK_DEVICE bool mbarrier_try_for(uint32_t bar, uint32_t parity, uint32_t nanos) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3; selp.u32 %0, 1, 0, "
      "p;}"
      : "=r"(done)
      : "r"(bar), "r"(parity), "r"(nanos)
      : "memory");
  return done != 0;
}
/* The same without waiting. */
OBK_DEVICE bool mbarrier_test(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}
OBK_DEVICE void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* At an mbarrier of a CTA of the cluster (dsmem_address), of who has only read: it orders no
 * stores. One that did (.release) would wait a microsecond for all that the CTA has under way. */
OBK_DEVICE void mbarrier_arrive_dsmem(uint32_t bar) {
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < \
    1208 /* their assemblers have no other form */
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar)
               : "memory");
#else
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar)
               : "memory");
#endif
}
/* Programs that share the GPU (OBK_SHARES_GPU) stream more weights through the L2 cache than it
 * holds before any is read again. Their weights are evicted first, so that activations stay. */
#ifdef OBK_SHARES_GPU
OBK_DEVICE uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
#endif
/* Weights to shared memory. Addresses and size are multiples of 16. */
OBK_DEVICE void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
#ifdef OBK_SHARES_GPU
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(evict_first())
      : "memory");
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
#endif
}
/* The same to all CTAs of a cluster whose bit is set, each at the same address, counted by its
 * mbarrier at the same address. The assembler warns of it in code for plain sm_90. */
OBK_DEVICE void bulk_copy_to_all(uint32_t to, const void* from, uint32_t bytes, uint32_t bar,
                                 uint16_t ctas) {
#ifdef OBK_SHARES_GPU
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "h"(ctas), "l"(evict_first())
      : "memory");
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "h"(ctas)
      : "memory");
#endif
}
/* To the second-level cache only. */
OBK_DEVICE void bulk_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
/* The line that holds `from`, likewise. */
OBK_DEVICE void line_prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}
/* Blocks of 64 columns of a 16-bit matrix that `map` describes, its rows from `row`, as atoms of 8
 * rows whose 16-byte pieces are swapped by row; as many rows, and blocks from `block`, as the map
 * says, zeros beyond it. */
OBK_DEVICE void copy_blocks(uint32_t to, const void* map, int row, int block, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(block), "r"(bar)
      : "memory");
}
/* A box of up to 64 columns of a 16-bit matrix, and as many rows, as `map` says, from `row` and
 * `column`; swizzled alike, zeros beyond the matrix. */
OBK_DEVICE void copy_box(uint32_t to, const void* map, int row, int column, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(bar)
      : "memory");
}
OBK_DEVICE void fetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Of a map in global memory, by each thread that copies by it: what the host wrote there before the
 * kernel began is what the copies read. */
OBK_DEVICE void acquire_map(const void* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
#else /* nobody calls them: a ring has no pages */
OBK_DEVICE void mbarrier_init(uint32_t, uint32_t) {}
OBK_DEVICE void mbarrier_init_fence() {}
OBK_DEVICE void mbarrier_expect(uint32_t, uint32_t) {}
OBK_DEVICE void mbarrier_arrive(uint32_t) {}
OBK_DEVICE bool mbarrier_try(uint32_t, uint32_t) { return true; }
OBK_DEVICE bool mbarrier_try_for(uint32_t, uint32_t, uint32_t) { return true; }
OBK_DEVICE bool mbarrier_test(uint32_t, uint32_t) { return true; }
OBK_DEVICE void bulk_copy(uint32_t, const void*, uint32_t, uint32_t) { __trap(); }
OBK_DEVICE void bulk_copy_to_all(uint32_t, const void*, uint32_t, uint32_t, uint16_t) { __trap(); }
OBK_DEVICE void mbarrier_arrive_dsmem(uint32_t) {}
OBK_DEVICE void copy_blocks(uint32_t, const void*, int, int, uint32_t) { __trap(); }
OBK_DEVICE void copy_box(uint32_t, const void*, int, int, uint32_t) { __trap(); }
OBK_DEVICE void bulk_prefetch(const void*, uint32_t) {}
OBK_DEVICE void line_prefetch(const void*) {}
OBK_DEVICE void fetch_map(const void*) {}
OBK_DEVICE void acquire_map(const void*) {}
#endif
/* 16 bytes by one thread, past the first-level cache. */
OBK_DEVICE void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The same, of which only the first `bytes` are read; the rest becomes zero. */
OBK_DEVICE void copy16_partly(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
/* The same where `copies`, without a branch. */
OBK_DEVICE void copy16_if(bool copies, uint32_t to, const void* from, uint32_t bytes) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\t"
      "@p cp.async.cg.shared.global [%0], [%1], 16, %2;\n\t}" ::"r"(to),
      "l"(from), "r"(bytes), "r"((uint32_t)copies)
      : "memory");
}
/* kUnit bytes, 4, 8 or 16; none of them is read where `bytes` is 0. */
template <int kUnit>
OBK_DEVICE void copy_unit(uint32_t to, const void* from, uint32_t bytes) {
  if (kUnit == 16)
    copy16_partly(to, from, bytes);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kUnit),
                 "r"(bytes)
                 : "memory");
}
/* 16 bytes by copies of kUnit, of which only the first `bytes` are read; the rest becomes zero. */
template <int kUnit>
OBK_DEVICE void copy_piece(uint32_t to, const void* from, uint32_t bytes) {
  if constexpr (kUnit == 16) {
    copy16_partly(to, from, bytes);
  } else {
#pragma unroll
    for (uint32_t e = 0; e < 16; e += kUnit) {
      const uint32_t left = bytes > e ? min(bytes - e, (uint32_t)kUnit) : 0;
      copy_unit<kUnit>(to + e, left > 0 ? (const char*)from + e : from, left);
    }
  }
}
OBK_DEVICE void copy16_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
OBK_DEVICE void copy16_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/* 2, 4, 8 or 16 bytes of global memory, aligned so. */
OBK_DEVICE void load_global16(uint32_t& r, const void* from) {
  uint16_t half;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(half) : "l"(from) : "memory");
  r = half;
}
OBK_DEVICE void load_global(uint32_t (&r)[1], const void* from) {
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(r[0]) : "l"(from) : "memory");
}
OBK_DEVICE void load_global(uint32_t (&r)[2], const void* from) {
  asm volatile("ld.global.v2.b32 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(from) : "memory");
}
OBK_DEVICE void load_global(uint32_t (&r)[4], const void* from) {
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "l"(from)
               : "memory");
}

/* ---- matrices ---- */
/* d[16,8] += a[16,16] b[16,8]. Lane l holds rows l/4 and l/4 + 8 of a and d, column l/4 of b. */
template <bool kBfloat>
OBK_DEVICE void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if (kBfloat)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* To 10 bits of mantissa, the nearest, halves away from zero: what mma_16x8x8 multiplies. */
OBK_DEVICE uint32_t round_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
/* d[16,8] += a[16,8] b[8,8]. Lane l holds rows l/4 (a[0], a[2]) and l/4 + 8 of a, places l%4 of k
 * and l%4 + 4 (a[2], a[3]; b1), column l/4 of b; d as above. */
OBK_DEVICE void mma_16x8x8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
OBK_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/* Two of them, by the addresses of lanes 0 to 15. */
OBK_DEVICE void load_two_matrices(uint32_t& a, uint32_t& b, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(a), "=r"(b)
               : "r"(address)
               : "memory");
}
/* The same with each matrix transposed. */
OBK_DEVICE void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
OBK_DEVICE void load_shared16(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

OBK_DEVICE uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
OBK_DEVICE void store_shared_word(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
OBK_DEVICE void store_shared_half(uint32_t address, uint32_t v) { /* its lower 16 bits */
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"((uint16_t)v) : "memory");
}
OBK_DEVICE float load_shared(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
OBK_DEVICE void store_shared(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
OBK_DEVICE void load_shared8(float& a, float& b, uint32_t address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(address) : "memory");
}
OBK_DEVICE void store_shared8(uint32_t address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
OBK_DEVICE void store_shared16(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

/* ---- floats ---- */
/* A zero that is written now: a copy between two products would wait for the first. */
OBK_DEVICE float zero_here() {
  float v;
  asm volatile("mov.f32 %0, 0f00000000;" : "=f"(v));
  return v;
}
OBK_DEVICE float widen_f16_bits(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
OBK_DEVICE uint16_t narrow_f16_bits(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
OBK_DEVICE uint16_t narrow_bf16_bits(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
/* Two floats as 16-bit elements, the first in the low half. */
template <bool kBfloat>
OBK_DEVICE uint32_t narrow_two(float low, float high) {
  uint32_t bits;
  if (kBfloat)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

}  // namespace obk

#endif
