// Spares: the memory of vectors that a caller gave back, for the next ones. A fixed number of them, so that
// it never grows: a vector over it frees its memory as usual.
#pragma once

#include <utility>
#include <vector>

namespace quire::engine {

template <class T>
class Spares {
 public:
  void reserve(std::size_t count) { spares_.reserve(count); }
  void keep(std::vector<T> vector) {
    if (vector.capacity() == 0 || spares_.size() == spares_.capacity()) return;
    vector.clear();
    spares_.push_back(std::move(vector));
  }
  // Empty; with memory when there is some.
  std::vector<T> take() {
    if (spares_.empty()) return {};
    std::vector<T> vector = std::move(spares_.back());
    spares_.pop_back();
    return vector;
  }

 private:
  std::vector<std::vector<T>> spares_;
};

}  // namespace quire::engine
