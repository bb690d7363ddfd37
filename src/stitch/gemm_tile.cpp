#include "stitch/gemm_tile.h"

#include <algorithm>

namespace obelisk::stitch {

using ops::Exprs;
using ops::Loop;
using ops::Scalar;

std::optional<Product> match_product(const Graph& graph, const Views& views, NodeId node,
                                     std::string& why) {
  const Loop* form = views.loop(node, 0);
  if (!form || form->combine != ops::Combine::kSum) {
    why = "not a sum";
    return std::nullopt;
  }
  const int rank = static_cast<int>(form->domain.size());
  if (std::find(form->domain.begin(), form->domain.end(), 0) != form->domain.end()) {
    why = "empty";
    return std::nullopt;
  }
  Exprs exprs;
  std::vector<ExprId> coords;
  for (int d = 0; d < rank; ++d) coords.push_back(exprs.coord(d, form->domain[d]));
  struct Leaf {
    ValueId value;
    DType dtype;
    ops::Affine at;
  };
  std::vector<Leaf> leaves;
  bool plain = true;
  auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                  ExprId) -> ExprId {
    if (guard != kNoExpr) plain = false;
    auto affine = ops::affine(exprs, views.offset(exprs, value, at), rank);
    if (affine)
      leaves.push_back({value, dtype, *affine});
    else
      plain = false;
    return exprs.load(static_cast<int>(leaves.size()), dtype, std::move(at));
  };
  const ExprId body = exprs.import(
      form->exprs, form->body, coords,
      [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
        return views.read(exprs, graph.node(node).inputs[slot], dtype, std::move(at), guard,
                          otherwise, leaf);
      });
  const ops::Expr& top = exprs[body];
  if (!plain || leaves.size() != 2) {
    why = "an operand is not an affine read";
    return std::nullopt;
  }
  if (top.scalar != Scalar::kMul || exprs[top.args[0]].scalar != Scalar::kLoad ||
      exprs[top.args[1]].scalar != Scalar::kLoad) {
    why = "not a product of two reads";
    return std::nullopt;
  }
  Product product;
  product.a = leaves[0].value, product.b = leaves[1].value;
  product.a_offset = leaves[0].at.offset, product.b_offset = leaves[1].at.offset;
  product.a_type = leaves[0].dtype, product.b_type = leaves[1].dtype;
  product.split_k = graph.call(node).attrs.get_int("parts", 1);
  for (int d = 0; d < rank; ++d) {
    if (form->domain[d] == 1) continue;
    Product::Dim dim{form->domain[d], leaves[0].at.strides[d], leaves[1].at.strides[d], d};
    if (d >= form->parallel) {
      if (!dim.a || !dim.b) {
        why = "a summed dimension that one side does not read";
        return std::nullopt;
      }
      // Neighbours that both sides walk as one are one.
      if (!product.k.empty() && product.k.back().a == dim.a * dim.extent &&
          product.k.back().b == dim.b * dim.extent) {
        dim.extent *= product.k.back().extent;
        product.k.back() = dim;
      } else {
        product.k.push_back(dim);
      }
    } else if (dim.a && dim.b) {
      product.batch.push_back(dim);
    } else if (dim.b) {
      product.n.push_back(dim);
    } else {
      product.m.push_back(dim);
    }
  }
  // A tile has one column dimension, the longest; each point of the others is a product of its own.
  if (product.n.size() > 1) {
    std::stable_sort(product.n.begin(), product.n.end(),
                     [](auto& x, auto& y) { return x.extent > y.extent; });
    product.batch.insert(product.batch.end(), product.n.begin() + 1, product.n.end());
    product.n.resize(1);
  }
  return product;
}

bool tile_fits(const kernels::TileLibrary& tiles, const Product& product, std::string& why) {
  if (!tiles.gemm.takes(static_cast<int32_t>(product.a_type),
                        static_cast<int32_t>(product.b_type))) {
    why = "there is no tile for the types";
    return false;
  }
  if (product.m.size() > 4 || product.k.size() > 1 || product.batch.size() > 4) {
    why = "the summed dimensions do not lie one after the other";
    return false;
  }
  if (product.n.empty() || product.k.empty()) {
    why = "a product with a vector has no tile";
    return false;
  }
  return true;
}

std::optional<Product> match_pixel_product(const Views& views, const ConvTile& conv) {
  const ops::ConvGeometry& shape = conv.shape;
  if (shape.groups != 1 || shape.in != shape.out) return std::nullopt;
  for (size_t d = 0; d < shape.in.size(); ++d)
    if (shape.kernel[d] != 1 || shape.strides[d] != 1 || shape.begin[d] != 0) return std::nullopt;
  const Layout &x = views.layout(conv.x), &w = views.layout(conv.w);
  if (x.strides[1] != 1) return std::nullopt;  // not channels-last: a tile would gather it
  Product product;
  product.a = conv.x, product.b = conv.w, product.a_type = product.b_type = conv.type;
  product.a_offset = x.offset, product.b_offset = w.offset;
  if (shape.batch > 1) product.m.push_back({shape.batch, x.strides[0], 0, 0});
  for (size_t d = 0; d < shape.in.size(); ++d)
    if (shape.in[d] > 1)
      product.m.push_back({shape.in[d], x.strides[2 + d], 0, static_cast<int64_t>(2 + d)});
  product.n.push_back({shape.outputs, 0, w.strides[0], 1});
  product.k.push_back({shape.inputs, x.strides[1], w.strides[1], 0});
  return product;
}

}  // namespace obelisk::stitch
