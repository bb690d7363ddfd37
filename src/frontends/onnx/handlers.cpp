#include "frontends/onnx/handlers.h"

namespace obelisk::frontends::onnx {
namespace {

const std::map<std::string_view, Handler>& standard_handlers() {
  static const std::map<std::string_view, Handler> table = {
      {"Add", import_binary},
      {"Sub", import_binary},
      {"Mul", import_binary},
      {"Div", import_binary},
      {"Pow", import_binary},
      {"And", import_binary},
      {"Or", import_binary},
      {"Xor", import_binary},
      {"Equal", import_binary},
      {"Greater", import_binary},
      {"Less", import_binary},
      {"PRelu", import_prelu},
      {"Clip", import_clip},
      {"Cast", import_cast},
      {"CastLike", import_cast_like},
      {"Selu", import_selu},
      {"Dropout", import_dropout},

      {"Constant", import_constant},
      {"Identity", import_identity},
      {"Shape", import_shape},
      {"Size", import_size},
      {"Reshape", import_reshape},
      {"Squeeze", import_axes_input},
      {"Unsqueeze", import_axes_input},
      {"ReduceSum", import_axes_input},
      {"ReduceMean", import_axes_input},
      {"ReduceMax", import_axes_input},
      {"ReduceMin", import_axes_input},
      {"ReduceProd", import_axes_input},
      {"ReduceL1", import_axes_input},
      {"ReduceL2", import_axes_input},
      {"ReduceLogSum", import_axes_input},
      {"ReduceLogSumExp", import_axes_input},
      {"ReduceSumSquare", import_axes_input},
      {"Slice", import_slice},
      {"Split", import_split},
      {"Pad", import_pad},
      {"Tile", import_tile},
      {"TopK", import_top_k},
      {"Scatter", import_scatter},

      {"Softmax", import_softmax},
      {"LogSoftmax", import_softmax},
      {"Hardmax", import_softmax},
      {"BatchNormalization", import_batch_norm},
      {"GroupNormalization", import_group_norm},
      {"Gemm", import_gemm},
      {"Resize", import_resize},
      {"Upsample", import_upsample},
      {"LpPool", import_lp_pool},
      {"GlobalLpPool", import_lp_pool},
      {"DFT", import_dft},
      {"TfIdfVectorizer", import_tfidf_vectorizer},
      {"RNN", import_recurrent},
      {"LSTM", import_recurrent},
      {"GRU", import_recurrent},

      {"If", import_if},
      {"Loop", import_loop},
      {"Scan", import_scan},
      {"SequenceEmpty", import_sequence_empty},
      {"SequenceConstruct", import_sequence_construct},
      {"SequenceAt", import_sequence_at},
      {"SequenceInsert", import_sequence_insert},
      {"SequenceErase", import_sequence_erase},
      {"SequenceLength", import_sequence_length},
      {"SplitToSequence", import_split_to_sequence},
      {"ConcatFromSequence", import_concat_from_sequence},
      {"SequenceMap", import_sequence_map},
      {"Optional", import_optional},
      {"OptionalHasElement", import_optional_has_element},
      {"OptionalGetElement", import_optional_get_element},
  };
  return table;
}

}  // namespace

Handler find_handler(std::string_view domain, std::string_view op) {
  if (domain == "com.microsoft") return find_microsoft_handler(op);
  if (!domain.empty()) return nullptr;
  if (const auto found = standard_handlers().find(op); found != standard_handlers().end())
    return found->second;
  // ONNX Runtime keeps one of its fused norms in the standard domain.
  return op == "SimplifiedLayerNormalization" ? find_microsoft_handler(op) : nullptr;
}

}  // namespace obelisk::frontends::onnx
