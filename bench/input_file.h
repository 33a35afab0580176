// A file read sequentially, decompressed if its name ends in .gz or .xz.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace pgwarp::bench {

class InputFile {
  public:
    virtual ~InputFile() = default;

    // Up to `size` bytes; fewer only at the end of the file.
    virtual size_t read(void* buffer, size_t size) = 0;

    // Exactly `size` bytes; throws if the file ends earlier.
    void read_exactly(void* buffer, size_t size);

    const std::string& path() const { return path_; }

  protected:
    explicit InputFile(std::string path) : path_(std::move(path)) {}

  private:
    std::string path_;
};

std::unique_ptr<InputFile> open_input(const std::string& path);

// The whole file.
std::string read_text(const std::string& path);

// The name without .gz or .xz, which tells the format.
std::string unpacked_name(const std::string& path);

}  // namespace pgwarp::bench
