//! The list of tests: name, needs, and how one is run.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libtest_mimic::{Failed, Trial};

use super::needs::Need;
use super::{Outcome, journal};

/// One test.
pub struct Test {
    name: &'static str,
    needs: &'static [Need],
    run: Box<dyn FnOnce() -> Outcome + Send>,
}

impl Test {
    /// A test from an asynchronous function.
    pub fn new<F>(
        name: &'static str,
        needs: &'static [Need],
        body: impl FnOnce() -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Outcome>,
    {
        let run = Box::new(|| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?
                .block_on(body())
        });
        Self { name, needs, run }
    }

    /// Why this test can't run here, or `None`.
    pub fn skipped(&self) -> Option<String> {
        self.needs.iter().find_map(|need| need.missing())
    }

    /// The name without this program's own.
    pub fn name(&self) -> &'static str {
        self.name.split_once("::").map_or(self.name, |(_, name)| name)
    }

    /// Runs it here and now.
    pub fn conduct(self) -> Result<(), Failed> {
        run(self.run)
    }

    /// The test as the runner wants it.
    pub fn trial(self) -> Trial {
        let skipped = self.skipped().is_some();
        Trial::test(self.name(), move || run(self.run)).with_ignored_flag(skipped)
    }
}

fn run(body: Box<dyn FnOnce() -> Outcome + Send>) -> Result<(), Failed> {
    // What the test before this one left.
    journal::take();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        // The panic's own message is on standard error already.
        Err(_) => "an assertion failed".to_owned(),
    };
    Err(format!("{failure}\n{}", journal::take()).into())
}

/// Makes `tests()`: each asynchronous function named, with what it needs; or, behind an arrow, what is to
/// come to its end.
macro_rules! tests {
    (@body $name:ident) => { $name };
    (@body $name:ident $body:expr) => { || async { $body.await } };
    ($($name:ident: [$($need:ident),*] $(=> $body:expr)?),+ $(,)?) => {
        /// The tests of this module.
        pub fn tests() -> Vec<$crate::harness::registry::Test> {
            vec![$(
                $crate::harness::registry::Test::new(
                    concat!(module_path!(), "::", stringify!($name)),
                    &[$($crate::harness::needs::Need::$need),*],
                    $crate::harness::registry::tests!(@body $name $($body)?),
                )
            ),+]
        }
    };
}
pub(crate) use tests;
