#include <lzma.h>
#include <zlib.h>
#ifdef PGWARP_HDF5
#include <hdf5.h>
#endif

#include <cstring>

#include "bench/bin_file.h"
#include "bench/dataset.h"
#include "bench/glove_json.h"
#include "bench/hdf5_file.h"
#include "bench/idx_file.h"
#include "bench/vecs_file.h"
#include "test/bench/files.h"

namespace pgwarp::bench {
namespace {

using Floats = std::vector<float>;

class ReadersTest : public FileTest {};

// A row of a vecs file.
template <typename Value>
std::string row(std::initializer_list<Value> values) {
    const auto width = static_cast<int32_t>(values.size());
    std::string bytes(sizeof(width) + values.size() * sizeof(Value), '\0');
    std::memcpy(bytes.data(), &width, sizeof(width));
    std::memcpy(bytes.data() + sizeof(width), values.begin(), values.size() * sizeof(Value));
    return bytes;
}

// A bin file. `Size`: uint64_t for the header of very large ones.
template <typename Value, typename Size = uint32_t>
std::string bin(Size rows, Size dims, std::initializer_list<Value> values) {
    const Size head[] = {rows, dims};
    std::string bytes(sizeof(head) + values.size() * sizeof(Value), '\0');
    std::memcpy(bytes.data(), head, sizeof(head));
    std::memcpy(bytes.data() + sizeof(head), values.begin(), values.size() * sizeof(Value));
    return bytes;
}

std::string packed_xz(const std::string& bytes) {
    std::string out(bytes.size() + 1000, '\0');
    size_t size = 0;
    EXPECT_EQ(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC32, nullptr,
                                      reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                                      reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
              LZMA_OK);
    return out.substr(0, size);
}

void write_gz(const std::string& path, const std::string& bytes) {
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
}

TEST_F(ReadersTest, ReadsFvecs) {
    const Vectors vectors =
        read_vectors(write("a.fvecs", row<float>({1, 2.5, -3}) + row<float>({4, 5, 6})));
    EXPECT_EQ(vectors.rows, 2u);
    EXPECT_EQ(vectors.dims, 3u);
    EXPECT_EQ(vectors.values, (Floats{1, 2.5, -3, 4, 5, 6}));
}

TEST_F(ReadersTest, ReadsBvecsAsFloats) {
    const Vectors vectors =
        read_vectors(write("a.bvecs", row<uint8_t>({0, 255}) + row<uint8_t>({128, 7})));
    EXPECT_EQ(vectors.values, (Floats{0, 255, 128, 7}));
}

TEST_F(ReadersTest, StopsAtTheLimit) {
    const std::string file = write("a.fvecs", row<float>({1}) + row<float>({2}) + row<float>({3}));
    EXPECT_EQ(read_vectors(file, 2).values, (Floats{1, 2}));
    EXPECT_EQ(read_vectors(file, 9).rows, 3u);
}

TEST_F(ReadersTest, UnpacksXzAndGz) {
    // Longer than the readers' buffers, and hardly compressible.
    std::string bytes;
    for (uint32_t i = 0; i < 100000; i++)
        bytes += row<float>({float(i), float((i * 2654435761u) >> 8)});
    const Vectors plain = read_vectors(write("a.fvecs", bytes));
    write_gz(path("b.fvecs.gz"), bytes);
    EXPECT_EQ(read_vectors(write("a.fvecs.xz", packed_xz(bytes))).values, plain.values);
    EXPECT_EQ(read_vectors(path("b.fvecs.gz")).values, plain.values);
}

TEST_F(ReadersTest, SaysWhatIsWrongWithAFile) {
    const std::string good = row<float>({1, 2});
    auto error = [&](const std::string& name, const std::string& bytes) {
        return message_of([&] { read_vectors(write(name, bytes)); });
    };
    EXPECT_NE(error("a.fvecs", good + good.substr(0, 7)).find("ends too early"), std::string::npos);
    EXPECT_NE(error("a.fvecs", good + row<float>({1})).find("row 1 has dimension 1"),
              std::string::npos);
    EXPECT_NE(error("a.fvecs", std::string(8, '\xff')).find("dimension -1"), std::string::npos);
    EXPECT_NE(error("a.fvecs", "").find("empty"), std::string::npos);
    EXPECT_NE(error("a.txt", good).find("unknown format"), std::string::npos);
    EXPECT_NE(error("a.fvecs.xz", good).find("not an xz file"), std::string::npos);
    const std::string packed = packed_xz(good);
    EXPECT_NE(error("a.fvecs.xz", packed.substr(0, packed.size() - 9)).find("ends too early"),
              std::string::npos);
    const std::string missing = message_of([&] { read_vectors(path("none.fvecs")); });
    EXPECT_NE(missing.find("No such file"), std::string::npos);
    EXPECT_NE(message_of([&] { read_vectors(path("none.fvecs.xz")); }).find("No such file"),
              std::string::npos);
}

TEST_F(ReadersTest, WritesWhatItReads) {
    const std::string bytes = row<float>({1, -2}) + row<float>({300, 7.6f});
    const Vectors vectors = read_vectors(write("a.fvecs", bytes));
    for (const char* name : {"b.fvecs", "b.bvecs"}) {
        VectorWriter writer(path(name));
        for (size_t i = 0; i < vectors.rows; i++) writer.write(vectors.row(i));
        EXPECT_FALSE(std::filesystem::exists(path(name))) << "visible before it is finished";
        writer.finish();
    }
    EXPECT_EQ(read("b.fvecs"), bytes);
    EXPECT_EQ(read_vectors(path("b.bvecs")).values, (Floats{1, 0, 255, 8}));
}

TEST_F(ReadersTest, ReadsRowNumbers) {
    const RowNumbers numbers =
        read_row_numbers(write("a.ivecs", row<int32_t>({7, 70000}) + row<int32_t>({0, 1})));
    EXPECT_EQ(numbers.rows, 2u);
    EXPECT_EQ(numbers.width, 2u);
    EXPECT_EQ(numbers.values, (std::vector<int32_t>{7, 70000, 0, 1}));
}

TEST_F(ReadersTest, ReadsBinFiles) {
    const std::string bytes = bin<float>(2, 3, {1, 2.5, -3, 4, 5, 6});
    const Vectors vectors = read_bin(write("a.fbin", bytes));
    EXPECT_EQ(vectors.rows, 2u);
    EXPECT_EQ(vectors.dims, 3u);
    EXPECT_EQ(vectors.values, (Floats{1, 2.5, -3, 4, 5, 6}));
    EXPECT_EQ(read_bin(path("a.fbin"), 1).values, (Floats{1, 2.5, -3}));
    EXPECT_EQ(read_bin(path("a.fbin"), 9).rows, 2u);
    write_gz(path("b.fbin.gz"), bytes);
    EXPECT_EQ(read_bin(path("b.fbin.gz")).values, vectors.values);
    EXPECT_EQ(read_bin(write("b.fbin.xz", packed_xz(bytes))).values, vectors.values);

    EXPECT_EQ(read_bin(write("a.u8bin", bin<uint8_t>(1, 3, {0, 128, 255}))).values,
              (Floats{0, 128, 255}));
    EXPECT_EQ(read_bin(write("a.i8bin", bin<int8_t>(3, 1, {-128, -1, 127}))).values,
              (Floats{-128, -1, 127}));
    EXPECT_EQ(read_bin(write("a.f16bin", bin<uint16_t>(1, 3, {0x3c00, 0xc100, 0x0001}))).values,
              (Floats{1, -2.5, 0x1p-24f}));
    EXPECT_EQ(read_bin(write("b.fbin", bin<float, uint64_t>(2, 1, {7, 8}))).values, (Floats{7, 8}));
}

TEST_F(ReadersTest, SaysWhatIsWrongWithABinFile) {
    auto error = [&](const std::string& name, const std::string& bytes) {
        return message_of([&] { read_bin(write(name, bytes)); });
    };
    const std::string good = bin<float>(2, 2, {1, 2, 3, 4});
    EXPECT_EQ(error("a.fbin", good), "");
    EXPECT_NE(error("a.fbin", good.substr(0, 23)).find("ends too early"), std::string::npos);
    EXPECT_NE(error("a.fbin", good + "x").find("goes on after the 2 rows of 2"), std::string::npos);
    EXPECT_NE(error("a.u8bin", good).find("goes on after"), std::string::npos);
    EXPECT_NE(error("a.fbin", bin<float>(0, 2, {})).find("no rows"), std::string::npos);
    EXPECT_NE(error("a.fbin", bin<float>(1, 1 << 30, {})).find("1073741824 dimensions"),
              std::string::npos);
    EXPECT_NE(error("a.fbin", "").find("ends too early"), std::string::npos);
    EXPECT_NE(error("a.bin", good).find("unknown format"), std::string::npos);
}

#ifdef PGWARP_HDF5

// An HDF5 file with the matrices and attributes of ann-benchmarks.
class Hdf5 {
  public:
    explicit Hdf5(const std::string& path)
        : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) {}
    ~Hdf5() { H5Fclose(file_); }
    Hdf5(const Hdf5&) = delete;
    Hdf5& operator=(const Hdf5&) = delete;

    // `stored`: the type in the file; `given`: that of the values.
    template <typename Value>
    void matrix(const char* name, hid_t stored, hid_t given, hsize_t rows, hsize_t dims,
                std::initializer_list<Value> values) {
        const hsize_t shape[] = {rows, dims};
        const hid_t space = H5Screate_simple(2, shape, nullptr);
        const hid_t set =
            H5Dcreate2(file_, name, stored, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        EXPECT_GE(H5Dwrite(set, given, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.begin()), 0);
        H5Dclose(set);
        H5Sclose(space);
    }

    // Of variable length and in UTF-8, as h5py writes it, or of fixed length in ASCII.
    void attribute(const char* name, const std::string& value, bool variable = true) {
        const hid_t space = H5Screate(H5S_SCALAR);
        const hid_t type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, variable ? H5T_VARIABLE : value.size());
        if (variable)
            H5Tset_cset(type, H5T_CSET_UTF8);
        else
            H5Tset_strpad(type, H5T_STR_NULLPAD);
        const hid_t attribute = H5Acreate2(file_, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        const char* text = value.c_str();
        EXPECT_GE(H5Awrite(attribute, type, variable ? static_cast<const void*>(&text) : text), 0);
        H5Aclose(attribute);
        H5Tclose(type);
        H5Sclose(space);
    }

  private:
    hid_t file_;
};

TEST_F(ReadersTest, ReadsHdf5) {
    {
        Hdf5 file(path("a-2-angular.hdf5"));
        file.attribute("distance", "angular");
        file.attribute("type", "dense");
        file.matrix<float>("train", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, 2, {1, 2.5, 3, -4, 5, 6});
        file.matrix<double>("test", H5T_IEEE_F64BE, H5T_NATIVE_DOUBLE, 1, 2, {0.5, 1e-3});
        Hdf5 other(path("b.hdf5"));
        other.attribute("distance", "euclidean", false);
        other.matrix<uint8_t>("train", H5T_STD_U8LE, H5T_NATIVE_UINT8, 1, 3, {0, 7, 255});
        other.matrix<int>("test", H5T_STD_I64LE, H5T_NATIVE_INT, 1, 3, {-1, 0, 1});
    }
    DatasetRequest request;
    request.name = path("a-2-angular");
    Dataset dataset = read_dataset(request);
    EXPECT_EQ(dataset.name, "a-2-angular");
    EXPECT_EQ(dataset.base.rows, 3u);
    EXPECT_EQ(dataset.base.values, (Floats{1, 2.5, 3, -4, 5, 6}));
    EXPECT_EQ(dataset.queries.values, (Floats{0.5, 1e-3f}));
    EXPECT_EQ(metric_of(request), Metric::cosine);
    request.rows = 2;
    EXPECT_EQ(read_dataset(request).base.values, (Floats{1, 2.5, 3, -4}));

    request = {};
    request.name = path("b.hdf5");
    dataset = read_dataset(request);
    EXPECT_EQ(dataset.name, "b");
    EXPECT_EQ(dataset.base.values, (Floats{0, 7, 255}));
    EXPECT_EQ(dataset.queries.values, (Floats{-1, 0, 1}));
    EXPECT_EQ(metric_of(request), Metric::l2);
}

TEST_F(ReadersTest, SaysWhatIsWrongWithHdf5) {
    {
        Hdf5 file(path("a.hdf5"));
        file.attribute("distance", "jaccard");
        file.matrix<float>("empty", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 0, 2, {});
        Hdf5 other(path("b.hdf5"));
        other.attribute("type", "sparse");
        other.matrix<float>("train", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 1, 1, {1});
    }
    auto error = [&](const std::string& name, const std::string& set) {
        return message_of([&] { read_hdf5(path(name), set); });
    };
    EXPECT_NE(error("a.hdf5", "train").find("\"train\" is not in it"), std::string::npos);
    EXPECT_NE(error("a.hdf5", "empty").find("is empty"), std::string::npos);
    EXPECT_NE(error("b.hdf5", "train").find("sparse"), std::string::npos);
    EXPECT_NE(error("none.hdf5", "train").find("not there"), std::string::npos);
    write("c.hdf5", "text");
    EXPECT_NE(error("c.hdf5", "train").find("no HDF5 file"), std::string::npos);
    EXPECT_NE(message_of([&] { read_hdf5_metric(path("a.hdf5")); }).find("\"jaccard\""),
              std::string::npos);
    EXPECT_NE(message_of([&] { read_hdf5_metric(path("b.hdf5")); }).find("does not say"),
              std::string::npos);
}

#else

TEST_F(ReadersTest, SaysThatHdf5IsMissing) {
    DatasetRequest request;
    request.name = write("a.hdf5", "");
    EXPECT_NE(message_of([&] { read_dataset(request); }).find("libhdf5-dev"), std::string::npos);
    EXPECT_NE(message_of([&] { metric_of(request); }).find("libhdf5-dev"), std::string::npos);
}

#endif

TEST_F(ReadersTest, ReadsIdxImages) {
    const std::string head("\0\0\x08\x03\0\0\0\2\0\0\0\2\0\0\0\3", 16);
    const std::string pixels("\0\1\2\3\4\5\xff\7\x08\x09\x0a\x0b", 12);
    write_gz(path("a.gz"), head + pixels);
    const Vectors vectors = read_idx_images(path("a.gz"));
    EXPECT_EQ(vectors.rows, 2u);
    EXPECT_EQ(vectors.dims, 6u);
    EXPECT_EQ(vectors.values, (Floats{0, 1, 2, 3, 4, 5, 255, 7, 8, 9, 10, 11}));
    EXPECT_EQ(read_idx_images(path("a.gz"), 1).rows, 1u);

    const std::string labels = write("labels", std::string("\0\0\x08\x01\0\0\0\1\5", 9));
    EXPECT_NE(message_of([&] { read_idx_images(labels); }).find("not an idx file"),
              std::string::npos);
    const std::string cut = write("cut", head + pixels.substr(0, 11));
    EXPECT_NE(message_of([&] { read_idx_images(cut); }).find("too early"), std::string::npos);
}

TEST_F(ReadersTest, ReadsGloveByWordNumber) {
    // Words that look like JSON, and an order that is not that of the numbers.
    const Vectors vectors = read_glove_json(
        write("a.json", R"({"precision":8,"size":3,"dimensions":2,"words":["\"","]}","x"],)"
                        R"("vectors":{"]}":[3,-4,5,1], "\"":[0.5,0,0.5,0] ,"x":[1e-1,0,0.1,2]},)"
                        R"("unkVector":[0,0,0,-1]})"));
    EXPECT_EQ(vectors.rows, 3u);
    EXPECT_EQ(vectors.dims, 2u);
    EXPECT_EQ(vectors.values, (Floats{0.5, 0, 3, -4, 0.1f, 0}));
}

TEST_F(ReadersTest, SaysWhatIsWrongWithGlove) {
    auto error = [&](const std::string& vectors) {
        return message_of([&] {
            read_glove_json(write("a.json", R"({"size":2,"dimensions":2,"vectors":{)" + vectors));
        });
    };
    EXPECT_EQ(error(R"("a":[3,4,5,0],"b":[0,1,1,1]}})"), "");
    EXPECT_NE(error(R"("a":[3,4,6,0],"b":[0,1,1,1]}})").find("norm"), std::string::npos);
    EXPECT_NE(error(R"("a":[3,4,5,0],"b":[0,1,1,0]}})").find("word number"), std::string::npos);
    EXPECT_NE(error(R"("a":[3,4,5,0]}})").find("fewer words"), std::string::npos);
    EXPECT_NE(error(R"("a":[3,4,0],"b":[0,1,1,1]}})").find("expected"), std::string::npos);
    EXPECT_NE(error(R"("a":[3,4,5)").find("too early"), std::string::npos);
    EXPECT_NE(error(R"("a\)").find("does not end"), std::string::npos);
}

TEST_F(ReadersTest, FindsADataSetByItsPrefix) {
    write("set_base.bvecs", row<uint8_t>({1, 2}) + row<uint8_t>({3, 4}));
    write("set_query.fvecs.xz", packed_xz(row<float>({5, 6})));
    DatasetRequest request;
    request.name = path("set");
    Dataset dataset = read_dataset(request);
    EXPECT_EQ(dataset.name, "set");
    EXPECT_TRUE(dataset.bytes);
    EXPECT_EQ(dataset.base.values, (Floats{1, 2, 3, 4}));
    EXPECT_EQ(dataset.queries.values, (Floats{5, 6}));

    EXPECT_EQ(metric_of(request), Metric::l2);

    request.directory = path("");
    request.name = "set";
    request.rows = 1;
    EXPECT_EQ(read_dataset(request).base.rows, 1u);
    request.rows = 3;
    EXPECT_NE(message_of([&] { read_dataset(request); }).find("only 2 rows"), std::string::npos);

    // What converters name with a dot, and the folders of cuvs-bench.
    request.rows = 0;
    write("dot.base.u8bin", bin<uint8_t>(1, 2, {1, 2}));
    write("dot.query.u8bin", bin<uint8_t>(1, 2, {3, 4}));
    request.name = "dot";
    dataset = read_dataset(request);
    EXPECT_TRUE(dataset.bytes);
    EXPECT_EQ(dataset.queries.values, (Floats{3, 4}));
    std::filesystem::create_directory(path("folder"));
    write("folder/base.i8bin", bin<int8_t>(1, 1, {-1}));
    write("folder/query.fbin", bin<float>(1, 1, {0.5}));
    for (const char* name : {"folder", "folder/"}) {
        request.name = path(name);
        dataset = read_dataset(request);
        EXPECT_EQ(dataset.name, "folder");
        EXPECT_FALSE(dataset.bytes);
        EXPECT_EQ(dataset.base.values, (Floats{-1}));
        EXPECT_EQ(dataset.queries.values, (Floats{0.5}));
    }

    std::filesystem::create_directory(path("large"));
    write("large/base.1B.u8bin", bin<uint8_t>(1, 1, {9}));
    write("large/query.public.10K.u8bin", bin<uint8_t>(1, 1, {8}));
    write("large/query.notes", "");
    request.name = "large";
    dataset = read_dataset(request);
    EXPECT_EQ(dataset.base.values, (Floats{9}));
    EXPECT_EQ(dataset.queries.values, (Floats{8}));
    write("large/query.private.10K.u8bin", bin<uint8_t>(1, 1, {7}));
    EXPECT_NE(message_of([&] { read_dataset(request); }).find("query.private.10K.u8bin\" and \""),
              std::string::npos);
    write("large/query.u8bin", bin<uint8_t>(1, 1, {6}));
    EXPECT_EQ(read_dataset(request).queries.values, (Floats{6}));

    request.name = "other";
    EXPECT_NE(message_of([&] { check_dataset(request); }).find("not there"), std::string::npos);
}

}  // namespace
}  // namespace pgwarp::bench
