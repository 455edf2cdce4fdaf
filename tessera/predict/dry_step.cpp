#include "tessera/predict/dry_step.h"

#include "tessera/predict/dry_matrices.h"
#include "tessera/predict/dry_model.h"
#include "tessera/runtime/record/dry_run.h"

namespace tessera::predict {

DryStep dry_step(const DryOptions& options) {
  const bool trains = options.kind == schedule::StepKind::train;
  runtime::DryRun program(options.step.layout, options.rank, options.step.types, options.step.runtime);
  DryModel model(program, options);

  DryStep step;
  program.begin_step(options.kind, 1);
  {
    const ops::WorkScope scope([&](const ops::Work& work) {
      step.work.resize(program.trace().size() + 1);
      step.work.back().push_back(work);
    });
    model.microbatch(0, trains);
  }
  program.end_step();
  step.microbatch = program.trace();
  step.waits = program.waits();
  step.received = program.received();
  step.work.resize(step.microbatch.size() + 1);
  step.flops = program.flops();
  step.activations = program.activations();
  step.transfer_arena = program.transfer_arena();
  step.parameters = program.parameters().specs();
  step.cuts = program.parameters().cuts();
  for (int domain = 0; domain < static_cast<int>(options.step.layout.domains.size()); ++domain)
    step.compute_ranks.push_back(program.compute_group(domain).size);
  step.backward_weights = program.parameters().backward_weights();
  if (!trains) return step;
  DryMatrices matrices(program, *options.update, options.step.layout, options.rank, options.step.runtime.zero);
  runtime::UpdateParts parts = model.update_parts();
  if (matrices.is_needed())
    parts.exchanges = [&](std::span<const schedule::ParameterId> bucket) { return matrices.exchanges(bucket); };
  dry_update(program, step.microbatch, parts);
  step.matrix_buffers = matrices.buffers();
  step.matrix_scratch = matrices.scratch();
  step.matrix_flops = matrices.flops();
  step.optimizer.assign(program.trace().begin() + static_cast<std::ptrdiff_t>(step.microbatch.size()),
                        program.trace().end());
  return step;
}

schedule::Trace DryStep::trace(int microbatches) const {
  schedule::Trace whole;
  whole.reserve(microbatch.size() * static_cast<std::size_t>(microbatches) + optimizer.size());
  for (int number = 0; number < microbatches; ++number) {
    whole.insert(whole.end(), microbatch.begin(), microbatch.end());
    for (auto event = whole.end() - static_cast<std::ptrdiff_t>(microbatch.size()); event != whole.end(); ++event)
      event->microbatch = number;
  }
  whole.insert(whole.end(), optimizer.begin(), optimizer.end());
  return whole;
}

}  // namespace tessera::predict
