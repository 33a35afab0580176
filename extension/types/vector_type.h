// The types of vectors: which types there are, and floats from their values.
//
// Only the files of this folder know how a type stores its values (vector.h, halfvec.h). All other
// code makes a VectorType once, from the type of a column or argument, and asks it for floats.
#pragma once

#include "extension/compat.h"
#include "extension/types/checks.h"

namespace pgwarp {

enum class float16 : uint16;     // kernels/float16.h
enum class RowElements : uint8;  // kernels/row_elements.h

// The floats of one vector; false where there is none. They lie in the value, or in the memory
// context that was current when the view was made, and are valid as long as both.
struct VectorView {
    const float* values;  // (dims)
    uint32 dims;

    explicit operator bool() const { return values != nullptr; }
};

// How a type stores its values. No switch over formats has a default: the compiler names every
// place that a new one must touch.
enum class VectorFormat : uint8 {
    none,     // not a type of vectors
    float32,  // vector
    float16,  // halfvec
};

// A vector as its type stores it, for distances, which kernels compute without a copy. False where
// there is none; valid as long as the value.
struct StoredVector {
    const void* elements;  // (dims)
    uint32 dims;
    VectorFormat format;

    explicit operator bool() const { return elements != nullptr; }

    // Calls visit() with the elements, which are of the type that they have.
    template <typename Visit>
    auto visit(Visit&& visit) const {
        switch (format) {
            case VectorFormat::none:
                break;
            case VectorFormat::float32:
                return visit(static_cast<const float*>(elements));
            case VectorFormat::float16:
                return visit(static_cast<const float16*>(elements));
        }
        pg_unreachable();
    }
};

// A type of vectors with its modifier. All zeros are no type of vectors.
class VectorType {
  public:
    VectorType() = default;
    constexpr VectorType(VectorFormat format, uint32 dims) : format_(format), dims_(dims) {}

    // Of a column or argument, or of what a domain is over; false where it is no type of vectors.
    // Looks into the catalog once for each type of a session.
    static VectorType of(Oid type, int32 typmod = -1);
    explicit operator bool() const { return format_ != VectorFormat::none; }

    bool stores_like(const VectorType& other) const { return format_ == other.format_; }

    // The dimensions that the type declares: vector(n), halfvec(n). 0: none.
    uint32 dims() const { return dims_; }
    // Its name in SQL, without the dimensions.
    const char* name() const;
    uint32 value_bytes() const;  // of one stored element
    // How rows of this type travel to a device as they are stored.
    RowElements elements() const;

    // The floats of a datum, or of a value that is detoasted: without a copy where the type stores
    // aligned floats, else in the current memory context.
    VectorView view(Datum datum) const;
    VectorView view(const varlena* detoasted) const;
    StoredVector stored(const varlena* detoasted) const;
    // Frees the memory of a view of this value, where it has any of its own. Callers that make one
    // view only leave that to their memory context.
    void end_view(const VectorView& view, const varlena* detoasted) const;

    // A plain value is neither external nor compressed. Its header may be a short one, which leaves
    // its elements unaligned: these calls read it where it lies.
    static bool is_plain(Datum datum) {
        const void* value = DatumGetPointer(datum);
        return !VARATT_IS_EXTERNAL(value) && !VARATT_IS_COMPRESSED(value);
    }
    uint32 dims_of(const varlena* plain) const;
    // Copies the elements of a vector of these dimensions as they are stored; false as for read().
    bool copy_elements(const varlena* plain, uint32 dims, void* to) const;
    // Reads a vector of these dimensions; false, and `to` is unchanged, where it has others.
    bool read(const varlena* plain, uint32 dims, float* to) const;

    // A value of this type, in the current memory context. Reports an error where an element is
    // beyond its range.
    Datum make(const float* values, uint32 dims) const;
    // Rounds floats to what a value of this type stores, as make() does.
    void round(float* values, uint32 dims) const;
    // Copies a value as it is stored, detoasted, to the current memory context.
    static varlena* copy(Datum datum);

  private:
    VectorFormat format_;
    uint32 dims_;
};

// The type `vector`, for functions that SQL declares with it.
inline constexpr VectorType vector_type{VectorFormat::float32, 0};
// The type `halfvec`, likewise.
inline constexpr VectorType halfvec_type{VectorFormat::float16, 0};

// Whether a function is one of pgvector's library.
bool is_pgvector_function(Oid function);

// The dimensions that a type modifier declares. 0: none.
inline uint32 declared_dims(int32 typmod) {
    return typmod > 0 ? static_cast<uint32>(typmod) : 0;
}

}  // namespace pgwarp
