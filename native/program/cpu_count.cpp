#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "program/thread_team.hpp"

namespace octavo {
namespace {

int affinity_count() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// CPUs' worth of time that a control group grants, from a file like "200000 100000" or "max 100000" (version 2).
double quota_of(const std::string& path) {
    std::ifstream file(path);
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1e9;
    return std::stod(quota) / period;
}

double quota_version_1(const std::string& folder) {
    double quota = -1, period = 0;
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    return quota > 0 && period > 0 ? quota / period : 1e9;
}

// The smallest quota on the way from this process's group to the root of the hierarchy.
double cgroup_quota() {
    double least = std::min(quota_of("/sys/fs/cgroup/cpu.max"), quota_version_1("/sys/fs/cgroup/cpu"));
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        if (line.rfind("0::", 0) != 0) continue;
        for (std::string path = line.substr(3); path.size() > 1; path = path.substr(0, path.rfind('/'))) {
            least = std::min(least, quota_of("/sys/fs/cgroup" + path + "/cpu.max"));
        }
    }
    return least;
}

}  // namespace

int available_threads() {
    const double quota = cgroup_quota();
    const int affinity = affinity_count();
    return std::max(1, quota < affinity ? static_cast<int>(quota + 0.5) : affinity);
}

}  // namespace octavo
