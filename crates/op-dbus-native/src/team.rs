//! Threads that compute one batch together: asleep without work, awake for a whole batch.

use std::cell::UnsafeCell;
use std::hint;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Looks at a barrier before the CPU is offered to others: longer than a balanced stage's spread.
const SPINS: u32 = if cfg!(miri) { 1 } else { 4096 };

/// What every member does: its number in, nothing out.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// The calling thread and `members - 1` others.
#[derive(Debug)]
pub(crate) struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// A task is there, or the end.
    start: Condvar,
    /// The last of the others is done.
    done: Condvar,
    task: UnsafeCell<Option<Task<'static>>>,
    panicked: AtomicBool,
}

// SAFETY: `task` is written by the owner alone, while no member runs, and read by members alone,
// after they have seen `number` change under the lock. A `Task` itself may be shared.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// Counts the tasks.
    number: u64,
    /// Members still at work.
    running: usize,
    stopped: bool,
}

impl Team {
    /// Starts a team of `members`, this thread included. Member `n` is kept on `cpus[n]`, if there
    /// is one; this thread, member 0, is left where it is.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn new(members: usize, cpus: &[usize]) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            start: Condvar::new(),
            done: Condvar::new(),
            task: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
        });
        let mut team = Self { shared, threads: Vec::new() };
        for member in 1..members {
            let shared = Arc::clone(&team.shared);
            let cpu = cpus.get(member).copied();
            let builder = thread::Builder::new().name(format!("compute {member}"));
            team.threads.push(builder.spawn(move || work(&shared, member, cpu))?);
        }
        Ok(team)
    }

    /// Members, the calling thread included.
    pub fn members(&self) -> usize {
        self.threads.len() + 1
    }

    /// Has all members do `task`, and waits for them. Must not be called from within a task.
    ///
    /// # Panics
    /// If a member panicked.
    pub fn run(&mut self, task: Task<'_>) {
        if self.threads.is_empty() {
            return task(0);
        }
        // SAFETY: only the lifetime changes. The reference is used by members that `running` counts,
        // and `Finish` below does not let this function end, not even by a panic, before that is 0.
        let erased = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: no member runs: `&mut self` excludes another task, and the last one was waited for.
        unsafe { *self.shared.task.get() = Some(erased) };
        // Of a task that this thread itself has panicked in.
        self.shared.panicked.store(false, Ordering::Relaxed);
        let mut state = self.shared.lock();
        state.number += 1;
        state.running = self.threads.len();
        drop(state);
        self.shared.start.notify_all();
        let finish = Finish(&self.shared);
        task(0);
        drop(finish);
        assert!(!self.shared.panicked.load(Ordering::Acquire), "a compute thread panicked");
    }
}

/// Waits for all members when it goes.
struct Finish<'a>(&'a Shared);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        while state.running > 0 {
            state = self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.start.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the calling thread on `cpu`; a failure costs speed alone.
pub(crate) fn keep_on(cpu: usize) {
    let mut set = CpuSet::new();
    let kept = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    if let Err(error) = kept {
        tracing::warn!(%error, cpu, "a compute thread can't be kept on its CPU");
    }
}

fn work(shared: &Shared, member: usize, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        keep_on(cpu);
    }
    let mut seen = 0;
    loop {
        let mut state = shared.lock();
        while state.number == seen && !state.stopped {
            state = shared.start.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped {
            return;
        }
        seen = state.number;
        drop(state);
        // SAFETY: the task was written before `number` changed, and is not written again before
        // this member has counted itself out.
        let task = unsafe { *shared.task.get() };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if let Some(task) = task {
                task(member);
            }
        }));
        if done.is_err() {
            shared.panicked.store(true, Ordering::Release);
        }
        let mut state = shared.lock();
        state.running -= 1;
        if state.running == 0 {
            shared.done.notify_one();
        }
    }
}

/// A place in a task that no member passes before all have reached it.
#[derive(Debug)]
pub(crate) struct Barrier {
    members: usize,
    waiting: AtomicUsize,
    round: AtomicUsize,
    /// Somebody panicked and will never come.
    broken: AtomicBool,
}

/// Breaks a barrier if it goes because of a panic.
#[derive(Debug)]
pub(crate) struct Breaks<'a>(&'a Barrier);

impl Drop for Breaks<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken.store(true, Ordering::Release);
        }
    }
}

impl Barrier {
    pub fn new(members: usize) -> Self {
        Self {
            members,
            waiting: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// To be held by each member during a task: if one panics, the others do not wait for it.
    pub fn member(&self) -> Breaks<'_> {
        Breaks(self)
    }

    /// Members that meet here.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Waits for the others. What any member wrote before, all see afterwards.
    ///
    /// # Panics
    /// If another member panicked, then and ever after: who waited for it was counted, and nobody else must pass for
    /// that.
    pub fn wait(&self) {
        if self.members == 1 {
            return;
        }
        let whole =
            || assert!(!self.broken.load(Ordering::Acquire), "another compute thread panicked");
        whole();
        let round = self.round.load(Ordering::Acquire);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            self.waiting.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.round.load(Ordering::Acquire) == round {
            whole();
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                // The others may need this CPU to get here.
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use nix::sched::sched_getaffinity;
    use op_dbus_engine::BackendError;

    use super::*;
    use crate::kernels::kernels;
    use crate::packed::{Packed, Place};
    use crate::tests::made_up::{SIZES, Weights, options};
    use crate::{Isa, NativeBackend, Options, Precision};

    /// CPUs that the calling thread may run on.
    fn cpus() -> Vec<usize> {
        let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
        (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap()).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for its CPUs")]
    fn a_member_is_kept_on_its_cpu() {
        let before = cpus();
        let [first, second, ..] = before[..] else {
            eprintln!("SKIP: there is one CPU here");
            return;
        };
        let found = Mutex::new([Vec::new(), Vec::new()]);
        let mut team = Team::new(2, &[first, second]).unwrap();
        team.run(&|member| found.lock().unwrap()[member] = cpus());
        assert_eq!(found.into_inner().unwrap(), [before, vec![second]]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for its CPUs")]
    fn who_loads_a_model_is_kept_on_the_first_cpu() {
        let [_, second, ..] = cpus()[..] else {
            eprintln!("SKIP: there is one CPU here");
            return;
        };
        let weights = Weights::new(SIZES[1], 1);
        let encoder = weights.encoder();
        let folder = tempfile::tempdir().unwrap();
        let options = options(&encoder, Isa::best(), Precision::F32, 1);
        let cache_dir = folder.path().to_owned();
        let options = Options { cache_dir, cpus: vec![second], ..options };
        let layout = kernels(options.isa, options.precision).layout;
        let place = Place::new(&options.cache_dir, &options.key, layout);
        Packed::build(&encoder, layout, None).unwrap().save(&place).unwrap();
        let source = || Err(BackendError::Failed("the weights are in the cache".to_owned()));
        // It keeps its CPU, so not the thread of other tests.
        let loading = thread::spawn(move || {
            NativeBackend::load(options, source).unwrap();
            cpus()
        });
        assert_eq!(loading.join().unwrap(), [second]);
    }

    #[test]
    fn nobody_waits_for_a_member_that_panicked() {
        for culprit in 0..3 {
            let barrier = Barrier::new(3);
            let mut team = Team::new(3, &[]).unwrap();
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|member| {
                    let _member = barrier.member();
                    barrier.wait();
                    assert_ne!(member, culprit, "for the test");
                    barrier.wait();
                });
            }));
            assert!(result.is_err());
            // Two of them were counted at the second place.
            let passed = AtomicUsize::new(0);
            let again = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|_| {
                    barrier.wait();
                    passed.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert!(again.is_err() && passed.into_inner() == 0);
            team.run(&|_| {});
        }
    }
}
