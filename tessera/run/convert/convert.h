// Between our checkpoints and Hugging Face's folders. One process; memory for a part of one
// tensor at a time, and for all of a matrix in a number format.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"

namespace tessera::run {

struct ConvertOptions {
  // Type of the result's weights; none: that of the source (half precision becomes fp32).
  std::optional<quant::DType> dtype;
  // An exported folder's matrices of layers are in this number format (hf_format.h), made from their bf16 values; the
  // rest is bf16.
  std::optional<quant::Format> format;
  std::int64_t max_shard_bytes = 5'000'000'000;  // of the tensors of one exported file
};

// What was done, for a report: {"direction", "source", "target", "dtype", "tensors", "bytes", "files"}; of an export
// also "format", and "note" where a program for inference is known not to read it. "non_finite" where values of the
// result are NaN or infinite: [{"tensor", "nan", "infinite"}, ...] by the Hugging Face name.
using ConvertReport = nlohmann::json;
// A line for each of these but non_finite. Without a number format, the matrices' format is the type of all.
std::string convert_text(const ConvertReport& report);
// A line for each tensor of non_finite.
std::vector<std::string> convert_warnings(const ConvertReport& report);

// The checkpoint that a folder holds, by its name in there; empty: none.
std::string checkpoint_in(const std::filesystem::path& folder);
// Whether the folder is one in Hugging Face's form. Errors (InputError): it holds a checkpoint too.
bool is_hf_folder(const std::filesystem::path& folder);

// SOURCE is a checkpoint (or a folder with some: the latest) or a Hugging Face folder; TARGET gets the other. TARGET is
// made aside and renamed: complete or absent. Errors: InputError when SOURCE is neither or both, is damaged, or TARGET
// exists and is not an empty folder; Error when writing fails.
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& target,
                      const ConvertOptions& options = {});

// A checkpoint to a Hugging Face folder: config.json, and model.safetensors or shards with an index. Weights are
// rounded to nearest even; a type wider than the run's is taken from the fp32 masters where they exist. Errors beside
// those of convert: a format with another type than bf16, or one that cannot store a matrix.
ConvertReport export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
                        const ConvertOptions& options);

// A Hugging Face folder to a checkpoint of step 0, without moments (they start at zero); with dtype bf16 it holds fp32
// masters with the source's full precision. Values of matrices in number formats are rounded to bf16.
ConvertReport import_hf(const std::filesystem::path& folder, const std::filesystem::path& target,
                        const ConvertOptions& options);

}  // namespace tessera::run
