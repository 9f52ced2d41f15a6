//! What the process holds on to.

/// Gives back what only loading needed. The C library keeps freed memory for later; after a model
/// of 400 MB that was 200 MB, which no batch ever needs again.
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes no pointer and returns only pages without live allocations; the C
    // library locks its own state, so other threads may allocate meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_memory_survives() {
        let kept: Vec<Vec<usize>> = (0..100).map(|index| vec![index; 1000]).collect();
        let trimming = std::thread::spawn(|| (0..10).for_each(|_| trim()));
        let more: Vec<Vec<usize>> = (0..100).map(|index| vec![index; 1000]).collect();
        trimming.join().unwrap();
        assert_eq!(kept, more);
    }
}
