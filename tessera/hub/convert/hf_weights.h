// Reads the weights of a Hugging Face folder as the logical tensors of a model, in boxes and in the requested type.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/reader.h"
#include "tessera/hub/convert/hf_folder.h"
#include "tessera/hub/convert/non_finite.h"
#include "tessera/models/hf_tensor.h"

namespace tessera::hub {

// Reads only the elements of the boxes, and some elements between the boxes in the same rows. A matrix in a number
// format is read whole. Used by one thread at a time. Each rank opens its own object.
class HfWeights {
 public:
  // Throws the errors of HfFolder.
  explicit HfWeights(const std::filesystem::path& folder);

  const HfFolder& folder() const { return folder_; }
  // Fills the boxes of request.local. Weights are rounded from the accumulator's type, so a bf16 weight is exactly the
  // rounded master. If `is_counted` is true, non_finite() counts the values of weights that are not finite. Throws
  // Error for a tensor that the model does not have, and for a tensor with another shape.
  void read(const checkpoint::LoadTensor& request, bool is_counted = true);
  // Returns the counts by Hugging Face name, in the order of the model.
  const NonFiniteCounts& non_finite() const { return non_finite_; }

 private:
  struct Logical {
    std::vector<std::int64_t> dims;
    std::vector<models::HfTensor> parts;
  };
  void read_part(const models::HfTensor& part, const layout::Box& box, const layout::Piece& piece,
                 const checkpoint::LoadTensor& request, bool is_counted);

  HfFolder folder_;
  std::map<std::string, Logical> tensors_;
  NonFiniteCounts non_finite_;
};

}  // namespace tessera::hub
