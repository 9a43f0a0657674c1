// Threads that compute something together, inside one parallel region.

#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif
#include <sched.h>
#include <time.h>

// Mirrored nowhere: only its address crosses between our libraries.
struct Team {
  static constexpr int kSpins = 2000;   // turns of waiting for other threads before the core is offered to others
  static constexpr int kOffers = 200;   // offers before it is left to them for a while: they keep this core busy
  static constexpr long kPauseNs = 50'000;
  int size = 1, arrived = 0, generation = 0;

  // Returns when all have called it.
  void wait() {
    if (size == 1) return;
    const int now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL) == size) {
      arrived = 0;
      __atomic_store_n(&generation, now + 1, __ATOMIC_RELEASE);
      return;
    }
    const timespec pause{0, kPauseNs};
    for (int i = 0; __atomic_load_n(&generation, __ATOMIC_ACQUIRE) == now; i++) {
      if (i >= kSpins + kOffers) nanosleep(&pause, nullptr);
      else if (i >= kSpins) sched_yield();
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#endif
    }
  }
};

// Calls work(team, thread) on every one of up to `num_threads` threads.
template <typename Work>
void in_team(int num_threads, Work work) {
  Team team;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    int thread = 0;
#if defined(_OPENMP)
    thread = omp_get_thread_num();
#pragma omp single
    team.size = omp_get_num_threads();
#endif
    work(team, thread);
  }
}
