#include "bench/input_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <lzma.h>
#include <stdexcept>
#include <vector>
#include <zlib.h>

namespace pgwarp::bench {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw std::runtime_error("could not read \"" + path + "\": " + what);
}

// zlib reads uncompressed files as they are, so that this class serves plain files, too.
class GzipFile : public InputFile {
  public:
    explicit GzipFile(const std::string& path)
        : InputFile(path), file_(gzopen(path.c_str(), "rb")) {
        if (file_ == nullptr) fail(path, errno != 0 ? std::strerror(errno) : "out of memory");
        gzbuffer(file_, 1 << 17);
    }
    ~GzipFile() override { gzclose(file_); }
    GzipFile(const GzipFile&) = delete;
    GzipFile& operator=(const GzipFile&) = delete;

    size_t read(void* buffer, size_t size) override {
        const size_t got = gzfread(buffer, 1, size, file_);
        int code = Z_OK;
        const char* message = gzerror(file_, &code);
        if (code == Z_ERRNO) fail(path(), std::strerror(errno));
        if (code != Z_OK && code != Z_STREAM_END) fail(path(), message);
        return got;
    }

  private:
    gzFile file_;
};

class XzFile : public InputFile {
  public:
    explicit XzFile(const std::string& path)
        : InputFile(path), file_(std::fopen(path.c_str(), "rb")), packed_(1 << 17) {
        if (file_ == nullptr) fail(path, std::strerror(errno));
        if (lzma_stream_decoder(&stream_, UINT64_MAX, LZMA_CONCATENATED) != LZMA_OK) {
            std::fclose(file_);
            fail(path, "out of memory");
        }
    }
    ~XzFile() override {
        lzma_end(&stream_);
        std::fclose(file_);
    }
    XzFile(const XzFile&) = delete;
    XzFile& operator=(const XzFile&) = delete;

    size_t read(void* buffer, size_t size) override {
        stream_.next_out = static_cast<uint8_t*>(buffer);
        stream_.avail_out = size;
        while (stream_.avail_out > 0 && !ended_) {
            if (stream_.avail_in == 0 && !std::feof(file_)) refill();
            const lzma_action action = std::feof(file_) ? LZMA_FINISH : LZMA_RUN;
            const lzma_ret result = lzma_code(&stream_, action);
            if (result == LZMA_STREAM_END) {
                ended_ = true;
            } else if (result == LZMA_BUF_ERROR) {
                fail(path(), "the file ends too early");
            } else if (result != LZMA_OK) {
                fail(path(), result == LZMA_FORMAT_ERROR ? "not an xz file" : "damaged xz data");
            }
        }
        return size - stream_.avail_out;
    }

  private:
    void refill() {
        stream_.next_in = packed_.data();
        stream_.avail_in = std::fread(packed_.data(), 1, packed_.size(), file_);
        if (std::ferror(file_)) fail(path(), std::strerror(errno));
    }

    FILE* file_;
    std::vector<uint8_t> packed_;
    lzma_stream stream_ = LZMA_STREAM_INIT;
    bool ended_ = false;
};

}  // namespace

void InputFile::read_exactly(void* buffer, size_t size) {
    if (read(buffer, size) != size) fail(path(), "the file ends too early");
}

std::unique_ptr<InputFile> open_input(const std::string& path) {
    errno = 0;
    if (path.ends_with(".xz")) return std::make_unique<XzFile>(path);
    return std::make_unique<GzipFile>(path);
}

std::string read_text(const std::string& path) {
    const auto file = open_input(path);
    std::string text;
    constexpr size_t step = 1 << 24;
    for (size_t got = step; got == step;) {
        const size_t before = text.size();
        text.resize(before + step);
        got = file->read(text.data() + before, step);
        text.resize(before + got);
    }
    return text;
}

std::string unpacked_name(const std::string& path) {
    if (path.ends_with(".gz") || path.ends_with(".xz")) return path.substr(0, path.size() - 3);
    return path;
}

}  // namespace pgwarp::bench
