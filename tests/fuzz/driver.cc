// A main for the fuzz targets that needs no fuzzing engine: runs LLVMFuzzerTestOneInput on the seeds, on
// their beginnings, and on random mutations of them until the time is over. The input that ends the process
// is left in fuzz-crash.bin; a file given by name is replayed as it is.
//
//   fuzz_x [--seconds N] [--seed N] [--golden FOLDER --suffix TEXT] [--more SEED]... [FILE...]
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/golden_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// There in sanitizer builds only.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kMaxSeeds = 64;
constexpr std::size_t kMaxSeedBytes = std::size_t{1} << 20;
constexpr std::size_t kHead = 8192;       // most mutations fall here: where headers are
constexpr std::size_t kShortened = 2048;  // every beginning of a seed up to this length is tried

struct Options {
  double seconds = 10;
  std::uint64_t seed = 1;
  std::string golden;
  std::string suffix;
  std::vector<std::string> more;
  std::vector<std::string> files;
};

Bytes current;  // what runs now, for the crash note

void save_current() {
  std::ofstream("fuzz-crash.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
  std::fputs("the input is in fuzz-crash.bin\n", stderr);
}

void on_signal(int number) {
  save_current();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void run(Bytes input) {
  current = std::move(input);
  // A copy of its own size, so that a read past the end is seen.
  const Bytes exact(current.begin(), current.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (bytes.size() > kMaxSeedBytes) bytes.resize(kMaxSeedBytes);
  return bytes;
}

std::vector<Bytes> read_seeds(const Options& options) {
  std::vector<Bytes> seeds;
  const std::string golden = quire::testing::golden_dir();
  std::filesystem::path folder = std::filesystem::path(golden) / options.golden;
  std::error_code error;
  // What the full set lacks is in the small one: files of formats of our own.
  if (!std::filesystem::is_directory(folder, error))
    folder = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/data/golden" / options.golden;
  if (!golden.empty() && !options.golden.empty() && std::filesystem::is_directory(folder, error)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (seeds.size() == kMaxSeeds) break;
      if (entry.is_regular_file() && entry.path().string().ends_with(options.suffix)) {
        seeds.push_back(read_file(entry.path()));
      }
    }
  }
  for (const std::string& file : options.more) seeds.push_back(read_file(file));
  if (seeds.empty()) seeds.push_back(Bytes(64, 0));
  return seeds;
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& seeds, std::uint64_t seed) : seeds_(seeds), random_(seed) {}

  Bytes next() {
    Bytes bytes = seeds_[below(seeds_.size())];
    for (std::size_t count = 1 + below(4); count > 0; --count) mutate(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  std::size_t place(const Bytes& bytes) {
    const std::size_t reach = below(8) == 0 ? bytes.size() : std::min(bytes.size(), kHead);
    return below(reach);
  }

  // Numbers at which sizes and lengths break.
  std::uint64_t edge() {
    constexpr std::uint64_t kEdges[] = {0,
                                        1,
                                        7,
                                        31,
                                        127,
                                        255,
                                        65535,
                                        0x7fffffff,
                                        0x80000000,
                                        0xffffffff,
                                        0x100000000,
                                        0x7fffffffffffffff,
                                        0x8000000000000000,
                                        0xfffffffffffffff8,
                                        0xffffffffffffffff};
    return kEdges[below(std::size(kEdges))] + below(3) - 1;
  }

  // Text that breaks readers of text.
  std::string_view word() {
    constexpr std::string_view kWords[] = {"[[[[[[[[",
                                           "{\"a\":",
                                           "]",
                                           "}",
                                           ",",
                                           "\"",
                                           "null",
                                           "-1",
                                           "1e999",
                                           "0.5",
                                           "99999999999999999999",
                                           "true",
                                           "\\u0000",
                                           "\xff",
                                           "{}",
                                           "[]",
                                           "0",
                                           "16777217"};
    return kWords[below(std::size(kWords))];
  }

  void mutate(Bytes& bytes) {
    const std::size_t at = place(bytes);
    const auto position = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t rest = bytes.size() - at;
    switch (below(8)) {
      case 0:
        if (rest > 0) bytes[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (rest > 0) bytes[at] = static_cast<std::uint8_t>(random_());
        break;
      case 2: {
        const std::uint64_t value = edge();
        std::memcpy(bytes.data() + at, &value, std::min<std::size_t>(rest, below(2) ? 8 : 4));
        break;
      }
      case 3: {
        const std::string_view text = word();
        std::memcpy(bytes.data() + at, text.data(), std::min(rest, text.size()));
        break;
      }
      case 4: {
        const std::string_view text = word();
        bytes.insert(position, text.begin(), text.end());
        break;
      }
      case 5:
        bytes.erase(position, position + static_cast<std::ptrdiff_t>(std::min(rest, 1 + below(64))));
        break;
      case 6: {
        const Bytes piece(position, position + static_cast<std::ptrdiff_t>(std::min(rest, 1 + below(256))));
        const std::size_t to = place(bytes);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(to), piece.begin(), piece.end());
        break;
      }
      default:
        if (below(4) == 0) {
          bytes.resize(at);
        } else {  // the beginning of this one, the end of another
          const Bytes& other = seeds_[below(seeds_.size())];
          bytes.resize(at);
          if (at < other.size())
            bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(at), other.end());
        }
    }
  }

  const std::vector<Bytes>& seeds_;
  std::mt19937_64 random_;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const bool flag = name.starts_with("--");
    if (!flag) {
      options.files.emplace_back(name);
      continue;
    }
    if (i + 1 == argc) {
      fmt::print(stderr, "{} needs a value\n", name);
      std::exit(2);
    }
    const char* value = argv[++i];
    if (name == "--seconds") options.seconds = std::atof(value);
    if (name == "--seed") options.seed = std::strtoull(value, nullptr, 10);
    if (name == "--golden") options.golden = value;
    if (name == "--suffix") options.suffix = value;
    if (name == "--more") options.more.emplace_back(value);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  std::signal(SIGABRT, on_signal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(save_current);
  } else {
    std::signal(SIGSEGV, on_signal);
  }
  for (const std::string& file : options.files) run(read_file(file));
  if (!options.files.empty()) return 0;

  const std::vector<Bytes> seeds = read_seeds(options);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  const auto running = [&] { return std::chrono::steady_clock::now() < end; };
  std::size_t runs = 0;
  for (const Bytes& seed : seeds) {
    run(seed);
    ++runs;
  }
  Mutator mutator(seeds, options.seed);
  for (std::size_t size = 0; size < kShortened && running(); ++size) {
    const Bytes& seed = seeds[size % seeds.size()];
    run(Bytes(seed.begin(), seed.begin() + static_cast<std::ptrdiff_t>(std::min(size, seed.size()))));
    ++runs;
  }
  for (; running(); ++runs) run(mutator.next());
  fmt::print("{} inputs from {} seeds, seed {}\n", runs, seeds.size(), options.seed);
  return 0;
}
