/// ort/ort.h — the door of `ort`: Obelisk as an execution provider of ONNX Runtime.
///
///   register_execution_provider_library(name, libobelisk.so)
///     ─▶ Factory ── a device per CPU ──▶ Provider, one a session
///   get_capability   OrtGraph → Graph → groups, each checked by the importer ─▶ nodes to fuse
///   compile          each fused graph → an ONNX model → a program
///   compute          inputs and outputs used in place
///
/// What the importer refuses, and what cannot be compiled, stays with ONNX Runtime; the session's
/// log says which and why.
#pragma once

#include "ort/abi.h"

namespace obelisk::ort {

inline constexpr char kProviderName[] = "ObeliskExecutionProvider";

/// What a plug-in library exports under names that ONNX Runtime fixes (plugin.cpp).
Answer* create_factories(const ApiBase* base, FactoryFunctions** factories, size_t most,
                         size_t* count);
Answer* release_factory(FactoryFunctions* factory);

}  // namespace obelisk::ort
