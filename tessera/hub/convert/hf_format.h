// How a matrix in a number format is stored in a Hugging Face folder. The names and shapes are those that inference
// programs read.
//
//   fp8        NAME [M, K] E4M3, NAME_scale [1] fp32
//   fp8_block  NAME [M, K] E4M3, NAME_scale_inv [ceil(M/128), ceil(K/128)] fp32
//              as in DeepSeek's models; transformers reads this form, with the exceptions of is_misread_by_transformers
//   mxfp8      NAME [M, K] E4M3, NAME_scale [M, ceil(K/32)] E8M0 in bytes
//   nvfp4      NAME [M, K/2] bytes, NAME_scale [M, ceil(K/16)] E4M3, NAME_scale_2 [] fp32, amax / 2688
//              as in ModelOpt's exports
//
// A value is its element times its scale; in nvfp4, also times NAME_scale_2. In nvfp4, the scale of a 16 x 16 tile is
// stored once for each row of the tile.
#pragma once
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/models/hf_tensor.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::hub {

// Returns the tensors that store the matrix `hf_name`, in the order of the file. Throws InputError for a matrix that
// the format cannot store.
std::vector<checkpoint::SafetensorsTensor> format_tensors(quant::Format format, const std::string& hf_name,
                                                          quant::Extent matrix);
// Returns the bytes of each tensor of format_tensors. `values`: the whole matrix.
std::vector<std::vector<std::byte>> format_bytes(quant::Format format, std::span<const quant::bfloat16> values,
                                                 quant::Extent matrix);

// Returns the number format of a stored matrix, which follows from its type and from the tensors of its scales. Returns
// nullopt for a tensor without scales. find(name) returns a tensor of the folder or null.
std::optional<quant::Format> stored_format(
    const models::HfTensor& tensor, const std::function<const checkpoint::SafetensorsEntry*(const std::string&)>& find);
// Throws InputError, which names `where`, for a scale that is negative or not finite. `stored`: as in format_values.
void check_scales(quant::Format format, const std::vector<std::vector<std::byte>>& stored, const std::string& where);
// Returns the values of a stored matrix, rounded to bf16. `stored`: the bytes of each tensor of format_tensors. If this
// program exported an nvfp4 matrix, its values equal the values in training (quant::dequantize). For an nvfp4 matrix of
// another program, the amax is NAME_scale_2 * 2688.
std::vector<quant::bfloat16> format_values(quant::Format format, const std::vector<std::vector<std::byte>>& stored,
                                           quant::Extent matrix);

// Returns true if transformers (tested: 5.24) reads wrong values of a matrix or fails. transformers assumes that the
// blocks of an fp8_block matrix have M / ceil(M/128) rows and K / ceil(K/128) columns. This is correct if M and K are
// each at most 128 or a multiple of 128. For other sizes, transformers fails or applies scales to the wrong elements.
bool is_misread_by_transformers(quant::Format format, quant::Extent matrix);

// Removes "quantization_config" from a config.json. Throws InputError, which names `where`, if the configuration
// describes a format other than fp8_block.
void remove_quantization_config(nlohmann::json& config, const std::string& where);

// Returns "quantization_config" for config.json; null for formats that do not use it. `routers`: the modules that other
// programs must not take for quantized matrices.
nlohmann::json quantization_config(quant::Format format, const std::vector<std::string>& routers = {});
// Returns the content of hf_quant_config.json; null for formats that do not use this file.
nlohmann::json hf_quant_config(quant::Format format, const std::vector<std::string>& routers = {});
// Throws InputError, which names `where`, if a hf_quant_config.json describes a format other than nvfp4.
void check_hf_quant_config(const nlohmann::json& config, const std::string& where);

}  // namespace tessera::hub
