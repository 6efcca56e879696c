#include "platform/cuda/library.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace quire::platform::cuda {
namespace {

namespace fs = std::filesystem;

class LibraryTest : public ::testing::Test {
 protected:
  LibraryTest() : folder_(fs::temp_directory_path() / ("quire_library_test_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~LibraryTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(LibraryTest, LoadsWhatTheSystemFinds) {
  const auto library = Library::open("libm.so.6");
  ASSERT_TRUE(library.ok());
  EXPECT_NE(library->path().find("libm"), std::string::npos);
  const auto cosine = library->find<double (*)(double)>("cos");
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_EQ(library->find<void (*)()>("no_such_symbol"), nullptr);
}

TEST_F(LibraryTest, AMissingOneIsNamedWithEveryPlaceSearched) {
  const std::vector<std::string> folders = {folder_.string(), (folder_ / "absent").string()};
  const auto library = Library::open_in("libnosuchthing.so.13", folders);
  ASSERT_FALSE(library.ok());
  const std::string& message = library.error().message;
  EXPECT_NE(message.find("libnosuchthing.so.13"), std::string::npos) << message;
  for (const std::string& folder : folders) EXPECT_NE(message.find(folder), std::string::npos) << message;
  EXPECT_NE(message.find("LD_LIBRARY_PATH"), std::string::npos) << message;
}

TEST_F(LibraryTest, AFileThatDoesNotLoadIsNamedWithItsReason) {
  std::ofstream(folder_ / "libbroken.so.1") << "not a library";
  const auto library = Library::open_in("libbroken.so.1", std::vector<std::string>{folder_.string()});
  ASSERT_FALSE(library.ok());
  EXPECT_NE(library.error().message.find("does not load"), std::string::npos) << library.error().message;
}

TEST_F(LibraryTest, ADriverThatIsThereIsNotOneThatIsMissing) {
  EXPECT_EQ(why_no_driver("libnosuchthing.so.1"), "libnosuchthing.so.1 is not found");
  for (const char* text :
       {"", "not a library, whatever its name says: it is some text of more than an ELF head"}) {
    const std::string path = folder_ / "libcuda.so.1";
    std::ofstream(path) << text;
    const std::string said = why_no_driver(path);
    EXPECT_TRUE(said.starts_with(path + " does not load: ")) << said;
    EXPECT_NE(said.find(*text == 0 ? "file too short" : "invalid ELF header"), std::string::npos) << said;
  }
  const std::string said = why_no_driver("libm.so.6");
  EXPECT_TRUE(said.ends_with("libm.so.6 is no CUDA driver: it has no cuInit")) << said;
}

TEST_F(LibraryTest, SearchesThePythonEnvironmentsPackages) {
  const fs::path package = folder_ / "lib/python3.12/site-packages/nvidia/cu13/lib";
  fs::create_directories(package);
  const char* before = std::getenv("VIRTUAL_ENV");
  const std::string saved = before == nullptr ? "" : before;
  ::setenv("VIRTUAL_ENV", folder_.c_str(), 1);
  const std::vector<std::string> folders = library_folders();
  if (before == nullptr) {
    ::unsetenv("VIRTUAL_ENV");
  } else {
    ::setenv("VIRTUAL_ENV", saved.c_str(), 1);
  }
  EXPECT_NE(std::find(folders.begin(), folders.end(), package.string()), folders.end());
}

}  // namespace
}  // namespace quire::platform::cuda
