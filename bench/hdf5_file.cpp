#include "bench/hdf5_file.h"

#include <stdexcept>

#ifdef PGWARP_HDF5

#include <algorithm>
#include <hdf5.h>

namespace pgwarp::bench {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw std::runtime_error("could not read \"" + path + "\": " + what);
}

// What HDF5 opens, closed with its own function. A negative number is an error.
class Handle {
  public:
    Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
    ~Handle() {
        if (id_ >= 0) close_(id_);
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;

    operator hid_t() const { return id_; }

  private:
    hid_t id_;
    herr_t (*close_)(hid_t);
};

hid_t open_file(const std::string& path) {
    // We say what is wrong; HDF5 would print its whole stack of errors.
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0) fail(path, "it is not there, or no HDF5 file");
    return file;
}

// "" if the file has no such attribute.
std::string attribute_text(hid_t file, const std::string& path, const char* name) {
    if (H5Aexists(file, name) <= 0) return "";
    const Handle attribute(H5Aopen(file, name, H5P_DEFAULT), H5Aclose);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    const Handle space(H5Aget_space(attribute), H5Sclose);
    const std::string what = std::string("attribute \"") + name + "\" is no text";
    if (H5Tget_class(type) != H5T_STRING || H5Sget_simple_extent_npoints(space) != 1)
        fail(path, what);
    // Either kind of character set, as HDF5 does not convert between them.
    const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_cset(memory, H5Tget_cset(type));
    if (H5Tis_variable_str(type) > 0) {
        H5Tset_size(memory, H5T_VARIABLE);
        char* text = nullptr;
        if (H5Aread(attribute, memory, &text) < 0 || text == nullptr) fail(path, what);
        std::string copy = text;
        H5free_memory(text);
        return copy;
    }
    std::string text(H5Tget_size(type) + 1, '\0');
    H5Tset_size(memory, text.size());
    if (H5Aread(attribute, memory, text.data()) < 0) fail(path, what);
    return text.c_str();
}

}  // namespace

Vectors read_hdf5(const std::string& path, const std::string& name, size_t limit) {
    const Handle file(open_file(path), H5Fclose);
    const std::string what = "data set \"" + name + "\" ";
    if (attribute_text(file, path, "type") == "sparse") fail(path, "its rows are sparse");
    if (H5Lexists(file, name.c_str(), H5P_DEFAULT) <= 0) fail(path, what + "is not in it");
    const Handle set(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
    if (set < 0) fail(path, what + "cannot be opened");

    const Handle type(H5Dget_type(set), H5Tclose);
    const H5T_class_t kind = H5Tget_class(type);
    if (kind != H5T_FLOAT && kind != H5T_INTEGER) fail(path, what + "holds no numbers");
    const Handle space(H5Dget_space(set), H5Sclose);
    hsize_t shape[2];
    if (H5Sget_simple_extent_ndims(space) != 2 ||
        H5Sget_simple_extent_dims(space, shape, nullptr) != 2)
        fail(path, what + "is no matrix");
    if (shape[0] == 0 || shape[1] == 0) fail(path, what + "is empty");

    shape[0] = std::min<hsize_t>(shape[0], limit);
    const hsize_t first[2] = {0, 0};
    const Handle memory(H5Screate_simple(2, shape, nullptr), H5Sclose);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, first, nullptr, shape, nullptr);
    Vectors vectors;
    vectors.rows = shape[0];
    vectors.dims = shape[1];
    vectors.values.resize(vectors.rows * vectors.dims);
    if (H5Dread(set, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, vectors.values.data()) < 0)
        fail(path, what + "cannot be read");
    return vectors;
}

Metric read_hdf5_metric(const std::string& path) {
    const Handle file(open_file(path), H5Fclose);
    const std::string distance = attribute_text(file, path, "distance");
    if (distance == "euclidean") return Metric::l2;
    if (distance == "angular") return Metric::cosine;
    fail(path, distance.empty() ? "it does not say its distance"
                                : "no index has its distance, \"" + distance + "\"");
}

}  // namespace pgwarp::bench

#else

namespace pgwarp::bench {
namespace {

[[noreturn]] void no_hdf5(const std::string& path) {
    throw std::runtime_error("could not read \"" + path +
                             "\": this program was built without HDF5\nHINT:  Install it (Debian: "
                             "apt-get install libhdf5-dev), then run cmake and build again.");
}

}  // namespace

Vectors read_hdf5(const std::string& path, const std::string&, size_t) {
    no_hdf5(path);
}
Metric read_hdf5_metric(const std::string& path) {
    no_hdf5(path);
}

}  // namespace pgwarp::bench

#endif
