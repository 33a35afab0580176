#include "kernels/common/linear_algebra.h"

#include "kernels/lapack.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <dlfcn.h>
#include <mutex>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace pgwarp {

namespace {

// Fortran's calling convention: arguments by reference, lengths of strings after all others.
using SingularValues = void(const char* job, const int* rows, const int* columns, float* matrix,
                            const int* stride, float* values, float* u, const int* u_stride,
                            float* vt, const int* vt_stride, float* work, const int* work_size,
                            int* int_work, int* info, size_t job_length);
using Eigenvectors = void(const char* job, const char* triangle, const int* size, float* matrix,
                          const int* stride, float* values, float* work, const int* work_size,
                          int* int_work, const int* int_work_size, int* info, size_t job_length,
                          size_t triangle_length);

using SolvePositive = void(const char* triangle, const int* size, const int* count, double* matrix,
                           const int* stride, double* b, const int* b_stride, int* info,
                           size_t triangle_length);

struct Lapack {
    SingularValues* singular_values;
    Eigenvectors* eigenvectors;
    SolvePositive* solve_positive;
};

template <typename Function>
Function* symbol(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (!found) throw std::runtime_error(std::string("the LAPACK library has no ") + name);
    return reinterpret_cast<Function*>(found);
}

Lapack open_lapack() {
    // Threads that the library may start must leave signals to this thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    void* library = dlopen("liblapack.so.3", RTLD_NOW | RTLD_LOCAL);
    const std::string reason = library ? "" : dlerror();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!library) throw std::runtime_error("could not load LAPACK: " + reason);
    return {symbol<SingularValues>(library, "sgesdd_"), symbol<Eigenvectors>(library, "ssyevd_"),
            symbol<SolvePositive>(library, "dposv_")};
}

// Never closed: its allocations live as long as the process.
const Lapack& lapack() {
    static const Lapack opened = open_lapack();
    return opened;
}

// OpenBLAS' serial build hands out its working memory without a lock.
std::mutex one_call;

int checked_size(uint32_t size) {
    // The workspace, a few times size^2 floats, must be countable in an int.
    constexpr uint32_t most = 10000;
    if (size == 0 || size > most) throw std::runtime_error("matrix out of range for LAPACK");
    return static_cast<int>(size);
}

void check(int info, const char* what) {
    if (info != 0) throw std::runtime_error(std::string(what) + " did not converge");
}

// Infinities and NaN carry no direction, and LAPACK may not terminate on them.
void make_finite(float* matrix, size_t count) {
    float largest = 0;
    for (size_t i = 0; i < count; ++i) {
        if (!std::isfinite(matrix[i])) matrix[i] = 0;
        largest = std::max(largest, std::fabs(matrix[i]));
    }
    if (largest > 0)
        for (size_t i = 0; i < count; ++i) matrix[i] /= largest;
}

}  // namespace

void require_lapack() {
    lapack();
}

void nearest_orthonormal(float* matrix, uint32_t rows, uint32_t columns, float* nearest) {
    // LAPACK stores by columns: it sees the transpose, (columns) x (rows), and returns the
    // transpose's U and V, which are swapped.
    const int r = checked_size(columns), c = checked_size(rows), k = std::min(r, c);
    make_finite(matrix, size_t{rows} * columns);
    std::vector<float> values(static_cast<size_t>(k));
    std::vector<float> u(static_cast<size_t>(r) * k), vt(static_cast<size_t>(k) * c);
    std::vector<int> int_work(8 * static_cast<size_t>(k));
    const std::lock_guard lock(one_call);
    int info = 0;
    int size = -1;
    float wanted = 0;
    lapack().singular_values("S", &r, &c, matrix, &r, values.data(), u.data(), &r, vt.data(), &k,
                             &wanted, &size, int_work.data(), &info, 1);
    check(info, "singular value decomposition");
    // The size is returned as a float, which may have been rounded down.
    size = static_cast<int>(std::nextafter(wanted, 2 * wanted)) + 1;
    std::vector<float> work(static_cast<size_t>(size));
    lapack().singular_values("S", &r, &c, matrix, &r, values.data(), u.data(), &r, vt.data(), &k,
                             work.data(), &size, int_work.data(), &info, 1);
    check(info, "singular value decomposition");
    // nearest^T = u vt, by columns again.
    for (int j = 0; j < c; ++j) {
        float* column = nearest + static_cast<size_t>(j) * r;
        std::fill_n(column, r, 0.0f);
        for (int i = 0; i < k; ++i) {
            const float factor = vt[static_cast<size_t>(j) * k + i];
            const float* direction = u.data() + static_cast<size_t>(i) * r;
            for (int d = 0; d < r; ++d) column[d] += factor * direction[d];
        }
    }
}

void eigenvectors(float* matrix, uint32_t size, float* values) {
    const int n = checked_size(size);
    make_finite(matrix, size_t{size} * size);
    const std::lock_guard lock(one_call);
    int info = 0;
    int work_size = -1, int_work_size = -1, int_wanted = 0;
    float wanted = 0;
    lapack().eigenvectors("V", "U", &n, matrix, &n, values, &wanted, &work_size, &int_wanted,
                          &int_work_size, &info, 1, 1);
    check(info, "eigenvalue decomposition");
    work_size = static_cast<int>(std::nextafter(wanted, 2 * wanted)) + 1;
    int_work_size = int_wanted;
    std::vector<float> work(static_cast<size_t>(work_size));
    std::vector<int> int_work(static_cast<size_t>(int_work_size));
    // LAPACK returns eigenvectors as columns, which are rows in our layout.
    lapack().eigenvectors("V", "U", &n, matrix, &n, values, work.data(), &work_size,
                          int_work.data(), &int_work_size, &info, 1, 1);
    check(info, "eigenvalue decomposition");
}

void solve_positive(double* matrix, uint32_t size, double* b, uint32_t count) {
    const int n = checked_size(size), columns = checked_size(count);
    const std::lock_guard lock(one_call);
    int info = 0;
    // Our lower triangle is the upper one of a matrix stored by columns.
    lapack().solve_positive("U", &n, &columns, matrix, &n, b, &n, &info, 1);
    if (info != 0) throw std::runtime_error("the equations of a codebook have no solution");
}

}  // namespace pgwarp
