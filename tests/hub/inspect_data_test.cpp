#include "tessera/hub/inspect/inspect_data.h"

#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/data/dataset_writer.h"

namespace tessera::hub {
namespace {

using namespace checkpoint::testing;

TEST(InspectData, CountsTheContentOfAFile) {
  const TemporaryFolder root;
  data::IndexedDatasetWriter writer((root / "text").string(), data::TokenType::u16);
  writer.add_sequence({5, 4000, 7});
  writer.end_document();
  writer.add_sequence({9});
  writer.add_sequence({3, 8});
  writer.end_document();
  writer.finish();
  EXPECT_FALSE(is_data_path(root.path()));
  for (const char* name : {"text", "text.idx", "text.bin"}) {
    ASSERT_TRUE(is_data_path(root / name)) << name;
    const nlohmann::json shown = inspect_data(root / name);
    EXPECT_EQ(shown["token_type"], "u16");
    EXPECT_EQ(shown["tokens"], 6);
    EXPECT_EQ(shown["sequences"], 3);
    EXPECT_EQ(shown["documents"], 2);
    EXPECT_EQ(shown["smallest_token"], 3);
    EXPECT_EQ(shown["largest_token"], 4000);
    EXPECT_NE(data_table(shown).find("4000\n"), std::string::npos);
  }
}

TEST(InspectData, RefusesATruncatedFile) {
  const TemporaryFolder root;
  spill(root / "text.idx", "MMIDIDX");
  spill(root / "text.bin", "");
  EXPECT_NE(input_error([&] { inspect_data(root / "text"); }).find("text.idx"), std::string::npos);
}

}  // namespace
}  // namespace tessera::hub
