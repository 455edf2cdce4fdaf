#include <algorithm>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/quant/elementwise.h"
#include "tessera/run/convert/convert.h"
#include "tessera/run/convert/hf_folder.h"
#include "tessera/run/convert/non_finite.h"
#include "tessera/run/stored_rows.h"

namespace tessera::run {
namespace {

namespace fs = std::filesystem;
using models::HfTensor, models::LogicalTensor;

// One logical tensor of ours from its parts, in the type asked for. Always by way of the accumulator's type, so that a
// bf16 weight is exactly the rounded master.
class Assembler {
 public:
  explicit Assembler(const HfFolder& source) : source_(source), parts_(source.config().hf_tensors()) {}

  const void* operator()(const checkpoint::LocalTensor& tensor) {
    const quant::DType wide = quant::accumulator_of(tensor.dtype);
    const std::size_t element = quant::size_of(tensor.dtype);
    result_ = base::Buffer(static_cast<std::size_t>(tensor.local.size) * element);
    std::byte* target = result_.data();
    for (const HfTensor& part : parts_) {
      if (part.name != tensor.name) continue;
      for (std::int64_t first = 0; first < part.box.elements(); first += kChunkElements) {
        const std::int64_t count = std::min(kChunkElements, part.box.elements() - first);
        base::Buffer chunk(static_cast<std::size_t>(count) * quant::size_of(wide));
        source_.read(part.hf_name, first, count, wide, chunk.data());
        quant::cast(chunk.data(), wide, target, tensor.dtype, count);
        if (tensor.kind == checkpoint::Kind::weight) non_finite_.count(part.hf_name, target, tensor.dtype, count);
        target += static_cast<std::size_t>(count) * element;
      }
    }
    return result_.data();
  }

  const NonFiniteCounts& non_finite() const { return non_finite_; }  // of the weights so far

 private:
  const HfFolder& source_;
  std::vector<HfTensor> parts_;
  base::Buffer result_;
  NonFiniteCounts non_finite_;
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
  const HfFolder source(folder);
  const quant::DType dtype = options.dtype.value_or(source.dtype());
  std::vector<checkpoint::LocalTensor> tensors;
  const std::vector<LogicalTensor> logical = logical_tensors(source.config().hf_tensors());
  for (const LogicalTensor& tensor : logical) tensors.push_back(whole(tensor, checkpoint::Kind::weight, dtype));
  if (dtype == quant::DType::bf16)
    for (const LogicalTensor& tensor : logical)
      tensors.push_back(whole(tensor, checkpoint::Kind::master, quant::DType::fp32));

  checkpoint::PartialFolder aside(target);
  Assembler assemble(source);
  checkpoint::Manifest manifest = write_part({.folder = aside.path(), .name = "part-00000.safetensors"}, tensors,
                                             [&](std::size_t i) { return assemble(tensors[i]); });
  manifest.step = 0;
  manifest.state = {{"model", source.config().to_json()}, {"imported_from", folder.string()}};
  checkpoint::finish_checkpoint(aside.path(), {manifest});
  aside.commit();
  ConvertReport report{{"direction", "import"},
                       {"source", folder.string()},
                       {"target", target.string()},
                       {"dtype", name_of(dtype)},
                       {"tensors", tensors.size()},
                       {"bytes", manifest.files.front().bytes},
                       {"files", 1}};
  if (nlohmann::json found = assemble.non_finite().to_json(); !found.empty()) report["non_finite"] = std::move(found);
  return report;
}

}  // namespace tessera::run
