#include "program/aligned_memory.hpp"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

namespace octavo {

AlignedMemory::AlignedMemory(std::size_t num_bytes) : num_bytes_(num_bytes) {
    if (num_bytes == 0) return;
    void* pages = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(pages);
#if defined(MADV_HUGEPAGE)
    madvise(pages, num_bytes, MADV_HUGEPAGE);  // advice: nothing is lost where it is not taken
#endif
    std::memset(data_, 0, num_bytes);  // touch every page now
}

AlignedMemory::~AlignedMemory() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
}

void AlignedMemory::swap(AlignedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
}

}  // namespace octavo
