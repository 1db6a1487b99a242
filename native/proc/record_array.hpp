#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace hangtrace::proc {

/// An array of plain records that grows in place where the C library can, and whose memory can be handed on:
/// a vector would copy many megabytes of them for each.
template <class T>
class RecordArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// One more, of zeros.
  T& add() {
    if (size_ == capacity_) {
      grow();
    }
    return *new (data_.get() + size_++) T{};
  }

  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& back() { return data_.get()[size_ - 1]; }
  const T& operator[](std::size_t index) const { return data_.get()[index]; }
  const T* begin() const { return data_.get(); }
  const T* end() const { return data_.get() + size_; }

  /// The memory, to be given to std::free().
  T* release() {
    size_ = capacity_ = 0;
    return data_.release();
  }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };

  void grow() {
    const std::size_t capacity = capacity_ == 0 ? 64 : capacity_ * 2;
    void* const moved = std::realloc(data_.get(), capacity * sizeof(T));
    if (moved == nullptr) {
      throw std::bad_alloc();
    }
    static_cast<void>(data_.release());
    data_.reset(static_cast<T*>(moved));
    capacity_ = capacity;
  }

  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace hangtrace::proc
