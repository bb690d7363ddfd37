// The shadow run's memory: which element each byte holds, and who reads or stores it.
#include <algorithm>

#include "schedule/dataflow_spans.h"
#include "schedule/shadow.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule::shadow {

Status Shadow::prepare() {
  int64_t smallest = 16;
  for (const Buffer& buffer : tasks_.buffers)
    if (buffer.kind == BufferKind::kArena)
      smallest = std::min(smallest, std::max<int64_t>(byte_size(buffer.type.dtype, 1), 1));
  arena_.unit = smallest;
  arena_.resize(tasks_.arena.count);
  outputs_.resize(tasks_.buffers.size());
  for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
    const Buffer& buffer = tasks_.buffers[b];
    if (buffer.kind == BufferKind::kOutput) {
      outputs_[b].unit = std::max<int64_t>(byte_size(buffer.type.dtype, 1), 1);
      outputs_[b].resize(buffer.size.count);
    } else if (is_kept(buffer)) {
      for (int64_t at = 0; at < buffer.size.count; at += arena_.unit)
        arena_.tags[unit_at(buffer, at)] = kept_tag(b);
    }
  }
  if (tasks_.dataflow) {
    Area copies;
    copies.unit = smallest;
    copies.resize(tasks_.copies.count);
    copies_.assign(tasks_.lists.size(), copies);
    gathered_.resize(tasks_.lists.size());
  }
  taggings_.resize(static_cast<size_t>(graph_.value_count()));
  for (const Group& group : plan_.groups)
    if (group.in_place_of != graph::kNone) overwritten_[group.in_place_of] = {};
  return ok_status();
}

bool Shadow::is_kept(const Buffer& buffer) {
  return buffer.kind == BufferKind::kArena && buffer.value == graph::kNone &&
         buffer.type.dtype == DType::u8;
}

Tag Shadow::kept_tag(size_t b) const {
  return tag_of(2 * graph_.value_count() + static_cast<int64_t>(b), 0);
}

size_t Shadow::unit_at(const Buffer& buffer, int64_t byte) const {
  return static_cast<size_t>((buffer.offset.count + byte) / arena_.unit);
}

Result<const Tagging*> Shadow::tagging(ValueId value) {
  Tagging& made = taggings_[static_cast<size_t>(value)];
  if (made.storage != graph::kNone) return &made;
  TRY(const StorageBox box, storage_box(graph_, plan_, value));
  made.strides = box.steps;
  const std::vector<int64_t> steps = row_major_strides(graph_.type(box.storage).shape);
  for (size_t d = 0; d < box.begin.size(); ++d) made.base += box.begin[d] * steps[d];
  made.storage = box.storage;
  return &made;
}

Error Shadow::wrong(size_t work, std::string text) const {
  const NodeName name = name_of(work);
  return Error{Code::kBuild, "schedule",
               fmt::format("shadow run, wave {}, work {}: {}", wave_, work, text), name,
               "this is a defect of Obelisk; please report it with the model"};
}

Shadow::NodeName Shadow::name_of(size_t work) const {
  const Group& group = plan_.groups[tasks_.works[work].group];
  return group.nodes.empty() ? "" : graph_.node(group.nodes.front()).name;
}

Shadow::Place Shadow::place(int b, int sm) {
  const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
  if (buffer.kind == BufferKind::kOutput) return {&outputs_[static_cast<size_t>(b)], 0};
  if (buffer.kind != BufferKind::kArena) return {};
  if (tasks_.dataflow && buffer.reach != Reach::kAll && sm >= 0)
    return {&copies_[static_cast<size_t>(sm)], buffer.copy_at.count};
  return {&arena_, buffer.offset.count};
}

Status Shadow::look(size_t work, int b, int sm, int64_t offset, Tag tag) {
  const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
  const int64_t width = bits(buffer.type.dtype);
  if (offset < 0 || (offset + 1) * width > 8 * buffer.size.count)
    return wrong(work, fmt::format("reads element {} of a buffer of {}, {} is meant", offset,
                                   to_string(buffer.size), text_of(tag)));
  const Place at = place(b, sm);
  if (at.area == nullptr) {  // as the caller or the packer lays it out: dense, row-major
    if (const auto input = overwritten_.find(buffer.value); input != overwritten_.end()) {
      if (input->second.overwritten_in >= 0)
        return wrong(work, fmt::format("reads element {} of input %{}, which wave {} overwrote",
                                       offset, buffer.value, input->second.overwritten_in));
      input->second.read_in = wave_;
    }
    if (tag == tag_of(buffer.value, offset)) return ok_status();
    return wrong(work, fmt::format("reads element {} of %{}, {} is meant", offset, buffer.value,
                                   text_of(tag)));
  }
  if (width < 8) tag -= static_cast<Tag>(offset % (8 / width));
  const int64_t byte = at.begin + offset * width / 8;
  const bool copies = at.area != &arena_ && tasks_.dataflow;
  for (int64_t u = byte / at.area->unit; u * at.area->unit < byte + std::max<int64_t>(width / 8, 1);
       ++u) {
    const auto unit = static_cast<size_t>(u);
    if (at.area->tags[unit] != tag)
      return wrong(work,
                   fmt::format("reads {} at element {} of value %{}'s buffer, {} is meant",
                               text_of(at.area->tags[unit]), offset, buffer.value, text_of(tag)));
    if (!copies && !tasks_.dataflow && at.area->stored_in[unit] == wave_)
      return wrong(work, fmt::format("reads {}, which the same wave stores", text_of(tag)));
    at.area->read_in[unit] = wave_;
  }
  return ok_status();
}

Status Shadow::put(size_t work, int b, int sm, int64_t offset, Tag tag) {
  const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
  const int64_t width = bits(buffer.type.dtype);
  if (offset < 0 || (offset + 1) * width > 8 * buffer.size.count)
    return wrong(work, fmt::format("stores {} at element {} of a buffer of {}", text_of(tag),
                                   offset, to_string(buffer.size)));
  const bool own = tasks_.works[work].replicated();
  const Place at = place(b, own ? sm : -1);
  if (at.area == nullptr)
    return wrong(work, fmt::format("stores {} into an input or a weight", text_of(tag)));
  if (width < 8) tag -= static_cast<Tag>(offset % (8 / width));
  const int64_t byte = at.begin + offset * width / 8;
  for (int64_t u = byte / at.area->unit; u * at.area->unit < byte + std::max<int64_t>(width / 8, 1);
       ++u) {
    const auto unit = static_cast<size_t>(u);
    if (!own) {
      if (at.area->stored_in[unit] == wave_ && width >= 8)
        return wrong(work, fmt::format("stores {} where the same wave stores {}", text_of(tag),
                                       text_of(at.area->tags[unit])));
      if (at.area->read_in[unit] == wave_)
        return wrong(work, fmt::format("stores {} over {}, which the same wave reads", text_of(tag),
                                       text_of(at.area->tags[unit])));
      if (&arena_ == at.area && at.area->tags[unit] >= tag_of(2 * graph_.value_count(), 0))
        return wrong(work,
                     fmt::format("stores {} into bytes that last from run to run", text_of(tag)));
    }
    at.area->tags[unit] = tag, at.area->stored_in[unit] = wave_;
  }
  return ok_status();
}

Status Shadow::look_at_whole(size_t work, int b, int sm, ValueId value) {
  return each_element(value,
                      [&](int64_t offset, Tag tag) { return look(work, b, sm, offset, tag); });
}

}  // namespace obelisk::schedule::shadow
