// Memory at cache-line boundaries, zeroed, in huge pages where the system gives them.
#pragma once

#include <cstddef>

namespace octavo {

class AlignedMemory {
public:
    AlignedMemory() = default;
    // Throws std::bad_alloc.
    explicit AlignedMemory(std::size_t num_bytes);
    ~AlignedMemory();
    AlignedMemory(AlignedMemory&& other) noexcept { swap(other); }
    AlignedMemory& operator=(AlignedMemory&& other) noexcept {
        swap(other);
        return *this;
    }

    std::byte* data() const { return data_; }
    std::size_t num_bytes() const { return num_bytes_; }

private:
    void swap(AlignedMemory& other) noexcept;

    std::byte* data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

}  // namespace octavo
