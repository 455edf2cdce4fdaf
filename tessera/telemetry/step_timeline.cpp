#include "tessera/telemetry/step_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/json_file.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/telemetry/trace_events.h"

namespace tessera::telemetry {
namespace {

using mesh::Transfer;
using nlohmann::ordered_json;
using runtime::TimelineSpan;
using schedule::Event;
using schedule::EventKind;

// Labels the spans of one rank.
class Writer {
 public:
  explicit Writer(runtime::Runtime& runtime) : trace_(runtime.trace()) {
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id)
      names_.push_back(runtime.parameter(id).spec.name);
  }

  TraceSpan labelled(const TimelineSpan& span) const {
    TraceSpan labels;
    if (span.is_wait)
      labels = waited(span);
    else if (!span.transfer)
      labels = {.name = work_before(span.event), .category = "compute", .args = {{"before", event_text(span.event)}}};
    else
      labels = transfer(span);
    labels.begin = span.begin;
    labels.end = span.end;
    return labels;
  }

 private:
  const Event* event_at(int index) const {
    return index < static_cast<int>(trace_.size()) ? &trace_[static_cast<std::size_t>(index)] : nullptr;
  }
  std::string event_text(int index) const {
    const Event* event = event_at(index);
    return event ? to_string(*event, names_) : "the end of the step";
  }
  std::vector<std::string> names_of(const std::vector<schedule::ParameterId>& ids) const {
    std::vector<std::string> names;
    for (const schedule::ParameterId id : ids) names.push_back(names_[static_cast<std::size_t>(id)]);
    return names;
  }

  // Returns a name for the work before an event. Work without a weight, other than the update, is named "compute".
  std::string work_before(int index) const {
    const Event* event = event_at(index);
    if (event && event->kind == EventKind::comm && event->microbatch < 0) return "update";
    if (!event || event->parameter < 0) return "compute";
    const std::string& name = names_[static_cast<std::size_t>(event->parameter)];
    if (event->kind == EventKind::release) return name + " " + std::string(name_of(event->pass));
    if (event->kind == EventKind::produce) return "gradient of " + name;
    return event->kind == EventKind::publish ? "update " + name : "compute";
  }

  TraceSpan waited(const TimelineSpan& span) const {
    const std::vector<std::string> weights = names_of(span.weights);
    return {.name = name_of_transfer(fmt::format("wait: {}", title_of(*span.transfer)), weights),
            .category = "wait",
            .args = {{"weights", weights}, {"before", event_text(span.event)}}};
  }

  TraceSpan transfer(const TimelineSpan& span) const {
    const std::vector<std::string> weights = names_of(span.weights);
    TraceSpan labels{.name = name_of_transfer(title_of(*span.transfer), weights),
                     .category = std::string(title_of(*span.transfer)),
                     .args = {{"weights", weights}, {"bytes", span.bytes}}};
    if (const Event* event = event_at(span.event); span.transfer == Transfer::program && event) {
      labels.name = name_of_transfer(event->op, weights);
      labels.args["group"] = event->group;
    }
    if (span.microbatch < 0) return labels;
    labels.args["microbatch"] = span.microbatch;
    labels.args["pass"] = name_of(span.pass);
    return labels;
  }

  const schedule::Trace& trace_;
  std::vector<std::string> names_;
};

}  // namespace

ordered_json gather_step_timeline(runtime::Runtime& runtime) {
  const std::vector<TimelineSpan> spans = runtime.timeline();
  comm::Communicator& world = *runtime.parallel().world;
  double first = 0;
  for (const TimelineSpan& span : spans) first = std::min(first, span.begin);
  world.all_reduce(&first, 1, quant::DType::fp64, comm::ReduceOp::min).synchronize();

  const int rank = runtime.parallel().rank;
  ordered_json own = ordered_json::array();
  name_rows(own, rank, fmt::format("rank {}", rank));
  add_mark(own, rank, "the step begins", 0, first);
  const Writer writer(runtime);
  for (const TimelineSpan& span : spans) {
    const TraceSpan labels = writer.labelled(span);
    add_span(own, rank, row_of(span.is_wait ? std::nullopt : span.transfer), labels, first);
  }

  const std::vector<std::string> texts = checkpoint::gather_text(world, own.dump());
  if (rank != 0) return nullptr;
  ordered_json events = ordered_json::array();
  for (const std::string& text : texts)
    for (ordered_json& event : base::parse_ordered_json(text, "the timeline of a rank"))
      events.push_back(std::move(event));
  return trace_file(std::move(events));
}

}  // namespace tessera::telemetry
