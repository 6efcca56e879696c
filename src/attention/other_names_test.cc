// Names of other engines lead to rows that there are, and the document says what the program says.
#include "attention/other_names.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "attention/caps.h"

namespace quire::attention {
namespace {

std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> list;
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find(", ", at), names.size());
    list.emplace_back(names.substr(at, end - at));
    at = end + 2;
  }
  return list;
}

TEST(OtherNames, LeadToRowsThatThereAre) {
  std::set<std::string> rows, seen;
  for (const platform::Kind platform : {platform::Kind::cpu, platform::Kind::cuda})
    for (const Backend& row : backends(platform)) rows.emplace(row.name);
  for (const OtherNames& line : other_names()) {
    for (const std::string& name : split(line.names)) {
      EXPECT_FALSE(rows.contains(name)) << name;
      EXPECT_TRUE(seen.insert(name).second) << name << " twice";
    }
    // A line without a row begins with "none" and says why.
    const bool none = line.here.rfind("none", 0) == 0;
    bool row_named = line.here.rfind("every row", 0) == 0;
    for (const std::string& row : rows) row_named = row_named || line.here.rfind("`" + row + "`", 0) == 0;
    EXPECT_NE(none, row_named) << line.here;
    if (none) EXPECT_NE(line.here.find(": "), std::string::npos) << line.here;
  }
  // Those that the design names.
  for (const char* name : {"fa3", "fa4", "trtllm_mla", "cutlass_mla", "aiter", "ascend", "xpu", "mlx"})
    EXPECT_TRUE(seen.contains(name)) << name;
}

TEST(OtherNames, AreFoundHoweverTheyAreWritten) {
  EXPECT_NE(name_elsewhere("fa3").find("what fa3 is elsewhere: `cuda` on NVIDIA GPUs"), std::string::npos);
  EXPECT_NE(name_elsewhere("FLASHINFER_MLA").find("latent attention"), std::string::npos);
  EXPECT_NE(name_elsewhere("trtllm-mla").find("latent attention"), std::string::npos);
  EXPECT_NE(name_elsewhere("aiter").find("none: AMD GPUs"), std::string::npos);
  for (const char* unknown : {"", "fa", "fa3,", "cuda", "flash", "a3, fa4"})
    EXPECT_EQ(name_elsewhere(unknown), "") << unknown;
}

TEST(OtherNames, TheDocumentHasTheSameTable) {
  const std::string path = std::string(QUIRE_SOURCE_DIR) + "/docs/ATTENTION.md";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  const std::string head = "| names elsewhere | here |\n|---|---|\n";
  const std::size_t begin = document.find(head);
  ASSERT_NE(begin, std::string::npos);
  std::string table;
  for (const OtherNames& line : other_names()) table += fmt::format("| {} | {} |\n", line.names, line.here);
  EXPECT_EQ(document.substr(begin + head.size(), table.size() + 1), table + "\n");
}

}  // namespace
}  // namespace quire::attention
