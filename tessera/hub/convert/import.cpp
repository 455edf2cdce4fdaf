#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/hub/convert/convert.h"
#include "tessera/hub/convert/hf_weights.h"
#include "tessera/hub/run_directory.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using models::LogicalTensor;

// Assembles one logical tensor as a whole.
class Assembler {
 public:
  explicit Assembler(HfWeights& source) : source_(source) {}

  const void* operator()(const checkpoint::LocalTensor& tensor) {
    result_ = base::Buffer(static_cast<std::size_t>(tensor.local.size) * quant::size_of(tensor.dtype));
    source_.read({.name = tensor.name,
                  .kind = tensor.kind,
                  .dtype = tensor.dtype,
                  .dims = tensor.dims,
                  .local = tensor.local,
                  .data = result_.data()});
    return result_.data();
  }

 private:
  HfWeights& source_;
  base::Buffer result_;
};

checkpoint::LocalTensor whole(const LogicalTensor& tensor, checkpoint::Kind kind, quant::DType dtype) {
  const layout::Shape shape = layout::matrix_shape(tensor.dims);
  const layout::Box box{0, shape.rows, 0, shape.cols};
  return {.name = tensor.name,
          .kind = kind,
          .dtype = dtype,
          .dims = tensor.dims,
          .local = {.pieces = {{box, 0, shape.cols}}, .size = shape.elements()}};
}

}  // namespace

ConvertReport import_hf(const fs::path& folder, const fs::path& target, const ConvertOptions& options) {
  if (options.format)
    throw InputError("format: got {} for the Hugging Face folder {}, expected a checkpoint to export",
                     name_of(*options.format), folder.string());
  HfWeights source(folder);
  const models::ModelConfig& config = source.folder().config();
  const quant::DType dtype = options.dtype.value_or(source.folder().dtype());
  std::vector<checkpoint::LocalTensor> tensors;
  const std::vector<LogicalTensor> logical = logical_tensors(config.hf_tensors(models::ExpertTensors::fused));
  for (const LogicalTensor& tensor : logical)
    tensors.push_back(whole(tensor, checkpoint::Kind::weight, tensor.is_wide ? quant::accumulator_of(dtype) : dtype));
  if (dtype == quant::DType::bf16)
    for (const LogicalTensor& tensor : logical)
      if (!tensor.is_wide) tensors.push_back(whole(tensor, checkpoint::Kind::master, quant::DType::fp32));

  checkpoint::PartialFolder aside(target);
  Assembler assemble(source);
  checkpoint::Manifest manifest = write_part({.folder = aside.path(), .name = "part-00000.safetensors"}, tensors,
                                             [&](std::size_t i) { return assemble(tensors[i]); });
  manifest.step = 0;
  manifest.state = {{"model", config.to_json()}, {"imported_from", folder.string()}};
  checkpoint::finish_checkpoint(aside.path(), {manifest});
  if (holds_tokenizer(folder)) copy_tokenizer(folder, aside.path() / kTokenizerFolder);
  aside.commit();
  ConvertReport report{{"direction", "import"},
                       {"source", folder.string()},
                       {"target", target.string()},
                       {"dtype", name_of(dtype)},
                       {"tensors", tensors.size()},
                       {"bytes", manifest.files.front().bytes},
                       {"files", 1}};
  if (nlohmann::json found = source.non_finite().to_json(); !found.empty()) report["non_finite"] = std::move(found);
  return report;
}

}  // namespace tessera::hub
