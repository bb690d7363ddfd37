/// explain.h — what a step decided, and why, as text for `--explain`. Stands beside compile.cpp.
#pragma once

#include <string>
#include <string_view>

#include "codegen/codegen.h"
#include "frontends/frontends.h"
#include "passes/passes.h"
#include "runtime/runtime.h"
#include "schedule/schedule.h"

namespace obelisk::compiler {

/// Which dimensions were bound and by what, what became of the model's nodes.
std::string explain_import(const graph::Graph& graph, const frontends::ImportOptions& options);

/// Each node that a pass made and those in whose place it stands; then those that went for nothing.
/// `reason` is the pass's own sentence. Nodes are told apart by op, name and type.
std::string explain_pass(std::string_view reason, const graph::Graph& before,
                         const graph::Graph& after);

/// The nodes of the remarks by their reasons, each behind `heading`.
std::string explain_remarks(std::string_view heading, const passes::Remarks& remarks);

/// Why each work stands in its wave, how it is cut and what that should cost, who shares memory.
std::string explain_schedule(const graph::Graph& graph, const stitch::Plan& plan,
                             const schedule::TaskGraph& tasks, const machine::Machine& device);

/// Which works share a body.
std::string explain_bodies(const codegen::Source& source, const graph::Graph& graph,
                           const stitch::Plan& plan, const schedule::TaskGraph& tasks);

/// Bodies, and a program's ports and lists, as text.
std::string print_bodies(const codegen::Source& source);
std::string print_program(const runtime::Program& program);

/// The machine that a target means; `explain`: how it was asked for.
std::string explain_target(const machine::Machine& machine, std::string_view asked, bool asked_sms,
                           bool explain);

/// Where a program's machine code came from.
std::string explain_load(const runtime::Executable& executable);

}  // namespace obelisk::compiler
