//! The memory of this process: how much is its own, and giving back what it does not use.

/// Bytes of this process in memory that are nobody else's: no mapped files, nothing shared. Zero where
/// the kernel does not tell.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

/// Gives freed memory back to the system. The C library keeps it for later; after a model of 400 MB
/// was loaded that was 200 MB, which no batch ever needs again.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes no pointer and returns only pages without live allocations; the C
    // library locks its own state, so other threads may allocate meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn live_memory_survives() {
        let kept: Vec<Vec<usize>> = (0..100).map(|index| vec![index; 1000]).collect();
        let trimming = std::thread::spawn(|| (0..10).for_each(|_| trim()));
        let more: Vec<Vec<usize>> = (0..100).map(|index| vec![index; 1000]).collect();
        trimming.join().unwrap();
        assert_eq!(kept, more);
    }

    #[test]
    fn memory_that_was_written_is_counted() {
        // Other tests of the process may give as much back meanwhile.
        assert!((0..5).any(|_| {
            let before = resident();
            let much = black_box(vec![1u8; 64 << 20]);
            let after = resident();
            drop(much);
            before > 0 && after >= before + (48 << 20)
        }));
    }
}
