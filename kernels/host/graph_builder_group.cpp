#include "kernels/graph_builder_group.h"

#include "kernels/executor_group.h"
#include "kernels/host/following_pair_finder.h"
#include "kernels/workers.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace pgwarp {

namespace {

struct Member {
    std::unique_ptr<GraphBuilder> builder;  // null once it has failed
    bool failed = false;
    std::string failure;
};

// A member's part of an exact graph.
struct Share {
    size_t member;
    RowSpan rows;
    bool done = false;
};

// The i-th of `count` parts.
RowSpan part_of(const RowSpan& span, size_t i, size_t count) {
    return {span.begin + span.size() * i / count, span.begin + span.size() * (i + 1) / count};
}

}  // namespace

struct GraphBuilderGroup::State {
    std::vector<Member> members;
    MakeBuilder make_cpu;
    std::function<void(size_t member)> leave;
    std::unique_ptr<GraphBuilder> cpu;  // set once all devices have failed
    std::string name;
    std::string failure;
    Workers workers;  // a thread for each device

    State(std::vector<std::unique_ptr<GraphBuilder>> builders, MakeBuilder make,
          std::function<void(size_t)> leaving)
        : make_cpu(std::move(make)),
          leave(std::move(leaving)),
          workers(static_cast<int>(builders.size())) {
        std::vector<std::string> names;
        for (auto& builder : builders) {
            names.emplace_back(builder->name());
            members.push_back({std::move(builder), false, {}});
        }
        name = name_of_group(names);
    }

    std::vector<size_t> working() const {
        std::vector<size_t> numbers;
        for (size_t i = 0; i < members.size(); ++i)
            if (!members[i].failed) numbers.push_back(i);
        return numbers;
    }
    // Ends the builders of devices that have failed. Throws the failure of the last one where the
    // CPU must not take over.
    void leave_failed();
    // Makes shares of `left` for all devices that work, and runs them. Returns what is left to do.
    std::vector<RowSpan> run_shares(const std::vector<RowSpan>& left, const GraphRows& rows,
                                    size_t first, const RowSpan& part, uint32_t degree, Edge* lists,
                                    const GraphProgress& progress);
    template <typename Work>
    DescentReport run_on_one(const GraphProgress& progress, Work&& work);
};

void GraphBuilderGroup::State::leave_failed() {
    for (size_t i = 0; i < members.size(); ++i) {
        Member& member = members[i];
        if (!member.failed || !member.builder) continue;
        if (failure.empty()) failure = member.failure;
        member.builder.reset();
        if (leave) leave(i);
    }
    if (cpu || !working().empty()) return;
    if (!make_cpu) throw DeviceFailure(failure, false);
    cpu = make_cpu();
}

std::vector<RowSpan> GraphBuilderGroup::State::run_shares(const std::vector<RowSpan>& left,
                                                          const GraphRows& rows, size_t first,
                                                          const RowSpan& part, uint32_t degree,
                                                          Edge* lists,
                                                          const GraphProgress& progress) {
    const std::vector<size_t> who = working();
    std::vector<Share> shares;
    for (const RowSpan& span : left)
        for (size_t i = 0; i < who.size(); ++i)
            if (const RowSpan mine = part_of(span, i, who.size()); mine.size() > 0)
                shares.push_back({who[i], mine});
    // The caller's thread alone reports progress, of all of them.
    const auto caller = std::this_thread::get_id();
    const std::unique_ptr<std::atomic<uint64_t>[]> done(
        new std::atomic<uint64_t>[members.size()]());
    const auto report = [&](size_t member, uint64_t now) {
        done[member] = now;
        if (!progress || std::this_thread::get_id() != caller) return;
        uint64_t all = 0;
        for (size_t i = 0; i < members.size(); ++i) all += done[i];
        progress(GraphPhase::exact, std::min<uint64_t>(all, part.size()), part.size());
    };
    workers.run(who.size(), [&](size_t i, int) {
        Member& member = members[who[i]];
        uint64_t before = 0;
        for (Share& share : shares) {
            if (share.member != who[i]) continue;
            member.builder->progress = [&](GraphPhase, uint64_t now, uint64_t total) {
                if (total > 0) report(who[i], before + share.rows.size() * now / total);
            };
            share.done = ran_on_device(
                [&] {
                    member.builder->exact_part(rows, first, share.rows, degree,
                                               lists + (share.rows.begin - part.begin) * degree);
                },
                [&](const char* message) {
                    member.failed = true;
                    member.failure = message;
                });
            member.builder->progress = {};
            if (!share.done) return;
            before += share.rows.size();
        }
    });
    std::vector<RowSpan> rest;
    for (const Share& share : shares)
        if (!share.done) rest.push_back(share.rows);
    return rest;
}

// The first device that works does it, and the next one where that fails: its lists are unchanged.
template <typename Work>
DescentReport GraphBuilderGroup::State::run_on_one(const GraphProgress& progress, Work&& work) {
    DescentReport report;
    while (leave_failed(), !cpu) {
        Member& member = members[working().front()];
        member.builder->progress = progress;
        if (ran_on_device([&] { report = work(*member.builder); },
                          [&](const char* message) {
                              member.failed = true;
                              member.failure = message;
                          }))
            return report;
    }
    cpu->progress = progress;
    return work(*cpu);
}

GraphBuilderGroup::GraphBuilderGroup(std::vector<std::unique_ptr<GraphBuilder>> members,
                                     MakeBuilder make_cpu, std::function<void(size_t)> leave)
    : state_(std::make_unique<State>(std::move(members), std::move(make_cpu), std::move(leave))) {}

GraphBuilderGroup::~GraphBuilderGroup() = default;

const std::string& GraphBuilderGroup::failure() const noexcept {
    return state_->failure;
}

size_t GraphBuilderGroup::devices() const noexcept {
    return static_cast<size_t>(std::count_if(state_->members.begin(), state_->members.end(),
                                             [](const Member& member) { return !member.failed; }));
}

bool GraphBuilderGroup::all_failed() const noexcept {
    return state_->cpu != nullptr;
}

const char* GraphBuilderGroup::name() const noexcept {
    return state_->cpu ? state_->cpu->name() : state_->name.c_str();
}

DescentOptions GraphBuilderGroup::default_options(uint32_t k) const noexcept {
    for (const Member& member : state_->members)
        if (member.builder) return member.builder->default_options(k);
    return state_->cpu->default_options(k);
}

size_t GraphBuilderGroup::most_rows(uint32_t dims, const DescentOptions& options) const noexcept {
    size_t most = most_graph_rows;
    for (const Member& member : state_->members)
        if (member.builder) most = std::min(most, member.builder->most_rows(dims, options));
    return most;
}

void GraphBuilderGroup::exact(const GraphRows& rows, uint32_t degree, Edge* lists) {
    exact_part(rows, 0, {0, rows.count}, degree, lists);
}

void GraphBuilderGroup::exact_merge(const GraphRows& rows, size_t first, uint32_t degree,
                                    Edge* lists) {
    if (first == 0 || first == rows.count) return;
    exact_part(rows, first, {0, rows.count}, degree, lists);
}

void GraphBuilderGroup::exact_part(const GraphRows& rows, size_t first, const RowSpan& part,
                                   uint32_t degree, Edge* lists) {
    std::vector<RowSpan> left{part};
    while (state_->leave_failed(), !state_->cpu && !left.empty())
        left = state_->run_shares(left, rows, first, part, degree, lists, progress);
    if (progress && left.empty()) progress(GraphPhase::exact, part.size(), part.size());
    for (const RowSpan& span : left) {
        state_->cpu->progress = progress;
        state_->cpu->exact_part(rows, first, span, degree,
                                lists + (span.begin - part.begin) * degree);
    }
}

DescentReport GraphBuilderGroup::descend(const GraphRows& rows, const DescentOptions& options,
                                         Edge* lists) {
    return state_->run_on_one(
        progress, [&](GraphBuilder& builder) { return builder.descend(rows, options, lists); });
}

DescentReport GraphBuilderGroup::merge(const GraphRows& rows, size_t first,
                                       const DescentOptions& options, Edge* lists) {
    return state_->run_on_one(progress, [&](GraphBuilder& builder) {
        return builder.merge(rows, first, options, lists);
    });
}

DescentReport GraphBuilderGroup::append(const GraphRows& rows, size_t first,
                                        const DescentOptions& options, Edge* lists) {
    return state_->run_on_one(progress, [&](GraphBuilder& builder) {
        return builder.append(rows, first, options, lists);
    });
}

std::unique_ptr<PairFinder> GraphBuilderGroup::find_pairs(const GraphRows& rows,
                                                          const PairSearch& search) {
    return std::make_unique<FollowingPairFinder>(
        rows, search, [this](const FollowingPairFinder::Work& work) {
            state_->run_on_one(progress, [&](GraphBuilder& builder) {
                work(builder);
                return DescentReport();
            });
        });
}

void run_graph_task(GraphBuilder& builder, const GraphTask& task) {
    if (task.prepare) task.prepare(task.state);
    if (task.exact && task.first > 0)
        builder.exact_merge(task.rows, task.first, task.options.degree, task.lists);
    else if (task.exact)
        builder.exact(task.rows, task.options.degree, task.lists);
    else if (task.first > 0)
        builder.merge(task.rows, task.first, task.options, task.lists);
    else
        builder.descend(task.rows, task.options, task.lists);
    if (task.keep) task.keep(task.state);
}

struct GraphTasks::State {
    struct Numbered {
        size_t number;
        GraphTask task;
    };

    GraphBuilderGroup& group;
    std::mutex mutex;
    // Protected by the mutex, as are the members of the group:
    std::condition_variable changed;
    std::deque<Numbered> waiting;
    std::deque<size_t> done;
    size_t threads = 0;  // that take tasks
    size_t running = 0;  // tasks
    bool ending = false;
    std::exception_ptr thrown;
    volatile std::sig_atomic_t* const interrupt;
    Workers workers;  // a thread for each device, and the caller's, which takes no task

    State(GraphBuilderGroup& whole, volatile std::sig_atomic_t* flag)
        : group(whole), interrupt(flag), workers(static_cast<int>(whole.devices()) + 1) {}

    void take_tasks(Member& member);
};

// A device's thread.
void GraphTasks::State::take_tasks(Member& member) {
    std::unique_lock lock(mutex);
    while (true) {
        changed.wait(lock, [&] { return ending || !waiting.empty(); });
        if (ending) break;
        const Numbered mine = waiting.front();
        waiting.pop_front();
        ++running;
        std::string failure;
        bool ran = false;
        std::exception_ptr other;
        lock.unlock();
        try {
            ran = ran_on_device([&] { run_graph_task(*member.builder, mine.task); },
                                [&](const char* message) { failure = message; });
        } catch (...) {
            other = std::current_exception();
        }
        lock.lock();
        --running;
        if (ran) {
            done.push_back(mine.number);
        } else if (other) {
            if (!thrown) thrown = other;
            ending = true;
        } else {
            member.failed = true;
            member.failure = failure;
            waiting.push_front(mine);
        }
        changed.notify_all();
        if (!ran) break;
    }
    --threads;
    changed.notify_all();
}

GraphTasks::GraphTasks(GraphBuilderGroup& group, volatile std::sig_atomic_t* interrupt)
    : state_(std::make_unique<State>(group, interrupt)) {
    State& state = *state_;
    const std::vector<size_t> who = group.state_->working();
    // The system may have refused some of the threads.
    state.threads = std::min(who.size(), static_cast<size_t>(state.workers.threads() - 1));
    for (const size_t member : who) group.state_->members[member].builder->progress = {};
    if (state.threads > 0)
        state.workers.begin(state.threads, [&state, &group, who](size_t i, int) {
            state.take_tasks(group.state_->members[who[i]]);
        });
}

GraphTasks::~GraphTasks() {
    State& state = *state_;
    std::unique_lock lock(state.mutex);
    state.ending = true;
    state.changed.notify_all();
    // Without running tasks nothing has to be interrupted, and others may raise the flag.
    if (!state.interrupt || state.running == 0) return;
    // Raises the flag with a value of its own: what a signal handler sets, before or after, is
    // kept.
    constexpr std::sig_atomic_t raised_here = 2;
    static_assert(std::atomic_ref<std::sig_atomic_t>::is_always_lock_free);
    const std::atomic_ref flag(const_cast<std::sig_atomic_t&>(*state.interrupt));
    std::sig_atomic_t lowered = 0;
    flag.compare_exchange_strong(lowered, raised_here);
    state.changed.wait(lock, [&] { return state.threads == 0; });
    std::sig_atomic_t raised = raised_here;
    flag.compare_exchange_strong(raised, 0);
}

void GraphTasks::start(size_t number, const GraphTask& task) {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back({number, task});
    state_->changed.notify_all();
}

size_t GraphTasks::finish() {
    State& state = *state_;
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock,
                       [&] { return state.thrown || !state.done.empty() || state.threads == 0; });
    if (state.thrown) {
        // An interrupt ends all threads, as long as it is pending: the caller takes it next.
        state.changed.wait(lock, [&] { return state.threads == 0; });
        std::rethrow_exception(state.thrown);
    }
    if (!state.done.empty()) {
        const size_t number = state.done.front();
        state.done.pop_front();
        // Frees the memory of devices that have failed for other processes.
        if (state.threads > 0) state.group.state_->leave_failed();
        return number;
    }
    // No thread is left that could hold the mutex.
    const State::Numbered mine = state.waiting.front();
    state.waiting.pop_front();
    run_graph_task(state.group, mine.task);
    return mine.number;
}

}  // namespace pgwarp
