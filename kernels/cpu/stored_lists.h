// Lists that the CPU's store holds, with the model that encoded them, and its batches.
#pragma once

#include "kernels/list_scan.h"
#include "kernels/list_store.h"
#include "kernels/nibbles.h"
#include "kernels/refinement.h"

#include <cstring>
#include <vector>

namespace pgwarp {

// Entries of a list that a search scans before it reads its bounds again. A multiple of eight.
inline constexpr uint32_t part_entries = 1024;

// One list, in columns as on its pages, in one allocation for all pages.
struct StoredList {
    bool held = false;
    bool refined = false;
    uint32_t count = 0;
    uint32_t stride = 0;               // a multiple of 8, at least count: the capacity of a column
    std::vector<uint8_t> codes;        // (m)(stride), and padding that a scan may read
    std::vector<uint8_t> rows;         // (count)(m): the same by entry, for reading single entries
    std::vector<float> offsets;        // (count)
    std::vector<uint64_t> ids;         // (count)
    std::vector<uint8_t> attributes;   // columns with the stride of the codes
    std::vector<uint8_t> refinements;  // (count)(refinement_stride(dims)), if refined

    size_t bytes() const {
        return codes.capacity() + rows.capacity() + offsets.capacity() * sizeof(float) +
               ids.capacity() * sizeof(uint64_t) + attributes.capacity() + refinements.capacity();
    }
    CodeColumns code_columns() const { return {codes.data(), stride, count, offsets.data()}; }
    AttributeColumns attribute_columns(const AttributeLayout& layout) const {
        return {&layout, attributes.data(), stride, count};
    }

    // Allocates columns for at least `total` entries. On a throw the list is unchanged.
    void reserve(uint32_t m, const AttributeLayout& layout, uint32_t total) {
        const uint32_t wider = (total + 7) / 8 * 8;
        rows.reserve(size_t{m} * wider);
        offsets.reserve(wider);
        ids.reserve(wider);
        std::vector<uint8_t> columns(size_t{m} * wider + 16);
        std::vector<uint8_t> numbers(size_t{layout.entry_bytes()} * wider);
        for (uint32_t j = 0; j < m && count > 0; ++j)
            std::memcpy(columns.data() + size_t{j} * wider, codes.data() + size_t{j} * stride,
                        count);
        uint32_t before = 0;
        for_each_attribute(layout, [&](uint32_t bytes) {
            if (count > 0)
                std::memcpy(numbers.data() + size_t{before} * wider,
                            attributes.data() + size_t{before} * stride, size_t{bytes} * count);
            before += bytes;
        });
        codes = std::move(columns);
        attributes = std::move(numbers);
        stride = wider;
    }
    void reserve_refinements(uint32_t dims, uint32_t total) {
        refinements.reserve(size_t{refinement_stride(dims)} * total);
    }
    // Adds those of a page, whose entries were added before.
    void add_refinements(const ListPage& page, uint32_t dims) {
        refinements.insert(refinements.end(), page.refinements,
                           page.refinements + size_t{refinement_stride(dims)} * page.count);
    }
    const uint8_t* refinement(uint32_t entry, uint32_t dims) const {
        return refinements.data() + size_t{refinement_stride(dims)} * entry;
    }
    // The caller has reserved room.
    void add(const ListPage& page, uint32_t m, const AttributeLayout& layout) {
        if (page.count == 0) return;
        for (uint32_t j = 0; j < m; ++j)
            std::memcpy(codes.data() + size_t{j} * stride + count,
                        page.codes + size_t{j} * page.stride, page.count);
        uint32_t before = 0;
        for_each_attribute(layout, [&](uint32_t bytes) {
            std::memcpy(attributes.data() + size_t{before} * stride + size_t{bytes} * count,
                        page.attributes + size_t{before} * page.stride, size_t{bytes} * page.count);
            before += bytes;
        });
        offsets.insert(offsets.end(), page.offsets, page.offsets + page.count);
        for (uint32_t i = 0; i < page.count; ++i)
            ids.push_back(packed_tid_number(page.tids + size_t{i} * 6));
        rows.resize(size_t{m} * (count + page.count));
        for (uint32_t i = count; i < count + page.count; ++i)
            for (uint32_t j = 0; j < m; ++j)
                rows[size_t{i} * m + j] = codes[size_t{j} * stride + i];
        count += page.count;
    }
};

struct StoredLists {
    QuantizerShape shape;
    AttributeLayout attributes;
    std::vector<float> centroids, codebook;
    std::vector<float> half_codebook;  // (dims)(16), with four bits
    std::vector<StoredList> lists;
    // Parents of the lists (quantizer.h); empty: they have none, or the store was not told.
    std::vector<float> parent_centroids;
    std::vector<uint32_t> parent_first;

    StoredLists(const Quantizer& quantizer, const AttributeLayout& layout)
        : shape(quantizer.shape),
          attributes(layout),
          centroids(quantizer.centroids, quantizer.centroids + size_t{shape.lists} * shape.dims),
          codebook(quantizer.codebook,
                   quantizer.codebook + size_t{shape.codebook_rows()} * codewords),
          lists(shape.lists) {
        if (const Parents& parents = quantizer.parents; parents.count > 0) {
            parent_centroids.assign(parents.centroids,
                                    parents.centroids + size_t{parents.count} * shape.dims);
            parent_first.assign(parents.first, parents.first + parents.count + 1);
        }
        if (shape.bits != 4) return;
        half_codebook.resize(size_t{shape.dims} * nibble_words);
        nibble_words_of(shape, codebook.data(), half_codebook.data());
    }
    Quantizer quantizer() const { return {shape, centroids.data(), codebook.data()}; }
};

// A batch with memory of its own. start() answers it at once.
struct CpuBatch final : ListBatch {
    CpuBatch(const ListBatchShape& wanted_shape, uint32_t dims)
        : query_room(wanted_shape.queries * dims),
          wanted_room(wanted_shape.queries),
          found_room(wanted_shape.queries * wanted_shape.k),
          count_room(wanted_shape.queries),
          probed_room(wanted_shape.queries * wanted_shape.probes),
          taken_room(wanted_shape.queries),
          condition_room(wanted_shape.queries * wanted_shape.conditions),
          value_room(wanted_shape.queries * wanted_shape.values),
          searched_room(wanted_shape.filtered ? wanted_shape.queries : 0),
          left_out_room(wanted_shape.refined ? wanted_shape.queries : 0) {
        shape = wanted_shape;
        queries = query_room.data();
        wanted = wanted_room.data();
        found = found_room.data();
        found_counts = count_room.data();
        probed = probed_room.data();
        taken = taken_room.data();
        conditions = condition_room.data();
        values = value_room.data();
        searched = searched_room.data();
        left_out = left_out_room.data();
    }
    std::vector<float> query_room;
    std::vector<ListQuery> wanted_room;
    std::vector<Neighbor> found_room;
    std::vector<uint32_t> count_room;
    std::vector<uint32_t> probed_room;
    std::vector<uint32_t> taken_room;
    std::vector<PackedCondition> condition_room;
    std::vector<uint64_t> value_room;
    std::vector<SearchedLists> searched_room;
    std::vector<float> left_out_room;
};

}  // namespace pgwarp
