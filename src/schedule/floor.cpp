#include "schedule/floor.h"

#include <algorithm>
#include <map>

namespace obelisk::schedule {
namespace {

using stitch::Group;
using stitch::GroupKind;

/// Elements that an access may touch: an affine one stands still along dimensions of stride 0.
double elements(const Nest& nest, const Access& access) {
  double count = 1;
  for (size_t d = 0; d < nest.dims.size(); ++d)
    if (!access.affine || d >= access.strides.size() || access.strides[d] != 0)
      count *= static_cast<double>(nest.dims[d].extent);
  return count;
}

double bytes_of(const Buffer& buffer, double elements) {
  return std::min(elements, static_cast<double>(buffer.type.count())) *
         static_cast<double>(bits(buffer.type.dtype)) / 8;
}

/// Elements by buffer. What a body reads of one buffer twice counts once; what tiles read besides,
/// as other parts of it.
class Moved {
 public:
  Moved(const Group& group, const TaskGraph& tasks, const Work& work) : tasks_(tasks), work_(work) {
    if (stitch::calls_op(group.kind)) {
      for (int buffer : work.buffers)
        set(buffer, static_cast<double>(tasks.buffers[buffer].type.count()));
      return;
    }
    for (const Access& access : work.nest.accesses) {
      if (access.load == ops::kNoExpr && access.step < 0) continue;  // a tile's operand
      const int slot = access.step >= 0 ? group.body.steps[access.step].slot : access.operand;
      double many = elements(work.nest, access);
      if (access.step >= 0 && group.body.steps[access.step].per_row)
        many = static_cast<double>(work.nest.row_count());
      set(work.buffers[slot], many);
    }
    if (group.kind == GroupKind::kProduct) of_product(group);
    if (group.kind == GroupKind::kConv) of_conv(group);
    if (group.kind == GroupKind::kAttention) of_attention(group);
  }

  /// Bytes, of weights alone where asked.
  double bytes(bool weights) const {
    double sum = 0;
    for (const auto& [buffer, many] : elements_)
      if (!weights || tasks_.buffers[buffer].kind == BufferKind::kWeight)
        sum += bytes_of(tasks_.buffers[buffer], many);
    return sum;
  }
  void join_weights(std::map<int, double>& all) const {
    for (const auto& [buffer, many] : elements_)
      if (tasks_.buffers[buffer].kind == BufferKind::kWeight)
        all[buffer] = std::max(all[buffer], many);
  }

 private:
  void set(int buffer, double many) {
    double& known = elements_[buffer];
    known = std::max(known, many);
  }
  void add(int buffer, double many) { elements_[buffer] += many; }

  void of_product(const Group& group) {
    const stitch::Product& p = group.product;
    const double rows = static_cast<double>(work_.nest.row_count()),
                 columns = static_cast<double>(work_.nest.column_count() * p.b_count());
    double depth = 1;
    for (const auto& dim : p.k) depth *= static_cast<double>(dim.extent);
    const int a = work_.operand_count(group);
    const Access *of_a = work_.nest.of_product(group, 0), *of_b = work_.nest.of_product(group, 1);
    // Rows of A, and matrices of B, that are not the same again.
    double batches = 1, high = 1;
    for (int d = 0; d < work_.nest.rows; ++d) {
      const double extent = static_cast<double>(work_.nest.dims[d].extent);
      if (of_a && of_a->strides[d] != 0) high *= extent;
      if (of_b && of_b->strides[d] != 0) batches *= extent;
    }
    add(work_.buffers[a], std::min(of_a ? high : rows, rows) * depth);
    add(work_.buffers[a + 1], (of_b ? batches : 1) * columns * depth);
  }
  void of_conv(const Group& group) {
    const stitch::ConvTile& c = group.conv;
    const double taps = static_cast<double>(c.kernel_h * c.kernel_w);
    const double pixels = static_cast<double>(c.shape.batch * c.out_height * c.out_width);
    const int x = work_.operand_count(group);
    add(work_.buffers[x],
        pixels * taps * static_cast<double>(c.shape.group_inputs * c.shape.groups));
    add(work_.buffers[x + 1], taps * static_cast<double>(c.shape.outputs * c.shape.group_inputs));
  }
  void of_attention(const Group& group) {
    const stitch::AttentionTile& t = group.attention;
    const auto extent = [&](const stitch::AttentionTile::Operand& operand, int64_t heads,
                            int64_t rows, int64_t width) {
      return static_cast<double>((operand.image != 0 ? t.images : 1) *
                                 (operand.head != 0 ? heads : 1) * rows * width);
    };
    const size_t q = group.body.operands.size();
    const int64_t shared = std::max<int64_t>(t.shared, 1);
    add(work_.buffers[q], extent(t.q, t.heads, t.queries, t.size));
    add(work_.buffers[q + 1], extent(t.k, t.heads / shared, t.keys, t.size));
    add(work_.buffers[q + 2], extent(t.v, t.heads / shared, t.keys, t.value_size));
  }

  const TaskGraph& tasks_;
  const Work& work_;
  std::map<int, double> elements_;
};

/// Of the unit that computes the group, operations a nanosecond.
double peak_of(const Group& group, const machine::Peaks& peaks) {
  const auto by_tile = [&](int32_t type) {
    if (type == kObkTf32) return std::max(peaks.tensor_tf32, peaks.f32);
    if (type == kObkF32) return peaks.f32;
    if (type == kObkF64) return peaks.f64;
    return std::max(peaks.tensor_16, peaks.f32);
  };
  switch (group.kind) {
    case GroupKind::kProduct:
      return by_tile(group.product.tile_type());
    case GroupKind::kConv:
      return group.conv.depthwise ? peaks.f32 : by_tile(group.conv.tile_type());
    case GroupKind::kAttention:
      return by_tile(group.attention.tile_type());
    case GroupKind::kStitched:
      return peaks.f32;
    case GroupKind::kBlock:
    case GroupKind::kCustom:
      break;
  }
  return std::max({peaks.tensor_16, peaks.tensor_tf32, peaks.f32});
}

/// Bytes of a work: of an op without a loop form, which may read a few rows of a table, no more
/// than it says.
double bytes_of_work(const Group& group, const Moved& moved) {
  const double bytes = moved.bytes(false);
  return stitch::calls_op(group.kind)
             ? std::min(bytes,
                        static_cast<double>(group.cost.read.count + group.cost.written.count))
             : bytes;
}

double operations(const Group& group) {
  const double all = group.cost.flops.count;
  // Query i sees keys 0 .. i: about half of all pairs.
  return group.kind == GroupKind::kAttention && group.attention.causal ? all / 2 : all;
}

}  // namespace

std::vector<double> floor_nanos(const stitch::Plan& plan, const TaskGraph& tasks,
                                const machine::Machine& machine) {
  const machine::Peaks& peaks = machine.peaks;
  std::vector<Moved> moved;
  double weights = 0;
  std::map<int, double> of_weights;  // elements; works that share a weight read one
  for (const Work& work : tasks.works) {
    moved.emplace_back(plan.groups[work.group], tasks, work);
    moved.back().join_weights(of_weights);
  }
  for (const auto& [buffer, many] : of_weights) weights += bytes_of(tasks.buffers[buffer], many);
  // Of the weights of all, what the last cache does not keep from one run to the next.
  const double far = weights > peaks.cache_capacity && peaks.cache_capacity > 0
                         ? 1 - peaks.cache_capacity / weights
                         : 0;
  std::vector<double> floors;
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Group& group = plan.groups[tasks.works[w].group];
    const bool tile = group.kind == GroupKind::kProduct || group.kind == GroupKind::kConv;
    const double bytes = bytes_of_work(group, moved[w]);
    double nanos = std::max(bytes / peaks.cache_bytes, operations(group) / peak_of(group, peaks));
    if (tile) nanos = std::max(nanos, far * moved[w].bytes(true) / peaks.memory_bytes);
    if (peaks.cache_capacity > 0)
      nanos = std::max(nanos, (bytes - peaks.cache_capacity) / peaks.memory_bytes);
    floors.push_back(nanos / machine.sms);
  }
  return floors;
}

std::vector<Traffic> traffic(const stitch::Plan& plan, const TaskGraph& tasks,
                             const machine::Machine& machine) {
  std::vector<Traffic> out;
  for (const Work& work : tasks.works) {
    const Group& group = plan.groups[work.group];
    out.push_back({bytes_of_work(group, Moved(group, tasks, work)), operations(group),
                   peak_of(group, machine.peaks)});
  }
  return out;
}

}  // namespace obelisk::schedule
