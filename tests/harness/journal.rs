//! What the processes of a test wrote, kept until it's known whether anyone wants to read it.

use std::cell::RefCell;

thread_local! {
    static JOURNAL: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the output of a process that has ended. A test and all guards that it holds live on one
/// thread, so the journal is that of the test.
pub fn keep(name: &str, output: &str) {
    if !output.is_empty() {
        JOURNAL.with_borrow_mut(|journal| {
            journal.push_str(&format!("---- {name} wrote:\n{output}"));
        });
    }
}

/// Everything that was kept on this thread.
pub fn take() -> String {
    JOURNAL.take()
}
