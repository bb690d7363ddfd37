/// frontends/onnx/handlers.h — the ops that need a word before they enter the graph, by family of
/// rewrite.
///
/// A handler reads site.opset and leaves newest-spelling ops behind it; what each old version meant
/// stands at its function.
#pragma once

#include "frontends/onnx/site.h"

namespace obelisk::frontends::onnx {

// upgrade_elementwise.cpp
void import_binary(Site& site);  // < 7: `broadcast` and `axis` instead of numpy's rule
void import_prelu(Site& site);
void import_clip(Site& site);  // < 11: bounds were attributes
void import_cast(Site& site);
void import_cast_like(Site& site);
void import_selu(Site& site);
void import_dropout(Site& site);

// upgrade_shape.cpp
void import_constant(Site& site);
void import_identity(Site& site);
void import_shape(Site& site);
void import_size(Site& site);
void import_reshape(Site& site);     // < 5: the shape was an attribute
void import_axes_input(Site& site);  // Squeeze, Unsqueeze, Reduce*: axes were an attribute
void import_slice(Site& site);
void import_split(Site& site);
void import_pad(Site& site);
void import_tile(Site& site);
void import_top_k(Site& site);
void import_scatter(Site& site);

// upgrade_layers.cpp
void import_softmax(Site& site);  // Softmax, LogSoftmax, Hardmax < 13: over a matrix
void import_batch_norm(Site& site);
void import_group_norm(Site& site);
void import_gemm(Site& site);
void import_resize(Site& site);
void import_upsample(Site& site);
void import_lp_pool(Site& site);
void import_dft(Site& site);
void import_recurrent(Site& site);

// control_flow.cpp
void import_if(Site& site);
void import_loop(Site& site);
void import_scan(Site& site);

// sequences.cpp: lists exist only while importing
void import_sequence_empty(Site& site);
void import_sequence_construct(Site& site);
void import_sequence_at(Site& site);
void import_sequence_insert(Site& site);
void import_sequence_erase(Site& site);
void import_sequence_length(Site& site);
void import_split_to_sequence(Site& site);
void import_concat_from_sequence(Site& site);
void import_sequence_map(Site& site);
void import_optional(Site& site);
void import_optional_has_element(Site& site);
void import_optional_get_element(Site& site);

// vectorize.cpp
void import_tfidf_vectorizer(Site& site);  // n-grams of integers, as comparisons and sums

// microsoft.cpp: ops that graph optimisers of ONNX Runtime write
Handler find_microsoft_handler(std::string_view op);
// microsoft_attention.cpp
void import_multi_head_attention(Site& site);
void import_group_query_attention(Site& site);

}  // namespace obelisk::frontends::onnx
