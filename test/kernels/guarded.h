// Memory that ends at a guard page: an access beyond the end kills the test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <stdexcept>

namespace pgwarp {

// `count` elements, initially zero. They are aligned to the size of an element only.
template <typename T>
class Guarded {
  public:
    explicit Guarded(size_t count) : count_(count) {
        const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t wanted = count * sizeof(T);
        mapped_ = (wanted + page - 1) / page * page + page;
        base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base_ == MAP_FAILED) throw std::runtime_error("mmap failed");
        char* guard = static_cast<char*>(base_) + mapped_ - page;
        if (mprotect(guard, page, PROT_NONE) != 0) throw std::runtime_error("mprotect failed");
        data_ = reinterpret_cast<T*>(guard - wanted);
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;
    ~Guarded() { munmap(base_, mapped_); }

    T* data() { return data_; }
    T* begin() { return data_; }
    T* end() { return data_ + count_; }
    size_t size() const { return count_; }
    T& operator[](size_t i) { return data_[i]; }

  private:
    size_t count_;
    void* base_;
    size_t mapped_;
    T* data_;
};

}  // namespace pgwarp
