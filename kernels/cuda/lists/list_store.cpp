// Lists on the device, for batches that overlap.
//
// A list's memory is one block: tiles, offsets, TIDs, attributes, refinements. Uploads run in a
// stream of their own; a batch waits for that stream when it starts. A batch reads the lists
// through an immutable directory. If lists have changed since the last directory was made, the next
// batch makes a new one. Memory of replaced lists is freed once no running batch may read it.
//
// Appending copies the list to a new block, on the device, and writes the new entries there. It
// cannot write behind the last entry of a block that a running batch reads: a scan reads whole
// tiles, and recognises padding by offsets that are NaN, so the batch would see entries beyond its
// version of the list. The copy takes microseconds: lists are short for the device's bandwidth.

#include "kernels/cuda/lists/list_store.h"

#include "kernels/cuda/lists/far_lists.h"
#include "kernels/cuda/lists/list_batch.h"
#include "kernels/cuda/lists/filter.h"
#include "kernels/cuda/lists/tile_codes.h"
#include "kernels/device.h"
#include "kernels/refinement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <vector>

namespace pgwarp::gpu {

namespace {

constexpr size_t tid_bytes = 3 * sizeof(uint16_t);

// Entries of a list that has `before` entries, after these pages are appended.
uint32_t checked_count(uint32_t before, std::span<const ListPage> pages) {
    size_t count = before;
    for (const ListPage& page : pages) count += page.count;
    if (count >= std::numeric_limits<int32_t>::max()) throw std::length_error("list too long");
    return static_cast<uint32_t>(count);
}

// If an exception leaves the scope, waits for the uploads started in it. Declare it after the block
// that the uploads write to: the block's destructor returns the memory to the pool, where it can be
// allocated again at once.
class EndOfUploads {
  public:
    explicit EndOfUploads(Stream& uploads) : uploads_(uploads) {}
    ~EndOfUploads() {
        if (std::uncaught_exceptions() > exceptions_) cudaStreamSynchronize(uploads_);
    }
    EndOfUploads(const EndOfUploads&) = delete;
    EndOfUploads& operator=(const EndOfUploads&) = delete;

  private:
    Stream& uploads_;
    const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

class CudaListStore final : public ListStore {
  public:
    CudaListStore(const Context& context, const Quantizer& quantizer,
                  const AttributeLayout& attributes);
    ~CudaListStore() override { cudaStreamSynchronize(uploads_); }

    void put(uint32_t list, std::span<const ListPage> pages) override;
    void append(uint32_t list, std::span<const ListPage> pages) override;
    void drop(uint32_t list) override;
    bool holds(uint32_t list) const noexcept override {
        return list < lists_.size() && lists_[list].held;
    }
    size_t bytes() const noexcept override { return bytes_; }

    std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override;
    bool mixes_with(ListStore& other) noexcept override;
    void start(ListBatch& batch, size_t queries) override;
    bool done(ListBatch& batch) override;
    void wait(ListBatch& batch) override;

  private:
    struct List {
        bool held = false;
        bool refined = false;
        uint32_t count = 0;
        Buffer<char> memory;
    };
    // Memory that batches up to `serial` may still read.
    struct Retired {
        uint64_t serial;
        Buffer<char> memory;
    };
    struct Staging {
        PinnedBuffer<char> room;
        Event copied;
    };

    void check_list(uint32_t list) const {
        if (list >= lists_.size()) throw std::out_of_range("no such list");
    }
    size_t offsets_at(uint32_t count) const {
        return size_t{(count + tile_entries - 1) / tile_entries} * layout_.tile_bytes();
    }
    static size_t padded_entries(uint32_t count) {
        return (size_t{count} + tile_entries - 1) / tile_entries * tile_entries;
    }
    DeviceList view_of(const List& list, uint64_t first) const;
    size_t tids_at(uint32_t count) const {
        return offsets_at(count) + padded_entries(count) * sizeof(float);
    }
    size_t attributes_at(uint32_t count) const {
        return aligned_attributes(tids_at(count) + size_t{count} * tid_bytes);
    }
    size_t refinements_at(uint32_t count) const {
        const size_t attribute_bytes = size_t{attributes_.entry_bytes()} * attribute_stride(count);
        return (attributes_at(count) + attribute_bytes + 15) / 16 * 16;
    }
    size_t refinement_bytes(uint32_t count) const {
        return size_t{refinement_stride(model_.view().shape.dims)} * count;
    }
    size_t list_bytes(uint32_t count, bool refined) const {
        return refinements_at(count) + (refined ? refinement_bytes(count) : 0);
    }
    Buffer<char> allocate(size_t bytes);
    // With their refinements, if the new list is `refined`.
    void copy_entries(const List& from, uint32_t count, bool refined, const Buffer<char>& to);
    void upload(std::span<const ListPage> pages, EntryRange entries, bool refined,
                const Buffer<char>& to);
    void stage_attributes(std::span<const ListPage> pages, uint32_t stride, char* columns) const;
    void upload_attributes(const char* columns, EntryRange entries, const Buffer<char>& to);
    // If it throws, `memory` is still the caller's.
    void replace(uint32_t list, const List& as, Buffer<char>&& memory);
    void free_retired() noexcept;
    void refresh_directory(Stream& stream);
    StoreView view() const;
    // The shape of a search of the batch's queries in their stores (mixed), or in this one.
    SearchShape shape_of(CudaListBatch& batch, size_t queries,
                         std::span<CudaListStore* const> stores) const;
    // Gives the batch the directory of the lists as they are now, which it reads until end_use().
    void begin_use(CudaListBatch& batch);
    static void end_use(CudaListBatch& batch) noexcept;
    // Copies the queries to the device; true: by a kernel.
    bool send(CudaListBatch& batch, size_t queries) const;
    SearchPlan plan_with(const SearchShape& shape, size_t room) const;

    const Context& context_;
    Stream uploads_;
    FarLists far_;
    Model model_;
    CodeLayout layout_;
    AttributeLayout attributes_;
    Buffer<float> codewords_;
    CentroidMatrix centroids_;
    Buffer<float> given_centroids_;  // if `far_` has moved those of the model
    float largest_word_ = 0;

    std::vector<List> lists_;
    size_t bytes_ = 0;
    std::array<Staging, 4> staging_;
    size_t next_staging_ = 0;
    Buffer<char> raw_;
    Milestone uploaded_;

    std::shared_ptr<Directory> directory_;
    std::vector<Retired> retired_;
    std::vector<uint64_t> running_;  // serials
    uint64_t last_serial_ = 0;
};

namespace {

float largest_word_of(const Quantizer& quantizer) {
    const QuantizerShape& shape = quantizer.shape;
    double largest = 0;
    for (uint32_t j = 0; j < shape.m; ++j)
        for (uint32_t c = 0; c < codewords; ++c) {
            double norm = 0;
            for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d) {
                const double w = quantizer.codebook[size_t{d} * codewords + c];
                norm += w * w;
            }
            largest = std::max(largest, norm);
        }
    return static_cast<float>(std::sqrt(largest));
}

}  // namespace

CudaListStore::CudaListStore(const Context& context, const Quantizer& quantizer,
                             const AttributeLayout& attributes)
    : context_(context),
      far_(context, uploads_, quantizer),
      model_(context, uploads_, far_.quantizer()),
      layout_(CodeLayout::of(quantizer.shape.m)),
      attributes_(attributes),
      codewords_(context.memory, size_t{quantizer.shape.codebook_rows()} * codewords),
      centroids_(context, uploads_, model_.view().centroids, quantizer.shape.lists,
                 quantizer.shape.dims, Origin::zero, Wanted::products),
      largest_word_(largest_word_of(quantizer)),
      lists_(quantizer.shape.lists) {
    transpose_codebook(model_.view(), codewords_.data(), uploads_);
    if (far_.any()) {
        const size_t floats = size_t{quantizer.shape.lists} * quantizer.shape.dims;
        given_centroids_ = Buffer<float>(context.memory, floats);
        copy_async(given_centroids_.data(), quantizer.centroids, floats, uploads_);
    }
    uploads_.synchronize();
}

DeviceList CudaListStore::view_of(const List& list, uint64_t first) const {
    const char* memory = list.memory.data();
    return {reinterpret_cast<const uint8_t*>(memory),
            reinterpret_cast<const float*>(memory + offsets_at(list.count)),
            reinterpret_cast<const uint16_t*>(memory + tids_at(list.count)), list.count,
            static_cast<uint32_t>(first)};
}

// If memory is short, waits for uploads, so that memory of replaced lists can be freed.
Buffer<char> CudaListStore::allocate(size_t bytes) {
    free_retired();
    try {
        return Buffer<char>(context_.memory, bytes);
    } catch (const OutOfDeviceMemory&) {
        if (retired_.empty()) throw;
        uploads_.synchronize();
        free_retired();
        return Buffer<char>(context_.memory, bytes);
    }
}

void CudaListStore::put(uint32_t list, std::span<const ListPage> pages) {
    context_.use();
    check_list(list);
    const uint32_t count = checked_count(0, pages);
    Buffer<char> memory;
    const EndOfUploads end(uploads_);
    const bool refined = have_refinements(pages);
    if (count > 0) {
        memory = allocate(list_bytes(count, refined));
        upload(pages, {0, count}, refined, memory);
    }
    replace(list, {true, refined, count, {}}, std::move(memory));
}

void CudaListStore::append(uint32_t number, std::span<const ListPage> pages) {
    context_.use();
    check_list(number);
    const List& list = lists_[number];
    if (!list.held) throw std::logic_error("list is not held");
    const uint32_t count = checked_count(list.count, pages);
    if (count == list.count) return;
    const bool refined = list.refined && have_refinements(pages);
    Buffer<char> memory = allocate(list_bytes(count, refined));
    const EndOfUploads end(uploads_);
    copy_entries(list, count, refined, memory);
    upload(pages, {list.count, count}, refined, memory);
    replace(number, {true, refined, count, {}}, std::move(memory));
}

// Copies the entries of a list to a block for `count` entries.
void CudaListStore::copy_entries(const List& from, uint32_t count, bool refined,
                                 const Buffer<char>& to) {
    if (refined)
        copy_async(to + refinements_at(count), from.memory + refinements_at(from.count),
                   refinement_bytes(from.count), uploads_);
    copy_async(to.data(), from.memory.data(), offsets_at(from.count), uploads_);
    copy_async(to + offsets_at(count), from.memory + offsets_at(from.count),
               from.count * sizeof(float), uploads_);
    copy_async(to + tids_at(count), from.memory + tids_at(from.count),
               size_t{from.count} * tid_bytes, uploads_);
    size_t before = 0;
    for_each_attribute(attributes_, [&](uint32_t bytes) {
        copy_async(to + attributes_at(count) + before * attribute_stride(count),
                   from.memory + attributes_at(from.count) + before * attribute_stride(from.count),
                   size_t{from.count} * bytes, uploads_);
        before += bytes;
    });
}

// Copies the pages' attributes to columns of `stride` numbers, zero past the last.
void CudaListStore::stage_attributes(std::span<const ListPage> pages, uint32_t stride,
                                     char* columns) const {
    size_t before = 0;
    for_each_attribute(attributes_, [&](uint32_t bytes) {
        char* column = columns + before * stride;
        size_t filled = 0;
        for (const ListPage& page : pages) {
            if (page.count == 0) continue;
            std::memcpy(column + filled, page.attributes + before * page.stride,
                        size_t{page.count} * bytes);
            filled += size_t{page.count} * bytes;
        }
        std::fill(column + filled, column + size_t{stride} * bytes, 0);
        before += bytes;
    });
}

// `columns`: from stage_attributes(), of these entries and the padding after them.
void CudaListStore::upload_attributes(const char* columns, EntryRange entries,
                                      const Buffer<char>& to) {
    if (attributes_.count == 0) return;
    const uint32_t stride = attribute_stride(entries.count);
    char* place = to + attributes_at(entries.count);
    if (entries.first == 0) {
        copy_async(place, columns, size_t{attributes_.entry_bytes()} * stride, uploads_);
        return;
    }
    const size_t staged = stride - entries.first;
    size_t before = 0;
    for_each_attribute(attributes_, [&](uint32_t bytes) {
        copy_async(place + before * stride + size_t{entries.first} * bytes,
                   columns + before * staged, staged * bytes, uploads_);
        before += bytes;
    });
}

void CudaListStore::drop(uint32_t list) {
    context_.use();
    check_list(list);
    replace(list, {}, {});
    free_retired();
}

// Offsets and TIDs are copied directly to their place; codes go through the kernel that tiles them.
void CudaListStore::upload(std::span<const ListPage> pages, EntryRange entries, bool refined,
                           const Buffer<char>& to) {
    const auto [first_entry, count] = entries;
    const size_t offset_bytes = (padded_entries(count) - first_entry) * sizeof(float);
    const size_t new_tid_bytes = size_t{count - first_entry} * tid_bytes;
    const uint32_t attribute_columns = attribute_stride(count) - first_entry;
    const size_t attributes_in = (offset_bytes + new_tid_bytes + 15) / 16 * 16;
    const size_t attribute_bytes = size_t{attributes_.entry_bytes()} * attribute_columns;
    const size_t table_at = (attributes_in + attribute_bytes + 15) / 16 * 16;
    const size_t codes_at = table_at + pages.size() * sizeof(RawPage);
    size_t code_bytes = 0;
    for (const ListPage& page : pages) code_bytes += size_t{layout_.m} * page.stride;
    const size_t refinements_in = (codes_at + code_bytes + 15) / 16 * 16;
    const size_t new_refinement_bytes = refined ? refinement_bytes(count - first_entry) : 0;

    Staging& staging = staging_[next_staging_++ % staging_.size()];
    staging.copied.synchronize();
    staging.room.grow(refinements_in + new_refinement_bytes);
    char* room = staging.room.data();
    auto* offsets = reinterpret_cast<float*>(room);
    auto* table = reinterpret_cast<RawPage*>(room + table_at);
    uint32_t first = 0, filled = 0;
    size_t at = 0;
    for (const ListPage& page : pages) {
        if (page.count == 0) continue;
        std::memcpy(offsets + first, page.offsets, page.count * sizeof(float));
        std::memcpy(room + offset_bytes + size_t{first} * tid_bytes, page.tids,
                    size_t{page.count} * tid_bytes);
        // The last row of a page ends at its last entry: memory behind it must not be read.
        const size_t bytes = size_t{layout_.m - 1} * page.stride + page.count;
        std::memcpy(room + codes_at + at, page.codes, bytes);
        if (refined)
            std::memcpy(room + refinements_in + refinement_bytes(first), page.refinements,
                        refinement_bytes(page.count));
        table[filled++] = {first_entry + first, page.stride, at};
        first += page.count;
        at += bytes;
    }
    std::fill(offsets + first, offsets + offset_bytes / sizeof(float),
              std::numeric_limits<float>::quiet_NaN());

    const size_t raw_bytes = codes_at - table_at + at;
    if (raw_.size() < raw_bytes) {
        uploads_.synchronize();
        raw_.grow(context_.memory, raw_bytes * 2);
    }
    stage_attributes(pages, attribute_columns, room + attributes_in);
    upload_attributes(room + attributes_in, entries, to);
    // For a whole list, offsets and TIDs are adjacent in the block, too: one copy.
    const bool together = first_entry == 0;
    copy_async(to + offsets_at(count) + first_entry * sizeof(float), room,
               offset_bytes + (together ? new_tid_bytes : 0), uploads_);
    if (!together)
        copy_async(to + tids_at(count) + size_t{first_entry} * tid_bytes, room + offset_bytes,
                   new_tid_bytes, uploads_);
    copy_async(to + refinements_at(count) + refinement_bytes(first_entry), room + refinements_in,
               new_refinement_bytes, uploads_);
    copy_async(raw_.data(), room + table_at, raw_bytes, uploads_);
    staging.copied.record(uploads_);
    tile_codes(layout_, reinterpret_cast<const uint8_t*>(raw_ + (codes_at - table_at)),
               reinterpret_cast<const RawPage*>(raw_.data()), filled, entries,
               reinterpret_cast<uint8_t*>(to.data()), uploads_);
    far_.move_offsets(layout_, reinterpret_cast<const uint8_t*>(to.data()), entries,
                      reinterpret_cast<float*>(to + offsets_at(count)), uploads_);
    uploaded_.record(uploads_);
}

void CudaListStore::replace(uint32_t number, const List& as, Buffer<char>&& memory) {
    List& list = lists_[number];
    if (list.memory.data()) retired_.push_back({last_serial_, {}});
    bytes_ += memory.size();
    bytes_ -= list.memory.size();
    if (list.memory.data()) retired_.back().memory = std::move(list.memory);
    list.held = as.held;
    list.refined = as.refined;
    list.count = as.count;
    list.memory = std::move(memory);
    directory_.reset();
}

void CudaListStore::free_retired() noexcept {
    if (retired_.empty() || !uploaded_.reached()) return;
    const uint64_t oldest = running_.empty() ? std::numeric_limits<uint64_t>::max()
                                             : *std::min_element(running_.begin(), running_.end());
    std::erase_if(retired_, [&](const Retired& r) { return r.serial < oldest; });
}

void CudaListStore::refresh_directory(Stream& stream) {
    if (directory_) return;
    auto directory = std::make_shared<Directory>();
    std::vector<DeviceList> views;
    std::vector<const uint8_t*> refinements;
    views.reserve(lists_.size());
    refinements.reserve(lists_.size());
    for (const List& list : lists_) {
        refinements.push_back(
            list.refined && list.count > 0
                ? reinterpret_cast<const uint8_t*>(list.memory + refinements_at(list.count))
                : nullptr);
        views.push_back(view_of(list, directory->entries));
        directory->entries += list.count;
        directory->longest_list = std::max(directory->longest_list, list.count);
    }
    if (directory->entries > std::numeric_limits<uint32_t>::max())
        throw std::length_error("more than 2^32 entries in one store");
    directory->lists = Buffer<DeviceList>(context_.memory, views.size());
    // From pageable memory: the source has been read when the call returns.
    copy_async(directory->lists.data(), views.data(), views.size(), stream);
    directory->refinements = Buffer<const uint8_t*>(context_.memory, refinements.size());
    copy_async(directory->refinements.data(), refinements.data(), refinements.size(), stream);
    directory->uploaded.record(stream);
    directory_ = std::move(directory);
}

std::unique_ptr<ListBatch> CudaListStore::make_batch(const ListBatchShape& shape) {
    context_.use();
    check_shape(shape);
    const QuantizerShape& model = model_.view().shape;
    auto batch = std::make_unique<CudaListBatch>(shape, model.dims,
                                                 shape.mixed ? most_mixed_probes : model.lists);
    batch->device_input = Buffer<char>(context_.memory, batch->input.size());
    return batch;
}

// If resident lists leave too little memory for one query, throws OutOfDeviceMemory, so that lists
// are evicted. If the scratch budget itself is too small, eviction does not help: length_error.
SearchPlan CudaListStore::plan_with(const SearchShape& shape, size_t room) const {
    const size_t scratch = std::min(context_.scratch_budget, room);
    try {
        return plan_search(shape, {context_.processors, scratch});
    } catch (const std::length_error&) {
        if (room >= context_.scratch_budget) throw;
        const DeviceMemoryUse use = context_.memory.use();
        throw OutOfDeviceMemory(context_.scratch_budget, use.used, use.budget);
    }
}

bool CudaListStore::mixes_with(ListStore& other) noexcept {
    const auto* store = dynamic_cast<CudaListStore*>(&other.inner());
    if (!store || &store->context_ != &context_) return false;
    const QuantizerShape &a = model_.view().shape, &b = store->model_.view().shape;
    return a.dims == b.dims && a.m == b.m && a.metric == b.metric && a.bits == b.bits &&
           a.search_rounds == b.search_rounds;
}

StoreView CudaListStore::view() const {
    return {model_.view(),
            layout_,
            codewords_.data(),
            centroids_.norms(),
            largest_word_,
            directory_->lists.data(),
            far_.any() ? given_centroids_.data() : model_.view().centroids,
            directory_->refinements.data(),
            far_.origin()};
}

SearchShape CudaListStore::shape_of(CudaListBatch& batch, size_t queries,
                                    std::span<CudaListStore* const> stores) const {
    SearchShape shape{};
    shape.queries = static_cast<uint32_t>(queries);
    shape.dims = model_.view().shape.dims;
    shape.layout = layout_;
    shape.filtered = batch.shape.filtered;
    shape.refined = batch.shape.refined;
    shape.mixed = batch.shape.mixed;
    for (size_t i = 0; i < queries; ++i) {
        const CudaListStore& store = shape.mixed ? *stores[i] : *this;
        const auto lists = static_cast<uint32_t>(store.lists_.size());
        batch.taken_lists[i] = std::min(batch.wanted[i].probes, lists);
        shape.k = std::max(shape.k, batch.wanted[i].k);
        shape.probes = std::max(shape.probes, batch.taken_lists[i]);
        shape.limited |= batch.wanted[i].plan.threshold > 0;
        shape.lists = std::max(shape.lists, lists);
    }
    for (const CudaListBatch::InUse& used : batch.in_use) {
        shape.longest_list = std::max(shape.longest_list, used.directory->longest_list);
        shape.entries = std::max(shape.entries, used.directory->entries);
    }
    return shape;
}

void CudaListStore::begin_use(CudaListBatch& batch) {
    free_retired();
    Stream& stream = batch.space.stream;
    refresh_directory(stream);
    running_.reserve(running_.size() + 1);
    batch.in_use.push_back({this, ++last_serial_, directory_});
    running_.push_back(last_serial_);
    uploaded_.hold_back(stream);
    directory_->uploaded.hold_back(stream);
}

void CudaListStore::end_use(CudaListBatch& batch) noexcept {
    for (const CudaListBatch::InUse& used : batch.in_use)
        std::erase(used.store->running_, used.serial);
    for (CudaListBatch::InUse& used : batch.in_use) {
        used.directory.reset();
        // Now: if this index is not searched again, no later batch would free dropped lists.
        used.store->free_retired();
    }
    batch.in_use.clear();
    batch.running = false;
}

bool CudaListStore::send(CudaListBatch& batch, size_t queries) const {
    const uint32_t dims = model_.view().shape.dims;
    Stream& stream = batch.space.stream;
    const size_t vectors_end =
        CudaListBatch::queries_at(batch.shape) + queries * dims * sizeof(float);
    const size_t values_at = CudaListBatch::values_at(batch.shape, dims);
    const size_t value_bytes = queries * batch.shape.values * sizeof(uint64_t);
    const size_t end = value_bytes > 0 ? values_at + value_bytes : vectors_end;
    if (end <= most_small_copy) {
        copy_small_async(batch.device_input.data(), batch.input.data(), end, stream);
        return true;
    }
    copy_async(batch.device_input.data(), batch.input.data(), vectors_end, stream);
    copy_async(batch.device_input + values_at, batch.input.data() + values_at, value_bytes, stream);
    return false;
}

void CudaListStore::start(ListBatch& base, size_t queries) {
    context_.use();
    auto& batch = static_cast<CudaListBatch&>(base);
    if (batch.running) throw std::logic_error("batch is running");
    std::vector<CudaListStore*> stores;
    if (batch.shape.mixed)
        stores = stores_of<CudaListStore>(batch, queries);
    else
        check_batch(batch, queries, static_cast<uint32_t>(lists_.size()), attributes_);
    for (size_t i = 0; i < stores.size(); ++i)
        check_query(batch, i, static_cast<uint32_t>(stores[i]->lists_.size()), {});
    if (queries == 0) return;
    Stream& stream = batch.space.stream;
    batch.running = true;
    try {
        if (stores.empty()) begin_use(batch);
        for (size_t i = 0; i < stores.size(); ++i) {
            if (i == 0 || stores[i] != stores[i - 1]) stores[i]->begin_use(batch);
            batch.store_views[i] = stores[i]->view();
        }
        const SearchShape shape = shape_of(batch, queries, stores);
        batch.found_stride = shape.k;
        batch.probed_stride = shape.probes;
        const SearchPlan plan =
            plan_with(shape, context_.memory.available() + batch.space.scratch.size());
        const bool small = send(batch, queries);
        char* input = batch.device_input.data();
        auto* vectors = reinterpret_cast<float*>(input + CudaListBatch::queries_at(batch.shape));
        const StoreView* each = nullptr;
        if (shape.mixed)
            each =
                reinterpret_cast<const StoreView*>(input + CudaListBatch::stores_at(batch.shape));
        const bool far =
            std::any_of(batch.in_use.begin(), batch.in_use.end(),
                        [](const CudaListBatch::InUse& used) { return used.store->far_.any(); });
        const bool moved = shape.refined && far;
        if (moved) {
            batch.given_queries.grow(context_.memory, batch.shape.queries * shape.dims);
            copy_async(batch.given_queries.data(), vectors, queries * shape.dims, stream);
        }
        if (!each)
            far_.move_queries(vectors, queries, stream);
        else if (far)
            move_mixed_queries(vectors, queries, shape.dims, each, stream);
        SearchRequest request{stores.empty() ? view() : stores.front()->view(),
                              &centroids_,
                              shape,
                              vectors,
                              reinterpret_cast<ListQuery*>(input),
                              batch.answers.data(),
                              batch.counts.data(),
                              batch.probed_lists.data()};
        request.stores = each;
        if (each) request.store.model.shape.lists = shape.lists;
        request.filter.attributes = DeviceAttributes::of(attributes_);
        request.filter.conditions = reinterpret_cast<const PackedCondition*>(
            input + CudaListBatch::conditions_at(batch.shape));
        request.filter.condition_stride = batch.shape.conditions;
        request.filter.values = reinterpret_cast<const uint64_t*>(
            input + CudaListBatch::values_at(batch.shape, shape.dims));
        request.filter.value_stride = batch.shape.values;
        request.start = small ? Start::early : Start::after;
        request.searched = batch.searched_lists.data();
        request.taken = batch.taken_lists.data();
        request.given = moved ? batch.given_queries.data() : vectors;
        request.left_out = batch.left_out_distances.data();
        search_lists(context_, batch.space, request, plan);
        batch.finished.record(stream);
    } catch (...) {
        batch.finish();
        end_use(batch);
        throw;
    }
}

bool CudaListStore::done(ListBatch& base) {
    context_.use();
    auto& batch = static_cast<CudaListBatch&>(base);
    return !batch.running || batch.finished.done();
}

void CudaListStore::wait(ListBatch& base) {
    context_.use();
    auto& batch = static_cast<CudaListBatch&>(base);
    if (!batch.running) return;
    try {
        batch.finished.synchronize();
    } catch (...) {
        end_use(batch);
        throw;
    }
    end_use(batch);
}

std::unique_ptr<ListStore> make_list_store(const Context& context, const Quantizer& quantizer,
                                           const AttributeLayout& attributes) {
    context.use();
    return std::make_unique<CudaListStore>(context, quantizer, attributes);
}

}  // namespace pgwarp::gpu
