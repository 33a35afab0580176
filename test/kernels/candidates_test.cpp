// CandidateSelection against a plain sort.

#include "kernels/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/reference.h"
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Round {
    std::vector<Candidate> kept;
    Candidate floor;
    bool complete;
};

// One round over the stream. A caller may leave out what is beyond the bound, or not.
Round select(const std::vector<Candidate>& stream, size_t wanted, Candidate floor,
             bool look_at_bound) {
    std::vector<Candidate> room(CandidateSelection::room_for(wanted));
    CandidateSelection selection(room.data(), wanted, floor);
    for (const Candidate& candidate : stream)
        if (!look_at_bound || !(candidate.distance > selection.bound()))
            selection.offer(candidate.distance, candidate.id);
    const CandidateSelection::Result result = selection.finish();
    EXPECT_LE(result.count, wanted);
    room.resize(result.count);
    return {room, result.floor, result.complete};
}

// Sorted, each once, with what is not a number at the far end.
std::vector<Candidate> expected_order(std::vector<Candidate> stream) {
    for (Candidate& candidate : stream)
        if (std::isnan(candidate.distance)) candidate.distance = infinity;
    std::sort(stream.begin(), stream.end());
    stream.erase(std::unique(stream.begin(), stream.end()), stream.end());
    return stream;
}

class Candidates : public testing::Test {
  protected:
    // Few different distances make many ties; few different ids make many repetitions.
    std::vector<Candidate> random_stream() {
        const size_t length = between(random, 0, 3000);
        const size_t distances = between(random, 1, 2 * length + 1);
        const size_t ids = between(random, 1, 2 * length + 1);
        const bool odd_ones = between(random, 0, 1);
        std::vector<Candidate> stream(length);
        for (Candidate& candidate : stream) {
            candidate = {static_cast<double>(between(random, 0, distances)) / 8 - 10,
                         between(random, 0, ids)};
            if (!odd_ones || between(random, 0, 5) > 0) continue;
            constexpr double odd[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(),
                                      -0.0};
            candidate.distance = odd[between(random, 0, 3)];
        }
        return stream;
    }
    std::mt19937 random{test_seed()};
};

void expect_same(const std::vector<Candidate>& found, const std::vector<Candidate>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
        ASSERT_TRUE(found[i] == expected[i])
            << "place " << i << ": " << found[i].distance << ", " << found[i].id << " and not "
            << expected[i].distance << ", " << expected[i].id;
}

// Tightened in the middle of the stream: what is kept is the beginning of the whole order, up to
// the limit, or more of it where it is short.
TEST_F(Candidates, Tightened) {
    for (int i = 0; i < 300; ++i) {
        const std::vector<Candidate> stream = random_stream();
        const size_t wanted = between(random, 1, 200);
        const size_t least = between(random, 1, wanted);
        const double limit = static_cast<double>(between(random, 0, 400)) / 8 - 10;
        const size_t when = between(random, 0, stream.size());
        std::vector<Candidate> room(CandidateSelection::room_for(wanted));
        CandidateSelection selection(room.data(), wanted, no_floor);
        bool tightened = false;
        for (size_t at = 0; at < stream.size(); ++at) {
            if (at == when) {
                const double before = selection.bound();
                selection.tighten(limit, least);
                tightened = selection.bound() < before;
                EXPECT_LE(selection.bound(), before);
            }
            selection.offer(stream[at].distance, stream[at].id);
        }
        const CandidateSelection::Result result = selection.finish();
        room.resize(result.count);
        std::vector<Candidate> expected = expected_order(stream);
        const size_t all = expected.size();
        expected.resize(std::min(all, result.count));
        expect_same(room, expected);
        EXPECT_FALSE(tightened && result.complete);
        // Repetitions count while candidates are kept, and not afterwards.
        std::vector<Candidate> sorted = stream;
        for (Candidate& candidate : sorted)
            if (std::isnan(candidate.distance)) candidate.distance = infinity;
        std::sort(sorted.begin(), sorted.end());
        if (sorted.size() == all && result.count < std::min(all, wanted)) {
            EXPECT_TRUE(tightened);
            EXPECT_GE(result.count, least);
            EXPECT_GT(sorted[result.count].distance, limit);
        }
    }
}

TEST_F(Candidates, AllOfThemWhereThereIsRoom) {
    for (int i = 0; i < 50; ++i) {
        const auto stream = random_stream();
        const Round round = select(stream, stream.size() + 1, no_floor, i % 2);
        expect_same(round.kept, expected_order(stream));
        EXPECT_TRUE(round.complete);
    }
}

// A scan that goes on sees every candidate once, in order, whatever the sizes of its rounds.
TEST_F(Candidates, RoundsYieldEachOnceInOrder) {
    for (int i = 0; i < 200; ++i) {
        auto stream = random_stream();
        const auto expected = expected_order(stream);
        const size_t most = between(random, 1, 700);
        std::vector<Candidate> found;
        Candidate floor = no_floor;
        for (bool complete = false; !complete;) {
            std::shuffle(stream.begin(), stream.end(), random);
            const size_t wanted = between(random, 1, most);
            const size_t left = expected.size() - found.size();
            const Round round = select(stream, wanted, floor, between(random, 0, 1));
            ASSERT_TRUE(round.complete || !round.kept.empty());
            // With nothing offered twice, complete means what it says and nothing less.
            if (stream.size() == expected.size()) {
                EXPECT_EQ(round.complete, left <= wanted);
                EXPECT_EQ(round.kept.size(), std::min(left, wanted));
            }
            found.insert(found.end(), round.kept.begin(), round.kept.end());
            floor = round.floor;
            complete = round.complete;
        }
        expect_same(found, expected);
    }
}

TEST_F(Candidates, NothingAtAll) {
    const Round round = select({}, 5, no_floor, false);
    EXPECT_TRUE(round.kept.empty());
    EXPECT_TRUE(round.complete);
    // The floor stays where it was: an empty round must not start the scan again.
    EXPECT_TRUE(select({}, 5, {3, 7}, false).floor == (Candidate{3, 7}));
    EXPECT_TRUE(select({{1, 1}, {3, 7}}, 5, {3, 7}, false).kept.empty());
}

TEST_F(Candidates, TheBoundIsTheFarthestKept) {
    std::vector<Candidate> room(CandidateSelection::room_for(2));
    CandidateSelection selection(room.data(), 2, no_floor);
    EXPECT_EQ(selection.bound(), infinity);
    for (const double distance : {4.0, 3.0, 2.0, 1.0}) selection.offer(distance, 9);
    EXPECT_EQ(selection.bound(), 2.0);
}

TEST_F(Candidates, WhatIsNotANumberComesLast) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<Candidate> stream = {{nan, 1}, {5, 2}, {-nan, 3}, {infinity, 4}, {-7, 5}};
    expect_same(select(stream, 10, no_floor, false).kept,
                {{-7, 5}, {5, 2}, {infinity, 1}, {infinity, 3}, {infinity, 4}});
    expect_same(select(stream, 2, no_floor, true).kept, {{-7, 5}, {5, 2}});
}

TEST_F(Candidates, BelowEverythingMeansEverything) {
    expect_same(select({{-infinity, 0}}, 1, no_floor, false).kept, {{-infinity, 0}});
}

// One id at two distances is two candidates: which of them a round shows must not depend on
// whether another lies between them.
TEST_F(Candidates, OneIdAtTwoDistances) {
    const std::vector<Candidate> apart = {{1, 7}, {2, 8}, {3, 7}};
    expect_same(select(apart, 3, no_floor, false).kept, apart);
    const std::vector<Candidate> together = {{1, 7}, {2, 7}, {3, 8}};
    expect_same(select(together, 3, no_floor, false).kept, together);
}

TEST_F(Candidates, ALimitLeavesOutWhatIsFarther) {
    for (int i = 0; i < 50; ++i) {
        const auto stream = random_stream();
        const double limit = static_cast<double>(between(random, 0, 200)) / 8 - 12;
        const size_t wanted = between(random, 1, 700);
        std::vector<Candidate> room(CandidateSelection::room_for(wanted));
        CandidateSelection selection(room.data(), wanted, no_floor, limit);
        for (const Candidate& candidate : stream) selection.offer(candidate.distance, candidate.id);
        const auto result = selection.finish();
        auto expected = expected_order(stream);
        std::erase_if(expected, [&](const Candidate& c) { return c.distance > limit; });
        if (result.complete) {
            room.resize(result.count);
            expect_same(room, expected);
        } else {
            EXPECT_LE(room[result.count - 1].distance, limit);
        }
    }
}

// A queue of what a selection kept yields what the selection would have, whatever the parts.
TEST_F(Candidates, AQueueYieldsEachOnceInOrder) {
    for (int i = 0; i < 200; ++i) {
        const auto stream = random_stream();
        const size_t wanted = between(random, 1, 4000);
        std::vector<Candidate> room(CandidateSelection::room_for(wanted));
        CandidateSelection selection(room.data(), wanted, no_floor);
        for (const Candidate& candidate : stream) selection.offer(candidate.distance, candidate.id);
        const auto result = selection.finish_unsorted();
        const Round sorted = select(stream, wanted, no_floor, false);
        EXPECT_EQ(result.complete, sorted.complete);
        EXPECT_TRUE(sorted.kept.empty() || result.floor == sorted.floor);
        CandidateQueue queue(room.data(), result.count);
        std::vector<Candidate> found;
        const size_t most = between(random, 1, 300);
        while (!queue.empty()) {
            const auto part = queue.take(between(random, 1, most));
            found.insert(found.end(), part.items, part.items + part.count);
            if (part.count > 0) part.items[0] = {};
        }
        EXPECT_EQ(queue.take(5).count, 0u);
        expect_same(found, sorted.kept);
    }
    EXPECT_TRUE(CandidateQueue().empty());
}

}  // namespace
}  // namespace pgwarp
