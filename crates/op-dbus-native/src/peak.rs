//! What the arithmetic units of this machine can do at most: loops that touch no memory.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::isa::Isa;
use crate::kernels::kernels;
use crate::precision::Precision;

/// Repeats between two looks at the clock: some ten microseconds.
const REPEATS: usize = 4096;

/// Operations per second, two per multiply-add, of `threads` threads that multiply `precision` on
/// `isa` for `time` without touching memory.
///
/// # Panics
/// If the CPU lacks `isa`.
pub fn measure(isa: Isa, precision: Precision, threads: usize, time: Duration) -> f64 {
    assert!(isa.is_available(), "this CPU has no {isa}");
    let kernels = kernels(isa, precision);
    let work = || {
        let start = Instant::now();
        let mut repeats = 0;
        while start.elapsed() < time {
            // SAFETY: the CPU has the instruction set.
            black_box(unsafe { (kernels.spin)(black_box(REPEATS)) });
            repeats += REPEATS;
        }
        (repeats * kernels.spin_operations) as f64 / start.elapsed().as_secs_f64()
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        // A thread that panicked has measured nothing.
        own + others.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum::<f64>()
    })
}
