//! What the processes of a test wrote, kept until it's known whether anyone wants to read it.

use std::cell::RefCell;

thread_local! {
    static JOURNAL: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Of a test that starts many processes, the last ones tell what went wrong.
const BYTES_MAX: usize = 32 << 10;

/// Keeps the output of a process that has ended. A test and all guards that it holds live on one
/// thread, so the journal is that of the test.
pub fn keep(name: &str, output: &str) {
    if !output.is_empty() {
        JOURNAL.with_borrow_mut(|journal| {
            journal.push_str(&format!("---- {name} wrote:\n{output}"));
        });
    }
}

/// The end of what was kept on this thread.
pub fn take() -> String {
    let journal = JOURNAL.take();
    let start = journal.ceil_char_boundary(journal.len().saturating_sub(BYTES_MAX));
    journal[start..].to_owned()
}
